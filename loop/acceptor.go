package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/internal/invariant"
)

const (
	// acceptBackoffMin and acceptBackoffMax bound the wait after an accept that failed, which doubles each time. Out
	// of descriptors a listener stays readable, so trying again at once would take a whole core.
	acceptBackoffMin = 5 * time.Millisecond
	acceptBackoffMax = time.Second

	// acceptAttaching bounds the accepted connections that wait for their loop. As loops are chosen by load, one that
	// is slow holds up its share of new connections only.
	acceptAttaching = 64

	// acceptRefusing bounds the refusals under way; beyond it connections are closed without a word.
	acceptRefusing = 16

	// refuseTime is how long a refused connection may take to read why.
	refuseTime = time.Second
)

// A refusal says why an accepted connection is closed again.
type refusal int

const (
	// refusedTotal: there are acceptLimits.Connections already.
	refusedTotal refusal = iota + 1
	// refusedAddress: there are acceptLimits.PerAddress from this address already.
	refusedAddress
)

func (r refusal) String() string {
	switch r {
	case refusedTotal:
		return "too many connections"
	case refusedAddress:
		return "too many connections from this address"
	default:
		return fmt.Sprintf("refusal(%d)", int(r))
	}
}

// acceptLimits bounds the connections of one acceptor. 0 means no limit.
type acceptLimits struct {
	Connections int
	PerAddress  int // of one IP address; Unix-domain sockets have none and are not counted
}

// acceptOptions configures newAcceptor.
type acceptOptions struct {
	Listener net.Listener // owned by the acceptor
	Reactor  reactor
	Limits   acceptLimits

	// open is what reactor.Attach gets.
	open func(transport) handler

	// refuse, if not nil, may write a last frame to a connection that is closed afterwards. It runs on a goroutine
	// of its own, with a deadline on conn.
	refuse func(conn net.Conn, why refusal)

	Logger *slog.Logger // nil discards
}

// acceptStats is what an acceptor has done so far.
type acceptStats struct {
	Accepted uint64 // connections handed to the reactor
	Refused  uint64 // connections closed because of a limit
	Failed   uint64 // accepts and attaches that ended with an error
	Current  int    // connections handed to the reactor and not done
}

// An acceptor takes connections from one listener, holds them to the limits and hands them to a reactor. It never stops
// because of an error: accept fails for reasons that pass (no descriptors, no memory, a peer that has gone).
//
// Its goroutines: run, up to acceptAttaching in reactor.Attach, up to acceptRefusing with a refused connection. close
// ends them all.
type acceptor struct {
	// Immutable.
	opts      acceptOptions
	logger    *slog.Logger
	ctx       context.Context // done: close was called
	cancel    context.CancelFunc
	attaching chan struct{} // a token for each
	refusing  chan struct{}
	running   sync.WaitGroup

	accepted, refused, failed atomic.Uint64

	lastError time.Time // run's

	// mu guards what follows.
	mu      sync.Mutex
	current int
	perAddr map[netip.Addr]int // no zero values
}

// newAcceptor returns an acceptor that start sets going; until then its options may be completed.
func newAcceptor(opts acceptOptions) *acceptor {
	a := &acceptor{
		opts:      opts,
		logger:    opts.Logger,
		attaching: make(chan struct{}, acceptAttaching),
		refusing:  make(chan struct{}, acceptRefusing),
		perAddr:   make(map[netip.Addr]int),
	}
	if a.logger == nil {
		a.logger = slog.New(slog.DiscardHandler)
	}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a
}

// start begins to accept.
func (a *acceptor) start() {
	a.running.Add(1)
	go a.run()
}

// close stops accepting at once: new connections get the kernel's refusal. It returns when the acceptor's goroutines
// have ended, so that no call of open or refuse comes later. Connections that are open stay open. It must not be called
// from a loop. Closing twice is closing once.
func (a *acceptor) close() {
	a.cancel()
	_ = a.opts.Listener.Close()
	a.running.Wait()
}

// done gives back the place of a connection whose handler was told closed. addr is its remote address. It may be called
// from any goroutine.
func (a *acceptor) done(addr net.Addr) {
	ip := ipOf(addr)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current--
	invariant.Check(a.current >= 0, "acceptor: %d connections after one from %s was done", a.current, ip)
	if ip.IsValid() {
		if a.perAddr[ip]--; a.perAddr[ip] <= 0 {
			delete(a.perAddr, ip)
		}
	}
}

// stats may be called from any goroutine.
func (a *acceptor) stats() acceptStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return acceptStats{
		Accepted: a.accepted.Load(),
		Refused:  a.refused.Load(),
		Failed:   a.failed.Load(),
		Current:  a.current,
	}
}

