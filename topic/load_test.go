package topic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// loadDeadline ends a test whose event does not come.
const loadDeadline = time.Minute

// await calls done until it returns true.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(loadDeadline); !done(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", loadDeadline, what)
		}
	}
}

// wait waits for an event on c.
func wait(c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-time.After(loadDeadline):
		return fmt.Errorf("waited %s", loadDeadline)
	}
}

func nowMillis() int64 { return time.Now().UnixMilli() }

// A load is a registry in use from many goroutines.
type load struct {
	registry *Registry
	sink     eventSink
	pool     *codec.SlabPool
	seed     uint64

	done   chan struct{} // closed when all publishers have their results
	faults chan error
}

func (l *load) fault(format string, args ...any) {
	select {
	case l.faults <- fmt.Errorf(format, args...):
	default:
	}
}

// publish publishes n batches in frames of all sizes, small ones inline, with a window, and opens the handle again after
// a refusal. It ends early when the topic is deleted.
func (l *load) publish(part *Partition, id, n int) {
	r := rand.New(rand.NewPCG(l.seed, uint64(id)))
	p := &Publisher{}
	events := newPublisherEvents()
	p.Tag = events
	epoch := uint32(1)
	open := func() bool {
		_, _, err := part.OpenPublisher(p, &l.sink, epoch, codec.LevelDefault)
		if err != nil && !errors.Is(err, codec.CodeTopicDeleted) {
			l.fault("open: %w", err)
		}
		return err == nil
	}
	if !open() {
		return
	}
	defer p.Close()
	sent, number := 0, uint64(0)
	for sent < n {
		var batches [][]byte
		for range 1 + r.IntN(6) {
			size := smallestBatch + r.IntN(200)
			if r.IntN(8) == 0 {
				size = 4<<10 + r.IntN(12<<10) // a frame with such ones goes to the writer
			}
			b := sealedBatch(nil, int64(id)<<32|int64(sent+len(batches)), 1+r.IntN(3), size)
			if r.IntN(200) == 0 {
				spoil(b)
			}
			batches = append(batches, b)
		}
		part.Publish(p, epoch, published(l.pool, number, batches...), nowMillis())
		sent += len(batches)
		number += uint64(len(batches))
		for {
			count, refused := l.sink.state(events)
			if refused == codec.CodeTopicDeleted && count == sent {
				return
			}
			if refused != codec.CodeNone && count == sent { // all of the epoch are answered
				epoch++
				number = 0
				if !open() {
					return
				}
				break
			}
			if refused == codec.CodeNone && sent-count < 40 && sent < n || count == sent {
				break
			}
			if err := wait(events.wake); err != nil {
				l.fault("publisher %d has %d results for %d batches: %w", id, count, sent, err)
				return
			}
		}
	}
}

// subscribe takes everything from the beginning, with interruptions, until the load is over and nothing is left. No offset
// may be missing without a gap, none may come twice, and a publisher's batches come in order.
func (l *load) subscribe(part *Partition, id int) {
	r := rand.New(rand.NewPCG(l.seed, uint64(id)))
	next := codec.Offset(0)
	last := map[int64]int64{} // by publisher
	wake := make(chan struct{}, 1)
	var held []TakenBatch
	defer func() { releaseTaken(held) }()
	for {
		cur := &Cursor{Tag: wake}
		if _, _, _, err := part.Attach(cur, &l.sink, "", codec.FromOffset, uint64(next), nowMillis()); err != nil {
			if !errors.Is(err, codec.CodeTopicDeleted) {
				l.fault("attach at %d: %w", next, err)
			}
			return
		}
		for again := false; !again; {
			var taken Taken
			cur.Take(&taken, 1+r.IntN(32<<10), nowMillis())
			if g := taken.Gap; g.Next != 0 {
				if g.From != next {
					l.fault("subscription %d is at %d and was told the gap %v", id, next, g)
				}
				next = g.Next
			}
			for _, b := range taken.Batches {
				batch := codec.Batch(b.Bytes)
				if err := codec.CheckDelivered(batch); err != nil {
					l.fault("subscription %d: %w", id, err)
					return
				}
				if batch.BaseOffset() != next {
					l.fault("subscription %d is at %d and got %d", id, next, batch.BaseOffset())
				}
				next = batch.NextOffset()
				publisher, n := batchID(batch)>>32, batchID(batch)&(1<<32-1)
				if v, ok := last[publisher]; ok && n <= v {
					l.fault("subscription %d: batch %d of publisher %d came behind batch %d", id, n, publisher, v)
				}
				last[publisher] = n
			}
			held = append(held, taken.Batches...)
			if n := len(held) - r.IntN(100); n > 0 {
				releaseTaken(held[:n])
				held = held[n:]
			}
			if again = r.IntN(50) == 0 || cur.Cut() != codec.CodeNone; again {
				break
			}
			if len(taken.Batches) > 0 || taken.Gap.Next != 0 {
				continue
			}
			select {
			case <-wake:
			case <-l.done:
				if len(wake) > 0 {
					continue
				}
				if next != part.Info().High {
					l.fault("subscription %d ends at %d, not at %d", id, next, part.Info().High)
				}
				cur.Detach(nowMillis())
				return
			case <-time.After(loadDeadline):
				l.fault("subscription %d waited %s", id, loadDeadline)
				return
			}
		}
		cur.Detach(nowMillis())
	}
}

