package data

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
