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
