package loadgen

import (
	"encoding/binary"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

const (
	testSize = 100
	runA     = 0xA
	runB     = 0xB
)

// message is a generated message as a test writes it.
func message(random, seq uint64, sent int64) []byte {
	m := newMessage(runOf(random), testSize)
	binary.BigEndian.PutUint64(m[messageSequence:], seq)
	binary.BigEndian.PutUint64(m[messageSent:], uint64(sent))
	return m
}

// feed makes batches for a receiver, with dense offsets.
type feed struct {
	r    *Receiver
	m    *Measurement
	next codec.Offset
	now  int64
	over bool
	gap  *codec.Gap
}

func newFeed(want int64, begin codec.Offset, droppedUnread int64) *feed {
	f := &feed{next: begin, now: 1_000_000}
	f.m = NewMeasurement("test", want, func() { f.over = true }, nil)
	f.r = f.m.Receiver(0, begin, droppedUnread)
	return f
}

// batch delivers one batch of these values.
func (f *feed) batch(t *testing.T, values ...[]byte) {
	t.Helper()
	var w codec.BatchBuilder
	w.Reset(make([]byte, 0, 1<<20), 1<<20)
	for _, v := range values {
		if !w.AddValue(0, v) {
			t.Fatal("the batch is full")
		}
	}
	b := codec.Batch(w.Finish(codec.NoProducer))
	b.SetBase(f.next, 0)
	f.next += codec.Offset(len(values))
	gap := f.gap
	f.gap = nil
	if err := f.r.add(client.Batch{Batch: b, Gap: gap}, f.now); err != nil {
		t.Fatal(err)
	}
}

// dropped makes the next batch come behind a gap of n records.
func (f *feed) dropped(n int64) {
	f.gap = &codec.Gap{From: f.next, Next: f.next + codec.Offset(n), Reason: codec.GapDropped}
	f.next = f.gap.Next
}

// run is messages [from, next) of a run, in batches of 7.
func (f *feed) run(t *testing.T, random, from, next uint64) {
	t.Helper()
	for from < next {
		var values [][]byte
		for ; from < next && len(values) < 7; from++ {
			values = append(values, message(random, from, f.now-1000))
		}
		f.batch(t, values...)
	}
}

// figures are what a test compares.
type figures struct {
	Run                                        string
	Received, Lost, Duplicate, OutOfOrder, Gap int64
	Skipped, Ignored                           int64
	Over                                       bool
	Fault                                      string
}

func (f *feed) figures() figures {
	rep := f.m.Report()
	p := rep.Partitions[0]
	got := figures{
		Run: rep.RunID, Received: p.Received, Gap: p.Gap, Skipped: p.Skipped, Ignored: rep.Ignored,
		Over: f.over, Fault: rep.Fault(true),
	}
	if p.Lost != nil {
		got.Lost, got.Duplicate, got.OutOfOrder = *p.Lost, *p.Duplicate, *p.OutOfOrder
	}
	return got
}

func TestReceiver(t *testing.T) {
	a, b := runOf(runA).String(), runOf(runB).String()
	text := []byte("this is a line of text that somebody published for another reason, longer than a header")
	for _, tc := range []struct {
		name  string
		want  int64
		begin codec.Offset
		// dropped unread before begin
		dropped int64
		deliver func(*testing.T, *feed)
		figures figures
	}{
		{name: "all in order", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 99)
			if f.over {
				t.Error("over with one message missing")
			}
			f.run(t, runA, 99, 100)
		}, figures: figures{Run: a, Received: 100, Over: true}},
		{name: "more than wanted", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 140)
		}, figures: figures{Run: a, Received: 100, Ignored: 40, Over: true}},
		{name: "lost in a batch and between batches", want: 100, deliver: func(t *testing.T, f *feed) {
			f.batch(t, message(runA, 0, 0), message(runA, 1, 0), message(runA, 4, 0))
			f.run(t, runA, 10, 100)
		}, figures: figures{Run: a, Received: 93, Lost: 7, Fault: "7 lost"}},
		{name: "lost at the start", want: 10, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 3, 10)
		}, figures: figures{Run: a, Received: 7, Lost: 3, Fault: "3 lost"}},
		{name: "duplicates", want: 20, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 10)
			f.run(t, runA, 5, 20)
		}, figures: figures{Run: a, Received: 20, Duplicate: 5, Over: true, Fault: "5 duplicate"}},
		{name: "out of order", want: 10, deliver: func(t *testing.T, f *feed) {
			for _, seq := range []uint64{0, 1, 5, 6, 3, 2, 4, 7, 9, 8} {
				f.batch(t, message(runA, seq, 0))
			}
		}, figures: figures{Run: a, Received: 10, OutOfOrder: 4, Over: true, Fault: "4 out of order"}},
		{name: "out of order and again", want: 10, deliver: func(t *testing.T, f *feed) {
			for _, seq := range []uint64{0, 2, 1, 1, 3, 4, 5, 6, 7, 8, 9} {
				f.batch(t, message(runA, seq, 0))
			}
		}, figures: figures{Run: a, Received: 10, OutOfOrder: 1, Duplicate: 1, Over: true, Fault: "1 duplicate, 1 out of order"}},
		{name: "gap told explains the hole", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 30)
			f.dropped(50)
			f.run(t, runA, 80, 100)
		}, figures: figures{Run: a, Received: 50, Gap: 50, Over: true, Fault: "50 dropped before anybody read them"}},
		{name: "gap explains part of the hole", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 30)
			f.dropped(40)
			f.run(t, runA, 80, 100)
		}, figures: figures{Run: a, Received: 50, Gap: 40, Lost: 10, Fault: "10 lost, 40 dropped before anybody read them"}},
		{name: "gap of other records", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 30)
			f.dropped(40)
			f.run(t, runA, 30, 100)
		}, figures: figures{Run: a, Received: 100, Over: true}},
		{name: "a declared gap is none", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 30)
			f.dropped(50)
			f.gap.Reason = codec.GapDeclared
			f.run(t, runA, 80, 100)
		}, figures: figures{Run: a, Received: 50, Lost: 50, Fault: "50 lost"}},
		{name: "the end of the run is in the gap", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 30)
			f.dropped(500)
			f.run(t, runB, 0, 7)
		}, figures: figures{Run: a, Received: 30, Gap: 70, Ignored: 7, Over: true, Fault: "70 dropped before anybody read them"}},
		{name: "late consumer, dropped unread", want: 100, begin: 60, dropped: 60, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 60, 100)
		}, figures: figures{Run: a, Received: 40, Gap: 60, Over: true, Fault: "60 dropped before anybody read them"}},
		{name: "late consumer that wants less than was dropped", want: 10, begin: 60, dropped: 60, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 60, 100)
		}, figures: figures{Run: a, Gap: 10, Ignored: 40, Over: true, Fault: "10 dropped before anybody read them"}},
		{name: "what others have read is not lost and not waited for", want: 100, begin: 60, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 60, 100)
			if f.over {
				t.Error("over with half of a run")
			}
			f.run(t, runB, 0, 100)
		}, figures: figures{Run: b, Received: 100, Ignored: 40, Over: true}},
		{name: "half a run", want: 100, begin: 60, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 60, 100)
		}, figures: figures{Run: a, Received: 40, Skipped: 60, Fault: "60 not received from test_1"}},
		{name: "a smaller run before", want: 100, deliver: func(t *testing.T, f *feed) {
			f.run(t, runA, 0, 50)
			f.run(t, runB, 0, 100)
		}, figures: figures{Run: b, Received: 100, Ignored: 50, Over: true}},
		{name: "two runs at once, mixed in one batch", want: 40, deliver: func(t *testing.T, f *feed) {
			for i := uint64(0); i < 40; i++ {
				f.batch(t, message(runA, i, 0), message(runB, i/2, 0), text)
			}
		}, figures: figures{Run: a, Received: 40, Ignored: 80, Over: true}},
		{name: "other data between", want: 20, deliver: func(t *testing.T, f *feed) {
			f.batch(t, text, nil, []byte{}, []byte("short"))
			f.run(t, runA, 0, 20)
		}, figures: figures{Run: a, Received: 20, Ignored: 4, Over: true}},
		{name: "a message whose pattern is damaged starts no run", want: 3, deliver: func(t *testing.T, f *feed) {
			m := message(runA, 0, 0)
			m[testSize-1] ^= 1
			f.batch(t, m)
			f.run(t, runB, 0, 3)
		}, figures: figures{Run: b, Received: 3, Ignored: 1, Over: true}},
		{name: "too small to verify", want: 5, deliver: func(t *testing.T, f *feed) {
			for range 3 {
				f.batch(t, []byte("abc"), []byte("abc"))
			}
		}, figures: figures{Received: 5, Ignored: 1, Over: true}},
		{name: "too small to verify, behind a gap", want: 5, begin: 3, dropped: 3, deliver: func(t *testing.T, f *feed) {
			f.batch(t, []byte("abc"), []byte("abc"))
		}, figures: figures{Received: 2, Gap: 3, Over: true, Fault: "3 dropped before anybody read them"}},
		{name: "nothing", want: 5, deliver: func(*testing.T, *feed) {}, figures: figures{Fault: "5 not received from test_1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed(tc.want, tc.begin, tc.dropped)
			tc.deliver(t, f)
			if d := cmp.Diff(tc.figures, f.figures()); d != "" {
				t.Errorf("figures (-want +got):\n%s", d)
			}
		})
	}
}

