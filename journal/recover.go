package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// Recovery decides by three tables, held as data so that a test can show that every pattern of facts hits exactly one row. They are
// those of docs/JOURNAL.md.

// tri is a condition of a row: yes, no, or either.
type tri uint8

const (
	either tri = iota
	yes
	no
)

func (t tri) matches(fact bool) bool { return t == either || (t == yes) == fact }

// segmentFacts is what is known of a file with the name of a segment after a look at its ends.
type segmentFacts struct {
	sound  bool // a copy of the header decodes
	ours   bool // and has the topic and partition of the log
	placed bool // and the base offset of the name
	sealed bool // and the file ends with its seal
	groups bool // without a header: there is a group at or above the offset of the name
	blank  bool // without a header: the header block is absent or zeros
	below  bool // and the name is below the highest durable mark of all segments
}

type segmentAction uint8

const (
	useSealed    segmentAction = iota // trust the seal, read nothing else
	useScanned                        // scan it
	moveSealed                        // as useSealed, but tell that the name is wrong
	moveScanned                       // as useScanned, but tell that the name is wrong
	salvage                           // scan it with what its groups say, and tell that the header is lost
	dropEmpty                         // remove it: the remnant of a segment that was being made
	leaveForeign                      // leave it alone and tell: it belongs to another log
	leaveDamaged                      // leave it alone and tell: nothing in it can be read
)

type segmentRow struct {
	sound, ours, placed, sealed, groups, blank, below tri

	action segmentAction
	why    string
}

var segmentTable = []segmentRow{
	{sound: yes, ours: yes, placed: yes, sealed: yes, action: useSealed, why: "complete"},
	{sound: yes, ours: yes, placed: yes, sealed: no, action: useScanned, why: "active, or its seal was not finished"},
	{sound: yes, ours: yes, placed: no, sealed: yes, action: moveSealed, why: "the file has the name of another segment"},
	{sound: yes, ours: yes, placed: no, sealed: no, action: moveScanned, why: "the file has the name of another segment"},
	{sound: yes, ours: no, action: leaveForeign, why: "the segment belongs to another partition"},
	{sound: no, groups: yes, action: salvage, why: "both copies of the header are damaged"},
	{sound: no, groups: no, blank: yes, below: no, action: dropEmpty, why: "the segment was being made"},
	{sound: no, groups: no, blank: yes, below: yes, action: leaveDamaged, why: "the file is empty"},
	{sound: no, groups: no, blank: no, action: leaveDamaged, why: "neither a header nor a group can be read"},
}

func decideSegment(f segmentFacts) segmentRow {
	for _, r := range segmentTable {
		if r.sound.matches(f.sound) && r.ours.matches(f.ours) && r.placed.matches(f.placed) && r.sealed.matches(f.sealed) &&
			r.groups.matches(f.groups) && r.blank.matches(f.blank) && r.below.matches(f.below) {
			return r
		}
	}
	panic("BUG: no row for a segment")
}

// holeFacts is what is known of a break in the chain of groups of a scanned segment.
type holeFacts struct {
	below bool // it begins below the highest durable mark
	final bool // nothing sound is behind it in the file
	zeros bool // and nothing but zeros
}

type holeAction uint8

const (
	endHere  holeAction = iota // the end of what was written; cut what was reserved
	cutHere                    // a torn tail: cut it, sound groups behind it included
	goOn                       // damage: tell, and go on behind it
	loseRest                   // damage: tell, what follows in this file cannot be read
)

type holeRow struct {
	below, final, zeros tri

	action holeAction
	why    string
}

var holeTable = []holeRow{
	{below: no, final: yes, zeros: yes, action: endHere, why: "the end of what was written"},
	{below: no, final: yes, zeros: no, action: cutHere, why: "a torn tail: nothing in it was confirmed"},
	{below: no, final: no, action: cutHere, why: "a torn tail: nothing in it was confirmed, nor what is sound behind it"},
	{below: yes, final: no, action: goOn, why: "damage in what was confirmed"},
	{below: yes, final: yes, action: loseRest, why: "damage in what was confirmed, up to the end of the file"},
}

func decideHole(f holeFacts) holeRow {
	for _, r := range holeTable {
		if r.below.matches(f.below) && r.final.matches(f.final) && r.zeros.matches(f.zeros) {
			return r
		}
	}
	panic("BUG: no row for a hole")
}

// linkFacts compare the end of one segment with the beginning of the next.
type linkFacts struct {
	behind   bool // the next one begins below the end
	meets    bool // at the end
	declared bool // beyond the end, and its header declares the gap
	below    bool // the end is below the highest durable mark
}

