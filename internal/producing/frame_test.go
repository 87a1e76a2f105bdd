package producing

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "", "\n", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The worked frames of docs/wire.md 4.1.
const (
	hexStartup  = "01 00 00 00 01 00 00 00 00 cc 12 29 5d"
	hexReady    = "01 00 00 00 02 00 00 00 00 8b b2 53 8d"
	hexProduce  = "01 00 00 07 04 00 00 00 10 04 40 86 f1 | 02 6b 31 | 01 74 | 00 00 00 07 7b 22 61 22 3a 31 7d"
	hexResponse = "01 00 00 07 05 00 00 00 00 24 97 bf 25"
	hexError    = "01 00 00 07 03 00 00 00 0a 4b 02 a3 9b | 01 6e 6f 20 6c 65 61 64 65 72"
	hexTimed    = "01 01 00 08 04 00 00 00 18 37 67 bc 88 | 00 06 0a 24 18 1e 40 00 | 02 6b 31 | 01 74 | 00 00 00 07 7b 22 61 22 3a 31 7d"
)

func TestWorkedFrames(t *testing.T) { // docs/wire.md 4.1
	for _, c := range []struct {
		name string
		hex  string
		got  []byte
	}{
		{"READY", hexReady, appendEmptyFrame(nil, opReady, 0)},
		{"PRODUCE_RESPONSE", hexResponse, appendEmptyFrame(nil, opProduceResponse, 7)},
		{"ERROR", hexError, appendErrorFrame(nil, 7, codeRouting, "no leader")},
		{"STARTUP", hexStartup, appendEmptyFrame(nil, opStartup, 0)},
	} {
		if want := unhex(t, c.hex); !bytes.Equal(c.got, want) {
			t.Errorf("%s: % x, want % x", c.name, c.got, want)
		}
	}
	for _, c := range []struct {
		name string
		hex  string
		want frameHeader
		body produceBody
	}{
		{"plain", hexProduce, frameHeader{1, 0, 7, opProduce, 16}, produceBody{key: []byte("k1"), topic: []byte("t")}},
		{"timed", hexTimed, frameHeader{1, 1, 8, opProduce, 24}, produceBody{timestamp: 1700000000000, timed: true, key: []byte("k1"), topic: []byte("t")}},
	} {
		b := unhex(t, c.hex)
		h, err := parseFrameHeader(b)
		if err != nil || h != c.want {
			t.Fatalf("%s: header %+v, %v", c.name, h, err)
		}
		p, err := parseProduce(h.flags, b[frameHeaderSize:])
		if err != nil || string(p.key) != "k1" || string(p.topic) != "t" || p.timestamp != c.body.timestamp || p.timed != c.body.timed {
			t.Fatalf("%s: body %+v, %v", c.name, p, err)
		}
		records, err := appendMessages(nil, p.messages, recordbatch.Record{Key: p.key}, 100, "frame")
		if err != nil || len(records) != 1 || string(records[0].Value) != `{"a":1}` {
			t.Fatalf("%s: records %+v, %v", c.name, records, err)
		}
	}
}

func TestErrorBodiesFitPublishedClients(t *testing.T) { // docs/wire.md 0.4
	for _, text := range []string{"", "x", strings.Repeat("x", 511), strings.Repeat("x", 600), strings.Repeat("é", 400), strings.Repeat("日", 400)} {
		f := appendErrorFrame(nil, 1, codeServer, text)
		h, err := parseFrameHeader(f)
		if err != nil || int(h.length) != len(f)-frameHeaderSize || h.length < 1 || h.length > 512 {
			t.Errorf("text of %d bytes: header %+v of a frame of %d bytes, %v", len(text), h, len(f), err)
		}
		if !utf8.Valid(f[frameHeaderSize+1:]) {
			t.Errorf("text of %d bytes is cut within a character", len(text))
		}
	}
}

// produceBodies are bodies of a PRODUCE that are refused, with what the refusal says (docs/wire.md 4.3).
var produceBodies = []struct {
	name  string
	flags uint8
	body  string
	want  string
}{
	{"empty", 0, "", "within the key"},
	{"ends within the timestamp", 1, "\x00\x00\x00", "within the timestamp"},
	{"negative timestamp", 1, "\xff\xff\xff\xff\xff\xff\xff\xff\x00\x01t\x00\x00\x00\x01x", "timestamp"},
	{"unknown flag", 2, "\x00\x01t\x00\x00\x00\x01x", "unknown flags"},
	{"key overruns", 0, "\x05abc", "within the key"},
	{"no topic", 0, "\x01k", "within the topic"},
	{"topic overruns", 0, "\x01k\x09topic", "within the topic"},
	{"no messages", 0, "\x01k\x01t", "no messages"},
	{"ends within a length", 0, "\x01k\x01t\x00\x00", "within the length"},
	{"message overruns", 0, "\x01k\x01t\x00\x00\x00\x05abc", "announces 5 bytes, 3 are left"},
	{"negative length", 0, "\x01k\x01t\xff\xff\xff\xffabc", "announces 4294967295 bytes"},
	{"empty message", 0, "\x01k\x01t\x00\x00\x00\x00", "message 1 is empty"},
	{"empty message after a good one", 0, "\x01k\x01t\x00\x00\x00\x01x\x00\x00\x00\x00", "message 2 is empty"},
	{"record too large", 0, "\x01k\x01t\x00\x00\x00\x14" + strings.Repeat("x", 20), "21 bytes, allowed are 20"},
	{"key of 300 bytes, its length cut to a byte", 0, "\x2c" + strings.Repeat("k", 300) + "\x01t\x00\x00\x00\x01x", "frame"},
}

func TestMalformedProduceBodies(t *testing.T) {
	for _, c := range produceBodies {
		p, err := parseProduce(c.flags, []byte(c.body))
		if err == nil {
			_, err = appendMessages(nil, p.messages, recordbatch.Record{Key: p.key}, 20, "frame")
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, topology.ErrInvalid) && !errors.Is(err, topology.ErrTooLarge) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, s := range []string{hexStartup, hexProduce, hexTimed, hexError} {
		f.Add(unhex(f, s))
	}
	for _, c := range produceBodies {
		f.Add(append(appendFrameHeader(nil, frameHeader{1, c.flags, 9, opProduce, uint32(len(c.body))}), c.body...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < frameHeaderSize {
			return
		}
		h, err := parseFrameHeader(b)
		if again := appendFrameHeader(nil, h); err == nil != bytes.Equal(again, b[:frameHeaderSize]) {
			t.Fatalf("header % x is written again as % x, %v", b[:frameHeaderSize], again, err)
		}
		body := b[frameHeaderSize:]
		p, err := parseProduce(h.flags, body)
		if err != nil {
			return
		}
		records, err := appendMessages(nil, p.messages, recordbatch.Record{Key: p.key}, 1<<20, "frame")
		if err != nil {
			return
		}
		var again []byte
		if p.timed {
			again = append(again, body[:8]...)
		}
		again = append(append(again, byte(len(p.key))), p.key...)
		again = append(append(again, byte(len(p.topic))), p.topic...)
		for _, r := range records {
			again = append(again, byte(len(r.Value)>>24), byte(len(r.Value)>>16), byte(len(r.Value)>>8), byte(len(r.Value)))
			again = append(again, r.Value...)
		}
		if !bytes.Equal(again, body) {
			t.Fatalf("body % x is written again as % x", body, again)
		}
	})
}
