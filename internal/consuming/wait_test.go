package consuming

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// docs/design.md, section 7: a poll waits for records, and the store wakes it.
func TestLongPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 3)
		w.register("c", "g", earliest, "t")
		started := time.Now()
		got := make(chan reply, 1)
		go func() { got <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		time.Sleep(7 * time.Second)
		w.produce(topic, 2, `1`)
		w.want(<-got, "t@0=1")
		if d := time.Since(started); d != 7*time.Second {
			t.Errorf("answered after %s, the record came after 7s", d)
		}
		// Nothing comes: the wait ends, and the client may ask again at once.
		started = time.Now()
		r := w.poll("c", "wait=1500")
		if d := time.Since(started); d != 1500*time.Millisecond || r.status != 204 || r.header.Get("Retry-After") != "" {
			t.Errorf("%d after %s, %v", r.status, d, r.header)
		}
		// The longest wait is bounded.
		started = time.Now()
		if r := w.poll("c", "wait=10m"); r.status != 204 || time.Since(started) != 30*time.Second {
			t.Errorf("%d after %s", r.status, time.Since(started))
		}
		// A client that goes is not waited for.
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		started = time.Now()
		w.do(ctx, "POST", "/v1/consumer/poll?consumerId=c&wait=20s", "application/json", "")
		if d := time.Since(started); d != time.Second {
			t.Errorf("waited %s for a client that was gone after 1s", d)
		}
		w.produce(topic, 0, `2`)
		w.want(w.poll("c"), "t@0=2")
	})
}

// A poll that waits costs no work: neither reads nor timers that fire.
func TestLongPollsThatIdleDoNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 24)
		other := w.topics.create("other", 1)
		for p := range topology.Partition(24) {
			w.produce(topic, p, `1`)
		}
		w.register("c", "g", latest, "t")
		got := make(chan reply, 1)
		go func() { got <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		before, _ := w.logs.counts()
		for range 100 {
			w.produce(other, 0, `x`)
		}
		time.Sleep(29 * time.Second)
		if reads, _ := w.logs.counts(); reads != before {
			t.Errorf("%d reads while nothing came", reads-before)
		}
		<-got
	})
}

// Only the poll of the owner is woken, and a partition that changes hands wakes its new owner.
func TestLongPollsOfSeveralMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.register("a", "g", earliest, "t")
		w.register("b", "g", earliest, "t")
		type named struct {
			id string
			reply
		}
		got := make(chan named, 2)
		for _, id := range []string{"a", "b"} {
			go func() { got <- named{id, w.poll(id, "wait=30s")} }()
		}
		synctest.Wait()
		w.produce(topic, 0, `1`)
		first := <-got
		w.want(first.reply, "t@0=1")
		// It leaves without a commit: the other one, which waits, gets the record.
		w.do(context.Background(), "POST", "/v1/consumer/goodbye?commit=false&consumerId="+first.id, "", "")
		second := <-got
		if second.id == first.id {
			t.Fatalf("%s was answered twice", first.id)
		}
		w.want(second.reply, "t@0=1")
	})
}

// A newer poll of the same origin ends an older one that waits; records go to the newer.
func TestANewerPollTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.register("c", "g", earliest, "t")
		older, newer := make(chan reply, 1), make(chan reply, 1)
		go func() { older <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		go func() { newer <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		if r := <-older; r.status != 204 || r.header.Get("Retry-After") != "" {
			t.Errorf("the older poll: %d %v", r.status, r.header)
		}
		w.produce(topic, 0, `1`)
		w.want(<-newer, "t@0=1")
	})
}

// A topic that comes to exist wakes those who wait for it.
func TestLongPollsOfAnUnknownTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		stop := w.run()
		defer stop()
		w.register("c", "g", latest, "later")
		got := make(chan reply, 1)
		started := time.Now()
		go func() { got <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		time.Sleep(3100 * time.Millisecond)
		topic := w.topics.create("later", 3)
		w.produce(topic, 1, `1`)
		w.want(<-got, "later@0=1")
		if d := time.Since(started); d > 3150*time.Millisecond {
			t.Errorf("answered after %s; the topic came after 3.1s", d)
		}
	})
}

