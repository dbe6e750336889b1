package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// bubble runs a test against a fake in a synctest bubble: time is virtual, and a goroutine left behind fails the test.
func bubble(t *testing.T, partitions int, test func(t *testing.T, f *fakeBroker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, partitions)
		test(t, f)
	})
}

func newProducer(t testing.TB, c *Client, opts ...ProducerOption) *Producer {
	t.Helper()
	p, err := c.Producer(t.Context(), "orders", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A single message leaves at once and by the caller's own write; no timer takes part.
func TestPublishWaitsForNothingButTheConfirm(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		start := time.Now()
		for i := range 100 {
			r, err := p.Publish(t.Context(), Message{Value: fmt.Appendf(nil, "m%d", i)})
			if err != nil || r != (Receipt{Partition: 0, Offset: codec.Offset(i)}) {
				t.Fatalf("message %d: %+v, %v", i, r, err)
			}
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("100 round trips took %v of virtual time; a timer took part", d)
		}
		if n := f.batches(0); n != 100 {
			t.Errorf("%d batches, want one per message", n)
		}
	})
}

func TestPublishAsyncKeepsAll(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		var batches, records int
		p := newProducer(t, c, OnBatch(func(r BatchResult) {
			batches++
			records += r.Records
			if r.Err != nil || r.Bytes <= codec.BatchHeaderBytes {
				t.Errorf("batch result %+v", r)
			}
		}))
		if p.Partitions() != 3 {
			t.Fatalf("%d partitions", p.Partitions())
		}
		got := make([][]codec.Offset, 3)
		when := time.UnixMilli(123456)
		const n = 3000
		for i := range n {
			m := Message{Partition: AnyPartition, Value: fmt.Appendf(nil, "value %d", i)}
			if i%3 == 1 {
				m.Headers = []codec.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "null"}}
				m.Timestamp = when
			}
			if err := p.PublishAsync(t.Context(), m, func(r Receipt, err error) {
				if err != nil {
					t.Error(err)
				}
				got[r.Partition] = append(got[r.Partition], r.Offset)
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if records != n || batches == 0 || batches > n {
			t.Errorf("%d records in %d batches reported, want %d", records, batches, n)
		}
		stored := 0
		for part := range 3 {
			values := f.values(part)
			stored += len(values)
			if len(got[part]) != len(values) || len(values) == 0 {
				t.Errorf("partition %d: %d callbacks and %d records", part, len(got[part]), len(values))
			}
			for i, o := range got[part] {
				if o != codec.Offset(i) {
					t.Fatalf("partition %d: callback %d has offset %d", part, i, o)
				}
			}
			last := -1
			for _, v := range values {
				var number int
				if _, err := fmt.Sscanf(v, "value %d", &number); err != nil || number <= last {
					t.Fatalf("partition %d: %q behind number %d", part, v, last)
				}
				last = number
			}
		}
		if stored != n {
			t.Errorf("%d records are stored, want %d", stored, n)
		}
		headers, timed := 0, 0
		for part := range 3 {
			for _, b := range f.logs[part] {
				for rs := b.Records(); rs.Next(); {
					if rs.Record.Timestamp == when.UnixMilli() {
						timed++
					}
					rs.Record.Headers(func(k, v []byte) bool {
						headers++
						if string(k) == "null" != (v == nil) {
							t.Errorf("header %q has value %q", k, v)
						}
						return true
					})
				}
			}
		}
		if headers != 2*n/3 || timed != n/3 {
			t.Errorf("%d headers, %d records with their time", headers, timed)
		}
	})
}

// Records without a key go to the partitions in turn: one by one while they come so, batch by batch otherwise.
func TestTurnPassesWithEachBatch(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		m := Message{Partition: AnyPartition, Value: []byte("v")}
		for i := range 6 {
			if r, err := p.Publish(t.Context(), m); err != nil || r.Partition != i%3 {
				t.Fatalf("record %d: %+v, %v", i, r, err)
			}
		}
		lingering := newProducer(t, c, Linger(time.Hour))
		for batch := range 4 {
			for range 10 {
				if err := lingering.PublishAsync(t.Context(), m, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := lingering.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			log := f.logs[batch%3]
			if n := log[len(log)-1].RecordCount(); n != 10 {
				t.Fatalf("batch %d: the last of partition %d has %d records", batch, batch%3, n)
			}
		}
	})
}

