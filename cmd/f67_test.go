package cmd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/loop"
)

// mistyped is a command line with a fault, and what the one line about it has to name: the flag, the value, what is allowed.
type mistyped struct {
	args  string // fields; $X from the environment below, '' is the empty argument
	env   string // NAME=VALUE more in the environment
	names []string
}

// Every program is told each of these. The first word stands for the program.
var mistypedEverywhere = []mistyped{
	{args: "PROGRAM --bogus", names: []string{"--bogus", "-help"}},
	{args: "PROGRAM --bogus=1", names: []string{"--bogus"}},
	{args: "PROGRAM -Z", names: []string{"-Z"}},
	{args: "PROGRAM --lgo-level debug", names: []string{"--lgo-level", "did you mean --log-level?"}},
	{args: "PROGRAM word -l debug", names: []string{`"word"`, "verbs are"}},
	{args: "PROGRAM -l debug word", names: []string{`"word"`, "verbs are"}},
	{args: "PROGRAM –l debug", names: []string{`"–l"`, "minus of the keyboard"}},
	{args: "PROGRAM —log-level debug", names: []string{`"—log-level"`, "minus of the keyboard"}},
	{args: "PROGRAM −l debug", names: []string{`"−l"`}},
	{args: "PROGRAM -l", names: []string{"-l, --log-level", "trace"}},
	{args: "PROGRAM -l loud", names: []string{"-l, --log-level", `"loud"`, "trace, debug, info, event, warning, error, critical, alert, emerg or off"}},
	{args: "PROGRAM -l ''", names: []string{"-l, --log-level", `""`}},
	{args: "PROGRAM -l debug -l debug", names: []string{"-l, --log-level", `"debug"`, "given twice"}},
	{args: "PROGRAM -l debug --log-level info", names: []string{"-l, --log-level", `"info"`, "given twice"}},
	{args: "PROGRAM --output yaml", names: []string{"--output", `"yaml"`, "table, json"}},
	{args: "PROGRAM", env: "LIGHTQ_LOG_LEVEL=loud", names: []string{"LIGHTQ_LOG_LEVEL", `"loud"`, "-l, --log-level", "trace"}},
}

