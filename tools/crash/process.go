package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/lightio/lightq/internal/cli"
)

const brokerName = "lightq-broker"

// findBroker returns the broker's program: path if it is given, else the one beside this program, else one built into scratch.
func findBroker(ctx context.Context, path, scratch string) (string, error) {
	if path != "" {
		abs, err := filepath.Abs(path)
		if err != nil {
			return "", cli.Usagef("--broker %q: %v", path, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return "", cli.Usagef("--broker: %v", err)
		}
		return abs, nil
	}
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), brokerName); isProgram(beside) {
			return beside, nil
		}
	}
	built := filepath.Join(scratch, brokerName)
	out, err := exec.CommandContext(ctx, "go", "build", "-o", built, "github.com/lightio/lightq/cmd/"+brokerName).CombinedOutput()
	if err != nil {
		return "", &cli.Error{
			Exit: cli.ExitFailure, Text: fmt.Sprintf("build %s: %v: %s", brokerName, err, bytes.TrimSpace(out)),
			Fix: "run this inside the checkout, or name the program with --broker",
		}
	}
	return built, nil
}

func isProgram(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// A broker is a program that is started again and again, on the same data directory and Unix socket. One goroutine uses it.
type broker struct {
	program string
	dataDir string
	socket  string
	log     string // file that its standard error is added to

	cmd   *exec.Cmd
	ready chan struct{} // closed when it is ready
	ended chan struct{} // closed when it was reaped
}

func (b *broker) addr() string { return "unix://" + b.socket }

// start starts the process, and does not wait until it is ready.
func (b *broker) start() error {
	log, err := os.OpenFile(b.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the broker's log: %w", err)
	}
	defer func() { _ = log.Close() }() // the process has its own
	cmd := exec.Command(b.program, "-t", "ipc", "--bind", b.socket, "--data-dir", b.dataDir, "--disk-reserve", "0", "-l", "info")
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "LIGHTQ_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the broker: %w", err)
	}
	b.cmd, b.ready, b.ended = cmd, make(chan struct{}), make(chan struct{})
	go func(ready, ended chan struct{}) {
		lines, said := bufio.NewReader(stdout), false
		for {
			line, err := lines.ReadString('\n')
			if !said && strings.HasPrefix(line, "ready ") {
				said = true
				close(ready)
			}
			if err != nil {
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait() // its state is looked at by those who wait for the end
		close(ended)
	}(b.ready, b.ended)
	return nil
}

// waitReady waits until clients can connect.
func (b *broker) waitReady(ctx context.Context) error {
	select {
	case <-b.ready:
		return nil
	case <-b.ended:
		return fmt.Errorf("the broker does not start (%s): %s", b.cmd.ProcessState, b.lastWords())
	case <-ctx.Done():
		return fmt.Errorf("wait for the broker to be ready: %w", context.Cause(ctx))
	}
}

// end sends a signal, and returns when the process is gone. It fails if that does not end with the exit code; -1 is by the signal.
func (b *broker) end(ctx context.Context, sig syscall.Signal, code int) error {
	select {
	case <-b.ended:
		return fmt.Errorf("the broker has ended by itself (%s): %s", b.cmd.ProcessState, b.lastWords())
	default:
	}
	if err := b.cmd.Process.Signal(sig); err != nil {
		<-b.ended
		return fmt.Errorf("the broker has ended by itself (%s): %s", b.cmd.ProcessState, b.lastWords())
	}
	select {
	case <-b.ended:
	case <-ctx.Done():
		return fmt.Errorf("wait for the broker to end after %v: %w", sig, context.Cause(ctx))
	}
	if got := b.cmd.ProcessState.ExitCode(); got != code {
		return fmt.Errorf("the broker ends with %d after %v (%s), not with %d: %s", got, sig, b.cmd.ProcessState, code, b.lastWords())
	}
	return nil
}

// close leaves no process behind.
func (b *broker) close() {
	if b.cmd == nil {
		return
	}
	if err := b.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return
	}
	<-b.ended
}

// lastWords is the end of the broker's log.
func (b *broker) lastWords() string {
	const most = 2000
	text, err := os.ReadFile(b.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-most):]))
}

// pause waits; it is false when ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
