package loop

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// An InProcess is a listener without a socket, for a broker in the process of its clients: pass it as Config.Listener and its
// Dial to the client library.
//
//	door := loop.NewInProcess()
//	broker, err := loop.NewBroker(loop.Config{Listener: door})
//	…
//	c, err := client.Dial(ctx, "tcp://in-process:0", client.WithDialer(door.Dial))
type InProcess struct {
	accept chan net.Conn
	once   sync.Once
	closed chan struct{}
}

// NewInProcess returns an open listener.
func NewInProcess() *InProcess {
	return &InProcess{accept: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial connects to the broker. Network and address are ignored. It fails when the listener is closed or ctx ends first.
func (l *InProcess) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	theirs, ours := memPipe()
	select {
	case l.accept <- ours:
		return theirs, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "in-process", Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "in-process", Err: ctx.Err()}
	}
}

// Accept implements net.Listener.
func (l *InProcess) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "in-process", Err: net.ErrClosed}
	}
}

// Close implements net.Listener. Connections stay open.
func (l *InProcess) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *InProcess) Addr() net.Addr { return memAddr{} }

type memAddr struct{}

func (memAddr) Network() string { return "in-process" }
func (memAddr) String() string  { return "in-process" }

const (
	// memBufferBytes bounds what one direction of a connection holds: as much as a socket's buffers would.
	memBufferBytes = 512 << 10
	// firstMemBytes is the buffer of a direction that has not needed more.
	firstMemBytes = 4 << 10
)

// memPipe returns the two ends of a connection in memory. Unlike net.Pipe it has buffers, so that neither side waits for the
// other with every write, and half-close.
func memPipe() (a, b net.Conn) {
	there, back := newMemBuffer(), newMemBuffer()
	return &memConn{in: back, out: there}, &memConn{in: there, out: back}
}

type memConn struct{ in, out *memBuffer }

func (c *memConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *memConn) Write(p []byte) (int, error) { return c.out.write(p) }

// CloseWrite lets the peer read what was written, and then the end.
func (c *memConn) CloseWrite() error {
	c.out.end()
	return nil
}

func (c *memConn) Close() error {
	c.out.end()
	c.in.abandon()
	c.out.closeSelf()
	return nil
}

func (c *memConn) LocalAddr() net.Addr  { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr { return memAddr{} }

func (c *memConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *memConn) SetReadDeadline(t time.Time) error {
	c.in.setDeadline(&c.in.readBy, t)
	return nil
}

func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}

// A memBuffer is one direction: a ring of bytes with a reader and a writer that may wait.
type memBuffer struct {
	mu      sync.Mutex
	changed sync.Cond // broadcast: at most one reader and one writer wait
	ring    []byte
	start   int
	count   int
	ended   bool // the writer has closed its direction
	gone    bool // the reader has closed
	shut    bool // the writer's own end is closed: its writes fail
	small   int  // reads that emptied the buffer since it last held much
	crowded bool // the writer waits until half of the room is free, so that the two do not take turns byte by byte
	readBy  deadline
	writeBy deadline

	// Set where the reader, or the writer, is an event loop that does not wait: called with mu held, must not block.
	onBytes func() // there are bytes where there were none, or the end
	onRoom  func() // there is room again after a write that took too little
}

// tellWriter wakes who waits for a change that the reader makes: there is room, or nobody reads any more. mu is held.
func (b *memBuffer) tellWriter() {
	b.changed.Broadcast()
	if b.onRoom != nil {
		b.onRoom()
	}
}

// tellReader wakes who waits for bytes or the end. mu is held.
func (b *memBuffer) tellReader() {
	b.changed.Broadcast()
	if b.onBytes != nil {
		b.onBytes()
	}
}

// A deadline is a time and the timer that wakes who waits for it.
type deadline struct {
	at    time.Time // zero: none
	timer *time.Timer
}

func (d *deadline) over() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

func newMemBuffer() *memBuffer {
	b := &memBuffer{}
	b.changed.L = &b.mu
	return b
}

func (b *memBuffer) read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	for b.count == 0 {
		switch {
		case b.gone:
			return 0, fmt.Errorf("read in-process: %w", net.ErrClosed)
		case b.ended:
			return 0, io.EOF
		case b.readBy.over():
			return 0, fmt.Errorf("read in-process: %w", os.ErrDeadlineExceeded)
		}
		b.changed.Wait()
	}
	return b.takeInto(p), nil
}

