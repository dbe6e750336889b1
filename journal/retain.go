package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// Retain applies the retention of the options: it removes the oldest whole segments while what stays has at least RetentionBytes, and those
// whose last append is older than RetentionTime. An active segment that has expired is sealed first, so that a quiet partition
// empties too. It returns without waiting. Retention by bytes is also applied whenever a segment is sealed.
//
// Ages are measured by the clock's monotonic part since the segment was written or loaded: a step of the wall clock expires nothing.
func (l *Log) Retain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != stateOpen {
		return
	}
	if seg := l.active; seg != nil && l.opts.RetentionTime > 0 && seg.next > seg.base && l.next == l.written &&
		l.ageLocked(seg) > l.opts.RetentionTime {
		l.turnLocked()
	}
	l.retainLocked()
}

// SetRetention changes what Retain keeps; 0: no bound.
func (l *Log) SetRetention(bytes int64, age time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.opts.RetentionBytes, l.opts.RetentionTime = bytes, age
}

// Trim removes the whole segments whose records are all below an offset. It returns without waiting; Start tells the effect.
func (l *Log) Trim(to codec.Offset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.trimTo = max(l.trimTo, min(to, l.next))
	l.retainLocked()
}

// Purge removes every record that was appended before, and waits until that is for good: Start is then the Next of the call, and a crash
// brings none of them back. Offsets go on from there. It waits for the disk, so never call it from OnProgress. After an error part of
// the records may be gone; Purge may be called again.
func (l *Log) Purge() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == stateRefusing {
		l.idle.Wait()
	}
	if err := l.takesLocked(0); err != nil {
		return err
	}
	l.trimFailure = nil
	to, refusals := l.next, l.m.refusals
	l.trimTo = max(l.trimTo, to)
	for {
		if l.state != stateOpen && l.state != stateRefusing {
			return l.takesLocked(0)
		}
		if l.m.refusals > refusals && l.state == stateOpen {
			return fmt.Errorf("purge: %w", l.lastRefusal)
		}
		if l.trimFailure != nil && !l.trimming {
			return fmt.Errorf("purge: %w", l.trimFailure)
		}
		if l.state == stateOpen && (l.active == nil && len(l.segments) > 0 || l.active != nil && l.active.base < to) {
			l.turnLocked()
		}
		l.retainLocked()
		if l.start >= to && len(l.doomed) == 0 {
			return nil
		}
		l.idle.Wait()
	}
}

// turnLocked makes the active segment a sealed one without an append. The new one gets a mark at once: a segment may only be removed when
// another one that says where offsets go on is safe.
func (l *Log) turnLocked() {
	l.rollLocked()
	l.openLocked(l.active)
	l.wantMark = true
	l.kickLocked()
}

func (l *Log) ageLocked(seg *segment) time.Duration {
	_, mono := l.opts.Clock.Now()
	return seg.age + max(0, mono-seg.ageAt)
}

// retainLocked moves expired segments out of the log and has their files removed.
func (l *Log) retainLocked() {
	if l.state != stateOpen {
		return
	}
	total := int64(0)
	for _, seg := range l.segments {
		total += seg.size
	}
	for len(l.segments) > 1 {
		seg := l.segments[0]
		if seg == l.active || seg.end < 0 || seg.opening || seg.sealing || seg.ready || !l.segments[1].anchored || !l.segments[1].named || seg.end > l.durable {
			break
		}
		expired := seg.end <= l.trimTo ||
			l.opts.RetentionBytes > 0 && total-seg.size >= l.opts.RetentionBytes ||
			l.opts.RetentionTime > 0 && l.ageLocked(seg) > l.opts.RetentionTime
		if !expired {
			break
		}
		total -= seg.size
		l.segments[0] = nil
		l.segments = l.segments[1:]
		l.start = l.segments[0].base
		l.doomed = append(l.doomed, seg)
		l.m.trimmed++
	}
	invariant.Check(l.start <= l.durable, "start %d above durable %d", l.start, l.durable)
	if len(l.doomed) > 0 && !l.trimming {
		l.trimming = true
		l.taskLocked(l.trim)
	}
}

