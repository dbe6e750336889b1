package loop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/internal/invariant"
)

// ErrStopped is what handler.closed gets, and Attach returns, when the reactor has been stopped.
var ErrStopped = errors.New("loop: reactor is stopped")

const (
	// iovMax is the kernel's limit of slices in one writev (UIO_MAXIOV on Linux, IOV_MAX on macOS).
	iovMax = 1024

	// directMax bounds what one event of one connection may read past gnet's buffer, so that a fast sender of large
	// frames does not keep the loop from the other connections: 1 MiB is about 0.2 ms.
	directMax = 1 << 20

	// keepAlive is the idle time before, and the interval between, TCP keepalive probes. A peer whose machine is gone
	// is noticed after five of them.
	keepAlive      = 30 * time.Second
	keepAliveCount = 5

	// defaultReadBufferBytes is the read buffer of each loop, shared by all its connections.
	defaultReadBufferBytes = 64 << 10
)

// gnetOptions configures newGnetReactor.
type gnetOptions struct {
	// Loops is the number of event loops, each one goroutine. Less than 1 means 1.
	Loops int

	// ReadBufferBytes is the size of each loop's read buffer, rounded up to a power of two. 0 means 64 KiB.
	ReadBufferBytes int

	// onRing runs on a loop after Loop.Ring. nil means nothing.
	onRing func(*Loop)

	// Logger gets gnet's own messages: errors at level error, all others at debug. nil discards them.
	Logger *slog.Logger
}

// gnetReactor serves sockets (TCP and Unix-domain) on gnet's event loops. gnet does the polling and the reading; it
// never writes, so that none of our bytes is ever queued inside it: a transport writes to the descriptor by itself,
// and learns from a second poller (readiness) when there is room again.
//
// Goroutines: gnet's, one for each loop; watchRoom, which ends in Stop; and for the time of a Resume one that hands the
// socket back to gnet.
type gnetReactor struct {
	gnet.BuiltinEventEngine

	// Immutable once newGnetReactor has returned.
	client      *gnet.Client
	loops       map[gnet.EventLoop]*gnetLoop
	bufferBytes int
	logger      *slog.Logger
	room        *readiness
	roomDone    chan struct{} // closed when watchRoom has ended

	nextID atomic.Uint64

	// mu guards what follows. inFlight counts the calls that wait for a loop: Stop must not stop the loops before
	// they are through, since gnet drops the tasks of a stopped loop and their callers would wait forever.
	mu       sync.Mutex
	idle     *sync.Cond // inFlight reached 0
	inFlight int
	stopping bool
	stopOnce sync.Once

	// watchedMu guards watched: the transports registered with room, by their key.
	watchedMu sync.Mutex
	watched   map[uint64]*gnetTransport
}

var (
	_ reactor           = (*gnetReactor)(nil)
	_ gnet.EventHandler = (*gnetReactor)(nil)
	_ transport         = (*gnetTransport)(nil)
	_ gnet.Runnable     = (*gnetLoop)(nil)
)

// newGnetReactor starts the event loops. The caller stops them with Stop.
func newGnetReactor(opts gnetOptions) (reactor, error) {
	logger := opts.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	loops := max(opts.Loops, 1)
	bufferBytes := opts.ReadBufferBytes
	if bufferBytes <= 0 {
		bufferBytes = defaultReadBufferBytes
	}

	r := &gnetReactor{
		loops:       make(map[gnet.EventLoop]*gnetLoop, loops),
		bufferBytes: bufferBytes,
		logger:      logger,
		roomDone:    make(chan struct{}),
		watched:     make(map[uint64]*gnetTransport),
	}
	r.idle = sync.NewCond(&r.mu)

	var err error
	// TCP_NODELAY and keepalive are set in Attach and not by gnet, which leaks a descriptor when setsockopt fails.
	// Level-triggered is gnet's default; edge-triggered lets one fast sender starve its loop.
	if r.client, err = gnet.NewClient(r,
		gnet.WithNumEventLoop(loops),
		gnet.WithReadBufferCap(bufferBytes),
		gnet.WithTCPNoDelay(gnet.TCPDelay),
		gnet.WithLogger(gnetLogger{logger}),
	); err != nil {
		return nil, fmt.Errorf("create event loops: %w", err)
	}
	if r.room, err = openReadiness(); err != nil {
		return nil, fmt.Errorf("create poller: %w", err)
	}
	if err = r.client.Start(); err != nil {
		r.room.stop()
		r.room.release()
		return nil, fmt.Errorf("start event loops: %w", err)
	}
	go r.watchRoom()
	for range loops {
		if err = r.addLoop(opts.onRing); err != nil {
			r.Stop()
			return nil, fmt.Errorf("start event loops: %w", err)
		}
	}
	return r, nil
}

