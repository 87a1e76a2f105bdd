package admin_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmq/skein/internal/admin"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

func TestNewChecksItsConfig(t *testing.T) {
	if _, err := admin.New(admin.Config{}); err == nil {
		t.Error("an API over nothing was made")
	}
}

// Each refusal says what was wrong and what is allowed.
func TestRefusals(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, tc := range []struct {
		name, request, body string
		status              int
		text                string
	}{
		{"no body", "POST /v1/topics", "", 400, "it is empty; allowed is a JSON object"},
		{"no JSON", "POST /v1/topics", "name=a", 400, "it is no JSON at byte 2"},
		{"half a body", "POST /v1/topics", `{"name":"a"`, 400, "ends in the middle"},
		{"two bodies", "POST /v1/topics", `{"name":"a"}{}`, 400, "something follows"},
		{"unknown field", "POST /v1/topics", `{"name":"a","partition":3}`, 400, `unknown field "partition"`},
		{"unknown setting", "POST /v1/topics", `{"name":"a","config":{"retention":"7d"}}`, 400, `unknown field "retention"`},
		{"a number as word", "POST /v1/topics", `{"name":"a","partitions":"3"}`, 400, "partitions is a JSON string; allowed is a whole number"},
		{"a fraction", "POST /v1/topics", `{"name":"a","partitions":1.5}`, 400, "allowed is a whole number"},
		{"a list", "POST /v1/topics", `[]`, 400, "the body is a JSON array; allowed is a JSON object"},
		{"odd partitions", "POST /v1/topics", `{"name":"a","partitions":5}`, 400, "allowed are 1 and 3·2^k"},
		{"no partitions", "POST /v1/topics", `{"name":"a","partitions":0}`, 400, "allowed are 1 and 3·2^k"},
		{"no name", "POST /v1/topics", `{}`, 400, "the name is empty"},
		{"long name", "POST /v1/topics", `{"name":"` + long + `"}`, 400, "allowed are 1 to 249"},
		{"reserved name", "POST /v1/topics", `{"name":"__a"}`, 400, "reserved"},
		{"large body", "POST /v1/topics", `{"name":"` + strings.Repeat("x", 70<<10) + `"}`, 413, "allowed are 65536"},
		{"other partitions", "POST /v1/topics", `{"name":"orders","partitions":6}`, 409, "exists with 3 partitions, not 6"},
		{"unknown topic", "GET /v1/topics/nothing", "", 404, `unknown topic: "nothing"`},
		{"dots", "GET /v1/topics/..", "", 400, `".." is not allowed`},
		{"slash in a name", "GET /v1/topics/a%2Fb", "", 400, "outside A-Z a-z 0-9"},
		{"patch of nothing", "PATCH /v1/topics/orders", "{}", 400, `no "config"`},
		{"patch of the name", "PATCH /v1/topics/orders", `{"name":"b"}`, 400, `unknown field "name"`},
		{"patch to a word", "PATCH /v1/topics/orders", `{"config":{"retentionMs":"1h"}}`, 400, `config.retentionMs is "1h"; allowed is a whole number`},
		{"patch of an unknown setting", "PATCH /v1/topics/orders", `{"config":{"retention":1}}`, 400, `unknown setting "retention"; allowed are`},
		{"patch to what cannot be", "PATCH /v1/topics/orders", `{"config":{"retentionMs":0}}`, 400, "allowed are -1 (no bound) and 1 to"},
		{"patch of an unknown topic", "PATCH /v1/topics/nothing", `{"config":{}}`, 404, "unknown topic"},
		{"patch of the log of topics", "PATCH /v1/topics/__topics", `{"config":{}}`, 400, "reserved"},
		{"delete an unknown topic", "DELETE /v1/topics/nothing", "", 404, "unknown topic"},
		{"delete the log of topics", "DELETE /v1/topics/__topics", "", 400, "reserved"},
		{"unknown group", "GET /v1/groups/nothing", "", 404, `unknown group: "nothing"`},
		{"group that is no name", "GET /v1/groups/a%01b", "", 400, "control character U+0001"},
		{"long group", "GET /v1/groups/" + long, "", 400, "allowed are 1 to 255"},
		{"group that is not UTF-8", "DELETE /v1/groups/%ff", "", 400, "not UTF-8"},
		{"seek of a partition in words", "POST /v1/groups/billing/seek", `{"topic":"orders","to":"latest","partition":"all"}`, 400, "partition is a JSON string; allowed is a whole number"},
		{"seek of an unknown group", "POST /v1/groups/nothing/seek", `{"topic":"orders","to":"latest"}`, 404, "unknown group"},
		{"seek while members live", "POST /v1/groups/billing/seek", `{"topic":"orders","to":"latest"}`, 409, "live members"},
		{"delete while members live", "DELETE /v1/groups/billing", "", 409, "live members"},
		{"unknown path", "GET /v1/nothing", "", 404, "404 page not found"},
		{"wrong method", "PUT /v1/topics", "{}", 405, "allowed are GET, HEAD, OPTIONS, POST"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w, v := call(t, newWorld().router(t), tc.request, tc.body)
			detail, _ := v["detail"].(string)
			if w.Code != tc.status || !strings.Contains(detail, tc.text) {
				t.Errorf("%d %q, want %d with %q", w.Code, detail, tc.status, tc.text)
			}
			if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
				t.Errorf("Content-Type %q", got)
			}
		})
	}
}

