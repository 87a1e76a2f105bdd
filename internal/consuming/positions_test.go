package consuming

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// errCrash is what a crash in a fake panics with.
var errCrash = errors.New("crash")

// crashing runs fn, which a crash may end anywhere.
func crashing(fn func()) (crashed bool) {
	defer func() {
		if r := recover(); r != nil {
			if r != errCrash { //nolint:errorlint // the very value
				panic(r)
			}
			crashed = true
		}
	}()
	fn()
	return false
}

// history is all that was ever appended to positions logs, what lies before their start included.
type history struct {
	logs map[topology.LogID][]recordbatch.Record
}

// fold is what the view of a log must be: the last record of each group.
func (h *history) fold(id topology.LogID) map[string]topology.Offset {
	view := map[string]topology.Offset{}
	for _, r := range h.logs[id] {
		if r.Value == nil {
			delete(view, string(r.Key))
			continue
		}
		p, err := decodePosition(r.Value)
		if err != nil {
			panic(err)
		}
		view[string(r.Key)] = p.offset
	}
	return view
}

// note adds records that reach the log.
func (h *history) note(id topology.LogID, records []recordbatch.Record) {
	for _, r := range records {
		h.logs[id] = append(h.logs[id], recordbatch.Record{Key: r.Key, Value: r.Value})
	}
}

// placed is a group on a partition.
type placed struct {
	group     string
	partition topology.Partition
}

// F14.3, F14.4; docs/design.md, section 7: whatever step a crash comes between, and whatever of the local database it
// takes, the view is a function of the log, and a commit that was answered is there.
func TestPositionsSurviveCrashesAnywhere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{logs: map[topology.LogID][]recordbatch.Record{}}
		w := newWorld(t, func(c *Config) { c.SnapshotAfter = 8 })
		w.cfg.Appender = appendFunc(func(ctx context.Context, a appendArgs) (topology.Offset, error) {
			// A crash before the append leaves nothing, one after it leaves the record.
			w.logs.step("before append")
			h.note(a.id, a.records)
			base := w.logs.add(a.id, a.records...)
			w.logs.step("after append")
			if a.lost {
				return 0, topology.ErrOutcomeUnknown
			}
			return base, nil
		}, func() bool { return rapid.IntRange(0, 9).Draw(rt, "lost") == 0 })
		w.open()
		topic := w.topics.create("t", 2)
		for p := range topology.Partition(2) {
			w.produce(topic, p, `1`)
		}
		countdown := -1
		crash := func(string) {
			if countdown--; countdown == 0 {
				panic(errCrash)
			}
		}
		w.logs.crash, w.kv.crash = crash, crash
		acked := map[placed]topology.Offset{}
		next := topology.Offset(1)
		cover := func() *topicPositions {
			tp := w.s.positions.of(topic)
			for p := range topology.Partition(2) {
				if _, err := w.s.positions.ensure(tp, p); err != nil {
					rt.Fatalf("%v", err)
				}
			}
			return tp
		}
		step := func() {
			tp := cover()
			group := fmt.Sprint("g", rapid.IntRange(0, 3).Draw(rt, "group"))
			p := topology.Partition(rapid.IntRange(0, 1).Draw(rt, "partition"))
			key := placed{group, p}
			switch rapid.SampledFrom([]string{"commit", "commit", "set", "flush", "save", "snapshot", "delete"}).Draw(rt, "step") {
			case "commit":
				c := change{position: position{offset: next, reason: byCommit}}
				next++
				delete(acked, key) // from here on either
				l := w.s.positions.set(tp, p, group, c)
				if w.s.positions.flush(context.Background(), []*positionLog{l}) == nil {
					acked[key] = c.offset
				}
			case "set":
				delete(acked, key)
				w.s.positions.set(tp, p, group, change{position: position{offset: next, reason: byPoll}})
				next++
			case "delete":
				delete(acked, key)
				w.s.positions.set(tp, p, group, change{gone: true})
			case "flush":
				for p := range topology.Partition(2) { // one by one, so that a crash is this goroutine's
					if l := tp.get(p); l != nil {
						_ = w.s.positions.write(context.Background(), l, false)
					}
				}
			case "save":
				_ = w.s.positions.save()
			case "snapshot":
				if l := tp.get(p); l != nil {
					_ = w.s.positions.write(context.Background(), l, true)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			countdown = rapid.SampledFrom([]int{-1, -1, -1, 1, 2, 3, 4}).Draw(rt, "crash")
			crashed := crashing(step)
			countdown = -1
			if !crashed && rapid.IntRange(0, 9).Draw(rt, "restart") > 0 {
				continue
			}
			if rapid.Bool().Draw(rt, "power cut") {
				w.kv.forget()
			}
			w.restart()
			tp := cover()
			for p := range topology.Partition(2) {
				want := h.fold(topic.Log(p).Positions())
				got := map[string]topology.Offset{}
				if l := tp.get(p); l != nil {
					for g, pos := range l.view {
						got[g] = pos.offset
					}
				}
				if !maps.Equal(got, want) {
					rt.Fatalf("partition %d: the view is %v, the log says %v", p, got, want)
				}
				for g, at := range got {
					if want, ok := acked[placed{g, p}]; ok && at != want {
						rt.Fatalf("partition %d, group %s: at %d, %d was acknowledged", p, g, at, want)
					}
				}
			}
			for key, at := range acked {
				if pos, ok := w.s.positions.position(tp, key.partition, key.group); !ok || pos.offset != at {
					rt.Fatalf("%v is at %+v (%v), %d was acknowledged", key, pos, ok, at)
				}
			}
		}
	})
}