// addLoop finds one more of gnet's loops and makes it a Loop. gnet offers no list of its loops, but it gives a new
// connection to the loop that has the fewest; so the alarm pairs, enrolled one after the other, land on one loop each.
func (r *gnetReactor) addLoop(onRing func(*Loop)) error {
	l := &gnetLoop{reactor: r, transports: make(map[*gnetTransport]struct{}), alarmFD: -1}
	l.Loop.ring = func() { l.wanted.Store(true); l.post(wakeRing) }
	l.Loop.stall = l.postLater
	l.Loop.onRing = onRing

	alarmFD, conn, err := alarmPair()
	if err != nil {
		return err
	}
	l.alarmFD = alarmFD
	if _, err = r.client.EnrollContext(conn, l); err != nil {
		_ = unix.Close(alarmFD)
		return err
	}
	if l.el == nil || r.loops[l.el] != nil {
		_ = unix.Close(alarmFD)
		return errors.New("gnet did not give each event loop one of the first connections")
	}
	r.loops[l.el] = l
	return nil
}

// alarmPair returns the two ends of a socket pair: a non-blocking descriptor to write to, and a connection to enroll.
func alarmPair() (int, net.Conn, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return -1, nil, os.NewSyscallError("socketpair", err)
	}
	if err = unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
		return -1, nil, os.NewSyscallError("setnonblock", err)
	}
	file := os.NewFile(uintptr(fds[1]), "alarm")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err == nil && conn.RemoteAddr() == nil {
		_ = conn.Close()
		err = errors.New("socketpair: no peer address")
	}
	if err != nil {
		_ = unix.Close(fds[0])
		return -1, nil, err
	}
	return fds[0], conn, nil
}

// begin says whether a call that waits for a loop may start; if so, end must follow.
func (r *gnetReactor) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopping {
		return false
	}
	r.inFlight++
	return true
}

func (r *gnetReactor) end() {
	r.mu.Lock()
	if r.inFlight--; r.inFlight == 0 {
		r.idle.Broadcast()
	}
	r.mu.Unlock()
}

// Attach implements reactor for *net.TCPConn and *net.UnixConn. An error means that open has not been called. It may
// be called from any goroutine that is not a loop.
func (r *gnetReactor) Attach(conn net.Conn, open func(transport) handler) error {
	if !r.begin() {
		_ = conn.Close()
		return ErrStopped
	}
	defer r.end()

	a := &attachment{open: open, local: copyAddr(conn.LocalAddr()), remote: copyAddr(conn.RemoteAddr())}
	if err := prepareSocket(conn); err != nil {
		_ = conn.Close()
		return fmt.Errorf("attach %v: %w", a.remote, err)
	}
	// EnrollContext works on a duplicate of the descriptor and closes conn in any case.
	if _, err := r.client.EnrollContext(conn, a); err != nil {
		return fmt.Errorf("attach %v: %w", a.remote, err)
	}
	if !a.opened {
		// gnet says nothing when its poller refuses the descriptor (out of memory, or of watches).
		return fmt.Errorf("attach %v: event loop refused the socket", a.remote)
	}
	return nil
}

// prepareSocket sets the socket's options and makes conn fit for gnet.
func prepareSocket(conn net.Conn) error {
	if conn.LocalAddr() == nil || conn.RemoteAddr() == nil {
		return errors.New("socket has no address: the peer is gone") // gnet would panic
	}
	switch c := conn.(type) {
	case *net.TCPConn:
		if err := c.SetNoDelay(true); err != nil {
			return err
		}
		if err := c.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: keepAlive, Interval: keepAlive, Count: keepAliveCount,
		}); err != nil {
			return err
		}
		dropZone(c)
		return nil
	case *net.UnixConn:
		return nil
	default:
		return fmt.Errorf("a %T is not a socket", conn)
	}
}

