package topic

import (
	"fmt"
	"testing"

	"github.com/lightio/lightq/codec"
)

// quietSink is a sink that only counts results. Where woken is not nil it tells of wake-ups.
type quietSink struct {
	results int
	woken   chan struct{}
}

func (s *quietSink) Confirmed(results []Result) { s.results += len(results) }

func (s *quietSink) Wake(*Cursor) {
	if s.woken != nil {
		s.woken <- struct{}{}
	}
}

func (s *quietSink) Flush() {}

// A pipe is a partition with one publisher and some subscriptions that keep up.
type pipe struct {
	part    *Partition
	sink    quietSink
	pool    *codec.SlabPool
	pub     Publisher
	subs    []*Cursor
	sealed  []byte
	n       uint64
	list    [1]Published
	taken   Taken
	batches int // taken
}

func newPipe(tb testing.TB, s codec.TopicSettings, subs int, sealed []byte) *pipe {
	tb.Helper()
	s.Partitions, s.MaxBatchBytes = 1, 1<<20
	p := &pipe{part: memoryTopic("t", s).Partitions()[0], pool: codec.NewSlabPool(64 << 20), sealed: sealed}
	if _, _, err := p.part.OpenPublisher(&p.pub, &p.sink, 1, codec.LevelDefault); err != nil {
		tb.Fatal(err)
	}
	for range subs {
		cur := &Cursor{}
		if _, _, _, err := p.part.Attach(cur, &p.sink, "", codec.FromLatest, 0, testMillis); err != nil {
			tb.Fatal(err)
		}
		p.subs = append(p.subs, cur)
	}
	return p
}

// publish puts the batch into a slab and publishes it, as a session does with a frame.
func (p *pipe) publish() {
	slab := p.pool.Get(len(p.sealed))
	b := slab.Bytes()[:len(p.sealed)]
	copy(b, p.sealed)
	p.list[0] = Published{Number: p.n, Batch: b, Slab: slab}
	p.n++
	p.part.Publish(&p.pub, 1, p.list[:], testMillis)
}

func (p *pipe) take(cur *Cursor) {
	p.taken.Reset()
	cur.Take(&p.taken, 256<<10, testMillis)
	p.batches += len(p.taken.Batches)
	releaseTaken(p.taken.Batches)
}

// round publishes one batch and hands it to everybody.
func (p *pipe) round() {
	p.publish()
	for _, cur := range p.subs {
		p.take(cur)
	}
}

// fill goes on until the ring is full and everything has its size.
func (p *pipe) fill() {
	for p.part.Info().Start == 0 {
		p.round()
	}
}

// valuesBatch is a batch of n records of size bytes each.
func valuesBatch(n, size int) []byte {
	var w codec.BatchBuilder
	w.Reset(nil, codec.MaxSlabBytes)
	value := make([]byte, size)
	for range n {
		w.AddValue(testMillis, value)
	}
	return w.Finish(codec.NoProducer)
}

// TestInlinePathAllocatesNothing: once the ring is full and slices have their sizes, a small batch goes from a publisher to
// a subscription without an allocation, and without a goroutine; so it does through a group, and on a direct topic.
func TestInlinePathAllocatesNothing(t *testing.T) {
	for _, c := range []struct {
		what    string
		storage codec.Storage
		subs    int
		group   bool
	}{
		{"queue, one sub", codec.StorageQueue, 1, false},
		{"queue, three subs", codec.StorageQueue, 3, false},
		{"queue, a member of a group", codec.StorageQueue, 0, true},
		{"queue, nobody", codec.StorageQueue, 0, false},
		{"direct, one sub", codec.StorageDirect, 1, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			p := newPipe(t, codec.TopicSettings{Storage: c.storage, RingBytes: 64 << 10, Overflow: codec.OverflowBlock}, c.subs, valuesBatch(10, 100))
			if c.group {
				cur := &Cursor{}
				if _, _, _, err := p.part.Attach(cur, &p.sink, "g", codec.FromLatest, 0, testMillis); err != nil {
					t.Fatal(err)
				}
				cur.Grant(len(p.sealed), testMillis)
				p.subs = append(p.subs, cur)
			}
			round := func() {
				for range 10 {
					p.round()
					if c.group {
						p.subs[0].Grant(p.taken.Bytes, testMillis)
					}
				}
			}
			for range 20 { // a ring's worth
				round()
			}
			if n := testing.AllocsPerRun(100, round); n != 0 {
				t.Errorf("%v allocations for 10 batches", n)
			}
			if p.sink.results != int(p.n) || p.part.busy.Load() {
				t.Errorf("%d results for %d batches; a writer runs: %v", p.sink.results, p.n, p.part.busy.Load())
			}
			if want := int(p.n) * len(p.subs); p.batches != want {
				t.Errorf("%d batches were taken, expected %d", p.batches, want)
			}
		})
	}
}

