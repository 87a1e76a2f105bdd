package localdb

import (
	"fmt"
	"sync"

	"github.com/skeinmq/skein/internal/topology"
)

// failure is the first error of a write or sync. It is set without a lock, as badger may report trouble while an update
// waits for it.
type failure struct {
	once sync.Once
	set  chan struct{} // closed once err is there
	err  error
}

func (f *failure) get() error {
	select {
	case <-f.set:
		return f.err
	default:
		return nil
	}
}

// Failed is closed once the database takes no more writes in this process, since a write or a sync failed: the broker has to
// end then, and its next start tells what reached the disk. Err says why. Close does not close it.
func (db *DB) Failed() <-chan struct{} { return db.failure.set }

// Err is nil until Failed is closed. Then it names the folder and the cause, and wraps topology.ErrUnavailable.
func (db *DB) Err() error {
	err := db.failure.get()
	if err == nil {
		return nil
	}
	return fmt.Errorf("local database in %s cannot be written any more, see to its disk and start the broker again: %w: %w",
		db.dir, topology.ErrUnavailable, err)
}

// fail notes that a write or sync failed midway.
func (db *DB) fail(err error) error {
	db.failure.once.Do(func() {
		db.failure.err = err
		close(db.failure.set)
		db.log.Error().Err(err).Str("dir", db.dir).Msg("local database takes no more writes")
	})
	return fmt.Errorf("%w: %w", topology.ErrUnavailable, err)
}
