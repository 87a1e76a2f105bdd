package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/skeinmq/skein/internal/topology"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func (a *app) topicsApplyCommand() *cobra.Command {
	var file string
	var dryRun, asJSON bool
	c := &cobra.Command{
		Use: "apply -f FILE", Short: "Create and change topics so that they are as a file says",
		Long: `Create the topics of a YAML or JSON file that are missing, and change the
settings of the others to what the file says. Settings that the file does not
name stay as they are; "default" goes back to the broker's default. Topics that
the file does not name stay too. Running it again changes nothing.

  topics:
    - name: orders
      partitions: 12
      config:
        retention: 7d          # or retentionMs: 604800000
        retentionBytes: 10GiB
        maxRecordBytes: 1MiB
        segmentBytes: 128MiB
        segmentAge: 24h        # or segmentMs
    - name: audit
      config: {retention: none}`,
		Example: `  broker topics apply -f topics.yaml --dry-run
  broker topics apply -f topics.yaml
  cat topics.yaml | broker topics apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return usagef(c, "-f names the file that describes the topics; - is stdin")
			}
			wanted, err := a.readTopicsFile(file)
			if err != nil {
				return err
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			ctx, stop := interruptible(c)
			defer stop()
			return a.applyTopics(ctx, client, wanted, dryRun, asJSON)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "YAML or JSON file; - is stdin")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would change")
	c.Flags().BoolVar(&asJSON, "json", false, "print what was done as JSON")
	return c
}

// wantedTopic is a topic as a file describes it. Config has the fields of the API; nil is the broker's default.
type wantedTopic struct {
	name       string
	partitions int
	config     map[string]any
}

func (a *app) readTopicsFile(name string) ([]wantedTopic, error) {
	var text []byte
	var err error
	if name == "-" {
		text, err = io.ReadAll(io.LimitReader(a.In, maxInput))
	} else {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, fmt.Errorf("read the topics: %w", err)
	}
	topics, err := parseTopics(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return topics, nil
}

// parseTopics reads {topics: [...]}. JSON is YAML.
func parseTopics(text []byte) ([]wantedTopic, error) {
	var file struct {
		Topics []struct {
			Name       string               `yaml:"name"`
			Partitions int                  `yaml:"partitions"`
			Config     map[string]yaml.Node `yaml:"config"`
		} `yaml:"topics"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, fmt.Errorf("it does not describe topics (see 'broker topics apply --help'): %w", err)
	}
	var topics []wantedTopic
	seen := map[string]bool{}
	for i, t := range file.Topics {
		if err := topology.CheckTopicName(t.Name, false); err != nil {
			return nil, fmt.Errorf("topic %d: %w", i+1, err)
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("topic %s is described twice", t.Name)
		}
		seen[t.Name] = true
		if t.Partitions != 0 {
			if err := topology.CheckPartitions(t.Partitions); err != nil {
				return nil, fmt.Errorf("topic %s: %w", t.Name, err)
			}
		}
		w := wantedTopic{name: t.Name, partitions: t.Partitions, config: map[string]any{}}
		for field, node := range t.Config {
			if err := w.set(field, node); err != nil {
				return nil, fmt.Errorf("topic %s: config: %s: %w", t.Name, field, err)
			}
		}
		topics = append(topics, w)
	}
	return topics, nil
}

// set takes one line of a config in a file.
func (w *wantedTopic) set(field string, node yaml.Node) error {
	for _, s := range topicSettings {
		if field != s.field && field != s.plain && field != s.flag {
			continue
		}
		if _, twice := w.config[s.field]; twice {
			return errors.New("it is set twice")
		}
		if node.Kind != yaml.ScalarNode {
			return errors.New("it is no single value")
		}
		var value any
		var err error
		switch n, bad := strconv.ParseInt(node.Value, 10, 64); {
		case node.Tag == "!!null":
		case bad == nil && field == s.field && !s.bytes && n > 0:
			value = n // milliseconds, as in the API
		default:
			value, err = s.parse(node.Value)
		}
		w.config[s.field] = value
		return err
	}
	var known []string
	for _, s := range topicSettings {
		known = append(known, s.field)
		if s.plain != "" {
			known = append(known, s.plain)
		}
	}
	slices.Sort(known)
	return fmt.Errorf("no such setting; known are %s", strings.Join(known, ", "))
}

// topicChange is what apply did, or would do.
type topicChange struct {
	Name   string         `json:"name"`
	Action string         `json:"action"` // create, change, none
	Config map[string]any `json:"config,omitempty"`
}

func (a *app) applyTopics(ctx context.Context, client *api.Client, wanted []wantedTopic, dryRun, asJSON bool) error {
	changes := []topicChange{}
	var failed error
	for _, w := range wanted {
		change, err := applyTopic(ctx, client, w, dryRun)
		if err != nil {
			failed = errors.Join(failed, explain(err, "topic "+w.name))
			continue
		}
		changes = append(changes, change)
		if !asJSON {
			fmt.Fprintln(a.Out, change.text(dryRun))
		}
	}
	if asJSON {
		return errors.Join(failed, a.printJSON(changes))
	}
	return failed
}

func applyTopic(ctx context.Context, client *api.Client, w wantedTopic, dryRun bool) (topicChange, error) {
	change := topicChange{Name: w.name, Action: "none"}
	current, _, err := client.Topic(ctx, w.name)
	if api.StatusOf(err) == http.StatusNotFound {
		change.Action, change.Config = "create", withoutNull(w.config)
		if !dryRun {
			_, _, err = client.CreateTopic(ctx, api.NewTopic{Name: w.name, Partitions: w.partitions, Config: change.Config})
			return change, err
		}
		return change, nil
	}
	if err != nil {
		return change, err
	}
	if w.partitions != 0 && w.partitions != current.Partitions {
		return change, fmt.Errorf("topic %s has %d partitions, the file says %d: the number is fixed; correct the file, or create another topic", w.name, current.Partitions, w.partitions)
	}
	if change.Config = difference(w.config, configValues(current.Config)); len(change.Config) == 0 {
		return change, nil
	}
	change.Action = "change"
	if !dryRun {
		_, err = client.UpdateTopic(ctx, w.name, change.Config)
	}
	return change, err
}

// difference is what of wanted is not so now.
func difference(wanted map[string]any, now map[string]int64) map[string]any {
	patch := map[string]any{}
	for field, value := range wanted {
		current, set := now[field]
		if (value == nil && set) || (value != nil && (!set || value != current)) {
			patch[field] = value
		}
	}
	return patch
}

func (c topicChange) text(dryRun bool) string {
	word := map[string]string{"create": "created", "change": "changed", "none": "unchanged"}[c.Action]
	if dryRun && c.Action != "none" {
		word = "would be " + word
	}
	line := fmt.Sprintf("Topic %s %s", c.Name, word)
	var parts []string
	for _, field := range slices.Sorted(maps.Keys(c.Config)) {
		for _, s := range topicSettings {
			if s.field != field {
				continue
			}
			text := "default"
			if n, ok := c.Config[field].(int64); ok {
				text = s.show(n)
			}
			parts = append(parts, s.flag+" "+text)
		}
	}
	if len(parts) > 0 {
		line += ": " + strings.Join(parts, ", ")
	}
	return line + "."
}
