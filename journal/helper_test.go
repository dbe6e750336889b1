package journal

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

var testTopic = TopicID{0: 0xa1, 15: 0x5e}

// makeBatch returns a batch of n records of about size bytes each whose values say what they are.
func makeBatch(base codec.Offset, n, size int, timestamp int64, meta codec.BatchMeta) []byte {
	var w codec.BatchBuilder
	w.Reset(nil, 1<<30)
	for i := range n {
		v := fmt.Appendf(nil, "record %d of the test; ", int(base)+i)
		for len(v) < size {
			v = append(v, byte(len(v)*7+int(base)))
		}
		w.AddValue(timestamp, v)
	}
	b := w.Finish(meta)
	codec.Batch(b).SetBase(base, 0)
	return b
}

// manualClock is a wall clock and a monotonic one that a test moves.
type manualClock struct {
	mu   sync.Mutex
	wall int64
	mono time.Duration
}

func (c *manualClock) Now() (int64, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall, c.mono
}

func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d.Milliseconds()
	c.mono += d
}

func (c *manualClock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += d.Milliseconds()
}

// pools are what the logs of a test share.
type pools struct {
	sy *Syncers
	rd *Readers
}

func newPools(t testing.TB) *pools {
	p := &pools{sy: NewSyncers(8), rd: NewReaders(2, 8)}
	t.Cleanup(func() {
		p.sy.Close()
		p.rd.Close()
	})
	return p
}

// testLog is a log with what a test needs around it: it appends batches, remembers them, and waits for events.
type testLog struct {
	*Log
	t testing.TB

	mu      sync.Mutex
	changed sync.Cond
	prog    Progress
	refused *RefusedError // told, and not returned by waitDurable yet
	toldOf  *RefusedError // the last one
	err     *PoisonedError

	first   codec.Offset            // next when the log was opened
	upto    codec.Offset            // behind the last batch that was taken
	batches map[codec.Offset][]byte // appended since and not refused, by base offset
	calls   int
}

const testDeadline = time.Minute

func testOptions(p *pools) Options {
	return Options{
		Topic: testTopic, Partition: 3, Syncers: p.sy, Readers: p.rd, MarkDelay: time.Hour, // no timer of its own
	}
}

func tryOpen(t testing.TB, fsys vfs.FS, dir string, opts Options) (*testLog, error) {
	tl := &testLog{t: t, batches: map[codec.Offset][]byte{}}
	tl.changed.L = &tl.mu
	opts.OnProgress = tl.progress
	l, err := Open(fsys, dir, opts)
	tl.Log = l
	if err == nil {
		tl.first = l.Next()
	}
	return tl, err
}

