package recordbatch

import (
	"errors"

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

// RecordHeader is a header of a record.
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
