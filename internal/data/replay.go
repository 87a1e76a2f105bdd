package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// foundRecord is a journal record found in a file.
type foundRecord struct {
	recordHeader
	file    *journalFile
	pos     int64 // of the header
	carried bool  // copied for logs that had failed; its number may be one that is done with
}

// survey finds the headers of all records in the journal whose lsn is above after, and of those that were carried, by lsn,
// and the highest lsn of all.
// A header that cannot be read does not hide the records behind it: they are searched for.
func (j *journal) survey(after uint64) (list []foundRecord, highest uint64, err error) {
	for i, f := range slices.Concat(j.files, j.carried) {
		if f.lost {
			continue
		}
		found, err := surveyFile(f)
		if err != nil {
			return nil, 0, fmt.Errorf("read journal %s: %w", f.name, err)
		}
		for _, r := range found {
			highest = max(highest, r.lsn)
			if r.carried = i >= len(j.files); r.carried || r.lsn > after {
				list = append(list, r)
			}
		}
	}
	sort.SliceStable(list, func(a, b int) bool { return list[a].lsn < list[b].lsn })
	return list, highest, nil
}

func surveyFile(f *journalFile) ([]foundRecord, error) {
	var list []foundRecord
	var head [recordHeaderSize]byte
	for pos := int64(journalFileStart); pos+recordHeaderSize <= f.size; {
		n, err := f.ReadAt(head[:], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		h, ok := recordHeader{}, false
		if n == recordHeaderSize {
			h, ok = decodeRecordHeader(head[:], f.salt)
		}
		if ok && pos+recordHeaderSize+int64(h.length) <= f.size {
			list = append(list, foundRecord{recordHeader: h, file: f, pos: pos})
			if next := pos + recordHeaderSize + int64(h.length); headerAt(f, next) {
				pos = next
				continue
			}
			// The last record of its time: what follows is older, or this one is torn and its length covers older ones.
			pos++
		} else {
			pos++
		}
		if pos, err = findMagic(f, pos); err != nil {
			return nil, err
		}
		if pos < 0 {
			break
		}
	}
	return list, nil
}

// headerAt says whether a record header is at pos.
func headerAt(f *journalFile, pos int64) bool {
	var head [recordHeaderSize]byte
	if pos+recordHeaderSize > f.size {
		return false
	}
	if n, _ := f.ReadAt(head[:], pos); n < recordHeaderSize {
		return false
	}
	_, ok := decodeRecordHeader(head[:], f.salt)
	return ok
}

// findMagic finds the next place at or behind pos that may begin a record, -1 if none.
func findMagic(f *journalFile, pos int64) (int64, error) {
	magic := binary.BigEndian.AppendUint32(nil, recordMagic)
	window := make([]byte, min(searchWindow, f.size))
	for pos+recordHeaderSize <= f.size {
		n, err := f.ReadAt(window[:min(int64(len(window)), f.size-pos)], pos)
		if err != nil && !errors.Is(err, io.EOF) {
			return -1, err
		}
		if i := bytes.Index(window[:n], magic); i >= 0 {
			return pos + int64(i), nil
		}
		if n < len(window) {
			break
		}
		pos += int64(n - len(magic) + 1)
	}
	return -1, nil
}

// read returns the entries of a record and the bytes of their chunks. buf is reused. errRotten if its checksum fails.
func (r foundRecord) read(buf []byte) ([]journalEntry, []byte, []byte, error) {
	if cap(buf) < r.length {
		buf = make([]byte, r.length)
	}
	buf = buf[:r.length]
	if n, err := r.file.ReadAt(buf, r.pos+recordHeaderSize); n < len(buf) {
		if errors.Is(err, io.EOF) {
			err = errRotten
		}
		return nil, nil, buf, err
	}
	if crc32.Checksum(buf, castagnoli) != r.crc {
		return nil, nil, buf, errRotten
	}
	entries := make([]journalEntry, r.entries)
	var total int64
	for i := range entries {
		e, ok := decodeJournalEntry(buf[i*entrySize:])
		if !ok {
			return nil, nil, buf, errRotten
		}
		entries[i] = e
		total += int64(e.size)
	}
	chunks := buf[r.entries*entrySize:]
	if r.kind == kindChunks && total != int64(len(chunks)) || r.kind == kindExtents && len(chunks) != 0 {
		return nil, nil, buf, errRotten
	}
	return entries, chunks, buf, nil
}

var errRotten = errors.New("journal record is damaged")

// replay applies the journal to the logs: everything in it was acknowledged, or nearly so, and may be missing in the
// segments. A log's note tells which records it has already (lsn). Replaying twice does the same as once.
//
// Rounds are flushed one after the other, so only the last record can be torn: a record that cannot be read with good ones
// behind it is damage, and what it held may still be found in the segments.
func (s *Store) replay(list []foundRecord, after, skip uint64) error {
	var buf []byte
	expected := after + 1
	for i, r := range list {
		if r.lsn == skip {
			expected = r.lsn + 1
			continue
		}
		entries, chunks, b, err := r.read(buf)
		buf = b
		if errors.Is(err, errRotten) && r.carried {
			if r.lsn <= after { // else the journal itself has it still: the copy was not finished
				s.rotten(r.lsn)
			}
			continue
		}
		if errors.Is(err, errRotten) {
			if i < len(list)-1 {
				s.rotten(r.lsn)
			} else if err := s.replayTorn(r, buf); err != nil {
				return fmt.Errorf("replay journal record %d: %w", r.lsn, err)
			}
			expected = r.lsn + 1
			continue
		}
		if err != nil {
			return fmt.Errorf("read journal %s: %w", r.file.name, err)
		}
		if !r.carried {
			if r.lsn > expected && !s.salvage {
				s.rotten(expected)
			}
			expected = r.lsn + 1
		}
		s.report.JournalRecords++
		s.report.JournalBytes += int64(len(chunks))
		for _, e := range entries {
			var b []byte
			if r.kind == kindChunks {
				b, chunks = chunks[:e.size], chunks[e.size:]
			}
			if err := s.replayEntry(r.lsn, e, b); err != nil {
				return fmt.Errorf("replay journal record %d for %s: %w", r.lsn, e.log, err)
			}
		}
	}
	return nil
}

// replayTorn looks at the last record, which cannot be read. Most likely it is torn and was never acknowledged; but it may
// be damaged. Where its entries can still be made out and the chunks they name are whole in the segments, these are kept.
func (s *Store) replayTorn(r foundRecord, body []byte) error {
	for i := range r.entries {
		e, ok := decodeJournalEntry(body[i*entrySize:])
		if !ok || s.lookup(e.log) == nil && e.segment > 0 {
			continue
		}
		b, err := s.wholeChunks(e)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		if err := s.replayEntry(r.lsn, e, b); err != nil {
			return err
		}
	}
	return nil
}

// wholeChunks reads the chunks of an entry from their segment; nil if they are not there.
func (s *Store) wholeChunks(e journalEntry) ([]byte, error) {
	name := s.paths.file(e.log, e.segment, segmentExt)
	size, err := s.fs.Stat(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && size < e.pos+int64(e.size) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if l := s.lookup(e.log); l != nil && (l.last.ok && (e.segment < l.last.base || e.segment == l.last.base && e.pos != l.last.size) || e.first != l.end) {
		return nil, nil
	}
	f, err := s.fs.Open(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, e.size)
	if _, err := f.ReadAt(b, e.pos); err != nil {
		return nil, err
	}
	next := e.first
	for rest := b; len(rest) > 0; {
		h, err := parseChunk(rest, next, e)
		if err != nil {
			return nil, nil
		}
		rest, next = rest[h.Size():], h.Next()
	}
	if next != e.next {
		return nil, nil
	}
	return b, nil
}

func (s *Store) rotten(lsn uint64) {
	s.report.JournalDamaged++
	s.logger.Error().Uint64("lsn", lsn).Msg("a record of the commit journal is damaged")
}

// move says that what the journal holds for a segment, from some position on, goes to another segment.
type move struct {
	from topology.Offset
	at   int64
	to   topology.Offset
}

// replayEntry puts the chunks b of one log in their place; nil means that they are there already.
func (s *Store) replayEntry(lsn uint64, e journalEntry, b []byte) error {
	l := s.logFor(e.log)
	if l == nil || lsn <= l.lsn {
		return nil
	}
	if m, ok := s.moved[e.log]; ok && e.segment == m.from && e.pos >= m.at {
		e.segment, e.pos = m.to, e.pos-m.at
	}
	seg, h, err := s.replaySegment(l, e)
	if err != nil || h == nil {
		return err
	}
	if b, err = replayBytes(h, e, b); err != nil && !full(err) {
		// The blocks of the file are bad: what was meant for it from here on goes to a file of its own.
		s.logger.Warn().Err(err).Stringer("topic", e.log.Topic).Int32("partition", int32(e.log.Partition)).Int64("segment", int64(e.segment)).
			Msg("segment cannot be written: what the journal holds for it goes to another file")
		s.files.release(h)
		s.files.drop(seg)
		if e.pos > 0 {
			s.moved[e.log] = move{from: e.segment, at: e.pos, to: e.first}
			e.segment, e.pos = e.first, 0
		} else if err := s.makeAnew(l, seg, b); err != nil {
			return err
		}
		if seg, h, err = s.replaySegment(l, e); err != nil || h == nil {
			return err
		}
		b, err = replayBytes(h, e, b)
	}
	defer s.files.release(h)
	if err != nil {
		return err
	}
	l.mu.Lock()
	v := view{seg: seg, base: seg.base, handle: h, size: seg.size, until: l.end, end: l.end, stretches: l.stretches}
	l.mu.Unlock()
	if _, err := s.entries(l, v); err != nil {
		return err
	}
	s.takeIn(l, seg, h, e, b)
	l.lsn = lsn
	s.markDirty(l)
	return nil
}

// makeAnew replaces the file of a segment by one with the same bytes, but for b at its front.
func (s *Store) makeAnew(l *log, seg *segment, b []byte) error {
	name := s.paths.file(l.id, seg.base, segmentExt)
	size, err := s.fs.Stat(name)
	if err != nil {
		return err
	}
	f, err := s.fs.Open(name, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	all := make([]byte, max(size, int64(len(b))))
	if _, err := (gapReader{f}).ReadAt(all, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	copy(all, b)
	return s.replaceFile(l, seg, all)
}

// replayBytes writes the chunks of an entry, or reads them where they are there already. It returns the chunks.
func replayBytes(h *handle, e journalEntry, b []byte) ([]byte, error) {
	if b != nil {
		return b, h.WriteV([][]byte{b}, e.pos)
	}
	b = make([]byte, e.size)
	_, err := gapReader{h}.ReadAt(b, e.pos)
	if errors.Is(err, io.EOF) {
		err = nil // it is damaged, and reads will tell
	}
	return b, err
}

// replaySegment finds or makes the segment of an entry. A nil handle says that there is nothing to do: the log begins
// behind the entry, and its segment is gone with what lay there.
func (s *Store) replaySegment(l *log, e journalEntry) (*segment, *handle, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := s.load(l); err != nil {
		return nil, nil, err
	}
	for _, seg := range l.segs {
		if seg.base == e.segment {
			h, err := s.acquire(l, seg, mayExist)
			return seg, h, err
		}
	}
	if e.next <= l.start {
		if e.next > l.end {
			l.end, l.roll = e.next, true // what is left of the log ends before
		}
		l.stretches.add(e.version, e.first)
		return nil, nil, nil
	}
	seg := &segment{base: e.segment, first: noTime, max: noTime}
	h, err := s.create(l, seg, mayExist)
	if err != nil {
		return nil, nil, err
	}
	if len(l.segs) == 0 || e.segment > l.last.base {
		if e.pos == 0 {
			l.end = max(l.end, e.segment)
		}
		l.roll = false
	}
	l.attach(seg)
	return seg, h, nil
}

// takeIn makes the chunks of a replayed entry part of the log.
func (s *Store) takeIn(l *log, seg *segment, h *handle, e journalEntry, b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.synced = min(seg.synced, e.pos)
	pos, next := e.pos, e.first
	h.idx.mu.Lock()
	defer h.idx.mu.Unlock()
	for len(b) > 0 {
		head, err := parseChunk(b, next, e)
		if err != nil {
			break
		}
		l.publish(seg, head, pos)
		h.idx.add(indexEntry{offset: head.BaseOffset, pos: pos, time: max(seg.max, head.BaseTimestamp)}, int64(s.cfg.IndexInterval))
		b, pos, next = b[head.Size():], pos+int64(head.Size()), head.Next()
	}
	l.stretches.add(e.version, e.first)
	if end := e.pos + int64(e.size); seg.size < end {
		l.grow(end - seg.size)
		seg.size = end
	}
	l.end = max(l.end, e.next)
	l.noteLast()
}

// parseChunk reads the header at the front of b, which must be the chunk of e that begins at offset next.
func parseChunk(b []byte, next topology.Offset, e journalEntry) (recordbatch.Header, error) {
	h, err := recordbatch.Check(b)
	if err != nil {
		return h, err
	}
	if h.BaseOffset != next || h.Version != e.version || h.Next() > e.next {
		return h, errRotten
	}
	return h, nil
}
