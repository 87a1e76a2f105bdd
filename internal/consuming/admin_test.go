package consuming

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

func TestGroupsAreDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.topics.create("a", 3), w.topics.create("b", 1)
		for p := range topology.Partition(2) {
			w.produce(a, p, `1`, `2`)
			w.produce(a, p, `3`)
		}
		w.produce(b, 0, `1`)
		if got := w.s.Groups(t.Context()); len(got) != 0 {
			t.Errorf("groups before any came: %+v", got)
		}
		if _, ok := w.s.Group(t.Context(), "g"); ok {
			t.Error("a group that nobody knows is described")
		}
		registered := time.Now()
		w.register("m1", "g", earliest, "a", "unknown")
		w.register("m2", "g", earliest, "a", "b")
		w.register("x", "other", latest, "b")
		time.Sleep(time.Second)
		w.poll("m1")
		w.poll("m2")
		w.poll("m1") // commits, not yet written
		w.poll("m2")

		list := w.s.Groups(t.Context())
		if len(list) != 2 || list[0].Name != "g" || list[0].Members != 2 || !slices.Equal(list[0].Topics, []string{"a", "b", "unknown"}) ||
			list[1].Name != "other" || list[1].Members != 1 || list[1].Lag != 0 {
			t.Errorf("groups: %+v", list)
		}
		g, ok := w.s.Group(t.Context(), "g")
		if !ok || len(g.Members) != 2 || len(g.Partitions) != 4 {
			t.Fatalf("group: %v %+v", ok, g)
		}
		if m := g.Members[0]; m.ID != "m1" || !slices.Equal(m.Topics, []string{"a", "unknown"}) || !m.Registered.Equal(registered) ||
			!m.LastSeen.Equal(registered.Add(time.Second)) {
			t.Errorf("member: %+v", m)
		}
		if n := g.Members[0].Partitions + g.Members[1].Partitions; n != 4 {
			t.Errorf("the members own %d partitions, want 4", n)
		}
		for i, want := range []struct {
			topic     string
			partition topology.Partition
			committed topology.Offset
			end       topology.Offset
			lag       int64
		}{{"a", 0, 2, 3, 1}, {"a", 1, 2, 3, 1}, {"a", 2, 0, 0, 0}, {"b", 0, 1, 1, 0}} {
			p := g.Partitions[i]
			if p.Committed == nil || p.Topic != want.topic || p.Partition != want.partition || *p.Committed != want.committed ||
				p.End != want.end || p.Lag != want.lag || p.Owner == "" {
				t.Errorf("partition %+v, want %+v", p, want)
			}
		}
		w.flush()
		w.restart()
		if again, ok := w.s.Group(t.Context(), "g"); !ok || len(again.Members) != 0 || len(again.Partitions) != 4 || *again.Partitions[0].Committed != 2 {
			t.Errorf("after a restart: %v %+v", ok, again)
		}
	})
}

func TestSeek(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		topic := w.topics.create("t", 2)
		began := time.Now()
		for i := range 4 {
			w.produce(topic, 0, fmt.Sprint(i))
			time.Sleep(time.Minute)
		}
		w.produce(topic, 1, `9`)
		offset := func(o topology.Offset) *topology.Offset { return &o }
		partition := func(p topology.Partition) *topology.Partition { return &p }
		if _, err := w.s.Seek(t.Context(), "g", topology.SeekRequest{Topic: "t", To: "latest", Partition: partition(0)}); !errors.Is(err, topology.ErrInvalid) {
			t.Errorf("seek of one partition of a group without positions: %v", err)
		}
		for _, c := range []struct {
			name string
			r    topology.SeekRequest
			to   []topology.Offset
		}{
			{"latest", topology.SeekRequest{To: "latest"}, []topology.Offset{4, 1}},
			{"earliest", topology.SeekRequest{To: "earliest"}, []topology.Offset{0, 0}},
			{"offset on all is kept within the logs", topology.SeekRequest{To: "offset", Offset: offset(3)}, []topology.Offset{3, 1}},
			{"offset", topology.SeekRequest{To: "offset", Offset: offset(2), Partition: partition(0)}, []topology.Offset{2}},
			{"time", topology.SeekRequest{To: "time", Time: fmt.Sprint(began.Add(time.Minute).UnixMilli())}, []topology.Offset{1, 0}},
			{"time, RFC 3339", topology.SeekRequest{To: "time", Time: began.Add(2 * time.Minute).UTC().Format(time.RFC3339)}, []topology.Offset{2, 0}},
		} {
			c.r.Topic = "t"
			got, err := w.s.Seek(t.Context(), "g", c.r)
			if err != nil || len(got) != len(c.to) {
				t.Errorf("%s: %+v, %v", c.name, got, err)
				continue
			}
			for i, p := range got {
				if p.To != c.to[i] || p.Topic != "t" {
					t.Errorf("%s: %+v, want to %d", c.name, p, c.to[i])
				}
			}
		}
		w.restart() // a seek is durable when it returns
		if at := w.committed("g", topic, 0); at != 2 {
			t.Errorf("the group is at %d, want 2", at)
		}
		w.register("m", "g", latest, "t")
		w.want(w.poll("m"), "t@2=2", "t@0=9")
		live := topology.SeekRequest{Topic: "t", To: "offset", Offset: offset(1), Partition: partition(0)}
		if _, err := w.s.Seek(t.Context(), "g", live); !errors.Is(err, topology.ErrConflict) {
			t.Errorf("seek of a live group: %v", err)
		}
		live.Force = true
		got, err := w.s.Seek(t.Context(), "g", live)
		if err != nil || len(got) != 1 || got[0].From == nil || *got[0].From != 2 || got[0].To != 1 {
			t.Errorf("forced: %+v, %v", got, err)
		}
		// What was delivered before the seek commits nothing on that partition any more.
		w.want(w.poll("m"), "t@1=1")
		if at, other := w.committed("g", topic, 0), w.committed("g", topic, 1); at != 1 || other != 1 {
			t.Errorf("at %d and %d, want 1 and 1", at, other)
		}
	})
}

