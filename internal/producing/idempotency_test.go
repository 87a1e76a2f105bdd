package producing

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

// fakeClock is set by hand.
type fakeClock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *fakeClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *fakeClock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// idemDoor is a door with idempotency over a store that may have been filled by an earlier one.
func idemDoor(t testing.TB, store *fakeStore, clock *fakeClock, change func(*ProducerConfig)) *httpDoor {
	t.Helper()
	return newHTTPDoor(t, CoalescerConfig{Committer: store, Now: clock.now, ChunkBytes: 500}, func(cfg *ProducerConfig) {
		cfg.Idempotency.Logs = store
		if change != nil {
			change(cfg)
		}
	})
}

func newClock() *fakeClock { return &fakeClock{t: time.UnixMilli(1_000_000_000)} }

func TestIdempotencyKey(t *testing.T) { // docs/design.md §6
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	c := call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: one", "Accept: application/json", "Content-Type: application/x-ndjson"},
		body: "1\n2\n\"" + strings.Repeat("x", 600) + "\"\n4\n"} // in three chunks
	first := d.do(c)
	if first.Code != 200 || first.Header().Get(headerDuplicate) != "" {
		t.Fatalf("first: %d %v", first.Code, first.Header())
	}
	other := c
	other.headers = slices.Clone(c.headers)
	other.headers[0] = "Idempotency-Key: two"
	if w := d.do(other); w.Code != 200 || w.Header().Get(headerDuplicate) != "" {
		t.Fatalf("another key: %d %v", w.Code, w.Header())
	}
	again := func(what string) {
		t.Helper()
		clock.add(time.Second)
		w := d.do(c)
		if w.Code != 200 || w.Body.String() != first.Body.String() || w.Header().Get(headerDuplicate) != "true" {
			t.Fatalf("%s: %d %v %s; want the first answer %s", what, w.Code, w.Header(), w.Body, first.Body)
		}
	}
	again("repeated")

	for name, change := range map[string]func(*call){
		"body":          func(c *call) { c.body = "1\n2\n" },
		"header":        func(c *call) { c.headers = append(slices.Clone(c.headers), "Skein-Header: a=b") },
		"content type":  func(c *call) { c.headers = []string{c.headers[0], "Content-Type: text/plain"} },
		"timestamp":     func(c *call) { c.query += "&timestamp=5000" },
		"line feeds":    func(c *call) { c.body += "\n" },
		"another topic": nil,
	} {
		changed := c
		if change == nil {
			changed.path = "/v1/topic/b/messages" // another log: nothing to do with the first
			if w := d.do(changed); w.Code != 200 || w.Header().Get(headerDuplicate) != "" {
				t.Errorf("%s: %d", name, w.Code)
			}
			continue
		}
		change(&changed)
		if w := d.do(changed); w.Code != 422 || detail(w) != ErrKeyReused.Error() {
			t.Errorf("the same key with another %s: %d %s", name, w.Code, detail(w))
		}
	}
	records := len(d.store.records(t, topicA.Log(topicA.PartitionOf(token.OfString("k")))))
	if records != 8 {
		t.Errorf("%d records stored, want 8", records)
	}
	// The next run reads the keys from the log.
	d.running.stop()
	d = idemDoor(t, store, clock, nil)
	again("after a restart")
	changed := c
	changed.body = "1\n"
	if w := d.do(changed); w.Code != 422 {
		t.Errorf("after a restart, another body: %d", w.Code)
	}
	// Keys are forgotten after the window.
	clock.add(10 * time.Minute)
	if w := d.do(c); w.Code != 200 || w.Header().Get(headerDuplicate) != "" {
		t.Errorf("after the window: %d %v", w.Code, w.Header())
	}
}

func TestIdempotencyHeadersAreHidden(t *testing.T) {
	store := newFakeStore()
	d := idemDoor(t, store, newClock(), nil)
	if w := d.do(call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: x", "Skein-Header: a=1"}, body: "v"}); w.Code != 200 {
		t.Fatal(w.Code)
	}
	log := topicA.Log(topicA.PartitionOf(token.OfString("k")))
	r := store.records(t, log)[0]
	var names []string
	for h := range r.VisibleHeaders() {
		names = append(names, h.Key)
	}
	if !slices.Equal(names, []string{"a"}) || len(r.Headers) != 2 {
		t.Errorf("visible headers %v of %v", names, r.Headers)
	}
	if h, _ := recordbatch.ParseHeader(store.logs[log][0]); !h.Idempotent() {
		t.Error("the chunk is not marked: a reader would pass it over")
	}
}

func TestIdempotencyWithoutKeyGoesByIdempotencyKey(t *testing.T) {
	store := newFakeStore()
	d := idemDoor(t, store, newClock(), nil)
	for i := range 5 {
		w := d.do(call{headers: []string{"Idempotency-Key: same"}, body: "v"})
		if w.Code != 200 || (w.Header().Get(headerDuplicate) == "true") != (i > 0) {
			t.Fatalf("%d: %d %v", i, w.Code, w.Header())
		}
	}
	if got := store.values(t, topicA); len(got) != 1 || len(got[topicA.PartitionOf(token.OfString("same"))]) != 1 {
		t.Errorf("stored %v", got)
	}
}

