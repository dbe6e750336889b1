package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

const (
	// The pipe of a producer is nearly idle, so that waiting for a batch to fill would only add latency, while
	// fewer than idleBatches with less than idleBytes in all are unconfirmed, over all its partitions: 64 KiB are some
	// 30 µs of copying for the broker. A record that waits here misses the sync that the broker is about to begin: with 4
	// batches in place of 8, p50 of a durable topic at 10,000 msg/s was 9 to 27% higher in five of six pairs of runs.
	idleBatches = 8
	idleBytes   = 64 << 10

	// holdTime bounds how long a record waits in a batch when neither a full batch nor a confirm sends it: at full
	// speed a batch fills in a tenth of it, and nobody notices it at the end of a burst.
	holdTime = time.Millisecond

	// Records that come so fast, to all partitions together, that burstBytes (or a batch, where that is less) are
	// sent in burstTime make a burst: then batches are sent when they are full or old, whether the pipe is idle or
	// not. Otherwise a broker that keeps up with the producer would get many small ones, which cost all three
	// processes more. At such a rate, 512 MB/s, a millisecond makes a batch worth waiting for. burstRecords in a
	// batch are the least from which a rate is guessed.
	burstTime    = holdTime / 2
	burstBytes   = 256 << 10
	burstRecords = 16

	// publishOverhead is what a publish frame has in front of its batch.
	publishOverhead = codec.HeaderBytes + codec.PublishHeaderBytes
	// minBatchBytes leaves room for a few records.
	minBatchBytes = 1 << 10
	// firstBufferBytes is what a batch's buffer begins with; it grows to the batch size as records need it.
	firstBufferBytes = 4 << 10
	// maxFreeBuffers bounds the buffers kept for reuse: 16 MiB at the default batch size.
	maxFreeBuffers = 64
	// maxSpareDones bounds the lists of callbacks kept for reuse: as many as full batches of the default size fit
	// the default window, and some.
	maxSpareDones = 24
)

// A done says whom to tell about the record at index in its batch.
type done struct {
	index int
	call  func(Receipt, error)
	wait  *waiter
}

func (d *done) tell(r Receipt, err error) {
	if d.wait != nil {
		d.wait.receipt, d.wait.err = r, err
		d.wait.ch <- struct{}{}
		return
	}
	d.call(r, err)
}

// A waiter is a goroutine that waits: for its record's outcome, or for something in a partition to change.
type waiter struct {
	ch      chan struct{} // of one; gets exactly one element
	receipt Receipt
	err     error
}

func (p *Producer) newWaiter() *waiter {
	if wt, ok := p.waiters.Get().(*waiter); ok {
		return wt
	}
	return &waiter{ch: make(chan struct{}, 1)}
}

// freeWaiter gives back a waiter whose channel is empty and which nobody will tell anything any more.
func (p *Producer) freeWaiter(wt *waiter) {
	wt.receipt, wt.err = Receipt{}, nil
	p.waiters.Put(wt)
}

// A sentBatch waits for its confirm.
type sentBatch struct {
	bytes, records int
	dones          []done
	code           codec.Code // the result, once it is there
	base           codec.Offset

	// Of an idempotent producer.
	buf    []byte // the frame, kept to be sent again
	seq    int32  // of its first record
	resent bool   // it was sent on an earlier connection, and its outcome there is unknown
}

