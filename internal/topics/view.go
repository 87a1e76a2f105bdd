package topics

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Keys of the view in localdb.
//
//	t/v/<name>             the live topic of that name, JSON
//	t/d/<id:16>            the record that deleted the topic of that id, JSON
//	t/a/<partition:2>      first offset of that partition of the log that is not applied:8
//
// Integers are big-endian.
const (
	livePrefix    = "t/v/"
	deadPrefix    = "t/d/"
	appliedPrefix = "t/a/"
)

func liveKey(name string) []byte { return append([]byte(livePrefix), name...) }

func deadKey(id uuid.UUID) []byte { return append([]byte(deadPrefix), id[:]...) }

func appliedKey(p topology.Partition) []byte {
	return binary.BigEndian.AppendUint16([]byte(appliedPrefix), uint16(p))
}

func nameToken(name string) token.Token { return token.OfString(name) }

// decodeTopic reads the value of a record of the log or of the view. ErrInvalid if it is no topic.
func decodeTopic(value []byte) (topology.Topic, error) {
	var t topology.Topic
	if err := json.Unmarshal(value, &t); err != nil {
		return t, fmt.Errorf("%w record of a topic: %w", topology.ErrInvalid, err)
	}
	if err := topology.CheckTopicName(t.Name, true); err != nil {
		return t, err
	}
	if t.ID == uuid.Nil || t.State != topology.TopicActive && t.State != topology.TopicDeleted {
		return t, fmt.Errorf("%w record of topic %q: id %s, state %q", topology.ErrInvalid, t.Name, t.ID, t.State)
	}
	return t, topology.CheckPartitions(t.Partitions)
}

// effect is what a record does to the view.
type effect int

const (
	keep   effect = iota // nothing
	store                // the topic is made or changed
	remove               // the live topic of the name goes; its id is dead
	bury                 // the id is dead; the live topic of the name, if any, is another one
)

// judge is the rule of the package comment. live is the topic of that name, nil if there is none; dead says that the id
// of next was deleted before.
func judge(live *topology.Topic, dead bool, next topology.Topic) effect {
	switch {
	case dead:
		return keep
	case next.State == topology.TopicDeleted && live != nil && live.ID == next.ID:
		return remove
	case next.State == topology.TopicDeleted:
		return bury
	case live != nil && live.ID != next.ID:
		return keep
	default:
		return store
	}
}

