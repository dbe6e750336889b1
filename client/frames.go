package client

import (
	"bytes"
	"io"

	"github.com/lightio/lightq/codec"
)

// A frameReader cuts frames out of a stream, in one buffer that it uses again and again. One goroutine at a time.
type frameReader struct {
	src io.Reader
	max int // largest whole frame in bytes that is accepted

	// target is the size in bytes up to which the buffer doubles when one read fills it. Frames above it make the
	// buffer grow too, but only as their bytes arrive: a length that is merely announced costs nothing.
	target int

	buf  []byte
	r, w int // the unread bytes are buf[r:w]
}

// next returns the next frame: its fixed header, its header section and its payload. Both slices are views of the
// buffer, valid until the next call. After an error of src, nothing is lost: the call may be repeated.
func (f *frameReader) next() (h codec.Header, header, payload []byte, err error) {
	for {
		have := f.buf[f.r:f.w]
		if len(have) >= codec.HeaderBytes {
			h, err = codec.ParseHeader(have, f.max)
			if err != nil {
				return h, nil, nil, err
			}
			if n := h.FrameBytes(); len(have) >= n {
				f.r += n
				split := codec.HeaderBytes + int(h.HeaderSize)
				return h, have[codec.HeaderBytes:split:split], have[split:n:n], nil
			}
		}
		if err := f.fill(); err != nil {
			return h, nil, nil, err
		}
	}
}

// fill reads once, behind the unread bytes, which it moves to the front of the buffer: they are less than a frame, and
// moving them is cheaper than short reads are.
func (f *frameReader) fill() error {
	full := f.w == len(f.buf)
	if f.r > 0 {
		f.w = copy(f.buf, f.buf[f.r:f.w])
		f.r = 0
	}
	if full && (f.w == len(f.buf) || len(f.buf) < f.target) {
		// ParseHeader has bounded the frame by max, and the buffer is full of its bytes.
		f.buf = append(make([]byte, 0, 2*len(f.buf)), f.buf[:f.w]...)
		f.buf = f.buf[:cap(f.buf)]
	}
	n, err := f.src.Read(f.buf[f.w:])
	f.w += n
	if n > 0 {
		return nil // an error that came along comes again
	}
	return err
}

// putBack makes frames that were put aside come again, before what is in the buffer.
func (f *frameReader) putBack(frames []byte) {
	if len(frames) == 0 {
		return
	}
	frames = append(frames, f.buf[f.r:f.w]...)
	f.r, f.w = 0, 0
	f.src = &putBackReader{head: bytes.NewReader(frames), tail: f.src}
}

// drop forgets what was read and not returned: what comes next is an error of the source.
func (f *frameReader) drop() {
	f.r, f.w = 0, 0
	for {
		p, ok := f.src.(*putBackReader)
		if !ok {
			return
		}
		f.src = p.tail
	}
}

// A putBackReader reads what was put back, then the source.
type putBackReader struct {
	head *bytes.Reader
	tail io.Reader
}

func (r *putBackReader) Read(p []byte) (int, error) {
	if r.head.Len() > 0 {
		return r.head.Read(p)
	}
	return r.tail.Read(p)
}
