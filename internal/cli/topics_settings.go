package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/spf13/cobra"
)

// setting is one setting of a topic: how it is named on the command line, in files and in the API.
type setting struct {
	flag   string // retention-bytes
	field  string // retentionBytes: of the API, and in files
	plain  string // retention: in files, with a unit; "" the field itself takes units
	bytes  bool   // a size; else a duration that the API has in ms
	limits bool   // may be "none", -1 in the API
	help   string
}

var topicSettings = []setting{
	{flag: "retention", field: "retentionMs", plain: "retention", limits: true, help: "drop records older than this: 12h, 7d, none"},
	{flag: "retention-bytes", field: "retentionBytes", bytes: true, limits: true, help: "keep at most this much in each partition: 10GiB, none"},
	{flag: "max-record-bytes", field: "maxRecordBytes", bytes: true, help: "largest record, key and headers included: 1MiB"},
	{flag: "segment-bytes", field: "segmentBytes", bytes: true, help: "begin a new file at this size: 128MiB"},
	{flag: "segment-age", field: "segmentMs", plain: "segmentAge", help: "begin a new file after this time: 24h"},
}

func settingByName(flag string) setting {
	for _, s := range topicSettings {
		if s.flag == flag {
			return s
		}
	}
	panic("cli: no topic setting is named " + flag)
}

// parse reads a value. nil is the broker's default.
func (s setting) parse(text string) (any, error) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "default":
		return nil, nil
	case "none", "-1", "unlimited":
		if s.limits {
			return int64(-1), nil
		}
		return nil, fmt.Errorf("%q is not allowed: it always has a value; give one, or default", text)
	}
	var n int64
	if s.bytes {
		size, err := parseBytes(text)
		if err != nil {
			return nil, err
		}
		n = size
	} else {
		d, err := parseDuration(text)
		if err != nil {
			return nil, err
		}
		n = d.Milliseconds()
	}
	if n < 1 {
		return nil, fmt.Errorf("%q is not allowed: give more than nothing", text)
	}
	return n, nil
}

// show writes a value as parse reads it.
func (s setting) show(n int64) string {
	switch {
	case n < 0:
		return "none"
	case s.bytes:
		return formatBytesFlag(n)
	}
	return formatDuration(time.Duration(n) * time.Millisecond)
}

// settingFlags are the flags of all topic settings on one command.
type settingFlags struct{ values map[string]*string }

func (f *settingFlags) register(c *cobra.Command, change bool) {
	f.values = map[string]*string{}
	for _, s := range topicSettings {
		help := s.help
		if change {
			help += ", default"
		}
		f.values[s.flag] = c.Flags().String(s.flag, "", help)
	}
}

// patch is the config that the given flags ask for.
func (f *settingFlags) patch(c *cobra.Command) (map[string]any, error) {
	patch := map[string]any{}
	for _, s := range topicSettings {
		if !c.Flags().Changed(s.flag) {
			continue
		}
		value, err := s.parse(*f.values[s.flag])
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", s.flag, err)
		}
		patch[s.field] = value
	}
	return patch, nil
}

// withoutNull is the config without what stays at its default, for a topic that is new.
func withoutNull(config map[string]any) map[string]any {
	out := map[string]any{}
	for name, value := range config {
		if value != nil {
			out[name] = value
		}
	}
	return out
}

// configValues are the numbers of a config by field.
func configValues(config any) map[string]int64 {
	b, err := json.Marshal(config)
	if err != nil {
		return nil
	}
	values := map[string]*int64{}
	if json.Unmarshal(b, &values) != nil {
		return nil
	}
	out := map[string]int64{}
	for field, value := range values {
		if value != nil {
			out[field] = *value
		}
	}
	return out
}

// configRows shows what holds for a topic, and what of it the topic sets itself.
func configRows(topic api.TopicInfo) [][2]string {
	own, all := configValues(topic.Config), configValues(effective(topic))
	var rows [][2]string
	for _, s := range topicSettings {
		text := "default"
		if value, ok := all[s.field]; ok {
			text = s.show(value)
			if _, set := own[s.field]; !set {
				text += "  (default)"
			}
		}
		rows = append(rows, [2]string{s.flag, text})
	}
	return rows
}
