package codec

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Slab size classes are the multiples of 4 KiB up to 16 KiB, and above that four to each power of two: 20, 24, 28, 32 KiB,
// 40 KiB and so on. With powers of two alone, a ring of batches that are a little larger than one holds twice its bytes.
const (
	MinSlabBytes = 4 << 10
	MaxSlabBytes = 32 << 20

	slabAlign   = 4 << 10 // pages: direct I/O and zero-copy want it
	slabClasses = 4 + 4*11
)

// classOf returns the number of the smallest class that holds n bytes, which may be above the largest class.
func classOf(n int) int {
	if n <= 4*slabAlign {
		return (max(n, 1) - 1) / slabAlign
	}
	e := bits.Len(uint(n-1)) - 1 // n-1 is in [2^e, 2^(e+1))
	quarter := (n-1)>>(e-2) - 4  // of which quarter
	return 4 + (e-14)*4 + quarter
}

// classBytes returns the size of the slabs of a class.
func classBytes(class int) int {
	if class < 4 {
		return (class + 1) * slabAlign
	}
	return (class%4 + 5) << (class/4 + 11)
}

// A Slab is pooled, reference-counted memory behind batches. Whoever got it from Get or called Retain calls Release once;
// after the last Release its bytes belong to someone else. Slabs start on a 4 KiB boundary.
type Slab struct {
	b     []byte // len = cap = the size of its class
	refs  atomic.Int32
	class uint8
	pool  *SlabPool
	next  *Slab // in the free list
}

// Bytes returns the whole slab, valid until the caller's reference is released.
func (s *Slab) Bytes() []byte { return s.b }

// Retain adds a reference; the caller must hold one.
func (s *Slab) Retain() { s.RetainN(1) }

// RetainN adds n references at once.
func (s *Slab) RetainN(n int) {
	if s.refs.Add(int32(n)) <= int32(n) {
		panic("BUG: a released slab was retained")
	}
}

// Release drops a reference; the last one gives the slab back to its pool.
func (s *Slab) Release() {
	switch n := s.refs.Add(-1); {
	case n == 0:
		s.pool.put(s)
	case n < 0:
		panic("BUG: a slab was released twice")
	}
}

// A SlabPool hands out slabs. Its free lists are last in, first out, so that memory which is still in the processor's
// caches is used again first. All methods may be called from any goroutine.
type SlabPool struct {
	keepBytes int64 // free bytes kept for reuse, over all classes; beyond it slabs go to the garbage collector
	limit     int64 // bytes in use up to which TryGet gives; 0: no limit

	inUse atomic.Int64 // bytes of slabs that have references
	free  atomic.Int64 // bytes in the free lists

	classes [slabClasses]slabClass
}

type slabClass struct {
	mu    sync.Mutex
	head  *Slab
	inUse atomic.Int64 // slabs
	_     [104]byte    // keeps classes on cache lines of their own, of 128 bytes at most
}

// NewSlabPool returns a pool that keeps at most keepBytes of free slabs for reuse.
func NewSlabPool(keepBytes int64) *SlabPool { return &SlabPool{keepBytes: keepBytes} }

// Limit sets the bytes in use above which TryGet gives nothing; 0: no limit. It is called before the pool is used.
func (p *SlabPool) Limit(bytes int64) { p.limit = bytes }

// SlabClassBytes returns the size of the slab that Get(n) returns.
func SlabClassBytes(n int) int { return classBytes(classOf(n)) }

// Get returns a slab of at least n bytes, with one reference. Its contents are arbitrary. n above MaxSlabBytes is a bug:
// lengths are checked against limits before memory is taken.
func (p *SlabPool) Get(n int) *Slab {
	class := classOf(n)
	if class >= slabClasses {
		panic("BUG: a slab above the largest class was asked for")
	}
	p.inUse.Add(int64(classBytes(class)))
	return p.take(class)
}

// TryGet is Get, or returns nil where the slab would take the bytes in use above the limit.
func (p *SlabPool) TryGet(n int) *Slab {
	class := classOf(n)
	if p.limit == 0 || class >= slabClasses {
		return p.Get(n)
	}
	for size := int64(classBytes(class)); ; {
		use := p.inUse.Load()
		if use+size > p.limit {
			return nil
		}
		if p.inUse.CompareAndSwap(use, use+size) {
			return p.take(class)
		}
	}
}

// take returns a slab that is counted in inUse already.
func (p *SlabPool) take(class int) *Slab {
	c := &p.classes[class]
	c.inUse.Add(1)
	c.mu.Lock()
	s := c.head
	if s != nil {
		c.head = s.next
		c.mu.Unlock()
		s.next = nil
		p.free.Add(-int64(len(s.b)))
	} else {
		c.mu.Unlock()
		s = &Slab{b: alignedBytes(classBytes(class)), class: uint8(class), pool: p}
	}
	s.refs.Store(1)
	return s
}

func (p *SlabPool) put(s *Slab) {
	mangle(s.b)
	c := &p.classes[s.class]
	size := int64(len(s.b))
	c.inUse.Add(-1)
	p.inUse.Add(-size)
	if p.free.Add(size) > p.keepBytes {
		p.free.Add(-size)
		return
	}
	c.mu.Lock()
	s.next = c.head
	c.head = s
	c.mu.Unlock()
}

// InUseBytes returns the bytes of all slabs that have references, each charged with the size of its class.
func (p *SlabPool) InUseBytes() int64 { return p.inUse.Load() }

// FreeBytes returns the bytes kept for reuse.
func (p *SlabPool) FreeBytes() int64 { return p.free.Load() }

// ClassUse calls f for each class that is in use, with the class's size in bytes and the number of slabs.
func (p *SlabPool) ClassUse(f func(size int, slabs int64)) {
	for i := range p.classes {
		if n := p.classes[i].inUse.Load(); n != 0 {
			f(classBytes(i), n)
		}
	}
}

// alignedBytes returns size bytes on a slabAlign boundary. Go's allocator aligns such sizes already; where it does not, the
// slice is cut from a larger one.
func alignedBytes(size int) []byte {
	b := make([]byte, size)
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%slabAlign == 0 {
		return b
	}
	b = make([]byte, size+slabAlign)
	off := slabAlign - int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%slabAlign)
	return b[off : off+size : off+size]
}
