package producing

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// httpDoor is a Producer behind a router.
type httpDoor struct {
	*running
	producer *Producer
	topics   *fakeTopics
	router   *httpd.Router
}

func newHTTPDoor(t testing.TB, cc CoalescerConfig, change func(*ProducerConfig)) *httpDoor {
	t.Helper()
	d := &httpDoor{running: runCoalescer(t, cc), topics: newFakeTopics(topicA), router: httpd.NewRouter()}
	cfg := ProducerConfig{Coalescer: d.Coalescer, Topics: d.topics}
	if change != nil {
		change(&cfg)
	}
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Register(d.router)
	d.producer = p
	return d
}

// call is one request; the zero fields are left out.
type call struct {
	method  string // default POST
	path    string // default /v1/topic/a/messages
	query   string
	headers []string // "Name: value"
	body    string
}

func (d *httpDoor) do(c call) *httptest.ResponseRecorder {
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.path == "" {
		c.path = "/v1/topic/a/messages"
	}
	r := httptest.NewRequest(c.method, c.path+c.query, strings.NewReader(c.body))
	for _, h := range c.headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	d.router.ServeHTTP(w, r)
	return w
}

// detail is that of a problem.
func detail(w *httptest.ResponseRecorder) string {
	var p struct{ Detail string }
	if w.Header().Get("Content-Type") != "application/problem+json" || json.Unmarshal(w.Body.Bytes(), &p) != nil {
		return "no problem: " + w.Body.String()
	}
	return p.Detail
}

func TestHTTPProduceAnswers(t *testing.T) { // docs/wire.md 3.1
	d := newHTTPDoor(t, CoalescerConfig{Now: func() time.Time { return time.UnixMilli(42) }}, nil)
	w := d.do(call{query: "?partitionKey=123", body: `{"productId":123,"units":-5}`})
	if w.Code != 200 || w.Body.String() != "OK" || w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("Content-Length") != "2" {
		t.Fatalf("answered %d %v %q", w.Code, w.Header(), w.Body)
	}
	p := topicA.PartitionOf(token.OfString("123"))
	if got, want := show(d.store.records(t, topicA.Log(p))), `"123"="{\"productId\":123,\"units\":-5}"@42;`; got != want {
		t.Fatalf("stored %s, want %s", got, want)
	}

	w = d.do(call{query: "?partitionKey=123&timestamp=1700000000123456", headers: []string{"Accept: application/json", "Content-Type: application/x-ndjson; charset=utf-8",
		"Skein-Header: a=1", "Skein-Header: b=x=y"}, body: "1\n2\r\n\n3"})
	want := fmt.Sprintf(`[{"topic":"a","partition":%d,"offset":1,"generation":7,"timestamp":1700000000123},`+
		`{"topic":"a","partition":%[1]d,"offset":2,"generation":7,"timestamp":1700000000123},`+
		`{"topic":"a","partition":%[1]d,"offset":3,"generation":7,"timestamp":1700000000123}]`+"\n", p)
	if w.Code != 200 || w.Body.String() != want || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("answered %d %v %s\nwant %s", w.Code, w.Header(), w.Body, want)
	}
	if got, want := show(d.store.records(t, topicA.Log(p))[1:2]), `"123"="1"@1700000000123 a:"1" b:"x=y";`; got != want {
		t.Errorf("stored %s, want %s", got, want)
	}
}

