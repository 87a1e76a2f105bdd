package producing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

var topicA = newTopic("a", 12)

func writeOf(topic topology.Topic, p topology.Partition, values ...string) *write {
	w := &write{log: topic.Log(p), start: topic.PartitionToken(p), requests: 1, now: 1000}
	for _, v := range values {
		w.records = append(w.records, recordbatch.Record{Timestamp: 1000, Value: []byte(v)})
	}
	w.bytes = bytesOf(w.records)
	return w
}

func TestRequestsOneAfterTheOtherNeverShareAChunk(t *testing.T) { // docs/wire.md 0.13
	r := runCoalescer(t, CoalescerConfig{})
	for i := range 5 {
		offset, err := r.putOne(t, topicA, 3, fmt.Sprint(i))
		if err != nil || offset != topology.Offset(i) {
			t.Fatalf("record %d got offset %d, %v", i, offset, err)
		}
	}
	if n := r.store.chunks(topicA); n != 5 {
		t.Errorf("%d chunks, want 5", n)
	}
	if got := r.store.values(t, topicA)[3]; !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
		t.Errorf("log holds %q", got)
	}
}

func TestRoundFillsWhileAnotherIsWritten(t *testing.T) { // docs/design.md §6, rounds
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	r := runCoalescer(t, CoalescerConfig{Committer: store})
	writes := []*write{writeOf(topicA, 1, "first")}
	if err := r.put(writes[0]); err != nil {
		t.Fatal(err)
	}
	<-g.came
	for i := range 6 { // two logs, three requests each
		w := writeOf(topicA, topology.Partition(i%2), fmt.Sprint(i))
		writes = append(writes, w)
		if err := r.put(w); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-writes[1].span.done():
		t.Fatal("answered before its round was committed")
	default:
	}
	close(g.open)
	for _, w := range writes {
		<-w.span.done()
		if err := w.span.err(); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.store.chunks(topicA); n != 3 {
		t.Errorf("%d chunks, want 3: one of the first round, one for each log of the second", n)
	}
	want := map[topology.Partition][]string{0: {"0", "2", "4"}, 1: {"first", "1", "3", "5"}}
	if got := r.store.values(t, topicA); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("logs hold %v, want %v", got, want)
	}
	for i, want := range []topology.Offset{0, 0, 1, 1, 2, 2, 3} {
		if got := writes[i].span.offset(); got != want {
			t.Errorf("write %d has offset %d, want %d", i, got, want)
		}
	}
}

// Producers that each wait for their answers, many records in several partitions: all stored once, in order, with the
// offsets that were answered.
func TestOrderAndOffsets(t *testing.T) {
	r := runCoalescer(t, CoalescerConfig{ChunkBytes: 2 << 10, Linger: 50 * time.Microsecond})
	type place struct {
		p      topology.Partition
		offset topology.Offset
	}
	var mu sync.Mutex
	answered := map[place]string{}
	var wg sync.WaitGroup
	for producer := range 8 {
		wg.Go(func() {
			for i := range 60 {
				p := topology.Partition((producer + i) % 3)
				values := numbered(fmt.Sprintf("%d/%03d/%s/", producer, i, strings.Repeat("x", i*7)), 1+i%5)
				w := writeOf(topicA, p, values...)
				if err := r.put(w); err != nil {
					t.Error(err)
					return
				}
				if i%4 == 0 { // the others are pipelined
					<-w.span.done()
				}
				defer func() {
					<-w.span.done()
					mu.Lock()
					defer mu.Unlock()
					for j, v := range values {
						answered[place{p, w.span.offset() + topology.Offset(j)}] = v
					}
				}()
			}
		})
	}
	wg.Wait()
	last := map[string]string{} // by partition and producer
	n := 0
	for p, values := range r.store.values(t, topicA) {
		for offset, v := range values {
			n++
			if answered[place{p, topology.Offset(offset)}] != v {
				t.Fatalf("partition %d offset %d holds %.20q, which was answered elsewhere", p, offset, v)
			}
			key := fmt.Sprint(p, v[0])
			if last[key] >= v {
				t.Fatalf("partition %d: %.20q comes after %.20q", p, v, last[key])
			}
			last[key] = v
		}
	}
	if n != len(answered) || n != 8*60*3 {
		t.Errorf("%d records stored, %d answered, want %d", n, len(answered), 8*60*3)
	}
	if used := r.budget.used.Load(); used != 0 {
		t.Errorf("%d bytes of the budget are held at rest", used)
	}
}

