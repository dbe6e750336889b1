package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// F08: one failed sync, and every later one succeeds: nothing of the failing group or behind it is ever confirmed, the log says so, takes
// no more, serves what was durable, and is itself again after it was opened anew.
func TestFailedSyncPoisons(t *testing.T) {
	for name, mode := range map[string]SyncMode{"always": SyncAlways, "interval": SyncInterval} {
		t.Run("sync="+name, func(t *testing.T) {
			p := newPools(t)
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			opts := testOptions(p)
			opts.Sync, opts.Interval = mode, time.Millisecond
			l := mustOpen(t, fault, testDir, opts)
			for range 4 {
				l.mustAppend(2, 100)
				l.mustDurable()
			}
			durable := l.Next()
			var failed atomic.Bool
			fault.SetHook(func(op vfs.Op) error {
				if (op.Kind == vfs.OpWriteSync || op.Kind == vfs.OpSync) && failed.CompareAndSwap(false, true) {
					return &vfs.SyncError{Err: syscall.EIO}
				}
				return nil
			})
			l.mustAppend(2, 100)
			var poisoned *PoisonedError
			if err := l.waitDurable(); !errors.As(err, &poisoned) || !errors.Is(err, syscall.EIO) || poisoned.From != durable {
				t.Fatalf("the append ended with %v", err)
			}
			for range 3 {
				if _, err := l.append(1, 10); !errors.Is(err, ErrPoisoned) {
					t.Fatalf("an append to a poisoned log: %v", err)
				}
			}
			if l.Durable() != durable || !l.Metrics().Poisoned || !errors.Is(l.Err(), ErrPoisoned) {
				t.Errorf("durable is %d, want %d; %v", l.Durable(), durable, l.Err())
			}
			r := readOne(l.Log, 0, make([]byte, 1<<16))
			if r.Err != nil || len(r.Data) == 0 {
				t.Errorf("a read from a poisoned log: %v", r.Err)
			}
			if err := l.Close(); !errors.Is(err, ErrPoisoned) {
				t.Errorf("close: %v", err)
			}
			again := mustOpen(t, mem, testDir, opts)
			if again.Next() < durable {
				t.Errorf("next is %d, %d was durable", again.Next(), durable)
			}
			again.mustAppend(1, 10)
			again.mustDurable()
			again.mustClose()
		})
	}
}

// A full disk refuses whole appends with its own error, and the log heals when there is space: no offset is lost or used twice.
func TestNoSpaceHeals(t *testing.T) {
	p := newPools(t)
	mem := vfs.NewMem()
	opts := testOptions(p)
	opts.SegmentBytes = 32 << 10
	l := mustOpen(t, mem, testDir, opts)
	mem.SetLimit(100 << 10)
	refusals := 0
	for i := 0; refusals < 3; i++ {
		if i == 2000 {
			t.Fatal("the disk never filled up")
		}
		_, err := l.append(2, 400)
		if err == nil {
			err = l.waitDurable()
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrNoSpace) {
			t.Fatalf("a full disk: %v", err)
		}
		refusals++
		l.wait("the refusal to end", func() bool { return l.Log.Err() == nil })
		next := l.Next()
		for base := range l.batches {
			if base >= next {
				delete(l.batches, base)
			}
		}
		l.refused = nil
		if refusals == 2 {
			mem.SetLimit(160 << 10)
		}
	}
	mem.SetLimit(0)
	for range 20 {
		l.mustAppend(3, 300)
	}
	l.mustDurable()
	checkContents(t, l.Log, l.batches, 0, l.Next())
	next := l.Next()
	abandon(l)
	again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
	if again.Next() != next {
		t.Errorf("next is %d, want %d", again.Next(), next)
	}
	checkContents(t, again.Log, l.batches, 0, next)
	again.mustClose()
}

