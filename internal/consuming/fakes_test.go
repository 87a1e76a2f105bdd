package consuming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/token"
	"github.com/skeinmq/skein/internal/topology"
)

// fakeTopics is a catalogue.
type fakeTopics struct {
	mu   sync.Mutex
	byID map[uuid.UUID]topology.Topic
}

func (f *fakeTopics) create(name string, partitions int) topology.Topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := topology.Topic{Name: name, ID: uuid.New(), Partitions: partitions, State: topology.TopicActive}
	if f.byID == nil {
		f.byID = map[uuid.UUID]topology.Topic{}
	}
	f.byID[t.ID] = t
	return t
}

func (f *fakeTopics) delete(id uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byID, id)
}

func (f *fakeTopics) Lookup(name string) (topology.Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.byID {
		if t.Name == name {
			return t, true
		}
	}
	return topology.Topic{}, false
}

func (f *fakeTopics) ByID(id uuid.UUID) (topology.Topic, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.byID[id]
	return t, ok
}

func (f *fakeTopics) List() []topology.Topic {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.byID))
}

// fakeLogs is a store and an appender in memory. It survives restarts of the service, as a disk does.
type fakeLogs struct {
	mu        sync.Mutex
	logs      map[topology.LogID]*fakeLog
	listeners []func(topology.LogID, topology.Offset)
	now       func() time.Time
	version   topology.Version

	reads      int
	appends    int
	failRead   func(topology.LogID) error
	failAppend func(topology.LogID) error // before anything is written
	lost       func(topology.LogID) error // after it is written: the outcome is unknown
	hold       chan struct{}              // appends wait until it is closed
	crash      func(step string)          // panics where a crash is wanted
}

type fakeLog struct {
	start, end topology.Offset
	chunks     []data.Chunk
	damaged    []data.OffsetRange
}

func newFakeLogs() *fakeLogs {
	return &fakeLogs{logs: map[topology.LogID]*fakeLog{}, now: time.Now, version: 1}
}

// restart forgets who listens.
func (f *fakeLogs) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = nil
	f.version++
}

func (f *fakeLogs) step(name string) {
	if f.crash != nil {
		f.crash(name)
	}
}

// add appends one chunk and tells the listeners.
func (f *fakeLogs) add(id topology.LogID, records ...recordbatch.Record) topology.Offset {
	f.mu.Lock()
	l := f.logs[id]
	if l == nil {
		l = &fakeLog{}
		f.logs[id] = l
	}
	var b recordbatch.Builder
	b.Reset(f.now().UnixMilli())
	for i := range records {
		b.Append(&records[i])
	}
	batch := b.Seal(nil)
	base := l.end
	recordbatch.SetPosition(batch, base, f.version)
	h, err := recordbatch.Check(batch)
	if err != nil {
		panic(err)
	}
	l.chunks = append(l.chunks, data.Chunk{Header: h, Bytes: batch})
	l.end = h.Next()
	listeners, end := f.listeners, l.end
	f.mu.Unlock()
	for _, fn := range listeners {
		fn(id, end)
	}
	return base
}

func (f *fakeLogs) Append(ctx context.Context, id topology.LogID, _ token.Token, records []recordbatch.Record) (topology.Offset, error) {
	f.mu.Lock()
	f.appends++
	hold, fail, lost := f.hold, f.failAppend, f.lost
	f.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: %w", topology.ErrOutcomeUnknown, ctx.Err())
		}
	}
	if fail != nil {
		if err := fail(id); err != nil {
			return 0, err
		}
	}
	f.step("before append")
	base := f.add(id, records...)
	f.step("after append")
	if lost != nil {
		if err := lost(id); err != nil {
			return 0, err
		}
	}
	return base, nil
}

func (f *fakeLogs) Info(id topology.LogID) data.LogInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.logs[id]
	if l == nil {
		return data.LogInfo{}
	}
	return data.LogInfo{Start: l.start, End: l.end, HighWatermark: l.end, Version: f.version}
}

