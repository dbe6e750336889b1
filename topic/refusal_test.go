package topic

import (
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// After a crash the offsets that may have been given out are declared lost. Where the disk does not take that at first, it is tried again:
// nothing is given out twice, what comes next is stored, and who waits is woken.
func TestDeclaredGapIsRefused(t *testing.T) {
	interval, lazy := fileTopic(1), fileTopic(1)
	interval.Sync, interval.SyncMillis = codec.SyncInterval, 1
	lazy.Sync = codec.SyncOS
	for name, s := range map[string]codec.TopicSettings{
		"queue_file":    {Storage: codec.StorageQueueFile, SyncMillis: 1},
		"sync=interval": interval,
		"sync=os":       lazy,
	} {
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENOSPC} {
			t.Run(name+" "+errno.Error(), func(t *testing.T) {
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				d := openDisk(t, fault)
				f := d.feeder(mustCreate(t, d.r, "t", s).Partitions()[0], codec.LevelAppended)
				h := holdBack(fault, func(op vfs.Op) bool { return op.Kind == vfs.OpSyncDir && strings.HasSuffix(op.Path, "/0") })
				defer h.let()
				f.publish(10, 10, 1000)
				f.confirmed()
				given := f.part.Info().High
				cut := mem.CrashClone(vfs.Nothing, 1) // without the segment
				h.let()
				f.Close()
				d.close()

				fault = vfs.NewFault(cut)
				var failing atomic.Bool
				failing.Store(true)
				fault.SetHook(func(op vfs.Op) error {
					if !failing.Load() || !strings.HasSuffix(op.Path, ".seg") {
						return nil
					}
					if op.Kind == vfs.OpCreate || errno == syscall.ENOSPC && writes(op) {
						return errno
					}
					return nil
				})
				d = openDisk(t, fault)
				p := mustGet(t, d, "t").Partitions()[0]
				stop := d.ticking()
				d.sink.await(t, "a refusal", func() bool { return p.log.Metrics().Refusals > 1 })
				// Who reads what is declared lost waits for the next try.
				var behind Cursor
				if _, _, _, err := p.Attach(&behind, d.sink, "", codec.FromOffset, uint64(given-1), nowMillis()); err != nil {
					t.Fatal(err)
				}
				takes, until := 0, p.log.Metrics().Refusals+5
				for p.log.Metrics().Refusals < until {
					d.sink.mu.Lock()
					woken := d.sink.woken[&behind]
					d.sink.mu.Unlock()
					if woken >= takes {
						takes++
						var taken Taken
						behind.Take(&taken, 1, nowMillis())
						releaseTaken(taken.Batches)
					}
					runtime.Gosched()
				}
				behind.Detach(nowMillis())
				if takes > 100 {
					t.Errorf("a reader of what is not declared yet was woken %d times in five ticks", takes)
				}
				failing.Store(false)
				var cur Cursor
				if _, _, _, err := p.Attach(&cur, d.sink, "", codec.FromLatest, 0, nowMillis()); err != nil {
					t.Fatal(err)
				}
				var taken Taken
				cur.Take(&taken, 1, nowMillis())
				if len(taken.Batches) != 0 {
					t.Errorf("%d batches at the end", len(taken.Batches))
				}
				f = d.feeder(p, codec.LevelAppended)
				var base codec.Offset
				d.sink.await(t, "a publish", func() bool {
					d.sink.mu.Unlock()
					defer d.sink.mu.Lock()
					f.publish(1, 1, 100)
					r := f.settled()[0]
					if r.Code != codec.CodeNone {
						f.reopen()
						return false
					}
					base = r.Base
					return true
				})
				if base < given {
					t.Errorf("offset %d is given out again, %d was the end", base, given)
				}
				d.sink.await(t, "a wake-up", func() bool { return d.sink.woken[&cur] > 0 })
				d.sink.await(t, "all to be stored", func() bool { return p.log.Written() > base && p.Info().State == codec.PartitionOK })
				cur.Detach(nowMillis())
				f.Close()
				stop()
				d.close()
				id := d.lastN
				d = openDisk(t, cut)
				list := d.read(mustGet(t, d, "t").Partitions()[0], "", base, base+1, 1)
				if len(list) != 1 || list[0].id != id || list[0].reason != 0 {
					t.Errorf("after a restart: %+v", list)
				}
				d.close()
			})
		}
	}
}

