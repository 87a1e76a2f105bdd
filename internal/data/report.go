package data

import (
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// maxReported bounds the lists of a RecoveryReport; the counts go on.
const maxReported = 1000

// RecoveryReport tells what Open found.
type RecoveryReport struct {
	Clean          bool          // the last run stopped cleanly, or there was none
	NotesLost      bool          // the database knew nothing of the logs: all was read again from the files
	Logs           int           // logs there are
	JournalRecords int           // rounds replayed
	JournalBytes   int64         // bytes of chunks replayed
	JournalDamaged int           // rounds of the journal that could not be read
	CutBytes       int64         // bytes that were cut from tails: never acknowledged, or (FlushInterval) not flushed
	Cut            []CutTail     // where, the first 1000
	Damaged        []LogDamage   // what is damaged, as far as the start came across it; the first 1000
	Took           time.Duration //
}

// CutTail is a tail that was cut.
type CutTail struct {
	Log   topology.LogID
	End   topology.Offset // of the log now
	Bytes int64           // cut
}

// LogDamage is a range of offsets that cannot be served.
type LogDamage struct {
	Log topology.LogID
	OffsetRange
}

func (r *RecoveryReport) cut(id topology.LogID, end topology.Offset, n int64) {
	r.CutBytes += n
	if len(r.Cut) < maxReported {
		r.Cut = append(r.Cut, CutTail{Log: id, End: end, Bytes: n})
	}
}
