package loop

import (
	"errors"
	"math"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

// The memory ceiling. What publishers send takes slabs, and slabs are all that grows with load or backlog: rings,
// windows, half-arrived frames and what consumers have not read yet all hold references to them. So taking a slab for a
// publish frame is the one place where the ceiling is enforced:
//
//	in use        what happens
//	⅝ … ¾         nothing
//	above ¾       the largest rings give up what nobody needs, and every ring above their level counts as full: the
//	              topic's overflow policy applies there, smaller rings go on
//	at the limit  a frame waits, its connection is not read meanwhile, and rings below the level give way too; after the
//	              stall limit the frame is refused (paused)
//
// Nothing waits for ever: see session.tickMemory and topic's cutStalled for those who hold memory and do not move.

// LeastMemoryBytes is the smallest ceiling: twice the slab of the largest frame.
const LeastMemoryBytes = 32 << 20

// DefaultMemoryBytes is the ceiling when none is asked for: half of what the process may use, by the machine's memory, its
// control group's limit and GOMEMLIMIT. The other half is for what the garbage collector has not collected yet, for
// connections, and for the kernel's buffers.
func DefaultMemoryBytes() int64 {
	most := machineMemoryBytes()
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		most = min(most, limit)
	}
	return most / 2
}

// A memory gives slabs to publishing, up to the ceiling.
type memory struct {
	// immutable
	slabs   *codec.SlabPool
	limit   int64
	soft    int64 // bytes in use above which rings give way
	relaxed int64 // below which they do not any more
	unfed   int64 // most bytes over all connections that are announced, have memory, and have not arrived

	announced atomic.Int64
	pressed   atomic.Bool   // watchMemory is at work
	wake      chan struct{} // what sets it to work
	heldAt    atomic.Int64  // when a frame was last seen waiting, in milliseconds since the Unix epoch

	mu    sync.Mutex
	loops map[*loopState]struct{} // that have frames waiting
}

func (m *memory) init(slabs *codec.SlabPool, limit int64) {
	slabs.Limit(limit)
	m.slabs, m.limit = slabs, limit
	m.soft, m.relaxed = limit/4*3, limit/8*5
	// An eighth, and no more than 64 MiB: eight of the largest frames at once, and hundreds of those that clients send.
	m.unfed = min(limit/8, 64<<20)
	m.wake = make(chan struct{}, 1)
	m.loops = map[*loopState]struct{}{}
}

// take returns a slab for n bytes of a publish frame, or nil at the ceiling.
func (m *memory) take(n int) *codec.Slab {
	slab := m.slabs.TryGet(n)
	if slab == nil || m.slabs.InUseBytes() > m.soft {
		m.press()
	}
	return slab
}

// press sets watchMemory to work.
func (m *memory) press() {
	if !m.pressed.Load() && !m.pressed.Swap(true) {
		m.wake <- struct{}{} // has room: it is emptied before pressed is taken back
	}
}

// announce counts n bytes that have memory before they have arrived, if there may be so many.
func (m *memory) announce(n int64) bool {
	if m.announced.Add(n) > m.unfed {
		m.announced.Add(-n)
		return false
	}
	return true
}

// arrived takes back what announce has counted.
func (m *memory) arrived(n int64) {
	if n != 0 {
		m.announced.Add(-n)
	}
}

// mustWait reports whether others on the loop have waited for memory longer than s.
func (l *loopState) mustWait(s *session) bool { return len(l.held) > 0 && l.held[0] != s }

// hold stops reading until there is memory for the session's frame.
func (s *session) hold() {
	l, m := s.l, &s.l.b.memory
	s.held, s.heldAt = true, l.now
	s.t.Pause()
	l.held = append(l.held, s)
	m.heldAt.Store(l.now.UnixMilli())
	m.mu.Lock()
	m.loops[l] = struct{}{}
	m.mu.Unlock()
	m.press()
}

// unhold ends the wait of a session.
func (s *session) unhold() {
	s.held = false
	s.goOnReading()
}

// refuse ends the wait of a session without memory.
func (s *session) refuse(err error) {
	s.refuseBody(err)
	s.unhold()
}

// serveHeld gives memory to frames that wait for it, as far as there is some, in the order in which they came.
func (l *loopState) serveHeld() {
	for len(l.held) > 0 {
		s := l.held[0]
		if s.held {
			if !s.growBody() {
				return
			}
			s.body.began = l.now // it was not read until now
			if s.body.have == s.body.size {
				s.publishWhole()
			}
			s.unhold()
		}
		l.held[0] = nil
		l.held = l.held[1:]
	}
	l.noneHeld()
}

