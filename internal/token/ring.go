package token

import (
	"fmt"
	"slices"
)

// MaxSize is the largest number of equal parts the ring is cut into, 3·2^12: the bound of partitions and of ordinals.
const MaxSize = 12288

// unit is the width of one of MaxSize parts, floor((2^64-1) / MaxSize).
const unit = 1501199875790165

// At is the start of part i of size equal parts of the ring (WIRE.md 6.2). Starts never move when size doubles. It
// panics unless size is in [1, MaxSize]: sizes come from validated settings.
func At(size, i int) Token {
	if size < 1 || size > MaxSize {
		panic(fmt.Sprintf("token: ring size %d is outside [1, %d]", size, MaxSize))
	}
	return Token(uint64(1)<<63 + unit*uint64(MaxSize/size)*uint64(i%size))
}

// Index is the part of size equal parts that t falls into (WIRE.md 6.3), in [0, size).
func Index(size int, t Token) int {
	width := unit * uint64(MaxSize/size)
	return int(min((uint64(t)+1<<63)/width, uint64(size-1)))
}

// ValidSize tells whether size is one that doubling keeps aligned: 1, or 3·2^k up to MaxSize. Topics have such
// partition counts.
func ValidSize(size int) bool {
	if size == 1 {
		return true
	}
	if size < 3 || size > MaxSize || size%3 != 0 {
		return false
	}
	q := size / 3
	return q&(q-1) == 0
}

// CeilSize is the smallest 3·2^k that is at least n. It is the ring of which n ordinals fill the places (R1).
func CeilSize(n int) int {
	size := 3
	for size < n {
		size *= 2
	}
	return size
}

// OfOrdinal is the token of an ordinal, which never changes (R1): ordinals 0, 1, 2 stand at the thirds of the ring, and
// ordinals 3·2^(l-1) .. 3·2^l-1 in the middles of the parts of the ring of size 3·2^(l-1), in ring order.
func OfOrdinal(ordinal int) Token {
	if ordinal < 3 {
		return At(3, ordinal)
	}
	size := CeilSize(ordinal + 1)
	return At(size, 2*(ordinal-size/2)+1)
}

// Ring lists the ordinals 0..n-1 in ring order: sorted by their tokens (R2).
func Ring(n int) []int {
	ring := make([]int, n)
	for i := range ring {
		ring[i] = i
	}
	slices.SortFunc(ring, func(a, b int) int {
		if OfOrdinal(a) < OfOrdinal(b) {
			return -1
		}
		return 1
	})
	return ring
}

// Range is a half-open arc [Start, End) of the ring. It wraps past the top when End <= Start; Start == End is the whole
// ring.
type Range struct {
	Start Token `json:"start,string"`
	End   Token `json:"end,string"`
}

// Contains tells whether t lies on the arc.
func (r Range) Contains(t Token) bool {
	if r.Start < r.End {
		return r.Start <= t && t < r.End
	}
	return r.Start <= t || t < r.End
}

// Ranges are the natural ranges of a ring of n ordinals, in ring order: Ranges(n)[i] starts at the token of Ring(n)[i],
// its natural leader (R2).
func Ranges(n int) []Range {
	ring := Ring(n)
	ranges := make([]Range, n)
	for i, o := range ring {
		ranges[i] = Range{Start: OfOrdinal(o), End: OfOrdinal(ring[(i+1)%n])}
	}
	return ranges
}
