package topic

import "github.com/lightio/lightq/codec"

// core holds a partition's rules. It has one owner at a time, no goroutine, no clock and no I/O: what is to happen outside
// is appended to out.
//
// Invariant: start ≤ durable ≤ next, start ≤ high ≤ next. Where the store completes at once, all but start are equal.
type core struct {
	settings codec.TopicSettings

	ring    ring
	start   codec.Offset // first offset kept
	next    codec.Offset // offset of the next record
	durable codec.Offset // exclusive: what the store has completed
	high    codec.Offset // exclusive: what consumers may read

	pending  fifo[incoming] // arrived, not appended: the ring is full and an attached consumer needs its oldest batch
	awaiting fifo[awaiting] // appended, not confirmed

	cursors []*Cursor
	waiting []*Cursor // those that had nothing to take; woken by the next raise of high
	slowest uint64    // lower bound of the sequences at which attached cursors stand

	publishers int
	readEnd    uint64 // sequences below were taken by at least one cursor
	dropped    uint64 // records that left the ring before any cursor had taken them

	appended []codec.Batch // for the store; reset by the owner
	out      effects
}

// incoming is a batch on its way in. It owns a reference to its slab.
type incoming struct {
	pub    *Publisher
	epoch  uint32
	number uint64
	batch  codec.Batch
	slab   *codec.Slab
	err    error // what the check of the batch said
	tested bool  // the batch was checked
}

type awaiting struct {
	pub    *Publisher
	epoch  uint32
	number uint64
	bytes  int
	base   codec.Offset
	end    codec.Offset
}

type effects struct {
	results []Result
	wake    []*Cursor
	free    []*codec.Slab // references to drop
}

// publish takes one checked batch. nowMillis is its append time.
func (c *core) publish(in incoming, nowMillis int64) {
	if c.pending.len() > 0 || !c.admit(in, nowMillis) {
		c.pending.push(in) // also what will be refused: results come in the order of the batches
	}
}

// admit appends or refuses a batch; false says that it must wait for room.
func (c *core) admit(in incoming, nowMillis int64) bool {
	p := in.pub
	switch {
	case in.epoch != p.epoch || p.refused:
		c.refuse(in, codec.CodeStaleEpoch)
	case in.err != nil:
		p.refused = true
		c.refuse(in, codeOf(in.err))
	case c.makeRoom(int64(len(in.batch)) + entryOverheadBytes):
		c.append(in, nowMillis)
	case c.settings.Overflow == codec.OverflowReject:
		p.refused = true
		c.refuse(in, codec.CodeOverflow)
	default:
		return false
	}
	return true
}

// retry goes on with what was pending, as far as there is room now.
func (c *core) retry(nowMillis int64) {
	for c.pending.len() > 0 && c.admit(*c.pending.front(), nowMillis) {
		c.pending.pop()
	}
}

func (c *core) refuse(in incoming, code codec.Code) {
	c.out.free = append(c.out.free, in.slab)
	c.out.results = append(c.out.results, Result{
		Publisher: in.pub, Epoch: in.epoch, Number: in.number, Bytes: len(in.batch), Result: codec.Result{Code: code},
	})
}

// makeRoom drops the oldest batches until need more bytes fit, as far as the overflow policy lets it.
func (c *core) makeRoom(need int64) bool {
	limit := int64(c.settings.RingBytes)
	for c.ring.bytes+need > limit && c.ring.len() > 0 {
		if c.settings.Overflow != codec.OverflowDropOldest && c.needed(c.ring.first) {
			return false
		}
		c.dropOldest()
	}
	return true
}

// needed reports whether an attached cursor has not had the entry of sequence seq yet.
func (c *core) needed(seq uint64) bool {
	if len(c.cursors) == 0 {
		return false
	}
	if seq < c.slowest {
		return false
	}
	// Cursors only move forward, so the bound is looked up again only when the oldest entry reaches it.
	c.slowest = c.cursors[0].seq
	for _, cur := range c.cursors[1:] {
		c.slowest = min(c.slowest, cur.seq)
	}
	return seq >= c.slowest
}

func (c *core) dropOldest() {
	seq := c.ring.first
	e := c.ring.pop()
	if seq >= c.readEnd {
		c.dropped += uint64(e.next - e.base)
	}
	c.start = e.next
	c.out.free = append(c.out.free, e.slab)
}

