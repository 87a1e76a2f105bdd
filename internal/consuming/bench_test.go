package consuming

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// endlessLogs serve the same chunk at all offsets, from memory, so that what is measured is this package.
type endlessLogs struct {
	*fakeLogs
	topic   topology.Topic
	chunk   data.Chunk
	records topology.Offset
}

func newEndlessLogs(topic topology.Topic, size int) *endlessLogs {
	var b recordbatch.Builder
	b.Reset(1_700_000_000_000)
	n := 0
	for ; b.Size() < 64<<10; n++ {
		v := fmt.Appendf(nil, `{"id":%d,"name":"somebody","words":"`, n)
		for i := 0; len(v) < size-2; i++ {
			v = fmt.Appendf(v, "word%d ", (n*31+i*17)%400)
		}
		v = append(v[:size-2], `"}`...)
		b.Append(&recordbatch.Record{Timestamp: 1_700_000_000_000, Value: v})
	}
	batch := b.Seal(nil)
	recordbatch.SetPosition(batch, 0, 1)
	h, err := recordbatch.Check(batch)
	if err != nil {
		panic(err)
	}
	return &endlessLogs{newFakeLogs(), topic, data.Chunk{Header: h, Bytes: batch}, topology.Offset(n)}
}

func (e *endlessLogs) Info(id topology.LogID) data.LogInfo {
	if id.Topic != e.topic.ID {
		return e.fakeLogs.Info(id)
	}
	return data.LogInfo{End: 1 << 40, HighWatermark: 1 << 40, Version: 1}
}

func (e *endlessLogs) Read(id topology.LogID, from topology.Offset, _ int, buf []byte) (data.ReadResult, []byte, error) {
	if id.Topic != e.topic.ID {
		return e.fakeLogs.Read(id, from, 1, buf)
	}
	base := from - from%e.records
	buf = append(buf[:0], e.chunk.Bytes...)
	recordbatch.SetPosition(buf, base, 1)
	h, err := recordbatch.Check(buf)
	return data.ReadResult{Chunks: []data.Chunk{{Header: h, Bytes: buf}}, Next: h.Next()}, buf, err
}

// nullWriter takes an answer and forgets it.
type nullWriter struct {
	header http.Header
	bytes  int64
}

func (w *nullWriter) Header() http.Header { return w.header }
func (w *nullWriter) WriteHeader(int)     {}
func (w *nullWriter) Flush()              {}
func (w *nullWriter) Write(b []byte) (int, error) {
	w.bytes += int64(len(b))
	return len(b), nil
}

// BenchmarkPoll is a poll of one consumer over 12 partitions with a backlog: one chunk of 64 KiB each. ns/record is what
// a record costs the broker, without disk and sockets.
func BenchmarkPoll(b *testing.B) {
	for _, size := range []int{100, 1024} {
		for _, c := range []struct{ name, accept, compression string }{
			{"binary", "", "none"}, {"binary-zstd", "", "zstd"}, {"json", "application/json", "none"}, {"records", recordsType, "none"},
		} {
			b.Run(fmt.Sprintf("%s/%d", c.name, size), func(b *testing.B) {
				topics := &fakeTopics{}
				topic := topics.create("t", 12)
				logs := newEndlessLogs(topic, size)
				w := &world{t: b, topics: topics, logs: logs.fakeLogs, kv: newFakeKV(), lead: &fakeLead{version: 1}}
				w.cfg = Config{Topics: w.topics, Logs: logs, Appender: logs, KV: w.kv, Leadership: w.lead, Compression: c.compression}
				w.open()
				w.register("c", "g", earliest, "t")
				req := httptest.NewRequest(http.MethodPost, "/v1/consumer/poll?consumerId=c", nil)
				req.Header.Set("Accept", c.accept)
				out := &nullWriter{header: http.Header{}}
				b.ReportAllocs()
				for b.Loop() {
					w.h.ServeHTTP(out, req)
				}
				tp := w.s.positions.of(topic)
				records := 0
				for p := range topology.Partition(12) {
					pos, _ := w.s.positions.position(tp, p, "g")
					records += int(pos.offset)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(1, records)), "ns/record")
				b.ReportMetric(float64(records)/float64(b.N), "records/op")
				b.SetBytes(out.bytes / int64(b.N))
			})
		}
	}
}

// BenchmarkAdvance is what a group costs the store for each round: with and without a poll that waits.
func BenchmarkAdvance(b *testing.B) {
	w := newWorld(b)
	topic := w.topics.create("t", 12)
	for g := range 10 {
		w.register(fmt.Sprint("c", g), fmt.Sprint("g", g), latest, "t")
	}
	b.ReportAllocs()
	for b.Loop() {
		w.s.advanced(topic.Log(3), 1)
	}
}

// BenchmarkEmptyPoll is a poll of a consumer of many topics that has nothing new.
func BenchmarkEmptyPoll(b *testing.B) {
	for _, topics := range []int{1, 100, 5000} {
		b.Run(fmt.Sprint(topics), func(b *testing.B) {
			w := newWorld(b)
			names := make([]string, topics)
			for i := range names {
				names[i] = fmt.Sprint("topic-", i)
				w.topics.create(names[i], 24)
			}
			w.register("c", "g", latest, names...)
			req := httptest.NewRequest(http.MethodPost, "/v1/consumer/poll?consumerId=c", nil)
			out := &nullWriter{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				w.h.ServeHTTP(out, req)
			}
		})
	}
}
