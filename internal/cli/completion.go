package cli

import (
	"context"
	"strings"
	"time"

	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/spf13/cobra"
)

// completionTimeout bounds what a key press in a shell may cost.
const completionTimeout = time.Second

type completer = func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective)

// completeTopics completes names of topics, at most limit of them (0: no limit).
func (a *app) completeTopics(limit int) completer {
	return a.completeNames(limit, func(ctx context.Context, client *api.Client) ([]string, error) {
		topics, _, err := client.Topics(ctx)
		names := make([]string, len(topics))
		for i, t := range topics {
			names[i] = t.Name
		}
		return names, err
	})
}

// completeGroups completes names of groups.
func (a *app) completeGroups(limit int) completer {
	return a.completeNames(limit, func(ctx context.Context, client *api.Client) ([]string, error) {
		groups, _, err := client.Groups(ctx)
		names := make([]string, len(groups))
		for i, g := range groups {
			names[i] = g.Name
		}
		return names, err
	})
}

func (a *app) completeNames(limit int, list func(context.Context, *api.Client) ([]string, error)) completer {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if limit > 0 && len(args) >= limit {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		client, err := a.client(c)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer client.Close()
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		names, err := list(ctx, client)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return without(names, args, prefix), cobra.ShellCompDirectiveNoFileComp
	}
}

// without are the names that begin with prefix and are not given yet.
func without(names, given []string, prefix string) []string {
	skip := make(map[string]bool, len(given))
	for _, name := range given {
		skip[name] = true
	}
	var out []string
	for _, name := range names {
		if strings.HasPrefix(name, prefix) && !skip[name] {
			out = append(out, name)
		}
	}
	return out
}

// completeFlag sets how the value of a flag is completed. The flag exists.
func completeFlag(c *cobra.Command, flag string, f completer) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("cli: completion of a flag that " + c.Name() + " does not have: " + err.Error())
	}
}

// words completes a fixed list of words.
func words(list ...string) completer {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}