// F18: too many open files refuses appends and reads, and both work again afterwards.
func TestTooManyOpenFiles(t *testing.T) {
	f := newFixture(t, 30, true)
	fault := vfs.NewFault(f.clone())
	l := mustOpen(t, fault, testDir, f.opts)
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpOpen || op.Kind == vfs.OpCreate {
			return syscall.EMFILE
		}
		return nil
	})
	if r := readOne(l.Log, 0, make([]byte, 1<<16)); !errors.Is(r.Err, syscall.EMFILE) || errors.Is(r.Err, ErrCorrupt) {
		t.Errorf("read: %v", r.Err)
	}
	if _, err := l.append(1, 10); err != nil {
		t.Fatal(err)
	}
	var refused *RefusedError
	if err := l.waitDurable(); !errors.As(err, &refused) || !errors.Is(err, syscall.EMFILE) || errors.Is(err, ErrNoSpace) {
		t.Errorf("append: %v", err)
	}
	fault.SetHook(nil)
	l.wait("the refusal to end", func() bool { return l.Log.Err() == nil })
	l.batches = f.batches
	l.first = 0
	l.mustAppend(1, 10)
	l.mustDurable()
	checkContents(t, l.Log, l.batches, 0, l.Next())
	l.mustClose()
}

// F07: a new name is made durable in its directory before anything counts as durable that depends on it, and F01 at this level: nothing
// does before the write of it was synced. Across rolls.
func TestNamesBeforeData(t *testing.T) {
	p := newPools(t)
	mem := vfs.NewMem()
	fault := vfs.NewFault(mem)
	opts := testOptions(p)
	opts.SegmentBytes = 8 << 10
	l := mustOpen(t, fault, "/deep/down/"+testDir, opts)
	for range 80 {
		l.mustAppend(2, 300)
		l.mustDurable()
		// Whatever counts as durable now survives a power cut now.
		c := mem.CrashClone(vfs.Nothing, 0)
		again := mustOpen(t, c, "/deep/down/"+testDir, opts)
		if again.Next() < l.Durable() {
			t.Fatalf("%d is durable, after a power cut next is %d", l.Durable(), again.Next())
		}
		abandon(again)
	}
	if n := l.Metrics().Segments; n < 5 {
		t.Fatalf("only %d segments", n)
	}
	l.mustClose()
}

// A seal says that nothing below its end may be missing, so it waits until everything before its segment is durable: where appends are
// not synced, a later segment could otherwise be sealed first, and the loss of the one before would count as damage. A segment of which
// not even the header reached the disk ends the chain: the log does not begin behind it.
func TestSealsComeInOrder(t *testing.T) {
	for name, mode := range map[string]SyncMode{"interval": SyncInterval, "os": SyncOS} {
		t.Run("sync="+name, func(t *testing.T) {
			p := newPools(t)
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			opts := testOptions(p)
			opts.Sync, opts.Interval = mode, time.Hour
			opts.SegmentBytes = 8 << 10
			l := mustOpen(t, fault, testDir, opts)
			release := make(chan struct{})
			releaseOnce := sync.OnceFunc(func() { close(release) })
			t.Cleanup(releaseOnce)
			first := testDir + "/" + segmentName(0)
			fault.SetHook(func(op vfs.Op) error {
				if op.Path == first && op.Kind == vfs.OpSync {
					<-release
				}
				return nil
			})
			for range 40 {
				l.mustAppend(2, 400)
			}
			l.waitState("everything but the first sync to be done", func() bool {
				return l.busy == 0 && l.tasks == 1 && l.written == l.next
			})
			if n := l.Metrics().Segments; n < 4 {
				t.Fatalf("only %d segments", n)
			}
			for seed := range uint64(20) {
				again := mustOpen(t, mem.CrashClone(vfs.Survival(min(seed, 2)), seed), testDir, opts)
				if r := again.Report(); r.DamageCount > 0 || again.Start() != 0 {
					t.Errorf("seed %d: start is %d, damages %v", seed, again.Start(), r.Damages)
				}
				checkContents(t, again.Log, l.batches, 0, 0)
				if all := again.Next() == l.Next(); all != (seed == 1) && seed < 2 {
					t.Errorf("seed %d: next is %d, the log was at %d", seed, again.Next(), l.Next())
				}
				abandon(again)
			}
			releaseOnce()
			active := codec.Offset(0)
			l.waitState("all but the active segment to be sealed", func() bool {
				active = l.active.base
				return l.durable == active && l.segments[len(l.segments)-2].sealed
			})
			again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
			if again.Next() != active || again.Report().DamageCount > 0 {
				t.Errorf("next is %d, %d was durable: %+v", again.Next(), active, again.Report())
			}
			abandon(again)
			l.mustClose()
		})
	}
}

