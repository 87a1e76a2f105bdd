package httpd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Config tunes a Server. Addr and Handler are required; any other zero field means its default.
type Config struct {
	Name    string // of the door, in logs and metrics: "produce"; default the address
	Addr    string // host:port to bind; port 0 takes a free one
	Handler http.Handler
	// Wrap replaces the bound listener before it is served, so that another protocol can take connections out of it.
	// What it hands on must be comparable connections, each closed once. MaxConnections counts below it.
	Wrap func(net.Listener) net.Listener

	MaxHeaderBytes    int           // request line and headers; default 64 KiB
	ReadHeaderTimeout time.Duration // from the first byte of a request to the end of its headers; default 10s
	ReadTimeout       time.Duration // and to the end of its body; default 2m. The answer may take as long as it likes
	IdleTimeout       time.Duration // between two requests of a connection; default 2m
	DrainTimeout      time.Duration // from the end of the context of Run to closing what still runs; default 25s
	MaxConnections    int           // further connections are answered with 503 and closed; default 10000
	MaxStreams        int           // requests at a time on one HTTP/2 connection; default 256

	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

func (c *Config) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if c.Name == "" {
		c.Name = c.Addr
	}
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = 64 << 10
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = 10000
	}
	if c.MaxStreams <= 0 {
		c.MaxStreams = 256
	}
	def(&c.ReadHeaderTimeout, 10*time.Second)
	def(&c.ReadTimeout, 2*time.Minute)
	def(&c.IdleTimeout, 2*time.Minute)
	def(&c.DrainTimeout, 25*time.Second)
}

// closeTimeout bounds how long Run waits for handlers after their contexts have ended and their connections are
// closed. One that still runs then is a defect, and Run says so.
const closeTimeout = 5 * time.Second

// Server serves one port. Use New, then Listen (optional), then Run once.
type Server struct {
	cfg     Config
	log     zerolog.Logger
	metrics *metrics
	http    *http.Server
	drain   chan struct{} // closed when draining begins
	ln      net.Listener  // set by Listen

	open    atomic.Int64 // accepted connections that are not closed
	serving atomic.Int64 // connections with a goroutine of net/http
	running atomic.Int64 // handlers
	quiet   chan struct{}

	mu    sync.Mutex
	conns map[net.Conn]*Conn // under mu
}

// New checks cfg and fills its defaults. It binds and starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Addr == "" || cfg.Handler == nil {
		return nil, errors.New("httpd: Addr and Handler are required")
	}
	cfg.setDefaults()
	s := &Server{
		cfg:   cfg,
		log:   cfg.Logger.With().Str("component", "httpd").Str("door", cfg.Name).Logger(),
		drain: make(chan struct{}),
		quiet: make(chan struct{}, 1),
		conns: map[net.Conn]*Conn{},
	}
	s.metrics = newMetrics(cfg.Registerer, cfg.Name, func() float64 { return float64(s.open.Load()) },
		func() float64 { return float64(s.running.Load()) })
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serveHTTP),
		Protocols:         protocols,
		MaxHeaderBytes:    cfg.MaxHeaderBytes,
		ReadHeaderTimeout: cfg.ReadHeaderTimeout,
		ReadTimeout:       cfg.ReadTimeout,
		IdleTimeout:       cfg.IdleTimeout,
		ConnContext:       s.connContext,
		ConnState:         s.connState,
		ErrorLog:          newErrorLog(s.log),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: cfg.MaxStreams,
			MaxReadFrameSize:     64 << 10,
			SendPingTimeout:      30 * time.Second,
			PingTimeout:          15 * time.Second,
			WriteByteTimeout:     2 * time.Minute,
		},
	}
	return s, nil
}

// Listen binds the address, unless that is done already. Connections wait in the kernel until Run.
func (s *Server) Listen() error {
	if s.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("bind %s of door %s: %w", s.cfg.Addr, s.cfg.Name, err)
	}
	s.ln = &limitListener{Listener: ln, s: s}
	return nil
}

