package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBrokerAddresses(t *testing.T) {
	for list, want := range map[string]string{
		"": "http://127.0.0.1:9250", "host": "http://host:9250", "host:1": "http://host:1", "http://host/": "http://host:9250", "https://host:1": "https://host:1",
		"[::1]:9": "http://[::1]:9", "a, b:2 ,": "http://a:9250 http://b:2",
	} {
		c, err := New(Config{Brokers: list})
		if err != nil || strings.Join(c.Brokers(), " ") != want {
			t.Errorf("%q: %v, %v, want %s", list, c, err, want)
		}
	}
	for _, list := range []string{",", "ftp://x", "http://x/path", "http://x?q", "a b", ":9250", "http://"} {
		if _, err := New(Config{Brokers: list}); err == nil {
			t.Errorf("%q is accepted", list)
		}
	}
}

// The statuses of docs/design.md, section 6, and what a broken connection tells.
func TestOutcomes(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want Outcome
	}{
		"none":                         {nil, Stored},
		"400":                          {&Error{Status: 400}, Refused},
		"413":                          {&Error{Status: 413}, Refused},
		"421":                          {&Error{Status: 421}, NotWritten},
		"422":                          {&Error{Status: 422}, Refused},
		"429":                          {fmt.Errorf("wrapped: %w", &Error{Status: 429}), NotWritten},
		"500":                          {&Error{Status: 500}, Refused},
		"503":                          {&Error{Status: 503}, NotWritten},
		"504":                          {&Error{Status: 504}, Unknown},
		"507":                          {&Error{Status: 507}, NotWritten},
		"a connection not made":        {&ConnError{}, NotWritten},
		"a connection that broke":      {&ConnError{Sent: true}, Unknown},
		"a deadline":                   {context.DeadlineExceeded, Unknown},
		"something before the sending": {errors.New("x"), Refused},
	} {
		if got := OutcomeOf(c.err); got != c.want {
			t.Errorf("%s: outcome %d, want %d", name, got, c.want)
		}
	}
}

// serve makes a client of a server with one handler.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewServer(h)
	c, err := New(Config{Brokers: s.URL, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c
}

func TestRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		want string
	}{
		"a problem":          {`{"title":"Conflict","status":409,"detail":"it exists"}`, "it exists (status 409)"},
		"a problem untold":   {`{"title":"Conflict"}`, "Conflict (status 409)"},
		"text":               {"  no such thing\nmore\n", "no such thing (status 409)"},
		"nothing":            {"", "Conflict (status 409)"},
		"a very long answer": {strings.Repeat("x", 1000), strings.Repeat("x", 300) + "... (status 409)"},
	} {
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "3")
			w.Header().Set("Skein-Reason", "busy")
			w.WriteHeader(409)
			_, _ = w.Write([]byte(c.body))
		})
		_, _, err := client.Topics(t.Context())
		var refused *Error
		if !errors.As(err, &refused) || refused.Error() != c.want || refused.RetryAfter != 3*time.Second || refused.Reason != "busy" {
			t.Errorf("%s: %v (%+v), want %q", name, err, refused, c.want)
		}
	}
}

func TestOutOfRangeTellsTheBounds(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(416)
		_, _ = w.Write([]byte(`{"detail":"out of range","start":3,"highWatermark":9}`))
	})
	_, err := client.Records(t.Context(), RecordsRequest{Topic: "t"})
	var refused *Error
	if !errors.As(err, &refused) || refused.Start == nil || *refused.Start != 3 || refused.HighWatermark == nil || *refused.HighWatermark != 9 {
		t.Errorf("%v", err)
	}
}

func TestAnAnswerThatIsNoJSON(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) })
	if _, err := client.Discover(t.Context()); err == nil || !strings.Contains(err.Error(), "is it a Skein broker") {
		t.Errorf("%v", err)
	}
}

func TestConnErrors(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	client, err := New(Config{Brokers: gone.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Discover(t.Context())
	var conn *ConnError
	if !errors.As(err, &conn) || conn.Sent || !strings.Contains(err.Error(), "no broker answers at 127.0.0.1:") {
		t.Errorf("nobody listens: %v", err)
	}
	broken := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, _, err = broken.CreateTopic(t.Context(), NewTopic{Name: "t"}); !errors.As(err, &conn) || !conn.Sent {
		t.Errorf("the connection broke: %v", err)
	}
	slow := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	slow.timeout = 50 * time.Millisecond
	if _, err = slow.Discover(t.Context()); !errors.As(err, &conn) || !conn.Sent || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("no answer: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = slow.Discover(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that left: %v", err)
	}
}

// Whatever the bytes, what is sent comes back as it was.
func TestValuesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOf(rapid.Byte()).Draw(t, "b")
		for name, appendTo := range map[string]func([]byte, []byte) []byte{"text": AppendText, "key": AppendKey} {
			form := appendTo(nil, b)
			if !json.Valid(form) {
				t.Fatalf("%s form of %q is not JSON: %s", name, b, form)
			}
			got, err := Value(form).Bytes()
			if err != nil || string(got) != string(b) || got == nil {
				t.Fatalf("%s form of %q is %s, which stands for %q, %v", name, b, form, got, err)
			}
		}
	})
	if got := AppendText(nil, nil); string(got) != "null" {
		t.Errorf("null is %s", got)
	}
	if b, err := Value("null").Bytes(); b != nil || err != nil {
		t.Errorf("null stands for %q, %v", b, err)
	}
	if b, err := Value(`{"$base64":"!"}`).Bytes(); err == nil {
		t.Errorf("wrong base64 stands for %q", b)
	}
	for form, want := range map[string]string{`{"$base64":"bnVsbA=="}`: "null", `{"a":1}`: `{"a":1}`, `{"$text":"x","b":1}`: `{"$text":"x","b":1}`, `{"$base64":1}`: `{"$base64":1}`, "12": "12"} {
		if b, err := Value(form).Bytes(); err != nil || string(b) != want {
			t.Errorf("%s stands for %q, %v", form, b, err)
		}
	}
	if b, err := Value(`"x"`).Document(false); err != nil || string(b) != `"x"` {
		t.Errorf("a JSON string as a document is %q, %v", b, err)
	}
}

func FuzzDecodeAnswers(f *testing.F) {
	f.Add([]byte(`[{"topic":"t","partition":1,"records":[{"offset":1,"headers":[["a",null]],"value":{"$base64":"aGk="}}]}]`))
	f.Add([]byte(`[{"records":[{"headers":[[1]]}]}]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var batches []Batch
		if json.Unmarshal(b, &batches) != nil {
			return
		}
		for i := range batches {
			for j := range batches[i].Records {
				r := &batches[i].Records[j]
				_, _ = r.Bytes()
				_, _ = r.Key.Bytes()
				if _, err := json.Marshal(r.Headers); err != nil {
					t.Errorf("headers %v do not encode: %v", r.Headers, err)
				}
			}
		}
	})
}
