package consuming

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"github.com/skeinmq/skein/internal/topology"
)

// positions keeps where groups stand, for all topics. What it holds of a partition is loaded when the partition is
// first asked for. All methods may be called from any goroutine.
type positions struct {
	logs          Logs
	appender      Appender
	kv            KV
	leadership    Leadership
	topics        Topics
	appendTimeout time.Duration
	snapshotAfter int
	log           zerolog.Logger
	metrics       *metrics

	mu      sync.Mutex
	byTopic map[uuid.UUID]*topicPositions // under mu
	dirty   map[*positionLog]struct{}     // under mu: has changes that are not written
	unsaved map[*positionLog]struct{}     // under mu: its view in the local database is behind
	grown   map[*positionLog]struct{}     // under mu: is due for a snapshot
	kick    chan struct{}                 // one element when dirty is not empty

	saveMu sync.Mutex // held while views are saved or dropped
}

// topicPositions are the positions on the partitions of one topic.
type topicPositions struct {
	topic topology.Topic
	// covered[p] is the generation under which the view of p covers its log, 0 before it is loaded. A partition whose
	// positions log is empty has no entry in logs.
	covered []atomic.Uint32

	loading sync.Mutex // held while a partition is loaded
	mu      sync.RWMutex
	logs    map[topology.Partition]*positionLog // under mu
}

// errStale means that this broker has lost the partition, or the topic is gone, since its positions were loaded.
var errStale = fmt.Errorf("the positions of the partition moved: %w", topology.ErrUnavailable)

func newPositions(cfg *Config, m *metrics) *positions {
	return &positions{
		logs:          cfg.Logs,
		appender:      cfg.Appender,
		kv:            cfg.KV,
		leadership:    cfg.Leadership,
		topics:        cfg.Topics,
		appendTimeout: cfg.AppendTimeout,
		snapshotAfter: cfg.SnapshotAfter,
		log:           cfg.Logger,
		metrics:       m,
		byTopic:       map[uuid.UUID]*topicPositions{},
		dirty:         map[*positionLog]struct{}{},
		unsaved:       map[*positionLog]struct{}{},
		grown:         map[*positionLog]struct{}{},
		kick:          make(chan struct{}, 1),
	}
}

// of returns the positions on t, none of them loaded yet if t was not asked for before. They are not kept if t is gone.
func (s *positions) of(t topology.Topic) *topicPositions {
	s.mu.Lock()
	defer s.mu.Unlock()
	tp := s.byTopic[t.ID]
	if tp == nil {
		tp = &topicPositions{topic: t, covered: make([]atomic.Uint32, t.Partitions), logs: map[topology.Partition]*positionLog{}}
		// A topic that went meanwhile was forgotten before: it must not come back to stay. One that goes now is
		// forgotten after this.
		if _, ok := s.topics.ByID(t.ID); ok {
			s.byTopic[t.ID] = tp
		}
	}
	return tp
}

// ensure makes sure that the view of partition p covers its log under the generation that leads it now, and returns its
// version. It reads the disk when it has to. Errors: those of Leadership, or what made the log or the local database
// unreadable, wrapped in topology.ErrUnavailable: the positions are not known then, which is not the same as none.
func (s *positions) ensure(tp *topicPositions, p topology.Partition) (topology.Version, error) {
	v, err := s.leadership.Lead(tp.topic.PartitionToken(p))
	if err != nil {
		return 0, fmt.Errorf("positions on %s/%d: %w", tp.topic.Name, p, err)
	}
	if tp.covered[p].Load() == uint32(v) {
		return v, nil
	}
	tp.loading.Lock()
	defer tp.loading.Unlock()
	if tp.covered[p].Load() == uint32(v) {
		return v, nil
	}
	if old := tp.get(p); old != nil {
		s.drop(old, errStale) // of an earlier generation: what it had not written is delivered again
	}
	l, err := s.load(tp, p)
	if err != nil {
		return 0, fmt.Errorf("load the positions on %s/%d: %w: %w", tp.topic.Name, p, topology.ErrUnavailable, err)
	}
	tp.mu.Lock()
	if l != nil {
		tp.logs[p] = l
	} else {
		delete(tp.logs, p)
	}
	tp.mu.Unlock()
	tp.covered[p].Store(uint32(v))
	return v, nil
}

