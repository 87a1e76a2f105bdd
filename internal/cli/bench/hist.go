package bench

import (
	"math/bits"
	"time"
)

// subBits sets the resolution of a Histogram: 2^subBits buckets for each doubling, so a value is off by at most 1/64.
const subBits = 6

const buckets = (64 - subBits + 1) << subBits

// Histogram counts durations in buckets whose width grows with the value. The zero value is empty. It is not safe for
// concurrent use: keep one for each goroutine and Merge them.
type Histogram struct {
	counts [buckets]uint64
	n      uint64
	sum    float64
	max    time.Duration
}

// bucketOf is the bucket of v nanoseconds: exact below 2^(subBits+1), else by the highest subBits+1 bits.
func bucketOf(v uint64) int {
	shift := bits.Len64(v) - subBits - 1
	if shift <= 0 {
		return int(v)
	}
	return shift<<subBits + int(v>>shift)
}

// upperOf is the highest value of a bucket.
func upperOf(bucket int) uint64 {
	shift := bucket>>subBits - 1
	if shift <= 0 {
		return uint64(bucket)
	}
	return uint64(bucket-shift<<subBits+1)<<shift - 1
}

// Add counts d; a negative one as 0.
func (h *Histogram) Add(d time.Duration) { h.AddN(d, 1) }

// AddN counts d n times.
func (h *Histogram) AddN(d time.Duration, n uint64) {
	d = max(d, 0)
	h.counts[bucketOf(uint64(d))] += n
	h.n += n
	h.sum += float64(d) * float64(n)
	h.max = max(h.max, d)
}

// Merge adds what o counted.
func (h *Histogram) Merge(o *Histogram) {
	for i, c := range o.counts {
		h.counts[i] += c
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count is how many durations were counted.
func (h *Histogram) Count() uint64 { return h.n }

// Quantile is the duration that the part q of all (0 to 1) does not exceed, at most 1/64 too high; 0 when empty.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := min(uint64(q*float64(h.n))+1, h.n)
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen >= rank {
			return min(time.Duration(upperOf(i)), h.max)
		}
	}
	return h.max
}

// Latency is a summary of a Histogram, in milliseconds.
type Latency struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99.9"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
}

// Summary is nil for an empty histogram.
func (h *Histogram) Summary() *Latency {
	if h.n == 0 {
		return nil
	}
	ms := func(d time.Duration) float64 { return round3(float64(d) / 1e6) }
	return &Latency{ms(h.Quantile(0.5)), ms(h.Quantile(0.99)), ms(h.Quantile(0.999)), ms(h.max), round3(h.sum / float64(h.n) / 1e6)}
}
