package data_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// TestRetention keeps logs to an age and to a size, by the append times of chunks.
func TestRetention(t *testing.T) {
	policies := map[uuid.UUID]data.Policy{
		logID(0).Topic:  {RetentionAge: time.Hour},
		logID(8).Topic:  {RetentionBytes: 100 << 10},
		logID(16).Topic: {RetentionAge: time.Hour, RetentionBytes: 1 << 40},
	}
	r := newRig(t, func(cfg *data.Config) {
		cfg.SegmentBytes = 16 << 10
		cfg.Policy = func(id uuid.UUID) (data.Policy, bool) { p, ok := policies[id]; return p, ok }
	})
	logs := []topology.LogID{logID(0), logID(8), logID(16), logID(24)}
	began := r.now
	for range 240 { // two hours, 1 KiB and more each half minute
		r.now = r.now.Add(30 * time.Second)
		for _, log := range logs {
			r.put(log, strings.Repeat("x", 100), 10)
		}
		r.store.Retain()
		if r.now.Sub(began)%(20*time.Minute) == 0 {
			r.close()
			r.open()
		}
	}
	for i, log := range logs {
		info := r.store.Info(log)
		age, kept := r.now.Sub(info.Oldest), info.End-info.Start
		t.Logf("%v: %d records of %d, %d bytes in %d segments, oldest %v ago", log, kept, info.End, info.Bytes, info.Segments, age)
		switch i {
		case 0, 2: // a quarter more than an hour, as whole segments go
			if age < time.Hour-time.Minute || age > 76*time.Minute {
				t.Errorf("%s: the oldest chunk is %v old", log, age)
			}
		case 1:
			if info.Bytes < 100<<10 || info.Bytes > 125<<10 {
				t.Errorf("%s: %d bytes kept", log, info.Bytes)
			}
		case 3:
			if info.Start != 0 {
				t.Errorf("%s: start %d without a policy", log, info.Start)
			}
		}
		if !info.Newest.Equal(r.now) {
			t.Errorf("%s: newest %v", log, info.Newest)
		}
		if values, damaged := readAll(t, r.store, log); len(values) != int(kept) || len(damaged) > 0 {
			t.Errorf("%s: %d records, damaged %v", log, len(values), damaged)
		}
		var out *data.OutOfRange
		if _, _, err := r.store.Read(log, 0, 1, nil); i < 3 && (!errors.As(err, &out) || out.Start != info.Start) {
			t.Errorf("%s: read below the start: %v", log, err)
		}
	}
	// All expires: the logs are empty, their ends stay, and they go on.
	r.now = r.now.Add(3 * time.Hour)
	r.store.Retain()
	for _, log := range []topology.LogID{logID(0), logID(16)} {
		info := r.store.Info(log)
		if info.Start != 2400 || info.End != 2400 || info.Bytes != 0 || info.Segments != 0 {
			t.Errorf("%s: %+v after all has expired", log, info)
		}
	}
	r.fs.Crash()
	r.open()
	if base := r.put(logID(0), "on", 1); base != 2400 {
		t.Errorf("next append at %d", base)
	}
}

// TestOffsetForTime compares with a search through all chunks, also where the clock goes back.
func TestOffsetForTime(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 2000; cfg.IndexInterval = 300 })
	rng := rand.New(rand.NewPCG(1, 2))
	type chunk struct {
		base topology.Offset
		at   time.Time
	}
	var chunks []chunk
	for i := range 120 {
		r.now = r.now.Add(time.Duration(rng.IntN(2000)-300) * time.Millisecond)
		chunks = append(chunks, chunk{r.put(logID(0), fmt.Sprint(i), 1+rng.IntN(3)), r.now})
	}
	check := func() {
		t.Helper()
		info := r.store.Info(logID(0))
		for range 300 {
			at := chunks[0].at.Add(time.Duration(rng.Int64N(int64(r.now.Sub(chunks[0].at)+4*time.Second))) - 2*time.Second)
			want := info.End
			for _, c := range chunks {
				if !c.at.Before(at) && (c.base >= info.Start) {
					want = c.base
					break
				}
			}
			got, err := r.store.OffsetForTime(logID(0), at)
			if err != nil || got != want {
				t.Fatalf("time %v: %d, %v, want %d", at, got, err, want)
			}
		}
	}
	check()
	r.close()
	r.open()
	check()
	must(t, r.store.SetStart(logID(0), chunks[50].base))
	check()
	if got, err := r.store.OffsetForTime(logID(9), r.now); got != 0 || err != nil {
		t.Errorf("a log never written: %d, %v", got, err)
	}
}

