package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
)

// The bytes of docs/JOURNAL.md. All numbers are big-endian.

const (
	formatVersion = 1

	segmentMagic = uint64(0x4c514a5345470d0a) // "LQJSEG\r\n"
	groupMagic   = uint32(0x4c514a47)         // "LQJG"
	indexMagic   = uint64(0x4c514a4944580d0a) // "LQJIDX\r\n"

	// segmentHeaderBytes is the size of one copy of the header; the second copy lies in another sector of the same block.
	segmentHeaderBytes = 128
	headerCopyPosition = 2048
	headerBlockBytes   = 4096

	groupHeaderBytes = 64
	groupAlign       = 8
	sealBodyBytes    = 64
	sealBytes        = groupHeaderBytes + sealBodyBytes

	// maxBodyBytes bounds what a group header may claim, so that a reader's buffer is bounded whatever the options were when
	// the group was written.
	maxBodyBytes = 256 << 20
	// maxSnapshotBytes bounds the snapshot behind a segment header.
	maxSnapshotBytes = 16 << 20
	// prefixBytes of a batch are not covered by the batch's own CRC: base offset, length, leader epoch, magic. The CRC field
	// follows them.
	prefixBytes = 17
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Position is a place in a file, in bytes.
type Position int64

// Kind says what a group holds.
type Kind uint8

// The kinds of groups.
const (
	KindData Kind = 1 // record batches
	KindPad  Kind = 2 // nothing: it carries a durable mark
	KindGap  Kind = 3 // offsets that were given up and will never hold a record
	KindSeal Kind = 4 // the end of the segment, with counts
)

func (k Kind) String() string {
	switch k {
	case KindData:
		return "data"
	case KindPad:
		return "pad"
	case KindGap:
		return "gap"
	case KindSeal:
		return "seal"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// TopicID names a topic for its whole life, whatever its name.
type TopicID [16]byte

func (id TopicID) String() string { return fmt.Sprintf("%x", id[:]) }

// SegmentHeader is the start of a segment file.
type SegmentHeader struct {
	Version       uint16
	Required      uint32 // feature bits without which the segment must not be read
	Optional      uint32 // feature bits that may be ignored
	Topic         TopicID
	Partition     uint32
	Epoch         uint32       // the writer's epoch when the segment was made
	Base          codec.Offset // of the first record
	GapFrom       codec.Offset // = Base, or below it: [GapFrom, Base) is a declared gap
	Created       int64        // milliseconds since the Unix epoch
	Salt          uint32
	Durable       codec.Offset // the durable offset when the segment was made
	SnapshotBytes uint32
	SnapshotCRC   uint32
}

// DataStart is where the first group lies.
func (h *SegmentHeader) DataStart() Position {
	return headerBlockBytes + (Position(h.SnapshotBytes)+511)/512*512
}

// knownFeatures are the required feature bits that this code understands: none yet.
const knownFeatures = 0

func (h *SegmentHeader) encode(dst []byte) {
	be := binary.BigEndian
	clear(dst[:segmentHeaderBytes])
	be.PutUint64(dst[0:], segmentMagic)
	be.PutUint16(dst[8:], h.Version)
	be.PutUint32(dst[12:], uint32(h.DataStart()))
	be.PutUint32(dst[16:], h.Required)
	be.PutUint32(dst[20:], h.Optional)
	copy(dst[24:40], h.Topic[:])
	be.PutUint32(dst[40:], h.Partition)
	be.PutUint32(dst[44:], h.Epoch)
	be.PutUint64(dst[48:], uint64(h.Base))
	be.PutUint64(dst[56:], uint64(h.GapFrom))
	be.PutUint64(dst[64:], uint64(h.Created))
	be.PutUint32(dst[72:], h.Salt)
	be.PutUint64(dst[80:], uint64(h.Durable))
	be.PutUint32(dst[88:], h.SnapshotBytes)
	be.PutUint32(dst[92:], h.SnapshotCRC)
	be.PutUint32(dst[124:], crc32.Checksum(dst[:124], castagnoli))
}

// decodeHeader reads one copy of a segment header. It returns false for anything but the bytes that encode wrote.
func decodeHeader(b []byte) (h SegmentHeader, ok bool) {
	be := binary.BigEndian
	if len(b) < segmentHeaderBytes || be.Uint64(b) != segmentMagic || be.Uint32(b[124:]) != crc32.Checksum(b[:124], castagnoli) {
		return h, false
	}
	h = SegmentHeader{
		Version:       be.Uint16(b[8:]),
		Required:      be.Uint32(b[16:]),
		Optional:      be.Uint32(b[20:]),
		Topic:         TopicID(b[24:40]),
		Partition:     be.Uint32(b[40:]),
		Epoch:         be.Uint32(b[44:]),
		Base:          codec.Offset(be.Uint64(b[48:])),
		GapFrom:       codec.Offset(be.Uint64(b[56:])),
		Created:       int64(be.Uint64(b[64:])),
		Salt:          be.Uint32(b[72:]),
		Durable:       codec.Offset(be.Uint64(b[80:])),
		SnapshotBytes: be.Uint32(b[88:]),
		SnapshotCRC:   be.Uint32(b[92:]),
	}
	ok = h.Base >= 0 && h.GapFrom >= 0 && h.GapFrom <= h.Base && h.SnapshotBytes <= maxSnapshotBytes &&
		be.Uint32(b[12:]) == uint32(h.DataStart())
	return h, ok
}

// encodeBlock returns what a segment file starts with: both copies of the header and the snapshot.
func (h *SegmentHeader) encodeBlock(snapshot []byte) []byte {
	h.SnapshotBytes = uint32(len(snapshot))
	h.SnapshotCRC = crc32.Checksum(snapshot, castagnoli)
	b := make([]byte, h.DataStart())
	h.encode(b)
	h.encode(b[headerCopyPosition:])
	copy(b[headerBlockBytes:], snapshot)
	return b
}

// Group is the header of a group.
type Group struct {
	Position Position // where the header lies; not stored, but covered by its CRC
	Kind     Kind
	Body     int // bytes behind the header
	Batches  int
	Base     codec.Offset
	Next     codec.Offset
	Time     int64        // append time, milliseconds since the Unix epoch
	Durable  codec.Offset // the durable offset when the group was formed
	Epoch    uint32
	Salt     uint32
	BodyCRC  uint32 // of the batches' prefixes; of the whole body of a seal
}

// End is the position behind the group and its padding.
func (g *Group) End() Position {
	return alignUp(g.Position+groupHeaderBytes+Position(g.Body), groupAlign)
}

func updateCRC(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

// checksum is the CRC-32C of b.
func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func alignUp(p Position, to Position) Position { return (p + to - 1) / to * to }

func (g *Group) encode(dst []byte) {
	if invariant.Enabled {
		invariant.Check(g.Durable <= g.Next && g.Base <= g.Next, "group %+v", *g)
	}
	be := binary.BigEndian
	be.PutUint32(dst[0:], groupMagic)
	dst[4] = byte(g.Kind)
	dst[5], dst[6], dst[7] = 0, 0, 0
	be.PutUint32(dst[8:], uint32(g.Body))
	be.PutUint32(dst[12:], uint32(g.Batches))
	be.PutUint64(dst[16:], uint64(g.Base))
	be.PutUint64(dst[24:], uint64(g.Next))
	be.PutUint64(dst[32:], uint64(g.Time))
	be.PutUint64(dst[40:], uint64(g.Durable))
	be.PutUint32(dst[48:], g.Epoch)
	be.PutUint32(dst[52:], g.Salt)
	be.PutUint32(dst[56:], g.BodyCRC)
	be.PutUint32(dst[60:], groupCRC(g.Position, dst))
}

// groupCRC covers the position in front of the header's first 60 bytes: a group that was copied elsewhere, even into the
// payload of a record, does not decode there.
func groupCRC(pos Position, header []byte) uint32 {
	// Byte by byte, for an array of eight bytes handed to crc32.Update would escape to the heap.
	crc := ^uint32(0)
	for shift := 56; shift >= 0; shift -= 8 {
		crc = castagnoli[byte(crc)^byte(pos>>shift)] ^ crc>>8
	}
	return crc32.Update(^crc, castagnoli, header[:60])
}

// decodeGroup reads a group header that lies at pos. It returns false for anything but what encode wrote there for a segment with
// that salt.
func decodeGroup(b []byte, pos Position, salt uint32) (g Group, ok bool) {
	be := binary.BigEndian
	if len(b) < groupHeaderBytes || be.Uint32(b) != groupMagic || be.Uint32(b[52:]) != salt ||
		be.Uint32(b[60:]) != groupCRC(pos, b) {
		return g, false
	}
	body, batches := be.Uint32(b[8:]), be.Uint32(b[12:])
	g = Group{
		Position: pos, Kind: Kind(b[4]), Body: int(body), Batches: int(batches),
		Base: codec.Offset(be.Uint64(b[16:])), Next: codec.Offset(be.Uint64(b[24:])), Time: int64(be.Uint64(b[32:])),
		Durable: codec.Offset(be.Uint64(b[40:])), Epoch: be.Uint32(b[48:]), Salt: be.Uint32(b[52:]), BodyCRC: be.Uint32(b[56:]),
	}
	if body > maxBodyBytes || batches > body/codec.BatchHeaderBytes || g.Base < 0 || g.Next < g.Base || g.Durable > g.Next {
		return g, false
	}
	switch g.Kind {
	case KindData:
		return g, g.Batches > 0 && g.Next > g.Base
	case KindPad:
		return g, g.Body == 0 && g.Next == g.Base
	case KindGap:
		return g, g.Body == 0 && g.Next > g.Base
	case KindSeal:
		return g, g.Body == sealBodyBytes && g.Next == g.Base && g.Batches == 0
	}
	return g, false
}

// batchError says that a batch of a data group is not what was written.
type batchError struct {
	at     int          // index of its first byte in the body
	offset codec.Offset // the first record that cannot be read
	next   codec.Offset // behind the batch, if its header can be trusted, else the group's end
	after  int          // index behind the batch, if its header can be trusted, else the body's size
	reason string
}

// checkBody looks at all of a data group's body. The first return is false if the prefixes are damaged: then nothing in the
// body can be trusted. f, which may be nil, is called with every sound batch; bad with every damaged one.
func (g *Group) checkBody(body []byte, f func(b codec.Batch), bad func(batchError)) bool {
	if crc, ok := prefixCRC(body, g); !ok || crc != g.BodyCRC {
		return false
	}
	// The prefixes are sound, so lengths and base offsets can be trusted from here on.
	at := 0
	for rest := body; len(rest) > 0; {
		b, r, _ := codec.NextBatch(rest)
		next := g.Next
		if len(r) > 0 {
			next = codec.Batch(r).BaseOffset()
		}
		if crc32.Checksum(b[prefixBytes+4:], castagnoli) != b.CRC() {
			bad(batchError{at: at, offset: b.BaseOffset(), next: next, after: at + len(b), reason: "a batch's CRC does not match"})
		} else if b.NextOffset() != next {
			bad(batchError{at: at, offset: b.BaseOffset(), next: next, after: at + len(b), reason: "a batch's count does not match the next offset"})
		} else if f != nil {
			f(b)
		}
		at += len(b)
		rest = r
	}
	return true
}

// prefixCRC is the CRC of the prefixes of all batches of a body. It returns false if they do not divide the body as the group
// header says.
func prefixCRC(body []byte, g *Group) (crc uint32, ok bool) {
	n, expect := 0, g.Base
	for rest := body; len(rest) > 0; n++ {
		if len(rest) < codec.BatchHeaderBytes {
			return 0, false
		}
		size := int64(int32(binary.BigEndian.Uint32(rest[8:]))) + codec.BatchPrefixBytes
		base := codec.Batch(rest).BaseOffset()
		if size < codec.BatchHeaderBytes || size > int64(len(rest)) || rest[16] != 2 || base < expect || base >= g.Next ||
			n == 0 && base != g.Base {
			return 0, false
		}
		crc = crc32.Update(crc, castagnoli, rest[:prefixBytes])
		expect = base + 1
		rest = rest[size:]
	}
	return crc, n == g.Batches
}

// Stats counts what a segment holds.
type Stats struct {
	Groups    uint64 // of data
	Batches   uint64
	Records   uint64
	Bytes     uint64 // of batches
	FirstTime int64  // append time of the first group, 0 if there is none
	MaxTime   int64  // largest append time
	MaxRecord int64  // largest time of a record, as recordTime has it
}

// add counts a group.
func (s *Stats) add(o Stats) {
	if s.Groups == 0 {
		s.FirstTime = o.FirstTime
	}
	s.Groups += o.Groups
	s.Batches += o.Batches
	s.Records += o.Records
	s.Bytes += o.Bytes
	s.MaxTime = max(s.MaxTime, o.MaxTime)
	s.MaxRecord = max(s.MaxRecord, o.MaxRecord)
}

// addBatch counts a batch whose group was appended at a time.
func (s *Stats) addBatch(b codec.Batch, appended int64) {
	s.Batches++
	s.Records += uint64(b.RecordCount())
	s.Bytes += uint64(len(b))
	s.MaxRecord = max(s.MaxRecord, recordTime(b, appended))
}

// recordTime is the time of a batch for lookups: the larger of its two timestamps, or where a client left both unset, the
// append time.
func recordTime(b codec.Batch, appended int64) int64 {
	if t := max(b.BaseTimestamp(), b.MaxTimestamp()); t > 0 {
		return t
	}
	return appended
}

func (s *Stats) encode(dst []byte) {
	be := binary.BigEndian
	be.PutUint64(dst[0:], s.Groups)
	be.PutUint64(dst[8:], s.Batches)
	be.PutUint64(dst[16:], s.Records)
	be.PutUint64(dst[24:], s.Bytes)
	be.PutUint64(dst[32:], uint64(s.FirstTime))
	be.PutUint64(dst[40:], uint64(s.MaxTime))
	be.PutUint64(dst[48:], uint64(s.MaxRecord))
	be.PutUint64(dst[56:], 0)
}

func decodeStats(b []byte) Stats {
	be := binary.BigEndian
	return Stats{
		Groups: be.Uint64(b), Batches: be.Uint64(b[8:]), Records: be.Uint64(b[16:]), Bytes: be.Uint64(b[24:]),
		FirstTime: int64(be.Uint64(b[32:])), MaxTime: int64(be.Uint64(b[40:])), MaxRecord: int64(be.Uint64(b[48:])),
	}
}

// encodeSeal returns a whole seal group.
func encodeSeal(g Group, s Stats) []byte {
	b := make([]byte, sealBytes)
	s.encode(b[groupHeaderBytes:])
	g.Kind, g.Body, g.Batches = KindSeal, sealBodyBytes, 0
	g.BodyCRC = crc32.Checksum(b[groupHeaderBytes:], castagnoli)
	g.encode(b)
	return b
}

// decodeSeal reads a whole seal group that lies at pos.
func decodeSeal(b []byte, pos Position, salt uint32) (g Group, s Stats, ok bool) {
	g, ok = decodeGroup(b, pos, salt)
	if !ok || g.Kind != KindSeal || len(b) < sealBytes || crc32.Checksum(b[groupHeaderBytes:sealBytes], castagnoli) != g.BodyCRC {
		return g, s, false
	}
	return g, decodeStats(b[groupHeaderBytes:]), true
}

const (
	segmentSuffix = ".seg"
	indexSuffix   = ".idx"
	tempSuffix    = ".tmp"
	sparePrefix   = "spare-"
	nameDigits    = 20
)

func segmentName(base codec.Offset) string {
	return fmt.Sprintf("%0*d%s", nameDigits, base, segmentSuffix)
}

func indexName(base codec.Offset) string { return fmt.Sprintf("%0*d%s", nameDigits, base, indexSuffix) }

func spareName(n uint64) string {
	return fmt.Sprintf("%s%0*d%s", sparePrefix, nameDigits, n, tempSuffix)
}

// nameKind is what the grammar of names says about a directory entry.
type nameKind uint8

const (
	nameOther nameKind = iota
	nameSegment
	nameIndex
	nameTemp
)

// parseName reads a directory entry's name: 20 digits with .seg or .idx, either of them with .tmp behind it, or spare-, 20
// digits, .tmp. Everything else is somebody else's.
func parseName(name string) (nameKind, codec.Offset) {
	if s, ok := bytes.CutPrefix([]byte(name), []byte(sparePrefix)); ok {
		if _, rest, ok := digits(string(s)); ok && rest == tempSuffix {
			return nameTemp, 0
		}
		return nameOther, 0
	}
	n, rest, ok := digits(name)
	if !ok {
		return nameOther, 0
	}
	switch rest {
	case segmentSuffix:
		return nameSegment, n
	case indexSuffix:
		return nameIndex, n
	case segmentSuffix + tempSuffix, indexSuffix + tempSuffix:
		return nameTemp, n
	}
	return nameOther, 0
}

func digits(s string) (n codec.Offset, rest string, ok bool) {
	if len(s) < nameDigits {
		return 0, "", false
	}
	for _, c := range []byte(s[:nameDigits]) {
		if c < '0' || c > '9' {
			return 0, "", false
		}
		if n > (math.MaxInt64-codec.Offset(c-'0'))/10 {
			return 0, "", false
		}
		n = n*10 + codec.Offset(c-'0')
	}
	return n, s[nameDigits:], true
}
