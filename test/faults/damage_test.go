//go:build faults

package faults

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// headerSize is that of a record batch: bytes 0 to 7 are its first offset, 8 to 11 the length of what follows.
const headerSize = 61

// logsOf is the folder of the logs in a data folder: a folder for each topic id, in it one for each partition.
func logsOf(dir string) string { return filepath.Join(dir, "data", "logs") }

// chunks finds where the chunks of a segment begin, by the lengths in their headers, and where the last one ends.
func chunks(t *testing.T, segment []byte) (starts []int) {
	t.Helper()
	for at := 0; at < len(segment); at += 12 + int(binary.BigEndian.Uint32(segment[at+8:])) {
		if at+headerSize > len(segment) {
			t.Fatalf("the segment ends within a header, at %d of %d", at, len(segment))
		}
		starts = append(starts, at)
	}
	return append(starts, len(segment))
}

// victim is a topic of one partition with one damaged byte.
type victim struct {
	name  string
	chunk int // which chunk is hit
	byte  int // of the chunk; -1 draws one of the whole chunk
}

// TestFlippedBytes flips one bit in each of the 61 header bytes of a first, a middle and a last chunk, and in random
// places, each in a topic of its own. The broker starts, serves everything else, names exactly the offsets of the
// damaged chunk, and delivers nothing wrong, to reads, to groups and after further appends (docs/design.md, section 5).
func TestFlippedBytes(t *testing.T) { flippedBytes(t, true) }

// TestFlippedBytesAfterKill is the same after SIGKILL. What is still in the commit journal may be mended from it, so a
// chunk is either damaged or whole again.
func TestFlippedBytesAfterKill(t *testing.T) { flippedBytes(t, false) }

func flippedBytes(t *testing.T, clean bool) {
	rng, _ := random(t)
	const (
		perChunk = 3
		nChunks  = 5
		total    = perChunk * nChunks
	)
	var victims []victim
	for _, chunk := range []int{0, nChunks / 2, nChunks - 1} {
		for i := range headerSize {
			victims = append(victims, victim{fmt.Sprintf("header-%d-%d", chunk, i), chunk, i})
		}
	}
	for i := range 60 {
		victims = append(victims, victim{fmt.Sprintf("random-%d", i), rng.IntN(nChunks), -1})
	}

	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t)}
	b := harness.Start(t, o)
	value := func(topic string, n int) string { return fmt.Sprintf(`{"topic":%q,"n":%d}`, topic, n) }
	for _, v := range victims {
		b.CreateTopic(t, v.name, 1, "")
		for c := range nChunks {
			var lines strings.Builder
			for i := range perChunk {
				lines.WriteString(value(v.name, c*perChunk+i) + "\n")
			}
			b.Must(t, http.StatusOK, "POST", harness.ProducePort, "/v1/topic/"+v.name+"/messages", lines.String(), "Content-Type", "application/x-ndjson")
		}
	}
	ids := map[string]string{}
	for _, v := range victims {
		ids[v.name] = b.Topic(t, v.name).ID
	}
	if !clean {
		b.Kill()
	} else if _, err := b.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	for _, v := range victims {
		flip(t, rng, filepath.Join(logsOf(o.Dir), ids[v.name], "0"), v, nChunks)
	}

	b = harness.Start(t, o)
	mended := 0
	for _, v := range victims {
		lost := harness.OffsetRange{From: int64(v.chunk * perChunk), To: int64((v.chunk + 1) * perChunk)}
		if _, damaged, _ := b.ReadPartition(t, v.name, 0, 0); !clean && len(damaged) == 0 {
			lost = harness.OffsetRange{}
			mended++
		}
		check := func(when string, end int64) {
			t.Helper()
			records, damaged, next := b.ReadPartition(t, v.name, 0, 0)
			if lost.To > 0 && (len(damaged) != 1 || damaged[0] != lost) || lost.To == 0 && len(damaged) > 0 {
				t.Errorf("%s, %s: damaged %v is reported, want %v", v.name, when, damaged, lost)
			}
			if next != end {
				t.Errorf("%s, %s: the log ends at %d, want %d", v.name, when, next, end)
			}
			want := int64(0)
			for _, r := range records {
				if lost.To > 0 && want == lost.From {
					want = lost.To
				}
				if r.Offset != want || string(r.Value) != value(v.name, int(want)) {
					t.Errorf("%s, %s: offset %d holds %s, want %d", v.name, when, r.Offset, r.Value, want)
				}
				want++
			}
			if lost.To > 0 && want == lost.From {
				want = lost.To
			}
			if want != end {
				t.Errorf("%s, %s: %d records came, the last before %d", v.name, when, len(records), want)
			}
		}
		check("after the start", total)
		b.MustProduce(t, v.name, "", value(v.name, total))
		check("after an append", total+1)
	}
	t.Logf("%d chunks damaged, %d of them whole again from the journal", len(victims), mended)
	for name, id := range ids {
		if !clean {
			break
		}
		if !strings.Contains(b.Log(), id) && !strings.Contains(b.Log(), `"`+name+`"`) {
			t.Errorf("the log does not name topic %s", name)
		}
	}
	if n := b.Metric(t, "skein_log_damaged_records_total"); n < float64(perChunk*(len(victims)-mended)) {
		t.Errorf("skein_log_damaged_records_total is %v for %d damaged records", n, perChunk*(len(victims)-mended))
	}

	// A group gets everything else, once.
	b.Register(t, "c", "g", names(victims)...)
	got := map[string]map[int64]bool{}
	for empty := 0; empty < 3; {
		records, _, err := b.Poll("c", "wait=200ms")
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			empty++
		}
		for _, r := range records {
			if got[r.Topic] == nil {
				got[r.Topic] = map[int64]bool{}
			}
			if got[r.Topic][r.Offset] || string(r.Value) != value(r.Topic, int(r.Offset)) {
				t.Errorf("%s: the group is given %d with %s", r.Topic, r.Offset, r.Value)
			}
			got[r.Topic][r.Offset] = true
		}
	}
	for _, v := range victims {
		if n := len(got[v.name]); n != total+1-perChunk && (clean || n != total+1) {
			t.Errorf("%s: the group is given %d records, want %d", v.name, n, total+1-perChunk)
		}
	}
	if !b.Alive() {
		t.Fatal("the broker has ended")
	}
}

