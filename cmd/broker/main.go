// Command broker is Skein: the broker itself (dev, serve) and the client to it (produce, consume, topics, groups,
// cluster, bench). Only this package wires constructors together and ends the process.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/skeinmq/skein/internal/cli"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "broker: "+err.Error())
		os.Exit(cli.ExitCode(err)) //nolint:gocritic // stop has nothing left to do
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Skein, a durable ordered log without anything to operate",
		Long: `Skein is a message broker: a durable, ordered log, written over HTTP and read by
consumer groups or by offset.

Start one for development, then produce and consume:

  broker dev
  echo '{"productId":123,"units":-5}' | broker produce product-stock --key 123
  broker consume product-stock --group g1 --from earliest -n 1

In containers, "broker serve" takes all settings from the environment.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.AddGroup(&cobra.Group{ID: "server", Title: "Run a broker:"}, &cobra.Group{ID: "client", Title: "Use a broker:"})
	for _, c := range []*cobra.Command{devCommand(), serveCommand()} {
		c.GroupID = "server"
		cmd.AddCommand(c)
	}
	for _, c := range cli.Commands(cli.Options{}) {
		c.GroupID = "client"
		cmd.AddCommand(c)
	}
	cmd.AddCommand(versionCommand())
	return cmd
}
