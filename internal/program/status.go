package program

import (
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// A statusLine is standard error, with one line at its bottom that changes in place where it is a terminal. Whatever else is
// written to standard error while the line stands goes through Write, from any goroutine, and pushes the line aside until it
// is drawn again.
type statusLine struct {
	w     io.Writer
	width func() int // columns of the terminal; 0: there is none, or it does not say

	mu    sync.Mutex
	shown int // columns that the line takes; 0: there is no line
}

// newStatusLine returns the status line of a file.
func newStatusLine(f *os.File) *statusLine {
	return &statusLine{w: f, width: func() int { return terminalWidth(f) }}
}

// usualWidth is taken for the width of a terminal that does not know its own, as serial lines do.
const usualWidth = 80

// terminalWidth returns the columns of a terminal, 0 where f is none.
func terminalWidth(f *os.File) int {
	if !cli.IsTerminal(f) {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return usualWidth
	}
	return int(size.Col)
}

// Write takes the line away and writes p.
func (s *statusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	return s.w.Write(p)
}

// interruptMark is what a terminal shows behind the line for an interrupt, ^C.
const interruptMark = 2

// draw shows text as the line, as far as it fits, with room for ^C: what a terminal wraps stays.
func (s *statusLine) draw(text string) {
	width := s.width()
	if width <= interruptMark+1 {
		return
	}
	r := []rune(text)
	r = r[:min(len(r), width-1-interruptMark)]
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.w, "\r", string(r), strings.Repeat(" ", min(max(s.shown-len(r), 0), width-1-len(r))))
	s.shown = len(r)
}

func (s *statusLine) erase() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
}

func (s *statusLine) eraseLocked() {
	if s.shown > 0 {
		blank := min(s.shown+interruptMark, max(s.width()-1, 0))
		fmt.Fprint(s.w, "\r", strings.Repeat(" ", blank), "\r")
		s.shown = 0
	}
}

// progressEvery is how often the line is drawn.
const progressEvery = time.Second

// start draws what line says, every second, until stop is called, which takes the line away. Where there is no terminal
// neither happens, and line is not called. line runs on a goroutine of its own.
func (s *statusLine) start(line func(elapsed time.Duration) string) (stop func()) {
	if s.width() == 0 {
		return func() {}
	}
	tick := time.NewTicker(progressEvery)
	end := s.follow(tick.C, line)
	return func() { tick.Stop(); end() }
}

// follow draws what line says at every tick.
func (s *statusLine) follow(ticks <-chan time.Time, line func(elapsed time.Duration) string) (stop func()) {
	began := time.Now()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-ticks:
				s.draw(line(time.Since(began)))
			case <-quit:
				s.erase()
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

// A progress says how far something is, in one line.
type progress struct {
	verb  string
	total int64 // 0: not known

	last        int64
	lastElapsed time.Duration
}

// line says how much is done, and how fast it went since it was last asked.
func (p *progress) line(done int64, elapsed time.Duration) string {
	s := fmt.Sprintf("%3.0fs  %s %s", elapsed.Seconds(), p.verb, cli.Thousands(done))
	if p.total > 0 {
		s += fmt.Sprintf(" of %s (%s)", cli.Thousands(p.total), percent(done, p.total))
	}
	if d := (elapsed - p.lastElapsed).Seconds(); d > 0 {
		s += fmt.Sprintf("  %s/s", cli.Thousands(int64(math.Round(float64(max(done-p.last, 0))/d))))
	}
	p.last, p.lastElapsed = done, elapsed
	return s
}

// percent says what part of the total is done. 100% is all of it and nothing less.
func percent(done, total int64) string {
	n := int(min(float64(done)/float64(total)*100, 100))
	if done < total {
		n = min(n, 99)
	}
	return strconv.Itoa(n) + "%"
}

// timesSaturated multiplies two numbers that are not negative; what is too large is the largest.
func timesSaturated(a, b int64) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if high != 0 || low > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(low)
}

// addProgress adds --no-progress. Standard error goes through the status line from then on.
func (f *clientFlags) addProgress(fs *pflag.FlagSet) {
	f.status = newStatusLine(os.Stderr)
	cli.Bool(fs, &f.noProgress, "no-progress", "", "show no progress on the terminal; elsewhere there is none")
}

// stderr is where a client program writes what is not its result.
func (f *clientFlags) stderr() io.Writer {
	if f.status == nil {
		return os.Stderr
	}
	return f.status
}

// note writes a line to standard error.
func (f *clientFlags) note(format string, args ...any) {
	fmt.Fprintf(f.stderr(), format+"\n", args...)
}

// startProgress shows a line while something runs, unless that is not wanted.
func (f *clientFlags) startProgress(line func(elapsed time.Duration) string) (stop func()) {
	if f.noProgress {
		return func() {}
	}
	return f.status.start(line)
}
