package journal

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

// model is the oracle: a log is a slice of batches with a start.
type model struct {
	batches []modelBatch // kept and not refused, in order
	gaps    [][2]codec.Offset
	next    codec.Offset
	durable codec.Offset // what was said to be durable
	trimmed codec.Offset // what may be gone
}

type modelBatch struct {
	base codec.Offset
	b    []byte
}

// The journal equals a slice under any sequence of appends, gaps, rolls, trims, crashes and openings.
func TestModel(t *testing.T) {
	p := newPools(t)
	rapid.Check(t, func(rt *rapid.T) {
		mem := vfs.NewMem()
		opts := testOptions(p)
		opts.Sync = SyncMode(rapid.IntRange(0, 2).Draw(rt, "sync"))
		opts.Interval = 200 * time.Microsecond
		opts.SegmentBytes = int64(rapid.IntRange(5<<10, 20<<10).Draw(rt, "segment"))
		opts.GroupBytes = rapid.IntRange(512, 4<<10).Draw(rt, "group")
		opts.MaxInFlight = rapid.IntRange(1, 4).Draw(rt, "in flight")
		m := &model{}
		l := mustOpen(t, mem, testDir, opts)
		reopen := func() {
			l = mustOpen(t, mem, testDir, opts)
			if l.Next() < m.durable || l.Next() > m.next || l.Start() > max(m.trimmed, 0) {
				rt.Fatalf("opened at %d to %d, %d was durable, %d appended, %d trimmed; %+v", l.Start(), l.Next(), m.durable, m.next, m.trimmed,
					l.Report())
			}
			if l.Report().DamageCount > 0 {
				rt.Fatalf("damage: %v", l.Report().Damages)
			}
			m.batches = slices.DeleteFunc(m.batches, func(b modelBatch) bool { return b.base >= l.Next() })
			m.gaps = slices.DeleteFunc(m.gaps, func(g [2]codec.Offset) bool { return g[0] >= l.Next() })
			m.next = l.Next()
			m.durable = max(m.durable, l.Durable())
		}
		noteDurable := func() { m.durable = max(m.durable, l.Durable()) }
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				var list [][]byte
				next := m.next
				for range rapid.IntRange(1, 4).Draw(rt, "batches") {
					b := makeBatch(next, rapid.IntRange(1, 5).Draw(rt, "records"), rapid.IntRange(1, 700).Draw(rt, "size"),
						int64(rapid.IntRange(0, 1000).Draw(rt, "time")), codec.NoProducer)
					list = append(list, b)
					m.batches = append(m.batches, modelBatch{next, b})
					next = codec.Batch(b).NextOffset()
				}
				if err := l.Append(list); err != nil {
					rt.Fatalf("append: %v", err)
				}
				m.next = next
				noteDurable()
			},
			"gap": func(rt *rapid.T) {
				to := m.next + codec.Offset(rapid.IntRange(1, 50).Draw(rt, "gap"))
				if err := l.AppendGap(m.next, to); err != nil {
					rt.Fatalf("gap: %v", err)
				}
				m.gaps = append(m.gaps, [2]codec.Offset{m.next, to})
				m.next = to
			},
			"wait": func(*rapid.T) {
				if opts.Sync != SyncOS {
					l.mustDurable()
				}
				noteDurable()
			},
			"trim": func(rt *rapid.T) {
				to := codec.Offset(rapid.Int64Range(0, int64(m.next)).Draw(rt, "to"))
				l.Trim(to)
				m.trimmed = max(m.trimmed, to)
			},
			"purge": func(rt *rapid.T) {
				if rapid.IntRange(0, 4).Draw(rt, "really") > 0 {
					return
				}
				if err := l.within("purge", l.Purge); err != nil {
					rt.Fatalf("purge: %v", err)
				}
				m.trimmed = max(m.trimmed, m.next)
				if l.Start() != m.next || l.Next() != m.next {
					rt.Fatalf("after a purge at %d the log has %d to %d", m.next, l.Start(), l.Next())
				}
			},
			"close and open": func(*rapid.T) {
				if err := l.within("close", l.Close); err != nil {
					rt.Fatalf("close: %v", err)
				}
				m.durable = m.next
				reopen()
				if !l.Report().Clean && len(m.batches) > 0 && l.Report().Removed == 0 {
					rt.Fatalf("a closed log is not clean: %+v", l.Report())
				}
			},
			"crash and open": func(rt *rapid.T) {
				noteDurable()
				survival := vfs.Survival(rapid.IntRange(0, 2).Draw(rt, "survival"))
				c := mem.CrashClone(survival, rapid.Uint64().Draw(rt, "seed"))
				abandon(l)
				mem = c
				reopen()
			},
			"": func(rt *rapid.T) {
				noteDurable()
				m.check(rt, l)
			},
		})
		if err := l.within("close", l.Close); err != nil {
			rt.Fatalf("close: %v", err)
		}
	})
}

