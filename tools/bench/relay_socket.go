package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// The relay's sockets are blocking ones, read and written by plain system calls: no poller, no deadline, no goroutine switch
// stands between the kernel's copies. That is what makes the relay a limit.

// relayBlock is the size of each read and write, in bytes.
const relayBlock = 256 << 10

// acceptWait bounds how long a role waits for its peer, so that none outlives a parent that died.
const acceptWait = 30 * time.Second

// listenLoopback opens a listening socket on a free port of 127.0.0.1. The caller closes fd.
func listenLoopback() (fd int, addr string, err error) {
	fd, err = newSocket()
	if err != nil {
		return -1, "", err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = unix.Close(fd)
		return -1, "", os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		_ = unix.Close(fd)
		return -1, "", os.NewSyscallError("listen", err)
	}
	addr, err = localAddress(fd)
	if err != nil {
		_ = unix.Close(fd)
		return -1, "", err
	}
	return fd, addr, nil
}

func newSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	unix.CloseOnExec(fd) // no role starts a process; this is for completeness
	return fd, nil
}

// localAddress is the host:port an IPv4 socket is bound to.
func localAddress(fd int) (string, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	in4, ok := sa.(*unix.SockaddrInet4)
	if !ok {
		return "", fmt.Errorf("get socket name: %T is not an IPv4 address", sa)
	}
	return netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), uint16(in4.Port)).String(), nil
}

// acceptAlone listens on a free port, tells its address through listening, and waits for one connection, behind which it
// closes the door. The caller closes the result.
func acceptAlone(listening func(addr string)) (int, error) {
	listener, own, err := listenLoopback()
	if err != nil {
		return -1, err
	}
	defer closeSocket(listener)
	listening(own)
	return acceptOne(listener)
}

// acceptOne waits for one connection on the listening socket. The caller closes the result.
func acceptOne(listener int) (int, error) {
	deadline := time.Now().Add(acceptWait)
	for {
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(time.Until(deadline).Milliseconds()))
		switch {
		case err == unix.EINTR && time.Now().Before(deadline):
			continue
		case err != nil:
			return -1, os.NewSyscallError("poll", err)
		case n == 0:
			return -1, errors.New("accept: nobody connected in time")
		}
		fd, _, err := unix.Accept(listener)
		if err == unix.EINTR || err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			return -1, os.NewSyscallError("accept", err)
		}
		unix.CloseOnExec(fd)
		return fd, nil
	}
}

// dialLoopback connects to host:port. The caller closes the result.
func dialLoopback(addr string) (int, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return -1, fmt.Errorf("parse address: %w", err)
	}
	if !ap.Addr().Is4() {
		return -1, fmt.Errorf("parse address %s: not IPv4", addr)
	}
	fd, err := newSocket()
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: ap.Addr().As4(), Port: int(ap.Port())}); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", addr, err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

// A stream is the reading side of a blocking socket.
type stream struct {
	fd    int
	reads int
}

// yieldEvery is how many reads a role makes between two visits to Go's scheduler. A goroutine that does nothing but system
// calls for 10 ms looks stuck to the runtime, which from then on takes its processor away in every single one, and gives
// it back with a wake-up: what a relay in C would not pay for.
const yieldEvery = 32

// read reads what there is, at least one byte. The end of the stream is io.EOF.
func (s *stream) read(b []byte) (int, error) {
	if s.reads++; s.reads%yieldEvery == 0 {
		runtime.Gosched()
	}
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// writeBlock writes all of b, waiting as long as the peer does not read.
func writeBlock(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("write", err)
		}
		b = b[n:]
	}
	return nil
}

// closeSocket closes fd. What was written is delivered first; an error could change nothing.
func closeSocket(fd int) { _ = unix.Close(fd) }
