package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sort"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// recover brings the logs to the state that was acknowledged. Steps, each of which may be repeated after a crash:
//
//  1. read the notes: each log's durable state as of some journal record;
//  2. make durable what can be seen, so that a cut or a removal of the last run cannot be undone by a power cut in this one;
//     finish what was under way: dropped topics, cut logs;
//  3. replay the journal records behind the notes;
//  4. after an unclean stop, hold each log's files against its state: with a journal what lies beyond it was never
//     acknowledged and is cut, without one whole chunks are kept;
//  5. flush all of that, note it, and let go of the journal.
func (s *Store) recover() error {
	began := time.Now()
	var err error
	if s.boot, err = s.fs.BootID(); err != nil {
		return err
	}
	mark, found, err := s.readNotes()
	if err != nil {
		return err
	}
	topics, err := s.fs.ReadDir(s.paths.logs())
	if err != nil {
		return err
	}
	s.salvage = !found && len(topics) > 0
	s.report.NotesLost = s.salvage
	s.report.Clean = !found && !s.salvage || mark.clean
	if err := s.noteReboot(found && !mark.clean && mark.flush == FlushInterval && mark.boot != s.boot); err != nil {
		return err
	}
	if err := s.openFiles(); err != nil {
		return err
	}
	s.journal.lsn = mark.lsn
	if !s.report.Clean {
		if err := s.fs.SyncAll(s.paths.root); err != nil {
			return err
		}
	}
	if found && !mark.clean { // the same for the database: a synchronous update makes those before it durable
		err := s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) { put([]byte(keyRun), mark.encode()) })
		if err != nil {
			return err
		}
	}
	if err := s.finishDrops(); err != nil {
		return err
	}
	if !s.report.Clean {
		if err := s.recoverLogs(mark); err != nil {
			return err
		}
	}
	if err := s.journal.formatLost(); err != nil {
		return err
	}
	if err := s.journal.dropCarried(nil); err != nil {
		return err
	}
	s.starts = nil
	s.journal.released.Store(s.journal.lsn)
	if err := s.markRun(false); err != nil {
		return err
	}
	s.report.Logs = len(s.logs)
	s.report.Took = time.Since(began)
	s.opened = true
	s.logReport()
	return nil
}

// noteReboot remembers an unclean restart until the first append of a run: should this run end before its caller has given
// the disk a new id, the next one must hear of it too.
func (s *Store) noteReboot(now bool) error {
	noted, err := s.kv.Get([]byte(keyReboot))
	if err != nil {
		return err
	}
	s.unclean = now || noted != nil
	s.rebooted = s.unclean
	if !now {
		return nil
	}
	return s.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) { put([]byte(keyReboot), []byte{1}) })
}

// forgetReboot says that the restart was acted on.
func (s *Store) forgetReboot() error {
	err := s.kv.Update(true, func(_ func(key, value []byte), del func(key []byte)) { del([]byte(keyReboot)) })
	if err != nil {
		return fmt.Errorf("note that the restart was acted on: %w", err)
	}
	s.rebooted = false
	return nil
}

// openFiles opens the journal. With FlushInterval none is needed, but one that an earlier run left is read.
func (s *Store) openFiles() error {
	if s.cfg.Flush == FlushInterval {
		if _, err := s.fs.Stat(s.paths.journalFile(0)); errors.Is(err, fs.ErrNotExist) {
			s.journal = &journal{fs: s.fs, dir: s.paths.journal()}
			return nil
		}
	}
	var err error
	s.journal, err = openJournal(s.fs, s.paths.journal(), s.cfg.JournalBytes)
	return err
}

