package docs

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/skeinmq/skein/test/harness"
)

var update = flag.Bool("update", false, "write the table of docs/metrics.md from a running broker")

// metric is what the exposition format tells of a metric.
type metric struct {
	kind, help string
	labels     map[string]bool
}

// TestMetricsPage compares the table of docs/metrics.md with what a broker exposes after it has done a bit of
// everything: metrics with labels show only then.
func TestMetricsPage(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "t", 3, "")
	b.MustProduce(t, "t", "k", "v")
	b.Must(t, 200, "POST", harness.AdminPort, "/v1/topic/t/messages", "v", "Idempotency-Key", "1")
	b.Register(t, "c", "g", "t")
	if _, _, err := b.Poll("c", "wait=1s"); err != nil {
		t.Fatal(err)
	}
	b.Must(t, 204, "POST", harness.ConsumePort, "/v1/consumer/commit?consumerId=c", "")
	b.Must(t, 200, "GET", harness.AdminPort, "/v1/topic/t/partitions/0/records?offset=0", "")
	b.Must(t, 200, "POST", harness.ConsumePort, "/v1/consumer/goodbye?consumerId=c", "")
	b.Must(t, 200, "POST", harness.AdminPort, "/v1/groups/g/seek", `{"topic":"t","to":"earliest"}`)
	b.Must(t, 204, "DELETE", harness.AdminPort, "/v1/topics/t", "")

	found := parseMetrics(b.Must(t, 200, "GET", harness.MetricsPort, "/metrics", "").Body)
	if len(found) < 40 {
		t.Fatalf("only %d metrics are exposed", len(found))
	}
	const begin, end = "<!-- metrics -->\n", "<!-- end of metrics -->\n"
	path := filepath.Join(harness.Root(), "docs", "metrics.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	documented, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the marks around its table", path)
	}
	want := metricsTable(found)
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if documented == want {
		return
	}
	has := strings.Split(documented, "\n")
	for line := range strings.SplitSeq(want, "\n") {
		if !slices.Contains(has, line) {
			t.Errorf("docs/metrics.md lacks\n%s", line)
		}
	}
	t.Error("docs/metrics.md differs from the broker: go test ./test/docs -run Metrics -update, and read the diff")
}

var sample = regexp.MustCompile(`^(skein_\w+?)(?:_bucket|_sum|_count)?(?:\{(.*)\})? `)

// parseMetrics reads the text format: names of skein_ with their kinds, helps and labels.
func parseMetrics(text string) map[string]metric {
	found := map[string]metric{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			if name, help, _ := strings.Cut(rest, " "); strings.HasPrefix(name, "skein_") {
				found[name] = metric{help: help, labels: map[string]bool{}}
			}
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if m, ok := found[name]; ok {
				m.kind = kind
				found[name] = m
			}
		}
		name := strings.FieldsFunc(line+" ", func(r rune) bool { return r == '{' || r == ' ' })
		if len(name) == 0 || !strings.HasPrefix(name[0], "skein_") {
			continue
		}
		m, ok := found[name[0]]
		if !ok {
			m, ok = found[sample.FindStringSubmatch(line)[1]]
		}
		if _, labels, has := strings.Cut(line, "{"); ok && has {
			for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(labels, -1) {
				m.labels[l[1]] = true
			}
			delete(m.labels, "le")
		}
	}
	return found
}

// metricsTable is the table of the page, by the first word of the names.
func metricsTable(found map[string]metric) string {
	var b strings.Builder
	b.WriteString("\n| metric | kind | labels | what |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(found)) {
		m := found[name]
		labels := strings.Join(slices.Sorted(maps.Keys(m.labels)), ", ")
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", name, m.kind, labels, strings.ReplaceAll(m.help, "|", "\\|"))
	}
	b.WriteString("\n")
	return b.String()
}
