//go:build faults

package faults

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// TestKillUnderLoad kills the broker with SIGKILL at random moments of full keyed load, twenty times, with
// flush=always. After each restart every acknowledged record is there once, those without an answer at most once, and
// the records of a key are in order (P5, P7). Some restarts are killed too, before the broker is ready.
func TestKillUnderLoad(t *testing.T) {
	rng, seed := random(t)
	const (
		rounds     = 20
		topic      = "load"
		partitions = 12
	)
	ledger := harness.NewLedger()
	checker := harness.NewChecker(ledger)
	next := make([]int64, partitions)
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t), Env: map[string]string{"SKEIN_FLUSH": "always"}}
	interrupted := 0
	for round := range rounds {
		if round > 0 && rng.IntN(3) == 0 {
			half := o
			half.NoReady = true
			b := harness.Start(t, half)
			time.Sleep(time.Duration(rng.Int64N(int64(300 * time.Millisecond)))) // the random moment
			b.Kill()
			interrupted++
		}
		b := harness.Start(t, o)
		if round == 0 {
			b.CreateTopic(t, topic, partitions, "")
		} else {
			checker.ReadOn(t, b, topic, next)
			if bad := checker.Report().Bad(); bad != "" {
				t.Fatalf("after kill %d:\n%s", round, bad)
			}
		}
		load := harness.StartLoad(b, ledger, harness.LoadOptions{
			Topic: topic, Name: fmt.Sprintf("r%d", round), Binary: 3, HTTP: 6, Seed: seed + uint64(round), MaxSize: 600,
		})
		time.Sleep(100*time.Millisecond + time.Duration(rng.Int64N(int64(time.Second)))) // the random moment
		b.Kill()
		load.Wait()
		load.CheckErrors(t)
		if load.Acked() == 0 {
			t.Errorf("round %d: nothing was acknowledged", round)
		}
	}
	b := harness.Start(t, o)
	all := harness.NewChecker(ledger)
	all.ReadOn(t, b, topic, make([]int64, partitions))
	report := all.Report()
	t.Logf("%d kills under load, %d of a starting broker: %d records acknowledged, %s", rounds, interrupted, ledger.Count(harness.Acked), report)
	if bad := report.Bad(); bad != "" {
		t.Errorf("at the end:\n%s", bad)
	}
	if _, err := b.Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestKillKeepsPositions kills the broker while a group consumes: what was committed stays committed, and nothing that
// was not committed is skipped (docs/design.md, section 7).
func TestKillKeepsPositions(t *testing.T) {
	rng, seed := random(t)
	const partitions = 3
	ledger := harness.NewLedger()
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t)}
	b := harness.Start(t, o)
	b.CreateTopic(t, "positions", partitions, "")
	load := harness.StartLoad(b, ledger, harness.LoadOptions{Topic: "positions", Name: "p", Binary: 2, Seed: seed})
	harness.Eventually(t, time.Minute, "20,000 records are acknowledged", func() bool { return load.Acked() >= 20_000 })
	load.Stop()
	load.CheckErrors(t)

	delivered := map[[2]int64]bool{}       // partition and offset of what was handed out
	committed := make([]int64, partitions) // end of what a manual commit has confirmed
	for round := range 8 {
		consumer := fmt.Sprintf("c%d", round)
		b.Register(t, consumer, "g", "positions")
		begun := make([]bool, partitions)
		end := make([]int64, partitions) // of what this member was given
		poll := func(query string) (id string) {
			t.Helper()
			records, id, err := b.Poll(consumer, query)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range records {
				p := r.Partition
				if !begun[p] && r.Offset < committed[p] {
					t.Errorf("round %d: partition %d begins at %d, though a commit of %d was confirmed", round, p, r.Offset, committed[p])
				}
				if r.Offset > 0 && !delivered[[2]int64{int64(p), r.Offset - 1}] {
					t.Errorf("round %d: %d@%d is delivered, and the record before it never was", round, p, r.Offset)
				}
				begun[p] = true
				delivered[[2]int64{int64(p), r.Offset}] = true
				end[p] = max(end[p], r.Offset+1)
			}
			return id
		}
		for range 2 + rng.IntN(6) {
			id := poll("wait=2s&maxRecords=700")
			switch rng.IntN(3) {
			case 0: // the next poll commits, some time
			case 1: // this one commits that answer, and leaves its own open
				poll("maxRecords=1&ack=" + id)
			case 2: // an answer here means that the commit is durable
				b.Must(t, http.StatusNoContent, "POST", harness.ConsumePort, "/v1/consumer/commit?consumerId="+consumer, "")
				for p := range end {
					committed[p] = max(committed[p], end[p])
				}
			}
		}
		b.Kill()
		b = harness.Start(t, o)
	}
	b.Register(t, "last", "g", "positions")
	for empty := 0; empty < 3; {
		records, _, err := b.Poll("last", "wait=500ms")
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			empty++
		}
		for _, r := range records {
			delivered[[2]int64{int64(r.Partition), r.Offset}] = true
		}
	}
	for p, l := range b.Topic(t, "positions").Logs {
		for offset := range l.End {
			if !delivered[[2]int64{int64(p), offset}] {
				t.Fatalf("record %d@%d was never delivered", p, offset)
			}
		}
	}
}
