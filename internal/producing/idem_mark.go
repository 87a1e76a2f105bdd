package producing

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"

	"github.com/skeinmq/skein/internal/recordbatch"
)

// digest is the front of a SHA-256: enough that two keys or two requests never share one.
type digest [16]byte

// idemHeader is the hidden header of the first record of a request in each chunk that holds records of it.
//
//	1:1 | key:16 | request:16 | time:8 | index varint | total varint
//
// key and request are digests, time is when the request was taken (ms since the epoch), total is how many records it
// has in this log, and index is the place of this record among them.
const (
	idemHeader  = recordbatch.HiddenPrefix + "idem"
	idemVersion = 1
	idemFixed   = 1 + 16 + 16 + 8
)

// idemMark is what marks the records of a request with an idempotency key. Several writes may share one, in turn.
type idemMark struct {
	key     digest
	request digest
	time    int64
	buf     []byte
	headers []recordbatch.RecordHeader
}

// mark adds the hidden header to r, which is record index of total. The header is good until the next call.
func (m *idemMark) mark(r *recordbatch.Record, index, total int) {
	b := append(m.buf[:0], idemVersion)
	b = append(b, m.key[:]...)
	b = append(b, m.request[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(m.time))
	b = binary.AppendUvarint(b, uint64(index))
	b = binary.AppendUvarint(b, uint64(total))
	m.buf = b
	m.headers = append(append(m.headers[:0], r.Headers...), recordbatch.RecordHeader{Key: idemHeader, Value: b})
	r.Headers = m.headers
}

// idemPart is a mark as it is read back from a log.
type idemPart struct {
	key, request digest
	time         int64
	index, total int
}

// parseMark reads the value of the hidden header.
func parseMark(b []byte) (p idemPart, ok bool) {
	if len(b) < idemFixed || b[0] != idemVersion {
		return p, false
	}
	copy(p.key[:], b[1:])
	copy(p.request[:], b[17:])
	p.time = int64(binary.BigEndian.Uint64(b[33:]))
	b = b[idemFixed:]
	index, n := binary.Uvarint(b)
	if n <= 0 {
		return p, false
	}
	total, k := binary.Uvarint(b[n:])
	if k <= 0 || n+k != len(b) || index >= total || total > recordbatch.MaxSize {
		return p, false
	}
	p.index, p.total = int(index), int(total)
	return p, true
}

// digester hashes the parts of a request, each with its length before it, so that no two requests hash alike.
type digester struct {
	h   hash.Hash
	buf [sha256.Size]byte
}

func newDigester() *digester { return &digester{h: sha256.New()} }

func (d *digester) bytes(b []byte) {
	binary.BigEndian.PutUint64(d.buf[:], uint64(len(b)))
	_, _ = d.h.Write(d.buf[:8])
	_, _ = d.h.Write(b)
}

func (d *digester) number(n int64) {
	binary.BigEndian.PutUint64(d.buf[:], uint64(n))
	_, _ = d.h.Write(d.buf[:8])
}

func (d *digester) sum() digest { return digest(slices.Clip(d.h.Sum(d.buf[:0]))[:16]) }

// digestKey is the digest of an idempotency key.
func digestKey(key string) digest {
	sum := sha256.Sum256([]byte(key))
	return digest(sum[:16])
}
