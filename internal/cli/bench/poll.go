package bench

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
	"github.com/skeinmq/skein/internal/cli/api"
)

// maxChunk bounds the uncompressed size of one item of a poll, in bytes.
const maxChunk = 64 << 20

// errPoll means a poll answer that does not follow docs/wire.md 5.2.1.
var errPoll = errors.New("a poll answer that this client does not understand")

// delivery is a run of records of one partition.
type delivery struct {
	partition string
	first     int64
	values    [][]byte // alias the decoder's buffer until its next use
}

// pollDecoder decodes binary poll answers; its buffers are used again. Not safe for concurrent use.
type pollDecoder struct {
	zstd   *zstd.Decoder
	plain  []byte
	values [][]byte
}

func newPollDecoder() (*pollDecoder, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxChunk))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &pollDecoder{zstd: d}, nil
}

func (d *pollDecoder) close() { d.zstd.Close() }

// decode calls each for the items of an answer in turn. Integers are big-endian:
//
//	items:2 | per item: token:8 | range:1 | version:4 | topic length:1 | topic | offset:8 | payload length:4 | payload
func (d *pollDecoder) decode(b []byte, each func(delivery)) error {
	if len(b) == 0 {
		return nil
	}
	if len(b) < 2 {
		return fmt.Errorf("%w: it has %d bytes", errPoll, len(b))
	}
	items := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	for range items {
		if len(b) < 14 || len(b) < 14+int(b[13])+12 {
			return fmt.Errorf("%w: it ends within an item", errPoll)
		}
		token := int64(binary.BigEndian.Uint64(b))
		end := 14 + int(b[13])
		topic := string(b[14:end])
		b = b[end:]
		first := int64(binary.BigEndian.Uint64(b))
		length := uint64(binary.BigEndian.Uint32(b[8:]))
		b = b[12:]
		if uint64(len(b)) < length {
			return fmt.Errorf("%w: it ends within a payload", errPoll)
		}
		if err := d.records(b[:length]); err != nil {
			return fmt.Errorf("%s token %d offset %d: %w", topic, token, first, err)
		}
		b = b[length:]
		each(delivery{partition: fmt.Sprintf("%s token %d", topic, token), first: first, values: d.values})
	}
	if len(b) != 0 {
		return fmt.Errorf("%w: %d bytes follow the last item", errPoll, len(b))
	}
	return nil
}

// records decodes a payload: timestamp:8 | length:4 | body, again and again.
func (d *pollDecoder) records(payload []byte) error {
	plain, err := d.zstd.DecodeAll(payload, d.plain[:0])
	if err != nil {
		return fmt.Errorf("%w: %w", errPoll, err)
	}
	d.plain = plain
	d.values = d.values[:0]
	for len(plain) > 0 {
		if len(plain) < 12 {
			return fmt.Errorf("%w: a payload ends within a record", errPoll)
		}
		length := uint64(binary.BigEndian.Uint32(plain[8:]))
		if plain = plain[12:]; uint64(len(plain)) < length {
			return fmt.Errorf("%w: a payload ends within a record", errPoll)
		}
		d.values = append(d.values, plain[:length:length])
		plain = plain[length:]
	}
	return nil
}

// deliveries gives the batches of a records answer in the same form. Records of a batch are dense here or cut into runs
// that are.
func deliveries(batches []api.Batch, each func(delivery)) error {
	for i := range batches {
		b := &batches[i]
		var run delivery
		for j := range b.Records {
			r := &b.Records[j]
			value, err := r.Bytes()
			if err != nil {
				return fmt.Errorf("%s partition %d offset %d: %w", b.Topic, b.Partition, r.Offset, err)
			}
			if len(run.values) > 0 && r.Offset != run.first+int64(len(run.values)) {
				each(run)
				run = delivery{}
			}
			if len(run.values) == 0 {
				run = delivery{partition: fmt.Sprintf("%s partition %d", b.Topic, b.Partition), first: r.Offset}
			}
			run.values = append(run.values, value)
		}
		if len(run.values) > 0 {
			each(run)
		}
	}
	return nil
}
