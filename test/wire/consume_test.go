package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/skeinmq/skein/test/harness"
)

// item is one item of a binary poll (5.2.1).
type item struct {
	token   int64
	index   uint8
	version uint32
	topic   string
	start   int64
	records []record
}

type record struct {
	micros int64
	body   string
}

// cursor takes bytes apart and fails the test when they end early.
type cursor struct {
	t    testing.TB
	rest []byte
}

func (c *cursor) take(n int) []byte {
	c.t.Helper()
	if n < 0 || n > len(c.rest) {
		c.t.Fatalf("%d bytes are due and %d are left", n, len(c.rest))
	}
	taken := c.rest[:n]
	c.rest = c.rest[n:]
	return taken
}

func (c *cursor) uint(n int) uint64 {
	c.t.Helper()
	return binary.BigEndian.Uint64(append(make([]byte, 8-n, 8), c.take(n)...))
}

// unpack reads a binary answer and checks what clients need (0.1 to 0.3, 0.15).
func unpack(t testing.TB, a answer) []item {
	t.Helper()
	if a.StatusCode != 200 {
		t.Fatalf("status %d: %s", a.StatusCode, a.body)
	}
	if ct := a.Header.Get("Content-Type"); ct != "application/vnd.polar.consumermessage" {
		t.Errorf("Content-Type %q", ct)
	}
	if n, err := strconv.Atoi(a.Header.Get("Content-Length")); err != nil || n != len(a.body) || a.ContentLength != int64(n) {
		t.Errorf("Content-Length %q for %d bytes", a.Header.Get("Content-Length"), len(a.body))
	}
	if a.Header.Get("Content-Encoding") != "" || a.Uncompressed {
		t.Error("the answer has a content encoding")
	}
	zr, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer zr.Close()
	c := &cursor{t, []byte(a.body)}
	var items []item
	for range c.uint(2) {
		it := item{token: int64(c.uint(8)), index: uint8(c.uint(1)), version: uint32(c.uint(4))}
		it.topic = string(c.take(int(c.uint(1))))
		it.start = int64(c.uint(8))
		payload := c.take(int(c.uint(4)))
		if len(payload) == 0 {
			t.Fatal("an empty payload")
		}
		plain, err := zr.DecodeAll(payload, nil)
		if err != nil {
			t.Fatalf("payload of %s: %v", it.topic, err)
		}
		p := &cursor{t, plain}
		for len(p.rest) > 0 {
			r := record{micros: int64(p.uint(8))}
			r.body = string(p.take(int(p.uint(4))))
			it.records = append(it.records, r)
		}
		if len(it.records) == 0 || it.records[len(it.records)-1].body == "" {
			t.Fatalf("the item of %s has no records, or an empty last one", it.topic)
		}
		items = append(items, it)
	}
	if len(c.rest) > 0 {
		t.Errorf("%d bytes after the last item", len(c.rest))
	}
	return items
}

func bodies(items []item) (all []string) {
	for _, it := range items {
		for _, r := range it.records {
			all = append(all, r.body)
		}
	}
	return all
}

// consumer is a stateless consumer over HTTP/1.1 (5).
type consumer struct {
	t  testing.TB
	b  *harness.Broker
	id string
}

func register(t testing.TB, b *harness.Broker, id, group, policy string, topics ...string) consumer {
	t.Helper()
	target := "/v1/consumer/register?consumerId=" + id + "&group=" + group + "&topic=" + strings.Join(topics, "&topic=")
	if policy != "" {
		target += "&onNewGroup=" + policy
	}
	http1(t, b, harness.ConsumePort, "PUT", target, "").expect(t, 200, "OK")
	return consumer{t, b, id}
}

func (c consumer) call(what, query string, headers ...string) answer {
	c.t.Helper()
	return http1(c.t, c.b, harness.ConsumePort, "POST", "/v1/consumer/"+what+"?consumerId="+c.id+query, "", headers...)
}

// poll polls in binary up to n times until there is an answer with data.
func (c consumer) poll(query string) []item {
	c.t.Helper()
	for range 10 {
		if a := c.call("poll", query); a.StatusCode != 204 {
			return unpack(c.t, a)
		}
	}
	return nil
}

