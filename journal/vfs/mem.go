package vfs

import (
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// sectorBytes is the unit that a power cut leaves either old or new.
const sectorBytes = 512

// Mem is a file system in memory that keeps two states of everything: what a reader sees now, and what was synced. Make one
// with NewMem. It has the root directory "/"; relative names are taken from there.
//
// Its model of a disk: a power cut leaves every sector of 512 bytes that was written since its last sync with the old or the new
// content, each by itself, a size that was changed old or new, and of the changes to the names of a directory since its last
// sync any subset. That is harsher than the file systems we know.
type Mem struct {
	mu    sync.Mutex
	root  *inode
	locks map[string]*memLock
	limit int64 // bytes of all files together, 0: no limit
	used  int64
}

// inode is a file or a directory. All fields are under Mem.mu.
type inode struct {
	kind Kind

	// Of a file: now and synced content, and the sectors in which they may differ. size is that of the synced state.
	cur   []byte
	dur   []byte
	dirty map[int64]struct{}

	// Of a directory: entries now and synced, and what happened in between, in order.
	entries map[string]*inode
	synced  map[string]*inode
	changes []nameChange
}

type nameChange struct {
	remove string // "" if nothing goes
	add    string // "" if nothing comes
	node   *inode
}

// NewMem makes an empty file system.
func NewMem() *Mem { return &Mem{root: newDir(), locks: map[string]*memLock{}} }

func newDir() *inode {
	return &inode{kind: Dir, entries: map[string]*inode{}, synced: map[string]*inode{}}
}

// SetLimit bounds the bytes of all files together; a write or an allocation above it fails with ENOSPC. 0 lifts the bound.
func (m *Mem) SetLimit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = bytes
}

// Used is the number of bytes of all files together, as they are now.
func (m *Mem) Used() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used
}

func clean(name string) string { return path.Clean("/" + name) }

