package consuming

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the package; docs/metrics.md describes them. All methods work on the metrics of a nil Registerer too.
type metrics struct {
	polls      *prometheus.CounterVec
	wait       prometheus.Histogram
	records    prometheus.Counter
	bytes      prometheus.Counter
	answers    prometheus.Counter
	cut        prometheus.Counter
	commits    *prometheus.CounterVec
	refused    prometheus.Counter
	writes     *prometheus.CounterVec
	shots      prometheus.Counter
	resets     prometheus.Counter
	lost       prometheus.Counter
	rebalances prometheus.Counter
	moved      prometheus.Counter
}

func newMetrics(r prometheus.Registerer, s *Service) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "skein", Subsystem: "consume", Name: name, Help: help})
	}
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "skein", Subsystem: "consume", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, fn func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "skein", Subsystem: "consume", Name: name, Help: help}, fn)
	}
	m := &metrics{
		polls: vector("polls_total", "Polls by how they ended: records, empty, unassigned, not-leader, superseded, draining, unregistered, cancelled, error.", "outcome"),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "skein", Subsystem: "consume", Name: "poll_wait_seconds", Help: "How long polls that asked for it waited for records.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30},
		}),
		records:    counter("records_total", "Records delivered to groups, those delivered again included."),
		bytes:      counter("record_bytes_total", "Bytes of those records before they are encoded."),
		answers:    counter("answer_bytes_total", "Bytes of bodies of answers to polls and reads that were written to their end."),
		cut:        counter("answers_cut_total", "Answers that were not written to their end: the client went or was too slow. Their records are delivered again."),
		commits:    vector("commits_total", "Positions moved in memory, by what moved them: poll, commit.", "by"),
		refused:    counter("commits_refused_total", "Positions not moved because the partition was another member's or origin's by then."),
		writes:     vector("position_writes_total", "Writes to positions logs by result: ok, error. One may hold positions of many groups.", "result"),
		shots:      counter("snapshots_total", "Positions logs that were written anew."),
		resets:     counter("resets_total", "Positions found outside their log and moved."),
		lost:       counter("damaged_records_total", "Records skipped because they are damaged on disk, counted once for each group."),
		rebalances: counter("rebalances_total", "Assignments of a topic's partitions computed because members came or went."),
		moved:      counter("moved_partitions_total", "Partitions that went from one member to another."),
	}
	if r == nil {
		return m
	}
	r.MustRegister(m.polls, m.wait, m.records, m.bytes, m.answers, m.cut, m.commits, m.refused, m.writes, m.shots, m.resets, m.lost, m.rebalances, m.moved,
		gauge("groups", "Groups with live members.", func() float64 {
			s.mu.RLock()
			defer s.mu.RUnlock()
			return float64(len(s.groups))
		}),
		gauge("members", "Registrations of consumers that are live.", func() float64 {
			s.mu.RLock()
			defer s.mu.RUnlock()
			return float64(len(s.stateless) + len(s.conns))
		}),
		gauge("waiting_polls", "Polls that wait for records now.", func() float64 {
			n := int32(0)
			for _, g := range s.liveGroups() {
				n += g.waiting.Load()
			}
			return float64(n)
		}),
		gauge("answers_in_flight_bytes", "Bytes of answers that are being written now.", func() float64 { return float64(s.answerBytes.Load()) }),
	)
	return m
}

func (m *metrics) polled(o outcome, waited time.Duration) {
	m.polls.WithLabelValues(string(o)).Inc()
	if waited > 0 {
		m.wait.Observe(waited.Seconds())
	}
}

func (m *metrics) delivered(records, bytes int) {
	m.records.Add(float64(records))
	m.bytes.Add(float64(bytes))
}

func (m *metrics) answered(bytes int) { m.answers.Add(float64(bytes)) }

func (m *metrics) cutOff() { m.cut.Inc() }

func (m *metrics) committed(why reason, done, refused int) {
	by := "poll"
	if why == byCommit {
		by = "commit"
	}
	m.commits.WithLabelValues(by).Add(float64(done))
	m.refused.Add(float64(refused))
}

func (m *metrics) positionWrite(err error) {
	if err != nil {
		m.writes.WithLabelValues("error").Inc()
		return
	}
	m.writes.WithLabelValues("ok").Inc()
}

func (m *metrics) snapshot() { m.shots.Inc() }

func (m *metrics) reset() { m.resets.Inc() }

func (m *metrics) damaged(records int64) { m.lost.Add(float64(records)) }

func (m *metrics) reassigned(moved int) {
	m.rebalances.Inc()
	m.moved.Add(float64(moved))
}
