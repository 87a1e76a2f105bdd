package producing

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// Frames of the binary protocol: docs/wire.md, section 4.
const (
	frameHeaderSize = 13
	frameVersion    = 1
	flagTimestamp   = 1 // the body of a PRODUCE begins with a timestamp
	maxErrorBody    = 512
)

type opcode uint8

const (
	opStartup         opcode = 1
	opReady           opcode = 2
	opError           opcode = 3
	opProduce         opcode = 4
	opProduceResponse opcode = 5
	opHeartbeat       opcode = 6
)

// errorCode is the first byte of the body of an ERROR.
type errorCode uint8

const (
	codeServer         errorCode = 0 // also malformed requests; and unknown outcomes, whose text begins "outcome unknown:"
	codeRouting        errorCode = 1 // not written
	codeLeaderNotFound errorCode = 2 // not written
)

// frameHeader is the header of a frame.
//
//	version:1 | flags:1 | stream:2 | op:1 | length:4 | crc32:4
//
// Integers are big-endian. The length is that of the body; the CRC-32 (IEEE) covers the nine bytes before it.
type frameHeader struct {
	version uint8
	flags   uint8
	stream  uint16
	op      opcode
	length  uint32
}

// errChecksum means that the CRC of a header is wrong. What it says, its length too, cannot be trusted.
var errChecksum = errors.New("the checksum of the frame header is wrong")

// parseFrameHeader reads the header at the front of b, which has frameHeaderSize bytes or more. With errChecksum the
// header is returned as it was read.
func parseFrameHeader(b []byte) (frameHeader, error) {
	_ = b[frameHeaderSize-1]
	h := frameHeader{
		version: b[0],
		flags:   b[1],
		stream:  binary.BigEndian.Uint16(b[2:]),
		op:      opcode(b[4]),
		length:  binary.BigEndian.Uint32(b[5:]),
	}
	if crc32.ChecksumIEEE(b[:9]) != binary.BigEndian.Uint32(b[9:]) {
		return h, errChecksum
	}
	return h, nil
}

// appendFrameHeader appends the header of a frame.
func appendFrameHeader(dst []byte, h frameHeader) []byte {
	at := len(dst)
	dst = append(dst, h.version, h.flags, byte(h.stream>>8), byte(h.stream), byte(h.op),
		byte(h.length>>24), byte(h.length>>16), byte(h.length>>8), byte(h.length))
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[at:]))
}

// appendEmptyFrame appends a frame without a body, as READY and PRODUCE_RESPONSE must be.
func appendEmptyFrame(dst []byte, op opcode, stream uint16) []byte {
	return appendFrameHeader(dst, frameHeader{version: frameVersion, stream: stream, op: op})
}

// appendErrorFrame appends an ERROR. Its body is cut to what published clients can take: 1 to 512 bytes.
func appendErrorFrame(dst []byte, stream uint16, code errorCode, text string) []byte {
	text = clip(text, maxErrorBody-1)
	dst = appendFrameHeader(dst, frameHeader{version: frameVersion, stream: stream, op: opError, length: uint32(1 + len(text))})
	dst = append(dst, byte(code))
	return append(dst, text...)
}

// clip cuts s to at most n bytes, not within a character.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// produceBody is the parsed body of a PRODUCE. All but timestamp alias the body.
//
//	[timestamp:8] | key length:1 | key | topic length:1 | topic | (length:4 | message)...
type produceBody struct {
	timestamp int64 // ms since the epoch; only if timed
	timed     bool
	key       []byte // nil: none
	topic     []byte
	messages  []byte // the rest
}

// parseProduce reads the body of a PRODUCE with these flags up to the messages, which eachMessage reads.
func parseProduce(flags uint8, body []byte) (produceBody, error) {
	var p produceBody
	if flags&^flagTimestamp != 0 {
		return p, invalid("frame: unknown flags %#02x; allowed is %#02x, a timestamp", flags, flagTimestamp)
	}
	if flags&flagTimestamp != 0 {
		if len(body) < 8 {
			return p, invalid("frame: the body ends within the timestamp")
		}
		us := binary.BigEndian.Uint64(body)
		if us > math.MaxInt64 {
			return p, invalid("timestamp %d: allowed are microseconds since the epoch below 2^63", us)
		}
		p.timestamp, p.timed = int64(us/1000), true
		body = body[8:]
	}
	key, body, ok := cutShort(body)
	if !ok {
		return p, invalid("frame: the body ends within the key")
	}
	topic, body, ok := cutShort(body)
	if !ok {
		return p, invalid("frame: the body ends within the topic")
	}
	if len(key) > 0 {
		p.key = key
	}
	p.topic, p.messages = topic, body
	if len(body) == 0 {
		return p, invalid("frame: it has no messages")
	}
	return p, nil
}

// cutShort splits b after a field with one byte of length before it.
func cutShort(b []byte) (field, rest []byte, ok bool) {
	if len(b) == 0 || len(b)-1 < int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n:n], b[n:], true
}

// appendMessages appends a record for each length-prefixed message in b, with key, timestamp and headers alike. Values
// alias b. limit is the largest record; an empty message is refused. what names the place in errors ("frame", "body").
//
// It is the layout of the messages of a PRODUCE and of the body application/vnd.polar.producer.frames.
func appendMessages(dst []recordbatch.Record, b []byte, like recordbatch.Record, limit int, what string) ([]recordbatch.Record, error) {
	base := like.Bytes()
	for n := 1; len(b) > 0; n++ {
		if len(b) < 4 {
			return dst, invalid("%s: message %d: it ends within the length", what, n)
		}
		size := binary.BigEndian.Uint32(b)
		b = b[4:]
		switch {
		case size == 0:
			return dst, invalid("%s: message %d is empty; allowed is 1 byte or more", what, n)
		case uint64(size) > uint64(len(b)):
			return dst, invalid("%s: message %d announces %d bytes, %d are left", what, n, size, len(b))
		case base+int(size) > limit:
			return dst, fmt.Errorf("%s: message %d: the record has %d bytes, allowed are %d: %w", what, n, base+int(size), limit, topology.ErrTooLarge)
		}
		like.Value = b[:size:size]
		dst = append(dst, like)
		b = b[size:]
	}
	return dst, nil
}
