package loop

import (
	"bytes"
	"errors"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/internal/invariant"
)

// testDeadline is how long a test waits for an event that must come.
const testDeadline = 60 * time.Second

// A medium is one way to run the conformance tests: a reactor, and a kind of connection for it.
type medium struct {
	name    string
	reactor func(onRing func(*Loop)) (reactor, error)
	connect func(t testing.TB) (peer, ours net.Conn)
}

func (m medium) gnet() bool { return strings.HasPrefix(m.name, "gnet") }
func (m medium) tcp() bool  { return strings.HasSuffix(m.name, "tcp") }
func (m medium) pipe() bool { return strings.HasSuffix(m.name, "pipe") }

func media() []medium {
	one := func(onRing func(*Loop)) (reactor, error) {
		return newGnetReactor(gnetOptions{Loops: 1, onRing: onRing})
	}
	two := func(onRing func(*Loop)) (reactor, error) {
		return newGnetReactor(gnetOptions{Loops: 2, onRing: onRing})
	}
	own := func(onRing func(*Loop)) (reactor, error) { return newNetReactor(netOptions{onRing: onRing}), nil }
	return []medium{
		{"gnet/tcp", one, connectTCP},
		{"gnet/loops=2/tcp", two, connectTCP},
		{"gnet/unix", one, connectUnix},
		{"net/pipe", own, func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() }},
		{"net/tcp", own, connectTCP},
		{"memory", func(onRing func(*Loop)) (reactor, error) { return newMemReactor(onRing), nil }, func(testing.TB) (net.Conn, net.Conn) { return memPipe() }},
	}
}

// eachMedium runs test over all media.
func eachMedium(t *testing.T, test func(t *testing.T, m medium)) {
	for _, m := range media() {
		t.Run(m.name, func(t *testing.T) { test(t, m) })
	}
}

func connectTCP(t testing.TB) (peer, ours net.Conn) {
	return connectOver(t, "tcp", "127.0.0.1:0")
}

func connectUnix(t testing.TB) (peer, ours net.Conn) {
	dir, err := os.MkdirTemp("", "lq") // t.TempDir is too long a path for a socket on macOS
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // best effort
	return connectOver(t, "unix", filepath.Join(dir, "s"))
}

func connectOver(t testing.TB, network, addr string) (peer, ours net.Conn) {
	t.Helper()
	listener, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nothing depends on it
	type dialled struct {
		conn net.Conn
		err  error
	}
	dial := make(chan dialled, 1)
	go func() {
		conn, err := net.Dial(network, listener.Addr().String())
		dial <- dialled{conn, err}
	}()
	if ours, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	d := <-dial
	if d.err != nil {
		t.Fatal(d.err)
	}
	return d.conn, ours
}

// A rig is a reactor under test. Its onRing runs what do has queued.
type rig struct {
	t      testing.TB
	m      medium
	r      reactor
	onRing func(*Loop) // runs first; set before the first connection

	mu   sync.Mutex
	todo map[*Loop][]func()
}

