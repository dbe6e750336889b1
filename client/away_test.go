package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/loop"
)

// Pauses between attempts go on from call to call: with contexts that are shorter than a pause, the broker is found again too.
func TestShortContextsComeBack(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		co := newConsumer(t, c)
		f.put(0, "a")
		back := f.away()
		describe := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Describe(ctx, "orders")
			return err
		}
		read := func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for _, err = range co.Records(ctx) {
				break
			}
			return err
		}
		for range 500 {
			for _, err := range []error{describe(), read()} {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("while the broker is away: %v", err)
				}
			}
		}
		back()
		for what, ask := range map[string]func() error{"a request": describe, "a consumer": read} {
			err := ask()
			for range 60 {
				if err == nil {
					break
				}
				err = ask()
			}
			if err != nil {
				t.Errorf("%s, a minute after the broker came back: %v", what, err)
			}
		}
	})
}

// A topic that is deleted and made anew is published to again, though the handle on the connection is of the old one.
func TestTopicMadeAnew(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, idempotent := range []bool{false, true} {
		door := loop.NewInProcess()
		startReal(t, loop.Config{Listener: door})
		c, err := Dial(ctx, "tcp://in-process:0", WithDialer(door.Dial), reconnecting(time.Millisecond, time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		create := func() {
			t.Helper()
			if _, err := c.CreateTopic(ctx, "orders", TopicSettings{Partitions: 2}); err != nil {
				t.Fatal(err)
			}
		}
		create()
		var opts []ProducerOption
		if idempotent {
			opts = append(opts, Idempotent())
		}
		p, err := c.Producer(ctx, "orders", opts...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if _, err := p.Publish(ctx, Message{Partition: i, Value: []byte("old")}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.Delete(ctx, "orders"); err != nil {
			t.Fatal(err)
		}
		create()
		for i := range 2 {
			for {
				_, err := p.Publish(ctx, Message{Partition: i, Value: []byte("new")})
				if err == nil {
					break
				}
				if ctx.Err() != nil || !errors.Is(err, codec.CodeTopicDeleted) && !isConn(err) {
					t.Fatalf("idempotent %t, partition %d: %v", idempotent, i, err)
				}
			}
		}
		if err := p.Close(ctx); err != nil && !errors.Is(err, codec.CodeTopicDeleted) && !isConn(err) {
			t.Error(err)
		}
		d, err := c.Describe(ctx, "orders")
		if err != nil || d.Partitions[0].High != 1 || d.Partitions[1].High != 1 {
			t.Errorf("idempotent %t: %+v, %v", idempotent, d.Partitions, err)
		}
	}
}

// Records without a key go to the partitions that are alive; with the last partition the producer is at its end, also while its
// connection stands.
func TestPartitionsFail(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		p := newProducer(t, c)
		dead := map[uint32]bool{}
		f.change(func() {
			f.judge = func(partition int, _ codec.Batch) codec.Code {
				if dead[uint32(partition)] {
					return codec.CodeTopicDeleted
				}
				return codec.CodeNone
			}
			f.on = func(c *fakeConn, h codec.Header, header, _ []byte) bool {
				m, err := codec.ParseOpen(header)
				if h.Type != codec.TypeOpen || err != nil || !dead[m.Partition] {
					return false
				}
				c.send(codec.AppendError(nil, h.Correlation, h.Handle, codec.Errorf(codec.CodeUnknownTopic, "says the test")))
				return true
			}
		})
		for i := range uint32(3) {
			if err := p.Err(); err != nil {
				t.Fatalf("with %d partitions left: %v", 3-i, err)
			}
			f.change(func() { dead[i] = true })
			if _, err := p.Publish(t.Context(), Message{Partition: int(i)}); !errors.Is(err, codec.CodeTopicDeleted) {
				t.Errorf("partition %d: %v", i, err)
			}
			synctest.Wait()
			got := map[int]int{}
			for range 12 {
				r, err := p.Publish(t.Context(), Message{Partition: AnyPartition})
				if err != nil && i < 2 {
					t.Fatalf("with %d partitions left: %v", 2-i, err)
				}
				if err == nil {
					got[r.Partition]++
				}
			}
			if want := []int{6, 12, 0}[i]; got[2] != want {
				t.Errorf("with %d partitions left: %v", 2-i, got)
			}
		}
		if err := p.Err(); !errors.Is(err, codec.CodeUnknownTopic) {
			t.Errorf("without partitions: %v", err)
		}
	})
}

// What had come over a connection that is lost is not read behind the loss, also where the reconnecting was cut short.
func TestBufferOfALostConnection(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Second))
		defer f.stop(c)
		co := newConsumer(t, c, Credit(1)) // each batch is given back at once
		var batches [][]byte
		for i := range 4 {
			var w codec.BatchBuilder
			w.Reset(nil, 1<<10)
			w.AddValue(1000, fmt.Appendf(nil, "%d", i))
			b := codec.Batch(w.Finish(codec.NoProducer))
			b.SetBase(codec.Offset(i), 0)
			batches = append(batches, b)
		}
		var frames []byte
		for _, n := range []int{0, 2} { // two of two batches each, in one write
			payload := slices.Concat(batches[n], batches[n+1])
			frames = codec.AppendDeliver(frames, 1, &codec.Deliver{High: 4, Count: 2}, len(payload))
			frames = append(frames, payload...)
		}
		f.last().send(frames)
		if got := take(t, co.Records(t.Context()), 1); got[0] != "0 0" {
			t.Error(got)
		}
		back := f.away()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for r, err := range co.Records(ctx) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%+v, %v", r, err)
			}
		}
		for i := range 4 {
			f.put(0, fmt.Sprint(i))
		}
		back()
		if got := take(t, co.Records(t.Context()), 3); !slices.Equal(got, []string{"1 1", "2 2", "3 3"}) {
			t.Error(got)
		}
	})
}