func (f *fakeLogs) Read(id topology.LogID, from topology.Offset, maxBytes int, buf []byte) (data.ReadResult, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.failRead != nil {
		if err := f.failRead(id); err != nil {
			return data.ReadResult{}, buf, err
		}
	}
	r := data.ReadResult{Next: from}
	l := f.logs[id]
	if l == nil {
		l = &fakeLog{}
	}
	if from < l.start || from > l.end {
		return r, buf, &data.OutOfRange{Start: l.start, End: l.end}
	}
	buf = buf[:0]
	for _, c := range l.chunks {
		if c.Header.Next() <= r.Next {
			continue
		}
		if len(r.Chunks) > 0 && len(buf)+len(c.Bytes) > maxBytes {
			break
		}
		if slices.ContainsFunc(l.damaged, func(d data.OffsetRange) bool { return d.From == c.Header.BaseOffset }) {
			r.Damaged = append(r.Damaged, data.OffsetRange{From: max(r.Next, c.Header.BaseOffset), To: c.Header.Next()})
			r.Next = c.Header.Next()
			continue
		}
		buf = append(buf, c.Bytes...)
		r.Chunks = append(r.Chunks, data.Chunk{Header: c.Header, Bytes: bytes.Clone(c.Bytes)})
		r.Next = c.Header.Next()
	}
	return r, buf, nil
}

func (f *fakeLogs) OffsetForTime(id topology.LogID, t time.Time) (topology.Offset, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.logs[id]
	if l == nil {
		return 0, nil
	}
	for _, c := range l.chunks {
		if c.Header.BaseTimestamp >= t.UnixMilli() && c.Header.Next() > l.start {
			return c.Header.BaseOffset, nil
		}
	}
	return l.end, nil
}

func (f *fakeLogs) SetStart(id topology.LogID, start topology.Offset) error {
	f.step("before start")
	defer f.step("after start")
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.logs[id]
	if l == nil || start > l.end {
		return &data.OutOfRange{}
	}
	l.start = max(l.start, start)
	l.chunks = slices.DeleteFunc(l.chunks, func(c data.Chunk) bool { return c.Header.Next() <= l.start })
	return nil
}

func (f *fakeLogs) OnAdvance(fn func(topology.LogID, topology.Offset)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners = append(f.listeners, fn)
}

// damage makes the chunk at base unreadable.
func (f *fakeLogs) damage(id topology.LogID, base topology.Offset) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.logs[id].chunks {
		if c.Header.BaseOffset == base {
			f.logs[id].damaged = append(f.logs[id].damaged, data.OffsetRange{From: base, To: c.Header.Next()})
		}
	}
}

func (f *fakeLogs) counts() (reads, appends int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads, f.appends
}

// fakeKV is a local database in memory. It survives restarts too, without what was not synced if forget is called.
type fakeKV struct {
	mu      sync.Mutex
	entries map[string][]byte
	before  map[string][]byte // at the last sync or forget
	updates int
	fail    error
	crash   func(step string)
}

func newFakeKV() *fakeKV {
	return &fakeKV{entries: map[string][]byte{}, before: map[string][]byte{}}
}

func (f *fakeKV) Get(key []byte) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.entries[string(key)]), f.fail
}

func (f *fakeKV) Scan(prefix []byte, fn func(key, value []byte) error) error {
	f.mu.Lock()
	if f.fail != nil {
		f.mu.Unlock()
		return f.fail
	}
	entries := maps.Clone(f.entries)
	f.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(entries)) {
		if bytes.HasPrefix([]byte(k), prefix) {
			if err := fn([]byte(k), entries[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *fakeKV) Update(sync bool, fn func(put func(key, value []byte), del func(key []byte))) error {
	if f.crash != nil {
		f.crash("before update")
		defer f.crash("after update")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return f.fail
	}
	f.updates++
	ops := 0
	next := maps.Clone(f.entries)
	fn(func(key, value []byte) { ops++; next[string(key)] = bytes.Clone(value) }, func(key []byte) { ops++; delete(next, string(key)) })
	if ops > 1000 {
		return errors.New("transaction is too large")
	}
	f.entries = next
	if sync {
		f.before = maps.Clone(next)
	}
	return nil
}

// forget drops what was not synced, as a power cut may.
func (f *fakeKV) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.entries = maps.Clone(f.before)
}

// fakeLead leads everything, unless told otherwise.
type fakeLead struct {
	mu      sync.Mutex
	version topology.Version
	err     error
}

func (f *fakeLead) Lead(token.Token) (topology.Version, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version, f.err
}

func (f *fakeLead) set(v topology.Version, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version, f.err = v, err
}

// appendFunc makes an Appender of a function; lost is asked whether the outcome of an append stays unknown.
func appendFunc(fn func(context.Context, appendArgs) (topology.Offset, error), lost func() bool) Appender {
	return funcAppender{fn, lost}
}

type funcAppender struct {
	fn   func(context.Context, appendArgs) (topology.Offset, error)
	lost func() bool
}

func (f funcAppender) Append(ctx context.Context, id topology.LogID, _ token.Token, records []recordbatch.Record) (topology.Offset, error) {
	return f.fn(ctx, appendArgs{id, records, f.lost()})
}
