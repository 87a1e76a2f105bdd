package consuming

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/topology"
)

func (w *world) pollBinary(id, extra string) reply {
	w.t.Helper()
	return w.do(context.Background(), "POST", "/v1/consumer/poll?consumerId="+id+extra, "", "")
}

// A poll that waits goes on behind records that its form leaves out; it does not wait for others to come.
func TestLongPollsGoOnBehindWhatTheySkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.register("c", "g", earliest, "t")
		w.produce(topic, 0, "", "x")
		started := time.Now()
		if r := w.pollBinary("c", "&maxRecords=1&wait=2s"); r.status != 200 || time.Since(started) != 0 {
			t.Errorf("%d after %s", r.status, time.Since(started))
		}
		w.pollBinary("c", "")
		for range maxSkips + 5 {
			w.produce(topic, 0, "")
		}
		w.produce(topic, 0, "y")
		started = time.Now()
		r := w.pollBinary("c", "&wait=2s")
		if r.status != 200 || time.Since(started) != 0 {
			t.Fatalf("%d after %s", r.status, time.Since(started))
		}
		if items := parseBinary(t, r.body); len(items) != 1 || items[0].start != 2+maxSkips+5 || items[0].values[0] != "y" {
			t.Errorf("items %+v", items)
		}
	})
}

// hookedLogs calls a function before one read.
type hookedLogs struct {
	*fakeLogs
	before atomic.Pointer[func()]
}

func (h *hookedLogs) Read(id topology.LogID, from topology.Offset, maxBytes int, buf []byte) (data.ReadResult, []byte, error) {
	if fn := h.before.Swap(nil); fn != nil {
		(*fn)()
	}
	return h.fakeLogs.Read(id, from, maxBytes, buf)
}

// A partition changes hands while its old owner reads it: the new owner, whose poll waits already, gets the records.
func TestAPartitionThatMovesWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hookedLogs{}
		w := newWorld(t, func(c *Config) { h.fakeLogs = c.Logs.(*fakeLogs); c.Logs = h })
		topic := w.topics.create("t", 1)
		old, next := "a", "b0"
		for i := 0; assign("t", 1, []string{old, next})[0] != 1; i++ {
			next = fmt.Sprint("b", i)
		}
		w.register(old, "g", earliest, "t")
		w.produce(topic, 0, `1`)
		got := make(chan reply, 1)
		move := func() {
			w.register(next, "g", earliest, "t")
			go func() { got <- w.poll(next, "wait=3s") }()
			synctest.Wait()
		}
		h.before.Store(&move)
		started := time.Now()
		if r := w.poll(old); r.status != 204 {
			t.Errorf("the old owner got %s", r.body)
		}
		w.want(<-got, "t@0=1")
		if d := time.Since(started); d != 0 {
			t.Errorf("the new owner waited %s", d)
		}
	})
}

// A member that leaves while its poll reads gives the records back to a poll that waits.
func TestAMemberThatLeavesWhileItReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hookedLogs{}
		w := newWorld(t, func(c *Config) { h.fakeLogs = c.Logs.(*fakeLogs); c.Logs = h })
		topic := w.topics.create("t", 1)
		w.register("a", "g", earliest, "t")
		w.register("b", "g", earliest, "t")
		owner, other := "a", "b"
		if assign("t", 1, []string{"a", "b"})[0] == 1 {
			owner, other = other, owner
		}
		got := make(chan reply, 1)
		go func() { got <- w.poll(other, "wait=30s") }()
		synctest.Wait()
		w.produce(topic, 0, `1`)
		leave := func() { w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId="+owner, "", "") }
		h.before.Store(&leave)
		if r := w.poll(owner); r.status != 409 {
			t.Errorf("the poll of a member that left: %d %s", r.status, r.body)
		}
		w.want(<-got, "t@0=1")
	})
}

// An answer has as many items as its count holds; the rest comes with the next one.
func TestMoreItemsThanAnAnswerHolds(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	const records = 70_000
	values := make([]string, 2*records)
	for i := range values {
		if i%2 == 0 {
			values[i] = "x" // and an empty one after it, so that each is an item of its own
		}
	}
	w.produce(topic, 0, values...)
	w.register("c", "g", earliest, "t")
	items := 0
	for r := w.pollBinary("c", "&maxBytes=99999999"); r.status == 200; r = w.pollBinary("c", "&maxBytes=99999999") {
		items += int(binary.BigEndian.Uint16(r.body))
	}
	if items != records {
		t.Errorf("%d items, want %d", items, records)
	}
}