func TestChunksCloseAtTheirSize(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	r := runCoalescer(t, CoalescerConfig{Committer: store, ChunkBytes: 1000, SealerThreads: 1})
	if err := r.put(writeOf(topicA, 0, "opens the gate")); err != nil {
		t.Fatal(err)
	}
	<-g.came
	long := strings.Repeat("y", 5000)
	values := append(append(numbered(strings.Repeat("x", 300), 10), long), numbered("z", 3)...)
	w := writeOf(topicA, 0, values...)
	if err := r.put(w); err != nil {
		t.Fatal(err)
	}
	close(g.open)
	<-w.span.done()
	if got := r.store.values(t, topicA)[0][1:]; !slices.Equal(got, values) {
		t.Errorf("stored %.100q", got)
	}
	var sizes []int32
	for _, c := range store.logs[topicA.Log(0)][1:] {
		h, _ := recordbatch.ParseHeader(c)
		sizes = append(sizes, h.Records)
	}
	if want := []int32{3, 3, 3, 1, 1, 3}; !slices.Equal(sizes, want) || w.span.chunks != len(want) {
		t.Errorf("chunks of %v records, span of %d chunks; want %v", sizes, w.span.chunks, want)
	}
}

func TestRoundsAreBounded(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	r := runCoalescer(t, CoalescerConfig{Committer: store, RoundBytes: 1000})
	if err := r.put(writeOf(topicA, 0, "opens the gate")); err != nil {
		t.Fatal(err)
	}
	<-g.came
	var last *write
	for range 10 {
		last = writeOf(topicA, 0, strings.Repeat("x", 400))
		if err := r.put(last); err != nil {
			t.Fatal(err)
		}
	}
	close(g.open)
	<-last.span.done()
	if n := len(store.rounds); n != 1+4 { // three requests pass 1000 bytes
		t.Errorf("%d rounds, want 5", n)
	}
	if got := last.span.offset(); got != 10 {
		t.Errorf("the last record has offset %d, want 10", got)
	}
}

func TestKeylessStayForAChunkAndRotate(t *testing.T) { // docs/design.md §6; docs/wire.md 7.1
	store, g := newFakeStore(), newGate(t)
	r := runCoalescer(t, CoalescerConfig{Committer: store, ChunkBytes: 1000})
	one := func(values ...string) *write {
		w := writeOf(topicA, 0, values...)
		w.log, w.start = topology.LogID{}, 0
		if err := r.putAnywhere(w, &topicA); err != nil {
			t.Fatal(err)
		}
		return w
	}
	// One after the other: each in another partition, all partitions in turn.
	var first topology.Partition
	for i := range 24 {
		w := one("x")
		<-w.span.done()
		if i == 0 {
			first = w.log.Partition
		}
		if want := (first + topology.Partition(i)) % 12; w.log.Partition != want {
			t.Fatalf("request %d went to partition %d, want %d", i, w.log.Partition, want)
		}
	}
	// At once: together until the chunk closes.
	store.before = g.before
	one("opens the gate")
	<-g.came
	var parts []topology.Partition
	var last *write
	for range 7 {
		last = one(strings.Repeat("x", 400))
		parts = append(parts, (last.log.Partition-first+12)%12)
	}
	close(g.open)
	<-last.span.done()
	if want := []topology.Partition{1, 1, 1, 2, 2, 2, 3}; !slices.Equal(parts, want) {
		t.Errorf("went to %v, want %v: a chunk takes two and closes when the third comes", parts, want)
	}
	// Only where this broker leads.
	for p := range topology.Partition(12) {
		if p != 8 {
			r.leads.set(topicA.PartitionToken(p), topology.ErrNotLeader)
		}
	}
	for range 3 {
		w := one("x")
		if <-w.span.done(); w.log.Partition != 8 {
			t.Errorf("went to partition %d, which another broker leads", w.log.Partition)
		}
	}
	r.leads.setAll(topology.ErrNotLeader)
	if err := r.putAnywhere(writeOf(topicA, 0, "x"), &topicA); !errors.Is(err, topology.ErrNotLeader) {
		t.Errorf("with no partition led: %v", err)
	}
}

