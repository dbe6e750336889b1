package cmd

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// publishAll publishes numbered messages to a topic, and fails the test unless all are confirmed.
func publishAll(t *testing.T, p *client.Producer, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		if err := p.PublishValue(t.Context(), 0, fmt.Appendf(nil, "message %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// readAll reads a topic of one partition from its first record, and fails the test unless it holds the messages 0 to n.
func readAll(t *testing.T, c *client.Client, topic string, n int) {
	t.Helper()
	d, err := c.Describe(t.Context(), topic)
	if err != nil || len(d.Partitions) != 1 || d.Partitions[0].High != codec.Offset(n) {
		t.Fatalf("topic %s: %+v, %v, want %d records", topic, d, err, n)
	}
	if n == 0 {
		return
	}
	consumer, err := c.Consumer(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }() // it was only read from
	i := 0
	for r, err := range consumer.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("message %d", i); string(r.Value) != want || r.Offset != codec.Offset(i) {
			t.Fatalf("offset %d holds %q, want %q", r.Offset, r.Value, want)
		}
		if i++; i == n {
			return
		}
	}
	t.Fatalf("%d records, want %d", i, n)
}

func createTopic(t *testing.T, c *client.Client, name string, s client.TopicSettings) {
	t.Helper()
	if _, err := c.CreateTopic(t.Context(), name, s); err != nil {
		t.Fatal(err)
	}
}

// publishKept makes the topic kept, in files, publishes so many messages to it, and returns the producer.
func publishKept(t *testing.T, c *client.Client, n int) *client.Producer {
	t.Helper()
	createTopic(t, c, "kept", fileTopic)
	p, err := c.Producer(t.Context(), "kept")
	if err != nil {
		t.Fatal(err)
	}
	publishAll(t, p, 0, n)
	return p
}

var fileTopic = client.TopicSettings{Storage: codec.StorageFile, Partitions: 1}

// TestF12HangUp: F12, the rest of it: what loses nothing because it does not end the broker. SIGHUP leaves one line in the log;
// standard input that is closed or at its end, and a terminal or a log whose reader is gone, leave none.
func TestF12HangUp(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*exec.Cmd)
		do     func(*testing.T, *process)
	}{
		{"SIGHUP", nil, func(t *testing.T, p *process) {
			p.signal(syscall.SIGHUP)
			p.says("SIGHUP: nothing changes")
			p.signal(syscall.SIGHUP)
		}},
		{"standard input is closed", func(cmd *exec.Cmd) { // an exec'd shell's: os/exec would open the null device
			cmd.Args = append([]string{"sh", "-c", `exec "$0" "$@" <&-`}, cmd.Args...)
			cmd.Path, cmd.Err = "/bin/sh", nil
		}, func(*testing.T, *process) {}},
		{"standard input ends", func(cmd *exec.Cmd) { cmd.Stdin = strings.NewReader("a line\n") }, func(*testing.T, *process) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHome(t)
			p := startProgram(t, tc.change, "lightq-broker", h.args()...).ready()
			c := dial(t, h.server())
			producer := publishKept(t, c, 100)
			tc.do(t, p)
			publishAll(t, producer, 100, 200)
			readAll(t, c, "kept", 200)
			p.signal(syscall.SIGTERM)
			if code := p.wait(); code != 0 {
				t.Errorf("exit code %d:\n%s", code, p.text())
			}
			h.start(t).ready()
			readAll(t, dial(t, h.server()), "kept", 200)
		})
	}
}

// TestF12OutputGone: F12. Nobody reads what the broker prints any more, as behind a pipe whose reader has ended: it goes on, and
// drains when it is told to.
func TestF12OutputGone(t *testing.T) {
	h := newHome(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, func(cmd *exec.Cmd) { cmd.Stderr = w }, "lightq-broker", h.args()...).ready()
	if err := w.Close(); err != nil { // the broker has its own
		t.Fatal(err)
	}
	if _, err := io.ReadAtLeast(r, make([]byte, 1), 1); err != nil { // its log goes there
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	c := dial(t, h.server())
	producer := publishKept(t, c, 100)
	p.signal(syscall.SIGHUP) // something to log
	if reply, err := h.askJSON(map[string]any{"cmd": "ping"}); err != nil || reply["status"] != "ok" {
		t.Errorf("ping: %v, %v", reply, err)
	}
	publishAll(t, producer, 100, 200)
	p.signal(syscall.SIGTERM) // and again
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d (%s)", code, p.cmd.ProcessState)
	}
	h.start(t).ready()
	readAll(t, dial(t, h.server()), "kept", 200)
}

// TestF12Clean: F12. Behind an orderly stop nothing is left to recover: what was published to files was synced, and marked so.
func TestF12Clean(t *testing.T) {
	for _, tc := range []struct {
		sig   syscall.Signal
		code  int
		clean bool
	}{{syscall.SIGTERM, 0, true}, {syscall.SIGINT, 0, true}, {syscall.SIGQUIT, 2, false}} {
		t.Run(tc.sig.String(), func(t *testing.T) {
			h := newHome(t)
			p := h.start(t).ready()
			c := dial(t, h.server())
			lazy := fileTopic
			lazy.Sync = codec.SyncOS
			for name, s := range map[string]client.TopicSettings{"kept": fileTopic, "lazy": lazy} {
				createTopic(t, c, name, s)
				producer, err := c.Producer(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				publishAll(t, producer, 0, 300)
			}
			p.signal(tc.sig)
			if code := p.wait(); code != tc.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tc.code, p.text())
			}
			if drained, dumped := strings.Contains(p.text(), "draining"), strings.Contains(p.text(), "SIGQUIT: quit"); drained != tc.clean || dumped == tc.clean {
				t.Errorf("drained: %v, stacks: %v\n%s", drained, dumped, p.text())
			}
			q := h.start(t).ready()
			if !tc.clean {
				q.says("msg=recovered")
			}
			c = dial(t, h.server())
			readAll(t, c, "kept", 300)
			if tc.clean {
				readAll(t, c, "lazy", 300)
				q.signal(syscall.SIGTERM)
				q.wait() // it has said all
				if strings.Contains(q.text(), "msg=recovered") {
					t.Errorf("something was recovered:\n%s", q.text())
				}
			}
		})
	}
}