// What the catalogue says becomes the statuses of docs/design.md, section 6.
func TestOutcomesOfChanges(t *testing.T) {
	for status, err := range map[int]error{421: topology.ErrNotLeader, 503: topology.ErrUnavailable, 504: topology.ErrOutcomeUnknown, 507: topology.ErrDiskFull, 500: errors.New("secret")} {
		w := newWorld()
		w.err = fmt.Errorf("write topic: %w", err)
		for _, request := range []string{"POST /v1/topics", "PATCH /v1/topics/orders", "DELETE /v1/topics/orders"} {
			rec, v := call(t, w.router(t), request, `{"config":{}}`)
			if strings.HasPrefix(request, "POST") {
				rec, v = call(t, w.router(t), request, `{"name":"b"}`)
			}
			if rec.Code != status || strings.Contains(v["detail"].(string), "secret") {
				t.Errorf("%s with %v: %d %v", request, err, rec.Code, v)
			}
		}
	}
}

func TestTopics(t *testing.T) {
	w := newWorld()
	r := w.router(t)

	rec, v := call(t, r, "GET /v1/topics", "")
	list := v["topics"].([]any)
	if rec.Code != 200 || len(list) != 1 || list[0].(map[string]any)["name"] != "orders" {
		t.Errorf("list: %d %v", rec.Code, v)
	}

	rec, v = call(t, r, "POST /v1/topics", `{"name":"new","partitions":6,"config":{"retentionBytes":-1,"segmentMs":60000}}`)
	if rec.Code != 201 || rec.Header().Get("Location") != "/v1/topics/new" || v["partitions"] != 6.0 {
		t.Errorf("create: %d %v %v", rec.Code, rec.Header(), v)
	}
	if cfg := v["config"].(map[string]any); len(cfg) != 2 || cfg["segmentMs"] != 60000.0 {
		t.Errorf("config %v", cfg)
	}
	if cfg := v["effectiveConfig"].(map[string]any); len(cfg) != 5 || cfg["retentionMs"] != 604800000.0 || cfg["segmentMs"] != 60000.0 {
		t.Errorf("effective config %v", cfg)
	}
	if rec, _ = call(t, r, "POST /v1/topics", `{"name":"new"}`); rec.Code != 200 || rec.Header().Get("Location") != "" {
		t.Errorf("create again (T2): %d", rec.Code)
	}

	rec, v = call(t, r, "PATCH /v1/topics/orders", `{"config":{"retentionMs":null,"maxRecordBytes":9}}`)
	if cfg := v["config"].(map[string]any); rec.Code != 200 || len(cfg) != 1 || cfg["maxRecordBytes"] != 9.0 {
		t.Errorf("patch: %d %v", rec.Code, v)
	}
	if w.patch.RetentionBytes.Set || !w.patch.RetentionMS.Set {
		t.Errorf("patch %+v", w.patch)
	}

	if rec, _ = call(t, r, "DELETE /v1/topics/new", ""); rec.Code != 204 || rec.Body.Len() != 0 {
		t.Errorf("delete: %d %q", rec.Code, rec.Body)
	}
	if rec, _ = call(t, r, "GET /v1/topics/new", ""); rec.Code != 404 {
		t.Errorf("deleted: %d", rec.Code)
	}
	if rec, _ = call(t, r, "GET /v1/topics/__topics", ""); rec.Code != 200 {
		t.Errorf("the log of topics: %d", rec.Code)
	}
}

