package loop

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// A bench is a broker without sockets, loops or ticks, and one session on a transport that the test plays: everything runs on
// the test's goroutine, but for partitions' writers.
type bench struct {
	t    testing.TB
	b    *Broker
	loop *Loop
	h    handler

	in     []byte // Peek's
	out    []byte // written
	room   int    // bytes that Writev takes before it is blocked
	writes int    // calls of Writev
	held   int    // bytes that the test's limit on room kept back
	paused bool
	shut   bool
	closed bool
	over   bool // handler.closed was called
	inside bool
	rung   chan struct{}
}

func newBench(t testing.TB, limits Limits) *bench {
	limits = limits.complete()
	v := &bench{t: t, rung: make(chan struct{}, 1), room: 1 << 30}
	v.b = &Broker{
		cfg: Config{Name: "bench", AdminUser: "root", AdminPassword: "top"}, limits: limits, log: slog.New(slog.DiscardHandler),
		topics: topic.NewRegistry(limits.MaxPartitions), slabs: codec.NewSlabPool(0), states: map[*loopState]struct{}{},
		started: time.Now(),
	}
	v.b.memory.init(v.b.slabs, limits.MemoryBytes)
	ring := func() {
		select {
		case v.rung <- struct{}{}:
		default:
		}
	}
	v.loop = &Loop{ring: ring, stall: ring, onRing: v.b.onRing}
	door := newAcceptor(acceptOptions{})
	door.enter(memAddr{})
	v.event(func() { v.h = v.b.open(v, door) })
	return v
}

// event runs one method of the handler, and what comes of it.
func (v *bench) event(f func()) {
	v.inside = true
	f()
	v.inside = false
	v.settle()
	for {
		select {
		case <-v.rung:
			if !v.over {
				v.loop.onRing(v.loop)
				v.settle()
			}
			continue
		default:
		}
		return
	}
}

func (v *bench) settle() {
	if v.closed && !v.over && v.h != nil {
		v.over = true
		v.h.closed(nil)
	}
}

// feed gives the session bytes, as one read would.
func (v *bench) feed(b []byte) {
	v.in = append(v.in, b...)
	if !v.closed && !v.paused {
		v.event(v.h.readable)
	}
}

// drain lets the session write all it has, and read what it left while it was paused.
func (v *bench) drain() {
	for i := 0; !v.closed; i++ {
		if i > 1<<20 {
			v.t.Fatal("the session does not come to rest")
		}
		wrote, read := len(v.out), len(v.in)
		v.room = 1 << 30
		v.event(v.h.writable)
		if !v.paused && len(v.in) > 0 {
			v.event(v.h.readable)
		}
		if wrote == len(v.out) && read == len(v.in) {
			return
		}
	}
}

// end closes the connection and fails the test if anything is left of it.
func (v *bench) end() {
	v.t.Helper()
	v.event(func() { v.Close(nil) })
	if !v.over {
		v.t.Fatal("the session was not told that its connection is closed")
	}
	if n := v.b.conns.Load(); n != 0 {
		v.t.Fatalf("%d connections are left", n)
	}
	if n := v.b.logins.Load(); n != 0 {
		v.t.Fatalf("%d logins are left", n)
	}
	// Everything that is kept is a topic's.
	v.b.topics.Each(func(top *topic.Topic) bool {
		for _, p := range top.Partitions() {
			if i := p.Info(); i.Publishers != 0 || i.Subscriptions != 0 {
				v.t.Fatalf("topic %s is left with %+v", top.Name(), i)
			}
		}
		if err := v.b.topics.Delete(top.Name(), 0); err != nil {
			v.t.Fatal(err)
		}
		return true
	})
	eventually(v.t, "the slabs to be free", func() bool { return v.b.slabs.InUseBytes() == 0 })
}

// What follows is the transport.

func (v *bench) Peek() []byte {
	if v.closed {
		return nil
	}
	return v.in
}

func (v *bench) Discard(n int) {
	if v.closed {
		return
	}
	if n < 0 || n > len(v.in) {
		panic("BUG: discard of what is not there")
	}
	clear(v.in[:n]) // what Peek returned is not valid any more
	v.in = v.in[n:]
}

