package data

import (
	"errors"
	"fmt"
	"io"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// errDamaged means that the bytes at a place of a segment are not the chunk that must be there.
var errDamaged = errors.New("damaged chunk")

// walk reads the chunks of one segment one after the other. The segment holds [.., size) bytes and the offsets up to
// until, none beyond; what does not fit is errDamaged.
type walk struct {
	file      io.ReaderAt
	size      int64
	until     topology.Offset
	stretches stretches
	loose     bool             // the versions are not known: any from version on will do
	version   topology.Version // loose only

	pos  int64           // where the next chunk begins
	next topology.Offset // and its first offset
	buf  []byte          // bytes of the file from at
	at   int64
	step int // bytes to read at a time
}

// windowed says whether the n bytes at pos are in buf.
func (w *walk) windowed(pos int64, n int) bool {
	return pos >= w.at && pos+int64(n) <= w.at+int64(len(w.buf))
}

// fill brings the n bytes at pos into buf, and more up to step. It answers with fewer where the segment ends.
func (w *walk) fill(pos int64, n int) error {
	want := max(n, w.step)
	if left := w.size - pos; int64(want) > left {
		want = int(left)
	}
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	w.at = pos
	got, err := w.file.ReadAt(w.buf, pos)
	w.buf = w.buf[:got]
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %d bytes at %d: %w", want, pos, err)
	}
	return nil
}

// bytes is what buf holds from pos on.
func (w *walk) bytes(pos int64) []byte {
	if pos < w.at || pos > w.at+int64(len(w.buf)) {
		return nil
	}
	return w.buf[pos-w.at:]
}

// peek verifies the chunk at pos without moving on. With refill it may replace what buf holds; without it answers
// recordbatch.ErrShort when the chunk is not whole in buf. io.EOF at the end of the segment, errDamaged, or the error of
// the disk. The bytes alias buf.
func (w *walk) peek(refill bool) (recordbatch.Header, []byte, error) {
	return w.check(w.pos, w.next, refill, false)
}

// header reads the header at pos, without holding it against anything.
func (w *walk) header(pos int64) (recordbatch.Header, error) {
	if !w.windowed(pos, recordbatch.HeaderSize) {
		if err := w.fill(pos, recordbatch.HeaderSize); err != nil {
			return recordbatch.Header{}, err
		}
	}
	return recordbatch.ParseHeader(w.bytes(pos))
}

// skip moves behind the chunk that peek returned.
func (w *walk) skip(h recordbatch.Header) {
	w.pos += int64(h.Size())
	w.next = h.Next()
}

// check verifies the chunk at pos. It must begin at offset next, or with later at any offset from next on.
func (w *walk) check(pos int64, next topology.Offset, refill, later bool) (recordbatch.Header, []byte, error) {
	if pos >= w.size {
		return recordbatch.Header{}, nil, io.EOF
	}
	if !w.windowed(pos, recordbatch.HeaderSize) {
		if !refill {
			return recordbatch.Header{}, nil, recordbatch.ErrShort
		}
		if err := w.fill(pos, recordbatch.HeaderSize); err != nil {
			return recordbatch.Header{}, nil, err
		}
	}
	h, err := recordbatch.ParseHeader(w.bytes(pos))
	if err != nil || !w.fits(h, pos, next, later) {
		return h, nil, errDamaged
	}
	if !w.windowed(pos, h.Size()) {
		if !refill {
			return h, nil, recordbatch.ErrShort
		}
		if err := w.fill(pos, h.Size()); err != nil {
			return h, nil, err
		}
	}
	b := w.bytes(pos)
	if len(b) < h.Size() {
		return h, nil, errDamaged
	}
	b = b[:h.Size():h.Size()]
	if _, err := recordbatch.Check(b); err != nil {
		return h, nil, errDamaged
	}
	return h, b, nil
}

// fits checks what the batch's own checksum leaves out against the log.
func (w *walk) fits(h recordbatch.Header, pos int64, next topology.Offset, later bool) bool {
	if h.BaseOffset != next && (!later || h.BaseOffset < next) {
		return false
	}
	if pos+int64(h.Size()) > w.size || h.Next() > w.until {
		return false
	}
	if w.loose {
		return h.Version >= w.version
	}
	return h.Version == w.stretches.at(h.BaseOffset)
}