// A partition batches, sends and accounts for one partition's records.
//
// Locks. mu guards the batch that is being filled, and every publish takes it. acct guards what is known about the
// batches that were sent; publishers take it when a batch is begun, sent or stuck, the reader for every confirm. So
// the reader does not get into the way of a publisher at full speed. mu is taken before acct; both are held for
// short, computing stretches only. Nobody holds one while writing to the socket: busy marks that a goroutine is
// doing that for this partition, which also keeps the batches in order. The reader goroutine never waits for busy,
// so confirms are read while every publisher is stuck in a full socket. What the reader finds to be written (a
// batch that became due, a handle to be reopened) the keeper writes.
//
//	publisher                    reader                            keeper
//	seal, busy, unlock           acct: pop, room in the window     waits
//	write (blocks) …             holds and due or idle, but busy
//	lock: not busy, wake, kick ────────────────────────────────────► sends what is due
//
// A connection that is lost, or about to be closed by the broker, shuts all of its partitions: nothing is sent, and
// publishers wait once the open batch is full. The keeper makes a new connection and installs it in each. What was on its
// way is reported as lost; or, for an idempotent producer, stays in sent, where it is counted by resend until the keeper
// has sent it again.
//
//	sent:  | kept: answered draining | on their way | resend: not sent on this connection |
//
// No wake-up is lost: that records are left in the open batch (holds) is noted under acct together with the reason
// why they are not sent, and whoever removes that reason looks at holds under acct as well.
type partition struct {
	p      *Producer
	number int
	handle uint32

	mu sync.Mutex

	// Guarded by mu. The open batch: records are encoded into builder, behind room for the frame's header.
	builder  codec.BatchBuilder
	buf      []byte        // what builder began with
	open     bool          // builder has a buffer; it may still be without records
	limit    int           // of the open batch, bytes
	stamp    int64         // of records without a time, ms
	begun    time.Duration // since Producer.base
	dones    []done
	quick    bool  // a record may just be added: the batch has records and nothing needed to be sent when the last one came
	stop     error // no new records
	maxBatch int   // of the topic, and of what a frame may carry
	batch    int   // size at which a batch is full
	inAging  bool  // in the keeper's list

	acct sync.Mutex

	// Guarded by acct.
	link        *link // nil while the connection is lost
	window      int
	level       codec.Level
	epoch       uint32
	sent        []sentBatch // batches on their way, a ring of power-of-two size
	head, count int
	unconfirmed int    // bytes of sent
	inPipe      load   // what of this partition the producer's pipe counts
	nextSend    uint64 // number of the next batch in this epoch
	nextConfirm uint64

	holds     bool        // the open batch has records that were left there
	due       bool        // the open batch is to be sent as soon as possible
	busy      bool        // a goroutine is writing a batch
	shut      bool        // nothing is sent until the handle is open again
	refused   bool        // a batch was refused, and so is all behind it; the handle is to be reopened
	reopening bool        // until the reply is there
	needOpen  bool        // the keeper is to ask for it
	inDue     bool        // in the keeper's list
	err       error       // the partition is dead
	dead      atomic.Bool // the same, for who has no lock

	// Batches since the producer was made: sent, of those the ones whose write has returned (and at codec.LevelNone their
	// callbacks), and completely dealt with otherwise. A confirm may be there before the write returns.
	sealed, written, reported uint64

	// Of an idempotent producer: see idempotent.go.
	most         int // batches that may be in sent
	keeps        bool
	identity     identity
	seq          int32 // of the next record
	renew        bool  // another identity is needed before anything is sent
	kept, resend int
	writing      *byte // the first of the frame that is being written
	orphan       bool  // that frame has left sent: whoever wrote it releases it

	waiting    []*waiter
	senders    int // goroutines that wait, or were woken and do not run yet, and that will look whether to send
	spareDones [][]done
}

// lock takes both locks.
func (w *partition) lock() {
	w.mu.Lock()
	w.acct.Lock()
}

func (w *partition) unlock() {
	w.acct.Unlock()
	w.mu.Unlock()
}

func newPartition(p *Producer, number int, handle uint32) *partition {
	w := &partition{p: p, number: number, handle: handle, sent: make([]sentBatch, 16), shut: true, most: math.MaxInt}
	if p.cfg.idempotent {
		w.keeps, w.most = true, maxKept
	}
	return w
}

// opened takes what the broker allows, from the reply to an open. Both locks are held, or nobody knows the
// partition yet.
func (w *partition) opened(l *link, m codec.OpenReply) error {
	maxBatch := int(min(m.MaxBatchBytes, math.MaxInt32))
	if maxBatch == 0 {
		maxBatch = codec.DefaultMaxBatchBytes
	}
	maxBatch = min(maxBatch, l.frames.max-publishOverhead)
	if maxBatch < minBatchBytes || m.WindowBytes == 0 {
		return codec.Errorf(codec.CodeMalformedFrame,
			"the broker allows batches of %d bytes and a window of %d", m.MaxBatchBytes, m.WindowBytes)
	}
	w.maxBatch, w.batch = maxBatch, min(maxBatch, w.p.cfg.batchBytes)
	w.window, w.level = int(m.WindowBytes), m.Level
	return nil
}

