package consuming

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// Config tunes a Service. Topics, Logs, Appender, KV and Leadership are required; any other zero field means its
// default.
type Config struct {
	Topics     Topics
	Logs       Logs
	Appender   Appender
	KV         KV // keys begin with p/
	Leadership Leadership

	IdleTimeout    time.Duration    // a consumer without a request for this long leaves; default 2m
	MaxWait        time.Duration    // longest wait of a poll or read for data; default 30s
	MaxBytes       int              // bytes of records in an answer, unless it asks for less; default 2 MiB
	MaxRecords     int              // records in an answer, unless it asks for less; default 100,000
	CommitInterval time.Duration    // how long commits of polls are gathered before they are written; default 200ms
	Compression    string           // of binary polls: "none" (the default) or "zstd"
	AnswerTimeout  time.Duration    // a client that has not read an answer after this is cut off; default 2m
	AnswerMemory   int64            // bytes of answers that are being written, above which new ones get smaller; default 64 MiB
	MaxConsumers   int              // registrations at one time; default 20,000
	MaxTopics      int              // topics of one registration; default 10,000
	AppendTimeout  time.Duration    // a commit that is not durable by then has an unknown outcome; default 10s
	SnapshotAfter  int              // records in a positions log after which it is written anew; default 4,096
	Now            func() time.Time // default time.Now

	Logger     zerolog.Logger        // the zero Logger discards
	Registerer prometheus.Registerer // nil: no metrics
}

func (c *Config) fill() error {
	if c.Topics == nil || c.Logs == nil || c.Appender == nil || c.KV == nil || c.Leadership == nil {
		return fmt.Errorf("consuming: Topics, Logs, Appender, KV and Leadership are required")
	}
	switch c.Compression {
	case "":
		c.Compression = "none"
	case "none", "zstd":
	default:
		return fmt.Errorf("consuming: compression %q; allowed are none and zstd", c.Compression)
	}
	setDefault(&c.IdleTimeout, 2*time.Minute)
	setDefault(&c.MaxWait, 30*time.Second)
	setDefault(&c.MaxBytes, 2<<20)
	setDefault(&c.MaxRecords, 100_000)
	setDefault(&c.CommitInterval, 200*time.Millisecond)
	setDefault(&c.AnswerTimeout, 2*time.Minute)
	setDefault(&c.AnswerMemory, 64<<20)
	setDefault(&c.MaxConsumers, 20_000)
	setDefault(&c.MaxTopics, 10_000)
	setDefault(&c.AppendTimeout, 10*time.Second)
	setDefault(&c.SnapshotAfter, 4096)
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

func setDefault[T ~int | ~int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// Service serves the consumers of one broker. Use New, Register, then Run. All methods may be called from any goroutine.
type Service struct {
	cfg       Config
	log       zerolog.Logger
	metrics   *metrics
	positions *positions
	feeds     feeds
	readers   readers
	damage    once
	assign    func(topic string, partitions int, members []string) []int32 // assign, but for tests
	recovered atomic.Bool                                                  // the positions on all topics are known to the local database

	unbound     atomic.Int64  // subscriptions that are not bound
	answerBytes atomic.Int64  // of answers that are being written
	rebind      chan struct{} // one element when a topic may have come to exist

	mu        sync.RWMutex
	stateless map[string]*session      // under mu: by consumer id
	conns     map[*httpd.Conn]*session // under mu
	lapsed    map[*httpd.Conn]*lapsed  // under mu: connections that are not in conns any more
	groups    map[string]*group        // under mu: those with members
}

// New checks cfg and makes a Service. It listens to cfg.Logs from now on, and starts nothing.
func New(cfg Config) (*Service, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg:       cfg,
		log:       cfg.Logger,
		assign:    assign,
		rebind:    make(chan struct{}, 1),
		stateless: map[string]*session{},
		conns:     map[*httpd.Conn]*session{},
		lapsed:    map[*httpd.Conn]*lapsed{},
		groups:    map[string]*group{},
	}
	s.metrics = newMetrics(cfg.Registerer, s)
	s.positions = newPositions(&s.cfg, s.metrics)
	cfg.Logs.OnAdvance(s.advanced)
	return s, nil
}

// Periods of Run.
const (
	sweepInterval  = time.Second           // expiry, new topics, views, snapshots
	unbindInterval = 10 * time.Second      // topics that are gone: ForgetTopic tells sooner
	bindInterval   = 50 * time.Millisecond // new topics at the earliest, since looking for them costs a look at all groups
	finalTimeout   = 10 * time.Second      // for what is left to write at the end
)

// Run writes the commits of polls, lets idle consumers go, binds consumers to topics that come to exist, and keeps the
// views and positions logs small, until ctx ends. Then it writes the commits that are left and the views. End ctx after
// the doors are drained and before the Appender stops.
func (s *Service) Run(ctx context.Context) error {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	unbind := time.NewTicker(unbindInterval)
	defer unbind.Stop()
	var (
		commit <-chan time.Time // runs while commits wait
		bind   <-chan time.Time // runs while a topic may have come
		bound  time.Time        // when new topics were looked for last
	)
	for {
		select {
		case <-ctx.Done():
			return s.finish()
		case <-s.positions.kick:
			if commit == nil {
				commit = time.After(s.cfg.CommitInterval)
			}
		case <-commit:
			commit = nil
			s.flushCommits(ctx)
		case <-s.rebind:
			if bind == nil {
				bind = time.After(time.Until(bound.Add(bindInterval)))
			}
		case <-bind:
			bind = nil
			s.bindNew(ctx)
			bound = time.Now()
		case <-sweep.C:
			s.expire()
			s.bindNew(ctx)
			s.positions.snapshots(ctx)
			s.saveViews()
		case <-unbind.C:
			s.unbindOld()
		}
	}
}

// flushCommits writes the commits that wait. What fails is tried again after the next interval.
func (s *Service) flushCommits(ctx context.Context) {
	err := s.positions.flushDirty(ctx)
	if err == nil {
		return
	}
	s.log.Warn().Err(err).Msg("positions are not committed yet; trying again")
	select {
	case s.positions.kick <- struct{}{}:
	default:
	}
}

func (s *Service) saveViews() {
	if err := s.positions.save(); err != nil {
		s.log.Warn().Err(err).Msg("the views of positions are behind their logs; trying again")
	}
}

func (s *Service) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), finalTimeout)
	defer cancel()
	if err := s.positions.flushDirty(ctx); err != nil {
		s.log.Warn().Err(err).Msg("commits of polls are not written: those records are delivered again")
	}
	if err := s.positions.save(); err != nil {
		return fmt.Errorf("consuming: %w", err)
	}
	return nil
}

// ForgetTopic drops the positions of all groups on a topic that was deleted. It returns when nothing is being written to
// its positions logs any more, so their data may be removed then (T3).
func (s *Service) ForgetTopic(topic uuid.UUID) error {
	for _, f := range s.feeds.of(topic) {
		s.unbindGone(f.sub)
	}
	return s.positions.forget(topic)
}

// advanced is what the store calls when the high watermark of log has moved.
func (s *Service) advanced(log topology.LogID, _ topology.Offset) {
	fs := s.feeds.of(log.Topic)
	for _, f := range fs {
		f.advanced(log.Partition)
	}
	if len(fs) == 0 && s.unbound.Load() > 0 {
		select {
		case s.rebind <- struct{}{}:
		default:
		}
	}
	s.readers.advanced(log)
}

func (s *Service) liveGroups() []*group {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]*group, 0, len(s.groups))
	for _, g := range s.groups {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int { return strings.Compare(a.name, b.name) })
	return list
}
