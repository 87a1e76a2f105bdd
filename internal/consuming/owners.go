package consuming

import (
	"slices"

	"github.com/skeinmq/skein/internal/topology"
)

// owners says who of the members of a group owns which partition of a topic. It is computed when a poll or commit asks
// for it, so members that come in quick succession cost one computation. Under group.mu, which is not held while it is
// computed: that takes long for many members and partitions, and the store waits for the lock.
type owners struct {
	changes   uint64        // grows when members come or go; begins above current
	current   uint64        // changes of the members below
	computing chan struct{} // closed when the computation in flight ends; nil when there is none
	members   []string      // sorted
	byIndex   []int32       // by partition: index in members, or nobody
	masks     map[string][]uint64
}

// changed notes that members came or went. The caller holds group.mu.
func (o *owners) changed() { o.changes++ }

// stale tells whether members came or went since the owners were computed. The caller holds group.mu.
func (o *owners) stale() bool { return o.current != o.changes }

// reset forgets the owners. The caller holds group.mu.
func (o *owners) reset() {
	o.changes++
	o.members, o.byIndex, o.masks = nil, nil, nil
}

// of is the id of the member that owns p, "" when there is none, as of the last computation. The caller holds group.mu.
func (o *owners) of(p topology.Partition) string {
	return ownerOf(o.byIndex, o.members, p)
}

func ownerOf(byIndex []int32, members []string, p topology.Partition) string {
	if int(p) >= len(byIndex) || byIndex[p] == nobody {
		return ""
	}
	return members[byIndex[p]]
}

// mask has the bits of the partitions that member owns; nil when there are none. The caller holds group.mu.
func (o *owners) mask(member string) []uint64 {
	if m, ok := o.masks[member]; ok {
		return m
	}
	i, ok := slices.BinarySearch(o.members, member)
	if !ok {
		return nil
	}
	var mask []uint64
	for p, owner := range o.byIndex {
		if int(owner) != i {
			continue
		}
		if mask == nil {
			mask = make([]uint64, (len(o.byIndex)+63)/64)
		}
		mask[p/64] |= 1 << (p % 64)
	}
	if o.masks == nil {
		o.masks = map[string][]uint64{}
	}
	o.masks[member] = mask
	return mask
}

// reassign brings the owners of sub up to the members that its group has now, or had at some time since. The caller holds
// group.mu and must not rely on what it saw under it before: while owners are computed, by this caller or by another, it
// is released. It returns after two computations at most.
func (s *Service) reassign(sub *subscription) {
	g := sub.group
	for wanted := sub.owners.changes; sub.bound && sub.owners.current < wanted; {
		if c := sub.owners.computing; c != nil {
			g.mu.Unlock()
			<-c
			g.mu.Lock()
			continue
		}
		done := make(chan struct{})
		sub.owners.computing = done
		members, changes := g.subscribers(sub.name), sub.owners.changes
		feed, partitions := sub.feed, sub.topic.Partitions
		byIndex := func() []int32 {
			g.mu.Unlock()
			defer func() {
				g.mu.Lock()
				sub.owners.computing = nil
				close(done)
			}()
			return s.assign(sub.name, partitions, members)
		}()
		if sub.feed == feed { // else it is bound to another topic by now
			moved := sub.install(members, byIndex, changes)
			s.metrics.reassigned(moved)
			s.logMoved(sub, moved)
		}
	}
}

// install takes over owners that were computed, and returns how many partitions went from one member to another. What is
// open at those is given back, so the new owner begins at the committed position. The caller holds group.mu.
func (sub *subscription) install(members []string, byIndex []int32, changes uint64) (moved int) {
	o := &sub.owners
	for p, c := range sub.cursors {
		if ownerOf(byIndex, members, p) != o.of(p) {
			sub.rewind(p, c)
		}
	}
	for p := range topology.Partition(len(o.byIndex)) {
		if before, now := o.of(p), ownerOf(byIndex, members, p); before != "" && now != "" && before != now {
			moved++
		}
	}
	o.members, o.byIndex, o.masks, o.current = members, byIndex, nil, changes
	return moved
}

func (s *Service) logMoved(sub *subscription, moved int) {
	if moved > 0 {
		s.log.Debug().Str("group", sub.group.name).Str("topic", sub.name).Uint64("epoch", sub.group.epoch).
			Int("members", len(sub.owners.members)).Int("moved", moved).Msg("partitions change hands")
	}
}

// reassignOpen is reassign for all that ses has open.
func (s *Service) reassignOpen(ses *session) {
	a := ses.open
	if a == nil {
		return
	}
	for i := range a.deliveries {
		s.reassign(a.deliveries[i].sub)
	}
}
