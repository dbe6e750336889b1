package vfs

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxSlices is what one pwritev takes (IOV_MAX).
const maxSlices = 1024

type iovecs [maxSlices]unix.Iovec

var iovecPool = sync.Pool{New: func() any { return new(iovecs) }}

// noDsync is set when the kernel refuses RWF_DSYNC.
var noDsync atomic.Bool

// WriteSync implements File. One pwritev2 with RWF_DSYNC: docs/BENCHMARKS-journal.md has what it gains over a write and an fdatasync.
func (f *osFile) WriteSync(bufs [][]byte, off int64) error { return f.write(bufs, off, true) }

func writev(fd int, bufs [][]byte, off int64, sync bool) error {
	vecs := iovecPool.Get().(*iovecs)
	defer iovecPool.Put(vecs)
	// A write in several calls is synced as a whole behind the last one: RWF_DSYNC covers the bytes of its own call only.
	whole := true
	for first := true; len(bufs) > 0; first = false {
		n, size := 0, 0
		for _, b := range bufs {
			if n == maxSlices {
				break
			}
			if len(b) == 0 {
				continue
			}
			vecs[n].Base = unsafe.SliceData(b)
			vecs[n].SetLen(len(b))
			n++
			size += len(b)
		}
		if n == 0 {
			break
		}
		dsync := sync && first && len(bufs) <= maxSlices && !noDsync.Load()
		written, err := pwritev(fd, vecs[:n], off, dsync)
		clear(vecs[:n])
		if dsync && (err == unix.EOPNOTSUPP || err == unix.ENOSYS || err == unix.EINVAL) {
			noDsync.Store(true)
			continue
		}
		if dsync && err != nil {
			return whichHalf(fd, bufs, off, err)
		}
		if err != nil {
			return err
		}
		if written == 0 {
			return unix.EIO // a regular file takes at least one byte or says why not
		}
		whole = dsync && written == size
		bufs = advance(bufs, written)
		off += int64(written)
	}
	if sync && !whole || sync && noDsync.Load() {
		if err := retry(func() error { return unix.Fdatasync(fd) }); err != nil {
			return &SyncError{Err: err}
		}
	}
	return nil
}

// whichHalf tells whether the write or the sync of a pwritev2 with RWF_DSYNC failed, for the kernel returns one error for
// both. Lack of space from the write heals, from the sync it does not; so the write alone is tried once more, which is
// harmless: the bytes are the same. Every other error counts as that of a sync.
func whichHalf(fd int, bufs [][]byte, off int64, err error) error {
	if err != unix.ENOSPC && err != unix.EDQUOT {
		return &SyncError{Err: err}
	}
	for _, b := range bufs {
		for len(b) > 0 {
			n, werr := unix.Pwrite(fd, b, off)
			if werr == unix.EINTR {
				continue
			}
			if werr != nil {
				return werr
			}
			b = b[n:]
			off += int64(n)
		}
	}
	return &SyncError{Err: err}
}

func pwritev(fd int, vecs []unix.Iovec, off int64, dsync bool) (int, error) {
	flags := uintptr(0)
	if dsync {
		flags = unix.RWF_DSYNC
	}
	for {
		// The offset goes in two halves of a long each; on 64 bits the upper one is ignored.
		n, _, errno := unix.Syscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&vecs[0])), uintptr(len(vecs)),
			uintptr(off), uintptr(uint64(off)>>32), flags)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func syncData(fd int) error { return unix.Fdatasync(fd) }

func allocate(fd int, off, n int64) error {
	err := unix.Fallocate(fd, 0, off, n)
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return errors.ErrUnsupported
	}
	return err
}
