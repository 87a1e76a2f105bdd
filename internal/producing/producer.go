package producing

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// ProducerConfig tunes a Producer. Coalescer and Topics are required; any other zero field means its default.
type ProducerConfig struct {
	Coalescer       *Coalescer
	Topics          Topics
	MaxRequestBytes int64         // largest body, as sent and once decoded; default 16 MiB
	AnswerTimeout   time.Duration // after which a request that is not written yet is answered with 504; default 30s
	Idempotency     IdempotencyConfig

	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Producer is the HTTP door: it carries out produce requests, whoever has parsed them off a connection.
type Producer struct {
	cfg      ProducerConfig
	counters *doorCounters
	idem     *idempotency
	closing  atomic.Bool
}

// NewProducer checks cfg and fills its defaults. It starts nothing.
func NewProducer(cfg ProducerConfig) (*Producer, error) {
	if cfg.Coalescer == nil || cfg.Topics == nil {
		return nil, errors.New("producing: Coalescer and Topics are required")
	}
	if cfg.MaxRequestBytes <= 0 {
		cfg.MaxRequestBytes = 16 << 20
	}
	if cfg.AnswerTimeout <= 0 {
		cfg.AnswerTimeout = 30 * time.Second
	}
	if cfg.Idempotency.Registerer == nil {
		cfg.Idempotency.Registerer = cfg.Registerer
	}
	if cfg.Idempotency.Now == nil {
		cfg.Idempotency.Now = cfg.Coalescer.cfg.Now
	}
	return &Producer{
		cfg:      cfg,
		counters: newRequestMetrics(cfg.Registerer).door("http"),
		idem:     newIdempotency(cfg.Idempotency),
	}, nil
}

// sweepEvery is how often idempotency keys that are too old are let go.
const sweepEvery = 30 * time.Second

// Run keeps the idempotency keys within their bounds until ctx ends. From then on new requests are refused with 503.
func (p *Producer) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.idem.sweep()
		case <-ctx.Done():
			p.closing.Store(true)
			return nil
		}
	}
}

// produce carries out req and returns nil when all of its records are written, or were before. The results are in req.
func (p *Producer) produce(ctx context.Context, req *request) error {
	err := p.run(ctx, req)
	switch {
	case err != nil:
		p.counters[outcomeOf(err)].Inc()
	case req.duplicate:
		p.counters[outcomeDuplicate].Inc()
	default:
		p.counters[outcomeWritten].Inc()
	}
	return err
}

func (p *Producer) run(ctx context.Context, req *request) error {
	if p.closing.Load() {
		return topology.ErrShuttingDown
	}
	var err error
	if req.topic, err = lookUp(p.cfg.Topics, req.topicName); err != nil {
		return err
	}
	if err := req.parse(p.cfg.Topics.EffectiveMaxRecordBytes(req.topic)); err != nil {
		return err
	}
	if err := create(ctx, p.cfg.Topics, &req.topic); err != nil {
		return err
	}
	req.now = p.cfg.Coalescer.now()
	req.route()
	if err := p.checkLeaders(ctx, req); err != nil {
		return err
	}
	if req.idempotencyKey != "" {
		if err := p.claimAll(ctx, req); err != nil {
			return err
		}
	}
	err = p.putAll(ctx, req)
	return p.await(ctx, req, err)
}

// checkLeaders refuses a request of which this broker cannot write everything, before it writes anything.
func (p *Producer) checkLeaders(ctx context.Context, req *request) error {
	for i := range req.groups {
		g := &req.groups[i]
		if g.anywhere {
			continue
		}
		if err := p.cfg.Coalescer.lead(ctx, g.w.start); err != nil {
			if errors.Is(err, topology.ErrNotLeader) {
				return errNoLeader(err, int64(g.token))
			}
			return err
		}
	}
	return nil
}

// claimAll finds out which groups are repetitions. Groups are in the order of their partitions, so two requests that
// claim the same key wait for each other in one direction only.
func (p *Producer) claimAll(ctx context.Context, req *request) error {
	req.mark.key, req.mark.request, req.mark.time = digestKey(req.idempotencyKey), req.digest(), req.now
	for i := range req.groups {
		g := &req.groups[i]
		entry, pending, err := p.idem.claim(ctx, g.w.log, &req.mark, len(g.w.records))
		if err != nil {
			for j := range req.groups[:i] {
				req.groups[j].abandon()
			}
			return err
		}
		if entry != nil {
			g.earlier, req.duplicate = *entry, true
			g.repeated = true
			continue
		}
		g.pending = pending
		pending.w = &g.w
		g.w.idem, g.w.hook = &req.mark, pending
	}
	return nil
}

// putAll hands the groups to the Coalescer. After an error the groups from there on were not.
func (p *Producer) putAll(ctx context.Context, req *request) error {
	co := p.cfg.Coalescer
	counted := 1
	for i := range req.groups {
		g := &req.groups[i]
		if g.repeated {
			req.stamp(g, g.earlier.time)
			continue
		}
		req.stamp(g, req.now)
		w := &g.w
		w.now, w.held, w.requests = req.now, req.held, counted
		var err error
		if g.anywhere {
			err = co.hold(ctx, func() error { return co.putAnywhere(w, &req.topic) })
		} else {
			err = co.put(w)
		}
		if err != nil {
			for j := i; j < len(req.groups); j++ {
				req.groups[j].abandon()
			}
			return err
		}
		g.put = true
		req.held, counted = 0, 0
	}
	return nil
}

// await waits for what was put and tells what became of the request. failed is the error of what was not put, if any.
func (p *Producer) await(ctx context.Context, req *request, failed error) error {
	written, unknown := false, error(nil)
	for i := range req.groups {
		g := &req.groups[i]
		if g.repeated {
			written = true
		}
		if !g.put {
			continue
		}
		if err := p.awaitRound(ctx, g.w.span); err != nil {
			req.lost = true
			return err
		}
		err := g.w.span.err()
		switch {
		case err == nil:
			written = true
		case isUnknown(err):
			unknown = err
		case failed == nil:
			failed = err
		}
	}
	switch {
	case unknown != nil:
		return unknown
	case failed != nil && written:
		return partly(failed)
	default:
		return failed
	}
}

// awaitRound waits for the round of s. An error means that the outcome is not known in time.
func (p *Producer) awaitRound(ctx context.Context, s span) error {
	return await(ctx, s.done(), p.cfg.AnswerTimeout)
}

// await waits for done, up to limit. The end of ctx alone does not end the wait: net/http cancels it too when a client
// has sent all it wants to send and closes its side, and such a client still wants the answer. Only a server that is
// shutting down and has cancelled its requests does.
func await(ctx context.Context, done <-chan struct{}, limit time.Duration) error {
	timer := timers.Get().(*time.Timer)
	timer.Reset(limit)
	defer func() {
		timer.Stop()
		timers.Put(timer)
	}()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return unknownAfter(limit)
	case <-ctx.Done():
	}
	draining := httpd.Draining(ctx)
	if draining == nil {
		return unknownGone(ctx.Err())
	}
	select {
	case <-done:
		return nil
	case <-timer.C:
		return unknownAfter(limit)
	case <-draining:
	}
	timer.Reset(lastWait)
	select {
	case <-done:
		return nil
	case <-timer.C:
		return unknownGone(ctx.Err())
	}
}

// lastWait is how long a cancelled request waits once its server shuts down.
const lastWait = time.Second

var timers = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}}