func TestHTTPBodies(t *testing.T) {
	for _, c := range []struct {
		name, contentType, body string
		want                    []string
	}{
		{"no type", "", "any\nbytes\xff", []string{"any\nbytes\xff"}},
		{"JSON is one record", "application/json", "{\"a\":\n1}", []string{"{\"a\":\n1}"}},
		{"JSON is not checked", "application/json", "{", []string{"{"}},
		{"text", "text/plain", "a\nb", []string{"a\nb"}},
		{"a wrong type", "x-ndjson;;;", "a\nb", []string{"a\nb"}},
		{"lines", "application/x-ndjson", "1\n2\n", []string{"1", "2"}},
		{"lines, type in capitals", "Application/X-NDJSON", "1\n2\n", []string{"1", "2"}},
		{"lines, type with parameters", "application/x-ndjson;charset=utf-8", "1\n2\n", []string{"1", "2"}},
		{"frames", "application/vnd.polar.producer.frames", "\x00\x00\x00\x01a\x00\x00\x00\x02bc", []string{"a", "bc"}},
		{"records", "application/vnd.skein.records+json", "{\"value\":1}\n{\"value\":{\"$text\":\"x\"}}", []string{"1", "x"}},
	} {
		d := newHTTPDoor(t, CoalescerConfig{}, nil)
		if w := d.do(call{query: "?partitionKey=k", headers: []string{"Content-Type: " + c.contentType}, body: c.body}); w.Code != 200 {
			t.Errorf("%s: %d %s", c.name, w.Code, w.Body)
			continue
		}
		got := d.store.values(t, topicA)[topicA.PartitionOf(token.OfString("k"))]
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", c.want) {
			t.Errorf("%s: stored %q, want %q", c.name, got, c.want)
		}
		d.Coalescer = nil
	}
}

