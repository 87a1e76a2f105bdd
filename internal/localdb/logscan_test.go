package localdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// logBytes is the log in use as a process killed now would leave it, without most of the zeros behind it.
func logBytes(t rapid.TB, db *DB) []byte {
	t.Helper()
	f, err := os.Open(db.walPath(db.wal.id))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, db.wal.used))
	if err != nil {
		t.Fatal(err)
	}
	return append(bytes.TrimRight(b, "\x00"), make([]byte, 2*sectorBytes)...)
}

// promise stores one value and syncs it.
func promise(t rapid.TB, db *DB, sync bool, key, value string) {
	t.Helper()
	if err := db.Update(sync, func(put func(k, v []byte), _ func(k []byte)) { put([]byte(key), []byte(value)) }); err != nil {
		t.Fatal(err)
	}
}

// TestRottenLog: a flipped bit in the log does not take back what was synced (O5).
func TestRottenLog(t *testing.T) {
	db := openDB(t, t.TempDir())
	for i := range 100 {
		promise(t, db, true, fmt.Sprintf("g/%d", i), fmt.Sprintf("promise-%d", i))
	}
	dir := crashed(t, db)
	path := filepath.Join(dir, "kv", filepath.Base(db.walPath(db.wal.id)))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{7, bytes.Index(before, []byte("m/identity")), bytes.Index(before, []byte("promise-50"))} {
		rotten := bytes.Clone(before)
		rotten[at] ^= 1
		if err := os.WriteFile(path, rotten, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{Dir: dir})
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
			t.Fatalf("byte %d is rotten: %v", at, err)
		}
		found := regexp.MustCompile(`position (\d+)`).FindStringSubmatch(err.Error())
		if pos, _ := strconv.Atoi(found[1]); pos > at || pos < at-60 {
			t.Errorf("byte %d is rotten, the error names %d: %v", at, pos, err)
		}
		if after, _ := os.ReadFile(path); !bytes.Equal(after, rotten) {
			t.Error("a log that is refused is not to be changed")
		}
	}
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := len(dump(t, openDB(t, dir))); got != 100 {
		t.Errorf("mended, there are %d promises", got)
	}
}

// TestEachRottenByte: that holds for each byte, up to the last transaction, with nothing behind it to tell.
func TestEachRottenByte(t *testing.T) {
	db := openDB(t, t.TempDir())
	for i := range 60 {
		promise(t, db, true, fmt.Sprintf("g/%d", i), "with\x00zeros\x00\x00\x00\x00")
	}
	before := len(bytes.TrimRight(logBytes(t, db), "\x00"))
	promise(t, db, true, "g/last", "v")
	b := logBytes(t, db)
	if end, err := scanLog(b); err != nil || end != len(bytes.TrimRight(b, "\x00")) {
		t.Fatalf("sound, it ends at %d of %d, %v", end, len(b), err)
	}
	for at := range b[:before] {
		if at >= 8 && at < logHead {
			continue // the base IV, of which nothing depends
		}
		b[at] ^= 1 << (at % 8)
		if end, err := scanLog(b); err == nil {
			t.Errorf("byte %d is rotten: the log ends at %d", at, end)
		}
		b[at] ^= 1 << (at % 8)
	}
	// A sector that reads as zeros is told by what was written after it had been synced.
	for at := sectorBytes; at+sectorBytes < before; at += sectorBytes {
		holed := bytes.Clone(b)
		clear(holed[at : at+sectorBytes])
		if end, err := scanLog(holed); err == nil {
			t.Errorf("the sector at %d is zero: the log ends at %d", at, end)
		}
	}
}

// testTxn appends a transaction of n records with values of 600 bytes to a log, as badger does.
func testTxn(log []byte, stamp uint64, user byte, n int) []byte {
	add := func(meta, user byte, key string, value []byte) {
		from := len(log)
		log = append(log, meta, user)
		log = binary.AppendUvarint(log, uint64(len(key)+stampBytes))
		log = binary.AppendUvarint(log, uint64(len(value)))
		log = append(append(log, 0), key...)
		log = append(binary.BigEndian.AppendUint64(log, ^stamp), value...)
		log = binary.BigEndian.AppendUint32(log, crc32.Checksum(log[from:], castagnoli))
	}
	for i := range n {
		add(metaTxn, user, fmt.Sprintf("k/%d", i), bytes.Repeat([]byte{'v'}, 600))
	}
	add(metaEnd, 0, "!badger!txn", strconv.AppendUint(nil, stamp, 10))
	return log
}