const earliest = "startFromEarliest"

func produceTo(t testing.TB, b *harness.Broker, topic, key string, values ...string) {
	t.Helper()
	for _, v := range values {
		b.MustProduce(t, topic, key, v)
	}
}

// TestBinaryPoll follows 5.2.1.
func TestBinaryPoll(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, port := range []int{harness.AdminPort, harness.ConsumePort} {
		topic := fmt.Sprintf("poll-%d", port)
		b.CreateTopic(t, topic, 3, "")
		produceTo(t, b, topic, "123", `{"a":1}`, "not json", "\xff\x00bytes")
		register(t, b, topic, topic, earliest, topic)

		var got []item
		for range 3 {
			items := unpack(t, http1(t, b, port, "POST", "/v1/consumer/poll?wait=5s&consumerId="+topic, ""))
			if len(items) != 1 {
				t.Fatalf("%d items in a poll of one partition, for requests that came one after the other (0.13)", len(items))
			}
			got = append(got, items[0])
		}
		for i, want := range []string{`{"a":1}`, "not json", "\xff\x00bytes"} {
			it := got[i]
			if it.topic != topic || it.token != -9223372036854775808 || it.index != 0 || it.version < 1 || it.start != int64(i) {
				t.Errorf("item %d is %+v", i, it)
			}
			if len(it.records) != 1 || it.records[0].body != want || it.records[0].micros%1000 != 0 || it.records[0].micros < 1e15 {
				t.Errorf("records of item %d: %+v, want %q", i, it.records, want)
			}
		}
	}

	t.Run("answers above 4 KiB and 64 KiB have a length too (0.1), in HTTP/2 as well", func(t *testing.T) {
		client := h2c(t)
		for _, size := range []int{6000, 100_000, 900_000} {
			topic := fmt.Sprintf("size-%d", size)
			value := strings.Repeat(fmt.Sprint(size), size/len(fmt.Sprint(size)))
			produceTo(t, b, topic, "k", value)
			c := register(t, b, topic, topic, earliest, topic)
			if got := bodies(c.poll("&ack=none")); len(got) != 1 || got[0] != value {
				t.Errorf("%d bytes did not come back over HTTP/1.1", size)
			}
			a := http2Do(t, client, "POST", b.URL(harness.ConsumePort, "/v1/consumer/poll?ack=none&consumerId="+topic), "", "Accept-Encoding", "gzip")
			if got := bodies(unpack(t, a)); len(got) != 1 || got[0] != value {
				t.Errorf("%d bytes did not come back over HTTP/2", size)
			}
		}
	})

	t.Run("empty records stored by other ways are left out (0.15)", func(t *testing.T) {
		lines := strings.Join([]string{`{"value":{"$text":""}}`, `{"value":"a"}`, `{"value":null}`, `{"value":{"$text":""}}`, `{"value":"b"}`, `{"value":{"$text":""}}`}, "\n")
		b.CreateTopic(t, "empties", 1, "")
		b.Must(t, 200, "POST", harness.ProducePort, "/v1/topic/empties/messages", lines, "Content-Type", "application/vnd.skein.records+json")
		produceTo(t, b, "empties", "", "c")
		c := register(t, b, "empties", "empties", earliest, "empties")
		got := map[int64]string{}
		for range 6 {
			for _, it := range c.poll("") {
				for i, r := range it.records {
					got[it.start+int64(i)] = r.body
				}
			}
		}
		if want := map[int64]string{1: `"a"`, 4: `"b"`, 6: "c"}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("offsets and records %v, want %v", got, want)
		}
	})
}

