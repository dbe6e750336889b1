package program

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/spf13/pflag"
)

// This file holds what the programs know of topics that are stored in files.

// defaultDataDir is where topics are kept when nobody says where: the place that the system has for the state of a user's programs.
func defaultDataDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "lightq"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) {
		return "", &cli.Error{
			Exit: cli.ExitUsage, Text: "there is no home directory to keep topics in", Fix: "give one with --data-dir DIR, or --data-dir none to keep everything in memory",
		}
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "lightq"), nil
	}
	return filepath.Join(home, ".local", "state", "lightq"), nil
}

// noDataDir as a data directory keeps everything in memory.
const noDataDir = "none"

// resolveDataDir is the absolute path of a data directory, or "" for none.
func resolveDataDir(flag string) (string, error) {
	switch flag {
	case noDataDir:
		return "", nil
	case "":
		return defaultDataDir()
	}
	abs, err := filepath.Abs(flag)
	if err != nil {
		return "", cli.Failf(cli.ExitFailure, "--data-dir %q: %v", flag, err)
	}
	return abs, nil
}

// durableFlags are the settings of topics that are stored in files.
type durableFlags struct {
	sync           string
	retentionBytes string
	retentionTime  string
	segmentBytes   uint64
}

func (f *durableFlags) add(fs *pflag.FlagSet, created bool) {
	def := func(s string) string {
		if created {
			return s
		}
		return ""
	}
	if created {
		cli.Checked(fs, &f.sync, "sync", "", "POLICY", withDefault(
			"when a file topic syncs: always (before it confirms), interval=5ms (at least that often, after confirming) or os",
			def("(default always; interval=10ms for queue_file)")), func(s string) error { _, _, err := parseSync(s); return err })
		cli.Size(fs, &f.segmentBytes, "segment-bytes", 64<<10, 1<<30, "size of one file of a file topic (default 128MiB)")
	}
	cli.Checked(fs, &f.retentionBytes, "retention-bytes", "", "SIZE", withDefault(
		"a file topic keeps at least so much of each partition and removes the oldest files beyond that; none: all", def("(default none)")),
		func(s string) error { _, err := parseRetentionBytes(s); return err })
	cli.Checked(fs, &f.retentionTime, "retention-time", "", "TIME", withDefault(
		"a file topic removes files whose last record is of that age, such as 90m, 36h or 7d; none: never", def("(default none)")),
		func(s string) error { _, err := parseRetentionTime(s); return err })
}

// into puts them into settings; what was not given stays zero.
func (f *durableFlags) into(s *client.TopicSettings) {
	s.Sync, s.SyncMillis, _ = parseSync(f.sync) // checked when they were given
	s.RetentionBytes, _ = parseRetentionBytes(f.retentionBytes)
	s.RetentionMillis, _ = parseRetentionTime(f.retentionTime)
	s.SegmentBytes = f.segmentBytes
}

// parseSync understands always, os, interval and interval=TIME.
func parseSync(s string) (codec.Sync, uint32, error) {
	if s == "" {
		return 0, 0, nil
	}
	name, interval, timed := strings.Cut(s, "=")
	mode, ok := codec.ParseSync(name)
	if !ok || timed && mode != codec.SyncInterval {
		return 0, 0, errors.New("it must be always, interval=TIME such as interval=5ms, or os")
	}
	if !timed {
		return mode, 0, nil
	}
	d, err := time.ParseDuration(interval)
	if err != nil || d < time.Millisecond || d > time.Minute || d%time.Millisecond != 0 {
		return 0, 0, errors.New("the interval must be from 1ms to 1m, in whole milliseconds")
	}
	return mode, uint32(d.Milliseconds()), nil
}

const noRetention = "none"

func parseRetentionBytes(s string) (uint64, error) {
	switch s {
	case "":
		return 0, nil
	case noRetention:
		return codec.RetentionUnlimited, nil
	}
	n, ok := cli.ParseSize(s)
	if !ok || n == 0 || n > math.MaxInt64 {
		return 0, errors.New("it must be a number of bytes above 0, plain or with KiB, MiB or GiB, or none")
	}
	return n, nil
}

func parseRetentionTime(s string) (uint64, error) {
	switch s {
	case "":
		return 0, nil
	case noRetention:
		return codec.RetentionUnlimited, nil
	}
	var d time.Duration
	var err error
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		if n, err = strconv.ParseUint(days, 10, 16); err == nil {
			d = time.Duration(n) * 24 * time.Hour
		}
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil || d < time.Millisecond {
		return 0, errors.New("it must be a time such as 90m, 36h or 7d, or none")
	}
	return uint64(d.Milliseconds()), nil
}

func syncText(s client.TopicSettings) string {
	if s.Sync == codec.SyncInterval {
		return "interval=" + (time.Duration(s.SyncMillis) * time.Millisecond).String()
	}
	return s.Sync.String()
}

func retentionText(s client.TopicSettings) string {
	var parts []string
	if s.RetentionBytes != codec.RetentionUnlimited {
		parts = append(parts, cli.FormatSize(s.RetentionBytes))
	}
	if s.RetentionMillis != codec.RetentionUnlimited {
		parts = append(parts, (time.Duration(min(s.RetentionMillis, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond).String())
	}
	if len(parts) == 0 {
		return noRetention
	}
	return strings.Join(parts, "/")
}

// filed reports whether a topic's records are in files.
func filed(s codec.Storage) bool { return s == codec.StorageFile || s == codec.StorageQueueFile }

// durableText is what a topic in files has beside the others, behind a comma.
func durableText(s client.TopicSettings) string {
	if !filed(s.Storage) {
		return ""
	}
	return fmt.Sprintf(", sync=%s, retention=%s", syncText(s), retentionText(s))
}

// explainDataDir says why a broker cannot use its data directory.
func explainDataDir(err error, dir string) error {
	e := &cli.Error{Exit: cli.ExitFailure, Text: err.Error(), Err: err}
	switch {
	case errors.Is(err, vfs.ErrLocked):
		e.Text = "data directory " + dir + " is in use by another broker"
		var held *vfs.LockedError
		if errors.As(err, &held) && held.PID > 0 {
			e.Text += fmt.Sprintf(" (process %d)", held.PID)
		}
		e.Fix = "stop it, or choose another directory with --data-dir DIR, or --data-dir none to keep everything in memory"
	case errors.Is(err, fs.ErrPermission):
		e.Exit = cli.ExitNotAllowed
		e.Fix = "choose another directory with --data-dir DIR, or --data-dir none to keep everything in memory"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, vfs.ErrNotRegular):
		e.Fix = "choose another directory with --data-dir DIR, or --data-dir none to keep everything in memory"
	}
	return e
}
