package token_test

import (
	"math"
	"slices"
	"testing"

	"github.com/skeinmq/skein/internal/token"
	"pgregory.net/rapid"
)

// The values of docs/wire.md 6.1 and 6.3, computed by the published clients' own code.
func TestTokenOfKnownKeys(t *testing.T) {
	for key, want := range map[string]token.Token{
		"abcd":            -5153323217664422577,
		"a":               -8839064797231613815,
		"hello":           -3758069500696749310,
		"Hashing a value": 3002999691413861203,
		"héllo":           4427587122518744475,
		"ñ":               -256994781620546563,
		"日本語":             2587241856907040145,
		"0123456789abcdé": -3637682860548693757,
		"123":             -7468325962851647638,
		"567":             121043304653486666,
		"234":             7965679026441812387,
		"k1":              -8074529310846540294,
		"x":               7860725293736722151,
		"my-key":          5000426678104759376,
		"user-42":         5562752747223120546,
	} {
		if got := token.OfString(key); got != want {
			t.Errorf("token of %q = %d, want %d", key, got, want)
		}
	}
}

// R1, docs/wire.md 6.2.
func TestPartStarts(t *testing.T) {
	for size, want := range map[int][]token.Token{
		1: {math.MinInt64},
		3: {-9223372036854775808, -3074457345618259968, 3074457345618255872},
		6: {-9223372036854775808, -6148914691236517888, -3074457345618259968, -2048, 3074457345618255872, 6148914691236513792},
		12: {-9223372036854775808, -7686143364045646848, -6148914691236517888, -4611686018427388928, -3074457345618259968,
			-1537228672809131008, -2048, 1537228672809126912, 3074457345618255872, 4611686018427384832, 6148914691236513792, 7686143364045642752},
	} {
		for i, w := range want {
			if got := token.At(size, i); got != w {
				t.Errorf("At(%d, %d) = %d, want %d", size, i, got, w)
			}
		}
	}
}

// docs/wire.md 6.3: index and ordinal of known keys.
func TestOwnersOfKnownKeys(t *testing.T) {
	type owner struct{ index, ordinal int }
	for key, want := range map[string][3]owner{
		"123":     {{0, 0}, {0, 0}, {1, 6}},
		"567":     {{1, 1}, {3, 4}, {6, 4}},
		"234":     {{2, 2}, {5, 5}, {11, 11}},
		"hello":   {{0, 0}, {1, 3}, {3, 7}},
		"k1":      {{0, 0}, {0, 0}, {0, 0}},
		"x":       {{2, 2}, {5, 5}, {11, 11}},
		"my-key":  {{2, 2}, {4, 2}, {9, 10}},
		"user-42": {{2, 2}, {4, 2}, {9, 10}},
		"héllo":   {{2, 2}, {4, 2}, {8, 2}},
	} {
		for i, size := range []int{3, 6, 12} {
			index := token.Index(size, token.OfString(key))
			got := owner{index, token.Ring(size)[index]}
			if got != want[i] {
				t.Errorf("%q on %d brokers: %+v, want %+v", key, size, got, want[i])
			}
		}
	}
}

// R1, docs/wire.md 6.4.
func TestRingOrder(t *testing.T) {
	for n, want := range map[int][]int{
		1:  {0},
		2:  {0, 1},
		3:  {0, 1, 2},
		4:  {0, 3, 1, 2},
		5:  {0, 3, 1, 4, 2},
		6:  {0, 3, 1, 4, 2, 5},
		12: {0, 6, 3, 7, 1, 8, 4, 9, 2, 10, 5, 11},
		24: {0, 12, 6, 13, 3, 14, 7, 15, 1, 16, 8, 17, 4, 18, 9, 19, 2, 20, 10, 21, 5, 22, 11, 23},
	} {
		if got := token.Ring(n); !slices.Equal(got, want) {
			t.Errorf("Ring(%d) = %v, want %v", n, got, want)
		}
	}
}

// R2, R3: any n is a ring; its ranges cover each token exactly once; one more ordinal splits exactly one range and
// moves no start.
func TestRingProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 200).Draw(t, "n")
		tok := token.Token(rapid.Int64().Draw(t, "token"))
		ranges, next := token.Ranges(n), token.Ranges(n+1)
		covered := 0
		for _, r := range ranges {
			if r.Contains(tok) {
				covered++
			}
		}
		if covered != 1 {
			t.Fatalf("token %d lies in %d of the %d ranges", tok, covered, n)
		}
		kept := 0
		for _, r := range ranges {
			if slices.Contains(next, r) {
				kept++
			}
		}
		if kept != n-1 {
			t.Fatalf("adding ordinal %d changed %d ranges, want 1", n, n-kept)
		}
		if n == token.CeilSize(n) {
			for i, r := range ranges {
				if r.Start != token.At(n, i) {
					t.Fatalf("range %d of %d starts at %d, want the equal part %d", i, n, r.Start, token.At(n, i))
				}
			}
		}
	})
}

func TestIndexAgreesWithItsDefinition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := 3 << rapid.IntRange(0, 12).Draw(t, "doublings")
		tok := token.Token(rapid.Int64().Draw(t, "token"))
		want := size - 1
		for i := range size {
			if token.At(size, i) > tok {
				want = i - 1
				break
			}
		}
		if got := token.Index(size, tok); got != want {
			t.Fatalf("Index(%d, %d) = %d, want %d", size, tok, got, want)
		}
	})
}

func TestValidSizes(t *testing.T) {
	for _, size := range []int{1, 3, 6, 12, 24, 12288} {
		if !token.ValidSize(size) {
			t.Errorf("%d should be valid", size)
		}
	}
	for _, size := range []int{-3, 0, 2, 4, 9, 13, 24576} {
		if token.ValidSize(size) {
			t.Errorf("%d should not be valid", size)
		}
	}
}

func TestRangeContains(t *testing.T) {
	for name, c := range map[string]struct {
		r    token.Range
		t    token.Token
		want bool
	}{
		"start is inside":               {token.Range{Start: -5, End: 5}, -5, true},
		"end is outside":                {token.Range{Start: -5, End: 5}, 5, false},
		"range wraps past the top":      {token.Range{Start: 20, End: -20}, -21, true},
		"wrapped range leaves a middle": {token.Range{Start: 20, End: -20}, 0, false},
		"start equal to end is all":     {token.Range{Start: token.Min, End: token.Min}, 0, true},
	} {
		if got := c.r.Contains(c.t); got != c.want {
			t.Errorf("%s: %v contains %d = %v", name, c.r, c.t, got)
		}
	}
}
