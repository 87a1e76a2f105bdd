package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
)

// Formats of poll answers.
const (
	PollBinary  = "binary"  // docs/wire.md 5.2.1: stored chunks
	PollRecords = "records" // JSON with keys and headers
)

// How long polls wait, and how long nothing may come before a drain ends.
const (
	drainWait = time.Second
	idleLimit = 10 * time.Second
	byeLimit  = 5 * time.Second
)

// ConsumeConfig describes a group that drains topics.
type ConsumeConfig struct {
	Clients []*api.Client // one for each member
	Topic   string
	Group   string
	Latest  bool // start at the end
	Format  string
	Records int64 // end after that many; 0 at the end of the topic
	MaxByte int   // of one poll; 0 the broker's default
	Checker *Checker
	Arrived func(at time.Time, values [][]byte) // nil, or called for each run of records; calls may overlap
	Follow  bool                                // go on until ctx ends
}

// Consumer is a running group. Its counters may be read while it runs.
type Consumer struct {
	cfg     ConsumeConfig
	ids     []string
	records atomic.Int64
	bytes   atomic.Int64
	failed  atomic.Int64
	arrival atomic.Int64 // when the last records came, ns
	start   atomic.Int64 // when the first came

	mu     sync.Mutex
	hist   Histogram
	kinds  map[string]int64
	enough context.CancelFunc
}

// NewConsumer names the members. It starts nothing.
func NewConsumer(cfg ConsumeConfig) (*Consumer, error) {
	if len(cfg.Clients) == 0 {
		return nil, errors.New("a group needs a member")
	}
	if cfg.Format != PollBinary && cfg.Format != PollRecords {
		return nil, fmt.Errorf("unknown format %q", cfg.Format)
	}
	c := &Consumer{cfg: cfg, kinds: map[string]int64{}}
	for i := range cfg.Clients {
		c.ids = append(c.ids, fmt.Sprintf("%s-member-%d", cfg.Group, i))
	}
	return c, nil
}

