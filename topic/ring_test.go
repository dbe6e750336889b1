package topic

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/lightio/lightq/codec"
)

// TestFifoAgainstSlice compares a fifo with a slice. Runs of pushes and pops take it over several sizes, up and down.
func TestFifoAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q fifo[*int]
		var model []*int
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 400).Draw(t, "n") {
					v := new(int)
					q.push(v)
					model = append(model, v)
				}
			},
			"pop": func(t *rapid.T) {
				n := rapid.IntRange(1, 400).Draw(t, "n")
				if rapid.Bool().Draw(t, "all") {
					n = len(model)
				}
				for range min(n, len(model)) {
					if v := q.pop(); v != model[0] {
						t.Fatal("popped another value than the oldest")
					}
					model = model[1:]
				}
			},
			"": func(t *rapid.T) {
				if q.len() != len(model) {
					t.Fatalf("%d values, expected %d", q.len(), len(model))
				}
				if n := len(model); n > 0 && (*q.front() != model[0] || *q.back() != model[n-1]) {
					t.Fatal("front or back is another value than the oldest or the newest")
				}
				if len(model) == 0 && len(q.slots) > fifoKeepSlots {
					t.Fatalf("an empty fifo keeps %d slots", len(q.slots))
				}
				held := 0
				for _, v := range q.slots {
					if v != nil {
						held++
					}
				}
				if held != len(model) {
					t.Fatalf("%d slots hold on to something, %d values are in the queue", held, len(model))
				}
			},
		})
	})
}

// TestRingAgainstSlice compares a ring with a slice of everything that was ever pushed.
func TestRingAgainstSlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ring
		var model []entry
		first, next, bytes := 0, codec.Offset(rapid.IntRange(0, 100).Draw(t, "start")), int64(0)
		start := next
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 700).Draw(t, "n") { // above 1,024 a ring gives memory back
					e := entry{base: next, next: next + codec.Offset(1+len(model)%3), bytes: make([]byte, len(model)%7)}
					next = e.next
					r.push(e)
					model = append(model, e)
					bytes += int64(len(e.bytes)) + entryOverheadBytes
				}
			},
			"pop": func(t *rapid.T) {
				n := rapid.IntRange(1, 700).Draw(t, "n")
				if rapid.IntRange(0, 3).Draw(t, "all") == 0 {
					n = len(model)
				}
				for range min(n, len(model)-first) {
					if e := r.pop(); e.base != model[first].base || e.next != model[first].next {
						t.Fatalf("popped the entry at %d, the oldest is at %d", e.base, model[first].base)
					}
					bytes -= int64(len(model[first].bytes)) + entryOverheadBytes
					start = model[first].next
					first++
				}
			},
			"": func(t *rapid.T) {
				if r.len() != len(model)-first || r.first != uint64(first) || r.end != uint64(len(model)) || r.bytes != bytes {
					t.Fatalf("len %d, first %d, end %d, %d bytes; expected %d, %d, %d, %d", r.len(), r.first, r.end, r.bytes,
						len(model)-first, first, len(model), bytes)
				}
				for range 20 {
					if r.len() > 0 {
						seq := rapid.IntRange(first, len(model)-1).Draw(t, "seq")
						if r.at(uint64(seq)).base != model[seq].base {
							t.Fatalf("the entry of sequence %d is at %d, expected %d", seq, r.at(uint64(seq)).base, model[seq].base)
						}
					}
					o := codec.Offset(rapid.Int64Range(max(0, int64(start)-3), int64(next)+3).Draw(t, "offset"))
					want := first
					for want < len(model) && model[want].next <= o {
						want++
					}
					if got := r.find(o); got != uint64(want) {
						t.Fatalf("found %d for offset %d, expected %d", got, o, want)
					}
				}
				held := 0
				for _, e := range r.entries {
					if e.bytes != nil {
						held++
					}
				}
				if held != r.len() {
					t.Fatalf("%d slots hold on to something, %d entries are in the ring", held, r.len())
				}
				if n := len(r.entries); n > 1024 && r.len() < n/16 && first > 0 {
					t.Fatalf("%d slots for %d entries", n, r.len())
				}
			},
		})
	})
}
