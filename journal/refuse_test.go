package journal

import (
	"bytes"
	"errors"
	"path"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// A sync or a mark that falls due while a refusal is being cleaned up is made up for afterwards, though nothing is appended any more.
func TestDueDuringARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPools(t)
		mem := vfs.NewMem()
		fault := vfs.NewFault(mem)
		opts := testOptions(p)
		opts.Sync, opts.Interval, opts.MarkDelay = SyncInterval, 10*time.Millisecond, 200*time.Millisecond
		l := mustOpen(t, fault, testDir, opts)
		l.mustAppend(2, 100)
		synctest.Wait()
		kept := l.Next()
		if l.Written() != kept || l.Durable() != 0 {
			t.Fatalf("written is %d, durable %d, next %d", l.Written(), l.Durable(), kept)
		}
		cutting := false
		fault.SetHook(func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpWrite:
				return syscall.ENOSPC
			case vfs.OpTruncate:
				cutting = true
				<-time.After(time.Second)
			}
			return nil
		})
		l.mustAppend(2, 100)
		synctest.Wait()
		<-time.After(2 * time.Second)
		synctest.Wait()
		if !cutting || l.refused == nil || l.Durable() != kept || l.Written() != kept {
			t.Errorf("cutting %v, refused %v\n%s", cutting, l.refused, l.describe())
		}
		fault.SetHook(nil)
		l.mustClose()
	})
}

// openSegmented opens a log of several full segments.
func openSegmented(t *testing.T) (*testLog, *vfs.Fault) {
	t.Helper()
	fault := vfs.NewFault(vfs.NewMem())
	opts := testOptions(newPools(t))
	opts.SegmentBytes = 8 << 10
	l := mustOpen(t, fault, testDir, opts)
	for range 20 {
		l.mustAppend(2, 1000)
		l.mustDurable()
	}
	return l, fault
}

// toRemove is how many segments retention has given up and not removed yet.
func (tl *testLog) toRemove() int {
	tl.Log.mu.Lock()
	defer tl.Log.mu.Unlock()
	return len(tl.doomed)
}

// What retention has given up when a refusal began is removed after it, though nothing is appended any more.
func TestRemovalGoesOnAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fault := openSegmented(t)
		held, release := make(chan struct{}), make(chan struct{})
		var removals, refused atomic.Int64
		fault.SetHook(func(op vfs.Op) error {
			switch op.Kind {
			case vfs.OpRemove:
				if removals.Add(1) == 1 {
					close(held)
					<-release
				}
			case vfs.OpWriteSync:
				refused.Add(1)
				return syscall.ENOSPC
			}
			return nil
		})
		l.Trim(l.Next())
		<-held
		l.mustAppend(2, 100)
		synctest.Wait()
		if refused.Load() == 0 || removals.Load() != 1 {
			t.Fatalf("%d writes were refused, %d removals", refused.Load(), removals.Load())
		}
		close(release)
		synctest.Wait()
		if left := l.toRemove(); left > 0 || removals.Load() < 3 {
			t.Errorf("%d segments are still to be removed after %d removals", left, removals.Load())
		}
		fault.SetHook(nil)
		l.mustClose()
	})
}

// Retention that a seal would have applied, had no refusal been under way, is applied after it.
func TestRetentionGoesOnAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fault := openSegmented(t)
		synctest.Wait()
		l.SetRetention(1, 0)
		release := make(chan struct{})
		var sealing atomic.Bool
		var written atomic.Int64
		fault.SetHook(func(op vfs.Op) error {
			switch {
			case op.Kind == vfs.OpWrite: // a seal, and later its index
				sealing.Store(true)
				<-release
			case op.Kind == vfs.OpWriteSync && op.Off == 0 && op.Bytes == headerBlockBytes: // the header of a file that becomes a spare
			case op.Kind == vfs.OpWriteSync && sealing.Load() && written.Add(1) > 1: // the segment behind it has a group
				return syscall.ENOSPC
			}
			return nil
		})
		for range 20 {
			if l.Log.Err() != nil {
				break
			}
			l.mustAppend(2, 1000)
			synctest.Wait()
		}
		start := l.Start()
		if !sealing.Load() || l.Log.Err() == nil {
			t.Fatalf("sealing %v, refused: %v", sealing.Load(), l.Log.Err())
		}
		close(release)
		synctest.Wait()
		if l.Log.Err() != nil || l.Start() <= start {
			t.Errorf("start was %d: %v\n%s", start, l.Log.Err(), l.describe())
		}
		fault.SetHook(nil)
		l.mustClose()
	})
}

// A removal that fails is tried again, though nothing is appended any more.
func TestRemovalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fault := openSegmented(t)
		var failed atomic.Bool
		fault.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpRemove && failed.CompareAndSwap(false, true) {
				return syscall.EACCES
			}
			return nil
		})
		l.Trim(l.Next())
		synctest.Wait()
		if !failed.Load() || l.Metrics().TrimErrors != 1 {
			t.Fatalf("no removal has failed: %+v", l.Metrics())
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if left := l.toRemove(); left > 0 {
			t.Errorf("%d segments are still to be removed", left)
		}
		l.mustClose()
	})
}

