package loop

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lightio/lightq/internal/invariant"
)

const (
	// defaultNetBufferBytes bounds what a netTransport holds in each direction.
	defaultNetBufferBytes = 64 << 10

	// firstReadBytes is the read buffer of a connection that has not shown that it needs more: an idle subscriber
	// sends only acks.
	firstReadBytes = 4 << 10

	// lingerTime is how long the writer of a closed connection may go on writing what Writev took before the close,
	// as the kernel does for a socket. Without it a last error frame would be lost.
	lingerTime = time.Second
)

// netOptions configures newNetReactor.
type netOptions struct {
	// BufferBytes bounds what is held of each connection in each direction. 0 means 64 KiB.
	BufferBytes int

	// onRing runs on a loop after Loop.Ring. nil means nothing.
	onRing func(*Loop)
}

// netReactor serves any net.Conn (in-process pipes, TLS). Each connection has a Loop of its own and three goroutines:
// the loop, a reader and a writer, since a net.Conn can only be read and written by waiting for it.
type netReactor struct {
	bufferBytes int
	onRing      func(*Loop)

	// outPool holds output buffers (*[]byte of bufferBytes), so that an idle connection has none.
	outPool sync.Pool

	running sync.WaitGroup // all goroutines

	mu         sync.Mutex
	stopped    bool
	transports map[*netTransport]struct{} // whose net.Conn is not yet closed
}

var (
	_ reactor   = (*netReactor)(nil)
	_ transport = (*netTransport)(nil)
)

// newNetReactor returns a reactor without connections. It starts nothing by itself; Stop it all the same.
func newNetReactor(opts netOptions) reactor {
	r := &netReactor{
		bufferBytes: opts.BufferBytes,
		onRing:      opts.onRing,
		transports:  make(map[*netTransport]struct{}),
	}
	if r.bufferBytes <= 0 {
		r.bufferBytes = defaultNetBufferBytes
	}
	r.outPool.New = func() any {
		b := make([]byte, r.bufferBytes)
		return &b
	}
	return r
}

// Attach implements reactor. An error means that open has not been called.
func (r *netReactor) Attach(conn net.Conn, open func(transport) handler) error {
	t := &netTransport{reactor: r, conn: conn, awake: make(chan struct{}, 1)}
	t.moreToRead.L = &t.mu
	t.moreToWrite.L = &t.mu
	t.loop = Loop{ring: t.ring, stall: t.ring, onRing: r.onRing}

	r.mu.Lock()
	if r.stopped {
		r.mu.Unlock()
		_ = conn.Close()
		return ErrStopped
	}
	r.transports[t] = struct{}{}
	r.running.Add(3)
	r.mu.Unlock()

	opened := make(chan struct{})
	go t.run(open, opened)
	<-opened
	return nil
}

// Stop implements reactor. It must not be called from a loop.
func (r *netReactor) Stop() {
	r.mu.Lock()
	r.stopped = true
	for t := range r.transports {
		t.mu.Lock()
		t.stopping = true
		t.mu.Unlock()
		abort(t.conn)
		t.wake()
	}
	r.mu.Unlock()
	r.running.Wait()
}

// abort closes conn now: TLS would first try, for seconds, to tell the peer.
func abort(conn net.Conn) {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		_ = c.NetConn().Close()
	}
	_ = conn.Close()
}

// A netTransport is one net.Conn with its loop.
//
//	reader ── chunk ──► loop: pending ──► handler
//	   ▲                  │
//	   └───── free ───────┘       handler ──► out (a ring of bytes) ──► writer
//
// The reader reads ahead by one buffer: while the loop works on pending, the next chunk is read, and then the reader
// waits until the loop has taken it. While paused the loop takes none, so at most that one chunk is read; until it is
// there, the reader also sees when the peer is gone (behind it, only a write does).
type netTransport struct {
	// Immutable.
	reactor *netReactor
	conn    net.Conn
	loop    Loop
	awake   chan struct{} // capacity 1: the loop has something to look at

	rung atomic.Bool // onRing is due

	// The loop's.
	handler  handler
	pending  []byte // received and not consumed, a part of base
	base     []byte
	closeErr error
	inside   bool // a method of handler is running
	closing  bool // Close was called
	closed   bool
	offer    bool // pending holds bytes of which readable has not told

	// Shared. The reader waits for moreToRead, the writer for moreToWrite.
	mu          sync.Mutex
	moreToRead  sync.Cond
	moreToWrite sync.Cond
	chunk       []byte // read, not yet taken; nil: none
	free        []byte // for the reader to read into next
	readErr     error
	paused      bool
	out         *[]byte // nil: empty
	outStart    int     // where in out the oldest byte is
	outCount    int     // bytes in out
	blocked     bool    // a Writev took too little
	shut        bool    // CloseWrite was called and is to be carried out
	room        bool    // writable is due
	writeErr    error
	done        bool // closed: reader and writer end
	stopping    bool
}

