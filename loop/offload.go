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
	// offloadQueue bounds the requests that wait for one worker. Beyond it they are refused.
	offloadQueue = 1024
)

// An offloader runs what waits for the disk, away from the loops.
type offloader struct {
	jobs    [offloadWorkers]chan func() // of each worker: those of one connection go to one, in their order
	stopped atomic.Bool
	wait    sync.WaitGroup
}

func newOffloader() *offloader {
	o := &offloader{}
	for i := range o.jobs {
		o.jobs[i] = make(chan func(), offloadQueue)
		o.wait.Go(func() {
			for job := range o.jobs[i] {
				if !o.stopped.Load() {
					job()
				}
			}
		})
	}
	return o
}

// stop ends the workers. What is queued is given up, for those who asked are gone. Nobody may offload any more.
func (o *offloader) stop() {
	o.stopped.Store(true)
	for _, jobs := range o.jobs {
		close(jobs)
	}
	o.wait.Wait()
}

// offload runs work on a worker, and then, on the session's loop, what it returns, unless the session has ended.
func (s *session) offload(work func() func()) error {
	l := s.l
	job := func() {
		then := work()
		l.post(func() {
			s.asked--
			if s.phase == phaseReady || s.phase == phaseJSON {
				then()
			}
		})
	}
	select {
	case l.b.offload.jobs[s.id%offloadWorkers] <- job:
		s.asked++
		return nil
	default:
		return codec.Errorf(codec.CodeQuota, "%d requests wait for the disk", offloadQueue)
	}
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
