package consuming

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmq/skein/internal/topology"
)

// model is what a test knows of a group: which records reached some member in an answer that was read to its end.
type model struct {
	t         *rapid.T
	w         *world
	topic     topology.Topic
	delivered map[topology.Partition]map[int]bool
	produced  map[topology.Partition]int
	members   map[string]string // live members: id to the receipt of their last answer
}

// At least once: however polls, broken answers, receipts, joins, leaves, commits and restarts mix, no position passes a
// record that was not delivered, and in the end everything was (docs/design.md, section 7; F14.2, F14.5).
func TestNothingIsSkipped(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			t: rt, w: newWorld(t), delivered: map[topology.Partition]map[int]bool{}, produced: map[topology.Partition]int{},
			members: map[string]string{},
		}
		m.topic = m.w.topics.create("t", 3)
		for range rapid.IntRange(5, 80).Draw(rt, "steps") {
			m.step()
			m.check()
		}
		m.drain()
	})
}

func (m *model) step() {
	id := fmt.Sprint("m", rapid.IntRange(0, 2).Draw(m.t, "member"))
	_, live := m.members[id]
	switch rapid.SampledFrom([]string{"produce", "produce", "poll", "poll", "poll", "poll", "commit", "join", "leave", "flush", "restart"}).Draw(m.t, "step") {
	case "produce":
		p := topology.Partition(rapid.IntRange(0, 2).Draw(m.t, "partition"))
		n := rapid.IntRange(1, 3).Draw(m.t, "records")
		values := make([]string, n)
		for i := range values {
			values[i] = strconv.Itoa(m.produced[p] + i)
		}
		m.produced[p] += n
		m.w.produce(m.topic, p, values...)
	case "join":
		if !live {
			m.w.register(id, "g", earliest, "t")
			m.members[id] = ""
		}
	case "poll":
		if live {
			m.poll(id)
		}
	case "commit":
		if live {
			r := m.w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId="+id, "", "")
			if r.status != 204 && r.status != 409 {
				m.t.Fatalf("commit: %d %s", r.status, r.body)
			}
		}
	case "leave":
		if live {
			m.w.do(context.Background(), "POST", "/v1/consumer/goodbye?commit=false&consumerId="+id, "", "")
			delete(m.members, id)
		}
	case "flush":
		m.w.flush()
	case "restart":
		if rapid.Bool().Draw(m.t, "power cut") {
			m.w.kv.forget()
		}
		m.w.restart()
		clear(m.members)
	}
}

// poll polls, perhaps over a connection that breaks, perhaps with a receipt.
func (m *model) poll(id string) {
	q := "consumerId=" + id + "&maxRecords=" + strconv.Itoa(rapid.IntRange(1, 4).Draw(m.t, "records"))
	switch rapid.SampledFrom([]string{"", "", "last", "none", "old"}).Draw(m.t, "ack") {
	case "last":
		if m.members[id] != "" {
			q += "&ack=" + m.members[id]
		}
	case "none":
		q += "&ack=none"
	case "old":
		q += "&ack=" + id + "-1"
	}
	req := httptest.NewRequest(http.MethodPost, "/v1/consumer/poll?"+q, nil)
	req.Header.Set("Accept", "application/json")
	if rapid.IntRange(0, 4).Draw(m.t, "cut") == 0 {
		m.w.h.ServeHTTP(&cutWriter{httptest.NewRecorder(), rapid.IntRange(0, 60).Draw(m.t, "bytes")}, req)
		return // nothing that could be used arrived
	}
	rec := httptest.NewRecorder()
	m.w.h.ServeHTTP(rec, req)
	r := reply{rec.Code, rec.Header(), rec.Body.Bytes()}
	if r.status == 409 {
		m.t.Fatalf("poll of a live member: %s", r.body)
	}
	if got := r.header.Get("Skein-Poll-Id"); got != "" {
		m.members[id] = got
	}
	for _, c := range r.chunks(m.w.t) {
		m.take(c)
	}
}

