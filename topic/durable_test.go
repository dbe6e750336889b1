package topic

import (
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// hold makes operations of a file system wait until it is let go.
type hold struct {
	once sync.Once
	gate chan struct{}
	held atomic.Int64
}

func holdBack(fault *vfs.Fault, which func(vfs.Op) bool) *hold {
	h := &hold{gate: make(chan struct{})}
	fault.SetHook(func(op vfs.Op) error {
		if which(op) {
			h.held.Add(1)
			<-h.gate
		}
		return nil
	})
	return h
}

func (h *hold) let() { h.once.Do(func() { close(h.gate) }) }

func writes(op vfs.Op) bool { return op.Kind == vfs.OpWrite || op.Kind == vfs.OpWriteSync }

func mustGet(t *testing.T, d *disk, name string) *Topic {
	t.Helper()
	topic, err := d.r.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return topic
}

// Memory may hold what has expired in the files: a reader that was told the gap is not given it behind the gap.
func TestExpiredIsNotServedFromMemory(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	s := fileTopic(1)
	s.SegmentBytes, s.RetentionBytes, s.RingBytes = MinSegmentBytes, MinSegmentBytes, 8<<20
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(60, 1, 10<<10)
	f.confirmed()
	d.sink.await(t, "retention", func() bool {
		p.Tick(0, nowMillis()) // by which the partition learns what the log has removed
		return p.Info().Start > 0
	})
	for _, group := range []string{"", "g"} {
		list := d.read(p, group, 0, 60, 64<<10)
		if list[0].reason != codec.GapExpired && group == "" {
			t.Errorf("the first that is read is %+v", list[0])
		}
		for i, sp := range list {
			if i > 0 && sp.base != list[i-1].next {
				t.Errorf("group %q: %+v follows %+v", group, sp, list[i-1])
			}
		}
	}
	f.Close()
	d.close()
}

// A cursor that waits for a read of the files, whose place is then purged, is woken by what is published next.
func TestPurgeDuringColdRead(t *testing.T) {
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) {
			fault := vfs.NewFault(vfs.NewMem())
			d := openDisk(t, fault)
			p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			f.publish(100, 1, 10<<10)
			f.confirmed()
			h := holdBack(fault, func(op vfs.Op) bool { return op.Kind == vfs.OpRead })
			defer h.let()
			var cur Cursor
			if _, _, _, err := p.Attach(&cur, d.sink, group, codec.FromOffset, 0, nowMillis()); err != nil {
				t.Fatal(err)
			}
			cur.Grant(1<<20, nowMillis())
			var taken Taken
			cur.Take(&taken, 1<<20, nowMillis())
			if len(taken.Batches) != 0 {
				t.Fatal("the files were not asked")
			}
			d.sink.await(t, "a read", func() bool { return h.held.Load() > 0 })
			if _, err := p.Purge(nowMillis()); err != nil {
				t.Fatal(err)
			}
			// A session takes now and then without having been woken: when credit comes.
			told := codec.Gap{}
			for range 2 {
				taken.Reset()
				cur.Take(&taken, 1<<20, nowMillis())
				if taken.Gap.Next != 0 {
					told = taken.Gap
				}
			}
			if group == "" && (told.Next != 100 || told.Reason != codec.GapPurged) {
				t.Errorf("the gap is %+v", told)
			}
			d.sink.mu.Lock()
			woken := d.sink.woken[&cur]
			d.sink.mu.Unlock()
			f.publish(1, 1, 100)
			f.confirmed()
			d.sink.await(t, "a wake-up", func() bool { return d.sink.woken[&cur] > woken })
			taken.Reset()
			cur.Take(&taken, 1<<20, nowMillis())
			if len(taken.Batches) != 1 || codec.Batch(taken.Batches[0].Bytes).BaseOffset() != 100 {
				t.Errorf("after the wake-up there are %d batches", len(taken.Batches))
			}
			releaseTaken(taken.Batches)
			h.let()
			cur.Detach(nowMillis())
			f.Close()
			d.close()
		})
	}
}

