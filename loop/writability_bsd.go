//go:build darwin

package loop

import (
	"os"

	"golang.org/x/sys/unix"
)

// stopIdent is the ident of the user event that ends wait. It is no socket's: filters are apart.
const stopIdent = 1

// readiness is the second poller, beside gnet's: a kqueue in which a socket is armed for one event at a time. Its wait
// blocks a thread, since a kqueue cannot be made non-blocking, which is what the Go runtime's poller would ask for.
//
// arm and disarm may be called from any goroutine, wait from one at a time.
type readiness struct {
	fd     int
	events [128]unix.Kevent_t
}

func openReadiness() (*readiness, error) {
	fd, err := unix.Kqueue()
	if err != nil {
		return nil, os.NewSyscallError("kqueue", err)
	}
	unix.CloseOnExec(fd)
	r := &readiness{fd: fd}
	stop := unix.Kevent_t{Ident: stopIdent, Filter: unix.EVFILT_USER, Flags: unix.EV_ADD | unix.EV_CLEAR}
	if err := r.change(stop); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return r, nil
}

func (r *readiness) change(event unix.Kevent_t) error {
	for {
		_, err := unix.Kevent(r.fd, []unix.Kevent_t{event}, nil, nil)
		if err != unix.EINTR {
			return os.NewSyscallError("kevent", err)
		}
	}
}

// readinessKey returns the key of an event's transport: the descriptor. An event on its way when the transport closes
// can reach the next owner of the number. For that one it is without cause: writable may be, and that a peer is gone is
// looked up at the socket, not taken from the event.
func readinessKey(fd int, _ uint64) uint64 { return uint64(fd) }

// arm makes wait return key, which is fd: if room is set once, as soon as fd has room or the connection is dead; else
// whenever the room changes, which is also how a dead connection is told.
func (r *readiness) arm(fd int, _ uint64, known, room bool) error {
	if known {
		r.disarm(fd) // so that the flags below are those of a new event
	}
	event := unix.Kevent_t{Ident: uint64(fd), Filter: unix.EVFILT_WRITE, Flags: unix.EV_ADD | unix.EV_ONESHOT}
	if !room {
		event.Flags = unix.EV_ADD | unix.EV_CLEAR
	}
	return r.change(event)
}

// disarm forgets fd, which must be open. An event that has fired is forgotten already.
func (r *readiness) disarm(fd int) {
	_ = r.change(unix.Kevent_t{Ident: uint64(fd), Filter: unix.EVFILT_WRITE, Flags: unix.EV_DELETE})
}

// wait blocks until there are events and puts their keys into keys. After stop it returns os.ErrClosed.
func (r *readiness) wait(keys []uint64) (int, error) {
	for {
		n, err := unix.Kevent(r.fd, nil, r.events[:min(len(r.events), len(keys))], nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("kevent", err)
		}
		for i, event := range r.events[:n] {
			if event.Filter == unix.EVFILT_USER {
				return 0, os.ErrClosed
			}
			keys[i] = event.Ident
		}
		return n, nil
	}
}

// stop makes wait return os.ErrClosed.
func (r *readiness) stop() {
	_ = r.change(unix.Kevent_t{Ident: stopIdent, Filter: unix.EVFILT_USER, Fflags: unix.NOTE_TRIGGER})
}

// release is called when wait has returned os.ErrClosed.
func (r *readiness) release() { _ = unix.Close(r.fd) }

// iovecs is a loop's place for what writev hands to the kernel. Here the system's library builds the array, on the
// stack up to eight slices.
type iovecs struct{}

// writev writes iov, of at most iovMax slices not all of which are empty, and returns how many bytes the kernel took.
func (*iovecs) writev(fd int, iov [][]byte) (int, error) { return unix.Writev(fd, iov) }
