package loop

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/codec"
)

func TestSubscribe(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pub := dial(t, b).hello()
		made := pub.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10, Partitions: 2})
		pub.open(1, "orders", 0, 1)
		var values [][]byte
		for i := range 8 { // two records a batch; the ring keeps the newest five batches
			v := [][]byte{bytes.Repeat([]byte{byte(2 * i)}, 25_000), bytes.Repeat([]byte{byte(2*i + 1)}, 25_000)}
			values = append(values, v...)
			pub.published(1, 1, uint64(i), batchOf(v...))
		}
		for _, c := range []struct {
			name     string
			m        codec.Subscribe
			begin    codec.Offset
			gap      codec.Gap
			existing int // index of the first of values that it gets
		}{
			{"earliest", codec.Subscribe{From: codec.FromEarliest}, 6, codec.Gap{}, 6},
			{"latest", codec.Subscribe{From: codec.FromLatest}, 16, codec.Gap{}, 16},
			{"offset", codec.Subscribe{From: codec.FromOffset, Value: 12}, 12, codec.Gap{}, 12},
			{"inside a batch", codec.Subscribe{From: codec.FromOffset, Value: 13}, 13, codec.Gap{}, 13},
			{"the end", codec.Subscribe{From: codec.FromOffset, Value: 16}, 16, codec.Gap{}, 16},
			{"what is gone", codec.Subscribe{From: codec.FromOffset, Value: 3}, 3, codec.Gap{From: 3, Next: 6, Reason: codec.GapDropped}, 6},
		} {
			sub := dial(t, b).hello()
			c.m.Topic, c.m.CreditBytes = "orders", 1<<20
			r := sub.subscribe(5, c.m)
			if r.Begin != c.begin || r.Start != 6 || r.High != 16 || r.ID != made.ID || r.Partitions != 2 {
				t.Errorf("%s: %+v", c.name, r)
			}
			got, gaps := sub.records(5, c.begin, 16, false)
			if !equal(got, values[c.existing:]) {
				t.Errorf("%s: %d records, want %d", c.name, len(got), 16-c.existing)
			}
			if c.gap.Next != 0 && !slices.Equal(gaps, []codec.Gap{c.gap}) || c.gap.Next == 0 && len(gaps) > 0 {
				t.Errorf("%s: gaps %+v, want %+v", c.name, gaps, c.gap)
			}
			sub.nothingDelivered()
			_ = sub.conn.Close()
		}

		sub := dial(t, b).hello()
		for _, c := range []struct {
			code codec.Code
			m    codec.Subscribe
		}{
			{codec.CodeOffsetOutOfRange, codec.Subscribe{Topic: "orders", From: codec.FromOffset, Value: 17}},
			{codec.CodeOffsetOutOfRange, codec.Subscribe{Topic: "orders", From: codec.FromOffset, Value: 1<<64 - 1}},
			{codec.CodeOffsetOutOfRange, codec.Subscribe{Topic: "orders", From: codec.FromOffset, Value: 1 << 63}},
			{codec.CodeInvalidSetting, codec.Subscribe{Topic: "orders", From: 5}},
			{codec.CodeInvalidSetting, codec.Subscribe{Topic: "orders", Kind: 3}},
			{codec.CodeInvalidSetting, codec.Subscribe{Topic: "orders", CreditBytes: 64<<20 + 1}},
			{codec.CodeNotYet, codec.Subscribe{Topic: "orders", Name: "named"}},
			{codec.CodeInvalidName, codec.Subscribe{Topic: "orders", Kind: codec.KindPull}},
			{codec.CodeInvalidName, codec.Subscribe{Topic: "orders", Kind: codec.KindPull, Name: "a/b"}},
			{codec.CodeUnknownPartition, codec.Subscribe{Topic: "orders", Partition: 2}},
			{codec.CodeUnknownPartition, codec.Subscribe{Topic: "orders", Partition: 1<<32 - 1}},
			{codec.CodeUnknownTopic, codec.Subscribe{Topic: "nothing"}},
			{codec.CodeInvalidName, codec.Subscribe{Topic: ""}},
		} {
			sub.refused(c.code, subscribeFrame(5, c.m))
		}
		// Nothing is left of them: the handle is free, and so is the place.
		sub.subscribe(5, codec.Subscribe{Topic: "orders"})
		sub.subscribe(6, codec.Subscribe{Topic: "orders", Partition: 1})
		sub.pull(7, "orders", "g", 0)
		sub.pull(8, "orders", "h", 0)
		eventually(t, "three subscriptions to be attached", func() bool { return info(t, b, "orders").Subscriptions == 3 })
		for _, again := range []codec.Subscribe{{Topic: "orders"}, {Topic: "orders", Kind: codec.KindPull, Name: "g"}} {
			other := dial(t, b).hello()
			other.subscribe(5, codec.Subscribe{Topic: "orders"})
			other.pull(6, "orders", "g", 0)
			other.refused(codec.CodeHandleInUse, subscribeFrame(9, again))
		}
		sub.refused(codec.CodeMalformedFrame, subscribeFrame(0, codec.Subscribe{Topic: "orders", Partition: 1}))
	})
}

