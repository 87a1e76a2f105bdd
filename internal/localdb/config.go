package localdb

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/topology"
)

// Config says where the database lives and whose it is. Dir is required; any other zero field means its default.
type Config struct {
	Dir     string           // folder of the database alone; made when missing
	Ordinal topology.Ordinal // of this broker; the folder of another one is refused

	// EnsureRoom is asked before each write whether n more bytes may be taken from the disk; it may free room first. An
	// error refuses the write. n is 0 for a write that goes to room taken before. nil asks the file system only.
	//
	// Open asks too, before badger is opened, for the room to recover: some MiB if the last process was killed. An owner that
	// keeps a reserve does well to give it up then, whether or not it has recovered itself; otherwise only the ballast helps.
	// An error does not stop Open or Close if the disk has the room.
	EnsureRoom func(n int64) error

	Logger     zerolog.Logger        // the zero Logger discards
	Registerer prometheus.Registerer // nil: no metrics
}

// Identity tells which disk this is and which start of the broker.
type Identity struct {
	Disk    uuid.UUID        `json:"disk"`    // of the folder: made with it, or by RenewDisk (P5)
	Start   uint64           `json:"start"`   // starts so far, this one included: grows by one at each Open, durably
	Ordinal topology.Ordinal `json:"ordinal"` // of the broker that the folder belongs to
	Schema  int              `json:"schema"`  // version of the layout of the folder
}

// Client is what callers that take the database as a whole need of it. DB implements it; packages inside declare the few
// methods they use.
type Client interface {
	Get(key []byte) ([]byte, error)
	Scan(prefix []byte, fn func(key, value []byte) error) error
	Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error
	Identity() Identity
	RenewDisk() (uuid.UUID, error)
	Close() error
}

var _ Client = (*DB)(nil)

// Refusals of Open. The text of the error that wraps them tells what to do.
var (
	// ErrLocked means that another process has the folder open.
	ErrLocked = errors.New("the folder is in use")
	// ErrNewer means that a newer version of Skein wrote the folder.
	ErrNewer = errors.New("the folder is of a newer version")
	// ErrOtherOrdinal means that the folder belongs to a broker of another ordinal.
	ErrOtherOrdinal = errors.New("the folder belongs to another broker")
	// ErrDamaged means that a table, or the log of badger, does not hold what was written to it; the text names the file, and
	// in a log the position. Nothing is served from the rest, since the broker would not know what it had promised: treat the
	// folder as a lost disk. A log whose end alone cannot be read is no damage: the process or machine stopped in a write.
	ErrDamaged = errors.New("the folder is damaged")
)

// ErrClosed is the answer of a database that was closed.
var ErrClosed = errors.New("local database is closed")

// Bounds of what is stored. Update refuses a key or value beyond them with topology.ErrTooLarge.
const (
	MaxKeyBytes   = 4 << 10
	MaxValueBytes = 120 << 10
)

// Sizes that follow from memTable, in bytes. Badger limits a transaction to 15 % of it.
const (
	memTable      = 1 << 20
	walRoom       = memTable + 512<<10 // a write-ahead log is full at memTable, and the last transaction may go beyond
	tableRoom     = 2 << 20            // the table that a full memtable is flushed to
	margin        = 4 << 20            // for what others write while a table is written
	rotationRoom  = walRoom + tableRoom + margin
	txnBytes      = 140 << 10 // of the entries of one transaction, as badger counts them
	txnKeys       = 1500
	entryOverhead = 12 // bytes badger counts for an entry besides key and value
)

// badgerOptions tunes badger for little memory: small memtables, no caches (tables are mapped, the page cache serves
// reads), values kept with their keys, so that the value log stays empty. Compaction is left to DB.compact: badger's own
// compactors wake 20 times a second each, and create files at times of their own choosing, which a full disk forbids.
func badgerOptions(dir string, log badgerLog) badger.Options {
	opt := badger.DefaultOptions(dir)
	opt.Logger = log
	opt.MemTableSize = memTable
	opt.NumMemtables = 5
	opt.BaseTableSize = 2 << 20
	opt.BaseLevelSize = 1 << 30 // below this size all tables but the newest are in one level
	opt.NumCompactors = 0
	opt.NumLevelZeroTables = compactTables - 1
	opt.NumLevelZeroTablesStall = 1 << 20 // never
	opt.NumGoroutines = 1
	opt.ValueLogFileSize = 1 << 20
	opt.ValueThreshold = 144 << 10 // above MaxValueBytes
	opt.Compression = options.None
	opt.BlockCacheSize = 0
	opt.IndexCacheSize = 0
	opt.ChecksumVerificationMode = options.OnTableRead // at Open: an error of a later read is a key not found to badger
	opt.DetectConflicts = false                        // DB commits one transaction at a time
	opt.MetricsEnabled = false
	opt.BypassLockGuard = true // DB has a lock of its own, which tells who holds it
	return opt
}