// readNotes makes the logs from their notes. found says whether there is a mark of an earlier run.
func (s *Store) readNotes() (mark runMark, found bool, err error) {
	b, err := s.kv.Get([]byte(keyRun))
	if err != nil {
		return mark, false, fmt.Errorf("read notes: %w", err)
	}
	if b != nil {
		if mark, err = decodeRunMark(b); err != nil {
			return mark, false, err
		}
	}
	err = s.kv.Scan([]byte(keyLog), func(key, value []byte) error {
		id, ok := parseLogKey(keyLog, key)
		if !ok {
			return fmt.Errorf("key %x: %w", key, errNote)
		}
		n, err := decodeNote(value)
		if err != nil {
			return fmt.Errorf("note of %s: %w", id, err)
		}
		s.addLog(s.logFromNote(id, n))
		return nil
	})
	if err == nil {
		err = s.kv.Scan([]byte(keyStart), func(key, value []byte) error {
			id, ok := parseLogKey(keyStart, key)
			if !ok || len(value) != 8 {
				return fmt.Errorf("key %x: %w", key, errNote)
			}
			start := topology.Offset(binary.BigEndian.Uint64(value))
			s.starts[id] = start
			if l := s.logs[id]; l != nil {
				l.setStart(start)
			}
			return nil
		})
	}
	if err != nil {
		return mark, false, fmt.Errorf("read notes: %w", err)
	}
	return mark, b != nil, nil
}

func (s *Store) logFromNote(id topology.LogID, n note) *log {
	s.total.Add(n.bytes)
	return &log{
		total: &s.total,
		id:    id, start: n.start, end: n.end, stretches: n.stretches, oldest: n.oldest, newest: n.newest,
		bytes: n.bytes, segCount: n.segments, last: n.last, roll: n.roll, lsn: n.lsn, cutting: n.cutting,
	}
}

// setStart moves the start up. What the note says of the oldest chunk is no longer true then.
func (l *log) setStart(start topology.Offset) {
	if start > l.start {
		l.start = start
		l.oldest = noTime
	}
}

// finishDrops removes what is left of dropped topics.
func (s *Store) finishDrops() error {
	var topics []uuid.UUID
	err := s.kv.Scan([]byte(keyDrop), func(key, _ []byte) error {
		if b := key[len(keyDrop):]; len(b) == 16 {
			topics = append(topics, uuid.UUID(b))
		}
		return nil
	})
	if err != nil || len(topics) == 0 {
		return err
	}
	for _, t := range topics {
		var ids []topology.LogID
		for _, l := range s.removeTopic(t) {
			l.grow(-l.bytes)
			ids = append(ids, l.id)
		}
		for id := range s.starts {
			if id.Topic == t {
				ids = append(ids, id)
				delete(s.starts, id)
			}
		}
		if err := s.forgetNotes(ids); err != nil {
			return err
		}
		if err := s.fs.RemoveAll(s.paths.topic(t)); err != nil {
			return err
		}
	}
	if err := s.fs.SyncDir(s.paths.logs()); err != nil {
		return err
	}
	s.buried = topics
	return nil
}

// recoveryRoom is what recovery may need besides the chunks it replays.
const recoveryRoom = 1 << 20

// recoverLogs is what an unclean stop asks for.
func (s *Store) recoverLogs(mark runMark) error {
	list, highest, err := s.journal.survey(mark.lsn)
	if err != nil {
		return err
	}
	if s.journal.lost() {
		s.report.JournalDamaged++
		s.logger.Error().Msg("a file of the commit journal has no readable header: what it held is looked for in the segments")
	}
	// Without a journal, or where it is damaged or the notes are lost, whole chunks beyond the noted ends are kept.
	keep := s.salvage || mark.flush == FlushInterval || s.journal.lost() || s.damagedJournal(list, mark.lsn)
	// All that is written from here on must fit, though somebody else may have filled the disk: the reserve is there for
	// that. Where even that is too little the write that fails tells.
	need := int64(recoveryRoom)
	for _, r := range list {
		need += int64(r.length)
	}
	if err := s.room.Ensure(need); err != nil {
		s.logger.Warn().Err(err).Msg("little room to recover in")
	}
	if err := s.surveyLogs(keep, true); err != nil {
		return err
	}
	if err := s.replay(list, mark.lsn, mark.skip); err != nil {
		return err
	}
	if err := s.surveyLogs(keep, false); err != nil {
		return err
	}
	for _, id := range slices.SortedFunc(maps.Keys(s.starts), compareLogs) {
		s.logFor(id) // it may hold nothing that was flushed, yet it starts there (P9)
	}
	s.journal.lsn = max(mark.lsn, mark.skip, highest)
	for _, l := range s.allLogs() {
		s.journal.lsn = max(s.journal.lsn, l.lsn) // a number is never used again
	}
	for _, l := range s.allLogs() {
		if l.end < l.start { // what lay below the start was never flushed
			l.end, l.roll = l.start, true
		}
		s.markDirty(l)
	}
	for range maxAttempts + 2 {
		if err = s.checkpoint(true); err == nil {
			break
		}
		s.Repair()
	}
	return err
}