func TestOpen(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{WindowBytes: 123_456}}))
		p := dial(t, b).hello()
		made := p.create("orders", codec.TopicSettings{Partitions: 2})
		for _, c := range []struct {
			code codec.Code
			m    codec.Open
		}{
			{codec.CodeUnknownTopic, codec.Open{Topic: "nothing"}},
			{codec.CodeInvalidName, codec.Open{Topic: "."}},
			{codec.CodeUnknownPartition, codec.Open{Topic: "orders", Partition: 2}},
			{codec.CodeUnsupportedLevel, codec.Open{Topic: "orders", Level: codec.LevelDurable}},
			{codec.CodeInvalidSetting, codec.Open{Topic: "orders", Level: 4}},
		} {
			p.refused(c.code, openFrame(1, c.m))
		}
		if n := info(t, b, "orders").Publishers; n != 0 {
			t.Errorf("%d publishers after refused opens", n)
		}
		for handle, c := range map[uint32]struct{ asked, want codec.Level }{
			1: {codec.LevelDefault, codec.LevelAppended}, 2: {codec.LevelNone, codec.LevelNone}, 1<<32 - 1: {codec.LevelAppended, codec.LevelAppended},
		} {
			section, _ := p.ask(openFrame(handle, codec.Open{Topic: "orders", Epoch: 5, Level: c.asked}))
			r, err := codec.ParseOpenReply(section)
			if err != nil || r.Level != c.want || r.WindowBytes != 123_456 || r.MaxBatchBytes != codec.DefaultMaxBatchBytes || r.ID != made.ID || r.Partitions != 2 {
				t.Errorf("level %v: %+v, %v", c.asked, r, err)
			}
			p.published(handle, 5, 0, batchOf([]byte("x"))) // also of level none
		}
		// A new epoch must be higher, and is for the same partition.
		p.refused(codec.CodeStaleEpoch, openFrame(1, codec.Open{Topic: "orders", Epoch: 5}))
		p.refused(codec.CodeStaleEpoch, openFrame(1, codec.Open{Topic: "orders", Epoch: 4}))
		p.published(1, 5, 1, batchOf([]byte("y"))) // the refused opens have changed nothing
		if r := p.open(1, "orders", 0, 6); r.Next != 4 {
			t.Errorf("%+v", r)
		}
		p.published(1, 6, 0, batchOf([]byte("z")))
		p.write(publishFrame(1, 5, 2, batchOf([]byte("old"))))
		if r := p.confirm(); r.Code != codec.CodeStaleEpoch {
			t.Errorf("a batch of the old epoch: %v", r.Code)
		}
		p.published(1, 6, 1, batchOf([]byte("z")))
		p.refused(codec.CodeHandleInUse, openFrame(1, codec.Open{Topic: "orders", Partition: 1, Epoch: 7}))

		for _, c := range []struct {
			code    codec.Code
			request []byte
		}{
			{codec.CodeMalformedFrame, openFrame(0, codec.Open{Topic: "orders"})},
			{codec.CodeHandleInUse, subscribeFrame(1, codec.Subscribe{Topic: "orders"})},
			{codec.CodeUnknownHandle, codec.AppendClose(nil, 6, 77)},
		} {
			other := dial(t, b).hello()
			other.open(1, "orders", 0, 1)
			other.refused(c.code, c.request)
		}
		for _, c := range []struct {
			code  codec.Code
			frame []byte
		}{
			{codec.CodeUnknownHandle, publishFrame(2, 1, 0, batchOf([]byte("x")))},
			{codec.CodeMalformedFrame, publishFrame(1, 1, 1, batchOf([]byte("x")))},
			{codec.CodeMalformedFrame, publishFrame(1, 1, 0)},
			{codec.CodeUnknownHandle, codec.AppendCredit(nil, 1, 5)},
			{codec.CodeUnknownHandle, codec.AppendCredit(nil, 3, 5)},
		} {
			other := dial(t, b).hello()
			other.open(1, "orders", 0, 1)
			other.write(c.frame)
			other.expectError(c.code)
			other.expectEnd()
		}
		eventually(t, "the handles to be closed", func() bool { return info(t, b, "orders").Publishers == 0 })
	})
}