// A purge beside appends ends also where nothing is synced by itself: the first group of the segment that it has begun is, whatever it holds.
func TestPurgeBesideAppends(t *testing.T) {
	for name, mode := range crashModes {
		t.Run("sync="+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPools(t)
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				opts := testOptions(p)
				opts.Sync, opts.Interval = mode, time.Hour
				l := mustOpen(t, fault, testDir, opts)
				l.mustAppend(2, 100)
				synctest.Wait()
				held, release := make(chan struct{}), make(chan struct{})
				fault.SetHook(func(op vfs.Op) error {
					if op.Kind == vfs.OpCreate && strings.HasSuffix(op.Path, ".seg") {
						close(held)
						<-release
					}
					return nil
				})
				done := make(chan error, 1)
				go func() { done <- l.Purge() }()
				<-held
				l.mustAppend(2, 100)
				close(release)
				synctest.Wait()
				select {
				case err := <-done:
					if err != nil || l.Start() != 2 {
						t.Errorf("start is %d: %v", l.Start(), err)
					}
				default:
					t.Error("the purge waits for more")
				}
				fault.SetHook(nil)
				again := mustOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
				if again.Start() != 2 || again.Next() < 2 {
					t.Errorf("after a power cut the log is from %d to %d", again.Start(), again.Next())
				}
				abandon(again)
				l.mustClose()
			})
		})
	}
}

// A file that is not part of the log and has the name of a segment outlives a failed attempt to give it another name.
func TestForeignFileOutlivesARefusal(t *testing.T) {
	for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpRename} {
		p := newPools(t)
		mem := vfs.NewMem()
		opts := testOptions(p)
		other := opts
		other.Topic = TopicID{0: 1}
		l := mustOpen(t, mem, testDir, other)
		l.mustAppend(3, 100)
		l.mustDurable()
		l.mustClose()
		name := path.Join(testDir, segmentName(0))
		read := func(name string) []byte {
			t.Helper()
			f := must(mem.OpenRead(name))
			b := make([]byte, must(f.Size()))
			must(f.ReadAt(b, 0))
			must(0, f.Close())
			return b
		}
		foreign := read(name)

		fault := vfs.NewFault(mem)
		l = mustOpen(t, fault, testDir, opts)
		if l.Next() != 0 || l.Report().ForeignCount != 1 {
			t.Fatalf("next is %d: %+v", l.Next(), l.Report())
		}
		var failed atomic.Bool
		fault.SetHook(func(op vfs.Op) error {
			if op.Kind == kind && strings.HasPrefix(op.Path, name) && failed.CompareAndSwap(false, true) {
				return syscall.EMFILE
			}
			return nil
		})
		l.mustAppend(1, 100)
		var refused *RefusedError
		if err := l.waitDurable(); !errors.As(err, &refused) || !failed.Load() {
			t.Fatalf("%s: the append ended with %v", kind, err)
		}
		if !bytes.Equal(read(name), foreign) {
			t.Errorf("%s: the file is not what it was", kind)
		}
		l.wait("the refusal to end", func() bool { return l.Log.Err() == nil })
		l.batches = map[codec.Offset][]byte{}
		l.mustAppend(2, 100)
		l.mustDurable()
		if !bytes.Equal(read(name+".aside-1"), foreign) {
			t.Errorf("%s: the file that was set aside is not what it was", kind)
		}
		checkContents(t, l.Log, l.batches, 0, 2)
		l.mustClose()
	}
}

// A segment whose file is being opened, to be sealed, is not removed before: its seal would go into what the file has become meanwhile.
func TestRemovalWaitsForAReopen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fault := openSegmented(t)
		<-time.After(3 * time.Hour) // the log rests
		synctest.Wait()
		l.Log.mu.Lock()
		file, ready := l.active.path, l.active.ready
		l.Log.mu.Unlock()
		if ready {
			t.Fatal("the log does not rest")
		}
		release := make(chan struct{})
		var held, gone, late atomic.Bool
		fault.SetHook(func(op vfs.Op) error {
			switch {
			case op.Path != file:
			case op.Kind == vfs.OpOpen:
				held.Store(true)
				<-release
			case op.Kind == vfs.OpRemove || op.Kind == vfs.OpRename:
				gone.Store(true)
			case gone.Load() && op.Kind.Changes():
				late.Store(true)
			}
			return nil
		})
		purged := make(chan error, 1)
		go func() { purged <- l.Purge() }()
		synctest.Wait()
		if !held.Load() || gone.Load() {
			t.Errorf("opening %v, removed %v", held.Load(), gone.Load())
		}
		close(release)
		synctest.Wait()
		if err := <-purged; err != nil || !gone.Load() || late.Load() {
			t.Errorf("purge: %v; removed %v, changed behind that %v", err, gone.Load(), late.Load())
		}
		fault.SetHook(nil)
		l.mustClose()
	})
}
