package data_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// rig is a store over the twin of the disk, and the means to restart it.
type rig struct {
	t     testing.TB
	fs    *memfs.FS
	kv    *memfs.KV
	cfg   data.Config
	now   time.Time
	store *data.Store
}

func newRig(t testing.TB, edit func(*data.Config)) *rig {
	fsys := memfs.New(1, 1<<30)
	r := &rig{t: t, fs: fsys, kv: memfs.NewKV(fsys), now: time.UnixMilli(1_700_000_000_000)}
	r.cfg = data.Config{
		Dir: "/data", FS: fsys, KV: r.kv, Now: func() time.Time { return r.now },
		SegmentBytes: 4 << 10, IndexInterval: 512, JournalBytes: 64 << 10, ReserveBytes: 64 << 10,
	}
	if edit != nil {
		edit(&r.cfg)
	}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	s, err := data.Open(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.store = s
}

// close stops cleanly.
func (r *rig) close() {
	r.t.Helper()
	if err := r.store.Close(); err != nil {
		r.t.Fatal(err)
	}
}

var errNoSpace = fmt.Errorf("write: %w", syscall.ENOSPC)

func msTime(ms int64) time.Time { return time.UnixMilli(ms) }

func logID(n int) topology.LogID {
	return topology.LogID{Topic: uuid.UUID{15: byte(n / 8)}, Partition: topology.Partition(n % 8)}
}

// batch is a sealed batch of n records, told apart by tag.
func (r *rig) batch(tag string, n int) []byte {
	var b recordbatch.Builder
	b.Reset(r.now.UnixMilli())
	b.SetCompression(false)
	for i := range n {
		b.Append(&recordbatch.Record{Timestamp: 1, Key: []byte("k"), Value: fmt.Appendf(nil, "%s.%d", tag, i)})
	}
	return b.Seal(nil)
}

// put appends one chunk and wants it to succeed.
func (r *rig) put(log topology.LogID, tag string, n int) topology.Offset {
	r.t.Helper()
	a := &data.Append{Log: log, Version: 1, Batch: r.batch(tag, n)}
	r.store.Commit([]*data.Append{a})
	if a.Err != nil {
		r.t.Fatal(a.Err)
	}
	return a.Base
}

// readAll reads a log from its start to its end.
func readAll(t testing.TB, s *data.Store, log topology.LogID) (values map[topology.Offset]string, damaged []data.OffsetRange) {
	t.Helper()
	values = map[topology.Offset]string{}
	info := s.Info(log)
	var buf []byte
	var dec recordbatch.Decoder
	for at := info.Start; at < info.End; {
		res, b, err := s.Read(log, at, 1000, buf)
		buf = b
		if err != nil {
			t.Fatalf("read %s at %d: %v", log, at, err)
		}
		if res.Next <= at {
			t.Fatalf("read %s at %d of %+v: does not go on", log, at, info)
		}
		for _, c := range res.Chunks {
			records, err := dec.Decode(c.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, rec := range records {
				if old, twice := values[rec.Offset]; twice && rec.Offset >= at {
					t.Fatalf("%s: offset %d twice: %s and %s", log, rec.Offset, old, rec.Value)
				}
				values[rec.Offset] = string(rec.Value)
			}
		}
		damaged = append(damaged, res.Damaged...)
		at = res.Next
	}
	return values, damaged
}

func TestAppendReadReopen(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		t.Run(flush.String(), func(t *testing.T) {
			r := newRig(t, func(cfg *data.Config) { cfg.Flush = flush })
			want := map[topology.LogID]map[topology.Offset]string{}
			for i := range 300 {
				log := logID(i % 3)
				base := r.put(log, fmt.Sprintf("v%d", i), 1+i%4)
				if want[log] == nil {
					want[log] = map[topology.Offset]string{}
				}
				for k := range 1 + i%4 {
					want[log][base+topology.Offset(k)] = fmt.Sprintf("v%d.%d", i, k)
				}
			}
			check := func(when string) {
				t.Helper()
				for log, values := range want {
					got, damaged := readAll(t, r.store, log)
					if len(damaged) > 0 {
						t.Fatalf("%s: damaged %v", when, damaged)
					}
					if fmt.Sprint(got) != fmt.Sprint(values) {
						t.Fatalf("%s: %s:\n got %v\nwant %v", when, log, got, values)
					}
				}
			}
			check("after appending")
			r.close()
			r.open()
			if !r.store.Report().Clean {
				t.Error("not clean after Close")
			}
			check("after a clean stop")
			r.fs.Kill()
			r.open()
			check("after SIGKILL")
			if n := r.store.Info(logID(0)).Segments; n < 2 {
				t.Errorf("%d segments, want several", n)
			}
			if err := r.store.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			r.fs.Crash()
			r.open()
			check("after a power cut")
		})
	}
}

func TestReadErrors(t *testing.T) {
	r := newRig(t, nil)
	r.put(logID(0), "a", 10)
	for _, from := range []topology.Offset{-1, 11} {
		_, _, err := r.store.Read(logID(0), from, 100, nil)
		var out *data.OutOfRange
		if !errors.As(err, &out) || out.Start != 0 || out.End != 10 {
			t.Errorf("read at %d: %v", from, err)
		}
	}
	res, _, err := r.store.Read(logID(0), 10, 100, nil)
	if err != nil || len(res.Chunks) > 0 || res.Next != 10 {
		t.Errorf("read at the end: %+v, %v", res, err)
	}
	res, _, err = r.store.Read(logID(0), 7, 1, nil)
	if err != nil || len(res.Chunks) != 1 || res.Chunks[0].Header.BaseOffset != 0 || res.Next != 10 {
		t.Errorf("read within a chunk: %+v, %v", res, err)
	}
	if _, _, err := r.store.Read(logID(7), 1, 100, nil); err == nil {
		t.Error("no error for an offset of a log never written")
	}
}
