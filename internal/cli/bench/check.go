package bench

import (
	"fmt"
	"slices"
	"sync"
)

// maxExamples bounds the findings that are told one by one.
const maxExamples = 5

// Checker judges what members of a group receive (docs/design.md P7, §7): each record exactly once, in order per key.
// Two copies of a record at different offsets are a duplicate in the log; one offset delivered twice is a redelivery,
// which at-least-once allows. Calls may overlap.
type Checker struct {
	run string // only records of this run; "" all

	mu          sync.Mutex
	partitions  map[string]*int64 // topic/partition to the next offset
	keys        map[string]*keyState
	records     int64
	foreign     int64
	redelivered int64
	skipped     int64
	duplicates  int64
	disordered  int64
	examples    []string
}

// keyState is what was seen of a key: a bit for each number, and one more than the highest.
type keyState struct {
	seen []uint64
	next uint64
	have uint64 // bits set
}

// mark sets the bit of n; false when it was set before.
func (k *keyState) mark(n uint64) bool {
	for uint64(len(k.seen)) <= n/64 {
		k.seen = append(k.seen, 0)
	}
	if k.seen[n/64]&(1<<(n%64)) != 0 {
		return false
	}
	k.seen[n/64] |= 1 << (n % 64)
	k.have++
	k.next = max(k.next, n+1)
	return true
}

// firstMissing is the lowest number below next that was not seen.
func (k *keyState) firstMissing() uint64 {
	for n := range k.next {
		if k.seen[n/64]&(1<<(n%64)) == 0 {
			return n
		}
	}
	return k.next
}

// NewChecker makes a checker for the records of one run, or of all where run is "".
func NewChecker(run string) *Checker {
	return &Checker{run: run, partitions: map[string]*int64{}, keys: map[string]*keyState{}}
}

// Delivered takes a run of records of one partition, the first at offset first, and gives how many of them are counted
// (of the run, for the first time), with their bytes.
func (c *Checker) Delivered(partition string, first int64, values [][]byte) (counted, size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.partitions[partition]
	if next == nil {
		next = new(int64)
		*next = first
		c.partitions[partition] = next
	}
	if first > *next {
		c.skipped += first - *next
		c.example("%s: offsets %d to %d were not delivered", partition, *next, first-1)
		*next = first
	}
	for i, value := range values {
		offset := first + int64(i)
		if offset < *next {
			c.redelivered++
			continue
		}
		*next = offset + 1
		stamp, ok := ParseStamp(value)
		if !ok || (c.run != "" && stamp.Run != c.run) {
			c.foreign++
			continue
		}
		c.records++
		counted++
		size += len(value)
		c.see(stamp, partition, offset)
	}
	return counted, size
}

func (c *Checker) see(s Stamp, partition string, offset int64) {
	name := s.Run + "/" + s.Key
	k := c.keys[name]
	if k == nil {
		k = &keyState{}
		c.keys[name] = k
	}
	ordered := s.Seq >= k.next || (s.Key != "" && s.Key[0] == keylessPrefix)
	switch {
	case !k.mark(s.Seq):
		c.duplicates++
		c.example("%s offset %d: record %d of key %s is there twice", partition, offset, s.Seq, s.Key)
	case !ordered:
		c.disordered++
		c.example("%s offset %d: record %d of key %s comes after later ones", partition, offset, s.Seq, s.Key)
	}
}

func (c *Checker) example(format string, args ...any) {
	if len(c.examples) < maxExamples {
		c.examples = append(c.examples, fmt.Sprintf(format, args...))
	}
}

// Count is how many records were counted so far.
func (c *Checker) Count() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records
}

// Verdict is what a Checker found.
type Verdict struct {
	OK          bool     `json:"ok"`
	Records     int64    `json:"records"`     // counted
	Expected    int64    `json:"expected"`    // 0: not known
	Keys        int      `json:"keys"`        // distinct
	Unknown     int64    `json:"unknown"`     // sent and never answered: there or not
	Missing     int64    `json:"missing"`     // numbers of a key below a later one that never came, or records below Expected
	Duplicates  int64    `json:"duplicates"`  // stored twice
	Disordered  int64    `json:"disordered"`  // after a later one of the same key
	Skipped     int64    `json:"skipped"`     // offsets that were not delivered
	Redelivered int64    `json:"redelivered"` // the same offset again: allowed
	Foreign     int64    `json:"foreign"`     // of other runs or no bench records
	Examples    []string `json:"examples,omitempty"`
}

// Verdict judges what came so far. expected is how many were acknowledged, 0 when that is not known; unknown is how many
// more may be there, or may be missing, because their requests had no answer.
func (c *Checker) Verdict(expected, unknown int64) Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := Verdict{
		Records: c.records, Expected: expected, Unknown: unknown, Keys: len(c.keys), Duplicates: c.duplicates, Disordered: c.disordered,
		Skipped: c.skipped, Redelivered: c.redelivered, Foreign: c.foreign, Examples: c.examples,
	}
	for _, name := range c.incomplete() {
		k := c.keys[name]
		v.Missing += int64(k.next - k.have)
		if len(v.Examples) < maxExamples {
			v.Examples = append(v.Examples, fmt.Sprintf("key %s: record %d did not come", name, k.firstMissing()))
		}
	}
	if expected > 0 {
		v.Missing = max(v.Missing, expected-(c.records-c.duplicates))
	}
	number := expected == 0 || (c.records >= expected && c.records <= expected+unknown)
	v.OK = number && v.Missing <= unknown && v.Duplicates == 0 && v.Disordered == 0 && v.Skipped == 0
	return v
}

// incomplete are the keys with missing numbers, sorted.
func (c *Checker) incomplete() []string {
	var names []string
	for name, k := range c.keys {
		if k.have < k.next {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
