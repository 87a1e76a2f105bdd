package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxVector is the most buffers one system call takes (IOV_MAX).
const maxVector = 1024

// BootID implements FS.
func (OS) BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// SyncAll implements FS.
func (OS) SyncAll(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", name, err)
	}
	return nil
}

// Space implements FS.
func (OS) Space(name string) (Space, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", name, err)
	}
	size := int64(st.Bsize)
	return Space{Total: int64(st.Blocks) * size, Free: int64(st.Bavail) * size}, nil
}

func (o *osFile) Sync() error {
	for {
		err := unix.Fdatasync(int(o.f.Fd()))
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("fdatasync %s: %w", o.f.Name(), err)
		}
	}
}

func (o *osFile) WriteV(bufs [][]byte, off int64) error {
	if len(bufs) == 1 {
		_, err := o.f.WriteAt(bufs[0], off)
		return err
	}
	for len(bufs) > 0 {
		n, err := unix.Pwritev(int(o.f.Fd()), bufs[:min(len(bufs), maxVector)], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("pwritev %s: %w", o.f.Name(), err)
		}
		if n == 0 {
			return fmt.Errorf("pwritev %s: %w", o.f.Name(), io.ErrShortWrite)
		}
		off += int64(n)
		bufs = advance(bufs, n)
	}
	return nil
}

// advance drops the first n bytes of bufs.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}

func (o *osFile) Allocate(size int64) error {
	err := unix.Fallocate(int(o.f.Fd()), 0, 0, size)
	for errors.Is(err, unix.EINTR) { // tmpfs gives up when a signal comes, and the runtime sends some
		err = unix.Fallocate(int(o.f.Fd()), 0, 0, size)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return o.fill(size)
	}
	if err != nil {
		return fmt.Errorf("fallocate %s: %w", o.f.Name(), err)
	}
	return nil
}

func (o *osFile) DontNeed(off, n int64) {
	_ = unix.Fadvise(int(o.f.Fd()), off, n, unix.FADV_DONTNEED)
}
