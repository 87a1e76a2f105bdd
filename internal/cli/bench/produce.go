package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Protocols of produce.
const (
	Binary = "binary" // docs/wire.md 4, many requests in flight on each connection
	HTTP   = "http"   // one record in each request, one request at a time on each connection
	NDJSON = "ndjson" // Batch records in each request, one a line
)

// ProduceConfig describes a load of produce requests.
type ProduceConfig struct {
	Protocol    string
	Addrs       []string // HOST:PORT of the protocol, used in turn by the connections
	Topic       string
	Run         string        // marks the records of this run
	Size        int           // bytes of a record
	Keys        int           // distinct keys; 0 none
	Records     int64         // how many to send; 0 until Duration
	Duration    time.Duration // when to stop; 0 after Records
	Rate        float64       // records/s, open loop; 0 as fast as acknowledgements come
	Connections int
	InFlight    int // records without an answer, over all connections (binary)
	Batch       int // records in a request; without keys in a binary frame
}

// Producer is a running load. Its counters may be read while it runs.
type Producer struct {
	cfg      ProduceConfig
	patience time.Duration
	claimed  atomic.Int64 // records given to connections
	acked    atomic.Int64
	bytes    atomic.Int64
	failed   atomic.Int64
	breaks   atomic.Int64 // connections that broke
	lastAck  atomic.Int64 // when the last acknowledgement came, ns
	pause    atomic.Int64 // longest time between two of them, ns

	mu    sync.Mutex
	hist  Histogram
	kinds map[string]int64
	first time.Time // begin of the load
	last  time.Time // last answer
	fatal error     // why a connection gave up, the first one
}

// NewProducer checks cfg and starts nothing.
func NewProducer(cfg ProduceConfig) (*Producer, error) {
	switch {
	case cfg.Protocol != Binary && cfg.Protocol != HTTP && cfg.Protocol != NDJSON:
		return nil, fmt.Errorf("unknown protocol %q", cfg.Protocol)
	case cfg.Size < MinSize:
		return nil, fmt.Errorf("records of %d bytes: at least %d are needed for what they say of themselves", cfg.Size, MinSize)
	case cfg.Connections < 1 || cfg.Batch < 1 || len(cfg.Addrs) == 0:
		return nil, errors.New("a load needs an address, a connection and a record in each request")
	case cfg.Records <= 0 && cfg.Duration <= 0:
		return nil, errors.New("a load needs a number of records or a duration")
	}
	if cfg.Keys > 0 {
		cfg.Connections = min(cfg.Connections, cfg.Keys)
	}
	return &Producer{cfg: cfg, patience: reconnectLimit, kinds: map[string]int64{}}, nil
}

// Run loads the broker until all records are answered, the duration is over or ctx ends. An error means that no load was
// possible at all; what went wrong with single records is counted.
func (p *Producer) Run(ctx context.Context) error {
	textPool()
	noisePool()
	if p.cfg.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.cfg.Duration)
		defer cancel()
	}
	conns := make([]sender, p.cfg.Connections)
	for i := range conns {
		c, err := p.connect(ctx, i)
		if err != nil {
			for _, open := range conns[:i] {
				open.close()
			}
			return err
		}
		conns[i] = c
	}
	p.first = time.Now()
	p.lastAck.Store(p.first.UnixNano())
	var group sync.WaitGroup
	for i, c := range conns {
		source := p.source(i)
		group.Go(func() { p.work(ctx, i, c, source) })
	}
	group.Wait()
	if p.acked.Load() == 0 {
		return p.fatal
	}
	return nil
}

// work runs a connection, and again after it broke: a broker that restarts is measured too.
func (p *Producer) work(ctx context.Context, i int, c sender, s *source) {
	for {
		err := c.run(ctx, s)
		c.close()
		if err == nil || ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errHungUp) {
			p.breaks.Add(1)
		}
		if c, err = p.reconnect(ctx, i); err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.fatal == nil && ctx.Err() == nil {
				p.fatal = err
			}
			return
		}
	}
}

// reconnectLimit is how long a broker may be away before a connection gives up.
const reconnectLimit = 30 * time.Second

