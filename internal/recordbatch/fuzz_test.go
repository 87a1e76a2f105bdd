package recordbatch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// FuzzDecode: whatever the bytes, no panic and an error of ours; what decodes, and is built again, decodes the same.
func FuzzDecode(f *testing.F) {
	f.Add(goldenBatch(false))
	f.Add(goldenBatch(true))
	f.Add(rawBatch(flagLogAppendTime, 2, []byte{12, 0, 20, 0, 1, 1, 0, 12, 0, 20, 2, 1, 1, 0}))
	f.Add(rawBatch(0, 1, append([]byte{14, 0, 0x80, 0}, 0, 1, 1, 0))) // a varint longer than it need be
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := Check(b); err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrShort) {
			t.Fatalf("Check: %v", err)
		}
		var d Decoder
		records, err := d.Decode(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrShort) {
				t.Fatalf("Decode: %v", err)
			}
			return
		}
		h, err := ParseHeader(b)
		if err != nil || len(records) != int(h.Records) {
			t.Fatalf("%d records, header %+v, %v", len(records), h, err)
		}
		again := rebuild(h, records)
		var d2 Decoder
		same, err := d2.Decode(again)
		if err != nil {
			t.Fatalf("built again: %v", err)
		}
		for i := range records {
			if !equal(&records[i], &same[i]) {
				t.Fatalf("record %d is %+v, built again %+v", i, records[i], same[i])
			}
		}
		// Bytes without slack (longest varints, record attributes, another's flags) come out as they were.
		if canonical := h.Attributes&^FlagIdempotent == 0 && len(again) == h.Size(); canonical {
			fix(b[:h.Size()])
			if h.MaxTimestamp == mustParse(again).MaxTimestamp && attributesZero(records, b[:h.Size()]) && !bytes.Equal(again, b[:h.Size()]) {
				t.Fatalf("built again\n%x, was\n%x", again, b[:h.Size()])
			}
		}
	})
}

// FuzzRecords fuzzes what is inside a batch with a right header, which FuzzDecode rarely gets past.
func FuzzRecords(f *testing.F) {
	f.Add(int32(4), goldenBatch(false)[HeaderSize:], false)
	f.Add(int32(4), goldenBatch(false)[HeaderSize:], true)
	f.Fuzz(func(t *testing.T, n int32, body []byte, packed bool) {
		attributes := int16(0)
		if packed {
			attributes, body = codecZstd, compress(nil, body)
		}
		batch := rawBatch(attributes, n, body)
		var d Decoder
		records, err := d.Decode(batch)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		h := mustParse(batch)
		var d2 Decoder
		same, err := d2.Decode(rebuild(h, records))
		if err != nil || len(same) != len(records) {
			t.Fatalf("built again: %d records of %d, %v", len(same), len(records), err)
		}
		for i := range records {
			if !equal(&records[i], &same[i]) {
				t.Fatalf("record %d is %+v, built again %+v", i, records[i], same[i])
			}
		}
	})
}

// rebuild builds the batch of h with records again, plain.
func rebuild(h Header, records []Record) []byte {
	var b Builder
	b.Reset(h.BaseTimestamp)
	b.SetCompression(false)
	b.SetProducer(h.ProducerID, h.ProducerEpoch, h.BaseSequence)
	if h.Idempotent() {
		b.SetIdempotent()
	}
	for i := range records {
		b.Append(&records[i])
	}
	batch := b.Seal(nil)
	SetPosition(batch, h.BaseOffset, h.Version)
	return batch
}

// fix gives batch the right checksum.
func fix(batch []byte) {
	binary.BigEndian.PutUint32(batch[posCRC:], crc32.Checksum(batch[posAttributes:], castagnoli))
}

func mustParse(b []byte) Header {
	h, err := ParseHeader(b)
	if err != nil {
		panic(err)
	}
	return h
}

// attributesZero says whether the attributes of each record are 0, as a Builder writes them.
func attributesZero(records []Record, batch []byte) bool {
	at := HeaderSize
	for range records {
		size, n := binary.Varint(batch[at:])
		if batch[at+n] != 0 {
			return false
		}
		at += n + int(size)
	}
	return true
}

func equal(a, b *Record) bool {
	if a.Offset != b.Offset || a.Timestamp != b.Timestamp || !sameBytes(a.Key, b.Key) || !sameBytes(a.Value, b.Value) ||
		len(a.Headers) != len(b.Headers) {
		return false
	}
	for i := range a.Headers {
		if a.Headers[i].Key != b.Headers[i].Key || !sameBytes(a.Headers[i].Value, b.Headers[i].Value) {
			return false
		}
	}
	return true
}

func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
