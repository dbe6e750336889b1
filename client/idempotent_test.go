package client

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// A seen is a batch as it arrived at the fake.
type seen struct {
	batch codec.Batch
	first uint64 // number within the handle's epoch
	conn  *fakeConn
}

// watching notes every batch before the fake gets it. hold, if not nil, says how many confirms are withheld.
type watching struct {
	mu   sync.Mutex
	all  []seen
	held int // confirms to be withheld
}

func watch(f *fakeBroker) *watching {
	w := &watching{}
	f.setOn(func(c *fakeConn, h codec.Header, header, payload []byte) bool {
		if h.Type != codec.TypePublish {
			return false
		}
		m, err := codec.ParsePublish(header)
		if err != nil {
			f.tb.Error(err)
		}
		b := codec.Batch(bytes.Clone(payload))
		m2, results, err := c.append(h, header, payload)
		if err != nil {
			f.tb.Error(err)
			return true
		}
		w.mu.Lock()
		w.all = append(w.all, seen{b, m.First, c})
		hold := w.held > 0
		if hold {
			w.held--
		}
		w.mu.Unlock()
		if !hold {
			c.send(confirmFrame(h.Handle, m2.Epoch, m2.First, results...))
		}
		return true
	})
	return w
}

func (w *watching) batches() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}

func (w *watching) hold(n int) {
	w.mu.Lock()
	w.held = n
	w.mu.Unlock()
}

// publishEach publishes a batch of each count of records and returns when they are on their way.
func publishEach(t *testing.T, p *Producer, told func(i int, r Receipt, err error), counts ...int) {
	t.Helper()
	for i, n := range counts {
		for range n {
			if err := p.PublishAsync(t.Context(), Message{Value: []byte("x")}, func(r Receipt, err error) { told(i, r, err) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.open[0].push(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

// After a lost connection the same bytes come again, in order, and are confirmed with their first offsets.
func TestSentAgainByteForByte(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		w := watch(f)
		p := newProducer(t, c, Idempotent(), Linger(time.Hour))
		var receipts []codec.Offset
		told := func(_ int, r Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
			receipts = append(receipts, r.Offset)
		}
		publishEach(t, p, told, 2)
		w.hold(math.MaxInt)
		publishEach(t, p, told, 3, 1, 2)
		if len(receipts) != 2 {
			t.Fatalf("%d receipts", len(receipts))
		}
		f.cut()
		synctest.Wait()
		if err := p.PublishAsync(t.Context(), Message{Value: []byte("y")}, func(r Receipt, err error) { told(0, r, err) }); err != nil {
			t.Fatal(err)
		}
		w.hold(0)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(receipts, []codec.Offset{0, 1, 2, 3, 4, 5, 6, 7, 8}) {
			t.Errorf("receipts %v", receipts)
		}
		if n := len(f.values(0)); n != 9 {
			t.Errorf("%d records are stored, want 9", n)
		}
		all := w.batches()
		if len(all) != 8 {
			t.Fatalf("%d batches arrived, want 1 and 3, the 3 again, and 1", len(all))
		}
		for i := 1; i < 4; i++ {
			first, again := all[i], all[i+3]
			if !bytes.Equal(first.batch, again.batch) || first.conn == again.conn {
				t.Errorf("batch %d came again as other bytes", i)
			}
			if again.first != uint64(i-1) {
				t.Errorf("batch %d has number %d on the new connection", i, again.first)
			}
		}
		seq := int32(0)
		for i, s := range append(all[:4:4], all[7]) {
			if s.batch.ProducerID() != 1 || s.batch.ProducerEpoch() != 0 || s.batch.BaseSequence() != seq {
				t.Errorf("batch %d: producer %d epoch %d sequence %d, want sequence %d", i, s.batch.ProducerID(),
					s.batch.ProducerEpoch(), s.batch.BaseSequence(), seq)
			}
			seq += int32(s.batch.RecordCount())
		}
	})
}

// However a batch is refused, the batches published next are numbered so that the broker takes them, and never so that it
// could take them for another.
func TestNumbersAfterRefusals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		code   codec.Code
		resent bool // the batch was on its way when a connection was lost
		id     int64
		seq    int32
	}{
		{"certain", codec.CodeOverflow, false, 1, 2},
		{"bad", codec.CodeBadBatch, false, 1, 2},
		{"unknown", codec.CodeOutcomeUnknown, false, 2, 0},
		{"out of order", codec.CodeOutOfOrder, false, 2, 0},
		{"fenced", codec.CodeProducerFenced, false, 2, 0},
		{"a code of the future", 999, false, 2, 0},
		{"sent again", codec.CodeOverflow, true, 2, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, f *fakeBroker) {
				c := f.client(reconnecting(time.Second, time.Minute))
				defer f.stop(c)
				w := watch(f)
				refuse := codec.CodeNone
				f.judge = func(int, codec.Batch) codec.Code { return refuse }
				p := newProducer(t, c, Idempotent(), Linger(time.Hour))
				outcomes := make([]error, 4)
				told := func(i int, _ Receipt, err error) { outcomes[i] = err }
				publishEach(t, p, told, 2)
				if tt.resent {
					// It does not arrive before the connection is lost.
					before := f.on
					f.setOn(func(c *fakeConn, h codec.Header, header, payload []byte) bool {
						if h.Type == codec.TypePublish {
							return true
						}
						return before(c, h, header, payload)
					})
					publishEach(t, p, func(_ int, _ Receipt, err error) { outcomes[1] = err }, 3)
					publishEach(t, p, func(_ int, _ Receipt, err error) { outcomes[2] = err }, 1)
					f.change(func() { f.on, refuse = before, tt.code })
					f.cut()
					<-time.After(2 * time.Second)
					synctest.Wait()
				} else {
					refuse = tt.code
					publishEach(t, p, func(_ int, _ Receipt, err error) { outcomes[1] = err }, 3)
				}
				if !errors.Is(outcomes[1], tt.code) || isConn(outcomes[1]) {
					t.Errorf("the refused batch: %v", outcomes[1])
				}
				if tt.resent && !errors.Is(outcomes[2], codec.CodeStaleEpoch) {
					t.Errorf("the batch behind: %v", outcomes[2])
				}
				refuse = codec.CodeNone
				publishEach(t, p, func(_ int, _ Receipt, err error) { outcomes[3] = err }, 3)
				if err := p.Flush(t.Context()); !errors.Is(err, tt.code) {
					t.Errorf("Flush: %v", err)
				}
				if outcomes[3] != nil {
					t.Errorf("the batch published next: %v", outcomes[3])
				}
				all := w.batches()
				last := all[len(all)-1].batch
				if last.ProducerID() != tt.id || last.BaseSequence() != tt.seq {
					t.Errorf("the batch published next is of producer %d, sequence %d; want %d, %d", last.ProducerID(), last.BaseSequence(), tt.id, tt.seq)
				}
				if n := len(f.values(0)); n != 5 {
					t.Errorf("%d records are stored, want 5", n)
				}
			})
		})
	}
}

