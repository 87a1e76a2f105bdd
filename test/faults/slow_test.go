//go:build faults

package faults

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// slowPoll sends a poll over a socket with a tiny window and reads its answer at one byte a second until closed.
func slowPoll(t *testing.T, b *harness.Broker, consumer string) (stop func() (read int)) {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 2048) })
	}}
	conn, err := dialer.DialContext(t.Context(), "tcp", b.Addr(harness.ConsumePort))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/consumer/poll?consumerId=%s&wait=5s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAccept: application/json\r\n\r\n", consumer)
	read, done, quit := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				return
			}
			read++
			select {
			case <-tick.C:
			case <-quit:
				return
			}
		}
	}()
	return func() int {
		close(quit)
		conn.Close()
		<-done
		return read
	}
}

// TestSlowReaderSlowsNobody: members that read their answers at a byte a second do not slow the others of the group,
// other groups, commits or produce, and what they were sent counts as not delivered (docs/design.md, section 7).
func TestSlowReaderSlowsNobody(t *testing.T) {
	const (
		partitions = 12
		slow       = 4
	)
	b := harness.Start(t, harness.Options{})
	b.CreateTopic(t, "slow", partitions, "")
	_, seed := random(t)
	ledger := harness.NewLedger()
	load := harness.StartLoad(b, ledger, harness.LoadOptions{Topic: "slow", Name: "s", Binary: 2, Keys: 200, Seed: seed, MinSize: 900})
	harness.Eventually(t, time.Minute, "30,000 records are acknowledged", func() bool { return load.Acked() >= 30_000 })
	load.Stop()
	load.CheckErrors(t)

	var stops []func() int
	for i := range slow {
		id := fmt.Sprintf("slow%d", i)
		b.Register(t, id, "g", "slow")
	}
	b.Register(t, "fast", "g", "slow")
	b.Register(t, "elsewhere", "h", "slow")
	for i := range slow {
		stops = append(stops, slowPoll(t, b, fmt.Sprintf("slow%d", i)))
	}

	times := map[string][]time.Duration{}
	measure := func(what string, f func() error) {
		t.Helper()
		start := time.Now()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		times[what] = append(times[what], time.Since(start))
	}
	seen := map[string]map[[2]int64]int{"fast": {}, "elsewhere": {}}
	for start := time.Now(); time.Since(start) < 10*time.Second; {
		for id, got := range seen {
			measure("poll of "+id, func() error {
				records, _, err := b.Poll(id, "maxBytes=262144")
				for _, r := range records {
					got[[2]int64{int64(r.Partition), r.Offset}]++
				}
				return err
			})
			measure("commit of "+id, func() error {
				r, err := b.Do("POST", harness.ConsumePort, "/v1/consumer/commit?consumerId="+id, nil)
				if err == nil && r.Status != 204 {
					err = fmt.Errorf("status %d: %s", r.Status, r.Body)
				}
				return err
			})
		}
		measure("produce", func() error {
			status, err := b.Produce("slow-other", "k", strings.Repeat("x", 1000))
			if err == nil && status != 200 {
				err = fmt.Errorf("status %d", status)
			}
			return err
		})
	}
	for what, took := range times {
		slices.Sort(took)
		p50, p99, most := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
		t.Logf("%-18s %5d times: p50 %v, p99 %v, max %v", what, len(took), p50.Round(time.Microsecond), p99.Round(time.Microsecond), most.Round(time.Microsecond))
		if p50 > 100*time.Millisecond || p99 > 500*time.Millisecond || most > 2*time.Second {
			t.Errorf("%s is slow beside slow readers", what)
		}
	}
	total := 0
	for _, l := range b.Topic(t, "slow").Logs {
		total += int(l.End)
	}
	if len(seen["elsewhere"]) != total {
		t.Errorf("the other group was given %d of %d records", len(seen["elsewhere"]), total)
	}

	// The slow ones leave. What they were sent and did not read to its end goes to the one that is left.
	for i, stop := range stops {
		if read := stop(); read == 0 || read > 60 {
			t.Errorf("a slow reader read %d bytes", read)
		}
		b.Must(t, 200, "POST", harness.ConsumePort, fmt.Sprintf("/v1/consumer/goodbye?commit=false&consumerId=slow%d", i), "")
	}
	harness.Eventually(t, 30*time.Second, "the member that is left is given all", func() bool {
		records, _, err := b.Poll("fast", "wait=500ms")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			seen["fast"][[2]int64{int64(r.Partition), r.Offset}]++
		}
		return len(seen["fast"]) == total
	})
}
