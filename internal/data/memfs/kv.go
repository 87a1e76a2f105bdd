package memfs

import (
	"maps"
	"sort"
	"strings"
)

// KV is the test twin of the database: a sorted map that forgets updates which were not synchronous. It shares steps,
// crashes and faults with its FS.
type KV struct {
	fs      *FS
	seen    map[string]string
	durable map[string]string
	pending [][]change // updates since the last synchronous one, in order
}

type change struct {
	key   string
	value *string // nil deletes
}

// NewKV makes an empty KV beside f.
func NewKV(f *FS) *KV {
	kv := &KV{fs: f, seen: map[string]string{}, durable: map[string]string{}}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kvs = append(f.kvs, kv)
	return kv
}

// Get implements data.KV.
func (kv *KV) Get(key []byte) ([]byte, error) {
	kv.fs.mu.Lock()
	defer kv.fs.mu.Unlock()
	if kv.fs.crashed {
		return nil, ErrCrashed
	}
	v, ok := kv.seen[string(key)]
	if !ok {
		return nil, nil
	}
	return []byte(v), nil
}

// Scan implements data.KV.
func (kv *KV) Scan(prefix []byte, fn func(key, value []byte) error) error {
	kv.fs.mu.Lock()
	if kv.fs.crashed {
		kv.fs.mu.Unlock()
		return ErrCrashed
	}
	seen := maps.Clone(kv.seen)
	kv.fs.mu.Unlock()
	keys := make([]string, 0, len(seen))
	for k := range seen {
		if strings.HasPrefix(k, string(prefix)) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, k := range keys {
		if err := fn([]byte(k), []byte(seen[k])); err != nil {
			return err
		}
	}
	return nil
}

// Update implements data.KV. It is atomic: a crash in it keeps all of it or nothing.
func (kv *KV) Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error {
	var list []change
	fn(func(key, value []byte) {
		v := string(value)
		list = append(list, change{string(key), &v})
	}, func(key []byte) {
		list = append(list, change{string(key), nil})
	})
	kv.fs.mu.Lock()
	defer kv.fs.mu.Unlock()
	if partial, err := kv.fs.step(Op{Kind: OpUpdate, Size: len(list)}); err != nil {
		if partial && kv.fs.crashed && kv.fs.rng.IntN(2) == 0 {
			apply(kv.seen, list)
			kv.pending = append(kv.pending, list)
		}
		return err
	}
	apply(kv.seen, list)
	kv.pending = append(kv.pending, list)
	if sync {
		kv.settle(len(kv.pending))
	}
	return nil
}

func apply(m map[string]string, list []change) {
	for _, c := range list {
		if c.value == nil {
			delete(m, c.key)
		} else {
			m[c.key] = *c.value
		}
	}
}

func (kv *KV) settle(n int) {
	for _, list := range kv.pending[:n] {
		apply(kv.durable, list)
	}
	kv.pending = kv.pending[n:]
}

// crash keeps the first of the pending updates by chance. The FS holds its lock.
func (kv *KV) crash(luck float64) {
	n := 0
	for n < len(kv.pending) && kv.fs.rng.Float64() < luck {
		n++
	}
	kv.settle(n)
	kv.pending = nil
	kv.seen = maps.Clone(kv.durable)
}

// Wipe forgets everything: a database that was lost.
func (kv *KV) Wipe() {
	kv.fs.mu.Lock()
	defer kv.fs.mu.Unlock()
	kv.seen, kv.durable, kv.pending = map[string]string{}, map[string]string{}, nil
}
