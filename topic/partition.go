package topic

import "github.com/lightio/lightq/codec"

// core holds a partition's rules. It has one owner at a time, no goroutine, no clock and no I/O: whoever owns it sets now
// before each step, and what is to happen outside is appended to out.
//
// Invariant: start ≤ durable ≤ next, start ≤ high ≤ next. Where the store completes at once, all but start are equal.
type core struct {
	settings codec.TopicSettings
	now      int64 // milliseconds since the Unix epoch, of this step

	ring    ring
	start   codec.Offset // first offset kept
	next    codec.Offset // offset of the next record
	durable codec.Offset // exclusive: what the store has completed
	high    codec.Offset // exclusive: what consumers may read
	purged  codec.Offset // exclusive: records below that are missing were purged, not dropped

	pending       fifo[incoming] // arrived, not appended: the ring is full and an attached consumer needs its oldest batch
	blockedMillis int64          // when the first of pending began to wait
	awaiting      fifo[awaiting] // appended and not confirmed, and what was refused behind such

	cursors []*Cursor // of sub subscriptions; members of groups are in their group
	groups  []*group
	waiting []*Cursor // sub cursors that had nothing to take; woken by the next raise of high
	slowest uint64    // lower bound of the sequences at which attached cursors and groups stand
	holder  *Cursor   // of cursors, the one that stood there when the bound was last looked up

	deleted    bool
	publishers int
	counts     counts

	appended []codec.Batch // for the store; reset by the owner
	out      effects
}

