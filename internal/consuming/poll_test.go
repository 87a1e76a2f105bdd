package consuming

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

func (w *world) want(r reply, values ...string) {
	w.t.Helper()
	if got := r.values(w.t); !slices.Equal(got, values) {
		w.t.Errorf("got %v, want %v", got, values)
	}
}

// docs/wire.md, 5.2: polling again commits, one chunk for each partition and poll.
func TestPollingAgainCommits(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	w.produce(topic, 0, `1`, `2`)
	w.produce(topic, 0, `3`)

	r := w.poll("c")
	equalJSON(t, r.body, `[{"topic":"t","token":"-9223372036854775808","rangeIndex":0,"version":1,"startOffset":"0","values":[1,2]}]`)
	if r.header.Get("Content-Type") != "application/json" || r.header.Get("Skein-Poll-Id") == "" || r.header.Get("Content-Length") == "" {
		t.Errorf("headers %v", r.header)
	}
	if at := w.committed("g", topic, 0); at != 0 {
		t.Errorf("the first poll committed %d", at)
	}
	w.want(w.poll("c"), "t@2=3")
	if at := w.committed("g", topic, 0); at != 2 {
		t.Errorf("the second poll committed %d, want 2", at)
	}
	r = w.poll("c")
	if r.status != 204 || r.header.Get("Retry-After") != "1" || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a poll without news: %d %v", r.status, r.header)
	}
	if at := w.committed("g", topic, 0); at != 3 {
		t.Errorf("the third poll committed %d, want 3", at)
	}
}

// docs/design.md, section 7: ack names the answer, none gives it back.
func TestReceipts(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	for _, v := range []string{`1`, `2`, `3`} {
		w.produce(topic, 0, v)
	}
	first := w.poll("c")
	w.want(first, "t@0=1")
	again := w.poll("c", "ack=none")
	w.want(again, "t@0=1")
	if at := w.committed("g", topic, 0); at != 0 || again.header.Get("Skein-Ack") != "" {
		t.Errorf("ack=none committed %d, said %q", at, again.header.Get("Skein-Ack"))
	}
	// The first answer was given back, so it can not be committed any more.
	r := w.poll("c", "ack="+first.header.Get("Skein-Poll-Id"))
	w.want(r, "t@0=1")
	if got := r.header.Get("Skein-Ack"); got != "unknown" {
		t.Errorf("ack of what was given back: %q", got)
	}
	id := r.header.Get("Skein-Poll-Id")
	r = w.poll("c", "ack="+id)
	w.want(r, "t@1=2")
	if got, at := r.header.Get("Skein-Ack"), w.committed("g", topic, 0); got != "committed" || at != 1 {
		t.Errorf("ack of the last answer: %q, committed %d", got, at)
	}
	// The answer was lost on its way, and the request is repeated: nothing more is committed, and 2 comes again.
	r = w.poll("c", "ack="+id)
	w.want(r, "t@1=2")
	if got, at := r.header.Get("Skein-Ack"), w.committed("g", topic, 0); got != "repeated" || at != 1 {
		t.Errorf("ack sent again: %q, committed %d", got, at)
	}
	if r := w.poll("c", "ack="); r.status != 400 {
		t.Errorf("empty ack: %d", r.status)
	}
}

// F14.2: what was not written to its end counts as not delivered.
func TestAnAnswerThatWasCutOffIsDeliveredAgain(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	if n := w.pollCut("c", 5); n == 0 {
		t.Fatal("nothing was written")
	}
	w.want(w.poll("c"), "t@0=1")
	w.want(w.poll("c"), "t@1=2")
	if at := w.committed("g", topic, 0); at != 1 {
		t.Errorf("committed %d, want 1", at)
	}
}

// docs/design.md, section 7; docs/wire.md, 5.2: an origin is a connection or an id, another one rewinds.
func TestAnotherOriginRewinds(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	for _, v := range []string{`1`, `2`, `3`} {
		w.produce(topic, 0, v)
	}
	one, closeOne := w.conn()
	two, closeTwo := w.conn()
	defer closeTwo()
	const body = `{"id":"c","group":"g","topics":["t"],"onNewGroup":1}`
	for _, ctx := range []context.Context{one, two} {
		if r := w.do(ctx, "POST", "/v1/consumer/register", "", body); r.status != 200 || string(r.body) != "OK" {
			t.Fatalf("register: %d %s", r.status, r.body)
		}
	}
	poll := func(ctx context.Context) reply {
		return w.do(ctx, "POST", "/v1/consumer/poll", "application/json", "")
	}
	commit := func(ctx context.Context) reply { return w.do(ctx, "POST", "/v1/consumer/commit", "", "") }
	w.want(poll(one), "t@0=1")
	w.want(poll(two), "t@0=1")
	if r := commit(one); r.status != 409 || r.detail() != "Manual commit ignored: another origin reading" {
		t.Errorf("commit of the origin that lost the partition: %d %s", r.status, r.body)
	}
	if r := commit(two); r.status != 204 || r.header.Get("Retry-After") != "1" || r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("commit: %d %v", r.status, r.header)
	}
	if at := w.committed("g", topic, 0); at != 1 {
		t.Errorf("committed %d, want 1", at)
	}
	w.want(poll(one), "t@1=2")
	closeOne()
	if r := poll(one); r.status != 409 || r.detail() != "Consumer not registered" {
		t.Errorf("poll over a closed connection: %d %s", r.status, r.body)
	}
	w.want(poll(two), "t@1=2")
}