// wake makes the loop look at everything once more. It never blocks.
func (t *netTransport) wake() {
	select {
	case t.awake <- struct{}{}:
	default:
	}
}

// ring is Loop.Ring and Loop.RingLater: the loop looks at its I/O before each call of onRing.
func (t *netTransport) ring() {
	t.rung.Store(true)
	t.wake()
}

// run is the loop's goroutine.
func (t *netTransport) run(open func(transport) handler, opened chan<- struct{}) {
	defer t.reactor.running.Done()
	t.inside = true
	t.handler = open(t)
	t.inside = false
	close(opened)
	readerDone := make(chan struct{})
	go t.read(readerDone)
	go t.write(readerDone)
	for {
		if t.closing {
			if !t.closed {
				t.finish()
			}
			return
		}
		<-t.awake
		t.serve()
	}
}

// serve does all that is due: first I/O, then the ring.
func (t *netTransport) serve() {
	t.mu.Lock()
	if t.stopping {
		t.mu.Unlock()
		t.Close(ErrStopped)
		return
	}
	if t.chunk != nil && !t.paused {
		t.take()
		t.offer = true
	}
	offer := t.offer && !t.paused
	room := t.room
	t.room = false
	t.mu.Unlock()

	if offer {
		t.offer = false
		if len(t.pending) > 0 {
			t.call(handler.readable)
		}
	}
	if room {
		t.call(handler.writable)
	}
	if err := t.broken(); err != nil {
		t.Close(err)
	}
	if !t.closing && t.rung.Swap(false) && t.loop.onRing != nil {
		t.loop.onRing(&t.loop)
	}
}

// call runs one method of the handler, unless it has closed the transport.
func (t *netTransport) call(method func(handler)) {
	if t.closing || t.handler == nil {
		return
	}
	t.inside = true
	method(t.handler)
	t.inside = false
}

// broken returns why the connection is at its end, once all that came before has been offered.
func (t *netTransport) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	orderly := errors.Is(t.readErr, io.EOF)
	switch {
	case t.stopping:
		return ErrStopped // whatever else Stop has broken
	case t.readErr != nil && !orderly:
		return t.readErr
	case orderly && !t.paused && t.chunk == nil && !t.offer:
		return io.EOF
	case t.writeErr == nil:
		return nil
	case errors.Is(t.writeErr, io.ErrClosedPipe) || errors.Is(t.writeErr, syscall.EPIPE):
		return io.EOF // the peer has closed, and the reader did not see it first
	default:
		return t.writeErr
	}
}

// take moves chunk to pending. t.mu is held.
func (t *netTransport) take() {
	chunk := t.chunk
	t.chunk = nil
	if len(t.pending) == 0 {
		t.free, t.base, t.pending = t.base, chunk, chunk
	} else {
		// Into new memory: what Peek returned may still be in use.
		t.pending = append(slices.Clip(t.pending), chunk...)
		t.free, t.base = chunk, t.pending
	}
	t.moreToRead.Signal()
}

// finish ends the loop. The writer closes the net.Conn, since that may take a while.
func (t *netTransport) finish() {
	t.mu.Lock()
	t.done = true
	linger := t.outCount > 0 && !t.stopping && t.writeErr == nil
	t.moreToRead.Signal()
	t.moreToWrite.Signal()
	t.mu.Unlock()
	if linger {
		_ = t.conn.SetWriteDeadline(time.Now().Add(lingerTime))
	}
	t.closed = true
	t.pending, t.base = nil, nil
	if t.handler != nil {
		t.handler.closed(t.closeErr)
	}
}

// read is the reader's goroutine.
func (t *netTransport) read(done chan<- struct{}) {
	defer t.reactor.running.Done()
	defer close(done)
	bufferBytes := min(firstReadBytes, t.reactor.bufferBytes)
	buf := make([]byte, bufferBytes)
	for {
		n, err := t.conn.Read(buf)
		t.mu.Lock()
		if n > 0 {
			t.chunk = buf[:n]
		}
		t.readErr = err
		t.wake()
		for err == nil && !t.done && t.chunk != nil {
			t.moreToRead.Wait()
		}
		if t.done || err != nil {
			t.mu.Unlock()
			return
		}
		if n == bufferBytes {
			bufferBytes = min(4*bufferBytes, t.reactor.bufferBytes)
		}
		buf, t.free = t.free, nil
		t.mu.Unlock()
		if cap(buf) < bufferBytes {
			buf = make([]byte, bufferBytes)
		}
		buf = buf[:bufferBytes]
	}
}

