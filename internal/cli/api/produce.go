package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Content types of produce requests (docs/http-api.md).
const (
	TypeRecords = "application/vnd.skein.records+json" // one JSON object a line: key, value, headers, timestamp
	TypeNDJSON  = "application/x-ndjson"               // one record a line
	TypeOpaque  = "application/octet-stream"           // the body is one record
)

// Header is a header of a record.
type Header struct{ Key, Value string }

// ProduceRequest is one request to store records.
type ProduceRequest struct {
	Topic          string
	ContentType    string
	Body           []byte
	Key            string   // partition key of all records; "" none
	Timestamp      int64    // of all records, ms since the epoch; 0 now
	Headers        []Header // of all records
	IdempotencyKey string   // "" none
	Compression    string   // of the body on its way: "", "gzip" or "zstd"
	Receipts       bool
}

// Receipt tells where a record is stored.
type Receipt struct {
	Topic      string `json:"topic"`
	Partition  int    `json:"partition"`
	Offset     int64  `json:"offset"`
	Generation int64  `json:"generation"`
	Timestamp  int64  `json:"timestamp"` // ms since the epoch
}

// ProduceResult is the answer to a ProduceRequest: receipts in the order of the records, when asked for. Duplicate says
// that the records had been stored before under the same idempotency key.
type ProduceResult struct {
	Receipts  []Receipt
	Duplicate bool
}

// Produce sends r once (to the next broker where a connection cannot be made). OutcomeOf tells what an error means.
func (c *Client) Produce(ctx context.Context, r ProduceRequest) (ProduceResult, error) {
	q := url.Values{}
	if r.Key != "" {
		q.Set("partitionKey", r.Key)
	}
	if r.Timestamp != 0 {
		q.Set("timestamp", strconv.FormatInt(r.Timestamp*1000, 10))
	}
	h := http.Header{}
	h.Set("Content-Type", r.ContentType)
	for _, header := range r.Headers {
		h.Add("Skein-Header", header.Key+"="+header.Value)
	}
	if r.IdempotencyKey != "" {
		h.Set("Idempotency-Key", r.IdempotencyKey)
	}
	body, err := compress(r.Compression, r.Body)
	if err != nil {
		return ProduceResult{}, err
	}
	if r.Compression != "" {
		h.Set("Content-Encoding", r.Compression)
	}
	accept := ""
	if r.Receipts {
		accept = "application/json"
	}
	path := "/v1/topic/" + url.PathEscape(r.Topic) + "/messages"
	a, err := c.do(ctx, request{
		method: http.MethodPost, path: path, query: q, header: h, body: body, accept: accept, repeat: r.IdempotencyKey != "",
	})
	if err != nil {
		return ProduceResult{}, err
	}
	result := ProduceResult{Duplicate: a.header.Get("Skein-Duplicate") == "true"}
	if r.Receipts {
		err = decode(path, a.body, &result.Receipts)
	}
	return result, err
}

func compress(how string, body []byte) ([]byte, error) {
	switch how {
	case "":
		return body, nil
	case "gzip":
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write(body); err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		return b.Bytes(), nil
	case "zstd":
		enc, err := encoder()
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
		return enc.EncodeAll(body, nil), nil
	}
	return nil, fmt.Errorf("unknown compression %q", how)
}

// encoder is made at the first use and kept: its tables are large.
var encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
})
