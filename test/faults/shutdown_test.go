//go:build faults

package faults

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// TestShutdownUnderLoad sends SIGTERM under full load, over and over. The broker exits 0 in time; nothing that it
// acknowledged is lost; what it took was answered, so a request without an answer was never carried out; a poll that
// waits gets its answer.
func TestShutdownUnderLoad(t *testing.T) {
	rng, seed := random(t)
	const partitions = 12
	ledger := harness.NewLedger()
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t)}
	var broken []string
	for round := range 6 {
		o.Env = map[string]string{"SKEIN_FLUSH": []string{"always", "interval"}[round%2]}
		b := harness.Start(t, o)
		if round == 0 {
			b.CreateTopic(t, "load", partitions, "")
			b.CreateTopic(t, "quiet", 1, "")
		}
		b.Register(t, "waits", fmt.Sprintf("g%d", round), "quiet")
		waited := make(chan error, 1)
		go func() {
			r, err := b.Do("POST", harness.ConsumePort, "/v1/consumer/poll?consumerId=waits&wait=30s", nil)
			if err == nil && r.Status != http.StatusNoContent && r.Status != http.StatusServiceUnavailable {
				err = fmt.Errorf("status %d: %s", r.Status, r.Body)
			}
			waited <- err
		}()
		load := harness.StartLoad(b, ledger, harness.LoadOptions{Topic: "load", Name: fmt.Sprintf("r%d", round), Binary: 3, HTTP: 8, Seed: seed + uint64(round), MaxSize: 600})
		time.Sleep(300*time.Millisecond + time.Duration(rng.Int64N(int64(700*time.Millisecond)))) // the random moment
		took, err := b.Stop(28 * time.Second)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		load.Wait()
		load.CheckErrors(t)
		if err := <-waited; err != nil {
			t.Errorf("round %d: the poll that waited: %v", round, err)
		}
		t.Logf("round %d: %d acknowledged, ended in %v", round, load.Acked(), took.Round(time.Millisecond))
		for _, b := range load.Broken() {
			if !strings.Contains(b, "connection refused") {
				broken = append(broken, b)
			}
		}
		if load.Acked() == 0 {
			t.Error("nothing was acknowledged")
		}
	}
	b := harness.Start(t, o)
	checker := harness.NewChecker(ledger)
	checker.ReadOn(t, b, "load", make([]int64, partitions))
	report := checker.Report()
	t.Logf("%d acknowledged; %s", ledger.Count(harness.Acked), report)
	if bad := report.Bad(); bad != "" {
		t.Error(bad)
	}
	if n := len(report.Unanswered) + len(report.Unknown); n > 0 {
		t.Errorf("%d requests were carried out and not answered or answered as unknown: %.500s", n, fmt.Sprint(report.Unanswered, report.Unknown))
		t.Logf("connections that broke under a request:\n%s", strings.Join(broken[:min(40, len(broken))], "\n"))
	}
}