// position is where group stands on partition p, by what was written or is about to be. The partition must be covered.
func (s *positions) position(tp *topicPositions, p topology.Partition, group string) (position, bool) {
	l := tp.get(p)
	if l == nil {
		return position{}, false
	}
	return l.position(group)
}

// set moves group on partition p, which must be covered, in memory at once and in the log at the next flush.
func (s *positions) set(tp *topicPositions, p topology.Partition, group string, c change) *positionLog {
	l := tp.log(p)
	l.set(group, c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty[l] = struct{}{}
	select {
	case s.kick <- struct{}{}:
	default:
	}
	return l
}

func (tp *topicPositions) get(p topology.Partition) *positionLog {
	tp.mu.RLock()
	defer tp.mu.RUnlock()
	return tp.logs[p]
}

// log is the positions log of p, made if there is none.
func (tp *topicPositions) log(p topology.Partition) *positionLog {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	l := tp.logs[p]
	if l == nil {
		l = newPositionLog(tp.topic, p, topology.Version(tp.covered[p].Load()))
		tp.logs[p] = l
	}
	return l
}

// all lists the loaded positions logs.
func (tp *topicPositions) all() []*positionLog {
	tp.mu.RLock()
	defer tp.mu.RUnlock()
	list := make([]*positionLog, 0, len(tp.logs))
	for _, l := range tp.logs {
		list = append(list, l)
	}
	return list
}

// flushWidth bounds how many positions logs are written at the same time. They share rounds of the appender, so the
// number of calls in flight is the number of logs that a flush of the disk serves.
const flushWidth = 64

// flush writes the changes of logs and returns when they are committed. It waits for a write of another caller that
// holds them instead of writing again. A change that fails stays pending. The error is that of one of the logs.
func (s *positions) flush(ctx context.Context, logs []*positionLog) error {
	if len(logs) == 1 {
		return s.write(ctx, logs[0], false)
	}
	var (
		wg     sync.WaitGroup
		next   atomic.Int64
		failed atomic.Pointer[error]
	)
	for range min(len(logs), flushWidth) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(logs); i = int(next.Add(1)) - 1 {
				if err := s.write(ctx, logs[i], false); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// flushDirty writes all changes that wait. Those that fail wait for the next time.
func (s *positions) flushDirty(ctx context.Context) error {
	s.mu.Lock()
	logs := make([]*positionLog, 0, len(s.dirty))
	for l := range s.dirty {
		logs = append(logs, l)
	}
	clear(s.dirty)
	s.mu.Unlock()
	if len(logs) == 0 {
		return nil
	}
	err := s.flush(ctx, logs)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range logs {
		if l.hasPending() {
			s.dirty[l] = struct{}{}
		}
	}
	return err
}

// drop takes l out of use: its changes are forgotten, and whoever still writes to it gets why.
func (s *positions) drop(l *positionLog, why error) {
	l.retire(why)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dirty, l)
	delete(s.unsaved, l)
	delete(s.grown, l)
}

// forget drops all positions on a topic that was deleted, in memory and in the local database. It returns when no write
// to its positions logs is in flight any more.
func (s *positions) forget(topic uuid.UUID) error {
	s.mu.Lock()
	tp := s.byTopic[topic]
	delete(s.byTopic, topic)
	s.mu.Unlock()
	if tp != nil {
		for _, l := range tp.all() {
			s.drop(l, topology.ErrUnknownTopic)
		}
	}
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	return s.deleteView(topicPrefix(topic))
}

// isGone tells errors that end with the topic or the generation, so that trying again has no point.
func isGone(err error) bool {
	return errors.Is(err, errStale) || errors.Is(err, topology.ErrUnknownTopic) || errors.Is(err, topology.ErrNotLeader)
}
