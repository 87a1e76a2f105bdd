package producing

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// binaryDoor is a running BinaryServer.
type binaryDoor struct {
	*running
	server *BinaryServer
	topics *fakeTopics
	stop   func()
}

func runBinary(t testing.TB, cc CoalescerConfig, change func(*BinaryConfig)) *binaryDoor {
	t.Helper()
	d := &binaryDoor{running: runCoalescer(t, cc), topics: newFakeTopics(topicA)}
	cfg := BinaryConfig{Addr: "127.0.0.1:0", Coalescer: d.Coalescer, Topics: d.topics}
	if change != nil {
		change(&cfg)
	}
	s, err := NewBinaryServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Listen(); err != nil {
		t.Fatal(err)
	}
	d.server = s
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	d.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(d.stop)
	return d
}

// client speaks the protocol byte by byte.
type client struct {
	t testing.TB
	net.Conn
}

func (d *binaryDoor) dial(t testing.TB) *client {
	t.Helper()
	nc, err := net.Dial("tcp", d.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	return &client{t, nc}
}

// started is a connection after the handshake.
func (d *binaryDoor) started(t testing.TB) *client {
	t.Helper()
	c := d.dial(t)
	c.send(unhex(t, hexStartup))
	if got := c.bytes(frameHeaderSize); !bytes.Equal(got, unhex(t, hexReady)) {
		t.Fatalf("STARTUP is answered with % x", got)
	}
	return c
}

func (c *client) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) bytes(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		c.t.Fatalf("reading an answer: %v", err)
	}
	return b
}

// answer is one frame from the server.
type answer struct {
	stream uint16
	op     opcode
	code   errorCode
	text   string
}

func (c *client) answer() answer {
	c.t.Helper()
	h, err := parseFrameHeader(c.bytes(frameHeaderSize))
	if err != nil || h.version != 1 || h.flags != 0 {
		c.t.Fatalf("answer with header %+v, %v", h, err)
	}
	a := answer{stream: h.stream, op: h.op}
	switch {
	case h.op == opError && h.length >= 1 && h.length <= 512:
		b := c.bytes(int(h.length))
		a.code, a.text = errorCode(b[0]), string(b[1:])
	case h.length != 0:
		c.t.Fatalf("answer %d with a body of %d bytes", h.op, h.length)
	}
	return a
}

// eof checks that the server closes without another answer.
func (c *client) eof() {
	c.t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		c.t.Fatalf("read %d bytes, %v; want the end", n, err)
	}
}

func frameOf(stream uint16, op opcode, body string) []byte {
	return append(appendFrameHeader(nil, frameHeader{version: 1, stream: stream, op: op, length: uint32(len(body))}), body...)
}

func produceFrame(stream uint16, key, topic string, messages ...string) []byte {
	body := string([]byte{byte(len(key))}) + key + string([]byte{byte(len(topic))}) + topic
	for _, m := range messages {
		body += string(binary.BigEndian.AppendUint32(nil, uint32(len(m)))) + m
	}
	return frameOf(stream, opProduce, body)
}

