package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A Missing is a verb, a flag, or a value of a flag that is understood and not in this version.
type Missing struct {
	Verb    string // as it is typed; empty: the program without a verb
	Typed   string // the verb or flag, as help shows it
	Meaning string
	Args    []string // that make the program say so
}

// meaning is what a help text says without the marks behind it.
func meaning(usage string) string {
	for _, mark := range []string{strings.TrimSuffix(laterMark, ")"), " (default "} {
		usage, _, _ = strings.Cut(usage, mark)
	}
	return usage
}

// NotYetIn returns what the program's command tree says is not in this version.
func NotYetIn(root *cobra.Command) (all []Missing) {
	var walk func(cmd *cobra.Command, verb []string)
	walk = func(cmd *cobra.Command, verb []string) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			v, ok := f.Value.(*value)
			if !ok {
				return
			}
			m := Missing{Verb: strings.Join(verb, " "), Meaning: meaning(f.Usage)}
			if v.answer != nil && v.answer.Exit == ExitNotYet {
				m.Typed = flagName(f)
				m.Args = append(verb[:len(verb):len(verb)], "--"+f.Name)
				if f.NoOptDefVal == "" {
					m.Typed += " " + f.Value.Type()
					m.Args = append(m.Args, "x")
				}
				all = append(all, m)
			}
			for _, word := range v.later {
				m.Typed = flagName(f) + " " + word
				m.Args = append(verb[:len(verb):len(verb)], "--"+f.Name, word)
				all = append(all, m)
			}
		})
		for _, c := range cmd.Commands() {
			path := append(verb[:len(verb):len(verb)], c.Name())
			if isLaterVerb(c) {
				all = append(all, Missing{Verb: c.Name(), Typed: c.Name(), Meaning: meaning(c.Short), Args: path})
				continue
			}
			walk(c, path)
		}
	}
	walk(root, nil)
	return all
}
