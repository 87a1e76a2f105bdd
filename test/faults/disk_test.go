//go:build faults

package faults

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/skeinmq/skein/test/harness"
)

// smallDisk mounts a tmpfs of some MiB, which needs root.
func smallDisk(t *testing.T, mib int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm,mode=755", mib)); err != nil {
		t.Fatalf("mount a tmpfs (this test needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill writes a file until not one byte more fits.
func fill(t *testing.T, path string) (written int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		n, err := f.Write(make([]byte, size))
		written += int64(n)
		if errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return written
}

func free(t *testing.T, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// TestFullDisk fills a disk of 64 MiB by producing, then to the last byte by a foreign file. Produce is refused with
// 507 and nothing crashes; polls and commits go on; once retention has freed space produce works again, in the same
// process (docs/design.md, section 5).
func TestFullDisk(t *testing.T) {
	_, seed := random(t)
	disk := smallDisk(t, 64)
	data := filepath.Join(disk, "data")
	b := harness.Start(t, harness.Options{Dir: data})
	pid := b.PID()
	const partitions = 3
	b.CreateTopic(t, "full", partitions, `{"segmentBytes":1048576}`)
	b.CreateTopic(t, "other", 1, "")

	// 1. Produce until the disk says no.
	ledger := harness.NewLedger()
	load := harness.StartLoad(b, ledger, harness.LoadOptions{Topic: "full", Name: "f", Binary: 2, HTTP: 2, Seed: seed, MinSize: 4000, MaxSize: 8000})
	harness.Eventually(t, time.Minute, "records are refused", func() bool { return ledger.Count(harness.Refused) > 1000 })
	load.Stop()
	load.CheckErrors(t)
	t.Logf("%d records stored, %d MiB free", ledger.Count(harness.Acked), free(t, disk)>>20)
	refusedFor(t, b)

	// 2. A foreign file takes the rest, to the last byte.
	foreign := filepath.Join(disk, "foreign")
	t.Logf("a foreign file took %d KiB, %d bytes are free", fill(t, foreign)>>10, free(t, disk))
	refusedFor(t, b)

	// Polls and commits go on: a whole pass over the topic, committed, by a group that is new.
	checker := harness.NewChecker(ledger)
	b.Register(t, "c", "g", "full")
	polled := 0
	for empty := 0; empty < 3; {
		records, _, err := b.Poll("c", "wait=200ms")
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			empty++
			continue
		}
		polled += len(records)
		for _, r := range records {
			checker.Add(r.Partition, r.Offset, r.Value)
		}
		if polled%7 == 0 {
			b.Must(t, http.StatusNoContent, "POST", harness.ConsumePort, "/v1/consumer/commit?consumerId=c", "")
		}
	}
	b.Must(t, http.StatusNoContent, "POST", harness.ConsumePort, "/v1/consumer/commit?consumerId=c", "")
	if bad := checker.Report().Bad(); bad != "" {
		t.Errorf("polled from the full disk:\n%s", bad)
	}
	refusedFor(t, b)

	// 3. Somebody takes what the broker gave up, too. It may refuse everything now, but it stays, and so does its data.
	t.Logf("the foreign file took another %d KiB, %d bytes are free", fill(t, foreign)>>10, free(t, disk))
	for range 20 {
		if status, err := b.Produce("other", "k", "x"); err != nil || status == http.StatusOK {
			t.Fatalf("produce on a disk without a free byte: %d %v", status, err)
		}
		if _, _, err := b.Poll("c", "wait=50ms"); err != nil && !strings.Contains(err.Error(), "503") && !strings.Contains(err.Error(), "507") {
			t.Fatal(err)
		}
	}
	if !b.Alive() {
		t.Fatal("the broker has ended")
	}

	// 4. Retention frees space; the foreign file stays. Produce works again by itself.
	b.Must(t, http.StatusOK, "PATCH", harness.AdminPort, "/v1/topics/full", `{"config":{"retentionBytes":1048576}}`)
	harness.Eventually(t, time.Minute, "produce works again after retention", func() bool {
		status, err := b.Produce("full", "k", `{"a":1}`)
		return err == nil && status == http.StatusOK
	})
	if !b.Alive() || b.PID() != pid {
		t.Fatal("the broker has ended")
	}
	for _, l := range b.Topic(t, "full").Logs {
		if l.Bytes > 4<<20 {
			t.Errorf("partition %d keeps %d bytes", l.Partition, l.Bytes)
		}
	}

	// 5. And a restart finds all in order, the committed positions too.
	if _, err := b.Stop(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	b = harness.Start(t, harness.Options{Dir: data, Host: b.Host})
	b.Register(t, "c2", "g", "full")
	records, _, err := b.Poll("c2", "wait=5s")
	if err != nil || len(records) == 0 {
		t.Fatalf("after the restart: %v, %v", records, err)
	}
	for _, r := range records {
		if string(r.Value) != `{"a":1}` {
			t.Errorf("after the restart the group is given %d@%d again, which it had committed", r.Partition, r.Offset)
			break
		}
	}
}

// refusedFor checks for a while that produce is answered 507 with Retry-After.
func refusedFor(t *testing.T, b *harness.Broker) {
	t.Helper()
	for range 10 {
		r, err := b.Do("POST", harness.ProducePort, "/v1/topic/full/messages?partitionKey=k", []byte(strings.Repeat("x", 8000)))
		if err != nil || r.Status != http.StatusInsufficientStorage || r.Header.Get("Retry-After") == "" {
			t.Fatalf("produce on a full disk: %d %s %v", r.Status, r.Body, err)
		}
		time.Sleep(50 * time.Millisecond) // spread over the time in which the broker looks at its disk
	}
}
