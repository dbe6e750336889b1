package loop

import (
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A subscription is a handle of a session that gets a partition's records.
type subscription struct {
	s      *session
	num    uint32
	cur    topic.Cursor
	credit int  // bytes of batches that may still be delivered; one batch may overshoot it. A group keeps its own count
	queued bool // in session.active
	gone   bool // cut off or closed; one that was cut off keeps its handle until the client closes it
}

func (s *session) subscribe(h codec.Header, section []byte) error {
	m, err := codec.ParseSubscribe(section)
	if err != nil {
		return err
	}
	switch {
	case m.Kind != codec.KindSub && m.Kind != codec.KindPull:
		return codec.Errorf(codec.CodeInvalidSetting, "subscription kind %d is unknown", m.Kind)
	case m.Kind == codec.KindSub && m.Name != "":
		return codec.Errorf(codec.CodeNotYet, "named subscriptions are not built yet")
	case uint64(m.CreditBytes) > uint64(s.l.b.limits.MaxCreditBytes):
		return codec.Errorf(codec.CodeInvalidSetting, "a credit of %d bytes is above the limit of %d", m.CreditBytes, s.l.b.limits.MaxCreditBytes)
	}
	if m.Kind == codec.KindPull {
		if err := topic.CheckGroupName(m.Name); err != nil {
			return err
		}
	}
	t, part, err := s.partition(m.Topic, m.Partition)
	if err != nil {
		return err
	}
	if err := s.checkHandle(h.Handle); err != nil {
		return err
	}
	if m.From == codec.FromTime {
		o := &opening{}
		s.addHandle(h.Handle, o)
		s.since(part, m.Value, func(begin codec.Offset, err error) {
			if o.gone {
				return
			}
			delete(s.handles, h.Handle)
			if err == nil {
				m.From, m.Value = codec.FromOffset, uint64(begin)
				err = s.attach(h, m, t, part)
			}
			if err != nil {
				s.reply(h.Correlation, h.Handle, err)
			}
		})
		return nil
	}
	return s.attach(h, m, t, part)
}

// An opening keeps the number of a handle while the place where its subscription begins is looked up.
type opening struct{ gone bool }

func (o *opening) close(*session, uint32) error {
	return codec.Errorf(codec.CodeUnknownHandle, "the handle's subscribe was not answered yet")
}
func (o *opening) drop(*session) { o.gone = true }

// attach makes the subscription that a request asks for.
func (s *session) attach(h codec.Header, m codec.Subscribe, t *topic.Topic, part *topic.Partition) error {
	for _, v := range s.handles {
		if other, ok := v.(*subscription); ok && !other.gone && other.cur.Partition() == part && other.cur.Group() == m.Name {
			return codec.Errorf(codec.CodeHandleInUse, "handle %d of this connection is subscribed to %s/%d already", other.num, m.Topic, m.Partition)
		}
	}
	sub := &subscription{s: s, num: h.Handle, credit: int(m.CreditBytes)}
	sub.cur.Tag = sub
	start, high, begin, err := part.Attach(&sub.cur, s.l, m.Name, m.From, m.Value, s.l.now.UnixMilli())
	if err != nil {
		return err
	}
	s.addHandle(h.Handle, sub)
	s.send(codec.AppendSubscribeReply(s.frame(), h.Correlation, h.Handle, codec.SubscribeReply{
		ID: t.ID(), Partitions: t.Settings().Partitions, Start: start, High: high, Begin: begin,
	}))
	if sub.cur.Shared() {
		sub.cur.Grant(sub.credit, s.l.now.UnixMilli())
	}
	sub.ready()
	return nil
}

func (s *session) credit(h codec.Header, section []byte) error {
	bytes, err := codec.ParseCredit(section)
	if err != nil {
		return err
	}
	sub, ok := s.handles[h.Handle].(*subscription)
	if !ok {
		return codec.Errorf(codec.CodeUnknownHandle, "handle %d is not a subscription", h.Handle)
	}
	if sub.gone {
		return nil
	}
	if int64(sub.credit)+int64(bytes) > int64(s.l.b.limits.MaxCreditBytes) {
		return codec.Errorf(codec.CodeWindowExceeded, "a credit of %d bytes and %d more is above the limit of %d", sub.credit, bytes, s.l.b.limits.MaxCreditBytes)
	}
	sub.credit += int(bytes)
	if sub.cur.Shared() {
		sub.cur.Grant(int(bytes), s.l.now.UnixMilli())
	}
	sub.ready()
	return nil
}

// ready queues the subscription for the session's pump: there may be something to take.
func (sub *subscription) ready() {
	if sub.gone || sub.s.phase != phaseReady {
		return
	}
	if code := sub.cur.Cut(); code != codec.CodeNone {
		sub.cutOff(code) // now: the pump may wait for a peer that never reads
		return
	}
	sub.s.queue(sub, &sub.queued)
}

// deliver puts the next batches into the outbox as one frame. It is called by the pump, which has taken the subscription
// off the queue.
func (sub *subscription) deliver(s *session) {
	sub.queued = false
	if sub.gone {
		return
	}
	if code := sub.cur.Cut(); code != codec.CodeNone {
		sub.cutOff(code)
		return
	}
	most := writeBytes
	if !sub.cur.Shared() { // what a group has given was within the credit
		most = min(most, sub.credit)
	}
	if most <= 0 {
		return // a credit frame queues it again
	}
	t := &s.l.taken
	t.Reset()
	sub.cur.Take(t, most, s.l.now.UnixMilli())
	if len(t.Batches) == 0 && t.Gap.Next == 0 {
		return // a wake-up queues it again
	}
	s.out.commit(codec.AppendDeliver(s.frame(), sub.num, &codec.Deliver{
		Start: t.Start, High: t.High, AppendMillis: t.AppendMillis, Count: uint16(len(t.Batches)), Gap: t.Gap,
	}, t.Bytes))
	s.out.batches(t)
	s.worked = s.l.now
	sub.credit -= t.Bytes
	sub.queued = true
	s.active.push(sub)
}

// cutOff tells why the partition has ended the subscription. The handle stays until the client closes it: a credit may be on
// its way.
func (sub *subscription) cutOff(code codec.Code) {
	s := sub.s
	sub.drop(s)
	s.l.b.log.Warn("consumer cut off", "conn", s.id, "peer", s.peer, "client", s.client,
		"topic", sub.cur.Partition().Topic().Name(), "partition", sub.cur.Partition().Index(), "code", code)
	s.send(codec.AppendError(s.frame(), 0, sub.num, codec.Errorf(code, "%s", code.Info().Meaning)))
}

func (sub *subscription) close(s *session, corr uint32) error {
	delete(s.handles, sub.num)
	sub.drop(s)
	s.send(codec.AppendCloseReply(s.frame(), corr, sub.num))
	return nil
}

func (sub *subscription) drop(s *session) {
	if !sub.gone {
		sub.gone = true
		sub.cur.Detach(s.l.now.UnixMilli())
	}
}
