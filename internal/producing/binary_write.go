package producing

import "time"

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
