package topics_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topics"
	"github.com/skeinmq/skein/internal/topology"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is what outlives a catalogue: log, localdb and data of topics. fault, when set, is asked before and after each
// step ("append", "appended", "update", "updated", "drop"); an error it returns is that of the step.
type disk struct {
	mu      sync.Mutex
	logs    map[topology.LogID][][]byte // batches
	starts  map[topology.LogID]topology.Offset
	damaged map[topology.LogID]int // index of a batch that does not pass its checksum
	late    []lateBatch            // written, but not readable yet
	kv      map[string][]byte
	undo    []map[string][]byte // state before each update that is not durable, oldest first
	data    map[uuid.UUID]bool
	fault   func(step string) error
	appends int
}

type lateBatch struct {
	log   topology.LogID
	batch []byte
}

func newDisk() *disk {
	return &disk{
		logs: map[topology.LogID][][]byte{}, starts: map[topology.LogID]topology.Offset{}, damaged: map[topology.LogID]int{},
		kv: map[string][]byte{}, data: map[uuid.UUID]bool{},
	}
}

// breakAt sets fault, which the steps that run already do not see.
func (d *disk) breakAt(fault func(step string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

func (d *disk) fail(step string) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(step)
}

func (d *disk) end(log topology.LogID) topology.Offset {
	batches := d.logs[log]
	if len(batches) == 0 {
		return 0
	}
	h, err := recordbatch.ParseHeader(batches[len(batches)-1])
	if err != nil {
		panic(err)
	}
	return h.Next()
}

// Info implements topics.LogReader.
func (d *disk) Info(log topology.LogID) data.LogInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	end := d.end(log)
	return data.LogInfo{Start: d.starts[log], End: end, HighWatermark: end}
}

// Read implements topics.LogReader, two batches at a time.
func (d *disk) Read(log topology.LogID, from topology.Offset, _ int, buf []byte) (data.ReadResult, []byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	res := data.ReadResult{Next: from}
	if err := d.fail("read"); err != nil {
		return res, buf, err
	}
	for i, b := range d.logs[log] {
		h, err := recordbatch.Check(b)
		if err != nil {
			panic(err)
		}
		if h.Next() <= from || h.Next() <= d.starts[log] {
			continue
		}
		if bad, ok := d.damaged[log]; ok && bad == i {
			res.Damaged = append(res.Damaged, data.OffsetRange{From: h.BaseOffset, To: h.Next()})
		} else {
			res.Chunks = append(res.Chunks, data.Chunk{Header: h, Bytes: b})
		}
		res.Next = h.Next()
		if len(res.Chunks) == 2 {
			break
		}
	}
	return res, buf, nil
}

// errLate makes an append whose outcome is unknown and that becomes readable only when the next one is.
var errLate = errors.New("late")

// Append implements topics.Appender.
func (d *disk) Append(ctx context.Context, log topology.LogID, start token.Token, records []recordbatch.Record) (topology.Offset, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if log.Topic != topology.TopicsTopic.ID || start != topology.TopicsTopic.PartitionToken(log.Partition) {
		panic("append to a wrong log")
	}
	if err := d.fail("append"); errors.Is(err, errLate) {
		d.late = append(d.late, lateBatch{log, seal(records)})
		return 0, topology.ErrOutcomeUnknown
	} else if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	d.settle()
	base := d.add(log, seal(records))
	d.appends++
	return base, d.fail("appended")
}

// settle makes late batches readable.
func (d *disk) settle() {
	for _, l := range d.late {
		d.add(l.log, l.batch)
	}
	d.late = nil
}

func (d *disk) add(log topology.LogID, batch []byte) topology.Offset {
	base := d.end(log)
	recordbatch.SetPosition(batch, base, 1)
	d.logs[log] = append(d.logs[log], batch)
	return base
}

func seal(records []recordbatch.Record) []byte {
	var b recordbatch.Builder
	b.Reset(1)
	for i := range records {
		b.Append(&records[i])
	}
	return b.Seal(nil)
}

// Get implements topics.KV.
func (d *disk) Get(key []byte) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Clone(d.kv[string(key)]), nil
}

// Scan implements topics.KV.
func (d *disk) Scan(prefix []byte, fn func(key, value []byte) error) error {
	d.mu.Lock()
	all := maps.Clone(d.kv)
	d.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if !strings.HasPrefix(k, string(prefix)) {
			continue
		}
		if err := fn([]byte(k), all[k]); err != nil {
			return err
		}
	}
	return nil
}

// Update implements topics.KV.
func (d *disk) Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fail("update"); err != nil {
		return err
	}
	d.undo = append(d.undo, maps.Clone(d.kv))
	fn(func(k, v []byte) { d.kv[string(k)] = bytes.Clone(v) }, func(k []byte) { delete(d.kv, string(k)) })
	if sync {
		d.undo = nil
	}
	return d.fail("updated")
}

// crash forgets the last n updates of localdb that were not made durable.
func (d *disk) crash(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n = min(n, len(d.undo)); n > 0 {
		d.kv = d.undo[len(d.undo)-n]
	}
	d.undo = nil
	d.settle()
}

// DropTopic implements topics.Data.
func (d *disk) DropTopic(id uuid.UUID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.fail("drop"); err != nil {
		return err
	}
	delete(d.data, id)
	return nil
}

// Topics implements topics.Data.
func (d *disk) Topics() []uuid.UUID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.data))
}

// produce makes data of a topic, as a door would.
func (d *disk) produce(id uuid.UUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.data[id] = true
	d.data[topology.PositionsTopic(id)] = true
}

func (d *disk) config() topics.Config {
	return topics.Config{Log: d, Appender: d, KV: d, Data: d, AutoCreate: true}
}

// open loads a catalogue over d.
func open(t interface {
	Helper()
	Fatal(...any)
}, d *disk, change ...func(*topics.Config)) *topics.Catalogue {
	t.Helper()
	cfg := d.config()
	for _, fn := range change {
		fn(&cfg)
	}
	c, err := topics.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Load(context.Background()); err != nil {
		t.Fatal(err)
	}
	return c
}

func bg(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}
