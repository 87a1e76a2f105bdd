package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

// drawBytes draws nil, empty or some bytes.
func drawBytes(t *rapid.T, label string) []byte {
	if rapid.Bool().Draw(t, label+" is null") {
		return nil
	}
	return rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, label)
}

func drawRecord(t *rapid.T) Record {
	r := Record{
		Timestamp: rapid.Int64().Draw(t, "timestamp"),
		Key:       drawBytes(t, "key"),
		Value:     drawBytes(t, "value"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "headers") {
		r.Headers = append(r.Headers, RecordHeader{Key: rapid.String().Draw(t, "header"), Value: drawBytes(t, "header value")})
	}
	return r
}

// TestRoundTrip: what a Builder seals, a Decoder gives back, whatever was built and decoded with the same ones before.
func TestRoundTrip(t *testing.T) {
	var b Builder
	var d Decoder
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.Int64().Draw(t, "base timestamp")
		b.Reset(base)
		b.SetCompression(rapid.Bool().Draw(t, "compress"))
		records := rapid.SliceOfN(rapid.Custom(drawRecord), 1, 40).Draw(t, "records")
		offset := topology.Offset(rapid.Int64Range(0, math.MaxInt64-50).Draw(t, "offset"))
		highest := int64(math.MinInt64)
		for i := range records {
			b.Append(&records[i])
			records[i].Offset = offset + topology.Offset(i)
			highest = max(highest, records[i].Timestamp)
		}
		prefix := []byte("before")
		out := b.Seal(prefix)
		batch := out[len(prefix):]
		if !bytes.HasPrefix(out, prefix) || !bytes.Equal(batch, b.Seal(nil)) {
			t.Fatal("Seal must append, and give the same batch again")
		}
		SetPosition(batch, offset, 5)
		h, err := Check(append(batch, "of the next batch"...))
		if err != nil {
			t.Fatal(err)
		}
		if h.Size() != len(batch) || h.BaseTimestamp != base || h.MaxTimestamp != highest || h.Version != 5 ||
			h.Next() != offset+topology.Offset(len(records)) || h.ProducerID != -1 || h.ProducerEpoch != -1 || h.BaseSequence != -1 {
			t.Fatalf("header %+v", h)
		}
		got, err := d.Decode(batch)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, records) {
			t.Fatalf("decoded\n%+v, want\n%+v", got, records)
		}
	})
}

// TestVarintLen holds the sizes that Append computes against what it writes.
func TestVarintLen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64().Draw(t, "v")
		if want := len(binary.AppendVarint(nil, v)); varintLen(v) != want {
			t.Fatalf("%d takes %d bytes, not %d", v, want, varintLen(v))
		}
	})
}

// TestEveryByteCounts: a flipped bit anywhere in a batch is noticed by Check, except in the fields that the log
// vouches for (docs/formats.md, "Chunk").
func TestEveryByteCounts(t *testing.T) {
	batch := goldenBatch(false)
	for at := range batch {
		for bit := range 8 {
			changed := slices.Clone(batch)
			changed[at] ^= 1 << bit
			_, err := Check(changed)
			position := at < posLength || at >= posVersion && at < posMagic
			if noticed := errors.Is(err, ErrCorrupt) || errors.Is(err, ErrShort); !noticed && !position {
				t.Errorf("byte %d bit %d: %v", at, bit, err)
			}
		}
	}
}

