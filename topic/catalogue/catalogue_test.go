package catalogue

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

func TestLife(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "data")
	log := quiet(t)
	c, r, err := Open(vfs.OS{}, dir, log)
	if err != nil || !cmp.Equal(r, Report{}) {
		t.Fatalf("report %+v, error %v", r, err)
	}
	b, a, m := testEntry(2, "b"), testEntry(1, "a"), testEntry(3, "m")
	m.Settings.Storage, m.Ceilings, m.User, m.Verifier = codec.StorageFile, nil, "ann", NewVerifier("secret")
	for _, e := range []Entry{b, a, m} {
		mustPut(t, c, e)
	}
	writeLog(t, vfs.OS{}, c.PartitionDir(m.ID, 1), m.ID, 1, 5)
	a.Ceilings[0], a.Settings.Overflow = 77, codec.OverflowBlock
	mustPut(t, c, a)
	a.Ceilings[0] = 76 // the catalogue has a copy
	a.Ceilings[0] = 77
	if err := c.Delete(b.ID); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(b.ID); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("deleting it again: %v", err)
	}
	want := []Entry{a, m}
	if diff := cmp.Diff(want, c.Entries()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	first, err := c.ReserveProducerIDs(10)
	if err != nil || first != 0 {
		t.Errorf("ids from %d, error %v", first, err)
	}

	c, r, err = Open(vfs.OS{}, dir, log)
	if err != nil || !cmp.Equal(r, Report{Topics: 2, Partitions: 4}) {
		t.Errorf("report %+v, error %v", r, err)
	}
	if diff := cmp.Diff(want, c.Entries()); diff != "" {
		t.Errorf("after opening again (-want +got):\n%s", diff)
	}
	if first, err := c.ReserveProducerIDs(1); err != nil || first < 10 {
		t.Errorf("ids from %d, error %v", first, err)
	}
	if e := c.Entries()[1]; !e.Verifier.Check("secret") || e.Verifier.Check("Secret") {
		t.Error("the verifier is not the password's")
	}
	if err := c.Delete(m.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(c.PartitionDir(m.ID, 1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a deleted topic leaves its log: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	before := tree(t, mem, testDir)
	for name, change := range map[string]func(e *Entry){
		"another name":        func(e *Entry) { e.Name = "z" },
		"fewer partitions":    func(e *Entry) { e.Settings.Partitions, e.Ceilings = 1, e.Ceilings[:1] },
		"a lower ceiling":     func(e *Entry) { e.Ceilings[1]-- },
		"no ceilings":         func(e *Entry) { e.Ceilings = nil },
		"a negative ceiling":  func(e *Entry) { e.ID, e.Name, e.Ceilings[1] = testID(9), "z", -1 },
		"an end too few":      func(e *Entry) { e.Ends = []codec.Offset{0} },
		"an end above":        func(e *Entry) { e.Ends = []codec.Offset{0, 1001} },
		"the name of another": func(e *Entry) { e.ID = testID(9) },
		"no id":               func(e *Entry) { e.ID = codec.TopicID{} },
		"no name":             func(e *Entry) { e.ID, e.Name = testID(9), "" },
		"a long name":         func(e *Entry) { e.ID, e.Name = testID(9), strings.Repeat("n", 250) },
		"a name of no text":   func(e *Entry) { e.ID, e.Name = testID(9), "\xff" },
		"a user of no text":   func(e *Entry) { e.User = "\xff" },
		"a long user":         func(e *Entry) { e.User = strings.Repeat("u", 1025) },
		"no storage":          func(e *Entry) { e.Settings.Storage = 0 },
		"unknown overflow":    func(e *Entry) { e.Settings.Overflow = 99 },
		"a broken verifier":   func(e *Entry) { e.Verifier = &Verifier{Salt: []byte("x"), Iterations: 1} },
	} {
		changed := e.clone()
		change(&changed)
		if err := c.Put(changed); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for _, n := range []int64{-1, 0, maxProducerIDs + 1} {
		if first, err := c.ReserveProducerIDs(n); err == nil {
			t.Errorf("%d ids from %d", n, first)
		}
	}
	if diff := cmp.Diff(before, tree(t, mem, testDir)); diff != "" {
		t.Errorf("what was refused changed something:\n%s", diff)
	}
}

// F54: names that reach out of a directory, or are taken by the system. No name becomes a path.
func TestHostileNames(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	names := []string{
		"..", ".", "/", "../../etc/passwd", "a/b", "a\\b", "topic", "topic.old", ".new-x", ".deleted-x", "\x00", "a\nb", "\"", "</script>",
		strings.Repeat("x", 249), "é", "con", "\u2028", "lightq-topic 1 0 00000000\n",
	}
	want := map[string]bool{}
	for i, name := range names {
		mustPut(t, c, testEntry(byte(i+1), name))
		want[name] = true
	}
	for name := range tree(t, mem, "/") {
		dir, file := path.Split(strings.TrimPrefix(name, testDir+"/topics/"))
		if _, ok := parseID(strings.TrimSuffix(dir, "/")); ok && file == entryName {
			continue
		}
		if _, ok := parseID(file); ok && dir == "" {
			continue
		}
		if !strings.HasPrefix(name, testDir+"/"+producerIDsName) && name != testDir && name != testDir+"/topics" {
			t.Errorf("there is %s", name)
		}
	}
	c, _ = mustOpen(t, mem)
	for _, e := range c.Entries() {
		delete(want, e.Name)
	}
	if len(want) != 0 {
		t.Errorf("lost: %v", want)
	}
}

// damages are what may have become of a small file. The bool says that the file is still to be understood as it was.
func damages(b []byte) map[string][]byte {
	all := map[string][]byte{
		"zeros": make([]byte, len(b)), "garbage": bytes.Repeat([]byte("\xa5{\n"), 99), "huge": make([]byte, maxFileBytes+1),
		"twice": append(bytes.Clone(b), b...),
	}
	for n := range b {
		all[fmt.Sprintf("cut to %d", n)] = b[:n]
		flipped := bytes.Clone(b)
		flipped[n] ^= 1 << (n % 8)
		all[fmt.Sprintf("bit %d of byte %d", n%8, n)] = flipped
	}
	return all
}

// F11 and F02: each state file in turn is empty, cut, garbage, or has a flipped bit. A topic goes on with the entry before and with
// ceilings above all that was given out, or is set aside with its name and left untouched; it never vanishes.
func TestF11DamagedStateFiles(t *testing.T) {
	build := func() (*vfs.Mem, Entry, Entry) {
		mem := vfs.NewMem()
		c, _ := mustOpen(t, mem)
		other := testEntry(2, "other")
		mustPut(t, c, other)
		e := testEntry(1, "a")
		mustPut(t, c, e)
		e.Ceilings = []codec.Offset{10, CeilingJump + 20_000}
		mustPut(t, c, e)
		e.Ceilings = []codec.Offset{CeilingJump, 2*CeilingJump + 20_000}
		mustPut(t, c, e)
		write(t, mem, path.Join(c.PartitionDir(e.ID, 0), "00000000000000000000.seg"), []byte("data"))
		if _, err := c.ReserveProducerIDs(1500); err != nil {
			t.Fatal(err)
		}
		if _, err := c.ReserveProducerIDs(1500); err != nil {
			t.Fatal(err)
		}
		return mem, e, other
	}
	mem, e, other := build()
	entryFile := path.Join(testDir, topicsName, "010000000000000000000000000000ee", entryName)
	for _, name := range []string{entryFile, entryFile + oldSuffix} {
		for damage, b := range damages(read(t, mem, name)) {
			disk := mem.CrashClone(vfs.Everything, 0)
			write(t, disk, name, b)
			before := tree(t, disk, path.Dir(name))
			c, r := mustOpen(t, disk)
			what := fmt.Sprintf("%s, %s: report %+v", name, damage, r)
			if diff := cmp.Diff(before, tree(t, disk, path.Dir(name))); diff != "" {
				t.Fatalf("%s: opening it changed:\n%s", what, diff)
			}
			list := c.Entries()
			if r.Topics+r.SetAside != 2 || !cmp.Equal(list[len(list)-1], other) {
				t.Fatalf("%s: entries %+v", what, list)
			}
			if name != entryFile {
				if r.FellBackCount != 0 || !cmp.Equal(list[0], e) {
					t.Fatalf("%s: an old entry matters", what)
				}
				continue
			}
			if r.SetAside == 1 {
				var aside *AsideError
				if err := c.Put(testEntry(7, "a")); !errors.As(err, &aside) || !strings.Contains(err.Error(), path.Dir(name)) {
					t.Fatalf("%s: the name can be had: %v", what, err)
				}
				if err := c.Put(e); !errors.As(err, &aside) {
					t.Fatalf("%s: the id can be had: %v", what, err)
				}
				continue
			}
			got := list[0]
			for i := range got.Ceilings {
				if got.Ceilings[i] < e.Ceilings[i] {
					t.Fatalf("%s: ceilings %v", what, got.Ceilings)
				}
			}
			got.Ceilings = e.Ceilings
			if r.FellBackCount != 1 || r.FellBack[0] != name || !cmp.Equal(got, e) {
				t.Fatalf("%s: the entry is %+v", what, got)
			}
			// It is itself again once it was written, and stands the same damage once more.
			got.Ceilings = []codec.Offset{10*CeilingJump + 1, 20 * CeilingJump}
			mustPut(t, c, got)
			if c, r = mustOpen(t, disk); r.FellBackCount != 0 || !cmp.Equal(c.Entries()[0], got) {
				t.Fatalf("%s: after a repair the report is %+v", what, r)
			}
			write(t, disk, name, b)
			if c, r = mustOpen(t, disk); r.FellBackCount != 1 || c.Entries()[0].Ceilings[0] < got.Ceilings[0] {
				t.Fatalf("%s: after a second damage the report is %+v, entry %+v", what, r, c.Entries()[0])
			}
		}
	}
}

// F11 for the ids of producers: whatever becomes of their file, none is given out twice.
func TestF11DamagedProducerIDs(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	var given int64
	reserve := func(c *Catalogue, n int64) {
		t.Helper()
		first, err := c.ReserveProducerIDs(n)
		if err != nil || first < given {
			t.Fatalf("ids from %d, error %v; %d was given out", first, err, given-1)
		}
		given = first + n
	}
	for range 5 {
		reserve(c, 900)
	}
	name := path.Join(testDir, producerIDsName)
	sound, before := read(t, mem, name), given
	for damage, b := range damages(sound) {
		for _, both := range []bool{false, true} {
			disk := mem.CrashClone(vfs.Everything, 0)
			given = before
			write(t, disk, name, b)
			if both {
				write(t, disk, name+oldSuffix, b)
			}
			c, _, err := Open(disk, testDir, quietForSweep)
			if err != nil {
				if !errors.As(err, new(*strangeError)) {
					t.Fatalf("%s: %v", damage, err)
				}
				continue // a flipped version is a refusal that says so
			}
			for _, n := range []int64{1, 5000} {
				reserve(c, n)
				write(t, disk, name, b)
				if c, _, err = Open(disk, testDir, quietForSweep); err != nil {
					t.Fatal(err)
				}
				reserve(c, 1)
			}
			c, _ = mustOpen(t, disk)
			reserve(c, 1)
		}
	}
	for _, file := range []string{name, name + oldSuffix} {
		if err := mem.Remove(file); err != nil {
			t.Fatal(err)
		}
		given = before
		c, _ := mustOpen(t, mem)
		reserve(c, 1)
	}
}

// Where a topic goes on after an orderly end holds until an entry says otherwise, and not for an entry that stands in for a lost one: that
// other one may have come in between.
func TestEnds(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	closed := e.clone()
	closed.Ends = []codec.Offset{0, 400}
	mustPut(t, c, closed)
	name := path.Join(c.topicDir(e.ID), entryName)
	lose := func() Entry {
		t.Helper()
		disk := mem.CrashClone(vfs.Nothing, 0)
		write(t, disk, name, nil)
		c, r := mustOpen(t, disk)
		if r.FellBackCount != 1 {
			t.Fatalf("report %+v", r)
		}
		return c.Entries()[0]
	}
	above := e.clone()
	above.Ceilings = []codec.Offset{CeilingJump, CeilingJump + 1000}
	if diff := cmp.Diff(above, lose()); diff != "" {
		t.Errorf("without the entry of the orderly end (-want +got):\n%s", diff)
	}
	c, _ = mustOpen(t, mem)
	if diff := cmp.Diff([]Entry{closed}, c.Entries()); diff != "" {
		t.Errorf("after the orderly end (-want +got):\n%s", diff)
	}
	mustPut(t, c, e) // somebody publishes
	if diff := cmp.Diff(above, lose()); diff != "" {
		t.Errorf("without the entry that followed it (-want +got):\n%s", diff)
	}
	c, _ = mustOpen(t, mem)
	if diff := cmp.Diff([]Entry{e}, c.Entries()); diff != "" {
		t.Errorf("after that (-want +got):\n%s", diff)
	}
	mustPut(t, c, closed)
	other := testEntry(2, "a")
	file, err := appendEntry(nil, &other)
	if err != nil {
		t.Fatal(err)
	}
	write(t, mem, path.Join(c.topicDir(other.ID), entryName), file)
	c, _ = mustOpen(t, mem)
	adopted, err := c.Adopt(e.ID, "b", codec.TopicSettings{})
	e.Name = "b"
	if diff := cmp.Diff(e, adopted); err != nil || diff != "" {
		t.Errorf("adopted: %v (-want +got):\n%s", err, diff)
	}
}

// Ids end, and say so.
func TestProducerIDsEnd(t *testing.T) {
	mem := vfs.NewMem()
	b, err := appendProducerIDs(nil, maxProducerID-5)
	if err != nil {
		t.Fatal(err)
	}
	write(t, mem, path.Join(testDir, producerIDsName), b)
	c, _ := mustOpen(t, mem)
	if first, err := c.ReserveProducerIDs(6); err == nil {
		t.Errorf("ids from %d", first)
	}
}

// An entry of a newer version is not replaced by the one before it, is not adopted, and its topic is left alone.
func TestNewerVersion(t *testing.T) {
	for _, file := range []string{entryName, entryName + oldSuffix} {
		mem := vfs.NewMem()
		c, _ := mustOpen(t, mem)
		e := testEntry(1, "a")
		mustPut(t, c, e)
		mustPut(t, c, e)
		name := path.Join(c.topicDir(e.ID), file)
		_, body, _ := bytes.Cut(read(t, mem, name), []byte("\n"))
		body = bytes.Replace(body, []byte(`"name"`), []byte(`"replicas": 3, "name"`), 1)
		write(t, mem, name, append([]byte(firstLine(entryMagic, 1, len(body), checksum(string(body)))), body...))
		if file != entryName {
			write(t, mem, path.Join(c.topicDir(e.ID), entryName), nil)
		}
		c, r := mustOpen(t, mem)
		aside := c.SetAside()
		if r.SetAside != 1 || len(aside) != 1 || aside[0].Name != "a" || !strings.Contains(aside[0].Reason, "replicas") {
			t.Fatalf("%s: report %+v, aside %+v", file, r, aside)
		}
		if _, err := c.Adopt(e.ID, "a", codec.TopicSettings{}); err == nil || !strings.Contains(err.Error(), "replicas") {
			t.Errorf("%s: adopting it: %v", file, err)
		}
		if err := c.Put(testEntry(2, "a")); !errors.As(err, new(*AsideError)) {
			t.Errorf("%s: the name can be had: %v", file, err)
		}
	}
}

// A topic whose entries are lost is adopted from its segments alone.
func TestAdopt(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	e.Settings.Storage, e.Settings.Partitions, e.Ceilings = codec.StorageFile, 3, nil
	mustPut(t, c, e)
	var next codec.Offset
	for _, n := range []uint32{0, 2} {
		next = writeLog(t, mem, c.PartitionDir(e.ID, n), e.ID, n, 7)
	}
	name := path.Join(c.topicDir(e.ID), entryName)
	for _, lost := range []func(disk *vfs.Mem){
		func(disk *vfs.Mem) { write(t, disk, name, nil) },
		func(disk *vfs.Mem) {
			if err := disk.Remove(name); err != nil {
				t.Fatal(err)
			}
		},
	} {
		disk := mem.CrashClone(vfs.Everything, 0)
		lost(disk)
		before := tree(t, disk, testDir)
		c, r := mustOpen(t, disk)
		if diff := cmp.Diff(before, tree(t, disk, testDir)); diff != "" {
			t.Fatalf("opening it changed:\n%s", diff)
		}
		aside := c.SetAside()
		if r.SetAside != 1 || len(aside) != 1 || len(c.Entries()) != 0 {
			t.Fatalf("report %+v", r)
		}
		var got []uint32
		for _, p := range aside[0].Partitions {
			got = append(got, p.Partition)
			if p.Topic != e.ID || p.Segments != 1 || p.Start != 0 || p.Last != 0 || p.Bytes == 0 || p.Foreign != 0 || p.Unreadable != 0 {
				t.Errorf("partition %+v", p)
			}
		}
		if !cmp.Equal(got, []uint32{0, 2}) || aside[0].ID != e.ID || aside[0].Path != path.Dir(name) {
			t.Errorf("set aside: %+v", aside[0])
		}
		other := testEntry(5, "taken")
		mustPut(t, c, other)
		if _, err := c.Adopt(e.ID, "taken", codec.TopicSettings{}); err == nil {
			t.Error("it was adopted under a name that is taken")
		}
		if _, err := c.Adopt(testID(77), "b", codec.TopicSettings{}); err == nil {
			t.Error("nothing was adopted")
		}
		adopted, err := c.Adopt(e.ID, "b", codec.TopicSettings{MaxBatchBytes: 2 << 20})
		want := Entry{Name: "b", ID: e.ID, Settings: codec.TopicSettings{Storage: codec.StorageFile, Partitions: 3, MaxBatchBytes: 2 << 20}}
		if err != nil || !cmp.Equal(adopted, want) {
			t.Fatalf("error %v, entry %+v", err, adopted)
		}
		if len(c.SetAside()) != 0 || !cmp.Equal(c.Entries(), []Entry{want, other}) {
			t.Errorf("after it: %+v", c.Entries())
		}
		disk = disk.CrashClone(vfs.Nothing, 0)
		write(t, disk, name, nil) // the entry before it is the same
		c, _ = mustOpen(t, disk)
		if !cmp.Equal(c.Entries(), []Entry{want, other}) {
			t.Errorf("after a restart: %+v", c.Entries())
		}
		if got := writeLog(t, disk, c.PartitionDir(e.ID, 2), e.ID, 2, 1); got != next+1 {
			t.Errorf("the log goes on at %d", got-1)
		}
	}
}

// A ring's topic that is adopted without its entry begins above what it may have given out.
func TestAdoptRing(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	write(t, mem, path.Join(c.topicDir(e.ID), entryName), []byte("x"))
	c, _ = mustOpen(t, mem)
	got, err := c.Adopt(e.ID, "a", e.Settings)
	want := e.clone()
	want.CreatedMillis, want.Ceilings = 0, []codec.Offset{CeilingJump, CeilingJump}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if b := read(t, mem, path.Join(c.topicDir(e.ID), entryName+asideSuffix)); string(b) != "x" {
		t.Errorf("what was there is kept as %q", b)
	}
}

// Two directories with one name: none is served, until one of them has another name.
func TestTwoOfOneName(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	a := testEntry(1, "a")
	mustPut(t, c, a)
	b := testEntry(2, "a")
	file, err := appendEntry(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	write(t, mem, path.Join(c.topicDir(b.ID), entryName), file)
	c, r := mustOpen(t, mem)
	if r.SetAside != 2 || len(c.Entries()) != 0 {
		t.Fatalf("report %+v", r)
	}
	if _, err := c.Adopt(a.ID, "a", codec.TopicSettings{}); !errors.As(err, new(*AsideError)) {
		t.Errorf("adopting one under the name of both: %v", err)
	}
	if _, err := c.Adopt(a.ID, "was-a", codec.TopicSettings{}); err != nil {
		t.Fatal(err)
	}
	c, r = mustOpen(t, mem)
	a.Name = "was-a"
	if r.SetAside != 0 || !cmp.Equal(c.Entries(), []Entry{b, a}) {
		t.Fatalf("report %+v, entries %+v", r, c.Entries())
	}

	// An entry that merely stands in for a damaged one gives way to one that is current.
	old, err := appendEntry(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	old = bytes.ReplaceAll(old, []byte("0200000000"), []byte("0300000000"))
	_, body, _ := bytes.Cut(old, []byte("\n"))
	old = append([]byte(firstLine(entryMagic, 1, len(body), checksum(string(body)))), body...)
	write(t, mem, path.Join(c.topicDir(testID(3)), entryName+oldSuffix), old)
	c, r = mustOpen(t, mem)
	if r.SetAside != 1 || c.SetAside()[0].ID != testID(3) || !cmp.Equal(c.Entries(), []Entry{b, a}) {
		t.Fatalf("report %+v, set aside %+v", r, c.SetAside())
	}
}

// A directory that was copied, links, pipes and other names: nothing is followed, nothing is changed.
func TestStrayNames(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	for _, n := range []byte{2, 3, 4, 5} {
		mustPut(t, c, testEntry(n, fmt.Sprint("t", n)))
	}
	other := func(name string) {
		t.Helper()
		if err := mem.AddOther(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := mem.Remove(path.Join(c.topicDir(testID(2)), entryName)); err != nil {
		t.Fatal(err)
	}
	other(path.Join(c.topicDir(testID(2)), entryName))
	other(c.PartitionDir(testID(3), 1))
	other(c.topicDir(testID(9)))
	write(t, mem, path.Join(c.topicDir(testID(8)), entryName), read(t, mem, path.Join(c.topicDir(e.ID), entryName))) // cp -r
	write(t, mem, path.Join(testDir, topicsName, "lost+found", "x"), []byte("x"))
	write(t, mem, path.Join(testDir, topicsName, "010000000000000000000000000000EE", "x"), []byte("x"))
	write(t, mem, path.Join(testDir, topicsName, ".new-x"), []byte("x"))
	write(t, mem, path.Join(c.topicDir(testID(4)), "notes"), []byte("x"))
	other(path.Join(testDir, topicsName, "pipe"))
	before := tree(t, mem, testDir)
	c, r := mustOpen(t, mem)
	if diff := cmp.Diff(before, tree(t, mem, testDir)); diff != "" {
		t.Fatalf("opening it changed:\n%s", diff)
	}
	var ids []codec.TopicID
	for _, a := range c.SetAside() {
		ids = append(ids, a.ID)
	}
	if !cmp.Equal(ids, []codec.TopicID{testID(2), testID(3), testID(8), testID(9)}) || r.SetAside != 4 {
		t.Errorf("set aside: %+v", c.SetAside())
	}
	if r.Topics != 3 || r.StrayCount != 4 || len(r.Stray) != 4 || r.Finished != 0 {
		t.Errorf("report %+v", r)
	}
	for _, id := range []codec.TopicID{testID(2), testID(3), testID(9)} {
		if _, err := c.Adopt(id, "z", codec.TopicSettings{}); err == nil {
			t.Errorf("%x was adopted", id)
		}
	}

	linked := vfs.NewMem()
	if err := linked.Mkdir(testDir); err != nil {
		t.Fatal(err)
	}
	if err := linked.AddOther(testDir + "/topics"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(linked, testDir, quietForSweep); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a link for the directory of topics: %v", err)
	}
}

// The machine's own links and pipes are told from directories and files as those of the memory file system are.
func TestRealLinks(t *testing.T) {
	dir := t.TempDir()
	c, _, err := Open(vfs.OS{}, dir, quiet(t))
	if err != nil {
		t.Fatal(err)
	}
	for n := byte(1); n <= 3; n++ {
		mustPut(t, c, testEntry(n, fmt.Sprint("t", n)))
	}
	entry := path.Join(c.topicDir(testID(1)), entryName)
	if err := errors.Join(
		os.Rename(entry, entry+".moved"), os.Symlink(entry+".moved", entry),
		os.Symlink(c.topicDir(testID(3)), c.topicDir(testID(9))),
		os.Remove(path.Join(c.topicDir(testID(2)), entryName)),
		syscall.Mkfifo(path.Join(c.topicDir(testID(2)), entryName), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	c, r, err := Open(vfs.OS{}, dir, quiet(t))
	if err != nil || r.SetAside != 3 || r.Topics != 1 || c.Entries()[0].Name != "t3" {
		t.Errorf("report %+v, error %v", r, err)
	}
}

// F70: the number of partitions is the topic's own. It survives the loss of the entry that raised it, as long as there is data.
func TestF70PartitionsOnDisk(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	e.Settings.Storage, e.Settings.Partitions, e.Ceilings = codec.StorageQueueFile, 2, []codec.Offset{5, 6}
	mustPut(t, c, e)
	grown := e.clone()
	grown.Settings.Partitions, grown.Ceilings = 8, append(grown.Ceilings, 0, 0, 0, 0, 7, 0)
	mustPut(t, c, grown)
	writeLog(t, mem, c.PartitionDir(e.ID, 6), e.ID, 6, 3)
	write(t, mem, path.Join(c.PartitionDir(e.ID, 50), "00000000000000000000.seg"), []byte("not a segment"))
	writeLog(t, mem, c.PartitionDir(e.ID, 60), testID(9), 60, 3) // another topic's
	if err := mem.Mkdir(c.PartitionDir(e.ID, 70)); err != nil {
		t.Fatal(err)
	}
	c, r := mustOpen(t, mem)
	if r.Grown != 0 || !cmp.Equal(c.Entries(), []Entry{grown}) {
		t.Errorf("with its entry: report %+v, entries %+v", r, c.Entries())
	}
	write(t, mem, path.Join(c.topicDir(e.ID), entryName), nil)
	c, r = mustOpen(t, mem)
	got := c.Entries()[0]
	if r.Grown != 1 || r.FellBackCount != 1 || got.Settings.Partitions != 7 || len(got.Ceilings) != 7 {
		t.Errorf("report %+v, entry %+v", r, got)
	}
	for i, ceiling := range got.Ceilings {
		if ceiling < grown.Ceilings[i] {
			t.Errorf("the ceiling of partition %d is %d", i, ceiling)
		}
	}
}

// What a creation, a deletion or the deletion of a log left half done is removed.
func TestRemnants(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	hexID := "020000000000000000000000000000ee"
	topics := path.Join(testDir, topicsName)
	write(t, mem, path.Join(topics, newPrefix+hexID, entryName+tempSuffix), []byte("x"))
	write(t, mem, path.Join(topics, deletedPrefix+hexID, "0", "00000000000000000000.seg"), []byte("x"))
	write(t, mem, path.Join(topics, hexID, entryName+tempSuffix), nil)
	want := tree(t, mem, c.topicDir(e.ID))
	if err := mem.Mkdir(path.Join(topics, "030000000000000000000000000000ee")); err != nil {
		t.Fatal(err)
	}
	write(t, mem, path.Join(c.topicDir(e.ID), "1"+logDeletedSuffix, "00000000000000000000.seg"), []byte("x"))
	c, r := mustOpen(t, mem)
	if r.Finished != 4 || r.SetAside != 0 || r.StrayCount != 0 {
		t.Errorf("report %+v", r)
	}
	want[c.topicDir(e.ID)] = "directory"
	if diff := cmp.Diff(want, tree(t, mem, topics)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// F18: an error of the system is not taken for damage, and changes nothing.
func TestErrorsAreNotDamage(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.EACCES, syscall.EIO} {
		mem := vfs.NewMem()
		c, _ := mustOpen(t, mem)
		for n := byte(1); n <= 3; n++ {
			mustPut(t, c, testEntry(n, fmt.Sprint("t", n)))
		}
		before := tree(t, mem, testDir)
		fault := vfs.NewFault(mem)
		fault.SetHook(func(op vfs.Op) error {
			if strings.HasSuffix(op.Path, "ee/topic") {
				return errno
			}
			return nil
		})
		if _, _, err := Open(fault, testDir, quietForSweep); !errors.Is(err, errno) {
			t.Errorf("the error is %v", err)
		}
		fault.SetHook(nil)
		if diff := cmp.Diff(before, tree(t, mem, testDir)); diff != "" {
			t.Errorf("%v changed:\n%s", errno, diff)
		}
		if c, _, err := Open(fault, testDir, quietForSweep); err != nil || len(c.Entries()) != 3 {
			t.Errorf("after %v: %v", errno, err)
		}
	}
}

// A full disk refuses, and takes again once there is room.
func TestFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	e := testEntry(1, "a")
	mustPut(t, c, e)
	mem.SetLimit(mem.Used() + 10)
	changed := e.clone()
	changed.User = "ann"
	if err := c.Put(changed); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("replacing: %v", err)
	}
	if err := c.Put(testEntry(2, "b")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("creating: %v", err)
	}
	if _, err := c.ReserveProducerIDs(1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("reserving: %v", err)
	}
	if again, _ := mustOpen(t, mem); !cmp.Equal(again.Entries(), []Entry{e}) || !cmp.Equal(c.Entries(), []Entry{e}) {
		t.Errorf("entries %+v and %+v", c.Entries(), again.Entries())
	}
	mem.SetLimit(0)
	mustPut(t, c, changed)
	mustPut(t, c, testEntry(2, "b"))
}

// Many callers at once: every change stands.
func TestConcurrentUse(t *testing.T) {
	mem := vfs.NewMem()
	c, _ := mustOpen(t, mem)
	var wg sync.WaitGroup
	ids := make([][]int64, 8)
	for g := range 8 {
		wg.Go(func() {
			for i := range 20 {
				n := byte(g*20 + i + 1)
				e := testEntry(n, fmt.Sprint("t", n))
				if err := c.Put(e); err != nil {
					t.Error(err)
				}
				if i%3 == 0 {
					if err := c.Delete(e.ID); err != nil {
						t.Error(err)
					}
				}
				first, err := c.ReserveProducerIDs(30)
				if err != nil {
					t.Error(err)
				}
				ids[g] = append(ids[g], first)
				c.Entries()
				c.SetAside()
			}
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, list := range ids {
		for _, first := range list {
			for id := first; id < first+30; id++ {
				if seen[id] {
					t.Fatalf("the id %d came twice", id)
				}
				seen[id] = true
			}
		}
	}
	again, r := mustOpen(t, mem.CrashClone(vfs.Nothing, 0))
	if r.Topics != 8*13 || !cmp.Equal(again.Entries(), c.Entries()) {
		t.Errorf("report %+v", r)
	}
}

func BenchmarkOpen(b *testing.B) {
	const topics = 10_000
	dir := b.TempDir()
	c, _, err := Open(vfs.OS{}, dir, quietForSweep)
	if err != nil {
		b.Fatal(err)
	}
	for n := range topics {
		e := testEntry(1, fmt.Sprint("topic-", n))
		e.ID[1], e.ID[2] = byte(n), byte(n>>8)
		file, err := appendEntry(nil, &e)
		if err != nil {
			b.Fatal(err)
		}
		// Without syncs, which are not what is measured.
		if err := os.MkdirAll(c.PartitionDir(e.ID, 0), 0o750); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path.Join(c.topicDir(e.ID), entryName), file, 0o640); err != nil {
			b.Fatal(err)
		}
	}
	b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
		for b.Loop() {
			_, r, err := Open(vfs.OS{}, dir, slog.New(slog.DiscardHandler))
			if err != nil || r.Topics != topics {
				b.Fatalf("report %+v, error %v", r, err)
			}
		}
	})
}
