package httpd

import (
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// limitListener counts connections and turns away those above the limit. It stands right above the socket.
type limitListener struct {
	net.Listener
	s *Server
}

// tooMany is sent, before anything is read, to a connection above the limit.
const tooMany = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nSkein-Reason: " + ReasonBusy +
	"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

func (l *limitListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.s.open.Add(1) > int64(l.s.cfg.MaxConnections) {
			l.s.open.Add(-1)
			l.s.metrics.refused()
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // an empty socket buffer takes it at once
			_, _ = io.WriteString(c, tooMany)
			_ = c.Close()
			continue
		}
		// Embedding the TCP connection keeps its way of sending files without a copy.
		if tc, ok := c.(*net.TCPConn); ok {
			return &countedConn{TCPConn: tc, s: l.s}, nil
		}
		return nil, net.UnknownNetworkError(c.LocalAddr().Network())
	}
}

// countedConn lowers the count of open connections when it is closed, and knows whether the client got what was written.
type countedConn struct {
	*net.TCPConn
	s    *Server
	once sync.Once
	cut  atomic.Bool // by the client
	lost atomic.Bool // at the close there was more than the client had confirmed
}

func (c *countedConn) Close() error {
	if !c.received() {
		c.lost.Store(true)
	}
	err := c.TCPConn.Close()
	c.once.Do(func() { c.s.open.Add(-1) })
	return err
}

// newErrorLog turns the lines of net/http into log events: what concerns the listener is a warning, what one client
// does wrong is for debugging only.
func newErrorLog(l zerolog.Logger) *log.Logger {
	return log.New(errorLog{l}, "", 0)
}

type errorLog struct{ log zerolog.Logger }

func (e errorLog) Write(p []byte) (int, error) {
	line := strings.TrimSpace(string(p))
	event := e.log.Debug()
	if strings.Contains(line, "Accept error") || strings.Contains(line, "superfluous") {
		event = e.log.Warn()
	}
	event.Str("line", line).Msg("http server")
	return len(p), nil
}
