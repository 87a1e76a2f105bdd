//go:build !linux

package localdb

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// freeBytes is not known here: any room is assumed.
func freeBytes(string) (int64, error) { return math.MaxInt64, nil }

// allocate cannot take room here.
func allocate(*os.File, int64, bool) (bool, error) { return false, nil }

// isFull says whether err tells of a full disk.
func isFull(err error) bool { return errors.Is(err, syscall.ENOSPC) }
