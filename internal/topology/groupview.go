package topology

import (
	"errors"
	"time"

	"github.com/skeinmq/skein/internal/token"
)

// ErrUnknownGroup means that no member and no stored position of the group is known. HTTP 404.
var ErrUnknownGroup = errors.New("unknown group")

// GroupSummary is a consumer group in a list.
type GroupSummary struct {
	Name    string   `json:"name"`
	Members int      `json:"members"` // live ones
	Topics  []string `json:"topics"`  // that members registered for or positions are stored of, sorted
	Lag     int64    `json:"lag"`     // records not yet consumed, over all partitions with a position
}

// GroupDetail is a consumer group with its members and where it stands on each partition.
type GroupDetail struct {
	Name       string           `json:"name"`
	Epoch      uint64           `json:"epoch"`   // grows with each change of the members; 0 when none was seen by this broker
	Members    []GroupMember    `json:"members"` // live ones, sorted by id
	Partitions []GroupPartition `json:"partitions"`
}

// GroupMember is a live member of a group.
type GroupMember struct {
	ID         string    `json:"id"`
	Topics     []string  `json:"topics"`     // sorted
	Registered time.Time `json:"registered"` // its first registration that still holds
	LastSeen   time.Time `json:"lastSeen"`   // its last request
	Partitions int       `json:"partitions"` // that it owns, over all topics
}

// GroupPartition is where a group stands on a partition.
type GroupPartition struct {
	Topic     string      `json:"topic"`
	Partition Partition   `json:"partition"`
	Token     token.Token `json:"token,string"`
	Committed *Offset     `json:"committed"` // first offset not consumed; nil when the group has no position here
	Start     Offset      `json:"start"`     // first offset that is still stored
	End       Offset      `json:"end"`       // high watermark: first offset that cannot be consumed yet
	Lag       int64       `json:"lag"`       // records from Committed (or Start, if that is higher) to End
	Owner     string      `json:"owner"`     // id of the member that is given this partition; "" when there is none
	Updated   *time.Time  `json:"updated"`   // when Committed was stored
}

// Where a seek goes.
const (
	SeekEarliest = "earliest" // the start of the log
	SeekLatest   = "latest"   // its high watermark
	SeekOffset   = "offset"   // the offset named
	SeekTime     = "time"     // the first record appended at that time or later
)

// SeekRequest moves the committed positions of a group on one topic.
type SeekRequest struct {
	Topic     string     `json:"topic"`
	Partition *Partition `json:"partition,omitempty"` // nil means all
	To        string     `json:"to"`                  // one of the Seek constants
	Offset    *Offset    `json:"offset,omitempty"`    // for SeekOffset
	Time      string     `json:"time,omitempty"`      // for SeekTime: RFC 3339, or ms since the epoch
	Force     bool       `json:"force,omitempty"`     // also while members are live
}

// PositionChange is what a seek did to one position.
type PositionChange struct {
	Topic     string    `json:"topic"`
	Partition Partition `json:"partition"`
	From      *Offset   `json:"from"` // nil when there was no position
	To        Offset    `json:"to"`
}
