package data

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// damage is a piece of a segment that cannot be served: the offsets [from, to) and the bytes [pos, end).
type damage struct {
	from, to topology.Offset
	base     topology.Offset // of the segment
	pos, end int64
}

// OffsetRange are the offsets [From, To).
type OffsetRange struct{ From, To topology.Offset }

// resync finds where a segment is good again behind the damage at w.pos, and moves there. entries is the index of the
// segment, as far as there is one.
//
// The next chunk is where the damaged header says it is, if the chunk that must follow is there. Otherwise the length
// itself is damaged, or more than one chunk, and every byte position is tried. A position counts only if good chunks lead
// from it without a gap to a chunk that the index names or to the end of the segment; and where the damaged header can
// still tell how many records it had, only behind them. So bytes inside a record that look like a chunk are not taken for
// one, and misplaced chunks are not mended into service: their offsets do not fit.
func (w *walk) resync(entries []indexEntry) (damage, error) {
	d := damage{from: w.next, to: w.until, pos: w.pos, end: w.size}
	size, count, err := w.hints(w.pos)
	if err != nil {
		return damage{}, err
	}
	after := w.next + 1
	if count > 0 {
		after = w.next + topology.Offset(count)
	}
	pos, next := int64(-1), topology.Offset(0)
	if at := w.pos + size; size > 0 && at < w.size {
		h, _, err := w.check(at, after, true, count == 0)
		if err != nil && !errors.Is(err, errDamaged) {
			return damage{}, err
		}
		if err == nil {
			pos, next = at, h.BaseOffset
		}
	}
	if pos < 0 {
		if pos, next, err = w.search(entries, after); err != nil {
			return damage{}, err
		}
	}
	if pos < 0 && after > w.next+1 {
		if pos, next, err = w.search(entries, w.next+1); err != nil {
			return damage{}, err
		}
	}
	if pos < 0 {
		w.pos, w.next = w.size, w.until
		return d, nil
	}
	d.to, d.end = next, pos
	w.pos, w.next = pos, next
	return d, nil
}

// hints reads from a damaged header what may help to go on: the size of the chunk and how many records it has, 0 where
// that cannot be right.
func (w *walk) hints(pos int64) (size int64, count int32, err error) {
	if !w.windowed(pos, recordbatch.HeaderSize) {
		if err := w.fill(pos, recordbatch.HeaderSize); err != nil {
			return 0, 0, err
		}
	}
	b := w.bytes(pos)
	if len(b) < recordbatch.HeaderSize {
		return 0, 0, nil
	}
	if n := int64(int32(binary.BigEndian.Uint32(b[8:]))) + 12; n >= recordbatch.HeaderSize && n <= recordbatch.MaxSize {
		size = n
	}
	delta, records := int32(binary.BigEndian.Uint32(b[23:])), int32(binary.BigEndian.Uint32(b[57:]))
	if records > 0 && delta == records-1 && w.next+topology.Offset(records) < w.until {
		count = records
	}
	return size, count, nil
}

// searchWindow is how many bytes a search looks through at a time.
const searchWindow = 256 << 10

// search tries every position behind w.pos for a chunk that begins at offset after or later. -1 if there is none.
func (w *walk) search(entries []indexEntry, after topology.Offset) (int64, topology.Offset, error) {
	window := make([]byte, min(searchWindow+recordbatch.HeaderSize, w.size))
	for from := w.pos + 1; from+recordbatch.HeaderSize <= w.size; from += searchWindow {
		n, err := w.file.ReadAt(window[:min(int64(len(window)), w.size-from)], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return -1, 0, err
		}
		for i := 0; i < searchWindow && i+recordbatch.HeaderSize <= n; i++ {
			// The magic comes at byte 16: looking for it first makes the search about as fast as memory.
			skip := bytes.IndexByte(window[i+16:n], 2)
			if skip < 0 {
				break
			}
			if i += skip; i >= searchWindow || i+recordbatch.HeaderSize > n {
				break
			}
			h, err := recordbatch.ParseHeader(window[i:n])
			if err != nil || !w.fits(h, from+int64(i), after, true) {
				continue
			}
			ok, err := w.anchored(from+int64(i), h.BaseOffset, entries)
			if err != nil {
				return -1, 0, err
			}
			if ok {
				return from + int64(i), h.BaseOffset, nil
			}
		}
	}
	return -1, 0, nil
}

// anchored says whether good chunks lead from pos to a chunk that the index names, to the end of the segment, or to one
// more damage whose header still names the offset that must follow.
func (w *walk) anchored(pos int64, next topology.Offset, entries []indexEntry) (bool, error) {
	probe := *w
	probe.pos, probe.next, probe.buf, probe.at, probe.step = pos, next, nil, 0, 64<<10
	for probe.pos < probe.size {
		h, _, err := probe.peek(true)
		if errors.Is(err, errDamaged) {
			named := h.Records > 0 && probe.fits(h, probe.pos, probe.next, false)
			return named && probe.pos > pos, nil
		}
		if err != nil {
			return false, err
		}
		if i := byOffset(entries, probe.next); i >= 0 && entries[i].offset == probe.next && entries[i].pos == probe.pos {
			return true, nil
		}
		probe.skip(h)
	}
	return true, nil
}
