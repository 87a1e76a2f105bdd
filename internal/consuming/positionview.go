package consuming

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/skeinmq/skein/internal/topology"
)

// The views of positions logs in the local database. Keys:
//
//	p/ | topic id:16 | partition:4                    value: applied:8, the first offset of the positions log not in the view
//	p/ | topic id:16 | partition:4 | name of a group  value: its position, as in the log
//
// The topic is the one consumed, not its positions topic; integers are big-endian. Names of groups are not empty, so the
// first key is that of no group. The entries of a partition and its applied offset change in one transaction. They may
// be behind the log by what one period of saving brings, and are caught up when they are loaded.
const viewPrefix = "p/"

func topicPrefix(topic uuid.UUID) []byte { return append([]byte(viewPrefix), topic[:]...) }

func viewKey(log topology.LogID, group string) []byte {
	key := binary.BigEndian.AppendUint32(topicPrefix(log.Topic), uint32(log.Partition))
	return append(key, group...)
}

// parseViewKey is the inverse of viewKey. It tells whether key is one.
func parseViewKey(key []byte) (log topology.LogID, group string, ok bool) {
	const head = len(viewPrefix) + 16 + 4
	if len(key) < head || string(key[:len(viewPrefix)]) != viewPrefix {
		return topology.LogID{}, "", false
	}
	copy(log.Topic[:], key[len(viewPrefix):])
	log.Partition = topology.Partition(binary.BigEndian.Uint32(key[head-4:]))
	return log, string(key[head:]), true
}

// parseApplied is the inverse of delta.appliedValue.
func parseApplied(value []byte) (topology.Offset, bool) {
	if len(value) != 8 || value[0]&0x80 != 0 {
		return 0, false
	}
	return topology.Offset(binary.BigEndian.Uint64(value)), true
}

var errView = errors.New("corrupt view of positions in the local database")

// load builds the view of partition p from the local database and the rest of the log. It is nil when there is no
// positions log. A view that reaches beyond the log or ends before the log begins is not used: the log alone says it
// all, since it begins with a snapshot or at 0.
func (s *positions) load(tp *topicPositions, p topology.Partition) (*positionLog, error) {
	of := tp.topic.Log(p)
	info := s.logs.Info(of.Positions())
	if info.HighWatermark == 0 {
		return nil, nil
	}
	v, err := s.leadership.Lead(tp.topic.PartitionToken(p))
	if err != nil {
		return nil, err
	}
	l := newPositionLog(tp.topic, p, v)
	if err := s.readView(l); err != nil {
		return nil, err
	}
	if l.saved < info.Start || l.saved > info.HighWatermark {
		for g := range l.view { // so that the next save removes those that the log does not name
			l.apply(g, change{gone: true})
		}
		l.applied = info.Start
	}
	if err := s.replay(l, info.HighWatermark); err != nil {
		return nil, err
	}
	if l.applied != l.saved {
		s.mu.Lock()
		s.unsaved[l] = struct{}{}
		s.mu.Unlock()
	}
	return l, nil
}

// readView fills l from the local database.
func (s *positions) readView(l *positionLog) error {
	return s.kv.Scan(viewKey(l.of, ""), func(key, value []byte) error {
		log, group, ok := parseViewKey(key)
		switch {
		case !ok || log != l.of:
			return fmt.Errorf("%w: key %x", errView, key)
		case group == "":
			if l.saved, ok = parseApplied(value); !ok {
				return fmt.Errorf("%w: applied offset of %x", errView, key)
			}
			l.applied = l.saved
			return nil
		}
		p, err := decodePosition(value)
		if err != nil {
			return fmt.Errorf("%w: key %x: %w", errView, key, err)
		}
		l.view[group] = p
		return nil
	})
}

// save brings the local database up to the views in memory. Nothing is synchronous, since the logs have it all.
func (s *positions) save() error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	logs := slices.Collect(maps.Keys(s.unsaved))
	clear(s.unsaved)
	s.mu.Unlock()
	t := transaction{kv: s.kv}
	for _, l := range logs {
		if _, ok := s.topics.ByID(l.of.Topic); !ok {
			continue // it was forgotten, or will be
		}
		if d, ok := l.takeDelta(); ok {
			t.add(d)
		}
	}
	t.commit()
	if t.err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range logs {
		s.unsaved[l] = struct{}{}
	}
	return fmt.Errorf("save the views of positions: %w", t.err)
}

// Bounds of one transaction, well below what the local database takes at once.
const (
	transactionKeys  = 400
	transactionBytes = 64 << 10
)

// transaction gathers deltas until they are worth a transaction. After an error it does nothing more.
type transaction struct {
	kv     KV
	deltas []delta
	keys   int
	bytes  int
	err    error
}

func (t *transaction) add(d delta) {
	if d.bytes > transactionBytes || len(d.changes) > transactionKeys {
		t.addLarge(d)
		return
	}
	if t.keys+len(d.changes)+1 > transactionKeys || t.bytes+d.bytes > transactionBytes {
		t.commit()
	}
	t.deltas = append(t.deltas, d)
	t.keys += len(d.changes) + 1
	t.bytes += d.bytes
}

