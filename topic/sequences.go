package topic

import (
	"sync"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic/idempotence"
)

// sequences are what idempotent producers have appended. A lock of their own lets the log take a snapshot when a purge, which waits for the
// disk and so does not own the partition, begins a segment. The lock is held shortly, and nothing else is locked under it.
type sequences struct {
	mu    sync.Mutex
	state *idempotence.State
}

func newSequences() *sequences { return &sequences{state: idempotence.New(idempotence.Options{})} }

// check forgets those that have been silent for too long, and says what to do with a batch.
func (s *sequences) check(b codec.Batch, nowMillis int64) (idempotence.Verdict, codec.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Expire(nowMillis) // looks at the one that has been silent for the longest time, and nearly always at no other
	return s.state.Check(b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), int32(b.RecordCount()))
}

func (s *sequences) appended(b codec.Batch, base codec.Offset, nowMillis int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Appended(b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), int32(b.RecordCount()), base, nowMillis)
}

// settle says that what is below an offset will not be taken back.
func (s *sequences) settle(to codec.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Settle(to)
}

// truncate takes back what is at or above an offset.
func (s *sequences) truncate(to codec.Offset) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Truncate(to)
}

// appendSnapshot appends what is below an offset to dst.
func (s *sequences) appendSnapshot(dst []byte, below codec.Offset) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Count() == 0 {
		return dst
	}
	return s.state.AppendSnapshotBelow(dst, below)
}

func (s *sequences) load(b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.LoadSnapshot(b)
}

func (s *sequences) replay(b codec.Batch, appended int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Replay(b, appended)
}
