package data_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// place is where a chunk lies on disk.
type place struct {
	file       string
	pos, size  int64
	base, next topology.Offset
}

// places finds all chunks of a log in its files.
func (r *rig) places(log topology.LogID) []place {
	r.t.Helper()
	var list []place
	for _, name := range r.fs.Files() {
		if !strings.HasPrefix(name, "/data/logs/"+log.String()+"/") || !strings.HasSuffix(name, ".log") {
			continue
		}
		f, err := r.fs.Open(name, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		size, _ := f.Size()
		b := make([]byte, size)
		_, _ = f.ReadAt(b, 0)
		for pos := int64(0); pos < size; {
			h, err := recordbatch.Check(b[pos:])
			if err != nil {
				r.t.Fatalf("%s at %d: %v", name, pos, err)
			}
			list = append(list, place{name, pos, int64(h.Size()), h.BaseOffset, h.Next()})
			pos += int64(h.Size())
		}
	}
	return list
}

// readAnywhere reads a log from each offset, and from the start, and wants exactly the ranges of bad to be missing.
func checkDamage(t *testing.T, s *data.Store, log topology.LogID, want map[topology.Offset]string, bad ...data.OffsetRange) {
	t.Helper()
	left := map[topology.Offset]string{}
	for o, v := range want {
		left[o] = v
	}
	for _, d := range bad {
		for o := d.From; o < d.To; o++ {
			delete(left, o)
		}
	}
	got, damaged := readAll(t, s, log)
	if !reflect.DeepEqual(got, left) {
		t.Fatalf("served %d records, want %d, damaged %v", len(got), len(left), damaged)
	}
	if fmt.Sprint(damaged) != fmt.Sprint(bad) || fmt.Sprint(s.Damaged(log)) != fmt.Sprint(bad) {
		t.Fatalf("damaged %v, noted %v, want %v", damaged, s.Damaged(log), bad)
	}
}

// TestFlippedByte flips a bit of each byte of each chunk of a log, in turn, and wants exactly that chunk to be missing
// and reported, and all others served (section 5 of docs/design.md): with and without an index, in sealed segments and
// in the last one, before and after a restart.
func TestFlippedByte(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes, cfg.IndexInterval = 700, 300 })
	log := logID(0)
	want := map[topology.Offset]string{}
	for i := range 12 {
		n := 1 + i%3
		base := r.put(log, fmt.Sprintf("value-%d", i), n)
		for k := range n {
			want[base+topology.Offset(k)] = fmt.Sprintf("value-%d.%d", i, k)
		}
	}
	r.close()
	list := r.places(log)
	if len(list) != 12 || list[0].file == list[11].file {
		t.Fatalf("chunks %+v", list)
	}
	flip := func(p place, at int64, mask byte) {
		if err := r.fs.Flip(p.file, p.pos+at, mask); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range list {
		for at := range p.size {
			mask := byte(1) << (at % 8)
			flip(p, at, mask)
			r.open()
			checkDamage(t, r.store, log, want, data.OffsetRange{From: p.base, To: p.next})
			// A read that begins behind the damage does not see it; one within skips it.
			res, _, err := r.store.Read(log, p.next-1, 1, nil)
			switch {
			case err != nil:
				t.Fatalf("chunk %d byte %d: %v", i, at, err)
			case len(res.Damaged) != 1 || res.Damaged[0] != (data.OffsetRange{From: p.next - 1, To: p.next}):
				t.Fatalf("chunk %d byte %d: a read within skips %v", i, at, res.Damaged)
			}
			r.close()
			flip(p, at, mask)
		}
	}
	r.open()
	checkDamage(t, r.store, log, want)
}

