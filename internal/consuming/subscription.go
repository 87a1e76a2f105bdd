package consuming

import (
	"sync"
	"sync/atomic"

	"github.com/skeinmq/skein/internal/topology"
)

// subscription is what a group has of one topic: who of its members owns which partition, and how far each was read.
// It is bound once the topic exists and the positions of the group on it are decided. Before that nothing is delivered.
type subscription struct {
	group   *group
	name    string
	binding sync.Mutex // held while the subscription is bound; taken before group.mu

	// Under group.mu.
	bound     bool
	topic     topology.Topic // this and the next two hold while bound
	positions *topicPositions
	feed      *feed

	fresh   bool   // the topic did not exist when the group registered for it, so all of it is new to the group
	policy  policy // of the first member that registered
	open    []uint64
	cursors map[topology.Partition]*cursor
	members int // that registered for it
	owners  owners
}

// feed is what the store tells a subscription about the topic it is bound to.
type feed struct {
	sub   *subscription
	ready []atomic.Uint64 // bit p: partition p may have records to deliver. Set with or without a lock
}

// cursor is how far a group has come on a partition. The group reads at next; what lies in [committed, next) is open at
// origin. Under group.mu.
type cursor struct {
	committed topology.Offset // <= next
	next      topology.Offset
	origin    *session         // that read last; nil when it is gone, or nobody did
	turn      uint64           // grows whenever open records are given back or change hands: older deliveries are void
	version   topology.Version // generation under which it was made
	stored    bool             // the group has a stored position here
}

func newSubscription(g *group, name string, p policy) *subscription {
	return &subscription{group: g, name: name, policy: p, owners: owners{changes: 1}}
}

// bind makes sub deliver t. The caller holds group.mu, has the feed listen to the store next, and then
// notes which partitions have records.
func (sub *subscription) bind(t topology.Topic, tp *topicPositions) {
	words := (t.Partitions + 63) / 64
	sub.topic, sub.positions = t, tp
	sub.feed = &feed{sub: sub, ready: make([]atomic.Uint64, words)}
	sub.open = make([]uint64, words)
	sub.cursors = map[topology.Partition]*cursor{}
	sub.owners.reset()
	sub.bound = true
	sub.fresh = false
}

func (f *feed) isSet(p topology.Partition) bool { return f.ready[p/64].Load()&(1<<(p%64)) != 0 }

// unbind takes sub off its topic, which is gone: a topic of that name that comes later is new to the group. The caller
// holds group.mu.
func (sub *subscription) unbind() {
	sub.bound = false
	sub.fresh = true
	sub.feed, sub.cursors = nil, nil
	sub.owners.reset()
}

func (f *feed) set(p topology.Partition) { f.ready[p/64].Or(1 << (p % 64)) }

func (f *feed) clear(p topology.Partition) { f.ready[p/64].And(^(uint64(1) << (p % 64))) }

// cursor is that of p, made from the stored position if the group did not read p yet. The caller holds group.mu, sub is
// bound and p covered under version.
func (sub *subscription) cursor(s *positions, p topology.Partition, version topology.Version) *cursor {
	c := sub.cursors[p]
	if c != nil && c.version == version {
		return c
	}
	pos, ok := s.position(sub.positions, p, sub.group.name)
	turn := uint64(0)
	if c != nil {
		turn = c.turn + 1
	}
	// Without a position the group stands at the beginning: see Service.bind.
	c = &cursor{committed: pos.offset, next: pos.offset, stored: ok, version: version, turn: turn}
	sub.cursors[p] = c
	sub.open[p/64] &^= 1 << (p % 64)
	return c
}

// rewind gives back what is open at p. The caller holds group.mu.
func (sub *subscription) rewind(p topology.Partition, c *cursor) {
	c.turn++
	c.origin = nil
	if c.next != c.committed {
		c.next = c.committed
		sub.feed.set(p)
	}
	sub.open[p/64] &^= 1 << (p % 64)
}

// moveTo notes that the group reads on at next. The caller holds group.mu.
func (sub *subscription) moveTo(p topology.Partition, c *cursor, next topology.Offset) {
	c.next = next
	if next != c.committed {
		sub.open[p/64] |= 1 << (p % 64)
	} else {
		sub.open[p/64] &^= 1 << (p % 64)
	}
}

// commitTo moves the committed position to offset, at most next. The caller holds group.mu.
func (sub *subscription) commitTo(p topology.Partition, c *cursor, offset topology.Offset) {
	c.committed = offset
	c.stored = true
	sub.moveTo(p, c, c.next)
}

// wakeOwner lets the polls of the owner of p look again, but for that of by. The caller holds group.mu.
func (sub *subscription) wakeOwner(p topology.Partition, by *session) {
	if !sub.bound || sub.owners.stale() {
		sub.group.wakeAll()
		return
	}
	if m := sub.group.members[sub.owners.of(p)]; m != nil {
		for _, ses := range m.sessions {
			if ses != by {
				ses.signal()
			}
		}
	}
}

// advanced is told by the store that p has new records. It takes a lock only when somebody waits.
func (f *feed) advanced(p topology.Partition) {
	f.set(p)
	sub, g := f.sub, f.sub.group
	if g.waiting.Load() == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if sub.owners.stale() || sub.feed != f {
		g.wakeAll()
		return
	}
	if m := g.members[sub.owners.of(p)]; m != nil {
		for _, ses := range m.sessions {
			if ses.sleeping {
				ses.signal()
			}
		}
	}
}
