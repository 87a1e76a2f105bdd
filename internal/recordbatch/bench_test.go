package recordbatch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
)

// sample is about size bytes of JSON as applications send it: it shrinks to about half.
func sample(size int) []Record {
	random := rand.New(rand.NewPCG(1, 2))
	words := []string{"order", "stock", "warehouse", "pending", "shipped", "north", "south", "carrier", "invoice", "customer"}
	records := make([]Record, 4096)
	for i := range records {
		fields := map[string]any{"id": random.Uint32(), "units": random.IntN(100)}
		value, _ := json.Marshal(fields)
		for n := 0; len(value) < size; n++ {
			fields[fmt.Sprintf("%s%d", words[random.IntN(len(words))], n)] = fmt.Sprintf("%s-%x", words[random.IntN(len(words))], random.Uint32())
			value, _ = json.Marshal(fields)
		}
		records[i] = Record{Timestamp: 1_700_000_000_000 + int64(i), Key: fmt.Appendf(nil, "key-%d", random.IntN(1000)), Value: value[:size]}
	}
	return records
}

const chunk = 64 << 10

// fill appends records to b until a chunk is full.
func fill(b *Builder, records []Record) {
	b.Reset(1_700_000_000_000)
	for i := 0; b.Size() < chunk; i++ {
		b.Append(&records[i%len(records)])
	}
}

func sizes(b *testing.B, run func(*testing.B, []Record)) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			b.ReportAllocs()
			run(b, sample(size))
		})
	}
}

// BenchmarkAppend adds records to a builder; one operation is a chunk of 64 KiB.
func BenchmarkAppend(b *testing.B) {
	sizes(b, func(b *testing.B, records []Record) {
		var builder Builder
		fill(&builder, records)
		b.SetBytes(int64(builder.Size()))
		for b.Loop() {
			fill(&builder, records)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(builder.Count()), "ns/record")
	})
}

// BenchmarkSeal packs a chunk of 64 KiB.
func BenchmarkSeal(b *testing.B) {
	for _, codec := range []string{"zstd", "none"} {
		b.Run(codec, func(b *testing.B) {
			sizes(b, func(b *testing.B, records []Record) {
				var builder Builder
				builder.SetCompression(codec == "zstd")
				fill(&builder, records)
				var dst []byte
				b.SetBytes(int64(builder.Size()))
				for b.Loop() {
					dst = builder.Seal(dst[:0])
				}
				b.ReportMetric(float64(builder.Size())/float64(len(dst)), "ratio")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(builder.Count()), "ns/record")
			})
		})
	}
}

// BenchmarkSealOne packs a chunk of a single record, as a lone request makes it.
func BenchmarkSealOne(b *testing.B) {
	sizes(b, func(b *testing.B, records []Record) {
		var builder Builder
		var dst []byte
		i := 0
		for b.Loop() {
			builder.Reset(0)
			builder.Append(&records[i%len(records)])
			dst = builder.Seal(dst[:0])
			i++
		}
	})
}

// BenchmarkDecode unpacks a chunk of 64 KiB into records.
func BenchmarkDecode(b *testing.B) {
	for _, codec := range []string{"zstd", "none"} {
		b.Run(codec, func(b *testing.B) {
			sizes(b, func(b *testing.B, records []Record) {
				var builder Builder
				builder.SetCompression(codec == "zstd")
				fill(&builder, records)
				batch := builder.Seal(nil)
				var d Decoder
				b.SetBytes(int64(builder.Size()))
				for b.Loop() {
					if _, err := d.Decode(batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(builder.Count()), "ns/record")
			})
		})
	}
}

// BenchmarkDecodeHeaders unpacks records with two headers each.
func BenchmarkDecodeHeaders(b *testing.B) {
	b.ReportAllocs()
	var builder Builder
	builder.Reset(0)
	for builder.Size() < chunk {
		builder.Append(&Record{Value: bytes.Repeat([]byte("v"), 80), Headers: []RecordHeader{{Key: "trace", Value: []byte("0123456789")}, {Key: "type", Value: []byte("x")}}})
	}
	batch := builder.Seal(nil)
	var d Decoder
	for b.Loop() {
		if _, err := d.Decode(batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(builder.Count()), "ns/record")
}

// BenchmarkCheck verifies a chunk of 64 KiB.
func BenchmarkCheck(b *testing.B) {
	var builder Builder
	builder.SetCompression(false)
	fill(&builder, sample(1024))
	batch := builder.Seal(nil)
	b.SetBytes(int64(len(batch)))
	for b.Loop() {
		if _, err := Check(batch); err != nil {
			b.Fatal(err)
		}
	}
}
