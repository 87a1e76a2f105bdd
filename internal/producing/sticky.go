package producing

import (
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// topicState is the little that is kept of a topic between rounds.
type topicState struct {
	payoff recordbatch.Payoff

	// Records without a key go to one partition until a chunk of it closes or its round is cut, then to the next led one.
	last   topology.Partition // that was chosen; -1 before the first
	sticky *logBatch
	round  *round // that sticky belongs to
}

// topicStates are the states of the topics used lately.
type topicStates map[uuid.UUID]*topicState

// maxTopicStates bounds the map. A state that is forgotten costs nothing but a try at compression.
const maxTopicStates = 16 << 10

// of is the state of a topic.
func (m topicStates) of(topic uuid.UUID) *topicState {
	s := m[topic]
	if s == nil {
		if len(m) >= maxTopicStates {
			for id := range m {
				delete(m, id)
				if len(m) < maxTopicStates*3/4 {
					break
				}
			}
		}
		s = &topicState{last: -1}
		m[topic] = s
	}
	return s
}

// choose sets the log of w to the partition of t that takes records without a key. Such a request joins the chunk that
// the one before it opened, unless that has closed or its round is cut: then the next partition led here takes over.
// c.mu is held.
func (c *Coalescer) choose(r *round, w *write, t *topology.Topic) error {
	s := c.topics.of(t.ID)
	if s.round != r || s.sticky.full.Load() {
		p, err := c.nextLed(s, t)
		if err != nil {
			return err
		}
		s.last = p
		if s.round != r {
			r.sticky = append(r.sticky, s)
		}
		s.round, s.sticky = r, r.logs[t.Log(p)]
		if s.sticky == nil {
			s.sticky = c.join(r, t.Log(p), t.PartitionToken(p), false)
		}
	}
	w.log, w.start = s.sticky.log, s.sticky.start
	return nil
}

// unstick forgets that r was the round of some topics, so that it is not kept alive. c.mu is held.
func (r *round) unstick() {
	for _, s := range r.sticky {
		if s.round == r {
			s.round, s.sticky = nil, nil
		}
	}
}

// nextLed is the next partition of t after the last one chosen that this broker leads.
func (c *Coalescer) nextLed(s *topicState, t *topology.Topic) (topology.Partition, error) {
	from := int(s.last) + 1
	if s.last < 0 {
		from = rand.IntN(t.Partitions) // brokers and restarts do not all begin at the same one
	}
	var first error
	for i := range t.Partitions {
		p := topology.Partition((from + i) % t.Partitions)
		_, err := c.cfg.Leadership.Lead(t.PartitionToken(p))
		if err == nil {
			return p, nil
		}
		if first == nil {
			first = err
		}
	}
	return 0, fmt.Errorf("no partition of topic %s is led here: %w", t.Name, first)
}
