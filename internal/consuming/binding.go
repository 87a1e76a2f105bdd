package consuming

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/skeinmq/skein/internal/topology"
)

// bind binds sub to its topic if that exists: it decides where the group begins, waits until that is committed, and
// lets sub deliver. It does nothing when sub is bound or the topic does not exist; then sub.fresh is set. It waits for
// disk and log, so the caller holds no lock.
//
// Where a group begins on a partition without a stored position:
//
//   - when the group has a position on any other partition of the topic, or the topic came to exist after the group
//     registered for it: at the beginning. When the group met the topic, this partition was empty, or its policy said so.
//   - else the reset policy decides, once, for all partitions.
//
// What the policy decided is stored where it is not the beginning, and on the first partition in any case. So a position
// that is not stored always means the beginning, and a topic costs one stored position for each group, not one for each
// partition. The first partition is stored last, and its position says that the decision is complete: a crash in between
// leaves positions of registrations only, which do not count as having been there.
func (s *Service) bind(ctx context.Context, sub *subscription) error {
	sub.binding.Lock()
	defer sub.binding.Unlock()
	g := sub.group
	t, exists := s.cfg.Topics.Lookup(sub.name)
	g.mu.Lock()
	ended := g.subs[sub.name] != sub
	done := sub.bound && exists && sub.topic.ID == t.ID
	if !exists && !sub.bound {
		sub.fresh = true
	}
	fresh, pol := sub.fresh || sub.bound, sub.policy // bound to a topic that is gone: the new one is fresh
	g.mu.Unlock()
	if done || !exists || ended {
		return nil
	}
	tp := s.positions.of(t)
	led, err := s.coverAll(tp)
	if err != nil {
		return err
	}
	if err := s.begin(ctx, g.name, tp, led, pol, fresh); err != nil {
		return fmt.Errorf("decide where group %q begins on topic %q: %w", g.name, t.Name, err)
	}
	s.install(sub, t, tp)
	return nil
}

// bindWidth bounds how many subscriptions of a registration are bound at the same time. Each may wait for a flush of the
// disk, which they share.
const bindWidth = 32

// bindEach binds subs, and returns the error of one that cannot be.
func (s *Service) bindEach(ctx context.Context, subs []*subscription) error {
	if len(subs) == 1 {
		return s.bind(ctx, subs[0])
	}
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Pointer[error]
	)
	for range min(len(subs), bindWidth) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(subs) && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := s.bind(ctx, subs[i]); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// coverAll loads the positions on all partitions of a topic that this broker leads, and lists those.
func (s *Service) coverAll(tp *topicPositions) ([]topology.Partition, error) {
	led := make([]topology.Partition, 0, tp.topic.Partitions)
	for p := range topology.Partition(tp.topic.Partitions) {
		_, err := s.positions.ensure(tp, p)
		switch {
		case err == nil:
			led = append(led, p)
		case !errors.Is(err, topology.ErrNotLeader):
			return nil, err
		}
	}
	return led, nil
}

// begin stores where a group begins on the partitions led here, unless it has been there before.
func (s *Service) begin(ctx context.Context, name string, tp *topicPositions, led []topology.Partition, pol policy, fresh bool) error {
	if len(led) == 0 {
		return nil
	}
	var logs []*positionLog // of what is known, but perhaps not committed since an earlier attempt, and of what is decided now
	known := make(map[topology.Partition]bool, len(led))
	decided := false
	for i, p := range led {
		if pos, ok := s.positions.position(tp, p, name); ok {
			logs, known[p] = append(logs, tp.get(p)), true
			decided = decided || i == 0 || pos.reason != byRegister
		}
	}
	if decided {
		return s.positions.flush(ctx, logs)
	}
	if fresh {
		pol = policyEarliest
	}
	decide := func(p topology.Partition) change {
		info := s.cfg.Logs.Info(tp.topic.Log(p))
		return change{position: position{
			offset: pol.resolve(info), version: info.Version, timestamp: s.cfg.Now().UnixMilli(), reason: byRegister,
		}}
	}
	for _, p := range led[1:] {
		if known[p] || pol == policyEarliest {
			continue
		}
		if c := decide(p); c.offset > 0 {
			logs = append(logs, s.positions.set(tp, p, name, c))
		}
	}
	first := decide(led[0])
	if err := s.positions.flush(ctx, logs); err != nil {
		return err
	}
	return s.positions.flush(ctx, []*positionLog{s.positions.set(tp, led[0], name, first)})
}

