package httpd_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a server on a free loopback port.
type running struct {
	*httpd.Server
	stop func()     // begins the drain
	done chan error // what Run returned
}

// start runs a server until the test ends, unless the test stops it itself.
func start(t *testing.T, cfg httpd.Config) *running {
	t.Helper()
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	s, err := httpd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{s, cancel, make(chan error, 1)}
	go func() { r.done <- s.Run(ctx); close(r.done) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-r.done:
		case <-time.After(20 * time.Second):
			t.Error("Run did not return")
		}
	})
	return r
}

func (r *running) url(path string) string { return "http://" + r.Addr() + path }

// h1 and h2 are clients that keep to one protocol; their idle connections go with the test.
func h1(t *testing.T) *http.Client {
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func h2(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func read(t *testing.T, resp *http.Response, err error) (*http.Response, string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// raw opens a socket and writes text to it.
func raw(t *testing.T, addr, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

func rawResponse(t *testing.T, c net.Conn) (*http.Response, string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	return read(t, resp, err)
}

func text(s string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { httpd.WriteText(w, 200, "", s) })
}

func TestBothProtocolsOnOnePort(t *testing.T) {
	r := httpd.NewRouter()
	r.HandleFunc("GET /status", func(w http.ResponseWriter, req *http.Request) { httpd.WriteText(w, 200, "", req.Proto) })
	s := start(t, httpd.Config{Handler: r})
	resp, body := get(t, h1(t), s.url("/status"))
	if resp.StatusCode != 200 || body != "HTTP/1.1" {
		t.Errorf("over HTTP/1.1: %d %q", resp.StatusCode, body)
	}
	resp, body = get(t, h2(t), s.url("/status"))
	if resp.StatusCode != 200 || body != "HTTP/2.0" {
		t.Errorf("over HTTP/2: %d %q", resp.StatusCode, body)
	}
	if resp.ContentLength != int64(len(body)) {
		t.Errorf("Content-Length over HTTP/2 is %d, want %d", resp.ContentLength, len(body))
	}
}

func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(url)
	return read(t, resp, err)
}

func post(t *testing.T, c *http.Client, url, body string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Post(url, "text/plain", strings.NewReader(body))
	return read(t, resp, err)
}