// Load reads the view, applies the tail of the log that it does not hold yet, and drops data of deleted topics. Errors
// are those of localdb; what cannot be read in the log is reported and passed over, since the view may hold it.
func (c *Catalogue) Load(ctx context.Context) error {
	err := c.cfg.KV.Scan([]byte(livePrefix), func(key, value []byte) error {
		t, err := decodeTopic(value)
		if err != nil {
			return fmt.Errorf("view of topic %q: %w", key[len(livePrefix):], err)
		}
		c.setLive(t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the topics: %w", err)
	}
	for _, p := range c.partitions {
		if err := c.loadPartition(ctx, p); err != nil {
			return err
		}
	}
	if err := c.dropDead(); err != nil {
		return err
	}
	c.loaded.Store(true)
	c.log.Info().Int64("topics", c.count.Load()).Msg("topics loaded")
	return nil
}

func (c *Catalogue) loadPartition(ctx context.Context, p *partition) error {
	if err := p.lock(ctx); err != nil {
		return err
	}
	defer p.unlock()
	value, err := c.cfg.KV.Get(appliedKey(p.id))
	if err != nil {
		return fmt.Errorf("read how far %s is applied: %w", p.log(), err)
	}
	if len(value) == 8 {
		p.applied = topology.Offset(binary.BigEndian.Uint64(value))
	}
	info := c.cfg.Log.Info(p.log())
	if p.applied > info.HighWatermark {
		// Only a lost or damaged disk makes this. What the view holds stays: data of its topics may be there.
		c.log.Error().Int32("partition", int32(p.id)).Int64("applied", int64(p.applied)).
			Int64("highWatermark", int64(info.HighWatermark)).Msg("log of topics is shorter than its view")
		p.applied = info.HighWatermark
	}
	return c.catchUp(ctx, p)
}

// catchUp applies what the log holds and the view does not. The caller holds p.
func (c *Catalogue) catchUp(ctx context.Context, p *partition) error {
	var dec recordbatch.Decoder
	for {
		info := c.cfg.Log.Info(p.log())
		if p.applied >= info.HighWatermark {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read %s: %w", p.log(), err)
		}
		if p.applied < info.Start {
			c.lost(p, p.applied, info.Start)
			p.applied = info.Start
			continue
		}
		res, buf, err := c.cfg.Log.Read(p.log(), p.applied, 1<<20, p.buf)
		p.buf = buf
		if err != nil {
			return fmt.Errorf("read %s from %d: %w: %w", p.log(), p.applied, topology.ErrUnavailable, err)
		}
		if err := c.applyRead(p, &dec, res); err != nil {
			return err
		}
		if res.Next <= p.applied && len(res.Chunks) == 0 {
			return fmt.Errorf("read %s from %d below %d: nothing came: %w", p.log(), p.applied, info.HighWatermark, topology.ErrUnavailable)
		}
		p.applied = max(p.applied, res.Next)
	}
}

func (c *Catalogue) applyRead(p *partition, dec *recordbatch.Decoder, res data.ReadResult) error {
	for _, d := range res.Damaged {
		c.lost(p, d.From, d.To)
	}
	for _, chunk := range res.Chunks {
		records, err := dec.Decode(chunk.Bytes)
		if err != nil {
			c.lost(p, chunk.Header.BaseOffset, chunk.Header.Next())
			continue
		}
		for _, r := range records {
			if r.Offset < p.applied {
				continue
			}
			t, err := decodeTopic(r.Value)
			if err != nil {
				c.log.Error().Err(err).Int32("partition", int32(p.id)).Int64("offset", int64(r.Offset)).Msg("record of a topic is passed over")
				continue
			}
			if err := c.apply(p, r.Offset, t); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Catalogue) lost(p *partition, from, to topology.Offset) {
	c.log.Error().Int32("partition", int32(p.id)).Int64("from", int64(from)).Int64("to", int64(to)).
		Msg("records of topics are lost; changes among them are unknown here")
}

// apply takes one record into the view, localdb first. The caller holds p.
func (c *Catalogue) apply(p *partition, at topology.Offset, t topology.Topic) error {
	live := c.live(t.Name)
	dead, err := c.cfg.KV.Get(deadKey(t.ID))
	if err != nil {
		return fmt.Errorf("read whether topic %s is deleted: %w: %w", t.ID, topology.ErrUnavailable, err)
	}
	value, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode topic %q: %w", t.Name, err)
	}
	what := judge(live, dead != nil, t)
	err = c.cfg.KV.Update(false, func(put func(key, value []byte), del func(key []byte)) {
		switch what {
		case store:
			put(liveKey(t.Name), value)
		case remove:
			del(liveKey(t.Name))
			put(deadKey(t.ID), value)
		case bury:
			put(deadKey(t.ID), value)
		}
		put(appliedKey(p.id), binary.BigEndian.AppendUint64(nil, uint64(at+1)))
	})
	if err != nil {
		return fmt.Errorf("store topic %q at offset %d: %w: %w", t.Name, at, topology.ErrUnavailable, err)
	}
	p.applied = at + 1
	switch what {
	case store:
		c.setLive(t)
	case remove:
		c.removeLive(*live)
		c.startDrop(*live)
	case bury:
		c.startDrop(t)
	}
	return nil
}

func (c *Catalogue) live(name string) *topology.Topic {
	if v, ok := c.byName.Load(name); ok {
		return v.(*topology.Topic)
	}
	return nil
}

// setLive makes t visible, by id first: who finds it by name finds it by id.
func (c *Catalogue) setLive(t topology.Topic) {
	c.byID.Store(t.ID, &t)
	c.byID.Store(topology.PositionsTopic(t.ID), &t)
	if _, had := c.byName.Swap(t.Name, &t); !had {
		c.count.Add(1)
	}
}

func (c *Catalogue) removeLive(t topology.Topic) {
	if _, had := c.byName.LoadAndDelete(t.Name); had {
		c.count.Add(-1)
	}
	c.byID.Delete(topology.PositionsTopic(t.ID))
	c.byID.Delete(t.ID)
}

var errNotLoaded = errors.New("the topics are not loaded yet")
