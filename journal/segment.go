package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// segment is one file of a log. Its base and header never change; everything else is under Log.mu.
type segment struct {
	base   codec.Offset
	header SegmentHeader
	first  Position // of the first group
	path   string
	from   string // the name of the spare file until it was renamed to path
	taken  bool   // path is the name of another file, which has to be set aside first

	// What a reader may see: whole groups below written, which hold the offsets [base, next).
	written Position
	next    codec.Offset
	stats   Stats
	index   []indexEntry     // of the groups below written; nil for a sealed segment whose index is not in memory
	damaged bool             // recovery found damage in it: nothing is appended to it
	lost    *CorruptionError // what follows the last readable record, up to what the next segment begins with
	size    int64            // of the file, as far as it matters for retention
	dropped bool             // the file is about to become another segment's, and must not be opened; under Readers.mu

	// Age, for retention: how old the last append was when the segment was loaded (0 for one that was appended to since), and
	// when that was known.
	age   time.Duration
	ageAt time.Duration

	// Of the active segment, and of one that waits for its seal.
	handles   []vfs.File // one per write in flight: each reports a failed write-back by itself
	free      []vfs.File // those not in use
	block     []byte     // the header block, until the first group takes it along
	made      bool       // the file has its name
	ready     bool       // a handle is open
	opening   bool
	narrow    bool // no more handles can be had
	named     bool // the name survives a power cut
	anchored  bool // and so does a group: after a crash the segment says where offsets go on
	reserved  int64
	pos       Position     // where the next group goes
	formed    codec.Offset // what the next group begins with
	end       codec.Offset // behind the last record, -1 while the segment is active
	synced    codec.Offset // below it everything of this segment is on stable storage
	allocated Position     // blocks are reserved below it
	warm      Position     // blocks were written before below it
	zeroing   Position     // no group may reach beyond it now, 0: no such limit
	extending bool
	sealing   bool
	sealed    bool
	born      time.Duration
}

func newSalt() uint32 {
	var b [4]byte
	rand.Read(b[:]) // it never fails
	return binary.BigEndian.Uint32(b[:])
}

// limit is the offset that the segment's records are below.
func (s *segment) limit() codec.Offset {
	if s.end >= 0 {
		return s.end
	}
	return s.next
}

// takeHandles takes the open handles away from the segment. Nothing may be in flight.
func (s *segment) takeHandles() []vfs.File {
	handles := s.handles
	s.handles, s.free, s.ready = nil, nil, false
	return handles
}

func closeFiles(files []vfs.File) {
	for _, f := range files {
		_ = f.Close() // everything that matters was synced
	}
}

// closeLocked closes a segment's file without making anybody wait who needs the log.
func (l *Log) closeLocked(seg *segment) {
	if files := seg.takeHandles(); len(files) > 0 {
		l.taskLocked(func() { closeFiles(files) })
	}
}

// spare is a file that will become a segment: its blocks are reserved, maybe written, and it holds nothing that decodes.
type spare struct {
	path      string
	handles   []vfs.File // nil: not opened yet
	allocated Position
	warm      Position
}

const (
	// extendMin and extendMax bound how much is reserved at a time: as much as was written already, so that a slow partition
	// holds little and a fast one extends rarely.
	extendMin = 256 << 10
	extendMax = 32 << 20
	// extendAfter is what a segment must have before anything is reserved: an idle partition reserves nothing.
	extendAfter = 64 << 10
	// zeroMax bounds how much is zeroed at a time, smallBody is what counts as slow traffic: larger groups would be written twice
	// for a gain that overlapping already gives.
	zeroMax   = 1 << 20
	zeroMin   = 64 << 10
	smallBody = 32 << 10
	// busyFor is how young a half full segment must be for the next one to be made ahead.
	busyFor = 60 * time.Second
)

