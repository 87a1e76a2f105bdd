package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"pgregory.net/rapid"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "64k": 64 << 10, "1.5M": 3 << 19, "10MB": 10_000_000, "1 GiB": 1 << 30, "2t": 2 << 40, "7b": 7,
	} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "k", "-1", "1.2.3", "10XB", "9999999999999T", "1e3"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is accepted as %d", text, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "2w": 336 * time.Hour, "1d12h": 36 * time.Hour,
		"1.5d": 36 * time.Hour, "1w1d1h": 193 * time.Hour, "-1d12h": -36 * time.Hour, "0s": 0,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q is %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "7", "d", "1x", "--1h", "-+1h", "1h2d", "999999w", "NaNd"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("%q is accepted as %s", text, got)
		}
	}
}

// What is shown as a default or setting can be given back as a flag.
func TestShownValuesParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, int64(10_000*time.Hour)).Draw(t, "d")).Round(time.Millisecond)
		if got, err := parseDuration(formatDuration(d)); err != nil || got != d {
			t.Fatalf("%s is shown as %q, which is %s, %v", d, formatDuration(d), got, err)
		}
		n := rapid.Int64Range(0, 1<<50).Draw(t, "n") << rapid.IntRange(0, 10).Draw(t, "shift")
		if got, err := parseBytes(formatBytesFlag(n)); err != nil || got != n {
			t.Fatalf("%d is shown as %q, which is %d, %v", n, formatBytesFlag(n), got, err)
		}
	})
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 150 << 10: "150 KiB", 1000 << 10: "1.0 MiB", 5 << 40: "5.0 TiB"} {
		if got := formatBytes(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}

func TestParseTime(t *testing.T) {
	local := time.Date(2026, 3, 1, 8, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"2026-03-01T08:00:00.5Z": time.Date(2026, 3, 1, 8, 0, 0, 5e8, time.UTC), "2026-03-01T08:00:00+02:00": time.Date(2026, 3, 1, 6, 0, 0, 0, time.UTC),
		"2026-03-01 08:00": local, "2026-03-01T08:00:00": local, "2026-03-01": time.Date(2026, 3, 1, 0, 0, 0, 0, time.Local),
		"@1772352000000": time.UnixMilli(1772352000000), "15m": now.Add(-15 * time.Minute), "-15m": now.Add(-15 * time.Minute), "1d": now.Add(-24 * time.Hour),
	} {
		if got, err := parseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q is %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1772352000000", "@x", "tomorrow", "2026-13-01"} {
		if got, err := parseTime(text, now); err == nil {
			t.Errorf("%q is accepted as %s", text, got)
		}
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{`a\tb`: "a\tb", `\n\r\0\\`: "\n\r\x00\\", `\x41\xff`: "A\xff", `\x4`: `\x4`, `\q`: `\q`, `\`: `\`, `\xzz`: `\xzz`} {
		if got := unescape(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

var oneRecord = &api.Record{Offset: 1, Key: api.Value(`"k"`), Value: api.Value("1")}

func FuzzParseFormat(f *testing.F) {
	f.Add(`%t %p %o %k %v\n`)
	f.Add(`%`)
	f.Add(`%%\x4`)
	f.Fuzz(func(t *testing.T, format string) {
		form, err := parseFormat(format)
		if err != nil {
			if !strings.Contains(format, "%") {
				t.Errorf("%q has no token and is refused: %v", format, err)
			}
			return
		}
		p := printed{topic: "t", record: oneRecord}
		if _, err := form(nil, p); err != nil {
			t.Errorf("%q: %v", format, err)
		}
	})
}
