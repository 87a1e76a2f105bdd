package consuming

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// appendValue appends the JSON form of the value of a record:
//
//   - null for null, and "" for an empty value
//   - JSON as it is, if it is valid, in UTF-8, and keeps to maxDepth and maxNumber
//   - other text as a string; isText tells that
//   - other bytes as {"$base64":"…"}
//
// With exact, so is JSON that stands for something else where a client unwraps this form: null, and such objects.
func appendValue(b, value []byte, exact bool) (_ []byte, isText bool) {
	switch {
	case value == nil:
		return append(b, "null"...), false
	case !utf8.Valid(value):
		return appendBase64(b, value), false
	case validJSON(value):
		if exact && (isNull(value) || isWrapped(value)) {
			return appendBase64(b, value), false
		}
		return append(b, value...), false
	}
	return appendString(b, value), true
}

// appendBytes appends what is a text mostly: null, a string, or {"$base64":"…"} where p is not UTF-8.
func appendBytes(b, p []byte) []byte {
	switch {
	case p == nil:
		return append(b, "null"...)
	case utf8.Valid(p):
		return appendString(b, p)
	}
	return appendBase64(b, p)
}

func appendBase64(b, p []byte) []byte {
	b = append(b, `{"$base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, p)
	return append(b, `"}`...)
}

// isNull tells whether valid JSON is null, which is not the same as a record without a value.
func isNull(value []byte) bool { return string(bytes.Trim(value, " \t\r\n")) == "null" }

// isWrapped tells whether valid JSON is an object whose first key is, or by its escapes may be, $base64 or $text.
func isWrapped(value []byte) bool {
	v := bytes.TrimLeft(value, " \t\r\n")
	if v[0] != '{' {
		return false
	}
	v = bytes.TrimLeft(v[1:], " \t\r\n")
	key, _, ok := bytes.Cut(bytes.TrimPrefix(v, []byte{'"'}), []byte{'"'})
	return ok && (string(key) == "$base64" || string(key) == "$text" || bytes.IndexByte(key, '\\') >= 0)
}

// appendString appends p, which is UTF-8, as a JSON string.
func appendString(b, p []byte) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	start := 0
	for i, c := range p {
		if plain[c] {
			continue
		}
		b = append(b, p[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, p[start:]...)
	return append(b, '"')
}

// plain has the bytes that stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 0x20 && c != '"' && c != '\\'
	}
	return t
}()

// Bounds of a value that is shown as JSON. Readers of answers have bounds too, often 64 levels and the range of a float64,
// which one value must not break for the whole answer.
const (
	maxDepth  = 60  // of arrays and objects in one another
	maxNumber = 300 // characters of a number
)

// validJSON tells whether v is one JSON text (RFC 8259), with space around it at most, that keeps to the bounds above.
// It does not check UTF-8. It is faster than the standard library, which steps through a function for each byte.
func validJSON(v []byte) bool {
	p := jsonParser{v: v}
	p.space()
	if !p.value(0) {
		return false
	}
	p.space()
	return p.i == len(v)
}

type jsonParser struct {
	v []byte
	i int
}

func (p *jsonParser) space() {
	for p.i < len(p.v) {
		switch p.v[p.i] {
		case ' ', '\t', '\r', '\n':
			p.i++
		default:
			return
		}
	}
}

// peek is the next byte, 0 at the end: no JSON text has that.
func (p *jsonParser) peek() byte {
	if p.i < len(p.v) {
		return p.v[p.i]
	}
	return 0
}

func (p *jsonParser) value(depth int) bool {
	switch c := p.peek(); {
	case c == '"':
		return p.text()
	case c == '{':
		return depth < maxDepth && p.object(depth+1)
	case c == '[':
		return depth < maxDepth && p.array(depth+1)
	case c == 't':
		return p.word("true")
	case c == 'f':
		return p.word("false")
	case c == 'n':
		return p.word("null")
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	return false
}

func (p *jsonParser) word(w string) bool {
	if len(p.v)-p.i < len(w) || string(p.v[p.i:p.i+len(w)]) != w {
		return false
	}
	p.i += len(w)
	return true
}

// text reads a string, whose quote is next.
func (p *jsonParser) text() bool {
	for i := p.i + 1; i < len(p.v); i++ {
		c := p.v[i]
		if plain[c] {
			continue
		}
		switch c {
		case '"':
			p.i = i + 1
			return true
		case '\\':
			if i++; i >= len(p.v) {
				return false
			}
			switch p.v[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if len(p.v)-i < 5 || !isHex(p.v[i+1:i+5]) {
					return false
				}
				i += 4
			default:
				return false
			}
		default:
			return false
		}
	}
	return false
}

func isHex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

func (p *jsonParser) object(depth int) bool {
	p.i++
	p.space()
	if p.peek() == '}' {
		p.i++
		return true
	}
	for {
		if p.peek() != '"' || !p.text() {
			return false
		}
		p.space()
		if p.peek() != ':' {
			return false
		}
		p.i++
		p.space()
		if !p.value(depth) {
			return false
		}
		if done, ok := p.next('}'); done || !ok {
			return ok
		}
	}
}

func (p *jsonParser) array(depth int) bool {
	p.i++
	p.space()
	if p.peek() == ']' {
		p.i++
		return true
	}
	for {
		if !p.value(depth) {
			return false
		}
		if done, ok := p.next(']'); done || !ok {
			return ok
		}
	}
}

// next reads what follows an element: a comma, or the end of the array or object.
func (p *jsonParser) next(end byte) (done, ok bool) {
	p.space()
	switch p.peek() {
	case ',':
		p.i++
		p.space()
		return false, true
	case end:
		p.i++
		return true, true
	}
	return false, false
}

// number reads a number that keeps to maxNumber and has its place in a float64.
func (p *jsonParser) number() bool {
	start := p.i
	exponent, ok := p.literal()
	text := p.v[start:p.i]
	if !ok || len(text) > maxNumber {
		return false
	}
	if exponent { // without one, so few digits are in range
		_, err := strconv.ParseFloat(string(text), 64)
		return err == nil
	}
	return true
}

// literal reads a number of any size and tells whether it has an exponent.
func (p *jsonParser) literal() (exponent, ok bool) {
	if p.peek() == '-' {
		p.i++
	}
	if p.peek() == '0' {
		p.i++
	} else if !p.digits() {
		return false, false
	}
	if p.peek() == '.' {
		p.i++
		if !p.digits() {
			return false, false
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.i++
		if c := p.peek(); c == '+' || c == '-' {
			p.i++
		}
		return true, p.digits()
	}
	return false, true
}

// digits reads at least one digit.
func (p *jsonParser) digits() bool {
	start := p.i
	for c := p.peek(); c >= '0' && c <= '9'; c = p.peek() {
		p.i++
	}
	return p.i > start
}
