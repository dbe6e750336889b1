package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

func newConsumer(t testing.TB, c *Client, opts ...ConsumerOption) *Consumer {
	t.Helper()
	co, err := c.Consumer(t.Context(), "orders", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return co
}

// take reads n records and returns "offset value" of each.
func take(t testing.TB, seq iter.Seq2[Record, error], n int) (got []string) {
	t.Helper()
	for r, err := range seq {
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		got = append(got, fmt.Sprintf("%d %s", r.Offset, r.Value))
		if len(got) == n {
			break
		}
	}
	return got
}

func TestRecordsGoOnWhereTheyWereLeft(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.put(0, "a", "b", "c")
		f.put(0, "d")
		f.put(0, "e", "f")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		if co.Partitions() != 1 {
			t.Error(co.Partitions())
		}
		if got := take(t, co.Records(t.Context()), 2); !slices.Equal(got, []string{"0 a", "1 b"}) {
			t.Fatal(got)
		}
		if got := take(t, co.Records(t.Context()), 1); !slices.Equal(got, []string{"2 c"}) {
			t.Fatal(got)
		}
		if got := take(t, co.Records(t.Context()), 2); !slices.Equal(got, []string{"3 d", "4 e"}) {
			t.Fatal(got)
		}
		if p := co.Positions(); len(p) != 1 || p[0].Begin != 0 || p[0].Next != 6 || p[0].High != 6 {
			t.Errorf("%+v", p)
		}
		// Broken off inside a batch, Batches gives that batch again; then live ones.
		go f.put(0, "g")
		n := 0
		for b, err := range co.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if want := codec.Offset(4 + 2*n); b.BaseOffset() != want || b.AppendTime != time.UnixMilli(5000) {
				t.Fatalf("batch at %d, want %d; %+v", b.BaseOffset(), want, b)
			}
			if n++; n == 2 {
				break
			}
		}
		go f.put(0, "h", "i")
		if got := take(t, co.Records(t.Context()), 2); !slices.Equal(got, []string{"7 h", "8 i"}) {
			t.Fatal(got)
		}
		// Left behind the last record of a batch, nothing comes twice.
		go f.put(0, "j")
		for b, err := range co.Batches(t.Context()) {
			if err != nil || b.BaseOffset() != 9 {
				t.Fatalf("%+v %v", b, err)
			}
			break
		}
	})
}

func TestStarts(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.put(0, "a", "b", "c")
		f.put(0, "d", "e", "f")
		c := f.client()
		defer f.stop(c)
		if got := take(t, newConsumer(t, c, From(Earliest())).Records(t.Context()), 1); got[0] != "0 a" {
			t.Error("earliest:", got)
		}
		// In the middle of a batch: the batch comes whole, the records from the offset on.
		if got := take(t, newConsumer(t, c, From(AtOffset(4))).Records(t.Context()), 2); !slices.Equal(got, []string{"4 e", "5 f"}) {
			t.Error("offset 4:", got)
		}
		for b, err := range newConsumer(t, c, From(AtOffset(4))).Batches(t.Context()) {
			if err != nil || b.BaseOffset() != 3 || b.RecordCount() != 3 {
				t.Errorf("%+v %v", b, err)
			}
			break
		}
		co := newConsumer(t, c, From(Latest()))
		f.put(0, "g")
		if got := take(t, co.Records(t.Context()), 1); got[0] != "6 g" {
			t.Error("latest:", got)
		}
		if _, err := c.Consumer(t.Context(), "orders", From(AtOffset(-1))); err == nil {
			t.Error("a negative offset is accepted")
		}
		for _, credit := range []int{0, -1, 1 << 40} {
			if _, err := c.Consumer(t.Context(), "orders", Credit(credit)); err == nil {
				t.Errorf("a credit of %d is accepted", credit)
			}
		}
	})
}

func TestContextEndsIterationAndItGoesOn(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.put(0, "a")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		for round := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			n := 0
			var last error
			for _, err := range co.Records(ctx) {
				if last = err; err == nil {
					n++
				}
			}
			cancel()
			if n != 1 || !errors.Is(last, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("round %d: %d records, %v after %v", round, n, last, time.Since(start))
			}
			f.put(0, "b")
		}
		// Ended before it began.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for _, err := range co.Batches(ctx) {
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		if got := take(t, co.Records(t.Context()), 1); got[0] != "3 b" {
			t.Error(got)
		}
	})
}

