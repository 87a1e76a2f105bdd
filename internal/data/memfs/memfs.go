package memfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/skeinmq/skein/internal/data"
)

// ErrCrashed is what every operation answers between CrashAt's step and the next Crash or Kill, and what files opened
// before it answer for ever.
var ErrCrashed = errors.New("memfs: crashed")

// Kind names a step.
type Kind string

// The steps that Fail is asked about. All but OpRead change something and are counted for CrashAt.
const (
	OpRead     Kind = "read"
	OpCreate   Kind = "create"
	OpWrite    Kind = "write"
	OpSync     Kind = "sync"
	OpTruncate Kind = "truncate"
	OpAllocate Kind = "allocate"
	OpRemove   Kind = "remove"
	OpRename   Kind = "rename"
	OpMkdir    Kind = "mkdir"
	OpSyncDir  Kind = "syncdir"
	OpSyncAll  Kind = "syncall"
	OpUpdate   Kind = "update" // of the KV
)

// Op is one step.
type Op struct {
	Kind Kind
	Name string // of the file; "" for the KV
	Size int    // bytes to be written or read
	Off  int64  // where
}

// FS implements data.FS. Its zero value is not usable: see New.
type FS struct {
	mu       sync.Mutex
	rng      *rand.Rand
	root     *node
	capacity int64
	foreign  int64 // bytes that somebody else uses
	used     int64
	boot     int
	epoch    int // grows with each restart: files opened before are dead
	steps    int
	crashAt  int // the step that crashes; 0 none
	crashed  bool
	fail     func(Op) error
	kvs      []*KV
}

// New makes an empty file system of capacity bytes.
func New(seed uint64, capacity int64) *FS {
	return &FS{rng: rand.New(rand.NewPCG(seed, 0)), root: newDir(), capacity: capacity}
}

// Fail sets the function that is asked before each step; the error it returns, if any, is the step's. A refused write
// may have written a part.
func (f *FS) Fail(fn func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fn
}

// SetForeign makes somebody else use n bytes of the capacity.
func (f *FS) SetForeign(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.foreign = n
}

// Steps is the number of steps so far.
func (f *FS) Steps() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps
}

// CrashAt stops the world n steps from now, in the middle of that step.
func (f *FS) CrashAt(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = f.steps + n
}

// Crashed says whether the step of CrashAt has come.
func (f *FS) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Kill restarts after a SIGKILL: all that was written is there.
func (f *FS) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restart()
}

// Crash restarts after a power cut.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	luck := f.luck()
	f.root.crash(f.rng, luck)
	f.used = f.root.usage()
	for _, kv := range f.kvs {
		kv.crash(luck)
	}
	f.boot++
	f.restart()
}

// luck is the chance that an unsynced piece survives: often none or all, since those are the corners.
func (f *FS) luck() float64 {
	switch f.rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return 1
	default:
		return f.rng.Float64()
	}
}

func (f *FS) restart() {
	f.crashed = false
	f.crashAt = 0
	f.epoch++
}

// step counts and judges one step. The caller holds mu. partial means that the step shall take effect by half before
// err is returned.
func (f *FS) step(op Op) (partial bool, err error) {
	if f.crashed {
		return false, ErrCrashed
	}
	if f.fail != nil {
		if err := f.fail(op); err != nil {
			return true, err
		}
	}
	if op.Kind == OpRead {
		return false, nil
	}
	f.steps++
	if f.crashAt > 0 && f.steps >= f.crashAt {
		f.crashed = true
		return true, ErrCrashed
	}
	return false, nil
}

// grow takes n more bytes of room, or fewer: what there is.
func (f *FS) grow(n int64) int64 {
	n = min(n, max(0, f.capacity-f.foreign-f.used))
	f.used += n
	return n
}

// node is a file or a directory.
type node struct {
	isDir    bool
	children map[string]*node // of a directory, as seen
	stable   map[string]*node // as it would be after a power cut that drops all
	pending  []entryOp        // changes since SyncDir, in order
	data     []byte           // of a file, as seen
	durable  []byte
	dirty    []span // pieces of data that durable has not got
	resized  bool   // the size was changed since Sync
}

// entryOp sets or (nil) removes an entry of a directory, and removes another one in the same step.
type entryOp struct {
	name string
	to   *node
	from string // "" none
}

type span struct{ from, to int64 }

func newDir() *node {
	return &node{isDir: true, children: map[string]*node{}, stable: map[string]*node{}}
}

// link changes an entry as seen.
func (d *node) link(name string, to *node) {
	if to == nil {
		delete(d.children, name)
	} else {
		d.children[name] = to
	}
	d.pending = append(d.pending, entryOp{name: name, to: to})
}

