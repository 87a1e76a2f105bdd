package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/admin"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

var (
	topicA = topology.Topic{
		Name: "orders", ID: uuid.MustParse("11111111-1111-4111-8111-111111111111"), Partitions: 3, State: topology.TopicActive,
		Config:  topology.TopicConfig{RetentionMS: new(int64(3600000))},
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Updated: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	defaults = topology.TopicConfig{
		RetentionMS: new(int64(604800000)), RetentionBytes: new(int64(-1)), MaxRecordBytes: new(1 << 20),
		SegmentBytes: new(int64(128 << 20)), SegmentMS: new(int64(86400000)),
	}
)

// world is everything behind the API; err, when set, is what each change answers.
type world struct {
	topics map[string]topology.Topic
	groups map[string]topology.GroupDetail
	err    error
	leads  error
	full   bool
	broken error // of the check "disk"

	patch topology.TopicPatch // the last one asked for
	seek  topology.SeekRequest
}

func newWorld() *world {
	return &world{
		topics: map[string]topology.Topic{"orders": topicA},
		groups: map[string]topology.GroupDetail{"billing": {
			Name: "billing", Epoch: 3,
			Members:    []topology.GroupMember{{ID: "c1", Topics: []string{"orders"}, Registered: topicA.Created, LastSeen: topicA.Updated, Partitions: 3}},
			Partitions: []topology.GroupPartition{{Topic: "orders", Partition: 0, Token: token.Min, Committed: new(topology.Offset(4)), End: 10, Lag: 6, Owner: "c1"}},
		}},
	}
}

func (w *world) Lookup(name string) (topology.Topic, bool) {
	if name == "__topics" {
		return topology.TopicsTopic, true
	}
	t, ok := w.topics[name]
	return t, ok
}

func (w *world) List() []topology.Topic {
	list := []topology.Topic{}
	for _, t := range w.topics {
		list = append(list, t)
	}
	return list
}

func (w *world) EffectiveConfig(t topology.Topic) topology.TopicConfig {
	return t.Config.Over(defaults)
}

func (w *world) Create(_ context.Context, name string, partitions int, cfg topology.TopicConfig) (topology.Topic, bool, error) {
	if w.err != nil {
		return topology.Topic{}, false, w.err
	}
	if err := topology.CheckTopicName(name, false); err != nil {
		return topology.Topic{}, false, err
	}
	if t, ok := w.topics[name]; ok {
		if partitions != 0 && partitions != t.Partitions {
			return t, false, fmt.Errorf("%w: topic %q exists with %d partitions, not %d", topology.ErrConflict, name, t.Partitions, partitions)
		}
		return t, false, nil
	}
	if partitions == 0 {
		partitions = 12
	}
	t := topology.Topic{Name: name, ID: uuid.New(), Partitions: partitions, Config: cfg, State: topology.TopicActive, Created: topicA.Created, Updated: topicA.Updated}
	w.topics[name] = t
	return t, true, nil
}

func (w *world) Update(_ context.Context, name string, patch topology.TopicPatch) (topology.Topic, error) {
	w.patch = patch
	t, ok := w.topics[name]
	if w.err != nil || !ok {
		return t, orUnknown(w.err, name)
	}
	t.Config = patch.Apply(t.Config)
	w.topics[name] = t
	return t, topology.CheckTopicConfig(t.Config, 16<<20)
}

func (w *world) Delete(_ context.Context, name string) error {
	if _, ok := w.topics[name]; w.err != nil || !ok {
		return orUnknown(w.err, name)
	}
	delete(w.topics, name)
	return nil
}

func orUnknown(err error, name string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %q", topology.ErrUnknownTopic, name)
}

func (w *world) TopicInfo(id uuid.UUID) map[topology.Partition]data.LogInfo {
	if id != topicA.ID {
		return nil
	}
	return map[topology.Partition]data.LogInfo{1: {Start: 2, End: 10, HighWatermark: 9, Bytes: 1234, Segments: 2, Oldest: topicA.Created, Newest: topicA.Updated, Version: 1}}
}

func (w *world) Damaged(log topology.LogID) []data.OffsetRange {
	if log.Topic == topicA.ID && log.Partition == 1 {
		return []data.OffsetRange{{From: 3, To: 5}}
	}
	return nil
}

func (w *world) Room() data.Room {
	return data.Room{Total: 1000, Free: 500, Reserve: 100, Full: w.full}
}

func (w *world) Groups(context.Context) []topology.GroupSummary {
	var list []topology.GroupSummary
	for name, g := range w.groups {
		list = append(list, topology.GroupSummary{Name: name, Members: len(g.Members), Topics: []string{"orders"}, Lag: 6})
	}
	return list
}

func (w *world) Group(_ context.Context, name string) (topology.GroupDetail, bool) {
	g, ok := w.groups[name]
	return g, ok
}

func (w *world) Seek(_ context.Context, group string, r topology.SeekRequest) ([]topology.PositionChange, error) {
	w.seek = r
	switch g, ok := w.groups[group]; {
	case !ok:
		return nil, fmt.Errorf("%w: %q", topology.ErrUnknownGroup, group)
	case len(g.Members) > 0 && !r.Force:
		return nil, fmt.Errorf("%w: group %q has %d live members", topology.ErrConflict, group, len(g.Members))
	}
	return []topology.PositionChange{{Topic: r.Topic, Partition: 0, From: new(topology.Offset(4)), To: 0}, {Topic: r.Topic, Partition: 1, To: 2}}, nil
}

func (w *world) DeleteGroup(_ context.Context, group string) error {
	_, err := w.Seek(context.Background(), group, topology.SeekRequest{})
	return err
}

func (w *world) ClusterID() uuid.UUID { return uuid.MustParse("22222222-2222-4222-8222-222222222222") }

func (w *world) Lead(token.Token) (topology.Version, error) { return 7, w.leads }

func (w *world) Generations() []topology.Generation {
	return []topology.Generation{{Range: token.Range{Start: token.Min, End: token.Min}, Version: 7, Followers: []topology.Ordinal{}, Parents: []topology.GenerationID{}}}
}

func (w *world) config(t *testing.T) admin.Config {
	members, err := discovery.NewStatic(0, []string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	return admin.Config{
		Topics: w, Logs: w, Groups: w, Ownership: w, Members: members,
		Broker: admin.Broker{
			Version: "v0.1.0", Disk: uuid.MustParse("33333333-3333-4333-8333-333333333333"), Run: uuid.MustParse("44444444-4444-4444-8444-444444444444"),
			Started: topicA.Created, Dir: "/data", Flush: "always",
			Ports: admin.Ports{Client: 9250, Producer: 9251, Consumer: 9252, Metrics: 9253, ProducerBinary: 9254},
		},
		StoredBytes: func() int64 { return 4321 },
		Checks: []admin.Check{
			{Name: "generation", Ready: func() error { return w.leads }},
			{Name: "disk", Ready: func() error { return w.broken }},
		},
		OpenAPI: []byte("openapi: 3.1.0\n"),
	}
}

func (w *world) router(t *testing.T, change ...func(*admin.Config)) *httpd.Router {
	t.Helper()
	cfg := w.config(t)
	for _, fn := range change {
		fn(&cfg)
	}
	a, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := httpd.NewRouter()
	a.Register(r)
	return r
}

// call sends one request to h and decodes the answer, if it is JSON.
func call(t *testing.T, h http.Handler, request, body string) (*httptest.ResponseRecorder, map[string]any) {
	t.Helper()
	method, target, _ := strings.Cut(request, " ")
	var src io.Reader
	if body != "" {
		src = strings.NewReader(body)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, src))
	var v map[string]any
	if strings.Contains(w.Header().Get("Content-Type"), "json") {
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v in %q", request, err, w.Body)
		}
	}
	return w, v
}