// TestTakeIsBounded: the batches of one take become one frame and the pieces of one write, so however small they are and
// however much is asked for, there are no more than maxTake.
func TestTakeIsBounded(t *testing.T) {
	for _, group := range []string{"", "g"} {
		p := newPipe(t, codec.TopicSettings{RingBytes: 1 << 20, Overflow: codec.OverflowBlock}, 0, valuesBatch(1, 1))
		cur := &Cursor{}
		if _, _, _, err := p.part.Attach(cur, &p.sink, group, codec.FromLatest, 0, testMillis); err != nil {
			t.Fatal(err)
		}
		cur.Grant(1<<30, testMillis)
		for range 2*maxTake + 1 {
			p.publish()
		}
		for _, want := range []int{maxTake, maxTake, 1, 0} {
			p.taken.Reset()
			cur.Take(&p.taken, 1<<30, testMillis)
			if n := len(p.taken.Batches); n != want {
				t.Errorf("group %q: took %d batches, expected %d", group, n, want)
			}
			releaseTaken(p.taken.Batches)
		}
		p.part.remove(testMillis)
	}
}

// BenchmarkPublishTake moves batches from a publisher to a subscription: check, append, results, take. The copy into a
// slab stands for the socket.
func BenchmarkPublishTake(b *testing.B) {
	for _, size := range []int{16, 100, 1024} {
		for _, batch := range []int{1, 64, 1000} {
			b.Run(fmt.Sprintf("store=ring/size=%d/batch=%d", size, batch), func(b *testing.B) {
				p := newPipe(b, codec.TopicSettings{RingBytes: 4 << 20, Overflow: codec.OverflowBlock}, 1, valuesBatch(batch, size))
				inline := len(p.sealed) <= inlineBytes
				p.sink.woken = make(chan struct{}, 1)
				p.take(p.subs[0]) // nothing: it waits to be woken
				round := func() {
					p.publish()
					<-p.sink.woken
					p.take(p.subs[0])
					p.take(p.subs[0])
				}
				for p.part.Info().Start == 0 {
					round()
				}
				b.SetBytes(int64(size * batch))
				b.ReportAllocs()
				for b.Loop() {
					round()
				}
				if p.batches != int(p.n) || inline && p.part.busy.Load() {
					b.Fatalf("%d of %d batches were taken", p.batches, p.n)
				}
				b.ReportMetric(float64(batch)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
			})
		}
	}
}

// BenchmarkFanOut hands each batch to many subscriptions. On a direct topic the ring is trimmed behind each take.
func BenchmarkFanOut(b *testing.B) {
	for _, storage := range []codec.Storage{codec.StorageQueue, codec.StorageDirect} {
		for _, subs := range []int{1, 10, 1000} {
			b.Run(fmt.Sprintf("store=%s/size=100/batch=10/subs=%d", storage, subs), func(b *testing.B) {
				p := newPipe(b, codec.TopicSettings{Storage: storage, RingBytes: 4 << 20, Overflow: codec.OverflowBlock}, subs, valuesBatch(10, 100))
				if storage == codec.StorageQueue {
					p.fill()
				}
				b.SetBytes(int64(1000 * subs))
				b.ReportAllocs()
				for b.Loop() {
					p.round()
				}
			})
		}
	}
}

// BenchmarkNeeded looks up the slowest of 1,000 cursors, all of which need the oldest batch: where the one that was found
// last time still stands there, and where it has moved.
func BenchmarkNeeded(b *testing.B) {
	for _, all := range []bool{false, true} {
		b.Run(fmt.Sprintf("cursors=1000/all=%v", all), func(b *testing.B) {
			p := newPipe(b, codec.TopicSettings{RingBytes: 4 << 20, Overflow: codec.OverflowBlock}, 1000, valuesBatch(1, 100))
			p.publish()
			c := &p.part.core
			b.ReportAllocs()
			for b.Loop() {
				if all {
					c.holder = nil
				}
				if !c.needed(c.ring.first) {
					b.Fatal("the oldest batch is needed")
				}
			}
		})
	}
}

// BenchmarkShare gives batches to the members of a group in turn.
func BenchmarkShare(b *testing.B) {
	for _, members := range []int{1, 64} {
		b.Run(fmt.Sprintf("members=%d/size=100/batch=10", members), func(b *testing.B) {
			p := newPipe(b, codec.TopicSettings{RingBytes: 4 << 20, Overflow: codec.OverflowBlock}, 0, valuesBatch(10, 100))
			for range members {
				cur := &Cursor{}
				if _, _, _, err := p.part.Attach(cur, &p.sink, "g", codec.FromLatest, 0, testMillis); err != nil {
					b.Fatal(err)
				}
				cur.Grant(len(p.sealed), testMillis)
				p.subs = append(p.subs, cur)
			}
			i := 0
			b.SetBytes(1000)
			b.ReportAllocs()
			for b.Loop() {
				p.publish()
				cur := p.subs[i%members]
				p.take(cur)
				cur.Grant(p.taken.Bytes, testMillis)
				i++
			}
			if p.batches != int(p.n) {
				b.Fatalf("%d of %d batches were taken", p.batches, p.n)
			}
		})
	}
}

// BenchmarkLeave lets a member that was given 10,000 batches leave, and another take them.
func BenchmarkLeave(b *testing.B) {
	const batches = 10_000
	b.ReportAllocs()
	for b.Loop() {
		leaveWith(b, batches)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batches, "ns/batch")
}

// TestLeavingWithMuch: a member leaves what a large credit has brought it, and the others get it in order. What it costs
// grows with the number of batches, not with its square: that would hold the partition's lock for minutes.
func TestLeavingWithMuch(t *testing.T) { leaveWith(t, 100_000) }

func leaveWith(tb testing.TB, batches int) {
	tb.Helper()
	p := newPipe(tb, codec.TopicSettings{RingBytes: 1 << 30, Overflow: codec.OverflowBlock}, 0, nil)
	var members [3]Cursor
	for i := range members {
		if _, _, _, err := p.part.Attach(&members[i], &p.sink, "g", codec.FromLatest, 0, testMillis); err != nil {
			tb.Fatal(err)
		}
		if i < 2 { // they get every other batch
			members[i].Grant(1<<30, testMillis)
		}
	}
	sealed := valuesBatch(1, 1)
	perSlab := codec.MinSlabBytes / len(sealed)
	for sent := 0; sent < batches; {
		slab := p.pool.Get(perSlab * len(sealed))
		list := make([]Published, min(perSlab, batches-sent))
		for i := range list {
			b := slab.Bytes()[i*len(sealed):][:len(sealed):len(sealed)]
			copy(b, sealed)
			list[i] = Published{Number: p.n, Batch: b, Slab: slab}
			p.n++
		}
		slab.RetainN(len(list) - 1)
		p.part.Publish(&p.pub, 1, list, testMillis)
		sent += len(list)
	}
	members[1].Detach(testMillis)
	members[0].Detach(testMillis)
	if b := p.part.Info().QueueSize; b != uint64(batches) {
		tb.Fatalf("%d records are to be given out, expected %d", b, batches)
	}
	members[2].Grant(1<<30, testMillis)
	next := codec.Offset(0)
	for {
		p.taken.Reset()
		members[2].Take(&p.taken, 1<<20, testMillis)
		if len(p.taken.Batches) == 0 {
			break
		}
		for _, b := range p.taken.Batches {
			if base := codec.Batch(b.Bytes).BaseOffset(); base != next {
				tb.Fatalf("the batch at %d came, the one at %d was due", base, next)
			}
			next++
		}
		releaseTaken(p.taken.Batches)
	}
	if next != codec.Offset(batches) {
		tb.Fatalf("%d of %d batches came", next, batches)
	}
	p.part.remove(testMillis)
	if n := p.pool.InUseBytes(); n != 0 {
		tb.Fatalf("%d bytes of slabs have leaked", n)
	}
}
