package main

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// childAttributes puts the child into a process group of its own and has the kernel kill it when this program dies. The
// kernel ties that to the thread that forked; Go ends a thread only when a goroutine exits while locked to it, and none does.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// peakBytes converts ru_maxrss, which Linux counts in KiB.
func peakBytes(ru *syscall.Rusage) int64 { return int64(ru.Maxrss) << 10 }

// cpuSeconds returns the CPU time that a running process has used so far; 0 where the system does not tell.
func cpuSeconds(pid int) float64 {
	const ticksPerSecond = 100 // USER_HZ, the same on all architectures that Go runs on
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold spaces; the state comes next, utime and stime are the 12th and 13th behind it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	var ticks int64
	for _, i := range []int{11, 12} {
		if len(fields) <= i {
			return 0
		}
		var n int64
		if _, err := fmt.Sscan(string(fields[i]), &n); err != nil {
			return 0
		}
		ticks += n
	}
	return float64(ticks) / ticksPerSecond
}
