package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/conf"
	"github.com/skeinmq/skein/internal/discovery"
	"github.com/spf13/cobra"
)

func serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker with all settings from flags or the environment",
		Long: `Runs one broker until it gets SIGTERM or SIGINT, then drains and ends with status 0.

Each setting is a flag or an environment variable; the flag wins. The variable of
--data-dir is SKEIN_DATA_DIR, and so on. docs/configuration.md lists them all.`,
		Example: `  SKEIN_ORDINAL=0 SKEIN_BROKERS=127.0.0.1 SKEIN_DATA_DIR=/var/lib/skein broker serve`,
		Args:    cobra.NoArgs,
	}
	conf.RegisterFlags(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := conf.Load(cmd.Flags(), os.LookupEnv)
		if err != nil {
			return err
		}
		log := newLogger(cfg, os.Stderr)
		for _, name := range conf.UnknownVariables(os.Environ(), "SKEIN_BROKER") {
			log.Warn().Str("variable", name).Msg("this environment variable is no setting; is it misspelt?")
		}
		members, err := membersOf(cfg)
		if err != nil {
			return err
		}
		return runNode(cmd.Context(), cfg, members, log, nil)
	}
	return cmd
}

// errOneBroker refuses what this version cannot do yet.
var errOneBroker = errors.New("this version runs clusters of one broker: name one host in SKEIN_BROKERS")

func membersOf(cfg conf.Settings) (*discovery.Static, error) {
	if len(cfg.Hosts) > 1 {
		return nil, fmt.Errorf("SKEIN_BROKERS has %d hosts: %w", len(cfg.Hosts), errOneBroker)
	}
	return discovery.NewStatic(cfg.Ordinal, cfg.Hosts)
}

// newLogger writes JSON lines, or lines for people, to w.
func newLogger(cfg conf.Settings, w io.Writer) zerolog.Logger {
	if cfg.LogFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, TimeFormat: "15:04:05.000"}
	}
	level, err := zerolog.ParseLevel(cfg.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // conf has checked it
	}
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00"
	return zerolog.New(w).Level(level).With().Timestamp().Logger()
}

// runNode opens a broker, calls opened (unless nil) once its ports are bound, serves until ctx ends, and closes it.
func runNode(ctx context.Context, cfg conf.Settings, members *discovery.Static, log zerolog.Logger, opened func(*node)) error {
	n, err := openNode(cfg, members, log)
	if err != nil {
		return err
	}
	n.log.Info().Str("version", buildInfo().Version).Str("dir", cfg.DataDir).Str("flush", n.flush().String()).
		Stringer("disk", n.db.Identity().Disk).Stringer("run", n.run).Msg("broker is starting")
	if opened != nil {
		opened(n)
	}
	err = n.serve(ctx)
	if closeErr := n.close(); err == nil {
		err = closeErr
	}
	n.log.Info().Err(err).Msg("broker has stopped")
	return err
}