func TestTruncateErrors(t *testing.T) {
	r := newRig(t, nil)
	log := logID(0)
	for i := range 4 {
		r.put(log, fmt.Sprint(i), 3)
	}
	must(t, r.store.SetStart(log, 4))
	if err := r.store.Truncate(log, 8); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("within a chunk: %v", err)
	}
	var out *data.OutOfRange
	if err := r.store.Truncate(log, 3); !errors.As(err, &out) {
		t.Errorf("below the start: %v", err)
	}
	if err := r.store.SetStart(log, 13); !errors.As(err, &out) || out.End != 12 {
		t.Errorf("start beyond the end: %v", err)
	}
	must(t, r.store.Truncate(log, 12))
	must(t, r.store.Truncate(log, 99))
	must(t, r.store.Truncate(logID(5), 0))
	must(t, r.store.SetStart(log, 2))
	if info := r.store.Info(log); info.Start != 4 || info.End != 12 {
		t.Errorf("%+v", info)
	}
	r.now = r.now.Add(time.Hour)
	r.put(log, "x", 1)
	must(t, r.store.Truncate(log, 9))
	if info := r.store.Info(log); info.End != 9 || info.Newest.Equal(r.now) {
		t.Errorf("%+v", info)
	}
}

// TestDropTopic frees the space at once; a late append does not revive the topic (T3), nor does a restart.
func TestDropTopic(t *testing.T) {
	r := newRig(t, nil)
	r.put(logID(0), "a", 100)
	r.put(logID(3), "a", 100)
	r.put(logID(8), "b", 1)
	topic := logID(0).Topic
	must(t, r.store.DropTopic(topic))
	for _, name := range r.fs.Files() {
		if strings.Contains(name, topic.String()) {
			t.Errorf("%s is still there", name)
		}
	}
	for _, restart := range []func(){func() {}, r.fs.Kill, r.fs.Crash} {
		restart()
		if r.store.Info(logID(0)) != (data.LogInfo{}) || len(r.store.TopicInfo(topic)) > 0 || slices.Contains(r.store.Topics(), topic) {
			t.Error("the topic is still known")
		}
		r.open()
	}
	r.store = nil
	r.open()
	must(t, r.store.DropTopic(topic)) // again
	must(t, r.store.DropTopic(uuid.New()))
	r.put(logID(8), "b", 1)
	must(t, r.store.DropTopic(logID(8).Topic))
	a := &data.Append{Log: logID(8), Version: 1, Batch: r.batch("late", 1)}
	r.store.Commit([]*data.Append{a})
	if !errors.Is(a.Err, topology.ErrUnknownTopic) {
		t.Errorf("late append: %v", a.Err)
	}
}

