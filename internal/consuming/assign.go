package consuming

import (
	"cmp"
	"math"
	"slices"

	"github.com/skeinmq/skein/internal/token"
)

// nobody is the owner of a partition of a group without members.
const nobody int32 = -1

// assign says which member of a group gets which partition of a topic: element p of the result is the index in members
// of the owner of partition p, or nobody if there are no members. It is a pure function of its arguments, so all
// brokers compute the same one without talking to one another (docs/design.md, section 7). members must be sorted and
// without repetition.
//
// Balanced: the counts of two members differ by at most one. Sticky: each pair of a member and a partition has a fixed
// random score, and the pairs are taken in the order of their scores, as long as the member has room. So nearly every
// partition sits with a member it has a good score with, whoever else is there, and a join or leave moves little more
// than it must: 1.0 to 1.7 times the least possible where each member has three partitions or more, about 2.5 times
// where there is hardly more than one for each. The name of the topic goes into the scores, so that what does not
// divide evenly falls on different members for different topics.
func assign(topic string, partitions int, members []string) []int32 {
	owners := make([]int32, partitions)
	for p := range owners {
		owners[p] = nobody
	}
	if len(members) == 0 {
		return owners
	}
	a := assignment{
		owners: owners,
		load:   make([]int, len(members)),
		least:  partitions / len(members),
		extra:  partitions % len(members),
		left:   partitions,
	}
	a.hash(topic, members)
	// All pairs in the order of their scores, made piece by piece: the first piece has about two pairs for each
	// partition, and mostly places three partitions of four; the rest look at ever more members.
	bound := uint64(0)
	for share := 2.0; a.left > 0; share *= 2 {
		upto := uint64(math.MaxUint64)
		if f := share / float64(len(members)); f < 1 {
			upto = uint64(f * (1 << 63) * 2)
		}
		a.place(bound, upto)
		if bound = upto; upto == math.MaxUint64 {
			break
		}
	}
	if a.left > 0 {
		panic("consuming: a partition has no owner although the members have room for all")
	}
	return owners
}

// assignment is the state of one call of assign.
type assignment struct {
	owners     []int32
	load       []int    // partitions of each member so far
	least      int      // that each member gets
	extra      int      // members that may still get one more
	left       int      // partitions without an owner
	members    []uint64 // hashes
	partitions []uint64
	pairs      []pair
}

// pair is a member that a partition could go to.
type pair struct {
	score     uint64
	partition int32
	member    int32
}

func (a *assignment) hash(topic string, members []string) {
	a.members = make([]uint64, len(members))
	for i, id := range members {
		a.members[i] = uint64(token.OfString(id))
	}
	salt := uint64(token.OfString(topic))
	a.partitions = make([]uint64, len(a.owners))
	for p := range a.partitions {
		a.partitions[p] = scramble(salt + uint64(p+1)*0x9e3779b97f4a7c15)
	}
}

// place takes the pairs with scores in [from, upto) in their order; upto of MaxUint64 is included.
func (a *assignment) place(from, upto uint64) {
	a.pairs = a.pairs[:0]
	for p, owner := range a.owners {
		if owner != nobody {
			continue
		}
		for m, h := range a.members {
			if !a.room(m) {
				continue
			}
			if s := scramble(h ^ a.partitions[p]); s >= from && (s < upto || upto == math.MaxUint64) {
				a.pairs = append(a.pairs, pair{s, int32(p), int32(m)})
			}
		}
	}
	slices.SortFunc(a.pairs, func(x, y pair) int {
		return cmp.Or(cmp.Compare(x.score, y.score), cmp.Compare(x.partition, y.partition), cmp.Compare(x.member, y.member))
	})
	for _, x := range a.pairs {
		if a.owners[x.partition] != nobody || !a.room(int(x.member)) {
			continue
		}
		if a.load[x.member] == a.least {
			a.extra--
		}
		a.load[x.member]++
		a.owners[x.partition] = x.member
		a.left--
	}
}

func (a *assignment) room(m int) bool {
	return a.load[m] < a.least || a.load[m] == a.least && a.extra > 0
}

// scramble spreads each bit of h over all of the result (the finalizer of murmur3).
func scramble(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
