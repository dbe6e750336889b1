package topic

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
)

// inlineBytes is the most that is published inline on the reactor whose bytes arrive. 16 KiB: checking and appending it
// takes less than waking another goroutine does, and what is larger belongs to a flow for which a second core pays.
const inlineBytes = 16 << 10

// A Partition is one ordered log of a topic. Its methods may be called from any goroutine.
type Partition struct {
	// immutable
	index int
	topic *Topic

	maxBatch  atomic.Int64 // bytes; settings hold it too, this is for checks without the lock
	ringBytes atomic.Int64 // what the ring charges, for looks without the lock

	files *files       // nil: the registry has no data directory
	log   *journal.Log // nil where the topic is not stored in files

	dueMillis atomic.Int64 // when Tick has something to do; 0: never, as things are

	// owned by whoever holds mu
	mu    sync.Mutex
	timed bool // in the registry's list of those that are to be ticked
	core  core
	queue []incoming // waits for the writer
	spare []incoming // the writer's other buffer
	told  bool       // that the log is poisoned

	batches [][]byte // scratch of appendToLog

	// busy is true while the writer goroutine runs; it is written under mu.
	busy atomic.Bool
}

// A Publisher is one open publishing handle. The fields belong to the partition's owner.
type Publisher struct {
	part *Partition
	sink Sink

	// Tag is the sink's own: it finds the handle by it. Set before OpenPublisher.
	Tag any

	level   codec.Level
	epoch   uint32
	refused bool // a batch of this epoch was refused: those behind it are too
}

// Index is the partition's number.
func (p *Partition) Index() int { return p.index }

// Topic is the topic that the partition belongs to.
func (p *Partition) Topic() *Topic { return p.topic }

