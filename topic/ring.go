package topic

import (
	"sort"

	"github.com/lightio/lightq/codec"
)

// entryOverheadBytes is what an entry costs beside its batch: the ring charges it, so that a million tiny batches count
// for the memory that they take.
const entryOverheadBytes = 64

// An entry is one batch in memory. It owns a reference to its slab.
type entry struct {
	base         codec.Offset
	next         codec.Offset // base of what follows
	appendMillis int64
	bytes        []byte
	slab         *codec.Slab
	taken        bool // by a sub subscription, or given to a member of a group
}

func (e *entry) charge() int64 { return int64(len(e.bytes)) + entryOverheadBytes }

// A ring keeps the newest entries of a partition in order. Entries are numbered from 0 on in the order of their arrival
// (their sequence), so that a cursor finds its place at once.
type ring struct {
	entries []entry // a power of two of slots; sequence s is in slot s & (len-1)
	first   uint64  // sequence of the oldest entry
	end     uint64  // sequence that the next entry gets
	bytes   int64   // charged
}

func (r *ring) len() int { return int(r.end - r.first) }

func (r *ring) at(seq uint64) *entry { return &r.entries[seq&uint64(len(r.entries)-1)] }

func (r *ring) push(e entry) {
	if r.len() == len(r.entries) {
		r.resize(max(16, 2*len(r.entries)))
	}
	*r.at(r.end) = e
	r.end++
	r.bytes += e.charge()
}

// pop removes the oldest entry; its reference is the caller's.
func (r *ring) pop() entry {
	slot := r.at(r.first)
	e := *slot
	*slot = entry{}
	r.first++
	r.bytes -= e.charge()
	if n := len(r.entries); n > 1024 && r.len() < n/8 {
		r.resize(n / 2) // a burst of tiny batches is over
	}
	return e
}

// popBack removes the newest entry; its reference is the caller's.
func (r *ring) popBack() entry {
	slot := r.at(r.end - 1)
	e := *slot
	*slot = entry{}
	r.end--
	r.bytes -= e.charge()
	return e
}

func (r *ring) resize(slots int) {
	old := *r
	r.entries = make([]entry, slots)
	for s := r.first; s < r.end; s++ {
		*r.at(s) = *old.at(s)
	}
}

// find returns the sequence of the first entry that holds offset o or a later one; end if there is none.
func (r *ring) find(o codec.Offset) uint64 {
	i := sort.Search(r.len(), func(i int) bool { return r.at(r.first+uint64(i)).next > o })
	return r.first + uint64(i)
}
