package data

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/rs/zerolog"
	"github.com/skeinmq/skein/internal/topology"
)

// Room tells how full the disk is.
type Room struct {
	Total   int64 // bytes of the file system
	Free    int64 // bytes that are free, the reserve file not counted
	Reserve int64 // bytes that the reserve file holds now
	Full    bool  // produce is refused
}

// Reserve guards the reserve (docs/design.md, section 5). A part of the disk, the reserve, is kept from produce: half of it,
// 64 MiB at most, is held by a preallocated file, the rest must be free for produce to be admitted. Positions, topics and the database
// live from what is free; when somebody else has filled the disk, the file is given up piece by piece, no more than is
// needed for the next write, so that a writer who still fills the disk cannot take all of it. It is taken back when
// there is room.
type Reserve struct {
	fs     FS
	dir    string
	hold   int64 // size of the whole reserve file
	floor  int64 // bytes that must be free for produce
	piece  int64 // the reserve file is given up by this much at least
	slack  int64 // stays free after each write from the reserve
	logger zerolog.Logger

	mu   sync.Mutex
	file File
	held int64 // size of the reserve file now
	full bool
	last Space
}

// maxHold bounds the reserve file: more is never needed to keep positions and the database going.
const maxHold = 64 << 20

// ReserveConfig tunes a Reserve. Dir is required.
type ReserveConfig struct {
	Dir    string // the data folder; it is made if there is none
	FS     FS     // default OS{}
	Bytes  int64  // kept back from produce; default the larger of 16 MiB and 2 % of the disk
	Logger zerolog.Logger
}

// OpenReserve opens the reserve of a data folder, before the database: so that a broker can start on a full disk. The
// Store that it is given to closes it. A disk without room for the reserve is full, not an error.
func OpenReserve(cfg ReserveConfig) (*Reserve, error) {
	if cfg.FS == nil {
		cfg.FS = OS{}
	}
	if err := cfg.FS.MkdirAll(cfg.Dir); err != nil {
		return nil, fmt.Errorf("open the reserve: %w", err)
	}
	space, err := cfg.FS.Space(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the reserve: %w", err)
	}
	setDefault(&cfg.Bytes, max(defaultReserve, space.Total/50))
	hold := min(cfg.Bytes/2, maxHold)
	r := &Reserve{
		fs: cfg.FS, dir: cfg.Dir, hold: hold, floor: cfg.Bytes - hold, piece: hold / 8, slack: hold / 32,
		logger: cfg.Logger.With().Str("component", "reserve").Logger(),
	}
	if r.file, err = r.fs.Open(filepath.Join(r.dir, reserveFile), os.O_RDWR|os.O_CREATE); err != nil {
		return nil, fmt.Errorf("open the reserve: %w", err)
	}
	if r.held, err = r.file.Size(); err != nil {
		return nil, errors.Join(fmt.Errorf("open the reserve: %w", err), r.file.Close())
	}
	if r.held > r.hold && r.file.Truncate(r.hold) == nil {
		r.held = r.hold
	}
	r.watch()
	if err := r.fs.SyncDir(r.dir); err != nil {
		return nil, errors.Join(fmt.Errorf("open the reserve: %w", err), r.file.Close())
	}
	return r, nil
}

// watch looks at the disk, takes back the reserve where there is room, and decides whether produce is admitted.
func (r *Reserve) watch() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(0)
}

// look does that. n more bytes are about to be written. The caller holds mu.
func (r *Reserve) look(n int64) {
	space, err := r.fs.Space(r.dir)
	if err != nil {
		return // the next write will tell
	}
	missing := r.hold - r.held
	// Taking back needs more room than giving up leaves, so that the two do not take turns.
	if missing > 0 && space.Free-missing >= r.floor+r.floor/4 && r.file.Allocate(r.hold) == nil && r.file.Sync() == nil {
		r.held = r.hold
		space.Free -= missing
	}
	r.last = space
	was := r.full
	low := r.floor
	if was {
		low += r.floor / 8
	}
	r.full = r.held < r.hold || space.Free-n < low
	if was != r.full {
		event := r.logger.Info()
		if r.full {
			event = r.logger.Warn()
		}
		event.Int64("free", space.Free).Int64("reserve", r.held).Bool("full", r.full).Msg("room on disk changed")
	}
}

// admit says whether produce may write n bytes. The error wraps topology.ErrDiskFull.
func (r *Reserve) admit(n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(n)
	if !r.full {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are free, %d are kept back", topology.ErrDiskFull, r.last.Free, r.floor)
}

// Ensure makes sure that n bytes can be written beside produce, giving up as much of the reserve as that takes. The error
// wraps topology.ErrDiskFull. It may be called at any time, by whoever is about to write.
func (r *Reserve) Ensure(n int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	space, err := r.fs.Space(r.dir)
	if err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	r.last = space
	if space.Free >= n+r.slack {
		return nil
	}
	give := min(r.held, max(r.piece, n+r.slack-space.Free))
	if give > 0 {
		if err := r.file.Truncate(r.held - give); err != nil {
			return errors.Join(fmt.Errorf("%w: the reserve cannot be given up", topology.ErrDiskFull), err)
		}
		r.held -= give
		r.full = true
		r.logger.Warn().Int64("bytes", give).Int64("reserve", r.held).Msg("a part of the reserve is given up: the disk is full")
		if space, err = r.fs.Space(r.dir); err != nil {
			return fmt.Errorf("look at the disk: %w", err)
		}
		r.last = space
	}
	if space.Free < n {
		return fmt.Errorf("%w: %d bytes are free, the reserve is used up", topology.ErrDiskFull, space.Free)
	}
	return nil
}

// Room tells how full the disk is.
func (r *Reserve) Room() Room {
	r.mu.Lock()
	defer r.mu.Unlock()
	if space, err := r.fs.Space(r.dir); err == nil {
		r.last = space
	}
	return Room{Total: r.last.Total, Free: r.last.Free, Reserve: r.held, Full: r.full}
}

// Close closes the reserve file, which stays.
func (r *Reserve) Close() error { return r.file.Close() }
