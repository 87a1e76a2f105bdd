package localdb

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
)

// Badger reads its write-ahead log up to the first record whose checksum is wrong, takes that for the end, and cuts the rest
// off. A rotten bit would so take back what was synced long before. Hence each log is read here first.
//
// A log is a head of 20 bytes (key id, 8 bytes, 0 without encryption; base IV, 12), then records, then zeros:
//
//	meta:1 | user meta:1 | key length:uvarint | value length:uvarint | expiry:uvarint | key | value | crc32c:4
//
// The checksum, big-endian, covers all before it. A key ends with the inverted time stamp of its transaction, 8 bytes
// big-endian; stamps of transactions that follow one another differ by one. The records of a transaction have metaTxn set,
// and after them comes one with metaEnd, whose value is the stamp in decimal.
//
// The user meta is ours: see DB.doubt.
const (
	logHead     = 20
	metaDelete  = 1 << 0
	metaTxn     = 1 << 6
	metaEnd     = 1 << 7
	maxLogKey   = 1 << 16
	stampBytes  = 8
	sectorBytes = 512 // the least that a disk writes whole

	maxLogBytes   = 64 << 20 // no log is near that
	maxSearchWork = 64 << 20 // bytes of checksums to look for a good record; without false hints it is as long as the log
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// logRecord is one record of a log. It aliases the log.
type logRecord struct {
	size       int
	meta, user byte
	key, value []byte
}

// stamp is the time stamp of the transaction, 0 if the key holds none.
func (r logRecord) stamp() uint64 {
	if len(r.key) <= stampBytes {
		return 0
	}
	return ^binary.BigEndian.Uint64(r.key[len(r.key)-stampBytes:])
}

// frameRecord reads the lengths of the record at the front of b, and leaves its checksum alone.
func frameRecord(b []byte) (logRecord, bool) {
	if len(b) < 2 {
		return logRecord{}, false
	}
	at := 2
	var field [3]uint64 // key length, value length, expiry
	for i := range field {
		n, size := binary.Uvarint(b[at:])
		if size <= 0 {
			return logRecord{}, false
		}
		field[i] = n
		at += size
	}
	if field[0] == 0 || field[0] > maxLogKey || field[1] > uint64(len(b)) {
		return logRecord{}, false
	}
	mid := at + int(field[0])
	end := mid + int(field[1])
	if end+crc32.Size > len(b) {
		return logRecord{}, false
	}
	return logRecord{size: end + crc32.Size, meta: b[0], user: b[1], key: b[at:mid], value: b[mid:end]}, true
}

// parseRecord reads the record at the front of b.
func parseRecord(b []byte) (logRecord, bool) {
	r, ok := frameRecord(b)
	return r, ok && r.intact(b)
}

// intact compares the checksum of the record at the front of b.
func (r logRecord) intact(b []byte) bool {
	body := r.size - crc32.Size
	return crc32.Checksum(b[:body], castagnoli) == binary.BigEndian.Uint32(b[body:])
}

// plausible says whether r looks like a record of ours, so that few wrong places have to be summed.
func (r logRecord) plausible() bool {
	stamp := r.stamp()
	return (r.meta&^metaDelete == metaTxn || r.meta == metaEnd) && stamp != 0 && stamp < 1<<48
}

// logWalk goes over the records of a log as badger does.
type logWalk struct {
	pos  int    // of the next record
	end  int    // behind the last whole transaction
	last uint64 // stamp of that transaction; 0 if there is none
	open uint64 // stamp of the transaction under way; 0 between two
}

// take follows r, unless badger would stop at it.
func (w *logWalk) take(r logRecord) bool {
	switch {
	case r.meta&metaTxn != 0:
		if stamp := r.stamp(); w.open == 0 {
			w.open = stamp
		} else if w.open != stamp {
			return false
		}
		w.pos += r.size
		return true
	case r.meta&metaEnd != 0:
		stamp, err := strconv.ParseUint(string(r.value), 10, 64)
		if err != nil || stamp != w.open {
			return false
		}
		w.last = stamp
	default:
		if w.open != 0 {
			return false
		}
		w.last = r.stamp()
	}
	w.open = 0
	w.pos += r.size
	w.end = w.pos
	return true
}

// lostFrom is the stamp of the first transaction that the walk has not got, 0 if it has not got any.
func (w *logWalk) lostFrom() uint64 {
	switch {
	case w.open != 0:
		return w.open
	case w.last != 0:
		return w.last + 1
	default:
		return 0
	}
}

// scanLog returns the position behind the last whole transaction of the log b, up to which badger reads it. The error
// names a place where the log does not hold what was written, as far as that can be told from a log whose end the machine
// did not bring to disk before it stopped. That leaves a record cut short, or sectors that are zero to their end, among
// records that were not synced; so a record that cannot be read is damage if a good one behind it
//   - follows it with no such sector in between, or
//   - was written after the unreadable one had been synced.
//
// What has nothing good behind it cannot be told from a write that was cut short.
func scanLog(b []byte) (end int, err error) {
	if len(b) < logHead {
		return len(b), nil // the process ended while it made the log
	}
	if id := binary.BigEndian.Uint64(b); id != 0 {
		return 0, fmt.Errorf("position 0: the log claims to be encrypted with key %d", id)
	}
	w := logWalk{pos: logHead, end: logHead}
	for {
		r, ok := parseRecord(b[w.pos:])
		if !ok || !w.take(r) {
			break
		}
	}
	return w.end, w.judge(b)
}

// judge tells whether the place where the walk stopped is the end of the log or damage.
func (w *logWalk) judge(b []byte) error {
	bad, lost, work, first := w.pos, w.lostFrom(), 0, true
	for at := bad; at < len(b); at++ {
		if b[at]&^metaDelete != metaTxn && b[at] != metaEnd {
			continue
		}
		r, ok := frameRecord(b[at:])
		if !ok || !r.plausible() {
			continue
		}
		if work += r.size; work > maxSearchWork {
			return fmt.Errorf("position %d: the record cannot be read, and what is behind it looks like nothing known", bad)
		}
		if !r.intact(b[at:]) {
			continue
		}
		if first && !sectorLost(b, bad, at) {
			return fmt.Errorf("position %d: the record cannot be read, but one behind it at %d can", bad, at)
		}
		if lost == 0 {
			lost = r.stamp() // the transaction lost is this one or one before
		}
		if r.provesSynced(lost) {
			return fmt.Errorf("position %d: the record cannot be read, but one at %d was written after it had been synced", bad, at)
		}
		first = false
		at += r.size - 1
	}
	return nil
}

// sectorLost says whether a sector that never reached the disk can be what is between the bad record and the good one.
// A log only grows, so such a sector holds what it held before, and from there on zeros, to its end.
func sectorLost(b []byte, bad, good int) bool {
	for end := (bad/sectorBytes + 1) * sectorBytes; end <= good; end += sectorBytes {
		if b[end-1] == 0 {
			return true
		}
	}
	return false
}

// maxDoubt is the most that DB.doubt tells.
const maxDoubt = 255

// doubt is what each record written now carries: one more than the number of transactions before it, next to it, that are
// not known to be durable; 0 if these are too many. Deletions carry 0 too. The caller holds mu.
func (db *DB) doubt() byte {
	n := db.seq - db.synced.Load() + 1
	if n > maxDoubt {
		return 0
	}
	return byte(n)
}

// provesSynced says whether the transaction with the stamp lost was durable when r was written.
func (r logRecord) provesSynced(lost uint64) bool {
	return r.meta&metaTxn != 0 && r.user != 0 && r.stamp() >= lost+uint64(r.user)
}
