package data_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// A reboot that lost unflushed chunks is told again until somebody appends: the new id of the disk may have failed (P5).
func TestRebootIsNotForgotten(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.Flush = data.FlushInterval })
	r.put(logID(0), "a", 3)
	r.fs.Crash()
	for _, stop := range []func(){r.fs.Kill, func() { r.close() }, r.fs.Crash} {
		r.open()
		if !r.store.UncleanReboot() {
			t.Error("forgotten: the disk keeps its id though unflushed records are gone")
		}
		stop()
	}
	r.open()
	r.put(logID(0), "b", 1)
	r.close()
	r.open()
	if r.store.UncleanReboot() {
		t.Error("told again after an append and a clean stop")
	}
}

// The header of a journal file stands twice: one that rots costs nothing (P5).
func TestJournalHeaderRots(t *testing.T) {
	r := newRig(t, nil)
	for i := range 5 {
		r.put(logID(0), fmt.Sprint("a", i), 2)
	}
	r.fs.Kill()
	if err := r.fs.Flip("/data/journal/0.journal", 9, 1); err != nil {
		t.Fatal(err)
	}
	r.open()
	rep := r.store.Report()
	if info := r.store.Info(logID(0)); info.End != 10 {
		t.Errorf("SIGKILL: end %d, want 10; report %+v", info.End, rep)
	}
}

// Several chunks of one log take less of the journal than was looked for, never more: no file grows.
func TestJournalDoesNotGrow(t *testing.T) {
	r := newRig(t, nil)
	size := func() int64 { n, _ := r.fs.Stat("/data/journal/0.journal"); return n }
	was := size()
	half := (was - 4096) / 2
	fill := func(n int, count int) {
		var round []*data.Append
		for range count {
			round = append(round, &data.Append{Log: logID(0), Version: 1, Batch: r.batch(strings.Repeat("x", n), 1)})
		}
		r.store.Commit(round)
		for _, a := range round {
			if a.Err != nil {
				t.Fatal(a.Err)
			}
		}
	}
	fill(28000, 1)
	fill(20000, 1) // little room is left in the file
	n := int((half - 100) / 15)
	fill(n-int(len(r.batch("", 1)))-10, 15) // 15 chunks of one log: with 60 bytes each above half, with 60 in all below
	if now := size(); now > was {
		t.Errorf("journal file grew from %d to %d", was, now)
	}
}

// A topic that was never written is not written after its drop either (T3).
func TestDropUnwritten(t *testing.T) {
	r := newRig(t, nil)
	id := logID(3)
	if err := r.store.DropTopic(id.Topic); err != nil {
		t.Fatal(err)
	}
	a := &data.Append{Log: id, Version: 1, Batch: r.batch("a", 1)}
	r.store.Commit([]*data.Append{a})
	if !errors.Is(a.Err, topology.ErrUnknownTopic) {
		t.Errorf("append after the drop: %v", a.Err)
	}
}

// One log that cannot be mended does not stop the others (F21).
func TestOneBadLog(t *testing.T) {
	r := newRig(t, func(c *data.Config) { c.SegmentBytes = 1 << 20 })
	bad, good := logID(0), logID(8)
	r.put(bad, "a", 1)
	r.put(good, "a", 1)
	r.fs.Fail(func(op memfs.Op) error {
		if op.Kind == memfs.OpSync && strings.Contains(op.Name, bad.Topic.String()) {
			return syscall.EIO
		}
		return nil
	})
	for i := range 200 {
		a := &data.Append{Log: good, Version: 1, Batch: r.batch(strings.Repeat("y", 2000), 1)}
		r.store.Commit([]*data.Append{a})
		if a.Err != nil {
			t.Fatalf("append %d to a healthy log: %v", i, a.Err)
		}
	}
}

