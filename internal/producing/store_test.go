package producing

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// disk is a store on a file system in memory that is opened again and again.
type disk struct {
	fs *memfs.FS
	kv *memfs.KV
}

func newDisk() *disk {
	fs := memfs.New(1, 1<<30)
	return &disk{fs, memfs.NewKV(fs)}
}

func (d *disk) open(t *testing.T) *data.Store {
	t.Helper()
	s, err := data.Open(data.Config{Dir: "/data", FS: d.fs, KV: d.kv, JournalBytes: 1 << 20, ReserveBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// read is every value of a log.
func read(t *testing.T, s *data.Store, log topology.LogID) []string {
	t.Helper()
	var values []string
	var buf []byte
	for from := topology.Offset(0); ; {
		res, b, err := s.Read(log, from, 1<<20, buf)
		if err != nil {
			t.Fatal(err)
		}
		if buf = b; len(res.Chunks) == 0 {
			return values
		}
		for _, c := range res.Chunks {
			var d recordbatch.Decoder
			records, err := d.Decode(c.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				values = append(values, string(r.Value))
			}
		}
		from = res.Next
	}
}

// The coalescer over the real store: what is answered is there after a power failure, and idempotency keys with it.
func TestWithTheStore(t *testing.T) { // P5, P7
	disk := newDisk()
	clock := newClock()
	log := topicA.Log(topicA.PartitionOf(token.OfString("k")))
	c := call{query: "?partitionKey=k", headers: []string{"Idempotency-Key: x", "Accept: application/json"}, body: "once"}
	var first string
	var want []string
	for run := range 4 {
		store := disk.open(t)
		d := newHTTPDoor(t, CoalescerConfig{Committer: store, Now: clock.now}, func(cfg *ProducerConfig) { cfg.Idempotency.Logs = store })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = store.Run(ctx)
		}()
		w := d.do(c)
		if run == 0 {
			first = w.Body.String()
			want = append(want, "once")
		}
		if w.Code != 200 || w.Body.String() != first || (w.Header().Get(headerDuplicate) == "true") != (run > 0) {
			t.Fatalf("run %d: %d %v %s; want the first answer %s", run, w.Code, w.Header(), w.Body, first)
		}
		for i := range 20 {
			value := fmt.Sprintf("%d/%d", run, i)
			if w := d.do(call{query: "?partitionKey=k", body: value}); w.Code != 200 {
				t.Fatalf("run %d: %d %s", run, w.Code, w.Body)
			}
			want = append(want, value)
		}
		if got := read(t, store, log); !slices.Equal(got, want) {
			t.Fatalf("run %d: the log holds %q, want %q", run, got, want)
		}
		clock.add(10 * time.Second)
		d.running.stop()
		if run == 1 { // the power fails
			cancel()
			<-done
			disk.fs.Crash()
			_ = store.Close()
			continue
		}
		cancel()
		<-done
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
