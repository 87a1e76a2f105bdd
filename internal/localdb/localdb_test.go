package localdb

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func TestGetScanUpdate(t *testing.T) {
	db := openDB(t, t.TempDir())
	if err := db.Update(true, func(put func(k, v []byte), del func(k []byte)) {
		key, value := []byte("p/b"), []byte("first")
		put(key, value)
		put(key, []byte("second")) // the later call counts
		copy(key, "xxx")           // what was put is a copy
		copy(value, "xxxxx")
		put([]byte("p/a"), []byte{})
		put([]byte("p/c"), []byte("gone"))
		del([]byte("p/c"))
		put([]byte("q/z"), []byte("other prefix"))
		del([]byte("never there"))
	}); err != nil {
		t.Fatal(err)
	}
	if a, b, c := get(t, db, "p/a"), get(t, db, "p/b"), get(t, db, "p/c"); a != "" || b != "second" || c != "absent" {
		t.Errorf("p/a %q, p/b %q, p/c %q", a, b, c)
	}
	var seen []string
	if err := db.Scan([]byte("p/"), func(k, v []byte) error {
		seen = append(seen, fmt.Sprintf("%s=%s", k, v))
		put(t, db, "p/z", "comes too late for this scan")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(seen, " "); got != "p/a= p/b=second" {
		t.Errorf("scanned %s", got)
	}
	stop := errors.New("stop")
	if err := db.Scan(nil, func(_, _ []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("a scan that was stopped: %v", err)
	}
	if err := db.Update(true, func(func(k, v []byte), func(k []byte)) {}); err != nil {
		t.Errorf("an update of nothing: %v", err)
	}
}

func TestUpdateRefuses(t *testing.T) {
	db := openDB(t, t.TempDir())
	for name, test := range map[string]struct {
		key, value []byte
		want       error
	}{
		"no key":          {nil, []byte("v"), topology.ErrInvalid},
		"key too long":    {make([]byte, MaxKeyBytes+1), nil, topology.ErrTooLarge},
		"value too long":  {[]byte("k"), make([]byte, MaxValueBytes+1), topology.ErrTooLarge},
		"both at the end": {make([]byte, MaxKeyBytes), make([]byte, MaxValueBytes), nil},
	} {
		t.Run(name, func(t *testing.T) {
			err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) {
				put([]byte("beside"), []byte(name))
				put(test.key, test.value)
			})
			if !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			if stored := get(t, db, "beside") == name; stored != (test.want == nil) {
				t.Errorf("the rest of the update: stored is %v", stored)
			}
		})
	}
}

// TestIdentity: the disk id stays, the start grows by one at each Open, and RenewDisk is durable (P5, O15).
func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	var disk uuid.UUID
	for start := uint64(1); start <= 3; start++ {
		db := openDB(t, dir)
		id := db.Identity()
		if start == 1 {
			disk = id.Disk
		}
		if id.Start != start || id.Disk != disk || id.Schema != schema || disk == uuid.Nil {
			t.Errorf("start %d: identity %+v", start, id)
		}
		mustClose(t, db)
	}
	db := openDB(t, dir)
	renewed, err := db.RenewDisk()
	if err != nil || renewed == disk || db.Identity().Disk != renewed {
		t.Errorf("renewed to %s from %s, identity %+v, %v", renewed, disk, db.Identity(), err)
	}
	again := openDB(t, crashed(t, db))
	if id := again.Identity(); id.Disk != renewed || id.Start != 5 {
		t.Errorf("after a crash: %+v, renewed to %s", id, renewed)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Run("another ordinal", func(t *testing.T) {
		dir := t.TempDir()
		mustClose(t, openDB(t, dir))
		_, err := Open(Config{Dir: dir, Ordinal: 3})
		if !errors.Is(err, ErrOtherOrdinal) || !strings.Contains(fmt.Sprint(err), "is of ordinal 0, this broker is 3") {
			t.Errorf("got %v", err)
		}
		if id := openDB(t, dir).Identity(); id.Start != 2 {
			t.Errorf("a refused Open counts as a start: %+v", id)
		}
	})
	t.Run("a newer schema", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "SCHEMA"), fmt.Appendf(nil, schemaFormat, schema+1), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{Dir: dir})
		if !errors.Is(err, ErrNewer) || !strings.Contains(fmt.Sprint(err), dir) {
			t.Errorf("got %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "kv")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("something was written: %v", err)
		}
	})
	t.Run("no schema at all", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "SCHEMA"), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("in use", func(t *testing.T) {
		dir := t.TempDir()
		openDB(t, dir)
		_, err := Open(Config{Dir: dir})
		for _, part := range []string{fmt.Sprintf("process %d on host", os.Getpid()), dir} {
			if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %q in it", err, part)
			}
		}
	})
	t.Run("a file in the place of the folder", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: path}); err == nil {
			t.Error("no error")
		}
	})
}

