package httpd_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/httpd"
	"pgregory.net/rapid"
)

func router() *httpd.Router {
	r := httpd.NewRouter()
	r.HandleFunc("POST /v1/topic/{topic}/messages", func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, "topic "+req.PathValue("topic")+" "+req.URL.RawQuery)
	})
	r.HandleFunc("PUT /v1/consumer/register", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "put") })
	r.HandleFunc("POST /v1/consumer/register", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "post") })
	r.HandleFunc("GET /status", func(w http.ResponseWriter, req *http.Request) { _, _ = io.WriteString(w, req.Method) })
	r.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "root") })
	return r
}

func TestRouter(t *testing.T) {
	for _, tc := range []struct {
		name, method, target string
		status               int
		body                 string // of a 200, else a part of the detail
		allow                string
	}{
		{"plain", "POST", "/v1/topic/t/messages?partitionKey=a%2Fb", 200, "topic t partitionKey=a%2Fb", ""},
		{"doubled slash in front", "POST", "//v1/consumer/register", 200, "post", ""},
		{"doubled slashes everywhere", "PUT", "//v1///consumer//register", 200, "put", ""},
		{"trailing slash", "PUT", "/v1/consumer/register/", 200, "put", ""},
		{"root", "GET", "/", 200, "root", ""},
		{"many slashes are the root", "GET", "///", 200, "root", ""},
		{"two dots are a name", "POST", "/v1/topic/../messages", 200, "topic .. ", ""},
		{"one dot is a name", "POST", "/v1/topic/./messages", 200, "topic . ", ""},
		{"escaped dots", "POST", "/v1/topic/%2e%2e/messages", 200, "topic .. ", ""},
		{"dots that are part of a name", "POST", "/v1/topic/..a/messages", 200, "topic ..a ", ""},
		{"escaped slash", "POST", "/v1/topic/a%2Fb/messages", 200, "topic a/b ", ""},
		{"escaped and doubled", "POST", "//v1/topic/%20%C3%B1//messages", 200, "topic  ñ ", ""},
		{"HEAD goes to GET", "HEAD", "/status", 200, "HEAD", ""},
		{"unknown path", "GET", "/v1/nothing", 404, "404 page not found", ""},
		{"empty segment matches no name", "POST", "/v1/topic//messages", 404, "404 page not found", ""},
		{"wrong method", "GET", "/v1/topic/t/messages", 405, "method GET is not allowed", "OPTIONS, POST"},
		{"wrong method of an unclean path", "DELETE", "//v1/consumer/register", 405, "allowed are OPTIONS, POST, PUT", "OPTIONS, POST, PUT"},
		{"odd method", "BREW", "/status", 405, "BREW", "GET, HEAD, OPTIONS"},
		{"OPTIONS", "OPTIONS", "/v1/topic/t/messages", 200, "", "OPTIONS, POST"},
		{"OPTIONS of an unknown path", "OPTIONS", "/v1/nothing", 404, "404 page not found", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			router().ServeHTTP(w, httptest.NewRequest(tc.method, tc.target, nil))
			if w.Code != tc.status {
				t.Fatalf("status %d, want %d: %s", w.Code, tc.status, w.Body)
			}
			if got := w.Header().Get("Allow"); got != tc.allow {
				t.Errorf("Allow is %q, want %q", got, tc.allow)
			}
			if tc.status == 200 {
				if got := w.Body.String(); got != tc.body {
					t.Errorf("body %q, want %q", got, tc.body)
				}
				return
			}
			if p := problemOf(t, w); !strings.Contains(p.Detail, tc.body) {
				t.Errorf("detail %q, want one with %q", p.Detail, tc.body)
			}
		})
	}
}

func TestConnectIsRefused(t *testing.T) {
	req := httptest.NewRequest("CONNECT", "example.com:443", nil)
	w := httptest.NewRecorder()
	router().ServeHTTP(w, req)
	if w.Code != 405 {
		t.Errorf("status %d, want 405", w.Code)
	}
}

// No path, however written, is redirected or panics; clean ones are matched as they are.
func TestRouterNeverRedirects(t *testing.T) {
	t.Parallel()
	r := router()
	rapid.Check(t, func(t *rapid.T) {
		segs := rapid.SliceOfN(rapid.SampledFrom([]string{"", ".", "..", "v1", "topic", "messages", "consumer", "register", "%2e", "%2F", "a", "status"}), 0, 6).Draw(t, "segments")
		method := rapid.SampledFrom([]string{"GET", "POST", "PUT", "OPTIONS"}).Draw(t, "method")
		req := httptest.NewRequest(method, "http://h/"+strings.Join(segs, "/"), nil)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		if w.Code != 200 && w.Code != 404 && w.Code != 405 {
			t.Fatalf("%s %s: status %d", method, req.URL, w.Code)
		}
	})
}

func TestRouterPanicsOnBadPatterns(t *testing.T) {
	for _, pattern := range []string{"/x", "GET x", "GET /x/", "", "GET ", "GET /status"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("pattern %q was taken", pattern)
				}
			}()
			router().HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		}()
	}
}

func TestRoutes(t *testing.T) {
	want := "GET /,GET /status,POST /v1/consumer/register,POST /v1/topic/{topic}/messages,PUT /v1/consumer/register"
	if got := strings.Join(router().Routes(), ","); got != want {
		t.Errorf("routes are\n%s, want\n%s", got, want)
	}
}

type problem struct {
	Type, Title, Detail string
	Status              int
}

func problemOf(t *testing.T, w *httptest.ResponseRecorder) problem {
	t.Helper()
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type is %q", got)
	}
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%v in %q", err, w.Body)
	}
	if p.Type != "about:blank" || p.Status != w.Code || p.Title != http.StatusText(w.Code) {
		t.Errorf("problem %+v of status %d", p, w.Code)
	}
	return p
}