// The pipe is the producer's: what is on its way to one partition holds records of another back, and its confirm lets them
// go.
func TestPartitionsShareThePipe(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		release := holdConfirms(f)
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		start := time.Now()
		for i := range idleBatches + 3 {
			if err := p.PublishValue(t.Context(), min(i/idleBatches, 1), []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if f.batches(0) != idleBatches || f.batches(1) != 0 {
			t.Fatalf("%d and %d batches were sent, want %d and none", f.batches(0), f.batches(1), idleBatches)
		}
		release(1)
		synctest.Wait()
		if n := len(f.values(1)); n != 3 || f.batches(1) != 1 || time.Since(start) != 0 {
			t.Fatalf("after a confirm %d records in %d batches are there, %v", n, f.batches(1), time.Since(start))
		}
		release(100)
		synctest.Wait()
	})
}

func TestKeysChooseThePartition(t *testing.T) {
	// The values are those of org.apache.kafka.common.utils.UtilsTest.testMurmur2.
	for key, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536,
		"a-little-bit-longer-string":                       -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
	bubble(t, 5, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		for _, key := range []string{"", "21", "foobar", "abc"} {
			want := int(murmur2([]byte(key))&0x7fffffff) % 5
			for range 3 {
				if r, err := p.Publish(t.Context(), Message{Partition: AnyPartition, Key: []byte(key)}); err != nil || r.Partition != want {
					t.Errorf("key %q: %+v %v, want partition %d", key, r, err, want)
				}
			}
		}
	})
}

func TestProducerOfSomePartitions(t *testing.T) {
	bubble(t, 4, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c, Partitions(3, 1))
		for range 2 {
			for _, want := range []int{3, 1} {
				if r, err := p.Publish(t.Context(), Message{Partition: AnyPartition}); err != nil || r.Partition != want {
					t.Fatalf("%+v %v, want partition %d", r, err, want)
				}
			}
		}
		for _, n := range []int{0, 2, 4, -2} {
			if err := p.PublishValue(t.Context(), n, nil); !errors.Is(err, codec.CodeUnknownPartition) {
				t.Errorf("PublishValue to partition %d: %v", n, err)
			}
			if _, err := p.Publish(t.Context(), Message{Partition: n}); !errors.Is(err, codec.CodeUnknownPartition) {
				t.Errorf("Publish to partition %d: %v", n, err)
			}
		}
		for _, opt := range []PartitionsOption{Partitions(4), Partitions(-1), Partitions(0, 9)} {
			if _, err := c.Producer(t.Context(), "orders", opt); !errors.Is(err, codec.CodeUnknownPartition) {
				t.Errorf("producer of %v: %v", opt, err)
			}
			if _, err := c.Consumer(t.Context(), "orders", opt); !errors.Is(err, codec.CodeUnknownPartition) {
				t.Errorf("consumer of %v: %v", opt, err)
			}
		}
		if _, err := c.Producer(t.Context(), "orders", Partitions(1, 1)); err == nil {
			t.Error("a partition named twice is accepted")
		}
	})
}

// holdConfirms makes the fake store batches but keep their confirms until the returned function is called, once for
// each.
func holdConfirms(f *fakeBroker) (release func(n int)) {
	var mu sync.Mutex
	type held struct {
		c     *fakeConn
		frame []byte
	}
	var queue []held
	f.on = func(c *fakeConn, h codec.Header, header, payload []byte) bool {
		if h.Type != codec.TypePublish {
			return false
		}
		m, results, err := c.append(h, header, payload)
		if err != nil {
			f.tb.Error(err)
		}
		mu.Lock()
		queue = append(queue, held{c, confirmFrame(h.Handle, m.Epoch, m.First, results...)})
		mu.Unlock()
		return true
	}
	return func(n int) {
		mu.Lock()
		n = min(n, len(queue))
		now := queue[:n]
		queue = queue[n:]
		mu.Unlock()
		for _, q := range now {
			q.c.send(q.frame)
		}
	}
}

