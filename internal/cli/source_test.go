package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// sourced is a command with a flag of each kind that matters to sources.
func sourced(t *testing.T, run func(fs *pflag.FlagSet)) *cobra.Command {
	t.Helper()
	cmd := &cobra.Command{Use: "lightq-test"}
	fs := cmd.Flags()
	var number int64
	var name, secret, config, output string
	var yes bool
	Int(fs, &number, "number", "n", 1, 1, 9, "a number")
	Text(fs, &name, "log-name", "", "none", "NAME", "a name")
	Secret(fs, &secret, "password", "p", "a password")
	Bool(fs, &yes, "yes", "", "do it")
	LineOnly(fs, "yes")
	Deny(fs, "storage", "s", "KIND", "is refused", Usagef("-s is refused"))
	Later(fs, "sync", "", "POLICY", "a policy")
	Later(fs, "user", "u", "NAME", "a user")
	ConfigFile(fs, &config)
	Output(fs, &output, "rows")
	cmd.RunE = func(*cobra.Command, []string) error { run(fs); return nil }
	return cmd
}

// TestSources: F67. The command line goes before the environment, that before the file, and that before the default.
func TestSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	for _, tc := range []struct {
		name              string
		file, environment string
		args              string
		want              string // number, where it comes from, and what Settings says of the password
		exit              ExitCode
		stderr            string
	}{
		{name: "default", want: "1 default "},
		{name: "file", file: "number = 2", want: "2 FILE:1 "},
		{name: "file, as a text", file: "\n number = '2'", want: "2 FILE:2 "},
		{name: "environment", environment: "NUMBER=3", want: "3 LIGHTQ_NUMBER "},
		{name: "environment over file", file: "number = 2", environment: "NUMBER=3", want: "3 LIGHTQ_NUMBER "},
		{name: "line over both", file: "number = 2", environment: "NUMBER=3", args: "-n 4", want: "4 the command line "},
		{name: "line over a wrong environment", environment: "NUMBER=x", args: "-n 4", want: "4 the command line "},
		{name: "empty is none", environment: "NUMBER=", want: "1 default "},
		{name: "the line alone", environment: "YES=true", want: "1 default "},
		{name: "refused here", environment: "STORAGE=file", want: "1 default "},
		{name: "secret", file: "password = 'hunter2'", want: "1 default " + Masked},
		{
			name: "credentials for later", environment: "USER=me", want: "1 default ",
			stderr: "warning: LIGHTQ_USER is set and not used: -u, --user is not in this version",
		},
		{
			name: "a setting for later", environment: "SYNC=os", exit: ExitNotYet,
			stderr: "not yet: --sync (a policy) is not in this version (from LIGHTQ_SYNC)",
		},
		{
			name: "wrong in the environment", environment: "NUMBER=ten", exit: ExitUsage,
			stderr: `LIGHTQ_NUMBER "ten" (-n, --number): it must be a whole number from 1 to 9`,
		},
		{
			name: "wrong in the file", file: "# x\nnumber = 10", args: "-n 4", exit: ExitUsage,
			stderr: `FILE:2: number "10" (-n, --number): it must be a whole number from 1 to 9`,
		},
		{name: "a wrong secret", file: "password = ''", exit: ExitUsage, stderr: "FILE:1: password (-p, --password): it must not be empty"},
		{
			name: "the line alone, in a file", file: "yes = true", exit: ExitUsage,
			stderr: `FILE:1: unknown key "yes": keys are number log-name password`,
		},
		{
			name: "output, in a file", file: "output = 'json'", exit: ExitUsage,
			stderr: `FILE:1: unknown key "output": keys are number log-name password`,
		},
		{
			name: "later, in a file", file: "sync = 'os'", exit: ExitNotYet,
			stderr: "not yet: --sync (a policy) is not in this version (from FILE:1)",
		},
		{
			name: "the first fault", file: "number = 2\nlog_name = 'x'\nnmuber = 3", exit: ExitUsage,
			stderr: `FILE:2: unknown key "log_name": did you mean log-name?`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if name, value, ok := strings.Cut(tc.environment, "="); ok {
				t.Setenv("LIGHTQ_"+name, value)
			}
			args := strings.Fields(tc.args)
			if tc.file != "" {
				if err := os.WriteFile(file, []byte(tc.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--config", file)
			}
			got := ""
			var stdout, stderr bytes.Buffer
			exit := Run(sourced(t, func(fs *pflag.FlagSet) {
				got = fs.Lookup("number").Value.String() + " " + SourceOf(fs, "number").String() + " "
				for _, s := range Settings(fs) {
					if s.Name == "password" {
						got += s.Value
					}
				}
			}), args, &stdout, &stderr)
			told := strings.TrimSuffix(strings.ReplaceAll(stderr.String(), file, "FILE"), "\n")
			if got = strings.ReplaceAll(got, file, "FILE"); got != tc.want || ExitCode(exit) != tc.exit || told != tc.stderr {
				t.Errorf("%q, exit %d\n%s\nwant %q, exit %d\n%s", got, exit, told, tc.want, tc.exit, tc.stderr)
			}
		})
	}
}

