package data_test

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// TestManyLogs holds 5,000 topics with records in two partitions and positions in one against the bounds of an idle
// store: time to open, memory, open files. It makes 15,000 folders, so it runs only when SKEIN_SCALE is set.
func TestManyLogs(t *testing.T) {
	if os.Getenv("SKEIN_SCALE") == "" {
		t.Skip("SKEIN_SCALE is not set")
	}
	const topics = 5000
	r := &rig{t: t, now: time.Now(), kv: memfs.NewKV(memfs.New(1, 1<<30))}
	r.cfg = data.Config{Dir: t.TempDir(), KV: r.kv, ReserveBytes: 64 << 20}
	r.open()
	var round []*data.Append
	began := time.Now()
	for i := range topics {
		topic := topology.LogID{Topic: uuid.New()}
		other := topology.LogID{Topic: topic.Topic, Partition: 17}
		for _, log := range []topology.LogID{topic, other, topic.Positions()} {
			round = append(round, &data.Append{Log: log, Version: 1, Batch: r.batch("x", 3)})
		}
		if len(round) >= 300 || i == topics-1 {
			r.store.Commit(round)
			for _, a := range round {
				must(t, a.Err)
			}
			round = round[:0]
		}
	}
	t.Logf("made in %v", time.Since(began))
	began = time.Now()
	must(t, r.store.Checkpoint())
	t.Logf("checkpoint in %v", time.Since(began))
	open := func(how string) {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		r.open()
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		grown := int64(after.HeapAlloc) - int64(before.HeapAlloc)
		t.Logf("%s: opened in %v, %d logs, %d KiB of heap (%d bytes a log), %d files open", how, took, r.store.Report().Logs, grown>>10, grown/3/topics, r.store.OpenFiles())
		if took > 10*time.Second || grown > 32<<20 || r.store.OpenFiles() > 600 {
			t.Error("beyond the bounds")
		}
		began = time.Now()
		for _, topic := range r.store.Topics() {
			r.store.TopicInfo(topic)
		}
		t.Logf("%s: all described in %v, %d files open", how, time.Since(began), r.store.OpenFiles())
	}
	r.close()
	r.store = nil
	open("clean")
	r.store = nil
	open("unclean")
	began = time.Now()
	r.store.Retain()
	t.Logf("retention looked at all in %v", time.Since(began))
	r.close()
}
