package topics

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// LogReader reads the log of topics. data.Store is one.
type LogReader interface {
	Info(log topology.LogID) data.LogInfo
	Read(log topology.LogID, from topology.Offset, maxBytes int, buf []byte) (data.ReadResult, []byte, error)
}

// Appender writes to it: it returns once the records are readable, with the offset of the first. Errors say whether they
// are written (topology.ErrOutcomeUnknown) or not (all others). start is the start token of the partition.
type Appender interface {
	Append(ctx context.Context, log topology.LogID, start token.Token, records []recordbatch.Record) (topology.Offset, error)
}

// KV holds the view, under keys that begin with "t/". localdb.DB is one. Update is atomic; changes become durable in
// order.
type KV interface {
	Get(key []byte) ([]byte, error) // nil, nil when absent
	Scan(prefix []byte, fn func(key, value []byte) error) error
	Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error
}

// Data drops the logs of deleted topics. data.Store is one.
type Data interface {
	DropTopic(topic uuid.UUID) error
	Topics() []uuid.UUID // that have data
}

// Defaults are what a topic has that says nothing else. All fields of Config must be there.
type Defaults struct {
	Partitions int
	Config     topology.TopicConfig
}

// Config tunes a Catalogue. Log, Appender, KV and Data are required; any other zero field means its default.
type Config struct {
	Log      LogReader
	Appender Appender
	KV       KV
	Data     Data
	Defaults Defaults // default 12 partitions, 7 days, no bound of bytes, 1 MiB, 128 MiB, 24 h

	AutoCreate     bool          // Ensure creates topics
	MaxTopics      int           // live ones; default 20000
	MaxRecordBytes int           // bound of the setting maxRecordBytes; default 16 MiB
	AppendTimeout  time.Duration // for one change; default 15s
	SweepInterval  time.Duration // between looks for data of topics deleted lately; default 30s

	Now        func() time.Time // default time.Now
	Logger     zerolog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

func (c *Config) setDefaults() error {
	if c.Log == nil || c.Appender == nil || c.KV == nil || c.Data == nil {
		return errors.New("topics: Log, Appender, KV and Data are required")
	}
	setDefault(&c.Defaults.Partitions, topology.DefaultPartitions(1))
	if err := topology.CheckPartitions(c.Defaults.Partitions); err != nil {
		return err
	}
	c.Defaults.Config = c.Defaults.Config.Over(topology.TopicConfig{
		RetentionMS:    new((7 * 24 * time.Hour).Milliseconds()),
		RetentionBytes: new(int64(-1)),
		MaxRecordBytes: new(1 << 20),
		SegmentBytes:   new(int64(128 << 20)),
		SegmentMS:      new((24 * time.Hour).Milliseconds()),
	})
	setDefault(&c.MaxTopics, 20000)
	setDefault(&c.MaxRecordBytes, 16<<20)
	setDefault(&c.AppendTimeout, 15*time.Second)
	setDefault(&c.SweepInterval, 30*time.Second)
	if c.Now == nil {
		c.Now = time.Now
	}
	return topology.CheckTopicConfig(c.Defaults.Config, c.MaxRecordBytes)
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