func TestBinaryProduce(t *testing.T) { // docs/wire.md 4.1 to 4.3
	d := runBinary(t, CoalescerConfig{Now: func() time.Time { return time.UnixMilli(1234) }}, nil)
	topic := newTopic("t", 12)
	c := d.started(t)
	c.send(unhex(t, hexProduce))
	if got := c.bytes(frameHeaderSize); !bytes.Equal(got, unhex(t, hexResponse)) {
		t.Fatalf("PRODUCE is answered with % x", got)
	}
	c.send(unhex(t, hexTimed))
	if got, want := c.answer(), (answer{stream: 8, op: opProduceResponse}); got != want {
		t.Fatalf("answered %+v", got)
	}
	log := topic.Log(topic.PartitionOf(token.OfString("k1")))
	records := d.store.records(t, log)
	if len(records) != 2 || string(records[0].Key) != "k1" || string(records[0].Value) != `{"a":1}` ||
		records[0].Timestamp != 1234 || records[1].Timestamp != 1700000000000 {
		t.Fatalf("stored %+v", records)
	}
	c.send(frameOf(3, opHeartbeat, ""))
	if got, want := c.answer(), (answer{stream: 3, op: opReady}); got != want {
		t.Fatalf("HEARTBEAT is answered with %+v", got)
	}
	c.send(produceFrame(65535, "", "t", "a", "b", "c"))
	if got, want := c.answer(), (answer{stream: 65535, op: opProduceResponse}); got != want {
		t.Fatalf("answered %+v", got)
	}
	n := 0
	for _, values := range d.store.values(t, topic) {
		n += len(values)
	}
	if n != 5 || d.store.chunks(topic) != 3 {
		t.Errorf("%d records in %d chunks, want 5 in 3", n, d.store.chunks(topic))
	}
	_ = c.Close()
	d.stop()
}

func TestBinaryOrderOnAConnection(t *testing.T) { // docs/design.md §6, order
	d := runBinary(t, CoalescerConfig{ChunkBytes: 4 << 10}, nil)
	c := d.started(t)
	const frames = 2000
	var all []byte
	for i := range frames {
		all = append(all, produceFrame(uint16(i), fmt.Sprint("k", i%7), "a", fmt.Sprintf("%05d", i), fmt.Sprintf("%05d+", i))...)
	}
	go func() { // in pieces that do not end where frames do
		for len(all) > 0 {
			n := min(777, len(all))
			if _, err := c.Write(all[:n]); err != nil {
				t.Error(err)
				return
			}
			all = all[n:]
		}
	}()
	answered := map[uint16]bool{}
	for range frames {
		a := c.answer()
		if a.op != opProduceResponse || answered[a.stream] {
			t.Fatalf("answer %+v, again: %v", a, answered[a.stream])
		}
		answered[a.stream] = true
	}
	n := 0
	for p, values := range d.store.values(t, topicA) {
		n += len(values)
		if !slices.IsSorted(values) {
			t.Errorf("partition %d is out of order", p)
		}
	}
	if n != 2*frames {
		t.Errorf("%d records, want %d", n, 2*frames)
	}
}

func TestBinaryAnswersOfARoundGoInOneWrite(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := runBinary(t, CoalescerConfig{Committer: store}, nil)
	c := d.started(t)
	c.send(produceFrame(1, "k", "a", "opens the gate"))
	<-g.came
	for i := range 50 {
		c.send(produceFrame(uint16(2+i), fmt.Sprint("k", i), "a", "x"))
	}
	until(t, "all are taken", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.filling.requests == 50
	})
	close(g.open)
	c.answer()
	b := make([]byte, 4096)
	if n, err := c.Read(b); n != 50*frameHeaderSize || err != nil {
		t.Errorf("read %d bytes, %v; want 50 answers at once", n, err)
	}
}

func TestBinaryErrors(t *testing.T) { // docs/design.md §6, outcomes
	store := newFakeStore()
	store.fail = func(a *data.Append) error {
		switch a.Log.Partition {
		case 0:
			return fmt.Errorf("append: %w", topology.ErrDiskFull)
		case 1:
			return fmt.Errorf("append: %w", topology.ErrOutcomeUnknown)
		case 2:
			return fmt.Errorf("append: %w", topology.ErrUnavailable)
		case 3:
			return errors.New("something else")
		}
		return nil
	}
	d := runBinary(t, CoalescerConfig{Committer: store, Hold: time.Millisecond}, nil)
	d.leads.set(topicA.PartitionToken(4), topology.ErrNotLeader)
	d.leads.set(topicA.PartitionToken(5), topology.ErrUnavailable)
	c := d.started(t)
	for _, want := range []struct {
		p    topology.Partition
		code errorCode
		text string
	}{
		{0, codeRouting, "append: disk is full"},
		{1, codeServer, "outcome unknown: append: outcome unknown"},
		{2, codeRouting, "append: unavailable"},
		{3, codeServer, "something else"},
		{4, codeLeaderNotFound, ""},
		{5, codeRouting, "unavailable"},
	} {
		key := keyOf(t, topicA, want.p)
		if want.p == 4 {
			want.text = fmt.Sprintf("Leader for token %d could not be found", token.OfString(key))
		}
		c.send(produceFrame(9, key, "a", "x"))
		if got, want := c.answer(), (answer{9, opError, want.code, want.text}); got != want {
			t.Errorf("answered %+v, want %+v", got, want)
		}
	}
	c.send(produceFrame(1, keyOf(t, topicA, 6), "a", "x"))
	if got := c.answer(); got.op != opProduceResponse {
		t.Errorf("after errors: %+v", got)
	}
}