// A log that lost its tail grows past the position that a group had: nothing of what comes is skipped.
func TestAPositionBeyondTheEnd(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", latest, "t")
	for range 10 {
		w.produce(topic, 0, `0`)
	}
	w.pollAll("c")
	w.flush()
	l := w.logs.logs[topic.Log(0)]
	l.chunks, l.end = l.chunks[:5], 5
	w.restart()
	w.register("c", "g", latest, "t")
	if n := w.pollAll("c"); n != 0 {
		t.Errorf("%d records", n)
	}
	w.flush()
	w.restart()
	for i := range 8 {
		w.produce(topic, 0, fmt.Sprint(i))
	}
	w.register("c", "g", latest, "t")
	if n := w.pollAll("c"); n != 8 {
		t.Errorf("%d of the 8 new records came", n)
	}
}

// Answers without records have an id too: it can be acknowledged, and commits nothing that came later.
func TestReceiptsOfEmptyAnswers(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	empty := w.poll("c").header.Get("Skein-Poll-Id")
	if empty == "" {
		t.Fatal("an answer without an id")
	}
	r := w.poll("c", "ack="+empty)
	if got := r.header.Get("Skein-Ack"); got != "committed" {
		t.Errorf("ack of an empty answer: %q", got)
	}
	empty = r.header.Get("Skein-Poll-Id")
	if r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c&ack="+empty, "", ""); r.status != 204 {
		t.Errorf("commit of an empty answer: %d %s", r.status, r.body)
	}
	w.produce(topic, 0, `1`)
	w.want(w.poll("c"), "t@0=1") // lost on its way: the client still has the id of the empty one
	w.want(w.poll("c", "ack="+empty), "t@0=1")
	if at := w.committed("g", topic, 0); at != 0 {
		t.Errorf("committed %d", at)
	}
}

// P8: without the lease commits are refused, with what to do next.
func TestCommitsWithoutLeadership(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.register("c", "g", earliest, "t")
	for _, c := range []struct {
		version topology.Version
		err     error
		status  int
	}{{1, topology.ErrUnavailable, 503}, {1, topology.ErrNotLeader, 421}, {2, nil, 503}} {
		w.lead.set(1, nil)
		w.s.LeadershipChanged()
		w.want(w.poll("c", "ack=none"), "t@0=1")
		w.lead.set(c.version, c.err)
		if r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", ""); r.status != c.status {
			t.Errorf("version %d, %v: %d %s, want %d", c.version, c.err, r.status, r.body, c.status)
		}
	}
	w.lead.set(2, nil)
	w.s.LeadershipChanged()
	w.want(w.poll("c"), "t@0=1")
	for range 2 { // what was given up with the old leadership does not spoil later commits
		if r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", ""); r.status != 204 {
			t.Errorf("commit under the new leadership: %d %s", r.status, r.body)
		}
	}
}

// A registration for many topics waits for one round after the other of flushes, not for one topic after the other.
func TestARegistrationForManyTopics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		names := make([]string, 100)
		for i := range names {
			names[i] = fmt.Sprint("topic-", i)
			w.topics.create(names[i], 3)
		}
		w.logs.failAppend = func(topology.LogID) error { time.Sleep(10 * time.Millisecond); return nil }
		started := time.Now()
		w.register("c", "g", earliest, names...)
		if d := time.Since(started); d != 40*time.Millisecond {
			t.Errorf("100 topics took %s, want 4 rounds of 10ms", d)
		}
	})
}

// The lag in the list of groups is that of their partitions, with those that have no stored position.
func TestTheLagOfAGroup(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 3)
	for p := range topology.Partition(3) {
		w.produce(topic, p, `1`, `2`)
	}
	w.register("c", "g", earliest, "t")
	w.poll("c", "maxRecords=3")
	w.poll("c", "maxRecords=1")
	detail, _ := w.s.Group(t.Context(), "g")
	lag := int64(0)
	for _, p := range detail.Partitions {
		lag += p.Lag
	}
	if list := w.s.Groups(t.Context()); len(list) != 1 || list[0].Lag != lag || lag != 3 {
		t.Errorf("the list says %d, the partitions %d, want 3", list[0].Lag, lag)
	}
}

// F14.2: an answer that the kernel took but the client never read counts as not delivered, also for a consumer that
// comes back over another connection.
func TestAnAnswerThatNobodyReadIsDeliveredAgain(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	w.register("c", "g", earliest, "t")
	addr := w.listen()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "POST /v1/consumer/poll?consumerId=c HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil { // it is there, and is dropped with the rest
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // as a process that is killed with unread bytes
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for i, want := range []int64{0, 1} { // each over a connection of its own, as curl does
		resp, err := client.Post("http://"+addr+"/v1/consumer/poll?consumerId=c", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("poll %d: %d, %v", i, resp.StatusCode, err)
		}
		if items := parseBinary(t, body); len(items) != 1 || items[0].start != want {
			t.Errorf("poll %d: %+v, want offset %d", i, items, want)
		}
	}
}
