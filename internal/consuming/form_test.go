package consuming

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// item is an element of a binary answer, decoded as the published Go client does it.
type item struct {
	token   int64
	version uint32
	topic   string
	start   int64
	values  []string
	times   []int64
}

// parseBinary reads an answer by docs/wire.md, 5.2.1.
func parseBinary(t rapidT, body []byte) []item {
	t.Helper()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer d.Close()
	count, b := int(binary.BigEndian.Uint16(body)), body[2:]
	var items []item
	for range count {
		n := int(b[13])
		it := item{
			token: int64(binary.BigEndian.Uint64(b)), version: binary.BigEndian.Uint32(b[9:]), topic: string(b[14 : 14+n]),
			start: int64(binary.BigEndian.Uint64(b[14+n:])),
		}
		if b[8] != 0 {
			t.Fatalf("range index %d", b[8])
		}
		size := int(int32(binary.BigEndian.Uint32(b[22+n:])))
		raw, err := d.DecodeAll(b[26+n:26+n+size], nil)
		if err != nil || len(raw) == 0 {
			t.Fatalf("payload of %d bytes: %v", size, err)
		}
		for len(raw) > 0 {
			l := int(binary.BigEndian.Uint32(raw[8:]))
			if l == 0 {
				t.Fatalf("a record without a value (docs/wire.md, 0.15)")
			}
			it.times = append(it.times, int64(binary.BigEndian.Uint64(raw)))
			it.values = append(it.values, string(raw[12:12+l]))
			raw = raw[12+l:]
		}
		items = append(items, it)
		b = b[26+n+size:]
	}
	if len(b) != 0 {
		t.Fatalf("%d bytes after the last item", len(b))
	}
	return items
}

type rapidT interface {
	Helper()
	Fatalf(format string, args ...any)
}

