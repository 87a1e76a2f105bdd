package data_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/skeinmq/skein/internal/data"
	"github.com/skeinmq/skein/internal/data/memfs"
	"github.com/skeinmq/skein/internal/topology"
)

// failFiles lets the files that one log has now fail for ever, by chance at each write and at each flush: bad blocks. What
// it makes anew is good. Other steps fail as before.
func (s *sim) failFiles(bad topology.LogID) {
	dir := "/logs/" + bad.String() + "/"
	names := map[string]bool{}
	for _, name := range s.fs.Files() {
		if strings.Contains(name, dir) {
			names[name] = true
		}
	}
	s.bad = &bad
	s.fs.Fail(func(op memfs.Op) error {
		switch {
		case op.Kind == memfs.OpRemove || op.Kind == memfs.OpRename:
			delete(names, op.Name)
		case names[op.Name] && (op.Kind == memfs.OpSync || op.Kind == memfs.OpWrite && s.rng.IntN(2) == 0):
			return syscall.EIO
		}
		return s.fail(op)
	})
}

// failOne lets everything that changes the files of one log fail for ever; other steps fail as before.
func (s *sim) failOne(bad topology.LogID) {
	dir := "/logs/" + bad.Topic.String() + "/" + string(rune('0'+bad.Partition)) + "/"
	s.bad = &bad
	s.fs.Fail(func(op memfs.Op) error {
		if strings.Contains(op.Name+"/", dir) && (op.Kind == memfs.OpSync || op.Kind == memfs.OpSyncDir || s.rng.IntN(2) == 0) && op.Kind != memfs.OpRead {
			return syscall.EIO
		}
		return s.fail(op)
	})
}

// TestFailingLog lets one log fail for good, so that it can be neither flushed nor repaired, while rounds for all go on
// until the journal has been filled many times over. The others take every round; what the bad one acknowledged before
// survives crashes as it does elsewhere, and it heals when its files do (P5, F21).
func TestFailingLog(t *testing.T) {
	t.Parallel()
	runSeeds(t, 50, func(t *testing.T, seed uint64) {
		s := newSim(t, seed, data.FlushAlways)
		s.open()
		for range 5 {
			s.fs.CrashAt(1 << 30)
			for range s.rng.IntN(10) {
				s.commit()
			}
			bad := s.someLog()
			s.note("-- %s fails from now on", bad)
			if s.rng.IntN(2) == 0 {
				s.failFiles(bad)
			} else {
				s.failOne(bad)
			}
			s.fs.CrashAt(50 + s.rng.IntN(1500))
			for range 150 {
				if s.fs.Crashed() {
					break
				}
				s.step()
			}
			s.bad = nil
			s.fs.Fail(nil)
			if s.fs.Crashed() || s.rng.IntN(3) == 0 {
				s.restart()
				s.open()
				if s.fs.Crashed() {
					s.restart()
					s.fs.CrashAt(1 << 30)
					s.open()
				}
			} else {
				s.fs.CrashAt(1 << 30)
				if !s.store.Repair() {
					s.fatalf("not repaired though nothing fails any more")
				}
			}
			s.fs.CrashAt(1 << 30)
			s.verify()
			if err := s.store.Checkpoint(); err != nil {
				s.fatalf("checkpoint: %v", err)
			}
			for _, name := range s.fs.Files() {
				if strings.HasSuffix(name, "/2.journal") || strings.HasSuffix(name, "/3.journal") {
					s.fatalf("%s is not removed", name)
				}
			}
		}
	})
}

// mayRefuse says whether a chunk for id may be refused.
func (s *sim) mayRefuse(id topology.LogID, err error) bool {
	if s.faults > 0 || s.fs.Crashed() || s.fs.Steps() == 0 {
		return true
	}
	return s.bad != nil && *s.bad == id && errors.Is(err, topology.ErrUnavailable)
}