func TestWindowBlocksAndEndsWithContext(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const window, batch = 64 << 10, 8 << 10
		f.window = window
		release := holdConfirms(f)
		c := f.client()
		p := newProducer(t, c, BatchBytes(batch))
		value := make([]byte, 1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		taken := 0
		var err error
		for ; err == nil && taken < 10000; taken++ {
			err = p.PublishValue(ctx, 0, value)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("after %d messages: %v", taken, err)
		}
		taken--
		synctest.Wait()
		f.mu.Lock()
		stored := 0
		for _, b := range f.logs[0] {
			stored += len(b)
		}
		f.mu.Unlock()
		if stored < window || stored >= window+batch {
			t.Errorf("%d bytes are unconfirmed, want a window of %d, overshot by less than a batch", stored, window)
		}
		if _, err := p.Publish(ctx, Message{Value: value}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Publish while the window is shut: %v", err)
		}
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush while the window is shut: %v", err)
		}

		// Several publishers wait; every confirm lets one batch go; in the end all is there once.
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 100 {
					if err := p.PublishValue(context.Background(), 0, value); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			if err := p.Flush(context.Background()); err != nil {
				t.Error(err)
			}
		})
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for {
			synctest.Wait()
			select {
			case <-done:
			default:
				release(1)
				continue
			}
			break
		}
		go func() {
			for p.Close(context.Background()) != nil {
				t.Error("Close failed")
			}
		}()
		for !isClosed(p.closing) {
			release(1)
			<-time.After(time.Millisecond) // virtual
		}
		if n := len(f.values(0)); n != taken+400 {
			t.Errorf("%d records stored, want %d", n, taken+400)
		}
		f.stop(c)
	})
}

// A publisher that was woken to send the full batch, but whose context ends at the same moment, does not take the
// batch's chance with it: no timer would save a batch that is due.
func TestWokenAndCancelled(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const batch = minBatchBytes
		f.window = 1 // one batch at a time
		release := holdConfirms(f)
		c := f.client()
		p := newProducer(t, c, BatchBytes(batch))
		value := make([]byte, batch/2)
		taken := 0
		for round := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for p.PublishValue(ctx, 0, value) == nil {
					taken++
				}
			}()
			synctest.Wait() // one batch is unconfirmed, one is full, the publisher waits
			before := f.batches(0)
			release(1)
			cancel()
			<-ended
			synctest.Wait()
			if n := f.batches(0); n != before+1 {
				t.Fatalf("round %d: %d batches were sent after a confirm, want 1", round, n-before)
			}
		}
		go func() {
			for !isClosed(p.closing) {
				release(1)
				<-time.After(time.Millisecond) // virtual
			}
		}()
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(f.values(0)); n != taken {
			t.Errorf("%d records stored, %d were taken", n, taken)
		}
		<-time.After(time.Second) // virtual
		f.stop(c)
	})
}

// The same for a Flush that was woken to send what is held.
func TestFlushWokenAndCancelled(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.window = 1 // one batch at a time
		release := holdConfirms(f)
		c := f.client()
		p := newProducer(t, c)
		if err := p.PublishValue(t.Context(), 0, []byte("first")); err != nil {
			t.Fatal(err)
		}
		for round := range 10 {
			if err := p.PublishValue(t.Context(), 0, []byte("held")); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Flush(ctx) }()
			synctest.Wait() // one batch is unconfirmed, one is held, Flush waits
			before := f.batches(0)
			// Flush leaves its wait because of ctx, and before it gets any further the confirm is there.
			w := p.open[0]
			w.mu.Lock()
			cancel()
			release(1)
			for confirmed := false; !confirmed; runtime.Gosched() {
				w.acct.Lock()
				confirmed = w.count == 0
				w.acct.Unlock()
			}
			w.mu.Unlock()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Fatalf("round %d: Flush: %v", round, err)
			}
			synctest.Wait()
			if n := f.batches(0); n != before+1 {
				t.Errorf("round %d: %d batches were sent after a confirm, want 1", round, n-before)
				break
			}
		}
		release(1)
		synctest.Wait()
		release(1)
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
		f.stop(c)
	})
}

