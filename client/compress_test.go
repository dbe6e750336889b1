package client

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/lightio/lightq/codec"
)

var allCompressions = []codec.Compression{
	codec.CompressionGzip, codec.CompressionSnappy, codec.CompressionLZ4, codec.CompressionZstd,
}

// eachCompression runs a test for every codec.
func eachCompression(t *testing.T, test func(t *testing.T, c codec.Compression)) {
	for _, c := range allCompressions {
		t.Run(compressionName(c), func(t *testing.T) { test(t, c) })
	}
}

// compressed makes a section of another, which must get smaller.
func compressed(tb testing.TB, c codec.Compression, section []byte) []byte {
	tb.Helper()
	out, smaller := new(compressor).append(make([]byte, 0, compressedRoom(len(section))), c, section)
	if !smaller {
		tb.Fatalf("%d bytes do not get smaller with %s", len(section), compressionName(c))
	}
	return out
}

// around makes a batch of a section that says it holds count records.
func around(section []byte, c codec.Compression, count int) codec.Batch {
	b := append(make([]byte, codec.BatchHeaderBytes), section...)
	codec.FinishBatch(b, c, count, 1000, 1000, codec.NoProducer)
	return b
}

// zeros is a reader of n zero bytes.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestCompressedRoundTrip(t *testing.T) {
	eachCompression(t, func(t *testing.T, compression codec.Compression) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client()
			defer f.stop(c)
			var sent, batches int
			p := newProducer(t, c, Compress(compression), BatchBytes(32<<10), Linger(time.Second), OnBatch(func(r BatchResult) {
				sent += r.Bytes
				batches++
			}))
			rng := rand.New(rand.NewPCG(1, 2))
			var want [2][]string
			for i := range 4000 {
				m := Message{Partition: i % 2, Value: bytes.Repeat([]byte("abc"), rng.IntN(40))}
				switch i / 2 % 4 {
				case 1:
					m.Key = fmt.Appendf(nil, "key %d", i%10)
				case 2:
					m.Value, m.Key = nil, []byte{}
				case 3:
					m.Headers = []codec.RecordHeader{{Key: "h", Value: []byte{byte(i)}}, {Key: "null"}, {Key: "", Value: []byte{}}}
				}
				want[i%2] = append(want[i%2], fmt.Sprintf("%#v %#v %d", m.Key, m.Value, len(m.Headers)))
				if err := p.PublishAsync(t.Context(), m, nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			stored := 0
			for part := range f.logs {
				small := 0
				for _, b := range f.logs[part] {
					stored += len(b)
					if b.Compression() != compression {
						small++
					}
				}
				if n := len(f.logs[part]); small > 0 || n < 2 {
					t.Errorf("partition %d: %d of %d batches are not compressed", part, small, n)
				}
			}
			if sent != stored || batches != len(f.logs[0])+len(f.logs[1]) {
				t.Errorf("%d bytes in %d batches were reported, %d are stored", sent, batches, stored)
			}
			for _, w := range p.open {
				if w.unconfirmed != 0 {
					t.Errorf("partition %d: %d bytes count as unconfirmed after Flush", w.number, w.unconfirmed)
				}
			}

			var got [2][]string
			n := 0
			for r, err := range newConsumer(t, c).Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				got[r.Partition] = append(got[r.Partition], fmt.Sprintf("%#v %#v %d", r.Key, r.Value, r.HeaderCount()))
				if n++; n == 4000 {
					break
				}
			}
			for part := range got {
				if !slices.Equal(got[part], want[part]) {
					t.Errorf("partition %d: what was consumed differs from what was published", part)
				}
			}

			// The same by batches, and raw ones as they are stored.
			n = 0
			for b, err := range newConsumer(t, c, Partitions(1)).Batches(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(b.Batch, f.logs[1][n]) {
					t.Fatalf("batch %d is not delivered as it is stored", n)
				}
				rs, err := b.Open()
				if err != nil {
					t.Fatal(err)
				}
				for rs.Next() {
					r := &rs.Record
					if s := fmt.Sprintf("%#v %#v %d", r.Key, r.Value, r.HeaderCount()); s != want[1][r.Offset] {
						t.Fatalf("offset %d: %s, want %s", r.Offset, s, want[1][r.Offset])
					}
				}
				if err := rs.Err(); err != nil {
					t.Fatal(err)
				}
				if n++; n == len(f.logs[1]) {
					break
				}
			}
		})
	})
}

