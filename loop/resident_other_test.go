//go:build !linux

package loop

import "testing"

// residentBytes returns 0 where the system does not tell cheaply: the slabs in use are checked everywhere.
func residentBytes(testing.TB) int64 { return 0 }
