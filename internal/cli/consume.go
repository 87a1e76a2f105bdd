package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

// consumeFlags are the flags of consume.
type consumeFlags struct {
	group      string
	id         string
	from       string
	offset     int64
	offsetSet  bool
	partitions []int
	number     int64
	follow     bool
	json       bool
	format     string
	maxRecords int
}

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	c := &cobra.Command{
		Use:   "consume TOPIC...",
		Short: "Read records, as a member of a group or by offset",
		Long: `Read records of topics and print them, one a line.

With --group the command is a member of a consumer group: the members share the
partitions, and the group goes on where it stopped. What is printed is
committed, not before, so nothing is skipped; after a crash some records may be
printed again. --from says where a group starts that has no position yet.

Without --group it reads the partitions directly and leaves no trace. --from, or
--offset, says where to start; what is stored already comes in the order of its
timestamps, and records of one partition always in order.

The command ends at the end of the topics, or after -n records; with --follow it
waits for more. Ctrl-C commits what was printed, and leaves the group.

In --format stand

  %v %s  value               %K %S  length of key, value (-1: null)
  %k     key                 %R     length of value, 4 bytes big-endian
  %t     topic               %T     timestamp, ms since the epoch
  %p     partition           %h     headers, a=b,c=d
  %o     offset              %% \n \t \xNN  these characters`,
		Example: `  # All that is there
  broker consume orders

  # As a group: go on where it stopped, and wait for more
  broker consume orders --group billing --follow

  # The last ten records of partition 3, and what comes
  broker consume orders -p 3 --offset -10 --follow

  # The last quarter of an hour, as JSON lines
  broker consume orders --from 15m --json | jq .value.total

  # Five records with key, partition and offset
  broker consume orders -n 5 --format '%k %p %o %v\n'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			f.offsetSet = c.Flags().Changed("offset")
			return a.consume(c, f, args)
		},
		ValidArgsFunction: a.completeTopics(0),
	}
	fs := c.Flags()
	fs.StringVarP(&f.group, "group", "g", "", "consumer group to be a member of")
	fs.StringVar(&f.id, "consumer-id", "", "name of this member (default: one of its own)")
	fs.StringVar(&f.from, "from", "earliest", "where to start: earliest, latest, a time (RFC 3339, or ms since the epoch), or a duration ago (15m)")
	fs.Int64VarP(&f.offset, "offset", "o", 0, "offset to start at in each partition; -N is N before its end (without --group)")
	fs.IntSliceVarP(&f.partitions, "partition", "p", nil, "read only these partitions (without --group)")
	fs.Int64VarP(&f.number, "num", "n", 0, "end after this many records (default: no limit)")
	fs.BoolVar(&f.follow, "follow", false, "wait for more at the end")
	fs.BoolVar(&f.json, "json", false, "print each record as a JSON object on one line")
	fs.StringVarP(&f.format, "format", "f", "", `print each record in this form, see above`)
	fs.IntVar(&f.maxRecords, "max-records", 1000, "most records in one answer of the broker")
	completeFlag(c, "group", a.completeGroups(0))
	completeFlag(c, "from", words("earliest", "latest"))
	return c
}

// start says where reading begins.
type start struct {
	latest bool
	time   *time.Time
	offset *int64 // negative: that many before the end
}

func (s start) String() string {
	switch {
	case s.offset != nil:
		return fmt.Sprintf("offset %d", *s.offset)
	case s.time != nil:
		return s.time.Format(time.RFC3339Nano)
	case s.latest:
		return "latest"
	}
	return "earliest"
}

// parseStart reads --from.
func parseStart(s string, now time.Time) (start, error) {
	switch strings.ToLower(s) {
	case "earliest", "start", "beginning":
		return start{}, nil
	case "latest", "end":
		return start{latest: true}, nil
	}
	t, err := parseTimestamp(s, now)
	if err != nil {
		return start{}, fmt.Errorf("%q is not earliest, latest or a time: give for example 2026-03-01T08:00:00Z, 1772352000000 (ms since the epoch) or 15m (that long ago)", s)
	}
	return start{time: &t}, nil
}

// consumer is one run of consume.
type consumer struct {
	*app
	flags  consumeFlags
	topics []string
	start  start
	form   appender
	client *api.Client
	out    *bufio.Writer
	buf    []byte
	seen   int64        // records printed
	noted  atomic.Int64 // when a failed request was last spoken of, ns
}

// errEnough ends a run that has printed -n records. errOutput means that nobody reads the output any more.
var (
	errEnough = errors.New("enough records")
	errOutput = errors.New("cannot write the output")
)

func (a *app) consume(c *cobra.Command, f consumeFlags, topics []string) error {
	r, err := a.newConsumer(f, topics)
	if err != nil {
		return usage(c, err)
	}
	if r.client, err = a.client(c); err != nil {
		return err
	}
	defer r.client.Close()
	ctx, stop := interruptible(c)
	defer stop()
	defer noticeBrokenPipe()()

	if f.group != "" {
		err = r.readGroup(ctx)
	} else {
		err = r.readDirect(ctx)
	}
	switch {
	case errors.Is(err, errOutput) && errors.Is(err, syscall.EPIPE):
		return nil // head and its like have what they want
	case errors.Is(err, errEnough), err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		what := "topic " + topics[0]
		if f.group != "" && api.StatusOf(err) != 404 {
			what = "group " + f.group
		}
		return explain(err, what)
	}
	if f.number > 0 && r.seen < f.number && ctx.Err() == nil {
		a.note("The end is reached after %d of %d records; --follow waits for more.", r.seen, f.number)
	}
	return nil
}

// noticeBrokenPipe makes a write to a closed pipe fail instead of ending the process, so that a member can leave its
// group. The result undoes it.
func noticeBrokenPipe() (undo func()) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGPIPE)
	return func() { signal.Stop(c) }
}

// newConsumer checks the flags.
func (a *app) newConsumer(f consumeFlags, topics []string) (*consumer, error) {
	for _, topic := range topics {
		if err := topology.CheckTopicName(topic, f.group == ""); err != nil {
			return nil, err
		}
	}
	switch {
	case f.group != "" && (f.offsetSet || len(f.partitions) > 0):
		return nil, errors.New("--offset and --partition read without a group; move a group with 'broker groups seek'")
	case f.group == "" && f.id != "":
		return nil, errors.New("--consumer-id names a member of a group; give --group too")
	case f.json && f.format != "":
		return nil, errors.New("--json and --format exclude each other")
	case f.number < 0:
		return nil, fmt.Errorf("-n is %d; give 1 or more, or leave it out for no limit", f.number)
	case f.maxRecords < 1:
		return nil, fmt.Errorf("--max-records is %d; give 1 or more", f.maxRecords)
	}
	if f.group != "" {
		if err := topology.CheckName("group", f.group); err != nil {
			return nil, err
		}
	}
	if f.id == "" {
		f.id = memberID()
	} else if err := topology.CheckName("consumer id", f.id); err != nil {
		return nil, err
	}
	r := &consumer{app: a, flags: f, topics: topics, form: appendLine, out: bufio.NewWriterSize(a.Out, 64<<10)}
	var err error
	if r.start, err = parseStart(f.from, a.Now()); err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	if f.offsetSet {
		r.start = start{offset: &f.offset}
	}
	if f.json {
		r.form = appendJSON
	} else if f.format != "" {
		if r.form, err = parseFormat(f.format); err != nil {
			return nil, fmt.Errorf("--format: %w", err)
		}
	}
	return r, nil
}

// memberID is a name that no other member has, and that tells where it runs.
func memberID() string {
	host, err := os.Hostname()
	if err != nil || topology.CheckName("host", host) != nil || len(host) > 64 {
		host = "cli"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}

// print prints a record. errEnough: it was the last one wanted.
func (r *consumer) print(topic string, partition int, record *api.Record) error {
	p, err := newPrinted(topic, partition, record)
	if err != nil {
		return err
	}
	if r.buf, err = r.form(r.buf[:0], p); err != nil {
		return fmt.Errorf("%s partition %d offset %d: %w", topic, partition, record.Offset, err)
	}
	if _, err := r.out.Write(r.buf); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	r.seen++
	if r.flags.number > 0 && r.seen >= r.flags.number {
		return errEnough
	}
	return nil
}

// flush hands the output on.
func (r *consumer) flush() error {
	if err := r.out.Flush(); err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

// want is how many records the next answer may have.
func (r *consumer) want() int {
	n := int64(r.flags.maxRecords)
	if r.flags.number > 0 {
		n = min(n, r.flags.number-r.seen)
	}
	return int(n)
}
