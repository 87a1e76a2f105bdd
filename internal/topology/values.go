package topology

import (
	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/token"
)

// Ordinal is the number of a broker, 0..N-1, from the name of its pod or its place in the static list. It is an
// identity, not a place on the ring.
type Ordinal int

// Version numbers the generations of a token and is the leader epoch of what is written in them (O16). The first is 1.
type Version uint32

// Offset counts the records of a log, from 0. A log end offset is that of the record written next.
type Offset int64

// Partition numbers the equal parts a topic is cut into, from 0.
type Partition int32

// LogID names a log: one partition of one topic. The topic is named by id, so a re-created topic shares nothing with
// the old one (T3).
type LogID struct {
	Topic     uuid.UUID `json:"topic"`
	Partition Partition `json:"partition"`
}

// positionsSpace is the name space of the ids of positions logs.
var positionsSpace = uuid.MustParse("6f4e7a0c-3f0e-5d43-9d2c-5a1f4c0b7e11")

// PositionsTopic is the id of the companion log of a topic, which has the same partitions and holds the committed
// positions of its consumer groups (docs/design.md, section 7). It is derived, so no record needs to name it.
func PositionsTopic(topic uuid.UUID) uuid.UUID { return uuid.NewSHA1(positionsSpace, topic[:]) }

// Positions is the companion log of l.
func (l LogID) Positions() LogID {
	return LogID{Topic: PositionsTopic(l.Topic), Partition: l.Partition}
}

// Replica is one member of a generation: the broker and the disk it votes and acknowledges with (O12).
type Replica struct {
	Ordinal Ordinal   `json:"ordinal"`
	Disk    uuid.UUID `json:"disk"`
}

// GenerationID names a generation (docs/design.md, section 1). It never repeats (O16).
type GenerationID struct {
	Start   token.Token `json:"start,string"`
	Version Version     `json:"version"`
}

// GenerationStatus tells how far the decision that makes a generation has come.
type GenerationStatus int

const (
	StatusProposed GenerationStatus = iota
	StatusAccepted
	StatusCommitted
)

// Generation is one immutable tenure of a range: who leads it and who copies it.
type Generation struct {
	token.Range
	Version     Version          `json:"version"`
	Leader      Ordinal          `json:"leader"`
	Followers   []Ordinal        `json:"followers"`
	Replicas    []Replica        `json:"replicas"` // leader first (O12)
	Run         uuid.UUID        `json:"run"`      // the process start that leads (O15)
	Parents     []GenerationID   `json:"parents"`
	TxLeader    Ordinal          `json:"txLeader"`
	Tx          uuid.UUID        `json:"tx"`
	ClusterSize int              `json:"clusterSize"`
	Timestamp   int64            `json:"timestamp"` // when it was decided, ms since the epoch
	Status      GenerationStatus `json:"status"`
	Reason      string           `json:"reason,omitempty"` // genesis, restart, failover, ...
}

// ID is (Start, Version).
func (g Generation) ID() GenerationID { return GenerationID{g.Start, g.Version} }