// The clock goes back over a restart: what was appended before it did is still found by its time.
func TestClockGoesBack(t *testing.T) {
	r := newRig(t, func(c *data.Config) {
		c.SegmentBytes = 1 << 20
		c.SegmentAge = 1000 * time.Hour
		c.Policy = func(uuid.UUID) (data.Policy, bool) { return data.Policy{}, false }
	})
	id := logID(0)
	r.put(id, "young", 1)
	top := r.now
	r.close()
	r.open()
	r.now = r.now.Add(-time.Hour)
	r.put(id, "old", 1)
	at, err := r.store.OffsetForTime(id, top)
	if err != nil || at != 0 {
		t.Errorf("offset for the time of chunk 0: %d, %v", at, err)
	}
}

// A store with a reserve starts on a full disk and recovers all (P5).
func TestRecoverOnFullDisk(t *testing.T) {
	for seed := uint64(1); seed < 30; seed++ {
		fsys := memfs.New(seed, 4<<20)
		r := &rig{t: t, fs: fsys, kv: memfs.NewKV(fsys), now: time.UnixMilli(1_700_000_000_000)}
		r.cfg = data.Config{Dir: "/data", FS: fsys, KV: r.kv, Now: func() time.Time { return r.now }, SegmentBytes: 1 << 20, JournalBytes: 256 << 10, ReserveBytes: 1 << 20}
		r.open()
		for i := range 50 {
			r.put(logID(0), fmt.Sprint(strings.Repeat("z", 2000), i), 1)
		}
		held := r.store.Room().Reserve
		r.fs.Crash()
		if n, err := r.fs.Stat("/data/reserve"); err != nil || n < held {
			continue // the reserve file itself was not durable
		}
		space, _ := r.fs.Space("/data")
		r.fs.SetForeign(space.Free) // somebody else takes all
		s, err := data.Open(r.cfg)
		if err != nil {
			t.Fatalf("seed %d: reserve of %d bytes is held, yet: %v", seed, held, err)
		}
		r.store = s
		if end := s.Info(logID(0)).End; end != 50 {
			t.Fatal(end)
		}
	}
}

// hookFS lets a test act in the middle of a read.
type hookFS struct {
	data.FS
	mu     sync.Mutex
	onRead func(name string, off int64)
	after  func()
}

type hookFile struct {
	data.File
	fs   *hookFS
	name string
}

func (h *hookFS) Open(name string, flag int) (data.File, error) {
	f, err := h.FS.Open(name, flag)
	if err != nil {
		return nil, err
	}
	return &hookFile{f, h, name}, nil
}

func (f *hookFile) ReadAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	fn := f.fs.onRead
	f.fs.onRead = nil
	f.fs.mu.Unlock()
	if fn != nil {
		fn(f.name, off)
	}
	n, err := f.File.ReadAt(b, off)
	f.fs.mu.Lock()
	fn2 := f.fs.after
	f.fs.after = nil
	f.fs.mu.Unlock()
	if fn2 != nil {
		fn2()
	}
	return n, err
}

// A read that overlaps a cut and new appends skips nothing (P4).
func TestReadOverCut(t *testing.T) {
	var h *hookFS
	r := newRig(t, func(c *data.Config) {
		h = &hookFS{FS: c.FS}
		c.FS = h
		c.SegmentBytes = 1 << 20
		c.IndexInterval = 1 << 20
	})
	id := logID(0)
	for i := range 10 {
		r.put(id, fmt.Sprint("a", i), 1)
	}
	if err := r.store.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	h.onRead = func(name string, off int64) {
		if err := r.store.Truncate(id, 5); err != nil {
			t.Error(err)
		}
		for i := range 10 { // a new generation, other sizes
			a := &data.Append{Log: id, Version: 2, Batch: r.batch(fmt.Sprint("a longer one ", i), 1)}
			r.store.Commit([]*data.Append{a})
			if a.Err != nil {
				t.Error(a.Err)
			}
		}
		if err := r.store.Checkpoint(); err != nil {
			t.Error(err)
		}
	}
	h.mu.Unlock()
	res, _, err := r.store.Read(id, 5, 100, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Damaged) > 0 {
		t.Errorf("a read over a cut skips good records: next %d, damaged %v", res.Next, res.Damaged)
	}
	if d := r.store.Damaged(id); len(d) > 0 {
		t.Errorf("good records are called damaged: %v", d)
	}
}

