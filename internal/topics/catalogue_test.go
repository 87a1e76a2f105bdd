package topics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topics"
	"github.com/skeinmq/skein/internal/topology"
)

func TestNewChecksItsConfig(t *testing.T) {
	d := newDisk()
	for name, change := range map[string]func(*topics.Config){
		"no log":               func(c *topics.Config) { c.Log = nil },
		"odd partitions":       func(c *topics.Config) { c.Defaults.Partitions = 5 },
		"impossible retention": func(c *topics.Config) { c.Defaults.Config.RetentionMS = new(int64(0)) },
	} {
		cfg := d.config()
		change(&cfg)
		if _, err := topics.New(cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestNothingBeforeLoad(t *testing.T) {
	c, err := topics.New(newDisk().config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ensure(bg(t), "a"); !errors.Is(err, topology.ErrUnavailable) {
		t.Errorf("Ensure before Load: %v", err)
	}
}

func TestCreate(t *testing.T) {
	ms := func(v int64) topology.TopicConfig { return topology.TopicConfig{RetentionMS: &v} }
	d := newDisk()
	c := open(t, d)
	first, created, err := c.Create(bg(t), "a", 3, ms(1000))
	if err != nil || !created {
		t.Fatalf("%v, created %v", err, created)
	}
	week := (7 * 24 * time.Hour).Milliseconds()
	for _, tc := range []struct {
		name       string
		topic      string
		partitions int
		cfg        topology.TopicConfig
		created    bool
		err        error
		text       string
	}{
		{"the same", "a", 3, ms(1000), false, nil, ""},                        // T2
		{"nothing asked for", "a", 0, topology.TopicConfig{}, false, nil, ""}, // T2
		{"other partitions", "a", 6, topology.TopicConfig{}, false, topology.ErrConflict, "3 partitions, not 6"},
		{"other settings", "a", 3, ms(5), false, topology.ErrConflict, "retentionMs"},
		{"default named", "b", 12, ms(week), true, nil, ""},
		{"the same by default", "b", 12, topology.TopicConfig{RetentionBytes: new(int64(-1))}, false, nil, ""},
		{"wrong partitions", "c", 5, topology.TopicConfig{}, false, topology.ErrInvalid, "allowed are 1 and 3"},
		{"wrong settings", "c", 0, ms(0), false, topology.ErrInvalid, "retentionMs"},
		{"wrong name", "../c", 0, topology.TopicConfig{}, false, topology.ErrInvalid, "topic"},
		{"reserved name", "__c", 0, topology.TopicConfig{}, false, topology.ErrInvalid, "reserved"},
		{"internal topic", "__topics", 0, topology.TopicConfig{}, false, topology.ErrInvalid, "reserved"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, created, err := c.Create(bg(t), tc.topic, tc.partitions, tc.cfg)
			if !errors.Is(err, tc.err) || created != tc.created {
				t.Fatalf("created %v, %v; want %v, %v", created, err, tc.created, tc.err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %q does not say %q", err, tc.text)
			}
			if err == nil && tc.topic == "a" && got.ID != first.ID {
				t.Errorf("another topic %v", got)
			}
		})
	}
	if list := c.List(); len(list) != 2 || list[0].Name != "a" || list[1].Name != "b" {
		t.Errorf("list %v", list)
	}
	if got, ok := c.ByID(first.ID); !ok || got.Name != "a" {
		t.Errorf("by id: %v %v", got, ok)
	}
	if got, ok := c.Lookup("__topics"); !ok || got.ID != topology.TopicsTopic.ID {
		t.Errorf("the log of topics: %v %v", got, ok)
	}
	if d.appends != 2 {
		t.Errorf("%d records in the log, want 2", d.appends)
	}
}

func TestMaxTopics(t *testing.T) {
	c := open(t, newDisk(), func(c *topics.Config) { c.MaxTopics = 1 })
	if _, err := c.Ensure(bg(t), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ensure(bg(t), "b"); !errors.Is(err, topology.ErrConflict) || !strings.Contains(err.Error(), "allowed are 1") {
		t.Errorf("%v", err)
	}
}

func TestEnsureWithoutAutoCreate(t *testing.T) {
	c := open(t, newDisk(), func(c *topics.Config) { c.AutoCreate = false })
	if _, err := c.Ensure(bg(t), "a"); !errors.Is(err, topology.ErrUnknownTopic) || !strings.Contains(err.Error(), "topic-auto-create") {
		t.Errorf("%v", err)
	}
	if _, _, err := c.Create(bg(t), "a", 0, topology.TopicConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ensure(bg(t), "a"); err != nil {
		t.Error(err)
	}
}

// Requests at the same time for a topic that is not there make one (T2).
func TestEnsureIsSingleFlight(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	ids := make([]uuid.UUID, 64)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			topic, err := c.Ensure(context.Background(), fmt.Sprint("t", i%4))
			if err != nil {
				t.Error(err)
			}
			ids[i] = topic.ID
		})
	}
	wg.Wait()
	for i := range ids {
		if ids[i] != ids[i%4] {
			t.Errorf("call %d made another topic", i)
		}
	}
	if d.appends != 4 {
		t.Errorf("%d records, want 4", d.appends)
	}
}

func TestUpdate(t *testing.T) {
	d := newDisk()
	clock := time.Date(2026, 1, 2, 3, 4, 5, 6789, time.UTC)
	c := open(t, d, func(c *topics.Config) { c.Now = func() time.Time { return clock } })
	before, _, err := c.Create(bg(t), "a", 3, topology.TopicConfig{RetentionMS: new(int64(5000))})
	if err != nil {
		t.Fatal(err)
	}
	clock = clock.Add(time.Hour)
	got, err := c.Update(bg(t), "a", topology.TopicPatch{
		RetentionMS:    topology.Change[int64]{Set: true},
		MaxRecordBytes: topology.Change[int]{Set: true, Value: new(77)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != before.ID || got.Config.RetentionMS != nil || *got.Config.MaxRecordBytes != 77 || !got.Updated.Equal(clock.Truncate(time.Millisecond)) {
		t.Errorf("%+v", got)
	}
	if n := c.EffectiveMaxRecordBytes(got); n != 77 {
		t.Errorf("effective record size %d", n)
	}
	if p, ok := c.Policy(got.ID); !ok || p.RetentionAge != 7*24*time.Hour {
		t.Errorf("policy %+v", p)
	}
	if _, err := c.Update(bg(t), "a", topology.TopicPatch{}); err != nil || d.appends != 2 {
		t.Errorf("a patch of nothing: %v, %d records", err, d.appends)
	}
	if _, err := c.Update(bg(t), "a", topology.TopicPatch{RetentionMS: topology.Change[int64]{Set: true, Value: new(int64(0))}}); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("a wrong setting: %v", err)
	}
	if _, err := c.Update(bg(t), "b", topology.TopicPatch{}); !errors.Is(err, topology.ErrUnknownTopic) {
		t.Errorf("an unknown topic: %v", err)
	}
	if again, _ := open(t, d).Lookup("a"); !again.Config.Equal(got.Config) || !again.Updated.Equal(got.Updated) {
		t.Errorf("after a restart %+v", again)
	}
}

func TestPolicy(t *testing.T) {
	c := open(t, newDisk())
	a, _, err := c.Create(bg(t), "a", 3, topology.TopicConfig{
		RetentionMS: new(int64(-1)), RetentionBytes: new(int64(9)), SegmentBytes: new(int64(1 << 20)), SegmentMS: new(int64(60000)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if p, ok := c.Policy(a.ID); !ok || p != (data.Policy{RetentionBytes: 9, SegmentBytes: 1 << 20, SegmentAge: time.Minute}) {
		t.Errorf("policy %+v, %v", p, ok)
	}
	for name, id := range map[string]uuid.UUID{"positions": topology.PositionsTopic(a.ID), "topics": topology.TopicsTopic.ID} {
		if p, ok := c.Policy(id); !ok || p.RetentionAge > 0 || p.RetentionBytes > 0 {
			t.Errorf("policy of %s: %+v, %v", name, p, ok)
		}
		if _, ok := c.ByID(id); ok != (name == "topics") {
			t.Errorf("ByID of %s says %v", name, ok)
		}
	}
	if _, ok := c.Policy(uuid.New()); ok {
		t.Error("an unknown id has a policy")
	}
}

// A deleted topic is gone with its data, and a new one of that name shares nothing with it (T3).
func TestDelete(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	var told []string
	c.OnDelete(func(t topology.Topic) { told = append(told, t.Name+" "+string(t.State)) })
	old, err := c.Ensure(bg(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	d.produce(old.ID)
	if err := c.Delete(bg(t), "a"); err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Lookup("a"); ok {
		t.Error("it is still found by name")
	}
	if _, ok := c.ByID(old.ID); ok {
		t.Error("it is still found by id")
	}
	if len(d.data) != 0 {
		t.Errorf("data is left: %v", d.data)
	}
	if len(told) != 1 || told[0] != "a active" {
		t.Errorf("hooks were told %q", told)
	}
	if err := c.Delete(bg(t), "a"); !errors.Is(err, topology.ErrUnknownTopic) {
		t.Errorf("a second deletion: %v", err)
	}
	fresh, err := c.Ensure(bg(t), "a")
	if err != nil || fresh.ID == old.ID {
		t.Errorf("%v, id %s again", err, fresh.ID)
	}
	d.produce(fresh.ID)
	if got, ok := open(t, d).Lookup("a"); !ok || got.ID != fresh.ID || !d.data[fresh.ID] {
		t.Errorf("after a restart: %v %v, data %v", got, ok, d.data)
	}
	if err := c.Delete(bg(t), "__topics"); !errors.Is(err, topology.ErrUnknownTopic) {
		t.Errorf("deleting the log of topics: %v", err)
	}
}

// What a late produce request brings back, and what could not be dropped at once, goes a little later.
func TestDeletedDataIsDroppedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		c := open(t, d)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		a, err := c.Ensure(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		d.produce(a.ID)
		d.breakAt(func(step string) error {
			if step == "drop" {
				return errors.New("disk says no")
			}
			return nil
		})
		if err := c.Delete(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		d.breakAt(nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(d.Topics()); n != 0 {
			t.Errorf("%d topics have data after a failed drop", n)
		}
		for range 3 {
			d.produce(a.ID)
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := len(d.Topics()); n != 0 {
				t.Errorf("%d topics have data after a late write", n)
			}
		}
		time.Sleep(time.Hour) // and then it is forgotten
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A record whose outcome was unknown is found by the next change, whenever it becomes readable.
func TestOutcomeUnknown(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault func(step string) error
	}{
		{"written", func(step string) error {
			if step == "appended" {
				return topology.ErrOutcomeUnknown
			}
			return nil
		}},
		{"written, readable later", func(step string) error {
			if step == "append" {
				return errLate
			}
			return nil
		}},
		{"not in the view", func(step string) error {
			if step == "update" {
				return errors.New("disk says no")
			}
			return nil
		}},
		{"in the view, it seems not", func(step string) error {
			if step == "updated" {
				return errors.New("disk says no")
			}
			return nil
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDisk()
			c := open(t, d)
			d.breakAt(tc.fault)
			if _, err := c.Ensure(bg(t), "a"); !errors.Is(err, topology.ErrOutcomeUnknown) {
				t.Fatalf("Ensure: %v", err)
			}
			d.breakAt(nil)
			got, created, err := c.Create(bg(t), "a", 0, topology.TopicConfig{})
			if err != nil || created {
				t.Fatalf("created %v, %v: the first record counts", created, err)
			}
			if again, ok := open(t, d).Lookup("a"); !ok || again.ID != got.ID {
				t.Errorf("after a restart %v, before %v", again, got)
			}
		})
	}
}

// Every kind of change stands on top of all that the log holds.
func TestChangesCatchUpFirst(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	d.breakAt(func(step string) error {
		if step == "appended" {
			return topology.ErrOutcomeUnknown
		}
		return nil
	})
	if _, err := c.Ensure(bg(t), "a"); !errors.Is(err, topology.ErrOutcomeUnknown) {
		t.Fatalf("Ensure: %v", err)
	}
	d.breakAt(nil)
	if _, err := c.Update(bg(t), "a", topology.TopicPatch{RetentionMS: topology.Change[int64]{Set: true, Value: new(int64(9))}}); err != nil {
		t.Errorf("Update: %v", err)
	}
}

// The first creation stands when two records of one name are in the log.
func TestFirstCreationStands(t *testing.T) {
	d := newDisk()
	name := "a"
	p := topology.TopicsTopic.PartitionOf(tokenOf(name))
	ids := []uuid.UUID{uuid.New(), uuid.New()}
	for _, id := range ids {
		d.add(topology.TopicsTopic.Log(p), seal([]recordbatch.Record{{Key: []byte(name), Value: topicJSON(name, id, "active")}}))
	}
	if got, _ := open(t, d).Lookup(name); got.ID != ids[0] {
		t.Errorf("topic %s, want %s", got.ID, ids[0])
	}
}

// Not written means not there.
func TestRefusedAppend(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	d.breakAt(func(step string) error {
		if step == "append" {
			return fmt.Errorf("commit: %w", topology.ErrDiskFull)
		}
		return nil
	})
	if _, err := c.Ensure(bg(t), "a"); !errors.Is(err, topology.ErrDiskFull) || errors.Is(err, topology.ErrOutcomeUnknown) {
		t.Errorf("%v", err)
	}
	if _, ok := c.Lookup("a"); ok {
		t.Error("it exists")
	}
}

// A caller that gives up while another change is being written gets its own error; one that gives up during the write
// does not undo it.
func TestCallersThatGiveUp(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	entered, let := make(chan struct{}), make(chan struct{})
	d.breakAt(func(step string) error {
		if step == "append" {
			close(entered)
			<-let
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { _, err := c.Ensure(ctx, "a"); done <- err }()
	<-entered
	gone, giveUp := context.WithCancel(context.Background())
	giveUp()
	if _, err := c.Ensure(gone, "a"); !errors.Is(err, topology.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("who waited: %v", err)
	}
	cancel()
	close(let)
	if err := <-done; err != nil {
		t.Errorf("who wrote: %v", err)
	}
}

func TestDamagedLog(t *testing.T) {
	d := newDisk()
	c := open(t, d)
	var names []string
	for i := 0; len(names) < 5; i++ { // of one partition
		name := fmt.Sprint("t", i)
		if topology.TopicsTopic.PartitionOf(tokenOf(name)) != 0 {
			continue
		}
		if _, err := c.Ensure(bg(t), name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	log := topology.TopicsTopic.Log(0)
	t.Run("what the view holds survives", func(t *testing.T) {
		d.damaged[log] = 1
		if got := len(open(t, d).List()); got != 5 {
			t.Errorf("%d topics", got)
		}
	})
	t.Run("without a view the rest is read", func(t *testing.T) {
		d.kv = map[string][]byte{}
		if got := len(open(t, d).List()); got != 4 {
			t.Errorf("%d topics", got)
		}
	})
	t.Run("records that are none are passed over", func(t *testing.T) {
		delete(d.damaged, log)
		d.kv = map[string][]byte{}
		for _, v := range []string{"", "null", "{}", `{"name":"x","id":"1"}`, string(topicJSON("..", uuid.New(), "active")), string(topicJSON("x", uuid.New(), "odd"))} {
			d.add(log, seal([]recordbatch.Record{{Value: []byte(v)}}))
		}
		if got := len(open(t, d).List()); got != 5 {
			t.Errorf("%d topics", got)
		}
	})
	t.Run("a start above the view", func(t *testing.T) {
		d.kv = map[string][]byte{}
		d.starts[log] = 2
		if got := len(open(t, d).List()); got != 3 {
			t.Errorf("%d topics", got)
		}
		d.starts[log] = 0
	})
	t.Run("a log shorter than its view", func(t *testing.T) {
		open(t, d)
		d.logs[log] = d.logs[log][:2]
		c := open(t, d)
		before := len(c.List())
		if err := c.Delete(bg(t), names[4]); err != nil { // the view alone knows it
			t.Fatal(err)
		}
		if got := len(open(t, d).List()); got != before-1 {
			t.Errorf("%d topics, before %d", got, before)
		}
	})
	t.Run("a log that cannot be read stops changes, not the topics", func(t *testing.T) {
		d.add(log, seal([]recordbatch.Record{{Value: topicJSON("x", uuid.New(), "active")}}))
		d.breakAt(func(step string) error {
			if step == "read" {
				return errors.New("disk says no")
			}
			return nil
		})
		cfg := d.config()
		c, err := topics.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Load(bg(t)); !errors.Is(err, topology.ErrUnavailable) {
			t.Errorf("Load: %v", err)
		}
	})
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	c := open(t, newDisk(), func(c *topics.Config) { c.Registerer = reg })
	for _, name := range []string{"a", "b"} {
		if _, err := c.Ensure(bg(t), name); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Delete(bg(t), "a"); err != nil {
		t.Fatal(err)
	}
	want := `
		# HELP skein_topics Topics that exist, internal ones not counted.
		# TYPE skein_topics gauge
		skein_topics 1
	`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "skein_topics"); err != nil {
		t.Error(err)
	}
}

func BenchmarkLookup(b *testing.B) {
	c := open(b, newDisk())
	for i := range 1000 {
		if _, err := c.Ensure(context.Background(), fmt.Sprint("topic-", i)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, ok := c.Lookup("topic-500"); !ok {
				b.Error("not found")
			}
		}
	})
}