// TestDamagedPair damages two chunks next to each other, and the first with the last.
func TestDamagedPair(t *testing.T) {
	for _, byteAt := range []int64{3, 9, 11, 16, 20, 24, 30, 59, 70} {
		for _, pair := range [][2]int{{2, 3}, {0, 1}, {0, 9}, {8, 9}, {4, 6}} {
			r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 1 << 20; cfg.IndexInterval = 400 })
			want := map[topology.Offset]string{}
			for i := range 10 {
				base := r.put(logID(0), fmt.Sprint("v", i), 2)
				want[base], want[base+1] = fmt.Sprintf("v%d.0", i), fmt.Sprintf("v%d.1", i)
			}
			r.close()
			list := r.places(logID(0))
			var bad []data.OffsetRange
			for _, i := range pair {
				if err := r.fs.Flip(list[i].file, list[i].pos+byteAt, 0x10); err != nil {
					t.Fatal(err)
				}
				if n := len(bad); n > 0 && bad[n-1].To == list[i].base {
					bad[n-1].To = list[i].next
				} else {
					bad = append(bad, data.OffsetRange{From: list[i].base, To: list[i].next})
				}
			}
			r.open()
			_, _ = readAll(t, r.store, logID(0))
			if got := r.store.Damaged(logID(0)); fmt.Sprint(got) != fmt.Sprint(bad) {
				t.Errorf("byte %d of chunks %v: damaged %v, want %v", byteAt, pair, got, bad)
			}
		}
	}
}

// TestFakeChunk puts a valid chunk that fits into a record of another one, damages the length of the outer, and wants the
// inner not to be served.
func TestFakeChunk(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 1 << 20 })
	log := logID(0)
	r.put(log, "before", 1)
	fake := r.batch("fake", 1)
	recordbatch.SetPosition(fake, 3, 1)
	var b recordbatch.Builder
	b.Reset(r.now.UnixMilli())
	b.SetCompression(false)
	for range 3 {
		b.Append(&recordbatch.Record{Value: fake, Headers: []recordbatch.RecordHeader{{Key: "h", Value: fake}}})
	}
	a := &data.Append{Log: log, Version: 1, Batch: b.Seal(nil)}
	r.store.Commit([]*data.Append{a})
	r.put(log, "after", 1)
	r.close()
	p := r.places(log)[1]
	for _, at := range []int64{0, 7, 8, 9, 10, 11, 15, 16, 20, 25, 26, 59, 60, 70} {
		_ = r.fs.Flip(p.file, p.pos+at, 0x01)
		r.open()
		values, damaged := readAll(t, r.store, log)
		if fmt.Sprint(values) != "map[0:before.0 4:after.0]" || fmt.Sprint(damaged) != "[{1 4}]" {
			t.Errorf("byte %d: served %v, damaged %v", at, values, damaged)
		}
		r.close()
		_ = r.fs.Flip(p.file, p.pos+at, 0x01)
	}
}

// TestSwappedChunks swaps two chunks of the same size: both are good in themselves and in the wrong place.
func TestSwappedChunks(t *testing.T) {
	r := newRig(t, nil)
	log := logID(0)
	for i := range 5 {
		r.put(log, fmt.Sprint("v", i), 1)
	}
	r.close()
	list := r.places(log)
	f, err := r.fs.Open(list[1].file, 2)
	if err != nil {
		t.Fatal(err)
	}
	one, three := make([]byte, list[1].size), make([]byte, list[3].size)
	_, _ = f.ReadAt(one, list[1].pos)
	_, _ = f.ReadAt(three, list[3].pos)
	_ = f.WriteV([][]byte{three}, list[1].pos)
	_ = f.WriteV([][]byte{one}, list[3].pos)
	r.open()
	values, _ := readAll(t, r.store, log)
	if fmt.Sprint(values) != "map[0:v0.0 2:v2.0 4:v4.0]" {
		t.Errorf("served %v", values)
	}
	if got := fmt.Sprint(r.store.Damaged(log)); got != "[{1 2} {3 4}]" {
		t.Errorf("damaged %v", got)
	}
}

