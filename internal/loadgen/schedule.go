package loadgen

import "time"

// A Schedule says when each message of one sender is due, as absolute times: what is late does not move what comes after it.
// Several senders of one rate take turns.
type Schedule struct {
	start   time.Time // with a monotonic reading
	rate    int64     // messages per second of all senders together
	senders int64
	turn    int64 // of this sender
}

// NewSchedule returns the schedule of the sender with number turn of senders that send rate messages a second together.
func NewSchedule(start time.Time, rate int64, turn, senders int) *Schedule {
	return &Schedule{start: start, rate: rate, senders: int64(senders), turn: int64(turn)}
}

// due is when message seq of this sender is to be sent, in nanoseconds from the start.
func (s *Schedule) due(seq int64) int64 {
	n := seq*s.senders + s.turn // number over all senders
	return n/s.rate*1e9 + n%s.rate*1e9/s.rate
}

// longestSleep bounds one sleep of a sender, and so the time until it notices an interrupt.
const longestSleep = 50 * time.Millisecond
