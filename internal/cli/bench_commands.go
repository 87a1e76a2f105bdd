package cli

import (
	"fmt"

	"github.com/skeinmq/skein/internal/cli/bench"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

func (a *app) benchProduceCommand() *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use: "produce", Short: "Measure how fast records are acknowledged",
		Long: `Send records and measure throughput and the latency of acknowledgements. Without
--rate each connection sends as soon as there is room in flight; with it records
are sent when they are due, and latency counts from then.

Each key has one connection, so its records are stored in order; what a bench
consume --check then finds.`,
		Example: `  broker bench produce --records 1000000 --size 1KiB --keys 100000
  broker bench produce --protocol http --size 100 --duration 10s
  broker bench produce --protocol ndjson --batch 100
  broker bench produce --rate 500 --duration 30s --json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := f.produceConfig(c)
			if err != nil {
				return usage(c, err)
			}
			if err := topology.CheckTopicName(f.topic, false); err != nil {
				return usage(c, err)
			}
			ctx, stop := interruptible(c)
			defer stop()
			if config.Addrs, err = a.prepare(ctx, c, f); err != nil {
				return err
			}
			p, err := bench.NewProducer(config)
			if err != nil {
				return usage(c, err)
			}
			var rate pace
			return a.measure(ctx, f, load{run: p.Run, report: p.Report, tell: func(s float64) string {
				return fmt.Sprintf("%.0f s  %s, %s errors", s, rate.text("acknowledged", p.Acked()), bench.Thousands(p.Failed()))
			}})
		},
	}
	f.registerCommon(c)
	f.registerProduce(c, 100_000, 0)
	completeFlag(c, "topic", a.completeTopics(0))
	return c
}

func (a *app) benchConsumeCommand() *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use: "consume", Short: "Measure how fast a group drains a topic, and check what it receives",
		Long: `Drain a topic as a group and measure throughput; time runs from the first
records to the last. With --records it ends after that many, and fails when they
do not come; else at the end of the topic.

--check holds each record against its key and number: every one exactly once,
none out of order within its key.`,
		Example: `  broker bench consume --members 3
  broker bench produce -n 1000000 --keys 100000 --run r1 && broker bench consume --members 3 -n 1000000 --run r1 --check`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := a.consumeConfig(c, f)
			defer closeAll(config.Clients)
			if err != nil {
				return usage(c, err)
			}
			from, err := parseStart(f.from, a.Now())
			if err != nil || from.time != nil {
				return usagef(c, "--from is %q; allowed are earliest, latest", f.from)
			}
			config.Records, config.Latest = f.records, from.latest
			if f.run != "" && !f.check {
				return usagef(c, "--run is for --check")
			}
			if f.check {
				config.Checker = bench.NewChecker(f.run)
			}
			consumer, err := bench.NewConsumer(config)
			if err != nil {
				return usage(c, err)
			}
			ctx, stop := interruptible(c)
			defer stop()
			if err := consumer.Join(ctx); err != nil {
				return explain(err, "group "+f.group)
			}
			var rate pace
			err = a.measure(ctx, f, load{run: consumer.Run, report: consumer.Report, tell: func(s float64) string {
				return fmt.Sprintf("%.0f s  %s", s, rate.text("received", consumer.Records()))
			}})
			if err == nil && f.records > 0 && consumer.Records() < f.records && ctx.Err() == nil {
				return fmt.Errorf("%d of %d records came", consumer.Records(), f.records)
			}
			return err
		},
	}
	f.registerCommon(c)
	f.registerConsume(c, 1)
	fs := c.Flags()
	fs.Int64VarP(&f.records, "records", "n", 0, "end after this many records (default: at the end of the topic)")
	fs.StringVar(&f.from, "from", "earliest", "where a new group starts: earliest or latest")
	fs.BoolVar(&f.check, "check", false, "check that each record is there exactly once, in order per key")
	fs.StringVar(&f.run, "run", "", "check only records of this run")
	completeFlag(c, "topic", a.completeTopics(0))
	completeFlag(c, "group", a.completeGroups(0))
	return c
}

func (a *app) benchEndToEndCommand() *cobra.Command {
	f := &benchFlags{}
	c := &cobra.Command{
		Use: "end-to-end", Aliases: []string{"e2e"}, Short: "Measure the way from produce to consume",
		Long: `Send records at a rate, receive them as a group by long polls, and measure how
long each takes from when it was due: to its acknowledgement, and to its
consumer. It also checks that each acknowledged record is received exactly once.`,
		Example: `  broker bench end-to-end --rate 500 --duration 10s
  broker bench end-to-end --protocol http --rate 200 --records 2000 --size 100 --keys 50`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.rate <= 0 {
				return usagef(c, "--rate says how many records a second to send")
			}
			produce, err := f.produceConfig(c)
			if err != nil {
				return usage(c, err)
			}
			consume, err := a.consumeConfig(c, f)
			defer closeAll(consume.Clients)
			if err != nil {
				return usage(c, err)
			}
			ctx, stop := interruptible(c)
			defer stop()
			if produce.Addrs, err = a.prepare(ctx, c, f); err != nil {
				return err
			}
			e, err := bench.NewEndToEnd(produce, consume)
			if err != nil {
				return usage(c, err)
			}
			var sent, received pace
			return a.measure(ctx, f, load{run: e.Run, report: e.Report, tell: func(s float64) string {
				return fmt.Sprintf("%.0f s  %s, %s, %s errors", s, sent.text("acknowledged", e.Acked()), received.text("received", e.Received()), bench.Thousands(e.Failed()))
			}})
		},
	}
	f.registerCommon(c)
	f.registerProduce(c, 5_000, 500)
	f.registerConsume(c, 1)
	completeFlag(c, "topic", a.completeTopics(0))
	completeFlag(c, "group", a.completeGroups(0))
	return c
}
