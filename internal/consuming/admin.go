package consuming

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// Groups lists the groups that have members or stored positions, sorted by name. Where stored positions cannot be read,
// which is logged, it lists what has members.
func (s *Service) Groups(ctx context.Context) []topology.GroupSummary {
	stored, err := s.storedPositions(ctx, "")
	if err != nil {
		s.log.Error().Err(err).Msg("the list of groups lacks those without members")
	}
	type seen struct {
		topics  map[string]bool
		members int
		lag     int64
	}
	groups := map[string]*seen{}
	of := func(name string) *seen {
		if groups[name] == nil {
			groups[name] = &seen{topics: map[string]bool{}}
		}
		return groups[name]
	}
	sizes := map[uuid.UUID]int64{}
	for _, p := range stored {
		g := of(p.group)
		if !g.topics[p.topic.Name] { // on partitions without a stored position it is at the beginning
			g.topics[p.topic.Name] = true
			g.lag += s.records(p.topic, sizes)
		}
		info := s.cfg.Logs.Info(p.topic.Log(p.partition))
		g.lag += lag(info, p.offset) - lag(info, 0)
	}
	for _, live := range s.liveGroups() {
		g := of(live.name)
		live.mu.Lock()
		g.members = len(live.members)
		for name := range live.subs {
			g.topics[name] = true
		}
		live.mu.Unlock()
	}
	list := make([]topology.GroupSummary, 0, len(groups))
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		g := groups[name]
		list = append(list, topology.GroupSummary{
			Name: name, Members: g.members, Topics: emptyNotNil(slices.Sorted(maps.Keys(g.topics))), Lag: max(0, g.lag),
		})
	}
	return list
}

// records counts the records of a topic, once for all who ask with the same known.
func (s *Service) records(t topology.Topic, known map[uuid.UUID]int64) int64 {
	n, ok := known[t.ID]
	if !ok {
		for p := range topology.Partition(t.Partitions) {
			n += lag(s.cfg.Logs.Info(t.Log(p)), 0)
		}
		known[t.ID] = n
	}
	return n
}

// Group describes a group: its members, and where it stands on each partition of the topics that it has positions on or
// members for. ok is false when it has neither. Positions that cannot be read, which is logged, are left out.
func (s *Service) Group(ctx context.Context, name string) (_ topology.GroupDetail, ok bool) {
	stored, err := s.storedPositions(ctx, name)
	if err != nil {
		s.log.Error().Err(err).Str("group", name).Msg("the description of a group lacks its positions")
	}
	v := groupView{s: s, at: map[topology.LogID]position{}, topics: map[string]topology.Topic{}, positioned: map[string]bool{}}
	for _, p := range stored {
		v.at[p.topic.Log(p.partition)] = p.position
		v.topics[p.topic.Name] = p.topic
		v.positioned[p.topic.Name] = true
	}
	detail := topology.GroupDetail{Name: name, Members: []topology.GroupMember{}}
	s.mu.RLock()
	live := s.groups[name]
	s.mu.RUnlock()
	if live == nil && len(stored) == 0 {
		return detail, false
	}
	if live != nil {
		v.live(live, &detail)
	}
	detail.Partitions = v.partitions()
	return detail, true
}

// groupView gathers what Group shows.
type groupView struct {
	s          *Service
	at         map[topology.LogID]position // stored positions
	topics     map[string]topology.Topic
	positioned map[string]bool // topics with a stored position: the others of their partitions are at the beginning
	owners     map[topology.LogID]string
}

