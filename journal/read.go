package journal

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// Readers is the bounded pool of goroutines that read what is not in memory any more, for all logs of a broker, and the bounded set of
// files that they keep open. Make one with NewReaders.
type Readers struct {
	jobs chan readJob
	wg   sync.WaitGroup

	mu    sync.Mutex
	open  map[*segment]*openFile
	lru   list.List // of *openFile that nobody uses, the longest unused first
	limit int
}

type readJob interface{ serve(w *readWorker) }

// openFile is a segment that is open for reading. Fields are under Readers.mu but for file and err, which are set before ready is
// closed.
type openFile struct {
	log   *Log
	seg   *segment
	users int
	elem  *list.Element // in lru, if users is 0
	gone  bool          // close it when the last user is done
	ready chan struct{}
	file  vfs.File
	err   error
}

// readWorker is what one goroutine of the pool owns.
type readWorker struct {
	r *Readers
	// The last group that did not fit a caller's buffer: whoever reads on needs the rest of it.
	scratch []byte
	seg     *segment
	group   Group
}

const (
	readQueue   = 1024 // reads that may wait
	readFiles   = 64   // files kept open
	readWorkers = 4
	readAhead   = 256 << 10
)

// NewReaders starts a pool of so many goroutines (0: 4) that keeps at most so many files open (0: 64). Close stops them.
func NewReaders(workers, files int) *Readers {
	if workers <= 0 {
		workers = readWorkers
	}
	if files <= 0 {
		files = readFiles
	}
	r := &Readers{jobs: make(chan readJob, readQueue), open: map[*segment]*openFile{}, limit: files}
	r.lru.Init()
	r.wg.Add(workers)
	for range workers {
		go r.run()
	}
	return r
}

// Close serves what is queued, stops the goroutines and closes the files. Nothing may be read after that.
func (r *Readers) Close() {
	close(r.jobs)
	r.wg.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.open {
		if o.file != nil {
			_ = o.file.Close() // it was only read
		}
	}
	clear(r.open)
	r.lru.Init()
}

func (r *Readers) run() {
	defer r.wg.Done()
	w := &readWorker{r: r}
	for j := range r.jobs {
		j.serve(w)
	}
}

// Read asks for batches from an offset on. Its fields are the caller's until Log.Read returned nil, then the pool's until Done is
// called. A Read that is used again for what follows finds its place faster.
type Read struct {
	Offset codec.Offset // of the first record that is wanted
	Limit  codec.Offset // batches that begin here or above are not wanted; 0: no limit
	Buf    []byte       // where the bytes go
	Done   func(*Read)  // called from a goroutine of the pool

	// Data is a part of Buf: whole batches, one behind the other, every one of them verified. The first one holds Offset and may begin
	// below it. It is empty with an Err, or at the end of what can be read.
	Data []byte
	Next codec.Offset // where to read on
	Time int64        // append time of the first batch, milliseconds since the Unix epoch
	// Err is a *RangeError, *GapError, *CorruptionError or *ShortBufferError, ErrClosed, or that of the file system. With a gap or
	// corruption, reading can go on at their Next.
	Err error

	log    *Log
	hint   *segment // the group at hintAt begins with the offset hintOf
	hintAt Position
	hintOf codec.Offset
}

// Read queues a read. It returns ErrBusy if the queue is full; r is then still the caller's.
func (l *Log) Read(r *Read) error {
	if l.opts.Readers == nil {
		return errors.New("journal: read: no Readers given")
	}
	r.log = l
	select {
	case l.opts.Readers.jobs <- r:
		return nil
	default:
		return ErrBusy
	}
}

func (r *Read) serve(w *readWorker) {
	r.Data, r.Time, r.Err, r.Next = nil, 0, nil, r.Offset
	r.Err = r.log.read(r, w)
	if r.Err != nil {
		r.Data = nil
	}
	r.Done(r)
}

// span is where to read in one segment.
type span struct {
	seg     *segment
	pos     Position // of a group at or below the offset
	base    codec.Offset
	exact   bool         // pos is that of the group with base
	written Position     // sound groups end here
	end     codec.Offset // of the records of the segment that may be read
	after   codec.Offset // where the next segment begins
	indexed bool
}

