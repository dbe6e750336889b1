package program

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the table of docs/PROGRAMS.md")

// contract is what can be typed: the verbs, and the flags of the program without a verb. A flag with a letter is -letter --name.
// What is here stays, if only to say that it is not there yet.
var contract = map[string]struct{ verbs, flags string }{
	"lightq-broker": {
		"serve config healthcheck debug version completion",
		"i/bind b/port t/transport u/admin-user p/admin-password l/log-level data-dir admin-listen kafka-listen config admin-password-file output",
	},
	"lightq-topic": {
		"create list describe alter delete purge stats groups lag peek redrive group-reset export import completion",
		"t/topic s/storage n/partitions a/admin-user d/admin-password u/user p/password b/server l/log-level " +
			"sync segment-bytes overflow retention-bytes retention-time ring-bytes max-batch output",
	},
	"lightq-producer": {
		"publish bench completion",
		"t/topic u/user p/password b/server l/log-level m/messages s/size n/partitions f/file K/key-delim D/delim output",
	},
	"lightq-consumer": {
		"consume bench completion",
		"t/topic u/user p/password b/server l/log-level c/type m/messages n/partitions o/from e/exit-at-end g/group format print json name ack output",
	},
}

func TestContract(t *testing.T) {
	for _, root := range Commands() {
		root.InitDefaultCompletionCmd()
		want := contract[root.Name()]
		for _, verb := range strings.Fields(want.verbs) {
			if cmd, _, err := root.Find([]string{verb}); err != nil || cmd == root {
				t.Errorf("%s has no verb %s", root.Name(), verb)
			}
		}
		for _, name := range strings.Fields(want.flags) {
			short, long, ok := strings.Cut(name, "/")
			if !ok {
				short, long = "", name
			}
			if f := root.Flags().Lookup(long); f == nil || f.Shorthand != short {
				t.Errorf("%s: flag --%s is not there, or not -%s", root.Name(), long, short)
			}
		}
	}
}

// walk calls f for each command of a program but the ones that the library adds.
func walk(cmd *cobra.Command, f func(*cobra.Command)) {
	if cmd.Name() == "completion" || cmd.Name() == "help" || cmd.Hidden {
		return
	}
	f(cmd)
	for _, c := range cmd.Commands() {
		walk(c, f)
	}
}

// TestExamples: each verb that is there shows how it is used, and what it shows begins with its own name.
func TestExamples(t *testing.T) {
	for _, root := range Commands() {
		walk(root, func(cmd *cobra.Command) {
			if cmd.DisableFlagParsing {
				return // not yet
			}
			if !strings.Contains(cmd.Example, cmd.CommandPath()) {
				t.Errorf("%s has no example", cmd.CommandPath())
			}
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Usage == "" {
					t.Errorf("%s --%s has no help", cmd.CommandPath(), f.Name)
				}
			})
		})
	}
}

// TestManPages: a program's page names every verb and every flag.
func TestManPages(t *testing.T) {
	roff := strings.NewReplacer("-", `\-`)
	for _, root := range Commands() {
		var page, stderr bytes.Buffer
		if exit := cli.Run(root, []string{"man"}, &page, &stderr); exit != 0 || stderr.Len() > 0 {
			t.Fatalf("%s man: exit %d, %s", root.Name(), exit, stderr.String())
		}
		text := page.String()
		walk(root, func(cmd *cobra.Command) {
			path := strings.TrimPrefix(cmd.CommandPath(), root.Name()+" ")
			if cmd != root && !strings.Contains(text, ".SS "+roff.Replace(path)+"\n") {
				t.Errorf("%s is not in its page", cmd.CommandPath())
			}
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				if !strings.Contains(text, `\fB`+roff.Replace("--"+f.Name)+`\fR`) {
					t.Errorf("%s --%s is not in its page", cmd.CommandPath(), f.Name)
				}
			})
		})
		for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			macro, _, _ := strings.Cut(line, " ")
			if strings.HasPrefix(line, ".") && !slices.Contains(strings.Fields(".TH .SH .SS .TP .PP .B .br .nf .fi"), macro) {
				t.Errorf("%s: line %d of the page is no macro of ours: %s", root.Name(), i+1, line)
			}
			if strings.HasPrefix(line, "'") || strings.ContainsRune(line, '\t') {
				t.Errorf("%s: line %d of the page: %q", root.Name(), i+1, line)
			}
		}
	}
}

