package loop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lightio/lightq/codec"
)

// frameOf returns any frame at all.
func frameOf(typ codec.Type, flags codec.Flags, corr, handle uint32, section, payload []byte) []byte {
	b := codec.AppendHeader(nil, typ, flags, corr, handle, len(section), len(payload))
	return slices.Concat(b, section, payload)
}

// What a broker does not know is skipped where the sender says so, and else a coded error; drafts are for later.
func TestUnknownFrames(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		none := []byte{0}
		const ignorable = codec.FlagIgnorable
		p := dial(t, b).hello()
		for _, typ := range []codec.Type{codec.TypeAuth, codec.TypeAck} {
			p.refused(codec.CodeNotYet, frameOf(typ, 0, 7, 3, none, nil))
		}
		for _, typ := range []codec.Type{0, codec.TypeAuth, codec.TypeAck, codec.TypeConfirm, codec.TypeDeliver, codec.TypeGoAway, codec.TypeError, 23, 255} {
			p.write(frameOf(typ, ignorable, 7, 3, none, nil))
			p.write(frameOf(typ, ignorable|0xfc, 7, 3, nil, nil))
			p.write(frameOf(typ, ignorable, 7, 3, []byte("anything at all"), nil))
			p.write(frameOf(typ, ignorable, 7, 3, none, []byte("a payload")))
			p.write(frameOf(typ, ignorable, 7, 3, bytes.Repeat(none, codec.MaxHeaderSize), nil))
			p.alive()
		}
		// Flags without a meaning are not looked at, and ignorable says nothing about what is known.
		p.write(frameOf(codec.TypeHeartbeat, 0xfe, 0, 0, none, nil))
		p.ask(codec.AppendStats(nil, 9))
		asked := codec.AppendStats(nil, 10)
		asked[5] = 0xfe
		p.ask(asked)

		for _, c := range []struct {
			code  codec.Code
			frame []byte
		}{
			{codec.CodeUnknownFrame, frameOf(0, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(23, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(255, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(codec.TypeConfirm, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(codec.TypeDeliver, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(codec.TypeGoAway, 0, 7, 3, none, nil)},
			{codec.CodeUnknownFrame, frameOf(codec.TypeError, 0, 7, 3, none, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeStats, codec.FlagReply, 7, 3, none, nil)},
			{codec.CodeMalformedFrame, frameOf(23, codec.FlagReply|ignorable, 7, 3, none, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeStats, 0, 7, 3, none, []byte("x"))},
			{codec.CodeMalformedFrame, frameOf(codec.TypeStats, ignorable, 7, 3, none, []byte("x"))},
			{codec.CodeMalformedFrame, frameOf(codec.TypeStats, 0, 7, 3, nil, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeStats, 0, 7, 3, []byte{0, 0}, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeHeartbeat, ignorable, 7, 3, []byte{1}, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeDescribe, 0, 7, 3, []byte{0, 9, 'x', 0}, nil)},
			{codec.CodeFrameTooLarge, frameOf(codec.TypeStats, 0, 7, 3, none, make([]byte, codec.MaxHeaderSize))},
			{codec.CodeHelloExpected, codec.AppendHello(nil, 7, false, codec.Hello{MinVersion: 1, MaxVersion: 1})},
		} {
			p := dial(t, b).hello()
			p.write(c.frame)
			h, _ := p.expectError(c.code)
			if asked := header(c.frame); h.Correlation != asked.Correlation {
				t.Errorf("%+v was answered to %+v", asked, h)
			}
			p.expectEnd()
		}
	})
}

// Until the hello is accepted every error ends the connection.
func TestHello(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Name: "lightq-test", Limits: Limits{Heartbeat: 7 * time.Second}}))
		versions := func(from, to uint16) []byte {
			return codec.AppendHello(nil, 9, false, codec.Hello{MinVersion: from, MaxVersion: to, Features: 1<<64 - 1, Name: "test"})
		}
		for _, v := range [][2]uint16{{1, 1}, {0, 1}, {1, 2}, {0, 65535}} {
			p := dial(t, b)
			section, _ := p.ask(versions(v[0], v[1]))
			m, err := codec.ParseHello(section)
			if err != nil || m.MinVersion != 1 || m.MaxVersion != 1 || m.Features != 0 || m.Name != "lightq-test" ||
				m.HeartbeatMillis != 7000 || m.MaxBatchBytes != codec.DefaultMaxBatchBytes || int(m.MaxFrameBytes) != b.limits.maxFrameBytes {
				t.Errorf("versions %v: %+v, %v", v, m, err)
			}
		}
		for _, c := range []struct {
			code  codec.Code
			bytes []byte
		}{
			{codec.CodeUnsupportedVersion, versions(2, 3)},
			{codec.CodeUnsupportedVersion, versions(0, 0)},
			{codec.CodeUnsupportedVersion, versions(2, 1)},
			{codec.CodeHelloExpected, codec.AppendStats(nil, 9)},
			{codec.CodeHelloExpected, codec.AppendHeartbeat(nil)},
			{codec.CodeHelloExpected, publishFrame(1, 1, 0, batchOf([]byte("x")))},
			{codec.CodeHelloExpected, frameOf(200, codec.FlagIgnorable, 9, 0, []byte{0}, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeHello, 0, 9, 0, []byte{0}, nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeHello, codec.FlagReply, 9, 0, versions(1, 1)[16:], nil)},
			{codec.CodeMalformedFrame, frameOf(codec.TypeHello, 0, 9, 0, versions(1, 1)[16:], []byte{1})},
			{codec.CodeFrameTooLarge, frameOf(codec.TypeHello, 0, 9, 0, make([]byte, 4096), nil)},
		} {
			p := dial(t, b)
			p.write(c.bytes)
			p.expectError(c.code)
			p.expectEnd()
		}
	})
}