func newRig(t testing.TB, m medium) *rig {
	t.Helper()
	g := &rig{t: t, m: m, todo: make(map[*Loop][]func())}
	r, err := m.reactor(func(l *Loop) {
		if g.onRing != nil {
			g.onRing(l)
		}
		g.mu.Lock()
		todo := g.todo[l]
		delete(g.todo, l)
		g.mu.Unlock()
		for _, f := range todo {
			f()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	g.r = r
	t.Cleanup(r.Stop)
	return g
}

// do runs f on the loop and returns when it has run.
func (g *rig) do(l *Loop, f func()) {
	g.t.Helper()
	ran := make(chan struct{})
	g.start(l, func() { f(); close(ran) })
	await(g.t, ran, "the loop to run a function")
}

// start runs f on the loop soon.
func (g *rig) start(l *Loop, f func()) {
	g.mu.Lock()
	g.todo[l] = append(g.todo[l], f)
	g.mu.Unlock()
	l.Ring()
}

// attach makes a connection, calls setup (on the loop, may be nil) and returns the other end of it.
func (g *rig) attach(p *probe, setup func(*probe)) net.Conn {
	g.t.Helper()
	peer, ours := g.m.connect(g.t)
	g.t.Cleanup(func() { _ = peer.Close() })
	_ = peer.SetDeadline(time.Now().Add(testDeadline))
	p.end = make(chan error, 8)
	if err := g.r.Attach(ours, func(tr transport) handler {
		p.transport = tr
		if setup != nil {
			setup(p)
		}
		return p
	}); err != nil {
		g.t.Fatal(err)
	}
	return peer
}

// A probe is a handler made of functions. It checks what holds for every handler: calls are not nested, closed comes
// once and last, and nothing of ours is queued in gnet.
type probe struct {
	transport
	onReadable, onWritable func(*probe)
	onClosed               func(*probe, error)

	busy, over bool
	end        chan error // gets what closed got
}

func (p *probe) enter() func() {
	if p.busy || p.over {
		invariant.Bug("handler called with busy=%t over=%t", p.busy, p.over)
	}
	p.busy = true
	return func() {
		if g, ok := p.transport.(*gnetTransport); ok && g.conn != nil && g.conn.OutboundBuffered() != 0 {
			invariant.Bug("gnet holds %d bytes of ours", g.conn.OutboundBuffered())
		}
		p.busy = false
	}
}

func (p *probe) readable() {
	defer p.enter()()
	if p.onReadable != nil {
		p.onReadable(p)
	}
}

func (p *probe) writable() {
	defer p.enter()()
	if p.onWritable != nil {
		p.onWritable(p)
	}
}

func (p *probe) closed(err error) {
	defer p.enter()()
	p.over = true
	if p.onClosed != nil {
		p.onClosed(p, err)
	}
	p.end <- err
}

// await waits for an event with a deadline.
func await[T any](t testing.TB, events <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-events:
		return v
	case <-time.After(testDeadline):
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// eventually polls cond, for what no event tells.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(testDeadline); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// patternBytes is one period of the endless pattern that tests send. The period is a prime, so that a shifted, lost or
// doubled buffer shows.
var patternBytes = func() []byte {
	b := make([]byte, 65_537)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}()

// fill fills b with the pattern from position at on.
func fill(b []byte, at int) {
	for len(b) > 0 {
		n := copy(b, patternBytes[at%len(patternBytes):])
		b = b[n:]
		at += n
	}
}

// samePattern returns the index of the first byte in b that is not the pattern's at position at, or -1.
func samePattern(b []byte, at int) int {
	for i := 0; i < len(b); {
		want := patternBytes[(at+i)%len(patternBytes):]
		n := min(len(want), len(b)-i)
		if !bytes.Equal(b[i:i+n], want[:n]) {
			for j := range n {
				if b[i+j] != want[j] {
					return i + j
				}
			}
		}
		i += n
	}
	return -1
}

// An echo sends back what it gets, and stops reading while it cannot.
type echo struct{ queue []byte }

func (e *echo) readable(p *probe) {
	b := p.Peek()
	e.queue = append(e.queue, b...)
	p.Discard(len(b))
	e.flush(p)
}

func (e *echo) flush(p *probe) {
	n, err := p.Writev([][]byte{e.queue})
	if err != nil {
		p.Close(err)
		return
	}
	e.queue = e.queue[n:]
	if len(e.queue) > 0 {
		p.Pause()
	} else {
		p.Resume()
	}
}

func newEcho() *probe {
	e := new(echo)
	return &probe{onReadable: e.readable, onWritable: e.flush}
}

func TestEcho(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		peer := g.attach(newEcho(), nil)
		const total = 4 << 20
		sent := make(chan error, 1)
		go func() {
			rng := rand.New(rand.NewPCG(1, 2))
			for at := 0; at < total; {
				b := make([]byte, min(1+rng.IntN(1<<rng.IntN(18)), total-at))
				fill(b, at)
				at += len(b)
				if _, err := peer.Write(b); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		got := make([]byte, total)
		if _, err := io.ReadFull(peer, got); err != nil {
			t.Fatal(err)
		}
		if err := await(t, sent, "the sender"); err != nil {
			t.Fatal(err)
		}
		if i := samePattern(got, 0); i >= 0 {
			t.Fatalf("byte %d differs", i)
		}
	})
}

// A pump sends the pattern up to total bytes in slices of odd sizes.
type pump struct {
	at, total int
	shorts    atomic.Int64
	firstOnce sync.Once
	first     chan struct{} // closed at the first short write
	stuck     chan int      // gets at, the newest only, when a push ends: after a short write or with the last byte
	scratch   []byte
}

func newPump(total int) *pump {
	return &pump{total: total, first: make(chan struct{}), stuck: make(chan int, 1), scratch: make([]byte, 1<<20)}
}

func (u *pump) push(p *probe) {
	defer func() {
		select {
		case <-u.stuck:
		default:
		}
		u.stuck <- u.at // the loop is the only sender
	}()
	for u.at < u.total {
		b := u.scratch[:min(len(u.scratch), u.total-u.at)]
		fill(b, u.at)
		var iov [][]byte
		for rest := b; len(rest) > 0; {
			n := min(len(rest), 30011)
			iov = append(iov, rest[:n])
			rest = rest[n:]
		}
		n, err := p.Writev(iov)
		if err != nil {
			p.Close(err)
			return
		}
		u.at += n
		if n < len(b) {
			u.shorts.Add(1)
			u.firstOnce.Do(func() { close(u.first) })
			return
		}
	}
}

func TestSlowReader(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		u := newPump(48 << 20)
		p := &probe{onWritable: u.push}
		peer := g.attach(p, nil)
		g.do(p.Loop(), func() { u.push(p) })
		// The reader waits until the sender is stuck, and takes what it had sent by then.
		table := crc32.MakeTable(crc32.Castagnoli)
		var got, want uint32
		b, expect := make([]byte, 100_000), make([]byte, 100_000)
		for at := 0; at < u.total; {
			for sent := await(t, u.stuck, "a short write"); at < sent; {
				n, err := peer.Read(b[:min(len(b), sent-at)])
				if err != nil {
					t.Fatalf("after %d of %d bytes: %v", at, sent, err)
				}
				fill(expect[:n], at)
				got = crc32.Update(got, table, b[:n])
				want = crc32.Update(want, table, expect[:n])
				at += n
			}
		}
		if got != want {
			t.Fatalf("checksum %08x, want %08x", got, want)
		}
		if u.shorts.Load() < 2 {
			t.Errorf("%d short writes", u.shorts.Load())
		}
	})
}

// receivePattern reads total bytes and compares them with the pattern.
func receivePattern(t testing.TB, peer net.Conn, total int) {
	t.Helper()
	b := make([]byte, total)
	if n, err := io.ReadFull(peer, b); err != nil {
		t.Fatalf("after %d of %d bytes: %v", n, total, err)
	}
	if i := samePattern(b, 0); i >= 0 {
		t.Fatalf("byte %d differs", i)
	}
}

func TestWritevSlices(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		for _, count := range []int{0, 1, 2, 8, 9, 1023, 1024, 1025, 2048, 5000} {
			g := newRig(t, m)
			var iov [][]byte
			size := 0
			for i := range count {
				b := make([]byte, i%3) // every third one is empty
				fill(b, size)
				size += len(b)
				iov = append(iov, b)
			}
			iov = append(iov, nil, []byte{})
			before := make([][]byte, len(iov))
			for i := range iov {
				before[i] = bytes.Clone(iov[i])
			}
			p := &probe{}
			peer := g.attach(p, nil)
			n := 0
			var err error
			g.do(p.Loop(), func() { n, err = p.Writev(iov) })
			if n != size || err != nil {
				t.Fatalf("count=%d: Writev = %d, %v, want %d", count, n, err, size)
			}
			for i := range iov {
				if len(iov[i]) != len(before[i]) || !bytes.Equal(iov[i], before[i]) {
					t.Fatalf("count=%d: slice %d was modified", count, i)
				}
			}
			receivePattern(t, peer, size)
			g.r.Stop()
		}
	})
}

