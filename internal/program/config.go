package program

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// configCommand is the verb config of lightq-broker, with the verb check of its own. Both take the flags of serve.
func configCommand() *cobra.Command {
	var f, onCheck brokerFlags
	cmd := &cobra.Command{
		Use: "config", Short: "show the configuration that the broker would have, and check it",
		Long: `Prints the configuration that the broker would have with the same flags, environment and file, and where each value comes
from. What it prints is a configuration file of the same effect; defaults stand in it as comments, and so do passwords, masked.
Nothing is started.

A flag has its default, unless the configuration file gives it a value, unless its variable in the environment does, unless
the command line does. The variable of --log-level is LIGHTQ_LOG_LEVEL. The file is TOML, a long name and a value on each line:

  # /etc/lightq/lightq.toml
  port = 5600
  log-level = "info"
  admin-password-file = "/etc/lightq/admin"`,
		Example: `  lightq-broker config
  lightq-broker config --config /etc/lightq/lightq.toml
  lightq-broker config --config /etc/lightq/lightq.toml > copy.toml
  lightq-broker config check --config /etc/lightq/lightq.toml`,
	}
	f.addTo(cmd.Flags(), "a name, a value and where it comes from on each line")
	cmd.RunE = func(*cobra.Command, []string) error {
		if _, _, err := f.check(); err != nil {
			return err
		}
		return f.effective().Print(f.output)
	}
	check := &cobra.Command{
		Use: "check", Short: "check the configuration, and print nothing but ok",
		Long: `Checks what can be checked without starting anything: names, values, the files that hold passwords. Exit 0 if all is well,
2 with the first fault if not.`,
		Example: "  lightq-broker config check --config /etc/lightq/lightq.toml",
	}
	onCheck.addTo(check.Flags(), "ok")
	check.RunE = func(*cobra.Command, []string) error {
		if _, _, err := onCheck.check(); err != nil {
			return err
		}
		return cli.Result{
			JSON:  checkedJSON{Program: "lightq-broker", OK: true, File: onCheck.config},
			Plain: [][]string{{"ok"}},
			Table: cli.Line(strings.TrimSpace("ok " + onCheck.config)),
		}.Print(onCheck.output)
	}
	cmd.AddCommand(check)
	return cmd
}

type checkedJSON struct {
	Program string `json:"program"`
	OK      bool   `json:"ok"`
	File    string `json:"file,omitempty"`
}

type configJSON struct {
	Program  string        `json:"program"`
	File     string        `json:"file,omitempty"`
	Settings []settingJSON `json:"settings"`
}

type settingJSON struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // as a flag takes it
	Source string `json:"source"`
}

// effective is what the verb config prints.
func (f *brokerFlags) effective() cli.Result {
	all := configJSON{Program: "lightq-broker", File: f.config}
	res := cli.Result{Lines: []any{}}
	var lines [][2]string
	width := 0
	for _, s := range cli.Settings(f.fs) {
		one := settingJSON{Name: s.Name, Value: s.Value, Source: s.Source.String()}
		all.Settings = append(all.Settings, one)
		res.Lines = append(res.Lines, one)
		res.Plain = append(res.Plain, []string{one.Name, one.Value, one.Source})
		text := s.Value
		if s.Text {
			text = tomlText(text)
		}
		line := s.Name + " = " + text
		if s.Source.Level == cli.FromDefault || s.Value == cli.Masked {
			line = "# " + line // not set, or not to be set to this
		}
		lines = append(lines, [2]string{line, one.Source})
		width = max(width, len(lines[len(lines)-1][0]))
	}
	res.JSON = all
	res.Table = func(w io.Writer) error {
		var b strings.Builder
		for _, line := range lines {
			fmt.Fprintf(&b, "%-*s  # %s\n", width, line[0], line[1])
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	return res
}

// tomlText is a text as TOML has it between double quotes.
func tomlText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteString("\\" + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// warnUnknownVariables tells of variables that look like ours and are none: a mistyped one would have no effect.
func warnUnknownVariables(w io.Writer) {
	known := variables()
	for _, name := range cli.UnknownVariables(os.Environ(), func(name string) bool { return known[name] }) {
		fmt.Fprintf(w, "warning: %s stands for no flag of the LightQ programs: it has no effect\n", strconv.Quote(name))
	}
}

// Commands are the trees of the four programs, new with each call: what a user can type.
func Commands() []*cobra.Command {
	return []*cobra.Command{brokerCommand(), topicCommand(), producerCommand(), consumerCommand()}
}

// variables are those that stand for a flag of any of the programs, which share an environment.
func variables() map[string]bool {
	names := map[string]bool{
		"LIGHTQ_SOAK": true, // of the tests, see docs/TESTING.md
	}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names[cli.Variable(f.Name)] = true })
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	for _, root := range Commands() {
		walk(root)
	}
	return names
}