// docs/wire.md, 5.2.1, byte for byte.
func TestBinaryAnswersArePinned(t *testing.T) {
	topic := topology.Topic{Name: "t1", Partitions: 3}
	f := newBinaryForm(false)
	defer f.release()
	f.append(&run{topic: &topic, partition: 1, version: 7, records: []recordbatch.Record{
		{Offset: 5, Timestamp: 1_700_000_000_000, Key: []byte("left out"), Value: []byte(`{"a":1}`)},
		{Offset: 6, Timestamp: 1_700_000_000_001, Value: []byte("x")},
	}})
	contentType, parts := f.finish()
	want := "0001" + // items
		"d555555555555000" + "00" + "00000007" + "02" + "7431" + "0000000000000005" + "0000002d" + // place, length of the payload
		"28b52ffd" + "80" + "38" + "20000000" + "010100" + // frame of one raw block of 32 bytes
		"00060a24181e4000" + "00000007" + "7b2261223a317d" +
		"00060a24181e43e8" + "00000001" + "78"
	if got := hex.EncodeToString(slices.Concat(parts...)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if contentType != "application/vnd.polar.consumermessage" {
		t.Errorf("content type %q (docs/wire.md, 0.3)", contentType)
	}
}

// Any decoder of zstd reads the frames, with blocks of all sizes and both settings; empty and null values are left out,
// offsets stay right (docs/wire.md, 0.15).
func TestBinaryAnswersDecode(t *testing.T) {
	for _, compress := range []bool{false, true} {
		rapid.Check(t, func(t *rapid.T) {
			topic := topology.Topic{Name: rapid.StringMatching(`[a-z]{1,249}`).Draw(t, "topic"), Partitions: 12}
			f := newBinaryForm(compress)
			defer f.release()
			want := map[int64]string{}
			offset := topology.Offset(rapid.Int64Range(0, 1<<40).Draw(t, "offset"))
			for range rapid.IntRange(1, 4).Draw(t, "chunks") {
				var records []recordbatch.Record
				for range rapid.IntRange(1, 6).Draw(t, "records") {
					size := rapid.SampledFrom([]int{-1, 0, 1, 100, 70_000, 131_060, 200_000}).Draw(t, "size")
					r := recordbatch.Record{Offset: offset, Timestamp: int64(offset)}
					if size >= 0 {
						r.Value = bytes.Repeat([]byte{byte('a' + offset%26)}, size)
					}
					if size > 0 {
						want[int64(offset)] = string(r.Value)
					}
					records = append(records, r)
					offset++
				}
				f.append(&run{topic: &topic, partition: 3, version: 2, records: records})
			}
			if f.empty() != (len(want) == 0) {
				t.Fatalf("empty: %v, with %d values", f.empty(), len(want))
			}
			_, parts := f.finish()
			checkParts(t, f, parts)
			for _, it := range parseBinary(t, slices.Concat(parts...)) {
				if it.topic != topic.Name || it.token != int64(topic.PartitionToken(3)) || it.version != 2 {
					t.Fatalf("item %+v", it)
				}
				for i, v := range it.values {
					at := it.start + int64(i)
					if want[at] != v || it.times[i] != at*1000 {
						t.Fatalf("offset %d: %d bytes at %d µs, want %d bytes", at, len(v), it.times[i], len(want[at]))
					}
					delete(want, at)
				}
			}
			if len(want) > 0 {
				t.Fatalf("%d values are missing", len(want))
			}
		})
	}
}

// docs/wire.md, 5.2.1: no head of an item lies in two frames of 16 KiB, when each part is framed by itself.
func checkParts(t *rapid.T, f *binaryForm, parts [][]byte) {
	starts := []int{}
	at := 0
	for _, p := range parts {
		for n := 0; n < len(p); n += frameBytes {
			starts = append(starts, at+n)
		}
		at += len(p)
		if len(parts) > 1 && len(p) < 4096 && at != len(f.b) {
			t.Fatalf("a part of %d bytes: the server would gather it with the next one", len(p))
		}
	}
	for _, h := range f.heads {
		end := h + 14 + int(f.b[h+13]) + 12
		for _, s := range starts {
			if h < s && s < end {
				t.Fatalf("a frame begins at %d, within the head [%d, %d)", s, h, end)
			}
		}
	}
}

func TestTheWindowOfRawFramesHoldsTheirBlocks(t *testing.T) {
	var h zstd.Header
	if err := h.Decode(appendRecordsFrame(nil, []recordbatch.Record{{Value: make([]byte, 300_000)}})); err != nil {
		t.Fatal(err)
	}
	if h.WindowSize != rawBlockBytes || h.FrameContentSize != 300_012 || h.HasCheckSum || h.DictionaryID != 0 {
		t.Errorf("frame header %+v", h)
	}
}

// JSON as JSON, text as text, other bytes as $base64, and an answer is valid whatever was produced.
func TestValuesInJSON(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	deep, long := nested(61), strings.Repeat("9", 301)
	for name, c := range map[string]struct {
		value  []byte
		plain  string
		exact  string // "" means the same
		isText bool
	}{
		"object":             {[]byte(`{"a":[1,2.5e3,null,true]}`), `{"a":[1,2.5e3,null,true]}`, "", false},
		"number":             {[]byte(`-0.5`), `-0.5`, "", false},
		"spaces around":      {[]byte(" 1\n"), " 1\n", "", false},
		"string":             {[]byte(`"x"`), `"x"`, "", false},
		"text":               {[]byte(`hello "you"`), `"hello \"you\""`, "", true},
		"text with controls": {[]byte("a\x00\x1f\n\t\r\\"), `"a\u0000\u001f\n\t\r\\"`, "", true},
		"broken JSON":        {[]byte(`{"a":}`), `"{\"a\":}"`, "", true},
		"two values":         {[]byte(`1 2`), `"1 2"`, "", true},
		"only space":         {[]byte(` `), `" "`, "", true},
		"leading zero":       {[]byte(`01`), `"01"`, "", true},
		"bytes":              {[]byte{0xff, 0xfe}, `{"$base64":"//4="}`, "", false},
		"JSON not in UTF-8":  {[]byte("\"\xff\""), `{"$base64":"Iv8i"}`, "", false},
		"empty":              {[]byte{}, `""`, "", true},
		"null":               {nil, `null`, "", false},
		"null as JSON":       {[]byte(`null`), `null`, `{"$base64":"bnVsbA=="}`, false},
		"null with space":    {[]byte(" null\n"), " null\n", `{"$base64":"IG51bGwK"}`, false},
		"null in an array":   {[]byte(`[null]`), `[null]`, "", false},
		"deep":               {[]byte(nested(60)), nested(60), "", false},
		"too deep":           {[]byte(deep), `"` + deep + `"`, "", true},
		"long number":        {[]byte("[" + long[:300] + "]"), "[" + long[:300] + "]", "", false},
		"too long a number":  {[]byte("[" + long + "]"), `"[` + long + `]"`, "", true},
		"large exponent":     {[]byte(`1.5E+308`), `1.5E+308`, "", false},
		"out of range":       {[]byte(`{"a":-1e309}`), `"{\"a\":-1e309}"`, "", true},
		"close to zero":      {[]byte(`1e-999`), `1e-999`, "", false},
		"looks wrapped":      {[]byte(`{"$base64":"aGk="}`), `{"$base64":"aGk="}`, `{"$base64":"eyIkYmFzZTY0IjoiYUdrPSJ9"}`, false},
		"wrapped by escapes": {[]byte(`{ "\u0024text":"x"}`), `{ "\u0024text":"x"}`, `{"$base64":"eyAiXHUwMDI0dGV4dCI6IngifQ=="}`, false},
		"a schema":           {[]byte(`{"$schema":"x"}`), `{"$schema":"x"}`, "", false},
	} {
		got, isText := appendValue(nil, c.value, false)
		if string(got) != c.plain || isText != c.isText || !json.Valid(got) {
			t.Errorf("%s: %s, text %v; want %s, %v", name, got, isText, c.plain, c.isText)
		}
		want := c.exact
		if want == "" {
			want = c.plain
		}
		if got, _ := appendValue(nil, c.value, true); string(got) != want {
			t.Errorf("%s, exact: %s, want %s", name, got, want)
		}
	}
}

// The exact form says what the bytes were.
func TestValuesSurviveTheExactForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := drawBytes(t, "value")
		form, isText := appendValue(nil, value, true)
		if !json.Valid(form) || !utf8.Valid(form) {
			t.Fatalf("%q is shown as %q, which is no JSON", value, form)
		}
		if got := valueOf(t, form, isText); !bytes.Equal(got, value) {
			t.Fatalf("%q is shown as %s (text %v), which says %q", value, form, isText, got)
		}
	})
}

