package data

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files of testdata again")

func drawNote(t *rapid.T) note {
	n := note{
		lsn: rapid.Uint64().Draw(t, "lsn"), oldest: rapid.Int64().Draw(t, "oldest"), newest: rapid.Int64().Draw(t, "newest"),
		bytes: rapid.Int64().Draw(t, "bytes"), segments: rapid.Int32().Draw(t, "segments"),
		roll: rapid.Bool().Draw(t, "roll"), cutting: rapid.Bool().Draw(t, "cutting"),
		last: tail{
			base: topology.Offset(rapid.Int64().Draw(t, "base")), size: rapid.Int64Min(0).Draw(t, "size"),
			first: rapid.Int64().Draw(t, "first"), max: rapid.Int64().Draw(t, "max"), ok: rapid.Bool().Draw(t, "ok"),
		},
	}
	n.start = topology.Offset(rapid.Int64Min(0).Draw(t, "start"))
	n.end = topology.Offset(rapid.Int64Min(int64(n.start)).Draw(t, "end"))
	n.hw = topology.Offset(rapid.Int64().Draw(t, "hw"))
	n.stretches.list = make([]stretch, 0)
	for range rapid.IntRange(0, 4).Draw(t, "stretches") {
		n.stretches.list = append(n.stretches.list, stretch{topology.Version(rapid.Uint32().Draw(t, "v")), topology.Offset(rapid.Int64Min(0).Draw(t, "from"))})
	}
	return n
}

func TestNoteRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := drawNote(t)
		b := n.encode()
		got, err := decodeNote(b)
		if err != nil || !reflect.DeepEqual(got, n) {
			t.Fatalf("%+v\n%+v, %v", n, got, err)
		}
		if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); cut < len(b) {
			if _, err := decodeNote(b[:cut]); err == nil {
				t.Fatalf("cut to %d of %d bytes: no error", cut, len(b))
			}
		}
	})
}

func TestJournalEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := journalEntry{
			log:     topology.LogID{Topic: uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "topic")), Partition: topology.Partition(rapid.Int32().Draw(t, "partition"))},
			segment: topology.Offset(rapid.Int64Range(0, 1<<40).Draw(t, "segment")), pos: rapid.Int64Min(0).Draw(t, "pos"),
			version: topology.Version(rapid.Uint32().Draw(t, "version")), size: rapid.Int32Min(1).Draw(t, "size"),
		}
		e.first = e.segment + topology.Offset(rapid.Int64Range(0, 1<<40).Draw(t, "first"))
		e.next = e.first + topology.Offset(rapid.Int64Range(1, 1<<40).Draw(t, "next"))
		b := appendJournalEntry(nil, e)
		if got, ok := decodeJournalEntry(b); !ok || got != e || len(b) != entrySize {
			t.Fatalf("%+v\n%+v", e, got)
		}
	})
}

// TestGolden pins the layouts of docs/formats.md.
func TestGolden(t *testing.T) {
	id := topology.LogID{Topic: uuid.MustParse("00112233-4455-6677-8899-aabbccddeeff"), Partition: 7}
	entry := appendJournalEntry(nil, journalEntry{log: id, segment: 1000, pos: 4096, first: 1234, next: 1240, version: 3, size: 777})
	head := make([]byte, recordHeaderSize)
	recordHeader{kind: kindChunks, length: 777 + entrySize, entries: 1, lsn: 42, crc: 0xdeadbeef}.put(head, 0x01020304)
	golden := map[string][]byte{
		"note": note{
			lsn: 42, start: 10, end: 1240, hw: 1240, oldest: 1_700_000_000_000, newest: 1_700_000_001_000, bytes: 99999, segments: 2,
			last: tail{base: 1000, size: 4873, first: 1_700_000_000_500, max: 1_700_000_001_000, ok: true}, roll: true, stretches: stretches{[]stretch{{1, 0}, {3, 1200}}},
		}.encode(),
		"run":            runMark{lsn: 42, skip: 41, flush: FlushInterval, clean: true, boot: "3f0a"}.encode(),
		"index":          appendIndexEntry(appendIndexHeader(nil, 1000), indexEntry{offset: 1234, pos: 4096, time: 1_700_000_000_500}),
		"journal-record": append(head, entry...),
		"key-log":        logKey(keyLog, id),
	}
	for name, b := range golden {
		file := filepath.Join("testdata", name+".hex")
		text := hex.Dump(b)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != text {
			t.Errorf("%s differs from %s:\n%s", name, file, text)
		}
	}
	if m, err := decodeRunMark(golden["run"]); err != nil || m != (runMark{lsn: 42, skip: 41, flush: FlushInterval, clean: true, boot: "3f0a"}) {
		t.Errorf("run mark %+v, %v", m, err)
	}
	if h, ok := decodeRecordHeader(head, 0x01020304); !ok || h.lsn != 42 || h.length != 837 {
		t.Errorf("record header %+v", h)
	}
	if _, ok := decodeRecordHeader(head, 0); ok {
		t.Error("a record header passes without the salt of its file")
	}
	if got, ok := parseLogKey(keyLog, golden["key-log"]); !ok || got != id {
		t.Errorf("key gives %v", got)
	}
}