// keyOf is a key of a partition.
func keyOf(t testing.TB, topic topology.Topic, p topology.Partition) string {
	t.Helper()
	for i := range 100000 {
		if k := fmt.Sprint("k", i); topic.PartitionOf(token.OfString(k)) == p {
			return k
		}
	}
	t.Fatal("no key found")
	return ""
}

// What is malformed but leaves the framing alone is answered, and the connection goes on (docs/wire.md 4.2, 4.3).
func TestBinaryRefusals(t *testing.T) {
	d := runBinary(t, CoalescerConfig{}, func(cfg *BinaryConfig) { cfg.MaxRequestBytes = 100 })
	d.topics.limit = 20
	c := d.started(t)
	refused := func(name string, frame []byte, text string) {
		t.Helper()
		c.send(frame)
		stream := binary.BigEndian.Uint16(frame[2:])
		if got := c.answer(); got.op != opError || got.stream != stream || got.code != codeServer || !strings.Contains(got.text, text) {
			t.Errorf("%s: answered %+v, want an error on stream %d with %q", name, got, stream, text)
		}
		c.send(produceFrame(77, "k", "a", "x"))
		if got := c.answer(); got.op != opProduceResponse || got.stream != 77 {
			t.Fatalf("%s: the next frame is answered with %+v", name, got)
		}
	}
	for i, b := range produceBodies {
		if len(b.body) > 100 {
			continue
		}
		f := append(appendFrameHeader(nil, frameHeader{1, b.flags, uint16(i), opProduce, uint32(len(b.body))}), b.body...)
		refused(b.name, f, b.want)
	}
	refused("frame too large", produceFrame(5, "k", "a", strings.Repeat("x", 200)), "allowed are 100")
	refused("frame far too large", frameOf(5, opProduce, strings.Repeat("x", 300000)), "allowed are 100")
	refused("second STARTUP", frameOf(5, opStartup, ""), "Only producer operations are supported")
	refused("unknown op", frameOf(6, 99, ""), "Only producer operations are supported")
	refused("unknown op with a body", frameOf(7, 200, strings.Repeat("y", 5000)), "Only producer operations are supported")
	refused("answer op", frameOf(8, opProduceResponse, ""), "Only producer operations are supported")
	refused("version 9", appendFrameHeader(nil, frameHeader{version: 9, stream: 4, op: opProduce}), "version 9")
	for _, topic := range []string{"", ".", "..", "a/b", "__topics", "ü", "a b", "\xff\xfe", strings.Repeat("t", 250)} {
		body := produceFrame(3, "k", topic, "x")
		if len(body) < 113 {
			refused("topic "+topic, body, "invalid topic")
		}
	}
	d.topics.closed = topology.ErrUnknownTopic
	refused("topic that may not be created", produceFrame(3, "k", "new", "x"), "unknown topic")

	c.send(frameOf(6, opHeartbeat, "body"))
	if got := c.answer(); got.op != opReady || got.stream != 6 {
		t.Errorf("HEARTBEAT with a body: %+v", got)
	}
	c.send(produceFrame(1, "\xff\xfe\x00", "a", "x")) // keys are bytes here
	if got := c.answer(); got.op != opProduceResponse {
		t.Errorf("a key that is no UTF-8: %+v", got)
	}
}