// TestScanEvidence: what a lost sector and a rotten bit look like, and what tells that a lost one was synced.
func TestScanEvidence(t *testing.T) {
	type txn struct {
		user    byte
		records int
	}
	const sector, bit = true, false
	for _, test := range []struct {
		name    string
		txns    []txn // with stamps from 101 on
		in      int   // the transaction whose first record is harmed
		harm    bool
		damaged bool
	}{
		{"lost before unsynced", []txn{{1, 1}, {1, 1}, {2, 1}, {3, 1}}, 1, sector, false},
		{"lost before one that knew it durable", []txn{{1, 1}, {1, 1}, {2, 1}, {2, 1}}, 1, sector, true},
		{"lost at once before one that knew it durable", []txn{{1, 1}, {1, 1}, {1, 1}}, 1, sector, true},
		{"lost in a transaction whose rest is there", []txn{{1, 1}, {1, 3}}, 1, sector, false},
		{"first of the log lost, the rest of its transaction there", []txn{{1, 3}, {2, 1}}, 0, sector, false},
		{"first of the log lost, all durable later", []txn{{1, 3}, {1, 1}}, 0, sector, true},
		{"lost long before, nobody knows how much was durable", []txn{{1, 1}, {1, 1}, {0, 1}, {0, 1}}, 1, sector, false},
		{"rotten among unsynced", []txn{{1, 1}, {1, 1}, {2, 1}, {3, 1}}, 1, bit, true},
		{"rotten in a transaction whose rest is there", []txn{{1, 1}, {1, 3}}, 1, bit, true},
		{"rotten first of the log", []txn{{1, 1}, {0, 1}}, 0, bit, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			log := make([]byte, logHead)
			var starts []int
			for i, txn := range test.txns {
				starts = append(starts, len(log))
				log = testTxn(log, uint64(101+i), txn.user, txn.records)
			}
			log = append(log, make([]byte, sectorBytes)...)
			if end, err := scanLog(log); err != nil || end != len(log)-sectorBytes {
				t.Fatalf("sound, it ends at %d of %d, %v", end, len(log), err)
			}
			start := starts[test.in]
			log[start+300] ^= 4
			if test.harm == sector {
				boundary := (start/sectorBytes + 1) * sectorBytes
				clear(log[max(start, boundary-50):boundary])
			}
			end, err := scanLog(log)
			if (err != nil) != test.damaged || end != start {
				t.Errorf("it ends at %d, want %d; %v", end, start, err)
			}
		})
	}
}

// TestTornLog: what a process or machine that stops in a write leaves behind is no damage, and badger never sees it.
func TestTornLog(t *testing.T) {
	db := openDB(t, t.TempDir())
	for i := range 20 {
		promise(t, db, true, fmt.Sprintf("g/%d", i), "promised")
	}
	whole := len(bytes.TrimRight(logBytes(t, db), "\x00"))
	dir := crashed(t, db)
	path := filepath.Join(dir, "kv", filepath.Base(db.walPath(db.wal.id)))
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lengths := binary.AppendUvarint([]byte{metaTxn, 0}, 10) // badger adds the two up in 32 bits
	lengths = binary.AppendUvarint(lengths, 1<<32-5)
	for name, tail := range map[string][]byte{
		"a part of a record":                before[whole-40 : whole-10],
		"lengths that overflow":             append(lengths, 0),
		"a length of 4 GiB":                 append(binary.AppendUvarint([]byte{metaTxn, 0, 10}, 1<<32-60), 0),
		"a varint without an end":           bytes.Repeat([]byte{0xff}, 40),
		"a transaction with no end mark":    before[logHead:bytes.Index(before, []byte("!badger!txn"))],
		"nothing":                           nil,
		"hints of records that are not any": bytes.Repeat([]byte{metaTxn, 0, 9, 0x7f, 0, 'k', 0xff, 0xff, 0, 0, 0, 0, 0, 1}, 500),
	} {
		t.Run(name, func(t *testing.T) {
			torn := bytes.Clone(before)
			if name == "a transaction with no end mark" {
				r, ok := parseRecord(tail)
				if !ok {
					t.Fatal("no record")
				}
				tail = tail[:r.size]
			}
			copy(torn[whole:], tail)
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(copied, "kv", filepath.Base(path)), torn, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := len(dump(t, openDB(t, copied))); got != 20 {
				t.Errorf("%d of 20 promises are left", got)
			}
		})
	}
	for _, size := range []int64{1, logHead - 1, logHead} {
		copied := t.TempDir()
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(copied, "kv", "00077.mem"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := len(dump(t, openDB(t, copied))); got != 20 {
			t.Errorf("with a log of %d bytes: %d of 20 promises are left", size, got)
		}
	}
}

// TestPowerCut: whatever sectors of what was not synced the disk has when the power fails, the log is not taken for
// damaged, and what was synced is there (O5, P5).
func TestPowerCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "localdb")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		db, err := Open(Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		states := [][]byte{logBytes(t, db)} // of the log: when it was last synced, and after each update since
		for range rapid.IntRange(1, 60).Draw(t, "updates") {
			sync := rapid.IntRange(0, 4).Draw(t, "sync") == 0
			value := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(t, "value")
			keys := rapid.IntRange(1, 3).Draw(t, "keys")
			err := db.Update(sync, func(put func(k, v []byte), del func(k []byte)) {
				for i := range keys {
					put(fmt.Appendf(nil, "k/%d", i), value)
				}
				del([]byte("k/0"))
			})
			if err != nil {
				t.Fatal(err)
			}
			if sync {
				states = states[:0]
			}
			states = append(states, logBytes(t, db))
		}
		durable, now := states[0], states[len(states)-1]
		synced, err := scanLog(durable)
		if err != nil {
			t.Fatal(err)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		random := rand.New(rand.NewPCG(seed, 0))
		for range 30 { // cuts of the power
			disk := make([]byte, len(now))
			for at := 0; at < len(disk); at += sectorBytes {
				from := states[random.IntN(len(states))]
				if random.IntN(2) == 0 {
					from = now
				}
				if at < len(from) {
					copy(disk[at:min(at+sectorBytes, len(disk))], from[at:])
				}
			}
			if end, err := scanLog(disk); err != nil || end < synced {
				t.Fatalf("%d bytes were synced of %d, the log ends at %d, %v", synced, len(now), end, err)
			}
		}
	})
}