func (v *bench) ReadInto(p []byte) int {
	if v.closed {
		return 0
	}
	n := copy(p, v.in)
	v.Discard(n)
	return n
}

func (v *bench) Writev(iov [][]byte) (int, error) {
	if v.closed {
		return 0, net.ErrClosed
	}
	v.writes++
	total := 0
	for _, b := range iov {
		n := min(len(b), v.room)
		v.out = append(v.out, b[:n]...)
		v.room -= n
		total += n
		if n < len(b) {
			v.held++
			break
		}
	}
	return total, nil
}

func (v *bench) Pause()      { v.paused = true }
func (v *bench) CloseWrite() { v.shut = true }

func (v *bench) Resume() { v.paused = false }

func (v *bench) Close(error) {
	v.closed = true
	if !v.inside {
		v.settle()
	}
}

func (v *bench) Loop() *Loop          { return v.loop }
func (v *bench) LocalAddr() net.Addr  { return memAddr{} }
func (v *bench) RemoteAddr() net.Addr { return memAddr{} }

// fuzzLimits are small, so that an input reaches them.
var fuzzLimits = Limits{
	HandlesPerConn: 8, WindowBytes: 64 << 10, MaxCreditBytes: 256 << 10, MaxPartitions: 64, maxFrameBytes: 128 << 10, controlBacklogHigh: 8 << 10,
}

// Whatever arrives on a fresh connection, in whatever pieces, and however little the peer reads: no panic, every frame that
// is sent is whole, memory follows what has arrived, and in the end nothing is left.
func FuzzSession(f *testing.F) {
	frames, _ := capture()
	for _, frame := range frames {
		f.Add(uint8(1), uint16(3), frame)
	}
	f.Add(uint8(0), uint16(7), bytes.Join(frames, nil))
	f.Add(uint8(0), uint16(1), []byte(`{"cmd":"ping"}`+"\n"))
	f.Add(uint8(0), uint16(0), []byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(uint8(2), uint16(5), publishFrame(1, 1, 0, batchOf([]byte("a"), []byte("b")), batchOf(make([]byte, 20_000))))
	f.Add(uint8(2), uint16(5), slices.Concat(codec.AppendClose(nil, 9, 1), codec.AppendClose(nil, 9, 1)))
	f.Add(uint8(2), uint16(5), slices.Concat(codec.AppendDelete(nil, 9, "t"), codec.AppendCredit(nil, 2, 1000), codec.AppendClose(nil, 9, 2)))
	f.Add(uint8(6), uint16(90), bytes.Repeat(codec.AppendStats(nil, 9), 200))

	hello := codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "fuzz"})
	ready := slices.Concat(
		hello,
		createFrame("t", codec.TopicSettings{Partitions: 2, MaxBatchBytes: 32 << 10, RingBytes: 80 << 10}),
		openFrame(1, codec.Open{Topic: "t", Epoch: 1}),
		subscribeFrame(2, codec.Subscribe{Topic: "t", CreditBytes: 10_000}),
		subscribeFrame(3, codec.Subscribe{Topic: "t", Kind: codec.KindPull, Name: "g", CreditBytes: 10_000}),
	)
	f.Fuzz(func(t *testing.T, how uint8, piece uint16, input []byte) {
		v := newBench(t, fuzzLimits)
		native := true
		switch how & 3 {
		case 0:
			native = len(input) == 0 || input[0] != '{'
		case 1:
			v.feed(hello)
		default:
			v.feed(ready)
		}
		deaf := how&4 != 0
		if deaf {
			v.room = int(piece) // from here on the peer reads no more than this
		}
		size := int(piece)%257 + 1
		received := len(ready)
		for rest := input; len(rest) > 0 && !v.closed; {
			n := min(size, len(rest))
			v.feed(rest[:n])
			rest = rest[n:]
			received += n
			// A session may take a slab of its own for each frame that has begun, an outbox, and what it has published.
			if most := int64(4*received + 2*fuzzLimits.maxFrameBytes + 256<<10); v.b.slabs.InUseBytes() > most {
				t.Fatalf("%d bytes of slabs are in use after %d were received", v.b.slabs.InUseBytes(), received)
			}
		}
		if s, ok := v.h.(*session); ok && len(s.stash) > maxJSONBytes+maxControlBytes {
			t.Fatalf("%d bytes are stashed", len(s.stash))
		}
		v.drain()
		v.end()
		out := v.out
		for native && len(out) >= codec.HeaderBytes {
			h, err := codec.ParseHeader(out, 16<<20)
			if err != nil || h.FrameBytes() > len(out) {
				break
			}
			out = out[h.FrameBytes():]
		}
		if native && len(out) > 0 && !(v.closed && v.held > 0) {
			t.Fatalf("it sent %d bytes that are no frames", len(out))
		}
	})
}