type appendArgs struct {
	id      topology.LogID
	records []recordbatch.Record
	lost    bool
}

// Snapshots keep a positions log small and change nothing.
func TestSnapshotsKeepPositionsLogsSmall(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.SnapshotAfter = 10 })
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	tp := w.s.positions.of(topic)
	if _, err := w.s.positions.ensure(tp, 0); err != nil {
		t.Fatal(err)
	}
	w.s.positions.set(tp, 0, "once", change{position: position{offset: 7, reason: byCommit}})
	for i := range 500 {
		w.s.positions.set(tp, 0, fmt.Sprint("g", i%3), change{position: position{offset: topology.Offset(i), reason: byPoll}})
		w.flush()
		w.s.positions.snapshots(t.Context())
	}
	info := w.logs.Info(topic.Log(0).Positions())
	if n := info.End - info.Start; n > 80 || n < 4 {
		t.Errorf("the log has %d records of 4 groups", n)
	}
	w.kv.forget() // the log alone says it all
	w.restart()
	if at := w.committed("once", topic, 0); at != 7 {
		t.Errorf("a group that committed once is at %d, want 7", at)
	}
	for i, want := range []topology.Offset{498, 499, 497} {
		if at := w.committed(fmt.Sprint("g", i), topic, 0); at != want {
			t.Errorf("group %d is at %d, want %d", i, at, want)
		}
	}
}

// F14.1: positions that cannot be read are not "none": polls fail instead of taking the reset policy.
func TestPositionsThatCannotBeRead(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	for range 5 {
		w.produce(topic, 0, `1`)
	}
	w.register("c", "g", earliest, "t")
	w.poll("c")
	w.poll("c")
	w.flush()
	w.restart()
	w.logs.failRead = func(id topology.LogID) error {
		if id == topic.Log(0).Positions() {
			return errors.New("i/o error")
		}
		return nil
	}
	w.kv.forget()
	r := w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&group=g&topic=t&onNewGroup=startFromLatest", "", "")
	if r.status != 503 {
		t.Errorf("register: %d %s", r.status, r.body)
	}
	w.logs.failRead = nil
	w.kv.fail = errors.New("database is broken")
	r = w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&group=g&topic=t&onNewGroup=startFromLatest", "", "")
	if r.status != 503 {
		t.Errorf("register: %d %s", r.status, r.body)
	}
	w.kv.fail = nil
	w.register("c", "g", latest, "t")
	w.want(w.poll("c"), "t@1=1")
}

