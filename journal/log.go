package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// SyncMode says when an append is durable.
type SyncMode uint8

// The modes.
const (
	SyncAlways   SyncMode = iota // every group is synced; the default
	SyncInterval                 // written at once, synced at most Options.Interval later
	SyncOS                       // written at once, synced when a segment is sealed, and on Close
)

// Clock is where a log takes the time from. Ages and timers use the second value alone, so that a step of the wall clock moves
// nothing.
type Clock interface {
	// Now returns the wall clock in milliseconds since the Unix epoch, and the time since some fixed moment.
	Now() (wall int64, mono time.Duration)
}

type systemClock struct{ zero time.Time }

func (c systemClock) Now() (int64, time.Duration) {
	t := time.Now()
	return t.UnixMilli(), t.Sub(c.zero)
}

// Options of a log. Syncers is required, everything else has a default.
type Options struct {
	Topic     TopicID
	Partition uint32

	Sync     SyncMode
	Interval time.Duration // of SyncInterval; 0: 10 ms

	// SegmentBytes is when a segment is full; 0: 128 MiB, a tenth of a second at the full rate of a fast disk. A call of Append is never
	// split, so a segment may be larger by one.
	SegmentBytes int64
	// GroupBytes is when a group is full; 0: 1 MiB. A larger batch is a group of its own.
	GroupBytes int
	// MaxInFlight is how many writes of the log may be under way; 0: 4.
	MaxInFlight int
	// MaxPendingBytes bounds the bytes that were appended and are not yet written; 0: 64 MiB. Above it Append returns ErrBusy.
	MaxPendingBytes int64
	// MarkDelay is how long after the last group a durable mark follows; 0: 200 ms.
	MarkDelay time.Duration
	// IdleClose is how long after that the file is closed; 0: 30 s.
	IdleClose time.Duration
	// RetentionBytes and RetentionTime bound what is kept; 0: no bound. See Log.Retain.
	RetentionBytes int64
	RetentionTime  time.Duration
	// MaxSpares bounds the trimmed segments that are kept to be written again; 0: 2, -1: none.
	MaxSpares int

	Syncers *Syncers
	// Readers serves Log.Read; without it Read fails.
	Readers *Readers
	// OnProgress is called whenever there is progress, one call at a time, from a goroutine of the Syncers. It must not wait
	// for anything but locks held shortly. It may call the log.
	OnProgress func(Progress)
	// Snapshot appends the caller's state as of Next to dst, for Recovery.Snapshot. It is called inside of Append, before any
	// batch of that call counts, and must not call the log. At most 16 MiB.
	Snapshot func(dst []byte) []byte
	// OnRecover is told how far Open is.
	OnRecover func(RecoveryProgress)
	// OnSnapshot and OnReplay rebuild the caller's state in Open: first the snapshot of the last segment, nil if there is none, then
	// every batch behind it in order. The bytes are valid during the call.
	OnSnapshot func(snapshot []byte) error
	OnReplay   func(b codec.Batch, appended int64)

	Clock Clock
}

func (o *Options) setDefaults() {
	if o.Interval <= 0 {
		o.Interval = 10 * time.Millisecond
	}
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = 128 << 20
	}
	if o.GroupBytes <= 0 {
		o.GroupBytes = 1 << 20
	}
	if o.MaxInFlight <= 0 {
		o.MaxInFlight = 4
	}
	o.MaxInFlight = min(o.MaxInFlight, maxFlights/2)
	if o.MaxPendingBytes <= 0 {
		o.MaxPendingBytes = 64 << 20
	}
	if o.MarkDelay <= 0 {
		o.MarkDelay = 200 * time.Millisecond
	}
	if o.IdleClose <= 0 {
		o.IdleClose = 30 * time.Second
	}
	switch {
	case o.MaxSpares == 0:
		o.MaxSpares = 2
	case o.MaxSpares < 0:
		o.MaxSpares = 0
	}
	if o.Clock == nil {
		o.Clock = systemClock{zero: time.Now()}
	}
}

// Progress is what has become of appends.
type Progress struct {
	// Written: the bytes of batches below it are with the operating system and no longer needed.
	Written codec.Offset
	// Durable: what is below it is on stable storage, together with everything needed to find it again.
	Durable codec.Offset
	// Refused is set once for appends that were taken and then refused: everything from Refused.From on that was appended before this
	// call will never be in the log, its bytes are no longer needed, and the next append must be at Refused.From.
	Refused *RefusedError
	// Err is set when the log is poisoned and nothing is in flight any more: the outcome of everything at or above Durable is unknown
	// and no byte is needed any more.
	Err *PoisonedError
}