// live adds the members of g and who owns what.
func (v *groupView) live(g *group, detail *topology.GroupDetail) {
	g.mu.Lock()
	defer g.mu.Unlock()
	subs := g.sortedSubs()
	for _, sub := range subs {
		v.s.reassign(sub)
	}
	detail.Epoch = g.epoch
	v.owners = map[topology.LogID]string{}
	count := map[string]int{}
	for _, sub := range subs {
		if !sub.bound {
			continue
		}
		v.topics[sub.name] = sub.topic
		for p := range topology.Partition(sub.topic.Partitions) {
			if owner := sub.owners.of(p); owner != "" {
				v.owners[sub.topic.Log(p)] = owner
				count[owner]++
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(g.members)) {
		m := g.members[id]
		view := topology.GroupMember{ID: id, Topics: slices.Sorted(maps.Keys(m.topics)), Partitions: count[id]}
		for _, ses := range m.sessions {
			if view.Registered.IsZero() || ses.registered.Before(view.Registered) {
				view.Registered = ses.registered
			}
			if ses.lastSeen.After(view.LastSeen) {
				view.LastSeen = ses.lastSeen
			}
		}
		detail.Members = append(detail.Members, view)
	}
}

func (v *groupView) partitions() []topology.GroupPartition {
	list := []topology.GroupPartition{}
	for _, name := range slices.Sorted(maps.Keys(v.topics)) {
		t := v.topics[name]
		for p := range topology.Partition(t.Partitions) {
			log := t.Log(p)
			info := v.s.cfg.Logs.Info(log)
			view := topology.GroupPartition{
				Topic: name, Partition: p, Token: t.PartitionToken(p), Start: info.Start, End: info.HighWatermark, Owner: v.owners[log],
			}
			pos, stored := v.at[log]
			if stored || v.positioned[name] {
				view.Committed = &pos.offset
				view.Lag = lag(info, pos.offset)
			}
			if stored {
				updated := time.UnixMilli(pos.timestamp).UTC()
				view.Updated = &updated
			}
			list = append(list, view)
		}
	}
	return list
}

// lag counts the records from a position to the end.
func lag(log data.LogInfo, at topology.Offset) int64 {
	return max(0, int64(log.HighWatermark-max(at, log.Start)))
}

// Seek moves the positions of a group on a topic, and returns once that is committed.
//
// Errors: topology.ErrInvalid, topology.ErrUnknownTopic, topology.ErrConflict while the group has live members and the
// request does not force it, and those of the Appender.
func (s *Service) Seek(ctx context.Context, group string, r topology.SeekRequest) ([]topology.PositionChange, error) {
	t, partitions, err := s.checkSeek(group, &r)
	if err != nil {
		return nil, err
	}
	tp := s.positions.of(t)
	list, err := s.coverAll(tp)
	if err != nil {
		return nil, err
	}
	led := make(map[topology.Partition]bool, len(list))
	for _, p := range list {
		led[p] = true
	}
	if r.Partition != nil && !slices.ContainsFunc(list, func(p topology.Partition) bool {
		_, ok := s.positions.position(tp, p, group)
		return ok
	}) {
		return nil, fmt.Errorf("%w seek: group %q has no positions on topic %q yet; allowed is a seek on all partitions", topology.ErrInvalid, group, t.Name)
	}
	changes := make([]topology.PositionChange, 0, len(partitions))
	for _, p := range partitions {
		if !led[p] {
			return nil, fmt.Errorf("seek on %s/%d: %w", t.Name, p, topology.ErrNotLeader)
		}
		to, err := s.seekTarget(t.Log(p), &r)
		if err != nil {
			return nil, fmt.Errorf("seek on %s/%d: %w", t.Name, p, err)
		}
		changes = append(changes, topology.PositionChange{Topic: t.Name, Partition: p, To: to})
	}
	if err := s.moveAll(ctx, group, tp, changes, r.Force); err != nil {
		return nil, err
	}
	return changes, nil
}

// checkSeek checks all of a request that the logs do not have to say, and lists the partitions it is about.
func (s *Service) checkSeek(group string, r *topology.SeekRequest) (topology.Topic, []topology.Partition, error) {
	if err := topology.CheckName("group", group); err != nil {
		return topology.Topic{}, nil, err
	}
	if err := topology.CheckTopicName(r.Topic, false); err != nil {
		return topology.Topic{}, nil, err
	}
	switch r.To {
	case topology.SeekEarliest, topology.SeekLatest:
	case topology.SeekOffset:
		if r.Offset == nil || *r.Offset < 0 {
			return topology.Topic{}, nil, fmt.Errorf(`%w seek: to "offset" needs an "offset" of 0 or more`, topology.ErrInvalid)
		}
	case topology.SeekTime:
		if _, err := httpd.ParseTime(r.Time); err != nil {
			return topology.Topic{}, nil, fmt.Errorf(`seek to "time": %w`, err)
		}
	default:
		return topology.Topic{}, nil, fmt.Errorf(`%w seek: "to" is %q; allowed are "earliest", "latest", "offset", "time"`, topology.ErrInvalid, r.To)
	}
	t, ok := s.cfg.Topics.Lookup(r.Topic)
	if !ok {
		return t, nil, fmt.Errorf("seek: %w: %q", topology.ErrUnknownTopic, r.Topic)
	}
	if r.Partition == nil {
		all := make([]topology.Partition, t.Partitions)
		for p := range all {
			all[p] = topology.Partition(p)
		}
		return t, all, nil
	}
	if *r.Partition < 0 || int(*r.Partition) >= t.Partitions {
		return t, nil, fmt.Errorf("%w partition: %d; topic %q has 0 to %d", topology.ErrInvalid, *r.Partition, r.Topic, t.Partitions-1)
	}
	return t, []topology.Partition{*r.Partition}, nil
}

// seekTarget is where a seek goes on a log. An offset is kept within the log, unless the seek names the partition: then
// one outside is refused.
func (s *Service) seekTarget(log topology.LogID, r *topology.SeekRequest) (topology.Offset, error) {
	info := s.cfg.Logs.Info(log)
	switch r.To {
	case topology.SeekLatest:
		return info.HighWatermark, nil
	case topology.SeekOffset:
		at := min(max(*r.Offset, info.Start), info.HighWatermark)
		if at != *r.Offset && r.Partition != nil {
			return 0, fmt.Errorf("%w offset: %d; the log has %d to %d", topology.ErrInvalid, *r.Offset, info.Start, info.HighWatermark)
		}
		return at, nil
	case topology.SeekTime:
		when, err := httpd.ParseTime(r.Time)
		if err != nil {
			return 0, err
		}
		if info.HighWatermark == 0 {
			return 0, nil
		}
		at, err := s.cfg.Logs.OffsetForTime(log, when)
		return min(at, info.HighWatermark), err
	}
	return info.Start, nil
}

// moveAll carries out changes, and fills in where the group stood.
func (s *Service) moveAll(ctx context.Context, name string, tp *topicPositions, changes []topology.PositionChange, force bool) error {
	logs, err := s.moveInMemory(name, tp, changes, force)
	if err != nil {
		return err
	}
	return s.positions.flush(ctx, logs)
}

// moveInMemory is the part of moveAll that no member may come in between: one that read the old position before would
// commit over the new one.
func (s *Service) moveInMemory(name string, tp *topicPositions, changes []topology.PositionChange, force bool) ([]*positionLog, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if g := s.groups[name]; g != nil {
		return s.moveLive(g, tp, changes, force)
	}
	return s.moveEach(name, tp, changes, nil), nil
}

// moveLive is moveAll for a group with members: they read on where the seek goes.
func (s *Service) moveLive(g *group, tp *topicPositions, changes []topology.PositionChange, force bool) ([]*positionLog, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.members) > 0 && !force {
		return nil, fmt.Errorf("seek: group %q has %d live members: %w", g.name, len(g.members), topology.ErrConflict)
	}
	sub := g.subs[tp.topic.Name]
	if sub != nil && (!sub.bound || sub.topic.ID != tp.topic.ID) {
		sub = nil
	}
	logs := s.moveEach(g.name, tp, changes, sub)
	g.wakeAll()
	return logs, nil
}

func (s *Service) moveEach(name string, tp *topicPositions, changes []topology.PositionChange, sub *subscription) []*positionLog {
	now := s.cfg.Now().UnixMilli()
	logs := make([]*positionLog, 0, len(changes))
	for i := range changes {
		c := &changes[i]
		if before, ok := s.positions.position(tp, c.Partition, name); ok {
			c.From = &before.offset
		}
		logs = append(logs, s.positions.set(tp, c.Partition, name, change{position: position{offset: c.To, timestamp: now, reason: bySeek}}))
		if sub != nil {
			sub.seek(c.Partition, c.To)
		}
	}
	return logs
}

// seek makes the group read p from offset to on. The caller holds group.mu.
func (sub *subscription) seek(p topology.Partition, to topology.Offset) {
	if c := sub.cursors[p]; c != nil {
		sub.rewind(p, c)
		c.next = to
		sub.commitTo(p, c, to)
	}
	sub.feed.set(p)
}

// DeleteGroup removes all positions of a group, and returns once that is committed.
//
// Errors: topology.ErrConflict while the group has live members, topology.ErrUnknownGroup, and those of the Appender.
func (s *Service) DeleteGroup(ctx context.Context, name string) error {
	stored, err := s.storedPositions(ctx, name)
	if err != nil {
		return err
	}
	for _, p := range stored {
		if _, err := s.positions.ensure(s.positions.of(p.topic), p.partition); err != nil {
			return err
		}
	}
	logs, err := s.forgetPositions(name, stored)
	if err != nil {
		return err
	}
	if len(stored) == 0 {
		return fmt.Errorf("delete group %q: %w", name, topology.ErrUnknownGroup)
	}
	return s.positions.flush(ctx, logs)
}

// forgetPositions removes stored in memory, unless the group has members; none can come meanwhile.
func (s *Service) forgetPositions(name string, stored []storedPosition) ([]*positionLog, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.groups[name] != nil {
		return nil, fmt.Errorf("delete group %q: it has live members: %w", name, topology.ErrConflict)
	}
	logs := make([]*positionLog, 0, len(stored))
	for _, p := range stored {
		logs = append(logs, s.positions.set(s.positions.of(p.topic), p.partition, name, change{gone: true}))
	}
	return logs, nil
}

// storedPosition is one entry of storedPositions.
type storedPosition struct {
	group     string
	topic     topology.Topic
	partition topology.Partition
	position
}

// storedPositions lists the positions of a group, of all groups if name is empty, on topics that exist. It takes the
// views in the local database, brought up to those in memory.
func (s *Service) storedPositions(ctx context.Context, name string) ([]storedPosition, error) {
	if err := s.recoverViews(ctx); err != nil {
		return nil, err
	}
	if err := s.positions.save(); err != nil {
		return nil, err
	}
	var list []storedPosition
	topics := map[uuid.UUID]topology.Topic{}
	err := s.cfg.KV.Scan([]byte(viewPrefix), func(key, value []byte) error {
		log, group, ok := parseViewKey(key)
		if !ok || group == "" || name != "" && group != name {
			return nil
		}
		t, known := topics[log.Topic]
		if !known {
			t, _ = s.cfg.Topics.ByID(log.Topic)
			topics[log.Topic] = t
		}
		if int(log.Partition) >= t.Partitions {
			return nil // of a topic that is gone
		}
		p, err := decodePosition(value)
		if err != nil {
			return fmt.Errorf("%w: key %x: %w", errView, key, err)
		}
		list = append(list, storedPosition{group: group, topic: t, partition: log.Partition, position: p})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list positions: %w", err)
	}
	s.overlay(&list, name)
	return list, nil
}

// overlay puts positions in that are not written yet, as commits of polls for a moment.
func (s *Service) overlay(list *[]storedPosition, name string) {
	s.positions.mu.Lock()
	dirty := slices.Collect(maps.Keys(s.positions.dirty))
	s.positions.mu.Unlock()
	newer := make(map[topology.LogID]bool, len(dirty))
	for _, l := range dirty {
		newer[l.of] = true
	}
	*list = slices.DeleteFunc(*list, func(p storedPosition) bool { return newer[p.topic.Log(p.partition)] })
	for _, l := range dirty {
		t, ok := s.cfg.Topics.ByID(l.of.Topic)
		if !ok {
			continue
		}
		for g, p := range l.groups() {
			if name == "" || g == name {
				*list = append(*list, storedPosition{group: g, topic: t, partition: l.of.Partition, position: p})
			}
		}
	}
	slices.SortFunc(*list, func(a, b storedPosition) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.topic.Name, b.topic.Name), cmp.Compare(a.partition, b.partition))
	})
}

// recoverViews loads, once in a run, the positions that the local database does not know: those that were committed shortly
// before a crash, on partitions that nobody has asked for since.
func (s *Service) recoverViews(ctx context.Context) error {
	if s.recovered.Load() {
		return nil
	}
	applied := map[topology.LogID]topology.Offset{}
	err := s.cfg.KV.Scan([]byte(viewPrefix), func(key, value []byte) error {
		if log, group, ok := parseViewKey(key); ok && group == "" {
			var ok bool
			if applied[log], ok = parseApplied(value); !ok {
				return fmt.Errorf("%w: key %x", errView, key)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list positions: %w", err)
	}
	for _, t := range s.cfg.Topics.List() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		positions := topology.PositionsTopic(t.ID)
		for p := range topology.Partition(t.Partitions) {
			end := s.cfg.Logs.Info(topology.LogID{Topic: positions, Partition: p}).HighWatermark
			if at, ok := applied[t.Log(p)]; end == 0 || ok && at == end {
				continue
			}
			if _, err := s.positions.ensure(s.positions.of(t), p); err != nil && !errors.Is(err, topology.ErrNotLeader) {
				return err
			}
		}
	}
	s.recovered.Store(true)
	return nil
}

func emptyNotNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