// TestShortenedSegment: a log that opens shorter than noted is damaged, not torn (F21). Its end does not move, and the
// next append goes there.
func TestShortenedSegment(t *testing.T) {
	for _, cut := range []int64{1, 50, 200, 1 << 20} {
		r := newRig(t, nil)
		log := logID(0)
		for i := range 5 {
			r.put(log, fmt.Sprint("v", i), 1)
		}
		r.close()
		list := r.places(log)
		f, err := r.fs.Open(list[4].file, 2)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		size = max(0, size-cut)
		if err := errors.Join(f.Truncate(size), f.Sync()); err != nil {
			t.Fatal(err)
		}
		var lost topology.Offset
		for _, p := range list {
			if p.pos+p.size > size {
				lost++
			}
		}
		r.open()
		if base := r.put(log, "next", 1); base != 5 {
			t.Fatalf("next append at %d", base)
		}
		check := func(when string) {
			t.Helper()
			values, _ := readAll(t, r.store, log)
			if len(values) != int(5-lost)+1 || values[5] != "next.0" {
				t.Errorf("cut %d, %s: served %v", cut, when, values)
			}
			if got, want := fmt.Sprint(r.store.Damaged(log)), fmt.Sprintf("[{%d 5}]", 5-lost); got != want {
				t.Errorf("cut %d, %s: damaged %v, want %v", cut, when, got, want)
			}
		}
		check("at once")
		r.close()
		r.open()
		check("after a restart")
		r.fs.Crash()
		r.open()
		check("after a power cut")
	}
}

// TestMissingSegment removes whole files.
func TestMissingSegment(t *testing.T) {
	for _, which := range []int{0, 1, 2} {
		r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 300 })
		log := logID(0)
		for i := range 9 {
			r.put(log, fmt.Sprint("v", i), 1)
		}
		r.close()
		list := r.places(log)
		var files []string
		for _, p := range list {
			if len(files) == 0 || files[len(files)-1] != p.file {
				files = append(files, p.file)
			}
		}
		if len(files) != 3 {
			t.Fatalf("%d segments", len(files))
		}
		if err := r.fs.Remove(files[which]); err != nil {
			t.Fatal(err)
		}
		r.open()
		if base := r.put(log, "next", 1); base != 9 {
			t.Fatalf("next append at %d", base)
		}
		values, _ := readAll(t, r.store, log)
		var want data.OffsetRange
		want.From = -1
		for _, p := range list {
			if p.file == files[which] {
				if want.From < 0 {
					want.From = p.base
				}
				want.To = p.next
			}
		}
		if len(values) != 10-int(want.To-want.From) {
			t.Errorf("without segment %d: served %v", which, values)
		}
		if got := r.store.Damaged(log); fmt.Sprint(got) != fmt.Sprint([]data.OffsetRange{want}) {
			t.Errorf("without segment %d: damaged %v, want %v", which, got, want)
		}
	}
}

