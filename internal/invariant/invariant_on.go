//go:build race || invariants

package invariant

// Enabled says whether [Check] checks. It is true here: this file is built with -race or with the tag "invariants".
const Enabled = true