// What leaves the framing in doubt is answered, and the connection ends (docs/wire.md 4.2).
func TestBinaryEnds(t *testing.T) {
	d := runBinary(t, CoalescerConfig{}, func(cfg *BinaryConfig) {
		cfg.StartupTimeout, cfg.FrameTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	wrongCRC := produceFrame(9, "k", "a", "x")
	wrongCRC[12] ^= 1
	startupCRC := unhex(t, hexStartup)
	startupCRC[9] ^= 1
	for _, e := range []struct {
		name    string
		started bool
		send    []byte
		want    string // "": no answer
	}{
		{"first frame is PRODUCE", false, produceFrame(0, "k", "a", "x"), "Invalid first message"},
		{"first frame is HEARTBEAT", false, frameOf(1, opHeartbeat, ""), "Invalid first message"},
		{"STARTUP with a body", false, frameOf(0, opStartup, "x"), "Invalid first message"},
		{"STARTUP of version 9", false, appendFrameHeader(nil, frameHeader{version: 9, op: opStartup}), "version 9"},
		{"STARTUP with a wrong CRC", false, startupCRC, "checksum"},
		{"HTTP", false, []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "checksum"},
		{"wrong CRC", true, wrongCRC, "checksum"},
		{"wrong CRC and more", true, append(wrongCRC, bytes.Repeat([]byte{7}, 100000)...), "checksum"},
		{"nothing", false, nil, ""},
		{"begins a header", false, []byte{1, 0}, ""},
		{"begins a frame", true, produceFrame(9, "k", "a", "xxx")[:20], ""},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			c := d.dial(t)
			if e.started {
				c = d.started(t)
			}
			_, _ = c.Write(e.send)
			if e.want != "" {
				if got := c.answer(); got.op != opError || got.code != codeServer || !strings.Contains(got.text, e.want) {
					t.Errorf("answered %+v, want %q", got, e.want)
				}
			}
			c.eof()
		})
	}
}

func TestBinaryPauseBetweenFrames(t *testing.T) {
	d := runBinary(t, CoalescerConfig{}, func(cfg *BinaryConfig) {
		cfg.StartupTimeout, cfg.FrameTimeout = 300*time.Millisecond, 300*time.Millisecond
	})
	c := d.started(t)
	time.Sleep(400 * time.Millisecond) // no deadline runs between frames
	c.send(produceFrame(1, "k", "a", "x"))
	if got := c.answer(); got.op != opProduceResponse {
		t.Errorf("after a pause and all that: %+v", got)
	}
}

func TestBinaryLargeFrames(t *testing.T) {
	d := runBinary(t, CoalescerConfig{MemoryBudget: 8 << 20}, nil)
	d.topics.limit = 4 << 20
	c := d.started(t)
	for i, size := range []int{1, 3000, 5000, 130 << 10, 3 << 20, 10, 200 << 10, 1} {
		c.send(produceFrame(uint16(i), "k", "a", strings.Repeat("x", size), "y"))
		if got := c.answer(); got.op != opProduceResponse || got.stream != uint16(i) {
			t.Fatalf("message of %d bytes: %+v", size, got)
		}
	}
	p := topicA.PartitionOf(token.OfString("k"))
	if got := d.store.values(t, topicA)[p]; len(got) != 16 || len(got[8]) != 3<<20 {
		t.Errorf("%d records stored", len(got))
	}
	_ = c.Close()
	d.stop()
	if used := d.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are held at rest", used)
	}
}