// A purge is for good when it returns: no power cut brings anything back that was below. A trim is not: until its removal is synced a
// power cut may bring back what went last, whole, and never with a hole.
func TestPurgeIsForGood(t *testing.T) {
	for name, mode := range crashModes {
		t.Run("sync="+name, func(t *testing.T) {
			p := newPools(t)
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			opts := testOptions(p)
			opts.Sync, opts.Interval = mode, time.Millisecond
			opts.SegmentBytes = 8 << 10
			l := mustOpen(t, fault, testDir, opts)
			for range 40 {
				l.mustAppend(2, 400)
			}
			next := l.Next()
			if err := l.within("purge", l.Purge); err != nil {
				t.Fatal(err)
			}
			for seed := range uint64(40) {
				again := mustOpen(t, mem.CrashClone(vfs.Survival(min(seed, 2)), seed), testDir, opts)
				if again.Start() != next || again.Next() != next || again.Report().DamageCount > 0 {
					t.Fatalf("seed %d: %d to %d after a purge up to %d: %+v", seed, again.Start(), again.Next(), next, again.Report())
				}
				abandon(again)
			}

			for range 40 {
				l.mustAppend(2, 400)
			}
			l.Sync()
			l.waitState("the appends to be durable", func() bool { return l.durable == l.next && l.tasks == 0 && l.busy == 0 })
			var held atomic.Bool
			hold := make(chan struct{})
			holdOnce := sync.OnceFunc(func() { close(hold) })
			t.Cleanup(holdOnce)
			fault.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpSyncDir && held.CompareAndSwap(false, true) {
					<-hold
				}
				return nil
			})
			to := (next + l.Next()) / 2
			l.Trim(to)
			start := l.Start()
			if start <= next || start > to {
				t.Fatalf("start is %d after a trim to %d", start, to)
			}
			back := false
			for seed := range uint64(40) {
				again := mustOpen(t, mem.CrashClone(vfs.Survival(min(seed, 2)), seed), testDir, opts)
				if again.Start() > start || again.Next() != l.Next() || again.Report().DamageCount > 0 {
					t.Fatalf("seed %d: start is %d, was %d: %+v", seed, again.Start(), start, again.Report())
				}
				back = back || again.Start() < start
				checkContents(t, again.Log, l.batches, start, l.Next())
				abandon(again)
			}
			if !back {
				t.Error("no power cut brought anything back: the test proves nothing")
			}
			holdOnce()
			l.waitStart(start)
			again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
			if again.Start() != start {
				t.Errorf("start is %d after the removals were synced, want %d", again.Start(), start)
			}
			abandon(again)
			l.mustClose()
		})
	}
}

