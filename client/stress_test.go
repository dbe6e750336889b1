package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// A laggard makes a fake confirm late: each publish frame waits its turn and a random virtual time, so that confirms come
// one by one and in heaps. With most 0 it is only another goroutine, and with an inline fake not even that.
type laggard struct {
	queue chan lateConfirm
	done  chan struct{}

	mu       sync.Mutex
	arrived  int64         // records, refused ones too
	expected int64         // -1: not known yet
	complete chan struct{} // closed when all that are expected have arrived
}

type lateConfirm struct {
	conn  *fakeConn
	frame []byte
	delay time.Duration
}

func newLaggard(f *fakeBroker, seed uint64, most time.Duration) *laggard {
	l := &laggard{
		queue: make(chan lateConfirm, 1<<16), done: make(chan struct{}), expected: -1, complete: make(chan struct{}),
	}
	rng := rand.New(rand.NewPCG(seed, 2))
	f.on = func(c *fakeConn, h codec.Header, header, payload []byte) bool {
		if h.Type != codec.TypePublish {
			return false
		}
		m, results, err := c.append(h, header, payload)
		if err != nil {
			f.tb.Error(err)
			return false
		}
		l.count(payload)
		late := lateConfirm{c, confirmFrame(h.Handle, m.Epoch, m.First, results...), 0}
		if f.inline {
			c.send(late.frame)
			return true
		}
		if most > 0 && rng.IntN(3) > 0 {
			late.delay = ticks(rng, most)
		}
		l.queue <- late
		return true
	}
	go func() {
		defer close(l.done)
		for late := range l.queue {
			if late.delay > 0 {
				<-time.After(late.delay) // virtual
			}
			late.conn.send(late.frame)
		}
	}()
	return l
}

// ticks is a random time up to most, in steps that make different clocks coincide.
func ticks(rng *rand.Rand, most time.Duration) time.Duration {
	const step = 25 * time.Microsecond
	return step * time.Duration(rng.Int64N(int64(most/step)+1))
}

func (l *laggard) count(payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := payload; len(rest) > 0; {
		var b codec.Batch
		b, rest, _ = codec.NextBatch(rest) // the fake has checked it
		l.arrived += int64(b.RecordCount())
	}
	l.check()
}

// expect tells how many records are to arrive in all.
func (l *laggard) expect(n int64) {
	l.mu.Lock()
	l.expected = n
	l.check()
	l.mu.Unlock()
}

func (l *laggard) check() {
	if l.arrived == l.expected {
		close(l.complete)
	}
}

func (l *laggard) stop() {
	close(l.queue)
	<-l.done
}

// state describes a partition for a failure's message.
func (w *partition) state() string {
	w.lock()
	defer w.unlock()
	return fmt.Sprintf("partition %d: open %t with %d records, %d batches and %d bytes of %d unconfirmed, holds %t due %t "+
		"burst %t busy %t refused %t reopening %t needOpen %t inDue %t inAging %t quick %t, waiting %d senders %d, sealed %d reported %d",
		w.number, w.open, w.builder.Count(), w.count, w.unconfirmed, w.window, w.holds, w.due, w.p.pipe.burst.Load(), w.busy, w.refused, w.reopening,
		w.needOpen, w.inDue, w.inAging, w.quick, len(w.waiting), w.senders, w.sealed, w.reported)
}

