package invariant_test

import (
	"testing"

	"github.com/lightio/lightq/internal/invariant"
)

// panicOf runs f and returns what it panicked with, nil if it returned.
func panicOf(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

func TestBugPanicsInEveryBuild(t *testing.T) {
	got := panicOf(func() { invariant.Bug("start %d above next %d", 7, 5) })
	if want := "BUG: start 7 above next 5"; got != want {
		t.Fatalf("panic value = %#v, want %q", got, want)
	}
}

func TestCheckPanicsOnlyWhenEnabled(t *testing.T) {
	if got := panicOf(func() { invariant.Check(true, "never said") }); got != nil {
		t.Errorf("Check(true) panicked with %#v", got)
	}

	var want any
	if invariant.Enabled {
		want = "BUG: credit -1 is negative"
	}
	if got := panicOf(func() { invariant.Check(false, "credit %d is negative", -1) }); got != want {
		t.Errorf("Check(false) panicked with %#v, want %#v (Enabled is %v)", got, want, invariant.Enabled)
	}
}
