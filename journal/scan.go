package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// scanBytes is how much a scanner reads at a time: large enough that the disk, not the calls, is the limit.
const scanBytes = 1 << 20

// scanner reads the groups of one file in order through a window that is as large as the largest group it met, and finds the
// next sound group behind a hole. It is used by one goroutine. Group bodies that it returns are valid until its next call.
type scanner struct {
	f    vfs.File
	salt uint32
	size Position // where the file ends
	at   Position // of the window's first byte
	buf  []byte   // the window
	read int64    // bytes read so far
}

func newScanner(f vfs.File, salt uint32, size Position) *scanner {
	return &scanner{f: f, salt: salt, size: size}
}

// window returns n bytes at pos, fewer only at the end of the file.
func (s *scanner) window(pos Position, n int) ([]byte, error) {
	n = int(min(Position(n), max(0, s.size-pos)))
	if pos >= s.at && pos+Position(n) <= s.at+Position(len(s.buf)) {
		return s.buf[pos-s.at:][:n], nil
	}
	want := int(min(Position(max(n, scanBytes)), max(0, s.size-pos)))
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	buf := s.buf[:want]
	s.buf = s.buf[:0]
	m, err := s.f.ReadAt(buf, int64(pos))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	s.at, s.buf = pos, buf[:m]
	s.read += int64(m)
	return s.buf[:min(n, m)], nil
}

// header returns the group header at pos, and false if there is none.
func (s *scanner) header(pos Position) (g Group, ok bool, err error) {
	b, err := s.window(pos, groupHeaderBytes)
	if err != nil {
		return g, false, err
	}
	g, ok = decodeGroup(b, pos, s.salt)
	return g, ok, nil
}

// body returns a group's body, shorter than it should be if the file ends before.
func (s *scanner) body(g *Group) ([]byte, error) {
	return s.window(g.Position+groupHeaderBytes, g.Body)
}

var groupMagicBytes = binary.BigEndian.AppendUint32(nil, groupMagic)

// resync looks for the next sound group header at or behind pos whose base offset is at least from. With anySalt it need not have
// the scanner's salt. It returns false if there is none.
func (s *scanner) resync(pos Position, anySalt bool, from codec.Offset) (g Group, ok bool, err error) {
	pos = alignUp(pos, groupAlign)
	for pos+groupHeaderBytes <= s.size {
		w, err := s.window(pos, scanBytes)
		if err != nil {
			return g, false, err
		}
		if len(w) < groupHeaderBytes {
			return g, false, nil
		}
		i := bytes.Index(w[:len(w)-groupHeaderBytes+len(groupMagicBytes)], groupMagicBytes)
		if i < 0 {
			// The window may end inside of a header.
			pos += max(groupAlign, Position(len(w)-groupHeaderBytes+1)/groupAlign*groupAlign)
			continue
		}
		at := pos + Position(i)
		if at%groupAlign == 0 {
			salt := s.salt
			if anySalt {
				salt = binary.BigEndian.Uint32(w[i+52:])
			}
			if g, ok := decodeGroup(w[i:], at, salt); ok && g.Base >= from {
				return g, true, nil
			}
		}
		pos = alignUp(at+1, groupAlign)
	}
	return g, false, nil
}

// zeros says whether [from, the end of the file) holds nothing but zeros.
func (s *scanner) zeros(from Position) (bool, error) {
	for from < s.size {
		w, err := s.window(from, scanBytes)
		if err != nil {
			return false, err
		}
		if len(w) == 0 {
			break
		}
		for _, b := range w {
			if b != 0 {
				return false, nil
			}
		}
		from += Position(len(w))
	}
	return true, nil
}

// hole is a place where the chain of groups is broken.
type hole struct {
	from   Position     // where the damage begins
	to     Position     // where sound bytes go on; the end of the file if they do not
	group  Position     // where the group begins that the damage is in; = from if no group can be made out
	base   codec.Offset // of that group
	offset codec.Offset // the first record that is not readable
	next   codec.Offset // the first record behind the hole; = offset if nothing sound is behind
	final  bool         // nothing sound is behind in this file
	whole  bool         // the group's header is sound, one of its batches is not
	zeros  bool         // final, and nothing but zeros: the unwritten rest of a file
	reason string
}

