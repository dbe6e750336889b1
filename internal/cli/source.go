package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// A flag's value comes from its default, from a configuration file where the program has one, from the environment variable of
// the flag's name, or from the command line. Of these the last that has one wins.

// A Level is a kind of source. A higher one wins.
type Level int

// The levels.
const (
	FromDefault Level = iota
	FromFile
	FromEnvironment
	FromLine
)

// A Source is where the value of a flag comes from.
type Source struct {
	Level Level
	Name  string // a file and the line in it, a variable, the command line; empty: the default
}

func (s Source) String() string {
	if s.Level == FromDefault {
		return "default"
	}
	return s.Name
}

// SourceOf says where the value of a flag comes from.
func SourceOf(fs *pflag.FlagSet, name string) Source {
	if f := fs.Lookup(name); f != nil {
		if v, ok := f.Value.(*value); ok {
			return v.source
		}
	}
	return Source{}
}

// LineOnly makes flags take their value from the command line alone: what changes or destroys something has to stand there.
func LineOnly(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		fs.Lookup(name).Value.(*value).lineOnly = true
	}
}

// Variable is the name of the environment variable that stands for a flag.
func Variable(flag string) string {
	return "LIGHTQ_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyEnvironment gives the flags that the command line does not name the values of their variables. An empty one is as good
// as none. The environment is shared: a variable for a flag that this command refuses is left to the commands that have it, and
// one for credentials that this version cannot use is told on warnings.
func applyEnvironment(fs *pflag.FlagSet, warnings io.Writer) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		v, ok := f.Value.(*value)
		if !ok || v.lineOnly || v.given {
			return
		}
		variable := Variable(f.Name)
		text := os.Getenv(variable)
		switch {
		case text == "":
		case v.answer != nil && v.answer.Exit != ExitNotYet:
		case v.answer != nil && slices.Contains(credentials, f.Name):
			fmt.Fprintf(warnings, "warning: %s is set and not used: %s is not in this version\n", variable, flagName(f))
		default:
			errs = append(errs, v.take(f, text, Source{FromEnvironment, variable}))
		}
	})
	return first(errs)
}

// applyLine gives the flags that are on the command line the values that they have there, once more.
func applyLine(fs *pflag.FlagSet) error {
	var errs []error
	fs.VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && v.given && !v.many {
			errs = append(errs, v.parse(v.text))
			v.source = Source{FromLine, "the command line"}
		}
	})
	return first(errs)
}

// credentials are the flags that say who somebody is.
var credentials = []string{"user", "password", "password-file", "admin-user", "admin-password", "admin-password-file"}

func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// take gives a flag a value from elsewhere than the command line.
func (v *value) take(f *pflag.Flag, text string, from Source) error {
	err := v.parse(text)
	if err == nil {
		f.Changed, v.source = true, from
		return nil
	}
	var answer *Error
	if errors.As(err, &answer) {
		e := *answer
		e.Text += " (from " + from.Name + ")"
		return &e
	}
	shown := fmt.Sprintf(" %q", text)
	if v.secret {
		shown = ""
	}
	name := from.Name
	if from.Level == FromFile {
		name += ": " + f.Name
	}
	e := Usagef("%s%s (%s): %v", name, shown, flagName(f), err)
	if from.Level == FromEnvironment && f.Name == "port" && strings.Contains(text, "://") {
		e.Fix = "Kubernetes sets it in pods beside a service of the name lightq: enableServiceLinks: false in the pod's spec ends that"
	}
	return e
}

// nameSources adds to an error about flags where their values come from, unless that is the command line: there one sees it.
func nameSources(fs *pflag.FlagSet, err error) error {
	var e *Error
	if !errors.As(err, &e) || e.Exit != ExitUsage && e.Exit != ExitNotAllowed {
		return err
	}
	text := e.Text
	fs.VisitAll(func(f *pflag.Flag) {
		v, ok := f.Value.(*value)
		if !ok || v.source.Level == FromDefault || v.source.Level == FromLine || strings.Contains(text, v.source.Name) {
			return
		}
		if namesFlag(text, f) {
			text += " (--" + f.Name + " is from " + v.source.Name + ")"
		}
	})
	if text == e.Text {
		return err
	}
	told := *e
	told.Text, told.Err = text, err
	return &told
}

// namesFlag reports whether a text speaks of the flag, under either name.
func namesFlag(text string, f *pflag.Flag) bool {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,:;()", r) })
	return slices.Contains(words, "--"+f.Name) || f.Shorthand != "" && slices.Contains(words, "-"+f.Shorthand)
}

// A Setting is a flag with the value that it has.
type Setting struct {
	Name   string
	Value  string // masked where it is a secret
	Text   bool   // Value is a text, not a number
	Source Source
}

// configurable reports whether a configuration file may give the flag of this name a value.
func (v *value) configurable(name string) bool {
	return !v.lineOnly && name != ConfigFlag && name != outputFlag
}

// Masked stands for a secret.
const Masked = "********"

// Settings returns what the flags have as their values, as a configuration file would name them: without those that this
// version does not have, that only the command line may give, or that are not set and have no default.
func Settings(fs *pflag.FlagSet) (settings []Setting) {
	fs.VisitAll(func(f *pflag.Flag) {
		v, ok := f.Value.(*value)
		if !ok || !v.configurable(f.Name) || v.answer != nil {
			return
		}
		s := Setting{Name: f.Name, Value: v.show(), Text: v.kind != "N" && v.kind != "bool", Source: v.source}
		if v.secret {
			if v.source.Level == FromDefault {
				return
			}
			s.Value = Masked
		}
		if s.Value != "" {
			settings = append(settings, s)
		}
	})
	return settings
}

// UnknownVariables returns the names of variables of the environment that begin as ours do and are not known, in order.
func UnknownVariables(environment []string, known func(name string) bool) (names []string) {
	for _, entry := range environment {
		name, value, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, Variable("")) && value != "" && !known(name) && !serviceVariable.MatchString(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// serviceVariable is what Kubernetes puts into the environment beside a service of the name lightq.
var serviceVariable = regexp.MustCompile(`^LIGHTQ_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_[0-9]+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$`)