func (w *partition) wrap(err error) error {
	return &PartitionError{Topic: w.p.topic, Partition: w.number, Err: err}
}

// add puts a record into the open batch, sends what is to be sent, and waits, until ctx ends, while there is no
// room. mu is held on entry and not on return.
func (w *partition) add(ctx context.Context, m *Message, d done) error {
	defer w.mu.Unlock()
	for {
		if w.stop != nil {
			return w.stop
		}
		if !w.open {
			w.begin(w.batch)
		}
		if w.encode(m) {
			break
		}
		if w.builder.Count() == 0 {
			// Larger than a whole batch: it gets one of its own. recordBytes rounds up; only the encoder knows exactly.
			need := min(codec.BatchHeaderBytes+recordBytes(m), w.maxBatch)
			if w.limit >= need {
				return w.wrap(codec.Errorf(codec.CodeBatchTooLarge,
					"a record with %d bytes of key and value does not fit the topic's largest batch of %d bytes",
					len(m.Key)+len(m.Value), w.maxBatch))
			}
			w.release(w.buf)
			w.begin(need)
			continue
		}
		if err := w.makeRoom(ctx); err != nil {
			return fmt.Errorf("publish to topic %s partition %d: no room: %w", w.p.topic, w.number, w.p.explain(err))
		}
	}
	if d.call != nil || d.wait != nil {
		d.index = w.builder.Count() - 1
		w.dones = append(w.dones, d)
	}
	w.settle(w.fullFor(len(m.Value) + len(m.Key)))
	return nil
}

// makeRoom sends the open batch, which is full, or waits for something to change. mu is held on entry and on return.
func (w *partition) makeRoom(ctx context.Context) error {
	w.acct.Lock()
	defer w.acct.Unlock()
	if w.sendable() {
		w.send()
		return nil
	}
	w.p.passTurn(w) // others need not wait here too
	w.senders++
	err := w.wait(ctx)
	w.senders--
	if err != nil || w.stop != nil {
		w.kick()
	}
	return err
}

// begin opens a batch of at most limit bytes. mu is held.
func (w *partition) begin(limit int) {
	buf := w.p.free.take()
	now := time.Now()
	w.limit, w.open = limit, true
	w.stamp = now.UnixMilli()
	w.begun = now.Sub(w.p.base)
	w.buf = buf
	w.builder.Reset(buf[:publishOverhead], limit)
	w.p.pipe.begun(w.begun, min(w.batch, burstBytes))
}

func (w *partition) encode(m *Message) bool {
	stamp := w.stamp
	if !m.Timestamp.IsZero() {
		stamp = m.Timestamp.UnixMilli()
	}
	if m.Key == nil && len(m.Headers) == 0 && m.Value != nil {
		return w.builder.AddValue(stamp, m.Value)
	}
	return w.builder.Add(stamp, m.Key, m.Value, m.Headers)
}

// recordBytes is the most that a record can take in a batch.
func recordBytes(m *Message) int {
	const varint = 10 // the longest
	n := 6*varint + 1 + len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += 2*varint + len(h.Key) + len(h.Value)
	}
	return n
}

// fullFor reports whether another record like the last, of n bytes, would not fit: then waiting for it is waste. mu
// is held.
func (w *partition) fullFor(n int) bool { return w.builder.Size()+n+16 > w.limit }

// idle reports whether the pipe is nearly idle and this is no burst.
func (w *partition) idle() bool { return w.p.cfg.linger == 0 && w.p.pipe.idle() }

// writable reports whether a batch may be written now. acct is held.
func (w *partition) writable() bool {
	return !w.busy && !w.shut && w.err == nil && w.unconfirmed < w.window
}

// sendable reports whether the open batch may be written now. acct is held.
func (w *partition) sendable() bool { return w.writable() && w.resend == 0 && w.count < w.most }

// settle decides what happens with the open batch, which has just got a record. mu is held on entry and on return.
func (w *partition) settle(full bool) {
	w.acct.Lock()
	w.due = w.due || full // if not now, then as soon as the window or the socket allows
	if (w.due || w.idle()) && w.sendable() {
		w.send()
	} else {
		w.kick()
	}
	w.acct.Unlock()
}

