package localdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/topology"
)

// DB is the open database. All methods are safe for concurrent use.
type DB struct {
	dir        string // of Config
	kv         string // folder of badger in it
	log        zerolog.Logger
	ensureRoom func(int64) error
	metrics    *metrics
	badger     *badger.DB
	lock       *os.File
	identity   atomic.Pointer[Identity]

	life   sync.Mutex
	closed bool
	ops    sync.WaitGroup // calls under way; none is added once closed

	failure failure // of a write or sync: nothing is written any more

	mu  sync.Mutex // one transaction at a time
	wal wal
	seq uint64 // transactions committed

	syncing sync.Mutex    // one sync at a time
	synced  atomic.Uint64 // transactions known durable; <= seq

	compacting atomic.Bool
	background sync.WaitGroup // the compaction
}

// Open opens the database in cfg.Dir, or makes it, and counts the start. It fails with ErrLocked, ErrNewer,
// ErrOtherOrdinal, ErrDamaged, topology.ErrDiskFull or an error of the file system. The caller closes the DB.
func Open(cfg Config) (*DB, error) {
	db, err := open(cfg)
	if err != nil {
		return nil, fmt.Errorf("local database: %w", err)
	}
	return db, nil
}

func open(cfg Config) (_ *DB, err error) {
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, err
	}
	db := &DB{
		dir:        cfg.Dir,
		kv:         filepath.Join(cfg.Dir, "kv"),
		log:        cfg.Logger,
		ensureRoom: cfg.EnsureRoom,
		metrics:    newMetrics(cfg.Registerer),
		failure:    failure{set: make(chan struct{})},
	}
	if db.lock, err = lockFolder(cfg.Dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = db.shut()
		}
	}()
	if err := checkSchema(cfg.Dir); err != nil {
		return nil, err
	}
	logs, err := db.prepare()
	if err != nil {
		return nil, err
	}
	trouble := func(err error) { _ = db.fail(err) }
	if db.badger, err = openBadger(db.kv, badgerLog{cfg.Logger, trouble}); err != nil {
		return nil, err
	}
	if err := db.awaitTables(logs); err != nil {
		return nil, err
	}
	if err := db.settle(cfg.Ordinal); err != nil {
		return nil, err
	}
	db.metrics.register(db)
	return db, nil
}

// openBadger opens badger in dir. Badger hands its errors on as text, so that is what tells damage from other trouble.
func openBadger(dir string, log badgerLog) (*badger.DB, error) {
	b, err := badger.Open(badgerOptions(dir, log))
	switch {
	case err == nil:
		return b, nil
	case strings.Contains(err.Error(), "checksum"), strings.Contains(err.Error(), "file does not exist for table"):
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
	case strings.Contains(err.Error(), syscall.ENOSPC.Error()):
		return nil, fmt.Errorf("%w: %s: %w", topology.ErrDiskFull, dir, err)
	default:
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
}

// prepare brings the folder into the state that badger can open without meeting a full disk or anything it trusts without
// reason. It returns the logs that badger will flush to tables.
func (db *DB) prepare() ([]checkedLog, error) {
	if err := os.MkdirAll(db.kv, 0o750); err != nil {
		return nil, err
	}
	if err := removeUnusedLogs(db.kv); err != nil {
		return nil, err
	}
	logs, err := checkLogs(db.kv)
	if err != nil {
		return nil, err
	}
	tables, err := cutLogs(logs, db.log)
	if err != nil {
		return nil, err
	}
	// Each log left by a process that did not close is flushed to a table, and a new log begins.
	if err := db.makeRoom(tables + walRoom + 64<<10); err != nil {
		return nil, err
	}
	return logs, allocateDiscard(db.kv)
}

// awaitTables waits until badger, which does so in the background, has flushed the logs that it found: it removes each
// then. The room that these tables need is so not given to anything else.
func (db *DB) awaitTables(logs []checkedLog) error {
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for _, log := range logs {
		for {
			if _, err := os.Stat(log.path); errors.Is(err, fs.ErrNotExist) {
				break
			}
			select {
			case <-db.failure.set:
				return db.failure.err
			case <-deadline.C:
				return fmt.Errorf("log %s was not made a table within a minute", log.path)
			case <-tick.C:
			}
		}
	}
	return nil
}

// settle completes the opening: room for what is written next, what a crash left undone, who we are.
func (db *DB) settle(ordinal topology.Ordinal) error {
	if err := db.openWAL(); err != nil {
		return err
	}
	if err := db.finishIntents(); err != nil {
		return err
	}
	if err := db.begin(ordinal); err != nil {
		return err
	}
	db.takeBallast()
	db.compactSoon()
	return nil
}

// Close ends the database: it waits for calls under way, then flushes what is in memory to one table, unless the database
// has failed: then it writes nothing, and the folder stays locked until the process ends. Calls after it get ErrClosed.
func (db *DB) Close() error {
	db.life.Lock()
	if db.closed {
		db.life.Unlock()
		return nil
	}
	db.closed = true
	db.life.Unlock()
	db.ops.Wait()
	db.background.Wait()
	db.metrics.unregister()

	if err := db.shut(); err != nil {
		return fmt.Errorf("close local database: %w", err)
	}
	return nil
}

// shut lets go of all that open took. On a full disk badger is not closed, since that writes a table: all stays in its log,
// which the next Open reads. After a failure it is not closed either, and the folder stays locked, as badger may still be
// trying to write; both end with the process.
func (db *DB) shut() (err error) {
	if db.badger != nil && db.failure.get() != nil {
		return nil // what badger logs to keeps db alive, and with it the open lock file
	}
	if db.badger != nil {
		if err = db.makeRoom(tableBound(db.wal.used)); err != nil {
			db.log.Warn().Err(err).Msg("no room to flush the local database, its log is kept")
			err = db.badger.Sync()
		} else {
			err = db.badger.Close()
			err = errors.Join(err, removeUnusedLogs(db.kv))
		}
	}
	if db.wal.file != nil {
		_ = db.wal.file.Close()
	}
	return errors.Join(err, db.lock.Close())
}

// enter counts a call in, unless the database is closed; leave counts it out.
func (db *DB) enter() error {
	db.life.Lock()
	defer db.life.Unlock()
	if db.closed {
		return ErrClosed
	}
	db.ops.Add(1)
	return nil
}

func (db *DB) leave() { db.ops.Done() }

// removeUnusedLogs removes the logs that were made ahead and never written: they have no bytes, which badger takes for an
// error.
func removeUnusedLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case info.Size() == 0:
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// allocateDiscard makes the file of discard statistics ahead, as small as badger takes it, with its room on disk.
func allocateDiscard(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "DISCARD"), os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := max(info.Size(), 4<<10)
	done, err := allocate(f, size, false)
	if err == nil && !done {
		err = f.Truncate(size)
	}
	return err
}

// syncDir makes the names in dir durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
