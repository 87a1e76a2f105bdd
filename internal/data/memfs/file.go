package memfs

import (
	"io"
	"slices"
	"syscall"
)

// file implements data.File.
type file struct {
	fs     *FS
	n      *node
	name   string
	epoch  int
	closed bool
}

// enter begins an operation. The caller holds the lock of the FS.
func (f *file) enter(kind Kind, size int, off int64) (partial bool, err error) {
	if f.epoch != f.fs.epoch {
		return false, ErrCrashed
	}
	if f.closed {
		return false, syscall.EBADF
	}
	return f.fs.step(Op{Kind: kind, Name: f.name, Size: size, Off: off})
}

// ReadAt implements io.ReaderAt.
func (f *file) ReadAt(b []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.enter(OpRead, len(b), off); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.data)) {
		return 0, io.EOF
	}
	n := copy(b, f.n.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteV implements data.File.
func (f *file) WriteV(bufs [][]byte, off int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.write(bufs, off)
}

// WriteSync implements data.File. It is two steps.
func (f *file) WriteSync(bufs [][]byte, off int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.write(bufs, off); err != nil {
		return err
	}
	return f.sync()
}

func (f *file) write(bufs [][]byte, off int64) error {
	b := slices.Concat(bufs...)
	partial, err := f.enter(OpWrite, len(b), off)
	if err != nil {
		if partial && len(b) > 0 {
			f.put(b[:f.fs.rng.IntN(len(b)+1)], off)
		}
		return err
	}
	if !f.put(b, off) {
		return syscall.ENOSPC
	}
	return nil
}

// put writes b as far as there is room and says whether all of it fitted.
func (f *file) put(b []byte, off int64) bool {
	size, end := int64(len(f.n.data)), off+int64(len(b))
	if end > size {
		room := f.fs.grow(end - size)
		if fit := size + room; fit < end {
			if fit <= off {
				f.fs.used -= room
				return false
			}
			b, end = b[:fit-off], fit
			f.resize(end)
			f.set(b, off)
			return false
		}
		f.resize(end)
	}
	f.set(b, off)
	return true
}

func (f *file) set(b []byte, off int64) {
	copy(f.n.data[off:], b)
	f.n.dirty = append(f.n.dirty, span{off, off + int64(len(b))})
}

// resize changes the size as seen; what is added reads as zeros.
func (f *file) resize(size int64) {
	was := int64(len(f.n.data))
	if size < was {
		clear(f.n.data[size:])
		f.n.data = f.n.data[:size]
		f.n.dirty = append(f.n.dirty, span{size, was})
	} else {
		f.n.data = append(f.n.data, make([]byte, size-was)...)
		f.n.dirty = append(f.n.dirty, span{was, size})
	}
	f.n.resized = true
}

// Sync implements data.File.
func (f *file) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.sync()
}

func (f *file) sync() error {
	if _, err := f.enter(OpSync, 0, 0); err != nil {
		if !f.fs.crashed {
			f.n.dirty, f.n.resized = nil, false // F21: the pages are clean now, and not on disk
		}
		return err
	}
	f.n.flush()
	return nil
}

// Truncate implements data.File.
func (f *file) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.enter(OpTruncate, 0, size); err != nil {
		return err
	}
	if was := int64(len(f.n.data)); size > was {
		if room := f.fs.grow(size - was); room < size-was {
			f.fs.used -= room
			return syscall.ENOSPC
		}
	} else {
		f.fs.used -= was - size
	}
	f.resize(size)
	return nil
}

// Allocate implements data.File.
func (f *file) Allocate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.enter(OpAllocate, 0, size); err != nil {
		return err
	}
	was := int64(len(f.n.data))
	if size <= was {
		return nil
	}
	if room := f.fs.grow(size - was); room < size-was {
		f.fs.used -= room
		return syscall.ENOSPC
	}
	f.resize(size)
	return nil
}

// Size implements data.File.
func (f *file) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.epoch != f.fs.epoch || f.fs.crashed {
		return 0, ErrCrashed
	}
	return int64(len(f.n.data)), nil
}

// DontNeed implements data.File.
func (f *file) DontNeed(int64, int64) {}

// Close implements data.File.
func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return syscall.EBADF
	}
	f.closed = true
	return nil
}
