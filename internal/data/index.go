package data

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"sort"
	"sync"

	"github.com/skeinmq/skein/internal/topology"
)

// The layout of index files. Source: docs/formats.md, "Index".
const (
	indexMagic      = 0x534b4958 // "SKIX"
	indexVersion    = 1
	indexHeaderSize = 16
	indexEntrySize  = 28
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// indexEntry is the place of a chunk within its segment.
type indexEntry struct {
	offset topology.Offset // of the first record of the chunk
	pos    int64           // where the chunk begins in the segment
	time   int64           // highest append time of this chunk and those before it in the segment, ms
}

// index is the sparse index of one open segment. Its first entry stands for a chunk at position 0 or later; entries
// ascend in offset, position and time.
//
// Reading it, making it again and saving it take their time: that is done under build, while mu, which rounds take too, is
// held for moments only. Entries are only ever added, so a slice taken under mu stays valid.
type index struct {
	build sync.Mutex // before mu

	mu      sync.Mutex
	loaded  bool
	entries []indexEntry // not loaded: of the chunks appended meanwhile
	saved   int          // entries that the file holds; under build
}

// get returns the entries, and whether the index is loaded.
func (x *index) get() ([]indexEntry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.entries, x.loaded
}

// set takes over what was read or made again of the first size bytes of the segment. What was appended behind them meanwhile
// is kept.
func (x *index) set(entries []indexEntry, size int64) []indexEntry {
	x.mu.Lock()
	defer x.mu.Unlock()
	k := sort.Search(len(x.entries), func(i int) bool { return x.entries[i].pos >= size })
	last := lastOf(entries)
	for _, e := range x.entries[k:] {
		e.time = max(e.time, last.time)
		entries = append(entries, e)
	}
	x.entries, x.loaded = entries, true
	return entries
}

// appendIndexEntry appends the 28 bytes of e:
//
//	offset:8 | position:8 | time:8 | crc32c:4
//
// Integers are big-endian, the checksum covers the 24 bytes before it.
func appendIndexEntry(b []byte, e indexEntry) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(b, uint64(e.offset))
	b = binary.BigEndian.AppendUint64(b, uint64(e.pos))
	b = binary.BigEndian.AppendUint64(b, uint64(e.time))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

var errIndex = errors.New("damaged index")

// decodeIndexEntry reads the entry at the front of b, which has at least 28 bytes. errIndex if its checksum fails.
func decodeIndexEntry(b []byte) (indexEntry, error) {
	_ = b[indexEntrySize-1]
	if crc32.Checksum(b[:24], castagnoli) != binary.BigEndian.Uint32(b[24:]) {
		return indexEntry{}, errIndex
	}
	return indexEntry{
		offset: topology.Offset(binary.BigEndian.Uint64(b)),
		pos:    int64(binary.BigEndian.Uint64(b[8:])),
		time:   int64(binary.BigEndian.Uint64(b[16:])),
	}, nil
}

// appendIndexHeader appends the header of the index file of the segment that begins at base.
func appendIndexHeader(b []byte, base topology.Offset) []byte {
	b = binary.BigEndian.AppendUint32(b, indexMagic)
	b = binary.BigEndian.AppendUint32(b, indexVersion)
	return binary.BigEndian.AppendUint64(b, uint64(base))
}

// decodeIndex reads an index file of the segment that begins at base, has size bytes and ends at offset until. It returns
// the entries up to the first that is damaged or does not fit, and how many bytes of b they take with the header (0:
// write it from the start).
func decodeIndex(b []byte, base topology.Offset, size int64, until topology.Offset) ([]indexEntry, int) {
	if len(b) < indexHeaderSize || binary.BigEndian.Uint32(b) != indexMagic || binary.BigEndian.Uint32(b[4:]) != indexVersion ||
		topology.Offset(binary.BigEndian.Uint64(b[8:])) != base {
		return nil, 0
	}
	used := indexHeaderSize
	var entries []indexEntry
	last := indexEntry{offset: base - 1, pos: -1, time: noTime}
	for len(b)-used >= indexEntrySize {
		e, err := decodeIndexEntry(b[used:])
		if err != nil || e.offset <= last.offset || e.pos <= last.pos || e.time < last.time || e.pos >= size || e.offset >= until {
			break
		}
		entries = append(entries, e)
		last = e
		used += indexEntrySize
	}
	return entries, used
}

// lastOf is the last entry; position 0 when there is none.
func lastOf(entries []indexEntry) indexEntry {
	if n := len(entries); n > 0 {
		return entries[n-1]
	}
	return indexEntry{time: noTime}
}

// addEntry adds a chunk if it is far enough from the last entry.
func addEntry(entries []indexEntry, e indexEntry, interval int64) []indexEntry {
	last := lastOf(entries)
	e.time = max(e.time, last.time)
	if e.pos-last.pos < interval {
		return entries
	}
	return append(entries, e)
}

// add notes a chunk if it is far enough from the last entry. The caller holds mu.
func (x *index) add(e indexEntry, interval int64) { x.entries = addEntry(x.entries, e, interval) }

// byOffset is the index of the last entry at or before offset, -1 if none.
func byOffset(entries []indexEntry, offset topology.Offset) int {
	return sort.Search(len(entries), func(i int) bool { return entries[i].offset > offset }) - 1
}

// byTime is the index of the last entry whose time is before t, -1 if none.
func byTime(entries []indexEntry, t int64) int {
	return sort.Search(len(entries), func(i int) bool { return entries[i].time >= t }) - 1
}

// readIndex reads the index file of a segment as far as it is good, and cuts off the rest: entries for positions that a
// power cut took from the segment must not become true again when those are used for other chunks.
func readIndex(fsys FS, name string, base topology.Offset, size int64, until topology.Offset) ([]indexEntry, error) {
	f, err := fsys.Open(name, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := readAll(f)
	if err != nil {
		return nil, err
	}
	entries, used := decodeIndex(b, base, size, until)
	if used < len(b) {
		_ = f.Truncate(int64(used)) // a hint only: what is read through the index is verified
	}
	return entries, nil
}

// readAll reads a whole file.
func readAll(f File) ([]byte, error) {
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	got, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:got], nil
}

// save writes the entries that the file does not hold yet, as far as they name chunks in the first size bytes, which are
// flushed: an entry must never outlive its chunk, whose place may be used again. Index files are not flushed: what a power
// cut takes is found missing by the checksums and made again from the segment. The caller holds build.
func (x *index) save(fsys FS, name string, base topology.Offset, size int64) error {
	entries, loaded := x.get()
	upTo := sort.Search(len(entries), func(i int) bool { return entries[i].pos >= size })
	if !loaded || x.saved >= upTo {
		return nil
	}
	f, err := fsys.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	defer f.Close()
	at := int64(indexHeaderSize + x.saved*indexEntrySize)
	var b []byte
	if x.saved == 0 {
		at, b = 0, appendIndexHeader(nil, base)
	}
	for _, e := range entries[x.saved:upTo] {
		b = appendIndexEntry(b, e)
	}
	if err := f.WriteV([][]byte{b}, at); err != nil {
		return err
	}
	if err := f.Truncate(at + int64(len(b))); err != nil {
		return err
	}
	x.saved = upTo
	return nil
}
