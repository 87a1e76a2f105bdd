package consuming

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// A commit that names positions does not count as done while the client may not have the answer yet.
func TestACommitByOffsetWhileTheAnswerIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.produce(topic, 0, `1`, `2`)
		w.register("c", "g", earliest, "t")
		slow := newSlowWriter()
		go w.serve(slow, "c")
		synctest.Wait()
		commit := func() reply {
			return w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", `{"positions":[{"topic":"t","partition":0,"offset":1}]}`)
		}
		if r := commit(); r.status != 503 || r.header.Get("Retry-After") == "" {
			t.Errorf("commit while the answer is written: %d %s", r.status, r.body)
		}
		if at := w.committed("g", topic, 0); at != 0 {
			t.Errorf("committed %d", at)
		}
		close(slow.release)
		synctest.Wait()
		if r := commit(); r.status != 204 {
			t.Errorf("commit afterwards: %d %s", r.status, r.body)
		}
		if at := w.committed("g", topic, 0); at != 1 {
			t.Errorf("committed %d, want 1", at)
		}
	})
}

// A commit over another connection than the poll waits for the client's machine to confirm the answer.
func TestCommitsOverAnotherConnection(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	addr := w.listen()
	post := func(client *http.Client, path, body string) int {
		t.Helper()
		resp, err := client.Post("http://"+addr+"/v1/consumer/"+path, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode
	}
	polls, commits := &http.Client{Transport: &http.Transport{}}, &http.Client{Transport: &http.Transport{}}
	defer polls.CloseIdleConnections()
	defer commits.CloseIdleConnections()
	for i := range topology.Offset(4) {
		w.produce(topic, 0, `1`)
		if status := post(polls, "poll?consumerId=c", ""); status != 200 {
			t.Fatalf("poll %d: %d", i, status)
		}
		body := fmt.Sprintf(`{"positions":[{"topic":"t","partition":0,"offset":%d}]}`, i+1)
		if i%2 == 0 {
			body = ""
		}
		if status := post(commits, "commit?consumerId=c", body); status != 204 {
			t.Errorf("commit %d: %d", i, status)
		}
		if at := w.committed("g", topic, 0); at != i+1 {
			t.Errorf("commit %d was answered, but the position is %d", i, at)
		}
	}
}

// The policy decides for all partitions of a topic or for none, wherever a crash comes between their positions: what was
// there before the group is never delivered to one that starts at the end.
func TestARegistrationThatIsCutShort(t *testing.T) {
	const partitions = 6
	for stored := range partitions + 1 {
		w := newWorld(t)
		topic := w.topics.create("t", partitions)
		for p := range topology.Partition(partitions) {
			w.produce(topic, p, `0`, `0`)
		}
		var appends atomic.Int64
		w.logs.failAppend = func(topology.LogID) error {
			if appends.Add(1) > int64(stored) {
				return topology.ErrUnavailable
			}
			return nil
		}
		r := w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&group=g&topic=t&onNewGroup="+latest, "", "")
		if (r.status == 200) != (stored == partitions) {
			t.Errorf("register with %d of %d positions stored: %d", stored, partitions, r.status)
		}
		w.restart()
		w.logs.failAppend = nil
		w.register("c", "g", latest, "t")
		for p := range topology.Partition(partitions) {
			w.produce(topic, p, `1`)
		}
		if n := w.pollAll("c"); n != partitions {
			t.Errorf("%d records after a crash with %d positions stored, want the %d that came since", n, stored, partitions)
		}
	}
}

// countedTopics counts the topics that are looked up by name.
type countedTopics struct {
	*fakeTopics
	lookups atomic.Int64
}

func (c *countedTopics) Lookup(name string) (topology.Topic, bool) {
	c.lookups.Add(1)
	return c.fakeTopics.Lookup(name)
}

// Traffic on topics that nobody consumes does not have all groups looked at, again and again, for the one that waits for
// a topic to come.
func TestTrafficOnOtherTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		topics := &countedTopics{}
		w := newWorld(t, func(c *Config) { topics.fakeTopics = c.Topics.(*fakeTopics); c.Topics = topics })
		stop := w.run()
		defer stop()
		busy := w.topics.create("busy", 1)
		w.register("c", "g", latest, "later")
		before := topics.lookups.Load()
		for range 500 {
			w.produce(busy, 0, `1`)
			time.Sleep(time.Millisecond)
		}
		if n := topics.lookups.Load() - before; n > 12 {
			t.Errorf("%d lookups in half a second, want one in 50ms", n)
		}
	})
}

