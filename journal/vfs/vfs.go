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

func total(bufs [][]byte) (n int64) {
	for _, b := range bufs {
		n += int64(len(b))
	}
	return n
}
