package localdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rs/zerolog"
)

// checkedLog is a log that a process left behind, found sound.
type checkedLog struct {
	path string
	size int64
	end  int64 // behind the last whole transaction; <= size unless the log has not even a head
	torn bool  // what is behind is not all zeros
}

// checkLogs reads the logs in dir and changes nothing. An error that wraps ErrDamaged names file and position.
func checkLogs(dir string) ([]checkedLog, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil {
		return nil, err
	}
	logs := make([]checkedLog, len(paths))
	for i, path := range paths {
		if logs[i], err = checkLog(path); err != nil {
			return nil, err
		}
	}
	return logs, nil
}

func checkLog(path string) (checkedLog, error) {
	info, err := os.Stat(path)
	if err != nil {
		return checkedLog{}, err
	}
	if info.Size() > maxLogBytes {
		return checkedLog{}, fmt.Errorf("%w: %s has %d bytes, no log has more than %d", ErrDamaged, path, info.Size(), maxLogBytes)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return checkedLog{}, fmt.Errorf("read the log: %w", err)
	}
	end, err := scanLog(b)
	if err != nil {
		return checkedLog{}, fmt.Errorf("%w: %s, %w", ErrDamaged, path, err)
	}
	log := checkedLog{path: path, size: int64(len(b)), end: int64(end)}
	for _, c := range b[end:] {
		log.torn = log.torn || c != 0
	}
	return log, nil
}

// cutLogs cuts each log behind its last whole transaction and makes it durable, the cut too: what this process writes and
// syncs from now on builds on it. It returns the most bytes that the tables take which the logs are flushed to. The cut
// also keeps badger, which trusts lengths, from reading what was torn, and gives back the room behind it.
func cutLogs(logs []checkedLog, log zerolog.Logger) (tables int64, err error) {
	for _, l := range logs {
		if l.torn {
			log.Warn().Str("file", l.path).Int64("position", l.end).
				Msg("the log of the local database ends within an update, that is cut off")
		}
		if err := l.cut(); err != nil {
			return 0, fmt.Errorf("cut the log: %w", err)
		}
		tables += tableBound(l.end)
	}
	return tables, nil
}

func (l checkedLog) cut() error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = nil
	if l.end < l.size {
		err = f.Truncate(l.end)
	}
	return errors.Join(err, f.Sync(), f.Close())
}