// A close is answered behind everything that was published, and a second one while the first waits ends the connection,
// however it arrives.
func TestClosePublisher(t *testing.T) {
	b := startBroker(t, Config{Listener: newPipeListener()})
	sub := dial(t, b).hello()
	sub.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	sub.subscribe(1, codec.Subscribe{Topic: "orders"})
	_, batches := numbered(6, 50_000)
	waits := func() *peer {
		p := dial(t, b).hello()
		p.open(1, "orders", 0, 1)
		p.write(publishFrame(1, 1, 0, batches...))
		p.confirmed(5)
		p.write(codec.AppendClose(nil, 6, 1))
		p.alive()
		return p
	}
	p := waits()
	sub.write(codec.AppendCredit(nil, 1, 1<<20))
	p.confirmed(1)
	if h, _, _ := p.expect(codec.TypeClose); h.Correlation != 6 || h.Handle != 1 {
		t.Errorf("%+v", h)
	}
	sub.records(1, 0, 6, false)

	frame := codec.AppendClose(nil, 7, 1)
	for _, split := range []int{0, 5, len(frame) - 1} {
		sub.closeHandle(1)
		sub.purge("orders", codec.AllPartitions)
		sub.subscribe(1, codec.Subscribe{Topic: "orders", From: codec.FromLatest})
		p = waits()
		if split > 0 {
			p.write(frame[:split]) // over a pipe: has been read when this returns
		}
		p.write(frame[split:])
		if h, _ := p.expectError(codec.CodeUnknownHandle); h.Handle != 1 || h.Correlation != 7 {
			t.Errorf("%+v", h)
		}
		_ = p.conn.Close()
	}
	sub.alive()
}

// Under block a batch waits for room, without a loss; a consumer that stalls is cut off, told, and may come back.
func TestOverflowBlock(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{StallLimit: 50 * time.Millisecond}}))
		pub, sub := dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		pub.open(1, "orders", 0, 1)
		_, batches := numbered(30, 50_000)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		for i := 0; i < 30; i += 10 {
			pub.write(publishFrame(1, 1, uint64(i), batches[i:i+10]...))
		}
		pub.confirmed(5)
		// The rest waits, and not for ever: nobody takes anything.
		if h, _ := sub.expectError(codec.CodeSlowConsumer); h.Handle != 1 || h.Correlation != 0 {
			t.Errorf("told about %+v", h)
		}
		pub.confirmed(25)
		// The number stays taken until it is closed; what was on its way to it does no harm.
		sub.write(codec.AppendCredit(nil, 1, 1000))
		sub.closeHandle(1)
		r := sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 1 << 20})
		if r.Begin != 25 || r.High != 30 {
			t.Errorf("back again: %+v", r)
		}
		sub.records(1, 25, 30, false)

		// One that is slow but moves is not cut off, and loses nothing: it takes a batch each 40 seconds by the topic's clock, of
		// which the limit is 60.
		b = startBroker(t, listen(Config{Limits: Limits{StallLimit: time.Hour}}))
		pub, slow := dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		pub.open(1, "orders", 0, 1)
		top, err := b.topics.Get("orders")
		if err != nil {
			t.Fatal(err)
		}
		clock := time.Now().UnixMilli()
		slow.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 1})
		for i := 0; i < 30; i += 10 {
			pub.write(publishFrame(1, 1, uint64(i), batches[i:i+10]...))
		}
		pub.confirmed(5) // the rest waits
		for i, batch := range batches {
			slow.records(1, codec.Offset(i), codec.Offset(i+1), false)
			clock += 40_000
			top.Partitions()[0].Tick(clock-60_000, clock)
			slow.write(codec.AppendCredit(nil, 1, uint32(len(batch))))
		}
		pub.confirmed(25)
	})
}

func TestOverflowDropOldest(t *testing.T) {
	for _, storage := range []codec.Storage{codec.StorageQueue, codec.StorageDirect} {
		b := startBroker(t, Config{})
		pub, sub, pull := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{
			Storage: storage, MaxBatchBytes: 64 << 10, RingBytes: 256 << 10, Overflow: codec.OverflowDropOldest,
		})
		pub.open(1, "orders", 0, 1)
		values, batches := numbered(30, 50_000)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		pull.pull(1, "orders", "g", 0)
		pub.published(1, 1, 0, batches...)
		d := pub.describe("orders").Partitions[0]
		if d.Start != 25 || d.Next != 30 || d.DroppedUnread != 25 {
			t.Errorf("%s: %+v", storage, d)
		}
		gap := codec.Gap{From: 0, Next: 25, Reason: codec.GapDropped}
		for _, p := range []*peer{sub, pull} {
			p.write(codec.AppendCredit(nil, 1, 1<<20))
			got, gaps := p.records(1, 0, 30, false)
			if !equal(got, values[25:]) || !slices.Equal(gaps, []codec.Gap{gap}) {
				t.Errorf("%s: %d records, gaps %+v", storage, len(got), gaps)
			}
		}
	}
}

