package consuming

import (
	"fmt"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/topology"
)

// policy says where a group begins on a partition that it has no position on, or whose position is outside the log.
type policy uint8

const (
	policyUnnamed  policy = iota // the consumer named none: latest, with the exception of resolve
	policyLatest                 // what comes from now on
	policyEarliest               // all there is
)

// parsePolicy reads the words of the query form (docs/wire.md, 5.1).
func parsePolicy(word string) (policy, error) {
	switch word {
	case "":
		return policyUnnamed, nil
	case "startFromLatest":
		return policyLatest, nil
	case "startFromEarliest":
		return policyEarliest, nil
	}
	return 0, fmt.Errorf("%w onNewGroup: %q; allowed are startFromLatest and startFromEarliest", topology.ErrInvalid, word)
}

// policyOf is the policy of the number in the JSON form.
func policyOf(p topology.OffsetResetPolicy) (policy, bool) {
	switch p {
	case topology.StartFromLatest:
		return policyLatest, true
	case topology.StartFromEarliest:
		return policyEarliest, true
	}
	return 0, false
}

// resolve is where a group with this policy begins on a log. Where no policy is named, a log that holds a single record
// is delivered from its beginning: programs often produce one record first and subscribe then (docs/wire.md, 0.14).
func (p policy) resolve(log data.LogInfo) topology.Offset {
	switch {
	case p == policyEarliest, p == policyUnnamed && log.HighWatermark <= 1:
		return log.Start
	default:
		return log.HighWatermark
	}
}

// reset is where a group goes on whose position is outside the log (P9): at the end when it asked for that by name,
// else at the first record there is.
func (p policy) reset(start, highWatermark topology.Offset) topology.Offset {
	if p == policyLatest {
		return highWatermark
	}
	return start
}
