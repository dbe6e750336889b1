package catalogue

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// The sweep: the machine stops, or an operation fails, at the k-th operation on files, for every k there is, while topics are
// created, altered, deleted and adopted and ids are reserved. Afterwards the catalogue is opened, with a crash in the middle of
// that too. Every acknowledged change stands, a change that was not is done or not done, no name is there twice, no id comes
// again, and opening once more changes nothing.
//
// Cases F02 (an acknowledged creation survives, an acknowledged deletion stays, and no file goes because the catalogue does not
// mention it), F11 (a stop in the middle of replacing a state file) and F70 (the number of partitions is stored with the topic).

// history is what may be on the disk.
type history struct {
	// may has, for each id, the entry that was acknowledged last and those attempted since; nil: there is no topic.
	may   map[codec.TopicID][]*Entry
	given int64 // producer ids below it were given out
	data  map[string]bool
}

// user uses a catalogue in every way until the machine stops. Where an operation merely fails it tries again.
type user struct {
	t        testing.TB
	h        *history
	c        *Catalogue
	careless bool // it does not try again to delete
}

const attempts = 8

func (u *user) attempt(id codec.TopicID, e *Entry, do func() error) error {
	u.h.may[id] = append(u.may(id), e)
	err := do()
	if err == nil {
		u.h.may[id] = []*Entry{e}
	}
	return err
}

func (u *user) may(id codec.TopicID) []*Entry {
	if u.h.may[id] == nil {
		u.h.may[id] = []*Entry{nil}
	}
	return u.h.may[id]
}

func (u *user) put(e Entry) error {
	return u.attempt(e.ID, &e, func() error { return u.c.Put(e) })
}

// create is put under a new id for every attempt, as a broker does it.
func (u *user) create(n byte, name string) (Entry, error) {
	e := testEntry(n, name)
	err := u.again(func() error {
		e.ID[1]++
		return u.put(e)
	})
	return e, err
}

func (u *user) again(do func() error) error {
	err := do()
	for range attempts - 1 {
		if err == nil || errors.Is(err, vfs.ErrCrashed) {
			break
		}
		err = do()
	}
	return err
}

func (u *user) reserve(n int64) error {
	return u.again(func() error {
		first, err := u.c.ReserveProducerIDs(n)
		if err != nil {
			return err
		}
		if first < u.h.given {
			u.t.Errorf("the producer id %d was given out before", first)
		}
		u.h.given = first + n
		return nil
	})
}

func (u *user) open(fsys vfs.FS) error {
	return u.again(func() (err error) {
		u.c, _, err = Open(fsys, testDir, quietForSweep)
		return err
	})
}

// script is told the file system below the faults as well, for the data that a journal would write.
func script(t testing.TB, fsys vfs.FS, mem *vfs.Mem, careless bool) *history {
	u := &user{t: t, careless: careless, h: &history{may: map[codec.TopicID][]*Entry{}, data: map[string]bool{}}}
	var a, b Entry
	steps := []func() error{
		func() error { return u.open(fsys) },
		func() (err error) { a, err = u.create(1, "a"); return err },
		func() (err error) { b, err = u.create(2, "b"); return err },
		func() error {
			name := path.Join(u.c.PartitionDir(a.ID, 0), "00000000000000000000.seg")
			write(t, mem, name, []byte("what was confirmed"))
			u.h.data[name] = true
			write(t, mem, path.Join(u.c.PartitionDir(b.ID, 0), "00000000000000000000.seg"), []byte("what goes with its topic"))
			return nil
		},
		func() error { return u.reserve(700) },
		func() error {
			a.Ceilings = []codec.Offset{5000, 6000}
			return u.again(func() error { return u.put(a) })
		},
		func() error { return u.reserve(700) },
		func() error {
			a.Settings.Partitions, a.Ceilings = 3, []codec.Offset{5000, CeilingJump + 6001, 1}
			return u.again(func() error { return u.put(a) })
		},
		func() error {
			remove := func() error { return u.attempt(b.ID, nil, func() error { return u.c.Delete(b.ID) }) }
			if !u.careless {
				return u.again(remove)
			}
			if err := remove(); errors.Is(err, vfs.ErrCrashed) {
				return err
			}
			return nil
		},
		func() (err error) { b, err = u.create(3, "b"); return err },
		func() error { return u.open(fsys) },
		func() error { return u.reserve(2500) },
		func() error { a.User = "ann"; return u.again(func() error { return u.put(a) }) },
		func() (err error) { _, err = u.create(4, "c"); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			if !errors.Is(err, vfs.ErrCrashed) {
				t.Errorf("the last attempt failed too: %v", err)
			}
			break
		}
	}
	return u.h
}

