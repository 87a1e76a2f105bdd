package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Bounds of one connection.
const (
	maxStreams   = 60_000
	writeSize    = 64 << 10
	drainTimeout = 30 * time.Second // for the last answers
	dialTimeout  = 5 * time.Second
)

// binaryConn is a connection of the binary protocol: run writes frames, one goroutine reads answers. A frame holds a
// stream, which is free again when its answer has come.
type binaryConn struct {
	p    *Producer
	nc   net.Conn
	in   *bufio.Reader
	hist Histogram // of the reading goroutine

	mu     sync.Mutex
	freed  *sync.Cond // with mu: free grew or broken is set
	free   []uint16
	sent   []flight // by stream
	flying int
	broken error
}

// flight is a frame without an answer.
type flight struct {
	due     time.Time
	records int // 0: none
	size    int
}

// dialBinary connects and shakes hands.
func dialBinary(ctx context.Context, p *Producer, addr string) (sender, error) {
	nc, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the binary produce port %s: %w", addr, err)
	}
	streams := max(1, min(maxStreams, p.cfg.InFlight/p.cfg.Connections/p.framing()))
	c := &binaryConn{p: p, nc: nc, in: bufio.NewReaderSize(nc, 64<<10), sent: make([]flight, streams+1)}
	c.freed = sync.NewCond(&c.mu)
	for s := streams; s >= 1; s-- {
		c.free = append(c.free, uint16(s))
	}
	if err := c.handshake(); err != nil {
		nc.Close()
		return nil, fmt.Errorf("handshake with %s: %w", addr, err)
	}
	return c, nil
}

// framing is how many records go in one frame: they share a key, so with keys it is one.
func (p *Producer) framing() int {
	if p.cfg.Keys > 0 {
		return 1
	}
	return p.cfg.Batch
}

func (c *binaryConn) handshake() error {
	if err := c.nc.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return err
	}
	if _, err := c.nc.Write(appendFrameHeader(nil, 0, opStartup, 0)); err != nil {
		return err
	}
	var buf [frameHeader + maxErrorBody]byte
	r, err := readResponse(c.in, &buf)
	if err != nil {
		return err
	}
	if r.op != opReady {
		return fmt.Errorf("%w: op %d %q instead of ready", errProtocol, r.op, r.text)
	}
	return c.nc.SetDeadline(time.Time{})
}

func (c *binaryConn) close() { c.nc.Close() }

// run sends records until the source is empty or ctx ends, and waits for the answers.
func (c *binaryConn) run(ctx context.Context, s *source) error {
	stop := context.AfterFunc(ctx, func() {
		_ = c.nc.SetWriteDeadline(time.Now().Add(drainTimeout)) // a write that hangs ends as a broken connection
		c.mu.Lock()
		defer c.mu.Unlock()
		c.freed.Broadcast()
	})
	defer stop()
	reading := make(chan error, 1)
	go func() { reading <- c.read() }()

	err := c.write(ctx, s)
	c.drain()
	c.nc.Close()
	readErr := <-reading
	c.p.done(&c.hist)
	c.giveUp()
	if err == nil && readErr != nil && !errors.Is(readErr, net.ErrClosed) {
		err = readErr
	}
	return err
}

// write fills frames for the free streams into one buffer and writes it at once.
func (c *binaryConn) write(ctx context.Context, s *source) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	buf := make([]byte, 0, 2*writeSize)
	var streams []uint16
	for s.pause(ctx, timer) {
		var err error
		if streams, err = c.take(ctx, streams[:0]); err != nil || len(streams) == 0 {
			return err
		}
		buf, used, more := c.fill(buf[:0], streams, s)
		c.giveBack(streams[used:])
		if len(buf) > 0 {
			if _, err := c.nc.Write(buf); err != nil {
				return c.breakWith(fmt.Errorf("write to %s: %w", c.nc.RemoteAddr(), err))
			}
		}
		if !more {
			return nil
		}
	}
	return nil
}