// capture is a valid session, frame by frame.
func capture() (frames [][]byte, publishEnd int) {
	frames = [][]byte{
		codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "capture"}),
		codec.AppendCreate(nil, 2, codec.Create{Topic: "cut"}),
		codec.AppendDescribe(nil, 3, "cut"),
		codec.AppendOpen(nil, 4, 1, codec.Open{Topic: "cut", Epoch: 1}),
		publishFrame(1, 1, 0, batchOf([]byte("one"), []byte("two"))),
		codec.AppendSubscribe(nil, 5, 2, codec.Subscribe{Topic: "cut", Kind: codec.KindSub, From: codec.FromLatest, CreditBytes: 1000}),
		codec.AppendSubscribe(nil, 6, 3, codec.Subscribe{Topic: "cut", Kind: codec.KindPull, From: codec.FromLatest, Name: "g"}),
		codec.AppendCredit(nil, 2, 1000),
		codec.AppendHeartbeat(nil),
		codec.AppendList(nil, 7, codec.List{After: "a", Limit: 1}),
		codec.AppendAlter(nil, 8, codec.Create{Topic: "cut", Settings: codec.TopicSettings{Overflow: codec.OverflowBlock}}),
		codec.AppendPurge(nil, 9, codec.Purge{Topic: "cut", Partition: codec.AllPartitions}),
		codec.AppendDelete(nil, 10, "other"),
		codec.AppendStats(nil, 11),
		codec.AppendClose(nil, 12, 1),
	}
	for _, f := range frames[:5] {
		publishEnd += len(f)
	}
	return frames, publishEnd
}

// Case F45: a command is announced and its body never comes. For every prefix of a valid session: close, reset, or send
// the rest later; nothing is published by a frame that is not whole, and every connection is freed.
func TestF45CommandCutShort(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{Heartbeat: time.Hour}})
	frames, publishEnd := capture()
	all := bytes.Join(frames, nil)
	admin := dial(t, b).hello()
	admin.create("cut", codec.TopicSettings{})
	idle := b.conns.Load()

	for _, reset := range []bool{false, true} {
		before := info(t, b, "cut").Next
		for k := range publishEnd {
			p := dial(t, b)
			p.write(all[:k])
			if reset {
				_ = p.conn.(*net.TCPConn).SetLinger(0)
			}
			_ = p.conn.Close()
		}
		eventually(t, "every connection is freed", func() bool { return b.conns.Load() == idle })
		if got := info(t, b, "cut"); got.Next != before || got.Publishers != 0 || got.Subscriptions != 0 {
			t.Fatalf("reset %v: cut-off sessions left %+v", reset, got)
		}
	}

	pause := func(d time.Duration) {}
	if soak() {
		pause = func(d time.Duration) { tick := time.NewTicker(d); <-tick.C; tick.Stop() }
	}
	whole := func(p *peer, before codec.Offset) {
		t.Helper()
		// The confirm may come before or behind the answers to what follows it.
		seen := map[codec.Type]int{}
		for range len(frames) - 2 { // credit and heartbeat have no answer
			h, section, _ := p.next()
			if h.Type == codec.TypeError && h.Correlation != 10 {
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
			seen[h.Type]++
		}
		for _, f := range frames {
			typ := header(f).Type
			switch typ {
			case codec.TypePublish:
				typ = codec.TypeConfirm
			case codec.TypeDelete:
				typ = codec.TypeError // there is no such topic
			case codec.TypeCredit, codec.TypeHeartbeat:
				continue
			}
			if seen[typ]--; seen[typ] < 0 {
				t.Fatalf("an answer of type %s is missing", typ)
			}
		}
		if next := info(t, b, "cut").Next; next != before+2 {
			t.Fatalf("next is %d, want %d", next, before+2)
		}
		_ = p.conn.Close()
	}
	for k := 1; k < len(all); k++ {
		before := info(t, b, "cut").Next
		p := dial(t, b)
		p.write(all[:k])
		if k%50 == 0 {
			pause(2 * time.Second)
		}
		p.write(all[k:])
		whole(p, before)
	}
	before := info(t, b, "cut").Next
	p := dial(t, b)
	for i := range all {
		p.write(all[i : i+1])
		pause(15 * time.Millisecond)
	}
	whole(p, before)
	eventually(t, "every connection is freed", func() bool { return b.conns.Load() == idle })
}

