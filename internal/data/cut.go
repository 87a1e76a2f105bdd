package data

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// compareLogs orders logs by topic and partition.
func compareLogs(a, b topology.LogID) int {
	return cmp.Or(bytes.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Partition, b.Partition))
}

// SetStart moves the start of a log up (P9): reads below it are out of range, and segments that lie wholly below it are
// removed. A start that is not above the present one changes nothing. Durable on return. Errors: start is beyond the end
// (*OutOfRange); topology.ErrUnavailable while a Truncate that failed is being finished; or the database cannot be written.
func (s *Store) SetStart(id topology.LogID, start topology.Offset) error {
	l := s.lookup(id)
	if l == nil {
		if start <= 0 {
			return nil
		}
		return fmt.Errorf("set the start of %s to %d: %w", id, start, &OutOfRange{})
	}
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.setStarts([]*log{l}, []topology.Offset{start})
}

// setStarts moves the starts of some logs, with one write to the database. The caller holds flushMu.
//
// The new start is durable before a file goes: a file that a crash brings back lies below the start and is removed again.
func (s *Store) setStarts(logs []*log, starts []topology.Offset) error {
	for i, l := range logs {
		l.mu.Lock()
		end := l.end
		first := l.start
		l.mu.Unlock()
		if l.cutting {
			return fmt.Errorf("set the start of %s to %d: %w: a cut is not finished", l.id, starts[i], topology.ErrUnavailable)
		}
		if starts[i] > end {
			return fmt.Errorf("set the start of %s to %d: %w", l.id, starts[i], &OutOfRange{Start: first, End: end})
		}
	}
	for from := 0; from < len(logs); from += notesPerUpdate {
		to := min(from+notesPerUpdate, len(logs))
		err := s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) {
			for i := from; i < to; i++ {
				if l := logs[i]; starts[i] > l.start && !l.gone {
					put(logKey(keyStart, l.id), binary.BigEndian.AppendUint64(nil, uint64(starts[i])))
				}
			}
		})
		if err != nil {
			return fmt.Errorf("set the start of %d logs: %w", len(logs), err)
		}
	}
	var errs []error
	for i, l := range logs {
		errs = append(errs, s.applyStart(l, starts[i]))
	}
	return errors.Join(errs...)
}

// applyStart moves the start of a log in memory and removes the segments below. The caller holds flushMu.
func (s *Store) applyStart(l *log, start topology.Offset) error {
	below, err := s.moveStart(l, start)
	errs := []error{err}
	for _, seg := range below {
		s.files.drop(seg)
		errs = append(errs, s.removeFiles(l.id, seg.base))
	}
	return errors.Join(errs...)
}

// moveStart does what must be done between two rounds, and returns the segments that go.
func (s *Store) moveStart(l *log, start topology.Offset) ([]*segment, error) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if start <= l.start || l.gone {
		return nil, nil
	}
	if err := s.load(l); err != nil {
		l.setStart(start) // it is durable; the load that succeeds removes what lies below
		return nil, err
	}
	l.setStart(start)
	n := 0
	for n < len(l.segs) && l.untilOf(n) <= start {
		n++
	}
	below := l.segs[:n]
	l.segs = l.segs[n:len(l.segs):len(l.segs)]
	l.segCount = int32(len(l.segs))
	for _, seg := range below {
		l.grow(-seg.size)
		s.metrics.retired.Add(float64(seg.size))
	}
	if len(l.segs) > 0 {
		l.stretches.trim(l.segs[0].base)
	} else {
		l.stretches.trim(l.end)
	}
	l.noteLast()
	l.forget()
	l.dropDamage(start)
	s.markDirty(l)
	return below, nil
}

// dropDamage forgets damage that lies below start. The caller holds mu.
func (l *log) dropDamage(start topology.Offset) {
	n := 0
	for n < len(l.damaged) && l.damaged[n].to <= start {
		n++
	}
	l.damaged = l.damaged[n:]
}

