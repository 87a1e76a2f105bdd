package data

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the store. They count whether or not they are registered.
type metrics struct {
	records, bytes, failures, damaged, cut, journalWaits, retired prometheus.Counter
	commits, checkpoints                                          prometheus.Histogram
	gauges                                                        []prometheus.Collector
}

func newMetrics(s *Store) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	times := prometheus.ExponentialBuckets(50e-6, 2.5, 14)
	gauge := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, fn)
	}
	return &metrics{
		records:      counter("skein_log_appended_records_total", "Records appended to logs."),
		bytes:        counter("skein_log_appended_bytes_total", "Bytes of chunks appended to logs, as stored."),
		failures:     counter("skein_log_failures_total", "Writes and flushes of logs or of the commit journal that failed."),
		damaged:      counter("skein_log_damaged_records_total", "Offsets found damaged since the start: they are not served."),
		cut:          counter("skein_log_cut_bytes_total", "Bytes cut from tails at recovery: never acknowledged, or not flushed."),
		retired:      counter("skein_log_retired_bytes_total", "Bytes of segments removed by retention, by a new log start or with their topic."),
		journalWaits: counter("skein_journal_waits_total", "Rounds that had to wait for a checkpoint because the journal was full."),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skein_log_commit_seconds", Help: "Time to make a round durable by the flush policy.", Buckets: times,
		}),
		checkpoints: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "skein_log_checkpoint_seconds", Help: "Time to flush the segments and write the notes.", Buckets: times,
		}),
		gauges: []prometheus.Collector{
			gauge("skein_disk_free_bytes", "Free bytes of the file system of the data folder.", func() float64 { return float64(s.room.Room().Free) }),
			gauge("skein_disk_total_bytes", "Size of the file system of the data folder.", func() float64 { return float64(s.room.Room().Total) }),
			gauge("skein_disk_reserve_bytes", "Bytes that the reserve file holds.", func() float64 { return float64(s.room.Room().Reserve) }),
			gauge("skein_disk_full", "1 while produce is refused for lack of room.", func() float64 { return boolGauge(s.room.Room().Full) }),
			gauge("skein_log_failed", "Logs that refuse appends until repaired.", func() float64 { return float64(s.failedLogs()) }),
			gauge("skein_logs", "Logs that were ever written and not dropped.", func() float64 { return float64(s.logCount()) }),
			gauge("skein_log_open_files", "Segment files that are open.", func() float64 { return float64(s.files.count()) }),
		},
	}
}

func boolGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) register(reg prometheus.Registerer) error {
	if reg == nil {
		return nil
	}
	all := append([]prometheus.Collector{m.records, m.bytes, m.failures, m.damaged, m.cut, m.retired, m.journalWaits, m.commits, m.checkpoints}, m.gauges...)
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("register the metrics of data: %w", err)
		}
	}
	return nil
}
