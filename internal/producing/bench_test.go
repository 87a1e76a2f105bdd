package producing

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/recordbatch"
	"github.com/skeinmq/skein/internal/topology"
)

// nullStore takes rounds and keeps nothing. Each commit takes as long as a flush of a good disk.
type nullStore struct {
	ends  map[topology.LogID]topology.Offset
	flush time.Duration
	n     atomic.Int64 // chunks
	bytes atomic.Int64
}

func newNullStore() *nullStore {
	return &nullStore{ends: map[topology.LogID]topology.Offset{}, flush: 200 * time.Microsecond}
}

func (s *nullStore) Commit(round []*data.Append) {
	for _, a := range round {
		h, err := recordbatch.ParseHeader(a.Batch)
		if err != nil {
			panic(err)
		}
		a.Base = s.ends[a.Log]
		s.ends[a.Log] += topology.Offset(h.Records)
		s.bytes.Add(int64(len(a.Batch)))
	}
	s.n.Add(int64(len(round)))
	if s.flush > 0 {
		time.Sleep(s.flush)
	}
}

// payloads are JSON messages of about that size that differ and compress about twofold.
func payloads(size int) [][]byte {
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 400)
	for i := range words {
		words[i] = fmt.Sprintf("w%x", rng.Uint32N(1<<20))
	}
	list := make([][]byte, 512)
	for i := range list {
		b := fmt.Appendf(nil, `{"id":%d,"user":%d,"text":"`, rng.Uint64(), rng.Uint32())
		for len(b) < size-2 {
			if rng.IntN(5) == 0 {
				b = fmt.Appendf(b, "%x ", rng.Uint64())
			} else {
				b = append(append(b, words[rng.IntN(len(words))]...), ' ')
			}
		}
		list[i] = append(b[:max(size-2, 0)], '"', '}')
	}
	return list
}

var sizes = []struct {
	name string
	n    int
}{{"100B", 100}, {"1KiB", 1 << 10}}

// measure reports, besides the time, the CPU of the whole process and how many records make a chunk.
func measure(b *testing.B, store *nullStore, records int, run func()) {
	b.ReportAllocs()
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	b.ResetTimer()
	run()
	b.StopTimer()
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(records), "cpu-ns/record")
	b.ReportMetric(float64(records)/float64(max(1, store.n.Load())), "records/chunk")
	b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
}

func benchCoalescer(b *testing.B) (*running, *nullStore) {
	store := newNullStore()
	r := runCoalescer(b, CoalescerConfig{Committer: store})
	return r, store
}

// BenchmarkCoalescer puts keyed records from several goroutines, 256 in flight each.
func BenchmarkCoalescer(b *testing.B) {
	for _, size := range sizes {
		b.Run(size.name, func(b *testing.B) {
			r, store := benchCoalescer(b)
			values := payloads(size.n)
			b.SetBytes(int64(size.n))
			var next atomic.Int64
			pump := func(pb *testing.PB) {
				var flight [256]write
				var records [256][1]recordbatch.Record
				n := 0
				for pb.Next() {
					i := n % len(flight)
					w := &flight[i]
					if n++; n > len(flight) {
						<-w.span.done()
					}
					p := topology.Partition(next.Add(1) % 12)
					records[i][0] = recordbatch.Record{Timestamp: 1, Key: values[i][:8], Value: values[i]}
					*w = write{log: topicA.Log(p), start: topicA.PartitionToken(p), requests: 1, records: records[i][:], bytes: int64(size.n + recordOverhead)}
					if err := r.put(w); err != nil {
						b.Error(err)
						return
					}
				}
			}
			measure(b, store, b.N, func() {
				b.RunParallel(pump)
				r.stop()
			})
		})
	}
}

// BenchmarkBinary sends frames of one message over 4 connections, 256 in flight each.
func BenchmarkBinary(b *testing.B) {
	for _, keyed := range []bool{true, false} {
		for _, size := range sizes {
			name := "keyless"
			if keyed {
				name = "keyed"
			}
			b.Run(name+"/"+size.name, func(b *testing.B) { benchmarkBinary(b, size.n, keyed) })
		}
	}
}

func benchmarkBinary(b *testing.B, size int, keyed bool) {
	store := newNullStore()
	d := runBinary(b, CoalescerConfig{Committer: store}, nil)
	values := payloads(size)
	const conns, window = 4, 256
	b.SetBytes(int64(size))
	var clients [conns]*client
	for i := range clients {
		clients[i] = d.started(b)
		_ = clients[i].SetDeadline(time.Time{})
	}
	measure(b, store, b.N, func() {
		var wg sync.WaitGroup
		for i, c := range clients {
			n := b.N / conns
			if i == 0 {
				n += b.N % conns
			}
			wg.Go(func() { pumpBinary(b, c, values, n, window, keyed) })
		}
		wg.Wait()
	})
}

