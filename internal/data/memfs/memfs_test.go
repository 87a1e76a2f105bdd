package memfs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
)

var _ data.FS = (*memfs.FS)(nil)
var _ data.KV = (*memfs.KV)(nil)

func read(t *testing.T, f *memfs.FS, name string) string {
	t.Helper()
	h, err := f.Open(name, os.O_RDONLY)
	if err != nil {
		return err.Error()
	}
	n, _ := h.Size()
	b := make([]byte, n)
	_, _ = h.ReadAt(b, 0)
	return string(b)
}

func create(t *testing.T, f *memfs.FS, name, content string) data.File {
	t.Helper()
	h, err := f.Open(name, os.O_RDWR|os.O_CREATE)
	if err == nil {
		err = h.WriteV([][]byte{[]byte(content)}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// outcomes runs a scene with many seeds and collects what is in the file after a power cut.
func outcomes(t *testing.T, scene func(f *memfs.FS)) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(200) {
		f := memfs.New(seed, 1<<20)
		scene(f)
		f.Crash()
		seen[read(t, f, "/d/file")]++
	}
	return seen
}

// TestCrash holds the twin to what a disk may do and must not.
func TestCrash(t *testing.T) {
	const missing = "open /d/file: file does not exist"
	mkdir := func(f *memfs.FS) {
		_ = f.MkdirAll("/d")
		_ = f.SyncDir("/")
	}
	tests := []struct {
		name  string
		scene func(f *memfs.FS)
		may   []string // each must come up at some seed, nothing else may
	}{
		{"synced, and the directory too", func(f *memfs.FS) {
			mkdir(f)
			_ = create(t, f, "/d/file", "abc").Sync()
			_ = f.SyncDir("/d")
		}, []string{"abc"}},
		{"synced, the directory is not", func(f *memfs.FS) {
			mkdir(f)
			_ = create(t, f, "/d/file", "abc").Sync()
		}, []string{"abc", missing}},
		{"the directory is synced, the bytes are not", func(f *memfs.FS) {
			mkdir(f)
			create(t, f, "/d/file", "ab")
			_ = f.SyncDir("/d")
		}, []string{"ab", "", "\x00\x00", "a", "\x00"}},
		{"a removal that is not synced", func(f *memfs.FS) {
			mkdir(f)
			_ = create(t, f, "/d/file", "abc").Sync()
			_ = f.SyncDir("/d")
			_ = f.Remove("/d/file")
		}, []string{"abc", missing}},
		{"a cut that is not synced", func(f *memfs.FS) {
			mkdir(f)
			h := create(t, f, "/d/file", "abc")
			_ = h.Sync()
			_ = f.SyncDir("/d")
			_ = h.Truncate(1)
		}, []string{"abc", "a"}},
		{"everything is synced at once", func(f *memfs.FS) {
			_ = f.MkdirAll("/d")
			create(t, f, "/d/file", "abc")
			_ = f.SyncAll("/")
		}, []string{"abc"}},
		{"a flush that fails, then one that does not", func(f *memfs.FS) {
			mkdir(f)
			h := create(t, f, "/d/file", "abc")
			_ = h.Sync()
			_ = f.SyncDir("/d")
			_ = h.WriteV([][]byte{[]byte("xyz")}, 0)
			f.Fail(func(op memfs.Op) error {
				if op.Kind == memfs.OpSync {
					return syscall.EIO
				}
				return nil
			})
			if err := h.Sync(); !errors.Is(err, syscall.EIO) {
				t.Error(err)
			}
			f.Fail(nil)
			_ = h.Sync()
		}, []string{"abc"}},
	}
	for _, test := range tests {
		seen := outcomes(t, test.scene)
		for _, may := range test.may {
			if seen[may] == 0 {
				t.Errorf("%s: %q never comes up", test.name, may)
			}
			delete(seen, may)
		}
		if len(seen) > 0 {
			t.Errorf("%s: %v may not come up", test.name, seen)
		}
	}
}

func TestKillKeepsAll(t *testing.T) {
	f := memfs.New(1, 1<<20)
	_ = f.MkdirAll("/d")
	h := create(t, f, "/d/file", "abc")
	f.CrashAt(1)
	if err := h.Sync(); !errors.Is(err, memfs.ErrCrashed) || !f.Crashed() {
		t.Errorf("sync: %v", err)
	}
	if _, err := f.Stat("/d/file"); !errors.Is(err, memfs.ErrCrashed) {
		t.Errorf("stat after the crash: %v", err)
	}
	f.Kill()
	if got := read(t, f, "/d/file"); got != "abc" {
		t.Errorf("%q", got)
	}
	if err := h.Sync(); !errors.Is(err, memfs.ErrCrashed) {
		t.Errorf("a file of the process before: %v", err)
	}
}

func TestCapacity(t *testing.T) {
	f := memfs.New(1, 100)
	h, err := f.Open("/file", os.O_RDWR|os.O_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.WriteV([][]byte{make([]byte, 60)}, 0); err != nil {
		t.Fatal(err)
	}
	f.SetForeign(30)
	if err := h.Allocate(80); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("allocate: %v", err)
	}
	if err := h.WriteV([][]byte{make([]byte, 60)}, 40); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write: %v", err)
	}
	if n, _ := h.Size(); n != 70 {
		t.Errorf("%d bytes, want those that fit", n)
	}
	if err := h.Truncate(10); err != nil {
		t.Fatal(err)
	}
	if s, _ := f.Space("/"); s.Free != 60 || s.Total != 100 {
		t.Errorf("%+v", s)
	}
	if err := f.Remove("/file"); err != nil {
		t.Fatal(err)
	}
	if s, _ := f.Space("/"); s.Free != 70 {
		t.Errorf("%+v", s)
	}
}

// TestKV: updates that are not synchronous may be lost, the last ones first, and never in part.
func TestKV(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(300) {
		f := memfs.New(seed, 1<<20)
		kv := memfs.NewKV(f)
		set := func(sync bool, pairs ...string) {
			err := kv.Update(sync, func(put func(key, value []byte), del func(key []byte)) {
				for i := 0; i < len(pairs); i += 2 {
					put([]byte(pairs[i]), []byte(pairs[i+1]))
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		set(false, "a", "1")
		set(true, "b", "1")
		set(false, "a", "2", "b", "2")
		set(false, "a", "3")
		f.Crash()
		state := ""
		_ = kv.Scan(nil, func(key, value []byte) error {
			state += string(key) + string(value)
			return nil
		})
		seen[state]++
	}
	for _, want := range []string{"a1b1", "a2b2", "a3b2"} {
		if seen[want] == 0 {
			t.Errorf("%s never comes up: %v", want, seen)
		}
		delete(seen, want)
	}
	if len(seen) > 0 {
		t.Errorf("may not come up: %v", seen)
	}
}
