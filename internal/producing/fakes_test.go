package producing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeStore is a Committer and LogReader in memory. Each commit first calls before, if set, without the lock.
type fakeStore struct {
	before func(round []*data.Append)
	fail   func(a *data.Append) error // an error that is not an unknown outcome leaves the chunk out

	mu      sync.Mutex
	logs    map[topology.LogID][][]byte // chunks
	rounds  [][]topology.LogID          // logs of the chunks of each round
	reads   int
	readErr error
}

func newFakeStore() *fakeStore { return &fakeStore{logs: map[topology.LogID][][]byte{}} }

func (s *fakeStore) Commit(round []*data.Append) {
	if s.before != nil {
		s.before(round)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var logs []topology.LogID
	for _, a := range round {
		logs = append(logs, a.Log)
		if _, err := recordbatch.Check(a.Batch); err != nil {
			a.Err = err
			continue
		}
		if s.fail != nil {
			a.Err = s.fail(a)
		}
		if a.Err != nil && !errors.Is(a.Err, topology.ErrOutcomeUnknown) {
			continue
		}
		a.Base = s.end(a.Log)
		recordbatch.SetPosition(a.Batch, a.Base, a.Version)
		s.logs[a.Log] = append(s.logs[a.Log], slices.Clone(a.Batch))
	}
	s.rounds = append(s.rounds, logs)
}

func (s *fakeStore) end(log topology.LogID) topology.Offset {
	chunks := s.logs[log]
	if len(chunks) == 0 {
		return 0
	}
	h, err := recordbatch.ParseHeader(chunks[len(chunks)-1])
	if err != nil {
		panic(err)
	}
	return h.Next()
}

func (s *fakeStore) Info(log topology.LogID) data.LogInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.end(log)
	return data.LogInfo{End: end, HighWatermark: end}
}

func (s *fakeStore) OffsetForTime(log topology.LogID, t time.Time) (topology.Offset, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.logs[log] {
		if h, _ := recordbatch.ParseHeader(c); h.BaseTimestamp >= t.UnixMilli() {
			return h.BaseOffset, nil
		}
	}
	return s.end(log), nil
}

// Read gives one chunk at a time.
func (s *fakeStore) Read(log topology.LogID, from topology.Offset, _ int, buf []byte) (data.ReadResult, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.readErr != nil {
		return data.ReadResult{}, buf, s.readErr
	}
	for _, c := range s.logs[log] {
		if h, _ := recordbatch.ParseHeader(c); h.Next() > from {
			buf = append(buf[:0], c...)
			return data.ReadResult{Chunks: []data.Chunk{{Header: h, Bytes: buf}}, Next: h.Next()}, buf, nil
		}
	}
	return data.ReadResult{Next: from}, buf, nil
}

// records are those of a log, in order.
func (s *fakeStore) records(t testing.TB, log topology.LogID) []recordbatch.Record {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []recordbatch.Record
	for _, c := range s.logs[log] {
		var d recordbatch.Decoder
		records, err := d.Decode(slices.Clone(c))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, records...)
	}
	return all
}

// values are those of all logs of a topic, by partition.
func (s *fakeStore) values(t testing.TB, topic topology.Topic) map[topology.Partition][]string {
	t.Helper()
	all := map[topology.Partition][]string{}
	for p := range topology.Partition(topic.Partitions) {
		for _, r := range s.records(t, topic.Log(p)) {
			all[p] = append(all[p], string(r.Value))
		}
	}
	return all
}

// chunks counts those of a topic.
func (s *fakeStore) chunks(topic topology.Topic) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for log, chunks := range s.logs {
		if log.Topic == topic.ID {
			n += len(chunks)
		}
	}
	return n
}

// leads leads everything, unless a start token has an error.
type leads struct {
	mu     sync.Mutex
	errors map[token.Token]error
	all    error
}

func (l *leads) Lead(start token.Token) (topology.Version, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all != nil {
		return 0, l.all
	}
	return 7, l.errors[start]
}

func (l *leads) set(start token.Token, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.errors == nil {
		l.errors = map[token.Token]error{}
	}
	l.errors[start] = err
}

func (l *leads) setAll(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = err
}

// fakeTopics creates topics of 12 partitions on Ensure, unless closed.
type fakeTopics struct {
	limit  int
	closed error

	mu    sync.Mutex
	known map[string]topology.Topic
}

func newFakeTopics(topics ...topology.Topic) *fakeTopics {
	f := &fakeTopics{known: map[string]topology.Topic{}, limit: 1 << 20}
	for _, t := range topics {
		f.known[t.Name] = t
	}
	return f
}

func (f *fakeTopics) Lookup(name string) (topology.Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.known[name]
	return t, ok
}

func (f *fakeTopics) Ensure(_ context.Context, name string) (topology.Topic, error) {
	if f.closed != nil {
		return topology.Topic{}, f.closed
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.known[name]
	if !ok {
		t = newTopic(name, 12)
		f.known[name] = t
	}
	return t, nil
}

func (f *fakeTopics) EffectiveMaxRecordBytes(topology.Topic) int { return f.limit }

func newTopic(name string, partitions int) topology.Topic {
	return topology.Topic{Name: name, ID: uuid.NewSHA1(uuid.Nil, []byte(name)), Partitions: partitions, State: topology.TopicActive}
}

// running is a Coalescer that runs until the test ends.
type running struct {
	*Coalescer
	store *fakeStore
	leads *leads
	stop  func()
}

func runCoalescer(t testing.TB, cfg CoalescerConfig) *running {
	t.Helper()
	r := &running{store: newFakeStore(), leads: &leads{}}
	if cfg.Committer == nil {
		cfg.Committer = r.store
	} else {
		r.store, _ = cfg.Committer.(*fakeStore)
	}
	if cfg.Leadership == nil {
		cfg.Leadership = r.leads
	}
	c, err := NewCoalescer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.Coalescer = c
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	t.Cleanup(r.stop)
	return r
}

// putOne puts one record and waits for it.
func (r *running) putOne(t testing.TB, topic topology.Topic, p topology.Partition, value string) (topology.Offset, error) {
	t.Helper()
	w := &write{log: topic.Log(p), start: topic.PartitionToken(p), requests: 1, now: r.now(),
		records: []recordbatch.Record{{Timestamp: 5, Value: []byte(value)}}}
	w.bytes = bytesOf(w.records)
	if err := r.put(w); err != nil {
		return 0, err
	}
	<-w.span.done()
	return w.span.offset(), w.span.err()
}

// gate makes commits wait until it is opened, and tells when one has come. The end of the test opens it too, so that a
// test that fails does not wait for its own commits.
type gate struct {
	came  chan []*data.Append
	open  chan struct{}
	ended <-chan struct{}
}

func newGate(t testing.TB) *gate {
	return &gate{came: make(chan []*data.Append, 100), open: make(chan struct{}), ended: t.Context().Done()}
}

func (g *gate) before(round []*data.Append) {
	g.came <- round
	select {
	case <-g.open:
	case <-g.ended:
	}
}

// until waits for a condition that another goroutine makes true.
func until(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(200 * time.Microsecond)
	}
}

func numbered(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return list
}

// keyReader reads the key of the first record of a chunk.
type keyReader struct{ d recordbatch.Decoder }

func (k *keyReader) keys(batch []byte) (string, error) {
	records, err := k.d.Decode(batch)
	if err != nil {
		return "", err
	}
	return string(records[0].Key), nil
}
