package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lightio/lightq/codec"
	"github.com/spf13/pflag"
)

// Output adds the flag --output: table, json, jsonl, and plain where the command has such a form. plain says what that is;
// empty: the command has none.
func Output(fs *pflag.FlagSet, p *string, plain string) {
	names := []string{"table", "json", "jsonl"}
	usage := "results as table, json (one object) or jsonl (an object a line)"
	if plain != "" {
		names = append(names, "plain")
		usage = "results as table, json (one object), jsonl (an object a line) or plain (" + plain + ")"
	}
	Choose(fs, p, outputFlag, "", "table", Choice{Names: names}, "FORMAT", usage)
}

const outputFlag = "output"

// IsJSON reports whether a form of --output is one of objects: then standard output is for them alone, also in failure.
func IsJSON(form string) bool { return form == "json" || form == "jsonl" }

// A Result is what a command prints in each form of --output.
type Result struct {
	JSON  any                   // one object with all of it
	Lines []any                 // an object a line for jsonl; nil: JSON is the only one
	Plain [][]string            // rows of fields for scripts: no header, no commas in numbers
	Table func(io.Writer) error // for people
}

// Write writes the result in a form of --output. Fields of plain rows are separated by a tab.
func (r Result) Write(w io.Writer, form string) error {
	switch form {
	case "json":
		return writeObjects(w, r.JSON)
	case "jsonl":
		if r.Lines == nil {
			return writeObjects(w, r.JSON)
		}
		return writeObjects(w, r.Lines...)
	case "plain":
		var b strings.Builder
		for _, row := range r.Plain {
			b.WriteString(strings.Join(row, "\t") + "\n")
		}
		_, err := io.WriteString(w, b.String())
		return err
	}
	return r.Table(w)
}

// Print writes the result to standard output.
func (r Result) Print(form string) error {
	if err := r.Write(os.Stdout, form); err != nil {
		return Failf(ExitFailure, "write standard output: %v", err)
	}
	return nil
}

func writeObjects(w io.Writer, objects ...any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, o := range objects {
		if err := enc.Encode(o); err != nil {
			return err
		}
	}
	return nil
}

// WriteJSON writes v as one JSON object on a line.
func WriteJSON(w io.Writer, v any) { _ = writeObjects(w, v) }

// Line returns a table of one or more lines of text.
func Line(lines ...string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
		return err
	}
}

// errReported marks an error whose program already printed its JSON object.
var errReported = errors.New("the result is printed")

// Reported marks err as told in a JSON object that is already on standard output, so that no second one follows.
func Reported(err error) error {
	if err == nil {
		return nil
	}
	return reported{err}
}

type reported struct{ error }

func (r reported) Unwrap() []error { return []error{r.error, errReported} }

// A failure is how a program that prints objects says that it failed, where it has nothing else to say.
type failure struct {
	Program string   `json:"program"`
	Error   *Failure `json:"error"`
}

// A Failure is an Error as JSON.
type Failure struct {
	Code    string   `json:"code"` // a name of the protocol's table of errors, or the class of the exit code
	Message string   `json:"message"`
	Remedy  string   `json:"remedy,omitempty"`
	Exit    ExitCode `json:"exit"`
}

// FailureOf returns an error as JSON; nil for nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Exit: ExitFailure, Text: oneLine(err.Error()), Err: err}
	}
	f := &Failure{Code: e.Exit.String(), Message: e.Text, Remedy: e.Fix, Exit: e.Exit}
	var wire *codec.WireError
	if errors.As(e, &wire) {
		f.Code = wire.Code.String()
	}
	return f
}

// jsonWanted looks for a form of objects in --output, also on a command line that does not parse. As everywhere the command
// line goes before the environment.
func jsonWanted(args []string) bool {
	form := os.Getenv(Variable(outputFlag))
	for i, a := range args {
		if a == "--" {
			break
		}
		if v, ok := strings.CutPrefix(a, "--"+outputFlag+"="); ok {
			form = v
		} else if a == "--"+outputFlag && i+1 < len(args) {
			form = args[i+1]
		}
	}
	return IsJSON(form)
}
