package cmd

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lightio/lightq/internal/program"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// everywhere are flags that mean the same with every verb of a program: one script for each program shows them.
var everywhere = []string{
	"server", "log-level", "user", "password", "password-file", "admin-user", "admin-password", "admin-password-file",
}

// inEach are the programs whose verbs are shown one by one; the verbs of the others are the program itself, with a choice made.
var inEach = []string{"lightq-broker", "lightq-topic"}

// sameAs are the verbs that are a program without a verb.
var sameAs = map[string]string{"lightq-broker serve": "lightq-broker", "lightq-topic create": "lightq-topic"}

// TestEveryFlagIsInAScript: each verb and each flag stands in a script, with what it answers; each verb both with its normal answer
// and with that to a mistake.
func TestEveryFlagIsInAScript(t *testing.T) {
	lines := scriptedLines(t)
	used := map[string]bool{}      // command and flag
	answers := map[string][]bool{} // command: a normal answer, a mistake
	note := func(key string, normal bool) {
		if answers[key] == nil {
			answers[key] = make([]bool, 2)
		}
		if normal {
			answers[key][0] = true
		} else {
			answers[key][1] = true
		}
	}
	for _, root := range program.Commands() {
		for _, l := range lines[root.Name()] {
			cmd, flags := typed(root, l.args)
			key := commandKey(root, cmd)
			note(key, l.normal)
			for _, f := range flags {
				used[key+" --"+f] = true
				used[root.Name()+" * --"+f] = true
			}
		}
	}
	var missing []string
	for _, root := range program.Commands() {
		each := slices.Contains(inEach, root.Name())
		var walk func(cmd *cobra.Command)
		walk = func(cmd *cobra.Command) {
			key := commandKey(root, cmd)
			later := cmd.DisableFlagParsing
			if got := answers[key]; got == nil || !got[1] || !got[0] && !later {
				missing = append(missing, key+": its normal answer, or that to a mistake")
			}
			cmd.Flags().VisitAll(func(f *pflag.Flag) {
				where := key
				if !each || slices.Contains(everywhere, f.Name) {
					where = root.Name() + " *"
				}
				if name := where + " --" + f.Name; !used[name] {
					missing = append(missing, name)
				}
			})
			for _, c := range cmd.Commands() {
				walk(c)
			}
		}
		walk(root)
	}
	slices.Sort(missing)
	if missing = slices.Compact(missing); len(missing) > 0 {
		t.Errorf("no script in testdata/script shows\n%s", strings.Join(missing, "\n"))
	}
}

// TestTypedFindsFlags: what the coverage is counted with.
func TestTypedFindsFlags(t *testing.T) {
	trees := map[string]*cobra.Command{}
	for _, root := range program.Commands() {
		trees[root.Name()] = root
	}
	for line, want := range map[string]string{
		"lightq-topic -t orders -n4 --overflow=block": "lightq-topic topic partitions overflow",
		"lightq-topic delete --yes -t list -b x":      "lightq-topic delete yes topic server",
		"lightq-topic -t list":                        "lightq-topic topic",
		"lightq-broker config check -b 1":             "lightq-broker config check port",
		"lightq-broker serve":                         "lightq-broker",
		"lightq-consumer -ec socket":                  "lightq-consumer exit-at-end type",
		"lightq-consumer --nonsense -- -t x":          "lightq-consumer",
	} {
		words := strings.Fields(line)
		cmd, flags := typed(trees[words[0]], words[1:])
		if got := strings.Join(append([]string{commandKey(trees[words[0]], cmd)}, flags...), " "); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func commandKey(root, cmd *cobra.Command) string {
	key := cmd.CommandPath()
	if same := sameAs[key]; same != "" {
		return same
	}
	if !slices.Contains(inEach, root.Name()) {
		return root.Name()
	}
	return key
}

// typed finds the command that a command line names, and the flags of it that it gives.
func typed(root *cobra.Command, args []string) (cmd *cobra.Command, flags []string) {
	cmd = root
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return cmd, flags
		case strings.HasPrefix(a, "--"):
			name, _, has := strings.Cut(a[2:], "=")
			f := cmd.Flags().Lookup(name)
			if f == nil {
				continue
			}
			flags = append(flags, name)
			if !has && f.NoOptDefVal == "" {
				i++
			}
		case strings.HasPrefix(a, "-"):
			for j := 1; j < len(a); j++ {
				f := cmd.Flags().ShorthandLookup(a[j : j+1])
				if f == nil {
					break
				}
				flags = append(flags, f.Name)
				if f.NoOptDefVal == "" {
					if j == len(a)-1 {
						i++
					}
					break
				}
			}
		default:
			for _, c := range cmd.Commands() {
				if c.Name() == a {
					cmd = c
					break
				}
			}
		}
	}
	return cmd, flags
}

// A scriptedLine is a command line of a script.
type scriptedLine struct {
	args   []string // behind the program's name
	normal bool     // it is to end with 0, or is started
}

// scriptedPrograms finds the command lines in a line of a script: up to the next that a shell would take for an end.
var scriptedPrograms = regexp.MustCompile(`(lightq-[a-z]+)((?:\s+(?:'[^']*'|"[^"]*"|[^\s|;&>)'"]+|''))*)`)

// scriptedLines are the command lines of all scripts, by program.
func scriptedLines(t *testing.T) map[string][]scriptedLine {
	t.Helper()
	files, err := filepath.Glob("testdata/script/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	lines := map[string][]scriptedLine{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		script, _, _ := strings.Cut(string(text), "\n-- ")
		for line := range strings.Lines(script) {
			verb, rest, _ := strings.Cut(line, " ")
			if !slices.Contains([]string{"exits", "start", "exec", "completes"}, verb) {
				continue
			}
			normal := verb != "exits" || strings.HasPrefix(rest, "0 ")
			for _, m := range scriptedPrograms.FindAllStringSubmatch(rest, -1) {
				var args []string
				for _, a := range strings.Fields(m[2]) {
					args = append(args, strings.Trim(a, `'"`))
				}
				lines[m[1]] = append(lines[m[1]], scriptedLine{args, normal})
			}
		}
	}
	if got := fmt.Sprint(slices.Sorted(maps.Keys(lines))); !strings.Contains(got, "lightq-broker lightq-consumer lightq-producer lightq-topic") {
		t.Fatalf("scripts run %s", got)
	}
	return lines
}
