package consuming

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
)

// docs/wire.md, 5.1.
func TestRegistrations(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, c := range map[string]struct {
		method, query, body string
		status              int
		text                string
	}{
		"query":                  {"PUT", "consumerId=c&group=g&topic=a&topic=b&onNewGroup=startFromEarliest", "", 200, "OK"},
		"query by POST":          {"POST", "consumerId=c&topic=a", "", 200, "OK"},
		"older spelling":         {"PUT", "consumer_id=c&topic=a", "", 200, "OK"},
		"known alike":            {"PUT", "consumerId=known&group=g&topic=a&topic=b", "", 200, "Already registered"},
		"known in another group": {"PUT", "consumerId=known&group=h&topic=a&topic=b", "", 400, "Consumer already registered with different parameters"},
		"known in another order": {"PUT", "consumerId=known&group=g&topic=b&topic=a", "", 400, "Consumer already registered with different parameters"},
		"no id":                  {"PUT", "group=g&topic=a", "", 400, "Consumer id and topics can not be empty"},
		"no topics":              {"PUT", "consumerId=c&group=g", "", 400, "Consumer id and topics can not be empty"},
		"unknown policy":         {"PUT", "consumerId=c&topic=a&onNewGroup=startFromNow", "", 400, "Invalid offset reset policy value"},
		"topic with a slash":     {"PUT", "consumerId=c&topic=a%2fb", "", 400, ""},
		"internal topic":         {"PUT", "consumerId=c&topic=__topics", "", 400, ""},
		"group too long":         {"PUT", "consumerId=c&topic=a&group=" + long, "", 400, ""},
		"id with control":        {"PUT", "consumerId=c%0a&topic=a", "", 400, ""},
		"id not in UTF-8":        {"PUT", "consumerId=%ff&topic=a", "", 400, ""},
		"broken query":           {"PUT", "consumerId=%zz&topic=a", "", 400, ""},
		"JSON":                   {"POST", "", `{"id":"c","group":"g","topics":["a"],"onNewGroup":0,"extra":1}`, 200, "OK"},
		"JSON by PUT":            {"PUT", "", `{"id":"c","topics":["a"]}`, 200, "OK"},
		"JSON, null policy":      {"PUT", "", `{"id":"c","topics":["a"],"onNewGroup":null}`, 200, "OK"},
		"JSON, policy as a word": {"POST", "", `{"id":"c","topics":["a"],"onNewGroup":"startFromLatest"}`, 400, "Invalid ConsumerInfo payload"},
		"JSON, unknown policy":   {"POST", "", `{"id":"c","topics":["a"],"onNewGroup":2}`, 400, "Invalid offset reset policy value"},
		"JSON, wrong type":       {"POST", "", `{"id":1,"topics":["a"]}`, 400, "Invalid ConsumerInfo payload"},
		"JSON, no topics":        {"POST", "", `{"id":"c","topics":[]}`, 400, "Consumer id and topics can not be empty"},
		"not JSON":               {"POST", "", `id=c`, 400, "Invalid ConsumerInfo payload"},
		"nothing":                {"POST", "", "", 400, "Invalid ConsumerInfo payload"},
		"body above the limit":   {"POST", "", strings.Repeat(" ", registerLimit+1), 413, ""},
		"too many topics":        {"PUT", "consumerId=c" + strings.Repeat("&topic=a", 21), "", 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.MaxTopics = 20 })
			w.register("known", "g", "", "a", "b")
			conn, closed := w.conn()
			defer closed()
			target := "/v1/consumer/register"
			if c.query != "" {
				target += "?" + c.query
			}
			r := w.do(conn, c.method, target, "", c.body)
			text := string(r.body)
			if r.status != 200 {
				text = r.detail()
			} else if ct := r.header.Get("Content-Type"); ct != "text/html; charset=utf-8" {
				t.Errorf("content type %q", ct)
			}
			if r.status != c.status || c.text != "" && text != c.text {
				t.Errorf("%d %q, want %d %q", r.status, text, c.status, c.text)
			}
		})
	}
}