// find locates an offset. A nil segment and no error: there is nothing to read yet.
func (l *Log) find(offset, limit codec.Offset, hint *segment, hintAt Position, hintOf codec.Offset) (span, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateClosed {
		return span{}, ErrClosed
	}
	if offset < l.start || offset > l.next {
		return span{}, &RangeError{Offset: offset, Start: l.start, Next: l.next}
	}
	end := l.written
	if limit > 0 {
		end = min(end, limit)
	}
	if offset >= end {
		return span{}, nil
	}
	i := len(l.segments) - 1
	for i > 0 && l.segments[i].base > offset {
		i--
	}
	if i < 0 {
		return span{}, nil
	}
	seg := l.segments[i]
	after := l.next
	declared := false
	if i+1 < len(l.segments) {
		after = l.segments[i+1].base
		declared = l.segments[i+1].header.GapFrom <= seg.next
	}
	if offset >= seg.next {
		if seg.lost != nil {
			e := *seg.lost
			e.Offset = offset
			return span{}, &e
		}
		return span{}, &GapError{From: offset, Next: after, Declared: declared}
	}
	sp := span{
		seg: seg, written: seg.written, end: min(end, seg.next), after: after,
		indexed: seg.index != nil || !seg.sealed,
	}
	if hint == seg && hintOf <= offset {
		sp.pos, sp.base, sp.exact = hintAt, hintOf, true
	} else {
		sp.pos, sp.base, sp.exact = lookup(seg.index, offset, seg.first)
	}
	return sp, nil
}

func (l *Log) read(r *Read, w *readWorker) error {
	sp, err := l.find(r.Offset, r.Limit, r.hint, r.hintAt, r.hintOf)
	if err != nil || sp.seg == nil {
		return err
	}
	o, err := w.r.acquire(l, sp.seg)
	if err != nil {
		return l.gone(r.Offset, err)
	}
	defer w.r.release(o)
	if !sp.indexed {
		if err := l.index(sp.seg, o.file); err != nil {
			return l.gone(r.Offset, err)
		}
		if sp, err = l.find(r.Offset, r.Limit, r.hint, r.hintAt, r.hintOf); err != nil || sp.seg == nil {
			return err
		}
		if sp.seg != o.seg {
			return ErrBusy // it was trimmed in between; the next try finds what is there now
		}
	}
	err = w.fill(r, o.file, sp)
	if errors.Is(err, ErrCorrupt) {
		l.count(&l.m.corruptReads)
	}
	return err
}

// gone turns an error about a segment that has been trimmed meanwhile into what it means.
func (l *Log) gone(offset codec.Offset, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if offset < l.start {
		return &RangeError{Offset: offset, Start: l.start, Next: l.next}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read segment: %w", err)
	}
	return err
}

