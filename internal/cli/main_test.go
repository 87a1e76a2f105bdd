package cli

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skeinmq/skein/internal/cli/clitest"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files of this package")

func TestMain(m *testing.M) {
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// now is what the commands take for the current time: an hour after the start of the broker in memory.
var now = time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC)

// result is what a command did.
type result struct {
	out, err string
	code     int
}

// root is a root with the client commands, as cmd/broker makes it.
func root(o Options) *cobra.Command {
	c := &cobra.Command{Use: "broker", SilenceErrors: true, SilenceUsage: true}
	c.AddCommand(Commands(o)...)
	return c
}

// runCtx runs a command line against a broker, nil for none.
func runCtx(ctx context.Context, t *testing.T, b *clitest.Broker, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	env := map[string]string{}
	if b != nil {
		env["SKEIN_BROKER"] = b.URL
	}
	c := root(Options{
		In: strings.NewReader(stdin), Out: &out, Err: &errs, Now: func() time.Time { return now },
		Getenv: func(name string) string { return env[name] }, Terminal: func(any) bool { return false },
	})
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&errs)
	err := c.ExecuteContext(ctx)
	if err != nil {
		errs.WriteString("broker: " + err.Error() + "\n")
	}
	return result{out.String(), errs.String(), ExitCode(err)}
}

func run(t *testing.T, b *clitest.Broker, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return runCtx(ctx, t, b, stdin, args...)
}

// mustRun is run that wants exit code 0 and gives stdout.
func mustRun(t *testing.T, b *clitest.Broker, stdin string, args ...string) string {
	t.Helper()
	r := run(t, b, stdin, args...)
	if r.code != 0 {
		t.Fatalf("broker %s: exit code %d\n%s", strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (make it with -update)", err)
	}
	if got != string(want) {
		t.Errorf("%s differs from what was printed:\n--- want\n%s--- got\n%s", path, want, got)
	}
}

// mask replaces what differs from run to run.
func mask(s string, b *clitest.Broker) string {
	s = strings.ReplaceAll(s, b.URL, "http://BROKER")
	return strings.ReplaceAll(s, strings.TrimPrefix(b.URL, "http://"), "BROKER")
}
