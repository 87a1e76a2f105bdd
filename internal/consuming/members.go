package consuming

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// registration is what a consumer asks for.
type registration struct {
	id     string
	group  string
	topics []string
	policy policy
	conn   *httpd.Conn // nil for a consumer that names its id in each request
	lapsed *lapsed     // not nil when the broker registers it again by itself
}

// wireError is a refusal with a text of docs/wire.md, section 5.
type wireError string

// Error implements error.
func (e wireError) Error() string { return string(e) }

const (
	errNotRegistered wireError = "Consumer not registered"
	errOther         wireError = "Consumer already registered with different parameters"
	errIncomplete    wireError = "Consumer id and topics can not be empty"
	errPayload       wireError = "Invalid ConsumerInfo payload"
	errPolicy        wireError = "Invalid offset reset policy value"
	// errOtherOrigin means that another origin or member reads now what a commit is about.
	errOtherOrigin wireError = "Manual commit ignored: another origin reading"
)

// errTooMany means that no further consumer fits. HTTP 429.
var errTooMany = fmt.Errorf("too many consumers are registered: %w", topology.ErrBusy)

// defaultGroup is the group of consumers that name none.
const defaultGroup = "default"

func (r *registration) check(maxTopics int) error {
	if r.group == "" {
		r.group = defaultGroup
	}
	if r.id == "" || len(r.topics) == 0 {
		return errIncomplete
	}
	if err := topology.CheckName("consumer id", r.id); err != nil {
		return err
	}
	if err := topology.CheckName("group", r.group); err != nil {
		return err
	}
	if len(r.topics) > maxTopics {
		return fmt.Errorf("%w topics: %d of them; allowed are 1 to %d", topology.ErrInvalid, len(r.topics), maxTopics)
	}
	for _, name := range r.topics {
		if err := topology.CheckTopicName(name, false); err != nil {
			return err
		}
	}
	return nil
}

// register makes a consumer a member of its group and returns once it is known where the group begins on each topic
// that exists. known tells that it was registered alike before; then nothing changes.
func (s *Service) register(ctx context.Context, r registration) (known bool, err error) {
	if err := r.check(s.cfg.MaxTopics); err != nil {
		return false, err
	}
	ses, old, err := s.admit(r)
	if err != nil {
		return false, err
	}
	if ses == nil {
		return true, nil
	}
	if old != nil {
		s.leave(old, "replaced")
	}
	if r.conn != nil {
		cancel := r.conn.OnClose(func() { s.leave(ses, "connection closed") })
		ses.group.mu.Lock()
		ses.offClose = cancel
		ses.group.mu.Unlock()
	}
	if err := s.bindEach(ctx, ses.subs); err != nil {
		s.leave(ses, "not registered")
		return false, err
	}
	s.log.Debug().Str("group", r.group).Str("consumer", r.id).Strs("topics", r.topics).Msg("consumer registered")
	return false, nil
}

// admit puts a session of r into the maps, unless there is one alike: then it returns nil. old is the session that it
// takes the place of.
func (s *Service) admit(r registration) (ses, old *session, err error) {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.conn != nil {
		old = s.conns[r.conn]
	} else {
		old = s.stateless[r.id]
	}
	l := s.lapsed[r.conn]
	if r.lapsed != nil && l != r.lapsed { // somebody else was faster
		if old == nil {
			return nil, nil, errNotRegistered
		}
		return nil, nil, nil
	}
	if old != nil {
		alike := old.id == r.id && old.group.name == r.group && slices.Equal(old.topics, r.topics)
		switch {
		case alike:
			old.touch(now)
			return nil, nil, nil
		case r.conn == nil:
			return nil, nil, errOther
		}
	} else if len(s.stateless)+len(s.conns) >= s.cfg.MaxConsumers {
		return nil, nil, errTooMany
	}
	g := s.groups[r.group]
	if g == nil {
		g = newGroup(r.group)
		s.groups[r.group] = g
	}
	ses = &session{
		id: r.id, group: g, conn: r.conn, topics: slices.Clone(r.topics), policy: r.policy, registered: now,
		nonce: newNonce(), gate: make(chan struct{}, 1), wake: make(chan struct{}, 1),
	}
	g.mu.Lock()
	s.unbound.Add(int64(g.add(ses, now)))
	if r.lapsed != nil {
		ses.resume(r.lapsed)
	}
	g.mu.Unlock()
	if l != nil {
		delete(s.lapsed, r.conn)
		if l.off != nil {
			l.off()
		}
	}
	if r.conn != nil {
		s.conns[r.conn] = ses
	} else {
		s.stateless[r.id] = ses
	}
	return ses, old, nil
}