// Case F46: length prefixes that lie. Above the limit: a coded error and the end, before memory is taken; below: the
// memory follows what arrives.
func TestF46LengthsThatLie(t *testing.T) {
	b := startBroker(t, Config{})
	dial(t, b).hello().create("len", codec.TopicSettings{})
	baseline := b.slabs.InUseBytes()
	limit := uint32(b.limits.maxFrameBytes)
	type attempt struct {
		length uint32
		login  bool
		code   codec.Code // none: the broker waits for more
	}
	var attempts []attempt
	for _, login := range []bool{false, true} {
		most := limit - 4
		if !login {
			most = codec.MaxLoginFrameBytes - 4
		}
		attempts = append(
			attempts,
			attempt{0, login, codec.CodeMalformedFrame},
			attempt{1, login, codec.CodeMalformedFrame},
			attempt{11, login, codec.CodeMalformedFrame},
			attempt{0x7fffffff, login, codec.CodeFrameTooLarge},
			attempt{0x80000000, login, codec.CodeFrameTooLarge},
			attempt{0xffffffff, login, codec.CodeFrameTooLarge},
			attempt{most + 1, login, codec.CodeFrameTooLarge},
			attempt{most, login, codec.CodeNone},
			attempt{most - 1, login, codec.CodeNone},
		)
	}
	rounds := 200 / len(attempts)
	if soak() {
		rounds = 2000 / len(attempts)
	}
	rss := residentBytes(t)
	var held []*peer
	for round := range rounds {
		for _, a := range attempts {
			p := dial(t, b)
			typ := codec.TypeHello
			if a.login {
				p.hello().open(1, "len", 0, 1)
				typ = codec.TypePublish
			}
			frame := binary.BigEndian.AppendUint32(nil, a.length)
			frame = append(frame, byte(typ), 0, 0, codec.PublishHeaderBytes)
			frame = binary.BigEndian.AppendUint32(frame, 0)
			frame = binary.BigEndian.AppendUint32(frame, 1)
			if round%2 == 0 {
				frame = frame[:4] // the length alone must be enough
			}
			p.write(append(frame, 0, 0, 0))
			held = append(held, p)
			if a.code == codec.CodeNone {
				continue
			}
			p.expectError(a.code)
			if _, _, _, err := p.tryNext(); !errors.Is(err, io.EOF) && !isReset(err) {
				t.Fatalf("length %#x: the connection is still open: %v", a.length, err)
			}
		}
	}
	if rise := b.slabs.InUseBytes() - baseline; rise > 1<<20 {
		t.Errorf("announced lengths took %d bytes of slabs", rise)
	}
	if rise := residentBytes(t) - rss; rise > 16<<20 {
		t.Errorf("resident memory rose by %d bytes", rise)
	}
	for _, p := range held {
		_ = p.conn.Close()
	}
}

