package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/skeinmq/skein/internal/topology"
)

// HeaderSize is the size of the header of a batch in bytes. Records follow it.
const HeaderSize = 61

// Bounds of a batch. A header beyond them is corrupt; a Builder never goes beyond them.
const (
	MaxSize         = 64 << 20 // whole batch, in bytes
	MaxUncompressed = 64 << 20 // records of a batch once unpacked, in bytes
	MaxRecords      = 1 << 20  // records of a batch
	maxHeaders      = 1 << 20  // headers of all records of a batch together
)

// Attributes of a batch. The low bits are Kafka's; FlagIdempotent is a bit that Kafka leaves unused.
const (
	codecMask          = 0x0007 // 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
	codecNone          = 0
	codecZstd          = 4
	flagLogAppendTime  = 0x0008 // all records carry MaxTimestamp
	FlagIdempotent     = 0x4000 // some record has a hidden header of idempotency (docs/design.md, section 6)
	knownAttributes    = codecMask | flagLogAppendTime | FlagIdempotent
	magic              = 2
	lengthOverhead     = 12 // bytes of a batch that its length field leaves out
	minLength          = HeaderSize - lengthOverhead
	minRecordSize      = 7 // seven one-byte fields
	minRecordHeaderLen = 2 // two one-byte lengths
)

// Positions of the header fields. Integers are big-endian.
const (
	posBaseOffset      = 0
	posLength          = 8
	posVersion         = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21 // the CRC covers the batch from here to its end
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posRecords         = 57
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Header is the header of a batch. Layout: docs/formats.md, "Chunk".
type Header struct {
	BaseOffset      topology.Offset  // offset of the first record; not covered by CRC
	Length          int32            // bytes of the batch after this field; not covered by CRC
	Version         topology.Version // partitionLeaderEpoch: version of the generation that wrote it; not covered by CRC
	CRC             uint32           // CRC-32C of the batch from Attributes to its end
	Attributes      int16            // codec and flags
	LastOffsetDelta int32            // Records - 1: batches are dense
	BaseTimestamp   int64            // ms since the epoch: when the leader appended the chunk
	MaxTimestamp    int64            // ms since the epoch: highest timestamp of a record
	ProducerID      int64            // -1 when none
	ProducerEpoch   int16            // -1 when none
	BaseSequence    int32            // -1 when none
	Records         int32            // >= 1
}

// Size is the size of the whole batch in bytes.
func (h Header) Size() int { return lengthOverhead + int(h.Length) }

// Next is the offset after the last record of the batch.
func (h Header) Next() topology.Offset { return h.BaseOffset + topology.Offset(h.LastOffsetDelta) + 1 }

// Idempotent says whether some record of the batch has a hidden header of idempotency, so that a reader that looks for
// them can pass over other batches without unpacking them.
func (h Header) Idempotent() bool { return h.Attributes&FlagIdempotent != 0 }

// Compressed says whether the records of the batch are compressed.
func (h Header) Compressed() bool { return h.Attributes&codecMask != codecNone }

// The refusals of ParseHeader are made once, so that a search for the next header in damaged bytes allocates nothing.
var (
	errMagic   = fmt.Errorf("%w: magic is not %d", ErrCorrupt, magic)
	errLength  = fmt.Errorf("%w: length is not within %d to %d", ErrCorrupt, minLength, MaxSize-lengthOverhead)
	errRecords = fmt.Errorf("%w: record count is not within 1 to %d", ErrCorrupt, MaxRecords)
	errDense   = fmt.Errorf("%w: record count and last offset delta do not match", ErrCorrupt)
	errOffset  = fmt.Errorf("%w: base offset is negative or too high", ErrCorrupt)
)

// ParseHeader reads the header at the front of b and checks what can be checked without the rest of the batch: magic,
// bounds of length and record count, density. It allocates nothing. Errors: ErrShort if b has fewer than HeaderSize
// bytes, ErrCorrupt.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	if b[posMagic] != magic {
		return Header{}, errMagic
	}
	h := Header{
		BaseOffset:      topology.Offset(binary.BigEndian.Uint64(b[posBaseOffset:])),
		Length:          int32(binary.BigEndian.Uint32(b[posLength:])),
		Version:         topology.Version(binary.BigEndian.Uint32(b[posVersion:])),
		CRC:             binary.BigEndian.Uint32(b[posCRC:]),
		Attributes:      int16(binary.BigEndian.Uint16(b[posAttributes:])),
		LastOffsetDelta: int32(binary.BigEndian.Uint32(b[posLastOffsetDelta:])),
		BaseTimestamp:   int64(binary.BigEndian.Uint64(b[posBaseTimestamp:])),
		MaxTimestamp:    int64(binary.BigEndian.Uint64(b[posMaxTimestamp:])),
		ProducerID:      int64(binary.BigEndian.Uint64(b[posProducerID:])),
		ProducerEpoch:   int16(binary.BigEndian.Uint16(b[posProducerEpoch:])),
		BaseSequence:    int32(binary.BigEndian.Uint32(b[posBaseSequence:])),
		Records:         int32(binary.BigEndian.Uint32(b[posRecords:])),
	}
	switch {
	case h.Length < minLength || h.Length > MaxSize-lengthOverhead:
		return Header{}, errLength
	case h.Records < 1 || h.Records > MaxRecords:
		return Header{}, errRecords
	case h.LastOffsetDelta != h.Records-1:
		return Header{}, errDense
	case h.BaseOffset < 0 || h.Next() < 0:
		return Header{}, errOffset
	}
	return h, nil
}