// A removal whose directory could not be synced is tried again, whether the file was removed or is kept to be written again.
func TestTrimIsTriedAgain(t *testing.T) {
	for name, spares := range map[string]int{"removed": -1, "recycled": 2} {
		t.Run(name, func(t *testing.T) {
			p := newPools(t)
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			opts := testOptions(p)
			opts.SegmentBytes = 8 << 10
			opts.MaxSpares = spares
			l := mustOpen(t, fault, testDir, opts)
			for range 40 {
				l.mustAppend(2, 400)
			}
			l.mustDurable()
			l.waitState("quiet", func() bool { return l.tasks == 0 && l.busy == 0 })
			var failures atomic.Int32
			fault.SetHook(func(op vfs.Op) error {
				if op.Kind == vfs.OpSyncDir && failures.Add(1) == 1 {
					return syscall.EIO
				}
				return nil
			})
			to := l.Next() / 2
			l.Trim(to)
			l.waitState("the trim to fail", func() bool { return l.trimFailure != nil && !l.trimming })
			l.Retain()
			l.waitState("the trim to end", func() bool { return len(l.doomed) == 0 && l.tasks == 0 })
			start := l.Start()
			again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
			if again.Start() != start {
				t.Errorf("start is %d, after a power cut %d", start, again.Start())
			}
			abandon(again)
			l.mustClose()
		})
	}
}

// F73: a reader that found a segment before it was trimmed, and comes to open it when its file is on the way to become another segment's,
// is told that the records are gone; it never reads the other segment's bytes.
func TestReaderComesLate(t *testing.T) {
	p := newPools(t)
	fault := vfs.NewFault(vfs.NewMem())
	opts := testOptions(p)
	opts.SegmentBytes = 8 << 10
	l := mustOpen(t, fault, testDir, opts)
	for range 40 {
		l.mustAppend(2, 400)
	}
	l.mustDurable()
	l.waitState("quiet", func() bool { return l.tasks == 0 && l.busy == 0 })
	found := l.segments[0]
	var renamed atomic.Bool
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpRename && op.Path == found.path {
			renamed.Store(true)
			o, err := p.rd.acquire(l.Log, found)
			var gone *RangeError
			if err == nil {
				t.Error("a reader got a file that is about to be written again")
				p.rd.release(o)
			} else if err := l.gone(0, err); !errors.As(err, &gone) || gone.Start != l.Start() {
				t.Errorf("a reader that came late got %v", err)
			}
		}
		return nil
	})
	l.Trim(found.end)
	l.waitStart(found.end)
	if !renamed.Load() || l.Metrics().Recycled != 1 {
		t.Errorf("the segment was not kept to be written again: %+v", l.Metrics())
	}
	fault.SetHook(nil)
	l.mustClose()
}

// F07: the process that made a log's directory died before it could sync its name. The next one does not take the name for granted: what it
// confirms survives a power cut.
func TestDirectoryOfADeadProcess(t *testing.T) {
	p := newPools(t)
	mem := vfs.NewMem()
	if err := vfs.MkdirAll(mem, "/data/t"); err != nil {
		t.Fatal(err)
	}
	if err := mem.Mkdir(testDir); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, mem, testDir, testOptions(p))
	l.mustAppend(3, 100)
	l.mustDurable()
	again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, testOptions(p))
	if again.Next() != l.Next() {
		t.Errorf("%d was confirmed, after a power cut next is %d", l.Next(), again.Next())
	}
	abandon(again)
	l.mustClose()
}

// slowDisk makes every sync take a time.
func slowDisk(fault *vfs.Fault, d time.Duration, only string) *atomic.Int64 {
	var syncs atomic.Int64
	fault.SetHook(func(op vfs.Op) error {
		switch op.Kind {
		case vfs.OpSync, vfs.OpWriteSync, vfs.OpSyncDir:
			if only == "" || strings.Contains(op.Path, only) {
				syncs.Add(1)
				<-time.After(d)
			}
		}
		return nil
	})
	return &syncs
}

