package bench

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var testRand = rand.New(rand.NewPCG(5, 6))

func payload(run, key string, seq uint64) []byte {
	return AppendPayload(nil, Stamp{Run: run, Key: key, Seq: seq, Due: 1}, MinSize, testRand)
}

func payloads(run, key string, seqs ...uint64) [][]byte {
	var out [][]byte
	for _, s := range seqs {
		out = append(out, payload(run, key, s))
	}
	return out
}

func TestChecker(t *testing.T) {
	type part struct {
		partition string
		first     int64
		values    [][]byte
	}
	for name, c := range map[string]struct {
		parts    []part
		expected int64
		unknown  int64
		want     Verdict
		example  string
	}{
		"all there":              {[]part{{"p0", 0, payloads("r", "a", 0, 1, 2)}, {"p1", 5, payloads("r", "b", 0)}}, 4, 0, Verdict{OK: true, Records: 4, Expected: 4, Keys: 2}, ""},
		"one twice in the log":   {[]part{{"p0", 0, payloads("r", "a", 0, 1, 1)}}, 0, 0, Verdict{Records: 3, Keys: 1, Duplicates: 1}, "p0 offset 2: record 1 of key a is there twice"},
		"one delivered twice":    {[]part{{"p0", 0, payloads("r", "a", 0, 1)}, {"p0", 1, payloads("r", "a", 1, 2)}}, 3, 0, Verdict{OK: true, Records: 3, Expected: 3, Keys: 1, Redelivered: 1}, ""},
		"one missing in between": {[]part{{"p0", 0, payloads("r", "a", 0, 2)}}, 0, 0, Verdict{Records: 2, Keys: 1, Missing: 1}, "key r/a: record 1 did not come"},
		"one missing at the end": {[]part{{"p0", 0, payloads("r", "a", 0, 1)}}, 3, 0, Verdict{Records: 2, Expected: 3, Keys: 1, Missing: 1}, ""},
		"out of order":           {[]part{{"p0", 0, payloads("r", "a", 1, 0)}}, 2, 0, Verdict{Records: 2, Expected: 2, Keys: 1, Disordered: 1}, "p0 offset 1: record 0 of key a comes after later ones"},
		"keyless in any order":   {[]part{{"p0", 0, payloads("r", "~0", 1, 3)}, {"p1", 0, payloads("r", "~0", 0, 2)}}, 4, 0, Verdict{OK: true, Records: 4, Expected: 4, Keys: 1}, ""},
		"offsets left out":       {[]part{{"p0", 0, payloads("r", "a", 0)}, {"p0", 2, payloads("r", "a", 1)}}, 0, 0, Verdict{Records: 2, Keys: 1, Skipped: 1}, "p0: offsets 1 to 1 were not delivered"},
		"one without an answer":  {[]part{{"p0", 0, payloads("r", "a", 0, 2)}}, 2, 1, Verdict{OK: true, Records: 2, Expected: 2, Unknown: 1, Keys: 1, Missing: 1}, "record 1 did not come"},
		"others between":         {[]part{{"p0", 0, [][]byte{[]byte("{}"), payload("old", "a", 9), payload("r", "a", 0)}}}, 1, 0, Verdict{OK: true, Records: 1, Expected: 1, Keys: 1, Foreign: 2}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			checker := NewChecker("r")
			for _, p := range c.parts {
				checker.Delivered(p.partition, p.first, p.values)
			}
			got := checker.Verdict(c.expected, c.unknown)
			examples := got.Examples
			got.Examples = nil
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
				t.Errorf("verdict %+v, want %+v", got, c.want)
			}
			if c.example != "" && !strings.Contains(strings.Join(examples, "\n"), c.example) {
				t.Errorf("examples %q, want %q", examples, c.example)
			}
		})
	}
}

// However a correct log is cut into deliveries, and whatever is delivered again, the verdict is that all is there; and
// the loss of any one record is noticed.
func TestCheckerAcceptsEveryCorrectDelivery(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.IntRange(1, 5).Draw(t, "keys")
		n := rapid.IntRange(1, 60).Draw(t, "records")
		seqs := map[int]uint64{}
		var log [][]byte
		for range n {
			k := rapid.IntRange(0, keys-1).Draw(t, "key")
			log = append(log, payload("r", fmt.Sprintf("k%d", k), seqs[k]))
			seqs[k]++
		}
		deliver := func(log [][]byte) Verdict {
			c := NewChecker("")
			for at := 0; at < len(log); {
				back := rapid.IntRange(0, at).Draw(t, "back")
				to := rapid.IntRange(at+1, len(log)).Draw(t, "to")
				c.Delivered("p", int64(back), log[back:to])
				at = to
			}
			return c.Verdict(int64(n), 0)
		}
		if v := deliver(log); !v.OK {
			t.Fatalf("a correct log is judged %+v", v)
		}
		lost := rapid.IntRange(0, n-1).Draw(t, "lost")
		short := append(append([][]byte{}, log[:lost]...), log[lost+1:]...)
		if v := deliver(short); v.OK || v.Missing == 0 {
			t.Fatalf("without record %d the log is judged %+v", lost, v)
		}
	})
}
