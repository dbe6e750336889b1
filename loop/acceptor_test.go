package loop

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeListener returns what its script says, one entry for each Accept, then blocks until it is closed.
type fakeListener struct {
	script chan any // error or net.Conn
	calls  chan time.Time
	closed chan struct{}
	once   sync.Once
}

func newFakeListener(script ...any) *fakeListener {
	l := &fakeListener{
		script: make(chan any, len(script)), calls: make(chan time.Time, 1000), closed: make(chan struct{}),
	}
	for _, s := range script {
		l.script <- s
	}
	return l
}

func (l *fakeListener) Accept() (net.Conn, error) {
	l.calls <- time.Now()
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case s := <-l.script:
		if conn, ok := s.(net.Conn); ok {
			return conn, nil
		}
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: s.(error)}
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *fakeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *fakeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5500} }

// A fakeConn is a net.Conn from an address.
type fakeConn struct {
	net.Conn
	remote net.Addr
	once   sync.Once
	closed chan struct{}
}

func newFakeConn(ip string) *fakeConn {
	return &fakeConn{remote: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1234}, closed: make(chan struct{})}
}

func (c *fakeConn) RemoteAddr() net.Addr        { return c.remote }
func (c *fakeConn) SetDeadline(time.Time) error { return nil }
func (c *fakeConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// A fakeReactor passes connections to attach.
type fakeReactor struct {
	attach func(net.Conn) error
}

func (r fakeReactor) Attach(conn net.Conn, _ func(transport) handler) error { return r.attach(conn) }
func (r fakeReactor) Stop()                                                 {}

// attachTo is a fakeReactor's attach that sends the connections to a channel.
func attachTo(conns chan<- net.Conn) fakeReactor {
	return fakeReactor{func(conn net.Conn) error { conns <- conn; return nil }}
}

// startAcceptor returns an acceptor that is going.
func startAcceptor(opts acceptOptions) *acceptor {
	a := newAcceptor(opts)
	a.start()
	return a
}

// TestAcceptBackoff is field case F66: out of descriptors, accept is tried ever more rarely, one line is logged, and
// connections are served as soon as there are descriptors again.
func TestAcceptBackoff(t *testing.T) {
	for _, cause := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, errors.New("something new")} {
		synctest.Test(t, func(t *testing.T) {
			script := make([]any, 12, 13)
			for i := range script {
				script[i] = os.NewSyscallError("accept4", cause)
			}
			listener := newFakeListener(append(script, newFakeConn("192.0.2.1"))...)
			var log bytes.Buffer
			conns := make(chan net.Conn, 1)
			a := startAcceptor(acceptOptions{
				Listener: listener, Reactor: attachTo(conns), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			<-conns
			synctest.Wait()
			a.close()

			var gaps []time.Duration
			last := <-listener.calls
			for range script {
				next := <-listener.calls
				gaps = append(gaps, next.Sub(last)/time.Millisecond)
				last = next
			}
			if want := []time.Duration{5, 10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000}; !slices.Equal(gaps, want) {
				t.Errorf("%v: accept was tried after %d ms, want %d", cause, gaps, want)
			}
			if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), cause.Error()) {
				t.Errorf("%v: %d lines were logged, want one:\n%s", cause, n, log.String())
			}
			if s := a.stats(); s.Failed != 12 || s.Accepted != 1 || s.Current != 1 {
				t.Errorf("stats = %+v", s)
			}
		})
	}
}

// TestAcceptBursts: an accept that succeeds resets the back-off but does not end the burst; a quiet time does.
func TestAcceptBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		emfile := os.NewSyscallError("accept4", syscall.EMFILE)
		listener := newFakeListener()
		listener.script = make(chan any)
		var log bytes.Buffer
		conns := make(chan net.Conn, 100)
		a := startAcceptor(acceptOptions{
			Listener: listener, Reactor: attachTo(conns), Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		start := time.Now()
		for range 20 {
			listener.script <- emfile
			listener.script <- newFakeConn("192.0.2.1")
		}
		synctest.Wait()
		if got := time.Since(start); got != 20*acceptBackoffMin {
			t.Errorf("20 single errors took %v, want %v", got, 20*acceptBackoffMin)
		}
		if n := strings.Count(log.String(), "\n"); n != 1 {
			t.Errorf("%d lines for one burst:\n%s", n, log.String())
		}
		<-time.After(time.Minute) // the bubble's clock
		listener.script <- emfile
		synctest.Wait()
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines for two bursts:\n%s", n, log.String())
		}
		a.close()
	})
}

// TestAcceptorCloseInBackoff: close does not wait for the back-off's end.
func TestAcceptorCloseInBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script := make([]any, 20)
		for i := range script {
			script[i] = error(syscall.EMFILE)
		}
		a := startAcceptor(acceptOptions{Listener: newFakeListener(script...), Reactor: attachTo(nil)})
		<-time.After(10 * time.Second) // the bubble's clock
		start := time.Now()
		a.close()
		a.close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("close waited %v", waited)
		}
	})
}

func TestAcceptLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := newFakeListener()
		listener.script = make(chan any)
		conns := make(chan net.Conn, 100)
		refusals := make(chan refusal, 100)
		a := startAcceptor(acceptOptions{
			Listener: listener,
			Reactor:  attachTo(conns),
			Limits:   acceptLimits{Connections: 4, PerAddress: 2},
			refuse:   func(_ net.Conn, why refusal) { refusals <- why },
		})
		offer := func(ip string, want refusal) {
			t.Helper()
			conn := newFakeConn(ip)
			listener.script <- conn
			synctest.Wait()
			select {
			case got := <-conns:
				if want != 0 || got != net.Conn(conn) {
					t.Fatalf("%s was accepted, want %v", ip, want)
				}
			case got := <-refusals:
				if got != want {
					t.Fatalf("%s: %v, want %v", ip, got, want)
				}
				<-conn.closed
			default:
				t.Fatalf("%s was neither accepted nor refused", ip)
			}
		}
		offer("192.0.2.1", 0)
		offer("192.0.2.1", 0)
		offer("192.0.2.1", refusedAddress)
		offer("::ffff:192.0.2.1", refusedAddress) // the same address
		offer("2001:db8::1", 0)
		offer("192.0.2.2", 0)
		offer("192.0.2.3", refusedTotal)
		a.done(newFakeConn("192.0.2.1").RemoteAddr())
		offer("192.0.2.1", 0)
		offer("192.0.2.1", refusedTotal)
		a.done(newFakeConn("192.0.2.2").RemoteAddr())
		offer("192.0.2.1", refusedAddress)
		if s := a.stats(); s != (acceptStats{Accepted: 5, Refused: 5, Current: 3}) {
			t.Errorf("stats = %+v", s)
		}
		for _, ip := range []string{"192.0.2.1", "192.0.2.1", "2001:db8::1"} {
			a.done(newFakeConn(ip).RemoteAddr())
		}
		a.mu.Lock()
		if a.current != 0 || len(a.perAddr) != 0 {
			t.Errorf("%d connections and %d addresses are left", a.current, len(a.perAddr))
		}
		a.mu.Unlock()
		a.close()
	})
}

// TestAcceptAttachFails: a connection that the reactor does not open gives its place back.
func TestAcceptAttachFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fail := fakeReactor{func(conn net.Conn) error { _ = conn.Close(); return errors.New("no") }}
		a := startAcceptor(acceptOptions{
			Listener: newFakeListener(newFakeConn("192.0.2.1"), newFakeConn("192.0.2.1")),
			Reactor:  fail,
			Limits:   acceptLimits{PerAddress: 1},
		})
		synctest.Wait()
		a.close()
		if s := a.stats(); s.Accepted != 0 || s.Current != 0 || s.Failed+s.Refused != 2 {
			t.Errorf("stats = %+v", s)
		}
	})
}

// TestAcceptSlowLoop: connections that wait for a slow loop do not hold up the others.
func TestAcceptSlowLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 10
		goOn := make(chan struct{})
		conns := make(chan net.Conn, 100)
		var script []any
		for range slow {
			script = append(script, newFakeConn("192.0.2.1"))
		}
		for range 20 {
			script = append(script, newFakeConn("192.0.2.2"))
		}
		a := startAcceptor(acceptOptions{
			Listener: newFakeListener(script...),
			Reactor: fakeReactor{func(conn net.Conn) error {
				if ipOf(conn.RemoteAddr()).String() == "192.0.2.1" {
					<-goOn
				}
				conns <- conn
				return nil
			}},
		})
		synctest.Wait()
		if len(conns) != 20 {
			t.Errorf("%d connections were opened, want 20", len(conns))
		}
		close(goOn)
		synctest.Wait()
		if len(conns) != 20+slow {
			t.Errorf("%d connections were opened, want %d", len(conns), 20+slow)
		}
		a.close()
	})
}

// TestAcceptor serves a real listener with a real reactor: limit, last words, close.
func TestAcceptor(t *testing.T) {
	r, err := newGnetReactor(gnetOptions{Loops: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 10)
	a := newAcceptor(acceptOptions{
		Listener: listener,
		Reactor:  r,
		Limits:   acceptLimits{Connections: 2},
		refuse:   func(conn net.Conn, why refusal) { _, _ = io.WriteString(conn, why.String()) },
	})
	a.opts.open = func(tr transport) handler {
		p := newEcho()
		p.transport = tr
		p.end = ended
		p.onClosed = func(p *probe, _ error) { a.done(p.RemoteAddr()) }
		return p
	}
	a.start()
	dial := func() net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(testDeadline))
		return conn
	}
	echoes := func(conn net.Conn) {
		t.Helper()
		b := []byte("hello")
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, b); err != nil || string(b) != "hello" {
			t.Fatalf("echo %q, %v", b, err)
		}
	}
	first, second := dial(), dial()
	defer first.Close() //nolint:errcheck // nothing depends on it
	echoes(first)
	echoes(second)

	// The refused one has sent something that is never read as a request; it still gets the reason, and no reset.
	third := dial()
	if _, err := third.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(third); err != nil || string(b) != refusedTotal.String() {
		t.Fatalf("refused connection got %q, %v", b, err)
	}
	_ = third.Close()

	_ = second.Close()
	_ = await(t, ended, "closed")
	fourth := dial()
	defer fourth.Close() //nolint:errcheck // nothing depends on it
	echoes(fourth)

	a.close()
	if conn, err := net.Dial("tcp", listener.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("connected after close")
	}
	echoes(first) // what is open stays open
	if s := a.stats(); s != (acceptStats{Accepted: 3, Refused: 1, Current: 2}) {
		t.Errorf("stats = %+v", s)
	}
}

// TestAcceptorCloseCutsRefusals: a refused peer that never reads does not hold up close.
func TestAcceptorCloseCutsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, ours := net.Pipe()
		defer peer.Close() //nolint:errcheck // nothing depends on it
		a := startAcceptor(acceptOptions{
			Listener: newFakeListener(newFakeConn("192.0.2.1"), ours),
			Reactor:  attachTo(make(chan net.Conn, 2)),
			Limits:   acceptLimits{Connections: 1},
			refuse:   func(conn net.Conn, _ refusal) { _, _ = conn.Write([]byte("no")) },
		})
		synctest.Wait()
		start := time.Now()
		a.close()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("close waited %v", waited)
		}
	})
}
