package vfs

import (
	"errors"
	"io"
	"sync/atomic"
)

// OpKind names an operation of a file system.
type OpKind uint8

// The operations.
const (
	OpCreate OpKind = iota
	OpOpen
	OpRename
	OpRemove
	OpMkdir
	OpSyncDir
	OpList
	OpLock
	OpRead
	OpWrite
	OpWriteSync
	OpSync
	OpTruncate
	OpAllocate
	OpSize
)

var opNames = [...]string{
	"create", "open", "rename", "remove", "mkdir", "syncdir", "list", "lock", "read", "write", "writesync", "sync", "truncate",
	"allocate", "size",
}

func (k OpKind) String() string { return opNames[k] }

// Changes says whether the operation changes what a power cut could leave.
func (k OpKind) Changes() bool {
	switch k {
	case OpCreate, OpRename, OpRemove, OpMkdir, OpSyncDir, OpWrite, OpWriteSync, OpSync, OpTruncate, OpAllocate, OpLock:
		return true
	}
	return false
}

// Op is one operation that is about to happen. Off and Bytes are set for reads, writes and allocations.
type Op struct {
	Kind  OpKind
	Path  string
	Off   int64
	Bytes int64
}

var (
	// ErrCrashed is what every operation returns once the machine has stopped.
	ErrCrashed = errors.New("the machine has stopped")
	// ErrHalfDone, returned or wrapped by a hook, does the operation without its sync and then fails with ErrCrashed.
	ErrHalfDone = errors.New("half done")
)

// Fault is a file system that asks a hook before each operation of another one. Closing a file is not asked about.
type Fault struct {
	fs   FS
	hook atomic.Pointer[func(Op) error]
}

// StopAt returns a hook that stops the machine at the k-th operation that changes anything, from 1 on, and counts these. That one is
// itself done half, where k is even, or not done. The hook may be called from any goroutine.
func StopAt(k int64) (hook func(Op) error, count *atomic.Int64) {
	count = new(atomic.Int64)
	return func(op Op) error {
		n := count.Load()
		if op.Kind.Changes() {
			n = count.Add(1)
		}
		switch {
		case n == k && op.Kind.Changes() && k%2 == 0:
			return ErrHalfDone
		case n >= k:
			return ErrCrashed
		}
		return nil
	}, count
}

// NewFault wraps a file system; without a hook it changes nothing.
func NewFault(fsys FS) *Fault { return &Fault{fs: fsys} }

// SetHook installs the hook, nil takes it away. It runs on the goroutine of the operation, possibly on several at once, and may
// wait. An error that it returns is that of the operation, which then does not happen (but see ErrHalfDone).
func (f *Fault) SetHook(hook func(Op) error) {
	if hook == nil {
		f.hook.Store(nil)
		return
	}
	f.hook.Store(&hook)
}

func (f *Fault) ask(op Op) (half bool, err error) {
	hook := f.hook.Load()
	if hook == nil {
		return false, nil
	}
	err = (*hook)(op)
	if err != nil && errors.Is(err, ErrHalfDone) {
		return true, nil
	}
	return false, err
}

func (f *Fault) name(kind OpKind, name string, call func() error) error {
	half, err := f.ask(Op{Kind: kind, Path: name})
	if err != nil {
		return pathError(kind.String(), name, err)
	}
	if half && kind == OpSyncDir {
		return pathError(kind.String(), name, ErrCrashed)
	}
	if err := call(); err != nil {
		return err
	}
	if half {
		return pathError(kind.String(), name, ErrCrashed)
	}
	return nil
}

func (f *Fault) open(kind OpKind, name string, call func(string) (File, error)) (file File, err error) {
	err = f.name(kind, name, func() error {
		file, err = call(name)
		return err
	})
	if err != nil {
		if file != nil {
			_ = file.Close() // the machine has stopped
		}
		return nil, err
	}
	return &faultFile{f: f, file: file, name: name}, nil
}

// Create implements FS.
func (f *Fault) Create(name string) (File, error) { return f.open(OpCreate, name, f.fs.Create) }