// TestWritevShortKeepsSlices checks the caller's slices after a write that ended in the middle of one of them.
func TestWritevShortKeepsSlices(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		p := &probe{}
		peer := g.attach(p, nil)
		big := make([]byte, 16<<20)
		fill(big, 0)
		iov := [][]byte{big[:7], big[7:]}
		n := 0
		var err error
		g.do(p.Loop(), func() { n, err = p.Writev(iov) })
		if err != nil || n <= 7 || n >= len(big) {
			t.Fatalf("Writev = %d, %v, want a part of %d", n, err, len(big))
		}
		if len(iov[0]) != 7 || len(iov[1]) != len(big)-7 || &iov[1][0] != &big[7] {
			t.Fatal("slices were modified")
		}
		receivePattern(t, peer, n)
	})
}

// A sink counts the bytes it gets and compares them with the pattern.
type sink struct {
	at     int
	bad    int
	notify chan int // gets at after each call, if there is room
}

func newSink() *sink { return &sink{bad: -1, notify: make(chan int, 1)} }

func (s *sink) readable(p *probe) {
	b := p.Peek()
	s.take(b)
	p.Discard(len(b))
}

func (s *sink) take(b []byte) {
	if i := samePattern(b, s.at); i >= 0 && s.bad < 0 {
		s.bad = s.at + i
	}
	s.at += len(b)
	select {
	case <-s.notify:
	default:
	}
	s.notify <- s.at // the loop is the only sender
}

// awaitBytes waits until the sink has got total bytes, all good.
func (s *sink) awaitBytes(g *rig, l *Loop, total int) {
	g.t.Helper()
	for at := 0; at < total; {
		at = await(g.t, s.notify, "bytes")
	}
	bad, at := 0, 0
	g.do(l, func() { bad, at = s.bad, s.at })
	if bad >= 0 || at != total {
		g.t.Fatalf("got %d bytes, want %d; first wrong at %d", at, total, bad)
	}
}

func TestPause(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		s := newSink()
		pausedAt := make(chan int, 1)
		once := false
		p := &probe{onReadable: func(p *probe) {
			s.readable(p)
			if !once {
				once = true
				p.Pause()
				p.Pause()
				pausedAt <- s.at
			}
		}}
		peer := g.attach(p, nil)

		// Write until nothing is taken any more.
		const limit = 64 << 20
		sent := 0
		b := make([]byte, 256<<10)
		for {
			fill(b, sent)
			_ = peer.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
			n, err := peer.Write(b)
			sent += n
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if len(pausedAt) > 0 {
					break
				}
				eventually(t, "the pause", func() bool { return len(pausedAt) > 0 }) // the loop is late
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if sent > limit {
				t.Fatalf("%d bytes were taken from the peer of a paused connection", sent)
			}
		}
		stopped := await(t, pausedAt, "the pause")
		now := 0
		g.do(p.Loop(), func() { now = s.at })
		if now != stopped {
			t.Fatalf("paused after %d bytes, then readable gave %d more", stopped, now-stopped)
		}

		// Both ways out still work, and no FIN has gone to the peer.
		g.do(p.Loop(), func() {
			if n, err := p.Writev([][]byte{[]byte("still"), []byte(" here")}); n != 10 || err != nil {
				t.Errorf("Writev while paused = %d, %v", n, err)
			}
		})
		answer := make([]byte, 10)
		if _, err := io.ReadFull(peer, answer); err != nil || string(answer) != "still here" {
			t.Fatalf("peer read %q, %v", answer, err)
		}

		g.do(p.Loop(), func() {
			p.Resume()
			if p.busy {
				t.Error("readable was called from within Resume")
			}
			p.Resume()
		})
		s.awaitBytes(g, p.Loop(), sent)
	})
}

// TestPausedWriter fills the connection while paused and waits for writable.
func TestPausedWriter(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		u := newPump(12 << 20)
		s := newSink()
		p := &probe{onReadable: s.readable, onWritable: u.push}
		peer := g.attach(p, func(p *probe) { p.Pause() })
		g.do(p.Loop(), func() { u.push(p) })
		await(t, u.first, "a short write")
		half := u.total / 2
		receivePattern(t, peer, half)
		// Resumed in the middle: what is owed must move to the new descriptor.
		g.do(p.Loop(), func() { p.Resume() })
		rest := make([]byte, u.total-half)
		if _, err := io.ReadFull(peer, rest); err != nil {
			t.Fatal(err)
		}
		if i := samePattern(rest, half); i >= 0 {
			t.Fatalf("byte %d differs", half+i)
		}
		if _, err := peer.Write(patternBytes[:2]); err != nil {
			t.Fatal(err)
		}
		s.awaitBytes(g, p.Loop(), 2)
	})
}

