package data

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// Keys of the KV. Source: docs/formats.md, "Notes".
const (
	keyPrefix = "n/"
	keyRun    = "n/run"    // runMark of this run, or of the last one
	keyLog    = "n/l"      // + log: note
	keyStart  = "n/s"      // + log: start offset, where it is higher than the note's
	keyReboot = "n/reboot" // an unclean restart of the machine that nobody has acted on yet
	keyDrop   = "n/d"      // + topic: dropped, its files may not all be gone
)

func logKey(prefix string, id topology.LogID) []byte {
	k := append(append(make([]byte, 0, len(prefix)+20), prefix...), id.Topic[:]...)
	return binary.BigEndian.AppendUint32(k, uint32(id.Partition))
}

func parseLogKey(prefix string, k []byte) (topology.LogID, bool) {
	k = k[len(prefix):]
	if len(k) != 20 {
		return topology.LogID{}, false
	}
	return topology.LogID{Topic: uuid.UUID(k[:16]), Partition: topology.Partition(binary.BigEndian.Uint32(k[16:]))}, true
}

func dropKey(topic uuid.UUID) []byte { return append([]byte(keyDrop), topic[:]...) }

var errNote = errors.New("note is damaged or of a newer version")

const noteVersion = 1

// note is what is written down of a log: its state after journal record lsn, all of it durable in the segments.
type note struct {
	lsn       uint64
	start     topology.Offset
	end       topology.Offset
	hw        topology.Offset
	oldest    int64
	newest    int64
	bytes     int64
	segments  int32
	last      tail
	roll      bool
	cutting   bool // files may still be longer than this note says: a Truncate was under way
	stretches stretches
}

// encode is the value of a note: version 1, then varints.
func (n note) encode() []byte {
	b := make([]byte, 0, 64+8*len(n.stretches.list))
	b = append(b, noteVersion)
	b = binary.AppendUvarint(b, n.lsn)
	for _, v := range []int64{int64(n.start), int64(n.end), int64(n.hw), n.oldest, n.newest, n.bytes, int64(n.segments)} {
		b = binary.AppendVarint(b, v)
	}
	var flags uint64
	timed := n.last.max != noTime
	for i, set := range []bool{n.last.ok, n.roll, n.cutting, timed} {
		if set {
			flags |= 1 << i
		}
	}
	b = binary.AppendUvarint(b, flags)
	for _, v := range []int64{int64(n.last.base), n.last.size, n.last.first} {
		b = binary.AppendVarint(b, v)
	}
	if timed {
		b = binary.AppendVarint(b, n.last.max)
	}
	b = binary.AppendUvarint(b, uint64(len(n.stretches.list)))
	for _, st := range n.stretches.list {
		b = binary.AppendUvarint(b, uint64(st.version))
		b = binary.AppendUvarint(b, uint64(st.from))
	}
	return b
}

// decodeNote reads the value of a note. errNote if it is none.
func decodeNote(b []byte) (note, error) {
	if len(b) == 0 || b[0] != noteVersion {
		return note{}, errNote
	}
	r := varints{b: b[1:]}
	n := note{lsn: r.unsigned()}
	n.start, n.end, n.hw = topology.Offset(r.signed()), topology.Offset(r.signed()), topology.Offset(r.signed())
	n.oldest, n.newest, n.bytes, n.segments = r.signed(), r.signed(), r.signed(), int32(r.signed())
	flags := r.unsigned()
	n.last.ok, n.roll, n.cutting = flags&1 != 0, flags&2 != 0, flags&4 != 0
	n.last.base, n.last.size, n.last.first = topology.Offset(r.signed()), r.signed(), r.signed()
	n.last.max = noTime
	if flags&8 != 0 {
		n.last.max = r.signed()
	}
	count := r.unsigned()
	if r.bad || count > uint64(len(r.b)) {
		return note{}, errNote
	}
	list := make([]stretch, count)
	for i := range list {
		list[i] = stretch{topology.Version(r.unsigned()), topology.Offset(r.unsigned())}
	}
	n.stretches.list = list
	if r.bad || len(r.b) > 0 || n.start < 0 || n.end < n.start || n.last.size < 0 {
		return note{}, errNote
	}
	return n, nil
}

// varints reads numbers from b; bad says that it ended early.
type varints struct {
	b   []byte
	bad bool
}

func (r *varints) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	return v * uint64(r.take(n))
}

func (r *varints) signed() int64 {
	v, n := binary.Varint(r.b)
	return v * int64(r.take(n))
}

// take consumes n bytes and answers 1, or 0 when there was no number.
func (r *varints) take(n int) int {
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return 1
}

// runMark is written at the start of a run, at each checkpoint, and once more at a clean end.
type runMark struct {
	lsn   uint64 // journal records up to here are in the notes
	skip  uint64 // a record whose flush failed and whose round was cut off: not to be replayed; 0 none
	flush FlushPolicy
	clean bool
	boot  string
}

const (
	runVersion  = 1
	runMarkSize = 19 // without the boot id
)

// encode is the value of a mark: version:1 | flush:1 | clean:1 | lsn:8 | skip:8 | boot id.
func (m runMark) encode() []byte {
	b := []byte{runVersion, byte(m.flush), 0}
	if m.clean {
		b[2] = 1
	}
	b = binary.BigEndian.AppendUint64(b, m.lsn)
	b = binary.BigEndian.AppendUint64(b, m.skip)
	return append(b, m.boot...)
}

func decodeRunMark(b []byte) (runMark, error) {
	if len(b) < runMarkSize || b[0] != runVersion {
		return runMark{}, fmt.Errorf("mark of the last run: %w", errNote)
	}
	return runMark{
		flush: FlushPolicy(b[1]), clean: b[2] == 1, lsn: binary.BigEndian.Uint64(b[3:]), skip: binary.BigEndian.Uint64(b[11:]), boot: string(b[19:]),
	}, nil
}