func TestOverflowReject(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pub, second, sub := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10, Overflow: codec.OverflowReject})
		pub.open(1, "orders", 0, 1)
		second.open(1, "orders", 0, 1)
		values, batches := numbered(30, 50_000)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		pub.write(publishFrame(1, 1, 0, batches[:8]...)) // one frame; five fit
		pub.confirmed(5)
		for i, want := range []codec.Code{codec.CodeOverflow, codec.CodeStaleEpoch, codec.CodeStaleEpoch} {
			if r := pub.confirm(); r.Code != want || r.Base != 0 {
				t.Errorf("batch %d: %+v, want %v", 5+i, r, want)
			}
		}
		pub.write(publishFrame(1, 1, 8, batchOf([]byte("small")))) // would fit, but must not overtake
		if r := pub.confirm(); r.Code != codec.CodeStaleEpoch {
			t.Errorf("behind a refused batch: %v", r.Code)
		}
		second.published(1, 1, 0, batchOf([]byte("small"))) // another handle's order is its own
		pub.open(1, "orders", 0, 2)
		pub.write(publishFrame(1, 2, 0, batches[5]))
		if r := pub.confirm(); r.Code != codec.CodeOverflow {
			t.Errorf("the ring is still full: %v", r.Code)
		}
		// Room comes when the consumer has taken something; it loses nothing.
		sub.write(codec.AppendCredit(nil, 1, 10<<20))
		got, _ := sub.records(1, 0, 6, false)
		pub.open(1, "orders", 0, 3)
		pub.published(1, 3, 0, batches[5:10]...)
		more, gaps := sub.records(1, 6, 11, false)
		want := slices.Concat(values[:5], [][]byte{[]byte("small")}, values[5:10])
		if !equal(slices.Concat(got, more), want) || len(gaps) != 0 {
			t.Errorf("delivered %d and %d records, gaps %v", len(got), len(more), gaps)
		}
		if d := pub.describe("orders").Partitions[0]; d.RecordsIn != 11 {
			t.Errorf("%+v", d)
		}
	})
}

// direct keeps nothing for who comes later, and loses nothing for who is there.
func TestDirect(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pub, sub, late := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("now", codec.TopicSettings{Storage: codec.StorageDirect, MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		pub.open(1, "now", 0, 1)
		values, batches := numbered(40, 5000)
		pub.published(1, 1, 0, batches[:10]...)
		if d := pub.describe("now").Partitions[0]; d.Bytes != 0 || d.Start != 10 || d.Next != 10 || d.DroppedUnread != 10 {
			t.Errorf("with nobody attached: %+v", d)
		}
		if r := sub.subscribe(1, codec.Subscribe{Topic: "now", CreditBytes: 1 << 20}); r.Begin != 10 {
			t.Errorf("%+v", r)
		}
		pub.published(1, 1, 10, batches[10:20]...)
		if r := late.subscribe(1, codec.Subscribe{Topic: "now", From: codec.FromOffset, Value: 3, CreditBytes: 1 << 20}); r.Begin != 20 {
			t.Errorf("%+v", r)
		}
		pub.published(1, 1, 20, batches[20:]...)
		if got, gaps := sub.records(1, 10, 40, false); !equal(got, values[10:]) || len(gaps) != 0 {
			t.Errorf("who was there got %d records, gaps %v", len(got), gaps)
		}
		if got, gaps := late.records(1, 20, 40, false); !equal(got, values[20:]) || len(gaps) != 0 {
			t.Errorf("who came later got %d records, gaps %v", len(got), gaps)
		}
		if d := pub.describe("now").Partitions[0]; d.Bytes != 0 || d.Start != 40 {
			t.Errorf("when all have had it: %+v", d)
		}
	})
}

// A batch may overshoot the window; a frame beyond it is a breach.
func TestWindow(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{WindowBytes: 100_000}}))
		p, sub := dial(t, b).hello(), dial(t, b).hello()
		p.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		p.open(1, "orders", 0, 1)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		_, batches := numbered(8, 50_000)
		p.published(1, 1, 0, batches[:2]...)
		p.published(1, 1, 2, batches[2:4]...)
		p.published(1, 1, 4, batches[4])
		p.write(publishFrame(1, 1, 5, batchOf(make([]byte, 20_000)))) // from here on nothing is confirmed
		p.write(publishFrame(1, 1, 6, batchOf(make([]byte, 60_000))))
		half := batchOf(make([]byte, 30_000))
		p.write(publishFrame(1, 1, 7, half, half, half)) // overshoots, by two batches: a frame is taken whole
		p.alive()
		p.write(publishFrame(1, 1, 10, batchOf([]byte("x"))))
		p.expectError(codec.CodeWindowExceeded)
		p.expectEnd()
		eventually(t, "the handle to be gone", func() bool { return info(t, b, "orders").Publishers == 0 })
	})
}

// Credit is bytes of batches; one batch may overshoot it, and what it overshot is taken off later grants.
func TestCredit(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{MaxCreditBytes: 1 << 20}}))
		p := dial(t, b).hello()
		p.create("orders", codec.TopicSettings{})
		p.open(1, "orders", 0, 1)
		_, batches := numbered(6, 1000)
		size := uint32(len(batches[0]))
		p.subscribe(2, codec.Subscribe{Topic: "orders"})
		p.published(1, 1, 0, batches...)
		p.nothingDelivered()
		p.write(codec.AppendCredit(nil, 2, 0))
		p.nothingDelivered()
		p.write(codec.AppendCredit(nil, 2, 1))
		if got := p.offsets(1); got[0] != 0 {
			t.Errorf("got %v", got)
		}
		p.nothingDelivered()
		p.write(codec.AppendCredit(nil, 2, size-1)) // makes it 0
		p.nothingDelivered()
		p.write(codec.AppendCredit(nil, 2, size+1))
		if got := p.offsets(2); !slices.Equal(got, []codec.Offset{1, 2}) {
			t.Errorf("got %v", got)
		}
		p.nothingDelivered()
		p.write(codec.AppendCredit(nil, 2, 1<<20+size-1)) // the limit, beyond what was overshot
		if got := p.offsets(3); !slices.Equal(got, []codec.Offset{3, 4, 5}) {
			t.Errorf("got %v", got)
		}
		p.write(codec.AppendCredit(nil, 2, 3*size))
		p.alive()
		p.write(codec.AppendCredit(nil, 2, 1))
		p.expectError(codec.CodeWindowExceeded)
		p.expectEnd()
	})
}

