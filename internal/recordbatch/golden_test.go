package recordbatch

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

var update = flag.Bool("update", false, "write the golden files of testdata again")

// goldenRecords have each form that a field can take.
func goldenRecords() []Record {
	return []Record{
		{Timestamp: 1_700_000_000_500, Key: []byte("key"), Value: []byte("value"), Headers: []RecordHeader{
			{Key: "trace", Value: []byte("abc")}, {Key: "empty", Value: []byte{}}, {Key: "null"}, {Key: "trace", Value: []byte("again")},
		}},
		{Timestamp: 1_600_000_000_000, Key: nil, Value: []byte{}},
		{Timestamp: 0, Key: []byte{}, Value: nil, Headers: []RecordHeader{{Key: HiddenPrefix + "idem", Value: []byte{1, 2, 3}}}},
		{Timestamp: 1_700_000_000_001, Key: []byte("grüße"), Value: []byte(strings.Repeat("0123456789", 100))},
	}
}

func goldenBatch(compressed bool) []byte {
	var b Builder
	b.Reset(1_700_000_000_000)
	b.SetCompression(compressed)
	b.SetIdempotent()
	b.SetProducer(77, 3, 1000)
	for _, r := range goldenRecords() {
		b.Append(&r)
	}
	batch := b.Seal(nil)
	SetPosition(batch, 1<<40, 9)
	return batch
}

// TestGolden pins the layout of docs/formats.md. Compressed bytes may change with the library that makes them, so the
// stored ones need only stay readable; plain ones are compared byte by byte.
func TestGolden(t *testing.T) {
	for name, compressed := range map[string]bool{"plain": false, "zstd": true} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", name+".hex")
			if *update {
				if err := os.WriteFile(file, []byte(dump(goldenBatch(compressed))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			stored := readHex(t, file)
			if !compressed && string(stored) != string(goldenBatch(false)) {
				t.Errorf("the batch differs from %s:\n%s", file, dump(goldenBatch(false)))
			}
			h, err := Check(stored)
			if err != nil {
				t.Fatal(err)
			}
			want := Header{
				BaseOffset: 1 << 40, Length: h.Length, Version: 9, CRC: h.CRC, Attributes: h.Attributes, LastOffsetDelta: 3,
				BaseTimestamp: 1_700_000_000_000, MaxTimestamp: 1_700_000_000_500, ProducerID: 77, ProducerEpoch: 3,
				BaseSequence: 1000, Records: 4,
			}
			if h != want {
				t.Errorf("header is\n%+v, want\n%+v", h, want)
			}
			if h.Size() != len(stored) || h.Next() != 1<<40+4 || !h.Idempotent() || h.Compressed() != compressed {
				t.Errorf("size %d of %d, next %d, idempotent %v, compressed %v", h.Size(), len(stored), h.Next(), h.Idempotent(), h.Compressed())
			}
			records := goldenRecords()
			for i := range records {
				records[i].Offset = h.BaseOffset + topology.Offset(i)
			}
			var d Decoder
			got, err := d.Decode(stored)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, records) {
				t.Errorf("records are\n%+v, want\n%+v", got, records)
			}
		})
	}
}

// dump is b in hexadecimal, 32 bytes a line.
func dump(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := min(len(b), 32)
		s.WriteString(hex.EncodeToString(b[:n]))
		s.WriteByte('\n')
		b = b[n:]
	}
	return s.String()
}

func readHex(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return b
}
