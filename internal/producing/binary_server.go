package producing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// BinaryConfig tunes a BinaryServer. Addr, Coalescer and Topics are required; any other zero field means its default.
type BinaryConfig struct {
	Addr            string // host:port to bind; port 0 takes a free one
	Coalescer       *Coalescer
	Topics          Topics
	MaxRequestBytes int           // largest body of a frame; default 16 MiB
	MaxConnections  int           // further connections are closed at once; default 10000
	MaxPending      int           // frames of a connection that are not answered yet; beyond, it is not read; default 65536
	StartupTimeout  time.Duration // from connecting to the first frame; default 10s
	FrameTimeout    time.Duration // for a begun frame to arrive, and for answers to be taken; default 30s
	BusyTimeout     time.Duration // how long a connection is not read for want of memory before its frame is refused; default 1s
	DrainTimeout    time.Duration // from the end of the context of Run to closing what is not answered; default 25s

	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

func (c *BinaryConfig) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	if c.MaxRequestBytes <= 0 {
		c.MaxRequestBytes = 16 << 20
	}
	if c.MaxConnections <= 0 {
		c.MaxConnections = 10000
	}
	if c.MaxPending <= 0 {
		c.MaxPending = 1 << 16
	}
	def(&c.StartupTimeout, 10*time.Second)
	def(&c.FrameTimeout, 30*time.Second)
	def(&c.BusyTimeout, time.Second)
	def(&c.DrainTimeout, 25*time.Second)
}

// BinaryServer serves the binary produce protocol of docs/wire.md, section 4. Use NewBinaryServer, then Listen
// (optional), then Run once.
type BinaryServer struct {
	cfg      BinaryConfig
	log      zerolog.Logger
	counters *doorCounters
	refused  prometheus.Counter

	ln net.Listener // set by Listen

	mu    sync.Mutex
	conns map[*binaryConn]struct{} // under mu
	all   sync.WaitGroup           // connections
}

// NewBinaryServer checks cfg and fills its defaults. It binds and starts nothing.
func NewBinaryServer(cfg BinaryConfig) (*BinaryServer, error) {
	if cfg.Addr == "" || cfg.Coalescer == nil || cfg.Topics == nil {
		return nil, errors.New("producing: Addr, Coalescer and Topics are required")
	}
	cfg.setDefaults()
	s := &BinaryServer{
		cfg:      cfg,
		log:      cfg.Logger.With().Str("component", "producing").Str("door", "binary").Logger(),
		counters: newRequestMetrics(cfg.Registerer).door("binary"),
		conns:    map[*binaryConn]struct{}{},
	}
	s.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "skein_produce_binary_refused_connections_total",
		Help: "Connections of the binary produce protocol closed because there were too many.",
	})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_produce_binary_connections", Help: "Open connections of the binary produce protocol.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(len(s.conns))
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(s.refused, open)
	}
	return s, nil
}

// Listen binds the address.
func (s *BinaryServer) Listen() error {
	if s.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("bind the binary produce port: %w", err)
	}
	s.ln = ln
	return nil
}

// Addr is the address that is bound, "" before Listen.
func (s *BinaryServer) Addr() string {
	if s.ln == nil {
		return ""
	}
	return s.ln.Addr().String()
}

// Run serves until ctx ends. Then it reads no further frame, answers those it has taken, closes, and returns nil. The
// Coalescer must run until then. An error means that the port could not be bound or accepting failed.
func (s *BinaryServer) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	s.log.Info().Str("address", s.Addr()).Msg("door is open")
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- s.accept(base) }()
	var err error
	accepting := true
	select {
	case <-ctx.Done():
	case err = <-failed:
		accepting = false
	}
	_ = s.ln.Close()
	if accepting {
		<-failed
	}
	cancel()
	s.drain()
	s.log.Info().Str("address", s.Addr()).Msg("door is closed")
	return err
}

// accept takes connections until the listener is closed.
func (s *BinaryServer) accept(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		nc, err := s.ln.Accept()
		switch {
		case err == nil:
			pause = 0
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // out of file descriptors, mostly: they come back
			pause = min(max(5*time.Millisecond, 2*pause), time.Second)
			s.log.Warn().Err(err).Msg("accepting a connection failed")
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			continue
		}
		if c := s.admit(ctx, nc); c != nil {
			s.all.Go(func() {
				defer s.leave(c)
				c.serve()
			})
		}
	}
}

func (s *BinaryServer) admit(ctx context.Context, nc net.Conn) *binaryConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.cfg.MaxConnections {
		s.refused.Inc()
		_ = nc.Close()
		return nil
	}
	c := newBinaryConn(ctx, s, nc)
	s.conns[c] = struct{}{}
	return c
}

func (s *BinaryServer) leave(c *binaryConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// drain has all connections answer what they have taken, and closes those that do not come to an end.
func (s *BinaryServer) drain() {
	s.each((*binaryConn).stopReading)
	ended := make(chan struct{})
	go func() {
		s.all.Wait()
		close(ended)
	}()
	timer := time.NewTimer(s.cfg.DrainTimeout)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		s.log.Warn().Dur("after", s.cfg.DrainTimeout).Msg("drain time is over, closing connections")
		s.each((*binaryConn).kill)
		<-ended
	}
}

func (s *BinaryServer) each(do func(*binaryConn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}