// rename gives a child another name, as seen.
func (d *node) rename(from, to string) {
	n := d.children[from]
	delete(d.children, from)
	d.children[to] = n
	d.pending = append(d.pending, entryOp{name: to, to: n, from: from})
}

// settle makes the first n pending changes durable.
func (d *node) settle(n int) {
	for _, op := range d.pending[:n] {
		if op.to == nil {
			delete(d.stable, op.name)
		} else {
			d.stable[op.name] = op.to
		}
		delete(d.stable, op.from)
	}
	d.pending = d.pending[n:]
}

func (d *node) usage() int64 {
	if !d.isDir {
		return int64(len(d.data))
	}
	var sum int64
	for _, c := range d.children {
		sum += c.usage()
	}
	return sum
}

// crash keeps by chance what was not synced. A directory keeps its changes up to some point, as a journal would.
func (d *node) crash(rng *rand.Rand, luck float64) {
	if !d.isDir {
		d.crashFile(rng, luck)
		return
	}
	n := 0
	for n < len(d.pending) && rng.Float64() < luck {
		n++
	}
	d.settle(n)
	d.pending = nil
	d.children = make(map[string]*node, len(d.stable))
	for _, name := range sortedKeys(d.stable) {
		d.children[name] = d.stable[name]
		d.stable[name].crash(rng, luck)
	}
}

// sector is the unit that a power cut does not tear.
const sector = 512

func (d *node) crashFile(rng *rand.Rand, luck float64) {
	size := int64(len(d.durable))
	if seen := int64(len(d.data)); d.resized && rng.Float64() < luck {
		size = seen
		if lo := min(seen, int64(len(d.durable))); seen > lo && rng.IntN(2) == 0 {
			size = lo + rng.Int64N(seen-lo+1)
		}
	}
	after := make([]byte, size)
	copy(after, d.durable)
	for _, s := range d.dirty {
		for at := s.from / sector * sector; at < s.to; at += sector {
			if rng.Float64() < luck {
				from, to := max(at, s.from), min(at+sector, s.to, size, int64(len(d.data)))
				if from < to {
					copy(after[from:to], d.data[from:to])
				}
			}
		}
	}
	d.data = after
	d.durable = append([]byte(nil), after...)
	d.dirty, d.resized = nil, false
}

func sortedKeys(m map[string]*node) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// find walks to name. The caller holds mu.
func (f *FS) find(name string) (*node, error) {
	n := f.root
	for _, part := range split(name) {
		if !n.isDir {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
		}
		c := n.children[part]
		if c == nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		n = c
	}
	return n, nil
}

func split(name string) []string {
	name = strings.Trim(path.Clean(name), "/")
	if name == "" || name == "." {
		return nil
	}
	return strings.Split(name, "/")
}

// Open implements data.FS.
func (f *FS) Open(name string, flag int) (data.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return nil, ErrCrashed
	}
	n, err := f.find(name)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE != 0 {
		dir, derr := f.find(path.Dir(name))
		if derr != nil {
			return nil, derr
		}
		if _, err := f.step(Op{Kind: OpCreate, Name: name}); err != nil {
			return nil, err
		}
		n, err = &node{}, nil
		dir.link(path.Base(name), n)
	}
	if err != nil {
		return nil, err
	}
	if n.isDir {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	}
	return &file{fs: f, n: n, name: name, epoch: f.epoch}, nil
}

// MkdirAll implements data.FS.
func (f *FS) MkdirAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	n := f.root
	for _, part := range split(name) {
		c := n.children[part]
		if c == nil {
			if _, err := f.step(Op{Kind: OpMkdir, Name: name}); err != nil {
				return err
			}
			c = newDir()
			n.link(part, c)
		}
		if !c.isDir {
			return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.ENOTDIR}
		}
		n = c
	}
	return nil
}

// ReadDir implements data.FS.
func (f *FS) ReadDir(name string) ([]data.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.step(Op{Kind: OpRead, Name: name}); err != nil {
		return nil, err
	}
	n, err := f.find(name)
	if err != nil {
		return nil, err
	}
	var list []data.Entry
	for _, k := range sortedKeys(n.children) {
		list = append(list, data.Entry{Name: k, Dir: n.children[k].isDir})
	}
	f.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list, nil
}

// Stat implements data.FS.
func (f *FS) Stat(name string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return 0, ErrCrashed
	}
	n, err := f.find(name)
	if err != nil {
		return 0, err
	}
	return int64(len(n.data)), nil
}