// TestRefusedAppends: what is refused leaves no trace, and tells why.
func TestRefusedAppends(t *testing.T) {
	r := newRig(t, nil)
	good := r.batch("a", 2)
	broken := append([]byte(nil), good...)
	broken[len(broken)-1] ^= 1
	r.put(logID(1), "x", 1)
	v2 := &data.Append{Log: logID(1), Version: 2, Batch: r.batch("x", 1)}
	round := []*data.Append{
		{Log: logID(0), Version: 1, Batch: broken},
		{Log: logID(0), Version: 1, Batch: append(append([]byte(nil), good...), 0)},
		{Log: logID(0), Version: 1, Batch: good[:20]},
		v2,
		{Log: logID(2), Version: 5, Batch: good},
	}
	r.store.Commit(round)
	for i, want := range []error{recordbatch.ErrCorrupt, recordbatch.ErrCorrupt, recordbatch.ErrShort, nil, nil} {
		if !errors.Is(round[i].Err, want) {
			t.Errorf("append %d: %v, want %v", i, round[i].Err, want)
		}
	}
	old := &data.Append{Log: logID(1), Version: 1, Batch: r.batch("old", 1)}
	r.store.Commit([]*data.Append{old})
	if !errors.Is(old.Err, topology.ErrUnavailable) {
		t.Errorf("append at a version that has passed: %v", old.Err)
	}
	if v := r.store.HighestVersion(); v != 5 {
		t.Errorf("highest version %d", v)
	}
	r.close()
	a := &data.Append{Log: logID(1), Version: 2, Batch: r.batch("x", 1)}
	r.store.Commit([]*data.Append{a})
	if !errors.Is(a.Err, topology.ErrUnavailable) {
		t.Errorf("append to a closed store: %v", a.Err)
	}
}

// TestOnAdvance hears of each round once for each log, when the records can be read.
func TestOnAdvance(t *testing.T) {
	r := newRig(t, nil)
	heard := map[topology.LogID][]topology.Offset{}
	r.store.OnAdvance(func(log topology.LogID, hw topology.Offset) {
		heard[log] = append(heard[log], hw)
		if res, _, err := r.store.Read(log, hw-1, 1, nil); err != nil || len(res.Chunks) != 1 {
			t.Errorf("%s at %d: %+v, %v", log, hw-1, res, err)
		}
	})
	var round []*data.Append
	for _, log := range []int{0, 0, 1, 0} {
		round = append(round, &data.Append{Log: logID(log), Version: 1, Batch: r.batch("x", 2)})
	}
	r.store.Commit(round)
	if got := fmt.Sprint(heard[logID(0)], heard[logID(1)]); got != "[4 6] [2]" {
		t.Errorf("heard %s", got)
	}
}

// TestFewFiles: many logs in use with few files open.
func TestFewFiles(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.MaxOpenFiles = 3; cfg.SegmentBytes = 1500; cfg.IndexInterval = 200 })
	want := map[int]map[topology.Offset]string{}
	for i := range 200 {
		log := i % 16
		if want[log] == nil {
			want[log] = map[topology.Offset]string{}
		}
		base := r.put(logID(log), fmt.Sprint("v", i), 1)
		want[log][base] = fmt.Sprintf("v%d.0", i)
		if n := r.store.OpenFiles(); n > 3 {
			t.Fatalf("%d files open", n)
		}
	}
	for log, values := range want {
		checkDamage(t, r.store, logID(log), values)
	}
	r.fs.Kill()
	r.open()
	for log, values := range want {
		checkDamage(t, r.store, logID(log), values)
	}
}

// TestMetrics registers all metrics once, and counts damage and failures.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRig(t, func(cfg *data.Config) { cfg.Registerer = reg })
	r.put(logID(0), "a", 3)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	expect := "# HELP skein_log_appended_records_total Records appended to logs.\n# TYPE skein_log_appended_records_total counter\nskein_log_appended_records_total 3\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(expect), "skein_log_appended_records_total"); err != nil {
		t.Error(err)
	}
	if _, err := data.Open(data.Config{Dir: "/other", FS: r.fs, KV: memfs.NewKV(r.fs), Registerer: reg}); err == nil {
		t.Error("registered twice without an error")
	}
}