// F77: with 5 ms for a sync, appenders share syncs: throughput grows nearly linearly with their number at an equal rate of syncs, no append
// waits longer than two syncs, and a slow partition does not hold up the others. The time is virtual.
func TestAppendersShareSyncs(t *testing.T) {
	for _, appenders := range []int{1, 8, 64, 512} {
		t.Run(fmt.Sprintf("appenders=%d", appenders), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const syncTime = 5 * time.Millisecond
				p := newPools(t)
				fault := vfs.NewFault(vfs.NewMem())
				w := &window{}
				w.cond.L = &w.mu
				opts := testOptions(p)
				opts.OnProgress = w.progress
				l, err := Open(fault, testDir, opts)
				if err != nil {
					t.Fatal(err)
				}
				share(t, l, w, 1, 1) // the first one makes the file
				syncs := slowDisk(fault, syncTime, "")
				const rounds = 20
				began := time.Now()
				share(t, l, w, appenders, appenders*rounds)
				took := time.Since(began)
				if most := 2 * syncTime * rounds; took > most {
					t.Errorf("%d rounds took %v, more than two syncs each (%v)", rounds, took, most)
				}
				if n, most := syncs.Load(), int64(took/syncTime+1)*2+5; n > most {
					t.Errorf("%d syncs in %v: more than two at a time", n, took)
				}
				fault.SetHook(nil)
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
	t.Run("one slow partition", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPools(t)
			fault := vfs.NewFault(vfs.NewMem())
			open := func(dir string) (*Log, *window) {
				w := &window{}
				w.cond.L = &w.mu
				opts := testOptions(p)
				opts.OnProgress = w.progress
				l, err := Open(fault, dir, opts)
				if err != nil {
					t.Fatal(err)
				}
				share(t, l, w, 1, 1)
				return l, w
			}
			slow, sw := open("/slow")
			fast, fw := open("/fast")
			slowDisk(fault, time.Second, "/slow/")
			var wg sync.WaitGroup
			wg.Go(func() { share(t, slow, sw, 512, 2048) })
			<-time.After(100 * time.Millisecond)
			began := time.Now()
			share(t, fast, fw, 1, 100)
			if took := time.Since(began); took > 10*time.Millisecond {
				t.Errorf("100 appends beside a partition whose syncs take a second took %v", took)
			}
			wg.Wait()
			fault.SetHook(nil)
			for _, l := range []*Log{slow, fast} {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

// F78: a roll delays no append by more than one sync.
func TestRollStallsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const syncTime = 5 * time.Millisecond
		p := newPools(t)
		fault := vfs.NewFault(vfs.NewMem())
		w := &window{}
		w.cond.L = &w.mu
		opts := testOptions(p)
		opts.OnProgress = w.progress
		opts.SegmentBytes = 256 << 10
		l, err := Open(fault, testDir, opts)
		if err != nil {
			t.Fatal(err)
		}
		share(t, l, w, 1, 1)
		slowDisk(fault, syncTime, "")
		worst := time.Duration(0)
		next := l.Next()
		for range 600 {
			b := makeBatch(next, 1, 4000, 1, codec.NoProducer)
			next++
			began := time.Now()
			if err := l.Append([][]byte{b}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 0 {
				t.Fatalf("Append waited %v", took)
			}
			if err := w.wait(next); err != nil {
				t.Fatal(err)
			}
			worst = max(worst, time.Since(began))
			<-time.After(syncTime) // a constant rate below the disk's
		}
		if n := l.Metrics().Segments; n < 8 {
			t.Fatalf("only %d segments", n)
		}
		if worst > 2*syncTime {
			t.Errorf("the slowest append took %v, a sync takes %v", worst, syncTime)
		}
		fault.SetHook(nil)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A log that has been idle for a while holds no file, no buffers, no timer and no disk space but its records', in every mode, though
// nobody asked for a sync. An append that comes while it gives them back is not lost.
func TestIdleLogGivesBack(t *testing.T) {
	for name, mode := range crashModes {
		t.Run("sync="+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPools(t)
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				opts := testOptions(p)
				opts.Sync = mode
				opts.MarkDelay, opts.IdleClose = 200*time.Millisecond, 30*time.Second
				opts.SegmentBytes = 1 << 20
				l := mustOpen(t, fault, testDir, opts)
				for range 400 {
					l.mustAppend(8, 1000)
				}
				synctest.Wait()
				l.Sync()
				synctest.Wait()
				l.Trim(l.Next() * 3 / 4)
				synctest.Wait()
				if m := l.Metrics(); m.Recycled == 0 || mem.Used() < m.Bytes+1<<20 {
					t.Fatalf("there is nothing to give back: %d bytes used, %+v", mem.Used(), m)
				}
				idle := func() {
					t.Helper()
					<-time.After(opts.IdleClose + 2*opts.MarkDelay + time.Minute)
					synctest.Wait()
					l.Log.mu.Lock()
					atRest := !l.active.ready && l.spare == nil && len(l.spares) == 0 && l.slots == nil && l.flights == nil && l.pending == nil &&
						l.alarm.index < 0 && l.durable == l.next && l.marked == l.next
					l.Log.mu.Unlock()
					if !atRest {
						t.Errorf("the log is not at rest:\n%s", l.describe())
					}
					for _, e := range must(mem.List(testDir)) {
						if kind, _ := parseName(e.Name); kind == nameTemp || kind == nameSegment && e.Size > 1<<20 {
							t.Errorf("%s is there with %d bytes", e.Name, e.Size)
						}
					}
					if size := must(must(mem.OpenRead(l.active.path)).Size()); size != int64(l.active.pos) {
						t.Errorf("the active segment has %d bytes, %d of them were written", size, l.active.pos)
					}
				}
				idle()
				for range 50 {
					l.mustAppend(8, 1000)
				}
				held, release := make(chan struct{}), make(chan struct{})
				fault.SetHook(func(op vfs.Op) error {
					if op.Kind == vfs.OpTruncate && op.Path == l.active.path {
						close(held)
						<-release
					}
					return nil
				})
				<-held // it is giving back
				l.mustAppend(3, 1000)
				synctest.Wait()
				fault.SetHook(nil)
				close(release)
				synctest.Wait()
				if l.Written() != l.Next() {
					t.Errorf("written is %d, next %d", l.Written(), l.Next())
				}
				idle()
				next, start := l.Next(), l.Start()
				again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
				if again.Next() != next || !again.Report().Clean {
					t.Errorf("next is %d, want %d: %+v", again.Next(), next, again.Report())
				}
				checkContents(t, again.Log, l.batches, start, next)
				abandon(again)
				l.mustClose()
			})
		})
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// F71: the wall clock steps back and forth: offsets go on, lookups stay right though times are not sorted, nothing expires by a step, and
// an Open before the newest record's time neither fails nor expires anything.
func TestClockSteps(t *testing.T) {
	p := newPools(t)
	mem := vfs.NewMem()
	clock := &manualClock{wall: 1_700_000_000_000}
	opts := testOptions(p)
	opts.Clock = clock
	opts.SegmentBytes = 8 << 10
	opts.RetentionTime = 30 * time.Minute
	l := mustOpen(t, mem, testDir, opts)
	type appended struct {
		base codec.Offset
		wall int64
	}
	var all []appended
	for _, step := range []time.Duration{0, -time.Hour, time.Hour, -10 * 365 * 24 * time.Hour, 10*365*24*time.Hour + time.Hour, -time.Minute} {
		clock.step(step)
		for range 12 {
			wall, _ := clock.Now()
			all = append(all, appended{l.Next(), wall})
			l.mustAppend(2, 200)
			l.mustDurable()
			clock.advance(time.Second)
		}
		l.Retain()
	}
	check := func(l *testLog) {
		t.Helper()
		if l.Start() != 0 {
			t.Fatalf("a step of the clock expired everything below %d", l.Start())
		}
		for _, a := range all {
			for _, q := range []int64{a.wall, a.wall - 1, a.wall + 500} {
				want, found := l.Next(), false
				for _, b := range all {
					if b.wall >= q {
						want, found = b.base, true
						break
					}
				}
				if got := lookupOne(l.Log, q, false); got.Err != nil || got.Offset != want || got.Found != found {
					t.Fatalf("lookup of %d: %+v, want %d %v", q, got, want, found)
				}
			}
		}
	}
	check(l)
	batches := l.batches
	l.mustClose()
	clock.step(-2 * 365 * 24 * time.Hour)
	l = mustOpen(t, mem, testDir, opts)
	l.Retain()
	check(l)
	checkContents(t, l.Log, batches, 0, l.Next())

	// Time that really passes does expire, the active segment too.
	clock.advance(31 * time.Minute)
	next := l.Next()
	l.Retain()
	l.waitStart(next)
	if l.Next() != next {
		t.Errorf("next is %d, want %d", l.Next(), next)
	}
	l.mustClose()
	l = mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
	if l.Start() != next || l.Next() != next || l.Report().DamageCount > 0 {
		t.Errorf("start %d, next %d, want %d: %+v", l.Start(), l.Next(), next, l.Report())
	}
	l.mustClose()
}

// waitStart waits until the log begins at an offset and nothing is left to remove.
func (tl *testLog) waitStart(want codec.Offset) {
	tl.t.Helper()
	tl.waitState(fmt.Sprintf("start to become %d", want), func() bool {
		return tl.start >= want && len(tl.doomed) == 0 && tl.tasks == 0
	})
}

// waitState waits until a condition on the log's state holds, which is checked whenever some work of the log has ended.
func (tl *testLog) waitState(what string, cond func() bool) {
	tl.t.Helper()
	l := tl.Log
	late := false
	timer := time.AfterFunc(testDeadline, func() {
		l.mu.Lock()
		late = true
		l.mu.Unlock()
		l.idle.Broadcast()
	})
	defer timer.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !cond() {
		if late {
			l.mu.Unlock()
			what += ":\n" + tl.describe()
			l.mu.Lock() // for the deferred unlock
			tl.t.Fatalf("waited too long for %s", what)
		}
		l.idle.Wait()
	}
}

// One broker per data directory: the second one is told, and a lock that was given up can be had again.
func TestLockDir(t *testing.T) {
	for name, c := range map[string]struct {
		fsys vfs.FS
		dir  string
	}{"mem": {vfs.NewMem(), "/data"}, "os": {vfs.OS{}, filepath.Join(t.TempDir(), "a", "b")}} {
		t.Run("fs="+name, func(t *testing.T) {
			lock, err := LockDir(c.fsys, c.dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := LockDir(c.fsys, c.dir); !errors.Is(err, vfs.ErrLocked) {
				t.Errorf("the second lock: %v", err)
			}
			if err := lock.Close(); err != nil {
				t.Fatal(err)
			}
			lock, err = LockDir(c.fsys, c.dir)
			if err != nil {
				t.Fatal(err)
			}
			_ = lock.Close()
		})
	}
}

// The real file system refuses a link and a pipe with a segment's name, without waiting.
func TestOSRefusesWhatIsNotAFile(t *testing.T) {
	dir := t.TempDir()
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{link, pipe, dir} {
		for _, open := range []func(string) (vfs.File, error){vfs.OS{}.Open, vfs.OS{}.OpenRead} {
			if f, err := open(name); !errors.Is(err, vfs.ErrNotRegular) {
				t.Errorf("open %s: %v, %v", name, f, err)
			}
		}
	}
}

// A log whose directory could be made, but not its name durable, is opened again: what it then confirms is there after a power cut.
func TestDirectoryOfAFailedAttempt(t *testing.T) {
	mem := vfs.NewMem()
	if err := vfs.MkdirAll(mem, "/data/t"); err != nil {
		t.Fatal(err)
	}
	fault := vfs.NewFault(mem)
	opts := testOptions(newPools(t))
	failed := false
	fault.SetHook(func(op vfs.Op) error {
		if op.Kind == vfs.OpSyncDir && !failed {
			failed = true
			return syscall.EIO
		}
		return nil
	})
	if _, err := tryOpen(t, fault, "/data/t/0", opts); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the first attempt: %v", err)
	}
	l := mustOpen(t, fault, "/data/t/0", opts)
	l.mustAppend(3, 100)
	l.mustDurable()
	next := l.Durable()
	crashed := mem.CrashClone(vfs.Nothing, 1)
	l.mustClose()
	again := mustOpen(t, crashed, "/data/t/0", opts)
	defer again.mustClose()
	if again.Next() != next {
		t.Errorf("the log ends at %d, %d was confirmed", again.Next(), next)
	}
}

// The header of a segment alone tells whose it is.
func TestReadHeader(t *testing.T) {
	mem := vfs.NewMem()
	opts := testOptions(newPools(t))
	l := mustOpen(t, mem, testDir, opts)
	l.mustAppend(3, 100)
	l.mustClose()
	names, err := Segments(mem, testDir)
	if err != nil || len(names) != 1 {
		t.Fatalf("segments %v, error %v", names, err)
	}
	h, half, err := ReadHeader(mem, names[0])
	if err != nil || half || h.Topic != opts.Topic || h.Partition != opts.Partition || h.Base != 0 {
		t.Fatalf("header %+v, half %v, error %v", h, half, err)
	}
	f, err := mem.Open(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{0, headerCopyPosition} {
		if err := f.WriteAt([][]byte{{0}}, at); err != nil {
			t.Fatal(err)
		}
		_, half, err = ReadHeader(mem, names[0])
		if at == 0 && (err != nil || !half) || at != 0 && !errors.Is(err, ErrNoHeader) {
			t.Errorf("with the copy at %d damaged too: half %v, error %v", at, half, err)
		}
	}
	if _, _, err := ReadHeader(mem, testDir); !errors.Is(err, vfs.ErrNotRegular) {
		t.Errorf("the header of a directory: %v", err)
	}
}

// TestWrittenWaitsForTheName: a spare file is written to before it is renamed to its segment's name, and a recovery removes spares: what
// is in it does not survive the process, and so is not Written, before the rename has returned.
func TestWrittenWaitsForTheName(t *testing.T) {
	p := newPools(t)
	fsys := vfs.NewFault(vfs.NewMem())
	opts := testOptions(p)
	opts.Sync, opts.SegmentBytes = SyncOS, 64<<10
	tl := mustOpen(t, fsys, "log", opts)
	renaming, release, written := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, wrote sync.Once
	fsys.SetHook(func(op vfs.Op) error {
		spare := strings.Contains(op.Path, "spare-")
		switch {
		case op.Kind == vfs.OpRename && spare:
			once.Do(func() { close(renaming) })
			<-release
		case (op.Kind == vfs.OpWrite || op.Kind == vfs.OpWriteSync) && spare && op.Off == 0:
			wrote.Do(func() { close(written) })
		}
		return nil
	})
	under := func() bool {
		select {
		case <-renaming:
			return true
		default:
			return false
		}
	}
	rolled := tl.Next()
	for i := 0; !under(); i++ {
		if i == 1000 {
			t.Fatal("no spare became a segment")
		}
		rolled = tl.Next()
		tl.mustAppend(8, 1000)
		for tl.Written() < tl.Next() && !under() {
			runtime.Gosched()
		}
	}
	<-written
	timer := time.NewTimer(50 * time.Millisecond) // for it to be told, if it is: that it is not has no event
	defer timer.Stop()
	for told := false; !told; {
		select {
		case <-timer.C:
			told = true
		default:
			if w := tl.Written(); w > rolled {
				close(release)
				t.Fatalf("written is %d, and what begins at %d is in a spare file", w, rolled)
			}
			runtime.Gosched()
		}
	}
	close(release)
	tl.wait("all to be written", func() bool { return tl.prog.Written == tl.upto })
	tl.mustClose()
}