// A read that overlaps a cut leaves no stale place behind (P4).
func TestReadOverCutRemembersNothing(t *testing.T) {
	var h *hookFS
	r := newRig(t, func(c *data.Config) {
		h = &hookFS{FS: c.FS}
		c.FS = h
		c.SegmentBytes = 1 << 20
		c.IndexInterval = 1 << 20
	})
	id := logID(0)
	for i := range 10 {
		r.put(id, fmt.Sprint("a", i), 1)
	}
	_ = r.store.Checkpoint()
	h.mu.Lock()
	h.after = func() { // the bytes are read, their place is not remembered yet
		if err := r.store.Truncate(id, 6); err != nil {
			t.Error(err)
		}
		for i := range 10 {
			a := &data.Append{Log: id, Version: 1, Batch: r.batch(fmt.Sprint("a longer one ", i), 1)}
			r.store.Commit([]*data.Append{a})
			if a.Err != nil {
				t.Error(a.Err)
			}
		}
		_ = r.store.Checkpoint()
	}
	h.mu.Unlock()
	res, _, err := r.store.Read(id, 0, 1<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res, _, err = r.store.Read(id, res.Next, 1, nil); err != nil {
		t.Fatal(err)
	}
	if len(res.Damaged) > 0 {
		t.Errorf("good records are skipped as damaged: %v", res.Damaged)
	}
}

// Retention judges idle logs without opening their files.
func TestRetentionOpensNothing(t *testing.T) {
	var opens atomic.Int64 // checkpoints open files in several goroutines
	r := newRig(t, func(c *data.Config) {
		c.MaxOpenFiles = 1
		c.Policy = func(uuid.UUID) (data.Policy, bool) { return data.Policy{RetentionAge: 24 * time.Hour}, true }
		c.FS = countFS{c.FS, &opens}
	})
	for i := range 30 {
		r.put(logID(i), "a", 1)
	}
	r.now = r.now.Add(20 * time.Hour)
	for i := range 30 {
		r.put(logID(i), "b", 1)
	}
	r.now = r.now.Add(5 * time.Hour)
	r.store.Retain()
	_ = r.store.Checkpoint()
	r.close()
	r.open()
	r.store.Retain()
	opens.Store(0)
	for range 5 {
		r.store.Retain()
	}
	if n := opens.Load(); n > 0 {
		t.Errorf("%d opens in 5 rounds of retention over 30 idle logs", n)
	}
}

type countFS struct {
	data.FS
	n *atomic.Int64
}

func (c countFS) Open(name string, flag int) (data.File, error) {
	c.n.Add(1)
	return c.FS.Open(name, flag)
}

// Where a journal file has no readable header at all, its rounds are looked for in the segments, and the loss is told. Killed
// in the middle of that it does the same again (P5).
func TestJournalHeaderLost(t *testing.T) {
	for kill := range 40 {
		r := newRig(t, nil)
		for i := range 5 {
			r.put(logID(0), fmt.Sprint("a", i), 2)
		}
		r.fs.Kill()
		for _, at := range []int64{9, 2048 + 9} {
			if err := r.fs.Flip("/data/journal/0.journal", at, 1); err != nil {
				t.Fatal(err)
			}
		}
		r.fs.CrashAt(1 + kill)
		_, _ = data.Open(r.cfg)
		r.fs.Kill()
		r.open()
		if info := r.store.Info(logID(0)); info.End != 10 {
			t.Fatalf("killed at step %d: end %d, want 10; report %+v", kill+1, info.End, r.store.Report())
		}
		if kill == 0 && r.store.Report().JournalDamaged == 0 {
			t.Error("the damage is not reported")
		}
		r.put(logID(0), "b", 1)
		r.fs.Crash()
		r.open()
		if info := r.store.Info(logID(0)); info.End != 11 {
			t.Fatalf("killed at step %d: then end %d, want 11", kill+1, info.End)
		}
	}
}

// A log can be cut within a range that is lost: what comes before stays, what lies between is still reported, and the
// next chunk gets its offset (P4, F21).
func TestTruncateInLostRange(t *testing.T) {
	for _, lost := range []string{"middle", "first segment"} {
		t.Run(lost, func(t *testing.T) {
			r := newRig(t, nil)
			id := logID(0)
			for range 3 { // segments
				r.put(id, strings.Repeat("a", 1000), 1)
				r.put(id, strings.Repeat("b", 1000), 2)
			}
			r.close()
			dir := "/data/logs/" + id.Topic.String() + "/0/"
			want := []data.OffsetRange{{From: 4, To: 5}}
			if lost == "middle" {
				if err := r.fs.Flip(dir+"00000000000000000003.log", 1700, 1); err != nil { // the chunk of offsets 4 and 5
					t.Fatal(err)
				}
			} else {
				if err := r.fs.Remove(dir + "00000000000000000000.log"); err != nil {
					t.Fatal(err)
				}
				want = []data.OffsetRange{{From: 0, To: 1}}
			}
			r.open()
			if err := r.store.Truncate(id, want[0].To); err != nil {
				t.Fatal(err)
			}
			if base := r.put(id, "new", 1); base != want[0].To {
				t.Fatalf("next chunk at %d, want %d", base, want[0].To)
			}
			for range 2 {
				values, damaged := readAll(t, r.store, id)
				if !slices.Equal(damaged, want) || values[want[0].To] != "new.0" || len(values) != int(want[0].From)+1 {
					t.Errorf("damaged %v, want %v; %d values", damaged, want, len(values))
				}
				r.fs.Crash()
				r.open()
			}
		})
	}
}

// Bytes is the sum over all logs, whatever happens to them.
func TestBytes(t *testing.T) {
	r := newRig(t, nil)
	check := func(when string) {
		t.Helper()
		var sum int64
		for i := range 16 {
			sum += r.store.Info(logID(i)).Bytes
		}
		if got := r.store.Bytes(); got != sum {
			t.Errorf("%s: %d bytes, the logs have %d", when, got, sum)
		}
	}
	for i := range 160 {
		r.put(logID(i%16), strings.Repeat("a", 500), 1)
	}
	check("after appends")
	r.fs.Kill()
	r.open()
	check("after a kill")
	r.close()
	r.open()
	check("after a clean stop")
	if err := errors.Join(r.store.Truncate(logID(0), 5), r.store.SetStart(logID(1), 9), r.store.DropTopic(logID(8).Topic)); err != nil {
		t.Fatal(err)
	}
	check("after a cut, a start and a drop")
	r.fs.Crash()
	r.open()
	check("after a power cut")
	if r.store.Bytes() == 0 {
		t.Error("no bytes")
	}
}

// Whoever makes the index of a segment again holds up no round.
func TestCommitWhileIndexIsMade(t *testing.T) {
	var h *hookFS
	r := newRig(t, func(c *data.Config) {
		h = &hookFS{FS: c.FS}
		c.FS = h
		c.SegmentBytes = 1 << 20
	})
	id := logID(0)
	for range 100 {
		r.put(id, strings.Repeat("a", 400), 1)
	}
	r.close()
	if err := r.fs.Remove("/data/logs/" + id.Topic.String() + "/0/00000000000000000000.index"); err != nil {
		t.Fatal(err)
	}
	r.open()
	h.mu.Lock()
	h.onRead = func(string, int64) {
		for range 50 {
			r.put(id, strings.Repeat("b", 400), 1)
		}
	}
	h.mu.Unlock()
	if _, _, err := r.store.Read(id, 70, 100, nil); err != nil {
		t.Fatal(err)
	}
	for at := topology.Offset(0); at < 150; at++ {
		res, _, err := r.store.Read(id, at, 1, nil)
		if err != nil || len(res.Chunks) != 1 || res.Chunks[0].Header.BaseOffset != at {
			t.Fatalf("read at %d: %+v, %v", at, res, err)
		}
	}
}