func TestDescribeTopic(t *testing.T) {
	w := newWorld()
	rec, v := call(t, w.router(t), "GET /v1/topics/orders", "")
	logs := v["logs"].([]any)
	if rec.Code != 200 || len(logs) != 3 {
		t.Fatalf("%d %v", rec.Code, v)
	}
	b, err := json.Marshal(logs[1])
	if err != nil {
		t.Fatal(err)
	}
	want := `{"bytes":1234,"damaged":[{"from":3,"to":5}],"end":10,"generation":7,"highWatermark":9,"leader":0,"newest":"2026-01-02T03:04:05Z",` +
		`"oldest":"2026-01-02T03:04:05Z","partition":1,"segments":2,"start":2,"token":"-3074457345618259968"}`
	if string(b) != want {
		t.Errorf("log\n%s, want\n%s", b, want)
	}
	if l := logs[0].(map[string]any); l["end"] != 0.0 || l["oldest"] != nil || l["damaged"] != nil {
		t.Errorf("a log never written: %v", l)
	}
	w.leads = topology.ErrNotLeader
	_, v = call(t, w.router(t), "GET /v1/topics/orders", "")
	if l := v["logs"].([]any)[0].(map[string]any); l["leader"] != nil || l["generation"] != nil {
		t.Errorf("a log without a leader: %v", l)
	}
}

func TestGroups(t *testing.T) {
	w := newWorld()
	r := w.router(t)
	rec, v := call(t, r, "GET /v1/groups", "")
	if g := v["groups"].([]any)[0].(map[string]any); rec.Code != 200 || g["name"] != "billing" || g["lag"] != 6.0 {
		t.Errorf("list: %d %v", rec.Code, v)
	}
	rec, v = call(t, r, "GET /v1/groups/billing", "")
	if rec.Code != 200 || v["partitions"].([]any)[0].(map[string]any)["token"] != "-9223372036854775808" {
		t.Errorf("describe: %d %v", rec.Code, v)
	}
	rec, v = call(t, r, "POST /v1/groups/billing/seek", `{"topic":"orders","to":"time","time":"2026-01-01T00:00:00Z","partition":1,"force":true}`)
	if rec.Code != 200 || len(v["positions"].([]any)) != 2 || w.seek.Time == "" || *w.seek.Partition != 1 {
		t.Errorf("seek: %d %v, asked for %+v", rec.Code, v, w.seek)
	}
	if to := v["positions"].([]any)[1].(map[string]any); to["from"] != nil || to["to"] != 2.0 {
		t.Errorf("position %v", to)
	}
	w.groups["old one/2"] = topology.GroupDetail{Name: "old one/2"}
	rec, v = call(t, r, "GET /v1/groups/old%20one%2F2", "")
	if rec.Code != 200 || len(v["members"].([]any)) != 0 || len(v["partitions"].([]any)) != 0 {
		t.Errorf("an empty group: %d %v", rec.Code, v)
	}
	if rec, _ = call(t, r, "DELETE /v1/groups/old%20one%2F2", ""); rec.Code != 204 {
		t.Errorf("delete: %d", rec.Code)
	}
	w.groups = nil
	if rec, _ = call(t, r, "GET /v1/groups", ""); rec.Body.String() != "{\"groups\":[]}\n" {
		t.Errorf("no groups: %s", rec.Body)
	}
}

func TestCluster(t *testing.T) {
	w := newWorld()
	w.full = true
	rec, v := call(t, w.router(t), "GET /v1/cluster", "")
	if rec.Code != 200 || v["clusterId"] != "22222222-2222-4222-8222-222222222222" || v["size"] != 1.0 || v["epoch"] != 1.0 {
		t.Errorf("%d %v", rec.Code, v)
	}
	b, _ := json.Marshal(v["brokers"])
	want := `[{"disk":"33333333-3333-4333-8333-333333333333","host":"127.0.0.1","ordinal":0,` +
		`"ports":{"client":9250,"consumer":9252,"metrics":9253,"producer":9251,"producerBinary":9254},"ready":true,"reasons":[],` +
		`"run":"44444444-4444-4444-8444-444444444444","started":"2026-01-02T03:04:05Z","version":"v0.1.0"}]`
	if string(b) != want {
		t.Errorf("brokers\n%s, want\n%s", b, want)
	}
	b, _ = json.Marshal(v["storage"])
	if want := `{"bytes":4321,"dir":"/data","flush":"always","free":500,"full":true,"reserve":100,"total":1000}`; string(b) != want {
		t.Errorf("storage %s", b)
	}
	if g := v["generations"].([]any)[0].(map[string]any); g["version"] != 7.0 || g["start"] != "-9223372036854775808" {
		t.Errorf("generation %v", g)
	}
}