// pumpBinary keeps window frames in flight until n are answered.
func pumpBinary(b *testing.B, c *client, values [][]byte, n, window int, keyed bool) {
	free := make(chan int, window)
	for range window {
		free <- 1
	}
	keys := make([]string, 10000)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%07d", i)
	}
	go func() {
		out := make([]byte, 0, 64<<10)
		for i := 0; i < n; {
			<-free
			k := 1
			for more := true; more && i+k < n && k*len(values[0]) < 32<<10; {
				select {
				case <-free:
					k++
				default:
					more = false
				}
			}
			out = out[:0]
			for range k {
				key := 0
				if keyed {
					key = 8
				}
				v := values[i%len(values)]
				out = appendFrameHeader(out, frameHeader{version: 1, stream: uint16(i), op: opProduce, length: uint32(1 + key + 2 + 4 + len(v))})
				out = append(append(out, byte(key)), keys[i%len(keys)][:key]...)
				out = append(out, 1, 'a')
				out = append(binary.BigEndian.AppendUint32(out, uint32(len(v))), v...)
				i++
			}
			if _, err := c.Write(out); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	r := bufio.NewReaderSize(c, 64<<10)
	var h [frameHeaderSize]byte
	for range n {
		if _, err := io.ReadFull(r, h[:]); err != nil || opcode(h[4]) != opProduceResponse {
			b.Errorf("answer % x, %v", h, err)
			return
		}
		free <- 1
	}
}

// BenchmarkHTTP posts over 64 connections, HTTP/1.1, no pipelining.
func BenchmarkHTTP(b *testing.B) {
	for _, door := range []string{"nethttp", "fast"} {
		for _, c := range []struct {
			name  string
			size  int
			lines int
			keyed bool
		}{
			{"single/100B/keyed", 100, 1, true},
			{"single/1KiB/keyless", 1 << 10, 1, false},
			{"ndjson100/1KiB/keyless", 1 << 10, 100, false},
		} {
			b.Run(door+"/"+c.name, func(b *testing.B) { benchmarkHTTP(b, door == "fast", c.size, c.lines, c.keyed) })
		}
	}
}

func benchmarkHTTP(b *testing.B, fast bool, size, lines int, keyed bool) {
	store := newNullStore()
	d := newHTTPDoor(b, CoalescerConfig{Committer: store}, nil)
	addr := serveDoor(b, d, fast, nil).addr
	values := payloads(size)
	const conns = 64
	b.SetBytes(int64(size * lines))
	var left atomic.Int64
	left.Store(int64(b.N))
	measure(b, store, b.N*lines, func() {
		var wg sync.WaitGroup
		for i := range conns {
			wg.Go(func() { pumpHTTP(b, addr, values, lines, keyed, &left, i) })
		}
		wg.Wait()
	})
}

// pumpHTTP posts until none is left.
func pumpHTTP(b *testing.B, addr string, values [][]byte, lines int, keyed bool, left *atomic.Int64, seed int) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		return
	}
	defer func() { _ = nc.Close() }()
	var req []byte
	buf := make([]byte, 4096)
	for i := seed * 7; left.Add(-1) >= 0; i++ {
		req = append(req[:0], "POST /v1/topic/a/messages"...)
		if keyed {
			req = fmt.Appendf(req, "?partitionKey=k%d", i%100000)
		}
		n := lines - 1
		for j := range lines {
			n += len(values[(i+j)%len(values)])
		}
		kind := "json"
		if lines > 1 {
			kind = "x-ndjson"
		}
		req = fmt.Appendf(req, " HTTP/1.1\r\nHost: b\r\nContent-Type: application/%s\r\nContent-Length: %d\r\n\r\n", kind, n)
		for j := range lines {
			if j > 0 {
				req = append(req, '\n')
			}
			req = append(req, values[(i+j)%len(values)]...)
		}
		if _, err := nc.Write(req); err != nil {
			b.Error(err)
			return
		}
		n, err := nc.Read(buf)
		if err != nil || !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(buf[:n], []byte("OK")) {
			b.Errorf("answer %q, %v", buf[:n], err)
			return
		}
	}
}

func BenchmarkParse(b *testing.B) {
	values := payloads(1 << 10)
	lines := bytes.Join(values[:100], []byte("\n"))
	var records []recordbatch.Record
	var err error
	b.Run("ndjson", func(b *testing.B) {
		b.SetBytes(int64(len(lines)))
		b.ReportAllocs()
		for b.Loop() {
			if records, err = appendLines(records[:0], lines, recordbatch.Record{}, 1<<20); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("records+json", func(b *testing.B) {
		var body []byte
		for i, v := range values[:100] {
			body = fmt.Appendf(body, "{\"key\":\"k%d\",\"value\":%s,\"headers\":{\"a\":\"b\"},\"timestamp\":17}\n", i, v)
		}
		var d recordsDecoder
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			d.reset()
			if records, err = d.decode(records[:0], body, recordbatch.Record{}, 1<<20); err != nil {
				b.Fatal(err)
			}
		}
	})
}
