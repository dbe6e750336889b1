package cli

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Every flag of the programs is added by one of the functions below. Their values say what they accept when they refuse
// something, and a flag that is given twice is an error, for the second would silently win.

// A value is a pflag.Value made of functions.
type value struct {
	kind     string // what help shows for it
	parse    func(string) error
	show     func() string
	secret   bool     // no error repeats it
	lineOnly bool     // the command line alone may give it
	many     bool     // it may be given more than once
	answer   *Error   // what a flag answers that is not in this version, or not for this command
	later    []string // values that are understood and not in this version
	words    []string // all that it takes, where that is a list
	complete func() []string
	others   []string // of the flag that names a configuration file: keys that are not for this command
	lenient  bool     // a command line is being completed: it is read more than once, and nothing is wrong with it yet

	given  bool   // on the command line
	text   string // as it was given there
	source Source
}

func (v *value) Set(s string) error {
	if v.lenient {
		v.given = v.parse(s) == nil
		return nil
	}
	if v.given && !v.many {
		return errors.New("the flag is given twice")
	}
	v.given, v.text, v.source = true, s, Source{FromLine, "the command line"}
	return v.parse(s)
}

func (v *value) String() string { return v.show() }
func (v *value) Type() string   { return v.kind }

func add(fs *pflag.FlagSet, v *value, name, short, usage string) *pflag.Flag {
	return fs.VarPF(v, name, short, usage)
}

// Given reports whether the flag has a value that is not its default: on the command line, in the environment or in a file.
func Given(fs *pflag.FlagSet, name string) bool {
	f := fs.Lookup(name)
	return f != nil && f.Changed
}

// Text adds a flag that takes any text but the empty one.
func Text(fs *pflag.FlagSet, p *string, name, short, value_, kind, usage string) {
	*p = value_
	add(fs, &value{kind: kind, show: func() string { return *p }, parse: func(s string) error {
		if s == "" {
			return errors.New("it must not be empty")
		}
		*p = s
		return nil
	}}, name, short, usage)
}

// Checked adds a flag that takes any text that check has nothing against.
func Checked(fs *pflag.FlagSet, p *string, name, short, kind, usage string, check func(string) error) {
	add(fs, &value{kind: kind, show: func() string { return *p }, parse: func(s string) error {
		if s == "" {
			return errors.New("it must not be empty")
		}
		if err := check(s); err != nil {
			return err
		}
		*p = s
		return nil
	}}, name, short, usage)
}

// Secret adds a flag that takes a password. Neither help nor an error ever shows what was given.
func Secret(fs *pflag.FlagSet, p *string, name, short, usage string) {
	add(fs, &value{kind: "TEXT", secret: true, show: func() string { return "" }, parse: func(s string) error {
		if s == "" {
			return errors.New("it must not be empty")
		}
		*p = s
		return nil
	}}, name, short, usage)
}

// Delimiter adds a flag that takes a separator: any text but the empty one, in which \n, \r, \t, \0, \\ and \xHH stand for the
// bytes that a shell cannot easily give.
func Delimiter(fs *pflag.FlagSet, p *[]byte, name, short, usage string) {
	text := ""
	add(fs, &value{kind: "TEXT", show: func() string { return text }, parse: func(s string) error {
		b, err := Unescape(s)
		switch {
		case err != nil:
			return err
		case len(b) == 0:
			return errors.New("it must not be empty")
		}
		text, *p = s, b
		return nil
	}}, name, short, usage)
}