// Remove implements data.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	n, err := f.find(name)
	if err != nil {
		return err
	}
	if n.isDir && len(n.children) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	return f.unlink(name, n)
}

func (f *FS) unlink(name string, n *node) error {
	if _, err := f.step(Op{Kind: OpRemove, Name: name}); err != nil {
		return err
	}
	dir, err := f.find(path.Dir(name))
	if err != nil {
		return err
	}
	f.used -= n.usage()
	dir.link(path.Base(name), nil)
	return nil
}

// Rename implements data.FS. Both names are in one directory.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	n, err := f.find(from)
	if err != nil {
		return err
	}
	dir, err := f.find(path.Dir(from))
	if err != nil || path.Dir(from) != path.Dir(to) || n.isDir {
		return &fs.PathError{Op: "rename", Path: from, Err: syscall.EINVAL}
	}
	if _, err := f.step(Op{Kind: OpRename, Name: to}); err != nil {
		return err
	}
	if old := dir.children[path.Base(to)]; old != nil {
		f.used -= old.usage()
	}
	dir.rename(path.Base(from), path.Base(to))
	return nil
}

// RemoveAll implements data.FS. It removes file by file, so a crash may come in the middle.
func (f *FS) RemoveAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	n, err := f.find(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.removeAll(name, n)
}

func (f *FS) removeAll(name string, n *node) error {
	for _, k := range sortedKeys(n.children) {
		if err := f.removeAll(path.Join(name, k), n.children[k]); err != nil {
			return err
		}
	}
	return f.unlink(name, n)
}

// SyncDir implements data.FS.
func (f *FS) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return ErrCrashed
	}
	n, err := f.find(name)
	if err != nil {
		return err
	}
	if !n.isDir {
		return fmt.Errorf("memfs: %s is no directory", name)
	}
	if _, err := f.step(Op{Kind: OpSyncDir, Name: name}); err != nil {
		return err
	}
	n.settle(len(n.pending))
	return nil
}

// SyncAll implements data.FS.
func (f *FS) SyncAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.step(Op{Kind: OpSyncAll, Name: name}); err != nil {
		return err
	}
	f.root.syncAll()
	return nil
}

func (d *node) syncAll() {
	if !d.isDir {
		d.flush()
		return
	}
	d.settle(len(d.pending))
	for _, c := range d.children {
		c.syncAll()
	}
}

// flush makes the bytes and the size of a file durable.
func (d *node) flush() {
	if n := int64(len(d.data)); n <= int64(len(d.durable)) {
		d.durable = d.durable[:n]
	} else {
		d.durable = append(d.durable, make([]byte, n-int64(len(d.durable)))...)
	}
	for _, s := range d.dirty {
		if to := min(s.to, int64(len(d.data))); s.from < to {
			copy(d.durable[s.from:to], d.data[s.from:to])
		}
	}
	d.dirty, d.resized = nil, false
}

// Space implements data.FS.
func (f *FS) Space(string) (data.Space, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return data.Space{}, ErrCrashed
	}
	return data.Space{Total: f.capacity, Free: max(0, f.capacity-f.foreign-f.used)}, nil
}

// BootID implements data.FS.
func (f *FS) BootID() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprintf("boot-%d", f.boot), nil
}

// Flip inverts the bits of mask in one byte of a file, on disk and as seen: bit rot.
func (f *FS) Flip(name string, at int64, mask byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.find(name)
	if err != nil {
		return err
	}
	if at >= int64(len(n.data)) {
		return fmt.Errorf("memfs: %s has no byte %d", name, at)
	}
	n.data[at] ^= mask
	if at < int64(len(n.durable)) {
		n.durable[at] ^= mask
	}
	return nil
}

// Files lists the names of all files, sorted.
func (f *FS) Files() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	var walk func(prefix string, n *node)
	walk = func(prefix string, n *node) {
		for _, k := range sortedKeys(n.children) {
			if c := n.children[k]; c.isDir {
				walk(prefix+"/"+k, c)
			} else {
				list = append(list, prefix+"/"+k)
			}
		}
	}
	walk("", f.root)
	return list
}

// Evict drops what is clean from the page cache: afterwards a file shows what is on disk, but for bytes that still wait
// for a Sync. It makes visible what a failed Sync lost.
func (f *FS) Evict() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.root.evict()
}

func (d *node) evict() {
	for _, c := range d.children {
		c.evict()
	}
	if d.isDir {
		return
	}
	seen := make([]byte, len(d.data))
	copy(seen, d.durable)
	for _, s := range d.dirty {
		if to := min(s.to, int64(len(d.data))); s.from < to {
			copy(seen[s.from:to], d.data[s.from:to])
		}
	}
	d.data = seen
}
