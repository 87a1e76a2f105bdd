package localdb

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

// endBadger closes badger, which Close leaves to the end of the process when the database has failed.
func endBadger(t *testing.T, db *DB) {
	t.Cleanup(func() {
		_ = db.badger.Close()
		_ = db.lock.Close()
	})
}

// checkFailed holds db, which has failed, against what is promised of it (P5).
func checkFailed(t *testing.T, db *DB) {
	t.Helper()
	<-db.Failed()
	if err := db.Err(); !errors.Is(err, topology.ErrUnavailable) || !strings.Contains(err.Error(), db.dir) {
		t.Errorf("Err is %v", err)
	}
	err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) { put([]byte("k"), nil) })
	if !errors.Is(err, topology.ErrUnavailable) || get(t, db, "k") != "absent" {
		t.Errorf("an update: %v", err)
	}
	mustClose(t, db)
	if _, err := Open(Config{Dir: db.dir}); !errors.Is(err, ErrLocked) {
		t.Errorf("badger is open still, and the folder not locked: %v", err)
	}
}

// TestFailedSync: after an error of the disk no update is taken any more, and the database says so.
func TestFailedSync(t *testing.T) {
	db := openDB(t, t.TempDir())
	endBadger(t, db)
	select {
	case <-db.Failed():
		t.Error("failed from the start")
	default:
	}
	if err := db.Err(); err != nil {
		t.Error(err)
	}
	cause := errors.New("input/output error")
	if err := db.fail(cause); !errors.Is(err, topology.ErrUnavailable) || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	_ = db.fail(errors.New("another one"))
	if !errors.Is(db.Err(), cause) {
		t.Errorf("the cause is %v", db.Err())
	}
	checkFailed(t, db)
}

// TestFailedTable: that badger cannot write a table, which it tells in its log only, counts too.
func TestFailedTable(t *testing.T) {
	db := openDB(t, t.TempDir())
	endBadger(t, db)
	for _, next := range []string{"000001.sst", "000002.sst"} { // badger makes its tables new
		if err := os.WriteFile(filepath.Join(db.kv, next), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fillLog(t, db)
	checkFailed(t, db)
}

// TestClosedHasNotFailed: the end of a database is no failure.
func TestClosedHasNotFailed(t *testing.T) {
	db := openDB(t, t.TempDir())
	mustClose(t, db)
	if err := db.Err(); err != nil {
		t.Error(err)
	}
}