// OpenPublisher adds a publisher, or, for one that is open, starts a new epoch: batches of the old one that have not
// been appended yet are refused. It returns the level in force and the offset of the next record.
func (p *Partition) OpenPublisher(pub *Publisher, sink Sink, epoch uint32, level codec.Level) (codec.Level, codec.Offset, error) {
	level, err := p.confirmLevel(level)
	if err != nil {
		return 0, 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.core.deleted {
		return 0, 0, codec.Errorf(codec.CodeTopicDeleted, "topic %s was deleted", p.topic.name)
	}
	if pub.part == nil {
		p.core.publishers++
	} else if epoch <= pub.epoch {
		return 0, 0, codec.Errorf(codec.CodeStaleEpoch, "epoch %d is not above the epoch %d of the open handle", epoch, pub.epoch)
	}
	pub.part, pub.sink, pub.level, pub.epoch, pub.refused = p, sink, level, epoch, false
	return level, p.core.next, nil
}

// confirmLevel is the level in force for one that was asked for.
func (p *Partition) confirmLevel(asked codec.Level) (codec.Level, error) {
	strongest := codec.LevelAppended
	if p.log != nil && p.topic.Settings().Sync != codec.SyncOS {
		strongest = codec.LevelDurable
	}
	switch asked {
	case codec.LevelNone, codec.LevelAppended:
		return asked, nil
	case codec.LevelDefault:
		if p.log != nil && p.core.visible == whenDurable {
			return codec.LevelDurable, nil
		}
		return codec.LevelAppended, nil
	case codec.LevelDurable:
		if strongest == codec.LevelDurable {
			return asked, nil
		}
		if p.log != nil {
			return 0, codec.Errorf(codec.CodeUnsupportedLevel, "topic %s has sync=os: it confirms when appended, never durable", p.topic.name)
		}
		return 0, codec.Errorf(codec.CodeUnsupportedLevel, "topic %s is stored in memory (%s): it confirms when appended, never durable",
			p.topic.name, p.topic.Settings().Storage)
	}
	return 0, codec.Errorf(codec.CodeInvalidSetting, "confirm level %d is unknown", asked)
}

// Close removes the publisher. Batches of it that wait for room are refused: a client that connects again and again while the
// ring is blocked would otherwise leave a window of them behind each time. The others go their way. Results still come.
func (pub *Publisher) Close() {
	p := pub.part
	p.mu.Lock()
	p.core.publishers--
	p.core.abandon(pub)
	p.goOn()
	p.leave()
}

// A Published is a batch on its way into a partition.
type Published struct {
	Number uint64      // of the batch in its epoch
	Batch  codec.Batch // what codec.NextBatch returned
	Slab   *codec.Slab // one reference, which passes to the partition
	Err    error       // set where the batch could not even be cut out of its frame: it is refused with this
}

// Publish takes the batches of one frame in order. The results come through the publisher's sink, also from within this
// call. The partition copies the slice.
func (p *Partition) Publish(pub *Publisher, epoch uint32, batches []Published, nowMillis int64) {
	bytes := 0
	for i := range batches {
		bytes += len(batches[i].Batch)
	}
	inline := bytes <= inlineBytes && !p.busy.Load()
	var ins []incoming
	var buf [4]incoming
	if inline {
		ins = buf[:0]
		for i := range batches {
			ins = append(ins, p.incoming(pub, epoch, &batches[i]))
			check(&ins[i], int(p.maxBatch.Load()))
		}
	}
	p.enter(nowMillis)
	if inline && !p.busy.Load() {
		for i := range ins {
			p.core.publish(ins[i])
		}
		p.store()
		p.leave()
		return
	}
	if inline { // the writer has started meanwhile: queue behind it
		p.queue = append(p.queue, ins...)
	} else {
		for i := range batches {
			p.queue = append(p.queue, p.incoming(pub, epoch, &batches[i]))
		}
	}
	start := !p.busy.Load()
	p.busy.Store(true)
	p.mu.Unlock()
	if start {
		go p.run()
	}
}

func (p *Partition) incoming(pub *Publisher, epoch uint32, b *Published) incoming {
	return incoming{pub: pub, epoch: epoch, number: b.Number, batch: b.Batch, slab: b.Slab, err: b.Err, tested: b.Err != nil}
}

func check(in *incoming, maxBatch int) {
	if !in.tested {
		in.tested = true
		in.err = codec.CheckBatch(in.batch, maxBatch)
	}
}

// run is the partition's writer. Publish starts it when there is work and no writer; it ends when there is none. While it
// runs nobody publishes inline, so batches keep the order in which they came.
func (p *Partition) run() {
	for {
		p.mu.Lock()
		work := p.queue
		if len(work) == 0 {
			p.busy.Store(false)
			p.mu.Unlock()
			return
		}
		p.queue = p.spare[:0]
		p.mu.Unlock()

		maxBatch := int(p.maxBatch.Load())
		for i := range work {
			check(&work[i], maxBatch)
		}

		p.enter(time.Now().UnixMilli())
		for i := range work {
			p.core.publish(work[i])
			work[i] = incoming{}
		}
		p.spare = work
		if cap(work) > 1024 {
			p.spare = nil // a burst is over: do not keep its memory
		}
		p.store()
		p.leave()
	}
}

// enter makes the caller the partition's owner, until leave.
func (p *Partition) enter(nowMillis int64) {
	p.mu.Lock()
	p.core.now = max(p.core.now, nowMillis) // a wall clock that steps back does not turn time back here
	p.core.short = p.topic.memory.state()
	if p.log != nil {
		p.core.full = p.files.full.Load()
	}
}

// goOn appends what was pending, where a step has made room. Called with mu held.
func (p *Partition) goOn() {
	if p.core.pending.len() > 0 {
		p.core.retry()
		p.store()
	}
}

// store hands what was appended to the store. A ring is complete at once. Called with mu held.
func (p *Partition) store() {
	c := &p.core
	if c.sent == c.next {
		return
	}
	if p.log == nil {
		c.sent = c.next
		c.completed(c.next, c.next)
		return
	}
	p.appendToLog()
}

// leave carries out the effects and releases mu. Results reach the sinks while mu is held: two goroutines that leave one
// after the other would otherwise race to the sink, and confirms would overtake each other. Flushing, which may cost a
// system call, comes after.
func (p *Partition) leave() {
	if n := p.core.ring.bytes; n != p.ringBytes.Load() {
		p.ringBytes.Store(n)
	}
	out := &p.core.out
	if len(out.reads) > 0 || out.reserve != 0 {
		p.carryOut(out)
	}
	p.noteDue()
	if len(out.results) == 0 && len(out.wake) == 0 && len(out.free) == 0 {
		p.mu.Unlock()
		return
	}
	var flushBuf [4]Sink
	flush := flushBuf[:0]
	// Wake-ups first: a consumer waits for its bytes, a producer has more to do anyway.
	for _, cur := range out.wake {
		cur.sink.Wake(cur)
		flush = addSink(flush, cur.sink)
	}
	for i := 0; i < len(out.results); {
		// Results for one sink go together: nearly always all of them.
		sink := out.results[i].Publisher.sink
		j := i + 1
		for j < len(out.results) && out.results[j].Publisher.sink == sink {
			j++
		}
		sink.Confirmed(out.results[i:j])
		flush = addSink(flush, sink)
		i = j
	}
	for _, s := range out.free {
		s.Release()
	}
	clear(out.results)
	clear(out.wake)
	clear(out.free)
	out.results, out.wake, out.free = shrink(out.results), shrink(out.wake), shrink(out.free)
	p.mu.Unlock()
	for _, sink := range flush {
		sink.Flush()
	}
}

func addSink(list []Sink, s Sink) []Sink {
	for _, v := range list {
		if v == s {
			return list
		}
	}
	return append(list, s)
}

// shrink empties a slice for reuse and drops the memory of a rare large one.
func shrink[T any](s []T) []T {
	if cap(s) > 4096 {
		return nil
	}
	return s[:0]
}

// Attach adds a cursor for a subscription and returns the partition's bounds and the offset at which delivery begins. A
// non-empty group makes it a member of that group; then from and value count only if the group is new here.
func (p *Partition) Attach(cur *Cursor, sink Sink, group string, from codec.From, value uint64, nowMillis int64) (start, high, begin codec.Offset, err error) {
	p.enter(nowMillis)
	defer p.leave()
	c := &p.core
	if c.deleted {
		return 0, 0, 0, codec.Errorf(codec.CodeTopicDeleted, "topic %s was deleted", p.topic.name)
	}
	switch from {
	case codec.FromEarliest:
		begin = c.start
	case codec.FromLatest:
		begin = c.high
	case codec.FromOffset:
		begin = codec.Offset(value)
		if value > uint64(c.high) || cur.Exact && begin < c.start {
			return c.start, c.high, 0, p.outOfRange(value)
		}
	case codec.FromTime:
		return 0, 0, 0, codec.Errorf(codec.CodeInvalidSetting, "a time is looked up first, by Since")
	default:
		return 0, 0, 0, codec.Errorf(codec.CodeInvalidSetting, "start %d is unknown", from)
	}
	if c.settings.Storage == codec.StorageDirect {
		begin = c.high // it keeps nothing: what is in the ring is on its way to others
	}
	cur.part, cur.sink = p, sink
	if group == "" {
		c.attach(cur, begin)
	} else if begin, err = c.join(cur, group, begin); err != nil {
		return 0, 0, 0, err
	}
	return c.start, c.high, begin, nil
}

// outOfRange is the error for an offset that is not kept. Called with mu held.
func (p *Partition) outOfRange(offset uint64) error {
	c := &p.core
	e := codec.Errorf(codec.CodeOffsetOutOfRange, "offset %d of topic %s partition %d is not kept: it keeps %d to %d",
		offset, p.topic.name, p.index, c.start, c.high)
	e.Range = codec.Range{Start: c.start, Next: c.high}
	return e
}

// noteDue tells the registry when time next brings something about. Called with mu held.
func (p *Partition) noteDue() {
	due := p.core.dueMillis()
	if due == p.dueMillis.Load() {
		return
	}
	p.dueMillis.Store(due)
	if due != 0 && !p.timed {
		p.timed = true
		p.topic.timed.add(p)
	}
}

// noteDue does for all partitions what theirs does: those in files have something to do from the beginning.
func (t *Topic) noteDue() {
	for _, p := range t.Partitions() {
		p.mu.Lock()
		p.noteDue()
		p.mu.Unlock()
	}
}

// untimed takes the partition off the list of those that are to be ticked, if it may be.
func (p *Partition) untimed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timed = p.core.dueMillis() != 0
	return !p.timed
}