var mistypedIn = map[string][]mistyped{
	"lightq-broker": {
		{args: "PROGRAM -b 70000", names: []string{"-b, --port", `"70000"`, "from 0 to 65535"}},
		{args: "PROGRAM -b abc", names: []string{"-b, --port", `"abc"`, "from 0 to 65535"}},
		{args: "PROGRAM -b ''", names: []string{"-b, --port", `""`, "from 0 to 65535"}},
		{args: "PROGRAM -b -1", names: []string{"-b, --port", `"-1"`, "from 0 to 65535"}},
		{args: "PROGRAM -b 5e3", names: []string{"-b, --port", `"5e3"`}},
		{args: "PROGRAM -b 0x10", names: []string{"-b, --port", `"0x10"`}},
		{args: "PROGRAM -b 1 --port 1", names: []string{"-b, --port", "given twice"}},
		{args: "PROGRAM -i elsewhere", names: []string{"-i, --bind", `"elsewhere"`, "an IP address"}},
		{args: "PROGRAM -t udp", names: []string{"-t, --transport", `"udp"`, "tcp, ipc or inproc"}},
		{args: "PROGRAM --loops 0", names: []string{"--loops", `"0"`, "from 1 to 256"}},
		{args: "PROGRAM --profile mem --profile-dir made -b 70000", names: []string{"-b, --port"}},
		{args: "PROGRAM --config nothing.toml", names: []string{"--config", "nothing.toml"}},
		{args: "PROGRAM --config unknown.toml", names: []string{"unknown.toml:2", `"prot"`, "did you mean port?"}},
		{args: "PROGRAM --config twice.toml", names: []string{"twice.toml:3", "port", "already defined"}},
		{args: "PROGRAM --config range.toml", names: []string{"range.toml:1", "port", `"70000"`, "-b, --port", "from 0 to 65535"}},
		{args: "PROGRAM --config range.toml -b 0", names: []string{"range.toml:1", `"70000"`}},
		{args: "PROGRAM --config bom.toml", names: []string{"bom.toml:2", "port", `"abc"`, "from 0 to 65535"}},
		{args: "PROGRAM config --config range.toml", names: []string{"range.toml:1"}},
		{args: "PROGRAM config check --config unknown.toml", names: []string{"unknown.toml:2"}},
		{args: "PROGRAM", env: "LIGHTQ_PORT=70000", names: []string{"LIGHTQ_PORT", `"70000"`, "-b, --port", "from 0 to 65535"}},
		{args: "PROGRAM --config good.toml", env: "LIGHTQ_PORT=x", names: []string{"LIGHTQ_PORT", `"x"`}},
	},
	"lightq-topic": {
		{args: "PROGRAM -t made -n 0", names: []string{"-n, --partitions", `"0"`, "from 1 to"}},
		{args: "PROGRAM -t made -n -1", names: []string{"-n, --partitions", `"-1"`, "from 1 to"}},
		{args: "PROGRAM -t made -n 1e6", names: []string{"-n, --partitions", `"1e6"`}},
		{args: "PROGRAM -t made -n 2 -n 3", names: []string{"-n, --partitions", "given twice"}},
		{args: "PROGRAM -t made --ring-bytes 10GB", names: []string{"--ring-bytes", `"10GB"`, "KiB, MiB or GiB"}},
		{args: "PROGRAM -t made --ring-bytes -5", names: []string{"--ring-bytes", `"-5"`}},
		{args: "PROGRAM -t made --max-batch 5GiB", names: []string{"--max-batch", `"5GiB"`, "from 1 to"}},
		{args: "PROGRAM -t made -s tape", names: []string{"-s, --storage", `"tape"`, "queue, memory, file, disk, direct or queue_file"}},
		{args: "PROGRAM -t made --overflow spill", names: []string{"--overflow", `"spill"`, "block, drop-oldest or reject"}},
		{args: "PROGRAM -t -n 4", names: []string{"-t, --topic", "-n looks like a flag"}},
		{args: "PROGRAM -t ''", names: []string{"-t, --topic", `""`, "not be empty"}},
		{args: "PROGRAM create made", names: []string{`"made"`}},
		{args: "PROGRAM lsit", names: []string{`"lsit"`, "did you mean list?"}},
		{args: "PROGRAM delete made --yes", names: []string{`"made"`}},
		{args: "PROGRAM delete --yes", env: "LIGHTQ_TOPIC=kept", names: []string{"-t"}},
		{args: "PROGRAM delete -t kept", env: "LIGHTQ_YES=true", names: []string{"--yes"}},
		{args: "PROGRAM purge", env: "LIGHTQ_TOPIC=kept", names: []string{"-t"}},
		{args: "PROGRAM alter -t kept", env: "LIGHTQ_PARTITIONS=9", names: []string{"-n, --overflow"}},
		{args: "PROGRAM -t made", env: "LIGHTQ_PARTITIONS=0", names: []string{"LIGHTQ_PARTITIONS", `"0"`, "-n, --partitions", "from 1 to"}},
		{args: "PROGRAM -t made", env: "LIGHTQ_RING_BYTES=10GB", names: []string{"LIGHTQ_RING_BYTES", `"10GB"`, "--ring-bytes"}},
	},
	"lightq-producer": {
		{args: "PROGRAM -t kept -m 0", names: []string{"-m, --messages", `"0"`, "at least 1"}},
		{args: "PROGRAM -t kept -m 1e6", names: []string{"-m, --messages", `"1e6"`, "at least 1"}},
		{args: "PROGRAM -t kept -m 1,000", names: []string{"-m, --messages", `"1,000"`}},
		{args: "PROGRAM -t kept -m 1 -s -5", names: []string{"-s, --size", `"-5"`, "from 0 to"}},
		{args: "PROGRAM -t kept -m 1 -s 10GB", names: []string{"-s, --size", `"10GB"`, "from 0 to"}},
		{args: "PROGRAM -t kept -m 1 -n 0", names: []string{"-n, --partitions", `"0"`, "from 1 to"}},
		{args: "PROGRAM -t kept -m 1 -n -1", names: []string{"-n, --partitions", `"-1"`}},
		{args: "PROGRAM -t kept -m 1 -m 1", names: []string{"-m, --messages", "given twice"}},
		{args: "PROGRAM kept -m 1", names: []string{`"kept"`}},
		{args: "PROGRAM -t kept", env: "LIGHTQ_MESSAGES=1e6", names: []string{"LIGHTQ_MESSAGES", `"1e6"`, "-m, --messages"}},
	},
	"lightq-consumer": {
		{args: "PROGRAM -t kept -m 0", names: []string{"-m, --messages", `"0"`, "at least 1"}},
		{args: "PROGRAM -t kept -m 1e6", names: []string{"-m, --messages", `"1e6"`}},
		{args: "PROGRAM -t kept -n 0", names: []string{"-n, --partitions", `"0"`, "from 1 to"}},
		{args: "PROGRAM -t kept -n -1", names: []string{"-n, --partitions", `"-1"`}},
		{args: "PROGRAM -t kept -c pigeon", names: []string{"-c, --type", `"pigeon"`, "zmq or socket"}},
		{args: "PROGRAM kept --print", names: []string{`"kept"`}},
		{args: "PROGRAM -t kept --print", env: "LIGHTQ_MESSAGES=0", names: []string{"LIGHTQ_MESSAGES", `"0"`, "-m, --messages"}},
	},
}