// Case F32: connection churn leaks sockets, memory or goroutines. Rounds of connections ended in every ungraceful way: what
// they took is given back, down to the last descriptor.
func TestF32ConnectionChurn(t *testing.T) {
	log := &journal{}
	start := time.Now()
	// The connection that administers is silent during a round, which at full scale takes longer than three heartbeats.
	b := startBroker(t, Config{Logger: log.logger(), Limits: Limits{Heartbeat: time.Hour}})
	admin := dial(t, b).hello()
	admin.create("churn", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	hello := codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "the same"})
	open := openFrame(1, codec.Open{Topic: "churn", Epoch: 1})
	publish := publishFrame(1, 1, 0, batchOf(make([]byte, 30_000)))
	subscribe := subscribeFrame(2, codec.Subscribe{Topic: "churn", CreditBytes: 1 << 20})
	pull := subscribeFrame(3, codec.Subscribe{Topic: "churn", Kind: codec.KindPull, Name: "g", CreditBytes: 1 << 20})
	ways := []struct {
		name  string
		sent  [][]byte
		reply int // frames to wait for
		reset bool
	}{
		{"silent", nil, 0, false},
		{"silent, reset", nil, 0, true},
		{"half a hello", [][]byte{hello[:20]}, 0, false},
		{"half a hello, reset", [][]byte{hello[:20]}, 0, true},
		{"subscribed", [][]byte{hello, subscribe, pull}, 3, false},
		{"subscribed, reset with bytes unread", [][]byte{hello, subscribe, pull}, 1, true},
		{"publishing", [][]byte{hello, open, publish}, 3, false},
		{"publishing, reset in the middle of a batch", [][]byte{hello, open, publish, publish[:20_000]}, 2, true},
		{"all at once, unread", [][]byte{hello, open, subscribe, publish}, 0, false},
		{"JSON", [][]byte{[]byte(`{"cmd":"ping"}`)}, 0, false},
		{"half of JSON, reset", [][]byte{[]byte(`{"cmd":"pi`)}, 0, true},
		{"not allowed", [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}, 1, false},
		{"a breach", [][]byte{hello, open, publish, publish}, 2, true},
	}
	perRound := scaled(10_000)
	round := func() {
		var dialling sync.WaitGroup
		next := make(chan int)
		for range 8 {
			dialling.Go(func() {
				for i := range next {
					way := ways[i%len(ways)]
					conn, err := connect(b)
					if err != nil {
						t.Error(err)
						return
					}
					p := &peer{t: t, conn: conn}
					for _, frame := range way.sent {
						if p.tryWrite(frame) != nil {
							break // it has been thrown out
						}
					}
					for range way.reply {
						if _, _, _, err := p.tryNext(); err != nil {
							t.Errorf("%s: %v", way.name, err)
							break
						}
					}
					if way.reset {
						_ = conn.(*net.TCPConn).SetLinger(0)
					}
					_ = conn.Close()
				}
			})
		}
		for i := range perRound {
			next <- i
		}
		close(next)
		dialling.Wait()
		eventually(t, "every session to be gone", func() bool { return b.conns.Load() == 1 && b.logins.Load() == 0 })
	}
	quiet := func() (slabs int64, d codec.PartitionInfo) {
		admin.purge("churn", codec.AllPartitions)
		eventually(t, "the slabs to be free", func() bool { slabs = b.slabs.InUseBytes(); return slabs <= 64<<10 })
		return slabs, info(t, b, "churn")
	}
	var rss [5]int64
	var files, running int
	for i := range rss {
		round()
		slabs, d := quiet()
		if d.Publishers != 0 || d.Subscriptions != 0 || slabs > 64<<10 {
			t.Fatalf("round %d left %+v and %d bytes of slabs", i, d, slabs)
		}
		if n := countSessions(t, b, func(*session) bool { return true }); n != 1 {
			t.Fatalf("round %d left %d sessions", i, n-1)
		}
		rss[i] = residentBytes(t)
		if i == 0 { // what is kept for good is there after the first
			files, running = descriptors(), goroutines()
			continue
		}
		eventually(t, "descriptors and goroutines to be given back", func() bool {
			return descriptors() <= files+5 && goroutines() <= running+5
		})
	}
	if rise := rss[4] - rss[2]; rise > 16<<20 {
		t.Errorf("resident memory rose by %d bytes over the last two rounds: %v", rise, rss)
	}
	admin.alive()
	if n, most := len(log.with("level=")), 20+4*int(time.Since(start)/logEvery); n > most {
		t.Errorf("%d lines were logged, want at most %d, for instance %q", n, most, log.with("level=")[n-3:])
	}
	t.Logf("%d rounds of %d: %d descriptors, %d goroutines, resident MB %d, %d lines logged", len(rss), perRound, files, running,
		[]int64{rss[0] >> 20, rss[1] >> 20, rss[2] >> 20, rss[3] >> 20, rss[4] >> 20}, len(log.with("level=")))
}