func newNonce() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// leave ends a session, whyever. What it has open is delivered to another member, or to this one when it is back.
func (s *Service) leave(ses *session, why string) {
	s.mu.Lock()
	gone, off := s.detach(ses)
	s.mu.Unlock()
	s.left(ses, why, gone, off)
}

// left does what follows detach, without a lock.
func (s *Service) left(ses *session, why string, gone bool, off func()) {
	if off != nil {
		off()
	}
	if !gone {
		s.log.Debug().Str("group", ses.group.name).Str("consumer", ses.id).Str("reason", why).Msg("consumer left")
	}
}

// detach takes ses out of the maps and out of its group. gone tells that it was before; off takes back the callback of
// its connection. The caller holds mu.
func (s *Service) detach(ses *session) (gone bool, off func()) {
	g := ses.group
	if ses.conn == nil {
		if s.stateless[ses.id] == ses {
			delete(s.stateless, ses.id)
		}
	} else if s.conns[ses.conn] == ses {
		delete(s.conns, ses.conn)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	gone = ses.gone
	for _, sub := range g.remove(ses) {
		s.ended(sub)
	}
	if len(g.members) == 0 && s.groups[g.name] == g {
		delete(s.groups, g.name)
	}
	return gone, ses.offClose
}

// find is the session that a request speaks for: that of the consumer id, if it names one, else that of its connection.
func (s *Service) find(id string, conn *httpd.Conn) (*session, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var ses *session
	if id != "" {
		ses = s.stateless[id]
	} else if conn != nil {
		ses = s.conns[conn]
	}
	if ses == nil {
		return nil, errNotRegistered
	}
	return ses, nil
}

// expire lets those go that have sent no request for too long.
func (s *Service) expire() {
	before := s.cfg.Now().Add(-s.cfg.IdleTimeout)
	var idle []*session
	s.mu.RLock()
	for _, ses := range s.stateless {
		if ses.idleSince(before) {
			idle = append(idle, ses)
		}
	}
	for _, ses := range s.conns {
		if ses.idleSince(before) {
			idle = append(idle, ses)
		}
	}
	s.mu.RUnlock()
	for _, ses := range idle {
		s.lapse(ses, before)
	}
}

// lapse lets ses go if it sent no request since before, and keeps the registration of a connection.
func (s *Service) lapse(ses *session, before time.Time) {
	s.mu.Lock()
	if !ses.idleSince(before) {
		s.mu.Unlock()
		return
	}
	var l *lapsed
	if ses.conn != nil && s.conns[ses.conn] == ses {
		ses.group.mu.Lock()
		l = lapseOf(ses)
		ses.group.mu.Unlock()
		s.keep(l)
	}
	gone, off := s.detach(ses)
	s.mu.Unlock()
	s.left(ses, "idle", gone, off)
	if l != nil {
		s.watch(l)
	}
}

func (ses *session) idleSince(t time.Time) bool {
	ses.group.mu.Lock()
	defer ses.group.mu.Unlock()
	return ses.inFlight == 0 && ses.lastSeen.Before(t)
}

// touch notes a sign of life.
func (ses *session) touch(now time.Time) {
	ses.group.mu.Lock()
	defer ses.group.mu.Unlock()
	ses.lastSeen = now
}

// enter keeps a session from expiring while a request of it is served. ok is false when it is gone already.
func (s *Service) enter(ses *session) (leave func(), ok bool) {
	g := ses.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if ses.gone {
		return nil, false
	}
	ses.inFlight++
	ses.lastSeen = s.cfg.Now()
	return func() {
		g.mu.Lock()
		ses.inFlight--
		ses.lastSeen = s.cfg.Now()
		g.mu.Unlock()
	}, true
}

// Touch counts a request that is not for this package as a sign of life of the consumer that its connection registered,
// if there is one (docs/wire.md, 5: GET /status on the consumer port).
func (s *Service) Touch(ctx context.Context) {
	if ses, err := s.find("", httpd.ConnOf(ctx)); err == nil {
		ses.touch(s.cfg.Now())
	}
}
