package program

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

// A screen is a terminal's bottom line and what has scrolled above it: carriage returns go back, what is written replaces
// what was there.
type screen struct {
	mu      sync.Mutex
	columns int
	above   []string
	line    []byte
	at      int
	widest  int
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range p {
		switch c {
		case '\r':
			s.at = 0
		case '\n':
			s.above = append(s.above, strings.TrimRight(string(s.line), " "))
			s.line, s.at = nil, 0
		default:
			if s.at == len(s.line) {
				s.line = append(s.line, 0)
			}
			s.line[s.at] = c
			s.at++
			s.widest = max(s.widest, s.at)
		}
	}
	return len(p), nil
}

func (s *screen) bottom() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.TrimRight(string(s.line), " ")
}

func (s *screen) status() *statusLine {
	return &statusLine{w: s, width: func() int { return s.columns }}
}

func TestStatusLine(t *testing.T) {
	s := &screen{columns: 40}
	line := s.status()
	line.draw("1s  sent 1,000 of 2,000")
	if got := s.bottom(); got != "1s  sent 1,000 of 2,000" {
		t.Errorf("the line is %q", got)
	}
	line.draw("short")
	if got := s.bottom(); got != "short" {
		t.Errorf("after a longer one the line is %q", got)
	}
	fmt.Fprintln(line, "news")
	if got := s.bottom(); got != "" || len(s.above) != 1 || s.above[0] != "news" {
		t.Errorf("beside news the line is %q, above it is %q", got, s.above)
	}
	line.draw(strings.Repeat("x", 100))
	if got := s.bottom(); got != strings.Repeat("x", 37) {
		t.Errorf("on 40 columns the line is %q", got)
	}
	line.erase()
	if got := s.bottom(); got != "" || s.at != 0 {
		t.Errorf("erased, the line is %q, and the cursor at %d", got, s.at)
	}
	line.draw(strings.Repeat("x", 100))
	_, _ = s.Write([]byte("^C"))
	line.erase()
	if got := s.bottom(); got != "" || s.at != 0 {
		t.Errorf("behind ^C the line is %q", got)
	}
	if s.widest != 39 {
		t.Errorf("%d columns of 40 were used", s.widest)
	}
}

// TestStatusLineResized: a window that became narrower is not written over its edge.
func TestStatusLineResized(t *testing.T) {
	s := &screen{columns: 40}
	line := s.status()
	line.draw(strings.Repeat("x", 30))
	s.columns, s.widest = 20, 0
	line.draw("xyz")
	line.erase()
	if s.widest > 19 {
		t.Errorf("%d columns of 20 were used", s.widest)
	}
}

// TestStatusLineWithoutTerminal: nothing is drawn, nothing is asked, and all else is written as it is.
func TestStatusLineWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	line := &statusLine{w: &out, width: func() int { return 0 }}
	stop := line.start(func(time.Duration) string { t.Error("it was asked"); return "x" })
	fmt.Fprint(line, "a\nb")
	line.draw("x")
	stop()
	if out.String() != "a\nb" {
		t.Errorf("wrote %q", out.String())
	}
}

func TestFollow(t *testing.T) {
	s := &screen{columns: 80}
	line := s.status()
	ticks := make(chan time.Time)
	calls := make(chan int, 3)
	n := 0
	stop := line.follow(ticks, func(time.Duration) string {
		n++
		calls <- n
		return fmt.Sprintf("tick %d", n)
	})
	for want := 1; want <= 3; want++ {
		ticks <- time.Time{}
		if got := <-calls; got != want {
			t.Fatalf("call %d, want %d", got, want)
		}
	}
	stop()
	if got := s.bottom(); got != "" {
		t.Errorf("stopped, the line is %q", got)
	}
	if s.widest < len("tick 3") {
		t.Error("nothing was drawn")
	}
}

func TestProgress(t *testing.T) {
	p := &progress{verb: "sent", total: 10_000}
	for _, tc := range []struct {
		done    int64
		elapsed time.Duration
		want    string
	}{
		{1_000, time.Second, "  1s  sent 1,000 of 10,000 (10%)  1,000/s"},
		{5_000, 3 * time.Second, "  3s  sent 5,000 of 10,000 (50%)  2,000/s"},
		{9_999, 4 * time.Second, "  4s  sent 9,999 of 10,000 (99%)  4,999/s"},
		{10_000, 4 * time.Second, "  4s  sent 10,000 of 10,000 (100%)"},
		{9_000, 5 * time.Second, "  5s  sent 9,000 of 10,000 (90%)  0/s"}, // another run's count
		{20_000, 105 * time.Second, "105s  sent 20,000 of 10,000 (100%)  110/s"},
	} {
		if got := p.line(tc.done, tc.elapsed); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	if got := (&progress{verb: "read"}).line(7, time.Second); got != "  1s  read 7  7/s" {
		t.Errorf("without a total: %q", got)
	}
	if got := percent(math.MaxInt64-1, math.MaxInt64); got != "99%" {
		t.Errorf("of the largest total: %s", got)
	}
	for _, tc := range [][3]int64{{3, 4, 12}, {math.MaxInt64, 1, math.MaxInt64}, {math.MaxInt64, 2, math.MaxInt64}, {1 << 62, 2, math.MaxInt64}, {1 << 40, 1 << 40, math.MaxInt64}, {0, 9, 0}} {
		if got := timesSaturated(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%d times %d is %d, want %d", tc[0], tc[1], got, tc[2])
		}
	}
}
