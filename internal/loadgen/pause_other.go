//go:build !linux

package loadgen

import "time"

// A pauser sleeps to within some microseconds. kqueue counts nanoseconds, so the runtime's timers do.
type pauser struct{}

func newPauser() *pauser { return &pauser{} }

func (*pauser) close() {}

// sleep sleeps for d at most.
func (*pauser) sleep(d time.Duration) { time.Sleep(min(d, longestSleep)) }