// Open implements FS.
func (f *Fault) Open(name string) (File, error) { return f.open(OpOpen, name, f.fs.Open) }

// OpenRead implements FS.
func (f *Fault) OpenRead(name string) (File, error) { return f.open(OpOpen, name, f.fs.OpenRead) }

// Rename implements FS.
func (f *Fault) Rename(from, to string) error {
	return f.name(OpRename, from, func() error { return f.fs.Rename(from, to) })
}

// Remove implements FS.
func (f *Fault) Remove(name string) error {
	return f.name(OpRemove, name, func() error { return f.fs.Remove(name) })
}

// Mkdir implements FS.
func (f *Fault) Mkdir(name string) error {
	return f.name(OpMkdir, name, func() error { return f.fs.Mkdir(name) })
}

// SyncDir implements FS.
func (f *Fault) SyncDir(name string) error {
	return f.name(OpSyncDir, name, func() error { return f.fs.SyncDir(name) })
}

// List implements FS.
func (f *Fault) List(name string) (list []Entry, err error) {
	err = f.name(OpList, name, func() error {
		list, err = f.fs.List(name)
		return err
	})
	return list, err
}

// Lock implements FS.
func (f *Fault) Lock(name string) (c io.Closer, err error) {
	err = f.name(OpLock, name, func() error {
		c, err = f.fs.Lock(name)
		return err
	})
	return c, err
}

type faultFile struct {
	f    *Fault
	file File
	name string
}

func (f *faultFile) ReadAt(p []byte, off int64) (n int, err error) {
	if _, err := f.f.ask(Op{Kind: OpRead, Path: f.name, Off: off, Bytes: int64(len(p))}); err != nil {
		return 0, pathError("read", f.name, err)
	}
	return f.file.ReadAt(p, off)
}

func (f *faultFile) WriteAt(bufs [][]byte, off int64) error {
	half, err := f.f.ask(Op{Kind: OpWrite, Path: f.name, Off: off, Bytes: total(bufs)})
	if err != nil {
		return pathError("write", f.name, err)
	}
	if err := f.file.WriteAt(bufs, off); err != nil {
		return err
	}
	if half {
		return pathError("write", f.name, ErrCrashed)
	}
	return nil
}

// WriteSync of an error that is not a *SyncError fails the write, of one that is lets the bytes be written and fails the sync.
func (f *faultFile) WriteSync(bufs [][]byte, off int64) error {
	half, err := f.f.ask(Op{Kind: OpWriteSync, Path: f.name, Off: off, Bytes: total(bufs)})
	var se *SyncError
	switch {
	case half:
		err = ErrCrashed
	case errors.As(err, &se):
	case err != nil:
		return pathError("write", f.name, err)
	default:
		return f.file.WriteSync(bufs, off)
	}
	if werr := f.file.WriteAt(bufs, off); werr != nil {
		return werr
	}
	return &SyncError{Err: pathError("sync", f.name, err)}
}

func (f *faultFile) Sync() error {
	half, err := f.f.ask(Op{Kind: OpSync, Path: f.name})
	if half {
		err = ErrCrashed
	}
	if err != nil {
		return &SyncError{Err: pathError("sync", f.name, err)}
	}
	return f.file.Sync()
}

func (f *faultFile) Truncate(size int64) error {
	return f.f.name(OpTruncate, f.name, func() error { return f.file.Truncate(size) })
}

func (f *faultFile) Allocate(off, n int64) error {
	half, err := f.f.ask(Op{Kind: OpAllocate, Path: f.name, Off: off, Bytes: n})
	if err != nil {
		return pathError("allocate", f.name, err)
	}
	if err := f.file.Allocate(off, n); err != nil {
		return err
	}
	if half {
		return pathError("allocate", f.name, ErrCrashed)
	}
	return nil
}

func (f *faultFile) Size() (n int64, err error) {
	err = f.f.name(OpSize, f.name, func() error {
		n, err = f.file.Size()
		return err
	})
	return n, err
}

func (f *faultFile) Close() error { return f.file.Close() }
