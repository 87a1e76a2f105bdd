package consuming

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmq/skein/internal/token"
)

// partitionCounts are those a topic may have, up to 192.
var partitionCounts = []int{1, 3, 6, 12, 24, 48, 96, 192}

// docs/design.md, section 7: balanced, and a function of the members only.
func TestAssignmentIsBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.SampledFrom(partitionCounts).Draw(t, "partitions")
		members := rapid.SliceOfNDistinct(rapid.StringN(1, 12, -1), 1, 60, rapid.ID[string]).Draw(t, "members")
		slices.Sort(members)
		owners := assign("orders", partitions, members)
		load := make([]int, len(members))
		for _, m := range owners {
			load[m]++
		}
		if low, high := slices.Min(load), slices.Max(load); high-low > 1 {
			t.Fatalf("%d partitions over %d members: one has %d, another %d", partitions, len(members), low, high)
		}
		if again := assign("orders", partitions, slices.Clone(members)); !slices.Equal(owners, again) {
			t.Fatal("the same members got other partitions the second time")
		}
	})
}

// The piecewise order of pairs is the order of all pairs at once.
func TestAssignmentIsThatOfTheNaiveTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := rapid.SampledFrom(partitionCounts[:6]).Draw(t, "partitions")
		members := memberNames(rapid.IntRange(1, 50).Draw(t, "members"), rapid.Uint64().Draw(t, "seed"))
		if got, want := assign("t", partitions, members), naiveAssign("t", partitions, members); !slices.Equal(got, want) {
			t.Fatalf("%d partitions over %d members:\n got %v\nwant %v", partitions, len(members), got, want)
		}
	})
}

// naiveAssign takes the best pair that still fits, again and again.
func naiveAssign(topic string, partitions int, members []string) []int32 {
	owners := slices.Repeat([]int32{nobody}, partitions)
	load := make([]int, len(members))
	extra := partitions % len(members)
	for range partitions {
		best, bp, bm := ^uint64(0), -1, -1
		for p := range owners {
			for m, id := range members {
				full := load[m] > partitions/len(members) || load[m] == partitions/len(members) && extra == 0
				s := scramble(uint64(token.OfString(id)) ^ scramble(uint64(token.OfString(topic))+uint64(p+1)*0x9e3779b97f4a7c15))
				if owners[p] == nobody && !full && s < best {
					best, bp, bm = s, p, m
				}
			}
		}
		if load[bm] == partitions/len(members) {
			extra--
		}
		load[bm]++
		owners[bp] = int32(bm)
	}
	return owners
}

// docs/design.md, section 7: a join or leave moves at most about twice the least possible. The least possible is what
// the member that comes or goes has; single cases scatter, hence the mean of many.
func TestAssignmentIsSticky(t *testing.T) {
	for _, c := range []struct {
		partitions, members int
		mean                float64 // bound of moved / least
	}{
		{12, 1, 1.01}, {12, 2, 1.3}, {12, 3, 1.5}, {12, 4, 1.6}, {12, 6, 1.7}, {24, 3, 1.4}, {24, 5, 1.7}, {24, 8, 1.8},
		{48, 3, 1.3}, {48, 8, 1.8}, {48, 12, 1.9}, {96, 10, 1.8}, {192, 10, 1.6}, {768, 24, 1.8},
		// hardly more than a partition for each: what is moved is few partitions in any case
		{12, 11, 3.2}, {24, 11, 3}, {24, 23, 4},
	} {
		moved, least := 0, 0
		for seed := range uint64(100) {
			members := memberNames(c.members+1, seed)
			left := int(seed) % len(members)
			without := slices.Delete(slices.Clone(members), left, left+1)
			with, out := assign("t", c.partitions, members), assign("t", c.partitions, without)
			for p := range with {
				if int(with[p]) == left {
					least++
				}
				if members[with[p]] != without[out[p]] {
					moved++
				}
			}
		}
		ratio := float64(moved) / float64(least)
		t.Logf("%d partitions, %d or %d members: a change moves %.2f times the least possible", c.partitions, c.members, c.members+1, ratio)
		if ratio > c.mean {
			t.Errorf("%d partitions, %d or %d members: a change moves %.2f times the least possible, more than %.2f", c.partitions, c.members, c.members+1, ratio, c.mean)
		}
	}
}

// Topics with one partition each must not all go to one member.
func TestAssignmentDiffersByTopic(t *testing.T) {
	members := memberNames(4, 1)
	load := make([]int, len(members))
	for i := range 400 {
		load[assign(fmt.Sprint("topic-", i), 1, members)[0]]++
	}
	if low := slices.Min(load); low < 60 {
		t.Errorf("400 topics of one partition over 4 members: %v", load)
	}
}

func TestAssignmentWithoutMembers(t *testing.T) {
	if got := assign("t", 3, nil); !slices.Equal(got, []int32{nobody, nobody, nobody}) {
		t.Errorf("owners without members: %v", got)
	}
}

func memberNames(n int, seed uint64) []string {
	r := rand.New(rand.NewPCG(seed, 7))
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("host-%08x", r.Uint32())
	}
	slices.Sort(names)
	return names
}

func BenchmarkAssign(b *testing.B) {
	for _, c := range []struct{ partitions, members int }{{24, 4}, {96, 16}, {12288, 100}} {
		b.Run(fmt.Sprintf("%dx%d", c.partitions, c.members), func(b *testing.B) {
			members := memberNames(c.members, 3)
			b.ReportAllocs()
			for b.Loop() {
				assign("t", c.partitions, members)
			}
		})
	}
}
