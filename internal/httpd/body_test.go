package httpd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func encode(t interface{ Fatal(...any) }, encoding string, b []byte) []byte {
	var out bytes.Buffer
	var w io.WriteCloser
	switch encoding {
	case "gzip":
		w = gzip.NewWriter(&out)
	case "zstd":
		e, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		w = e
	default:
		return b
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// request has a body of a known length, or of none when length is negative.
func request(encoding string, body io.Reader, length int64) *http.Request {
	r := httptest.NewRequest("POST", "/", body)
	r.ContentLength = length
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	return r
}

// ReadBody gives back what was sent, whatever the encoding, the announced length and the pieces it arrives in.
func TestReadBodyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		encoding := rapid.SampledFrom([]string{"", "identity", "gzip", "zstd", "GZIP"}).Draw(t, "encoding")
		n := rapid.SampledFrom([]int{0, 1, 100, 4095, 4096, 4097, 65536, 65537, 300_000}).Draw(t, "size")
		want := bytes.Repeat([]byte{byte(rapid.IntRange(0, 255).Draw(t, "byte"))}, n)
		if rapid.Bool().Draw(t, "random") {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for i := range want {
				want[i] = byte(rng.Uint32())
			}
		}
		limit := int64(n) + rapid.SampledFrom([]int64{-1, 0, 1, 1000}).Draw(t, "slack")
		wire := encode(t, strings.ToLower(encoding), want)
		length := int64(len(wire))
		if rapid.Bool().Draw(t, "chunked") {
			length = -1
		}
		var src io.Reader = bytes.NewReader(wire)
		if rapid.Bool().Draw(t, "byte by byte") && n < 70_000 {
			src = iotest.OneByteReader(src)
		}
		got, release, err := httpd.ReadBody(httptest.NewRecorder(), request(encoding, src, length), limit)
		if int64(n) > limit || int64(len(wire)) > limit {
			if !errors.Is(err, topology.ErrTooLarge) {
				t.Fatalf("%d bytes (%d on the wire) with limit %d: %v", n, len(wire), limit, err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came back as %d others", len(want), len(got))
		}
		release()
	})
}

func TestReadBodyRefusals(t *testing.T) {
	t.Parallel()
	bomb := encode(t, "zstd", make([]byte, 64<<20))
	for _, tc := range []struct {
		name, encoding string
		body           string
		length         int64
		want           error
		text           string
	}{
		{"announced too large", "", "", 1 << 40, topology.ErrTooLarge, "allowed are 1048576"},
		{"chunked too large", "", strings.Repeat("x", 1<<20+1), -1, topology.ErrTooLarge, "more than 1048576 bytes"},
		{"zstd bomb", "zstd", string(bomb), int64(len(bomb)), topology.ErrTooLarge, "decoded"},
		{"ends early", "", "abc", 10, topology.ErrInvalid, "ends before"},
		{"no gzip", "gzip", "abc", 3, topology.ErrInvalid, "not valid gzip"},
		{"no zstd", "zstd", "abcdefgh", 8, topology.ErrInvalid, "not valid zstd"},
		{"gzip cut short", "gzip", string(encode(t, "gzip", []byte("hello hello"))[:15]), 15, topology.ErrInvalid, "not valid gzip"},
		{"unknown encoding", "br", "abc", 3, httpd.ErrEncoding, "allowed are gzip, zstd, identity"},
		{"two encodings", "gzip, zstd", "abc", 3, httpd.ErrEncoding, "gzip, zstd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, release, err := httpd.ReadBody(httptest.NewRecorder(), request(tc.encoding, strings.NewReader(tc.body), tc.length), 1<<20)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v, want %v with %q", err, tc.want, tc.text)
			}
			if release != nil {
				t.Error("a release function after an error")
			}
		})
	}
}

