package localdb

import (
	"fmt"
	"strings"

	"github.com/rs/zerolog"
)

// badgerLog hands the lines of badger to our log, a level lower: what it calls info is of no interest to an operator.
type badgerLog struct {
	log     zerolog.Logger
	trouble func(error) // is told when a table cannot be written
}

// Errorf is also how badger tells, from a goroutine of its own, that it cannot write a full memtable to a table. It tries
// again for ever, and blocks updates once some memtables wait.
func (l badgerLog) Errorf(format string, args ...any) {
	l.line(l.log.Warn(), format, args)
	if l.trouble != nil && strings.HasPrefix(format, "error flushing memtable") {
		l.trouble(fmt.Errorf("a table cannot be written: %s", strings.TrimSpace(fmt.Sprintf(format, args...))))
	}
}

func (l badgerLog) Warningf(format string, args ...any) { l.line(l.log.Debug(), format, args) }
func (l badgerLog) Infof(format string, args ...any)    { l.line(l.log.Debug(), format, args) }

// Debugf is called for each write, so it does nothing.
func (l badgerLog) Debugf(string, ...any) {}

func (l badgerLog) line(e *zerolog.Event, format string, args []any) {
	if text := strings.TrimSpace(fmt.Sprintf(format, args...)); e.Enabled() && text != "" {
		e.Str("badger", text).Msg("local database")
	}
}
