package topic

import (
	"cmp"
	"slices"
	"sync/atomic"

	"github.com/lightio/lightq/codec"
)

// When the broker's memory is short, every ring counts as full above a common level, so that those which hold most give
// way first, and the overflow policy of each topic says how. Rings below it go on.

// memory is how short memory is, for the partitions of a registry. Reclaim and Relax write it.
type memory struct {
	level       atomic.Int64 // bytes of a ring from which on it counts as full; 0: memory is not short
	sinceMillis atomic.Int64 // since when level is not 0
}

// A shortState is memory as one step of a core sees it.
type shortState struct {
	level       int64
	sinceMillis int64
}

func (m *memory) state() shortState {
	if m == nil {
		return shortState{}
	}
	st := shortState{level: m.level.Load()}
	if st.level == 0 {
		return shortState{}
	}
	if st.sinceMillis = m.sinceMillis.Load(); st.sinceMillis == 0 {
		return shortState{} // Relax came in between
	}
	return st
}

// ringLimit is how many bytes the ring may hold now.
func (c *core) ringLimit() int64 {
	limit := int64(c.settings.RingBytes)
	if c.short.level > 0 {
		limit = min(limit, c.short.level)
	}
	return limit
}

// shed drops the oldest batches until the ring holds level bytes or less, as far as the overflow policy lets it.
func (c *core) shed(level int64) {
	if c.filed {
		c.makeRoomInTail(0, level)
		return
	}
	for c.ring.bytes > level && c.ring.len() > 0 && c.ring.at(c.ring.first).next <= c.high {
		if c.settings.Overflow != codec.OverflowDropOldest && c.needed(c.ring.first) {
			return
		}
		c.dropOldest()
	}
}

// forgetCold lets go of what was read of the files and is not handed out: it can be read again. Who waits for a read keeps it.
func (c *core) forgetCold() {
	drop := func(p *position) {
		if p.cold.len() > 0 && !p.cold.reading {
			c.dropCold(p)
		}
	}
	for _, cur := range c.cursors {
		drop(&cur.position)
	}
	for _, g := range c.groups {
		drop(&g.position)
	}
}

// holdsMemory reports whether the ring has kept, ever since stalledSince, what the broker's memory is short of.
func (c *core) holdsMemory(stalledSince int64) bool {
	return c.short.since(stalledSince) && c.ring.bytes > c.short.level && c.ring.at(c.ring.first).appendMillis <= stalledSince
}

// since reports whether memory has been short ever since millis.
func (s shortState) since(millis int64) bool { return s.level > 0 && s.sinceMillis <= millis }

// shed makes the partition's ring give up what it may above level, and returns the bytes that it still holds.
func (p *Partition) shed(level, nowMillis int64) int64 {
	p.enter(nowMillis)
	p.core.shed(level)
	left := p.core.ring.bytes
	p.leave()
	return left
}

// Reclaim makes rings give up bytes or more: the largest first, down to a common level, above which every ring counts as
// full until Relax. What an attached consumer needs stays where the overflow policy does not drop it. With hard, rings
// below the level give up what they may in the place of those that may not. It returns how many bytes were given up; they
// are free when consumers have been sent them.
func (r *Registry) Reclaim(bytes int64, hard bool, nowMillis int64) (freed int64) {
	type holder struct {
		p     *Partition
		bytes int64
	}
	var list []holder
	r.Each(func(t *Topic) bool {
		for _, p := range t.Partitions() {
			if hard && p.log != nil {
				p.enter(nowMillis)
				p.core.forgetCold()
				p.leave()
			}
			if n := p.ringBytes.Load(); n > 0 {
				list = append(list, holder{p, n})
			}
		}
		return true
	})
	slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	for pass := 0; freed < bytes && len(list) > 0; pass++ {
		// The level that makes up for what is wanted, if all above it give up the difference.
		level, sum := int64(0), int64(0)
		for i, h := range list {
			sum += h.bytes
			if level = (sum - (bytes - freed)) / int64(i+1); level > 0 && (i+1 == len(list) || level >= list[i+1].bytes) {
				break
			}
		}
		level = max(level, 1)
		if pass == 0 {
			r.memory.sinceMillis.CompareAndSwap(0, nowMillis)
			r.memory.level.Store(level)
		}
		rest := list[:0]
		for _, h := range list {
			if h.bytes > level {
				left := h.p.shed(level, nowMillis)
				freed += h.bytes - left
				if h.bytes = left; left > level {
					continue // it needs what it has
				}
			}
			rest = append(rest, h)
		}
		if !hard || len(rest) == len(list) {
			break
		}
		list = rest
		slices.SortFunc(list, func(a, b holder) int { return cmp.Compare(b.bytes, a.bytes) })
	}
	return freed
}

// Relax says that memory is not short any more.
func (r *Registry) Relax() {
	r.memory.level.Store(0)
	r.memory.sinceMillis.Store(0)
}

// ShortSince returns since when memory has been short, in milliseconds since the Unix epoch; 0: it is not.
func (r *Registry) ShortSince() int64 { return r.memory.sinceMillis.Load() }