// kick sees to it that the records in the open batch will be sent: now by the keeper, later by whoever removes what
// is in the way, or at the batch's deadline. It is called after every change to the batch, with both locks held,
// and never blocks.
func (w *partition) kick() {
	w.account()
	w.holds = w.open && w.builder.Count() > 0 && w.err == nil
	w.quick = w.holds && w.stop == nil && !w.due && !w.idle()
	if w.holds && !w.due && !w.inAging {
		w.inAging = true
		w.p.keep.pushAging(w)
	}
	w.nudge() // behind pushAging: the pipe may turn idle meanwhile, by another partition's confirm
}

// nudge makes the keeper send the open batch if that is wanted and possible. It is called after every change to
// what is in the way, behind wake, with acct held. Where a publisher has been woken to send, the keeper is left
// alone: every sender ends with send or kick.
func (w *partition) nudge() {
	w.account()
	if w.inDue {
		return
	}
	if w.resend > 0 && w.writable() || w.senders == 0 && w.holds && (w.due || w.idle()) && w.sendable() {
		w.inDue = true
		w.p.keep.pushDue(w)
	}
}

// send seals the open batch and writes it. Both locks are held on entry and on return, but not in between; sendable
// must hold.
func (w *partition) send() {
	records, size := w.builder.Count(), w.builder.Size()
	meta := codec.NoProducer
	if w.keeps {
		meta = w.identity.of(w.seq)
	}
	buf := w.builder.Finish(meta)
	m := codec.Publish{Epoch: w.epoch, First: w.nextSend, Count: 1}
	w.p.pipe.sent(size, records)
	w.p.passTurn(w)
	w.nextSend++
	w.sealed++
	w.unconfirmed += size
	w.open, w.quick, w.holds, w.due = false, false, false, false
	w.busy = true
	s := sentBatch{bytes: size, records: records, dones: w.dones}
	w.dones = w.takeDones()
	var written []done
	if w.level == codec.LevelNone {
		written, s.dones = s.dones, nil
	}
	compress := w.p.cfg.compression != codec.CompressionNone
	if w.keeps {
		s.seq = w.seq
		w.seq = nextSequence(w.seq, records)
		if !compress {
			s.buf, w.writing = buf, &buf[0]
		}
	}
	w.pushSent(s)
	w.account()
	l := w.link
	w.unlock()

	if compress {
		if packed := w.compress(buf, meta); packed != nil {
			w.release(buf)
			buf = packed
		}
		w.packed(buf, size-(len(buf)-publishOverhead))
	}
	codec.AppendPublish(buf[:0], w.handle, m, len(buf)-publishOverhead)
	err := l.write(buf) // its error reaches the records of other levels through the reader
	for i := range written {
		written[i].tell(Receipt{Partition: w.number, Offset: UnknownOffset}, err)
	}
	if !w.keeps {
		w.release(buf)
	}

	w.lock()
	w.giveDones(written)
	w.wrote(buf)
	w.written++
	w.wake()
	w.kick()
}

// wrote ends the writing of a frame. Both locks are held.
func (w *partition) wrote(buf []byte) {
	if w.orphan {
		w.release(buf)
	}
	w.busy, w.writing, w.orphan = false, nil, false
}

// packed completes the account of the batch pushed last, which is not written yet, after it was compressed to buf, by saved
// bytes smaller.
func (w *partition) packed(buf []byte, saved int) {
	w.acct.Lock()
	if w.count > 0 { // else it has been reported as lost meanwhile
		s := &w.sent[(w.head+w.count-1)&(len(w.sent)-1)]
		s.bytes -= saved
		if w.resend == 0 { // else the connection was lost meanwhile
			w.unconfirmed -= saved
			w.account()
		}
		if w.keeps {
			s.buf, w.writing = buf, &buf[0]
		}
	} else if w.keeps {
		w.orphan = true
	}
	w.acct.Unlock()
}

// release takes back the buffer of a batch that was written or never used.
func (w *partition) release(buf []byte) {
	if cap(buf) <= publishOverhead+w.p.cfg.batchBytes*2 { // larger ones were for a single large record
		w.p.free.give(buf)
	}
}

func (w *partition) pushSent(s sentBatch) {
	if w.count == len(w.sent) {
		grown := make([]sentBatch, 2*len(w.sent))
		for i := range w.count {
			grown[i] = w.sent[(w.head+i)&(len(w.sent)-1)]
		}
		w.sent, w.head = grown, 0
	}
	w.sent[(w.head+w.count)&(len(w.sent)-1)] = s
	w.count++
}