// A read of the files that finds no memory is tried again by the broker's tick, on a partition where nothing else happens.
func TestColdReadWithoutMemory(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	d.pool.Limit(8 << 20)
	p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(100, 1, 10<<10)
	f.confirmed()
	f.Close()
	d.r.Tick(0, nowMillis()) // nothing is due any more
	var hoard []*codec.Slab
	for slab := d.pool.TryGet(1 << 20); slab != nil; slab = d.pool.TryGet(1 << 20) {
		hoard = append(hoard, slab)
	}
	var cur Cursor
	if _, _, _, err := p.Attach(&cur, d.sink, "", codec.FromOffset, 0, nowMillis()); err != nil {
		t.Fatal(err)
	}
	var taken Taken
	cur.Take(&taken, 1<<20, nowMillis())
	if len(taken.Batches) != 0 {
		t.Fatalf("without memory there are %d batches", len(taken.Batches))
	}
	for _, slab := range hoard {
		slab.Release()
	}
	stop := d.ticking()
	for woken := 0; len(taken.Batches) == 0; { // for the new try, and for what it has found
		d.sink.await(t, "a wake-up", func() bool {
			was := woken
			woken = d.sink.woken[&cur]
			return woken > was
		})
		taken.Reset()
		cur.Take(&taken, 1<<20, nowMillis())
	}
	stop()
	releaseTaken(taken.Batches)
	cur.Detach(nowMillis())
	d.close()
}

// What was read of the files for a consumer that does not take it is given up when memory is short, and when a group has no member any
// more. It is read again for who goes on.
func TestColdMemoryIsGivenBack(t *testing.T) {
	const n, size = 400, 10 << 10 // more than is read ahead
	for _, group := range []string{"", "g"} {
		t.Run("group "+group, func(t *testing.T) {
			d := openDisk(t, vfs.NewMem())
			p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			f.publish(n, 1, size)
			f.confirmed()
			inMemory := d.pool.InUseBytes()
			cur := new(Cursor)
			attach := func() {
				t.Helper()
				cur = new(Cursor)
				if _, _, _, err := p.Attach(cur, d.sink, group, codec.FromEarliest, 0, nowMillis()); err != nil {
					t.Fatal(err)
				}
			}
			next, owed := codec.Offset(0), 1
			take := func(until codec.Offset) {
				t.Helper()
				for next < until {
					d.sink.mu.Lock()
					woken := d.sink.woken[cur]
					d.sink.mu.Unlock()
					var taken Taken
					cur.Grant(owed, nowMillis()) // one batch at a time
					owed = 0
					cur.Take(&taken, 1, nowMillis())
					if taken.Gap.Next != 0 || len(taken.Batches) > 1 {
						t.Fatalf("%+v, %d batches", taken.Gap, len(taken.Batches))
					}
					if len(taken.Batches) == 0 {
						d.sink.await(t, "a wake-up", func() bool { return d.sink.woken[cur] > woken })
						continue
					}
					if b := codec.Batch(taken.Batches[0].Bytes); b.BaseOffset() != next {
						t.Fatalf("offset %d, want %d", b.BaseOffset(), next)
					}
					next++
					owed = len(taken.Batches[0].Bytes)
					releaseTaken(taken.Batches)
				}
			}
			ahead := func() {
				t.Helper()
				d.sink.await(t, "reading ahead", func() bool {
					p.mu.Lock()
					defer p.mu.Unlock()
					at := &cur.position
					if cur.group != nil {
						at = &cur.group.position
					}
					return at.cold.len() > 0 && !at.cold.reading
				})
				if d.pool.InUseBytes() <= inMemory {
					t.Fatal("nothing was read ahead")
				}
			}
			attach()
			take(3)
			ahead()
			d.r.Reclaim(1, false, nowMillis())
			if d.pool.InUseBytes() <= inMemory {
				t.Error("it was given up at once")
			}
			d.r.Reclaim(1, true, nowMillis())
			if got := d.pool.InUseBytes(); got > inMemory {
				t.Errorf("%d bytes are in use, %d before anything was read", got, inMemory)
			}
			take(6)
			if group != "" {
				ahead()
				cur.Detach(nowMillis())
				if got := d.pool.InUseBytes(); got > inMemory {
					t.Errorf("without a member %d bytes are in use, %d before anything was read", got, inMemory)
				}
				attach()
				owed = 1
			}
			d.r.Relax()
			take(n)
			cur.Detach(nowMillis())
			f.Close()
			d.close()
		})
	}
}

// Retention may drop what has become durable a moment before the partition is told so: no state is seen in which start lies behind high.
func TestStartIsNotBehindHigh(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	d := openDisk(t, fault)
	s := fileTopic(1)
	s.SegmentBytes, s.RetentionBytes, s.RingBytes = MinSegmentBytes, MinSegmentBytes, 8<<20
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	h := holdBack(fault, writes)
	defer h.let()
	f.publish(60, 1, 10<<10)
	d.sink.await(t, "a write", func() bool { return h.held.Load() > 0 })
	p.mu.Lock() // no progress is told from now on
	h.let()
	d.sink.await(t, "retention", func() bool { return p.log.Start() > 0 })
	p.tickLog()
	if start, high := p.core.start, p.core.high; start == 0 || start > high {
		t.Errorf("start is %d, high %d", start, high)
	}
	p.leave()
	f.confirmed()
	f.Close()
	d.close()
}

