package bench

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/cli/clitest"
)

func client(t *testing.T, b *clitest.Broker) *api.Client {
	t.Helper()
	c, err := api.New(api.Config{Brokers: b.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func config(b *clitest.Broker, protocol string) ProduceConfig {
	addr := strings.TrimPrefix(b.URL, "http://")
	if protocol == Binary {
		addr = b.BinaryAddr()
	}
	return ProduceConfig{Protocol: protocol, Addrs: []string{addr}, Topic: "bench", Run: "r1", Size: 128, Connections: 3, InFlight: 48, Batch: 1, Records: 600}
}

func produce(t *testing.T, cfg ProduceConfig) (*Report, error) {
	t.Helper()
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Run(t.Context())
	return p.Report(), err
}

func drain(t *testing.T, b *clitest.Broker, format string, members int, records int64) *Report {
	t.Helper()
	cfg := ConsumeConfig{Topic: "bench", Group: "g", Format: format, Records: records, Checker: NewChecker("r1")}
	for range members {
		cfg.Clients = append(cfg.Clients, client(t, b))
	}
	c, err := NewConsumer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.Report()
}

// What each protocol produces is there exactly once and in order per key, and a group finds it so in both formats.
func TestProduceThenConsume(t *testing.T) {
	for _, protocol := range []string{Binary, HTTP, NDJSON} {
		for name, keys := range map[string]int{"keyed": 40, "without keys": 0} {
			t.Run(protocol+" "+name, func(t *testing.T) {
				b := clitest.New(t)
				cfg := config(b, protocol)
				cfg.Keys = keys
				if protocol != HTTP {
					cfg.Batch = 7
				}
				r, err := produce(t, cfg)
				if err != nil || r.Records != 600 || r.Errors != 0 || r.Bytes != 600*128 || r.Latency == nil || b.Count("bench") != 600 {
					t.Fatalf("%v, report %+v, %d stored", err, r, b.Count("bench"))
				}
				format := map[string]string{Binary: PollBinary, HTTP: PollRecords, NDJSON: PollBinary}[protocol]
				d := drain(t, b, format, 3, 600)
				if !d.Check.OK || d.Records != 600 || d.Bytes != 600*128 || d.Errors != 0 {
					t.Errorf("drained %+v, %+v", d, d.Check)
				}
				if left := b.Members("g"); len(left) != 0 {
					t.Errorf("members %q stayed", left)
				}
			})
		}
	}
}

func TestConsumeEndsAtTheEnd(t *testing.T) {
	b := clitest.New(t)
	if _, err := produce(t, config(b, Binary)); err != nil {
		t.Fatal(err)
	}
	if d := drain(t, b, PollBinary, 2, 0); d.Records != 600 || !d.Check.OK {
		t.Errorf("drained %+v", d)
	}
}

// Refusals are counted by their text, and the rest of the load goes on.
func TestProduceCountsRefusals(t *testing.T) {
	b := clitest.New(t)
	var n atomic.Int32
	b.RefuseBinary(func([]byte) (string, bool) {
		if n.Add(1)%10 == 0 {
			return "leader not found", false
		}
		return "", false
	})
	r, err := produce(t, config(b, Binary))
	if err != nil || r.Records != 540 || r.Errors != 60 || r.ErrorKinds["code 2: leader not found"] != 60 {
		t.Errorf("%v, report %+v", err, r)
	}
	b.Create("bench", 3)
	b.RefuseBinary(nil)
	b.Inject(refuseSome())
	r, err = produce(t, config(b, HTTP))
	if err != nil || r.Errors != 60 || r.ErrorKinds["status 429: memory budget is used up"] != 60 {
		t.Errorf("%v, report %+v", err, r)
	}
}

// A connection that breaks leaves its records in flight unknown; it is made again and the load goes on.
func TestProduceSurvivesABrokenConnection(t *testing.T) {
	b := clitest.New(t)
	var n atomic.Int32
	b.RefuseBinary(func([]byte) (string, bool) { return "", n.Add(1) == 100 })
	r, err := produce(t, config(b, Binary))
	if err != nil || r.Errors == 0 || r.Errors > 48 || r.Stopped != "" || r.Reconnects != 1 || r.Records+r.Errors != 600 {
		t.Errorf("%v, report %+v", err, r)
	}
	b.Inject(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/messages") && n.Add(1)%200 == 0 {
			panic(http.ErrAbortHandler)
		}
		return false
	})
	n.Store(0)
	r, err = produce(t, config(b, HTTP))
	if err != nil || r.Errors != 3 || r.Reconnects != 3 || r.Records != 597 {
		t.Errorf("%v, report %+v", err, r)
	}
}

// A broker that stays away ends the load, with what was acknowledged.
func TestProduceGivesUpOnABrokerThatIsGone(t *testing.T) {
	b := clitest.New(t)
	cfg := config(b, Binary)
	cfg.Rate, cfg.Records = 1000, 10_000
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.patience = 50 * time.Millisecond
	time.AfterFunc(100*time.Millisecond, b.Close)
	if err := p.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := p.Report(); r.Records == 0 || !strings.Contains(r.Stopped, "connection refused") || strings.Contains(r.Stopped, "\n") {
		t.Errorf("report %+v", r)
	}
}

func TestProduceWithoutABroker(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, protocol := range []string{Binary, HTTP} {
		_, err := produce(t, ProduceConfig{Protocol: protocol, Addrs: []string{l.Addr().String()}, Topic: "t", Run: "r", Size: 100, Connections: 2, InFlight: 4, Batch: 1, Records: 10})
		if err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("%s: %v", protocol, err)
		}
	}
}

