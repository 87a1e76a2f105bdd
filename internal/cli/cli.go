package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/skeinmq/skein/internal/cli/api"
	"github.com/spf13/cobra"
)

// Options are what the commands take from their surroundings. The zero value is that of a process.
type Options struct {
	In       io.Reader           // default os.Stdin
	Out, Err io.Writer           // default os.Stdout, os.Stderr
	Getenv   func(string) string // default os.Getenv
	Now      func() time.Time    // default time.Now
	Terminal func(any) bool      // tells whether In, Out or Err is a terminal
}

// Commands are the client commands, for the root of cmd/broker. Each prints its results to o.Out and returns its error
// unprinted: the caller writes it to stderr and exits with ExitCode.
func Commands(o Options) []*cobra.Command {
	a := &app{Options: o.withDefaults()}
	commands := []*cobra.Command{
		a.produceCommand(), a.consumeCommand(), a.topicsCommand(), a.groupsCommand(), a.clusterCommand(), a.benchCommand(),
	}
	for _, c := range commands {
		a.finish(c)
	}
	return commands
}

func (o Options) withDefaults() Options {
	if o.In == nil {
		o.In = os.Stdin
	}
	if o.Out == nil {
		o.Out = os.Stdout
	}
	if o.Err == nil {
		o.Err = os.Stderr
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Terminal == nil {
		o.Terminal = isTerminal
	}
	return o
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}

// app holds what all commands share. Flags are parsed into it, so one app runs one command.
type app struct {
	Options
	broker  string
	timeout time.Duration
	errMu   sync.Mutex // guards writes to Err
}

// finish sets what is common to a top command and all below it.
func (a *app) finish(top *cobra.Command) {
	broker := a.Getenv("SKEIN_BROKER")
	if broker == "" {
		broker = api.DefaultBroker
	}
	f := top.PersistentFlags()
	f.StringVar(&a.broker, "broker", broker, "broker to talk to, `HOST:PORT` or URL, several with commas (SKEIN_BROKER)")
	f.Var(newDurationFlag(&a.timeout, 15*time.Second), "timeout", "how long one request to the broker may take")
	a.finishAll(top)
}

func (a *app) finishAll(c *cobra.Command) {
	c.SilenceErrors, c.SilenceUsage = true, true
	c.DisableFlagsInUseLine = true
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usage(c, err) })
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usage(c, err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		a.finishAll(sub)
	}
}

// group makes a command that only holds others: alone it shows its help, with anything unknown it fails.
func group(use, short, long string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Long: long,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return c.Help()
			}
			hint := ""
			if near := c.SuggestionsFor(args[0]); len(near) > 0 {
				hint = fmt.Sprintf("; did you mean %q?", near[0])
			}
			return usage(c, fmt.Errorf("unknown command %q for %q%s", args[0], c.CommandPath(), hint))
		},
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(subs...)
	return c
}

func usage(c *cobra.Command, err error) error { return &usageError{command: c.CommandPath(), err: err} }

func usagef(c *cobra.Command, format string, args ...any) error {
	return usage(c, fmt.Errorf(format, args...))
}

// client makes the client that the flags ask for.
func (a *app) client(c *cobra.Command) (*api.Client, error) {
	client, err := api.New(api.Config{Brokers: a.broker, Timeout: a.timeout})
	if err != nil {
		return nil, usagef(c, "--broker: %w", err)
	}
	return client, nil
}

// interruptible is the command's context, ended by SIGINT and SIGTERM too. After the first signal the next one has its
// default effect again, so that a command that hangs can be ended.
func interruptible(c *cobra.Command) (context.Context, context.CancelFunc) {
	parent := c.Context()
	if parent == nil {
		parent = context.Background()
	}
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// note writes a line for people to stderr.
func (a *app) note(format string, args ...any) {
	a.errMu.Lock()
	defer a.errMu.Unlock()
	fmt.Fprintf(a.Err, format+"\n", args...)
}

// printJSON writes v, indented, as one document.
func (a *app) printJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	out.WriteByte('\n')
	_, err = a.Out.Write(out.Bytes())
	return err
}
