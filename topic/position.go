package topic

import "github.com/lightio/lightq/codec"

// A position is where reading stands in a partition: at a record, which memory holds or, where the topic is stored in files, the
// files alone.
type position struct {
	seq  uint64       // of the next entry in the ring, where the ring holds it
	next codec.Offset // of the next record
	cold *cold        // what was read of the files; nil where nothing ever was
}

// A reader is what stands at a position: a *Cursor or a *group.
type reader interface{ place() *position }

func (p *position) place() *position { return p }

// A cold holds what was read from the files for one position and is not handed out yet.
type cold struct {
	entries fifo[entry] // with a reference each
	bytes   int
	gap     codec.Gap    // before the first of entries; there is none then, for a gap ends a read
	next    codec.Offset // where to read on
	reading bool
	failed  bool // the last read did: the next tick tries again
	need    int  // bytes of the batch that is next, where it did not fit
	read    *coldRead
}

const (
	// coldBytes is what is read at a time: 1 MiB keeps a disk and a connection busy at once, together with what is read ahead.
	coldBytes = 1 << 20
	// coldLow is how little may be left when the next read begins.
	coldLow = 512 << 10
)

func (d *cold) len() int {
	if d == nil {
		return 0
	}
	return d.entries.len()
}

func (d *cold) pop() entry {
	e := d.entries.pop()
	d.bytes -= len(e.bytes)
	return e
}

func (d *cold) takeGap() (g codec.Gap) {
	if d != nil && d.entries.len() == 0 {
		g, d.gap = d.gap, codec.Gap{}
	}
	return g
}

// floor is the first offset that memory holds.
func (c *core) floor() codec.Offset {
	if c.ring.len() == 0 {
		return c.next
	}
	return c.ring.at(c.ring.first).base
}

// behind reports whether the position is at a record that only the files hold. Where it is not, it finds its place in the ring
// and lets go of what it has of the files.
func (c *core) behind(p *position) bool {
	if !c.filed {
		return false
	}
	if p.next < c.floor() && p.next < c.high {
		return true
	}
	if p.cold != nil && !p.cold.reading {
		c.dropCold(p)
		p.seq = c.ring.find(p.next)
	}
	if p.seq < c.ring.first || p.seq > c.ring.end {
		p.seq = c.ring.find(p.next)
	}
	return false
}

// readAhead asks for what is next in the files, if that is not under way and little is left.
func (c *core) readAhead(r reader, p *position) {
	d := p.cold
	if d == nil {
		d = &cold{next: p.next}
		p.cold = d
	}
	if d.reading || d.failed || d.gap.Next != 0 || d.bytes >= coldLow {
		return
	}
	if d.entries.len() == 0 {
		d.next = p.next
	}
	if d.next >= c.high || d.next >= c.floor() {
		return
	}
	d.reading = true
	c.out.reads = append(c.out.reads, r)
}

// coldRead is the event that a read has ended: with entries, a gap, neither (nothing is there yet), or failed.
func (c *core) coldRead(r reader, d *cold, entries []entry, gap codec.Gap, failed bool) {
	p := r.place()
	if p.cold != d { // nobody waits for it any more
		for _, e := range entries {
			c.out.free = append(c.out.free, e.slab)
		}
		return
	}
	d.reading = false
	d.failed = failed || len(entries) == 0 && gap.Next == 0
	for _, e := range entries {
		if e.next <= p.next { // the position has moved: a purge
			c.out.free = append(c.out.free, e.slab)
			continue
		}
		d.entries.push(e)
		d.bytes += len(e.bytes)
		d.next = e.next
	}
	if gap.Next > p.next {
		d.gap = gap
		d.next = gap.Next
	}
	if d.failed {
		c.troubled = append(c.troubled, r)
		return
	}
	c.wakeReader(r)
}

// coldMoved is the event that a read has found its place gone: retention or a purge has moved start.
func (c *core) coldMoved(r reader, d *cold) {
	if r.place().cold == d {
		d.reading = false
		c.wakeReader(r)
	}
}

// wakeReader tells a reader that there may be something for it.
func (c *core) wakeReader(r reader) {
	switch v := r.(type) {
	case *Cursor:
		if v.waiting {
			v.waiting = false
			c.waiting = remove(c.waiting, v)
			c.out.wake = append(c.out.wake, v)
		}
	case *group:
		c.share(v)
	}
}

// retryReads lets those read again whose last read failed.
func (c *core) retryReads() {
	list := c.troubled
	c.troubled = nil
	for _, r := range list {
		p := r.place()
		if p.cold == nil {
			continue
		}
		p.cold.failed = false
		if _, ok := r.(*Cursor); ok { // a group reads when it shares
			c.readAhead(r, p)
		}
		c.wakeReader(r)
	}
}

// dropCold lets go of what a position has read of the files. A read under way ends in nothing.
func (c *core) dropCold(p *position) {
	if p.cold == nil {
		return
	}
	for p.cold.entries.len() > 0 {
		c.out.free = append(c.out.free, p.cold.entries.pop().slab)
	}
	p.cold = nil
}
