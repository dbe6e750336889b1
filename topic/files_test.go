package topic

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// disk is a broker's topics on a file system in memory.
type disk struct {
	t     *testing.T
	fs    vfs.FS
	pool  *codec.SlabPool
	r     *Registry
	sink  *waitSink
	lastN int64
}

func openDisk(t *testing.T, fsys vfs.FS) *disk {
	t.Helper()
	d := &disk{t: t, fs: fsys, pool: codec.NewSlabPool(8 << 20), sink: newWaitSink()}
	d.r = NewRegistry(1000)
	if err := d.r.OpenFiles(FilesConfig{FS: fsys, Dir: "/data", Slabs: d.pool, DiskReserve: -1}); err != nil {
		t.Fatal(err)
	}
	return d
}

// close closes the registry, and checks that no memory is left.
func (d *disk) close() {
	d.t.Helper()
	if err := d.r.Close(); err != nil {
		d.t.Error(err)
	}
	if n := d.pool.InUseBytes(); n != 0 {
		d.t.Errorf("%d bytes of slabs are in use at the end", n)
	}
}

// waitSink wakes those who wait for anything to happen.
type waitSink struct {
	mu      sync.Mutex
	cond    sync.Cond
	results map[*Publisher][]Result
	woken   map[*Cursor]int
}

func newWaitSink() *waitSink {
	s := &waitSink{results: map[*Publisher][]Result{}, woken: map[*Cursor]int{}}
	s.cond.L = &s.mu
	return s
}

func (s *waitSink) Confirmed(results []Result) {
	s.mu.Lock()
	for _, r := range results {
		s.results[r.Publisher] = append(s.results[r.Publisher], r)
	}
	s.mu.Unlock()
}

func (s *waitSink) Wake(cur *Cursor) {
	s.mu.Lock()
	s.woken[cur]++
	s.mu.Unlock()
}

func (s *waitSink) Flush() { s.cond.Broadcast() }

// await waits until done, which is called with the lock held.
func (s *waitSink) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	// Not everything that is waited for is told to the sink.
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.cond.Broadcast()
			case <-stop:
				return
			}
		}
	}()
	deadline := time.Now().Add(loadDeadline)
	s.mu.Lock()
	defer s.mu.Unlock()
	for !done() {
		if !time.Now().Before(deadline) {
			t.Fatalf("%s did not happen", what)
		}
		s.cond.Wait()
	}
}

// a feeder publishes to one partition.
type feeder struct {
	Publisher
	d     *disk
	part  *Partition
	epoch uint32
	next  uint64
	sent  int
}

func (d *disk) feeder(p *Partition, level codec.Level) *feeder {
	d.t.Helper()
	f := &feeder{d: d, part: p, epoch: 1}
	if _, _, err := p.OpenPublisher(&f.Publisher, d.sink, 1, level); err != nil {
		d.t.Fatal(err)
	}
	return f
}

func (f *feeder) reopen() {
	f.epoch++
	f.next = 0
	if _, _, err := f.part.OpenPublisher(&f.Publisher, f.d.sink, f.epoch, f.level); err != nil {
		f.d.t.Fatal(err)
	}
}

// publish sends batches of so many records and bytes.
func (f *feeder) publish(batches, records, size int) {
	for range batches {
		f.d.lastN++
		f.send(sealedBatch(nil, f.d.lastN, records, size))
	}
}

func (f *feeder) send(batch []byte) {
	list := published(f.d.pool, f.next, batch)
	f.next++
	f.sent++
	f.part.Publish(&f.Publisher, f.epoch, list, time.Now().UnixMilli())
}

// settled waits until everything was answered, and returns the answers since the last time.
func (f *feeder) settled() []Result {
	f.d.t.Helper()
	s := f.d.sink
	s.await(f.d.t, fmt.Sprintf("the answer to %d batches", f.sent), func() bool { return len(s.results[&f.Publisher]) >= f.sent })
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.results[&f.Publisher]
	delete(s.results, &f.Publisher)
	f.sent = 0
	return list
}

