package consuming

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// storeAppender writes internal logs to a store, one call at a time.
type storeAppender struct {
	mu    sync.Mutex
	store *data.Store
	lead  *fakeLead
}

func (a *storeAppender) Append(_ context.Context, id topology.LogID, _ token.Token, records []recordbatch.Record) (topology.Offset, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b recordbatch.Builder
	b.Reset(1)
	for i := range records {
		b.Append(&records[i])
	}
	v, err := a.lead.Lead(token.Min)
	if err != nil {
		return 0, err
	}
	round := []*data.Append{{Log: id, Version: v, Batch: b.Seal(nil), Internal: true}}
	a.store.Commit(round)
	return round[0].Base, round[0].Err
}

// storeWorld is a world on a real store, over a file system that forgets what was not flushed.
type storeWorld struct {
	*world
	fs    *memfs.FS
	kv    *memfs.KV
	store *data.Store
}

func newStoreWorld(t *testing.T, seed uint64) *storeWorld {
	w := &storeWorld{world: &world{t: t, topics: &fakeTopics{}, lead: &fakeLead{}}, fs: memfs.New(seed, 64<<20)}
	w.kv = memfs.NewKV(w.fs)
	w.start()
	return w
}

// start opens the store and a service on what the disk holds.
func (w *storeWorld) start() {
	w.t.Helper()
	store, err := data.Open(data.Config{
		Dir: "/data", FS: w.fs, KV: w.kv, SegmentBytes: 4 << 10, JournalBytes: 64 << 10, ReserveBytes: 64 << 10,
		Now: func() time.Time { return time.UnixMilli(1_700_000_000_000) },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.store = store
	w.lead.version++
	w.cfg = Config{
		Topics: w.topics, Logs: store, Appender: &storeAppender{store: store, lead: w.lead}, KV: w.kv, Leadership: w.lead, SnapshotAfter: 12,
	}
	w.open()
}

// P5 and section 7 of docs/design.md, together: whenever the power goes, a commit that was answered with 204 is there
// afterwards, no position passes what was delivered, and everything is delivered in the end.
func TestCommitsSurvivePowerCuts(t *testing.T) {
	seeds := 40
	if testing.Short() {
		seeds = 5
	}
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newStoreWorld(t, seed)
		topic := w.topics.create("t", 1)
		stored, delivered, acked := 0, 0, topology.Offset(0)
		for range 12 {
			w.fs.CrashAt(20 + r.IntN(400))
			for !w.fs.Crashed() {
				stored += w.append(topic, stored, 1+r.IntN(3))
				w.step(r, &delivered, &acked)
			}
			w.fs.Crash()
			_ = w.store.Close()
			w.start()
			if end := int(w.store.Info(topic.Log(0)).End); end < stored {
				t.Fatalf("seed %d: the log ends at %d, %d were acknowledged", seed, end, stored)
			} else {
				stored = end
			}
			if at := w.committed("g", topic, 0); at < acked || int(at) > delivered {
				t.Fatalf("seed %d: committed at %d, acknowledged %d, delivered %d", seed, at, acked, delivered)
			}
		}
		w.register("c", "g", latest, "t")
		for r := w.poll("c"); r.status == 200; r = w.poll("c") {
			w.take(r, &delivered)
		}
		if delivered != stored {
			t.Errorf("seed %d: %d of %d records were delivered", seed, delivered, stored)
		}
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// append stores n records whose values are their offsets, and returns how many are acknowledged.
func (w *storeWorld) append(t topology.Topic, from, n int) int {
	var b recordbatch.Builder
	b.Reset(1)
	for i := range n {
		b.Append(&recordbatch.Record{Value: []byte(strconv.Itoa(from + i))})
	}
	round := []*data.Append{{Log: t.Log(0), Version: w.lead.version, Batch: b.Seal(nil)}}
	w.store.Commit(round)
	if round[0].Err != nil {
		return 0
	}
	return n
}

// step polls or commits, as a consumer does that registers again when it is unknown.
func (w *storeWorld) step(r *rand.Rand, delivered *int, acked *topology.Offset) {
	if status := w.do(context.Background(), "PUT", "/v1/consumer/register?consumerId=c&group=g&topic=t&onNewGroup="+earliest, "", "").status; status != 200 {
		return
	}
	got := w.poll("c", fmt.Sprint("maxRecords=", 1+r.IntN(5)))
	end := topology.Offset(0)
	if got.status == 200 {
		end = w.take(got, delivered)
	}
	switch r.IntN(4) {
	case 0:
		if w.do(context.Background(), "POST", "/v1/consumer/commit?consumerId=c", "", "").status == 204 {
			*acked = max(*acked, end)
		}
	case 1:
		_ = w.s.positions.flushDirty(context.Background())
		w.s.positions.snapshots(context.Background())
	case 2:
		_ = w.s.positions.save()
		_ = w.store.Checkpoint()
	}
}

// take checks that an answer goes on where a former one ended, or before, and returns where it ends.
func (w *storeWorld) take(r reply, delivered *int) (end topology.Offset) {
	w.t.Helper()
	for _, c := range r.chunks(w.t) {
		start, err := strconv.Atoi(c.StartOffset)
		if err != nil || start > *delivered {
			w.t.Fatalf("delivered from %s, before that up to %d: %v", c.StartOffset, *delivered, err)
		}
		for i, v := range c.Values {
			if string(v) != strconv.Itoa(start+i) {
				w.t.Fatalf("offset %d holds %s", start+i, v)
			}
		}
		end = topology.Offset(start + len(c.Values))
		*delivered = max(*delivered, int(end))
	}
	return end
}
