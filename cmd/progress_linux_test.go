package cmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/loop"
	"golang.org/x/sys/unix"
)

// A terminal shows what a program writes to it: what has scrolled up, and the bottom line, in which a carriage return goes back
// to the left and what is written replaces what was there.
type terminal struct {
	keyboard *os.File
	columns  int
	done     chan struct{} // nobody has it open any more

	mu      sync.Mutex
	all     bytes.Buffer
	above   []string
	line    []byte
	at      int
	left    int // the column from which the last carriage return went back
	widest  int // of the lines that were written over
	changed chan struct{}
}

// newTerminal returns a terminal, and the file that a program is to have. The program's copy of that file should be the only one.
func newTerminal(t *testing.T, columns int) (*terminal, *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	t.Cleanup(func() { check(t, keyboard.Close()) })
	check(t, unix.IoctlSetPointerInt(int(keyboard.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keyboard.Fd()), unix.TIOCGPTN)
	check(t, err)
	check(t, unix.IoctlSetWinsize(int(keyboard.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)}))
	file, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	check(t, err)
	m := &terminal{keyboard: keyboard, columns: columns, done: make(chan struct{}), changed: make(chan struct{}, 1)}
	return m, file
}

// show shows what is written, until nobody has the terminal open any more.
func (m *terminal) show() {
	defer close(m.done)
	b := make([]byte, 4096)
	for {
		n, err := m.keyboard.Read(b)
		m.write(b[:n])
		if err != nil {
			return
		}
	}
}

func (m *terminal) write(p []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all.Write(p)
	for _, c := range p {
		if m.at == 0 && c != '\n' {
			m.widest = max(m.widest, m.left)
		}
		switch c {
		case '\r':
			m.left, m.at = m.at, 0
		case '\n':
			m.above = append(m.above, strings.TrimRight(string(m.line), " "))
			m.line, m.left, m.at = nil, 0, 0
		default:
			m.line = append(m.line[:m.at:m.at], append([]byte{c}, m.line[min(m.at+1, len(m.line)):]...)...)
			m.at++
		}
	}
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// text returns what has scrolled up, and the bottom line.
func (m *terminal) text() (above []string, bottom string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.above...), strings.TrimRight(string(m.line), " ")
}

// await waits until the bottom line matches.
func (m *terminal) await(t *testing.T, pattern string) {
	t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	re := regexp.MustCompile(pattern)
	for {
		above, bottom := m.text()
		if re.MatchString(bottom) {
			return
		}
		select {
		case <-m.changed:
		case <-m.done:
			t.Fatalf("the program ended without a line like %s; the terminal shows %q and %q", pattern, above, bottom)
		case <-timeout.C:
			t.Fatalf("no line like %s; the terminal shows %q and %q", pattern, above, bottom)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// servedBroker returns the address of a broker that has a topic test of two partitions.
func servedBroker(t *testing.T) string {
	t.Helper()
	b, err := loop.NewBroker(loop.Config{Loops: 1}) // whose program has ended is gone before another asks
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() { stop(); check(t, <-served) })
	addr := "tcp://" + b.Addrs()[0].String()
	c, err := client.Dial(t.Context(), addr)
	check(t, err)
	_, err = c.CreateTopic(t.Context(), "test", client.TopicSettings{Partitions: 2})
	check(t, err)
	check(t, c.Close())
	return addr
}

// startOn starts a program whose standard error is a terminal, which controls it: ^C typed there interrupts it.
func startOn(t *testing.T, columns int, stdin *os.File, args ...string) (*terminal, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	screen, file := newTerminal(t, columns)
	var stdout bytes.Buffer
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = t.TempDir()
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = &stdout, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 2}
	check(t, cmd.Start())
	check(t, file.Close())
	go screen.show()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-screen.done })
	return screen, cmd, &stdout
}