// TestScanAsBadger: of a log that is not refused, what stays is what badger would read of it.
func TestScanAsBadger(t *testing.T) {
	source := openDB(t, t.TempDir())
	for i := range 40 {
		promise(t, source, i%3 == 0, fmt.Sprintf("k/%d", i%25), strings.Repeat("v", i*7))
	}
	crash := crashed(t, source)
	path := filepath.Base(source.walPath(source.wal.id))
	whole := logBytes(t, source)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(whole)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			at := rapid.IntRange(logHead, len(b)-1).Draw(t, "at")
			n := rapid.SampledFrom([]int{1, 5, 600, len(b)}).Draw(t, "bytes")
			for i := at; i < min(at+n, len(b)); i++ {
				b[i] = 0
			}
		}
		end, err := scanLog(b)
		if err != nil {
			t.Skip("refused")
		}
		read := func(log []byte) string {
			dir, err := os.MkdirTemp("", "localdb")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			if err := os.CopyFS(dir, os.DirFS(crash)); err != nil {
				t.Fatal(err)
			}
			kv := filepath.Join(dir, "kv")
			if err := errors.Join(removeUnusedLogs(kv), os.WriteFile(filepath.Join(kv, path), log, 0o600)); err != nil {
				t.Fatal(err)
			}
			b, err := openBadger(kv, badgerLog{})
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			var all strings.Builder
			db := &DB{badger: b}
			if err := db.scan(nil, func(k, v []byte) error { fmt.Fprintf(&all, "%q %q\n", k, v); return nil }); err != nil {
				t.Fatal(err)
			}
			return all.String()
		}
		if ours, badgers := read(b[:end]), read(b); ours != badgers {
			t.Errorf("cut at %d:\n%s\nas badger reads it:\n%s", end, ours, badgers)
		}
	})
}

func FuzzScanLog(f *testing.F) {
	db := openDB(f, f.TempDir())
	for i := range 10 {
		promise(f, db, i%2 == 0, fmt.Sprintf("k/%d", i), strings.Repeat("v", 20*i))
	}
	b := logBytes(f, db)
	f.Add(b)
	f.Add(b[:len(b)/2])
	f.Add(append(bytes.Clone(b[:300]), b[310:]...))
	f.Add(make([]byte, 2*sectorBytes))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		end, err := scanLog(b)
		if err != nil {
			return
		}
		if end > len(b) || end < min(logHead, len(b)) {
			t.Fatalf("a log of %d bytes ends at %d", len(b), end)
		}
		if again, err := scanLog(b[:end]); err != nil || again != end {
			t.Errorf("cut at %d, it ends at %d, %v", end, again, err)
		}
		if end < logHead {
			return
		}
		if again, err := scanLog(append(b[:end:end], make([]byte, 3*sectorBytes)...)); err != nil || again != end {
			t.Errorf("with zeros behind %d, it ends at %d, %v", end, again, err)
		}
	})
}

// BenchmarkScanLog reads a full log, and one whose second half is torn into what may look like records.
func BenchmarkScanLog(b *testing.B) {
	db := openDB(b, b.TempDir())
	for i := range 2000 {
		promise(b, db, false, fmt.Sprintf("n/%d", i), strings.Repeat("v", 200))
	}
	log, err := os.ReadFile(db.walPath(db.wal.id))
	if err != nil {
		b.Fatal(err)
	}
	torn := bytes.Clone(log)
	for i := range torn[len(torn)/2:] {
		torn[len(torn)/2+i] = byte(i * 7 >> (i % 5))
	}
	for name, log := range map[string][]byte{"sound": log, "torn": torn} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(log)))
			for b.Loop() {
				_, _ = scanLog(log)
			}
		})
	}
}
