package consuming

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
)

// group is a consumer group with live members. It is made with its first member and ends with its last; what stays are
// its positions.
type group struct {
	name    string
	waiting atomic.Int32 // polls that wait, so that an advance looks for them only when there are some

	mu      sync.Mutex
	epoch   uint64                   // grows with each change of who is a member of what
	members map[string]*member       // by id
	subs    map[string]*subscription // by name of the topic; only those that some member registered for
}

// member is a consumer of a group. Several origins may act for one member: connections that registered with its id.
type member struct {
	id       string
	sessions []*session
	topics   map[string]int // how many sessions registered for each
}

// session is one registration: an origin of polls. All fields but the first block are under group.mu.
type session struct {
	id         string
	group      *group
	member     *member
	conn       *httpd.Conn // nil for a consumer that names its id in each request
	topics     []string    // in the order of the registration
	policy     policy
	registered time.Time
	nonce      string          // begins its poll ids
	subs       []*subscription // in the order of topics, without repetition
	gate       chan struct{}   // holds one element while a poll chooses and reads, or waits
	wake       chan struct{}   // gets an element when something may have come
	offClose   func()          // under group.mu: takes the callback of conn back

	lastSeen  time.Time
	inFlight  int                       // requests that are being served
	gone      bool                      // it said goodbye, expired, or its connection closed
	polls     uint64                    // numbers the polls; the newest one wins
	sleeping  bool                      // a poll waits on wake
	open      *answer                   // delivered and neither committed nor given back
	lost      bool                      // what it had open was given back when it lapsed, which a commit has to say
	committed uint64                    // number of the last answer that was committed
	empty     uint64                    // number of the last answer, if it had no records
	touched   map[*positionLog]struct{} // commits of polls that may not be written yet
	place     place                     // where the next poll begins to look
}

// place is a partition in the order of a session's topics.
type place struct {
	topic     int
	partition int
}

func newGroup(name string) *group {
	return &group{name: name, members: map[string]*member{}, subs: map[string]*subscription{}}
}

// add makes ses a session of its member and returns how many subscriptions are new. The caller holds mu and has filled
// in what identifies ses.
func (g *group) add(ses *session, now time.Time) (begun int) {
	m := g.members[ses.id]
	if m == nil {
		m = &member{id: ses.id, topics: map[string]int{}}
		g.members[ses.id] = m
	}
	ses.member = m
	ses.lastSeen = now
	m.sessions = append(m.sessions, ses)
	changed := false
	seen := make(map[*subscription]struct{}, len(ses.topics))
	for _, name := range ses.topics {
		sub := g.subs[name]
		if sub == nil {
			sub = newSubscription(g, name, ses.policy)
			g.subs[name] = sub
			begun++
		}
		if _, twice := seen[sub]; !twice {
			seen[sub] = struct{}{}
			ses.subs = append(ses.subs, sub)
		}
		if m.topics[name]++; m.topics[name] == 1 {
			sub.members++
			sub.owners.changed()
			changed = true
		}
	}
	if changed {
		g.changed()
	}
	return begun
}

// remove ends ses: what it has open is given back. It returns the subscriptions that no member has any more. The caller
// holds mu.
func (g *group) remove(ses *session) (ended []*subscription) {
	if ses.gone {
		return nil
	}
	ses.gone = true
	ses.giveBack()
	m := ses.member
	m.sessions = slices.DeleteFunc(m.sessions, func(o *session) bool { return o == ses })
	ses.wakeSiblings()
	if len(m.sessions) == 0 {
		delete(g.members, m.id)
	}
	changed := false
	for _, name := range ses.topics {
		if m.topics[name]--; m.topics[name] > 0 {
			continue
		}
		delete(m.topics, name)
		changed = true
		sub := g.subs[name]
		sub.owners.changed()
		if sub.members--; sub.members == 0 {
			delete(g.subs, name)
			ended = append(ended, sub)
		}
	}
	if changed {
		g.changed()
	}
	ses.signal()
	return ended
}

// changed notes that members came or went, and lets every poll that waits look again. The caller holds mu.
func (g *group) changed() {
	g.epoch++
	g.wakeAll()
}

// wakeAll lets every poll that waits look again. The caller holds mu.
func (g *group) wakeAll() {
	for _, m := range g.members {
		for _, ses := range m.sessions {
			ses.signal()
		}
	}
}

// wakeSiblings lets the polls of the other sessions of the member look again: ses gave records back. The caller holds mu.
func (ses *session) wakeSiblings() {
	for _, o := range ses.member.sessions {
		if o != ses {
			o.signal()
		}
	}
}

// subscribers are the ids of the members that registered for topic, sorted. The caller holds mu.
func (g *group) subscribers(topic string) []string {
	var ids []string
	for id, m := range g.members {
		if m.topics[topic] > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// sortedSubs lists the subscriptions in the order of their topics. The caller holds mu.
func (g *group) sortedSubs() []*subscription {
	list := make([]*subscription, 0, len(g.subs))
	for _, name := range slices.Sorted(maps.Keys(g.subs)) {
		list = append(list, g.subs[name])
	}
	return list
}

// unboundSubs are those of the subscriptions of ses whose topic may still come to exist.
func (ses *session) unboundSubs() []*subscription {
	ses.group.mu.Lock()
	defer ses.group.mu.Unlock()
	var list []*subscription
	for _, sub := range ses.subs {
		if !sub.bound {
			list = append(list, sub)
		}
	}
	return list
}

// signal lets a poll of ses that waits look again. An element that is there already will do that too.
func (ses *session) signal() {
	select {
	case ses.wake <- struct{}{}:
	default:
	}
}
