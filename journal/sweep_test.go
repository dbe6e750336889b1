package journal

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// The sweep: the machine stops, or an operation fails, at the k-th operation that changes anything, for every k there is, while a log is
// opened, appended to, rolled, trimmed, closed and recovered. Afterwards it is opened twice, and opened with a crash in the
// middle of that. Every confirmed record is there, in order, without a gap, nothing is there that nobody appended, and opening once more
// changes nothing.
//
// Cases F03, F04, F05 and F07 (names that were never synced) at every point at once; the tests in fault_test.go have them one by one.

// outcome is what a script's caller may rely on when the machine stops.
type outcome struct {
	appended  map[codec.Offset][]byte // all that were ever appended and not refused
	confirmed codec.Offset            // below it everything was said to be durable
	trimmed   codec.Offset            // below it anything may be gone
	purged    codec.Offset            // below it everything is gone
	poisoned  bool
}

func (o *outcome) take(tl *testLog) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	o.confirmed = max(o.confirmed, tl.prog.Durable)
	// What is not in tl.batches any more was refused.
	maps.DeleteFunc(o.appended, func(base codec.Offset, _ []byte) bool { return base >= tl.first })
	maps.Copy(o.appended, tl.batches)
	if tl.err != nil {
		o.poisoned = true
	}
}

// script uses a log in every way, until something fails for good.
func script(t *testing.T, fsys vfs.FS, opts Options) *outcome {
	o := &outcome{appended: map[codec.Offset][]byte{}}
	for round := range 3 {
		tl, err := tryOpen(t, fsys, "/data/t/0", opts)
		if err != nil {
			return o
		}
		o.confirmed = max(o.confirmed, tl.Durable())
		ok := scriptRound(tl, o, round)
		o.take(tl)
		err = tl.within("close", tl.Close)
		o.take(tl)
		if err == nil {
			o.confirmed = max(o.confirmed, tl.Written())
		}
		if !ok || err != nil {
			return o
		}
	}
	return o
}

func scriptRound(tl *testLog, o *outcome, round int) bool {
	for i := range 32 {
		switch {
		case i == 9 && round > 0:
			from := tl.Next()
			err := tl.AppendGap(from, from+5)
			if err == nil {
				// A refusal that was over before anybody saw it took the log back to here.
				maps.DeleteFunc(tl.batches, func(base codec.Offset, _ []byte) bool { return base >= from })
			} else if !scriptGoesOn(tl, o, err) {
				return false
			}
		case i == 20 && round > 0:
			to := tl.Durable() / 2
			o.trimmed = max(o.trimmed, to)
			tl.Trim(to)
		case i == 30 && round == 1:
			to := tl.Next()
			o.trimmed = max(o.trimmed, to)
			err := tl.within("purge", tl.Purge)
			if err == nil {
				o.purged = to
			} else if !scriptGoesOn(tl, o, err) {
				return false
			}
		}
		if _, err := tl.append(1+i%4, 60+(i*131)%900); err != nil && !scriptGoesOn(tl, o, err) {
			return false
		}
		if i%5 == 4 {
			if tl.opts.Sync != SyncAlways {
				tl.Sync()
			}
			if tl.opts.Sync == SyncOS {
				continue
			}
			if err := tl.waitDurable(); err != nil && !scriptGoesOn(tl, o, err) {
				return false
			}
		}
		o.take(tl)
	}
	return true
}

// scriptGoesOn takes a refusal as a broker would: what was refused never was, and the next append begins where the log says.
func scriptGoesOn(tl *testLog, o *outcome, err error) bool {
	var refused *RefusedError
	if !errors.As(err, &refused) {
		return errors.Is(err, syscall.EIO) && !errors.Is(err, ErrPoisoned) // a purge that could not remove a file
	}
	tl.wait("the end of the refusal", func() bool {
		e := tl.Log.Err()
		return !errors.As(e, &refused)
	})
	if tl.Log.Err() != nil {
		return false // poisoned in the middle of it: what was to be refused is unknown instead
	}
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.refused = nil
	next := tl.Log.Next()
	forget := func(m map[codec.Offset][]byte) {
		maps.DeleteFunc(m, func(base codec.Offset, _ []byte) bool { return base >= next })
	}
	forget(tl.batches)
	forget(o.appended)
	return true
}

