package consuming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// errUnknownAnswer means that a commit names an answer that is not open.
var errUnknownAnswer = errors.New("the answer that ack names is not the last one of this consumer, or its records were given back since")

// partial are the positions of a commit that names them: the records before each offset are consumed.
type partial struct {
	Positions []partialPosition `json:"positions"`
}

type partialPosition struct {
	Topic     string             `json:"topic"`
	Partition topology.Partition `json:"partition"`
	Offset    topology.Offset    `json:"offset"`
}

func parsePartial(body []byte) (partial, error) {
	var p partial
	if err := json.Unmarshal(body, &p); err != nil {
		return p, fmt.Errorf(`%w commit: %w; allowed is {"positions":[{"topic":"t","partition":0,"offset":1}]}`, topology.ErrInvalid, err)
	}
	if len(p.Positions) == 0 {
		return p, fmt.Errorf("%w commit: it names no positions", topology.ErrInvalid)
	}
	return p, nil
}

// commit commits the open answer of ses and returns once that, and all that polls of ses committed before, is durable.
// With positions it commits only those. It returns the partitions that are not the session's to commit any more; if that is
// all of them, the error says why: errOtherOrigin, or what the leadership says.
//
// Errors: also errNotRegistered, errUnknownAnswer, topology.ErrInvalid, and those of the Appender.
func (s *Service) commit(ctx context.Context, ses *session, ack ack, positions []partialPosition) (refused []delivery, err error) {
	g := ses.group
	g.mu.Lock()
	if ack.kind == ackLast {
		if err := ses.awaitOpen(ctx); err != nil {
			g.mu.Unlock()
			return nil, err
		}
	}
	s.reassignOpen(ses)
	refused, err = s.commitNow(ses, httpd.ConnOf(ctx), ack, positions)
	maps.DeleteFunc(ses.touched, func(l *positionLog, _ struct{}) bool { return l.isDeleted() })
	logs := slices.Collect(maps.Keys(ses.touched))
	g.mu.Unlock()
	if err != nil || len(logs) == 0 {
		return refused, err
	}
	err = s.positions.flush(ctx, logs)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range logs {
		if !l.hasPending() { // it is written, or was given up, which the error says once
			delete(ses.touched, l)
		}
	}
	return refused, err
}

// commitNow is the part of commit that happens in memory. The caller holds group.mu and has called reassignOpen.
func (s *Service) commitNow(ses *session, conn *httpd.Conn, ack ack, positions []partialPosition) (refused []delivery, err error) {
	a := ses.open
	switch {
	case ses.gone:
		return nil, errNotRegistered
	case ack.kind == ackNone:
		ses.giveBack()
		return nil, nil
	case ack.kind == ackID && (a == nil || a.id != ack.id):
		if n := ses.numberOf(ack.id); n > 0 && (n == ses.committed || n == ses.empty) {
			return nil, nil
		}
		return nil, errUnknownAnswer
	case ack.kind == ackLast && a != nil && !a.reached(conn) && len(positions) > 0:
		return nil, fmt.Errorf("commit: the answer with these records is not known to be with the client yet: %w", topology.ErrUnavailable)
	case ack.kind == ackLast && a != nil && !a.reached(conn):
		return nil, nil // nobody has it yet; it is committed or given back later
	case ses.lost && a == nil:
		ses.lost = false
		return nil, errOtherOrigin
	case len(positions) > 0:
		return nil, s.commitPositions(ses, positions)
	case a == nil:
		return nil, nil
	}
	return s.commitOpen(ses, byCommit)
}

// commitPositions commits the open answer of ses up to positions: all of them, or none. The rest stays open. The caller
// holds group.mu.
func (s *Service) commitPositions(ses *session, positions []partialPosition) error {
	found := make([]*delivery, len(positions))
	open := ses.open.byPlace()
	for i, p := range positions {
		d := open[openPlace{p.Topic, p.Partition}]
		if d == nil {
			return fmt.Errorf("%w commit: nothing of %s/%d is open at this consumer", topology.ErrInvalid, p.Topic, p.Partition)
		}
		if err := s.holds(d, ses); err != nil {
			return err
		}
		if p.Offset < d.cursor.committed || p.Offset > d.to {
			return fmt.Errorf("%w commit: offset %d of %s/%d; allowed are %d to %d, what was delivered",
				topology.ErrInvalid, p.Offset, p.Topic, p.Partition, d.cursor.committed, d.to)
		}
		found[i] = d
	}
	for i, p := range positions {
		s.commitTo(ses, found[i], p.Offset, byCommit)
	}
	s.metrics.committed(byCommit, len(positions), 0)
	return nil
}

// openPlace names a partition in an answer.
type openPlace struct {
	topic     string
	partition topology.Partition
}

// byPlace finds the deliveries of a, which may be nil.
func (a *answer) byPlace() map[openPlace]*delivery {
	if a == nil {
		return nil
	}
	found := make(map[openPlace]*delivery, len(a.deliveries))
	for i := range a.deliveries {
		d := &a.deliveries[i]
		if at := (openPlace{d.sub.name, d.partition}); found[at] == nil {
			found[at] = d
		}
	}
	return found
}

// goodbye ends a session. With commit what it has open is committed first, as by a poll, and waited for.
func (s *Service) goodbye(ctx context.Context, ses *session, commit bool, ack ack) error {
	var err error
	if commit {
		_, err = s.commit(ctx, ses, ack, nil)
		if errors.Is(err, errOtherOrigin) || errors.Is(err, errUnknownAnswer) {
			err = nil // it is another's by now
		}
	}
	s.leave(ses, "goodbye")
	return err
}