// Join registers all members, so that each has its share before the first poll.
func (c *Consumer) Join(ctx context.Context) error {
	for i := range c.cfg.Clients {
		if err := c.register(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Consumer) register(ctx context.Context, i int) error {
	return c.cfg.Clients[i].Register(ctx, api.Consumer{ID: c.ids[i], Group: c.cfg.Group, Topics: []string{c.cfg.Topic}, Latest: c.cfg.Latest})
}

// Run polls until all wanted records came, the topic is drained or ctx ends; then the members commit and leave. Join
// comes before.
func (c *Consumer) Run(ctx context.Context) error {
	ctx, c.enough = context.WithCancel(ctx)
	defer c.enough()
	c.arrival.Store(time.Now().UnixNano())
	var group sync.WaitGroup
	failed := make([]error, len(c.ids))
	for i := range c.ids {
		group.Go(func() {
			if failed[i] = c.member(ctx, i); failed[i] != nil {
				c.enough()
			}
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

// member polls with acknowledgements: what one answer brought is committed by the next poll.
func (c *Consumer) member(ctx context.Context, i int) error {
	decoder, err := newPollDecoder()
	if err != nil {
		return err
	}
	defer decoder.close()
	var hist Histogram
	defer func() { c.merge(&hist) }()
	ack := "none"
	defer func() { c.leave(ctx, i, ack) }()
	for ctx.Err() == nil {
		began := time.Now()
		id, n, err := c.poll(ctx, i, ack, decoder)
		switch {
		case ctx.Err() != nil && err != nil:
			return nil
		case err != nil && errors.Is(err, errPoll):
			return err
		case err != nil:
			if err := c.mend(ctx, i, err); err != nil {
				return err
			}
			ack = "none"
		case n == 0:
			ack = "none"
			if c.drained() {
				c.enough()
			}
		default:
			hist.Add(time.Since(began))
			ack = id
		}
	}
	return nil
}

// mend counts a failed poll and registers again where that is what is missing.
func (c *Consumer) mend(ctx context.Context, i int, cause error) error {
	c.failed.Add(1)
	c.mu.Lock()
	c.kinds[cause.Error()]++
	many := c.kinds[cause.Error()] > 100 || len(c.kinds) > 20
	c.mu.Unlock()
	outcome := api.OutcomeOf(cause)
	if api.StatusOf(cause) == http.StatusConflict {
		return c.register(ctx, i)
	}
	if many || outcome == api.Refused {
		return cause
	}
	select {
	case <-time.After(200 * time.Millisecond):
	case <-ctx.Done():
	}
	return nil
}

// poll asks once and takes in what came. n is the number of records.
func (c *Consumer) poll(ctx context.Context, i int, ack string, decoder *pollDecoder) (id string, n int, err error) {
	request := api.PollRequest{ID: c.ids[i], Ack: ack, Wait: drainWait, MaxBytes: c.cfg.MaxByte}
	take := func(d delivery) { n += c.take(d) }
	if c.cfg.Format == PollRecords {
		answer, err := c.cfg.Clients[i].Poll(ctx, request)
		if err != nil {
			return "", 0, err
		}
		err = deliveries(answer.Batches, take)
		return answer.ID, n, err
	}
	answer, body, err := c.cfg.Clients[i].PollBinary(ctx, request)
	if err != nil {
		return "", 0, err
	}
	err = decoder.decode(body, take)
	return answer.ID, n, err
}

// take counts a run of records.
func (c *Consumer) take(d delivery) int {
	now := time.Now()
	c.start.CompareAndSwap(0, now.UnixNano())
	c.arrival.Store(now.UnixNano())
	if c.cfg.Arrived != nil {
		c.cfg.Arrived(now, d.values)
	}
	counted, size := len(d.values), 0
	if c.cfg.Checker != nil {
		counted, size = c.cfg.Checker.Delivered(d.partition, d.first, d.values)
	} else {
		for _, v := range d.values {
			size += len(v)
		}
	}
	c.bytes.Add(int64(size))
	if total := c.records.Add(int64(counted)); c.cfg.Records > 0 && total >= c.cfg.Records {
		c.enough()
	}
	return len(d.values)
}

// drained tells whether nothing more is to be expected: for a moment where the number of records is not known, else
// for long.
func (c *Consumer) drained() bool {
	if c.cfg.Follow {
		return false
	}
	idle := time.Since(time.Unix(0, c.arrival.Load()))
	if c.cfg.Records > 0 {
		return idle > idleLimit
	}
	return idle > 2*drainWait
}

// leave commits what the member received, and says goodbye.
func (c *Consumer) leave(ctx context.Context, i int, ack string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), byeLimit)
	defer cancel()
	if ack != "none" {
		if err := c.cfg.Clients[i].Commit(ctx, c.ids[i], ack); err != nil {
			c.failed.Add(1)
			c.mu.Lock()
			c.kinds["last commit: "+err.Error()]++
			c.mu.Unlock()
		}
	}
	// A member that cannot say goodbye leaves when the broker notices.
	_ = c.cfg.Clients[i].Goodbye(ctx, c.ids[i])
}

func (c *Consumer) merge(h *Histogram) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hist.Merge(h)
}

// Records is how many records were counted so far.
func (c *Consumer) Records() int64 { return c.records.Load() }

// Report is the result so far. Time runs from the first records to the last.
func (c *Consumer) Report() *Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &Report{
		Kind: "consume", Protocol: c.cfg.Format, Topic: c.cfg.Topic, Group: c.cfg.Group, Members: len(c.ids),
		Records: c.records.Load(), Bytes: c.bytes.Load(), Errors: c.failed.Load(), ErrorKinds: c.kinds, Latency: c.hist.Summary(),
	}
	if start := c.start.Load(); start != 0 {
		r.rates(time.Duration(c.arrival.Load() - start).Seconds())
	}
	if c.cfg.Checker != nil {
		v := c.cfg.Checker.Verdict(c.cfg.Records, 0)
		r.Check, r.Keys = &v, v.Keys
	}
	return r
}
