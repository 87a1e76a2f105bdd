package localdb

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// freeBytes is what is free for this process on the file system of dir.
func freeBytes(dir string) (int64, error) {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(dir, &s)
		if !errors.Is(err, unix.EINTR) {
			return int64(s.Bavail) * int64(s.Bsize), err
		}
	}
}

// allocate takes room on disk for the first size bytes of f. With keepSize the file does not grow: the room is there for
// when it does. It reports false when the file system cannot do that.
func allocate(f *os.File, size int64, keepSize bool) (bool, error) {
	mode := uint32(0)
	if keepSize {
		mode = unix.FALLOC_FL_KEEP_SIZE
	}
	for {
		err := unix.Fallocate(int(f.Fd()), mode, 0, size)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return false, nil
		default:
			return err == nil, err
		}
	}
}

// isFull says whether err tells of a full disk or quota.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
