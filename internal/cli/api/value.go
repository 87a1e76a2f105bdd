package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Value is the JSON form of bytes in the records shape (docs/http-api.md): null, {"$base64":"..."}, {"$text":"..."}, a
// string, or any other JSON that stands for itself. A string is the text of a key or header; as the value of a record it
// is that too when the record says "text", and else a JSON document like any other.
type Value json.RawMessage

// MarshalJSON gives the form as it came.
func (v Value) MarshalJSON() ([]byte, error) {
	if v == nil {
		return []byte("null"), nil
	}
	return v, nil
}

// UnmarshalJSON keeps a copy of b.
func (v *Value) UnmarshalJSON(b []byte) error {
	*v = append((*v)[:0], b...)
	return nil
}

// Null tells whether v stands for no bytes at all.
func (v Value) Null() bool { return len(v) == 0 || string(v) == "null" }

// Document are the bytes v stands for as the value of a record; text is what the record says. nil for null.
func (v Value) Document(text bool) ([]byte, error) {
	if !text && len(v) > 0 && v[0] == '"' {
		return v, nil
	}
	return v.Bytes()
}

// Bytes are the bytes v stands for as a key or header, nil for null.
func (v Value) Bytes() ([]byte, error) {
	switch {
	case v.Null():
		return nil, nil
	case v[0] == '"':
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			return nil, fmt.Errorf("decode a string value: %w", err)
		}
		return []byte(s), nil
	case v[0] == '{' && bytes.Contains(v, []byte(`"$`)):
		return v.wrapped()
	}
	return v, nil
}

// wrapped unwraps an object whose only field is $base64 or $text; any other object stands for itself.
func (v Value) wrapped() ([]byte, error) {
	var object map[string]json.RawMessage
	if json.Unmarshal(v, &object) != nil || len(object) != 1 {
		return v, nil
	}
	var s string
	if raw, ok := object["$text"]; ok && json.Unmarshal(raw, &s) == nil {
		return []byte(s), nil
	}
	if raw, ok := object["$base64"]; ok && json.Unmarshal(raw, &s) == nil {
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return nil, fmt.Errorf("decode a $base64 value: %w", err)
		}
		return b, nil
	}
	return v, nil
}

// AppendText appends the form of the text or bytes b to dst: {"$text":...} where b is UTF-8, else {"$base64":...}, null
// for nil. Whatever b looks like, the broker stores exactly b.
func AppendText(dst, b []byte) []byte {
	switch {
	case b == nil:
		return append(dst, "null"...)
	case utf8.Valid(b):
		dst = append(dst, `{"$text":`...)
		dst = AppendString(dst, b)
	default:
		dst = append(dst, `{"$base64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b)
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// AppendKey appends the form of a key: a string where b is text without control characters, else {"$base64":...}, null
// for nil.
func AppendKey(dst, b []byte) []byte {
	if b == nil {
		return append(dst, "null"...)
	}
	if utf8.Valid(b) && bytes.IndexFunc(b, unicode.IsControl) < 0 {
		return AppendString(dst, b)
	}
	dst = append(dst, `{"$base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, `"}`...)
}

// AppendString appends b, which is UTF-8, as a JSON string.
func AppendString(dst, b []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i, c := range b {
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
			continue
		}
		dst = append(dst, b[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, b[start:]...)
	return append(dst, '"')
}
