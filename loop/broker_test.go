package loop

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

func TestPublishAndDeliver(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pub, sub := dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{})
		pub.open(7, "orders", 0, 1)
		r := sub.subscribe(9, codec.Subscribe{Topic: "orders", CreditBytes: 1 << 20})
		if r.Begin != 0 || r.Partitions != 1 {
			t.Fatalf("%+v", r)
		}
		large := bytes.Repeat([]byte("L"), 600_000)
		pub.write(publishFrame(7, 1, 0, batchOf([]byte("a"), []byte("b")), batchOf([]byte("c"))))
		pub.write(publishFrame(7, 1, 2, batchOf(large)))
		for i, want := range []codec.Offset{0, 2, 3} {
			if r := pub.confirm(); r.Code != codec.CodeNone || r.Base != want {
				t.Fatalf("batch %d: %+v, want offset %d", i, r, want)
			}
		}
		values, gaps := sub.records(9, 0, 4, false)
		if want := [][]byte{[]byte("a"), []byte("b"), []byte("c"), large}; !equal(values, want) || len(gaps) != 0 {
			t.Fatalf("delivered %d records and gaps %v, which differ from those published", len(values), gaps)
		}
	}, pipeDoor)
}

// One connection publishes and consumes several rings of a blocking topic, pipelined.
func TestPublishAndConsumeOnOneConnection(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{WindowBytes: 256 << 10}}))
		p := dial(t, b).hello()
		p.create("own", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		p.open(1, "own", 0, 1)
		p.subscribe(2, codec.Subscribe{Topic: "own", CreditBytes: 100_000})
		_, batches := numbered(100, 40_000)
		tokens := make(chan struct{}, 1000) // one for each batch that the window has room for
		room := (256<<10 - 1) / len(batches[0])
		for range room {
			tokens <- struct{}{}
		}
		var writing sync.Mutex
		write := func(b []byte) {
			writing.Lock()
			defer writing.Unlock()
			if err := p.tryWrite(b); err != nil {
				t.Error(err)
			}
		}
		var writers sync.WaitGroup
		writers.Go(func() {
			for i, batch := range batches {
				<-tokens
				write(publishFrame(1, 1, uint64(i), batch))
			}
		})
		confirmed, delivered := 0, 0
		for confirmed < len(batches) || delivered < len(batches) {
			h, section, payload := p.next()
			switch h.Type {
			case codec.TypeConfirm:
				p.addResults(section, payload)
				for _, r := range p.results {
					if r.Code != codec.CodeNone || r.Base != codec.Offset(confirmed) {
						t.Fatalf("result %d: %+v", confirmed, r)
					}
					confirmed++
					tokens <- struct{}{}
				}
				p.results = nil
			case codec.TypeDeliver:
				d := p.delivery(h, section, payload)
				delivered += len(d.batches)
				writers.Go(func() { write(codec.AppendCredit(nil, 2, uint32(d.bytes))) })
			default:
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
		}
		writers.Wait()
	}, pipeDoor)
}

func TestListen(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want error
	}{
		{Config{Bind: "*"}, ErrExposed},
		{Config{Bind: "0.0.0.0"}, ErrExposed},
		{Config{Bind: "192.0.2.1"}, ErrExposed},
		{Config{Bind: "not-an-address"}, ErrBind},
		{Config{Bind: "unix://"}, ErrBind},
		{Config{Bind: "unix:///no/such/directory/s"}, ErrBind},
	} {
		if b, err := NewBroker(c.cfg); !errors.Is(err, c.want) {
			t.Errorf("%+v: broker %v, error %v, want %v", c.cfg, b, err, c.want)
		}
	}
	first := startBroker(t, Config{Bind: "localhost"})
	port := first.Addrs()[0].(*net.TCPAddr).Port
	if _, err := NewBroker(Config{Port: port}); !errors.Is(err, ErrBind) || !strings.Contains(err.Error(), first.Addrs()[0].String()) {
		t.Errorf("a port that is taken: %v", err)
	}
}

// A broker that was stopped has left connections behind that the kernel has not forgotten: another gets its port all the same.
func TestPortIsFreeAgain(t *testing.T) {
	for try := 1; ; try++ {
		b, stop := startStoppable(t, Config{})
		addr := b.Addrs()[0].(*net.TCPAddr)
		p := dial(t, b).hello()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		_ = p.conn.Close() // behind the broker's end, which therefore waits for late packets
		again, err := NewBroker(Config{Port: addr.Port})
		if err == nil {
			_ = again.Close()
			return
		}
		if !errors.Is(err, syscall.EADDRINUSE) || try == 5 { // else somebody was given the port meanwhile, perhaps
			t.Fatal(err)
		}
	}
}

