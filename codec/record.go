package codec

import "encoding/binary"

// A Record is one record of a batch. Key, Value and what Headers yields are views of the batch's bytes.
type Record struct {
	Offset    Offset
	Timestamp int64  // milliseconds since the Unix epoch
	Key       []byte // nil: null
	Value     []byte // nil: null

	headerCount int
	headers     []byte
}

// HeaderCount is the number of headers.
func (r *Record) HeaderCount() int { return r.headerCount }

// Headers calls yield for each header until it returns false. The signature is that of an iter.Seq2. Keys and values are
// views of the batch's bytes; nil values are null.
func (r *Record) Headers(yield func(key, value []byte) bool) {
	p := records{b: r.headers}
	for range r.headerCount {
		key, value := p.bytes(), p.bytes()
		if p.bad || !yield(key, value) {
			return
		}
	}
}

// Records iterates over the records of a batch whose records are not compressed, without allocating:
//
//	rs := batch.Records()
//	for rs.Next() {
//		use(rs.Record.Value)
//	}
//	if err := rs.Err(); err != nil { … }
//
// Declare rs in front of the loop: a variable of the for clause would be copied for each record, which costs more than
// reading one.
//
// The iterator reuses Record from one record to the next; its fields are the iterator's to write.
type Records struct {
	Record Record // the current one, valid after Next returned true, until the next call

	b      []byte // all records of the batch
	pos    int    // in b, of the next record; Invariant: 0 ≤ pos ≤ len(b)
	index  int    // of the next record
	count  int    // of records, as the batch says
	base   Offset
	baseTS int64
	bad    bool
	shape  shape // of the records from the next one on, perhaps
}

// Records returns an iterator in front of the first record. For a compressed batch use RecordsOf.
func (b Batch) Records() Records { return RecordsOf(b, b[BatchHeaderBytes:]) }

// RecordsOf returns an iterator over records that were decompressed from batch b.
func RecordsOf(b Batch, decompressed []byte) Records {
	return Records{b: decompressed, count: b.RecordCount(), base: b.BaseOffset(), baseTS: b.BaseTimestamp()}
}

// Next moves to the next record and reports whether there is one. It returns false at the end and at the first byte that
// does not decode; Err tells which.
func (rs *Records) Next() bool {
	s := &rs.shape
	stop := s.head + s.value
	b := rs.b[rs.pos:]
	if rs.index >= s.until || stop+fastBytes > len(b) {
		return rs.parse()
	}
	first := binary.LittleEndian.Uint64(b) ^ spread(uint64(rs.index)<<1)<<(s.shift&63)
	second := binary.LittleEndian.Uint16(b[8:])
	if first&s.mask1 != s.first || second&s.mask2 != s.second || b[stop] != 0 {
		return rs.parse()
	}
	// A record of the shape of the one before it, whose timestamp, null key and lack of headers stand.
	rs.Record.Offset = rs.base + Offset(rs.index)
	rs.Record.Value = b[s.head:stop:stop]
	rs.index++
	rs.pos += stop + 1
	return true
}

