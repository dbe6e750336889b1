package catalogue

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/lightio/lightq/journal/vfs"
)

const (
	oldSuffix  = ".old"
	tempSuffix = ".tmp"

	// pendingSuffix is that of a file that is there while the names in its directory may not be durable yet.
	pendingSuffix = ".pending" + tempSuffix
)

// replace makes now the content of a file, and old, if it is not nil, that of its predecessor. It is durable when it returns. After
// an error, or a crash at any point, each of the two is what it was or what it was to be: contents are synced before names change,
// and names change in one step each.
func replace(fsys vfs.FS, dir, name string, now, old []byte) error {
	file := path.Join(dir, name)
	if err := mark(fsys, file+pendingSuffix); err != nil {
		return err
	}
	if err := writeFile(fsys, file+tempSuffix, now); err != nil {
		return err
	}
	if old != nil {
		if err := writeFile(fsys, file+oldSuffix+tempSuffix, old); err != nil {
			return err
		}
		if err := fsys.Rename(file+oldSuffix+tempSuffix, file+oldSuffix); err != nil {
			return err
		}
	}
	if err := fsys.Rename(file+tempSuffix, file); err != nil {
		return err
	}
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	_ = fsys.Remove(file + pendingSuffix) // if it stays, the next Open syncs the directory for nothing
	return nil
}

// mark makes an empty file if it is not there.
func mark(fsys vfs.FS, name string) error {
	f, err := fsys.Create(name)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// writeFile makes a file whose content, but not yet its name, is durable. A file in its way is a remnant of an earlier attempt.
func writeFile(fsys vfs.FS, name string, b []byte) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	err = f.WriteSync([][]byte{b}, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return errors.Join(err, removeFile(fsys, name))
	}
	return nil
}

func removeFile(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// readFile reads a small file. Errors that are a *damagedError or a *strangeError are about its content; fs.ErrNotExist says that
// there is none; every other one is the file system's and says nothing about the file.
func readFile(fsys vfs.FS, name string) ([]byte, error) {
	b, err := vfs.ReadFile(fsys, name, maxFileBytes)
	switch {
	case errors.Is(err, vfs.ErrNotRegular):
		return nil, strange("%s is not a regular file", path.Base(name))
	case errors.Is(err, vfs.ErrTooLarge):
		return nil, damaged("it has more than %d bytes", maxFileBytes)
	}
	return b, err
}

func wrap(verb, noun string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", verb, noun, err)
}
