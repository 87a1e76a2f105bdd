package admin

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Topics is the catalogue. topics.Catalogue is one; its errors are in the terms of topology.
type Topics interface {
	Lookup(name string) (topology.Topic, bool)
	List() []topology.Topic // by name
	EffectiveConfig(t topology.Topic) topology.TopicConfig
	Create(ctx context.Context, name string, partitions int, cfg topology.TopicConfig) (_ topology.Topic, created bool, _ error)
	Update(ctx context.Context, name string, patch topology.TopicPatch) (topology.Topic, error)
	Delete(ctx context.Context, name string) error
}

// Logs is what is stored. data.Store is one.
type Logs interface {
	TopicInfo(topic uuid.UUID) map[topology.Partition]data.LogInfo
	Damaged(log topology.LogID) []data.OffsetRange
	Room() data.Room
}

// Groups are the consumer groups. An unknown group is false, or topology.ErrUnknownGroup; one with live members that may
// not be changed is topology.ErrConflict.
type Groups interface {
	Groups(ctx context.Context) []topology.GroupSummary
	Group(ctx context.Context, name string) (topology.GroupDetail, bool)
	Seek(ctx context.Context, group string, r topology.SeekRequest) ([]topology.PositionChange, error)
	DeleteGroup(ctx context.Context, group string) error
}

// Ownership is who leads what.
type Ownership interface {
	ClusterID() uuid.UUID
	Lead(start token.Token) (topology.Version, error) // of a range that this broker leads; else an error
	Generations() []topology.Generation               // committed ones, oldest first
}

// Broker is what this broker says of itself.
type Broker struct {
	Version string
	Disk    uuid.UUID // id of its database (O12)
	Run     uuid.UUID // id of this process start (O15)
	Started time.Time
	Ports   Ports
	Dir     string // data folder
	Flush   string // flush policy: "always", "interval"
}

// Ports are where its doors are; 0 is a door that is closed.
type Ports struct {
	Client         int `json:"client"`
	Producer       int `json:"producer"`
	Consumer       int `json:"consumer"`
	Metrics        int `json:"metrics"`
	ProducerBinary int `json:"producerBinary"`
}

// Check is one condition of readiness.
type Check struct {
	Name  string       // what is checked, in a word or two: "topics"
	Ready func() error // nil, or why not; it must be quick
}

// Config holds what the API is made of. Topics, Logs, Groups, Ownership and Members are required.
type Config struct {
	Topics      Topics
	Logs        Logs
	Groups      Groups
	Ownership   Ownership
	Members     discovery.Discoverer
	Broker      Broker
	StoredBytes func() int64 // of all segments; nil shows 0
	Checks      []Check      // ready means that all are; in the order that is told
	OpenAPI     []byte       // the document, YAML; nil: not served

	Gatherer prometheus.Gatherer // nil: /metrics is empty
	Pprof    bool                // profiles on the metrics port

	Logger zerolog.Logger
}

// Admin answers the API. Its methods may be called from any goroutine.
type Admin struct {
	cfg Config
	log zerolog.Logger
}

// New checks cfg.
func New(cfg Config) (*Admin, error) {
	if cfg.Topics == nil || cfg.Logs == nil || cfg.Groups == nil || cfg.Ownership == nil || cfg.Members == nil {
		return nil, errors.New("admin: Topics, Logs, Groups, Ownership and Members are required")
	}
	return &Admin{cfg: cfg, log: cfg.Logger.With().Str("component", "admin").Logger()}, nil
}

// Register adds the paths of port 9250, but for /v1/brokers (discovery.Handler) and /status (Status), which are of that
// port as a door.
func (a *Admin) Register(r *httpd.Router) {
	r.HandleFunc("GET /v1/topics", a.listTopics)
	r.HandleFunc("POST /v1/topics", a.createTopic)
	r.HandleFunc("GET /v1/topics/{topic}", a.describeTopic)
	r.HandleFunc("PATCH /v1/topics/{topic}", a.patchTopic)
	r.HandleFunc("DELETE /v1/topics/{topic}", a.deleteTopic)

	r.HandleFunc("GET /v1/groups", a.listGroups)
	r.HandleFunc("GET /v1/groups/{group}", a.describeGroup)
	r.HandleFunc("POST /v1/groups/{group}/seek", a.seekGroup)
	r.HandleFunc("DELETE /v1/groups/{group}", a.deleteGroup)

	r.HandleFunc("GET /v1/cluster", a.cluster)
	if a.cfg.OpenAPI != nil {
		r.HandleFunc("GET /v1/openapi.yaml", a.openAPI)
	}
	a.registerHealth(r)
}

// RegisterMetrics adds the paths of port 9253: /metrics, the health paths once more, and profiles under /debug/pprof
// where Config.Pprof says so.
func (a *Admin) RegisterMetrics(r *httpd.Router) {
	r.Handle("GET /metrics", a.metricsHandler())
	a.registerHealth(r)
	if a.cfg.Pprof {
		registerPprof(r)
	}
}

func (a *Admin) registerHealth(r *httpd.Router) {
	r.HandleFunc("GET /healthz/live", a.live)
	r.HandleFunc("GET /healthz/ready", a.ready)
}