// TestOutputVariable: the form of a failure comes from the environment too, and the command line goes before it.
func TestOutputVariable(t *testing.T) {
	t.Setenv("LIGHTQ_OUTPUT", "json")
	for args, want := range map[string]bool{"": true, "--output table": false, "--output=jsonl": true, "-- --output table": true} {
		if got := jsonWanted(strings.Fields(args)); got != want {
			t.Errorf("%q: %v", args, got)
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	environment := []string{
		"LIGHTQ_PORT=5500", "LIGHTQ_PROT=5500", "LIGHTQ_EMPTY=", "PATH=/bin", "XLIGHTQ_X=1", "LIGHTQ_", "LIGHTQ_A=b=c",
		"LIGHTQ_SERVICE_HOST=10.0.0.1", "LIGHTQ_SERVICE_PORT=5500", "LIGHTQ_SERVICE_PORT_NATIVE=5500", "LIGHTQ_PORT_5500_TCP=tcp://10.0.0.1:5500",
		"LIGHTQ_PORT_5500_TCP_PROTO=tcp", "LIGHTQ_PORT_5500_TCP_PORT=5500", "LIGHTQ_PORT_5500_TCP_ADDR=10.0.0.1", "LIGHTQ_PORT_X=1",
	}
	got := UnknownVariables(environment, func(name string) bool { return name == "LIGHTQ_PORT" })
	if want := []string{"LIGHTQ_A", "LIGHTQ_PORT_X", "LIGHTQ_PROT"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNearest(t *testing.T) {
	words := []string{"port", "profile", "profile-dir", "log-level", "list", "describe", "delete", "data-dir"}
	for s, want := range map[string]string{
		"prot": "port", "prt": "port", "ports": "port", "log_level": "log-level", "LOG-LEVEL": "log-level", "lsit": "list", "desc": "describe",
		"del": "delete", "datadir": "data-dir", "profiel-dir": "profile-dir", "": "", "x": "", "pq": "", "replicas": "", "p": "", "start": "",
	} {
		if got := Nearest(s, words); got != want {
			t.Errorf("%q: %q, want %q", s, got, want)
		}
	}
}

// FuzzParseSettings: whatever a file holds, each key has a line of it, no error has more than one line, and no key is lost.
func FuzzParseSettings(f *testing.F) {
	for _, text := range []string{
		"", "number = 2\n", "\xef\xbb\xbf\tnumber\t=\t'2'\t# x\r\n", "[t]\na.b = {c = 1}\n[[u]]\n", "a = 1\na = 2", "a = \"\"\"\nx = 1\n\"\"\"\nb = 1979-05-27",
		"\"a\\nb\" = [\n1,\n2]\n", "a: 1", "\xff", "a = 1_000\nb = 0x10\nc = inf",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		settings, err := parseSettings("f", data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") || len(settings) > 0 {
				t.Fatalf("%q, %d settings", err.Error(), len(settings))
			}
			return
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		last := 0
		for _, s := range settings {
			if s.line < max(last, 1) || s.line > lines {
				t.Fatalf("%q stands on line %d of %d, behind one on %d", s.key, s.line, lines, last)
			}
			last = s.line
		}
		if len(settings) == 0 && strings.ContainsAny(regexp.MustCompile("(?m)#.*$").ReplaceAllString(string(data), ""), "=[") {
			t.Fatalf("nothing is found in %q", data)
		}
	})
}