// confirmed is settled, where all must be confirmed.
func (f *feeder) confirmed() []Result {
	f.d.t.Helper()
	list := f.settled()
	for _, r := range list {
		if r.Code != codec.CodeNone {
			f.d.t.Fatalf("batch %d was refused: %s", r.Number, r.Code)
		}
	}
	return list
}

// span is what a reader got: a batch, or a gap.
type span struct {
	base, next codec.Offset
	id         int64 // of a batch
	reason     codec.GapReason
}

// ticking ticks the registry as the broker does, only more often, until what it returns is called.
func (d *disk) ticking() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				d.r.Tick(0, time.Now().UnixMilli())
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// read takes everything from an offset up to another one.
func (d *disk) read(p *Partition, group string, from, to codec.Offset, most int) []span {
	d.t.Helper()
	var cur Cursor
	now := func() int64 { return time.Now().UnixMilli() }
	if _, _, _, err := p.Attach(&cur, d.sink, group, codec.FromOffset, uint64(from), now()); err != nil {
		d.t.Fatal(err)
	}
	defer func() { cur.Detach(now()) }()
	if group != "" {
		cur.Grant(1<<30, now())
	}
	defer d.ticking()()
	var list []span
	at := from
	for at < to {
		d.sink.mu.Lock()
		woken := d.sink.woken[&cur]
		d.sink.mu.Unlock()
		var t Taken
		cur.Take(&t, most, now())
		if g := t.Gap; g.Next != 0 {
			list = append(list, span{base: g.From, next: g.Next, reason: g.Reason})
			at = g.Next
		}
		checkTaken(d.t, t.Batches)
		for _, b := range t.Batches {
			v := codec.Batch(b.Bytes)
			list = append(list, span{base: v.BaseOffset(), next: v.NextOffset(), id: batchID(v)})
			at = v.NextOffset()
		}
		releaseTaken(t.Batches)
		if len(t.Batches) == 0 && t.Gap.Next == 0 {
			d.sink.await(d.t, fmt.Sprintf("a wake-up at offset %d of %d", at, to), func() bool { return d.sink.woken[&cur] > woken })
		}
	}
	return list
}

// whole checks that spans follow one another from an offset to another, and returns how many records they are.
func whole(t *testing.T, list []span, from, to codec.Offset) (records codec.Offset) {
	t.Helper()
	for i, s := range list {
		if s.base != from && (i > 0 || s.base > from) {
			t.Fatalf("span %d begins at %d, the one before it ended at %d", i, s.base, from)
		}
		if s.reason == 0 {
			records += s.next - s.base
		}
		from = s.next
	}
	if from != to {
		t.Fatalf("the spans end at %d, not %d", from, to)
	}
	return records
}

func fileTopic(partitions uint32) codec.TopicSettings {
	return codec.TopicSettings{
		Storage: codec.StorageFile, Partitions: partitions, RingBytes: 256 << 10, MaxBatchBytes: 64 << 10, SegmentBytes: 1 << 20,
	}
}