func TestBothLoopbacks(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("this machine has no IPv6 loopback: %v", err)
	} else {
		_ = l.Close()
	}
	b := startBroker(t, Config{BothLoopbacks: true})
	if len(b.Addrs()) != 2 {
		t.Fatalf("listens on %v", b.Addrs())
	}
	dial(t, b).hello().create("orders", codec.TopicSettings{})
	conn, err := net.Dial("tcp", b.Addrs()[1].String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	(&peer{t: t, conn: conn}).hello().describe("orders")
}

// The file of a Unix-domain socket: one that a dead broker left is replaced, a live one and any other file are left alone,
// and it is gone after a drain.
func TestSocketFile(t *testing.T) {
	path := socketPath(t)
	cfg := Config{Bind: unixScheme + path}
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = dead.Close()

	b, stop := startStoppable(t, cfg)
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != os.ModeSocket || info.Mode().Perm() != 0o660 {
		t.Errorf("the file: %v, %v", info, err)
	}
	p := dial(t, b).hello()
	p.create("orders", codec.TopicSettings{})
	if _, err := NewBroker(cfg); !errors.Is(err, ErrBind) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second broker: %v", err)
	}
	p.describe("orders") // the first one is not disturbed
	_ = p.conn.Close()
	p = dial(t, b).hello()
	p.describe("orders")
	_ = p.conn.Close()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the drain: %v", err)
	}

	kept := []byte("somebody's work")
	if err := os.WriteFile(path, kept, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewBroker(cfg); !errors.Is(err, ErrBind) {
		t.Errorf("a file that is no socket: %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, kept) {
		t.Errorf("the file holds %q, %v", got, err)
	}
	link := filepath.Join(filepath.Dir(path), "l")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := NewBroker(Config{Bind: unixScheme + link}); !errors.Is(err, ErrBind) {
		t.Errorf("a symbolic link: %v", err)
	}
	if _, err := os.Lstat(link); err != nil {
		t.Errorf("the link: %v", err)
	}
}

// Either side that is idle sends heartbeats; a peer that is silent is told, and closed; one that sends them stays.
func TestHeartbeats(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		const beat = time.Hour
		b := startBroker(t, listen(Config{Limits: Limits{Heartbeat: beat}}))
		alive, silent := dial(t, b).hello(), dial(t, b).hello()
		for range 4 {
			start := time.Now()
			onLoops(t, b, func(l *loopState) { // so much time passes
				for _, s := range l.sessions {
					s.lastIn, s.lastOut = s.lastIn.Add(-beat), s.lastOut.Add(-beat)
					s.tick()
				}
			})
			h, section, _, err := alive.tryAny()
			if err != nil || h.Type != codec.TypeHeartbeat || h.Flags&codec.FlagIgnorable == 0 {
				t.Fatalf("got %s%s, %v, want heartbeats", h.Type, said(h, section), err)
			}
			alive.write(codec.AppendHeartbeat(nil))
			eventually(t, "the heartbeat to be heard", func() bool {
				return countSessions(t, b, func(s *session) bool { return s.lastIn.After(start) }) == 1
			})
		}
		silent.expectError(codec.CodeHeartbeatTimeout)
		silent.expectEnd()
		alive.alive()
	})
}

// A peer that does not read its answers is not heard until it does: it is not taken for dead meanwhile, and costs no more
// than the limit.
func TestPausedPeerIsNotDead(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{Heartbeat: time.Hour}})
	admin := dial(t, b).hello()
	admin.create("wide", codec.TopicSettings{Partitions: 1000})
	deaf := dial(t, b).hello()
	const questions = 400 // of 88 KB of answer each: more than all buffers on the way hold
	request := codec.AppendDescribe(nil, 5, "wide")
	deaf.write(bytes.Repeat(request, questions))
	paused := func(s *session) bool { return s.paused }
	eventually(t, "reading to be paused", func() bool {
		admin.alive()
		return countSessions(t, b, paused) == 1
	})
	most := 0
	onLoops(t, b, func(l *loopState) {
		for _, s := range l.sessions {
			most = max(most, s.out.bytes)
		}
	})
	if limit := b.limits.controlBacklogHigh + 100_000; most > limit {
		t.Errorf("%d bytes of answers wait, want at most %d", most, limit)
	}
	// Who else is not heard for three heartbeats is closed, twice over.
	for range 2 {
		silent := dial(t, b).hello()
		onLoops(t, b, func(l *loopState) {
			for _, s := range l.sessions {
				s.lastIn = l.now.Add(-3 * time.Hour)
				s.tick()
			}
		})
		silent.expectError(codec.CodeHeartbeatTimeout)
		silent.expectEnd()
	}
	if n := countSessions(t, b, paused); n != 1 {
		t.Fatalf("%d connections are paused, want 1", n)
	}
	for range questions {
		deaf.expect(codec.TypeDescribe)
	}
	deaf.alive()
}