type linkAction uint8

const (
	linkGo      linkAction = iota
	linkMissing            // tell that records are missing, and go on
	linkCut                // the next one and all behind it were never confirmed: remove them
	linkLeave              // leave the next one alone and tell
)

type linkRow struct {
	behind, meets, declared, below tri

	action linkAction
	why    string
}

var linkTable = []linkRow{
	{behind: yes, action: linkLeave, why: "the segment repeats offsets of the one before"},
	{behind: no, meets: yes, action: linkGo, why: "the chain goes on"},
	{behind: no, meets: no, declared: yes, action: linkGo, why: "the gap is declared"},
	{behind: no, meets: no, declared: no, below: yes, action: linkMissing, why: "records are missing"},
	{behind: no, meets: no, declared: no, below: no, action: linkCut, why: "the segment follows a torn tail: nothing in it was confirmed"},
}

func decideLink(f linkFacts) linkRow {
	for _, r := range linkTable {
		if r.behind.matches(f.behind) && r.meets.matches(f.meets) && r.declared.matches(f.declared) && r.below.matches(f.below) {
			return r
		}
	}
	panic("BUG: no row for a link")
}

// Report is what Open found and did. It is a log line's worth when all is well: Clean.
type Report struct {
	// Clean says that the log had been closed in order and is whole.
	Clean    bool
	Segments int
	// Scanned, Rewritten and Cut are bytes: read to find the tail, written again because only the page cache was known to have
	// them, and cut from the tail because nothing in them was confirmed.
	Scanned, Rewritten, Cut int64
	// Cuts says where a torn tail was cut. What was merely reserved and never written is not mentioned.
	Cuts []Cut
	// Damages are places whose records cannot be read, each with the file, position, offsets and reason. At most maxDamages are
	// kept; DamageCount counts all. Nothing of it is removed.
	Damages     []*CorruptionError
	DamageCount int
	// Removed counts temporary files and remnants of segments that were being made.
	Removed int
	// Foreign are entries of the directory that are not part of the log and were left alone, at most maxDamages.
	Foreign      []string
	ForeignCount int
	Took         time.Duration
}

// noOffset is above every offset.
const noOffset = codec.Offset(1<<63 - 1)

// maxDamages bounds the lists of a Report.
const maxDamages = 1000

// Cut is a torn tail that was cut.
type Cut struct {
	Path     string
	Position Position
	Offset   codec.Offset // the next record gets it
	Bytes    int64        // that were dropped
	Reason   string
}

func (c Cut) String() string {
	return fmt.Sprintf("%s cut at position %d, offset %d: %d bytes dropped: %s", c.Path, c.Position, c.Offset, c.Bytes, c.Reason)
}

func (r *Report) damage(e *CorruptionError) {
	r.DamageCount++
	if len(r.Damages) < maxDamages {
		r.Damages = append(r.Damages, e)
	}
}

func (r *Report) foreign(name string) {
	r.ForeignCount++
	if len(r.Foreign) < maxDamages {
		r.Foreign = append(r.Foreign, name)
	}
}

// RecoveryProgress says how far Open is.
type RecoveryProgress struct {
	Segments, SegmentsDone int   // files whose ends are looked at
	Bytes, BytesDone       int64 // of the segments to scan
}

// Open opens the log in a directory, which is made if it is not there, and recovers it. The caller makes sure that nobody else has it
// open (see LockDir). An error that is not an *UnsupportedError is that of the file system and worth another try; the files are then
// untouched or in a state that the next Open understands. Damage is no error: see Log.Report.
func Open(fsys vfs.FS, dir string, opts Options) (*Log, error) {
	opts.setDefaults()
	if opts.Syncers == nil {
		return nil, errors.New("journal: open log: no Syncers given")
	}
	l := &Log{fsys: fsys, dir: dir, opts: opts, sy: opts.Syncers, taken: map[codec.Offset]struct{}{}}
	l.idle.L = &l.mu
	l.alarm = alarm{index: -1, ring: l.ring}
	began := time.Now()
	r := &recovery{l: l, report: &l.report}
	if err := r.run(); err != nil {
		return nil, fmt.Errorf("open log %s: %w", dir, err)
	}
	l.report.Took = time.Since(began)
	return l, nil
}

