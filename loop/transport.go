package loop

import "net"

// A transport is one connection as its session sees it. Every method is called on the connection's loop only, and
// none of them blocks. Implementations: gnetTransport (sockets, epoll or kqueue) and netTransport (any net.Conn).
// Both pass the conformance tests in transport_test.go.
type transport interface {
	// Peek returns the received bytes that nobody has consumed, without copying. They are valid until the next call
	// on this transport or until the handler's method returns, whichever comes first. Empty: nothing for now.
	Peek() []byte

	// Discard consumes n bytes of what Peek returned. Discard(0) consumes nothing.
	Discard(n int)

	// ReadInto consumes bytes into p: first those that Peek would return, then, where the transport can, straight
	// from the socket. It returns how many it got; fewer than len(p) means that there are no more for now and
	// that handler.readable will be called when there are. An error of the socket is told by handler.closed, never here.
	ReadInto(p []byte) int

	// Writev hands bytes to the kernel (or to the bounded buffer of a net.Conn's writer) and returns how many it
	// took. It never modifies iov or the slices in it, never keeps them, and splits iov at the kernel's limit of
	// 1024 by itself. Fewer than all means that handler.writable is called once there is room again. After an error
	// the caller calls Close; handler.closed is never called from within Writev.
	Writev(iov [][]byte) (n int, err error)

	// Pause stops reading: from now until Resume no byte is taken from the peer, beyond one read that is already
	// buffered here and that stays here, and handler.readable is not called. It takes effect when the handler's
	// method returns. Writev, writable and the notice of a dead peer go on working. Pausing twice is pausing once.
	// Where the system has no descriptor left for it, the connection is closed with that error instead.
	Pause()

	// Resume undoes Pause; handler.readable is called, from the loop and not from within Resume, if bytes wait.
	Resume()

	// CloseWrite tells the peer that no more bytes come, behind those that Writev has taken; reading goes on. Where the
	// connection has no half-close it does nothing.
	CloseWrite()

	// Close closes the connection without waiting for what the peer has not read, and makes handler.closed(err) the last call of the handler:
	// at once if called outside the handler's methods, else when the method returns. Closing twice is closing once.
	Close(err error)

	// Loop returns the loop on which this connection lives.
	Loop() *Loop

	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// A handler is called on the connection's loop, one call at a time, never re-entrantly.
type handler interface {
	// readable says that bytes may be had. It is called once per read of the transport, not again for bytes left
	// unconsumed: those are only offered together with newer ones, or after Resume.
	readable()

	// writable says that a Writev which took too little may be tried again. It may be called without cause.
	writable()

	// closed is the last call. err is nil for a Close(nil), io.EOF when the peer closed or half-closed.
	closed(err error)
}

// A Loop runs the events of its connections one after the other on one goroutine. The exported methods may be called
// from any goroutine.
type Loop struct {
	ring  func() // wakes the loop's goroutine, which calls onRing; set by the reactor
	stall func() // like ring, but lets I/O that is ready go first; set by the reactor

	// onRing runs on the loop after Ring. Set once by whoever made the reactor, before the first connection.
	onRing func(*Loop)

	// state belongs to the server built on the reactor and is touched on the loop only.
	state any
}

// Ring makes the loop call onRing soon. Rings that come before onRing begins are one ring. It never blocks and costs
// at most one system call.
func (l *Loop) Ring() { l.ring() }

// RingLater is Ring for work that yields: I/O that is ready on the loop is served first, so that a loop which rings
// itself again and again still reads and writes.
func (l *Loop) RingLater() { l.stall() }

// A reactor serves connections on loops.
type reactor interface {
	// Attach makes conn one of the reactor's connections and owns it from then on, also after an error. open is
	// called on the connection's loop, with a transport on which every method may be used; the handler it
	// returns gets all events. Attach returns when open has returned.
	Attach(conn net.Conn, open func(transport) handler) error

	// Stop closes every connection (handler.closed with ErrStopped) and returns when no loop runs any more.
	Stop()
}
