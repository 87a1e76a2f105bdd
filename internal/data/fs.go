package data

import "io"

// FS is the seam to the file system. Names are paths as package os takes them. Errors satisfy errors.Is for
// fs.ErrNotExist, fs.ErrExist, syscall.ENOSPC and the like. All methods may be called at the same time.
type FS interface {
	// Open opens a file for reading (os.O_RDONLY) or for reading and writing (os.O_RDWR, with os.O_CREATE to make it).
	Open(name string, flag int) (File, error)
	// MkdirAll makes a directory and those above it. The new entries are durable once SyncDir was called on each parent.
	MkdirAll(name string) error
	// ReadDir lists a directory in any order.
	ReadDir(name string) ([]Entry, error)
	// Stat returns the size of a file in bytes.
	Stat(name string) (int64, error)
	// Remove removes a file; RemoveAll a file or a directory with all in it, and is content when there is none.
	Remove(name string) error
	RemoveAll(name string) error
	// Rename gives a file another name within its directory, replacing the one that has it, in one step.
	Rename(from, to string) error
	// SyncDir makes the entries of a directory durable.
	SyncDir(name string) error
	// SyncAll makes everything durable that was written to the file system that name lies on (syncfs).
	SyncAll(name string) error
	// Space returns size and free bytes of the file system that name lies on.
	Space(name string) (Space, error)
	// BootID names the run of the machine: it changes when unflushed bytes may have been lost.
	BootID() (string, error)
}

// File is an open file. Methods may be called at the same time; overlapping writes are the caller's affair.
type File interface {
	io.ReaderAt
	io.Closer
	// WriteV writes bufs back to back at off, in one system call where the platform allows. The bytes are in the page
	// cache when it returns. bufs may be changed by the call, the bytes they hold are not. After an error any part of
	// the bytes may have been written.
	WriteV(bufs [][]byte, off int64) error
	// WriteSync is WriteV and Sync.
	WriteSync(bufs [][]byte, off int64) error
	// Sync makes the bytes and the size durable (fdatasync). After an error nothing is known of what was written since
	// the last Sync, and a later Sync does not tell: it must be written again (F21).
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	// Allocate reserves room on disk for the bytes up to size and grows the file to it.
	Allocate(size int64) error
	Size() (int64, error)
	// DontNeed tells the platform that n bytes from off will not be read soon. A hint.
	DontNeed(off, n int64)
}

// Entry is an entry of a directory.
type Entry struct {
	Name string
	Dir  bool
}

// Space is the room of a file system in bytes. Free is what an ordinary process may take.
type Space struct{ Total, Free int64 }
