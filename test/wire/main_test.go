package wire

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const patience = 20 * time.Second // for an answer that must come

// dial opens a socket to a port of the broker and bounds everything on it by patience.
func dial(t testing.TB, b *harness.Broker, port int) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", b.Addr(port), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// unhex reads bytes written as in docs/wire.md: pairs of digits, spaces, and bars between parts.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "", "\t", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answer is a response of HTTP/1.1 as it came over the socket.
type answer struct {
	*http.Response
	body string
}

// detail is the text of a refusal, which is a problem+json.
func (a answer) detail(t testing.TB) string {
	t.Helper()
	if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("a refusal (%d) has the type %q: %s", a.StatusCode, ct, a.body)
	}
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Errorf("a refusal (%d) is no JSON: %v: %q", a.StatusCode, err, a.body)
	}
	if p.Status != a.StatusCode || p.Detail == "" || p.Title != http.StatusText(a.StatusCode) {
		t.Errorf("a refusal (%d) says %+v", a.StatusCode, p)
	}
	return p.Detail
}

// http1 writes a request of HTTP/1.1 byte by byte on a connection of its own and reads the answer. headers are whole
// lines; Host and Content-Length are added, unless a line "Transfer-Encoding: chunked" is there.
func http1(t testing.TB, b *harness.Broker, port int, method, target, body string, headers ...string) answer {
	t.Helper()
	conn := dial(t, b, port)
	defer conn.Close()
	return on(t, conn, b, method, target, body, headers...)
}

// on is http1 on a connection that is there.
func on(t testing.TB, conn net.Conn, b *harness.Broker, method, target, body string, headers ...string) answer {
	t.Helper()
	var req strings.Builder
	fmt.Fprintf(&req, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, target, b.Host)
	chunked := false
	for _, h := range headers {
		req.WriteString(h + "\r\n")
		chunked = chunked || strings.EqualFold(h, "Transfer-Encoding: chunked")
	}
	if !chunked && method != "GET" {
		fmt.Fprintf(&req, "Content-Length: %d\r\n", len(body))
	}
	req.WriteString("\r\n")
	if chunked && body != "" {
		fmt.Fprintf(&req, "%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	} else if chunked {
		req.WriteString("0\r\n\r\n")
	} else {
		req.WriteString(body)
	}
	// The server may answer and close before it has read all, so a write error alone means nothing.
	go io.WriteString(conn, req.String())
	return read(t, conn, method)
}

// read reads one answer from a connection, to its end.
func read(t testing.TB, conn net.Conn, method string) answer {
	t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("half an answer (%s): %v", r.Status, err)
	}
	return answer{r, string(body)}
}

// expect checks status and body of an answer that is no refusal.
func (a answer) expect(t testing.TB, status int, body string) {
	t.Helper()
	if a.StatusCode != status || a.body != body {
		t.Errorf("the answer is %d %q, want %d %q", a.StatusCode, a.body, status, body)
	}
}

// refused checks the status of a refusal, and that its detail contains text.
func (a answer) refused(t testing.TB, status int, text string) {
	t.Helper()
	if a.StatusCode != status {
		t.Errorf("the answer is %d %q, want %d", a.StatusCode, a.body, status)
		return
	}
	if d := a.detail(t); !strings.Contains(d, text) {
		t.Errorf("the detail is %q, want %q in it", d, text)
	}
}
