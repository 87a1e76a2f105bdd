package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// session sends requests to a broker and holds the answers against the document.
type session struct {
	t    *testing.T
	b    *broker
	doc  *openapi3.T
	seen map[string]bool // "METHOD /path status"
}

// exchange is one request and what to expect.
type exchange struct {
	op     string // "METHOD /path" of the document
	target string // path and query to send; "" is the path of op
	header []string
	body   string
	status int
	has    string // a part of the body
}

func (s *session) do(e exchange) (*http.Response, string) {
	s.t.Helper()
	method, path, _ := strings.Cut(e.op, " ")
	if e.target == "" {
		e.target = path
	}
	base := s.b.clientURL
	if path == "/metrics" {
		base = s.b.metricsURL
	}
	req, err := http.NewRequest(method, base+e.target, strings.NewReader(e.body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(e.header); i += 2 {
		req.Header.Add(e.header[i], e.header[i+1])
	}
	resp, err := s.b.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != e.status || !strings.Contains(string(body), e.has) {
		s.t.Errorf("%s %s: %d %s\nwant %d with %s", e.op, e.target, resp.StatusCode, body, e.status, e.has)
	}
	s.check(e, req, resp, body)
	return resp, string(body)
}

// check holds an answer, and the request where it was well, against the document.
func (s *session) check(e exchange, req *http.Request, resp *http.Response, body []byte) {
	s.t.Helper()
	method, path, _ := strings.Cut(e.op, " ")
	item := s.doc.Paths.Value(path)
	op := operations(s.doc)[e.op]
	if op == nil {
		s.t.Errorf("%s is not described", e.op)
		return
	}
	s.seen[e.op+" "+strconv.Itoa(resp.StatusCode)] = true
	if op.Responses.Value(strconv.Itoa(resp.StatusCode)) == nil {
		s.t.Errorf("%s: status %d is not described", e.op, resp.StatusCode)
		return
	}
	req.Body = io.NopCloser(strings.NewReader(e.body))
	in := &openapi3filter.RequestValidationInput{
		Request: req, PathParams: pathParams(path, req.URL.EscapedPath()),
		Route:   &routers.Route{Spec: s.doc, Path: path, PathItem: item, Method: method, Operation: op},
		Options: &openapi3filter.Options{ExcludeRequestBody: req.Header.Get("Content-Type") != "application/json", MultiError: true},
	}
	if resp.StatusCode < 300 {
		if err := openapi3filter.ValidateRequest(context.Background(), in); err != nil {
			s.t.Errorf("%s %s: the request does not fit the document: %v", e.op, e.target, err)
		}
	}
	out := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: in, Status: resp.StatusCode, Header: resp.Header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), out); err != nil {
		s.t.Errorf("%s %s: %d %s does not fit the document: %v", e.op, e.target, resp.StatusCode, body, err)
	}
	if resp.StatusCode != http.StatusNoContent && resp.ContentLength != int64(len(body)) && path != "/metrics" {
		s.t.Errorf("%s: Content-Length %d of %d bytes", e.op, resp.ContentLength, len(body))
	}
}

// pathParams are the segments of an escaped path at the names of a pattern.
func pathParams(pattern, path string) map[string]string {
	params := map[string]string{}
	segments := strings.Split(path, "/")
	for i, p := range strings.Split(pattern, "/") {
		if name, ok := strings.CutPrefix(p, "{"); ok && i < len(segments) {
			params[strings.TrimSuffix(name, "}")] = segments[i]
		}
	}
	return params
}

func init() {
	asText := openapi3filter.RegisteredBodyDecoder("text/plain")
	for _, media := range []string{"text/html", "application/openmetrics-text", "application/vnd.polar.consumermessage", "application/vnd.skein.recordbatch"} {
		openapi3filter.RegisterBodyDecoder(media, asText)
	}
	openapi3filter.RegisterBodyDecoder("application/vnd.skein.records+json", openapi3filter.RegisteredBodyDecoder("application/json"))
}

// Media types of answers.
const (
	asJSON    = "application/json"
	asRecords = "application/vnd.skein.records+json"
	asLines   = "application/x-ndjson"
	asChunks  = "application/vnd.skein.recordbatch"
)