func TestPauseResumeUnderLoad(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		const total = 24 << 20
		const rounds = 100
		g := newRig(t, m)
		s := newSink()
		rounded := make(chan int, 1)
		round, next := 0, 0
		big := make([]byte, 200_000)
		p := &probe{}
		p.onReadable = func(p *probe) {
			if round%2 == 0 {
				s.readable(p)
			} else {
				n := p.ReadInto(big)
				s.take(big[:n])
				s.readable(p)
			}
			if s.at >= next && round < rounds {
				next += total / (2 * rounds)
				round++
				p.Pause()
				if round%3 == 0 { // resumed within the same method
					p.Resume()
					p.Pause()
				}
				rounded <- round
			}
		}
		peer := g.attach(p, nil)
		sent := make(chan error, 1)
		go func() {
			b := make([]byte, 70_001)
			for at := 0; at < total; {
				b := b[:min(len(b), total-at)]
				fill(b, at)
				if _, err := peer.Write(b); err != nil {
					sent <- err
					return
				}
				at += len(b)
			}
			sent <- nil
		}()
		for i := 0; i < rounds; {
			i = await(t, rounded, "a pause")
			g.do(p.Loop(), func() {
				p.Resume()
				if i%5 == 0 { // while it is on its way back
					p.Pause()
					p.Resume()
				}
			})
		}
		s.awaitBytes(g, p.Loop(), total)
		if err := await(t, sent, "the sender"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLeftover checks that unconsumed bytes are kept, offered with newer ones only, and survive a pause.
func TestLeftover(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		seen := make(chan string, 16)
		keep := true
		p := &probe{}
		p.onReadable = func(p *probe) {
			b := p.Peek()
			seen <- string(b)
			if !keep {
				p.Discard(len(b))
			}
		}
		peer := g.attach(p, nil)
		g.do(p.Loop(), func() {}) // one in memory looks once for what came before it was attached
		send := func(s string) {
			t.Helper()
			if _, err := peer.Write([]byte(s)); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(want string) {
			t.Helper()
			if got := await(t, seen, "readable"); got != want {
				t.Fatalf("Peek = %q, want %q", got, want)
			}
		}
		send("ab")
		expect("ab")
		send("cd")
		expect("abcd")
		g.do(p.Loop(), func() {
			if len(seen) != 0 {
				t.Error("readable was called again for bytes left unconsumed")
			}
			p.Discard(0)
			p.Discard(1)
			var b [2]byte
			if n := p.ReadInto(b[:1]); n != 1 || b[0] != 'b' {
				t.Errorf("ReadInto = %d, %q", n, b[:1])
			}
			if got := string(p.Peek()); got != "cd" {
				t.Errorf("Peek = %q, want cd", got)
			}
			p.Pause()
		})
		send("ef")
		g.do(p.Loop(), func() {
			if got := string(p.Peek()); got != "cd" {
				t.Errorf("Peek while paused = %q, want cd", got)
			}
			p.Resume()
		})
		if got := await(t, seen, "readable"); got == "cd" {
			expect("cdef")
		} else if got != "cdef" {
			t.Fatalf("Peek = %q, want cd or cdef", got)
		}
		g.do(p.Loop(), func() {
			var b [9]byte
			keep = false
			if n := p.ReadInto(b[:]); string(b[:n]) != "cdef" {
				t.Errorf("ReadInto = %q, want cdef", b[:n])
			}
			if b := p.Peek(); len(b) != 0 {
				t.Errorf("Peek = %q, want nothing", b)
			}
		})
		send("gh")
		expect("gh")
	})
}

// TestResumeInsideHandler leaves bytes, pauses and resumes within one call: they are offered again.
func TestResumeInsideHandler(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		calls := make(chan string, 4)
		p := &probe{}
		p.onReadable = func(p *probe) {
			calls <- string(p.Peek())
			if len(calls) == 1 {
				p.Pause()
				p.Resume()
				return
			}
			p.Discard(len(p.Peek()))
		}
		peer := g.attach(p, nil)
		if _, err := peer.Write([]byte("once")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the second call", func() bool { return len(calls) == 2 })
		if a, b := <-calls, <-calls; a != "once" || b != "once" {
			t.Fatalf("got %q and %q", a, b)
		}
	})
}

// TestLargeFrame reads a frame far larger than any buffer straight into its destination.
func TestLargeFrame(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		const head, body = 16, 6<<20 + 12345
		frame := make([]byte, body)
		got, most := 0, 0
		header := 0
		whole := make(chan struct{})
		p := &probe{}
		p.onReadable = func(p *probe) {
			if header < head {
				n := min(head-header, len(p.Peek()))
				p.Discard(n)
				if header += n; header < head {
					return
				}
			}
			n := p.ReadInto(frame[got:])
			most = max(most, n)
			if got += n; got == len(frame) && n > 0 {
				close(whole)
			}
		}
		peer := g.attach(p, nil)
		sent := make([]byte, head+body)
		fill(sent, 0)
		go func() { _, _ = peer.Write(sent) }() // the reader notices
		await(t, whole, "the frame")
		if i := samePattern(frame, head); i >= 0 {
			t.Fatalf("byte %d differs", i)
		}
		if limit := directMax + defaultReadBufferBytes; most > limit {
			t.Errorf("one event took %d bytes, the limit is %d", most, limit)
		}
	})
}

// TestDirectBudget: what one event may read directly is bounded, and the rest comes with the next event.
func TestDirectBudget(t *testing.T) {
	g := newRig(t, media()[0])
	s := newSink()
	p := &probe{onReadable: s.readable}
	peer := g.attach(p, nil)
	const total, budget = 60_000, 10_000
	sent := make([]byte, total)
	fill(sent, 0)
	g.do(p.Loop(), func() {
		// While the loop is here gnet reads nothing.
		if _, err := peer.Write(sent); err != nil {
			t.Error(err)
		}
		tr := p.transport.(*gnetTransport)
		b := make([]byte, total)
		eventually(t, "all to have arrived", func() bool {
			n, _, _ := unix.Recvfrom(tr.fd, b, unix.MSG_PEEK)
			return n == total
		})
		tr.event, tr.budget = tr.loop.event, budget
		n := p.ReadInto(b[:1000])
		n += p.ReadInto(b[n:])
		if n != budget || samePattern(b[:n], 0) >= 0 {
			t.Errorf("one event took %d bytes, want %d", n, budget)
		}
		if n := p.ReadInto(b); n != 0 {
			t.Errorf("it took %d more", n)
		}
		s.at = n
	})
	s.awaitBytes(g, p.Loop(), total)
}

