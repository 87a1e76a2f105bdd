//go:build faults

package image

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// dockerfile is what the test reads out of the Dockerfile.
type dockerfile struct {
	build       string   // the command that builds the binary
	uid         int      // USER
	entrypoint  []string // with CMD
	healthcheck []string
	env         []string
}

func parse(t *testing.T) dockerfile {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.Root(), "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	one := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile("(?m)" + pattern).FindStringSubmatch(string(text))
		if m == nil {
			t.Fatalf("the Dockerfile has no line %s", pattern)
		}
		return m[1]
	}
	words := func(list string) (out []string) {
		for _, w := range strings.Split(list, ",") {
			unquoted, err := strconv.Unquote(strings.TrimSpace(w))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, unquoted)
		}
		return out
	}
	uid, err := strconv.Atoi(one(`^USER (\d+):\d+$`))
	if err != nil || uid == 0 {
		t.Fatalf("USER %d: %v", uid, err)
	}
	return dockerfile{
		build:       one(`^RUN (CGO_ENABLED=0 go build .*)$`),
		uid:         uid,
		entrypoint:  append(words(one(`^ENTRYPOINT \[(.*)\]$`)), words(one(`^CMD \[(.*)\]$`))...),
		healthcheck: words(one(`^HEALTHCHECK .*CMD \[(.*)\]$`)),
		env:         []string{one(`^ENV (.*)$`)},
	}
}

// TestImage runs the image's command as its user in a root that is read-only but for /data.
func TestImage(t *testing.T) {
	d := parse(t)
	root := filepath.Join(t.TempDir(), "root")
	data := filepath.Join(root, "data")
	for _, dir := range []string{data, filepath.Join(root, "proc")} { // every container engine mounts /proc
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("bash", "-c", strings.ReplaceAll(d.build, "/out/", root+"/"))
	build.Dir = harness.Root()
	build.Env = append(os.Environ(), "VERSION=image-test", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", d.build, err, out)
	}
	info, err := os.Stat(filepath.Join(root, "broker"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the binary has %.1f MiB", float64(info.Size())/(1<<20))
	volume := t.TempDir()
	if err := os.Chown(volume, d.uid, d.uid); err != nil {
		t.Fatal(err)
	}
	bind(t, root, root, syscall.MS_RDONLY)
	bind(t, volume, data, 0)
	bind(t, "/proc", filepath.Join(root, "proc"), 0)
	if err := os.WriteFile(filepath.Join(root, "probe"), nil, 0o644); err == nil {
		t.Fatal("the root of the image is not read-only")
	}

	host := harness.FreeHost(t)
	inside := func(args []string, env ...string) *exec.Cmd {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = "/"
		cmd.Env = append(append([]string{}, d.env...), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(d.uid), Gid: uint32(d.uid)}}
		return cmd
	}
	var log bytes.Buffer
	broker := inside(d.entrypoint, "SKEIN_BROKERS="+host)
	broker.Stdout, broker.Stderr = &log, &log
	if err := broker.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- broker.Wait() }()
	stopped := false
	defer func() {
		if !stopped {
			broker.Process.Kill()
			<-ended
			t.Logf("the broker says:\n%s", &log)
		}
	}()
	url := "http://" + host + ":9250"
	harness.Eventually(t, 20*time.Second, "the broker is ready", func() bool {
		r, err := http.Get(url + "/healthz/ready")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	r, err := http.Post(url+"/v1/topic/t/messages", "application/json", strings.NewReader(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		t.Fatalf("produce: %s %s", r.Status, body)
	}
	r.Body.Close()
	if out, err := inside(d.healthcheck, "SKEIN_BROKER="+host+":9250").CombinedOutput(); err != nil {
		t.Errorf("the health check of a healthy broker: %v\n%s", err, out)
	}
	if out, err := inside([]string{"/broker", "version"}).CombinedOutput(); err != nil || !strings.Contains(string(out), "image-test") {
		t.Errorf("version: %v %s", err, out)
	}
	broker.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		stopped = true
		if err != nil {
			t.Errorf("the broker ended with %v:\n%s", err, &log)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the broker has not ended 30 s after SIGTERM")
	}
	if out, err := inside(d.healthcheck, "SKEIN_BROKER="+host+":9250").CombinedOutput(); err == nil {
		t.Errorf("the health check of a broker that is gone says it is well:\n%s", out)
	}
}

// bind mounts a folder on another, with flags, until the test ends.
func bind(t *testing.T, from, to string, flags uintptr) {
	t.Helper()
	err := syscall.Mount(from, to, "", syscall.MS_BIND, "")
	if err == nil && flags != 0 {
		err = syscall.Mount("", to, "", syscall.MS_BIND|syscall.MS_REMOUNT|flags, "")
	}
	if err != nil {
		t.Fatalf("bind %s on %s (this test needs root): %v", from, to, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(to, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
