package data

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/topology"
	"golang.org/x/sync/errgroup"
)

// Store holds the logs of one data folder. All methods may be called at the same time; of Commit one call works at a
// time, the others wait.
//
// Locks are taken in this order: flushMu, commitMu, log.mu, files.mu or suspectMu. Of these only flushMu and commitMu are
// held during a flush, so reads never wait for one.
type Store struct {
	cfg     Config
	fs      FS
	kv      KV
	paths   paths
	logger  zerolog.Logger
	files   files
	room    *Reserve
	metrics *metrics
	report  RecoveryReport

	total atomic.Int64 // bytes of the segments of all logs

	logsMu  sync.RWMutex // guards what follows
	logs    map[topology.LogID]*log
	byTopic map[uuid.UUID][]*log   // the same logs
	dropped map[uuid.UUID]struct{} // topics dropped in this run: nothing is appended to them any more (T3)

	listeners []func(topology.LogID, topology.Offset) // set before Run

	flushMu sync.Mutex              // one checkpoint, cut or repair at a time; guards what follows
	unnoted map[topology.LogID]note // durable state that is not written down yet
	buried  []uuid.UUID             // dropped topics whose files are gone for good
	skip    uint64                  // journal record that a failed flush left and that must not be replayed
	notedAt time.Time               // when notes were written last; FlushInterval only

	commitMu sync.Mutex // guards what follows, and all that writers own in logs
	journal  *journal
	parts    []part // scratch of Commit
	dirty    []*log // logs with unflushed bytes, or changed notes
	failing  []*log // logs that refuse appends until repaired
	broken   error  // why the whole store refuses appends: the journal failed
	closed   bool
	rebooted bool // keyReboot is set

	suspectMu sync.Mutex // guards what follows
	suspects  []*log     // logs whose unflushed bytes a reader or a flush found wrong

	kick chan struct{} // asks Run for a checkpoint
	mend chan struct{} // asks Run for a repair

	// Set by Open, then constant.
	boot    string                             // run of the machine
	unclean bool                               // the machine restarted without a clean stop under FlushInterval
	opened  bool                               // recovery is over
	salvage bool                               // during recovery: the notes are lost, all must be found out from the files
	starts  map[topology.LogID]topology.Offset // during recovery: starts that were noted apart
	moved   map[topology.LogID]move            // during recovery: segments that could not be written
}

// Open opens the data folder, makes it if there is none, and recovers: the journal is replayed, tails are cut to what was
// durable or whole, and what cannot be mended is named in Report and logged. It starts no goroutine. Errors: the folder
// cannot be read or written, or is of a newer version.
func Open(cfg Config) (*Store, error) {
	if cfg.FS == nil {
		cfg.FS = OS{}
	}
	s := &Store{
		fs:      cfg.FS,
		kv:      cfg.KV,
		paths:   paths{cfg.Dir},
		logger:  cfg.Logger.With().Str("component", "data").Logger(),
		logs:    make(map[topology.LogID]*log),
		byTopic: make(map[uuid.UUID][]*log),
		dropped: make(map[uuid.UUID]struct{}),
		moved:   make(map[topology.LogID]move),
		starts:  make(map[topology.LogID]topology.Offset),
		unnoted: make(map[topology.LogID]note),
		kick:    make(chan struct{}, 1),
		mend:    make(chan struct{}, 1),
	}
	if err := s.makeDirs(cfg.Dir); err != nil {
		return nil, fmt.Errorf("open data folder %s: %w", cfg.Dir, err)
	}
	space, err := s.fs.Space(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open data folder %s: %w", cfg.Dir, err)
	}
	if s.cfg, err = cfg.withDefaults(space); err != nil {
		return nil, err
	}
	s.files = files{fs: s.fs, max: s.cfg.MaxOpenFiles}
	s.files.init()
	s.metrics = newMetrics(s)
	if s.room = cfg.Reserve; s.room == nil {
		s.room, err = OpenReserve(ReserveConfig{Dir: cfg.Dir, FS: s.fs, Bytes: cfg.ReserveBytes, Logger: cfg.Logger})
		if err != nil {
			return nil, fmt.Errorf("open data folder %s: %w", cfg.Dir, err)
		}
	}
	if err := s.recover(); err != nil {
		_ = s.shut()
		return nil, fmt.Errorf("recover data folder %s: %w", cfg.Dir, err)
	}
	if err := s.metrics.register(s.cfg.Registerer); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) makeDirs(root string) error {
	for _, dir := range []string{root, s.paths.logs(), s.paths.journal()} {
		if err := s.fs.MkdirAll(dir); err != nil {
			return err
		}
	}
	// The folder itself may be a mount point below one that we may not open: then it was there before.
	_ = s.fs.SyncDir(filepath.Dir(filepath.Clean(root)))
	return s.fs.SyncDir(root)
}

