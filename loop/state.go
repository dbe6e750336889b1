package loop

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A loopState is what the broker keeps for one event loop. Everything but the inbox is touched on the loop only.
//
// It is the topic.Sink of all publishers and cursors of its sessions: partitions put results and wake-ups into the inbox
// and ring. While the loop is at work rung is set, so that nobody rings: the end of each event looks into the inbox.
//
//	poster                          loop, at the end of an event
//	lock; append; unlock            rung = false
//	if !swap(rung, true): Ring      lock; take; unlock; if empty: done, else rung = true and on
//
// Whichever comes first, the appended item is taken or the loop is rung.
type loopState struct {
	b    *Broker
	loop *Loop

	// any goroutine
	rung  atomic.Bool
	mu    sync.Mutex
	inbox inbox // under mu

	// the loop's
	work     inbox // the other buffer
	depth    int   // events begun: closing one connection may happen within the event of another
	now      time.Time
	sessions map[uint64]*session
	dirty    []*session // to be pumped before the event ends
	later    []*session // to be pumped after other I/O had its turn
	held     []*session // whose frames wait for memory, in order; those that are not held any more are skipped

	// scratch, valid within one call
	iov        [][]byte
	taken      topic.Taken
	published  []topic.Published
	confirming []*publishing
}

type inbox struct {
	results []topic.Result
	wakes   []*topic.Cursor
	calls   []func()
}

func (in *inbox) empty() bool {
	return len(in.results) == 0 && len(in.wakes) == 0 && len(in.calls) == 0
}

func newLoopState(b *Broker, l *Loop) *loopState {
	return &loopState{b: b, loop: l, sessions: map[uint64]*session{}}
}

// Confirmed implements topic.Sink.
func (l *loopState) Confirmed(results []topic.Result) {
	l.mu.Lock()
	l.inbox.results = append(l.inbox.results, results...)
	l.mu.Unlock()
}

// Wake implements topic.Sink.
func (l *loopState) Wake(cur *topic.Cursor) {
	l.mu.Lock()
	l.inbox.wakes = append(l.inbox.wakes, cur)
	l.mu.Unlock()
}

// Flush implements topic.Sink.
func (l *loopState) Flush() {
	if !l.rung.Swap(true) {
		l.loop.Ring()
	}
}

// post makes f run on the loop. Any goroutine.
func (l *loopState) post(f func()) {
	l.mu.Lock()
	l.inbox.calls = append(l.inbox.calls, f)
	l.mu.Unlock()
	l.Flush()
}

// begin starts an event.
func (l *loopState) begin() {
	l.depth++
	if l.depth == 1 {
		l.rung.Store(true)
		l.now = time.Now()
	}
}

// maxRounds bounds how often an event looks into its inbox again before other I/O has its turn.
const maxRounds = 8

// end finishes an event: what partitions have answered is sent, here and now.
func (l *loopState) end() {
	if l.depth > 1 {
		l.depth--
		return
	}
	defer func() { l.depth = 0 }()
	for range maxRounds {
		l.pumpDirty()
		l.rung.Store(false)
		if !l.takeInbox() {
			return
		}
		l.rung.Store(true)
		l.process()
	}
	l.pumpDirty()
	l.rung.Store(true)
	l.loop.RingLater()
}

// run is the loop's answer to a ring.
func (l *loopState) run() {
	l.begin()
	l.dirty = append(l.dirty, l.later...)
	clear(l.later)
	l.later = l.later[:0]
	l.end()
}

func (l *loopState) takeInbox() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inbox.empty() {
		return false
	}
	l.inbox, l.work = l.work, l.inbox
	return true
}

func (l *loopState) process() {
	w := &l.work
	// Wake-ups first: a consumer waits for its bytes, a producer has more to do anyway.
	for _, cur := range w.wakes {
		cur.Tag.(interface{ ready() }).ready()
	}
	for i := range w.results {
		r := &w.results[i]
		r.Publisher.Tag.(*publishing).result(l, r)
	}
	for _, h := range l.confirming {
		h.confirm()
	}
	clear(l.confirming)
	l.confirming = l.confirming[:0]
	for _, f := range w.calls {
		f()
	}
	clear(w.results)
	clear(w.wakes)
	clear(w.calls)
	w.results, w.wakes, w.calls = keep(w.results), keep(w.wakes), keep(w.calls)
}

// keep empties a slice for reuse and drops the memory of a rare large one.
func keep[T any](s []T) []T {
	if cap(s) > 8192 {
		return nil
	}
	return s[:0]
}

func (l *loopState) pumpDirty() {
	// Pumping may make others dirty: a batch taken lets a blocked publisher go on.
	for i := 0; i < len(l.dirty); i++ {
		s := l.dirty[i]
		s.dirty = false
		s.pump()
	}
	clear(l.dirty)
	l.dirty = keep(l.dirty)
}

// tick looks at deadlines, every tickEvery.
func (l *loopState) tick() {
	for _, s := range l.sessions {
		s.tick()
	}
}

func (l *loopState) goAway(drain time.Duration) {
	for _, s := range l.sessions {
		if s.phase == phaseReady {
			if s.held {
				s.refuse(codec.Errorf(codec.CodeDraining, "the broker is stopping"))
			}
			s.send(codec.AppendGoAway(s.frame(), codec.GoAway{
				Code: codec.CodeDraining, DrainMillis: uint32(drain.Milliseconds()), Reason: "the broker is stopping",
			}))
			for f := range s.fetches {
				f.ready() // nothing is waited for any more
			}
		}
	}
}

const (
	// idleBefore is how long a session must have done no work for a drain not to wait until its peer has closed.
	idleBefore = time.Second
	// idleHangUp is how long such a peer has to close by itself: many round trips, and no time to a person.
	idleHangUp = 100 * time.Millisecond
)

// hangUp ends the sessions that a drain has finished with. Peers that were sent something lately may not have read it yet:
// they have until closeAt.
func (l *loopState) hangUp(closeAt time.Time) {
	for _, s := range l.sessions {
		if s.phase != phaseReady {
			continue
		}
		if at := l.now.Add(idleHangUp); l.now.Sub(s.worked) >= idleBefore && at.Before(closeAt) {
			s.quit(at)
		} else {
			s.quit(closeAt)
		}
	}
}

// closing counts the sessions whose peers may not have read everything, and closes those whose time is over.
func (l *loopState) closing() int {
	n := 0
	for _, s := range l.sessions {
		if s.phase != phaseClosing {
			continue
		}
		if l.now.Before(s.closeAt) {
			n++
		} else {
			s.t.Close(nil)
		}
	}
	return n
}

// unfinished counts the sessions that a drain waits for.
func (l *loopState) unfinished() int {
	n := 0
	for _, s := range l.sessions {
		if s.unfinished() {
			n++
		}
	}
	return n
}
