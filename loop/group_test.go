package loop

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

func (p *peer) pull(handle uint32, name, group string, credit uint32) codec.SubscribeReply {
	p.t.Helper()
	return p.subscribe(handle, codec.Subscribe{Topic: name, Kind: codec.KindPull, Name: group, CreditBytes: credit})
}

// offsets takes n batches of one record each and returns their offsets.
func (p *peer) offsets(n int) (offsets []codec.Offset) {
	p.t.Helper()
	for len(offsets) < n {
		d := p.deliver()
		for _, b := range d.batches {
			offsets = append(offsets, b.BaseOffset())
		}
		if d.Gap.Next != 0 {
			p.t.Fatalf("a gap of %+v", d.Gap)
		}
	}
	return offsets
}

// nothingDelivered fails the test if anything but the answer to a request arrives.
func (p *peer) nothingDelivered() {
	p.t.Helper()
	p.alive()
}

// Two members get alternate batches, a sub beside them gets all; what one leaves, the other gets.
func TestGroupTakesTurns(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		pub, sub := dial(t, b).hello(), dial(t, b).hello()
		one, two, other := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.create("work", codec.TopicSettings{})
		pub.open(1, "work", 0, 1)
		_, batches := numbered(20, 10)
		pub.published(1, 1, 0, batches[:2]...)
		sub.subscribe(1, codec.Subscribe{Topic: "work", CreditBytes: 1 << 20})
		if r := one.pull(1, "work", "g", 1<<20); r.Begin != 0 || r.High != 2 {
			t.Errorf("the first member: %+v", r)
		}
		if got := one.offsets(2); !slices.Equal(got, []codec.Offset{0, 1}) {
			t.Errorf("alone it got %v", got)
		}
		if r := two.pull(1, "work", "g", 1<<20); r.Begin != 2 {
			t.Errorf("the second member: %+v", r)
		}
		// A group that is made later has a position of its own.
		if r := other.pull(1, "work", "h", 1<<20); r.Begin != 0 {
			t.Errorf("a member of another group: %+v", r)
		}
		for i, batch := range batches[2:12] {
			pub.published(1, 1, uint64(i+2), batch)
		}
		first, second := one.offsets(5), two.offsets(5)
		if first[0] == 3 {
			first, second = second, first
		}
		if !slices.Equal(first, []codec.Offset{2, 4, 6, 8, 10}) || !slices.Equal(second, []codec.Offset{3, 5, 7, 9, 11}) {
			t.Errorf("two members got %v and %v", first, second)
		}
		two.closeHandle(1)
		for i, batch := range batches[12:16] {
			pub.published(1, 1, uint64(i+12), batch)
		}
		if got := one.offsets(4); !slices.Equal(got, []codec.Offset{12, 13, 14, 15}) {
			t.Errorf("after the other has left: %v", got)
		}
		// The last one leaves, and comes back for what has come meanwhile.
		one.closeHandle(1)
		pub.published(1, 1, 16, batches[16:]...)
		if r := two.pull(1, "work", "g", 1<<20); r.Begin != 16 {
			t.Errorf("back again: %+v", r)
		}
		if got := two.offsets(4); !slices.Equal(got, []codec.Offset{16, 17, 18, 19}) {
			t.Errorf("back again it got %v", got)
		}
		if got := other.offsets(20); got[0] != 0 || got[19] != 19 || !slices.IsSorted(got) {
			t.Errorf("the other group got %v", got)
		}
		sub.records(1, 0, 20, false)
		one.nothingDelivered()
		two.nothingDelivered()
		if n := pub.describe("work").Partitions[0].QueueSize; n != 0 {
			t.Errorf("a backlog of %d", n)
		}
	})
}