func FuzzDecodeNote(f *testing.F) {
	f.Add(note{}.encode())
	f.Add(note{lsn: 1 << 60, end: 1 << 40, stretches: stretches{[]stretch{{1, 0}, {9, 77}}}}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeNote(b)
		if err != nil {
			return
		}
		again, err := decodeNote(n.encode())
		if err != nil || !reflect.DeepEqual(n, again) {
			t.Fatalf("%+v\n%+v, %v", n, again, err)
		}
	})
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add(appendIndexEntry(appendIndexEntry(appendIndexHeader(nil, 5), indexEntry{7, 100, 1}), indexEntry{9, 300, 2}), int64(5), int64(1000))
	f.Add([]byte("SKIX"), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, base, size int64) {
		entries, used := decodeIndex(b, topology.Offset(base), size, 1<<62)
		if used > len(b) {
			t.Fatalf("used %d of %d bytes", used, len(b))
		}
		if used == 0 {
			return
		}
		again := appendIndexHeader(nil, topology.Offset(base))
		for i, e := range entries {
			if e.pos >= size || i > 0 && (e.pos <= entries[i-1].pos || e.offset <= entries[i-1].offset) {
				t.Fatalf("entries %+v", entries)
			}
			again = appendIndexEntry(again, e)
		}
		if !bytes.Equal(again, b[:used]) {
			t.Fatal("re-encoding gives other bytes")
		}
	})
}

// FuzzSurvey reads anything as a journal file: no panic, no endless loop, no record that is not whole.
func FuzzSurvey(f *testing.F) {
	record := func(lsn uint64, body string) []byte {
		b := make([]byte, recordHeaderSize)
		recordHeader{kind: kindChunks, length: len(body), entries: 1, lsn: lsn}.put(b, 5)
		return append(b, body...)
	}
	body := strings.Repeat("x", entrySize+10)
	f.Add(append(record(1, body), record(2, body)...))
	f.Add(append(record(7, body)[:50], record(8, body)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		file := &journalFile{File: memFile{byteReader(append(make([]byte, journalFileStart), b...))}, salt: 5, size: int64(journalFileStart + len(b))}
		list, err := surveyFile(file)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, r := range list {
			if r.pos <= last && last > 0 || r.pos+recordHeaderSize+int64(r.length) > file.size {
				t.Fatalf("record %+v", r)
			}
			last = r.pos
			_, _, _, _ = r.read(nil)
		}
	})
}

// memFile is a File that can only be read.
type memFile struct{ byteReader }

func (memFile) Close() error                    { return nil }
func (memFile) WriteV([][]byte, int64) error    { return errClosed }
func (memFile) WriteSync([][]byte, int64) error { return errClosed }
func (memFile) Sync() error                     { return nil }
func (memFile) Truncate(int64) error            { return errClosed }
func (memFile) Allocate(int64) error            { return errClosed }
func (f memFile) Size() (int64, error)          { return int64(len(f.byteReader)), nil }
func (memFile) DontNeed(int64, int64)           {}

// FuzzWalk reads anything as a segment: no panic, no endless loop, and what is served is in its place.
func FuzzWalk(f *testing.F) {
	f.Add([]byte{})
	var chunks []byte
	for i := range 3 {
		var builder recordbatch.Builder
		builder.Reset(int64(i))
		builder.Append(&recordbatch.Record{Value: []byte("value")})
		at := len(chunks)
		chunks = builder.Seal(chunks)
		recordbatch.SetPosition(chunks[at:], topology.Offset(i), 1)
	}
	f.Add(chunks)
	f.Add(append(slices.Clone(chunks[:30]), chunks...))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := walk{file: byteReader(b), size: int64(len(b)), until: 1 << 40, loose: true, step: 64}
		for range len(b) + 2 {
			h, _, err := w.peek(true)
			if err == nil {
				if h.BaseOffset != w.next {
					t.Fatalf("chunk %+v, want offset %d", h, w.next)
				}
				w.skip(h)
				continue
			}
			if w.pos >= w.size {
				return
			}
			if _, err := w.resync(nil); err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("does not come to an end")
	})
}