// What the handlers answer, success and refusal, fits the document.
func TestAnswers(t *testing.T) {
	s := &session{t: t, b: startBroker(t), doc: document(t), seen: map[string]bool{}}
	t.Run("topics", func(t *testing.T) { s.t = t; s.topics() })
	t.Run("produce", func(t *testing.T) { s.t = t; s.produce() })
	t.Run("read", func(t *testing.T) { s.t = t; s.read() })
	t.Run("consume", func(t *testing.T) { s.t = t; s.consume() })
	t.Run("groups", func(t *testing.T) { s.t = t; s.groups() })
	t.Run("cluster", func(t *testing.T) { s.t = t; s.cluster() })
	s.t = t
	s.everySuccessWasSeen()
}

// everySuccessWasSeen makes sure that no success is described that no exchange got.
func (s *session) everySuccessWasSeen() {
	for _, name := range slices.Sorted(maps.Keys(operations(s.doc))) {
		for status := range operations(s.doc)[name].Responses.Map() {
			if status < "300" && !s.seen[name+" "+status] {
				s.t.Errorf("%s: no answer had the status %s", name, status)
			}
		}
	}
}

func (s *session) topics() {
	const all, one = "/v1/topics", "/v1/topics/{topic}"
	json := []string{"Content-Type", asJSON}
	for _, e := range []exchange{
		{"GET " + all, "", nil, "", 200, `{"topics":[]}`},
		{"POST " + all, "", json, `{"name":"orders","partitions":3,"config":{"retentionMs":3600000}}`, 201, `"partitions":3`},
		{"POST " + all, "", json, `{"name":"orders"}`, 200, `"partitions":3`},
		{"POST " + all, "//v1//topics/", json, `{"name":"other"}`, 201, `"partitions":12`},
		{"POST " + all, "", json, `{"name":"orders","partitions":6}`, 409, "exists with 3 partitions"},
		{"POST " + all, "", json, `{"name":"orders","config":{"retentionMs":5}}`, 409, "exists with the settings"},
		{"POST " + all, "", json, `{"name":"a/b"}`, 400, "outside A-Z a-z"},
		{"POST " + all, "", json, strings.Repeat("x", 65<<10), 413, "allowed are 65536"},
		{"POST " + all, "", []string{"Content-Encoding", "br"}, `{}`, 415, "allowed are gzip"},
		{"GET " + all, "", nil, "", 200, `"name":"other"`},
		{"GET " + one, "/v1/topics/orders", nil, "", 200, `"logs":[`},
		{"GET " + one, "/v1/topics/__topics", nil, "", 200, `"__topics"`},
		{"GET " + one, "/v1/topics/nothing", nil, "", 404, "unknown topic"},
		{"GET " + one, "/v1/topics/..", nil, "", 400, "not allowed"},
		{"PATCH " + one, "/v1/topics/orders", json, `{"config":{"retentionMs":null,"retentionBytes":1000000}}`, 200, `"config":{"retentionBytes":1000000}`},
		{"PATCH " + one, "/v1/topics/orders", json, `{"config":{"retentionBytes":0}}`, 400, "allowed are -1"},
		{"PATCH " + one, "/v1/topics/nothing", json, `{"config":{}}`, 404, "unknown topic"},
		{"DELETE " + one, "/v1/topics/other", nil, "", 204, ""},
		{"DELETE " + one, "/v1/topics/other", nil, "", 404, "unknown topic"},
		{"DELETE " + one, "/v1/topics/__topics", nil, "", 400, "reserved"},
	} {
		s.do(e)
	}
}

