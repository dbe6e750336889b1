package invariant

import "fmt"

// Check panics with "BUG: " and the formatted message if ok is false and [Enabled] is true; otherwise it does nothing.
//
// Its arguments are evaluated in every build. Where they cost something, or where the check is more than a comparison,
// guard the call so that the compiler removes all of it:
//
//	if invariant.Enabled {
//		invariant.Check(b.sum() == want, "partition %d: %d bytes counted, want %d", id, b.sum(), want)
//	}
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		Bug(format, args...)
	}
}

// Bug panics with "BUG: " and the formatted message, in every build. The panic value is a string. It does not return.
func Bug(format string, args ...any) {
	panic("BUG: " + fmt.Sprintf(format, args...))
}