func TestHTTPRefusals(t *testing.T) {
	d := newHTTPDoor(t, CoalescerConfig{Hold: time.Millisecond}, func(cfg *ProducerConfig) { cfg.MaxRequestBytes = 2000 })
	d.topics.limit = 1000
	for p, err := range map[topology.Partition]error{0: topology.ErrNotLeader, 1: topology.ErrUnavailable} {
		d.leads.set(topicA.PartitionToken(p), err)
	}
	d.store.fail = func(a *data.Append) error {
		return map[topology.Partition]error{2: topology.ErrDiskFull, 3: topology.ErrUnavailable, 4: topology.ErrOutcomeUnknown,
			5: io.ErrUnexpectedEOF, 6: topology.ErrUnknownTopic}[a.Log.Partition]
	}
	at := func(p topology.Partition) string { return "?partitionKey=" + keyOf(t, topicA, p) }
	x := "x"
	for _, c := range []struct {
		name   string
		call   call
		status int
		detail string
		retry  string
	}{
		{"empty topic", call{path: "/v1/topic//messages", body: x}, 400, "Invalid topic", ""},
		{"topic ..", call{path: "/v1/topic/../messages", body: x}, 400, `invalid topic: ".." is not allowed`, ""},
		{"topic a/b", call{path: "/v1/topic/a%2Fb/messages", body: x}, 400, "outside A-Z", ""},
		{"reserved topic", call{path: "/v1/topic/__topics/messages", body: x}, 400, "reserved", ""},
		{"topic of 300 characters", call{path: "/v1/topic/" + strings.Repeat("t", 300) + "/messages", body: x}, 400, "300 characters", ""},
		{"GET", call{method: "GET"}, 405, "Producer server doesn't allow getting topic messages", ""},
		{"empty body", call{}, 400, "greater than 0", ""},
		{"nothing but blank lines", call{headers: []string{"Content-Type: application/x-ndjson"}, body: "\n\n"}, 400, "no records", ""},
		{"record too large", call{body: strings.Repeat("x", 1001)}, 413, "the record has 1001 bytes, allowed are 1000", ""},
		{"request too large", call{body: strings.Repeat("x", 2001)}, 413, "2001 bytes, allowed are 2000", ""},
		{"a line too large", call{headers: []string{"Content-Type: application/x-ndjson"}, body: "1\n" + strings.Repeat("2", 1001)}, 413, "line 2", ""},
		{"a line that is no JSON", call{headers: []string{"Content-Type: application/x-ndjson"}, body: "1\nx\n2"}, 400, "invalid line 2", ""},
		{"frames cut short", call{headers: []string{"Content-Type: application/vnd.polar.producer.frames"}, body: "abc"}, 400, "message 1", ""},
		{"records", call{headers: []string{"Content-Type: application/vnd.skein.records+json"}, body: "{}"}, 400, "invalid line 1", ""},
		{"key no UTF-8", call{query: "?partitionKey=%ff", body: x}, 400, "invalid partitionKey: it is not UTF-8", ""},
		{"key wrongly escaped", call{query: "?partitionKey=%2", body: x}, 400, "invalid partitionKey", ""},
		{"key with a control character", call{query: "?partitionKey=a%00", body: x}, 400, "control character", ""},
		{"key too long", call{query: "?partitionKey=" + strings.Repeat("k", 256), body: x}, 400, "256 bytes", ""},
		{"timestamp no number", call{query: "?timestamp=now", body: x}, 400, "invalid timestamp", ""},
		{"timestamp negative", call{query: "?timestamp=-1", body: x}, 400, "invalid timestamp", ""},
		{"header without =", call{headers: []string{"Skein-Header: a"}, body: x}, 400, "Skein-Header", ""},
		{"header without a name", call{headers: []string{"Skein-Header: =a"}, body: x}, 400, "record header", ""},
		{"hidden header", call{headers: []string{"Skein-Header: __skein.idem=a"}, body: x}, 400, "reserved", ""},
		{"idempotency key too long", call{headers: []string{"Idempotency-Key: " + strings.Repeat("k", 256)}, body: x}, 400, "Idempotency-Key", ""},
		{"two idempotency keys", call{headers: []string{"Idempotency-Key: a", "Idempotency-Key: b"}, body: x}, 400, "allowed is one", ""},
		{"unknown encoding", call{headers: []string{"Content-Encoding: br"}, body: x}, 415, "gzip, zstd", ""},
		{"no gzip", call{headers: []string{"Content-Encoding: gzip"}, body: x}, 400, "no gzip", ""},
		{"no zstd", call{headers: []string{"Content-Encoding: zstd"}, body: x}, 400, "no zstd", ""},
		{"no leader", call{query: at(0), body: x}, 421, fmt.Sprintf("Leader for token %d could not be found", token.OfString(keyOf(t, topicA, 0))), ""},
		{"between generations", call{query: at(1), body: x}, 503, "unavailable", "1"},
		{"disk full", call{query: at(2), body: x}, 507, "disk is full", "10"},
		{"storage unavailable", call{query: at(3), body: x}, 503, "unavailable", "1"},
		{"outcome unknown", call{query: at(4), body: x}, 504, "outcome unknown", ""},
		{"our fault", call{query: at(5), body: x}, 500, "internal error", ""},
		{"dropped meanwhile", call{query: at(6), body: x}, 404, "unknown topic", ""},
	} {
		w := d.do(c.call)
		if w.Code != c.status || !strings.Contains(detail(w), c.detail) || w.Header().Get("Retry-After") != c.retry {
			t.Errorf("%s: %d %q, Retry-After %q; want %d with %q, %q", c.name, w.Code, detail(w), w.Header().Get("Retry-After"), c.status, c.detail, c.retry)
		}
	}
	if used := d.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are held at rest", used)
	}
	stored := d.store.values(t, topicA)
	if delete(stored, 4); len(stored) != 0 {
		t.Errorf("refused and stored: %v", stored)
	}
	if w := d.do(call{path: "/v1/topic/new/messages", body: strings.Repeat("x", 1001)}); w.Code != 413 || len(d.topics.known) != 1 {
		t.Errorf("%d, %d topics: a request that is refused makes no topic", w.Code, len(d.topics.known))
	}
	d.topics.closed = topology.ErrUnknownTopic
	if w := d.do(call{path: "/v1/topic/new/messages", body: x}); w.Code != 404 || detail(w) != "topic new: unknown topic" {
		t.Errorf("topic that may not be created: %d %s", w.Code, detail(w))
	}
	d.topics.closed = context.DeadlineExceeded
	if w := d.do(call{path: "/v1/topic/new/messages", body: x}); w.Code != 503 {
		t.Errorf("topic that could not be created in time: %d %s", w.Code, detail(w))
	}
}

