package recordbatch

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/bits"
	"slices"
)

// Builder builds one batch after the other. Reset begins a batch, Append adds records, Seal encodes it. Its buffers are
// kept between batches. The zero Builder is ready after Reset; it is not safe for concurrent use.
type Builder struct {
	records       []byte // encoded and not compressed
	count         int
	baseTimestamp int64
	maxTimestamp  int64
	producerID    int64
	producerEpoch int16
	baseSequence  int32
	idempotent    bool
	plain         bool    // never compress
	payoff        *Payoff // nil: always try
}

// keepBytes is how much of a buffer is kept for the next batch: one large record shall not hold memory for good.
const keepBytes = 1 << 20

// Reset drops what was appended and begins a batch. baseTimestamp is when the leader appends the chunk, in ms since the
// epoch by its clock: it becomes BaseTimestamp, so that the time index can be rebuilt from the headers alone. Records
// may be older or younger. What SetProducer and SetIdempotent set is forgotten; the choice of compression stays.
func (b *Builder) Reset(baseTimestamp int64) {
	if cap(b.records) > keepBytes {
		b.records = nil
	}
	b.records = b.records[:0]
	b.count = 0
	b.baseTimestamp = baseTimestamp
	b.maxTimestamp = 0
	b.producerID, b.producerEpoch, b.baseSequence = -1, -1, -1
	b.idempotent = false
}

// Append adds a copy of r; r.Offset is ignored. The caller keeps Count at or below MaxRecords, and Size below
// MaxUncompressed.
func (b *Builder) Append(r *Record) {
	if b.count == 0 || r.Timestamp > b.maxTimestamp {
		b.maxTimestamp = r.Timestamp
	}
	delta := r.Timestamp - b.baseTimestamp
	size := 1 + varintLen(delta) + varintLen(int64(b.count)) + bytesLen(r.Key) + bytesLen(r.Value) +
		varintLen(int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		size += varintLen(int64(len(h.Key))) + len(h.Key) + bytesLen(h.Value)
	}
	p := slices.Grow(b.records, size+binary.MaxVarintLen32)
	p = binary.AppendVarint(p, int64(size))
	p = append(p, 0) // attributes of the record, unused
	p = binary.AppendVarint(p, delta)
	p = binary.AppendVarint(p, int64(b.count))
	p = appendBytes(p, r.Key)
	p = appendBytes(p, r.Value)
	p = binary.AppendVarint(p, int64(len(r.Headers)))
	for i := range r.Headers {
		h := &r.Headers[i]
		p = binary.AppendVarint(p, int64(len(h.Key)))
		p = append(p, h.Key...)
		p = appendBytes(p, h.Value)
	}
	b.records = p
	b.count++
}

// Count is the number of records so far.
func (b *Builder) Count() int { return b.count }

// Size is the size of the records so far, encoded and not compressed, in bytes.
func (b *Builder) Size() int { return len(b.records) }

// SetIdempotent marks the batch: some record of it has a hidden header of idempotency.
func (b *Builder) SetIdempotent() { b.idempotent = true }

// SetProducer sets who produced the batch and the sequence number of its first record. Without it the batch has none.
func (b *Builder) SetProducer(id int64, epoch int16, seq int32) {
	b.producerID, b.producerEpoch, b.baseSequence = id, epoch, seq
}

// SetCompression says whether Seal tries to compress; it does unless told otherwise.
func (b *Builder) SetCompression(on bool) { b.plain = !on }

// SetPayoff makes Seal ask p whether to try compression and tell it what came of it. One Payoff serves the builders of
// one topic. nil (as at first) tries always.
func (b *Builder) SetPayoff(p *Payoff) { b.payoff = p }

// Seal appends the encoded batch to dst and returns the result. BaseOffset and Version are 0 until SetPosition. The
// records are compressed where that saves a tenth or more. The builder is unchanged: Seal again gives the same batch;
// Reset begins the next. Seal panics when nothing was appended or when a bound was passed.
func (b *Builder) Seal(dst []byte) []byte {
	if b.count == 0 || b.count > MaxRecords || len(b.records) > MaxUncompressed-HeaderSize {
		panic(fmt.Sprintf("recordbatch: a batch holds 1 to %d records in at most %d bytes, got %d in %d",
			MaxRecords, MaxUncompressed-HeaderSize, b.count, len(b.records)))
	}
	start := len(dst)
	dst = slices.Grow(dst, HeaderSize+len(b.records))[:start+HeaderSize]
	dst, attributes := b.pack(dst)
	if b.idempotent {
		attributes |= FlagIdempotent
	}
	batch := dst[start:]
	Header{
		Length:          int32(len(batch) - lengthOverhead),
		Attributes:      attributes,
		LastOffsetDelta: int32(b.count - 1),
		BaseTimestamp:   b.baseTimestamp,
		MaxTimestamp:    b.maxTimestamp,
		ProducerID:      b.producerID,
		ProducerEpoch:   b.producerEpoch,
		BaseSequence:    b.baseSequence,
		Records:         int32(b.count),
	}.put(batch)
	binary.BigEndian.PutUint32(batch[posCRC:], crc32.Checksum(batch[posAttributes:], castagnoli))
	return dst
}

// pack appends the records to dst, compressed if that pays, and returns the codec as attributes.
func (b *Builder) pack(dst []byte) ([]byte, int16) {
	if b.plain || len(b.records) < minCompress || !b.payoff.try() {
		return append(dst, b.records...), codecNone
	}
	start := len(dst)
	dst = compress(dst, b.records)
	paid := pays(len(b.records), len(dst)-start)
	b.payoff.note(paid)
	if !paid {
		return append(dst[:start], b.records...), codecNone
	}
	return dst, codecZstd
}

// varintLen is the size of v as a zigzag varint.
func varintLen(v int64) int {
	return (bits.Len64(uint64(v<<1)^uint64(v>>63)|1) + 6) / 7
}

// bytesLen is the size of b with its length before it.
func bytesLen(b []byte) int {
	if b == nil {
		return 1
	}
	return varintLen(int64(len(b))) + len(b)
}

// appendBytes appends b with its length before it; -1 stands for null.
func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 1) // zigzag of -1
	}
	dst = binary.AppendVarint(dst, int64(len(b)))
	return append(dst, b...)
}
