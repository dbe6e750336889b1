package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func shell(t *testing.T, g *group, script string, ready func(string) (string, bool)) *process {
	t.Helper()
	p, err := g.start(command{name: "child", path: "/bin/sh", args: []string{"-c", script}, ready: ready})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventDeadline)
	t.Cleanup(cancel)
	return ctx
}

func TestProcessEnds(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
		says   string
	}{
		{script: "echo fine"},
		{script: "echo wrong >&2; exit 7", code: 7, says: "wrong"},
		{script: "kill -9 $$", code: -1, says: "killed"},
	} {
		g := newGroup()
		p := shell(t, g, c.script, nil)
		err := g.wait(testContext(t), p)
		var pe *processError
		switch {
		case c.says == "":
			if err != nil {
				t.Errorf("%s: %v", c.script, err)
			}
		case !errors.As(err, &pe) || pe.code != c.code || !strings.Contains(err.Error(), c.says):
			t.Errorf("%s: %v", c.script, err)
		}
		g.close()
	}
}

func TestWaitReady(t *testing.T) {
	ready := func(line string) (string, bool) { return strings.CutPrefix(line, "ready ") }
	for _, c := range []struct{ script, value, fails string }{
		{script: "echo no; echo ready one; echo ready two; read forever", value: "one"},
		{script: "printf 'ready err\\r\\n' >&2; read forever", value: "err"},
		{script: "echo ready and gone", value: "and gone"},
		{script: "echo nothing", fails: "ended before it was ready"},
		{script: "echo broken >&2; exit 3", fails: "broken"},
	} {
		g := newGroup()
		v, err := shell(t, g, c.script, ready).waitReady(testContext(t))
		switch {
		case c.fails == "" && (err != nil || v != c.value):
			// A child without standard input may end at once, ready it was.
			t.Errorf("%s: %q, %v", c.script, v, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %v", c.script, err)
		}
		g.close()
	}
}

func TestWaitReadyGivesUp(t *testing.T) {
	g := newGroup()
	defer g.close()
	ctx, cancel := context.WithCancelCause(t.Context())
	p := shell(t, g, "exec sleep 1000", nil)
	cancel(errTimeout)
	if _, err := p.waitReady(ctx); !errors.Is(err, errTimeout) {
		t.Error(err)
	}
}

func TestStopAsksFirst(t *testing.T) {
	g := newGroup()
	defer g.close()
	p := shell(t, g, "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.01; done", func(l string) (string, bool) {
		return l, l == "up"
	})
	if _, err := p.waitReady(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.stop(p); err != nil {
		t.Fatal(err)
	}
	if got := p.stdout.text(); got != "up\nbye\n" {
		t.Errorf("it said %q", got)
	}
	if u := p.usage(); u.CPUSeconds < 0 || u.PeakBytes < 1<<16 || u.Name != "child" {
		t.Errorf("usage %+v", u)
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	g := newGroup()
	g.grace = 10 * time.Millisecond
	defer g.close()
	p := shell(t, g, "trap '' TERM; echo up; while :; do sleep 1000; done", func(l string) (string, bool) {
		return l, l == "up"
	})
	if _, err := p.waitReady(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := g.stop(p); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Error(err)
	}
}

func TestWaitSeesTheOthersEnd(t *testing.T) {
	g := newGroup()
	defer g.close()
	stays := shell(t, g, "exec sleep 1000", nil)
	shell(t, g, "echo the broker broke >&2; exit 1", nil)
	if err := g.wait(testContext(t), stays); err == nil || !strings.Contains(err.Error(), "the broker broke") {
		t.Error(err)
	}
}

func TestWaitGivesTheOthersGraceOnly(t *testing.T) {
	g := newGroup()
	g.grace = 10 * time.Millisecond
	defer g.close()
	stays := shell(t, g, "exec sleep 1000", nil)
	fails := shell(t, g, "exit 4", nil)
	var pe *processError
	if err := g.wait(testContext(t), stays, fails); !errors.As(err, &pe) || pe.code != 4 {
		t.Error(err)
	}
}

func TestStartFails(t *testing.T) {
	g := newGroup()
	defer g.close()
	if _, err := g.start(command{name: "nothing", path: "/no/such/program"}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestChildEnvironment(t *testing.T) {
	got := childEnvironment([]string{"PATH=/bin", "LIGHTQ_PORT=1", "GOGC=50"})
	if !slices.Equal(got, []string{"PATH=/bin", "GOGC=50"}) {
		t.Error(got)
	}
}

func TestOutputIsBounded(t *testing.T) {
	var lines []string
	o := &output{limit: 8, line: func(l string) { lines = append(lines, l) }}
	for _, s := range []string{"ab", "c\nde", "f\n\ngh", strings.Repeat("x", 2*keptLine), "\nend"} {
		if n, err := o.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := o.text(); got != "abc\ndef\n […]" {
		t.Errorf("kept %q", got)
	}
	if len(lines) != 4 || lines[0] != "abc" || lines[1] != "def" || lines[2] != "" || len(lines[3]) != keptLine {
		t.Errorf("lines %q", lines)
	}
	tail := &output{limit: 4, tail: true, line: func(string) {}}
	for _, s := range []string{"abc", "def", "g"} {
		_, _ = tail.Write([]byte(s))
	}
	if got := tail.text(); got != "[…] defg" {
		t.Errorf("kept %q", got)
	}
}