func TestLimitOfConnections(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{Connections: 2}}))
		first, second := dial(t, b).hello(), dial(t, b).hello()
		third := dial(t, b)
		third.expectError(codec.CodeTooManyConnections)
		third.expectEnd()
		first.alive()
		second.alive()
		_ = second.conn.Close()
		eventually(t, "a place to be free", func() bool { return b.conns.Load() == 1 })
		dial(t, b).hello()
	})
}

func TestLimitOfLogins(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{Logins: 2, LoginDeadline: time.Hour}}))
		dial(t, b).hello()
		first, second := dial(t, b), dial(t, b)
		eventually(t, "two connections to wait for their hello", func() bool { return b.logins.Load() == 2 })
		third := dial(t, b)
		third.expectError(codec.CodeTooManyConnections)
		third.expectEnd()
		first.hello()
		fourth := dial(t, b).hello()
		second.hello()
		fourth.alive()
		eventually(t, "nobody to be without hello", func() bool { return b.logins.Load() == 0 })
	})
}

// One address cannot take the places of others (case F60), and gets its own back with each hello.
func TestLimitOfLoginsPerAddress(t *testing.T) {
	b := startBroker(t, Config{BothLoopbacks: true, Limits: Limits{Logins: 5, LoginsPerAddress: 2, LoginDeadline: time.Hour}})
	from := func(i int) *peer {
		conn, err := net.Dial("tcp", b.Addrs()[i].String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return &peer{t: t, conn: conn}
	}
	for i := range b.Addrs() {
		from(i).hello()
		first, second := from(i), from(i)
		eventually(t, "two connections to wait for their hello", func() bool { return b.logins.Load() == int64(2*i+2) })
		third := from(i)
		if _, detail := third.expectError(codec.CodeTooManyConnections); !strings.Contains(detail, "from this address") {
			t.Errorf("the detail is %q", detail)
		}
		third.expectEnd()
		first.hello()
		_, _ = from(i), second // as many wait as may, while the next address is tried
	}
	if len(b.Addrs()) < 2 {
		t.Log("this machine has one loopback: others were not tried beside it")
	}
	if got := (Limits{}).complete(); got.LoginsPerAddress >= got.Logins || got.LoginsPerAddress < 5_000 {
		t.Errorf("by default %d of %d logins may be of one address", got.LoginsPerAddress, got.Logins)
	}
	// A socket file has no address to count by.
	b = startBroker(t, Config{Bind: unixScheme + socketPath(t), Limits: Limits{Logins: 5, LoginsPerAddress: 2, LoginDeadline: time.Hour}})
	for range 4 {
		dial(t, b)
	}
	dial(t, b).hello()
}

func TestLimitOfHandles(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{HandlesPerConn: 2}})
	p := dial(t, b).hello()
	p.create("orders", codec.TopicSettings{Partitions: 3})
	p.open(1, "orders", 0, 1)
	p.subscribe(2, codec.Subscribe{Topic: "orders"})
	p.refused(codec.CodeTooManyHandles, openFrame(3, codec.Open{Topic: "orders", Partition: 1}))
	p.refused(codec.CodeTooManyHandles, subscribeFrame(3, codec.Subscribe{Topic: "orders", Partition: 1}))
	p.closeHandle(1)
	p.open(3, "orders", 1, 1)
	p.closeHandle(2)
	p.subscribe(1, codec.Subscribe{Topic: "orders"})
}

