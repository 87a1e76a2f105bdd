package data_test

import (
	"fmt"
	"testing"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/topology"
)

// rounds appends n rounds of one chunk each and returns what the log must hold.
func (r *rig) rounds(log topology.LogID, n int) map[topology.Offset]string {
	want := map[topology.Offset]string{}
	for i := range n {
		want[r.put(log, fmt.Sprint("r", i), 1)] = fmt.Sprintf("r%d.0", i)
	}
	return want
}

// TestDamagedJournal flips each byte of the journal in turn after a SIGKILL. The segments have all bytes too, so nothing
// may be lost; damage that is not at the very end is reported.
func TestDamagedJournal(t *testing.T) {
	const rounds = 4
	probe := newRig(t, nil)
	probe.rounds(logID(0), rounds)
	size := int64(rounds * (32 + 60 + len(probe.batch("r0", 1))))
	reported := 0
	for at := int64(data.JournalFileStart); at < data.JournalFileStart+size; at++ {
		r := newRig(t, nil)
		want := r.rounds(logID(0), rounds)
		if err := r.fs.Flip("/data/journal/0.journal", at, 0x20); err != nil {
			t.Fatal(err)
		}
		r.fs.Kill()
		r.open()
		last := data.JournalFileStart + size*(rounds-1)/rounds
		rep := r.store.Report()
		if at < last && rep.JournalDamaged != 1 {
			t.Fatalf("byte %d: report %+v", at, rep)
		}
		if at >= last && at < last+32+60 {
			delete(want, rounds-1) // with its head damaged the last record cannot be told from one that was never acknowledged
		}
		checkDamage(t, r.store, logID(0), want)
		reported += rep.JournalDamaged
	}
	if reported == 0 {
		t.Error("nothing reported")
	}
}

// TestJournalHoldsLostBytes: what the journal holds and a power cut took from the segments is written again, into new
// files and folders too, and a damaged record in the middle costs only what it held.
func TestJournalHoldsLostBytes(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		r := newRig(t, nil)
		want := r.rounds(logID(0), 6)
		if damaged {
			one := int64(32 + 60 + len(r.batch("r0", 1)))
			must(t, r.fs.Flip("/data/journal/0.journal", data.JournalFileStart+2*one+100, 1))
		}
		r.fs.Kill() // all is in the page cache
		must(t, r.fs.RemoveAll("/data/logs/"+logID(0).Topic.String()))
		r.open()
		if damaged {
			delete(want, 2)
			checkDamage(t, r.store, logID(0), want, data.OffsetRange{From: 2, To: 3})
		} else {
			checkDamage(t, r.store, logID(0), want)
		}
	}
}

// TestStaleJournal fills the journal several times over and restarts at each step: old records in the files are never
// replayed.
func TestStaleJournal(t *testing.T) {
	r := newRig(t, nil)
	want := map[topology.Offset]string{}
	for i := range 60 {
		base := r.put(logID(0), fmt.Sprint("v", i), 100)
		for k := range 100 {
			want[base+topology.Offset(k)] = fmt.Sprintf("v%d.%d", i, k)
		}
		if i%3 == 0 {
			r.fs.Kill()
			r.open()
		}
	}
	checkDamage(t, r.store, logID(0), want)
	if rep := r.store.Report(); rep.CutBytes != 0 || rep.JournalDamaged != 0 {
		t.Errorf("report %+v", rep)
	}
}

// TestLargeRound appends rounds that do not fit into the journal: they are flushed in their segments.
func TestLargeRound(t *testing.T) {
	r := newRig(t, func(cfg *data.Config) { cfg.SegmentBytes = 1 << 20 })
	var want []string
	for i := range 5 {
		var round []*data.Append
		for log := range 3 {
			round = append(round, &data.Append{Log: logID(log), Version: 1, Batch: r.batch(fmt.Sprint("v", i), 1500)})
		}
		r.store.Commit(round)
		for _, a := range round {
			must(t, a.Err)
		}
		want = append(want, fmt.Sprintf("v%d.1499", i))
		r.put(logID(0), "small", 1)
		r.put(logID(1), "small", 1)
		r.put(logID(2), "small", 1)
		r.fs.Crash()
		r.open()
	}
	for log := range 3 {
		values, damaged := readAll(t, r.store, logID(log))
		if len(values) != 5*1501 || len(damaged) > 0 {
			t.Fatalf("log %d: %d records, damaged %v", log, len(values), damaged)
		}
		for i, w := range want {
			if got := values[topology.Offset(i*1501+1499)]; got != w {
				t.Errorf("log %d: %s, want %s", log, got, w)
			}
		}
	}
}

// TestFlushPolicyChange switches the policy between runs that end in a SIGKILL.
func TestFlushPolicyChange(t *testing.T) {
	r := newRig(t, nil)
	want := map[topology.Offset]string{}
	for i := range 12 {
		for k := range 5 {
			base := r.put(logID(0), fmt.Sprint("v", i, k), 1)
			want[base] = fmt.Sprintf("%s.0", fmt.Sprint("v", i, k))
		}
		r.fs.Kill()
		if i%2 == 0 {
			r.cfg.Flush = data.FlushInterval
		} else {
			r.cfg.Flush = data.FlushAlways
		}
		r.open()
		checkDamage(t, r.store, logID(0), want)
	}
}

// TestUncleanReboot (P5): only a machine that restarted without a clean stop under FlushInterval counts.
func TestUncleanReboot(t *testing.T) {
	for _, flush := range []data.FlushPolicy{data.FlushAlways, data.FlushInterval} {
		r := newRig(t, func(cfg *data.Config) { cfg.Flush = flush })
		is := func(want bool, when string) {
			t.Helper()
			if got := r.store.UncleanReboot(); got != want {
				t.Errorf("%s, %s: %v", flush, when, got)
			}
		}
		is(false, "new")
		r.put(logID(0), "a", 1)
		r.fs.Kill()
		r.open()
		is(false, "SIGKILL")
		r.close()
		r.fs.Crash()
		r.open()
		is(false, "clean stop, then a power cut")
		r.fs.Crash()
		r.open()
		is(flush == data.FlushInterval, "power cut")
		r.fs.Kill()
		r.open()
		is(flush == data.FlushInterval, "SIGKILL before the first append")
		r.put(logID(0), "b", 1)
		r.fs.Kill()
		r.open()
		is(false, "SIGKILL after it")
	}
}

// TestNewerVersion: a journal or notes of a newer version stop the start, and nothing is changed.
func TestNewerVersion(t *testing.T) {
	r := newRig(t, nil)
	r.put(logID(0), "a", 1)
	r.close()
	must(t, r.kv.Update(true, func(put func(key, value []byte), _ func(key []byte)) { put([]byte("n/run"), []byte{9, 0, 0, 0}) }))
	if _, err := data.Open(r.cfg); err == nil {
		t.Error("opened with a mark of a newer version")
	}
}
