package codec

// fastBytes is what the fast paths of building and reading touch beyond a value: the first 10 bytes of a record as whole
// words, its last byte, and slack.
const fastBytes = 16

// maxShapeValueBytes is the largest value of a shape: with it, a record's length is a varint of two bytes at most. A larger
// one costs more to copy than the general path costs beside it.
const maxShapeValueBytes = 8<<10 - 1 - fastBytes

// A shape is what a run of common records has in common: no key, no headers, values of one length, one timestamp delta of
// a byte. Such records differ in the value and in the offset delta alone.
//
//	| length 1-2 | attributes 1 | timestamp delta 1 | offset delta 1-3 | key length 1 | value length 1-2 | value | headers 1 |
//	|◄───────────────────────────── head: 6 to 10 bytes ──────────────────────────────►|
//
// So the general path is taken once per run, and the rest of the run is written, or compared, as two words.
type shape struct {
	first  uint64 // the first 8 bytes of head, little-endian, with an offset delta of 0 but its continuation bits
	second uint16 // the other 2
	shift  uint8  // of the offset delta in first, in bits
	head   int    // bytes
	value  int    // bytes
	mask1  uint64 // the bytes of first that belong to head
	mask2  uint16 // the same for second
	until  int    // the first index whose offset delta has more bytes; 0: no shape
}

// shapeOf returns the shape of records from number index on, whose timestamp delta and value length are given. The result
// is empty if there is none.
func shapeOf(tsDelta int64, index, value int) shape {
	ts := zigzag(tsDelta)
	if ts >= 0x80 || value > maxShapeValueBytes || value == 0 { // a value of length 0 may be null
		return shape{}
	}
	s := shape{value: value}
	var more uint64 // continuation bits of the offset delta
	off := 1
	switch {
	case index < 1<<6:
		s.until = 1 << 6
	case index < 1<<13:
		s.until, off, more = 1<<13, 2, 0x80
	case index < 1<<20:
		s.until, off, more = 1<<20, 3, 0x8080
	default:
		return shape{}
	}
	size := 4 + off + varintSize(uint64(value)<<1) + value
	length, n := twoBytes(uint64(size) << 1)
	s.shift = uint8(8 * (n + 2))
	s.first = length | ts<<(8*(n+1)) | more<<s.shift
	n += 2 + off
	valueLength, m := twoBytes(uint64(value) << 1)
	tail := 1 | valueLength<<8 // a key of length -1
	s.first |= tail << (8 * n)
	if n > 5 {
		s.second = uint16(tail >> (8 * (8 - n)))
	}
	s.head = n + 1 + m
	s.mask1, s.mask2 = ^uint64(0)>>(8*max(0, 8-s.head)), uint16(1<<(8*max(0, s.head-8))-1)
	return s
}

// spread lays the bits of v, below 1<<21, out as a varint of up to three bytes, without the continuation bits.
func spread(v uint64) uint64 { return v&0x7f | v&0x3f80<<1 | v&0x1fc000<<2 }

// twoBytes returns v, below 1<<14, as a varint in a little-endian word, and its size in bytes.
func twoBytes(v uint64) (word uint64, n int) {
	if v < 0x80 {
		return v, 1
	}
	return spread(v) | 0x80, 2
}
