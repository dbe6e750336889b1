package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/program"
)

// liar is the name by which the test binary is a broker that loses what it has confirmed: it cuts segments before it starts.
const liar = "lightq-liar"

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case liar:
		if err := cutSegments(os.Args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fallthrough
	case brokerName:
		os.Exit(program.Broker(os.Args[1:]))
	}
	// Under the race detector every process sleeps a second before it exits, unless told otherwise.
	if err := os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func cutSegments(args []string) error {
	dir := args[slices.Index(args, "--data-dir")+1]
	segments, err := filepath.Glob(filepath.Join(dir, "topics", "*", "0", "*.seg"))
	for _, path := range segments {
		err = errors.Join(err, os.Truncate(path, 8<<10))
	}
	return err
}

// asProgram is a path by which the test binary is another program.
func asProgram(t *testing.T, name string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	return link
}

// TestSoakCrash kills a real broker for some seconds; with LIGHTQ_SOAK for five minutes.
func TestSoakCrash(t *testing.T) {
	args := []string{"--broker", asProgram(t, brokerName), "--time", "8s", "--rounds", "12", "--life", "600ms"}
	if os.Getenv("LIGHTQ_SOAK") != "" {
		args = []string{"--broker", asProgram(t, brokerName), "--time", "5m"}
	}
	var stdout, stderr bytes.Buffer
	code := run(args, &stdout, &stderr)
	t.Logf("%s%s", stdout.String(), stderr.String())
	if code != 0 || !strings.Contains(stdout.String(), "\nok: ") {
		t.Errorf("exit code %d", code)
	}
}