// TestFailuresAreObjects: with --output json or jsonl a failure is one object on standard output, which tells the exit code that
// the program ends with, whatever the verb and the class of failure.
func TestFailuresAreObjects(t *testing.T) {
	for _, failing := range []struct {
		exit cli.ExitCode
		args []string
	}{
		{cli.ExitUsage, []string{"--bogus"}},
		{cli.ExitUsage, []string{"word"}},
		{cli.ExitUsage, []string{"--output", "json"}}, // twice
		{cli.ExitUnreachable, []string{"--server", "127.0.0.1:1"}},
	} {
		for i, root := range Commands() {
			var verbs [][]string
			walk(root, func(cmd *cobra.Command) {
				has := func(name string) bool { return cmd.Flags().Lookup(name) != nil }
				if cmd.CommandPath() == "lightq-consumer consume" {
					return // its standard output is for the records, in a form of theirs
				}
				if has("output") && (failing.exit == cli.ExitUsage || has("server")) {
					verbs = append(verbs, strings.Fields(cmd.CommandPath())[1:])
				}
			})
			for j, verb := range verbs {
				form := []string{"json", "jsonl"}[j%2]
				args := append(slices.Concat(verb, failing.args), "--output", form)
				if slices.Equal(verb, []string{"delete"}) {
					args = append(args, "--yes")
				}
				if slices.Contains([]string{"delete", "purge"}, strings.Join(verb, " ")) {
					args = append(args, "--topic", "orders")
				}
				if slices.Equal(verb, []string{"alter"}) {
					args = append(args, "--partitions", "2")
				}
				if root.Name() == "lightq-producer" {
					args = append(args, "--file", os.DevNull)
					if slices.Equal(verb, []string{"bench"}) {
						args = append(args[:len(args)-2], "--messages", "1")
					}
				}
				var stdout, stderr bytes.Buffer
				exit := cli.Run(Commands()[i], args, &stdout, &stderr)
				var got struct {
					Program string
					Error   struct {
						Code, Message string
						Exit          int
					}
				}
				dec := json.NewDecoder(&stdout)
				err := dec.Decode(&got)
				if cli.ExitCode(exit) != failing.exit || err != nil || dec.More() || got.Error.Exit != exit ||
					got.Program != root.Name() || got.Error.Code == "" || !strings.Contains(stderr.String(), got.Error.Message) {
					t.Errorf("%s %q: exit %d, want %d; %v, %+v\n%s", root.Name(), args, exit, failing.exit, err, got, stderr.String())
				}
			}
		}
	}
}

// notYet is what answers "not yet", by program. What the broker answers so is not among it.
func notYet() map[string][]cli.Missing {
	all := map[string][]cli.Missing{}
	for _, root := range Commands() {
		all[root.Name()] = cli.NotYetIn(root)
	}
	return all
}

// TestNotYetAnswers: each of these ends with its own exit code, and says so in one line.
func TestNotYetAnswers(t *testing.T) {
	for program, missing := range notYet() {
		for _, m := range missing {
			i := slices.IndexFunc(Commands(), func(c *cobra.Command) bool { return c.Name() == program })
			var stdout, stderr bytes.Buffer
			exit := cli.Run(Commands()[i], m.Args, &stdout, &stderr)
			text := stderr.String()
			if cli.ExitCode(exit) != cli.ExitNotYet || !strings.HasPrefix(text, "not yet: ") || strings.Count(text, "\n") != 1 || stdout.Len() > 0 {
				t.Errorf("%s %v: exit %d\n%s%s", program, m.Args, exit, stdout.String(), text)
			}
		}
	}
}

const (
	programsDoc = "../../docs/PROGRAMS.md"
	tableBegin  = "<!-- not yet: written by go test ./internal/program -run TestNotYetTable -update -->\n"
	tableEnd    = "<!-- end -->\n"
)

// TestNotYetTable: the table in the document is what the programs say.
func TestNotYetTable(t *testing.T) {
	var rows []string
	for program, missing := range notYet() {
		for _, m := range missing {
			typed := m.Typed
			everywhere := slices.ContainsFunc(missing, func(o cli.Missing) bool { return o.Verb == "" && o.Typed == m.Typed })
			if m.Verb != "" && m.Verb != m.Typed && !everywhere {
				typed = m.Verb + " " + typed
			}
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s |\n", program, typed, m.Meaning))
		}
	}
	slices.Sort(rows)
	table := "| program | typed | what it will be |\n|---|---|---|\n" + strings.Join(slices.Compact(rows), "")
	b, err := os.ReadFile(programsDoc)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegin)
	now, after, okEnd := strings.Cut(rest, tableEnd)
	if !ok || !okEnd {
		t.Fatalf("%s has no place for the table", programsDoc)
	}
	if *update {
		if err := os.WriteFile(programsDoc, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if now != table {
		t.Errorf("the table of %s is\n%sand should be (write it with -update)\n%s", programsDoc, now, table)
	}
}
