package main

import "syscall"

// childAttributes puts the child into a process group of its own and has the kernel kill it when this program dies. The
// kernel ties that to the thread that forked; Go ends a thread only when a goroutine exits while locked to it, and none does.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// peakBytes converts ru_maxrss, which Linux counts in KiB.
func peakBytes(ru *syscall.Rusage) int64 { return int64(ru.Maxrss) << 10 }