// A drain tells everybody, refuses new work, and delivers all that was confirmed to a consumer with credit, also one that is
// slow to read and goes on sending.
func TestDrain(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b, stop := startStoppable(t, listen(Config{Loops: 2, Limits: Limits{Drain: testDeadline}}))
		pub, sub, idle := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{})
		pub.open(1, "orders", 0, 1)
		sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 40 << 20})
		want, batches := numbered(300, 100_000)
		for i := 0; i < len(batches); i += 30 {
			pub.write(publishFrame(1, 1, uint64(i), batches[i:i+30]...))
			pub.confirmed(30)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		for _, p := range []*peer{pub, idle} {
			_, section, _ := p.expect(codec.TypeGoAway)
			if m, err := codec.ParseGoAway(section); err != nil || m.Code != codec.CodeDraining || m.DrainMillis == 0 || m.Reason == "" {
				t.Errorf("%+v, %v", m, err)
			}
		}
		pub.refused(codec.CodeDraining, createFrame("new", codec.TopicSettings{}))
		pub.refused(codec.CodeDraining, openFrame(2, codec.Open{Topic: "orders"}))
		pub.refused(codec.CodeDraining, subscribeFrame(2, codec.Subscribe{Topic: "orders"}))
		pub.write(publishFrame(1, 1, 300, batches[0]))
		if r := pub.confirm(); r.Code != codec.CodeDraining {
			t.Errorf("a batch during the drain: %v", r.Code)
		}

		// Only now the consumer reads, and grants more with every frame, as clients do.
		got, away := 0, 0
		for {
			h, section, payload, err := sub.tryNext()
			if err != nil {
				if got != len(want) {
					t.Errorf("the connection ended with %v after %d of %d confirmed records", err, got, len(want))
				}
				break
			}
			switch h.Type {
			case codec.TypeGoAway:
				away++
			case codec.TypeDeliver:
				d := sub.delivery(h, section, payload)
				got += len(d.batches)
				_ = sub.tryWrite(codec.AppendCredit(nil, 1, uint32(d.bytes)))
			default:
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
		}
		if away != 1 {
			t.Errorf("the consumer was told %d times that the broker goes away", away)
		}
		for _, p := range []*peer{pub, idle, sub} {
			_ = p.conn.Close()
		}
		if err := <-stopped; err != nil {
			t.Errorf("Serve: %v", err)
		}
		if conn, err := connect(b); err == nil {
			_ = conn.Close()
			t.Error("connected after the drain")
		}
	})
}

// The end of what was confirmed is in the sockets when the broker has nothing left to do: closing then would lose it, since
// the consumer still sends.
func TestDrainKeepsWhatIsUnderWay(t *testing.T) {
	b, stop := startStoppable(t, Config{Limits: Limits{Drain: testDeadline}})
	pub, sub := dial(t, b).hello(), dial(t, b)
	_ = sub.conn.(*net.TCPConn).SetReadBuffer(256 << 10)
	sub.hello()
	pub.create("orders", codec.TopicSettings{})
	pub.open(1, "orders", 0, 1)
	const count, underWay = 30, 15 // of 100 KB: the second half is more than the consumer's buffer takes
	_, batches := numbered(count, 100_000)
	pub.published(1, 1, 0, batches...)
	sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 100_000})
	stopped := make(chan error, 1)
	for got := 0; got < count; {
		h, section, payload := sub.next()
		if h.Type == codec.TypeGoAway {
			continue
		}
		if h.Type != codec.TypeDeliver {
			t.Fatalf("got %s%s", h.Type, said(h, section))
		}
		d := sub.delivery(h, section, payload)
		if got += len(d.batches); got == count-underWay {
			sub.write(codec.AppendCredit(nil, 1, 10<<20))
			eventually(t, "the rest to be on its way", func() bool {
				return countSessions(t, b, func(s *session) bool { return !s.out.empty() }) == 0 && info(t, b, "orders").RecordsOut == count
			})
			_ = pub.conn.Close()
			go func() { stopped <- stop() }()
			// A broker that closes now would do so within moments.
			closed := time.NewTimer(200 * time.Millisecond)
			for waiting := true; waiting && b.conns.Load() > 0; {
				select {
				case <-closed.C:
					waiting = false
				default:
					runtime.Gosched()
				}
			}
		}
		sub.write(codec.AppendCredit(nil, 1, uint32(d.bytes)))
	}
	_ = sub.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Under load: every batch that was confirmed is delivered, those that were not are not known to be.
