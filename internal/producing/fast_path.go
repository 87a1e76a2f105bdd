package producing

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// FastConfig tunes a FastPath. Producer is required; any other zero field means its default. The timeouts should be
// those of the HTTP server.
type FastConfig struct {
	Producer          *Producer
	ReadHeaderTimeout time.Duration // from the first byte of a request to the end of its head; default 10s
	ReadTimeout       time.Duration // from there to the end of the body; default 2m
	IdleTimeout       time.Duration // between two requests; default 2m
	DrainTimeout      time.Duration // from the end of the context of Run to closing what still runs; default 25s

	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// FastPath serves plain produce requests of HTTP/1.1 without net/http, which costs twice the CPU. It sits between a
// listener and an HTTP server (httpd.Config.Wrap) and reads each connection first. A request that it does not understand
// to the last byte it leaves alone: the server gets the connection with what was read of it, and keeps it. So answers are
// the server's own, or the same.
//
// One FastPath may wrap several listeners. Run must run as long as the servers do.
type FastPath struct {
	cfg     FastConfig
	log     zerolog.Logger
	given   prometheus.Counter
	ctx     context.Context // ends when what still runs is to be closed
	cancel  context.CancelFunc
	clock   dateClock
	drained chan struct{} // closed when draining begins

	mu       sync.Mutex
	draining bool                   // under mu
	conns    map[*fastConn]struct{} // under mu
	all      sync.WaitGroup         // connections; Add under mu and before draining
}

// NewFastPath checks cfg and fills its defaults. It starts nothing.
func NewFastPath(cfg FastConfig) (*FastPath, error) {
	if cfg.Producer == nil {
		return nil, errors.New("producing: Producer is required")
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.ReadHeaderTimeout, 10*time.Second)
	def(&cfg.ReadTimeout, 2*time.Minute)
	def(&cfg.IdleTimeout, 2*time.Minute)
	def(&cfg.DrainTimeout, 25*time.Second)
	f := &FastPath{
		cfg:     cfg,
		log:     cfg.Logger.With().Str("component", "producing").Str("door", "http").Logger(),
		drained: make(chan struct{}),
		conns:   map[*fastConn]struct{}{},
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.given = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "skein_produce_http_handed_over_connections_total",
		Help: "Connections left to the HTTP server because of a request that is not a plain produce request.",
	})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_produce_http_fast_connections", Help: "Open connections that sent nothing but plain produce requests.",
	}, func() float64 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return float64(len(f.conns))
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(f.given, open)
	}
	return f, nil
}

// Run returns when ctx has ended and all connections that the FastPath has kept have: requests under way are answered,
// the others closed.
func (f *FastPath) Run(ctx context.Context) error {
	<-ctx.Done()
	f.drain()
	ended := make(chan struct{})
	go func() {
		f.all.Wait()
		close(ended)
	}()
	timer := time.NewTimer(f.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		f.log.Warn().Dur("after", f.cfg.DrainTimeout).Msg("drain time is over, closing connections")
	}
	f.cancel()
	f.mu.Lock()
	for c := range f.conns {
		_ = c.nc.Close()
	}
	f.mu.Unlock()
	<-ended
	return nil
}

// drain has all connections close as soon as they have answered the request they are at.
func (f *FastPath) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return
	}
	f.draining = true
	close(f.drained)
	for c := range f.conns {
		c.drain()
	}
}

// Wrap takes the connections of ln first; those it does not keep come out of the listener that it returns.
func (f *FastPath) Wrap(ln net.Listener) net.Listener {
	return &fastListener{Listener: ln, f: f, handed: make(chan net.Conn), closed: make(chan struct{}), ended: make(chan struct{})}
}

// fastListener gives on what the FastPath leaves.
type fastListener struct {
	net.Listener
	f      *FastPath
	handed chan net.Conn
	closed chan struct{}
	ended  chan struct{} // closed when the goroutine that accepts has ended, or will not start
	start  sync.Once
	stop   sync.Once
	failed error // set before closed is closed
}

// Accept implements net.Listener.
func (l *fastListener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.accept() })
	select {
	case c := <-l.handed:
		return c, nil
	case <-l.closed:
		return nil, l.failed
	}
}

// Close implements net.Listener. Connections that the FastPath has kept end when they have answered.
func (l *fastListener) Close() error {
	l.end(net.ErrClosed)
	err := l.Listener.Close()
	l.start.Do(func() { close(l.ended) })
	<-l.ended // the listener below is closed, so this does not take long
	l.f.drain()
	return err
}

func (l *fastListener) end(err error) {
	l.stop.Do(func() {
		l.failed = err
		close(l.closed)
	})
}

// accept takes connections from below until it is closed.
func (l *fastListener) accept() {
	defer close(l.ended)
	pause := time.Duration(0)
	for {
		nc, err := l.Listener.Accept()
		if err == nil {
			pause = 0
			c := newFastConn(l, nc)
			if !l.f.begin(c) {
				_ = nc.Close()
				continue
			}
			go func() {
				defer l.f.all.Done()
				c.serve()
			}()
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			l.end(err)
			return
		}
		pause = min(max(5*time.Millisecond, 2*pause), time.Second) // out of file descriptors, mostly
		l.f.log.Warn().Err(err).Msg("accepting a connection failed")
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.closed:
			timer.Stop()
			return
		}
	}
}

// begin counts the goroutine of c; false when no further one may start.
func (f *FastPath) begin(c *fastConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining {
		return false
	}
	f.all.Add(1)
	f.conns[c] = struct{}{}
	return true
}

func (f *FastPath) forget(c *fastConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

func (f *FastPath) isDraining() bool {
	select {
	case <-f.drained:
		return true
	default:
		return false
	}
}

// handOver gives a connection to the server, with the bytes that were read of it.
func (l *fastListener) handOver(nc net.Conn, read []byte) {
	l.f.given.Inc()
	_ = nc.SetReadDeadline(time.Time{})
	if len(read) > 0 {
		nc = &handedConn{Conn: nc, read: read}
	}
	select {
	case l.handed <- nc:
	case <-l.closed:
		_ = nc.Close()
	}
}