func (s *session) produce() {
	const op = "POST /v1/topic/{topic}/messages"
	const to = "/v1/topic/orders/messages?partitionKey=k"
	long := strings.Repeat("x", 1<<20+1)
	for _, e := range []exchange{
		{op, to, nil, `{"a":1}`, 200, "OK"},
		{op, to, []string{"Content-Type", "text/plain"}, "plain", 200, "OK"},
		{op, to, []string{"Accept", asJSON}, `{"a":2}`, 200, `"offset":2`},
		{op, to, []string{"Content-Type", asLines, "Accept", asJSON}, "{\"a\":3}\n\n[4]\n", 200, `"offset":4`},
		{op, to + "&timestamp=1700000000000000", []string{"Content-Type", asRecords, "Accept", asJSON}, `{"key":{"$base64":"/w=="},"value":{"$text":"hi"},"headers":{"h":"v","n":null}}` + "\n" +
			`{"value":null,"timestamp":5,"headers":[["h",{"$base64":"/w=="}]]}`, 200, `"timestamp":5`},
		{op, to, []string{"Content-Type", "application/vnd.polar.producer.frames"}, "\x00\x00\x00\x01\xff", 200, "OK"},
		{op, to, []string{"Idempotency-Key", "i1", "Skein-Header", "trace=1"}, `{"once":true}`, 200, "OK"},
		{op, to, []string{"Idempotency-Key", "i1", "Skein-Header", "trace=1"}, `{"once":true}`, 200, "OK"},
		{op, to, []string{"Idempotency-Key", "i1"}, `{"once":false}`, 422, "another request"},
		{op, to, nil, "", 400, "empty"},
		{op, to, []string{"Content-Type", asLines}, "{}\n{", 400, "line 2"},
		{op, "/v1/topic/__topics/messages", nil, "x", 400, "reserved"},
		{op, to + "%00", nil, "x", 400, "control character"},
		{op, to, nil, long, 413, "allowed are 1048576"},
		{op, to, []string{"Content-Encoding", "br"}, "x", 415, "allowed are gzip"},
	} {
		resp, _ := s.do(e)
		if again := e.has == "OK" && s.seen["once"]; again != (resp.Header.Get("Skein-Duplicate") == "true") {
			s.t.Errorf("%v: Skein-Duplicate is %q", e.header, resp.Header.Get("Skein-Duplicate"))
		}
		s.seen["once"] = e.body == `{"once":true}` && !s.seen["once"]
	}
}

func (s *session) read() {
	const op = "GET /v1/topic/{topic}/partitions/{partition}/records"
	const first = "POST /v1/topic/{topic}/messages"
	_, receipts := s.do(exchange{first, "/v1/topic/orders/messages?partitionKey=k", []string{"Accept", asJSON}, "last", 200, ""})
	var list []struct{ Partition, Offset int }
	if err := json.Unmarshal([]byte(receipts), &list); err != nil || len(list) != 1 {
		s.t.Fatalf("receipts %s: %v", receipts, err)
	}
	of := "/v1/topic/orders/partitions/" + strconv.Itoa(list[0].Partition) + "/records"
	end := strconv.Itoa(list[0].Offset + 1)
	for _, e := range []exchange{
		{op, of, nil, "", 200, `"$base64"`},
		{op, of + "?last=1", nil, "", 200, `"value":"last","text":true`},
		{op, of + "?offset=2&maxRecords=1", nil, "", 200, `"next":3`},
		{op, of + "?time=2020-01-01T00:00:00Z&maxBytes=1", nil, "", 200, `"next":1,`},
		{op, of + "?offset=" + end + "&wait=10ms", nil, "", 200, `"records":[]`},
		{op, of, []string{"Accept", asChunks}, "", 200, ""},
		{op, of + "?offset=1000", nil, "", 416, `"highWatermark":` + end},
		{op, of + "?offset=1&last=1", nil, "", 400, "allowed is one of"},
		{op, "/v1/topic/orders/partitions/3/records", nil, "", 400, "0 to 2"},
		{op, "/v1/topic/nothing/partitions/0/records", nil, "", 404, "unknown topic"},
	} {
		s.do(e)
	}
}

