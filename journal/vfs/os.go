//go:build linux || darwin

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// OS is the machine's file system.
type OS struct{}

type osFile struct {
	name string

	// Every system call holds mu shared and Close holds it alone: a number that was closed may already be another file.
	mu sync.RWMutex
	fd int // -1: closed
}

// Create implements FS.
func (OS) Create(name string) (File, error) {
	return open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
}

// Open implements FS.
func (OS) Open(name string) (File, error) { return open(name, unix.O_RDWR) }

// OpenRead implements FS.
func (OS) OpenRead(name string) (File, error) { return open(name, unix.O_RDONLY) }

func open(name string, flags int) (File, error) {
	var fd int
	err := retry(func() (err error) {
		// O_NONBLOCK: opening a pipe would otherwise wait for its other end. It means nothing for a regular file.
		fd, err = unix.Open(name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o640)
		return err
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO) {
		err = ErrNotRegular
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = unix.Close(fd) // nothing was written
		if err == nil {
			err = ErrNotRegular
		}
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &osFile{name: name, fd: fd}, nil
}

// retry runs a system call again while a signal interrupts it.
func retry(call func() error) error {
	for {
		err := call()
		if err != unix.EINTR {
			return err
		}
	}
}

// Rename implements FS.
func (OS) Rename(from, to string) error { return os.Rename(from, to) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// Mkdir implements FS.
func (OS) Mkdir(name string) error { return os.Mkdir(name, 0o750) }

// SyncDir implements FS.
func (OS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	return err
}

// List implements FS.
func (OS) List(name string) ([]Entry, error) {
	list, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(list))
	for _, de := range list {
		e := Entry{Name: de.Name(), Kind: Other}
		switch {
		case de.IsDir():
			e.Kind = Dir
		case de.Type().IsRegular():
			info, err := de.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since
			}
			if err != nil {
				return nil, err
			}
			e.Kind, e.Size = Regular, info.Size()
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Lock implements FS.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	err = f.(*osFile).do("lock", func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = &fs.PathError{Op: "lock", Path: name, Err: &LockedError{PID: holder(name)}}
		}
		return nil, err
	}
	// For whoever finds it locked; the lock itself is the operating system's.
	if f.Truncate(0) == nil {
		_ = f.WriteAt([][]byte{[]byte(strconv.Itoa(os.Getpid()) + "\n")}, 0)
	}
	return f, nil
}

// holder is the process that a lock's file names; 0: none.
func holder(name string) int {
	f, err := open(name, unix.O_RDONLY)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // it was only read
	var b [24]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// do runs a system call on the open file, again while a signal interrupts it.
func (f *osFile) do(op string, call func(fd int) error) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.fd < 0 {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	if err := retry(func() error { return call(f.fd) }); err != nil {
		return &fs.PathError{Op: op, Path: f.name, Err: err}
	}
	return nil
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		m := 0
		err := f.do("read", func(fd int) (err error) {
			m, err = unix.Pread(fd, p[n:], off+int64(n))
			return err
		})
		if err != nil {
			return n, err
		}
		if m == 0 {
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (f *osFile) WriteAt(bufs [][]byte, off int64) error {
	return f.write(bufs, off, false)
}

func (f *osFile) Sync() error {
	if err := f.do("sync", syncData); err != nil {
		return &SyncError{Err: err}
	}
	return nil
}

func (f *osFile) Truncate(size int64) error {
	return f.do("truncate", func(fd int) error { return unix.Ftruncate(fd, size) })
}

func (f *osFile) Allocate(off, n int64) error {
	return f.do("allocate", func(fd int) error { return allocate(fd, off, n) })
}

func (f *osFile) Size() (int64, error) {
	var st unix.Stat_t
	err := f.do("stat", func(fd int) error { return unix.Fstat(fd, &st) })
	return st.Size, err
}

func (f *osFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fd < 0 {
		return &fs.PathError{Op: "close", Path: f.name, Err: fs.ErrClosed}
	}
	err := unix.Close(f.fd)
	f.fd = -1
	if err != nil && err != unix.EINTR {
		return &fs.PathError{Op: "close", Path: f.name, Err: err}
	}
	return nil
}

// write writes bufs at off with as few system calls as the system's limit on slices allows. With sync the last of them, or
// a call behind it, makes all of it durable.
func (f *osFile) write(bufs [][]byte, off int64, sync bool) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.fd < 0 {
		return &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrClosed}
	}
	if err := writev(f.fd, bufs, off, sync); err != nil {
		var se *SyncError
		if errors.As(err, &se) {
			return &SyncError{Err: &fs.PathError{Op: "sync", Path: f.name, Err: se.Err}}
		}
		return &fs.PathError{Op: "write", Path: f.name, Err: err}
	}
	return nil
}

// advance drops the first n bytes of bufs.
func advance(bufs [][]byte, n int) [][]byte {
	for len(bufs) > 0 && n >= len(bufs[0]) {
		n -= len(bufs[0])
		bufs = bufs[1:]
	}
	if n > 0 {
		bufs[0] = bufs[0][n:]
	}
	return bufs
}
