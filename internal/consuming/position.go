package consuming

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/topology"
)

// position is where a group stands on a partition, and who moved it there.
type position struct {
	offset    topology.Offset  // first offset that is not consumed
	version   topology.Version // generation of the record before offset; 0 when there is none or it is not known
	timestamp int64            // when it was committed, ms since the epoch
	reason    reason
	member    string // that committed; "" when no member did
	epoch     uint64 // of the group, as the committing broker counts it
}

// reason says what moved a position. The numbers are stored.
type reason uint8

const (
	byRegister reason = 1 // a group met the topic: the reset policy decided
	byPoll     reason = 2 // a poll committed the answer before it
	byCommit   reason = 3 // a commit or goodbye asked for it
	bySeek     reason = 4 // the admin API moved it
	byReset    reason = 5 // the position was outside the log
	bySkip     reason = 6 // there was nothing to deliver: records that a form leaves out, or damage
)

// errPosition means bytes that are no position of a version known here.
var errPosition = errors.New("corrupt position")

// positionFormat is the version of the encoding, its first byte.
const positionFormat = 1

// appendPosition appends the stored form of p, the value of a record in a positions log (docs/formats.md, "Positions"):
//
//	format:1 = 1 | reason:1 | offset:uvarint | version:uvarint | timestamp:uvarint | epoch:uvarint | member length:uvarint | member
//
// Numbers are unsigned varints, least significant group first, in their shortest form. The key of the record is the name
// of the group; a null value means that the group has no position any more.
func appendPosition(b []byte, p position) []byte {
	b = append(b, positionFormat, byte(p.reason))
	b = binary.AppendUvarint(b, uint64(p.offset))
	b = binary.AppendUvarint(b, uint64(p.version))
	b = binary.AppendUvarint(b, uint64(p.timestamp))
	b = binary.AppendUvarint(b, p.epoch)
	b = binary.AppendUvarint(b, uint64(len(p.member)))
	return append(b, p.member...)
}

// decodePosition is the inverse of appendPosition. It takes exactly what appendPosition makes and returns errPosition
// for anything else. The result does not alias b.
func decodePosition(b []byte) (position, error) {
	if len(b) < 2 || b[0] != positionFormat {
		return position{}, fmt.Errorf("%w: it does not begin with format %d", errPosition, positionFormat)
	}
	d := varints{b: b[2:]}
	p := position{
		reason:    reason(b[1]),
		offset:    topology.Offset(d.next(math.MaxInt64)),
		version:   topology.Version(d.next(math.MaxUint32)),
		timestamp: int64(d.next(math.MaxInt64)),
		epoch:     d.next(math.MaxUint64),
	}
	n := d.next(maxMemberName)
	if d.bad || n != uint64(len(d.b)) || !utf8.Valid(d.b) {
		return position{}, fmt.Errorf("%w: a field is wrong or bytes are missing", errPosition)
	}
	p.member = string(d.b)
	return p, nil
}

// maxMemberName is the longest id of a consumer, in bytes (docs/design.md, section 9).
const maxMemberName = 255

// varints reads unsigned varints from the front of b. After the first wrong one bad is set and the rest is zero.
type varints struct {
	b   []byte
	bad bool
}

func (d *varints) next(limit uint64) uint64 {
	v, n := binary.Uvarint(d.b)
	if d.bad || n <= 0 || v > limit || n > 1 && d.b[n-1] == 0 { // a last byte of zero: not the shortest form
		d.bad = true
		return 0
	}
	d.b = d.b[n:]
	return v
}