// Addr is the bound address, "127.0.0.1:9250"; the configured one before Listen.
func (s *Server) Addr() string {
	if s.ln == nil {
		return s.cfg.Addr
	}
	return s.ln.Addr().String()
}

// Run serves until ctx ends, then drains (see the package comment) and returns nil when all handlers and connections
// have ended. It returns an error when the port cannot be bound or accepting fails.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	base = context.WithValue(base, drainKey{}, (<-chan struct{})(s.drain))
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	ln := s.ln
	if s.cfg.Wrap != nil {
		ln = s.cfg.Wrap(ln)
	}
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(ln) }()
	s.log.Info().Str("address", s.Addr()).Msg("door is open")

	var err error
	select {
	case err = <-served:
		err = fmt.Errorf("serve door %s on %s: %w", s.cfg.Name, s.Addr(), err)
		close(s.drain)
		_ = s.shutDown(cancel)
	case <-ctx.Done():
		close(s.drain)
		err = s.shutDown(cancel)
		<-served // Shutdown and Close end it
	}
	s.log.Info().Str("address", s.Addr()).Msg("door is closed")
	return err
}

// shutDown drains, then closes what is left, then waits for it.
func (s *Server) shutDown(cancelRequests func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil && ctx.Err() != nil {
		s.log.Warn().Int64("requests", s.running.Load()).Dur("after", s.cfg.DrainTimeout).Msg("drain time is over, closing connections")
	}
	// Connections first: a handler that returns because its context ended must not be taken for an empty answer.
	_ = s.http.Close()
	cancelRequests()
	deadline := time.NewTimer(closeTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond) // a signal may come before the last counter falls
	defer tick.Stop()
	for s.running.Load() > 0 || s.serving.Load() > 0 {
		select {
		case <-s.quiet:
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("door %s: %d handlers still run %s after their requests were cancelled", s.cfg.Name, s.running.Load(), closeTimeout)
		}
	}
	return nil
}

func (s *Server) connContext(ctx context.Context, nc net.Conn) context.Context {
	var received func() bool
	if t := tracked(nc); t != nil {
		received = t.received
	}
	c := newConn(received)
	s.mu.Lock()
	s.conns[nc] = c
	s.mu.Unlock()
	s.serving.Add(1)
	return context.WithValue(ctx, connKey{}, c)
}

func (s *Server) connState(nc net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	s.mu.Lock()
	c := s.conns[nc]
	delete(s.conns, nc)
	s.mu.Unlock()
	if c == nil {
		return
	}
	c.close()
	s.ended(&s.serving)
}

// ended lowers a counter and wakes Run, should it wait for this.
func (s *Server) ended(counter *atomic.Int64) {
	if counter.Add(-1) == 0 {
		select {
		case s.quiet <- struct{}{}:
		default:
		}
	}
}

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	s.running.Add(1)
	rw := &response{ResponseWriter: w}
	defer s.finish(rw, r, time.Now())
	s.cfg.Handler.ServeHTTP(rw, r)
}

// finish is deferred around each handler: it answers for one that panicked, writes the one log line of a failed request
// and counts.
func (s *Server) finish(w *response, r *http.Request, start time.Time) {
	defer s.ended(&s.running)
	v := recover()
	if v != nil && v != http.ErrAbortHandler {
		s.log.Error().Str("method", r.Method).Str("path", r.URL.Path).Str("panic", fmt.Sprint(v)).
			Str("stack", string(debug.Stack())).Msg("handler panicked")
		if w.status == 0 {
			clear(w.Header())
			Refuse(w, http.StatusInternalServerError, "internal error")
			v = nil
		} else {
			v = http.ErrAbortHandler // the answer is under way: cut it, so that it does not look whole
		}
	}
	if w.err != nil {
		s.log.Error().Err(w.err).Str("method", r.Method).Str("path", r.URL.Path).Msg("request failed")
	}
	s.metrics.observe(w, r.Method, v != nil, time.Since(start))
	if v != nil {
		panic(v)
	}
}