// A connection that was busy gives its buffer back when it pauses.
func TestBinaryBufferIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &binaryDoor{running: runCoalescer(t, CoalescerConfig{}), topics: newFakeTopics(topicA)}
		s, err := NewBinaryServer(BinaryConfig{Addr: "none", Coalescer: d.Coalescer, Topics: d.topics})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		c := newBinaryConn(t.Context(), s, near)
		go func() { _, _ = far.Write(make([]byte, 20000)) }()
		if err := c.need(20000); err != nil || cap(c.buf) < 20000 {
			t.Fatalf("buffer of %d bytes for 20000, %v", cap(c.buf), err)
		}
		c.at = len(c.buf) // all was used
		began := time.Now()
		if err := errors.Join(c.makeRoom(1), c.read()); err != nil || cap(c.buf) != minReadBuffer || time.Since(began) != idleBuffer {
			t.Errorf("buffer of %d bytes after a pause of %s, %v", cap(c.buf), time.Since(began), err)
		}
		time.AfterFunc(time.Hour, func() { _, _ = far.Write([]byte{1}) })
		if err := c.need(1); err != nil {
			t.Errorf("after an hour: %v", err)
		}
		d.running.stop()
	})
}

func TestBinaryBusy(t *testing.T) { // memory budget: first not read, then refused as not written
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := runBinary(t, CoalescerConfig{Committer: store, MemoryBudget: 1000}, func(cfg *BinaryConfig) {
		cfg.BusyTimeout = 20 * time.Millisecond
	})
	c := d.started(t)
	c.send(produceFrame(1, "k", "a", strings.Repeat("x", 900)))
	<-g.came
	c.send(produceFrame(2, "k", "a", strings.Repeat("x", 900)))
	if got := c.answer(); got.op != opError || got.stream != 2 || got.code != codeRouting || !strings.Contains(got.text, "memory budget") {
		t.Errorf("past the budget: %+v", got)
	}
	close(g.open)
	if got := c.answer(); got.op != opProduceResponse || got.stream != 1 {
		t.Errorf("the first: %+v", got)
	}
	c.send(produceFrame(3, "k", "a", strings.Repeat("x", 900)))
	if got := c.answer(); got.op != opProduceResponse {
		t.Errorf("when there is room again: %+v", got)
	}
}

func TestBinaryPendingIsBounded(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := runBinary(t, CoalescerConfig{Committer: store}, func(cfg *BinaryConfig) { cfg.MaxPending = 10 })
	c := d.started(t)
	for i := range 30 {
		c.send(produceFrame(uint16(i), "k", "a", "x"))
	}
	<-g.came
	pending := func() int64 {
		d.server.mu.Lock()
		defer d.server.mu.Unlock()
		for conn := range d.server.conns {
			return conn.pending.Load()
		}
		return -1
	}
	until(t, "ten are taken", func() bool { return pending() == 10 })
	close(g.open)
	for range 30 {
		if got := c.answer(); got.op != opProduceResponse {
			t.Fatalf("%+v", got)
		}
		if n := pending(); n > 10 {
			t.Fatalf("%d frames are pending", n)
		}
	}
}

func TestBinaryDrain(t *testing.T) { // docs/wire.md 4.2, 6
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	reg := prometheus.NewRegistry()
	d := runBinary(t, CoalescerConfig{Committer: store}, func(cfg *BinaryConfig) { cfg.Registerer = reg })
	c, idle := d.started(t), d.started(t)
	c.send(produceFrame(1, "k", "a", "x"))
	<-g.came
	c.send(produceFrame(2, "k", "a", "y"))
	until(t, "both are taken", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.filling.requests == 1
	})
	c.send(produceFrame(3, "k", "a", "z")[:20]) // begun, never finished
	stopped := make(chan struct{})
	go func() {
		d.stop()
		close(stopped)
	}()
	idle.eof()
	_ = idle.Close()
	if _, err := net.Dial("tcp", d.server.Addr()); err == nil {
		t.Error("it still takes connections")
	}
	close(g.open)
	for _, stream := range []uint16{1, 2} {
		if got := c.answer(); got.op != opProduceResponse || got.stream != stream {
			t.Errorf("answered %+v", got)
		}
	}
	c.eof()
	_ = c.Close()
	<-stopped
	if n := testutil.ToFloat64(d.server.counters[outcomeWritten]); n != 2 {
		t.Errorf("%v requests counted, want 2", n)
	}
}