// Of requests with one key that come at once, one is written; the others wait for it.
func TestIdempotencyAtOnce(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := idemDoor(t, store, newClock(), nil)
	c := call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: x", "Accept: application/json"}, body: "v"}
	type result struct {
		body      string
		duplicate bool
	}
	results := make(chan result, 10)
	for range cap(results) {
		go func() {
			w := d.do(c)
			results <- result{w.Body.String(), w.Header().Get(headerDuplicate) == "true"}
		}()
	}
	<-g.came
	changed := c
	changed.body = "other"
	if w := d.do(changed); w.Code != 422 {
		t.Errorf("another body while the first is on its way: %d", w.Code)
	}
	close(g.open)
	duplicates := 0
	first := ""
	for range cap(results) {
		r := <-results
		if r.duplicate {
			duplicates++
		}
		if first == "" {
			first = r.body
		}
		if r.body != first {
			t.Errorf("answered %s and %s", first, r.body)
		}
	}
	if duplicates != cap(results)-1 {
		t.Errorf("%d duplicates, want %d", duplicates, cap(results)-1)
	}
}

func TestIdempotencyAfterFailures(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	c := call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: x"}, body: "v"}
	var fail error
	store.fail = func(*data.Append) error { return fail }
	want := func(what string, status int, duplicate bool, stored int) {
		t.Helper()
		w := d.do(c)
		got := len(store.values(t, topicA)[topicA.PartitionOf(token.OfString("k"))])
		if w.Code != status || (w.Header().Get(headerDuplicate) == "true") != duplicate || got != stored {
			t.Fatalf("%s: %d, duplicate %q, %d stored", what, w.Code, w.Header().Get(headerDuplicate), got)
		}
	}
	fail = topology.ErrDiskFull
	want("not written", 507, false, 0)
	fail = topology.ErrOutcomeUnknown // the fake store has it all the same
	want("unknown", 504, false, 1)
	fail = nil
	want("after an unknown outcome the log knows", 200, true, 1)
	fail = topology.ErrUnavailable
	want("repeated although the log cannot be written", 200, true, 1)

	store.readErr = errors.New("broken")
	d.producer.idem.mu.Lock()
	for _, tab := range d.producer.idem.tables {
		d.producer.idem.forget(tab)
	}
	d.producer.idem.mu.Unlock()
	want("the keys cannot be read", 503, false, 1)
	store.readErr, fail = nil, nil
	want("and then they can", 200, true, 1)
}

// A request of which one partition failed is completed by its repetition; no record is stored twice.
func TestIdempotencySeveralPartitions(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	bad := topicA.PartitionOf(token.OfString("k4"))
	failing := true
	store.fail = func(a *data.Append) error {
		if failing && a.Log.Partition == bad {
			return topology.ErrDiskFull
		}
		return nil
	}
	var body strings.Builder
	for i := range 30 {
		if i%7 == 0 {
			fmt.Fprintf(&body, "{\"value\":%d}\n", i)
		} else {
			fmt.Fprintf(&body, "{\"key\":\"k%d\",\"value\":%d,\"timestamp\":%d}\n", i%9, i, i)
		}
	}
	c := call{headers: []string{"Idempotency-Key: x", "Content-Type: " + typeRecords, "Accept: application/json"}, body: body.String()}
	if w := d.do(c); w.Code != 504 {
		t.Fatalf("one partition fails: %d %s", w.Code, w.Body)
	}
	failing = false
	clock.add(time.Second)
	second := d.do(c)
	if second.Code != 200 || second.Header().Get(headerDuplicate) != "true" {
		t.Fatalf("repeated: %d %v", second.Code, second.Header())
	}
	clock.add(time.Second)
	third := d.do(c)
	if third.Code != 200 || third.Body.String() != second.Body.String() {
		t.Errorf("the third answer differs:\n%s%s", third.Body, second.Body)
	}
	n := 0
	for _, v := range store.values(t, topicA) {
		n += len(v)
	}
	if n != 30 {
		t.Errorf("%d records stored, want 30", n)
	}
	var receipts []struct {
		Partition topology.Partition
		Offset    int
		Timestamp int64
	}
	if err := json.Unmarshal(second.Body.Bytes(), &receipts); err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		rec := store.records(t, topicA.Log(r.Partition))[r.Offset]
		if string(rec.Value) != fmt.Sprint(i) || rec.Timestamp != r.Timestamp {
			t.Errorf("receipt %d names %q@%d", i, rec.Value, rec.Timestamp)
		}
	}
}

