package localdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/topology"
)

// wal follows the write-ahead log of badger from outside. Badger maps its logs into memory at full size, but as sparse
// files: a write to a page that the full disk cannot back ends the process with SIGBUS. So room on disk is taken ahead:
// for the log in use, and for the one that badger goes on with when that is full. Badger opens the latter by its number
// and is content with a file of size 0, even one that has room beyond its end.
type wal struct {
	file  *os.File // the log in use, to sync it after badger has gone on to the next
	id    int      // its number
	used  int64    // upper bound of what badger has put into the log and the memtable since the log began
	ready bool     // the next log is made, with its room
}

func (db *DB) walPath(id int) string { return filepath.Join(db.kv, fmt.Sprintf("%05d.mem", id)) }

// openWAL finds the log that badger has begun, takes its room and makes the next one.
func (db *DB) openWAL() error {
	logs, err := filepath.Glob(filepath.Join(db.kv, "*.mem"))
	if err != nil {
		return err
	}
	for _, path := range logs {
		id, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".mem"))
		if err != nil {
			return fmt.Errorf("number of log %s: %w", path, err)
		}
		db.wal.id = max(db.wal.id, id)
	}
	if db.wal.file, err = os.OpenFile(db.walPath(db.wal.id), os.O_RDWR, 0); err != nil {
		return fmt.Errorf("log in use: %w", err)
	}
	if err := syncDir(db.kv); err != nil {
		return err
	}
	db.wal.used = entryBound(nil, nil) // heads
	done, err := allocate(db.wal.file, walRoom, false)
	if err != nil {
		return diskFull(err, "room for the log")
	}
	if !done {
		db.log.Warn().Str("dir", db.kv).Msg("the file system cannot preallocate: a full disk may end the broker")
	}
	if err := db.nextWAL(); err != nil {
		db.log.Warn().Err(err).Msg("no room for the next log of the local database yet")
	}
	return nil
}

// nextWAL makes the log that badger will go on with. Its name is durable before anything is written to it.
func (db *DB) nextWAL() error {
	if db.wal.ready {
		return nil
	}
	path := db.walPath(db.wal.id + 1)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := allocate(f, walRoom, true); err != nil {
		_ = os.Remove(path)
		return diskFull(err, "room for the next log")
	}
	if err := errors.Join(f.Sync(), syncDir(db.kv), db.allocateManifest()); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("make the next log: %w", err)
	}
	db.wal.ready = true
	return nil
}

// allocateManifest takes room for what badger appends to its manifest with each table: a torn line could not be read.
func (db *DB) allocateManifest() error {
	f, err := os.OpenFile(filepath.Join(db.kv, "MANIFEST"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = allocate(f, info.Size()+16<<10, true)
	return err
}

// makeWay sees to it that badger can take n more bytes: in the log in use, or by going on to the next log and flushing
// the full one to a table. It refuses with topology.ErrDiskFull.
func (db *DB) makeWay(n int64) error {
	if db.wal.used < memTable { // badger looks whether the log is full before it writes, so this write goes to it
		return db.askRoom(0)
	}
	if err := db.askRoom(rotationRoom); err != nil {
		return err
	}
	if err := db.nextWAL(); err != nil {
		return err
	}
	return db.checkFree(rotationRoom + n)
}

// wrote notes that n bytes at most went to badger, and follows it to the next log if it went there: that is when the file
// made ahead has got a size. What the full log holds is durable when wrote returns, so a later sync of the new log alone
// leaves nothing behind.
func (db *DB) wrote(n int64) error {
	db.wal.used += n
	if !db.wal.ready {
		return nil
	}
	next, err := os.OpenFile(db.walPath(db.wal.id+1), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("next log: %w", err)
	}
	info, err := next.Stat()
	if err != nil || info.Size() == 0 {
		_ = next.Close()
		return err
	}
	full := db.wal.file
	db.wal = wal{file: next, id: db.wal.id + 1, used: n + entryBound(nil, nil)}
	err = full.Sync()
	_ = full.Close()
	if err != nil {
		return fmt.Errorf("sync the full log: %w", err)
	}
	db.synced.Store(max(db.synced.Load(), db.seq-1)) // the last transaction is in the new log
	if err := db.nextWAL(); err != nil {
		db.log.Warn().Err(err).Msg("no room for the next log of the local database yet")
	}
	db.compactSoon()
	return nil
}

// askRoom asks the owner of the disk for n bytes.
func (db *DB) askRoom(n int64) error {
	if db.ensureRoom == nil {
		return nil
	}
	if err := db.ensureRoom(n); err != nil {
		if errors.Is(err, topology.ErrDiskFull) {
			return err
		}
		return fmt.Errorf("%w: %w", topology.ErrDiskFull, err)
	}
	return nil
}

// checkFree refuses when the file system has less than n bytes free.
func (db *DB) checkFree(n int64) error {
	free, err := freeBytes(db.kv)
	if err != nil {
		return fmt.Errorf("free bytes of %s: %w", db.kv, err)
	}
	if free < n {
		return fmt.Errorf("%w: %d bytes are free in %s, %d are needed", topology.ErrDiskFull, free, db.kv, n)
	}
	return nil
}

// diskFull wraps err, and topology.ErrDiskFull if it tells of a full disk.
func diskFull(err error, what string) error {
	if isFull(err) {
		return fmt.Errorf("%w: %s: %w", topology.ErrDiskFull, what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// The ballast is a file that only takes room. A database that has to be opened or closed on a full disk gives it up: that
// is the room for the table that its log is flushed to. It gives up no more than is needed, so that it lasts for some starts.
const (
	ballastBytes = 4 << 20
	ballastSlack = 32 << 10 // what the file system may take for itself
)

func (db *DB) ballastPath() string { return filepath.Join(db.dir, "ballast") }

// makeRoom sees to n free bytes, by the owner of the disk or by giving up the ballast.
func (db *DB) makeRoom(n int64) error {
	asked := db.askRoom(n)
	free := db.checkFree(n)
	if free == nil {
		return nil
	}
	if err := db.giveBallast(n); err != nil {
		return errors.Join(free, asked, err)
	}
	db.log.Warn().Str("dir", db.dir).Int64("bytes", n).Msg("the disk is full, ballast of the local database is given up")
	return db.checkFree(n)
}

// giveBallast cuts the ballast by what is missing to n free bytes, no more: the rest is for the next time.
func (db *DB) giveBallast(n int64) error {
	free, err := freeBytes(db.kv)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(db.ballastPath(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := f.Truncate(max(0, info.Size()-(n-free)-ballastSlack)); err != nil {
		return err
	}
	return f.Sync() // some file systems free the blocks only then
}

// takeBallast takes the ballast, or what is missing of it, when there is much more room than that.
func (db *DB) takeBallast() {
	path := db.ballastPath()
	if info, err := os.Stat(path); err == nil && info.Size() >= ballastBytes || db.checkFree(4*ballastBytes) != nil {
		return
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return
	}
	done, err := allocate(f, ballastBytes, false)
	_ = f.Close()
	if err != nil || !done {
		_ = os.Remove(path)
	}
}

// tableBound is the most that a table takes on disk which a log of n bytes is flushed to. Besides its entries, smaller there,
// it holds an index with the first key of each block, and a filter.
func tableBound(n int64) int64 { return min(tableRoom, 2*n+16<<10) }

// entryBound is the most that an entry takes in a log or memtable: a node of the skip list is the larger part.
func entryBound(key, value []byte) int64 {
	const nodeAndHeads = 96 + 8 + 8 + 12
	return int64(len(key) + len(value) + nodeAndHeads)
}
