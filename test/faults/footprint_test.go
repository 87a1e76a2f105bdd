//go:build faults

package faults

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

const mib = 1 << 20

// TestManyTopics: 5,000 topics of 24 partitions, records in two of them and committed positions, open in under 10 s,
// with under 256 MiB of resident memory and under 1,000 open files.
func TestManyTopics(t *testing.T) {
	const (
		topics     = 5000
		partitions = 24
		perGroup   = 100
	)
	o := harness.Options{Dir: t.TempDir(), Host: harness.FreeHost(t), Env: map[string]string{"SKEIN_FLUSH": "interval"}}
	b := harness.Start(t, o)
	name := func(i int) string { return fmt.Sprintf("many-%04d", i) }
	inParallel(t, topics, func(i int) error {
		r, err := b.Do("POST", harness.AdminPort, "/v1/topics", fmt.Appendf(nil, `{"name":%q,"partitions":%d}`, name(i), partitions))
		if err == nil && r.Status != http.StatusCreated {
			err = fmt.Errorf("create %s: %d %s", name(i), r.Status, r.Body)
		}
		for _, key := range []string{"123", "234"} { // the first and the last partitions (docs/wire.md, 6.3)
			if err == nil {
				var status int
				if status, err = b.Produce(name(i), key, `{"n":1}`); err == nil && status != http.StatusOK {
					err = fmt.Errorf("produce to %s: %d", name(i), status)
				}
			}
		}
		return err
	})
	inParallel(t, topics/perGroup, func(g int) error {
		var own []string
		for i := range perGroup {
			own = append(own, name(g*perGroup+i))
		}
		id := fmt.Sprintf("c%d", g)
		if err := b.TryRegister(id, "g", own...); err != nil {
			return err
		}
		got := 0
		for range 100 {
			records, _, err := b.Poll(id, "wait=1s")
			if err != nil {
				return err
			}
			if got += len(records); got == 2*perGroup {
				break
			}
		}
		if got != 2*perGroup {
			return fmt.Errorf("group of %s: %d records", id, got)
		}
		for _, what := range []string{"commit", "goodbye"} {
			if r, err := b.Do("POST", harness.ConsumePort, "/v1/consumer/"+what+"?consumerId="+id, nil); err != nil || r.Status >= 300 {
				return fmt.Errorf("%s of %s: %d %s %w", what, id, r.Status, r.Body, err)
			}
		}
		return nil
	})
	for _, kill := range []bool{false, true} {
		if kill {
			b.Kill()
		} else if took, err := b.Stop(26 * time.Second); err != nil {
			t.Fatal(err)
		} else {
			t.Logf("a clean stop took %v", took.Round(time.Millisecond))
		}
		b = harness.Start(t, o)
		t.Logf("after a clean stop: %v; ready in %v, %d MiB, %d files", !kill, b.ReadyIn.Round(time.Millisecond), b.RSS(t)/mib, b.OpenFiles(t))
		if b.ReadyIn > 10*time.Second {
			t.Errorf("ready in %v", b.ReadyIn)
		}
		// It serves, and the positions are there: nothing is delivered twice, and what is new comes.
		b.MustProduce(t, name(77), "123", `{"n":2}`)
		id := fmt.Sprintf("again%v", kill)
		b.Register(t, id, "g", name(77))
		records, _, err := b.Poll(id, "wait=5s")
		if err != nil || len(records) != 1 || string(records[0].Value) != `{"n":2}` {
			t.Errorf("after the restart the group is given %v, %v", records, err)
		}
		b.Must(t, http.StatusOK, "POST", harness.ConsumePort, "/v1/consumer/goodbye?consumerId="+id, "")
		if rss := b.RSS(t); rss >= 256*mib {
			t.Errorf("%d MiB resident", rss/mib)
		}
		if files := b.OpenFiles(t); files >= 1000 {
			t.Errorf("%d open files", files)
		}
	}
}

// inParallel calls f for 0 to n-1, some at a time, and fails the test at the first error.
func inParallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	work := make(chan int)
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range work {
				if err := f(i); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	var err error
	for i := 0; i < n && err == nil; i++ {
		select {
		case work <- i:
		case err = <-failed:
		}
	}
	close(work)
	wg.Wait()
	select {
	case err = <-failed:
	default:
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestIdle: `broker dev` acknowledges its first record within a second of its start, and idle it takes under 64 MiB and
// under 1 % of a core.
func TestIdle(t *testing.T) {
	host := harness.FreeHost(t)
	b := harness.Start(t, harness.Options{Args: []string{"dev"}, Host: host, NoReady: true, Env: map[string]string{"SKEIN_BIND": host}})
	var first time.Duration
	harness.Eventually(t, 10*time.Second, "the first record is acknowledged", func() bool {
		for range 200 {
			if status, err := b.Produce("first", "k", `{"a":1}`); err == nil && status == http.StatusOK {
				first = time.Since(b.Started)
				return true
			}
			time.Sleep(2 * time.Millisecond) // the listener is not there yet
		}
		return false
	})
	time.Sleep(5 * time.Second) // what starting costs is over
	const watched = 20 * time.Second
	before := b.CPU(t)
	time.Sleep(watched)
	used := b.CPU(t) - before
	rss := b.RSS(t)
	t.Logf("first acknowledged record %v after the start; idle: %.1f MiB, %.2f %% of a core, %d files", first.Round(time.Millisecond), float64(rss)/mib, 100*used.Seconds()/watched.Seconds(), b.OpenFiles(t))
	if first > time.Second {
		t.Errorf("the first record is acknowledged after %v", first)
	}
	if rss >= 64*mib {
		t.Errorf("%d MiB resident", rss/mib)
	}
	if used >= watched/100 {
		t.Errorf("%v of processor time in %v", used, watched)
	}
}
