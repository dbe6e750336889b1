package idempotence

import (
	"math"
	"slices"
	"time"

	"github.com/lightio/lightq/codec"
)

const (
	// Remembered is how many batches of a producer are known: as many as a Kafka client has in flight.
	Remembered = 5
	// DefaultLimit is how many producers a partition remembers: 3 MiB of memory.
	DefaultLimit = 16 << 10
	// MaxLimit keeps a snapshot below the 16 MiB that a segment has room for.
	MaxLimit = 128 << 10
	// DefaultExpiry is how long a producer is remembered after its last append.
	DefaultExpiry = 24 * time.Hour
)

// A Verdict says what to do with a batch.
type Verdict uint8

// The verdicts.
const (
	// Append: the batch is the next one of its producer, or its producer is not known, or it has none.
	Append Verdict = iota
	// Duplicate: the batch was appended before, and Check returned its base offset. Confirm it again.
	Duplicate
	// OldDuplicate: the batch was appended before, too long ago for its base offset to be known.
	OldDuplicate
	// OutOfOrder: batches before it are missing, or it is not what was sent with its sequence.
	OutOfOrder
	// InvalidEpoch: a later epoch of the producer is known; whoever sent this has been replaced.
	InvalidEpoch
)

var verdictNames = [...]string{"append", "duplicate", "old duplicate", "out of order", "invalid epoch"}

func (v Verdict) String() string { return verdictNames[v] }

// Options of a State; zero fields mean the defaults.
type Options struct {
	Limit  int // producers, at most MaxLimit
	Expiry time.Duration
}

// A State is what a partition knows of its idempotent producers.
type State struct {
	limit        int
	expiryMillis int64

	producers map[int64]*producer
	// all is the root of a ring of the producers in the order of their last appends: all.newer is the one whose is the longest ago.
	all producer
	// recent is the producer that was looked up last, nil if there is none.
	recent *producer

	// taken are the appends that may still be taken back, in order: a queue in a slice, from head on.
	taken []undo
	head  int
}

// producer is one of them. A free slot has no records.
type producer struct {
	id     int64
	millis int64 // of the last append
	slots  [Remembered]batch
	newest uint8 // the slot of the last append
	// followed is how many records in a row, up to the last, were appended in the current epoch.
	followed int64

	older, newer *producer
}

type batch struct {
	base    codec.Offset
	first   int32 // sequence of the first record
	records int32
	epoch   int16
}

// end is the sequence behind the last record.
func (b *batch) end() int32 { return advance(b.first, b.records) }

// undo is what takes an append back.
type undo struct {
	base             codec.Offset
	p                *producer
	slot             batch // what was in the slot
	millis, followed int64
	created          bool
	evicted          *producer // that made room
}

// New makes an empty state.
func New(o Options) *State {
	if o.Limit <= 0 {
		o.Limit = DefaultLimit
	}
	if o.Expiry <= 0 {
		o.Expiry = DefaultExpiry
	}
	s := &State{limit: min(o.Limit, MaxLimit), expiryMillis: max(o.Expiry.Milliseconds(), 1), producers: map[int64]*producer{}}
	s.all.older, s.all.newer = &s.all, &s.all
	return s
}

// Count is the number of producers that are known.
func (s *State) Count() int { return len(s.producers) }

// advance adds to a sequence number: behind 2^31-1 comes 0.
func advance(seq, by int32) int32 { return int32((int64(seq) + int64(by)) & math.MaxInt32) }

// back is how far one sequence lies before another.
func back(from, to int32) int32 { return int32((int64(from) - int64(to)) & math.MaxInt32) }

func (s *State) find(id int64) *producer {
	if p := s.recent; p != nil && p.id == id {
		return p
	}
	p := s.producers[id]
	s.recent = p
	return p
}

// Check says what to do with a batch of so many records, at least one, whose first has the sequence first. base is that of the batch
// that it repeats, for Duplicate. A negative id means that the batch has no idempotent producer.
func (s *State) Check(id int64, epoch int16, first, records int32) (v Verdict, base codec.Offset) {
	if id < 0 {
		return Append, 0
	}
	p := s.find(id)
	if p == nil {
		return Append, 0
	}
	newest := &p.slots[p.newest]
	switch {
	case epoch < newest.epoch:
		return InvalidEpoch, 0
	case epoch > newest.epoch:
		if first != 0 {
			return OutOfOrder, 0
		}
		return Append, 0
	case first == newest.end():
		return Append, 0
	}
	oldest := newest
	at := p.newest
	for range Remembered {
		b := &p.slots[at]
		if b.records == 0 || b.epoch != epoch {
			break
		}
		if b.first == first && b.records == records {
			return Duplicate, b.base
		}
		oldest = b
		at = (at + Remembered - 1) % Remembered
	}
	// Distances back from the end of what was appended. A sequence that lies further back than half of all is ahead.
	end := newest.end()
	from, to, known := back(end, first), back(end, advance(first, records)), back(end, oldest.first)
	if to >= known && from >= to && int64(from) <= min(p.followed, 1<<30) {
		return OldDuplicate, 0
	}
	return OutOfOrder, 0
}