// A goodbye or an expiry ends a poll that waits with 409, not with silence.
func TestGoodbyeEndsAWaitingPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.topics.create("t", 1)
		w.register("c", "g", earliest, "t")
		got := make(chan reply, 1)
		go func() { got <- w.poll("c", "wait=30s") }()
		synctest.Wait()
		w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId=c", "", "")
		if r := <-got; r.status != 409 {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}

// docs/wire.md, section 5: idle consumers leave, and learn it by 409; one that waits in a long poll is not idle.
func TestIdleConsumersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.IdleTimeout = 10 * time.Second })
		stop := w.run()
		defer stop()
		topic := w.topics.create("t", 1)
		w.produce(topic, 0, `1`)
		w.register("idle", "g", earliest, "t")
		w.register("waits", "h", latest, "t")
		conn, closed := w.conn()
		defer closed()
		w.do(conn, "POST", "/v1/consumer/register", "", `{"id":"seen","group":"i","topics":["t"],"onNewGroup":0}`)
		got := make(chan reply, 1)
		go func() { got <- w.poll("waits", "wait=25s") }()
		for range 3 {
			time.Sleep(7 * time.Second)
			w.s.Touch(conn)
		}
		if r := w.poll("idle"); r.status != 409 || r.detail() != "Consumer not registered" {
			t.Errorf("poll after %s of silence: %d %s", 21*time.Second, r.status, r.body)
		}
		if r := w.do(conn, "POST", "/v1/consumer/poll", "application/json", ""); r.status != 204 {
			t.Errorf("poll of a connection that asked for the status: %d", r.status)
		}
		if r := <-got; r.status != 204 {
			t.Errorf("the long poll: %d %s", r.status, r.body)
		}
		if n := len(w.s.Groups(t.Context())); n != 3 {
			t.Errorf("%d groups, want 3: positions stay", n)
		}
	})
}

// Commits of polls go to the log after CommitInterval, all groups of a partition and all partitions together, and at the
// end.
func TestCommitsAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *Config) { c.CommitInterval = 200 * time.Millisecond })
		stop := w.run()
		topic := w.topics.create("t", 12)
		for p := range topology.Partition(12) {
			for range 20 {
				w.produce(topic, p, `1`)
			}
		}
		for _, g := range []string{"g1", "g2", "g3"} {
			w.register("c-"+g, g, earliest, "t")
		}
		time.Sleep(time.Second)
		_, before := w.logs.counts()
		for range 10 { // within one interval
			for _, g := range []string{"g1", "g2", "g3"} {
				w.poll("c-" + g)
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(250 * time.Millisecond)
		if _, n := w.logs.counts(); n-before != 12 {
			t.Errorf("%d writes for 27 commits of 12 partitions, want one for each partition", n-before)
		}
		w.poll("c-g1")
		stop()
		w.restart()
		for p := range topology.Partition(12) {
			if a, b := w.committed("g1", topic, p), w.committed("g2", topic, p); a != 10 || b != 9 {
				t.Fatalf("partition %d is committed at %d and %d, want 10 and 9", p, a, b)
			}
		}
	})
}

// One commit over many partitions is in flight for all of them at the same time, so that it costs one round.
func TestACommitOfManyPartitionsIsOneRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 12)
		for p := range topology.Partition(12) {
			w.produce(topic, p, `1`)
		}
		w.register("c", "g", earliest, "t")
		w.poll("c")
		hold := make(chan struct{})
		w.logs.hold = hold
		_, before := w.logs.counts()
		got := make(chan reply, 1)
		go func() { got <- w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", "") }()
		synctest.Wait()
		if _, n := w.logs.counts(); n-before != 12 {
			t.Errorf("%d appends in flight, want 12", n-before)
		}
		close(hold)
		if r := <-got; r.status != 204 {
			t.Errorf("%d %s", r.status, r.body)
		}
	})
}

