package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/test/harness"
)

// The worked frames of docs/wire.md, 4.1, to the byte.
const (
	startupFrame  = "01 00 00 00 01 00 00 00 00 cc 12 29 5d"
	readyFrame    = "01 00 00 00 02 00 00 00 00 8b b2 53 8d"
	produceFrame  = "01 00 00 07 04 00 00 00 10 04 40 86 f1 | 02 6b 31 | 01 74 | 00 00 00 07 7b 22 61 22 3a 31 7d"
	responseFrame = "01 00 00 07 05 00 00 00 00 24 97 bf 25"
	timedFrame    = "01 01 00 08 04 00 00 00 18 37 67 bc 88 | 00 06 0a 24 18 1e 40 00 | 02 6b 31 | 01 74 | 00 00 00 07 7b 22 61 22 3a 31 7d"
)

// frame builds a frame with any header fields (4.1).
func frame(version, flags byte, stream uint16, op byte, body string) []byte {
	f := []byte{version, flags, byte(stream >> 8), byte(stream), op, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(f[5:], uint32(len(body)))
	f = binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
	return append(f, body...)
}

// produceBody builds the body of a PRODUCE (4.3).
func produceBody(key, topic string, messages ...string) string {
	b := string([]byte{byte(len(key))}) + key + string([]byte{byte(len(topic))}) + topic
	for _, m := range messages {
		b += string(binary.BigEndian.AppendUint32(nil, uint32(len(m)))) + m
	}
	return b
}

// startup opens a connection and shakes hands.
func startup(t testing.TB, b *harness.Broker) net.Conn {
	t.Helper()
	conn := dial(t, b, harness.BinaryPort)
	send(t, conn, unhex(t, startupFrame))
	wantBytes(t, conn, readyFrame)
	return conn
}

func send(t testing.TB, conn net.Conn, bytes []byte) {
	t.Helper()
	if _, err := conn.Write(bytes); err != nil {
		t.Fatal(err)
	}
}

// wantBytes reads exactly these bytes.
func wantBytes(t testing.TB, r io.Reader, want string) {
	t.Helper()
	wanted := unhex(t, want)
	got := make([]byte, len(wanted))
	if n, err := io.ReadFull(r, got); err != nil {
		t.Fatalf("read % x, then %v; want % x", got[:n], err, wanted)
	}
	if !bytes.Equal(got, wanted) {
		t.Fatalf("read % x, want % x", got, wanted)
	}
}

// wantError reads an ERROR frame on a stream and checks its code and that its text contains some words (0.4, 4.1).
func wantError(t testing.TB, r io.Reader, stream uint16, code byte, text string) {
	t.Helper()
	id, op, body, err := harness.ReadFrame(r)
	switch {
	case err != nil:
		t.Fatalf("no error frame: %v", err)
	case op != harness.OpError || id != stream:
		t.Fatalf("op %d on stream %d, want ERROR on %d", op, id, stream)
	case len(body) < 1 || len(body) > 512:
		t.Fatalf("an error body of %d bytes, clients survive 1 to 512", len(body))
	case body[0] != code || !strings.Contains(string(body[1:]), text):
		t.Fatalf("error %d %q, want %d and %q", body[0], body[1:], code, text)
	}
}

// wantResponse reads a PRODUCE_RESPONSE without a body on a stream (0.6).
func wantResponse(t testing.TB, r io.Reader, stream uint16) {
	t.Helper()
	id, op, body, err := harness.ReadFrame(r)
	if err != nil || id != stream || op != harness.OpProduceResponse || len(body) != 0 {
		t.Fatalf("stream %d, op %d, %q, %v; want PRODUCE_RESPONSE on %d", id, op, body, err, stream)
	}
}

// wantClosed reads until the end, which must come without more frames.
func wantClosed(t testing.TB, conn net.Conn) {
	t.Helper()
	rest, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection is not closed: %v", err)
	}
	if len(rest) > 0 {
		t.Fatalf("% x came before the end", rest)
	}
}

// stillServes checks that a connection has not lost its framing.
func stillServes(t testing.TB, conn net.Conn, topic string) {
	t.Helper()
	send(t, conn, frame(1, 0, 900, harness.OpProduce, produceBody("k", topic, "after")))
	wantResponse(t, conn, 900)
}

