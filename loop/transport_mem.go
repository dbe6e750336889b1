package loop

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/lightio/lightq/internal/invariant"
)

// memReactor serves connections in memory (see InProcess). Each has a Loop of its own on one goroutine, which works on the two
// buffers of the connection directly: bytes are copied once on each side, as they would be by the kernel.
type memReactor struct {
	onRing  func(*Loop)
	running sync.WaitGroup

	mu         sync.Mutex
	stopped    bool
	transports map[*memTransport]struct{}
}

var (
	_ reactor   = (*memReactor)(nil)
	_ transport = (*memTransport)(nil)
)

func newMemReactor(onRing func(*Loop)) *memReactor {
	return &memReactor{onRing: onRing, transports: map[*memTransport]struct{}{}}
}

var errNotMem = errors.New("not a connection in memory")

// Attach implements reactor. An error means that open has not been called.
func (r *memReactor) Attach(conn net.Conn, open func(transport) handler) error {
	c, ok := conn.(*memConn)
	if !ok {
		_ = conn.Close()
		return errNotMem
	}
	t := &memTransport{reactor: r, conn: c, awake: make(chan struct{}, 1)}
	t.loop = Loop{ring: t.ring, stall: t.ring, onRing: r.onRing}
	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		_ = conn.Close()
		return ErrStopped
	}
	r.transports[t] = struct{}{}
	r.running.Add(1)
	r.mu.Unlock()
	opened := make(chan struct{})
	go t.run(open, opened)
	<-opened
	return nil
}

// Stop implements reactor. It must not be called from a loop.
func (r *memReactor) Stop() {
	r.mu.Lock()
	r.stopped = true
	for t := range r.transports {
		t.signal(memStopping)
	}
	r.mu.Unlock()
	r.running.Wait()
}

// What a memTransport's goroutine is to look at.
const (
	memBytes    = 1 << iota // bytes came, or the end
	memRoom                 // there is room after a short write, or the peer has gone
	memRing                 // onRing is due
	memStopping             // the reactor stops
)

// A memTransport is the broker's end of a connection in memory. Its goroutine, started by Attach, ends when it is closed.
type memTransport struct {
	// immutable
	reactor *memReactor
	conn    *memConn
	loop    Loop
	awake   chan struct{} // capacity 1: signals are set

	signals atomic.Uint32

	// the loop's
	handler  handler
	closeErr error
	inside   bool // a method of handler is running
	closing  bool // Close was called
	closed   bool
	paused   bool
	shown    int // while paused: bytes that may still be had, those that were there at Pause
	consumed int // by Discard and ReadInto within one readable
}

func (t *memTransport) signal(bit uint32) {
	t.signals.Or(bit)
	select {
	case t.awake <- struct{}{}:
	default:
	}
}

func (t *memTransport) ring() { t.signal(memRing) }

// run is the loop's goroutine.
func (t *memTransport) run(open func(transport) handler, opened chan<- struct{}) {
	defer t.reactor.running.Done()
	in, out := t.conn.in, t.conn.out
	in.mu.Lock()
	in.onBytes = func() { t.signal(memBytes) }
	in.mu.Unlock()
	out.mu.Lock()
	out.onRoom = func() { t.signal(memRoom) }
	out.mu.Unlock()
	t.signal(memBytes) // what came before
	t.inside = true
	t.handler = open(t)
	t.inside = false
	close(opened)
	for !t.closing {
		<-t.awake
		t.serve(t.signals.Swap(0))
	}
	t.finish()
}

// finish is the end of the connection. What Writev has taken stays for the peer to read.
func (t *memTransport) finish() {
	if t.closed {
		return
	}
	t.closed = true
	_ = t.conn.Close()
	t.reactor.mu.Lock()
	delete(t.reactor.transports, t)
	t.reactor.mu.Unlock()
	if t.handler != nil {
		t.handler.closed(t.closeErr)
	}
}

// serve does all that is due: first I/O, then the ring.
func (t *memTransport) serve(signals uint32) {
	if signals&memStopping != 0 {
		t.closing, t.closeErr = true, ErrStopped
		return
	}
	if signals&memBytes != 0 {
		t.bytes()
	}
	if signals&memRoom != 0 {
		t.call(handler.writable)
		out := t.conn.out
		out.mu.Lock()
		gone := out.gone
		out.mu.Unlock()
		if gone { // nobody reads any more; what the peer sent before is offered first
			t.bytes()
		}
	}
	if signals&memRing != 0 && !t.closing && t.loop.onRing != nil {
		t.loop.onRing(&t.loop)
	}
}

// bytes offers what has come, and sees the end. While paused it does nothing: Resume looks again.
func (t *memTransport) bytes() {
	for !t.closing && !t.paused {
		over := t.over()
		offered := len(t.Peek())
		if offered > 0 {
			t.consumed = 0
			t.call(handler.readable)
			if t.consumed >= offered {
				continue // what lies behind the end of the ring, or came meanwhile
			}
		}
		if over && !t.closing && !t.paused {
			t.closing, t.closeErr = true, io.EOF
		}
		return
	}
}

// over reports whether the peer has written its last byte.
func (t *memTransport) over() bool {
	t.conn.in.mu.Lock()
	defer t.conn.in.mu.Unlock()
	return t.conn.in.ended
}

// call runs one method of the handler, unless it has closed the transport.
func (t *memTransport) call(method func(handler)) {
	if t.closing || t.handler == nil {
		return
	}
	t.inside = true
	method(t.handler)
	t.inside = false
}

func (t *memTransport) Peek() []byte {
	if t.closing {
		return nil
	}
	in := t.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.count == 0 {
		return nil
	}
	b := in.front()
	b = b[:min(len(b), readBufferBytes)] // as much as a socket would give at once
	if t.paused {
		b = b[:min(len(b), t.shown)]
	}
	return b
}

func (t *memTransport) Discard(n int) {
	if n == 0 || t.closing {
		return
	}
	in := t.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if n < 0 || n > in.count {
		invariant.Bug("discard of %d bytes, %d are buffered", n, in.count)
	}
	in.drop(n)
	t.took(n)
}

// took counts n consumed bytes.
func (t *memTransport) took(n int) {
	t.consumed += n
	t.shown -= min(n, t.shown)
}

func (t *memTransport) ReadInto(p []byte) int {
	if t.closing {
		return 0
	}
	in := t.conn.in
	in.mu.Lock()
	defer in.mu.Unlock()
	if t.paused {
		p = p[:min(len(p), t.shown)]
	}
	n := in.takeInto(p)
	t.took(n)
	return n
}

func (t *memTransport) Writev(iov [][]byte) (int, error) {
	if t.closing {
		return 0, net.ErrClosed
	}
	return t.conn.out.tryWritev(iov)
}

func (t *memTransport) Pause() {
	if !t.paused {
		t.paused = true
		t.conn.in.mu.Lock()
		t.shown = t.conn.in.count
		t.conn.in.mu.Unlock()
	}
}

func (t *memTransport) Resume() {
	if t.paused {
		t.paused = false
		t.signal(memBytes)
	}
}

func (t *memTransport) CloseWrite() { t.conn.out.end() }

func (t *memTransport) Close(err error) {
	if t.closing {
		return
	}
	t.closing, t.closeErr = true, err
	if !t.inside {
		t.finish()
	}
}

func (t *memTransport) Loop() *Loop          { return &t.loop }
func (t *memTransport) LocalAddr() net.Addr  { return memAddr{} }
func (t *memTransport) RemoteAddr() net.Addr { return memAddr{} }
