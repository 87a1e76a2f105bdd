package consuming

import (
	"encoding/binary"
	"math"

	"github.com/skeinmq/skein/internal/recordbatch"
)

// binaryType is compared by clients as a whole, so it takes no parameters (docs/wire.md, 0.3).
const binaryType = "application/vnd.polar.consumermessage"

// binaryForm is the form of docs/wire.md, 5.2.1: a count of items, and for each the place of its records and a zstd
// frame with their timestamps and values. Keys and headers have no place in it. Empty and null values are left out,
// since clients stumble over them: the item ends before and the next one begins after them.
type binaryForm struct {
	*buffer
	compress bool
}

func newBinaryForm(compress bool) *binaryForm {
	f := &binaryForm{buffer: getBuffer(), compress: compress}
	f.b = append(f.b, 0, 0) // the count
	return f
}

const (
	binaryItemHead   = 8 + 1 + 4 + 1 // token, range index, version, length of the topic
	binaryItemTail   = 8 + 4         // start offset, length of the payload
	binaryRecordHead = 8 + 4         // timestamp, length
)

func (f *binaryForm) cost(r *recordbatch.Record) int { return binaryRecordHead + len(r.Value) }

func (f *binaryForm) empty() bool { return len(f.heads) == 0 }

func (f *binaryForm) mark() mark { return mark{len(f.b), len(f.heads)} }

func (f *binaryForm) cut(m mark) { f.b, f.heads = f.b[:m.bytes], f.heads[:m.items] }

func (f *binaryForm) append(r *run) int {
	records := r.records
	for len(records) > 0 {
		n := 0
		for n < len(records) && len(records[n].Value) > 0 {
			n++
		}
		if n > 0 {
			if len(f.heads) == math.MaxUint16 {
				break // the count of items holds no more
			}
			f.item(r, records[:n])
		}
		for n < len(records) && len(records[n].Value) == 0 {
			n++
		}
		records = records[n:]
	}
	return len(r.records) - len(records)
}

// item appends one item with records that all have a value.
func (f *binaryForm) item(r *run, records []recordbatch.Record) {
	f.heads = append(f.heads, len(f.b))
	b := binary.BigEndian.AppendUint64(f.b, uint64(r.topic.PartitionToken(r.partition)))
	b = append(b, 0) // range index
	b = binary.BigEndian.AppendUint32(b, uint32(r.version))
	b = append(b, byte(len(r.topic.Name)))
	b = append(b, r.topic.Name...)
	b = binary.BigEndian.AppendUint64(b, uint64(records[0].Offset))
	b = append(b, 0, 0, 0, 0) // length of the payload
	start := len(b)
	if f.compress {
		f.raw = appendBinaryRecords(f.raw[:0], records)
		b = appendCompressedFrame(b, f.raw)
	} else {
		b = appendRecordsFrame(b, records)
	}
	binary.BigEndian.PutUint32(b[start-4:], uint32(len(b)-start))
	f.b = b
}

// appendBinaryRecords appends records as the payload of an item has them before compression.
func appendBinaryRecords(b []byte, records []recordbatch.Record) []byte {
	for i := range records {
		b = appendRecordHead(b, &records[i])
		b = append(b, records[i].Value...)
	}
	return b
}

func appendRecordHead(b []byte, r *recordbatch.Record) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(r.Timestamp)*1000) // µs
	return binary.BigEndian.AppendUint32(b, uint32(len(r.Value)))
}

// frameBytes is the size of DATA frames of HTTP/2 that every client takes.
const frameBytes = 16 << 10

// finish cuts the answer so that no item has its head, the part with the topic, in two frames: the published Go client
// reads the topic with a single Read, which a frame border would cut short (docs/wire.md, 5.2.1). A server that frames
// each part by itself, in frames of 16 KiB, keeps that.
func (f *binaryForm) finish() (string, [][]byte) {
	binary.BigEndian.PutUint16(f.b, uint16(len(f.heads)))
	var parts [][]byte
	start := 0
	for _, h := range f.heads {
		end := h + binaryItemHead + int(f.b[h+binaryItemHead-1]) + binaryItemTail
		if (h-start)/frameBytes != (end-1-start)/frameBytes {
			parts = append(parts, f.b[start:h])
			start = h
		}
	}
	return binaryType, append(parts, f.b[start:])
}

func (f *binaryForm) release() { putBuffer(f.buffer) }
