package producing

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

const (
	fastBuffer = 4 << 10 // per connection; a head that does not fit is left to net/http
	// When draining begins, a connection that has not sent anything yet may still do so for drainGrace, and one between
	// two requests for idleGrace: its next request may be on the way, and is answered with Connection: close.
	drainGrace = 500 * time.Millisecond
	idleGrace  = 150 * time.Millisecond
	// maxSkip is how much of a body that is not wanted is read so that the connection can go on, as net/http does.
	maxSkip = 256 << 10
	// largeAnswer is how large an answer must be for the client to get a deadline to take it.
	largeAnswer   = 16 << 10
	answerTimeout = 30 * time.Second
)

// States of a connection, for draining.
const (
	fastNew    int32 = iota // nothing was read yet
	fastIdle                // between two requests
	fastActive              // at a request
)

// fastConn is one connection of the FastPath, with a goroutine of its own.
type fastConn struct {
	l     *fastListener
	p     *Producer
	nc    net.Conn
	state atomic.Int32

	buf      []byte // buf[at:end] is read and not used
	at, end  int
	head     fastHead
	name     string // of the last topic
	out      []byte // answer
	deadline time.Time
	setAt    time.Time
	writer   memoryWriter
}

func newFastConn(l *fastListener, nc net.Conn) *fastConn {
	return &fastConn{l: l, p: l.f.cfg.Producer, nc: nc}
}

// drain has the connection end soon, unless it is at a request: then the answer ends it. It never closes, since bytes
// of a request may have been read that the state does not tell of yet; a request sets deadlines of its own.
func (c *fastConn) drain() {
	switch c.state.Load() {
	case fastNew:
		_ = c.nc.SetReadDeadline(time.Now().Add(drainGrace))
	case fastIdle:
		_ = c.nc.SetReadDeadline(time.Now().Add(idleGrace))
	}
}

// serve answers plain produce requests until another one comes, or the connection ends.
func (c *fastConn) serve() {
	c.buf = make([]byte, fastBuffer)
	handOver := false
	defer func() {
		if v := recover(); v != nil {
			c.l.f.log.Error().Str("panic", fmt.Sprint(v)).Str("stack", string(debug.Stack())).Msg("request panicked")
		}
		c.l.f.forget(c)
		if !handOver {
			_ = c.nc.Close()
		}
	}()
	for {
		v, err := c.readHead()
		if err != nil {
			return
		}
		if v == headOther {
			handOver = true
			c.l.f.forget(c)
			c.l.handOver(c.nc, c.buf[c.at:c.end])
			return
		}
		if !c.request() {
			return
		}
	}
}

// readHead reads until it is told what comes next. A head that does not fit into the buffer is left to net/http.
func (c *fastConn) readHead() (verdict, error) {
	if c.at == c.end {
		c.at, c.end = 0, 0
		if err := c.awaitRequest(); err != nil {
			return 0, err
		}
	} else {
		c.state.Store(fastActive)
	}
	for partial := false; ; partial = true {
		v := c.head.parseHead(c.buf[c.at:c.end], c.p.cfg.MaxRequestBytes)
		if v != headMore {
			return v, nil
		}
		if c.at > 0 {
			c.end = copy(c.buf, c.buf[c.at:c.end])
			c.at = 0
		}
		if c.end == len(c.buf) {
			return headOther, nil
		}
		if !partial {
			c.setDeadline(c.l.f.cfg.ReadHeaderTimeout)
		}
		n, err := c.nc.Read(c.buf[c.end:])
		c.end += n
		switch {
		case n > 0:
		case err == io.EOF:
			return headOther, nil // net/http has an answer for half a head
		case err != nil:
			return 0, err
		}
	}
}

// awaitRequest waits for the first bytes of a request.
func (c *fastConn) awaitRequest() error {
	idle := c.l.f.cfg.IdleTimeout
	if c.state.Load() == fastNew {
		idle = c.l.f.cfg.ReadHeaderTimeout
	} else {
		c.state.Store(fastIdle)
	}
	// While requests come, the deadline is renewed now and then only.
	if now := time.Now(); c.deadline.IsZero() || now.Sub(c.setAt) > idle/16 {
		c.setAt, c.deadline = now, now.Add(idle)
		_ = c.nc.SetReadDeadline(c.deadline)
	}
	if c.l.f.isDraining() { // it may have looked before the state or the deadline was set
		c.drain()
	}
	n, err := c.nc.Read(c.buf)
	c.state.Store(fastActive)
	c.end = n
	if n == 0 && err == nil {
		err = io.ErrNoProgress
	}
	if n > 0 {
		err = nil
	}
	return err
}

// setDeadline bounds the reads of the request under way.
func (c *fastConn) setDeadline(d time.Duration) {
	c.deadline = time.Time{}
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
}

