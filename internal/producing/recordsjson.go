package producing

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// Bounds of what a record may have besides its value.
const (
	maxKeyBytes        = 255
	maxHeaderNameBytes = 255
	maxRecordHeaders   = 100
)

// recordsDecoder reads bodies of application/vnd.skein.records+json (docs/http-api.md): one JSON object a line.
//
//	{"key": K, "value": V, "headers": {"name": H, ...} or [["name", H], ...], "timestamp": ms}
//
// K is a string, {"$base64": "..."} or null; V is {"$base64": "..."}, {"$text": "..."}, null, or any other JSON, which
// is stored as its text; H is a string, {"$base64": "..."} or null. Only the value is required.
type recordsDecoder struct {
	json    jsonReader
	headers []recordbatch.RecordHeader // of all records
}

func (d *recordsDecoder) reset() {
	d.json.arena = d.json.arena[:0]
	clear(d.headers)
	d.headers = d.headers[:0]
}

// decode appends a record for each line of b that is not blank. What a line does not name is as in like; its headers
// come after those of like. Records alias b and the decoder. An error names the line and refuses the whole body.
func (d *recordsDecoder) decode(dst []recordbatch.Record, b []byte, like recordbatch.Record, limit int) ([]recordbatch.Record, error) {
	for n := 1; len(b) > 0; n++ {
		var line []byte
		line, b = nextLine(b)
		if isBlank(line) {
			continue
		}
		if !utf8.Valid(line) {
			return dst, invalid("line %d: it is not UTF-8", n)
		}
		r, err := d.record(line, like)
		if err != nil {
			return dst, invalid("line %d: %w", n, err)
		}
		if size := r.Bytes(); size > limit {
			return dst, fmt.Errorf("line %d: the record has %d bytes, allowed are %d: %w", n, size, limit, topology.ErrTooLarge)
		}
		dst = append(dst, r)
	}
	return dst, nil
}

// members of a record that were seen.
const (
	hasKey = 1 << iota
	hasValue
	hasHeaders
	hasTimestamp
)

