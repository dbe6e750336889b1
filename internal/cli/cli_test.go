package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestParseServer(t *testing.T) {
	for s, want := range map[string]string{
		"tcp://127.0.0.1:5500":       "tcp://127.0.0.1:5500",
		"localhost:1":                "tcp://localhost:1",
		"[::1]:65535":                "tcp://[::1]:65535",
		"unix:///run/lightq/sock":    "unix:///run/lightq/sock",
		"tcp://broker.example:06500": "tcp://broker.example:06500",
	} {
		if got, err := ParseServer(s); err != nil || got != want {
			t.Errorf("ParseServer(%q) = %q, %v", s, got, err)
		}
	}
	for _, s := range []string{
		"", ":5500", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "::1:5500",
		"tcp://", "tcp://host:1/path", "unix://", "unix://relative", "http://host:80", "inproc://x", "TCP://host:1", "ho st:1",
	} {
		if got, err := ParseServer(s); err == nil {
			t.Errorf("ParseServer(%q) = %q", s, got)
		}
	}
}

// TestExplain is the table of what a user reads when the broker or the network says no.
func TestExplain(t *testing.T) {
	dial := func(err error) error {
		return &client.ConnError{Op: "dial", Addr: "x", Err: &net.OpError{Op: "dial", Net: "tcp", Err: err}}
	}
	wire := func(c codec.Code) error {
		return fmt.Errorf("open topic: %w", &client.PartitionError{Topic: "orders", Err: codec.Errorf(c, "a detail")})
	}
	const other = "tcp://127.0.0.1:5600"
	for _, tc := range []struct {
		err    error
		server string
		exit   ExitCode
		text   string
	}{
		{nil, other, ExitDone, ""},
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), DefaultServer, ExitUnreachable, "no broker answers at tcp://127.0.0.1:5500 (connection refused): start one with: lightq-broker"},
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), other, ExitUnreachable, "no broker answers at tcp://127.0.0.1:5600 (connection refused): start one with: lightq-broker -b 5600"},
		{dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), "tcp://10.0.0.1:5500", ExitUnreachable, "no broker answers at tcp://10.0.0.1:5500 (connection refused): start one with: lightq-broker (on 10.0.0.1)"},
		{dial(os.NewSyscallError("connect", syscall.ENOENT)), "unix:///s", ExitUnreachable, "no broker answers at unix:///s (no such file or directory): start one with: lightq-broker -t ipc --bind /s"},
		{dial(&net.DNSError{Err: "no such host", Name: "nowhere"}), "tcp://nowhere:1", ExitUnreachable, "no broker answers at tcp://nowhere:1 (no such host: nowhere): give another address with -b"},
		{dial(context.DeadlineExceeded), other, ExitUnreachable, "no broker answers at tcp://127.0.0.1:5600 (timed out): start one with: lightq-broker -b 5600"},
		{&client.ConnError{Op: "hello", Err: fmt.Errorf("closed: %w", io.EOF)}, other, ExitUnreachable, "no broker answers at tcp://127.0.0.1:5600 (the other side closed it): something else may be listening there"},
		{&client.ConnError{Op: "read", Err: io.EOF}, other, ExitUnreachable, "the connection to tcp://127.0.0.1:5600 is lost (the other side closed it)"},
		{&client.ConnError{Op: "read", Err: codec.Errorf(codec.CodeDraining, "stopping")}, other, ExitUnreachable, "the broker at " + other + " is stopping"},
		{context.DeadlineExceeded, other, ExitUnreachable, "tcp://127.0.0.1:5600 did not answer in time"},
		{wire(codec.CodeUnknownTopic), DefaultServer, ExitNotFound, "unknown topic orders: create it with: lightq-topic -t orders -n 1"},
		{wire(codec.CodeUnknownTopic), other, ExitNotFound, "unknown topic orders: create it with: lightq-topic -t orders -n 1 -b tcp://127.0.0.1:5600"},
		{wire(codec.CodeUnknownPartition), other, ExitNotFound, "the broker answers unknown_partition: a detail"},
		{wire(codec.CodeInvalidName), other, ExitUsage, "-t, --topic is refused: invalid_name: a detail"},
		{wire(codec.CodeInvalidSetting), other, ExitUsage, "orders is refused: invalid_setting: a detail"},
		{wire(codec.CodeTopicDeleted), other, ExitNotFound, "topic orders was deleted while it was in use"},
		{wire(codec.CodeOverflow), other, ExitFailure, "topic orders is full and refuses what does not fit (overflow=reject): its consumers are behind: lightq-topic stats -t orders -b tcp://127.0.0.1:5600 shows how far"},
		{wire(codec.CodeNotAllowed), other, ExitNotAllowed, "the broker answers not_allowed: a detail"},
		{wire(codec.CodeNotYet), other, ExitNotYet, "not yet: a detail"},
		{wire(codec.CodeTooManyConnections), other, ExitUnreachable, "the broker answers too_many_connections: a detail"},
		{wire(codec.CodeOffsetOutOfRange), other, ExitFailure, "the broker answers offset_out_of_range: a detail: --from earliest starts at the first record kept"},
		{wire(codec.CodeSlowConsumer), other, ExitFailure, "the broker answers slow_consumer: a detail"},
		{errors.New("two\nlines"), other, ExitFailure, "two lines"},
		{fmt.Errorf("wrapped: %w", Usagef("wrong")), other, ExitUsage, "wrong"},
	} {
		err := Explain(tc.err, tc.server, "orders")
		text := ""
		if err != nil {
			text = err.Error()
		}
		if ExitOf(err) != tc.exit || text != tc.text {
			t.Errorf("%v:\n got %d %s\nwant %d %s", tc.err, ExitOf(err), text, tc.exit, tc.text)
		}
		if tc.err != nil && tc.exit != ExitUsage && !errors.Is(err, tc.err) {
			t.Errorf("%v is not in the chain of %v", tc.err, err)
		}
	}
}

