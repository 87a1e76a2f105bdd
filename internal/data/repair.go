package data

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/skeinmq/skein/internal/recordbatch"
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
			l.failed, l.attempts = nil, 0
			l.mu.Lock()
			l.suspect = false
			l.mu.Unlock()
			s.logger.Info().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Msg("log is repaired")
		} else {
			l.failed = err
			l.attempts++
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
	if l.strays {
		l.mu.Lock()
		segs = l.segs
		l.mu.Unlock()
		if err := s.sweep(l, segs); err != nil {
			return err
		}
		l.strays = false
	}
	if err := s.syncDirs(l); err != nil {
		return err
	}
	l.newDir = false
	return nil
}

// maxAttempts is how often a segment is written again in place before its unflushed bytes go to another file.
const maxAttempts = 3

// rewrite writes the bytes of a segment from the last durable one on again, cuts the file behind them and flushes it.
// Where that fails again and again, the blocks of the file are bad: the bytes are written elsewhere.
func (s *Store) rewrite(l *log, seg *segment, until topology.Offset, stretches stretches) error {
	b, err := s.unflushed(l, seg, until, stretches)
	if err != nil {
		return err
	}
	err = s.writeBack(l, seg, b)
	if err == nil || l.attempts < maxAttempts {
		return err
	}
	s.logger.Warn().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(seg.base)).
		Msg("segment cannot be written: its last bytes go to another file")
	return s.moveAway(l, seg, b)
}

// unflushed reads the bytes of a segment that are not known to be durable, from its file or else from the journal. The
// file is opened anew.
func (s *Store) unflushed(l *log, seg *segment, until topology.Offset, stretches stretches) ([]byte, error) {
	s.files.drop(seg)
	b := make([]byte, seg.size-seg.synced)
	if len(b) == 0 {
		return nil, nil
	}
	h, err := s.acquire(l, seg, mayExist)
	if err != nil {
		return nil, err
	}
	defer s.files.release(h)
	if _, err := (gapReader{h}).ReadAt(b, seg.synced); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if s.verify(b, seg, until, stretches) {
		return b, nil
	}
	if err := s.fromJournal(l, seg, b); err != nil {
		return nil, err
	}
	if !s.verify(b, seg, until, stretches) {
		s.logger.Error().Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Int64("segment", int64(seg.base)).
			Msg("bytes were lost by a failed flush and are nowhere else")
	}
	return b, nil
}

// writeBack writes b behind the durable bytes of a segment.
func (s *Store) writeBack(l *log, seg *segment, b []byte) error {
	h, err := s.acquire(l, seg, mayExist)
	if err != nil {
		return err
	}
	defer s.files.release(h)
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

// moveAway writes b, the bytes behind the durable ones of a segment, to a file of its own: one that takes the place of the
// segment when nothing in it was durable, else a new segment that begins where the durable bytes end. A replay of the
// journal, which does not know of that, comes to the same contents.
func (s *Store) moveAway(l *log, seg *segment, b []byte) error {
	if len(b) == 0 { // only the cut failed: what lies behind is passed over once another segment follows
		l.roll = true
		return nil
	}
	s.files.drop(seg)
	if seg.synced == 0 {
		return s.replaceFile(l, seg, b)
	}
	head, err := recordbatch.ParseHeader(b)
	if err != nil {
		return err
	}
	l.strays = true // should this fail, a file is left that must not lie between good segments
	to := &segment{base: head.BaseOffset, first: seg.first, max: seg.max}
	l.mu.Lock()
	h, err := s.create(l, to, anew)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	defer s.files.release(h)
	if err := h.WriteSync([][]byte{b}, 0); err != nil {
		return err
	}
	if err := s.syncDirs(l); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	to.size, seg.size = int64(len(b)), seg.synced
	to.synced, to.fresh = to.size, false
	l.attach(to)
	l.forget()
	return nil
}

// replaceFile puts a new file with the bytes b in the place of that of a segment.
func (s *Store) replaceFile(l *log, seg *segment, b []byte) error {
	name := s.paths.file(l.id, seg.base, segmentExt)
	f, err := s.fs.Open(name+newExt, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(0); err != nil {
		return err
	}
	if err := f.WriteSync([][]byte{b}, 0); err != nil {
		return err
	}
	if err := s.fs.Rename(name+newExt, name); err != nil {
		return err
	}
	if err := s.syncDirs(l); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.synced, seg.fresh = seg.size, false
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
				copy(b[at:], chunks[:e.size])
			}
			chunks = chunks[e.size:]
		}
	}
	return nil
}
