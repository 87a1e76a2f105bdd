package data

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/skeinmq/skein/internal/topology"
)

// The layout of journal files. Source: docs/formats.md, "Commit journal".
const (
	journalMagic     = 0x534b4a46 // "SKJF", begins a file
	recordMagic      = 0x534b4a52 // "SKJR", begins a record
	journalVersion   = 1
	journalFileStart = 4096 // records begin here
	recordHeaderSize = 32
	entrySize        = 60
	journalFiles     = 2
	journalCopy      = 2048 // the header of the file stands here once more
	fileHeaderSize   = 16
)

// Kinds of journal records.
const (
	kindChunks  = 1 // the bytes of the chunks follow the entries
	kindExtents = 2 // the bytes are in the segments already, and durable there
)

// journalEntry is the share of one log in a round: chunks that lie back to back in its segment.
type journalEntry struct {
	log     topology.LogID
	segment topology.Offset // base of the segment
	pos     int64           // where the chunks begin in it
	first   topology.Offset // of the first chunk
	next    topology.Offset // behind the last chunk
	version topology.Version
	size    int32 // bytes of the chunks
}

func appendJournalEntry(b []byte, e journalEntry) []byte {
	b = append(b, e.log.Topic[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(e.log.Partition))
	b = binary.BigEndian.AppendUint64(b, uint64(e.segment))
	b = binary.BigEndian.AppendUint64(b, uint64(e.pos))
	b = binary.BigEndian.AppendUint64(b, uint64(e.first))
	b = binary.BigEndian.AppendUint64(b, uint64(e.next))
	b = binary.BigEndian.AppendUint32(b, uint32(e.version))
	return binary.BigEndian.AppendUint32(b, uint32(e.size))
}

// decodeJournalEntry reads the 60 bytes at the front of b and says whether they can be an entry.
func decodeJournalEntry(b []byte) (journalEntry, bool) {
	_ = b[entrySize-1]
	e := journalEntry{
		segment: topology.Offset(binary.BigEndian.Uint64(b[20:])),
		pos:     int64(binary.BigEndian.Uint64(b[28:])),
		first:   topology.Offset(binary.BigEndian.Uint64(b[36:])),
		next:    topology.Offset(binary.BigEndian.Uint64(b[44:])),
		version: topology.Version(binary.BigEndian.Uint32(b[52:])),
		size:    int32(binary.BigEndian.Uint32(b[56:])),
	}
	copy(e.log.Topic[:], b)
	e.log.Partition = topology.Partition(binary.BigEndian.Uint32(b[16:]))
	return e, e.segment >= 0 && e.pos >= 0 && e.first >= e.segment && e.next > e.first && e.size > 0
}

// recordHeader begins a journal record.
//
//	magic:4 | kind:1 | zero:3 | length:4 | entries:4 | lsn:8 | body crc32c:4 | header crc32c:4
//
// Integers are big-endian. Length counts the bytes after the header; the last checksum covers the 28 bytes before it and
// the salt of the file, which nobody outside knows: so no bytes that a client sends can pass for a record.
type recordHeader struct {
	kind    byte
	length  int
	entries int
	lsn     uint64
	crc     uint32
}

func (h recordHeader) put(b []byte, salt uint32) {
	_ = b[recordHeaderSize-1]
	binary.BigEndian.PutUint32(b, recordMagic)
	binary.BigEndian.PutUint32(b[4:], uint32(h.kind)<<24)
	binary.BigEndian.PutUint32(b[8:], uint32(h.length))
	binary.BigEndian.PutUint32(b[12:], uint32(h.entries))
	binary.BigEndian.PutUint64(b[16:], h.lsn)
	binary.BigEndian.PutUint32(b[24:], h.crc)
	binary.BigEndian.PutUint32(b[28:], crc32.Update(salt, castagnoli, b[:28]))
}

// decodeRecordHeader reads the 32 bytes at the front of b and says whether they are the header of a record in a file of
// that salt.
func decodeRecordHeader(b []byte, salt uint32) (recordHeader, bool) {
	_ = b[recordHeaderSize-1]
	if binary.BigEndian.Uint32(b) != recordMagic || crc32.Update(salt, castagnoli, b[:28]) != binary.BigEndian.Uint32(b[28:]) {
		return recordHeader{}, false
	}
	h := recordHeader{
		kind:    b[4],
		length:  int(binary.BigEndian.Uint32(b[8:])),
		entries: int(binary.BigEndian.Uint32(b[12:])),
		lsn:     binary.BigEndian.Uint64(b[16:]),
		crc:     binary.BigEndian.Uint32(b[24:]),
	}
	return h, (h.kind == kindChunks || h.kind == kindExtents) && h.entries > 0 && h.entries <= h.length/entrySize
}

// journal is the commit journal: a few preallocated files that are filled in turn. One goroutine writes.
type journal struct {
	fs       FS
	dir      string
	size     int64
	files    []*journalFile
	carried  []*journalFile // what failed logs have in records that are released; see carry.go
	active   int
	eager    bool          // go on to the next file as soon as that is free
	lsn      uint64        // of the last record written, or tried to be
	released atomic.Uint64 // records up to here are in flushed segments and in the notes
	meta     []byte        // scratch
	bufs     [][]byte      // scratch
}

// journalFile is one file. last is the lsn of its last record, 0 when it holds none that counts.
type journalFile struct {
	File
	name string
	salt uint32
	size int64
	pos  int64 // where the next record goes
	last uint64
	lost bool // its header cannot be read, nor then its records: until recovery is over it stays as it is

	raw     bool // made in this run: its blocks have room on disk, but were perhaps never written
	filling bool // they are being written: no record may go there
}

// maxRecord is the largest record that goes into the journal as a whole; a larger round is flushed in its segments.
func (j *journal) maxRecord() int64 { return (j.smallest() - journalFileStart) / 2 }

// smallest is the size of the smallest file.
func (j *journal) smallest() int64 {
	size := j.files[0].size
	for _, f := range j.files {
		size = min(size, f.size)
	}
	return size
}

// left is the largest record that goes into the active file without another look.
func (j *journal) left() int64 {
	f := j.files[j.active]
	return min(j.maxRecord(), f.size-f.pos)
}

// room makes sure that a record of n bytes fits into the active file, going on to the next one where it must. It answers
// false when that one holds records which are not released: a checkpoint must come first.
func (j *journal) room(n int64) bool {
	f := j.files[j.active]
	fits := f.pos+n <= f.size
	if fits && !j.eager {
		return true
	}
	next := (j.active + 1) % len(j.files)
	if f := j.files[next]; f.last > j.released.Load() || f.filling {
		return fits
	}
	j.active, j.eager = next, false
	j.files[next].pos = journalFileStart
	j.files[next].last = 0
	return true
}

// begin starts a record; the entries are appended to meta and the bytes of their chunks to bufs.
func (j *journal) begin() {
	j.meta = append(j.meta[:0], make([]byte, recordHeaderSize)...)
	j.bufs = append(j.bufs[:0], nil)
}

// commit writes the record and makes it durable. After an error it is not known whether it is: the journal must be made
// anew before it is used again.
func (j *journal) commit(kind byte) error {
	j.lsn++
	err := j.files[j.active].write(kind, j.lsn, j.meta, j.bufs)
	clear(j.bufs)
	return err
}

// write writes a record and makes it durable. meta is room for the header, then the entries; bufs are the chunks, behind one
// that is left free for meta.
func (f *journalFile) write(kind byte, lsn uint64, meta []byte, bufs [][]byte) error {
	h := recordHeader{kind: kind, entries: (len(meta) - recordHeaderSize) / entrySize, lsn: lsn}
	bufs[0] = meta
	h.crc = crc32.Checksum(meta[recordHeaderSize:], castagnoli)
	h.length = len(meta) - recordHeaderSize
	for _, b := range bufs[1:] {
		h.crc = crc32.Update(h.crc, castagnoli, b)
		h.length += len(b)
	}
	h.put(meta, f.salt)
	if err := f.WriteSync(bufs, f.pos); err != nil {
		return fmt.Errorf("journal record %d: %w", lsn, err)
	}
	f.pos += recordHeaderSize + int64(h.length)
	f.last = lsn
	return nil
}

// openJournal opens the files of the journal, or makes them. Existing files keep their size where a new one does not fit
// on the disk.
func openJournal(fsys FS, dir string, size int64) (*journal, error) {
	j := &journal{fs: fsys, dir: dir, size: size}
	for i := range journalFiles {
		f, err := j.open(j.name(i), size, false)
		if err != nil {
			return nil, errors.Join(err, j.close())
		}
		j.files = append(j.files, f)
	}
	err := j.findCarried()
	if err == nil {
		err = fsys.SyncDir(dir)
	}
	if err != nil {
		return nil, errors.Join(err, j.close())
	}
	return j, nil
}

func (j *journal) name(i int) string { return filepath.Join(j.dir, strconv.Itoa(i)+".journal") }

// open opens one file, or makes it of size bytes, or with anew replaces it.
func (j *journal) open(name string, size int64, anew bool) (*journalFile, error) {
	if anew {
		if err := j.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	file, err := j.fs.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	f := &journalFile{File: file, name: name, pos: journalFileStart}
	if err := j.prepare(f, size); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open journal %s: %w", name, err)
	}
	return f, nil
}

// prepare checks the header of a file, or writes it. Only a file that was never finished has none at all; where there is
// something that cannot be read, the file is lost.
func (j *journal) prepare(f *journalFile, size int64) error {
	have, err := f.Size()
	if err != nil {
		return err
	}
	var start [journalCopy + fileHeaderSize]byte
	if have >= journalFileStart {
		if _, err := f.ReadAt(start[:], 0); err != nil {
			return err
		}
	}
	blank := true
	for _, head := range [][]byte{start[:fileHeaderSize], start[journalCopy:]} {
		blank = blank && [fileHeaderSize]byte(head) == [fileHeaderSize]byte{}
		if binary.BigEndian.Uint32(head) != journalMagic || binary.BigEndian.Uint32(head[12:]) != crc32.Checksum(head[:12], castagnoli) {
			continue
		}
		if v := binary.BigEndian.Uint32(head[4:]); v != journalVersion {
			return fmt.Errorf("it has version %d, this program knows version %d", v, journalVersion)
		}
		f.size, f.salt = have, binary.BigEndian.Uint32(head[8:])
		if have < size && f.Allocate(size) == nil {
			f.size = size
		}
		// Where the flush of a new file failed, the header can be seen and yet not be durable (F21): it is written again.
		return f.writeHeader([fileHeaderSize]byte(head))
	}
	f.size = have
	if f.lost = !blank; f.lost {
		return nil
	}
	return f.format(size)
}

// format makes a file begin anew: what it holds is not read any more.
func (f *journalFile) format(size int64) error {
	if err := f.Allocate(size); err != nil {
		return err
	}
	var head [fileHeaderSize]byte
	binary.BigEndian.PutUint32(head[:], journalMagic)
	binary.BigEndian.PutUint32(head[4:], journalVersion)
	if _, err := rand.Read(head[8:12]); err != nil {
		return err
	}
	binary.BigEndian.PutUint32(head[12:], crc32.Checksum(head[:12], castagnoli))
	f.size, f.salt = max(size, f.size), binary.BigEndian.Uint32(head[8:])
	f.lost, f.raw = false, true
	return f.writeHeader(head)
}

// writeHeader writes the header twice, and makes it durable: without it no record of the file could be read.
func (f *journalFile) writeHeader(head [fileHeaderSize]byte) error {
	var start [journalCopy + fileHeaderSize]byte
	copy(start[:], head[:])
	copy(start[journalCopy:], head[:])
	return f.WriteSync([][]byte{start[:]}, 0)
}

// lost says whether the header of a file cannot be read; formatLost makes such files usable, once nothing in them is missed.
func (j *journal) lost() bool {
	return slices.ContainsFunc(slices.Concat(j.files, j.carried), func(f *journalFile) bool { return f.lost })
}

func (j *journal) formatLost() error {
	for _, f := range j.files {
		if !f.lost {
			continue
		}
		if err := f.format(j.size); err != nil {
			return fmt.Errorf("open journal %s: %w", f.name, err)
		}
	}
	return nil
}

// renew replaces all files by new ones, after one has failed: what the old ones hold is released. The lsn goes on.
func (j *journal) renew() error {
	for i, old := range j.files {
		f, err := j.open(old.name, j.size, true)
		if err != nil {
			return err
		}
		_ = old.Close()
		j.files[i] = f
	}
	j.active, j.eager = 0, false
	return j.fs.SyncDir(j.dir)
}

func (j *journal) close() error {
	var errs []error
	for _, f := range append(j.files, j.carried...) {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
