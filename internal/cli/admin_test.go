package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/cli/clitest"
)

func TestTopics(t *testing.T) {
	b := stocked(t)
	golden(t, "topics-create", mustRun(t, b, "", "topics", "create", "events", "audit", "--partitions", "6", "--retention", "3d", "--retention-bytes", "10GiB")+
		mustRun(t, b, "", "topics", "create", "events"))
	golden(t, "topics-list", mustRun(t, b, "", "topics", "list"))
	golden(t, "topics-describe", mustRun(t, b, "", "topics", "describe", "orders", "events"))
	golden(t, "topics-config", mustRun(t, b, "", "topics", "config", "events", "--retention", "none", "--segment-age", "12h", "--retention-bytes", "default"))
	golden(t, "topics-config-json", mustRun(t, b, "", "topics", "config", "events", "--json"))
	golden(t, "topics-delete", mustRun(t, b, "", "topics", "delete", "events", "audit")+mustRun(t, b, "", "topics", "rm", "events", "--if-exists"))

	var listed struct{ Topics []struct{ Name string } }
	if err := json.Unmarshal([]byte(mustRun(t, b, "", "topics", "ls", "--json")), &listed); err != nil || len(listed.Topics) != 1 || listed.Topics[0].Name != "orders" {
		t.Errorf("topics list --json: %v %v", listed, err)
	}
	var described struct{ Logs []struct{ HighWatermark int } }
	if err := json.Unmarshal([]byte(mustRun(t, b, "", "topics", "describe", "orders", "--json")), &described); err != nil || len(described.Logs) != 3 || described.Logs[2].HighWatermark != 4 {
		t.Errorf("topics describe --json: %v %v", described, err)
	}
}

func TestTopicErrors(t *testing.T) {
	b := stocked(t)
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"describe an unknown one":   {[]string{"topics", "describe", "nope"}, 1, "See 'broker topics list'"},
		"delete an unknown one":     {[]string{"topics", "delete", "nope"}, 1, "unknown topic: nope"},
		"create with others":        {[]string{"topics", "create", "orders", "--partitions", "6"}, 1, "change settings with 'broker topics config orders'"},
		"a wrong partition count":   {[]string{"topics", "create", "x", "--partitions", "5"}, 2, "allowed are 1 and 3·2^k"},
		"a wrong name":              {[]string{"topics", "create", ".."}, 2, "is not allowed as a name"},
		"a wrong retention":         {[]string{"topics", "config", "orders", "--retention", "long"}, 2, "--retention: \"long\" is no duration"},
		"a limit that cannot go":    {[]string{"topics", "config", "orders", "--segment-bytes", "none"}, 2, "it always has a value"},
		"a size of nothing":         {[]string{"topics", "config", "orders", "--segment-bytes", "0"}, 2, "give more than nothing"},
		"an unknown command":        {[]string{"topics", "lst"}, 2, `unknown command "lst" for "broker topics"; did you mean "list"?`},
		"an unknown command at all": {[]string{"topic", "zzz"}, 2, `unknown command "zzz"`},
		"arguments too many":        {[]string{"topics", "list", "x"}, 2, "See 'broker topics list --help'."},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, b, "", c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d, stderr %q, want %d and %q", r.code, r.err, c.code, c.want)
			}
		})
	}
}

const topicsFile = `
topics:
  - name: orders
    config: {retention: 2d, retentionBytes: none}
  - name: events
    partitions: 6
    config:
      retentionMs: 3600000
      segmentAge: 12h
      maxRecordBytes: default
  - name: plain
`