// takeInto moves bytes to p as far as there are any. mu is held.
func (b *memBuffer) takeInto(p []byte) int {
	n := 0
	for n < len(p) && b.count > 0 {
		m := copy(p[n:], b.front())
		n += m
		b.drop(m)
	}
	return n
}

// front returns the oldest bytes, as many as lie in one piece. mu is held; they stay in place until drop, without mu too.
func (b *memBuffer) front() []byte { return b.ring[b.start:min(b.start+b.count, len(b.ring))] }

// drop takes n bytes off the front. mu is held.
func (b *memBuffer) drop(n int) {
	if n == 0 {
		return
	}
	b.count -= n
	b.start += n
	if b.start == len(b.ring) {
		b.start = 0
	}
	if b.count == 0 {
		b.start = 0
		if len(b.ring) > firstMemBytes {
			if b.small++; b.small > 64 {
				b.ring, b.small = nil, 0 // an idle connection keeps no buffer
			}
		}
	}
	if b.crowded && b.count <= memBufferBytes/2 {
		b.crowded = false
		b.tellWriter()
	}
}

func (b *memBuffer) write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for {
		switch {
		case b.shut || b.ended:
			return n, fmt.Errorf("write in-process: %w", net.ErrClosed)
		case b.gone:
			return n, fmt.Errorf("write in-process: %w", io.ErrClosedPipe)
		case b.writeBy.over():
			return n, fmt.Errorf("write in-process: %w", os.ErrDeadlineExceeded)
		}
		if len(p) == 0 {
			return n, nil
		}
		b.crowded = b.crowded || b.count == memBufferBytes
		if b.crowded {
			b.changed.Wait()
			continue
		}
		m := b.put(p)
		p = p[m:]
		n += m
	}
}

// put takes as much of p as there is room for. mu is held.
func (b *memBuffer) put(p []byte) int {
	if b.count+len(p) > len(b.ring) && len(b.ring) < memBufferBytes {
		b.grow(b.count + len(p))
	}
	if b.count+len(p) > firstMemBytes {
		b.small = 0
	}
	empty, n := b.count == 0, 0
	for n < len(p) && b.count < len(b.ring) {
		at := (b.start + b.count) % len(b.ring)
		limit := len(b.ring)
		if at < b.start {
			limit = b.start
		}
		m := copy(b.ring[at:limit], p[n:])
		n += m
		b.count += m
	}
	switch {
	case n == 0:
	case empty:
		b.tellReader()
	case b.onBytes != nil: // a loop may have left the others unconsumed
		b.onBytes()
	}
	return n
}

// tryWritev takes as much of iov as there is room for and does not wait. What does not fit is announced by onRoom.
func (b *memBuffer) tryWritev(iov [][]byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.shut || b.ended:
		return 0, net.ErrClosed
	case b.gone:
		return 0, io.ErrClosedPipe
	}
	total := 0
	for _, p := range iov {
		n := b.put(p)
		total += n
		if n < len(p) {
			b.crowded = true
			break
		}
	}
	return total, nil
}

// grow makes room for need bytes, as far as the bound allows.
func (b *memBuffer) grow(need int) {
	size := max(firstMemBytes, len(b.ring))
	for size < need && size < memBufferBytes {
		size *= 2
	}
	ring := make([]byte, size)
	n := copy(ring, b.ring[b.start:min(b.start+b.count, len(b.ring))])
	copy(ring[n:], b.ring[:b.count-n])
	b.ring, b.start = ring, 0
}

func (b *memBuffer) end() {
	b.mu.Lock()
	b.ended = true
	b.tellReader()
	b.mu.Unlock()
}

func (b *memBuffer) closeSelf() {
	b.mu.Lock()
	b.shut = true
	b.changed.Broadcast()
	b.mu.Unlock()
}

// abandon is the reader's close: what is buffered is thrown away, and writes fail.
func (b *memBuffer) abandon() {
	b.mu.Lock()
	b.gone = true
	b.ring, b.start, b.count = nil, 0, 0
	b.tellWriter()
	b.mu.Unlock()
}

func (b *memBuffer) setDeadline(d *deadline, t time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.at = t
	if !t.IsZero() {
		if wait := time.Until(t); wait > 0 {
			d.timer = time.AfterFunc(wait, func() {
				b.mu.Lock()
				b.changed.Broadcast()
				b.mu.Unlock()
			})
		}
	}
	b.changed.Broadcast()
}
