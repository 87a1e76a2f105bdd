package cli

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/cli/bench"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

func (a *app) groupsCommand() *cobra.Command {
	c := group("groups", "List, describe, move and delete consumer groups",
		`Consumer groups: members that share the partitions of topics, and the committed
position on each partition.`,
		a.groupsListCommand(), a.groupsDescribeCommand(), a.groupsSeekCommand(), a.groupsDeleteCommand())
	c.Aliases = []string{"group"}
	return c
}

func (a *app) groupsListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the groups with their members and lag",
		Example: `  broker groups list
  broker groups list --json | jq -r '.groups[] | select(.lag > 1000) | .name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			groups, raw, err := client.Groups(ctx)
			if err != nil {
				return explain(err, "groups")
			}
			if asJSON {
				return a.printJSON(raw)
			}
			t := newTable("NAME", ">MEMBERS", ">LAG", "TOPICS")
			for _, g := range groups {
				t.row(g.Name, strconv.Itoa(g.Members), strconv.FormatInt(g.Lag, 10), strings.Join(g.Topics, ","))
			}
			return t.write(a.Out)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) groupsDescribeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "describe GROUP...", Short: "Show a group: its members, and where it stands on each partition",
		Example: `  broker groups describe billing
  broker groups describe billing --json | jq '[.partitions[].lag] | add'`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeGroups(0),
		RunE: func(c *cobra.Command, names []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			for i, name := range names {
				group, raw, err := client.Group(ctx, name)
				if err != nil {
					return explain(err, "group "+name)
				}
				if asJSON {
					err = a.printJSON(raw)
				} else {
					err = a.describeGroup(group, i > 0)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) describeGroup(group topology.GroupDetail, gap bool) error {
	out := bufio.NewWriter(a.Out)
	if gap {
		fmt.Fprintln(out)
	}
	var lag int64
	for _, p := range group.Partitions {
		lag += p.Lag
	}
	if err := fields(out, [2]string{"Name", group.Name}, [2]string{"Members", strconv.Itoa(len(group.Members))},
		[2]string{"Lag", bench.Thousands(lag)}); err != nil {
		return err
	}
	if len(group.Members) > 0 {
		fmt.Fprintln(out)
		t := newTable("MEMBER", ">PARTITIONS", "TOPICS", ">IDLE")
		for _, m := range group.Members {
			t.row(m.ID, strconv.Itoa(m.Partitions), strings.Join(m.Topics, ","), a.ago(m.LastSeen))
		}
		if err := t.write(out); err != nil {
			return err
		}
	}
	if len(group.Partitions) > 0 {
		fmt.Fprintln(out)
		t := newTable("TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", "MEMBER")
		for _, p := range group.Partitions {
			t.row(p.Topic, strconv.Itoa(int(p.Partition)), offsetText(p.Committed), strconv.FormatInt(int64(p.End), 10),
				strconv.FormatInt(p.Lag, 10), p.Owner)
		}
		if err := t.write(out); err != nil {
			return err
		}
	}
	return out.Flush()
}

func offsetText(o *topology.Offset) string {
	if o == nil {
		return "-"
	}
	return strconv.FormatInt(int64(*o), 10)
}

// ago is how long before now t was, to the second.
func (a *app) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return formatDuration(max(0, a.Now().Sub(t)).Round(time.Second))
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) groupsSeekCommand() *cobra.Command {
	var topics []string
	var partition int
	var to string
	var force, asJSON bool
	c := &cobra.Command{
		Use: "seek GROUP --topic TOPIC --to WHERE", Short: "Move the positions of a group",
		Long: `Move the committed positions of a group on a topic, so that its members go on
from there. WHERE is

  earliest    the first record that is stored
  latest      the end: what is there now is skipped
  OFFSET      a number; one that is out of range is moved to the nearest that is in it
  TIME        the first record stored then or later: RFC 3339, @ and milliseconds since the epoch, or a duration ago (2h)

