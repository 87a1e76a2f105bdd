package topics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// Ensure finds the topic of that name or, where AutoCreate says so, makes it with the defaults (T2). Calls for one name
// at the same time make one topic. Errors: topology.ErrInvalid for a name that may not be, ErrUnknownTopic without
// AutoCreate, and those of Create.
func (c *Catalogue) Ensure(ctx context.Context, name string) (topology.Topic, error) {
	if err := topology.CheckTopicName(name, false); err != nil {
		return topology.Topic{}, err
	}
	if t, ok := c.Lookup(name); ok {
		return t, nil
	}
	if !c.cfg.AutoCreate {
		return topology.Topic{}, fmt.Errorf("%w: %q does not exist, and the setting topic-auto-create is off", topology.ErrUnknownTopic, name)
	}
	t, _, err := c.Create(ctx, name, 0, topology.TopicConfig{})
	return t, err
}

// Create makes a topic; partitions 0 and fields of cfg that are nil mean the defaults. A topic of that name that is
// alike in what was asked for is the answer too, with created false (T2); one that is not is topology.ErrConflict. Other
// errors: ErrInvalid, ErrConflict at MaxTopics, and what the log says (ErrUnavailable, ErrDiskFull, ErrNotLeader,
// ErrOutcomeUnknown, ...); after any of them the same call may be made again.
//
// The change goes on when ctx ends while the record is being written.
func (c *Catalogue) Create(ctx context.Context, name string, partitions int, cfg topology.TopicConfig) (_ topology.Topic, created bool, _ error) {
	if err := c.checkNew(name, partitions, cfg); err != nil {
		return topology.Topic{}, false, err
	}
	var t topology.Topic
	err := c.change(ctx, name, func(live *topology.Topic) (*topology.Topic, error) {
		if live != nil {
			return nil, nil
		}
		if n := c.count.Load(); n >= int64(c.cfg.MaxTopics) {
			return nil, fmt.Errorf("create topic %q: %w: there are %d topics, allowed are %d", name, topology.ErrConflict, n, c.cfg.MaxTopics)
		}
		now := c.now()
		t = topology.Topic{Name: name, ID: uuid.New(), Partitions: partitions, Config: cfg, State: topology.TopicActive, Created: now, Updated: now}
		if partitions == 0 {
			t.Partitions = c.cfg.Defaults.Partitions
		}
		return &t, nil
	})
	if err != nil {
		return topology.Topic{}, false, err
	}
	live, ok := c.Lookup(name)
	switch {
	case !ok:
		return topology.Topic{}, false, fmt.Errorf("create topic %q: it was deleted at the same time: %w", name, topology.ErrUnavailable)
	case live.ID == t.ID:
		c.metrics.changed("create")
		c.log.Info().Str("topic", name).Stringer("id", live.ID).Int("partitions", live.Partitions).Msg("topic created")
		return live, true, nil
	}
	return live, false, c.alike(live, partitions, cfg)
}

func (c *Catalogue) checkNew(name string, partitions int, cfg topology.TopicConfig) error {
	if err := topology.CheckTopicName(name, false); err != nil {
		return err
	}
	if partitions != 0 {
		if err := topology.CheckPartitions(partitions); err != nil {
			return err
		}
	}
	return topology.CheckTopicConfig(cfg, c.cfg.MaxRecordBytes)
}

// alike refuses a creation that asks for something else than live has. What it leaves open is no difference, nor is a
// setting that is the same by default.
func (c *Catalogue) alike(live topology.Topic, partitions int, cfg topology.TopicConfig) error {
	if partitions != 0 && partitions != live.Partitions {
		return fmt.Errorf("%w: topic %q exists with %d partitions, not %d", topology.ErrConflict, live.Name, live.Partitions, partitions)
	}
	has := c.EffectiveConfig(live)
	if cfg.Over(has).Equal(has) {
		return nil
	}
	a, _ := json.Marshal(has)
	b, _ := json.Marshal(cfg)
	return fmt.Errorf("%w: topic %q exists with the settings %s, not %s", topology.ErrConflict, live.Name, a, b)
}