// Frames that arrive in pieces, with pauses and cancelled reads between them, are put together (case: truncated input).
func TestFramesInPieces(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		fc := f.last()
		b := buildBatch(t, "one", "two")
		b.SetBase(0, 0)
		frame := append(codec.AppendHeartbeat(nil), deliverFrame(1, codec.Deliver{High: 2}, b)...)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for _, x := range frame {
				fc.send([]byte{x})
				<-time.After(50 * time.Millisecond)
			}
		})
		var got []string
		rounds := 0
		for ; len(got) < 2; rounds++ {
			ctx, cancel := context.WithTimeout(t.Context(), 333*time.Millisecond)
			for r, err := range co.Records(ctx) {
				if err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					break
				}
				if got = append(got, string(r.Value)); len(got) == 2 {
					break
				}
			}
			cancel()
		}
		if !slices.Equal(got, []string{"one", "two"}) || rounds < 10 {
			t.Errorf("%v in %d rounds", got, rounds)
		}
	})
}

// For every prefix of a frame, the broker closes behind it: an error that names the end, no panic, no record.
func TestTruncatedFrames(t *testing.T) {
	b := buildBatch(t, "one", "two")
	frame := deliverFrame(1, codec.Deliver{High: 2, Gap: codec.Gap{From: 0, Next: 5, Reason: codec.GapDropped}}, b)
	for n := range frame {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			c := f.client()
			defer f.stop(c)
			co := newConsumer(t, c)
			fc := f.last()
			fc.send(frame[:n])
			fc.finish()
			for r, err := range co.Records(t.Context()) {
				if !isConn(err) || !errors.Is(err, io.EOF) {
					t.Errorf("%d of %d bytes: %+v %v", n, len(frame), r, err)
				}
			}
			for _, err := range co.Records(t.Context()) {
				if !isConn(err) {
					t.Errorf("the error is not sticky: %v", err)
				}
			}
		})
	}
}

func TestCreditIsGivenBack(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const credit = 8 << 10
		value := string(make([]byte, 500))
		b := buildBatch(t, value)
		for range 100 {
			f.put(0, value)
		}
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c, Credit(credit))
		fc := f.last()
		synctest.Wait()
		sub := func() (at int, left int64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return fc.subs[1].at, fc.subs[1].credit
		}
		// Nobody reads: the credit and at most a batch are on their way.
		if at, left := sub(); at*len(b) >= credit+len(b) || left > 0 {
			t.Fatalf("%d batches are on their way, %d credit left", at, left)
		}
		n := 0
		for _, err := range co.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			synctest.Wait()
			if at, _ := sub(); at < 100 && (at-n)*len(b) < credit/2 {
				t.Fatalf("only %d batches are ahead of the consumer", at-n)
			} else if (at-n)*len(b) > credit+len(b) {
				t.Fatalf("%d batches are ahead of the consumer", at-n)
			}
			if n == 100 {
				break
			}
		}
		if frames := f.count(codec.TypeCredit); frames > 100*len(b)/(credit/4)+1 {
			t.Errorf("%d credit frames for %d bytes", frames, 100*len(b))
		}
	})
}

func TestManyPartitions(t *testing.T) {
	bubble(t, 3, func(t *testing.T, f *fakeBroker) {
		for p := range 3 {
			f.put(p, fmt.Sprint("p", p, "a"), fmt.Sprint("p", p, "b"))
		}
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		if co.Partitions() != 3 || len(co.Positions()) != 3 {
			t.Error(co.Partitions(), co.Positions())
		}
		got := map[string]bool{}
		for r, err := range co.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if want := fmt.Sprint("p", r.Partition, string('a'+rune(r.Offset))); string(r.Value) != want {
				t.Errorf("%q, want %q", r.Value, want)
			}
			if got[string(r.Value)] = true; len(got) == 6 {
				break
			}
		}
		two := newConsumer(t, c, Partitions(2))
		if got := take(t, two.Records(t.Context()), 2); !slices.Equal(got, []string{"0 p2a", "1 p2b"}) {
			t.Error(got)
		}
	})
}

// Frames that come before the last reply of several subscribes are not lost.
func TestFramesBeforeTheLastReply(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		b := buildBatch(t, "early")
		f.on = func(c *fakeConn, h codec.Header, header, _ []byte) bool {
			if h.Type == codec.TypeSubscribe && h.Handle == 2 {
				c.send(codec.AppendHeartbeat(nil))
				c.send(deliverFrame(1, codec.Deliver{High: 1}, b))
			}
			return false
		}
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		if got := take(t, co.Records(t.Context()), 1); !slices.Equal(got, []string{"0 early"}) {
			t.Error(got)
		}
		go f.put(1, "later")
		if got := take(t, co.Records(t.Context()), 1); !slices.Equal(got, []string{"0 later"}) {
			t.Error(got)
		}
	})
}