func TestBinaryProduce(t *testing.T) {
	b := harness.Start(t, harness.Options{})

	t.Run("worked frames (4.1)", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, unhex(t, produceFrame))
		wantBytes(t, conn, responseFrame)
		send(t, conn, unhex(t, timedFrame))
		wantResponse(t, conn, 8)

		var records []harness.Record
		for p := range b.Topic(t, "t").Partitions {
			r, _, _ := b.ReadPartition(t, "t", p, 0)
			records = append(records, r...)
		}
		if len(records) != 2 || string(records[0].Key) != `"k1"` || string(records[0].Value) != `{"a":1}` {
			t.Fatalf("stored: %+v", records)
		}
		if records[1].Timestamp != 1700000000000 {
			t.Errorf("the timestamp of the frame, 1700000000000000 µs, is stored as %d ms", records[1].Timestamp)
		}
	})

	t.Run("heartbeat is answered with READY on its stream (4.1)", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(1, 0, 513, harness.OpHeartbeat, ""))
		id, op, body, err := harness.ReadFrame(conn)
		if err != nil || id != 513 || op != harness.OpReady || len(body) != 0 {
			t.Fatalf("stream %d, op %d, %q, %v", id, op, body, err)
		}
	})

	t.Run("frames in one segment, and frames byte by byte (4.2)", func(t *testing.T) {
		conn := startup(t, b)
		var all []byte
		for s := uint16(1); s <= 300; s++ {
			all = append(all, frame(1, 0, s, harness.OpProduce, produceBody("", "coalesced", fmt.Sprintf("m%d", s)))...)
		}
		send(t, conn, all)
		answered := map[uint16]bool{}
		for range 300 {
			id, op, _, err := harness.ReadFrame(conn)
			if err != nil || op != harness.OpProduceResponse || answered[id] || id < 1 || id > 300 {
				t.Fatalf("stream %d, op %d, answered before: %v, %v", id, op, answered[id], err)
			}
			answered[id] = true
		}
		for _, c := range frame(1, 0, 301, harness.OpProduce, produceBody("k", "coalesced", "slow")) {
			send(t, conn, []byte{c})
		}
		wantResponse(t, conn, 301)
	})

	t.Run("stream id 0 and the highest are like any other (4.2)", func(t *testing.T) {
		conn := startup(t, b)
		for _, id := range []uint16{0, 65535} {
			send(t, conn, frame(1, 0, id, harness.OpProduce, produceBody("k", "streams", "v")))
			wantResponse(t, conn, id)
		}
	})

	t.Run("several messages make one answer and keep their order (4.3)", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(1, 0, 5, harness.OpProduce, produceBody("k1", "several", "a", "b", "c")))
		wantResponse(t, conn, 5)
		var values []string
		for p := range b.Topic(t, "several").Partitions {
			records, _, _ := b.ReadPartition(t, "several", p, 0)
			for _, r := range records {
				values = append(values, string(r.Value))
			}
		}
		if got := strings.Join(values, " "); got != `"a" "b" "c"` {
			t.Errorf("stored %s", got)
		}
	})

	t.Run("a key of 255 bytes is a key (4.3)", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(1, 0, 5, harness.OpProduce, produceBody(strings.Repeat("k", 255), "longkey", "v")))
		wantResponse(t, conn, 5)
	})
}