type logState uint8

const (
	stateOpen     logState = iota
	stateRefusing          // a retryable failure: what is in flight drains, then the tail is cut
	statePoisoned
	stateClosing
	stateClosed
)

// maxFlights bounds the groups that are formed and not yet complete in order.
const maxFlights = 64

// Log is the log of one partition. One goroutine at a time may append; everything else may be called from any goroutine.
//
// Invariant: start ≤ durable ≤ written ≤ next.
type Log struct {
	// Immutable.
	fsys   vfs.FS
	dir    string
	opts   Options
	sy     *Syncers
	report Report

	mu       sync.Mutex
	state    logState
	failure  error         // the first failure, with stateRefusing and statePoisoned
	poison   PoisonedError // with statePoisoned
	segments []*segment    // by base; the last one may be active
	active   *segment      // where appends go; nil if the next append begins a segment
	gapFrom  codec.Offset  // where the declared gap in front of the next segment begins; = next if there is none
	start    codec.Offset
	next     codec.Offset
	written  codec.Offset
	durable  codec.Offset
	marked   codec.Offset // the highest durable mark in a group that was formed
	epoch    uint32

	pending      []entry // appended and not formed; those from pendingHead on
	pendingHead  int
	pendingBytes int64 // of the formed but not written too
	unformed     int64 // bytes of pending

	flights    [maxFlights]flight // a ring of groups in order, [flightHead, flightTail)
	flightHead uint64
	flightTail uint64
	slots      []*slot
	busy       int // slots that are queued or running
	queued     int // slots that are queued

	tasks       int // disk work other than groups that is queued or running
	preparing   bool
	trimming    bool
	closeLater  []*segment // sealed while a sync was under way
	syncing     bool
	cutting     bool
	doomed      []*segment // to be removed, oldest first
	trimTo      codec.Offset
	trimFailure error
	spares      []*spare // trimmed and ready to be opened
	spare       *spare   // open and ready to become the next segment
	spareCount  uint64
	taken       map[codec.Offset]struct{} // names of files that are not part of the log

	wantMark  bool
	lastWrite time.Time // when the last group was formed
	syncAt    time.Time // when the next interval is over; zero: nothing to sync
	alarm     alarm

	telling     bool
	told        Progress
	refusal     *RefusedError // to be told
	lastRefusal *RefusedError
	idle        sync.Cond // nothing is in flight

	m metrics
}

// entry is a batch, or a gap, that waits to become part of a group of its segment.
type entry struct {
	b   []byte
	seg *segment
	gap codec.Offset // with a nil b: the end of a declared gap
}

// flight is a group between being formed and being complete together with everything before it.
type flight struct {
	seg    *segment
	group  Group
	stats  Stats
	done   bool
	synced bool
}

// slot is a write under way: its buffers and its place in the pool's queue.
type slot struct {
	work   work
	state  slotState
	flight uint64
	file   vfs.File
	seg    *segment
	at     Position
	sync   bool
	store  [][]byte // what bufs is a view of; the file system may change it
	bufs   [][]byte
	size   int64 // of the batches
	header [groupHeaderBytes]byte
	since  time.Time
}

type slotState uint8

const (
	slotIdle slotState = iota
	slotQueued
	slotRunning
)

// maxVecs keeps a group, its header, a segment's header block and the padding within one pwritev of 1,024 slices.
const maxVecs = 1021

var padding [groupAlign]byte

func (l *Log) path(name string) string { return path.Join(l.dir, name) }