func TestTopicsApply(t *testing.T) {
	b := stocked(t)
	file := filepath.Join(t.TempDir(), "topics.yaml")
	if err := os.WriteFile(file, []byte(topicsFile), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	out.WriteString("$ --dry-run\n" + mustRun(t, b, "", "topics", "apply", "-f", file, "--dry-run"))
	out.WriteString("$ first\n" + mustRun(t, b, "", "topics", "apply", "-f", file))
	out.WriteString("$ again\n" + mustRun(t, b, topicsFile, "topics", "apply", "-f", "-"))
	out.WriteString("$ json\n" + mustRun(t, b, `{"topics":[{"name":"events","config":{"segmentAge":"default"}}]}`, "topics", "apply", "-f", "-", "--json"))
	golden(t, "topics-apply", out.String())
}

func TestTopicsApplyRefuses(t *testing.T) {
	b := stocked(t)
	for name, c := range map[string]struct{ file, want string }{
		"nothing":              {"", "it is empty"},
		"no topics":            {"[1, 2]", "it does not describe topics"},
		"an unknown field":     {"topics: [{name: a, replicas: 3}]", "field replicas not found"},
		"an unknown setting":   {"topics: [{name: a, config: {cleanup: compact}}]", "topic a: config: cleanup: no such setting; known are maxRecordBytes"},
		"a wrong value":        {"topics: [{name: a, config: {retention: long}}]", "topic a: config: retention"},
		"a list for a value":   {"topics: [{name: a, config: {retention: [1]}}]", "it is no single value"},
		"a setting twice":      {"topics: [{name: a, config: {retention: 1d, retentionMs: 5}}]", "it is set twice"},
		"a topic twice":        {"topics: [{name: a}, {name: a}]", "topic a is described twice"},
		"a wrong name":         {"topics: [{name: a/b}]", "topic 1: invalid topic"},
		"no name":              {"topics: [{partitions: 3}]", "the name is empty"},
		"a partition count":    {"topics: [{name: a, partitions: 7}]", "allowed are 1 and"},
		"partitions that move": {"topics: [{name: orders, partitions: 6}]", "topic orders has 3 partitions, the file says 6"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, b, c.file, "topics", "apply", "-f", "-")
			if r.code != 1 || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d, stderr %q, want 1 and %q", r.code, r.err, c.want)
			}
		})
	}
	if r := run(t, b, "", "topics", "apply"); r.code != 2 || !strings.Contains(r.err, "-f names the file") {
		t.Errorf("without a file: exit code %d, %q", r.code, r.err)
	}
}

func TestGroups(t *testing.T) {
	b := stocked(t)
	mustRun(t, b, "", "consume", "orders", "-g", "billing", "-n", "3")
	b.Join("live", "member-1", "orders")
	golden(t, "groups-list", mustRun(t, b, "", "groups", "list"))
	golden(t, "groups-describe", mustRun(t, b, "", "groups", "describe", "billing", "live"))
	var seeks strings.Builder
	for _, to := range []string{"earliest", "latest", "1", "2026-03-01T08:00:00.006Z", "@1772352000002", "1h"} {
		seeks.WriteString("$ --to " + to + "\n" + mustRun(t, b, "", "groups", "seek", "billing", "--topic", "orders", "--to", to))
	}
	seeks.WriteString("$ --json\n" + mustRun(t, b, "", "groups", "seek", "billing", "-t", "orders", "-p", "2", "--to", "latest", "--json"))
	golden(t, "groups-seek", seeks.String())
	golden(t, "groups-delete", mustRun(t, b, "", "groups", "delete", "billing"))

	var listed struct{ Groups []struct{ Name string } }
	if err := json.Unmarshal([]byte(mustRun(t, b, "", "groups", "list", "--json")), &listed); err != nil || len(listed.Groups) != 1 {
		t.Errorf("groups list --json: %v %v", listed, err)
	}
}

