package producing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// round is what is written at once: the chunks of all logs that have records. It fills, is cut, sealed, committed and
// done. The counters and lists change under the lock of the Coalescer while it fills.
type round struct {
	id       uint64 // grows by one
	logs     map[topology.LogID]*logBatch
	order    []*logBatch // the same, in order of arrival
	requests int
	bytes    int64 // of records
	held     int64 // of the memory budget
	acks     []*ackList
	hooks    []roundHook
	sticky   []*topicState // topics whose records without a key go to this round

	writers sync.WaitGroup // requests that are copying their records in
	sealing sync.WaitGroup // closed chunks that are not sealed
	done    chan struct{}  // closed once the results of all chunks are set
}

func newRound(id uint64) *round {
	return &round{id: id, logs: make(map[topology.LogID]*logBatch, 4), done: make(chan struct{})}
}

// Run writes rounds until ctx ends. Then it refuses further requests, writes what it has taken, and returns nil.
func (c *Coalescer) Run(ctx context.Context) error {
	var sealers sync.WaitGroup
	stop := make(chan struct{})
	for range c.cfg.SealerThreads {
		sealers.Go(func() { c.sealUntil(stop) })
	}
	defer sealers.Wait()
	defer close(stop)
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		r := c.next(ctx, timer)
		if r == nil {
			return nil
		}
		r.writers.Wait()
		c.write(r)
	}
}

// next waits for a round with something in it and takes it; nil when ctx has ended and all is written.
func (c *Coalescer) next(ctx context.Context, timer *time.Timer) *round {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		c.stopped = true
	}
	for len(c.full) == 0 && len(c.filling.order) == 0 {
		if c.stopped {
			return nil
		}
		c.await(ctx, waitRequest, nil)
	}
	if c.linger(timer) {
		c.await(ctx, waitLinger, timer)
		timer.Stop()
	}
	if len(c.full) > 0 {
		r := c.full[0]
		c.full = append(c.full[:0], c.full[1:]...)
		return r
	}
	r := c.filling
	c.filling = newRound(r.id + 1)
	return r
}

// await gives up c.mu while it waits for a signal, the timer (unless nil) or the end of ctx.
func (c *Coalescer) await(ctx context.Context, what wait, timer *time.Timer) {
	select {
	case <-c.wake: // of an earlier wait
	default:
	}
	c.waits = what
	c.mu.Unlock()
	var expired <-chan time.Time
	if timer != nil {
		expired = timer.C
	}
	ended := false
	select {
	case <-c.wake:
	case <-expired:
	case <-ctx.Done():
		ended = true
	}
	c.mu.Lock()
	c.waits = waitNothing
	if ended {
		c.stopped = true
	}
}

// linger decides whether to wait for further requests, and sets the timer and the target if so. While several requests
// are in flight, those that the last round answered come back at once: waiting a little for them makes fewer and larger
// chunks. One request at a time, or the first after a pause, does not wait. c.mu is held.
func (c *Coalescer) linger(timer *time.Timer) bool {
	if c.stopped || c.cfg.Linger <= 0 || len(c.full) > 0 {
		return false
	}
	if time.Since(c.lastDone) > 2*c.cfg.Linger {
		return false
	}
	r := c.filling
	if c.level <= 1 || r.requests >= c.level || r.bytes >= c.enough(r) {
		return false
	}
	c.target = c.level
	timer.Reset(c.cfg.Linger)
	return true
}

// write seals what is open, commits the round and gives the results to those who wait.
func (c *Coalescer) write(r *round) {
	began := time.Now()
	c.sealRest(r)
	r.sealing.Wait()
	sealed := time.Now()
	c.metrics.observe(r, c.commit(r), began, sealed)

	c.mu.Lock()
	c.level = r.requests + c.filling.requests // before any of them can come back
	r.unstick()
	c.mu.Unlock()
	c.lastDone = time.Now()

	c.budget.release(r.held)
	for _, h := range r.hooks {
		h.roundDone()
	}
	close(r.done)
	for _, a := range r.acks {
		a.conn.answer(a)
	}
}

// commit writes the chunks of the logs that this broker leads and sets the results of all.
func (c *Coalescer) commit(r *round) tally {
	appends, pointers := c.scratch(r)
	n := 0
	for _, b := range r.order {
		version, err := c.permit(b)
		for ch := b.first; ch != nil; ch = ch.next {
			ch.version, ch.err = version, err
			if err != nil {
				continue
			}
			appends[n] = data.Append{Log: b.log, Version: version, Batch: ch.sealed.b, Internal: b.internal}
			pointers = append(pointers, &appends[n])
			n++
		}
	}
	if n > 0 {
		c.cfg.Committer.Commit(pointers)
	}
	t := c.settle(r, appends)
	clear(appends)
	clear(pointers)
	c.report(r)
	return t
}