func TestIdempotencyBounds(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, func(cfg *ProducerConfig) { cfg.Idempotency.Keys, cfg.Idempotency.TotalKeys = 5, 8 })
	idem := d.producer.idem
	do := func(partitionKey, key string) bool {
		t.Helper()
		clock.add(time.Millisecond)
		w := d.do(call{query: "?partitionKey=" + partitionKey, headers: []string{"Idempotency-Key: " + key}, body: "v"})
		if w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return w.Header().Get(headerDuplicate) == "true"
	}
	for i := range 7 {
		do("k", fmt.Sprint(i))
	}
	if idem.total != 5 {
		t.Errorf("%d keys held, want 5", idem.total)
	}
	if do("k", "0") {
		t.Error("the oldest key is remembered beyond the bound")
	}
	if !do("k", "6") || !do("k", "4") {
		t.Error("a key within the bound is forgotten")
	}
	// Too many in all: those of the log that was not used for longest go, and come back from the log.
	for i := range 5 {
		do("k1", fmt.Sprint(i))
	}
	idem.sweep()
	if idem.total > 8 || len(idem.tables) != 1 {
		t.Errorf("%d keys in %d tables after the sweep", idem.total, len(idem.tables))
	}
	reads := store.reads
	if !do("k", "6") || store.reads == reads {
		t.Error("a key that was let go is not read from its log")
	}
	// Old ones go by themselves.
	clock.add(time.Hour)
	idem.sweep()
	if idem.total != 0 || len(idem.tables) != 0 {
		t.Errorf("%d keys in %d tables after an hour", idem.total, len(idem.tables))
	}
}

func TestIdempotencyLoadsOnlyWhatEarlierRunsWrote(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	clock.add(2 * clockSlack)
	for i := range 50 {
		d.do(call{query: "?partitionKey=k", body: fmt.Sprint(i)})
	}
	if w := d.do(call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: x"}, body: "v"}); w.Code != 200 {
		t.Fatal(w.Code)
	}
	if store.reads != 0 {
		t.Errorf("%d reads of chunks that this run wrote without keys", store.reads)
	}
}

func TestMarksSurviveTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 1000).Draw(t, "total")
		index := rapid.IntRange(0, total-1).Draw(t, "index")
		m := idemMark{key: digestKey(rapid.String().Draw(t, "key")), time: rapid.Int64Min(0).Draw(t, "time")}
		d := newDigester()
		d.bytes([]byte(rapid.String().Draw(t, "request")))
		m.request = d.sum()
		r := recordbatch.Record{Headers: []recordbatch.RecordHeader{{Key: "a"}}}
		m.mark(&r, index, total)
		value, ok := r.Hidden(idemHeader)
		p, ok2 := parseMark(value)
		if want := (idemPart{m.key, m.request, m.time, index, total}); !ok || !ok2 || p != want {
			t.Fatalf("%+v, want %+v", p, want)
		}
	})
}

func FuzzParseMark(f *testing.F) {
	var m idemMark
	var r recordbatch.Record
	m.mark(&r, 3, 200)
	f.Add(slices.Clone(r.Headers[0].Value))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseMark(b)
		if !ok {
			return
		}
		m := idemMark{key: p.key, request: p.request, time: p.time}
		var r recordbatch.Record
		m.mark(&r, p.index, p.total)
		q, ok := parseMark(r.Headers[0].Value)
		if !ok || p != q || p.index >= p.total {
			t.Fatalf("%+v is read again as %+v, %v", p, q, ok)
		}
	})
}

// A request that is refused after a part of it was claimed leaves no trace: the key can be used in that partition.
func TestIdempotencyRefusedRequestsClaimNothing(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	a, b := keyOf(t, topicA, 3), keyOf(t, topicA, 9)
	line := func(key string) string { return fmt.Sprintf("{\"key\":%q,\"value\":1}\n", key) }
	c := call{headers: []string{"Idempotency-Key: x", "Content-Type: " + typeRecords}}
	do := func(what, body string, status int) {
		t.Helper()
		c.body = body
		if w := d.do(c); w.Code != status {
			t.Fatalf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	do("one partition", line(b), 200)
	do("another request with that key, new in one partition and not in the other", line(a)+line(b), 422)
	if got := store.values(t, topicA); len(got) != 1 {
		t.Errorf("stored %v", got)
	}
	do("the partition where it was new", line(a), 200)
	d.running.stop()
	c.headers[0] = "Idempotency-Key: y"
	for range 2 { // the second does not wait for the first
		do("shutting down", line(a)+line(b), 503)
	}
}

func TestIdempotencyLoadIsBounded(t *testing.T) {
	store, clock := newFakeStore(), newClock()
	d := idemDoor(t, store, clock, nil)
	for i := range 5 {
		d.do(call{query: "?partitionKey=k", headers: []string{fmt.Sprint("Idempotency-Key: ", i)}, body: "v"})
	}
	d.running.stop()
	d = idemDoor(t, store, clock, func(cfg *ProducerConfig) { cfg.Idempotency.LoadWait = time.Nanosecond })
	c := call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: 2"}, body: "v"}
	if w := d.do(c); w.Code != 503 || w.Header().Get("Retry-After") == "" || !strings.Contains(detail(w), "are being read") {
		t.Errorf("keys that cannot be read in time: %d %s", w.Code, detail(w))
	}
	d.producer.idem.cfg.LoadWait = time.Minute
	if w := d.do(c); w.Code != 200 || w.Header().Get(headerDuplicate) != "true" {
		t.Errorf("when they can: %d %s", w.Code, w.Body)
	}
}
