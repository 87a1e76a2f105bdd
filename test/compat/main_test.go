package compat

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// host is where the suite looks: it knows the default ports only.
const host = "127.0.0.1"

var binary string // of the broker, built by TestMain

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "skein-compat-")
	code := 1
	if err == nil {
		err = build(filepath.Join(dir, "broker"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(dir)
	os.Exit(code)
}

func build(path string) error {
	cmd := exec.Command("go", "build", "-o", path, "./cmd/broker")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the broker: %w\n%s", err, out)
	}
	binary = path
	return nil
}

// broker is `broker dev --brokers 1` on the default ports.
type broker struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// start runs a broker on a data folder and waits until it is ready.
func start(t *testing.T, data string) *broker {
	t.Helper()
	for port := 9250; port <= 9254; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
		if err != nil {
			t.Fatalf("the published client needs the default ports on %s: %v", host, err)
		}
		l.Close()
	}
	b := &broker{cmd: exec.Command(binary, "dev", "--brokers", "1", "--data", data)}
	b.cmd.Stdout, b.cmd.Stderr = &b.log, &b.log
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.stop(t, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("log of the broker:\n%s", b.log.String())
		}
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if r, err := http.Get("http://" + host + ":9250/healthz/ready"); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return b
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the broker is not ready")
		}
	}
}

// stop ends the broker, unless it has ended.
func (b *broker) stop(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if b.cmd.ProcessState != nil {
		return
	}
	b.cmd.Process.Signal(sig)
	err := b.cmd.Wait()
	var exit *exec.ExitError
	if sig == syscall.SIGTERM && err != nil || err != nil && !errors.As(err, &exit) {
		t.Errorf("the broker ended with %v", err)
	}
}

// TestPublishedSuite runs the client's own integration suite, unmodified.
func TestPublishedSuite(t *testing.T) {
	b := start(t, t.TempDir())
	suite := exec.Command("go", "test", "-count=1", "-tags", "integration", "-v", "github.com/polarstreams/go-client/internal/test/integration")
	suite.Env = append(os.Environ(), "TEST_DISCOVERY_HOST="+host, "TEST_EXPECTED_BROKERS=1", "GONOSUMDB=github.com/polarstreams/*", "GOFLAGS=-mod=mod")
	out, err := suite.CombinedOutput()
	if err != nil {
		t.Fatalf("the suite fails: %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "7 Passed") || !strings.Contains(string(out), "0 Failed") || !strings.Contains(string(out), "0 Skipped") {
		t.Fatalf("not all 7 specs ran:\n%s", out)
	}
	b.stop(t, syscall.SIGTERM)
}