func TestHTTPShuttingDown(t *testing.T) {
	d := newHTTPDoor(t, CoalescerConfig{}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.producer.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if w := d.do(call{body: "x"}); w.Code != 503 || w.Header().Get("Retry-After") == "" || w.Header().Get(httpd.ReasonHeader) != httpd.ReasonShuttingDown {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestHTTPBusy(t *testing.T) { // memory budget
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := newHTTPDoor(t, CoalescerConfig{Committer: store, MemoryBudget: 1000}, nil)
	first := make(chan int)
	go func() { first <- d.do(call{body: strings.Repeat("x", 900)}).Code }()
	<-g.came
	w := d.do(call{body: strings.Repeat("x", 900)})
	if w.Code != 429 || w.Header().Get("Retry-After") != "1" || w.Header().Get(httpd.ReasonHeader) != httpd.ReasonBusy {
		t.Errorf("past the budget: %d %v", w.Code, w.Header())
	}
	close(g.open)
	if code := <-first; code != 200 {
		t.Errorf("the first: %d", code)
	}
	if w := d.do(call{body: strings.Repeat("x", 900)}); w.Code != 200 {
		t.Errorf("when there is room again: %d", w.Code)
	}
}

func TestHTTPAnswerTimeout(t *testing.T) { // 504: the outcome is not known
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := newHTTPDoor(t, CoalescerConfig{Committer: store}, func(cfg *ProducerConfig) { cfg.AnswerTimeout = 20 * time.Millisecond })
	if w := d.do(call{body: "x"}); w.Code != 504 || !strings.HasPrefix(detail(w), "outcome unknown") {
		t.Errorf("%d %s", w.Code, detail(w))
	}
	if used := d.budget.used.Load(); used == 0 {
		t.Error("the round still holds the records, the budget does not know")
	}
	close(g.open)
	until(t, "the budget is free", func() bool { return d.budget.used.Load() == 0 })
}

func TestHTTPContentEncodings(t *testing.T) {
	d := newHTTPDoor(t, CoalescerConfig{}, func(cfg *ProducerConfig) { cfg.MaxRequestBytes = 100000 })
	text := strings.Repeat("compress me ", 8000)
	pack := func(encoding, s string) string {
		var b bytes.Buffer
		var w io.WriteCloser
		if encoding == "gzip" {
			w = gzip.NewWriter(&b)
		} else {
			w, _ = zstd.NewWriter(&b)
		}
		_, _ = io.WriteString(w, s)
		_ = w.Close()
		return b.String()
	}
	p := topicA.PartitionOf(token.OfString("k"))
	for i, e := range []string{"gzip", "zstd", "GZIP", "x-gzip", "identity"} {
		body := text
		if e != "identity" {
			body = pack(strings.ToLower(strings.TrimPrefix(e, "x-")), text)
		}
		w := d.do(call{query: "?partitionKey=k", headers: []string{"Content-Encoding: " + e}, body: body})
		if w.Code != 200 {
			t.Fatalf("%s: %d %s", e, w.Code, detail(w))
		}
		if got := d.store.values(t, topicA)[p]; len(got) != i+1 || got[i] != text {
			t.Errorf("%s: stored something else", e)
		}
	}
	for _, e := range []string{"gzip", "zstd"} {
		w := d.do(call{headers: []string{"Content-Encoding: " + e}, body: pack(e, strings.Repeat("x", 100001))})
		if w.Code != 413 || !strings.Contains(detail(w), "decoded request body has more than 100000 bytes") {
			t.Errorf("%s too large once decoded: %d %s", e, w.Code, detail(w))
		}
		whole := pack(e, text)
		w = d.do(call{headers: []string{"Content-Encoding: " + e}, body: whole[:len(whole)-10]})
		if w.Code != 400 {
			t.Errorf("%s cut short: %d %s", e, w.Code, detail(w))
		}
		if w = d.do(call{headers: []string{"Content-Encoding: " + e}, body: pack(e, "")}); w.Code != 400 {
			t.Errorf("%s of nothing: %d %s", e, w.Code, detail(w))
		}
	}
	if used := d.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are held at rest", used)
	}
}

// Several partitions in one request: each record goes by its key, receipts come in the order of the request.
func TestHTTPSeveralPartitions(t *testing.T) {
	d := newHTTPDoor(t, CoalescerConfig{}, nil)
	var body strings.Builder
	type line struct {
		key, value string
	}
	var lines []line
	for i := range 40 {
		l := line{fmt.Sprint("k", i%9), fmt.Sprint(i)}
		if i%10 == 9 {
			l.key = ""
			fmt.Fprintf(&body, "{\"value\":%s}\n", l.value)
		} else {
			fmt.Fprintf(&body, "{\"key\":%q,\"value\":%s}\n", l.key, l.value)
		}
		lines = append(lines, l)
	}
	w := d.do(call{headers: []string{"Content-Type: " + typeRecords, "Accept: text/html, application/json;q=0.5"}, body: body.String()})
	var receipts []struct {
		Topic      string
		Partition  topology.Partition
		Offset     int
		Generation int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &receipts); err != nil || w.Code != 200 || len(receipts) != len(lines) {
		t.Fatalf("%d %s, %v", w.Code, w.Body, err)
	}
	stored := map[topology.Partition][]recordbatch.Record{}
	for p := range topology.Partition(12) {
		stored[p] = d.store.records(t, topicA.Log(p))
	}
	keyless := map[topology.Partition]bool{}
	for i, r := range receipts {
		rec := stored[r.Partition][r.Offset]
		if string(rec.Key) != lines[i].key || string(rec.Value) != lines[i].value || r.Generation != 7 {
			t.Errorf("receipt %d names %q=%q, want %q=%q", i, rec.Key, rec.Value, lines[i].key, lines[i].value)
		}
		if lines[i].key == "" {
			keyless[r.Partition] = true
		} else if r.Partition != topicA.PartitionOf(token.OfString(lines[i].key)) {
			t.Errorf("record %d is in partition %d", i, r.Partition)
		}
	}
	if len(keyless) != 1 {
		t.Errorf("records without a key went to %d partitions, want one", len(keyless))
	}

	// One partition that another broker leads: nothing is written.
	before := len(d.store.rounds)
	d.leads.set(topicA.PartitionToken(topicA.PartitionOf(token.OfString("k3"))), topology.ErrNotLeader)
	if w := d.do(call{headers: []string{"Content-Type: " + typeRecords}, body: body.String()}); w.Code != 421 || len(d.store.rounds) != before {
		t.Errorf("%d, %d rounds written", w.Code, len(d.store.rounds)-before)
	}
	d.leads.set(topicA.PartitionToken(topicA.PartitionOf(token.OfString("k3"))), nil)

	// One partition fails: the outcome of the whole is unknown.
	d.store.fail = func(a *data.Append) error {
		if a.Log.Partition == topicA.PartitionOf(token.OfString("k4")) {
			return topology.ErrDiskFull
		}
		return nil
	}
	if w := d.do(call{headers: []string{"Content-Type: " + typeRecords}, body: body.String()}); w.Code != 504 || !strings.Contains(detail(w), "some of the records are written") {
		t.Errorf("%d %s", w.Code, detail(w))
	}
}

func TestAcceptsJSON(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/*": false, "application/json": true, "Application/JSON; charset=utf-8": true,
		"text/html, application/json;q=0.9": true, "application/json;q=0": false, "application/json; q=0.0, text/html": false,
		"application/problem+json": false, "application/vnd.skein.records+json": false,
	} {
		if got := acceptsJSON(accept); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

// A body that does not come is answered in time, by the server's own deadline; one that ends early is refused.
func TestHTTPBrokenBodies(t *testing.T) {
	d := newHTTPDoor(t, CoalescerConfig{}, nil)
	for _, c := range []struct {
		name   string
		body   io.Reader
		length int64
		status int
	}{
		{"ends early", strings.NewReader("abc"), 10, 400},
		{"breaks", io.MultiReader(strings.NewReader("abc"), errReader{io.ErrClosedPipe}), 10, 400},
		{"no length", strings.NewReader("abc"), -1, 200},
		{"no length and empty", strings.NewReader(""), -1, 400},
		{"no length and too long", io.LimitReader(zeros{}, 17<<20), -1, 413},
		{"no length, as long as allowed, record too large", io.LimitReader(zeros{}, 16<<20), -1, 413},
	} {
		r := httptest.NewRequest("POST", "/v1/topic/a/messages", c.body)
		r.ContentLength = c.length
		w := httptest.NewRecorder()
		d.router.ServeHTTP(w, r)
		if w.Code != c.status {
			t.Errorf("%s: %d %s, want %d", c.name, w.Code, w.Body, c.status)
		}
	}
	if used := d.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are held at rest", used)
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