// A member without credit is passed over; one batch may overshoot the credit.
func TestGroupCredit(t *testing.T) {
	b := startBroker(t, Config{})
	pub, one, two := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
	pub.create("work", codec.TopicSettings{})
	pub.open(1, "work", 0, 1)
	_, batches := numbered(9, 1000)
	one.pull(1, "work", "g", 0)
	two.pull(1, "work", "g", 1)
	pub.published(1, 1, 0, batches[:4]...)
	if got := two.offsets(1); got[0] != 0 {
		t.Errorf("got %v", got)
	}
	two.nothingDelivered()
	one.nothingDelivered()
	if n := pub.describe("work").Partitions[0].QueueSize; n != 3 {
		t.Errorf("a backlog of %d, want 3", n)
	}
	one.write(codec.AppendCredit(nil, 1, uint32(len(batches[0])+1)))
	if got := one.offsets(2); !slices.Equal(got, []codec.Offset{1, 2}) {
		t.Errorf("got %v", got)
	}
	one.nothingDelivered()
	two.write(codec.AppendCredit(nil, 1, uint32(len(batches[0])-1))) // what it overshot, and no more
	two.nothingDelivered()
	two.write(codec.AppendCredit(nil, 1, 1))
	if got := two.offsets(1); got[0] != 3 {
		t.Errorf("got %v", got)
	}
	// The limit on credit is that of every subscription.
	one.refused(codec.CodeInvalidSetting, subscribeFrame(2, codec.Subscribe{Topic: "work", Kind: codec.KindPull, Name: "h", CreditBytes: 64<<20 + 1}))
	one.write(codec.AppendCredit(nil, 1, 64<<20))
	one.write(codec.AppendCredit(nil, 1, 64<<20))
	one.expectError(codec.CodeWindowExceeded)
	one.expectEnd()
}

// What a member was to get and did not, since it does not read, goes to the others when its connection ends; what was handed
// to its connection counts as delivered. Together nothing is missing.
func TestGroupMemberLost(t *testing.T) {
	b := startBroker(t, Config{})
	pub, two := dial(t, b).hello(), dial(t, b).hello()
	pub.create("work", codec.TopicSettings{})
	granted := pub.open(1, "work", 0, 1)
	deaf := dial(t, b)
	_ = deaf.conn.(*net.TCPConn).SetReadBuffer(4096)
	deaf.hello().pull(1, "work", "g", 60<<20)
	const count = 400
	_, batches := numbered(count, 100_000)
	for i, each := 0, int(granted.WindowBytes)/len(batches[0]); i < count; i += each {
		pub.published(1, 1, uint64(i), batches[i:min(i+each, count)]...)
	}
	stuck := func(s *session) bool { return s.out.blocked }
	eventually(t, "the member's socket to be full", func() bool {
		pub.alive()
		return countSessions(t, b, stuck) == 1
	})
	if r := two.pull(1, "work", "g", 60<<20); r.Begin != count {
		t.Errorf("the second member begins at %d: all was given to the first", r.Begin)
	}
	two.nothingDelivered()
	handed := pub.describe("work").Partitions[0].RecordsOut
	if handed == 0 || handed == count {
		t.Fatalf("%d of %d records were handed over: the socket is not what holds them up", handed, count)
	}
	_ = deaf.conn.(*net.TCPConn).SetLinger(0)
	_ = deaf.conn.Close()
	got := two.offsets(count - int(handed))
	for i, o := range got {
		if o != codec.Offset(int(handed)+i) {
			t.Fatalf("batch %d of what came back is at %d, %d were handed over", i, o, handed)
		}
	}
	two.nothingDelivered()
}

