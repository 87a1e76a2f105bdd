package topology_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
	"pgregory.net/rapid"
)

func TestTopicNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "product-stock": true, "A.b_c-9": true, "_one": true, strings.Repeat("x", 249): true,
		"": false, ".": false, "..": false, "a/b": false, "a b": false, "é": false, "a\x00": false,
		strings.Repeat("x", 250): false, "__topics": false,
	} {
		err := topology.CheckTopicName(name, false)
		if (err == nil) != ok || err != nil && !errors.Is(err, topology.ErrInvalid) {
			t.Errorf("topic name %q: %v", name, err)
		}
	}
	if err := topology.CheckTopicName("__topics", true); err != nil {
		t.Errorf("reading an internal topic is allowed: %v", err)
	}
}

func TestKeysGroupsAndConsumers(t *testing.T) {
	for name, ok := range map[string]bool{
		"g1": true, "日本語": true, "a/b": true, strings.Repeat("x", 255): true,
		"": false, strings.Repeat("x", 256): false, "\xff": false, "a\n": false, "a\u0085": false,
	} {
		if err := topology.CheckName("group", name); (err == nil) != ok {
			t.Errorf("group %q: %v", name, err)
		}
	}
}

func TestPartitionCounts(t *testing.T) {
	for n, want := range map[int]int{1: 12, 2: 12, 3: 12, 4: 24, 6: 24, 7: 48, 12: 48, 5000: 12288} {
		if got := topology.DefaultPartitions(n); got != want || topology.CheckPartitions(got) != nil {
			t.Errorf("default for %d brokers is %d, want %d", n, got, want)
		}
	}
}

// A key never changes its partition, and the partition contains the token of its key.
func TestPartitionOfAToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		topic := topology.Topic{ID: uuid.New(), Partitions: 3 << rapid.IntRange(0, 12).Draw(t, "doublings")}
		tok := token.Token(rapid.Int64().Draw(t, "token"))
		p := topic.PartitionOf(tok)
		if start := topic.PartitionToken(p); start > tok {
			t.Fatalf("partition %d starts at %d, above %d", p, start, tok)
		}
		if int(p) < topic.Partitions-1 && topic.PartitionToken(p+1) <= tok {
			t.Fatalf("partition %d ends below %d", p, tok)
		}
	})
}

// T3: the companion log of a re-created topic is another one.
func TestPositionsLogFollowsTheTopicID(t *testing.T) {
	a, b := topology.LogID{Topic: uuid.New(), Partition: 3}, topology.LogID{Topic: uuid.New(), Partition: 3}
	if a.Positions() == b.Positions() || a.Positions().Partition != 3 || a.Positions().Topic == a.Topic {
		t.Fatalf("positions of %v and %v: %v, %v", a, b, a.Positions(), b.Positions())
	}
}
