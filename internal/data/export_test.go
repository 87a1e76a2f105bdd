package data

import "github.com/skeinmq/skein/internal/topology"

// JournalFileStart is where the records of a journal file begin.
const JournalFileStart = journalFileStart

// OpenFiles is the number of segment files that are open.
func (s *Store) OpenFiles() int { return s.files.count() }

// Broken is why the store refuses appends.
func (s *Store) Broken() error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return s.broken
}

// WatchRoom looks at the disk.
func (s *Store) WatchRoom() { s.room.watch() }

// IndexFile makes an index file of entries {offset, position, time}.
func IndexFile(base int64, entries [][3]int64) []byte {
	b := appendIndexHeader(nil, topology.Offset(base))
	for _, e := range entries {
		b = appendIndexEntry(b, indexEntry{topology.Offset(e[0]), e[1], e[2]})
	}
	return b
}

// FillJournal writes a new journal file that is not in use.
func (s *Store) FillJournal() { s.fillJournal(0) }

// SerialFlush lets checkpoints flush one segment after the other, in an order that a seed replays.
func SerialFlush(cfg *Config) { cfg.workers = 1 }