type counts struct {
	recordsIn, bytesIn   uint64
	recordsOut, bytesOut uint64
	dropped              uint64 // records that left the ring before any cursor had taken them
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

// awaiting is a result that is told once the store has completed everything below end.
type awaiting struct {
	Result
	end codec.Offset
}

type effects struct {
	results []Result
	wake    []*Cursor
	free    []*codec.Slab // references to drop
}

// publish takes one checked batch.
func (c *core) publish(in incoming) {
	if c.pending.len() > 0 || !c.admit(in) {
		if c.pending.len() == 0 {
			c.blockedMillis = c.now
		}
		c.pending.push(in) // also what will be refused: results come in the order of the batches
	}
}

// admit appends or refuses a batch; false says that it must wait for room.
func (c *core) admit(in incoming) bool {
	p := in.pub
	switch {
	case c.deleted:
		p.refused = true
		c.refuse(in, codec.CodeTopicDeleted)
	case in.epoch != p.epoch || p.refused:
		c.refuse(in, codec.CodeStaleEpoch)
	case in.err != nil:
		p.refused = true
		c.refuse(in, codeOf(in.err))
	case c.makeRoom(int64(len(in.batch)) + entryOverheadBytes):
		c.append(in)
	case c.settings.Overflow == codec.OverflowReject:
		p.refused = true
		c.refuse(in, codec.CodeOverflow)
	default:
		return false
	}
	return true
}

// retry goes on with what was pending, as far as there is room now.
func (c *core) retry() {
	for c.pending.len() > 0 && c.admit(*c.pending.front()) {
		c.pending.pop()
	}
}

// abandon refuses what waits for room of a publisher that has closed.
func (c *core) abandon(pub *Publisher) {
	for range c.pending.len() {
		in := c.pending.pop()
		if in.pub == pub {
			c.refuse(in, codec.CodeUnknownHandle)
		} else {
			c.pending.push(in)
		}
	}
}

func (c *core) refuse(in incoming, code codec.Code) {
	c.out.free = append(c.out.free, in.slab)
	r := in.result(codec.Result{Code: code})
	if c.awaiting.len() > 0 { // results come in the order of the batches
		c.awaiting.push(awaiting{r, c.next})
		return
	}
	c.out.results = append(c.out.results, r)
}

func (in *incoming) result(r codec.Result) Result {
	return Result{Publisher: in.pub, Epoch: in.epoch, Number: in.number, Bytes: len(in.batch), Result: r}
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

// needed reports whether an attached consumer has not had the entry of sequence seq yet.
func (c *core) needed(seq uint64) bool {
	if seq < c.slowest {
		return false
	}
	if c.holder != nil && c.holder.seq <= seq {
		return true
	}
	// Consumers only move forward, so the bound is looked up again only when the oldest entry reaches it and the slowest
	// cursor has moved. Of several that are slowest the last is remembered: where all keep up they take in order, and
	// it moves last.
	c.slowest, c.holder = c.ring.end, nil
	for _, cur := range c.cursors {
		if cur.seq <= c.slowest {
			c.slowest, c.holder = cur.seq, cur
		}
	}
	for _, g := range c.groups {
		if g.attached(c.now) {
			c.slowest = min(c.slowest, g.seq)
		}
	}
	return seq >= c.slowest
}

func (c *core) dropOldest() {
	e := c.ring.pop()
	if !e.taken {
		c.counts.dropped += uint64(e.next - e.base)
	}
	c.start = e.next
	c.out.free = append(c.out.free, e.slab)
}

func (c *core) append(in incoming) {
	base := c.next
	in.batch.SetBase(base, 0)
	records := in.batch.RecordCount()
	c.next += codec.Offset(records)
	c.counts.recordsIn += uint64(records)
	c.counts.bytesIn += uint64(len(in.batch))
	c.ring.push(entry{base: base, next: c.next, appendMillis: c.now, bytes: in.batch, slab: in.slab})
	c.appended = append(c.appended, in.batch)
	c.awaiting.push(awaiting{in.result(codec.Result{Base: base}), c.next})
}

// completed is the store's event: everything below durable is as safe as the store makes it.
func (c *core) completed(durable codec.Offset) {
	c.durable = durable
	for c.awaiting.len() > 0 && c.awaiting.front().end <= durable {
		c.out.results = append(c.out.results, c.awaiting.pop().Result)
	}
	if durable > c.high {
		c.high = durable
		for _, cur := range c.waiting {
			cur.waiting = false
			c.out.wake = append(c.out.wake, cur)
		}
		c.waiting = c.waiting[:0]
		for _, g := range c.groups {
			c.share(g)
		}
		c.trimDirect()
	}
}

// trimDirect drops, where the topic keeps nothing, what every attached consumer has had.
func (c *core) trimDirect() {
	for c.settings.Storage == codec.StorageDirect && c.ring.len() > 0 && c.ring.at(c.ring.first).next <= c.high && !c.needed(c.ring.first) {
		c.dropOldest()
	}
}

// attach adds the cursor of a sub subscription at the first entry that holds offset from or a later one. Where from is below
// start, the first take tells the gap.
func (c *core) attach(cur *Cursor, from codec.Offset) {
	cur.seq = c.ring.find(from)
	cur.next = from
	cur.progressMillis = c.now
	c.cursors = append(c.cursors, cur)
	c.slowest = min(c.slowest, cur.seq)
}

func (c *core) detach(cur *Cursor) {
	if cur.group != nil {
		c.leaveGroup(cur)
	} else {
		c.cursors = remove(c.cursors, cur)
		c.waiting = remove(c.waiting, cur)
		if c.holder == cur {
			c.holder = nil
		}
	}
	cur.waiting = false
	c.trimDirect()
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

// skip moves a position that lies below start up to it, and returns the gap.
func (c *core) skip(seq *uint64, next *codec.Offset) (g codec.Gap) {
	*seq = max(*seq, c.ring.first)
	if *next < c.start {
		g = codec.Gap{From: *next, Next: c.start, Reason: codec.GapDropped}
		if c.start <= c.purged {
			g.Reason = codec.GapPurged
		}
		*next = c.start
	}
	return g
}

// maxTake bounds the batches of one take: they become one frame, whose count is a uint16, and pieces of one writev.
const maxTake = 1024

// take hands the cursor its next batches, at least one if there is any, until they are maxBytes or more. Each comes with a
// reference to its slab. A cursor that finds nothing is woken when there is something.
func (c *core) take(cur *Cursor, t *Taken, maxBytes int) {
	t.Start, t.High = c.start, c.high
	if cur.cut.Load() != 0 {
		return // detached; its session is about to learn why
	}
	if cur.group != nil {
		c.takeAssigned(cur, t, maxBytes)
	} else {
		c.takeNext(cur, t, maxBytes)
	}
	if len(t.Batches) > 0 || t.Gap.Next != 0 {
		cur.progressMillis = c.now
		c.counts.bytesOut += uint64(t.Bytes)
		return
	}
	if !cur.waiting && maxBytes > 0 {
		cur.waiting = true
		if cur.group == nil {
			c.waiting = append(c.waiting, cur)
		}
	}
}

func (c *core) takeNext(cur *Cursor, t *Taken, maxBytes int) {
	t.Gap = c.skip(&cur.seq, &cur.next)
	for maxBytes > 0 && cur.seq < c.ring.end && len(t.Batches) < maxTake {
		e := c.ring.at(cur.seq)
		if e.next > c.high {
			break
		}
		e.slab.Retain()
		e.taken = true
		t.add(e)
		c.counts.recordsOut += uint64(e.next - e.base)
		maxBytes -= len(e.bytes)
		cur.seq++
		cur.next = e.next
	}
	c.trimDirect()
}

// tick does what time brings about.
func (c *core) tick(stalledSince int64) {
	c.cutStalled(stalledSince)
	for _, g := range c.groups {
		c.expire(g)
	}
	c.trimDirect()
}

// cutStalled cuts off what has held up a full ring, and has not moved, since stalledSince.
func (c *core) cutStalled(stalledSince int64) {
	if c.pending.len() == 0 || c.blockedMillis > stalledSince {
		return
	}
	first := c.ring.first // what leaves the ring now does not make those guilty that have had it
	for i := len(c.cursors) - 1; i >= 0; i-- {
		if cur := c.cursors[i]; cur.seq <= first && cur.progressMillis <= stalledSince {
			c.cutOff(cur, codec.CodeSlowConsumer)
		}
	}
	for _, g := range c.groups {
		if len(g.members) == 0 || g.seq > first || g.progressMillis > stalledSince {
			continue
		}
		for i := len(g.members) - 1; i >= 0; i-- {
			c.cutOff(g.members[i], codec.CodeSlowConsumer)
		}
		g.leftMillis = 0 // its backlog is not protected any more
	}
}

// cutOff detaches a cursor; its session tells the client why.
func (c *core) cutOff(cur *Cursor, code codec.Code) {
	cur.cut.Store(uint32(code))
	c.out.wake = append(c.out.wake, cur)
	c.detach(cur)
}

// purge drops all records that can be read, and returns how many.
func (c *core) purge() uint64 {
	n := uint64(0)
	for c.ring.len() > 0 && c.ring.at(c.ring.first).next <= c.high {
		e := c.ring.pop()
		n += uint64(e.next - e.base)
		c.start = e.next
		c.out.free = append(c.out.free, e.slab)
	}
	if n > 0 {
		c.purged = c.start
	}
	for _, g := range c.groups {
		c.loseReturned(g, codec.GapPurged)
	}
	return n
}

// remove ends the partition: its topic was deleted.
func (c *core) remove() {
	c.deleted = true
	for len(c.cursors) > 0 {
		c.cutOff(c.cursors[len(c.cursors)-1], codec.CodeTopicDeleted)
	}
	for _, g := range c.groups {
		for len(g.members) > 0 {
			c.cutOff(g.members[len(g.members)-1], codec.CodeTopicDeleted)
		}
		c.loseReturned(g, codec.GapPurged)
	}
	c.retry() // refuses all that is pending
	for c.ring.len() > 0 {
		e := c.ring.pop()
		c.out.free = append(c.out.free, e.slab)
	}
}