// Client programs are told these too.
var mistypedServers = []mistyped{
	{args: "PROGRAM -b 127.0.0.1:70000", names: []string{"-b, --server", `"127.0.0.1:70000"`, "from 1 to 65535"}},
	{args: "PROGRAM -b 70000", names: []string{"-b, --server", `"70000"`, "host:port"}},
	{args: "PROGRAM -b abc", names: []string{"-b, --server", `"abc"`, "host:port"}},
	{args: "PROGRAM -b ''", names: []string{"-b, --server", `""`, "host:port"}},
	{args: "PROGRAM -b 127.0.0.1:1 -b 127.0.0.1:1", names: []string{"-b, --server", "given twice"}},
	{args: "PROGRAM", env: "LIGHTQ_SERVER=70000", names: []string{"LIGHTQ_SERVER", `"70000"`, "-b, --server", "host:port"}},
}

var mistypedFiles = map[string]string{
	"good.toml":    "port = 0\n",
	"unknown.toml": "port = 0\nprot = 1\n",
	"twice.toml":   "port = 0\nloops = 1\nport = 0\n",
	"range.toml":   "port = 70000\n",
	"bom.toml":     "\xef\xbb\xbf# a comment\r\n\tport\t=\t\"abc\"\t# tabs\r\n",
}

// TestF67MistypedOptions: F67. A mistyped option is swallowed, and the program runs with a default in its place. Here each ends
// with 2 and one line that names the flag, the value, its source and what is allowed, before anything is done: no topic comes or
// goes, no record, no file.
func TestF67MistypedOptions(t *testing.T) {
	b, err := loop.NewBroker(loop.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	server := "tcp://" + b.Addrs()[0].String()
	c, err := client.Dial(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.CreateTopic(t.Context(), "kept", client.TopicSettings{Partitions: 2}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range mistypedFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	for _, program := range []string{"lightq-broker", "lightq-topic", "lightq-producer", "lightq-consumer"} {
		cases := append(append([]mistyped(nil), mistypedEverywhere...), mistypedIn[program]...)
		if program != "lightq-broker" {
			cases = append(cases, mistypedServers...)
		}
		for _, tc := range cases {
			args := strings.Fields(tc.args)[1:]
			for i, a := range args {
				if a == "''" {
					args[i] = ""
				}
			}
			// A fault that is swallowed after all reaches this broker, or a free port.
			env := append(os.Environ(), "LIGHTQ_SERVER="+server, "LIGHTQ_PORT=0", "LIGHTQ_DATA_DIR=none")
			if tc.env != "" {
				env = append(env, tc.env)
			}
			cmd := exec.CommandContext(ctx, program, args...)
			cmd.Dir, cmd.Env = dir, env
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			err := cmd.Run()
			text := stderr.String()
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || stdout.Len() > 0 || strings.Count(text, "\n") != 1 {
				t.Errorf("%s %q %s: %v, want exit 2 and one line\n%s%s", program, args, tc.env, err, stdout.String(), text)
				continue
			}
			for _, name := range tc.names {
				if !strings.Contains(text, name) {
					t.Errorf("%s %q %s: does not name %s:\n%s", program, args, tc.env, name, text)
				}
			}
		}
	}

	topics, err := c.List(t.Context())
	if err != nil || len(topics) != 1 || topics[0].Name != "kept" {
		t.Errorf("topics after that: %v, %v", topics, err)
	}
	d, err := c.Describe(t.Context(), "kept")
	if err != nil || len(d.Partitions) != 2 || d.Partitions[0].Next != 0 || d.Partitions[1].Next != 0 {
		t.Errorf("the topic after that: %+v, %v", d, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != len(mistypedFiles) {
		t.Errorf("files after that: %v, %v", files, err)
	}
}
