package httpd_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
)

// slowDoor has a handler that waits until it is let go and one that waits for the drain or its context.
func slowDoor() (h http.Handler, entered chan string, let chan struct{}) {
	entered, let = make(chan string, 16), make(chan struct{})
	r := httpd.NewRouter()
	r.HandleFunc("GET /slow", func(w http.ResponseWriter, req *http.Request) {
		entered <- "slow"
		select {
		case <-let:
			httpd.WriteText(w, 200, "", "written")
		case <-req.Context().Done():
			entered <- "cancelled"
		}
	})
	r.HandleFunc("GET /poll", func(w http.ResponseWriter, req *http.Request) {
		entered <- "poll"
		select {
		case <-httpd.Draining(req.Context()):
			w.WriteHeader(204)
		case <-req.Context().Done():
			entered <- "cancelled"
		}
	})
	r.HandleFunc("GET /deaf", func(http.ResponseWriter, *http.Request) {
		entered <- "deaf"
		<-let
	})
	return r, entered, let
}

type answer struct {
	resp *http.Response
	body string
	err  error
}

func ask(c *http.Client, url string) chan answer {
	ch := make(chan answer, 1)
	go func() {
		resp, err := c.Get(url)
		if err != nil {
			ch <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		ch <- answer{resp, string(b), err}
	}()
	return ch
}

// A drain answers what runs, tells pollers to go, takes nothing new, and ends by itself.
func TestDrain(t *testing.T) {
	t.Parallel()
	h, entered, let := slowDoor()
	s := start(t, httpd.Config{Handler: h, DrainTimeout: 10 * time.Second})
	one, two := h1(t), h2(t)
	var slow, polls []chan answer
	for _, c := range []*http.Client{one, two} {
		slow = append(slow, ask(c, s.url("/slow")))
		polls = append(polls, ask(c, s.url("/poll")))
	}
	for range 4 {
		<-entered
	}
	s.stop()
	for i, p := range polls {
		if a := <-p; a.err != nil || a.resp.StatusCode != 204 {
			t.Errorf("poll %d: %+v", i, a)
		}
	}
	eventually(t, func() bool {
		c, err := net.Dial("tcp", s.Addr())
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	select {
	case err := <-s.done:
		t.Fatalf("Run returned %v with two requests running", err)
	default:
	}
	close(let)
	for i, p := range slow {
		a := <-p
		if a.err != nil || a.resp.StatusCode != 200 || a.body != "written" {
			t.Errorf("slow %d: %+v", i, a)
		} else if a.resp.ProtoMajor == 1 && !a.resp.Close {
			t.Errorf("slow %d: no Connection: close", i)
		}
	}
	if err := <-s.done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// Past the drain timeout requests are cancelled and connections closed, and Run returns.
func TestDrainTimeout(t *testing.T) {
	t.Parallel()
	h, entered, _ := slowDoor()
	s := start(t, httpd.Config{Handler: h, DrainTimeout: 50 * time.Millisecond})
	a, b := ask(h1(t), s.url("/slow")), ask(h2(t), s.url("/slow"))
	<-entered
	<-entered
	s.stop()
	for _, p := range []chan answer{a, b} {
		if r := <-p; r.err == nil {
			t.Errorf("a cancelled request was answered: %+v", r)
		}
	}
	if err := <-s.done; err != nil {
		t.Errorf("Run: %v", err)
	}
	for range 2 {
		if got := <-entered; got != "cancelled" {
			t.Errorf("handler says %q", got)
		}
	}
}

// A handler that ignores its context is reported, not waited for.
func TestDrainNamesHandlersThatStay(t *testing.T) {
	t.Parallel()
	h, entered, let := slowDoor()
	defer close(let)
	s := start(t, httpd.Config{Handler: h, DrainTimeout: 10 * time.Millisecond})
	p := ask(h1(t), s.url("/deaf"))
	<-entered
	s.stop()
	<-p
	if err := <-s.done; err == nil || !strings.Contains(err.Error(), "1 handlers still run") {
		t.Errorf("Run: %v", err)
	}
}

func TestDrainWithoutRequestsIsQuick(t *testing.T) {
	t.Parallel()
	s := start(t, httpd.Config{Handler: text("x")})
	get(t, h1(t), s.url("/"))
	begin := time.Now()
	s.stop()
	if err := <-s.done; err != nil || time.Since(begin) > 2*time.Second {
		t.Errorf("Run: %v after %s", err, time.Since(begin))
	}
}

// A poll, which has no body, may take longer than a body may.
func TestLongPollOutlivesReadTimeout(t *testing.T) {
	t.Parallel()
	h, entered, let := slowDoor()
	s := start(t, httpd.Config{Handler: h, ReadTimeout: 100 * time.Millisecond})
	a, b := ask(h1(t), s.url("/slow")), ask(h2(t), s.url("/slow"))
	<-entered
	<-entered
	select {
	case <-entered:
		t.Fatal("a poll was cancelled")
	case <-time.After(400 * time.Millisecond):
	}
	close(let)
	for _, p := range []chan answer{a, b} {
		if r := <-p; r.err != nil || r.resp.StatusCode != 200 {
			t.Errorf("%+v", r)
		}
	}
}

func TestDrainingOutsideAServer(t *testing.T) {
	select {
	case <-httpd.Draining(context.Background()):
		t.Error("it is draining")
	default:
	}
}
