//go:build !linux

package main

import (
	"runtime"
	"syscall"
)

// childAttributes puts the child into a process group of its own. Nothing here kills it when this program is killed outright
// (an interrupt is handled): load generators then end when their counts are complete, a broker stays until it is stopped.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// peakBytes converts ru_maxrss, which macOS counts in bytes and the BSDs in KiB.
func peakBytes(ru *syscall.Rusage) int64 {
	if runtime.GOOS == "darwin" {
		return int64(ru.Maxrss)
	}
	return int64(ru.Maxrss) << 10
}

// cpuSeconds would be the CPU time that a running process has used so far; these systems do not tell in a simple way.
func cpuSeconds(int) float64 { return 0 }