// TestNetReadIntoOffersTheRest: bytes that ReadInto took from the reader and did not return are offered.
func TestNetReadIntoOffersTheRest(t *testing.T) {
	g := newRig(t, medium{
		name:    "net/pipe",
		reactor: func(onRing func(*Loop)) (reactor, error) { return newNetReactor(netOptions{onRing: onRing}), nil },
		connect: func(testing.TB) (net.Conn, net.Conn) { return net.Pipe() },
	})
	rest := make(chan string, 2)
	first := true
	p := &probe{onReadable: func(p *probe) {
		b := make([]byte, 4)
		if first {
			first = false
			tr := p.transport.(*netTransport)
			eventually(t, "the second read", func() bool {
				tr.mu.Lock()
				defer tr.mu.Unlock()
				return tr.chunk != nil
			})
			if n := p.ReadInto(b); string(b[:n]) != "abcd" {
				t.Errorf("ReadInto = %q, want abcd", b[:n])
			}
			return
		}
		rest <- string(p.Peek())
	}}
	peer := g.attach(p, nil)
	for _, s := range []string{"ab", "cdef"} {
		if _, err := peer.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if got := await(t, rest, "the rest"); got != "ef" {
		t.Fatalf("offered %q, want ef", got)
	}
}

func TestCloseInside(t *testing.T) {
	cause := errors.New("enough")
	shut := func(p *probe) {
		p.Close(cause)
		p.Close(errors.New("twice"))
		if p.over {
			invariant.Bug("closed was called from within a method")
		}
		// All that can still be called does nothing.
		if n, err := p.Writev([][]byte{{1}}); n != 0 || err == nil {
			invariant.Bug("Writev after Close = %d, %v", n, err)
		}
		if b := p.Peek(); len(b) != 0 {
			invariant.Bug("Peek after Close = %q", b)
		}
		p.Pause()
		p.Resume()
		p.Discard(0)
	}
	cases := []struct {
		name string
		run  func(g *rig, p *probe) net.Conn
	}{
		{"open", func(g *rig, p *probe) net.Conn {
			return g.attach(p, shut)
		}},
		{"readable", func(g *rig, p *probe) net.Conn {
			p.onReadable = shut
			peer := g.attach(p, nil)
			_, _ = peer.Write([]byte("x"))
			return peer
		}},
		{"readable, after a pause", func(g *rig, p *probe) net.Conn {
			p.onReadable = func(p *probe) { p.Pause(); shut(p) }
			peer := g.attach(p, nil)
			_, _ = peer.Write([]byte("x"))
			return peer
		}},
		{"writable", func(g *rig, p *probe) net.Conn {
			u := newPump(1 << 30)
			p.onWritable = shut
			peer := g.attach(p, nil)
			g.do(p.Loop(), func() { u.push(p) })
			go func() { _, _ = io.Copy(io.Discard, peer) }() // ends with the connection
			return peer
		}},
		{"ring", func(g *rig, p *probe) net.Conn {
			peer := g.attach(p, nil)
			g.do(p.Loop(), func() {
				p.Close(cause)
				if !p.over {
					g.t.Error("closed was not called at once")
				}
				p.Close(nil)
			})
			return peer
		}},
		{"ring, paused", func(g *rig, p *probe) net.Conn {
			peer := g.attach(p, func(p *probe) { p.Pause() })
			g.do(p.Loop(), func() { p.Close(cause) })
			return peer
		}},
		{"closed", func(g *rig, p *probe) net.Conn {
			p.onClosed = func(p *probe, _ error) {
				p.Close(nil)
				p.Pause()
				p.Resume()
				if n, err := p.Writev([][]byte{{1}}); n != 0 || err == nil {
					g.t.Errorf("Writev in closed = %d, %v", n, err)
				}
			}
			peer := g.attach(p, nil)
			g.do(p.Loop(), func() { p.Close(cause) })
			return peer
		}},
	}
	eachMedium(t, func(t *testing.T, m medium) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				g := newRig(t, m)
				p := &probe{}
				peer := c.run(g, p)
				if err := await(t, p.end, "closed"); err != cause {
					t.Fatalf("closed(%v), want %v", err, cause)
				}
				if c.name != "writable" {
					if _, err := io.Copy(io.Discard, peer); err != nil && !errors.Is(err, syscall.ECONNRESET) {
						t.Fatalf("peer read: %v", err)
					}
				}
				g.r.Stop()
				if len(p.end) != 0 {
					t.Fatal("closed was called twice")
				}
			})
		}
	})
}

// TestCloseNeighbour closes connections from within the handler of another one on the same loop.
func TestCloseNeighbour(t *testing.T) {
	for _, m := range media() {
		if !m.gnet() || strings.Contains(m.name, "loops=2") {
			continue // else each has a loop of its own
		}
		t.Run(m.name, func(t *testing.T) {
			g := newRig(t, m)
			var others []*probe
			var peers []net.Conn
			for range 20 {
				p := &probe{}
				peers = append(peers, g.attach(p, nil))
				others = append(others, p)
			}
			p := &probe{onReadable: func(*probe) {
				for i, o := range others {
					o.Close(nil)
					if !o.over {
						t.Errorf("closed of %d was not called at once", i)
					}
				}
			}}
			peer := g.attach(p, nil)
			// All are readable in the same turn of the loop.
			g.do(p.Loop(), func() {
				for _, c := range append(peers, peer) {
					_, _ = c.Write([]byte("x"))
				}
			})
			for _, o := range others {
				if err := await(t, o.end, "closed"); err != nil {
					t.Fatal(err)
				}
			}
			// The loop lives.
			g.do(p.Loop(), func() { p.Close(nil) })
			_ = await(t, p.end, "closed")
		})
	}
}