// dropZone takes the zone (of a link-local IPv6 address) out of conn's addresses. At close gnet puts the memory of the
// zone's string into a pool of byte slices, although it belongs to a cache in package net.
func dropZone(conn net.Conn) {
	for _, addr := range []net.Addr{conn.LocalAddr(), conn.RemoteAddr()} {
		if a, ok := addr.(*net.TCPAddr); ok && a != nil {
			a.Zone = ""
		}
	}
}

// copyAddr copies what gnet changes or recycles.
func copyAddr(addr net.Addr) net.Addr {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return &net.TCPAddr{IP: slices.Clone(a.IP), Port: a.Port, Zone: a.Zone}
	case *net.UnixAddr:
		return &net.UnixAddr{Name: a.Name, Net: a.Net}
	default:
		return addr
	}
}

// Stop implements reactor. It must not be called from a loop. A second call waits for the first.
func (r *gnetReactor) Stop() {
	r.stopOnce.Do(func() {
		r.mu.Lock()
		r.stopping = true
		for r.inFlight > 0 {
			r.idle.Wait()
		}
		r.mu.Unlock()

		// From here on no connection is added and none is handed back to gnet, so this closes all.
		var closing sync.WaitGroup
		for el, l := range r.loops {
			closing.Add(1)
			if err := el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
				defer closing.Done()
				for t := range l.transports {
					t.Close(ErrStopped)
				}
				return nil
			})); err != nil {
				r.logger.Error("event loop cannot be woken", "err", err)
				closing.Done()
			}
		}
		closing.Wait()

		// gnet closes a loop's wake descriptor before it refuses to write to it: a ring at that moment would write
		// into whatever file has got the number. So the gates are shut first.
		for _, l := range r.loops {
			l.gate.Lock()
			l.stopped = true
			l.gate.Unlock()
		}
		if err := r.client.Stop(); err != nil {
			r.logger.Error("event loops stopped with an error", "err", err)
		}
		for _, l := range r.loops {
			_ = unix.Close(l.alarmFD)
		}
		r.room.stop()
		<-r.roomDone
	})
}

// An attachment is the context of a connection that gnet is about to open for the first time.
type attachment struct {
	open          func(transport) handler
	local, remote net.Addr
	opened        bool // the loop's, until gnet has told that the connection is open
}

// A reattachment is the context of a connection that gnet is about to open again after a pause.
type reattachment struct {
	t      *gnetTransport
	opened bool // as in attachment
}

// OnOpen implements gnet.EventHandler; it runs on c's loop.
func (r *gnetReactor) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	switch v := c.Context().(type) {
	case *gnetLoop:
		v.el = c.EventLoop()
		return nil, gnet.None
	case *attachment:
		l := r.loops[c.EventLoop()]
		t := &gnetTransport{
			loop: l, id: r.nextID.Add(1), local: v.local, remote: v.remote, conn: c, fd: c.Fd(),
		}
		c.SetContext(t)
		l.transports[t] = struct{}{}
		v.opened = true
		t.inside = true
		t.handler = v.open(t)
		t.inside = false
		return nil, t.settle(c)
	case *reattachment:
		v.opened = true
		return nil, v.t.reopened(c)
	default:
		invariant.Bug("gnet opened a connection with context %T", v)
		return nil, gnet.Close
	}
}

// OnTraffic implements gnet.EventHandler; it runs on c's loop.
func (r *gnetReactor) OnTraffic(c gnet.Conn) gnet.Action {
	switch v := c.Context().(type) {
	case *gnetTransport:
		v.loop.event++
		v.drained = c.InboundBuffered() < r.bufferBytes
		v.call(handler.readable)
		v.drained = false
		return v.settle(c)
	case *gnetLoop:
		_, _ = c.Discard(-1)
		v.alarmed()
	}
	return gnet.None
}

// OnClose implements gnet.EventHandler; it runs on c's loop, before gnet closes the descriptor.
func (r *gnetReactor) OnClose(c gnet.Conn, err error) gnet.Action {
	t, ok := c.Context().(*gnetTransport)
	if !ok || t.conn != c {
		return gnet.None // a loop's alarm, or a connection that lives on without gnet
	}
	if t.closing {
		err = t.closeErr
	} else {
		err = t.cause(err)
	}
	t.finish(err)
	return gnet.None
}

