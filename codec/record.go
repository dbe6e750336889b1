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
//	for rs := batch.Records(); rs.Next(); { use(rs.Record.Value) }
//	then look at rs.Err()
type Records struct {
	Record Record // the current one, valid after Next returned true, until the next call

	p      records
	left   int
	base   Offset
	baseTS int64
	index  int
}

// Records returns an iterator in front of the first record. For a compressed batch use RecordsOf.
func (b Batch) Records() Records { return RecordsOf(b, b[BatchHeaderBytes:]) }

// RecordsOf returns an iterator over records that were decompressed from batch b.
func RecordsOf(b Batch, records_ []byte) Records {
	return Records{p: records{b: records_}, left: b.RecordCount(), base: b.BaseOffset(), baseTS: b.BaseTimestamp()}
}

// Next moves to the next record and reports whether there is one. It returns false at the end and at the first byte that
// does not decode; Err tells which.
func (rs *Records) Next() bool {
	if rs.left == 0 {
		rs.p.bad = rs.p.bad || len(rs.p.b) != 0 // bytes behind the last record
		return false
	}
	b := rs.p.b
	// The common record: two or three length bytes at most, small deltas, no key, no headers.
	if len(b) >= 8 {
		size, n := int(b[0]), 1
		if b[0]&0x80 != 0 {
			size, n = int(b[0]&0x7f)|int(b[1])<<7, 2
			if b[1]&0x80 != 0 {
				return rs.slow()
			}
		}
		size >>= 1
		end := n + size
		if b[0]&1 != 0 || end > len(b) || size < minRecordBytes-1 || b[n] != 0 || b[n+1]&0x80 != 0 {
			return rs.slow()
		}
		ts := int64(b[n+1]>>1) ^ -int64(b[n+1]&1)
		n += 2
		r := b[n:end]
		i := 0
		off := uint32(r[0])
		if off&0x80 != 0 {
			off = off&0x7f | uint32(r[1])<<7
			i = 1
			if r[1]&0x80 != 0 {
				off = off&0x3fff | uint32(r[2])<<14
				i = 2
				if r[2]&0x80 != 0 || len(r) < 6 {
					return rs.slow()
				}
			}
		}
		if int(off) != rs.index<<1 || len(r) < i+4 || r[i+1] != 1 {
			return rs.slow()
		}
		i += 2
		vlen := int(r[i])
		i++
		if vlen&0x80 != 0 {
			vlen = vlen&0x7f | int(r[i])<<7
			if r[i]&0x80 != 0 {
				return rs.slow()
			}
			i++
		}
		if vlen&1 != 0 {
			return rs.slow()
		}
		vlen >>= 1
		if i+vlen+1 != len(r) || r[i+vlen] != 0 {
			return rs.slow()
		}
		rs.Record = Record{Offset: rs.base + Offset(rs.index), Timestamp: rs.baseTS + ts, Value: r[i : i+vlen : i+vlen]}
		rs.p.b = b[end:]
		rs.index++
		rs.left--
		return true
	}
	return rs.slow()
}

// slow decodes any record; the fast path above must agree with it on every input that it takes (FuzzRecords).
func (rs *Records) slow() bool {
	p := &rs.p
	size := p.varint()
	if p.bad || size < 0 || size > int64(len(p.b)) {
		p.bad = true
		return false
	}
	rest := p.b[size:]
	p.b = p.b[:size]
	attributes := p.byte()
	ts, off := p.varint(), p.varint()
	r := Record{Offset: rs.base + Offset(rs.index), Timestamp: rs.baseTS + ts, Key: p.bytes(), Value: p.bytes()}
	count := p.varint()
	if attributes != 0 || off != int64(rs.index) || count < 0 || count > int64(len(p.b))/2 {
		p.bad = true
	}
	r.headerCount = int(count)
	r.headers = p.b
	for i := int64(0); i < count && !p.bad; i++ {
		if key := p.bytes(); key == nil {
			p.bad = true
		}
		p.bytes()
	}
	if p.bad || len(p.b) != 0 {
		p.bad = true
		return false
	}
	p.b = rest
	rs.Record = r
	rs.index++
	rs.left--
	return true
}

// Err returns nil when every record that the batch announced was decoded and no byte is left.
func (rs *Records) Err() error {
	if rs.p.bad {
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