// An announced length is no reason to set memory aside.
func TestReadBodyAllocatesAsBytesArrive(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 100
	for range n {
		_, _, err := httpd.ReadBody(nil, request("", strings.NewReader("abc"), 16<<20), 16<<20)
		if !errors.Is(err, topology.ErrInvalid) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	per := (after.TotalAlloc - before.TotalAlloc) / n
	if per > 256<<10 {
		t.Errorf("%d bytes allocated for a body of 3", per)
	}
}

func TestReadBodyOverSockets(t *testing.T) {
	t.Parallel()
	r := httpd.NewRouter()
	r.HandleFunc("POST /echo", func(w http.ResponseWriter, req *http.Request) {
		b, release, err := httpd.ReadBody(w, req, 1<<20)
		if err != nil {
			httpd.RefuseError(w, err)
			return
		}
		defer release()
		_, _ = w.Write(b)
	})
	s := start(t, httpd.Config{Handler: r, ReadTimeout: 300 * time.Millisecond})
	for name, c := range map[string]*http.Client{"HTTP/1.1": h1(t), "HTTP/2": h2(t)} {
		for range 3 { // buffers go around
			if resp, body := post(t, c, s.url("/echo"), "hello"); resp.StatusCode != 200 || body != "hello" {
				t.Errorf("%s: %d %q", name, resp.StatusCode, body)
			}
		}
		resp, err := c.Post(s.url("/echo"), "", io.MultiReader(strings.NewReader("no"), strings.NewReader(" length")))
		if resp, body := read(t, resp, err); resp.StatusCode != 200 || body != "no length" {
			t.Errorf("%s without a length: %d %q", name, resp.StatusCode, body)
		}
		if resp, body := post(t, c, s.url("/echo"), strings.Repeat("x", 1<<20+1)); resp.StatusCode != 413 {
			t.Errorf("%s too large: %d %q", name, resp.StatusCode, body)
		}
	}
	t.Run("a body that does not come", func(t *testing.T) {
		c := raw(t, s.Addr(), "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
		resp, body := rawResponse(t, c)
		if resp.StatusCode != 408 || !resp.Close {
			t.Errorf("HTTP/1.1: %d %q, close %v", resp.StatusCode, body, resp.Close)
		}
	})
	t.Run("a body that does not come over HTTP/2", func(t *testing.T) {
		pr, pw := io.Pipe()
		defer pw.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", s.url("/echo"), pr)
		resp, err := h2(t).Do(req)
		if resp, body := read(t, resp, err); resp.StatusCode != 408 {
			t.Errorf("HTTP/2: %d %q", resp.StatusCode, body)
		}
	})
}

func FuzzReadBody(f *testing.F) {
	f.Add("gzip", encode(f, "gzip", []byte("hello")))
	f.Add("zstd", encode(f, "zstd", []byte("hello")))
	f.Add("", []byte("hello"))
	f.Fuzz(func(t *testing.T, encoding string, body []byte) {
		const limit = 1 << 16
		b, release, err := httpd.ReadBody(nil, request(encoding, bytes.NewReader(body), -1), limit)
		if err != nil {
			if !errors.Is(err, topology.ErrInvalid) && !errors.Is(err, topology.ErrTooLarge) && !errors.Is(err, httpd.ErrEncoding) {
				t.Fatalf("unnamed error %v", err)
			}
			return
		}
		if len(b) > limit {
			t.Fatalf("%d bytes", len(b))
		}
		release()
	})
}

func BenchmarkReadBody(b *testing.B) {
	for _, encoding := range []string{"", "gzip", "zstd"} {
		b.Run("1KiB "+encoding, func(b *testing.B) {
			wire := encode(b, encoding, bytes.Repeat([]byte("0123456789abcdef"), 64))
			b.ReportAllocs()
			b.SetBytes(1 << 10)
			src := bytes.NewReader(wire)
			r := request(encoding, nil, int64(len(wire)))
			r.Body = io.NopCloser(src)
			for b.Loop() {
				src.Reset(wire)
				_, release, err := httpd.ReadBody(nil, r, 1<<20)
				if err != nil {
					b.Fatal(err)
				}
				release()
			}
		})
	}
}
