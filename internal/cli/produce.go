package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/cli/bench"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

// Bounds of one request of produce: what comes first closes it.
const (
	defaultBatch  = 1000
	maxBatchBytes = 1 << 20
	produceLinger = 5 * time.Millisecond // wait for more lines once there is one
)

// maxInput bounds one line or whole file, in bytes: the default of max-request-bytes.
const maxInput = 16 << 20

// produceFlags are the flags of produce.
type produceFlags struct {
	key            string
	delimiter      string
	headers        []string
	ndjson         bool
	records        bool
	whole          bool
	nullEmpty      bool
	timestamp      string
	receipts       bool
	json           bool
	idempotencyKey string
	compression    string
	batch          int
	retryFor       time.Duration
}

func (a *app) produceCommand() *cobra.Command {
	var f produceFlags
	c := &cobra.Command{
		Use:   "produce TOPIC [FILE...]",
		Short: "Store records, one for each line of stdin or of files",
		Long: `Store records in a topic: one for each line of the files, or of stdin when there
are none ("-" is stdin too).

Lines are sent in batches, in order, as they come. The command returns once all
of them are acknowledged, that is durable on the broker (with its default,
flush=always). A batch that the broker cannot take now (429, 503, 507) is sent
again after a while; one whose outcome is unknown (504, a broken connection)
too, under the same idempotency key, so that no record is stored twice.

The topic is created at the first record, unless the broker forbids it.`,
		Example: `  # Three records without a key
  printf 'one\ntwo\nthree\n' | broker produce greetings

  # Key and value on each line, separated by a tab; a header for all
  broker produce orders -K '\t' -H source=import orders.tsv

  # JSON documents, checked before they are sent, under one key
  jq -c '.orders[]' dump.json | broker produce orders --ndjson --key customer-7

  # Copy a topic with keys, headers and timestamps
  broker consume orders --json | broker produce orders-copy --records

  # Run it twice, stored once
  broker produce orders --idempotency-key import-2026-03-01 orders.txt

  # A file of any bytes as one record, and where it went
  broker produce images --whole --key cat --receipts cat.png`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error { return a.produce(c, f, args[0], args[1:]) },
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeTopics(1)(c, args, prefix)
		},
	}
	fs := c.Flags()
	fs.StringVarP(&f.key, "key", "k", "", "key of all records: the same key, the same partition, in order")
	fs.StringVarP(&f.delimiter, "key-delimiter", "K", "", `each line is KEY, this text, VALUE; knows \t and \xNN`)
	fs.StringArrayVarP(&f.headers, "header", "H", nil, "header of all records, `NAME=VALUE`; may be repeated")
	fs.BoolVar(&f.ndjson, "ndjson", false, "each line is a JSON document: check it, leave blank lines out")
	fs.BoolVar(&f.records, "records", false, "each line is a record as consume --json prints it: key, value, headers, timestamp")
	fs.BoolVar(&f.whole, "whole", false, "each file is one record, whatever its bytes")
	fs.BoolVarP(&f.nullEmpty, "null-empty", "Z", false, "send empty values as null")
	fs.StringVar(&f.timestamp, "timestamp", "", "time of all records: RFC 3339, or ms since the epoch (default: now)")
	fs.BoolVar(&f.receipts, "receipts", false, "print where each record is stored")
	fs.BoolVar(&f.json, "json", false, "print receipts as JSON, one a line")
	fs.StringVar(&f.idempotencyKey, "idempotency-key", "", "name this input: a repetition with the same lines within the broker's window stores nothing")
	fs.StringVarP(&f.compression, "compression", "z", "none", "compress requests: none, gzip or zstd")
	fs.IntVar(&f.batch, "batch", defaultBatch, "most records in one request")
	fs.Var(newDurationFlag(&f.retryFor, time.Minute), "retry-for", "give up on a batch that could not be stored for this long")
	completeFlag(c, "compression", words("none", "gzip", "zstd"))
	return c
}

func (a *app) produce(c *cobra.Command, f produceFlags, topic string, files []string) error {
	p, err := a.newProducer(f, topic)
	if err != nil {
		return usage(c, err)
	}
	if p.client, err = a.client(c); err != nil {
		return err
	}
	defer p.client.Close()
	ctx, stop := interruptible(c)
	defer stop()

	if err = p.run(ctx, files); err == nil && ctx.Err() != nil && !p.interactive {
		err = fmt.Errorf("%w: the rest of the input is not stored", errInterrupted)
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", explain(err, "topic "+topic), p.summary())
	}
	if a.Terminal(a.Err) {
		a.note("%s", p.summary())
	}
	return nil
}