// Under block a group's backlog holds up the producer, also for a while when its last member has left.
func TestGroupHoldsUpProducer(t *testing.T) {
	b := startBroker(t, Config{})
	pub, member := dial(t, b).hello(), dial(t, b).hello()
	pub.create("work", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	pub.open(1, "work", 0, 1)
	member.pull(1, "work", "g", 0)
	_, batches := numbered(20, 50_000)
	pub.write(publishFrame(1, 1, 0, batches[:10]...))
	pub.confirmed(5)
	member.closeHandle(1)
	if d := pub.describe("work").Partitions[0]; d.Next != 5 || d.QueueSize != 5 || d.DroppedUnread != 0 {
		t.Errorf("without members: %+v", d)
	}
	member.pull(1, "work", "g", 10<<20)
	if got := member.offsets(10); got[0] != 0 || got[9] != 9 || !slices.IsSorted(got) {
		t.Errorf("back again it got %v", got)
	}
	pub.confirmed(5)
}

// A group none of whose members takes anything is cut off as a whole, and the producer goes on.
func TestGroupStalls(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{StallLimit: 50 * time.Millisecond}})
	pub, one, two := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
	pub.create("work", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	pub.open(1, "work", 0, 1)
	one.pull(1, "work", "g", 0)
	two.pull(7, "work", "g", 0)
	_, batches := numbered(20, 50_000)
	pub.published(1, 1, 0, batches...)
	for p, handle := range map[*peer]uint32{one: 1, two: 7} {
		if h, _ := p.expectError(codec.CodeSlowConsumer); h.Handle != handle || h.Correlation != 0 {
			t.Errorf("told about %+v", h)
		}
		p.write(codec.AppendCredit(nil, handle, 1000)) // was on its way
		p.closeHandle(handle)
	}
	r := one.pull(1, "work", "g", 10<<20)
	if r.Begin != r.Start && r.Begin != 0 {
		t.Errorf("back again: %+v", r)
	}
	d := one.deliver()
	if d.Gap.From != 0 || d.Gap.Next != r.Start || d.Gap.Reason != codec.GapDropped {
		t.Errorf("back again it was told the gap %+v, the ring begins at %d", d.Gap, r.Start)
	}
}

// Members come, go and break off under load: every record is handed to one of them, none to two.
func TestGroupUnderChurn(t *testing.T) {
	b := startBroker(t, Config{Loops: 2, Limits: Limits{Heartbeat: time.Hour}})
	pub := dial(t, b).hello()
	pub.create("work", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 1 << 20})
	pub.open(1, "work", 0, 1)
	const members, count = 4, 3000
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan codec.Offset, count)
	left := make(chan struct{}, members)
	one := dial(t, b).hello() // from here on the group holds up the producer
	one.pull(1, "work", "g", 0)
	one.closeHandle(1)
	for i := range members {
		go func() {
			defer func() { left <- struct{}{} }()
			for {
				p := dial(t, b).hello()
				p.pull(1, "work", "g", 100_000)
				// It leaves as agreed: what was delivered before the reply is its own.
				stop := context.AfterFunc(ctx, func() { _ = p.conn.Close() })
				for taken, closing := 0, false; ; {
					h, section, payload, err := p.tryAny()
					if err != nil {
						if ctx.Err() == nil {
							t.Errorf("member %d: %v", i, err)
						}
						return
					}
					if h.Type == codec.TypeClose {
						stop()
						_ = p.conn.Close()
						break
					}
					if h.Type != codec.TypeDeliver {
						continue
					}
					d := p.delivery(h, section, payload)
					for _, b := range d.batches {
						got <- b.BaseOffset()
					}
					if closing {
						continue
					}
					_ = p.tryWrite(codec.AppendCredit(nil, 1, uint32(d.bytes)))
					if taken += len(d.batches); taken > 50+10*i {
						closing = true
						_ = p.tryWrite(codec.AppendClose(nil, 6, 1))
					}
				}
			}
		}()
	}
	_, batches := numbered(1, 2000)
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 0; i < count; i += 20 {
			frames := make([][]byte, 20)
			for j := range frames {
				frames[j] = batches[0]
			}
			pub.write(publishFrame(1, 1, uint64(i), frames...))
			pub.confirmed(20)
		}
	})
	seen := make([]bool, count)
	for range count {
		select {
		case o := <-got:
			if seen[o] {
				t.Errorf("record %d came twice", o)
			}
			seen[o] = true
		case <-time.After(testDeadline):
			t.Fatalf("records are missing; the topic: %+v", info(t, b, "work"))
		}
	}
	publishing.Wait()
	cancel()
	for range members {
		<-left
	}
}
