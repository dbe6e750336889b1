package loop

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A press publishes batches on one handle, as many at once as the window allows, until each is confirmed.
type press struct {
	p      *peer
	name   string
	epoch  uint32
	window int

	paused int // how often a batch found no memory
}

func newPress(t testing.TB, b *Broker, name string) *press {
	f := &press{p: dial(t, b).hello(), name: name, epoch: 1}
	f.window = int(f.p.open(1, name, 0, 1).WindowBytes)
	return f
}

// publish sends n batches and calls each for every confirmed one. What is refused with paused, and what stands behind it, is
// sent again.
func (f *press) publish(n int, batch []byte, each func()) error {
	p := f.p
	for n > 0 {
		sent, answered, refused := 0, 0, 0
		for answered < sent || sent < n && refused == 0 {
			if sent < n && refused == 0 && (sent-answered)*len(batch) < f.window {
				if err := p.tryWrite(publishFrame(1, f.epoch, uint64(sent), batch)); err != nil {
					return err
				}
				sent++
				continue
			}
			h, section, payload, err := p.tryNext()
			if err != nil {
				return fmt.Errorf("%d of %d answered: %w", answered, sent, err)
			}
			m, err := codec.ParseConfirm(section, payload)
			if h.Type != codec.TypeConfirm || err != nil || m.Epoch != f.epoch || m.First != uint64(answered) {
				return fmt.Errorf("%d of %d answered, then %s%s", answered, sent, h.Type, said(h, section))
			}
			for i := range int(m.Count) {
				answered++
				switch code := codec.ResultAt(payload, i).Code; {
				case code == codec.CodeNone && refused == 0:
					each()
				case code == codec.CodePaused && refused == 0:
					refused = 1
					f.paused++
				case code == codec.CodeStaleEpoch && refused > 0:
					refused++
				default:
					return fmt.Errorf("batch %d: %s", answered-1, code)
				}
			}
		}
		n -= answered - refused
		if refused > 0 {
			f.epoch++
			request := openFrame(1, codec.Open{Topic: f.name, Epoch: f.epoch})
			if err := p.tryWrite(request); err != nil {
				return err
			}
			if h, section, _, err := p.tryNext(); err != nil || h.Type != codec.TypeOpen {
				return fmt.Errorf("reopen: %s%s: %v", h.Type, said(h, section), err)
			}
		}
	}
	return nil
}

// A highMark follows the most slab memory that was in use.
type highMark struct {
	b    *Broker
	most atomic.Int64
}

func (h *highMark) look() {
	for use := h.b.slabs.InUseBytes(); ; {
		most := h.most.Load()
		if use <= most || h.most.CompareAndSwap(most, use) {
			return
		}
	}
}

// check fails the test if the ceiling was passed by more than control frames may take.
func (h *highMark) check(t *testing.T, connections int) {
	t.Helper()
	bound := h.b.limits.MemoryBytes + int64(connections)*2*codec.MinSlabBytes
	t.Logf("at most %d KiB were in use, the ceiling is %d KiB", h.most.Load()>>10, h.b.limits.MemoryBytes>>10)
	if h.most.Load() > bound {
		t.Errorf("%d bytes were in use, the bound is %d", h.most.Load(), bound)
	}
}