// TestProgressOnTerminal: one line that changes in place, as wide as fits, and that is gone when the program is interrupted.
func TestProgressOnTerminal(t *testing.T) {
	addr := servedBroker(t)
	r, w, err := os.Pipe()
	check(t, err)
	defer func() { check(t, r.Close()) }()
	defer func() { check(t, w.Close()) }()
	_, err = w.WriteString("one\ntwo\n")
	check(t, err)
	for name, tc := range map[string]struct {
		columns     int
		stdin       *os.File
		args        []string
		first, line string // patterns of the first line that stays, and of the one that changes
		stdout      string
	}{
		"producer": {
			120, nil,
			[]string{"lightq-producer", "-m", "1000000", "--rate", "500"},
			"^nobody is attached to ", `^ +[0-9]+s  sent [0-9,]+ of 2,000,000 \(0%\)  [0-9,]+/s  unconfirmed [0-9,]+  failed 0$`, "interrupted",
		},
		"consumer": {
			120, nil,
			[]string{"lightq-consumer", "-m", "1000000"},
			"^attached test: 2 partitions, from earliest$", `^ +[0-9]+s  received [0-9,]+ of 2,000,000 \(0%\)  [0-9,]+/s  lag [0-9,]+  gap 0$`, "interrupted",
		},
		"member": {
			120, nil,
			[]string{"lightq-consumer", "-m", "1000000", "-g", "workers"},
			"^attached test: 2 partitions, in group workers ", `^ +[0-9]+s  received [0-9,]+ of 2,000,000 \(0%\)  [0-9,]+/s  gap 0$`, "interrupted",
		},
		"narrow": {
			20, nil,
			[]string{"lightq-consumer", "-m", "1000000"},
			"^attached test: 2 partitions, from earliest$", `^ +[0-9]+s  received [0-9]`, "interrupted",
		},
		"lines": {
			120, r,
			[]string{"lightq-producer", "-f", "-"},
			"", `^ +[0-9]+s  published 2  [0-9]/s  unconfirmed 0  failed 0$`, "published test: 2 records, 6 B, all confirmed, interrupted, ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			screen, cmd, stdout := startOn(t, tc.columns, tc.stdin, append(tc.args, "-b", addr)...)
			screen.await(t, tc.line)
			_, err := screen.keyboard.Write([]byte{3}) // ^C
			check(t, err)
			<-screen.done
			_ = cmd.Wait() // its exit code is looked at
			if code := cmd.ProcessState.ExitCode(); code != int(cli.ExitInterrupted) {
				t.Errorf("exit code %d", code)
			}
			above, bottom := screen.text()
			if bottom != "" || screen.at != 0 {
				t.Errorf("the line is left over: %q", bottom)
			}
			if tc.first != "" && (len(above) == 0 || !regexp.MustCompile(tc.first).MatchString(above[0])) {
				t.Errorf("above the line is %q", above)
			}
			for _, line := range above {
				if strings.Contains(line, "/s  ") {
					t.Errorf("the line has scrolled up: %q", above)
				}
			}
			if widest := screen.widest; tc.columns == 20 && widest != 19 {
				t.Errorf("%d of %d columns are used", widest, tc.columns)
			}
			if out := stdout.String(); !strings.Contains(out, tc.stdout) || strings.Contains(out, "\r") {
				t.Errorf("standard output is %q", out)
			}
		})
	}
}

// TestNoProgress: with --no-progress a terminal shows the same as a file would hold. The schedule makes the run last 2 s, in
// which a line would have been drawn.
func TestNoProgress(t *testing.T) {
	addr := servedBroker(t)
	consumer, consumed, _ := startOn(t, 80, nil, "lightq-consumer", "-m", "1000", "--no-progress", "-b", addr)
	producer, produced, _ := startOn(t, 80, nil, "lightq-producer", "-m", "1000", "--rate", "1000", "--no-progress", "-b", addr)
	for name, m := range map[string]*terminal{"consumer": consumer, "producer": producer} {
		select {
		case <-m.done:
		case <-time.After(deadline):
			t.Fatalf("the %s does not end", name)
		}
		if all := strings.ReplaceAll(m.all.String(), "\r\n", "\n"); strings.Contains(all, "\r") {
			t.Errorf("the %s's terminal shows %q", name, all)
		}
	}
	check(t, consumed.Wait())
	check(t, produced.Wait())
	if above, _ := consumer.text(); fmt.Sprint(above) == "[]" {
		t.Error("the consumer has not said that it is attached")
	}
}
