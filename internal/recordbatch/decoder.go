package recordbatch

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/skeinmq/skein/internal/topology"
)

// Decoder unpacks batches. Its buffers are used again by each call, so with records of alike shape it allocates
// nothing. The zero Decoder is ready; it is not safe for concurrent use.
type Decoder struct {
	raw     []byte // unpacked records, when the batch is compressed
	records []Record
	headers []RecordHeader
	keys    map[string]string // header keys seen lately, so that each is made once
}

// Decode unpacks the batch at the front of batch, which may be longer. It checks the whole structure, but not the
// checksum: see Check. The slice and all bytes in it alias the decoder or batch and hold until the next call; header
// keys are strings of their own. Batches without compression and with zstd are accepted, a batch of control records or
// of a transaction is not.
//
// Memory is bounded by MaxUncompressed and MaxRecords, whatever the batch claims. Errors: ErrShort if batch ends before
// the header says, ErrCorrupt. The decoder stays usable after an error.
func (d *Decoder) Decode(batch []byte) ([]Record, error) {
	h, err := ParseHeader(batch)
	if err != nil {
		return nil, err
	}
	if len(batch) < h.Size() {
		return nil, ErrShort
	}
	if unknown := h.Attributes &^ knownAttributes; unknown != 0 {
		return nil, fmt.Errorf("%w: attributes %#04x are not known", ErrCorrupt, uint16(unknown))
	}
	raw, err := d.unpack(h, batch[HeaderSize:h.Size()])
	if err != nil {
		return nil, err
	}
	if len(raw)/minRecordSize < int(h.Records) {
		return nil, fmt.Errorf("%w: %d bytes cannot hold %d records", ErrCorrupt, len(raw), h.Records)
	}
	return d.decodeAll(h, raw)
}

// unpack returns the records of a batch as plain bytes.
func (d *Decoder) unpack(h Header, body []byte) ([]byte, error) {
	switch codec := h.Attributes & codecMask; codec {
	case codecNone:
		return body, nil
	case codecZstd:
		if cap(d.raw) > keepBytes {
			d.raw = nil
		}
		var err error
		d.raw, err = decompress(d.raw[:0], body)
		return d.raw, err
	default:
		return nil, fmt.Errorf("%w: codec %d is not supported", ErrCorrupt, codec)
	}
}

func (d *Decoder) decodeAll(h Header, raw []byte) ([]Record, error) {
	n := int(h.Records)
	d.headers = emptied(d.headers)
	d.records = slices.Grow(emptied(d.records), n)[:n]
	c := cursor{b: raw}
	for i := range d.records {
		if err := d.decodeOne(&c, h, i); err != nil {
			d.records = d.records[:0]
			return nil, fmt.Errorf("%w: record %d of %d: %s", ErrCorrupt, i, n, err)
		}
	}
	if c.pos != len(raw) {
		return nil, fmt.Errorf("%w: %d bytes after the last record", ErrCorrupt, len(raw)-c.pos)
	}
	return d.records, nil
}

// decodeOne reads record i at c.
func (d *Decoder) decodeOne(c *cursor, h Header, i int) error {
	size := c.varint()
	end := int64(c.pos) + size
	if c.bad || size < minRecordSize-1 || size > int64(len(c.b)) || end > int64(len(c.b)) {
		return errField("length")
	}
	c.skip(1) // attributes, unused
	timestamp := h.BaseTimestamp + c.varint()
	if h.Attributes&flagLogAppendTime != 0 {
		timestamp = h.MaxTimestamp
	}
	if delta := c.varint(); c.bad || delta != int64(i) {
		return errField("offset delta")
	}
	key := c.bytes(end)
	value := c.bytes(end)
	if c.bad {
		return errField("key or value")
	}
	headers, ok := d.decodeHeaders(c, end, i)
	if !ok {
		return errField("headers")
	}
	if int64(c.pos) != end {
		return errField("length")
	}
	d.records[i] = Record{
		Offset:    h.BaseOffset + topology.Offset(i),
		Timestamp: timestamp,
		Key:       key,
		Value:     value,
		Headers:   headers,
	}
	return nil
}

// decodeHeaders reads the headers of record i, which end at or before end.
func (d *Decoder) decodeHeaders(c *cursor, end int64, i int) ([]RecordHeader, bool) {
	n := c.varint()
	if n == 0 && !c.bad {
		return nil, true
	}
	if c.bad || n < 0 || n > (end-int64(c.pos))/minRecordHeaderLen || n > int64(maxHeaders-len(d.headers)) {
		return nil, false
	}
	var before []RecordHeader // of the last record: headers mostly repeat
	if i > 0 {
		before = d.records[i-1].Headers
	}
	start := len(d.headers)
	for j := range int(n) {
		key := c.bytes(end)
		value := c.bytes(end)
		if c.bad || key == nil {
			return nil, false
		}
		h := RecordHeader{Value: value}
		if j < len(before) && before[j].Key == string(key) {
			h.Key = before[j].Key
		} else {
			h.Key = d.intern(key)
		}
		d.headers = append(d.headers, h)
	}
	return d.headers[start:len(d.headers):len(d.headers)], true
}

// Bounds of the memory of header keys.
const (
	internedKeys  = 128
	internedBytes = 128 // of one key
)

// intern is key as a string, the same one for equal keys as long as they are few and short.
func (d *Decoder) intern(key []byte) string {
	if s, ok := d.keys[string(key)]; ok {
		return s
	}
	s := string(key)
	if len(s) > internedBytes {
		return s
	}
	if d.keys == nil || len(d.keys) >= internedKeys {
		d.keys = make(map[string]string)
	}
	d.keys[s] = s
	return s
}

// emptied is s with length 0, or nil when it has grown too large to keep.
func emptied[T any](s []T) []T {
	if cap(s) > keepBytes/64 {
		return nil
	}
	clear(s) // no references to what was decoded before
	return s[:0]
}

// errField names the field of a record that is wrong.
type errField string

func (e errField) Error() string { return string(e) + " is wrong" }

// cursor reads fields from b. The first failure sets bad, and all that is read after it is zero.
type cursor struct {
	b   []byte
	pos int // <= len(b)
	bad bool
}

func (c *cursor) skip(n int) {
	if len(c.b)-c.pos < n {
		c.bad = true
		return
	}
	c.pos += n
}

// varint reads a zigzag varint of at most 64 bits.
func (c *cursor) varint() int64 {
	if c.pos < len(c.b) && c.b[c.pos] < 0x80 && !c.bad { // most are one byte
		u := c.b[c.pos]
		c.pos++
		return int64(u>>1) ^ -int64(u&1)
	}
	v, n := binary.Varint(c.b[c.pos:])
	if n <= 0 || c.bad {
		c.bad = true
		return 0
	}
	c.pos += n
	return v
}

// bytes reads a length and as many bytes, which end at or before end; nil for length -1. The result aliases b.
func (c *cursor) bytes(end int64) []byte {
	n := c.varint()
	switch {
	case c.bad:
		return nil
	case n == -1:
		return nil
	case n < 0 || n > end-int64(c.pos):
		c.bad = true
		return nil
	}
	p := c.pos
	c.pos += int(n)
	return c.b[p:c.pos:c.pos]
}