// What does not get smaller is sent as it is, and nothing gets larger than a batch may be.
func TestIncompressible(t *testing.T) {
	eachCompression(t, func(t *testing.T, compression codec.Compression) {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			f.maxBatch = 300_000
			c := f.client()
			defer f.stop(c)
			p := newProducer(t, c, Compress(compression))
			rng := rand.NewChaCha8([32]byte{1})
			var values []string
			for _, n := range []int{0, 1, 20, 70_000, 299_900} {
				value := make([]byte, n)
				if _, err := rng.Read(value); err != nil {
					t.Fatal(err)
				}
				values = append(values, string(value))
				if _, err := p.Publish(t.Context(), Message{Value: value}); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
			}
			for i, b := range f.logs[0] {
				if b.Compression() != codec.CompressionNone {
					t.Errorf("batch %d is compressed to %d bytes", i, len(b))
				}
			}
			if !slices.Equal(f.values(0), values) {
				t.Error("the values differ")
			}
		})
	})
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		if _, err := c.Producer(t.Context(), "orders", Compress(codec.CompressionZstd+1)); err == nil {
			t.Error("an unknown codec is accepted")
		}
	})
}

// The window is one of bytes as they are sent: what compresses well does not wait for room that is there.
func TestWindowCountsCompressedBytes(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		f.window = 16 << 10
		release := holdConfirms(f)
		c := f.client()
		p := newProducer(t, c, Compress(codec.CompressionZstd), BatchBytes(8<<10))
		value := bytes.Repeat([]byte("x"), 1000)
		for range 100 { // 100 KB, and some 2 KB compressed
			if err := p.PublishValue(t.Context(), 0, value); err != nil {
				t.Fatal(err)
			}
		}
		w := p.open[0]
		w.acct.Lock()
		if w.unconfirmed <= 0 || w.unconfirmed > 4<<10 {
			t.Errorf("%d bytes count as unconfirmed", w.unconfirmed)
		}
		w.acct.Unlock()
		go func() {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		for !isClosed(p.closing) {
			release(1)
			<-time.NewTimer(time.Millisecond).C // virtual
		}
		f.stop(c)
	})
}

