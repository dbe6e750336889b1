package codec

import (
	"encoding/binary"
	"hash/crc32"
)

// Positions of the fields of a record batch (Kafka's magic 2), and sizes in bytes. The first 21 bytes, up to and with the
// CRC, are outside of the CRC.
const (
	batchBaseOffset      = 0
	batchLength          = 8 // bytes after this field: total - 12
	batchLeaderEpoch     = 12
	batchMagic           = 16
	batchCRC             = 17
	batchAttributes      = 21
	batchLastOffsetDelta = 23
	batchBaseTimestamp   = 27
	batchMaxTimestamp    = 35
	batchProducerID      = 43
	batchProducerEpoch   = 51
	batchBaseSequence    = 53
	batchRecordCount     = 57

	// BatchHeaderBytes is the size of a batch without records.
	BatchHeaderBytes = 61
	// BatchPrefixBytes is what must be there to know a batch's size.
	BatchPrefixBytes = 12

	// minRecordBytes: length, attributes, timestamp delta, offset delta, key length, value length, header count.
	minRecordBytes = 7
)

// Bits of a batch's attributes.
const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrKnown         = attrCodec
)

// Compression is the codec of a batch's records. The broker never opens a batch.
type Compression uint8

// The codecs.
const (
	CompressionNone   Compression = 0
	CompressionGzip   Compression = 1
	CompressionSnappy Compression = 2
	CompressionLZ4    Compression = 3
	CompressionZstd   Compression = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Batch is a view of one whole record batch. The accessors need BatchHeaderBytes bytes and check nothing: use
// NextBatch and CheckBatch first. Only SetBase writes.
type Batch []byte

// BaseOffset is the offset of the first record.
func (b Batch) BaseOffset() Offset { return Offset(binary.BigEndian.Uint64(b[batchBaseOffset:])) }

// NextOffset is the offset behind the last record.
func (b Batch) NextOffset() Offset { return b.BaseOffset() + Offset(b.RecordCount()) }

// RecordCount is the number of records that the batch says it has.
func (b Batch) RecordCount() int { return int(int32(binary.BigEndian.Uint32(b[batchRecordCount:]))) }

// LeaderEpoch is the field that the broker writes beside the base offset.
func (b Batch) LeaderEpoch() int32 { return int32(binary.BigEndian.Uint32(b[batchLeaderEpoch:])) }

// CRC is the stored checksum.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[batchCRC:]) }

// Attributes are the batch's flags.
func (b Batch) Attributes() uint16 { return binary.BigEndian.Uint16(b[batchAttributes:]) }

// Compression is the codec of the records.
func (b Batch) Compression() Compression { return Compression(b.Attributes() & attrCodec) }

// BaseTimestamp is the first record's time, in milliseconds since the Unix epoch.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[batchBaseTimestamp:])) }

// MaxTimestamp is the largest time of a record as the producer says, in milliseconds; some producers leave it unset.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[batchMaxTimestamp:])) }

// ProducerID is the idempotent producer's id, -1: none.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[batchProducerID:])) }

// ProducerEpoch is the idempotent producer's epoch.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[batchProducerEpoch:])) }

// BaseSequence is the first record's sequence number.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[batchBaseSequence:])) }

// SetBase writes what is the broker's to write: base offset and leader epoch. Both are outside of the CRC.
func (b Batch) SetBase(base Offset, leaderEpoch int32) {
	binary.BigEndian.PutUint64(b[batchBaseOffset:], uint64(base))
	binary.BigEndian.PutUint32(b[batchLeaderEpoch:], uint32(leaderEpoch))
}

// NextBatch cuts the first batch off b by its length field alone, for CheckBatch to look at. Both results are views of b.
func NextBatch(b []byte) (batch Batch, rest []byte, err error) {
	if len(b) < BatchHeaderBytes {
		return nil, b, Errorf(CodeBadBatch, "%d bytes are too few for a record batch", len(b))
	}
	n := int64(int32(binary.BigEndian.Uint32(b[batchLength:]))) + BatchPrefixBytes
	if n < BatchHeaderBytes || n > int64(len(b)) {
		return nil, b, Errorf(CodeBadBatch, "a record batch says it has %d bytes, %d are there", n, len(b))
	}
	return Batch(b[:n:n]), b[n:], nil
}

// CheckBatch says whether a batch from a client is valid: everything that can be known without opening its records. b is
// what NextBatch returned. maxBytes is the largest batch allowed. The rules are those of Kafka's log validation.
func CheckBatch(b Batch, maxBytes int) error {
	if len(b) > maxBytes {
		return Errorf(CodeBatchTooLarge, "a record batch of %d bytes is above the limit of %d", len(b), maxBytes)
	}
	if err := CheckBatchHeader(b); err != nil {
		return err
	}
	if b.BaseOffset() != 0 {
		return Errorf(CodeBadBatch, "the base offset %d is not 0", b.BaseOffset())
	}
	return checkCRC(b)
}

func checkCRC(b Batch) error {
	if sum := crc32.Checksum(b[batchAttributes:], castagnoli); sum != b.CRC() {
		return Errorf(CodeBadBatch, "the CRC-32C is %08x, the record batch says %08x", sum, b.CRC())
	}
	return nil
}

// CheckDelivered says whether a batch that the broker delivered is what its producer made. b is what NextBatch returned.
func CheckDelivered(b Batch) error {
	if err := CheckBatchHeader(b); err != nil {
		return err
	}
	if b.BaseOffset() < 0 || b.NextOffset() < 0 {
		return Errorf(CodeBadBatch, "%d records from base offset %d are outside of what offsets can be", b.RecordCount(), b.BaseOffset())
	}
	return checkCRC(b)
}

// CheckBatchHeader checks the fields of a batch's header against each other and against the batch's size. It reads neither
// the CRC nor the base offset.
func CheckBatchHeader(b Batch) error {
	if magic := b[batchMagic]; magic != 2 {
		return Errorf(CodeBadBatch, "the magic is %d, only record batches of magic 2 are understood", magic)
	}
	attr := b.Attributes()
	switch {
	case attr&attrTransactional != 0:
		return Errorf(CodeBadBatch, "the batch is transactional")
	case attr&attrControl != 0:
		return Errorf(CodeBadBatch, "the batch is a control batch")
	case attr&^attrKnown != 0:
		return Errorf(CodeBadBatch, "the attributes %#x have bits that a producer may not set", attr)
	case Compression(attr&attrCodec) > CompressionZstd:
		return Errorf(CodeBadBatch, "the compression codec %d is unknown", attr&attrCodec)
	}
	count := b.RecordCount()
	if count <= 0 {
		return Errorf(CodeBadBatch, "the record count is %d", count)
	}
	if last := int32(binary.BigEndian.Uint32(b[batchLastOffsetDelta:])); int(last) != count-1 {
		return Errorf(CodeBadBatch, "the last offset delta is %d with %d records", last, count)
	}
	if b.Compression() == CompressionNone && count > (len(b)-BatchHeaderBytes)/minRecordBytes {
		return Errorf(CodeBadBatch, "%d records do not fit %d bytes", count, len(b)-BatchHeaderBytes)
	}
	if b.ProducerID() < -1 || b.ProducerID() >= 0 && (b.ProducerEpoch() < 0 || b.BaseSequence() < 0) {
		return Errorf(CodeBadBatch, "producer id %d with epoch %d and sequence %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	}
	return nil
}

// A RecordHeader is a key and value beside a record's own.
type RecordHeader struct {
	Key   string
	Value []byte // nil and empty differ
}

// A BatchBuilder makes one batch after another. It appends to a slice of the caller's and allocates only when that slice
// grows. Not for concurrent use.
type BatchBuilder struct {
	buf    []byte
	start  int // where the batch begins in buf
	limit  int // largest batch in bytes
	count  int32
	baseTS int64
	maxTS  int64

	// AddValue's fast paths: the size and timestamp of the last record that addPlain took, the shape of those that may
	// follow it, and the position in buf that none of them may pass, so that neither the limit nor the capacity is.
	lastBytes int
	shapeTS   int64
	shape     shape
	fastEnd   int
}

// Reset starts a batch behind what is in buf, of at most limit bytes. buf belongs to the builder until Finish.
func (w *BatchBuilder) Reset(buf []byte, limit int) {
	w.start, w.limit, w.count = len(buf), limit, 0
	w.buf = append(buf, make([]byte, BatchHeaderBytes)...)
	w.shape.until = 0
	w.fastEnd = min(w.start+limit, cap(w.buf)-fastBytes)
}

// Count is the number of records so far.
func (w *BatchBuilder) Count() int { return int(w.count) }

// Size is the number of bytes so far, header included.
func (w *BatchBuilder) Size() int { return len(w.buf) - w.start }

func varintSize(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

func zigzag(v int64) uint64 { return uint64(v<<1) ^ uint64(v>>63) }

// AddValue adds a record of a value alone, the common case. A nil value is null, as in Add. timestamp is in milliseconds
// since the Unix epoch. It reports whether the record fitted; if not, nothing changed. The value is copied.
func (w *BatchBuilder) AddValue(timestamp int64, value []byte) bool {
	s := &w.shape
	n := len(w.buf)
	if len(value) != s.value || timestamp != w.shapeTS || int(w.count) >= s.until || n+s.head+len(value)+1 > w.fastEnd {
		return w.addPlain(timestamp, value)
	}
	// A record of the shape of the one before it.
	b := w.buf[n : n+len(value)+fastBytes]
	binary.LittleEndian.PutUint64(b, s.first|spread(uint64(w.count)<<1)<<(s.shift&63))
	binary.LittleEndian.PutUint16(b[8:], s.second)
	copy(b[s.head:], value)
	b[s.head+len(value)] = 0 // no headers
	w.buf = w.buf[:n+s.head+len(value)+1]
	w.count++
	return true
}

// addPlain adds a record of the common kind, whose head is put together in a register, and leaves everything else to Add:
// the first record (it sets the base timestamp), a value of length 0 (it may be null), one that is large, a timestamp
// that is far off, a record near the end of the room.
func (w *BatchBuilder) addPlain(timestamp int64, value []byte) bool {
	n := len(w.buf)
	ts := zigzag(timestamp - w.baseTS)
	off := uint64(w.count) << 1
	if off == 0 || off >= 1<<21 || ts >= 0x80 || uint(len(value)-1) >= maxShapeValueBytes || n+fastBytes+len(value) > w.fastEnd {
		return w.Add(timestamp, nil, value, nil)
	}
	head := ts << 8 // behind the attributes, which are 0
	bits := uint(16)
	switch {
	case off < 0x80:
		head |= off << 16
		bits += 8
	case off < 0x4000:
		head |= (spread(off) | 0x80) << 16
		bits += 16
	default:
		head |= (spread(off) | 0x8080) << 16
		bits += 24
	}
	head |= 1 << bits // a key of length -1
	bits += 8
	valueLength, m := twoBytes(uint64(len(value)) << 1)
	length, at := twoBytes(uint64(int(bits/8)+m+len(value)+1) << 1)
	b := w.buf[n : n+len(value)+fastBytes]
	binary.LittleEndian.PutUint64(b, length|head<<(8*uint(at)))
	at += int(bits / 8)
	binary.LittleEndian.PutUint16(b[at:], uint16(valueLength))
	at += m
	at += copy(b[at:], value)
	b[at] = 0 // no headers
	w.buf = w.buf[:n+at+1]
	w.count++
	if timestamp > w.maxTS {
		w.maxTS = timestamp
	}
	if len(value) == w.lastBytes && timestamp == w.shapeTS { // two alike: expect a run
		w.shape = shapeOf(timestamp-w.baseTS, int(w.count), len(value))
	} else {
		w.shape.until = 0
	}
	w.lastBytes, w.shapeTS = len(value), timestamp
	return true
}

// Add adds a record. A nil key or value is null, which differs from empty. It reports whether the record fitted; if not,
// nothing changed. Key, value and headers are copied.
func (w *BatchBuilder) Add(timestamp int64, key, value []byte, headers []RecordHeader) bool {
	if w.count == 0 {
		w.baseTS, w.maxTS = timestamp, timestamp
	}
	ts, off := zigzag(timestamp-w.baseTS), zigzag(int64(w.count))
	size := 1 + varintSize(ts) + varintSize(off) + bytesSize(key) + bytesSize(value) + varintSize(zigzag(int64(len(headers))))
	for _, h := range headers {
		size += varintSize(zigzag(int64(len(h.Key)))) + len(h.Key) + bytesSize(h.Value)
	}
	if len(w.buf)-w.start+size+varintSize(zigzag(int64(size))) > w.limit {
		return false
	}
	b := binary.AppendUvarint(w.buf, zigzag(int64(size)))
	b = append(b, 0)
	b = binary.AppendUvarint(b, ts)
	b = binary.AppendUvarint(b, off)
	b = appendBytes(b, key)
	b = appendBytes(b, value)
	b = binary.AppendUvarint(b, zigzag(int64(len(headers))))
	for _, h := range headers {
		b = binary.AppendUvarint(b, zigzag(int64(len(h.Key))))
		b = append(b, h.Key...)
		b = appendBytes(b, h.Value)
	}
	w.buf = b
	w.fastEnd = min(w.start+w.limit, cap(b)-fastBytes)
	w.count++
	w.maxTS = max(w.maxTS, timestamp)
	return true
}

func bytesSize(b []byte) int {
	if b == nil {
		return 1
	}
	return varintSize(zigzag(int64(len(b)))) + len(b)
}

func appendBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, 1)
	}
	dst = binary.AppendUvarint(dst, zigzag(int64(len(b))))
	return append(dst, b...)
}

// BatchMeta is what a batch's header says beyond its records.
type BatchMeta struct {
	ProducerID    int64 // -1: not idempotent
	ProducerEpoch int16
	BaseSequence  int32
}

// NoProducer is the BatchMeta of a batch that is not idempotent.
var NoProducer = BatchMeta{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}

// Finish completes the batch and returns the slice given to Reset with the batch behind what was in it. Finishing a batch
// without records is a bug.
func (w *BatchBuilder) Finish(m BatchMeta) []byte {
	if w.count == 0 {
		panic("BUG: a batch without records was finished")
	}
	buf := w.buf
	FinishBatch(buf[w.start:], CompressionNone, int(w.count), w.baseTS, w.maxTS, m)
	w.buf = nil
	return buf
}

// FinishBatch writes the header of a batch whose records, compressed or not, stand behind the first BatchHeaderBytes of b.
// Base offset is 0 and leader epoch -1 until a broker sets them.
func FinishBatch(b []byte, c Compression, count int, baseTS, maxTS int64, m BatchMeta) {
	be := binary.BigEndian
	be.PutUint64(b[batchBaseOffset:], 0)
	be.PutUint32(b[batchLength:], uint32(len(b)-BatchPrefixBytes))
	be.PutUint32(b[batchLeaderEpoch:], 0xFFFFFFFF)
	b[batchMagic] = 2
	be.PutUint16(b[batchAttributes:], uint16(c))
	be.PutUint32(b[batchLastOffsetDelta:], uint32(count-1))
	be.PutUint64(b[batchBaseTimestamp:], uint64(baseTS))
	be.PutUint64(b[batchMaxTimestamp:], uint64(maxTS))
	be.PutUint64(b[batchProducerID:], uint64(m.ProducerID))
	be.PutUint16(b[batchProducerEpoch:], uint16(m.ProducerEpoch))
	be.PutUint32(b[batchBaseSequence:], uint32(m.BaseSequence))
	be.PutUint32(b[batchRecordCount:], uint32(count))
	be.PutUint32(b[batchCRC:], crc32.Checksum(b[batchAttributes:], castagnoli))
}
