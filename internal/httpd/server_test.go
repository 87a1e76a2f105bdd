package httpd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/httpd"
)

func TestNewChecksItsConfig(t *testing.T) {
	if _, err := httpd.New(httpd.Config{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("a server without a handler was made")
	}
	if _, err := httpd.New(httpd.Config{Handler: text("x")}); err == nil {
		t.Error("a server without an address was made")
	}
}

func TestListenNamesThePort(t *testing.T) {
	a := start(t, httpd.Config{Handler: text("x")})
	b, err := httpd.New(httpd.Config{Name: "produce", Addr: a.Addr(), Handler: text("x")})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Run(context.Background()); err == nil || !strings.Contains(err.Error(), a.Addr()) || !strings.Contains(err.Error(), "produce") {
		t.Errorf("binding a taken port: %v", err)
	}
}

// A header of 10 MB is refused with 431 and costs no memory.
func TestHugeHeader(t *testing.T) {
	s := start(t, httpd.Config{Handler: text("x")})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c := raw(t, s.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nX: ")
	chunk := bytes.Repeat([]byte("a"), 64<<10)
	for range 160 {
		if _, err := c.Write(chunk); err != nil {
			break // it need not read all of it
		}
	}
	resp, body := rawResponse(t, c)
	runtime.ReadMemStats(&after)
	if resp.StatusCode != 431 {
		t.Errorf("%d %q, want 431", resp.StatusCode, body)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 2<<20 {
		t.Errorf("%d bytes allocated for it", used)
	}
	if resp, body := get(t, h1(t), s.url("/")); resp.StatusCode != 200 {
		t.Errorf("after that: %d %q", resp.StatusCode, body)
	}
}

// Headers that trickle in, and connections that say nothing, are closed.
func TestSlowClientsAreClosed(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x"), ReadHeaderTimeout: 100 * time.Millisecond, IdleTimeout: 150 * time.Millisecond})
	for name, begin := range map[string]string{
		"nothing":                  "",
		"half a header":            "GET / HTTP/1.1\r\nHost: x\r\nX-Sl",
		"idle after an answer":     "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"half an HTTP/2 preface":   "PRI * HTTP/2.0\r\n\r\nSM",
		"idle HTTP/2":              http2Preface,
		"HTTP/2 header unfinished": http2Preface + "\x00\x00\x01\x01\x00\x00\x00\x00\x01\x82",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := raw(t, s.Addr(), begin)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
				t.Errorf("still open after 10 s")
			}
		})
	}
}

const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00" // and empty SETTINGS

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestPanics(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	r := httpd.NewRouter()
	r.HandleFunc("GET /early", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Half", "done")
		panic("the invariant broke")
	})
	r.HandleFunc("GET /late", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		panic("the invariant broke late")
	})
	r.HandleFunc("GET /abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	r.HandleFunc("GET /error", func(w http.ResponseWriter, _ *http.Request) {
		httpd.RefuseError(w, errors.New("disk 7 is on fire"))
	})
	s := start(t, httpd.Config{Handler: r, Logger: zerolog.New(&log).Level(zerolog.WarnLevel)})
	for proto, c := range map[string]*http.Client{"HTTP/1.1": h1(t), "HTTP/2": h2(t)} {
		resp, body := get(t, c, s.url("/early"))
		if resp.StatusCode != 500 || !strings.Contains(body, "internal error") || resp.Header.Get("X-Half") != "" || strings.Contains(body, "invariant") {
			t.Errorf("%s: %d %v %q", proto, resp.StatusCode, resp.Header, body)
		}
		if resp, err := c.Get(s.url("/late")); err == nil {
			if b, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("%s: a cut answer looks whole: %q", proto, b)
			}
			resp.Body.Close()
		}
		if resp, err := c.Get(s.url("/abort")); err == nil {
			resp.Body.Close()
			t.Errorf("%s: an aborted request was answered with %d", proto, resp.StatusCode)
		}
		if resp, body := get(t, c, s.url("/error")); resp.StatusCode != 500 || strings.Contains(body, "fire") {
			t.Errorf("%s: %d %q", proto, resp.StatusCode, body)
		}
	}
	lines := log.lines()
	if got := len(lines); got != 6 {
		t.Errorf("%d lines in the log, want 6:\n%s", got, strings.Join(lines, "\n"))
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{"the invariant broke", "late", "stack", "disk 7 is on fire", "/error"} {
		if !strings.Contains(all, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.b.String()), "\n")
}

