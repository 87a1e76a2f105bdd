package data_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
)

// BenchmarkFlushRound compares ways to make a round with chunks for 24 logs durable: the measurement of
// docs/adr/0001-commit-journal.md. Set SKEIN_BENCH_DIR to measure another disk than that of the temporary folder.
func BenchmarkFlushRound(b *testing.B) {
	const logs = 24
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10} {
		chunk := make([]byte, size)
		for i := range chunk {
			chunk[i] = byte(i * 7)
		}
		ways := []struct {
			name string
			run  func(b *testing.B, r *flushRig)
		}{
			{"each", func(b *testing.B, r *flushRig) {
				r.write(b, chunk)
				for _, f := range r.logs {
					must(b, f.Sync())
				}
			}},
			{"parallel4", func(b *testing.B, r *flushRig) { r.write(b, chunk); r.parallel(b, 4) }},
			{"parallel24", func(b *testing.B, r *flushRig) { r.write(b, chunk); r.parallel(b, 24) }},
			{"syncfs", func(b *testing.B, r *flushRig) { r.write(b, chunk); must(b, data.OS{}.SyncAll(r.dir)) }},
			{"journal", func(b *testing.B, r *flushRig) { r.write(b, chunk); r.journaled(b, chunk) }},
		}
		for _, way := range ways {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, way.name), func(b *testing.B) {
				r := newFlushRig(b, logs)
				b.SetBytes(int64(logs * size))
				var times []time.Duration
				for b.Loop() {
					began := time.Now()
					way.run(b, r)
					times = append(times, time.Since(began))
				}
				reportTimes(b, times)
			})
		}
	}
}

func must(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// flushRig are the files of a round: segments that grow, and a journal of two files that are filled in turn; when one is
// full the segments are flushed in the background, as a checkpoint does.
type flushRig struct {
	dir     string
	logs    []data.File
	at      int64
	journal [2]data.File
	active  int
	pos     int64
	bufs    [][]byte
	flushed chan error
}

const benchJournal = 32 << 20

func newFlushRig(b *testing.B, logs int) *flushRig {
	dir := os.Getenv("SKEIN_BENCH_DIR")
	if dir == "" {
		dir = b.TempDir()
	} else {
		var err error
		dir, err = os.MkdirTemp(dir, "flush")
		must(b, err)
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	r := &flushRig{dir: dir, flushed: make(chan error, 1)}
	open := func(name string) data.File {
		f, err := data.OS{}.Open(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE)
		must(b, err)
		b.Cleanup(func() { _ = f.Close() })
		return f
	}
	for i := range logs {
		r.logs = append(r.logs, open(fmt.Sprint(i, ".log")))
	}
	for i := range r.journal {
		r.journal[i] = open(fmt.Sprint(i, ".journal"))
		must(b, r.journal[i].Allocate(benchJournal))
		// As after the first time round: the blocks have been written.
		zeros := make([]byte, 1<<20)
		for at := int64(0); at < benchJournal; at += int64(len(zeros)) {
			must(b, r.journal[i].WriteV([][]byte{zeros}, at))
		}
		must(b, r.journal[i].Sync())
	}
	must(b, data.OS{}.SyncDir(dir))
	r.flushed <- nil
	return r
}

func (r *flushRig) write(b *testing.B, chunk []byte) {
	for _, f := range r.logs {
		must(b, f.WriteV([][]byte{chunk}, r.at))
	}
	r.at += int64(len(chunk))
}

func (r *flushRig) parallel(b *testing.B, workers int) {
	var wg sync.WaitGroup
	next := make(chan data.File, len(r.logs))
	for _, f := range r.logs {
		next <- f
	}
	close(next)
	for range workers {
		wg.Go(func() {
			for f := range next {
				if err := f.Sync(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func (r *flushRig) journaled(b *testing.B, chunk []byte) {
	r.bufs = r.bufs[:0]
	for range r.logs {
		r.bufs = append(r.bufs, chunk)
	}
	n := int64(len(chunk) * len(r.logs))
	if r.pos+n > benchJournal {
		must(b, <-r.flushed)
		go func() {
			for _, f := range r.logs {
				if err := f.Sync(); err != nil {
					r.flushed <- err
					return
				}
			}
			r.flushed <- nil
		}()
		r.active, r.pos = 1-r.active, 0
	}
	must(b, r.journal[r.active].WriteSync(r.bufs, r.pos))
	r.pos += n
}