// producer is one run of produce.
type producer struct {
	*app
	flags       produceFlags
	topic       string
	client      *api.Client
	headers     []api.Header
	delimiter   []byte
	timestamp   int64
	interactive bool // a person types the lines: a signal is the normal end
	stored      int64
	batches     int
	duplicates  int64
	keys        func(batch int) string
}

// newProducer checks the flags.
func (a *app) newProducer(f produceFlags, topic string) (*producer, error) {
	if err := topology.CheckTopicName(topic, false); err != nil {
		return nil, err
	}
	forms := 0
	for _, on := range []bool{f.ndjson, f.records, f.whole} {
		if on {
			forms++
		}
	}
	switch {
	case forms > 1:
		return nil, errors.New("--ndjson, --records and --whole exclude each other: they say what a line is")
	case f.key != "" && f.delimiter != "":
		return nil, errors.New("--key and --key-delimiter exclude each other")
	case f.records && (f.key != "" || f.delimiter != ""):
		return nil, errors.New("--records has a key on each line; leave --key and --key-delimiter out")
	case f.whole && f.delimiter != "":
		return nil, errors.New("--whole has no lines for --key-delimiter; use --key")
	case f.batch < 1 || f.batch > 1_000_000:
		return nil, fmt.Errorf("--batch is %d; allowed are 1 to 1000000", f.batch)
	case f.compression != "none" && f.compression != "gzip" && f.compression != "zstd":
		return nil, fmt.Errorf("--compression is %q; allowed are none, gzip, zstd", f.compression)
	}
	if f.key != "" {
		if err := topology.CheckName("key", f.key); err != nil {
			return nil, err
		}
	}
	p := &producer{app: a, flags: f, topic: topic, delimiter: []byte(unescape(f.delimiter))}
	var err error
	if p.headers, err = parseHeaders(f.headers); err != nil {
		return nil, err
	}
	for _, h := range p.headers {
		if !utf8.ValidString(h.Key + h.Value) {
			return nil, fmt.Errorf("header %q is not UTF-8", h.Key)
		}
	}
	if f.timestamp != "" {
		t, err := parseTimestamp(f.timestamp, a.Now())
		if err != nil {
			return nil, fmt.Errorf("--timestamp: %w", err)
		}
		p.timestamp = t.UnixMilli()
	}
	if p.keys, err = idempotencyKeys(f.idempotencyKey); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *producer) summary() string {
	text := fmt.Sprintf("%s records stored in %s", bench.Thousands(p.stored), p.topic)
	if p.stored == 1 {
		text = fmt.Sprintf("1 record stored in %s", p.topic)
	}
	if p.duplicates > 0 {
		text += fmt.Sprintf(", %s of them before, under the same idempotency key", bench.Thousands(p.duplicates))
	}
	return text + "."
}

// run sends all input. After the end of ctx it stops reading, and sends what was read.
func (p *producer) run(ctx context.Context, files []string) error {
	if len(files) == 0 {
		files = []string{"-"}
		p.interactive = p.Terminal(p.In)
	}
	if p.interactive {
		p.note("Type records, one a line; Ctrl-D ends.")
	}
	in := newInput(p.open, files, p.flags.whole, maxInput)
	readCtx, stopReading := context.WithCancel(ctx)
	defer stopReading()
	lines := make(chan []inputLine, 16)
	done := make(chan error, 1)
	go func() { done <- in.read(readCtx, lines) }()

	// A read of stdin cannot be interrupted: when the signal comes the reader may stay behind in it, and ends with the
	// process.
	if err := p.sendAll(ctx, lines); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return nil
	}
	return <-done
}

func (p *producer) open(name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(p.In), nil
	}
	return os.Open(name)
}

// sendAll batches lines and sends the batches one after the other, which keeps the order of a key through retries.
func (p *producer) sendAll(ctx context.Context, lines <-chan []inputLine) error {
	b := newBatch(p)
	for {
		more, err := b.fill(ctx, lines)
		if err != nil {
			// What came before the wrong line is stored, so that the message names where to go on.
			return errors.Join(p.send(ctx, b), err)
		}
		if err := p.send(ctx, b); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
}