// Truncate cuts a log so that it ends at end (P4), which must be where a chunk begins, or in a range that is damaged.
// Durable on return: no crash brings back what was cut. An end that is not below the present one changes nothing. Errors:
// end is below the start (*OutOfRange) or within a chunk, or the disk or the database failed; then the log takes no
// appends until it is repaired, and the call must be repeated.
func (s *Store) Truncate(id topology.LogID, end topology.Offset) error {
	l := s.lookup(id)
	if l == nil {
		return nil
	}
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	l.mu.Lock()
	first, was := l.start, l.end
	l.mu.Unlock()
	switch {
	case l.gone || end >= was:
		return nil
	case end < first:
		return fmt.Errorf("cut %s at %d: %w", id, end, &OutOfRange{Start: first, End: was})
	}
	if err := s.truncate(l, end); err != nil {
		return fmt.Errorf("cut %s at %d: %w", id, end, err)
	}
	return nil
}

// truncate flushes what stays and cuts the log in memory, then for good. From here on the log is short: where the rest
// fails it takes no appends until Repair has finished the cut.
func (s *Store) truncate(l *log, end topology.Offset) error {
	if l.failed != nil {
		return fmt.Errorf("%w: being repaired: %w", topology.ErrUnavailable, l.failed)
	}
	pos, ragged, err := s.boundary(l, end)
	if err != nil {
		return err
	}
	newest := l.newest
	if t, err := s.appendTime(l, end-1); err == nil {
		newest = t
	}
	flush := l.capture()
	s.flushAll([]*flushing{flush})
	if flush.err != nil {
		s.fail(l, flush.err)
		return flush.err
	}
	l.newDir = false
	l.mu.Lock()
	for _, seg := range l.cutAt(end, pos, ragged) {
		s.files.drop(seg)
	}
	l.newest = newest
	l.mu.Unlock()
	l.cutting = true
	if err := s.finishCut(l); err != nil {
		s.fail(l, err)
		return err
	}
	return nil
}

// finishCut makes the files of a log as short as the log is, in three steps: the note of the shorter log, marked as being
// cut, becomes durable, so that recovery replays nothing from before the cut and goes on with it; the files are cut; the
// mark is taken off.
func (s *Store) finishCut(l *log) error {
	l.mu.Lock()
	n := l.note()
	segs := l.segs
	l.mu.Unlock()
	n.lsn = s.journal.lsn
	l.lsn = n.lsn
	n.cutting = true
	delete(s.unnoted, l.id)
	if err := s.putNote(n, l.id); err != nil {
		return err
	}
	if err := s.cutFiles(l, segs); err != nil {
		return err
	}
	n.cutting = false
	if err := s.putNote(n, l.id); err != nil {
		return err
	}
	l.cutting = false
	return nil
}

func (s *Store) putNote(n note, id topology.LogID) error {
	return s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) {
		put(logKey(keyLog, id), n.encode())
	})
}

// boundary is where a log is cut to end at end: the position, within the segment that end falls into, of the chunk that
// begins there. Where end lies in a range that is lost there is no such chunk: what comes before the damage stays, the offsets
// from there to end stay lost, and ragged says so.
func (s *Store) boundary(l *log, end topology.Offset) (pos int64, ragged bool, err error) {
	v, err := s.view(l, end)
	if err != nil {
		return 0, false, err
	}
	if v.handle == nil {
		return 0, true, nil // it lies before the first segment
	}
	defer s.files.release(v.handle)
	place, err := s.place(l, v, end)
	if err != nil {
		return 0, false, err
	}
	w := v.walk(place, nil, s.cfg.IndexInterval)
	for w.next < end {
		h, _, err := w.peek(true)
		switch {
		case err == nil:
			w.skip(h)
		case errors.Is(err, errDamaged) || errors.Is(err, io.EOF):
			d, err := s.pass(l, v, &w, err)
			if err != nil {
				return 0, false, err
			}
			if d.to > end {
				return d.pos, true, nil
			}
		default:
			return 0, false, err
		}
	}
	if w.next != end {
		return 0, false, fmt.Errorf("%w: no chunk begins there", topology.ErrInvalid)
	}
	return w.pos, false, nil
}

