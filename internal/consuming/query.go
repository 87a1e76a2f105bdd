package consuming

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// pollQuery is what a poll asks for.
type pollQuery struct {
	wait       time.Duration // 0: answer at once; <= Config.MaxWait
	maxBytes   int           // >= 1, <= Config.MaxBytes
	maxRecords int           // >= 1, <= Config.MaxRecords
	ack        ack
	merge      bool // several chunks of a partition may come together
}

// ack says what a poll or commit means for the answer before it.
type ack struct {
	kind ackKind
	id   string // for ackID
}

type ackKind uint8

const (
	ackLast ackKind = iota // commit the last answer, if it was written to its end
	ackNone                // commit nothing and deliver again what is open
	ackID                  // commit the answer with this id, and nothing else
)

// ackResult tells a client what became of its ack, in the header Skein-Ack.
type ackResult string

const (
	ackCommitted ackResult = "committed"
	ackPartial   ackResult = "partial"  // some partitions belong to another member or origin by now, and come again there
	ackRepeated  ackResult = "repeated" // it was committed before
	ackUnknown   ackResult = "unknown"  // it is not the open answer of this consumer: nothing was committed
)

// maxPollID bounds the ids that are looked at.
const maxPollID = 64

func parseAck(q url.Values) (ack, error) {
	switch v := q.Get("ack"); {
	case v == "" && !q.Has("ack"):
		return ack{kind: ackLast}, nil
	case v == "none":
		return ack{kind: ackNone}, nil
	case v == "" || len(v) > maxPollID:
		return ack{}, fmt.Errorf("%w ack: allowed are the Skein-Poll-Id of an answer, and none", topology.ErrInvalid)
	default:
		return ack{kind: ackID, id: v}, nil
	}
}

// parsePoll reads the query of a poll. Numbers above what cfg allows are lowered to it, wrong ones are refused.
func parsePoll(q url.Values, cfg *Config) (p pollQuery, err error) {
	if p.ack, err = parseAck(q); err != nil {
		return p, err
	}
	if p.wait, err = parseWait(q, cfg.MaxWait); err != nil {
		return p, err
	}
	if p.maxBytes, err = parseCount(q, "maxBytes", cfg.MaxBytes); err != nil {
		return p, err
	}
	p.maxRecords, err = parseCount(q, "maxRecords", cfg.MaxRecords)
	return p, err
}

func parseWait(q url.Values, limit time.Duration) (time.Duration, error) {
	v := q.Get("wait")
	if v == "" {
		return 0, nil
	}
	d, err := httpd.ParseWait(v)
	if err != nil {
		return 0, fmt.Errorf("wait: %w", err)
	}
	return min(d, limit), nil
}

// parseCount reads a number from 1 on; limit when it is not given.
func parseCount(q url.Values, name string, limit int) (int, error) {
	v := q.Get(name)
	if v == "" {
		return limit, nil
	}
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%w %s: %q; allowed are whole numbers from 1", topology.ErrInvalid, name, v)
	}
	return int(min(n, uint64(limit))), nil
}

// consumerID is the id that a request names: consumerId, or the older spelling.
func consumerID(q url.Values) string {
	if id := q.Get("consumerId"); id != "" {
		return id
	}
	return q.Get("consumer_id")
}

// readQuery is where a read without a group begins, and how far it goes.
type readQuery struct {
	from       readFrom
	offset     topology.Offset // for fromOffset
	time       time.Time       // for fromTime
	last       int64           // for fromLast
	wait       time.Duration
	maxBytes   int
	maxRecords int
}

type readFrom uint8

const (
	fromStart readFrom = iota
	fromOffset
	fromTime
	fromLast
)

// defaultReadRecords is how many records a read returns that does not say.
const defaultReadRecords = 1000

func parseRead(q url.Values, cfg *Config) (r readQuery, err error) {
	given := slices.DeleteFunc([]string{"offset", "time", "last"}, func(name string) bool { return !q.Has(name) })
	if len(given) > 1 {
		return r, fmt.Errorf("%w query: %s; allowed is one of offset, time and last", topology.ErrInvalid, strings.Join(given, " and "))
	}
	if len(given) == 1 {
		if err := r.parseFrom(given[0], q.Get(given[0])); err != nil {
			return r, err
		}
	}
	if r.wait, err = parseWait(q, cfg.MaxWait); err != nil {
		return r, err
	}
	if r.maxBytes, err = parseCount(q, "maxBytes", cfg.MaxBytes); err != nil {
		return r, err
	}
	r.maxRecords, err = parseCount(q, "maxRecords", cfg.MaxRecords)
	if err == nil && !q.Has("maxRecords") {
		r.maxRecords = min(r.maxRecords, defaultReadRecords)
	}
	return r, err
}

func (r *readQuery) parseFrom(name, v string) error {
	if name == "time" {
		t, err := httpd.ParseTime(v)
		if err != nil {
			return fmt.Errorf("time: %w", err)
		}
		r.from, r.time = fromTime, t
		return nil
	}
	n, err := strconv.ParseUint(v, 10, 63)
	if err != nil {
		return fmt.Errorf("%w %s: %q; allowed are whole numbers from 0", topology.ErrInvalid, name, v)
	}
	if name == "offset" {
		r.from, r.offset = fromOffset, topology.Offset(n)
	} else {
		r.from, r.last = fromLast, int64(n)
	}
	return nil
}
