package cli

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// DefaultPort is the broker's native port.
const DefaultPort = 5500

// DefaultServer is where client programs look for a broker.
const DefaultServer = "tcp://127.0.0.1:5500"

// Server adds the flag -b, --server, which takes the address of a broker.
func Server(fs *pflag.FlagSet, p *string) {
	*p = DefaultServer
	add(fs, &value{kind: "ADDR", show: func() string { return *p }, parse: func(s string) error {
		addr, err := ParseServer(s)
		if err != nil {
			return err
		}
		*p = addr
		return nil
	}}, "server", "b", "the broker: tcp://host:port, host:port or unix:///path")
}

// ParseServer checks the address of a broker and returns it with its scheme.
func ParseServer(s string) (string, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		scheme, rest = "tcp", s
	}
	switch scheme {
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || strings.ContainsAny(rest, "/ ") {
			return "", errors.New("it must be tcp://host:port, host:port or unix:///path" + meant(rest))
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("its port %q must be a whole number from 1 to 65535", port)
		}
		return "tcp://" + rest, nil
	case "unix":
		if !strings.HasPrefix(rest, "/") {
			return "", errors.New("a unix socket's address is unix:// and an absolute path: unix:///run/lightq.sock")
		}
		return s, nil
	case "inproc":
		return "", errors.New("inproc connects inside one process only: use tcp:// or unix://")
	}
	return "", fmt.Errorf("%q is not a scheme that is understood: it must be tcp://host:port, host:port or unix:///path", scheme)
}

// meant is what somebody probably meant who gave a port, a host or a path alone, for behind the rule; empty: nothing known.
func meant(s string) string {
	port := strconv.Itoa(DefaultPort)
	host, _, _ := strings.Cut(s, ":")
	switch n, err := strconv.ParseUint(strings.TrimPrefix(s, ":"), 10, 16); {
	case err == nil && n > 0:
		return ", as in 127.0.0.1:" + strconv.FormatUint(n, 10)
	case strings.HasPrefix(s, "/"):
		return ", as in unix://" + s
	case s == "" || strings.ContainsAny(s, "/ "):
		return ""
	case net.ParseIP(s) != nil:
		return ", as in " + net.JoinHostPort(s, port)
	case host == strings.TrimSuffix(s, ":") && net.ParseIP(host) == nil && strings.Trim(host, "0123456789") != "":
		return ", as in " + net.JoinHostPort(host, port)
	}
	return ""
}

// ServerFlag is how to say the address on a command line, with a space in front; empty for the default.
func ServerFlag(server string) string {
	if server == DefaultServer {
		return ""
	}
	return " -b " + server
}

// startCommand is the command that starts a broker at the address.
func startCommand(server string) string {
	if path, ok := strings.CutPrefix(server, "unix://"); ok {
		return "lightq-broker -t ipc --bind " + path
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(server, "tcp://"))
	if err != nil {
		return "lightq-broker"
	}
	cmd := "lightq-broker"
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		cmd += " (on " + host + ")"
	}
	if port != strconv.Itoa(DefaultPort) {
		cmd += " -b " + port
	}
	return cmd
}
