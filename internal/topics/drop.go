package topics

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// afterlife is how long data of a deleted topic is looked for: longer than any produce request lives.
const afterlife = 10 * time.Minute

// dropState is a topic whose data goes.
type dropState struct {
	topic   topology.Topic
	since   time.Time
	told    bool // the OnDelete functions were called
	dropped bool // at least once without error
	busy    bool // somebody drops it now
}

// startDrop notes that the data of t must go. It is called with the partition of t held, so it only takes a note.
func (c *Catalogue) startDrop(t topology.Topic) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropping[t.ID] == nil {
		c.dropping[t.ID] = &dropState{topic: t, since: c.cfg.Now()}
	}
}

// dropPending drops the data of what was deleted and not dropped yet.
func (c *Catalogue) dropPending() {
	for {
		d, hooks := c.nextPending()
		if d == nil {
			return
		}
		for _, fn := range hooks {
			fn(d.topic)
		}
		err := c.drop(d.topic.ID)
		c.mu.Lock()
		d.busy, d.told, d.dropped = false, true, err == nil
		c.mu.Unlock()
		if err != nil {
			c.log.Warn().Err(err).Str("topic", d.topic.Name).Stringer("id", d.topic.ID).Msg("data of a deleted topic stays for now")
			return // sweep tries again
		}
	}
}

func (c *Catalogue) nextPending() (*dropState, []func(topology.Topic)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.dropping {
		if !d.dropped && !d.busy {
			d.busy = true
			if d.told {
				return d, nil
			}
			return d, c.onDelete
		}
	}
	return nil, nil
}

// drop removes the logs of a topic and of its positions.
func (c *Catalogue) drop(id uuid.UUID) error {
	if err := c.cfg.Data.DropTopic(id); err != nil {
		return fmt.Errorf("drop the data of topic %s: %w", id, err)
	}
	if err := c.cfg.Data.DropTopic(topology.PositionsTopic(id)); err != nil {
		return fmt.Errorf("drop the positions of topic %s: %w", id, err)
	}
	return nil
}

// sweep drops again what late writers brought back, retries what failed, and forgets what was deleted long ago.
func (c *Catalogue) sweep() {
	c.mu.Lock()
	idle := len(c.dropping) == 0
	c.mu.Unlock()
	if idle {
		return
	}
	there := c.withData()
	now := c.cfg.Now()
	c.mu.Lock()
	for id, d := range c.dropping {
		back := there[id] || there[topology.PositionsTopic(id)]
		switch {
		case back && d.dropped && !d.busy:
			d.dropped = false
		case !back && d.dropped && now.Sub(d.since) > afterlife:
			delete(c.dropping, id)
		}
	}
	c.mu.Unlock()
	c.dropPending()
}

func (c *Catalogue) withData() map[uuid.UUID]bool {
	there := map[uuid.UUID]bool{}
	for _, id := range c.cfg.Data.Topics() {
		there[id] = true
	}
	return there
}

// dropDead drops data of topics that were deleted at any time (T3): a crash may have come between the record and the
// data. Data of ids that were never heard of is left alone and reported.
func (c *Catalogue) dropDead() error {
	there := c.withData()
	err := c.cfg.KV.Scan([]byte(deadPrefix), func(key, value []byte) error {
		t, err := decodeTopic(value)
		if err != nil {
			return fmt.Errorf("record of the deleted topic %x: %w", key[len(deadPrefix):], err)
		}
		positions := topology.PositionsTopic(t.ID)
		if there[t.ID] || there[positions] {
			c.startDrop(t)
		}
		delete(there, t.ID)
		delete(there, positions)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the deleted topics: %w", err)
	}
	for id := range there {
		if _, ok := c.Policy(id); !ok {
			c.log.Warn().Stringer("id", id).Msg("data of a topic that nobody knows is left alone")
		}
	}
	c.dropPending()
	return nil
}
