package codec

import (
	"fmt"
	"sync"
	"testing"
	"unsafe"
)

func address(s *Slab) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s.Bytes()))) }

func TestSlabClasses(t *testing.T) {
	p := NewSlabPool(0)
	for _, c := range []struct{ n, want int }{
		{-1, 4096},
		{0, 4096},
		{1, 4096},
		{4096, 4096},
		{4097, 8192},
		{8192, 8192},
		{8193, 12288},
		{16384, 16384},
		{16385, 20 << 10},
		{20 << 10, 20 << 10},
		{20<<10 + 1, 24 << 10},
		{28<<10 + 1, 32 << 10},
		{32<<10 + 1, 40 << 10},
		{600 << 10, 640 << 10},
		{DefaultMaxBatchBytes, 1<<20 + 256<<10},
		{28<<20 + 1, MaxSlabBytes},
		{MaxSlabBytes - 1, MaxSlabBytes},
		{MaxSlabBytes, MaxSlabBytes},
	} {
		s := p.Get(c.n)
		if len(s.Bytes()) != c.want || cap(s.Bytes()) != c.want || SlabClassBytes(c.n) != c.want {
			t.Errorf("%d bytes: a slab of %d, capacity %d, class %d, want %d", c.n, len(s.Bytes()), cap(s.Bytes()), SlabClassBytes(c.n), c.want)
		}
		if address(s)%slabAlign != 0 {
			t.Errorf("%d bytes: the slab begins at %#x", c.n, address(s))
		}
		s.Release()
	}
	mustPanic(t, "above the largest class", func() { p.Get(MaxSlabBytes + 1) })
	if p.InUseBytes() != 0 || p.FreeBytes() != 0 {
		t.Errorf("%d bytes in use, %d free", p.InUseBytes(), p.FreeBytes())
	}
}

// Each class is larger than the one before, by a quarter at most above 16 KiB, and holds exactly what is given to it.
func TestSlabClassesAreInOrder(t *testing.T) {
	if classBytes(0) != MinSlabBytes || classBytes(slabClasses-1) != MaxSlabBytes {
		t.Errorf("classes from %d to %d", classBytes(0), classBytes(slabClasses-1))
	}
	for class := range slabClasses {
		size := classBytes(class)
		if size%slabAlign != 0 || classOf(size) != class || classOf(size+1) != class+1 {
			t.Errorf("class %d of %d bytes: %d bytes are of class %d, one more of class %d", class, size, size, classOf(size), classOf(size+1))
		}
		if next := classBytes(class + 1); class >= 3 && next > size+size/4 {
			t.Errorf("class %d of %d bytes is followed by one of %d", class, size, next)
		}
	}
}

func TestSlabAlignment(t *testing.T) {
	p := NewSlabPool(0)
	for range 64 { // of the smallest class, for which the allocator has size classes
		if s := p.Get(1); address(s)%slabAlign != 0 {
			t.Fatalf("a slab begins at %#x", address(s))
		}
	}
}

func TestSlabReuseIsLastInFirstOut(t *testing.T) {
	p := NewSlabPool(1 << 20)
	var slabs [4]*Slab
	for i := range slabs {
		slabs[i] = p.Get(4096)
	}
	larger := p.Get(8192)
	for _, s := range slabs {
		s.Release()
	}
	larger.Release()
	for i := len(slabs) - 1; i >= 0; i-- {
		if s := p.Get(4096); s != slabs[i] {
			t.Fatalf("slab %d came out of turn", i)
		}
	}
	if p.Get(4096) == larger {
		t.Fatal("a slab of another class")
	}
}

