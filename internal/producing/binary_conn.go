package producing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Sizes of the read buffer of a connection. It begins small, so that idle connections cost little, grows while reads
// fill it, and is given back after a pause. Only a frame larger than maxReadBuffer makes it grow further, on account of
// the memory budget.
const (
	minReadBuffer = 4 << 10
	maxReadBuffer = 128 << 10
	idleBuffer    = 2 * time.Second // pause after which a large buffer is given back
	keepRecords   = 1 << 10         // parsed records kept for the next frame
)

// binaryConn is one connection: a reader that parses frames in place and puts their records into the Coalescer in
// order, and a writer that sends the answers of a round in one write. There is nothing per message but an entry in the
// list of answers.
type binaryConn struct {
	s   *BinaryServer
	nc  net.Conn
	ctx context.Context // ends when the server drains: the reader waits for nothing then

	// Only the reader uses these.
	buf        []byte // buf[at:] was read and is not parsed
	at         int
	held       int64 // of the memory budget, for a large buffer
	reading    deadline
	frames     uint64    // begun
	framesThen uint64    // when the deadline was set
	frameSince time.Time // when the deadline was set
	name       string    // of the last topic, so that it is not made a string for each frame
	topic      topology.Topic
	records    []recordbatch.Record
	w          write

	pending atomic.Int64  // frames taken and not answered
	room    chan struct{} // one token: pending fell
	work    chan struct{} // one token: there is something to write, or no more will come

	mu       sync.Mutex
	ready    []*ackList // under mu: of rounds that are done
	direct   []byte     // under mu: frames that answer at once
	directN  int        // under mu: how many
	ended    bool       // under mu: the reader takes no further frame
	dead     bool       // under mu: the client is gone, nothing is written
	draining bool       // under mu: the read deadline stays in the past
}

// deadline says what the read deadline of a connection is for.
type deadline int

const (
	deadlineNone deadline = iota
	deadlineStartup
	deadlineFrame // a begun frame must arrive
	deadlineIdle  // a large buffer is given back
)

func newBinaryConn(ctx context.Context, s *BinaryServer, nc net.Conn) *binaryConn {
	c := &binaryConn{
		s: s, nc: nc, ctx: ctx,
		buf:  make([]byte, 0, minReadBuffer),
		room: make(chan struct{}, 1),
		work: make(chan struct{}, 1),
	}
	c.w.conn, c.w.requests = c, 1
	return c
}

// errEnd ends a connection after what is in flight has been answered. The client was told why.
var errEnd = errors.New("end of connection")

// serve runs the connection to its end.
func (c *binaryConn) serve() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.writeAnswers()
	}()
	err := c.readFrames()
	if err != nil && !errors.Is(err, errEnd) && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.s.log.Debug().Err(err).Stringer("peer", c.nc.RemoteAddr()).Msg("connection lost")
	}
	c.s.cfg.Coalescer.budget.release(c.held)
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	notify(c.work)
	<-written
	c.hangUp(errors.Is(err, io.EOF))
}

// hangUp closes the connection so that the client gets the last answers: closing with unread bytes would reset it.
func (c *binaryConn) hangUp(atEnd bool) {
	defer func() { _ = c.nc.Close() }()
	half, ok := c.nc.(interface{ CloseWrite() error })
	if atEnd || !ok || c.isDead() || half.CloseWrite() != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyN(io.Discard, c.nc, 1<<20)
}

// stopReading has the reader take no further frame.
func (c *binaryConn) stopReading() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}

// kill ends the connection whatever is in flight.
func (c *binaryConn) kill() {
	c.mu.Lock()
	c.dead = true
	c.mu.Unlock()
	_ = c.nc.Close()
	notify(c.work)
	notify(c.room)
}

func (c *binaryConn) isDead() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dead
}

