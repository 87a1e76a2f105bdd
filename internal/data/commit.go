package data

import (
	"errors"
	"fmt"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// Append is one chunk of a round. Commit sets Base, the offset that its first record has got, and Err.
type Append struct {
	Log      topology.LogID
	Version  topology.Version // generation that appends; never below that of what the log holds
	Batch    []byte           // one whole, sealed batch; Commit writes offset and version into it
	Internal bool             // positions and topics: may use the room that produce must leave (docs/design.md, section 5)

	Base topology.Offset
	Err  error
}

// part is the share of one log in a round.
type part struct {
	l       *log
	seg     *segment
	handle  *handle // acquired
	isNew   bool    // seg is not part of the log yet
	flushed bool    // seg is durable with these chunks
	pos     int64   // where the chunks go in seg
	size    int64
	next    topology.Offset // behind the last chunk
	appends []*Append
	heads   []recordbatch.Header
	bufs    [][]byte
	err     error
}

var errClosed = errors.New("the store is closed")

// Commit appends the chunks of a round, each log's in the order given, and returns when they are durable by the flush
// policy. The high watermarks have moved then. Err of each is nil or wraps
//
//   - topology.ErrDiskFull: not written, there is no room (P5);
//   - topology.ErrUnavailable: not written, the log or the store cannot be written to now and is being repaired;
//   - topology.ErrUnknownTopic: not written, the topic was dropped;
//   - topology.ErrOutcomeUnknown: a write or flush failed midway. The chunk is not served in this run; whether a later
//     one finds it is open.
//   - recordbatch.ErrCorrupt: not written, Batch is no batch.
//
// Chunks of one log stand or fall together. Commit does not keep round or the batches.
func (s *Store) Commit(round []*Append) {
	if len(round) == 0 {
		return
	}
	began := time.Now()
	s.commitMu.Lock()
	if err := s.ready(round); err != nil {
		s.commitMu.Unlock()
		for _, a := range round {
			a.Err = err
		}
		return
	}
	s.gather(round)
	s.admit()
	for i := range s.parts {
		if p := &s.parts[i]; p.err == nil {
			p.err = s.prepare(p)
		}
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.err == nil {
			p.err = s.write(p)
		}
	}
	if s.cfg.Flush == FlushAlways {
		s.seal()
	}
	for i := range s.parts {
		if p := &s.parts[i]; p.err == nil {
			s.publish(p)
		}
	}
	s.finish()
	s.commitMu.Unlock()
	s.metrics.commits.Observe(time.Since(began).Seconds())
	s.announce(round)
}

// ready refuses a round while the store cannot write, and makes sure that the journal takes it. The caller holds
// commitMu, which is given up while a checkpoint makes room.
func (s *Store) ready(round []*Append) error {
	var need int64 = recordHeaderSize
	for _, a := range round {
		need += int64(len(a.Batch)) + entrySize
	}
	for {
		switch {
		case s.closed:
			return fmt.Errorf("%w: %w", topology.ErrUnavailable, errClosed)
		case s.broken != nil:
			return fmt.Errorf("%w: the commit journal has failed: %w", topology.ErrUnavailable, s.broken)
		case s.rebooted:
			if err := s.forgetReboot(); err != nil {
				return fmt.Errorf("%w: %w", topology.ErrUnavailable, err)
			}
		}
		if s.cfg.Flush != FlushAlways {
			return nil
		}
		n := need // chunks of one log share an entry, so the record may be a little smaller
		if n > s.journal.maxRecord() {
			n = recordHeaderSize + int64(len(round))*entrySize // only places go into the journal
		}
		if n > s.journal.smallest()-journalFileStart {
			return fmt.Errorf("%w: a round of %d chunks does not fit into the commit journal", topology.ErrUnavailable, len(round))
		}
		active := s.journal.active
		if s.journal.room(n) {
			if s.journal.active != active {
				nudge(s.kick)
			}
			return nil
		}
		s.metrics.journalWaits.Inc()
		s.commitMu.Unlock()
		err := s.checkpoint(false)
		s.commitMu.Lock()
		if err != nil && s.broken == nil && !s.journal.room(n) {
			return fmt.Errorf("%w: the commit journal is full and cannot be checkpointed: %w", topology.ErrUnavailable, err)
		}
	}
}

// gather sorts the chunks by log into parts.
func (s *Store) gather(round []*Append) {
	s.parts = s.parts[:0]
	for _, a := range round {
		a.Base, a.Err = 0, nil
		h, err := recordbatch.Check(a.Batch)
		if err == nil && h.Size() != len(a.Batch) {
			err = fmt.Errorf("%w: %d bytes given, the header says %d", recordbatch.ErrCorrupt, len(a.Batch), h.Size())
		}
		if err != nil {
			a.Err = fmt.Errorf("append to %s: %w", a.Log, err)
			continue
		}
		l := s.logFor(a.Log)
		if l == nil || l.gone {
			a.Err = fmt.Errorf("append to %s: %w", a.Log, topology.ErrUnknownTopic)
			continue
		}
		if l.slot == 0 {
			s.addPart(l)
		}
		p := &s.parts[l.slot-1]
		p.appends = append(p.appends, a)
		p.heads = append(p.heads, h)
		p.size += int64(len(a.Batch))
	}
}

// addPart begins the part of a log, reusing what an earlier round left.
func (s *Store) addPart(l *log) {
	if n := len(s.parts); n < cap(s.parts) {
		s.parts = s.parts[:n+1]
		p := &s.parts[n]
		*p = part{appends: p.appends[:0], heads: p.heads[:0], bufs: p.bufs[:0]}
	} else {
		s.parts = append(s.parts, part{})
	}
	s.parts[len(s.parts)-1].l = l
	l.slot = len(s.parts)
}

// admit refuses what there is no room for (P5): produce below the reserve, anything when not even the reserve helps.
func (s *Store) admit() {
	var produce, internal int64
	for i := range s.parts {
		if p := &s.parts[i]; p.internal() {
			internal += p.size
		} else {
			produce += p.size
		}
	}
	var noProduce, noInternal error
	if produce > 0 {
		noProduce = s.room.admit(produce + internal)
	}
	if internal > 0 {
		noInternal = s.room.Ensure(internal)
	}
	for i := range s.parts {
		p := &s.parts[i]
		if err := noProduce; p.internal() {
			p.err = noInternal
		} else {
			p.err = err
		}
	}
}

// internal says whether all chunks of a part may use the reserve.
func (p *part) internal() bool {
	for _, a := range p.appends {
		if !a.Internal {
			return false
		}
	}
	return true
}

// seal writes the round to the journal and flushes it.
func (s *Store) seal() {
	var total int64 = recordHeaderSize
	for i := range s.parts {
		if p := &s.parts[i]; p.err == nil {
			total += p.size + entrySize
		}
	}
	if total == recordHeaderSize {
		return
	}
	kind := byte(kindChunks)
	if total > s.journal.left() { // ready has found the round, with an entry for each chunk, too large for one record
		kind = kindExtents
		for i := range s.parts {
			if p := &s.parts[i]; p.err == nil {
				p.err = s.flushPart(p)
			}
		}
	}
	j := s.journal
	j.begin()
	for i := range s.parts {
		p := &s.parts[i]
		if p.err != nil {
			continue
		}
		j.meta = appendJournalEntry(j.meta, journalEntry{
			log: p.l.id, segment: p.seg.base, pos: p.pos, first: p.appends[0].Base, next: p.next, version: p.appends[0].Version, size: int32(p.size),
		})
		if kind == kindChunks {
			for _, a := range p.appends {
				j.bufs = append(j.bufs, a.Batch)
			}
		}
	}
	if len(j.meta) == recordHeaderSize {
		return
	}
	if err := j.commit(kind); err != nil {
		s.breakDown(err)
	}
}

// flushPart makes the chunks of a part durable in their segment. A failure leaves the log to be repaired; the chunks do
// not count, as no journal record names them.
func (s *Store) flushPart(p *part) error {
	err := p.handle.Sync()
	if err == nil && p.seg.fresh {
		err = s.syncDirs(p.l)
	}
	if err != nil {
		s.metrics.failures.Inc()
		s.fail(p.l, err)
		return notWritten(p.l, err)
	}
	p.flushed = true
	return nil
}

// breakDown ends the round whose journal record failed: its outcome is unknown, and the store takes no more until Repair
// has cut the round off and made the journal anew.
func (s *Store) breakDown(err error) {
	s.metrics.failures.Inc()
	s.logger.Error().Err(err).Msg("commit journal failed: appends are refused until the store has checked itself")
	s.broken = err
	for i := range s.parts {
		p := &s.parts[i]
		if p.err == nil {
			s.fail(p.l, err)
			p.err = fmt.Errorf("append to %s: %w: %w", p.l.id, topology.ErrOutcomeUnknown, err)
		}
	}
	nudge(s.mend)
}

// markDirty puts a log on the list of the next checkpoint.
func (s *Store) markDirty(l *log) {
	if !l.dirty {
		l.dirty = true
		s.dirty = append(s.dirty, l)
	}
}

// finish hands the outcome of each part to its chunks and lets go of what the round held.
func (s *Store) finish() {
	for i := range s.parts {
		p := &s.parts[i]
		p.l.slot = 0
		if p.handle != nil {
			s.files.release(p.handle)
			p.handle = nil
		}
		if p.isNew && p.err != nil {
			// A file may be left behind. The next append makes it anew, so that it never lies between good segments.
			s.files.drop(p.seg)
			p.l.roll = true
		}
		for _, a := range p.appends {
			if a.Err = p.err; a.Err != nil {
				a.Base = 0
			}
		}
		clear(p.appends)
		clear(p.bufs)
		if p.err == nil {
			s.metrics.records.Add(float64(p.next - p.heads[0].BaseOffset))
			s.metrics.bytes.Add(float64(p.size))
		}
	}
}

// announce tells the listeners. Chunks of one log may be announced in several steps, each with the end so far.
func (s *Store) announce(round []*Append) {
	for i, a := range round {
		if a.Err != nil || i+1 < len(round) && round[i+1].Log == a.Log && round[i+1].Err == nil {
			continue
		}
		if h, err := recordbatch.ParseHeader(a.Batch); err == nil {
			s.advanced(a.Log, h.Next())
		}
	}
}
