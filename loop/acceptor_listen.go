package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// unixScheme begins a Bind that is the path of a unix-domain socket.
const unixScheme = "unix://"

// listen opens what cfg.Bind names.
func (b *Broker) listen() ([]net.Listener, error) {
	if b.cfg.Listener != nil {
		return []net.Listener{b.cfg.Listener}, nil
	}
	if path, ok := strings.CutPrefix(b.cfg.Bind, unixScheme); ok {
		l, err := listenUnix(path)
		if err != nil {
			return nil, err
		}
		return []net.Listener{l}, nil
	}
	ip := net.ParseIP(b.cfg.Bind)
	if b.cfg.Bind == "localhost" {
		ip = net.IPv4(127, 0, 0, 1)
	}
	switch {
	case b.cfg.Bind == "*":
		return nil, fmt.Errorf("every interface: %w", ErrExposed)
	case ip == nil:
		return nil, fmt.Errorf("bind address %q is not an IP address: %w", b.cfg.Bind, ErrBind)
	case !ip.IsLoopback():
		return nil, fmt.Errorf("%s: %w", b.cfg.Bind, ErrExposed)
	}
	first, err := listenTCP(ip.String(), b.cfg.Port)
	if err != nil {
		return nil, err
	}
	listeners := []net.Listener{first}
	if b.cfg.BothLoopbacks {
		other := "::1"
		if ip.To4() == nil {
			other = "127.0.0.1"
		}
		port := first.Addr().(*net.TCPAddr).Port
		second, err := listenTCP(other, port)
		if err != nil {
			b.log.Warn("one loopback only", "addr", net.JoinHostPort(other, strconv.Itoa(port)), "err", err)
		} else {
			listeners = append(listeners, second)
		}
	}
	return listeners, nil
}

func listenTCP(ip string, port int) (net.Listener, error) {
	addr := net.JoinHostPort(ip, strconv.Itoa(port))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w: %w", addr, ErrBind, err)
	}
	return l, nil
}

// listenUnix listens on a socket file. One that a dead broker left behind is replaced; one that somebody answers at, and any
// other file, is left alone.
func listenUnix(path string) (net.Listener, error) {
	fail := func(err error) error { return fmt.Errorf("listen on %s%s: %w: %w", unixScheme, path, ErrBind, err) }
	if path == "" {
		return nil, fail(errors.New("the path is empty"))
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fail(err)
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fail(errors.New("a file that is not a socket is there"))
	default:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		cancel()
		if err == nil {
			_ = conn.Close()
			return nil, fail(errors.New("another broker answers there"))
		}
		if err := os.Remove(path); err != nil {
			return nil, fail(err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fail(err)
	}
	// Who may connect may do everything, as long as there are no credentials: the owner and the group, nobody else.
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return nil, fail(err)
	}
	return l, nil
}