func TestOutcomes(t *testing.T) {
	other := newTopic("other", 3)
	deleted := newTopic("deleted", 3)
	store := newFakeStore()
	store.fail = func(a *data.Append) error {
		switch {
		case a.Log == topicA.Log(1):
			return fmt.Errorf("append: %w", topology.ErrDiskFull)
		case a.Log == topicA.Log(2):
			return fmt.Errorf("append: %w", topology.ErrOutcomeUnknown)
		default:
			return nil
		}
	}
	r := runCoalescer(t, CoalescerConfig{Committer: store, Known: func(id uuid.UUID) bool { return id != deleted.ID }})
	r.leads.set(other.PartitionToken(1), topology.ErrNotLeader)
	for _, c := range []struct {
		name  string
		topic topology.Topic
		p     topology.Partition
		want  error
	}{
		{"written", topicA, 0, nil},
		{"disk full", topicA, 1, topology.ErrDiskFull},
		{"unknown", topicA, 2, topology.ErrOutcomeUnknown},
		{"led elsewhere when the round is cut", other, 1, topology.ErrNotLeader},
		{"topic deleted meanwhile (T3)", deleted, 0, topology.ErrUnknownTopic},
	} {
		if _, err := r.putOne(t, c.topic, c.p, "x"); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if got := store.values(t, other); len(got) != 0 {
		t.Errorf("written without being the leader: %v", got)
	}
}

func TestPartOfARequestWrittenIsUnknown(t *testing.T) {
	store := newFakeStore()
	n := 0
	store.fail = func(*data.Append) error {
		if n++; n == 2 {
			return topology.ErrUnavailable
		}
		return nil
	}
	r := runCoalescer(t, CoalescerConfig{Committer: store, ChunkBytes: 100})
	w := writeOf(topicA, 0, numbered(strings.Repeat("x", 90), 3)...)
	if err := r.put(w); err != nil {
		t.Fatal(err)
	}
	<-w.span.done()
	err := w.span.err()
	if !errors.Is(err, topology.ErrOutcomeUnknown) || !errors.Is(err, topology.ErrUnavailable) {
		t.Errorf("err is %v, want an unknown outcome that names its reason", err)
	}
}

func TestAppendForInternalLogs(t *testing.T) {
	store := newFakeStore()
	internal := false
	store.before = func(round []*data.Append) { internal = round[0].Internal }
	r := runCoalescer(t, CoalescerConfig{Committer: store, MemoryBudget: 1, Now: func() time.Time { return time.UnixMilli(77) }})
	log := topology.TopicsTopic.Log(4)
	for i := range 3 {
		records := []recordbatch.Record{{Key: []byte("k"), Value: []byte("v")}, {Timestamp: 5}}
		offset, err := r.Append(t.Context(), log, topology.TopicsTopic.PartitionToken(4), records)
		if err != nil || offset != topology.Offset(2*i) || !internal {
			t.Fatalf("append %d: offset %d, internal %v, %v", i, offset, internal, err)
		}
		if records[0].Timestamp != 0 {
			t.Error("the caller's records were changed")
		}
	}
	got := store.records(t, log)
	if got[0].Timestamp != 77 || got[1].Timestamp != 5 || got[1].Value != nil || string(got[0].Key) != "k" {
		t.Errorf("stored %+v", got[:2])
	}
	if _, err := r.Append(t.Context(), log, 0, nil); !errors.Is(err, topology.ErrInvalid) {
		t.Errorf("no records: %v", err)
	}
	g := newGate(t)
	store.before = g.before
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-g.came
		cancel()
	}()
	if _, err := r.Append(ctx, log, 0, []recordbatch.Record{{}}); !errors.Is(err, topology.ErrOutcomeUnknown) {
		t.Errorf("given up while it is written: %v", err)
	}
	close(g.open)
}

func TestRunWritesWhatItHasTaken(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	r := runCoalescer(t, CoalescerConfig{Committer: store, RoundBytes: 500})
	var writes []*write
	for i := range 10 {
		w := writeOf(topicA, 0, strings.Repeat("x", 200)+fmt.Sprint(i))
		if err := r.put(w); err != nil {
			t.Fatal(err)
		}
		writes = append(writes, w)
	}
	stopped := make(chan struct{})
	go func() {
		r.stop()
		close(stopped)
	}()
	<-g.came
	close(g.open)
	<-stopped
	for i, w := range writes {
		select {
		case <-w.span.done():
		default:
			t.Fatalf("write %d was taken and never answered", i)
		}
	}
	if err := r.put(writeOf(topicA, 0, "late")); !errors.Is(err, topology.ErrShuttingDown) {
		t.Errorf("put after Run: %v", err)
	}
	if got := store.values(t, topicA)[0]; len(got) != 10 {
		t.Errorf("%d records stored, want 10", len(got))
	}
}

