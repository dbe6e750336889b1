package journal

import (
	"fmt"
	"slices"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// markableLocked says whether a mark is wanted and can be written now.
func (l *Log) markableLocked() bool {
	seg := l.active
	if seg == nil || l.marked >= l.durable && seg.block == nil {
		l.wantMark = false
	}
	return l.wantMark && l.flightHead == l.flightTail && l.formableLocked(seg)
}

// wantMarkLater sees to it that the durable offset gets into a group header even if no group follows.
func (l *Log) wantMarkLater() {
	l.sy.setAlarm(&l.alarm, time.Now().Add(l.opts.MarkDelay))
}

// ring is called by the alarm: an interval is over, a mark is due, or the log is idle.
func (l *Log) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != stateOpen {
		return
	}
	if len(l.doomed) > 0 {
		l.retainLocked()
	}
	now := time.Now()
	again := func(at time.Time) { l.sy.setAlarm(&l.alarm, at) }
	if !l.syncAt.IsZero() {
		if now.Before(l.syncAt) {
			again(l.syncAt)
		} else {
			l.syncLocked()
		}
	}
	if l.marked < l.durable && l.active != nil {
		if due := l.lastWrite.Add(l.opts.MarkDelay); now.Before(due) || l.flightHead != l.flightTail {
			again(later(due, now.Add(l.opts.MarkDelay/2)))
			return
		}
		l.wantMark = true
		l.kickLocked()
		again(now.Add(l.opts.MarkDelay))
		return
	}
	seg := l.active
	if seg == nil || !seg.ready {
		return
	}
	if due := l.lastWrite.Add(l.opts.IdleClose); now.Before(due) {
		again(due)
		return
	}
	switch {
	case l.busy > 0 || l.tasks > 0 || l.next > l.written:
		again(now.Add(l.opts.IdleClose))
	case seg.synced < seg.next:
		l.syncLocked()
		again(now.Add(l.opts.IdleClose))
	default:
		l.restLocked(seg)
	}
}

// restLocked gives back what a log does not need while it is idle: memory, open files, and the disk space that was reserved or kept ahead.
// Nothing of the log is under way, and everything is durable and marked. Whatever is appended meanwhile waits until it is done.
func (l *Log) restLocked(seg *segment) {
	l.flights, l.slots = nil, nil
	l.pending, l.pendingHead = nil, 0
	spares := l.spares
	if l.spare != nil {
		spares = append(spares, l.spare)
	}
	l.spare, l.spares = nil, nil
	reserved := max(seg.allocated, seg.warm) > seg.pos
	if !reserved && len(spares) == 0 {
		l.closeLocked(seg)
		return
	}
	handles := seg.takeHandles()
	seg.opening = true
	at := seg.pos
	l.taskLocked(func() {
		for _, sp := range spares {
			l.discard(sp)
		}
		if len(spares) > 0 {
			_ = l.fsys.SyncDir(l.dir) // the next Open removes what comes back
		}
		if reserved && handles[0].Truncate(int64(at)) == nil {
			_ = handles[0].Sync() // what matters was synced; a file that stays longer than it need be does no harm
		}
		closeFiles(handles)
		l.mu.Lock()
		defer l.mu.Unlock()
		seg.opening = false
		seg.allocated, seg.warm = 0, 0
		if l.pendingHead < len(l.pending) || seg.end >= 0 {
			l.openLocked(seg)
		}
	})
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Sync makes everything durable that was appended before, in the modes that do not do so by themselves. It returns without waiting.
func (l *Log) Sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateOpen {
		l.syncTo = l.next
		l.syncWantedLocked()
	}
}

// syncWantedLocked begins the sync that was asked for once all that it is to cover is written, and none that began before is under way.
func (l *Log) syncWantedLocked() {
	if l.durable < l.syncTo && l.syncTo <= l.written {
		l.syncLocked()
	}
}

