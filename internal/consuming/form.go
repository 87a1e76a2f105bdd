package consuming

import (
	"sync"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// form writes records in one of the forms of an answer.
type form interface {
	// append adds the records of r, which is not empty, and returns how many of them it has dealt with: fewer than all
	// when the answer has no room for more. It may leave out records that the form cannot show; they count as dealt with.
	// It does not keep r.
	append(r *run) int
	// cost is about the bytes that a record takes, for the bound of an answer.
	cost(r *recordbatch.Record) int
	// empty tells whether there is nothing to show yet.
	empty() bool
	// mark is the present end; cut takes back what was appended after it.
	mark() mark
	cut(m mark)
	finisher
	release()
}

// finisher completes an answer. The parts are to be written one by one: a part begins where a client wants to see the
// bytes that follow together. They hold until the form is released.
type finisher interface {
	finish() (contentType string, parts [][]byte)
}

// run is a run of records of one partition and generation, with consecutive offsets.
type run struct {
	topic     *topology.Topic
	partition topology.Partition
	version   topology.Version
	records   []recordbatch.Record
}

// mark is a place in an answer.
type mark struct {
	bytes int
	items int
}

// scratch are the buffers of one poll or read that are not part of the answer.
type scratch struct {
	read    []byte
	decoder recordbatch.Decoder
}

// Buffers larger than this are not kept.
const (
	keepRead   = 1 << 20
	keepAnswer = 4 << 20
)

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func getScratch() *scratch { return scratches.Get().(*scratch) }

func putScratch(w *scratch) {
	if w.small() {
		scratches.Put(w)
	}
}

func (w *scratch) small() bool { return cap(w.read) <= keepRead && w.decoder.Held() <= keepRead }

// answers holds buffers of answers.
var answers = sync.Pool{New: func() any { return new(buffer) }}

// buffer is what forms build an answer in.
type buffer struct {
	b     []byte
	raw   []byte // of one chunk, before it is compressed
	heads []int  // where items begin in b
}

func getBuffer() *buffer {
	b := answers.Get().(*buffer)
	b.b, b.raw, b.heads = b.b[:0], b.raw[:0], b.heads[:0]
	return b
}

func putBuffer(b *buffer) {
	if cap(b.b) <= keepAnswer && cap(b.raw) <= keepRead && cap(b.heads) <= keepRead/8 {
		answers.Put(b)
	}
}