func TestSlabPoolCounts(t *testing.T) {
	const keep = 3 * 4096
	p := NewSlabPool(keep)
	use := func() string {
		text := fmt.Sprintf("in use %d, free %d;", p.InUseBytes(), p.FreeBytes())
		p.ClassUse(func(size int, slabs int64) { text += fmt.Sprintf(" %d of %d", slabs, size) })
		return text
	}
	expect := func(want string) {
		t.Helper()
		if got := use(); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	var slabs []*Slab
	for range 5 {
		slabs = append(slabs, p.Get(100))
	}
	slabs = append(slabs, p.Get(16<<10))
	expect("in use 36864, free 0; 5 of 4096 1 of 16384")
	slabs[0].Retain()
	slabs[0].RetainN(2)
	for range 3 {
		slabs[0].Release()
	}
	expect("in use 36864, free 0; 5 of 4096 1 of 16384") // one reference is left
	for i, s := range slabs[:5] {
		s.Release()
		if want := int64(min(i+1, 3)) * 4096; p.FreeBytes() != want {
			t.Fatalf("%d bytes are kept, want %d", p.FreeBytes(), want)
		}
	}
	slabs[5].Release() // larger than all that may be kept
	expect("in use 0, free 12288;")
	p.Get(1)
	expect("in use 4096, free 8192; 1 of 4096")
	for range 3 {
		p.Get(1)
	}
	expect("in use 16384, free 0; 4 of 4096")
}

func TestSlabMisusePanics(t *testing.T) {
	p := NewSlabPool(1 << 20)
	s := p.Get(1)
	s.Release()
	mustPanic(t, "released twice", s.Release)
	p = NewSlabPool(1 << 20)
	s = p.Get(1)
	s.Release()
	mustPanic(t, "released slab was retained", s.Retain)
	p = NewSlabPool(1 << 20)
	s = p.Get(1)
	s.Release()
	mustPanic(t, "released slab was retained", func() { s.RetainN(5) })
}

func TestSlabPoolConcurrently(t *testing.T) {
	const keep = 64 << 10
	p := NewSlabPool(keep)
	shared := make(chan *Slab, 16)
	var workers, consumers sync.WaitGroup
	for id := range 4 {
		workers.Go(func() {
			for i := range 2000 {
				s := p.Get(1 + (i*id*977)%(32<<10))
				b := s.Bytes()
				b[0], b[len(b)-1] = byte(id), byte(i)
				s.Retain()
				shared <- s
				if b[0] != byte(id) || b[len(b)-1] != byte(i) {
					t.Errorf("worker %d: a slab with a reference changed hands", id)
				}
				s.Release()
			}
		})
	}
	for range 2 {
		consumers.Go(func() {
			for s := range shared {
				s.Release()
				if free := p.FreeBytes(); free > keep+4*(32<<10) { // each worker may be about to undo an addition
					t.Errorf("%d bytes are free, the limit is %d", free, keep)
				}
			}
		})
	}
	workers.Wait()
	close(shared)
	consumers.Wait()
	if p.InUseBytes() != 0 || p.FreeBytes() > keep {
		t.Errorf("in the end %d bytes are in use, %d free", p.InUseBytes(), p.FreeBytes())
	}
	p.ClassUse(func(size int, slabs int64) { t.Errorf("%d slabs of %d are in use", slabs, size) })
}

// TryGet stops at the limit, to the byte, from any number of goroutines; Get does not.
func TestSlabLimit(t *testing.T) {
	const limit = 10*MinSlabBytes + 100
	p := NewSlabPool(1 << 20)
	p.Limit(limit)
	var mu sync.Mutex
	var got []*Slab
	var work sync.WaitGroup
	for range 4 {
		work.Go(func() {
			for range 1000 {
				s := p.TryGet(1)
				if p.InUseBytes() > limit {
					t.Error("above the limit")
				}
				if s == nil {
					continue
				}
				mu.Lock()
				got = append(got, s)
				mu.Unlock()
			}
		})
	}
	work.Wait()
	if len(got) != 10 || p.InUseBytes() != 10*MinSlabBytes {
		t.Fatalf("%d slabs, %d bytes", len(got), p.InUseBytes())
	}
	over := p.Get(MaxSlabBytes)
	over.Release()
	got[0].Release()
	if p.TryGet(MinSlabBytes+1) != nil {
		t.Error("a slab of the next class does not fit")
	}
	if s := p.TryGet(MinSlabBytes); s == nil || len(s.Bytes()) != MinSlabBytes {
		t.Error("what was released was not given again")
	}
	if NewSlabPool(0).TryGet(MaxSlabBytes) == nil {
		t.Error("a pool without a limit refused")
	}
}