// Whatever follows the first brace: each line gets one object in answer, errors name their code, and nothing is left.
func FuzzJSON(f *testing.F) {
	for _, request := range []string{
		`{"cmd":"ping"}`, `{"cmd":"create_topic","topic":"t","broker_type":"queue","partitions":2,"user_id":"u","password":"p","admin_user_id":"root","admin_password":"top"}`,
		`{"cmd":"join","type":"sub","topic":"known_1","user_id":"u","password":"p","connection_type":"zmq"}`, `{"cmd":"stats","topic":"known"}`,
		"{\"cmd\":\"ping\"}\n{\"cmd\":\"ping\"}\r\n\n", `{}`, `{`, `{"cmd":"\ud800"}`, `{"cmd":"ping","x":1}`,
	} {
		f.Add(uint16(10), []byte(request))
	}
	f.Fuzz(func(t *testing.T, piece uint16, input []byte) {
		v := newBench(t, fuzzLimits)
		if _, _, err := v.b.createTopic("known", codec.TopicSettings{Partitions: 2}, "u", "p"); err != nil {
			t.Fatal(err)
		}
		if len(input) == 0 || input[0] != '{' {
			input = append([]byte{'{'}, input...)
		}
		size := int(piece)%257 + 1
		for rest := input; len(rest) > 0; {
			n := min(size, len(rest))
			v.feed(rest[:n])
			rest = rest[n:]
		}
		v.feed([]byte("\n"))
		s := v.h.(*session)
		if len(s.stash) != 0 {
			t.Fatalf("%q is left behind a newline", s.stash)
		}
		v.drain()
		replies := bytes.Count(v.out, []byte("\n"))
		if len(v.out) == 0 && len(bytes.TrimSpace(input)) > 0 || len(v.out) > 0 && v.out[len(v.out)-1] != '\n' {
			t.Fatalf("answered %q", v.out)
		}
		// An object of at most 4 KiB needs no newline, so one that arrives in pieces may be several requests.
		if most := bytes.Count(input, []byte("\n")) + bytes.Count(input, []byte("}")) + 1; replies > most {
			t.Fatalf("%d replies to at most %d requests", replies, most)
		}
		for i, line := range bytes.Split(bytes.TrimSuffix(v.out, []byte("\n")), []byte("\n")) {
			if len(v.out) == 0 {
				break
			}
			var reply struct{ Cmd, Status, Code, Description string }
			if err := json.Unmarshal(line, &reply); err != nil {
				t.Fatalf("reply %q: %v", line, err)
			}
			known := slices.ContainsFunc(codec.Codes, func(c codec.CodeInfo) bool { return c.Name == reply.Code && c.Code != codec.CodeNone })
			switch reply.Status {
			case "ok":
				if reply.Code != "" || reply.Cmd == "" {
					t.Fatalf("reply %d is %q", i, line)
				}
			case "error":
				if !known || reply.Description == "" || reply.Code == codec.CodeInternal.String() {
					t.Fatalf("reply %d is %q", i, line)
				}
			default:
				t.Fatalf("reply %d is %q", i, line)
			}
			if reply.Code == codec.CodeMalformedFrame.String() && i != replies-1 {
				t.Fatalf("answers follow %q", line)
			}
		}
		if v.shut != (s.phase == phaseClosing) {
			t.Fatalf("phase %d, shut %v", s.phase, v.shut)
		}
		v.end()
	})
}