// request carries out the request whose head was read, and answers it. It tells whether the connection goes on.
func (c *fastConn) request() bool {
	h := &c.head
	req := newRequest()
	defer req.free()
	err := c.readFields(req)
	c.at += h.size
	if err == nil && c.p.closing.Load() {
		err = topology.ErrShuttingDown
	}
	keep := true
	var body *buffer
	if err == nil {
		body, keep, err = c.readBody(req)
	} else {
		keep = c.skipBody(h.length)
	}
	if err != nil {
		c.p.counters[outcomeOf(err)].Inc()
	} else {
		err = c.p.produce(c.l.f.ctx, req)
	}
	c.p.cfg.Coalescer.budget.release(req.held)
	keep = keep && !h.close && !c.l.f.isDraining()
	keep = c.answer(req, err, keep) && keep
	if body != nil {
		freeBody(body)
	} else if err == nil || req.body != nil {
		c.at += int(h.length) // it was in the buffer
	}
	return keep
}

// readFields takes everything but the body from the head.
func (c *fastConn) readFields(req *request) error {
	h := &c.head
	if string(h.topic) != c.name {
		c.name = string(h.topic)
	}
	req.topicName = c.name
	if err := req.readQuery(view(h.query)); err != nil {
		return err
	}
	req.kind = bodyKindOf(view(h.contentType))
	req.receipts = acceptsJSON(view(h.accept))
	for _, field := range h.headers {
		if err := req.addHeader(string(field)); err != nil {
			return err
		}
	}
	if h.key == nil {
		return nil
	}
	return req.setIdempotencyKey([]string{string(h.key)})
}

// readBody reads the body, in the buffer of the connection if it fits, else into one that is returned. keep is false
// when the connection cannot go on.
func (c *fastConn) readBody(req *request) (body *buffer, keep bool, err error) {
	length := c.head.length
	if c.at+int(length) <= len(c.buf) {
		return nil, true, c.bodyInPlace(req)
	}
	if int64(c.end-c.at) < length {
		c.setDeadline(c.l.f.cfg.ReadTimeout)
	}
	r := bodyReader{b: newBody(length), budget: &c.p.cfg.Coalescer.budget, limit: c.p.cfg.MaxRequestBytes}
	src := fastBody{c: c, left: length}
	err = r.fill(&src, length)
	req.held = r.held
	if err != nil {
		freeBody(r.b)
		keep = errors.Is(err, topology.ErrBusy) && c.skipBody(src.left)
		return nil, keep, bodyError(err, "", c.p.cfg.MaxRequestBytes)
	}
	req.body = r.b.b
	return r.b, true, nil
}

// bodyInPlace reads a body that fits into the buffer of the connection. Errors other than of the connection leave it in
// the buffer, as read.
func (c *fastConn) bodyInPlace(req *request) error {
	to := c.at + int(c.head.length)
	for first := true; c.end < to; first = false {
		if first {
			c.setDeadline(c.l.f.cfg.ReadTimeout)
		}
		n, err := c.nc.Read(c.buf[c.end:])
		c.end += n
		if n == 0 && err != nil {
			c.head.close = true
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return bodyError(err, "", c.p.cfg.MaxRequestBytes)
		}
	}
	req.body = c.buf[c.at:to:to]
	if err := c.p.cfg.Coalescer.budget.reserve(c.head.length); err != nil {
		return err
	}
	req.held = c.head.length
	return nil
}

// fastBody reads what is left of a body, first from the buffer of the connection.
type fastBody struct {
	c    *fastConn
	left int64
}

func (b *fastBody) Read(p []byte) (n int, err error) {
	if c := b.c; c.at < c.end {
		n = copy(p, c.buf[c.at:c.end])
		c.at += n
	} else {
		n, err = c.nc.Read(p)
	}
	b.left -= int64(n)
	return n, err
}

// skipBody reads a body that is not wanted, unless it is large; false when the connection cannot go on.
func (c *fastConn) skipBody(length int64) bool {
	if length > maxSkip {
		return false
	}
	n := min(length, int64(c.end-c.at))
	c.at += int(n)
	if length -= n; length == 0 {
		return true
	}
	c.setDeadline(c.l.f.cfg.ReadTimeout)
	_, err := io.CopyN(io.Discard, c.nc, length)
	return err == nil
}

// handedConn is a connection of which some bytes were read before it was handed over.
type handedConn struct {
	net.Conn
	read []byte
}

// NetConn is the connection below.
func (c *handedConn) NetConn() net.Conn { return c.Conn }

func (c *handedConn) Read(b []byte) (int, error) {
	if len(c.read) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.read)
	if c.read = c.read[n:]; len(c.read) == 0 {
		c.read = nil
	}
	return n, nil
}

// ReadFrom keeps the way of file contents to the socket without a copy.
func (c *handedConn) ReadFrom(r io.Reader) (int64, error) {
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

// CloseWrite lets the server end a connection gently.
func (c *handedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