func TestLogLevels(t *testing.T) {
	order := []string{"trace", "debug", "info", "event", "warning", "error", "critical", "alert", "emerg"}
	for i, name := range append(order[:len(order):len(order)], "off") {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		var level slog.Level
		LogLevel(fs, &level)
		if level != LevelEvent {
			t.Fatalf("the default is %v", level)
		}
		if err := fs.Parse([]string{"-l", name}); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		logger := NewLogger(&out, level)
		for _, l := range levels[:len(order)] {
			logger.Log(t.Context(), l.level, "x")
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, "level=")
			word, _, _ := strings.Cut(rest, " ")
			got = append(got, word)
		}
		if strings.Join(got, " ") != strings.Join(order[i:], " ") {
			t.Errorf("-l %s logs %v", name, got)
		}
	}
}

// root is a program with one flag, a verb, and a verb for later.
func root(run func() error) *cobra.Command {
	cmd := &cobra.Command{Use: "lightq-test", Short: "Tests.", Example: "  lightq-test -n 1", RunE: func(*cobra.Command, []string) error { return run() }}
	var n int64
	var output string
	Int(cmd.Flags(), &n, "number", "n", 1, 1, 9, "a number")
	Output(cmd.Flags(), &output, "")
	Later(cmd.Flags(), "later", "", "TEXT", "something")
	Later(cmd.Flags(), "later-switch", "", "", "something")
	verb := &cobra.Command{Use: "verb", Short: "do it", RunE: func(*cobra.Command, []string) error { return run() }}
	Output(verb.Flags(), &output, "rows")
	cmd.AddCommand(verb, LaterVerb("tomorrow", "do it later"))
	return cmd
}

