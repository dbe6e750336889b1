package cli

import (
	"errors"
	"fmt"
	"strconv"
)

// An ExitCode is a program's exit status. The numbers are part of the contract with scripts and never change.
type ExitCode int

// The exit codes, by class of failure.
const (
	ExitDone        ExitCode = 0
	ExitFailure     ExitCode = 1
	ExitUsage       ExitCode = 2   // the command line is wrong; nothing was done
	ExitUnreachable ExitCode = 3   // cannot connect, lost the connection, or timed out
	ExitNotAllowed  ExitCode = 4   // credentials or safety rules forbid it
	ExitNotFound    ExitCode = 5   // no such topic or partition
	ExitCheckFailed ExitCode = 6   // everything ran and a check found something wrong
	ExitNotYet      ExitCode = 7   // a feature that this version does not have
	ExitInterrupted ExitCode = 130 // by a signal, after printing what was done
)

var exitMeanings = []struct {
	code    ExitCode
	name    string // for programs
	meaning string // for people
}{
	{ExitDone, "done", "all done"},
	{ExitFailure, "failure", "failure"},
	{ExitUsage, "usage", "wrong usage"},
	{ExitUnreachable, "unreachable", "cannot connect or timed out"},
	{ExitNotAllowed, "not_allowed", "not allowed"},
	{ExitNotFound, "not_found", "not found"},
	{ExitCheckFailed, "check_failed", "a check failed"},
	{ExitNotYet, "not_yet", "not built yet"},
	{ExitInterrupted, "interrupted", "interrupted"},
}

// String is the name of the class of failure.
func (c ExitCode) String() string {
	for _, m := range exitMeanings {
		if m.code == c {
			return m.name
		}
	}
	return "exit_" + strconv.Itoa(int(c))
}

// An Error ends a program. Its text is one line.
type Error struct {
	Exit ExitCode
	Text string // the thing and the reason
	Fix  string // what to do or type, empty if there is nothing
	Err  error  // the cause, if any, for errors.Is; Text already tells it
}

func (e *Error) Error() string {
	if e.Fix == "" {
		return e.Text
	}
	return e.Text + ": " + e.Fix
}

func (e *Error) Unwrap() error { return e.Err }

// Failf returns an Error with a formatted text and no remedy.
func Failf(exit ExitCode, format string, args ...any) *Error {
	return &Error{Exit: exit, Text: fmt.Sprintf(format, args...)}
}

// Usagef returns an Error for a command line that is wrong.
func Usagef(format string, args ...any) *Error { return Failf(ExitUsage, format, args...) }

// NotYet returns the Error for a feature that this version does not have.
func NotYet(format string, args ...any) *Error {
	return Failf(ExitNotYet, "not yet: "+format, args...)
}

// ErrInterrupted ends a client program that a signal stopped, after it printed what it had done.
var ErrInterrupted error = &Error{Exit: ExitInterrupted, Text: "interrupted"}

// ExitOf returns the exit code for err: that of the Error inside it, else ExitFailure; ExitDone for nil.
func ExitOf(err error) ExitCode {
	if err == nil {
		return ExitDone
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Exit
	}
	return ExitFailure
}
