package topics_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topics"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func tokenOf(name string) token.Token { return token.OfString(name) }

func topicJSON(name string, id uuid.UUID, state topology.TopicState) []byte {
	b, err := json.Marshal(topology.Topic{Name: name, ID: id, Partitions: 3, State: state})
	if err != nil {
		panic(err)
	}
	return b
}

// crashed is thrown by a fault to stop a catalogue in the middle of a step.
type crashed struct{}

// machine runs a catalogue against a model of what was acknowledged, with faults and crashes at every step of the way.
type machine struct {
	t    *rapid.T
	d    *disk
	c    *topics.Catalogue
	want map[string]topology.Topic // acknowledged, by name
	dead map[uuid.UUID]bool        // ids of acknowledged deletions
}

func (m *machine) open() {
	m.d.fault = nil
	m.c = open(m.t, m.d)
}

// run does one change with a fault drawn for it. After anything but a plain answer it starts again and takes over what
// is there, if that is what was before or what was asked for.
func (m *machine) run(name string, change func() error, asked func(topology.Topic, bool) bool) {
	step := rapid.SampledFrom([]string{"", "", "append", "appended", "update", "updated", "drop"}).Draw(m.t, "step")
	how := rapid.SampledFrom([]string{"crash", "fail", "late"}).Draw(m.t, "how")
	m.d.fault = func(at string) error {
		if at != step {
			return nil
		}
		switch {
		case how == "crash":
			panic(crashed{})
		case at == "append" && how == "late":
			return errLate
		case at == "append":
			return topology.ErrUnavailable
		case at == "appended":
			return topology.ErrOutcomeUnknown
		}
		return errors.New("disk says no")
	}
	err := func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				if _, ok := v.(crashed); !ok {
					panic(v)
				}
				err = topology.ErrOutcomeUnknown
			}
		}()
		return change()
	}()
	m.d.fault = nil
	if err == nil || errors.Is(err, topology.ErrUnknownTopic) || errors.Is(err, topology.ErrConflict) {
		return
	}
	before, had := m.want[name]
	m.d.crash(rapid.IntRange(0, 3).Draw(m.t, "lost updates"))
	m.open()
	now, has := m.c.Lookup(name)
	if had == has && (!has || equal(now, before)) {
		return
	}
	if !errors.Is(err, topology.ErrOutcomeUnknown) {
		m.t.Fatalf("%v says not written, but %q is %+v (%v), was %+v (%v)", err, name, now, has, before, had)
	}
	if !asked(now, has) {
		m.t.Fatalf("after %v %q is %+v (%v)", err, name, now, has)
	}
	if has {
		m.want[name] = now
	} else {
		m.dead[before.ID] = true
		delete(m.want, name)
	}
}

func equal(a, b topology.Topic) bool {
	return a.ID == b.ID && a.Partitions == b.Partitions && a.Config.Equal(b.Config) && a.State == b.State
}

func (m *machine) ensure(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	m.run(name, func() error {
		got, err := m.c.Ensure(context.Background(), name)
		if err == nil {
			m.d.produce(got.ID)
			if w, ok := m.want[name]; ok && !equal(w, got) {
				t.Fatalf("Ensure(%q) = %+v, want %+v", name, got, w)
			}
			m.want[name] = got
		}
		return err
	}, func(_ topology.Topic, has bool) bool { return has })
}

func (m *machine) update(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	n := rapid.Int64Range(1, 5).Draw(t, "retention")
	m.run(name, func() error {
		got, err := m.c.Update(context.Background(), name, topology.TopicPatch{RetentionMS: topology.Change[int64]{Set: true, Value: &n}})
		if err == nil {
			m.want[name] = got
		}
		return err
	}, func(now topology.Topic, has bool) bool { return has && *now.Config.RetentionMS == n })
}

func (m *machine) delete(t *rapid.T) {
	m.t = t
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
	m.run(name, func() error {
		before := m.want[name]
		err := m.c.Delete(context.Background(), name)
		if err == nil {
			m.dead[before.ID] = true
			delete(m.want, name)
		}
		return err
	}, func(_ topology.Topic, has bool) bool { return !has })
}

func (m *machine) restart(t *rapid.T) {
	m.t = t
	m.d.crash(rapid.IntRange(0, 5).Draw(t, "lost updates"))
	m.open()
	for id := range m.dead {
		if m.d.data[id] || m.d.data[topology.PositionsTopic(id)] {
			t.Fatalf("data of the deleted topic %s is there after a start", id)
		}
	}
}

func (m *machine) check(t *rapid.T) {
	got := map[string]topology.Topic{}
	for _, topic := range m.c.List() {
		got[topic.Name] = topic
	}
	if !maps.EqualFunc(got, m.want, equal) {
		t.Fatalf("topics are %+v, want %+v", got, m.want)
	}
	for id := range m.dead {
		if _, ok := m.c.ByID(id); ok {
			t.Fatalf("the deleted topic %s is back", id)
		}
	}
}

// What was acknowledged stays, what was refused is not there, and what is unknown is one of the two, whatever fails or
// crashes at whatever step, and however much of localdb that was not flushed is lost (T1 to T3).
func TestCrashesAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{t: t, d: newDisk(), want: map[string]topology.Topic{}, dead: map[uuid.UUID]bool{}}
		m.open()
		t.Repeat(map[string]func(*rapid.T){
			"ensure": m.ensure, "update": m.update, "delete": m.delete, "restart": m.restart, "": m.check,
		})
	})
}

// A start with thousands of topics is quick.
func TestLoadMany(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	for i := range 3000 {
		if _, err := c.Ensure(context.Background(), fmt.Sprint("topic-", i)); err != nil {
			t.Fatal(err)
		}
		d.undo = nil
	}
	begin := time.Now()
	if n := len(open(t, d).List()); n != 3000 {
		t.Errorf("%d topics", n)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("a start took %s", took)
	}
}
