//go:build !race && !invariants

package invariant

// Enabled says whether [Check] checks. It is false here; see invariant_on.go for the builds where it is true.
const Enabled = false