func TestPeerCloses(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		ways := map[string]func(net.Conn) error{"close": net.Conn.Close}
		if !m.pipe() {
			ways["half-close"] = func(c net.Conn) error { return c.(interface{ CloseWrite() error }).CloseWrite() }
		}
		for name, way := range ways {
			t.Run(name, func(t *testing.T) {
				g := newRig(t, m)
				s := newSink()
				p := &probe{onReadable: s.readable}
				peer := g.attach(p, nil)
				b := make([]byte, 300_000)
				fill(b, 0)
				if _, err := peer.Write(b); err != nil {
					t.Fatal(err)
				}
				if err := way(peer); err != nil {
					t.Fatal(err)
				}
				if err := await(t, p.end, "closed"); err != io.EOF {
					t.Fatalf("closed(%v), want io.EOF", err)
				}
				g.r.Stop()
				if s.at != len(b) || s.bad >= 0 {
					t.Fatalf("got %d of %d bytes before the end, first wrong at %d", s.at, len(b), s.bad)
				}
				if len(p.end) != 0 {
					t.Fatal("closed was called twice")
				}
			})
		}
	})
}

// After CloseWrite the peer reads what was written and then the end; what it sends still arrives.
func TestCloseWrite(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		if m.pipe() {
			return // net.Pipe has no half-close
		}
		g := newRig(t, m)
		s := newSink()
		p := &probe{onReadable: s.readable}
		peer := g.attach(p, nil)
		last := []byte("the reason")
		g.do(p.Loop(), func() {
			if n, err := p.Writev([][]byte{last}); n != len(last) || err != nil {
				t.Errorf("Writev: %d, %v", n, err)
			}
			p.CloseWrite()
			p.CloseWrite()
		})
		if got, err := io.ReadAll(peer); err != nil || string(got) != string(last) {
			t.Fatalf("the peer read %q, %v", got, err)
		}
		b := make([]byte, 300_000)
		fill(b, 0)
		if _, err := peer.Write(b); err != nil {
			t.Fatal(err)
		}
		_ = peer.Close()
		if err := await(t, p.end, "closed"); err != io.EOF {
			t.Fatalf("closed(%v), want io.EOF", err)
		}
		g.r.Stop()
		if s.at != len(b) || s.bad >= 0 {
			t.Fatalf("got %d of %d bytes after CloseWrite, first wrong at %d", s.at, len(b), s.bad)
		}
	})
}

// reset closes a TCP connection so that the peer gets a reset.
func reset(t testing.TB, conn net.Conn) {
	t.Helper()
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReset(t *testing.T) {
	for _, paused := range []bool{false, true} {
		name := map[bool]string{false: "reading", true: "paused"}[paused]
		t.Run(name, func(t *testing.T) {
			eachMedium(t, func(t *testing.T, m medium) {
				if !m.tcp() {
					t.Skip("only TCP has a reset")
				}
				g := newRig(t, m)
				p := &probe{}
				peer := g.attach(p, func(p *probe) {
					if paused {
						p.Pause()
					}
				})
				reset(t, peer)
				if err := await(t, p.end, "closed"); !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("closed(%v), want a reset", err)
				}
			})
		})
	}
}

// TestPeerClosesWhilePaused: the last bytes of a peer that has closed in good order are there after Resume.
func TestPeerClosesWhilePaused(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		s := newSink()
		p := &probe{onReadable: s.readable}
		peer := g.attach(p, func(p *probe) { p.Pause() })
		b := make([]byte, 3000)
		fill(b, 0)
		if _, err := peer.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := peer.Close(); err != nil {
			t.Fatal(err)
		}
		if tr, ok := p.transport.(*gnetTransport); ok && !m.tcp() {
			// The hang-up has been seen, and is not looked at again and again.
			eventually(t, "the hang-up", func() bool {
				hung := false
				g.do(p.Loop(), func() { hung = tr.hung && !tr.armed })
				return hung
			})
		}
		g.do(p.Loop(), func() {
			if s.at != 0 || p.over {
				t.Errorf("got %d bytes while paused, closed=%t", s.at, p.over)
			}
			p.Resume()
		})
		if err := await(t, p.end, "closed"); err != io.EOF {
			t.Fatalf("closed(%v), want io.EOF", err)
		}
		g.r.Stop()
		if s.at != len(b) || s.bad >= 0 {
			t.Fatalf("got %d of %d bytes, first wrong at %d", s.at, len(b), s.bad)
		}
	})
}

// TestCloseOnTheWayBack closes connections that gnet is about to take back.
func TestCloseOnTheWayBack(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		for range 50 {
			p := &probe{}
			peer := g.attach(p, nil)
			g.do(p.Loop(), func() {
				p.Pause()
				p.Resume()
				p.Close(nil)
			})
			if err := await(t, p.end, "closed"); err != nil {
				t.Fatalf("closed(%v)", err)
			}
			if _, err := io.Copy(io.Discard, peer); err != nil {
				t.Fatalf("peer read: %v", err) // in particular: no end of the stream
			}
		}
	})
}

func TestRingLaterLetsIOThrough(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		var rings atomic.Int64
		var quiet atomic.Bool
		g.onRing = func(l *Loop) {
			rings.Add(1)
			if !quiet.Load() {
				l.RingLater()
			}
		}
		p := newEcho()
		peer := g.attach(p, nil)
		p.Loop().RingLater()
		eventually(t, "rings", func() bool { return rings.Load() > 100 })
		b := make([]byte, 64)
		for i := range 500 {
			fill(b, i)
			if _, err := peer.Write(b); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(peer, b); err != nil {
				t.Fatal(err)
			}
			if j := samePattern(b, i); j >= 0 {
				t.Fatalf("round %d: byte %d differs", i, j)
			}
		}
		quiet.Store(true)
	})
}

func TestRingsCoalesce(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		var calls atomic.Int64
		begun, goOn := make(chan struct{}), make(chan struct{})
		g.onRing = func(*Loop) {
			if calls.Add(1) == 1 {
				close(begun)
				<-goOn
			}
		}
		p := &probe{}
		g.attach(p, nil)
		p.Loop().Ring()
		await(t, begun, "the first ring")
		var ringers sync.WaitGroup
		for range 4 {
			ringers.Go(func() {
				for range 10_000 {
					p.Loop().Ring()
					p.Loop().RingLater()
				}
			})
		}
		ringers.Wait()
		close(goOn)
		eventually(t, "the second ring", func() bool { return calls.Load() >= 2 })
		g.do(p.Loop(), func() {})
		// The first, all that came during the first, do's own.
		if n := calls.Load(); n > 3 {
			t.Fatalf("%d calls of onRing", n)
		}
	})
}