func (w *partition) popSent() sentBatch {
	s := w.sent[w.head]
	w.sent[w.head] = sentBatch{}
	w.head = (w.head + 1) & (len(w.sent) - 1)
	w.count--
	if s.buf != nil {
		if &s.buf[0] == w.writing {
			w.orphan = true
		} else {
			w.release(s.buf)
		}
		s.buf = nil
	}
	return s
}

func (w *partition) takeDones() []done {
	if n := len(w.spareDones); n > 0 {
		d := w.spareDones[n-1]
		w.spareDones = w.spareDones[:n-1]
		return d
	}
	return nil
}

func (w *partition) giveDones(d []done) {
	if cap(d) > 0 && len(w.spareDones) < maxSpareDones {
		clear(d)
		w.spareDones = append(w.spareDones, d[:0])
	}
}

// wait waits for a change that wake tells of, or for ctx's end. Both locks are held on entry and on return.
func (w *partition) wait(ctx context.Context) error {
	wt := w.p.newWaiter()
	w.waiting = append(w.waiting, wt)
	w.unlock()
	var err error
	select {
	case <-wt.ch:
		w.lock()
	case <-ctx.Done():
		err = ctx.Err()
		w.lock()
		if i := slices.Index(w.waiting, wt); i >= 0 {
			w.waiting = slices.Delete(w.waiting, i, i+1)
		} else {
			<-wt.ch // woken at the same time
		}
	}
	w.p.freeWaiter(wt)
	return err
}

// wake wakes everybody that waits; each looks for itself. acct is held.
func (w *partition) wake() {
	for i, wt := range w.waiting {
		wt.ch <- struct{}{}
		w.waiting[i] = nil
	}
	w.waiting = w.waiting[:0]
}

// push sends the records that are in the open batch now, or waits until others have done so.
func (w *partition) push(ctx context.Context) error {
	w.lock()
	defer w.unlock()
	if !w.open || w.builder.Count() == 0 {
		return nil
	}
	for target := w.sealed + 1; w.sealed < target && w.err == nil; {
		if w.sendable() {
			w.send()
			return nil
		}
		w.due = true
		w.kick()
		w.senders++
		err := w.wait(ctx)
		w.senders--
		if err != nil {
			w.kick()
			return fmt.Errorf("flush topic %s partition %d: records are not sent: %w", w.p.topic, w.number, w.p.explain(err))
		}
	}
	w.kick()
	return nil
}

// drain waits until all batches that are sent now have been written and reported.
func (w *partition) drain(ctx context.Context) error {
	w.lock()
	defer w.unlock()
	for target := w.sealed; min(w.written, w.reported) < target; {
		if err := w.wait(ctx); err != nil {
			return fmt.Errorf("flush topic %s partition %d: %d batches are unconfirmed: %w",
				w.p.topic, w.number, target-min(w.written, w.reported), w.p.explain(err))
		}
	}
	return nil
}

// refuse takes no more records, for the given reason.
func (w *partition) refuse(reason error) {
	w.lock()
	if w.stop == nil {
		w.stop = reason
	}
	w.due = w.due || w.open && w.builder.Count() > 0
	w.wake()
	w.kick()
	w.unlock()
}

