package producing

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/skeinmq/skein/internal/topology"
)

// coalescerMetrics are about rounds and chunks, whichever door the records came through.
type coalescerMetrics struct {
	records, bytes   prometheus.Counter
	chunks           prometheus.Counter
	stored           prometheus.Counter
	failed           prometheus.Counter
	held             prometheus.Counter
	seconds, sealing prometheus.Histogram
	roundBytes       prometheus.Histogram
	roundRequests    prometheus.Histogram
	roundLogs        prometheus.Histogram
	chunkBytes       prometheus.Histogram
}

func newCoalescerMetrics(r prometheus.Registerer, b *budget) *coalescerMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	sizes := prometheus.ExponentialBuckets(256, 4, 9) // 256 B to 16 MiB
	m := &coalescerMetrics{
		records:       counter("skein_produce_records_total", "Records committed, without those of internal logs."),
		bytes:         counter("skein_produce_bytes_total", "Keys, values and headers of records committed, in bytes, without those of internal logs."),
		chunks:        counter("skein_produce_chunks_total", "Chunks committed."),
		stored:        counter("skein_produce_stored_bytes_total", "Chunks committed, in bytes as stored (compressed)."),
		failed:        counter("skein_produce_failed_chunks_total", "Chunks whose commit failed or has an unknown outcome."),
		held:          counter("skein_produce_held_requests_total", "Requests held because a range was between generations."),
		seconds:       histogram("skein_produce_round_seconds", "Time from cutting a round to its commit.", prometheus.ExponentialBuckets(100e-6, 2.5, 12)),
		sealing:       histogram("skein_produce_seal_seconds", "Time from cutting a round to its last chunk being sealed.", prometheus.ExponentialBuckets(10e-6, 4, 8)),
		roundBytes:    histogram("skein_produce_round_bytes", "Encoded records of a round, in bytes before compression.", sizes),
		roundRequests: histogram("skein_produce_round_requests", "Requests of a round.", prometheus.ExponentialBuckets(1, 4, 8)),
		roundLogs:     histogram("skein_produce_round_logs", "Logs of a round.", prometheus.ExponentialBuckets(1, 2, 10)),
		chunkBytes:    histogram("skein_produce_chunk_bytes", "Chunks, in bytes as stored (compressed).", sizes),
	}
	heldBytes := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "skein_produce_held_bytes", Help: "Bytes of the memory budget that requests and unwritten rounds hold.",
	}, func() float64 { return float64(b.used.Load()) })
	if r != nil {
		r.MustRegister(m.records, m.bytes, m.chunks, m.stored, m.failed, m.held, m.seconds, m.sealing, m.roundBytes,
			m.roundRequests, m.roundLogs, m.chunkBytes, heldBytes)
	}
	return m
}

// tally is what came of one round.
type tally struct {
	records, bytes, chunks, stored, failed int64
}

func (m *coalescerMetrics) observe(r *round, t tally, began, sealed time.Time) {
	m.records.Add(float64(t.records))
	m.bytes.Add(float64(t.bytes))
	m.chunks.Add(float64(t.chunks))
	m.stored.Add(float64(t.stored))
	m.failed.Add(float64(t.failed))
	m.sealing.Observe(sealed.Sub(began).Seconds())
	m.seconds.Observe(time.Since(began).Seconds())
	m.roundBytes.Observe(float64(r.bytes))
	m.roundRequests.Observe(float64(r.requests))
	m.roundLogs.Observe(float64(len(r.order)))
}

// outcome of a request, as a label.
type outcome int

const (
	outcomeWritten outcome = iota
	outcomeDuplicate
	outcomeInvalid     // malformed, too large, unknown topic, conflict: the request is at fault
	outcomeNotLeader   // not written
	outcomeBusy        // not written
	outcomeUnavailable // not written
	outcomeShutdown    // not written
	outcomeDiskFull    // not written
	outcomeUnknown
	outcomeError
	outcomes
)

var outcomeNames = [outcomes]string{"written", "duplicate", "invalid", "not_leader", "busy", "unavailable",
	"shutting_down", "disk_full", "unknown", "error"}

// outcomeOf is the label for an error that answers a request.
func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return outcomeWritten
	case errors.Is(err, topology.ErrOutcomeUnknown):
		return outcomeUnknown
	case errors.Is(err, topology.ErrNotLeader):
		return outcomeNotLeader
	case errors.Is(err, topology.ErrBusy):
		return outcomeBusy
	case errors.Is(err, topology.ErrShuttingDown):
		return outcomeShutdown
	case errors.Is(err, topology.ErrDiskFull):
		return outcomeDiskFull
	case errors.Is(err, topology.ErrUnavailable):
		return outcomeUnavailable
	case isClientFault(err):
		return outcomeInvalid
	default:
		return outcomeError
	}
}

// requestMetrics counts the requests of all doors; each door has its own counters, resolved once.
type requestMetrics struct{ vec *prometheus.CounterVec }

// newRequestMetrics registers the counters, or takes those that another door registered.
func newRequestMetrics(r prometheus.Registerer) requestMetrics {
	m := requestMetrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "skein_produce_requests_total",
		Help: "Produce requests (HTTP requests, frames of the binary protocol) by door and outcome.",
	}, []string{"door", "outcome"})}
	if r != nil {
		if err := r.Register(m.vec); err != nil {
			var twice prometheus.AlreadyRegisteredError
			if !errors.As(err, &twice) {
				panic("producing: " + err.Error())
			}
			m.vec = twice.ExistingCollector.(*prometheus.CounterVec)
		}
	}
	return m
}

// doorCounters are the counters of one door by outcome.
type doorCounters [outcomes]prometheus.Counter

func (m requestMetrics) door(name string) *doorCounters {
	c := new(doorCounters)
	for o, label := range outcomeNames {
		c[o] = m.vec.WithLabelValues(name, label)
	}
	return c
}
