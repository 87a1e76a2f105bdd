package conf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// The functions of this file make rows of the table. Each takes the name, the default and what is allowed, the help, and
// where in Settings the value goes.

// section gives rows their section and scope.
func section(name, scope string, rows ...Setting) []Setting {
	for i := range rows {
		rows[i].Section, rows[i].Scope = name, scope
	}
	return rows
}

func text(name, def, allowed, help string, at func(*Settings) *string) Setting {
	return Setting{Name: name, Default: def, Kind: Text, Allowed: allowed, Help: help, set: func(s *Settings, v string) error {
		*at(s) = v
		return nil
	}}
}

func list(name, def, allowed, help string, at func(*Settings) *[]string) Setting {
	return Setting{Name: name, Default: def, Kind: List, Allowed: allowed, Help: help, set: func(s *Settings, v string) error {
		*at(s) = nil
		if strings.TrimSpace(v) == "" {
			return nil
		}
		for item := range strings.SplitSeq(v, ",") {
			*at(s) = append(*at(s), strings.TrimSpace(item))
		}
		return nil
	}}
}

func number[T ~int](name, def string, low, high T, help string, at func(*Settings) *T) Setting {
	return Setting{Name: name, Default: def, Kind: Number, Allowed: fmt.Sprintf("%d to %d", low, high), Help: help,
		set: func(s *Settings, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || T(n) < low || T(n) > high {
				return errNotAllowed
			}
			*at(s) = T(n)
			return nil
		}}
}

func port(name, def, help string, at func(*Settings) *int) Setting {
	row := number(name, def, 0, 65535, help, at)
	row.Allowed = "1 to 65535, or 0 for a free one"
	return row
}

func partitions(name, def, help string, at func(*Settings) *int) Setting {
	row := number(name, def, 0, token.MaxSize, help, at)
	row.Allowed = fmt.Sprintf("1, or 3·2^k up to %d (3, 6, 12, 24, ...), or 0 for 4 for each broker of the smallest 3·2^k that is enough",
		token.MaxSize)
	inRange := row.set
	row.set = func(s *Settings, v string) error {
		if err := inRange(s, v); err != nil || *at(s) == 0 {
			return err
		}
		if topology.CheckPartitions(*at(s)) != nil {
			return errNotAllowed
		}
		return nil
	}
	return row
}

func size[T ~int | ~int64](name, def string, low, high T, help string, at func(*Settings) *T) Setting {
	allowed := fmt.Sprintf("%s to %s", FormatBytes(int64(low)), FormatBytes(int64(high)))
	if int64(high) == maxBytes {
		allowed = "from " + FormatBytes(int64(low))
	}
	return Setting{Name: name, Default: def, Kind: Bytes, Allowed: allowed, Help: help,
		set: func(s *Settings, v string) error {
			n, err := ParseBytes(v)
			if err != nil || n < int64(low) || n > int64(high) {
				return errNotAllowed
			}
			*at(s) = T(n)
			return nil
		}}
}

func duration(name, def string, low, high time.Duration, help string, at func(*Settings) *time.Duration) Setting {
	return Setting{Name: name, Default: def, Kind: Duration, Help: help,
		Allowed: fmt.Sprintf("%s to %s", FormatDuration(low), FormatDuration(high)),
		set: func(s *Settings, v string) error {
			d, err := ParseDuration(v)
			if err != nil || d < low || d > high {
				return errNotAllowed
			}
			*at(s) = d
			return nil
		}}
}

func onOff(name, def, help string, at func(*Settings) *bool) Setting {
	return Setting{Name: name, Default: def, Kind: Switch, Allowed: "true or false", Help: help,
		set: func(s *Settings, v string) error {
			on, err := strconv.ParseBool(v)
			if err != nil {
				return errNotAllowed
			}
			*at(s) = on
			return nil
		}}
}

func choice(name, def string, words []string, help string, take func(*Settings, string)) Setting {
	allowed := strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	return Setting{Name: name, Default: def, Kind: Choice, Allowed: allowed, Help: help, set: func(s *Settings, v string) error {
		if !slices.Contains(words, v) {
			return errNotAllowed
		}
		take(s, v)
		return nil
	}}
}

// unbounded lets row take -1 too, for no bound.
func unbounded[T any](none T, row Setting, at func(*Settings) *T) Setting {
	row.Allowed += "; -1 for no bound"
	bounded := row.set
	row.set = func(s *Settings, v string) error {
		if v == "-1" {
			*at(s) = none
			return nil
		}
		return bounded(s, v)
	}
	return row
}

// automatic lets row take 0 too, for a value found otherwise.
func automatic(how string, row Setting) Setting {
	row.Allowed += "; " + how
	given := row.set
	row.set = func(s *Settings, v string) error {
		if v == "0" {
			return nil
		}
		return given(s, v)
	}
	return row
}
