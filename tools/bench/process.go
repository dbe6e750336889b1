package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// stopGrace is how long a process that was asked to end, or whose peer has failed, may take before it is killed: a
	// broker's drain alone may take five seconds.
	stopGrace = 20 * time.Second

	// keptStdout bounds what a child may print as its result. 1 MiB holds the summaries of thousands of partitions.
	keptStdout = 1 << 20

	// keptStderr is how much of the end of a child's standard error is kept for error messages.
	keptStderr = 4 << 10

	// keptLine is how much of a line is looked at when waiting for one that says "ready".
	keptLine = 4 << 10
)

// command says what to start.
type command struct {
	name string // as reports and errors call it
	path string
	args []string

	// ready, if set, is shown every line the process prints, without its end, from either stream. The first line it accepts
	// makes the process ready; the string it returns is what process.waitReady reports.
	ready func(line string) (string, bool)
}

// processUsage is what the kernel accounted to a process by the time it was reaped.
type processUsage struct {
	Name       string  `json:"name"`
	CPUSeconds float64 `json:"cpu_seconds"` // user and system
	PeakBytes  int64   `json:"peak_bytes"`  // largest resident set
}

// processError is the end of a process other than exit code 0.
type processError struct {
	name   string
	code   int    // exit code; -1 when it was killed by a signal
	state  string // such as "exit status 3"
	stderr string // the end of what it said
}

func (e *processError) Error() string {
	if e.stderr == "" {
		return fmt.Sprintf("%s ended with %s", e.name, e.state)
	}
	return fmt.Sprintf("%s ended with %s: %s", e.name, e.state, e.stderr)
}

// process is a started child. Its methods belong to the goroutine that owns its group.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdout  *output
	stderr  *output
	readyCh chan string   // holds the ready line's value once there is one
	done    chan struct{} // closed when the process is reaped and its output complete
	err     error         // set before done is closed; nil is exit code 0
}

// group owns the processes of one measurement. close leaves none of them running. Only one goroutine may use it.
type group struct {
	grace time.Duration // stopGrace
	procs []*process
	ended chan *process // every process, once, when it has ended
	quit  chan struct{} // closed by close, releases the goroutines that would announce an end
}

func newGroup() *group {
	return &group{grace: stopGrace, ended: make(chan *process), quit: make(chan struct{})}
}

// start runs c in a process group of its own, so that an interrupt typed at the terminal reaches only this program, which
// then cleans up. Where the kernel can (Linux), the child is killed when this program dies.
func (g *group) start(c command) (*process, error) {
	p := &process{name: c.name, readyCh: make(chan string, 1), done: make(chan struct{})}
	seen := func(line string) {
		if c.ready == nil {
			return
		}
		if v, ok := c.ready(line); ok {
			select {
			case p.readyCh <- v:
			default: // only the first counts
			}
		}
	}
	p.stdout = &output{limit: keptStdout, line: seen}
	p.stderr = &output{limit: keptStderr, tail: true, line: seen}
	p.cmd = exec.Command(c.path, c.args...)
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.Env = childEnvironment(os.Environ())
	p.cmd.SysProcAttr = childAttributes()
	p.cmd.WaitDelay = 10 * time.Second // a grandchild that keeps the pipes open must not hold us up
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.name, err)
	}
	g.procs = append(g.procs, p)
	go p.reap(g)
	return p, nil
}

// reap waits for the process to end and says so to its group.
func (p *process) reap(g *group) {
	err := p.cmd.Wait()
	if st := p.cmd.ProcessState; st != nil && !st.Success() {
		err = &processError{
			name:   p.name,
			code:   st.ExitCode(),
			state:  st.String(),
			stderr: strings.TrimSpace(p.stderr.text()),
		}
	} else if err != nil {
		err = fmt.Errorf("wait for %s: %w", p.name, err)
	}
	p.err = err
	close(p.done)
	select {
	case g.ended <- p:
	case <-g.quit:
	}
}

// waitReady returns what command.ready made of the ready line, or why there will be none.
func (p *process) waitReady(ctx context.Context) (string, error) {
	select {
	case v := <-p.readyCh:
		return v, nil
	case <-p.done:
	case <-ctx.Done():
		return "", fmt.Errorf("wait for %s to be ready: %w", p.name, context.Cause(ctx))
	}
	select {
	case v := <-p.readyCh: // it was ready, and then ended
		return v, nil
	default:
	}
	if p.err != nil {
		return "", p.err
	}
	return "", fmt.Errorf("%s ended before it was ready", p.name)
}