// watchRoom tells transports that their sockets have room, or that the peer of a paused one is gone.
func (r *gnetReactor) watchRoom() {
	defer close(r.roomDone)
	defer r.room.release()
	keys := make([]uint64, 128)
	for {
		n, err := r.room.wait(keys)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			// The poller is broken: without it a blocked connection would hang for good.
			invariant.Bug("poller of writability: %v", err)
		}
		for _, key := range keys[:n] {
			r.watchedMu.Lock()
			t := r.watched[key]
			r.watchedMu.Unlock()
			if t != nil { // else it was closed meanwhile
				t.loop.signal(t, signalRoom)
			}
		}
	}
}

// alarm is the byte that postLater sends.
var alarm = []byte{1}

// What a loop's goroutine has been woken for.
const (
	wakeRing  uint32 = 1 << iota // onRing
	wakeReady                    // transports in gnetLoop.ready
)

// A gnetLoop is one of gnet's event loops.
type gnetLoop struct {
	Loop

	// Immutable once the loop has opened its alarm.
	reactor *gnetReactor
	el      gnet.EventLoop
	alarmFD int // our end of the alarm pair

	// The loop's.
	transports map[*gnetTransport]struct{}
	event      uint64 // counts the events, so that each has its own budget of direct reads
	iovecs     iovecs
	spare      []*gnetTransport // the other one of two arrays, see ready

	// Shared. wanted says that onRing is due, posted and later that the goroutine will be woken, by which of the two
	// ways: a flag is cleared before its work begins, so whoever sets it afterwards wakes the goroutine again.
	wanted atomic.Bool
	posted atomic.Uint32
	later  atomic.Bool

	// gate is held while something wakes the goroutine, and guards stopped.
	gate    sync.RWMutex
	stopped bool

	// readyMu guards ready: transports with a signal. Each is in it at most once.
	readyMu sync.Mutex
	ready   []*gnetTransport
}

// post wakes the goroutine through gnet's task queue. gnet drains that queue until it is empty before it looks at I/O
// again, so this is not for work that posts itself.
func (l *gnetLoop) post(bit uint32) {
	if l.posted.Or(bit) != 0 {
		return // a wake-up is on its way
	}
	l.gate.RLock()
	defer l.gate.RUnlock()
	if l.stopped {
		return
	}
	if err := l.el.Execute(context.Background(), l); err != nil {
		l.reactor.logger.Error("event loop cannot be woken", "err", err)
		l.posted.Store(0)
	}
}

// postLater wakes the goroutine with a byte on a socket that gnet polls together with the connections, so that it comes
// in its turn among them: whatever I/O is ready when the loop polls next is served once before the alarm is served
// again.
func (l *gnetLoop) postLater() {
	l.wanted.Store(true)
	if l.later.Swap(true) {
		return // the byte is on its way; so there is never more than one, and the write cannot block
	}
	l.gate.RLock()
	defer l.gate.RUnlock()
	if l.stopped {
		return
	}
	for {
		_, err := unix.Write(l.alarmFD, alarm)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.reactor.logger.Error("event loop cannot be woken", "err", err)
			l.later.Store(false)
		}
		return
	}
}

// Run implements gnet.Runnable: it is the task of post.
func (l *gnetLoop) Run(context.Context) error {
	l.event++
	bits := l.posted.Swap(0)
	if bits&wakeReady != 0 {
		l.deliver()
	}
	if bits&wakeRing != 0 {
		l.runRing()
	}
	return nil
}

// alarmed is what postLater leads to.
func (l *gnetLoop) alarmed() {
	l.event++
	l.later.Store(false)
	l.runRing()
}

// runRing calls onRing if a ring is due: one call serves all rings that came before it.
func (l *gnetLoop) runRing() {
	if l.wanted.Swap(false) && l.onRing != nil {
		l.onRing(&l.Loop)
	}
}

// signal makes the loop call t.signalled soon. It may be called from any goroutine.
func (l *gnetLoop) signal(t *gnetTransport, bit uint32) {
	if t.signals.Or(bit) != 0 {
		return // t is in ready
	}
	l.readyMu.Lock()
	l.ready = append(l.ready, t)
	l.readyMu.Unlock()
	l.post(wakeReady)
}

func (l *gnetLoop) deliver() {
	l.readyMu.Lock()
	ready := l.ready
	l.ready = l.spare[:0]
	l.readyMu.Unlock()
	for i, t := range ready {
		ready[i] = nil
		t.signalled(t.signals.Swap(0))
	}
	l.spare = ready[:0]
}