// walker is told what walk finds, groups before their batches and holes. Each field may be nil.
type walker struct {
	group func(g *Group) error
	batch func(g *Group, b codec.Batch)
	hole  func(h hole) error
	bytes func(n int64) // progress: bytes read since the last call
}

// stop ends a walk without an error.
var errStop = errors.New("stop")

// walk goes through the groups of a file from pos on, expecting the offset next, and reports groups and holes in order. Every batch
// is checked. It ends behind a seal, where until is reached and no pad or seal follows, or where nothing sound follows; that last end is always reported as a final hole
// unless the file ends exactly there. A group that is cut off, whose epoch is below that of the one before, or whose offsets do
// not continue the chain is a hole: it is a leftover or a lie.
func (s *scanner) walk(pos Position, next codec.Offset, epoch uint32, until codec.Offset, w walker) (Position, codec.Offset, error) {
	for pos < s.size && next <= until {
		g, ok, err := s.header(pos)
		if err != nil {
			return pos, next, err
		}
		if next == until && (!ok || g.Kind != KindPad && g.Kind != KindSeal || g.Base != next || g.Epoch < epoch) {
			return pos, next, nil
		}
		reason := "no group"
		var body []byte
		if ok {
			if body, err = s.body(&g); err != nil {
				return pos, next, err
			}
			reason = ""
			switch {
			case len(body) < g.Body:
				reason = "the file ends inside of a group"
			case g.Epoch < epoch:
				reason = "a group of an earlier writer"
			case g.Base != next:
				reason = "a group whose offset does not follow"
			case g.Kind == KindSeal && !soundSeal(&g, body):
				reason = "a damaged seal"
			}
		}
		if reason != "" && next == until {
			return pos, next, nil
		}
		if w.bytes != nil && s.read > 0 {
			w.bytes(s.read)
			s.read = 0
		}
		if reason == "" {
			var bads []batchError
			sound := true
			if g.Kind == KindData {
				sound = g.checkBody(body, nil, func(e batchError) { bads = append(bads, e) })
			}
			if sound {
				if w.group != nil {
					if err := w.group(&g); err != nil {
						return pos, next, err
					}
				}
				if err := s.reportBatches(&g, body, bads, w); err != nil {
					return pos, next, err
				}
				pos, next, epoch = g.End(), g.Next, g.Epoch
				if g.Kind == KindSeal {
					return pos, next, nil
				}
				continue
			}
			reason = "the prefixes of a group's batches are damaged"
		}
		h := hole{from: pos, to: s.size, group: pos, base: next, offset: next, next: next, final: true, reason: reason}
		for at := pos + groupAlign; ; {
			n, ok, err := s.resync(at, false, next)
			if err != nil {
				return pos, next, err
			}
			if !ok {
				break
			}
			// What goes back is a leftover of an earlier life of these bytes.
			if n.Epoch >= epoch {
				h.to, h.next, h.final, epoch = n.Position, n.Base, false, n.Epoch
				break
			}
			at = n.Position + groupAlign
		}
		if h.final {
			if h.zeros, err = s.zeros(pos); err != nil {
				return pos, next, err
			}
		}
		if w.hole != nil {
			if err := w.hole(h); err != nil {
				return pos, next, err
			}
		}
		if h.final {
			return pos, next, nil
		}
		pos, next = h.to, h.next
	}
	return pos, next, nil
}

// reportBatches tells the walker of the batches of a group whose prefixes are sound, in order, and of the damaged ones as holes.
func (s *scanner) reportBatches(g *Group, body []byte, bads []batchError, w walker) error {
	at := 0
	for rest := body; len(rest) > 0 && g.Kind == KindData && (w.batch != nil || len(bads) > 0); {
		b, r, _ := codec.NextBatch(rest)
		if len(bads) > 0 && bads[0].at == at {
			e := bads[0]
			bads = bads[1:]
			start := g.Position + groupHeaderBytes
			h := hole{
				from: start + Position(e.at), to: start + Position(e.after), group: g.Position, base: g.Base,
				offset: e.offset, next: e.next, whole: true, reason: e.reason,
			}
			if w.hole != nil {
				if err := w.hole(h); err != nil {
					return err
				}
			}
		} else if w.batch != nil {
			w.batch(g, b)
		}
		at += len(b)
		rest = r
	}
	return nil
}

func soundSeal(g *Group, body []byte) bool {
	return len(body) == sealBodyBytes && checksum(body) == g.BodyCRC
}