func TestMaxConnections(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x"), MaxConnections: 2})
	ask := "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	a, b := raw(t, s.Addr(), ask), raw(t, s.Addr(), ask)
	for _, c := range []net.Conn{a, b} {
		if resp, _ := rawResponse(t, c); resp.StatusCode != 200 {
			t.Errorf("status %d", resp.StatusCode)
		}
	}
	resp, _ := rawResponse(t, raw(t, s.Addr(), ""))
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("the third connection got %d %v", resp.StatusCode, resp.Header)
	}
	a.Close()
	eventually(t, func() bool {
		c := raw(t, s.Addr(), ask)
		defer c.Close()
		resp, _ := rawResponse(t, c)
		return resp.StatusCode == 200
	})
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("not within 10 s")
}

func TestConnIdentity(t *testing.T) {
	t.Parallel()
	var closed atomic.Int64
	r := httpd.NewRouter()
	r.HandleFunc("GET /id", func(w http.ResponseWriter, req *http.Request) {
		c := httpd.ConnOf(req.Context())
		c.OnClose(func() { closed.Add(1) })
		cancel := c.OnClose(func() { closed.Add(1000) })
		cancel()
		httpd.WriteText(w, 200, "", fmt.Sprint(c.ID()))
	})
	s := start(t, httpd.Config{Handler: r})
	seen := map[string]bool{}
	for name, c := range map[string]*http.Client{"HTTP/1.1": h1(t), "HTTP/2": h2(t)} {
		_, first := get(t, c, s.url("/id"))
		_, second := get(t, c, s.url("/id"))
		if first != second || first == "0" || seen[first] {
			t.Errorf("%s: ids %q and %q, seen before %v", name, first, second, seen)
		}
		seen[first] = true
	}
	if n := closed.Load(); n != 0 {
		t.Errorf("%d calls before anything closed", n)
	}
	for _, c := range []*http.Client{h1(t), h2(t)} {
		get(t, c, s.url("/id"))
		before := closed.Load()
		c.CloseIdleConnections()
		eventually(t, func() bool { return closed.Load() == before+1 })
	}
}

func TestOnCloseAfterTheClose(t *testing.T) {
	ctx, c, closed := httpd.WithConn(context.Background())
	if httpd.ConnOf(ctx) != c || httpd.ConnOf(context.Background()) != nil {
		t.Error("ConnOf does not find the connection")
	}
	var calls int
	c.OnClose(func() { calls++ })
	closed()
	closed()
	c.OnClose(func() { calls++ })()
	if calls != 2 {
		t.Errorf("%d calls, want 2", calls)
	}
}

// Wrap can take connections out of the door and hands on the others.
func TestWrap(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x"), Wrap: func(ln net.Listener) net.Listener { return &everySecond{Listener: ln} }})
	var served, taken int
	for range 4 {
		c := raw(t, s.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		b, _ := io.ReadAll(c)
		c.Close()
		switch {
		case bytes.HasPrefix(b, []byte("HTTP/1.1 200")):
			served++
		case string(b) == "taken":
			taken++
		}
	}
	if served != 2 || taken != 2 {
		t.Errorf("%d served, %d taken", served, taken)
	}
}

type everySecond struct {
	net.Listener
	n int
}

func (l *everySecond) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.n++; l.n%2 == 0 {
			return c, nil
		}
		_, _ = io.ReadFull(c, make([]byte, 4))
		_, _ = io.WriteString(c, "taken")
		c.(interface{ CloseWrite() error }).CloseWrite()
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	r := router()
	r.HandleFunc("POST /abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	s := start(t, httpd.Config{Name: "produce", Handler: r, Registerer: reg})
	c := h1(t)
	get(t, c, s.url("/status"))
	get(t, c, s.url("//status/"))
	get(t, c, s.url("/v1/topic/t/messages"))
	get(t, c, s.url("/nothing/of/the/kind"))
	if resp, err := c.Post(s.url("/abort"), "", strings.NewReader("x")); err == nil {
		resp.Body.Close()
	}
	want := `
		# HELP skein_http_requests_total HTTP requests answered, by door, route, method and status. Status 0: the connection was cut.
		# TYPE skein_http_requests_total counter
		skein_http_requests_total{code="0",door="produce",method="POST",route="/abort"} 1
		skein_http_requests_total{code="200",door="produce",method="GET",route="/status"} 2
		skein_http_requests_total{code="404",door="produce",method="GET",route="none"} 1
		skein_http_requests_total{code="405",door="produce",method="GET",route="/v1/topic/{topic}/messages"} 1
	`
	eventually(t, func() bool {
		return testutil.GatherAndCompare(reg, strings.NewReader(want), "skein_http_requests_total") == nil
	})
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "skein_http_requests_total"); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(reg, "skein_http_connections", "skein_http_request_seconds", "skein_http_requests_running", "skein_http_connections_refused_total"); err != nil || n < 4 {
		t.Errorf("%d metrics, %v", n, err)
	}
}