// What a transport is told from outside its loop, or by itself for later.
const (
	signalRoom     uint32 = 1 << iota // the socket has room, or the peer of a paused one may be gone
	signalReadable                    // Resume found bytes waiting
	signalFailed                      // gnet did not take the socket back; see failure
)

// A gnetTransport is one socket. It is in one of these states:
//
//	attached   conn ≠ nil   gnet polls and reads the socket; fd is gnet's descriptor
//	detached   conn = nil   paused: nobody polls for bytes; fd is our duplicate of the descriptor
//	returning  conn = nil   enrolling: a goroutine hands the socket back to gnet; fd as before
//	closed                  fd is -1 and every method does nothing
//
// gnet cannot stop reading a connection, so Pause takes the socket away from it (the duplicate keeps it open, no FIN is
// sent) and Resume enrolls it again, on the same loop. For gnet that is a new connection; for the handler it is not.
type gnetTransport struct {
	// Immutable.
	loop          *gnetLoop
	id            uint64
	local, remote net.Addr

	// The loop's.
	handler   handler
	conn      gnet.Conn
	fd        int
	stash     []byte // received before the pause, and ahead of what gnet holds
	closeErr  error
	readErr   error // of a direct read; the socket may not tell it twice
	event     uint64
	budget    int  // bytes that the event may still read directly
	inside    bool // a method of handler is running
	closing   bool // Close was called inside
	closed    bool
	paused    bool
	enrolling bool
	drained   bool // gnet's read got all there was
	watched   bool // registered with reactor.room, under key
	armed     bool // a Writev took too little and writable is owed
	hung      bool // paused, the peer is gone, and its last bytes wait in the socket
	key       uint64

	signals atomic.Uint32
	failure error // set before signalFailed
}

// call runs one method of the handler. What the handler asks for in it is done by settle.
func (t *gnetTransport) call(method func(handler)) {
	if t.closed || t.closing || t.handler == nil {
		return
	}
	t.inside = true
	method(t.handler)
	t.inside = false
}

// settle does what Close, Pause and Resume asked for. c is the connection in whose gnet callback this is, and is closed
// by the action that the callback returns; nil means no callback of this transport.
func (t *gnetTransport) settle(c gnet.Conn) gnet.Action {
	if t.closed {
		return gnet.None
	}
	if t.paused && !t.closing && t.conn != nil {
		old := t.conn
		t.detach()
		if t.conn == nil {
			if t.closing {
				t.finish(t.closeErr)
			}
			return t.dropFromGnet(old, c)
		}
	}
	switch {
	case t.closing && t.conn == nil:
		t.finish(t.closeErr)
	case t.closing:
		return t.dropFromGnet(t.conn, c) // and OnClose does the rest
	case !t.paused && t.conn == nil && !t.enrolling:
		t.enroll()
		if t.closing {
			t.finish(t.closeErr)
		}
	}
	return gnet.None
}

// dropFromGnet closes gnet's connection: inside its own callback by the returned action, since gnet goes on to use the
// connection after the callback.
func (t *gnetTransport) dropFromGnet(conn, current gnet.Conn) gnet.Action {
	if conn == current {
		return gnet.Close
	}
	if err := t.loop.el.Close(conn); err != nil {
		t.loop.reactor.logger.Debug("gnet closed a connection with an error", "err", err)
	}
	return gnet.None
}

// fail is Close from within settle.
func (t *gnetTransport) fail(err error) {
	t.closing = true
	t.closeErr = err
}

// detach duplicates the descriptor and takes what gnet has read. It either succeeds, so that conn is nil and gnet's
// connection can be dropped, or asks for the close; both if the new descriptor cannot be watched.
func (t *gnetTransport) detach() {
	fd, err := t.conn.Dup()
	if err != nil {
		// Out of descriptors. Going on unpaused would pile up bytes without a bound.
		t.fail(fmt.Errorf("pause connection: %w", os.NewSyscallError("dup", err)))
		return
	}
	if t.conn.InboundBuffered() > 0 {
		received, _ := t.conn.Peek(-1)
		t.stash = append(t.stash, received...)
		_, _ = t.conn.Discard(-1)
	}
	// The registration belongs to the descriptor's number and to the open file, which the duplicate keeps open: left
	// alone it would outlive the number and could never be removed.
	t.unwatch()
	t.conn = nil
	t.fd = fd
	if err := t.watch(); err != nil {
		t.fail(fmt.Errorf("pause connection: %w", err))
	}
}

