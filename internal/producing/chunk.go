package producing

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// chunk is one batch on its way to a log. It fills while it is open (builder is set), is sealed once, and is written
// with its round. The results are set before the round's done channel closes and never change after.
type chunk struct {
	round *round
	next  *chunk // the chunk after it in the same log and round

	builder *recordbatch.Builder // nil once sealed
	sealed  *buffer              // the encoded batch; nil before it is sealed and after it is written
	records int                  // set when it closes
	bytes   int64                // keys, values and headers of the records

	base    topology.Offset
	version topology.Version
	err     error
}

// logBatch is what one round holds of one log: chunks in order, of which the last may be open.
type logBatch struct {
	log      topology.LogID
	start    token.Token // where the partition starts on the ring: names its leader
	internal bool
	payoff   *recordbatch.Payoff // of the topic

	// full means that a chunk has closed: records without a key go on in another partition.
	full atomic.Bool

	mu    sync.Mutex
	first *chunk // under mu
	open  *chunk // under mu; nil when the last chunk is closed or there is none
	last  *chunk // under mu
	now   int64  // under mu: append time of the last chunk, ms; does not go back within a round
}

// span names records of one request in one log: they begin at record index of chunk first and go on through the
// following chunks of that log. Offsets of a span are dense.
type span struct {
	first   *chunk
	index   int // of the first record in its chunk
	records int
	chunks  int // >= 1
}

// err is what became of the records of s, once its round is done: nil when all are written. Where only some are, the
// outcome of the whole is unknown to the client, who may repeat it.
func (s span) err() error {
	if s.chunks == 1 {
		return s.first.err
	}
	var failed error
	written := false
	for c, i := s.first, 0; i < s.chunks; c, i = c.next, i+1 {
		switch {
		case c.err == nil:
			written = true
		case failed == nil || isUnknown(c.err):
			failed = c.err
		}
	}
	if failed != nil && written && !isUnknown(failed) {
		return fmt.Errorf("%w: some of the records are written, others are not: %w", topology.ErrOutcomeUnknown, failed)
	}
	return failed
}

// offset is that of record i of s; its version is version(i).
func (s span) offset() topology.Offset { return s.first.base + topology.Offset(s.index) }

func (s span) version() topology.Version { return s.first.version }

// done is closed when the results are there.
func (s span) done() <-chan struct{} { return s.first.round.done }

// append adds the records of w and says which chunks closed by it: they are to be sealed. It sets w.span.
func (b *logBatch) append(r *round, w *write, limit int, closed []*chunk) []*chunk {
	b.mu.Lock()
	defer b.mu.Unlock()
	w.span, w.at = span{}, nil
	for i := range w.records {
		rec := &w.records[i]
		if b.open != nil && !fits(b.open.builder, rec, limit) {
			closed = append(closed, b.close())
		}
		if b.open == nil {
			b.begin(r, w.now)
		}
		b.add(w, rec)
	}
	if b.open.builder.Size() >= limit {
		closed = append(closed, b.close())
	}
	return closed
}

// recordOverhead is more than what the encoding of a record adds to its bytes, headers aside.
const recordOverhead = 32

// encodedBound is at least the size of r once encoded.
func encodedBound(r *recordbatch.Record) int {
	return r.Bytes() + recordOverhead + 10*len(r.Headers)
}

func fits(b *recordbatch.Builder, r *recordbatch.Record, limit int) bool {
	return b.Count() == 0 || b.Size()+encodedBound(r) <= limit && b.Count() < recordbatch.MaxRecords
}

// add appends rec to the open chunk as the next record of w.
func (b *logBatch) add(w *write, rec *recordbatch.Record) {
	c := b.open
	if w.span.first == nil {
		w.span.first, w.span.index = c, c.builder.Count()
	}
	if c != w.at {
		w.at = c
		w.span.chunks++
		if w.idem != nil {
			marked := *rec
			w.idem.mark(&marked, w.span.records, len(w.records))
			c.builder.SetIdempotent()
			rec = &marked
		}
	}
	w.span.records++
	c.bytes += int64(rec.Bytes())
	c.builder.Append(rec)
}

// begin opens a chunk. now is the append time of the request that begins it.
func (b *logBatch) begin(r *round, now int64) {
	b.now = max(b.now, now)
	c := &chunk{round: r, builder: newBuilder()}
	c.builder.Reset(b.now)
	c.builder.SetPayoff(b.payoff)
	if b.last == nil {
		b.first = c
	} else {
		b.last.next = c
	}
	b.last, b.open = c, c
}

// close ends the open chunk.
func (b *logBatch) close() *chunk {
	c := b.open
	c.records = c.builder.Count()
	b.open = nil
	b.full.Store(true)
	return c
}

// seal encodes the chunk and lets the builder go. One goroutine seals a chunk, once.
func (c *chunk) seal() {
	buf := newBuffer()
	buf.b = c.builder.Seal(buf.b[:0])
	c.sealed = buf
	freeBuilder(c.builder)
	c.builder = nil
}

// Buffers and builders belong to chunks in flight, not to logs: nothing is kept for a log that is idle. Large ones are
// left to the collector.
const keepBytes = 256 << 10

type buffer struct{ b []byte }

var (
	buffers  = sync.Pool{New: func() any { return new(buffer) }}
	builders = sync.Pool{New: func() any { return new(recordbatch.Builder) }}
)

func newBuffer() *buffer { return buffers.Get().(*buffer) }

func freeBuffer(b *buffer) {
	if cap(b.b) <= keepBytes {
		buffers.Put(b)
	}
}

func newBuilder() *recordbatch.Builder { return builders.Get().(*recordbatch.Builder) }

func freeBuilder(b *recordbatch.Builder) {
	if b.Size() <= keepBytes {
		b.SetPayoff(nil)
		builders.Put(b)
	}
}