func TestAConnectionRegistersAgain(t *testing.T) {
	w := newWorld(t)
	a, b := w.topics.create("a", 1), w.topics.create("b", 1)
	w.produce(a, 0, `1`)
	w.produce(a, 0, `2`)
	w.produce(b, 0, `3`)
	conn, closed := w.conn()
	register := func(topic string) {
		t.Helper()
		body := fmt.Sprintf(`{"id":"c","group":"g","topics":[%q],"onNewGroup":1}`, topic)
		if r := w.do(conn, "POST", "/v1/consumer/register", "", body); r.status != 200 || string(r.body) != "OK" {
			t.Fatalf("register: %d %s", r.status, r.body)
		}
	}
	poll := func() reply { return w.do(conn, "POST", "/v1/consumer/poll", "application/json", "") }
	register("a")
	w.want(poll(), "a@0=1")
	register("a") // alike: nothing changes
	w.want(poll(), "a@1=2")
	register("b") // the new one takes its place
	w.want(poll(), "b@0=3")
	if n := len(w.s.conns); n != 1 {
		t.Errorf("%d registrations of one connection", n)
	}
	closed()
	if n, g := len(w.s.conns), len(w.s.groups); n != 0 || g != 0 {
		t.Errorf("%d registrations and %d groups after the connection closed", n, g)
	}
}

func TestTooManyConsumers(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxConsumers = 2 })
	w.register("a", "g", "", "t")
	w.register("b", "g", "", "t")
	r := w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&topic=t", "", "")
	if r.status != 429 || r.header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d %s", r.status, r.body)
	}
	w.register("a", "g", "", "t")
}

// docs/wire.md, 0.14: where a group begins is decided when it registers.
func TestWhereAGroupBegins(t *testing.T) {
	for name, c := range map[string]struct {
		before int // records in the topic when the group registers; -1: the topic does not exist
		policy string
		want   int // records that it gets, of those and one more
	}{
		"earliest":                           {3, earliest, 4},
		"latest":                             {3, latest, 1},
		"latest after a single record":       {1, latest, 1},
		"unnamed":                            {3, "", 1},
		"unnamed after a single record":      {1, "", 2},
		"unnamed on an empty topic":          {0, "", 1},
		"latest on an empty topic":           {0, latest, 1},
		"latest, topic created afterwards":   {-1, latest, 1},
		"unnamed, topic created afterwards":  {-1, "", 1},
		"earliest, topic created afterwards": {-1, earliest, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			var topic topology.Topic
			produce := func() { w.produce(topic, 0, `1`) }
			if c.before >= 0 {
				topic = w.topics.create("t", 3)
			}
			for range c.before {
				produce()
			}
			w.register("c", "g", c.policy, "t")
			if c.before < 0 {
				if r := w.poll("c"); r.status != 204 {
					t.Fatalf("poll of an unknown topic: %d", r.status)
				}
				topic = w.topics.create("t", 3)
			}
			produce()
			if got := w.pollAll("c"); got != c.want {
				t.Errorf("%d records, want %d", got, c.want)
			}
		})
	}
}

// pollAll polls until nothing is new, and counts the values.
func (w *world) pollAll(id string) int {
	w.t.Helper()
	n := 0
	for {
		got := len(w.poll(id).values(w.t))
		if got == 0 {
			return n
		}
		n += got
	}
}

// What the policy decided stays decided, on partitions without a stored position too: nothing that came after the first
// registration is skipped by a later one, whatever policy that names.
func TestWhereAGroupBeginsIsDecidedOnce(t *testing.T) {
	for _, first := range []string{earliest, latest, ""} {
		for _, later := range []string{earliest, latest, ""} {
			w := newWorld(t)
			topic := w.topics.create("t", 6)
			for range 3 {
				w.produce(topic, 0, `0`)
			}
			w.register("c", "g", first, "t")
			w.restart()
			for p := range topology.Partition(6) {
				w.produce(topic, p, `1`, `2`)
			}
			w.register("c", "g", later, "t")
			want := 12
			if first == earliest {
				want += 3
			}
			if got := w.pollAll("c"); got != want {
				t.Errorf("registered with %q, then with %q: %d records, want %d", first, later, got, want)
			}
		}
	}
}

// Lots of partitions cost nothing before they are used: one stored position for a group and topic.
func TestARegistrationStoresFewPositions(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 768)
	for p := range topology.Partition(5) {
		w.produce(topic, p, `1`, `2`)
	}
	w.register("e", "earliest", earliest, "t")
	if _, n := w.logs.counts(); n != 1 {
		t.Errorf("%d positions stored for a group that begins at the beginning, want 1", n)
	}
	w.register("l", "latest", latest, "t")
	if _, n := w.logs.counts(); n != 1+5 {
		t.Errorf("%d positions stored for a group that begins at the end of 5 logs", n-1)
	}
	if n := len(w.s.positions.of(topic).logs); n != 5 {
		t.Errorf("%d partitions are held in memory", n)
	}
}