// Case F47: other protocols spoken to the port. A coded answer and a quick end, and a line that says what it looks like, not
// one for each. (The same at the TLS and Kafka ports comes with them.)
func TestF47ForeignProtocols(t *testing.T) {
	rng := rand.New(rand.NewPCG(47, 0))
	noise := func() []byte {
		b := make([]byte, 64<<10)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		b[0] |= 0x80 // never a length, nor JSON
		return b
	}
	tls := []byte{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03}
	apiVersions := []byte{0, 0, 0, 0x0b, 0, 18, 0, 99, 0, 0, 0, 7, 0, 1, 'x'}
	apiVersions3 := slices.Concat([]byte{0, 0, 0, 0x1b, 0, 18, 0, 3, 0, 0, 0, 7, 0, 4}, []byte("kafkalib\x00\x04lib\x041.0\x00"))
	for _, c := range []struct {
		name  string
		bytes func() []byte
		code  codec.Code
		looks string
	}{
		{"HTTP", func() []byte { return []byte("GET / HTTP/1.1\r\n\r\n") }, codec.CodeForeignProtocol, "looks like HTTP"},
		{"HTTP POST", func() []byte { return []byte("POST /v1 HTTP/1.1\r\nHost: x\r\n\r\n{}") }, codec.CodeForeignProtocol, "looks like HTTP"},
		{"HTTP/2", func() []byte { return []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") }, codec.CodeForeignProtocol, "looks like HTTP"},
		{"TLS", func() []byte { return tls }, codec.CodeForeignProtocol, "looks like TLS"},
		{"TLS, whole", func() []byte { return append(slices.Clone(tls), noise()[:512]...) }, codec.CodeForeignProtocol, "looks like TLS"},
		{"noise", noise, codec.CodeFrameTooLarge, "limit"},
		{"Kafka ApiVersions 99", func() []byte { return apiVersions }, codec.CodeMalformedFrame, "length"},
		{"Kafka ApiVersions 3", func() []byte { return apiVersions3 }, codec.CodeHelloExpected, "hello"},
		{"SMTP", func() []byte { return []byte("EHLO example.org\r\n") }, codec.CodeFrameTooLarge, "limit"},
		{"SSH", func() []byte { return []byte("SSH-2.0-OpenSSH_9.6\r\n") }, codec.CodeFrameTooLarge, "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &journal{}
			b := startBroker(t, Config{Logger: log.logger(), Limits: Limits{LoginDeadline: time.Hour}})
			start := time.Now()
			for i := range scaled(2000) {
				p := dial(t, b)
				sent := c.bytes()
				if i%2 == 0 {
					p.write(sent)
				} else {
					for _, part := range [][]byte{sent[:1], sent[1:3], sent[3:]} {
						_ = p.tryWrite(part) // the end may come before the last
					}
				}
				_, detail := p.expectError(c.code)
				if c.code == codec.CodeForeignProtocol && !strings.Contains(detail, c.looks) {
					t.Fatalf("told %q", detail)
				}
				p.expectEnd()
				_ = p.conn.Close()
			}
			lines := log.with("connection closed", "peer=127.0.0.1", c.looks)
			if most := 2 + int(time.Since(start)/logEvery); len(lines) < 1 || len(lines) > most {
				t.Errorf("%d lines, want 1 to %d: %q", len(lines), most, lines)
			}
			if other := log.with("level="); len(other) != len(lines) {
				t.Errorf("other lines: %q", other)
			}
			for _, l := range log.with("") {
				if strings.Contains(l, "goroutine") || strings.Contains(l, "panic") {
					t.Errorf("a stack trace: %q", l)
				}
			}
			eventually(t, "every connection to be gone", func() bool { return b.conns.Load() == 0 && b.logins.Load() == 0 })
		})
	}
	// The native hello at the JSON protocol is no request.
	b := startBroker(t, Config{})
	p := dialJSON(t, b)
	p.ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
	p.thrown(codec.CodeMalformedFrame, string(codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "x"}))+"\n")
}

