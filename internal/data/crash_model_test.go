package data_test

import (
	"fmt"
	"runtime/debug"
	"sort"
	"strings"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/topology"
)

// modelChunk is a chunk that the model knows of.
type modelChunk struct {
	base, next topology.Offset
	version    topology.Version
	tag        string
	flushed    bool // survives a power cut for sure
}

// modelLog is what a log must hold. chunks were acknowledged. maybe are those of the last round whose outcome is unknown.
type modelLog struct {
	start    topology.Offset
	starts   []topology.Offset // asked for, outcome unknown
	chunks   []modelChunk
	maybe    []modelChunk
	cut      topology.Offset // asked for, outcome unknown; -1 none
	first    topology.Offset // of chunks
	anyStart bool            // retention was interrupted
	end      topology.Offset
	flushEnd topology.Offset // everything below was flushed
	dropping bool
}

func (m *modelLog) truncate(to topology.Offset) {
	n := sort.Search(len(m.chunks), func(i int) bool { return m.chunks[i].base >= to })
	m.chunks = m.chunks[:n:n]
	m.end, m.cut, m.maybe = to, -1, nil
	m.flushEnd = min(m.flushEnd, to)
}

// uncertain cuts the log as it is in this run; after a crash the rest may be there again.
func (m *modelLog) uncertain(to topology.Offset) {
	n := sort.Search(len(m.chunks), func(i int) bool { return m.chunks[i].base >= to })
	rest := append([]modelChunk(nil), m.chunks[n:]...)
	m.truncate(to)
	m.maybe = rest
}

// verify compares all logs with the model, and takes over what was open.
func (s *sim) verify() {
	for _, topic := range s.dead {
		if n := len(s.store.TopicInfo(topic)); n > 0 && !s.dropping(topic) {
			s.fatalf("dropped topic %s has %d logs", topic, n)
		}
	}
	ids := make([]topology.LogID, 0, len(s.logs))
	for id := range s.logs {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool { return ids[i].String() < ids[j].String() })
	for _, id := range ids {
		s.verifyLog(id, s.logs[id])
	}
}

func (s *sim) dropping(topic uuid.UUID) bool {
	for id, m := range s.logs {
		if id.Topic == topic && m.dropping {
			return true
		}
	}
	return false
}

func (s *sim) verifyLog(id topology.LogID, m *modelLog) {
	info := s.store.Info(id)
	if m.dropping && info == (data.LogInfo{}) {
		delete(s.logs, id)
		return
	}
	if info.Start != m.start {
		ok := m.anyStart && info.Start > m.start && info.Start <= m.end
		for _, start := range m.starts {
			ok = ok || start == info.Start && start > m.start
		}
		if !ok {
			s.fatalf("%s starts at %d, want %d or one of %v", id, info.Start, m.start, m.starts)
		}
	}
	values, damaged := s.readLog(id)
	if len(damaged) > 0 {
		s.fatalf("%s: damaged %v", id, damaged)
	}
	if d := s.store.Damaged(id); len(d) > 0 {
		s.fatalf("%s: damaged %v", id, d)
	}
	var kept []modelChunk
	end := m.first
	for i, c := range append(append([]modelChunk(nil), m.chunks...), m.maybe...) {
		if c.next <= info.End && c.base == end && (i < len(m.chunks) || c.last(values)) {
			for o := max(c.base, info.Start); o < c.next; o++ {
				if want := fmt.Sprintf("%s.%d|", c.tag, o-c.base); !strings.HasPrefix(values[o], want) {
					s.fatalf("%s: offset %d is %.20q, want %s", id, o, values[o], want)
				}
				delete(values, o)
			}
			for o := c.base; o < info.Start; o++ {
				delete(values, o) // the first chunk may begin before the start
			}
			kept = append(kept, c)
			end = c.next
		}
	}
	if len(values) > 0 {
		s.fatalf("%s of %+v: %d offsets nobody wrote: %.2000q", id, info, len(values), fmt.Sprint(values))
	}
	// What is not kept must not have been promised.
	for _, c := range m.chunks {
		if c.base >= end && c.next > info.Start && c.flushed && m.cut != end {
			s.fatalf("%s of %+v: acknowledged chunk %s [%d,%d) is lost", id, info, c.tag, c.base, c.next)
		}
	}
	if end != info.End && info.End != info.Start {
		s.fatalf("%s of %+v: chunks end at %d", id, info, end)
	}
	if info.End > end {
		kept, m.first = nil, info.End // what lay below the start was not flushed
	}
	m.start, m.starts, m.chunks, m.maybe, m.cut, m.dropping, m.end = info.Start, nil, kept, nil, -1, false, info.End
	m.anyStart = false
	if s.cfg.Flush == data.FlushInterval {
		m.flushEnd = info.End // recovery flushes
	}
	if s.isDead(id.Topic) {
		delete(s.logs, id) // a drop that failed: the topic is not used again
		s.dead = remove(s.dead, id.Topic)
	}
}

// last says whether the last record of c is there. Of chunks that may be there several may have the same place.
func (c modelChunk) last(values map[topology.Offset]string) bool {
	return strings.HasPrefix(values[c.next-1], fmt.Sprintf("%s.%d|", c.tag, c.next-1-c.base))
}

func (s *sim) isDead(topic uuid.UUID) bool {
	for _, t := range s.dead {
		if t == topic {
			return true
		}
	}
	return false
}

func remove(list []uuid.UUID, id uuid.UUID) []uuid.UUID {
	var out []uuid.UUID
	for _, t := range list {
		if t != id {
			out = append(out, t)
		}
	}
	return out
}

func (s *sim) readLog(id topology.LogID) (map[topology.Offset]string, []data.OffsetRange) {
	defer func() {
		if r := recover(); r != nil {
			s.fatalf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return readAll(s.t, s.store, id)
}
