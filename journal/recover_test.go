package journal

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// Every pattern of facts hits exactly one row of its table, and every row is hit.
func TestTablesAreComplete(t *testing.T) {
	check := func(name string, rows int, facts reflect.Type, count func(facts reflect.Value) []int) {
		hit := make([]int, rows)
		for bits := range 1 << facts.NumField() {
			v := reflect.New(facts).Elem()
			for i := range facts.NumField() {
				reflect.NewAt(facts.Field(i).Type, v.Field(i).Addr().UnsafePointer()).Elem().SetBool(bits>>i&1 == 1)
			}
			rows := count(v)
			if len(rows) != 1 {
				t.Errorf("%s: %+v hits the rows %v, want exactly one", name, v, rows)
			}
			for _, r := range rows {
				hit[r]++
			}
		}
		for i, n := range hit {
			if n == 0 {
				t.Errorf("%s: row %d is never hit", name, i)
			}
		}
	}
	check("segments", len(segmentTable), reflect.TypeFor[segmentFacts](), func(v reflect.Value) (rows []int) {
		f := v.Interface().(segmentFacts)
		for i, r := range segmentTable {
			if r.sound.matches(f.sound) && r.ours.matches(f.ours) && r.placed.matches(f.placed) && r.sealed.matches(f.sealed) &&
				r.groups.matches(f.groups) && r.blank.matches(f.blank) && r.below.matches(f.below) {
				rows = append(rows, i)
			}
		}
		return rows
	})
	check("holes", len(holeTable), reflect.TypeFor[holeFacts](), func(v reflect.Value) (rows []int) {
		f := v.Interface().(holeFacts)
		for i, r := range holeTable {
			if r.below.matches(f.below) && r.final.matches(f.final) && r.zeros.matches(f.zeros) {
				rows = append(rows, i)
			}
		}
		return rows
	})
	check("links", len(linkTable), reflect.TypeFor[linkFacts](), func(v reflect.Value) (rows []int) {
		f := v.Interface().(linkFacts)
		for i, r := range linkTable {
			if r.behind.matches(f.behind) && r.meets.matches(f.meets) && r.declared.matches(f.declared) && r.below.matches(f.below) {
				rows = append(rows, i)
			}
		}
		return rows
	})
}

var errnos = []syscall.Errno{syscall.EMFILE, syscall.EACCES, syscall.EIO}

const testDir = "/data/t/0"

// fixture is a log on disk in a known state: segments of about ten batches of three records each, the last of them active.
type fixture struct {
	mem     *vfs.Mem
	opts    Options
	batches map[codec.Offset][]byte
	next    codec.Offset
	last    codec.Offset // base offset of the last batch
}

// newFixture makes a log of n batches and leaves it as the death of the process would, or closes it.
func newFixture(t *testing.T, n int, closed bool) *fixture {
	t.Helper()
	p := newPools(t)
	f := &fixture{mem: vfs.NewMem(), opts: testOptions(p)}
	f.opts.SegmentBytes = 8 << 10
	l := mustOpen(t, f.mem, testDir, f.opts)
	for i := range n {
		f.last = l.Next()
		l.mustAppend(3, 200)
		if i%2 == 1 {
			l.mustDurable()
		}
	}
	l.mustDurable()
	f.batches, f.next = l.batches, l.Next()
	if closed {
		l.mustClose()
	} else {
		abandon(l)
	}
	f.mem = f.mem.CrashClone(vfs.Everything, 0)
	return f
}

func (f *fixture) clone() *vfs.Mem { return f.mem.CrashClone(vfs.Everything, 0) }

// segments returns the names of the segment files in order.
func (f *fixture) segments(t *testing.T) (names []string) {
	t.Helper()
	list, err := f.mem.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if kind, _ := parseName(e.Name); kind == nameSegment {
			names = append(names, testDir+"/"+e.Name)
		}
	}
	return names
}