// TestRingsAreNotLost rings from several goroutines and checks that each ring is followed by a call.
func TestRingsAreNotLost(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		var posted, seen [4]atomic.Int64
		g.onRing = func(*Loop) {
			for i := range posted {
				seen[i].Store(posted[i].Load())
			}
		}
		p := &probe{}
		g.attach(p, nil)
		var ringers sync.WaitGroup
		for i := range posted {
			ringers.Go(func() {
				for n := range int64(2000) {
					posted[i].Store(n + 1)
					if n%2 == 0 {
						p.Loop().Ring()
					} else {
						p.Loop().RingLater()
					}
					eventually(t, "the ring's call", func() bool { return seen[i].Load() > n })
				}
			})
		}
		ringers.Wait()
	})
}

func TestStop(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		var probes []*probe
		for i := range 12 {
			p := &probe{}
			g.attach(p, func(p *probe) {
				if i%3 == 0 {
					p.Pause()
				}
			})
			if i%4 == 0 {
				g.start(p.Loop(), func() { p.Pause(); p.Resume() }) // perhaps on its way back
			}
			probes = append(probes, p)
		}
		g.r.Stop()
		g.r.Stop()
		for i, p := range probes {
			select {
			case err := <-p.end:
				if err != ErrStopped {
					t.Errorf("connection %d: closed(%v)", i, err)
				}
			default:
				t.Errorf("connection %d is not closed after Stop", i)
			}
			p.Loop().Ring()
			p.Loop().RingLater()
		}
		peer, ours := m.connect(t)
		defer peer.Close() //nolint:errcheck // nothing depends on it
		err := g.r.Attach(ours, func(transport) handler {
			t.Error("open was called after Stop")
			return nil
		})
		if err != ErrStopped {
			t.Fatalf("Attach = %v", err)
		}
		_ = peer.SetDeadline(time.Now().Add(testDeadline))
		if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("the refused connection is not closed: %v", err)
		}
	})
}

// TestStopWhileAttaching stops while connections come.
func TestStopWhileAttaching(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		var attaching sync.WaitGroup
		var opened, closed atomic.Int64
		enough := make(chan struct{})
		for range 4 {
			attaching.Go(func() {
				for {
					peer, ours := m.connect(t)
					p := &probe{end: make(chan error, 1), onClosed: func(*probe, error) { closed.Add(1) }}
					err := g.r.Attach(ours, func(tr transport) handler {
						p.transport = tr
						if opened.Add(1) == 10 {
							close(enough)
						}
						return p
					})
					_ = peer.Close()
					if err == ErrStopped {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		await(t, enough, "connections")
		g.r.Stop()
		attaching.Wait()
		if opened.Load() != closed.Load() {
			t.Fatalf("%d opened, %d closed", opened.Load(), closed.Load())
		}
	})
}

// descriptors counts the process's open files; 0 where it cannot.
func descriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// goroutines counts those that this package started, directly or in gnet.
func goroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		created := stack[strings.LastIndex(stack, "created by ")+1:]
		// gnet's pool keeps idle workers for a while.
		if (strings.Contains(created, "/loop.") || strings.Contains(created, "/gnet/")) &&
			!strings.Contains(stack, "testing.tRunner") && !strings.Contains(created, "/ants/") {
			n++
		}
	}
	return n
}

func TestNoLeaks(t *testing.T) {
	eachMedium(t, func(t *testing.T, m medium) {
		descriptorsBefore, goroutinesBefore := descriptors(), goroutines()
		g := newRig(t, m)
		var probes []*probe
		var peers []net.Conn
		for i := range 200 {
			p := newEcho()
			peer := g.attach(p, nil)
			probes, peers = append(probes, p), append(peers, peer)
			if i%10 == 0 {
				g.do(p.Loop(), func() { p.Pause() })
			}
			if i%20 == 0 {
				g.do(p.Loop(), func() { p.Resume() })
			}
		}
		for i, p := range probes {
			switch i % 4 {
			case 0:
				g.do(p.Loop(), func() { p.Close(nil) })
			case 1:
				g.do(p.Loop(), func() { p.Resume() })
				if err := peers[i].Close(); err != nil {
					t.Fatal(err)
				}
			default:
				continue // closed by Stop
			}
			_ = await(t, p.end, "closed")
		}
		g.r.Stop()
		for _, peer := range peers {
			_ = peer.Close()
		}
		eventually(t, "descriptors to be closed", func() bool { return descriptors() <= descriptorsBefore })
		eventually(t, "goroutines to end", func() bool { return goroutines() <= goroutinesBefore })
	})
}

// TestLingerEnds: a peer that never reads does not keep a closed connection's goroutines.
func TestLingerEnds(t *testing.T) {
	r := newNetReactor(netOptions{}).(*netReactor)
	defer r.Stop()
	peer, ours := net.Pipe()
	defer peer.Close() //nolint:errcheck // nothing depends on it
	p := &probe{end: make(chan error, 1)}
	if err := r.Attach(ours, func(tr transport) handler {
		p.transport = tr
		_, _ = tr.Writev([][]byte{[]byte("last words")})
		tr.Close(nil)
		return p
	}); err != nil {
		t.Fatal(err)
	}
	_ = await(t, p.end, "closed")
	eventually(t, "the connection to be closed", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.transports) == 0
	})
}