// What was confirmed of a file topic is there after the broker was closed, and after a power cut; offsets go on; everything
// can be read from any offset, from memory and from files, alone and in a group.
func TestFileTopicSurvives(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	topic := mustCreate(t, d.r, "ledger", fileTopic(2))
	f := d.feeder(topic.Partitions()[1], codec.LevelDefault)
	if f.level != codec.LevelDurable {
		t.Fatalf("the default level is %s", f.level)
	}
	f.publish(300, 10, 8<<10) // 2.4 MB: three segments, ten times what memory holds
	f.confirmed()
	end := topic.Partitions()[1].Info().High
	if end != 3000 {
		t.Fatalf("high is %d", end)
	}
	for _, most := range []int{1, 64 << 10, 4 << 20} {
		if n := whole(t, d.read(topic.Partitions()[1], "", 0, end, most), 0, end); n != end {
			t.Errorf("%d records", n)
		}
		whole(t, d.read(topic.Partitions()[1], "", 1234, end, most), 1230, end)
	}
	if n := whole(t, d.read(topic.Partitions()[1], "g", 0, end, 64<<10), 0, end); n != end {
		t.Errorf("%d records in a group", n)
	}
	id := topic.ID()
	cut := mem.CrashClone(0, 1)
	f.Close()
	d.close()

	for name, fsys := range map[string]*vfs.Mem{"closed": mem, "power cut": cut} {
		t.Run(name, func(t *testing.T) {
			d := openDisk(t, fsys)
			topic, err := d.r.Get("ledger")
			if err != nil {
				t.Fatal(err)
			}
			if topic.ID() != id || topic.Settings() != mustComplete(t, fileTopic(2)) {
				t.Errorf("the topic is %v %+v", topic.ID(), topic.Settings())
			}
			p := topic.Partitions()[1]
			if i := p.Info(); i.Start != 0 || i.High != end || i.Durable != end || i.Segments < 3 || i.JournalBytes < 2<<20 {
				t.Errorf("%+v", i)
			}
			if n := whole(t, d.read(p, "", 0, end, 1<<20), 0, end); n != end {
				t.Errorf("%d records", n)
			}
			f := d.feeder(p, codec.LevelDurable)
			f.publish(1, 1, 100)
			if r := f.confirmed(); r[0].Base != end {
				t.Errorf("the next record is at %d", r[0].Base)
			}
			f.Close()
			d.close()
		})
	}
}

func mustComplete(t *testing.T, s codec.TopicSettings) codec.TopicSettings {
	t.Helper()
	s, err := complete(s)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A full disk refuses whole batches with its own code and heals; a failed sync leaves what was under way unknown, and the
// partition takes nothing more, while it can still be read.
func TestDiskFaults(t *testing.T) {
	t.Run("no space", func(t *testing.T) {
		mem := vfs.NewMem()
		d := openDisk(t, mem)
		p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
		f := d.feeder(p, codec.LevelDefault)
		f.publish(10, 1, 10<<10)
		f.confirmed()
		mem.SetLimit(mem.Used() + 20<<10)
		f.publish(40, 1, 10<<10)
		refused := codec.CodeNone
		good := 10
		for i, r := range f.settled() {
			switch {
			case r.Code == codec.CodeNone && refused == codec.CodeNone:
				good++
			case r.Code == codec.CodeNoSpace && refused == codec.CodeNone, r.Code == codec.CodeStaleEpoch && refused != codec.CodeNone:
				refused = r.Code
			default:
				t.Fatalf("result %d is %s behind %s", i, r.Code, refused)
			}
		}
		if refused == codec.CodeNone {
			t.Fatal("nothing was refused")
		}
		if s := p.Info().State; s != codec.PartitionNoSpace {
			t.Errorf("the state is %s", s)
		}
		mem.SetLimit(0)
		for try := 0; ; try++ { // the log may be at cutting its tail
			f.reopen()
			f.publish(1, 1, 10<<10)
			if r := f.settled(); r[0].Code == codec.CodeNone {
				good++
				break
			} else if r[0].Code != codec.CodeNoSpace || try > 10_000 {
				t.Fatalf("try %d: %s", try, r[0].Code)
			}
		}
		if s := p.Info().State; s != codec.PartitionOK {
			t.Errorf("the state is %s", s)
		}
		whole(t, d.read(p, "", 0, codec.Offset(good), 1<<20), 0, codec.Offset(good))
		f.Close()
		d.close()
	})
	t.Run("failed sync", func(t *testing.T) {
		fault := vfs.NewFault(vfs.NewMem())
		d := openDisk(t, fault)
		p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
		f := d.feeder(p, codec.LevelDefault)
		f.publish(10, 1, 10<<10)
		f.confirmed()
		fault.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpWriteSync || op.Kind == vfs.OpSync {
				return &vfs.SyncError{Err: errors.New("broken")}
			}
			return nil
		})
		f.publish(5, 1, 10<<10)
		for i, r := range f.settled() {
			if want := map[bool]codec.Code{true: codec.CodeOutcomeUnknown, false: codec.CodeStaleEpoch}[i == 0]; r.Code != want {
				t.Errorf("batch %d: %s", i, r.Code)
			}
		}
		fault.SetHook(nil)
		f.reopen()
		f.publish(1, 1, 10<<10)
		if r := f.settled(); r[0].Code != codec.CodeOutcomeUnknown {
			t.Errorf("after it: %s", r[0].Code)
		}
		if i := p.Info(); i.State != codec.PartitionPoisoned || i.High != 10 {
			t.Errorf("%+v", i)
		}
		whole(t, d.read(p, "", 0, 10, 1<<20), 0, 10)
		f.Close()
		_ = d.r.Close() // tells the poison
		if n := d.pool.InUseBytes(); n != 0 {
			t.Errorf("%d bytes of slabs are in use at the end", n)
		}
	})
}