// notify leaves a token, unless there is one.
func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// readFrames takes frames until the connection ends or the server drains.
func (c *binaryConn) readFrames() error {
	c.setDeadline(deadlineStartup)
	for started := false; ; {
		if err := c.need(frameHeaderSize); err != nil {
			return err
		}
		h, err := parseFrameHeader(c.buf[c.at:])
		if err != nil {
			return c.refuseAndEnd(h.stream, err.Error())
		}
		switch {
		case started:
			err = c.frame(h)
		case h.op == opStartup && h.length == 0 && h.version == frameVersion:
			started = true
			c.setDeadline(deadlineNone)
			c.at += frameHeaderSize
			c.answerDirect(h.stream, opReady, 0, "")
		case h.op == opStartup && h.version != frameVersion:
			err = c.refuseAndEnd(h.stream, fmt.Sprintf("Unsupported protocol version %d; allowed is %d", h.version, frameVersion))
		default:
			err = c.refuseAndEnd(h.stream, "Invalid first message")
		}
		if err != nil {
			return err
		}
	}
}

// refuseAndEnd answers with an error after which the stream cannot go on.
func (c *binaryConn) refuseAndEnd(stream uint16, text string) error {
	c.refuse(stream, codeServer, text, outcomeInvalid)
	return errEnd
}

// frame takes one frame, whose header is h and is still in the buffer.
func (c *binaryConn) frame(h frameHeader) error {
	c.frames++
	if err := c.waitRoom(); err != nil {
		return err
	}
	limit := c.s.cfg.MaxRequestBytes
	switch {
	case h.version != frameVersion:
		c.refuse(h.stream, codeServer, fmt.Sprintf("Unsupported protocol version %d; allowed is %d", h.version, frameVersion), outcomeInvalid)
		return c.skip(h)
	case h.op == opHeartbeat:
		c.answerDirect(h.stream, opReady, 0, "")
		return c.skip(h)
	case h.op != opProduce:
		c.refuse(h.stream, codeServer, "Only producer operations are supported", outcomeInvalid)
		return c.skip(h)
	case uint64(h.length) > uint64(limit):
		c.refuse(h.stream, codeServer, fmt.Sprintf("The frame has %d bytes, allowed are %d", h.length, limit), outcomeInvalid)
		return c.skip(h)
	}
	size := frameHeaderSize + int(h.length)
	if err := c.need(size); err != nil {
		if errors.Is(err, topology.ErrBusy) {
			code, text := binaryError(err)
			c.refuse(h.stream, code, text, outcomeBusy)
			return c.skip(h)
		}
		return err
	}
	body := c.buf[c.at+frameHeaderSize : c.at+size]
	if err := c.produce(h, body); err != nil {
		code, text := binaryError(err)
		c.refuse(h.stream, code, text, outcomeOf(err))
	}
	c.at += size
	return nil
}

// produce puts the records of one PRODUCE into the round that fills. An error means that nothing was written and is the
// answer.
func (c *binaryConn) produce(h frameHeader, body []byte) error {
	p, err := parseProduce(h.flags, body)
	if err != nil {
		return err
	}
	if string(p.topic) != c.name {
		c.name = string(p.topic)
	}
	cfg := &c.s.cfg
	if c.topic, err = lookUp(cfg.Topics, c.name); err != nil {
		return err
	}
	w := &c.w
	w.now = cfg.Coalescer.now()
	like := recordbatch.Record{Timestamp: w.now, Key: p.key}
	if p.timed {
		like.Timestamp = p.timestamp
	}
	c.records, err = appendMessages(c.records[:0], p.messages, like, cfg.Topics.EffectiveMaxRecordBytes(c.topic), "frame")
	if err != nil {
		return err
	}
	if err := create(c.ctx, cfg.Topics, &c.topic); err != nil {
		return err
	}
	w.records = c.records
	w.bytes = int64(len(p.messages) + len(c.records)*(len(p.key)+recordOverhead))
	return c.put(h.stream)
}