// TestJSONPoll follows 5.2.2.
func TestJSONPoll(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "json", 3, "")
	b.Must(t, 200, "POST", harness.ProducePort, "/v1/topic/json/messages?partitionKey=123", "{\"a\":1}\n[2]\n3\n", "Content-Type", "application/x-ndjson")
	produceTo(t, b, "json", "123", "plain text", "\xff\xfe")
	c := register(t, b, "j", "j", earliest, "json")
	a := c.call("poll", "&wait=5s", "Accept: application/json")
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %q %s", a.StatusCode, a.Header.Get("Content-Type"), a.body)
	}
	version := regexpNumber(t, a.body, `"version":`)
	want := `[{"topic":"json","token":"-9223372036854775808","rangeIndex":0,"version":` + version + `,"startOffset":"0","values":[{"a":1},[2],3]}]`
	if strings.TrimSpace(a.body) != want {
		t.Errorf("the answer is %s, want %s", a.body, want)
	}
	// Whatever was produced, the answer is JSON.
	for _, want := range []string{`["plain text"]`, `[{"$base64":"//4="}]`} {
		a := c.call("poll", "&wait=5s", "Accept: application/json")
		var chunks []struct {
			StartOffset string
			Values      json.RawMessage
		}
		if err := json.Unmarshal([]byte(a.body), &chunks); err != nil || len(chunks) != 1 || string(chunks[0].Values) != want {
			t.Errorf("the answer is %s (%v), want the values %s", a.body, err, want)
		}
	}
	if a := c.call("poll", "", "Accept: application/json"); a.StatusCode != 204 || a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Retry-After") != "1" {
		t.Errorf("nothing new is answered %d with %v", a.StatusCode, a.Header)
	}
	// Any other Accept is binary.
	produceTo(t, b, "json", "123", "again")
	if got := bodies(unpack(t, c.call("poll", "&wait=5s", "Accept: text/html, application/json;q=0.9"))); len(got) != 1 || got[0] != "again" {
		t.Errorf("got %q", got)
	}
}

// regexpNumber cuts the digits after a prefix out of text.
func regexpNumber(t testing.TB, text, prefix string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, prefix)
	if !ok {
		t.Fatalf("no %s in %s", prefix, text)
	}
	return rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
}

// TestRegister follows the table of 5.1.
func TestRegister(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	reg := func(method, query, body string) answer {
		t.Helper()
		return http1(t, b, harness.ConsumePort, method, "/v1/consumer/register"+query, body)
	}
	reg("PUT", "?consumerId=c1&group=g&topic=a&topic=b", "").expect(t, 200, "OK")
	reg("PUT", "?consumerId=c1&group=g&topic=a&topic=b", "").expect(t, 200, "Already registered")
	reg("POST", "?consumerId=c2&group=g&topic=a", "").expect(t, 200, "OK")
	reg("POST", "?consumer_id=c3&group=g&topic=a&onNewGroup=startFromLatest", "").expect(t, 200, "OK")
	reg("PUT", "?consumerId=c1&group=other&topic=a&topic=b", "").refused(t, 400, "Consumer already registered with different parameters")
	reg("PUT", "?consumerId=c1&group=g&topic=a", "").refused(t, 400, "Consumer already registered with different parameters")
	reg("PUT", "?consumerId=&group=g&topic=a", "").refused(t, 400, "Consumer id and topics can not be empty")
	reg("PUT", "?consumerId=c4&group=g", "").refused(t, 400, "Consumer id and topics can not be empty")
	reg("PUT", "?consumerId=c4&group=g&topic=a&onNewGroup=whenever", "").refused(t, 400, "Invalid offset reset policy value")
	reg("PUT", "?consumerId=c4&group=g&topic=a%2Fb", "").refused(t, 400, "topic")
	reg("PUT", "?consumerId=%ff&group=g&topic=a", "").refused(t, 400, "")
	reg("PUT", "?consumerId=c4&group=%00&topic=a", "").refused(t, 400, "")
	reg("PUT", "?consumerId="+strings.Repeat("c", 256)+"&group=g&topic=a", "").refused(t, 400, "")
	for _, body := range []string{"", "{", `[]`, `{"id":1}`, `{"id":"x","group":"g","topics":"a"}`, `{"id":"x","topics":["a"],"onNewGroup":"startFromLatest"}`} {
		reg("POST", "", body).refused(t, 400, "Invalid ConsumerInfo payload")
	}
	reg("POST", "", `{"group":"g","topics":["a"]}`).refused(t, 400, "Consumer id and topics can not be empty")
	reg("POST", "", `{"id":"x","group":"g","topics":[]}`).refused(t, 400, "Consumer id and topics can not be empty")
	reg("PUT", "", `{"id":"x","topics":["a"],"onNewGroup":1,"unknown":{"is":"ignored"}}`).expect(t, 200, "OK")
}

