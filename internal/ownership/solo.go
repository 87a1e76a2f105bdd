package ownership

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Ledger is stable storage for decisions. Update with sync returns once the changes are durable, all or none (O5).
type Ledger interface {
	Get(key []byte) ([]byte, error) // nil, nil when absent
	Scan(prefix []byte, fn func(key, value []byte) error) error
	Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error
}

// Config tunes a Solo. Ledger, Disk and Run are required.
type Config struct {
	Ledger  Ledger
	Ordinal topology.Ordinal
	Disk    uuid.UUID        // id of the database (O12)
	Run     uuid.UUID        // id of this process start (O15)
	Above   topology.Version // highest version that the logs hold: the next one is higher, also when the ledger is lost
	Now     func() time.Time // default time.Now
	Logger  zerolog.Logger   // the zero Logger discards
}

// ErrLargerCluster means that the data folder belongs to a cluster of more brokers than one: it must be started as a
// member of that cluster.
var ErrLargerCluster = errors.New("data folder of a larger cluster")

var (
	clusterKey       = []byte("g/cluster")
	generationPrefix = []byte("g/gen/")
)

// Solo is the ownership of a cluster of one broker, which leads the whole ring. It does not change after Open, so all
// methods may be called from any goroutine.
type Solo struct {
	cluster     uuid.UUID
	generations []topology.Generation // by version; the last one is open
}

// Open closes the generation that an earlier start of this broker led, if any, and opens the next one, durably, before
// it returns (O3, O15). The first one is the genesis and makes the cluster id (O11).
func Open(cfg Config) (*Solo, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	s := &Solo{}
	if err := s.load(cfg.Ledger); err != nil {
		return nil, err
	}
	next := s.next(cfg)
	value, err := json.Marshal(next)
	if err != nil {
		return nil, fmt.Errorf("encode generation %d: %w", next.Version, err)
	}
	if s.cluster == uuid.Nil {
		s.cluster = uuid.New()
	}
	err = cfg.Ledger.Update(true, func(put func(key, value []byte), _ func(key []byte)) {
		put(clusterKey, s.cluster[:])
		put(generationKey(next.ID()), value)
	})
	if err != nil {
		return nil, fmt.Errorf("persist generation %d: %w", next.Version, err)
	}
	s.generations = append(s.generations, next)
	cfg.Logger.Info().Int64("token", int64(next.Start)).Uint32("version", uint32(next.Version)).
		Str("reason", next.Reason).Stringer("cluster", s.cluster).Msg("generation committed")
	return s, nil
}

func (s *Solo) load(ledger Ledger) error {
	id, err := ledger.Get(clusterKey)
	if err != nil {
		return fmt.Errorf("read the cluster id: %w", err)
	}
	if id != nil {
		if s.cluster, err = uuid.FromBytes(id); err != nil {
			return fmt.Errorf("read the cluster id: %w", err)
		}
	}
	return ledger.Scan(generationPrefix, func(key, value []byte) error {
		var g topology.Generation
		if err := json.Unmarshal(value, &g); err != nil {
			return fmt.Errorf("read generation %x: %w", key, err)
		}
		if g.ClusterSize != 1 {
			return fmt.Errorf("generation %d of token %d was decided by %d brokers: %w", g.Version, g.Start, g.ClusterSize, ErrLargerCluster)
		}
		s.generations = append(s.generations, g)
		return nil
	})
}

// next is the generation that follows the last one. Its version is one higher (O16).
func (s *Solo) next(cfg Config) topology.Generation {
	g := topology.Generation{
		Range:       token.Range{Start: token.Min, End: token.Min},
		Version:     1,
		Leader:      cfg.Ordinal,
		Followers:   []topology.Ordinal{},
		Replicas:    []topology.Replica{{Ordinal: cfg.Ordinal, Disk: cfg.Disk}},
		Run:         cfg.Run,
		Parents:     []topology.GenerationID{},
		TxLeader:    cfg.Ordinal,
		Tx:          uuid.New(),
		ClusterSize: 1,
		Timestamp:   cfg.Now().UnixMilli(),
		Status:      topology.StatusCommitted,
		Reason:      "genesis",
	}
	if n := len(s.generations); n > 0 {
		parent := s.generations[n-1]
		g.Version = parent.Version + 1
		g.Parents = append(g.Parents, parent.ID())
		g.Reason = "restart"
	}
	g.Version = max(g.Version, cfg.Above+1)
	return g
}

// generationKey orders generations by start and version.
func generationKey(id topology.GenerationID) []byte {
	key := append([]byte(nil), generationPrefix...)
	key = binary.BigEndian.AppendUint64(key, uint64(id.Start)^1<<63)
	return binary.BigEndian.AppendUint32(key, uint32(id.Version))
}

// ClusterID is the id that genesis made.
func (s *Solo) ClusterID() uuid.UUID { return s.cluster }

// Lead is the version of the open generation that covers start, which this broker leads.
func (s *Solo) Lead(token.Token) (topology.Version, error) { return s.Current().Version, nil }

// Current is the open generation.
func (s *Solo) Current() topology.Generation { return s.generations[len(s.generations)-1] }

// Generations are all that were committed, oldest first. The caller must not change them.
func (s *Solo) Generations() []topology.Generation { return s.generations }