func TestWrongSeeks(t *testing.T) {
	w := newWorld(t)
	w.topics.create("t", 3)
	minus, one, three, below := topology.Offset(-1), topology.Offset(1), topology.Partition(3), topology.Partition(-1)
	zero := topology.Partition(0)
	w.register("m", "g", earliest, "t")
	for name, c := range map[string]struct {
		r    topology.SeekRequest
		want error
		text string
	}{
		"unknown topic":      {topology.SeekRequest{Topic: "u", To: "latest"}, topology.ErrUnknownTopic, `unknown topic`},
		"no topic":           {topology.SeekRequest{To: "latest"}, topology.ErrInvalid, `the name is empty`},
		"unknown place":      {topology.SeekRequest{Topic: "t", To: "middle"}, topology.ErrInvalid, `allowed are "earliest", "latest", "offset", "time"`},
		"offset is missing":  {topology.SeekRequest{Topic: "t", To: "offset"}, topology.ErrInvalid, `needs an "offset"`},
		"offset is negative": {topology.SeekRequest{Topic: "t", To: "offset", Offset: &minus}, topology.ErrInvalid, `0 or more`},
		"offset is outside":  {topology.SeekRequest{Topic: "t", To: "offset", Offset: &one, Partition: &zero, Force: true}, topology.ErrInvalid, `the log has 0 to 0`},
		"time is missing":    {topology.SeekRequest{Topic: "t", To: "time"}, topology.ErrInvalid, `allowed are RFC 3339`},
		"no such partition":  {topology.SeekRequest{Topic: "t", To: "latest", Partition: &three}, topology.ErrInvalid, `has 0 to 2`},
		"partition below":    {topology.SeekRequest{Topic: "t", To: "latest", Partition: &below}, topology.ErrInvalid, `has 0 to 2`},
		"internal topic":     {topology.SeekRequest{Topic: "__topics", To: "latest"}, topology.ErrInvalid, `reserved`},
		"time in words":      {topology.SeekRequest{Topic: "t", To: "time", Time: "noon"}, topology.ErrInvalid, `allowed are RFC 3339`},
		"live members":       {topology.SeekRequest{Topic: "t", To: "latest"}, topology.ErrConflict, `live members`},
	} {
		if _, err := w.s.Seek(t.Context(), "g", c.r); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.want, c.text)
		}
	}
	if _, err := w.s.Seek(t.Context(), "", topology.SeekRequest{Topic: "t", To: "latest"}); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("no group: %v", err)
	}
}

func TestDeleteGroup(t *testing.T) {
	w := newWorld(t)
	topic := w.topics.create("t", 3)
	for p := range topology.Partition(3) {
		w.produce(topic, p, `1`, `2`)
	}
	if err := w.s.DeleteGroup(t.Context(), "g"); !errors.Is(err, topology.ErrUnknownGroup) {
		t.Errorf("delete of an unknown group: %v", err)
	}
	w.register("m", "g", earliest, "t")
	w.register("n", "other", earliest, "t")
	w.pollAll("m")
	if err := w.s.DeleteGroup(t.Context(), "g"); !errors.Is(err, topology.ErrConflict) {
		t.Errorf("delete of a live group: %v", err)
	}
	w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId=m", "", "")
	if err := w.s.DeleteGroup(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	w.kv.forget()
	w.restart()
	if groups := w.s.Groups(t.Context()); len(groups) != 1 || groups[0].Name != "other" {
		t.Errorf("groups after the deletion: %+v", groups)
	}
	w.register("m", "g", latest, "t") // a group of that name is a new one
	if n := w.pollAll("m"); n != 0 {
		t.Errorf("%d records for a new group that begins at the end", n)
	}
}
