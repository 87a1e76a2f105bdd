package localdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

// taken is the room on disk that a file has.
func taken(t *testing.T, path string) int64 {
	t.Helper()
	var s syscall.Stat_t
	if err := syscall.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return s.Blocks * 512
}

// checkRoom holds the files that badger maps against the room they need: not one page of them may be without.
func checkRoom(t *testing.T, db *DB) {
	t.Helper()
	for _, id := range []int{db.wal.id, db.wal.id + 1} {
		if got := taken(t, db.walPath(id)); got < walRoom {
			t.Errorf("log %d has room for %d bytes, want %d", id, got, walRoom)
		}
	}
	if got := taken(t, filepath.Join(db.kv, "DISCARD")); got < 4096 {
		t.Errorf("DISCARD has room for %d bytes", got)
	}
	if got := taken(t, filepath.Join(db.kv, "MANIFEST")); got < 16<<10 {
		t.Errorf("MANIFEST has room for %d bytes", got)
	}
	if got := taken(t, db.ballastPath()); got < ballastBytes {
		t.Errorf("the ballast has %d bytes", got)
	}
}

// fillLog writes until badger has gone on to the next log.
func fillLog(t *testing.T, db *DB) {
	t.Helper()
	value := strings.Repeat("v", 2000)
	for i, from := 0, db.wal.id; db.wal.id == from; i++ {
		put(t, db, fmt.Sprintf("fill/%d", i%200), value)
		if i > 10_000 {
			t.Fatal("badger stays in its log")
		}
	}
}

// TestRoomTaken: the room of all mapped files is taken before they are written to, also after badger went on to the next
// log some times, and the bound of what is in the log holds.
func TestRoomTaken(t *testing.T) {
	db := openDB(t, t.TempDir())
	if done, err := allocate(db.wal.file, walRoom, false); err != nil || !done {
		t.Skipf("this file system cannot preallocate: %v", err)
	}
	checkRoom(t, db)
	for range 3 {
		fillLog(t, db)
		checkRoom(t, db)
	}
}

// TestCompaction: tables of level 0 do not pile up, and nothing gets lost.
func TestCompaction(t *testing.T) {
	db := openDB(t, t.TempDir())
	put(t, db, "first", "still there")
	for range 2*compactTables + 1 {
		fillLog(t, db)
	}
	waitFor(t, "compaction", func() bool { return !db.compacting.Load() })
	upper := 0
	for _, table := range db.badger.Tables() {
		if table.Level == 0 {
			upper++
		}
	}
	if upper > compactTables {
		t.Errorf("%d tables in level 0", upper)
	}
	if got := get(t, db, "first"); got != "still there" {
		t.Errorf("got %q", got)
	}
	if got := len(dump(t, db)); got != 201 {
		t.Errorf("%d keys", got)
	}
}

// TestEnsureRoom: the owner of the disk is asked before each write, and nothing is written when it refuses.
func TestEnsureRoom(t *testing.T) {
	var calls, most atomic.Int64
	var refuse atomic.Bool
	db, err := Open(Config{Dir: t.TempDir(), EnsureRoom: func(n int64) error {
		calls.Add(1)
		most.Store(max(most.Load(), n))
		if refuse.Load() {
			return errors.New("no")
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, db)
	before := calls.Load()
	most.Store(0)
	put(t, db, "k", "v")
	if calls.Load() != before+1 || most.Load() != 0 {
		t.Errorf("asked %d times, for %d bytes at most; a small write needs none", calls.Load()-before, most.Load())
	}
	fillLog(t, db)
	if most.Load() != rotationRoom {
		t.Errorf("asked for %d bytes, going on to the next log needs %d", most.Load(), rotationRoom)
	}
	refuse.Store(true)
	for _, n := range []int{1, 5000} {
		err = db.Update(false, func(put func(k, v []byte), _ func(k []byte)) {
			for i := range n {
				put(fmt.Appendf(nil, "refused/%d", i), nil)
			}
		})
		if !errors.Is(err, topology.ErrDiskFull) || get(t, db, "refused/0") != "absent" {
			t.Errorf("%d keys: got %v", n, err)
		}
	}
	refuse.Store(false)
	put(t, db, "refused/0", "now")
}

// TestUnusedLogs: a log that was made ahead and never written is removed by Open and by Close.
func TestUnusedLogs(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, dir)
	copied := crashed(t, db)
	if err := os.WriteFile(filepath.Join(copied, "kv", "00009.mem"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	openDB(t, copied)
	mustClose(t, db)
	if left := memFiles(t, db); len(left) != 0 {
		t.Errorf("after Close: %v", left)
	}
}