// A commit whose log hangs has an unknown outcome after a while, and holds up nobody else.
func TestALogThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		for range 3 {
			w.produce(topic, 0, `1`)
		}
		w.register("c", "g", earliest, "t")
		w.register("d", "h", earliest, "t")
		w.poll("c")
		w.logs.hold = make(chan struct{})
		got := make(chan reply, 1)
		go func() { got <- w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", "") }()
		synctest.Wait()
		w.want(w.poll("d"), "t@0=1")
		w.want(w.poll("c"), "t@1=1")
		started := time.Now()
		if r := <-got; r.status != 504 || time.Since(started) > 10*time.Second {
			t.Errorf("%d %s after %s", r.status, r.body, time.Since(started))
		}
		w.logs.hold = nil
		w.flush()
		if at := w.committed("g", topic, 0); at != 1 {
			t.Errorf("committed %d, want 1", at)
		}
	})
}

// A member that reads its answer slowly slows nobody else, and is cut off in the end.
func TestASlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 12)
		for p := range topology.Partition(12) {
			for range 20 {
				w.produce(topic, p, fmt.Sprintf(`"%s"`, strings.Repeat("x", 500)))
			}
		}
		w.register("slow", "g", earliest, "t")
		w.register("quick", "g", earliest, "t")
		slow := newSlowWriter()
		done := make(chan struct{})
		go func() {
			defer close(done)
			w.serve(slow, "slow")
		}()
		synctest.Wait()
		started := time.Now()
		if n := w.pollAll("quick"); n != 6*20 {
			t.Errorf("the quick member got %d records, want 120", n)
		}
		w.register("third", "g", earliest, "t")
		w.poll("third")
		w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=third", "", "")
		if d := time.Since(started); d != 0 {
			t.Errorf("the others took %s", d)
		}
		// The slow one asks again before it has read: the answer does not count, its records come again.
		r := w.poll("slow")
		if d := time.Since(started); d != writeGrace {
			t.Errorf("the next poll took %s", d)
		}
		for _, c := range r.chunks(t) {
			if c.StartOffset != "0" {
				t.Errorf("an answer that was not read was committed: %+v", c.StartOffset)
			}
		}
		close(slow.release)
		<-done
		if n := w.s.answerBytes.Load(); n != 0 {
			t.Errorf("%d bytes of answers are still counted", n)
		}
	})
}

// An answer that a client has read may meet the next request before the goroutine that wrote it has noted that.
func TestTheNextPollWaitsForTheLastWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.produce(topic, 0, `1`)
		w.produce(topic, 0, `2`)
		w.register("c", "g", earliest, "t")
		slow := newSlowWriter()
		go w.serve(slow, "c")
		synctest.Wait()
		next := make(chan reply, 1)
		go func() { next <- w.poll("c") }()
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		close(slow.release)
		w.want(<-next, "t@1=2")
	})
}

// The more memory slow readers hold, the smaller are the answers that others get; all get some.
func TestManySlowReaders(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.AnswerMemory = 64 << 10 })
	w.s.answerBytes.Store(60 << 10)
	if n := w.s.grant(1 << 20); n != 512 {
		t.Errorf("grant of %d bytes, want an eighth of what is left", n)
	}
	w.s.answerBytes.Store(1 << 20)
	topic := w.topics.create("t", 3)
	for p := range topology.Partition(3) {
		w.produce(topic, p, `1`, `2`)
	}
	w.register("c", "g", earliest, "t")
	for range 6 {
		if n := len(w.poll("c").values(t)); n != 1 {
			t.Errorf("%d records without memory, want one", n)
		}
	}
}