// A consumer that never reads costs what its socket and one write hold, and nothing more; it holds up the ring until the
// stall limit, then it is cut off with its reason and the producer goes on.
func TestConsumerThatNeverReads(t *testing.T) {
	const ring = 8 << 20
	b := startBroker(t, Config{Limits: Limits{StallLimit: 100 * time.Millisecond}})
	p := dial(t, b).hello()
	p.create("slow", codec.TopicSettings{RingBytes: ring})
	granted := p.open(1, "slow", 0, 1)
	deaf := dial(t, b).hello()
	deaf.subscribe(1, codec.Subscribe{Topic: "slow", CreditBytes: 32 << 20})

	most := flood(p, b, granted, batchOf(bytes.Repeat([]byte("v"), 100_000)), 300) // 30 MB: several rings
	// Each batch of 100 KB is charged as a slab of 128 KiB.
	if limit := int64(ring+granted.WindowBytes)*14/10 + 2*writeBytes; most > limit {
		t.Errorf("%d bytes of slabs were in use, want at most %d", most, limit)
	}
	if n := info(t, b, "slow").Subscriptions; n != 0 {
		t.Errorf("%d subscriptions are attached, the stalled one was to be cut off", n)
	}
	deaf.cutOff(codec.CodeSlowConsumer)
}

// flood publishes a batch again and again, as much as the window allows, until count are confirmed. It returns the most bytes
// of slabs that were in use.
func flood(p *peer, b *Broker, granted codec.OpenReply, batch []byte, count int) (most int64) {
	p.t.Helper()
	unconfirmed := 0
	for i := range count {
		for unconfirmed > 0 && unconfirmed+len(batch) > int(granted.WindowBytes) {
			p.confirmed(1)
			unconfirmed -= len(batch)
		}
		unconfirmed += len(batch)
		p.write(publishFrame(1, 1, uint64(i), batch))
		most = max(most, b.slabs.InUseBytes())
	}
	for ; unconfirmed > 0; unconfirmed -= len(batch) {
		p.confirmed(1)
	}
	return max(most, b.slabs.InUseBytes())
}

// cutOff reads what was sent before, and then the reason.
func (p *peer) cutOff(code codec.Code) {
	p.t.Helper()
	for {
		h, section, _ := p.next()
		if h.Type == codec.TypeDeliver {
			continue
		}
		if e, err := codec.ParseError(section); h.Type != codec.TypeError || err != nil || e.Code != code {
			p.t.Fatalf("got %s%s, want the reason %v", h.Type, said(h, section), code)
		}
		return
	}
}

// dialSlow connects like case F23's slow reader: a receive buffer of 4,096 bytes.
func dialSlow(t testing.TB, b *Broker) *peer {
	t.Helper()
	p := dial(t, b)
	_ = p.conn.(*net.TCPConn).SetReadBuffer(4096)
	return p.hello()
}

