package cli

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/cli/bench"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
)

func (a *app) topicsCommand() *cobra.Command {
	c := group("topics", "List, describe, create, change and delete topics",
		`Topics: named logs of records, cut into partitions. A topic is created by the
first record that is stored in it, or here.`,
		a.topicsListCommand(), a.topicsDescribeCommand(), a.topicsCreateCommand(), a.topicsDeleteCommand(),
		a.topicsConfigCommand(), a.topicsApplyCommand())
	c.Aliases = []string{"topic"}
	return c
}

func (a *app) topicsListCommand() *cobra.Command {
	var asJSON, internal bool
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the topics",
		Example: `  broker topics list
  broker topics list --json | jq -r '.topics[].name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			topics, raw, err := client.Topics(ctx)
			if err != nil {
				return explain(err, "topics")
			}
			if asJSON {
				return a.printJSON(raw)
			}
			t := newTable("NAME", ">PARTITIONS", ">RETENTION", "ID")
			for _, topic := range topics {
				if internal || !strings.HasPrefix(topic.Name, "__") {
					t.row(topic.Name, strconv.Itoa(topic.Partitions), retentionOf(topic), topic.ID.String())
				}
			}
			return t.write(a.Out)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&internal, "internal", false, "also topics of the broker itself, which begin with __")
	return c
}

// effective is the config that holds for a topic, with the broker's defaults.
func effective(t api.TopicInfo) topology.TopicConfig {
	if t.Effective != nil {
		return *t.Effective
	}
	return t.Config
}

func retentionOf(t api.TopicInfo) string {
	config := effective(t)
	var parts []string
	if config.RetentionMS != nil && *config.RetentionMS >= 0 {
		parts = append(parts, settingByName("retention").show(*config.RetentionMS))
	}
	if config.RetentionBytes != nil && *config.RetentionBytes >= 0 {
		parts = append(parts, settingByName("retention-bytes").show(*config.RetentionBytes))
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case config.RetentionMS == nil:
		return "default"
	}
	return "none"
}

func (a *app) topicsDescribeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "describe TOPIC...", Short: "Show a topic with its settings and partitions",
		Example: `  broker topics describe orders
  broker topics describe orders --json | jq '[.logs[].highWatermark] | add'`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeTopics(0),
		RunE: func(c *cobra.Command, names []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			for i, name := range names {
				topic, raw, err := client.Topic(ctx, name)
				if err != nil {
					return explain(err, "topic "+name)
				}
				if asJSON {
					err = a.printJSON(raw)
				} else {
					err = a.describeTopic(topic, i > 0)
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

func (a *app) describeTopic(topic api.TopicInfo, gap bool) error {
	out := bufio.NewWriter(a.Out)
	if gap {
		fmt.Fprintln(out)
	}
	var records, size int64
	for _, l := range topic.Logs {
		records += l.HighWatermark - l.Start
		size += l.Bytes
	}
	rows := [][2]string{
		{"Name", topic.Name}, {"Id", topic.ID.String()}, {"Partitions", strconv.Itoa(topic.Partitions)},
		{"Records", bench.Thousands(records)}, {"Size", formatBytes(size)}, {"Created", formatTime(topic.Created)},
	}
	rows = append(rows, configRows(topic)...)
	if err := fields(out, rows...); err != nil {
		return err
	}
	fmt.Fprintln(out)
	t := newTable(">PARTITION", ">LEADER", ">GENERATION", ">START", ">END", ">RECORDS", ">SIZE", ">SEGMENTS")
	for _, l := range topic.Logs {
		t.row(strconv.Itoa(l.Partition), optional(l.Leader), optional(l.Generation), strconv.FormatInt(l.Start, 10),
			strconv.FormatInt(l.HighWatermark, 10), strconv.FormatInt(l.HighWatermark-l.Start, 10), formatBytes(l.Bytes), strconv.Itoa(l.Segments))
	}
	if err := t.write(out); err != nil {
		return err
	}
	for _, l := range topic.Logs {
		for _, d := range l.Damaged {
			fmt.Fprintf(out, "Partition %d: the records %d to %d are damaged on disk and left out.\n", l.Partition, d.From, d.To-1)
		}
	}
	return out.Flush()
}

// optional writes a number that may not be known.
func optional[T int | int64](n *T) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func (a *app) topicsCreateCommand() *cobra.Command {
	var partitions int
	var asJSON bool
	var settings settingFlags
	c := &cobra.Command{
		Use: "create TOPIC...", Short: "Create topics",
		Long: `Create topics. A topic that exists with the same settings is left alone; with
others the command fails.

The number of partitions is 1, or 3 times a power of two (3, 6, 12, 24, ...). It
is fixed: it bounds how many members of a group can share the topic, and decides
which partition a key is in.`,
		Example: `  broker topics create orders
  broker topics create events --partitions 24 --retention 3d --retention-bytes 10GiB
  broker topics create audit --retention none`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, names []string) error {
			config, err := settings.patch(c)
			if err != nil {
				return usage(c, err)
			}
			if err := checkNewTopics(c, names, partitions); err != nil {
				return err
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			for _, name := range names {
				topic, created, err := client.CreateTopic(ctx, api.NewTopic{Name: name, Partitions: partitions, Config: withoutNull(config)})
				if err != nil {
					return explain(conflictHint(err, name), "topic "+name)
				}
				if err := a.reportTopic(topic, changeWord(created), asJSON); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().IntVar(&partitions, "partitions", 0, "how many partitions: 1, 3, 6, 12, 24, ... (default: the broker's)")
	c.Flags().BoolVar(&asJSON, "json", false, "print the topics as JSON")
	settings.register(c, false)
	return c
}

func checkNewTopics(c *cobra.Command, names []string, partitions int) error {
	for _, name := range names {
		if err := topology.CheckTopicName(name, false); err != nil {
			return usage(c, err)
		}
	}
	if partitions != 0 {
		if err := topology.CheckPartitions(partitions); err != nil {
			return usage(c, err)
		}
	}
	return nil
}

// conflictHint says what to do about a topic that exists with other settings.
func conflictHint(err error, name string) error {
	if api.StatusOf(err) == 409 {
		return fmt.Errorf("%w\nSee 'broker topics describe %s'; change settings with 'broker topics config %s'", err, name, name)
	}
	return err
}

func changeWord(created bool) string {
	if created {
		return "created"
	}
	return "exists"
}

// reportTopic says what became of a topic.
func (a *app) reportTopic(topic api.TopicInfo, what string, asJSON bool) error {
	if asJSON {
		return a.printJSON(topic)
	}
	_, err := fmt.Fprintf(a.Out, "Topic %s %s: %d partitions, retention %s.\n", topic.Name, what, topic.Partitions, retentionOf(topic))
	return err
}

func (a *app) topicsDeleteCommand() *cobra.Command {
	var yes, ifExists bool
	c := &cobra.Command{
		Use: "delete TOPIC...", Aliases: []string{"rm"}, Short: "Delete topics with their records and positions",
		Long: `Delete topics, with all their records and the positions of all groups on them.
It cannot be undone. On a terminal the command asks first.`,
		Example: `  broker topics delete orders --yes`,
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: a.completeTopics(0),
		RunE: func(c *cobra.Command, names []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			if err := a.confirm(yes, "Delete "+strings.Join(names, ", ")+" with all records?"); err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			var failed error
			for _, name := range names {
				err := client.DeleteTopic(ctx, name)
				switch {
				case err == nil:
					fmt.Fprintf(a.Out, "Topic %s deleted.\n", name)
				case ifExists && api.StatusOf(err) == 404:
				default:
					failed = errors.Join(failed, explain(err, "topic "+name))
				}
			}
			return failed
		},
	}
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.Flags().BoolVar(&ifExists, "if-exists", false, "a topic that does not exist is no error")
	return c
}

// confirm asks a person, where one is there.
func (a *app) confirm(yes bool, question string) error {
	if yes || !a.Terminal(a.In) || !a.Terminal(a.Err) {
		return nil
	}
	fmt.Fprintf(a.Err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(a.In).ReadString('\n')
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer == "y" || answer == "yes" {
		return nil
	}
	if err != nil {
		fmt.Fprintln(a.Err)
	}
	return errors.New("nothing was deleted; answer y, or give --yes")
}

func (a *app) topicsConfigCommand() *cobra.Command {
	var asJSON bool
	var settings settingFlags
	c := &cobra.Command{
		Use: "config TOPIC...", Short: "Show or change the settings of topics",
		Long: `Show the settings of topics, or change those that flags name. The value
"default" goes back to the broker's default, "none" takes a limit away.`,
		Example: `  broker topics config orders
  broker topics config orders --retention 3d --retention-bytes none
  broker topics config orders payments --max-record-bytes default`,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeTopics(0),
		RunE: func(c *cobra.Command, names []string) error {
			patch, err := settings.patch(c)
			if err != nil {
				return usage(c, err)
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			for i, name := range names {
				if len(patch) > 0 {
					if _, err := client.UpdateTopic(ctx, name, patch); err != nil {
						return explain(err, "topic "+name)
					}
				}
				topic, _, err := client.Topic(ctx, name)
				if err != nil {
					return explain(err, "topic "+name)
				}
				if err := a.showConfig(topic, asJSON, len(names) > 1, i > 0); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON: name, what the topic sets, what holds")
	settings.register(c, true)
	return c
}

func (a *app) showConfig(topic api.TopicInfo, asJSON, named, gap bool) error {
	if asJSON {
		return a.printJSON(struct {
			Name      string               `json:"name"`
			Config    topology.TopicConfig `json:"config"`
			Effective topology.TopicConfig `json:"effectiveConfig"`
		}{topic.Name, topic.Config, effective(topic)})
	}
	head := ""
	if gap {
		head = "\n"
	}
	if named {
		head += topic.Name + "\n"
	}
	if _, err := fmt.Fprint(a.Out, head); err != nil {
		return err
	}
	return fields(a.Out, configRows(topic)...)
}
