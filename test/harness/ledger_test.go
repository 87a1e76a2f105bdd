package harness

import (
	"strings"
	"testing"
)

// A checker that finds nothing wrong proves nothing unless it finds what is wrong: each case breaks one promise.
func TestCheckerFinds(t *testing.T) {
	for _, c := range []struct {
		name string
		add  func(c *Checker, values []string)
		want string // part of Bad; "" for nothing
	}{
		{"all stored once, in order", func(c *Checker, v []string) { c.Add(0, 0, []byte(v[0])); c.Add(0, 1, []byte(v[1])) }, ""},
		{"an acknowledged record missing", func(c *Checker, v []string) { c.Add(0, 0, []byte(v[0])) }, "1 acknowledged and lost: k#1"},
		{"a record stored twice", func(c *Checker, v []string) {
			c.Add(0, 0, []byte(v[0]))
			c.Add(0, 1, []byte(v[1]))
			c.Add(0, 2, []byte(v[0]))
		}, "1 stored twice: k#0"},
		{"order turned around", func(c *Checker, v []string) { c.Add(0, 0, []byte(v[1])); c.Add(0, 1, []byte(v[0])) }, "1 out of order: k#0"},
		{"one key in two partitions", func(c *Checker, v []string) { c.Add(0, 0, []byte(v[0])); c.Add(1, 0, []byte(v[1])) }, "1 out of order: k#1"},
		{"a changed byte", func(c *Checker, v []string) {
			c.Add(0, 0, []byte(v[0]))
			c.Add(0, 1, []byte(v[1]))
			c.Add(0, 2, []byte(strings.Replace(v[2], "fox", "fax", 1)))
		}, "1 wrong bytes: 0@2"},
		{"a record that nobody sent", func(c *Checker, v []string) {
			c.Add(0, 0, []byte(v[0]))
			c.Add(0, 1, []byte(v[1]))
			c.Add(0, 2, []byte(ledgerValue("k", 9, 100)))
		}, "1 wrong bytes: 0@2"},
		{"a refused record stored", func(c *Checker, v []string) {
			for i, value := range v {
				c.Add(0, int64(i), []byte(value))
			}
		}, "1 refused and stored: k#3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := NewLedger()
			var values []string
			for range 4 {
				_, v := l.Next("k", 100)
				values = append(values, v)
			}
			l.Answer("k", 0, Acked)
			l.Answer("k", 1, Acked)
			l.Answer("k", 3, Refused) // 2 stays without an answer
			checker := NewChecker(l)
			c.add(checker, values)
			got := checker.Report().Bad()
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
