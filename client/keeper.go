package client

import (
	"math"
	"sync"
	"time"
)

// A keeper is the goroutine of a producer that writes what no publisher writes: batches that a confirm or a
// deadline made due, what is to be sent again, and the reopening of refused handles. It makes a lost connection anew. It may
// block in the socket; the reader never does.
type keeper struct {
	wake chan struct{} // of one

	// mu is taken with a partition's locks held, never the other way round.
	mu    sync.Mutex
	due   []*partition // to be attended to now; inDue is set
	aging []*partition // with an open batch and its deadline; inAging is set
	armed bool         // the keeper looks at aging by itself
}

func (k *keeper) pushDue(w *partition) {
	k.mu.Lock()
	k.due = append(k.due, w)
	k.mu.Unlock()
	k.poke()
}

func (k *keeper) pushAging(w *partition) {
	k.mu.Lock()
	k.aging = append(k.aging, w)
	armed := k.armed
	k.armed = true
	k.mu.Unlock()
	if !armed {
		k.poke()
	}
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// take moves a list's partitions into work.
func (k *keeper) take(work []*partition, list *[]*partition) []*partition {
	k.mu.Lock()
	work = append(work[:0], *list...)
	*list = (*list)[:0]
	k.mu.Unlock()
	return work
}

// runKeeper keeps one connection after the other, from l on, until there is no other or the producer is closed.
func (p *Producer) runKeeper(l *link) {
	defer p.wg.Done()
	for l != nil {
		p.keepLink(l)
		l = p.reconnect(l)
	}
}

// keepLink returns when the link is dead.
func (p *Producer) keepLink(l *link) {
	k := &p.keep
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	var work []*partition
	for {
		work = k.take(work, &k.due)
		for _, w := range work {
			w.attend()
		}
		work = k.take(work, &k.aging)
		now := time.Since(p.base)
		next := time.Duration(math.MaxInt64)
		young := work[:0]
		for _, w := range work {
			if deadline, again := w.age(now); again {
				young = append(young, w)
				next = min(next, deadline)
			}
		}
		k.mu.Lock()
		if len(k.aging) > 0 {
			next = min(next, now+p.hold) // batches that were opened meanwhile
		}
		k.aging = append(k.aging, young...)
		k.armed = len(k.aging) > 0
		k.mu.Unlock()
		if next != math.MaxInt64 {
			timer.Reset(max(next-now, 0))
		}
		select {
		case <-l.dead:
			return
		case <-k.wake:
		case <-timer.C:
		}
	}
}

// attend does what a partition was put into the due list for.
func (w *partition) attend() {
	w.lock()
	w.inDue = false
	if w.needOpen {
		w.needOpen = false
		w.unlock()
		w.reopen()
		return
	}
	if w.resend > 0 {
		for w.resend > 0 && w.writable() {
			w.again()
		}
		w.wake()
		w.kick()
	}
	if w.holds && (w.due || w.idle()) && w.sendable() {
		w.send()
	}
	w.unlock()
}

// age sends an open batch whose deadline has passed, or for which the pipe has become idle. It reports whether the partition
// is still to be watched, and its deadline.
func (w *partition) age(now time.Duration) (deadline time.Duration, again bool) {
	w.lock()
	defer w.unlock()
	if !w.holds {
		w.inAging = false
		return 0, false
	}
	deadline = w.begun + w.p.hold
	late := deadline <= now
	if !late && !(w.idle() && w.sendable()) {
		return deadline, true
	}
	w.inAging = false
	w.due = w.due || late
	if w.sendable() {
		w.send()
	} else {
		w.kick()
	}
	return 0, false
}

// A bufferList keeps the buffers of batches for reuse, last in, first out, so that the next batch is encoded into
// memory that is still in the processor's caches.
type bufferList struct {
	mu   sync.Mutex
	keep int
	free [][]byte
}

func (l *bufferList) take() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		buf := l.free[n-1]
		l.free = l.free[:n-1]
		return buf
	}
	return make([]byte, firstBufferBytes)
}

func (l *bufferList) give(buf []byte) {
	l.mu.Lock()
	if len(l.free) < l.keep {
		l.free = append(l.free, buf)
	}
	l.mu.Unlock()
}
