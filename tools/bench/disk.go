package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/journal/vfs"
)

// diskSample is the disk's own limit for what is stored in files: blocks of 1 MiB, appended to reserved blocks and synced one
// by one; and how long a block of 4 KiB takes to be on stable storage.
type diskSample struct {
	Bytes       int64   `json:"bytes"`
	Seconds     float64 `json:"seconds"`
	BytesPerSec float64 `json:"bytes_per_sec"`
	SmallP50    float64 `json:"small_p50_us"` // of 4 KiB blocks
	SmallP99    float64 `json:"small_p99_us"`
}

const (
	diskBlock   = 1 << 20
	diskReserve = 128 << 20 // blocks are reserved so far ahead, as a segment's are
	smallBlock  = 4 << 10
	smallBlocks = 500
)

// measureDisk appends to files of a directory, for so long and so many bytes at most, and removes them.
func measureDisk(ctx context.Context, dir string, most int64, long time.Duration) (s diskSample, err error) {
	fsys := vfs.OS{}
	name := filepath.Join(dir, "disk-limit")
	file, err := fsys.Create(name)
	if err != nil {
		return s, fmt.Errorf("measure the disk: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close(), fsys.Remove(name)) }()
	block := make([]byte, diskBlock)
	for i := range block {
		block[i] = byte(i * 7)
	}
	write := func(b []byte, at int64) error {
		if err := file.WriteAt([][]byte{b}, at); err != nil {
			return err
		}
		return file.Sync()
	}
	reserved := int64(0)
	reserve := func(to int64) error {
		for reserved < to {
			if err := file.Allocate(reserved, diskReserve); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				return err
			}
			reserved += diskReserve
		}
		return nil
	}
	begun := time.Now()
	for s.Bytes < most && time.Since(begun) < long {
		if err := ctx.Err(); err != nil {
			return s, context.Cause(ctx)
		}
		if err := errors.Join(reserve(s.Bytes+diskBlock), write(block, s.Bytes)); err != nil {
			return s, fmt.Errorf("measure the disk: %w", err)
		}
		s.Bytes += diskBlock
	}
	s.Seconds = time.Since(begun).Seconds()
	s.BytesPerSec = ratio(float64(s.Bytes), s.Seconds)
	at := s.Bytes
	if err := reserve(at + smallBlocks*smallBlock); err != nil {
		return s, fmt.Errorf("measure the disk: %w", err)
	}
	times := make([]float64, 0, smallBlocks)
	for range smallBlocks {
		before := time.Now()
		if err := write(block[:smallBlock], at); err != nil {
			return s, fmt.Errorf("measure the disk: %w", err)
		}
		times = append(times, float64(time.Since(before).Nanoseconds())/1e3)
		at += smallBlock
	}
	slices.Sort(times)
	s.SmallP50, s.SmallP99 = times[smallBlocks/2], times[smallBlocks*99/100]
	return s, nil
}

// disk measures the disk's limit within the timeout.
func (b *bench) disk(ctx context.Context, timeout time.Duration, o relayOptions) (diskSample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	s, err := measureDisk(ctx, b.scratch, o.Bytes, o.Duration)
	if err == nil {
		b.say("  disk            %8s MB/s, 4 KiB in %s µs", grouped(s.BytesPerSec/cli.MB), grouped(s.SmallP50))
	}
	return s, err
}

// inFiles reports whether a storage writes to the disk.
func inFiles(storage string) bool {
	return storage == "file" || storage == "disk" || storage == "queue_file"
}

// diskFigures is the median of samples, each figure on its own.
func diskFigures(samples []diskSample) diskSample {
	of := func(f func(diskSample) float64) float64 { return medianOf(samples, f) }
	return diskSample{
		BytesPerSec: of(func(s diskSample) float64 { return s.BytesPerSec }),
		SmallP50:    of(func(s diskSample) float64 { return s.SmallP50 }),
		SmallP99:    of(func(s diskSample) float64 { return s.SmallP99 }),
	}
}
