package loop

import (
	"slices"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A publishing is an open publishing handle of a session.
type publishing struct {
	s    *session
	num  uint32
	part *topic.Partition
	pub  topic.Publisher

	maxBatch    int
	epoch       uint32
	next        uint64 // number of the batch expected next
	unconfirmed int    // bytes received and not answered: at most the window and one frame
	unanswered  int    // batches of these, and those that were refused for want of memory

	// Small batches share a slab, so that a thousand single messages do not take a thousand pages.
	arena     *codec.Slab
	arenaUsed int

	// results that wait to be confirmed in one frame, from number first of epoch resultEpoch on
	results     []codec.Result
	first       uint64
	resultEpoch uint32
	inList      bool // in loopState.confirming

	closing   bool
	closeCorr uint32
}

// open serves an open request: a new publishing handle, or a new epoch of one.
func (s *session) open(h codec.Header, section []byte) error {
	m, err := codec.ParseOpen(section)
	if err != nil {
		return err
	}
	t, part, err := s.partition(m.Topic, m.Partition)
	if err != nil {
		return err
	}
	p, again := s.handles[h.Handle].(*publishing)
	if !again {
		if err := s.checkHandle(h.Handle); err != nil {
			return err
		}
		p = &publishing{s: s, num: h.Handle, part: part, maxBatch: int(t.Settings().MaxBatchBytes)}
		p.pub.Tag = p
	} else if p.part != part || p.closing {
		return codec.Errorf(codec.CodeHandleInUse, "handle %d is open for %s/%d", h.Handle, p.part.Topic().Name(), p.part.Index())
	}
	level, next, err := part.OpenPublisher(&p.pub, s.l, m.Epoch, m.Level)
	if err != nil {
		return err
	}
	p.epoch, p.next = m.Epoch, 0
	if !again {
		s.addHandle(h.Handle, p)
	}
	s.send(codec.AppendOpenReply(s.frame(), h.Correlation, h.Handle, codec.OpenReply{
		ID: t.ID(), Partitions: t.Settings().Partitions, WindowBytes: uint32(s.l.b.limits.WindowBytes),
		MaxBatchBytes: t.Settings().MaxBatchBytes, Level: level, Next: next,
	}))
	return nil
}

// beginPublish takes the fields of a publish frame and memory for its payload, and reports whether to go on reading.
func (s *session) beginPublish(h codec.Header) bool {
	head := codec.HeaderBytes + int(h.HeaderSize)
	payload := h.PayloadBytes()
	start := min(payload, publishStart)
	if head > publishStart {
		s.fail(0, h.Handle, codec.Errorf(codec.CodeFrameTooLarge, "the fields of a publish frame take %d bytes, the limit is %d", head, publishStart))
		return true
	}
	b := s.view(head + start)
	if b == nil {
		return false
	}
	m, err := codec.ParsePublish(b[codec.HeaderBytes:head])
	if err != nil {
		s.fail(0, h.Handle, err)
		return true
	}
	p := s.last
	if p == nil || p.num != h.Handle {
		p, _ = s.handles[h.Handle].(*publishing)
		if p == nil || p.closing {
			s.fail(0, h.Handle, codec.Errorf(codec.CodeUnknownHandle, "handle %d is not open for publishing", h.Handle))
			return true
		}
		s.last = p
	}
	if err := p.admit(m, payload); err != nil {
		s.fail(0, h.Handle, err)
		return true
	}
	s.body = publishBody{h: p, msg: m, size: payload, buf: b[head : head+start], have: start, began: s.l.now}
	held := !s.growBody()
	if held {
		s.body.buf = slices.Clone(s.body.buf)
	}
	s.consume(head + start)
	if held {
		s.hold()
		return false
	}
	if s.body.have == payload {
		s.publishWhole()
	}
	return true
}

// readBody takes what has arrived of the payload, and reports whether to go on reading.
func (s *session) readBody() bool {
	b := &s.body
	if b.refused {
		n := min(len(s.t.Peek()), b.size-b.have)
		s.t.Discard(n)
		if b.have += n; b.have == b.size {
			s.body = publishBody{}
		}
		return n > 0
	}
	if b.have == len(b.buf) && !s.growBody() {
		s.hold()
		return false
	}
	b.have += s.t.ReadInto(b.buf[b.have:])
	if b.have < len(b.buf) {
		return false
	}
	if b.have == b.size {
		s.publishWhole()
	}
	return true
}

// growBody moves the payload of which everything that there is memory for has arrived to more memory, and reports
// whether there is some. A peer that sends at once what it announces gets all of it the first time, so that nothing is
// copied. What is announced and does not come is bounded over all connections: beyond that the memory follows what
// arrives, in steps that double.
func (s *session) growBody() bool {
	b := &s.body
	if s.l.mustWait(s) {
		return false
	}
	var slab *codec.Slab
	buf, own := b.buf, true
	m := &s.l.b.memory
	size, announced := b.size, int64(0)
	switch {
	case b.size <= smallPayload: // it is here
		slab, buf, own = b.h.share(b.size)
	default:
		if announced = int64(b.size - b.have); !m.announce(announced) {
			announced = 0
			size = min(b.size, max(2*b.have, leastGrowth))
		}
		if slab = m.take(size); slab != nil {
			size = min(b.size, len(slab.Bytes()))
			buf = slab.Bytes()[:size]
		}
	}
	if slab == nil {
		m.arrived(announced)
		return false
	}
	copy(buf, b.buf[:b.have])
	b.release(m)
	b.slab, b.buf, b.own, b.announced = slab, buf, own, announced
	return true
}

// release lets go of the memory, if it is the payload's alone.
func (b *publishBody) release(m *memory) {
	if b.slab != nil && b.own {
		b.slab.Release()
	}
	b.slab, b.buf = nil, nil
	m.arrived(b.announced)
	b.announced = 0
}

// shrinkBody moves what has come of a payload to memory of its size, when nothing more has come for a while.
func (s *session) shrinkBody() {
	b := &s.body
	stalled := b.seen == b.have
	b.seen = b.have
	size := max(b.have, leastGrowth)
	if !stalled || b.slab == nil || codec.SlabClassBytes(size) >= len(b.slab.Bytes()) {
		return
	}
	m := &s.l.b.memory
	slab := m.take(size)
	if slab == nil {
		return
	}
	buf := slab.Bytes()[:b.have]
	copy(buf, b.buf)
	b.release(m)
	b.slab, b.buf, b.own = slab, buf, true
}

// refuseBody refuses the batches of a frame that found no memory; what is still to come of them is thrown away.
func (s *session) refuseBody(err error) {
	b := &s.body
	p, m := b.h, b.msg
	list := s.l.published[:0]
	for i := range uint64(m.Count) {
		list = append(list, topic.Published{Number: m.First + i, Err: err})
	}
	if m.Epoch == p.epoch {
		p.next += uint64(m.Count)
	}
	p.unanswered += int(m.Count)
	b.release(&s.l.b.memory)
	if b.refused = true; b.have == b.size {
		s.body = publishBody{}
	}
	p.part.Publish(&p.pub, m.Epoch, list, s.l.now.UnixMilli())
	clear(list)
	s.l.published = keep(list)
}

// admit checks a frame against the handle's numbering and window before memory is taken for it.
func (p *publishing) admit(m codec.Publish, payload int) error {
	if m.Count == 0 || payload < codec.BatchHeaderBytes {
		return codec.Errorf(codec.CodeMalformedFrame, "a publish frame with %d batches in %d bytes", m.Count, payload)
	}
	if m.Epoch == p.epoch && m.First != p.next {
		return codec.Errorf(codec.CodeMalformedFrame, "batch number %d follows %d on handle %d", m.First, p.next, p.num)
	}
	if p.unconfirmed >= p.s.l.b.limits.WindowBytes {
		return codec.Errorf(codec.CodeWindowExceeded, "%d bytes are unconfirmed on handle %d, its window is %d",
			p.unconfirmed, p.num, p.s.l.b.limits.WindowBytes)
	}
	return nil
}

const (
	// smallPayload is the largest payload that shares a slab; above it a slab of its own wastes less than half.
	smallPayload = 4 << 10
	// arenaBytes is the largest shared slab: 64 KiB, the traffic of some hundred small batches.
	arenaBytes = 64 << 10
	// leastGrowth is what a payload gets of which more is announced than there is room for: the traffic of one read.
	leastGrowth = 16 << 10
)

// share returns a place for n bytes in the slab that small payloads share; a nil slab: there is no memory.
func (p *publishing) share(n int) (slab *codec.Slab, buf []byte, own bool) {
	if p.arena == nil || len(p.arena.Bytes())-p.arenaUsed < n {
		size := codec.MinSlabBytes
		if p.arena != nil {
			size = min(2*len(p.arena.Bytes()), arenaBytes) // busy handles get larger ones
		}
		next := p.s.l.b.memory.take(size)
		if next == nil {
			return nil, nil, false
		}
		if p.arena != nil {
			p.arena.Release()
		}
		p.arena, p.arenaUsed = next, 0
	}
	buf = p.arena.Bytes()[p.arenaUsed : p.arenaUsed+n]
	p.arenaUsed += n
	return p.arena, buf, false
}

// publishWhole hands the batches of a frame whose payload has arrived to the partition.
func (s *session) publishWhole() {
	body := s.body
	s.body = publishBody{}
	s.l.b.memory.arrived(body.announced)
	p, m := body.h, body.msg
	list := s.l.published[:0]
	rest := body.buf
	draining := s.l.b.draining.Load()
	for i := range int(m.Count) {
		v := topic.Published{Number: m.First + uint64(i), Slab: body.slab}
		if i == int(m.Count)-1 {
			v.Batch, rest, v.Err = lastBatch(rest)
		} else {
			v.Batch, rest, v.Err = codec.NextBatch(rest)
		}
		if v.Err != nil {
			// The bytes are not Count batches: from here on nothing is known of them. What is left counts for
			// this one, so that the window gets it back.
			v.Batch, rest = codec.Batch(rest), nil
		}
		if draining && v.Err == nil {
			v.Err = codec.Errorf(codec.CodeDraining, "the broker is stopping")
		}
		list = append(list, v)
	}
	retain := len(list)
	if body.own {
		retain--
	}
	if retain > 0 {
		body.slab.RetainN(retain)
	}
	if m.Epoch == p.epoch {
		p.next += uint64(m.Count)
	}
	p.unconfirmed += len(body.buf)
	p.unanswered += int(m.Count)
	p.part.Publish(&p.pub, m.Epoch, list, s.l.now.UnixMilli())
	clear(list)
	s.l.published = keep(list)
}

// lastBatch is NextBatch for a batch that must end where b ends.
func lastBatch(b []byte) (codec.Batch, []byte, error) {
	batch, rest, err := codec.NextBatch(b)
	if err == nil && len(rest) > 0 {
		err = codec.Errorf(codec.CodeBadBatch, "%d bytes follow the last record batch of the frame", len(rest))
		rest = b
	}
	return batch, rest, err
}

// result takes what became of a batch.
func (p *publishing) result(l *loopState, r *topic.Result) {
	p.unconfirmed -= r.Bytes
	p.unanswered--
	if p.s.phase != phaseReady {
		return
	}
	if len(p.results) > 0 && (r.Epoch != p.resultEpoch || r.Number != p.first+uint64(len(p.results))) {
		p.confirm()
	}
	if len(p.results) == 0 {
		p.first, p.resultEpoch = r.Number, r.Epoch
		if !p.inList {
			p.inList = true
			l.confirming = append(l.confirming, p)
		}
	}
	p.results = append(p.results, r.Result)
}

// confirm sends the results that have come together.
func (p *publishing) confirm() {
	p.inList = false
	if p.s.phase == phaseReady && len(p.results) > 0 {
		b := codec.AppendConfirm(p.s.frame(), p.num, codec.Confirm{Epoch: p.resultEpoch, First: p.first, Count: uint32(len(p.results))})
		for _, r := range p.results {
			b = codec.AppendResult(b, r)
		}
		p.s.send(b)
		p.s.worked = p.s.l.now
	}
	p.results = keep(p.results)
	p.finish()
}

// finish answers a close request once everything is confirmed.
func (p *publishing) finish() {
	if p.closing && p.unanswered == 0 && len(p.results) == 0 && p.s.phase == phaseReady {
		s := p.s
		delete(s.handles, p.num)
		p.drop(s)
		s.send(codec.AppendCloseReply(s.frame(), p.closeCorr, p.num))
	}
}

func (p *publishing) close(s *session, corr uint32) error {
	if p.closing {
		return codec.Errorf(codec.CodeUnknownHandle, "handle %d is being closed", p.num)
	}
	p.closing, p.closeCorr = true, corr
	if s.last == p {
		s.last = nil
	}
	p.finish()
	return nil
}

func (p *publishing) drop(*session) {
	p.pub.Close()
	if p.arena != nil {
		p.arena.Release()
		p.arena = nil
	}
}
