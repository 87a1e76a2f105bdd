package topics

import "github.com/prometheus/client_golang/prometheus"

type metrics struct{ changes *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer, count func() float64) metrics {
	if reg == nil {
		return metrics{}
	}
	m := metrics{changes: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skein_topic_changes_total",
		Help: "Topics created, changed and deleted through this broker.",
	}, []string{"change"})}
	reg.MustRegister(m.changes, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_topics",
		Help: "Topics that exist, internal ones not counted.",
	}, count))
	return m
}

func (m metrics) changed(what string) {
	if m.changes != nil {
		m.changes.WithLabelValues(what).Inc()
	}
}
