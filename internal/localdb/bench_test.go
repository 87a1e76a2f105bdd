package localdb

import (
	"fmt"
	"testing"
)

// BenchmarkUpdate stores one value of 100 bytes.
func BenchmarkUpdate(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync=%v", sync), func(b *testing.B) {
			db := openDB(b, b.TempDir())
			b.ReportAllocs()
			value := make([]byte, 100)
			for i := 0; b.Loop(); i++ {
				if err := db.Update(sync, func(put func(k, v []byte), _ func(k []byte)) {
					put(fmt.Appendf(nil, "p/%d", i%10_000), value)
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUpdateMany stores 500 values of 100 bytes in one update, as notes are written.
func BenchmarkUpdateMany(b *testing.B) {
	db := openDB(b, b.TempDir())
	b.ReportAllocs()
	value := make([]byte, 100)
	for i := 0; b.Loop(); i++ {
		if err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) {
			for j := range 500 {
				put(fmt.Appendf(nil, "n/%d", (i*500+j)%100_000), value)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/500, "ns/value")
}

// BenchmarkGet reads one of 100,000 values.
func BenchmarkGet(b *testing.B) {
	db := openDB(b, b.TempDir())
	value := make([]byte, 100)
	for i := range 100 {
		if err := db.Update(false, func(put func(k, v []byte), _ func(k []byte)) {
			for j := range 1000 {
				put(fmt.Appendf(nil, "n/%d", i*1000+j), value)
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if v, err := db.Get(fmt.Appendf(nil, "n/%d", (i*7919)%100_000)); err != nil || len(v) != 100 {
			b.Fatal(len(v), err)
		}
	}
}
