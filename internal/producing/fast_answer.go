package producing

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// answer writes what became of req; false when the connection is gone. It is what net/http would write.
func (c *fastConn) answer(req *request, err error, keep bool) bool {
	out := c.out[:0]
	switch {
	case err != nil:
		out = c.appendRefusal(out, err)
	case !req.receipts:
		out = append(out, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/html; charset=utf-8\r\n"...)
	default:
		c.writer.body.Reset()
		c.writer.body.Write(req.appendReceipts(nil))
		out = append(out, "HTTP/1.1 200 OK\r\nContent-Length: "...)
		out = strconv.AppendInt(out, int64(c.writer.body.Len()), 10)
		out = append(out, "\r\nContent-Type: application/json\r\n"...)
	}
	if err == nil && req.duplicate {
		out = append(out, headerDuplicate+": true\r\n"...)
	}
	out = append(out, "Date: "...)
	out = c.l.f.clock.appendDate(out)
	if !keep {
		out = append(out, "\r\nConnection: close"...)
	}
	out = append(out, "\r\n\r\n"...)
	if err == nil && !req.receipts {
		out = append(out, answerOK...)
	} else {
		out = append(out, c.writer.body.Bytes()...)
	}
	c.out = out
	if cap(out) > fastBuffer {
		c.out, c.writer.body = nil, bytes.Buffer{}
	}
	return c.send(out, keep)
}

func (c *fastConn) send(out []byte, keep bool) bool {
	if len(out) > largeAnswer {
		_ = c.nc.SetWriteDeadline(time.Now().Add(answerTimeout))
		defer func() { _ = c.nc.SetWriteDeadline(time.Time{}) }()
	}
	if _, err := c.nc.Write(out); err != nil {
		return false
	}
	if !keep {
		c.hangUp()
	}
	return true
}

// hangUp says that nothing follows, and reads on for a moment: closing with unread bytes would cut the answer.
func (c *fastConn) hangUp() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(drainGrace))
	_, _ = io.CopyN(io.Discard, c.nc, maxSkip)
}

// appendRefusal appends the status line and fields of a refusal; its body is in c.writer.
func (c *fastConn) appendRefusal(out []byte, err error) []byte {
	w := &c.writer
	w.reset()
	refuse(w, err)
	if w.status == http.StatusInternalServerError {
		c.l.f.log.Error().Err(err).Str("topic", c.name).Msg("request failed")
	}
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(w.status), 10)
	out = append(out, ' ')
	out = append(out, http.StatusText(w.status)...)
	out = append(out, "\r\n"...)
	var fields bytes.Buffer
	_ = w.header.Write(&fields)
	return append(out, fields.Bytes()...)
}

// memoryWriter is a ResponseWriter that keeps the answer.
type memoryWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *memoryWriter) reset() {
	w.header, w.status = http.Header{}, http.StatusOK
	w.body.Reset()
}

func (w *memoryWriter) Header() http.Header         { return w.header }
func (w *memoryWriter) WriteHeader(status int)      { w.status = status }
func (w *memoryWriter) Write(b []byte) (int, error) { return w.body.Write(b) }

// dateClock makes the Date of answers, once a second.
type dateClock struct{ last atomic.Pointer[dateText] }

type dateText struct {
	second int64
	text   string
}

func (d *dateClock) appendDate(b []byte) []byte {
	now := time.Now()
	t := d.last.Load()
	if t == nil || t.second != now.Unix() {
		t = &dateText{now.Unix(), now.UTC().Format(http.TimeFormat)}
		d.last.Store(t)
	}
	return append(b, t.text...)
}
