// Command dump shows what is in the files of a durable partition, checks them, and repairs them when asked to.
//
//	dump print [-batches] PATH...   headers, groups and damage of segment files, or of all in a directory
//	dump verify PATH...             nothing but damage, and a line per file; exit 6 if there is any
//	dump repair DIR...              what the broker does when it opens a partition: cuts torn tails and writes missing seals
//
// print and verify change nothing and may be used while a broker runs. repair takes the directory of one partition; it refuses while a
// broker has the data directory (-data-dir) locked. docs/JOURNAL.md has the format.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
)

// Exit codes, as those of the programs.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitDamaged = 6
)

func main() { os.Exit(run(os.Args[1:], vfs.OS{}, os.Stdout, os.Stderr)) }

const usage = "usage: dump print [-batches] PATH... | dump verify PATH... | dump repair [-data-dir DIR] DIR..."

func run(args []string, fsys vfs.FS, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintln(stderr, usage)
		return exitUsage
	}
	flags := flag.NewFlagSet("dump "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	batches := flags.Bool("batches", false, "print every batch too")
	dataDir := flags.String("data-dir", "", "the broker's data directory, to be locked while repairing")
	if err := flags.Parse(args[1:]); err != nil {
		return exitUsage
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, usage)
		return exitUsage
	}
	d := &dump{fsys: fsys, out: stdout, batches: *batches}
	var err error
	switch args[0] {
	case "print":
		d.verbose = true
		err = d.files(flags.Args())
	case "verify":
		err = d.files(flags.Args())
	case "repair":
		err = d.repair(*dataDir, flags.Args())
	default:
		fmt.Fprintln(stderr, usage)
		return exitUsage
	}
	if err != nil {
		fmt.Fprintln(stderr, "dump:", err)
		return exitFailure
	}
	if d.damages > 0 {
		fmt.Fprintf(stderr, "dump: %d places are damaged\n", d.damages)
		return exitDamaged
	}
	return exitOK
}

type dump struct {
	fsys    vfs.FS
	out     io.Writer
	verbose bool
	batches bool
	damages int
}

func (d *dump) files(paths []string) error {
	for _, p := range paths {
		names, err := journal.Segments(d.fsys, p)
		if err != nil {
			names = []string{p} // a file
		} else if len(names) == 0 {
			fmt.Fprintf(d.out, "%s: no segments\n", p)
		}
		for _, name := range names {
			if err := d.file(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *dump) file(name string) error {
	state := "active"
	var groups, batches, records int
	var next codec.Offset
	err := journal.Inspect(d.fsys, name, journal.Inspection{
		Header: func(h journal.SegmentHeader, half bool) {
			next = h.Base
			if half {
				d.damage("%s: one copy of the header is damaged", name)
			}
			if d.verbose {
				fmt.Fprintf(d.out, "%s: version %d, topic %v, partition %d, base %d, gap from %d, created %s, epoch %d, salt %08x, durable %d, snapshot %d bytes\n",
					name, h.Version, h.Topic, h.Partition, h.Base, h.GapFrom, at(h.Created), h.Epoch, h.Salt, h.Durable, h.SnapshotBytes)
			}
		},
		Group: func(g journal.Group) {
			next = g.Next
			if g.Kind == journal.KindData {
				groups++
			}
			if d.verbose {
				fmt.Fprintf(d.out, "  %10d %-4v offsets %d to %d, %d bytes in %d batches, %s, durable %d, epoch %d\n", g.Position, g.Kind, g.Base,
					g.Next, g.Body, g.Batches, at(g.Time), g.Durable, g.Epoch)
			}
		},
		Batch: func(_ journal.Group, b codec.Batch) {
			batches++
			records += b.RecordCount()
			if d.verbose && d.batches {
				fmt.Fprintf(d.out, "             batch offsets %d to %d, %d bytes, times %s to %s, compression %d, producer %d epoch %d sequence %d\n", b.BaseOffset(),
					b.NextOffset(), len(b), at(b.BaseTimestamp()), at(b.MaxTimestamp()), b.Compression(), b.ProducerID(), b.ProducerEpoch(),
					b.BaseSequence())
			}
		},
		Seal: func(_ journal.Group, s journal.Stats) {
			state = "sealed"
			if int(s.Groups) != groups || int(s.Batches) != batches || int(s.Records) != records {
				d.damage("%s: the seal counts %d groups, %d batches and %d records", name, s.Groups, s.Batches, s.Records)
			}
		},
		Damage: func(e *journal.CorruptionError, rest, zeros bool) {
			switch {
			case zeros && rest:
				if d.verbose {
					fmt.Fprintf(d.out, "  %10d zeros up to the end\n", e.Position)
				}
			case rest && state == "active":
				// It may be a write under way, or a torn tail.
				fmt.Fprintf(d.out, "%s: position %d, offset %d: the tail cannot be read: %s\n", name, e.Position, e.Offset, e.Reason)
				d.damages++
			default:
				d.damage("%v", e)
			}
		},
	})
	var unsupported *journal.UnsupportedError
	switch {
	case errors.Is(err, journal.ErrNoHeader), errors.As(err, &unsupported):
		d.damage("%v", err)
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(d.out, "%s: %s, next offset %d, %d groups, %d batches, %d records\n", name, state, next, groups, batches, records)
	return nil
}

func (d *dump) damage(format string, args ...any) {
	d.damages++
	fmt.Fprintf(d.out, format+"\n", args...)
}

func at(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// repair opens and closes logs as a broker does.
func (d *dump) repair(dataDir string, dirs []string) error {
	if dataDir != "" {
		lock, err := journal.LockDir(d.fsys, dataDir)
		if err != nil {
			return err
		}
		defer func() { _ = lock.Close() }() // the process ends
	}
	sy := journal.NewSyncers(1)
	defer sy.Close()
	for _, dir := range dirs {
		if err := d.repairOne(sy, dir); err != nil {
			return err
		}
	}
	return nil
}

func (d *dump) repairOne(sy *journal.Syncers, dir string) error {
	names, err := journal.Segments(d.fsys, dir)
	if err != nil {
		return err
	}
	opts := journal.Options{Syncers: sy}
	found := false
	for _, name := range names {
		err := journal.Inspect(d.fsys, name, journal.Inspection{Header: func(h journal.SegmentHeader, _ bool) {
			opts.Topic, opts.Partition, found = h.Topic, h.Partition, true
		}})
		if found {
			break
		}
		if err != nil && !errors.Is(err, journal.ErrNoHeader) {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s has no segment with a sound header: nothing says which topic it belongs to", path.Clean(dir))
	}
	l, err := journal.Open(d.fsys, dir, opts)
	if err != nil {
		return err
	}
	r := l.Report()
	for _, c := range r.Cuts {
		fmt.Fprintln(d.out, c)
	}
	for _, e := range r.Damages {
		d.damage("%v", e)
	}
	fmt.Fprintf(d.out, "%s: offsets %d to %d in %d segments, %d bytes cut, %d written again, %d files removed\n", dir, l.Start(), l.Next(),
		r.Segments, r.Cut, r.Rewritten, r.Removed)
	return l.Close()
}