func isClosed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// What waits in a batch behind a full pipe goes when a confirm brings the pipe to idle, and otherwise after holdTime.
func TestHeldRecordsLeave(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		release := holdConfirms(f)
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		start := time.Now()
		for i := range idleBatches + 3 {
			if err := p.PublishValue(t.Context(), 0, []byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := f.batches(0); n != idleBatches {
			t.Fatalf("%d batches were sent, want %d single ones while the pipe counts as idle", n, idleBatches)
		}
		release(1)
		synctest.Wait()
		if n := len(f.values(0)); n != idleBatches+3 || f.batches(0) != idleBatches+1 || time.Since(start) != 0 {
			t.Fatalf("after a confirm %d records in %d batches are there, %v", n, f.batches(0), time.Since(start))
		}
		if err := p.PublishValue(t.Context(), 0, []byte("last")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if f.batches(0) != idleBatches+1 {
			t.Fatal("a record was sent at once although the pipe is full")
		}
		<-time.After(holdTime)
		synctest.Wait()
		if f.batches(0) != idleBatches+2 {
			t.Fatalf("a record still waits after %v", holdTime)
		}
		release(100)
		synctest.Wait()
	})
}

// A burst that fills batches is sent in full ones, and its end not later than holdTime after it.
func TestBurstIsSentInFullBatches(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		// This broker answers in no time at all, so that the pipe is always idle; the first confirms wait until some
		// records have gathered.
		var held [][]byte
		publishes := 0
		f.on = func(c *fakeConn, h codec.Header, header, payload []byte) bool {
			if h.Type != codec.TypePublish {
				return false
			}
			m, results, err := c.append(h, header, payload)
			if err != nil {
				t.Error(err)
			}
			held = append(held, confirmFrame(h.Handle, m.Epoch, m.First, results...))
			if publishes++; publishes <= idleBatches {
				return true
			}
			for _, frame := range held {
				c.send(frame)
			}
			held = nil
			return true
		}
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c, BatchBytes(16<<10))
		start := time.Now()
		value := make([]byte, 100)
		const n = 10000
		for range n {
			if err := p.PublishValue(t.Context(), 0, value); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(holdTime)
		synctest.Wait()
		if got := len(f.values(0)); got != n {
			t.Errorf("%d of %d records are there %v after the burst", got, n, time.Since(start))
		}
		small := 0
		for _, b := range f.logs[0] {
			if len(b) < 16<<10-200 {
				small++
			}
			if len(b) > 16<<10 {
				t.Errorf("a batch has %d bytes", len(b))
			}
		}
		// The first ones, before the burst showed, and the last.
		if small > idleBatches+1 {
			t.Errorf("%d of %d batches are not full", small, len(f.logs[0]))
		}
		// The next single message does not wait again.
		start = time.Now()
		if _, err := p.Publish(t.Context(), Message{Value: value}); err != nil || time.Since(start) != 0 {
			t.Errorf("a message after the burst took %v, %v", time.Since(start), err)
		}
	})
}

func TestLinger(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const linger = 20 * time.Millisecond
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c, Linger(linger))
		start := time.Now()
		var took time.Duration
		for i := range 3 {
			m := Message{Value: []byte{byte(i)}}
			if err := p.PublishAsync(t.Context(), m, func(Receipt, error) { took = time.Since(start) }); err != nil {
				t.Fatal(err)
			}
			<-time.After(linger / 4)
		}
		<-time.After(linger)
		synctest.Wait()
		if took != linger || f.batches(0) != 1 {
			t.Errorf("three records in %d batches after %v, want one after %v", f.batches(0), took, linger)
		}
		// A batch into which the next record would not fit does not wait for it.
		start = time.Now()
		if _, err := p.Publish(t.Context(), Message{Value: make([]byte, DefaultBatchBytes*2/3)}); err != nil || time.Since(start) != 0 {
			t.Errorf("a record of most of a batch took %v, %v", time.Since(start), err)
		}
	})
}