// publishOwned publishes a batch as the owner of the partition, whose mu is held.
func (f *feeder) publishOwned() {
	list := published(f.d.pool, f.next, sealedBatch(nil, 7, 1, 100))
	in := f.part.incoming(&f.Publisher, f.epoch, &list[0])
	check(&in, 1<<20)
	f.part.core.publish(in)
	f.part.store()
	f.next++
	f.sent++
}

// A refusal that is told when the log has taken appends again takes none of those back.
func TestRefusalToldLate(t *testing.T) {
	for name, s := range map[string]codec.TopicSettings{
		"file": fileTopic(1), "queue_file": {Storage: codec.StorageQueueFile, SyncMillis: 1},
	} {
		t.Run(name, func(t *testing.T) {
			fault := vfs.NewFault(vfs.NewMem())
			d := openDisk(t, fault)
			p := mustCreate(t, d.r, "t", s).Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			var failed atomic.Bool
			fault.SetHook(func(op vfs.Op) error {
				if writes(op) && strings.HasSuffix(op.Path, ".seg") && p.log.Durable() == 1 && failed.CompareAndSwap(false, true) { // the mark
					return syscall.ENOSPC
				}
				return nil
			})
			f.publish(1, 1, 100)
			f.confirmed()
			d.sink.await(t, "all to be durable", func() bool { return p.Info().Durable == 1 })
			p.mu.Lock() // nothing is told from now on
			d.sink.await(t, "the end of a refusal", func() bool { return p.log.Metrics().Refusals == 1 && p.log.Err() == nil })
			f.publishOwned()
			p.leave()
			if r := f.settled()[0]; r.Code != codec.CodeNone || r.Base != 1 {
				t.Errorf("the batch that the log has taken: %+v", r)
			}
			d.sink.await(t, "the refusal to be told", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.core.healsAt != 0
			})
			d.sink.await(t, "all to be well", func() bool { return p.Info().State == codec.PartitionOK })
			f.publish(1, 1, 100)
			if r := f.settled()[0]; r.Code != codec.CodeNone || r.Base != 2 {
				t.Errorf("the next batch: %+v", r)
			}
			f.Close()
			d.close()
		})
	}
}

// A group whose read has failed, and whose place retention has removed meanwhile, reads once.
func TestGroupReadsOnce(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	s := fileTopic(1)
	s.SegmentBytes = MinSegmentBytes
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	const n = 200
	f.publish(n, 1, 10<<10)
	f.confirmed()
	f.Close()
	var hoard []*codec.Slab
	for slab := d.pool.TryGet(1 << 20); slab != nil && len(hoard) < 1000; slab = d.pool.TryGet(1 << 20) {
		if hoard = append(hoard, slab); len(hoard) == 1 {
			d.pool.Limit(d.pool.InUseBytes() + 1)
		}
	}
	var cur Cursor
	if _, _, _, err := p.Attach(&cur, d.sink, "g", codec.FromEarliest, 0, nowMillis()); err != nil {
		t.Fatal(err)
	}
	cur.Grant(1<<30, nowMillis())
	var taken Taken
	cur.Take(&taken, 1<<20, nowMillis())
	if len(taken.Batches) != 0 {
		t.Fatalf("without memory there are %d batches", len(taken.Batches))
	}
	d.pool.Limit(1 << 30)
	for _, slab := range hoard {
		slab.Release()
	}
	p.log.SetRetention(64*10<<10, 0)
	p.log.Retain()
	d.sink.await(t, "retention", func() bool { return p.log.Start() > 0 })
	p.Tick(0, nowMillis())
	next := codec.Offset(0)
	for next < n {
		d.sink.mu.Lock()
		woken := d.sink.woken[&cur]
		d.sink.mu.Unlock()
		taken.Reset()
		cur.Take(&taken, 1<<20, nowMillis())
		if taken.Gap.Next != 0 {
			next = taken.Gap.Next
		}
		checkTaken(t, taken.Batches)
		for _, b := range taken.Batches {
			if at := codec.Batch(b.Bytes).BaseOffset(); at != next {
				t.Fatalf("offset %d follows %d", at, next)
			}
			next++
		}
		releaseTaken(taken.Batches)
		if len(taken.Batches) == 0 && next < n {
			d.sink.await(t, "a wake-up", func() bool { return d.sink.woken[&cur] > woken })
		}
	}
	cur.Detach(nowMillis())
	d.close()
}