func sweepOptions(p *pools, mode SyncMode) Options {
	opts := testOptions(p)
	opts.Sync = mode
	opts.Interval = 500 * time.Microsecond
	opts.SegmentBytes = 6 << 10
	opts.GroupBytes = 2 << 10
	opts.MaxInFlight = 3
	opts.Snapshot = func(dst []byte, _ codec.Offset) []byte { return append(dst, "a snapshot of the state"...) }
	opts.OnSnapshot = func(s []byte) error {
		if len(s) > 0 && string(s) != "a snapshot of the state" {
			return fmt.Errorf("the snapshot is %q", s)
		}
		return nil
	}
	return opts
}

func soak() bool { return os.Getenv("LIGHTQ_SOAK") != "" }

// sweepSteps says where a sweep begins and its step. With LIGHTQ_SOAK in the environment it visits every operation; else a part of them,
// from a place that differs from run to run, so that every operation gets its turn.
func sweepSteps() (first, step int64) {
	switch {
	case soak():
		return 1, 1
	case testing.Short():
		step = 11
	case invariant.Enabled:
		step = 7 // the race detector makes it ten times as slow
	default:
		step = 2
	}
	return 1 + rand.Int64N(step), step
}

var crashModes = map[string]SyncMode{"always": SyncAlways, "interval": SyncInterval, "os": SyncOS}

func TestCrashAtEveryOperation(t *testing.T) {
	for name, mode := range crashModes {
		t.Run("sync="+name, func(t *testing.T) {
			p := newPools(t)
			opts := sweepOptions(p, mode)
			dice := rand.Uint64() // what a power cut leaves differs from run to run
			for k, step := sweepSteps(); ; k += step {
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				hook, count := vfs.StopAt(k)
				fault.SetHook(hook)
				o := script(t, fault, opts)
				done := count.Load() < k
				for survival := range vfs.Random + 1 {
					checkAfterCrash(t, mem, survival, dice+uint64(k), o, opts, fmt.Sprintf("k=%d", k))
				}
				if t.Failed() {
					t.FailNow()
				}
				if done {
					t.Logf("%d operations", count.Load())
					if k < 100 {
						t.Fatalf("only %d operations: the script did not do what it should", k)
					}
					break
				}
			}
		})
	}
}

// The sweeps again and again: the schedule of the goroutines and what a power cut leaves differ each time.
func TestSoakSweeps(t *testing.T) {
	if !soak() {
		t.Skip("set LIGHTQ_SOAK=1")
	}
	for round := range 10 {
		t.Run(fmt.Sprintf("round=%d", round), func(t *testing.T) {
			t.Run("crash", TestCrashAtEveryOperation)
			t.Run("error", TestErrorAtEveryOperation)
		})
	}
}

func TestErrorAtEveryOperation(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC} {
		t.Run(fmt.Sprintf("errno=%d", errno), func(t *testing.T) {
			p := newPools(t)
			opts := sweepOptions(p, SyncAlways)
			var refusals, poisons int
			dice := rand.Uint64()
			for k, step := sweepSteps(); ; k += step {
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				var count atomic.Int64
				fault.SetHook(func(op vfs.Op) error {
					if op.Kind.Changes() && count.Add(1) == k {
						if op.Kind == vfs.OpSync || op.Kind == vfs.OpWriteSync && k%3 == 0 {
							return &vfs.SyncError{Err: errno}
						}
						return errno
					}
					return nil
				})
				o := script(t, fault, opts)
				if o.poisoned {
					poisons++
				} else {
					refusals++
				}
				if errno == syscall.ENOSPC && !o.poisoned && len(o.appended) < 20 && count.Load() > 20 {
					t.Fatalf("k=%d: lack of space that heals ended the script with %d batches", k, len(o.appended))
				}
				for survival := range vfs.Random + 1 {
					checkAfterCrash(t, mem, survival, dice+uint64(k), o, opts, fmt.Sprintf("k=%d", k))
				}
				if t.Failed() {
					t.FailNow()
				}
				if count.Load() < k {
					break
				}
			}
			if poisons == 0 || refusals == 0 {
				t.Fatalf("%d poisoned, %d not: one of the two was never reached", poisons, refusals)
			}
		})
	}
}