// A shared is what the members of a group have got.
type shared struct {
	mu   sync.Mutex
	seen map[codec.Offset]bool
}

func (s *shared) add(from, next codec.Offset) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for o := from; o < next; o++ {
		if s.seen[o] {
			return fmt.Errorf("offset %d came twice", o)
		}
		s.seen[o] = true
	}
	return nil
}

// join is a member of a group that comes and goes.
func (l *load) join(part *Partition, group string, got *shared, id int) {
	r := rand.New(rand.NewPCG(l.seed, uint64(id)))
	wake := make(chan struct{}, 1)
	for {
		cur := &Cursor{Tag: wake}
		if _, _, _, err := part.Attach(cur, &l.sink, group, codec.FromEarliest, 0, nowMillis()); err != nil {
			if !errors.Is(err, codec.CodeTopicDeleted) {
				l.fault("join: %w", err)
			}
			return
		}
		cur.Grant(r.IntN(40<<10), nowMillis())
		for again := false; !again; {
			var taken Taken
			cur.Take(&taken, 1+r.IntN(32<<10), nowMillis())
			if g := taken.Gap; g.Next != 0 {
				if err := got.add(g.From, g.Next); err != nil {
					l.fault("gap %v: %w", g, err)
				}
			}
			for _, b := range taken.Batches {
				batch := codec.Batch(b.Bytes)
				if err := codec.CheckDelivered(batch); err != nil {
					l.fault("member %d: %w", id, err)
					return
				}
				if err := got.add(batch.BaseOffset(), batch.NextOffset()); err != nil {
					l.fault("member %d: %w", id, err)
				}
			}
			releaseTaken(taken.Batches)
			cur.Grant(taken.Bytes+r.IntN(2), nowMillis())
			if again = r.IntN(50) == 0 || cur.Cut() != codec.CodeNone; again {
				break
			}
			if len(taken.Batches) > 0 || taken.Gap.Next != 0 {
				continue
			}
			select {
			case <-wake:
			case <-l.done:
				cur.Detach(nowMillis())
				return
			case <-time.After(loadDeadline):
				l.fault("member %d waited %s", id, loadDeadline)
				return
			}
		}
		cur.Detach(nowMillis())
	}
}

// administer alters, purges, ticks and looks until the load is over. Once it has seen some records it deletes topic "gone".
func (l *load) administer(names []string) {
	r := rand.New(rand.NewPCG(l.seed, 99))
	deleted := false
	for i := 0; ; i++ {
		select {
		case <-l.done:
			return
		default:
		}
		name := names[r.IntN(len(names))]
		switch r.IntN(8) {
		case 0:
			change := codec.TopicSettings{
				Overflow:  []codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject}[r.IntN(3)],
				RingBytes: 64<<10 + r.Uint64N(128<<10),
			}
			if t, err := l.registry.Get(name); err == nil && t.Settings().Partitions < 20 {
				change.Partitions = t.Settings().Partitions + 1
			}
			if _, err := l.registry.Alter(name, change, nowMillis()); err != nil && !errors.Is(err, codec.CodeUnknownTopic) {
				l.fault("alter: %w", err)
			}
		case 1:
			if t, err := l.registry.Get(name); err == nil && r.IntN(10) == 0 {
				_, _ = t.Partitions()[0].Purge(nowMillis()) // only files can fail
			}
		case 2:
			since := nowMillis() - 30_000
			if r.IntN(10) == 0 {
				since = nowMillis() // cuts off whoever holds up a ring just now
			}
			l.registry.Tick(since, nowMillis())
		case 3:
			l.registry.List("", 10)
			l.registry.Count()
		case 4:
			fresh := fmt.Sprintf("fresh%d", i%3)
			t, _, err := l.registry.Create(fresh, codec.TopicSettings{}, "", "")
			if err != nil {
				l.fault("create: %w", err)
				continue
			}
			t.Describe()
			if err := l.registry.Delete(fresh, nowMillis()); err != nil {
				l.fault("delete: %w", err)
			}
		default:
			if t, err := l.registry.Get(name); err == nil {
				d := t.Describe()
				for _, p := range d.Partitions {
					if p.Start > p.High || p.High > p.Next || uint64(p.Next) != p.RecordsIn {
						l.fault("%s: %+v", name, p)
					}
				}
				if !deleted && name == "gone" && d.Partitions[0].RecordsIn > 200 {
					deleted = true
					if err := l.registry.Delete(name, nowMillis()); err != nil {
						l.fault("delete in use: %w", err)
					}
				}
			}
		}
		runtime.Gosched()
	}
}

