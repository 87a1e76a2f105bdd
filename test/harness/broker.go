package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// The default ports, which every broker of the harness has on an address of its own.
const (
	AdminPort    = 9250
	ProducePort  = 9251
	ConsumePort  = 9252
	MetricsPort  = 9253
	BinaryPort   = 9254
	readyTimeout = 30 * time.Second
)

// Options say how a broker is started. The zero value is `broker serve` with a data folder of its own.
type Options struct {
	Args    []string          // default: serve
	Dir     string            // data folder; default: a temporary one of the test
	Env     map[string]string // settings, such as SKEIN_FLUSH
	Host    string            // loopback address; default: a free one
	NoReady bool              // do not wait until it is ready
}

// Broker is a running broker process.
type Broker struct {
	Host    string
	Dir     string
	Started time.Time     // when the process was started
	ReadyIn time.Duration // from Started until it said that it is ready

	cmd     *exec.Cmd
	log     string        // path of its standard error
	out     string        // path of its standard output
	done    chan struct{} // closed when the process has ended
	waitErr error         // set before done
	client  *http.Client
}

// Start starts a broker and waits until it is ready. The end of the test kills it, and shows its log if it failed.
func Start(t testing.TB, o Options) *Broker {
	t.Helper()
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	if o.Host == "" {
		o.Host = FreeHost(t)
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Args == nil {
		o.Args = []string{"serve"}
	}
	logs := t.TempDir()
	b := &Broker{
		Host: o.Host,
		Dir:  o.Dir,
		log:  filepath.Join(logs, "stderr"),
		out:  filepath.Join(logs, "stdout"),
		done: make(chan struct{}),
		client: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true},
			Timeout:   60 * time.Second,
		},
	}
	env := map[string]string{
		"SKEIN_BROKERS":  o.Host,
		"SKEIN_ORDINAL":  "0",
		"SKEIN_DATA_DIR": o.Dir,
	}
	maps.Copy(env, o.Env)
	b.cmd = exec.Command(binary, o.Args...)
	b.cmd.Env = cleanEnv(env)
	if err := b.start(); err != nil {
		t.Fatalf("start the broker: %v", err)
	}
	t.Cleanup(func() {
		b.Kill()
		b.client.CloseIdleConnections()
		for _, sign := range []string{"DATA RACE", "panic", "fatal error"} {
			if strings.Contains(b.Log(), sign) {
				t.Errorf("the log of broker %s has %q:\n%s", b.Host, sign, from(b.Log(), sign, 80))
			}
		}
		if t.Failed() {
			t.Logf("the end of the log of broker %s:\n%s", b.Host, tail(b.Log(), 60))
		}
	})
	if !o.NoReady {
		if err := b.WaitReady(readyTimeout); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// cleanEnv is the environment of this process without settings of the broker, and with those of env.
func cleanEnv(env map[string]string) []string {
	var out []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SKEIN_") {
			out = append(out, kv)
		}
	}
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	return out
}

// start starts the process from a thread that stays until it ends, so that the kernel kills it should this process die.
func (b *Broker) start() error {
	stderr, err := os.Create(b.log)
	if err != nil {
		return err
	}
	stdout, err := os.Create(b.out)
	if err != nil {
		return err
	}
	b.cmd.Stdout, b.cmd.Stderr = stdout, stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		b.Started = time.Now()
		err := b.cmd.Start()
		started <- err
		if err == nil {
			b.waitErr = b.cmd.Wait()
		}
		stdout.Close()
		stderr.Close()
		close(b.done)
	}()
	return <-started
}

// WaitReady waits until the broker says that it is ready.
func (b *Broker) WaitReady(timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var last string
	for {
		select {
		case <-b.done:
			return fmt.Errorf("the broker ended before it was ready: %v\n%s", b.waitErr, tail(b.Log(), 40))
		case <-ctx.Done():
			return fmt.Errorf("the broker is not ready after %s: %s\n%s", timeout, last, tail(b.Log(), 40))
		case <-time.After(5 * time.Millisecond):
		}
		r, err := b.client.Get(b.URL(AdminPort, "/healthz/ready"))
		if err != nil {
			last = err.Error()
			continue
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode == http.StatusOK {
			b.ReadyIn = time.Since(b.Started)
			return nil
		}
		last = fmt.Sprintf("%s %s", r.Status, body)
	}
}

// Kill sends SIGKILL and waits for the end.
func (b *Broker) Kill() {
	b.cmd.Process.Signal(syscall.SIGKILL)
	<-b.done
	b.client.CloseIdleConnections()
}

// Signal sends sig and returns at once.
func (b *Broker) Signal(sig syscall.Signal) error { return b.cmd.Process.Signal(sig) }

// Stop sends SIGTERM, waits for the end and says how long it took. An exit code other than 0 is an error; so is a
// process that is still there after timeout, which is then killed.
func (b *Broker) Stop(timeout time.Duration) (time.Duration, error) {
	start := time.Now()
	if err := b.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	select {
	case <-b.done:
		b.client.CloseIdleConnections()
		return time.Since(start), b.waitErr
	case <-time.After(timeout):
		b.Kill()
		return time.Since(start), fmt.Errorf("the broker has not ended %s after SIGTERM", timeout)
	}
}

// Done is closed when the process has ended.
func (b *Broker) Done() <-chan struct{} { return b.done }

// Alive tells whether the process runs.
func (b *Broker) Alive() bool {
	select {
	case <-b.done:
		return false
	default:
		return true
	}
}

// PID is the id of the process.
func (b *Broker) PID() int { return b.cmd.Process.Pid }

// Log is what the broker has written to its standard error.
func (b *Broker) Log() string { return readFile(b.log) }

// Stdout is what the broker has written to its standard output.
func (b *Broker) Stdout() string { return readFile(b.out) }

func readFile(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// from is some lines of text from the first that contains sign on.
func from(text, sign string, lines int) string {
	all := strings.Split(text, "\n")
	i := slices.IndexFunc(all, func(line string) bool { return strings.Contains(line, sign) })
	return strings.Join(all[i:min(i+lines, len(all))], "\n")
}

// tail is the last lines of text.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Addr is host:port of one of the broker's ports.
func (b *Broker) Addr(port int) string { return net.JoinHostPort(b.Host, strconv.Itoa(port)) }

// URL is the http URL of a path, which begins with a slash and may have a query.
func (b *Broker) URL(port int, path string) string { return "http://" + b.Addr(port) + path }

var hosts atomic.Uint32

// FreeHost finds a loopback address on which all default ports are free. Two test processes look in different places.
func FreeHost(t testing.TB) string {
	t.Helper()
	pid := os.Getpid()
	for range 500 {
		n := hosts.Add(1)
		host := fmt.Sprintf("127.%d.%d.%d", 1+pid%254, pid/254%254, 1+n%250)
		if err := portsFree(host); err == nil {
			return host
		}
	}
	t.Fatal("no free loopback address found")
	return ""
}

func portsFree(host string) error {
	var err error
	for port := AdminPort; port <= AdminPort+6; port++ {
		l, lerr := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		if lerr == nil {
			lerr = l.Close()
		}
		err = errors.Join(err, lerr)
	}
	return err
}
