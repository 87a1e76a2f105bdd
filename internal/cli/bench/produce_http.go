package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// requestTimeout bounds one HTTP request.
const requestTimeout = 30 * time.Second

// httpConn is a connection of HTTP/1.1 with one request at a time. It writes and reads HTTP itself, so that the client
// takes little of the machine that it measures.
type httpConn struct {
	p    *Producer
	addr string
	nc   net.Conn
	in   *bufio.Reader
	hist Histogram
}

func dialHTTP(ctx context.Context, p *Producer, addr string) (sender, error) {
	nc, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to the produce port %s: %w", addr, err)
	}
	return &httpConn{p: p, addr: addr, nc: nc, in: bufio.NewReaderSize(nc, 4<<10)}, nil
}

func (c *httpConn) close() { c.nc.Close() }

func (c *httpConn) run(ctx context.Context, s *source) error {
	defer func() { c.p.done(&c.hist) }()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	batch := 1
	if c.p.cfg.Protocol == NDJSON {
		batch = c.p.cfg.Batch
	}
	var body, request []byte
	for s.pause(ctx, timer) {
		n := s.claim(batch)
		if n == 0 {
			return nil
		}
		index, key := s.pick()
		due := s.next(time.Now())
		body = s.record(body[:0], index, due)
		for range n - 1 {
			body = append(body, '\n')
			body = s.record(body, index, s.next(due))
		}
		request = c.request(request[:0], key, body)
		if err := c.one(request, n, due); err != nil {
			return err
		}
	}
	return nil
}

func (c *httpConn) request(dst []byte, key string, body []byte) []byte {
	dst = append(dst, "POST /v1/topic/"...)
	dst = append(dst, c.p.cfg.Topic...)
	dst = append(dst, "/messages"...)
	if key != "" {
		dst = append(dst, "?partitionKey="...)
		dst = append(dst, url.QueryEscape(key)...)
	}
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, c.addr...)
	if c.p.cfg.Protocol == NDJSON {
		dst = append(dst, "\r\nContent-Type: application/x-ndjson"...)
	}
	dst = append(dst, "\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...)
}

// one sends a request and counts its answer. An error means that the connection is lost, or was ended by the broker.
func (c *httpConn) one(request []byte, records int, due time.Time) error {
	status, detail, keep, err := c.exchange(request)
	if err != nil {
		c.p.lost(records, "no answer, the connection broke")
		return err
	}
	if status == 200 {
		now := time.Now()
		c.hist.AddN(now.Sub(due), uint64(records))
		c.p.answered(now, records, records*c.p.cfg.Size)
	} else {
		c.p.lost(records, fmt.Sprintf("status %d: %s", status, detail))
	}
	if !keep {
		return errHungUp
	}
	return nil
}

// exchange writes a request and reads the answer. keep tells whether the connection may be used again.
func (c *httpConn) exchange(request []byte) (status int, detail string, keep bool, err error) {
	if err := c.nc.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return 0, "", false, err
	}
	if _, err := c.nc.Write(request); err != nil {
		return 0, "", false, err
	}
	status, length, keep, err := c.head()
	if err != nil {
		return 0, "", false, err
	}
	if status == 200 {
		_, err = c.in.Discard(length)
		return status, "", keep, err
	}
	body, err := io.ReadAll(io.LimitReader(c.in, int64(length)))
	return status, problemDetail(body), keep, err
}

var errHTTP = errors.New("an HTTP answer that this client does not understand")

// head reads the status line and the headers.
func (c *httpConn) head() (status, length int, keep bool, err error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, 0, false, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, 0, false, errHTTP
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, false, errHTTP
	}
	length, keep = -1, true
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, 0, false, err
		}
		name, value, found := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(":"))
		if !found {
			break
		}
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, 0, false, errHTTP
			}
		case bytes.EqualFold(name, []byte("Connection")):
			keep = !bytes.EqualFold(bytes.TrimSpace(value), []byte("close"))
		}
	}
	if length < 0 && status != 204 {
		return 0, 0, false, errHTTP
	}
	return status, max(0, length), keep, nil
}

// problemDetail is the detail of a problem, without numbers that differ from request to request.
func problemDetail(body []byte) string {
	_, after, found := strings.Cut(string(body), `"detail":"`)
	if !found {
		after = string(body)
	}
	detail, _, _ := strings.Cut(after, `"`)
	return strings.TrimSpace(detail[:min(len(detail), 120)])
}