// TestReceiverManyRuns: a topic that many runs went through costs a bounded number of counters, and the one that matters is
// counted all the same.
func TestReceiverManyRuns(t *testing.T) {
	f := newFeed(10, 0, 0)
	for i := uint64(1); i <= 4*maxRuns; i++ {
		f.now++
		f.run(t, i, 0, 3)
		if len(f.r.runs) > maxRuns {
			t.Fatalf("%d runs are kept", len(f.r.runs))
		}
	}
	f.run(t, 1000, 0, 10)
	want := figures{Run: runOf(1000).String(), Received: 10, Ignored: 4 * maxRuns * 3, Over: true}
	if d := cmp.Diff(want, f.figures()); d != "" {
		t.Errorf("figures (-want +got):\n%s", d)
	}
}

func TestReceiverLatency(t *testing.T) {
	f := newFeed(4, 0, 0)
	f.batch(t, message(runA, 0, f.now-1000), message(runA, 1, f.now-1000), message(runA, 2, f.now-9000))
	f.now += 50_000
	f.batch(t, message(runA, 3, f.now+5)) // a clock that is behind: as little as can be counted
	rep := f.m.Report()
	l := rep.Latency
	if l.Count != 4 || l.Max < 9 || l.Max > 9.01 || l.P50 < 1 || l.P50 > 1.01 {
		t.Errorf("latency %+v", l)
	}
	p := rep.Partitions[0]
	if *p.FirstLatencyUS != 1 || !p.FromStart || p.FirstSentNS != 999_000 || p.FirstReceivedNS != 1_000_000 || p.LastReceivedNS != 1_050_000 {
		t.Errorf("partition %+v", p)
	}
	if want := 51_000.0 / 4; *p.NSPerMessage != want {
		t.Errorf("%v ns/message, want %v", *p.NSPerMessage, want)
	}
}

