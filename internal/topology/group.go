package topology

import "github.com/google/uuid"

// OffsetResetPolicy says where a group starts on a partition it has no position on. Its JSON form is the number of
// the client protocol: 0 latest, 1 earliest.
type OffsetResetPolicy int

const (
	StartFromLatest OffsetResetPolicy = iota
	StartFromEarliest
)

// ConsumerGroup is what a broker tells others of the members of a group.
type ConsumerGroup struct {
	Name    string                `json:"name"`
	Members []ConsumerGroupMember `json:"members"`
}

// ConsumerGroupMember is a consumer of a group and the topics it registered for.
type ConsumerGroupMember struct {
	ID     string   `json:"id"`
	Topics []string `json:"topics"`
}

// OffsetStoreKeyValue is a committed position: the first offset of a log that a group has not consumed.
type OffsetStoreKeyValue struct {
	Group     string    `json:"group"`
	Topic     uuid.UUID `json:"topic"`
	Partition Partition `json:"partition"`
	Offset    Offset    `json:"offset"`
	Version   Version   `json:"version"`   // generation of the record before Offset
	Timestamp int64     `json:"timestamp"` // when it was committed, ms since the epoch
}
