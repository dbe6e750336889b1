package journal

import (
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// Inspection is told what Inspect finds in a segment file, in the order of positions. Each field may be nil.
type Inspection struct {
	// Header is told of the header; half: only one of its two copies is sound.
	Header func(h SegmentHeader, half bool)
	Group  func(g Group)
	Batch  func(g Group, b codec.Batch) // b is valid during the call
	Seal   func(g Group, s Stats)
	// Damage is told of every place that is not what was written. rest: nothing sound follows; zeros: nothing but zeros does.
	Damage func(e *CorruptionError, rest, zeros bool)
}

// ErrNoHeader says that neither copy of a segment's header is sound.
var ErrNoHeader = errors.New("journal: neither copy of the header is sound")

// ReadHeader reads the header of a segment file and nothing else of it. half: only one of its two copies is sound. The error is
// ErrNoHeader if neither is, an *UnsupportedError if the format is that of another version, or one of the file system.
func ReadHeader(fsys vfs.FS, name string) (h SegmentHeader, half bool, err error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return h, false, fmt.Errorf("read segment header: %w", err)
	}
	defer func() { _ = f.Close() }() // it is only read
	return readHeader(f, name)
}

func readHeader(f vfs.File, name string) (h SegmentHeader, half bool, err error) {
	b := make([]byte, headerBlockBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, false, fmt.Errorf("read segment header: %w", err)
	}
	clear(b[n:])
	h, ok := decodeHeader(b)
	second, ok2 := decodeHeader(b[headerCopyPosition:])
	if !ok {
		h = second
	}
	if !ok && !ok2 {
		return h, false, fmt.Errorf("read segment header of %s: %w", name, ErrNoHeader)
	}
	if h.Version != formatVersion || h.Required&^knownFeatures != 0 {
		return h, false, &UnsupportedError{Path: name, Version: h.Version, Features: h.Required &^ knownFeatures}
	}
	return h, ok != ok2, nil
}

// Inspect reads a segment file without changing it and checks every byte of it that counts.
func Inspect(fsys vfs.FS, name string, in Inspection) error {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return fmt.Errorf("inspect segment: %w", err)
	}
	defer func() { _ = f.Close() }() // it is only read
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("inspect segment: %w", err)
	}
	h, half, err := readHeader(f, name)
	if err != nil {
		return fmt.Errorf("inspect segment: %w", err)
	}
	if in.Header != nil {
		in.Header(h, half)
	}
	damage := func(e CorruptionError, rest, zeros bool) {
		e.Path = name
		if in.Damage != nil {
			in.Damage(&e, rest, zeros)
		}
	}
	if state, err := readSnapshot(f, &h, Position(size)); err != nil {
		return fmt.Errorf("inspect segment: %w", err)
	} else if state == nil {
		damage(CorruptionError{Position: headerBlockBytes, Offset: h.Base, Next: h.Base, Reason: "the snapshot is damaged"}, false, false)
	}
	s := newScanner(f, h.Salt, Position(size))
	var last Group
	end, next, err := s.walk(h.DataStart(), h.Base, 0, noOffset, walker{
		group: func(g *Group) error {
			last = *g
			if in.Group != nil {
				in.Group(*g)
			}
			return nil
		},
		batch: func(g *Group, b codec.Batch) {
			if in.Batch != nil {
				in.Batch(*g, b)
			}
		},
		hole: func(h hole) error {
			damage(CorruptionError{Position: h.from, Offset: h.offset, Next: h.next, Reason: h.reason}, h.final, h.zeros)
			return nil
		},
	})
	if err != nil {
		return fmt.Errorf("inspect segment %s: %w", name, err)
	}
	if last.Kind != KindSeal {
		return nil
	}
	body, err := s.body(&last)
	if err != nil {
		return fmt.Errorf("inspect segment %s: %w", name, err)
	}
	if in.Seal != nil {
		in.Seal(last, decodeStats(body))
	}
	if end < Position(size) {
		damage(CorruptionError{Position: end, Offset: next, Next: next, Reason: "bytes behind the seal"}, true, false)
	}
	return nil
}

// Segments lists the segment files of a log's directory in the order of their names.
func Segments(fsys vfs.FS, dir string) (names []string, err error) {
	list, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	for _, e := range list {
		if kind, _ := parseName(e.Name); kind == nameSegment && e.Kind == vfs.Regular {
			names = append(names, path.Join(dir, e.Name))
		}
	}
	return names, nil
}
