package producing

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Committer stores the chunks of a round. Commit returns when each of them is durable by the flush policy or has
// failed, and sets Base and Err of each. Calls do not overlap. The batches are the caller's again when it returns.
type Committer interface {
	Commit(round []*data.Append)
}

// Leadership tells in which generation this broker leads the range that contains start.
//
// Errors: topology.ErrNotLeader when another broker leads it or nobody is known to, topology.ErrUnavailable while the
// range is between generations here.
type Leadership interface {
	Lead(start token.Token) (topology.Version, error)
}

// CoalescerConfig tunes a Coalescer. Committer and Leadership are required; any other zero field means its default.
type CoalescerConfig struct {
	Committer  Committer
	Leadership Leadership
	// Known tells whether a topic lives, by its id; records of one that was deleted meanwhile are refused instead of
	// written (T3). nil: all live. Internal logs are not asked for.
	Known func(topic uuid.UUID) bool
	Now   func() time.Time // clock of append times and of record timestamps; default time.Now

	Linger        time.Duration // longest wait for further requests when several are in flight; default 500µs, negative: none
	ChunkBytes    int           // a chunk closes at this many bytes, not compressed; default 64 KiB
	RoundBytes    int64         // a round that holds this much takes no further request; default 4 MiB
	MemoryBudget  int64         // what requests and rounds may hold, in bytes; default 64 MiB
	Hold          time.Duration // how long a request waits for a range that is between generations; default 2s
	SealerThreads int           // goroutines that compress closed chunks while the round fills; default GOMAXPROCS

	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

func (c *CoalescerConfig) setDefaults() {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Linger == 0 {
		c.Linger = 500 * time.Microsecond
	}
	if c.ChunkBytes <= 0 {
		c.ChunkBytes = 64 << 10
	}
	if c.RoundBytes <= 0 {
		c.RoundBytes = 4 << 20
	}
	if c.MemoryBudget <= 0 {
		c.MemoryBudget = 64 << 20
	}
	if c.Hold <= 0 {
		c.Hold = 2 * time.Second
	}
	if c.SealerThreads <= 0 {
		c.SealerThreads = runtime.GOMAXPROCS(0)
	}
}

// Coalescer gathers records into chunks and writes them in rounds. Use NewCoalescer, then Run once. Everything else may
// be called from any goroutine, also before Run: requests then wait for it.
type Coalescer struct {
	cfg     CoalescerConfig
	log     zerolog.Logger
	metrics *coalescerMetrics
	budget  budget

	wake  chan struct{} // one token: there is something for the round loop to look at
	seals chan *chunk   // closed chunks of rounds that fill
	helps chan *sealing // rounds whose last chunks are being sealed

	mu      sync.Mutex
	stopped bool        // under mu: Run is about to end or has ended
	full    []*round    // under mu: rounds that took no more, oldest first
	filling *round      // under mu: takes requests
	waits   wait        // under mu: what the round loop waits for
	target  int         // under mu: requests that end the linger
	topics  topicStates // under mu

	// Only the round loop touches these.
	level      int // requests that were in flight when the last round was done
	lastDone   time.Time
	lastReport time.Time
	appends    []data.Append
	pointers   []*data.Append
}

// wait says what the round loop waits for.
type wait int

const (
	waitNothing wait = iota // it works
	waitRequest             // any request
	waitLinger              // as many requests or bytes as make a round worth while
)

// NewCoalescer checks cfg and fills its defaults. It starts nothing.
func NewCoalescer(cfg CoalescerConfig) (*Coalescer, error) {
	if cfg.Committer == nil || cfg.Leadership == nil {
		return nil, errors.New("producing: Committer and Leadership are required")
	}
	cfg.setDefaults()
	c := &Coalescer{
		cfg:    cfg,
		log:    cfg.Logger.With().Str("component", "producing").Logger(),
		wake:   make(chan struct{}, 1),
		seals:  make(chan *chunk, 4*cfg.SealerThreads),
		helps:  make(chan *sealing, cfg.SealerThreads),
		topics: topicStates{},
	}
	c.budget.limit = cfg.MemoryBudget
	c.metrics = newCoalescerMetrics(cfg.Registerer, &c.budget)
	c.filling = newRound(1)
	return c, nil
}

// write is the records of one request for one log, and where they went.
type write struct {
	log      topology.LogID
	start    token.Token // of the partition
	records  []recordbatch.Record
	bytes    int64 // size of records, about
	now      int64 // append time, ms
	held     int64 // bytes of the budget that go over to the round
	requests int   // 1, or 0 for a further log of a request counted already
	internal bool
	idem     *idemMark
	hook     roundHook // called when the round is done, before done closes; may be nil

	conn   *binaryConn // that sent the request, unless it came through another door; put adds the answer to acks
	stream uint16      // of the request, if conn is set
	acks   *ackList    // of conn in round acksOf
	acksOf uint64

	span span   // set by put
	at   *chunk // used by put
}

// roundHook learns that a round is done. It is called by the round loop, so it must be quick.
type roundHook interface{ roundDone() }

// put adds the records of w, at least one, to the round that fills. It does not wait for the write: w.span.done does.
// Calls for one log from one goroutine keep their order. The records are copied.
//
// Errors: topology.ErrShuttingDown. Then nothing was added and w.held is still the caller's.
func (c *Coalescer) put(w *write) error {
	r, b, wake, err := c.enter(w, nil)
	if err != nil {
		return err
	}
	c.fill(r, b, wake, w)
	return nil
}

// putAnywhere is put for records without a key: into the partition of t that takes such records now (section 6). It
// sets w.log and w.start.
//
// Errors: those of put and of Leadership, when this broker leads no partition of t.
func (c *Coalescer) putAnywhere(w *write, t *topology.Topic) error {
	r, b, wake, err := c.enter(w, t)
	if err != nil {
		return err
	}
	c.fill(r, b, wake, w)
	return nil
}

// enter counts w into the round that fills and finds its log there. keyless, unless nil, is the topic to choose a
// partition of. fill must follow.
func (c *Coalescer) enter(w *write, keyless *topology.Topic) (r *round, b *logBatch, wake bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, nil, false, topology.ErrShuttingDown
	}
	r = c.filling
	if r.bytes >= c.cfg.RoundBytes {
		c.full = append(c.full, r)
		c.filling = newRound(r.id + 1)
		r = c.filling
	}
	if keyless != nil {
		if err := c.choose(r, w, keyless); err != nil {
			return nil, nil, false, err
		}
	}
	b = r.logs[w.log]
	if b == nil {
		b = c.join(r, w.log, w.start, w.internal)
	}
	r.requests += w.requests
	r.bytes += w.bytes
	r.held += w.held
	r.writers.Add(1)
	if w.conn != nil && w.acksOf != r.id {
		w.acks, w.acksOf = newAckList(w.conn), r.id
		r.acks = append(r.acks, w.acks)
	}
	if w.hook != nil {
		r.hooks = append(r.hooks, w.hook)
	}
	return r, b, c.ready(r), nil
}