// syncLocked syncs what was written before now.
func (l *Log) syncLocked() {
	if l.syncing || l.opts.Sync == SyncAlways {
		return
	}
	l.syncAt = time.Time{}
	type target struct {
		seg *segment
		f   vfs.File
		to  codec.Offset
	}
	var targets []target
	for i := len(l.segments) - 1; i >= 0 && !l.segments[i].sealed; i-- {
		if seg := l.segments[i]; seg.ready && seg.synced < seg.next {
			targets = append(targets, target{seg: seg, f: seg.handles[0], to: seg.next})
		}
	}
	if len(targets) == 0 {
		return
	}
	slices.Reverse(targets) // oldest first: what is synced when the machine stops is of use only without a hole before it
	l.syncing = true
	l.taskLocked(func() {
		var err error
		began := time.Now()
		for _, t := range targets {
			if err = t.f.Sync(); err != nil {
				break
			}
		}
		took := time.Since(began)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.syncing = false
		for _, seg := range l.closeLater {
			l.closeLocked(seg)
		}
		l.closeLater = l.closeLater[:0]
		if err != nil {
			l.failLocked(fmt.Errorf("sync segment: %w", err))
			return
		}
		l.m.synced(took)
		for _, t := range targets {
			t.seg.synced = max(t.seg.synced, t.to)
			t.seg.anchored = t.seg.anchored || t.seg.synced > t.seg.base
		}
		l.settleDurableLocked()
		l.retainLocked()
		// Whatever was set may have passed while this sync was under way.
		l.syncAt = time.Time{}
		if l.opts.Sync == SyncInterval && l.written > l.durable {
			l.syncAt = began.Add(l.opts.Interval)
			l.sy.setAlarm(&l.alarm, l.syncAt)
		}
		l.syncWantedLocked()
	})
}

// Close writes and syncs what was appended, leaves a durable mark behind the last group, and closes the files. It waits for the disk, so
// never call it from OnProgress. It returns the *PoisonedError if the log is poisoned.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state == stateRefusing || l.state == stateClosing {
		l.idle.Wait()
	}
	if l.state == stateClosed {
		return ErrClosed
	}
	if l.state == stateOpen {
		l.state = stateClosing
		l.kickLocked()
	}
	l.drainLocked()
	// A sync that was under way may have begun before the last write.
	for l.state == stateClosing && l.durable < l.written {
		if l.syncLocked(); !l.syncing {
			break
		}
		l.drainLocked()
	}
	if l.state == stateClosing {
		l.finishLocked()
	}
	for l.telling {
		l.idle.Wait()
	}
	var err error
	if l.state == statePoisoned {
		p := l.poison
		err = &p
	}
	l.shutLocked()
	return err
}

// drainLocked waits until nothing of the log is under way.
func (l *Log) drainLocked() {
	for l.busy > 0 || l.tasks > 0 || l.state != statePoisoned && l.flightHead+uint64(len(l.pending)-l.pendingHead) != l.flightTail {
		l.idle.Wait()
	}
}

// finishLocked leaves the active segment as a clean stop should: a mark that covers everything, and no reserved blocks behind it.
func (l *Log) finishLocked() {
	seg := l.active
	if seg == nil || !seg.ready {
		return
	}
	if l.marked < l.durable {
		l.wantMark = true
		l.kickLocked()
		l.drainLocked()
	}
	if l.state != stateClosing || seg.block != nil {
		return
	}
	f := seg.handles[0]
	if size, err := f.Size(); err != nil || size <= int64(seg.written) {
		return
	}
	// A file that stays longer than it need be does no harm.
	if f.Truncate(int64(seg.written)) == nil {
		_ = f.Sync() // as above
	}
}

// shutLocked releases everything.
func (l *Log) shutLocked() {
	l.sy.stopAlarm(&l.alarm)
	for _, seg := range l.segments {
		closeFiles(seg.takeHandles())
	}
	if l.spare != nil {
		l.spares = append(l.spares, l.spare)
	}
	for _, sp := range l.spares {
		l.discard(sp)
	}
	l.spare, l.spares = nil, nil
	l.state = stateClosed
	l.idle.Broadcast()
}
