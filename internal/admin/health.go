package admin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
)

// readiness is the answer of /healthz/ready.
type readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// reasons are the checks that fail, "name: why"; empty, not nil, when the broker is ready.
func (a *Admin) reasons() []string {
	reasons := []string{}
	for _, c := range a.cfg.Checks {
		if err := c.Ready(); err != nil {
			reasons = append(reasons, c.Name+": "+err.Error())
		}
	}
	return reasons
}

// live answers as long as the process can answer.
func (a *Admin) live(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	httpd.WriteText(w, http.StatusOK, "", "ok\n")
}

func (a *Admin) ready(w http.ResponseWriter, _ *http.Request) {
	reasons := a.reasons()
	status := http.StatusOK
	if len(reasons) > 0 {
		status = http.StatusServiceUnavailable
		httpd.SetRetry(w.Header(), time.Second, httpd.ReasonUnavailable)
	}
	w.Header().Set("Cache-Control", "no-store")
	httpd.WriteJSON(w, status, readiness{len(reasons) == 0, reasons})
}

// Doors that have a /status, by the words published clients were made for.
const (
	StatusClient   = "Client discovery"
	StatusProducer = "Producer"
	StatusConsumer = "Consumer"
)

// Status answers GET /status of a door (docs/wire.md, 2.2, 3.2, 5.5): "Producer server listening on 9251\n". available,
// where it is not nil, says whether a generation is known here; until then the answer is 503.
func Status(door string, port int, available func() bool) http.Handler {
	text := fmt.Sprintf("%s server listening on %d\n", door, port)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if available != nil && !available() {
			httpd.SetRetry(w.Header(), time.Second, httpd.ReasonUnavailable)
			httpd.WriteText(w, http.StatusServiceUnavailable, "", "Broker is unavailable to handle producer/consumer requests")
			return
		}
		httpd.WriteText(w, http.StatusOK, "", text)
	})
}
