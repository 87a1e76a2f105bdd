package admin

import (
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/httpd"
)

// metricsHandler answers with what Gatherer has. A metric that fails is logged and left out: the others still tell how
// the broker is.
func (a *Admin) metricsHandler() http.Handler {
	g := a.cfg.Gatherer
	if g == nil {
		g = prometheus.NewRegistry()
	}
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog:            promLog{a.log},
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 4,
		EnableOpenMetrics:   true,
	})
}

type promLog struct{ log zerolog.Logger }

func (l promLog) Println(v ...any) {
	l.log.Error().Interface("detail", v).Msg("a metric cannot be collected")
}

// registerPprof adds the profiles of the process (go tool pprof http://host:9253/debug/pprof/profile).
func registerPprof(r *httpd.Router) {
	r.HandleFunc("GET /debug/pprof", func(w http.ResponseWriter, req *http.Request) {
		if path, _, _ := strings.Cut(req.RequestURI, "?"); !strings.HasSuffix(path, "/") {
			http.Redirect(w, req, "/debug/pprof/", http.StatusFound) // the links of the page are relative
			return
		}
		pprof.Index(w, req)
	})
	r.HandleFunc("GET /debug/pprof/{profile}", func(w http.ResponseWriter, req *http.Request) {
		switch name := req.PathValue("profile"); name {
		case "cmdline":
			pprof.Cmdline(w, req)
		case "profile":
			pprof.Profile(w, req)
		case "trace":
			pprof.Trace(w, req)
		default:
			if runtimepprof.Lookup(name) == nil {
				httpd.Refuse(w, http.StatusNotFound, "there is no profile of that name; GET /debug/pprof lists them")
				return
			}
			pprof.Handler(name).ServeHTTP(w, req)
		}
	})
	r.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	r.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
}