// extendLocked reserves blocks ahead of the next groups.
func (l *Log) extendLocked(seg *segment) {
	ahead := Position(2 * l.opts.GroupBytes * l.opts.MaxInFlight)
	used := seg.pos - seg.first
	limit := Position(l.opts.SegmentBytes)
	from := max(seg.allocated, seg.pos)
	if seg.extending || used < extendAfter || from >= limit || seg.allocated > seg.pos+min(ahead, used) {
		return
	}
	size := min(max(used, extendMin), extendMax, limit-from)
	seg.extending = true
	f := seg.handles[0]
	l.taskLocked(func() {
		err := f.Allocate(int64(from), int64(size))
		l.mu.Lock()
		defer l.mu.Unlock()
		seg.extending = false
		if err != nil {
			// Without reserved blocks a write finds out by itself whether there is space.
			l.m.allocateErrors++
			seg.allocated = limit
			if vfs.IsNoSpace(err) {
				seg.allocated = from
			}
		} else {
			seg.allocated = from + size
		}
		l.sealLocked(seg)
	})
}

// zeroLocked writes zeros ahead of a partition with small groups: a sync of blocks that were written before needs no change
// of the file system's own journal, and takes about half the time.
func (l *Log) zeroLocked(seg *segment, body int) {
	used := seg.pos - seg.first
	if body > smallBody || used < zeroMin || seg.zeroing > 0 || seg.extending || seg.end >= 0 || seg.warm > seg.pos+zeroMin/2 ||
		l.opts.Sync != SyncAlways {
		return
	}
	from := max(seg.warm, alignUp(seg.pos, 4096))
	to := min(from+min(max(alignUp(used, 4096)/4, zeroMin), zeroMax), alignUp(Position(l.opts.SegmentBytes), 4096))
	if to <= from {
		return
	}
	seg.zeroing = from
	f := seg.handles[0]
	l.taskLocked(func() {
		err := f.WriteSync([][]byte{zeroBlock[:to-from]}, int64(from))
		l.mu.Lock()
		defer l.mu.Unlock()
		seg.zeroing = 0
		var se *vfs.SyncError
		switch {
		case err == nil:
			seg.warm = to
			seg.allocated = max(seg.allocated, to)
		case vfs.IsNoSpace(err) && !errors.As(err, &se):
			seg.warm = to // not again here
		default:
			l.poisonLocked(fmt.Errorf("zero ahead: %w", err))
		}
		l.sealLocked(seg)
	})
}

var zeroBlock [zeroMax]byte

// widenLocked opens one more handle of a segment that has groups waiting and every handle in use.
func (l *Log) widenLocked(seg *segment) {
	if seg.narrow || seg.opening || len(seg.handles) >= l.opts.MaxInFlight || seg.end >= 0 {
		return
	}
	seg.narrow = true
	l.taskLocked(func() {
		f, err := l.fsys.Open(seg.path)
		if err != nil {
			return // it stays as narrow as it is
		}
		l.mu.Lock()
		wanted := seg.ready && !seg.sealed
		if wanted {
			seg.narrow = false
			seg.handles, seg.free = append(seg.handles, f), append(seg.free, f)
		}
		l.mu.Unlock()
		if !wanted {
			_ = f.Close() // nothing was written
		}
	})
}

// prepareLocked makes the next segment's file ahead, from a trimmed one if there is one, else only for a busy log.
func (l *Log) prepareLocked() {
	seg := l.active
	if l.spare != nil || l.preparing || seg.reserved < l.opts.SegmentBytes/2 {
		return
	}
	_, mono := l.opts.Clock.Now()
	var sp *spare
	if n := len(l.spares); n > 0 {
		sp, l.spares = l.spares[n-1], l.spares[:n-1]
	} else if mono-seg.born > busyFor {
		return
	}
	l.preparing = true
	l.spareCount++
	name := l.path(spareName(l.spareCount))
	l.taskLocked(func() {
		sp, err := l.prepare(sp, name)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.preparing = false
		if err == nil {
			l.spare = sp
		} else {
			l.m.prepareErrors++
		}
	})
}

