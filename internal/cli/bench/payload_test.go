package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

func TestPayloadRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	rapid.Check(t, func(t *rapid.T) {
		s := Stamp{
			Run: rapid.StringMatching(`[a-z0-9]{1,16}`).Draw(t, "run"), Key: rapid.StringMatching(`k[0-9]{1,7}|~[0-9]{1,4}`).Draw(t, "key"),
			Seq: rapid.Uint64Range(0, 10_000_000).Draw(t, "seq"), Due: rapid.Int64Range(1e15, 2e15).Draw(t, "due"),
		}
		size := rapid.IntRange(MinSize, 5000).Draw(t, "size")
		b := AppendPayload([]byte("before"), s, size, r)[len("before"):]
		if len(b) != size || !json.Valid(b) {
			t.Fatalf("a payload of %d bytes, valid JSON %v: %s", len(b), json.Valid(b), b)
		}
		if got, ok := ParseStamp(b); !ok || got != s {
			t.Fatalf("stamp %+v, %v, want %+v", got, ok, s)
		}
	})
}

// Payloads compress about as business data do: a generator of equal records would measure a compressor's best case.
func TestPayloadsCompressByHalf(t *testing.T) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	for _, size := range []int{100, 1024} {
		r := rand.New(rand.NewPCG(3, 4))
		var b []byte
		for i := 0; len(b) < 64<<10; i++ {
			b = AppendPayload(b, Stamp{Run: "abcdefgh", Key: fmt.Sprintf("k%d", r.IntN(100_000)), Seq: uint64(i % 20), Due: 1_772_352_000_000_000 + int64(i)*37}, size, r)
		}
		if ratio := float64(len(b)) / float64(len(enc.EncodeAll(b, nil))); ratio < 1.8 || ratio > 2.7 {
			t.Errorf("records of %d bytes compress by %.2f, want about 2", size, ratio)
		}
	}
}

func FuzzParseStamp(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	f.Add(AppendPayload(nil, Stamp{Run: "r", Key: "k1", Seq: 7, Due: 1}, MinSize, r))
	f.Add([]byte(`{"r":"","k":"","n":0,"t":0,"d":"`))
	f.Add([]byte(`{"r":"a","k":"b","n":99999999999999999999,"t":1,"d":"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := ParseStamp(b)
		if ok && s.Seq > maxSeq {
			t.Errorf("sequence %d is above the bound", s.Seq)
		}
	})
}
