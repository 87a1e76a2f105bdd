package data

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// flushing is the state of one log that a checkpoint makes durable.
type flushing struct {
	l      *log
	note   note
	segs   []flushSegment
	newDir bool
	err    error
}

// flushSegment is a segment with unflushed bytes.
type flushSegment struct {
	seg   *segment
	size  int64
	fresh bool
}

// Checkpoint flushes all segments that have unflushed bytes and notes what is durable now, so that the journal can be
// used again. Rounds go on meanwhile: they are held up only while the list of dirty logs is taken.
func (s *Store) Checkpoint() error { return s.checkpoint(false) }

// checkpoint does that. final says that it is the last one: notes are written and flushed whatever the policy.
func (s *Store) checkpoint(final bool) error {
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	return s.checkpointLocked(final)
}

// checkpointLocked is checkpoint for a caller that holds flushMu.
func (s *Store) checkpointLocked(final bool) error {
	began := time.Now()
	s.commitMu.Lock()
	lsn := s.journal.lsn
	list, blocked := s.capture()
	s.commitMu.Unlock()
	if len(list) > 0 {
		s.flushAll(list)
		defer func() { s.metrics.checkpoints.Observe(time.Since(began).Seconds()) }()
	}
	err := s.settle(list)
	if err == nil {
		err = blocked
	}
	all, carried := err == nil, (*journalFile)(nil)
	if !all && !final {
		carried, all = s.carryOver(lsn)
	}
	return errors.Join(err, s.writeNotes(list, lsn, all, carried, final))
}

// capture takes the dirty logs and what is to be flushed of them. A log that has failed stays dirty, and the error says
// so: the journal cannot let go of its chunks. The caller holds flushMu and commitMu.
func (s *Store) capture() ([]*flushing, error) {
	var list []*flushing
	var stay []*log
	var err error
	for _, l := range s.dirty {
		switch {
		case l.gone:
			l.dirty = false
		case l.failed != nil:
			stay = append(stay, l)
			err = fmt.Errorf("%s has failed: %w", l.id, l.failed)
		default:
			l.dirty = false
			list = append(list, l.capture())
		}
	}
	s.dirty = stay
	return list, err
}

// capture takes what is to be flushed of one log: the segments with unflushed bytes are always its last ones.
func (l *log) capture() *flushing {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &flushing{l: l, note: l.note(), newDir: l.newDir}
	for i := len(l.segs) - 1; i >= 0 && l.segs[i].dirty(); i-- {
		f.segs = append(f.segs, flushSegment{seg: l.segs[i], size: l.segs[i].size, fresh: l.segs[i].fresh})
	}
	return f
}

// note is the state of a log to be written down. The caller holds mu.
func (l *log) note() note {
	return note{
		lsn: l.lsn, start: l.start, end: l.end, hw: l.end, oldest: l.oldest, newest: l.newest,
		bytes: l.bytes, segments: l.segCount, last: l.last, roll: l.roll, stretches: l.stretches,
	}
}

const (
	flushWorkers = 4   // segments that are flushed at the same time
	fewSegments  = 8   // up to here one after the other
	manySegments = 256 // beyond, the whole file system is flushed at once
)

// flushAll flushes the segments of all logs of a checkpoint and the directories of new files. Each log has its own outcome.
func (s *Store) flushAll(list []*flushing) {
	segments := 0
	for _, f := range list {
		segments += len(f.segs)
	}
	all := segments > manySegments
	workers := 1
	if segments > fewSegments && !all {
		workers = s.cfg.workers
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(list)); i = next.Add(1) - 1 {
				s.flushLog(list[i], !all)
			}
		})
	}
	wg.Wait()
	if all {
		s.flushDisk(list)
		return
	}
	s.flushTopics(list)
}

// flushLog saves the indexes of a log, and with flush its segments and the directory they lie in.
func (s *Store) flushLog(f *flushing, flush bool) {
	for _, fs := range f.segs {
		if f.err == nil {
			f.err = s.flushSegment(f.l, fs, flush)
		}
	}
	if f.err == nil && flush && f.freshFiles() {
		f.err = s.fs.SyncDir(s.paths.log(f.l.id))
	}
}

// flushDisk flushes everything at once: with very many logs that is far cheaper than one by one.
func (s *Store) flushDisk(list []*flushing) {
	err := s.fs.SyncAll(s.paths.root)
	if err == nil {
		return
	}
	for _, f := range list {
		f.l.mu.Lock()
		s.distrust(f.l)
		f.l.mu.Unlock()
		f.err = errors.Join(f.err, err)
	}
}

// flushTopics makes the entries of new logs and topics durable.
func (s *Store) flushTopics(list []*flushing) {
	topics := make(map[uuid.UUID]error)
	var root error
	for _, f := range list {
		if !f.newDir {
			continue
		}
		if _, done := topics[f.l.id.Topic]; !done {
			topics[f.l.id.Topic] = s.fs.SyncDir(s.paths.topic(f.l.id.Topic))
		}
	}
	if len(topics) > 0 {
		root = s.fs.SyncDir(s.paths.logs())
	}
	for _, f := range list {
		if f.newDir && f.err == nil {
			f.err = errors.Join(topics[f.l.id.Topic], root)
		}
	}
}

func (f *flushing) freshFiles() bool {
	for _, fs := range f.segs {
		if fs.fresh {
			return true
		}
	}
	return false
}

// keepCached is how much of the newest bytes all logs together leave in the page cache for their readers.
const keepCached = 256 << 20

