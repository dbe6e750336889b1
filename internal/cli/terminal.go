package cli

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether f is a terminal. /dev/null, a character device too, is none.
func IsTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	return err == nil
}

// IsPipe reports whether f is a pipe: neither a terminal, nor a file, nor /dev/null, nor closed.
func IsPipe(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

// WhenReaderGone calls f once, on a goroutine of its own, when w is a pipe or socket whose other end is closed. It tells what
// a write would tell, without one. The goroutine ends with the process, or when w is closed.
func WhenReaderGone(w *os.File, f func()) {
	st, err := w.Stat()
	if err != nil || st.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return
	}
	fd := int32(w.Fd())
	go func() {
		for {
			// No event is asked for; errors and hang-ups are always told.
			fds := []unix.PollFd{{Fd: fd}}
			_, err := unix.Poll(fds, -1)
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue
			}
			if err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				f()
			}
			return
		}
	}()
}

// Redraw returns a function that writes a text of several lines over the last one it wrote. It returns nil where w is not a
// terminal. A line that is wider than the terminal is cut, so that it is one line there too.
func Redraw(w *os.File) func(text string) error {
	if !IsTerminal(w) {
		return nil
	}
	height := 0
	return func(text string) error {
		width := 0
		if size, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil {
			width = int(size.Col)
		}
		s := redrawn(text, height, width)
		height = strings.Count(text, "\n")
		_, err := w.WriteString(s)
		return err
	}
}

// redrawn is a text of lines with the control sequences that put it over height lines above the cursor. width 0: unknown.
func redrawn(text string, height, width int) string {
	var b strings.Builder
	if height > 0 {
		b.WriteString("\x1b[" + strconv.Itoa(height) + "A\r")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if runes := []rune(line); width > 0 && len(runes) > width {
			line = string(runes[:width])
		}
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}
