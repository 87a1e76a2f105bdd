package harness

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Fate is what a producer was told about a record.
type Fate byte

// A record begins Unanswered. The other fates are the outcomes of docs/design.md, section 6.
const (
	Unanswered Fate = iota // sent, no answer: may be stored, at most once
	Acked                  // stored, exactly once
	Refused                // not stored
	Unknown                // may be stored, at most once
)

// Ledger remembers which records were sent under which key, in which order, and what was answered, to compare it with
// what a broker has stored. A key belongs to one sender at a time. Safe for concurrent use.
type Ledger struct {
	mu   sync.Mutex
	keys map[string][]Fate // by sequence number within the key
}

// NewLedger is an empty ledger.
func NewLedger() *Ledger { return &Ledger{keys: map[string][]Fate{}} }

// Next gives the next record of a key: its sequence number and a value of about size bytes that names both, so that a
// reader can tell a wrong byte.
func (l *Ledger) Next(key string, size int) (seq int, value string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq = len(l.keys[key])
	l.keys[key] = append(l.keys[key], Unanswered)
	return seq, ledgerValue(key, seq, size)
}

// Answer notes what was answered.
func (l *Ledger) Answer(key string, seq int, f Fate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys[key][seq] = f
}

// Count tells how many records have a fate.
func (l *Ledger) Count(f Fate) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, fates := range l.keys {
		for _, have := range fates {
			if have == f {
				n++
			}
		}
	}
	return n
}

// ledgerValue makes the value of a record: JSON with key, sequence number, size, and filler derived from them. About
// half of the filler is noise, so that compression has work like that of real records.
func ledgerValue(key string, seq, size int) string {
	x := uint64(seq)*0x9e3779b97f4a7c15 + 1
	for i := range len(key) {
		x = (x ^ uint64(key[i])) * 0x100000001b3
	}
	b := make([]byte, 0, size+48)
	b = append(strconv.AppendQuote(append(b, `{"k":`...), key), `,"s":`...)
	b = append(strconv.AppendInt(b, int64(seq), 10), `,"n":`...)
	b = append(strconv.AppendInt(b, int64(size), 10), `,"f":"`...)
	for len(b) < size-2 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b = append(strconv.AppendUint(b, x|1<<63, 16), " the quick fox "...)
	}
	return string(append(b, `"}`...))
}

// Report is what a Checker found. Each of the first five must be empty, whatever happened to the broker.
type Report struct {
	Lost       []string // acknowledged and not stored
	Twice      []string // stored more than once
	Wrong      []string // bytes that nobody sent
	Disordered []string // stored after a later record of the same key, or in another partition
	Denied     []string // answered as not written, and stored all the same

	Stored     int      // records found
	Unanswered []string // of them, those whose sender got no answer
	Unknown    []string // of them, those answered as unknown
}

// Bad lists up to a few findings of each kind, "" when there are none.
func (r Report) Bad() string {
	var b strings.Builder
	for _, kind := range []struct {
		name string
		list []string
	}{{"acknowledged and lost", r.Lost}, {"stored twice", r.Twice}, {"wrong bytes", r.Wrong}, {"out of order", r.Disordered}, {"refused and stored", r.Denied}} {
		if len(kind.list) > 0 {
			fmt.Fprintf(&b, "%d %s: %s\n", len(kind.list), kind.name, strings.Join(kind.list[:min(8, len(kind.list))], "; "))
		}
	}
	return b.String()
}

func (r Report) String() string {
	return fmt.Sprintf("%d stored, of them %d unanswered and %d of unknown outcome\n%s", r.Stored, len(r.Unanswered), len(r.Unknown), r.Bad())
}

// place is where a record lies.
type place struct {
	partition int
	offset    int64
}

// Checker compares what is read from a broker with a ledger. It may be fed in pieces, as a log grows.
type Checker struct {
	ledger *Ledger
	seen   map[string][]place // by sequence number; offset -1 is not seen
	report Report
}

// NewChecker checks against a ledger.
func NewChecker(l *Ledger) *Checker { return &Checker{ledger: l, seen: map[string][]place{}} }

// Add takes a record read from a partition. Records of one partition must come in the order of their offsets.
func (c *Checker) Add(partition int, offset int64, value []byte) {
	var v struct {
		K    string `json:"k"`
		S, N int
	}
	at := fmt.Sprintf("%d@%d", partition, offset)
	if err := json.Unmarshal(value, &v); err != nil || v.S < 0 || ledgerValue(v.K, v.S, v.N) != string(value) {
		c.report.Wrong = append(c.report.Wrong, at)
		return
	}
	c.ledger.mu.Lock()
	fates := c.ledger.keys[v.K]
	c.ledger.mu.Unlock()
	if v.S >= len(fates) {
		c.report.Wrong = append(c.report.Wrong, at)
		return
	}
	c.report.Stored++
	name := fmt.Sprintf("%s#%d at %s", v.K, v.S, at)
	seen := c.seen[v.K]
	if v.S < len(seen) {
		if seen[v.S].offset >= 0 {
			c.report.Twice = append(c.report.Twice, fmt.Sprintf("%s and %d@%d", name, seen[v.S].partition, seen[v.S].offset))
			return
		}
		c.report.Disordered = append(c.report.Disordered, name)
	} else if len(seen) > 0 && seen[len(seen)-1].partition != partition {
		c.report.Disordered = append(c.report.Disordered, name)
	}
	for len(seen) <= v.S {
		seen = append(seen, place{partition, -1})
	}
	seen[v.S] = place{partition, offset}
	c.seen[v.K] = seen
}

// Report judges what was added so far, as if it were all that the broker holds.
func (c *Checker) Report() Report {
	r := c.report
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	for key, fates := range c.ledger.keys {
		for seq, fate := range fates {
			stored := seq < len(c.seen[key]) && c.seen[key][seq].offset >= 0
			name := fmt.Sprintf("%s#%d", key, seq)
			switch {
			case fate == Acked && !stored:
				r.Lost = append(r.Lost, name)
			case fate == Refused && stored:
				r.Denied = append(r.Denied, name)
			case fate == Unanswered && stored:
				r.Unanswered = append(r.Unanswered, name)
			case fate == Unknown && stored:
				r.Unknown = append(r.Unknown, name)
			}
		}
	}
	return r
}

// ReadOn feeds the checker with what a topic holds from the given offsets on, one per partition, and moves them. Offsets
// must be dense.
func (c *Checker) ReadOn(t testing.TB, b *Broker, topic string, offsets []int64) {
	t.Helper()
	for p := range offsets {
		records, damaged, next := b.ReadPartition(t, topic, p, offsets[p])
		if len(damaged) > 0 {
			t.Errorf("%s/%d has damaged offsets: %v", topic, p, damaged)
		}
		for i, r := range records {
			if want := offsets[p] + int64(i); r.Offset != want {
				t.Fatalf("%s/%d: offset %d follows where %d was due", topic, p, r.Offset, want)
			}
			c.Add(p, r.Offset, r.Value)
		}
		offsets[p] = next
	}
}
