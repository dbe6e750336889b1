package loop

import (
	"sync"
	"sync/atomic"

	"github.com/lightio/lightq/codec"
)

const (
	// offloadWorkers is how many requests that wait for the disk are served at once. The registry changes one topic at a time;
	// the others look things up, or purge.
	offloadWorkers = 4
	// offloadQueue bounds the requests of all connections that wait for a worker. Beyond it they are refused.
	offloadQueue = 4096
)

// An offloader runs what waits for the disk, away from the loops.
type offloader struct {
	jobs    chan func() // there is room for all that may be asked
	asked   atomic.Int64
	stopped chan struct{}
	wait    sync.WaitGroup
}

func newOffloader() *offloader {
	o := &offloader{jobs: make(chan func(), offloadQueue), stopped: make(chan struct{})}
	for range offloadWorkers {
		o.wait.Go(o.run)
	}
	return o
}

func (o *offloader) run() {
	for {
		select { // the end goes before what is queued
		case <-o.stopped:
			return
		default:
		}
		select {
		case <-o.stopped:
			return
		case job := <-o.jobs:
			job()
		}
	}
}

// stop ends the workers. What is queued is given up, for those who asked are gone.
func (o *offloader) stop() {
	close(o.stopped)
	o.wait.Wait()
}

// A jobQueue is what one connection has asked for: its first job is with a worker, or waits for one, the others wait for that.
type jobQueue struct {
	mu   sync.Mutex
	jobs []func()
}

// push queues a job.
func (q *jobQueue) push(o *offloader, job func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.jobs = append(q.jobs, job); len(q.jobs) == 1 {
		o.jobs <- job
	}
}

// pop is for the end of the first job: the next one's turn has come.
func (q *jobQueue) pop(o *offloader) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs[0] = nil
	if q.jobs = q.jobs[1:]; len(q.jobs) > 0 {
		o.jobs <- q.jobs[0]
	}
}

// offload runs work on a worker, and then, on the session's loop, what it returns, unless the session has ended. What one connection asks
// is served in order, one by one.
func (s *session) offload(work func() func()) error {
	l, o := s.l, s.l.b.offload
	if o.asked.Add(1) > offloadQueue {
		o.asked.Add(-1)
		return codec.Errorf(codec.CodeQuota, "%d requests wait for the disk", offloadQueue)
	}
	s.asked++
	s.jobs.push(o, func() {
		then := work()
		l.post(func() {
			s.asked--
			if s.phase == phaseReady || s.phase == phaseJSON {
				then()
			}
		})
		s.jobs.pop(o)
		o.asked.Add(-1)
	})
	return nil
}

// serve answers a request by what work returns. Where topics are stored work may wait for the disk, so it runs away from the loop
// and must not touch the session; reply runs on it.
func (s *session) serve(h codec.Header, work func() (reply func(), err error)) error {
	if !s.l.b.topics.Stored() {
		reply, err := work()
		if err == nil {
			reply()
		}
		return err
	}
	return s.offload(func() func() {
		reply, err := work()
		if err != nil {
			return func() { s.reply(h.Correlation, h.Handle, err) }
		}
		return reply
	})
}
