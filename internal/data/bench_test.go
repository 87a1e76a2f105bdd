package data_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// benchStore is a store on the real disk.
func benchStore(b *testing.B, flush data.FlushPolicy) *data.Store {
	s, err := data.Open(data.Config{Dir: b.TempDir(), KV: memfs.NewKV(memfs.New(1, 1<<30)), Flush: flush, ReserveBytes: 16 << 20})
	must(b, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		must(b, errors.Join(<-done, s.Close()))
	})
	return s
}

// benchRound is a round with a chunk of about size bytes for each of n logs.
func benchRound(r *rig, n, size int) []*data.Append {
	topic := uuid.New()
	var round []*data.Append
	for i := range n {
		records := max(1, size/110)
		round = append(round, &data.Append{Log: topology.LogID{Topic: topic, Partition: topology.Partition(i)}, Version: 1,
			Batch: r.batch(fmt.Sprintf("%0100d", i), records)})
	}
	return round
}

// BenchmarkCommit appends rounds: bytes are those of the chunks, an operation is a round.
func BenchmarkCommit(b *testing.B) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		for _, logs := range []int{1, 12} {
			for _, size := range []int{1 << 10, 32 << 10} {
				b.Run(fmt.Sprintf("%s/logs=%d/chunk=%dKiB", flush, logs, size>>10), func(b *testing.B) {
					s := benchStore(b, flush)
					round := benchRound(&rig{now: time.Now()}, logs, size)
					var bytes int64
					for _, a := range round {
						bytes += int64(len(a.Batch))
					}
					s.Commit(round)
					b.SetBytes(bytes)
					b.ReportAllocs()
					var times []time.Duration
					for b.Loop() {
						began := time.Now()
						s.Commit(round)
						times = append(times, time.Since(began))
					}
					reportTimes(b, times)
					for _, a := range round {
						must(b, a.Err)
					}
				})
			}
		}
	}
}

// reportTimes reports the median and the 99th percentile.
func reportTimes(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds())/1e3, "p99-µs")
}

// BenchmarkRead reads a log of 64 MiB from the page cache, one way on and at random places.
func BenchmarkRead(b *testing.B) {
	s := benchStore(b, data.FlushInterval)
	round := benchRound(&rig{now: time.Now()}, 1, 32<<10)
	for range 2000 {
		s.Commit(round)
	}
	must(b, round[0].Err)
	log := round[0].Log
	end := s.Info(log).End
	for _, maxBytes := range []int{1, 1 << 20} {
		b.Run(fmt.Sprintf("onward/max=%d", maxBytes), func(b *testing.B) {
			var buf []byte
			var at topology.Offset
			var bytes int64
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				res, kept, err := s.Read(log, at, maxBytes, buf)
				must(b, err)
				buf, at = kept, res.Next
				for _, c := range res.Chunks {
					bytes += int64(len(c.Bytes))
				}
				if at == end {
					at = 0
				}
				n++
			}
			b.SetBytes(bytes / int64(n))
		})
	}
	b.Run("random", func(b *testing.B) {
		var buf []byte
		b.ReportAllocs()
		at := topology.Offset(0)
		for b.Loop() {
			at = (at*1103515245 + 12345) % end
			if at < 0 {
				at += end
			}
			_, kept, err := s.Read(log, at, 1, buf)
			must(b, err)
			buf = kept
		}
	})
}