// TestDamagedIndex flips each byte of an index, cuts it, and puts that of another segment in its place: reads and times
// are as before, and nothing is called damaged.
func TestDamagedIndex(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 3000; cfg.IndexInterval = 300 })
	log := logID(0)
	want := map[topology.Offset]string{}
	times := map[topology.Offset]int64{}
	for i := range 60 {
		r.now = r.now.Add(1e9)
		base := r.put(log, fmt.Sprint("v", i), 1)
		want[base], times[base] = fmt.Sprintf("v%d.0", i), r.now.UnixMilli()
	}
	r.close()
	check := func(what string) {
		t.Helper()
		r.open()
		for o := range want {
			res, _, err := r.store.Read(log, o, 1, nil)
			if err != nil || len(res.Chunks) != 1 || res.Chunks[0].Header.BaseOffset != o {
				t.Fatalf("%s: read at %d: %+v, %v", what, o, res, err)
			}
			if got, err := r.store.OffsetForTime(log, msTime(times[o])); err != nil || got != o {
				t.Fatalf("%s: time of %d gives %d, %v", what, o, got, err)
			}
		}
		checkDamage(t, r.store, log, want)
		r.close()
	}
	check("as it is")
	var indexes []string
	for _, name := range r.fs.Files() {
		if strings.HasSuffix(name, ".index") {
			indexes = append(indexes, name)
		}
	}
	if len(indexes) < 2 {
		t.Fatalf("indexes %v", indexes)
	}
	swap := func(name string, b []byte) {
		f, err := r.fs.Open(name, 2)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Truncate(0)
		_ = f.WriteV([][]byte{b}, 0)
	}
	content := func(name string) []byte {
		f, err := r.fs.Open(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := f.Size()
		b := make([]byte, size)
		_, _ = f.ReadAt(b, 0)
		return b
	}
	good := content(indexes[0])
	for at := range good {
		b := slices.Clone(good)
		b[at] ^= 4
		swap(indexes[0], b)
		check(fmt.Sprint("byte ", at))
	}
	b := content(indexes[1])
	swap(indexes[0], b)
	check("index of another segment")
	swap(indexes[0], b[:20])
	check("index cut short")
	// Entries that are good in themselves and point to nowhere.
	swap(indexes[0], data.IndexFile(0, [][3]int64{{3, 333, 0}, {9, 999, 0}}))
	check("index that lies")
}

func TestLostNotes(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 700; cfg.IndexInterval = 300 })
	want := map[topology.Offset]string{}
	version := topology.Version(1)
	for i := range 30 {
		if i%7 == 0 {
			version++
		}
		a := &data.Append{Log: logID(1), Version: version, Batch: r.batch(fmt.Sprint("v", i), 1)}
		r.store.Commit([]*data.Append{a})
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		want[a.Base] = fmt.Sprintf("v%d.0", i)
	}
	for _, how := range []string{"clean", "kill", "crash"} {
		switch how {
		case "clean":
			r.close()
		case "kill":
			a := &data.Append{Log: logID(1), Version: version, Batch: r.batch("x", 1)}
			r.store.Commit([]*data.Append{a})
			r.fs.Kill()
			want[30] = "x.0"
		default:
			if err := r.store.Checkpoint(); err != nil {
				t.Fatal(err)
			}
			r.fs.Crash()
		}
		r.kv.Wipe()
		r.open()
		if rep := r.store.Report(); !rep.NotesLost {
			t.Errorf("%s: report %+v", how, rep)
		}
		checkDamage(t, r.store, logID(1), want)
		if v := r.store.Info(logID(1)).Version; v != version {
			t.Errorf("%s: version %d, want %d", how, v, version)
		}
	}
}

// TestUnreadableBlock: a block that the disk cannot read costs the chunks in it, once it has failed some times.
func TestUnreadableBlock(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 1 << 20; cfg.IndexInterval = 2000 })
	log := logID(0)
	want := map[topology.Offset]string{}
	for i := range 200 {
		want[r.put(log, fmt.Sprint("v", i), 1)] = fmt.Sprintf("v%d.0", i)
	}
	r.close()
	r.open()
	const from, to = 8192, 8192 + 4096
	list := r.places(log)
	r.fs.Fail(func(op memfs.Op) error {
		if op.Kind == memfs.OpRead && strings.HasSuffix(op.Name, ".log") && op.Off < to && op.Off+int64(op.Size) > from {
			return syscall.EIO
		}
		return nil
	})
	var bad data.OffsetRange
	bad.From = -1
	for _, p := range list {
		if p.pos < to && p.pos+p.size > from {
			if bad.From < 0 {
				bad.From = p.base
			}
			bad.To = p.next
		}
	}
	for i := range 2 {
		if _, _, err := r.store.Read(log, bad.From, 1000, nil); !errors.Is(err, syscall.EIO) {
			t.Errorf("read %d: %v", i, err)
		}
	}
	checkDamage(t, r.store, log, want, bad)
}
