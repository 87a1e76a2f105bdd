package data

import (
	"errors"
	"fmt"
	"io"

	"github.com/skeinmq/skein/internal/topology"
)

// Repair writes again what failed and checks it: segments whose write or flush failed, then the journal. It answers false
// when something is still failing; Run tries again after a moment. Nothing to repair is true.
//
// After a failed flush nobody can tell which bytes are on disk, and the next flush does not say (F21). So all bytes of
// the segment that are not known to be durable are written again, from the page cache if they pass their checksums, else
// from the journal, and flushed.
func (s *Store) Repair() bool {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	s.commitMu.Lock()
	s.suspectMu.Lock()
	for _, l := range s.suspects {
		if l.failed == nil && !l.gone {
			s.fail(l, errSuspect)
		}
	}
	s.suspects = nil
	s.suspectMu.Unlock()
	failing, broken, lsn := s.failing, s.broken != nil, s.journal.lsn
	s.commitMu.Unlock()
	if broken && s.skip != lsn {
		// The round that failed is cut off below: first make sure that no replay finds its record.
		s.skip = lsn
		if err := s.markRun(false); err != nil {
			s.skip = 0
			s.logger.Error().Err(err).Msg("failed round cannot be cut off")
			return false
		}
	}
	for _, l := range failing {
		if l.gone {
			continue
		}
		err := s.repairLog(l)
		s.commitMu.Lock()
		if err == nil {
			l.failed = nil
			l.mu.Lock()
			l.suspect = false
			l.mu.Unlock()
			s.logger.Info().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Msg("log is repaired")
		} else {
			l.failed = err
		}
		s.commitMu.Unlock()
	}
	s.commitMu.Lock()
	still := s.failing[:0]
	for _, l := range s.failing {
		if l.failed != nil && !l.gone {
			still = append(still, l)
		}
	}
	s.failing = still
	s.commitMu.Unlock()
	if !broken {
		return len(still) == 0
	}
	if err := s.renewJournal(); err != nil {
		s.logger.Error().Err(err).Msg("commit journal cannot be made anew")
		return false
	}
	return len(still) == 0
}

var errSuspect = errors.New("bytes that were not flushed yet do not pass their checksums")

// distrust says that unflushed bytes of a log cannot be trusted until Repair has written them again. The caller holds l.mu.
func (s *Store) distrust(l *log) {
	if l.suspect {
		return
	}
	l.suspect = true
	s.suspectMu.Lock()
	s.suspects = append(s.suspects, l)
	s.suspectMu.Unlock()
	nudge(s.mend)
}

// renewJournal checkpoints everything that the failed journal still holds and replaces its files. The round that failed
// was cut off from its logs before, and its record is passed over from now on.
func (s *Store) renewJournal() error {
	err := s.checkpointLocked(false)
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err != nil && s.journal.released.Load() < s.journal.lsn {
		return err
	}
	if err := s.journal.renew(); err != nil {
		return err
	}
	s.broken = nil
	s.logger.Info().Msg("commit journal is made anew: appends go on")
	return nil
}

// failedLogs is the number of logs that refuse appends.
func (s *Store) failedLogs() int {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	return len(s.failing)
}

// repairLog writes the unflushed bytes of a log again and cuts what was never committed. No append goes to it meanwhile.
// The caller holds flushMu.
func (s *Store) repairLog(l *log) error {
	if l.cutting { // before the files are shortened: the note must say so first
		s.commitMu.Lock()
		err := s.finishCut(l)
		s.commitMu.Unlock()
		if err != nil {
			return err
		}
	}
	l.mu.Lock()
	segs := l.segs
	stretches, end := l.stretches, l.end
	l.mu.Unlock()
	first := max(0, len(segs)-1)
	for first > 0 && segs[first-1].dirty() {
		first--
	}
	for i := first; i < len(segs); i++ { // upwards, so that the dirty segments stay the last ones when one fails
		seg, until := segs[i], end
		if i+1 < len(segs) {
			until = segs[i+1].base
		}
		if err := s.rewrite(l, seg, until, stretches); err != nil {
			return fmt.Errorf("repair segment %d of %s: %w", seg.base, l.id, err)
		}
	}
	if len(segs) == 0 {
		return nil
	}
	if err := s.syncDirs(l); err != nil {
		return err
	}
	l.newDir = false
	return nil
}

// rewrite writes the bytes of a segment from the last durable one on again, cuts the file behind them and flushes it. The
// file is opened anew.
func (s *Store) rewrite(l *log, seg *segment, until topology.Offset, stretches stretches) error {
	s.files.drop(seg)
	h, err := s.acquire(l, seg, mustExist)
	if err != nil {
		return err
	}
	defer s.files.release(h)
	b := make([]byte, seg.size-seg.synced)
	n, err := h.ReadAt(b, seg.synced)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if n < len(b) || !s.verify(b, seg, until, stretches) {
		if err := s.fromJournal(l, seg, b); err != nil {
			return err
		}
	}
	if len(b) > 0 {
		if err := h.WriteV([][]byte{b}, seg.synced); err != nil {
			return err
		}
	}
	if err := h.Truncate(seg.size); err != nil {
		return err
	}
	if err := h.Sync(); err != nil {
		return err
	}
	l.mu.Lock()
	seg.synced, seg.fresh = seg.size, false
	l.mu.Unlock()
	return nil
}

// verify checks that b, the last bytes of a segment, are good chunks up to the end of the segment.
func (s *Store) verify(b []byte, seg *segment, until topology.Offset, stretches stretches) bool {
	if len(b) == 0 {
		return true
	}
	w := walk{file: byteReader(b), size: int64(len(b)), until: until, stretches: stretches, step: len(b)}
	h, ok := w.first()
	if !ok || h < seg.base {
		return false
	}
	w.next = h
	for {
		head, _, err := w.peek(true)
		if err != nil {
			return errors.Is(err, io.EOF) && w.next == until
		}
		w.skip(head)
	}
}

// first is the base offset that the first header names.
func (w *walk) first() (topology.Offset, bool) {
	h, err := w.header(0)
	return h.BaseOffset, err == nil
}

// byteReader reads from memory.
type byteReader []byte

// ReadAt implements io.ReaderAt.
func (r byteReader) ReadAt(b []byte, off int64) (int, error) {
	if off >= int64(len(r)) {
		return 0, io.EOF
	}
	n := copy(b, r[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// fromJournal fills b, the bytes of seg behind the durable ones, from the journal as far as it holds them.
func (s *Store) fromJournal(l *log, seg *segment, b []byte) error {
	list, _, err := s.journal.survey(s.journal.released.Load())
	if err != nil {
		return err
	}
	var buf []byte
	var filled int64
	for _, r := range list {
		entries, chunks, kept, err := r.read(buf)
		buf = kept
		if errors.Is(err, errRotten) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if r.kind != kindChunks {
				continue
			}
			at := e.pos - seg.synced
			if e.log == l.id && e.segment == seg.base && at >= 0 && at+int64(e.size) <= int64(len(b)) {
				filled += int64(copy(b[at:], chunks[:e.size]))
			}
			chunks = chunks[e.size:]
		}
	}
	if filled < int64(len(b)) {
		s.logger.Error().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(seg.base)).
			Int64("bytes", int64(len(b))-filled).Msg("bytes were lost by a failed flush and are nowhere else")
	}
	return nil
}
