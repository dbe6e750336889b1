//go:build !race && !invariants

package invariant_test

import (
	"testing"

	"github.com/lightio/lightq/internal/invariant"
)

func TestDisabledOtherwise(t *testing.T) {
	if invariant.Enabled {
		t.Fatal("Enabled is true in a build without -race and without -tags=invariants")
	}
}

// A passing check on the hot path must not box its arguments when checks are off, even unguarded.
func TestDisabledCheckAllocatesNothing(t *testing.T) {
	next := 1 << 40
	allocs := testing.AllocsPerRun(100, func() {
		next++
		invariant.Check(next > 0, "next is %d", next)
	})
	if allocs != 0 {
		t.Fatalf("a disabled Check makes %v allocations, want 0", allocs)
	}
}