// check compares what can be read now with the model: everything from start to what is written.
func (m *model) check(rt *rapid.T, l *testLog) {
	start, written := l.Start(), l.Written()
	if start > m.trimmed {
		rt.Fatalf("start is %d, only what is below %d was trimmed", start, m.trimmed)
	}
	c := readFrom(l.t, l.Log, start)
	// Trims and writes go on beside the reading: what is above written or below the start now need not be there.
	start = l.Start()
	for _, b := range m.batches {
		got, ok := c.batches[b.base]
		switch {
		case !ok && b.base >= start && b.base < written:
			rt.Fatalf("the batch at %d is missing, the log has %d to %d; %v", b.base, start, written, c.errs)
		case ok && !bytes.Equal(got, b.b):
			rt.Fatalf("the batch at %d is not what was appended", b.base)
		case ok:
			delete(c.batches, b.base)
		}
	}
	for base := range c.batches {
		rt.Fatalf("a batch at %d that nobody appended", base)
	}
	for _, err := range c.errs {
		var gap *GapError
		if !errors.As(err, &gap) || !gap.Declared {
			rt.Fatalf("reading: %v", err)
		}
		if !slices.ContainsFunc(m.gaps, func(g [2]codec.Offset) bool { return g[0] <= gap.From && gap.Next <= g[1] }) {
			rt.Fatalf("a gap %d to %d that nobody declared: %v", gap.From, gap.Next, m.gaps)
		}
	}
}

// Readers and retention beside a writer: F73 at this level. No error but "out of range, start is now N", and offsets go on.
func TestReadersBesideRetention(t *testing.T) {
	p := newPools(t)
	opts := testOptions(p)
	opts.SegmentBytes = 16 << 10
	opts.RetentionBytes = 48 << 10
	l := mustOpen(t, vfs.OS{}, t.TempDir()+"/log", opts)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	for i := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			buf := make([]byte, 8<<10)
			at := codec.Offset(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := readOne(l.Log, at, buf)
				var out *RangeError
				switch {
				case errors.As(r.Err, &out):
					if at = out.Start; out.Start > out.Next {
						errs <- fmt.Errorf("start %d above next %d", out.Start, out.Next)
						return
					}
					continue
				case errors.Is(r.Err, ErrBusy):
					continue
				case r.Err != nil:
					errs <- fmt.Errorf("read at %d: %w", at, r.Err)
					return
				}
				for rest := r.Data; len(rest) > 0; {
					b, more, err := codec.NextBatch(rest)
					if err == nil {
						err = codec.CheckDelivered(b)
					}
					if err != nil {
						errs <- fmt.Errorf("read at %d: %w", at, err)
						return
					}
					rest = more
				}
				at = r.Next
				if len(r.Data) == 0 || rnd.IntN(20) == 0 {
					at = l.Start()
				}
			}
		})
	}
	last := codec.Offset(0)
	for i := range 600 {
		l.mustAppend(1+i%3, 300)
		if i%8 == 0 {
			l.mustDurable()
			if s := l.Start(); s < last {
				t.Fatalf("start went back from %d to %d", last, s)
			} else {
				last = s
			}
		}
	}
	l.mustDurable()
	close(stop)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	l.waitState("quiet", func() bool { return l.tasks == 0 && l.busy == 0 }) // a segment goes when it is sealed
	m := l.Metrics()
	if m.Trimmed < 5 || m.Recycled == 0 {
		t.Errorf("%d segments trimmed, %d recycled", m.Trimmed, m.Recycled)
	}
	if m.Bytes > 48<<10+2*17<<10 {
		t.Errorf("%d bytes are kept", m.Bytes)
	}
	l.mustClose()
}

