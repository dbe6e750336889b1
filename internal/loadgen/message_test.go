package loadgen

import (
	"testing"

	"github.com/lightio/lightq/codec"
)

func TestRunID(t *testing.T) {
	seen := map[RunID]bool{}
	for range 1000 {
		r := NewRunID()
		if !r.valid() || seen[r] {
			t.Fatalf("run id %v", r)
		}
		seen[r] = true
		for bit := range 64 {
			if (r ^ 1<<bit).valid() {
				t.Fatalf("run id %v is valid with bit %d flipped", r, bit)
			}
		}
	}
	if RunID(0).valid() {
		t.Error("0 is valid")
	}
	if got := runOf(0xA).String(); len(got) != 16 {
		t.Errorf("run id %q", got)
	}
}

func TestRunIn(t *testing.T) {
	run := NewRunID()
	if got := runIn(newMessage(run, HeaderBytes)); got != run {
		t.Errorf("run %v, want %v", got, run)
	}
	for _, other := range [][]byte{nil, {}, newMessage(run, HeaderBytes-1), make([]byte, 100), []byte("a line of text of some length, as people publish it")} {
		if got := runIn(other); got != 0 {
			t.Errorf("run %v in %q", got, other)
		}
	}
}

// TestLargestRecord asks the encoder itself.
func TestLargestRecord(t *testing.T) {
	for _, maxBatch := range []int{1 << 10, 4096, 16_500, codec.DefaultMaxBatchBytes, 8 << 20} {
		n := LargestRecord(maxBatch)
		fits := func(n int) bool {
			var w codec.BatchBuilder
			w.Reset(make([]byte, 0, maxBatch+32), maxBatch)
			return w.AddValue(0, make([]byte, n))
		}
		if !fits(n) || fits(n+1) {
			t.Errorf("max-batch %d: %d fits %v, %d fits %v", maxBatch, n, fits(n), n+1, fits(n+1))
		}
	}
}
