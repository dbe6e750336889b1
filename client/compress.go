package client

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/lightio/lightq/codec"
)

const (
	// snappyBlockBytes is what goes into one snappy block: matches reach no further back.
	snappyBlockBytes = 64 << 10
	// zstdReachBytes is as far as zstd looks back: the default batch size.
	zstdReachBytes = 1 << 20
)

// A compressor compresses the batches of a producer. Encoders are large; as many exist as batches are being compressed at a
// time. They belong to the producer and not to the package because a zstd encoder has a channel inside, which a
// testing/synctest bubble must not share with another.
type compressor struct {
	gzip, lz4, zstd sync.Pool
	appenders       sync.Pool
}

// newLZ4Writer makes independent blocks of 64 KiB without checksums, as Kafka's Java client does: the batch has its own.
func newLZ4Writer() *lz4.Writer {
	w := lz4.NewWriter(nil)
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(false), lz4.ConcurrencyOption(1)); err != nil {
		panic("BUG: lz4 options: " + err.Error())
	}
	return w
}

func newZstdEncoder() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(zstdReachBytes), zstd.WithLowerEncoderMem(true), zstd.WithZeroFrames(true))
	if err != nil {
		panic("BUG: zstd options: " + err.Error())
	}
	return e
}

// compressionName is a codec's name as the command line has it.
func compressionName(c codec.Compression) string {
	if names := [...]string{"none", "gzip", "snappy", "lz4", "zstd"}; int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// compressedRoom is how many bytes behind its end compressor.append may use of a buffer for a section of n bytes.
func compressedRoom(n int) int {
	return n + (n/snappyBlockBytes+1)*32 + xerialHeaderBytes
}

// append appends section, compressed with codec c, to dst and reports whether that is smaller than section; else what it
// returns is of no use. dst has room for compressedRoom(len(section)) bytes.
func (k *compressor) append(dst []byte, c codec.Compression, section []byte) (_ []byte, smaller bool) {
	begin := len(dst)
	switch c {
	case codec.CompressionGzip:
		w, ok := k.gzip.Get().(*gzip.Writer)
		if !ok {
			w = gzip.NewWriter(nil)
		}
		dst, smaller = k.stream(dst, section, w)
		k.gzip.Put(w)
	case codec.CompressionLZ4:
		w, ok := k.lz4.Get().(*lz4.Writer)
		if !ok {
			w = newLZ4Writer()
		}
		dst, smaller = k.stream(dst, section, w)
		k.lz4.Put(w)
	case codec.CompressionSnappy:
		dst, smaller = appendSnappy(dst, section)
	case codec.CompressionZstd:
		e, ok := k.zstd.Get().(*zstd.Encoder)
		if !ok {
			e = newZstdEncoder()
		}
		dst, smaller = e.EncodeAll(section, dst), true
		k.zstd.Put(e)
	}
	return dst, smaller && len(dst)-begin < len(section)
}

// An appender takes what an encoder writes, up to a limit.
type appender struct {
	b     []byte
	limit int // of len(b)
}

var errNotSmaller = errors.New("the compressed data are not smaller")

func (a *appender) Write(p []byte) (int, error) {
	if len(p) > a.limit-len(a.b) {
		return 0, errNotSmaller
	}
	a.b = append(a.b, p...)
	return len(p), nil
}

// stream compresses with an encoder that writes. It fails as soon as the result is not smaller than section.
func (k *compressor) stream(dst, section []byte, w interface {
	io.WriteCloser
	Reset(io.Writer)
},
) ([]byte, bool) {
	a, ok := k.appenders.Get().(*appender)
	if !ok {
		a = new(appender)
	}
	a.b, a.limit = dst, len(dst)+len(section)
	w.Reset(a)
	_, err := w.Write(section)
	if err == nil {
		err = w.Close()
	}
	w.Reset(nil) // no encoder in a pool keeps a buffer of ours
	dst, a.b = a.b, nil
	k.appenders.Put(a)
	return dst, err == nil
}

func appendSnappy(dst, section []byte) ([]byte, bool) {
	limit := len(dst) + len(section)
	dst = append(dst, xerialMagic...)
	dst = append(dst, 0, 0, 0, 1, 0, 0, 0, 1) // its version, and the oldest that it is compatible with
	for len(section) > 0 {
		n := min(len(section), snappyBlockBytes)
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		block := s2.EncodeSnappy(dst[at+4:cap(dst)], section[:n])
		dst = dst[:at+4+len(block)]
		binary.BigEndian.PutUint32(dst[at:], uint32(len(block)))
		if len(dst) > limit {
			return dst, false
		}
		section = section[n:]
	}
	return dst, true
}

// compress returns the batch of a publish frame in a new buffer, compressed, behind room for the frame's head; or nil if
// that would not be smaller. No lock is held.
func (w *partition) compress(frame []byte, meta codec.BatchMeta) []byte {
	batch := codec.Batch(frame[publishOverhead:])
	section := batch[codec.BatchHeaderBytes:]
	const head = publishOverhead + codec.BatchHeaderBytes
	out := w.p.free.take()
	if need := head + compressedRoom(len(section)); cap(out) < need {
		out = make([]byte, head, need)
	}
	packed, smaller := w.p.compressor.append(out[:head], w.p.cfg.compression, section)
	if !smaller {
		w.release(out)
		return nil
	}
	codec.FinishBatch(packed[publishOverhead:], w.p.cfg.compression, batch.RecordCount(), batch.BaseTimestamp(),
		batch.MaxTimestamp(), meta)
	return packed
}