// TestConcurrent lets rounds, reads, checkpoints, retention, starts, cuts and drops go on at the same time; for the race
// detector, and for reads that must always see whole chunks in order.
func TestConcurrent(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		t.Run(flush.String(), func(t *testing.T) {
			r := newRig(t, func(cfg *data.Config) {
				cfg.Flush = flush
				cfg.FlushInterval = time.Millisecond
				cfg.MaxOpenFiles = 4
				cfg.Policy = func(id uuid.UUID) (data.Policy, bool) {
					return data.Policy{RetentionBytes: 20 << 10}, id == logID(0).Topic
				}
			})
			ctx, stop := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			loop := func(fn func(rng *rand.Rand)) {
				seed := rand.Uint64()
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(seed, 0))
					for ctx.Err() == nil {
						fn(rng)
					}
				})
			}
			wg.Go(func() { _ = r.store.Run(ctx) })
			var total atomic.Int64
			loop(func(rng *rand.Rand) {
				var round []*data.Append
				for range 1 + rng.IntN(8) {
					round = append(round, &data.Append{Log: logID(rng.IntN(12)), Version: 1, Batch: r.batch("x", 1+rng.IntN(5))})
				}
				r.store.Commit(round)
				for _, a := range round {
					if a.Err != nil {
						t.Error(a.Err)
					}
				}
				total.Add(int64(len(round)))
			})
			for range 2 {
				loop(func(rng *rand.Rand) {
					log := logID(rng.IntN(12))
					info := r.store.Info(log)
					from := info.Start
					if n := int64(info.End - info.Start); n > 0 {
						from += topology.Offset(rng.Int64N(n))
					}
					res, _, err := r.store.Read(log, from, rng.IntN(2000), nil)
					var out *data.OutOfRange
					switch {
					case errors.As(err, &out):
					case err != nil || len(res.Damaged) > 0:
						t.Errorf("read %s at %d of %+v: %+v, %v", log, from, info, res, err)
						stop()
					default:
						for _, c := range res.Chunks {
							if _, err := recordbatch.Check(c.Bytes); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			loop(func(rng *rand.Rand) {
				log := logID(rng.IntN(12))
				switch rng.IntN(6) {
				case 0:
					must(t, r.store.Checkpoint())
				case 1:
					r.store.Retain()
				case 2:
					_ = r.store.SetStart(log, r.store.Info(log).End/2)
				case 3:
					if _, err := r.store.OffsetForTime(log, r.now); err != nil {
						t.Error(err)
					}
				case 4:
					r.store.TopicInfo(log.Topic)
				case 5:
					must(t, r.store.DropTopic(uuid.New()))
				}
			})
			for total.Load() < 1500 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			stop()
			wg.Wait()
			r.close()
			r.open()
			for n := range 12 {
				if _, damaged := readAll(t, r.store, logID(n)); len(damaged) > 0 {
					t.Errorf("damaged %v", damaged)
				}
			}
		})
	}
}

// TestRunHeals lets the journal fail and become good again: Run repairs by itself (P5).
func TestRunHeals(t *testing.T) {
	r := newRig(t, nil)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.store.Run(ctx) }()
	var bad atomic.Bool
	r.fs.Fail(func(op memfs.Op) error {
		if bad.Load() && op.Kind == memfs.OpSync {
			return errors.New("bad disk")
		}
		return nil
	})
	r.put(logID(0), "a", 1)
	bad.Store(true)
	a := &data.Append{Log: logID(0), Version: 1, Batch: r.batch("lost", 1)}
	r.store.Commit([]*data.Append{a})
	if !errors.Is(a.Err, topology.ErrOutcomeUnknown) {
		t.Fatalf("append while the journal fails: %v", a.Err)
	}
	b := &data.Append{Log: logID(1), Version: 1, Batch: r.batch("b", 1)}
	r.store.Commit([]*data.Append{b})
	if !errors.Is(b.Err, topology.ErrUnavailable) {
		t.Fatalf("append after it: %v", b.Err)
	}
	bad.Store(false)
	for deadline := time.Now().Add(10 * time.Second); ; {
		r.store.Commit([]*data.Append{b})
		if b.Err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("not healed: %v", b.Err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if base := r.put(logID(0), "c", 1); base != 1 {
		t.Errorf("the round of unknown outcome is still there: next at %d", base)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	r.fs.Crash()
	r.open()
	values, damaged := readAll(t, r.store, logID(0))
	if fmt.Sprint(values, damaged) != "map[0:a.0 1:c.0] []" {
		t.Errorf("%v, damaged %v", values, damaged)
	}
}

// TestManyDirtySegments: beyond some number of segments a checkpoint flushes the whole file system; should that fail, all
// of them are written again.
func TestManyDirtySegments(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.JournalBytes = 256 << 10; cfg.MaxOpenFiles = 20 })
	for round := range 2 {
		for i := range 300 {
			r.put(logID(i), fmt.Sprint("v", round), 1)
		}
	}
	r.fs.Fail(func(op memfs.Op) error {
		if op.Kind == memfs.OpSyncAll {
			return errors.New("bad disk")
		}
		return nil
	})
	if err := r.store.Checkpoint(); err == nil {
		t.Fatal("no error")
	}
	r.fs.Fail(nil)
	r.fs.Evict()
	if !r.store.Repair() {
		t.Fatal("not repaired")
	}
	must(t, r.store.Checkpoint())
	for i := range 300 {
		r.put(logID(i), "v2", 1)
	}
	must(t, r.store.Checkpoint())
	r.fs.Crash()
	r.open()
	for i := range 300 {
		values, damaged := readAll(t, r.store, logID(i))
		if fmt.Sprint(values, damaged) != "map[0:v0.0 1:v1.0 2:v2.0] []" {
			t.Fatalf("log %d: %v, damaged %v", i, values, damaged)
		}
	}
	if rep := r.store.Report(); rep.JournalRecords != 0 {
		t.Errorf("%d rounds were replayed after a checkpoint", rep.JournalRecords)
	}
}

// TestBadFile: a segment file that cannot be written or flushed any more stops its log for a moment and nothing else. The
// bytes that are not durable go to another file, also where recovery meets the bad one.
func TestBadFile(t *testing.T) {
	for _, kind := range []memfs.Kind{memfs.OpWrite, memfs.OpSync} {
		for _, durable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/durable=%v", kind, durable), func(t *testing.T) {
				r := newRig(t, nil)
				bad := "/data/logs/" + logID(0).String() + "/00000000000000000000.log"
				want := map[topology.Offset]string{}
				put := func(tag string) error {
					a := &data.Append{Log: logID(0), Version: 1, Batch: r.batch(tag, 2)}
					r.store.Commit([]*data.Append{a})
					if a.Err == nil {
						want[a.Base], want[a.Base+1] = tag+".0", tag+".1"
					}
					return a.Err
				}
				must(t, put("a"))
				if durable {
					must(t, r.store.Checkpoint())
				}
				must(t, put("b"))
				must(t, put("c"))
				fail := func(op memfs.Op) error {
					switch {
					case op.Name != bad:
					case op.Kind == memfs.OpRemove || op.Kind == memfs.OpRename:
						bad = "" // a new file has other blocks
					case op.Kind == kind:
						return syscall.EIO
					}
					return nil
				}
				r.fs.Fail(fail)
				// A restart on the bad disk.
				r.fs.Kill()
				r.open()
				checkDamage(t, r.store, logID(0), want)
				for i := range 12 {
					_ = put(fmt.Sprint("d", i))
					_ = r.store.Checkpoint()
					r.put(logID(1), "other", 1)
					r.store.Repair()
					checkDamage(t, r.store, logID(0), want)
				}
				must(t, put("e"))
				must(t, r.store.Checkpoint())
				for _, restart := range []func(){r.fs.Kill, r.fs.Crash} {
					restart()
					r.open()
					checkDamage(t, r.store, logID(0), want)
					must(t, put("f"))
				}
				if len(want) < 12 {
					t.Errorf("%d records", len(want))
				}
			})
		}
	}
}
