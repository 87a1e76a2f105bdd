package data

// fillAfter is how many bytes of a new journal file are used before it is worth while to write the other one.
const fillAfter = 1 << 20

// fillJournal writes zeros to a new journal file that is not in use, then makes it the active one, so that the turn of the
// other comes. The first write to a block that was only allocated changes the metadata of the file, which a flush must
// then write too: about twice the time. It happens once in the life of a data folder, and only when there is something to
// gain: after some bytes were appended.
func (s *Store) fillJournal(after int64) {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	f := s.rawFile(after)
	if f == nil {
		return
	}
	zeros := make([]byte, 1<<20)
	var err error
	for at := int64(journalFileStart); at < f.size && err == nil; at += int64(len(zeros)) {
		err = f.WriteV([][]byte{zeros[:min(int64(len(zeros)), f.size-at)]}, at)
	}
	if err == nil {
		err = f.Sync()
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	f.raw, f.filling = false, false
	if err != nil {
		s.logger.Warn().Err(err).Str("file", f.name).Msg("journal file could not be filled")
		return
	}
	s.journal.eager = s.journal.files[s.journal.active].raw
}

// rawFile chooses the file to be filled, nil if there is none.
func (s *Store) rawFile(after int64) *journalFile {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	j := s.journal
	if s.broken != nil || s.closed || len(j.files) == 0 || j.files[j.active].pos < after && j.files[j.active].raw {
		return nil
	}
	for i, f := range j.files {
		if i != j.active && f.raw && f.last <= j.released.Load() {
			f.filling = true
			return f
		}
	}
	return nil
}
