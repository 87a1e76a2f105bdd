package data

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/topology"
)

// load lists the segments of a log at its first touch and holds them against what is noted: what lies beyond the noted
// end was never acknowledged and is cut, what is missing below it is damaged. During recovery nothing is cut yet: the
// journal may have more to say. The caller holds l.mu.
func (s *Store) load(l *log) error {
	if l.loaded {
		return nil
	}
	bases, err := s.listSegments(l.id)
	if err != nil {
		return fmt.Errorf("list segments of %s: %w", l.id, err)
	}
	mayCut, discarded := s.opened || l.cutting, false
	var segs []*segment
	for i, base := range bases {
		if !l.last.ok || base > l.last.base {
			if mayCut {
				if err := s.discard(l, base, "it lies beyond the end of the log"); err != nil {
					return err
				}
				discarded = true
			}
			continue
		}
		if i+1 < len(bases) && bases[i+1] <= min(l.start, l.last.base) {
			if err := s.discard(l, base, "it lies below the start of the log"); err != nil {
				return err
			}
			continue
		}
		size, err := s.fs.Stat(s.paths.file(l.id, base, segmentExt))
		if err != nil {
			return fmt.Errorf("segment %d of %s: %w", base, l.id, err)
		}
		seg := &segment{base: base, size: size, synced: size, first: noTime, max: noTime}
		if base == l.last.base {
			seg.first, seg.max = l.last.first, l.last.max
			if err := s.fitLast(l, seg, mayCut); err != nil {
				return err
			}
		}
		segs = append(segs, seg)
	}
	if discarded {
		if err := s.fs.SyncDir(s.paths.log(l.id)); err != nil {
			return err
		}
	}
	l.adoptSegments(segs)
	s.noteGaps(l)
	return nil
}

// adoptSegments makes segs the segments of l. The caller holds mu.
func (l *log) adoptSegments(segs []*segment) {
	if l.last.ok && (len(segs) == 0 || segs[len(segs)-1].base != l.last.base) {
		l.roll = true // the last segment is missing: what is left ends before the log does
	}
	l.grow(-l.bytes)
	for _, seg := range segs {
		l.grow(seg.size)
	}
	l.segs, l.segCount, l.loaded = segs, int32(len(segs)), true
}

// listSegments lists the first offsets of the segment files of a log, ascending.
func (s *Store) listSegments(id topology.LogID) ([]topology.Offset, error) {
	entries, err := s.fs.ReadDir(s.paths.log(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var bases []topology.Offset
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name, segmentExt)
		if !ok || len(digits) != 20 || e.Dir {
			continue
		}
		if base, err := strconv.ParseInt(digits, 10, 64); err == nil && base >= 0 {
			bases = append(bases, topology.Offset(base))
		}
	}
	sort.Slice(bases, func(i, j int) bool { return bases[i] < bases[j] })
	return bases, nil
}

// fitLast makes the last segment as long as noted. A longer file holds what was never acknowledged. A shorter one is
// damaged, not torn (F21): what is left of it is served, and the next append begins a new segment at the noted end.
func (s *Store) fitLast(l *log, seg *segment, mayCut bool) error {
	switch {
	case seg.size > l.last.size:
		if mayCut {
			s.noteCut(l, seg.size-l.last.size)
			if err := s.cutFile(l, seg, l.last.size); err != nil {
				return err
			}
		}
		seg.size, seg.synced = l.last.size, l.last.size
	case seg.size < l.last.size:
		s.logger.Error().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(seg.base)).
			Int64("bytes", seg.size).Int64("noted", l.last.size).Msg("segment is shorter than noted")
		l.roll = true
	}
	return nil
}

// noteCut counts bytes that are cut from a tail.
func (s *Store) noteCut(l *log, n int64) {
	s.metrics.cut.Add(float64(n))
	if !s.opened {
		s.report.cut(l.id, l.end, n)
	}
}

// noteDamage counts damage that recovery comes across.
func (s *Store) noteDamage(id topology.LogID, r OffsetRange) {
	if !s.opened && len(s.report.Damaged) < maxReported {
		s.report.Damaged = append(s.report.Damaged, LogDamage{Log: id, OffsetRange: r})
	}
}

// cutFile cuts a segment file to size, and its index to what lies below. Durable on return.
func (s *Store) cutFile(l *log, seg *segment, size int64) error {
	s.files.drop(seg)
	if err := s.cutIndex(l, seg, size); err != nil {
		return err
	}
	h, err := s.acquire(l, seg, mustExist)
	if err != nil {
		return err
	}
	defer s.files.release(h)
	if err := h.Truncate(size); err != nil {
		return fmt.Errorf("cut segment %d of %s: %w", seg.base, l.id, err)
	}
	if err := h.Sync(); err != nil {
		return fmt.Errorf("cut segment %d of %s: %w", seg.base, l.id, err)
	}
	return nil
}

// cutIndex cuts the index of a segment that is cut to size. Positions beyond will be used again, so an entry that a crash
// brings back would be wrong: unlike other writes of an index, this one is made durable.
func (s *Store) cutIndex(l *log, seg *segment, size int64) error {
	f, err := s.fs.Open(s.paths.file(l.id, seg.base, indexExt), os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cut index %d of %s: %w", seg.base, l.id, err)
	}
	defer f.Close()
	b, err := readAll(f)
	if err == nil {
		_, used := decodeIndex(b, seg.base, size, math.MaxInt64)
		err = f.Truncate(int64(used))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("cut index %d of %s: %w", seg.base, l.id, err)
	}
	return nil
}

// discard removes the files of a segment that is not part of the log.
func (s *Store) discard(l *log, base topology.Offset, why string) error {
	s.logger.Info().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(base)).
		Str("reason", why).Msg("segment removed")
	return s.removeFiles(l.id, base)
}

// removeFiles removes the files of a segment. Not durable until the directory is synced: what comes back after a crash
// is found again and removed again.
func (s *Store) removeFiles(id topology.LogID, base topology.Offset) error {
	for _, ext := range []string{indexExt, segmentExt} {
		if err := s.fs.Remove(s.paths.file(id, base, ext)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove segment %d of %s: %w", base, id, err)
		}
	}
	return nil
}

// noteGaps registers what is missing between the segments. The caller holds l.mu.
func (s *Store) noteGaps(l *log) {
	if l.end <= l.start {
		return
	}
	if len(l.segs) == 0 {
		s.damage(l, damage{from: l.start, to: l.end, base: -1})
		return
	}
	if first := l.segs[0].base; first > l.start {
		s.damage(l, damage{from: l.start, to: first, base: -1})
	}
}
