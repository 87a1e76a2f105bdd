package bench

import (
	"context"
	"errors"
	"sync"
	"time"
)

// EndToEnd is a load of produce requests at a rate with a group that receives the records as they come.
type EndToEnd struct {
	producer *Producer
	consumer *Consumer
	checker  *Checker
	run      string

	mu   sync.Mutex
	hist Histogram
}

// settle is how long the last records may take after the last acknowledgement.
const settle = 5 * time.Second

// NewEndToEnd puts both halves together. c.Topic and p.Topic are the same; the consumer starts at the end.
func NewEndToEnd(p ProduceConfig, c ConsumeConfig) (*EndToEnd, error) {
	e := &EndToEnd{checker: NewChecker(p.Run), run: p.Run}
	c.Latest, c.Follow, c.Checker, c.Arrived = true, true, e.checker, e.arrived
	var err error
	if e.producer, err = NewProducer(p); err != nil {
		return nil, err
	}
	e.consumer, err = NewConsumer(c)
	return e, err
}

func (e *EndToEnd) arrived(at time.Time, values [][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range values {
		if s, ok := ParseStamp(v); ok && s.Run == e.run {
			e.hist.Add(at.Sub(time.UnixMicro(s.Due)))
		}
	}
}

// Run loads until the producer is done and its records have arrived, or ctx ends.
func (e *EndToEnd) Run(ctx context.Context) error {
	if err := e.consumer.Join(ctx); err != nil {
		return err
	}
	receiving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	received := make(chan error, 1)
	go func() { received <- e.consumer.Run(receiving) }()
	err := e.producer.Run(ctx)
	if err == nil {
		e.await(ctx, received)
	}
	stop()
	return errors.Join(err, <-received)
}

// await waits until what was acknowledged has arrived.
func (e *EndToEnd) await(ctx context.Context, received chan error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(settle)
	for e.checker.Count() < e.producer.Acked() {
		select {
		case <-tick.C:
		case err := <-received:
			received <- err
			return
		case <-deadline:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Acked and Received are counters for progress.
func (e *EndToEnd) Acked() int64    { return e.producer.Acked() }
func (e *EndToEnd) Received() int64 { return e.checker.Count() }
func (e *EndToEnd) Failed() int64   { return e.producer.Failed() + e.consumer.failed.Load() }

// Report is the result so far.
func (e *EndToEnd) Report() *Report {
	r, c := e.producer.Report(), e.consumer.Report()
	e.mu.Lock()
	defer e.mu.Unlock()
	r.Kind, r.Group, r.Members, r.EndToEnd = "end-to-end", c.Group, c.Members, e.hist.Summary()
	r.Errors += c.Errors
	for kind, n := range c.ErrorKinds {
		r.ErrorKinds["consume: "+kind] += n
	}
	v := e.checker.Verdict(e.producer.Acked(), e.producer.Failed())
	r.Check = &v
	return r
}