// Check reads the header at the front of b and verifies the whole batch by its checksum. b may be longer than the
// batch; h.Size() tells where it ends. It does not look into the records. Errors: ErrShort if b ends before the batch
// does, ErrCorrupt.
func Check(b []byte) (Header, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return Header{}, err
	}
	if len(b) < h.Size() {
		return Header{}, ErrShort
	}
	if crc := crc32.Checksum(b[posAttributes:h.Size()], castagnoli); crc != h.CRC {
		return Header{}, fmt.Errorf("%w: CRC-32C is %08x, the header says %08x", ErrCorrupt, crc, h.CRC)
	}
	return h, nil
}

// SetPosition writes the fields outside the checksum that only the leader's log can tell: the offset of the first record
// and the version of the generation. batch holds at least HeaderSize bytes.
func SetPosition(batch []byte, base topology.Offset, v topology.Version) {
	binary.BigEndian.PutUint64(batch[posBaseOffset:], uint64(base))
	binary.BigEndian.PutUint32(batch[posVersion:], uint32(v))
}

// put writes h to the first HeaderSize bytes of b.
func (h Header) put(b []byte) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b[posBaseOffset:], uint64(h.BaseOffset))
	binary.BigEndian.PutUint32(b[posLength:], uint32(h.Length))
	binary.BigEndian.PutUint32(b[posVersion:], uint32(h.Version))
	b[posMagic] = magic
	binary.BigEndian.PutUint32(b[posCRC:], h.CRC)
	binary.BigEndian.PutUint16(b[posAttributes:], uint16(h.Attributes))
	binary.BigEndian.PutUint32(b[posLastOffsetDelta:], uint32(h.LastOffsetDelta))
	binary.BigEndian.PutUint64(b[posBaseTimestamp:], uint64(h.BaseTimestamp))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(h.MaxTimestamp))
	binary.BigEndian.PutUint64(b[posProducerID:], uint64(h.ProducerID))
	binary.BigEndian.PutUint16(b[posProducerEpoch:], uint16(h.ProducerEpoch))
	binary.BigEndian.PutUint32(b[posBaseSequence:], uint32(h.BaseSequence))
	binary.BigEndian.PutUint32(b[posRecords:], uint32(h.Records))
}
