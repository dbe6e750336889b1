package journal

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

var rewrite = flag.Bool("rewrite", false, "write the golden segments anew; only before the format is frozen")

// fuzzLog is a small log in one segment, for a fuzzer to change.
func fuzzLog(t testing.TB, close bool) (segment []byte, batches map[codec.Offset][]byte) {
	sy := NewSyncers(1)
	defer sy.Close()
	mem := vfs.NewMem()
	clock := &manualClock{wall: 1_700_000_000_000}
	opts := Options{Topic: testTopic, Partition: 3, Syncers: sy, Clock: clock, Snapshot: func(b []byte, _ codec.Offset) []byte { return append(b, "state"...) }}
	l := mustOpen(t, mem, testDir, opts)
	for i := range 6 {
		l.mustAppend(1+i, 20+i*30)
		l.mustDurable()
	}
	if close {
		l.mustClose()
	} else {
		abandon(l)
	}
	b, err := vfs.ReadFile(mem, testDir+"/"+segmentName(0), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	return b, l.batches
}

// Whatever the bytes of a segment are: opening it neither panics nor allocates beyond its size, what is read has a sound CRC, opening it again finds
// the same, and the log takes appends.
func FuzzRecover(f *testing.F) {
	whole, _ := fuzzLog(f, true)
	torn, _ := fuzzLog(f, false)
	f.Add(whole, []byte(nil))
	f.Add(torn[:len(torn)-30], []byte(nil))
	f.Add(whole[:4096], whole[4608:])
	f.Add([]byte(nil), []byte(nil))
	f.Add(make([]byte, 5000), whole)
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first)+len(second) > 1<<20 {
			return
		}
		watchdog := time.AfterFunc(testDeadline, func() { panic("opening and reading takes too long") })
		defer watchdog.Stop()
		sy, rd := NewSyncers(1), NewReaders(1, 2)
		defer rd.Close()
		defer sy.Close()
		mem := vfs.NewMem()
		if err := vfs.MkdirAll(mem, testDir); err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{segmentName(0): first, segmentName(30): second} {
			if name != segmentName(0) && len(b) == 0 {
				continue
			}
			file, err := mem.Create(testDir + "/" + name)
			if err != nil {
				t.Fatal(err)
			}
			if err := file.WriteAt([][]byte{b}, 0); err != nil {
				t.Fatal(err)
			}
			_ = file.Close()
		}
		mem = mem.CrashClone(vfs.Everything, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		opts := Options{
			Topic: testTopic, Partition: 3, Syncers: sy, Readers: rd,
			OnSnapshot: func([]byte) error { return nil },
			OnReplay: func(b codec.Batch, _ int64) {
				if err := codec.CheckDelivered(b); err != nil && checksum(b[prefixBytes+4:]) != b.CRC() {
					t.Errorf("a damaged batch was replayed: %v", err)
				}
			},
		}
		l, err := tryOpen(t, mem, testDir, opts)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(20*(len(first)+len(second))+8<<20) {
			t.Errorf("opening %d bytes allocated %d", len(first)+len(second), grown)
		}
		if err != nil {
			return // of another version
		}
		next, start, damaged := l.Next(), l.Start(), l.Report().DamageCount > 0
		buf := make([]byte, 1<<20)
		for off := start; off < l.Written(); {
			r := readOne(l.Log, off, buf)
			for rest := r.Data; len(rest) > 0; {
				b, more, err := codec.NextBatch(rest)
				if err != nil || checksum(b[prefixBytes+4:]) != b.CRC() {
					t.Fatalf("a damaged batch was read at %d: %v", off, err)
				}
				rest = more
			}
			to := r.Next
			switch e := r.Err.(type) {
			case nil:
			case *CorruptionError:
				to = e.Next
			case *GapError:
				to = e.Next
			default:
				t.Fatalf("read at %d: %v", off, r.Err)
			}
			if to <= off {
				t.Fatalf("read at %d goes on at %d: %v", off, to, r.Err)
			}
			off = to
		}
		abandon(l)
		l, err = tryOpen(t, mem.CrashClone(vfs.Nothing, 0), testDir, opts)
		if err != nil {
			t.Fatalf("opening again: %v", err)
		}
		// With damage, and files that are copies of others, what was left alone may be of use the next time; nothing is used twice.
		if !damaged && (l.Next() != next || l.Start() != start) || l.Next() < next {
			t.Errorf("the log has %d to %d, opened again %d to %d", start, next, l.Start(), l.Next())
		}
		if next < 1<<62 {
			l.mustAppend(1, 10)
			l.mustDurable()
		}
		abandon(l)
	})
}

