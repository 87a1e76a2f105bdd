package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.NewReplacer(" ", "", "|", "").Replace(s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The worked frames of docs/wire.md 4.1.
func TestFramesOfTheWirePage(t *testing.T) {
	if got, want := appendFrameHeader(nil, 0, opStartup, 0), unhex(t, "01 00 00 00 01 00 00 00 00 cc 12 29 5d"); !bytes.Equal(got, want) {
		t.Errorf("startup is % x, want % x", got, want)
	}
	produce := appendFrameHeader(nil, 7, opProduce, 0)
	produce = appendProduceHead(produce, "k1", "t")
	produce = append(produce, 0, 0, 0, 7)
	produce = append(produce, `{"a":1}`...)
	setFrameBody(produce, 0)
	if want := unhex(t, "01 00 00 07 04 00 00 00 10 04 40 86 f1 02 6b 31 | 01 74 | 00 00 00 07 7b 22 61 22 3a 31 7d"); !bytes.Equal(produce, want) {
		t.Errorf("produce is % x, want % x", produce, want)
	}
	for name, c := range map[string]struct {
		frame string
		want  response
	}{
		"ready":    {"01 00 00 00 02 00 00 00 00 8b b2 53 8d", response{op: opReady}},
		"response": {"01 00 00 07 05 00 00 00 00 24 97 bf 25", response{stream: 7, op: opProduceResponse}},
		"error":    {"01 00 00 07 03 00 00 00 0a 4b 02 a3 9b | 01 6e 6f 20 6c 65 61 64 65 72", response{stream: 7, op: opError, code: 1, text: "no leader"}},
	} {
		var buf [frameHeader + maxErrorBody]byte
		if got, err := readResponse(bytes.NewReader(unhex(t, c.frame)), &buf); err != nil || got != c.want {
			t.Errorf("%s is read as %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

func TestWrongFramesAreRefused(t *testing.T) {
	long := appendFrameHeader(nil, 1, opError, maxErrorBody+1)
	for name, frame := range map[string][]byte{
		"checksum":             unhex(t, "01 00 00 00 02 00 00 00 00 8b b2 53 8e"),
		"unknown op":           appendFrameHeader(nil, 1, 9, 0),
		"response with a body": append(appendFrameHeader(nil, 1, opProduceResponse, 1), 0),
		"error without a code": appendFrameHeader(nil, 1, opError, 0),
		"error too long":       append(long, make([]byte, maxErrorBody+1)...),
	} {
		var buf [frameHeader + maxErrorBody]byte
		if _, err := readResponse(bytes.NewReader(frame), &buf); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v, want a protocol error", name, err)
		}
	}
}

func FuzzReadResponse(f *testing.F) {
	f.Add(unhex(f, "01 00 00 07 03 00 00 00 0a 4b 02 a3 9b 01 6e 6f 20 6c 65 61 64 65 72"))
	f.Add(unhex(f, "01 00 00 00 02 00 00 00 00 8b b2 53 8d"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var buf [frameHeader + maxErrorBody]byte
		r := bytes.NewReader(b)
		for {
			if _, err := readResponse(r, &buf); err != nil {
				return
			}
		}
	})
}

// The annotated answer of docs/wire.md 5.2.1, with its topic written out.
func samplePoll(t testing.TB) []byte {
	body := unhex(t, "00 01 80 00 00 00 00 00 00 00 00 00 00 00 01 16")
	body = append(body, "bad1234567890123456789"...)
	return append(body, unhex(t, "00 00 00 00 00 00 00 00 00 00 00 23 28 b5 2f fd 04 00 b1 00 00 00 06 61 74 1d 78 b2 7d 00 00 00 0a 6e 6f 74 20 6a 73 6f 6e 20 22 49 c3 dd 0f")...)
}

func TestPollOfTheWirePage(t *testing.T) {
	d, err := newPollDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	var got []string
	err = d.decode(samplePoll(t), func(v delivery) {
		for i, value := range v.values {
			got = append(got, v.partition, string(value))
			if v.first+int64(i) != 0 {
				t.Errorf("offset %d, want 0", v.first+int64(i))
			}
		}
	})
	if err != nil || strings.Join(got, "|") != `bad1234567890123456789 token -9223372036854775808|not json "` {
		t.Errorf("decoded %q, %v", got, err)
	}
}

func TestCutPollsAreRefused(t *testing.T) {
	d, err := newPollDecoder()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	whole := samplePoll(t)
	for n := 1; n < len(whole); n++ {
		if err := d.decode(whole[:n], func(delivery) {}); !errors.Is(err, errPoll) {
			t.Fatalf("the first %d bytes: %v, want an error", n, err)
		}
	}
	if err := d.decode(append(whole, 0), func(delivery) {}); !errors.Is(err, errPoll) {
		t.Errorf("a byte too many: %v, want an error", err)
	}
}

func FuzzDecodePoll(f *testing.F) {
	f.Add(samplePoll(f))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	defer enc.Close()
	empty := enc.EncodeAll(nil, nil)
	b := append([]byte{0, 1}, make([]byte, 13)...)
	b = append(b, 1, 't')
	b = append(b, make([]byte, 8)...)
	f.Add(append(binary.BigEndian.AppendUint32(b, uint32(len(empty))), empty...))
	d, err := newPollDecoder()
	if err != nil {
		f.Fatal(err)
	}
	defer d.close()
	f.Fuzz(func(t *testing.T, b []byte) {
		err := d.decode(b, func(v delivery) {
			for _, value := range v.values {
				_ = value
			}
		})
		if err != nil && !errors.Is(err, errPoll) || errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, errPoll) {
			t.Errorf("error %v does not say that the answer is wrong", err)
		}
	})
}
