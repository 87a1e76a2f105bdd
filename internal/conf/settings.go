package conf

import (
	"net"
	"strconv"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// Settings are the settings of one broker, checked and resolved. Sizes are in bytes.
type Settings struct {
	// Who the broker is.

	Ordinal   topology.Ordinal // place in Hosts
	Brokers   []string         // hosts in ordinal order, as set; nil for a broker alone
	Advertise string           // as set; see Hosts
	Hosts     []string         // Brokers, or the one host that clients are told; never empty

	// Where it listens. Port 0 takes a free one.

	Bind               string // address to bind; "" is all interfaces
	ClientPort         int    // discovery, admin, and the produce and consume paths
	ProducerPort       int    // produce over HTTP
	ConsumerPort       int    // consume over HTTP
	MetricsPort        int    // Prometheus, and profiles when Pprof
	ProducerBinaryPort int    // binary produce protocol
	GossipPort         int    // between brokers: ownership
	GossipDataPort     int    // between brokers: records
	MaxConnections     int    // at one time, on each HTTP port

	// How records are stored.

	DataDir       string
	FlushAlways   bool          // durable before the acknowledgement (P5); else at least every FlushInterval
	FlushInterval time.Duration // > 0
	SegmentBytes  int64         // a segment file rolls at this size
	SegmentAge    time.Duration // and at this age
	ReserveBytes  int64         // room on disk kept back from produce; 0: the larger of 16 MiB and 2 %

	// What a topic has that does not say otherwise.

	TopicAutoCreate   bool          // produce creates topics
	DefaultPartitions int           // 1 or 3·2^k; never 0
	RetentionAge      time.Duration // records older than this go; negative: none
	RetentionBytes    int64         // kept per partition; negative: no bound
	MaxRecordBytes    int           // key, value and headers of a record

	// How records are taken in.

	MaxRequestBytes   int           // body of a request, unpacked; >= MaxRecordBytes
	MemoryBudget      int64         // of requests and chunks in flight; > 0, >= MaxRequestBytes
	Linger            time.Duration // longest wait for others when several requests are in flight; 0: none
	IdempotencyWindow time.Duration // how long a key is remembered
	IdempotencyKeys   int           // and how many per partition

	// How they are read.

	ConsumerIdleTimeout time.Duration // a consumer that is not heard of for this long leaves its groups
	MaxPollWait         time.Duration // longest wait of a poll for data
	MaxPollBytes        int           // of an answer to a poll, unless one record is larger
	CommitInterval      time.Duration // commits by polls are written at most this often
	PollCompression     string        // of binary polls: none or zstd

	// The process.

	LogLevel        string        // debug, info, warn or error
	LogFormat       string        // json or console
	Pprof           bool          // profiles on MetricsPort
	ShutdownDelay   time.Duration // serving goes on for this long after the signal to stop
	ShutdownTimeout time.Duration // the end of a drain

	changed []string
}

// Addr is where the broker listens for port, in the form of package net.
func (s Settings) Addr(port int) string { return net.JoinHostPort(s.Bind, strconv.Itoa(port)) }

// Changed lists the settings that do not come from their default, as name=value, in the order of the table: what the log
// tells at the start.
func (s Settings) Changed() []string { return append([]string(nil), s.changed...) }