// check opens the catalogue and compares it with the history. It returns the entries.
func (h *history) check(t testing.TB, fsys vfs.FS, what string) []Entry {
	t.Helper()
	c, r, err := Open(fsys, testDir, quietForSweep)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if r.SetAside != 0 || r.FellBackCount != 0 || r.StrayCount != 0 || r.Grown != 0 {
		t.Fatalf("%s: report %+v, set aside %+v", what, r, c.SetAside())
	}
	list := c.Entries()
	have := map[codec.TopicID]*Entry{}
	for _, e := range list {
		have[e.ID] = &e
		if h.may[e.ID] == nil {
			t.Fatalf("%s: nobody created %+v", what, e)
		}
	}
	for id, may := range h.may {
		if !slices.ContainsFunc(may, func(e *Entry) bool { return cmp.Equal(e, have[id]) }) {
			t.Fatalf("%s: the topic %x is %+v, and may be one of %s", what, id, have[id], cmp.Diff(nil, may))
		}
	}
	for name := range h.data {
		if string(read(t, fsys, name)) != "what was confirmed" {
			t.Fatalf("%s: the content of %s changed", what, name)
		}
	}
	first, err := c.ReserveProducerIDs(1)
	if err != nil || first < h.given {
		t.Fatalf("%s: the producer id is %d, %d was given out, error %v", what, first, h.given-1, err)
	}
	for name := range tree(t, fsys, testDir+"/topics") {
		if isRemnant(path.Base(name)) {
			t.Fatalf("%s: %s is still there", what, name)
		}
	}
	return list
}

func (h *history) checkAfterCrash(t testing.TB, crashed *vfs.Mem, what string) {
	t.Helper()
	first := h.check(t, crashed, what)
	// What was shown once stays, though the power goes right behind it.
	cut := crashed.CrashClone(vfs.Nothing, 0)
	if again := h.check(t, cut, what+", then a power cut"); !cmp.Equal(first, again) {
		t.Fatalf("%s: opening it after a power cut changed it:\n%s", what, cmp.Diff(first, again))
	}
}

func survivals(mem *vfs.Mem, k int) map[string]*vfs.Mem {
	return map[string]*vfs.Mem{
		"nothing":    mem.CrashClone(vfs.Nothing, 0),
		"everything": mem.CrashClone(vfs.Everything, 0),
		"random 1":   mem.CrashClone(vfs.Random, uint64(k)),
		"random 2":   mem.CrashClone(vfs.Random, uint64(k)+1e6),
		"random 3":   mem.CrashClone(vfs.Random, uint64(k)+2e6),
	}
}

// every is how many operations lie between those that are tried.
func every() int {
	if invariant.Enabled {
		return 5 // the race detector makes it ten times as slow; the plain run does them all
	}
	return 1
}