// What other programs wrote is read.
func TestForeignCompression(t *testing.T) {
	dir := filepath.Join("testdata", "compressed")
	want, err := os.ReadFile(filepath.Join(dir, "records"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	d := decompressor{limit: 128 << 20} // zstd-cli-long announces a window of that size
	seen := map[codec.Compression]int{}
	for _, file := range files {
		name, _, _ := strings.Cut(file.Name(), "-")
		i := slices.IndexFunc(allCompressions, func(c codec.Compression) bool { return compressionName(c) == name })
		if i < 0 {
			continue
		}
		c := allCompressions[i]
		seen[c]++
		section, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := d.decompress(c, section); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want %d", file.Name(), len(got), err, len(want))
		}
		rs, err := Batch{Batch: around(section, c, 40), opener: &d}.Open()
		if err != nil {
			t.Errorf("%s: %v", file.Name(), err)
			continue
		}
		n := 0
		for rs.Next() {
			n++
		}
		if n != 40 || rs.Err() != nil {
			t.Errorf("%s: %d records, %v", file.Name(), n, rs.Err())
		}
	}
	for _, c := range allCompressions {
		if seen[c] < 2 {
			t.Errorf("%d files of %s", seen[c], compressionName(c))
		}
	}
}

// xerial frames blocks as Kafka's Java client does.
func xerial(blocks ...[]byte) []byte {
	out := append([]byte(xerialMagic), 0, 0, 0, 1, 0, 0, 0, 1)
	for _, b := range blocks {
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	return out
}

func TestSnappyFraming(t *testing.T) {
	a, b := bytes.Repeat([]byte("a"), 3000), bytes.Repeat([]byte("b"), 40_000)
	ea, eb := s2.EncodeSnappy(nil, a), s2.EncodeSnappy(nil, b)
	huge := binary.AppendUvarint(nil, 1<<32-1)
	for _, tt := range []struct {
		name    string
		section []byte
		want    []byte
		err     error
	}{
		{"bare", eb, b, nil},
		{"one block", xerial(eb), b, nil},
		{"two blocks", xerial(ea, eb), slices.Concat(a, b), nil},
		{"an empty block", xerial(ea, s2.EncodeSnappy(nil, nil), eb), slices.Concat(a, b), nil},
		{"no block", xerial(), []byte{}, nil},
		{"nothing", nil, nil, codec.CodeBadBatch},
		{"a cut size", append(xerial(ea), 0, 0), nil, codec.CodeBadBatch},
		{"a cut block", xerial(ea, eb)[:len(xerial(ea, eb))-1], nil, codec.CodeBadBatch},
		{"a size of 4 GiB", append(xerial(ea), 0xff, 0xff, 0xff, 0xff, 0), nil, codec.CodeBadBatch},
		{"a bare block that announces 4 GiB", append(huge, ea...), nil, codec.CodeBadBatch},
		{"a block that announces 4 GiB", xerial(ea, append(huge, ea...)), nil, codec.CodeBadBatch},
		{"above the limit", xerial(eb, eb), nil, ErrDecompressedTooLarge},
		{"another magic", append([]byte("\x82SNAPPZ\x00"), xerial(ea)[8:]...), nil, codec.CodeBadBatch},
	} {
		d := decompressor{limit: 64 << 10}
		got, err := d.decompress(codec.CompressionSnappy, tt.section)
		if !errors.Is(err, tt.err) || tt.err == nil && (err != nil || !bytes.Equal(got, tt.want)) {
			t.Errorf("%s: %d bytes, %v; want %d, %v", tt.name, len(got), err, len(tt.want), tt.err)
		}
		if cap(d.buf) > d.limit+1 {
			t.Errorf("%s: a buffer of %d bytes", tt.name, cap(d.buf))
		}
	}
}

// For every truncation the batch says that it is broken, and for every changed byte nothing worse happens than that
// other records come. The decompressor works as before afterwards.
func TestCorruptCompression(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "compressed", "records"))
	if err != nil {
		t.Fatal(err)
	}
	eachCompression(t, func(t *testing.T, c codec.Compression) {
		good := compressed(t, c, raw)
		d := &decompressor{limit: 1 << 20}
		open := func(section []byte) error {
			rs, err := Batch{Batch: around(section, c, 40), opener: d}.Open()
			var be *BatchError
			if err != nil && !errors.As(err, &be) {
				t.Fatalf("the error is a %T", err)
			}
			if err != nil {
				return err
			}
			for rs.Next() {
			}
			return rs.Err()
		}
		for n := range good {
			if err := open(good[:n]); !errors.Is(err, codec.CodeBadBatch) {
				t.Errorf("%d of %d bytes: %v", n, len(good), err)
			}
		}
		if err := open(append(bytes.Clone(good), "garbage"...)); !errors.Is(err, codec.CodeBadBatch) {
			t.Errorf("garbage behind the data: %v", err)
		}
		for i := range good {
			bad := bytes.Clone(good)
			bad[i] ^= byte(1 << (i % 8))
			if err := open(bad); err != nil && !errors.Is(err, codec.CodeBadBatch) && !errors.Is(err, ErrDecompressedTooLarge) {
				t.Errorf("byte %d changed: %v", i, err)
			}
			if got, err := d.decompress(c, good); err != nil || !bytes.Equal(got, raw) {
				t.Fatalf("good data behind a change of byte %d: %d bytes, %v", i, len(got), err)
			}
		}
		for _, section := range [][]byte{nil, []byte("garbage"), bytes.Repeat([]byte{0xff}, 100)} {
			if err := open(section); !errors.Is(err, codec.CodeBadBatch) {
				t.Errorf("%q: %v", section, err)
			}
		}
	})
	d := &decompressor{limit: 1 << 20}
	if _, err := d.decompress(7, raw); !errors.Is(err, codec.CodeBadBatch) {
		t.Errorf("codec 7: %v", err)
	}
}

