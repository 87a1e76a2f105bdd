package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// Change is one field of a patch. As JSON, a field that is absent is not Set, null is Set with a nil Value (back to the
// default), and anything else is Set with that Value.
type Change[T any] struct {
	Set   bool
	Value *T
}

// parse reads a field that is present. The error says what is allowed.
func (c *Change[T]) parse(name string, b json.RawMessage) error {
	c.Set, c.Value = true, nil
	if err := json.Unmarshal(b, &c.Value); err != nil {
		return fmt.Errorf("config.%s is %.40s; allowed is a whole number, or null for the default", name, b)
	}
	return nil
}

// MarshalJSON writes the value. Leaving out a field that is not Set is up to the struct around it (omitzero).
func (c Change[T]) MarshalJSON() ([]byte, error) { return json.Marshal(c.Value) }

func (c Change[T]) apply(to **T) {
	if c.Set {
		*to = c.Value
	}
}

// TopicPatch changes settings of a topic: those that are Set, and no others.
type TopicPatch struct {
	RetentionMS    Change[int64] `json:"retentionMs,omitzero"`
	RetentionBytes Change[int64] `json:"retentionBytes,omitzero"`
	MaxRecordBytes Change[int]   `json:"maxRecordBytes,omitzero"`
	SegmentBytes   Change[int64] `json:"segmentBytes,omitzero"`
	SegmentMS      Change[int64] `json:"segmentMs,omitzero"`
}

// UnmarshalJSON reads a JSON object. Errors name the setting that is wrong or unknown and what is allowed.
func (p *TopicPatch) UnmarshalJSON(b []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		return errors.New("config is no JSON object")
	}
	parsers := map[string]func(string, json.RawMessage) error{
		"retentionMs":    p.RetentionMS.parse,
		"retentionBytes": p.RetentionBytes.parse,
		"maxRecordBytes": p.MaxRecordBytes.parse,
		"segmentBytes":   p.SegmentBytes.parse,
		"segmentMs":      p.SegmentMS.parse,
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		parse := parsers[name]
		if parse == nil {
			return fmt.Errorf("config has the unknown setting %q; allowed are %s", name, strings.Join(slices.Sorted(maps.Keys(parsers)), ", "))
		}
		if err := parse(name, fields[name]); err != nil {
			return err
		}
	}
	return nil
}

// Apply is c with the changes of p. Neither shares memory with the result that anybody may write to: values of settings
// are never changed in place.
func (p TopicPatch) Apply(c TopicConfig) TopicConfig {
	p.RetentionMS.apply(&c.RetentionMS)
	p.RetentionBytes.apply(&c.RetentionBytes)
	p.MaxRecordBytes.apply(&c.MaxRecordBytes)
	p.SegmentBytes.apply(&c.SegmentBytes)
	p.SegmentMS.apply(&c.SegmentMS)
	return c
}

// Over is c where it says something, and defaults where it does not.
func (c TopicConfig) Over(defaults TopicConfig) TopicConfig {
	orDefault(&c.RetentionMS, defaults.RetentionMS)
	orDefault(&c.RetentionBytes, defaults.RetentionBytes)
	orDefault(&c.MaxRecordBytes, defaults.MaxRecordBytes)
	orDefault(&c.SegmentBytes, defaults.SegmentBytes)
	orDefault(&c.SegmentMS, defaults.SegmentMS)
	return c
}

func orDefault[T any](v **T, def *T) {
	if *v == nil {
		*v = def
	}
}

// Equal tells whether c and o say the same.
func (c TopicConfig) Equal(o TopicConfig) bool {
	return same(c.RetentionMS, o.RetentionMS) && same(c.RetentionBytes, o.RetentionBytes) &&
		same(c.MaxRecordBytes, o.MaxRecordBytes) && same(c.SegmentBytes, o.SegmentBytes) && same(c.SegmentMS, o.SegmentMS)
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// Bounds of the settings of a topic.
const (
	MinSegmentBytes = 64 << 10
	MaxSegmentBytes = 1 << 40
	MinSegmentMS    = 1000
	maxMS           = math.MaxInt64 / int64(time.Millisecond)
)

// CheckTopicConfig refuses values of settings that cannot work, with ErrInvalid and a text that names the setting, the
// value and what is allowed. maxRecordBytes bounds the setting of that name.
func CheckTopicConfig(c TopicConfig, maxRecordBytes int) error {
	for _, s := range []struct {
		name     string
		value    *int64
		min, max int64
		none     bool // -1 stands for no bound
	}{
		{"retentionMs", c.RetentionMS, 1, maxMS, true},
		{"retentionBytes", c.RetentionBytes, 1, math.MaxInt64, true},
		{"maxRecordBytes", widen(c.MaxRecordBytes), 1, int64(maxRecordBytes), false},
		{"segmentBytes", c.SegmentBytes, MinSegmentBytes, MaxSegmentBytes, false},
		{"segmentMs", c.SegmentMS, MinSegmentMS, maxMS, false},
	} {
		if s.value == nil || s.none && *s.value == -1 || *s.value >= s.min && *s.value <= s.max {
			continue
		}
		none := ""
		if s.none {
			none = "-1 (no bound) and "
		}
		return fmt.Errorf("%w config: %s is %d; allowed are %s%d to %d", ErrInvalid, s.name, *s.value, none, s.min, s.max)
	}
	return nil
}

func widen(v *int) *int64 {
	if v == nil {
		return nil
	}
	w := int64(*v)
	return &w
}
