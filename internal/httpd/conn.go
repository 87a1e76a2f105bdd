package httpd

import (
	"context"
	"sync"
	"sync/atomic"
)

// Conn is the identity of one client connection. All requests that come over it have the same *Conn, on HTTP/2 the
// concurrent ones too. Pointers compare.
type Conn struct {
	id       uint64
	received func() bool

	mu     sync.Mutex
	closed bool           // under mu
	next   int            // under mu: key of the next callback
	calls  map[int]func() // under mu
}

var lastConn atomic.Uint64

func newConn(received func() bool) *Conn { return &Conn{id: lastConn.Add(1), received: received} }

// Received tells whether the machine of the client has confirmed all that was written to the connection so far, and the
// client has not cut it: then the client has it, unless it failed by itself. It waits for nothing, and is false where
// that cannot be known.
func (c *Conn) Received() bool { return c.received != nil && c.received() }

// ID numbers the connections of this process, from 1.
func (c *Conn) ID() uint64 { return c.id }

// OnClose has fn called once when the connection is closed, from whichever side; at once when it is closed already.
// Calls come one after the other from the goroutine that closes, in no order, so fn must be quick and must not wait for
// requests of this connection. The result takes fn back; it has no effect after the call.
func (c *Conn) OnClose(fn func()) (cancel func()) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		fn()
		return func() {}
	}
	if c.calls == nil {
		c.calls = map[int]func(){}
	}
	key := c.next
	c.next++
	c.calls[key] = fn
	c.mu.Unlock()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.calls, key)
	}
}

func (c *Conn) close() {
	c.mu.Lock()
	calls := c.calls
	c.calls, c.closed = nil, true
	c.mu.Unlock()
	for _, fn := range calls {
		fn()
	}
}

type (
	connKey  struct{}
	drainKey struct{}
)

// ConnOf is the connection that the request with this context came over; nil outside requests of a Server.
func ConnOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// WithConn gives a context the identity of a new connection, and the function that closes it. A Server does this for
// each connection; servers of other kinds and tests of handlers may too.
func WithConn(ctx context.Context) (_ context.Context, _ *Conn, closed func()) {
	c := newConn(func() bool { return true })
	return context.WithValue(ctx, connKey{}, c), c, c.close
}

// Draining is closed when the server of the request with this context begins to shut down: who waits for something to
// happen should answer now. It is nil, and so blocks for ever, outside requests of a Server. The context itself ends
// only when the client goes or the drain time is over.
func Draining(ctx context.Context) <-chan struct{} {
	c, _ := ctx.Value(drainKey{}).(<-chan struct{})
	return c
}
