package consuming

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// Topics is the catalogue of topics. All calls are cheap and may overlap; deleted topics are not found.
type Topics interface {
	Lookup(name string) (topology.Topic, bool)
	ByID(id uuid.UUID) (topology.Topic, bool)
	List() []topology.Topic
}

// Logs is the store of records. Reads see what lies below the high watermark. A log never written has a zero LogInfo.
type Logs interface {
	Info(log topology.LogID) data.LogInfo
	// Read returns whole chunks, the first of which holds from, up to maxBytes but at least one, and nothing at the end.
	// buf is grown as needed and handed back. A from outside the log gives *data.OutOfRange.
	Read(log topology.LogID, from topology.Offset, maxBytes int, buf []byte) (data.ReadResult, []byte, error)
	OffsetForTime(log topology.LogID, t time.Time) (topology.Offset, error)
	SetStart(log topology.LogID, start topology.Offset) error
	// OnAdvance has fn called after the high watermark of a log has moved. It is called before the store runs.
	OnAdvance(fn func(log topology.LogID, highWatermark topology.Offset))
}

// Appender stores records in an internal log and returns the offset of the first once they are committed. Records of
// one call stay together and calls for one log keep their order. Calls for many logs at the same time share a round.
type Appender interface {
	Append(ctx context.Context, log topology.LogID, start token.Token, records []recordbatch.Record) (topology.Offset, error)
}

// KV is the local database. Update stores all changes or none.
type KV interface {
	Get(key []byte) ([]byte, error) // nil, nil when absent
	Scan(prefix []byte, fn func(key, value []byte) error) error
	Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error
}

// Leadership tells under which version this broker leads the range that contains start, with a lease that holds (P8).
type Leadership interface {
	Lead(start token.Token) (topology.Version, error)
}
