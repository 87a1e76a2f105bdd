package data_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// TestFullDisk goes through the life of a small disk (P5, section 5 of docs/design.md): produce fills it up to the
// reserve, somebody else fills the rest, positions go on, room comes back, produce goes on without a restart.
func TestFullDisk(t *testing.T) {
	const capacity = 4 << 20
	retain := false
	r := &rig{t: t, fs: memfs.New(1, capacity), now: time.UnixMilli(1_700_000_000_000)}
	r.kv = memfs.NewKV(r.fs)
	r.cfg = data.Config{
		Dir: "/data", FS: r.fs, KV: r.kv, Now: func() time.Time { return r.now },
		SegmentBytes: 64 << 10, JournalBytes: 64 << 10, ReserveBytes: 1 << 20,
		Policy: func(uuid.UUID) (data.Policy, bool) {
			return data.Policy{RetentionAge: time.Minute}, retain
		},
	}
	r.open()
	add := func(log topology.LogID, internal bool) error {
		a := &data.Append{Log: log, Version: 1, Internal: internal, Batch: r.batch("x", 40)}
		r.store.Commit([]*data.Append{a})
		return a.Err
	}
	stored := topology.Offset(0)
	var err error
	for err == nil {
		if err = add(logID(0), false); err == nil {
			stored += 40
		}
	}
	if !errors.Is(err, topology.ErrDiskFull) {
		t.Fatalf("produce on a full disk: %v", err)
	}
	room := r.store.Room()
	if !room.Full || room.Reserve != 512<<10 || room.Free < 500<<10 || room.Free > 530<<10 {
		t.Errorf("room %+v", room)
	}
	if info := r.store.Info(logID(0)); info.End != stored {
		t.Errorf("the log ends at %d, %d were acknowledged", info.End, stored)
	}
	for range 20 {
		if err := add(logID(1), true); err != nil {
			t.Fatalf("positions below the reserve: %v", err)
		}
	}
	// A mixed round: only produce is refused.
	mixed := []*data.Append{
		{Log: logID(0), Version: 1, Batch: r.batch("x", 1)}, {Log: logID(1), Version: 1, Internal: true, Batch: r.batch("x", 1)},
	}
	r.store.Commit(mixed)
	if !errors.Is(mixed[0].Err, topology.ErrDiskFull) || mixed[1].Err != nil {
		t.Errorf("mixed round: %v, %v", mixed[0].Err, mixed[1].Err)
	}

	// Somebody else fills the disk to the last byte. Each write of the database asks for room first.
	r.fs.SetForeign(r.store.Room().Free)
	if free := r.store.Room().Free; free != 0 {
		t.Fatalf("%d bytes free", free)
	}
	for i := range 50 {
		if err := r.store.EnsureRoom(4 << 10); err != nil {
			t.Fatalf("database, write %d: %v", i, err)
		}
		if err := add(logID(1), true); err != nil {
			t.Fatalf("positions from the reserve, %d: %v", i, err)
		}
	}
	if room := r.store.Room(); room.Reserve >= 512<<10 || room.Reserve == 0 || !room.Full {
		t.Errorf("room %+v", room)
	}
	if err := add(logID(0), false); !errors.Is(err, topology.ErrDiskFull) {
		t.Errorf("produce: %v", err)
	}
	if err := r.store.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	// A restart on the full disk works, and what was stored is there.
	r.fs.Crash()
	r.open()
	if info := r.store.Info(logID(0)); info.End != stored {
		t.Errorf("the log ends at %d, %d were acknowledged", info.End, stored)
	}

	// Retention makes room: produce goes on by itself.
	retain = true
	r.now = r.now.Add(time.Hour)
	if moved := r.store.Retain(); len(moved) != 2 {
		t.Errorf("retention moved %v", moved)
	}
	if err := add(logID(0), false); err != nil {
		t.Errorf("produce after retention: %v", err)
	}
	if room := r.store.Room(); room.Full || room.Reserve != 512<<10 {
		t.Errorf("room %+v", room)
	}
	if info := r.store.Info(logID(0)); info.Start != stored || info.End != stored+40 || info.Segments != 1 {
		t.Errorf("after retention: %+v, want a start at %d", info, stored)
	}
}

// TestReserveExhausted: when not even the reserve has room any more, writes are refused, nothing is lost.
func TestReserveExhausted(t *testing.T) {
	r := newRig(t, nil)
	r.put(logID(0), "a", 3)
	r.fs.SetForeign(1 << 30)
	for range 3 {
		a := &data.Append{Log: logID(0), Version: 1, Internal: true, Batch: r.batch("b", 2000)}
		r.store.Commit([]*data.Append{a})
		if !errors.Is(a.Err, topology.ErrDiskFull) {
			t.Fatalf("append: %v", a.Err)
		}
	}
	if err := r.store.EnsureRoom(1 << 20); !errors.Is(err, topology.ErrDiskFull) {
		t.Errorf("ensure room: %v", err)
	}
	r.fs.SetForeign(0)
	r.store.WatchRoom()
	if base := r.put(logID(0), "c", 1); base != 3 {
		t.Errorf("appended at %d", base)
	}
}

// TestNoSpaceMidway: a write that meets a full disk all the same is not written, and the log goes on.
func TestNoSpaceMidway(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		r := newRig(t, func(cfg *data.Config) { cfg.Flush = flush })
		r.put(logID(0), "a", 3)
		r.put(logID(1), "a", 3)
		r.fs.Fail(func(op memfs.Op) error {
			if op.Kind == memfs.OpWrite && op.Name == "/data/logs/"+logID(0).String()+"/00000000000000000000.log" {
				return errNoSpace
			}
			return nil
		})
		round := []*data.Append{{Log: logID(0), Version: 1, Batch: r.batch("b", 5)}, {Log: logID(1), Version: 1, Batch: r.batch("b", 5)}}
		r.store.Commit(round)
		if !errors.Is(round[0].Err, topology.ErrDiskFull) || round[1].Err != nil {
			t.Errorf("%s: %v, %v", flush, round[0].Err, round[1].Err)
		}
		r.fs.Fail(nil)
		if base := r.put(logID(0), "c", 1); base != 3 {
			t.Errorf("%s: appended at %d", flush, base)
		}
		values, damaged := readAll(t, r.store, logID(0))
		if fmt.Sprint(values) != "map[0:a.0 1:a.1 2:a.2 3:c.0]" || len(damaged) > 0 {
			t.Errorf("%s: %v, damaged %v", flush, values, damaged)
		}
	}
}