func TestPollsAndCommitsOfStrangers(t *testing.T) {
	w := newWorld(t)
	conn, closed := w.conn()
	defer closed()
	for _, path := range []string{"poll", "commit", "goodbye", "poll?consumerId=x", "commit?consumerId=x", "goodbye?consumer_id=x"} {
		if r := w.do(conn, "POST", "/v1/consumer/"+path, "", ""); r.status != 409 || r.detail() != "Consumer not registered" {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// docs/wire.md, 5.2: at most one chunk for each partition, visited round robin across polls, up to maxBytes.
func TestPollsGoRoundThePartitions(t *testing.T) {
	w := newWorld(t)
	a, b := w.topics.create("a", 3), w.topics.create("b", 1)
	w.register("c", "g", earliest, "a", "b")
	value := `"` + strings.Repeat("x", 998) + `"`
	for range 2 {
		for p := range topology.Partition(3) {
			w.produce(a, p, value)
		}
		w.produce(b, 0, value)
	}
	var order []string
	for range 8 {
		list := w.poll("c", "maxBytes=1200").chunks(t)
		if len(list) != 1 {
			t.Fatalf("%d chunks, want one of 1000 bytes", len(list))
		}
		order = append(order, list[0].Topic+list[0].Token+"@"+list[0].StartOffset)
	}
	seen := map[string]bool{}
	for i, o := range order {
		if seen[o] || strings.HasSuffix(o, "@1") != (i >= 4) {
			t.Fatalf("not round robin: %v", order)
		}
		seen[o] = true
	}
	if list := w.poll("c").chunks(t); list != nil {
		t.Errorf("more than there is: %v", list)
	}
	for range 3 {
		w.produce(a, 0, `1`)
		w.produce(a, 1, `1`)
	}
	if list := w.poll("c").chunks(t); len(list) != 2 {
		t.Errorf("%d chunks in one poll, want one of each partition", len(list))
	}
}

func TestBoundsOfAPoll(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.register("c", "g", earliest, "t")
	w.produce(topic, 0, `1`, `2`, `3`, `4`, `5`)
	w.want(w.poll("c", "maxRecords=2"), "t@0=1", "t@1=2")
	w.want(w.poll("c", "maxRecords=2"), "t@2=3", "t@3=4")
	w.want(w.poll("c", "maxBytes=1"), "t@4=5")
	w.produce(topic, 0, `"`+strings.Repeat("x", 5000)+`"`, `7`)
	if got := w.poll("c", "maxBytes=100").values(t); len(got) != 1 {
		t.Errorf("a record above maxBytes comes alone: %d values", len(got))
	}
	w.want(w.poll("c", "maxBytes=100"), "t@6=7")
	for _, q := range []string{"maxBytes=0", "maxBytes=-1", "maxRecords=x", "wait=-1s", "wait=x", "ack=" + strings.Repeat("y", 65)} {
		if r := w.poll("c", q); r.status != 400 {
			t.Errorf("%s: %d", q, r.status)
		}
	}
}

// docs/design.md, section 7: a member that does not own the partition now can not move its position, and the new owner
// begins at the committed one.
func TestPartitionsThatChangeHands(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 12)
	for p := range topology.Partition(12) {
		w.produce(topic, p, `1`)
		w.produce(topic, p, `2`)
	}
	w.register("a", "g", earliest, "t")
	first := w.poll("a").chunks(t)
	if len(first) != 12 {
		t.Fatalf("a single member gets %d partitions", len(first))
	}
	w.register("b", "g", earliest, "t")
	moved := w.poll("b").chunks(t)
	if len(moved) != 6 {
		t.Fatalf("the second of two members gets %d of 12 partitions", len(moved))
	}
	for _, c := range moved {
		if c.StartOffset != "0" {
			t.Errorf("the new owner begins at %s, nothing was committed", c.StartOffset)
		}
	}
	kept := w.poll("a").chunks(t)
	if len(kept) != 6 {
		t.Fatalf("the first of two members keeps %d of 12 partitions", len(kept))
	}
	for p := range topology.Partition(12) {
		want := topology.Offset(0)
		if slices.ContainsFunc(kept, func(c chunk) bool { return c.Token == fmt.Sprint(int64(topic.PartitionToken(p))) }) {
			want = 1
		}
		if at := max(0, w.committed("g", topic, p)); at != want {
			t.Errorf("partition %d is committed at %d, want %d", p, at, want)
		}
	}
	// b leaves without a commit: a gets its partitions from the committed position.
	if r := w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId=b&commit=false", "", ""); r.status != 200 || string(r.body) != "OK" {
		t.Fatalf("goodbye: %d %s", r.status, r.body)
	}
	if r := w.poll("b"); r.status != 409 {
		t.Errorf("poll after goodbye: %d", r.status)
	}
	got := w.poll("a").chunks(t)
	if len(got) != 6 {
		t.Errorf("after the other left, %d chunks, want the 6 it had not committed", len(got))
	}
	for _, c := range got {
		if c.StartOffset != "0" {
			t.Errorf("taken over at %s", c.StartOffset)
		}
	}
}

func TestAMemberWithoutPartitions(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.register("a", "g", earliest, "t")
	w.register("b", "g", earliest, "t")
	ra, rb := w.poll("a"), w.poll("b")
	if ra.status == 204 {
		ra, rb = rb, ra
	}
	w.want(ra, "t@0=1")
	if rb.status != 204 || rb.header.Get("Retry-After") != "5" {
		t.Errorf("poll of a member without partitions: %d %v", rb.status, rb.header)
	}
}

// Goodbye commits what the last answer delivered.
func TestGoodbyeCommits(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.register("a", "g", earliest, "t")
	w.want(w.poll("a"), "t@0=1")
	if r := w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId=a", "", ""); r.status != 200 {
		t.Fatalf("goodbye: %d %s", r.status, r.body)
	}
	w.restart() // nothing was flushed by Run: goodbye has waited for the log
	if at := w.committed("g", topic, 0); at != 1 {
		t.Errorf("committed %d, want 1", at)
	}
}