// The broker's memory stays under its ceiling whatever is published, and every confirmed record is accounted for: kept,
// delivered, or counted as dropped.
func TestMemoryCeiling(t *testing.T) {
	const topics = 12
	for _, c := range []struct {
		name      string
		overflow  codec.Overflow
		consumers bool
		batch     int // bytes of its value
		total     int // bytes published on each topic; eightfold with LIGHTQ_SOAK
	}{
		{"nobody attached", codec.OverflowBlock, false, 300_000, 6 << 20},
		{"nobody attached, small batches", codec.OverflowBlock, false, 900, 3 << 20},
		{"nobody attached, reject", codec.OverflowReject, false, 1_000_000, 6 << 20},
		{"consumers", codec.OverflowBlock, true, 300_000, 6 << 20},
		{"consumers, small batches", codec.OverflowBlock, true, 900, 3 << 20},
		{"consumers, drop-oldest", codec.OverflowDropOldest, true, 300_000, 6 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := startBroker(t, Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour}})
			admin := dial(t, b).hello()
			mark := &highMark{b: b}
			batch := batchOf(make([]byte, c.batch))
			n := c.total / len(batch)
			if soak() {
				n *= 8
			}
			var work sync.WaitGroup
			got := make([]codec.Offset, topics)
			for i := range topics {
				name := fmt.Sprint("t", i)
				admin.create(name, codec.TopicSettings{RingBytes: 16 << 20, Overflow: c.overflow})
				if c.consumers {
					p := dial(t, b).hello()
					p.subscribe(1, codec.Subscribe{Topic: name, CreditBytes: 4 << 20})
					work.Go(func() { got[i] = p.follow(1, codec.Offset(n), mark.look) })
				}
				f := newPress(t, b, name)
				work.Go(func() {
					if err := f.publish(n, batch, mark.look); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			work.Wait()
			mark.check(t, 1+2*topics)
			for i := range topics {
				in := info(t, b, fmt.Sprint("t", i))
				switch {
				case in.Next != codec.Offset(n) || in.High != in.Next:
					t.Errorf("topic %d: next is %d, high %d, %d were confirmed", i, in.Next, in.High, n)
				case !c.consumers && uint64(in.Start) != in.DroppedUnread:
					t.Errorf("topic %d: it begins at %d and counts %d dropped", i, in.Start, in.DroppedUnread)
				case c.consumers && c.overflow == codec.OverflowBlock && (in.DroppedUnread != 0 || got[i] != codec.Offset(n)):
					t.Errorf("topic %d: %d of %d came, %d were dropped unread", i, got[i], n, in.DroppedUnread)
				case c.consumers && c.overflow == codec.OverflowDropOldest && got[i]+codec.Offset(in.DroppedUnread) != codec.Offset(n):
					t.Errorf("topic %d: %d of %d came, %d were dropped unread", i, got[i], n, in.DroppedUnread)
				}
			}
			admin.alive()
		})
	}
}

// follow takes the records of a sub until it has had, or been told to have missed, all below until, and returns how many
// came.
func (p *peer) follow(handle uint32, until codec.Offset, each func()) (got codec.Offset) {
	for at := codec.Offset(0); at < until; each() {
		h, section, payload, err := p.tryNext()
		if err != nil || h.Type != codec.TypeDeliver || h.Handle != handle {
			p.t.Errorf("at %d: %s%s: %v", at, h.Type, said(h, section), err)
			return got
		}
		m, err := codec.ParseDeliver(section)
		if err != nil || m.Gap.Next != 0 && m.Gap.From != at {
			p.t.Errorf("at %d: %+v, %v", at, m, err)
			return got
		}
		at = max(at, m.Gap.Next)
		bytes := len(payload)
		for range m.Count {
			var batch codec.Batch
			if batch, payload, err = codec.NextBatch(payload); err != nil || batch.BaseOffset() != at || codec.CheckDelivered(batch) != nil {
				p.t.Errorf("a batch at %d, want one at %d: %v", batch.BaseOffset(), at, err)
				return got
			}
			at = batch.NextOffset()
			got += codec.Offset(batch.RecordCount())
		}
		if err := p.tryWrite(codec.AppendCredit(nil, handle, uint32(bytes))); err != nil {
			p.t.Error(err)
			return got
		}
	}
	return got
}

// stallForTests is a stall limit that honest peers keep on a busy machine, and that a test can wait for.
const stallForTests = 8 * time.Second

// Consumers that take nothing hold memory for the stall limit only, and meanwhile nobody is forgotten: every batch is answered,
// administration goes on, and what is confirmed is kept or counted.
func TestMemoryHeldByConsumers(t *testing.T) {
	for _, kind := range []string{"without credit", "that do not read", "that do not read, of a group"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const topics = 12
			b := startBroker(t, Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour, StallLimit: stallForTests}})
			admin := dial(t, b).hello()
			mark := &highMark{b: b}
			batch := batchOf(make([]byte, 600_000))
			const n = 12 // well over twice the ceiling in all, and more than sockets take of it
			var work sync.WaitGroup
			for i := range topics {
				name := fmt.Sprint("t", i)
				admin.create(name, codec.TopicSettings{RingBytes: 16 << 20})
				m := codec.Subscribe{Topic: name, CreditBytes: 64 << 20}
				switch kind {
				case "without credit":
					m.CreditBytes = 0
				case "that do not read, of a group":
					m.Kind, m.Name = codec.KindPull, "g"
				}
				dial(t, b).hello().subscribe(1, m)
				f := newPress(t, b, name)
				work.Go(func() {
					if err := f.publish(n, batch, mark.look); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			done := make(chan struct{})
			go func() { work.Wait(); close(done) }()
			for open := true; open; {
				admin.alive()
				select {
				case <-done:
					open = false
				case <-time.After(20 * time.Millisecond):
				}
			}
			mark.check(t, 1+2*topics)
			for i := range topics {
				if in := info(t, b, fmt.Sprint("t", i)); in.Next != codec.Offset(n) {
					t.Errorf("topic %d: next is %d, %d were confirmed", i, in.Next, n)
				}
			}
		})
	}
}

