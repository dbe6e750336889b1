package loadgen

import (
	"encoding/binary"
	"iter"
	"math"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// A Receiver counts the messages of one partition, run by run: what an earlier run left in the ring is not mixed with the
// run that is measured. A run is complete here when received and gap reach what is wanted.
//
// Only records that were dropped unread make a gap. A hole in the sequence is explained first by the gap that the broker
// told in front of it, then, for the first message of a run, by records that lie before the start of the subscription;
// what is left is missing, and lost if it never comes.
//
// A member of a group sees holes wherever others got their share, so they are no loss, and sees batches again that a member
// left behind; only the order of what comes is checked.
type Receiver struct {
	partition int
	want      int64
	m         *Measurement

	runs     map[RunID]*run
	cur      *run // the run of the last message
	others   int64
	unseen   int64 // records before the start of the subscription that are not in gap
	gap      int64 // dropped unread, told, not yet explained by a hole
	before   *run  // the run in front of that gap
	received atomic.Int64
	dropped  atomic.Int64 // records that the broker told it were dropped

	// of a member of a group
	begin, high codec.Offset // where it began, and behind the furthest batch that has come
	kept        int64        // records from the first kept one to begin, when it began
	told        int64        // dropped, told in front of the batch at hand
	again       bool         // the batch at hand was left behind by another member
}

// maxRuns bounds the runs that one receiver tells apart. Past that the one that was silent longest is given up, and its
// messages count as other runs'.
const maxRuns = 16

// run is one run of a producer as one partition saw it.
type run struct {
	id   RunID
	want uint64

	next       uint64 // the sequence expected
	received   int64  // duplicates not counted
	bytes      int64  // of values, duplicates not counted
	duplicate  int64
	outOfOrder int64
	gap        int64
	skipped    int64 // sent before the start of the subscription
	missing    missing
	again      int64 // left behind by other members of the group
	counted    int64 // received and gap, as the measurement knows them; in a group

	fromStart       bool  // message 0 was received
	firstSentNS     int64 // of the first message received
	firstReceivedNS int64
	lastReceivedNS  int64
	latency         *hdrhistogram.Histogram // ns; nil for messages that are not verified
	done            bool
}

// Latencies are recorded from 1 ns to 1 h with an error of 0.1%. More counts as an hour.
const maxLatencyNS = int64(time.Hour)

// Received is how many messages of the run last seen have come. It may be called from any goroutine.
func (r *Receiver) Received() int64 { return r.received.Load() }

// lateLimit is how long a run whose last message has come waits for messages that are missing before it.
const lateLimit = time.Second

// Run receives until the measurement is over, stop says so after a batch, the batches end, or one of them is an error, which
// it returns.
func (r *Receiver) Run(batches iter.Seq2[client.Batch, error], stop func(client.Batch) bool) error {
	var timer *time.Timer
	for b, err := range batches {
		if err != nil {
			return err
		}
		if err := r.add(b, time.Now().UnixNano()); err != nil {
			return err
		}
		if r.m.Over() || stop(b) {
			break
		}
		if timer == nil && r.cur != nil && r.cur.incomplete() {
			id := r.cur.id
			timer = time.AfterFunc(lateLimit, func() { r.m.finish(r.partition, id) })
			defer timer.Stop()
		}
	}
	return nil
}

// incomplete reports whether the last message has come and others are missing.
func (t *run) incomplete() bool {
	return !t.done && t.id != 0 && t.next >= t.want && t.skipped == 0
}

// add counts the records of a batch that arrived at now.
func (r *Receiver) add(b client.Batch, now int64) error {
	if b.Gap != nil && b.Gap.Reason == codec.GapDropped {
		r.dropped.Add(int64(b.Gap.Next - b.Gap.From))
		if r.gap == 0 {
			r.before = r.cur
		}
		if r.m.group != "" {
			r.told += int64(b.Gap.Next - b.Gap.From)
		} else {
			r.gap += int64(b.Gap.Next - b.Gap.From)
		}
	}
	if b.Batch == nil {
		return nil
	}
	rs, err := b.Open()
	if err != nil {
		return err
	}
	if r.m.group != "" {
		r.again = b.BaseOffset() < r.high
		r.high = max(r.high, b.NextOffset())
	}
	for {
		if r.gap == 0 && r.told == 0 && !r.again && r.cur != nil && r.cur.received > 0 {
			if !r.cur.inOrder(&rs, now) {
				break
			}
		} else if !rs.Next() {
			break
		}
		if r.m.group != "" {
			r.share(rs.Record.Value, rs.Record.Offset, now)
		} else {
			r.one(rs.Record.Value, now)
		}
	}
	if r.cur != nil {
		r.settle(r.cur)
		r.received.Store(r.cur.received)
	}
	return rs.Err()
}

// inOrder counts messages of the run as long as each is the next, and the run wants it. It returns true with the first
// record that is not so in rs, not counted, and false at the end of the records.
func (t *run) inOrder(rs *codec.Records, now int64) bool {
	id, next, want := t.id, t.next, t.want
	if id == 0 {
		return t.unverified(rs, now)
	}
	var bytes int64
	var sent, same uint64 // same messages have been sent at sent
	first := next
	other := false
	for rs.Next() {
		v := rs.Record.Value
		if len(v) < HeaderBytes || RunID(binary.BigEndian.Uint64(v[messageRun:])) != id ||
			binary.BigEndian.Uint64(v[messageSequence:]) != next || next >= want {
			other = true
			break
		}
		next++
		bytes += int64(len(v))
		if s := binary.BigEndian.Uint64(v[messageSent:]); s != sent {
			t.arrived(int64(sent), now, int64(same))
			sent, same = s, 0
		}
		same++
	}
	if next != first {
		t.arrived(int64(sent), now, int64(same))
		t.next = next
		t.received += int64(next - first)
		t.bytes += bytes
		t.lastReceivedNS = now
	}
	return other
}

// unverified is inOrder for messages that are too short to be verified.
func (t *run) unverified(rs *codec.Records, now int64) bool {
	for rs.Next() {
		v := rs.Record.Value
		if len(v) >= HeaderBytes || t.next >= t.want {
			return true
		}
		t.next++
		t.received++
		t.bytes += int64(len(v))
		t.lastReceivedNS = now
	}
	return false
}

// arrived records the latency of n messages sent at sent.
func (t *run) arrived(sent, now, n int64) {
	if n > 0 {
		_ = t.latency.RecordValues(min(max(now-sent, 1), maxLatencyNS), n) // in range by construction
	}
}

// turn makes the run of a message the current one.
func (r *Receiver) turn(v []byte) *run {
	id := runIn(v)
	if id != 0 && r.runs[id] == nil && !intact(v) {
		id = 0
	}
	if r.cur == nil || r.cur.id != id {
		if r.cur != nil {
			r.settle(r.cur)
		}
		r.cur = r.find(id)
	}
	return r.cur
}

// share counts a message that came to this member of a group. Those of a run come in the order of their sequence, with
// holes, but for what another member has left behind.
func (r *Receiver) share(v []byte, offset codec.Offset, now int64) {
	t := r.turn(v)
	first := t.received == 0
	seq, sent := t.next, int64(0)
	if t.id != 0 {
		seq = binary.BigEndian.Uint64(v[messageSequence:])
		sent = int64(binary.BigEndian.Uint64(v[messageSent:]))
		t.arrived(sent, now, 1)
	}
	if first {
		t.firstSentNS, t.firstReceivedNS = sent, now
		t.fromStart = t.id != 0 && seq == 0
	}
	t.gap += r.told
	r.told = 0
	if r.gap > 0 {
		if offset == r.begin {
			// Nobody in the group got anything before. What the run had there and is not kept any more was dropped unread.
			if t.id != 0 {
				r.gap = min(r.gap, max(int64(seq)-r.kept, 0))
			}
			t.gap += r.gap
		}
		r.gap = 0
	}
	switch {
	case r.again:
		t.again++
	case seq < t.next:
		t.outOfOrder++
	default:
		t.next = seq + 1
	}
	t.received++
	t.bytes += int64(len(v))
	t.lastReceivedNS = now
}

// one counts a message of any run, in any order.
func (r *Receiver) one(v []byte, now int64) {
	t := r.turn(v)
	id := t.id
	if t.done {
		r.others++ // behind the number that is wanted
		return
	}
	seq, sent := t.next, int64(0)
	if id != 0 {
		seq = binary.BigEndian.Uint64(v[messageSequence:])
		sent = int64(binary.BigEndian.Uint64(v[messageSent:]))
	}
	r.explainGap(t, seq)
	if id == 0 {
		seq = t.next // behind the gap
	}
	if seq >= t.want {
		r.others++
		return
	}
	first := t.received == 0
	switch {
	case seq >= t.next:
		if hole := int64(seq - t.next); hole > 0 && first {
			t.skipped = min(hole, r.unseen)
			r.unseen -= t.skipped
			t.next += uint64(t.skipped)
			if t.skipped > 0 {
				r.m.skip(r.partition, id, t.skipped)
			}
		}
		if seq > t.next {
			t.missing.add(t.next, seq)
		}
		t.next = seq + 1
	case t.missing.remove(seq):
		t.outOfOrder++
	default:
		t.duplicate++
		return
	}
	t.received++
	t.bytes += int64(len(v))
	t.lastReceivedNS = now
	if id != 0 {
		t.arrived(sent, now, 1)
	}
	if first {
		t.firstSentNS, t.firstReceivedNS = sent, now
		t.fromStart = t.id != 0 && seq == 0
	}
	r.settle(t)
}

// explainGap attributes records that were dropped unread: to the hole in front of message seq of run t, and if that leaves
// enough, to the whole rest of the run that came before the gap.
func (r *Receiver) explainGap(t *run, seq uint64) {
	if r.gap == 0 {
		return
	}
	gap, before := r.gap, r.before
	r.gap, r.before = 0, nil
	end := min(seq, t.want)
	if t.id == 0 {
		end = t.want // without sequence numbers the gap is all there is
	}
	hole := int64(0)
	if end > t.next {
		hole = min(gap, int64(end-t.next))
	}
	t.gap += hole
	t.next += uint64(hole)
	gap -= hole
	if before != nil && before != t && !before.done && before.id != 0 {
		if rest := int64(before.want - before.next); rest > 0 && rest <= gap {
			before.gap += rest
			before.next = before.want
			r.settle(before)
		}
	}
}

// settle tells when a run is complete.
func (r *Receiver) settle(t *run) {
	if r.m.group != "" {
		r.m.count(t)
		return
	}
	if !t.done && t.received+t.gap >= r.want {
		t.done = true
		r.m.finish(r.partition, t.id)
	}
}

// find returns the run with the id, a new one if there is none.
func (r *Receiver) find(id RunID) *run {
	if t := r.runs[id]; t != nil {
		return t
	}
	if len(r.runs) >= maxRuns {
		var oldest *run
		for _, t := range r.runs {
			if !t.done && t != r.before && (oldest == nil || t.lastReceivedNS < oldest.lastReceivedNS) {
				oldest = t
			}
		}
		if oldest != nil {
			r.others += oldest.received
			delete(r.runs, oldest.id)
		}
	}
	t := &run{id: id, want: uint64(r.want)}
	if r.m.group != "" {
		t.want = math.MaxUint64 // -m bounds what comes from all partitions together
	}
	if id != 0 {
		t.latency = hdrhistogram.New(1, maxLatencyNS, 3)
	}
	r.runs[id] = t
	return t
}