func TestCrashAtEveryOperation(t *testing.T) {
	for k := 1; ; k += every() {
		mem := vfs.NewMem()
		fault := vfs.NewFault(mem)
		hook, count := vfs.StopAt(int64(k))
		fault.SetHook(hook)
		h := script(t, fault, mem, false)
		clones := survivals(mem, k)
		for _, survival := range slices.Sorted(maps.Keys(clones)) {
			what := fmt.Sprintf("stopped at %d, of what was not synced survives %s", k, survival)
			h.crashWhileOpening(t, clones[survival], what)
			h.checkAfterCrash(t, clones[survival], what)
		}
		// The death of the process alone: what was not synced is there, and still not synced.
		fault.SetHook(nil)
		h.checkAfterCrash(t, mem, fmt.Sprintf("the process died at %d", k))
		if count.Load() < int64(k) {
			t.Logf("%d operations", count.Load())
			if k < 80 {
				t.Fatal("the script did not get far")
			}
			return
		}
	}
}

// crashWhileOpening stops the machine at each operation of opening what a crash left.
func (h *history) crashWhileOpening(t testing.TB, left *vfs.Mem, what string) {
	t.Helper()
	for j := 1; ; j++ {
		mem := left.CrashClone(vfs.Everything, 0)
		fault := vfs.NewFault(mem)
		hook, count := vfs.StopAt(int64(j))
		fault.SetHook(hook)
		_, _, err := Open(fault, testDir, quietForSweep)
		if count.Load() < int64(j) {
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return
		}
		h.checkAfterCrash(t, mem.CrashClone(vfs.Random, uint64(j)), fmt.Sprintf("%s, then at %d of opening", what, j))
	}
}

func TestErrorAtEveryOperation(t *testing.T) {
	for _, errors := range []int{1, 5} {
		for _, careless := range []bool{false, true} {
			t.Run(fmt.Sprintf("errors=%d/careless=%v", errors, careless), func(t *testing.T) { errorSweep(t, errors, careless) })
		}
	}
}

// errorSweep lets so many operations fail from the k-th on.
func errorSweep(t *testing.T, errors int, careless bool) {
	for k := 1; ; k += every() {
		mem := vfs.NewMem()
		fault := vfs.NewFault(mem)
		count := 0
		fault.SetHook(func(vfs.Op) error {
			if count++; count >= k && count < k+errors {
				return syscall.EIO
			}
			return nil
		})
		h := script(t, fault, mem, careless)
		fault.SetHook(nil)
		if t.Failed() {
			t.Fatalf("%d operations from %d on failed", errors, k)
		}
		clones := survivals(mem, k)
		for _, survival := range slices.Sorted(maps.Keys(clones)) {
			h.checkAfterCrash(t, clones[survival], fmt.Sprintf("operations from %d on failed, then a crash, of what was not synced survives %s", k, survival))
		}
		if count < k {
			t.Logf("%d operations", count)
			if k < 120 {
				t.Fatal("the script did not get far")
			}
			return
		}
	}
}

// A topic whose deletion failed for want of a sync does not come back beside the one that was then made under its name, though the
// machine stops at any point of that.
func TestDeletionInDoubt(t *testing.T) {
	for k := 1; ; k++ {
		mem := vfs.NewMem()
		c, _ := mustOpen(t, mem)
		old, fresh := testEntry(1, "a"), testEntry(2, "a")
		mustPut(t, c, old)
		fault := vfs.NewFault(mem)
		c.fsys = fault
		failed := false
		fault.SetHook(func(op vfs.Op) error {
			if op.Kind == vfs.OpSyncDir && !failed {
				failed = true
				return syscall.EIO
			}
			return nil
		})
		if err := c.Delete(old.ID); !errors.Is(err, syscall.EIO) {
			t.Fatal(err)
		}
		hook, count := vfs.StopAt(int64(k))
		fault.SetHook(hook)
		err := c.Put(fresh)
		for seed := range uint64(8) {
			again, r := mustOpen(t, mem.CrashClone(vfs.Random, seed))
			list := again.Entries()
			if r.SetAside != 0 || len(list) > 1 || err == nil && !cmp.Equal(list, []Entry{fresh}) {
				t.Fatalf("stopped at %d: report %+v, entries %+v", k, r, list)
			}
		}
		if count.Load() < int64(k) {
			if err != nil || k < 5 {
				t.Fatalf("after %d operations: %v", count.Load(), err)
			}
			return
		}
	}
}
