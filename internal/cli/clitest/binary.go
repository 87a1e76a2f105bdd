package clitest

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"
	"net"
)

// BinaryAddr is the HOST:PORT of the binary produce protocol.
func (b *Broker) BinaryAddr() string { return b.binary.Addr().String() }

func (b *Broker) acceptBinary() {
	for {
		nc, err := b.binary.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		closed := b.closed
		b.conns[nc] = true
		b.mu.Unlock()
		if closed {
			nc.Close()
			return
		}
		b.tasks.Go(func() {
			defer nc.Close()
			b.serveBinary(nc)
		})
	}
}

// serveBinary answers frames one after the other.
func (b *Broker) serveBinary(nc net.Conn) {
	in, out := bufio.NewReader(nc), bufio.NewWriter(nc)
	for started := false; ; started = true {
		var head [13]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[5:]))
		if _, err := io.ReadFull(in, body); err != nil || binary.BigEndian.Uint32(head[9:]) != crc32.ChecksumIEEE(head[:9]) {
			return
		}
		stream := head[2:4]
		switch {
		case !started && head[4] == 1:
			out.Write(frame(stream, 2, nil))
		case head[4] == 4:
			text, hangUp := b.storeFrame(body)
			if hangUp {
				return
			}
			if text != "" {
				out.Write(frame(stream, 3, append([]byte{2}, text...)))
			} else {
				out.Write(frame(stream, 5, nil))
			}
		default:
			out.Write(frame(stream, 3, []byte("\x00Only producer operations are supported")))
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}

func frame(stream []byte, op byte, body []byte) []byte {
	f := append([]byte{1, 0}, stream...)
	f = append(f, op)
	f = binary.BigEndian.AppendUint32(f, uint32(len(body)))
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	return append(f, body...)
}

func (b *Broker) storeFrame(body []byte) (refusal string, hangUp bool) {
	key := body[1 : 1+body[0]]
	body = body[1+len(key):]
	name := string(body[1 : 1+body[0]])
	body = body[1+len(name):]
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topics[name]
	if t == nil {
		t = b.create(name, 3)
	}
	if len(body) == 0 {
		return "a frame without messages", false
	}
	for len(body) > 0 {
		n := binary.BigEndian.Uint32(body)
		value := body[4 : 4+n]
		body = body[4+n:]
		if b.refuse != nil {
			if refusal, hangUp := b.refuse(value); refusal != "" || hangUp {
				return refusal, hangUp
			}
		}
		b.append(t, t.partitionOf(key), Record{Key: key, Value: value})
	}
	return "", false
}

// RefuseBinary makes f judge each record of the binary protocol: a text is sent as an error frame, hangUp ends the
// connection without an answer.
func (b *Broker) RefuseBinary(f func(value []byte) (refusal string, hangUp bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = f
}
