package consuming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// Headers of answers to polls and commits (docs/http-api.md).
const (
	pollIDHeader  = "Skein-Poll-Id" // names the answer, for ack
	ackHeader     = "Skein-Ack"     // what became of the ack of this request
	damagedHeader = "Skein-Damaged" // ranges that are lost: topic/partition:from-to, to excluded
	refusedHeader = "Skein-Refused" // partitions whose commit was refused: topic/partition
)

// registerLimit bounds the body of a registration and of a commit.
const registerLimit = 1 << 20

// Register adds the paths of consumers to r (docs/wire.md, section 5; docs/http-api.md).
func (s *Service) Register(r *httpd.Router) {
	r.HandleFunc("PUT /v1/consumer/register", s.handleRegister)
	r.HandleFunc("POST /v1/consumer/register", s.handleRegister)
	r.HandleFunc("POST /v1/consumer/poll", s.handlePoll)
	r.HandleFunc("POST /v1/consumer/commit", s.handleCommit)
	r.HandleFunc("POST /v1/consumer/goodbye", s.handleGoodbye)
	r.HandleFunc("GET /v1/topic/{topic}/partitions/{partition}/records", s.handleRead)
}

func (s *Service) handleRegister(w http.ResponseWriter, r *http.Request) {
	reg, err := readRegistration(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	known, err := s.register(r.Context(), reg)
	switch {
	case err != nil:
		refuse(w, err)
	case known && reg.conn == nil:
		writeText(w, "Already registered")
	default:
		writeText(w, "OK")
	}
}

// readRegistration reads both forms of a registration: the query of a consumer that names its id in each request, and
// the JSON body of one that its connection stands for.
func readRegistration(w http.ResponseWriter, r *http.Request) (registration, error) {
	q, err := parseQuery(r)
	if err != nil {
		return registration{}, err
	}
	body, release, err := httpd.ReadBody(w, r, registerLimit)
	if err != nil {
		return registration{}, err
	}
	defer release()
	if id := consumerID(q); id != "" || len(body) == 0 && (q.Has("topic") || q.Has("group")) {
		p, err := parsePolicy(q.Get("onNewGroup"))
		if err != nil {
			return registration{}, errPolicy
		}
		return registration{id: id, group: q.Get("group"), topics: q["topic"], policy: p}, nil
	}
	return parseRegistration(body, r.Context())
}

func parseRegistration(body []byte, ctx context.Context) (registration, error) {
	var info struct {
		ID         string                      `json:"id"`
		Group      string                      `json:"group"`
		Topics     []string                    `json:"topics"`
		OnNewGroup *topology.OffsetResetPolicy `json:"onNewGroup"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return registration{}, errPayload
	}
	reg := registration{id: info.ID, group: info.Group, topics: info.Topics, conn: httpd.ConnOf(ctx)}
	if info.OnNewGroup != nil {
		p, ok := policyOf(*info.OnNewGroup)
		if !ok {
			return registration{}, errPolicy
		}
		reg.policy = p
	}
	if reg.conn == nil {
		return registration{}, errors.New("a request without a connection cannot register its connection")
	}
	return reg, nil
}

// session finds the consumer of a request and keeps it from expiring until leave is called. One that lapsed is registered
// again.
func (s *Service) session(r *http.Request, q url.Values) (ses *session, leave func(), err error) {
	id, conn := consumerID(q), httpd.ConnOf(r.Context())
	for {
		ses, err = s.find(id, conn)
		switch {
		case err == nil:
			if leave, ok := s.enter(ses); ok {
				return ses, leave, nil
			}
		case id != "" || conn == nil:
			return nil, nil, err
		default:
			if err := s.revive(r.Context(), conn); err != nil {
				return nil, nil, err
			}
		}
	}
}

func (s *Service) handleCommit(w http.ResponseWriter, r *http.Request) {
	refused, err := s.serveCommit(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	h := w.Header()
	for i := range refused {
		h.Add(refusedHeader, fmt.Sprintf("%s/%d", refused[i].sub.name, refused[i].partition))
	}
	h.Set("Cache-Control", "no-store")
	h.Set("Retry-After", "1")
	w.WriteHeader(http.StatusNoContent)
}

func (s *Service) serveCommit(w http.ResponseWriter, r *http.Request) ([]delivery, error) {
	q, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	ack, err := parseAck(q)
	if err != nil {
		return nil, err
	}
	body, release, err := httpd.ReadBody(w, r, registerLimit)
	if err != nil {
		return nil, err
	}
	defer release()
	ses, leave, err := s.session(r, q)
	if err != nil {
		return nil, err
	}
	defer leave()
	var p partial
	if len(body) > 0 {
		if p, err = parsePartial(body); err != nil {
			return nil, err
		}
	}
	return s.commit(r.Context(), ses, ack, p.Positions)
}

func (s *Service) handleGoodbye(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r)
	if err != nil {
		refuse(w, err)
		return
	}
	ack, err := parseAck(q)
	if err != nil {
		refuse(w, err)
		return
	}
	if conn := httpd.ConnOf(r.Context()); consumerID(q) == "" && conn != nil && s.forgetLapsed(conn, nil) {
		writeText(w, "OK")
		return
	}
	ses, leave, err := s.session(r, q)
	if err != nil {
		refuse(w, err)
		return
	}
	defer leave()
	if err := s.goodbye(r.Context(), ses, q.Get("commit") != "false", ack); err != nil {
		refuse(w, err)
		return
	}
	writeText(w, "OK")
}

// parseQuery refuses what net/http would drop silently.
func parseQuery(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("%w query: %w", topology.ErrInvalid, err)
	}
	return q, nil
}

// refuse answers with the status of an error of this package, or of those all doors share.
func refuse(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, errNotRegistered), errors.Is(err, errOtherOrigin), errors.Is(err, errUnknownAnswer):
		httpd.Refuse(w, http.StatusConflict, err.Error())
	case errors.As(err, new(wireError)):
		httpd.Refuse(w, http.StatusBadRequest, err.Error())
	default:
		httpd.RefuseError(w, err)
	}
}

func writeText(w http.ResponseWriter, text string) {
	httpd.WriteText(w, http.StatusOK, "text/html; charset=utf-8", text)
}

func (s *Service) handlePoll(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r)
	if err != nil {
		refuse(w, err)
		return
	}
	pq, err := parsePoll(q, &s.cfg)
	if err != nil {
		refuse(w, err)
		return
	}
	ses, leave, err := s.session(r, q)
	if err != nil {
		s.metrics.polled("unregistered", 0)
		refuse(w, err)
		return
	}
	defer leave()
	newBody := s.newForm(r.Header.Get("Accept"), &pq)
	p, err := s.poll(r.Context(), ses, &pq, newBody)
	if err != nil {
		s.refusePoll(w, r, err)
		return
	}
	if p.body != nil {
		defer p.body.release()
	}
	setPollHeaders(w.Header(), &p)
	if p.outcome == gotRecords {
		if err := s.stillLeading(p.answer); err != nil {
			s.answered(ses, p.answer, false)
			p.outcome = notLeading
		}
	}
	s.metrics.polled(p.outcome, p.waited)
	if p.outcome != gotRecords {
		writeNothing(w, &p)
		return
	}
	complete := false
	defer func() { s.answered(ses, p.answer, complete) }()
	complete = s.writeAnswer(w, r, p.body) == nil
	if !complete {
		s.metrics.cutOff()
	}
}

func (s *Service) refusePoll(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		s.metrics.polled("cancelled", 0)
		httpd.Refuse(w, http.StatusServiceUnavailable, "the client is gone") // nobody reads it
		return
	}
	s.metrics.polled("error", 0)
	refuse(w, err)
}

// newForm makes what the form of the answer to a poll is made with: JSON where that is what it names first, else binary
// (docs/wire.md, 5.2).
func (s *Service) newForm(accept string, q *pollQuery) func() form {
	switch firstType(accept) {
	case "application/json":
		return func() form { return newJSONForm() }
	case recordsType:
		q.merge = true
		return func() form { return newRecordsForm() }
	}
	return func() form { return newBinaryForm(s.cfg.Compression == "zstd") }
}

// firstType is the first media type of an Accept header, without parameters.
func firstType(accept string) string {
	first, _, _ := strings.Cut(accept, ",")
	first, _, _ = strings.Cut(first, ";")
	return strings.ToLower(strings.TrimSpace(first))
}

func setPollHeaders(h http.Header, p *polled) {
	h.Set("Cache-Control", "no-store")
	if p.ack != "" {
		h.Set(ackHeader, string(p.ack))
	}
	if p.id != "" {
		h.Set(pollIDHeader, p.id)
	}
	const most = 20 // more of them are in the log of the broker only
	for _, d := range p.damaged[:min(len(p.damaged), most)] {
		h.Add(damagedHeader, fmt.Sprintf("%s/%d:%d-%d", d.topic, d.partition, d.From, d.To))
	}
}

// writeNothing answers a poll that got nothing, with when to ask again and, where it is not plain, why.
func writeNothing(w http.ResponseWriter, p *polled) {
	h := w.Header()
	switch p.outcome {
	case nothingNew:
		if !p.moreSoon {
			h.Set("Retry-After", "1")
		}
	case noPartitions:
		httpd.SetRetry(h, 5*time.Second, string(noPartitions))
	case notLeading:
		httpd.SetRetry(h, time.Second, string(notLeading))
	case draining:
		httpd.SetRetry(h, time.Second, httpd.ReasonShuttingDown)
	case superseded:
		h.Set(httpd.ReasonHeader, string(superseded))
	}
	w.WriteHeader(http.StatusNoContent)
}

// writeAnswer writes an answer to its end. The client has AnswerTimeout to read it; no lock is held meanwhile.
//
// On HTTP/2 the last byte is left for the end of the handler, which sends it with the end of the stream: a client that
// stops at Content-Length resets the stream, and a reset that overtakes the result of a last flush would look like an
// answer that was cut.
func (s *Service) writeAnswer(w http.ResponseWriter, r *http.Request, body finisher) error {
	contentType, parts := body.finish()
	length := 0
	for _, p := range parts {
		length += len(p)
	}
	s.answerBytes.Add(int64(length))
	defer s.answerBytes.Add(-int64(length))
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(length))
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(s.cfg.AnswerTimeout)) // where there is no connection, there is nothing to bound
	defer func() { _ = rc.SetWriteDeadline(time.Time{}) }()
	w.WriteHeader(http.StatusOK)
	var held []byte
	if last := len(parts) - 1; r.ProtoMajor >= 2 && last >= 0 && len(parts[last]) > 0 {
		end := len(parts[last]) - 1
		parts[last], held = parts[last][:end], parts[last][end:]
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			return err
		}
	}
	if err := rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if len(held) > 0 {
		if _, err := w.Write(held); err != nil {
			return err
		}
		if err := r.Context().Err(); err != nil {
			return err
		}
	}
	s.metrics.answered(length)
	return nil
}
