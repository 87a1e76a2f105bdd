package localdb

import (
	"encoding/binary"
	"fmt"
)

// An update that does not fit one transaction of badger is written twice: first as intents, parts that nobody reads, then
// a mark that all of them are there, and only then for real. A crash before the mark leaves nothing of the update, one
// after it leaves the rest to the next Open.
var (
	intentPrefix = []byte("m/intent/") // then the number of the part, 4 bytes big-endian
	intentMark   = []byte("m/intents") // value: number of parts, 4 bytes big-endian
)

func intentKey(i int) []byte {
	return binary.BigEndian.AppendUint32(append([]byte(nil), intentPrefix...), uint32(i))
}

// commitLarge writes b by intents. The caller holds mu.
func (db *DB) commitLarge(b *batch) error {
	// Twice for real and as intents, once more for the tables it is flushed to.
	room := 3*int64(b.bytes) + rotationRoom
	if err := db.askRoom(room); err != nil {
		return err
	}
	if err := db.checkFree(room); err != nil {
		return err
	}
	cut := parts(b.ops)
	for i, ops := range cut {
		if err := db.commit([]op{{key: intentKey(i), value: encodeOps(nil, ops)}}); err != nil {
			return db.dropIntents(i, err)
		}
	}
	mark := binary.BigEndian.AppendUint32(nil, uint32(len(cut)))
	if err := db.commit([]op{{key: intentMark, value: mark}}); err != nil {
		return db.dropIntents(len(cut), err)
	}
	// From here on the update happens: a failure leaves it to the next Open, and no other update may come in between.
	if err := db.applyIntents(len(cut)); err != nil {
		return db.fail(err)
	}
	return nil
}

// dropIntents removes the first n intents of an update that is refused for cause, as far as that is possible: what stays
// is removed by the next Open.
func (db *DB) dropIntents(n int, cause error) error {
	for i := range n {
		if err := db.commit([]op{{key: intentKey(i), del: true}}); err != nil {
			break
		}
	}
	return cause
}

// applyIntents does what the n intents say, and removes them. Doing it again changes nothing. The caller holds mu.
func (db *DB) applyIntents(n int) error {
	for i := range n {
		value, err := db.get(intentKey(i))
		if err != nil {
			return err
		}
		ops, err := decodeOps(value)
		if err != nil || len(ops) == 0 {
			return fmt.Errorf("%w: part %d of %d of an update", ErrDamaged, i, n)
		}
		if err := db.commit(ops); err != nil {
			return err
		}
	}
	if err := db.commit([]op{{key: intentMark, del: true}}); err != nil {
		return err
	}
	for i := range n {
		if err := db.commit([]op{{key: intentKey(i), del: true}}); err != nil {
			return err
		}
	}
	return nil
}

// finishIntents ends what a crash interrupted: a marked update is done, the parts of an unmarked one are removed.
func (db *DB) finishIntents() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	mark, err := db.get(intentMark)
	if err != nil {
		return err
	}
	if len(mark) == 4 {
		return db.applyIntents(int(binary.BigEndian.Uint32(mark)))
	}
	var left [][]byte
	err = db.scan(intentPrefix, func(key, _ []byte) error {
		left = append(left, append([]byte(nil), key...))
		return nil
	})
	if err != nil {
		return err
	}
	for _, key := range left {
		if err := db.commit([]op{{key: key, del: true}}); err != nil {
			return err
		}
	}
	return nil
}