func (a *acceptor) run() {
	defer a.running.Done()
	var backoff time.Duration
	for {
		conn, err := a.opts.Listener.Accept()
		switch {
		case err == nil:
			backoff = 0
			a.place(conn)
		case a.ctx.Err() != nil:
			return
		case errors.Is(err, net.ErrClosed):
			a.logger.Error("listener was closed by someone else", "addr", addrString(a.opts.Listener.Addr()), "err", err)
			return
		default:
			a.failed.Add(1)
			backoff = min(max(2*backoff, acceptBackoffMin), acceptBackoffMax)
			a.logBurst(err)
			timer := time.NewTimer(backoff)
			select {
			case <-timer.C:
			case <-a.ctx.Done():
				timer.Stop()
				return
			}
		}
	}
}

// logBurst logs the first of a burst of errors. A burst ends when twice acceptBackoffMax has passed without an error;
// one accept that succeeds in between (somebody has closed a file) does not end it.
func (a *acceptor) logBurst(err error) {
	now := time.Now()
	quiet := a.lastError.IsZero() || now.Sub(a.lastError) > 2*acceptBackoffMax
	a.lastError = now
	if quiet {
		a.logger.Warn("accept failed, will be tried again", "addr", addrString(a.opts.Listener.Addr()), "err", err)
	}
}

// place counts conn and hands it over, or refuses it.
func (a *acceptor) place(conn net.Conn) {
	addr := conn.RemoteAddr()
	if why := a.enter(addr); why != 0 {
		a.refused.Add(1)
		a.turnAway(conn, why)
		return
	}
	select {
	case a.attaching <- struct{}{}:
	case <-a.ctx.Done():
		_ = conn.Close()
		a.done(addr)
		return
	}
	a.running.Add(1)
	go func() {
		defer a.running.Done()
		defer func() { <-a.attaching }()
		if err := a.opts.Reactor.Attach(conn, a.opts.open); err != nil {
			a.failed.Add(1)
			a.done(addr) // nobody else will: the connection was not opened
			if !errors.Is(err, ErrStopped) {
				a.logger.Warn("connection not opened", "addr", addrString(addr), "err", err)
			}
			return
		}
		a.accepted.Add(1)
	}()
}

// enter takes a place for a connection from addr, or says why there is none.
func (a *acceptor) enter(addr net.Addr) refusal {
	ip := ipOf(addr)
	limits := a.opts.Limits
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case limits.Connections > 0 && a.current >= limits.Connections:
		return refusedTotal
	case limits.PerAddress > 0 && ip.IsValid() && a.perAddr[ip] >= limits.PerAddress:
		return refusedAddress
	}
	a.current++
	if ip.IsValid() {
		a.perAddr[ip]++
	}
	return 0
}

// turnAway closes conn, after refuse has had its say.
func (a *acceptor) turnAway(conn net.Conn, why refusal) {
	if a.opts.refuse == nil {
		_ = conn.Close()
		return
	}
	select {
	case a.refusing <- struct{}{}:
	default:
		_ = conn.Close()
		return
	}
	a.running.Add(1)
	go func() {
		defer a.running.Done()
		defer func() { <-a.refusing }()
		defer conn.Close() //nolint:errcheck // nothing depends on it
		_ = conn.SetDeadline(time.Now().Add(refuseTime))
		stop := context.AfterFunc(a.ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		a.opts.refuse(conn, why)

		// A close with bytes unread sends a reset, which takes the frame from a peer that has not read it yet. So
		// wait for the peer to close, within the deadline.
		half, ok := conn.(interface{ CloseWrite() error })
		if !ok || half.CloseWrite() != nil {
			return
		}
		var sink [512]byte
		for range 128 { // 64 KiB: a peer that sends more has not come for the answer
			if _, err := conn.Read(sink[:]); err != nil {
				return
			}
		}
	}()
}

// An addressCount counts by IP address. What has none, as a Unix-domain socket, is not counted.
type addressCount struct {
	mu  sync.Mutex
	per map[netip.Addr]int // no zero values
}

// add counts one more from addr and reports whether there are limit or fewer now.
func (c *addressCount) add(addr net.Addr, limit int) bool {
	ip := ipOf(addr)
	if !ip.IsValid() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.per == nil {
		c.per = map[netip.Addr]int{}
	}
	c.per[ip]++
	return c.per[ip] <= limit
}

// remove counts one less from addr.
func (c *addressCount) remove(addr net.Addr) {
	ip := ipOf(addr)
	if !ip.IsValid() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.per[ip]--; c.per[ip] <= 0 {
		delete(c.per, ip)
	}
}

// ipOf returns the IP address in addr, without zone and with IPv4 unmapped; invalid if there is none.
func ipOf(addr net.Addr) netip.Addr {
	if a, ok := addr.(*net.TCPAddr); ok && a != nil {
		ip, _ := netip.AddrFromSlice(a.IP)
		return ip.Unmap()
	}
	return netip.Addr{}
}

func addrString(addr net.Addr) string {
	if addr == nil {
		return "unknown"
	}
	return addr.String()
}
