package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The frames of the binary produce protocol (docs/wire.md 4). Integers are big-endian.
const (
	frameHeader = 13
	wireVersion = 1

	opStartup         = 1
	opReady           = 2
	opError           = 3
	opProduce         = 4
	opProduceResponse = 5
)

// maxErrorBody bounds the body of an error frame: a code and 511 bytes of text.
const maxErrorBody = 512

var errProtocol = errors.New("the broker breaks the binary produce protocol")

// appendFrameHeader appends the header of a frame.
//
//	version:1 | flags:1 | stream:2 | op:1 | body length:4 | crc32 of the nine bytes before:4
func appendFrameHeader(dst []byte, stream uint16, op byte, body int) []byte {
	start := len(dst)
	dst = append(dst, wireVersion, 0)
	dst = binary.BigEndian.AppendUint16(dst, stream)
	dst = append(dst, op)
	dst = binary.BigEndian.AppendUint32(dst, uint32(body))
	return binary.BigEndian.AppendUint32(dst, crc32.ChecksumIEEE(dst[start:]))
}

// setFrameBody writes the length of the body into a header that begins at start, once the body is appended.
func setFrameBody(b []byte, start int) {
	header := b[start : start+frameHeader]
	binary.BigEndian.PutUint32(header[5:], uint32(len(b)-start-frameHeader))
	binary.BigEndian.PutUint32(header[9:], crc32.ChecksumIEEE(header[:9]))
}

// appendProduceHead appends what stands before the messages of a produce frame: key and topic, at most 255 bytes each.
func appendProduceHead(dst []byte, key, topic string) []byte {
	dst = append(dst, byte(len(key)))
	dst = append(dst, key...)
	dst = append(dst, byte(len(topic)))
	return append(dst, topic...)
}

// response is a frame from the broker. Text is set for opError only.
type response struct {
	stream uint16
	op     byte
	code   byte
	text   string
}

// readResponse reads a frame, using buf for the body of an error.
func readResponse(r io.Reader, buf *[frameHeader + maxErrorBody]byte) (response, error) {
	head := buf[:frameHeader]
	if _, err := io.ReadFull(r, head); err != nil {
		return response{}, err
	}
	if sum := crc32.ChecksumIEEE(head[:9]); sum != binary.BigEndian.Uint32(head[9:]) {
		return response{}, fmt.Errorf("%w: checksum of a frame header is wrong", errProtocol)
	}
	f := response{stream: binary.BigEndian.Uint16(head[2:]), op: head[4]}
	length := binary.BigEndian.Uint32(head[5:])
	switch f.op {
	case opReady, opProduceResponse:
		if length != 0 {
			return f, fmt.Errorf("%w: op %d with a body of %d bytes", errProtocol, f.op, length)
		}
	case opError:
		if length < 1 || length > maxErrorBody {
			return f, fmt.Errorf("%w: error frame with a body of %d bytes", errProtocol, length)
		}
		body := buf[frameHeader : frameHeader+int(length)]
		if _, err := io.ReadFull(r, body); err != nil {
			return f, err
		}
		f.code, f.text = body[0], string(body[1:])
	default:
		return f, fmt.Errorf("%w: op %d from a broker", errProtocol, f.op)
	}
	return f, nil
}
