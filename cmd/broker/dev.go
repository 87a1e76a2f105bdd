package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/skeinmq/skein/internal/conf"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/spf13/cobra"
)

func devCommand() *cobra.Command {
	var (
		dir     string
		brokers int
	)
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker on loopback, ready to try",
		Long: `Runs a broker on 127.0.0.1 with the default ports and prints three commands to try.

The data goes to a temporary folder that is removed at the end, or is kept in --data.
All settings of "broker serve" are taken from flags and the environment too.`,
		Example: `  broker dev
  broker dev --data ./skein-data --flush interval`,
		Args: cobra.NoArgs,
	}
	conf.RegisterFlags(cmd.Flags(), devFixes...)
	cmd.Flags().StringVar(&dir, "data", "", "folder for the data, kept when the broker ends (default: a temporary one)")
	cmd.Flags().IntVar(&brokers, "brokers", 1, "number of brokers; this version runs one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if brokers != 1 {
			return fmt.Errorf("--brokers %d: this version runs clusters of one broker; allowed: 1", brokers)
		}
		return dev(cmd, dir)
	}
	return cmd
}

// devFixes are the settings that "dev" chooses itself, whatever the environment says.
var devFixes = []string{"data-dir", "brokers", "ordinal", "advertise"}

// devHost is where "dev" listens unless told otherwise.
const devHost = "127.0.0.1"

func dev(cmd *cobra.Command, dir string) error {
	cfg, err := conf.Load(cmd.Flags(), func(name string) (string, bool) {
		if slices.ContainsFunc(devFixes, func(f string) bool { return name == "SKEIN_"+strings.ToUpper(strings.ReplaceAll(f, "-", "_")) }) {
			return "", false
		}
		return os.LookupEnv(name)
	})
	if err != nil {
		return err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "skein-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	cfg.DataDir = dir
	if cfg.Bind == "" {
		cfg.Bind = devHost
	}
	host := cfg.Bind
	members, err := discovery.NewStatic(0, []string{host})
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	return runNode(cmd.Context(), cfg, members, newLogger(cfg, os.Stderr), func(n *node) { greet(out, n, host, dir) })
}

// greet prints where the broker is and what to try.
func greet(w io.Writer, n *node, host, dir string) {
	base := fmt.Sprintf("http://%s:%d", host, n.cfg.ClientPort)
	fmt.Fprintf(w, `Skein runs on %s, data in %s

  discovery, admin, produce and consume  %s
  produce (HTTP)                         %s:%d
  consume (HTTP)                         %s:%d
  produce (binary)                       %s:%d
  metrics                                http://%s:%d/metrics

Try:

  curl -d '{"productId":123,"units":-5}' '%s/v1/topic/product-stock/messages?partitionKey=123'
  curl -X PUT '%s/v1/consumer/register?consumerId=1&group=g1&topic=product-stock&onNewGroup=startFromEarliest'
  curl -X POST -H 'Accept: application/json' '%s/v1/consumer/poll?consumerId=1'

Ctrl-C ends it.
`, host, dir, base, host, n.cfg.ProducerPort, host, n.cfg.ConsumerPort, host, n.cfg.ProducerBinaryPort, host, n.cfg.MetricsPort, base, base, base)
}
