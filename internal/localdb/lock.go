package localdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// lockFolder takes the lock of the folder for this process. The lock is that of the open file, so it ends with the
// process, however that ends; the text in the file only tells who holds it.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, "LOCK")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("%w: %s is open in %s; stop it, or give this broker a folder of its own", ErrLocked, dir, lockHolder(path))
	}
	host, _ := os.Hostname()
	// The width is fixed, so that on a full disk the bytes of the last holder are written over. Should it fail all the same,
	// the lock holds nevertheless.
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-80s\n", fmt.Sprintf("process %d on host %s", os.Getpid(), host)), 0)
	return f, nil
}

// lockHolder is what the holder of the lock wrote about itself.
func lockHolder(path string) string {
	text, err := os.ReadFile(path)
	if who := strings.TrimSpace(string(text)); err == nil && who != "" {
		return who
	}
	return "another process"
}
