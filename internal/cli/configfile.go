package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	parser "github.com/knadh/koanf/parsers/toml/v2"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"
	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
	"github.com/spf13/pflag"
)

// ConfigFlag is the flag that names a configuration file. A command that has it reads the file before it runs.
const ConfigFlag = "config"

// ConfigFile adds the flag --config. others are keys that the file may have for other commands.
func ConfigFile(fs *pflag.FlagSet, p *string, others ...string) {
	defer func() { fs.Lookup(ConfigFlag).Value.(*value).others = others }()
	Text(fs, p, ConfigFlag, "", "", "FILE", "configuration file (TOML): a flag's long name and its value on a line, as in port = 5600")
}

// maxConfigBytes is far more than all flags with their comments.
const maxConfigBytes = 1 << 20

// A setting is a key of a configuration file.
type setting struct {
	key  string
	line int // from 1
	text string
	err  error // why it is no value for a flag
}

// readSettings reads a configuration file: TOML, one key for each flag, no tables. A byte order mark is skipped, as editors put
// one there unasked. The errors name the file, and the line where there is one.
func readSettings(path string) ([]setting, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, Usagef("--%s: %v", ConfigFlag, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxConfigBytes+1))
	switch {
	case err != nil:
		return nil, Usagef("--%s: %v", ConfigFlag, err)
	case len(data) > maxConfigBytes:
		return nil, Usagef("--%s: %s has more than %s", ConfigFlag, path, FormatSize(maxConfigBytes))
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		return nil, Usagef("--%s: %s is UTF-16, and it must be UTF-8", ConfigFlag, path)
	}
	return parseSettings(path, data)
}

// parseSettings reads the text of a configuration file. path is for errors.
func parseSettings(path string, data []byte) ([]setting, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !utf8.Valid(data) {
		return nil, Usagef("--%s: %s is not UTF-8", ConfigFlag, path)
	}
	k := koanf.New(keyDelimiter)
	if err := k.Load(rawbytes.Provider(data), parser.Parser()); err != nil {
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			line, column := decode.Position()
			return nil, Usagef("%s:%d:%d: %s", path, line, column, strings.TrimPrefix(oneLine(decode.Error()), "toml: "))
		}
		return nil, Usagef("%s: %s", path, oneLine(err.Error()))
	}
	settings := keysOf(data)
	for i := range settings {
		s := &settings[i]
		switch v := k.Get(s.key).(type) {
		case string, int64, bool:
			s.text = fmt.Sprint(v)
		default:
			s.err = errors.New("it must be a text, a whole number, true or false")
		}
	}
	return settings, nil
}

// keyDelimiter is between the names of a table and a key in it.
const keyDelimiter = "."

// keysOf returns the keys and tables of a TOML text, which is known to be one, in order and without values. A key of a table has
// the table's name in front.
func keysOf(data []byte) (keys []setting) {
	var p unstable.Parser
	p.Reset(data)
	table := ""
	for p.NextExpression() {
		e := p.Expression()
		var parts []string
		line := 0
		for it := e.Key(); it.Next(); {
			parts = append(parts, string(it.Node().Data))
			line = p.Shape(it.Node().Raw).Start.Line
		}
		name := strings.Join(parts, keyDelimiter)
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = name + keyDelimiter
		case unstable.KeyValue:
			name = table + name
		}
		keys = append(keys, setting{key: name, line: line})
	}
	return keys
}

// applyFile gives flags the values of a configuration file. All of it is checked, also what is overridden later.
func applyFile(fs *pflag.FlagSet, path string) error {
	settings, err := readSettings(path)
	if err != nil {
		return err
	}
	others := fs.Lookup(ConfigFlag).Value.(*value).others
	for _, s := range settings {
		f := fs.Lookup(s.key)
		var v *value
		if f != nil {
			v, _ = f.Value.(*value)
		}
		if v == nil && slices.Contains(others, s.key) {
			continue
		}
		if v == nil || !v.configurable(s.key) {
			e := Usagef("%s:%d: unknown key %q", path, s.line, s.key)
			e.Fix = "keys are " + strings.Join(configKeys(fs), " ")
			if near := Nearest(s.key, configKeys(fs)); near != "" {
				e.Fix = "did you mean " + near + "?"
			}
			return e
		}
		from := Source{FromFile, fmt.Sprintf("%s:%d", path, s.line)}
		if s.err != nil {
			return Usagef("%s: %s (%s): %v", from.Name, s.key, flagName(f), s.err)
		}
		if err := v.take(f, s.text, from); err != nil {
			return err
		}
	}
	return nil
}

// configKeys are the keys that a configuration file may have.
func configKeys(fs *pflag.FlagSet) (keys []string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && v.configurable(f.Name) && v.answer == nil {
			keys = append(keys, f.Name)
		}
	})
	return keys
}
