package producing

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxJSONDepth is how deep arrays and objects may nest.
const maxJSONDepth = 1000

// jsonReader reads JSON texts (RFC 8259) in place. It is as strict as encoding/json: bytes that are no UTF-8 pass, all
// else that is wrong is refused. Strings with escapes go to arena, so they stay good until it is reset.
type jsonReader struct {
	b     []byte
	i     int
	arena []byte
}

// reset begins with another text. What was read before stays good.
func (r *jsonReader) reset(b []byte) { r.b, r.i = b, 0 }

// fail is an error at the place the reader is at, counted in bytes from 1.
func (r *jsonReader) fail(format string, args ...any) error {
	return fmt.Errorf("at byte %d: %s", r.i+1, fmt.Sprintf(format, args...))
}

func (r *jsonReader) space() {
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case ' ', '\t', '\n', '\r':
			r.i++
		default:
			return
		}
	}
}

// peek is the next byte after white space; 0 at the end.
func (r *jsonReader) peek() byte {
	r.space()
	if r.i == len(r.b) {
		return 0
	}
	return r.b[r.i]
}

// take moves past c, which must come next after white space.
func (r *jsonReader) take(c byte) error {
	if r.peek() != c {
		return r.unexpected(fmt.Sprintf("%q", c))
	}
	r.i++
	return nil
}

func (r *jsonReader) unexpected(wanted string) error {
	if r.i >= len(r.b) {
		return r.fail("it ends where %s is expected", wanted)
	}
	return r.fail("%q where %s is expected", r.b[r.i], wanted)
}

// end checks that nothing but white space is left.
func (r *jsonReader) end() error {
	if r.space(); r.i < len(r.b) {
		return r.unexpected("the end")
	}
	return nil
}

// checkJSON tells whether b is one JSON text.
func checkJSON(b []byte) error {
	r := jsonReader{b: b}
	if err := r.skip(); err != nil {
		return err
	}
	return r.end()
}

// value moves past the next value and returns its text, without white space around it.
func (r *jsonReader) value() ([]byte, error) {
	r.space()
	from := r.i
	if err := r.skip(); err != nil {
		return nil, err
	}
	return r.b[from:r.i:r.i], nil
}

// skip moves past the next value. It keeps the kinds of the open arrays and objects as bits.
func (r *jsonReader) skip() error {
	var kinds [(maxJSONDepth + 63) / 64]uint64 // bit set: an object
	depth := 0
	for {
		open, err := r.scalarOrOpen()
		if err != nil {
			return err
		}
		if open != 0 {
			if depth == maxJSONDepth {
				return r.fail("arrays and objects nest deeper than %d", maxJSONDepth)
			}
			bit := uint64(1) << (depth & 63)
			kinds[depth>>6] &^= bit
			if open == '{' {
				kinds[depth>>6] |= bit
			}
			depth++
			empty, err := r.first(open)
			if err != nil {
				return err
			}
			if !empty {
				continue
			}
			depth--
		}
		for { // a value has ended
			if depth == 0 {
				return nil
			}
			object := kinds[(depth-1)>>6]>>((depth-1)&63)&1 != 0
			more, err := r.next(object)
			if err != nil {
				return err
			}
			if more {
				break
			}
			depth--
		}
	}
}

// scalarOrOpen moves past a string, number or word, or past the bracket that opens an array or object, which it returns.
func (r *jsonReader) scalarOrOpen() (byte, error) {
	switch c := r.peek(); c {
	case '{', '[':
		r.i++
		return c, nil
	case '"':
		_, err := r.rawString()
		return 0, err
	case 't':
		return 0, r.word("true")
	case 'f':
		return 0, r.word("false")
	case 'n':
		return 0, r.word("null")
	default:
		if c == '-' || c >= '0' && c <= '9' {
			return 0, r.number()
		}
		return 0, r.unexpected("a value")
	}
}

// first moves to the first value of an array or object that was just opened, or past its end when it is empty.
func (r *jsonReader) first(open byte) (empty bool, err error) {
	c := r.peek()
	if open == '[' && c == ']' || open == '{' && c == '}' {
		r.i++
		return true, nil
	}
	if open == '{' {
		return false, r.name()
	}
	return false, nil
}

// next moves past the comma and name before another value, or past the end of the array or object.
func (r *jsonReader) next(object bool) (more bool, err error) {
	switch c := r.peek(); {
	case c == ',':
		r.i++
		if object {
			return true, r.name()
		}
		return true, nil
	case object && c == '}', !object && c == ']':
		r.i++
		return false, nil
	case object:
		return false, r.unexpected(`"," or "}"`)
	default:
		return false, r.unexpected(`"," or "]"`)
	}
}

// name moves past a name and its colon.
func (r *jsonReader) name() error {
	if r.peek() != '"' {
		return r.unexpected("a name")
	}
	if _, err := r.rawString(); err != nil {
		return err
	}
	return r.take(':')
}

