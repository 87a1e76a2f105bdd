package consuming

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/skeinmq/skein/internal/topology"
)

// The store tells of new records while it commits: that never waits for the computation of who owns what, which takes
// long for 12,288 partitions and 1,000 members. Nor does each join cost one.
func TestAdvancesDoNotWaitForAssignments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 12_288)
		computed, advanced := 0, 0
		w.s.assign = func(name string, partitions int, members []string) []int32 {
			computed++
			g := w.s.liveGroups()[0]
			if !g.mu.TryLock() {
				t.Fatal("the lock of the group is held while its partitions are assigned")
			}
			g.mu.Unlock()
			w.produce(topic, topology.Partition(computed), `1`)
			advanced++
			return assign(name, partitions, members)
		}
		w.register("waits", "g", latest, "t")
		got := make(chan reply, 1)
		go func() { got <- w.poll("waits", "wait=30s") }()
		synctest.Wait()
		if computed == 0 {
			t.Error("a poll does without owners")
		}
		w.want(<-got, "t@0=1")
		before := computed
		for i := range 999 {
			w.register(fmt.Sprint("m", i), "g", latest, "t")
		}
		if computed != before {
			t.Errorf("%d computations for members that did not poll yet", computed-before)
		}
		w.poll("waits", "ack=none")
		if computed != before+1 {
			t.Errorf("%d computations for 999 members that came one after the other, want 1", computed-before)
		}
		for p := range topology.Partition(topic.Partitions) {
			if w.s.groups["g"].subs["t"].owners.of(p) == "" {
				t.Fatalf("partition %d has no owner", p)
			}
		}
	})
}

// Polls that come while owners are computed share the next computation, and none is answered by owners from before its
// member came.
func TestAssignmentsOfManyPollsAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 192)
		for p := range topology.Partition(192) {
			w.produce(topic, p, `1`)
		}
		release := make(chan struct{})
		var computed atomic.Int32
		w.s.assign = func(name string, partitions int, members []string) []int32 {
			if computed.Add(1) == 1 {
				<-release
			}
			return assign(name, partitions, members)
		}
		w.register("first", "g", earliest, "t")
		got := make(chan reply, 51)
		poll := func(id string) { got <- w.poll(id) }
		go poll("first")
		synctest.Wait()
		for i := range 50 {
			id := fmt.Sprint("m", i)
			w.register(id, "g", earliest, "t")
			go poll(id)
		}
		synctest.Wait()
		close(release)
		for range 51 {
			if r := <-got; r.status != 200 {
				t.Errorf("poll of a member with partitions: %d %s", r.status, r.header.Get("Skein-Reason"))
			}
		}
		if n := computed.Load(); n != 2 {
			t.Errorf("%d computations for 51 polls, want that of the first and one more", n)
		}
	})
}

// A topic that goes while its owners are computed does not come back with them.
func TestATopicThatGoesWhileItIsAssigned(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 3)
	w.produce(topic, 0, `1`)
	w.register("c", "g", earliest, "t")
	w.s.assign = func(name string, partitions int, members []string) []int32 {
		w.s.assign = assign
		w.topics.delete(topic.ID)
		if err := w.s.ForgetTopic(topic.ID); err != nil {
			t.Error(err)
		}
		return assign(name, partitions, members)
	}
	if r := w.poll("c"); r.status != 204 {
		t.Errorf("poll of a deleted topic: %d %s", r.status, r.body)
	}
	topic = w.topics.create("t", 12)
	w.produce(topic, 11, `2`)
	w.want(w.poll("c"), "t@0=2")
}
