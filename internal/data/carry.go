package data

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/skeinmq/skein/internal/topology"
)

// A log that cannot be flushed keeps its chunks in the journal, and so would keep the journal from being used again: one bad
// log would stop all. Instead what it has there is carried over to a file of its own before the journal lets go of it.
//
// Records keep their numbers there. The note of a log tells which of them it has already, so it does not matter that the
// journal as a whole is done with them, nor that some log has been repaired, cut or written again since.

// carriedFiles are the numbers that such files take in turn: while one is written the other is still needed.
const carriedFiles = 2

// findCarried opens the files that an earlier run left.
func (j *journal) findCarried() error {
	for i := journalFiles; i < journalFiles+carriedFiles; i++ {
		if _, err := j.fs.Stat(j.name(i)); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		f, err := j.open(j.name(i), journalFileStart, false)
		if err != nil {
			return err
		}
		j.carried = append(j.carried, f)
	}
	return nil
}

// dropCarried removes all files but one. Durable on return: what they name must not come back when its topic is dropped.
func (j *journal) dropCarried(but *journalFile) error {
	if len(j.carried) == 0 || len(j.carried) == 1 && j.carried[0] == but {
		return nil
	}
	var errs []error
	j.carried = slices.DeleteFunc(j.carried, func(f *journalFile) bool {
		if f == but {
			return false
		}
		err := j.fs.Remove(f.name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			return false
		}
		_ = f.Close()
		return true
	})
	return errors.Join(append(errs, j.fs.SyncDir(j.dir))...)
}

// carryOver carries over what failed logs have in records up to lsn, if that is what keeps the journal from being used
// again. It says whether the journal may let go of these records, and which file holds what is still needed, if any. The
// caller holds flushMu.
func (s *Store) carryOver(lsn uint64) (*journalFile, bool) {
	if s.cfg.Flush != FlushAlways {
		return nil, false
	}
	s.commitMu.Lock()
	j := s.journal
	due := s.broken != nil || j.files[(j.active+1)%len(j.files)].last > j.released.Load()
	failed := make(map[topology.LogID]uint64) // by log the last record that counts
	for _, l := range s.dirty {
		if l.failed != nil && !l.gone {
			failed[l.id] = l.lsn
		}
	}
	s.commitMu.Unlock()
	if !due {
		return nil, false
	}
	f, err := s.carry(lsn, failed)
	if err != nil {
		s.logger.Error().Err(err).Msg("chunks of failed logs cannot be carried over: the commit journal stays full")
		return nil, false
	}
	return f, true
}

// carry writes a new file with what the failed logs have in journal records up to lsn; nil if that is nothing.
func (s *Store) carry(lsn uint64, failed map[topology.LogID]uint64) (*journalFile, error) {
	list, _, err := s.journal.survey(s.journal.released.Load())
	if err != nil {
		return nil, err
	}
	var needed []foundRecord
	size := int64(journalFileStart)
	for _, r := range list {
		if r.lsn > lsn || r.lsn == s.skip {
			continue
		}
		meta, bufs, err := r.partOf(failed)
		if err != nil {
			return nil, err
		}
		if len(meta) == recordHeaderSize {
			continue
		}
		needed = append(needed, r)
		for _, b := range append(bufs, meta) {
			size += int64(len(b))
		}
	}
	if len(needed) == 0 {
		return nil, nil
	}
	if err := s.room.Ensure(size); err != nil {
		return nil, err
	}
	f, err := s.newCarried(size)
	if err != nil {
		return nil, err
	}
	for _, r := range needed {
		meta, bufs, err := r.partOf(failed)
		if err == nil {
			err = f.write(r.kind, r.lsn, meta, bufs)
		}
		if err != nil {
			return nil, errors.Join(err, s.journal.dropLast())
		}
	}
	if err := s.fs.SyncDir(s.journal.dir); err != nil {
		return nil, errors.Join(err, s.journal.dropLast())
	}
	return f, nil
}

// newCarried makes a file under a number that is not in use. From here on it must not be forgotten before it is removed.
func (s *Store) newCarried(size int64) (*journalFile, error) {
	j := s.journal
	for i := journalFiles; i < journalFiles+carriedFiles; i++ {
		name := j.name(i)
		if slices.ContainsFunc(j.carried, func(f *journalFile) bool { return f.name == name }) {
			continue
		}
		f, err := j.open(name, size, true)
		if err != nil {
			return nil, err
		}
		j.carried = append(j.carried, f)
		return f, nil
	}
	return nil, errors.New("the files of carried records are in use")
}

// dropLast removes the newest file, which could not be finished.
func (j *journal) dropLast() error {
	last := len(j.carried) - 1
	if err := j.fs.Remove(j.carried[last].name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = j.carried[last].Close()
	j.carried = j.carried[:last]
	return j.fs.SyncDir(j.dir)
}

// partOf returns the share of the failed logs in a record: the entries, behind room for a header, and the chunks, behind a
// place that is left free.
func (r foundRecord) partOf(failed map[topology.LogID]uint64) (meta []byte, bufs [][]byte, err error) {
	entries, chunks, _, err := r.read(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("read journal record %d: %w", r.lsn, err)
	}
	meta, bufs = make([]byte, recordHeaderSize), [][]byte{nil}
	for _, e := range entries {
		var b []byte
		if r.kind == kindChunks {
			b, chunks = chunks[:e.size], chunks[e.size:]
		}
		if last, ok := failed[e.log]; !ok || r.lsn > last { // beyond that it names a round that was cut off
			continue
		}
		meta = appendJournalEntry(meta, e)
		if b != nil {
			bufs = append(bufs, b)
		}
	}
	return meta, bufs, nil
}
