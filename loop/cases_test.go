package loop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// soak reports whether tests run at full scale (make soak).
func soak() bool { return os.Getenv("LIGHTQ_SOAK") != "" }

func info(t testing.TB, b *Broker, name string) codec.PartitionInfo {
	t.Helper()
	top, err := b.topics.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return top.Partitions()[0].Info()
}

// A capture is a valid session, frame by frame.
func capture() (frames [][]byte, publishEnd int) {
	frames = [][]byte{
		codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "capture"}),
		codec.AppendCreate(nil, 2, codec.Create{Topic: "cut"}),
		codec.AppendDescribe(nil, 3, "cut"),
		codec.AppendOpen(nil, 4, 1, codec.Open{Topic: "cut", Epoch: 1}),
		publishFrame(1, 1, 0, batchOf([]byte("one"), []byte("two"))),
		codec.AppendSubscribe(nil, 5, 2, codec.Subscribe{Topic: "cut", Kind: codec.KindSub, From: codec.FromLatest, CreditBytes: 1000}),
		codec.AppendCredit(nil, 2, 1000),
		codec.AppendHeartbeat(nil),
		codec.AppendClose(nil, 6, 1),
	}
	for _, f := range frames[:5] {
		publishEnd += len(f)
	}
	return frames, publishEnd
}

// Case F45: a command is announced and its body never comes. For every prefix of a valid session: close, reset, or send
// the rest later; nothing is published by a frame that is not whole, and every connection is freed.
func TestF45CommandCutShort(t *testing.T) {
	b := startBroker(t, Config{})
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
		p.expect(codec.TypeHello)
		p.expect(codec.TypeCreate)
		p.expect(codec.TypeDescribe)
		p.expect(codec.TypeOpen)
		// The confirm may come before or behind the answers to what follows it.
		seen := map[codec.Type]int{}
		for range 3 {
			h, _, _ := p.next()
			seen[h.Type]++
		}
		if seen[codec.TypeConfirm] != 1 || seen[codec.TypeSubscribe] != 1 || seen[codec.TypeClose] != 1 {
			t.Fatalf("got frames %v", seen)
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
	for range rounds {
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
			p.write(append(frame, 1, 2, 3))
			held = append(held, p)
			if a.code == codec.CodeNone {
				continue
			}
			_ = p.expectError(a.code)
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

func isReset(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && !op.Timeout()
}

// Case F76: no mode near 40 ms, the time of a delayed acknowledgement. One message in flight, its header and body written
// separately; then two back to back.
func TestF76NoDelayedAcknowledgements(t *testing.T) {
	b := startBroker(t, Config{})
	p := dial(t, b).hello()
	p.create("ping", codec.TopicSettings{})
	p.open(1, "ping", 0, 1)
	sub := dial(t, b).hello()
	sub.subscribe(1, codec.Subscribe{Topic: "ping", From: codec.FromEarliest, CreditBytes: 16 << 20})
	const rounds = 1000
	slow := 0
	number := uint64(0)
	for i := range rounds {
		frame := publishFrame(1, 1, number, batchOf([]byte("x")))
		start := time.Now()
		p.write(frame[:codec.HeaderBytes])
		p.write(frame[codec.HeaderBytes:])
		number++
		want := 1
		if i%2 == 1 {
			p.write(publishFrame(1, 1, number, batchOf([]byte("y"))))
			number++
			want = 2
		}
		for range want {
			p.confirm()
		}
		for got := 0; got < want; {
			_, section, _ := sub.expect(codec.TypeDeliver)
			m, err := codec.ParseDeliver(section)
			if err != nil {
				t.Fatal(err)
			}
			got += int(m.Count)
		}
		if d := time.Since(start); d > 30*time.Millisecond {
			slow++
		}
	}
	// A delayed acknowledgement hits every round; a busy machine some.
	if slow > rounds/4 {
		t.Errorf("%d of %d rounds took more than 30 ms", slow, rounds)
	}
}

// A consumer that never reads costs what its socket and one write hold, and nothing more; it holds up the ring until the
// stall limit, then it is cut off with its reason and the producer goes on. (The transient half of case F23.)
func TestConsumerThatNeverReads(t *testing.T) {
	const ring = 8 << 20
	b := startBroker(t, Config{Limits: Limits{StallLimit: 100 * time.Millisecond}})
	p := dial(t, b).hello()
	p.create("slow", codec.TopicSettings{RingBytes: ring})
	granted := p.open(1, "slow", 0, 1)
	deaf := dial(t, b).hello()
	deaf.subscribe(1, codec.Subscribe{Topic: "slow", From: codec.FromEarliest, CreditBytes: 32 << 20})

	value := bytes.Repeat([]byte("v"), 100_000)
	most := int64(0)
	unconfirmed := 0
	const batches = 300 // 30 MB: several rings
	for i := range batches {
		batch := batchOf(value)
		for unconfirmed+len(batch) > int(granted.WindowBytes) {
			if r := p.confirm(); r.Code != codec.CodeNone {
				t.Fatalf("refused: %v", r.Code)
			}
			unconfirmed -= len(batch)
		}
		unconfirmed += len(batch)
		p.write(publishFrame(1, 1, uint64(i), batch))
		most = max(most, b.slabs.InUseBytes())
	}
	for unconfirmed > 0 {
		p.confirm()
		unconfirmed -= len(batchOf(value))
	}
	// Each batch of 100 KB is charged as a slab of 128 KiB.
	if limit := int64(ring+granted.WindowBytes)*14/10 + 2*writeBytes; most > limit {
		t.Errorf("%d bytes of slabs were in use, want at most %d", most, limit)
	}
	if n := info(t, b, "slow").Subscriptions; n != 0 {
		t.Errorf("%d subscriptions are attached, the stalled one was to be cut off", n)
	}
	// It is told why, behind what it had been sent.
	for {
		h, section, _ := deaf.next()
		if h.Type == codec.TypeDeliver {
			continue
		}
		if e, err := codec.ParseError(section); h.Type != codec.TypeError || err != nil || e.Code != codec.CodeSlowConsumer {
			t.Fatalf("got %s %v %v, want the reason", h.Type, e, err)
		}
		break
	}
}