// Retention by bytes that is lowered is applied though nothing is published any more: at once, and at the next start.
func TestLoweredRetentionApplies(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	s := fileTopic(1)
	s.SegmentBytes = MinSegmentBytes
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(60, 1, 10<<10)
	f.confirmed()
	f.Close()
	d.close()
	copied := mem.CrashClone(vfs.Everything, 1)
	d = openDisk(t, mem)
	p = mustGet(t, d, "t").Partitions()[0]
	if _, err := d.r.Alter("t", codec.TopicSettings{RetentionBytes: MinSegmentBytes}, nowMillis()); err != nil {
		t.Fatal(err)
	}
	d.sink.await(t, "retention", func() bool { return p.log.Start() > 0 })
	if start, i := p.log.Start(), p.Info(); i.Start != start {
		t.Errorf("start is told as %d, and is %d", i.Start, start)
	}
	d.close()
	// The log as another owner of the directory would open it: with a bound that was not in force when its segments were sealed.
	d = openDisk(t, copied)
	p = mustGet(t, d, "t").Partitions()[0]
	if start := p.log.Start(); start != 0 {
		t.Fatalf("start is %d", start)
	}
	s = p.topic.Settings()
	s.RetentionBytes = MinSegmentBytes
	if err := p.log.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.r.files.attach(p, s); err != nil {
		t.Fatal(err)
	}
	d.sink.await(t, "retention at a start", func() bool { return p.log.Start() > 0 })
	d.close()
}

// The tick leaves a poisoned partition alone, also one that has confirmed what it will never write.
func TestPoisonedPartitionIsNotTicked(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	d := openDisk(t, fault)
	p := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: codec.StorageQueueFile, SyncMillis: 1}).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 100)
	f.confirmed()
	d.sink.await(t, "all to be durable", func() bool { return p.log.Durable() == 1 })
	var broken atomic.Bool
	fault.SetHook(func(op vfs.Op) error {
		if writes(op) {
			if broken.Load() {
				return syscall.EIO
			}
			return syscall.ENOSPC
		}
		return nil
	})
	f.publish(3, 1, 100)
	d.sink.await(t, "a refusal that was told", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.core.state == codec.PartitionNoSpace && !p.core.refusing && p.core.sent < p.core.next
	})
	broken.Store(true)
	if _, err := p.Purge(nowMillis()); err == nil {
		t.Error("a purge went well")
	}
	d.sink.await(t, "poison", func() bool { return p.Info().State == codec.PartitionPoisoned })
	p.Tick(0, nowMillis())
	p.mu.Lock()
	if p.core.sent == p.core.next {
		t.Error("all was given to the log")
	}
	if due := p.core.dueMillis(); due != 0 {
		t.Errorf("it is due at %d, %d to %d", due, p.core.sent, p.core.next)
	}
	p.mu.Unlock()
	fault.SetHook(nil)
	f.Close()
	_ = d.r.Close() // the partition is poisoned
}
