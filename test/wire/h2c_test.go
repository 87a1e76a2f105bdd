package wire

//lint:file-ignore SA1019 the published Go client uses golang.org/x/net/http2 in this way, so the tests do

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// h2c is a client of cleartext HTTP/2 with prior knowledge, one connection per host as the published Go client has it
// (5.6).
func h2c(t testing.TB) *http.Client {
	t.Helper()
	tr := &http2.Transport{
		AllowHTTP:                  true,
		StrictMaxConcurrentStreams: true,
		ReadIdleTimeout:            time.Second,
		PingTimeout:                time.Second,
		DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// http2Do sends a request over cleartext HTTP/2.
func http2Do(t testing.TB, c *http.Client, method, url, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	r, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	if r.ProtoMajor != 2 {
		t.Errorf("%s %s: the protocol is %s", method, url, r.Proto)
	}
	return answer{r, string(text)}
}