// put reserves memory for the records in c.w and hands them to the Coalescer.
func (c *binaryConn) put(stream uint16) error {
	w, co := &c.w, c.s.cfg.Coalescer
	if cap(c.records) > keepRecords {
		c.records = nil // the write has them still
	}
	key := w.records[0].Key
	if key != nil {
		tok := token.Of(key)
		p := c.topic.PartitionOf(tok)
		w.log, w.start = c.topic.Log(p), c.topic.PartitionToken(p)
		if err := co.lead(c.ctx, w.start); err != nil {
			if errors.Is(err, topology.ErrNotLeader) {
				return errNoLeader(err, int64(tok))
			}
			return err
		}
	}
	if err := co.budget.wait(c.ctx, w.bytes, c.s.cfg.BusyTimeout); err != nil {
		return err
	}
	w.held, w.stream = w.bytes, stream
	c.pending.Add(1)
	var err error
	if key != nil {
		err = co.put(w)
	} else {
		err = co.hold(c.ctx, func() error { return co.putAnywhere(w, &c.topic) })
	}
	if err != nil {
		c.pending.Add(-1)
		co.budget.release(w.held)
	}
	return err
}

// waitRoom waits while too many frames are not answered.
func (c *binaryConn) waitRoom() error {
	for c.pending.Load() >= int64(c.s.cfg.MaxPending) {
		if c.isDead() {
			return net.ErrClosed
		}
		select {
		case <-c.room:
		case <-c.ctx.Done():
			return errEnd // the frame is not taken
		}
	}
	return nil
}

// need reads until n bytes are in the buffer after c.at.
//
// Errors: io.EOF between frames, io.ErrUnexpectedEOF within one, os.ErrDeadlineExceeded when the server drains or the
// frame does not arrive in time, topology.ErrBusy when there is no memory for it.
func (c *binaryConn) need(n int) error {
	for len(c.buf)-c.at < n {
		if err := c.makeRoom(n); err != nil {
			return err
		}
		if err := c.read(); err != nil {
			return err
		}
	}
	return nil
}

// read does one read into the free part of the buffer.
func (c *binaryConn) read() error {
	switch {
	case len(c.buf) > c.at:
		c.setDeadline(deadlineFrame)
	case c.reading == deadlineStartup:
	case cap(c.buf) > minReadBuffer:
		c.setDeadline(deadlineIdle)
	default:
		c.setDeadline(deadlineNone)
	}
	free := c.buf[len(c.buf):cap(c.buf)]
	n, err := c.nc.Read(free)
	c.buf = c.buf[:len(c.buf)+n]
	switch {
	case n == len(free) && cap(c.buf) < maxReadBuffer:
		c.resize(2 * cap(c.buf))
		return nil
	case n > 0:
		return nil
	case err == nil:
		return nil
	case c.reading == deadlineIdle && errors.Is(err, os.ErrDeadlineExceeded) && !c.isDraining():
		c.resize(minReadBuffer)
		c.setDeadline(deadlineNone)
		return nil
	case errors.Is(err, io.EOF) && len(c.buf) > c.at:
		return io.ErrUnexpectedEOF
	default:
		return err
	}
}

// makeRoom makes the buffer able to take more of the n bytes that are needed after c.at. It grows only when what it has
// is full of one frame, so that memory follows the bytes that came, not those that were announced.
func (c *binaryConn) makeRoom(n int) error {
	if c.at == len(c.buf) {
		c.buf, c.at = c.buf[:0], 0
	}
	if cap(c.buf) > maxReadBuffer && n <= maxReadBuffer && len(c.buf)-c.at < maxReadBuffer {
		c.resize(maxReadBuffer) // a large frame has passed
	}
	if len(c.buf) < cap(c.buf) && c.at+n <= cap(c.buf) {
		return nil
	}
	c.buf, c.at = c.buf[:copy(c.buf, c.buf[c.at:])], 0
	if len(c.buf) < cap(c.buf) {
		return nil
	}
	size := min(2*cap(c.buf), n)
	if more := int64(size - maxReadBuffer); more > c.held {
		if err := c.s.cfg.Coalescer.budget.wait(c.ctx, more-c.held, c.s.cfg.BusyTimeout); err != nil {
			return err
		}
		c.held = more
	}
	c.resize(size)
	return nil
}