// A registration that cannot be stored is refused: the next one must not find another "latest".
func TestARegistrationThatCannotBeStored(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`, `2`)
	w.logs.failAppend = func(topology.LogID) error { return fmt.Errorf("append: %w", topology.ErrDiskFull) }
	r := w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&topic=t", "", "")
	if r.status != 507 {
		t.Errorf("register: %d %s", r.status, r.body)
	}
	if r := w.poll("c"); r.status != 409 {
		t.Errorf("poll after a refused registration: %d", r.status)
	}
	w.logs.failAppend = nil
	w.produce(topic, 0, `3`)
	w.register("c", "default", latest, "t")
	w.want(w.poll("c"), "t@2=3")
}

// T3: a re-created topic shares nothing with the old one, and is new to the groups that registered before it came.
func TestADeletedTopic(t *testing.T) {
	w := newWorld(t)
	old := w.topics.create("t", 1)
	w.produce(old, 0, `1`)
	w.produce(old, 0, `2`)
	w.register("c", "g", earliest, "t")
	w.poll("c")
	w.poll("c")
	w.flush()
	w.topics.delete(old.ID)
	if err := w.s.ForgetTopic(old.ID); err != nil {
		t.Fatal(err)
	}
	if len(w.kv.entries) != 0 {
		t.Errorf("the local database still has %d entries", len(w.kv.entries))
	}
	if r := w.poll("c"); r.status != 204 {
		t.Errorf("poll of a deleted topic: %d %s", r.status, r.body)
	}
	if r := w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", ""); r.status != 204 {
		t.Errorf("commit on a deleted topic: %d %s", r.status, r.body)
	}
	_, before := w.logs.counts()
	w.flush()
	if _, n := w.logs.counts(); n != before {
		t.Error("a position was written to a log of a deleted topic")
	}
	fresh := w.topics.create("t", 3)
	w.produce(fresh, 2, `3`)
	w.want(w.poll("c"), "t@0=3")
}

func FuzzParseQueries(f *testing.F) {
	for _, s := range []string{"wait=10s&maxBytes=1&maxRecords=5&ack=none", "ack=ab-1&wait=500", "offset=5", "time=2026-01-01T00:00:00Z&wait=1s",
		"last=10&maxRecords=99999999999999999999", "offset=-1", "consumer_id=x&ack=%00", "wait=9223372036854775807"} {
		f.Add(s)
	}
	cfg := Config{Topics: &fakeTopics{}, Logs: newFakeLogs(), Appender: newFakeLogs(), KV: newFakeKV(), Leadership: &fakeLead{}}
	if err := cfg.fill(); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := url.ParseQuery(s)
		if err != nil {
			return
		}
		if p, err := parsePoll(q, &cfg); err == nil {
			if p.wait < 0 || p.wait > cfg.MaxWait || p.maxBytes < 1 || p.maxBytes > cfg.MaxBytes || p.maxRecords < 1 || p.maxRecords > cfg.MaxRecords {
				t.Errorf("%q: %+v is out of bounds", s, p)
			}
			if (p.ack.kind == ackID) != (p.ack.id != "") {
				t.Errorf("%q: ack %+v", s, p.ack)
			}
		}
		if r, err := parseRead(q, &cfg); err == nil {
			if r.offset < 0 || r.last < 0 || r.wait > cfg.MaxWait || r.maxRecords < 1 || r.maxBytes < 1 {
				t.Errorf("%q: %+v is out of bounds", s, r)
			}
		}
	})
}

func FuzzParseRegistration(f *testing.F) {
	for _, s := range []string{`{"id":"c","group":"g","topics":["a"],"onNewGroup":1}`, `{"id":null,"topics":null}`, `[]`, `{"onNewGroup":1.5}`, "\xff"} {
		f.Add([]byte(s))
	}
	ctx, closed := (&world{}).conn()
	f.Cleanup(closed)
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := parseRegistration(body, ctx)
		if err != nil {
			return
		}
		if err := r.check(10); err == nil && (r.id == "" || r.group == "" || len(r.topics) == 0 || len(r.topics) > 10) {
			t.Errorf("%q: %+v was not refused", body, r)
		}
	})
}
