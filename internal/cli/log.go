package cli

import (
	"io"
	"log/slog"
	"math"

	"github.com/spf13/pflag"
)

// The log levels of the original, on the scale of log/slog: its four are where slog has them, the others between and above.
const (
	LevelTrace    = slog.Level(-8)
	LevelDebug    = slog.LevelDebug
	LevelInfo     = slog.LevelInfo
	LevelEvent    = slog.Level(2)
	LevelWarning  = slog.LevelWarn
	LevelError    = slog.LevelError
	LevelCritical = slog.Level(12)
	LevelAlert    = slog.Level(16)
	LevelEmerg    = slog.Level(20)
	LevelOff      = slog.Level(math.MaxInt32)
)

var levels = []struct {
	name  string
	level slog.Level
}{
	{"trace", LevelTrace},
	{"debug", LevelDebug},
	{"info", LevelInfo},
	{"event", LevelEvent},
	{"warning", LevelWarning},
	{"error", LevelError},
	{"critical", LevelCritical},
	{"alert", LevelAlert},
	{"emerg", LevelEmerg},
	{"off", LevelOff},
}

// LogLevel adds the flag -l, --log-level.
func LogLevel(fs *pflag.FlagSet, p *slog.Level) {
	*p = LevelEvent
	var names []string
	for _, l := range levels {
		names = append(names, l.name)
	}
	name := new(string)
	Choose(fs, name, "log-level", "l", "event", Choice{Names: names}, "LEVEL", "log this and worse: "+orList(names))
	v := fs.Lookup("log-level").Value.(*value)
	parse := v.parse
	v.parse = func(s string) error {
		if err := parse(s); err != nil {
			return err
		}
		for _, l := range levels {
			if l.name == *name {
				*p = l.level
			}
		}
		return nil
	}
}

// levelName is the name of the highest level that is not above l.
func levelName(l slog.Level) string {
	name := levels[0].name
	for _, known := range levels {
		if known.level <= l {
			name = known.name
		}
	}
	return name
}

// NewLogger returns a logger that writes one line an event to w, with the names of the original's levels.
func NewLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if l, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
				return slog.String(slog.LevelKey, levelName(l))
			}
			return a
		},
	}))
}