// checkAfterCrash opens what a crash leaves, twice, then with a crash at every operation of the recovery.
func checkAfterCrash(t *testing.T, mem *vfs.Mem, survival vfs.Survival, seed uint64, o *outcome, opts Options, what string) {
	t.Helper()
	what = fmt.Sprintf("%s survival=%d seed=%#x", what, survival, seed)
	mem = mem.CrashClone(survival, seed)
	origin := mem.CrashClone(vfs.Everything, 0)
	first := openChecked(t, mem, o, opts, what+" first")
	if first == nil {
		return
	}
	next, start := first.Next(), first.Start()
	before := tree(t, mem)
	abandon(first)

	mem = mem.CrashClone(vfs.Nothing, 0)
	if after := tree(t, mem); !maps.Equal(before, after) {
		t.Errorf("%s: the recovery left something that was not synced: %v", what, differences(before, after))
	}
	second := openChecked(t, mem, o, opts, what+" second")
	if second == nil {
		return
	}
	if second.Next() != next || second.Start() != start {
		t.Errorf("%s: start and next %d %d, after opening again %d %d", what, start, next, second.Start(), second.Next())
	}
	if after := tree(t, mem); !maps.Equal(before, after) {
		t.Errorf("%s: opening again changed %v\nfirst %+v\nsecond %+v", what, differences(before, after), first.Report(), second.Report())
	}

	// What was cut is free, what is new stays: F05.
	o2 := &outcome{appended: maps.Clone(o.appended), confirmed: o.confirmed, trimmed: o.trimmed, purged: o.purged}
	maps.DeleteFunc(o2.appended, func(base codec.Offset, _ []byte) bool { return base >= next })
	if opts.Sync == SyncAlways {
		for range 4 {
			second.mustAppend(2, 500)
		}
		second.mustDurable()
		o2.confirmed = second.Durable()
	}
	maps.Copy(o2.appended, second.batches)
	abandon(second)
	mem = mem.CrashClone(vfs.Nothing, 0)
	if third := openChecked(t, mem, o2, opts, what+" third"); third != nil {
		third.mustClose()
	}

	// One of the crashes at each k is enough for the crashes of its recovery.
	for j := int64(1); survival == vfs.Random; j++ {
		m := origin.CrashClone(vfs.Everything, 0)
		fault := vfs.NewFault(m)
		hook, count := vfs.StopAt(j)
		fault.SetHook(hook)
		tl, err := tryOpen(t, fault, "/data/t/0", opts)
		if err == nil {
			abandon(tl)
		}
		done := count.Load() < j
		again := openChecked(t, m.CrashClone(vfs.Random, seed+uint64(j)), o, opts, fmt.Sprintf("%s, recovery crashed at %d", what, j))
		if again != nil {
			abandon(again)
		}
		if done || t.Failed() {
			return
		}
	}
}

func openChecked(t *testing.T, mem *vfs.Mem, o *outcome, opts Options, what string) *testLog {
	t.Helper()
	tl, err := tryOpen(t, mem, "/data/t/0", opts)
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return nil
	}
	if tl.Next() < o.confirmed {
		t.Errorf("%s: next is %d, %d was confirmed", what, tl.Next(), o.confirmed)
	}
	if tl.Report().DamageCount > 0 {
		t.Errorf("%s: damage: %v", what, tl.Report().Damages)
	}
	if tl.Start() > o.trimmed || tl.Start() < o.purged {
		t.Errorf("%s: the log starts at %d; %d was purged, and nothing at or above %d trimmed", what, tl.Start(), o.purged, o.trimmed)
	}
	if t.Failed() {
		t.Logf("%s: report %+v", what, tl.Report())
		t.FailNow()
	}
	defer func() {
		if t.Failed() {
			t.Logf("%s: report %+v\n%s", what, tl.Report(), tl.describe())
		}
	}()
	checkContents(t, tl.Log, o.appended, o.trimmed, o.confirmed)
	if t.Failed() {
		t.Fatalf("%s: report %+v", what, tl.Report())
	}
	return tl
}

// abandon stops using a log as the death of its process would.
func abandon(tl *testLog) {
	tl.Log.mu.Lock()
	defer tl.Log.mu.Unlock()
	for tl.busy > 0 || tl.tasks > 0 || tl.telling {
		tl.idle.Wait()
	}
	tl.sy.stopAlarm(&tl.alarm)
	tl.state = stateClosed
}

// tree is the name and content of every file but indexes, which are not synced because they can be made again.
func tree(t *testing.T, m *vfs.Mem) map[string]string {
	files := map[string]string{}
	list, err := m.List("/data/t/0")
	if err != nil {
		return files
	}
	for _, e := range list {
		if kind, _ := parseName(e.Name); kind == nameIndex {
			continue
		}
		b, err := vfs.ReadFile(m, "/data/t/0/"+e.Name, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name] = string(b)
	}
	return files
}

func differences(a, b map[string]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if a[name] != b[name] {
			list = append(list, fmt.Sprintf("%s: %d bytes, then %d", name, len(a[name]), len(b[name])))
		}
	}
	for name := range b {
		if _, ok := a[name]; !ok {
			list = append(list, name+" is new")
		}
	}
	return list
}
