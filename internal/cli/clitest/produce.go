package clitest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

func (b *Broker) produce(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r)
	if err != nil {
		Refuse(w, http.StatusBadRequest, err.Error(), -1)
		return
	}
	records, err := parseBody(r, body)
	if err != nil {
		Refuse(w, http.StatusBadRequest, err.Error(), -1)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	name := r.PathValue("topic")
	t := b.topics[name]
	if t == nil {
		t = b.create(name, 3)
	}
	idempotency := r.Header.Get("Idempotency-Key")
	duplicate := idempotency != "" && b.answered[idempotency]
	receipts := []map[string]any{}
	for _, record := range records {
		p := t.partitionOf(record.Key)
		offset := 0
		if !duplicate {
			offset = b.append(t, p, record)
		}
		receipts = append(receipts, map[string]any{"topic": name, "partition": p, "offset": offset, "generation": 1, "timestamp": b.now})
	}
	if idempotency != "" {
		b.answered[idempotency] = true
	}
	if duplicate {
		w.Header().Set("Skein-Duplicate", "true")
	}
	if r.Header.Get("Accept") == "application/json" {
		answer(w, http.StatusOK, receipts)
		return
	}
	_, _ = io.WriteString(w, "OK")
}

func readBody(r *http.Request) ([]byte, error) {
	switch r.Header.Get("Content-Encoding") {
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(z)
	case "zstd":
		z, err := zstd.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return io.ReadAll(z)
	}
	return io.ReadAll(r.Body)
}

func parseBody(r *http.Request, body []byte) ([]Record, error) {
	like := Record{Key: []byte(r.URL.Query().Get("partitionKey"))}
	if len(like.Key) == 0 {
		like.Key = nil
	}
	if us, err := strconv.ParseInt(r.URL.Query().Get("timestamp"), 10, 64); err == nil {
		like.Timestamp = us / 1000
	}
	for _, h := range r.Header.Values("Skein-Header") {
		name, value, _ := strings.Cut(h, "=")
		like.Headers = append(like.Headers, [2][]byte{[]byte(name), []byte(value)})
	}
	media := r.Header.Get("Content-Type")
	if media != "application/x-ndjson" && media != "application/vnd.skein.records+json" {
		like.Value = body
		return []Record{like}, nil
	}
	var records []Record
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 32<<20)
	for n := 1; lines.Scan(); n++ {
		record := like
		if media == "application/x-ndjson" {
			record.Value = bytes.Clone(lines.Bytes())
		} else if err := parseRecord(lines.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		records = append(records, record)
	}
	return records, lines.Err()
}

// parseRecord reads a line of the records shape. Unknown members are refused, as the broker does.
func parseRecord(line []byte, into *Record) error {
	var members struct {
		Key       json.RawMessage      `json:"key"`
		Value     json.RawMessage      `json:"value"`
		Headers   [][2]json.RawMessage `json:"headers"`
		Timestamp int64                `json:"timestamp"`
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&members); err != nil {
		return err
	}
	var key string
	switch {
	case json.Unmarshal(members.Key, &key) == nil && key != "":
		into.Key = []byte(key)
	case len(members.Key) > 0 && string(members.Key) != "null":
		into.Key = bytesOf(members.Key)
	}
	if members.Timestamp != 0 {
		into.Timestamp = members.Timestamp
	}
	for _, h := range members.Headers {
		var name, value string
		if err := json.Unmarshal(h[0], &name); err != nil {
			return err
		}
		if json.Unmarshal(h[1], &value) == nil {
			into.Headers = append(into.Headers, [2][]byte{[]byte(name), []byte(value)})
		} else {
			into.Headers = append(into.Headers, [2][]byte{[]byte(name), bytesOf(h[1])})
		}
	}
	into.Value = bytesOf(members.Value)
	return nil
}

// bytesOf is what the JSON form of a value stands for in a request.
func bytesOf(raw json.RawMessage) []byte {
	if string(raw) == "null" {
		return nil
	}
	var wrapped map[string]string
	if json.Unmarshal(raw, &wrapped) == nil && len(wrapped) == 1 {
		if text, ok := wrapped["$text"]; ok {
			return []byte(text)
		}
		if text, ok := wrapped["$base64"]; ok {
			b, err := base64.StdEncoding.DecodeString(text)
			if err == nil {
				return b
			}
		}
	}
	return bytes.Clone(raw)
}
