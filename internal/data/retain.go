package data

import (
	"errors"
	"slices"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// Retain removes segments that the policies of their topics no longer keep, by age of their newest chunk and by bytes. It
// returns the logs whose start has moved.
func (s *Store) Retain() []topology.LogID {
	now := s.cfg.Now()
	var logs []*log
	var starts []topology.Offset
	for _, l := range s.allLogs() {
		p, ok := s.cfg.Policy(l.id.Topic)
		if !ok || p.RetentionAge <= 0 && p.RetentionBytes <= 0 {
			continue
		}
		start, err := s.retained(l, p, now)
		if err != nil {
			s.logger.Warn().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Msg("retention cannot look at a log")
			continue
		}
		if start > 0 {
			logs, starts = append(logs, l), append(starts, start)
		}
	}
	if len(logs) == 0 {
		return nil
	}
	s.flushMu.Lock()
	for i := len(logs) - 1; i >= 0; i-- {
		if logs[i].cutting || logs[i].gone {
			logs, starts = slices.Delete(logs, i, i+1), slices.Delete(starts, i, i+1)
		}
	}
	err := s.setStarts(logs, starts)
	s.flushMu.Unlock()
	if err != nil {
		s.logger.Warn().Err(err).Msg("retention could not remove all it should")
	}
	s.room.watch()
	ids := make([]topology.LogID, len(logs))
	for i, l := range logs {
		ids[i] = l.id
	}
	slices.SortFunc(ids, compareLogs)
	return ids
}

// retained is the start that a policy gives a log, 0 when it stays where it is. Most logs are judged by what is in memory.
func (s *Store) retained(l *log, p Policy, now time.Time) (topology.Offset, error) {
	l.mu.Lock()
	start, end, bytes, newest := l.start, l.end, l.bytes, l.newest
	expired := p.RetentionAge > 0 && end > start && (l.oldest == noTime || ageOf(now, l.oldest) > p.RetentionAge)
	l.mu.Unlock()
	if p.RetentionAge > 0 && end > start && ageOf(now, newest) > p.RetentionAge {
		return s.allExpired(l, end, p, now)
	}
	if !expired && (p.RetentionBytes <= 0 || bytes <= p.RetentionBytes) {
		return 0, nil
	}
	keep := start
	for {
		if size, highest, until, ok := l.judge(keep); ok { // without a look at the disk
			if until < 0 || !p.removes(now, highest, bytes-size) {
				break
			}
			bytes -= size
			keep = until
			continue
		}
		v, err := s.view(l, keep)
		var out *OutOfRange
		if errors.As(err, &out) || err == nil && v.until >= v.end {
			if v.handle != nil {
				s.files.release(v.handle)
			}
			break // the last segment stays
		}
		if err != nil {
			return 0, err
		}
		if v.handle == nil {
			keep = v.until
			continue
		}
		_, highest, err := s.segmentTimes(l, v)
		s.files.release(v.handle)
		if err != nil {
			return 0, err
		}
		if !p.removes(now, highest, bytes-v.size) {
			break
		}
		bytes -= v.size
		keep = v.until
	}
	if keep == start {
		return 0, nil
	}
	return keep, nil
}

// removes says whether a segment goes whose youngest chunk is of highest, and that leaves rest bytes behind.
func (p Policy) removes(now time.Time, highest, rest int64) bool {
	return p.RetentionAge > 0 && highest != noTime && ageOf(now, highest) > p.RetentionAge ||
		p.RetentionBytes > 0 && rest >= p.RetentionBytes
}

// judge is what memory tells of the segment that offset falls into; until is -1 for the last one, which stays. ok is false
// when the disk must be asked.
func (l *log) judge(offset topology.Offset) (size, highest int64, until topology.Offset, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded {
		return 0, 0, -1, l.segCount == 1 && l.last.ok
	}
	i := l.segmentFor(offset)
	switch {
	case i < 0:
		return 0, 0, 0, false
	case i == len(l.segs)-1:
		return 0, 0, -1, true
	}
	return l.segs[i].size, l.segs[i].max, l.untilOf(i), l.segs[i].max != noTime
}

// allExpired is the start of a log whose newest chunk is too old: its end, unless a segment holds a younger chunk (the
// clock has gone back).
func (s *Store) allExpired(l *log, end topology.Offset, p Policy, now time.Time) (topology.Offset, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seg := range l.segs {
		if seg.max != noTime && ageOf(now, seg.max) <= p.RetentionAge {
			return 0, nil
		}
	}
	if l.end != end {
		return 0, nil
	}
	return end, nil
}

func ageOf(now time.Time, ms int64) time.Duration { return now.Sub(time.UnixMilli(ms)) }
