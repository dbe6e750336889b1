package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// clockEvery is the number of messages that share one reading of the clock: 30 µs at full speed, which is less than the
// latency that the send time is for.
const clockEvery = 256

// A Publisher is what a Sender needs of a client.Producer.
type Publisher interface {
	PublishValue(ctx context.Context, partition int, value []byte) error
	Flush(ctx context.Context) error
}

// flushLimit is how long an interrupted sender waits for the confirms of what it has sent.
const flushLimit = 2 * time.Second

// A Sender publishes the messages of one run to one partition.
type Sender struct {
	partition int
	total     int64
	schedule  *Schedule // nil: as fast as the publisher takes them
	message   []byte

	firstNS, lastNS, endNS int64 // Unix; first and last message sent, last confirmed
	lateNS                 int64 // the most that a message left behind its schedule

	sent      atomic.Int64 // stored every clockEvery messages and at the end
	confirmed atomic.Int64
	failed    atomic.Int64
}

// NewSender returns a sender of total messages of size bytes, as fast as the publisher takes them.
func NewSender(run RunID, partition int, total int64, size int) *Sender {
	return &Sender{partition: partition, total: total, message: newMessage(run, size)}
}

// Pace makes the sender keep to a schedule. It is called before Run.
func (s *Sender) Pace(schedule *Schedule) { s.schedule = schedule }

// OnBatch counts what became of a batch; it is an argument for client.OnBatch.
func (s *Sender) OnBatch(r client.BatchResult) {
	switch {
	case r.Err == nil:
		s.confirmed.Add(int64(r.Records))
	case refused(r.Err):
		s.failed.Add(int64(r.Records))
	}
}

// refused reports whether err, a batch's, says that it is not stored. Where the connection was lost, or the broker itself does not
// know, that is open.
func refused(err error) bool {
	var conn *client.ConnError
	var wire *codec.WireError
	switch {
	case errors.As(err, &conn), errors.Is(err, client.ErrClosed), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &wire):
		return wire.Code != codec.CodeOutcomeUnknown
	}
	return true
}

// Counts returns how many messages were sent, confirmed and refused so far. It may be called from any goroutine.
func (s *Sender) Counts() (sent, confirmed, failed int64) {
	return s.sent.Load(), s.confirmed.Load(), s.failed.Load()
}

// Run sends until all are sent, ctx ends, or p fails, and then waits for the confirms: after the end of ctx no longer than
// 2 s. The error is p's, or that of ctx.
func (s *Sender) Run(ctx context.Context, p Publisher) error {
	var err error
	if s.schedule != nil {
		err = s.paced(ctx, p)
	} else {
		err = s.fast(ctx, p)
	}
	flush := ctx
	if ctx.Err() != nil {
		var cancel context.CancelFunc
		flush, cancel = context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
		defer cancel()
	}
	if ferr := p.Flush(flush); err == nil {
		err = ferr
	}
	s.endNS = time.Now().UnixNano()
	if err == nil {
		err = ctx.Err()
	}
	return err
}

func (s *Sender) fast(ctx context.Context, p Publisher) (err error) {
	verified := len(s.message) >= HeaderBytes
	for seq := int64(0); seq < s.total && ctx.Err() == nil; {
		now := time.Now().UnixNano()
		if seq == 0 {
			s.firstNS = now
		}
		if verified {
			binary.BigEndian.PutUint64(s.message[messageSent:], uint64(now))
		}
		for end := min(seq+clockEvery, s.total); seq < end; seq++ {
			if verified {
				binary.BigEndian.PutUint64(s.message[messageSequence:], uint64(seq))
			}
			if err = p.PublishValue(ctx, s.partition, s.message); err != nil {
				s.sent.Store(seq)
				return err
			}
		}
		s.sent.Store(seq)
	}
	s.lastNS = time.Now().UnixNano()
	return nil
}

// paced sends each message at its time, or at once when that is past.
func (s *Sender) paced(ctx context.Context, p Publisher) (err error) {
	pause := newPauser()
	defer pause.close()
	verified := len(s.message) >= HeaderBytes
	start := s.schedule.start
	var now int64 // since start
	for seq := int64(0); seq < s.total && ctx.Err() == nil; seq++ {
		due := s.schedule.due(seq)
		if now < due {
			now = int64(time.Since(start))
		}
		for now < due {
			if ctx.Err() != nil {
				return nil
			}
			pause.sleep(time.Duration(due - now))
			now = int64(time.Since(start))
		}
		s.lateNS = max(s.lateNS, now-due)
		sent := start.UnixNano() + due
		if seq == 0 {
			s.firstNS = sent
		}
		if verified {
			binary.BigEndian.PutUint64(s.message[messageSequence:], uint64(seq))
			binary.BigEndian.PutUint64(s.message[messageSent:], uint64(sent))
		}
		if err = p.PublishValue(ctx, s.partition, s.message); err != nil {
			return err
		}
		s.sent.Store(seq + 1)
		s.lastNS = sent
	}
	return nil
}