// bomb compresses n zero bytes with the densest setting of each format.
func bomb(tb testing.TB, c codec.Compression, n int64) []byte {
	tb.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch c {
	case codec.CompressionGzip:
		w = gzip.NewWriter(&out)
	case codec.CompressionLZ4:
		z := lz4.NewWriter(&out)
		err = z.Apply(lz4.BlockSizeOption(lz4.Block4Mb), lz4.ConcurrencyOption(1))
		w = z
	case codec.CompressionZstd:
		w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1))
	case codec.CompressionSnappy:
		block := s2.EncodeSnappy(nil, make([]byte, 1<<20))
		out.Write(xerial())
		for ; n > 0; n -= 1 << 20 {
			out.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block))))
			out.Write(block)
		}
		return out.Bytes()
	}
	if err == nil {
		_, err = io.Copy(w, zeros(n))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

// zstdRLE is a frame by hand, of blocks that stand for 128 KiB in 4 bytes each: the densest there is. A window of 2^log
// bytes is announced, and a content of size bytes unless it is 0.
func zstdRLE(log, blocks int, size uint64) []byte {
	out := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, byte(log-10) << 3}
	if size > 0 {
		out[4] = 3 << 6
		out = binary.LittleEndian.AppendUint64(out, size)
	}
	for i := range blocks {
		head := uint32(1<<1 | 128<<10<<3)
		if i == blocks-1 {
			head |= 1
		}
		out = append(out, byte(head), byte(head>>8), byte(head>>16), 0)
	}
	return out
}