func TestWritevAllocatesNothing(t *testing.T) {
	if invariant.Enabled {
		t.Skip("the race detector allocates")
	}
	eachMedium(t, func(t *testing.T, m medium) {
		g := newRig(t, m)
		p := &probe{}
		peer := g.attach(p, nil)
		go func() {
			b := make([]byte, 1<<20)
			for {
				if _, err := peer.Read(b); err != nil {
					return
				}
			}
		}()
		counts := []int{1, 8, 9, 1500}
		if runtime.GOOS != "linux" {
			counts = counts[:2]
		}
		for _, count := range counts {
			iov := make([][]byte, count)
			for i := range iov {
				iov[i] = make([]byte, 3)
			}
			var allocs float64
			g.do(p.Loop(), func() {
				allocs = testing.AllocsPerRun(200, func() {
					if _, err := p.Writev(iov); err != nil {
						t.Error(err)
					}
				})
			})
			if allocs != 0 {
				t.Errorf("%d slices: %.1f allocations", count, allocs)
			}
		}
	})
}

// TestFairness: on one loop, a sender at full speed does not keep another connection from its answers.
func TestFairness(t *testing.T) {
	for _, m := range media() {
		if !m.gnet() || strings.Contains(m.name, "loops=2") {
			continue // else each has a loop of its own
		}
		t.Run(m.name, func(t *testing.T) {
			g := newRig(t, m)
			b16 := make([]byte, 16<<10)
			events, most := 0, 0
			flooded := make(chan struct{})
			fast := &probe{onReadable: func(p *probe) {
				total := 0
				for n := len(b16); n == len(b16); total += n { // takes all it can get
					n = p.ReadInto(b16)
				}
				most = max(most, total)
				if events++; events == 1 {
					close(flooded)
				}
			}}
			fastPeer := g.attach(fast, nil)
			slow := newEcho()
			slowPeer := g.attach(slow, nil)
			if fast.Loop() != slow.Loop() {
				t.Fatal("two loops")
			}
			var flood sync.WaitGroup
			flood.Go(func() {
				b := make([]byte, 1<<20)
				for {
					if _, err := fastPeer.Write(b); err != nil {
						return
					}
				}
			})
			await(t, flooded, "the flood")
			b := make([]byte, 32)
			for range 300 {
				if _, err := slowPeer.Write(b); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(slowPeer, b); err != nil {
					t.Fatal(err)
				}
			}
			g.do(fast.Loop(), func() {
				if events == 0 {
					t.Error("the fast sender was not served")
				}
				if limit := directMax + defaultReadBufferBytes; most > limit {
					t.Errorf("one event took %d bytes, the limit is %d", most, limit)
				}
				fast.Close(nil)
			})
			flood.Wait()
		})
	}
}

// TestSocketOptions: accepted sockets send small frames at once (field case F76) and notice dead peers.
func TestSocketOptions(t *testing.T) {
	m := media()[0]
	g := newRig(t, m)
	peer, ours := m.connect(t)
	defer peer.Close() //nolint:errcheck // nothing depends on it
	tcp := ours.(*net.TCPConn)
	if err := errors.Join(tcp.SetNoDelay(false), tcp.SetKeepAlive(false)); err != nil {
		t.Fatal(err)
	}
	p := &probe{end: make(chan error, 1)}
	if err := g.r.Attach(ours, func(tr transport) handler { p.transport = tr; return p }); err != nil {
		t.Fatal(err)
	}
	check := func() {
		for name, option := range map[string][2]int{
			"TCP_NODELAY":  {unix.IPPROTO_TCP, unix.TCP_NODELAY},
			"SO_KEEPALIVE": {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		} {
			if v, err := unix.GetsockoptInt(p.transport.(*gnetTransport).fd, option[0], option[1]); err != nil || v == 0 {
				t.Errorf("%s = %d, %v", name, v, err)
			}
		}
	}
	g.do(p.Loop(), check)
	g.do(p.Loop(), func() { p.Pause(); p.Resume() })
	eventually(t, "the connection to be back", func() bool {
		back := false
		g.do(p.Loop(), func() { back = p.transport.(*gnetTransport).conn != nil })
		return back
	})
	g.do(p.Loop(), check)
	if got, want := p.RemoteAddr().String(), peer.LocalAddr().String(); got != want {
		t.Errorf("RemoteAddr = %s, want %s", got, want)
	}
}

func TestGnetRefusesOtherConns(t *testing.T) {
	g := newRig(t, media()[0])
	peer, ours := net.Pipe()
	defer peer.Close() //nolint:errcheck // nothing depends on it
	if err := g.r.Attach(ours, func(transport) handler { t.Error("open was called"); return nil }); err == nil {
		t.Fatal("no error")
	}
	if _, err := peer.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("the refused connection is not closed: %v", err)
	}
}

// TestLoops: connections are spread over the loops, and each has its own.
func TestLoops(t *testing.T) {
	g := newRig(t, media()[1])
	count := make(map[*Loop]int)
	for range 10 {
		p := &probe{}
		g.attach(p, nil)
		count[p.Loop()]++
	}
	if len(count) != 2 {
		t.Fatalf("%d loops", len(count))
	}
	for l, n := range count {
		if n != 5 {
			t.Errorf("loop %p has %d connections", l, n)
		}
	}
}

func BenchmarkWritev(b *testing.B) {
	for _, m := range media() {
		b.Run(m.name, func(b *testing.B) {
			g := newRig(b, m)
			iov := make([][]byte, 64)
			for i := range iov {
				iov[i] = make([]byte, 4096)
			}
			size := len(iov) * len(iov[0])
			left := 0
			finished := make(chan struct{}, 1)
			push := func(p *probe) {
				for left > 0 {
					n, err := p.Writev(iov)
					if err != nil {
						b.Error(err)
						return
					}
					left -= n
					if n < size {
						return
					}
				}
				finished <- struct{}{}
			}
			p := &probe{onWritable: push}
			peer := g.attach(p, nil)
			go func() { // ends with the connection
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, peer, make([]byte, 256<<10))
			}()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.ResetTimer()
			g.start(p.Loop(), func() { left = b.N * size; push(p) })
			await(b, finished, "the writes")
		})
	}
}