// settle gives each chunk its result, in the order of appends, and lets the buffers go.
func (c *Coalescer) settle(r *round, appends []data.Append) tally {
	var t tally
	n := 0
	for _, b := range r.order {
		for ch := b.first; ch != nil; ch = ch.next {
			size := int64(len(ch.sealed.b))
			c.metrics.chunkBytes.Observe(float64(size))
			if ch.err == nil {
				ch.base, ch.err = appends[n].Base, appends[n].Err
				n++
			}
			if ch.err != nil {
				t.failed++
			} else {
				t.chunks++
				t.stored += size
				if !b.internal {
					t.records += int64(ch.records)
					t.bytes += ch.bytes
				}
			}
			freeBuffer(ch.sealed)
			ch.sealed = nil
		}
	}
	return t
}

// scratch lends an append for each chunk of r, and room for as many pointers.
func (c *Coalescer) scratch(r *round) ([]data.Append, []*data.Append) {
	chunks := 0
	for _, b := range r.order {
		for ch := b.first; ch != nil; ch = ch.next {
			chunks++
		}
	}
	if cap(c.appends) < chunks {
		c.appends, c.pointers = make([]data.Append, 2*chunks), make([]*data.Append, 2*chunks)
	}
	return c.appends[:chunks], c.pointers[:0]
}

// permit tells under which version the chunks of b may be written now.
func (c *Coalescer) permit(b *logBatch) (topology.Version, error) {
	if c.cfg.Known != nil && !b.internal && !c.cfg.Known(b.log.Topic) {
		return 0, fmt.Errorf("%w: it was deleted meanwhile", topology.ErrUnknownTopic)
	}
	return c.cfg.Leadership.Lead(b.start)
}

// report logs that records of r were not written where the operator should know, at most once a second. The doors
// answer each failure to the client.
func (c *Coalescer) report(r *round) {
	var failed *logBatch
	logs := 0
	for _, b := range r.order {
		if err := b.first.err; err != nil && !errors.Is(err, topology.ErrNotLeader) && !errors.Is(err, topology.ErrUnknownTopic) {
			failed = b
			logs++
		}
	}
	if failed == nil || time.Since(c.lastReport) < time.Second {
		return
	}
	c.lastReport = time.Now()
	c.log.Warn().Err(failed.first.err).Stringer("topic", failed.log.Topic).Int32("partition", int32(failed.log.Partition)).
		Int("logs", logs).Msg("records of a round were not written")
}

// sealing is a round whose last chunks are being sealed by several goroutines.
type sealing struct {
	round  *round
	chunks []*chunk
	taken  atomic.Int32
}

// sealSome seals chunks until none is left to take.
func (s *sealing) sealSome() {
	for {
		i := int(s.taken.Add(1)) - 1
		if i >= len(s.chunks) {
			return
		}
		s.chunks[i].seal()
		s.round.sealing.Done()
	}
}

// worthHelp is how many bytes are worth waking another goroutine for: it costs as much as compressing these.
const worthHelp = 16 << 10

// sealRest seals the chunks that are open when the round is cut, with help where there is enough to do.
func (c *Coalescer) sealRest(r *round) {
	var few [16]*chunk
	open, size := few[:0], 0
	for _, b := range r.order {
		b.mu.Lock()
		if b.open != nil {
			size += b.open.builder.Size()
			open = append(open, b.close())
		}
		b.mu.Unlock()
	}
	if len(open) < 2 || size < worthHelp {
		for _, ch := range open {
			ch.seal()
		}
		return
	}
	s := &sealing{round: r, chunks: append([]*chunk(nil), open...)}
	r.sealing.Add(len(open))
	for range min(len(open)-1, cap(c.helps)) {
		select {
		case c.helps <- s:
		default:
		}
	}
	s.sealSome()
}

// sealUntil seals chunks as they close, until stop closes.
func (c *Coalescer) sealUntil(stop <-chan struct{}) {
	for {
		select {
		case ch := <-c.seals:
			r := ch.round
			ch.seal()
			r.sealing.Done()
		case s := <-c.helps:
			s.sealSome()
		case <-stop:
			return
		}
	}
}

// Append stores records in an internal log, in order, and returns the offset of the first once they are committed. The
// log is led by whoever leads the range of start. Internal logs are exempt from the memory budget, and may use the
// reserve of the disk. Records with timestamp 0 get the append time.
//
// Errors: as those of Committer and Leadership, topology.ErrShuttingDown (not written), and topology.ErrOutcomeUnknown
// when ctx ends before the outcome is known.
func (c *Coalescer) Append(ctx context.Context, log topology.LogID, start token.Token, records []recordbatch.Record) (topology.Offset, error) {
	if len(records) == 0 {
		return 0, fmt.Errorf("%w append to internal log %s/%d: no records", topology.ErrInvalid, log.Topic, log.Partition)
	}
	w := &write{log: log, start: start, records: slices.Clone(records), requests: 1, internal: true, now: c.now()}
	for i := range w.records {
		r := &w.records[i]
		w.bytes += int64(encodedBound(r))
		if r.Timestamp == 0 {
			r.Timestamp = w.now
		}
	}
	if err := c.put(w); err != nil {
		return 0, err
	}
	select {
	case <-w.span.done():
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: append to internal log %s/%d: %w", topology.ErrOutcomeUnknown, log.Topic, log.Partition, ctx.Err())
	}
	if err := w.span.err(); err != nil {
		return 0, err
	}
	return w.span.offset(), nil
}