func TestParseHeaderRefuses(t *testing.T) {
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.BigEndian.PutUint32(b[at:], v); return b }
	}
	for name, test := range map[string]struct {
		change func([]byte) []byte
		want   error
	}{
		"nothing":                   {func([]byte) []byte { return nil }, ErrShort},
		"header cut by a byte":      {func(b []byte) []byte { return b[:HeaderSize-1] }, ErrShort},
		"all zero, as preallocated": {func([]byte) []byte { return make([]byte, 4096) }, ErrCorrupt},
		"magic 1":                   {func(b []byte) []byte { b[posMagic] = 1; return b }, ErrCorrupt},
		"length below the header":   {put32(posLength, minLength-1), ErrCorrupt},
		"length negative":           {put32(posLength, math.MaxUint32), ErrCorrupt},
		"length above the bound":    {put32(posLength, MaxSize-lengthOverhead+1), ErrCorrupt},
		"no records":                {put32(posRecords, 0), ErrCorrupt},
		"records negative":          {put32(posRecords, math.MaxUint32), ErrCorrupt},
		"more records than offsets": {put32(posRecords, 5), ErrCorrupt},
		"more offsets than records": {put32(posLastOffsetDelta, 9), ErrCorrupt},
		"more records than the bound": {func(b []byte) []byte {
			put32(posLastOffsetDelta, MaxRecords)(b)
			return put32(posRecords, MaxRecords+1)(b)
		}, ErrCorrupt},
		"offset negative":  {put32(posBaseOffset, 1<<31), ErrCorrupt},
		"offsets run over": {func(b []byte) []byte { SetPosition(b, math.MaxInt64-3, 1); return b }, ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseHeader(test.change(goldenBatch(false))); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	batch := goldenBatch(false)
	if _, err := Check(batch[:len(batch)-1]); !errors.Is(err, ErrShort) {
		t.Errorf("a batch cut by a byte: %v", err)
	}
	batch[posMagic]++
	if n := testing.AllocsPerRun(100, func() { _, _ = ParseHeader(batch) }); n != 0 {
		t.Errorf("a refused header allocates %v times", n)
	}
}

// rawBatch is a batch whose records are the given bytes, with a right checksum.
func rawBatch(attributes int16, records int32, body []byte) []byte {
	batch := append(make([]byte, HeaderSize), body...)
	Header{
		Length: int32(len(batch) - lengthOverhead), Attributes: attributes, LastOffsetDelta: records - 1, Records: records,
		BaseTimestamp: 1000, MaxTimestamp: 2000,
	}.put(batch)
	binary.BigEndian.PutUint32(batch[posCRC:], crc32.Checksum(batch[posAttributes:], castagnoli))
	return batch
}

// varints is the zigzag form of each v, one after the other.
func varints(v ...int64) []byte {
	var b []byte
	for _, v := range v {
		b = binary.AppendVarint(b, v)
	}
	return b
}

func TestDecodeRefuses(t *testing.T) {
	bomb := compress(nil, make([]byte, 1<<20))
	bomb = append(slices.Clone(bomb[:4]), 0xa0, 0xff, 0xff, 0xff, 0x7f) // claims 2 GiB
	for name, batch := range map[string][]byte{
		"gzip":                               rawBatch(1, 1, []byte{12, 0, 0, 0, 1, 1, 0}),
		"unknown codec":                      rawBatch(7, 1, []byte{12, 0, 0, 0, 1, 1, 0}),
		"transactional":                      rawBatch(1<<4, 1, []byte{12, 0, 0, 0, 1, 1, 0}),
		"control":                            rawBatch(1<<5, 1, []byte{12, 0, 0, 0, 1, 1, 0}),
		"unknown attribute":                  rawBatch(1<<13, 1, []byte{12, 0, 0, 0, 1, 1, 0}),
		"no bytes for the records":           rawBatch(0, 1, nil),
		"a million records in 7 bytes":       rawBatch(0, MaxRecords, []byte{12, 0, 0, 0, 1, 1, 0}),
		"bytes after the last record":        rawBatch(0, 1, []byte{12, 0, 0, 0, 1, 1, 0, 0}),
		"record length negative":             rawBatch(0, 1, []byte{11, 0, 0, 0, 1, 1, 0}),
		"record length beyond the batch":     rawBatch(0, 1, []byte{14, 0, 0, 0, 1, 1, 0}),
		"record length huge":                 rawBatch(0, 1, append(varints(math.MaxInt64), 0, 0, 0, 1, 1, 0)),
		"record longer than its fields":      rawBatch(0, 1, []byte{14, 0, 0, 0, 1, 1, 0, 0}),
		"offset delta is not the place":      rawBatch(0, 1, []byte{12, 0, 0, 2, 1, 1, 0}),
		"key length below -1":                rawBatch(0, 1, []byte{12, 0, 0, 0, 3, 1, 0}),
		"key beyond the record":              rawBatch(0, 1, []byte{12, 0, 0, 0, 8, 1, 0}),
		"value beyond the record":            rawBatch(0, 1, append(append([]byte{12, 0, 0, 0, 1}, varints(1<<40)...), 0)),
		"header count negative":              rawBatch(0, 1, []byte{12, 0, 0, 0, 1, 1, 1}),
		"more headers than bytes":            rawBatch(0, 1, []byte{14, 0, 0, 0, 1, 1, 2, 0}),
		"header key null":                    rawBatch(0, 1, []byte{16, 0, 0, 0, 1, 1, 2, 1, 1}),
		"header value beyond the record":     rawBatch(0, 2, []byte{16, 0, 0, 0, 1, 1, 2, 0, 4, 12, 0, 0, 2, 1, 1, 0}),
		"second record begins in the header": rawBatch(0, 2, []byte{12, 0, 0, 0, 1, 1, 0, 12, 0, 0, 0, 1, 1, 0}),
		"varint without end":                 rawBatch(0, 1, bytes.Repeat([]byte{0xff}, 20)),
		"zstd: nothing":                      rawBatch(codecZstd, 1, nil),
		"zstd: no frame":                     rawBatch(codecZstd, 1, []byte("0123456789")),
		"zstd: frame cut":                    rawBatch(codecZstd, 1, compress(nil, make([]byte, 1000))[:8]),
		"zstd: claims more than it can hold": rawBatch(codecZstd, 1, bomb),
		"zstd: unpacks to zeros":             rawBatch(codecZstd, 100, compress(nil, make([]byte, 32<<20))),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Check(batch); err != nil {
				t.Fatalf("the case shall be refused by Decode, not by Check: %v", err)
			}
			var d Decoder
			if records, err := d.Decode(batch); !errors.Is(err, ErrCorrupt) {
				t.Errorf("got %d records, %v", len(records), err)
			}
			if records, err := d.Decode(goldenBatch(true)); err != nil || len(records) != 4 {
				t.Errorf("the decoder is not usable afterwards: %d records, %v", len(records), err)
			}
		})
	}
	var d Decoder
	if _, err := d.Decode(goldenBatch(false)[:HeaderSize+10]); !errors.Is(err, ErrShort) {
		t.Errorf("a cut batch: %v", err)
	}
}

