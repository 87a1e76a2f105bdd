package httpd_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// framer is an HTTP/2 client at the level of frames.
type framer struct {
	*http2.Framer
	enc *hpack.Encoder
	buf bytes.Buffer
}

func dialFrames(t *testing.T, addr string) *framer {
	t.Helper()
	c := raw(t, addr, http2.ClientPreface)
	f := &framer{Framer: http2.NewFramer(c, c)}
	f.enc = hpack.NewEncoder(&f.buf)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.SetMaxReadFrameSize(1 << 20)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *framer) block(path string, fields ...string) []byte {
	f.buf.Reset()
	for i, kv := range append([]string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", path}, fields...) {
		if i%2 == 1 {
			continue
		}
		all := append([]string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", path}, fields...)
		_ = f.enc.WriteField(hpack.HeaderField{Name: kv, Value: all[i+1]})
	}
	return bytes.Clone(f.buf.Bytes())
}

func (f *framer) get(t *testing.T, stream uint32, path string, fields ...string) {
	t.Helper()
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.block(path, fields...), EndHeaders: true, EndStream: true})
	if err != nil {
		t.Fatal(err)
	}
}

// until reads frames until want says that one is the one looked for.
func (f *framer) until(t *testing.T, want func(http2.Frame) bool) http2.Frame {
	t.Helper()
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if want(fr) {
			return fr
		}
	}
}

// The Go consumer drops a connection whose PING is not answered within a second (docs/wire.md, 5.6): hundreds of
// requests that wait and answers that nobody reads do not hold it up.
func TestPingUnderLoad(t *testing.T) {
	t.Parallel()
	var waiting atomic.Int64
	r := httpd.NewRouter()
	r.HandleFunc("GET /wait", func(_ http.ResponseWriter, req *http.Request) {
		waiting.Add(1)
		<-req.Context().Done()
	})
	big := strings.Repeat("x", 8<<20)
	r.HandleFunc("GET /big", func(w http.ResponseWriter, _ *http.Request) { httpd.WriteText(w, 200, "", big) })
	s := start(t, httpd.Config{Handler: r, MaxStreams: 256, DrainTimeout: 10 * time.Millisecond})
	f := dialFrames(t, s.Addr())
	for i := range 200 {
		f.get(t, uint32(2*i+1), "/wait")
	}
	for i := range 20 { // each stops at the flow-control window that is never opened again
		f.get(t, uint32(401+2*i), "/big")
	}
	eventually(t, func() bool { return waiting.Load() == 200 })
	for i := range 5 {
		data := [8]byte{byte(i), 1}
		begin := time.Now()
		if err := f.WritePing(false, data); err != nil {
			t.Fatal(err)
		}
		f.until(t, func(fr http2.Frame) bool {
			p, ok := fr.(*http2.PingFrame)
			return ok && p.IsAck() && p.Data == data
		})
		if took := time.Since(begin); took > 500*time.Millisecond {
			t.Errorf("PING %d was answered after %s", i, took)
		}
	}
}

func TestStreamsAreCapped(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x"), MaxStreams: 7})
	f := dialFrames(t, s.Addr())
	fr := f.until(t, func(fr http2.Frame) bool { _, ok := fr.(*http2.SettingsFrame); return ok })
	if n, _ := fr.(*http2.SettingsFrame).Value(http2.SettingMaxConcurrentStreams); n != 7 {
		t.Errorf("%d streams are announced", n)
	}
}

func TestHTTP2HugeHeader(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x"), MaxHeaderBytes: 16 << 10})
	t.Run("a little too large is 431", func(t *testing.T) {
		f := dialFrames(t, s.Addr())
		fields := make([]string, 0, 400)
		for i := range 200 {
			fields = append(fields, fmt.Sprintf("x-%d", i), strings.Repeat("v", 80))
		}
		f.get(t, 1, "/", fields...)
		fr := f.until(t, func(fr http2.Frame) bool { _, ok := fr.(*http2.MetaHeadersFrame); return ok })
		if got := fr.(*http2.MetaHeadersFrame).PseudoValue("status"); got != "431" {
			t.Errorf("status %s", got)
		}
	})
	t.Run("10 MB is cut off", func(t *testing.T) {
		f := dialFrames(t, s.Addr())
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.block("/"), EndStream: true})
		junk := bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 3000) // literal field a: b
		var sent int
		for ; sent < 10<<20; sent += len(junk) {
			if f.WriteContinuation(1, false, junk) != nil {
				break
			}
		}
		for {
			if _, err := f.ReadFrame(); err != nil {
				if isTimeout(err) {
					t.Error("the connection is still open")
				}
				return
			}
		}
	})
}

func TestGoAwayOnDrain(t *testing.T) {
	t.Parallel()
	h, entered, let := slowDoor()
	s := start(t, httpd.Config{Handler: h})
	f := dialFrames(t, s.Addr())
	f.get(t, 1, "/slow")
	<-entered
	s.stop()
	f.until(t, func(fr http2.Frame) bool { _, ok := fr.(*http2.GoAwayFrame); return ok })
	close(let)
	var got strings.Builder
	f.until(t, func(fr http2.Frame) bool {
		d, ok := fr.(*http2.DataFrame)
		if ok {
			got.Write(d.Data())
		}
		return ok && d.StreamEnded()
	})
	if got.String() != "written" {
		t.Errorf("after GOAWAY: %q", got.String())
	}
	for {
		if _, err := f.ReadFrame(); err != nil {
			if err != io.EOF && isTimeout(err) {
				t.Error("the connection stays open")
			}
			break
		}
	}
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}
