package data

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/google/uuid"
	"github.com/skeinmq/skein/internal/topology"
)

const (
	logsDir     = "logs"
	journalDir  = "journal"
	reserveFile = "reserve"
	segmentExt  = ".log"
	indexExt    = ".index"
	newExt      = ".new" // behind the name of a file that is to be replaced
)

// paths knows where things are below the data folder.
type paths struct{ root string }

func (p paths) logs() string             { return filepath.Join(p.root, logsDir) }
func (p paths) topic(t uuid.UUID) string { return filepath.Join(p.root, logsDir, t.String()) }
func (p paths) journal() string          { return filepath.Join(p.root, journalDir) }

func (p paths) journalFile(i int) string {
	return filepath.Join(p.journal(), strconv.Itoa(i)+".journal")
}

func (p paths) log(id topology.LogID) string {
	return filepath.Join(p.topic(id.Topic), strconv.Itoa(int(id.Partition)))
}

func (p paths) file(id topology.LogID, base topology.Offset, ext string) string {
	return filepath.Join(p.log(id), fmt.Sprintf("%020d%s", base, ext))
}

// files keeps segment files open, at most max of them besides those in use, and closes the one used longest ago.
type files struct {
	fs  FS
	max int

	mu   sync.Mutex
	open int
	idle handle // ends of the ring of handles that nobody uses: next is the one used last, prev the one used longest ago
}

// handle is an open segment file and its index. It is in use until released as often as acquired.
type handle struct {
	File
	idx  index
	seg  *segment
	refs int
	dead bool // the segment is gone: close at the last release

	prev, next *handle // in the ring of idle ones
}

// unlink takes h out of the ring; link puts it first.
func (h *handle) unlink() {
	h.prev.next, h.next.prev = h.next, h.prev
	h.prev, h.next = nil, nil
}

func (h *handle) link(ring *handle) {
	h.prev, h.next = ring, ring.next
	h.prev.next, h.next.prev = h, h
}

// init makes the ring empty.
func (c *files) init() { c.idle.prev, c.idle.next = &c.idle, &c.idle }

// openMode says how a file that is not open is opened.
type openMode int

const (
	mustExist openMode = iota
	mayExist           // make it if there is none
	anew               // make it, and empty what a failed round left
)

// acquire opens the file of a segment unless it is open. The caller releases the handle.
func (s *Store) acquire(l *log, seg *segment, mode openMode) (*handle, error) {
	c := &s.files
	if h := c.opened(seg); h != nil {
		return h, nil
	}
	f, err := c.openFile(s.paths.file(l.id, seg.base, segmentExt), mode)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := seg.handle; h != nil { // another was faster
		_ = f.Close()
		c.use(h)
		return h, nil
	}
	h := &handle{File: f, seg: seg, refs: 1}
	seg.handle = h
	c.open++
	c.evict()
	return h, nil
}

// opened is the open file of a segment with one more user, nil if it is not open.
func (c *files) opened(seg *segment) *handle {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seg.handle != nil {
		c.use(seg.handle)
	}
	return seg.handle
}

func (c *files) openFile(name string, mode openMode) (File, error) {
	if mode == mustExist {
		return c.fs.Open(name, os.O_RDWR)
	}
	f, err := c.fs.Open(name, os.O_RDWR|os.O_CREATE)
	if err != nil || mode == mayExist {
		return f, err
	}
	size, err := f.Size()
	if err == nil && size > 0 {
		err = f.Truncate(0)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// use counts one more user. The caller holds mu.
func (c *files) use(h *handle) {
	if h.refs == 0 {
		h.unlink()
	}
	h.refs++
}

// evict closes what is too much. The caller holds mu.
func (c *files) evict() {
	for c.open > c.max && c.idle.prev != &c.idle {
		h := c.idle.prev
		h.unlink()
		c.shut(h)
	}
}

func (c *files) shut(h *handle) {
	h.seg.handle = nil
	c.open--
	_ = h.Close()
}

// release ends one use.
func (c *files) release(h *handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h.refs--
	if h.refs > 0 {
		return
	}
	if h.dead {
		c.open--
		_ = h.Close()
		return
	}
	h.link(&c.idle)
	c.evict()
}

// drop closes the file of seg as soon as nobody uses it; the next acquire opens it anew.
func (c *files) drop(seg *segment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := seg.handle
	if h == nil {
		return
	}
	if h.refs == 0 {
		h.unlink()
		c.shut(h)
		return
	}
	h.dead = true
	seg.handle = nil
}

// count is the number of open files.
func (c *files) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}