// Case F23: consumers that never read make the broker grow until it is killed. For every storage and policy there is: memory
// stays within rings, windows and what each connection may hold; the policy is carried out and told. (Durable topics follow.)
func TestF23SlowReaders(t *testing.T) {
	const (
		readers = 50
		ring    = 8 << 20
		records = 100 // of 1 KiB, in a batch
	)
	total := scaled(4 << 30) // bytes, over all of the topics
	value := bytes.Repeat([]byte("v"), 1024)
	values := make([][]byte, records)
	for i := range values {
		values[i] = value
	}
	batch := batchOf(values...)
	for _, storage := range []codec.Storage{codec.StorageQueue, codec.StorageDirect} {
		for _, overflow := range []codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject} {
			t.Run(storage.String()+"/"+overflow.String(), func(t *testing.T) {
				log := &journal{}
				b := startBroker(t, Config{Limits: Limits{StallLimit: 100 * time.Millisecond, Heartbeat: time.Hour}, Logger: log.logger()})
				p := dial(t, b).hello()
				p.create("slow", codec.TopicSettings{Storage: storage, Overflow: overflow, RingBytes: ring})
				granted := p.open(1, "slow", 0, 1)
				var deaf []*peer
				one := dial(t, b).hello() // will read later, which takes long over a small buffer
				for i := range readers {
					s := one
					if i > 0 {
						s = dialSlow(t, b)
					}
					s.subscribe(1, codec.Subscribe{Topic: "slow", CreditBytes: 64 << 20})
					deaf = append(deaf, s)
				}
				rss := residentBytes(t)
				count := total / 6 / len(batch)
				var most int64
				if overflow == codec.OverflowReject {
					refused := 0
					epoch, number := uint32(1), uint64(0)
					for range count {
						p.write(publishFrame(1, epoch, number, batch))
						number++
						r := p.confirm()
						most = max(most, b.slabs.InUseBytes())
						if r.Code == codec.CodeOverflow {
							refused++
							epoch++
							number = 0
							p.open(1, "slow", 0, epoch)
						} else if r.Code != codec.CodeNone {
							t.Fatalf("refused: %v", r.Code)
						}
					}
					if refused == 0 {
						t.Error("nothing was refused")
					}
				} else {
					most = flood(p, b, granted, batch, count)
				}
				// A connection holds one write's worth of batches, each charged as a slab of 128 KiB, and one more.
				perReader := int64(2*writeBytes + 128<<10)
				limit := int64(ring+granted.WindowBytes)*14/10 + readers*perReader
				if most > limit {
					t.Errorf("%d bytes of slabs were in use, want at most %d", most, limit)
				}
				rise := residentBytes(t) - rss
				if rise > 4*limit {
					t.Errorf("resident memory rose by %d bytes, of slabs were in use at most %d", rise, most)
				}
				t.Logf("%d MB published, at most %d MB of slabs in use, resident memory rose by %d MB", count*len(batch)>>20, most>>20, rise>>20)

				switch overflow {
				case codec.OverflowBlock:
					if n := info(t, b, "slow").Subscriptions; n != 0 {
						t.Fatalf("%d subscriptions are attached", n)
					}
					// The log says who it was at once, not when they read again.
					eventually(t, "all to be named in the log", func() bool {
						return len(log.with("consumer cut off", "topic=slow", "partition=0", "peer=127.0.0.1", "client=test")) == readers
					})
					one.cutOff(codec.CodeSlowConsumer)
				case codec.OverflowDropOldest:
					for next, told := codec.Offset(0), false; !told; {
						d := one.deliver()
						if d.Gap.Next != 0 {
							told = true
							if d.Gap.From != next || d.Gap.Reason != codec.GapDropped {
								t.Errorf("a gap of %+v at %d", d.Gap, next)
							}
						} else if d.batches[0].BaseOffset() != next {
							t.Fatalf("offset %d without a gap, want %d", d.batches[0].BaseOffset(), next)
						}
						next = d.batches[len(d.batches)-1].NextOffset()
					}
				case codec.OverflowReject:
					one.records(1, 0, info(t, b, "slow").Next, true) // it has lost nothing
				}
				for _, s := range deaf {
					_ = s.conn.Close()
				}
				eventually(t, "the slow connections to be gone", func() bool { return b.conns.Load() == 1 })
				p.delete("slow")
				eventually(t, "the slabs to be free", func() bool { return p.stats()["slab_bytes_in_use"] <= 1<<20 })
			})
		}
	}
}

// latencies are those of one consumer, in order of arrival.
type latencies []time.Duration

func (l latencies) at(permille int) time.Duration {
	s := slices.Sorted(slices.Values(l))
	return s[min(len(s)-1, len(s)*permille/1000)].Round(time.Microsecond)
}

