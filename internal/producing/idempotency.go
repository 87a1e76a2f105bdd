package producing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/topology"
)

// IdempotencyConfig says how long idempotency keys are remembered. Zero fields mean their defaults.
type IdempotencyConfig struct {
	Logs   LogReader     // where the keys of earlier runs are read from; nil: they are not
	Window time.Duration // how long a key is remembered; default 10m
	Keys   int           // how many keys of one partition are remembered; default 10000
	// TotalKeys is how many keys of all partitions are held in memory, about 150 bytes each; default 200000. Beyond it the
	// keys of partitions that are not in use are let go, and read from their logs when they are wanted again.
	TotalKeys int
	LoadWait  time.Duration // how long a request waits for the keys of a partition to be read; default 10s
	// PendingWait is how long a repeated request waits for the first one; default 30s.
	PendingWait time.Duration

	Now        func() time.Time
	Logger     zerolog.Logger
	Registerer prometheus.Registerer
}

func (c *IdempotencyConfig) setDefaults() {
	if c.Window <= 0 {
		c.Window = 10 * time.Minute
	}
	if c.Keys <= 0 {
		c.Keys = 10000
	}
	if c.TotalKeys <= 0 {
		c.TotalKeys = 200000
	}
	if c.LoadWait <= 0 {
		c.LoadWait = 10 * time.Second
	}
	if c.PendingWait <= 0 {
		c.PendingWait = 30 * time.Second
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// idempotency remembers the keys of requests, per log. What it remembers is a function of the log: it is read back from
// the hidden headers of the records, so it survives restarts, and is dropped when the outcome of a write is unknown.
type idempotency struct {
	cfg     IdempotencyConfig
	started time.Time // before it, another run may have written keys

	loads prometheus.Counter

	mu      sync.Mutex
	tables  map[topology.LogID]*idemTable // under mu
	total   int                           // under mu: entries of all tables
	evicted bool                          // under mu: some table of this run was let go
}

// idemTable holds the keys of one log. The lock of idempotency guards it.
type idemTable struct {
	log      topology.LogID
	entries  map[digest]idemEntry
	order    []idemAge // by age, from head on; may name keys that were replaced
	head     int
	pending  map[digest]*idemPending
	loaded   bool
	loading  chan struct{} // closed when whoever loads stops; nil when nobody does
	scan     idemScan
	epoch    int  // grows when all is dropped
	rescan   bool // all of the window is to be read, not only what earlier runs wrote
	lastUsed time.Time
}

type idemEntry struct {
	request digest
	base    topology.Offset // of the first record
	records int
	version topology.Version
	time    int64 // when the request was taken, ms
}

type idemAge struct {
	key  digest
	time int64
}

// idemPending is a request whose records are on their way into a log. Its owner must either have it called as the hook
// of the round or abandon it.
type idemPending struct {
	d     *idempotency
	table *idemTable
	mark  *idemMark
	w     *write
	done  chan struct{}
}

func newIdempotency(cfg IdempotencyConfig) *idempotency {
	cfg.setDefaults()
	d := &idempotency{cfg: cfg, started: cfg.Now(), tables: map[topology.LogID]*idemTable{}}
	d.loads = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "skein_produce_idempotency_loads_total",
		Help: "Times the idempotency keys of a partition were read from its log.",
	})
	keys := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_produce_idempotency_keys", Help: "Idempotency keys held in memory.",
	}, func() float64 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return float64(d.total)
	})
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(d.loads, keys)
	}
	return d
}

// claim asks what is known of the request of mark in a log, where it has that many records. A request that is on its way
// is waited for. Exactly one result is set: the entry of the earlier request, when this is a repetition of it, or a
// pending that the caller now owns.
//
// Errors: ErrKeyReused; topology.ErrUnavailable when the keys of the log could not be read in time.
func (d *idempotency) claim(ctx context.Context, log topology.LogID, mark *idemMark, records int) (*idemEntry, *idemPending, error) {
	for {
		d.mu.Lock()
		t := d.table(log)
		if !t.loaded {
			if err := d.load(ctx, t); err != nil { // gives up d.mu
				return nil, nil, err
			}
			continue
		}
		d.prune(t)
		if e, ok := t.entries[mark.key]; ok {
			d.mu.Unlock()
			if e.request != mark.request || e.records != records {
				return nil, nil, ErrKeyReused
			}
			return &e, nil, nil
		}
		p := t.pending[mark.key]
		if p == nil {
			p = &idemPending{d: d, table: t, mark: mark, done: make(chan struct{})}
			t.pending[mark.key] = p
			d.mu.Unlock()
			return nil, p, nil
		}
		same := p.mark.request == mark.request
		d.mu.Unlock()
		if !same {
			return nil, nil, ErrKeyReused
		}
		if err := await(ctx, p.done, d.cfg.PendingWait); err != nil {
			return nil, nil, fmt.Errorf("the same request is on its way: %w", err)
		}
	}
}