// enroll hands the socket back to gnet.
func (t *gnetTransport) enroll() {
	r := t.loop.reactor
	if !r.begin() {
		return // Stop is about to close t
	}
	fd, err := unix.FcntlInt(uintptr(t.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		r.end()
		t.fail(fmt.Errorf("resume connection: %w", os.NewSyscallError("dup", err)))
		return
	}
	t.enrolling = true
	go func() {
		defer r.end()
		if err := enrollFD(t, fd); err != nil {
			t.failure = fmt.Errorf("resume connection: %w", err)
			t.loop.signal(t, signalFailed)
		}
	}()
}

// enrollFD enrolls fd, which it closes, on t's loop and returns when t.reopened has run, or with an error if it never
// will.
func enrollFD(t *gnetTransport, fd int) error {
	file := os.NewFile(uintptr(fd), "connection")
	conn, err := net.FileConn(file)
	_ = file.Close()
	if err != nil {
		return err
	}
	if conn.LocalAddr() == nil || conn.RemoteAddr() == nil {
		_ = conn.Close()
		return unix.ENOTCONN // reset meanwhile; gnet would panic
	}
	dropZone(conn)
	again := &reattachment{t: t}
	result, err := t.loop.el.Enroll(gnet.NewContext(context.Background(), again), conn)
	if err != nil {
		_ = conn.Close()
		return err
	}
	if res := <-result; res.Err != nil {
		return res.Err
	}
	if !again.opened {
		return errors.New("event loop refused the socket")
	}
	return nil
}

// reopened is OnOpen of a connection that came back.
func (t *gnetTransport) reopened(c gnet.Conn) gnet.Action {
	t.enrolling = false
	if t.closed || t.paused {
		return gnet.Close // t.conn ≠ c, so OnClose is not t's; a paused one goes on with its duplicate
	}
	t.unwatch()
	_ = unix.Close(t.fd)
	t.conn = c
	t.fd = c.Fd()
	t.hung = false
	c.SetContext(t)
	if t.armed {
		if err := t.watch(); err != nil {
			t.fail(fmt.Errorf("resume connection: %w", err))
			return t.settle(c)
		}
	}
	t.loop.event++
	if len(t.stash) > 0 {
		t.call(handler.readable)
	}
	return t.settle(c)
}

// signalled runs on the loop after loop.signal.
func (t *gnetTransport) signalled(signals uint32) {
	if signals&signalFailed != 0 {
		t.enrolling = false
		if !t.paused {
			t.Close(t.failure)
		}
	}
	if signals&signalRoom != 0 && !t.closed {
		t.roomSignalled()
	}
	if signals&signalReadable != 0 && !t.closed && !t.paused && t.conn != nil && t.buffered() > 0 {
		t.call(handler.readable)
		t.settle(nil)
	}
}

func (t *gnetTransport) roomSignalled() {
	if t.conn == nil { // gnet does not look after this one
		err, gone := peerGone(t.fd)
		switch {
		case !gone:
		case err == nil:
			// The peer has closed in good order. Its last bytes are still to be had after Resume, and so is the
			// io.EOF after them.
			t.hung = true
		default:
			t.Close(err)
			return
		}
	}
	if t.armed {
		t.armed = false
		t.call(handler.writable)
		t.settle(nil)
	}
	if !t.closed && t.conn == nil && !t.armed && !t.hung {
		if err := t.watch(); err != nil {
			t.Close(err)
		}
	}
}

// peerGone looks at a socket that nobody reads. gone with an error: the connection is dead (io.EOF: closed, and nothing
// left to read). gone with nil: closed, but bytes are left.
func peerGone(fd int) (err error, gone bool) { //nolint:revive // the error is the lesser of the two
	if errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && errno != 0 {
		return os.NewSyscallError("read", unix.Errno(errno)), true
	}
	poll := []unix.PollFd{{Fd: int32(fd)}}
	if _, err := unix.Poll(poll, 0); err != nil || poll[0].Revents&(unix.POLLHUP|unix.POLLERR) == 0 {
		return nil, false
	}
	var next [1]byte
	switch n, _, err := unix.Recvfrom(fd, next[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); {
	case n > 0:
		return nil, true
	case err == nil || err == unix.EAGAIN:
		return io.EOF, true
	default:
		return os.NewSyscallError("read", err), true
	}
}

// watch registers fd with the second poller for one event: room if armed, else only that the connection is dead.
//
// It is called after writev took too little, and no wake-up is lost between the two, because registering looks at the
// socket once more, in the kernel:
//
//	loop                              kernel
//	writev → EAGAIN
//	                                  the peer reads, there is room; nobody is told
//	epoll_ctl(EPOLLOUT|ONESHOT)       polls the socket: room → event at once
//
// The event disarms the registration, so a connection that is not blocked costs nothing, however often its socket gets
// room. That matters for Unix-domain sockets, which tell of every single read of the peer.
func (t *gnetTransport) watch() error {
	r := t.loop.reactor
	if !t.watched {
		// Known before it is armed, or its first event might find nobody.
		t.key = readinessKey(t.fd, t.id)
		r.watchedMu.Lock()
		r.watched[t.key] = t
		r.watchedMu.Unlock()
	}
	if err := r.room.arm(t.fd, t.key, t.watched, t.armed); err != nil {
		if !t.watched {
			r.watchedMu.Lock()
			delete(r.watched, t.key)
			r.watchedMu.Unlock()
		}
		return err
	}
	t.watched = true
	return nil
}

// unwatch undoes watch. It must come before the descriptor is closed.
func (t *gnetTransport) unwatch() {
	if !t.watched {
		return
	}
	t.watched = false
	r := t.loop.reactor
	r.room.disarm(t.fd)
	r.watchedMu.Lock()
	delete(r.watched, t.key)
	r.watchedMu.Unlock()
}

// finish ends the transport. gnet closes an attached descriptor afterwards.
func (t *gnetTransport) finish(err error) {
	t.unwatch()
	if t.conn == nil {
		_ = unix.Close(t.fd)
	}
	t.closed = true
	t.conn = nil
	t.fd = -1
	t.stash = nil
	delete(t.loop.transports, t)
	if t.handler != nil {
		t.handler.closed(err)
	}
}

// cause turns gnet's reason for a close into the handler's.
func (t *gnetTransport) cause(err error) error {
	switch {
	case t.readErr != nil:
		return t.readErr
	case err == nil:
		return ErrStopped
	case err == io.EOF:
		// gnet says so on its own when poll told of an error or hang-up. A reset is told by SO_ERROR.
		if errno, err := unix.GetsockoptInt(t.fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && errno != 0 {
			return os.NewSyscallError("read", unix.Errno(errno))
		}
		return io.EOF
	case errors.Is(err, io.EOF):
		return io.EOF
	default:
		return err
	}
}

// gone says that the transport is closed or about to be.
func (t *gnetTransport) gone() bool { return t.closed || t.closing }

// buffered returns how many bytes Peek would.
func (t *gnetTransport) buffered() int {
	n := len(t.stash)
	if t.conn != nil {
		n += t.conn.InboundBuffered()
	}
	return n
}

func (t *gnetTransport) Peek() []byte {
	if t.gone() {
		return nil
	}
	if t.conn == nil || t.conn.InboundBuffered() == 0 {
		return t.stash
	}
	received, _ := t.conn.Peek(-1)
	if len(t.stash) == 0 {
		return received
	}
	t.stash = append(t.stash, received...)
	_, _ = t.conn.Discard(-1)
	return t.stash
}

func (t *gnetTransport) Discard(n int) {
	if n == 0 || t.gone() {
		return // gnet's Discard(0) would drop everything
	}
	if n < 0 || n > t.buffered() {
		invariant.Bug("discard of %d bytes, %d are buffered", n, t.buffered())
	}
	k := min(n, len(t.stash))
	t.unstash(k)
	if n > k {
		_, _ = t.conn.Discard(n - k)
	}
}

// unstash consumes n bytes of the stash, whose memory is let go with the last one.
func (t *gnetTransport) unstash(n int) {
	if n == len(t.stash) {
		t.stash = nil
		return
	}
	t.stash = t.stash[n:]
}

func (t *gnetTransport) ReadInto(p []byte) int {
	if t.gone() {
		return 0
	}
	n := copy(p, t.stash)
	t.unstash(n)
	if t.conn == nil || n == len(p) {
		return n
	}
	if t.conn.InboundBuffered() > 0 {
		m, _ := t.conn.Read(p[n:])
		n += m
	}
	if n == len(p) || t.drained || t.paused {
		return n
	}
	return n + t.readDirect(p[n:])
}

// readDirect reads from the socket, past gnet's buffers, which are empty. An end of the stream or an error is left for
// gnet's next read: level-triggered polling tells it again.
func (t *gnetTransport) readDirect(p []byte) int {
	if t.event != t.loop.event {
		t.event, t.budget = t.loop.event, directMax
	}
	n := 0
	for n < len(p) && t.budget > 0 {
		want := min(len(p)-n, t.budget)
		m, err := unix.Read(t.fd, p[n:n+want])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			if err != unix.EAGAIN {
				t.readErr = os.NewSyscallError("read", err)
			}
			return n
		case m == 0:
			return n
		}
		n += m
		t.budget -= m
		if m < want {
			return n // the socket is empty, or poll will say that it is not
		}
	}
	return n
}

func (t *gnetTransport) Writev(iov [][]byte) (int, error) {
	if t.gone() {
		return 0, net.ErrClosed
	}
	total := 0
	for len(iov) > 0 {
		chunk := iov[:min(len(iov), iovMax)]
		iov = iov[len(chunk):]
		want := 0
		for _, b := range chunk {
			want += len(b)
		}
		if want == 0 {
			continue
		}
		n, err := t.loop.iovecs.writev(t.fd, chunk)
		for err == unix.EINTR {
			n, err = t.loop.iovecs.writev(t.fd, chunk)
		}
		if err != nil && err != unix.EAGAIN {
			return total, os.NewSyscallError("writev", err)
		}
		total += max(n, 0)
		if n < want {
			return total, t.blocked()
		}
	}
	return total, nil
}

// blocked makes sure that writable is called.
func (t *gnetTransport) blocked() error {
	if t.armed {
		return nil
	}
	t.armed = true
	if err := t.watch(); err != nil {
		t.armed = false
		return err
	}
	return nil
}

func (t *gnetTransport) Pause() {
	if t.gone() || t.paused {
		return
	}
	t.paused = true
	if !t.inside {
		t.settle(nil)
	}
}

func (t *gnetTransport) Resume() {
	if t.gone() || !t.paused {
		return
	}
	t.paused = false
	if t.conn != nil {
		// Paused and resumed within one method. The call comes from the loop.
		if t.buffered() > 0 {
			t.loop.signal(t, signalReadable)
		}
		return
	}
	if !t.inside {
		t.settle(nil)
	}
}

func (t *gnetTransport) CloseWrite() {
	if !t.gone() {
		_ = unix.Shutdown(t.fd, unix.SHUT_WR) // it fails only where the peer has gone, which closed tells
	}
}

func (t *gnetTransport) Close(err error) {
	if t.gone() {
		return
	}
	t.closing = true
	t.closeErr = err
	if !t.inside {
		t.settle(nil)
	}
}

func (t *gnetTransport) Loop() *Loop          { return &t.loop.Loop }
func (t *gnetTransport) LocalAddr() net.Addr  { return t.local }
func (t *gnetTransport) RemoteAddr() net.Addr { return t.remote }

// gnetLogger hands gnet's messages to slog. gnet tells of things that are no news here (a stale event after a close by
// another connection's handler, its own start), so only its errors are logged as such.
type gnetLogger struct{ logger *slog.Logger }

func (g gnetLogger) log(level slog.Level, format string, args []any) {
	if ctx := context.Background(); g.logger.Enabled(ctx, level) {
		g.logger.Log(ctx, level, "gnet: "+fmt.Sprintf(format, args...))
	}
}

func (g gnetLogger) Debugf(format string, args ...any) { g.log(slog.LevelDebug, format, args) }
func (g gnetLogger) Infof(format string, args ...any)  { g.log(slog.LevelDebug, format, args) }
func (g gnetLogger) Warnf(format string, args ...any)  { g.log(slog.LevelDebug, format, args) }
func (g gnetLogger) Errorf(format string, args ...any) { g.log(slog.LevelError, format, args) }
func (g gnetLogger) Fatalf(format string, args ...any) { g.log(slog.LevelError, format, args) }
