package localdb

import "time"

// Rules of compaction. A full memtable makes a table of level 0; all others are sorted into one level below it.
const (
	compactTables = 4        // tables of level 0 from which on it may pay
	compactAlways = 12       // and from which on it is done whatever it costs: each is searched by each Get
	compactMargin = 32 << 20 // free bytes that stay; a compaction that is not needed waits for better times
)

// compactSoon starts a compaction in the background if none runs. It is called when a table has been added, so an idle
// database does nothing.
func (db *DB) compactSoon() {
	if !db.compacting.CompareAndSwap(false, true) {
		return
	}
	db.background.Go(func() {
		defer db.compacting.Store(false)
		db.compact()
		db.takeBallast()
	})
}

// compact merges the tables of level 0 into the level below when there are several, and they are not too little beside
// what has to be written again for them.
func (db *DB) compact() {
	var count int
	var upper, lower int64
	for _, t := range db.badger.Tables() {
		if t.Level == 0 {
			count++
			upper += int64(t.OnDiskSize)
		} else {
			lower += int64(t.OnDiskSize)
		}
	}
	if count < compactTables || count < compactAlways && upper < lower/4 {
		return
	}
	need := upper + lower + rotationRoom // the old tables go when the new ones are there
	if count < compactAlways {
		need += compactMargin
	}
	if db.checkFree(need) != nil { // the owner of the disk is not asked: a compaction is no reason to give up a reserve
		db.log.Debug().Int64("bytes", need).Msg("no room to compact the local database")
		return
	}
	began := time.Now()
	if err := db.badger.Flatten(1); err != nil {
		db.log.Warn().Err(err).Msg("compaction of the local database failed")
		return
	}
	db.metrics.compacted(time.Since(began))
	db.log.Debug().Int64("bytes", upper+lower).Dur("took", time.Since(began)).Msg("local database compacted")
}
