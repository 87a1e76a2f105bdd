package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/cli/bench"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

// errCheckFailed makes a bench fail whose check found something.
var errCheckFailed = errors.New("the check failed: records are missing, doubled or out of order")

func (a *app) benchCommand() *cobra.Command {
	return group("bench", "Load a broker and measure it",
		`Load a broker and measure throughput and latency from the client's side. Records
are JSON with a run, a key and a number, all different, that zstd makes about
half as large. The load and the broker share the machine when both run on it:
--pid tells what the broker spent.`,
		a.benchProduceCommand(), a.benchConsumeCommand(), a.benchEndToEndCommand())
}

// benchFlags are the flags of all bench commands; each registers its own.
type benchFlags struct {
	topic       string
	partitions  int
	protocol    string
	addr        string
	size        int64
	keys        int
	records     int64
	duration    time.Duration
	rate        float64
	connections int
	inFlight    int
	batch       int
	run         string
	group       string
	members     int
	format      string
	from        string
	maxBytes    int64
	check       bool
	json        bool
	pids        []int
}

func (f *benchFlags) registerCommon(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVarP(&f.topic, "topic", "t", "bench", "topic to use; it is created when it does not exist")
	fs.BoolVar(&f.json, "json", false, "print the result as JSON")
	fs.IntSliceVar(&f.pids, "pid", nil, "processes of the broker on this machine, to measure their CPU (Linux)")
}

func (f *benchFlags) registerProduce(c *cobra.Command, records int64, rate float64) {
	fs := c.Flags()
	fs.IntVar(&f.partitions, "partitions", 0, "partitions of the topic when it is created (default: the broker's)")
	fs.StringVar(&f.protocol, "protocol", bench.Binary, "how to produce: binary, http (a record in each request) or ndjson")
	fs.StringVar(&f.addr, "addr", "", "`HOST:PORT` of the produce port (default: as the broker says)")
	fs.Var(newBytesFlag(&f.size, 1024), "size", "size of a record")
	fs.IntVar(&f.keys, "keys", 0, "how many distinct keys to draw from (default: no key)")
	fs.Int64VarP(&f.records, "records", "n", records, "how many records to send")
	fs.Var(newDurationFlag(&f.duration, 0), "duration", "send for this long instead")
	fs.Float64Var(&f.rate, "rate", rate, "records a second, sent when they are due (0: as fast as acknowledgements come)")
	fs.IntVar(&f.connections, "connections", 0, "connections (default: 2 binary, 64 http, 8 ndjson)")
	fs.IntVar(&f.inFlight, "in-flight", 1024, "records without an acknowledgement, over all connections (binary)")
	fs.IntVar(&f.batch, "batch", 0, "records in a request (default: 16 binary without keys, 100 ndjson; 1 with --rate)")
	fs.StringVar(&f.run, "run", "", "name of this run, in each record (default: a fresh one)")
	completeFlag(c, "protocol", words(bench.Binary, bench.HTTP, bench.NDJSON))
}

func (f *benchFlags) registerConsume(c *cobra.Command, members int) {
	fs := c.Flags()
	fs.StringVarP(&f.group, "group", "g", "", "consumer group (default: a fresh one)")
	fs.IntVar(&f.members, "members", members, "members of the group")
	fs.StringVar(&f.format, "format", bench.PollBinary, "what polls ask for: binary (stored chunks) or records (JSON)")
	fs.Var(newBytesFlag(&f.maxBytes, 0), "max-bytes", "most bytes of one poll (default: the broker's)")
	completeFlag(c, "format", words(bench.PollBinary, bench.PollRecords))
}