// Unescape returns the bytes of a text in which \n, \r, \t, \0, \\ and \xHH stand for one byte each. The error says what may
// stand behind a backslash.
func Unescape(s string) ([]byte, error) {
	var b []byte
	for len(s) > 0 {
		if s[0] != '\\' {
			b, s = append(b, s[0]), s[1:]
			continue
		}
		one := map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '0': 0, '\\': '\\'}
		switch {
		case len(s) >= 4 && s[1] == 'x':
			n, err := strconv.ParseUint(s[2:4], 16, 8)
			if err != nil {
				return nil, errors.New(`behind \x stand two hexadecimal digits`)
			}
			b, s = append(b, byte(n)), s[4:]
			continue
		case len(s) >= 2:
			if c, ok := one[s[1]]; ok {
				b, s = append(b, c), s[2:]
				continue
			}
		}
		return nil, errors.New(`behind \ stands n, r, t, 0, \ or xHH`)
	}
	return b, nil
}

// Each adds a flag that may be given more than once: parse is called with each value, in order, and refuses it with an error.
func Each(fs *pflag.FlagSet, name, short, kind, usage string, parse func(string) error) {
	add(fs, &value{kind: kind, many: true, show: func() string { return "" }, parse: parse}, name, short, usage)
}

// AnyText adds a flag that takes any text, also the empty one, which Given tells from none.
func AnyText(fs *pflag.FlagSet, p *string, name, short, kind, usage string) {
	add(fs, &value{kind: kind, show: func() string { return *p }, parse: func(s string) error {
		*p = s
		return nil
	}}, name, short, usage)
}

// Int adds a flag that takes a whole number from low to high, in plain decimal digits.
func Int(fs *pflag.FlagSet, p *int64, name, short string, value_, low, high int64, usage string) {
	*p = value_
	want := fmt.Sprintf("it must be a whole number from %d to %d", low, high)
	if high == math.MaxInt64 {
		want = fmt.Sprintf("it must be a whole number of at least %d", low)
	}
	add(fs, &value{kind: "N", show: func() string { return strconv.FormatInt(*p, 10) }, parse: func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if meant, ok := inDigits(s); err != nil && ok && meant >= low && meant <= high {
			return errors.New(want + ", as in " + strconv.FormatInt(meant, 10))
		}
		if err != nil || n < low || n > high {
			return errors.New(want)
		}
		*p = n
		return nil
	}}, name, short, usage)
}

// Size adds a flag that takes a number of bytes from low to high, with a binary suffix if one likes: 65536, 64KiB, 1MiB.
func Size(fs *pflag.FlagSet, p *uint64, name string, low, high uint64, usage string) {
	add(fs, &value{kind: "SIZE", show: func() string {
		if *p == 0 {
			return ""
		}
		return FormatSize(*p)
	}, parse: func(s string) error {
		n, ok := ParseSize(s)
		if !ok {
			return errors.New("it must be a number of bytes, plain or with KiB, MiB or GiB")
		}
		if n < low || n > high {
			return fmt.Errorf("it must be from %s to %s", FormatSize(low), FormatSize(high))
		}
		*p = n
		return nil
	}}, name, "", usage)
}

// Duration adds a flag that takes a positive time such as 500ms or 2s.
func Duration(fs *pflag.FlagSet, p *time.Duration, name string, value_ time.Duration, usage string) {
	*p = value_
	add(fs, &value{kind: "TIME", show: func() string { return p.String() }, parse: func(s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d <= 0 {
			return errors.New("it must be a positive time such as 500ms or 2s")
		}
		*p = d
		return nil
	}}, name, "", usage)
}

// Bool adds a flag without a value.
func Bool(fs *pflag.FlagSet, p *bool, name, short, usage string) {
	f := add(fs, &value{kind: "bool", show: func() string { return strconv.FormatBool(*p) }, parse: func(s string) error {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("it must be true or false")
		}
		*p = b
		return nil
	}}, name, short, usage)
	f.NoOptDefVal = "true"
}

// A Choice is what a flag made with Choose accepts.
type Choice struct {
	Names  []string
	Reason map[string]*Error // answers to values that are understood and refused; may be nil
}

