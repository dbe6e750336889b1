package vfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// WriteSync implements File. There is no write that syncs by itself, and fsync leaves the bytes in the drive's cache: the
// write is followed by F_FULLFSYNC.
func (f *osFile) WriteSync(bufs [][]byte, off int64) error { return f.write(bufs, off, true) }

func writev(fd int, bufs [][]byte, off int64, sync bool) error {
	const most = 1024 // IOV_MAX
	for len(bufs) > 0 {
		if len(bufs[0]) == 0 {
			bufs = bufs[1:]
			continue
		}
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Pwritev(fd, bufs[:min(len(bufs), most)], off)
			return err
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return unix.EIO // a regular file takes at least one byte or says why not
		}
		bufs = advance(bufs, n)
		off += int64(n)
	}
	if sync {
		if err := retry(func() error { return syncData(fd) }); err != nil {
			return &SyncError{Err: err}
		}
	}
	return nil
}

func syncData(fd int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_FULLFSYNC, 0)
	if err == unix.ENOTSUP || err == unix.EINVAL || err == unix.ENOTTY {
		return unix.Fsync(fd) // a network or foreign file system
	}
	return err
}

func allocate(int, int64, int64) error { return errors.ErrUnsupported }