// allocatedBy returns how many bytes f allocated in all.
func allocatedBy(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// A small batch that stands for a large one costs its consumer no more than the limit (case F49).
func TestF49DecompressionBombs(t *testing.T) {
	const limit = 8 << 20
	const mostAllocated = 8 * limit
	size := int64(128 << 20)
	if os.Getenv("LIGHTQ_SOAK") != "" {
		size = 1 << 30
	}
	type test struct {
		name string
		c    codec.Compression
		data []byte
		want error
	}
	tests := []test{
		{"zstd RLE", codec.CompressionZstd, zstdRLE(21, 8192, 0), ErrDecompressedTooLarge},
		{"zstd RLE in many frames", codec.CompressionZstd, bytes.Repeat(zstdRLE(20, 8, 0), 1000), ErrDecompressedTooLarge},
		{"zstd window of 1 TiB", codec.CompressionZstd, zstdRLE(40, 1, 0), ErrDecompressedTooLarge},
		{"zstd window of 16 MiB", codec.CompressionZstd, zstdRLE(24, 1, 0), ErrDecompressedTooLarge},
		{"zstd window of 8 MiB", codec.CompressionZstd, zstdRLE(23, 1, 0), nil},
		{"zstd that announces 2^62", codec.CompressionZstd, zstdRLE(21, 1, 1<<62), ErrDecompressedTooLarge},
		{"zstd that announces 2^64-2", codec.CompressionZstd, zstdRLE(21, 1, 1<<64-2), ErrDecompressedTooLarge},
		{"zstd that announces the limit", codec.CompressionZstd, zstdRLE(21, 1, limit), codec.CodeBadBatch},
		{"snappy that announces 4 GiB", codec.CompressionSnappy, binary.AppendUvarint(nil, 1<<32-1), codec.CodeBadBatch},
		{
			"lz4 that announces 2^62", codec.CompressionLZ4,
			append([]byte{4, 0x22, 0x4d, 0x18, 0x68, 0x70, 0, 0, 0, 0, 0, 0, 0, 0x40, 0}, "garbage"...), codec.CodeBadBatch,
		},
		{
			"lz4 that skips 4 GiB", codec.CompressionLZ4,
			append([]byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff}, "garbage"...), codec.CodeBadBatch,
		},
	}
	for _, c := range allCompressions {
		tests = append(tests, test{"zeros as " + compressionName(c), c, bomb(t, c, size), ErrDecompressedTooLarge})
	}
	for _, tt := range tests {
		d := &decompressor{limit: limit}
		var err error
		used := allocatedBy(func() { _, err = d.decompress(tt.c, tt.data) })
		if !errors.Is(err, tt.want) || tt.want == nil && err != nil {
			t.Errorf("%s (%d bytes): %v, want %v", tt.name, len(tt.data), err, tt.want)
		}
		// Doubling makes twice the limit in all, the smaller steps of zstd some more, and decoders have buffers of their
		// own, of 8 MiB for a block of lz4.
		if used > mostAllocated || cap(d.buf) > 2*limit {
			t.Errorf("%s: %d bytes were allocated, the limit is %d", tt.name, used, limit)
		}
	}

	t.Run("at once", func(t *testing.T) {
		used := allocatedBy(func() {
			var wg sync.WaitGroup
			for _, tt := range tests {
				for range 4 {
					wg.Go(func() {
						d := &decompressor{limit: limit}
						if _, err := d.decompress(tt.c, tt.data); !errors.Is(err, tt.want) {
							t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
						}
					})
				}
			}
			wg.Wait()
		})
		if each := used / int64(4*len(tests)); each > mostAllocated {
			t.Errorf("%d bytes were allocated for each of %d", each, 4*len(tests))
		}
	})

	// Through a consumer: the batch is told and what is behind it comes.
	for _, c := range allCompressions {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			f.put(0, "before")
			for _, section := range [][]byte{bomb(t, c, 12<<20), []byte("\x1f\x8bgarbage")} {
				f.mu.Lock()
				f.appendLocked(0, around(section, c, 5))
				f.mu.Unlock()
			}
			f.put(0, "behind")
			client := f.client()
			defer f.stop(client)
			co := newConsumer(t, client, MaxDecompressedBytes(limit))
			var got []string
			for r, err := range co.Records(t.Context()) {
				var be *BatchError
				switch {
				case errors.As(err, &be):
					if Retryable(err) || r.Partition != 0 {
						t.Errorf("%+v %v", r, err)
					}
					got = append(got, fmt.Sprint(be.Base, be.Next, errors.Is(err, ErrDecompressedTooLarge), errors.Is(err, codec.CodeBadBatch)))
				case err != nil:
					t.Fatal(err)
				default:
					got = append(got, string(r.Value))
				}
				if len(got) == 4 {
					break
				}
			}
			if want := []string{"before", "1 6 true false", "6 11 false true", "behind"}; !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", compressionName(c), got, want)
			}
		})
	}
}

// A limit is exact: what has its size passes.
func TestDecompressedLimit(t *testing.T) {
	eachCompression(t, func(t *testing.T, c codec.Compression) {
		for _, n := range []int{1000, firstOpenedBytes, 100_000, 3 << 20, zstdWindowBytes + 1} {
			section := compressed(t, c, make([]byte, n))
			for _, tt := range []struct {
				limit int
				want  error
			}{{n - 1, ErrDecompressedTooLarge}, {n, nil}, {n + 1, nil}} {
				d := &decompressor{limit: tt.limit}
				for range 2 { // with a buffer that is there, too
					got, err := d.decompress(c, section)
					if !errors.Is(err, tt.want) || tt.want == nil && (err != nil || len(got) != n) {
						t.Errorf("%d bytes with a limit of %d: %d, %v", n, tt.limit, len(got), err)
					}
				}
			}
		}
	})
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client()
		defer f.stop(c)
		for _, n := range []int{0, -1, 1 << 40} {
			if _, err := c.Consumer(t.Context(), "orders", MaxDecompressedBytes(n)); err == nil {
				t.Errorf("a bound of %d is accepted", n)
			}
		}
	})
}