func (d *recordsDecoder) record(line []byte, like recordbatch.Record) (recordbatch.Record, error) {
	r := like
	j := &d.json
	j.reset(line)
	if j.peek() != '{' {
		return r, errors.New("it is no JSON object")
	}
	seen := 0
	err := d.members(func(name []byte) error {
		var member int
		var err error
		switch string(name) {
		case "key":
			member = hasKey
			r.Key, err = d.key()
		case "value":
			member = hasValue
			r.Value, err = d.value()
		case "headers":
			member = hasHeaders
			r.Headers, err = d.headerList(like.Headers)
		case "timestamp":
			member = hasTimestamp
			r.Timestamp, err = d.timestamp(like.Timestamp)
		default:
			return fmt.Errorf("unknown member %.50q; allowed are key, value, headers, timestamp", name)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if seen&member != 0 {
			return fmt.Errorf("%s is there twice", name)
		}
		seen |= member
		return nil
	})
	if err != nil {
		return r, err
	}
	if err := j.end(); err != nil {
		return r, err
	}
	if seen&hasValue == 0 {
		return r, errors.New(`there is no "value"; null makes a record without one`)
	}
	return r, nil
}

// members calls each with the names of the object that comes next; each moves past the value.
func (d *recordsDecoder) members(each func(name []byte) error) error {
	j := &d.json
	if err := j.take('{'); err != nil {
		return err
	}
	if j.peek() == '}' {
		j.i++
		return nil
	}
	for {
		name, err := j.str()
		if err != nil {
			return err
		}
		if err := j.take(':'); err != nil {
			return err
		}
		if err := each(name); err != nil {
			return err
		}
		if j.peek() == '}' {
			j.i++
			return nil
		}
		if err := j.take(','); err != nil {
			return err
		}
	}
}

// wrapped reads an object with the one member "$base64" or, if text is allowed, "$text". ok is false, and nothing is
// read, when something else comes next.
func (d *recordsDecoder) wrapped(text bool) (b []byte, ok bool, err error) {
	j := &d.json
	from := j.i
	if j.peek() != '{' {
		return nil, false, nil
	}
	j.i++
	if j.peek() != '"' {
		j.i = from
		return nil, false, nil
	}
	name, err := j.str()
	if err != nil {
		return nil, false, err
	}
	binary := string(name) == "$base64"
	if !binary && (!text || string(name) != "$text") {
		j.i = from
		return nil, false, nil
	}
	if err := j.take(':'); err != nil {
		return nil, false, err
	}
	if binary {
		b, err = j.base64()
	} else {
		b, err = j.str()
	}
	if err != nil {
		return nil, false, err
	}
	if err := j.take('}'); err != nil {
		return nil, false, fmt.Errorf("%w: %s stands alone in its object", err, name)
	}
	return notNull(b), true, nil
}

// notNull makes an empty value of a nil one, which would stand for null.
func notNull(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func (d *recordsDecoder) key() ([]byte, error) {
	j := &d.json
	switch j.peek() {
	case 'n':
		return nil, j.word("null")
	case '"':
		k, err := j.str()
		if err != nil {
			return nil, err
		}
		return k, checkKey(k)
	default:
		k, ok, err := d.wrapped(false)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return nil, j.unexpected(`a string, {"$base64": "..."} or null`)
		case len(k) == 0 || len(k) > maxKeyBytes:
			return nil, fmt.Errorf("it has %d bytes; allowed are 1 to %d", len(k), maxKeyBytes)
		}
		return k, nil
	}
}

// checkKey refuses what is no key over a text protocol, without making a string of it.
func checkKey(k []byte) error {
	plain := len(k) > 0 && len(k) <= maxKeyBytes
	for _, c := range k {
		if c < 0x20 || c >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		return nil
	}
	return topology.CheckName("key", string(k))
}

func (d *recordsDecoder) value() ([]byte, error) {
	j := &d.json
	if j.peek() == 'n' {
		return nil, j.word("null")
	}
	v, ok, err := d.wrapped(true)
	if ok || err != nil {
		return v, err
	}
	return j.value()
}

func (d *recordsDecoder) timestamp(none int64) (int64, error) {
	text, err := d.json.value()
	if err != nil {
		return 0, err
	}
	if string(text) == "null" {
		return none, nil
	}
	ms, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil || ms < 0 || ms > maxTimestamp {
		return 0, fmt.Errorf("%.40q; allowed are whole milliseconds since the epoch, up to %d", text, int64(maxTimestamp))
	}
	return ms, nil
}

// maxTimestamp is the latest timestamp of a record in ms: docs/wire.md counts in µs.
const maxTimestamp = math.MaxInt64 / 1000

func (d *recordsDecoder) headerList(common []recordbatch.RecordHeader) ([]recordbatch.RecordHeader, error) {
	from := len(d.headers)
	d.headers = append(d.headers, common...)
	j := &d.json
	var err error
	switch j.peek() {
	case 'n':
		err = j.word("null")
	case '{':
		err = d.members(d.header)
	case '[':
		err = d.headerPairs()
	default:
		err = j.unexpected("an object, an array of pairs or null")
	}
	if err != nil {
		return nil, err
	}
	list := d.headers[from:len(d.headers):len(d.headers)]
	if len(list) > maxRecordHeaders {
		return nil, fmt.Errorf("there are %d; allowed are %d", len(list), maxRecordHeaders)
	}
	return list, nil
}

// headerPairs reads [["name", value], ...].
func (d *recordsDecoder) headerPairs() error {
	j := &d.json
	j.i++
	if j.peek() == ']' {
		j.i++
		return nil
	}
	for {
		if err := j.take('['); err != nil {
			return err
		}
		name, err := j.str()
		if err != nil {
			return err
		}
		if err := j.take(','); err != nil {
			return err
		}
		if err := d.header(name); err != nil {
			return err
		}
		if err := j.take(']'); err != nil {
			return err
		}
		if j.peek() == ']' {
			j.i++
			return nil
		}
		if err := j.take(','); err != nil {
			return err
		}
	}
}

// header reads the value of the header name.
func (d *recordsDecoder) header(name []byte) error {
	if err := checkHeaderName(string(name)); err != nil {
		return err
	}
	j := &d.json
	h := recordbatch.RecordHeader{Key: string(name)}
	var err error
	switch j.peek() {
	case 'n':
		err = j.word("null")
	case '"':
		h.Value, err = j.str()
		h.Value = notNull(h.Value)
	default:
		var ok bool
		if h.Value, ok, err = d.wrapped(false); err == nil && !ok {
			err = j.unexpected(`a string, {"$base64": "..."} or null`)
		}
	}
	d.headers = append(d.headers, h)
	return err
}

// checkHeaderName refuses what is no name of a record header.
func checkHeaderName(name string) error {
	if err := topology.CheckName("record header", name); err != nil {
		return err
	}
	if bytes.HasPrefix([]byte(name), []byte(recordbatch.HiddenPrefix)) {
		return invalid("record header %q: names that begin with %s are reserved", name, recordbatch.HiddenPrefix)
	}
	return nil
}
