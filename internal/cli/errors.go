package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/topology"
)

// errInterrupted ends a command that a signal stopped before its work was done.
var errInterrupted = errors.New("interrupted")

// usageError is a command line that makes no sense: nothing was done.
type usageError struct {
	command string // "broker produce"
	err     error
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\nSee '%s --help'.", e.err, e.command)
}

func (e *usageError) Unwrap() error { return e.err }

// ExitCode is the exit code for the error of a command: 0 none, 2 a wrong command line, 130 interrupted before the work
// was done, 1 anything else.
func ExitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), unknownCommand(err):
		return 2
	case errors.Is(err, errInterrupted):
		return 130
	}
	return 1
}

// unknownCommand knows what cobra says of a root's or group's argument that is no command.
func unknownCommand(err error) bool {
	return strings.HasPrefix(err.Error(), "unknown command ") || strings.HasPrefix(err.Error(), "unknown flag: ") ||
		strings.HasPrefix(err.Error(), "unknown shorthand flag: ")
}

// explain adds to err what to do next, where that can be told from the kind of error. what names the thing that was
// asked for ("topic orders").
func explain(err error, what string) error {
	var conn *api.ConnError
	var refused *api.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &conn) && !conn.Sent:
		return fmt.Errorf("%w\nStart one with 'broker dev', or name another with --broker HOST:PORT or SKEIN_BROKER", err)
	case errors.Is(err, context.Canceled):
		return errInterrupted
	case errors.As(err, &refused):
		if hint := hintFor(refused, what); hint != "" {
			return fmt.Errorf("%s: %w\n%s", what, err, hint)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return err
}

func hintFor(e *api.Error, what string) string {
	kind, name, _ := strings.Cut(what, " ")
	if kind == "group" && strings.Contains(e.Detail, topology.ErrUnknownTopic.Error()) {
		kind, name = "topic", "NAME"
	}
	switch e.Status {
	case http.StatusNotFound:
		switch kind {
		case "topic":
			return fmt.Sprintf("See 'broker topics list', or create it with 'broker topics create %s'", name)
		case "group":
			return "See 'broker groups list'"
		}
	case http.StatusUnprocessableEntity:
		return "Under an idempotency key only the same lines can be repeated, with the same flags; take another key for these"
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return "Nothing was changed; try again in a moment, and see 'broker cluster status'"
	case http.StatusInsufficientStorage:
		return "The disk of the broker is full: free space, shorten the retention of a topic ('broker topics config'), or delete one; see 'broker cluster status'"
	case http.StatusMisdirectedRequest:
		return "Another broker leads here: name it too with --broker HOST:PORT,HOST:PORT"
	case http.StatusInternalServerError:
		return "This is a fault of the broker: its log says more"
	}
	return ""
}
