package bench

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Report is the result of a run. Rates count what was acknowledged or received.
type Report struct {
	Kind        string           `json:"kind"` // produce, consume, end-to-end
	Protocol    string           `json:"protocol"`
	Topic       string           `json:"topic"`
	Run         string           `json:"run,omitempty"`
	Group       string           `json:"group,omitempty"`
	Size        int              `json:"size,omitempty"`
	Keys        int              `json:"keys"`
	Connections int              `json:"connections,omitempty"`
	InFlight    int              `json:"inFlight,omitempty"`
	Batch       int              `json:"batch,omitempty"`
	Members     int              `json:"members,omitempty"`
	Rate        float64          `json:"rate,omitempty"` // asked for, messages/s
	Records     int64            `json:"records"`
	Bytes       int64            `json:"bytes"`
	Seconds     float64          `json:"seconds"`
	PerSecond   float64          `json:"messagesPerSecond"`
	MBPerSecond float64          `json:"mbPerSecond"` // millions of bytes of values
	Latency     *Latency         `json:"latencyMs,omitempty"`
	EndToEnd    *Latency         `json:"endToEndMs,omitempty"`
	Pause       float64          `json:"longestPauseMs,omitempty"` // without an acknowledgement
	Reconnects  int64            `json:"reconnects,omitempty"`     // connections that broke and were made again
	Errors      int64            `json:"errors"`
	ErrorKinds  map[string]int64 `json:"errorKinds,omitempty"`
	Check       *Verdict         `json:"check,omitempty"`
	CPU         *CPU             `json:"cpu,omitempty"`
	Stopped     string           `json:"stopped,omitempty"` // why it ended early
}

// CPU is what processes spent during a run, in seconds of one core for a million records.
type CPU struct {
	ClientPerMillion float64 `json:"clientPerMillion"`
	BrokerPerMillion float64 `json:"brokerPerMillion,omitempty"`
	BrokerPeakBytes  int64   `json:"brokerPeakBytes,omitempty"` // resident memory, the largest of the processes
}

func (r *Report) rates(seconds float64) {
	r.Seconds = round3(seconds)
	if seconds > 0 {
		r.PerSecond = math.Round(float64(r.Records) / seconds)
		r.MBPerSecond = round3(float64(r.Bytes) / seconds / 1e6)
	}
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }

// WriteText writes r for people.
func (r *Report) WriteText(w io.Writer) error {
	var out strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "%-12s "+format+"\n", append([]any{name}, args...)...)
	}
	row(r.Kind, "%s", r.what())
	row("records", "%s in %.2f s", Thousands(r.Records), r.Seconds)
	row("rate", "%s messages/s, %.1f MB/s", Thousands(int64(r.PerSecond)), r.MBPerSecond)
	if r.Latency != nil {
		row(map[bool]string{true: "poll", false: "ack"}[r.Kind == "consume"], "%s", r.Latency.text())
	}
	if r.EndToEnd != nil {
		row("end-to-end", "%s", r.EndToEnd.text())
	}
	if r.Reconnects > 0 {
		row("reconnects", "%s, longest time without an acknowledgement %s ms", Thousands(r.Reconnects), short(r.Pause))
	}
	row("errors", "%s", Thousands(r.Errors))
	for _, kind := range slices.Sorted(maps.Keys(r.ErrorKinds)) {
		row("", "%s: %s", Thousands(r.ErrorKinds[kind]), kind)
	}
	if r.CPU != nil {
		row("cpu", "%s", r.CPU.text())
	}
	if r.Check != nil {
		row("check", "%s", r.Check.text())
		for _, e := range r.Check.Examples {
			row("", "%s", e)
		}
	}
	if r.Stopped != "" {
		row("stopped", "%s", r.Stopped)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (r *Report) what() string {
	parts := []string{r.Topic, r.Protocol}
	add := func(n int, format string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, Thousands(int64(n))))
		}
	}
	add(r.Size, "%s B")
	if r.Keys > 0 {
		add(r.Keys, "%s keys")
	} else if r.Kind != "consume" {
		parts = append(parts, "no keys")
	}
	add(r.Connections, "%s connections")
	add(r.InFlight, "%s in flight")
	if r.Batch > 1 {
		add(r.Batch, "%s a request")
	}
	add(r.Members, "%s members")
	if r.Rate > 0 {
		parts = append(parts, "at "+strconv.FormatFloat(r.Rate, 'f', -1, 64)+"/s")
	}
	if r.Run != "" {
		parts = append(parts, "run "+r.Run)
	}
	if r.Group != "" {
		parts = append(parts, "group "+r.Group)
	}
	return strings.Join(parts, ", ")
}

func (l *Latency) text() string {
	return fmt.Sprintf("p50 %s ms, p99 %s ms, p99.9 %s ms, max %s ms", short(l.P50), short(l.P99), short(l.P999), short(l.Max))
}

// short writes three digits that count.
func short(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

func (c *CPU) text() string {
	text := fmt.Sprintf("client %.2f s/M", c.ClientPerMillion)
	if c.BrokerPerMillion > 0 {
		text += fmt.Sprintf(", broker %.2f s/M, peak %.0f MiB", c.BrokerPerMillion, float64(c.BrokerPeakBytes)/(1<<20))
	}
	return text
}

func (v *Verdict) text() string {
	if v.OK {
		text := fmt.Sprintf("ok: %s records of %s keys, each exactly once and in order", Thousands(v.Records), Thousands(int64(v.Keys)))
		if v.Missing > 0 {
			text += fmt.Sprintf("; %s that had no answer are not there", Thousands(v.Missing))
		}
		if v.Redelivered > 0 {
			text += fmt.Sprintf(" (%s delivered again)", Thousands(v.Redelivered))
		}
		return text
	}
	return fmt.Sprintf("FAILED: %s records, %s missing, %s twice, %s out of order, %s offsets skipped, %s delivered again, %s of others",
		Thousands(v.Records), Thousands(v.Missing), Thousands(v.Duplicates), Thousands(v.Disordered), Thousands(v.Skipped),
		Thousands(v.Redelivered), Thousands(v.Foreign))
}

// Thousands writes n with a comma after each thousand.
func Thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