// Nothing is allocated for a batch once a log is warm.
func TestAppendAllocatesNothing(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the race detector and the invariants allocate")
	}
	p := newPools(t)
	w := &window{}
	w.cond.L = &w.mu
	opts := testOptions(p)
	opts.OnProgress = w.progress
	l, err := Open(vfs.OS{}, t.TempDir()+"/log", opts)
	if err != nil {
		t.Fatal(err)
	}
	batches := make([][]byte, 16)
	for i := range batches {
		batches[i] = makeBatch(0, 10, 100, 1, codec.NoProducer)
	}
	next := l.Next()
	one := make([][]byte, 1)
	round := func() {
		for _, b := range batches {
			codec.Batch(b).SetBase(next, 0)
			next = codec.Batch(b).NextOffset()
			one[0] = b
			if err := l.Append(one); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.wait(next); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		round()
	}
	// Reserving blocks and the like allocate now and then, whatever the number of batches: less than one in ten batches is none per batch.
	if allocs := testing.AllocsPerRun(200, round); allocs > float64(len(batches))/10 {
		t.Errorf("%v allocations for %d batches", allocs, len(batches))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// A batch larger than a group, and reads with buffers of every size.
func TestReadSizes(t *testing.T) {
	p := newPools(t)
	opts := testOptions(p)
	opts.GroupBytes = 4 << 10
	opts.SegmentBytes = 64 << 10
	l := mustOpen(t, vfs.NewMem(), testDir, opts)
	for i := range 60 {
		l.mustAppend(1+i%5, 100+(i*397)%3000)
	}
	l.mustAppend(40, 900)
	l.mustDurable()
	for _, size := range []int{100, 1000, 4096, 5000, 20000, 1 << 16} {
		r := &Read{Buf: make([]byte, size)}
		for off := codec.Offset(0); off < l.Next(); {
			done := make(chan struct{})
			r.Offset, r.Done = off, func(*Read) { close(done) }
			if err := l.Read(r); err != nil {
				t.Fatal(err)
			}
			<-done
			var short *ShortBufferError
			if errors.As(r.Err, &short) {
				if want := len(l.batches[batchAt(l.batches, off)]); short.Need != want || want <= size {
					t.Fatalf("size %d, offset %d: need %d, the batch has %d", size, off, short.Need, want)
				}
				off = codec.Batch(l.batches[batchAt(l.batches, off)]).NextOffset()
				continue
			}
			if r.Err != nil || len(r.Data) == 0 || r.Next <= off {
				t.Fatalf("size %d, offset %d: %+v", size, off, r)
			}
			at := batchAt(l.batches, off)
			for rest := r.Data; len(rest) > 0; {
				b, more, err := codec.NextBatch(rest)
				if err != nil || !bytes.Equal(b, l.batches[at]) {
					t.Fatalf("size %d, offset %d: the batch at %d is wrong: %v", size, off, at, err)
				}
				at = b.NextOffset()
				rest = more
			}
			if at != r.Next {
				t.Fatalf("size %d, offset %d: next is %d, want %d", size, off, r.Next, at)
			}
			off = r.Next
		}
		// From the middle of batches, and up to a limit.
		for off := codec.Offset(0); off < l.Next(); off += 3 {
			q := readOne(l.Log, off, r.Buf)
			if q.Err == nil && (codec.Batch(q.Data).BaseOffset() > off || codec.Batch(q.Data).NextOffset() <= off) {
				t.Fatalf("size %d: the first batch does not hold offset %d", size, off)
			}
		}
	}
	limit := batchAt(l.batches, l.Next()/2)
	r := &Read{Offset: 0, Limit: limit, Buf: make([]byte, 1<<20)}
	done := make(chan struct{})
	r.Done = func(*Read) { close(done) }
	if err := l.Read(r); err != nil {
		t.Fatal(err)
	}
	<-done
	if r.Err != nil || r.Next > limit {
		t.Errorf("a read up to %d went to %d: %v", limit, r.Next, r.Err)
	}
	var out *RangeError
	if r := readOne(l.Log, l.Next()+1, make([]byte, 10)); !errors.As(r.Err, &out) || out.Next != l.Next() || out.Start != 0 {
		t.Errorf("beyond the end: %v", r.Err)
	}
	if r := readOne(l.Log, l.Next(), make([]byte, 10)); r.Err != nil || len(r.Data) > 0 {
		t.Errorf("at the end: %+v", r)
	}
	l.mustClose()
}

// batchAt returns the base offset of the batch that holds an offset.
func batchAt(m map[codec.Offset][]byte, off codec.Offset) codec.Offset {
	for off > 0 && m[off] == nil {
		off--
	}
	return off
}