func TestRefusalReopensAndKeepsOrder(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		refuse := map[string]codec.Code{"7": codec.CodeOverflow, "20": codec.CodeNoSpace}
		f.judge = func(partition int, b codec.Batch) codec.Code {
			rs := b.Records()
			for rs.Next() {
				v := string(rs.Record.Value)
				if code, ok := refuse[v]; ok && partition == 0 {
					delete(refuse, v)
					return code
				}
			}
			return codec.CodeNone
		}
		c := f.client()
		defer f.stop(c)
		var failedBatches atomic.Int32
		p := newProducer(t, c, BatchBytes(minBatchBytes), OnBatch(func(r BatchResult) {
			if r.Err != nil {
				failedBatches.Add(1)
			}
		}))
		outcome := map[string]error{}
		var accepted []string
		for i := range 40 {
			v := fmt.Sprint(i)
			if err := p.PublishAsync(t.Context(), Message{Partition: 0, Value: []byte(v)}, func(r Receipt, err error) {
				if _, twice := outcome[v]; twice {
					t.Errorf("record %s is reported twice", v)
				}
				outcome[v] = err
				if err == nil {
					accepted = append(accepted, v)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if i%5 == 4 {
				synctest.Wait()
			}
		}
		err := p.Flush(t.Context())
		if !errors.Is(err, codec.CodeOverflow) || !Retryable(err) {
			t.Errorf("Flush: %v, want the first refusal, overflow", err)
		}
		var pe *PartitionError
		if !errors.As(err, &pe) || pe.Partition != 0 || pe.Topic != "orders" {
			t.Errorf("Flush: %v does not name the partition", err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("the second Flush repeats the failure: %v", err)
		}
		if len(outcome) != 40 {
			t.Errorf("%d of 40 records were reported", len(outcome))
		}
		for v, want := range map[string]codec.Code{"7": codec.CodeOverflow, "20": codec.CodeNoSpace} {
			if !errors.Is(outcome[v], want) {
				t.Errorf("record %s: %v, want %s", v, outcome[v], want)
			}
		}
		for v, err := range outcome {
			if err != nil && !errors.Is(err, codec.CodeOverflow) && !errors.Is(err, codec.CodeNoSpace) &&
				!errors.Is(err, codec.CodeStaleEpoch) {
				t.Errorf("record %s: %v", v, err)
			}
		}
		if got := f.values(0); !slices.Equal(got, accepted) {
			t.Errorf("stored %v, accepted %v", got, accepted)
		}
		if len(accepted) < 20 || failedBatches.Load() == 0 {
			t.Errorf("%d accepted, %d batches failed", len(accepted), failedBatches.Load())
		}
		if n := f.count(codec.TypeOpen); n != 4 {
			t.Errorf("%d opens, want 2 and one per refusal", n)
		}
		// The other partition knows nothing of it.
		if r, err := p.Publish(t.Context(), Message{Partition: 1, Value: []byte("x")}); err != nil || r.Offset != 0 {
			t.Errorf("partition 1: %+v %v", r, err)
		}
		if r, err := p.Publish(t.Context(), Message{Partition: 0, Value: []byte("x")}); err != nil || int(r.Offset) != len(accepted) {
			t.Errorf("partition 0 after the refusals: %+v %v", r, err)
		}
	})
}

func TestRefusedSyncPublish(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.judge = func(int, codec.Batch) codec.Code { return codec.CodeQuota }
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		for range 5 {
			if _, err := p.Publish(t.Context(), Message{Value: []byte("x")}); !errors.Is(err, codec.CodeQuota) {
				t.Fatalf("%v, want quota", err)
			}
		}
		synctest.Wait()
		if n := f.count(codec.TypeOpen); n != 6 {
			t.Errorf("%d opens, want 6", n)
		}
	})
}

// A handle that cannot be reopened fails its partition and no other.
func TestReopenRefused(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		f.judge = func(partition int, _ codec.Batch) codec.Code {
			if partition == 0 {
				return codec.CodeOverflow
			}
			return codec.CodeNone
		}
		f.on = func(c *fakeConn, h codec.Header, header, _ []byte) bool {
			if m, err := codec.ParseOpen(header); h.Type != codec.TypeOpen || err != nil || m.Epoch == 0 {
				return false
			}
			c.send(codec.AppendError(nil, h.Correlation, h.Handle, codec.Errorf(codec.CodeDraining, "stopping")))
			return true
		}
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		if _, err := p.Publish(t.Context(), Message{Value: []byte("x")}); !errors.Is(err, codec.CodeOverflow) {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := p.Publish(t.Context(), Message{Value: []byte("x")}); !errors.Is(err, codec.CodeDraining) {
			t.Fatalf("%v, want draining", err)
		}
		if _, err := p.Publish(t.Context(), Message{Partition: 1, Value: []byte("x")}); err != nil || p.Err() != nil {
			t.Fatal(err, p.Err())
		}
	})
}

