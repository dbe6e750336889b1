package journal

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// rollLocked begins a new segment at next. What was active is sealed when all of it is written.
func (l *Log) rollLocked() {
	wall, mono := l.opts.Clock.Now()
	if old := l.active; old != nil {
		old.end = l.next
		l.openLocked(old) // it may have been closed since its last append
		l.sealLocked(old)
	}
	var snapshot []byte
	if l.opts.Snapshot != nil {
		if snapshot = l.opts.Snapshot(nil, l.next); len(snapshot) > maxSnapshotBytes {
			invariant.Bug("a snapshot of %d bytes", len(snapshot))
		}
	}
	h := SegmentHeader{
		Version: formatVersion, Topic: l.opts.Topic, Partition: l.opts.Partition, Epoch: l.epoch, Base: l.next,
		GapFrom: min(l.gapFrom, l.next), Created: wall, Salt: newSalt(), Durable: l.durable,
	}
	seg := &segment{
		base: l.next, path: l.path(segmentName(l.next)), next: l.next, formed: l.next, end: -1, synced: l.next, born: mono, ageAt: mono,
	}
	seg.block = h.encodeBlock(snapshot)
	seg.header = h
	seg.pos, seg.first = h.DataStart(), h.DataStart()
	seg.written, seg.size, seg.reserved = seg.pos, int64(seg.pos), 0
	if _, ok := l.taken[l.next]; ok {
		seg.taken = true
		delete(l.taken, l.next)
	}
	l.active = seg
	l.segments = append(l.segments, seg)
	if len(l.segments) == 1 {
		l.start = seg.base
	}
	if sp := l.spare; sp != nil {
		l.spare = nil
		seg.handles, seg.free = sp.handles, append([]vfs.File(nil), sp.handles...)
		seg.allocated, seg.warm = sp.allocated, sp.warm
		seg.ready, seg.from = true, sp.path
	}
}

// openLocked sees to it that the active segment gets a handle and a name.
func (l *Log) openLocked(seg *segment) {
	if !seg.made {
		l.makeLocked()
	} else if !seg.ready && !seg.opening {
		seg.opening = true
		l.taskLocked(func() { l.reopen(seg) })
	}
}

// makeLocked gives the next segment that has no name its name. Names come in the order of segments, each for good before the next: a lone
// empty segment that does not begin at 0 is then never the remnant of a crash.
func (l *Log) makeLocked() {
	i := len(l.segments)
	for i > 0 && !l.segments[i-1].made {
		i--
	}
	if i == len(l.segments) || i > 0 && !l.segments[i-1].named || l.segments[i].opening {
		return
	}
	seg := l.segments[i]
	seg.opening = true
	if seg.from != "" {
		l.taskLocked(func() { l.name(seg) })
	} else {
		l.taskLocked(func() { l.create(seg) })
	}
}

// create makes the file of a new segment.
func (l *Log) create(seg *segment) {
	if err := l.setAside(seg); err != nil {
		l.failOpen(seg, err)
		return
	}
	f, err := l.fsys.Create(seg.path)
	if err != nil {
		l.failOpen(seg, err)
		return
	}
	l.mu.Lock()
	seg.made = true
	l.mu.Unlock()
	l.opened(seg, f)
	l.syncName(seg)
}

// setAside gives a file that is not part of the log but has the name that the segment needs another name.
func (l *Log) setAside(seg *segment) error {
	if !seg.taken {
		return nil
	}
	for n := 1; ; n++ {
		aside := fmt.Sprintf("%s.aside-%d", seg.path, n)
		f, err := l.fsys.OpenRead(aside)
		if err == nil {
			_ = f.Close() // it was only read
			continue
		}
		if errors.Is(err, vfs.ErrNotRegular) {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := l.fsys.Rename(seg.path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		seg.taken = false
		return nil
	}
}

// name gives a spare file the name of its segment.
func (l *Log) name(seg *segment) {
	if err := l.rename(seg); err != nil {
		l.failOpen(seg, err)
		return
	}
	l.syncName(seg)
}

func (l *Log) rename(seg *segment) error {
	if err := l.setAside(seg); err != nil {
		return err
	}
	if err := l.fsys.Rename(seg.from, seg.path); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.from, seg.made = "", true
	l.landAllLocked()
	return nil
}

// reopen opens the file of a segment that exists.
func (l *Log) reopen(seg *segment) {
	f, err := l.fsys.Open(seg.path)
	if err != nil {
		l.failOpen(seg, err)
		return
	}
	l.mu.Lock()
	named := seg.named
	l.mu.Unlock()
	l.opened(seg, f)
	if !named {
		l.syncName(seg)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.opening = false
	l.sealLocked(seg)
}

func (l *Log) opened(seg *segment, f vfs.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.handles, seg.free, seg.ready = []vfs.File{f}, []vfs.File{f}, true
	l.kickLocked()
}

// syncName makes the segment's name durable. Groups may be written meanwhile; they count as durable only then.
func (l *Log) syncName(seg *segment) {
	err := l.fsys.SyncDir(l.dir)
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.opening = false
	if err != nil {
		l.failLocked(fmt.Errorf("sync directory %s: %w", l.dir, &vfs.SyncError{Err: err}))
		return
	}
	seg.named = true
	l.settleDurableLocked()
	l.sealLocked(seg)
	if l.state == stateOpen || l.state == stateClosing {
		l.makeLocked()
	}
	l.retainLocked()
}

// failOpen handles a file that could not be made or opened: nothing was written, so it is a refusal, whatever the reason.
func (l *Log) failOpen(seg *segment, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seg.opening = false
	if l.state == stateOpen {
		l.refuseLocked(fmt.Errorf("open segment: %w", err))
	} else if l.state == stateClosing {
		l.poisonLocked(fmt.Errorf("open segment: %w", err))
	}
}
