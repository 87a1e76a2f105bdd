// Package clitest is a broker made of memory, for tests of the command line and of bench: the HTTP API of
// docs/http-api.md as far as they use it, and the binary produce protocol of docs/wire.md 4, written from those pages and
// apart from the client code that it tests. Faults can be injected. Nothing but tests imports it.
package clitest

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Record is a stored record.
type Record struct {
	Timestamp int64
	Key       []byte
	Value     []byte
	Headers   [][2][]byte
}

// Fault answers requests instead of the broker. It says false to let r through.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// Broker is a broker in memory.
type Broker struct {
	URL    string // of the API, http://127.0.0.1:PORT
	server *httptest.Server
	mux    *http.ServeMux
	binary net.Listener
	tasks  sync.WaitGroup

	mu       sync.Mutex
	changed  *sync.Cond // with mu: a record came, a member came or went, or the broker closes
	closed   bool
	now      int64
	topics   map[string]*topic
	groups   map[string]*group
	answered map[string]bool // idempotency keys
	faults   []Fault
	requests []string // METHOD path?query
	conns    map[net.Conn]bool
	refuse   func(value []byte) (refusal string, hangUp bool)
	reasons  []string
}

type topic struct {
	topology.Topic
	logs [][]Record
}

// New starts a broker that ends with the test. Its clock stands at 2026-03-01T08:00:00Z and moves 1 ms with each record.
func New(t testing.TB) *Broker {
	t.Helper()
	b := &Broker{
		now: time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC).UnixMilli(), topics: map[string]*topic{}, groups: map[string]*group{},
		answered: map[string]bool{}, conns: map[net.Conn]bool{},
	}
	b.changed = sync.NewCond(&b.mu)
	b.server = httptest.NewServer(b.handler())
	b.URL = b.server.URL
	var err error
	if b.binary, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("listen: %v", err)
	}
	b.tasks.Go(b.acceptBinary)
	t.Cleanup(b.Close)
	return b
}

// Close ends the broker. It may be called twice.
func (b *Broker) Close() {
	b.mu.Lock()
	b.closed = true
	b.changed.Broadcast()
	for c := range b.conns {
		c.Close()
	}
	b.mu.Unlock()
	b.binary.Close()
	b.server.CloseClientConnections()
	b.server.Close()
	b.tasks.Wait()
}

// Inject adds a fault; each request meets the faults in turn.
func (b *Broker) Inject(f Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, f)
}

// Handle carries out a request as if it had come over the network, past all faults: for a fault that loses an answer.
func (b *Broker) Handle(w http.ResponseWriter, r *http.Request) { b.mux.ServeHTTP(w, r) }

// Requests lists the requests so far as "METHOD path?query".
func (b *Broker) Requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.requests...)
}

// Create makes a topic.
func (b *Broker) Create(name string, partitions int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.create(name, partitions)
}

func (b *Broker) create(name string, partitions int) *topic {
	t := &topic{Topic: topology.Topic{
		Name: name, ID: uuid.NewSHA1(uuid.NameSpaceURL, []byte(name)), Partitions: partitions, State: topology.TopicActive,
		Created: time.UnixMilli(b.now).UTC(), Updated: time.UnixMilli(b.now).UTC(),
	}, logs: make([][]Record, partitions)}
	b.topics[name] = t
	return t
}

// Add stores records in a partition.
func (b *Broker) Add(name string, partition int, records ...Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	for _, r := range records {
		b.append(t, partition, r)
	}
}

// Stored are the records of a partition.
func (b *Broker) Stored(name string, partition int) []Record {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil || partition >= len(t.logs) {
		return nil
	}
	return append([]Record(nil), t.logs[partition]...)
}

// Count is how many records a topic has.
func (b *Broker) Count(name string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	if t := b.topics[name]; t != nil {
		for _, log := range t.logs {
			n += len(log)
		}
	}
	return n
}

// append stores r and gives its offset. mu is held.
func (b *Broker) append(t *topic, partition int, r Record) int {
	b.now++
	if r.Timestamp == 0 {
		r.Timestamp = b.now
	}
	t.logs[partition] = append(t.logs[partition], r)
	b.changed.Broadcast()
	return len(t.logs[partition]) - 1
}

// partitionOf is where a key goes; without one to the first. mu is held.
func (t *topic) partitionOf(key []byte) int {
	if len(key) == 0 {
		return 0
	}
	return token.Index(t.Partitions, token.Of(key))
}

func (b *Broker) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/topic/{topic}/messages", b.produce)
	mux.HandleFunc("GET /v1/topic/{topic}/partitions/{partition}/records", b.records)
	mux.HandleFunc("PUT /v1/consumer/register", b.register)
	mux.HandleFunc("POST /v1/consumer/poll", b.poll)
	mux.HandleFunc("POST /v1/consumer/commit", b.commit)
	mux.HandleFunc("POST /v1/consumer/goodbye", b.goodbye)
	mux.HandleFunc("GET /v1/topics", b.listTopics)
	mux.HandleFunc("POST /v1/topics", b.createTopic)
	mux.HandleFunc("GET /v1/topics/{topic}", b.describeTopic)
	mux.HandleFunc("PATCH /v1/topics/{topic}", b.patchTopic)
	mux.HandleFunc("DELETE /v1/topics/{topic}", b.deleteTopic)
	mux.HandleFunc("GET /v1/groups", b.listGroups)
	mux.HandleFunc("GET /v1/groups/{group}", b.describeGroup)
	mux.HandleFunc("POST /v1/groups/{group}/seek", b.seek)
	mux.HandleFunc("DELETE /v1/groups/{group}", b.deleteGroup)
	mux.HandleFunc("GET /v1/cluster", b.cluster)
	mux.HandleFunc("GET /v1/brokers", b.discover)
	b.mux = mux
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.requests = append(b.requests, r.Method+" "+r.URL.RequestURI())
		faults := b.faults
		b.mu.Unlock()
		for _, f := range faults {
			if f(w, r) {
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// Refuse answers with a problem, and with Retry-After where after is not negative.
func Refuse(w http.ResponseWriter, status int, detail string, after int) {
	w.Header().Set("Content-Type", "application/problem+json")
	if after >= 0 {
		w.Header().Set("Retry-After", strconv.Itoa(after))
	}
	w.WriteHeader(status)
	writeJSON(w, map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail})
}

func writeJSON(w http.ResponseWriter, v any) {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the test sees a client that is cut off
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	writeJSON(w, v)
}
