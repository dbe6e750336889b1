package loadgen

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A pauser sleeps to within some microseconds. time.Sleep does not on Linux: the runtime waits for timers in epoll_wait,
// which counts milliseconds, and ten messages would leave at once where 10,000 a second are wanted. It belongs to the
// goroutine that made it.
type pauser struct{ yielded time.Time }

// yieldEvery is how long a sender may go without a visit to the scheduler. A goroutine that only makes system calls for
// 10 ms looks stuck to the runtime, which from then on takes its processor away in each of them and gives it back with a
// wake-up of another thread: a quarter more processor time for every message, and a later send.
const yieldEvery = 5 * time.Millisecond

func newPauser() *pauser { return &pauser{} }

func (p *pauser) close() {}

// sleep sleeps for d at most; a signal may wake it earlier.
func (p *pauser) sleep(d time.Duration) {
	if now := time.Now(); now.Sub(p.yielded) >= yieldEvery {
		p.yielded = now
		runtime.Gosched()
	}
	// For this thread, which may be another one than last time: nanoseconds, in place of 50 µs. Without it the sleep is
	// longer, not wrong.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	ts := unix.NsecToTimespec(int64(min(d, longestSleep)))
	_ = unix.Nanosleep(&ts, nil)
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) // back to the default
}
