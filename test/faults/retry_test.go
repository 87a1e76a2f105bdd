//go:build faults

package faults

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// TestRetriesAcrossKills: producers that send each record again, with the same Idempotency-Key, until it is
// acknowledged, over ten kills of the broker. Every record is stored exactly once and in order per key: what was stored
// before a crash is recognised after it (docs/design.md, section 6).
func TestRetriesAcrossKills(t *testing.T) {
	rng, _ := random(t)
	const (
		producers  = 12
		kills      = 10
		partitions = 6
	)
	ledger := harness.NewLedger()
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t)}
	first := harness.Start(t, o)
	first.CreateTopic(t, "retry", partitions, "")
	var broker atomic.Pointer[harness.Broker] // the one that runs now
	broker.Store(first)

	var stop atomic.Bool
	var repeated, duplicates atomic.Int64
	var wg sync.WaitGroup
	for i := range producers {
		key := fmt.Sprintf("k%d", i)
		wg.Go(func() {
			for !stop.Load() {
				seq, value := ledger.Next(key, 200)
				header := []string{"Idempotency-Key", fmt.Sprintf("%s-%d", key, seq)}
				for tries := 1; ; tries++ {
					r, err := broker.Load().Do("POST", harness.ProducePort, "/v1/topic/retry/messages?partitionKey="+key, []byte(value), header...)
					if err == nil && r.Status == http.StatusOK {
						ledger.Answer(key, seq, harness.Acked)
						if tries > 1 {
							repeated.Add(1)
						}
						if r.Header.Get("Skein-Duplicate") == "true" {
							duplicates.Add(1)
							if tries == 1 {
								t.Errorf("%s-%d is called a duplicate at the first try", key, seq)
							}
						}
						break
					}
					if err == nil && r.Status != http.StatusServiceUnavailable && r.Status != http.StatusGatewayTimeout {
						t.Errorf("status %d: %s", r.Status, r.Body)
					}
					if tries > 2000 {
						t.Errorf("%s-%d: no answer: %v", key, seq, err)
						return
					}
					time.Sleep(10 * time.Millisecond) // the broker is being started again
				}
			}
		})
	}
	for range kills {
		time.Sleep(200*time.Millisecond + time.Duration(rng.Int64N(int64(600*time.Millisecond)))) // the random moment
		broker.Load().Kill()
		broker.Store(harness.Start(t, o))
	}
	stop.Store(true)
	wg.Wait()

	checker := harness.NewChecker(ledger)
	checker.ReadOn(t, broker.Load(), "retry", make([]int64, partitions))
	report := checker.Report()
	t.Logf("%d kills: %d records acknowledged, %d of them after a retry, %d recognised as stored before; %s", kills, ledger.Count(harness.Acked), repeated.Load(), duplicates.Load(), report)
	if bad := report.Bad(); bad != "" {
		t.Error(bad)
	}
	if repeated.Load() == 0 {
		t.Error("nothing was retried, so this proved nothing")
	}
}