// LockDir makes this the only broker of a data directory until the returned lock is closed or the process ends. The error is
// vfs.ErrLocked if there is another one.
func LockDir(fsys vfs.FS, dir string) (io.Closer, error) {
	if err := vfs.MkdirAll(fsys, dir); err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	c, err := fsys.Lock(path.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return c, nil
}

// recovery is the state of one Open.
type recovery struct {
	l      *Log
	report *Report
	prog   RecoveryProgress

	files  []*found
	temps  []string
	marked codec.Offset // the highest durable mark in a header
	proven codec.Offset // the same, or the end of a sealed segment: what is below it was confirmed, or nearly
	epoch  uint32
	remove []string // by cuts and drops, newest first
	dirty  bool     // something has to be written
}

// found is a file with the name of a segment.
type found struct {
	name   string
	base   codec.Offset // of the name
	size   Position
	facts  segmentFacts
	row    segmentRow
	header SegmentHeader
	state  []byte // the snapshot of a segment that is not sealed; nil: damaged
	half   bool   // one copy of the header is damaged; after link: and has to be written again
	seal   Group
	stats  Stats

	seg      *segment
	holes    []hole
	groups   int          // that stay
	mark     codec.Offset // the highest durable mark in what stays of it
	cutAt    Position     // -1: no cut
	cutTo    codec.Offset
	cutBytes int64
	cutWhy   string
	sealAt   Position // of a seal that the file does not end with, -1: none
	first    Position // of the first group, if the header is lost
}

// start is where the groups begin.
func (f *found) start() Position {
	if f.first > 0 {
		return f.first
	}
	return f.header.DataStart()
}

func (r *recovery) run() error {
	l := r.l
	if err := r.list(); err != nil {
		return err
	}
	if len(r.files) == 0 {
		// An attempt that failed or died may have made the directory without its name being durable.
		if err := l.fsys.SyncDir(path.Dir(l.dir)); err != nil {
			return err
		}
	}
	// Everything is read before anything is changed: an error up to here leaves the files as they are.
	for _, f := range r.files {
		if err := r.look(f); err != nil {
			return err
		}
		r.prog.SegmentsDone++
		r.tell()
	}
	used := r.decide()
	for i, f := range used {
		if f.row.action == useSealed || f.row.action == moveSealed {
			continue
		}
		until := noOffset
		if i+1 < len(used) {
			until = used[i+1].header.GapFrom
		}
		if err := r.scan(f, until); err != nil {
			return err
		}
	}
	r.decideRest(used)
	used = r.link(used)
	if len(used) == 0 {
		// What is left alone is all that there will be; the next Open must come to the same end.
		for _, f := range r.files {
			if f.row.action == leaveDamaged {
				r.proven = max(r.proven, f.base)
			}
		}
	}
	r.settle(used)
	if err := r.replay(used); err != nil {
		return err
	}
	if err := r.change(used); err != nil {
		return err
	}
	r.finish(used)
	return nil
}

func (r *recovery) tell() {
	if r.l.opts.OnRecover != nil {
		r.l.opts.OnRecover(r.prog)
	}
}

// list sorts the entries of the directory by the grammar of names.
func (r *recovery) list() error {
	entries, err := r.l.fsys.List(r.l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return vfs.MkdirAll(r.l.fsys, r.l.dir)
	}
	if err != nil {
		return err
	}
	indexes := map[codec.Offset]string{}
	for _, e := range entries {
		kind, base := parseName(e.Name)
		switch {
		case kind == nameOther:
			r.report.foreign(e.Name)
		case e.Kind != vfs.Regular:
			r.report.foreign(e.Name)
			if kind == nameSegment {
				r.l.taken[base] = struct{}{}
			}
		case kind == nameSegment:
			r.files = append(r.files, &found{name: e.Name, base: base, size: Position(e.Size), cutAt: -1, sealAt: -1})
			delete(indexes, base)
		case kind == nameIndex:
			indexes[base] = e.Name
		case kind == nameTemp:
			r.temps = append(r.temps, e.Name)
		}
	}
	// An index sorts before its segment: what is left here has none.
	for _, f := range r.files {
		delete(indexes, f.base)
	}
	for _, name := range indexes {
		r.temps = append(r.temps, name)
	}
	slices.Sort(r.temps)
	r.prog.Segments = len(r.files)
	return nil
}

// look reads the ends of a segment file.
func (r *recovery) look(f *found) error {
	file, err := r.l.fsys.OpenRead(r.l.path(f.name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	block := make([]byte, min(headerBlockBytes, f.size))
	if n, err := file.ReadAt(block, 0); err != nil && !errors.Is(err, io.EOF) {
		return err
	} else {
		block = block[:n]
	}
	first, ok1 := decodeHeader(block)
	var second SegmentHeader
	ok2 := false
	if len(block) > headerCopyPosition {
		second, ok2 = decodeHeader(block[headerCopyPosition:])
	}
	switch {
	case ok1:
		f.header = first
	case ok2:
		f.header = second
	}
	f.facts.sound = ok1 || ok2
	f.half = ok1 != ok2
	if !f.facts.sound {
		f.facts.blank = allZeros(block)
		return r.lookForGroups(f, file)
	}
	if f.header.Version != formatVersion || f.header.Required&^knownFeatures != 0 {
		return &UnsupportedError{Path: r.l.path(f.name), Version: f.header.Version, Features: f.header.Required &^ knownFeatures}
	}
	f.facts.ours = f.header.Topic == r.l.opts.Topic && f.header.Partition == r.l.opts.Partition
	f.facts.placed = f.header.Base == f.base
	at := f.size - sealBytes
	if at < f.header.DataStart() || at%groupAlign != 0 {
		f.state, err = readSnapshot(file, &f.header, f.size)
		return err
	}
	var b [sealBytes]byte
	if n, err := file.ReadAt(b[:], int64(at)); err != nil && !errors.Is(err, io.EOF) {
		return err
	} else if n == len(b) {
		f.seal, f.stats, f.facts.sealed = decodeSeal(b[:], at, f.header.Salt)
	}
	if !f.facts.sealed {
		f.state, err = readSnapshot(file, &f.header, f.size)
	}
	return err
}

// readSnapshot returns the snapshot of a segment, nil if it is damaged.
func readSnapshot(file vfs.File, h *SegmentHeader, size Position) ([]byte, error) {
	if Position(h.SnapshotBytes) > size-headerBlockBytes {
		return nil, nil
	}
	b := make([]byte, h.SnapshotBytes)
	if n, err := file.ReadAt(b, headerBlockBytes); err != nil && !(errors.Is(err, io.EOF) && n == len(b)) {
		return nil, err
	}
	if checksum(b) != h.SnapshotCRC {
		return nil, nil
	}
	return b, nil
}

func allZeros(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// lookForGroups tries to make do without a header: the first group at or above the name's offset tells the salt. A file
// that was recycled may hold groups of its former life, all of them below.
func (r *recovery) lookForGroups(f *found, file vfs.File) error {
	s := newScanner(file, 0, f.size)
	g, ok, err := s.resync(headerBlockBytes, true, f.base)
	if err != nil || !ok {
		return err
	}
	f.facts.groups = true
	f.header = SegmentHeader{
		Version: formatVersion, Topic: r.l.opts.Topic, Partition: r.l.opts.Partition, Epoch: g.Epoch, Base: f.base, GapFrom: f.base,
		Salt: g.Salt, Durable: 0, Created: g.Time,
	}
	f.first = headerBlockBytes
	if g.Base == f.base {
		f.first = g.Position // behind a snapshot, which went with the header
	}
	return nil
}

// decide takes the rows of the segment table for the files that have a header or groups, and returns the segments that are part
// of the log, by their base offsets.
func (r *recovery) decide() []*found {
	var used []*found
	for _, f := range r.files {
		if !f.facts.sound && !f.facts.groups {
			continue // decideRest
		}
		f.row = decideSegment(f.facts)
		switch f.row.action {
		case useSealed, useScanned, salvage:
			used = append(used, f)
		case moveSealed, moveScanned:
			r.report.damage(&CorruptionError{
				Path: r.l.path(f.name), Offset: f.header.Base, Next: f.header.Base, Reason: f.row.why,
			})
			used = append(used, f)
		default:
			r.leave(f)
		}
	}
	slices.SortStableFunc(used, func(a, b *found) int {
		if a.header.Base != b.header.Base {
			return int(min(max(a.header.Base-b.header.Base, -1), 1))
		}
		// The one with its own name first: the other one is a copy.
		switch {
		case a.facts.placed == b.facts.placed:
			return 0
		case a.facts.placed:
			return -1
		}
		return 1
	})
	distinct := used[:0]
	for _, f := range used {
		if n := len(distinct); n > 0 && distinct[n-1].header.Base == f.header.Base {
			r.report.damage(&CorruptionError{
				Path: r.l.path(f.name), Offset: f.header.Base, Next: f.header.Base, Reason: "the file is a copy of another segment",
			})
			r.report.foreign(f.name)
			r.l.taken[f.base] = struct{}{}
			continue
		}
		distinct = append(distinct, f)
	}
	used = distinct
	for _, f := range used {
		if f.header.Base != f.base {
			r.l.taken[f.base] = struct{}{}
		}
		r.mark(f.header.Durable, f.header.Epoch)
		seg := &segment{
			base: f.header.Base, header: f.header, path: r.l.path(f.name), end: -1, next: f.header.Base, formed: f.header.Base,
			first: f.start(), written: f.start(), size: int64(f.size), damaged: f.row.action == salvage,
		}
		f.seg = seg
		switch f.row.action {
		case useSealed, moveSealed:
			r.mark(f.seal.Durable, f.seal.Epoch)
			r.proven = max(r.proven, f.seal.Next)
			seg.sealed, seg.named = true, true
			seg.next, seg.end, seg.synced, seg.stats = f.seal.Next, f.seal.Next, f.seal.Next, f.stats
			seg.written = f.seal.Position
		default:
			r.prog.Bytes += int64(f.size)
		}
	}
	return used
}

// leave leaves a file alone that is not part of the log.
func (r *recovery) leave(f *found) {
	r.report.damage(&CorruptionError{Path: r.l.path(f.name), Offset: f.base, Next: f.base, Reason: f.row.why})
	r.report.foreign(f.name)
	r.l.taken[f.base] = struct{}{}
}

// decideRest takes the rows for the files with neither header nor groups, now that the highest mark is known. Where there is nothing
// else, and the first name is not 0, the names are all that says where offsets go on: they stay.
func (r *recovery) decideRest(used []*found) {
	alone := len(used) == 0 && len(r.files) > 0 && r.files[0].base > 0
	for _, f := range r.files {
		if f.facts.sound || f.facts.groups {
			continue
		}
		if alone {
			r.proven = max(r.proven, f.base)
		}
		f.facts.below = f.base < r.proven || alone
		f.row = decideSegment(f.facts)
		if f.row.action == dropEmpty {
			r.remove = append(r.remove, f.name)
			r.report.Removed++
		} else {
			r.leave(f)
		}
	}
}

func (r *recovery) mark(durable codec.Offset, epoch uint32) {
	r.marked = max(r.marked, durable)
	r.proven = max(r.proven, durable)
	r.epoch = max(r.epoch, epoch)
}

// scan goes through an unsealed segment. The chain of the last one has no known end.
func (r *recovery) scan(f *found, until codec.Offset) error {
	file, err := r.l.fsys.OpenRead(r.l.path(f.name))
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	s := newScanner(file, f.header.Salt, f.size)
	f.seg.pos, f.seg.next, err = s.walk(f.start(), f.header.Base, 0, until, walker{
		group: func(g *Group) error {
			r.mark(g.Durable, g.Epoch)
			f.sealAt = -1
			if g.Kind == KindSeal {
				f.sealAt = g.Position
			}
			return nil
		},
		hole: func(h hole) error {
			if len(f.holes) == maxDamages {
				return errors.New("the segment is damaged in more than a thousand places")
			}
			f.holes = append(f.holes, h)
			return nil
		},
		bytes: func(n int64) {
			r.report.Scanned += n
			r.prog.BytesDone += n
			r.tell()
		},
	})
	return err
}

// link goes along the chain of segments with the hole and link tables, now that the highest mark is known, and returns the
// segments that stay.
func (r *recovery) link(used []*found) []*found {
	var kept []*found
	end := codec.Offset(-1)
	if len(used) > 0 {
		// A segment of which not even the header was written is an end of the chain too: what follows it is no beginning.
		for _, f := range r.files {
			if f.row.action == dropEmpty && f.base < used[0].header.Base {
				end = f.base
				break
			}
		}
	}
	for i, f := range used {
		// A header that was lost is a torn first write, unless something in the segment was confirmed, or the segment is what
		// remains after everything before it was trimmed.
		torn := f.header.Base >= r.proven && (len(kept) > 0 || r.files[0].base == 0)
		if f.row.action == salvage && torn {
			r.cutSegments(used[i:], max(end, f.header.Base), "the header was never written: nothing in the segment was confirmed")
			return kept
		}
		if !f.seg.sealed && f.state == nil && torn {
			r.cutSegments(used[i:], max(end, f.header.Base), "the snapshot was never written: nothing in the segment was confirmed")
			return kept
		}
		if f.row.action == salvage || f.half && !torn {
			why := f.row.why
			if f.half {
				why = "one copy of the header is damaged"
			}
			r.report.damage(&CorruptionError{Path: f.seg.path, Offset: f.header.Base, Next: f.header.Base, Reason: why})
			f.half = false
		}
		if end >= 0 {
			row := decideLink(linkFacts{
				behind: f.header.Base < end, meets: f.header.Base == end, declared: f.header.GapFrom <= end && f.header.Base > end,
				below: end < r.proven,
			})
			switch row.action {
			case linkGo:
			case linkMissing:
				r.missing(kept[len(kept)-1], end, f.header.Base, row.why)
			case linkCut:
				r.cutSegments(used[i:], end, row.why)
				return kept
			case linkLeave:
				r.report.damage(&CorruptionError{Path: f.seg.path, Offset: f.header.Base, Next: end, Reason: row.why})
				r.report.foreign(f.name)
				r.l.taken[f.base] = struct{}{}
				continue
			}
		}
		kept = append(kept, f)
		if f.seg.sealed {
			end = f.seg.end
			continue
		}
		cut := r.holes(f)
		end = f.seg.next
		if cut && i+1 < len(used) {
			r.cutSegments(used[i+1:], end, "the segment follows a torn tail: nothing in it was confirmed")
			return kept
		}
	}
	return kept
}

func (r *recovery) missing(before *found, from, to codec.Offset, why string) {
	e := before.seg.lost
	if e != nil {
		e.Next = to
		return
	}
	r.report.damage(&CorruptionError{Path: r.l.path(segmentName(from)), Offset: from, Next: to, Reason: why})
}

// cutSegments removes segments of which nothing was confirmed.
func (r *recovery) cutSegments(list []*found, at codec.Offset, why string) {
	for i := len(list) - 1; i >= 0; i-- {
		f := list[i]
		r.remove = append(r.remove, f.name)
		r.report.Cuts = append(r.report.Cuts, Cut{Path: f.seg.path, Offset: at, Bytes: int64(f.size), Reason: why})
		r.report.Cut += int64(f.size)
	}
}

// holes decides about the holes of a scanned segment. It returns true if the chain was cut.
func (r *recovery) holes(f *found) bool {
	seg := f.seg
	for _, h := range f.holes {
		row := decideHole(holeFacts{below: h.base < r.proven, final: h.final, zeros: h.zeros})
		e := &CorruptionError{Path: seg.path, Position: h.from, Offset: h.offset, Next: h.next, Reason: h.reason}
		switch row.action {
		case endHere, cutHere:
			f.cutAt, f.cutTo = h.group, h.base
			f.cutBytes = int64(f.size - h.group)
			if row.action == cutHere {
				f.cutWhy = row.why
				r.report.Cuts = append(r.report.Cuts, Cut{
					Path: seg.path, Position: h.group, Offset: h.base, Bytes: f.cutBytes, Reason: h.reason + ": " + row.why,
				})
				r.report.Cut += f.cutBytes
			}
			seg.next, seg.pos = h.base, h.group
			if f.sealAt >= seg.pos {
				f.sealAt = -1
			}
			return row.action == cutHere
		case goOn:
			seg.damaged = true
			r.report.damage(e)
		case loseRest:
			seg.damaged = true
			seg.lost = e
			e.Next = max(h.next, r.proven)
			r.report.damage(e)
			seg.next, seg.pos = h.base, h.group
			return false
		}
	}
	return false
}

// settle finds where the log ends. It never ends below what was confirmed.
func (r *recovery) settle(kept []*found) {
	if len(kept) == 0 {
		return
	}
	seg := kept[len(kept)-1].seg
	if seg.next >= r.proven || seg.lost != nil {
		return
	}
	seg.lost = &CorruptionError{
		Path: seg.path, Position: seg.pos, Offset: seg.next, Next: r.proven, Reason: "what was confirmed behind it is missing",
	}
	seg.damaged = true
	r.report.damage(seg.lost)
}

// replay goes through the segments a second time, now that it is known which groups stay: it makes the index and the counts of the scanned
// ones, and rebuilds the caller's state from the last snapshot that can be read.
func (r *recovery) replay(kept []*found) error {
	opts := &r.l.opts
	from := len(kept)
	if opts.OnSnapshot != nil || opts.OnReplay != nil {
		var snapshot []byte
		for from > 0 {
			from--
			var err error
			var ok bool
			if snapshot, ok, err = r.snapshot(kept[from]); err != nil {
				return err
			} else if ok {
				break
			}
		}
		if opts.OnSnapshot != nil {
			if err := opts.OnSnapshot(snapshot); err != nil {
				return fmt.Errorf("read snapshot: %w", err)
			}
		}
	}
	for i, f := range kept {
		if f.seg.sealed && (i < from || opts.OnReplay == nil) {
			continue
		}
		if err := r.replaySegment(f, i >= from && opts.OnReplay != nil); err != nil {
			return err
		}
	}
	return nil
}

// snapshot reads the snapshot of a segment; false: it is damaged, and an older one must do.
func (r *recovery) snapshot(f *found) ([]byte, bool, error) {
	if f.row.action == salvage {
		return nil, false, nil
	}
	if f.state == nil && f.seg.sealed {
		file, err := r.l.fsys.OpenRead(f.seg.path)
		if err != nil {
			return nil, false, err
		}
		defer func() { _ = file.Close() }() // it is only read
		if f.state, err = readSnapshot(file, &f.header, f.size); err != nil {
			return nil, false, err
		}
	}
	if f.state == nil {
		r.report.damage(&CorruptionError{
			Path: f.seg.path, Position: headerBlockBytes, Offset: f.seg.base, Next: f.seg.base, Reason: "the snapshot is damaged",
		})
		return nil, false, nil
	}
	return f.state, true, nil
}

func (r *recovery) replaySegment(f *found, tell bool) error {
	file, err := r.l.fsys.OpenRead(f.seg.path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it is only read
	seg := f.seg
	s := newScanner(file, f.header.Salt, f.size)
	if seg.sealed {
		_, _, err := s.walk(f.start(), seg.base, 0, seg.end, walker{
			batch: func(g *Group, b codec.Batch) { r.l.opts.OnReplay(b, g.Time) },
		})
		return err
	}
	f.mark, f.groups = -1, 0
	var add Stats // of the group that is being walked: it counts for the index only behind it
	flush := func() {
		if add.Groups > 0 {
			seg.stats.add(add)
		}
		add = Stats{}
	}
	s.size = seg.pos
	_, _, err = s.walk(f.start(), seg.base, 0, noOffset, walker{
		group: func(g *Group) error {
			flush()
			f.mark = max(f.mark, g.Durable)
			f.groups++
			if g.Kind == KindData {
				seg.indexGroup(g)
				add = Stats{Groups: 1, FirstTime: g.Time, MaxTime: g.Time}
			}
			return nil
		},
		batch: func(g *Group, b codec.Batch) {
			add.addBatch(b, g.Time)
			if tell {
				r.l.opts.OnReplay(b, g.Time)
			}
		},
	})
	flush()
	return err
}

// change does to the files what was decided: removes, cuts, writes again what only the page cache was known to have, and leaves a mark, so
// that the next Open has nothing to do.
func (r *recovery) change(kept []*found) error {
	l := r.l
	end := codec.Offset(0)
	for _, f := range kept {
		end = f.seg.next
	}
	dirty := len(r.remove) > 0 || len(r.temps) > 0
	slices.Sort(r.remove)
	slices.Reverse(r.remove)
	for _, name := range slices.Concat(r.remove, r.temps) {
		if err := l.fsys.Remove(l.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if len(kept) == 0 {
			// A lower empty segment must not go before a higher one, which would then look like what a trim left.
			if err := l.fsys.SyncDir(l.dir); err != nil {
				return err
			}
		}
	}
	r.report.Removed += len(r.temps)
	for i, f := range kept {
		if f.seg.sealed {
			continue
		}
		changed, err := r.changeSegment(f, i == len(kept)-1)
		if err != nil {
			return err
		}
		dirty = dirty || changed
	}
	unmarked := len(kept) > 0 && kept[len(kept)-1].appendable() && kept[len(kept)-1].mark < end
	if !dirty && !unmarked {
		if len(kept) > 0 && r.marked <= kept[len(kept)-1].seg.base {
			return l.fsys.SyncDir(l.dir) // no record says that the name of the last segment was synced
		}
		return nil
	}
	r.dirty = true
	if err := l.fsys.SyncDir(l.dir); err != nil {
		return err
	}
	if unmarked {
		return r.leaveMark(kept[len(kept)-1])
	}
	return nil
}

// appendable says whether the log can go on in a segment.
func (f *found) appendable() bool {
	return !f.seg.sealed && !f.seg.damaged && f.row.action == useScanned && f.sealAt < 0
}

func (r *recovery) changeSegment(f *found, last bool) (changed bool, err error) {
	seg := f.seg
	seg.written = seg.pos
	sealedInside := f.sealAt >= 0 && !seg.damaged
	reseal := !last && !seg.damaged && f.row.action == useScanned && !sealedInside
	if last && f.cutAt < 0 {
		f.cutAt = seg.pos // what followed was to be a seal
	}
	cut := f.cutAt >= 0 && f.size > f.cutAt && !seg.damaged
	if sealedInside {
		cut, f.cutAt = f.size > seg.pos, seg.pos
		seg.written = f.sealAt
	}
	again := seg.next > r.marked || f.groups == 0 || f.half
	if !reseal && !sealedInside && !cut && !again {
		seg.size = int64(seg.pos)
		return false, nil
	}
	file, err := r.l.fsys.Open(seg.path)
	if err != nil {
		return false, err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	if cut {
		if err := file.Truncate(int64(f.cutAt)); err != nil {
			return false, err
		}
	}
	if again {
		if err := r.rewrite(f, file); err != nil {
			return false, err
		}
	}
	if reseal {
		seal := encodeSeal(Group{
			Position: seg.pos, Base: seg.next, Next: seg.next, Time: seg.stats.MaxTime, Durable: min(r.marked, seg.next), Epoch: r.epoch,
			Salt: f.header.Salt,
		}, seg.stats)
		if err := file.WriteAt([][]byte{seal}, int64(seg.pos)); err != nil {
			return false, err
		}
		if err := file.Truncate(int64(seg.pos) + sealBytes); err != nil {
			return false, err
		}
	}
	if err := file.Sync(); err != nil {
		return false, err
	}
	seg.size = int64(seg.pos)
	if reseal || sealedInside {
		seg.sealed = true
	}
	return true, nil
}

// rewrite writes what is above the highest mark once more: after a failed sync or the death of the process the page cache may hold, as
// clean, what the disk never got.
func (r *recovery) rewrite(f *found, file vfs.File) error {
	from := Position(0)
	if r.marked > f.seg.base {
		from, _, _ = lookup(f.seg.index, r.marked, f.start())
	}
	end := min(f.seg.pos, f.size) // the padding of the last group may be missing
	buf := make([]byte, min(Position(scanBytes), max(0, end-from)))
	for from < end {
		b := buf[:min(Position(len(buf)), end-from)]
		n, err := file.ReadAt(b, int64(from))
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		if err := file.WriteAt([][]byte{b[:n]}, int64(from)); err != nil {
			return err
		}
		from += Position(n)
		r.report.Rewritten += int64(n)
	}
	if !f.half {
		return nil
	}
	var b [segmentHeaderBytes]byte
	f.header.encode(b[:])
	if err := file.WriteAt([][]byte{b[:]}, 0); err != nil {
		return err
	}
	return file.WriteAt([][]byte{b[:]}, headerCopyPosition)
}

// leaveMark writes a pad group that says that everything before it is durable.
func (r *recovery) leaveMark(f *found) error {
	seg := f.seg
	file, err := r.l.fsys.Open(seg.path)
	if err != nil {
		return err
	}
	wall, _ := r.l.opts.Clock.Now()
	g := Group{
		Position: seg.pos, Kind: KindPad, Base: seg.next, Next: seg.next, Time: wall, Durable: seg.next, Epoch: r.epoch + 1,
		Salt: f.header.Salt,
	}
	b := make([]byte, groupHeaderBytes)
	g.encode(b)
	err = file.WriteSync([][]byte{b}, int64(seg.pos))
	if cerr := file.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	seg.pos = g.End()
	seg.written, seg.size = seg.pos, int64(seg.pos)
	r.epoch++
	r.marked = seg.next
	return nil
}

// finish makes the log's state of what was found.
func (r *recovery) finish(kept []*found) {
	l := r.l
	wall, mono := l.opts.Clock.Now()
	for _, f := range kept {
		seg := f.seg
		seg.ageAt, seg.born, seg.made = mono, mono, true
		seg.age = time.Duration(max(0, wall-max(seg.stats.MaxTime, f.header.Created))) * time.Millisecond
		seg.formed, seg.synced = seg.next, seg.next
		seg.named = true // a record says so, or the directory was synced just now
		seg.reserved = int64(seg.pos - f.start())
		if !f.appendable() || f != kept[len(kept)-1] {
			seg.end = seg.next
		} else {
			l.active = seg
		}
		if l.active == nil && seg.next == seg.base && seg.lost == nil && f == kept[len(kept)-1] {
			// Nothing in it can be read, and the next segment needs its name.
			l.next = seg.next
			l.taken[seg.base] = struct{}{}
			continue
		}
		l.segments = append(l.segments, seg)
		l.next = seg.next
		if seg.lost != nil {
			l.next = max(l.next, seg.lost.Next)
		}
	}
	if len(kept) > 0 {
		l.start = kept[0].seg.base
	}
	for _, seg := range l.segments {
		seg.anchored = true // every one has a group, or was written again with a mark
	}
	l.next = max(l.next, r.proven)
	l.written, l.durable, l.gapFrom = l.next, l.next, l.next
	if len(l.segments) == 0 {
		l.start = l.next
	}
	l.marked = r.marked
	l.epoch = r.epoch + 1
	r.report.Segments = len(kept)
	r.report.Clean = !r.dirty && r.report.DamageCount == 0
}
