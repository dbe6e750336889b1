package journal

import (
	"encoding/binary"
	"sort"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// indexEvery is the distance of index entries: what a reader has to walk at most before it finds a group. 128 KiB are read in
// less than 100 µs, and the index of 1 TiB takes 256 MiB.
const indexEvery = 128 << 10

// indexEntry says where a group lies, and the largest times of everything before it in the segment. Times may go back from group to
// group; these maxima do not, so that they can be searched.
type indexEntry struct {
	offset    codec.Offset
	position  Position
	maxTime   int64 // append time
	maxRecord int64
}

const (
	indexHeaderBytes = 48
	indexEntryBytes  = 32
)

// indexGroup takes note of a group that is about to become readable; seg.stats does not have it yet.
func (s *segment) indexGroup(g *Group) {
	if n := len(s.index); n > 0 && g.Position-s.index[n-1].position < indexEvery {
		return
	}
	s.index = append(s.index, indexEntry{offset: g.Base, position: g.Position, maxTime: s.stats.MaxTime, maxRecord: s.stats.MaxRecord})
}

// encodeIndex returns the index file of a segment. It is bound to the segment by its salt and base offset.
func encodeIndex(s *segment) []byte {
	be := binary.BigEndian
	b := make([]byte, indexHeaderBytes, indexHeaderBytes+len(s.index)*indexEntryBytes)
	be.PutUint64(b[0:], indexMagic)
	be.PutUint16(b[8:], formatVersion)
	be.PutUint32(b[12:], s.header.Salt)
	be.PutUint64(b[16:], uint64(s.base))
	be.PutUint64(b[24:], uint64(s.next))
	be.PutUint64(b[32:], uint64(s.written))
	be.PutUint32(b[40:], uint32(len(s.index)))
	for _, e := range s.index {
		b = be.AppendUint64(b, uint64(e.offset))
		b = be.AppendUint64(b, uint64(e.position))
		b = be.AppendUint64(b, uint64(e.maxTime))
		b = be.AppendUint64(b, uint64(e.maxRecord))
	}
	be.PutUint32(b[44:], indexCRC(b))
	return b
}

func indexCRC(b []byte) uint32 { return updateCRC(checksum(b[:44]), b[indexHeaderBytes:]) }

// decodeIndex reads the index of a segment that ends at written with the offset next. It returns false for anything else.
func decodeIndex(b []byte, h *SegmentHeader, written Position, next codec.Offset) ([]indexEntry, bool) {
	be := binary.BigEndian
	if len(b) < indexHeaderBytes || be.Uint64(b) != indexMagic || be.Uint16(b[8:]) != formatVersion || be.Uint32(b[12:]) != h.Salt ||
		be.Uint64(b[16:]) != uint64(h.Base) || be.Uint64(b[24:]) != uint64(next) || be.Uint64(b[32:]) != uint64(written) ||
		uint64(be.Uint32(b[40:]))*indexEntryBytes != uint64(len(b)-indexHeaderBytes) || be.Uint32(b[44:]) != indexCRC(b) {
		return nil, false
	}
	index := make([]indexEntry, be.Uint32(b[40:]))
	for i := range index {
		e := b[indexHeaderBytes+i*indexEntryBytes:]
		index[i] = indexEntry{
			offset: codec.Offset(be.Uint64(e)), position: Position(be.Uint64(e[8:])), maxTime: int64(be.Uint64(e[16:])),
			maxRecord: int64(be.Uint64(e[24:])),
		}
	}
	return index, true
}

// loadIndex reads the index file of a sealed segment, or makes the index from the segment when the file is missing, torn, or of
// something else. rebuilt says which. It does not touch the segment's state.
func (l *Log) loadIndex(seg *segment, f vfs.File, written Position, next codec.Offset) (index []indexEntry, rebuilt bool, err error) {
	if b, err := vfs.ReadFile(l.fsys, l.path(indexName(seg.base)), indexHeaderBytes+int64(written)/indexEvery*indexEntryBytes+indexEntryBytes); err == nil {
		if index, ok := decodeIndex(b, &seg.header, written, next); ok {
			return index, false, nil
		}
	}
	// Whatever kept the file from being read, it holds nothing that the segment does not.
	tmp := segment{base: seg.base, header: seg.header}
	s := newScanner(f, seg.header.Salt, written)
	_, _, err = s.walk(seg.header.DataStart(), seg.base, 0, next, walker{
		group: func(g *Group) error {
			if g.Kind == KindData {
				tmp.indexGroup(g)
				tmp.stats.MaxTime = max(tmp.stats.MaxTime, g.Time)
			}
			return nil
		},
		batch: func(g *Group, b codec.Batch) { tmp.stats.MaxRecord = max(tmp.stats.MaxRecord, recordTime(b, g.Time)) },
	})
	return tmp.index, true, err
}

// lookup returns the position of the last indexed group at or below an offset.
func lookup(index []indexEntry, offset codec.Offset, first Position) (Position, codec.Offset, bool) {
	i := sort.Search(len(index), func(i int) bool { return index[i].offset > offset })
	if i == 0 {
		return first, 0, false
	}
	return index[i-1].position, index[i-1].offset, true
}

// lookupTime returns the index of the entry from which on to look for the first group whose time is at least t: the last entry before
// which there is none.
func lookupTime(index []indexEntry, t int64, record bool) int {
	i := sort.Search(len(index), func(i int) bool {
		if record {
			return index[i].maxRecord >= t
		}
		return index[i].maxTime >= t
	})
	return max(0, i-1)
}
