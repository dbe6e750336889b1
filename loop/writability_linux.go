package loop

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readiness is the second poller, beside gnet's: an epoll instance in which a socket is armed for one event at a time.
// It sits in the Go runtime's own poller, so that the goroutine that waits for it costs no thread and holds no P, as
// one in a blocking epoll_wait would.
//
// arm and disarm may be called from any goroutine, wait from one at a time.
type readiness struct {
	fd     int
	file   *os.File // owns fd
	raw    syscall.RawConn
	take   func(fd uintptr) bool // drains what is ready into events
	events [128]unix.EpollEvent
	count  int
	err    error
}

func openReadiness() (*readiness, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	// The flag means nothing to epoll_wait: it is what os.NewFile goes by when it decides to poll the file.
	if err = unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	r := &readiness{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if r.raw, err = r.file.SyscallConn(); err != nil {
		_ = r.file.Close()
		return nil, err
	}
	r.take = func(fd uintptr) bool {
		for {
			r.count, r.err = unix.EpollWait(int(fd), r.events[:], 0)
			if r.err != unix.EINTR {
				return r.count != 0 // nothing: wait in the runtime's poller
			}
		}
	}
	return r, nil
}

// readinessKey returns the key of an event's transport: its id, which unlike a descriptor is never used again, so that
// an event on its way when the transport closes cannot reach another one.
func readinessKey(_ int, id uint64) uint64 { return id }

// arm makes wait return key once: as soon as fd has room if room is set, and in any case when the connection is dead.
// known says that fd was armed before and not disarmed since.
func (r *readiness) arm(fd int, key uint64, known, room bool) error {
	event := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: int32(uint32(key)), Pad: int32(uint32(key >> 32))}
	if room {
		event.Events |= unix.EPOLLOUT
	}
	op := unix.EPOLL_CTL_ADD
	if known {
		op = unix.EPOLL_CTL_MOD
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(r.fd, op, fd, &event))
}

// disarm forgets fd, which must be open.
func (r *readiness) disarm(fd int) { _ = unix.EpollCtl(r.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// wait blocks until there are events and puts their keys into keys. After stop it returns os.ErrClosed.
func (r *readiness) wait(keys []uint64) (int, error) {
	if err := r.raw.Read(r.take); err != nil {
		return 0, os.ErrClosed // the file is closed: there is no deadline, and take's errors are apart
	}
	if r.err != nil {
		return 0, os.NewSyscallError("epoll_wait", r.err)
	}
	n := min(r.count, len(keys))
	for i, event := range r.events[:n] {
		keys[i] = uint64(uint32(event.Fd)) | uint64(uint32(event.Pad))<<32
	}
	return n, nil
}

// stop makes wait return os.ErrClosed.
func (r *readiness) stop() { _ = r.file.Close() }

// release is called when wait has returned os.ErrClosed.
func (r *readiness) release() {}

// iovecs is the array that writev hands to the kernel. A loop has one, so that a write allocates nothing.
type iovecs struct{ array [iovMax]unix.Iovec }

// writev writes iov, of at most iovMax slices not all of which are empty, and returns how many bytes the kernel took.
func (v *iovecs) writev(fd int, iov [][]byte) (int, error) {
	count := 0
	for _, b := range iov {
		if len(b) > 0 {
			v.array[count].Base = unsafe.SliceData(b)
			v.array[count].SetLen(len(b))
			count++
		}
	}
	// It never blocks, so the runtime is not told of it: it would look for other work for this processor.
	n, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&v.array)), uintptr(count))
	clear(v.array[:count]) // or the array would keep the slices' memory alive
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
