package consuming

import (
	"context"
	"errors"
	"fmt"
	"math/bits"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// collector gathers records for one answer: it claims one partition after the other, reads it without a lock, and notes
// the delivery if the claim still holds then.
type collector struct {
	s      *Service
	ses    *session
	number uint64 // of the poll
	body   form
	scan   scan
	work   *scratch

	bytes   int  // of records that still fit
	records int  // that still fit
	merge   bool // take as many chunks of a partition as fit, not one
	full    bool

	answer  *answer
	damaged []damage
	owns    bool  // the member owns some partition
	notLed  error // why some partition is not served here
	failed  error // why some partition could not be read
}

// scan is the place of a collector in the round over the partitions of its session, which begins where the last poll
// ended and passes each partition once.
type scan struct {
	start place
	round int // topics passed
	next  int // partition to look at
}

// claim is the right to read a partition at from, until its turn is over.
type claim struct {
	sub       *subscription
	feed      *feed
	positions *topicPositions
	topic     topology.Topic
	partition topology.Partition
	cursor    *cursor
	turn      uint64
	from      topology.Offset
	stored    bool
	load      bool // the positions of the partition must be loaded first; nothing is claimed
	after     place
}

func newCollector(s *Service, ses *session, number uint64, body form, q *pollQuery) *collector {
	c := &collector{
		s: s, ses: ses, number: number, body: body, work: getScratch(),
		bytes: s.grant(q.maxBytes), records: q.maxRecords, merge: q.merge,
	}
	ses.group.mu.Lock()
	c.scan.start = ses.place
	c.scan.next = ses.place.partition
	c.answer = &answer{id: ses.pollID(number), number: number, done: make(chan struct{})}
	ses.group.mu.Unlock()
	return c
}

func (c *collector) release() { putScratch(c.work) }

func (c *collector) collect(ctx context.Context) {
	for !c.full && ctx.Err() == nil {
		cl, ok := c.claim()
		if !ok {
			return
		}
		if cl.load {
			if _, err := c.s.positions.ensure(cl.positions, cl.partition); err != nil {
				c.failed = err
				c.scan.next++
			}
			continue
		}
		c.read(&cl)
	}
}

// claim takes the next partition that may have something for the session.
func (c *collector) claim() (claim, bool) {
	g := c.ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	topics := len(c.ses.subs)
	for ; c.scan.round <= topics; c.scan.round, c.scan.next = c.scan.round+1, 0 {
		if c.ses.gone || c.ses.polls != c.number {
			return claim{}, false
		}
		i := (c.scan.start.topic + c.scan.round) % topics
		sub := c.ses.subs[i]
		if !sub.bound {
			continue
		}
		if sub.owners.stale() {
			c.s.reassign(sub)
			if c.ses.gone || c.ses.polls != c.number || !sub.bound {
				continue
			}
		}
		mask := sub.owners.mask(c.ses.member.id)
		c.owns = c.owns || mask != nil
		end := sub.topic.Partitions
		if c.scan.round == topics {
			end = min(end, c.scan.start.partition)
		}
		for p := sub.nextCandidate(mask, c.scan.next); p < end; p = sub.nextCandidate(mask, p+1) {
			c.scan.next = p
			cl, ok := c.claimPartition(sub, topology.Partition(p))
			if !ok {
				continue
			}
			cl.after = place{topic: i, partition: p + 1}
			if !cl.load {
				c.scan.next = p + 1
			}
			return cl, true
		}
	}
	return claim{}, false
}

// nextCandidate is the first partition from p on that is in mask and may have something, or is open at some origin; a
// large number when there is none.
func (sub *subscription) nextCandidate(mask []uint64, p int) int {
	for w := p / 64; w < len(mask); w++ {
		word := mask[w] & (sub.feed.ready[w].Load() | sub.open[w])
		if w == p/64 {
			word &= ^uint64(0) << (p % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return 1 << 30
}

// claimPartition claims p for the session: what another origin has open there is given back, and the session reads from
// the committed position. The caller holds group.mu.
func (c *collector) claimPartition(sub *subscription, p topology.Partition) (claim, bool) {
	version, err := c.s.cfg.Leadership.Lead(sub.topic.PartitionToken(p))
	if err != nil {
		c.notLed = fmt.Errorf("%s/%d: %w", sub.name, p, err)
		return claim{}, false
	}
	cl := claim{sub: sub, feed: sub.feed, positions: sub.positions, topic: sub.topic, partition: p}
	if sub.positions.covered[p].Load() != uint32(version) {
		cl.load = true
		return cl, true
	}
	cur := sub.cursor(c.s.positions, p, version)
	if cur.origin != c.ses {
		sub.rewind(p, cur)
		cur.origin = c.ses
	} else if cur.next != cur.committed && !sub.feed.isSet(p) {
		return claim{}, false // open in this very answer, or given to this origin already
	}
	sub.feed.clear(p)
	cl.cursor, cl.turn, cl.from, cl.stored = cur, cur.turn, cur.next, cur.stored
	return cl, true
}

// taken is what was read under a claim.
type taken struct {
	next    topology.Offset  // the group reads on here
	version topology.Version // of the last record
	records int
	bytes   int
	size    mark // of the body before
	reset   bool // the position was outside the log, and the group begins at base
	base    topology.Offset
	failed  bool // there may be more, but it cannot be read
}

// read fills the body from one partition.
func (c *collector) read(cl *claim) {
	t := taken{next: cl.from, size: c.body.mark()}
	log := cl.topic.Log(cl.partition)
	err := c.fill(cl, log, &t)
	if err != nil {
		c.failed = fmt.Errorf("read %s/%d at %d: %w", cl.topic.Name, cl.partition, t.next, err)
		t.failed = true
	}
	c.note(cl, &t, c.s.cfg.Logs.Info(log).HighWatermark)
}

// maxSkips bounds the reads of one claim that find nothing to deliver, so that a poll ends.
const maxSkips = 64

func (c *collector) fill(cl *claim, log topology.LogID, t *taken) error {
	for range maxSkips {
		if t.next == c.s.cfg.Logs.Info(log).HighWatermark {
			return nil
		}
		r, buf, err := c.s.cfg.Logs.Read(log, t.next, c.readBytes(), c.work.read)
		c.work.read = buf
		var out *data.OutOfRange
		if errors.As(err, &out) {
			c.reset(cl, t, out)
			continue
		}
		if err != nil {
			return err
		}
		before := t.next
		c.noteDamage(cl, r.Damaged)
		whole := c.takeAll(cl, r.Chunks, t)
		if whole {
			t.next = max(t.next, r.Next)
		}
		if !whole || c.full || t.records > 0 && !c.merge || t.next == before {
			return nil
		}
	}
	return nil
}

func (c *collector) readBytes() int {
	if !c.merge {
		return 1 // the chunk that holds the position
	}
	return min(max(c.bytes, 1), 256<<10)
}

// reset moves on from a position outside the log (P9).
func (c *collector) reset(cl *claim, t *taken, out *data.OutOfRange) {
	to := out.Start
	if cl.stored {
		to = c.ses.policy.reset(out.Start, c.s.cfg.Logs.Info(cl.topic.Log(cl.partition)).HighWatermark)
	}
	c.s.log.Warn().Str("group", c.ses.group.name).Str("topic", cl.topic.Name).Int32("partition", int32(cl.partition)).
		Int64("position", int64(t.next)).Int64("offset", int64(to)).Int64("start", int64(out.Start)).Int64("end", int64(out.End)).
		Msg("the position of a group is outside the log: it continues elsewhere")
	c.s.metrics.reset()
	t.next = to
	if t.records == 0 {
		t.base, t.reset = to, true
	}
}

// takeAll takes records of chunks as long as they fit. It tells whether all of them did.
func (c *collector) takeAll(cl *claim, chunks []data.Chunk, t *taken) bool {
	for i := range chunks {
		records, err := c.work.decoder.Decode(chunks[i].Bytes)
		h := chunks[i].Header
		if err != nil { // its checksum holds, so it was stored like this
			c.noteDamage(cl, []data.OffsetRange{{From: max(t.next, h.BaseOffset), To: h.Next()}})
			t.next = h.Next()
			continue
		}
		skip := 0
		for skip < len(records) && records[skip].Offset < t.next {
			skip++
		}
		records = records[skip:]
		n, cost := c.fitting(records)
		if n > 0 {
			before := c.body.mark()
			n = c.body.append(&run{topic: &cl.topic, partition: cl.partition, version: h.Version, records: records[:n]})
			if c.body.mark() != before {
				t.records += n
			}
			t.bytes += cost
			c.bytes -= cost
			c.records -= n
		}
		if n > 0 {
			t.version = h.Version
			t.next = records[n-1].Offset + 1
		}
		if n < len(records) {
			c.full = true
			return false
		}
		t.next = max(t.next, h.Next())
	}
	c.full = c.full || c.records <= 0 || c.bytes <= 0
	return true
}

// fitting is how many of records go into the answer, and their bytes. A chunk is cut where the records asked for are
// reached. It is cut for its bytes only where nothing else is in the answer; otherwise it waits whole for the next poll.
func (c *collector) fitting(records []recordbatch.Record) (n, cost int) {
	first := len(c.answer.deliveries) == 0 && c.body.empty()
	for n < len(records) && n < c.records {
		b := c.body.cost(&records[n])
		if cost+b > c.bytes && (n > 0 || !first) {
			if first || c.merge {
				return n, cost
			}
			return 0, 0
		}
		cost += b
		n++
	}
	return n, cost
}

// note makes what was read a delivery, if the claim still holds. Otherwise it is taken out of the body.
func (c *collector) note(cl *claim, t *taken, highWatermark topology.Offset) {
	g := c.ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	sub, cur := cl.sub, cl.cursor
	c.s.reassign(sub)
	if c.ses.gone || sub.feed != cl.feed || sub.cursors[cl.partition] != cur || cur.turn != cl.turn || sub.owners.of(cl.partition) != c.ses.member.id {
		c.handBack(cl, t)
		return
	}
	if t.next != highWatermark || t.failed {
		cl.feed.set(cl.partition)
	}
	if t.next == cl.from {
		return
	}
	d := delivery{
		sub: sub, partition: cl.partition, start: cl.topic.PartitionToken(cl.partition), cursor: cur, turn: cl.turn,
		to: t.next, version: t.version,
	}
	if t.reset {
		// Nothing can be read at the position it had, and a log that lost its tail grows past that position again:
		// so the new one holds at once, also where it lies before the old one.
		cur.next = t.base
		c.s.commitTo(c.ses, &d, t.base, byReset)
	}
	if t.records == 0 {
		// Nothing to deliver on the way, so there is nothing to wait for either.
		cur.next = t.next
		c.s.commitTo(c.ses, &d, t.next, bySkip)
		if t.next != highWatermark && !t.failed {
			c.ses.signal() // a poll that waits goes on behind what it skipped
		}
		return
	}
	sub.moveTo(cl.partition, cur, t.next)
	c.answer.deliveries = append(c.answer.deliveries, d)
	c.s.metrics.delivered(t.records, t.bytes)
	c.ses.place = cl.after
}

// handBack takes what was read under a claim that does not hold any more out of the body. The claim has hidden from the
// others that there are records, so whoever owns the partition now looks again. The caller holds group.mu.
func (c *collector) handBack(cl *claim, t *taken) {
	c.body.cut(t.size)
	cl.feed.set(cl.partition)
	cl.sub.wakeOwner(cl.partition, c.ses)
}

// end makes what was gathered the open answer of the session.
func (c *collector) end(ctx context.Context) (*answer, outcome, error) {
	g := c.ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	a := c.answer
	c.ses.open = a
	switch {
	case c.ses.gone:
		c.ses.giveBack()
		c.ses.wakeSiblings()
		return nil, nothingNew, errNotRegistered
	case c.ses.polls != c.number:
		c.ses.giveBack()
		c.ses.wakeSiblings()
		return nil, superseded, nil
	case ctx.Err() != nil:
		c.ses.giveBack()
		c.ses.wakeSiblings()
		return nil, nothingNew, ctx.Err()
	case len(a.deliveries) > 0:
		return a, gotRecords, nil
	}
	c.ses.open = nil
	switch {
	case c.failed != nil:
		return nil, nothingNew, c.failed
	case c.notLed != nil:
		return nil, notLeading, nil
	case !c.owns:
		return nil, noPartitions, nil
	}
	return nil, nothingNew, nil
}

func (c *collector) noteDamage(cl *claim, ranges []data.OffsetRange) {
	for _, r := range ranges {
		c.damaged = append(c.damaged, damage{topic: cl.topic.Name, partition: cl.partition, OffsetRange: r})
		c.s.logDamage(c.ses.group.name, cl.topic.Name, cl.partition, r)
	}
}