// Choose adds a flag that takes one of a few words.
func Choose(fs *pflag.FlagSet, p *string, name, short, value_ string, c Choice, kind, usage string) {
	*p = value_
	v := &value{kind: kind, show: func() string { return *p }}
	for _, name := range c.Names {
		if e := c.Reason[name]; e == nil {
			v.words = append(v.words, name)
		} else if e.Exit == ExitNotYet {
			v.later = append(v.later, name)
		}
	}
	v.parse = func(s string) error {
		if e := c.Reason[s]; e != nil {
			return e
		}
		if !slices.Contains(c.Names, s) {
			return errors.New("it must be " + orList(c.Names))
		}
		*p = s
		return nil
	}
	add(fs, v, name, short, usage)
}

// Deny adds a flag that is refused with a fixed answer whatever its value is. With kind "" it takes no value.
func Deny(fs *pflag.FlagSet, name, short, kind, usage string, answer *Error) {
	v := &value{kind: kind, answer: answer, show: func() string { return "" }, parse: func(string) error { return answer }}
	if kind == "" {
		v.kind = "bool"
	}
	f := add(fs, v, name, short, usage)
	if kind == "" {
		f.NoOptDefVal = "true"
	}
}

// Later adds a flag that this version knows and does not have yet: using it ends the program with ExitNotYet. With kind ""
// it takes no value.
func Later(fs *pflag.FlagSet, name, short, kind, usage string) {
	flag := "--" + name
	if short != "" {
		flag = "-" + short + ", " + flag
	}
	Deny(fs, name, short, kind, usage+laterMark, NotYet("%s (%s) is not in this version", flag, usage))
}

// Off adds a flag that takes an address or off, of which this version has off alone.
func Off(fs *pflag.FlagSet, name, usage string) {
	add(fs, &value{kind: "ADDR", later: []string{"ADDR"}, show: func() string { return "off" }, parse: func(s string) error {
		if s != "off" {
			return NotYet("--%s %s is not in this version: off is", name, s)
		}
		return nil
	}}, name, "", usage+" (not yet: off alone)")
}

// flagError turns an error of the flag parser into an Error of one line.
func flagError(cmd *cobra.Command, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	see := "see " + cmd.CommandPath() + " -help"
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	var unknown *pflag.NotExistError
	switch {
	case errors.As(err, &invalid):
		if v, ok := invalid.GetFlag().Value.(*value); ok && v.secret {
			return Usagef("%s: %v", flagName(invalid.GetFlag()), invalid.Unwrap())
		}
		return Usagef("%s %q: %v", flagName(invalid.GetFlag()), invalid.GetValue(), invalid.Unwrap())
	case errors.As(err, &missing):
		f := missing.GetFlag()
		return Usagef("%s needs a value: %s", flagName(f), f.Usage)
	case errors.As(err, &unknown):
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			if long := longOnly(cmd.Flags(), unknown.GetSpecifiedName()); long != "" {
				see = "did you mean --" + long + "?"
			}
			return &Error{Exit: ExitUsage, Text: fmt.Sprintf("unknown flag -%s in -%s", unknown.GetSpecifiedName(), short), Fix: see}
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := Nearest(unknown.GetSpecifiedName(), names); near != "" {
			see = "did you mean --" + near + "?"
		}
		return &Error{Exit: ExitUsage, Text: "unknown flag --" + unknown.GetSpecifiedName(), Fix: see}
	}
	return &Error{Exit: ExitUsage, Text: err.Error(), Fix: see, Err: err}
}

// longOnly returns a flag that begins with a letter, in either case, and has no short form; empty: there is none.
func longOnly(fs *pflag.FlagSet, letter string) (name string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && v.answer == nil && f.Shorthand == "" && name == "" && strings.EqualFold(f.Name[:1], letter) {
			name = f.Name
		}
	})
	return name
}

func flagName(f *pflag.Flag) string {
	if f.Shorthand == "" {
		return "--" + f.Name
	}
	return "-" + f.Shorthand + ", --" + f.Name
}

func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}
