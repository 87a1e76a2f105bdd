package localdb

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain looks for goroutines left behind. Badger leaves two when it fails to open; the broker ends then.
//
// A step of TestModel opens and copies files, so by default it draws fewer cases than rapid would.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		_ = flag.Set("rapid.checks", "25")
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("github.com/dgraph-io/badger/v4.(*DB).monitorCache"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.(*AllocatorPool).freeupAllocators"))
}

// openDB opens the database in dir, and closes it when the test ends unless the test does.
func openDB(t testing.TB, dir string) *DB {
	t.Helper()
	db, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, db) })
	return db
}

func mustClose(t testing.TB, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// put stores one value.
func put(t testing.TB, db *DB, key, value string) {
	t.Helper()
	if err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) { put([]byte(key), []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

// get reads one value; "absent" when there is none.
func get(t testing.TB, db *DB, key string) string {
	t.Helper()
	value, err := db.Get([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	if value == nil {
		return "absent"
	}
	return string(value)
}

// dump reads all but what the database keeps for itself.
func dump(t testing.TB, db *DB) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := db.Scan(nil, func(key, value []byte) error {
		if string(key) != string(identityKey) {
			all[string(key)] = string(value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// crashed is a copy of the folder of db as a process killed now would leave it: what was written to mapped files is in
// them. It waits until no table is being made, which a copy could catch half. TestKilled kills at any time.
func crashed(t testing.TB, db *DB) string {
	t.Helper()
	waitFor(t, "tables are made", func() bool { return !db.compacting.Load() && len(memFiles(t, db)) == 2 })
	dir, to := db.dir, t.TempDir()
	for _, sub := range []string{"", "kv"} {
		if err := os.MkdirAll(filepath.Join(to, sub), 0o750); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(filepath.Join(dir, sub))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if f.IsDir() || f.Name() == "ballast" {
				continue
			}
			if err := copyFile(filepath.Join(dir, sub, f.Name()), filepath.Join(to, sub, f.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	return to
}

// memFiles are the logs of badger that are there.
func memFiles(t testing.TB, db *DB) []string {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(db.kv, "*.mem"))
	if err != nil {
		t.Fatal(err)
	}
	return logs
}

// waitFor waits until what is true.
func waitFor(t testing.TB, what string, true func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !true(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
	}
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}