// parse decodes the common record: at most two bytes of length, a timestamp delta of one, no key, no headers. The
// record's prefix is taken apart in one register, w, whose low byte is the next one; n counts the bytes taken. Everything
// else is slow's.
func (rs *Records) parse() bool {
	rs.shape.until = 0
	if rs.index >= rs.count || len(rs.b)-rs.pos < fastBytes {
		return rs.slow()
	}
	b := rs.b[rs.pos:]
	w := binary.LittleEndian.Uint64(b)
	var size, n uint64
	switch {
	case w&0x80 == 0:
		size, n, w = w&0x7f, 1, w>>8
	case w&0x8000 == 0:
		size, n, w = w&0x7f|w>>1&0x3f80, 2, w>>16
	default:
		return rs.slow()
	}
	if w&0x80ff != 0 || size&1 != 0 { // attributes, a longer timestamp delta, a negative length
		return rs.slow()
	}
	end := n + size>>1
	ts := int64(w>>9&0x3f) ^ -int64(w>>8&1)
	w >>= 16
	var off uint64
	switch {
	case w&0x80 == 0:
		off, n, w = w&0x7f, n+3, w>>8
	case w&0x8000 == 0:
		off, n, w = w&0x7f|w>>1&0x3f80, n+4, w>>16
	case w&0x800000 == 0:
		off, n, w = w&0x7f|w>>1&0x3f80|w>>2&0x1fc000, n+5, w>>24
	default:
		return rs.slow()
	}
	if off != uint64(rs.index)<<1 || w&0xff != 1 { // 1: length -1, no key
		return rs.slow()
	}
	v := uint64(binary.LittleEndian.Uint16(b[n+1:]))
	switch {
	case v&0x80 == 0:
		v, n = v&0x7f, n+2
	case v&0x8000 == 0:
		v, n = v&0x7f|v>>1&0x3f80, n+3
	default:
		return rs.slow()
	}
	stop := n + v>>1
	if v&1 != 0 || stop+1 != end || end > uint64(len(b)) || b[stop] != 0 {
		return rs.slow()
	}
	r := &rs.Record
	if uint64(len(r.Value)) == v>>1 && r.Timestamp == rs.baseTS+ts { // two alike: expect a run
		rs.shape = shapeOf(ts, rs.index+1, len(r.Value))
		rs.shape.until = min(rs.shape.until, rs.count)
	}
	r.Offset = rs.base + Offset(rs.index)
	r.Timestamp = rs.baseTS + ts
	r.Value = b[n:stop:stop]
	if r.Key != nil || r.headers != nil { // rather a test that is always false than stores that are always made
		r.Key, r.headers, r.headerCount = nil, nil, 0
	}
	rs.index++
	rs.pos += int(end)
	return true
}

// slow decodes any record, and ends the iteration. What stands above must agree with it on every input (FuzzRecords).
func (rs *Records) slow() bool {
	if rs.bad {
		return false
	}
	if rs.index >= rs.count {
		rs.bad = rs.count < 0 || rs.pos != len(rs.b) // bytes behind the last record
		return false
	}
	p := records{b: rs.b[rs.pos:]}
	size := p.varint()
	if p.bad || size < 0 || size > int64(len(p.b)) {
		return rs.fail()
	}
	next := len(rs.b) - len(p.b) + int(size)
	p.b = p.b[:size]
	attributes := p.byte()
	ts, off := p.varint(), p.varint()
	r := Record{Offset: rs.base + Offset(rs.index), Timestamp: rs.baseTS + ts, Key: p.bytes(), Value: p.bytes()}
	count := p.varint()
	if p.bad || attributes != 0 || off != int64(rs.index) || count < 0 || count > int64(len(p.b))/2 {
		return rs.fail()
	}
	if count > 0 {
		r.headerCount, r.headers = int(count), p.b
	}
	for range count {
		if key := p.bytes(); key == nil {
			p.bad = true
		}
		p.bytes()
		if p.bad {
			return rs.fail()
		}
	}
	if len(p.b) != 0 {
		return rs.fail()
	}
	rs.Record = r
	rs.index++
	rs.pos = next
	return true
}

// fail ends the iteration for good: what stands behind a broken record has no known beginning. The position stays, so no
// later call gets further.
func (rs *Records) fail() bool {
	rs.bad = true
	return false
}

// Err returns nil when every record that the batch announced was decoded and no byte is left.
func (rs *Records) Err() error {
	if rs.bad {
		return Errorf(CodeBadBatch, "record %d of the batch at offset %d does not decode", rs.index, rs.base)
	}
	return nil
}

// records is a sticky reader of varint-coded fields.
type records struct {
	b   []byte
	bad bool
}

func (p *records) byte() byte {
	if p.bad || len(p.b) == 0 {
		p.bad = true
		return 0
	}
	v := p.b[0]
	p.b = p.b[1:]
	return v
}

func (p *records) varint() int64 {
	if p.bad {
		return 0
	}
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.bad = true
		return 0
	}
	p.b = p.b[n:]
	return v
}

// bytes reads a length and that many bytes; length -1 is null and gives nil, length 0 gives an empty slice.
func (p *records) bytes() []byte {
	n := p.varint()
	if p.bad || n < -1 || n > int64(len(p.b)) {
		p.bad = true
		return nil
	}
	if n == -1 {
		return nil
	}
	v := p.b[:n:n]
	p.b = p.b[n:]
	return v
}