// cutAt cuts the log in memory and returns the segments that go. The caller holds mu.
func (l *log) cutAt(end topology.Offset, pos int64, ragged bool) []*segment {
	i := l.segmentFor(end)
	keep := max(i, 0)
	if pos > 0 {
		keep = i + 1
		seg := l.segs[i]
		l.grow(pos - seg.size)
		seg.size, seg.synced = pos, min(seg.synced, pos)
	}
	beyond := l.segs[keep:]
	for _, seg := range beyond {
		l.grow(-seg.size)
	}
	l.segs = l.segs[:keep:keep]
	l.segCount = int32(keep)
	l.end = end
	l.cuts++
	l.stretches.cut(end)
	l.noteLast()
	l.forget()
	for n := len(l.damaged); n > 0 && l.damaged[n-1].to > end; n-- {
		if d := &l.damaged[n-1]; d.from < end {
			d.to = end
			continue
		}
		l.damaged = l.damaged[:n-1]
	}
	l.roll = keep > 0 && (ragged || pos == 0) // the segment before may be shorter than it should be
	return beyond
}

// cutFiles removes the segments that are not among segs and cuts the last one to its size.
func (s *Store) cutFiles(l *log, segs []*segment) error {
	if err := s.sweep(l, segs); err != nil {
		return err
	}
	if n := len(segs); n > 0 {
		return s.cutFile(l, segs[n-1], segs[n-1].size)
	}
	return nil
}

// sweep removes the segments of a log that are not among segs, the last first. Durable on return.
func (s *Store) sweep(l *log, segs []*segment) error {
	bases, err := s.listSegments(l.id)
	if err != nil {
		return err
	}
	for _, base := range slices.Backward(bases) {
		if !slices.ContainsFunc(segs, func(seg *segment) bool { return seg.base == base }) {
			if err := s.removeFiles(l.id, base); err != nil {
				return err
			}
		}
	}
	return s.fs.SyncDir(s.paths.log(l.id))
}

// DropTopic removes all logs of a topic and frees their space. No append to it is taken in this run any more, and no
// crash brings it back. Dropping a topic that has no logs is fine.
func (s *Store) DropTopic(topic uuid.UUID) error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if err := s.dropTopic(topic); err != nil {
		return fmt.Errorf("drop topic %s: %w", topic, err)
	}
	return nil
}

// dropTopic first makes durable that the topic is dropped: from then on recovery removes it and replays nothing into it.
// The mark is taken off by the checkpoint that lets go of the journal records which name it.
func (s *Store) dropTopic(topic uuid.UUID) error {
	if len(s.logsOf(topic)) == 0 {
		if _, err := s.fs.ReadDir(s.paths.topic(topic)); errors.Is(err, fs.ErrNotExist) && s.shutOut(topic) {
			return nil
		}
	}
	logs := s.logsOf(topic)
	err := s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) { put(dropKey(topic), nil) })
	if err != nil {
		return err
	}
	s.forgetTopic(topic)
	ids := make([]topology.LogID, len(logs))
	for i, l := range logs {
		ids[i] = l.id
	}
	if err := s.forgetNotes(ids); err != nil {
		return err
	}
	if err := s.fs.RemoveAll(s.paths.topic(topic)); err != nil {
		return err
	}
	if err := s.fs.SyncDir(s.paths.logs()); err != nil {
		return err
	}
	s.buried = append(s.buried, topic)
	s.room.watch()
	return nil
}

// shutOut refuses appends to a topic from now on, if it has no log. A round that is under way ends first.
func (s *Store) shutOut(topic uuid.UUID) bool {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if len(s.logsOf(topic)) > 0 {
		return false
	}
	s.logsMu.Lock()
	defer s.logsMu.Unlock()
	s.dropped[topic] = struct{}{}
	return true
}

// forgetNotes deletes the notes of logs of a dropped topic. The mark of the drop goes later, so this need not be durable.
func (s *Store) forgetNotes(ids []topology.LogID) error {
	for batch := range slices.Chunk(ids, notesPerUpdate) {
		err := s.kv.Update(false, func(_ func(key, value []byte), del func(key []byte)) {
			for _, id := range batch {
				del(logKey(keyLog, id))
				del(logKey(keyStart, id))
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// forgetTopic takes the logs of a topic out of the store. A round that is under way ends first.
func (s *Store) forgetTopic(topic uuid.UUID) {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	for _, l := range s.removeTopic(topic) {
		l.gone = true
		delete(s.unnoted, l.id)
		l.mu.Lock()
		segs := l.segs
		s.metrics.retired.Add(float64(l.bytes))
		l.grow(-l.bytes)
		l.start, l.segs, l.loaded, l.last = l.end, nil, true, tail{}
		l.mu.Unlock()
		for _, seg := range segs {
			s.files.drop(seg)
		}
	}
}
