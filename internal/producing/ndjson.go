package producing

import (
	"bytes"
	"fmt"

	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// nextLine splits b after its first line: the bytes before the line feed, without a carriage return before that. The
// last line may lack the line feed.
func nextLine(b []byte) (line, rest []byte) {
	line = b
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		line, rest = b[:i:i], b[i+1:]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[: n-1 : n-1]
	}
	return line, rest
}

// isBlank tells whether a line has nothing but spaces and tabs.
func isBlank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' {
			return false
		}
	}
	return true
}

// appendLines appends a record for each line of b that is not blank, with key, timestamp and headers like those of like.
// Values alias b. A line that is no JSON text or too large refuses the whole body and is named by its number, from 1.
func appendLines(dst []recordbatch.Record, b []byte, like recordbatch.Record, limit int) ([]recordbatch.Record, error) {
	base := like.Bytes()
	for n := 1; len(b) > 0; n++ {
		var line []byte
		line, b = nextLine(b)
		if isBlank(line) {
			continue
		}
		if size := base + len(line); size > limit {
			return dst, fmt.Errorf("line %d: the record has %d bytes, allowed are %d: %w", n, size, limit, topology.ErrTooLarge)
		}
		if err := checkJSON(line); err != nil {
			return dst, invalid("line %d: it is no JSON: %w", n, err)
		}
		like.Value = line
		dst = append(dst, like)
	}
	return dst, nil
}
