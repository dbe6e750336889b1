package topic

import (
	"sync/atomic"

	"github.com/lightio/lightq/codec"
)

// A Cursor is where the delivery of one subscription stands in a partition. Its session calls Take and Detach; the fields
// belong to the partition's owner.
type Cursor struct {
	part *Partition
	sink Sink

	// Tag is the sink's own: it finds the subscription by it. Set before Attach.
	Tag any

	seq            uint64       // of the next entry in the ring
	next           codec.Offset // of the next record
	progressMillis int64        // when batches were last taken
	waiting        bool         // in core.waiting

	cut atomic.Bool
}

// A Taken is what Take hands out. The caller reuses one; Reset it before each use.
type Taken struct {
	Batches      []TakenBatch
	Bytes        int // of all batches
	Start, High  codec.Offset
	AppendMillis int64 // of the first batch
	Gap          codec.Gap
}

// A TakenBatch is a batch and one reference to its slab, which the taker releases when the bytes have left.
type TakenBatch struct {
	Bytes []byte
	Slab  *codec.Slab
}

// Reset empties t without giving back its memory.
func (t *Taken) Reset() { *t = Taken{Batches: t.Batches[:0]} }

// Take fills t with the cursor's next batches, at least one if there is any and maxBytes is positive, and ends at the first
// that makes them maxBytes or more. When t stays empty the sink's Wake tells when to call again.
func (cur *Cursor) Take(t *Taken, maxBytes int, nowMillis int64) {
	p := cur.part
	p.mu.Lock()
	p.core.take(cur, t, maxBytes, nowMillis)
	if p.core.pending.len() > 0 {
		p.core.retry(nowMillis)
		p.store()
	}
	p.leave()
}

// Cut reports whether the partition has cut the cursor off: it held up a full ring and made no progress within the stall
// limit. A cut cursor is detached.
func (cur *Cursor) Cut() bool { return cur.cut.Load() }

// Detach removes the cursor. What it held up goes on.
func (cur *Cursor) Detach(nowMillis int64) {
	p := cur.part
	p.mu.Lock()
	p.core.detach(cur)
	p.core.retry(nowMillis)
	p.store()
	p.leave()
}

// Partition is the partition that the cursor is attached to.
func (cur *Cursor) Partition() *Partition { return cur.part }
