package producing

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var jsonSeeds = []string{
	`{}`, `[]`, ` { "a" : [ 1 , -2.5e+10 , "x\n\u00e9\ud83d\ude00" , true , false , null , {} , [] ] } `,
	`"plain"`, `"\""`, `"\\"`, `"12345678\"abcdefgh"`, `0`, `-0`, `01`, `1.`, `.5`, `1e`, `1e5`, `-`, `+1`, `tru`, `nul`, `nulll`,
	`{"a"}`, `{"a":}`, `{"a":1,}`, `[1,]`, `[1 2]`, `{1:2}`, `"`, `"\`, `"\u12`, `"\u12G4"`, `"\x"`, "\"\x01\"", "\"\t\"", `"\ud800"`,
	"\xff", "\"\xff\"", `[`, `]`, `{`, `}`, `1 2`, `{"a":1}{"b":2}`, ``, ` `, "\u00a0" + `1`, `{"a":[{"b":[{"c":{}}]}]}`,
	`"12345678` + "\x80" + `"`, `"` + strings.Repeat("é", 20) + `"`,
}

func TestCheckJSONIsAsStrictAsEncodingJSON(t *testing.T) {
	for _, s := range jsonSeeds {
		if err := checkJSON([]byte(s)); (err == nil) != json.Valid([]byte(s)) {
			t.Errorf("%q: %v, encoding/json says valid: %v", s, err, json.Valid([]byte(s)))
		}
	}
	deep := strings.Repeat("[", maxJSONDepth) + strings.Repeat("]", maxJSONDepth)
	if err := checkJSON([]byte(deep)); err != nil {
		t.Errorf("%d deep: %v", maxJSONDepth, err)
	}
	mixed := strings.Repeat(`[{"a":`, maxJSONDepth/2) + "1" + strings.Repeat("}]", maxJSONDepth/2)
	if err := checkJSON([]byte(mixed)); err != nil {
		t.Errorf("%d deep, mixed: %v", maxJSONDepth, err)
	}
	if err := checkJSON([]byte("[" + deep + "]")); err == nil {
		t.Errorf("%d deep passes", maxJSONDepth+1)
	}
	if err := checkJSON([]byte(`{"a": tru}`)); err == nil || err.Error() != "at byte 7: 't' where a value is expected" {
		t.Errorf("the place is not told: %v", err)
	}
}

// Strings with specials at any place of the eight bytes that are looked at together.
func TestPlainBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := []byte(rapid.StringOfN(rapid.RuneFrom([]rune("ab\"\\\x1f\x20\x00\x7fé日")), 0, 40, -1).Draw(t, "s"))
		want := 0
		for want < len(b) && b[want] != '"' && b[want] != '\\' && b[want] >= 0x20 {
			want++
		}
		if got := plainBytes(b); got != want {
			t.Fatalf("%q: %d, want %d", b, got, want)
		}
	})
}

func FuzzJSON(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := checkJSON(b)
		if valid := json.Valid(b); valid != (err == nil) && !strings.Contains(string(b), strings.Repeat("[", 200)) && len(b) < maxJSONDepth {
			t.Fatalf("%q: %v, encoding/json says valid: %v", b, err, valid)
		}
		r := jsonReader{b: b}
		s, err := r.str()
		if err != nil || r.end() != nil {
			return
		}
		var want string
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatalf("%q is read as %q, encoding/json says %v", b, s, err)
		}
		if got := strings.ToValidUTF8(string(s), "\ufffd"); strings.ToValidUTF8(want, "\ufffd") != got && string(b) == strings.ToValidUTF8(string(b), "") {
			t.Fatalf("%q is read as %q, want %q", b, got, want)
		}
		r.reset(b)
		if raw, err := r.base64(); err == nil {
			if want, err := base64.StdEncoding.Strict().DecodeString(want); err != nil || string(want) != string(raw) {
				t.Fatalf("%q is decoded to % x, want % x, %v", b, raw, want, err)
			}
		}
	})
}
