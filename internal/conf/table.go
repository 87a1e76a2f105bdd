package conf

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Setting is a row of the table.
type Setting struct {
	Name    string // of the flag: "data-dir"
	Default string // as it could be set; "" when there is none, or Help tells how it is found
	Kind    Kind
	Allowed string // what values are, in words
	Help    string // one or two sentences
	Section string // what it belongs to; settings of a section stand together
	Scope   string // the commands that take it, with commas

	set func(s *Settings, text string) error // refuses with errNotAllowed or a better reason
}

// Kind says how the text of a setting reads.
type Kind string

// The kinds of settings.
const (
	Text     Kind = "text"
	Number   Kind = "number"   // whole, decimal
	Bytes    Kind = "bytes"    // ParseBytes
	Duration Kind = "duration" // ParseDuration
	Switch   Kind = "switch"   // true or false
	Choice   Kind = "choice"   // one of some words
	List     Kind = "list"     // texts with commas between
)

// form tells how values of a kind are written, for those that are not plain.
func (k Kind) form() string {
	switch k {
	case Bytes:
		return "; written as 64MiB, 1GiB or 1048576"
	case Duration:
		return "; written as 500us, 50ms, 24h or 7d"
	default:
		return ""
	}
}

// Env is the environment variable of the setting: "SKEIN_DATA_DIR".
func (s Setting) Env() string {
	return "SKEIN_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Table is all settings, in the order of the documentation.
func Table() []Setting { return append([]Setting(nil), table...) }

const (
	serve    = "serve"
	everyone = "serve, dev"

	day = 24 * time.Hour
)

// Sections, in the order of the documentation.
const (
	cluster   = "The broker and its cluster"
	network   = "Ports and addresses"
	storage   = "Storage"
	topics    = "Topics"
	producing = "Producing"
	consuming = "Consuming"
	process   = "The process"
)

var table = slices.Concat(
	section(cluster, serve,
		number("ordinal", "", 0, topology.Ordinal(token.MaxSize-1), "Number of this broker: its place in `brokers`, from 0. "+
			"Without it, a broker alone is 0, and one of several takes the number that its host name ends in, as those of a "+
			"StatefulSet do (`skein-2`).",
			func(s *Settings) *topology.Ordinal { return &s.Ordinal }),
		list("brokers", "", "host names and addresses, without ports", "Hosts of all brokers of the cluster, in the order of their "+
			"ordinals, with commas between. Empty for a broker alone.",
			func(s *Settings) *[]string { return &s.Brokers }),
		text("advertise", "", "a host name or address, without a port", "Host by which clients reach a broker that is alone. Without it, "+
			"they are told the address it binds to, else its host name. Where `brokers` is set, that is what they are told.",
			func(s *Settings) *string { return &s.Advertise }),
	),
	section(network, everyone,
		text("bind", "", "an address", "Address to listen on. Without it, the broker's own entry of `brokers` when that is an address, "+
			"else all interfaces.", func(s *Settings) *string { return &s.Bind }),
		port("client-port", "9250", "Discovery, the admin API, and the produce and consume paths too, so one port is enough for most users.",
			func(s *Settings) *int { return &s.ClientPort }),
		port("producer-port", "9251", "Produce over HTTP.", func(s *Settings) *int { return &s.ProducerPort }),
		port("consumer-port", "9252", "Consume over HTTP.", func(s *Settings) *int { return &s.ConsumerPort }),
		port("metrics-port", "9253", "Metrics for Prometheus, and profiles.", func(s *Settings) *int { return &s.MetricsPort }),
		port("producer-binary-port", "9254", "Produce by the binary protocol.", func(s *Settings) *int { return &s.ProducerBinaryPort }),
		port("gossip-port", "9255", "Between brokers: who leads what.", func(s *Settings) *int { return &s.GossipPort }),
		port("gossip-data-port", "9256", "Between brokers: records.", func(s *Settings) *int { return &s.GossipDataPort }),
		number("max-connections", "10000", 1, 1_000_000, "Connections at one time, on each HTTP port. Further ones are refused.",
			func(s *Settings) *int { return &s.MaxConnections }),
	),
	section(storage, everyone,
		text("data-dir", "data", "a folder", "Folder of all that the broker stores. It belongs to one broker, and one process at a time.",
			func(s *Settings) *string { return &s.DataDir }),
		choice("flush", "always", []string{"always", "interval"}, "When records are flushed to disk: `always` before they are "+
			"acknowledged, all that wait together; `interval` at least each `flush-interval`, so that the loss of power may "+
			"take what was acknowledged last.",
			func(s *Settings, word string) { s.FlushAlways = word == "always" }),
		duration("flush-interval", "50ms", time.Millisecond, time.Hour, "With `flush=interval`, how long an acknowledged record may be "+
			"in memory only.", func(s *Settings) *time.Duration { return &s.FlushInterval }),
		size("segment-bytes", "128MiB", topology.MinSegmentBytes, topology.MaxSegmentBytes, "Size at which the file of a log is closed and "+
			"the next begins. Retention removes whole files.", func(s *Settings) *int64 { return &s.SegmentBytes }),
		duration("segment-age", "24h", topology.MinSegmentMS*time.Millisecond, 3650*day, "Age at which that happens to a file that is smaller.",
			func(s *Settings) *time.Duration { return &s.SegmentAge }),
		automatic("0 for the larger of 16MiB and 2 % of the disk", size("reserve-bytes", "0", 1<<20, 1<<50, "Room on disk that is kept "+
			"back from produce, so that polls, commits and decisions go on when the disk is full.",
			func(s *Settings) *int64 { return &s.ReserveBytes })),
	),
	section(topics, everyone,
		onOff("topic-auto-create", "true", "Whether producing to a topic that does not exist creates it.",
			func(s *Settings) *bool { return &s.TopicAutoCreate }),
		partitions("default-partitions", "0", "Partitions of a topic that names none.",
			func(s *Settings) *int { return &s.DefaultPartitions }),
		unbounded(time.Duration(-1), duration("retention-age", "7d", time.Second, 36500*day, "Age at which records are removed, by when "+
			"they were stored. A topic can say otherwise.", func(s *Settings) *time.Duration { return &s.RetentionAge }),
			func(s *Settings) *time.Duration { return &s.RetentionAge }),
		unbounded(int64(-1), size("retention-bytes", "-1", 1, math.MaxInt64, "Bytes above which the oldest records of a partition are removed. "+
			"A topic can say otherwise.", func(s *Settings) *int64 { return &s.RetentionBytes }),
			func(s *Settings) *int64 { return &s.RetentionBytes }),
		size("max-record-bytes", "1MiB", 1, 32<<20, "Largest record: key, value and headers. A topic can say otherwise.",
			func(s *Settings) *int { return &s.MaxRecordBytes }),
	),
	section(producing, everyone,
		size("max-request-bytes", "16MiB", 1<<10, 512<<20, "Largest body of a request, after unpacking.",
			func(s *Settings) *int { return &s.MaxRequestBytes }),
		automatic("0 for a quarter of the memory limit of the container or process, 64MiB at most", size("memory-budget", "0", 1<<20, 1<<40,
			"Memory for requests that are being stored. Above it they are refused with 429. At least `max-request-bytes`.",
			func(s *Settings) *int64 { return &s.MemoryBudget })),
		duration("linger", "500us", 0, time.Second, "Longest time that a record waits for others, to be stored with them, when several "+
			"requests are in flight. A request alone never waits.", func(s *Settings) *time.Duration { return &s.Linger }),
		duration("idempotency-window", "10m", time.Second, 7*day, "How long an `Idempotency-Key` is remembered.",
			func(s *Settings) *time.Duration { return &s.IdempotencyWindow }),
		number("idempotency-keys", "10000", 1, 10_000_000, "How many of them are remembered per partition; the oldest go first.",
			func(s *Settings) *int { return &s.IdempotencyKeys }),
	),
	section(consuming, everyone,
		duration("consumer-idle-timeout", "2m", time.Second, day, "A consumer that sends nothing for this long leaves its group.",
			func(s *Settings) *time.Duration { return &s.ConsumerIdleTimeout }),
		duration("max-poll-wait", "30s", 0, 10*time.Minute, "Longest time that a poll may wait for records.",
			func(s *Settings) *time.Duration { return &s.MaxPollWait }),
		size("max-poll-bytes", "2MiB", 1<<10, 512<<20, "Largest answer to a poll. A chunk that is larger comes alone.",
			func(s *Settings) *int { return &s.MaxPollBytes }),
		duration("commit-interval", "200ms", time.Millisecond, time.Minute, "Positions that polls commit are written at most this often. "+
			"A commit that is asked for is written at once.", func(s *Settings) *time.Duration { return &s.CommitInterval }),
		choice("poll-compression", "none", []string{"none", "zstd"}, "Compression of binary polls.",
			func(s *Settings, word string) { s.PollCompression = word }),
	),
	section(process, everyone,
		choice("log-level", "info", []string{"debug", "info", "warn", "error"}, "Lines below this level are left out of the log.",
			func(s *Settings, word string) { s.LogLevel = word }),
		choice("log-format", "json", []string{"json", "console"}, "Form of the log: one JSON object a line, or text for people.",
			func(s *Settings, word string) { s.LogFormat = word }),
		onOff("pprof", "false", "Whether `metrics-port` serves profiles, under `/debug/pprof/`.",
			func(s *Settings) *bool { return &s.Pprof }),
		duration("shutdown-delay", "0", 0, 10*time.Minute, "How long the broker goes on serving, but not ready, after the signal to stop, so "+
			"that load balancers notice.", func(s *Settings) *time.Duration { return &s.ShutdownDelay }),
		duration("shutdown-timeout", "25s", time.Second, time.Hour, "How long requests in flight may take to end after that.",
			func(s *Settings) *time.Duration { return &s.ShutdownTimeout }),
	),
)