// Commits of polls are gathered: until they are written, a crash delivers again; it never skips.
func TestCommitsOfPollsAreWrittenLater(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	w.produce(topic, 0, `3`)
	w.register("c", "g", earliest, "t")
	w.poll("c")
	w.poll("c")
	w.flush()
	w.poll("c")
	w.restart()
	w.register("c", "g", latest, "t")
	w.want(w.poll("c"), "t@1=2")
}

// A manual commit is durable when it is answered, together with what polls committed before.
func TestManualCommitsAreDurable(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 2)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`)
	w.produce(topic, 1, `1`)
	w.register("c", "g", earliest, "t")
	w.poll("c") // both partitions
	w.poll("c") // commits them in memory
	r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", "")
	if r.status != 204 {
		t.Fatalf("commit: %d %s", r.status, r.body)
	}
	w.restart()
	if a, b := w.committed("g", topic, 0), w.committed("g", topic, 1); a != 2 || b != 1 {
		t.Errorf("committed %d and %d, want 2 and 1", a, b)
	}
	if r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", ""); r.status != 409 {
		t.Errorf("commit after a restart: %d", r.status)
	}
}

func TestCommitByReceiptAndByOffset(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`, `2`, `3`)
	w.register("c", "g", earliest, "t")
	r := w.poll("c")
	commit := func(query, body string) reply {
		return w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c"+query, "", body)
	}
	if got := commit("&ack=other", ""); got.status != 409 {
		t.Errorf("commit of an unknown answer: %d %s", got.status, got.body)
	}
	if got := commit("", `{"positions":[{"topic":"t","partition":0,"offset":2}]}`); got.status != 204 {
		t.Errorf("commit of two of three records: %d %s", got.status, got.body)
	}
	if at := w.committed("g", topic, 0); at != 2 {
		t.Errorf("committed %d, want 2", at)
	}
	for _, body := range []string{`{"positions":[{"topic":"t","partition":0,"offset":1}]}`, `{"positions":[{"topic":"t","partition":0,"offset":4}]}`,
		`{"positions":[{"topic":"u","partition":0,"offset":1}]}`, `{"positions":[]}`, `[`} {
		if got := commit("", body); got.status != 400 {
			t.Errorf("commit of %s: %d %s", body, got.status, got.body)
		}
	}
	w.want(w.poll("c", "ack=none"), "t@2=3")
	if got := commit("&ack="+r.header.Get("Skein-Poll-Id"), ""); got.status != 409 {
		t.Errorf("commit of an answer that was given back: %d", got.status)
	}
	r = w.poll("c", "ack=none")
	for range 2 { // repeating it is fine
		if got := commit("&ack="+r.header.Get("Skein-Poll-Id"), ""); got.status != 204 {
			t.Errorf("commit by receipt: %d %s", got.status, got.body)
		}
	}
	if at := w.committed("g", topic, 0); at != 3 {
		t.Errorf("committed %d, want 3", at)
	}
}

