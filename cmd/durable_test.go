package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
)

// This file starts brokers that keep topics in files, as processes: the field cases about that kill them, stop them, and give them
// bad directories.

// A process is a broker, or what runs one.
type process struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout *watched
	stderr *watched
	done   chan struct{} // closed when it was reaped
}

// startProgram starts a program with the test's own environment but for LightQ's variables, and an own home. change, if not nil,
// changes the command before. The process is gone when the test is over.
func startProgram(t *testing.T, change func(*exec.Cmd), name string, args ...string) *process {
	t.Helper()
	found, once := make(chan struct{}), new(sync.Once)
	p := &process{
		t: t, cmd: exec.Command(name, args...), done: make(chan struct{}),
		stdout: &watched{word: "ready ", found: found, once: once}, stderr: &watched{word: "ready ", found: found, once: once},
	}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LIGHTQ_") && !strings.HasPrefix(kv, "HOME=") && !strings.HasPrefix(kv, "XDG_") {
			p.cmd.Env = append(p.cmd.Env, kv)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "HOME="+filepath.Join(t.TempDir(), "home"), "GORACE=atexit_sleep_ms=0")
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.WaitDelay = deadline
	if change != nil {
		change(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // wait looks at the exit code
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// ready waits for the ready line, or fails the test.
func (p *process) ready() *process {
	p.t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	select {
	case <-p.stdout.found:
		return p
	case <-p.done:
		p.t.Fatalf("the broker ended before it was ready (%s):\n%s", p.cmd.ProcessState, p.text())
	case <-timeout.C:
		p.t.Fatalf("the broker is not ready:\n%s", p.text())
	}
	return p
}

// wait waits for the end, and returns the exit code; -1: by a signal.
func (p *process) wait() int {
	p.t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		p.t.Fatalf("the broker does not end:\n%s", p.text())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("%v: %v\n%s", sig, err, p.text())
	}
}

// kill ends it by SIGKILL, and returns when it is gone.
func (p *process) kill() {
	p.t.Helper()
	p.signal(os.Kill)
	p.wait()
}

func (p *process) text() string { return p.stdout.text() + p.stderr.text() }

// says waits until its standard error holds text.
func (p *process) says(text string) {
	p.t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for !strings.Contains(p.stderr.text(), text) {
		select {
		case <-every.C:
		case <-p.done:
			p.t.Fatalf("the broker has ended (%s), and does not say %q:\n%s", p.cmd.ProcessState, text, p.text())
		case <-timeout.C:
			p.t.Fatalf("the broker does not say %q:\n%s", text, p.text())
		}
	}
}

// A home is where one broker after the other runs: a data directory and a socket.
type home struct{ dir, socket string }

func newHome(t *testing.T) home {
	t.Helper()
	dir := t.TempDir()
	sockets, err := os.MkdirTemp("", "lq") // the path of a socket may have 100 bytes or so
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(sockets); err != nil {
			t.Error(err)
		}
	})
	return home{dir: filepath.Join(dir, "data"), socket: filepath.Join(sockets, "s")}
}

func (h home) server() string { return "unix://" + h.socket }

func (h home) args(more ...string) []string {
	return append([]string{"-t", "ipc", "--bind", h.socket, "--data-dir", h.dir, "--disk-reserve", "0", "-l", "info"}, more...)
}

// start starts a broker, and does not wait for it.
func (h home) start(t *testing.T) *process {
	t.Helper()
	return startProgram(t, nil, "lightq-broker", h.args()...)
}

// dial connects to a broker that is ready.
func dial(t *testing.T, server string, opts ...client.Option) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	c, err := client.Dial(ctx, server, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Log(err) // the broker may be dead by now
		}
	})
	return c
}

// askJSON sends one request of the JSON admin protocol.
func (h home) askJSON(request map[string]any) (reply map[string]any, err error) {
	conn, err := net.DialTimeout("unix", h.socket, deadline)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the reply has been read, or not
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return nil, err
	}
	return reply, json.NewDecoder(conn).Decode(&reply)
}

// runProgram runs a program to its end.
func runProgram(t *testing.T, change func(*exec.Cmd), name string, args ...string) (code int, text string) {
	t.Helper()
	p := startProgram(t, change, name, args...)
	code = p.wait()
	return code, p.text()
}

// oneLine reports whether a text is one line.
func oneLine(text string) bool { return bytes.Count([]byte(text), []byte("\n")) == 1 }
