package data

import (
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// noTime marks an append time that is not known.
const noTime = int64(-1 << 62)

// log is one log. An idle one is this struct and nothing else: its segments are listed at the first touch.
//
// What is under mu is what readers see: it changes only when a round is committed, so end is the high watermark too.
// Writers (commit, checkpoint, cut, repair) hold Store.commitMu as well; the fields below the blank line are theirs alone.
type log struct {
	id topology.LogID

	mu        sync.Mutex
	start     topology.Offset // start <= end
	end       topology.Offset
	stretches stretches
	oldest    int64         // append time of the first chunk kept, ms; noTime when not known
	newest    int64         // append time of the last chunk, ms
	bytes     int64         // of all segments; see grow
	total     *atomic.Int64 // bytes of all logs
	segCount  int32
	last      tail // of the last segment
	loaded    bool
	segs      []*segment // by base; complete once loaded
	cursors   [4]cursor  // places that reads are likely to go on from
	turn      uint8      // next cursor to be replaced
	damaged   []damage   // by from, disjoint
	ioErrors  uint8      // reads that the disk has failed
	cuts      uint32     // how often the log was cut: what a read saw before a cut says nothing of what is there now
	suspect   bool       // unflushed bytes cannot be trusted: they are written again before anything is called damaged

	slot     int    // 1 + index of the part of the round that is being committed; 0 none
	lsn      uint64 // last journal record that names the log
	dirty    bool   // in Store.dirty
	roll     bool   // the next append begins a segment: the last one is shorter than it should be
	newDir   bool   // the directory entry of the log is not durable yet
	cutting  bool   // the files may be longer than noted: a Truncate was under way when the last run ended
	failed   error  // why appends are refused until repair has succeeded
	attempts int    // to repair it
	strays   bool   // there may be files that are no segment of it
	gone     bool   // dropped: nobody may write to it any more
}

// tail is the last segment of a log as of its last committed chunk.
type tail struct {
	base  topology.Offset
	size  int64
	first int64 // append time of its first chunk, ms
	max   int64 // no chunk of it was appended later, ms; noTime when not known
	ok    bool  // false: the log has no segment
}

// segment is one file of chunks. size, the times and synced are under log.mu (the last is read by writers without it);
// fresh belongs to writers.
type segment struct {
	base   topology.Offset
	size   int64 // bytes that hold committed chunks
	first  int64 // append time of the first chunk, ms; noTime when not known
	max    int64 // no chunk was appended later, ms; noTime when not known
	synced int64 // bytes that are durable in the file
	fresh  bool  // the directory entry is not durable yet
	handle *handle
}

func (seg *segment) dirty() bool { return seg.fresh || seg.synced < seg.size }

// cursor is the place of a chunk.
type cursor struct {
	offset topology.Offset
	base   topology.Offset // of its segment
	pos    int64
}

// stretch is the part of a log that was written at one version (docs/design.md, section 1).
type stretch struct {
	version topology.Version
	from    topology.Offset
}

// stretches is the table of versions by offset, ascending in both. It is a value: add makes a new one where it must, so a
// copy taken under log.mu stays valid.
type stretches struct{ list []stretch }

// add notes that the log is at version v from offset from on.
func (s *stretches) add(v topology.Version, from topology.Offset) {
	if n := len(s.list); n > 0 && s.list[n-1].version >= v {
		return
	}
	s.list = append(s.list[:len(s.list):len(s.list)], stretch{v, from})
}

// at is the version of the record at offset.
func (s stretches) at(offset topology.Offset) topology.Version {
	i := sort.Search(len(s.list), func(i int) bool { return s.list[i].from > offset })
	if i == 0 {
		return 0
	}
	return s.list[i-1].version
}

// last is the highest version.
func (s stretches) last() topology.Version {
	if len(s.list) == 0 {
		return 0
	}
	return s.list[len(s.list)-1].version
}

// cut drops what begins at end or later; trim drops what ends at start or before.
func (s *stretches) cut(end topology.Offset) {
	n := len(s.list)
	for n > 0 && s.list[n-1].from >= end {
		n--
	}
	s.list = s.list[:n:n]
}

func (s *stretches) trim(start topology.Offset) {
	for len(s.list) > 1 && s.list[1].from <= start {
		s.list = s.list[1:]
	}
}

// grow counts n more bytes of segments. The caller holds mu.
func (l *log) grow(n int64) {
	l.bytes += n
	l.total.Add(n)
}

// segmentFor is the index of the segment that offset falls into: the last one that begins at or before it, -1 if none.
// The caller holds mu.
func (l *log) segmentFor(offset topology.Offset) int {
	return sort.Search(len(l.segs), func(i int) bool { return l.segs[i].base > offset }) - 1
}

// untilOf is the offset at which segment i must end. The caller holds mu.
func (l *log) untilOf(i int) topology.Offset {
	if i+1 < len(l.segs) {
		return l.segs[i+1].base
	}
	return l.end
}

// seek returns the place of the chunk that begins at offset, if an earlier read ended there. The caller holds mu.
func (l *log) seek(base, offset topology.Offset) (cursor, bool) {
	for _, c := range l.cursors {
		if c.offset == offset && c.base == base && c.pos > 0 {
			return c, true
		}
	}
	return cursor{}, false
}

// remember keeps the place of a chunk for the read that follows. The caller holds mu.
func (l *log) remember(used, next cursor) {
	for i := range l.cursors {
		if l.cursors[i] == used || l.cursors[i] == next {
			l.cursors[i] = next
			return
		}
	}
	l.cursors[l.turn%uint8(len(l.cursors))] = next
	l.turn++
}

// forget drops the places at or beyond offset and all that point into segments that are gone. The caller holds mu.
func (l *log) forget() { l.cursors = [4]cursor{} }

// publish makes a chunk part of the log: it is at pos of seg. Index entries are the caller's. The caller holds mu.
func (l *log) publish(seg *segment, h recordbatch.Header, pos int64) {
	if l.stretches.last() < h.Version {
		l.stretches.add(h.Version, h.BaseOffset)
	}
	if l.end <= l.start && h.Next() > l.start {
		l.oldest = h.BaseTimestamp
	}
	if pos == 0 || seg.first == noTime {
		seg.first = h.BaseTimestamp
	}
	if pos == 0 || seg.max != noTime { // else it has chunks that are not known
		seg.max = max(seg.max, h.BaseTimestamp)
	}
	l.newest = h.BaseTimestamp
	end := pos + int64(h.Size())
	l.grow(max(0, end-seg.size))
	seg.size = max(seg.size, end)
	l.end = max(l.end, h.Next())
	l.noteLast()
}

// attach adds a segment in its place. The caller holds mu.
func (l *log) attach(seg *segment) {
	i := l.segmentFor(seg.base) + 1
	l.segs = slices.Insert(slices.Clone(l.segs), i, seg)
	l.segCount = int32(len(l.segs))
	l.noteLast()
}

// noteLast keeps last in step with the last segment. The caller holds mu.
func (l *log) noteLast() {
	l.last = tail{}
	if n := len(l.segs); n > 0 {
		seg := l.segs[n-1]
		l.last = tail{base: seg.base, size: seg.size, first: seg.first, max: seg.max, ok: true}
	}
}

// LogInfo describes a log. Times are append times by the leader's clock, zero when the log is empty.
type LogInfo struct {
	Start         topology.Offset // first offset kept (P9)
	End           topology.Offset // offset of the next record
	HighWatermark topology.Offset // readers see what lies below it
	Bytes         int64
	Segments      int
	Oldest        time.Time
	Newest        time.Time
	Version       topology.Version // of the last record; 0 when there never was one
}

// info describes l. The caller holds mu.
func (l *log) info() LogInfo {
	info := LogInfo{Start: l.start, End: l.end, HighWatermark: l.end, Bytes: l.bytes, Segments: int(l.segCount), Version: l.stretches.last()}
	if l.end > l.start {
		if l.oldest != noTime {
			info.Oldest = time.UnixMilli(l.oldest)
		}
		info.Newest = time.UnixMilli(l.newest)
	}
	return info
}
