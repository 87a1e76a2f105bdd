package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// clockTicks is the unit of /proc/PID/stat, 1/100 s on every Linux that Go runs on.
const clockTicks = 100

// RSS is the resident memory of the broker in bytes.
func (b *Broker) RSS(t testing.TB) int64 {
	t.Helper()
	for line := range strings.Lines(b.proc(t, "status")) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmRSS in /proc")
	return 0
}

// CPU is the processor time that the broker has used.
func (b *Broker) CPU(t testing.TB) time.Duration {
	t.Helper()
	stat := b.proc(t, "stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from field 3 on
	var ticks int64
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / clockTicks
}

// OpenFiles counts the file descriptors of the broker.
func (b *Broker) OpenFiles(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

func (b *Broker) proc(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.PID(), file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