// A buffer that one large batch needed is not kept for small ones.
func TestLargeOpenedBufferIsGivenBack(t *testing.T) {
	d := &decompressor{limit: 64 << 20}
	large := compressed(t, codec.CompressionZstd, make([]byte, 32<<20))
	small := compressed(t, codec.CompressionZstd, make([]byte, 1000))
	for range 3 {
		if _, err := d.decompress(codec.CompressionZstd, large); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if _, err := d.decompress(codec.CompressionZstd, small); err != nil {
			t.Fatal(err)
		}
	}
	if cap(d.buf) > keptOpenedBytes {
		t.Errorf("a buffer of %d bytes is kept", cap(d.buf))
	}
}

// Batches that are broken inside are told and passed over; what was left inside of one comes again.
func TestBrokenBatches(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		broken := buildBatch(t, "x", "y", "z")
		broken[len(broken)-3] = 0x7f // the length of the last value
		f.put(0, "a")
		f.mu.Lock()
		f.appendLocked(0, codec.Batch(refinish(broken, codec.CompressionNone)))
		f.mu.Unlock()
		f.put(0, "b")
		c := f.client()
		defer f.stop(c)
		co := newConsumer(t, c)
		var got []string
		for r, err := range co.Records(t.Context()) {
			var be *BatchError
			switch {
			case errors.As(err, &be):
				got = append(got, fmt.Sprint("broken ", be.Base, " ", be.Next, " ", errors.Is(err, codec.CodeBadBatch)))
			case err != nil:
				t.Fatal(err)
			default:
				got = append(got, string(r.Value))
			}
			if len(got) == 5 {
				break
			}
		}
		if want := []string{"a", "x", "y", "broken 1 4 true", "b"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func FuzzDecompress(f *testing.F) {
	raw, err := os.ReadFile(filepath.Join("testdata", "compressed", "records"))
	if err != nil {
		f.Fatal(err)
	}
	good := map[codec.Compression][]byte{}
	for _, c := range allCompressions {
		good[c] = compressed(f, c, raw)
		f.Add(byte(c), good[c])
	}
	const limit = 256 << 10
	f.Fuzz(func(t *testing.T, number byte, section []byte) {
		c := codec.Compression(number % 5)
		d := &decompressor{limit: limit}
		for range 2 { // the same from a used decompressor
			got, err := d.decompress(c, section)
			switch {
			case err == nil && len(got) > limit:
				t.Fatalf("%d bytes are above the limit", len(got))
			case err != nil && !errors.Is(err, codec.CodeBadBatch) && !errors.Is(err, ErrDecompressedTooLarge):
				t.Fatalf("the error is %v", err)
			}
			if most := max(limit, 2*zstdWindowBytes); cap(d.buf) > most+1 {
				t.Fatalf("a buffer of %d bytes", cap(d.buf))
			}
			if c == codec.CompressionNone {
				return
			}
			fresh, again := (&decompressor{limit: limit}).decompress(c, section)
			if (err == nil) != (again == nil) || !bytes.Equal(got, fresh) {
				t.Fatalf("%d bytes, %v, and another time %d bytes, %v", len(got), err, len(fresh), again)
			}
			if back, err := d.decompress(c, good[c]); err != nil || !bytes.Equal(back, raw) {
				t.Fatalf("good data afterwards: %d bytes, %v", len(back), err)
			}
		}
	})
}
