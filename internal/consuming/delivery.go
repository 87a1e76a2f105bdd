package consuming

import (
	"fmt"
	"strconv"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// delivery is a run of records of one partition in an answer.
type delivery struct {
	sub       *subscription
	partition topology.Partition
	start     token.Token // of the partition
	cursor    *cursor
	turn      uint64          // of cursor, when it was delivered
	to        topology.Offset // [cursor.committed, to) is delivered and not committed
	version   topology.Version
}

// answer is one answer to a poll. A session has at most one that is open.
type answer struct {
	id         string // what an ack names
	number     uint64
	deliveries []delivery
	conn       *httpd.Conn // it is written to; nil outside requests of a server

	// Under group.mu.
	state answerState
	done  chan struct{} // closed when the state is not writing any more
}

type answerState uint8

const (
	writing answerState = iota
	written             // to its end
)

// reached tells whether the client has a, as far as the broker can know: it was written to its end, and the request that
// asks now comes over the same connection, or the one before has handed over all of it (F14.2). The caller holds group.mu.
func (a *answer) reached(conn *httpd.Conn) bool {
	return a.state == written && (a.conn == conn || a.conn == nil || a.conn.Received())
}

// pollID is the receipt of poll number n of a session.
func (ses *session) pollID(n uint64) string { return ses.nonce + "-" + strconv.FormatUint(n, 10) }

// numberOf is the inverse of pollID; 0 when id is of no poll of this session.
func (ses *session) numberOf(id string) uint64 {
	if len(id) <= len(ses.nonce)+1 || id[:len(ses.nonce)] != ses.nonce || id[len(ses.nonce)] != '-' {
		return 0
	}
	n, err := strconv.ParseUint(id[len(ses.nonce)+1:], 10, 64)
	if err != nil || ses.pollID(n) != id {
		return 0
	}
	return n
}

// holds tells whether d is still the session's to commit. It is not when records were given back or changed hands since,
// or another member owns the partition now (errOtherOrigin), nor when this broker does not lead it any more as it did
// then (topology.ErrUnavailable, topology.ErrNotLeader). The caller holds group.mu.
func (s *Service) holds(d *delivery, ses *session) error {
	sub := d.sub
	if ses.gone || !sub.bound || sub.cursors[d.partition] != d.cursor || d.cursor.turn != d.turn {
		return errOtherOrigin
	}
	v, err := s.cfg.Leadership.Lead(d.start)
	switch {
	case err != nil:
		return fmt.Errorf("commit %s/%d: %w", sub.name, d.partition, err)
	case v != d.cursor.version:
		return fmt.Errorf("commit %s/%d: it is led under another version now: %w", sub.name, d.partition, topology.ErrUnavailable)
	case sub.owners.of(d.partition) != ses.member.id:
		return errOtherOrigin
	}
	return nil
}

// giveBack ends the open answer of ses without a commit: its records are delivered again. The caller holds group.mu.
func (ses *session) giveBack() {
	a := ses.open
	ses.open = nil
	if a == nil {
		return
	}
	for i := range a.deliveries {
		a.deliveries[i].giveBack()
	}
}

// giveBack lets the records of d be delivered again, unless they changed hands since. The caller holds group.mu.
func (d *delivery) giveBack() {
	if d.sub.bound && d.sub.cursors[d.partition] == d.cursor && d.cursor.turn == d.turn {
		d.sub.rewind(d.partition, d.cursor)
	}
}

// commitOpen commits the open answer of ses, in memory, and ends it. What does not hold any more is refused; err is why,
// for one of them, when none holds. The caller holds group.mu and has called reassignOpen.
func (s *Service) commitOpen(ses *session, why reason) (refused []delivery, err error) {
	a := ses.open
	ses.open = nil
	if a == nil {
		return nil, nil
	}
	var last error
	for i := range a.deliveries {
		d := &a.deliveries[i]
		if err := s.holds(d, ses); err != nil {
			d.giveBack()
			refused, last = append(refused, *d), err
			continue
		}
		s.commitTo(ses, d, d.to, why)
	}
	ses.committed = a.number
	s.metrics.committed(why, len(a.deliveries)-len(refused), len(refused))
	if len(refused) == len(a.deliveries) {
		return refused, last
	}
	return refused, nil
}

// commitTo moves the position under d, which holds, to offset: forward, or wherever a reset says. The caller holds
// group.mu.
func (s *Service) commitTo(ses *session, d *delivery, offset topology.Offset, why reason) {
	if offset <= d.cursor.committed && d.cursor.stored && why != byReset {
		return
	}
	d.sub.commitTo(d.partition, d.cursor, offset)
	l := s.positions.set(d.sub.positions, d.partition, ses.group.name, change{position: position{
		offset: offset, version: d.version, timestamp: s.cfg.Now().UnixMilli(), reason: why, member: ses.id, epoch: ses.group.epoch,
	}})
	if ses.touched == nil {
		ses.touched = map[*positionLog]struct{}{}
	}
	ses.touched[l] = struct{}{}
}