// Tick, called twice a second or so, cuts off consumers that have held up a full ring without progress since stalledSinceMillis,
// lets go what was kept for groups that nobody has come back to and what retention no longer keeps, and tries again what the disk
// has failed at.
func (p *Partition) Tick(stalledSinceMillis, nowMillis int64) {
	p.enter(nowMillis)
	if p.log != nil {
		p.tickLog()
	}
	p.core.tick(stalledSinceMillis)
	p.goOn() // also when nobody was cut: a group's grace may be over
	p.leave()
}

// Purge drops the records that can be read now, and returns how many. Where they are in files it waits for the disk.
func (p *Partition) Purge(nowMillis int64) (uint64, error) {
	if p.log != nil {
		return p.purgeLog(nowMillis)
	}
	p.enter(nowMillis)
	n := p.core.purge()
	p.goOn()
	p.leave()
	return n, nil
}

// remove ends the partition.
func (p *Partition) remove(nowMillis int64) {
	p.enter(nowMillis)
	p.core.remove()
	p.leave()
}

// alter puts settings in force.
func (p *Partition) alter(s codec.TopicSettings, nowMillis int64) {
	if p.log != nil {
		p.log.SetRetention(retention(s))
		p.log.Retain()
	}
	p.enter(nowMillis)
	p.core.settings = s
	p.maxBatch.Store(int64(s.MaxBatchBytes))
	p.goOn()
	p.leave()
}

// Info returns the partition's state.
func (p *Partition) Info() codec.PartitionInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.core
	info := codec.PartitionInfo{
		Start: c.start, High: c.high, Next: c.next, Bytes: uint64(c.ring.bytes), DroppedUnread: c.counts.dropped,
		Subscriptions: uint32(len(c.cursors)), Publishers: uint32(c.publishers),
		RecordsIn: c.counts.recordsIn, BytesIn: c.counts.bytesIn, RecordsOut: c.counts.recordsOut, BytesOut: c.counts.bytesOut,
		QueueSize: c.queueSize(),
	}
	for _, g := range c.groups {
		info.Subscriptions += uint32(len(g.members))
	}
	if p.log != nil {
		p.logInfo(&info)
	}
	return info
}

func codeOf(err error) codec.Code {
	var e *codec.WireError
	if errors.As(err, &e) {
		return e.Code
	}
	return codec.CodeInternal
}