// confirm takes results from the broker. On the reader goroutine. An error means that the broker broke the protocol.
func (w *partition) confirm(m codec.Confirm, payload []byte) error {
	w.acct.Lock()
	if w.err != nil {
		w.acct.Unlock()
		return nil
	}
	if onWay := w.onWay(); m.Epoch != w.epoch || m.First != w.nextConfirm || int64(m.Count) > int64(onWay) {
		err := codec.Errorf(codec.CodeMalformedFrame,
			"results for %d batches from %d of epoch %d; expected from %d of epoch %d, at most %d", m.Count, m.First, m.Epoch,
			w.nextConfirm, w.epoch, onWay)
		w.acct.Unlock()
		return err
	}
	popped := w.p.popped[:0]
	report := w.p.cfg.onBatch != nil
	for i := range int(m.Count) {
		r := codec.ResultAt(payload, i)
		if w.keeps && w.keep(r.Code) {
			continue
		}
		s := w.popSent()
		s.base, s.code = r.Base, r.Code
		w.unconfirmed -= s.bytes
		if r.Code != codec.CodeNone {
			if w.keeps && !w.refused {
				w.giveBack(&s)
			}
			w.shut, w.refused = true, true
			report = true
		}
		report = report || len(s.dones) > 0
		popped = append(popped, s)
	}
	w.nextConfirm += uint64(m.Count)
	for w.refused && w.onWay() == 0 && w.resend > 0 { // what was not sent yet stands behind the refused batch, too
		s := w.popSent()
		w.resend--
		s.code = codec.CodeStaleEpoch
		popped = append(popped, s)
	}
	if report {
		w.wake()
		w.nudge()
		w.acct.Unlock()
		for i := range popped {
			s := &popped[i]
			var err error
			if s.code != codec.CodeNone {
				err = w.refusal(s)
			}
			w.report(s, err)
		}
		w.acct.Lock()
		for i := range popped {
			w.giveDones(popped[i].dones)
		}
	}
	w.reported += uint64(len(popped))
	clear(popped)
	w.p.popped = popped
	w.reopenIfDone()
	w.wake()
	w.nudge()
	w.acct.Unlock()
	return nil
}

// account tells the pipe what is on its way now. It is called after every change to that, with acct held.
func (w *partition) account() {
	now := load{w.onWay(), w.unconfirmed}
	if now != w.inPipe {
		if w.p.pipe.change(w.inPipe, now) && len(w.p.open) > 1 && w.p.cfg.linger == 0 {
			w.p.keep.poke() // what other partitions hold may go too
		}
		w.inPipe = now
	}
}

// onWay is how many batches were sent on this connection and have no result. acct is held.
func (w *partition) onWay() int { return w.count - w.kept - w.resend }

func (w *partition) refusal(s *sentBatch) error {
	return w.wrap(codec.Errorf(s.code, "the broker refused a batch of %d records", s.records))
}

// report tells everybody about a batch. No lock is held.
func (w *partition) report(s *sentBatch, err error) {
	w.p.telling.Lock() // the keeper tells, too, when it reconnects
	defer w.p.telling.Unlock()
	if err != nil {
		w.p.failed(err)
	}
	if f := w.p.cfg.onBatch; f != nil {
		f(BatchResult{Partition: w.number, Base: s.base, Records: s.records, Bytes: s.bytes, Err: err})
	}
	for i := range s.dones {
		d := &s.dones[i]
		if err != nil {
			d.tell(Receipt{}, err)
		} else {
			d.tell(Receipt{Partition: w.number, Offset: s.base + codec.Offset(d.index)}, nil)
		}
	}
}

// reopenIfDone makes the keeper reopen the handle after a refusal, once all results of the old epoch are there:
// what was sent behind the refused batch was refused too, so that nothing overtakes it. acct is held.
func (w *partition) reopenIfDone() {
	// A batch being written now belongs to the old epoch and is in sent already.
	if w.refused && w.count == 0 && !w.reopening && w.err == nil && w.p.leaving == nil {
		w.reopening, w.needOpen = true, true
		if !w.inDue {
			w.inDue = true
			w.p.keep.pushDue(w)
		}
	}
}

// reopen asks for the next epoch. On the keeper goroutine.
func (w *partition) reopen() {
	w.acct.Lock()
	epoch, l, renew := w.epoch+1, w.link, w.renew
	w.acct.Unlock()
	if l == nil {
		return // the connection was lost meanwhile
	}
	if renew {
		if err := w.takeIdentity(w.p.ended, l); err != nil {
			l.fail("read", err)
			return
		}
	}
	corr, err := l.expect(func(r reply) { w.reopened(l, epoch, r) })
	if err != nil {
		return // the link is dead; down tells everybody
	}
	// An error is the link's, and reaches everybody through the reader.
	_ = l.write(codec.AppendOpen(nil, corr, w.handle, w.request(epoch)))
}

func (w *partition) request(epoch uint32) codec.Open {
	return codec.Open{Topic: w.p.topic, Partition: uint32(w.number), Epoch: epoch, Level: w.p.cfg.level}
}

