package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/lightio/lightq/codec"
)

// DefaultMaxDecompressedBytes bounds a decompressed batch by default: 64 MiB, so that a batch of zeros that somebody
// published costs its consumers no more than that.
const DefaultMaxDecompressedBytes = 64 << 20

const (
	// firstOpenedBytes is what the buffer of decompressed records begins with at least.
	firstOpenedBytes = 16 << 10
	// keptOpenedBytes is what a consumer keeps of it whatever comes; a larger one goes when a batch needs less than a quarter.
	keptOpenedBytes = 4 << 20

	// snappyExpansion is more than a byte of a snappy block can stand for: the densest element makes 64 bytes of 3. What a
	// block says of its size is held against it before memory is taken.
	snappyExpansion = 22

	// zstdWindowBytes is the window that every zstd decoder should take (RFC 8878, section 3.1.1.1.2), for consumers that
	// allow less than that.
	zstdWindowBytes = 8 << 20
)

// A decompressor opens compressed batches, one at a time, into a buffer that it uses again. Sizes that the data announce
// are not believed: memory grows with what comes out, up to limit. The zstd package may take all of the limit at once, for
// a frame that announces so much and whose input could hold it, and for a moment a second time. Not for concurrent use.
type decompressor struct {
	limit int // bytes of one batch's records

	buf  []byte
	used int // of buf, by the batch before
	src  bytes.Reader
	gzip *gzip.Reader
	lz4  *lz4.Reader
	zstd *zstd.Decoder
}

// decompress returns the records section that was compressed with codec c, valid until the next call. The error is a
// *codec.WireError of codec.CodeBadBatch, or ErrDecompressedTooLarge.
func (d *decompressor) decompress(c codec.Compression, section []byte) ([]byte, error) {
	dst := d.take(3 * len(section)) // what records often make of their compressed size
	var err error
	switch c {
	case codec.CompressionGzip:
		dst, err = d.ungzip(dst, section)
	case codec.CompressionSnappy:
		dst, err = d.unsnappy(dst, section)
	case codec.CompressionLZ4:
		dst, err = d.unlz4(dst, section)
	case codec.CompressionZstd:
		dst, err = d.unzstd(dst, section)
	default:
		return nil, codec.Errorf(codec.CodeBadBatch, "the compression codec %d is unknown", c)
	}
	d.buf, d.used = dst[:0], len(dst)
	switch {
	case errors.Is(err, ErrDecompressedTooLarge) || err == nil && len(dst) > d.limit:
		return nil, ErrDecompressedTooLarge
	case err != nil:
		return nil, codec.Errorf(codec.CodeBadBatch, "the records do not decompress as %s: %v", compressionName(c), err)
	}
	return dst, nil
}

// take returns the buffer, empty, with at least want bytes of room, or what the limit leaves of it. The size of the input
// must vouch for want.
func (d *decompressor) take(want int) []byte {
	want = min(max(want, firstOpenedBytes), d.limit+1)
	if n := cap(d.buf); n < want || n > keptOpenedBytes && n/4 > max(want, d.used) {
		d.buf = make([]byte, 0, want)
	}
	return d.buf[:0]
}

// grow returns dst with more room. All that is ever made is a byte more than the limit, so that it shows when the limit
// does not suffice.
func (d *decompressor) grow(dst []byte) ([]byte, error) {
	if cap(dst) > d.limit {
		return dst, ErrDecompressedTooLarge
	}
	grown := make([]byte, len(dst), min(2*cap(dst), d.limit+1))
	copy(grown, dst)
	return grown, nil
}

// readAll reads r to its end, behind what is in dst.
func (d *decompressor) readAll(dst []byte, r io.Reader) (_ []byte, err error) {
	for {
		if len(dst) == cap(dst) {
			if dst, err = d.grow(dst); err != nil {
				return dst, err
			}
		}
		n, err := r.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if errors.Is(err, io.EOF) {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func (d *decompressor) ungzip(dst, section []byte) ([]byte, error) {
	d.src.Reset(section)
	if d.gzip == nil {
		d.gzip = new(gzip.Reader)
	}
	if err := d.gzip.Reset(&d.src); err != nil {
		return dst, noEnd(err)
	}
	return d.readAll(dst, d.gzip)
}

func (d *decompressor) unlz4(dst, section []byte) ([]byte, error) {
	if len(section) == 0 {
		return dst, io.ErrUnexpectedEOF
	}
	d.src.Reset(section)
	if d.lz4 == nil {
		d.lz4 = lz4.NewReader(&d.src)
	} else {
		d.lz4.Reset(&d.src)
	}
	return d.readAll(dst, d.lz4)
}

// noEnd makes an end where data were expected an error.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *decompressor) unzstd(dst, section []byte) ([]byte, error) {
	most := uint64(max(d.limit, zstdWindowBytes))
	if d.zstd == nil {
		var err error
		d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(most))
		if err != nil {
			return dst, err
		}
	}
	var head zstd.Header
	if err := head.Decode(section); err != nil {
		return dst, noEnd(err)
	}
	if head.WindowSize > most {
		return dst, ErrDecompressedTooLarge
	}
	out, err := d.zstd.DecodeAll(section, dst)
	if errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		err = ErrDecompressedTooLarge
	}
	if cap(out) < cap(dst) {
		out = dst
	}
	return out, err
}

// xerialMagic begins the framing that Kafka's Java client, and most others, put around snappy: then two versions of four
// bytes, then blocks, each behind its size. Without it the data are one bare block.
const xerialMagic = "\x82SNAPPY\x00"

const xerialHeaderBytes = len(xerialMagic) + 4 + 4

func (d *decompressor) unsnappy(dst, section []byte) (_ []byte, err error) {
	if len(section) < xerialHeaderBytes || string(section[:len(xerialMagic)]) != xerialMagic {
		return d.unsnappyBlock(dst, section)
	}
	for rest := section[xerialHeaderBytes:]; len(rest) > 0; {
		if len(rest) < 4 {
			return dst, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(rest))
		if rest = rest[4:]; n > int64(len(rest)) {
			return dst, io.ErrUnexpectedEOF
		}
		if dst, err = d.unsnappyBlock(dst, rest[:n]); err != nil {
			return dst, err
		}
		rest = rest[n:]
	}
	return dst, nil
}

func (d *decompressor) unsnappyBlock(dst, block []byte) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return dst, err
	}
	if int64(n) > snappyExpansion*int64(len(block)) {
		return dst, s2.ErrCorrupt
	}
	if n > d.limit-len(dst) {
		return dst, ErrDecompressedTooLarge
	}
	for cap(dst)-len(dst) < n {
		if dst, err = d.grow(dst); err != nil {
			return dst, err
		}
	}
	out, err := s2.Decode(dst[len(dst):cap(dst)], block)
	if err != nil {
		return dst, err
	}
	return dst[:len(dst)+len(out)], nil
}