// TestTooLarge: a batch that unpacks beyond MaxUncompressed is refused before that much is unpacked.
func TestTooLarge(t *testing.T) {
	if testing.Short() {
		t.Skip("unpacks 64 MiB")
	}
	packed := compress(nil, make([]byte, MaxUncompressed))
	batch := rawBatch(codecZstd, 1, append(packed, packed...)) // two frames, one more than the bound
	var d Decoder
	if _, err := d.Decode(batch); !errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}

// TestLogAppendTime: batches of others may say that all records carry the highest timestamp.
func TestLogAppendTime(t *testing.T) {
	var d Decoder
	records, err := d.Decode(rawBatch(flagLogAppendTime, 1, []byte{12, 0, 20, 0, 1, 1, 0}))
	if err != nil || records[0].Timestamp != 2000 {
		t.Errorf("got %+v, %v", records, err)
	}
}

func TestHeadersOfRecord(t *testing.T) {
	r := goldenRecords()[0]
	r.Headers = append(r.Headers, RecordHeader{Key: HiddenPrefix + "a", Value: []byte("1")}, RecordHeader{Key: "last"})
	var seen []string
	for h := range r.VisibleHeaders() {
		seen = append(seen, h.Key)
	}
	if got := strings.Join(seen, " "); got != "trace empty null trace last" {
		t.Errorf("visible headers: %s", got)
	}
	for h := range r.VisibleHeaders() {
		if h.Key == "empty" {
			break
		}
	}
	if v, ok := r.Hidden(HiddenPrefix + "a"); !ok || string(v) != "1" {
		t.Errorf("hidden header: %q, %v", v, ok)
	}
	if _, ok := r.Hidden(HiddenPrefix + "b"); ok {
		t.Error("a header that is not there was found")
	}
	if got, want := r.Bytes(), 3+5+5+3+5+4+5+5+len(HiddenPrefix)+1+1+4; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
}

