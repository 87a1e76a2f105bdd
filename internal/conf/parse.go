package conf

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

const maxBytes = math.MaxInt64

// units of sizes, largest first.
var units = []struct {
	name string
	size int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseBytes reads a size: a whole number with KiB, MiB, GiB, TiB or B after it, or bytes without. It is not negative.
func ParseBytes(s string) (int64, error) {
	digits, unit := s, int64(1)
	for _, u := range units {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = strings.TrimSuffix(rest, " "), u.size
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || int64(n) > maxBytes/unit {
		return 0, fmt.Errorf("%q is no size; write it as 64MiB, 1GiB or 1048576", s)
	}
	return int64(n) * unit, nil
}

// FormatBytes writes n as ParseBytes reads it, in the largest unit that divides it.
func FormatBytes(n int64) string {
	for _, u := range units {
		if n != 0 && n%u.size == 0 && u.size > 1 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}

const dayLong = 24 * time.Hour

// ParseDuration reads a duration as package time does, and days too: 500us, 50ms, 1h30m, 7d, 1d12h.
func ParseDuration(s string) (time.Duration, error) {
	wrong := fmt.Errorf("%q is no duration; write it as 500us, 50ms, 24h or 7d", s)
	days, rest, found := strings.Cut(s, "d")
	if !found {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, wrong
		}
		return d, nil
	}
	n, err := strconv.ParseUint(days, 10, 31)
	if err != nil || n > uint64(math.MaxInt64/dayLong) {
		return 0, wrong
	}
	d := time.Duration(n) * dayLong
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if err != nil || more < 0 || more > math.MaxInt64-d {
		return 0, wrong
	}
	return d + more, nil
}

// FormatDuration writes d as ParseDuration reads it, in whole days where it is some, else without parts that are zero.
func FormatDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	if d > 0 && d%dayLong == 0 {
		return strconv.FormatInt(int64(d/dayLong), 10) + "d"
	}
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// errNotAllowed says that a value is not among those that the row allows.
var errNotAllowed = errors.New("not allowed")