// Append takes batches for the log, in order. The caller has stamped each batch's base offset, beginning with Next and without
// gaps, and has checked that the batch is valid; Append trusts its CRC and count. It returns without waiting for the disk. The bytes
// must stay as they are until Progress covers them; the slice itself is not kept.
//
// It fails with a *RefusedError, ErrBusy, ErrPoisoned or ErrClosed, and then has taken none of the batches. After a refusal, of which
// the caller may not know yet, everything is refused until an append is at the offset that the refusal names.
func (l *Log) Append(batches [][]byte) error {
	size := int64(0)
	for _, b := range batches {
		size += int64(len(b))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takesLocked(size); err != nil {
		return err
	}
	if len(batches) > 0 {
		if err := l.followsLocked(baseOf(batches[0])); err != nil {
			return err
		}
	}
	next := l.next
	for _, b := range batches {
		if len(b) < codec.BatchHeaderBytes || len(b) > maxBodyBytes || codec.Batch(b).BaseOffset() != next {
			invariant.Bug("append at offset %d: a batch of %d bytes with base offset %d", next, len(b), baseOf(b))
		}
		next = codec.Batch(b).NextOffset()
	}
	if len(batches) == 0 {
		return nil
	}
	// Each batch may end up in a group of its own.
	seg := l.roomLocked(size + int64(len(batches))*(groupHeaderBytes+groupAlign))
	for _, b := range batches {
		l.pushLocked(entry{b: b, seg: seg})
	}
	l.pendingBytes += size
	l.unformed += size
	l.next, l.gapFrom = next, next
	l.kickLocked()
	return nil
}

func baseOf(b []byte) codec.Offset {
	if len(b) < codec.BatchHeaderBytes {
		return -1
	}
	return codec.Batch(b).BaseOffset()
}

// followsLocked says whether an append at an offset continues the log. One above Next comes from a caller that does not know yet of a
// refusal: it is refused too.
func (l *Log) followsLocked(base codec.Offset) error {
	if base > l.next && l.lastRefusal != nil {
		return &RefusedError{From: l.next, Err: l.lastRefusal.Err}
	}
	if base != l.next {
		invariant.Bug("append at offset %d, the log is at %d", base, l.next)
	}
	return nil
}

// AppendGap declares that the offsets [from, next) will never hold a record, and moves Next there; from is Next. It fails as Append does.
func (l *Log) AppendGap(from, next codec.Offset) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.takesLocked(0); err != nil {
		return err
	}
	if err := l.followsLocked(from); err != nil {
		return err
	}
	if next < l.next {
		invariant.Bug("gap from offset %d back to %d", l.next, next)
	}
	if next == l.next {
		return nil
	}
	seg := l.roomLocked(groupHeaderBytes)
	l.pushLocked(entry{seg: seg, gap: next})
	l.next, l.gapFrom = next, next
	l.kickLocked()
	return nil
}

func (l *Log) takesLocked(size int64) error {
	switch l.state {
	case statePoisoned:
		p := l.poison
		return &p
	case stateClosing, stateClosed:
		return ErrClosed
	case stateRefusing:
		return &RefusedError{From: l.next, Err: l.failure}
	}
	if l.pendingBytes > 0 && l.pendingBytes+size > l.opts.MaxPendingBytes {
		return ErrBusy
	}
	return nil
}

// roomLocked returns the segment that the next size bytes go to.
func (l *Log) roomLocked(size int64) *segment {
	// A segment without a record has the base offset, and so the name, of the one that would follow it.
	if l.active == nil || l.next > l.active.base && l.active.reserved+size > l.opts.SegmentBytes {
		l.rollLocked()
	}
	l.active.reserved += size
	l.openLocked(l.active)
	l.prepareLocked()
	return l.active
}

