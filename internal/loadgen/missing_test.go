package loadgen

import (
	"testing"

	"pgregory.net/rapid"
)

// TestMissingModel compares with a set.
func TestMissingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m missing
		model := map[uint64]bool{}
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				from := next + rapid.Uint64Range(0, 3).Draw(t, "skip")
				next = from + rapid.Uint64Range(1, 6).Draw(t, "size")
				m.add(from, next)
				for seq := from; seq < next; seq++ {
					model[seq] = true
				}
			},
			"remove": func(t *rapid.T) {
				seq := rapid.Uint64Range(0, next+2).Draw(t, "seq")
				if got := m.remove(seq); got != model[seq] {
					t.Fatalf("remove(%d) = %v", seq, got)
				}
				delete(model, seq)
			},
			"": func(t *rapid.T) {
				if m.count() != int64(len(model)) {
					t.Fatalf("count %d, want %d", m.count(), len(model))
				}
			},
		})
	})
}

func TestMissingBound(t *testing.T) {
	var m missing
	const n = 3 * maxMissingRanges
	for i := uint64(0); i < n; i++ {
		m.add(3*i, 3*i+2)
	}
	if len(m.ranges) > maxMissingRanges {
		t.Errorf("%d ranges are kept", len(m.ranges))
	}
	if m.count() != 2*n {
		t.Errorf("%d missing, want %d", m.count(), 2*n)
	}
}
