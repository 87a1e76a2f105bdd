package producing

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// show writes records so that null, empty and bytes are told apart.
func show(records []recordbatch.Record) string {
	var b strings.Builder
	text := func(v []byte) string {
		if v == nil {
			return "null"
		}
		return fmt.Sprintf("%q", v)
	}
	for _, r := range records {
		fmt.Fprintf(&b, "%s=%s@%d", text(r.Key), text(r.Value), r.Timestamp)
		for _, h := range r.Headers {
			fmt.Fprintf(&b, " %s:%s", h.Key, text(h.Value))
		}
		b.WriteString(";")
	}
	return b.String()
}

func TestLines(t *testing.T) { // docs/wire.md 3.1
	like := recordbatch.Record{Timestamp: 5, Key: []byte("k")}
	for _, c := range []struct{ name, body, want, err string }{
		{"several", "1\n{\"a\":2}\n\"x\"\n", `"k"="1"@5;"k"="{\"a\":2}"@5;"k"="\"x\""@5;`, ""},
		{"the last without a line feed", "1\n2", `"k"="1"@5;"k"="2"@5;`, ""},
		{"carriage returns", "1\r\n2\r\n", `"k"="1"@5;"k"="2"@5;`, ""},
		{"only one carriage return goes", "1 \r\r\n", `"k"="1 \r"@5;`, ""},
		{"blank lines", "\n\r\n  \t\n1\n\n", `"k"="1"@5;`, ""},
		{"nothing but blank lines", "\n\r\n \n", "", ""},
		{"white space is kept", " 1 \n", `"k"=" 1 "@5;`, ""},
		{"no JSON", "1\n\nnope\n3\n", "", "invalid line 3: it is no JSON: at byte 1: 'n' where a value is expected"},
		{"cut short", "1\n{\"a\":", "", "invalid line 2: it is no JSON: at byte 6: it ends where a value is expected"},
		{"two values in a line", "1 2\n", "", "invalid line 1: it is no JSON: at byte 3: '2' where the end is expected"},
		{"too large", "1\n\"" + strings.Repeat("x", 60) + "\"\n", "", "line 2: the record has 63 bytes, allowed are 50: too large"},
	} {
		records, err := appendLines(nil, []byte(c.body), like, 50)
		if fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if got := show(records); err == nil && got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("1\n{\"a\":2}\r\n\n\"x\""))
	f.Add([]byte("\r\n\r\r\n1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := appendLines(nil, b, recordbatch.Record{}, 1<<20)
		if err != nil {
			if !errors.Is(err, topology.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		n := 0
		for _, line := range bytes.Split(b, []byte("\n")) {
			line = bytes.TrimSuffix(line, []byte("\r"))
			if len(bytes.Trim(line, " \t")) == 0 {
				continue
			}
			if n >= len(records) || !bytes.Equal(records[n].Value, line) {
				t.Fatalf("line %q is not record %d", line, n)
			}
			n++
		}
		if n != len(records) {
			t.Fatalf("%d records of %d lines", len(records), n)
		}
	})
}

func TestProducerFrames(t *testing.T) { // docs/wire.md 3.1
	for _, c := range []struct{ name, body, want, err string }{
		{"two", "\x00\x00\x00\x01a\x00\x00\x00\x02bc", `null="a"@5;null="bc"@5;`, ""},
		{"cut in the length", "\x00\x00\x00\x01a\x00\x00", "", "invalid body: message 2: it ends within the length"},
		{"overruns", "\x00\x00\x00\x09a", "", "invalid body: message 1 announces 9 bytes, 1 are left"},
		{"empty message", "\x00\x00\x00\x00", "", "invalid body: message 1 is empty; allowed is 1 byte or more"},
		{"too large", "\x00\x00\x00\x0b" + strings.Repeat("x", 11), "", "body: message 1: the record has 11 bytes, allowed are 10: too large"},
	} {
		records, err := appendMessages(nil, []byte(c.body), recordbatch.Record{Timestamp: 5}, 10, "body")
		if fmt.Sprint(err) != c.err && (err != nil || c.err != "") {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		}
		if got := show(records); err == nil && got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func FuzzProducerFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x01a\x00\x00\x00\x02bc"))
	f.Add([]byte("\xff\xff\xff\xffa"))
	f.Fuzz(func(t *testing.T, b []byte) {
		records, err := appendMessages(nil, b, recordbatch.Record{}, 1<<20, "body")
		if err != nil {
			return
		}
		var again []byte
		for _, r := range records {
			again = append(again, byte(len(r.Value)>>24), byte(len(r.Value)>>16), byte(len(r.Value)>>8), byte(len(r.Value)))
			again = append(again, r.Value...)
		}
		if !bytes.Equal(again, b) {
			t.Fatal("the records do not make the body again")
		}
	})
}

var recordLines = []struct{ name, line, want, err string }{
	{"only a value", `{"value":{"a": 1}}`, `null="{\"a\": 1}"@9;`, ""},
	{"all members", `{"key":"k","value":"v","headers":{"h":"1","i":null},"timestamp":7}`, `"k"="\"v\""@7 h:"1" i:null;`, ""},
	{"in another order, with spaces", ` { "timestamp" : 7 , "value" : [1, 2] , "key" : null } `, `null="[1, 2]"@7;`, ""},
	{"text", `{"value":{"$text":"a\u00e9\n\ud83d\ude00"}}`, `null="aé\n😀"@9;`, ""},
	{"base64", `{"key":{"$base64":"/wA="},"value":{"$base64":"AAEC"},"headers":[["h",{"$base64":"/w=="}],["h","2"]]}`, `"\xff\x00"="\x00\x01\x02"@9 h:"\xff" h:"2";`, ""},
	{"empty text", `{"value":{"$text":""}}`, `null=""@9;`, ""},
	{"empty base64", `{"value":{"$base64":""}}`, `null=""@9;`, ""},
	{"null value", `{"value":null}`, `null=null@9;`, ""},
	{"null members", `{"key":null,"value":1,"headers":null,"timestamp":null}`, `null="1"@9;`, ""},
	{"no headers", `{"value":1,"headers":[]}`, `null="1"@9;`, ""},
	{"an object with another $ name is JSON", `{"value":{"$other":1}}`, `null="{\"$other\":1}"@9;`, ""},
	{"an empty object is JSON", `{"value":{}}`, `null="{}"@9;`, ""},
	{"escaped names", `{"v\u0061lue":1}`, `null="1"@9;`, ""},

	{"no object", `[1]`, "", "it is no JSON object"},
	{"no value", `{"key":"k"}`, "", `there is no "value"`},
	{"unknown member", `{"value":1,"partition":3}`, "", `unknown member "partition"`},
	{"twice", `{"value":1,"value":2}`, "", "value is there twice"},
	{"cut short", `{"value":1`, "", `it ends where ',' is expected`},
	{"more after it", `{"value":1} x`, "", `'x' where the end is expected`},
	{"value is no JSON", `{"value":nope}`, "", "value: at byte 10"},
	{"key is a number", `{"key":1,"value":1}`, "", "key: at byte 8"},
	{"key is empty", `{"key":"","value":1}`, "", "key: invalid key: it is empty"},
	{"key is too long", `{"key":"` + strings.Repeat("k", 256) + `","value":1}`, "", "256 bytes"},
	{"key with a control character", `{"key":"a\u0000","value":1}`, "", "control character"},
	{"base64 key is empty", `{"key":{"$base64":""},"value":1}`, "", "allowed are 1 to 255"},
	{"base64 is wrong", `{"value":{"$base64":"a"}}`, "", "standard base64"},
	{"base64 is a number", `{"value":{"$base64":1}}`, "", "standard base64"},
	{"base64 with company", `{"value":{"$base64":"AA==","x":1}}`, "", "stands alone"},
	{"text is a number", `{"value":{"$text":1}}`, "", "a string is expected"},
	{"timestamp with a fraction", `{"value":1,"timestamp":1.5}`, "", "whole milliseconds"},
	{"timestamp is negative", `{"value":1,"timestamp":-1}`, "", "whole milliseconds"},
	{"timestamp is too large", `{"value":1,"timestamp":9223372036854775807}`, "", "whole milliseconds"},
	{"headers are a string", `{"value":1,"headers":"x"}`, "", "headers: at byte 22"},
	{"header is a number", `{"value":1,"headers":{"a":1}}`, "", "headers: at byte 27"},
	{"header without a name", `{"value":1,"headers":{"":"x"}}`, "", "record header: it is empty"},
	{"hidden header", `{"value":1,"headers":{"__skein.idem":"x"}}`, "", "reserved"},
	{"header pair too long", `{"value":1,"headers":[["a","b","c"]]}`, "", "']' is expected"},
	{"too many headers", `{"value":1,"headers":[` + strings.Repeat(`["a",null],`, 100) + `["a",null]]}`, "", "101; allowed are 100"},
	{"no UTF-8", "{\"value\":\"\xff\"}", "", "not UTF-8"},
	{"too large", `{"value":"` + strings.Repeat("x", 1000) + `"}`, "", "too large"},
}

func TestRecordsJSON(t *testing.T) { // docs/http-api.md
	for _, c := range recordLines {
		var d recordsDecoder
		body := "\n" + c.line + "\r\n"
		records, err := d.decode(nil, []byte(body), recordbatch.Record{Timestamp: 9}, 600)
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.err == "":
			if got := show(records); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		case err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "line 2"):
			t.Errorf("%s: %v, want an error of line 2 with %q", c.name, err, c.err)
		case !isClientFault(err):
			t.Errorf("%s: %v does not blame the request", c.name, err)
		}
	}
}

func TestRecordsJSONTakesTheRestFromTheRequest(t *testing.T) {
	like := recordbatch.Record{Key: []byte("pk"), Timestamp: 3, Headers: []recordbatch.RecordHeader{{Key: "all", Value: []byte("1")}}}
	var d recordsDecoder
	records, err := d.decode(nil, []byte(`{"value":1}
{"value":2,"key":null,"headers":{"own":"2"},"timestamp":4}
{"value":3,"key":"k"}`), like, 100)
	want := `"pk"="1"@3 all:"1";null="2"@4 all:"1" own:"2";"k"="3"@3 all:"1";`
	if got := show(records); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func FuzzRecordsJSON(f *testing.F) {
	for _, c := range recordLines {
		f.Add([]byte(c.line))
	}
	f.Add([]byte(`{"value":1}` + "\n" + `{"value":{"$text":"\ud800"},"key":"\u0061"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d recordsDecoder
		records, err := d.decode(nil, b, recordbatch.Record{Timestamp: 9}, 1<<20)
		if err != nil {
			if !isClientFault(err) {
				t.Fatal(err)
			}
			return
		}
		n := 0
		for _, line := range bytes.Split(b, []byte("\n")) {
			if line = bytes.TrimSuffix(line, []byte("\r")); isBlank(line) {
				continue
			}
			compareRecord(t, line, records[n])
			n++
		}
		if n != len(records) {
			t.Fatalf("%d records of %d lines", len(records), n)
		}
	})
}

// compareRecord holds a decoded record against what encoding/json reads.
func compareRecord(t *testing.T, line []byte, r recordbatch.Record) {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil || !utf8.Valid(line) {
		t.Fatalf("%q is read, encoding/json says %v", line, err)
	}
	value := m["value"]
	var wrap map[string]any
	switch {
	case string(value) == "null":
		if r.Value != nil {
			t.Fatalf("%q: value %q, want null", line, r.Value)
		}
	case json.Unmarshal(value, &wrap) == nil && len(wrap) == 1 && (wrap["$text"] != nil || wrap["$base64"] != nil):
		if s, ok := wrap["$text"].(string); ok && s != string(r.Value) {
			t.Fatalf("%q: value %q, want %q", line, r.Value, s)
		}
		if r.Value == nil {
			t.Fatalf("%q: value is null", line)
		}
	default:
		if !bytes.Equal(value, r.Value) {
			t.Fatalf("%q: value %q, want %q", line, r.Value, value)
		}
	}
	var key *string
	if json.Unmarshal(m["key"], &key) == nil && key != nil && *key != string(r.Key) {
		t.Fatalf("%q: key %q, want %q", line, r.Key, *key)
	}
	if len(r.Key) > maxKeyBytes {
		t.Fatalf("%q: key of %d bytes", line, len(r.Key))
	}
}
