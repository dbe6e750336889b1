package topic

import (
	"fmt"
	"sync"
	"testing"

	"github.com/lightio/lightq/codec"
)

// testMillis is where the clock of tests begins: a time of today, as groups that nobody has left yet call for.
const testMillis = 1_700_000_000_000

// smallestBatch is the size of a batch of one record without a value.
const smallestBatch = codec.BatchHeaderBytes + 7

// sealedBatch appends to dst a valid batch of records records and size bytes, or up to two more (a varint may grow), whose
// base timestamp is id.
func sealedBatch(dst []byte, id int64, records, size int) []byte {
	var w codec.BatchBuilder
	w.Reset(dst, codec.MaxSlabBytes)
	for range records - 1 {
		w.AddValue(id, nil)
	}
	for n := max(0, size-w.Size()-16); ; n++ { // 16: more than a record takes beside its value
		last := w
		last.AddValue(id, make([]byte, n))
		if last.Size() >= size {
			return last.Finish(codec.NoProducer)
		}
	}
}

// batchID is the id that sealedBatch was given.
func batchID(b []byte) int64 { return codec.Batch(b).BaseTimestamp() }

// spoil makes a batch invalid: its checksum is wrong.
func spoil(b codec.Batch) { b[len(b)-1] ^= 0xff }

// published puts batches into one slab, as a publish frame does, with a reference for each.
func published(pool *codec.SlabPool, first uint64, batches ...[]byte) []Published {
	n := 0
	for _, b := range batches {
		n += len(b)
	}
	slab := pool.Get(n)
	rest := slab.Bytes()[:0]
	list := make([]Published, len(batches))
	for i, b := range batches {
		at := len(rest)
		rest = append(rest, b...)
		list[i] = Published{Number: first + uint64(i), Batch: codec.Batch(rest[at:len(rest):len(rest)]), Slab: slab}
	}
	slab.RetainN(len(batches) - 1)
	return list
}

// checkTaken fails the test if the batches are damaged, as those in a slab that was released too early are.
func checkTaken(t testing.TB, taken []TakenBatch) {
	t.Helper()
	for _, b := range taken {
		if err := codec.CheckDelivered(codec.Batch(b.Bytes)); err != nil {
			t.Fatalf("a batch that was taken is damaged: %v", err)
		}
	}
}

func releaseTaken(taken []TakenBatch) {
	for _, b := range taken {
		b.Slab.Release()
	}
}

// recordSink is the sink of tests that run on one goroutine: it keeps everything in order.
type recordSink struct {
	results []Result
	woken   []*Cursor
	flushes int
}

func (s *recordSink) Confirmed(results []Result) { s.results = append(s.results, results...) }
func (s *recordSink) Wake(cur *Cursor)           { s.woken = append(s.woken, cur) }
func (s *recordSink) Flush()                     { s.flushes++ }

// reset forgets what was kept.
func (s *recordSink) reset() { s.results, s.woken, s.flushes = nil, nil, 0 }

// eventSink is the sink of tests with many goroutines. It checks the order of results, counts them, and wakes whoever waits
// on the Tag of a publisher (a *publisherEvents) or of a cursor (a chan struct{} of capacity 1).
type eventSink struct {
	mu      sync.Mutex
	faults  []string
	flushes int
}

// publisherEvents is what has become of a publisher's batches.
type publisherEvents struct {
	wake chan struct{} // capacity 1: something has changed

	// guarded by the sink's mu
	epoch   uint32
	due     uint64 // number of the next result in epoch
	count   int    // results
	refused codec.Code
	offset  codec.Offset // of the last confirmed batch
}

func newPublisherEvents() *publisherEvents {
	return &publisherEvents{wake: make(chan struct{}, 1), offset: -1}
}

func (s *eventSink) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

func (s *eventSink) Confirmed(results []Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range results {
		p := r.Publisher.Tag.(*publisherEvents)
		if r.Epoch != p.epoch {
			if r.Epoch < p.epoch {
				s.fault("a result of epoch %d came behind one of epoch %d", r.Epoch, p.epoch)
			}
			p.epoch, p.due, p.refused = r.Epoch, 0, codec.CodeNone
		}
		switch {
		case r.Number != p.due:
			s.fault("the result of batch %d came, that of batch %d was due", r.Number, p.due)
		case r.Code != codec.CodeNone:
			if p.refused == codec.CodeNone || r.Code == codec.CodeTopicDeleted {
				p.refused = r.Code
			} else if r.Code != codec.CodeStaleEpoch {
				s.fault("batch %d was refused with %s behind one refused with %s", r.Number, r.Code.String(), p.refused.String())
			}
		case p.refused != codec.CodeNone:
			s.fault("batch %d was confirmed behind one refused with %s", r.Number, p.refused.String())
		case r.Base <= p.offset:
			s.fault("batch %d is at offset %d, the one before it is at %d", r.Number, r.Base, p.offset)
		default:
			p.offset = r.Base
		}
		p.due = r.Number + 1
		p.count++
		signal(p.wake)
	}
}

func (s *eventSink) Wake(cur *Cursor) { signal(cur.Tag.(chan struct{})) }

func (s *eventSink) Flush() {
	s.mu.Lock()
	s.flushes++
	s.mu.Unlock()
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// state returns how many results have come for a publisher, and what the first refusal in its latest epoch was.
func (s *eventSink) state(p *publisherEvents) (count int, refused codec.Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.count, p.refused
}

// check fails the test with what the sink has seen go wrong.
func (s *eventSink) check(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults[:min(len(s.faults), 10)] {
		t.Error(f)
	}
}

// memoryTopic makes a topic that is not in a registry, with settings as they are.
func memoryTopic(name string, s codec.TopicSettings) *Topic {
	t := &Topic{name: name}
	if err := t.begin(s); err != nil {
		panic(err) // only files can fail
	}
	return t
}