func TestHealth(t *testing.T) {
	w := newWorld()
	r := w.router(t)
	if rec, _ := call(t, r, "GET /healthz/live", ""); rec.Code != 200 {
		t.Errorf("live: %d", rec.Code)
	}
	if rec, _ := call(t, r, "GET /healthz/ready", ""); rec.Code != 200 || rec.Body.String() != "{\"ready\":true,\"reasons\":[]}\n" {
		t.Errorf("ready: %d %s", rec.Code, rec.Body)
	}
	w.leads, w.broken = topology.ErrNotLeader, errors.New("log 7 is being checked")
	rec, _ := call(t, r, "GET /healthz/ready", "")
	if want := "{\"ready\":false,\"reasons\":[\"generation: leader not found\",\"disk: log 7 is being checked\"]}\n"; rec.Code != 503 || rec.Body.String() != want {
		t.Errorf("not ready: %d %s", rec.Code, rec.Body)
	}
	if rec.Header().Get("Retry-After") != "1" {
		t.Errorf("headers %v", rec.Header())
	}
	if rec, _ := call(t, r, "GET /healthz/live", ""); rec.Code != 200 {
		t.Errorf("live while not ready: %d", rec.Code)
	}
}

// The texts of docs/wire.md, 2.2, 3.2 and 5.5.
func TestStatus(t *testing.T) {
	known := false
	for _, tc := range []struct {
		h      http.Handler
		status int
		body   string
	}{
		{admin.Status(admin.StatusClient, 9250, nil), 200, "Client discovery server listening on 9250\n"},
		{admin.Status(admin.StatusProducer, 9251, nil), 200, "Producer server listening on 9251\n"},
		{admin.Status(admin.StatusConsumer, 9252, nil), 200, "Consumer server listening on 9252\n"},
		{admin.Status(admin.StatusClient, 9250, func() bool { return known }), 503, "Broker is unavailable to handle producer/consumer requests"},
	} {
		w := httptest.NewRecorder()
		tc.h.ServeHTTP(w, httptest.NewRequest("GET", "/status", nil))
		if w.Code != tc.status || w.Body.String() != tc.body || (w.Code == 503) != (w.Header().Get("Retry-After") == "1") {
			t.Errorf("%d %q %v, want %d %q", w.Code, w.Body, w.Header(), tc.status, tc.body)
		}
	}
}

func metricsRouter(t *testing.T, change func(*admin.Config)) *httpd.Router {
	cfg := newWorld().config(t)
	change(&cfg)
	a, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := httpd.NewRouter()
	a.RegisterMetrics(r)
	return r
}

func TestMetricsAndProfiles(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "skein_test"}, func() float64 { return 5 }))
	r := metricsRouter(t, func(c *admin.Config) { c.Gatherer = reg; c.Pprof = true })
	for request, want := range map[string]string{
		"GET /metrics":                     "skein_test 5",
		"GET /healthz/live":                "ok",
		"GET /debug/pprof/":                "goroutine",
		"GET /debug/pprof/heap":            "",
		"GET /debug/pprof/symbol":          "num_symbols",
		"GET /debug/pprof/cmdline":         "admin.test",
		"GET /debug/pprof/trace?seconds=0": "",
	} {
		if rec, _ := call(t, r, request, ""); rec.Code != 200 || !strings.Contains(rec.Body.String(), want) {
			t.Errorf("%s: %d %.200q", request, rec.Code, rec.Body)
		}
	}
	if rec, _ := call(t, r, "GET /debug/pprof", ""); rec.Code != 302 || rec.Header().Get("Location") != "/debug/pprof/" {
		t.Errorf("the page without a slash: %d %v", rec.Code, rec.Header())
	}
	if rec, _ := call(t, r, "GET /debug/pprof/nothing", ""); rec.Code != 404 {
		t.Errorf("no profile: %d", rec.Code)
	}
	closed := metricsRouter(t, func(*admin.Config) {})
	for _, request := range []string{"GET /debug/pprof", "GET /debug/pprof/heap"} {
		if rec, _ := call(t, closed, request, ""); rec.Code != 404 {
			t.Errorf("%s without the setting: %d", request, rec.Code)
		}
	}
	if rec, _ := call(t, closed, "GET /metrics", ""); rec.Code != 200 {
		t.Errorf("metrics of nothing: %d", rec.Code)
	}
}

func TestOpenAPI(t *testing.T) {
	rec, _ := call(t, newWorld().router(t), "GET /v1/openapi.yaml", "")
	if rec.Code != 200 || rec.Header().Get("Content-Type") != "application/yaml" || !strings.HasPrefix(rec.Body.String(), "openapi: 3.1") {
		t.Errorf("%d %v %q", rec.Code, rec.Header(), rec.Body)
	}
	without := newWorld().router(t, func(c *admin.Config) { c.OpenAPI = nil })
	if rec, _ := call(t, without, "GET /v1/openapi.yaml", ""); rec.Code != 404 {
		t.Errorf("without a document: %d", rec.Code)
	}
}