// join gives log a place in the round that fills. c.mu is held.
func (c *Coalescer) join(r *round, log topology.LogID, start token.Token, internal bool) *logBatch {
	b := &logBatch{log: log, start: start, internal: internal, payoff: &c.topics.of(log.Topic).payoff}
	r.logs[log] = b
	r.order = append(r.order, b)
	return b
}

// fill copies the records of w into b and hands over the chunks that closed by it.
func (c *Coalescer) fill(r *round, b *logBatch, wake bool, w *write) {
	var few [4]*chunk
	for _, ch := range b.append(r, w, c.cfg.ChunkBytes, few[:0]) {
		r.sealing.Add(1)
		select {
		case c.seals <- ch:
		default: // the sealers have enough to do
			ch.seal()
			r.sealing.Done()
		}
	}
	if w.conn != nil {
		w.acks.add(w)
	}
	r.writers.Done()
	if wake {
		c.signal()
	}
}

// ready tells whether the round loop waits for what r now holds. c.mu is held.
func (c *Coalescer) ready(r *round) bool {
	switch c.waits {
	case waitRequest:
		return true
	case waitLinger:
		return len(c.full) > 0 || r.requests >= c.target || r.bytes >= c.enough(r)
	default:
		return false
	}
}

// enough is how many bytes make a round that is not worth waiting for more: chunks of 32 KiB are as cheap as any.
func (c *Coalescer) enough(r *round) int64 {
	return min(int64(c.cfg.ChunkBytes)/2*int64(max(2, len(r.order))), c.cfg.RoundBytes)
}

func (c *Coalescer) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// now is the append time of a request, in ms.
func (c *Coalescer) now() int64 { return c.cfg.Now().UnixMilli() }

// lead is Leadership.Lead, held while the range is between generations.
func (c *Coalescer) lead(ctx context.Context, start token.Token) error {
	return c.hold(ctx, func() error {
		_, err := c.cfg.Leadership.Lead(start)
		return err
	})
}

// hold calls try again, for up to the configured time, while it fails with topology.ErrUnavailable.
func (c *Coalescer) hold(ctx context.Context, try func() error) error {
	err := try()
	if err == nil || !errors.Is(err, topology.ErrUnavailable) {
		return err
	}
	c.metrics.held.Inc()
	deadline := time.NewTimer(c.cfg.Hold)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-deadline.C:
			return err
		case <-ctx.Done():
			return err
		}
		if err = try(); err == nil || !errors.Is(err, topology.ErrUnavailable) {
			return err
		}
	}
}