// TestReceiverPartitions: a measurement of two partitions is over when one run is complete in both.
func TestReceiverPartitions(t *testing.T) {
	over := 0
	m := NewMeasurement("test", 10, func() { over++ }, nil)
	f0, f1 := &feed{m: m, now: 1}, &feed{m: m, now: 1}
	f0.r, f1.r = m.Receiver(0, 0, 0), m.Receiver(1, 0, 0)
	f0.run(t, runA, 0, 10)
	f1.run(t, runB, 0, 10)
	if m.Over() {
		t.Fatal("over with two halves of different runs")
	}
	f0.run(t, runB, 0, 10)
	f1.run(t, runA, 0, 10)
	if !m.Over() || over != 1 {
		t.Fatalf("over %v, told %d times", m.Over(), over)
	}
	rep := m.Report()
	if rep.RunID != runOf(runB).String() || rep.Total.Received != 20 || rep.Partitions[1].Label != "test_2" || rep.Fault(true) != "" {
		t.Errorf("report %+v", rep)
	}
}

// TestReceiverLate: when the last message has come and others are missing, the measurement ends after a while.
func TestReceiverLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFeed(10, 0, 0)
		wake := make(chan struct{})
		f.m.end = func() { close(wake) }
		batches := func(yield func(client.Batch, error) bool) {
			var w codec.BatchBuilder
			for _, seq := range []uint64{0, 1, 2, 4, 5, 6, 7, 8, 9} {
				w.Reset(nil, 1<<20)
				w.AddValue(0, message(runA, seq, 0))
				if !yield(client.Batch{Batch: codec.Batch(w.Finish(codec.NoProducer))}, nil) {
					return
				}
			}
			<-wake
		}
		start := time.Now()
		if err := f.r.Run(batches, func(client.Batch) bool { return false }); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d != lateLimit {
			t.Errorf("it ended after %v", d)
		}
		if got := f.figures(); got.Received != 9 || got.Lost != 1 || got.Fault != "1 lost" {
			t.Errorf("figures %+v", got)
		}
	})
}

