package data

import (
	"errors"
	"fmt"
	"io"
	"slices"
)

// readBeyond takes in the chunks that the files hold beyond what is noted of a log: where there is no journal to tell, a
// chunk that is whole and follows without a gap is kept. The first that does not ends the log there, and tidy cuts the rest.
//
// Where the notes are lost (salvage) the log is made from its files alone: its start is the first segment, its stretches
// are those of the chunks, and damage with good chunks behind it does not end it.
func (s *Store) readBeyond(l *log, noted bool) error {
	l.mu.Lock()
	err := s.load(l)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	bases, err := s.listSegments(l.id)
	if err != nil {
		return err
	}
	if !noted && len(bases) > 0 && (s.salvage || bases[0] <= l.start) {
		l.start = max(l.start, bases[0])
		l.end = bases[0]
	}
	if n := len(l.segs); n > 0 && !l.roll {
		whole, err := s.takeTail(l, l.segs[n-1])
		if err != nil {
			return err
		}
		if !whole && !s.salvage {
			return nil
		}
	}
	for _, base := range bases {
		if base < l.end || l.last.ok && base <= l.last.base || base > max(l.end, l.start) && !s.salvage {
			continue
		}
		seg := &segment{base: base, first: noTime, max: noTime, fresh: true}
		l.mu.Lock()
		l.end = base
		l.attach(seg)
		l.roll = false
		l.newDir = true
		l.mu.Unlock()
		whole, err := s.takeTail(l, seg)
		if err != nil {
			return err
		}
		if seg.size == 0 {
			l.detach(seg)
		}
		if !whole && !s.salvage {
			return nil
		}
	}
	return nil
}

// detach takes back a segment in which no chunk was found.
func (l *log) detach(seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segs = slices.DeleteFunc(slices.Clone(l.segs), func(s *segment) bool { return s == seg })
	l.segCount = int32(len(l.segs))
	l.roll = len(l.segs) > 0
	l.noteLast()
}

// takeTail takes in the chunks behind the known end of a segment, and says whether they reach to the end of its file.
func (s *Store) takeTail(l *log, seg *segment) (bool, error) {
	h, err := s.acquire(l, seg, mustExist)
	if err != nil {
		return false, err
	}
	defer s.files.release(h)
	size, err := h.Size()
	if err != nil {
		return false, err
	}
	if size == seg.size {
		return true, nil
	}
	v := view{seg: seg, base: seg.base, handle: h, size: seg.size, until: l.end, stretches: l.stretches}
	if _, err := s.entries(l, v); err != nil {
		return false, err
	}
	w := walk{file: h, size: size, until: 1<<63 - 1, loose: true, version: l.stretches.last(), pos: seg.size, next: l.end, step: s.cfg.IndexInterval}
	seg.synced = min(seg.synced, seg.size)
	for {
		head, _, err := w.peek(true)
		switch {
		case err == nil:
			l.mu.Lock()
			l.publish(seg, head, w.pos)
			h.idx.add(indexEntry{offset: head.BaseOffset, pos: w.pos, time: max(seg.max, head.BaseTimestamp)}, int64(s.cfg.IndexInterval))
			l.mu.Unlock()
			w.version = head.Version
			w.skip(head)
		case errors.Is(err, io.EOF):
			return true, nil
		case errors.Is(err, errDamaged) && s.salvage:
			if _, err := w.resync(nil); err != nil {
				return false, err
			}
			if w.pos >= w.size {
				return false, nil
			}
		case errors.Is(err, errDamaged):
			return false, nil
		default:
			return false, fmt.Errorf("read segment %d: %w", seg.base, err)
		}
	}
}