// TestUnregistered follows 5.2 to 5.4: 409 for whoever is not registered.
func TestUnregistered(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	for _, what := range []string{"poll", "commit", "goodbye"} {
		for _, query := range []string{"", "?consumerId=nobody"} {
			http1(t, b, harness.ConsumePort, "POST", "/v1/consumer/"+what+query, "").refused(t, 409, "Consumer not registered")
		}
	}
	c := register(t, b, "c", "g", "", "t")
	if a := c.call("commit", ""); a.StatusCode != 204 || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("a commit of nothing: %d %v", a.StatusCode, a.Header)
	}
	c.call("goodbye", "").expect(t, 200, "OK")
	c.call("poll", "").refused(t, 409, "Consumer not registered")
	c.call("goodbye", "").refused(t, 409, "Consumer not registered")
}

// TestPollingCommits follows 5.2: polling again commits the answer before; manual commits and goodbye commit too.
func TestPollingCommits(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "t", 1, "")
	produceTo(t, b, "t", "", "0", "1", "2", "3", "4", "5", "6")
	next := func(id, group string) string {
		t.Helper()
		c := register(t, b, id, group, earliest, "t")
		got := bodies(c.poll(""))
		c.call("goodbye", "&commit=false").expect(t, 200, "OK")
		return strings.Join(got, " ")
	}
	c := register(t, b, "a", "polled", earliest, "t")
	for want := range 3 {
		if got := bodies(c.poll("")); len(got) != 1 || got[0] != fmt.Sprint(want) {
			t.Fatalf("poll %d delivers %q", want, got)
		}
	}
	c.call("goodbye", "&commit=false").expect(t, 200, "OK")
	if got := next("b", "polled"); got != "2" {
		t.Errorf("after three polls the next member begins at %s, want 2", got)
	}

	c = register(t, b, "a", "committed", earliest, "t")
	c.poll("")
	c.poll("")
	if a := c.call("commit", ""); a.StatusCode != 204 {
		t.Errorf("commit: %d %s", a.StatusCode, a.body)
	}
	c.call("goodbye", "&commit=false").expect(t, 200, "OK")
	if got := next("b", "committed"); got != "2" {
		t.Errorf("after two polls and a commit the next member begins at %s, want 2", got)
	}

	c = register(t, b, "a", "left", earliest, "t")
	c.poll("")
	c.call("goodbye", "").expect(t, 200, "OK")
	if got := next("b", "left"); got != "1" {
		t.Errorf("after a poll and goodbye the next member begins at %s, want 1", got)
	}
}

// TestPollIDs follows docs/design.md, section 7: ack names an answer, ack=none commits nothing.
func TestPollIDs(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "t", 1, "")
	produceTo(t, b, "t", "", "0", "1", "2")
	c := register(t, b, "a", "g", earliest, "t")
	first := c.call("poll", "&ack=none&wait=5s")
	if got := bodies(unpack(t, first)); len(got) != 1 || got[0] != "0" {
		t.Fatalf("first: %q", got)
	}
	if got := bodies(unpack(t, c.call("poll", "&ack=none&wait=5s"))); len(got) != 1 || got[0] != "0" {
		t.Errorf("ack=none delivers %q, want the open records again", got)
	}
	second := c.call("poll", "&ack="+first.Header.Get("Skein-Poll-Id")+"&wait=5s")
	_ = unpack(t, second)
	last := c.call("poll", "&ack="+second.Header.Get("Skein-Poll-Id")+"&wait=5s")
	_ = unpack(t, last)
	if first.Header.Get("Skein-Poll-Id") == "" || first.Header.Get("Skein-Poll-Id") == last.Header.Get("Skein-Poll-Id") {
		t.Errorf("poll ids %q and %q", first.Header.Get("Skein-Poll-Id"), last.Header.Get("Skein-Poll-Id"))
	}
}