// produceConfig fills in what the flags leave open. Addrs come later.
func (f *benchFlags) produceConfig(c *cobra.Command) (bench.ProduceConfig, error) {
	connections := map[string]int{bench.Binary: 2, bench.HTTP: 64, bench.NDJSON: 8}
	batch := map[string]int{bench.Binary: 16, bench.HTTP: 1, bench.NDJSON: 100}
	if _, known := connections[f.protocol]; !known {
		return bench.ProduceConfig{}, fmt.Errorf("--protocol is %q; allowed are binary, http, ndjson", f.protocol)
	}
	if f.connections == 0 {
		f.connections = connections[f.protocol]
	}
	if f.batch == 0 {
		if f.batch = batch[f.protocol]; f.rate > 0 || (f.protocol == bench.Binary && f.keys > 0) {
			f.batch = 1
		}
	}
	if f.run == "" {
		f.run = strings.ToLower(rand.Text()[:8])
	}
	if c.Flags().Changed("duration") && !c.Flags().Changed("records") {
		f.records = 0
	}
	switch {
	case f.size < bench.MinSize || f.size > maxInput:
		return bench.ProduceConfig{}, fmt.Errorf("--size is %d; allowed are %d to %d bytes", f.size, bench.MinSize, maxInput)
	case f.records < 0 || f.duration < 0 || f.rate < 0 || f.keys < 0:
		return bench.ProduceConfig{}, errors.New("--records, --duration, --rate and --keys are not negative")
	case f.records == 0 && f.duration == 0:
		return bench.ProduceConfig{}, errors.New("--records or --duration says how much to send")
	case f.connections < 1 || f.connections > 10_000 || f.inFlight < 1 || f.batch < 1 || f.batch > 100_000:
		return bench.ProduceConfig{}, errors.New("--connections, --in-flight and --batch are 1 or more (connections up to 10000, batch up to 100000)")
	case f.protocol == bench.HTTP && f.batch != 1:
		return bench.ProduceConfig{}, errors.New("--protocol http has one record in each request; --protocol ndjson takes --batch")
	case len(f.run) > 16 || strings.ContainsAny(f.run, `"\`):
		return bench.ProduceConfig{}, fmt.Errorf("--run is %q; give 1 to 16 letters or digits", f.run)
	}
	return bench.ProduceConfig{
		Protocol: f.protocol, Topic: f.topic, Run: f.run, Size: int(f.size), Keys: f.keys, Records: f.records, Duration: f.duration,
		Rate: f.rate, Connections: f.connections, InFlight: f.inFlight, Batch: f.batch,
	}, nil
}

// consumeConfig fills in what the flags leave open, with a client for each member.
func (a *app) consumeConfig(c *cobra.Command, f *benchFlags) (bench.ConsumeConfig, error) {
	if f.group == "" {
		f.group = "bench-" + strings.ToLower(rand.Text()[:8])
	}
	if err := topology.CheckName("group", f.group); err != nil {
		return bench.ConsumeConfig{}, err
	}
	switch {
	case f.members < 1 || f.members > 1000:
		return bench.ConsumeConfig{}, fmt.Errorf("--members is %d; allowed are 1 to 1000", f.members)
	case f.format != bench.PollBinary && f.format != bench.PollRecords:
		return bench.ConsumeConfig{}, fmt.Errorf("--format is %q; allowed are binary, records", f.format)
	}
	config := bench.ConsumeConfig{Topic: f.topic, Group: f.group, Format: f.format, MaxByte: int(f.maxBytes)}
	for range f.members {
		client, err := a.client(c)
		if err != nil {
			return config, err
		}
		config.Clients = append(config.Clients, client)
	}
	return config, nil
}

func closeAll(clients []*api.Client) {
	for _, c := range clients {
		c.Close()
	}
}

// prepare makes sure that the topic exists and finds the produce ports.
func (a *app) prepare(ctx context.Context, c *cobra.Command, f *benchFlags) (addrs []string, err error) {
	client, err := a.client(c)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, _, err := client.Topic(ctx, f.topic); api.StatusOf(err) == http.StatusNotFound {
		if _, _, err = client.CreateTopic(ctx, api.NewTopic{Name: f.topic, Partitions: f.partitions}); err != nil {
			return nil, explain(err, "topic "+f.topic)
		}
	} else if err != nil {
		return nil, explain(err, "topic "+f.topic)
	}
	if f.addr != "" {
		return strings.Split(f.addr, ","), nil
	}
	d, err := client.Discover(ctx)
	if err != nil {
		return nil, explain(err, "discovery")
	}
	return produceAddrs(d, client.Host(), f.protocol == bench.Binary), nil
}

// produceAddrs are the produce ports of all brokers. A broker that is alone is reached where it was asked.
func produceAddrs(d api.Discovery, asked string, binary bool) []string {
	port := d.ProducerPort
	if binary {
		port = d.ProducerBinaryPort
	}
	hosts := d.Names
	if d.Length <= 1 || len(hosts) == 0 {
		hosts = []string{asked}
	}
	addrs := make([]string, len(hosts))
	for i, host := range hosts {
		addrs[i] = net.JoinHostPort(host, strconv.Itoa(port))
	}
	return addrs
}

// load is a run that can be watched.
type load struct {
	run    func(context.Context) error
	report func() *bench.Report
	tell   func(seconds float64) string // one line of progress
}

// measure runs l with a line of progress each second where a person watches, and prints the result.
func (a *app) measure(ctx context.Context, f *benchFlags, l load) error {
	meter, err := bench.StartMeter(f.pids)
	if err != nil {
		return fmt.Errorf("--pid: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- l.run(ctx) }()
	err = a.watch(l, done)
	report := l.report()
	if report.CPU, _ = meter.Stop(report.Records); report.Records == 0 && err != nil {
		return explain(err, "bench")
	}
	if ctx.Err() != nil && report.Stopped == "" {
		report.Stopped = errInterrupted.Error()
	}
	if f.json {
		err = errors.Join(err, a.printJSON(report))
	} else {
		err = errors.Join(err, report.WriteText(a.Out))
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errInterrupted
	case report.Stopped != "":
		return errors.New("the load ended early: " + report.Stopped)
	case report.Check != nil && !report.Check.OK:
		return errCheckFailed
	}
	return nil
}

// watch waits for the end of a run.
func (a *app) watch(l load, done <-chan error) error {
	var tick <-chan time.Time
	if a.Terminal(a.Err) {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		tick = ticker.C
	}
	began := time.Now()
	for {
		select {
		case err := <-done:
			return err
		case <-tick:
			a.note("%s", l.tell(time.Since(began).Seconds()))
		}
	}
}

// pace tells a counter's total and what it gained since the line before.
type pace struct{ last int64 }

func (p *pace) text(what string, now int64) string {
	gained := now - p.last
	p.last = now
	return fmt.Sprintf("%s %s (%s/s)", bench.Thousands(now), what, bench.Thousands(gained))
}
