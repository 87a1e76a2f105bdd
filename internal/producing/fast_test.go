package producing

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// served is a door behind a real server, with the fast path before it or without.
type served struct {
	*httpDoor
	fast *FastPath
	addr string
	stop func()
}

func serveDoor(t testing.TB, d *httpDoor, fast bool, change func(*FastConfig, *httpd.Config)) *served {
	t.Helper()
	s := &served{httpDoor: d}
	fc := FastConfig{Producer: d.producer}
	hc := httpd.Config{Name: "produce", Addr: "127.0.0.1:0", Handler: d.router}
	if change != nil {
		change(&fc, &hc)
	}
	var err error
	if s.fast, err = NewFastPath(fc); err != nil {
		t.Fatal(err)
	}
	if fast {
		hc.Wrap = s.fast.Wrap
	}
	server, err := httpd.New(hc)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	s.addr = server.Addr()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{server.Run, s.fast.Run, d.producer.Run} {
		wg.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

func (s *served) dial(t testing.TB) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return nc
}

// talk sends raw bytes, ends its side, and returns all that comes back.
func (s *served) talk(t testing.TB, raw string) string {
	t.Helper()
	nc := s.dial(t)
	go func() {
		_, _ = io.WriteString(nc, raw)
		_ = nc.(*net.TCPConn).CloseWrite()
	}()
	b, err := io.ReadAll(nc)
	if err != nil && len(b) == 0 {
		return "error"
	}
	return string(b)
}

func post(target, fields, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: b\r\n%sContent-Length: %d\r\n\r\n%s", target, fields, len(body), body)
}

const messages = "/v1/topic/a/messages"

// rawRequests are sent to a server with the fast path and to one without: the answers are the same.
var rawRequests = []struct{ name, raw string }{
	{"one", post(messages, "", "hello")},
	{"keyed, receipts", post(messages+"?partitionKey=k%201", "Accept: application/json\r\n", "hello")},
	{"pipelined", post(messages+"?partitionKey=k", "", "1") + post(messages+"?partitionKey=k", "Accept: application/json\r\n", "2") + post(messages, "Content-Type: application/x-ndjson\r\n", "1\n2\n")},
	{"then another request", post(messages, "", "1") + "GET " + messages + " HTTP/1.1\r\nHost: b\r\n\r\n" + post(messages, "", "2")},
	{"close", post(messages, "Connection: close\r\n", "1") + post(messages, "", "never")},
	{"fields in odd cases", post(messages, "cONTENT-tYPE:   application/x-ndjson  \r\nConnection: Keep-Alive\r\nX-Other:\r\n", "1\n2")},
	{"record headers", post(messages, "Skein-Header: a=1\r\nskein-header: b=2\r\n", "1")},
	{"wrong record header", post(messages, "Skein-Header: a\r\n", "1") + post(messages, "", "2")},
	{"hidden record header", post(messages, "Skein-Header: __skein.x=a\r\n", "1") + post(messages, "", "2")},
	{"idempotency", post(messages, "Idempotency-Key: a\r\nAccept: application/json\r\n", "1") + post(messages, "Idempotency-Key: a\r\nAccept: application/json\r\n", "1") +
		post(messages, "Idempotency-Key: a\r\n", "2") + post(messages, "", "3")},
	{"empty idempotency key", post(messages, "Idempotency-Key:\r\n", "1")},
	{"two idempotency keys", post(messages, "Idempotency-Key: a\r\nIdempotency-Key: b\r\n", "1")},
	{"two Accepts", post(messages, "Accept: text/html\r\nAccept: application/json\r\n", "1")},
	{"two Content-Types", post(messages, "Content-Type: text/plain\r\nContent-Type: application/x-ndjson\r\n", "1\n2")},
	{"large body", post(messages, "Content-Type: text/plain\r\n", strings.Repeat("x", 70000)) + post(messages, "", "2")},
	{"body of the size of the buffer", post(messages, "", strings.Repeat("x", fastBuffer-70)) + post(messages, "", strings.Repeat("x", fastBuffer)) + post(messages, "", "2")},
	{"record too large", post(messages, "", strings.Repeat("x", 100001)) + post(messages, "", "2")},
	{"request too large", post(messages, "", strings.Repeat("x", 200001))},
	{"line that is no JSON", post(messages, "Content-Type: application/x-ndjson\r\n", "1\nx\n") + post(messages, "", "2")},
	{"no leader", post(messages+"?partitionKey=led-elsewhere", "", "1") + post(messages, "", "2")},
	{"disk full", post(messages+"?partitionKey=full", "", "1") + post(messages, "", "2")},
	{"our fault", post(messages+"?partitionKey=fault", "", "1") + post(messages, "", "2")},
	{"empty body", post(messages, "", "") + post(messages, "", "2")},
	{"no length", "POST " + messages + " HTTP/1.1\r\nHost: b\r\n\r\n" + post(messages, "", "2")},
	{"chunked", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n" + post(messages, "", "2")},
	{"chunked and a length", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"},
	{"two lengths", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"},
	{"negative length", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: -3\r\n\r\nabc"},
	{"length with a sign", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: +3\r\n\r\nabc"},
	{"huge length", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 99999999999999999999\r\n\r\nabc"},
	{"expect", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"},
	{"HTTP/1.0", "POST " + messages + " HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc"},
	{"HTTP/1.2", "POST " + messages + " HTTP/1.2\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc"},
	{"no host", "POST " + messages + " HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"},
	{"two hosts", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nHost: c\r\nContent-Length: 3\r\n\r\nabc"},
	{"odd host", "POST " + messages + " HTTP/1.1\r\nHost: b c\r\nContent-Length: 3\r\n\r\nabc"},
	{"line feeds only", "POST " + messages + " HTTP/1.1\nHost: b\nContent-Length: 3\n\nabc"},
	{"a field without a colon", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nabc\r\nContent-Length: 3\r\n\r\nabc"},
	{"a folded field", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nX: a\r\n b\r\nContent-Length: 3\r\n\r\nabc"},
	{"a space before the colon", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length : 3\r\n\r\nabc"},
	{"a control character in a value", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nX: a\x01\r\nContent-Length: 3\r\n\r\nabc"},
	{"gzip that is none", post(messages, "Content-Encoding: gzip\r\n", "abc")},
	{"trailing slash", post(messages+"/", "", "abc")},
	{"doubled slash", post("/"+messages, "", "abc")},
	{"empty topic", post("/v1/topic//messages", "", "abc")},
	{"topic ..", post("/v1/topic/../messages", "", "abc")},
	{"escaped topic", post("/v1/topic/%61/messages", "", "abc")},
	{"reserved topic", post("/v1/topic/__a/messages", "", "abc")},
	{"topic of 300 characters", post("/v1/topic/"+strings.Repeat("t", 300)+"/messages", "", "abc")},
	{"another path", post("/v1/topic/a/other", "", "abc")},
	{"absolute target", post("http://b"+messages, "", "abc")},
	{"space in the target", post(messages+"?a b", "", "abc")},
	{"fragment in the target", post(messages+"?partitionKey=k#x", "Accept: application/json\r\n", "abc")},
	{"wrong escape in the query", post(messages+"?partitionKey=%zz", "", "abc") + post(messages, "", "2")},
	{"no UTF-8 in the key", post(messages+"?partitionKey=%ff", "", "abc")},
	{"OPTIONS", "OPTIONS " + messages + " HTTP/1.1\r\nHost: b\r\n\r\n"},
	{"unknown path", "GET /nothing HTTP/1.1\r\nHost: b\r\n\r\n"},
	{"no HTTP", "\x01\x00\x00\x00\x01"},
	{"nothing", ""},
	{"half a head", "POST " + messages + " HT"},
	{"half a body", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 30\r\n\r\nabc"},
	{"half a large body", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 30000\r\n\r\nabc"},
	{"a head that does not fit", post(messages, "X: "+strings.Repeat("x", 5000)+"\r\n", "abc") + post(messages, "", "2")},
	{"a head of 10 MB", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nX: " + strings.Repeat("x", 10<<20) + "\r\n\r\n"},
	{"a topic that must be created", post("/v1/topic/new/messages?partitionKey=k", "Accept: application/json\r\n", "abc")},
	{"a topic that may not be", post("/v1/topic/forbidden/messages", "", "abc") + post(messages, "", "2")},
}

var dateField = regexp.MustCompile(`Date: [^\r]*\r\n`)

// pickyDoor is a door that behaves the same each time it is made.
func pickyDoor(t testing.TB) *httpDoor {
	d := newHTTPDoor(t, CoalescerConfig{Now: func() time.Time { return time.UnixMilli(42) }}, func(cfg *ProducerConfig) { cfg.MaxRequestBytes = 200000 })
	one := newTopic("a", 1)
	d.topics = newFakeTopics(one)
	d.topics.limit = 100000
	d.producer.cfg.Topics = pickyTopics{d.topics}
	d.store.fail = func(a *data.Append) error {
		records, err := new(keyReader).keys(a.Batch)
		switch {
		case err != nil:
			return err
		case records == "full":
			return topology.ErrDiskFull
		case records == "fault":
			return io.ErrUnexpectedEOF
		case records == "led-elsewhere":
			return topology.ErrNotLeader
		}
		return nil
	}
	return d
}

// pickyTopics refuses to create one name.
type pickyTopics struct{ *fakeTopics }

func (p pickyTopics) Ensure(ctx context.Context, name string) (topology.Topic, error) {
	if name == "forbidden" {
		return topology.Topic{}, topology.ErrUnknownTopic
	}
	return p.fakeTopics.Ensure(ctx, name)
}

func TestFastPathAnswersAsTheServer(t *testing.T) {
	for _, c := range rawRequests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slow := serveDoor(t, pickyDoor(t), false, nil)
			fast := serveDoor(t, pickyDoor(t), true, nil)
			want := dateField.ReplaceAllString(slow.talk(t, c.raw), "Date: x\r\n")
			got := dateField.ReplaceAllString(fast.talk(t, c.raw), "Date: x\r\n")
			if strings.HasPrefix(c.name, "half a") { // where the bytes end, it does not matter whether the end is announced
				got = strings.ReplaceAll(got, "Connection: close\r\n", "")
				want = strings.ReplaceAll(want, "Connection: close\r\n", "")
			}
			if got != want {
				t.Errorf("answered\n%.3000s\nwant\n%.3000s", got, want)
			}
			one := newTopic("a", 1)
			if got, want := show(fast.store.records(t, one.Log(0))), show(slow.store.records(t, one.Log(0))); got != want {
				t.Errorf("stored %.300s, want %.300s", got, want)
			}
			if used := fast.budget.used.Load(); used != 0 {
				t.Errorf("%d bytes of the budget are held at rest", used)
			}
		})
	}
}

// Requests that come in pieces of any size are the same requests.
func TestFastPathInPieces(t *testing.T) {
	s := serveDoor(t, pickyDoor(t), true, nil)
	raw := post(messages+"?partitionKey=k", "Accept: application/json\r\n", "1") + post(messages, "", strings.Repeat("x", 5000)) + post(messages, "", "3")
	for _, size := range []int{1, 7, 100, 4095, 4096, 4097} {
		nc := s.dial(t)
		go func() {
			for rest := raw; rest != ""; {
				n := min(size, len(rest))
				if _, err := io.WriteString(nc, rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
		}()
		r := bufio.NewReader(nc)
		for i := range 3 {
			answer, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("pieces of %d: answer %d: %v", size, i, err)
			}
			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != 200 || i > 0 && string(body) != "OK" {
				t.Fatalf("pieces of %d: answer %d: %d %q, %v", size, i, answer.StatusCode, body, err)
			}
		}
		_ = nc.Close()
	}
	if n := testutil.ToFloat64(s.fast.given); n != 0 {
		t.Errorf("%v connections were handed over", n)
	}
}

func TestFastPathHandsOverHTTP2(t *testing.T) {
	s := serveDoor(t, pickyDoor(t), true, nil)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	defer c.CloseIdleConnections()
	r, err := c.Post("http://"+s.addr+messages, "text/plain", strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if err != nil || r.StatusCode != 200 || r.ProtoMajor != 2 || string(body) != "OK" {
		t.Errorf("%s %d %q, %v", r.Proto, r.StatusCode, body, err)
	}
}

func TestFastPathTimeouts(t *testing.T) {
	s := serveDoor(t, pickyDoor(t), true, func(f *FastConfig, h *httpd.Config) {
		f.ReadHeaderTimeout, f.ReadTimeout, f.IdleTimeout = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond
		h.ReadHeaderTimeout, h.ReadTimeout, h.IdleTimeout = f.ReadHeaderTimeout, f.ReadTimeout, f.IdleTimeout
	})
	var wg sync.WaitGroup
	for _, c := range []struct{ name, send, want string }{
		{"nothing is sent", "", ""},
		{"the head does not end", "POST " + messages + " HTTP/1.1\r\n", ""},
		{"the body does not come", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 30\r\n\r\nabc", "HTTP/1.1 408 Request Timeout"},
		{"a large body does not come", "POST " + messages + " HTTP/1.1\r\nHost: b\r\nContent-Length: 30000\r\n\r\nabc", "HTTP/1.1 408 Request Timeout"},
		{"nothing more is sent", post(messages, "", "1"), "HTTP/1.1 200 OK"},
		{"the second head does not end", post(messages, "", "1") + "POST", "HTTP/1.1 200 OK"},
	} {
		nc := s.dial(t)
		wg.Go(func() {
			if _, err := io.WriteString(nc, c.send); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			b, err := io.ReadAll(nc)
			if line, _, _ := strings.Cut(string(b), "\r\n"); err != nil || line != c.want {
				t.Errorf("%s: %q, %v; want %q and the end", c.name, b, err, c.want)
			}
			if strings.Contains(c.want, "408") && !strings.Contains(string(b), "Connection: close") {
				t.Errorf("%s: the end is not announced: %q", c.name, b)
			}
		})
	}
	wg.Wait()
}

func TestFastPathBusy(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := newHTTPDoor(t, CoalescerConfig{Committer: store, MemoryBudget: 100000}, nil)
	s := serveDoor(t, d, true, nil)
	first := s.dial(t)
	if _, err := io.WriteString(first, post(messages, "", strings.Repeat("x", 90000))); err != nil {
		t.Fatal(err)
	}
	<-g.came
	second := s.dial(t)
	r := bufio.NewReader(second)
	for _, size := range []int{20000, 500000, 3000, 20000} { // the second announces too much to be skipped
		if size == 3000 {
			second = s.dial(t)
			r = bufio.NewReader(second)
		}
		d.budget.used.Add(15000) // nearly all is held
		go func() { _, _ = io.WriteString(second, post(messages, "", strings.Repeat("x", size))) }()
		answer, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(answer.Body)
		if answer.StatusCode != 429 || answer.Header.Get("Retry-After") != "1" || answer.Close != (size == 500000) {
			t.Errorf("%d bytes: %d %v, close %v", size, answer.StatusCode, answer.Header, answer.Close)
		}
		d.budget.used.Add(-15000)
	}
	close(g.open)
	answer, err := http.ReadResponse(bufio.NewReader(first), nil)
	if err != nil || answer.StatusCode != 200 {
		t.Errorf("the first: %v, %v", answer, err)
	}
}

func TestFastPathDrain(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := newHTTPDoor(t, CoalescerConfig{Committer: store}, nil)
	s := serveDoor(t, d, true, nil)
	busy, idle, fresh := s.dial(t), s.dial(t), s.dial(t)
	if _, err := io.WriteString(idle, post(messages+"?partitionKey=%ff", "", "x")); err != nil {
		t.Fatal(err)
	}
	if _, err := http.ReadResponse(bufio.NewReader(idle), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(busy, post(messages, "", "x")); err != nil {
		t.Fatal(err)
	}
	<-g.came
	until(t, "all are accepted", func() bool {
		s.fast.mu.Lock()
		defer s.fast.mu.Unlock()
		return len(s.fast.conns) == 3
	})
	stopped := make(chan struct{})
	go func() {
		s.stop()
		close(stopped)
	}()
	until(t, "the producer is closing", d.producer.closing.Load)
	until(t, "the fast path drains", s.fast.isDraining)
	if _, err := io.Copy(io.Discard, idle); err != nil {
		t.Errorf("the idle connection: %v", err)
	}
	if _, err := io.WriteString(fresh, post(messages, "", "y")); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(fresh), nil)
	if err != nil || answer.StatusCode != 503 || !answer.Close || answer.Header.Get("Retry-After") == "" {
		t.Errorf("a first request while draining: %v, %v", answer, err)
	}
	_ = fresh.Close()
	select {
	case <-stopped:
		t.Error("stopped with a request that is not answered")
	default:
	}
	close(g.open)
	answer, err = http.ReadResponse(bufio.NewReader(busy), nil)
	if err != nil || answer.StatusCode != 200 || !answer.Close {
		t.Errorf("the request under way: %v, %v", answer, err)
	}
	_ = busy.Close()
	<-stopped
}

func TestFastPathDrainEnds(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := newHTTPDoor(t, CoalescerConfig{Committer: store}, nil)
	s := serveDoor(t, d, true, func(f *FastConfig, h *httpd.Config) {
		f.DrainTimeout, h.DrainTimeout = 30*time.Millisecond, 30*time.Millisecond
	})
	nc := s.dial(t)
	if _, err := io.WriteString(nc, post(messages, "", "x")); err != nil {
		t.Fatal(err)
	}
	<-g.came
	s.stop()
	close(g.open)
}

// FuzzFastHead holds what the fast path takes against what net/http reads from the same bytes.
func FuzzFastHead(f *testing.F) {
	for _, c := range rawRequests {
		if len(c.raw) < 10000 {
			f.Add([]byte(c.raw))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h fastHead
		v := h.parseHead(b, 1<<20)
		for n := range b { // told by less, it is not told otherwise
			var part fastHead
			if w := part.parseHead(b[:n], 1<<20); w != headMore && w != v {
				t.Fatalf("%d bytes are %d, all are %d", n, w, v)
			}
		}
		if v != headPlain {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		hd := r.Header
		same := r.Method == "POST" && r.ProtoAtLeast(1, 1) && r.URL.Path == "/v1/topic/"+string(h.topic)+"/messages" && r.URL.RawPath == "" &&
			r.URL.RawQuery+fragment(r) == string(h.query) && r.ContentLength == h.length && len(r.TransferEncoding) == 0 && r.Host != "" &&
			hd.Get("Content-Type") == string(h.contentType) && hd.Get("Accept") == string(h.accept) && hd.Get("Idempotency-Key") == string(h.key) &&
			r.Close == h.close && hd.Get("Expect") == "" && hd.Get("Content-Encoding") == "" && hd.Get("Upgrade") == "" && len(hd["Accept"]) <= 1 &&
			len(hd["Skein-Header"]) == len(h.headers)
		if !same {
			t.Fatalf("%q\nis read as %+v\nby net/http as %+v", b, h, r)
		}
		for i, v := range h.headers {
			if hd["Skein-Header"][i] != string(v) {
				t.Fatalf("Skein-Header %d: %q, net/http reads %q", i, v, hd["Skein-Header"][i])
			}
		}
	})
}

func fragment(r *http.Request) string {
	if r.URL.Fragment != "" {
		return "#" + r.URL.EscapedFragment()
	}
	return ""
}
