package loadgen

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
)

// taken is a publisher that checks what it is given.
type taken struct {
	t         *testing.T
	run       RunID
	size      int
	partition int
	next      uint64
	sent      []int64
	failAt    uint64
	cancel    func()
	cancelAt  uint64
	flushed   int
	flushErr  error
	s         *Sender
}

var errTaken = errors.New("not taken")

func (p *taken) PublishValue(_ context.Context, partition int, value []byte) error {
	if p.failAt > 0 && p.next == p.failAt {
		return errTaken
	}
	if partition != p.partition || len(value) != p.size {
		p.t.Errorf("message of %d B for partition %d", len(value), partition)
	}
	if p.size >= HeaderBytes {
		if run := runIn(value); run != p.run || !intact(value) {
			p.t.Errorf("message %d: run %v, intact %v", p.next, run, intact(value))
		}
		if seq := binary.BigEndian.Uint64(value[messageSequence:]); seq != p.next {
			p.t.Errorf("sequence %d, want %d", seq, p.next)
		}
		p.sent = append(p.sent, int64(binary.BigEndian.Uint64(value[messageSent:])))
	}
	p.next++
	if p.cancel != nil && p.next == p.cancelAt {
		p.cancel()
	}
	return nil
}

func (p *taken) Flush(ctx context.Context) error {
	p.flushed++
	if p.s != nil {
		p.s.OnBatch(client.BatchResult{Records: int(p.next)})
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return p.flushErr
}

func newTaken(t *testing.T, total int64, size int) (*Sender, *taken) {
	run := NewRunID()
	s := NewSender(run, 2, total, size)
	return s, &taken{t: t, run: run, size: size, partition: 2, s: s}
}

func TestSender(t *testing.T) {
	for _, size := range []int{1, HeaderBytes - 1, HeaderBytes, 100, 5000} {
		before := time.Now().UnixNano()
		s, p := newTaken(t, 1000, size)
		if err := s.Run(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		after := time.Now().UnixNano()
		sent, confirmed, failed := s.Counts()
		if sent != 1000 || confirmed != 1000 || failed != 0 || p.next != 1000 || p.flushed != 1 {
			t.Errorf("size %d: sent %d, confirmed %d, failed %d, flushed %d times", size, sent, confirmed, failed, p.flushed)
		}
		if s.firstNS < before || s.lastNS < s.firstNS || s.endNS < s.lastNS || after < s.endNS {
			t.Errorf("times %d %d %d %d %d", before, s.firstNS, s.lastNS, s.endNS, after)
		}
		last := before
		for i, at := range p.sent {
			if at < last || at > after || i == 0 && at != s.firstNS {
				t.Fatalf("message %d says that it was sent at %d", i, at)
			}
			last = at
		}
	}
}

func TestSenderFailure(t *testing.T) {
	s, p := newTaken(t, 1000, 100)
	p.failAt = 300
	if err := s.Run(t.Context(), p); !errors.Is(err, errTaken) {
		t.Errorf("error %v", err)
	}
	if sent, _, _ := s.Counts(); sent != 300 || p.flushed != 1 {
		t.Errorf("sent %d, flushed %d times", sent, p.flushed)
	}
	s, p = newTaken(t, 10, 100)
	p.flushErr = errTaken
	if err := s.Run(t.Context(), p); !errors.Is(err, errTaken) {
		t.Errorf("error %v", err)
	}
}

// TestSenderInterrupted: what was sent is still confirmed, at full speed and on a schedule.
func TestSenderInterrupted(t *testing.T) {
	for _, paced := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		s, p := newTaken(t, 1<<40, 100)
		p.cancel, p.cancelAt = cancel, 20
		if paced {
			s.Pace(NewSchedule(time.Now(), 10_000, 0, 1))
		}
		if err := s.Run(ctx, p); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		sent, confirmed, _ := s.Counts()
		if sent != int64(p.next) || confirmed != sent || sent < 20 || paced && sent != 20 {
			t.Errorf("paced %v: sent %d of %d, confirmed %d", paced, sent, p.next, confirmed)
		}
	}
}

// TestSenderPaced: every message carries the time at which it was due, and none leaves before.
func TestSenderPaced(t *testing.T) {
	s, p := newTaken(t, 50, 100)
	start := time.Now()
	s.Pace(NewSchedule(start, 5000, 1, 2))
	if err := s.Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for i, at := range p.sent {
		if want := start.UnixNano() + int64(2*i+1)*200_000; at != want {
			t.Fatalf("message %d says %d, was due at %d", i, at, want)
		}
	}
	if d := time.Since(start); d < 99*200*time.Microsecond {
		t.Errorf("all were sent after %v", d)
	}
	if s.firstNS != p.sent[0] || s.lastNS != p.sent[49] {
		t.Errorf("first %d, last %d", s.firstNS, s.lastNS)
	}
}

// TestSenderBehind: a schedule that began long ago is caught up with, and says how late it was.
func TestSenderBehind(t *testing.T) {
	s, p := newTaken(t, 50, 100)
	start := time.Now().Add(-time.Minute)
	s.Pace(NewSchedule(start, 10, 0, 1))
	if err := s.Run(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if p.sent[49]-p.sent[0] != int64(4900*time.Millisecond) || s.lateNS < int64(55*time.Second) {
		t.Errorf("stamps span %d ns, late %d ns", p.sent[49]-p.sent[0], s.lateNS)
	}
}

func TestSchedule(t *testing.T) {
	s := NewSchedule(time.Time{}, 3, 1, 2)
	for seq, want := range []int64{333_333_333, 1e9, 1_666_666_666, 2_333_333_333} {
		if got := s.due(int64(seq)); got != want {
			t.Errorf("message %d is due at %d, want %d", seq, got, want)
		}
	}
	// No drift and no overflow after years.
	fast := NewSchedule(time.Time{}, 1e9, 0, 1)
	if got := fast.due(1e17); got != 1e17 {
		t.Errorf("due at %d", got)
	}
}

type sink struct{}

func (sink) PublishValue(context.Context, int, []byte) error { return nil }
func (sink) Flush(context.Context) error                     { return nil }

// TestSenderAllocates: nothing per message.
func TestSenderAllocates(t *testing.T) {
	ctx := t.Context()
	s := NewSender(NewRunID(), 0, 10*clockEvery, 100)
	if n := testing.AllocsPerRun(10, func() { _ = s.Run(ctx, sink{}) }); n > 0 {
		t.Errorf("%v allocations in a run of %d messages", n, s.total)
	}
}

func BenchmarkSender(b *testing.B) {
	s := NewSender(NewRunID(), 0, int64(b.N), 100)
	b.ReportAllocs()
	if err := s.Run(b.Context(), sink{}); err != nil {
		b.Fatal(err)
	}
}
