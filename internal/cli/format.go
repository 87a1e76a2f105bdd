package cli

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/skeinmq/skein/internal/cli/api"
)

// printed is a record with where it comes from, its bytes decoded.
type printed struct {
	topic     string
	partition int
	record    *api.Record
	key       []byte // nil null
	value     []byte // nil null
}

func newPrinted(topic string, partition int, r *api.Record) (printed, error) {
	p := printed{topic: topic, partition: partition, record: r}
	var err error
	if p.key, err = r.Key.Bytes(); err != nil {
		return p, fmt.Errorf("%s partition %d offset %d: key: %w", topic, partition, r.Offset, err)
	}
	if p.value, err = r.Bytes(); err != nil {
		return p, fmt.Errorf("%s partition %d offset %d: value: %w", topic, partition, r.Offset, err)
	}
	return p, nil
}

// appender appends the printed form of a record.
type appender func(dst []byte, p printed) ([]byte, error)

// parseFormat compiles a format of kcat's kind. Its tokens are listed in docs/cli.md.
func parseFormat(format string) (appender, error) {
	var parts []appender
	literal := []byte(nil)
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			literal = append(literal, format[i])
			continue
		}
		if i++; i == len(format) {
			return nil, fmt.Errorf("format %q ends with %%; write %%%% for a percent sign", format)
		}
		if format[i] == '%' {
			literal = append(literal, '%')
			continue
		}
		part, known := formatTokens[format[i]]
		if !known {
			return nil, fmt.Errorf("format %q has the unknown token %%%c; known are %%t %%p %%o %%k %%K %%v %%s %%S %%R %%T %%h %%%%", format, format[i])
		}
		parts = append(parts, literalPart(literal), part)
		literal = nil
	}
	parts = append(parts, literalPart(literal))
	return func(dst []byte, p printed) ([]byte, error) {
		var err error
		for _, part := range parts {
			if dst, err = part(dst, p); err != nil {
				return dst, err
			}
		}
		return dst, nil
	}, nil
}

func literalPart(b []byte) appender {
	text := unescape(string(b))
	return func(dst []byte, _ printed) ([]byte, error) { return append(dst, text...), nil }
}

func appendValue(dst []byte, p printed) ([]byte, error) { return append(dst, p.value...), nil }

var formatTokens = map[byte]appender{
	't': func(dst []byte, p printed) ([]byte, error) { return append(dst, p.topic...), nil },
	'p': func(dst []byte, p printed) ([]byte, error) {
		return strconv.AppendInt(dst, int64(p.partition), 10), nil
	},
	'o': func(dst []byte, p printed) ([]byte, error) { return strconv.AppendInt(dst, p.record.Offset, 10), nil },
	'k': func(dst []byte, p printed) ([]byte, error) { return append(dst, p.key...), nil },
	'v': appendValue,
	's': appendValue,
	'K': func(dst []byte, p printed) ([]byte, error) { return strconv.AppendInt(dst, length(p.key), 10), nil },
	'S': func(dst []byte, p printed) ([]byte, error) { return strconv.AppendInt(dst, length(p.value), 10), nil },
	'R': func(dst []byte, p printed) ([]byte, error) {
		return binary.BigEndian.AppendUint32(dst, uint32(length(p.value))), nil
	},
	'T': func(dst []byte, p printed) ([]byte, error) {
		return strconv.AppendInt(dst, p.record.Timestamp, 10), nil
	},
	'h': appendHeaders,
}

// length is that of b, -1 for null.
func length(b []byte) int64 {
	if b == nil {
		return -1
	}
	return int64(len(b))
}

func appendHeaders(dst []byte, p printed) ([]byte, error) {
	for i, h := range p.record.Headers {
		if i > 0 {
			dst = append(dst, ',')
		}
		value, err := h.Value.Bytes()
		if err != nil {
			return dst, fmt.Errorf("header %q: %w", h.Key, err)
		}
		dst = append(append(append(dst, h.Key...), '='), value...)
	}
	return dst, nil
}

// appendLine appends the value and a newline: the default form.
func appendLine(dst []byte, p printed) ([]byte, error) {
	return append(append(dst, p.value...), '\n'), nil
}

// appendJSON appends the record as one line of JSON that produce --records takes. The value is JSON where it was stored
// as JSON (put on one line), a string where it is other text, which "text" tells.
func appendJSON(dst []byte, p printed) ([]byte, error) {
	dst = append(dst, `{"topic":`...)
	dst = api.AppendString(dst, []byte(p.topic))
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(p.partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, p.record.Offset, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, p.record.Timestamp, 10)
	dst = append(dst, `,"key":`...)
	dst = appendOneLine(dst, p.record.Key)
	if len(p.record.Headers) > 0 {
		headers, err := json.Marshal(p.record.Headers)
		if err != nil {
			return dst, fmt.Errorf("encode the headers: %w", err)
		}
		dst = append(append(dst, `,"headers":`...), headers...)
	}
	dst = append(dst, `,"value":`...)
	dst = appendOneLine(dst, p.record.Value)
	if p.record.Text {
		dst = append(dst, `,"text":true`...)
	}
	return append(dst, '}', '\n'), nil
}

// appendOneLine appends the JSON v without line breaks.
func appendOneLine(dst []byte, v api.Value) []byte {
	if len(v) == 0 {
		return append(dst, "null"...)
	}
	if bytes.IndexByte(v, '\n') < 0 && bytes.IndexByte(v, '\r') < 0 {
		return append(dst, v...)
	}
	var out bytes.Buffer
	if json.Compact(&out, v) != nil {
		return append(dst, v...)
	}
	return append(dst, out.Bytes()...)
}
