package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"syscall"
	"testing"
)

// systems are the file systems that must behave alike, each with a directory that is there and empty.
func systems(t *testing.T) map[string]func() (FS, string) {
	return map[string]func() (FS, string){
		"os":    func() (FS, string) { return OS{}, t.TempDir() },
		"mem":   func() (FS, string) { return NewMem(), "/" },
		"fault": func() (FS, string) { return NewFault(NewMem()), "/" },
	}
}

func contents(t *testing.T, fsys FS, name string) []byte {
	t.Helper()
	f, err := fsys.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size+1)
	n, err := f.ReadAt(b, 0)
	if int64(n) != size || !errors.Is(err, io.EOF) {
		t.Fatalf("read of %s: %d of %d bytes, %v", name, n, size, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	return b[:n]
}

func create(t *testing.T, fsys FS, name, text string) File {
	t.Helper()
	f, err := fsys.Create(name)
	if err == nil {
		err = f.WriteAt([][]byte{[]byte(text)}, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilesBehaveAlike(t *testing.T) {
	for name, system := range systems(t) {
		t.Run("fs="+name, func(t *testing.T) {
			fsys, dir := system()
			name := path.Join(dir, "a")
			f := create(t, fsys, name, "")

			// More slices than one system call takes, some of them empty, with and without a sync.
			for _, write := range []func([][]byte, int64) error{f.WriteAt, f.WriteSync} {
				for _, count := range []int{1, 7, 1023, 1024, 1025, 3000} {
					var bufs [][]byte
					var want []byte
					for i := range count {
						b := bytes.Repeat([]byte{byte(i + count)}, i%4)
						bufs, want = append(bufs, b), append(want, b...)
					}
					if err := f.Truncate(0); err != nil {
						t.Fatal(err)
					}
					if err := write(bufs, 5); err != nil {
						t.Fatal(err)
					}
					if count > 1 && !bytes.Equal(contents(t, fsys, name), append(make([]byte, 5), want...)) {
						t.Fatalf("%d slices were not written as they are", count)
					}
				}
			}

			if err := f.Truncate(0); err != nil {
				t.Fatal(err)
			}
			if err := f.WriteAt([][]byte{[]byte("0123456789")}, 0); err != nil {
				t.Fatal(err)
			}
			if err := f.Truncate(4); err != nil {
				t.Fatal(err)
			}
			if err := f.Truncate(6); err != nil {
				t.Fatal(err)
			}
			if got := contents(t, fsys, name); string(got) != "0123\x00\x00" {
				t.Errorf("after cutting and extending: %q", got)
			}
			b := make([]byte, 3)
			if n, err := f.ReadAt(b, 1); n != 3 || err != nil || string(b) != "123" {
				t.Errorf("read inside: %d, %v, %q", n, err, b)
			}
			if n, err := f.ReadAt(b, 6); n != 0 || !errors.Is(err, io.EOF) {
				t.Errorf("read at the end: %d, %v", n, err)
			}
			if err := f.Allocate(2, 100); err == nil {
				if size, err := f.Size(); size != 102 || err != nil {
					t.Errorf("after reserving up to 102 the size is %d, %v", size, err)
				}
			} else if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("allocate: %v", err)
			}
			if got := contents(t, fsys, name); string(got[:6]) != "0123\x00\x00" || !bytes.Equal(got[6:], make([]byte, len(got)-6)) {
				t.Errorf("after reserving: %q", got)
			}
			if err := f.Sync(); err != nil {
				t.Error(err)
			}

			read, err := fsys.OpenRead(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := read.WriteAt([][]byte{{1}}, 0); !errors.Is(err, syscall.EBADF) {
				t.Errorf("a write to what is open for reading: %v", err)
			}
			for _, h := range []File{read, f} {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				if err := h.Close(); !errors.Is(err, fs.ErrClosed) {
					t.Errorf("closed twice: %v", err)
				}
				if _, err := h.ReadAt(b, 0); !errors.Is(err, fs.ErrClosed) {
					t.Errorf("read of a closed file: %v", err)
				}
			}
			var se *SyncError
			if err := f.Sync(); !errors.As(err, &se) || !errors.Is(err, fs.ErrClosed) {
				t.Errorf("sync of a closed file: %v", err)
			}
			if err := f.WriteAt([][]byte{{1}}, 0); !errors.Is(err, fs.ErrClosed) {
				t.Errorf("write to a closed file: %v", err)
			}
		})
	}
}

func TestNamesBehaveAlike(t *testing.T) {
	for name, system := range systems(t) {
		t.Run("fs="+name, func(t *testing.T) {
			fsys, dir := system()
			at := func(name string) string { return path.Join(dir, name) }
			if _, err := fsys.Open(at("a")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("open of nothing: %v", err)
			}
			a := create(t, fsys, at("a"), "aaa")
			if _, err := fsys.Create(at("a")); !errors.Is(err, fs.ErrExist) {
				t.Errorf("the same name twice: %v", err)
			}
			if err := MkdirAll(fsys, at("d/e")); err != nil {
				t.Fatal(err)
			}
			if err := MkdirAll(fsys, at("d/e")); err != nil {
				t.Errorf("the same directory once more: %v", err)
			}
			if err := fsys.Mkdir(at("d")); !errors.Is(err, fs.ErrExist) {
				t.Errorf("mkdir of what is there: %v", err)
			}
			if err := fsys.Remove(at("d")); err == nil {
				t.Error("a directory with something in it was removed")
			}
			if _, err := fsys.Open(at("d")); !errors.Is(err, ErrNotRegular) {
				t.Errorf("open of a directory: %v", err)
			}
			b := create(t, fsys, at("b"), "bb")
			if err := fsys.Rename(at("b"), at("a")); err != nil {
				t.Fatal(err)
			}
			if err := fsys.Rename(at("b"), at("c")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("rename of nothing: %v", err)
			}
			if got := contents(t, fsys, at("a")); string(got) != "bb" {
				t.Errorf("after the rename: %q", got)
			}
			// A handle stays with its file, whatever becomes of the name.
			old := make([]byte, 3)
			if _, err := a.ReadAt(old, 0); err != nil || string(old) != "aaa" {
				t.Errorf("the file that was replaced: %q, %v", old, err)
			}
			for _, f := range []File{a, b} {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			list, err := fsys.List(dir)
			if want := []Entry{{"a", Regular, 2}, {"d", Dir, 0}}; err != nil || !slices.Equal(list, want) {
				t.Errorf("the directory has %v, %v", list, err)
			}
			lock, err := fsys.Lock(at("lock"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fsys.Lock(at("lock")); !errors.Is(err, ErrLocked) {
				t.Errorf("locked twice: %v", err)
			}
			if err := lock.Close(); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"a", "lock", "d/e", "d"} {
				if err := fsys.Remove(at(name)); err != nil {
					t.Error(err)
				}
			}
			if err := fsys.Remove(at("a")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed twice: %v", err)
			}
			if err := fsys.SyncDir(dir); err != nil {
				t.Error(err)
			}
			if _, err := fsys.List(at("d")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("list of nothing: %v", err)
			}
		})
	}
}

// What was synced survives every power cut, what was not survives some of them, sector by sector and name by name, and a seed always means
// the same.
func TestPowerCut(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/named", string(bytes.Repeat([]byte{'o'}, 4*sectorBytes)))
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := m.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	synced := bytes.Repeat([]byte{'s'}, sectorBytes)
	if err := f.WriteAt([][]byte{bytes.Repeat([]byte{'n'}, 6*sectorBytes)}, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSync([][]byte{synced}, 2*sectorBytes); err != nil {
		t.Fatal(err)
	}
	if err := create(t, m, "/unnamed", "x").Sync(); err != nil {
		t.Fatal(err) // its bytes are safe, its name is not
	}

	if _, err := m.CrashClone(Nothing, 0).OpenRead("/unnamed"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a name that was not synced: %v", err)
	}
	if got := contents(t, m.CrashClone(Nothing, 0), "/named"); len(got) != 4*sectorBytes ||
		!bytes.Equal(got, slices.Concat(bytes.Repeat([]byte{'o'}, 2*sectorBytes), synced, bytes.Repeat([]byte{'o'}, sectorBytes))) {
		t.Errorf("what was synced is not what is there: %d bytes", len(got))
	}
	everything := m.CrashClone(Everything, 0)
	if got := contents(t, everything, "/named"); !bytes.Equal(got, contents(t, m, "/named")) || len(got) != 6*sectorBytes {
		t.Error("the death of the process alone took something")
	}
	if got := contents(t, everything, "/unnamed"); string(got) != "x" {
		t.Errorf("the unsynced name has %q", got)
	}

	seen := map[string]bool{}
	var names [2]int
	for seed := range uint64(200) {
		c := m.CrashClone(Random, seed)
		got := contents(t, c, "/named")
		if again := contents(t, m.CrashClone(Random, seed), "/named"); !bytes.Equal(got, again) {
			t.Fatalf("seed %d means two things", seed)
		}
		pattern := ""
		for at := 0; at < len(got); at += sectorBytes {
			sector := got[at : at+sectorBytes]
			if !bytes.Equal(sector, bytes.Repeat(sector[:1], sectorBytes)) {
				t.Fatalf("seed %d: a sector is torn", seed)
			}
			pattern += string(sector[:1])
		}
		if pattern[2] != 's' {
			t.Fatalf("seed %d: a synced sector is lost: %q", seed, pattern)
		}
		seen[pattern] = true
		_, err := c.OpenRead("/unnamed")
		if err == nil {
			names[1]++
		} else {
			names[0]++
		}
	}
	if len(seen) < 16 || names[0] == 0 || names[1] == 0 {
		t.Errorf("200 power cuts left %d patterns, the name was lost %d times and kept %d times", len(seen), names[0], names[1])
	}
}

// A lack of space takes nothing, and is over when there is space again.
func TestMemLimit(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/a", "12345")
	m.SetLimit(8)
	if err := f.WriteAt([][]byte{[]byte("6789")}, 5); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write above the limit: %v", err)
	}
	if err := f.Allocate(0, 9); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("an allocation above the limit: %v", err)
	}
	if got := contents(t, m, "/a"); string(got) != "12345" || m.Used() != 5 {
		t.Errorf("the file has %q, %d bytes are used", got, m.Used())
	}
	if err := m.Remove("/a"); err != nil || m.Used() != 0 {
		t.Errorf("removed: %v, %d bytes are used", err, m.Used())
	}
	if err := create(t, m, "/b", "12345678").Close(); err != nil {
		t.Error(err)
	}
}

// A hook sees every operation before it happens, may refuse it, or do it without its sync and stop the machine.
func TestFault(t *testing.T) {
	m := NewMem()
	f := NewFault(m)
	file := create(t, f, "/a", "old")
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.SyncDir("/"); err != nil {
		t.Fatal(err)
	}
	var seen []Op
	f.SetHook(func(op Op) error {
		seen = append(seen, op)
		return syscall.EIO
	})
	if err := file.WriteAt([][]byte{[]byte("ne"), []byte("w")}, 0); !errors.Is(err, syscall.EIO) {
		t.Errorf("a refused write: %v", err)
	}
	if err := f.Rename("/a", "/b"); !errors.Is(err, syscall.EIO) {
		t.Errorf("a refused rename: %v", err)
	}
	if want := []Op{{OpWrite, "/a", 0, 3}, {Kind: OpRename, Path: "/a"}}; !slices.Equal(seen, want) {
		t.Errorf("the hook saw %v", seen)
	}
	if got := contents(t, m, "/a"); string(got) != "old" {
		t.Errorf("a refused write wrote %q", got)
	}

	var se *SyncError
	f.SetHook(func(Op) error { return &SyncError{Err: syscall.EIO} })
	if err := file.WriteSync([][]byte{[]byte("new")}, 0); !errors.As(err, &se) || !errors.Is(err, syscall.EIO) {
		t.Errorf("a failed sync: %v", err)
	}
	if now, safe := contents(t, m, "/a"), contents(t, m.CrashClone(Nothing, 0), "/a"); string(now) != "new" || string(safe) != "old" {
		t.Errorf("after a failed sync %q is there, %q is safe", now, safe)
	}

	f.SetHook(func(Op) error { return ErrHalfDone })
	if err := file.WriteSync([][]byte{[]byte("two")}, 0); !errors.Is(err, ErrCrashed) {
		t.Errorf("half of a write that syncs: %v", err)
	}
	if now, safe := contents(t, m, "/a"), contents(t, m.CrashClone(Nothing, 0), "/a"); string(now) != "two" || string(safe) != "old" {
		t.Errorf("after half of it %q is there, %q is safe", now, safe)
	}
	if _, err := f.Create("/c"); !errors.Is(err, ErrCrashed) {
		t.Errorf("half of a creation: %v", err)
	}
	if _, err := m.OpenRead("/c"); err != nil {
		t.Errorf("half of a creation made no file: %v", err)
	}
	f.SetHook(nil)
	if got := contents(t, f, "/a"); string(got) != "two" {
		t.Errorf("without a hook: %q", got)
	}
}