// noneHeld says that no frame of the loop waits for memory.
func (l *loopState) noneHeld() {
	l.held = nil
	m := &l.b.memory
	m.mu.Lock()
	delete(m.loops, l)
	m.mu.Unlock()
}

// mixedHold is how long a frame waits on a connection that has subscriptions too: its credit stands behind the frame, and
// may be what the memory waits for.
const mixedHold = time.Second

// tickMemory looks at the session's part in a shortage of memory.
func (s *session) tickMemory() {
	l, limits := s.l, &s.l.b.limits
	if s.held {
		wait := limits.StallLimit
		for _, h := range s.handles {
			if _, ok := h.(*subscription); ok {
				wait = min(wait, mixedHold)
				break
			}
		}
		if l.now.Sub(s.heldAt) >= wait {
			s.refuse(codec.Errorf(codec.CodePaused, "the broker's memory is at its ceiling of %d bytes", l.b.memory.limit))
		}
		return
	}
	if s.body.h != nil {
		s.shrinkBody()
	}
	since := l.b.topics.ShortSince()
	stalled := l.now.Add(-limits.StallLimit)
	if since == 0 || since > stalled.UnixMilli() || l.now.UnixMilli()-l.b.memory.heldAt.Load() > 2*tickEvery.Milliseconds() {
		return
	}
	// Others wait for memory, and have for the stall limit. A consumer that has not read a byte in that time is cut off; the
	// socket is full, so it cannot be told. So is a frame that has not come to its end.
	switch {
	case s.out.blocked && s.out.bytes > s.out.control && s.lastOut.Before(stalled):
		l.b.log.Warn("consumer cut off", "conn", s.id, "peer", s.peer, "client", s.client, "code", codec.CodeSlowConsumer)
		s.t.Close(errHeldMemory)
	case s.body.h != nil && s.body.began.Before(stalled):
		l.b.log.Warn("frame cut off", "conn", s.id, "peer", s.peer, "client", s.client, "bytes", s.body.have)
		s.t.Close(errHeldMemory)
	}
}

var errHeldMemory = errors.New("held memory without progress while the broker had none left")

const (
	// reclaimMin and reclaimMax bound how often rings are asked for memory while it is short: the time doubles while
	// nothing comes of it.
	reclaimMin = 2 * time.Millisecond
	reclaimMax = 100 * time.Millisecond
)

// watchMemory makes rings give way while memory is short. It sleeps otherwise.
func (b *Broker) watchMemory(stop <-chan struct{}) {
	m := &b.memory
	for {
		select {
		case <-stop:
			return
		case <-m.wake:
		}
		for wait := reclaimMin; ; {
			freed := b.relieve()
			use := m.slabs.InUseBytes()
			if use < m.relaxed && !m.waiting() {
				b.topics.Relax()
				m.pressed.Store(false)
				// Whoever went above the mark before that has woken nobody.
				if m.slabs.InUseBytes() <= m.soft && !m.waiting() || m.pressed.Swap(true) {
					break
				}
			}
			if wait = min(2*wait, reclaimMax); freed {
				wait = reclaimMin
			}
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-stop:
				timer.Stop()
				return
			}
		}
	}
}

func (m *memory) waiting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.loops) > 0
}

// relieve asks rings for memory once and lets frames that wait have it. It reports whether there was some.
func (b *Broker) relieve() (freed bool) {
	m := &b.memory
	m.mu.Lock()
	waiting := make([]*loopState, 0, len(m.loops))
	for l := range m.loops {
		waiting = append(waiting, l)
	}
	m.mu.Unlock()
	now := time.Now().UnixMilli()
	use := m.slabs.InUseBytes()
	want := int64(0)
	if use > m.soft {
		want = use - m.relaxed
	}
	if len(waiting) > 0 {
		m.heldAt.Store(now)
		// Enough for the largest frame that may wait.
		want = max(want, use-m.limit+int64(codec.SlabClassBytes(b.limits.maxFrameBytes)))
	}
	if want > 0 {
		freed = b.topics.Reclaim(want, len(waiting) > 0, now) > 0
	}
	for _, l := range waiting {
		l.post(l.serveHeld)
	}
	return freed
}