// A commit whose log fails is refused, and written when the log is back.
func TestCommitsThatFail(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.register("c", "g", earliest, "t")
	w.poll("c")
	w.logs.failAppend = func(topology.LogID) error { return fmt.Errorf("commit: %w", topology.ErrUnavailable) }
	r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", "")
	if r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("commit without a log: %d %s", r.status, r.body)
	}
	if err := w.s.positions.flushDirty(t.Context()); !errors.Is(err, topology.ErrUnavailable) {
		t.Errorf("flush: %v", err)
	}
	w.logs.failAppend = nil
	w.flush()
	w.restart()
	if at := w.committed("g", topic, 0); at != 1 {
		t.Errorf("committed %d, want 1", at)
	}
}

// P8: without the lease nothing is served, and the answer says why.
func TestPollsWithoutLeadership(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.register("c", "g", earliest, "t")
	w.lead.set(1, topology.ErrNotLeader)
	r := w.poll("c")
	if r.status != 204 || r.header.Get("Retry-After") == "" || r.header.Get("Skein-Reason") != "not-leader" {
		t.Errorf("poll without lease: %d %v", r.status, r.header)
	}
	w.lead.set(1, nil)
	w.want(w.poll("c"), "t@0=1")
	// Under another generation nothing that was open before counts.
	w.lead.set(2, nil)
	w.s.LeadershipChanged()
	w.want(w.poll("c"), "t@0=1")
	if at := w.committed("g", topic, 0); at != 0 {
		t.Errorf("committed %d over a change of leadership", at)
	}
}

func TestPollsThatCannotRead(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 2)
	w.produce(topic, 0, `1`)
	w.produce(topic, 1, `2`)
	w.register("c", "g", earliest, "t")
	bad := topic.Log(0)
	w.logs.failRead = func(id topology.LogID) error {
		if id == bad {
			return fmt.Errorf("i/o error: %w", topology.ErrUnavailable)
		}
		return nil
	}
	w.want(w.poll("c"), "t@0=2") // the other partition goes on
	if r := w.poll("c"); r.status != 503 {
		t.Errorf("poll of a log that cannot be read: %d %s", r.status, r.body)
	}
	w.logs.failRead = nil
	w.want(w.poll("c"), "t@0=1")
}

// docs/design.md, section 5: damage is skipped and named.
func TestDamagedRecordsAreSkipped(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	w.produce(topic, 0, `2`, `3`)
	w.produce(topic, 0, `4`)
	w.produce(topic, 0, `5`)
	w.logs.damage(topic.Log(0), 1)
	w.logs.damage(topic.Log(0), 4)
	w.register("c", "g", earliest, "t")
	w.want(w.poll("c"), "t@0=1")
	r := w.poll("c")
	w.want(r, "t@3=4")
	if got := r.header.Get("Skein-Damaged"); got != "t/0:1-3" {
		t.Errorf("Skein-Damaged: %q", got)
	}
	r = w.poll("c")
	if got := r.header.Get("Skein-Damaged"); r.status != 204 || got != "t/0:4-5" {
		t.Errorf("damage at the end: %d, Skein-Damaged %q", r.status, got)
	}
	if at := w.committed("g", topic, 0); at != 5 {
		t.Errorf("committed %d, want 5: nothing is left to wait for", at)
	}
}

// P9: a position below the start of the log is out of range, not a lost record.
func TestPositionsOutsideTheLog(t *testing.T) {
	for _, c := range []struct {
		policy string
		want   []string
	}{{earliest, []string{"t@3=3"}}, {"", []string{"t@3=3"}}, {latest, nil}} {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		for i := range 5 {
			w.produce(topic, 0, fmt.Sprint(i))
		}
		w.register("c", "g", earliest, "t")
		w.poll("c")
		w.poll("c") // committed: 1
		w.flush()
		w.restart()
		if err := w.logs.SetStart(topic.Log(0), 3); err != nil {
			t.Fatal(err)
		}
		w.register("c", "g", c.policy, "t")
		w.want(w.poll("c"), c.want...)
		w.produce(topic, 0, `9`)
		if c.policy == latest {
			w.want(w.poll("c"), "t@5=9")
		}
	}
}