// index brings the index of a sealed segment into memory.
func (l *Log) index(seg *segment, f vfs.File) error {
	l.mu.Lock()
	have, written, next := seg.index != nil || !seg.sealed, seg.written, seg.next
	l.mu.Unlock()
	if have {
		return nil
	}
	index, rebuilt, err := l.loadIndex(seg, f, written, next)
	if err != nil {
		return err
	}
	if rebuilt {
		fresh := &segment{base: seg.base, header: seg.header, index: index, next: next, written: written}
		if l.writeIndex(fresh, encodeIndex(fresh)) != nil {
			l.count(&l.m.indexErrors)
		}
		l.count(&l.m.indexesRebuilt)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == nil {
		index = []indexEntry{}
	}
	seg.index = index
	return nil
}

// acquire opens a segment's file, or takes the one that is open.
func (r *Readers) acquire(l *Log, seg *segment) (*openFile, error) {
	r.mu.Lock()
	if seg.dropped {
		r.mu.Unlock()
		return nil, fs.ErrNotExist
	}
	o := r.open[seg]
	if o == nil {
		o = &openFile{log: l, seg: seg, ready: make(chan struct{})}
		r.open[seg] = o
		o.users++
		r.mu.Unlock()
		// Whoever removes the segment from here on sees a user, so the file cannot become another segment's under our hands.
		o.file, o.err = l.openForReading(seg)
		close(o.ready)
	} else {
		o.users++
		if o.elem != nil {
			r.lru.Remove(o.elem)
			o.elem = nil
		}
		r.mu.Unlock()
		<-o.ready
	}
	if o.err != nil {
		err := o.err
		r.mu.Lock()
		o.gone = true
		r.mu.Unlock()
		r.release(o)
		return nil, err
	}
	return o, nil
}

// openForReading opens a segment's file, which may be getting its name at this moment.
func (l *Log) openForReading(seg *segment) (vfs.File, error) {
	l.mu.Lock()
	from := seg.from
	l.mu.Unlock()
	if from != "" {
		if f, err := l.fsys.OpenRead(from); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return l.fsys.OpenRead(seg.path)
}

func (r *Readers) release(o *openFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o.users--
	if o.users > 0 {
		return
	}
	if o.gone {
		r.forget(o)
		return
	}
	o.elem = r.lru.PushBack(o)
	for len(r.open) > r.limit && r.lru.Len() > 0 {
		r.forget(r.lru.Front().Value.(*openFile))
	}
}

// forget closes a file that nobody uses. The caller holds mu.
func (r *Readers) forget(o *openFile) {
	if o.elem != nil {
		r.lru.Remove(o.elem)
		o.elem = nil
	}
	if r.open[o.seg] == o {
		delete(r.open, o.seg)
	}
	if o.file != nil {
		_ = o.file.Close() // it was only read
	}
	// The index goes with the file, so that memory is bounded by the number of open files.
	go o.log.dropIndex(o.seg)
}

func (l *Log) dropIndex(seg *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seg.sealed {
		seg.index = nil
	}
}

// drop forgets a segment that is being removed. It returns false if somebody is reading it, else nobody will: a reader may have
// found the segment before it was trimmed and not have come to open it yet.
func (r *Readers) drop(seg *segment) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.open[seg]
	if o != nil && o.users > 0 {
		o.gone = true
		return false
	}
	if o != nil {
		r.forget(o)
	}
	seg.dropped = true
	return true
}

// fill reads groups into r.Buf, verifies them, and moves their batches together.
//
// The bytes of groups are read to where their batches are to lie, so that the first group's need not move at all, and each other
// group's move down by the headers before them.
func (w *readWorker) fill(r *Read, f vfs.File, sp span) error {
	pos, from, to := sp.pos, 0, 0 // r.Buf[from:to] is what the caller gets
	base, exact := sp.base, sp.exact
	if !exact {
		base = sp.seg.base
	}
	whole := false // a group does not fit what is read ahead while skipping
	for pos < sp.written && base < sp.end {
		room := r.Buf[to:]
		want := int(min(Position(len(room)), sp.written-pos))
		if to == 0 && r.Offset > base && !whole {
			want = min(want, readAhead) // what lies before the offset is skipped
		}
		n, err := f.ReadAt(room[:want], int64(pos))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		raw := room[:n]
		at := 0
		progress := false
		for at+groupHeaderBytes <= len(raw) && base < sp.end {
			g, ok := decodeGroup(raw[at:], pos, sp.seg.header.Salt)
			if !ok || g.Base < base || g.Base > base && exact {
				if to > 0 {
					return w.finish(r, sp, pos, base, from, to)
				}
				return w.lost(r, f, sp, pos)
			}
			base, exact = g.Base, true
			if g.Next <= r.Offset || g.Kind != KindData {
				if g.Kind == KindGap && g.Next > r.Offset {
					if to > 0 {
						return w.finish(r, sp, pos, base, from, to)
					}
					return &GapError{From: r.Offset, Next: g.Next, Declared: true}
				}
				// Skipped groups are not verified: nothing of them is delivered.
				at += int(g.End() - pos)
				pos, base = g.End(), g.Next
				progress = true
				continue
			}
			if at+groupHeaderBytes+g.Body > len(raw) {
				break
			}
			body := raw[at+groupHeaderBytes:][:g.Body]
			first, size, next, bad := verify(&g, body, r.Offset, sp.end, len(body))
			if size > 0 {
				if to == 0 {
					from = at + groupHeaderBytes + first
					to = from + size
					r.Time = g.Time
				} else {
					to += copy(r.Buf[to:], body[first:first+size])
				}
				r.Next = next
			}
			if bad != nil {
				if size > 0 || to > 0 {
					return w.finish(r, sp, pos, base, from, to)
				}
				return corrupt(sp, &g, bad, r.Offset)
			}
			at += int(g.End() - pos)
			pos, base = g.End(), g.Next
			progress = true
			if r.Next < g.Next {
				return w.finish(r, sp, g.Position, g.Base, from, to) // the limit lies inside of the group
			}
		}
		switch {
		case to > 0 && (!progress || len(r.Buf)-to < groupHeaderBytes+codec.BatchHeaderBytes):
			return w.finish(r, sp, pos, base, from, to)
		case !progress && want < len(room) && Position(want) < sp.written-pos:
			whole = true
		case !progress:
			return w.large(r, f, sp, pos)
		}
	}
	if to == 0 {
		return w.lost(r, f, sp, pos)
	}
	return w.finish(r, sp, pos, base, from, to)
}

// finish hands out what is in the buffer. Reading goes on at the group at pos, which begins with the offset base.
func (w *readWorker) finish(r *Read, sp span, pos Position, base codec.Offset, from, to int) error {
	r.Data = r.Buf[from:to:to]
	r.hint, r.hintAt, r.hintOf = sp.seg, pos, base
	return nil
}

// verify checks what is wanted of a group's body: from the batch that holds offset up to the limit end, at most budget bytes. It
// returns where in the body that lies, and the offset behind it. What comes before damage is still good. A bad without a reason says
// that the first batch, of bad.after bytes, is above the budget.
func verify(g *Group, body []byte, offset, end codec.Offset, budget int) (first, size int, next codec.Offset, bad *batchError) {
	crc, ok := prefixCRC(body, g)
	if !ok || crc != g.BodyCRC {
		return 0, 0, g.Base, &batchError{offset: offset, next: g.Next, reason: "the prefixes of a group's batches are damaged"}
	}
	at := 0
	next = g.Base
	for rest := body; len(rest) > 0; {
		b, r, _ := codec.NextBatch(rest)
		base, behind := b.BaseOffset(), g.Next
		if len(r) > 0 {
			behind = codec.Batch(r).BaseOffset()
		}
		switch {
		case behind <= offset:
			first = at + len(b)
		case base >= end || size+len(b) > budget && size > 0:
			return first, size, next, nil
		case size+len(b) > budget:
			return first, 0, next, &batchError{after: len(b)}
		case checksum(b[prefixBytes+4:]) != b.CRC() || b.NextOffset() != behind:
			return first, size, next, &batchError{at: at, offset: max(base, offset), next: behind, reason: "a batch is damaged"}
		default:
			size += len(b)
		}
		next = behind
		at += len(b)
		rest = r
	}
	return first, size, next, nil
}

func corrupt(sp span, g *Group, bad *batchError, offset codec.Offset) error {
	return &CorruptionError{
		Path: sp.seg.path, Position: g.Position + groupHeaderBytes + Position(bad.at), Offset: max(offset, bad.offset), Next: bad.next,
		Reason: bad.reason,
	}
}

// lost is called when there is no sound group at pos. It goes on behind the damage if the offset lies there.
func (w *readWorker) lost(r *Read, f vfs.File, sp span, pos Position) error {
	s := newScanner(f, sp.seg.header.Salt, sp.written)
	g, ok, err := s.resync(pos+groupAlign, false, sp.base)
	switch {
	case err != nil:
		return err
	case ok && g.Base <= r.Offset:
		sp.pos, sp.base, sp.exact = g.Position, g.Base, true
		return w.fill(r, f, sp)
	}
	next := sp.after
	if ok {
		next = g.Base
	}
	return &CorruptionError{Path: sp.seg.path, Position: pos, Offset: r.Offset, Next: next, Reason: "no sound group is where one must be"}
}

// large reads a group that does not fit the caller's buffer into memory of the worker's, and hands out what does fit.
func (w *readWorker) large(r *Read, f vfs.File, sp span, pos Position) error {
	if w.seg != sp.seg || w.group.Position != pos {
		w.seg = nil
		var header [groupHeaderBytes]byte
		if _, err := f.ReadAt(header[:], int64(pos)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		g, ok := decodeGroup(header[:], pos, sp.seg.header.Salt)
		if !ok || g.Kind != KindData || g.End() > sp.written || g.Base > r.Offset || g.Next <= r.Offset {
			return w.lost(r, f, sp, pos)
		}
		if cap(w.scratch) < g.Body {
			w.scratch = make([]byte, g.Body)
		}
		w.scratch = w.scratch[:g.Body]
		if _, err := f.ReadAt(w.scratch, int64(pos+groupHeaderBytes)); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		w.seg, w.group = sp.seg, g
	}
	g := &w.group
	first, size, next, bad := verify(g, w.scratch, r.Offset, sp.end, len(r.Buf))
	if bad != nil && size == 0 {
		w.seg = nil
		if bad.reason == "" {
			return &ShortBufferError{Need: bad.after}
		}
		return corrupt(sp, g, bad, r.Offset)
	}
	copy(r.Buf, w.scratch[first:first+size])
	r.Next, r.Time = next, g.Time
	at, of := g.Position, g.Base
	if next == g.Next {
		at, of = g.End(), g.Next
	}
	return w.finish(r, sp, at, of, 0, size)
}

// Lookup asks for the first batch whose time is at least Time.
type Lookup struct {
	Time   int64 // milliseconds since the Unix epoch
	Record bool  // by record time instead of append time
	Done   func(*Lookup)

	// Offset is that of the batch's first record; where there is none, Found is false and Offset is where the log ends.
	Offset codec.Offset
	Found  bool
	Err    error

	log *Log
}

// Lookup queues a lookup. It returns ErrBusy if the queue is full.
//
// Times may go back from batch to batch: what is found is the first in the order of offsets. The record time of a batch is the larger of
// its base and its maximum timestamp, or its append time where a client left both unset.
func (l *Log) Lookup(q *Lookup) error {
	if l.opts.Readers == nil {
		return errors.New("journal: lookup: no Readers given")
	}
	q.log = l
	select {
	case l.opts.Readers.jobs <- q:
		return nil
	default:
		return ErrBusy
	}
}

func (q *Lookup) serve(w *readWorker) {
	q.Offset, q.Found, q.Err = q.log.lookup(q, w)
	q.Done(q)
}

func (l *Log) lookup(q *Lookup, w *readWorker) (codec.Offset, bool, error) {
	for from := codec.Offset(0); ; {
		seg, end, err := l.findTime(q, from)
		if seg == nil {
			return end, false, err
		}
		offset, found, err := l.lookupIn(q, w, seg)
		if err != nil || found {
			return offset, found, err
		}
		from = seg.base + 1 // trimmed meanwhile, or what its counts promised is damaged
	}
}

// findTime returns the first segment at or above an offset that holds a large enough time, nil with the end of the log if there is none.
func (l *Log) findTime(q *Lookup, from codec.Offset) (*segment, codec.Offset, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == stateClosed {
		return nil, 0, ErrClosed
	}
	for _, seg := range l.segments {
		t := seg.stats.MaxTime
		if q.Record {
			t = seg.stats.MaxRecord
		}
		if seg.base >= from && seg.stats.Groups > 0 && t >= q.Time {
			return seg, 0, nil
		}
	}
	return nil, l.written, nil
}

func (l *Log) lookupIn(q *Lookup, w *readWorker, seg *segment) (offset codec.Offset, found bool, err error) {
	o, err := w.r.acquire(l, seg)
	if err != nil {
		if l.trimmed(seg) {
			return 0, false, nil
		}
		return 0, false, err
	}
	defer w.r.release(o)
	if err := l.index(seg, o.file); err != nil {
		return 0, false, err
	}
	l.mu.Lock()
	pos, base := seg.first, seg.base
	if len(seg.index) > 0 {
		e := seg.index[lookupTime(seg.index, q.Time, q.Record)]
		pos, base = e.position, e.offset
	}
	written, next := seg.written, seg.next
	l.mu.Unlock()
	s := newScanner(o.file, seg.header.Salt, written)
	wk := walker{group: func(g *Group) error {
		if found {
			return errStop
		}
		if !q.Record && g.Kind == KindData && g.Time >= q.Time {
			offset, found = g.Base, true
		}
		return nil
	}}
	if q.Record {
		wk.batch = func(g *Group, b codec.Batch) {
			if !found && recordTime(b, g.Time) >= q.Time {
				offset, found = b.BaseOffset(), true
			}
		}
	}
	if _, _, err := s.walk(pos, base, 0, next, wk); err != nil && !errors.Is(err, errStop) {
		return 0, false, err
	}
	return offset, found, nil
}

func (l *Log) trimmed(seg *segment) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return seg.limit() <= l.start
}

// MaxRecordTime is the largest record time of the log, 0 if it is empty.
func (l *Log) MaxRecordTime() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := int64(0)
	for _, seg := range l.segments {
		t = max(t, seg.stats.MaxRecord)
	}
	return t
}