// Behind the limit for reconnecting a request makes one attempt.
func TestRequestBehindTheLimit(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Second), WithReconnectLimit(2*time.Second))
		defer f.stop(c)
		back := f.away()
		for i := range 3 {
			f.change(func() { f.dials = 0 })
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.Describe(ctx, "orders"); !isConn(err) || !errors.Is(err, errRefused) {
				t.Error(err)
			}
			if f.dials > 5 || i > 0 && f.dials != 1 {
				t.Errorf("request %d made %d attempts", i, f.dials)
			}
		}
		back()
		if _, err := c.Describe(t.Context(), "orders"); err != nil {
			t.Error(err)
		}
	})
}

// A client that is closed does not wait longer than its timeout for a producer that somebody else is closing, without a limit.
func TestCloseBesideAClose(t *testing.T) {
	for _, connected := range []bool{false, true} {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Hour, time.Hour), WithTimeout(10*time.Second))
			p := newProducer(t, c)
			if connected {
				f.setOn(func(_ *fakeConn, h codec.Header, _, _ []byte) bool { return h.Type == codec.TypePublish })
			} else {
				f.away()
				synctest.Wait()
			}
			told := make(chan error, 1)
			if err := p.PublishAsync(t.Context(), Message{Value: []byte("x")}, func(_ Receipt, err error) { told <- err }); err != nil {
				t.Fatal(err)
			}
			closed := make(chan error, 1)
			go func() { closed <- p.Close(context.Background()) }()
			synctest.Wait()
			start := time.Now()
			_ = c.Close() // the producer's error is the other one's
			if d := time.Since(start); d != 10*time.Second {
				t.Errorf("connected %t: the client was closed after %v", connected, d)
			}
			if err := <-closed; err == nil {
				t.Errorf("connected %t: the producer was closed without an error", connected)
			}
			if err := <-told; err == nil {
				t.Errorf("connected %t: the record was confirmed", connected)
			}
			f.stop(nil)
		})
	}
}