func TestDrainUnderLoad(t *testing.T) {
	for range 5 {
		b, stop := startStoppable(t, Config{Loops: 2, Limits: Limits{Drain: testDeadline}})
		setup := dial(t, b).hello()
		setup.create("orders", codec.TopicSettings{})
		_ = setup.conn.Close()
		const producers = 4
		var working sync.WaitGroup
		confirmed := make([]int, producers)
		flowing := make(chan struct{}, producers)
		for i := range producers {
			p := dial(t, b).hello()
			p.open(1, "orders", 0, 1)
			batch := batchOf(make([]byte, 30_000))
			working.Go(func() {
				defer func() { _ = p.conn.Close() }()
				for n := uint64(0); ; n++ {
					if p.tryWrite(publishFrame(1, 1, n, batch)) != nil {
						return
					}
					for {
						h, section, payload, err := p.tryNext()
						if err != nil {
							return
						}
						if h.Type == codec.TypeGoAway {
							continue
						}
						m, err := codec.ParseConfirm(section, payload)
						if h.Type != codec.TypeConfirm || err != nil || m.Count != 1 {
							t.Errorf("got %s%s, %v", h.Type, said(h, section), err)
							return
						}
						if r := codec.ResultAt(payload, 0); r.Code != codec.CodeNone {
							if r.Code != codec.CodeDraining {
								t.Errorf("refused: %v", r.Code)
							}
							return
						}
						break
					}
					if confirmed[i]++; confirmed[i] == 10 {
						flowing <- struct{}{}
					}
				}
			})
		}
		delivered := 0
		sub := dial(t, b).hello()
		sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 64 << 20})
		working.Go(func() {
			defer func() { _ = sub.conn.Close() }()
			for {
				h, section, payload, err := sub.tryNext()
				if err != nil {
					return
				}
				if h.Type == codec.TypeDeliver {
					d := sub.delivery(h, section, payload)
					delivered += len(d.batches)
					_ = sub.tryWrite(codec.AppendCredit(nil, 1, uint32(d.bytes)))
				}
			}
		})
		for range producers {
			<-flowing
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		working.Wait()
		sum := 0
		for _, n := range confirmed {
			sum += n
		}
		if delivered < sum {
			t.Fatalf("%d batches were confirmed, %d delivered", sum, delivered)
		}
	}
}

// A consumer that never reads does not hold up a drain beyond its limit.
func TestDrainEnds(t *testing.T) {
	b, stop := startStoppable(t, Config{Limits: Limits{Drain: 50 * time.Millisecond}})
	pub, deaf := dial(t, b).hello(), dial(t, b).hello()
	pub.create("orders", codec.TopicSettings{})
	pub.open(1, "orders", 0, 1)
	deaf.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 60 << 20})
	batch := batchOf(make([]byte, 1<<20-100))
	for i := range uint64(30) {
		pub.published(1, 1, i, batch)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, pub.conn); err != nil && !isReset(err) {
		t.Errorf("the connections are still open: %v", err)
	}
}

// Idle peers that stay open do not hold up a drain; one that was sent something lately has the whole limit to read it.
func TestDrainDoesNotWaitForIdlePeers(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b, stop := startStoppable(t, listen(Config{Limits: Limits{Drain: 2 * testDeadline}})) // longer than stop waits
		pub, sub, idle := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{})
		pub.open(1, "orders", 0, 1)
		sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 1 << 20})
		pub.published(1, 1, 0, batchOf([]byte("a while ago")))
		sub.deliver()
		idle.subscribe(1, codec.Subscribe{Topic: "orders", From: codec.FromLatest, CreditBytes: 1 << 20})
		long := time.Now().Add(-idleBefore)
		onLoops(t, b, func(l *loopState) {
			for _, s := range l.sessions {
				s.worked = long
			}
		})
		if err := stop(); err != nil {
			t.Error(err)
		}
		for _, p := range []*peer{pub, sub, idle} {
			p.expect(codec.TypeGoAway)
			p.expectEnd()
		}
	})
}

// A broker that is not served gives its address back.
func TestCloseUnserved(t *testing.T) {
	path := socketPath(t)
	for _, cfg := range []Config{{}, {Bind: unixScheme + path}} {
		b, err := NewBroker(cfg)
		if err != nil {
			t.Fatal(err)
		}
		addr := b.Addrs()[0]
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := b.Serve(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
		if conn, err := net.Dial(addr.Network(), addr.String()); err == nil {
			_ = conn.Close()
			t.Errorf("%s still listens", addr)
		}
	}
	b := startBroker(t, Config{})
	dial(t, b).hello()
	if err := b.Close(); err != nil { // it is served: nothing
		t.Error(err)
	}
	dial(t, b).hello()
}

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// Connections that are no sockets have loops of their own, of which nothing is left when they end.
func TestEndedLoopsAreForgotten(t *testing.T) {
	b := startBroker(t, Config{Listener: newPipeListener()})
	for range 100 {
		p := dial(t, b).hello()
		p.alive()
		_ = p.conn.Close()
	}
	eventually(t, "the loops to be forgotten", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.states) == 0 && b.conns.Load() == 0
	})
}
