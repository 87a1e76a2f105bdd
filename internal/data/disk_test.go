package data_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// TestOnDisk runs on the file system of the machine: rounds with many chunks, large rounds, a stop that is not clean, a
// folder that is removed.
func TestOnDisk(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		t.Run(flush.String(), func(t *testing.T) {
			r := &rig{t: t, now: time.Now(), kv: memfs.NewKV(memfs.New(1, 1<<30))}
			r.cfg = data.Config{Dir: filepath.Join(t.TempDir(), "data"), KV: r.kv, Flush: flush, JournalBytes: 256 << 10, SegmentBytes: 128 << 10, ReserveBytes: 1 << 20}
			r.open()
			want := map[topology.LogID]map[topology.Offset]string{}
			for i := range 12 {
				var round []*data.Append
				n := 20
				if i == 3 {
					n = 1300 // more buffers than one system call takes
				}
				for k := range n {
					records := 1
					if i == 5 {
						records = 400 // larger than the journal takes
					}
					round = append(round, &data.Append{Log: logID(k % 5), Version: 1, Batch: r.batch(fmt.Sprintf("v%d-%d", i, k), records)})
				}
				r.store.Commit(round)
				for k, a := range round {
					must(t, a.Err)
					h := len(want[a.Log])
					if want[a.Log] == nil {
						want[a.Log] = map[topology.Offset]string{}
					}
					if topology.Offset(h) != a.Base {
						t.Fatalf("appended at %d, want %d", a.Base, h)
					}
					records := 1
					if i == 5 {
						records = 400
					}
					for x := range records {
						want[a.Log][a.Base+topology.Offset(x)] = fmt.Sprintf("v%d-%d.%d", i, k, x)
					}
				}
				switch i {
				case 6:
					r.open() // the old one is forgotten as by SIGKILL
				case 8:
					r.close()
					r.open()
				}
			}
			for log, values := range want {
				checkDamage(t, r.store, log, values)
			}
			must(t, r.store.SetStart(logID(1), 300))
			must(t, r.store.Truncate(logID(2), 270))
			r.open()
			for n, ends := range map[int][2]topology.Offset{1: {300, topology.Offset(len(want[logID(1)]))}, 2: {0, 270}} {
				info := r.store.Info(logID(n))
				if info.Start != ends[0] || info.End != ends[1] {
					t.Errorf("log %d: %+v, want %v", n, info, ends)
				}
				if _, damaged := readAll(t, r.store, logID(n)); len(damaged) > 0 {
					t.Errorf("log %d: damaged %v", n, damaged)
				}
			}
			must(t, r.store.DropTopic(logID(0).Topic))
			r.close()
			_ = filepath.WalkDir(r.cfg.Dir, func(path string, _ fs.DirEntry, err error) error {
				if strings.HasSuffix(path, ".log") || strings.HasSuffix(path, ".index") {
					t.Errorf("%s is left", path)
				}
				return err
			})
		})
	}
}

// TestOpenErrors: what cannot be opened says what and why.
func TestOpenErrors(t *testing.T) {
	kv := memfs.NewKV(memfs.New(1, 1<<30))
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for name, cfg := range map[string]data.Config{
		"no database":          {Dir: t.TempDir()},
		"the folder is a file": {Dir: file, KV: kv},
		"a tiny journal":       {Dir: t.TempDir(), KV: kv, JournalBytes: 100},
		"huge segments":        {Dir: t.TempDir(), KV: kv, SegmentBytes: 1 << 50},
	} {
		if s, err := data.Open(cfg); err == nil {
			_ = s.Close()
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
}