func (t *transaction) commit() {
	if t.err == nil && len(t.deltas) > 0 {
		t.err = t.kv.Update(false, func(put func(key, value []byte), del func(key []byte)) {
			for _, d := range t.deltas {
				for g, c := range d.changes {
					d.store(g, c, put, del)
				}
				put(viewKey(d.log.of, ""), d.appliedValue())
			}
		})
	}
	for _, d := range t.deltas {
		d.log.savedDelta(d, t.err == nil)
	}
	t.deltas, t.keys, t.bytes = t.deltas[:0], 0, 0
}

// addLarge stores a delta that is too large for one transaction: the view counts as absent in the meantime, so that a
// crash in between leaves it to be built from the log.
func (t *transaction) addLarge(d delta) {
	t.commit()
	update := func(fn func(put func(key, value []byte), del func(key []byte))) {
		if t.err == nil {
			t.err = t.kv.Update(false, fn)
		}
	}
	update(func(_ func(key, value []byte), del func(key []byte)) { del(viewKey(d.log.of, "")) })
	const part = transactionBytes / maxEntryBytes
	for groups := range slices.Chunk(slices.Sorted(maps.Keys(d.changes)), part) {
		update(func(put func(key, value []byte), del func(key []byte)) {
			for _, g := range groups {
				d.store(g, d.changes[g], put, del)
			}
		})
	}
	update(func(put func(key, value []byte), _ func(key []byte)) { put(viewKey(d.log.of, ""), d.appliedValue()) })
	d.log.savedDelta(d, t.err == nil)
}

// entryOverhead is about what an entry takes besides the names of the group and the member; maxEntryBytes is the most
// with them.
const (
	entryOverhead = 96
	maxEntryBytes = entryOverhead + 2*255
)

// delta is what the local database lacks of a view.
type delta struct {
	log     *positionLog
	changes map[string]change
	applied topology.Offset
	bytes   int // about what the changes take
}

func (d delta) appliedValue() []byte { return binary.BigEndian.AppendUint64(nil, uint64(d.applied)) }

func (d delta) store(group string, c change, put func(key, value []byte), del func(key []byte)) {
	if c.gone {
		del(viewKey(d.log.of, group))
	} else {
		put(viewKey(d.log.of, group), appendPosition(nil, c.position))
	}
}

func (l *positionLog) takeDelta() (delta, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired != nil || l.applied == l.saved && len(l.unsaved) == 0 {
		return delta{}, false
	}
	d := delta{log: l, changes: make(map[string]change, len(l.unsaved)), applied: l.applied}
	for g := range l.unsaved {
		p, ok := l.view[g]
		d.changes[g] = change{position: p, gone: !ok}
		d.bytes += len(g) + len(p.member) + entryOverhead
	}
	l.unsaved = nil
	return d, true
}

func (l *positionLog) savedDelta(d delta, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ok {
		l.saved = d.applied
		return
	}
	if l.unsaved == nil {
		l.unsaved = map[string]struct{}{}
	}
	for g := range d.changes {
		l.unsaved[g] = struct{}{}
	}
}

// deleteView removes all entries below prefix.
func (s *positions) deleteView(prefix []byte) error {
	var keys [][]byte
	err := s.kv.Scan(prefix, func(key, _ []byte) error {
		keys = append(keys, slices.Clone(key))
		return nil
	})
	if err != nil {
		return fmt.Errorf("find the positions of a deleted topic: %w", err)
	}
	for part := range slices.Chunk(keys, 1000) {
		err := s.kv.Update(false, func(_ func(key, value []byte), del func(key []byte)) {
			for _, k := range part {
				del(k)
			}
		})
		if err != nil {
			return fmt.Errorf("remove the positions of a deleted topic: %w", err)
		}
	}
	return nil
}

// snapshots writes the positions of all groups again where the log has grown, and lets the log start there. The
// snapshot consists of ordinary records, so a crash between the steps leaves a log that means the same.
func (s *positions) snapshots(ctx context.Context) {
	s.mu.Lock()
	logs := make([]*positionLog, 0, len(s.grown))
	for l := range s.grown {
		logs = append(logs, l)
	}
	clear(s.grown)
	s.mu.Unlock()
	for _, l := range logs {
		if ctx.Err() != nil {
			return
		}
		if err := s.write(ctx, l, true); err != nil && !isGone(err) {
			s.log.Warn().Err(err).Msg("no snapshot of positions now; the next commits will ask again")
		}
	}
}

// moveStart lets the positions log begin at its snapshot, which is committed (P9).
func (s *positions) moveStart(l *positionLog, base topology.Offset) {
	if err := s.logs.SetStart(l.id, base); err != nil && !errors.Is(err, topology.ErrUnknownTopic) {
		s.log.Warn().Err(err).Stringer("topic", l.of.Topic).Int32("partition", int32(l.of.Partition)).Msg("the start of a positions log stays where it is")
		return
	}
	s.metrics.snapshot()
}
