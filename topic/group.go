package topic

import (
	"cmp"
	"slices"

	"github.com/lightio/lightq/codec"
)

const (
	// maxGroups bounds the groups of one partition.
	maxGroups = 1024
	// groupGraceMillis is how long a group's backlog is protected after its last member has left: a deploy.
	groupGraceMillis = 60_000
	// groupForgetMillis is how long a group's position is kept after its last member has left: a day, so that a nightly job
	// finds it. Names made up for one run would pile up otherwise.
	groupForgetMillis = 24 * 60 * 60 * 1000
)

// A group shares a partition's batches among its members: each batch goes whole to one member that has credit, in turn.
type group struct {
	name string
	position
	members []*Cursor
	turn    int // index of the member whose turn it is

	// gaps are to be told, one with each batch given out. There are never more than there were entries in returned, and
	// one: those that adjoin become one.
	gaps fifo[codec.Gap]

	// returned holds what members were given and have left behind, highest offset first, so that the next one is taken off
	// the end. Members' credit bounds it.
	returned []assigned

	progressMillis int64 // when an entry was last given out, or the first member came
	leftMillis     int64 // when the last member left
	unprotected    bool  // its members stalled and were cut off: there is no grace
}

// attached reports whether the group's backlog is protected.
func (g *group) attached(now int64) bool {
	return len(g.members) > 0 || !g.unprotected && now-g.leftMillis < groupGraceMillis
}

// assigned is a batch given to a member and not yet taken by its session, with a reference of its own.
type assigned struct {
	entry
	gap codec.Gap // before the batch
}

func (c *core) group(name string) *group {
	for _, g := range c.groups {
		if g.name == name {
			return g
		}
	}
	return nil
}

// join adds a member to a group, which begins at from if it is new. It returns the group's position.
func (c *core) join(cur *Cursor, name string, from codec.Offset) (codec.Offset, error) {
	g := c.group(name)
	if g == nil {
		if len(c.groups) >= maxGroups && !c.forgetOldest() {
			return 0, codec.Errorf(codec.CodeTooManyHandles, "the partition has %d groups in use, which is the limit", maxGroups)
		}
		g = &group{name: name, position: position{seq: c.ring.find(from), next: from}}
		c.groups = append(c.groups, g)
		c.slowest = min(c.slowest, g.seq)
	}
	if len(g.members) == 0 {
		g.progressMillis = c.now
		g.unprotected = false
		c.slowest = min(c.slowest, max(g.seq, c.ring.first))
	}
	cur.group = g
	cur.progressMillis = c.now
	g.members = append(g.members, cur)
	c.lookAtGroups()
	if n := len(g.returned); n > 0 {
		return g.returned[n-1].base, nil
	}
	return g.next, nil
}

// grant gives a member credit.
func (c *core) grant(cur *Cursor, bytes int) {
	if cur.group != nil && cur.cut.Load() == 0 {
		cur.credit += bytes
		c.share(cur.group)
	}
}

// share gives out what is there to members with credit, in turn.
func (c *core) share(g *group) {
	for len(g.members) > 0 && (len(g.returned) > 0 || c.hasMore(g)) {
		m := g.nextMember()
		if m == nil {
			return
		}
		a := c.giveOut(g)
		if a.gap.Next == 0 && g.gaps.len() > 0 {
			a.gap = g.gaps.pop()
		}
		m.assigned.push(a)
		m.credit -= len(a.bytes)
		g.progressMillis = c.now
		if m.waiting {
			m.waiting = false
			c.out.wake = append(c.out.wake, m)
		}
	}
}

// hasMore reports whether the ring has an entry for the group, after moving the group's position up to what is kept.
func (c *core) hasMore(g *group) bool {
	if gap := c.skip(&g.position); gap.Next != 0 {
		g.lose(gap)
	}
	if c.behind(&g.position) {
		if gap := g.cold.takeGap(); gap.Next != 0 {
			g.lose(gap)
			g.next = gap.Next
			return c.hasMore(g)
		}
		c.readAhead(g, &g.position)
		return g.cold.len() > 0
	}
	return g.seq < c.ring.end && c.ring.at(g.seq).next <= c.high
}

// giveOut takes what is to be given out next, of which there must be some: what was left behind comes first.
func (c *core) giveOut(g *group) assigned {
	if len(g.returned) > 0 {
		return g.popReturned()
	}
	if g.cold.len() > 0 {
		e := g.cold.pop()
		g.next, g.seq = e.next, 0
		return assigned{entry: e}
	}
	e := c.ring.at(g.seq)
	e.taken = true
	e.slab.Retain()
	g.seq++
	g.next = e.next
	return assigned{entry: *e}
}

func (g *group) popReturned() assigned {
	last := len(g.returned) - 1
	a := g.returned[last]
	g.returned[last] = assigned{}
	if g.returned = g.returned[:last]; last == 0 {
		g.returned = nil
	}
	return a
}

// lose notes a gap that a member is to be told. One that has several causes tells one of them.
func (g *group) lose(gap codec.Gap) {
	if g.gaps.len() > 0 && g.gaps.back().Next == gap.From {
		g.gaps.back().Next = gap.Next
		return
	}
	g.gaps.push(gap)
}

