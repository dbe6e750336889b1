package vfs

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strconv"
)

// FS is a file system. Errors wrap those of package io/fs and of package syscall, so that errors.Is(err, fs.ErrNotExist) and
// errors.Is(err, syscall.ENOSPC) tell what happened.
type FS interface {
	// Create makes a new regular file, open for reading and writing. It fails with fs.ErrExist if the name is taken.
	Create(name string) (File, error)
	// Open opens an existing regular file for reading and writing. Anything that is not a regular file is refused with
	// ErrNotRegular, without following a symbolic link and without waiting for the other end of a pipe. Two handles of one file
	// learn of a failed write-back independently: each reports it once.
	Open(name string) (File, error)
	// OpenRead is Open for reading only.
	OpenRead(name string) (File, error)
	// Rename gives a file a new name, replacing what had it.
	Rename(from, to string) error
	// Remove removes a file, or a directory without entries.
	Remove(name string) error
	// Mkdir makes a directory. It fails with fs.ErrExist if the name is taken.
	Mkdir(name string) error
	// SyncDir makes the names in a directory survive a power cut.
	SyncDir(name string) error
	// List returns the entries of a directory in the order of their names, without following links.
	List(name string) ([]Entry, error)
	// Lock takes an exclusive lock that the operating system releases when the process ends. The file is made if it is not
	// there and stays when the lock is released. It fails with ErrLocked, without waiting, if another holder exists.
	Lock(name string) (io.Closer, error)
}

// File is an open file.
type File interface {
	// ReadAt reads len(p) bytes, or fails; at the end of the file it returns what there is and io.EOF.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt writes all of bufs, one behind the other, or fails; after a failure any part may have been written. The bytes are
	// not kept after the return. The slice of slices may be changed.
	WriteAt(bufs [][]byte, off int64) error
	// WriteSync is WriteAt and returns when the bytes, and what is needed to read them again, survive a power cut. A failure of
	// the second half is a *SyncError.
	WriteSync(bufs [][]byte, off int64) error
	// Sync makes everything that was written to the file survive a power cut. Its failure is a *SyncError.
	Sync() error
	// Truncate sets the size of the file. It is durable after Sync.
	Truncate(size int64) error
	// Allocate reserves blocks for [off, off+n) and extends the file with zeros as needed. It fails with
	// errors.ErrUnsupported where the system cannot.
	Allocate(off, n int64) error
	// Size is the file's size in bytes.
	Size() (int64, error)
	// Close releases the handle. It syncs nothing.
	Close() error
}

// Kind says what a directory entry is.
type Kind uint8

// The kinds.
const (
	Regular Kind = iota
	Dir
	Other // a link, pipe, socket or device
)

// Entry is a directory entry. Size is that of a regular file, in bytes.
type Entry struct {
	Name string
	Kind Kind
	Size int64
}

var (
	// ErrNotRegular refuses to open what is not a regular file.
	ErrNotRegular = errors.New("not a regular file")
	// ErrLocked says that another process, or another part of this one, holds the lock.
	ErrLocked = errors.New("locked by another process")
	// ErrTooLarge says that a file is larger than whoever reads it allows.
	ErrTooLarge = errors.New("the file is too large")
)

// LockedError is ErrLocked with what is known of the holder.
type LockedError struct {
	PID int // of the process that holds the lock, as it sees itself; 0: not known
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return ErrLocked.Error()
	}
	return "locked by process " + strconv.Itoa(e.PID)
}

// Is matches ErrLocked.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// SyncError is the failure of a sync. After it nothing is known about the bytes that were to be synced, and trying again
// proves nothing: the kernel may have marked them clean.
type SyncError struct{ Err error }

func (e *SyncError) Error() string { return "sync: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *SyncError) Unwrap() error { return e.Err }

// MkdirAll makes a directory and what is missing above it. Every name that it makes is durable when it returns.
func MkdirAll(fsys FS, name string) error {
	name = path.Clean(name)
	if _, err := fsys.List(name); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := path.Dir(name)
	if parent != name {
		if err := MkdirAll(fsys, parent); err != nil {
			return err
		}
	}
	if err := fsys.Mkdir(name); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// ReadFile reads a whole file of at most limit bytes; a larger one is ErrTooLarge.
func ReadFile(fsys FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, ErrTooLarge
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}

// RemoveAll removes a directory with everything in it. It follows no links. After an error a part may be gone; that the rest is,
// survives a power cut only once the directory above was synced.
func RemoveAll(fsys FS, dir string) error {
	list, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		name := path.Join(dir, e.Name)
		if e.Kind == Dir {
			err = RemoveAll(fsys, name)
		} else {
			err = fsys.Remove(name)
		}
		if err != nil {
			return err
		}
	}
	return fsys.Remove(dir)
}

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}
