package httpd

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// ReasonHeader names, in a few lower-case words, why a request was refused or an answer is empty. Clients may switch
// on it; the detail of a problem is for people.
const ReasonHeader = "Skein-Reason"

// Reasons that RefuseError gives.
const (
	ReasonBusy         = "busy"
	ReasonUnavailable  = "unavailable"
	ReasonShuttingDown = "shutting-down"
	ReasonDiskFull     = "disk-full"
)

// ErrEncoding means a Content-Encoding that is not understood here. RefuseError answers 415.
var ErrEncoding = errors.New("unsupported content encoding")

// ErrBodyTimeout means that a request body did not arrive within Config.ReadTimeout. RefuseError answers 408.
var ErrBodyTimeout = errors.New("the request body did not arrive in time")

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

// Refuse answers with a problem: application/problem+json with type about:blank, the title of the status, and a detail
// that says what was wrong and what is allowed. It sets Content-Length. Nothing may have been written to w before.
func Refuse(w http.ResponseWriter, status int, detail string) {
	body, err := json.Marshal(problem{"about:blank", http.StatusText(status), status, detail})
	if err != nil {
		panic("httpd: a problem of strings and numbers does not marshal: " + err.Error())
	}
	writeProblem(w, status, body)
}

// RefuseWith is Refuse with further members of the problem, for clients that act on them (416 names the bounds of a
// log). The members type, title, status and detail cannot be replaced.
func RefuseWith(w http.ResponseWriter, status int, detail string, members map[string]any) {
	all := map[string]any{}
	maps.Copy(all, members)
	all["type"] = "about:blank"
	all["title"] = http.StatusText(status)
	all["status"] = status
	all["detail"] = detail
	body, err := json.Marshal(all)
	if err != nil {
		noteError(w, err)
		Refuse(w, status, detail)
		return
	}
	writeProblem(w, status, body)
}

func writeProblem(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone is no error of ours
}

// RefuseRetry is Refuse with Retry-After, in whole seconds and at least one, and the header Skein-Reason unless reason
// is empty. It says that the request was not carried out and may be sent again.
func RefuseRetry(w http.ResponseWriter, status int, detail string, after time.Duration, reason string) {
	SetRetry(w.Header(), after, reason)
	Refuse(w, status, detail)
}

// SetRetry sets Retry-After (whole seconds, rounded up, at least one) and, unless reason is empty, Skein-Reason.
func SetRetry(h http.Header, after time.Duration, reason string) {
	h.Set("Retry-After", strconv.FormatInt(max(1, int64((after+time.Second-1)/time.Second)), 10))
	if reason != "" {
		h.Set(ReasonHeader, reason)
	}
}

// RefuseError answers with the status that the outcome in the chain of err stands for (docs/design.md, section 6), and
// with its text as detail:
//
//	topology.ErrInvalid         400     ErrBodyTimeout               408
//	topology.ErrUnknownTopic    404     topology.ErrBusy             429, Retry-After
//	topology.ErrUnknownGroup    404
//	topology.ErrConflict        409     topology.ErrUnavailable      503, Retry-After
//	topology.ErrTooLarge        413     topology.ErrShuttingDown     503, Retry-After
//	ErrEncoding                 415     topology.ErrOutcomeUnknown   504
//	topology.ErrNotLeader       421     topology.ErrDiskFull         507, Retry-After
//
// A context error is 504 too: the work was given up and may or may not be done. ErrOutcomeUnknown is looked for first,
// since it often wraps what made it unknown. Anything else is 500 "internal error"; its text goes to the log of the
// server, once, and not to the client.
func RefuseError(w http.ResponseWriter, err error) {
	detail := err.Error()
	switch {
	case errors.Is(err, topology.ErrOutcomeUnknown):
		Refuse(w, http.StatusGatewayTimeout, detail)
	case errors.Is(err, topology.ErrInvalid):
		Refuse(w, http.StatusBadRequest, detail)
	case errors.Is(err, topology.ErrUnknownTopic), errors.Is(err, topology.ErrUnknownGroup):
		Refuse(w, http.StatusNotFound, detail)
	case errors.Is(err, ErrBodyTimeout):
		Refuse(w, http.StatusRequestTimeout, detail)
	case errors.Is(err, topology.ErrConflict):
		Refuse(w, http.StatusConflict, detail)
	case errors.Is(err, topology.ErrTooLarge):
		Refuse(w, http.StatusRequestEntityTooLarge, detail)
	case errors.Is(err, ErrEncoding):
		w.Header().Set("Accept-Encoding", acceptedEncodings)
		Refuse(w, http.StatusUnsupportedMediaType, detail)
	case errors.Is(err, topology.ErrNotLeader):
		Refuse(w, http.StatusMisdirectedRequest, detail)
	case errors.Is(err, topology.ErrBusy):
		RefuseRetry(w, http.StatusTooManyRequests, detail, time.Second, ReasonBusy)
	case errors.Is(err, topology.ErrShuttingDown):
		RefuseRetry(w, http.StatusServiceUnavailable, detail, time.Second, ReasonShuttingDown)
	case errors.Is(err, topology.ErrDiskFull):
		RefuseRetry(w, http.StatusInsufficientStorage, detail, 10*time.Second, ReasonDiskFull)
	case errors.Is(err, topology.ErrUnavailable):
		RefuseRetry(w, http.StatusServiceUnavailable, detail, time.Second, ReasonUnavailable)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		Refuse(w, http.StatusGatewayTimeout, topology.ErrOutcomeUnknown.Error()+": the request was given up before it was done")
	default:
		noteError(w, err)
		Refuse(w, http.StatusInternalServerError, "internal error")
	}
}