// OnAdvance adds a listener that is called after each round for each log whose high watermark moved, in the goroutine of
// Commit: it must be quick. Listeners are added before the first Commit.
func (s *Store) OnAdvance(fn func(log topology.LogID, highWatermark topology.Offset)) {
	s.listeners = append(s.listeners, fn)
}

func (s *Store) advanced(id topology.LogID, hw topology.Offset) {
	for _, fn := range s.listeners {
		fn(id, hw)
	}
}

// lookup finds a log, nil if it was never written.
func (s *Store) lookup(id topology.LogID) *log {
	s.logsMu.RLock()
	defer s.logsMu.RUnlock()
	return s.logs[id]
}

// logFor finds or makes a log. The caller holds commitMu. nil if its topic was dropped.
func (s *Store) logFor(id topology.LogID) *log {
	if l := s.lookup(id); l != nil {
		return l
	}
	s.logsMu.Lock()
	defer s.logsMu.Unlock()
	if _, gone := s.dropped[id.Topic]; gone {
		return nil
	}
	l := s.newLog(id)
	l.start = s.starts[id] // nil after recovery
	s.addLog(l)
	return l
}

// addLog makes a log known. The caller holds logsMu, or is Open.
func (s *Store) addLog(l *log) {
	s.logs[l.id] = l
	s.byTopic[l.id.Topic] = append(s.byTopic[l.id.Topic], l)
}

// removeTopic makes the logs of a dropped topic unknown, for the rest of this run.
func (s *Store) removeTopic(topic uuid.UUID) []*log {
	s.logsMu.Lock()
	defer s.logsMu.Unlock()
	s.dropped[topic] = struct{}{}
	logs := s.byTopic[topic]
	delete(s.byTopic, topic)
	for _, l := range logs {
		delete(s.logs, l.id)
	}
	return logs
}

func (s *Store) newLog(id topology.LogID) *log {
	return &log{id: id, total: &s.total, oldest: noTime, newest: noTime, loaded: true}
}

// Info describes a log; zero for one that was never written.
func (s *Store) Info(id topology.LogID) LogInfo {
	l := s.lookup(id)
	if l == nil {
		return LogInfo{}
	}
	return s.describe(l)
}

func (s *Store) describe(l *log) LogInfo {
	l.mu.Lock()
	info, lookup := l.info(), l.oldest == noTime && l.end > l.start
	l.mu.Unlock()
	if lookup {
		if t, err := s.appendTime(l, info.Start); err == nil {
			l.mu.Lock()
			if l.start == info.Start {
				l.oldest = t
			}
			l.mu.Unlock()
			info.Oldest = time.UnixMilli(t)
		}
	}
	return info
}

// TopicInfo describes the logs of a topic that were ever written.
func (s *Store) TopicInfo(topic uuid.UUID) map[topology.Partition]LogInfo {
	infos := make(map[topology.Partition]LogInfo)
	for _, l := range s.logsOf(topic) {
		if info := s.describe(l); info.End > 0 {
			infos[l.id.Partition] = info
		}
	}
	return infos
}

func (s *Store) logsOf(topic uuid.UUID) []*log {
	s.logsMu.RLock()
	defer s.logsMu.RUnlock()
	return slices.Clone(s.byTopic[topic])
}

// allLogs is a snapshot of all logs, by topic and partition: so that a test replays from its seed.
func (s *Store) allLogs() []*log {
	s.logsMu.RLock()
	defer s.logsMu.RUnlock()
	list := make([]*log, 0, len(s.logs))
	for _, l := range s.logs {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b *log) int { return compareLogs(a.id, b.id) })
	return list
}

