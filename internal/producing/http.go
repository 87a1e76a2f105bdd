package producing

import (
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

const (
	typeLines   = "application/x-ndjson"
	typeFrames  = "application/vnd.polar.producer.frames"
	typeRecords = "application/vnd.skein.records+json"

	// answerOK and its type are what published clients expect of a success, to the byte.
	answerOK     = "OK"
	typeAnswerOK = "text/html; charset=utf-8"

	headerDuplicate = "Skein-Duplicate"
)

// Register adds the produce paths to a router:
//
//	POST /v1/topic/{topic}/messages
func (p *Producer) Register(r *httpd.Router) {
	r.HandleFunc("POST /v1/topic/{topic}/messages", p.serve)
	r.HandleFunc("GET /v1/topic/{topic}/messages", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Allow", "OPTIONS, POST")
		httpd.Refuse(w, http.StatusMethodNotAllowed, "Producer server doesn't allow getting topic messages")
	})
	r.HandleFunc("POST /v1/topic/messages", func(w http.ResponseWriter, _ *http.Request) {
		p.counters[outcomeInvalid].Inc()
		httpd.Refuse(w, http.StatusBadRequest, "Invalid topic") // of an empty name the router leaves nothing
	})
}

// serve answers POST /v1/topic/{topic}/messages.
func (p *Producer) serve(w http.ResponseWriter, hr *http.Request) {
	req := newRequest()
	defer req.free()
	err := req.read(hr)
	if err == nil && p.closing.Load() {
		err = topology.ErrShuttingDown
	}
	var body *buffer
	if err == nil {
		body, err = p.readBody(hr, req)
	}
	if err == nil && len(body.b) == 0 {
		err = p.errEmpty()
	}
	if err != nil {
		p.counters[outcomeOf(err)].Inc()
	} else {
		req.body = body.b
		err = p.produce(hr.Context(), req)
	}
	p.cfg.Coalescer.budget.release(req.held)
	p.answer(w, req, err)
	if body != nil {
		freeBody(body)
	}
}

func (p *Producer) errEmpty() error {
	return invalid("body: it is empty; content length must be greater than 0 and at most %d bytes", p.cfg.MaxRequestBytes)
}

// read takes everything but the body from an HTTP request.
func (r *request) read(hr *http.Request) error {
	r.topicName = hr.PathValue("topic")
	if err := topology.CheckTopicName(r.topicName, false); err != nil {
		return err
	}
	if err := r.readQuery(hr.URL.RawQuery); err != nil {
		return err
	}
	h := hr.Header
	r.kind = bodyKindOf(first(h["Content-Type"]))
	for _, accept := range h["Accept"] {
		r.receipts = r.receipts || acceptsJSON(accept)
	}
	for _, value := range h["Skein-Header"] {
		if err := r.addHeader(value); err != nil {
			return err
		}
	}
	return r.setIdempotencyKey(h["Idempotency-Key"])
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// readQuery takes partitionKey and timestamp (µs) from a query; others are ignored. The first of several counts.
func (r *request) readQuery(query string) error {
	timed := false
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, value, _ := strings.Cut(pair, "=")
		name, err := unescapeQuery(name)
		if err != nil {
			return invalid("query: %w", err)
		}
		switch {
		case name == "partitionKey" && r.key == nil && value != "":
			if value, err = unescapeQuery(value); err != nil {
				return invalid("partitionKey: %w", err)
			}
			if err := topology.CheckName("partitionKey", value); err != nil {
				return err
			}
			r.keyBuf = append(r.keyBuf[:0], value...)
			r.key = r.keyBuf
		case name == "timestamp" && !timed && value != "":
			us, err := strconv.ParseInt(value, 10, 64)
			if err != nil || us < 0 {
				return invalid("timestamp %.40q; allowed are microseconds since the epoch", value)
			}
			r.timestamp, timed = us/1000, true
		}
	}
	return nil
}

func unescapeQuery(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, nil
	}
	return url.QueryUnescape(s)
}

