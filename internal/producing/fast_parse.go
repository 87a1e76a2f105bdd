package producing

import (
	"bytes"
	"unsafe"

	"github.com/skeinmq/skein/internal/topology"
)

// verdict is what the front of a connection's bytes turns out to be.
type verdict int

const (
	headMore  verdict = iota // not told yet: read on
	headPlain                // a plain produce request, whose head is whole
	headOther                // anything else: net/http knows what to do
)

// fastHead is the head of a plain produce request. All slices alias the bytes it was parsed from.
type fastHead struct {
	size        int // bytes of the head, with the empty line
	topic       []byte
	query       []byte
	length      int64 // of the body, > 0
	contentType []byte
	accept      []byte
	key         []byte // Idempotency-Key
	headers     [][]byte
	close       bool // the client wants the connection closed
}

const (
	fastMethod = "POST /v1/topic/"
	fastPath   = "/messages"
	fastProto  = " HTTP/1.1"
)

// parseHead looks at the front of b. It takes nothing but what it understands fully: a POST of a produce path with a
// valid topic name, HTTP/1.1, one Host, one Content-Length above 0 that is at most limit, and no header that changes how
// the body is sent or how the connection goes on. So net/http, which gets all else, would read the same from it.
func (h *fastHead) parseHead(b []byte, limit int64) verdict {
	*h = fastHead{headers: h.headers[:0]}
	if n := min(len(b), len(fastMethod)); string(b[:n]) != fastMethod[:n] {
		return headOther
	}
	line, rest, v := headLine(b)
	if v != headPlain {
		return v
	}
	if !h.requestLine(line) {
		return headOther
	}
	hosts := 0
	h.length = -1
	for {
		if line, rest, v = headLine(rest); v != headPlain {
			return v
		}
		if len(line) == 0 {
			break
		}
		if !h.field(line, &hosts) {
			return headOther
		}
	}
	if hosts != 1 || h.length <= 0 || h.length > limit {
		return headOther
	}
	h.size = len(b) - len(rest)
	return headPlain
}

// headLine splits b after its first line, which ends with CR LF.
func headLine(b []byte) (line, rest []byte, v verdict) {
	i := bytes.IndexByte(b, '\n')
	switch {
	case i < 0:
		return nil, nil, headMore
	case i == 0 || b[i-1] != '\r':
		return nil, nil, headOther
	}
	return b[:i-1], b[i+1:], headPlain
}

// requestLine reads the first line, whose front is fastMethod.
func (h *fastHead) requestLine(line []byte) bool {
	target, ok := bytes.CutSuffix(line[len(fastMethod):], []byte(fastProto))
	if !ok {
		return false
	}
	for _, c := range target {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	path, query, _ := bytes.Cut(target, []byte{'?'})
	h.query = query
	h.topic, ok = bytes.CutSuffix(path, []byte(fastPath))
	return ok && topology.CheckTopicName(view(h.topic), false) == nil
}

// field takes one header field; false when it is none that is understood here.
func (h *fastHead) field(line []byte, hosts *int) bool {
	i := bytes.IndexByte(line, ':')
	if i <= 0 {
		return false
	}
	name, value := line[:i], bytes.Trim(line[i+1:], " \t")
	for _, c := range name {
		if !fieldNameBytes[c] {
			return false
		}
	}
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	switch len(name) {
	case len("Host"):
		if is(name, "host") {
			*hosts++
			return plainHost(value)
		}
	case len("Accept"):
		if is(name, "accept") {
			return once(&h.accept, value)
		}
		return !is(name, "expect")
	case len("Upgrade"):
		return !is(name, "upgrade") && !is(name, "trailer")
	case len("Connection"):
		if is(name, "connection") {
			h.close = h.close || is(value, "close")
			return is(value, "close") || is(value, "keep-alive")
		}
	case len("Content-Type"):
		if is(name, "content-type") {
			return once(&h.contentType, value)
		}
		if is(name, "skein-header") {
			h.headers = append(h.headers, value)
			return len(h.headers) <= maxRecordHeaders
		}
	case len("Content-Length"):
		if is(name, "content-length") {
			return h.contentLength(value)
		}
	case len("Idempotency-Key"):
		if is(name, "idempotency-key") {
			return len(value) > 0 && once(&h.key, value)
		}
	case len("Content-Encoding"):
		return !is(name, "content-encoding") && !is(name, "proxy-connection")
	case len("Transfer-Encoding"):
		return !is(name, "transfer-encoding")
	}
	return true // it changes nothing
}

// once sets a field that may come once; an empty one counts as none.
func once(dst *[]byte, value []byte) bool {
	if *dst != nil {
		return false
	}
	*dst = value
	return true
}

func (h *fastHead) contentLength(value []byte) bool {
	if h.length >= 0 || len(value) == 0 || len(value) > 15 {
		return false
	}
	n := int64(0)
	for _, c := range value {
		if c < '0' || c > '9' {
			return false
		}
		n = n*10 + int64(c-'0')
	}
	h.length = n
	return true
}

// is tells whether b is word, which is in lower case, in whatever case.
func is(b []byte, word string) bool {
	if len(b) != len(word) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// plainHost tells whether a host is one that nobody could object to.
func plainHost(b []byte) bool {
	for _, c := range b {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != ':' && c != '_' && c != '[' && c != ']' {
			return false
		}
	}
	return len(b) > 0
}

// fieldNameBytes are those of a token (RFC 9110).
var fieldNameBytes = func() (set [256]bool) {
	for c := range set {
		set[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		set[c] = true
	}
	return set
}()

// view is b as a string, without a copy: it must not outlive b.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