// Offsets of what is visible before it is durable are never given out again, whatever a power cut takes; the jump is a gap.
func TestOffsetsAfterACrash(t *testing.T) {
	for _, s := range []codec.TopicSettings{
		{Storage: codec.StorageQueue},
		{Storage: codec.StorageDirect},
		{Storage: codec.StorageFile, Sync: codec.SyncOS},
		{Storage: codec.StorageFile, Sync: codec.SyncInterval, SyncMillis: 60_000},
		{Storage: codec.StorageQueueFile, SyncMillis: 60_000},
	} {
		t.Run(s.Storage.String()+" "+s.Sync.String(), func(t *testing.T) {
			mem := vfs.NewMem()
			d := openDisk(t, mem)
			p := mustCreate(t, d.r, "t", s).Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			if f.level != codec.LevelAppended {
				t.Fatalf("the default level is %s", f.level)
			}
			f.publish(10, 10, 1000)
			given := f.confirmed()[9].Base + 10
			if p.Info().High != given {
				t.Fatalf("high is %d, %d were confirmed", p.Info().High, given)
			}
			cut := mem.CrashClone(vfs.Nothing, 1)
			f.Close()
			d.close()

			d = openDisk(t, cut)
			topic, err := d.r.Get("t")
			if err != nil {
				t.Fatal(err)
			}
			p = topic.Partitions()[0]
			f = d.feeder(p, codec.LevelDefault)
			f.publish(1, 1, 1000)
			base := f.confirmed()[0].Base
			if base < given {
				t.Errorf("after a power cut offset %d is given out again, %d was the end", base, given)
			}
			if s.Storage != codec.StorageDirect {
				list := d.read(p, "", 0, base+1, 1<<20)
				if n := whole(t, list, 0, base+1); list[0].reason == 0 && n == base+1 {
					t.Errorf("no gap is told: %v", list)
				}
				for _, s := range list {
					if s.reason != 0 && s.reason != codec.GapDeclared {
						t.Errorf("the gap's reason is %s", s.reason)
					}
				}
			}
			f.Close()
			d.close()

			// Closed in order, offsets go on where they were.
			d = openDisk(t, cut)
			if topic, err = d.r.Get("t"); err != nil {
				t.Fatal(err)
			}
			f = d.feeder(topic.Partitions()[0], codec.LevelDefault)
			f.publish(1, 1, 1000)
			if next := f.confirmed()[0].Base; next != base+1 {
				t.Errorf("after an orderly end offset %d follows %d", next, base)
			}
			f.Close()
			d.close()
		})
	}
}