// Whatever the sizes, windows and delays: publishers get through, and what was taken leaves and is reported without
// anybody flushing. A lost wake-up would leave records or publishers behind for ever.
func TestNoWakeUpIsLost(t *testing.T) {
	seeds := uint64(60)
	if os.Getenv("LIGHTQ_SOAK") != "" {
		seeds = 2_000
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { stress(t, seed, true) })
		stress(t, seed, false)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

// stress is one run: with confirms that are late in virtual time, or over real sockets that are as fast as they are.
func stress(t *testing.T, seed uint64, virtual bool) {
	rng := rand.New(rand.NewPCG(seed, 1))
	partitions := 1 + rng.IntN(3)
	f := newFake(t, partitions)
	f.hello.HeartbeatMillis = 0
	f.window = pick[uint32](rng, 1, 2<<10, 8<<10, 64<<10, 256<<10)
	f.inline = rng.IntN(4) == 0
	batchBytes := pick(rng, minBatchBytes, 2<<10, 8<<10, 32<<10)
	refuse := pick(rng, 0, 0, 30)
	judged := 0
	f.judge = func(int, codec.Batch) codec.Code {
		if judged++; refuse > 0 && judged%refuse == 0 {
			return codec.CodeOverflow
		}
		return codec.CodeNone
	}
	late := pick(rng, 0, 50*time.Microsecond, time.Millisecond)
	patience := 10 * time.Second // more than all confirms can take
	if !virtual {
		f.tcp, late, patience = true, 0, time.Minute
	}
	lag := newLaggard(f, seed, late)

	var reported atomic.Int64
	opts := []ProducerOption{
		BatchBytes(batchBytes),
		Linger(pick(rng, 0, 0, 0, time.Millisecond, 10*time.Millisecond)),
		Level(pick(rng, codec.LevelDefault, codec.LevelDefault, codec.LevelNone)),
		Compress(pick(rng, codec.CompressionNone, codec.CompressionNone, codec.CompressionLZ4, codec.CompressionSnappy)),
	}
	counting := rng.IntN(2) == 0
	if counting {
		opts = append(opts, OnBatch(func(r BatchResult) {
			reported.Add(int64(r.Records))
			runtime.Gosched() // others run while the reader is at this place
		}))
	}
	c := f.client()
	p := newProducer(t, c, opts...)

	var taken, called, calls atomic.Int64
	callback := func(Receipt, error) { called.Add(1) }
	var wg sync.WaitGroup
	for g := range 1 + rng.IntN(5) {
		rng := rand.New(rand.NewPCG(seed, uint64(g)+10))
		pace := pick(rng, 0, 0, 50*time.Microsecond, 3*time.Millisecond)
		most := pick(rng, 20, 200, batchBytes*3/4, batchBytes*2)
		wg.Go(func() {
			for range 20 + rng.IntN(200) {
				ctx, cancel := context.Background(), func() {}
				if rng.IntN(5) == 0 {
					ctx, cancel = context.WithTimeout(ctx, ticks(rng, 500*time.Microsecond))
				}
				value := make([]byte, rng.IntN(most))
				part := rng.IntN(partitions)
				var err error
				switch rng.IntN(20) {
				case 0:
					if ctx.Done() == nil { // else it would be open whether the record was taken
						_, err = p.Publish(ctx, Message{Partition: part, Value: value})
						taken.Add(1)
					}
				case 1, 2, 3, 4:
					if err = p.PublishAsync(ctx, Message{Partition: part, Value: value, Key: value[:len(value)/2]}, callback); err == nil {
						taken.Add(1)
						calls.Add(1)
					}
				case 5, 6:
					err = p.Flush(ctx)
				default:
					if err = p.PublishValue(ctx, part, value); err == nil {
						taken.Add(1)
					}
				}
				cancel()
				if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, codec.CodeOverflow) &&
					!errors.Is(err, codec.CodeStaleEpoch) {
					t.Errorf("seed %d: %v", seed, err)
				}
				if virtual && pace > 0 && rng.IntN(3) == 0 {
					<-time.After(ticks(rng, pace)) // virtual
				}
			}
		})
	}
	through := make(chan struct{})
	go func() { wg.Wait(); close(through) }()
	describe := func(what string) {
		lag.mu.Lock()
		t.Errorf("seed %d: %s: of %d taken %d arrived, %d were reported; %d callbacks of %d",
			seed, what, taken.Load(), lag.arrived, reported.Load(), called.Load(), calls.Load())
		lag.mu.Unlock()
		for _, w := range p.open {
			t.Error(w.state())
		}
	}
	select {
	case <-through:
		lag.expect(taken.Load())
		select {
		case <-lag.complete:
		case <-time.After(patience):
			describe("records were left behind")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := p.Flush(ctx); err != nil && refuse == 0 {
			describe(fmt.Sprint("Flush: ", err))
		}
		cancel()
		if called.Load() != calls.Load() || counting && reported.Load() != taken.Load() {
			describe("not all was reported")
		}
	case <-time.After(6 * patience):
		describe("publishers hang")
	}
	_ = c.Close() // what could be wrong was seen above
	f.stop(nil)
	<-through
	lag.stop()
}
