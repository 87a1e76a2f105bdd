//go:build faults && linux

package localdb

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

// These tests need root: they mount a small file system in memory and fill it to the last byte. A page of a mapped file
// that the disk cannot back would end the test with SIGBUS.

func mountSmall(t *testing.T, mib int) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", mib)); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// fill takes all that is free in dir, and returns the file that took it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "foreign")
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	if free, err := freeBytes(dir); err != nil || free != 0 {
		t.Fatalf("%d bytes are free still, %v", free, err)
	}
	return path
}

// untilFull updates until that is refused, and returns how many updates were not.
func untilFull(t *testing.T, db *DB, name string) int {
	t.Helper()
	value := []byte(strings.Repeat("v", 1000))
	for i := range 100_000 {
		err := db.Update(i%16 == 0, func(put func(k, v []byte), _ func(k []byte)) {
			put(fmt.Appendf(nil, "%s/%d", name, i), value)
		})
		if errors.Is(err, topology.ErrDiskFull) {
			return i
		}
		if err != nil {
			t.Fatalf("update %d: %v", i, err)
		}
	}
	t.Fatal("the disk does not get full")
	return 0
}

func checkStored(t *testing.T, db *DB, name string, n int) {
	t.Helper()
	count := 0
	if err := db.Scan([]byte(name+"/"), func(_, _ []byte) error { count++; return nil }); err != nil || count != n {
		t.Errorf("%d of %d updates %s are there, %v", count, n, name, err)
	}
}

func TestDiskFull(t *testing.T) {
	dir := mountSmall(t, 32)
	db := openDB(t, filepath.Join(dir, "db"))
	foreign := fill(t, dir)
	first := untilFull(t, db, "first")
	if first == 0 {
		t.Error("the room taken before is not used")
	}
	checkStored(t, db, "first", first)
	err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) {
		for i := range 3000 {
			put(fmt.Appendf(nil, "large/%d", i), []byte("v"))
		}
	})
	if !errors.Is(err, topology.ErrDiskFull) {
		t.Errorf("a large update: %v", err)
	}

	if err := os.Remove(foreign); err != nil {
		t.Fatal(err)
	}
	second := untilFull(t, db, "second") // the database itself fills the disk
	checkStored(t, db, "second", second)
	fill(t, dir)

	// What is closed on a full disk opens on it again, and works as soon as there is room.
	mustClose(t, db)
	fill(t, dir)
	db, err = Open(Config{Dir: filepath.Join(dir, "db")})
	if err == nil {
		checkStored(t, db, "second", second)
		mustClose(t, db)
	} else if !errors.Is(err, topology.ErrDiskFull) {
		t.Fatal(err)
	}
	if err := os.Truncate(foreign, 0); err != nil {
		t.Fatal(err)
	}
	if free, _ := freeBytes(dir); free < 6<<20 {
		t.Skipf("the database has taken the disk, %d bytes are free", free)
	}
	db = openDB(t, filepath.Join(dir, "db"))
	checkStored(t, db, "first", first)
	checkStored(t, db, "second", second)
	put(t, db, "third", "v")
}

// TestKilledOnFullDisk: a process that was killed on a full disk starts again on it: the ballast gives the room.
func TestKilledOnFullDisk(t *testing.T) {
	if dir := os.Getenv("LOCALDB_FULL"); dir != "" {
		db, err := Open(Config{Dir: filepath.Join(dir, "db")})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, dir)
		n := untilFull(t, db, "first")
		fmt.Println("stored", n)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	dir := mountSmall(t, 32)
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledOnFullDisk$")
	cmd.Env = append(os.Environ(), "LOCALDB_FULL="+dir)
	out, _ := cmd.Output()
	var n int
	if _, err := fmt.Sscanf(string(out), "stored %d", &n); err != nil {
		t.Fatalf("the process said %q", out)
	}
	db := openDB(t, filepath.Join(dir, "db"))
	checkStored(t, db, "first", n)
	put(t, db, "again", "v")
}

// TestStartsOnFullDisk: killed on a full disk and started on it again, some times over, the database opens, and takes updates.
func TestStartsOnFullDisk(t *testing.T) {
	if dir := os.Getenv("LOCALDB_STARTS"); dir != "" {
		db, err := Open(Config{Dir: filepath.Join(dir, "db")})
		if err != nil {
			t.Fatal(err)
		}
		fill(t, dir)
		for i := range 50 {
			promise(t, db, true, fmt.Sprintf("g/%d", i), "promised")
		}
		fmt.Println("start", db.Identity().Start)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	dir := mountSmall(t, 32)
	for round := range 12 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestStartsOnFullDisk$")
		cmd.Env = append(os.Environ(), "LOCALDB_STARTS="+dir)
		out, _ := cmd.Output()
		if !strings.Contains(string(out), fmt.Sprintf("start %d\n", round+1)) {
			t.Fatalf("start %d: the process said %q", round+1, out)
		}
	}
	db := openDB(t, filepath.Join(dir, "db"))
	checkStored(t, db, "g", 50)
	fill(t, dir)
}