func TestReceiverRefusesDamage(t *testing.T) {
	f := newFeed(10, 0, 0)
	var w codec.BatchBuilder
	w.Reset(nil, 1<<20)
	w.AddValue(0, message(runA, 0, 0))
	b := codec.Batch(w.Finish(codec.NoProducer))
	if err := f.r.add(client.Batch{Batch: b[:len(b)-1]}, 1); err == nil {
		t.Error("a record that does not decode was accepted")
	}
}

// TestReceiverAllocates: nothing, per batch and per message.
func TestReceiverAllocates(t *testing.T) {
	var w codec.BatchBuilder
	const records = 1000
	f := newFeed(1<<40, 0, 0)
	buf := make([]byte, 0, 1<<20)
	m := message(runA, 0, 0)
	seq := uint64(0)
	now := int64(1_000_000)
	step := func() {
		w.Reset(buf, 1<<20)
		for range records {
			binary.BigEndian.PutUint64(m[messageSequence:], seq)
			binary.BigEndian.PutUint64(m[messageSent:], uint64(now)-seq%3)
			w.AddValue(0, m)
			seq++
		}
		if err := f.r.add(client.Batch{Batch: codec.Batch(w.Finish(codec.NoProducer))}, now); err != nil {
			t.Fatal(err)
		}
		now += 1000
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

func BenchmarkReceiver(b *testing.B) {
	var w codec.BatchBuilder
	const records = 2400 // 256 KiB
	w.Reset(make([]byte, 0, 1<<20), 1<<20)
	m := message(runA, 0, 0)
	for i := range records {
		binary.BigEndian.PutUint64(m[messageSequence:], uint64(i))
		binary.BigEndian.PutUint64(m[messageSent:], uint64(i/clockEvery))
		w.AddValue(0, m)
	}
	batch := client.Batch{Batch: codec.Batch(w.Finish(codec.NoProducer))}
	f := newFeed(1<<62, 0, 0)
	b.SetBytes(records * testSize)
	b.ReportAllocs()
	for b.Loop() {
		if t := f.r.cur; t != nil {
			t.next = 0
		}
		if err := f.r.add(batch, 1_000_000); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/records, "ns/record")
}