// The connection is lost between a refusal and the result of what stood behind it, or before the handle is open again. What
// stood behind was refused too.
func TestLostBehindARefusal(t *testing.T) {
	for _, idempotent := range []bool{true, false} {
		for _, second := range []bool{true, false} {
			bubble(t, 1, func(t *testing.T, f *fakeBroker) {
				c := f.client(reconnecting(time.Second, time.Minute))
				defer f.stop(c)
				w := watch(f)
				opts := []ProducerOption{Linger(time.Hour)}
				if idempotent {
					opts = append(opts, Idempotent())
				}
				p := newProducer(t, c, opts...)
				outcomes := make([]error, 3)
				before := f.on
				published, opens := 0, 0
				f.setOn(func(c *fakeConn, h codec.Header, header, payload []byte) bool {
					switch h.Type {
					case codec.TypePublish:
						if published++; !second || published == 2 {
							c.send(confirmFrame(h.Handle, 0, 0, codec.Result{Code: codec.CodeNoSpace}))
						}
						return true
					case codec.TypeOpen:
						opens++
						return true // no answer before the connection is lost
					}
					return before(c, h, header, payload)
				})
				counts := []int{1}
				if second {
					counts = append(counts, 3)
				}
				publishEach(t, p, func(i int, _ Receipt, err error) { outcomes[i] = err }, counts...)
				if second == (opens > 0) {
					t.Fatalf("%d opens", opens)
				}
				f.change(func() { f.on = before })
				f.cut()
				publishEach(t, p, func(_ int, _ Receipt, err error) { outcomes[2] = err }, 2)
				if err := p.Flush(t.Context()); !errors.Is(err, codec.CodeNoSpace) {
					t.Errorf("Flush: %v", err)
				}
				if !errors.Is(outcomes[0], codec.CodeNoSpace) || second != errors.Is(outcomes[1], codec.CodeStaleEpoch) || outcomes[2] != nil {
					t.Errorf("outcomes %v", outcomes)
				}
				all := w.batches()
				if len(all) != 1 || len(f.values(0)) != 2 || idempotent && all[0].batch.BaseSequence() != 0 {
					t.Errorf("%d batches arrived", len(all))
				}
			})
		}
	}
}