// damagedJournal says whether the journal has holes, so that rounds may be missing in it that are in the segments.
func (s *Store) damagedJournal(list []foundRecord, after uint64) bool {
	var buf []byte
	for i, r := range list {
		if r.carried {
			continue
		}
		if r.lsn > after+1 {
			return true
		}
		after = r.lsn
		_, _, b, err := r.read(buf)
		if buf = b; err != nil && i < len(list)-1 {
			return true
		}
	}
	return false
}

// surveyLogs goes through the folders of all logs. Before the replay (first) it loads those that are noted; after it, it
// removes what belongs to no log.
func (s *Store) surveyLogs(keep, first bool) error {
	topics, err := s.fs.ReadDir(s.paths.logs())
	if err != nil {
		return err
	}
	sort.Slice(topics, func(i, j int) bool { return topics[i].Name < topics[j].Name })
	for _, te := range topics {
		topic, err := uuid.Parse(te.Name)
		if err != nil || !te.Dir {
			continue
		}
		partitions, err := s.fs.ReadDir(s.paths.topic(topic))
		if err != nil {
			return err
		}
		sort.Slice(partitions, func(i, j int) bool { return partitions[i].Name < partitions[j].Name })
		for _, pe := range partitions {
			p, err := strconv.ParseInt(pe.Name, 10, 32)
			if err != nil || p < 0 || !pe.Dir {
				continue
			}
			id := topology.LogID{Topic: topic, Partition: topology.Partition(p)}
			if err := s.surveyLog(id, keep, first); err != nil {
				return fmt.Errorf("recover %s: %w", id, err)
			}
		}
	}
	return nil
}

func (s *Store) surveyLog(id topology.LogID, keep, first bool) error {
	l := s.lookup(id)
	switch {
	case first && l != nil && l.cutting:
		l.mu.Lock()
		defer l.mu.Unlock()
		err := s.load(l)
		l.cutting = false
		return err
	case first && keep:
		return s.readBeyond(s.logFor(id), l != nil)
	case first:
		return nil
	case l == nil:
		return s.removeLog(id)
	default:
		return s.tidy(l)
	}
}

// removeLog removes the folder of a log of which nothing was ever acknowledged.
func (s *Store) removeLog(id topology.LogID) error {
	if err := s.fs.RemoveAll(s.paths.log(id)); err != nil {
		return err
	}
	return s.fs.SyncDir(s.paths.topic(id.Topic))
}

// tidy removes segments that are not part of a log, and cuts what the replay found behind its end.
func (s *Store) tidy(l *log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.load(l); err != nil {
		return err
	}
	bases, err := s.listSegments(l.id)
	if err != nil {
		return err
	}
	removed := false
	for _, base := range slices.Backward(bases) { // the last first: a crash in between must not leave one that seems to follow
		i := l.segmentFor(base)
		if i < 0 || l.segs[i].base != base {
			if err := s.discard(l, base, "it is not part of the log"); err != nil {
				return err
			}
			removed = true
			continue
		}
		seg := l.segs[i]
		size, err := s.fs.Stat(s.paths.file(l.id, base, segmentExt))
		if err != nil {
			return err
		}
		if i == len(l.segs)-1 && size > seg.size {
			s.noteCut(l, size-seg.size)
			if err := s.cutFile(l, seg, seg.size); err != nil {
				return err
			}
		}
	}
	if removed {
		return s.fs.SyncDir(s.paths.log(l.id))
	}
	return nil
}

func (s *Store) logReport() {
	r := &s.report
	event := s.logger.Info()
	if r.JournalDamaged > 0 || len(r.Damaged) > 0 || r.NotesLost {
		event = s.logger.Error()
	}
	event.Bool("clean", r.Clean).Int("logs", r.Logs).Int("rounds", r.JournalRecords).Int64("bytes", r.JournalBytes).
		Int64("cut", r.CutBytes).Int("damaged", len(r.Damaged)).Bool("notesLost", r.NotesLost).Dur("took", r.Took).Msg("data folder opened")
}