// Appended takes note of a batch for which Check said Append, with the base offset that it was given and the broker's time. Base
// offsets rise from call to call.
func (s *State) Appended(id int64, epoch int16, first, records int32, base codec.Offset, nowMillis int64) {
	if id < 0 {
		return
	}
	u := s.apply(id, batch{base: base, first: first, records: records, epoch: epoch}, nowMillis)
	if s.head > len(s.taken)/2 && len(s.taken) == cap(s.taken) {
		n := copy(s.taken, s.taken[s.head:])
		clear(s.taken[n:])
		s.taken, s.head = s.taken[:n], 0
	}
	s.taken = append(s.taken, u)
}

func (s *State) apply(id int64, b batch, millis int64) undo {
	p := s.find(id)
	u := undo{base: b.base, p: p}
	if p == nil {
		if len(s.producers) >= s.limit {
			u.evicted = s.all.newer
			s.remove(u.evicted)
		}
		p = &producer{id: id, newest: Remembered - 1}
		u.p, u.created = p, true
		s.add(p)
	} else {
		u.millis, u.followed = p.millis, p.followed
		// In a log that is replayed a producer may go on anywhere: it was forgotten in between.
		if newest := &p.slots[p.newest]; b.epoch != newest.epoch || b.first != newest.end() {
			p.followed = 0
		}
		p.unlink()
		s.link(p)
	}
	p.millis = millis
	p.followed += int64(b.records)
	p.newest = (p.newest + 1) % Remembered
	u.slot, p.slots[p.newest] = p.slots[p.newest], b
	return u
}

// Settle says that what was appended below an offset will not be taken back any more.
func (s *State) Settle(to codec.Offset) {
	for s.head < len(s.taken) && s.taken[s.head].base < to {
		s.taken[s.head] = undo{}
		s.head++
	}
	if s.head == len(s.taken) {
		s.taken, s.head = s.taken[:0], 0
	}
}

// Truncate forgets the batches at and above an offset, which is not below what was settled: they were refused and never stored.
// Everything is then as it was before them, also what they had pushed out.
func (s *State) Truncate(to codec.Offset) {
	changed := false
	for n := len(s.taken) - 1; n >= s.head && s.taken[n].base >= to; n-- {
		s.takeBack(n)
		changed = true
	}
	if changed {
		s.order()
	}
}

// takeBack takes back the last of all appends, which is number n of those that can be.
func (s *State) takeBack(n int) {
	s.revert(&s.taken[n])
	s.taken[n] = undo{}
	s.taken = s.taken[:n]
}

// revert takes back the last of all appends, but for the order of the producers.
func (s *State) revert(u *undo) {
	p := u.p
	p.slots[p.newest] = u.slot
	p.newest = (p.newest + Remembered - 1) % Remembered
	p.millis, p.followed = u.millis, u.followed
	if u.created && s.producers[p.id] == p { // it may have expired
		s.remove(p)
	}
	if u.evicted != nil {
		s.add(u.evicted)
	}
}

// order puts the producers in the order of their last appends.
func (s *State) order() {
	list := make([]*producer, 0, len(s.producers))
	for p := s.all.newer; p != &s.all; p = p.newer {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *producer) int {
		return int(max(-1, min(1, a.slots[a.newest].base-b.slots[b.newest].base)))
	})
	s.all.older, s.all.newer = &s.all, &s.all
	for _, p := range list {
		s.link(p)
	}
}

// AppendSnapshotBelow is AppendSnapshot of the state without the batches at and above an offset, which is not below what was settled.
func (s *State) AppendSnapshotBelow(dst []byte, to codec.Offset) []byte {
	type again struct {
		id     int64
		b      batch
		millis int64
	}
	var list []again
	for n := len(s.taken) - 1; n >= s.head && s.taken[n].base >= to; n-- {
		u := &s.taken[n]
		list = append(list, again{u.p.id, u.p.slots[u.p.newest], u.p.millis})
		s.takeBack(n)
	}
	if len(list) > 0 {
		s.order()
	}
	dst = s.AppendSnapshot(dst)
	for _, a := range slices.Backward(list) {
		s.Appended(a.id, a.b.epoch, a.b.first, a.b.records, a.b.base, a.millis)
	}
	return dst
}

// Expire forgets the producers whose last append is at least the expiry ago and returns how many those were. Call it now and then, with
// the clock of Appended.
func (s *State) Expire(nowMillis int64) (forgotten int) {
	for p := s.all.newer; p != &s.all && nowMillis-p.millis >= s.expiryMillis; p = s.all.newer {
		s.remove(p)
		forgotten++
	}
	return forgotten
}

// Replay takes note of a batch that is in the log, after a restart: there is no taking back.
func (s *State) Replay(b codec.Batch, appendMillis int64) {
	if b.ProducerID() < 0 {
		return
	}
	s.apply(b.ProducerID(), batch{
		base: b.BaseOffset(), first: b.BaseSequence(), records: int32(b.RecordCount()), epoch: b.ProducerEpoch(),
	}, appendMillis)
}

func (s *State) add(p *producer) {
	s.producers[p.id] = p
	s.recent = p
	s.link(p)
}

func (s *State) remove(p *producer) {
	delete(s.producers, p.id)
	if s.recent == p {
		s.recent = nil
	}
	p.unlink()
}

// link makes p the one with the last append of all.
func (s *State) link(p *producer) {
	p.older, p.newer = s.all.older, &s.all
	p.older.newer, s.all.older = p, p
}

func (p *producer) unlink() {
	p.older.newer, p.newer.older = p.newer, p.older
	p.older, p.newer = nil, nil
}
