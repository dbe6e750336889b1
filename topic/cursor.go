package topic

import (
	"sync/atomic"

	"github.com/lightio/lightq/codec"
)

// A Cursor is where the delivery of one subscription stands in a partition. Its session calls Take, Grant and Detach; the
// fields belong to the partition's owner.
type Cursor struct {
	part *Partition
	sink Sink

	// Tag is the sink's own: it finds the subscription by it. Set before Attach.
	Tag any

	// Exact refuses an offset below the partition's start, instead of beginning with a gap; and batches that begin at Limit or
	// above are not wanted, if it is not 0. Set before Attach, by which a group does not look at them.
	Exact bool
	Limit codec.Offset

	progressMillis int64 // when batches were last taken
	waiting        bool  // found nothing at its last take and is to be woken

	position // of a sub subscription

	// of a member of a group
	group    *group
	credit   int // bytes that the group may still give it; one batch may overshoot it
	assigned fifo[assigned]

	cut atomic.Uint32 // a codec.Code
}

// A Taken is what Take hands out. The caller reuses one; Reset it before each use.
type Taken struct {
	Batches      []TakenBatch
	Bytes        int // of all batches
	Start, High  codec.Offset
	Next         codec.Offset // of a sub subscription: of the record behind
	AppendMillis int64        // of the first batch
	Gap          codec.Gap
	Reading      bool // nothing is there because the files are being read; the sink's Wake tells when they were
	Failed       bool // nothing is there because the files could not be read; that is tried again
}

// A TakenBatch is a batch and one reference to its slab, which the taker releases when the bytes have left.
type TakenBatch struct {
	Bytes []byte
	Slab  *codec.Slab
}

// Reset empties t without giving back its memory.
func (t *Taken) Reset() { *t = Taken{Batches: t.Batches[:0]} }

// add takes over one reference to e's slab.
func (t *Taken) add(e *entry) {
	if len(t.Batches) == 0 {
		t.AppendMillis = e.appendMillis
	}
	t.Batches = append(t.Batches, TakenBatch{Bytes: e.bytes, Slab: e.slab})
	t.Bytes += len(e.bytes)
}

// Partition is the partition that the cursor is attached to.
func (cur *Cursor) Partition() *Partition { return cur.part }

// Shared reports whether the cursor is a member of a group: then the partition keeps its credit, see Grant.
func (cur *Cursor) Shared() bool { return cur.group != nil }

// Group is the name of the cursor's group; empty for a sub subscription.
func (cur *Cursor) Group() string {
	if cur.group == nil {
		return ""
	}
	return cur.group.name
}

// Take fills t with the cursor's next batches, at least one if there is any and maxBytes is positive, and ends at the first
// that makes them maxBytes or more. When t stays empty the sink's Wake tells when to call again.
func (cur *Cursor) Take(t *Taken, maxBytes int, nowMillis int64) {
	p := cur.part
	p.enter(nowMillis)
	p.core.take(cur, t, maxBytes)
	p.goOn()
	p.leave()
}

// Grant allows the group to give the member bytes more bytes of batches. For a sub subscription it does nothing: its session
// keeps the credit.
func (cur *Cursor) Grant(bytes int, nowMillis int64) {
	p := cur.part
	p.enter(nowMillis)
	p.core.grant(cur, bytes)
	p.goOn()
	p.leave()
}

// Cut returns why the partition has cut the cursor off: codec.CodeSlowConsumer when it held up a full ring without progress
// for the stall limit, codec.CodeTopicDeleted, or codec.CodeNone. A cut cursor is detached.
func (cur *Cursor) Cut() codec.Code { return codec.Code(cur.cut.Load()) }

// Detach removes the cursor. What it held up goes on; what it was given of a group and has not taken goes back.
func (cur *Cursor) Detach(nowMillis int64) {
	p := cur.part
	p.enter(nowMillis)
	if cur.Cut() == codec.CodeNone {
		p.core.detach(cur)
		p.goOn()
	}
	p.leave()
}
