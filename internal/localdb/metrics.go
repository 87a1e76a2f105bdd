package localdb

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the database. With a nil Registerer they are counted and never shown.
type metrics struct {
	to          prometheus.Registerer
	shown       []prometheus.Collector
	updates     *prometheus.CounterVec
	failures    prometheus.Counter
	seconds     *prometheus.HistogramVec
	syncs       prometheus.Histogram
	compactions prometheus.Histogram
}

func newMetrics(to prometheus.Registerer) *metrics {
	buckets := prometheus.ExponentialBuckets(20e-6, 4, 9) // 20 us to 1.3 s
	return &metrics{
		to: to,
		updates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "skein_localdb_updates_total", Help: "Updates of the local database, by whether they waited for the disk.",
		}, []string{"sync"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "skein_localdb_update_failures_total", Help: "Updates of the local database that were refused or failed.",
		}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "skein_localdb_update_seconds", Help: "Time of an update of the local database.", Buckets: buckets,
		}, []string{"sync"}),
		syncs: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skein_localdb_sync_seconds", Help: "Time of a sync of the log of the local database.", Buckets: buckets,
		}),
		compactions: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skein_localdb_compaction_seconds", Help: "Time of a compaction of the local database.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 6),
		}),
	}
}

// register shows the metrics, together with sizes read from db when asked for.
func (m *metrics) register(db *DB) {
	if m.to == nil {
		return
	}
	all := []prometheus.Collector{
		m.updates, m.failures, m.seconds, m.syncs, m.compactions,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "skein_localdb_bytes", Help: "Size of the tables of the local database.",
		}, func() float64 { bytes, _ := db.tables(); return float64(bytes) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "skein_localdb_tables", Help: "Tables of the local database.",
		}, func() float64 { _, count := db.tables(); return float64(count) }),
	}
	for _, c := range all {
		if m.to.Register(c) == nil { // a second database in one process keeps its figures to itself
			m.shown = append(m.shown, c)
		}
	}
}

func (m *metrics) unregister() {
	for _, c := range m.shown {
		m.to.Unregister(c)
	}
}

func (m *metrics) updated(sync bool, took time.Duration, err error) {
	label := strconv.FormatBool(sync)
	m.updates.WithLabelValues(label).Inc()
	m.seconds.WithLabelValues(label).Observe(took.Seconds())
	if err != nil {
		m.failures.Inc()
	}
}

func (m *metrics) synced(took time.Duration)    { m.syncs.Observe(took.Seconds()) }
func (m *metrics) compacted(took time.Duration) { m.compactions.Observe(took.Seconds()) }

// tables is the size and number of the tables, 0 once closed.
func (db *DB) tables() (bytes int64, count int) {
	if db.enter() != nil {
		return 0, 0
	}
	defer db.leave()
	for _, t := range db.badger.Tables() {
		bytes += int64(t.OnDiskSize)
		count++
	}
	return bytes, count
}
