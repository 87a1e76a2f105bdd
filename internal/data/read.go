package data

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// Chunk is a chunk of a log, verified. Bytes is the whole batch, header included.
type Chunk struct {
	Header recordbatch.Header
	Bytes  []byte
}

// ReadResult is what Read found.
type ReadResult struct {
	Chunks  []Chunk         // verified, ascending; the first holds the offset asked for, unless that is damaged
	Next    topology.Offset // where to go on
	Damaged []OffsetRange   // skipped here
}

// OutOfRange means that an offset is below the start or above the end of its log (P9).
type OutOfRange struct{ Start, End topology.Offset }

// Error implements error.
func (e *OutOfRange) Error() string {
	return fmt.Sprintf("offset is out of range: the log has %d up to %d", e.Start, e.End)
}

// Read returns whole chunks from offset from on, below the high watermark: as many as fit into maxBytes, and at least
// one if there is any. The first may begin before from. The chunks alias buf, which is grown as needed and handed back:
// they are valid until it is used again. At the end of the log the result is empty. Errors: *OutOfRange;
// topology.ErrUnavailable, wrapped, while bytes that a failed flush may have lost are written again; or what the disk said.
func (s *Store) Read(id topology.LogID, from topology.Offset, maxBytes int, buf []byte) (ReadResult, []byte, error) {
	res := ReadResult{Next: from}
	l := s.lookup(id)
	if l == nil {
		if from != 0 {
			return res, buf, &OutOfRange{}
		}
		return res, buf, nil
	}
	for first := true; ; first = false {
		v, err := s.view(l, res.Next)
		if err != nil {
			var out *OutOfRange
			if errors.As(err, &out) && !first && res.Next <= out.End {
				err = nil // the log was cut meanwhile: what was skipped so far stands
			}
			return res, buf, err
		}
		if res.Next >= v.end {
			return res, buf, nil
		}
		if v.handle == nil {
			res.skip(res.Next, v.until)
			continue
		}
		buf, err = s.readSegment(l, v, &res, maxBytes, buf)
		s.files.release(v.handle)
		if errors.Is(err, errCut) {
			continue // look again
		}
		if err != nil {
			if s.unreadable(l, err) {
				continue
			}
			return res, buf, fmt.Errorf("read %s at %d: %w", id, res.Next, err)
		}
		if len(res.Chunks) > 0 {
			return res, buf, nil
		}
	}
}

// skip notes that the damaged offsets [from, to) were passed over.
func (r *ReadResult) skip(from, to topology.Offset) {
	from = max(from, r.Next)
	if to > from {
		r.Damaged = append(r.Damaged, OffsetRange{from, to})
		r.Next = to
	}
}

// view is what one read needs to know of a log, taken at one moment.
type view struct {
	seg       *segment
	base      topology.Offset
	handle    *handle // acquired; nil: no segment holds the offset, it is damaged up to until
	size      int64
	until     topology.Offset // where the segment must end
	end       topology.Offset // of the log: the high watermark
	stretches stretches
	gaps      bool   // blocks that the disk cannot read are read as zeros
	cuts      uint32 // of the log
	near      cursor // the place of the offset, if known, else that of the segment's first chunk
}

// view looks at the segment that from falls into. The caller releases its handle.
func (s *Store) view(l *log, from topology.Offset) (view, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < l.start || from > l.end {
		return view{}, &OutOfRange{Start: l.start, End: l.end}
	}
	v := view{end: l.end, stretches: l.stretches, cuts: l.cuts, gaps: l.ioErrors >= maxReadErrors}
	if from == l.end {
		return v, nil
	}
	if err := s.load(l); err != nil {
		return view{}, err
	}
	i := l.segmentFor(from)
	v.until = l.untilOf(i)
	if i < 0 {
		return v, nil
	}
	v.seg = l.segs[i]
	v.base, v.size = v.seg.base, v.seg.size
	if c, ok := l.seek(v.base, from); ok {
		v.near = c
	} else {
		v.near = cursor{offset: v.base, base: v.base}
	}
	var err error
	v.handle, err = s.acquire(l, v.seg, mustExist)
	return v, err
}