func TestRun(t *testing.T) {
	failed := &Error{Exit: ExitCheckFailed, Text: "check failed", Fix: "look"}
	for _, tc := range []struct {
		args   string
		err    error
		exit   ExitCode
		stdout string
		stderr string
	}{
		{"", nil, ExitDone, "", ""},
		{"verb", nil, ExitDone, "", ""},
		{"", failed, ExitCheckFailed, "", "check failed: look\n"},
		{"", errors.New("plain"), ExitUsage, "", "plain: see lightq-test -help\n"},
		{"", ErrInterrupted, ExitInterrupted, "", ""},
		{"--output json", failed, ExitCheckFailed, `{"program":"lightq-test","error":{"code":"check_failed","message":"check failed","remedy":"look","exit":6}}` + "\n", "check failed: look\n"},
		{"--output=json", Reported(failed), ExitCheckFailed, "", "check failed: look\n"},
		{"--output json", Reported(nil), ExitDone, "", ""},
		{"verb --output json --bad", nil, ExitUsage, `{"program":"lightq-test","error":{"code":"usage","message":"unknown flag --bad","remedy":"see lightq-test verb -help","exit":2}}` + "\n", "unknown flag --bad: see lightq-test verb -help\n"},
		{"--numer 2", nil, ExitUsage, "", "unknown flag --numer: did you mean --number?\n"},
		{"tomorow", nil, ExitUsage, "", "unexpected argument \"tomorow\": did you mean tomorrow?\n"},
		{"-n 10", nil, ExitUsage, "", "-n, --number \"10\": it must be a whole number from 1 to 9\n"},
		{"--later x", nil, ExitNotYet, "", "not yet: --later (something) is not in this version\n"},
		{"--later-switch", nil, ExitNotYet, "", "not yet: --later-switch (something) is not in this version\n"},
		{"tomorrow --with flags", nil, ExitNotYet, "", "not yet: the verb tomorrow (do it later) is not in this version\n"},
		{"verb x", nil, ExitUsage, "", "unexpected argument \"x\": see lightq-test verb -help\n"},
	} {
		var stdout, stderr bytes.Buffer
		exit := Run(root(func() error { return tc.err }), strings.Fields(tc.args), &stdout, &stderr)
		if ExitCode(exit) != tc.exit || stdout.String() != tc.stdout || stderr.String() != tc.stderr {
			t.Errorf("%q, %v:\nexit %d, want %d\nstdout %q\nstderr %q", tc.args, tc.err, exit, tc.exit, stdout.String(), stderr.String())
		}
		if stdout.Len() > 0 && !json.Valid(stdout.Bytes()) {
			t.Errorf("%q: not JSON: %s", tc.args, stdout.String())
		}
	}
}

func TestHelp(t *testing.T) {
	for _, arg := range []string{"-help", "--help", "-h"} {
		var stdout, stderr bytes.Buffer
		if exit := Run(root(nil), []string{arg}, &stdout, &stderr); exit != 0 || stderr.Len() > 0 {
			t.Fatalf("%s: exit %d, %s", arg, exit, stderr.String())
		}
		last := -1
		for _, part := range []string{"Tests.", "Examples:", "Usage:", "Verbs:", "verb ", "Flags:", "-n, --number N", "Not yet:", "tomorrow", "--later TEXT", "Environment:", "Exit codes:", "  7    not built yet"} {
			at := strings.Index(stdout.String(), part)
			if at <= last {
				t.Errorf("%s: %q is missing or out of place in\n%s", arg, part, stdout.String())
			}
			last = at
		}
	}
}

