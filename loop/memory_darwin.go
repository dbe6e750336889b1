package loop

import (
	"math"

	"golang.org/x/sys/unix"
)

// machineMemoryBytes is the memory of the machine.
func machineMemoryBytes() int64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil || n == 0 || n > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(n)
}