func TestGapsAreTold(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		frames := func(fc *fakeConn) {
			b := buildBatch(t, "x", "y")
			b.SetBase(10, 0)
			fc.send(deliverFrame(1, codec.Deliver{High: 12, Gap: codec.Gap{From: 0, Next: 10, Reason: codec.GapDropped}}, b))
			fc.send(deliverFrame(1, codec.Deliver{High: 20, Gap: codec.Gap{From: 12, Next: 20, Reason: codec.GapPurged}}))
			fc.send(deliverFrame(1, codec.Deliver{Start: 20, High: 20}))
			b = buildBatch(t, "z")
			b.SetBase(20, 0)
			fc.send(deliverFrame(1, codec.Deliver{High: 21}, b))
		}
		co := newConsumer(t, c)
		frames(f.last())
		var got []string
		for r, err := range co.Records(t.Context()) {
			var gap *GapError
			switch {
			case errors.As(err, &gap):
				got = append(got, fmt.Sprintf("gap %d-%d", gap.Gap.From, gap.Gap.Next))
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, fmt.Sprint(r.Offset))
			}
			if len(got) == 5 {
				break
			}
		}
		if want := []string{"gap 0-10", "10", "11", "gap 12-20", "20"}; !slices.Equal(got, want) {
			t.Errorf("records: %v, want %v", got, want)
		}

		co = newConsumer(t, c)
		frames(f.last())
		got = nil
		for b, err := range co.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if b.Gap != nil {
				got = append(got, fmt.Sprintf("gap %d-%d", b.Gap.From, b.Gap.Next))
			}
			if b.Batch != nil {
				got = append(got, fmt.Sprint(b.BaseOffset()))
			}
			if len(got) == 4 {
				break
			}
		}
		if want := []string{"gap 0-10", "10", "gap 12-20", "20"}; !slices.Equal(got, want) {
			t.Errorf("batches: %v, want %v", got, want)
		}
		if p := co.Positions()[0]; p.Next != 21 || p.High != 21 {
			t.Errorf("%+v", p)
		}
	})
}

// A member of a group sees offsets jump and go back, and the gaps that it is told.
func TestGroup(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		var asked codec.Subscribe
		f.on = func(_ *fakeConn, h codec.Header, header, _ []byte) bool {
			if h.Type == codec.TypeSubscribe {
				asked, _ = codec.ParseSubscribe(header) // the fake itself reports errors
			}
			return false
		}
		c := f.client()
		defer f.stop(c)
		frames := func(fc *fakeConn) {
			batch := func(base codec.Offset) codec.Batch {
				b := buildBatch(t, "x", "y")
				b.SetBase(base, 0)
				return b
			}
			fc.send(deliverFrame(1, codec.Deliver{High: 30}, batch(10), batch(16)))
			fc.send(deliverFrame(1, codec.Deliver{High: 30}, batch(4)))
			fc.send(deliverFrame(1, codec.Deliver{High: 30, Gap: codec.Gap{From: 18, Next: 20, Reason: codec.GapDropped}}, batch(24)))
			fc.send(deliverFrame(1, codec.Deliver{High: 30, Gap: codec.Gap{From: 26, Next: 28, Reason: codec.GapPurged}}))
			// What was given back lies before the gap that was told with it.
			fc.send(deliverFrame(1, codec.Deliver{High: 40, Gap: codec.Gap{From: 30, Next: 40, Reason: codec.GapDropped}}, batch(2)))
		}
		co := newConsumer(t, c, Group("workers"), From(AtOffset(11)))
		if asked.Kind != codec.KindPull || asked.Name != "workers" || asked.From != codec.FromOffset || asked.Value != 11 {
			t.Errorf("%+v", asked)
		}
		frames(f.last())
		var got []string
		for r, err := range co.Records(t.Context()) {
			var gap *GapError
			switch {
			case errors.As(err, &gap):
				got = append(got, fmt.Sprintf("gap %d-%d", gap.Gap.From, gap.Gap.Next))
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, fmt.Sprint(r.Offset))
			}
			next := co.Positions()[0].Next
			if err == nil && next != (r.Offset+2)&^1 || err != nil && next == 0 {
				t.Errorf("at %v the position is %d", got, next)
			}
			if len(got) == 13 {
				break
			}
		}
		want := []string{
			"10", "11", "16", "17", "4", "5", "gap 18-20", "24", "25", "gap 26-28", "gap 30-40", "2", "3",
		}
		if !slices.Equal(got, want) {
			t.Errorf("records: %v, want %v", got, want)
		}

		co = newConsumer(t, c, Group("workers"))
		frames(f.last())
		var positions []codec.Offset
		for b, err := range co.Batches(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			positions = append(positions, co.Positions()[0].Next)
			if b.Batch != nil && b.NextOffset() != positions[len(positions)-1] {
				t.Errorf("%+v", b)
			}
			if len(positions) == 6 {
				break
			}
		}
		if want := []codec.Offset{12, 18, 6, 26, 28, 4}; !slices.Equal(positions, want) {
			t.Errorf("positions: %v, want %v", positions, want)
		}
		if _, err := c.Consumer(t.Context(), "orders", Group("")); err == nil {
			t.Error("a group without a name is accepted")
		}
	})
}