// edit changes a file.
func edit(t *testing.T, m *vfs.Mem, name string, f func(b []byte) []byte) {
	t.Helper()
	b, err := vfs.ReadFile(m, name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	b = f(b)
	file, err := m.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := file.WriteAt([][]byte{b}, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
}

// groupsOf returns the groups of a segment file.
func groupsOf(t *testing.T, m *vfs.Mem, name string) (groups []Group, end Position) {
	t.Helper()
	file, err := m.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	size, _ := file.Size()
	b := make([]byte, headerBlockBytes)
	if _, err := file.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	h, ok := decodeHeader(b)
	if !ok {
		t.Fatalf("%s has no header", name)
	}
	s := newScanner(file, h.Salt, Position(size))
	end, _, err = s.walk(h.DataStart(), h.Base, 0, noOffset, walker{group: func(g *Group) error {
		groups = append(groups, *g)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return groups, end
}

// F03: a last group that is cut anywhere is dropped, and only it; the next append gets its offset.
func TestTornLastGroup(t *testing.T) {
	f := newFixture(t, 30, false)
	segs := f.segments(t)
	active := segs[len(segs)-1]
	groups, end := groupsOf(t, f.mem, active)
	last := groups[len(groups)-1]
	for cut := Position(1); cut <= end-last.Position; cut++ {
		m := f.clone()
		edit(t, m, active, func(b []byte) []byte { return b[:end-cut] })
		l := mustOpen(t, m, testDir, f.opts)
		r := l.Report()
		padding := last.End() - (last.Position + groupHeaderBytes + Position(last.Body))
		want := last.Base
		if cut <= padding {
			want = last.Next // only zeros were cut off
		}
		if l.Next() != want {
			t.Fatalf("cut of %d bytes: next is %d, want %d; %+v", cut, l.Next(), want, r)
		}
		if want == last.Base && cut < end-last.Position && (len(r.Cuts) != 1 || r.Cuts[0].Path != active || r.Cuts[0].Offset != last.Base ||
			r.Cuts[0].Bytes != int64(end-cut-last.Position)) {
			t.Fatalf("cut of %d bytes: the report does not tell: %+v", cut, r.Cuts)
		}
		checkContents(t, l.Log, f.batches, 0, want)
		if b := l.mustAppend(2, 50); codec.Batch(b).BaseOffset() != want {
			t.Fatalf("the next append is at %d", codec.Batch(b).BaseOffset())
		}
		l.mustDurable()
		abandon(l)
	}
}

// F04: zeros never decode, and a tail that never arrived is cut: with preallocated zeros behind, a zeroed sector, a zeroed block, and a
// hole with something valid behind it. F05: what is appended after that survives the second crash.
func TestZerosInTheTail(t *testing.T) {
	f := newFixture(t, 30, false)
	segs := f.segments(t)
	active := segs[len(segs)-1]
	groups, end := groupsOf(t, f.mem, active)
	last, before := groups[len(groups)-1], groups[len(groups)-2]
	zero := func(from, to Position) func([]byte) []byte {
		return func(b []byte) []byte {
			clear(b[from:to])
			return b
		}
	}
	for name, c := range map[string]struct {
		edit func([]byte) []byte
		next codec.Offset
	}{
		"zeros behind":       {func(b []byte) []byte { return append(b[:end], make([]byte, 65536)...) }, f.next},
		"last sector zeroed": {zero(max(last.Position, end-512), end), last.Base},
		"half the group":     {zero(last.Position+groupHeaderBytes+200, end), last.Base},
		"whole group zeroed": {zero(last.Position, end), last.Base},
		"hole, then a group": {func(b []byte) []byte {
			g := last
			g.Durable = before.Base // as if both had been in flight
			g.encode(b[g.Position:])
			return zero(before.Position, last.Position)(b)
		}, before.Base},
		"random bytes behind":  {func(b []byte) []byte { return append(b[:end], "thirty-seven bytes of garbage, or so"...) }, f.next},
		"4096 zeros behind":    {func(b []byte) []byte { return append(b[:end], make([]byte, 4096)...) }, f.next},
		"half a group behind":  {func(b []byte) []byte { return append(b[:end], b[last.Position:last.Position+100]...) }, f.next},
		"a stale group behind": {func(b []byte) []byte { return append(b[:end], b[before.Position:last.Position]...) }, f.next},
	} {
		t.Run(name, func(t *testing.T) {
			m := f.clone()
			edit(t, m, active, c.edit)
			l := mustOpen(t, m, testDir, f.opts)
			if l.Next() != c.next || l.Report().DamageCount > 0 {
				t.Fatalf("next is %d, want %d; %+v", l.Next(), c.next, l.Report())
			}
			checkContents(t, l.Log, f.batches, 0, c.next)
			all := map[codec.Offset][]byte{}
			for base, b := range f.batches {
				if base < c.next {
					all[base] = b
				}
			}
			for range 5 {
				l.mustAppend(1, 300)
			}
			l.mustDurable()
			for base, b := range l.batches {
				all[base] = b
			}
			next := l.Next()
			abandon(l)
			again := mustOpen(t, m.CrashClone(vfs.Nothing, 0), testDir, f.opts)
			if again.Next() != next || again.Report().DamageCount > 0 {
				t.Fatalf("after the second crash: next is %d, want %d; %+v", again.Next(), next, again.Report())
			}
			checkContents(t, again.Log, all, 0, next)
			abandon(again)
		})
	}
}

// F04: the same hole below a durable mark is damage: it is told, and what is behind it is served.
func TestHoleBelowMark(t *testing.T) {
	f := newFixture(t, 30, false)
	segs := f.segments(t)
	active := segs[len(segs)-1]
	groups, _ := groupsOf(t, f.mem, active)
	last, before := groups[len(groups)-1], groups[len(groups)-2]
	edit(t, f.mem, active, func(b []byte) []byte {
		last.Durable = last.Base
		last.encode(b[last.Position:])
		clear(b[before.Position:last.Position])
		return b
	})
	l := mustOpen(t, f.mem, testDir, f.opts)
	d := l.Report().Damages
	if len(d) != 1 || d[0].Path != active || d[0].Position != before.Position || d[0].Offset != before.Base || d[0].Next != last.Base {
		t.Errorf("the report has %v", d)
	}
	if l.Next() != f.next {
		t.Errorf("next is %d, want %d", l.Next(), f.next)
	}
	checkDamaged(t, readAll(t, l.Log), f.batches, before)
	abandon(l)
}

// F14 and F15: a flipped bit anywhere in the first, a middle and the last segment, below what is marked durable: everything else is
// served, the damage is told with its place, nothing damaged is delivered, and no file changes.
func TestFlippedBit(t *testing.T) {
	f := newFixture(t, 60, true)
	segs := f.segments(t)
	if len(segs) < 3 {
		t.Fatalf("only %d segments", len(segs))
	}
	for _, name := range []string{segs[0], segs[len(segs)/2], segs[len(segs)-1]} {
		groups, _ := groupsOf(t, f.mem, name)
		var data []Group
		for _, g := range groups {
			if g.Kind == KindData {
				data = append(data, g)
			}
		}
		g := data[len(data)/2]
		batch := g.Position + groupHeaderBytes
		places := map[string]Position{
			"group magic": g.Position, "group kind": g.Position + 4, "group size": g.Position + 9, "group base": g.Position + 23,
			"group crc": g.Position + 61, "base offset": batch + 7, "batch length": batch + 10, "batch length high": batch + 8,
			"leader epoch": batch + 13, "batch magic": batch + 16, "batch crc": batch + 18, "attributes": batch + 21, "count": batch + 58,
			"timestamp": batch + 30, "payload": batch + 61 + 90,
		}
		for what, at := range places {
			for _, bit := range []byte{0x01, 0x10, 0x80} {
				t.Run(fmt.Sprintf("%s/%s/%#x", name[len(testDir)+1:], what, bit), func(t *testing.T) {
					m := f.clone()
					edit(t, m, name, func(b []byte) []byte { b[at] ^= bit; return b })
					before := tree(t, m)
					l := mustOpen(t, m, testDir, f.opts)
					if l.Next() != f.next {
						t.Fatalf("next is %d, want %d: %+v", l.Next(), f.next, l.Report())
					}
					if after := tree(t, m); !reflect.DeepEqual(before, after) {
						t.Errorf("opening changed %v", differences(before, after))
					}
					c := readAll(t, l.Log)
					checkDamaged(t, c, f.batches, g)
					if name == segs[len(segs)-1] && l.Report().DamageCount == 0 {
						t.Errorf("damage in the segment that is scanned was not reported")
					}
					if l.Metrics().CorruptReads == 0 {
						t.Errorf("no metric counts it")
					}
					// The log goes on behind it.
					l.mustAppend(2, 20)
					l.mustDurable()
					abandon(l)
					again := mustOpen(t, m.CrashClone(vfs.Nothing, 0), testDir, f.opts)
					c = readAll(t, again.Log)
					delete(c.batches, f.next)
					checkDamaged(t, c, f.batches, g)
					abandon(again)
				})
			}
		}
	}
}

// checkDamaged checks that everything outside of a group was read, and that the reader was told of the rest.
func checkDamaged(t *testing.T, c contents, want map[codec.Offset][]byte, g Group) {
	t.Helper()
	for base, b := range want {
		got, ok := c.batches[base]
		if ok && string(got) != string(b) {
			t.Errorf("the batch at %d is not what was appended", base)
		}
		if !ok && (base < g.Base || base >= g.Next) {
			t.Errorf("the batch at %d is gone, it is not in the damaged group %d to %d; %v", base, g.Base, g.Next, c.errs)
		}
	}
	for base := range c.batches {
		if want[base] == nil {
			t.Errorf("a batch at %d that nobody appended", base)
		}
	}
	if len(c.errs) == 0 {
		t.Errorf("the reader was not told")
	}
	for _, err := range c.errs {
		var e *CorruptionError
		if !errors.As(err, &e) || e.Path == "" || e.Offset < g.Base || e.Next > g.Next {
			t.Errorf("the reader was told %v", err)
		}
	}
}

// F16: an index that is missing, empty, of another segment, zeros, or pointing beyond the data is made again.
func TestBadIndex(t *testing.T) {
	f := newFixture(t, 60, true)
	segs := f.segments(t)
	idx := func(i int) string { return segs[i][:len(segs[i])-len(segmentSuffix)] + indexSuffix }
	other, err := vfs.ReadFile(f.mem, idx(1), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m *vfs.Mem, i int){
		"missing": func(m *vfs.Mem, i int) { _ = m.Remove(idx(i)) },
		"empty":   func(m *vfs.Mem, i int) { edit(t, m, idx(i), func([]byte) []byte { return nil }) },
		"other":   func(m *vfs.Mem, i int) { edit(t, m, idx(i), func([]byte) []byte { return other }) },
		"zeros":   func(m *vfs.Mem, i int) { edit(t, m, idx(i), func(b []byte) []byte { clear(b); return b }) },
		"beyond": func(m *vfs.Mem, i int) {
			edit(t, m, idx(i), func(b []byte) []byte { return append(b, b[len(b)-indexEntryBytes:]...) })
		},
		"huge count": func(m *vfs.Mem, i int) { edit(t, m, idx(i), func(b []byte) []byte { b[40] = 0xff; return b }) },
	} {
		for _, i := range []int{0, 2, len(segs) - 2} {
			t.Run(fmt.Sprintf("%s/%d", name, i), func(t *testing.T) {
				m := f.clone()
				change(m, i)
				l := mustOpen(t, m, testDir, f.opts)
				checkContents(t, l.Log, f.batches, 0, f.next)
				for _, q := range []int64{0, 1_700_000_000_000 + 40, 1_700_000_000_000 + int64(f.next) + 1} {
					want, found := f.next, false
					for _, base := range slices.Sorted(keys(f.batches)) {
						if codec.Batch(f.batches[base]).MaxTimestamp() >= q {
							want, found = base, true
							break
						}
					}
					got := lookupOne(l.Log, q, true)
					if got.Err != nil || got.Offset != want || got.Found != found {
						t.Errorf("lookup of %d: %+v, want %d %v", q, got, want, found)
					}
				}
				if m := l.Metrics(); i != 1 && name != "other" && m.IndexesRebuilt == 0 {
					t.Errorf("no index was made again")
				}
				abandon(l)
			})
		}
	}
}

func keys(m map[codec.Offset][]byte) func(yield func(codec.Offset) bool) {
	return func(yield func(codec.Offset) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func lookupOne(l *Log, t int64, record bool) *Lookup {
	done := make(chan struct{})
	q := &Lookup{Time: t, Record: record, Done: func(*Lookup) { close(done) }}
	if err := l.Lookup(q); err != nil {
		q.Err = err
		return q
	}
	<-done
	return q
}

// F17: a segment that is missing in the middle is told with its range, and reading goes on behind it. Two segments with each other's
// names are recognised by their headers, told, and served.
func TestMissingAndSwappedSegments(t *testing.T) {
	f := newFixture(t, 60, true)
	segs := f.segments(t)
	_, from := parseName(segs[2][len(testDir)+1:])
	_, to := parseName(segs[3][len(testDir)+1:])

	m := f.clone()
	if err := m.Remove(segs[2]); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, m, testDir, f.opts)
	if d := l.Report().Damages; len(d) != 1 || d[0].Offset != from || d[0].Next != to {
		t.Errorf("the report has %v, want the range %d to %d", d, from, to)
	}
	for _, at := range []codec.Offset{from, (from + to) / 2} {
		r := readOne(l.Log, at, make([]byte, 1<<16))
		var gap *GapError
		if !errors.As(r.Err, &gap) || gap.Next != to || gap.Declared || !errors.Is(r.Err, ErrCorrupt) {
			t.Errorf("reading at %d: %v, want a gap up to %d", at, r.Err, to)
		}
	}
	c := readAll(t, l.Log)
	for base := range f.batches {
		if (base < from || base >= to) && c.batches[base] == nil {
			t.Errorf("the batch at %d is gone", base)
		}
	}
	abandon(l)

	m = f.clone()
	for _, names := range [][2]string{{segs[1], testDir + "/x"}, {segs[2], segs[1]}, {testDir + "/x", segs[2]}} {
		if err := m.Rename(names[0], names[1]); err != nil {
			t.Fatal(err)
		}
	}
	l = mustOpen(t, m, testDir, f.opts)
	if d := l.Report().Damages; len(d) != 2 {
		t.Errorf("two swapped segments: %v", d)
	}
	checkContents(t, l.Log, f.batches, 0, f.next)
	abandon(l)
}

// F20: what is not part of the log is left alone, temporary files go, and nothing hangs on a pipe with a segment's name.
func TestStrayFiles(t *testing.T) {
	f := newFixture(t, 20, true)
	m := f.clone()
	create := func(name string, b []byte) {
		file, err := m.Create(testDir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = file.Close() }()
		if err := file.WriteAt([][]byte{b}, 0); err != nil {
			t.Fatal(err)
		}
	}
	create("00000000000000000000.seg.tmp", []byte("half"))
	create("spare-00000000000000000007.tmp", []byte("spare"))
	create("00000000000000000000.seg~", []byte("editor"))
	create(".DS_Store", []byte("mac"))
	create("00000000000000900000.seg", nil)
	create("0000000000000000000.seg", []byte("19 digits"))
	if err := m.Mkdir(testDir + "/lost+found"); err != nil {
		t.Fatal(err)
	}
	if err := m.AddOther(testDir + "/00000000000000800000.seg"); err != nil {
		t.Fatal(err)
	}
	l := mustOpen(t, m, testDir, f.opts)
	r := l.Report()
	if l.Next() != f.next || r.ForeignCount != 5 || r.Removed != 3 || r.DamageCount != 0 {
		t.Errorf("next %d, report %+v", l.Next(), r)
	}
	checkContents(t, l.Log, f.batches, 0, f.next)
	list, err := m.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range list {
		if kind, _ := parseName(e.Name); kind == nameTemp {
			t.Errorf("%s was not removed", e.Name)
		} else if kind == nameOther {
			left = append(left, e.Name)
		}
	}
	if want := []string{".DS_Store", "0000000000000000000.seg", "00000000000000000000.seg~", "lost+found"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
	abandon(l)
}

// F18: an error of the file system is not corruption: Open fails, every file stays as it is, and the next Open finds everything.
func TestErrorsAreNotCorruption(t *testing.T) {
	f := newFixture(t, 40, false)
	for _, kind := range []vfs.OpKind{vfs.OpOpen, vfs.OpRead, vfs.OpList} {
		for _, errno := range errnos {
			for k := 1; ; k++ {
				m := f.clone()
				before := tree(t, m)
				fault := vfs.NewFault(m)
				n := 0
				fault.SetHook(func(op vfs.Op) error {
					if op.Kind == kind {
						if n++; n == k {
							return errno
						}
					}
					return nil
				})
				l, err := tryOpen(t, fault, testDir, f.opts)
				if err == nil && n < k {
					abandon(l)
					break
				}
				if err == nil || !errors.Is(err, errno) {
					t.Fatalf("%v %d fails with %v: Open returned %v", kind, k, errno, err)
				}
				if after := tree(t, m); n < 6 && !reflect.DeepEqual(before, after) {
					t.Errorf("%v %d fails with %v: changed %v", kind, k, errno, differences(before, after))
				}
				again := mustOpen(t, m, testDir, f.opts)
				if again.Next() != f.next || again.Report().DamageCount > 0 {
					t.Fatalf("%v %d fails with %v: afterwards next is %d, want %d; %+v", kind, k, errno, again.Next(), f.next, again.Report())
				}
				abandon(again)
			}
		}
	}
}
