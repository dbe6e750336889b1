//go:build !386 && !s390x

// On these two, older kernels have one system call for all that a socket does.

package client

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/internal/invariant"
)

// maxTransfer bounds one call, in which the runtime cannot stop the goroutine for its collector: 2 MiB are copied in less than half
// a millisecond, and a batch of the default size goes at once.
const maxTransfer = 2 << 20

// A rawSocket reads and writes a connection's descriptor by system calls that the runtime is not told of: they never block, and
// telling costs a program that is idle between two messages the wake-up of a thread for each call, that of the runtime's
// monitor. One Read and one Write at a time.
type rawSocket struct {
	net.Conn
	read, write transfer
}

// A transfer is one direction of a rawSocket: what is to be read or written, and what became of it.
type transfer struct {
	op    string
	call  uintptr
	flags uintptr                                      // whatever the descriptor's are: a call that blocked would hold up the whole program
	wait  func(try func(fd uintptr) (done bool)) error // until try is done
	try   func(fd uintptr) (done bool)
	p     []byte
	n     int
	err   error
}

// socketOf returns conn, or what does the same for less.
func socketOf(conn net.Conn) io.ReadWriter {
	if invariant.Enabled {
		return conn // the race detector sees what the runtime is told of
	}
	return newRawSocket(conn)
}

func newRawSocket(conn net.Conn) io.ReadWriter {
	var raw syscall.RawConn
	var err error
	switch c := conn.(type) { // these alone: what wraps one may read and write in its own way
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	default:
		return conn
	}
	if err != nil {
		return conn // it is closed, and says so
	}
	s := &rawSocket{
		Conn:  conn,
		read:  transfer{op: "read", call: unix.SYS_RECVFROM, flags: unix.MSG_DONTWAIT, wait: raw.Read},
		write: transfer{op: "write", call: unix.SYS_SENDTO, flags: unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL, wait: raw.Write},
	}
	s.read.try, s.write.try = s.read.some, s.write.all
	return s
}

// some moves what it can at once, and reports whether that was anything, an error or the end of the stream.
func (t *transfer) some(fd uintptr) bool {
	for {
		p := t.p[:min(len(t.p), maxTransfer)]
		n, _, errno := unix.RawSyscall6(t.call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), t.flags, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
		case errno != 0:
			t.err = &os.SyscallError{Syscall: t.op, Err: errno}
		case n == 0:
			t.err = io.EOF
		default:
			t.n, t.p = t.n+int(n), t.p[n:]
		}
		return true
	}
}

// all goes on until everything is moved.
func (t *transfer) all(fd uintptr) bool {
	for len(t.p) > 0 && t.err == nil {
		if !t.some(fd) {
			return false
		}
	}
	return true
}

// Read implements io.Reader, with the errors of the connection's own.
func (s *rawSocket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return s.Conn.Read(p)
	}
	return s.move(&s.read, p)
}

// Write implements io.Writer, with the errors of the connection's own.
func (s *rawSocket) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return s.Conn.Write(p)
	}
	return s.move(&s.write, p)
}

func (s *rawSocket) move(t *transfer, p []byte) (int, error) {
	t.p, t.n, t.err = p, 0, nil
	err := t.wait(t.try)
	t.p = nil
	switch {
	case err != nil: // the connection is closed, or a deadline has passed
		if failed, ok := err.(*net.OpError); ok {
			failed.Op = t.op
		}
		return t.n, err
	case t.err == nil || t.err == io.EOF:
		return t.n, t.err
	}
	local := s.LocalAddr()
	return t.n, &net.OpError{Op: t.op, Net: local.Network(), Source: local, Addr: s.RemoteAddr(), Err: t.err}
}
