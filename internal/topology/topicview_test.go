package topology_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func ptr[T any](v T) *T { return &v }

func TestTopicPatch(t *testing.T) {
	before := topology.TopicConfig{RetentionMS: ptr[int64](5), SegmentBytes: ptr[int64](1 << 20)}
	var p topology.TopicPatch
	if err := json.Unmarshal([]byte(`{"retentionMs":null,"retentionBytes":7,"maxRecordBytes":9}`), &p); err != nil {
		t.Fatal(err)
	}
	want := topology.TopicConfig{RetentionBytes: ptr[int64](7), MaxRecordBytes: ptr(9), SegmentBytes: ptr[int64](1 << 20)}
	if got := p.Apply(before); !got.Equal(want) {
		t.Errorf("patched to %+v", got)
	}
	if *before.RetentionMS != 5 {
		t.Error("the patch changed what it was applied to")
	}
	for body, text := range map[string]string{
		`{"retentionMs":"long"}`: `config.retentionMs is "long"; allowed is a whole number`,
		`{"segmentMs":1.5}`:      "config.segmentMs is 1.5",
		`{"retention":1}`:        `unknown setting "retention"; allowed are maxRecordBytes, retentionBytes, retentionMs, segmentBytes, segmentMs`,
		`[1]`:                    "no JSON object",
	} {
		if err := json.Unmarshal([]byte(body), &p); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", body, err, text)
		}
	}
}

// A patch that went over JSON changes the same.
func TestTopicPatchRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		change := func(name string) topology.Change[int64] {
			c := topology.Change[int64]{Set: rapid.Bool().Draw(t, name+" set")}
			if c.Set && rapid.Bool().Draw(t, name+" valued") {
				c.Value = ptr(rapid.Int64().Draw(t, name))
			}
			return c
		}
		p := topology.TopicPatch{RetentionMS: change("a"), RetentionBytes: change("b"), SegmentBytes: change("c"), SegmentMS: change("d")}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var q topology.TopicPatch
		if err := json.Unmarshal(b, &q); err != nil {
			t.Fatal(err)
		}
		base := topology.TopicConfig{RetentionMS: ptr[int64](1), SegmentBytes: ptr[int64](2)}
		if !p.Apply(base).Equal(q.Apply(base)) {
			t.Fatalf("%s: %+v and %+v", b, p, q)
		}
	})
}

func TestTopicConfigOver(t *testing.T) {
	c := topology.TopicConfig{RetentionMS: ptr[int64](1)}
	got := c.Over(topology.TopicConfig{RetentionMS: ptr[int64](9), MaxRecordBytes: ptr(8)})
	if !got.Equal(topology.TopicConfig{RetentionMS: ptr[int64](1), MaxRecordBytes: ptr(8)}) {
		t.Errorf("%+v", got)
	}
}

func TestCheckTopicConfig(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    topology.TopicConfig
		text string // "" is allowed
	}{
		{"nothing", topology.TopicConfig{}, ""},
		{"no bounds", topology.TopicConfig{RetentionMS: ptr[int64](-1), RetentionBytes: ptr[int64](-1)}, ""},
		{"smallest", topology.TopicConfig{RetentionMS: ptr[int64](1), MaxRecordBytes: ptr(1), SegmentBytes: ptr[int64](64 << 10), SegmentMS: ptr[int64](1000)}, ""},
		{"no retention at all", topology.TopicConfig{RetentionMS: ptr[int64](0)}, "retentionMs is 0; allowed are -1 (no bound) and 1 to 9223372036854"},
		{"past a duration", topology.TopicConfig{RetentionMS: ptr[int64](1 << 62)}, "retentionMs"},
		{"negative bytes", topology.TopicConfig{RetentionBytes: ptr[int64](-2)}, "retentionBytes is -2"},
		{"empty records only", topology.TopicConfig{MaxRecordBytes: ptr(0)}, "maxRecordBytes is 0; allowed are 1 to 1000"},
		{"records above the limit", topology.TopicConfig{MaxRecordBytes: ptr(1001)}, "maxRecordBytes is 1001"},
		{"tiny segments", topology.TopicConfig{SegmentBytes: ptr[int64](1)}, "segmentBytes is 1"},
		{"unbounded segments", topology.TopicConfig{SegmentMS: ptr[int64](-1)}, "segmentMs is -1"},
	} {
		err := topology.CheckTopicConfig(tc.c, 1000)
		if tc.text == "" {
			if err != nil {
				t.Errorf("%s: %v", tc.name, err)
			}
			continue
		}
		if !errors.Is(err, topology.ErrInvalid) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.text)
		}
	}
}
