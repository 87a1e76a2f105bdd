package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Error is a refusal: an answer whose status is not 2xx.
type Error struct {
	Method, Path  string
	Status        int
	Detail        string        // what the broker says, one line
	Reason        string        // header Skein-Reason, for machines
	RetryAfter    time.Duration // 0 when the broker names none
	Start         *int64        // with 416: first offset that can be read
	HighWatermark *int64        // and the first that cannot yet
}

func (e *Error) Error() string {
	detail := e.Detail
	if detail == "" {
		detail = http.StatusText(e.Status)
	}
	return fmt.Sprintf("%s (status %d)", detail, e.Status)
}

// ConnError means that a broker gave no answer. Sent tells whether the request may have reached it: if so, a write may
// have been carried out.
type ConnError struct {
	Broker string
	Sent   bool
	Err    error
}

func (e *ConnError) Error() string {
	if e.Sent {
		return fmt.Sprintf("the connection to %s broke before the answer came: %v", e.Broker, e.Err)
	}
	return fmt.Sprintf("no broker answers at %s: %v", e.Broker, e.Err)
}

func (e *ConnError) Unwrap() error { return e.Err }

// Outcome tells apart how a write ended (docs/design.md, section 6).
type Outcome int

const (
	Stored     Outcome = iota // acknowledged
	NotWritten                // certainly not written, and worth another try
	Unknown                   // may be written: try again with the same idempotency key only
	Refused                   // another try gets the same answer
)

// OutcomeOf classifies the error of a write.
func OutcomeOf(err error) Outcome {
	var refused *Error
	var conn *ConnError
	switch {
	case err == nil:
		return Stored
	case errors.As(err, &refused):
		switch refused.Status {
		case http.StatusMisdirectedRequest, http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
			return NotWritten
		case http.StatusGatewayTimeout:
			return Unknown
		}
		return Refused
	case errors.As(err, &conn):
		if conn.Sent {
			return Unknown
		}
		return NotWritten
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return Unknown
	}
	return Refused
}

// StatusOf is the status of a refusal in the chain of err, else 0.
func StatusOf(err error) int {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Status
	}
	return 0
}

// connError tells a connection that could not be made from one that broke. The caller's own end of ctx passes through.
func connError(parent context.Context, base *url.URL, err error, timeout time.Duration) error {
	if parent.Err() != nil {
		return parent.Err()
	}
	var op *net.OpError
	sent := !(errors.As(err, &op) && op.Op == "dial")
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", timeout)
	} else if op != nil && op.Op == "dial" {
		err = op.Err
	}
	return &ConnError{Broker: base.Host, Sent: sent, Err: err}
}

// refusal makes an *Error of an answer: problem+json, other JSON with a detail, or text.
func refusal(r request, resp *http.Response, body []byte) error {
	e := &Error{Method: r.method, Path: r.path, Status: resp.StatusCode, Reason: resp.Header.Get("Skein-Reason")}
	var problem struct {
		Title         string `json:"title"`
		Detail        string `json:"detail"`
		Start         *int64 `json:"start"`
		HighWatermark *int64 `json:"highWatermark"`
	}
	if json.Unmarshal(body, &problem) == nil {
		e.Detail, e.Start, e.HighWatermark = problem.Detail, problem.Start, problem.HighWatermark
		if e.Detail == "" {
			e.Detail = problem.Title
		}
	} else {
		e.Detail = oneLine(string(body), 300)
	}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// oneLine is the first line of s that is not blank, of at most limit bytes.
func oneLine(s string, limit int) string {
	s = strings.TrimSpace(s)
	if i := strings.IndexAny(s, "\r\n"); i >= 0 {
		s = s[:i]
	}
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return s
}
