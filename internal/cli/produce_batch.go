package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
)

// batch is one request in the making: the records of lines first..last.
type batch struct {
	p           *producer
	body        []byte
	count       int
	first, last inputLine
	pending     []inputLine // taken from the channel, not in a batch yet
	timer       *time.Timer
}

func newBatch(p *producer) *batch {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &batch{p: p, timer: timer}
}

// fill starts the batch anew and takes lines until it is full, no more come for a moment, the input has ended or ctx
// has. more tells whether there may be further ones. With an idempotency key of the user's only the lines themselves
// close a batch, so that a repetition makes the same ones.
func (b *batch) fill(ctx context.Context, lines <-chan []inputLine) (more bool, err error) {
	b.body, b.count = b.body[:0], 0
	var pause <-chan time.Time
	for {
		if err := b.take(); err != nil {
			return false, err
		}
		if b.full() {
			return true, nil
		}
		if pause == nil && b.count > 0 && b.p.flags.idempotencyKey == "" {
			b.timer.Reset(produceLinger)
			pause = b.timer.C
		}
		select {
		case run, ok := <-lines:
			if !ok {
				return false, nil
			}
			b.pending = run
		case <-pause:
			return true, nil
		case <-ctx.Done():
			return b.drain(lines)
		}
	}
}

// drain takes the lines that are read already, after a signal.
func (b *batch) drain(lines <-chan []inputLine) (more bool, err error) {
	for {
		select {
		case run, ok := <-lines:
			if !ok {
				return false, nil
			}
			b.pending = run
			if err := b.take(); err != nil {
				return false, err
			}
			if b.full() {
				return true, nil
			}
		default:
			return false, nil
		}
	}
}

// take moves pending lines into the batch until it is full.
func (b *batch) take() error {
	for len(b.pending) > 0 && !b.full() {
		line := b.pending[0]
		b.pending = b.pending[1:]
		if err := b.add(line); err != nil {
			return fmt.Errorf("%s: %w", line.where(), err)
		}
	}
	return nil
}

func (b *batch) full() bool {
	return b.count >= b.p.flags.batch || len(b.body) >= maxBatchBytes || (b.count > 0 && b.p.flags.whole)
}

// add appends the record of a line.
func (b *batch) add(line inputLine) error {
	f := &b.p.flags
	before := len(b.body)
	var err error
	switch {
	case f.whole:
		b.body = append(b.body, line.data...)
	case f.records:
		err = b.addRecord(line.data)
	case f.ndjson && len(bytes.TrimSpace(line.data)) == 0:
		return nil
	default:
		err = b.addLine(line.data)
	}
	if err != nil {
		b.body = b.body[:before]
		return err
	}
	if b.count == 0 {
		b.first = line
	}
	b.last = line
	b.count++
	return nil
}

// addLine appends a value, with its key in front where there is a delimiter.
func (b *batch) addLine(value []byte) error {
	f := &b.p.flags
	key := []byte(nil)
	if f.key != "" {
		key = []byte(f.key)
	}
	if len(b.p.delimiter) > 0 {
		var found bool
		if key, value, found = bytes.Cut(value, b.p.delimiter); !found {
			return fmt.Errorf("it has no key: the delimiter %q does not occur", f.delimiter)
		}
		if len(key) == 0 {
			key = nil
		}
	}
	if f.ndjson {
		if value = bytes.TrimSpace(value); !json.Valid(value) {
			return errors.New("it is not valid JSON")
		}
	}
	if value == nil {
		value = []byte{}
	}
	if f.nullEmpty && len(value) == 0 {
		value = nil
	}
	b.encode(key, api.AppendText(nil, value), b.p.headerJSON(nil), b.p.timestamp)
	return nil
}

// encode appends one line of the records shape. headers is its JSON or empty.
func (b *batch) encode(key, value, headers []byte, timestamp int64) {
	b.body = append(b.body, '{')
	if key != nil {
		b.body = append(b.body, `"key":`...)
		b.body = api.AppendKey(b.body, key)
		b.body = append(b.body, ',')
	}
	b.body = append(b.body, `"value":`...)
	b.body = append(b.body, value...)
	if len(headers) > 0 {
		b.body = append(b.body, `,"headers":`...)
		b.body = append(b.body, headers...)
	}
	if timestamp != 0 {
		b.body = append(b.body, `,"timestamp":`...)
		b.body = strconv.AppendInt(b.body, timestamp, 10)
	}
	b.body = append(b.body, "}\n"...)
}

// headerJSON is own followed by the headers of the flags, as the JSON of pairs; nil for none.
func (p *producer) headerJSON(own []json.RawMessage) []byte {
	if len(own)+len(p.headers) == 0 {
		return nil
	}
	out := []byte{'['}
	for _, pair := range own {
		out = append(append(out, pair...), ',')
	}
	for _, h := range p.headers {
		out = append(out, '[')
		out = api.AppendString(out, []byte(h.Key))
		out = append(out, ',')
		out = api.AppendString(out, []byte(h.Value))
		out = append(out, ']', ',')
	}
	out[len(out)-1] = ']'
	return out
}

// addRecord appends a line of consume --json, less where it was stored.
func (b *batch) addRecord(line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return errors.New("it is empty; --records wants a JSON object on each line")
	}
	var r struct {
		Key       json.RawMessage   `json:"key"`
		Value     api.Value         `json:"value"`
		Text      bool              `json:"text"`
		Headers   []json.RawMessage `json:"headers"`
		Timestamp int64             `json:"timestamp"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("it is no record as consume --json prints it: %w", err)
	}
	key, err := api.Value(r.Key).Bytes()
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	value, err := r.Value.Document(r.Text)
	if err != nil {
		return fmt.Errorf("value: %w", err)
	}
	if b.p.flags.nullEmpty && len(value) == 0 {
		value = nil
	}
	timestamp := r.Timestamp
	if b.p.timestamp != 0 {
		timestamp = b.p.timestamp
	}
	b.encode(key, api.AppendText(nil, value), b.p.headerJSON(r.Headers), timestamp)
	return nil
}

// request is the request that stores the batch.
func (b *batch) request(idempotencyKey string) api.ProduceRequest {
	f := &b.p.flags
	r := api.ProduceRequest{
		Topic: b.p.topic, Body: b.body, ContentType: api.TypeRecords, IdempotencyKey: idempotencyKey,
		Receipts: f.receipts || f.json,
	}
	if f.compression != "none" {
		r.Compression = f.compression
	}
	if f.whole {
		r.ContentType, r.Key, r.Headers, r.Timestamp = api.TypeOpaque, f.key, b.p.headers, b.p.timestamp
	}
	return r
}
