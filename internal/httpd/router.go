package httpd

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Router dispatches requests by path and method. Handlers are registered before it serves; after that it is safe for
// concurrent use. See the package comment for what it does with unclean paths.
//
// An unknown path is answered with 404, a known one with another method with 405 and Allow, OPTIONS with 200, Allow and
// no body. HEAD goes to the handler of GET. An empty segment is dropped like any doubled slash, so a door that wants to
// say more than 404 of "/v1/topic//messages" registers "/v1/topic/messages" too.
type Router struct {
	mux    *http.ServeMux
	routes map[string]*route
}

// NewRouter makes an empty router.
func NewRouter() *Router {
	r := &Router{mux: http.NewServeMux(), routes: map[string]*route{}}
	r.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		Refuse(w, http.StatusNotFound, "404 page not found")
	})
	return r
}

// Handle registers h for a pattern "METHOD /path", in which {name} stands for one segment (Request.PathValue holds it
// unescaped) and a last {name...} for the rest. It panics on a pattern that is malformed, ends with a slash or is taken:
// routes are fixed in the source.
func (r *Router) Handle(pattern string, h http.Handler) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok || method == "" || !strings.HasPrefix(path, "/") || path != "/" && strings.HasSuffix(path, "/") {
		panic(fmt.Sprintf("httpd: pattern %q is not of the form \"METHOD /path\"", pattern))
	}
	t := r.routes[path]
	if t == nil {
		t = &route{path: path, methods: map[string]http.Handler{}}
		r.routes[path] = t
		if path == "/" {
			r.mux.Handle("/{$}", t)
		} else {
			r.mux.Handle(path, t)
		}
	}
	if t.methods[method] != nil {
		panic(fmt.Sprintf("httpd: %q is registered twice", pattern))
	}
	t.methods[method] = h
	t.allow = t.allowed()
}

// HandleFunc is Handle for a function.
func (r *Router) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	r.Handle(pattern, http.HandlerFunc(h))
}

// Routes lists the patterns "METHOD /path" that were registered, sorted.
func (r *Router) Routes() []string {
	var list []string
	for path, t := range r.routes {
		for m := range t.methods {
			list = append(list, m+" "+path)
		}
	}
	slices.Sort(list)
	return list
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method == http.MethodConnect {
		Refuse(w, http.StatusMethodNotAllowed, "CONNECT is not allowed: this is no proxy")
		return
	}
	escaped := req.URL.EscapedPath()
	if cleaned := cleanPath(escaped); cleaned != escaped {
		unescaped, err := url.PathUnescape(cleaned)
		if err != nil {
			Refuse(w, http.StatusBadRequest, fmt.Sprintf("the path %q is wrongly escaped", escaped))
			return
		}
		u := *req.URL
		u.Path, u.RawPath = unescaped, cleaned
		req2 := *req
		req2.URL = &u
		req = &req2
	}
	r.mux.ServeHTTP(w, req)
}

// cleanPath drops empty segments, among them a last one, from an escaped path, and escapes the dots of the segments "."
// and ".." so that nothing takes them for steps. A clean path is returned as it is.
func cleanPath(p string) string {
	if isClean(p) {
		return p
	}
	var b strings.Builder
	b.Grow(len(p) + 8)
	for seg := range strings.SplitSeq(p, "/") {
		switch seg {
		case "":
			continue
		case ".":
			seg = "%2e"
		case "..":
			seg = "%2e%2e"
		}
		b.WriteByte('/')
		b.WriteString(seg)
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}

func isClean(p string) bool {
	if p == "/" {
		return true
	}
	if p == "" || p[0] != '/' || p[len(p)-1] == '/' {
		return false
	}
	for i := 0; i < len(p); i++ {
		if p[i] != '/' {
			continue
		}
		rest := p[i+1:]
		switch {
		case strings.HasPrefix(rest, "/"), rest == ".", rest == "..",
			strings.HasPrefix(rest, "./"), strings.HasPrefix(rest, "../"):
			return false
		}
	}
	return true
}

// route is one path with its methods.
type route struct {
	path    string
	methods map[string]http.Handler
	allow   string // value of Allow
}

func (t *route) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if rw, ok := w.(*response); ok {
		rw.route = t.path
	}
	h := t.methods[req.Method]
	if h == nil && req.Method == http.MethodHead {
		h = t.methods[http.MethodGet]
	}
	switch {
	case h != nil:
		h.ServeHTTP(w, req)
	case req.Method == http.MethodOptions:
		w.Header().Set("Allow", t.allow)
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
	default:
		w.Header().Set("Allow", t.allow)
		Refuse(w, http.StatusMethodNotAllowed, fmt.Sprintf("method %s is not allowed on %s; allowed are %s", req.Method, t.path, t.allow))
	}
}

func (t *route) allowed() string {
	all := []string{http.MethodOptions}
	for m := range t.methods {
		if m != http.MethodOptions {
			all = append(all, m)
		}
		if m == http.MethodGet && t.methods[http.MethodHead] == nil {
			all = append(all, http.MethodHead)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