func (p *Producer) reconnect(ctx context.Context, i int) (sender, error) {
	deadline := time.Now().Add(p.patience)
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := p.connect(ctx, i)
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return c, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// sender is one connection. run sends until the source is empty or ctx ends, and waits for the answers; an error means
// that the connection is of no use any more, and what had no answer is counted as lost.
type sender interface {
	run(ctx context.Context, s *source) error
	close()
}

// errHungUp means that the broker ended a connection after an answer, as HTTP allows.
var errHungUp = errors.New("the broker ended the connection")

func (p *Producer) connect(ctx context.Context, i int) (sender, error) {
	addr := p.cfg.Addrs[i%len(p.cfg.Addrs)]
	if p.cfg.Protocol == Binary {
		return dialBinary(ctx, p, addr)
	}
	return dialHTTP(ctx, p, addr)
}

// Acked is how many records are acknowledged; Failed how many are not and will not be.
func (p *Producer) Acked() int64  { return p.acked.Load() }
func (p *Producer) Failed() int64 { return p.failed.Load() }

// answered counts records that were acknowledged now.
func (p *Producer) answered(now time.Time, records, size int) {
	p.acked.Add(int64(records))
	p.bytes.Add(int64(size))
	gap := now.UnixNano() - p.lastAck.Swap(now.UnixNano())
	for longest := p.pause.Load(); gap > longest && !p.pause.CompareAndSwap(longest, gap); longest = p.pause.Load() {
	}
}

// lost counts records that failed.
func (p *Producer) lost(records int, kind string) {
	p.failed.Add(int64(records))
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.kinds[kind]; !known && len(p.kinds) >= 20 {
		kind = "others"
	}
	p.kinds[kind] += int64(records)
}

// done merges what a connection measured.
func (p *Producer) done(h *Histogram) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hist.Merge(h)
	p.last = time.Now()
}

// Report is the result so far.
func (p *Producer) Report() *Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &Report{
		Kind: "produce", Protocol: p.cfg.Protocol, Topic: p.cfg.Topic, Run: p.cfg.Run, Size: p.cfg.Size, Keys: p.cfg.Keys,
		Connections: p.cfg.Connections, Batch: p.cfg.Batch, Rate: p.cfg.Rate,
		Records: p.acked.Load(), Bytes: p.bytes.Load(), Errors: p.failed.Load(), ErrorKinds: p.kinds, Latency: p.hist.Summary(),
		Reconnects: p.breaks.Load(), Pause: round3(float64(p.pause.Load()) / 1e6),
	}
	if p.cfg.Protocol == Binary {
		r.InFlight = p.cfg.InFlight
	}
	if p.fatal != nil {
		r.Stopped = p.fatal.Error()
	}
	end := p.last
	if end.IsZero() {
		end = time.Now()
	}
	if !p.first.IsZero() {
		r.rates(end.Sub(p.first).Seconds())
	}
	return r
}

// source gives a connection its records: which keys are its own, how many are left, when the next is due. One goroutine
// uses it.
type source struct {
	p     *Producer
	index int // of the connection
	r     *rand.Rand
	seqs  []uint64 // of the keys of this connection: those that are index modulo the connections
	names []string
	stamp Stamp
	due   time.Time     // of the next record, with a rate
	every time.Duration // between the records of this connection
}

func (p *Producer) source(i int) *source {
	s := &source{p: p, index: i, r: rand.New(rand.NewPCG(rand.Uint64(), uint64(i))), stamp: Stamp{Run: p.cfg.Run}}
	if p.cfg.Keys > 0 {
		own := (p.cfg.Keys - i + p.cfg.Connections - 1) / p.cfg.Connections
		s.seqs, s.names = make([]uint64, own), make([]string, own)
	} else {
		s.seqs, s.names = make([]uint64, 1), []string{string(keylessPrefix) + strconv.Itoa(i)}
	}
	if p.cfg.Rate > 0 {
		s.every = time.Duration(float64(p.cfg.Connections) / p.cfg.Rate * float64(time.Second))
		s.due = p.first.Add(time.Duration(float64(i) / p.cfg.Rate * float64(time.Second)))
	}
	return s
}

// claim takes up to n records of those left; 0 when none is.
func (s *source) claim(n int) int {
	limit := s.p.cfg.Records
	if limit <= 0 {
		return n
	}
	after := s.p.claimed.Add(int64(n))
	return int(max(0, min(int64(n), int64(n)-(after-limit))))
}

// pick draws the key of the next record; "" without keys.
func (s *source) pick() (index int, key string) {
	if s.p.cfg.Keys == 0 {
		return 0, ""
	}
	index = s.r.IntN(len(s.seqs))
	if s.names[index] == "" {
		s.names[index] = "k" + strconv.Itoa(s.index+index*s.p.cfg.Connections)
	}
	return index, s.names[index]
}

// record appends the next record of a key.
func (s *source) record(dst []byte, index int, due time.Time) []byte {
	s.stamp.Key, s.stamp.Seq, s.stamp.Due = s.names[index], s.seqs[index], due.UnixMicro()
	s.seqs[index]++
	return AppendPayload(dst, s.stamp, s.p.cfg.Size, s.r)
}

// next says when the next record is due and moves on. Without a rate that is now.
func (s *source) next(now time.Time) time.Time {
	if s.every == 0 {
		return now
	}
	due := s.due
	s.due = s.due.Add(s.every)
	return due
}

// pause waits until the next record is due; false when ctx ended first.
func (s *source) pause(ctx context.Context, timer *time.Timer) bool {
	wait := time.Until(s.due)
	if s.every == 0 || wait <= 0 {
		return ctx.Err() == nil
	}
	timer.Reset(wait)
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		timer.Stop()
		return false
	}
}

// ready tells whether the next record is due.
func (s *source) ready(now time.Time) bool { return s.every == 0 || !s.due.After(now) }