// T3: whoever still holds a topic that was deleted does not bring its positions back.
func TestADeletedTopicDoesNotComeBack(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	w.flush()
	w.restart()
	held := w.s.positions.of(topic)
	w.topics.delete(topic.ID)
	if err := w.s.ForgetTopic(topic.ID); err != nil {
		t.Fatal(err)
	}
	for _, tp := range []*topicPositions{held, w.s.positions.of(topic)} {
		if _, err := w.s.positions.ensure(tp, 0); err != nil {
			t.Fatal(err)
		}
		w.s.positions.set(tp, 0, "g", change{position: position{offset: 1}})
	}
	_ = w.s.positions.flushDirty(t.Context())
	if err := w.s.positions.save(); err != nil {
		t.Fatal(err)
	}
	if n := len(w.s.positions.byTopic); n != 0 {
		t.Errorf("%d topics have positions in memory", n)
	}
	if n := len(w.kv.entries); n != 0 {
		t.Errorf("the local database has %d entries", n)
	}
	if n := len(w.s.positions.dirty) + len(w.s.positions.unsaved); n != 0 {
		t.Errorf("%d logs wait to be written or saved", n)
	}
}

// A topic that is named twice is one subscription, which ends with the last member that has it.
func TestTopicsThatAreNamedTwice(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("a", "g", earliest, "t", "u", "t")
	w.register("b", "g", earliest, "t")
	g := w.s.groups["g"]
	if n := len(w.s.stateless["a"].subs); n != 2 {
		t.Errorf("%d subscriptions, want 2", n)
	}
	for _, id := range []string{"a", "b"} {
		w.produce(topic, 0, `1`)
		if g.subs["t"] == nil {
			t.Fatalf("the subscription ended before %s left", id)
		}
		w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId="+id, "", "")
	}
	if n := len(g.subs) + len(w.s.feeds.of(topic.ID)) + int(w.s.unbound.Load()); n != 0 {
		t.Errorf("%d subscriptions are left of members that left", n)
	}
}

// Buffers that grew for a large chunk are not kept for the next poll.
func TestScratchesThatGrew(t *testing.T) {
	for name, records := range map[string][]recordbatch.Record{
		"bytes":   {{Value: make([]byte, 4<<20)}},
		"records": make([]recordbatch.Record, 50_000),
		"small":   {{Value: make([]byte, 1000)}},
	} {
		var b recordbatch.Builder
		b.Reset(0)
		for i := range records {
			b.Append(&records[i])
		}
		batch := b.Seal(nil)
		recordbatch.SetPosition(batch, 0, 1)
		w := new(scratch)
		if _, err := w.decoder.Decode(batch); err != nil {
			t.Fatal(err)
		}
		if w.small() != (name == "small") {
			t.Errorf("%s: %d bytes are held, kept is %v", name, w.decoder.Held(), w.small())
		}
	}
}

// countedForm counts the forms that hold buffers.
type countedForm struct {
	form
	held *atomic.Int64
}

func (c countedForm) release() {
	c.held.Add(-1)
	c.form.release()
}

// A poll that waits holds no buffers, neither of its own nor of the answers before.
func TestPollsThatWaitHoldNoBuffers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.register("c", "g", earliest, "t")
		var held atomic.Int64
		newBody := func() form {
			held.Add(1)
			return countedForm{newJSONForm(), &held}
		}
		ses := w.s.stateless["c"]
		for i := range 3 {
			got := make(chan polled, 1)
			go func() {
				p, err := w.s.poll(t.Context(), ses, &pollQuery{wait: 30 * time.Second, maxBytes: 1 << 20, maxRecords: 10}, newBody)
				if err != nil {
					t.Error(err)
				}
				got <- p
			}()
			synctest.Wait()
			if n := held.Load(); n != 0 {
				t.Errorf("round %d: %d buffers are held by a poll that waits", i, n)
			}
			w.produce(topic, 0, fmt.Sprint(i))
			p := <-got
			if p.outcome != gotRecords || held.Load() != 1 {
				t.Fatalf("round %d: %s, %d buffers", i, p.outcome, held.Load())
			}
			p.body.release()
			w.s.answered(ses, p.answer, true)
		}
	})
}