func TestBinaryDrainEnds(t *testing.T) { // a client that does not take its answers does not hold up the stop
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := runBinary(t, CoalescerConfig{Committer: store}, func(cfg *BinaryConfig) { cfg.DrainTimeout = 30 * time.Millisecond })
	c := d.started(t)
	c.send(produceFrame(1, "k", "a", "x"))
	<-g.came
	d.stop()
	close(g.open)
}

func TestBinaryConnectionLimit(t *testing.T) {
	d := runBinary(t, CoalescerConfig{}, func(cfg *BinaryConfig) { cfg.MaxConnections = 1 })
	c := d.started(t)
	d.dial(t).eof()
	_ = c.Close()
	until(t, "the first has left", func() bool {
		d.server.mu.Lock()
		defer d.server.mu.Unlock()
		return len(d.server.conns) == 0
	})
	d.started(t)
}

func TestBinaryClientGone(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	d := runBinary(t, CoalescerConfig{Committer: store}, nil)
	c := d.started(t)
	c.send(produceFrame(1, "k", "a", "x"))
	<-g.came
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
	close(g.open)
	until(t, "the connection has left", func() bool {
		d.server.mu.Lock()
		defer d.server.mu.Unlock()
		return len(d.server.conns) == 0
	})
	until(t, "the budget is free", func() bool { return d.budget.used.Load() == 0 })
}

// FuzzBinaryStream feeds a connection with any bytes after the handshake: whatever it answers is well-formed, at most
// one answer for each frame, and the connection comes to an end.
func FuzzBinaryStream(f *testing.F) {
	f.Add(produceFrame(1, "k", "a", "x", "y"))
	f.Add(slices.Concat(produceFrame(1, "", "a", "x"), frameOf(2, opHeartbeat, ""), frameOf(3, 99, "abc"), produceFrame(4, "k", "..", "x")))
	f.Add(append(frameOf(1, opProduce, "\x01k\x01a\xff\xff\xff\xff"), 1, 2, 3))
	wrong := produceFrame(9, "k", "a", "x")
	wrong[12] ^= 1
	f.Add(wrong)
	d := runBinary(f, CoalescerConfig{Linger: -1}, func(cfg *BinaryConfig) { cfg.MaxRequestBytes = 1 << 16 })
	d.topics.closed = topology.ErrUnknownTopic
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<17 {
			return
		}
		near, far := net.Pipe()
		defer func() { _ = far.Close() }()
		c := newBinaryConn(t.Context(), d.server, near)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.serve()
		}()
		go func() {
			_, _ = far.Write(unhex(t, hexStartup))
			_, _ = far.Write(b)
			c.stopReading() // net.Pipe cannot close one way
		}()
		answers, err := io.ReadAll(far)
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Fatal(err)
		}
		<-ended
		for n := 0; len(answers) > 0; n++ {
			if len(answers) < frameHeaderSize {
				t.Fatalf("half an answer: % x", answers)
			}
			h, err := parseFrameHeader(answers)
			if err != nil || int(h.length) > len(answers)-frameHeaderSize || h.op != opError && h.length != 0 {
				t.Fatalf("answer %d: %+v, %v", n, h, err)
			}
			if n > len(b)/frameHeaderSize+1 {
				t.Fatalf("more answers than frames")
			}
			answers = answers[frameHeaderSize+int(h.length):]
		}
		if n := c.pending.Load(); n != 0 {
			t.Fatalf("%d frames are not answered", n)
		}
	})
}