// TestF12Signals: F12. An orderly stop loses or repeats the last second. Producers and consumers are there while the broker is
// ended by SIGTERM, SIGINT (each with exit code 0) and SIGQUIT, and go on with the next one: what was confirmed is there, once,
// and no consumer gets a record twice.
func TestF12Signals(t *testing.T) {
	for _, name := range []string{"term", "int", "quit"} {
		t.Run(name, func(t *testing.T) {
			rounds := "2"
			if os.Getenv("LIGHTQ_SOAK") != "" {
				rounds = "40"
			}
			var stdout, stderr bytes.Buffer
			code := run([]string{"--broker", asProgram(t, brokerName), "--signal", name, "--rounds", rounds, "--time", "5m", "--life", "500ms"}, &stdout, &stderr)
			t.Logf("%s%s", stdout.String(), stderr.String())
			if code != 0 || !strings.Contains(stdout.String(), "\nok: ") {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestLoss: a broker that loses what it has confirmed is found out.
func TestLoss(t *testing.T) {
	var stdout, stderr bytes.Buffer
	dir := filepath.Join(t.TempDir(), "data")
	code := run([]string{"--broker", asProgram(t, liar), "--rounds", "3", "--data-dir", dir, "--seed", "1"}, &stdout, &stderr)
	text := stdout.String() + stderr.String()
	if code != 6 || !strings.HasPrefix(text, "seed 1, ") || !strings.Contains(text, "lost: ") || !strings.Contains(stderr.String(), "seed 1; the first: ") {
		t.Errorf("exit code %d:\n%s", code, text)
	}
	_, logPath, _ := strings.Cut(strings.TrimSpace(stdout.String()), "are kept: "+dir+" ")
	if _, err := os.Stat(dir); err != nil {
		t.Error("the data directory is not kept:", err)
	}
	if err := os.RemoveAll(filepath.Dir(logPath)); err != nil || filepath.Base(logPath) != "broker.log" {
		t.Errorf("the broker's log is at %q, %v", logPath, err)
	}
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, 0, "Exit 6: something is wrong"},
		{[]string{"--size", "3"}, 2, "--size from 36"},
		{[]string{"--time", "-1s"}, 2, "above 0"},
		{[]string{"--broker", "/nowhere/lightq-broker"}, 2, "/nowhere/lightq-broker"},
		{[]string{"--signal", "stop"}, 2, "kill, term, int or quit"},
		{[]string{"more"}, 2, "more"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(tc.args, &stdout, &stderr)
		if text := stdout.String() + stderr.String(); code != tc.code || !strings.Contains(text, tc.says) {
			t.Errorf("%q: exit code %d, want %d and %q:\n%s", tc.args, code, tc.code, tc.says, text)
		}
	}
}

// TestLedger: each way in which what is read may differ from what was promised is a finding.
func TestLedger(t *testing.T) {
	const run = 7
	plan := []topicPlan{{"a", client.TopicSettings{Partitions: 1}}}
	record := func(offset codec.Offset, producer int, number uint32) *client.Record {
		return &client.Record{Record: codec.Record{Offset: offset, Value: appendMessage(nil, run, 0, producer, number, 50)}}
	}
	for _, tc := range []struct {
		name string
		do   func(p *part, v *pass)
		want string // empty: nothing
	}{
		{"all is well", func(p *part, v *pass) {
			v.record(record(0, 0, 1))
			v.record(record(1, 1, 1))
			v.gap(codec.Gap{From: 2, Next: 5})
			v.record(record(5, 0, 2))
			again := p.pass("again", 1)
			again.record(record(1, 1, 1))
			again.gap(codec.Gap{From: 2, Next: 5})
			again.record(record(5, 0, 2))
			p.outcome(0, 2, client.Receipt{Offset: 5}, nil)
		}, ""},
		{"twice", func(p *part, v *pass) { v.record(record(0, 1, 1)); v.record(record(1, 1, 1)) }, "offset 1 holds message 1 of producer 1, behind message 1"},
		{"twice, by two readers", func(p *part, v *pass) {
			v.record(record(0, 1, 1))
			p.pass("again", 3).record(record(3, 1, 1))
		}, "message 1 of producer 1 is at offset 0 and at 3"},
		{"out of order", func(p *part, v *pass) { v.record(record(0, 0, 2)); v.record(record(1, 0, 1)) }, "behind message 2"},
		{"an offset used again", func(p *part, v *pass) {
			v.record(record(0, 0, 2))
			p.pass("again", 0).record(record(0, 1, 1))
		}, "offset 0 held message 2 of producer 0, and now message 1 of producer 1"},
		{"a silent gap", func(p *part, v *pass) { v.record(record(1, 1, 1)) }, "expects offset 0 and gets 1"},
		{"a told gap over what was confirmed", func(p *part, v *pass) { v.gap(codec.Gap{From: 0, Next: 1}) }, "lost: message 1 of producer 0"},
		{"a told gap over what was seen", func(p *part, v *pass) {
			v.record(record(0, 0, 1))
			v.record(record(1, 1, 1))
			p.pass("again", 1).gap(codec.Gap{From: 1, Next: 2})
		}, "lost: offset 1 was seen"},
		{"a gap from elsewhere", func(p *part, v *pass) { v.gap(codec.Gap{From: 7, Next: 9}) }, "is told of a gap"},
		{"confirmed elsewhere", func(p *part, v *pass) { v.record(record(0, 1, 1)); p.outcome(1, 1, client.Receipt{Offset: 1}, nil) }, "and then confirmed at 1"},
		{"two outcomes", func(p *part, v *pass) { p.outcome(0, 1, client.Receipt{}, nil) }, "two outcomes"},
		{"refused and there", func(p *part, v *pass) {
			v.record(record(0, 1, 1))
			p.outcome(1, 1, client.Receipt{}, codec.CodeNoSpace)
		}, "then refused"},
		{"never published", func(p *part, v *pass) { v.record(record(0, 1, 9)) }, "which was not published"},
		{"by nobody", func(p *part, v *pass) { v.record(record(0, 9, 1)) }, "which was not published"},
		{"garbage", func(p *part, v *pass) {
			r := record(0, 0, 1)
			r.Value[40] ^= 0x10
			v.record(r)
		}, "nobody published: its checksum is wrong"},
		{"of another run", func(p *part, v *pass) {
			v.record(&client.Record{Record: codec.Record{Value: appendMessage(nil, run+1, 0, 0, 1, 50)}})
		}, "another run"},
		{"of another partition", func(p *part, v *pass) {
			v.record(&client.Record{Record: codec.Record{Value: appendMessage(nil, run, 1, 0, 1, 50)}})
		}, "another partition"},
		{"short", func(p *part, v *pass) { v.record(&client.Record{}) }, "nobody published: 0 bytes"},
		{"never seen", func(p *part, v *pass) { p.complete() }, "lost: message 1 of producer 0, confirmed at offset 0"},
		{"no outcome", func(p *part, v *pass) { p.complete() }, "no outcome of message 1 of producer 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger(run, plan, 2)
			p := l.parts[0]
			p.send(0)
			p.send(0)
			p.send(1)
			p.outcome(0, 1, client.Receipt{Offset: 0}, nil)
			tc.do(p, p.pass("the reader", 0))
			found := strings.Join(l.findings(), "\n")
			if tc.want == "" && found != "" || !strings.Contains(found, tc.want) {
				t.Errorf("found %q, want %q", found, tc.want)
			}
		})
	}
}
