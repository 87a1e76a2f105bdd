package producing

import (
	"errors"
	"fmt"
	"time"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// ErrKeyReused means that an idempotency key came before with another request. HTTP 422. Nothing was written.
var ErrKeyReused = errors.New("the idempotency key was used for another request")

func isUnknown(err error) bool { return errors.Is(err, topology.ErrOutcomeUnknown) }

// isClientFault tells whether sending the same request again would fail the same way.
func isClientFault(err error) bool {
	for _, fault := range []error{topology.ErrInvalid, topology.ErrUnknownTopic, topology.ErrTooLarge, topology.ErrConflict,
		ErrKeyReused, httpd.ErrEncoding, httpd.ErrBodyTimeout} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

// invalid is an error that refuses a request. Its text is "invalid" and the format, which goes on with what is invalid
// and says what is allowed.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w "+format, append([]any{topology.ErrInvalid}, args...)...)
}

// partly is the outcome of a request of which some records are written and others, for the reason err, are not.
func partly(err error) error {
	return fmt.Errorf("%w: some of the records are written, others are not: %w", topology.ErrOutcomeUnknown, err)
}

func unknownAfter(d time.Duration) error {
	return fmt.Errorf("%w: the records are not written after %s", topology.ErrOutcomeUnknown, d)
}

func unknownGone(err error) error {
	return fmt.Errorf("%w: the request was given up: %w", topology.ErrOutcomeUnknown, err)
}

func tooLarge(size, limit int) error {
	return fmt.Errorf("the record has %d bytes, allowed are %d: %w", size, limit, topology.ErrTooLarge)
}