// prepare opens a spare file, or makes one.
func (l *Log) prepare(sp *spare, name string) (*spare, error) {
	if sp == nil {
		f, err := l.fsys.Create(name)
		if err != nil {
			return nil, err
		}
		sp = &spare{path: name, handles: []vfs.File{f}}
		if err := f.Allocate(0, l.opts.SegmentBytes); err == nil {
			sp.allocated = Position(l.opts.SegmentBytes)
		} else if !errors.Is(err, errors.ErrUnsupported) {
			l.discard(sp)
			return nil, err
		}
	}
	for len(sp.handles) < l.opts.MaxInFlight {
		f, err := l.fsys.Open(sp.path)
		if err != nil {
			if len(sp.handles) > 0 {
				break
			}
			l.discard(sp)
			return nil, err
		}
		sp.handles = append(sp.handles, f)
	}
	return sp, nil
}

func (l *Log) discard(sp *spare) {
	closeFiles(sp.handles)
	_ = l.fsys.Remove(sp.path) // the next Open removes it
}

// sealLocked ends a segment once all of it is written, nothing else goes on in it, and everything before it is durable: to a recovery a
// seal says that nothing below its end may be missing. Where appends are not synced this is what makes seals come in order.
func (l *Log) sealLocked(seg *segment) {
	if seg.end < 0 || seg.next != seg.end || seg.sealing || seg.sealed || seg.opening || seg.extending ||
		seg.zeroing > 0 || !seg.ready || l.durable < seg.base ||
		l.state != stateOpen && l.state != stateClosing {
		return
	}
	seg.sealing = true
	seal := encodeSeal(Group{
		Position: seg.pos, Base: seg.next, Next: seg.next, Time: seg.stats.MaxTime, Durable: min(l.durable, seg.next), Epoch: l.epoch,
		Salt: seg.header.Salt,
	}, seg.stats)
	at := seg.pos
	synced := seg.synced == seg.end
	f := seg.handles[0]
	index := encodeIndex(seg)
	l.taskLocked(func() { l.seal(seg, f, at, seal, index, synced) })
}

// sealWaitingLocked seals what waited for something else to become durable, or for the end of a refusal.
func (l *Log) sealWaitingLocked() {
	for i := len(l.segments) - 1; i >= 0 && !l.segments[i].sealed; i-- {
		l.sealLocked(l.segments[i])
	}
}

func (l *Log) seal(seg *segment, f vfs.File, at Position, seal, index []byte, synced bool) {
	var err error
	if !synced {
		err = f.Sync()
	}
	lacking := false
	if err == nil {
		// What was reserved goes first: one sync then covers the seal and the size of the file, at whose end it has to be.
		if f.Truncate(int64(at)) != nil {
			l.count(&l.m.sealErrors) // the next Open scans the segment
		}
		err = f.WriteAt([][]byte{seal}, int64(at))
		if lacking = err != nil && vfs.IsNoSpace(err); lacking {
			err = nil // the next Open scans the segment and finds its end without a seal
		} else if err == nil {
			err = f.Sync()
		}
	}
	size := at
	if err == nil && !lacking {
		size += sealBytes
		if l.writeIndex(seg, index) != nil {
			l.count(&l.m.indexErrors) // it is made again when needed
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	seg.sealing = false
	if err != nil {
		l.failLocked(fmt.Errorf("seal segment at offset %d: %w", seg.base, err))
		return
	}
	seg.sealed, seg.anchored = true, true
	seg.synced = seg.end
	seg.size = int64(size)
	if l.syncing {
		l.closeLater = append(l.closeLater, seg) // its handle may be in use
	} else {
		l.closeLocked(seg)
	}
	l.settleDurableLocked()
	l.retainLocked()
}

func (l *Log) count(n *uint64) {
	l.mu.Lock()
	*n++
	l.mu.Unlock()
}

// writeIndex leaves the index beside its segment. It is not synced: a torn one is recognised and made again.
func (l *Log) writeIndex(seg *segment, index []byte) error {
	name := l.path(indexName(seg.base))
	temp := name + tempSuffix
	f, err := l.fsys.Create(temp)
	if errors.Is(err, fs.ErrExist) {
		if err = l.fsys.Remove(temp); err == nil {
			f, err = l.fsys.Create(temp)
		}
	}
	if err != nil {
		return err
	}
	err = f.WriteAt([][]byte{index}, 0)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = l.fsys.Rename(temp, name)
	}
	if err != nil {
		_ = l.fsys.Remove(temp) // the next Open removes it
	}
	return err
}
