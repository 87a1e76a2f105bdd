package localdb

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilled kills a process that writes, at a random time: what it had been told is stored is there afterwards, and of
// no update a part.
func TestKilled(t *testing.T) {
	if dir := os.Getenv("LOCALDB_VICTIM"); dir != "" {
		victim(dir)
		return
	}
	dir := t.TempDir()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "LOCALDB_VICTIM="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() { // it has opened
			t.Fatalf("seed %d: the victim says nothing", seed)
		}
		kill := time.AfterFunc(time.Duration(20+random.IntN(300))*time.Millisecond, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
		told := ""
		for lines.Scan() {
			told = lines.Text()
		}
		kill.Stop()
		_ = cmd.Wait()

		db := openDB(t, dir)
		if id := db.Identity(); id.Start != uint64(2*round+2) {
			t.Errorf("seed %d round %d: start %d", seed, round, id.Start)
		}
		checkVictim(t, db, told)
		mustClose(t, db)
	}
}

// victim writes until it is killed: update n holds the keys 0 to 29 with the value n, each tenth one 2000 keys.
func victim(dir string) {
	db, err := Open(Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	pad := strings.Repeat(".", 300)
	for n := 1; ; n++ {
		keys := 30
		if n%10 == 0 {
			keys = 2000
		}
		err := db.Update(n%7 == 0, func(put func(k, v []byte), _ func(k []byte)) {
			for i := range keys {
				put(fmt.Appendf(nil, "n/%d", i), fmt.Appendf(nil, "%d %s", n, pad))
			}
		})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func checkVictim(t *testing.T, db *DB, told string) {
	t.Helper()
	var last, large int
	if _, err := fmt.Sscan(told, &last); told != "" && err != nil {
		t.Fatalf("the victim says %q", told)
	}
	all := dump(t, db)
	seen := map[int]int{}
	for key, value := range all {
		var n, i int
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatalf("%s holds %q", key, value)
		}
		if _, err := fmt.Sscanf(key, "n/%d", &i); err != nil {
			t.Fatalf("key %q: what the database keeps for itself shall be gone", key)
		}
		if i >= 30 {
			large = n
		}
		seen[n]++
	}
	if len(seen) > 2 || len(all) != 0 && len(all) != 30 && len(all) != 2000 {
		t.Errorf("updates %v are mixed", seen)
	}
	newest := 0
	for n := range seen {
		newest = max(newest, n)
	}
	if newest < last || large < last/10*10 {
		t.Errorf("update %d was acknowledged, the newest stored is %d, the newest large one %d", last, newest, large)
	}
}

// TestIntents: an update larger than a transaction is done by the next Open once it was marked, and undone before.
func TestIntents(t *testing.T) {
	for _, marked := range []bool{false, true} {
		t.Run(fmt.Sprintf("marked %v", marked), func(t *testing.T) {
			db := openDB(t, t.TempDir())
			put(t, db, "k/00001", "before")
			b := collect(func(put func(k, v []byte), del func(k []byte)) {
				for i := range 5000 {
					put(fmt.Appendf(nil, "k/%05d", i), []byte("after"))
				}
				del([]byte("k/00002"))
			})
			cut := parts(b.ops)
			db.mu.Lock()
			for i, ops := range cut {
				if err := db.commit([]op{{key: intentKey(i), value: encodeOps(nil, ops)}}); err != nil {
					t.Fatal(err)
				}
			}
			if marked {
				if err := db.commit([]op{{key: intentMark, value: []byte{0, 0, 0, byte(len(cut))}}}); err != nil {
					t.Fatal(err)
				}
			}
			db.mu.Unlock()
			again := openDB(t, crashed(t, db))
			all := dump(t, again)
			want, first := 1, "before"
			if marked {
				want, first = 4999, "after"
			}
			if len(all) != want || all["k/00001"] != first {
				t.Errorf("%d keys, the first is %q", len(all), all["k/00001"])
			}
		})
	}
}

// TestDamagedTable: a table that does not hold what was written to it is not passed over.
func TestDamagedTable(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, dir)
	for i := range 1000 {
		put(t, db, fmt.Sprintf("k/%04d", i), strings.Repeat("v", 100))
	}
	mustClose(t, db)
	tables, err := filepath.Glob(filepath.Join(dir, "kv", "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables %v, %v", tables, err)
	}
	flip := func(at int64) {
		f, err := os.OpenFile(tables[0], os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		info, _ := f.Stat()
		if at < 0 {
			at += info.Size()
		}
		b := make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x40
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	for name, at := range map[string]int64{"entries": 5000, "index": -60} {
		flip(at)
		if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) {
			t.Errorf("a table with a flipped bit in its %s: %v", name, err)
		}
		flip(at)
	}
	db = openDB(t, dir)
	if got := len(dump(t, db)); got != 1000 {
		t.Errorf("mended, the table has %d keys", got)
	}
	mustClose(t, db)
	if err := os.Remove(tables[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) {
		t.Errorf("a table that is gone: %v", err)
	}
}
