package httpd

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// maxPooledJSON is the largest buffer of answers that is kept for the next one.
const maxPooledJSON = 256 << 10

var jsonBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// WriteJSON answers with v as JSON and a newline, Content-Type application/json and Content-Length. <, > and & stay as
// they are. A v that does not marshal becomes a logged 500: nothing is written before the whole answer is known.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	b := jsonBuffers.Get().(*bytes.Buffer)
	b.Reset()
	defer func() {
		if b.Cap() <= maxPooledJSON {
			jsonBuffers.Put(b)
		}
	}()
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		RefuseError(w, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// WriteText answers with text as it is, Content-Length included. An empty contentType means text/plain in UTF-8.
func WriteText(w http.ResponseWriter, status int, contentType, text string) {
	if contentType == "" {
		contentType = "text/plain; charset=utf-8"
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

// response is the ResponseWriter that handlers of a Server get: it remembers what was answered.
type response struct {
	http.ResponseWriter
	status int    // 0 until the header is written
	route  string // pattern of the route that answered; "" when there is none
	err    error  // what made a 500, for the log
}

func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *response) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	w.ok()
	return w.ResponseWriter.Write(b)
}

func (w *response) WriteString(s string) (int, error) {
	w.ok()
	return io.WriteString(w.ResponseWriter, s)
}

// ReadFrom keeps the way of file contents to the socket without a copy.
func (w *response) ReadFrom(r io.Reader) (int64, error) {
	w.ok()
	if rf, ok := w.ResponseWriter.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{w.ResponseWriter}, r)
}

func (w *response) Flush() {
	w.ok()
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (w *response) ok() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

// responseOf finds the response below w, nil when w is of no Server (in tests of handlers).
func responseOf(w http.ResponseWriter) *response {
	for {
		switch t := w.(type) {
		case *response:
			return t
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return nil
		}
	}
}

// noteError leaves err for the log line that the server writes when the request is done.
func noteError(w http.ResponseWriter, err error) {
	if r := responseOf(w); r != nil {
		r.err = err
	}
}