// No more batches are on their way than the broker remembers; memory stays within that; and what is sent again keeps to the
// window that the broker grants now.
func TestFiveOnTheirWay(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.hello.HeartbeatMillis = 0 // the fake sends none
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		w := watch(f)
		w.hold(math.MaxInt)
		p := newProducer(t, c, Idempotent(), BatchBytes(minBatchBytes))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		value := make([]byte, 100)
		taken := 0
		for ; p.PublishValue(ctx, 0, value) == nil; taken++ {
		}
		synctest.Wait()
		if n := len(w.batches()); n != maxKept {
			t.Errorf("%d batches are on their way", n)
		}
		if most := 6 * minBatchBytes / 100; taken > most {
			t.Errorf("%d messages were taken, %d fit", taken, most)
		}
		f.change(func() { f.window = 1 })
		f.cut()
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := len(w.batches()); n != maxKept+1 {
			t.Errorf("%d batches were sent again, the window allows one", n-maxKept)
		}
		f.change(func() { f.window = codec.DefaultWindowBytes })
		w.hold(0)
		f.cut()
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(f.values(0)); n != taken {
			t.Errorf("%d records are stored, %d were taken", n, taken)
		}
	})
}

// A connection that is lost again while batches are sent again changes nothing.
func TestLostWhileSendingAgain(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		w := watch(f)
		w.hold(math.MaxInt)
		p := newProducer(t, c, Idempotent(), Linger(time.Hour))
		var receipts []codec.Offset
		publishEach(t, p, func(_ int, r Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
			receipts = append(receipts, r.Offset)
		}, 1, 2, 1, 2, 1)
		before := f.on
		for round := range 4 {
			left := round
			f.setOn(func(c *fakeConn, h codec.Header, header, payload []byte) bool {
				if h.Type == codec.TypePublish {
					if left--; left < 0 {
						c.close()
						return true
					}
				}
				return before(c, h, header, payload)
			})
			f.cut()
			<-time.After(5 * time.Second)
			synctest.Wait()
		}
		f.change(func() { f.on = before })
		w.hold(0)
		f.cut()
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if !slices.Equal(receipts, []codec.Offset{0, 1, 2, 3, 4, 5, 6}) || len(f.values(0)) != 7 {
			t.Errorf("receipts %v", receipts)
		}
	})
}

func TestSequencesGoRound(t *testing.T) {
	for _, tt := range []struct {
		seq     int32
		records int
		want    int32
	}{{0, 1, 1}, {math.MaxInt32, 1, 0}, {math.MaxInt32 - 1, 1, math.MaxInt32}, {math.MaxInt32 - 1, 5, 3}} {
		if got := nextSequence(tt.seq, tt.records); got != tt.want {
			t.Errorf("%d and %d records: %d, want %d", tt.seq, tt.records, got, tt.want)
		}
	}
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		w := watch(f)
		p := newProducer(t, c, Idempotent(), Linger(time.Hour))
		p.open[0].lock()
		p.open[0].seq = math.MaxInt32 - 2
		p.open[0].unlock()
		publishEach(t, p, func(_ int, _ Receipt, err error) {
			if err != nil {
				t.Error(err)
			}
		}, 2, 3, 1)
		var got []int32
		for _, s := range w.batches() {
			got = append(got, s.batch.BaseSequence())
		}
		if !slices.Equal(got, []int32{math.MaxInt32 - 2, math.MaxInt32, 2}) {
			t.Errorf("sequences %d", got)
		}
	})
}

func TestIdempotentNeedsTheBroker(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.setOn(func(c *fakeConn, h codec.Header, _, _ []byte) bool {
			if h.Type != codec.TypeProducer {
				return false
			}
			c.send(codec.AppendError(nil, h.Correlation, 0, codec.Errorf(codec.CodeNotYet, "an old broker")))
			return true
		})
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		if _, err := c.Producer(t.Context(), "orders", Idempotent()); !errors.Is(err, codec.CodeNotYet) {
			t.Error(err)
		}
		if _, err := c.Producer(t.Context(), "orders", Idempotent(), Level(codec.LevelNone)); err == nil {
			t.Error("idempotent without confirms")
		}
	})
}

// A broker with smaller frames than the one before cannot get what is to be sent again: that is told, not tried for ever.
func TestSmallerFramesThanBefore(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		w := watch(f)
		w.hold(1)
		p := newProducer(t, c, Idempotent())
		var told error
		err := p.PublishAsync(t.Context(), Message{Value: make([]byte, 100_000)}, func(_ Receipt, err error) { told = err })
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.change(func() { f.hello.MaxFrameBytes = 50_000 })
		f.cut()
		<-time.After(2 * time.Second)
		synctest.Wait()
		if !errors.Is(told, codec.CodeBatchTooLarge) {
			t.Errorf("told %v", told)
		}
		if err := p.PublishValue(t.Context(), 0, []byte("x")); !errors.Is(err, codec.CodeBatchTooLarge) {
			t.Error(err)
		}
	})
}
