package bench

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"sync"
)

// MinSize is the smallest record: what a payload says of itself takes up to this many bytes.
const MinSize = 96

const poolSize = 4 << 20

// smallSize is where records have noise for text: what their stamps have in common compresses well enough already.
const smallSize = 400

// maxSeq bounds the numbers of a key, and so the memory of a Checker.
const maxSeq = 1 << 30

// Stamp is what a payload says of itself. Key and Seq are the key and how many records of it came before in the run;
// without keys each connection counts as a key. Due is when the record was due to be sent, µs since the epoch.
type Stamp struct {
	Run string
	Key string
	Seq uint64
	Due int64
}

// Keyless keys begin with this: their records go to any partition, so only their number is checked, not their order.
const keylessPrefix = '~'

// AppendPayload appends a record of size bytes (at least MinSize) to dst: JSON that begins with the stamp, filled up with
// text that zstd makes about half as large, different in each record. r draws where in the pool of text it comes from.
func AppendPayload(dst []byte, s Stamp, size int, r *rand.Rand) []byte {
	start := len(dst)
	dst = append(dst, `{"r":"`...)
	dst = append(dst, s.Run...)
	dst = append(dst, `","k":"`...)
	dst = append(dst, s.Key...)
	dst = append(dst, `","n":`...)
	dst = strconv.AppendUint(dst, s.Seq, 10)
	dst = append(dst, `,"t":`...)
	dst = strconv.AppendInt(dst, s.Due, 10)
	dst = append(dst, `,"d":"`...)
	pool := textPool()
	if size < smallSize {
		pool = noisePool()
	}
	for fill := size - (len(dst) - start) - 2; fill > 0; {
		from := r.IntN(len(pool) / 2)
		part := pool[from:min(from+fill, len(pool))]
		dst = append(dst, part...)
		fill -= len(part)
	}
	return append(dst, `"}`...)
}

// ParseStamp reads the stamp back; false when b is no payload of this package. The strings alias nothing.
func ParseStamp(b []byte) (Stamp, bool) {
	var s Stamp
	run, b, ok := field(b, `{"r":"`, `","k":"`)
	if !ok {
		return s, false
	}
	key, b, ok := field(b, "", `","n":`)
	if !ok {
		return s, false
	}
	seq, b, ok := field(b, "", `,"t":`)
	if !ok {
		return s, false
	}
	due, _, ok := field(b, "", `,"d":"`)
	if !ok {
		return s, false
	}
	var err error
	if s.Seq, err = strconv.ParseUint(string(seq), 10, 64); err != nil || s.Seq > maxSeq {
		return s, false
	}
	if s.Due, err = strconv.ParseInt(string(due), 10, 64); err != nil {
		return s, false
	}
	s.Run, s.Key = string(run), string(key)
	return s, true
}

// field cuts what stands between head, with which b begins, and tail, and gives the rest after tail.
func field(b []byte, head, tail string) (value, rest []byte, ok bool) {
	b, ok = bytes.CutPrefix(b, []byte(head))
	if !ok {
		return nil, nil, false
	}
	i := bytes.Index(b[:min(len(b), 300)], []byte(tail))
	if i < 0 {
		return nil, nil, false
	}
	return b[:i], b[i+len(tail):], true
}

const (
	wordLetters  = "etaoinshrdlucmfw"
	noiseLetters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+/"
)

// textPool is the text that payloads are filled with: words, numbers and noise in a mixture like that of business data.
var textPool = sync.OnceValue(func() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	vocabulary := make([][]byte, 400)
	for i := range vocabulary {
		vocabulary[i] = appendLetters(nil, 3+r.IntN(8), wordLetters, r)
	}
	pool := make([]byte, 0, poolSize+64)
	for len(pool) < poolSize {
		switch n := r.IntN(100); {
		case n < 70:
			pool = append(pool, vocabulary[r.IntN(len(vocabulary))]...)
		case n < 88:
			pool = strconv.AppendInt(pool, r.Int64N(1_000_000), 10)
		default:
			pool = appendLetters(pool, 8+r.IntN(12), noiseLetters, r)
		}
		pool = append(pool, ' ')
	}
	return pool[:poolSize]
})

var noisePool = sync.OnceValue(func() []byte {
	return appendLetters(nil, poolSize, noiseLetters, rand.New(rand.NewPCG(3, 4)))
})

func appendLetters(dst []byte, n int, alphabet string, r *rand.Rand) []byte {
	for range n {
		dst = append(dst, alphabet[r.IntN(len(alphabet))])
	}
	return dst
}