func TestErrorFrames(t *testing.T) {
	wire := codec.Errorf(codec.CodeTopicDeleted, "gone")
	for _, tt := range []struct {
		name    string
		answer  func(c *fakeConn, h codec.Header)
		publish func(error) bool // of the message in flight
		again   func(error) bool // of the next to the same partition
		other   func(error) bool // of the next to another
	}{
		{
			name:    "of a handle",
			answer:  func(c *fakeConn, h codec.Header) { c.send(codec.AppendError(nil, 0, h.Handle, wire)) },
			publish: func(err error) bool { return errors.Is(err, codec.CodeTopicDeleted) },
			again:   func(err error) bool { return errors.Is(err, codec.CodeTopicDeleted) },
			other:   func(err error) bool { return err == nil },
		},
		{
			name:    "of the connection",
			answer:  func(c *fakeConn, h codec.Header) { c.send(codec.AppendError(nil, 0, 0, wire)) },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeTopicDeleted) },
			again:   func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeTopicDeleted) },
			other:   func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeTopicDeleted) },
		},
		{
			name:    "end of the connection",
			answer:  func(c *fakeConn, h codec.Header) { c.close() },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, io.EOF) && Retryable(err) },
			again:   isConn,
			other:   isConn,
		},
		{
			name: "go-away and end",
			answer: func(c *fakeConn, h codec.Header) {
				c.send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeDraining, Reason: "restart"}))
				c.finish()
			},
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeDraining) && Retryable(err) },
			again:   func(err error) bool { return errors.Is(err, codec.CodeDraining) },
			other:   func(err error) bool { return errors.Is(err, codec.CodeDraining) },
		},
		{
			name: "go-away and a confirm",
			answer: func(c *fakeConn, h codec.Header) {
				c.send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeDraining, Reason: "restart"}))
				c.send(confirmFrame(h.Handle, 0, 0, codec.Result{}))
			},
			publish: func(err error) bool { return err == nil },
			again:   func(err error) bool { return errors.Is(err, codec.CodeDraining) && !isConn(err) },
			other:   func(err error) bool { return errors.Is(err, codec.CodeDraining) && !isConn(err) },
		},
		{
			name: "confirm of what was not sent",
			answer: func(c *fakeConn, h codec.Header) {
				c.send(confirmFrame(h.Handle, 0, 0, codec.Result{}, codec.Result{}))
			},
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeMalformedFrame) },
			again:   isConn,
			other:   isConn,
		},
		{
			name:    "confirm out of order",
			answer:  func(c *fakeConn, h codec.Header) { c.send(confirmFrame(h.Handle, 0, 1, codec.Result{})) },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeMalformedFrame) },
			again:   isConn,
			other:   isConn,
		},
		{
			name:    "confirm of a handle that is not open",
			answer:  func(c *fakeConn, h codec.Header) { c.send(confirmFrame(99, 0, 0, codec.Result{})) },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeUnknownHandle) },
			again:   isConn,
			other:   isConn,
		},
		{
			name:    "unknown frame",
			answer:  func(c *fakeConn, h codec.Header) { c.send(rawFrame(77, 0, 0, 0, []byte{0})) },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeUnknownFrame) },
			again:   isConn,
			other:   isConn,
		},
		{
			name: "unknown frame that may be ignored",
			answer: func(c *fakeConn, h codec.Header) {
				c.send(rawFrame(77, codec.FlagIgnorable, 0, 0, []byte{0}))
				c.send(confirmFrame(h.Handle, 0, 0, codec.Result{}))
			},
			publish: func(err error) bool { return err == nil },
			again:   func(err error) bool { return err == nil },
			other:   func(err error) bool { return err == nil },
		},
		{
			name:    "announced length of 256 MiB",
			answer:  func(c *fakeConn, h codec.Header) { c.send(lengthPrefix(0x10000000)); c.send(make([]byte, 12)) },
			publish: func(err error) bool { return isConn(err) && errors.Is(err, codec.CodeFrameTooLarge) },
			again:   isConn,
			other:   isConn,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 2, func(t *testing.T, f *fakeBroker) {
				answered := false
				f.on = func(c *fakeConn, h codec.Header, header, payload []byte) bool {
					if h.Type != codec.TypePublish || answered {
						return false
					}
					answered = true
					if _, _, err := c.append(h, header, payload); err != nil {
						t.Error(err)
					}
					tt.answer(c, h)
					return true
				}
				c := f.client()
				defer f.stop(c)
				p := newProducer(t, c)
				publish := func(partition int) error {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					_, err := p.Publish(ctx, Message{Partition: partition, Value: []byte("x")})
					return err
				}
				if err := publish(0); !tt.publish(err) {
					t.Errorf("the message in flight: %v", err)
				}
				synctest.Wait()
				if err := publish(0); !tt.again(err) {
					t.Errorf("the next message: %v", err)
				}
				if err := publish(1); !tt.other(err) {
					t.Errorf("the next message to another partition: %v", err)
				}
				_ = p.Close(t.Context()) // some of these cannot flush
				if err := p.PublishValue(t.Context(), 1, nil); err == nil {
					t.Error("a closed producer takes messages")
				}
			})
		})
	}
}

func isConn(err error) bool {
	var c *ConnError
	return errors.As(err, &c)
}

