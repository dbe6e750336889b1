package journal

import (
	"fmt"
	"strings"
	"time"
)

// within runs f and fails the test with the log's state if it takes too long.
func (tl *testLog) within(what string, f func() error) error {
	tl.t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(testDeadline):
		panic(fmt.Sprintf("%s takes too long:\n%s", what, tl.describe()))
	}
}

func (tl *testLog) describe() string {
	l := tl.Log
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "state %d failure %v start %d durable %d written %d next %d marked %d busy %d queued %d tasks %d wantMark %v flights %d pending %d doomed %d trimming %v trimTo %d\n",
		l.state, l.failure, l.start, l.durable, l.written, l.next, l.marked, l.busy, l.queued, l.tasks, l.wantMark, l.flightTail-l.flightHead,
		len(l.pending)-l.pendingHead, len(l.doomed), l.trimming, l.trimTo)
	for _, s := range l.segments {
		fmt.Fprintf(&b, "  %s base %d next %d end %d pos %d written %d synced %d ready %v made %v named %v opening %v sealing %v sealed %v anchored %v extending %v zeroing %d handles %d free %d reserved %d block %v active %v\n",
			s.path, s.base, s.next, s.end, s.pos, s.written, s.synced, s.ready, s.made, s.named, s.opening, s.sealing, s.sealed, s.anchored,
			s.extending, s.zeroing, len(s.handles), len(s.free), s.reserved, s.block != nil, s == l.active)
	}
	return b.String()
}
