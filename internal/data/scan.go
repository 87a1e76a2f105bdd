package data

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// scan reads the headers of the good chunks of a segment from place c on, until fn answers false. Damage is passed over
// and reported.
func (s *Store) scan(l *log, v view, c cursor, fn func(h recordbatch.Header, pos int64) bool) error {
	w := v.walk(c, nil, s.cfg.IndexInterval)
	for {
		h, _, err := w.peek(true)
		switch {
		case err == nil:
			if !fn(h, w.pos) {
				return nil
			}
			w.skip(h)
		case errors.Is(err, errDamaged) || errors.Is(err, io.EOF) && w.next < w.until:
			if _, err := s.pass(l, v, &w, err); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

// entries is the index of a segment. It is read at the first use, and made again from the segment as far as the file
// falls short.
func (s *Store) entries(l *log, v view) ([]indexEntry, error) {
	x := &v.handle.idx
	if entries, loaded := x.get(); loaded {
		return entries, nil
	}
	x.build.Lock()
	defer x.build.Unlock()
	if entries, loaded := x.get(); loaded {
		return entries, nil
	}
	name := s.paths.file(l.id, v.base, indexExt)
	entries, err := readIndex(s.fs, name, v.base, v.size, v.until)
	if err != nil {
		s.logger.Warn().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(v.base)).
			Msg("index cannot be read and is made again")
	}
	x.saved = len(entries)
	if entries, err = s.extend(v, entries); err != nil {
		return nil, fmt.Errorf("index segment %d of %s: %w", v.base, l.id, err)
	}
	worth := len(entries)-x.saved > 8 // keeping, should the file be closed soon
	entries = x.set(entries, v.size)
	if worth {
		l.mu.Lock()
		flushed := min(v.seg.synced, v.size)
		if l.cuts != v.cuts {
			flushed = 0
		}
		l.mu.Unlock()
		_ = x.save(s.fs, name, v.base, flushed)
	}
	return entries, nil
}

// extend adds the entries that are missing at the end. It stops at damage: what lies behind is found by walking on from
// the last entry.
func (s *Store) extend(v view, entries []indexEntry) ([]indexEntry, error) {
	interval := int64(s.cfg.IndexInterval)
	last := lastOf(entries)
	if v.size-last.pos <= 2*interval {
		return entries, nil
	}
	c := cursor{offset: v.base, base: v.base}
	if len(entries) > 0 {
		c.offset, c.pos = last.offset, last.pos
	}
	w := v.walk(c, nil, max(s.cfg.IndexInterval, 256<<10))
	highest := last.time
	for {
		h, _, err := w.peek(true)
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if errors.Is(err, errDamaged) {
			if _, err = w.resync(entries); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		highest = max(highest, h.BaseTimestamp)
		entries = addEntry(entries, indexEntry{offset: h.BaseOffset, pos: w.pos, time: highest}, interval)
		w.skip(h)
	}
}

// reindex throws the index of a segment away and makes it again.
func (s *Store) reindex(l *log, v view) ([]indexEntry, error) {
	s.logger.Warn().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(v.base)).
		Msg("index does not fit its segment and is made again")
	x := &v.handle.idx
	x.build.Lock()
	defer x.build.Unlock()
	if err := s.fs.Remove(s.paths.file(l.id, v.base, indexExt)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	x.saved = 0
	entries, err := s.extend(v, nil)
	if err != nil {
		return nil, err
	}
	return x.set(entries, v.size), nil
}

// appendTime is the append time of the first good chunk at or after offset, ms.
func (s *Store) appendTime(l *log, offset topology.Offset) (int64, error) {
	res, _, err := s.Read(l.id, offset, 1, nil)
	if err != nil {
		return 0, err
	}
	if len(res.Chunks) == 0 {
		return noTime, fmt.Errorf("no chunk of %s at %d", l.id, offset)
	}
	return res.Chunks[0].Header.BaseTimestamp, nil
}

// OffsetForTime finds the first chunk that was appended at t or later, and returns its first offset, or the end of the
// log if there is none. Append times are the leader's; should its clock have gone back, "first" is by offset.
func (s *Store) OffsetForTime(id topology.LogID, t time.Time) (topology.Offset, error) {
	l := s.lookup(id)
	if l == nil {
		return 0, nil
	}
	ms := t.UnixMilli()
	if t.After(time.UnixMilli(ms)) {
		ms++ // append times are whole milliseconds
	}
	l.mu.Lock()
	from, end := l.start, l.end
	l.mu.Unlock()
	for from < end {
		v, err := s.view(l, from)
		var out *OutOfRange
		if errors.As(err, &out) && from < out.Start {
			from = out.Start
			continue
		}
		if err != nil {
			return 0, err
		}
		if from >= v.end {
			return v.end, nil
		}
		if v.handle == nil {
			from = v.until
			continue
		}
		found, err := s.timeInSegment(l, v, from, ms)
		s.files.release(v.handle)
		if errors.Is(err, errCut) {
			l.mu.Lock()
			end = l.end
			l.mu.Unlock()
			continue // look again
		}
		if err != nil {
			return 0, fmt.Errorf("look for a time in %s: %w", id, err)
		}
		if found >= 0 {
			return max(found, from), nil
		}
		from = v.until
	}
	return end, nil
}

// timeInSegment finds the first chunk of a segment that was appended at ms or later and ends behind from; -1 if none.
func (s *Store) timeInSegment(l *log, v view, from topology.Offset, ms int64) (topology.Offset, error) {
	l.mu.Lock()
	highest := v.seg.max
	l.mu.Unlock()
	if highest != noTime && highest < ms {
		return -1, nil
	}
	c, err := s.indexed(l, v, func(entries []indexEntry) int { return byTime(entries, ms) })
	if err != nil {
		return -1, err
	}
	found := topology.Offset(-1)
	err = s.scan(l, v, c, func(h recordbatch.Header, _ int64) bool {
		if h.BaseTimestamp < ms || h.Next() <= from {
			return true
		}
		found = h.BaseOffset
		return false
	})
	return found, err
}

// segmentTimes finds the append time of the first chunk of a segment and the highest of all, where they are not known.
func (s *Store) segmentTimes(l *log, v view) (first, highest int64, err error) {
	l.mu.Lock()
	first, highest = v.seg.first, v.seg.max
	l.mu.Unlock()
	if first != noTime && highest != noTime {
		return first, highest, nil
	}
	first, highest = noTime, noTime
	start := cursor{offset: v.base, base: v.base}
	err = s.scan(l, v, start, func(h recordbatch.Header, _ int64) bool {
		first, highest = h.BaseTimestamp, h.BaseTimestamp
		return false
	})
	if err != nil {
		return 0, 0, err
	}
	last, err := s.indexed(l, v, func(entries []indexEntry) int {
		if len(entries) > 0 {
			highest = max(first, entries[len(entries)-1].time)
		}
		return len(entries) - 1
	})
	if err != nil {
		return 0, 0, err
	}
	err = s.scan(l, v, last, func(h recordbatch.Header, _ int64) bool {
		highest = max(highest, h.BaseTimestamp)
		return true
	})
	if err != nil {
		return 0, 0, err
	}
	l.mu.Lock()
	if v.seg.size == v.size && l.cuts == v.cuts { // else there are chunks that were not looked at
		v.seg.first, v.seg.max = first, max(v.seg.max, highest)
	}
	l.mu.Unlock()
	return first, highest, nil
}
