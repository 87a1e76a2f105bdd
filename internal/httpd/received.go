package httpd

import (
	"errors"
	"io"
	"net"
	"os"
)

// Read remembers that the client has cut the connection instead of closing it.
func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if err != nil && err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
		c.cut.Store(true)
	}
	return n, err
}

// tracked finds the connection of this package in nc, nil when there is none.
func tracked(nc net.Conn) *countedConn {
	for {
		switch t := nc.(type) {
		case *countedConn:
			return t
		case interface{ NetConn() net.Conn }:
			nc = t.NetConn()
		default:
			return nil
		}
	}
}
