package journal

import (
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
	// Snapshot appends to dst the caller's state as of an offset, the log's Next: of what was appended below it and of nothing else, for
	// OnSnapshot. It is called inside of Append, before any batch of that call counts, of Retain, and of Purge, which any goroutine may
	// have called. It must not call the log. At most 16 MiB.
	Snapshot func(dst []byte, next codec.Offset) []byte
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
	// Refused is set once for appends that were taken and then refused: of what was appended before the log refused it, everything from
	// Refused.From on will never be in the log, and its bytes are no longer needed. The log takes appends at Refused.From again, and may
	// have taken some by the time of this call: Next tells.
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

	flights    []flight // a ring of maxFlights groups in order, [flightHead, flightTail); nil while the log is idle
	flightHead uint64
	flightTail uint64
	slots      []*slot // at most Options.MaxInFlight, none while the log is idle
	busy       int     // slots that are queued or running
	queued     int     // slots that are queued

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
	lastWrite time.Time    // when the last group was formed
	syncAt    time.Time    // when the next interval is over; zero: nothing to sync
	syncTo    codec.Offset // what Sync was asked for
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
	store  [][]byte // the worker's, while the slot runs; bufs is a view of it that the file system may change
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

// taskLocked queues disk work that is not a group.
func (l *Log) taskLocked(f func()) {
	l.tasks++
	l.sy.push(&work{run: func(*syncWorker) {
		f()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tasks--
		l.kickLocked()
		l.settleLocked()
		l.tellLocked()
	}})
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
