package consuming

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// positionLog is the view of one positions log, and the changes that are to be written to it. Only the leader of the
// partition writes to the log, one call at a time.
type positionLog struct {
	id    topology.LogID // of the positions log
	of    topology.LogID // the log that it keeps positions of
	start token.Token    // of the partition
	under topology.Version

	mu      sync.Mutex
	retired error               // not nil when it is out of use: the topic or the leadership is gone
	view    map[string]position // by group: a function of the log below applied
	applied topology.Offset     // <= high watermark of the log
	pending map[string]change   // newer than view and current
	seq     uint64              // numbers the changes
	current *attempt            // the write in flight
	unsaved map[string]struct{} // groups whose entry in the local database is older than view
	saved   topology.Offset     // applied as the local database has it; -1 when it has nothing
}

// change is a new position of a group, or its end.
type change struct {
	position
	gone bool // the group has no position any more
}

// attempt is one write of changes to the log.
type attempt struct {
	changes map[string]change
	upto    uint64        // holds the changes numbered up to here
	done    chan struct{} // closed when err is set
	err     error
}

func newPositionLog(t topology.Topic, p topology.Partition, under topology.Version) *positionLog {
	of := t.Log(p)
	return &positionLog{id: of.Positions(), of: of, start: t.PartitionToken(p), under: under, view: map[string]position{}, saved: -1}
}

func (l *positionLog) position(group string) (position, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c, ok := l.pending[group]; ok {
		return c.position, !c.gone
	}
	if l.current != nil {
		if c, ok := l.current.changes[group]; ok {
			return c.position, !c.gone
		}
	}
	p, ok := l.view[group]
	return p, ok
}

// groups lists the groups with a position.
func (l *positionLog) groups() map[string]position {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := maps.Clone(l.view)
	overlay := func(changes map[string]change) {
		for g, c := range changes {
			if c.gone {
				delete(all, g)
			} else {
				all[g] = c.position
			}
		}
	}
	if l.current != nil {
		overlay(l.current.changes)
	}
	overlay(l.pending)
	return all
}

func (l *positionLog) set(group string, c change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired != nil {
		return
	}
	if l.pending == nil {
		l.pending = map[string]change{}
	}
	l.pending[group] = c
	l.seq++
}

func (l *positionLog) hasPending() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) > 0 && l.retired == nil
}

// isDeleted tells whether the topic is gone, and with it what there was to commit.
func (l *positionLog) isDeleted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Is(l.retired, topology.ErrUnknownTopic)
}

// retire makes l refuse what comes, with why, and waits for the write in flight.
func (l *positionLog) retire(why error) {
	l.mu.Lock()
	l.retired = why
	l.pending = nil
	current := l.current
	l.mu.Unlock()
	if current != nil {
		<-current.done
	}
}

// write commits the changes made to l before the call. Whoever comes first writes for all who wait. With whole it
// writes the positions of all groups, so that what came before in the log is not needed any more.
//
// Errors: errStale, and those of the Appender. Changes that failed are pending again, unless newer ones have replaced
// them; where the outcome is unknown they may also be in the log, which does no harm.
func (s *positions) write(ctx context.Context, l *positionLog, whole bool) error {
	l.mu.Lock()
	mine := l.seq
	for {
		if err := l.retired; err != nil {
			l.mu.Unlock()
			return err
		}
		a := l.current
		if a == nil {
			break
		}
		l.mu.Unlock()
		select {
		case <-a.done:
		case <-ctx.Done():
			return fmt.Errorf("%w: commit of positions: %w", topology.ErrOutcomeUnknown, ctx.Err())
		}
		if a.upto >= mine && !whole {
			return a.err
		}
		l.mu.Lock()
	}
	if len(l.pending) == 0 && !whole {
		l.mu.Unlock()
		return nil // an earlier write has them
	}
	a := l.begin(whole)
	l.mu.Unlock()
	s.carryOut(ctx, l, a, whole)
	return a.err
}

// begin makes the changes that wait into an attempt. The caller holds mu.
func (l *positionLog) begin(whole bool) *attempt {
	a := &attempt{changes: l.pending, upto: l.seq, done: make(chan struct{})}
	l.pending = nil
	if whole {
		if a.changes == nil {
			a.changes = map[string]change{}
		}
		for g, p := range l.view {
			if _, newer := a.changes[g]; !newer {
				a.changes[g] = change{position: p}
			}
		}
	}
	l.current = a
	return a
}

// carryOut appends the changes of a, and takes them into the view once they are committed.
func (s *positions) carryOut(ctx context.Context, l *positionLog, a *attempt, whole bool) {
	base, err := s.append(ctx, l, a)
	next := base + topology.Offset(len(a.changes))
	if err == nil && base != l.applied {
		// Before these there are records that an earlier attempt of unknown outcome has left. applied is ours to
		// read: it changes under an attempt only.
		err = s.replay(l, base)
	}
	l.mu.Lock()
	if err == nil {
		for _, g := range slices.Sorted(maps.Keys(a.changes)) {
			l.apply(g, a.changes[g])
		}
		l.applied = next
	}
	groups := len(l.view)
	l.mu.Unlock()
	if err == nil {
		s.committed(l, base, next, groups, whole)
	}
	l.mu.Lock()
	if err != nil && l.retired == nil && !isGone(err) {
		l.restore(a)
	}
	a.err = err
	l.current = nil
	close(a.done)
	l.mu.Unlock()
	s.metrics.positionWrite(err)
}

