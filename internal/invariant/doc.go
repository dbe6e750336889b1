// Package invariant holds what must be true if the program is correct.
//
// A broken invariant is a bug, never an operating error: it panics with a message that begins "BUG: " and carries the
// values that prove it. Anything that a peer, a disk or a user can cause is not an invariant; it is an error, and is
// returned.
//
// There are two kinds. [Bug] always panics: use it where going on could lose or corrupt data, and the check costs
// nothing measurable. [Check] panics only when [Enabled] is true: use it for checks that are too dear for the hot path.
// Enabled is a constant, true in binaries built with -race or with the build tag "invariants", so the compiler drops
// what it guards elsewhere.
//
// The package imports nothing of the project, keeps no state, and may be called from any goroutine.
package invariant