// A start that fails leaves what is known of offsets alone: after the next one none is given out again.
func TestOffsetsAfterAFailedStart(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	p := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: codec.StorageQueueFile, SyncMillis: 60_000}).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(10, 10, 1000)
	f.confirmed()
	given := p.Info().High
	cut := mem.CrashClone(vfs.Nothing, 1)
	f.Close()
	d.close()

	fault := vfs.NewFault(cut)
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpList && strings.HasSuffix(op.Path, "/0") {
			return syscall.EMFILE
		}
		return nil
	})
	failed, err := storyOpen(t, fault)
	if err == nil {
		t.Fatalf("it has opened: %v", failed.r.Stored())
	}
	d = openDisk(t, cut)
	f = d.feeder(mustGet(t, d, "t").Partitions()[0], codec.LevelDefault)
	f.publish(1, 1, 100)
	if base := f.confirmed()[0].Base; base < given {
		t.Errorf("offset %d is given out again, %d was the end", base, given)
	}
	f.Close()
	d.close()
}

// Offsets that are reserved while a topic grows do not undo that it has grown.
func TestReserveWhileGrowing(t *testing.T) {
	mem := vfs.NewMem()
	fault := vfs.NewFault(mem)
	d := openDisk(t, fault)
	topic := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: codec.StorageQueueFile, SyncMillis: 1})
	h := holdBack(fault, func(op vfs.Op) bool { return strings.HasSuffix(op.Path, "/2") })
	defer h.let()
	altered := make(chan error, 1)
	go func() {
		_, err := d.r.Alter("t", codec.TopicSettings{Partitions: 3}, nowMillis())
		altered <- err
	}()
	d.sink.await(t, "the opening of the new partitions", func() bool { return h.held.Load() > 0 })
	f := d.feeder(topic.Partitions()[0], codec.LevelAppended)
	f.publish(1, 1, 100) // reserves
	f.confirmed()
	h.let()
	if err := <-altered; err != nil {
		t.Fatal(err)
	}
	f.Close()
	cut := mem.CrashClone(vfs.Nothing, 1)
	d.close()
	for _, fsys := range []*vfs.Mem{mem, cut} {
		d = openDisk(t, fsys)
		if n := mustGet(t, d, "t").Settings().Partitions; n != 3 {
			t.Errorf("%d partitions", n)
		}
		d.close()
	}
}

// Where offsets cannot be reserved, what needs them is refused, and the next publish asks again.
func TestOffsetsCannotBeReserved(t *testing.T) {
	for _, cause := range []struct {
		err  error
		code codec.Code
	}{{syscall.ENOSPC, codec.CodeNoSpace}, {syscall.EIO, codec.CodeStorage}} {
		fault := vfs.NewFault(vfs.NewMem())
		d := openDisk(t, fault)
		p := mustCreate(t, d.r, "t", codec.TopicSettings{}).Partitions()[0]
		tries := new(atomic.Int64)
		fault.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpCreate {
				tries.Add(1)
			}
			if op.Kind.Changes() {
				return cause.err
			}
			return nil
		})
		f := d.feeder(p, codec.LevelDefault)
		f.publish(3, 1, 100)
		for i, r := range f.settled() {
			if want := map[bool]codec.Code{true: cause.code, false: codec.CodeStaleEpoch}[i == 0]; r.Code != want {
				t.Errorf("batch %d: %s, want %s", i, r.Code, want)
			}
		}
		if n := tries.Load(); n > 4 {
			t.Errorf("%d tries for one publish", n)
		}
		fault.SetHook(nil)
		f.reopen()
		f.publish(1, 1, 100)
		f.confirmed()
		f.Close()
		d.close()
	}
}

