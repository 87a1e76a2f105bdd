package consuming

import (
	"encoding/binary"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/skeinmq/skein/internal/recordbatch"
)

// Frames of zstd (RFC 8878) that hold their content as it is, in raw blocks: any decoder reads them, and they cost
// nothing but a copy. Layout:
//
//	magic:4 | descriptor:1 = 0x80 | window:1 = 128 KiB | content size:4 | blocks
//
// and a block is a header of 3 bytes, last:1 bit | type:2 bits = 0 | size:21 bits, and its content. Integers are little
// endian. There is no dictionary and no checksum.
const (
	rawFrameHead  = 4 + 1 + 1 + 4
	rawBlockHead  = 3
	rawBlockBytes = 128 << 10 // the largest block that the format allows
)

func appendRawFrameHead(b []byte, content int) []byte {
	b = append(b, 0x28, 0xb5, 0x2f, 0xfd, 0x80, (17-10)<<3)
	return binary.LittleEndian.AppendUint32(b, uint32(content))
}

func appendRawBlockHead(b []byte, size int, last bool) []byte {
	h := uint32(size) << 3
	if last {
		h |= 1
	}
	return append(b, byte(h), byte(h>>8), byte(h>>16))
}

// appendRecordsFrame appends the frame that holds records in the form of a binary poll. records is not empty and their
// content is below 4 GiB.
func appendRecordsFrame(b []byte, records []recordbatch.Record) []byte {
	content := 0
	for i := range records {
		content += binaryRecordHead + len(records[i].Value)
	}
	b = appendRawFrameHead(b, content)
	if content <= rawBlockBytes {
		return appendBinaryRecords(appendRawBlockHead(b, content, true), records)
	}
	w := rawBlocks{b: b, left: content}
	var head [binaryRecordHead]byte
	for i := range records {
		w.write(appendRecordHead(head[:0], &records[i]))
		w.write(records[i].Value)
	}
	return w.b
}

// rawBlocks writes content in raw blocks.
type rawBlocks struct {
	b    []byte
	left int // content that is still to come
	room int // in the block that was begun
}

func (w *rawBlocks) write(p []byte) {
	for len(p) > 0 {
		if w.room == 0 {
			w.room = min(w.left, rawBlockBytes)
			w.b = appendRawBlockHead(w.b, w.room, w.room == w.left)
		}
		n := min(len(p), w.room)
		w.b = append(w.b, p[:n]...)
		p = p[n:]
		w.room -= n
		w.left -= n
	}
}

// encoder compresses with all cores; its state is made when it is first used.
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithEncoderCRC(false), zstd.WithWindowSize(rawBlockBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic("consuming: the options of the zstd encoder are refused: " + err.Error())
	}
	return e
})

// appendCompressedFrame appends a frame that holds content, at the fastest level.
func appendCompressedFrame(b, content []byte) []byte { return encoder().EncodeAll(content, b) }