// walk begins a walk through the segment of v at the place c.
func (v view) walk(c cursor, buf []byte, step int) walk {
	w := walk{file: v.handle, size: v.size, until: v.until, stretches: v.stretches, pos: c.pos, next: c.offset, buf: buf[:0], step: step}
	if v.gaps {
		w.file = gapReader{v.handle}
	}
	return w
}

// maxReadErrors is how often a read of a log may fail before what cannot be read counts as damaged: it may be a hiccup.
const maxReadErrors = 3

// unreadable counts a failed read, and says whether to read on as if the blocks that fail were zeros. They do not pass
// the checksums then, and all others are served.
func (s *Store) unreadable(l *log, err error) bool {
	if !errors.Is(err, syscall.EIO) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ioErrors < maxReadErrors {
		if l.ioErrors++; l.ioErrors == maxReadErrors {
			s.logger.Error().Err(err).Stringer("topic", l.id.Topic).Int32("partition", int32(l.id.Partition)).
				Msg("disk fails to read a log: what it cannot read counts as damaged from now on")
			return true
		}
	}
	return false
}

// gapReader reads a file, and zeros where the disk fails.
type gapReader struct{ io.ReaderAt }

// ReadAt implements io.ReaderAt.
func (r gapReader) ReadAt(b []byte, off int64) (int, error) {
	const block = 4096
	n, err := r.ReaderAt.ReadAt(b, off)
	if !errors.Is(err, syscall.EIO) {
		return n, err
	}
	for n = 0; n < len(b); {
		end := min(len(b), n+block-int((off+int64(n))%block))
		got, err := r.ReaderAt.ReadAt(b[n:end], off+int64(n))
		if errors.Is(err, syscall.EIO) {
			clear(b[n:end])
			got, err = end-n, nil
		}
		n += got
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// readSegment reads from one segment into res, whose Next is the offset wanted, and moves Next on: behind the last chunk
// read, behind damage, or to the end of the segment.
func (s *Store) readSegment(l *log, v view, res *ReadResult, maxBytes int, buf []byte) ([]byte, error) {
	place, hint, err := s.hint(l, v, res.Next)
	if err != nil {
		return buf, err
	}
	w := v.walk(place, buf, maxBytes)
	total := 0
	for total == 0 || total < maxBytes {
		h, b, err := w.peek(total == 0)
		if errors.Is(err, recordbatch.ErrShort) || errors.Is(err, errDamaged) && total > 0 {
			break
		}
		if errors.Is(err, errDamaged) || errors.Is(err, io.EOF) {
			if total > 0 {
				break
			}
			if hint && w.pos == place.pos { // the index itself may be wrong
				hint = false
				if place, err = s.place(l, v, res.Next); err != nil {
					return w.buf, err
				}
				w = v.walk(place, w.buf, maxBytes)
				continue
			}
			d, err := s.pass(l, v, &w, err)
			if err != nil {
				return w.buf, err
			}
			res.skip(d.from, d.to)
			if w.pos >= w.size {
				res.Next = max(res.Next, v.until)
				return w.buf, nil
			}
			continue
		}
		if err != nil {
			return w.buf, err
		}
		if h.Next() > res.Next {
			if total > 0 && total+len(b) > maxBytes {
				break
			}
			res.Chunks = append(res.Chunks, Chunk{Header: h, Bytes: b})
			res.Next = h.Next()
			total += len(b)
		}
		w.skip(h)
	}
	l.mu.Lock()
	if l.cuts != v.cuts {
		l.mu.Unlock()
		return w.buf, nil
	}
	l.remember(place, cursor{offset: w.next, base: v.base, pos: w.pos})
	l.mu.Unlock()
	return w.buf, nil
}

// errCut means that a log was cut while it was read: what does not fit may be new and good.
var errCut = fmt.Errorf("%w: the log is cut at this moment", topology.ErrUnavailable)

// pass moves w over the damage it stands at, or over what is missing at the end of its segment (cause is io.EOF), and
// reports it.
//
// Bytes that were not flushed yet are not given up: after a failed flush the page cache may have dropped them, and Repair
// brings them back (F21). Until then the error wraps topology.ErrUnavailable.
func (s *Store) pass(l *log, v view, w *walk, cause error) (damage, error) {
	l.mu.Lock()
	if l.cuts != v.cuts {
		l.mu.Unlock()
		return damage{}, errCut
	}
	unflushed := v.seg.synced < v.size && w.pos >= v.seg.synced
	if unflushed || l.suspect {
		s.distrust(l)
		l.mu.Unlock()
		return damage{}, fmt.Errorf("%w: %w", topology.ErrUnavailable, errSuspect)
	}
	l.mu.Unlock()
	if errors.Is(cause, io.EOF) {
		d := damage{from: w.next, to: w.until, base: v.base, pos: w.pos, end: w.pos}
		w.next = w.until
		s.reportDamage(l, d)
		return d, nil
	}
	l.mu.Lock()
	for _, d := range l.damaged {
		if d.base == v.base && d.pos == w.pos && d.from == w.next && d.to <= w.until {
			l.mu.Unlock()
			w.pos, w.next = d.end, d.to
			return d, nil
		}
	}
	l.mu.Unlock()
	entries, err := s.entries(l, v)
	if err != nil {
		return damage{}, err
	}
	d, err := w.resync(entries)
	if err != nil {
		return damage{}, err
	}
	d.base = v.base
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cuts != v.cuts {
		return damage{}, errCut
	}
	s.damage(l, d)
	return d, nil
}

// hint finds a place at or not far before offset: where an earlier read ended, or that of an index entry, which was not
// held against the segment: then hint is true.
func (s *Store) hint(l *log, v view, offset topology.Offset) (c cursor, hint bool, err error) {
	if v.near.pos > 0 || v.size <= int64(s.cfg.IndexInterval) {
		return v.near, false, nil
	}
	entries, err := s.entries(l, v)
	if err != nil {
		return cursor{}, false, err
	}
	i := byOffset(entries, offset)
	if i < 0 {
		return v.near, false, nil
	}
	return cursor{offset: entries[i].offset, base: v.base, pos: entries[i].pos}, true, nil
}

// place is the same with an index that was held against the segment.
func (s *Store) place(l *log, v view, offset topology.Offset) (cursor, error) {
	if v.near.pos > 0 || v.size <= int64(s.cfg.IndexInterval) {
		return v.near, nil
	}
	return s.indexed(l, v, func(entries []indexEntry) int { return byOffset(entries, offset) })
}

// indexed is the place of the index entry that find chooses, or the start of the segment when it answers -1. An index that
// does not fit its segment is made again.
func (s *Store) indexed(l *log, v view, find func([]indexEntry) int) (cursor, error) {
	entries, err := s.entries(l, v)
	if err != nil {
		return cursor{}, err
	}
	i := find(entries)
	ok, err := s.trust(v, entries, i)
	if err != nil {
		return cursor{}, err
	}
	if !ok {
		if entries, err = s.reindex(l, v); err != nil {
			return cursor{}, err
		}
		i = find(entries)
	}
	if i < 0 {
		return cursor{offset: v.base, base: v.base}, nil
	}
	return cursor{offset: entries[i].offset, base: v.base, pos: entries[i].pos}, nil
}

// trust checks that entry i of an index names a chunk. Where no good chunk is there, either it is damaged or the index is
// wrong: the chunks before it tell.
func (s *Store) trust(v view, entries []indexEntry, i int) (bool, error) {
	if i < 0 {
		return true, nil
	}
	at := func(i int) cursor {
		if i < 0 {
			return cursor{offset: v.base, base: v.base}
		}
		return cursor{offset: entries[i].offset, base: v.base, pos: entries[i].pos}
	}
	probe := v.walk(at(i), nil, recordbatch.HeaderSize)
	if _, _, err := probe.peek(true); !errors.Is(err, errDamaged) {
		return true, ignoreEOF(err)
	}
	for from := i - 1; from >= -1; from-- {
		w := v.walk(at(from), nil, s.cfg.IndexInterval)
		h, _, err := w.peek(true)
		if errors.Is(err, errDamaged) {
			continue // this one is damaged too, or the index is wrong here too
		}
		for err == nil && w.pos < entries[i].pos {
			w.skip(h)
			h, _, err = w.peek(true)
		}
		if err != nil && !errors.Is(err, errDamaged) && !errors.Is(err, io.EOF) {
			return false, err
		}
		if w.pos == entries[i].pos {
			return w.next == entries[i].offset, nil
		}
		// A damage in between hides the way; if the way led past the entry, the index is wrong.
		return w.pos < entries[i].pos, nil
	}
	return true, nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