func (r *jsonReader) word(w string) error {
	if len(r.b)-r.i < len(w) || string(r.b[r.i:r.i+len(w)]) != w {
		return r.unexpected("a value")
	}
	r.i += len(w)
	return nil
}

func (r *jsonReader) digits() bool {
	from := r.i
	for r.i < len(r.b) && r.b[r.i]-'0' <= 9 {
		r.i++
	}
	return r.i > from
}

func (r *jsonReader) number() error {
	if r.b[r.i] == '-' {
		r.i++
	}
	if r.i < len(r.b) && r.b[r.i] == '0' {
		r.i++
	} else if !r.digits() {
		return r.unexpected("a digit")
	}
	if r.i < len(r.b) && r.b[r.i] == '.' {
		r.i++
		if !r.digits() {
			return r.unexpected("a digit")
		}
	}
	if r.i < len(r.b) && r.b[r.i]|0x20 == 'e' {
		r.i++
		if r.i < len(r.b) && (r.b[r.i] == '+' || r.b[r.i] == '-') {
			r.i++
		}
		if !r.digits() {
			return r.unexpected("a digit")
		}
	}
	return nil
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainBytes counts the bytes at the front of b that stand for themselves in a string: no quote, backslash or control
// character. It looks at eight at a time.
func plainBytes(b []byte) int {
	n := 0
	for len(b)-n >= 8 {
		x := binary.LittleEndian.Uint64(b[n:])
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		special := ((quote-ones)&^quote | (slash-ones)&^slash | (x-ones*0x20)&^x) & highs
		if special != 0 {
			return n + bits.TrailingZeros64(special)/8
		}
		n += 8
	}
	for n < len(b) && b[n] != '"' && b[n] != '\\' && b[n] >= 0x20 {
		n++
	}
	return n
}

// rawString moves past a string and returns what is between the quotes.
func (r *jsonReader) rawString() ([]byte, error) {
	r.i++
	from := r.i
	for {
		r.i += plainBytes(r.b[r.i:])
		if r.i == len(r.b) {
			return nil, r.fail("it ends within a string")
		}
		switch r.b[r.i] {
		case '"':
			r.i++
			return r.b[from : r.i-1 : r.i-1], nil
		case '\\':
			if err := r.escape(); err != nil {
				return nil, err
			}
		default:
			return nil, r.fail("the control character %#02x in a string; it must be escaped", r.b[r.i])
		}
	}
}

// escape moves past an escape.
func (r *jsonReader) escape() error {
	if r.i+1 == len(r.b) {
		r.i++
		return r.fail("it ends within a string")
	}
	switch r.b[r.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		r.i += 2
		return nil
	case 'u':
		if len(r.b)-r.i >= 6 && hex4(r.b[r.i+2:]) >= 0 {
			r.i += 6
			return nil
		}
	}
	return r.fail("a wrong escape in a string")
}

// hex4 is the value of four hexadecimal digits, -1 if they are none.
func hex4(b []byte) rune {
	var v rune
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return -1
		}
		v = v<<4 | rune(c)
	}
	return v
}

// str reads a string. The result aliases the text, or the arena if it had escapes.
func (r *jsonReader) str() ([]byte, error) {
	if r.peek() != '"' {
		return nil, r.unexpected("a string")
	}
	raw, err := r.rawString()
	if err != nil {
		return nil, err
	}
	for i := range raw {
		if raw[i] == '\\' {
			return r.unescape(raw), nil
		}
	}
	return raw, nil
}

// unescape appends raw, which rawString has checked, to the arena without its escapes. Half a surrogate pair becomes
// U+FFFD.
func (r *jsonReader) unescape(raw []byte) []byte {
	at := len(r.arena)
	dst := r.arena
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			n := plainBytes(raw[i:])
			dst = append(dst, raw[i:i+n]...)
			i += n
			continue
		}
		c := raw[i+1]
		i += 2
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			v := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(v) {
				low := rune(-1)
				if len(raw)-i >= 6 && raw[i] == '\\' && raw[i+1] == 'u' {
					low = hex4(raw[i+2:])
				}
				if v = utf16.DecodeRune(v, low); v != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, v)
		default:
			dst = append(dst, c)
		}
	}
	r.arena = dst
	return dst[at:len(dst):len(dst)]
}

var errBase64 = errors.New(`"$base64" must be a string of standard base64 with padding`)

// base64 reads a string of base64 into the arena.
func (r *jsonReader) base64() ([]byte, error) {
	if r.peek() != '"' {
		return nil, errBase64
	}
	s, err := r.str()
	if err != nil {
		return nil, err
	}
	at := len(r.arena)
	dst, err := base64.StdEncoding.Strict().AppendDecode(r.arena, s)
	if err != nil {
		return nil, errBase64
	}
	r.arena = dst
	return dst[at:len(dst):len(dst)], nil
}
