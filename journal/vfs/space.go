//go:build linux || darwin

package vfs

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A Spacer knows the space of the disk that holds a directory. OS is one.
type Spacer interface {
	// Space returns the bytes that are free for this process, and those of the whole disk.
	Space(dir string) (free, total int64, err error)
}

// IsNoSpace reports whether an error is that the disk, or the user's share of it, is full.
func IsNoSpace(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// Space implements Spacer.
func (OS) Space(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(st.Bavail) * int64(st.Bsize), int64(st.Blocks) * int64(st.Bsize), nil
}