// flushSegment flushes one segment, unless that is left to flushDisk, saves its index, and gives back the page cache
// behind its tail.
func (s *Store) flushSegment(l *log, fs flushSegment, flush bool) error {
	h, err := s.acquire(l, fs.seg, mustExist)
	if err != nil {
		return fmt.Errorf("flush segment %d of %s: %w", fs.seg.base, l.id, err)
	}
	defer s.files.release(h)
	if flush {
		if err := h.Sync(); err != nil {
			l.mu.Lock()
			s.distrust(l)
			l.mu.Unlock()
			return fmt.Errorf("flush segment %d of %s: %w", fs.seg.base, l.id, err)
		}
	}
	if err := s.saveIndex(l, h, fs); err != nil && !full(err) {
		s.logger.Warn().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).Msg("index is not saved")
	}
	keep := max(1<<20, keepCached/int64(max(1, s.logCount())))
	if cold := fs.size - keep; cold > 0 && fs.seg.synced < cold {
		h.DontNeed(0, cold)
	}
	return nil
}

// saveIndex saves the entries of the chunks that are flushed. An index that is not loaded yet is loaded, so that the file
// goes on as the segment does.
func (s *Store) saveIndex(l *log, h *handle, fs flushSegment) error {
	l.mu.Lock()
	v := view{seg: fs.seg, base: fs.seg.base, handle: h, size: fs.seg.size, until: l.untilOf(l.segmentFor(fs.seg.base)), end: l.end, stretches: l.stretches, cuts: l.cuts}
	l.mu.Unlock()
	if _, err := s.entries(l, v); err != nil {
		return err
	}
	h.idx.build.Lock()
	defer h.idx.build.Unlock()
	return h.idx.save(s.fs, s.paths.file(l.id, fs.seg.base, indexExt), fs.seg.base, fs.size)
}

func (s *Store) logCount() int {
	s.logsMu.RLock()
	defer s.logsMu.RUnlock()
	return len(s.logs)
}

// syncDirs makes the entries of a new segment file and of the directories above it durable.
func (s *Store) syncDirs(l *log) error {
	dirs := []string{s.paths.log(l.id)}
	if l.newDir {
		dirs = append(dirs, s.paths.topic(l.id.Topic), s.paths.logs())
	}
	for _, dir := range dirs {
		if err := s.fs.SyncDir(dir); err != nil {
			return fmt.Errorf("sync directory %s: %w", dir, err)
		}
	}
	return nil
}

// settle notes in memory what is durable now. Logs whose flush failed are handed to Repair; the first error is returned.
func (s *Store) settle(list []*flushing) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	var first error
	for _, f := range list {
		if f.err != nil {
			s.metrics.failures.Inc()
			s.fail(f.l, f.err)
			if first == nil {
				first = f.err
			}
			continue
		}
		f.l.mu.Lock()
		for _, fs := range f.segs {
			fs.seg.synced = max(fs.seg.synced, fs.size)
			fs.seg.fresh = false
		}
		f.l.mu.Unlock()
		if f.newDir {
			f.l.newDir = false
		}
	}
	return first
}

// notesPerUpdate keeps updates far below what a small database takes in one piece.
const notesPerUpdate = 256

// writeNotes writes down the logs that are durable, and if all are, or the others were carried over, that the journal is done
// with up to lsn. With
// FlushInterval that happens once a second, and need not be durable itself.
func (s *Store) writeNotes(list []*flushing, lsn uint64, all bool, carried *journalFile, final bool) error {
	for _, f := range list {
		if f.err == nil {
			s.unnoted[f.l.id] = f.note
		}
	}
	sync := s.cfg.Flush == FlushAlways || final
	now := s.cfg.Now()
	if !sync && now.Sub(s.notedAt) < noteInterval && now.After(s.notedAt) {
		return nil
	}
	if len(s.unnoted) == 0 && (!all || lsn == s.journal.released.Load() && len(s.journal.carried) == 0) {
		return nil
	}
	s.notedAt = now
	for len(s.unnoted) > 0 {
		batch := make([]topology.LogID, 0, notesPerUpdate)
		for id := range s.unnoted {
			if batch = append(batch, id); len(batch) == notesPerUpdate {
				break
			}
		}
		slices.SortFunc(batch, compareLogs)
		err := s.kv.Update(sync, func(put func(key, value []byte), _ func(key []byte)) {
			for _, id := range batch {
				put(logKey(keyLog, id), s.unnoted[id].encode())
			}
		})
		if err != nil {
			return fmt.Errorf("write notes: %w", err)
		}
		for _, id := range batch {
			delete(s.unnoted, id)
		}
	}
	if !all || !sync {
		return nil
	}
	return s.release(lsn, carried)
}

// release writes down that journal records up to lsn are in flushed segments, or carried over, and lets the journal reuse
// their room.
func (s *Store) release(lsn uint64, carried *journalFile) error {
	keep := len(s.journal.carried) > 0 // carried records may name the topics: they stay dropped
	err := s.kv.Update(true, func(put func(key, value []byte), del func(key []byte)) {
		put([]byte(keyRun), s.mark(lsn, false))
		if !keep {
			for _, topic := range s.buried {
				del(dropKey(topic))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("release the journal: %w", err)
	}
	if !keep {
		s.buried = nil
	}
	s.journal.released.Store(lsn)
	if err := s.journal.dropCarried(carried); err != nil {
		return fmt.Errorf("release the journal: %w", err)
	}
	return nil
}

// mark is the mark of this run.
func (s *Store) mark(lsn uint64, clean bool) []byte {
	return runMark{lsn: lsn, skip: s.skip, flush: s.cfg.Flush, clean: clean, boot: s.boot}.encode()
}

// markRun writes the mark down.
func (s *Store) markRun(clean bool) error {
	err := s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) {
		put([]byte(keyRun), s.mark(s.journal.released.Load(), clean))
	})
	if err != nil {
		return fmt.Errorf("mark the run: %w", err)
	}
	return nil
}
