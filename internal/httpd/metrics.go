package httpd

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one door. A nil *metrics counts nothing.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	turned   prometheus.Counter
	cache    sync.Map // requestKey → *series: WithLabelValues would cost more than all else here
}

type requestKey struct {
	route, method string
	code          int
}

type series struct {
	count   prometheus.Counter
	seconds prometheus.Observer
}

func newMetrics(reg prometheus.Registerer, door string, open, running func() float64) *metrics {
	if reg == nil {
		return nil
	}
	reg = prometheus.WrapRegistererWith(prometheus.Labels{"door": door}, reg)
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skein_http_requests_total",
			Help: "HTTP requests answered, by door, route, method and status. Status 0: the connection was cut.",
		}, []string{"route", "method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "skein_http_request_seconds",
			Help:    "Time from the end of the request headers to the end of the handler, waiting of long polls included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30},
		}, []string{"route", "method"}),
		turned: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_http_connections_refused_total",
			Help: "Connections turned away because the door had as many as it may.",
		}),
	}
	reg.MustRegister(m.requests, m.seconds, m.turned,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "skein_http_connections",
			Help: "Open client connections, by door.",
		}, open),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "skein_http_requests_running",
			Help: "Requests whose handler runs, by door.",
		}, running))
	return m
}

func (m *metrics) refused() {
	if m != nil {
		m.turned.Inc()
	}
}

// observe counts one request. cut says that its connection was cut instead of an answer.
func (m *metrics) observe(w *response, method string, cut bool, took time.Duration) {
	if m == nil {
		return
	}
	key := requestKey{w.route, knownMethod(method), w.status}
	switch {
	case cut:
		key.code = 0
	case key.code == 0:
		key.code = http.StatusOK // nothing written is an empty 200
	}
	if key.route == "" {
		key.route = "none"
	}
	v, ok := m.cache.Load(key)
	if !ok {
		v, _ = m.cache.LoadOrStore(key, &series{
			count:   m.requests.WithLabelValues(key.route, key.method, strconv.Itoa(key.code)),
			seconds: m.seconds.WithLabelValues(key.route, key.method),
		})
	}
	s := v.(*series)
	s.count.Inc()
	s.seconds.Observe(took.Seconds())
}

// knownMethod keeps clients from making labels.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}
