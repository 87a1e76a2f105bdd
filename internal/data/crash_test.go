package data_test

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

var (
	oneSeed = flag.Uint64("seed", 0, "run the crash tests with this seed only")
	seeds   = flag.Int("seeds", 0, "number of seeds of each crash test")
	trace   = flag.Bool("steps", false, "print what a crash test does")
)

// sim drives a store and its model by chance.
type sim struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	fs      *memfs.FS
	kv      *memfs.KV
	cfg     data.Config
	store   *data.Store
	now     time.Time
	version topology.Version
	logs    map[topology.LogID]*modelLog
	topics  []uuid.UUID
	dead    []uuid.UUID
	serial  int
	faults  float64         // chance that a step fails
	bad     *topology.LogID // fails at every step; nil none
	log     strings.Builder
}

func newSim(t *testing.T, seed uint64, flush data.FlushPolicy) *sim {
	s := &sim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: time.UnixMilli(1_700_000_000_000), version: 1, logs: map[topology.LogID]*modelLog{}}
	s.fs = memfs.New(seed, 64<<20)
	s.kv = memfs.NewKV(s.fs)
	s.cfg = data.Config{
		Dir: "/data", FS: s.fs, KV: s.kv, Now: func() time.Time { return s.now }, Flush: flush,
		SegmentBytes: 2000 + s.rng.Int64N(4000), IndexInterval: 200 + s.rng.IntN(800), JournalBytes: 64<<10 + s.rng.Int64N(32<<10), ReserveBytes: 64 << 10,
		MaxOpenFiles: 1 + s.rng.IntN(6),
		Policy: func(id uuid.UUID) (data.Policy, bool) {
			if id[15]%3 == 0 {
				return data.Policy{RetentionBytes: 8000, RetentionAge: time.Hour}, true
			}
			return data.Policy{}, false
		},
	}
	data.SerialFlush(&s.cfg)
	if *trace {
		s.cfg.Logger = zerolog.New(zerolog.ConsoleWriter{Out: os.Stdout, NoColor: true})
	}
	for range 3 {
		s.newTopic()
	}
	return s
}

func (s *sim) newTopic() {
	s.serial++
	s.topics = append(s.topics, uuid.UUID{14: byte(s.serial >> 8), 15: byte(s.serial)})
}

func (s *sim) note(format string, args ...any) {
	fmt.Fprintf(&s.log, format+"\n", args...)
	if *trace {
		fmt.Printf(format+"\n", args...)
	}
}

func (s *sim) fatalf(format string, args ...any) {
	s.t.Helper()
	trace := s.log.String()
	if lines := strings.Split(trace, "\n"); len(lines) > 60 {
		trace = strings.Join(lines[len(lines)-60:], "\n")
	}
	s.t.Fatalf("seed %d: %s\n%s", s.seed, fmt.Sprintf(format, args...), trace)
}

func (s *sim) model(id topology.LogID) *modelLog {
	if s.logs[id] == nil {
		s.logs[id] = &modelLog{cut: -1}
	}
	return s.logs[id]
}

// someLog picks a log of a topic that lives.
func (s *sim) someLog() topology.LogID {
	return topology.LogID{Topic: s.topics[s.rng.IntN(len(s.topics))], Partition: topology.Partition(s.rng.IntN(2))}
}

func (s *sim) chunk(tag string) []byte {
	var b recordbatch.Builder
	b.Reset(s.now.UnixMilli())
	b.SetCompression(s.rng.IntN(4) == 0)
	size := s.rng.IntN(300)
	if s.rng.IntN(60) == 0 {
		size = 5000 + s.rng.IntN(15000)
	}
	for i := range 1 + s.rng.IntN(4) {
		value := fmt.Appendf(nil, "%s.%d|", tag, i)
		for len(value) < size {
			value = binary.LittleEndian.AppendUint64(value, s.rng.Uint64())
		}
		b.Append(&recordbatch.Record{Timestamp: 1, Value: value})
	}
	return b.Seal(nil)
}

