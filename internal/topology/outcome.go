package topology

import "errors"

// The outcomes of a write that did not simply succeed, kept apart because they tell the client different things
// (docs/design.md, section 6). All but ErrOutcomeUnknown mean: not written.
var (
	// ErrUnknownTopic means that the topic does not exist and may not be created by the request. HTTP 404.
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrNotLeader means that no leader of the range is known here: try another broker. HTTP 421.
	ErrNotLeader = errors.New("leader not found")
	// ErrBusy means that a bound of memory is reached: retry after a moment. HTTP 429.
	ErrBusy = errors.New("memory budget is used up")
	// ErrUnavailable means that the range or the storage cannot take writes now: retry. HTTP 503.
	ErrUnavailable = errors.New("unavailable")
	// ErrShuttingDown means that this broker is about to stop: retry elsewhere. HTTP 503.
	ErrShuttingDown = errors.New("shutting down")
	// ErrDiskFull means that the disk is below its reserve. HTTP 507.
	ErrDiskFull = errors.New("disk is full")
	// ErrTooLarge means that a record or request is above its limit. HTTP 413.
	ErrTooLarge = errors.New("too large")
	// ErrConflict means that something of that name exists with other settings. HTTP 409.
	ErrConflict = errors.New("conflict")
	// ErrOutcomeUnknown means that the write may or may not be stored: retry with the same idempotency key. HTTP 504.
	ErrOutcomeUnknown = errors.New("outcome unknown")
)