// take waits for free streams and takes all; none when ctx ended.
func (c *binaryConn) take(ctx context.Context, into []uint16) ([]uint16, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.free) == 0 && c.broken == nil && ctx.Err() == nil {
		c.freed.Wait()
	}
	if c.broken != nil || ctx.Err() != nil {
		return into, c.broken
	}
	into = append(into, c.free...)
	c.free = c.free[:0]
	return into, nil
}

func (c *binaryConn) giveBack(streams []uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.free = append(c.free, streams...)
}

// fill appends frames while there are streams, records that are due, and room. more is false when the source is empty.
func (c *binaryConn) fill(buf []byte, streams []uint16, s *source) (frames []byte, used int, more bool) {
	flights := make([]flight, 0, len(streams))
	now := time.Now()
	more = true
	for len(flights) < len(streams) && len(buf) < writeSize && s.ready(now) {
		n := s.claim(c.p.framing())
		if n == 0 {
			more = false
			break
		}
		var f flight
		buf, f = c.frame(buf, streams[len(flights)], n, s, now)
		flights = append(flights, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, f := range flights {
		c.sent[streams[i]] = f
	}
	c.flying += len(flights)
	return buf, len(flights), more
}

// frame appends a produce frame with n records.
func (c *binaryConn) frame(buf []byte, stream uint16, n int, s *source, now time.Time) ([]byte, flight) {
	start := len(buf)
	index, key := s.pick()
	f := flight{records: n, size: n * c.p.cfg.Size}
	buf = appendFrameHeader(buf, stream, opProduce, 0)
	buf = appendProduceHead(buf, key, c.p.cfg.Topic)
	for i := range n {
		due := s.next(now)
		if i == 0 {
			f.due = due
		}
		at := len(buf)
		buf = append(buf, 0, 0, 0, 0)
		buf = s.record(buf, index, due)
		binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	}
	setFrameBody(buf, start)
	return buf, f
}

// read takes answers until the connection ends. Streams are given back once for each burst of answers.
func (c *binaryConn) read() error {
	var buf [frameHeader + maxErrorBody]byte
	var burst []response
	for {
		r, err := readResponse(c.in, &buf)
		if err != nil {
			return c.breakWith(fmt.Errorf("read from %s: %w", c.nc.RemoteAddr(), err))
		}
		burst = append(burst, r)
		if c.in.Buffered() >= frameHeader && len(burst) < 1024 {
			continue
		}
		if err := c.settle(burst); err != nil {
			return c.breakWith(err)
		}
		burst = burst[:0]
	}
}

// settle counts answers and frees their streams.
func (c *binaryConn) settle(burst []response) error {
	now := time.Now()
	records, size := 0, 0
	defer func() {
		if records > 0 {
			c.p.answered(now, records, size)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range burst {
		if int(r.stream) >= len(c.sent) || c.sent[r.stream].records == 0 {
			return fmt.Errorf("%w: an answer on stream %d, which waits for none", errProtocol, r.stream)
		}
		f := c.sent[r.stream]
		c.sent[r.stream] = flight{}
		c.free = append(c.free, r.stream)
		c.flying--
		if r.op == opProduceResponse {
			c.hist.AddN(now.Sub(f.due), uint64(f.records))
			records += f.records
			size += f.size
		} else {
			c.p.lost(f.records, fmt.Sprintf("code %d: %s", r.code, r.text))
		}
	}
	c.freed.Broadcast()
	return nil
}

// breakWith notes why the connection is of no use any more, and wakes whoever waits.
func (c *binaryConn) breakWith(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	c.freed.Broadcast()
	return err
}

// drain waits for the answers to all that was sent.
func (c *binaryConn) drain() {
	timer := time.AfterFunc(drainTimeout, func() { _ = c.breakWith(errors.New("no answer for " + drainTimeout.String())) })
	defer timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.flying > 0 && c.broken == nil {
		c.freed.Wait()
	}
}

// giveUp counts what has no answer: it may be stored or not.
func (c *binaryConn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.sent {
		if f.records > 0 {
			c.p.lost(f.records, "no answer, the connection broke")
		}
	}
}
