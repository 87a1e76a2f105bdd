package httpd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/topology"
)

const (
	acceptedEncodings = "gzip, zstd"

	// firstRead is how much is set aside for a body before any of it has arrived, whatever length it announces.
	firstRead = 64 << 10
	// smallBody and largeBody are the largest buffers kept in the two pools; larger ones are left to the collector.
	smallBody = 64 << 10
	largeBody = 1 << 20
	// zstdWindow bounds the memory of one decoder; RFC 9659 asks it of HTTP contents.
	zstdWindow = 8 << 20
)

// buffer is a pooled body. Its release function is made once, with it.
type buffer struct {
	b       []byte
	release func()
}

var smallBodies, largeBodies sync.Pool

func newBuffer(size int) *buffer {
	pool := &smallBodies
	if size > smallBody {
		pool = &largeBodies
	}
	if b, ok := pool.Get().(*buffer); ok {
		return b
	}
	b := &buffer{}
	b.release = func() {
		b.b = b.b[:0]
		switch {
		case cap(b.b) <= smallBody:
			smallBodies.Put(b)
		case cap(b.b) <= largeBody:
			largeBodies.Put(b)
		}
	}
	return b
}

// ReadBody reads the whole body of r, decoded by its Content-Encoding (gzip, zstd or identity), into a pooled buffer.
// The caller calls release once when it no longer needs the bytes, and not at all after an error. limit bounds the
// bytes on the wire and, apart from them, the decoded ones; nothing is allocated for an announced length that has not
// arrived. A body without a length (chunked, HTTP/2) is read like any other.
//
// Errors: topology.ErrTooLarge, ErrEncoding, ErrBodyTimeout, and topology.ErrInvalid for a body that ends early or does
// not decode. RefuseError answers each as it should be.
func ReadBody(_ http.ResponseWriter, r *http.Request, limit int64) (body []byte, release func(), err error) {
	encoding, err := contentEncoding(r.Header)
	if err != nil {
		return nil, nil, err
	}
	if r.ContentLength > limit {
		return nil, nil, fmt.Errorf("the request body has %d bytes, allowed are %d: %w", r.ContentLength, limit, topology.ErrTooLarge)
	}
	if encoding == "" {
		b := newBuffer(int(min(max(r.ContentLength, 0), largeBody)))
		if err := b.fill(r.Body, r.ContentLength, limit); err != nil {
			b.release()
			return nil, nil, bodyError(err, limit)
		}
		return b.b, b.release, nil
	}
	return readEncoded(r, encoding, limit)
}

// contentEncoding is "", "gzip" or "zstd".
func contentEncoding(h http.Header) (string, error) {
	values := h["Content-Encoding"]
	if len(values) == 0 {
		return "", nil
	}
	switch e := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); e {
	case "", "identity":
		return "", nil
	case "gzip", "x-gzip":
		return "gzip", nil
	case "zstd":
		return "zstd", nil
	default:
		return "", fmt.Errorf("%w %q; allowed are %s, identity", ErrEncoding, e, acceptedEncodings)
	}
}

// errLimit means that a body goes on past the limit.
var errLimit = errors.New("limit")

// fill appends what src yields: exactly length bytes, or all of them when length is negative. It grows b as bytes
// arrive.
func (b *buffer) fill(src io.Reader, length, limit int64) error {
	if want := min(length, limit, firstRead); int64(cap(b.b)) < want {
		b.b = make([]byte, 0, want)
	}
	for {
		if length >= 0 && int64(len(b.b)) == length {
			return nil
		}
		if len(b.b) == cap(b.b) {
			if int64(len(b.b)) > limit {
				return errLimit
			}
			b.grow(length, limit)
		}
		n, err := src.Read(b.b[len(b.b):cap(b.b)])
		b.b = b.b[:len(b.b)+n]
		switch {
		case int64(len(b.b)) > limit:
			return errLimit
		case err == io.EOF && length >= 0 && int64(len(b.b)) < length:
			return io.ErrUnexpectedEOF
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// grow doubles the capacity, up to the announced length, or else to one byte more than the limit, which shows that a
// body is too large.
func (b *buffer) grow(length, limit int64) {
	size := max(4<<10, 2*int64(cap(b.b)))
	if length >= 0 {
		size = min(size, max(length, 1))
	} else {
		size = min(size, limit+1)
	}
	bigger := make([]byte, len(b.b), max(size, int64(len(b.b))+1))
	copy(bigger, b.b)
	b.b = bigger
}

func bodyError(err error, limit int64) error {
	switch {
	case errors.Is(err, errLimit):
		return fmt.Errorf("the request body has more than %d bytes: %w", limit, topology.ErrTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrBodyTimeout
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w body: it ends before its announced length", topology.ErrInvalid)
	default:
		return fmt.Errorf("%w body: %w", topology.ErrInvalid, err)
	}
}

// wire is the encoded body: it bounds its bytes and remembers what the connection said, which decoders wrap or hide.
type wire struct {
	r    io.Reader
	left int64
	err  error
}

func (w *wire) Read(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	if int64(len(p)) > w.left+1 {
		p = p[:w.left+1]
	}
	n, err := w.r.Read(p)
	w.left -= int64(n)
	if w.left < 0 {
		err = errLimit
	}
	if err != nil {
		w.err = err
	}
	return n, err
}

var (
	gzipReaders sync.Pool
	zstdReaders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			panic("httpd: the options of the zstd decoder are refused: " + err.Error())
		}
		return d
	}}
)

func readEncoded(r *http.Request, encoding string, limit int64) ([]byte, func(), error) {
	src := &wire{r: r.Body, left: limit}
	b := newBuffer(smallBody)
	err := b.decode(src, encoding, limit)
	if err == nil {
		return b.b, b.release, nil
	}
	b.release()
	switch {
	case src.err != nil && src.err != io.EOF:
		return nil, nil, bodyError(src.err, limit)
	case errors.Is(err, errLimit):
		return nil, nil, fmt.Errorf("the decoded request body has more than %d bytes: %w", limit, topology.ErrTooLarge)
	default:
		return nil, nil, fmt.Errorf("%w body: it is not valid %s: %w", topology.ErrInvalid, encoding, err)
	}
}

func (b *buffer) decode(src *wire, encoding string, limit int64) error {
	switch encoding {
	case "gzip":
		z, ok := gzipReaders.Get().(*gzip.Reader)
		if !ok {
			z = new(gzip.Reader)
		}
		defer gzipReaders.Put(z)
		if err := z.Reset(src); err != nil {
			return err
		}
		return b.fill(z, -1, limit)
	default:
		d := zstdReaders.Get().(*zstd.Decoder)
		defer func() {
			_ = d.Reset(nil)
			zstdReaders.Put(d)
		}()
		if err := d.Reset(src); err != nil {
			return err
		}
		return b.fill(d, -1, limit)
	}
}
