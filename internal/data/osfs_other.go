//go:build !linux

package data

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
)

// BootID implements FS. Without a boot id each start looks like one of the same machine run.
func (OS) BootID() (string, error) { return "unknown", nil }

// SyncAll implements FS. Without syncfs it goes through all files below name.
func (OS) SyncAll(name string) error {
	return filepath.WalkDir(name, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Sync()
	})
}

// Space implements FS. Without statfs the disk counts as never full.
func (OS) Space(string) (Space, error) {
	return Space{Total: math.MaxInt64 / 4, Free: math.MaxInt64 / 4}, nil
}

func (o *osFile) Sync() error { return o.f.Sync() }

func (o *osFile) WriteV(bufs [][]byte, off int64) error {
	for _, b := range bufs {
		if _, err := o.f.WriteAt(b, off); err != nil {
			return err
		}
		off += int64(len(b))
	}
	return nil
}

func (o *osFile) Allocate(size int64) error { return o.fill(size) }

func (o *osFile) DontNeed(int64, int64) {}