// Case F24: one slow consumer delays everyone else. Nine consumers beside one whose socket is full, and a pair on another
// topic: all get everything while the slow one stands still, and no loop is held up. Latencies, with and without it,
// interleaved, are reported and not judged.
func TestF24OneSlowConsumer(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{Heartbeat: time.Hour}}) // the slow one says nothing, however long this takes
	setup := dial(t, b).hello()
	setup.create("shared", codec.TopicSettings{})
	setup.create("apart", codec.TopicSettings{})
	perRound := scaled(20_000)
	interval := 500 * time.Microsecond // of 1 KiB each on both topics: far below capacity
	const rounds = 4

	topics := []string{"shared", "shared", "shared", "shared", "shared", "shared", "shared", "shared", "shared", "apart"}
	pubs := map[string]*peer{}
	numbers := map[string]uint64{}
	for _, name := range []string{"shared", "apart"} {
		pubs[name] = dial(t, b).hello()
		pubs[name].open(1, name, 0, 1)
	}
	consumers := make([]*peer, len(topics))
	for i, name := range topics {
		consumers[i] = dial(t, b).hello()
		consumers[i].subscribe(1, codec.Subscribe{Topic: name, CreditBytes: 4 << 20})
	}
	sent := map[string][]time.Time{}
	round := func() map[string]latencies {
		var reading sync.WaitGroup
		var mu sync.Mutex
		all := map[string]latencies{}
		var sentMu sync.RWMutex
		begin := map[string]codec.Offset{}
		for name := range pubs {
			begin[name] = info(t, b, name).Next
			sent[name] = nil
		}
		for i, name := range topics {
			reading.Go(func() {
				var l latencies
				for next := begin[name]; next < begin[name]+codec.Offset(perRound); {
					d := consumers[i].deliver()
					now := time.Now()
					sentMu.RLock()
					for _, batch := range d.batches {
						if batch.BaseOffset() != next {
							t.Errorf("consumer %d got %d, want %d", i, batch.BaseOffset(), next)
						}
						l = append(l, now.Sub(sent[name][next-begin[name]]))
						next = batch.NextOffset()
					}
					sentMu.RUnlock()
					consumers[i].write(codec.AppendCredit(nil, 1, uint32(d.bytes)))
				}
				mu.Lock()
				all[name] = append(all[name], l...)
				mu.Unlock()
			})
		}
		batch := batchOf(make([]byte, 1024))
		pace := time.NewTicker(interval)
		defer pace.Stop()
		for range perRound {
			<-pace.C
			for name, p := range pubs {
				sentMu.Lock()
				sent[name] = append(sent[name], time.Now())
				sentMu.Unlock()
				p.write(publishFrame(1, 1, numbers[name], batch))
				numbers[name]++
			}
			for _, p := range pubs {
				p.confirmed(1)
			}
		}
		reading.Wait()
		return all
	}

	var without, with map[string]latencies
	add := func(to *map[string]latencies, from map[string]latencies) {
		if *to == nil {
			*to = map[string]latencies{}
		}
		for name, l := range from {
			(*to)[name] = append((*to)[name], l...)
		}
	}
	for range rounds / 2 {
		add(&without, round())
		slow := dialSlow(t, b)
		slow.subscribe(1, codec.Subscribe{Topic: "shared", From: codec.FromLatest, CreditBytes: 64 << 20})
		// Fill its socket, while the others read.
		var reading sync.WaitGroup
		fillFrom := info(t, b, "shared").Next
		const fills = 16
		for i := range 9 {
			reading.Go(func() { consumers[i].records(1, fillFrom, fillFrom+fills, true) })
		}
		for range fills {
			pubs["shared"].published(1, 1, numbers["shared"], batchOf(make([]byte, 1<<20-100)))
			numbers["shared"]++
		}
		reading.Wait()
		stuck := func(s *session) bool { return s.out.blocked }
		eventually(t, "the slow consumer's socket to be full", func() bool { return countSessions(t, b, stuck) == 1 })
		add(&with, round())
		if n := countSessions(t, b, stuck); n != 1 {
			t.Errorf("%d sockets are full at the end, want the slow consumer's", n)
		}
		_ = slow.conn.Close()
		eventually(t, "the slow consumer to be gone", func() bool { return info(t, b, "shared").Subscriptions == 9 })
	}
	for _, name := range []string{"shared", "apart"} {
		w, o := with[name], without[name]
		t.Logf("%s: p50/p99/p999 without a slow consumer %s %s %s, with one %s %s %s, %d samples each",
			name, o.at(500), o.at(990), o.at(999), w.at(500), w.at(990), w.at(999), len(w))
	}
}