func TestLevelNone(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		release := holdConfirms(f)
		f.judge = func(_ int, b codec.Batch) codec.Code {
			rs := b.Records()
			rs.Next()
			if string(rs.Record.Value) == "bad" {
				return codec.CodeOverflow
			}
			return codec.CodeNone
		}
		c := f.client()
		defer f.stop(c)
		var results []BatchResult
		p := newProducer(t, c, Level(codec.LevelNone), OnBatch(func(r BatchResult) { results = append(results, r) }))
		r, err := p.Publish(t.Context(), Message{Value: []byte("good")})
		if err != nil || r.Offset != UnknownOffset {
			t.Fatalf("%+v %v", r, err)
		}
		called := false
		err = p.PublishAsync(t.Context(), Message{Value: []byte("bad")}, func(r Receipt, err error) { called = err == nil })
		if err != nil || !called {
			t.Fatalf("the callback was not called when the batch was written: %v", err)
		}
		synctest.Wait()
		release(2)
		if err := p.Flush(t.Context()); !errors.Is(err, codec.CodeOverflow) {
			t.Errorf("Flush: %v, want overflow", err)
		}
		if len(results) != 2 || results[0].Err != nil || !errors.Is(results[1].Err, codec.CodeOverflow) {
			t.Errorf("batch results %+v", results)
		}
	})
}

func TestLargeRecords(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c, BatchBytes(4<<10))
		start := time.Now()
		sizes := []int{10, 4000, 5000, 3, 1<<20 - 100, codec.DefaultMaxBatchBytes - 100, 20}
		for i, n := range sizes {
			m := Message{Value: bytes.Repeat([]byte("x"), n)}
			if i%2 == 0 {
				m.Key = []byte("key")
			}
			if r, err := p.Publish(t.Context(), m); err != nil || r.Offset != codec.Offset(i) {
				t.Fatalf("%d bytes: %+v %v", n, r, err)
			}
		}
		for i, v := range f.values(0) {
			if len(v) != sizes[i] {
				t.Errorf("record %d has %d bytes, want %d", i, len(v), sizes[i])
			}
		}
		// The exact limit: a batch of DefaultMaxBatchBytes is possible, one more byte is not. 61 header, 3+1+1+1+1
		// before the value's length of 3, 1 for no headers.
		fits := codec.DefaultMaxBatchBytes - 61 - 3 - 4 - 3 - 1
		for range 2 {
			if _, err := p.Publish(t.Context(), Message{Value: make([]byte, fits+1)}); !errors.Is(err, codec.CodeBatchTooLarge) {
				t.Errorf("%d bytes: %v, want batch_too_large", fits+1, err)
			}
			if _, err := p.Publish(t.Context(), Message{Value: make([]byte, fits)}); err != nil {
				t.Errorf("%d bytes: %v", fits, err)
			}
		}
		if n := len(f.logs[0][len(f.logs[0])-1]); n != codec.DefaultMaxBatchBytes {
			t.Errorf("the largest batch has %d bytes, want %d", n, codec.DefaultMaxBatchBytes)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("a large record waited for a timer: %v", d)
		}
		for _, b := range p.free.free {
			if cap(b) > 2*p.cfg.batchBytes+publishOverhead {
				t.Errorf("a buffer of %d bytes is kept", cap(b))
			}
		}
	})
}

// The broker does not read while it writes: publishers are stuck in the socket, and only a reader that goes on
// reading gets everybody out.
func TestReaderNeverWaitsForWriters(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		f.inline = true
		f.window = 32 << 10
		n := 0
		f.judge = func(int, codec.Batch) codec.Code {
			if n++; n%50 == 0 {
				return codec.CodeOverflow // reopening is written by somebody, too
			}
			return codec.CodeNone
		}
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c, BatchBytes(2<<10))
		var wg sync.WaitGroup
		var taken, done atomic.Int64
		for g := range 6 {
			wg.Go(func() {
				for i := range 500 {
					m := Message{Partition: (g + i) % 2, Value: make([]byte, 50+i)}
					if err := p.PublishAsync(t.Context(), m, func(Receipt, error) { done.Add(1) }); err != nil {
						t.Error(err)
						return
					}
					taken.Add(1)
				}
			})
		}
		wg.Wait()
		if err := p.Flush(t.Context()); !errors.Is(err, codec.CodeOverflow) {
			t.Errorf("Flush: %v", err)
		}
		if taken.Load() != 3000 || done.Load() != 3000 {
			t.Errorf("%d taken, %d reported", taken.Load(), done.Load())
		}
	})
}