// nextMember returns the member with credit whose turn it is; nil: none has credit.
func (g *group) nextMember() *Cursor {
	for range g.members {
		if g.turn >= len(g.members) {
			g.turn = 0
		}
		m := g.members[g.turn]
		g.turn++
		if m.credit > 0 {
			return m
		}
	}
	return nil
}

// takeAssigned hands a member what it was given.
func (c *core) takeAssigned(cur *Cursor, t *Taken, maxBytes int) {
	for maxBytes > 0 && cur.assigned.len() > 0 && len(t.Batches) < maxTake {
		a := cur.assigned.front()
		if a.gap.Next != 0 {
			if len(t.Batches) > 0 {
				break // one gap a frame, in front of its batches
			}
			t.Gap = a.gap
		}
		t.add(&a.entry)
		c.counts.recordsOut += uint64(a.next - a.base)
		maxBytes -= len(a.bytes)
		cur.assigned.pop()
	}
	c.trimDirect()
}

// leaveGroup takes a member out; what it was given and has not taken goes back.
func (c *core) leaveGroup(cur *Cursor) {
	g := cur.group
	i := slices.Index(g.members, cur)
	if i < 0 {
		return
	}
	g.members = slices.Delete(g.members, i, i+1)
	if g.turn > i {
		g.turn--
	}
	if cur.assigned.len() > 0 {
		for cur.assigned.len() > 0 {
			g.returned = append(g.returned, cur.assigned.pop())
		}
		slices.SortFunc(g.returned, func(a, b assigned) int { return cmp.Compare(b.base, a.base) })
	}
	if len(g.members) == 0 {
		g.leftMillis = c.now
		c.dropCold(&g.position) // it can be read again
		c.lookAtGroups()
	}
	c.share(g)
}

// lookAtGroups notes when time next brings something about for a group.
func (c *core) lookAtGroups() {
	c.groupsDueMillis = 0
	for _, g := range c.groups {
		if len(g.members) > 0 {
			continue
		}
		due := g.leftMillis + groupForgetMillis
		if g.attached(c.now) {
			due = g.leftMillis + groupGraceMillis
		} else if len(g.returned) > 0 {
			due = c.now // until the ring has let go of what members left behind
		}
		if c.groupsDueMillis == 0 || due < c.groupsDueMillis {
			c.groupsDueMillis = due
		}
	}
}

// forgetOldest removes the group that nobody has been in for the longest time. One that is in its grace is not removed.
func (c *core) forgetOldest() bool {
	oldest := -1
	for i, g := range c.groups {
		if !g.attached(c.now) && (oldest < 0 || g.leftMillis < c.groups[oldest].leftMillis) {
			oldest = i
		}
	}
	if oldest < 0 {
		return false
	}
	c.forget(oldest)
	return true
}

// forget removes a group without members. A later member under its name makes it anew.
func (c *core) forget(i int) {
	for _, a := range c.groups[i].returned {
		c.out.free = append(c.out.free, a.slab)
	}
	c.dropCold(&c.groups[i].position)
	c.groups = slices.Delete(c.groups, i, i+1)
}

// expireGroups does what time brings about for groups without members.
func (c *core) expireGroups() {
	for i := len(c.groups) - 1; i >= 0; i-- {
		g := c.groups[i]
		c.expire(g)
		if !g.attached(c.now) && c.now-g.leftMillis >= groupForgetMillis {
			c.forget(i)
		}
	}
	c.lookAtGroups()
}

// loseReturned drops what members left behind.
func (c *core) loseReturned(g *group, reason codec.GapReason) {
	for len(g.returned) > 0 {
		c.loseFirst(g, reason)
	}
}

// loseFirst drops the first of what members left behind.
func (c *core) loseFirst(g *group, reason codec.GapReason) {
	a := g.popReturned()
	if a.gap.Next != 0 {
		g.lose(a.gap)
	}
	g.lose(codec.Gap{From: a.base, Next: a.next, Reason: reason})
	c.out.free = append(c.out.free, a.slab)
}

// expire drops, of a group whose backlog is not protected any more, what members left behind and the ring does not hold
// either: it would stay for ever.
func (c *core) expire(g *group) {
	if g.attached(c.now) {
		return
	}
	for n := len(g.returned); n > 0 && g.returned[n-1].base < c.start; n = len(g.returned) {
		c.counts.dropped += uint64(g.returned[n-1].next - g.returned[n-1].base)
		c.loseFirst(g, codec.GapDropped)
	}
}

// queueSize is the number of records that the slowest group has not been given; without a group, of those that are kept.
func (c *core) queueSize() uint64 {
	if len(c.groups) == 0 {
		return uint64(c.high - c.start)
	}
	most := codec.Offset(0)
	for _, g := range c.groups {
		n := c.high - max(g.next, c.start)
		for _, e := range g.returned {
			n += e.next - e.base
		}
		most = max(most, n)
	}
	return uint64(most)
}