// commit appends a round.
func (s *sim) commit() {
	var round []*data.Append
	var tags []string
	for range 1 + s.rng.IntN(6) {
		s.serial++
		tags = append(tags, fmt.Sprint("c", s.serial))
		round = append(round, &data.Append{Log: s.someLog(), Version: s.version, Batch: s.chunk(tags[len(tags)-1]), Internal: s.rng.IntN(5) == 0})
	}
	s.store.Commit(round)
	for i, a := range round {
		m := s.model(a.Log)
		h, err := recordbatch.Check(a.Batch)
		if err != nil {
			s.fatalf("batch is broken: %v", err)
		}
		c := modelChunk{base: h.BaseOffset, next: h.Next(), version: a.Version, tag: tags[i], flushed: s.cfg.Flush == data.FlushAlways}
		s.note("commit %s %s [%d,%d) %d bytes: %v", a.Log, c.tag, c.base, c.next, len(a.Batch), a.Err)
		switch {
		case a.Err == nil:
			if a.Base != m.end || a.Base != h.BaseOffset {
				s.fatalf("%s: acknowledged at %d, the log ends at %d", a.Log, a.Base, m.end)
			}
			m.chunks = append(m.chunks, c)
			m.end = c.next
			m.maybe = nil
		case errors.Is(a.Err, topology.ErrOutcomeUnknown) || s.fs.Crashed():
			m.maybe = append(m.maybe, c)
		case errors.Is(a.Err, topology.ErrUnavailable), errors.Is(a.Err, topology.ErrDiskFull):
			if !s.mayRefuse(a.Log, a.Err) {
				s.fatalf("%s: refused without a fault: %v", a.Log, a.Err)
			}
		default:
			s.fatalf("%s: %v", a.Log, a.Err)
		}
	}
}

func (s *sim) checkpoint() {
	err := s.store.Checkpoint()
	s.note("checkpoint: %v", err)
	if err == nil {
		s.flushed()
	}
}

// flushed says that everything is durable now.
func (s *sim) flushed() {
	for _, m := range s.logs {
		m.flushEnd = m.end
	}
}

func (s *sim) setStart() {
	id := s.someLog()
	m := s.model(id)
	if m.end == 0 {
		return
	}
	to := topology.Offset(s.rng.Int64N(int64(m.end) + 1))
	err := s.store.SetStart(id, to)
	s.note("start %s %d: %v", id, to, err)
	if err == nil {
		m.start = max(m.start, to)
	} else if to > m.start {
		m.starts = append(m.starts, to)
		m.start = max(m.start, s.store.Info(id).Start)
	}
}

func (s *sim) truncate() {
	id := s.someLog()
	m := s.model(id)
	if len(m.chunks) == 0 {
		return
	}
	to := m.chunks[s.rng.IntN(len(m.chunks))].base
	if to < m.start {
		return
	}
	err := s.store.Truncate(id, to)
	s.note("truncate %s %d: %v", id, to, err)
	if err == nil {
		m.truncate(to)
		m.flushEnd = m.end
		return
	}
	if info := s.store.Info(id); info.End == to {
		m.cut = -1
		m.uncertain(to)
	} else {
		m.cut = to
	}
}

func (s *sim) drop() {
	i := s.rng.IntN(len(s.topics))
	topic := s.topics[i]
	err := s.store.DropTopic(topic)
	s.note("drop %s: %v", topic, err)
	for id, m := range s.logs {
		if id.Topic == topic {
			if err == nil {
				delete(s.logs, id)
			} else {
				m.dropping = true
			}
		}
	}
	s.topics = append(s.topics[:i], s.topics[i+1:]...)
	s.dead = append(s.dead, topic)
	s.newTopic()
}

func (s *sim) retain() {
	s.now = s.now.Add(time.Duration(s.rng.IntN(30)) * time.Minute)
	moved := s.store.Retain()
	s.note("retain: %v", moved)
	if s.fs.Crashed() || s.faults > 0 || s.bad != nil {
		for _, m := range s.logs {
			m.anyStart = true
		}
	}
	for _, id := range moved {
		m := s.logs[id]
		if m == nil {
			continue // of a topic whose drop failed
		}
		start := s.store.Info(id).Start
		if start > m.end {
			s.fatalf("%s: retention moved the start to %d, the end is %d", id, start, m.end)
		}
		m.starts = append(m.starts, start)
		m.start = max(m.start, start)
	}
}

func (s *sim) read() {
	id := s.someLog()
	m := s.model(id)
	if m.end == m.start {
		return
	}
	from := m.start + topology.Offset(s.rng.Int64N(int64(m.end-m.start)))
	res, _, err := s.store.Read(id, from, 1+s.rng.IntN(3000), nil)
	if s.fs.Crashed() || (s.faults > 0 || s.bad != nil) && err != nil {
		return
	}
	if err != nil || len(res.Chunks) == 0 || res.Chunks[0].Header.BaseOffset > from || res.Chunks[0].Header.Next() <= from || len(res.Damaged) > 0 {
		s.fatalf("read %s at %d: %+v, %v", id, from, res, err)
	}
}

func (s *sim) reopenCleanly() {
	err := s.store.Close()
	s.note("close: %v", err)
	if s.fs.Crashed() {
		return
	}
	faults := s.faults
	s.fs.Fail(nil)
	if err == nil {
		s.flushed()
		s.open()
	} else {
		s.fs.Kill()
		s.open()
		s.verify()
	}
	s.faults = faults
	s.fs.Fail(s.fail)
	if s.bad != nil {
		s.failOne(*s.bad)
	}
}

