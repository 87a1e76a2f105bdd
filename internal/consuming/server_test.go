package consuming

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// listen serves w on a port of its own until the test ends.
func (w *world) listen() (addr string) {
	w.t.Helper()
	s, err := httpd.New(httpd.Config{Addr: "127.0.0.1:0", Handler: w.h, DrainTimeout: time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	return s.Addr()
}

// noise is a value that does not compress.
func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// fill stores chunks of noise in all partitions.
func (w *world) fill(t topology.Topic, chunks, records, size int) {
	for p := range topology.Partition(t.Partitions) {
		for c := range chunks {
			list := make([]recordbatch.Record, records)
			for i := range list {
				list[i] = recordbatch.Record{Timestamp: 1, Value: noise(size, byte(c+i))}
			}
			w.logs.add(t.Log(p), list...)
		}
	}
}

// docs/wire.md, 0.1 to 0.3: a binary answer of any size has its length, exactly that type, and no encoding, over both
// versions of HTTP; 0.7 and 5.2 over a connection that registers itself.
func TestBinaryPollsOverTheWire(t *testing.T) {
	for name, client := range map[string]*http.Client{
		"HTTP/1.1": {Transport: &http.Transport{}},
		"HTTP/2": {Transport: func() *http.Transport {
			p := new(http.Protocols)
			p.SetUnencryptedHTTP2(true)
			return &http.Transport{Protocols: p}
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			defer client.CloseIdleConnections()
			topic := w.topics.create("a-topic", 12)
			w.fill(topic, 3, 50, 1000)
			url := "http://" + w.listen()
			post := func(path, body string) (*http.Response, []byte) {
				t.Helper()
				resp, err := client.Post(url+path, "application/json", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = resp.Body.Close() }()
				b, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return resp, b
			}
			if resp, b := post("//v1/consumer/register", `{"id":"c","group":"g","topics":["a-topic"],"onNewGroup":1}`); resp.StatusCode != 200 || string(b) != "OK" {
				t.Fatalf("register: %d %s", resp.StatusCode, b)
			}
			records := 0
			for range 3 {
				resp, b := post("/v1/consumer/poll", "")
				if resp.StatusCode != 200 || resp.ContentLength != int64(len(b)) || len(b) < 12*50*1000 || resp.Uncompressed ||
					resp.Header.Get("Content-Type") != "application/vnd.polar.consumermessage" {
					t.Fatalf("%d, length %d of %d bytes, %v", resp.StatusCode, resp.ContentLength, len(b), resp.Header)
				}
				for _, it := range parseBinary(t, b) {
					records += len(it.values)
				}
			}
			if records != 12*3*50 {
				t.Errorf("%d records, want %d", records, 12*3*50)
			}
			if resp, _ := post("/v1/consumer/commit", ""); resp.StatusCode != 204 {
				t.Errorf("commit: %d", resp.StatusCode)
			}
			if at := w.committed("g", topic, 11); at != 150 {
				t.Errorf("committed %d, want 150", at)
			}
		})
	}
}

// docs/wire.md, 5.2.1: no head of an item lies in two DATA frames.
func TestHeadsOfItemsStayInOneFrame(t *testing.T) {
	w := newWorld(t)
	name := strings.Repeat("n", 249)
	topic := w.topics.create(name, 48)
	for p := range topology.Partition(48) { // the head of the second item lies across the first border of a frame
		size := frameBytes - 100 - (2 + 14 + 249 + 12) - (rawFrameHead + rawBlockHead + binaryRecordHead)
		w.logs.add(topic.Log(p), recordbatch.Record{Value: noise(size-int(p)*61, byte(p))})
	}
	w.register("c", "g", earliest, name)
	conn, err := net.Dial("tcp", w.listen())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	frames := framesOf(t, conn, "/v1/consumer/poll?consumerId=c")
	body := bytes.Join(frames, nil)
	if items := parseBinary(t, body); len(items) != 48 {
		t.Fatalf("%d items", len(items))
	}
	var starts []int
	at := 0
	for _, f := range frames {
		starts = append(starts, at)
		at += len(f)
	}
	for h := 2; h < len(body); {
		end := h + 14 + 249 + 12
		for _, s := range starts {
			if h < s && s < end {
				t.Errorf("a frame begins at %d, within the head [%d, %d)", s, h, end)
			}
		}
		h = end + int(binary.BigEndian.Uint32(body[end-4:]))
	}
}

// framesOf posts over HTTP/2 with prior knowledge and returns the contents of the DATA frames of the answer.
func framesOf(t *testing.T, conn net.Conn, path string) (frames [][]byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(conn.SetDeadline(time.Now().Add(10 * time.Second)))
	_, err := io.WriteString(conn, http2.ClientPreface)
	must(err)
	f := http2.NewFramer(conn, bufio.NewReader(conn))
	must(f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 4 << 20}))
	must(f.WriteWindowUpdate(0, 1<<30))
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", path}} {
		must(enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	must(f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true}))
	for {
		frame, err := f.ReadFrame()
		must(err)
		switch fr := frame.(type) {
		case *http2.SettingsFrame:
			if !fr.IsAck() {
				must(f.WriteSettingsAck())
			}
		case *http2.DataFrame:
			if len(fr.Data()) > 0 {
				frames = append(frames, bytes.Clone(fr.Data()))
			}
			if fr.StreamEnded() {
				return frames
			}
		}
	}
}

// A client that does not read is cut off, alone: the others are served meanwhile, and its records come again. A
// connection that was answered in time is not cut later.
func TestAClientThatDoesNotRead(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.AnswerTimeout = 300 * time.Millisecond
		c.MaxBytes = 32 << 20
		c.AnswerMemory = 1 << 30
	})
	topic := w.topics.create("t", 12)
	w.fill(topic, 1, 20, 64<<10) // 15 MiB: more than the kernel takes
	w.register("stuck", "g", earliest, "t")
	addr := w.listen()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	if _, err := fmt.Fprintf(conn, "POST /v1/consumer/poll?consumerId=stuck HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 100)); err != nil { // the answer has begun
		t.Fatal(err)
	}
	other := w.topics.create("other", 1)
	w.produce(other, 0, `1`)
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	poll := func(id string) int {
		t.Helper()
		resp, err := client.Post("http://"+addr+"/v1/consumer/poll?consumerId="+id, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	w.register("quick", "g", earliest, "t", "other")
	if status := poll("quick"); status != 200 {
		t.Errorf("another member: %d", status)
	}
	for w.s.answerBytes.Load() > 0 {
		time.Sleep(5 * time.Millisecond) // until the deadline
	}
	if at := w.committed("g", topic, 0); at > 0 {
		t.Errorf("committed %d of an answer that nobody read", at)
	}
	time.Sleep(400 * time.Millisecond) // longer than the deadline of the last answer on the same connection
	if status := poll("quick"); status != 204 && status != 200 {
		t.Errorf("the next poll over the connection: %d", status)
	}
}