// What is visible and will never be durable, for the partition is poisoned, is answered to an idempotent producer that sends it again and
// wants it durable.
func TestRepeatedOnAPoisonedPartition(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	d := openDisk(t, fault)
	p := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: codec.StorageFile, Sync: codec.SyncInterval, SyncMillis: 1}).Partitions()[0]
	f := d.feeder(p, codec.LevelAppended)
	f.publish(1, 1, 100) // reserves offsets
	f.confirmed()
	d.sink.await(t, "all to be durable", func() bool { return p.Info().Durable == 1 })
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSync { // not the write that marks the first as durable
			return &vfs.SyncError{Err: syscall.EIO}
		}
		return nil
	})
	var w codec.BatchBuilder
	w.Reset(nil, codec.MaxSlabBytes)
	w.AddValue(1, []byte("x"))
	batch := w.Finish(codec.BatchMeta{ProducerID: 7})
	f.send(batch)
	first := f.settled()[0]
	d.sink.await(t, "poison", func() bool { return p.Info().State == codec.PartitionPoisoned })
	f.Close()
	again := d.feeder(p, codec.LevelDurable)
	again.send(batch)
	if r := again.settled()[0]; first.Code != codec.CodeNone || r.Code != codec.CodeOutcomeUnknown {
		t.Errorf("at first: %s; sent again: %s", first.Code, r.Code)
	}
	again.Close()
	_ = d.r.Close() // tells the poison
	if n := d.pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs are in use at the end", n)
	}
}

// A lookup of a topic that is not there does not wait for a change of the catalogue.
func TestLookupBesideASlowCreate(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	d := openDisk(t, fault)
	h := holdBack(fault, func(op vfs.Op) bool { return op.Kind.Changes() })
	defer h.let()
	created := make(chan error, 1)
	go func() {
		_, _, err := d.r.Create("t", fileTopic(1), "", "")
		created <- err
	}()
	d.sink.await(t, "the creation", func() bool { return h.held.Load() > 0 })
	found := make(chan error, 1)
	go func() {
		_, err := d.r.Get("another")
		found <- err
	}()
	select {
	case err := <-found:
		if codeOf(err) != codec.CodeUnknownTopic {
			t.Error(err)
		}
	case <-time.After(loadDeadline):
		t.Error("the lookup waits for the disk")
	}
	h.let()
	if err := <-created; err != nil {
		t.Error(err)
	}
	d.close()
}

// A purge begins a segment, whose header says what idempotent producers have sent: it says all that is in front of it, also what is
// published meanwhile. After a power cut none of it is stored twice.
func TestPurgeBesideIdempotentProducer(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	batch := func(seq int32) []byte {
		var w codec.BatchBuilder
		w.Reset(nil, codec.MaxSlabBytes)
		w.AddValue(1, []byte("x"))
		return w.Finish(codec.BatchMeta{ProducerID: 7, BaseSequence: seq})
	}
	purged := make(chan error, 1)
	last := int32(-1)
	for range 30 {
		go func() {
			_, err := p.Purge(nowMillis())
			purged <- err
		}()
		for range 5 {
			last++
			f.send(batch(last))
		}
		f.confirmed()
		if err := <-purged; err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	cut := mem.CrashClone(vfs.Nothing, 1)
	d.close()
	d = openDisk(t, cut)
	f = d.feeder(mustGet(t, d, "t").Partitions()[0], codec.LevelDefault)
	for seq := last - 4; seq <= last+1; seq++ {
		f.send(batch(seq))
		if base := f.confirmed()[0].Base; base != codec.Offset(seq) {
			t.Errorf("sequence %d is at %d", seq, base)
		}
	}
	f.Close()
	d.close()
}

// A producer that was silent for a day is forgotten: it goes on with any sequence, and what it sends again is a new batch.
func TestSilentProducerIsForgotten(t *testing.T) {
	part := memoryTopic("t", codec.TopicSettings{Partitions: 1, RingBytes: 1 << 20, MaxBatchBytes: 1 << 10}).Partitions()[0]
	pool := codec.NewSlabPool(1 << 20)
	var sink recordSink
	var pub Publisher
	if _, _, err := part.OpenPublisher(&pub, &sink, 1, codec.LevelAppended); err != nil {
		t.Fatal(err)
	}
	number := uint64(0)
	send := func(seq int32, millis int64) Result {
		t.Helper()
		sink.reset()
		var w codec.BatchBuilder
		w.Reset(nil, 1<<10)
		w.AddValue(1, nil)
		part.Publish(&pub, 1, published(pool, number, w.Finish(codec.BatchMeta{ProducerID: 7, BaseSequence: seq})), millis)
		number++
		if len(sink.results) != 1 {
			t.Fatalf("%d results", len(sink.results))
		}
		return sink.results[0]
	}
	const day = 24 * 60 * 60 * 1000
	if r := send(5, testMillis); r.Code != codec.CodeNone || r.Base != 0 {
		t.Fatalf("%+v", r)
	}
	if r := send(5, testMillis+day-1); r.Code != codec.CodeNone || r.Base != 0 {
		t.Errorf("sent again within a day: %+v", r)
	}
	if r := send(5, testMillis+day); r.Code != codec.CodeNone || r.Base != 1 {
		t.Errorf("sent again after a day: %+v", r)
	}
}
