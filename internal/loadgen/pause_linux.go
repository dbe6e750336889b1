package loadgen

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A pauser sleeps to within some microseconds. time.Sleep does not on Linux: the runtime waits for timers in epoll_wait,
// which counts milliseconds, and ten messages would leave at once where 10,000 a second are wanted. It belongs to the
// goroutine that made it and keeps its thread.
type pauser struct{ slack int }

func newPauser() *pauser {
	runtime.LockOSThread()
	p := &pauser{}
	p.slack, _ = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // nanoseconds, in place of 50 µs; without it the sleep is longer, not wrong
	return p
}

func (p *pauser) close() {
	if p.slack > 0 {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(p.slack), 0, 0, 0)
	}
	runtime.UnlockOSThread()
}

// sleep sleeps for d at most; a signal may wake it earlier.
func (*pauser) sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(min(d, longestSleep)))
	_ = unix.Nanosleep(&ts, nil)
}
