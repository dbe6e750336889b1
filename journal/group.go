package journal

import (
	"fmt"
	"slices"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
)

// pairBytes is what a second group must have while there are not enough bytes to fill more. Less is not worth it: what comes during a sync
// shares the next, while two syncs at a time take each other's turn on the disk and cost twice the work.
const pairBytes = 16 << 10

// kickLocked queues as many slots as the pending bytes are worth: one at any rate, two from pairBytes on, all of them once there are bytes
// to fill them.
func (l *Log) kickLocked() {
	if l.state != stateOpen && l.state != stateClosing {
		return
	}
	worth := int64(l.opts.GroupBytes) / 4
	for l.busy < l.opts.MaxInFlight {
		if l.pendingHead == len(l.pending) {
			if l.markableLocked() && l.busy == 0 {
				l.queueSlotLocked()
			}
			return
		}
		if l.busy > 0 {
			enough := worth * int64(l.queued+1)
			if l.busy == 1 && l.queued == 0 {
				enough = pairBytes
			}
			if l.unformed < enough {
				return
			}
		}
		if !l.formableLocked(l.pending[l.pendingHead].seg) {
			return
		}
		l.queueSlotLocked()
	}
}

// queueSlotLocked queues a slot that is idle; fewer than MaxInFlight are busy.
func (l *Log) queueSlotLocked() {
	i := slices.IndexFunc(l.slots, func(s *slot) bool { return s.state == slotIdle })
	if i < 0 {
		i = len(l.slots)
		s := &slot{}
		s.work.run = func(w *syncWorker) { l.runSlot(s, w) }
		l.slots = append(l.slots, s)
	}
	if l.flights == nil {
		l.flights = make([]flight, maxFlights)
	}
	s := l.slots[i]
	s.state = slotQueued
	l.busy++
	l.queued++
	l.sy.push(&s.work)
}

// formableLocked says whether a group of the segment could be written now.
func (l *Log) formableLocked(seg *segment) bool {
	if !seg.ready || l.flightTail-l.flightHead == maxFlights || seg.zeroing > 0 && !l.fitsLocked(seg) {
		return false
	}
	if len(seg.free) == 0 {
		l.widenLocked(seg)
		return false
	}
	return true
}

// fitsLocked says whether the next group stays clear of the blocks that are being zeroed.
func (l *Log) fitsLocked(seg *segment) bool {
	size := Position(groupHeaderBytes + groupAlign)
	for i := l.pendingHead; i < len(l.pending) && l.pending[i].seg == seg && size < Position(l.opts.GroupBytes); i++ {
		size += Position(len(l.pending[i].b))
	}
	return seg.pos+size <= seg.zeroing
}

// runSlot writes groups until there is nothing to write, or somebody else's turn has come.
func (l *Log) runSlot(s *slot, w *syncWorker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.state, s.store = slotRunning, w.store[:0]
	l.queued--
	for l.formLocked(s) {
		l.kickLocked()
		l.mu.Unlock()
		var err error
		if s.sync {
			err = s.file.WriteSync(s.bufs, int64(s.at))
		} else {
			err = s.file.WriteAt(s.bufs, int64(s.at))
		}
		took := time.Since(s.since)
		l.mu.Lock()
		l.completeLocked(s, err, took)
		l.tellLocked()
		if l.pendingHead < len(l.pending) && l.sy.crowded() {
			break
		}
	}
	s.state, s.store = slotIdle, nil
	l.busy--
	l.kickLocked()
	l.settleLocked()
	l.tellLocked()
}

// formLocked makes the next group: as many pending batches of one segment as a group holds. It returns false if there is none, or
// it cannot be written now; whoever changes that calls kickLocked.
func (l *Log) formLocked(s *slot) bool {
	if l.state != stateOpen && l.state != stateClosing {
		return false
	}
	var seg *segment
	mark := l.pendingHead == len(l.pending)
	if mark {
		if !l.markableLocked() {
			return false
		}
		seg = l.active
	} else if seg = l.pending[l.pendingHead].seg; !l.formableLocked(seg) {
		return false
	}
	wall, _ := l.opts.Clock.Now()
	g := Group{
		Kind: KindData, Base: seg.formed, Next: seg.formed, Time: wall, Durable: l.durable, Epoch: l.epoch, Salt: seg.header.Salt,
		Position: seg.pos,
	}
	st := Stats{FirstTime: wall, MaxTime: wall}
	s.store = s.store[:0]
	s.at = seg.pos
	s.sync = mark || l.opts.Sync == SyncAlways
	first := seg.block != nil
	if seg.block != nil {
		s.store = append(s.store, seg.block)
		s.at = 0
		seg.block = nil
	}
	s.store = append(s.store, s.header[:])
	s.size = 0
	if mark {
		g.Kind = KindPad
	} else {
		l.fillLocked(s, seg, &g, &st)
		if first && l.wantMark {
			// It takes the place of the mark that the segment was begun with. A sync of it alone would leave a hole before it.
			l.syncTo = max(l.syncTo, g.Next)
		}
	}
	if pad := int(g.End() - g.Position - groupHeaderBytes - Position(g.Body)); pad > 0 {
		s.store = append(s.store, padding[:pad])
	}
	g.encode(s.header[:])
	l.marked = max(l.marked, l.durable)
	if l.marked >= l.next || mark {
		l.wantMark = false
	}

	n := len(seg.free) - 1
	s.file, seg.free = seg.free[n], seg.free[:n]
	s.seg, s.bufs, s.since = seg, s.store, time.Now()
	s.flight = l.flightTail
	l.flights[l.flightTail%maxFlights] = flight{seg: seg, group: g, stats: st, synced: s.sync}
	l.flightTail++
	seg.pos, seg.formed = g.End(), g.Next
	l.lastWrite = s.since
	l.m.groupFormed(&g, s.size)
	l.extendLocked(seg)
	return true
}