// Frames that are never finished hold memory for the stall limit only; those that wait for it go on then.
func TestMemoryHeldByFrames(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour, StallLimit: stallForTests}})
	admin := dial(t, b).hello()
	admin.create("big", codec.TopicSettings{MaxBatchBytes: 8 << 20, RingBytes: 64 << 20})
	whole := publishFrame(1, 1, 0, batchOf(make([]byte, 7<<20)))
	var held []*peer
	for range 8 {
		p := dial(t, b).hello()
		p.open(1, "big", 0, 1)
		held = append(held, p)
	}
	for _, p := range held {
		go func() { _ = p.tryWrite(whole[:len(whole)-1]) }()
	}
	eventually(t, "memory is at its ceiling", func() bool { return b.memory.waiting() })
	honest := newPress(t, b, "big")
	if err := honest.publish(3, batchOf(make([]byte, 2<<20)), func() {}); err != nil {
		t.Error(err)
	}
	admin.alive()
}

// A connection that consumes as well as publishes is not kept from granting credit: its frame is refused, retriable, after a
// second.
func TestMemoryMixedConnection(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour}})
	p := dial(t, b).hello()
	p.create("mixed", codec.TopicSettings{MaxBatchBytes: 8 << 20, RingBytes: 64 << 20})
	p.open(1, "mixed", 0, 1)
	p.subscribe(2, codec.Subscribe{Topic: "mixed"})
	// Somebody has nearly all of it.
	var taken []*codec.Slab
	for b.slabs.InUseBytes() < LeastMemoryBytes-(1<<20) {
		taken = append(taken, b.slabs.Get(1<<20))
	}
	batch := batchOf(make([]byte, 2<<20))
	p.write(publishFrame(1, 1, 0, batch, batch))
	p.write(publishFrame(1, 1, 2, batchOf([]byte("behind"))))
	p.write(codec.AppendCredit(nil, 2, 1000))
	for i, want := range []codec.Code{codec.CodePaused, codec.CodeStaleEpoch, codec.CodeStaleEpoch} {
		if r := p.confirm(); r.Code != want {
			t.Fatalf("batch %d: %s, want %s", i, r.Code, want)
		}
	}
	p.alive()
	// The code is retriable: with memory there again it works.
	for _, s := range taken {
		s.Release()
	}
	p.open(1, "mixed", 0, 2)
	p.write(publishFrame(1, 2, 0, batchOf([]byte("later"))))
	values, _ := [][]byte(nil), 0
	for len(values) == 0 || len(p.results) == 0 {
		switch h, section, payload := p.next(); h.Type {
		case codec.TypeConfirm:
			p.addResults(section, payload)
		case codec.TypeDeliver:
			rs := p.delivery(h, section, payload).batches[0].Records()
			rs.Next()
			values = append(values, rs.Record.Value)
		default:
			t.Fatalf("got %s%s", h.Type, said(h, section))
		}
	}
	if r := p.confirm(); r.Code != codec.CodeNone || r.Base != 0 || string(values[0]) != "later" {
		t.Errorf("got %+v and %q", r, values[0])
	}
}

// A frame waits for memory without a word; when there is some it is taken as if nothing had been. Small ones too.
func TestMemoryComesBack(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour}}))
		admin := dial(t, b).hello()
		admin.create("back", codec.TopicSettings{})
		var taken []*codec.Slab
		for b.slabs.InUseBytes() < LeastMemoryBytes {
			taken = append(taken, b.slabs.Get(1<<20))
		}
		values, batches := numbered(40, 100)
		for i, size := range []int{4000, 4100, 5000, 70_000, 900_000} {
			values[i] = append(values[i], make([]byte, size)...)
			batches[i] = batchOf(values[i])
		}
		c := dial(t, b).hello() // attached, so that nothing is dropped while there is little memory
		c.subscribe(1, codec.Subscribe{Topic: "back", CreditBytes: 16 << 20})
		var all []*peer
		for range 3 {
			p := dial(t, b).hello()
			p.open(1, "back", 0, 1)
			all = append(all, p)
		}
		for _, p := range all {
			go func() {
				for i, batch := range batches {
					_ = p.tryWrite(publishFrame(1, 1, uint64(i), batch))
				}
			}()
		}
		eventually(t, "a frame waits", func() bool {
			return countSessions(t, b, func(s *session) bool { return s.held }) == len(all)
		})
		if n := info(t, b, "back").Next; n != 0 {
			t.Fatalf("%d records were taken without memory", n)
		}
		for _, s := range taken {
			s.Release()
		}
		for _, p := range all {
			p.confirmed(len(batches))
			p.closeHandle(1)
		}
		got, gaps := c.records(1, 0, codec.Offset(len(all)*len(batches)), true)
		seen := map[string]int{}
		for _, v := range got {
			seen[string(v)]++
		}
		for i, v := range values {
			if seen[string(v)] != len(all) {
				t.Errorf("value %d came %d times", i, seen[string(v)])
			}
		}
		if len(gaps) != 0 {
			t.Errorf("gaps: %v", gaps)
		}
	}, pipeDoor)
}

