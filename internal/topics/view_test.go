package topics

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func FuzzDecodeTopic(f *testing.F) {
	f.Add([]byte(`{"name":"a","id":"3c5b8a52-0d1c-5a0e-8f57-0b6c8f2f9a01","partitions":12,"config":{},"state":"active"}`))
	f.Add([]byte(`{"name":"a","id":"3c5b8a52-0d1c-5a0e-8f57-0b6c8f2f9a01","partitions":3,"config":{"retentionMs":5},"state":"deleted"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, value []byte) {
		topic, err := decodeTopic(value)
		if err != nil {
			return
		}
		b, err := json.Marshal(topic)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeTopic(b)
		if err != nil || again.ID != topic.ID || again.Name != topic.Name || !again.Config.Equal(topic.Config) {
			t.Fatalf("%s became %s: %v", value, b, err)
		}
	})
}

// The view does not depend on how often a record is applied: a start applies again what the view holds already.
func TestJudgeIsIdempotent(t *testing.T) {
	ids := []uuid.UUID{uuid.New(), uuid.New(), uuid.New()}
	rapid.Check(t, func(t *rapid.T) {
		var live *topology.Topic
		dead := map[uuid.UUID]bool{}
		apply := func(next topology.Topic) {
			switch judge(live, dead[next.ID], next) {
			case store:
				live = &next
			case remove:
				live, dead[next.ID] = nil, true
			case bury:
				dead[next.ID] = true
			}
		}
		records := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) topology.Topic {
			return topology.Topic{
				ID:    ids[rapid.IntRange(0, 2).Draw(t, "id")],
				State: rapid.SampledFrom([]topology.TopicState{topology.TopicActive, topology.TopicDeleted}).Draw(t, "state"),
			}
		}), 0, 12).Draw(t, "records")
		for _, r := range records {
			apply(r)
			before := live
			apply(r)
			if (before == nil) != (live == nil) || before != nil && before.ID != live.ID {
				t.Fatalf("applied twice: %+v, once: %+v", live, before)
			}
			if live != nil && dead[live.ID] {
				t.Fatalf("the deleted id %s lives (T3)", live.ID)
			}
		}
	})
}
