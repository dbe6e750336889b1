package topic

import (
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic/idempotence"
)

// core holds a partition's rules. It has one owner at a time, no goroutine, no clock and no I/O: whoever owns it sets now
// before each step, and what is to happen outside is appended to out.
//
// Invariant: start ≤ durable ≤ written ≤ next, start ≤ high ≤ next. Where the store completes at once, all but start are equal.
type core struct {
	settings codec.TopicSettings
	now      int64      // milliseconds since the Unix epoch, of this step
	short    shortState // of the broker's memory, of this step

	// Of a topic that is stored in files. The ring then holds the newest batches, among them all that are not written.
	filed    bool
	visible  visibility
	refusing bool // the log takes nothing until it has told what it refused
	state    codec.PartitionState
	full     bool     // the disk's reserve is reached
	loss     int64    // milliseconds that the oldest record which is visible before it is durable may wait; 0: any
	troubled []reader // their last read of the files failed

	// Where offsets are visible before they are durable, and the broker has files, ceiling bounds those that may be given out:
	// above it they would be given out again after a crash.
	bounded  bool
	ceiling  codec.Offset
	reserved bool // a higher ceiling was asked for

	unnumbered codec.Code // while what waits for a ceiling that could not be raised is refused: why

	healsAt codec.Offset // of PartitionNoSpace: when something above it is written, all is well again
	begun   codec.Offset // records below it that are missing were lost with a restart

	ring    ring
	start   codec.Offset // first offset kept
	next    codec.Offset // offset of the next record
	written codec.Offset // exclusive: what the store does not need the ring for any more
	durable codec.Offset // exclusive: what the store has completed
	high    codec.Offset // exclusive: what consumers may read
	purged  codec.Offset // exclusive: records below that are missing were purged, not dropped

	pending       fifo[incoming] // arrived, not appended: the ring is full and an attached consumer needs its oldest batch
	blockedMillis int64          // when the first of pending began to wait

	// appended and not confirmed, and what was refused behind such: what is confirmed when it is visible, and when it is durable
	awaiting [2]fifo[awaiting]

	cursors []*Cursor // of sub subscriptions; members of groups are in their group
	groups  []*group
	waiting []*Cursor // sub cursors that had nothing to take; woken by the next raise of high
	slowest uint64    // lower bound of the sequences at which attached cursors and groups stand
	holder  *Cursor   // of cursors, the one that stood there when the bound was last looked up

	groupsDueMillis int64 // when time brings something about for a group; 0: never, as things are

	deleted    bool
	publishers int
	counts     counts
	producers  *sequences // what idempotent producers have appended; nil: nothing yet

	sent codec.Offset // exclusive: what the store was given
	out  effects
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

// visibility says when records may be read, and batches of level appended are confirmed.
type visibility uint8

const (
	whenAppended visibility = iota // in memory
	whenWritten                    // with the operating system
	whenDurable
)

// awaiting is a result that is told once everything below end is visible, or durable.
type awaiting struct {
	Result
	end codec.Offset
}

type effects struct {
	results []Result
	wake    []*Cursor
	free    []*codec.Slab // references to drop
	reads   []reader      // of the files
	reserve codec.Offset  // a ceiling to ask for; 0: none
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
	case in.batch.ProducerID() >= 0 && c.repeated(in):
		// It was confirmed again, whether or not there is room for others.
	case c.state == codec.PartitionPoisoned:
		p.refused = true
		c.refuse(in, codec.CodeOutcomeUnknown)
	case c.full || c.refusing && c.visible != whenAppended:
		p.refused = true
		c.refuse(in, codec.CodeNoSpace)
	case in.batch.ProducerID() >= 0 && !c.inSequence(in):
		// It was refused.
	case !c.mayNumber(in.batch.RecordCount()):
		if c.unnumbered == codec.CodeNone {
			return false
		}
		p.refused = true
		c.refuse(in, c.unnumbered)
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
	if in.slab != nil { // of a batch that found no memory
		c.out.free = append(c.out.free, in.slab)
	}
	r := in.result(codec.Result{Code: code})
	if q := c.queue(in.pub); q.len() > 0 { // results come in the order of the batches
		q.push(awaiting{r, c.next})
		return
	}
	c.out.results = append(c.out.results, r)
}

// queue is where the results of a publisher wait.
func (c *core) queue(p *Publisher) *fifo[awaiting] {
	if p.level == codec.LevelDurable && c.visible != whenDurable {
		return &c.awaiting[1]
	}
	return &c.awaiting[0]
}

// repeated reports whether a batch of an idempotent producer is there already. Then it is confirmed with the offset that it has, once
// that is due.
func (c *core) repeated(in incoming) bool {
	verdict, base := c.verdict(in.batch)
	if verdict != idempotence.Duplicate {
		return false
	}
	end := base + codec.Offset(in.batch.RecordCount())
	q := c.queue(in.pub)
	if c.state == codec.PartitionPoisoned && q == &c.awaiting[1] && end > c.durable {
		in.pub.refused = true
		c.refuse(in, codec.CodeOutcomeUnknown) // it is visible, and will never be durable
		return true
	}
	c.out.free = append(c.out.free, in.slab)
	q.push(awaiting{in.result(codec.Result{Base: base}), end})
	c.confirm()
	return true
}

func (c *core) verdict(b codec.Batch) (idempotence.Verdict, codec.Offset) {
	return c.sequences().check(b, c.now)
}

// inSequence reports whether a batch of an idempotent producer is to be appended. One that does not follow is refused.
func (c *core) inSequence(in incoming) bool {
	switch verdict, _ := c.verdict(in.batch); verdict {
	case idempotence.Append:
		return true
	case idempotence.InvalidEpoch:
		in.pub.refused = true
		c.refuse(in, codec.CodeProducerFenced)
	default:
		in.pub.refused = true
		c.refuse(in, codec.CodeOutOfOrder)
	}
	return false
}

func (c *core) sequences() *sequences {
	if c.producers == nil {
		c.producers = newSequences()
	}
	return c.producers
}

// ceilingStep is how many offsets are reserved at a time: two seconds of the highest rate, so that reserving never holds it up.
const ceilingStep = 1 << 24

// mayNumber reports whether so many more offsets may be given out, and asks for more in time.
func (c *core) mayNumber(records int) bool {
	if !c.bounded {
		return true
	}
	want := c.next + codec.Offset(records)
	if want > c.ceiling-ceilingStep/2 && !c.reserved && c.unnumbered == codec.CodeNone {
		c.reserved = true
		c.out.reserve = want + ceilingStep
	}
	return want <= c.ceiling
}

// raiseCeiling is the event that more offsets were reserved, or, with a code, could not be. Then what waits for an offset is refused: the
// next that comes asks again.
func (c *core) raiseCeiling(to codec.Offset, failed codec.Code) {
	c.reserved = false
	c.ceiling = max(c.ceiling, to)
	c.unnumbered = failed
	c.retry()
	c.unnumbered = codec.CodeNone
}

func (in *incoming) result(r codec.Result) Result {
	return Result{Publisher: in.pub, Epoch: in.epoch, Number: in.number, Bytes: len(in.batch), Result: r}
}

// makeRoom drops the oldest batches until need more bytes fit, as far as the overflow policy lets it.
func (c *core) makeRoom(need int64) bool {
	limit := c.ringLimit()
	if c.filed {
		return c.makeRoomInTail(need, limit)
	}
	for c.ring.bytes+need > limit && c.ring.len() > 0 {
		if c.settings.Overflow != codec.OverflowDropOldest && c.needed(c.ring.first) {
			return false
		}
		c.dropOldest()
	}
	return true
}

// makeRoomInTail drops from memory what the files have, oldest first, until need more bytes fit. What is not written, or not
// visible yet, stays.
func (c *core) makeRoomInTail(need, limit int64) bool {
	if c.loss > 0 && c.durable < c.next {
		if seq := c.ring.find(c.durable); seq < c.ring.end && c.now-c.ring.at(seq).appendMillis > c.loss {
			return false // the loss window, in time
		}
	}
	for c.ring.bytes+need > limit && c.ring.len() > 0 {
		if c.ring.at(c.ring.first).next > min(c.written, c.high) {
			return false
		}
		c.out.free = append(c.out.free, c.ring.pop().slab)
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
	if b := in.batch; b.ProducerID() >= 0 {
		c.sequences().appended(b, base, c.now)
	}
	c.queue(in.pub).push(awaiting{in.result(codec.Result{Base: base}), c.next})
}

// completed is the store's event: it does not need the ring any more for what is below written, and everything below durable is
// as safe as it makes it.
func (c *core) completed(written, durable codec.Offset) {
	c.written, c.durable = max(c.written, written), max(c.durable, durable)
	if c.state == codec.PartitionNoSpace && c.written > c.healsAt {
		c.state = codec.PartitionOK // what was taken since has found room
	}
	c.advance()
}

// advance moves high to where it may be, confirms, and wakes those that waited.
func (c *core) advance() {
	high := c.next
	switch c.visible {
	case whenWritten:
		high = c.written
	case whenDurable:
		high = c.durable
	}
	raised := high > c.high
	if raised {
		c.high = high
	}
	if c.producers != nil {
		c.producers.settle(c.high) // what was visible is never taken back
	}
	c.confirm()
	if raised {
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

// confirm tells the results that are due.
func (c *core) confirm() {
	for i, mark := range [2]codec.Offset{c.high, c.durable} {
		q := &c.awaiting[i]
		for q.len() > 0 && q.front().end <= mark {
			c.out.results = append(c.out.results, q.pop().Result)
		}
	}
}

// takeBack refuses what was appended at or above an offset and is not visible: the store does not have it, or, with
// codec.CodeOutcomeUnknown, may have it.
func (c *core) takeBack(from codec.Offset, code codec.Code) {
	first := map[*Publisher]uint32{} // the epoch in which the first of a publisher's batches was met; the others stand behind it
	for i := range c.awaiting {
		q := &c.awaiting[i]
		for range q.len() {
			a := q.pop()
			pub := a.Publisher
			epoch, behind := first[pub]
			behind = behind && epoch == a.Epoch
			switch {
			case a.end <= from && a.Code == codec.CodeNone: // it stays
			case behind:
				a.Base, a.Code = 0, codec.CodeStaleEpoch
			default:
				first[pub] = a.Epoch
				if a.Code == codec.CodeNone {
					a.Base, a.Code = 0, code
				}
			}
			if a.Code != codec.CodeNone && a.Epoch == pub.epoch {
				pub.refused = true
			}
			a.end = min(a.end, from)
			q.push(a)
		}
	}
	for c.ring.len() > 0 && c.ring.at(c.ring.end-1).next > from {
		e := c.ring.popBack()
		c.counts.recordsIn -= uint64(e.next - e.base)
		c.counts.bytesIn -= uint64(len(e.bytes))
		c.out.free = append(c.out.free, e.slab)
	}
	c.next, c.sent = min(c.next, max(from, c.begun)), min(c.sent, from) // what may have been given out before a restart stays given out
	if c.producers != nil {
		c.producers.truncate(from)
	}
	c.confirm()
}

// refused is the store's event that it has taken back, for lack of space, what was appended at or above an offset. told says
// that it takes appends at that offset again; before, none.
func (c *core) refused(from codec.Offset, told bool) {
	c.state = codec.PartitionNoSpace
	c.refusing = !told
	c.healsAt = from
	if c.visible == whenAppended {
		c.sent = min(c.sent, from) // confirmed long ago: the next tick tries again
	} else {
		c.takeBack(from, codec.CodeNoSpace)
	}
}

// poisoned is the store's event that a write or a sync has failed, and that it is done with all memory.
func (c *core) poisoned() {
	c.state = codec.PartitionPoisoned
	c.takeBack(c.high, codec.CodeOutcomeUnknown)
	for q := &c.awaiting[1]; q.len() > 0; { // confirmed when durable, and visible before
		a := q.pop()
		if a.Code == codec.CodeNone {
			a.Base, a.Code = 0, codec.CodeOutcomeUnknown
		}
		c.out.results = append(c.out.results, a.Result)
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

// since returns the first offset in the ring whose record, or one in the same batch, is as young as a time; the end if none is.
func (c *core) since(millis int64) codec.Offset {
	for seq := c.ring.first; seq < c.ring.end; seq++ {
		e := c.ring.at(seq)
		b := codec.Batch(e.bytes)
		newest := max(b.BaseTimestamp(), b.MaxTimestamp())
		if newest <= 0 {
			newest = e.appendMillis
		}
		if newest >= millis {
			return e.base
		}
	}
	return c.high
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
	c.dropCold(&cur.position)
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
func (c *core) skip(p *position) (g codec.Gap) {
	p.seq = max(p.seq, c.ring.first)
	if p.next < c.start {
		g = codec.Gap{From: p.next, Next: c.start, Reason: codec.GapDropped}
		switch {
		case c.start <= c.purged:
			g.Reason = codec.GapPurged
		case c.filed:
			g.Reason = codec.GapExpired
		case c.start <= c.begun:
			g.Reason = codec.GapDeclared
		}
		p.next = c.start
		if c.filed {
			c.dropCold(p)
			p.seq = c.ring.find(p.next) // memory may hold what has expired in the files
		}
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
		t.Next = cur.next
		if d := cur.cold; d != nil && len(t.Batches) == 0 {
			t.Reading, t.Failed = d.reading, d.failed
		}
	}
	if len(t.Batches) > 0 || t.Gap.Next != 0 {
		if t.Gap.Next != 0 && cur.waiting { // it may have waited for a read that nobody looks at any more
			cur.waiting = false
			c.waiting = remove(c.waiting, cur)
		}
		cur.progressMillis = c.now
		c.counts.bytesOut += uint64(t.Bytes)
		return
	}
	if !cur.waiting && maxBytes > 0 {
		cur.waiting = true
		if cur.group == nil && (cur.cold == nil || !cur.cold.reading) { // the end of a read wakes it by itself
			c.waiting = append(c.waiting, cur)
		}
	}
}

func (c *core) takeNext(cur *Cursor, t *Taken, maxBytes int) {
	t.Gap = c.skip(&cur.position)
	if c.filed && c.takeCold(cur, t, &maxBytes) {
		return
	}
	for maxBytes > 0 && cur.seq < c.ring.end && len(t.Batches) < maxTake {
		e := c.ring.at(cur.seq)
		if e.next > c.high || cur.Limit > 0 && e.base >= cur.Limit {
			break
		}
		e.slab.Retain()
		e.taken = true
		c.takeEntry(cur, t, e)
		maxBytes -= len(e.bytes)
		cur.seq++
	}
	c.trimDirect()
}

// takeCold hands out what was read of the files, and reports whether the files alone have what is next.
func (c *core) takeCold(cur *Cursor, t *Taken, maxBytes *int) bool {
	for c.behind(&cur.position) {
		if gap := cur.cold.takeGap(); gap.Next != 0 {
			if t.Gap.Next != 0 || len(t.Batches) > 0 {
				cur.cold.gap = gap // one gap a frame, in front of its batches
				return true
			}
			t.Gap = gap
			cur.next = gap.Next
			continue
		}
		if *maxBytes <= 0 || len(t.Batches) >= maxTake {
			return true
		}
		if cur.cold.len() == 0 {
			c.readAhead(cur, &cur.position)
			return true
		}
		if cur.Limit > 0 && cur.cold.entries.front().base >= cur.Limit {
			return true
		}
		e := cur.cold.pop()
		c.takeEntry(cur, t, &e)
		*maxBytes -= len(e.bytes)
		cur.seq = 0 // to be looked up, where the ring goes on
		if *maxBytes > 0 {
			c.readAhead(cur, &cur.position)
		}
	}
	return false
}

// takeEntry hands out an entry with a reference to its slab.
func (c *core) takeEntry(cur *Cursor, t *Taken, e *entry) {
	t.add(e)
	c.counts.recordsOut += uint64(e.next - e.base)
	cur.next = e.next
}

// tick does what time brings about.
func (c *core) tick(stalledSince int64) {
	c.cutStalled(stalledSince)
	c.retryReads()
	if c.groupsDueMillis != 0 && c.groupsDueMillis <= c.now {
		c.expireGroups()
	}
	c.trimDirect()
}

// retains reports whether retention removes something in the course of time.
func (c *core) retains() bool { return c.settings.RetentionMillis != codec.RetentionUnlimited }

// dueMillis is when tick has something to do; 0: never, as things are.
func (c *core) dueMillis() int64 {
	if c.pending.len() > 0 || c.filed && !c.deleted && (c.retains() || len(c.troubled) > 0 || c.sent < c.next && c.state != codec.PartitionPoisoned) {
		return max(c.now, 1)
	}
	return c.groupsDueMillis
}

// cutStalled cuts off what has held up a full ring, and has not moved, since stalledSince.
func (c *core) cutStalled(stalledSince int64) {
	if c.filed || !c.holdsMemory(stalledSince) && (c.pending.len() == 0 || c.blockedMillis > stalledSince) {
		return
	}
	first := c.ring.first // what leaves the ring now does not make those guilty that have had it
	for i := len(c.cursors) - 1; i >= 0; i-- {
		if cur := c.cursors[i]; cur.seq <= first && cur.progressMillis <= stalledSince {
			c.cutOff(cur, codec.CodeSlowConsumer)
		}
	}
	for _, g := range c.groups {
		if g.seq > first || g.progressMillis > stalledSince || len(g.members) == 0 && !c.short.since(stalledSince) {
			continue
		}
		for i := len(g.members) - 1; i >= 0; i-- {
			c.cutOff(g.members[i], codec.CodeSlowConsumer)
		}
		g.unprotected = true
		c.lookAtGroups()
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

// purgedTo is the event that the files hold nothing below an offset any more: how many records that were.
func (c *core) purgedTo(start codec.Offset) uint64 {
	n := uint64(max(start-c.start, 0))
	c.start = max(c.start, start)
	c.purged = c.start
	for c.ring.len() > 0 && c.ring.at(c.ring.first).next <= min(c.start, c.written, c.high) {
		c.out.free = append(c.out.free, c.ring.pop().slab)
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
		c.dropCold(&g.position)
		c.loseReturned(g, codec.GapPurged)
	}
	c.groupsDueMillis = 0
	c.retry()     // refuses all that is pending
	if !c.filed { // else once the store does not need it any more
		c.clear(codec.CodeTopicDeleted)
	}
}

// clear lets go of all memory. What the store has not completed is refused with a code.
func (c *core) clear(code codec.Code) {
	for i := range c.awaiting {
		for q := &c.awaiting[i]; q.len() > 0; {
			a := q.pop()
			if a.Code == codec.CodeNone {
				a.Base, a.Code = 0, code
			}
			c.out.results = append(c.out.results, a.Result)
		}
	}
	for c.ring.len() > 0 {
		e := c.ring.pop()
		c.out.free = append(c.out.free, e.slab)
	}
}