func (l *Log) pushLocked(e entry) {
	if len(l.pending) == cap(l.pending) && l.pendingHead > 0 {
		n := copy(l.pending, l.pending[l.pendingHead:])
		clear(l.pending[n:])
		l.pending, l.pendingHead = l.pending[:n], 0
	}
	l.pending = append(l.pending, e)
}

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
		if snapshot = l.opts.Snapshot(nil); len(snapshot) > maxSnapshotBytes {
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

// taskLocked queues disk work that is not a group.
func (l *Log) taskLocked(f func()) {
	l.tasks++
	l.sy.push(&work{run: func() {
		f()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tasks--
		l.kickLocked()
		l.settleLocked()
		l.tellLocked()
	}})
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
			f.Close() //nolint:errcheck // it was only read
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

// smallInFlight is how many groups are under way while there are not enough bytes to fill more: with one, a batch would wait for half a
// sync on average before its own begins; with many, few batches would share a sync.
const smallInFlight = 2

// kickLocked queues as many slots as the pending bytes are worth: smallInFlight at any rate, all of them once there are bytes to
// fill them.
func (l *Log) kickLocked() {
	if l.state != stateOpen && l.state != stateClosing {
		return
	}
	worth := int64(l.opts.GroupBytes) / 4
	for l.busy < len(l.slots) {
		if l.pendingHead == len(l.pending) {
			if l.markableLocked() && l.busy == 0 {
				l.queueSlotLocked()
			}
			return
		}
		if l.busy > 0 {
			few := l.unformed < int64(l.queued+1)*worth
			if few && (l.queued > 0 || l.busy >= smallInFlight) {
				return
			}
		}
		if !l.formableLocked(l.pending[l.pendingHead].seg) {
			return
		}
		l.queueSlotLocked()
	}
}

// markableLocked says whether a mark is wanted and can be written now.
func (l *Log) markableLocked() bool {
	seg := l.active
	if seg == nil || l.marked >= l.durable && seg.block == nil {
		l.wantMark = false
	}
	return l.wantMark && l.flightHead == l.flightTail && l.formableLocked(seg)
}

func (l *Log) queueSlotLocked() {
	for _, s := range l.slots {
		if s.state == slotIdle {
			s.state = slotQueued
			l.busy++
			l.queued++
			l.sy.push(&s.work)
			return
		}
	}
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
func (l *Log) runSlot(s *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.state = slotRunning
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
	s.state = slotIdle
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
	if l.state == stateRefusing {
		return // the cut decides
	}
	for l.flightHead < l.flightTail && l.flights[l.flightHead%maxFlights].done {
		f := &l.flights[l.flightHead%maxFlights]
		l.landLocked(f)
		*f = flight{}
		l.flightHead++
	}
	l.settleDurableLocked()
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
}

// wantMarkLater sees to it that the durable offset gets into a group header even if no group follows.
func (l *Log) wantMarkLater() {
	l.sy.setAlarm(&l.alarm, time.Now().Add(l.opts.MarkDelay))
}

// failLocked handles a failed operation: lack of space heals, unless it is from a sync; everything else poisons.
func (l *Log) failLocked(err error) {
	var se *vfs.SyncError
	if isNoSpace(err) && !errors.As(err, &se) && l.state != stateClosing {
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
	l.dropPendingLocked()
	l.m.refusals++
}

// settleLocked acts once nothing is in flight any more.
func (l *Log) settleLocked() {
	if l.busy > 0 || l.tasks > 0 {
		return
	}
	if l.state == stateRefusing && !l.cutting {
		l.cutting = true
		l.taskLocked(l.cut)
		return
	}
	l.idle.Broadcast()
}

// tellLocked calls OnProgress until it knows everything. It unlocks in between.
func (l *Log) tellLocked() {
	if l.telling || l.opts.OnProgress == nil {
		return
	}
	l.telling = true
	for {
		p := Progress{Written: l.written, Durable: l.durable, Refused: l.refusal}
		if l.state == statePoisoned && l.busy == 0 {
			poison := l.poison
			p.Err = &poison
			if l.told.Err != nil {
				p.Err = l.told.Err
			}
		}
		if p == l.told {
			break
		}
		l.told, l.refusal = p, nil
		l.told.Refused = nil
		l.mu.Unlock()
		l.opts.OnProgress(p)
		l.mu.Lock()
	}
	l.telling = false
	l.idle.Broadcast()
}

// cut runs when a refusal has drained: it removes from the disk what came behind the last complete group, so that no later group can
// ever be followed by a leftover, and opens the log again. Nothing else of the log is under way meanwhile.
func (l *Log) cut() {
	l.mu.Lock()
	var gone []*segment
	for n := len(l.segments); n > 0 && l.segments[n-1].written == l.segments[n-1].first; n-- {
		gone = append(gone, l.segments[n-1]) // no group of it was ever complete
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
		seg.closeHandles()
		name := seg.path
		if seg.from != "" {
			name = seg.from
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

// ring is called by the alarm: an interval is over, a mark is due, or the log is idle.
func (l *Log) ring() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != stateOpen {
		return
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
	if l.marked < l.durable {
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
		seg.closeHandles()
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Sync makes everything durable that was written before, in the modes that do not do so by themselves. It returns without waiting.
func (l *Log) Sync() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateOpen {
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
			seg.closeHandles()
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
	})
}

// Start is the first kept offset.
func (l *Log) Start() codec.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start
}

// Next is the offset that the next append must have.
func (l *Log) Next() codec.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// Written is the offset below which everything is with the operating system, and can be read.
func (l *Log) Written() codec.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// Durable is the offset below which everything is on stable storage.
func (l *Log) Durable() codec.Offset {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable
}

// Err is a *PoisonedError if the log is poisoned, a *RefusedError while a refusal is being cleaned up, ErrClosed, or nil.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takesLocked(0)
}

// Report is what Open found.
func (l *Log) Report() Report { return l.report }

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
		f.Sync() //nolint:errcheck // as above
	}
}

// shutLocked releases everything.
func (l *Log) shutLocked() {
	l.sy.stopAlarm(&l.alarm)
	for _, seg := range l.segments {
		seg.closeHandles()
	}
	if l.spare != nil {
		l.spares = append(l.spares, l.spare)
	}
	for _, sp := range l.spares {
		for _, h := range sp.handles {
			h.Close() //nolint:errcheck // nothing was written
		}
		l.fsys.Remove(sp.path) //nolint:errcheck // the next Open removes it
	}
	l.spare, l.spares = nil, nil
	l.state = stateClosed
	l.idle.Broadcast()
}
