package cli

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openTerminal returns both ends of a pseudo-terminal: what is written to keyboard is typed on terminal.
func openTerminal(t *testing.T) (keyboard, terminal *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, keyboard) })
	if err := unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, terminal) })
	return keyboard, terminal
}

// asked tells when the question has been written.
type asked chan struct{}

func (a asked) Write(p []byte) (int, error) {
	close(a)
	return len(p), nil
}

// TestAskSecret: what is typed is returned and not shown, and the terminal is as before.
func TestAskSecret(t *testing.T) {
	for typed, want := range map[string]string{"hunter2\n": "hunter2", " with blanks \n": " with blanks ", "\n": ""} {
		keyboard, terminal := openTerminal(t)
		before, err := unix.IoctlGetTermios(int(terminal.Fd()), getTermios)
		if err != nil {
			t.Fatal(err)
		}
		question, done := make(asked), make(chan struct{})
		var got string
		var askErr error
		go func() {
			defer close(done)
			got, askErr = AskSecret(question, terminal, "password: ")
		}()
		<-question
		if _, err := keyboard.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatal("no answer after a minute")
		}
		if got != want || (askErr == nil) != (want != "") {
			t.Errorf("%q: %q, %v", typed, got, askErr)
		}
		after, err := unix.IoctlGetTermios(int(terminal.Fd()), getTermios)
		if err != nil || *after != *before || after.Lflag&unix.ECHO == 0 {
			t.Errorf("%q: the terminal is not as before: %v", typed, err)
		}
		// What the terminal shows after the answer ends with a word of ours, so that the read ends.
		if _, err := terminal.WriteString("shown\n"); err != nil {
			t.Fatal(err)
		}
		var shown bytes.Buffer
		for b := make([]byte, 256); !strings.Contains(shown.String(), "shown"); {
			n, err := keyboard.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			shown.Write(b[:n])
		}
		if want != "" && strings.Contains(shown.String(), strings.TrimSpace(want)) {
			t.Errorf("the terminal shows %q", shown.String())
		}
	}
}
