package httpd

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/skeinmq/skein/internal/topology"
)

// ParseWait reads a duration of a query parameter: with a unit ("500ms", "10s", "1m30s"), or whole milliseconds
// ("500"). Negative ones and what is longer than time.Duration holds are refused with topology.ErrInvalid.
func ParseWait(s string) (time.Duration, error) {
	const allowed = `allowed are whole milliseconds ("500") or a number with a unit ("500ms", "10s", "1m")`
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		if ms < 0 || ms > math.MaxInt64/int64(time.Millisecond) {
			return 0, fmt.Errorf("%w duration %q: it is out of range; %s", topology.ErrInvalid, s, allowed)
		}
		return time.Duration(ms) * time.Millisecond, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%w duration %q; %s", topology.ErrInvalid, s, allowed)
	}
	return d, nil
}

// ParseTime reads a point in time: RFC 3339 ("2026-01-31T12:00:00Z", with or without a fraction), or whole milliseconds
// since the epoch. Others are refused with topology.ErrInvalid. The result is in UTC.
func ParseTime(s string) (time.Time, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.UnixMilli(ms).UTC(), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("%w time %q; allowed are RFC 3339 (\"2026-01-31T12:00:00Z\") or milliseconds since the epoch",
			topology.ErrInvalid, s)
	}
	return t.UTC(), nil
}