// reseal makes a changed batch's length and checksum right again.
func reseal(b []byte) []byte {
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)-12))
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Case F52: empty messages, and a bad element inside a batch. Empty is valid and differs from null, through every storage
// there is; a batch that is bad in any part is refused whole, and nothing of it is kept. (Durable topics, Kafka and the
// commands have their own tests.)
func TestF52EmptyAndBadElements(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		for _, storage := range []codec.Storage{codec.StorageQueue, codec.StorageDirect} {
			name := storage.String()
			pub, sub := dial(t, b).hello(), dial(t, b).hello()
			pub.create(name, codec.TopicSettings{Storage: storage, MaxBatchBytes: 8 << 10, RingBytes: 64 << 10})
			pub.open(1, name, 0, 1)
			sub.subscribe(1, codec.Subscribe{Topic: name, CreditBytes: 1 << 20})

			type record struct{ key, value []byte }
			records := []record{
				{nil, nil},
				{nil, []byte{}},
				{[]byte{}, nil},
				{[]byte{}, []byte{}},
				{[]byte("k"), nil},
				{[]byte("k"), []byte{}},
				{nil, []byte("v")},
				{[]byte{}, []byte("v")},
			}
			var all codec.BatchBuilder
			all.Reset(nil, 8<<10)
			var frames [][]byte
			for _, r := range records {
				var one codec.BatchBuilder
				one.Reset(nil, 8<<10)
				one.Add(1000, r.key, r.value, nil)
				frames = append(frames, one.Finish(codec.NoProducer))
				all.Add(1000, r.key, r.value, nil)
			}
			frames = append(frames, all.Finish(codec.NoProducer))
			pub.published(1, 1, 0, frames...)
			at := 0
			for at < 2*len(records) {
				for _, batch := range sub.deliver().batches {
					rs := batch.Records()
					for ; rs.Next(); at++ {
						want := records[at%len(records)]
						got := record{rs.Record.Key, rs.Record.Value}
						if !bytes.Equal(got.key, want.key) || (got.key == nil) != (want.key == nil) ||
							!bytes.Equal(got.value, want.value) || (got.value == nil) != (want.value == nil) {
							t.Errorf("record %d: key %#v value %#v, want %#v %#v", at, got.key, got.value, want.key, want.value)
						}
					}
					if rs.Err() != nil {
						t.Error(rs.Err())
					}
				}
			}
			high := codec.Offset(2 * len(records))

			hundred := make([][]byte, 100)
			for i := range hundred {
				hundred[i] = []byte("value")
			}
			good := batchOf(hundred...)
			hundred[50] = make([]byte, 8<<10)
			change := func(f func(b []byte) []byte) []byte { return f(slices.Clone(good)) }
			put := func(at int, v ...byte) []byte {
				return change(func(b []byte) []byte { copy(b[at:], v); return reseal(b) })
			}
			epoch := uint32(1)
			number := uint64(len(frames))
			for _, c := range []struct {
				name    string
				code    codec.Code
				payload []byte
			}{
				{"element 50 is too large", codec.CodeBatchTooLarge, batchOf(hundred...)},
				{"no records", codec.CodeBadBatch, change(func(b []byte) []byte {
					b = b[:codec.BatchHeaderBytes]
					copy(b[57:], []byte{0, 0, 0, 0})
					copy(b[23:], []byte{255, 255, 255, 255})
					return reseal(b)
				})},
				{"a negative count", codec.CodeBadBatch, put(57, 255, 255, 255, 255)},
				{"more records than bytes", codec.CodeBadBatch, change(func(b []byte) []byte {
					copy(b[57:], []byte{0, 1, 0, 0})
					copy(b[23:], []byte{0, 0, 255, 255})
					return reseal(b)
				})},
				{"the last delta is not the count", codec.CodeBadBatch, put(23, 0, 0, 0, 98)},
				{"a bit of record 50", codec.CodeBadBatch, change(func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b })},
				{"a bit of the checksum", codec.CodeBadBatch, change(func(b []byte) []byte { b[20] ^= 1; return b })},
				{"magic 1", codec.CodeBadBatch, put(16, 1)},
				{"a base offset", codec.CodeBadBatch, put(0, 0, 0, 0, 0, 0, 0, 0, 1)},
				{"transactional", codec.CodeBadBatch, put(21, 0, 0x10)},
				{"control", codec.CodeBadBatch, put(21, 0, 0x20)},
				{"log-append time", codec.CodeBadBatch, put(21, 0, 0x08)},
				{"codec 5", codec.CodeBadBatch, put(21, 0, 5)},
				{"producer id -2", codec.CodeBadBatch, put(43, 255, 255, 255, 255, 255, 255, 255, 254)},
				{"one byte behind it", codec.CodeBadBatch, change(func(b []byte) []byte { return append(b, 0) })},
				{"a header behind it", codec.CodeBadBatch, change(func(b []byte) []byte { return append(b, b[:61]...) })},
				{"cut short", codec.CodeBadBatch, change(func(b []byte) []byte { return b[:len(b)-8] })},
				{"a length of 0", codec.CodeBadBatch, change(func(b []byte) []byte { copy(b[8:], []byte{0, 0, 0, 0}); return b })},
				{"a negative length", codec.CodeBadBatch, change(func(b []byte) []byte { copy(b[8:], []byte{255, 255, 255, 255}); return b })},
				{"the largest length", codec.CodeBadBatch, change(func(b []byte) []byte { copy(b[8:], []byte{127, 255, 255, 255}); return b })},
			} {
				// Between two good ones in one frame: the first is kept, the bad one refused whole, the last waits for a new epoch.
				payload := slices.Concat(good, c.payload, good)
				frame := codec.AppendPublish(nil, 1, codec.Publish{Epoch: epoch, First: number, Count: 3}, len(payload))
				pub.write(append(frame, payload...))
				results := []codec.Code{pub.confirm().Code, pub.confirm().Code, pub.confirm().Code}
				// Where it ends is not known of a batch whose length is wrong: then a later one may be what does not fit.
				if results[0] != codec.CodeNone || results[1] != c.code && !strings.Contains(c.name, "behind it") ||
					results[2] != codec.CodeStaleEpoch && !strings.Contains(c.name, "behind it") {
					t.Errorf("%s: results %v", c.name, results)
				}
				high += 100
				if results[1] == codec.CodeNone { // bytes behind the second batch are the third's
					high += 100
					if results[2] != codec.CodeBadBatch {
						t.Errorf("%s: results %v", c.name, results)
					}
				}
				if got := info(t, b, name); got.Next != high {
					t.Fatalf("%s: next is %d, want %d", c.name, got.Next, high)
				}
				epoch++
				number = 0
				pub.open(1, name, 0, epoch)
				// Alone in a frame.
				frame = codec.AppendPublish(nil, 1, codec.Publish{Epoch: epoch, First: 0, Count: 1}, len(c.payload))
				pub.write(append(frame, c.payload...))
				if r := pub.confirm(); r.Code != c.code {
					t.Errorf("%s, alone: %v, want %v", c.name, r.Code, c.code)
				}
				epoch++
				pub.open(1, name, 0, epoch)
				if got := info(t, b, name); got.Next != high {
					t.Fatalf("%s, alone: next is %d, want %d", c.name, got.Next, high)
				}
			}
			// Fewer batches than the frame says, and one more.
			for count, want := range map[uint16][]codec.Code{
				1: {codec.CodeBadBatch},
				3: {codec.CodeNone, codec.CodeNone, codec.CodeBadBatch},
			} {
				payload := slices.Concat(good, good)
				pub.write(append(codec.AppendPublish(nil, 1, codec.Publish{Epoch: epoch, Count: count}, len(payload)), payload...))
				for i, code := range want {
					if r := pub.confirm(); r.Code != code {
						t.Errorf("%d batches announced, 2 sent: result %d is %v, want %v", count, i, r.Code, code)
					}
				}
				epoch++
				pub.open(1, name, 0, epoch)
			}
			high += 200
			pub.published(1, epoch, 0, good)
			sub.write(codec.AppendCredit(nil, 1, 1<<20))
			sub.records(1, codec.Offset(2*len(records)), high+100, true)
		}
		// No batches, or too few bytes for one.
		for _, frame := range [][]byte{
			append(codec.AppendPublish(nil, 1, codec.Publish{Epoch: 1}, 100), make([]byte, 100)...),
			codec.AppendPublish(nil, 1, codec.Publish{Epoch: 1, Count: 1}, 0),
			append(codec.AppendPublish(nil, 1, codec.Publish{Epoch: 1, Count: 1}, 60), make([]byte, 60)...),
		} {
			p := dial(t, b).hello()
			p.open(1, "queue", 0, 1)
			p.write(frame)
			p.expectError(codec.CodeMalformedFrame)
			p.expectEnd()
		}
	})
}

