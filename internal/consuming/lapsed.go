package consuming

import (
	"context"

	"github.com/skeinmq/skein/internal/httpd"
)

// lapsed is the registration of a connection whose consumer left because it was idle. Clients that register for a
// connection when they open it, and never again, are served on when they are back: the next poll or commit over the
// connection registers it as before. Meanwhile its partitions belong to others.
type lapsed struct {
	registration
	open  bool            // it had records open, which were given back
	fresh map[string]bool // topics that did not exist yet
	off   func()          // under Service.mu: takes the callback of the connection back
}

// lapseOf is what is kept of ses, which is about to leave. The caller holds group.mu.
func lapseOf(ses *session) *lapsed {
	l := &lapsed{
		registration: registration{id: ses.id, group: ses.group.name, topics: ses.topics, policy: ses.policy, conn: ses.conn},
		open:         ses.open != nil || ses.lost,
	}
	for _, sub := range ses.subs {
		if !sub.bound && sub.fresh {
			if l.fresh == nil {
				l.fresh = map[string]bool{}
			}
			l.fresh[sub.name] = true
		}
	}
	return l
}

// resume makes ses, which was added just now, go on where l left. The caller holds group.mu.
func (ses *session) resume(l *lapsed) {
	ses.lost = l.open
	for _, sub := range ses.subs {
		if l.fresh[sub.name] && !sub.bound {
			sub.fresh = true
		}
	}
}

// keep remembers l until its connection closes or registers, if there is room. The caller holds Service.mu and then calls
// watch without it.
func (s *Service) keep(l *lapsed) {
	if len(s.lapsed) < s.cfg.MaxConsumers {
		s.lapsed[l.conn] = l
	}
}

// watch forgets l when its connection closes.
func (s *Service) watch(l *lapsed) {
	off := l.conn.OnClose(func() { s.forgetLapsed(l.conn, l) })
	s.mu.Lock()
	if s.lapsed[l.conn] == l {
		l.off, off = off, nil
	}
	s.mu.Unlock()
	if off != nil {
		off()
	}
}

// forgetLapsed forgets l, or whatever is kept of conn if l is nil. It tells whether there was something.
func (s *Service) forgetLapsed(conn *httpd.Conn, l *lapsed) bool {
	s.mu.Lock()
	known := s.lapsed[conn]
	if known == nil || l != nil && known != l {
		s.mu.Unlock()
		return false
	}
	delete(s.lapsed, conn)
	off := known.off
	s.mu.Unlock()
	if off != nil {
		off()
	}
	return true
}

// revive registers conn again if its consumer has lapsed, else it returns errNotRegistered.
func (s *Service) revive(ctx context.Context, conn *httpd.Conn) error {
	s.mu.RLock()
	l, live := s.lapsed[conn], s.conns[conn] != nil
	s.mu.RUnlock()
	if live { // since the caller looked
		return nil
	}
	if l == nil {
		return errNotRegistered
	}
	r := l.registration
	r.lapsed = l
	if _, err := s.register(ctx, r); err != nil {
		s.mu.Lock()
		again := s.conns[conn] == nil && s.lapsed[conn] == nil
		if again {
			s.keep(l)
		}
		s.mu.Unlock()
		if again {
			s.watch(l)
		}
		return err
	}
	return nil
}