// valueOf is what a client makes of a value in the form of records.
func valueOf(t rapidT, form []byte, isText bool) []byte {
	var wrapped map[string]string
	switch {
	case string(bytes.TrimSpace(form)) == "null":
		return nil
	case isText:
		var s string
		if err := json.Unmarshal(form, &s); err != nil {
			t.Fatalf("%v", err)
		}
		return []byte(s)
	case json.Unmarshal(form, &wrapped) == nil && len(wrapped) == 1 && wrapped["$base64"] != "":
		b, err := base64.StdEncoding.DecodeString(wrapped["$base64"])
		if err != nil {
			t.Fatalf("%v", err)
		}
		return b
	}
	return form
}

func drawBytes(t *rapid.T, label string) []byte {
	return rapid.OneOf(
		rapid.SliceOfN(rapid.Byte(), 1, 40),
		rapid.Map(rapid.StringN(1, 20, -1), func(s string) []byte { return []byte(s) }),
		rapid.Map(rapid.SampledFrom([]string{`{"a":1}`, `[]`, `"x"`, `12`, `{"$base64":"aGk="}`, `{"$text":"a"}`, `nul`, `tru`, `null`}), func(s string) []byte { return []byte(s) }),
	).Draw(t, label)
}

// Whatever is produced, answers are valid JSON, and whole records come out as they went in.
func TestRecordsInJSON(t *testing.T) {
	topic := topology.Topic{Name: "t", Partitions: 1}
	rapid.Check(t, func(t *rapid.T) {
		var records []recordbatch.Record
		for i := range rapid.IntRange(1, 5).Draw(t, "records") {
			r := recordbatch.Record{Offset: topology.Offset(i), Timestamp: rapid.Int64Range(-5, 1<<41).Draw(t, "timestamp"), Value: drawBytes(t, "value")}
			if rapid.Bool().Draw(t, "keyed") {
				r.Key = drawBytes(t, "key")
			}
			for range rapid.IntRange(0, 2).Draw(t, "headers") {
				r.Headers = append(r.Headers, recordbatch.RecordHeader{Key: string(drawBytes(t, "name")), Value: drawBytes(t, "header")})
			}
			r.Headers = append(r.Headers, recordbatch.RecordHeader{Key: recordbatch.HiddenPrefix + "idem", Value: []byte("x")})
			records = append(records, r)
		}
		for _, f := range []form{newJSONForm(), newRecordsForm()} {
			f.append(&run{topic: &topic, version: 3, records: records})
			mark := f.mark()
			f.append(&run{topic: &topic, version: 3, records: records})
			f.cut(mark)
			_, parts := f.finish()
			body := slices.Concat(parts...)
			if !json.Valid(body) || !utf8.Valid(body) || bytes.Contains(body, []byte(recordbatch.HiddenPrefix)) {
				t.Fatalf("%T: %s", f, body)
			}
			if _, ok := f.(*recordsForm); ok {
				compareRecords(t, body, records)
			}
			f.release()
		}
	})
}