func (m *Mem) find(name string) (*inode, error) {
	n := m.root
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		if part == "" {
			continue
		}
		if n.kind != Dir {
			return nil, syscall.ENOTDIR
		}
		next := n.entries[part]
		if next == nil {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

func (m *Mem) parent(name string) (dir *inode, base string, err error) {
	dir, err = m.find(path.Dir(name))
	if err == nil && dir.kind != Dir {
		err = syscall.ENOTDIR
	}
	return dir, path.Base(name), err
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func (d *inode) change(c nameChange) {
	if c.remove != "" {
		delete(d.entries, c.remove)
	}
	if c.add != "" {
		d.entries[c.add] = c.node
	}
	d.changes = append(d.changes, c)
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.add(clean(name), &inode{kind: Regular, dirty: map[int64]struct{}{}})
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &memFile{m: m, n: n, name: name}, nil
}

// AddOther adds an entry that is not a regular file, as a link or a pipe is not.
func (m *Mem) AddOther(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.add(clean(name), &inode{kind: Other})
	return pathError("mknod", name, err)
}

func (m *Mem) add(name string, n *inode) (*inode, error) {
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	if dir.entries[base] != nil || name == "/" {
		return nil, fs.ErrExist
	}
	dir.change(nameChange{add: base, node: n})
	return n, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open(name, false) }

// OpenRead implements FS.
func (m *Mem) OpenRead(name string) (File, error) { return m.open(name, true) }

func (m *Mem) open(name string, readOnly bool) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(clean(name))
	if err == nil && n.kind != Regular {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return &memFile{m: m, n: n, name: name, readOnly: readOnly}, nil
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	from, to = clean(from), clean(to)
	dir, base, err := m.parent(from)
	if err != nil {
		return pathError("rename", from, err)
	}
	n := dir.entries[base]
	if n == nil {
		return pathError("rename", from, fs.ErrNotExist)
	}
	toDir, toBase, err := m.parent(to)
	if err != nil {
		return pathError("rename", to, err)
	}
	if old := toDir.entries[toBase]; old != nil && old != n {
		m.used -= int64(len(old.cur))
	}
	if dir == toDir {
		dir.change(nameChange{remove: base, add: toBase, node: n})
		return nil
	}
	toDir.change(nameChange{add: toBase, node: n})
	dir.change(nameChange{remove: base})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(clean(name))
	if err != nil {
		return pathError("remove", name, err)
	}
	n := dir.entries[base]
	if n == nil {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if n.kind == Dir && len(n.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.used -= int64(len(n.cur))
	dir.change(nameChange{remove: base})
	return nil
}

// Mkdir implements FS.
func (m *Mem) Mkdir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err := m.add(clean(name), newDir())
	return pathError("mkdir", name, err)
}

// SyncDir implements FS.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(clean(name))
	if err == nil && n.kind != Dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", name, err)
	}
	n.synced = make(map[string]*inode, len(n.entries))
	for k, v := range n.entries {
		n.synced[k] = v
	}
	n.changes = nil
	return nil
}

// List implements FS.
func (m *Mem) List(name string) ([]Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find(clean(name))
	if err == nil && n.kind != Dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	list := make([]Entry, 0, len(n.entries))
	for k, v := range n.entries {
		list = append(list, Entry{Name: k, Kind: v.kind, Size: int64(len(v.cur))})
	}
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

type memLock struct {
	m    *Mem
	name string
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = clean(name)
	if m.locks[name] != nil {
		return nil, pathError("lock", name, ErrLocked)
	}
	if n, err := m.find(name); err != nil {
		if _, err := m.add(name, &inode{kind: Regular, dirty: map[int64]struct{}{}}); err != nil {
			return nil, pathError("lock", name, err)
		}
	} else if n.kind != Regular {
		return nil, pathError("lock", name, ErrNotRegular)
	}
	l := &memLock{m: m, name: name}
	m.locks[name] = l
	return l, nil
}

func (l *memLock) Close() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if l.m.locks[l.name] != l {
		return pathError("unlock", l.name, fs.ErrClosed)
	}
	delete(l.m.locks, l.name)
	return nil
}

// Survival says what a power cut leaves of what was not synced.
type Survival uint8

// The kinds of survival.
const (
	Nothing    Survival = iota // only what was synced
	Everything                 // as after the death of the process alone
	Random                     // each sector and each name by itself, from the seed
)

// CrashClone returns what the machine would find after a power cut now: a new file system in which everything is synced.
func (m *Mem) CrashClone(s Survival, seed uint64) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := cloner{s: s, rnd: rand.New(rand.NewPCG(seed, 0x6c69676874)), done: map[*inode]*inode{}, m: NewMem()}
	c.m.root = c.clone(m.root)
	return c.m
}

type cloner struct {
	s    Survival
	rnd  *rand.Rand
	done map[*inode]*inode
	m    *Mem
}

func (c *cloner) survives() bool {
	return c.s == Everything || c.s == Random && c.rnd.IntN(2) == 0
}

func (c *cloner) clone(n *inode) *inode {
	if d := c.done[n]; d != nil {
		return d
	}
	d := &inode{kind: n.kind}
	c.done[n] = d
	if n.kind == Dir {
		c.cloneDir(n, d)
		return d
	}
	if n.kind != Regular {
		return d
	}
	size := len(n.dur)
	if len(n.cur) != len(n.dur) && c.survives() {
		size = len(n.cur)
	}
	d.dur = make([]byte, size)
	copy(d.dur, n.dur)
	sectors := make([]int64, 0, len(n.dirty))
	for s := range n.dirty {
		sectors = append(sectors, s)
	}
	slices.Sort(sectors) // the order of a map would make a seed mean something else each time
	for _, s := range sectors {
		at := s * sectorBytes
		if !c.survives() || at >= int64(size) {
			continue
		}
		end := min(at+sectorBytes, int64(size))
		clear(d.dur[at:end])
		if at < int64(len(n.cur)) {
			copy(d.dur[at:end], n.cur[at:])
		}
	}
	d.cur = slices.Clone(d.dur)
	d.dirty = map[int64]struct{}{}
	c.m.used += int64(size)
	return d
}

func (c *cloner) cloneDir(n, d *inode) {
	names := make(map[string]*inode, len(n.synced))
	for k, v := range n.synced {
		names[k] = v
	}
	for _, ch := range n.changes {
		if !c.survives() {
			continue
		}
		if ch.remove != "" {
			delete(names, ch.remove)
		}
		if ch.add != "" {
			names[ch.add] = ch.node
		}
	}
	d.entries, d.synced = map[string]*inode{}, map[string]*inode{}
	order := make([]string, 0, len(names))
	for k := range names {
		order = append(order, k)
	}
	slices.Sort(order)
	for _, k := range order {
		v := c.clone(names[k])
		d.entries[k], d.synced[k] = v, v
	}
}

// memFile is a handle. m.mu guards the inode; closed and the name belong to the handle.
type memFile struct {
	m        *Mem
	n        *inode
	name     string
	readOnly bool
	closed   bool
}

func (f *memFile) check(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case write && f.readOnly:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("read", false); err != nil {
		return 0, err
	}
	if off >= int64(len(f.n.cur)) {
		return 0, io.EOF
	}
	n := copy(p, f.n.cur[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// resize sets the size of the file's present state and marks what changes by it.
func (f *memFile) resize(size int64) error {
	old := int64(len(f.n.cur))
	if f.m.limit > 0 && size > old && f.m.used+size-old > f.m.limit {
		return syscall.ENOSPC
	}
	f.m.used += size - old
	if size > old {
		f.n.cur = append(f.n.cur, make([]byte, size-old)...)
	} else {
		f.n.cur = slices.Clip(f.n.cur[:size])
	}
	f.mark(min(old, size), max(old, size))
	return nil
}

func (f *memFile) mark(from, to int64) {
	for s := from / sectorBytes; s*sectorBytes < to; s++ {
		f.n.dirty[s] = struct{}{}
	}
}

func (f *memFile) WriteAt(bufs [][]byte, off int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return f.write(bufs, off)
}

func (f *memFile) write(bufs [][]byte, off int64) error {
	if err := f.check("write", true); err != nil {
		return err
	}
	end := off + total(bufs)
	if end > int64(len(f.n.cur)) {
		if err := f.resize(end); err != nil {
			return pathError("write", f.name, err)
		}
	}
	at := off
	for _, b := range bufs {
		copy(f.n.cur[at:], b)
		at += int64(len(b))
	}
	f.mark(off, end)
	return nil
}

func (f *memFile) WriteSync(bufs [][]byte, off int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	end := off + total(bufs)
	if err := f.write(bufs, off); err != nil {
		return err
	}
	if end > int64(len(f.n.dur)) {
		// The size is needed to read the bytes again. What lies between the old end and off is zeros until it is synced itself.
		f.n.dur = append(f.n.dur, make([]byte, end-int64(len(f.n.dur)))...)
	}
	f.settle(off, end)
	return nil
}

// settle makes the sectors of a range durable.
func (f *memFile) settle(from, to int64) {
	for s := from / sectorBytes; s*sectorBytes < to; s++ {
		if _, ok := f.n.dirty[s]; !ok {
			continue
		}
		at := s * sectorBytes
		if at < int64(len(f.n.dur)) && at < int64(len(f.n.cur)) {
			end := min(at+sectorBytes, int64(len(f.n.dur)), int64(len(f.n.cur)))
			copy(f.n.dur[at:end], f.n.cur[at:end])
		}
		delete(f.n.dirty, s)
	}
}

func (f *memFile) Sync() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("sync", false); err != nil {
		return &SyncError{Err: err}
	}
	n := f.n
	if len(n.cur) != len(n.dur) {
		d := make([]byte, len(n.cur))
		copy(d, n.dur)
		n.dur = d
	}
	f.settle(0, int64(len(n.cur)))
	clear(n.dirty)
	return nil
}

func (f *memFile) Truncate(size int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("truncate", true); err != nil {
		return err
	}
	return pathError("truncate", f.name, f.resize(size))
}

func (f *memFile) Allocate(off, n int64) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if err := f.check("allocate", true); err != nil {
		return err
	}
	if off+n <= int64(len(f.n.cur)) {
		return nil
	}
	return pathError("allocate", f.name, f.resize(off+n))
}

func (f *memFile) Size() (int64, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return int64(len(f.n.cur)), f.check("stat", false)
}

func (f *memFile) Close() error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	err := f.check("close", false)
	f.closed = true
	return err
}