func TestGroupErrors(t *testing.T) {
	b := stocked(t)
	b.Join("live", "member-1", "orders")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"describe an unknown one": {[]string{"groups", "describe", "nope"}, 1, "See 'broker groups list'"},
		"delete a live one":       {[]string{"groups", "delete", "live"}, 1, "Stop its members first"},
		"seek a live one":         {[]string{"groups", "seek", "live", "--topic", "orders", "--to", "latest"}, 1, "--force moves it under them"},
		"seek an unknown topic":   {[]string{"groups", "seek", "g", "--topic", "nope", "--to", "latest"}, 1, "See 'broker topics list'"},
		"seek nowhere":            {[]string{"groups", "seek", "g", "--topic", "orders"}, 2, "--to says where"},
		"seek no topic":           {[]string{"groups", "seek", "g", "--to", "latest"}, 2, "--topic names the topic"},
		"seek to rubbish":         {[]string{"groups", "seek", "g", "--topic", "orders", "--to", "there"}, 2, "is not earliest, latest, an offset or a time"},
		"seek below nothing":      {[]string{"groups", "seek", "g", "--topic", "orders", "--to", "-1"}, 2, "offsets begin at 0"},
		"seek two groups":         {[]string{"groups", "seek", "g", "h"}, 2, "accepts 1 arg"},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, b, "", c.args...)
			if r.code != c.code || !strings.Contains(r.err, c.want) {
				t.Errorf("exit code %d, stderr %q, want %d and %q", r.code, r.err, c.code, c.want)
			}
		})
	}
	if out := mustRun(t, b, "", "groups", "seek", "live", "--topic", "orders", "--to", "latest", "--force"); !strings.Contains(out, "orders") {
		t.Errorf("seek --force printed %q", out)
	}
}

func TestClusterStatus(t *testing.T) {
	b := clitest.New(t)
	golden(t, "cluster-status", mustRun(t, b, "", "cluster", "status"))
	var status struct{ Storage struct{ Free int64 } }
	if err := json.Unmarshal([]byte(mustRun(t, b, "", "cluster", "status", "--json")), &status); err != nil || status.Storage.Free == 0 {
		t.Errorf("cluster status --json: %+v %v", status, err)
	}
	b.NotReady("the log of orders is checked")
	r := run(t, b, "", "cluster", "status")
	if r.code != 1 || !strings.Contains(r.out, "no: the log of orders is checked") || !strings.Contains(r.err, "not every broker is ready") {
		t.Errorf("a broker that is not ready: exit code %d, %q, %q", r.code, r.out, r.err)
	}
}

// A person is asked before something is deleted, a script is not.
func TestDeleteAsks(t *testing.T) {
	for answer, deleted := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false} {
		b := stocked(t)
		var out, errs strings.Builder
		c := root(Options{In: strings.NewReader(answer), Out: &out, Err: &errs, Getenv: func(string) string { return b.URL }, Terminal: func(any) bool { return true }})
		c.SetArgs([]string{"topics", "delete", "orders"})
		err := c.Execute()
		if (err == nil) != deleted || (b.Count("orders") == 0) != deleted {
			t.Errorf("answer %q: %v, %d records left", answer, err, b.Count("orders"))
		}
		if want := "Delete orders with all records? [y/N] "; !strings.HasPrefix(errs.String(), want) {
			t.Errorf("answer %q: asked %q, want %q", answer, errs.String(), want)
		}
	}
}

func TestCompletion(t *testing.T) {
	b := stocked(t)
	b.Create("other", 1)
	b.Join("billing", "m", "orders")
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"topics":               {[]string{"topics", "describe", ""}, []string{"orders", "other"}},
		"a prefix":             {[]string{"consume", "ot"}, []string{"other"}},
		"not those given":      {[]string{"topics", "delete", "orders", ""}, []string{"other"}},
		"one topic to produce": {[]string{"produce", "or"}, []string{"orders"}},
		"groups":               {[]string{"groups", "describe", ""}, []string{"billing"}},
		"group flag":           {[]string{"consume", "orders", "--group", ""}, []string{"billing"}},
		"words of a flag":      {[]string{"bench", "produce", "--protocol", ""}, []string{"binary", "http", "ndjson"}},
		"topic flag":           {[]string{"groups", "seek", "g", "--topic", ""}, []string{"orders", "other"}},
		"one group to seek":    {[]string{"groups", "seek", "billing", ""}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			out := mustRun(t, b, "", append([]string{"__complete"}, c.args...)...)
			lines := strings.Split(strings.TrimSpace(out), "\n")
			got := lines[:len(lines)-1] // the last is the directive
			equal(t, "completed", append([]string{}, got...), append([]string{}, c.want...))
		})
	}
	b.Close()
	if out := mustRun(t, b, "", "__complete", "topics", "describe", ""); strings.TrimSpace(out) != ":4" {
		t.Errorf("without a broker: %q, want no names and no files", out)
	}
}
