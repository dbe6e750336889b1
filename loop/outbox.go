package loop

import (
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// An outbox is what waits to leave on one connection, in order: control frames, written into small slabs here, and the
// bytes of batches, which stay where they are. What Writev does not take stays as a cursor; no byte is copied.
type outbox struct {
	segs []segment // segs[head:] wait
	head int
	off  int // bytes of segs[head] that have left

	bytes   int // waiting, all
	control int // waiting, of control frames
	blocked bool

	ctl  *codec.Slab // the slab that control frames are being written into; nil when nothing waits
	used int
}

// A segment is a piece of memory and, unless slab is nil, a reference to its slab.
type segment struct {
	b       []byte
	slab    *codec.Slab
	control bool
}

// maxIOV is the most pieces that one writev takes on Linux and macOS.
const maxIOV = 1024

func (o *outbox) empty() bool { return o.bytes == 0 }

// frame returns an empty slice to append one control frame to, which commit then takes.
func (o *outbox) frame(pool *codec.SlabPool) []byte {
	const room = 512 // most control frames fit; longer ones move to memory of their own by append
	if o.ctl != nil && len(o.ctl.Bytes())-o.used < room {
		o.ctl.Release()
		o.ctl = nil
	}
	if o.ctl == nil {
		o.ctl, o.used = pool.Get(codec.MinSlabBytes), 0
	}
	return o.ctl.Bytes()[o.used:o.used]
}

// commit queues the frame that was appended to what frame returned.
func (o *outbox) commit(b []byte) {
	o.bytes += len(b)
	o.control += len(b)
	if cap(b) != len(o.ctl.Bytes())-o.used { // it outgrew the slab
		o.segs = append(o.segs, segment{b: b, control: true})
		return
	}
	o.used += len(b)
	if n := len(o.segs); n > o.head {
		if last := &o.segs[n-1]; last.control && last.slab == o.ctl {
			last.b = last.b[:len(last.b)+len(b)] // right behind the previous control frame
			return
		}
	}
	o.ctl.Retain()
	o.segs = append(o.segs, segment{b: b, slab: o.ctl, control: true})
}

// data queues a batch with one reference to its slab. Batches that lie one behind the other become one piece.
func (o *outbox) data(b []byte, slab *codec.Slab) {
	o.bytes += len(b)
	if n := len(o.segs); n > o.head {
		last := &o.segs[n-1]
		if last.slab == slab && !last.control && adjacent(last.b, b) {
			last.b = last.b[:len(last.b)+len(b)]
			slab.Release()
			return
		}
	}
	o.segs = append(o.segs, segment{b: b, slab: slab})
}

// batches queues what was taken, with its references.
func (o *outbox) batches(t *topic.Taken) {
	for i := range t.Batches {
		o.data(t.Batches[i].Bytes, t.Batches[i].Slab)
		t.Batches[i] = topic.TakenBatch{}
	}
}

// adjacent reports whether b begins where a ends in the same slab.
func adjacent(a, b []byte) bool {
	return len(b) > 0 && cap(a) >= len(a)+len(b) && &a[:len(a)+1][len(a)] == &b[0]
}

// iov appends up to maxIOV waiting pieces to dst.
func (o *outbox) iov(dst [][]byte) [][]byte {
	off := o.off
	for i := o.head; i < len(o.segs) && len(dst) < maxIOV; i++ {
		dst = append(dst, o.segs[i].b[off:])
		off = 0
	}
	return dst
}

// sent takes n bytes off the front and drops the references of what has left whole.
func (o *outbox) sent(n int) {
	o.bytes -= n
	for n > 0 {
		s := &o.segs[o.head]
		left := len(s.b) - o.off
		if n < left {
			o.off += n
			if s.control {
				o.control -= n
			}
			return
		}
		n -= left
		if s.control {
			o.control -= left
		}
		if s.slab != nil {
			s.slab.Release()
		}
		*s = segment{}
		o.head++
		o.off = 0
	}
	if o.head == len(o.segs) {
		o.reset()
	} else if o.head >= 1024 { // under steady load the queue never empties: move it to the front now and then
		n := copy(o.segs, o.segs[o.head:])
		clear(o.segs[n:])
		o.segs, o.head = o.segs[:n], 0
	}
}

// reset forgets the memory that an idle connection does not need.
func (o *outbox) reset() {
	o.segs, o.head = o.segs[:0], 0
	if cap(o.segs) > 64 {
		o.segs = nil
	}
	if o.ctl != nil {
		o.ctl.Release()
		o.ctl = nil
	}
}

// drop releases everything; the connection is gone.
func (o *outbox) drop() {
	for _, s := range o.segs[o.head:] {
		if s.slab != nil {
			s.slab.Release()
		}
	}
	if o.ctl != nil {
		o.ctl.Release()
	}
	*o = outbox{}
}
