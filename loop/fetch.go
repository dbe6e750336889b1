package loop

import (
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

const (
	// maxFetches bounds the fetches of a connection that are under way.
	maxFetches = 64
	// maxFetchBytes bounds what one asks for.
	maxFetchBytes = topic.MaxBatchBytesLimit
	// maxFetchWait bounds how long one waits where nothing is there yet.
	maxFetchWait = time.Minute
)

// A fetch is a request for batches that is not answered yet: a cursor for one take.
type fetch struct {
	s        *session
	corr     uint32
	cur      topic.Cursor
	most     int
	deadline time.Time // when to answer that nothing is there
	queued   bool      // in session.active
	gone     bool
}

func (s *session) fetch(h codec.Header, section []byte) error {
	m, err := codec.ParseFetch(section)
	if err != nil {
		return err
	}
	wait := time.Duration(m.WaitMillis) * time.Millisecond
	switch {
	case m.MaxBytes < 1 || m.MaxBytes > maxFetchBytes:
		return codec.Errorf(codec.CodeInvalidSetting, "max bytes %d is outside of 1 to %d", m.MaxBytes, maxFetchBytes)
	case wait > maxFetchWait:
		return codec.Errorf(codec.CodeInvalidSetting, "a wait of %s is above the limit of %s", wait, maxFetchWait)
	case len(s.fetches) >= maxFetches:
		return codec.Errorf(codec.CodeTooManyHandles, "the connection has %d fetches under way, which is the limit", maxFetches)
	}
	_, part, err := s.partition(m.Topic, m.Partition)
	if err != nil {
		return err
	}
	f := &fetch{s: s, corr: h.Correlation, most: int(m.MaxBytes), deadline: s.l.now.Add(wait)}
	f.cur.Tag, f.cur.Exact, f.cur.Limit = f, true, m.Limit
	if s.fetches == nil {
		s.fetches = map[*fetch]struct{}{}
	}
	s.fetches[f] = struct{}{}
	if m.From == codec.FromTime {
		s.since(part, m.Value, func(begin codec.Offset, err error) {
			if f.gone {
				return
			}
			if err == nil {
				f.cur.Exact = false // retention may be faster
				err = f.begin(part, codec.FromOffset, uint64(begin))
			}
			if err != nil {
				f.fail(err)
			}
		})
		return nil
	}
	if err := f.begin(part, m.From, m.Value); err != nil {
		f.gone = true // nothing is attached
		delete(s.fetches, f)
		return err
	}
	return nil
}

// since looks up where to begin for a time; then runs on the loop.
func (s *session) since(part *topic.Partition, millis uint64, then func(begin codec.Offset, err error)) {
	l := s.l
	s.asked++
	part.Since(int64(min(millis, 1<<62)), func(begin codec.Offset, err error) {
		l.post(func() {
			s.asked--
			if s.phase == phaseReady {
				then(begin, err)
			}
		})
	})
}

func (f *fetch) begin(part *topic.Partition, from codec.From, value uint64) error {
	if _, _, _, err := part.Attach(&f.cur, f.s.l, "", from, value, f.s.l.now.UnixMilli()); err != nil {
		return err
	}
	f.ready()
	return nil
}

// ready queues the fetch for the session's pump: there may be something to take.
func (f *fetch) ready() {
	if f.gone || f.s.phase != phaseReady || f.cur.Partition() == nil { // nil: its time is being looked up
		return
	}
	if code := f.cur.Cut(); code != codec.CodeNone {
		f.fail(codec.Errorf(code, "%s", code.Info().Meaning))
		return
	}
	f.s.queue(f, &f.queued)
}

// deliver answers, if there is something to take or it is time.
func (f *fetch) deliver(s *session) {
	f.queued = false
	if f.gone {
		return
	}
	t := &s.l.taken
	t.Reset()
	f.cur.Take(t, f.most, s.l.now.UnixMilli())
	switch {
	case f.cur.Cut() != codec.CodeNone:
		f.fail(codec.Errorf(f.cur.Cut(), "%s", f.cur.Cut().Info().Meaning))
		return
	case len(t.Batches) > 0 || t.Gap.Next != 0:
	case t.Failed:
		f.fail(codec.Errorf(codec.CodeStorage, "the records at offset %d cannot be read now", t.Next))
		return
	case t.Reading:
		return // a wake-up queues it again
	case (f.cur.Limit == 0 || t.Next < f.cur.Limit) && s.l.now.Before(f.deadline) && !s.l.b.draining.Load():
		return // a wake-up, or the tick at its deadline
	}
	s.out.commit(codec.AppendFetchReply(s.frame(), f.corr, &codec.FetchReply{
		Start: t.Start, High: t.High, Next: t.Next, AppendMillis: t.AppendMillis, Count: uint16(len(t.Batches)), Gap: t.Gap,
	}, t.Bytes))
	s.out.batches(t)
	s.worked = s.l.now
	f.drop()
}

// fail answers with an error.
func (f *fetch) fail(err error) {
	f.drop()
	f.s.reply(f.corr, 0, err)
}

func (f *fetch) drop() {
	if f.gone {
		return
	}
	f.gone = true
	delete(f.s.fetches, f)
	if f.cur.Partition() != nil {
		f.cur.Detach(f.s.l.now.UnixMilli())
	}
}

// tickFetches answers those whose time is over.
func (s *session) tickFetches() {
	for f := range s.fetches {
		if !s.l.now.Before(f.deadline) {
			f.ready()
		}
	}
}
