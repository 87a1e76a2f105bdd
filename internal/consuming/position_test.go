package consuming

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/skeinmq/skein/internal/topology"
)

func drawPosition(t *rapid.T) position {
	return position{
		offset:    topology.Offset(rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset")),
		version:   topology.Version(rapid.Uint32().Draw(t, "version")),
		timestamp: rapid.Int64Range(0, math.MaxInt64).Draw(t, "timestamp"),
		reason:    reason(rapid.Uint8().Draw(t, "reason")),
		epoch:     rapid.Uint64().Draw(t, "epoch"),
		member:    rapid.StringN(0, -1, maxMemberName).Draw(t, "member"),
	}
}

func TestPositionsSurviveTheirEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPosition(t)
		b := appendPosition(nil, p)
		got, err := decodePosition(b)
		if err != nil || got != p {
			t.Fatalf("decoded %+v, %v; encoded was %+v", got, err, p)
		}
		for n := range b {
			if _, err := decodePosition(b[:n]); !errors.Is(err, errPosition) {
				t.Fatalf("the first %d of %d bytes decode: %v", n, len(b), err)
			}
		}
	})
}

// The stored form must stay readable: these bytes were written by version 1.
func TestPositionFormatIsPinned(t *testing.T) {
	p := position{offset: 300, version: 7, timestamp: 1700000000000, reason: byCommit, member: "c1", epoch: 4}
	const want = "0103ac020780d095ffbc3104026331"
	if got := hex.EncodeToString(appendPosition(nil, p)); got != want {
		t.Errorf("encoded as %s, want %s", got, want)
	}
}

func TestWrongPositionsAreRefused(t *testing.T) {
	good := appendPosition(nil, position{offset: 5, version: 1, timestamp: 9, reason: byPoll, member: "m"})
	for name, b := range map[string][]byte{
		"empty":               nil,
		"unknown format":      append([]byte{2}, good[1:]...),
		"bytes after the end": append(bytes.Clone(good), 0),
		"long form of 5":      {1, 1, 0x85, 0x00, 1, 9, 0, 0},
		"offset above int64":  {1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 9, 0, 0},
		"member not UTF-8":    {1, 1, 5, 1, 9, 0, 1, 0xff},
		"member too long":     appendPosition(nil, position{member: strings.Repeat("x", 256)}),
	} {
		if p, err := decodePosition(b); !errors.Is(err, errPosition) {
			t.Errorf("%s: decoded as %+v, %v", name, p, err)
		}
	}
}

func FuzzDecodePosition(f *testing.F) {
	f.Add(appendPosition(nil, position{offset: 300, version: 7, timestamp: 1700000000000, reason: byCommit, member: "c1", epoch: 4}))
	f.Add([]byte{1, 2, 0, 0, 0, 0, 0})
	f.Add([]byte{1, 1, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := decodePosition(b)
		if err != nil {
			if !errors.Is(err, errPosition) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if again := appendPosition(nil, p); !bytes.Equal(again, b) {
			t.Fatalf("%x decodes, but encodes as %x", b, again)
		}
	})
}