func (c *core) append(in incoming, nowMillis int64) {
	base := c.next
	in.batch.SetBase(base, 0)
	c.next += codec.Offset(in.batch.RecordCount())
	c.ring.push(entry{base: base, next: c.next, appendMillis: nowMillis, bytes: in.batch, slab: in.slab})
	c.appended = append(c.appended, in.batch)
	c.awaiting.push(awaiting{pub: in.pub, epoch: in.epoch, number: in.number, bytes: len(in.batch), base: base, end: c.next})
}

// completed is the store's event: everything below durable is as safe as the store makes it.
func (c *core) completed(durable codec.Offset) {
	c.durable = durable
	for c.awaiting.len() > 0 && c.awaiting.front().end <= durable {
		a := c.awaiting.pop()
		c.out.results = append(c.out.results, Result{
			Publisher: a.pub, Epoch: a.epoch, Number: a.number, Bytes: a.bytes, Result: codec.Result{Base: a.base},
		})
	}
	if durable > c.high {
		c.high = durable
		c.wakeAll()
	}
}

func (c *core) wakeAll() {
	for _, cur := range c.waiting {
		cur.waiting = false
		c.out.wake = append(c.out.wake, cur)
	}
	c.waiting = c.waiting[:0]
}

// attach adds a cursor at the first entry that holds offset from or a later one. Where from is below start, the first take
// tells the gap.
func (c *core) attach(cur *Cursor, from codec.Offset, nowMillis int64) {
	cur.seq = c.ring.find(from)
	cur.next = from
	cur.progressMillis = nowMillis
	c.cursors = append(c.cursors, cur)
	c.slowest = min(c.slowest, cur.seq)
}

func (c *core) detach(cur *Cursor) {
	c.cursors = remove(c.cursors, cur)
	c.waiting = remove(c.waiting, cur)
	cur.waiting = false
}

func remove(list []*Cursor, cur *Cursor) []*Cursor {
	for i, v := range list {
		if v == cur {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			return list[:len(list)-1]
		}
	}
	return list
}

// take hands the cursor its next batches, at least one if there is any, until they are maxBytes or more. Each comes with a
// reference to its slab. A cursor that finds nothing is woken by the next raise.
func (c *core) take(cur *Cursor, t *Taken, maxBytes int, nowMillis int64) {
	t.Start, t.High = c.start, c.high
	cur.seq = max(cur.seq, c.ring.first)
	if cur.next < c.start { // lapped, or attached below what is kept
		t.Gap = codec.Gap{From: cur.next, Next: c.start, Reason: codec.GapDropped}
		cur.next = c.start
	}
	for maxBytes > 0 && cur.seq < c.ring.end && len(t.Batches) < maxTake {
		e := c.ring.at(cur.seq)
		if e.next > c.high {
			break
		}
		if len(t.Batches) == 0 {
			t.AppendMillis = e.appendMillis
		}
		e.slab.Retain()
		t.Batches = append(t.Batches, TakenBatch{Bytes: e.bytes, Slab: e.slab})
		t.Bytes += len(e.bytes)
		maxBytes -= len(e.bytes)
		cur.seq++
		cur.next = e.next
	}
	if len(t.Batches) > 0 || t.Gap.Next != 0 {
		c.readEnd = max(c.readEnd, cur.seq)
		cur.progressMillis = nowMillis
		return
	}
	if !cur.waiting && maxBytes > 0 {
		cur.waiting = true
		c.waiting = append(c.waiting, cur)
	}
}

// maxTake bounds the batches of one take: they become one frame, whose count is a uint16, and pieces of one writev.
const maxTake = 1024

// cutStalled marks cursors that hold up a full ring and have not moved since stalledSince; their session closes them.
func (c *core) cutStalled(stalledSinceMillis int64) {
	if c.pending.len() == 0 {
		return
	}
	for i := 0; i < len(c.cursors); i++ {
		cur := c.cursors[i]
		if cur.seq == c.ring.first && cur.progressMillis <= stalledSinceMillis {
			cur.cut.Store(true)
			c.out.wake = append(c.out.wake, cur)
			c.detach(cur)
			i--
		}
	}
}