// slow makes each commit take a millisecond of the bubble's time.
func slow(round []*data.Append) { time.Sleep(time.Millisecond) }

func TestNoLingerWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = slow
		r := runCoalescer(t, CoalescerConfig{Committer: store})
		for range 10 { // one at a time
			began := time.Now()
			if _, err := r.putOne(t, topicA, 0, "x"); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != time.Millisecond {
				t.Fatalf("took %s, want no more than the commit", took)
			}
		}
		r.stop()
	})
}

func TestLingerGathersThoseThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = slow
		r := runCoalescer(t, CoalescerConfig{Committer: store})
		const clients, requests = 16, 20
		var wg sync.WaitGroup
		began := time.Now()
		for i := range clients {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 30 * time.Microsecond)
				for range requests {
					if _, err := r.putOne(t, topicA, 0, "x"); err != nil {
						t.Error(err)
					}
					time.Sleep(time.Duration(i) * 10 * time.Microsecond) // until it comes back
				}
			})
		}
		wg.Wait()
		if n := len(store.rounds); n > requests+5 {
			t.Errorf("%d rounds for %d requests of each of %d clients: they do not go together", n, requests, clients)
		}
		if took := time.Since(began); took > (requests+5)*1500*time.Microsecond {
			t.Errorf("took %s: the linger is longer than it may be", took)
		}
		r.stop()
	})
}

func TestLingerEndsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		store.before = slow
		r := runCoalescer(t, CoalescerConfig{Committer: store})
		a, b := writeOf(topicA, 0, "a"), writeOf(topicA, 0, "b")
		_ = r.put(a)
		synctest.Wait()
		_ = r.put(b) // two in flight
		<-a.span.done()
		began := time.Now() // now b waits for a's client, in vain
		<-b.span.done()
		if took := time.Since(began); took != 1500*time.Microsecond {
			t.Errorf("took %s, want the linger of 500µs and the commit", took)
		}
		r.stop()
	})
}

func TestHoldBetweenGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := runCoalescer(t, CoalescerConfig{})
		start := topicA.PartitionToken(0)
		r.leads.set(start, topology.ErrUnavailable)
		began := time.Now()
		if err := r.lead(t.Context(), start); !errors.Is(err, topology.ErrUnavailable) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %s, want unavailable after 2s", err, time.Since(began))
		}
		time.AfterFunc(100*time.Millisecond, func() { r.leads.set(start, nil) })
		began = time.Now()
		if err := r.lead(t.Context(), start); err != nil || time.Since(began) > 110*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		r.stop()
	})
}

func TestBudget(t *testing.T) {
	b := budget{limit: 100}
	if err := b.reserve(500); err != nil {
		t.Errorf("one large request alone: %v", err)
	}
	if err := b.reserve(1); !errors.Is(err, topology.ErrBusy) {
		t.Errorf("past the budget: %v", err)
	}
	b.release(500)
	if err := errors.Join(b.reserve(60), b.reserve(40)); err != nil {
		t.Error(err)
	}
	if err := b.wait(t.Context(), 50, time.Millisecond); !errors.Is(err, topology.ErrBusy) {
		t.Errorf("waited in vain: %v", err)
	}
	got := make(chan error)
	go func() { got <- b.wait(t.Context(), 50, time.Minute) }()
	until(t, "somebody waits", func() bool { return b.waiting.Load() == 1 })
	b.release(60)
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.wait(ctx, 50, time.Minute); !errors.Is(err, topology.ErrBusy) {
		t.Errorf("given up: %v", err)
	}
	b.release(90)
	if n := b.used.Load(); n != 0 {
		t.Errorf("%d bytes held at the end", n)
	}
}

func TestCoalescerMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := runCoalescer(t, CoalescerConfig{Registerer: reg})
	if _, err := r.putOne(t, topicA, 0, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Append(t.Context(), topology.TopicsTopic.Log(0), 0, []recordbatch.Record{{Value: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	for name, want := range map[string]float64{
		"skein_produce_records_total": 1, "skein_produce_bytes_total": 5, "skein_produce_chunks_total": 2, "skein_produce_held_bytes": 0,
	} {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range families {
			if f.GetName() != name {
				continue
			}
			found = true
			m := f.GetMetric()[0]
			if got := m.GetCounter().GetValue() + m.GetGauge().GetValue(); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
		if !found {
			t.Errorf("%s is not exported", name)
		}
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v, %v", problems, err)
	}
}

// Whatever mix of sizes and partitions: the log of each partition is what was put, in order, and spans name it.
func TestPutMatchesANaiveLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store := newFakeStore()
		c, err := NewCoalescer(CoalescerConfig{Committer: store, Leadership: &leads{}, ChunkBytes: rapid.IntRange(50, 2000).Draw(t, "chunk"),
			RoundBytes: int64(rapid.IntRange(100, 5000).Draw(t, "round"))})
		if err != nil {
			t.Fatal(err)
		}
		naive := map[topology.Partition][][]byte{}
		var writes []*write
		var bases []topology.Offset
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			p := topology.Partition(rapid.IntRange(0, 2).Draw(t, "partition"))
			w := writeOf(topicA, p)
			for range rapid.IntRange(1, 8).Draw(t, "records") {
				v := bytes.Repeat([]byte{byte(len(naive[p]))}, rapid.IntRange(1, 700).Draw(t, "size"))
				w.records = append(w.records, recordbatch.Record{Value: v})
			}
			w.bytes = bytesOf(w.records)
			bases = append(bases, topology.Offset(len(naive[p])))
			for _, r := range w.records {
				naive[p] = append(naive[p], r.Value)
			}
			if err := c.put(w); err != nil {
				t.Fatal(err)
			}
			writes = append(writes, w)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		for i, w := range writes {
			if err := w.span.err(); err != nil || w.span.offset() != bases[i] || w.span.records != len(w.records) {
				t.Fatalf("write %d: offset %d, %d records, %v; want %d, %d", i, w.span.offset(), w.span.records, err, bases[i], len(w.records))
			}
		}
		for p, values := range naive {
			var got [][]byte
			for _, chunk := range store.logs[topicA.Log(p)] {
				var d recordbatch.Decoder
				records, err := d.Decode(chunk)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range records {
					got = append(got, bytes.Clone(r.Value))
				}
			}
			if !slices.EqualFunc(got, values, bytes.Equal) {
				t.Fatalf("partition %d differs", p)
			}
		}
	})
}

// Many open chunks are sealed by several goroutines when the round is cut.
func TestSealingIsShared(t *testing.T) {
	store, g := newFakeStore(), newGate(t)
	store.before = g.before
	r := runCoalescer(t, CoalescerConfig{Committer: store, SealerThreads: 4})
	if err := r.put(writeOf(topicA, 0, "opens the gate")); err != nil {
		t.Fatal(err)
	}
	<-g.came
	wide := newTopic("wide", 48)
	var writes []*write
	for p := range topology.Partition(48) {
		w := writeOf(wide, p, strings.Repeat("x", 2000+int(p)))
		if err := r.put(w); err != nil {
			t.Fatal(err)
		}
		writes = append(writes, w)
	}
	close(g.open)
	for p, w := range writes {
		<-w.span.done()
		if err := w.span.err(); err != nil {
			t.Fatal(err)
		}
		if got := store.values(t, wide)[topology.Partition(p)]; len(got) != 1 || len(got[0]) != 2000+p {
			t.Errorf("partition %d holds %d records", p, len(got))
		}
	}
}

// All parts share a registry, as in a broker, and their metrics follow the rules of Prometheus.
func TestMetricsTogether(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	d := newHTTPDoor(t, CoalescerConfig{Registerer: reg}, func(cfg *ProducerConfig) { cfg.Registerer = reg })
	b, err := NewBinaryServer(BinaryConfig{Addr: "127.0.0.1:0", Coalescer: d.Coalescer, Topics: d.topics, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	f, err := NewFastPath(FastConfig{Producer: d.producer, Registerer: reg})
	if err != nil || f == nil {
		t.Fatal(err)
	}
	d.do(call{body: "x"})
	b.counters[outcomeBusy].Inc()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	n, err := testutil.GatherAndCount(reg, "skein_produce_requests_total")
	if err != nil || n != 2*int(outcomes) {
		t.Errorf("%d series of requests, %v; want one for each outcome of two doors", n, err)
	}
}

func TestTopicStatesAreBounded(t *testing.T) {
	m := topicStates{}
	for i := range maxTopicStates + 10 {
		m.of(uuid.NewSHA1(uuid.Nil, fmt.Append(nil, i)))
	}
	if len(m) > maxTopicStates {
		t.Errorf("%d states", len(m))
	}
}