// trim removes the files of doomed segments, the oldest first and each for good before the next: a crash never leaves a hole.
func (l *Log) trim() {
	for {
		l.mu.Lock()
		if len(l.doomed) == 0 || l.state != stateOpen && l.state != stateClosing {
			l.trimming = false
			l.mu.Unlock()
			return
		}
		seg := l.doomed[0]
		var spareAt string
		// A quiet log keeps no spare: nothing would be written to it soon.
		busy := l.active != nil && l.active.ready
		if busy && l.state == stateOpen && len(l.spares) < l.opts.MaxSpares && seg.size >= l.opts.SegmentBytes/2 && !seg.damaged {
			l.spareCount++
			spareAt = l.path(spareName(l.spareCount))
		}
		l.mu.Unlock()
		if l.opts.Readers != nil && !l.opts.Readers.drop(seg) {
			spareAt = "" // somebody reads it
		}
		sp, err := l.removeSegment(seg, spareAt)
		l.mu.Lock()
		l.trimFailure = err
		if err != nil {
			l.m.trimErrors++
			l.trimming = false
			l.sy.setAlarm(&l.alarm, time.Now().Add(l.opts.IdleClose)) // to try again
			l.mu.Unlock()
			return
		}
		l.doomed[0] = nil
		l.doomed = l.doomed[1:]
		if sp != nil {
			l.m.recycled++
			l.spares = append(l.spares, sp)
		}
		l.mu.Unlock()
	}
}

// removeSegment removes a segment's files, or makes a spare of the segment. The header goes before the file may become a segment
// again: if its new header were lost, it must not pass for the old one.
func (l *Log) removeSegment(seg *segment, spareAt string) (*spare, error) {
	if err := l.fsys.Remove(l.path(indexName(seg.base))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if spareAt == "" {
		if err := l.fsys.Remove(seg.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, l.fsys.SyncDir(l.dir)
	}
	err := l.fsys.Rename(seg.path, spareAt)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, l.fsys.SyncDir(l.dir) // an earlier try came as far as this
	}
	if err != nil {
		return nil, err
	}
	if err := l.fsys.SyncDir(l.dir); err != nil {
		_ = l.fsys.Remove(spareAt) // it will not be found under this name again; the next Open removes it
		return nil, err
	}
	f, err := l.fsys.Open(spareAt)
	if err == nil {
		err = f.WriteSync([][]byte{zeroBlock[:headerBlockBytes]}, 0)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err != nil {
		// It is trimmed either way, and not fit to be used again.
		return nil, l.fsys.Remove(spareAt)
	}
	size := Position(seg.size) / 4096 * 4096
	return &spare{path: spareAt, allocated: size, warm: size}, nil
}

// deletedSuffix marks the directory of a log that is being deleted.
const deletedSuffix = ".deleted"

// Delete removes the directory of a log that is closed, with everything in it. From its first step on, which is a single change
// of a name, the log is gone; what a crash leaves is removed by DeleteLeftovers.
func Delete(fsys vfs.FS, dir string) error {
	gone := path.Clean(dir) + deletedSuffix
	if err := removeTree(fsys, gone); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete log: %w", err)
	}
	err := fsys.Rename(dir, gone)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fsys.SyncDir(path.Dir(gone))
	}
	if err == nil {
		err = removeTree(fsys, gone)
	}
	if err != nil {
		return fmt.Errorf("delete log: %w", err)
	}
	return nil
}

// DeleteLeftovers finishes deletions that were cut short in the directory that holds logs.
func DeleteLeftovers(fsys vfs.FS, parent string) error {
	list, err := fsys.List(parent)
	if err != nil {
		return fmt.Errorf("delete leftovers: %w", err)
	}
	for _, e := range list {
		if e.Kind == vfs.Dir && strings.HasSuffix(e.Name, deletedSuffix) {
			if err := removeTree(fsys, path.Join(parent, e.Name)); err != nil {
				return fmt.Errorf("delete leftovers: %w", err)
			}
		}
	}
	return nil
}

// removeTree removes a directory with everything in it, for good.
func removeTree(fsys vfs.FS, dir string) error {
	if err := vfs.RemoveAll(fsys, dir); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(dir))
}