// Topics lists the ids of the topics that have logs, in no order.
func (s *Store) Topics() []uuid.UUID {
	s.logsMu.RLock()
	defer s.logsMu.RUnlock()
	list := make([]uuid.UUID, 0, len(s.byTopic))
	for topic, logs := range s.byTopic {
		if slices.ContainsFunc(logs, (*log).written) {
			list = append(list, topic)
		}
	}
	return list
}

// written says whether the log ever held a record.
func (l *log) written() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end > 0
}

// Report tells what Open found.
func (s *Store) Report() RecoveryReport { return s.report }

// UncleanReboot says whether the machine restarted without a clean stop of the last run while that run acknowledged from
// the page cache (FlushInterval): what was not flushed is lost, and the disk must take a new id (P5) before the first
// append. It is answered again by the next run if this one ends without an append, even cleanly: the
// new id may be what has failed.
func (s *Store) UncleanReboot() bool { return s.unclean }

// Bytes is the size of all segments.
func (s *Store) Bytes() int64 { return s.total.Load() }

// Room tells how full the disk is.
func (s *Store) Room() Room { return s.room.Room() }

// EnsureRoom makes sure that n bytes can be written beside the store, giving up parts of the reserve where somebody else
// has filled the disk. The error wraps topology.ErrDiskFull. The database calls it before it writes.
func (s *Store) EnsureRoom(n int64) error { return s.room.Ensure(n) }

const (
	idleCheckpoint = 3 * time.Second        // FlushAlways: longest time a segment stays unflushed
	noteInterval   = time.Second            // FlushInterval: notes are written this often
	roomInterval   = 250 * time.Millisecond // the disk is looked at this often
	retainInterval = 5 * time.Second
	repairInterval = 500 * time.Millisecond // between attempts
)

// Run flushes, checkpoints, keeps the notes, retires old segments, watches the room on disk and repairs what failed,
// until ctx ends. One call at a time.
func (s *Store) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { s.runFlush(ctx); return nil })
	g.Go(func() error { s.runKeep(ctx); return nil })
	return g.Wait()
}

func (s *Store) runFlush(ctx context.Context) {
	every := idleCheckpoint
	if s.cfg.Flush == FlushInterval {
		every = s.cfg.FlushInterval
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-tick.C:
		}
		_ = s.Checkpoint() // what failed is logged there, and repaired by runKeep
		s.fillJournal(fillAfter)
	}
}

func (s *Store) runKeep(ctx context.Context) {
	roomTick, retainTick := time.NewTicker(roomInterval), time.NewTicker(retainInterval)
	defer roomTick.Stop()
	defer retainTick.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-roomTick.C:
			s.room.watch()
		case <-retainTick.C:
			s.Retain()
		case <-s.mend:
			retry = time.After(0)
		case <-retry:
			retry = nil
			if !s.Repair() {
				retry = time.After(repairInterval)
			}
		}
	}
}

// HighestVersion is the highest version of a generation that any log holds: the next one must be above it (O16).
func (s *Store) HighestVersion() topology.Version {
	var v topology.Version
	for _, l := range s.allLogs() {
		l.mu.Lock()
		v = max(v, l.stretches.last())
		l.mu.Unlock()
	}
	return v
}

// Close flushes everything, notes that the stop was clean, and closes all files. Appends are refused from now on. Run and
// all readers must have returned. After an error the next start recovers.
func (s *Store) Close() error {
	s.commitMu.Lock()
	if s.closed {
		s.commitMu.Unlock()
		return nil
	}
	s.closed = true
	s.commitMu.Unlock()
	s.Repair()
	s.flushMu.Lock()
	err := s.checkpointLocked(true)
	if err == nil {
		err = s.markRun(true)
	}
	s.flushMu.Unlock()
	err = errors.Join(err, s.shut())
	if err != nil {
		return fmt.Errorf("close data folder %s: %w", s.paths.root, err)
	}
	return nil
}

// shut closes all files.
func (s *Store) shut() error {
	for _, l := range s.allLogs() {
		l.mu.Lock()
		segs := l.segs
		l.mu.Unlock()
		for _, seg := range segs {
			s.files.drop(seg)
		}
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	err := s.room.Close()
	if s.journal != nil {
		err = errors.Join(err, s.journal.close())
	}
	return err
}

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
