package cli

import (
	"strconv"
	"time"
)

// durationFlag is a pflag.Value that also takes days and weeks.
type durationFlag struct{ d *time.Duration }

func newDurationFlag(d *time.Duration, def time.Duration) durationFlag {
	*d = def
	return durationFlag{d}
}

func (f durationFlag) String() string {
	if f.d == nil {
		return ""
	}
	return formatDuration(*f.d)
}

func (f durationFlag) Set(s string) (err error) {
	*f.d, err = parseDuration(s)
	return err
}

func (f durationFlag) Type() string { return "duration" }

// bytesFlag is a pflag.Value that takes sizes such as 64KiB.
type bytesFlag struct{ n *int64 }

func newBytesFlag(n *int64, def int64) bytesFlag {
	*n = def
	return bytesFlag{n}
}

func (f bytesFlag) String() string {
	if f.n == nil {
		return ""
	}
	return formatBytesFlag(*f.n)
}

func (f bytesFlag) Set(s string) (err error) {
	*f.n, err = parseBytes(s)
	return err
}

func (f bytesFlag) Type() string { return "size" }

// formatBytesFlag writes a size so that parseBytes reads the same number.
func formatBytesFlag(n int64) string {
	for _, unit := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size && n%unit.size == 0 {
			return strconv.FormatInt(n/unit.size, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}