func (m *model) take(c chunk) {
	p := topology.Partition(slices.IndexFunc([]topology.Partition{0, 1, 2}, func(p topology.Partition) bool {
		return c.Token == strconv.FormatInt(int64(m.topic.PartitionToken(p)), 10)
	}))
	start, err := strconv.Atoi(c.StartOffset)
	if err != nil {
		m.t.Fatalf("%v", err)
	}
	for i, v := range c.Values {
		if string(v) != strconv.Itoa(start+i) {
			m.t.Fatalf("offset %d of partition %d holds %s", start+i, p, v)
		}
		if m.delivered[p] == nil {
			m.delivered[p] = map[int]bool{}
		}
		m.delivered[p][start+i] = true
	}
}

// check holds the committed positions against what was delivered.
func (m *model) check() {
	for p := range topology.Partition(3) {
		at := m.w.committed("g", m.topic, p)
		for o := range max(0, int(at)) {
			if !m.delivered[p][o] {
				m.t.Fatalf("partition %d is committed at %d, but %d was never delivered", p, at, o)
			}
		}
	}
}

// drain has one new member consume the rest.
func (m *model) drain() {
	for id := range m.members {
		m.w.do(context.Background(), "POST", "/v1/consumer/goodbye?commit=false&consumerId="+id, "", "")
	}
	clear(m.members)
	m.w.register("last", "g", earliest, "t")
	for {
		list := m.w.poll("last").chunks(m.w.t)
		if list == nil {
			break
		}
		for _, c := range list {
			m.take(c)
		}
	}
	m.check()
	for p, n := range m.produced {
		for o := range n {
			if !m.delivered[p][o] {
				m.t.Fatalf("partition %d: %d of %d was never delivered", p, o, n)
			}
		}
		if at := m.w.committed("g", m.topic, p); int(at) != n {
			m.t.Fatalf("partition %d is committed at %d of %d", p, at, n)
		}
	}
}

// Members that poll, commit, come and go at the same time get everything, and every record of a partition in order
// between two changes of its owner. Mostly for the race detector.
func TestMembersAtTheSameTime(t *testing.T) {
	w := newWorld(t)
	stop := w.run()
	topic := w.topics.create("t", 12)
	const records = 60
	var mu sync.Mutex
	seen := map[string]bool{}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			id := fmt.Sprint("m", i)
			for round := 0; ; round++ {
				w.register(id, "g", earliest, "t")
				for range 10 {
					r := w.poll(id, "wait=5ms", "maxRecords=20")
					if r.status == 200 {
						mu.Lock()
						for _, c := range r.chunks(t) {
							at, _ := strconv.Atoi(c.StartOffset)
							for j := range c.Values {
								seen[fmt.Sprint(c.Token, "@", at+j)] = true
							}
						}
						mu.Unlock()
					}
					select {
					case <-done:
						return
					default:
					}
				}
				w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId="+id, "", "")
				if i > 0 {
					w.do(context.Background(), "POST", "/v1/consumer/goodbye?consumerId="+id, "", "")
				}
			}
		})
	}
	wg.Go(func() {
		for r := range records {
			for p := range topology.Partition(12) {
				w.produce(topic, p, strconv.Itoa(r))
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				w.s.Groups(context.Background())
				w.s.Group(context.Background(), "g")
			}
		}
	})
	for {
		mu.Lock()
		n := len(seen)
		mu.Unlock()
		if n == 12*records {
			break
		}
		if t.Failed() {
			break
		}
		r := w.poll("nobody")
		if r.status != 409 {
			t.Errorf("a stranger was answered %d", r.status)
		}
	}
	close(done)
	wg.Wait()
	stop()
	if n := w.s.answerBytes.Load(); n != 0 {
		t.Errorf("%d bytes of answers are still counted", n)
	}
}