// fillLocked moves pending entries of seg into the group.
func (l *Log) fillLocked(s *slot, seg *segment, g *Group, st *Stats) {
	if e := l.pending[l.pendingHead]; e.b == nil {
		g.Kind, g.Next = KindGap, e.gap
		l.popLocked()
		return
	}
	st.Groups = 1
	for l.pendingHead < len(l.pending) && g.Batches < maxVecs {
		e := l.pending[l.pendingHead]
		if e.seg != seg || e.b == nil || g.Batches > 0 && g.Body+len(e.b) > l.opts.GroupBytes {
			break
		}
		b := codec.Batch(e.b)
		g.BodyCRC = updateCRC(g.BodyCRC, b[:prefixBytes])
		g.Body += len(b)
		g.Batches++
		g.Next = b.NextOffset()
		st.addBatch(b, g.Time)
		s.store = append(s.store, e.b)
		l.popLocked()
	}
	s.size = int64(g.Body)
	l.unformed -= s.size
}

func (l *Log) popLocked() {
	l.pending[l.pendingHead] = entry{}
	l.pendingHead++
	if l.pendingHead == len(l.pending) {
		l.pending, l.pendingHead = l.pending[:0], 0
	}
}

// completeLocked takes note of the end of a write, and of everything that is complete in order by it.
func (l *Log) completeLocked(s *slot, err error, took time.Duration) {
	clear(s.store)
	s.seg.free = append(s.seg.free, s.file)
	s.file, s.bufs = nil, nil
	f := &l.flights[s.flight%maxFlights]
	s.seg = nil
	if err != nil {
		l.failLocked(fmt.Errorf("write group at offset %d: %w", f.group.Base, err))
		return
	}
	l.m.groupWritten(took, s.sync)
	f.done = true
	l.landAllLocked()
}

// landAllLocked makes what is complete in order part of what can be read. A spare file is written to before it has its segment's name, and
// without that a recovery takes it for a spare: until then its groups would not survive the process.
func (l *Log) landAllLocked() {
	if l.state == stateRefusing {
		return // the cut decides
	}
	for l.flightHead < l.flightTail && l.flights[l.flightHead%maxFlights].done && l.flights[l.flightHead%maxFlights].seg.made {
		f := &l.flights[l.flightHead%maxFlights]
		l.landLocked(f)
		*f = flight{}
		l.flightHead++
	}
	l.settleDurableLocked()
	l.syncWantedLocked()
}

// landLocked makes a group part of what can be read.
func (l *Log) landLocked(f *flight) {
	seg := f.seg
	if f.group.Kind == KindData {
		seg.indexGroup(&f.group)
		seg.stats.add(f.stats)
		_, seg.ageAt = l.opts.Clock.Now()
		seg.age = 0
	}
	seg.written, seg.next = f.group.End(), f.group.Next
	seg.anchored = seg.anchored || f.synced
	seg.size = int64(seg.written)
	l.written = f.group.Next
	l.pendingBytes -= int64(f.group.Body)
	if l.opts.Sync == SyncAlways {
		seg.synced = seg.next
	} else if l.opts.Sync == SyncInterval && l.syncAt.IsZero() {
		l.syncAt = time.Now().Add(l.opts.Interval)
		l.sy.setAlarm(&l.alarm, l.syncAt)
	} else if l.opts.Sync == SyncOS {
		l.sy.setAlarm(&l.alarm, l.lastWrite.Add(l.opts.IdleClose))
	}
	l.zeroLocked(seg, f.group.Body)
	if seg.end >= 0 {
		l.sealLocked(seg)
	}
	if f.group.Kind == KindPad {
		l.retainLocked() // it may have waited for the segment to be anchored
		l.sy.setAlarm(&l.alarm, time.Now().Add(l.opts.IdleClose))
	}
}

// settleDurableLocked moves durable to where segments are synced without a hole and their names are too.
func (l *Log) settleDurableLocked() {
	if l.state == statePoisoned || l.state == stateRefusing {
		return
	}
	i := len(l.segments) - 1
	for i > 0 && l.segments[i].base > l.durable {
		i--
	}
	d := l.durable
	for ; i >= 0 && i < len(l.segments); i++ {
		seg := l.segments[i]
		if !seg.named {
			break
		}
		d = max(d, seg.synced)
		if seg.end < 0 || seg.synced < seg.end {
			break
		}
	}
	if d == l.durable {
		return
	}
	l.durable = d
	invariant.Check(l.start <= d && d <= l.written && l.written <= l.next, "start %d, durable %d, written %d, next %d",
		l.start, d, l.written, l.next)
	if l.marked < l.durable {
		l.wantMarkLater()
	}
	l.sealWaitingLocked()
}