func (s *session) consume() {
	const put, post = "PUT /v1/consumer/register", "POST /v1/consumer/register"
	const poll, commit, goodbye = "POST /v1/consumer/poll", "POST /v1/consumer/commit", "POST /v1/consumer/goodbye"
	const me = "?consumerId=c1"
	html := []string{"Accept", asJSON}
	records := []string{"Accept", asRecords}
	for _, e := range []exchange{
		{poll, "/v1/consumer/poll" + me, html, "", 409, "Consumer not registered"},
		{put, "/v1/consumer/register" + me + "&group=billing&topic=orders&onNewGroup=startFromEarliest", nil, "", 200, "OK"},
		{put, "/v1/consumer/register" + me + "&group=billing&topic=orders", nil, "", 200, "Already registered"},
		{post, "/v1/consumer/register" + me + "&group=other&topic=orders", nil, "", 400, "different parameters"},
		{put, "/v1/consumer/register" + me, nil, "", 400, "can not be empty"},
		{put, "/v1/consumer/register?consumerId=c2&topic=orders&onNewGroup=sometimes", nil, "", 400, "Invalid offset reset policy value"},
		{post, "", []string{"Content-Type", asJSON}, `{"id":"bound","group":"bound","topics":["orders"],"onNewGroup":1}`, 200, "OK"},
		{post, "", []string{"Content-Type", asJSON}, `{"id":1}`, 400, "Invalid ConsumerInfo payload"},
		{poll, "/v1/consumer/poll" + me + "&maxRecords=2&wait=2s", html, "", 200, `"values":[`},
		{poll, "/v1/consumer/poll" + me + "&ack=none", records, "", 200, `"records":[`},
		{poll, "/v1/consumer/poll" + me + "&wait=forever", html, "", 400, "allowed are"},
	} {
		s.do(e)
	}
	resp, _ := s.do(exchange{poll, "/v1/consumer/poll" + me + "&ack=none&maxRecords=1", html, "", 200, ""})
	id := resp.Header.Get("Skein-Poll-Id")
	if resp, _ = s.do(exchange{poll, "/v1/consumer/poll" + me + "&wait=1s&ack=" + id, nil, "", 200, ""}); resp.Header.Get("Skein-Ack") != "committed" {
		s.t.Errorf("Skein-Ack is %q", resp.Header.Get("Skein-Ack"))
	}
	for _, e := range []exchange{
		{commit, "/v1/consumer/commit" + me, []string{"Content-Type", asJSON}, `{"positions":[]}`, 400, "names no positions"},
		{commit, "/v1/consumer/commit" + me, nil, "", 204, ""},
		{commit, "/v1/consumer/commit" + me + "&ack=nothing", nil, "", 409, "ack"},
		{commit, "/v1/consumer/commit?consumerId=nobody", nil, "", 409, "not registered"},
		{goodbye, "/v1/consumer/goodbye?consumerId=nobody", nil, "", 409, "not registered"},
	} {
		s.do(e)
	}
	for range 20 { // until nothing is left
		resp, _ := s.b.http.Post(s.b.clientURL+"/v1/consumer/poll"+me, "", nil)
		if resp == nil {
			break
		}
		resp.Body.Close()
		if resp.StatusCode == 204 {
			break
		}
	}
	s.do(exchange{poll, "/v1/consumer/poll" + me, nil, "", 204, ""})
}

func (s *session) groups() {
	const all, one, seek = "/v1/groups", "/v1/groups/{group}", "POST /v1/groups/{group}/seek"
	json := []string{"Content-Type", asJSON}
	for _, e := range []exchange{
		{"GET " + all, "", nil, "", 200, `"name":"billing"`},
		{"GET " + one, "/v1/groups/billing", nil, "", 200, `"owner":"c1"`},
		{"GET " + one, "/v1/groups/nothing", nil, "", 404, "unknown group"},
		{"GET " + one, "/v1/groups/%01", nil, "", 400, "control character"},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"orders","to":"earliest"}`, 409, ""},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"orders","to":"nowhere"}`, 400, "allowed are"},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"nothing","to":"latest","force":true}`, 404, "unknown topic"},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"orders","to":"earliest","force":true}`, 200, `"positions":[`},
		{"DELETE " + one, "/v1/groups/billing", nil, "", 409, ""},
		{"POST /v1/consumer/goodbye", "/v1/consumer/goodbye?consumerId=c1&commit=false", nil, "", 200, "OK"},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"orders","partition":0,"to":"time","time":"2020-01-01T00:00:00Z"}`, 200, `"to":0`},
		{seek, "/v1/groups/billing/seek", json, `{"topic":"orders","partition":0,"to":"offset","offset":0}`, 200, `"positions":[`},
		{"GET " + one, "/v1/groups/billing", nil, "", 200, `"members":[]`},
		{"DELETE " + one, "/v1/groups/billing", nil, "", 204, ""},
		{"DELETE " + one, "/v1/groups/billing", nil, "", 404, "unknown group"},
	} {
		s.do(e)
	}
}

func (s *session) cluster() {
	s.do(exchange{"GET /v1/brokers", "", nil, "", 200, `"names":["127.0.0.1"]`})
	s.do(exchange{"GET /v1/cluster", "", nil, "", 200, `"generations":[{`})
	s.do(exchange{"GET /v1/openapi.yaml", "", nil, "", 200, "openapi: 3.1.0"})
	s.do(exchange{"GET /metrics", "", nil, "", 200, ""})
	s.do(exchange{"GET /healthz/live", "", nil, "", 200, "ok"})
	s.do(exchange{"GET /healthz/ready", "", nil, "", 200, "true"})
	s.do(exchange{"GET /status", "", nil, "", 200, "Client discovery server listening on 9250\n"})
	s.b.unready, s.b.closed = errors.New("not yet"), true
	s.do(exchange{"GET /healthz/ready", "", nil, "", 503, "test: not yet"})
	s.do(exchange{"GET /status", "", nil, "", 503, "unavailable"})
}
