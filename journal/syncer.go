package journal

import (
	"container/heap"
	"sync"
	"time"
)

// Syncers is the bounded pool of goroutines that write, sync and do the rest of the disk work of all logs of a broker. Work is
// done in the order in which it came; one log has at most Options.MaxInFlight writes in it, so one slow partition leaves room for the
// others. Make one with NewSyncers.
type Syncers struct {
	workers int

	mu     sync.Mutex
	wake   sync.Cond
	head   *work // the queue: every log's slots and tasks, so bounded by the number of logs
	tail   *work
	idle   int
	closed bool
	wg     sync.WaitGroup

	alarmMu sync.Mutex
	alarms  alarmHeap
	ring    chan struct{} // capacity 1: the earliest alarm changed, or the pool closed
	done    bool
}

// work is one thing to do. A work that is queued must not be queued again before it runs.
type work struct {
	next *work
	run  func(w *syncWorker)
}

// syncWorker is what one goroutine of the pool owns: room for the slices of one write, so that a log needs none while it is idle.
type syncWorker struct {
	store [maxVecs + 3][]byte // the header block, the group's header and the padding are not batches
}

// NewSyncers starts a pool of so many goroutines, 0: 8. Close stops them.
func NewSyncers(workers int) *Syncers {
	if workers <= 0 {
		workers = 8 // two logs at full pipe
	}
	s := &Syncers{workers: workers, ring: make(chan struct{}, 1)}
	s.wake.L = &s.mu
	s.wg.Add(workers + 1)
	for range workers {
		go s.run()
	}
	go s.runAlarms()
	return s
}

// Close waits until the queue is empty and stops the goroutines. All logs must be closed before.
func (s *Syncers) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	s.alarmMu.Lock()
	s.done = true
	s.alarmMu.Unlock()
	s.nudge()
	s.wg.Wait()
}

func (s *Syncers) push(w *work) {
	s.mu.Lock()
	if s.tail == nil {
		s.head = w
	} else {
		s.tail.next = w
	}
	s.tail = w
	wake := s.idle > 0
	s.mu.Unlock()
	if wake {
		s.wake.Signal()
	}
}

// crowded says whether others wait for a goroutine.
func (s *Syncers) crowded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.head != nil
}

func (s *Syncers) run() {
	defer s.wg.Done()
	own := &syncWorker{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for s.head == nil {
			if s.closed {
				return
			}
			s.idle++
			s.wake.Wait()
			s.idle--
		}
		w := s.head
		s.head = w.next
		if s.head == nil {
			s.tail = nil
		}
		w.next = nil
		s.mu.Unlock()
		w.run(own)
		s.mu.Lock()
	}
}

// alarm is a log's one timer. index is its place in the heap, -1 if it is not set; both fields are under alarmMu.
type alarm struct {
	at    time.Time
	index int
	ring  func()
}

// setAlarm has a.ring called at a time or soon after, or earlier if the alarm is already set for earlier. A ring that is
// under way does not count.
func (s *Syncers) setAlarm(a *alarm, at time.Time) {
	s.alarmMu.Lock()
	first := false
	switch {
	case a.index < 0:
		a.at = at
		heap.Push(&s.alarms, a)
		first = a.index == 0
	case at.Before(a.at):
		a.at = at
		heap.Fix(&s.alarms, a.index)
		first = a.index == 0
	}
	s.alarmMu.Unlock()
	if first {
		s.nudge()
	}
}

func (s *Syncers) stopAlarm(a *alarm) {
	s.alarmMu.Lock()
	defer s.alarmMu.Unlock()
	if a.index >= 0 {
		heap.Remove(&s.alarms, a.index)
	}
}

func (s *Syncers) nudge() {
	select {
	case s.ring <- struct{}{}:
	default:
	}
}

func (s *Syncers) runAlarms() {
	defer s.wg.Done()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		s.alarmMu.Lock()
		if s.done {
			s.alarmMu.Unlock()
			return
		}
		wait := time.Hour
		if len(s.alarms) > 0 {
			a := s.alarms[0]
			if wait = time.Until(a.at); wait <= 0 {
				heap.Pop(&s.alarms)
				s.alarmMu.Unlock()
				a.ring()
				continue
			}
		}
		s.alarmMu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-s.ring:
		}
	}
}

type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *alarmHeap) Push(x any) {
	a := x.(*alarm)
	a.index = len(*h)
	*h = append(*h, a)
}

func (h *alarmHeap) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.index = -1
	return a
}