func names(victims []victim) (out []string) {
	for _, v := range victims {
		out = append(out, v.name)
	}
	return out
}

// flip changes one bit of a byte of a chunk.
func flip(t *testing.T, rng *rand.Rand, dir string, v victim, nChunks int) {
	t.Helper()
	path := filepath.Join(dir, fmt.Sprintf("%020d.log", 0))
	segment, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	starts := chunks(t, segment)
	if len(starts) != nChunks+1 {
		t.Fatalf("%s holds %d chunks, want %d", path, len(starts)-1, nChunks)
	}
	at := starts[v.chunk] + v.byte
	if v.byte < 0 {
		at = starts[v.chunk] + rng.IntN(starts[v.chunk+1]-starts[v.chunk])
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{segment[at] ^ 1<<rng.IntN(8)}, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// TestDamagedIndexes: offset and time indexes are only a help. Whatever happens to them, everything is served.
func TestDamagedIndexes(t *testing.T) {
	rng, seed := random(t)
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t), Env: map[string]string{"SKEIN_FLUSH": "interval"}}
	b := harness.Start(t, o)
	b.CreateTopic(t, "indexes", 3, `{"segmentBytes":1048576}`)
	ledger := harness.NewLedger()
	load := harness.StartLoad(b, ledger, harness.LoadOptions{Topic: "indexes", Name: "i", Binary: 2, Seed: seed})
	harness.Eventually(t, time.Minute, "30,000 records are acknowledged", func() bool { return load.Acked() >= 30_000 })
	load.Stop()
	load.CheckErrors(t)
	if _, err := b.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	hit := 0
	err := filepath.WalkDir(logsOf(o.Dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "index") {
			return err
		}
		hit++
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch rng.IntN(4) {
		case 0:
			return os.Remove(path)
		case 1:
			return os.Truncate(path, int64(rng.IntN(len(content)+1)))
		case 2:
			for i := range content {
				content[i] = byte(rng.Uint32())
			}
		default:
			if len(content) > 0 {
				content[rng.IntN(len(content))] ^= 1 << rng.IntN(8)
			}
		}
		return os.WriteFile(path, content, 0o644)
	})
	if err != nil || hit == 0 {
		t.Fatalf("%d indexes were damaged: %v", hit, err)
	}
	b = harness.Start(t, o)
	checker := harness.NewChecker(ledger)
	checker.ReadOn(t, b, "indexes", make([]int64, 3))
	report := checker.Report()
	t.Logf("%d index files damaged: %s", hit, report)
	if bad := report.Bad(); bad != "" {
		t.Error(bad)
	}
	// Reads that go through the indexes: every offset is found where it is.
	for p, l := range b.Topic(t, "indexes").Logs {
		for range 50 {
			from := rng.Int64N(l.End)
			var a harness.ReadAnswer
			b.MustJSON(t, &a, "GET", harness.AdminPort, fmt.Sprintf("/v1/topic/indexes/partitions/%d/records?offset=%d&maxRecords=1", p, from), "")
			if len(a.Records) != 1 || a.Records[0].Offset != from {
				t.Fatalf("a read of %d@%d gives %+v", p, from, a.Records)
			}
		}
	}
}
