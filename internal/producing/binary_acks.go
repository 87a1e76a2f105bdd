package producing

import (
	"errors"
	"strings"
	"sync"

	"github.com/skeinmq/skein/internal/topology"
)

// ackList is what one connection has in one round: the frames to answer when the round is done. The connection's reader
// adds to it while the round fills; after that it belongs to the connection's writer.
type ackList struct {
	conn   *binaryConn
	frames []frameAck
}

// frameAck is one frame that waits for its round.
type frameAck struct {
	first  *chunk
	chunks int32
	stream uint16
}

var ackLists = sync.Pool{New: func() any { return new(ackList) }}

func newAckList(c *binaryConn) *ackList {
	a := ackLists.Get().(*ackList)
	a.conn = c
	return a
}

// add notes the frame of w, whose records have a place in the round.
func (a *ackList) add(w *write) {
	a.frames = append(a.frames, frameAck{first: w.span.first, chunks: int32(w.span.chunks), stream: w.stream})
}

// keepFrames is how long a list may be to be kept for the next round.
const keepFrames = 4 << 10

func (a *ackList) free() {
	if cap(a.frames) > keepFrames {
		return
	}
	clear(a.frames) // the chunks go
	a.frames, a.conn = a.frames[:0], nil
	ackLists.Put(a)
}

// encode appends the answers of the list to dst and counts their outcomes.
func (a *ackList) encode(dst []byte, counts *[outcomes]int) []byte {
	var failed error // the last one, and what it is to a client
	var code errorCode
	var text string
	var kind outcome
	for i := range a.frames {
		f := &a.frames[i]
		err := span{first: f.first, chunks: int(f.chunks)}.err()
		if err == nil {
			dst = appendEmptyFrame(dst, opProduceResponse, f.stream)
			counts[outcomeWritten]++
			continue
		}
		if err != failed { // the very same error needs no second look
			failed = err
			code, text = binaryError(err)
			kind = outcomeOf(err)
		}
		dst = appendErrorFrame(dst, f.stream, code, text)
		counts[kind]++
	}
	return dst
}

// binaryError is what an error is to a client of the binary protocol (docs/design.md, section 6): codes 2 and 1 mean
// not written, an unknown outcome says so at the beginning of its text.
func binaryError(err error) (errorCode, string) {
	text := err.Error()
	switch {
	case errors.Is(err, topology.ErrOutcomeUnknown):
		if prefix := topology.ErrOutcomeUnknown.Error() + ":"; !strings.HasPrefix(text, prefix) {
			text = prefix + " " + text
		}
		return codeServer, text
	case errors.Is(err, topology.ErrNotLeader):
		return codeLeaderNotFound, text
	case errors.Is(err, topology.ErrBusy), errors.Is(err, topology.ErrUnavailable),
		errors.Is(err, topology.ErrShuttingDown), errors.Is(err, topology.ErrDiskFull):
		return codeRouting, text
	default:
		return codeServer, text
	}
}
