package recordbatch

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// minCompress is the size of records in bytes below which compression is not tried: whatever the size, it takes at least
// 5 us, and the frame about 15 bytes.
const minCompress = 512

// pays says whether packing raw bytes into packed bytes saves a tenth or more.
func pays(raw, packed int) bool { return packed <= raw-raw/10 }

// Payoff remembers whether compression pays for the records of one topic. After some chunks in a row for which it did
// not, it is tried only now and then, until it pays again. The zero Payoff is ready; it is safe for concurrent use.
type Payoff struct {
	misses atomic.Int32 // tries in a row that did not pay
	left   atomic.Int32 // chunks to let pass before the next try
}

const (
	payoffMisses = 4  // misses in a row before chunks are let pass
	payoffPause  = 64 // chunks let pass between two tries
)

func (p *Payoff) try() bool {
	return p == nil || p.left.Load() <= 0 || p.left.Add(-1) <= 0
}

func (p *Payoff) note(paid bool) {
	switch {
	case p == nil:
	case paid:
		p.misses.Store(0)
		p.left.Store(0)
	case p.misses.Add(1) >= payoffMisses:
		p.misses.Store(payoffMisses)
		p.left.Store(payoffPause)
	}
}

// stack lends values last in first out, at most GOMAXPROCS at a time, and makes them when first needed. A value just
// used has its tables in the cache still, so the one given back last goes first.
type stack[T any] struct {
	make func() T
	slot chan struct{} // a token for each value that is lent

	mu   sync.Mutex
	free []T
}

func newStack[T any](makeOne func() T) *stack[T] {
	return &stack[T]{make: makeOne, slot: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

func (s *stack[T]) take() T {
	s.slot <- struct{}{}
	s.mu.Lock()
	if n := len(s.free); n > 0 {
		v := s.free[n-1]
		s.free = s.free[:n-1]
		s.mu.Unlock()
		return v
	}
	s.mu.Unlock()
	return s.make()
}

func (s *stack[T]) give(v T) {
	s.mu.Lock()
	s.free = append(s.free, v)
	s.mu.Unlock()
	<-s.slot
}

// window is how far back the encoder looks. Chunks close at 64 KiB; only a batch with large records is longer.
const window = 256 << 10

var encoders = newStack(func() *zstd.Encoder {
	// The window comes before the level: then blocks have 128 KiB, not 64, and a chunk that closed a little above 64 KiB is
	// one block still, which needs no history and takes a sixth less time.
	e, err := zstd.NewWriter(nil, zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false))
	if err != nil {
		panic("recordbatch: zstd refuses its options: " + err.Error())
	}
	return e
})

var decoders = newStack(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(MaxUncompressed))
	if err != nil {
		panic("recordbatch: zstd refuses its options: " + err.Error())
	}
	return d
})

// compress appends src to dst as a zstd frame that tells its size. The frame has no checksum: the batch has one.
func compress(dst, src []byte) []byte {
	e := encoders.take()
	defer encoders.give(e)
	return e.EncodeAll(src, dst)
}

// decompress appends the content of the zstd frames in src to dst, at most MaxUncompressed bytes.
func decompress(dst, src []byte) ([]byte, error) {
	if err := checkFrameSize(src); err != nil {
		return dst, err
	}
	d := decoders.take()
	defer decoders.give(d)
	out, err := d.DecodeAll(src, dst)
	if err != nil {
		return dst, fmt.Errorf("%w: zstd: %w", ErrCorrupt, err)
	}
	return out, nil
}

// checkFrameSize refuses a frame that claims more content than its bytes can hold, before memory is taken for it: a
// block of at most 128 KiB takes at least 4 bytes.
func checkFrameSize(src []byte) error {
	var h zstd.Header
	if err := h.Decode(src); err != nil {
		return fmt.Errorf("%w: zstd: %w", ErrCorrupt, err)
	}
	if h.HasFCS && h.FrameContentSize > min(MaxUncompressed, (uint64(len(src))/4+1)*(128<<10)) {
		return fmt.Errorf("%w: zstd: %d bytes claim to hold %d", ErrCorrupt, len(src), h.FrameContentSize)
	}
	return nil
}