// wait waits until each of procs has ended. A failure of one gives the others the grace to end too, and then is returned.
// The end of a process of the group that is not among procs, such as the broker's, is a failure at once.
func (g *group) wait(ctx context.Context, procs ...*process) error {
	pending := make(map[*process]bool, len(procs))
	for _, p := range procs {
		pending[p] = true
	}
	var failed error
	var grace <-chan time.Time
	for len(pending) > 0 {
		select {
		case p := <-g.ended:
			if !pending[p] {
				if p.err != nil {
					return errors.Join(p.err, failed)
				}
				return errors.Join(fmt.Errorf("%s ended before it was asked to", p.name), failed)
			}
			delete(pending, p)
			if p.err != nil && failed == nil {
				failed = p.err
				timer := time.NewTimer(g.grace)
				defer timer.Stop()
				grace = timer.C
			}
		case <-grace:
			return failed
		case <-ctx.Done():
			names := make([]string, 0, len(pending))
			for _, p := range procs {
				if pending[p] {
					names = append(names, p.name)
				}
			}
			return fmt.Errorf("wait for %s: %w", strings.Join(names, ", "), context.Cause(ctx))
		}
	}
	if failed == nil {
		return nil
	}
	// Where the broker broke, its clients may be seen to end before it is.
	timer := time.NewTimer(aftermath)
	defer timer.Stop()
	select {
	case p := <-g.ended:
		return errors.Join(p.err, failed)
	case <-timer.C:
	case <-ctx.Done():
	}
	return failed
}

// aftermath is how long a failed wait looks for the end of whatever else may have caused the failure.
const aftermath = time.Second

// stop asks p to end by SIGTERM and kills it when it has not within the grace, which is an error.
func (g *group) stop(p *process) error {
	// A process that has ended already is reported by its own error below.
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	timer := time.NewTimer(g.grace)
	defer timer.Stop()
	late := timer.C
	var slow error
	for {
		select {
		case ended := <-g.ended:
			if ended == p {
				return errors.Join(slow, p.err)
			}
		case <-late:
			slow = fmt.Errorf("%s did not end within %v of SIGTERM and was killed", p.name, g.grace)
			p.kill()
		}
	}
}

// kill ends p and whatever it started, at once. It does nothing to a process that has been reaped: its number may be
// another's by now.
func (p *process) kill() {
	select {
	case <-p.done:
		return
	default:
	}
	// The leader is not reaped before done is closed, at worst a moment ago: the group's number is still its own or free.
	if err := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		_ = p.cmd.Process.Kill() // the group may not exist yet; the process does
	}
}

// close kills what still runs, last started first, and returns when everything is reaped.
func (g *group) close() {
	close(g.quit)
	for i := len(g.procs) - 1; i >= 0; i-- {
		g.procs[i].kill()
		<-g.procs[i].done
	}
}

// usage returns what the kernel accounted to p. Only after p has ended.
func (p *process) usage() processUsage {
	st := p.cmd.ProcessState
	u := processUsage{Name: p.name, CPUSeconds: (st.UserTime() + st.SystemTime()).Seconds()}
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		u.PeakBytes = peakBytes(ru)
	}
	return u
}

// childEnvironment is env without LightQ's own settings: what is measured is the defaults and what the command line says.
func childEnvironment(env []string) []string {
	kept := make([]string, 0, len(env))
	for _, kv := range env {
		if !strings.HasPrefix(kv, "LIGHTQ_") {
			kept = append(kept, kv)
		}
	}
	return kept
}

// output keeps the beginning (or, with tail, the end) of what a child prints, and shows each line to a function. os/exec
// writes to it from a goroutine of its own.
type output struct {
	limit int
	tail  bool
	line  func(string)

	mu      sync.Mutex
	kept    []byte
	dropped bool
	partial []byte // of the current line, at most keptLine bytes
}

// Write never fails: a child must not stall or die because it says too much.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.keepLocked(b)
	rest := b
	for {
		head, after, found := bytes.Cut(rest, []byte{'\n'})
		o.partial = append(o.partial, head[:min(len(head), keptLine-len(o.partial))]...)
		if !found {
			return len(b), nil
		}
		o.line(strings.TrimSuffix(string(o.partial), "\r"))
		o.partial = o.partial[:0]
		rest = after
	}
}

func (o *output) keepLocked(b []byte) {
	if o.tail {
		o.kept = append(o.kept, b...)
		if over := len(o.kept) - o.limit; over > 0 {
			o.kept = append(o.kept[:0], o.kept[over:]...)
			o.dropped = true
		}
		return
	}
	n := min(len(b), o.limit-len(o.kept))
	o.kept = append(o.kept, b[:n]...)
	o.dropped = o.dropped || n < len(b)
}

// text returns what was kept, with a mark where something was not.
func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.dropped:
		return string(o.kept)
	case o.tail:
		return "[…] " + string(o.kept)
	default:
		return string(o.kept) + " […]"
	}
}
