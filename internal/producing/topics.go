package producing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

// Topics is the catalogue of topics. Lookup is on the hot path of every request: it must be quick and not block.
type Topics interface {
	// Lookup finds a live topic that this broker knows.
	Lookup(name string) (topology.Topic, bool)
	// Ensure finds a topic, or creates it where that is allowed, and may take a while.
	//
	// Errors: topology.ErrUnknownTopic, topology.ErrInvalid (the name), and those of an append.
	Ensure(ctx context.Context, name string) (topology.Topic, error)
	// EffectiveMaxRecordBytes is the largest record of a topic: key, value and headers.
	EffectiveMaxRecordBytes(t topology.Topic) int
}

// ensureTimeout bounds how long a request waits for its topic to be created.
const ensureTimeout = 10 * time.Second

// lookUp is the topic of a request if it is known here, and else one without an id: its records are read by the limits
// that a new topic would have, and then create makes it, so that a request which is refused makes no topic. The name is
// checked.
func lookUp(topics Topics, name string) (topology.Topic, error) {
	if t, ok := topics.Lookup(name); ok && !internalName(name) {
		return t, nil
	}
	if err := topology.CheckTopicName(name, false); err != nil {
		return topology.Topic{}, err
	}
	return topology.Topic{Name: name}, nil
}

// create finds out about a topic that lookUp did not know, or makes it.
func create(ctx context.Context, topics Topics, t *topology.Topic) error {
	if t.ID != uuid.Nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ensureTimeout)
	defer cancel()
	made, err := topics.Ensure(ctx, t.Name)
	switch {
	case err == nil:
		*t = made
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, topology.ErrOutcomeUnknown):
		// The record of the topic may be written, but no record of this request is: the cause is not in the chain.
		return fmt.Errorf("%w: topic %s could not be created in time: %s", topology.ErrUnavailable, t.Name, err.Error())
	default:
		return fmt.Errorf("topic %s: %w", t.Name, err)
	}
}

// internalName tells whether a name is reserved: nobody produces to such topics through a door.
func internalName(name string) bool { return len(name) >= 2 && name[0] == '_' && name[1] == '_' }

// errNoLeader is the refusal that published clients know.
func errNoLeader(err error, token int64) error {
	return &noLeaderError{token: token, err: err}
}

type noLeaderError struct {
	token int64
	err   error
}

func (e *noLeaderError) Error() string {
	return fmt.Sprintf("Leader for token %d could not be found", e.token)
}

func (e *noLeaderError) Unwrap() error { return e.err }
