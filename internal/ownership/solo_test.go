package ownership_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/ownership"
	"github.com/skeinmq/skein/internal/token"
)

// ledger is a store in memory that keeps only what was written with sync, like a disk whose machine lost power.
type ledger struct {
	kept map[string][]byte
	fail error
}

func (l *ledger) Get(key []byte) ([]byte, error) { return l.kept[string(key)], nil }

func (l *ledger) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, k := range slices.Sorted(maps.Keys(l.kept)) {
		if strings.HasPrefix(k, string(prefix)) {
			if err := fn([]byte(k), l.kept[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *ledger) Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error {
	if l.fail != nil {
		return l.fail
	}
	if sync {
		fn(func(k, v []byte) { l.kept[string(k)] = bytes.Clone(v) }, func(k []byte) { delete(l.kept, string(k)) })
	}
	return nil
}

func open(t *testing.T, l *ledger, disk uuid.UUID) *ownership.Solo {
	t.Helper()
	s, err := ownership.Open(ownership.Config{Ledger: l, Disk: disk, Run: uuid.New(), Now: func() time.Time { return time.UnixMilli(1700000000000) }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// O15, O16: each start leads a generation of its own, one version higher; O5, O3: it is durable before it is used.
func TestEachStartOpensTheNextGeneration(t *testing.T) {
	l := &ledger{kept: map[string][]byte{}}
	disk := uuid.New()
	first := open(t, l, disk)
	if v, err := first.Lead(0); v != 1 || err != nil {
		t.Fatalf("first start leads version %d, %v", v, err)
	}
	if g := first.Current(); g.Reason != "genesis" || len(g.Parents) != 0 || !g.Contains(12345) || !g.Contains(token.Min) {
		t.Fatalf("genesis is %+v", g)
	}
	second := open(t, l, disk)
	g := second.Current()
	if g.Version != 2 || g.Run == first.Current().Run || g.Reason != "restart" {
		t.Fatalf("second start leads %+v", g)
	}
	if len(g.Parents) != 1 || g.Parents[0] != first.Current().ID() {
		t.Fatalf("parents are %v, want the generation before", g.Parents)
	}
	if g.Replicas[0].Disk != disk {
		t.Fatalf("the generation names disk %v, want %v (O12)", g.Replicas[0].Disk, disk)
	}
	if second.ClusterID() != first.ClusterID() || len(second.Generations()) != 2 {
		t.Fatalf("cluster %v with %d generations", second.ClusterID(), len(second.Generations()))
	}
}

// O16: versions only grow along a log, whatever became of the ledger.
func TestTheVersionIsAboveWhatTheLogsHold(t *testing.T) {
	s, err := ownership.Open(ownership.Config{Ledger: &ledger{kept: map[string][]byte{}}, Above: 7})
	if err != nil {
		t.Fatal(err)
	}
	if v := s.Current().Version; v != 8 {
		t.Fatalf("leads version %d over logs at version 7", v)
	}
}

// O5: a start whose decision cannot be persisted does not lead.
func TestOpenFailsWhenTheDecisionIsNotDurable(t *testing.T) {
	cause := errors.New("disk on fire")
	_, err := ownership.Open(ownership.Config{Ledger: &ledger{fail: cause}})
	if !errors.Is(err, cause) {
		t.Fatalf("Open = %v, want the cause", err)
	}
}

func TestOpenRefusesAFolderOfALargerCluster(t *testing.T) {
	l := &ledger{kept: map[string][]byte{"g/gen/x": []byte(`{"clusterSize":3,"version":4,"start":"0","end":"0"}`)}}
	_, err := ownership.Open(ownership.Config{Ledger: l})
	if !errors.Is(err, ownership.ErrLargerCluster) {
		t.Fatalf("Open = %v, want ErrLargerCluster", err)
	}
}