// An open loop sends at its rate and no faster.
func TestProduceAtARate(t *testing.T) {
	b := clitest.New(t)
	cfg := config(b, Binary)
	cfg.Rate, cfg.Records = 2000, 400
	began := time.Now()
	r, err := produce(t, cfg)
	took := time.Since(began)
	if err != nil || r.Records != 400 || took < 190*time.Millisecond {
		t.Errorf("%v, %d records in %s, want 400 in 0.2 s", err, r.Records, took)
	}
}

func TestProduceForADuration(t *testing.T) {
	b := clitest.New(t)
	cfg := config(b, HTTP)
	cfg.Records, cfg.Duration = 0, 200*time.Millisecond
	r, err := produce(t, cfg)
	if err != nil || r.Records == 0 || r.Errors != 0 || int64(b.Count("bench")) != r.Records {
		t.Errorf("%v, report %+v, %d stored", err, r, b.Count("bench"))
	}
}

func TestEndToEnd(t *testing.T) {
	b := clitest.New(t)
	b.Create("bench", 3)
	b.Add("bench", 0, clitest.Record{Value: []byte("of others")})
	p := config(b, Binary)
	p.Rate, p.Records, p.Keys = 1000, 200, 10
	e, err := NewEndToEnd(p, ConsumeConfig{Clients: []*api.Client{client(t, b), client(t, b)}, Topic: "bench", Group: "g", Format: PollBinary})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := e.Report()
	if r.Records != 200 || r.Check == nil || !r.Check.OK || r.Latency == nil || r.EndToEnd == nil || e.Received() != 200 || e.Failed() != 0 {
		t.Errorf("report %+v, check %+v", r, r.Check)
	}
	if r.EndToEnd.P50 < r.Latency.P50/2 || r.EndToEnd.Max > 5000 {
		t.Errorf("records arrived after %+v, acknowledged after %+v", r.EndToEnd, r.Latency)
	}
}

// A signal ends a load with what it has done so far.
func TestProduceEndsWithItsContext(t *testing.T) {
	b := clitest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	cfg := config(b, Binary)
	cfg.Rate, cfg.Records = 100, 1_000_000
	p, err := NewProducer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if r := p.Report(); r.Records == 0 || r.Records > 50 || r.Errors != 0 {
		t.Errorf("report %+v", r)
	}
}

func TestProduceConfigIsChecked(t *testing.T) {
	good := ProduceConfig{Protocol: HTTP, Addrs: []string{"a"}, Size: 100, Connections: 1, Batch: 1, Records: 1}
	for name, spoil := range map[string]func(*ProduceConfig){
		"protocol":    func(c *ProduceConfig) { c.Protocol = "x" },
		"size":        func(c *ProduceConfig) { c.Size = 10 },
		"addresses":   func(c *ProduceConfig) { c.Addrs = nil },
		"connections": func(c *ProduceConfig) { c.Connections = 0 },
		"amount":      func(c *ProduceConfig) { c.Records = 0 },
	} {
		c := good
		spoil(&c)
		if _, err := NewProducer(c); err == nil {
			t.Errorf("a wrong %s is accepted", name)
		}
	}
}

func TestReportText(t *testing.T) {
	r := &Report{
		Kind: "produce", Protocol: Binary, Topic: "bench", Run: "r1", Size: 1024, Keys: 100000, Connections: 2, InFlight: 1024, Batch: 1,
		Records: 1234567, Bytes: 1 << 30, Errors: 3, ErrorKinds: map[string]int64{"code 2: leader not found": 3},
		Latency: &Latency{P50: 1.234, P99: 12.34, P999: 123.4, Max: 234.5}, CPU: &CPU{ClientPerMillion: 3.5, BrokerPerMillion: 8.25, BrokerPeakBytes: 64 << 20},
		Check: &Verdict{Records: 1, Missing: 2, Examples: []string{"key a: record 1 did not come"}}, Stopped: "interrupted",
	}
	r.rates(10)
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	want := `produce      bench, binary, 1,024 B, 100,000 keys, 2 connections, 1,024 in flight, run r1
records      1,234,567 in 10.00 s
rate         123,457 messages/s, 107.4 MB/s
ack          p50 1.23 ms, p99 12.3 ms, p99.9 123 ms, max 234 ms
errors       3
             3: code 2: leader not found
cpu          client 3.50 s/M, broker 8.25 s/M, peak 64 MiB
check        FAILED: 1 records, 2 missing, 0 twice, 0 out of order, 0 offsets skipped, 0 delivered again, 0 of others
             key a: record 1 did not come
stopped      interrupted
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestProcStat(t *testing.T) {
	if n, err := statTicks([]byte("12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 100 23 0 0")); err != nil || n != 123 {
		t.Errorf("ticks %d, %v, want 123", n, err)
	}
	if _, err := statTicks([]byte("12 (x) S")); err == nil {
		t.Error("a short stat is accepted")
	}
	if n := statusPeak("VmPeak:\t1 kB\nVmHWM:\t  2048 kB\n"); n != 2<<20 {
		t.Errorf("peak %d, want 2 MiB", n)
	}
}

// refuseSome refuses every tenth produce request.
func refuseSome() clitest.Fault {
	var n atomic.Int32
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/messages") || n.Add(1)%10 != 0 {
			return false
		}
		w.Header().Set("Content-Length", "41")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"detail":"memory budget is used up"     }`[:41]))
		return true
	}
}
