package data

import (
	"sort"

	"github.com/skeinmq/skein/internal/topology"
)

// Damaged lists the ranges of a log that cannot be served, as far as this run has come across them, ascending and
// disjoint.
func (s *Store) Damaged(id topology.LogID) []OffsetRange {
	l := s.lookup(id)
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []OffsetRange
	for _, d := range l.damaged {
		from := max(d.from, l.start)
		if d.to <= from {
			continue
		}
		if n := len(list); n > 0 && list[n-1].To >= from {
			list[n-1].To = max(list[n-1].To, d.to)
			continue
		}
		list = append(list, OffsetRange{from, d.to})
	}
	return list
}

// reportDamage registers a damage that was found without l.mu.
func (s *Store) reportDamage(l *log, d damage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.damage(l, d)
}

// damage registers a damage once: in the log, in the metric, and for Damaged. The caller holds l.mu.
func (s *Store) damage(l *log, d damage) {
	from := max(d.from, l.start)
	if d.to <= from {
		return
	}
	i := sort.Search(len(l.damaged), func(i int) bool { return l.damaged[i].from >= d.from })
	if i < len(l.damaged) && l.damaged[i].from == d.from && l.damaged[i].to >= d.to {
		return
	}
	if i > 0 && l.damaged[i-1].to >= d.to {
		return
	}
	fresh := d.to - from
	for _, known := range l.damaged {
		if lo, hi := max(from, known.from), min(d.to, known.to); lo < hi {
			fresh -= hi - lo
		}
	}
	l.damaged = append(l.damaged, damage{})
	copy(l.damaged[i+1:], l.damaged[i:])
	l.damaged[i] = d
	s.metrics.damaged.Add(float64(fresh))
	s.noteDamage(l.id, OffsetRange{from, d.to})
	s.logger.Error().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).
		Int64("from", int64(from)).Int64("to", int64(d.to)).Int64("segment", int64(d.base)).Int64("position", d.pos).
		Msg("records are damaged: they are not served")
}