// What a broker must not send ends the consumer with an error that says so, and never with a panic or in silence.
func TestBadFrames(t *testing.T) {
	good := func(base codec.Offset) codec.Batch {
		b := buildBatch(t, "x", "y")
		b.SetBase(base, 0)
		return b
	}
	flipped := good(0)
	flipped[len(flipped)-3] ^= 1
	for _, tt := range []struct {
		name  string
		frame []byte
		code  codec.Code
	}{
		{"CRC", deliverFrame(1, codec.Deliver{}, flipped), codec.CodeBadBatch},
		{"untold gap", deliverFrame(1, codec.Deliver{}, good(1)), codec.CodeMalformedFrame},
		{"batch twice", deliverFrame(1, codec.Deliver{}, good(0), good(0)), codec.CodeMalformedFrame},
		{
			"bytes behind the batches",
			append(codec.AppendDeliver(nil, 1, &codec.Deliver{Count: 1}, len(good(0))+1), append(good(0), 0)...),
			codec.CodeMalformedFrame,
		},
		{"bytes without batches", append(codec.AppendDeliver(nil, 1, &codec.Deliver{}, 1), 0), codec.CodeMalformedFrame},
		{
			"fewer batches than announced",
			append(codec.AppendDeliver(nil, 1, &codec.Deliver{Count: 2}, len(good(0))), good(0)...),
			codec.CodeBadBatch,
		},
		{"unknown handle", deliverFrame(2, codec.Deliver{}, good(0)), codec.CodeUnknownHandle},
		{"no handle", deliverFrame(0, codec.Deliver{}, good(0)), codec.CodeUnknownHandle},
		{"confirm", confirmFrame(1, 0, 0), codec.CodeUnknownFrame},
		{"unknown type", rawFrame(200, 0, 0, 1, nil), codec.CodeUnknownFrame},
		{"connection error", codec.AppendError(nil, 0, 0, codec.Errorf(codec.CodeSlowConsumer, "30 s")), codec.CodeSlowConsumer},
		{"header of nothing", rawFrame(codec.TypeDeliver, 0, 0, 1, nil), codec.CodeMalformedFrame},
		{"length 0", append(lengthPrefix(0), make([]byte, 12)...), codec.CodeMalformedFrame},
		{"length 1", append(lengthPrefix(1), make([]byte, 12)...), codec.CodeMalformedFrame},
		{"length of 2 GiB", append(lengthPrefix(0x7fffffff), make([]byte, 12)...), codec.CodeFrameTooLarge},
		{"negative length", append(lengthPrefix(0x80000000), make([]byte, 12)...), codec.CodeFrameTooLarge},
		{"length of 4 GiB", append(lengthPrefix(0xffffffff), make([]byte, 12)...), codec.CodeFrameTooLarge},
		{"just above the limit", append(lengthPrefix(8<<20-4+1), make([]byte, 12)...), codec.CodeFrameTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, f *fakeBroker) {
				c := f.client()
				defer f.stop(c)
				co := newConsumer(t, c)
				f.last().send(tt.frame)
				var last error
				for _, err := range co.Records(t.Context()) {
					last = err
				}
				if !errors.Is(last, tt.code) {
					t.Errorf("%v, want %s", last, tt.code)
				}
				for _, err := range co.Batches(t.Context()) {
					if err == nil {
						t.Error("iteration goes on after a fatal error")
						break
					}
				}
			})
		})
	}
}