// committed does what follows a write at [base, next) of l that succeeded.
func (s *positions) committed(l *positionLog, base, next topology.Offset, groups int, whole bool) {
	if whole {
		s.moveStart(l, base)
	}
	due := !whole && int(next-s.logs.Info(l.id).Start) > max(s.snapshotAfter, 16*groups)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsaved[l] = struct{}{}
	if due {
		s.grown[l] = struct{}{}
	}
}

func (s *positions) append(ctx context.Context, l *positionLog, a *attempt) (topology.Offset, error) {
	if len(a.changes) == 0 {
		return l.applied, nil
	}
	if t, ok := s.topics.ByID(l.of.Topic); !ok || t.State == topology.TopicDeleted {
		return 0, fmt.Errorf("commit positions on %s/%d: %w", l.of.Topic, l.of.Partition, topology.ErrUnknownTopic)
	}
	v, err := s.leadership.Lead(l.start)
	if err != nil {
		return 0, fmt.Errorf("commit positions on %s/%d: %w", l.of.Topic, l.of.Partition, err)
	}
	if v != l.under {
		return 0, errStale
	}
	records := make([]recordbatch.Record, 0, len(a.changes))
	for _, g := range slices.Sorted(maps.Keys(a.changes)) {
		r := recordbatch.Record{Key: []byte(g)}
		if c := a.changes[g]; !c.gone {
			r.Value = appendPosition(nil, c.position)
			r.Timestamp = c.timestamp
		}
		records = append(records, r)
	}
	// The write goes on for the others who wait for it when this caller goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.appendTimeout)
	defer cancel()
	base, err := s.appender.Append(ctx, l.id, l.start, records)
	if err != nil {
		return 0, fmt.Errorf("commit positions on %s/%d: %w", l.of.Topic, l.of.Partition, err)
	}
	return base, nil
}

// restore makes the changes of a failed attempt pending again. The caller holds mu.
func (l *positionLog) restore(a *attempt) {
	if l.pending == nil {
		l.pending = map[string]change{}
	}
	for g, c := range a.changes {
		if _, newer := l.pending[g]; !newer {
			l.pending[g] = c
		}
	}
}

// apply takes one record of the log into the view. The caller holds mu, or is the only one to know l.
func (l *positionLog) apply(group string, c change) {
	if c.gone {
		delete(l.view, group)
	} else {
		l.view[group] = c.position
	}
	if l.unsaved == nil {
		l.unsaved = map[string]struct{}{}
	}
	l.unsaved[group] = struct{}{}
}

// replay takes the records of the log in [applied, upto) into the view.
func (s *positions) replay(l *positionLog, upto topology.Offset) error {
	var (
		buf     []byte
		decoder recordbatch.Decoder
	)
	for l.applied < upto {
		r, b, err := s.logs.Read(l.id, l.applied, replayBytes, buf)
		buf = b
		if err != nil {
			return fmt.Errorf("read positions log %s/%d at %d: %w", l.id.Topic, l.id.Partition, l.applied, err)
		}
		for _, d := range r.Damaged {
			s.log.Error().Stringer("topic", l.of.Topic).Int32("partition", int32(l.of.Partition)).
				Int64("from", int64(d.From)).Int64("to", int64(d.To)).
				Msg("positions are damaged: groups that committed there continue from an earlier position")
		}
		for _, c := range r.Chunks {
			records, err := decoder.Decode(c.Bytes)
			if err != nil {
				return fmt.Errorf("positions log %s/%d at %d: %w", l.id.Topic, l.id.Partition, c.Header.BaseOffset, err)
			}
			l.mu.Lock()
			s.applyRecords(l, records, upto)
			l.mu.Unlock()
		}
		if r.Next <= l.applied && len(r.Chunks) == 0 {
			return fmt.Errorf("positions log %s/%d ends at %d, before %d", l.id.Topic, l.id.Partition, l.applied, upto)
		}
		l.mu.Lock()
		l.applied = min(max(l.applied, r.Next), upto)
		l.mu.Unlock()
	}
	return nil
}

// replayBytes is how much of a positions log is read at once.
const replayBytes = 256 << 10

// applyRecords takes those of records into the view that lie in [applied, upto). The caller holds l.mu.
func (s *positions) applyRecords(l *positionLog, records []recordbatch.Record, upto topology.Offset) {
	for i := range records {
		r := &records[i]
		if r.Offset < l.applied || r.Offset >= upto {
			continue
		}
		l.applied = r.Offset + 1
		if r.Value == nil {
			l.apply(string(r.Key), change{gone: true})
			continue
		}
		p, err := decodePosition(r.Value)
		if err != nil {
			// Written by a later version of the broker, or not by a broker: what is known of the group stays.
			s.log.Error().Err(err).Stringer("topic", l.of.Topic).Int32("partition", int32(l.of.Partition)).
				Str("group", string(r.Key)).Int64("offset", int64(r.Offset)).Msg("a stored position cannot be read")
			continue
		}
		l.apply(string(r.Key), change{position: p})
	}
}