// write is the writer's goroutine. It closes the net.Conn.
func (t *netTransport) write(readerDone <-chan struct{}) {
	defer t.reactor.running.Done()
	t.mu.Lock()
	for {
		for !t.done && (t.outCount == 0 || t.writeErr != nil) {
			if t.shut && t.writeErr == nil {
				t.shut = false
				if c, ok := t.conn.(interface{ CloseWrite() error }); ok {
					t.mu.Unlock()
					err := c.CloseWrite()
					t.mu.Lock()
					t.writeErr = err
					continue
				}
			}
			t.moreToWrite.Wait()
		}
		if t.outCount == 0 || t.writeErr != nil || t.stopping {
			break // done
		}
		ring := *t.out
		oldest := ring[t.outStart:min(t.outStart+t.outCount, len(ring))]
		t.mu.Unlock()
		n, err := t.conn.Write(oldest) // Writev fills other parts of the ring only
		t.mu.Lock()
		t.outStart = (t.outStart + n) % len(ring)
		t.outCount -= n
		t.writeErr = err
		if t.outCount == 0 {
			t.dropOut()
		}
		if t.blocked && err == nil {
			t.blocked = false
			t.room = true
		}
		if t.room || err != nil {
			t.wake()
		}
	}
	t.dropOut()
	t.mu.Unlock()

	_ = t.conn.Close()
	<-readerDone
	t.reactor.mu.Lock()
	delete(t.reactor.transports, t)
	t.reactor.mu.Unlock()
}

// dropOut gives the output buffer back. t.mu is held.
func (t *netTransport) dropOut() {
	if t.out != nil {
		t.reactor.outPool.Put(t.out)
		t.out = nil
	}
	t.outStart, t.outCount = 0, 0
}

func (t *netTransport) Peek() []byte {
	if t.closing {
		return nil
	}
	return t.pending
}

func (t *netTransport) Discard(n int) {
	if n == 0 || t.closing {
		return
	}
	if n < 0 || n > len(t.pending) {
		invariant.Bug("discard of %d bytes, %d are buffered", n, len(t.pending))
	}
	t.pending = t.pending[n:]
}

func (t *netTransport) ReadInto(p []byte) int {
	if t.closing {
		return 0
	}
	n := copy(p, t.pending)
	t.pending = t.pending[n:]
	if n == len(p) {
		return n
	}
	t.mu.Lock()
	took := t.chunk != nil && !t.paused
	if took {
		t.take()
	}
	t.mu.Unlock()
	if took {
		m := copy(p[n:], t.pending)
		n += m
		t.pending = t.pending[m:]
		if len(t.pending) > 0 {
			// readable has not told of the rest.
			t.offer = true
			t.wake()
		}
	}
	return n
}

func (t *netTransport) Writev(iov [][]byte) (int, error) {
	if t.closing {
		return 0, net.ErrClosed
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writeErr != nil {
		return 0, t.writeErr
	}
	total := 0
	for _, b := range iov {
		if len(b) == 0 {
			continue
		}
		n := t.put(b)
		total += n
		if n < len(b) {
			t.blocked = true
			break
		}
	}
	if total > 0 {
		t.moreToWrite.Signal()
	}
	return total, nil
}

// put copies as much of b as there is room for. t.mu is held.
func (t *netTransport) put(b []byte) int {
	if t.out == nil {
		t.out = t.reactor.outPool.Get().(*[]byte)
	}
	ring := *t.out
	total := 0
	for len(b) > 0 && t.outCount < len(ring) {
		end := (t.outStart + t.outCount) % len(ring)
		limit := len(ring)
		if end < t.outStart {
			limit = t.outStart
		}
		n := copy(ring[end:limit], b)
		b = b[n:]
		t.outCount += n
		total += n
	}
	return total
}

func (t *netTransport) CloseWrite() {
	t.mu.Lock()
	t.shut = true
	t.moreToWrite.Signal()
	t.mu.Unlock()
}

func (t *netTransport) Pause() {
	if t.closing {
		return
	}
	t.mu.Lock()
	t.paused = true
	t.mu.Unlock()
}

func (t *netTransport) Resume() {
	if t.closing {
		return
	}
	t.mu.Lock()
	if t.paused {
		t.paused = false
		t.offer = t.offer || len(t.pending) > 0
		t.wake()
	}
	t.mu.Unlock()
}

func (t *netTransport) Close(err error) {
	if t.closing {
		return
	}
	t.closing = true
	t.closeErr = err
	if !t.inside {
		t.finish() // else run does, when the handler's method has returned
	}
}

func (t *netTransport) Loop() *Loop          { return &t.loop }
func (t *netTransport) LocalAddr() net.Addr  { return t.conn.LocalAddr() }
func (t *netTransport) RemoteAddr() net.Addr { return t.conn.RemoteAddr() }