// Over real sockets and threads: every record once, those of one goroutine in order.
func TestManyPublishers(t *testing.T) {
	f := newFake(t, 2)
	f.tcp = true
	f.window = 256 << 10
	c := f.client()
	defer f.stop(c)
	p := newProducer(t, c, BatchBytes(16<<10))
	const publishers, each = 8, 2000
	var wg sync.WaitGroup
	var acked atomic.Int64
	for g := range publishers {
		wg.Go(func() {
			for i := range each {
				v := fmt.Appendf(nil, "%d/%d/%s", g, i, strings.Repeat("x", i%200))
				var err error
				switch {
				case i%50 == 0:
					_, err = p.Publish(t.Context(), Message{Partition: g % 2, Value: v})
					acked.Add(1)
				case i%3 == 0:
					err = p.PublishAsync(t.Context(), Message{Partition: g % 2, Value: v}, func(_ Receipt, err error) {
						if err == nil {
							acked.Add(1)
						}
					})
				case i%997 == 0:
					err = p.Flush(t.Context())
					fallthrough
				default:
					err = errors.Join(err, p.PublishValue(t.Context(), g%2, v))
					acked.Add(1)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if acked.Load() != publishers*each {
		t.Errorf("%d of %d acknowledged", acked.Load(), publishers*each)
	}
	next := make([]int, publishers)
	for part := range 2 {
		for _, v := range f.values(part) {
			var g, i int
			if _, err := fmt.Sscanf(v, "%d/%d/", &g, &i); err != nil || next[g] != i {
				t.Fatalf("record %.20q: want number %d (%v)", v, next[g], err)
			}
			next[g]++
		}
	}
	for g, n := range next {
		if n != each {
			t.Errorf("publisher %d: %d of %d records", g, n, each)
		}
	}
}

func TestCloseFlushes(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		p := newProducer(t, c, Linger(time.Hour))
		q := newProducer(t, c, Linger(time.Hour))
		for _, p := range []*Producer{p, q} {
			for range 10 {
				if err := p.PublishValue(t.Context(), 0, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(f.values(0)); n != 10 {
			t.Errorf("%d records after Close, want 10", n)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if n := len(f.values(0)); n != 20 {
			t.Errorf("%d records after the client's Close, want 20", n)
		}
		for _, err := range []error{
			p.PublishValue(t.Context(), 0, nil), q.PublishAsync(t.Context(), Message{}, nil), q.Err(), q.Flush(t.Context()),
		} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
		if _, err := c.Producer(t.Context(), "orders"); !errors.Is(err, ErrClosed) {
			t.Errorf("Producer of a closed client: %v", err)
		}
		if _, err := c.Consumer(t.Context(), "orders"); !errors.Is(err, ErrClosed) {
			t.Errorf("Consumer of a closed client: %v", err)
		}
		if _, err := c.Describe(t.Context(), "orders"); !errors.Is(err, ErrClosed) {
			t.Errorf("Describe of a closed client: %v", err)
		}
		f.stop(nil)
	})
}

// A broker that confirms nothing cannot hold Close for ever, and everybody is told.
func TestCloseGivesUp(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		holdConfirms(f)
		c := f.client(WithTimeout(time.Second))
		defer f.stop(nil)
		p := newProducer(t, c)
		var got error
		if err := p.PublishAsync(t.Context(), Message{}, func(_ Receipt, err error) { got = err }); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := c.Close(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d != time.Second {
			t.Errorf("Close took %v", d)
		}
		if !errors.Is(got, ErrClosed) {
			t.Errorf("the record's outcome: %v", got)
		}
	})
}

// A writeCounter counts the writes of the connection under it (case: header and body in separate writes meet Nagle and
// delayed acknowledgements).
type writeCounter struct {
	net.Conn
	writes *atomic.Int64
}

func (w writeCounter) Write(p []byte) (int, error) {
	w.writes.Add(1)
	return w.Conn.Write(p)
}

func TestOneWritePerFrame(t *testing.T) {
	f := newFake(t, 1)
	f.tcp = true
	f.hello.HeartbeatMillis = 0 // that of the idle control connection would be counted, too
	var writes atomic.Int64
	c, err := Dial(t.Context(), "fake:1", WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := f.dial(ctx, network, addr)
		return writeCounter{nc, &writes}, err
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer f.stop(c)
	p := newProducer(t, c)
	before := writes.Load()
	for range 1000 {
		if _, err := p.Publish(t.Context(), Message{Value: make([]byte, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := writes.Load() - before; n != 1000 {
		t.Errorf("1000 messages made %d writes", n)
	}
}
