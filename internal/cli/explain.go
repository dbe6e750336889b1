package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// Explain turns an error of the client package into an Error with exit code and remedy. server and topic say what the
// command line named; topic may be empty. An Error stays what it is, and nil stays nil.
func Explain(err error, server, topic string) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var wire *codec.WireError
	if errors.As(err, &wire) {
		return explainWire(wire, server, topic, err)
	}
	var conn *client.ConnError
	if errors.As(err, &conn) {
		return explainConn(conn, server)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return &Error{Exit: ExitUnreachable, Text: server + " did not answer in time", Err: err}
	}
	return &Error{Exit: ExitFailure, Text: oneLine(err.Error()), Err: err}
}

// CreateCommand says how to create a topic.
func CreateCommand(server, topic string) string {
	return "create it with: lightq-topic -t " + topic + " -n 1" + ServerFlag(server)
}

func explainConn(err *client.ConnError, server string) *Error {
	reason := connReason(err.Err)
	e := &Error{Exit: ExitUnreachable, Text: "no broker answers at " + server + " (" + reason + ")", Err: err}
	var dns *net.DNSError
	switch {
	case errors.As(err.Err, &dns):
		e.Fix = "give another address with -b"
	case err.Op == "dial":
		e.Fix = "start one with: " + startCommand(server)
	case err.Op == "hello":
		e.Fix = "something else may be listening there"
	default:
		e.Text = "the connection to " + server + " is lost (" + reason + ")"
	}
	return e
}

// connReason is the innermost reason of a network error, in a few words.
func connReason(err error) string {
	var errno syscall.Errno
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &dns):
		return dns.Err + ": " + dns.Name
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the other side closed it"
	case err == nil:
		return "no reason given"
	}
	return oneLine(err.Error())
}

func explainWire(wire *codec.WireError, server, topic string, err error) *Error {
	e := &Error{Exit: ExitFailure, Text: "the broker answers " + oneLine(wire.Error()), Err: err}
	switch wire.Code {
	case codec.CodeUnknownTopic:
		e.Exit, e.Text = ExitNotFound, "unknown topic "+topic
		e.Fix = CreateCommand(server, topic)
	case codec.CodeUnknownPartition:
		e.Exit = ExitNotFound
	case codec.CodeTopicDeleted:
		e.Exit, e.Text = ExitNotFound, "topic "+topic+" was deleted while it was in use"
	case codec.CodeInvalidName: // which is quoted in the detail; as it is it might not stay on its line
		e.Exit, e.Text = ExitUsage, "-t, --topic is refused: "+oneLine(wire.Error())
	case codec.CodeInvalidSetting:
		e.Exit, e.Text = ExitUsage, topic+" is refused: "+oneLine(wire.Error())
	case codec.CodeOverflow:
		e.Text = "topic " + topic + " is full and refuses what does not fit (overflow=reject): its consumers are behind"
		e.Fix = "lightq-topic stats -t " + topic + ServerFlag(server) + " shows how far"
	case codec.CodeNotAllowed:
		e.Exit = ExitNotAllowed
	case codec.CodeNotYet:
		*e = *NotYet("%s", oneLine(wire.Detail))
		e.Err = err
	case codec.CodeDraining:
		e.Exit, e.Text = ExitUnreachable, "the broker at "+server+" is stopping"
	case codec.CodeLoginTimeout, codec.CodeHeartbeatTimeout, codec.CodeTooManyConnections:
		e.Exit = ExitUnreachable
	case codec.CodeOffsetOutOfRange:
		e.Fix = "--from earliest starts at the first record kept"
	case codec.CodeUnsupportedVersion:
		e.Fix = "use programs and a broker of versions closer to each other"
	}
	return e
}

// oneLine makes sure that an error stays on its line.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}