// TestCompressionPays: bytes that do not shrink are stored plain, and after some misses only tried now and then.
func TestCompressionPays(t *testing.T) {
	source := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 4096)
	_, _ = source.Read(noise)
	text := []byte(strings.Repeat("the same again ", 300))
	var p Payoff
	var b Builder
	b.SetPayoff(&p)
	seal := func(value []byte) bool {
		b.Reset(0)
		b.Append(&Record{Value: value})
		h, err := Check(b.Seal(nil))
		if err != nil {
			t.Fatal(err)
		}
		return h.Compressed()
	}
	if !seal(text) {
		t.Error("text is not compressed")
	}
	if seal(noise) {
		t.Error("noise is compressed")
	}
	if !seal(text) {
		t.Error("one miss must not end the tries")
	}
	for range payoffMisses {
		seal(noise)
	}
	passed := 0
	for !seal(text) {
		passed++
	}
	if passed != payoffPause-1 || !seal(text) {
		t.Errorf("%d chunks were let pass, want %d", passed, payoffPause-1)
	}
	if seal(text[:minCompress/2]) {
		t.Error("a tiny batch is compressed")
	}
	b.SetCompression(false)
	if seal(text) {
		t.Error("compressed although switched off")
	}
}

func TestSealPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an empty batch is sealed")
		}
	}()
	var b Builder
	b.Reset(0)
	b.Seal(nil)
}

// TestManyAtOnce: encoders and decoders are shared, so builders and decoders of many goroutines must not disturb each
// other.
func TestManyAtOnce(t *testing.T) {
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			var b Builder
			var d Decoder
			for i := range 20 {
				value := bytes.Repeat([]byte{byte(g), byte(i)}, 2000)
				b.Reset(0)
				b.Append(&Record{Value: value})
				records, err := d.Decode(b.Seal(nil))
				if err != nil || !bytes.Equal(records[0].Value, value) {
					t.Errorf("goroutine %d, batch %d: %v", g, i, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestNothingAllocated: with buffers grown, a batch costs no allocation, whatever its number of records.
func TestNothingAllocated(t *testing.T) {
	var b Builder
	var d Decoder
	var dst []byte
	record := Record{Key: []byte("key"), Value: []byte(strings.Repeat("value ", 20)), Headers: []RecordHeader{{Key: "a"}, {Key: "b", Value: []byte("c")}}}
	round := func() {
		b.Reset(0)
		for range 100 {
			b.Append(&record)
		}
		dst = b.Seal(dst[:0])
		if _, err := d.Decode(dst); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(20, round); n > 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// TestBuffersShrink: one large record does not hold its memory for good.
func TestBuffersShrink(t *testing.T) {
	var b Builder
	var d Decoder
	b.Reset(0)
	b.Append(&Record{Value: make([]byte, 2*keepBytes)})
	if _, err := d.Decode(b.Seal(nil)); err != nil {
		t.Fatal(err)
	}
	b.Reset(0)
	b.Append(&Record{Value: make([]byte, 1000)})
	if _, err := d.Decode(b.Seal(nil)); err != nil {
		t.Fatal(err)
	}
	if cap(b.records) > keepBytes || cap(d.raw) > keepBytes {
		t.Errorf("builder keeps %d bytes, decoder %d", cap(b.records), cap(d.raw))
	}
}