// TestStartFromLatest follows 0.14: the default begins at a single first record, an explicit latest means latest, and
// latest is fixed when the group registers.
func TestStartFromLatest(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "single", 1, "")
	b.CreateTopic(t, "several", 1, "")
	produceTo(t, b, "single", "", "only")
	produceTo(t, b, "several", "", "0", "1")
	unnamed := register(t, b, "a", "unnamed", "", "single", "several")
	named := register(t, b, "b", "named", "startFromLatest", "single", "several")
	if got := bodies(unnamed.poll("")); len(got) != 1 || got[0] != "only" {
		t.Errorf("no policy named: %q, want the single record", got)
	}
	produceTo(t, b, "single", "", "new")
	produceTo(t, b, "several", "", "2")
	got := map[string]bool{}
	for range 4 {
		for _, body := range bodies(named.poll("")) {
			got[body] = true
		}
	}
	if len(got) != 2 || !got["new"] || !got["2"] {
		t.Errorf("latest named: %v, want what came after registering", got)
	}
}

// TestConnectionBound follows 5 as the published Go client uses it: one HTTP/2 connection, registered by JSON.
func TestConnectionBound(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	url := func(what string) string { return b.URL(harness.ConsumePort, "/v1/consumer/"+what) }
	b.CreateTopic(t, "t", 1, "")
	produceTo(t, b, "t", "", "0", "1", "2")
	join := func() *http.Client {
		t.Helper()
		c := h2c(t)
		http2Do(t, c, "POST", url("register"), `{"id":"host_uuid","group":"g1","topics":["t"],"onNewGroup":1}`, "Content-Type", "application/json").expect(t, 200, "OK")
		return c
	}
	poll := func(c *http.Client) []string {
		t.Helper()
		for range 10 {
			if a := http2Do(t, c, "POST", url("poll"), "", "Accept-Encoding", "gzip"); a.StatusCode != 204 {
				return bodies(unpack(t, a))
			}
		}
		return nil
	}
	first := join()
	if got := poll(first); len(got) != 1 || got[0] != "0" {
		t.Fatalf("first poll: %q", got)
	}
	// The same id over another connection is another origin: it begins at the last commit (5.2), which is the start.
	second := join()
	if got := poll(second); len(got) != 1 || got[0] != "0" {
		t.Errorf("over a second connection: %q, want the record that nobody committed", got)
	}
	if a := http2Do(t, second, "POST", url("commit"), ""); a.StatusCode != 204 {
		t.Errorf("commit: %d %s (0.7)", a.StatusCode, a.body)
	}
	http2Do(t, first, "POST", url("commit"), "").refused(t, 409, "")
	second.CloseIdleConnections()
	first.CloseIdleConnections()
	third := join()
	if got := poll(third); len(got) != 1 || got[0] != "1" {
		t.Errorf("over a third connection: %q, want the record after the commit", got)
	}
	// Closing the connection is the end of the consumer.
	http2Do(t, h2c(t), "POST", url("poll"), "").refused(t, 409, "Consumer not registered")
}

// TestNoData follows 5.2 and 7.7: 204 with the headers that clients read; a consumer without a partition waits longer.
func TestNoData(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "t", 1, "")
	first := register(t, b, "a", "g", "", "t")
	second := register(t, b, "b", "g", "", "t")
	retry := map[string]bool{}
	for _, c := range []consumer{first, second} {
		var a answer
		for range 5 { // an assignment may change once
			if a = c.call("poll", ""); a.Header.Get("Retry-After") != "" {
				break
			}
		}
		if a.StatusCode != 204 || a.body != "" || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d %q %v", a.StatusCode, a.body, a.Header)
		}
		retry[a.Header.Get("Retry-After")] = true
	}
	if !retry["1"] || !retry["5"] {
		t.Errorf("Retry-After %v, want 1 for the member with the partition and 5 for the one without", retry)
	}
}
