package producing

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// Bodies are read into pooled buffers, of two sizes so that small bodies do not hold large buffers. Memory is reserved
// and taken as bytes arrive, whatever length was announced, so a slow sender holds what it has sent.
const (
	smallBody  = 16 << 10
	largeBody  = 1 << 20
	firstRead  = 64 << 10 // reserved at once
	bodyWindow = 8 << 20  // of a zstd stream; RFC 9659 asks it of HTTP contents
)

var smallBodies, largeBodies = sync.Pool{New: func() any { return new(buffer) }}, sync.Pool{New: func() any { return new(buffer) }}

func newBody(length int64) *buffer {
	if length > smallBody {
		return largeBodies.Get().(*buffer)
	}
	return smallBodies.Get().(*buffer)
}

func freeBody(b *buffer) {
	b.b = b.b[:0]
	switch n := cap(b.b); {
	case n <= smallBody:
		smallBodies.Put(b)
	case n <= largeBody:
		largeBodies.Put(b)
	}
}

// errLimit means that a body goes on past the limit.
var errLimit = errors.New("limit")

// bodyReader reads one body into b and counts it against the budget.
type bodyReader struct {
	b      *buffer
	budget *budget
	held   int64 // reserved so far
	limit  int64
}

// fill reads exactly length bytes of src, or all of them when length is negative.
//
// Errors: topology.ErrBusy, errLimit, io.ErrUnexpectedEOF, and those of src.
func (r *bodyReader) fill(src io.Reader, length int64) error {
	b := r.b.b[:0]
	defer func() { r.b.b = b }()
	bound := r.limit + 1 // the byte more shows that a body is too large
	if length >= 0 {
		bound = length
	}
	for int64(len(b)) < bound {
		if int64(len(b)) == r.held {
			more := min(max(r.held, min(bound, firstRead)), bound-r.held)
			if length < 0 && r.held == 0 {
				more = min(4<<10, bound)
			}
			if err := r.budget.reserve(more); err != nil {
				return err
			}
			r.held += more
			b = slices.Grow(b, int(more))
		}
		n, err := src.Read(b[len(b):r.held])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF && length >= 0 && int64(len(b)) < length:
			return io.ErrUnexpectedEOF
		case err == io.EOF:
			bound = int64(len(b))
		case err != nil:
			return err
		}
	}
	if int64(len(b)) > r.limit {
		return errLimit
	}
	return nil
}

// contentEncoding is "", "gzip" or "zstd".
func contentEncoding(values []string) (string, error) {
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
		return "", fmt.Errorf("%w %q; allowed are gzip, zstd, identity", httpd.ErrEncoding, e)
	}
}

// readBody reads the body of a request, decoded, and returns the buffer it is in; freeBody is due for it. What it holds
// of the budget is in req.held, also after an error.
func (p *Producer) readBody(hr *http.Request, req *request) (*buffer, error) {
	encoding, err := contentEncoding(hr.Header["Content-Encoding"])
	if err != nil {
		return nil, err
	}
	limit := p.cfg.MaxRequestBytes
	if hr.ContentLength > limit {
		return nil, fmt.Errorf("the request body has %d bytes, allowed are %d: %w", hr.ContentLength, limit, topology.ErrTooLarge)
	}
	length := hr.ContentLength
	if encoding != "" {
		length = -1
	}
	r := bodyReader{b: newBody(length), budget: &p.cfg.Coalescer.budget, limit: limit}
	if encoding == "" {
		err = r.fill(hr.Body, length)
	} else {
		err = r.decode(hr.Body, encoding)
	}
	req.held = r.held
	if err != nil {
		freeBody(r.b)
		return nil, bodyError(err, encoding, limit)
	}
	return r.b, nil
}

// bodyError tells who is at fault when a body cannot be read.
func bodyError(err error, encoding string, limit int64) error {
	decoded := ""
	if encoding != "" {
		decoded = "decoded "
	}
	var wire *wireError
	switch {
	case errors.Is(err, topology.ErrBusy):
		return err
	case errors.Is(err, errLimit):
		return fmt.Errorf("the %srequest body has more than %d bytes: %w", decoded, limit, topology.ErrTooLarge)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return httpd.ErrBodyTimeout
	case errors.As(err, &wire):
		return bodyError(wire.err, "", limit)
	case encoding != "":
		return invalid("body: it is no %s: %w", encoding, err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("body: it ends before its announced length")
	default:
		return invalid("body: %w", err)
	}
}

// wireError is an error of the connection, told apart from one of the decoder that reads from it.
type wireError struct{ err error }

func (e *wireError) Error() string { return e.err.Error() }
func (e *wireError) Unwrap() error { return e.err }

// wireReader bounds the encoded bytes and marks the errors of the connection.
type wireReader struct {
	r    io.Reader
	left int64
}

func (w *wireReader) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if w.left -= int64(n); w.left < 0 {
		return n, &wireError{errLimit}
	}
	if err != nil && err != io.EOF {
		return n, &wireError{err}
	}
	return n, err
}

var (
	gzipReaders = sync.Pool{New: func() any { return new(gzip.Reader) }}
	zstdReaders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(bodyWindow))
		if err != nil {
			panic("producing: zstd refuses its options: " + err.Error())
		}
		return d
	}}
)

// decode reads all that src decodes to.
func (r *bodyReader) decode(src io.Reader, encoding string) error {
	wire := &wireReader{r: src, left: r.limit}
	if encoding == "gzip" {
		z := gzipReaders.Get().(*gzip.Reader)
		defer gzipReaders.Put(z)
		if err := z.Reset(wire); err != nil {
			return unexpected(err)
		}
		return unexpected(r.fill(z, -1))
	}
	d := zstdReaders.Get().(*zstd.Decoder)
	defer func() {
		_ = d.Reset(nil)
		zstdReaders.Put(d)
	}()
	if err := d.Reset(wire); err != nil {
		return unexpected(err)
	}
	return unexpected(r.fill(d, -1))
}

// unexpected is err, or an early end where err is io.EOF: an encoded body is never empty.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
