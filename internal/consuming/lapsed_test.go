package consuming

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// clocked is a world whose clock is moved by hand.
func clocked(t *testing.T, change ...func(*Config)) (w *world, pass func(time.Duration)) {
	var mu sync.Mutex
	now := time.UnixMilli(1_700_000_000_000)
	change = append(change, func(c *Config) {
		c.IdleTimeout = 10 * time.Second
		c.Now = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}
	})
	return newWorld(t, change...), func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
}

func (w *world) registerConn(ctx context.Context, id string, policy int, topics string) {
	w.t.Helper()
	body := fmt.Sprintf(`{"id":%q,"group":"g","topics":[%q],"onNewGroup":%d}`, id, topics, policy)
	if r := w.do(ctx, "POST", "/v1/consumer/register", "", body); r.status != 200 {
		w.t.Fatalf("register: %d %s", r.status, r.body)
	}
}

func (w *world) pollConn(ctx context.Context) reply {
	w.t.Helper()
	return w.do(ctx, "POST", "/v1/consumer/poll", "application/json", "")
}

// docs/wire.md, section 5: clients that register for a connection do so once. Whoever was idle for too long is served on.
func TestAConnectionThatWasIdleGoesOn(t *testing.T) {
	w, pass := clocked(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	conn, closed := w.conn()
	defer closed()
	w.registerConn(conn, "c", 1, "t")
	for range 3 {
		w.want(w.pollConn(conn), "t@0=1")
		pass(11 * time.Second)
		w.s.expire()
		if n := len(w.s.groups); n != 0 {
			t.Fatalf("%d groups after the only member was idle", n)
		}
	}
	// What it had open was given back, so it cannot be committed.
	if r := w.do(conn, "POST", "/v1/consumer/commit", "", ""); r.status != 409 || r.detail() != errOtherOrigin.Error() {
		t.Errorf("commit of records that were given back: %d %s", r.status, r.body)
	}
	if at := w.committed("g", topic, 0); at != 0 {
		t.Errorf("committed %d", at)
	}
	w.want(w.pollConn(conn), "t@0=1")
	if r := w.do(conn, "POST", "/v1/consumer/commit", "", ""); r.status != 204 {
		t.Errorf("commit: %d %s", r.status, r.body)
	}
	pass(11 * time.Second)
	w.s.expire()
	if r := w.do(conn, "POST", "/v1/consumer/commit", "", ""); r.status != 204 {
		t.Errorf("commit of nothing by one that was idle: %d %s", r.status, r.body)
	}
	w.want(w.pollConn(conn), "t@1=2")
}

// What is kept of an idle connection ends with the connection, and with what its client says next.
func TestWhatIsKeptOfIdleConnections(t *testing.T) {
	w, pass := clocked(t, func(c *Config) { c.MaxConsumers = 3 })
	w.topics.create("t", 1)
	idle := func() (ctx context.Context, closed func()) {
		ctx, closed = w.conn()
		w.registerConn(ctx, "c", 1, "t")
		pass(11 * time.Second)
		w.s.expire()
		return ctx, closed
	}
	kept := func(want int) {
		t.Helper()
		if n := len(w.s.lapsed); n != want {
			t.Errorf("%d are kept, want %d", n, want)
		}
	}
	_, closed := idle()
	kept(1)
	closed()
	kept(0)

	conn, closed := idle()
	w.registerConn(conn, "other", 1, "t")
	kept(0)
	if ses, err := w.s.find("", w.s.liveGroups()[0].members["other"].sessions[0].conn); err != nil || ses.id != "other" {
		t.Errorf("registered is %v, %v", ses, err)
	}
	closed()

	conn, closed = idle()
	if r := w.do(conn, "POST", "/v1/consumer/goodbye", "", ""); r.status != 200 {
		t.Errorf("goodbye: %d %s", r.status, r.body)
	}
	kept(0)
	if r := w.pollConn(conn); r.status != 409 {
		t.Errorf("poll after goodbye: %d %s", r.status, r.body)
	}
	closed()

	for range 4 {
		_, closed := idle()
		defer closed()
	}
	kept(3)
}

// A topic that came while the consumer was away is new to its group as if it had been there.
func TestATopicThatCameWhileAConnectionWasIdle(t *testing.T) {
	w, pass := clocked(t)
	conn, closed := w.conn()
	defer closed()
	w.registerConn(conn, "c", 0, "t")
	pass(11 * time.Second)
	w.s.expire()
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	w.want(w.pollConn(conn), "t@0=1")
}

// An idle connection whose registration fails is registered by a later poll.
func TestAConnectionThatCannotBeRegisteredAgainYet(t *testing.T) {
	w, pass := clocked(t)
	topic := w.topics.create("t", 1)
	conn, closed := w.conn()
	w.registerConn(conn, "c", 1, "t")
	pass(11 * time.Second)
	w.s.expire()
	w.produce(topic, 0, `1`)
	w.lead.set(1, topology.ErrUnavailable)
	if r := w.pollConn(conn); r.status != 503 {
		t.Errorf("poll: %d %s", r.status, r.body)
	}
	w.lead.set(1, nil)
	w.want(w.pollConn(conn), "t@0=1")
	closed()
	if n := len(w.s.lapsed) + len(w.s.conns) + len(w.s.groups); n != 0 {
		t.Errorf("%d entries are left of a connection that closed", n)
	}
}

// Requests at the same time over a connection that was idle are one registration.
func TestRequestsAtTheSameTimeOverAnIdleConnection(t *testing.T) {
	w, pass := clocked(t)
	w.topics.create("t", 1)
	conn, closed := w.conn()
	defer closed()
	w.registerConn(conn, "c", 1, "t")
	for range 20 {
		pass(11 * time.Second)
		w.s.expire()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if r := w.pollConn(conn); r.status != 204 {
					t.Errorf("poll: %d %s", r.status, r.body)
				}
			})
		}
		wg.Wait()
		if n, kept := len(w.s.conns), len(w.s.lapsed); n != 1 || kept != 0 {
			t.Fatalf("%d registrations, %d kept", n, kept)
		}
	}
}

// Polls at the same time over one connection do not starve one another: each round of them gets records.
func TestPollsAtTheSameTimeOverOneConnection(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 12)
	conn, closed := w.conn()
	defer closed()
	w.registerConn(conn, "a", 1, "t")
	for round := range 12 {
		for p := range topology.Partition(12) {
			w.produce(topic, p, `1`, `2`, `3`)
		}
		var wg sync.WaitGroup
		got := make(chan int, 8)
		for range cap(got) {
			wg.Go(func() { got <- w.pollConn(conn).status })
		}
		wg.Wait()
		close(got)
		answers := 0
		for status := range got {
			if status == 200 {
				answers++
			}
		}
		if answers == 0 {
			t.Fatalf("round %d: none of 8 polls got records", round)
		}
	}
}
