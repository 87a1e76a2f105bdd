package consuming

import (
	"strconv"

	"github.com/skeinmq/skein/internal/recordbatch"
)

// jsonForm is the plain shape of docs/wire.md, 5.2.2: an array with one object for each chunk, which has the values of
// its records. Tokens and offsets are strings.
type jsonForm struct {
	*buffer
}

func newJSONForm() *jsonForm {
	f := &jsonForm{getBuffer()}
	f.b = append(f.b, '[')
	return f
}

func (f *jsonForm) cost(r *recordbatch.Record) int { return len(r.Value) + 1 }

func (f *jsonForm) empty() bool { return len(f.heads) == 0 }

func (f *jsonForm) mark() mark { return mark{len(f.b), len(f.heads)} }

func (f *jsonForm) cut(m mark) { f.b, f.heads = f.b[:m.bytes], f.heads[:m.items] }

func (f *jsonForm) append(r *run) int {
	b := f.b
	if len(f.heads) > 0 {
		b = append(b, ',')
	}
	f.heads = append(f.heads, len(b))
	b = append(b, `{"topic":"`...)
	b = append(b, r.topic.Name...) // names of topics need no escape
	b = append(b, `","token":"`...)
	b = strconv.AppendInt(b, int64(r.topic.PartitionToken(r.partition)), 10)
	b = append(b, `","rangeIndex":0,"version":`...)
	b = strconv.AppendUint(b, uint64(r.version), 10)
	b = append(b, `,"startOffset":"`...)
	b = strconv.AppendInt(b, int64(r.records[0].Offset), 10)
	b = append(b, `","values":[`...)
	for i := range r.records {
		if i > 0 {
			b = append(b, ',')
		}
		b, _ = appendValue(b, r.records[i].Value, false)
	}
	f.b = append(b, "]}"...)
	return len(r.records)
}

func (f *jsonForm) finish() (string, [][]byte) {
	f.b = append(f.b, ']')
	return "application/json", [][]byte{f.b}
}

func (f *jsonForm) release() { putBuffer(f.buffer) }

// recordsType is the form of whole records, with keys, headers and timestamps.
const recordsType = "application/vnd.skein.records+json"

// recordsForm is an array of objects like that of jsonForm, with whole records (docs/http-api.md). Numbers are plain,
// but for tokens.
type recordsForm struct {
	*buffer
}

func newRecordsForm() *recordsForm {
	f := &recordsForm{getBuffer()}
	f.b = append(f.b, '[')
	return f
}

// recordOverhead is about what a record takes in JSON besides its bytes.
const recordOverhead = 64

func (f *recordsForm) cost(r *recordbatch.Record) int { return r.Bytes() + recordOverhead }

func (f *recordsForm) empty() bool { return len(f.heads) == 0 }

func (f *recordsForm) mark() mark { return mark{len(f.b), len(f.heads)} }

func (f *recordsForm) cut(m mark) { f.b, f.heads = f.b[:m.bytes], f.heads[:m.items] }

func (f *recordsForm) append(r *run) int {
	b := f.b
	if len(f.heads) > 0 {
		b = append(b, ',')
	}
	f.heads = append(f.heads, len(b))
	b = append(b, `{"topic":"`...)
	b = append(b, r.topic.Name...)
	b = append(b, `","partition":`...)
	b = strconv.AppendInt(b, int64(r.partition), 10)
	b = append(b, `,"token":"`...)
	b = strconv.AppendInt(b, int64(r.topic.PartitionToken(r.partition)), 10)
	b = append(b, `","generation":`...)
	b = strconv.AppendUint(b, uint64(r.version), 10)
	b = append(b, `,"startOffset":`...)
	b = strconv.AppendInt(b, int64(r.records[0].Offset), 10)
	b = append(b, `,"records":[`...)
	for i := range r.records {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRecord(b, &r.records[i])
	}
	f.b = append(b, "]}"...)
	return len(r.records)
}

func (f *recordsForm) finish() (string, [][]byte) {
	f.b = append(f.b, ']')
	return recordsType, [][]byte{f.b}
}

func (f *recordsForm) release() { putBuffer(f.buffer) }

// appendRecord appends a record as an object:
//
//	{"offset":7,"timestamp":1700000000000,"key":"k","headers":[["h","v"]],"value":{"a":1}}
//
// The key and the values of headers are text, {"$base64":"…"} where they are not UTF-8, or null. The value is as
// appendValue says, and "text":true follows where it is a text and not JSON.
func appendRecord(b []byte, r *recordbatch.Record) []byte {
	b = append(b, `{"offset":`...)
	b = strconv.AppendInt(b, int64(r.Offset), 10)
	b = append(b, `,"timestamp":`...)
	b = strconv.AppendInt(b, r.Timestamp, 10)
	b = append(b, `,"key":`...)
	b = appendBytes(b, r.Key)
	b = append(b, `,"headers":[`...)
	first := true
	for h := range r.VisibleHeaders() {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, '[')
		b = appendBytes(b, []byte(h.Key))
		b = append(b, ',')
		b = appendBytes(b, h.Value)
		b = append(b, ']')
	}
	b = append(b, `],"value":`...)
	b, isText := appendValue(b, r.Value, true)
	if isText {
		b = append(b, `,"text":true`...)
	}
	return append(b, '}')
}
