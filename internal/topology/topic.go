package topology

import (
	"errors"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/token"
)

// TopicState tells whether a topic lives. A deleted topic stays as a record, so that a broker that slept through the
// deletion learns of it (T3).
type TopicState string

const (
	TopicActive  TopicState = "active"
	TopicDeleted TopicState = "deleted"
)

// TopicConfig are the settings of one topic. A nil field means the broker's default.
type TopicConfig struct {
	RetentionMS    *int64 `json:"retentionMs,omitempty" yaml:"retentionMs,omitempty"`       // records older than this by append time go; -1 keeps them
	RetentionBytes *int64 `json:"retentionBytes,omitempty" yaml:"retentionBytes,omitempty"` // bytes kept per partition; -1 is no bound
	MaxRecordBytes *int   `json:"maxRecordBytes,omitempty" yaml:"maxRecordBytes,omitempty"` // largest key+value+headers of a record
	SegmentBytes   *int64 `json:"segmentBytes,omitempty" yaml:"segmentBytes,omitempty"`     // a segment file rolls at this size
	SegmentMS      *int64 `json:"segmentMs,omitempty" yaml:"segmentMs,omitempty"`           // and at this age
}

// Topic is a record of the topics log (T1).
type Topic struct {
	Name       string      `json:"name"`
	ID         uuid.UUID   `json:"id"`
	Partitions int         `json:"partitions"`
	Config     TopicConfig `json:"config"`
	State      TopicState  `json:"state"`
	Created    time.Time   `json:"created"`
	Updated    time.Time   `json:"updated"`
}

// Log is the log of one partition of t.
func (t Topic) Log(p Partition) LogID { return LogID{Topic: t.ID, Partition: p} }

// PartitionOf is the partition that tok falls into.
func (t Topic) PartitionOf(tok token.Token) Partition {
	return Partition(token.Index(t.Partitions, tok))
}

// PartitionToken is the start token of a partition: the leader of the range that contains it leads the partition, and
// the client protocol names the partition by it.
func (t Topic) PartitionToken(p Partition) token.Token { return token.At(t.Partitions, int(p)) }

// TopicsTopic is the internal topic whose records are the topics (T1), keyed by name.
var TopicsTopic = Topic{
	Name:       "__topics",
	ID:         uuid.MustParse("3c5b8a52-0d1c-5a0e-8f57-0b6c8f2f9a01"),
	Partitions: 12,
	State:      TopicActive,
}

// DefaultPartitions is the partition count of a topic that names none, on a cluster of n brokers: 4 for each broker of
// the smallest 3·2^k that is at least n (docs/design.md, section 1).
func DefaultPartitions(n int) int { return min(4*token.CeilSize(n), token.MaxSize) }

// ErrInvalid is in the chain of each error that refuses a name or a number; its text says what is allowed.
var ErrInvalid = errors.New("invalid")

// CheckTopicName refuses what is no name of a topic (docs/design.md, section 9). Names that begin with __ are reserved;
// reading one is allowed, creating or producing to it is not: internal says which is meant.
func CheckTopicName(name string, internal bool) error {
	switch {
	case name == "":
		return fmt.Errorf("%w topic: the name is empty; allowed are 1 to 249 of A-Z a-z 0-9 . _ -", ErrInvalid)
	case len(name) > 249:
		return fmt.Errorf("%w topic: the name has %d characters; allowed are 1 to 249", ErrInvalid, len(name))
	case name == "." || name == "..":
		return fmt.Errorf("%w topic: %q is not allowed as a name", ErrInvalid, name)
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("%w topic: %q has a character outside A-Z a-z 0-9 . _ -", ErrInvalid, name)
		}
	}
	if !internal && len(name) >= 2 && name[:2] == "__" {
		return fmt.Errorf("%w topic: %q begins with __, which is reserved", ErrInvalid, name)
	}
	return nil
}

// CheckName refuses what is no key, group or consumer id over text protocols: 1 to 255 bytes of UTF-8 without control
// characters. What names the thing in the error ("group").
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w %s: it is empty; allowed are 1 to 255 bytes of UTF-8", ErrInvalid, what)
	case len(name) > 255:
		return fmt.Errorf("%w %s: it has %d bytes; allowed are 1 to 255", ErrInvalid, what, len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("%w %s: it is not UTF-8", ErrInvalid, what)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%w %s: it has the control character %U", ErrInvalid, what, r)
		}
	}
	return nil
}

// CheckPartitions refuses a partition count that is not 1 or 3·2^k up to 12288.
func CheckPartitions(n int) error {
	if !token.ValidSize(n) {
		return fmt.Errorf("%w partitions: %d; allowed are 1 and 3·2^k up to %d (3, 6, 12, 24, ...)", ErrInvalid, n, token.MaxSize)
	}
	return nil
}
