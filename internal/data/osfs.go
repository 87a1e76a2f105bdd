package data

import "os"

// OS is the FS of the operating system.
type OS struct{}

// Open implements FS.
func (OS) Open(name string, flag int) (File, error) {
	f, err := os.OpenFile(name, flag, 0o640)
	if err != nil {
		return nil, err
	}
	return &osFile{f: f}, nil
}

// MkdirAll implements FS.
func (OS) MkdirAll(name string) error { return os.MkdirAll(name, 0o750) }

// ReadDir implements FS.
func (OS) ReadDir(name string) ([]Entry, error) {
	d, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	list, err := d.ReadDir(-1)
	entries := make([]Entry, len(list))
	for i, e := range list {
		entries[i] = Entry{Name: e.Name(), Dir: e.IsDir()}
	}
	return entries, err
}

// Stat implements FS.
func (OS) Stat(name string) (int64, error) {
	st, err := os.Stat(name)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// RemoveAll implements FS.
func (OS) RemoveAll(name string) error { return os.RemoveAll(name) }

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// SyncDir implements FS.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// osFile is a File of the operating system.
type osFile struct{ f *os.File }

func (o *osFile) ReadAt(b []byte, off int64) (int, error) { return o.f.ReadAt(b, off) }
func (o *osFile) Close() error                            { return o.f.Close() }
func (o *osFile) Truncate(size int64) error               { return o.f.Truncate(size) }

func (o *osFile) Size() (int64, error) {
	st, err := o.f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (o *osFile) WriteSync(bufs [][]byte, off int64) error {
	if err := o.WriteV(bufs, off); err != nil {
		return err
	}
	return o.Sync()
}

// fill grows the file to size by writing zeros, where the file system cannot reserve room.
func (o *osFile) fill(size int64) error {
	at, err := o.Size()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<20)
	for at < size {
		n := min(size-at, int64(len(zeros)))
		if _, err := o.f.WriteAt(zeros[:n], at); err != nil {
			return err
		}
		at += n
	}
	return nil
}
