package localdb

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/skeinmq/skein/internal/topology"
)

// op puts or deletes one key.
type op struct {
	key   []byte
	value []byte
	del   bool
}

// batch is what one update wants.
type batch struct {
	ops   []op
	bytes int // as badger counts them
}

// collect runs fn and keeps copies of what it asks for. Of several calls for one key the last one stays: badger keeps the
// last too, but a large batch may be cut between them.
func collect(fn func(put func(key, value []byte), del func(key []byte))) *batch {
	b := &batch{}
	place := map[string]int{}
	add := func(o op) {
		if i, ok := place[string(o.key)]; ok {
			b.bytes += len(o.value) - len(b.ops[i].value)
			b.ops[i] = o
			return
		}
		place[string(o.key)] = len(b.ops)
		b.ops = append(b.ops, o)
		b.bytes += len(o.key) + len(o.value) + entryOverhead
	}
	fn(func(key, value []byte) {
		buf := append(append(make([]byte, 0, len(key)+len(value)), key...), value...)
		add(op{key: buf[:len(key):len(key)], value: buf[len(key):]})
	}, func(key []byte) {
		add(op{key: append([]byte(nil), key...), del: true})
	})
	return b
}

// check refuses keys and values that are not stored.
func (b *batch) check() error {
	for _, o := range b.ops {
		switch {
		case len(o.key) == 0:
			return fmt.Errorf("%w key: it is empty", topology.ErrInvalid)
		case len(o.key) > MaxKeyBytes:
			return fmt.Errorf("%w: key of %d bytes, %q...; at most %d", topology.ErrTooLarge, len(o.key), o.key[:40], MaxKeyBytes)
		case len(o.value) > MaxValueBytes:
			return fmt.Errorf("%w: value of %d bytes for key %q; at most %d", topology.ErrTooLarge, len(o.value), o.key, MaxValueBytes)
		}
	}
	return nil
}

// fits says whether the batch is small enough for one transaction of badger.
func (b *batch) fits() bool { return len(b.ops) <= txnKeys && b.bytes <= txnBytes }

// parts cuts ops into pieces that each fit a transaction, and a value when encoded.
func parts(ops []op) [][]op {
	var cut [][]op
	start, bytes := 0, 0
	for i, o := range ops {
		n := len(o.key) + len(o.value) + entryOverhead
		if i > start && (i-start >= txnKeys || bytes+n > MaxValueBytes) {
			cut = append(cut, ops[start:i])
			start, bytes = i, 0
		}
		bytes += n
	}
	return append(cut, ops[start:])
}

// encodeOps appends ops to dst: for each a byte (0 put, 1 delete), the key and, for a put, the value, both with a uvarint
// of their length before them.
func encodeOps(dst []byte, ops []op) []byte {
	for _, o := range ops {
		kind := byte(0)
		if o.del {
			kind = 1
		}
		dst = append(dst, kind)
		dst = append(binary.AppendUvarint(dst, uint64(len(o.key))), o.key...)
		if !o.del {
			dst = append(binary.AppendUvarint(dst, uint64(len(o.value))), o.value...)
		}
	}
	return dst
}

var errOps = errors.New("stored update cannot be read")

// decodeOps reads what encodeOps wrote. The result aliases b.
func decodeOps(b []byte) ([]op, error) {
	take := func() ([]byte, bool) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil, false
		}
		field := b[size : size+int(n) : size+int(n)]
		b = b[size+int(n):]
		return field, true
	}
	var ops []op
	for len(b) > 0 {
		o := op{del: b[0] == 1}
		if b[0] > 1 {
			return nil, errOps
		}
		b = b[1:]
		var ok bool
		if o.key, ok = take(); !ok || len(o.key) == 0 {
			return nil, errOps
		}
		if !o.del {
			if o.value, ok = take(); !ok {
				return nil, errOps
			}
		}
		ops = append(ops, o)
	}
	return ops, nil
}
