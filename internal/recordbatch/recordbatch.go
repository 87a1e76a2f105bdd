package recordbatch

import (
	"errors"
	"iter"
	"strings"

	"github.com/skeinmq/skein/internal/topology"
)

// Record is one record. Key and Value tell null (nil) from empty.
type Record struct {
	Offset    topology.Offset
	Timestamp int64 // ms since the epoch
	Key       []byte
	Value     []byte
	Headers   []RecordHeader
}

// RecordHeader is a header of a record. Value tells null (nil) from empty.
type RecordHeader struct {
	Key   string
	Value []byte
}

// HiddenPrefix begins the keys of headers that the broker keeps for itself; no answer shows them and no request may
// set them.
const HiddenPrefix = "__skein."

// ErrCorrupt means bytes that are no valid batch: a checksum, a length or a field is wrong. ErrShort means that b ends
// before the batch does: read more.
var (
	ErrCorrupt = errors.New("corrupt record batch")
	ErrShort   = errors.New("record batch is cut short")
)

// Bytes is the size of r that limits speak of: key, value, header keys and header values.
func (r *Record) Bytes() int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// VisibleHeaders yields the headers of r in their order, without those the broker keeps for itself.
func (r *Record) VisibleHeaders() iter.Seq[RecordHeader] {
	return func(yield func(RecordHeader) bool) {
		for _, h := range r.Headers {
			if !strings.HasPrefix(h.Key, HiddenPrefix) && !yield(h) {
				return
			}
		}
	}
}

// Hidden is the value of the last header with that key, which begins with HiddenPrefix, and whether there is one.
func (r *Record) Hidden(key string) ([]byte, bool) {
	for i := len(r.Headers) - 1; i >= 0; i-- {
		if r.Headers[i].Key == key {
			return r.Headers[i].Value, true
		}
	}
	return nil, false
}