// An idempotent producer's batches are stored once, whatever is sent again: at once, after a restart, and after a power cut that
// took what was not durable.
func TestIdempotentAcrossRestarts(t *testing.T) {
	for _, storage := range []codec.Storage{codec.StorageFile, codec.StorageQueue} {
		t.Run(storage.String(), func(t *testing.T) {
			mem := vfs.NewMem()
			d := openDisk(t, mem)
			s := codec.TopicSettings{Storage: storage}
			if storage == codec.StorageFile {
				s.SegmentBytes = MinSegmentBytes
			}
			p := mustCreate(t, d.r, "t", s).Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			send := func(first int32, records int) {
				var w codec.BatchBuilder
				w.Reset(nil, codec.MaxSlabBytes)
				for range records {
					w.AddValue(1, make([]byte, 2000))
				}
				f.send(w.Finish(codec.BatchMeta{ProducerID: 7, BaseSequence: first}))
			}
			bases := map[int32]codec.Offset{}
			for i := range int32(50) {
				send(10*i, 10)
				bases[10*i] = f.confirmed()[0].Base
			}
			again := func(firsts ...int32) {
				t.Helper()
				for _, first := range firsts {
					send(first, 10)
					if got := f.confirmed()[0].Base; got != bases[first] {
						t.Errorf("sequence %d is at %d, sent again at %d", first, bases[first], got)
					}
				}
			}
			again(490, 450, 470)
			send(600, 10)
			if r := f.settled(); r[0].Code != codec.CodeOutOfOrder {
				t.Errorf("a gap in the sequence: %s", r[0].Code)
			}
			f.reopen()
			again(490)
			f.Close()
			if storage != codec.StorageFile {
				d.close()
				return
			}
			cut := mem.CrashClone(vfs.Nothing, 1)
			d.close()
			for name, fsys := range map[string]*vfs.Mem{"closed": mem, "power cut": cut} {
				d = openDisk(t, fsys)
				topic, err := d.r.Get("t")
				if err != nil {
					t.Fatal(err)
				}
				p = topic.Partitions()[0]
				f = d.feeder(p, codec.LevelDefault)
				again(490, 450)
				send(500, 10)
				if r := f.confirmed(); r[0].Base != 500 {
					t.Errorf("%s: the next batch is at %d", name, r[0].Base)
				}
				if n := whole(t, d.read(p, "", 0, 510, 1<<20), 0, 510); n != 510 {
					t.Errorf("%s: %d records", name, n)
				}
				f.Close()
				d.close()
			}
		})
	}
}

// What retention and a purge have removed is told as a gap with its reason; a deleted topic is gone, and its name is free.
func TestWhatIsRemoved(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	s := fileTopic(1)
	s.SegmentBytes, s.RetentionBytes, s.RingBytes = MinSegmentBytes, 200<<10, 160<<10
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(200, 1, 10<<10)
	f.confirmed()
	d.sink.await(t, "retention", func() bool {
		p.Tick(0, time.Now().UnixMilli())
		return p.Info().Start > 0
	})
	list := d.read(p, "", 0, 200, 1<<20)
	whole(t, list, 0, 200)
	if list[0].reason != codec.GapExpired {
		t.Errorf("the first that is read is %+v", list[0])
	}
	n, err := p.Purge(time.Now().UnixMilli())
	if i := p.Info(); err != nil || n == 0 || i.Start != 200 || i.High != 200 {
		t.Errorf("purged %d, %v: %+v", n, err, i)
	}
	f.publish(1, 1, 100)
	f.confirmed()
	if list := d.read(p, "", 0, 201, 1<<20); list[0].reason != codec.GapPurged || whole(t, list, 0, 201) != 1 {
		t.Errorf("after a purge: %+v", list)
	}
	if err := d.r.Delete("t", time.Now().UnixMilli()); err != nil {
		t.Fatal(err)
	}
	f.publish(1, 1, 100)
	if r := f.settled(); r[0].Code != codec.CodeTopicDeleted {
		t.Errorf("published to a deleted topic: %s", r[0].Code)
	}
	f.Close()
	if i := mustCreate(t, d.r, "t", s).Partitions()[0].Info(); i.High != 0 || i.JournalBytes != 0 {
		t.Errorf("made anew: %+v", i)
	}
	d.close()
}