// sameValue compares what a reader got with what was produced. White space around JSON is lost to every reader of JSON.
func sameValue(got, want []byte) bool {
	return bytes.Equal(got, want) || json.Valid(want) && bytes.Equal(got, bytes.Trim(want, " \t\r\n"))
}

func compareRecords(t *rapid.T, body []byte, records []recordbatch.Record) {
	var list []struct {
		Records []struct {
			Offset    topology.Offset
			Timestamp int64
			Key       json.RawMessage
			Headers   [][2]json.RawMessage
			Value     json.RawMessage
			Text      bool
		}
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list) != 1 || len(list[0].Records) != len(records) {
		t.Fatalf("%v: %s", err, body)
	}
	text := func(form json.RawMessage) string { return string(valueOf(t, form, form[0] == '"')) }
	for i, got := range list[0].Records {
		want := records[i]
		if got.Offset != want.Offset || got.Timestamp != want.Timestamp || !sameValue(valueOf(t, got.Value, got.Text), want.Value) {
			t.Fatalf("record %d: %+v, want %+v", i, got, want)
		}
		if (want.Key == nil) != (string(got.Key) == "null") || want.Key != nil && text(got.Key) != string(want.Key) {
			t.Fatalf("key %s, want %q", got.Key, want.Key)
		}
		if len(got.Headers) != len(want.Headers)-1 {
			t.Fatalf("%d headers, want all but the hidden one", len(got.Headers))
		}
		for j, h := range got.Headers {
			if text(h[0]) != want.Headers[j].Key || text(h[1]) != string(want.Headers[j].Value) {
				t.Fatalf("header %s, want %q", h, want.Headers[j])
			}
		}
	}
}

// The validator agrees with the standard library, but for what is beyond its bounds.
func FuzzValidJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,"\u00e9\n"],"b":null}`, `[`, `01`, `1.`, `-`, `"\ud800"`, "\"\x1f\"", `tru`, ` [] `, `[1,]`, `{"a"}`, `1e5`, `1e309`, "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, v []byte) {
		got, want := validJSON(v), json.Valid(v)
		var decoded any
		switch {
		case got && json.Unmarshal(v, &decoded) != nil:
			t.Errorf("validJSON(%q), but common readers refuse it", v)
		case bytes.Count(v, []byte("["))+bytes.Count(v, []byte("{")) > maxDepth, len(v) > maxNumber:
			want = want && got
		default:
			want = want && json.Unmarshal(v, &decoded) == nil // numbers out of range
		}
		if got != want {
			t.Errorf("validJSON(%q) = %v, the standard library says %v", v, got, want)
		}
	})
}

func BenchmarkValidJSON(b *testing.B) {
	var v []byte
	v = append(v, '[')
	for i := range 20 {
		v = fmt.Appendf(v, `{"id":%d,"name":"somebody with a name","active":true},`, i)
	}
	v = append(v, `{}]`...)
	for name, fn := range map[string]func([]byte) bool{"own": validJSON, "standard": json.Valid} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(v)))
			b.ReportAllocs()
			for b.Loop() {
				if !fn(v) {
					b.Fatal("not valid")
				}
			}
		})
	}
}