// A damaged chunk of a positions log costs the positions in it, and no others.
func TestDamagedPositions(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`)
	tp := w.s.positions.of(topic)
	if _, err := w.s.positions.ensure(tp, 0); err != nil {
		t.Fatal(err)
	}
	for i, g := range []string{"a", "b", "a"} {
		w.s.positions.set(tp, 0, g, change{position: position{offset: topology.Offset(i + 1)}})
		w.flush()
	}
	w.logs.damage(topic.Log(0).Positions(), 2)
	w.kv.forget()
	w.restart()
	if a, b := w.committed("a", topic, 0), w.committed("b", topic, 0); a != 1 || b != 2 {
		t.Errorf("a is at %d, b at %d, want 1 and 2", a, b)
	}
}

// A view that is ahead of its log, which a power cut has shortened, is not used (F14.3).
func TestAViewAheadOfItsLog(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 1)
	w.produce(topic, 0, `1`, `2`, `3`)
	tp := w.s.positions.of(topic)
	if _, err := w.s.positions.ensure(tp, 0); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		w.s.positions.set(tp, 0, "g", change{position: position{offset: topology.Offset(i + 1)}})
		w.flush()
	}
	l := w.logs.logs[topic.Log(0).Positions()]
	l.chunks, l.end = l.chunks[:1], 1
	w.restart()
	if at := w.committed("g", topic, 0); at != 1 {
		t.Errorf("the group is at %d, the log says 1", at)
	}
}

// 5,000 topics with a position each cost nothing at the start, and little to list.
func TestManyTopics(t *testing.T) {
	w := newWorld(t)
	value := appendPosition(nil, position{offset: 1, version: 1, reason: byPoll, member: "c"})
	for i := range 5000 {
		topic := w.topics.create(fmt.Sprintf("topic-%d", i), 24)
		w.logs.add(topic.Log(0), recordbatch.Record{Value: []byte("x")}, recordbatch.Record{Value: []byte("y")})
		w.logs.add(topic.Log(0).Positions(), recordbatch.Record{Key: []byte("g"), Value: value})
	}
	w.restart()
	if reads, _ := w.logs.counts(); reads != 0 || w.kv.updates != 0 || len(w.s.positions.byTopic) != 0 {
		t.Errorf("%d reads and %d topics loaded at the start", reads, len(w.s.positions.byTopic))
	}
	groups := w.s.Groups(t.Context())
	if len(groups) != 1 || groups[0].Name != "g" || groups[0].Lag != 5000 || len(groups[0].Topics) != 5000 {
		t.Errorf("groups: %d, %+v", len(groups), groups[0].Lag)
	}
	reads, _ := w.logs.counts()
	w.restart() // the views are in the local database now
	w.s.Groups(t.Context())
	if again, _ := w.logs.counts(); again != reads {
		t.Errorf("%d reads to list the groups after another start", again-reads)
	}
	if n := len(w.s.positions.byTopic); n != 0 {
		t.Errorf("%d topics loaded to list the groups", n)
	}
}

// A view with more groups than one transaction takes is stored in several, and a crash in between does no harm.
func TestLargeViews(t *testing.T) {
	for crashAt := range 12 {
		w := newWorld(t)
		topic := w.topics.create("t", 1)
		w.produce(topic, 0, `1`)
		tp := w.s.positions.of(topic)
		if _, err := w.s.positions.ensure(tp, 0); err != nil {
			t.Fatal(err)
		}
		for round := range 2 {
			for i := range 3000 {
				w.s.positions.set(tp, 0, fmt.Sprintf("group-with-a-long-name-%d", i), change{position: position{offset: topology.Offset(i + round)}})
			}
			if err := w.s.positions.flushDirty(t.Context()); err != nil {
				t.Fatal(err)
			}
			countdown := -1
			if round == 1 {
				countdown = crashAt
			}
			w.kv.crash = func(string) {
				if countdown--; countdown == 0 {
					panic(errCrash)
				}
			}
			crashing(func() {
				if err := w.s.positions.save(); err != nil {
					t.Error(err)
				}
			})
			w.kv.crash = nil
		}
		w.restart()
		for _, i := range []int{0, 1500, 2999} {
			if at := w.committed(fmt.Sprintf("group-with-a-long-name-%d", i), topic, 0); at != topology.Offset(i+1) {
				t.Errorf("crash %d: group %d is at %d", crashAt, i, at)
			}
		}
	}
}

var _ Logs = (*fakeLogs)(nil)