// Case F54: a topic name escapes. Every way in refuses the same names with the same rule; what is allowed is a name of its
// own. (What names do to files is tested where files are.)
func TestF54Names(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p := dial(t, b).hello()
		p.create("orders", codec.TopicSettings{})
		bad := []string{
			"", ".", "..", "../x", "../../../x", "/etc/x", "a/../../b", `a\..\b`, "a%2f..", "a\x00b", "a\nb", " a", "a ", "a b", "\xff\xfe",
			"a\u202eb", "ä", "a:b", "a*", "~", "a,b", "a\tb", "{}", strings.Repeat("x", 250), strings.Repeat("x", 16_000),
		}
		for _, name := range bad {
			for _, request := range [][]byte{
				createFrame(name, codec.TopicSettings{}),
				openFrame(1, codec.Open{Topic: name}),
				subscribeFrame(1, codec.Subscribe{Topic: name}),
				subscribeFrame(1, codec.Subscribe{Topic: name, Kind: codec.KindPull, Name: "g"}),
				subscribeFrame(1, codec.Subscribe{Topic: "orders", Kind: codec.KindPull, Name: name}),
				codec.AppendDescribe(nil, 7, name),
				codec.AppendAlter(nil, 7, codec.Create{Topic: name, Settings: codec.TopicSettings{Partitions: 2}}),
				codec.AppendDelete(nil, 7, name),
				codec.AppendPurge(nil, 7, codec.Purge{Topic: name}),
			} {
				detail := p.refused(codec.CodeInvalidName, request)
				if !strings.Contains(detail, "name") || strings.ContainsAny(detail, "\x00\n") || !utf8.ValidString(detail) || strings.Contains(detail, "\u202e") {
					t.Errorf("%.50q: told %q", name, detail)
				}
			}
		}
		j := dialJSON(t, b)
		for _, name := range bad {
			if strings.Contains(name, "\xff") {
				continue // JSON has no such string
			}
			quoted := strings.NewReplacer(`\`, `\\`, "\x00", `\u0000`, "\n", `\n`, "\t", `\t`).Replace(name)
			for _, request := range []string{`{"cmd":"create_topic","topic":"%s"}`, `{"cmd":"join","type":"pub","topic":"%s"}`, `{"cmd":"stats","topic":"%s"}`} {
				j.refused(codec.CodeInvalidName, fmt.Sprintf(request, quoted), "name")
			}
		}
		if n, _ := b.topics.Count(); n != 1 {
			t.Errorf("bad names have made %d topics", n-1)
		}

		good := []string{
			"a", "A", "CON", "con", "nul.txt", "-leading", "--help", "...", ".hidden", "a..b", "_", "0", "catalogue", "Orders", strings.Repeat("x", 249),
		}
		for i, name := range good {
			if !p.create(name, codec.TopicSettings{}).Created {
				t.Errorf("%.50q is another's name", name)
			}
			p.open(1, name, 0, 1)
			p.published(1, 1, 0, batchOf([]byte(name)))
			p.closeHandle(1)
			p.pull(2, name, name, 1<<16)
			if d := p.deliver(); len(d.batches) != 1 {
				t.Errorf("%.50q: %+v", name, d)
			}
			p.closeHandle(2)
			j.ask(fmt.Sprintf(`{"cmd":"stats","topic":%q}`, name), map[string]any{"status": "ok", "messages_received": 1.0})
			if n, _ := b.topics.Count(); n != i+2 {
				t.Errorf("%d topics, want %d", n, i+2)
			}
		}
		for _, name := range good {
			p.delete(name)
			p.refused(codec.CodeUnknownTopic, codec.AppendDescribe(nil, 7, name))
		}
		p.describe("orders")
	})
}

// Case F60: slow or silent clients occupy every slot before login. A third silent, a third dribbling a valid hello, a third
// with a TLS hello that never ends: the deadline is absolute, honest clients are not held up, and no session is evicted.
func TestF60SlowLogins(t *testing.T) {
	const deadline = 30 * time.Second
	left := 2 * time.Second // of it, when all are there
	if soak() {
		left = 10 * time.Second
	}
	b := startBroker(t, Config{Limits: Limits{LoginDeadline: deadline, Heartbeat: time.Hour}})
	setup := dial(t, b).hello()
	setup.create("orders", codec.TopicSettings{})
	old := dial(t, b).hello()
	old.open(1, "orders", 0, 1)

	hello := codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: strings.Repeat("slow", 50)})
	count := scaled(5000)
	type slow struct {
		*peer
		kind, sent int
	}
	var all []*slow
	for i := range count {
		s := &slow{peer: dial(t, b), kind: i % 3}
		if s.kind == 2 {
			s.write([]byte{0x16, 0x03, 0x01}) // not enough to tell what it is
		}
		all = append(all, s)
	}
	eventually(t, "all to be waiting", func() bool { return b.logins.Load() == int64(count) })

	// Honest clients, one after the other and at once.
	var honest sync.WaitGroup
	for i := range 10 {
		honest.Go(func() {
			conn, err := connect(b)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			p := &peer{t: t, conn: conn}
			p.hello()
			p.open(1, "orders", 0, 1)
			for n := range uint64(100) {
				p.published(1, 1, n, batchOf(fmt.Appendf(nil, "%d/%d", i, n)))
			}
		})
	}
	honest.Wait()
	if n := info(t, b, "orders").Next; n != 1000 {
		t.Errorf("honest clients have published %d records, want 1000", n)
	}

	// A byte each now and then does not move the deadline.
	onLoops(t, b, func(l *loopState) {
		for _, s := range l.sessions {
			if s.phase == phaseHello {
				s.opened = l.now.Add(left - deadline)
			}
		}
	})
	every := time.NewTicker(left / 20)
	defer every.Stop()
	for b.logins.Load() > 0 {
		<-every.C
		for _, s := range all {
			if s.kind == 1 && s.sent < len(hello)-1 {
				_ = s.tryWrite(hello[s.sent : s.sent+1]) // after the deadline it may fail
				s.sent++
			}
		}
	}
	for i, s := range all {
		h, section, _, err := s.tryNext()
		if err == nil {
			if e, perr := codec.ParseError(section); h.Type != codec.TypeError || perr != nil || e.Code != codec.CodeLoginTimeout {
				t.Fatalf("slow client %d got %s%s", i, h.Type, said(h, section))
			}
		} else if s.kind != 1 || !isReset(err) { // one that went on writing may meet a reset
			t.Fatalf("slow client %d: %v", i, err)
		}
		if s.sent >= len(hello)-1 {
			t.Fatalf("slow client %d has sent its whole hello", i)
		}
		_ = s.conn.Close()
	}
	old.published(1, 1, 0, batchOf([]byte("still here")))
	setup.alive()
	eventually(t, "every slow client to be gone", func() bool { return b.conns.Load() == 2 })
	if err := func() error { c, err := connect(b); _ = c.Close(); return err }(); err != nil {
		t.Error(err)
	}
}