func TestClosed(t *testing.T) {
	db := openDB(t, t.TempDir())
	mustClose(t, db)
	if _, err := db.Get([]byte("k")); !errors.Is(err, ErrClosed) {
		t.Errorf("Get: %v", err)
	}
	if err := db.Scan(nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Scan: %v", err)
	}
	if err := db.Update(true, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("Update: %v", err)
	}
	if _, err := db.RenewDisk(); !errors.Is(err, ErrClosed) {
		t.Errorf("RenewDisk: %v", err)
	}
	mustClose(t, db)
}

// TestModel compares the database with a map, over updates small and large, closes and crashes.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		db := openDB(t, dir)
		want := map[string]string{}
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				mustClose(t, db)
				db = openDB(t, dir)
			case 1:
				dir = crashed(t, db)
				mustClose(t, db)
				db = openDB(t, dir)
			default:
				n := rapid.SampledFrom([]int{1, 2, 10, 100, 100, 2000}).Draw(rt, "keys")
				seed := rapid.IntRange(0, 1000).Draw(rt, "seed")
				size := rapid.SampledFrom([]int{0, 10, 100}).Draw(rt, "value size")
				err := db.Update(rapid.Bool().Draw(rt, "sync"), func(put func(k, v []byte), del func(k []byte)) {
					for i := range n {
						key := fmt.Sprintf("k/%d", (i*7+seed)%3000)
						if (i+seed)%5 == 0 {
							del([]byte(key))
							delete(want, key)
							continue
						}
						value := strings.Repeat(string(rune('a'+seed%26)), size)
						put([]byte(key), []byte(value))
						want[key] = value
					}
				})
				if err != nil {
					rt.Fatal(err)
				}
			}
		}
		if got := dump(t, db); !maps.Equal(got, want) {
			rt.Fatalf("%d keys are stored, want %d", len(got), len(want))
		}
		mustClose(t, db)
	})
}

// TestManyWriters: updates of many goroutines, with and without sync, over several logs, are all there after a crash.
func TestManyWriters(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, dir)
	const writers, each = 8, 250
	value := []byte(strings.Repeat("v", 1000))
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				if err := db.Update(i%10 == 0, func(put func(k, v []byte), _ func(k []byte)) {
					put(fmt.Appendf(nil, "n/%d/%d", w, i), value)
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	again := openDB(t, crashed(t, db))
	if got := len(dump(t, again)); got != writers*each {
		t.Errorf("%d keys after a crash, want %d", got, writers*each)
	}
	if db.synced.Load() > db.seq {
		t.Errorf("%d updates are called durable, there are %d", db.synced.Load(), db.seq)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	db, err := Open(Config{Dir: t.TempDir(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	second, err := Open(Config{Dir: t.TempDir(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	put(t, db, "k", "v")
	mustClose(t, second)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
	}
	for _, want := range []string{"skein_localdb_bytes", "skein_localdb_tables", "skein_localdb_updates_total", "skein_localdb_sync_seconds"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is missing among %v", want, names)
		}
	}
	mustClose(t, db)
	if families, _ := registry.Gather(); len(families) != 0 {
		t.Errorf("%d metrics stay after Close", len(families))
	}
}
