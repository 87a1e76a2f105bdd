package localdb

import (
	"errors"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/skeinmq/skein/internal/topology"
)

// Get returns the value of key, or nil when there is none; an empty value is not nil. The result is the caller's.
func (db *DB) Get(key []byte) ([]byte, error) {
	if err := db.enter(); err != nil {
		return nil, err
	}
	defer db.leave()
	return db.get(key)
}

func (db *DB) get(key []byte) ([]byte, error) {
	txn := db.badger.NewTransaction(false)
	defer txn.Discard()
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("local database: get %q: %w", key, err)
	}
	value, err := item.ValueCopy([]byte{})
	if err != nil {
		return nil, fmt.Errorf("local database: get %q: %w", key, err)
	}
	return value, nil
}

// Scan calls fn for each key that begins with prefix, in the order of their bytes, as of when Scan was called. key and
// value hold until fn returns. An error of fn ends the scan and is returned as it is. fn may call the other methods.
func (db *DB) Scan(prefix []byte, fn func(key, value []byte) error) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	return db.scan(prefix, fn)
}

func (db *DB) scan(prefix []byte, fn func(key, value []byte) error) error {
	txn := db.badger.NewTransaction(false)
	defer txn.Discard()
	opt := badger.DefaultIteratorOptions
	opt.Prefix = prefix
	opt.PrefetchValues = false // values lie with their keys
	it := txn.NewIterator(opt)
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		var ours error
		err := item.Value(func(value []byte) error {
			ours = fn(item.Key(), value)
			return nil
		})
		if ours != nil {
			return ours
		}
		if err != nil {
			return fmt.Errorf("local database: scan %q at %q: %w", prefix, item.Key(), err)
		}
	}
	return nil
}

// Update stores what fn puts and deletes in one transaction: all of it or nothing survives a crash, and of two calls for
// one key the later counts. fn runs once, before Update takes a lock; key and value are copied. Other goroutines see all
// or nothing too, except of an update of more than about 1,500 keys or 140 KiB, which they may see come into being.
//
// With sync it is durable when Update returns, and so are all updates before it; updates that wait share one sync.
// Without, it survives the end of the process but not that of the machine.
//
// Errors: topology.ErrDiskFull and topology.ErrTooLarge, nothing is written; ErrClosed; after an error of the disk
// topology.ErrUnavailable, for the rest of the process (see Failed): whether that update is there, the next Open tells.
func (db *DB) Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error {
	if err := db.enter(); err != nil {
		return err
	}
	defer db.leave()
	began := time.Now()
	err := db.update(sync, collect(fn))
	db.metrics.updated(sync, time.Since(began), err)
	if err != nil {
		return fmt.Errorf("local database: update: %w", err)
	}
	return nil
}

func (db *DB) update(sync bool, b *batch) error {
	if err := b.check(); err != nil {
		return err
	}
	seq, err := db.write(b)
	if err != nil || !sync {
		return err
	}
	return db.syncTo(seq)
}

// write commits b and returns its place in the order of commits.
func (db *DB) write(b *batch) (uint64, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	err := db.failure.get()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", topology.ErrUnavailable, err)
	}
	if b.fits() {
		err = db.commit(b.ops)
	} else {
		err = db.commitLarge(b)
	}
	return db.seq, err
}

// commit writes ops in one transaction of badger. The caller holds mu.
func (db *DB) commit(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	bound := entryBound(nil, nil) // the mark that ends the transaction
	for _, o := range ops {
		bound += entryBound(o.key, o.value)
	}
	if err := db.makeWay(bound); err != nil {
		return err
	}
	txn := db.badger.NewTransaction(true)
	defer txn.Discard()
	doubt := db.doubt()
	for _, o := range ops {
		var err error
		if o.del {
			err = txn.Delete(o.key)
		} else {
			err = txn.SetEntry(badger.NewEntry(o.key, o.value).WithMeta(doubt))
		}
		if err != nil {
			return fmt.Errorf("key %q: %w", o.key, err)
		}
	}
	if err := txn.Commit(); err != nil {
		return db.fail(err)
	}
	db.seq++
	if err := db.wrote(bound); err != nil {
		return db.fail(err)
	}
	return nil
}

// syncTo makes the transactions up to seq durable, unless another call has done so while this one waited.
func (db *DB) syncTo(seq uint64) error {
	db.syncing.Lock()
	defer db.syncing.Unlock()
	if db.synced.Load() >= seq {
		return nil
	}
	db.mu.Lock()
	upTo := db.seq
	db.mu.Unlock()
	began := time.Now()
	err := db.badger.Sync()
	db.metrics.synced(time.Since(began))
	// Should badger have gone on to the next log meanwhile, the sync was of that one, and the full one is synced by the
	// transaction that went on, under this lock.
	db.mu.Lock()
	defer db.mu.Unlock()
	if err != nil {
		return db.fail(err)
	}
	if err := db.failure.get(); err != nil {
		return fmt.Errorf("%w: %w", topology.ErrUnavailable, err)
	}
	db.synced.Store(max(db.synced.Load(), upTo))
	return nil
}
