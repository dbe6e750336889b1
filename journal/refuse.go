package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/lightio/lightq/journal/vfs"
)

// failLocked handles a failed operation: lack of space heals, unless it is from a sync; everything else poisons.
func (l *Log) failLocked(err error) {
	var se *vfs.SyncError
	if vfs.IsNoSpace(err) && !errors.As(err, &se) && l.state != stateClosing {
		l.refuseLocked(err)
		return
	}
	l.poisonLocked(err)
}

// poisonLocked stops appends for good. What is complete in order stays durable, nothing is added to it.
func (l *Log) poisonLocked(err error) {
	if l.state == statePoisoned || l.state == stateClosed {
		return
	}
	l.state, l.failure = statePoisoned, err
	l.poison = PoisonedError{From: l.durable, Err: err}
	l.dropPendingLocked()
	l.sy.stopAlarm(&l.alarm)
}

func (l *Log) dropPendingLocked() {
	clear(l.pending)
	l.pending, l.pendingHead, l.unformed = l.pending[:0], 0, 0
}

// refuseLocked stops appends until what is in flight has drained and the tail was cut to what is complete in order.
func (l *Log) refuseLocked(err error) {
	if l.state != stateOpen {
		return
	}
	l.state, l.failure = stateRefusing, err
	l.next = l.written
	l.syncTo = min(l.syncTo, l.next)
	l.dropPendingLocked()
	l.m.refusals++
}

// cut runs when a refusal has drained: it removes from the disk what came behind the last complete group, so that no later group can
// ever be followed by a leftover, and opens the log again. Nothing else of the log is under way meanwhile.
func (l *Log) cut() {
	l.mu.Lock()
	var gone []*segment
	for n := len(l.segments); n > 0 && l.segments[n-1].written == l.segments[n-1].first; n-- {
		seg := l.segments[n-1] // no group of it was ever complete
		if seg.taken {
			l.taken[seg.base] = struct{}{} // the other file still has the name
		}
		gone = append(gone, seg)
		l.segments = l.segments[:n-1]
	}
	l.active = nil
	var last *segment
	if n := len(l.segments); n > 0 && !l.segments[n-1].sealed && !l.segments[n-1].damaged {
		last = l.segments[n-1]
	}
	l.mu.Unlock()

	err := l.removeUnused(gone)
	if err == nil {
		err = l.nameAgain()
	}
	if err == nil && last != nil && last.pos > last.written && last.ready {
		if err = last.handles[0].Truncate(int64(last.written)); err == nil {
			err = last.handles[0].Sync()
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	l.cutting = false
	if l.state != stateRefusing {
		return
	}
	if err != nil {
		l.poisonLocked(fmt.Errorf("cut the refused tail: %w", err))
		return
	}
	if last != nil {
		last.pos, last.formed, last.end = last.written, last.next, -1
		last.allocated, last.warm = min(last.allocated, last.written), min(last.warm, last.written)
		last.reserved = int64(last.pos - last.first)
		l.active = last
	}
	for l.flightHead < l.flightTail {
		l.flights[l.flightHead%maxFlights] = flight{}
		l.flightHead++
	}
	l.pendingBytes = 0
	l.next, l.gapFrom = l.written, l.written
	l.epoch++
	l.state = stateOpen
	l.refusal = &RefusedError{From: l.next, Err: l.failure}
	l.lastRefusal = l.refusal
	l.failure = nil
	l.settleDurableLocked()
	l.sealWaitingLocked()
	l.retainLocked()
	l.sy.setAlarm(&l.alarm, time.Now()) // it may have rung meanwhile, for nothing
}

// nameAgain gives segments that have records the names that they did not get when the refusal began.
func (l *Log) nameAgain() error {
	l.mu.Lock()
	var unnamed []*segment
	for _, seg := range l.segments {
		if !seg.named {
			unnamed = append(unnamed, seg)
		}
	}
	l.mu.Unlock()
	if len(unnamed) == 0 {
		return nil
	}
	for _, seg := range unnamed {
		if seg.from != "" {
			if err := l.rename(seg); err != nil {
				return err
			}
		}
	}
	if err := l.fsys.SyncDir(l.dir); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seg := range unnamed {
		seg.named = true
	}
	return nil
}

// removeUnused removes segments that nothing was ever written to, as far as they were made.
func (l *Log) removeUnused(gone []*segment) error {
	for _, seg := range gone {
		closeFiles(seg.takeHandles())
		name := seg.path
		if seg.from != "" {
			name = seg.from
		} else if seg.taken {
			continue // it was not made
		}
		if err := l.fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return l.fsys.SyncDir(l.dir)
}