// A place in the files that cannot be read is told as a gap of its own reason, and reading goes on behind it.
func TestDamageIsTold(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	topic := mustCreate(t, d.r, "t", fileTopic(1))
	f := d.feeder(topic.Partitions()[0], codec.LevelDefault)
	f.publish(100, 1, 20<<10)
	f.confirmed()
	f.Close()
	dir := d.r.files.catalogue.PartitionDir(topic.ID(), 0)
	d.close()
	file, err := mem.Open(dir + "/00000000000000000000.seg")
	if err != nil {
		t.Fatal(err)
	}
	if err := file.WriteAt([][]byte{[]byte("damage")}, 300<<10); err != nil {
		t.Fatal(err)
	}
	_ = file.Close()
	d = openDisk(t, mem)
	if topic, err = d.r.Get("t"); err != nil {
		t.Fatal(err)
	}
	damaged := 0
	list := d.read(topic.Partitions()[0], "", 0, 100, 1<<20)
	n := whole(t, list, 0, 100)
	for _, s := range list {
		if s.reason == codec.GapDamaged {
			damaged++
		}
	}
	if damaged != 1 || n < 50 || n == 100 {
		t.Errorf("%d gaps, %d records: %+v", damaged, n, list)
	}
	d.close()
}

// Under queue_file records are confirmed before they are on the disk, up to a bound; a disk that has no room holds nothing up before
// that, and gets everything once it has.
func TestWriteBehind(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	topic := mustCreate(t, d.r, "t", codec.TopicSettings{
		Storage: codec.StorageQueueFile, RingBytes: 256 << 10, MaxBatchBytes: 64 << 10, Overflow: codec.OverflowReject, SyncMillis: 5,
	})
	p := topic.Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 10<<10)
	f.confirmed()
	d.sink.await(t, "durable", func() bool { return p.Info().Durable == 1 })
	mem.SetLimit(mem.Used())
	f.publish(30, 1, 10<<10) // more than the ring holds
	good, refused := 1, 0
	for _, r := range f.settled() {
		if r.Code == codec.CodeNone {
			good++
		} else {
			refused++
		}
	}
	if good < 20 || refused == 0 {
		t.Errorf("%d confirmed, %d refused", good, refused)
	}
	mem.SetLimit(0)
	d.sink.await(t, "everything to be on the disk", func() bool {
		p.Tick(0, time.Now().UnixMilli())
		return p.Info().Durable == codec.Offset(good)
	})
	f.Close()
	d.close()
	d = openDisk(t, mem)
	topic, err := d.r.Get("t")
	if err != nil {
		t.Fatal(err)
	}
	if n := whole(t, d.read(topic.Partitions()[0], "", 0, codec.Offset(good), 1<<20), 0, codec.Offset(good)); n != codec.Offset(good) {
		t.Errorf("%d of %d records", n, good)
	}
	d.close()
}

// A time is found, in memory and in files, by the time of the records.
func TestSince(t *testing.T) {
	for _, s := range []codec.TopicSettings{{Storage: codec.StorageQueue}, fileTopic(1)} {
		d := openDisk(t, vfs.NewMem())
		p := mustCreate(t, d.r, "t", s).Partitions()[0]
		f := d.feeder(p, codec.LevelDefault)
		f.publish(100, 10, 8<<10) // the time of batch i is i, from 1 on
		f.confirmed()
		for millis, want := range map[int64]codec.Offset{0: 0, 1: 0, 2: 10, 50: 490, 100: 990, 101: 1000} {
			got := make(chan codec.Offset, 1)
			p.Since(millis, func(begin codec.Offset, err error) {
				if err != nil {
					t.Error(err)
				}
				got <- begin
			})
			if begin := <-got; begin != want {
				t.Errorf("%s: time %d begins at %d, want %d", s.Storage, millis, begin, want)
			}
		}
		f.Close()
		d.close()
	}
}