// bodyKindOf is how a body of that media type holds records; parameters do not matter.
func bodyKindOf(contentType string) bodyKind {
	switch contentType {
	case "", "application/json":
		return bodyOpaque
	case typeLines:
		return bodyLines
	}
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) {
		return bodyOpaque
	}
	switch media {
	case typeLines:
		return bodyLines
	case typeFrames:
		return bodyFrames
	case typeRecords:
		return bodyRecords
	default:
		return bodyOpaque
	}
}

// acceptsJSON tells whether an Accept header names application/json and does not rule it out.
func acceptsJSON(accept string) bool {
	for accept != "" {
		var part string
		part, accept, _ = strings.Cut(accept, ",")
		media, params, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
			continue
		}
		for params != "" {
			var param string
			param, params, _ = strings.Cut(params, ";")
			name, value, _ := strings.Cut(strings.TrimSpace(param), "=")
			if q, err := strconv.ParseFloat(value, 64); strings.EqualFold(name, "q") && err == nil && q == 0 {
				return false
			}
		}
		return true
	}
	return false
}

// addHeader takes one Skein-Header: name=value.
func (r *request) addHeader(field string) error {
	name, value, ok := strings.Cut(field, "=")
	if name = strings.TrimSpace(name); !ok || len(name) > maxHeaderNameBytes {
		return invalid("Skein-Header %.100q; allowed is name=value with a name of 1 to %d bytes", field, maxHeaderNameBytes)
	}
	if err := checkHeaderName(name); err != nil {
		return err
	}
	if len(r.headers) == maxRecordHeaders {
		return invalid("Skein-Header: there are more than %d", maxRecordHeaders)
	}
	r.headers = append(r.headers, recordbatch.RecordHeader{Key: name, Value: []byte(value)})
	return nil
}

func (r *request) setIdempotencyKey(values []string) error {
	switch len(values) {
	case 0:
		return nil
	case 1:
		if err := topology.CheckName("Idempotency-Key", values[0]); err != nil {
			return err
		}
		r.idempotencyKey = values[0]
		return nil
	default:
		return invalid("Idempotency-Key: there are %d; allowed is one", len(values))
	}
}

// Values of response headers, shared by all answers.
var (
	valueTypeOK   = []string{typeAnswerOK}
	valueTypeJSON = []string{"application/json"}
	valueLengthOK = []string{strconv.Itoa(len(answerOK))}
	valueTrue     = []string{"true"}
)

// answer writes what became of req.
func (p *Producer) answer(w http.ResponseWriter, req *request, err error) {
	if err != nil {
		refuse(w, err)
		return
	}
	h := w.Header()
	if req.duplicate {
		h[headerDuplicate] = valueTrue
	}
	if !req.receipts {
		h["Content-Type"], h["Content-Length"] = valueTypeOK, valueLengthOK
		_, _ = w.Write([]byte(answerOK))
		return
	}
	b := newBody(int64(len(req.records)) * 100)
	b.b = req.appendReceipts(b.b[:0])
	h["Content-Type"], h["Content-Length"] = valueTypeJSON, []string{strconv.Itoa(len(b.b))}
	_, _ = w.Write(b.b)
	freeBody(b)
}

// refuse answers with the status that err stands for.
func refuse(w http.ResponseWriter, err error) {
	if errors.Is(err, ErrKeyReused) {
		httpd.Refuse(w, http.StatusUnprocessableEntity, err.Error())
		return
	}
	httpd.RefuseError(w, err)
}

// appendReceipts appends the receipts of all records, in the order of the request, as JSON.
func (r *request) appendReceipts(b []byte) []byte {
	name := fmt.Sprintf("%q", r.topic.Name) // of letters that need no escape
	next := make([]int, len(r.groups))
	b = append(b, '[')
	for i := range r.records {
		partition, offset, version, timestamp := r.receipt(i, next)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"topic":`...)
		b = append(b, name...)
		b = append(b, `,"partition":`...)
		b = strconv.AppendInt(b, int64(partition), 10)
		b = append(b, `,"offset":`...)
		b = strconv.AppendInt(b, int64(offset), 10)
		b = append(b, `,"generation":`...)
		b = strconv.AppendUint(b, uint64(version), 10)
		b = append(b, `,"timestamp":`...)
		b = strconv.AppendInt(b, timestamp, 10)
		b = append(b, '}')
	}
	return append(b, ']', '\n')
}