// resize moves what is not parsed to a buffer of that size, and gives memory back that a large one held.
func (c *binaryConn) resize(size int) {
	rest := c.buf[c.at:]
	c.buf = append(make([]byte, 0, max(size, len(rest))), rest...)
	c.at = 0
	if held := int64(max(0, cap(c.buf)-maxReadBuffer)); held < c.held {
		c.s.cfg.Coalescer.budget.release(c.held - held)
		c.held = held
	}
}

// skip drops the frame with header h, which is at the front of the buffer.
func (c *binaryConn) skip(h frameHeader) error {
	left := frameHeaderSize + int64(h.length)
	for {
		n := min(left, int64(len(c.buf)-c.at))
		c.at += int(n)
		if left -= n; left == 0 {
			return nil
		}
		if err := c.need(1); err != nil {
			return err
		}
	}
}

// setDeadline sets the read deadline. That for a frame runs from when the frame began; while frames flow it is renewed
// now and then, as that costs something.
func (c *binaryConn) setDeadline(d deadline) {
	var t time.Time
	switch d {
	case deadlineNone:
		if c.reading == deadlineNone {
			return
		}
	case deadlineStartup:
		t = time.Now().Add(c.s.cfg.StartupTimeout)
	case deadlineIdle:
		t = time.Now().Add(idleBuffer)
	case deadlineFrame:
		now := time.Now()
		if c.reading == d && (c.frames == c.framesThen || now.Sub(c.frameSince) < c.s.cfg.FrameTimeout/4) {
			return
		}
		c.frameSince, c.framesThen = now, c.frames
		t = now.Add(c.s.cfg.FrameTimeout)
	}
	c.reading = d
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.draining {
		_ = c.nc.SetReadDeadline(t)
	}
}

func (c *binaryConn) isDraining() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.draining
}

// refuse answers a frame with an error.
func (c *binaryConn) refuse(stream uint16, code errorCode, text string, kind outcome) {
	c.s.counters[kind].Inc()
	c.answerDirect(stream, opError, code, text)
}

// answerDirect sends an answer that waits for no round.
func (c *binaryConn) answerDirect(stream uint16, op opcode, code errorCode, text string) {
	c.pending.Add(1)
	c.mu.Lock()
	if op == opError {
		c.direct = appendErrorFrame(c.direct, stream, code, text)
	} else {
		c.direct = appendEmptyFrame(c.direct, op, stream)
	}
	c.directN++
	c.mu.Unlock()
	notify(c.work)
}

// answer takes the list of a round that is done. The round loop calls it.
func (c *binaryConn) answer(a *ackList) {
	c.mu.Lock()
	c.ready = append(c.ready, a)
	c.mu.Unlock()
	notify(c.work)
}

// writeAnswers sends answers until the reader has ended and all it took is answered, or the client is gone.
func (c *binaryConn) writeAnswers() {
	var lists []*ackList
	var out []byte
	for {
		c.mu.Lock()
		lists, c.ready = c.ready, lists[:0]
		out = append(out[:0], c.direct...)
		n := c.directN
		c.direct, c.directN = c.direct[:0], 0
		ended, dead := c.ended, c.dead
		c.mu.Unlock()

		if n == 0 && len(lists) == 0 {
			if dead || ended && c.pending.Load() == 0 {
				return
			}
			<-c.work
			continue
		}
		var counts [outcomes]int
		for i, a := range lists {
			n += len(a.frames)
			out = a.encode(out, &counts)
			a.free()
			lists[i] = nil
		}
		for kind, k := range counts {
			if k > 0 {
				c.s.counters[kind].Add(float64(k))
			}
		}
		if !dead {
			c.send(out)
		}
		c.pending.Add(int64(-n))
		notify(c.room)
		if cap(out) > maxReadBuffer {
			out = nil
		}
	}
}

// send writes; a client that does not take its answers in time is gone.
func (c *binaryConn) send(out []byte) {
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.s.cfg.FrameTimeout))
	if _, err := c.nc.Write(out); err != nil {
		c.kill()
	}
}
