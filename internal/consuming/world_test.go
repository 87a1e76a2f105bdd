package consuming

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a broker reduced to what this package sees of it.
type world struct {
	t      testing.TB
	topics *fakeTopics
	logs   *fakeLogs
	kv     *fakeKV
	lead   *fakeLead
	s      *Service
	h      http.Handler
	cfg    Config
}

func newWorld(t testing.TB, change ...func(*Config)) *world {
	w := &world{t: t, topics: &fakeTopics{}, logs: newFakeLogs(), kv: newFakeKV(), lead: &fakeLead{version: 1}}
	w.cfg = Config{Topics: w.topics, Logs: w.logs, Appender: w.logs, KV: w.kv, Leadership: w.lead}
	for _, fn := range change {
		fn(&w.cfg)
	}
	w.open()
	return w
}

// open makes a service on what logs and database hold.
func (w *world) open() {
	w.t.Helper()
	cfg := w.cfg
	cfg.Registerer = prometheus.NewRegistry()
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	r := httpd.NewRouter()
	s.Register(r)
	w.s, w.h = s, r
}

// restart is a crash, or a clean stop if flush was called before, and a start under the next generation.
func (w *world) restart() {
	w.t.Helper()
	w.logs.restart()
	w.lead.set(w.logs.version, nil)
	w.open()
}

// flush does what Run does after the commit interval, and at the end.
func (w *world) flush() {
	w.t.Helper()
	if err := w.s.positions.flushDirty(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	if err := w.s.positions.save(); err != nil {
		w.t.Fatal(err)
	}
}

// run has the service run until the test ends, or stop is called.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := w.s
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(stop)
	return stop
}

// produce stores values as one chunk.
func (w *world) produce(t topology.Topic, p topology.Partition, values ...string) {
	records := make([]recordbatch.Record, len(values))
	for i, v := range values {
		records[i] = recordbatch.Record{Timestamp: 1_700_000_000_000 + int64(i), Key: []byte("k"), Value: []byte(v)}
	}
	w.logs.add(t.Log(p), records...)
}

// reply is an answer to a request.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) detail() string {
	var p struct{ Detail string }
	_ = json.Unmarshal(r.body, &p)
	return p.Detail
}

// do sends a request, over the connection of ctx if there is one.
func (w *world) do(ctx context.Context, method, target, accept, body string) reply {
	w.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req := httptest.NewRequestWithContext(ctx, method, target, in)
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	rec := httptest.NewRecorder()
	w.h.ServeHTTP(rec, req)
	return reply{rec.Code, rec.Header(), rec.Body.Bytes()}
}

// conn is a connection of its own.
func (w *world) conn() (ctx context.Context, closed func()) {
	ctx, _, closed = httpd.WithConn(context.Background())
	return ctx, closed
}

func (w *world) register(id, group, policy string, topics ...string) {
	w.t.Helper()
	q := url.Values{"consumerId": {id}, "group": {group}, "topic": topics}
	if policy != "" {
		q.Set("onNewGroup", policy)
	}
	if r := w.do(context.Background(), "PUT", "/v1/consumer/register?"+q.Encode(), "", ""); r.status != 200 {
		w.t.Fatalf("register %s: %d %s", id, r.status, r.body)
	}
}

const (
	earliest = "startFromEarliest"
	latest   = "startFromLatest"
)

// poll polls in JSON; extra is more of the query.
func (w *world) poll(id string, extra ...string) reply {
	w.t.Helper()
	q := append([]string{"consumerId=" + url.QueryEscape(id)}, extra...)
	return w.do(context.Background(), "POST", "/v1/consumer/poll?"+strings.Join(q, "&"), "application/json", "")
}

// chunk is an element of a JSON answer.
type chunk struct {
	Topic       string            `json:"topic"`
	Token       string            `json:"token"`
	RangeIndex  int               `json:"rangeIndex"`
	Version     int               `json:"version"`
	StartOffset string            `json:"startOffset"`
	Values      []json.RawMessage `json:"values"`
}

func (r reply) chunks(t testing.TB) []chunk {
	t.Helper()
	if r.status == http.StatusNoContent {
		return nil
	}
	var list []chunk
	if err := json.Unmarshal(r.body, &list); err != nil || r.status != 200 {
		t.Fatalf("answer %d %s: %v", r.status, r.body, err)
	}
	return list
}

// values are the values of an answer: "topic@offset=value".
func (r reply) values(t testing.TB) []string {
	t.Helper()
	var list []string
	for _, c := range r.chunks(t) {
		offset, err := strconv.Atoi(c.StartOffset)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range c.Values {
			list = append(list, fmt.Sprintf("%s@%d=%s", c.Topic, offset+i, v))
		}
	}
	return list
}

// committed is where the group stands on a partition, by memory; -1 for nowhere.
func (w *world) committed(group string, t topology.Topic, p topology.Partition) topology.Offset {
	w.t.Helper()
	tp := w.s.positions.of(t)
	if _, err := w.s.positions.ensure(tp, p); err != nil {
		w.t.Fatal(err)
	}
	pos, ok := w.s.positions.position(tp, p, group)
	if !ok {
		return -1
	}
	return pos.offset
}

func equalJSON(t testing.TB, got []byte, want string) {
	t.Helper()
	var a, b bytes.Buffer
	if err := json.Compact(&a, got); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Compact(&b, []byte(want)); err != nil {
		t.Fatal(err)
	}
	if a.String() != b.String() {
		t.Errorf("got  %s\nwant %s", a.String(), b.String())
	}
}