// table is that of a log; it is made on first use. d.mu is held.
func (d *idempotency) table(log topology.LogID) *idemTable {
	t := d.tables[log]
	if t == nil {
		t = &idemTable{log: log, entries: map[digest]idemEntry{}, pending: map[digest]*idemPending{}, rescan: d.evicted}
		t.loaded = d.cfg.Logs == nil
		d.tables[log] = t
	}
	t.lastUsed = d.cfg.Now()
	return t
}

// abandon gives p up: nothing of it was or will be written.
func (p *idemPending) abandon() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.end()
}

// end lets those who wait for p look again. d.mu is held.
func (p *idemPending) end() {
	delete(p.table.pending, p.mark.key)
	close(p.done)
}

// roundDone remembers the request, unless it was not written. With an unknown outcome only the log knows: all that is
// remembered of it is dropped and will be read again.
func (p *idemPending) roundDone() {
	span := p.w.span
	err := span.err()
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	defer p.end()
	switch {
	case err == nil:
		e := idemEntry{request: p.mark.request, base: span.offset(), records: span.records, version: span.version(), time: p.mark.time}
		d.add(p.table, p.mark.key, e)
		p.table.order = append(p.table.order, idemAge{p.mark.key, e.time})
		d.prune(p.table)
	case errors.Is(err, topology.ErrOutcomeUnknown):
		d.forget(p.table)
	}
}

// add sets an entry without a place in the order. d.mu is held.
func (d *idempotency) add(t *idemTable, key digest, e idemEntry) {
	before := len(t.entries)
	t.entries[key] = e
	d.total += len(t.entries) - before
}

// forget drops what is known of a log, to be read again. d.mu is held.
func (d *idempotency) forget(t *idemTable) {
	d.total -= len(t.entries)
	clear(t.entries)
	t.order, t.head = nil, 0
	t.loaded = d.cfg.Logs == nil
	t.rescan = true
	t.epoch++
	t.scan = idemScan{}
}

// prune drops the entries of t that are too old or too many. d.mu is held.
func (d *idempotency) prune(t *idemTable) {
	oldest := d.cfg.Now().Add(-d.cfg.Window).UnixMilli()
	for t.head < len(t.order) {
		age := t.order[t.head]
		e, ok := t.entries[age.key]
		if ok && e.time == age.time {
			if age.time >= oldest && len(t.entries) <= d.cfg.Keys {
				break
			}
			delete(t.entries, age.key)
			d.total--
		}
		t.head++
	}
	if t.head > len(t.order)/2 {
		t.order = append([]idemAge(nil), t.order[t.head:]...)
		t.head = 0
	}
}

// sweep lets go of what nobody needs: keys that are too old, tables without keys, and tables beyond the total, those
// first that were not used for longest.
func (d *idempotency) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.cfg.Now()
	for log, t := range d.tables {
		d.prune(t)
		if d.idle(t) && len(t.entries) == 0 && t.loaded && now.Sub(t.lastUsed) > d.cfg.Window {
			delete(d.tables, log) // nothing within the window: reading the log would find nothing either
		}
	}
	for d.total > d.cfg.TotalKeys {
		var oldest *idemTable
		for _, t := range d.tables {
			if d.idle(t) && len(t.entries) > 0 && (oldest == nil || t.lastUsed.Before(oldest.lastUsed)) {
				oldest = t
			}
		}
		if oldest == nil {
			return
		}
		d.total -= len(oldest.entries)
		delete(d.tables, oldest.log)
		d.evicted = true
	}
}

func (d *idempotency) idle(t *idemTable) bool { return len(t.pending) == 0 && t.loading == nil }