func mustOpen(t testing.TB, fsys vfs.FS, dir string, opts Options) *testLog {
	t.Helper()
	tl, err := tryOpen(t, fsys, dir, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return tl
}

func (tl *testLog) progress(p Progress) {
	tl.mu.Lock()
	defer tl.mu.Unlock()
	tl.prog = p
	tl.calls++
	if p.Refused != nil {
		tl.refused, tl.toldOf = p.Refused, p.Refused
	}
	if p.Err != nil {
		tl.err = p.Err
	}
	tl.changed.Broadcast()
}

// wait waits until the condition holds; it is checked after every call of OnProgress.
func (tl *testLog) wait(what string, cond func() bool) {
	tl.t.Helper()
	late := false
	timer := time.AfterFunc(testDeadline, func() {
		tl.mu.Lock()
		late = true
		tl.mu.Unlock()
		tl.changed.Broadcast()
	})
	defer timer.Stop()
	tl.mu.Lock()
	defer tl.mu.Unlock()
	for !cond() {
		if late {
			tl.t.Fatalf("waited too long for %s; progress %+v\n%s", what, tl.prog, tl.describe())
		}
		tl.changed.Wait()
	}
}

// append appends a batch of n records and returns what was appended.
func (tl *testLog) append(n, size int) ([]byte, error) {
	base := tl.Next()
	b := makeBatch(base, n, size, 1_700_000_000_000+int64(base), codec.NoProducer)
	if err := tl.Append([][]byte{b}); err != nil {
		return nil, err
	}
	for at := range tl.batches {
		if at >= base {
			delete(tl.batches, at) // refused since
		}
	}
	tl.batches[base] = b
	tl.upto = base + codec.Offset(n)
	return b, nil
}

func (tl *testLog) mustAppend(n, size int) []byte {
	tl.t.Helper()
	b, err := tl.append(n, size)
	if err != nil {
		tl.t.Fatalf("append at %d: %v", tl.Next(), err)
	}
	return b
}

// waitDurable waits until everything that was appended is durable, or refused, or unknown. It returns the latter two as errors.
func (tl *testLog) waitDurable() error {
	tl.t.Helper()
	// A refusal takes Next back, perhaps before this call.
	next := max(tl.Next(), tl.upto)
	var err error
	tl.wait(fmt.Sprintf("offset %d to be durable", next), func() bool {
		switch {
		case tl.prog.Durable >= next:
			err = nil
		case tl.err != nil:
			err = tl.err
		case tl.refused != nil:
			err = tl.refused
			tl.refused = nil
			tl.upto = 0
		default:
			tl.Log.mu.Lock()
			defer tl.Log.mu.Unlock()
			if tl.state == stateOpen && tl.next < next && tl.toldOf == tl.lastRefusal {
				err = tl.toldOf // before the last append that it took
				tl.upto = 0
				return true
			}
			return tl.durable >= next
		}
		return true
	})
	return err
}

func (tl *testLog) mustDurable() {
	tl.t.Helper()
	if err := tl.waitDurable(); err != nil {
		tl.t.Fatalf("wait for %d to be durable: %v", tl.Next(), err)
	}
}

func (tl *testLog) mustClose() {
	tl.t.Helper()
	if err := tl.Close(); err != nil {
		tl.t.Fatalf("close: %v", err)
	}
}

// readOne reads from an offset and waits for the answer.
func readOne(l *Log, offset codec.Offset, buf []byte) *Read {
	done := make(chan struct{})
	r := &Read{Offset: offset, Buf: buf, Done: func(*Read) { close(done) }}
	if err := l.Read(r); err != nil {
		r.Err = err
		return r
	}
	<-done
	return r
}

// contents reads a whole log: its batches by base offset, and the gaps and damages that it met.
type contents struct {
	batches map[codec.Offset][]byte
	order   []codec.Offset
	errs    []error
}

func readAll(t testing.TB, l *Log) contents {
	t.Helper()
	return readFrom(t, l, l.Start())
}

func readFrom(t testing.TB, l *Log, offset codec.Offset) contents {
	t.Helper()
	c := contents{batches: map[codec.Offset][]byte{}}
	buf := make([]byte, 1<<16)
	for offset < l.Written() {
		r := readOne(l, offset, buf)
		var gap *GapError
		var corrupt *CorruptionError
		var short *ShortBufferError
		var out *RangeError
		next := r.Next
		switch {
		case errors.As(r.Err, &gap):
			c.errs = append(c.errs, gap)
			next = gap.Next
		case errors.As(r.Err, &corrupt):
			c.errs = append(c.errs, corrupt)
			next = corrupt.Next
		case errors.As(r.Err, &short):
			buf = make([]byte, short.Need)
			continue
		case errors.As(r.Err, &out) && out.Start > offset:
			next = out.Start // trimmed while it was read
		case r.Err != nil:
			t.Fatalf("read at %d: %v", offset, r.Err)
		default:
			for rest := r.Data; len(rest) > 0; {
				b, more, err := codec.NextBatch(rest)
				if err != nil {
					t.Fatalf("read at %d: %v", offset, err)
				}
				if err := codec.CheckDelivered(b); err != nil {
					t.Fatalf("read at %d: batch at %d: %v", offset, b.BaseOffset(), err)
				}
				c.batches[b.BaseOffset()] = bytes.Clone(b)
				c.order = append(c.order, b.BaseOffset())
				rest = more
			}
		}
		if next <= offset {
			t.Fatalf("read at %d goes on at %d: %+v", offset, next, r)
		}
		offset = next
	}
	return c
}

// checkContents compares what is in a log with what must and what may be there. Batches below from may be gone.
func checkContents(t testing.TB, l *Log, appended map[codec.Offset][]byte, from, confirmed codec.Offset) {
	t.Helper()
	c := readAll(t, l)
	last := codec.Offset(-1)
	for _, base := range c.order {
		if base <= last {
			t.Fatalf("offset %d after %d", base, last)
		}
		last = base
		want, ok := appended[base]
		if !ok {
			t.Fatalf("a batch at %d that nobody appended", base)
		}
		if !bytes.Equal(want, c.batches[base]) {
			t.Fatalf("the batch at %d is not what was appended", base)
		}
	}
	for base := range appended {
		if base >= from && base < confirmed && c.batches[base] == nil {
			t.Fatalf("the batch at %d was confirmed (all below %d were) and is gone; start %d, next %d", base, confirmed, l.Start(), l.Next())
		}
	}
	for _, err := range c.errs {
		var gap *GapError
		if !errors.As(err, &gap) || !gap.Declared {
			t.Fatalf("the log has damage: %v", err)
		}
	}
}
