package consuming

import (
	"errors"
	"net/http"
	"net/http/httptest"
)

// cutWriter fails after some bytes, as a connection does that the client has closed.
type cutWriter struct {
	*httptest.ResponseRecorder
	left int
}

func (w *cutWriter) Write(b []byte) (int, error) {
	if len(b) > w.left {
		n := w.left
		w.left = 0
		return n, errors.New("connection reset")
	}
	w.left -= len(b)
	return w.ResponseRecorder.Write(b)
}

// pollCut polls over a connection that breaks after some bytes of the answer, and returns how many were written.
func (w *world) pollCut(id string, bytes int) int {
	req := httptest.NewRequest(http.MethodPost, "/v1/consumer/poll?consumerId="+id, nil)
	req.Header.Set("Accept", "application/json")
	out := &cutWriter{httptest.NewRecorder(), bytes}
	w.h.ServeHTTP(out, req)
	return bytes - out.left
}

// slowWriter takes nothing before it is released.
type slowWriter struct {
	*httptest.ResponseRecorder
	release chan struct{}
}

func newSlowWriter() *slowWriter {
	return &slowWriter{httptest.NewRecorder(), make(chan struct{})}
}

func (w *slowWriter) Write(b []byte) (int, error) {
	<-w.release
	return w.ResponseRecorder.Write(b)
}

// serve polls in JSON and has the answer written to out.
func (w *world) serve(out http.ResponseWriter, id string) {
	req := httptest.NewRequest(http.MethodPost, "/v1/consumer/poll?consumerId="+id, nil)
	req.Header.Set("Accept", "application/json")
	w.h.ServeHTTP(out, req)
}