// refinish gives a batch with changed records, or another codec, a valid CRC.
func refinish(b codec.Batch, c codec.Compression) []byte {
	base := b.BaseOffset()
	out := bytes.Clone(b)
	codec.FinishBatch(out, c, b.RecordCount(), b.BaseTimestamp(), b.MaxTimestamp(), codec.NoProducer)
	codec.Batch(out).SetBase(base, 0)
	return out
}

// An announced length costs nothing; memory grows with the bytes that came.
func TestAnnouncedLengthCostsNothing(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		f.last().send(append(lengthPrefix(8<<20-4), make([]byte, 12+100)...))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, err := range co.Batches(ctx) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if n := cap(co.link.frames.buf); n > consumerBufferBytes {
			t.Errorf("a buffer of %d bytes for 116 that came", n)
		}
	})
}

// The largest frame that the broker may send is taken, over a buffer that begins small.
func TestLargestFrame(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		value := bytes.Repeat([]byte("v"), 3<<20)
		f.put(0, "small")
		f.put(0, string(value))
		f.put(0, "small")
		n := 0
		for r, err := range co.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 && !bytes.Equal(r.Value, value) || n != 1 && string(r.Value) != "small" {
				t.Errorf("record %d has %d other bytes", n, len(r.Value))
			}
			if n++; n == 3 {
				break
			}
		}
	})
}

func TestOnePartitionIsCutOff(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		f.put(1, "a")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		fc := f.last()
		fc.send(codec.AppendError(nil, 0, 1, codec.Errorf(codec.CodeSlowConsumer, "30 s")))
		synctest.Wait()
		go func() {
			f.put(1, "b")
			fc.send(codec.AppendError(nil, 0, 2, codec.Errorf(codec.CodeTopicDeleted, "")))
		}()
		var got []string
		for r, err := range co.Records(t.Context()) {
			var pe *PartitionError
			switch {
			case errors.As(err, &pe):
				got = append(got, fmt.Sprint(pe.Partition, " ", pe.Err.(*codec.WireError).Code.String()))
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, string(r.Value))
			}
		}
		slices.Sort(got[:2])
		if want := []string{"0 slow_consumer", "a", "b", "1 topic_deleted"}; !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

func TestGoAwayReasonIsKept(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.put(0, "a")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		synctest.Wait() // the fake has the credit
		f.last().send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeDraining, Reason: "restart"}))
		f.put(0, "b")
		f.last().finish()
		n := 0
		for _, err := range co.Records(t.Context()) {
			if err == nil {
				n++
			} else if !errors.Is(err, codec.CodeDraining) || !isConn(err) || !Retryable(err) {
				t.Error(err)
			}
		}
		if n != 2 {
			t.Errorf("%d records before the end, want 2", n)
		}
	})
}

func TestOneIterationAtATime(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.put(0, "a")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		for _, err := range co.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range co.Batches(t.Context()) {
				if !errors.Is(err, errBusy) {
					t.Error(err)
				}
			}
			for _, err := range co.Records(t.Context()) {
				if !errors.Is(err, errBusy) {
					t.Error(err)
				}
			}
			break
		}
	})
}

func TestCloseEndsIteration(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		done := make(chan error, 1)
		go func() {
			for _, err := range co.Batches(context.Background()) {
				done <- err
			}
		}()
		synctest.Wait()
		if err := co.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		for _, err := range co.Records(t.Context()) {
			if !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}
	})
}

// A consumer and a producer over real sockets, the consumer cancelling now and then: all records once and in order.
func TestThroughSockets(t *testing.T) {
	f := newFake(t, 1)
	f.tcp = true
	c := f.client()
	defer f.stop(c)
	p := newProducer(t, c, BatchBytes(4<<10))
	co := newConsumer(t, c, Credit(64<<10))
	const n = 20000
	done := make(chan error, 1)
	go func() {
		for i := range n {
			if err := p.PublishValue(context.Background(), 0, fmt.Appendf(nil, "%d", i)); err != nil {
				done <- err
				return
			}
		}
		done <- p.Flush(context.Background())
	}()
	next, cancels := 0, 0
	for next < n {
		ctx, cancel := context.WithCancel(t.Context())
		for r, err := range co.Records(ctx) {
			if errors.Is(err, context.Canceled) {
				cancels++
				break
			}
			if err != nil || string(r.Value) != fmt.Sprint(next) || r.Offset != codec.Offset(next) {
				t.Fatalf("record %d: %+v %v", next, r, err)
			}
			if next++; next == n {
				break
			}
			if next%1000 == 0 {
				cancel()
			}
		}
		cancel()
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if cancels == 0 {
		t.Error("no iteration was cancelled")
	}
}