// Case F28: publishers are not throttled when what is behind them is slower. Eight that use their whole windows without
// waiting, and a consumer that takes one batch at a time: what is in flight is bounded, others are served, nothing is lost,
// and who breaks the window is closed. (With disks slower still follows with durable topics.)
func TestF28ProducersFasterThanTheConsumer(t *testing.T) {
	const (
		producers = 8
		window    = 1 << 20
		ring      = 4 << 20
		size      = 150_000
	)
	b := startBroker(t, Config{Loops: 2, Limits: Limits{WindowBytes: window, Heartbeat: time.Hour}})
	admin := dial(t, b).hello()
	admin.create("slow", codec.TopicSettings{RingBytes: ring})
	admin.create("other", codec.TopicSettings{})
	each := scaled(1000)
	consumer := dial(t, b).hello()
	consumer.subscribe(1, codec.Subscribe{Topic: "slow", CreditBytes: 1})

	batch := batchOf(make([]byte, size))
	var working sync.WaitGroup
	for range producers {
		p := dial(t, b).hello()
		p.open(1, "slow", 0, 1)
		room := make(chan struct{}, window/len(batch)+1) // a batch may overshoot the window
		working.Go(func() {
			for i := range each {
				room <- struct{}{}
				if err := p.tryWrite(publishFrame(1, 1, uint64(i), batch)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		working.Go(func() {
			for got := 0; got < each; {
				_, section, payload, err := p.tryNext()
				if err != nil {
					t.Error(err)
					return
				}
				m, err := codec.ParseConfirm(section, payload)
				if err != nil {
					t.Error(err)
					return
				}
				for i := range int(m.Count) {
					if r := codec.ResultAt(payload, i); r.Code != codec.CodeNone {
						t.Errorf("refused: %v", r.Code)
					}
					<-room
				}
				got += int(m.Count)
			}
		})
	}
	eventually(t, "the ring to be full", func() bool {
		return info(t, b, "slow").Bytes > ring-2*size
	})

	pub, sub := dial(t, b).hello(), dial(t, b).hello()
	pub.open(1, "other", 0, 1)
	sub.subscribe(1, codec.Subscribe{Topic: "other", CreditBytes: 60 << 20})
	var most int64
	total := producers * each
	for next := range total {
		// Each step of the slow consumer comes after a whole exchange of everybody else.
		admin.describe("slow")
		pub.published(1, 1, uint64(next), batchOf([]byte("x")))
		sub.records(1, codec.Offset(next), codec.Offset(next+1), false)
		most = max(most, b.slabs.InUseBytes())
		d := consumer.deliver()
		if len(d.batches) != 1 || d.batches[0].BaseOffset() != codec.Offset(next) || d.Gap.Next != 0 {
			t.Fatalf("got %+v, want offset %d", d.Deliver, next)
		}
		consumer.write(codec.AppendCredit(nil, 1, uint32(d.bytes)))
		if next%64 == 0 {
			onLoops(t, b, func(l *loopState) {
				for _, s := range l.sessions {
					for _, h := range s.handles {
						if p, ok := h.(*publishing); ok && p.unconfirmed > window+len(batch) {
							t.Errorf("%d bytes of one handle are in flight", p.unconfirmed)
						}
					}
				}
			})
		}
	}
	working.Wait()
	// A batch of 150 KB is charged as a slab of 256 KiB.
	slab := int64(256 << 10)
	limit := (ring/size + producers*(window/size+2) + 4) * slab
	if most > limit {
		t.Errorf("%d bytes of slabs were in use, want at most %d", most, limit)
	}
	t.Logf("%d batches of %d producers, at most %d MB in flight, want at most %d", total, producers, most>>20, limit>>20)

	// Who does not care for the window is told, and closed, whatever it still sends; the others go on.
	greedy := dial(t, b).hello()
	greedy.open(1, "slow", 0, 1)
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range 1000 {
			if greedy.tryWrite(publishFrame(1, 1, uint64(i), batch)) != nil {
				return
			}
		}
	})
	for told := false; ; {
		h, section, _, err := greedy.tryNext()
		if err != nil {
			if !told && !isReset(err) { // a reset may take the reason, since it went on writing
				t.Errorf("closed without a reason: %v", err)
			}
			break
		}
		if h.Type == codec.TypeError {
			told = true
			if !strings.Contains(said(h, section), codec.CodeWindowExceeded.String()) {
				t.Errorf("got %s%s", h.Type, said(h, section))
			}
		}
	}
	writing.Wait()
	admin.alive()
	eventually(t, "the greedy producer to be gone", func() bool { return info(t, b, "slow").Publishers == producers })
}

// Case F76: messages take 40 ms each where small writes wait for the acknowledgement of those before, which the peer delays. So
// every accepted socket has TCP_NODELAY, and what leaves together leaves in one write. One message in flight, its header and
// body written separately, then two back to back, are all answered.
func TestF76NoDelayedAcknowledgements(t *testing.T) {
	b := startBroker(t, Config{BothLoopbacks: true})
	var peers []*peer
	for _, addr := range b.Addrs() {
		conn, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		peers = append(peers, (&peer{t: t, conn: conn}).hello())
	}
	looked := countSessions(t, b, func(s *session) bool {
		v, err := unix.GetsockoptInt(s.t.(*gnetTransport).fd, unix.IPPROTO_TCP, unix.TCP_NODELAY)
		return err == nil && v != 0
	})
	if looked != len(peers) {
		t.Errorf("%d of %d accepted sockets have TCP_NODELAY", looked, len(peers))
	}
	p, sub := peers[0], peers[len(peers)-1]
	p.create("ping", codec.TopicSettings{})
	p.open(1, "ping", 0, 1)
	sub.subscribe(2, codec.Subscribe{Topic: "ping", CreditBytes: 16 << 20})
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
		for confirmed, got := 0, 0; confirmed < want || got < want; {
			from := p
			if confirmed == want {
				from = sub
			}
			switch h, section, payload := from.next(); h.Type {
			case codec.TypeConfirm:
				p.addResults(section, payload)
				confirmed += len(p.results)
				p.confirmed(len(p.results))
			case codec.TypeDeliver:
				got += len(sub.delivery(h, section, payload).batches)
			default:
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
		}
		if d := time.Since(start); d > 30*time.Millisecond {
			slow++
		}
	}
	t.Logf("%d of %d rounds took more than 30 ms, which is the machine's affair", slow, rounds)

	// A confirm and a delivery that are due at once leave in one write.
	v := newBench(t, Limits{})
	v.feed(bytes.Join([][]byte{
		codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1}),
		codec.AppendCreate(nil, 2, codec.Create{Topic: "ping"}),
		openFrame(1, codec.Open{Topic: "ping", Epoch: 1}),
		subscribeFrame(2, codec.Subscribe{Topic: "ping", CreditBytes: 1 << 20}),
	}, nil))
	for i := range uint64(100) {
		writes, wrote := v.writes, len(v.out)
		frame := publishFrame(1, 1, i, batchOf([]byte("x")))
		v.feed(frame[:codec.HeaderBytes])
		v.feed(frame[codec.HeaderBytes:])
		if n := v.writes - writes; n != 1 || len(v.out)-wrote < len(frame) {
			t.Fatalf("a confirm and a delivery of %d bytes took %d writes", len(v.out)-wrote, n)
		}
	}
	v.end()
}