func TestBinaryRefusals(t *testing.T) {
	b := harness.Start(t, harness.Options{})
	const mib = 1 << 20

	t.Run("another first message (4.2)", func(t *testing.T) {
		conn := dial(t, b, harness.BinaryPort)
		send(t, conn, frame(1, 0, 3, harness.OpProduce, produceBody("k", "first", "v")))
		wantError(t, conn, 3, 0, "Invalid first message")
		wantClosed(t, conn)
	})

	// Each of these is refused on its stream, is not stored, and leaves the connection in order.
	refused := []struct {
		name string
		op   byte
		body string
		text string
	}{
		{"a second STARTUP", harness.OpStartup, "", "Only producer operations are supported"},
		{"an unknown op", 99, "", "Only producer operations are supported"},
		{"an unknown op with a body that looks like a frame", 200, string(frame(1, 0, 1, harness.OpProduce, produceBody("k", "sneaky", "v"))), "Only producer operations are supported"},
		{"an op that only servers send", harness.OpProduceResponse, "", "Only producer operations are supported"},
		{"an empty body", harness.OpProduce, "", ""},
		{"no messages", harness.OpProduce, produceBody("k", "refused"), ""},
		{"an empty message", harness.OpProduce, produceBody("k", "refused", ""), ""},
		{"an empty message after another", harness.OpProduce, produceBody("k", "refused", "a", ""), ""},
		{"a message longer than the body", harness.OpProduce, produceBody("k", "refused") + "\x00\x00\x00\x09abc", ""},
		{"a negative message length", harness.OpProduce, produceBody("k", "refused") + "\xff\xff\xff\xffabc", ""},
		{"a length cut short", harness.OpProduce, produceBody("k", "refused") + "\x00\x00", ""},
		{"a key longer than the body", harness.OpProduce, "\xf0key", ""},
		{"a topic longer than the body", harness.OpProduce, "\x01k\xf0t", ""},
		{"no topic", harness.OpProduce, produceBody("k", "", "v"), "topic"},
		{"topic ..", harness.OpProduce, produceBody("k", "..", "v"), "topic"},
		{"topic a/b", harness.OpProduce, produceBody("k", "a/b", "v"), "topic"},
		{"topic of 250 bytes", harness.OpProduce, produceBody("k", strings.Repeat("t", 250), "v"), "topic"},
		{"topic of 300 bytes, whose length the published client cuts to 44", harness.OpProduce, "\x01k\x2c" + strings.Repeat("t", 300) + "\x00\x00\x00\x01v", ""},
		{"a reserved topic", harness.OpProduce, produceBody("k", "__topics", "v"), "topic"},
		{"a topic that is not UTF-8", harness.OpProduce, produceBody("k", "t\xff", "v"), "topic"},
		{"a record above the limit", harness.OpProduce, produceBody("k", "refused", strings.Repeat("x", mib+1)), ""},
	}
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			conn := startup(t, b)
			send(t, conn, frame(1, 0, 77, c.op, c.body))
			wantError(t, conn, 77, 0, c.text)
			stillServes(t, conn, "after")
		})
	}
	t.Run("nothing of that is stored", func(t *testing.T) {
		for _, name := range []string{"refused", "sneaky", "first", "t"} {
			if r, err := b.Do("GET", harness.AdminPort, "/v1/topics/"+name, nil); err != nil || r.Status != 404 {
				t.Errorf("topic %s: %d %s %v", name, r.Status, r.Body, err)
			}
		}
	})

	t.Run("a wrong checksum ends the connection (4.1)", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, unhex(t, "01 00 00 07 04 00 00 00 10 04 40 86 f2"))
		wantError(t, conn, 7, 0, "")
		wantClosed(t, conn)
	})

	// Announced lengths that no body has are refused by the header alone. Then the broker skips the body, or closes.
	for name, header := range map[string][]byte{
		"a body of -1 bytes":                    frameHeader(1, 7, harness.OpProduce, 0xffffffff),
		"a body of 17 MiB":                      frameHeader(1, 7, harness.OpProduce, 17*mib),
		"an unknown op with a body of 2 GiB":    frameHeader(1, 7, 99, 1<<31),
		"a second STARTUP with a body of 4 KiB": frameHeader(1, 7, harness.OpStartup, 4096),
	} {
		t.Run(name, func(t *testing.T) {
			conn := startup(t, b)
			send(t, conn, header)
			wantError(t, conn, 7, 0, "")
			conn.(*net.TCPConn).CloseWrite()
			wantClosed(t, conn)
		})
	}
	t.Run("a frame of 17 MiB is skipped", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(1, 0, 7, harness.OpProduce, produceBody("k", "refused", strings.Repeat("x", 17*mib))))
		wantError(t, conn, 7, 0, "")
		stillServes(t, conn, "after")
	})

	t.Run("a wrong version with a right checksum", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(9, 0, 7, harness.OpProduce, produceBody("k", "version", "v")))
		// The original takes any version; an error is as good. Silence is not.
		if id, op, _, err := harness.ReadFrame(conn); err != nil || id != 7 || op != harness.OpError && op != harness.OpProduceResponse {
			t.Errorf("stream %d, op %d, %v", id, op, err)
		}
	})

	t.Run("a connection that breaks in the middle of a frame", func(t *testing.T) {
		conn := startup(t, b)
		send(t, conn, frame(1, 0, 7, harness.OpProduce, produceBody("k", "half", "v"))[:20])
		conn.Close()
		if r, err := b.Do("GET", harness.AdminPort, "/v1/topics/half", nil); err != nil || r.Status != 404 {
			t.Errorf("half a frame made a topic: %d %v", r.Status, err)
		}
	})

	t.Run("many connections of noise", func(t *testing.T) {
		for seed := range 64 {
			conn := dial(t, b, harness.BinaryPort)
			noise := crcNoise(uint32(seed), 4096)
			if seed%2 == 0 {
				conn.Write(unhex(t, startupFrame))
			}
			conn.Write(noise)
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	})

	stillServes(t, startup(t, b), "after")
	if !b.Alive() {
		t.Fatal("the broker has ended")
	}
}

// frameHeader is a header with a right checksum and no body.
func frameHeader(version byte, stream uint16, op byte, length uint32) []byte {
	f := []byte{version, 0, byte(stream >> 8), byte(stream), op, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(f[5:], length)
	return binary.BigEndian.AppendUint32(f, crc32.ChecksumIEEE(f))
}

// crcNoise makes bytes that look random and are the same on every run.
func crcNoise(seed uint32, n int) []byte {
	var out []byte
	for len(out) < n {
		seed = crc32.ChecksumIEEE(binary.BigEndian.AppendUint32([]byte("noise"), seed))
		out = binary.BigEndian.AppendUint32(out, seed)
	}
	return out
}

// TestFramesOfTheHarness holds the frames that the harness makes for load against those of docs/wire.md.
func TestFramesOfTheHarness(t *testing.T) {
	if got, want := harness.Frame(0, harness.OpStartup, nil), unhex(t, startupFrame); !bytes.Equal(got, want) {
		t.Errorf("STARTUP is %s", hex.EncodeToString(got))
	}
	if got, want := harness.ProduceFrame(7, "k1", "t", `{"a":1}`), unhex(t, produceFrame); !bytes.Equal(got, want) {
		t.Errorf("PRODUCE is %s", hex.EncodeToString(got))
	}
}