// reopened takes the reply. On the reader goroutine.
func (w *partition) reopened(l *link, epoch uint32, r reply) {
	if l.cause() != nil {
		return // down tells everybody
	}
	err := r.err
	if err != nil && Retryable(err) && !w.p.client.again.never {
		w.p.leave(err) // the broker is stopping
		return
	}
	if errors.Is(err, codec.CodeHandleInUse) && !w.p.client.again.never {
		return // the topic was made anew: the broker ends the connection, and the next one's handles are those of the new topic
	}
	w.lock()
	if err == nil {
		var m codec.OpenReply
		if m, err = codec.ParseOpenReply(r.header); err == nil {
			err = w.opened(l, m)
		}
	}
	if err != nil {
		w.unlock()
		w.fail(w.wrap(err))
		return
	}
	w.epoch, w.nextSend, w.nextConfirm = epoch, 0, 0
	w.shut, w.refused, w.reopening = w.p.leaving != nil, false, false
	w.wake()
	w.kick()
	w.unlock()
	w.p.log.Info("handle was reopened after a refused batch", "topic", w.p.topic, "partition", w.number, "epoch", epoch)
}

// leave sends nothing any more, since the connection is about to end.
// It reports whether all that is on its way was answered.
func (w *partition) leave() (idle bool) {
	w.acct.Lock()
	defer w.acct.Unlock()
	w.shut = true
	return w.onWay() == 0
}

// lost shuts the partition until another connection is installed, and reports what was on its way with err: its outcome is
// unknown. An idempotent producer keeps it. What stood behind a refused batch was refused. On the reader goroutine.
func (w *partition) lost(err error) {
	w.lock()
	if w.err != nil {
		w.unlock()
		return
	}
	refused := w.refused
	w.link, w.shut = nil, true
	w.refused, w.reopening, w.needOpen = false, false, false
	w.unconfirmed, w.kept = 0, 0
	var lost []sentBatch
	if w.keeps && !refused {
		w.resend = w.count
	} else {
		lost = w.popAll()
	}
	w.wake()
	w.kick()
	w.unlock()
	for i := range lost {
		s := &lost[i]
		if refused {
			s.code = codec.CodeStaleEpoch
			w.report(s, w.refusal(s))
		} else {
			w.report(s, err)
		}
	}
	w.acct.Lock()
	w.reported += uint64(len(lost))
	w.wake()
	w.acct.Unlock()
}

func (w *partition) popAll() (all []sentBatch) {
	for w.count > 0 {
		all = append(all, w.popSent())
	}
	w.kept, w.resend = 0, 0
	return all
}

// install goes on with a new connection, on which the handle was opened with epoch 0. On the keeper goroutine.
func (w *partition) install(l *link, m codec.OpenReply) {
	w.lock()
	if w.err != nil || !l.usable() {
		w.unlock() // the reader has told, or will tell, everybody
		return
	}
	err := w.opened(l, m)
	for i := range w.count {
		if n := w.sent[(w.head+i)&(len(w.sent)-1)].bytes; err == nil && publishOverhead+n > l.frames.max {
			err = codec.Errorf(codec.CodeBatchTooLarge,
				"a batch of %d bytes is to be sent again, and the broker takes frames of %d bytes now", n, l.frames.max)
		}
	}
	if err != nil {
		w.unlock()
		w.fail(w.wrap(err))
		return
	}
	w.link, w.shut = l, false
	w.epoch, w.nextSend, w.nextConfirm = 0, 0, 0
	w.wake()
	w.kick()
	w.unlock()
}

// fail is the end of the partition: everything on its way or waiting is reported with err. On the reader goroutine, or on
// the keeper's while there is no reader.
func (w *partition) fail(err error) {
	w.lock()
	if w.err != nil {
		w.unlock()
		return
	}
	w.err = err
	if w.stop == nil {
		w.stop = err
	}
	w.dead.Store(true)
	lost := w.popAll()
	w.unconfirmed = 0
	w.account()
	if w.open && w.builder.Count() > 0 {
		lost = append(lost, sentBatch{bytes: w.builder.Size(), records: w.builder.Count(), dones: w.dones})
		w.sealed++
		w.written++ // nobody will
		w.dones = nil
	}
	w.open, w.quick, w.holds, w.due = false, false, false, false
	target := w.sealed
	w.wake()
	w.unlock()
	for i := range lost {
		w.report(&lost[i], err)
	}
	w.p.lostPartition(err)
	w.lock()
	w.reported = target
	w.wake()
	w.unlock()
}
