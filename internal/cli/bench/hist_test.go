package bench

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsCoverAllValues(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Uint64Range(0, 1<<63-1).Draw(t, "v")
		b := bucketOf(v)
		if b < 0 || b >= buckets {
			t.Fatalf("%d is in bucket %d of %d", v, b, buckets)
		}
		upper := upperOf(b)
		if upper < v || float64(upper-v) > float64(v)/64 {
			t.Fatalf("bucket of %d ends at %d", v, upper)
		}
		if bucketOf(upper) != b || (upper < 1<<63-1 && bucketOf(upper+1) != b+1) {
			t.Fatalf("bucket %d of %d does not end at %d", b, v, upper)
		}
	})
}

// The histogram gives the quantiles that sorting gives, at most 1/64 too high; merged parts give what one would have.
func TestQuantilesAreThoseOfSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 200).Draw(t, "values")
		var whole, left, right Histogram
		for i, v := range values {
			whole.Add(time.Duration(v))
			if i%2 == 0 {
				left.Add(time.Duration(v))
			} else {
				right.Add(time.Duration(v))
			}
		}
		left.Merge(&right)
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.99, 0.999, 1} {
			exact := values[min(int(q*float64(len(values))), len(values)-1)]
			got := int64(whole.Quantile(q))
			if got < exact || float64(got-exact) > float64(exact)/64+1 {
				t.Fatalf("quantile %g is %d, want %d", q, got, exact)
			}
			if m := int64(left.Quantile(q)); m != got {
				t.Fatalf("quantile %g of merged parts is %d, want %d", q, m, got)
			}
		}
		if whole.Count() != uint64(len(values)) || left.Count() != whole.Count() {
			t.Fatalf("%d and %d counted of %d", whole.Count(), left.Count(), len(values))
		}
	})
}

func TestEmptyHistogram(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Summary() != nil {
		t.Error("an empty histogram has quantiles")
	}
	h.Add(-time.Second)
	if h.Quantile(1) != 0 || h.Summary() == nil {
		t.Error("a negative duration does not count as none")
	}
}