While members of the group are live they would go on as before, so the command
refuses; --force moves it under them, and they take the new positions up with
their next poll.`,
		Example: `  broker groups seek billing --topic orders --to earliest
  broker groups seek billing --topic orders --to 2026-03-01T08:00:00Z
  broker groups seek billing --topic orders --to 2h
  broker groups seek billing --topic orders --partition 3 --to 1200`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeGroups(1),
		RunE: func(c *cobra.Command, args []string) error {
			request, err := a.seekRequest(to)
			if err != nil {
				return usage(c, err)
			}
			if len(topics) == 0 {
				return usagef(c, "--topic names the topic to move the group on")
			}
			if c.Flags().Changed("partition") {
				if partition < 0 {
					return usagef(c, "--partition is %d; partitions begin at 0", partition)
				}
				p := topology.Partition(partition)
				request.Partition = &p
			}
			request.Force = force
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			var changes []topology.PositionChange
			for _, topic := range topics {
				request.Topic = topic
				moved, err := client.Seek(ctx, args[0], request)
				if err != nil {
					return explain(liveHint(err, "--force moves it under them"), "group "+args[0])
				}
				changes = append(changes, moved...)
			}
			return a.printChanges(changes, asJSON)
		},
	}
	f := c.Flags()
	f.StringArrayVarP(&topics, "topic", "t", nil, "topic to move the group on; may be repeated")
	f.IntVarP(&partition, "partition", "p", 0, "only this partition (default: all)")
	f.StringVar(&to, "to", "", "where to: earliest, latest, an offset, or a time")
	f.BoolVar(&force, "force", false, "also while members are live")
	f.BoolVar(&asJSON, "json", false, "print the positions as JSON")
	completeFlag(c, "topic", a.completeTopics(0))
	completeFlag(c, "to", words("earliest", "latest"))
	return c
}

// seekRequest reads --to.
func (a *app) seekRequest(to string) (topology.SeekRequest, error) {
	switch strings.ToLower(to) {
	case "":
		return topology.SeekRequest{}, errors.New("--to says where: earliest, latest, an offset or a time")
	case "earliest", "start", "beginning":
		return topology.SeekRequest{To: topology.SeekEarliest}, nil
	case "latest", "end":
		return topology.SeekRequest{To: topology.SeekLatest}, nil
	}
	if n, err := strconv.ParseInt(to, 10, 64); err == nil {
		if n < 0 {
			return topology.SeekRequest{}, fmt.Errorf("--to is %d; offsets begin at 0", n)
		}
		offset := topology.Offset(n)
		return topology.SeekRequest{To: topology.SeekOffset, Offset: &offset}, nil
	}
	t, err := parseTime(to, a.Now())
	if err != nil {
		return topology.SeekRequest{}, fmt.Errorf("--to: %q is not earliest, latest, an offset or a time (2026-03-01T08:00:00Z, @1772352000000, 15m ago as 15m)", to)
	}
	return topology.SeekRequest{To: topology.SeekTime, Time: t.UTC().Format(time.RFC3339Nano)}, nil
}

// liveHint says what to do about a group that is in use.
func liveHint(err error, how string) error {
	if api.StatusOf(err) == 409 {
		return fmt.Errorf("%w\nStop its members first (see 'broker groups describe'); %s", err, how)
	}
	return err
}

func (a *app) printChanges(changes []topology.PositionChange, asJSON bool) error {
	if asJSON {
		if changes == nil {
			changes = []topology.PositionChange{}
		}
		return a.printJSON(changes)
	}
	t := newTable("TOPIC", ">PARTITION", ">FROM", ">TO")
	for _, p := range changes {
		t.row(p.Topic, strconv.Itoa(int(p.Partition)), offsetText(p.From), strconv.FormatInt(int64(p.To), 10))
	}
	return t.write(a.Out)
}

func (a *app) groupsDeleteCommand() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "delete GROUP...", Aliases: []string{"rm"}, Short: "Forget groups with their positions",
		Long: `Forget groups and all their positions. A group with live members is refused. On
a terminal the command asks first.`,
		Example: `  broker groups delete billing --yes`,
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: a.completeGroups(0),
		RunE: func(c *cobra.Command, names []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			if err := a.confirm(yes, "Forget "+strings.Join(names, ", ")+" with all positions?"); err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			var failed error
			for _, name := range names {
				if err := client.DeleteGroup(ctx, name); err != nil {
					failed = errors.Join(failed, explain(liveHint(err, "a member that is gone leaves after a while"), "group "+name))
					continue
				}
				fmt.Fprintf(a.Out, "Group %s deleted.\n", name)
			}
			return failed
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}
