package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/skeinmq/skein/internal/cli/api"
)

var byteUnits = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// parseBytes reads a size such as 4096, 64KiB, 1.5g or 10MB. K, M, G and T alone are powers of 1024.
func parseBytes(s string) (int64, error) {
	s = strings.TrimSpace(s)
	cut := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsDigit(r) && r != '.' })
	if cut < 0 {
		cut = len(s)
	}
	n, err := strconv.ParseFloat(s[:cut], 64)
	unit, known := byteUnits[strings.ToLower(strings.TrimSpace(s[cut:]))]
	if err != nil || !known || n*unit >= math.MaxInt64 {
		return 0, fmt.Errorf("%q is no size; give for example 4096, 64KiB, 1GiB", s)
	}
	return int64(n * unit), nil
}

// formatBytes writes n for people, with the unit of 1024 that leaves one to four digits.
func formatBytes(n int64) string {
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB"} {
		v /= 1 << 10
		if v < 1000 {
			return fmt.Sprintf("%.*f %s", decimals(v), v, unit)
		}
	}
	return fmt.Sprintf("%.1f TiB", v/(1<<10))
}

func decimals(v float64) int {
	if v < 100 {
		return 1
	}
	return 0
}

// parseDuration reads a duration of Go's form, with d for days and w for weeks in front too: 1h30m, 7d, 2w, 1d12h.
func parseDuration(s string) (time.Duration, error) {
	bad := fmt.Errorf("%q is no duration; give for example 500ms, 10s, 15m, 12h, 7d", s)
	rest, negative := strings.CutPrefix(strings.TrimSpace(s), "-")
	if rest == "" || rest[0] == '-' || rest[0] == '+' {
		return 0, bad
	}
	total := time.Duration(0)
	for _, unit := range []struct {
		name  string
		hours float64
	}{{"w", 7 * 24}, {"d", 24}} {
		n, after, found := strings.Cut(rest, unit.name)
		if !found {
			continue
		}
		v, err := strconv.ParseFloat(n, 64)
		if err != nil || !(v*unit.hours < 200*365*24) {
			return 0, bad
		}
		total += time.Duration(v * unit.hours * float64(time.Hour))
		rest = after
	}
	if rest != "" {
		d, err := time.ParseDuration(rest)
		if err != nil {
			return 0, bad
		}
		total += d
	}
	if negative {
		total = -total
	}
	return total, nil
}

// formatDuration writes a duration for people: days where it has some, no zero units.
func formatDuration(d time.Duration) string {
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	day := 24 * time.Hour
	out := ""
	if d >= day {
		out = strconv.Itoa(int(d/day)) + "d"
		if d %= day; d == 0 {
			return sign + out
		}
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return sign + out + s
}

var timeLayouts = []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"}

// parseTime reads a point in time: RFC 3339, a date with or without time (local), @ and milliseconds since the epoch, or
// a duration, which is that long before now (with or without a minus).
func parseTime(s string, now time.Time) (time.Time, error) {
	for _, layout := range timeLayouts {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return t, nil
		}
	}
	if ms, found := strings.CutPrefix(s, "@"); found {
		if n, err := strconv.ParseInt(ms, 10, 64); err == nil {
			return time.UnixMilli(n), nil
		}
	}
	if d, err := parseDuration(strings.TrimPrefix(s, "-")); err == nil {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%q is no time; give for example 2026-03-01T08:00:00Z, 2026-03-01, @1772352000000 (ms since the epoch) or 15m (that long ago)", s)
}

// parseTimestamp is parseTime that also takes a bare number of milliseconds since the epoch.
func parseTimestamp(s string, now time.Time) (time.Time, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil {
		return time.UnixMilli(ms), nil
	}
	return parseTime(s, now)
}

// parseHeaders reads NAME=VALUE pairs.
func parseHeaders(pairs []string) ([]api.Header, error) {
	var headers []api.Header
	for _, pair := range pairs {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("header %q is not NAME=VALUE", pair)
		}
		if strings.HasPrefix(name, "__skein.") {
			return nil, fmt.Errorf("header %q begins with __skein., which the broker keeps for itself", name)
		}
		if strings.ContainsFunc(pair, unicode.IsControl) {
			return nil, fmt.Errorf("header %q has a control character; give records with such headers as --records", pair)
		}
		headers = append(headers, api.Header{Key: name, Value: value})
	}
	return headers, nil
}

// unescape resolves \n, \r, \t, \0, \\ and \xNN, so that a shell can pass any delimiter. Other backslashes stay.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		case '0':
			out.WriteByte(0)
		case '\\':
			out.WriteByte('\\')
		case 'x':
			if i+2 < len(s) {
				if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
					out.WriteByte(byte(n))
					i += 2
					continue
				}
			}
			out.WriteString(`\x`)
		default:
			out.WriteByte('\\')
			out.WriteByte(s[i])
		}
	}
	return out.String()
}
