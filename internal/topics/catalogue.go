package topics

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/topology"
)

// Catalogue knows the topics. Use New, then Load, then Run. All methods but Load and Run may be called from any
// goroutine, at any time; before Load has ended nothing is known and nothing can be changed.
type Catalogue struct {
	cfg     Config
	log     zerolog.Logger
	metrics metrics

	// What lives. Values are never changed in place. A reader may see a change in one map before the other.
	byName sync.Map // string → *topology.Topic
	byID   sync.Map // uuid.UUID of the topic or of its positions log → *topology.Topic
	count  atomic.Int64

	loaded     atomic.Bool
	partitions []*partition // of the log of topics

	mu       sync.Mutex
	onDelete []func(topology.Topic)   // under mu
	dropping map[uuid.UUID]*dropState // under mu: topics whose data goes, or went a moment ago
}

// partition is one partition of the log of topics. Who changes topics of it holds sem.
type partition struct {
	id      topology.Partition
	sem     chan struct{}   // of one
	applied topology.Offset // under sem: first offset that the view does not hold
	buf     []byte          // under sem
}

// New checks cfg and fills its defaults. It reads nothing.
func New(cfg Config) (*Catalogue, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &Catalogue{
		cfg:      cfg,
		log:      cfg.Logger.With().Str("component", "topics").Logger(),
		dropping: map[uuid.UUID]*dropState{},
	}
	c.metrics = newMetrics(cfg.Registerer, func() float64 { return float64(c.count.Load()) })
	for i := range topology.TopicsTopic.Partitions {
		c.partitions = append(c.partitions, &partition{id: topology.Partition(i), sem: make(chan struct{}, 1)})
	}
	return c, nil
}

// OnDelete has fn called for each topic that is deleted from now on, when Lookup does not find it any more and before
// its data goes. fn must be quick.
func (c *Catalogue) OnDelete(fn func(topology.Topic)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onDelete = append(c.onDelete, fn)
}

// Lookup finds a topic by name. It takes no lock. The log of topics itself is found under its name, __topics: who must
// not write to it checks the name (topology.CheckTopicName).
func (c *Catalogue) Lookup(name string) (topology.Topic, bool) {
	if v, ok := c.byName.Load(name); ok {
		return *v.(*topology.Topic), true
	}
	if name == topology.TopicsTopic.Name {
		return topology.TopicsTopic, true
	}
	return topology.Topic{}, false
}

// ByID finds a topic by its id, that of the log of topics included.
func (c *Catalogue) ByID(id uuid.UUID) (topology.Topic, bool) {
	if v, ok := c.byID.Load(id); ok {
		t := v.(*topology.Topic)
		return *t, t.ID == id
	}
	if id == topology.TopicsTopic.ID {
		return topology.TopicsTopic, true
	}
	return topology.Topic{}, false
}

// List is all topics by name, without internal ones.
func (c *Catalogue) List() []topology.Topic {
	list := make([]topology.Topic, 0, c.count.Load())
	c.byName.Range(func(_, v any) bool {
		list = append(list, *v.(*topology.Topic))
		return true
	})
	slices.SortFunc(list, func(a, b topology.Topic) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// EffectiveConfig is the settings of t with the defaults where it says nothing: no field is nil.
func (c *Catalogue) EffectiveConfig(t topology.Topic) topology.TopicConfig {
	return t.Config.Over(c.cfg.Defaults.Config)
}

// EffectiveMaxRecordBytes is the largest size of a record of t.
func (c *Catalogue) EffectiveMaxRecordBytes(t topology.Topic) int {
	if t.Config.MaxRecordBytes != nil {
		return *t.Config.MaxRecordBytes
	}
	return *c.cfg.Defaults.Config.MaxRecordBytes
}

// internalSegmentBytes keeps the logs of topics and positions small: what they no longer need goes by whole segments.
const internalSegmentBytes = 1 << 20

// Policy is how the logs of a topic, or of its positions, are kept; false for an id that is unknown or deleted. The logs
// of topics and positions have no bound of age or bytes.
func (c *Catalogue) Policy(id uuid.UUID) (data.Policy, bool) {
	v, ok := c.byID.Load(id)
	if !ok {
		return data.Policy{SegmentBytes: internalSegmentBytes}, id == topology.TopicsTopic.ID
	}
	t := v.(*topology.Topic)
	if t.ID != id {
		return data.Policy{SegmentBytes: internalSegmentBytes}, true
	}
	e := c.EffectiveConfig(*t)
	return data.Policy{
		RetentionAge:   milliseconds(*e.RetentionMS),
		RetentionBytes: *e.RetentionBytes,
		SegmentBytes:   *e.SegmentBytes,
		SegmentAge:     milliseconds(*e.SegmentMS),
	}, true
}

func milliseconds(ms int64) time.Duration {
	if ms < 0 {
		return 0 // no bound
	}
	return time.Duration(ms) * time.Millisecond
}

// Run drops what is left of deleted topics, until ctx ends.
func (c *Catalogue) Run(ctx context.Context) error {
	tick := time.NewTicker(c.cfg.SweepInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.sweep()
		}
	}
}

// of is the partition of the log that a name belongs to (T1).
func (c *Catalogue) of(name string) *partition {
	return c.partitions[topology.TopicsTopic.PartitionOf(nameToken(name))]
}

func (p *partition) lock(ctx context.Context) error {
	select {
	case p.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for another change of %s: %w: %w", p.log(), topology.ErrUnavailable, ctx.Err())
	}
}

func (p *partition) unlock() { <-p.sem }

func (p *partition) log() topology.LogID { return topology.TopicsTopic.Log(p.id) }
