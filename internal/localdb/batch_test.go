package localdb

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func drawOps(t *rapid.T) []op {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		o := op{key: rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "key"), del: rapid.Bool().Draw(t, "del")}
		if !o.del {
			o.value = rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "value")
		}
		return o
	}), 1, 300).Draw(t, "ops")
}

func sameOps(a, b []op) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].del != b[i].del || !bytes.Equal(a[i].key, b[i].key) || !bytes.Equal(a[i].value, b[i].value) {
			return false
		}
	}
	return true
}

// TestParts: the parts are the whole in its order, each fits a transaction and, encoded, a value.
func TestParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ops := drawOps(t)
		var joined []op
		for _, part := range parts(ops) {
			encoded := encodeOps(nil, part)
			if len(part) == 0 || len(part) > txnKeys || len(encoded) > MaxValueBytes+MaxKeyBytes+8 {
				t.Fatalf("a part of %d ops has %d bytes", len(part), len(encoded))
			}
			decoded, err := decodeOps(encoded)
			if err != nil {
				t.Fatal(err)
			}
			joined = append(joined, decoded...)
		}
		if !sameOps(joined, ops) {
			t.Fatal("the parts are not the whole")
		}
	})
}

// FuzzDecodeOps: no panic, and what decodes encodes to the same ops again.
func FuzzDecodeOps(f *testing.F) {
	f.Add(encodeOps(nil, []op{{key: []byte("k"), value: []byte("v")}, {key: []byte("gone"), del: true}}))
	f.Add([]byte{0, 1, 'k', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		ops, err := decodeOps(b)
		if err != nil {
			return
		}
		again, err := decodeOps(encodeOps(nil, ops))
		if err != nil || !sameOps(again, ops) {
			t.Fatalf("%v became %v, %v", ops, again, err)
		}
	})
}