func TestDelimiter(t *testing.T) {
	for text, want := range map[string]string{
		`,`: ",", `::`: "::", `\t`: "\t", `\0`: "\x00", `\n\r`: "\n\r", `a\\b`: `a\b`, `\x1f\xFF`: "\x1f\xff", "→": "→",
	} {
		var b []byte
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		Delimiter(fs, &b, "delim", "D", "a separator")
		if err := fs.Parse([]string{"-D", text}); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", text, b, err)
		}
	}
	for _, text := range []string{``, `\`, `\y`, `\x1`, `\xgg`, `\x+1`, `a\`} {
		var b []byte
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		Delimiter(fs, &b, "delim", "D", "a separator")
		if err := fs.Parse([]string{"-D", text}); err == nil || b != nil {
			t.Errorf("%s: %q", text, b)
		}
	}
}

// TestSecret: whatever is wrong with a password, no text shows it.
func TestSecret(t *testing.T) {
	for _, args := range [][]string{{"-p", "hunter2", "-p", "hunter2"}, {"-p", "hunter2", "--bad"}, {"-help", "-p", "hunter2"}, {"-p", ""}} {
		cmd := &cobra.Command{Use: "lightq-test", RunE: func(*cobra.Command, []string) error { return nil }}
		var password string
		Secret(cmd.Flags(), &password, "password", "p", "a password")
		var out bytes.Buffer
		Run(cmd, args, &out, &out)
		if text := out.String(); strings.Contains(text, "hunter2") || text == "" {
			t.Errorf("%v: %s", args, text)
		}
	}
}

func TestAsk(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, " yes \r\n": true, "y": true, "n\n": false, "\n": false, "": false, "yesterday\n": false} {
		var out bytes.Buffer
		yes, err := Ask(&out, strings.NewReader(answer), "delete it?")
		if yes != want || err != nil || out.String() != "delete it? [y/N] " {
			t.Errorf("%q: %v, %v, %s", answer, yes, err, out.String())
		}
	}
	boom := errors.New("boom")
	if yes, err := Ask(io.Discard, iotest.ErrReader(boom), "delete it?"); yes || !errors.Is(err, boom) {
		t.Errorf("%v, %v", yes, err)
	}
}

// TestDashedTopic: a flag behind -t is a name that was forgotten.
func TestDashedTopic(t *testing.T) {
	for args, want := range map[string]string{
		"-t -n 4":      "-t, --topic needs a value, and -n looks like a flag: if it is the name of a topic, write --topic=-n\n",
		"--topic -x":   "-t, --topic needs a value, and -x looks like a flag: if it is the name of a topic, write --topic=-x\n",
		"--topic=-x":   "",
		"-t=-x":        "",
		"-t orders":    "",
		"-- -t -x":     "unexpected argument \"-t\": verbs are completion\n",
		"verb -t -n 4": "-t, --topic needs a value, and -n looks like a flag: if it is the name of a topic, write --topic=-n\n",
	} {
		cmd := &cobra.Command{Use: "lightq-test", RunE: func(*cobra.Command, []string) error { return nil }}
		var topic string
		Text(cmd.Flags(), &topic, "topic", "t", "test", "NAME", "the topic")
		var out bytes.Buffer
		if Run(cmd, strings.Fields(args), io.Discard, &out); out.String() != want {
			t.Errorf("%s: %s", args, out.String())
		}
	}
}

func shut(t *testing.T, f *os.File) {
	t.Helper()
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestIsPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, w)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, null)
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, file)
	if !IsPipe(r) || IsPipe(null) || IsPipe(file) {
		t.Errorf("pipe %v, null %v, file %v", IsPipe(r), IsPipe(null), IsPipe(file))
	}
	if IsTerminal(r) || IsTerminal(null) || IsTerminal(file) {
		t.Error("one of them is taken for a terminal")
	}
	shut(t, r)
	if IsPipe(r) {
		t.Error("a closed file is taken for a pipe")
	}
}

func TestWhenReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, w)
	gone := make(chan struct{})
	WhenReaderGone(w, func() { close(gone) })
	select {
	case <-gone:
		t.Fatal("told before the reader has gone")
	default:
	}
	shut(t, r)
	<-gone // the test's own deadline is the limit
}

func TestRedrawn(t *testing.T) {
	for _, tc := range []struct {
		height, width int
		want          string
	}{
		{0, 0, "one\x1b[K\nzwölf\x1b[K\n\x1b[J"},
		{2, 80, "\x1b[2A\rone\x1b[K\nzwölf\x1b[K\n\x1b[J"},
		{3, 3, "\x1b[3A\rone\x1b[K\nzwö\x1b[K\n\x1b[J"},
	} {
		if got := redrawn("one\nzwölf\n", tc.height, tc.width); got != tc.want {
			t.Errorf("over %d lines, %d wide: %q, want %q", tc.height, tc.width, got, tc.want)
		}
	}
	if Redraw(os.Stdin) != nil && !IsTerminal(os.Stdin) {
		t.Error("it draws where there is no terminal")
	}
}

func TestResult(t *testing.T) {
	type object struct {
		Name string `json:"name"`
	}
	list := Result{
		JSON: []object{{"a<b"}, {"c"}}, Lines: []any{object{"a<b"}, object{"c"}},
		Plain: [][]string{{"a<b", "1"}, {"c", "2"}}, Table: Line("two things:", "a<b c"),
	}
	one := Result{JSON: object{"x"}, Table: Line("x")}
	for _, tc := range []struct {
		res        Result
		form, want string
	}{
		{list, "json", `[{"name":"a<b"},{"name":"c"}]` + "\n"},
		{list, "jsonl", `{"name":"a<b"}` + "\n" + `{"name":"c"}` + "\n"},
		{list, "plain", "a<b\t1\nc\t2\n"},
		{list, "table", "two things:\na<b c\n"},
		{one, "jsonl", `{"name":"x"}` + "\n"},
		{one, "plain", ""},
		{Result{JSON: list, Lines: []any{}}, "jsonl", ""}, // of nothing no line, and not the whole
	} {
		var out bytes.Buffer
		if err := tc.res.Write(&out, tc.form); err != nil || out.String() != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.form, out.String(), err, tc.want)
		}
	}
}