// A group header that decodes encodes to the same bytes.
func FuzzGroup(f *testing.F) {
	seg, _ := fuzzLog(f, true)
	for at := 4608; at+groupHeaderBytes < len(seg); at += 8 {
		if bytes.HasPrefix(seg[at:], groupMagicBytes) {
			f.Add(seg[at:at+groupHeaderBytes], int64(at))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, pos int64) {
		if len(b) < groupHeaderBytes {
			return
		}
		salt := uint32(b[52])<<24 | uint32(b[53])<<16 | uint32(b[54])<<8 | uint32(b[55])
		g, ok := decodeGroup(b, Position(pos), salt)
		if !ok {
			return
		}
		var again [groupHeaderBytes]byte
		g.encode(again[:])
		if !bytes.Equal(again[4:5], b[4:5]) || !bytes.Equal(again[8:60], b[8:60]) {
			t.Fatalf("%x decodes to %+v and encodes to %x", b[:groupHeaderBytes], g, again)
		}
		if _, ok := decodeGroup(b, Position(pos)+8, salt); ok {
			t.Fatalf("the group decodes at another position too")
		}
	})
}

// The golden segments must open for ever: what is in them is known.
func TestGoldenSegments(t *testing.T) {
	dir := filepath.Join("testdata", "v1")
	if *rewrite {
		writeGolden(t, dir)
	}
	for _, name := range []string{"closed", "torn"} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			if err := vfs.MkdirAll(mem, testDir); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, name, "*"))
			if err != nil || len(files) < 3 {
				t.Fatalf("%d golden files: %v", len(files), err)
			}
			for _, path := range files {
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				f, err := mem.Create(testDir + "/" + filepath.Base(path))
				if err != nil {
					t.Fatal(err)
				}
				if err := f.WriteAt([][]byte{b}, 0); err != nil {
					t.Fatal(err)
				}
				_ = f.Close()
			}
			p := newPools(t)
			opts := testOptions(p)
			var snapshot []byte
			replayed := 0
			opts.OnSnapshot = func(b []byte) error { snapshot = bytes.Clone(b); return nil }
			opts.OnReplay = func(codec.Batch, int64) { replayed++ }
			l := mustOpen(t, mem, testDir, opts)
			if l.Start() != 0 || l.Next() != goldenNext || l.Report().DamageCount > 0 || l.Report().Clean != (name == "closed") {
				t.Errorf("start %d, next %d, want 0 and %d; %+v", l.Start(), l.Next(), goldenNext, l.Report())
			}
			if string(snapshot) != "golden state" || replayed == 0 {
				t.Errorf("snapshot %q, %d batches replayed", snapshot, replayed)
			}
			checkContents(t, l.Log, goldenBatches(), 0, goldenNext)
			if q := lookupOne(l.Log, 1_700_000_000_000+40, true); q.Err != nil || !q.Found || q.Offset != 40 {
				t.Errorf("lookup: %+v", q)
			}
			l.mustAppend(1, 10)
			l.mustDurable()
			l.mustClose()
		})
	}
}

const goldenNext = 107

// goldenBatches are the batches of the golden segments: 40 of one to four records, with a declared gap of seven offsets at 50.
func goldenBatches() map[codec.Offset][]byte {
	m := map[codec.Offset][]byte{}
	next := codec.Offset(0)
	for i := range 40 {
		if next == 50 {
			next += 7
		}
		m[next] = makeBatch(next, 1+i%4, 60+i*9%200, 1_700_000_000_000+int64(next), codec.BatchMeta{ProducerID: 7, ProducerEpoch: 1, BaseSequence: int32(i)})
		next = codec.Batch(m[next]).NextOffset()
	}
	return m
}

func writeGolden(t *testing.T, dir string) {
	p := newPools(t)
	mem := vfs.NewMem()
	opts := testOptions(p)
	opts.SegmentBytes = 8 << 10
	opts.Clock = &manualClock{wall: 1_700_000_000_000}
	opts.Snapshot = func(b []byte, _ codec.Offset) []byte { return append(b, "golden state"...) }
	l := mustOpen(t, mem, testDir, opts)
	batches := goldenBatches()
	for next := codec.Offset(0); next < goldenNext; next = l.Next() {
		if batches[next] == nil {
			if err := l.AppendGap(next, next+7); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := l.Append([][]byte{batches[next]}); err != nil {
			t.Fatal(err)
		}
		l.mustDurable()
	}
	save := func(name string, mem *vfs.Mem, add []byte) {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		list, err := mem.List(testDir)
		if err != nil {
			t.Fatal(err)
		}
		last := segmentName(l.Log.active.base)
		for _, e := range list {
			b, err := vfs.ReadFile(mem, testDir+"/"+e.Name, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if kind, _ := parseName(e.Name); kind == nameTemp {
				continue
			}
			if e.Name == last {
				b = append(b, add...)
			}
			if err := os.WriteFile(filepath.Join(dir, name, e.Name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for l.Metrics().InFlight > 0 {
		t.Fatal("something is in flight")
	}
	l.Log.mu.Lock()
	for l.tasks > 0 {
		l.idle.Wait()
	}
	l.Log.mu.Unlock()
	torn := mem.CrashClone(vfs.Everything, 0)
	save("torn", torn, []byte("LQJG and then the power went"))
	l.mustClose()
	save("closed", mem, nil)
}
