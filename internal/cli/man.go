package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// programs are the four, each with its manual page.
var programs = []string{"lightq-broker", "lightq-topic", "lightq-producer", "lightq-consumer"}

// manCommand is the hidden verb man of every program, for packages and make man.
func manCommand(root *cobra.Command) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "man", Short: "write the program's manual page", Hidden: true,
		Long:    `Writes the program's manual page, made from the same words as its help, to standard output or into a folder.`,
		Example: fmt.Sprintf("  %s man | man -l -\n  %s man --dir /usr/local/share/man/man1", root.Name(), root.Name()),
		RunE: func(cmd *cobra.Command, _ []string) error {
			page := manPage(root)
			if dir == "" {
				_, err := io.WriteString(cmd.OutOrStdout(), page)
				return err
			}
			path := filepath.Join(dir, root.Name()+".1")
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
				return Failf(ExitFailure, "--dir: %v", err)
			}
			return nil
		},
	}
	Text(cmd.Flags(), &dir, "dir", "", "", "DIR", "write PROGRAM.1 into this folder")
	LineOnly(cmd.Flags(), "dir")
	return cmd
}

// manPage is the manual page of a program in the language of troff's man macros.
func manPage(root *cobra.Command) string {
	var m manual
	name := root.Name()
	m.line(`.TH "%s" "1" "" "LightQ %s" "LightQ"`, strings.ToUpper(name), roff(Version()))
	m.line(".SH NAME")
	m.line(`%s \- %s`, roff(name), roff(strings.TrimSuffix(root.Short, ".")))
	m.line(".SH SYNOPSIS")
	m.line(`\fB%s\fR [\fIflags\fR]`, roff(name))
	m.line(".br")
	m.line(`\fB%s\fR \fIVERB\fR [\fIflags\fR]`, roff(name))
	m.line(".SH DESCRIPTION")
	m.text(root.Long)
	m.line(".SH EXAMPLES")
	m.verbatim(root.Example)
	m.line(".SH FLAGS")
	m.flags(root.Flags())
	m.line(".SH VERBS")
	m.verbs(root, root)
	m.line(".SH ENVIRONMENT")
	m.text(environmentText)
	m.line(".SH EXIT STATUS")
	for _, e := range exitMeanings {
		m.line(".TP")
		m.line(".B %d", int(e.code))
		m.line("%s", roff(e.meaning))
	}
	m.line(".SH SEE ALSO")
	var others []string
	for _, p := range programs {
		if p != name {
			others = append(others, `\fB`+roff(p)+`\fR(1)`)
		}
	}
	m.line("%s", strings.Join(others, ", "))
	return m.b.String()
}

// environmentText says where flags have their values from besides the command line.
const environmentText = `A flag that is not on the command line takes its value from the environment variable of its name, where that is set and not
empty: LIGHTQ_LOG_LEVEL is --log-level. Flags that say what is deleted, purged or altered have to be on the command line.`

// A manual is a page that is being written.
type manual struct{ b strings.Builder }

func (m *manual) line(format string, args ...any) { fmt.Fprintf(&m.b, format+"\n", args...) }

// text writes paragraphs, which blank lines separate; indented lines stay as they are.
func (m *manual) text(s string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if i > 0 {
			m.line(".PP")
		}
		if strings.HasPrefix(paragraph, "  ") {
			m.verbatim(paragraph)
			continue
		}
		for line := range strings.Lines(paragraph) {
			m.line("%s", roff(strings.TrimSpace(line)))
		}
	}
}

func (m *manual) verbatim(s string) {
	m.line(".nf")
	for line := range strings.Lines(strings.TrimRight(s, "\n")) {
		m.line("%s", roff(strings.TrimRight(line, "\n")))
	}
	m.line(".fi")
}

func (m *manual) flags(fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		m.line(".TP")
		head := `\fB` + roff("--"+f.Name) + `\fR`
		if f.Shorthand != "" {
			head = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + head
		}
		if f.NoOptDefVal == "" {
			head += ` \fI` + roff(f.Value.Type()) + `\fR`
		}
		m.line("%s", head)
		usage := f.Usage
		if !slices.Contains([]string{"", "0", "false", "[]"}, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		m.line("%s", roff(usage))
	})
}

// verbs writes the verbs of a command. Where a verb has the flags of the program without a verb, these are not repeated.
func (m *manual) verbs(root, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if !c.IsAvailableCommand() {
			continue
		}
		m.line(".SS %s", roff(strings.TrimPrefix(c.CommandPath(), root.Name()+" ")))
		long := c.Long
		if long == "" || c.Name() == "completion" || cmd.Name() == "completion" { // which has much to say
			long = sentence(c.Short)
		}
		m.text(long)
		if c.Example != "" {
			m.line(".PP")
			m.verbatim(c.Example)
		}
		switch {
		case !c.Flags().HasAvailableFlags():
		case sameFlags(root.Flags(), c.Flags()):
			m.line(".PP")
			m.line("Flags: those of %s without a verb.", roff(root.Name()))
		default:
			m.flags(c.Flags())
		}
		m.verbs(root, c)
	}
}

// sameFlags reports whether two commands have the same flags, of the same meaning.
func sameFlags(a, b *pflag.FlagSet) bool {
	list := func(fs *pflag.FlagSet) (list []string) {
		fs.VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && f.Name != "version" {
				list = append(list, f.Name+"\n"+f.Usage+"\n"+f.DefValue)
			}
		})
		slices.Sort(list)
		return list
	}
	return slices.Equal(list(a), list(b))
}

// roff is a text in which nothing is taken for a command or an escape. A minus stays one, so that examples can be copied.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", "\\`", `^`, `\(ha`, `~`, `\(ti`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
