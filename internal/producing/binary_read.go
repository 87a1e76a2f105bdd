package producing

import (
	"errors"
	"io"
	"os"
	"time"
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

// deadline says what the read deadline of a connection is for.
type deadline int

const (
	deadlineNone deadline = iota
	deadlineStartup
	deadlineFrame // a begun frame must arrive
	deadlineIdle  // a large buffer is given back
)

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