// install lets sub deliver t.
func (s *Service) install(sub *subscription, t topology.Topic, tp *topicPositions) {
	g := sub.group
	g.mu.Lock()
	if g.subs[sub.name] != sub {
		g.mu.Unlock()
		return
	}
	if sub.bound {
		s.feeds.remove(sub.topic.ID, sub.feed)
		sub.unbind()
	} else {
		s.unbound.Add(-1)
	}
	sub.bind(t, tp)
	f := sub.feed
	s.feeds.add(t.ID, f)
	g.wakeAll()
	g.mu.Unlock()
	s.look(f, t)
}

// look notes the partitions that have records. Polls find out whether those are new to the group.
func (s *Service) look(f *feed, t topology.Topic) {
	for p := range topology.Partition(t.Partitions) {
		if s.cfg.Logs.Info(t.Log(p)).HighWatermark > 0 {
			f.advanced(p)
		}
	}
}

// LeadershipChanged tells that this broker leads other ranges than before, or the same ones under another version.
// Groups go on where the positions logs say; what they have open is delivered again. A broker that leads everything from
// its start to its end, as a single one does, never calls it.
func (s *Service) LeadershipChanged() {
	for _, sub := range s.allSubs() {
		sub.group.mu.Lock()
		f, t := sub.feed, sub.topic
		sub.group.mu.Unlock()
		if f != nil {
			s.look(f, t)
		}
	}
}

// unbindGone takes sub off a topic that does not exist any more, or not under that id.
func (s *Service) unbindGone(sub *subscription) {
	g := sub.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if !sub.bound || g.subs[sub.name] != sub {
		return
	}
	if t, ok := s.cfg.Topics.Lookup(sub.name); ok && t.ID == sub.topic.ID {
		return
	}
	s.feeds.remove(sub.topic.ID, sub.feed)
	sub.unbind()
	s.unbound.Add(1)
	g.wakeAll()
}

// ended forgets a subscription that no member has any more. The caller holds the group's mu.
func (s *Service) ended(sub *subscription) {
	if sub.bound {
		s.feeds.remove(sub.topic.ID, sub.feed)
		sub.unbind()
	} else {
		s.unbound.Add(-1)
	}
}

// bindNew binds the subscriptions whose topic has come to exist.
func (s *Service) bindNew(ctx context.Context) {
	if s.unbound.Load() == 0 {
		return
	}
	for _, sub := range s.allSubs() {
		if sub.isBound() {
			continue
		}
		if err := s.bind(ctx, sub); err != nil && ctx.Err() == nil {
			s.log.Warn().Err(err).Str("group", sub.group.name).Str("topic", sub.name).Msg("the topic is not delivered yet; trying again")
		}
	}
}

// unbindOld takes subscriptions off topics that do not exist any more.
func (s *Service) unbindOld() {
	for _, sub := range s.allSubs() {
		s.unbindGone(sub)
	}
}

func (s *Service) allSubs() []*subscription {
	var all []*subscription
	for _, g := range s.liveGroups() {
		g.mu.Lock()
		all = append(all, g.sortedSubs()...)
		g.mu.Unlock()
	}
	return all
}

func (sub *subscription) isBound() bool {
	sub.group.mu.Lock()
	defer sub.group.mu.Unlock()
	return sub.bound
}

// feeds finds who wants to know that a log advanced. Reading takes no lock.
type feeds struct {
	mu      sync.Mutex
	byTopic sync.Map // uuid.UUID to *atomic.Pointer[[]*feed]; changed under mu
}

func (fs *feeds) of(topic uuid.UUID) []*feed {
	v, ok := fs.byTopic.Load(topic)
	if !ok {
		return nil
	}
	list := v.(*atomic.Pointer[[]*feed]).Load()
	if list == nil {
		return nil
	}
	return *list
}

func (fs *feeds) add(topic uuid.UUID, f *feed) {
	fs.change(topic, func(list []*feed) []*feed { return append(list, f) })
}

func (fs *feeds) remove(topic uuid.UUID, f *feed) {
	fs.change(topic, func(list []*feed) []*feed { return slices.DeleteFunc(list, func(o *feed) bool { return o == f }) })
}

func (fs *feeds) change(topic uuid.UUID, fn func([]*feed) []*feed) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	v, _ := fs.byTopic.LoadOrStore(topic, new(atomic.Pointer[[]*feed]))
	p := v.(*atomic.Pointer[[]*feed])
	var old []*feed
	if list := p.Load(); list != nil {
		old = slices.Clone(*list)
	}
	list := fn(old)
	if len(list) == 0 {
		fs.byTopic.Delete(topic)
		return
	}
	p.Store(&list)
}