// fail lets steps of the disk fail by chance.
func (s *sim) fail(op memfs.Op) error {
	if op.Kind == memfs.OpRead || s.rng.Float64() >= s.faults {
		return nil
	}
	if op.Kind == memfs.OpWrite && s.rng.IntN(3) == 0 {
		return syscall.ENOSPC
	}
	return syscall.EIO
}

// open opens the store, crashing again now and then while it recovers.
func (s *sim) open() {
	for {
		if s.rng.IntN(3) == 0 && s.faults == 0 && s.bad == nil {
			s.fs.CrashAt(1 + s.rng.IntN(30))
		}
		store, err := data.Open(s.cfg)
		if err == nil {
			s.store = store
			return
		}
		s.note("open: %v", err)
		if !s.fs.Crashed() && s.faults == 0 {
			s.fatalf("open: %v", err)
		}
		if s.fs.Crashed() {
			s.restart()
		}
	}
}

// restart restarts the process or the machine.
func (s *sim) restart() {
	if s.rng.IntN(3) == 0 {
		s.note("-- kill")
		s.fs.Kill()
		return
	}
	s.note("-- power cut")
	s.fs.Crash()
	if s.cfg.Flush == data.FlushInterval {
		for _, m := range s.logs {
			for i := range m.chunks {
				m.chunks[i].flushed = m.chunks[i].next <= m.flushEnd
			}
		}
	}
}

// step does one thing.
func (s *sim) step() {
	switch n := s.rng.IntN(100); {
	case n < 55:
		s.commit()
	case n < 65:
		s.checkpoint()
	case n < 70:
		s.setStart()
	case n < 75:
		s.truncate()
	case n < 77:
		s.drop()
	case n < 82:
		s.retain()
	case n < 90:
		s.read()
	case n < 92:
		s.reopenCleanly()
	case n < 94:
		s.version++
	case n < 95:
		s.store.FillJournal()
	case n < 97:
		s.now = s.now.Add(time.Duration(s.rng.IntN(40)) * time.Minute)
	default:
		s.store.Repair()
	}
}

func runSeeds(t *testing.T, def int, fn func(t *testing.T, seed uint64)) {
	if *oneSeed != 0 {
		fn(t, *oneSeed)
		return
	}
	def /= slower
	if *seeds > 0 {
		def = *seeds
	}
	for seed := uint64(1); seed <= uint64(def); seed++ {
		fn(t, seed)
	}
}

// TestCrash does things by chance, stops the world at some step of the disk, restarts the process or the machine, and
// compares with the model (P5, P7).
func TestCrash(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		t.Run(flush.String(), func(t *testing.T) {
			t.Parallel()
			runSeeds(t, 150, func(t *testing.T, seed uint64) {
				s := newSim(t, seed, flush)
				s.open()
				for range 6 {
					if s.fs.Crashed() {
						s.restart()
						s.open()
					}
					s.fs.CrashAt(1 + s.rng.IntN(80))
					for !s.fs.Crashed() {
						s.step()
					}
					s.restart()
					s.open()
					if !s.fs.Crashed() {
						s.fs.CrashAt(1 << 30)
						s.verify()
					}
				}
			})
		})
	}
}

// TestFaults lets steps of the disk fail by chance (EIO, ENOSPC, failed flushes), with crashes in between: what was
// refused is never there, what was acknowledged always is, and the store heals by itself (P5, F21).
func TestFaults(t *testing.T) {
	t.Parallel()
	runSeeds(t, 150, func(t *testing.T, seed uint64) {
		s := newSim(t, seed, data.FlushAlways)
		s.open()
		s.fs.CrashAt(1 << 30)
		for range 6 {
			s.faults = 0.05
			s.fs.Fail(s.fail)
			for range 25 {
				s.step()
				if s.rng.IntN(5) == 0 {
					s.fs.Evict()
				}
			}
			s.fs.Fail(nil)
			if s.rng.IntN(2) == 0 {
				s.restart()
				s.faults = 0
				s.open()
				if s.fs.Crashed() {
					s.restart()
					s.open()
				}
				s.fs.CrashAt(1 << 30)
			} else {
				if !s.store.Repair() {
					s.fatalf("not repaired though nothing fails any more")
				}
				s.fs.Evict()
			}
			s.faults = 0
			s.verify()
			s.commit()
			if err := s.store.Checkpoint(); err != nil {
				s.fatalf("checkpoint: %v", err)
			}
		}
	})
}