// TestRegistryUnderLoad uses a registry from many goroutines at once in all ways there are. Everything comes to its end,
// results come in order, nothing is lost in silence, no slab and no goroutine is left.
func TestRegistryUnderLoad(t *testing.T) {
	before := runtime.NumGoroutine()
	l := &load{
		registry: NewRegistry(100), pool: codec.NewSlabPool(1 << 20), seed: rand.Uint64(),
		done: make(chan struct{}), faults: make(chan error, 10),
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", l.seed) // of the goroutines' choices; their interleaving is the scheduler's
		}
	}()
	names := []string{"block", "drop", "reject", "gone"}
	overflows := []codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject, codec.OverflowBlock}
	var publishers, others sync.WaitGroup
	last := 0
	next := func() int { last++; return last }
	for i, name := range names {
		topic, created, err := l.registry.Create(name, codec.TopicSettings{
			Partitions: 2, Overflow: overflows[i], RingBytes: 96 << 10, MaxBatchBytes: 24 << 10,
		}, "", "")
		if err != nil || !created {
			t.Fatalf("create: %v, %v", created, err)
		}
		for _, part := range topic.Partitions() {
			for range 3 {
				id := next()
				publishers.Go(func() { l.publish(part, id, 400) })
			}
			for range 2 {
				id := next()
				others.Go(func() { l.subscribe(part, id) })
			}
			got := &shared{seen: map[codec.Offset]bool{}}
			for range 3 {
				id := next()
				others.Go(func() { l.join(part, "workers", got, id) })
			}
		}
	}
	others.Go(func() { l.administer(names) })
	publishers.Wait()
	close(l.done)
	others.Wait()
	close(l.faults)
	for err := range l.faults {
		t.Error(err)
	}
	l.sink.check(t)

	topics, more := l.registry.List("", 100)
	if more {
		t.Error("more topics than were made")
	}
	for _, topic := range topics {
		for _, i := range topic.Describe().Partitions {
			if i.Subscriptions != 0 || i.Publishers != 0 {
				t.Errorf("topic %s in the end: %+v", topic.Name(), i)
			}
		}
		if err := l.registry.Delete(topic.Name(), nowMillis()); err != nil {
			t.Error(err)
		}
	}
	if topics, partitions := l.registry.Count(); topics != 0 || partitions != 0 {
		t.Errorf("%d topics with %d partitions are left", topics, partitions)
	}
	if n := l.pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs have leaked", n)
	}
	await(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
}

// TestWriterLivesWhileThereIsWork publishes small frames, for which no goroutine is started, and large ones, whose writer
// ends behind them; small ones that come meanwhile queue behind the large.
func TestWriterLivesWhileThereIsWork(t *testing.T) {
	before := runtime.NumGoroutine()
	pool := codec.NewSlabPool(1 << 20)
	topic := memoryTopic("t", codec.TopicSettings{Partitions: 1, RingBytes: 1 << 20, MaxBatchBytes: 64 << 10, Overflow: codec.OverflowBlock})
	part := topic.Partitions()[0]
	var sink eventSink
	p := &Publisher{}
	events := newPublisherEvents()
	p.Tag = events
	if _, _, err := part.OpenPublisher(p, &sink, 1, codec.LevelDefault); err != nil {
		t.Fatal(err)
	}
	sent := 0
	publish := func(size int) {
		part.Publish(p, 1, published(pool, uint64(sent), sealedBatch(nil, int64(sent), 1, size)), nowMillis())
		sent++
	}
	for range 100 {
		publish(100)
		if count, _ := sink.state(events); count != sent || part.busy.Load() {
			t.Fatalf("%d of %d small batches were confirmed inline, a writer runs: %v", count, sent, part.busy.Load())
		}
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines instead of %d after inline publishing", n, before)
	}
	for round := range 50 {
		for i := range 20 {
			size := 100
			if i%4 == 0 {
				size = inlineBytes + 1 + round
			}
			publish(size)
		}
		if round%10 == 9 {
			await(t, "the writer to end", func() bool { return !part.busy.Load() })
			if count, _ := sink.state(events); count != sent {
				t.Fatalf("the writer ended with %d results for %d batches", count, sent)
			}
		}
	}
	await(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
	if count, refused := sink.state(events); count != sent || refused != codec.CodeNone {
		t.Errorf("%d results for %d batches, refused: %s", count, sent, refused.String())
	}
	if info := part.Info(); info.RecordsIn != uint64(sent) || info.Next != codec.Offset(sent) {
		t.Errorf("%d batches of one record were published: %+v", sent, info)
	}
	sink.check(t)
	part.remove(nowMillis())
	if n := pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs have leaked", n)
	}
}
