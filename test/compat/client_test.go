package compat

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	polar "github.com/polarstreams/go-client"
	"github.com/polarstreams/go-client/types"
)

const service = "polar://" + host

func newProducer(t *testing.T) polar.Producer {
	t.Helper()
	p, err := polar.NewProducer(service)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func newConsumer(t *testing.T, group, topic string) polar.Consumer {
	t.Helper()
	c, err := polar.NewConsumerWithOpts(service, types.ConsumerOptions{Group: group, Topics: []string{topic}, MaxPollInterval: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// pollFor polls until as many records came, or patience is over. Errors are passed over: after a broken connection the
// client reports some before it is back.
func pollFor(c polar.Consumer, n int, patience time.Duration) (bodies []string) {
	for deadline := time.Now().Add(patience); len(bodies) < n && time.Now().Before(deadline); {
		for _, tr := range c.Poll().TopicRecords {
			for _, r := range tr.Records {
				bodies = append(bodies, string(r.Body))
			}
		}
	}
	return bodies
}

// TestLargeRecords: answers above 4 KiB, which the client throws away when they come without a length, and whose topic
// names it misreads when they straddle frames (docs/wire.md, 0.1 and 5.2.1).
func TestLargeRecords(t *testing.T) {
	start(t, t.TempDir())
	topic := "large-" + strings.Repeat("name", 40)
	c := newConsumer(t, "large", topic)
	p := newProducer(t)
	var sent []string
	for i, size := range []int{2_000, 6_000, 16_384, 70_000, 500_000, 6_000, 1_000_000} {
		m := fmt.Sprintf(`{"n":%d,"f":"%s"}`, i, strings.Repeat(fmt.Sprint(size+i), size/len(fmt.Sprint(size+i))))
		if err := p.Send(topic, strings.NewReader(m), "k"); err != nil {
			t.Fatal(err)
		}
		sent = append(sent, m)
	}
	got := pollFor(c, len(sent), time.Minute)
	if len(got) != len(sent) {
		t.Fatalf("%d of %d records came", len(got), len(sent))
	}
	for i := range sent {
		if got[i] != sent[i] {
			t.Errorf("record %d came as %.60s", i, got[i])
		}
	}
}

// TestRefusedSends: what the broker refuses reaches the application as an error, and the connection stays usable.
func TestRefusedSends(t *testing.T) {
	start(t, t.TempDir())
	p := newProducer(t)
	for name, send := range map[string][3]string{
		"topic":                 {"a/b", "x", "k"},
		"topic of 300 bytes":    {strings.Repeat("t", 300), "x", "k"},
		"key of 300 bytes":      {"t", "x", strings.Repeat("k", 300)},
		"record above the size": {"t", strings.Repeat("x", 1<<20+1), "k"},
	} {
		if err := p.Send(send[0], strings.NewReader(send[1]), send[2]); err == nil {
			t.Errorf("%s: no error", name)
		}
		if err := p.Send("fine", strings.NewReader("x"), "k"); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
}

// TestRestart: producer and consumer live on when the broker is stopped and started again.
func TestRestart(t *testing.T) {
	data := t.TempDir()
	b := start(t, data)
	p := newProducer(t)
	c := newConsumer(t, "restart", "restart")
	if err := p.Send("restart", strings.NewReader("before"), "k"); err != nil {
		t.Fatal(err)
	}
	if got := pollFor(c, 1, time.Minute); len(got) != 1 || got[0] != "before" {
		t.Fatalf("before the restart: %q", got)
	}
	if r := c.ManualCommit(); r.SuccessCount != 1 || len(r.Errors) > 0 {
		t.Fatalf("commit: %+v", r)
	}
	b.stop(t, syscall.SIGTERM)
	start(t, data)
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = p.Send("restart", strings.NewReader("after"), "k"); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("no send succeeds after the restart: %v", err)
	}
	if got := pollFor(c, 1, time.Minute); len(got) != 1 || got[0] != "after" {
		t.Fatalf("after the restart: %q", got)
	}
}