// Update changes settings of a topic and returns it as it is then. Errors: topology.ErrUnknownTopic, ErrInvalid, and
// what the log says.
func (c *Catalogue) Update(ctx context.Context, name string, patch topology.TopicPatch) (topology.Topic, error) {
	var t topology.Topic
	err := c.change(ctx, name, func(live *topology.Topic) (*topology.Topic, error) {
		if live == nil {
			return nil, fmt.Errorf("change %q: %w", name, topology.ErrUnknownTopic)
		}
		t = *live
		t.Config = patch.Apply(live.Config)
		if err := topology.CheckTopicConfig(t.Config, c.cfg.MaxRecordBytes); err != nil {
			return nil, err
		}
		if t.Config.Equal(live.Config) {
			return nil, nil
		}
		t.Updated = c.now()
		return &t, nil
	})
	if err != nil {
		return topology.Topic{}, err
	}
	c.metrics.changed("update")
	c.log.Info().Str("topic", name).Interface("config", t.Config).Msg("topic changed")
	return t, nil
}

// Delete removes a topic, its records and the positions of its groups. When it returns nil the topic is gone and its
// space is free, or soon will be. Errors: topology.ErrUnknownTopic, and what the log says.
func (c *Catalogue) Delete(ctx context.Context, name string) error {
	var t topology.Topic
	err := c.change(ctx, name, func(live *topology.Topic) (*topology.Topic, error) {
		if live == nil {
			return nil, fmt.Errorf("delete %q: %w", name, topology.ErrUnknownTopic)
		}
		t = *live
		t.State, t.Updated = topology.TopicDeleted, c.now()
		return &t, nil
	})
	if err != nil {
		return err
	}
	c.metrics.changed("delete")
	c.log.Info().Str("topic", name).Stringer("id", t.ID).Msg("topic deleted")
	return nil
}

// change lets decide look at the live topic of that name, nil if there is none, and writes the record it returns, if it
// returns one. It holds the partition of the name meanwhile, so changes come one after the other (single flight), each
// on top of all that the log holds.
func (c *Catalogue) change(ctx context.Context, name string, decide func(live *topology.Topic) (*topology.Topic, error)) error {
	if !c.loaded.Load() {
		return fmt.Errorf("%w: %w", topology.ErrUnavailable, errNotLoaded)
	}
	p := c.of(name)
	err := func() error {
		if err := p.lock(ctx); err != nil {
			return err
		}
		defer p.unlock()
		if err := c.catchUp(ctx, p); err != nil {
			return err
		}
		next, err := decide(c.live(name))
		if err != nil || next == nil {
			return err
		}
		return c.write(ctx, p, *next)
	}()
	c.dropPending() // without the partition: it may take a while
	return err
}

// write appends one record and takes it into the view. The caller holds p.
func (c *Catalogue) write(ctx context.Context, p *partition, t topology.Topic) error {
	value, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode topic %q: %w", t.Name, err)
	}
	// A client that goes away must not leave the change half known, and others wait for the same topic.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.AppendTimeout)
	defer cancel()
	at, err := c.cfg.Appender.Append(ctx, p.log(), topology.TopicsTopic.PartitionToken(p.id), []recordbatch.Record{{
		Timestamp: t.Updated.UnixMilli(), Key: []byte(t.Name), Value: value,
	}})
	switch {
	case err == nil:
	case errors.Is(err, topology.ErrOutcomeUnknown):
		return fmt.Errorf("write topic %q: %w", t.Name, err) // the next change finds it, if it is there
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("write topic %q: %w: %w", t.Name, topology.ErrOutcomeUnknown, err)
	default:
		return fmt.Errorf("write topic %q: %w", t.Name, err)
	}
	// From here on the change is made, also when this broker cannot see it: the next one catches up.
	if at == p.applied {
		err = c.apply(p, at, t)
	} else { // a record whose outcome was unknown came in before this one
		err = c.catchUp(ctx, p)
	}
	if err == nil && p.applied <= at {
		err = fmt.Errorf("offset %d of %s is not readable", at, p.log())
	}
	if err != nil {
		return fmt.Errorf("write topic %q: %w: %w", t.Name, topology.ErrOutcomeUnknown, err)
	}
	return nil
}

// now is rounded to what JSON and people need.
func (c *Catalogue) now() time.Time { return c.cfg.Now().UTC().Truncate(time.Millisecond) }
