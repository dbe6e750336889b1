package client

import (
	"sync"
	"sync/atomic"
	"time"
)

// A pipe is what a producer knows about its connection, over all partitions: what is on its way, and how fast records come.
// Partitions ask it whether to wait for a batch to fill. Its methods may be called from any goroutine, whatever locks of a
// partition it holds.
type pipe struct {
	batches, bytes atomic.Int64 // sent and not confirmed
	burst          atomic.Bool  // see burstTime

	// Guarded by mu: bytes of batches of burstRecords and more sent since a moment, from which burst is decided anew.
	mu         sync.Mutex
	since      time.Duration // since Producer.base
	sinceBytes int
}

// idle reports whether the pipe is nearly idle and this is no burst.
func (p *pipe) idle() bool {
	return p.batches.Load() < idleBatches && p.bytes.Load() < idleBytes && !p.burst.Load()
}

// begun tells that a batch was begun at now. It decides whether this is a burst, where limit bytes in burstTime make one, as
// soon as there is something to judge by.
func (p *pipe) begun(now time.Duration, limit int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := now - p.since
	if p.sinceBytes < limit/2 && took < burstTime {
		return
	}
	p.burst.Store(p.sinceBytes > 0 && took < 8*burstTime && int64(p.sinceBytes)*int64(burstTime) >= int64(limit)*int64(took))
	p.since, p.sinceBytes = now, 0
}

// sent tells of a batch that is about to be written.
func (p *pipe) sent(bytes, records int) {
	if records >= burstRecords {
		p.mu.Lock()
		p.sinceBytes += bytes
		p.mu.Unlock()
	}
}

// A load is what is on its way, of one partition.
type load struct{ batches, bytes int }

// change takes in that a partition's load is another now. It reports whether that made the pipe nearly idle.
func (p *pipe) change(from, to load) bool {
	batches, bytes := int64(to.batches-from.batches), int64(to.bytes-from.bytes)
	nowBatches, nowBytes := p.batches.Add(batches), p.bytes.Add(bytes)
	wasIdle := nowBatches-batches < idleBatches && nowBytes-bytes < idleBytes
	return !wasIdle && p.idle()
}
