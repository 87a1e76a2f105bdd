package data

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// FlushPolicy says when an acknowledged chunk is on disk (P5).
type FlushPolicy int

const (
	// FlushAlways makes a chunk durable before it is acknowledged.
	FlushAlways FlushPolicy = iota
	// FlushInterval acknowledges from the page cache and flushes at least every Config.FlushInterval.
	FlushInterval
)

// String is the name of the policy as settings write it.
func (p FlushPolicy) String() string {
	if p == FlushInterval {
		return "interval"
	}
	return "always"
}

// KV is the small database that notes live in; localdb.DB satisfies it. The keys of this package begin with "n/".
// Methods may be called at the same time. An Update is atomic, and durable on return if sync is set; updates become
// durable in order.
type KV interface {
	Get(key []byte) ([]byte, error) // nil, nil when absent
	Scan(prefix []byte, fn func(key, value []byte) error) error
	Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error
}

// Policy are the settings of the logs of one topic. A field that is 0 or below means no bound for retention and the
// store's default for segments.
type Policy struct {
	RetentionAge   time.Duration // chunks appended longer ago go
	RetentionBytes int64         // oldest segments go while the rest has at least this many bytes
	SegmentBytes   int64         // a segment rolls before it grows past this
	SegmentAge     time.Duration // and when its first chunk is older than this
}

// Config tunes a Store. Dir and KV are required; any other zero field means its default.
type Config struct {
	Dir           string
	FS            FS                             // default OS{}
	KV            KV                             //
	Now           func() time.Time               // default time.Now
	Flush         FlushPolicy                    // default FlushAlways
	FlushInterval time.Duration                  // longest time a chunk is unflushed with FlushInterval; default 50ms
	SegmentBytes  int64                          // default 128 MiB
	SegmentAge    time.Duration                  // default 24h
	IndexInterval int                            // bytes of a segment between index entries; default 64 KiB
	JournalBytes  int64                          // size of each of the two journal files; default 32 MiB, less on a small disk
	ReserveBytes  int64                          // room kept back from produce; default the larger of 16 MiB and 2 %
	Reserve       *Reserve                       // opened before, with its own size; default one of ReserveBytes
	MaxOpenFiles  int                            // segment files open at a time; default 512
	Policy        func(uuid.UUID) (Policy, bool) // settings of a topic; false leaves its logs alone. Default: no retention
	Logger        zerolog.Logger                 // the zero Logger discards
	Registerer    prometheus.Registerer          // nil: no metrics

	workers int // segments flushed at the same time; default 4. Tests that replay from a seed set 1
}

const (
	defaultFlushInterval = 50 * time.Millisecond
	defaultSegmentBytes  = 128 << 20
	maxSegmentBytes      = 1 << 40
	defaultSegmentAge    = 24 * time.Hour
	defaultIndexInterval = 64 << 10
	defaultJournalBytes  = 32 << 20
	minJournalBytes      = 64 << 10
	defaultReserve       = 16 << 20
	defaultMaxOpenFiles  = 512
)

// withDefaults fills cfg and refuses what cannot work. space is that of Dir.
func (cfg Config) withDefaults(space Space) (Config, error) {
	if cfg.KV == nil {
		return cfg, errors.New("data: no KV given")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	setDefault(&cfg.FlushInterval, defaultFlushInterval)
	setDefault(&cfg.SegmentBytes, defaultSegmentBytes)
	setDefault(&cfg.SegmentAge, defaultSegmentAge)
	setDefault(&cfg.IndexInterval, defaultIndexInterval)
	setDefault(&cfg.MaxOpenFiles, defaultMaxOpenFiles)
	setDefault(&cfg.workers, flushWorkers)
	setDefault(&cfg.JournalBytes, max(minJournalBytes, min(defaultJournalBytes, space.Total/32)))
	if cfg.JournalBytes < minJournalBytes {
		return cfg, fmt.Errorf("data: journal of %d bytes; allowed are %d and more", cfg.JournalBytes, minJournalBytes)
	}
	if cfg.SegmentBytes > maxSegmentBytes {
		return cfg, fmt.Errorf("data: segments of %d bytes; allowed are up to %d", cfg.SegmentBytes, int64(maxSegmentBytes))
	}
	if cfg.Policy == nil {
		cfg.Policy = func(uuid.UUID) (Policy, bool) { return Policy{}, false }
	}
	return cfg, nil
}

func setDefault[T int | int64 | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