// A drain does not wait for memory.
func TestMemoryDrain(t *testing.T) {
	b, stop := startStoppable(t, Config{Limits: Limits{MemoryBytes: LeastMemoryBytes, Heartbeat: time.Hour}})
	p := dial(t, b).hello()
	p.create("drained", codec.TopicSettings{})
	p.open(1, "drained", 0, 1)
	for b.slabs.InUseBytes() < LeastMemoryBytes {
		b.slabs.Get(1 << 20)
	}
	p.write(publishFrame(1, 1, 0, batchOf(make([]byte, 10_000))))
	eventually(t, "the frame waits", func() bool { return countSessions(t, b, func(s *session) bool { return s.held }) == 1 })
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	refused := false
	for {
		h, section, payload, err := p.tryNext()
		if err != nil {
			break
		}
		if h.Type == codec.TypeConfirm {
			p.addResults(section, payload)
			refused = p.confirm().Code == codec.CodeDraining
		}
	}
	_ = p.conn.Close()
	if err := <-ended; err != nil || !refused {
		t.Errorf("refused %v, %v", refused, err)
	}
}

// Case F46, the other half: what frames announce and do not send takes memory within a bound over all connections; beyond it
// memory follows what has arrived, and so it does for those that stall.
func TestF46AnnouncedAndNotSent(t *testing.T) {
	const connections = 200
	b := startBroker(t, Config{Limits: Limits{StallLimit: time.Hour, Heartbeat: time.Hour}})
	admin := dial(t, b).hello()
	admin.create("announced", codec.TopicSettings{MaxBatchBytes: topic.MaxBatchBytesLimit, RingBytes: 253 << 20})
	value := make([]byte, topic.MaxBatchBytesLimit-codec.BatchHeaderBytes-100)
	for i := range value {
		value[i] = byte(i * 7 >> 3)
	}
	frame := publishFrame(1, 1, 0, batchOf(value))
	const sent = 5 << 10
	var all []*peer
	for range connections {
		p := dial(t, b).hello()
		p.open(1, "announced", 0, 1)
		p.write(frame[:sent])
		all = append(all, p)
	}
	arrived := func(n int) func() bool {
		return func() bool {
			return countSessions(t, b, func(s *session) bool { return s.body.h != nil && s.body.have > n-200 }) == connections
		}
	}
	mark := &highMark{b: b}
	eventually(t, "all have announced", func() bool { mark.look(); return arrived(sent)() })
	if bound := b.memory.unfed + connections*(leastGrowth+4<<10) + 1<<20; mark.most.Load() > bound {
		t.Errorf("frames that were announced took %d bytes, the bound is %d", mark.most.Load(), bound)
	}
	eventually(t, "the memory of what stalls follows what has come", func() bool {
		return b.slabs.InUseBytes() < connections*(leastGrowth+4<<10)+1<<20
	})
	// Whoever goes on is served, byte for byte, however its payload has moved meanwhile.
	step := 100_000
	for _, p := range all[:3] {
		p.write(frame[sent:step])
	}
	for _, p := range all[:3] {
		p.write(frame[step:])
		p.confirmed(1)
	}
	c := dial(t, b).hello()
	c.subscribe(1, codec.Subscribe{Topic: "announced", CreditBytes: 64 << 20})
	got, _ := c.records(1, 0, 3, false)
	for i, v := range got {
		if string(v) != string(value) {
			t.Errorf("value %d differs from what was sent", i)
		}
	}
	for _, p := range all {
		_ = p.conn.Close()
	}
	eventually(t, "nothing is announced any more", func() bool { return b.memory.announced.Load() == 0 })
}

// The default ceiling follows the tightest of the machine's limits.
func TestDefaultMemory(t *testing.T) {
	if n := machineMemoryBytes(); n < 64<<20 || n == math.MaxInt64 {
		t.Errorf("the machine has %d bytes", n)
	}
	if got, most := DefaultMemoryBytes(), machineMemoryBytes()/2; got > most || got <= 0 {
		t.Errorf("the default is %d, half of the machine is %d", got, most)
	}
	if got := (Limits{MemoryBytes: 1}).complete().MemoryBytes; got != LeastMemoryBytes {
		t.Errorf("a ceiling of 1 byte became %d", got)
	}
}
