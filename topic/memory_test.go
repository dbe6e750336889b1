package topic

import (
	"fmt"
	"testing"

	"github.com/lightio/lightq/codec"
)

// shortage is a registry of topics with rings of given contents, and what is published on them.
type shortage struct {
	t    *testing.T
	r    *Registry
	pool *codec.SlabPool
	sink recordSink
	pubs map[string]*Publisher
	sent map[string]uint64
}

func newShortage(t *testing.T) *shortage {
	return &shortage{t: t, r: NewRegistry(100), pool: codec.NewSlabPool(0), pubs: map[string]*Publisher{}, sent: map[string]uint64{}}
}

func (s *shortage) topic(name string, overflow codec.Overflow) *Partition {
	s.t.Helper()
	part := mustCreate(s.t, s.r, name, codec.TopicSettings{Overflow: overflow, MaxBatchBytes: 1 << 10, RingBytes: 1 << 20}).Partitions()[0]
	pub := &Publisher{}
	if _, _, err := part.OpenPublisher(pub, &s.sink, 1, codec.LevelDefault); err != nil {
		s.t.Fatal(err)
	}
	s.pubs[name] = pub
	return part
}

// publish sends n batches that each take 1,000 bytes of a ring, and returns how many results came.
func (s *shortage) publish(name string, n int, now int64) int {
	before := len(s.sink.results)
	for range n {
		pub := s.pubs[name]
		pub.part.Publish(pub, 1, published(s.pool, s.sent[name], sealedBatch(nil, 1, 1, 1000-entryOverheadBytes)), now)
		s.sent[name]++
	}
	return len(s.sink.results) - before
}

func (s *shortage) kept() string {
	out := ""
	for _, name := range []string{"a", "b", "c"} {
		if pub := s.pubs[name]; pub != nil {
			out += fmt.Sprint(name, pub.part.Info().Bytes/1000, " ")
		}
	}
	return out
}

// The largest rings give way first, down to one level; what an attached consumer needs stays unless the policy drops it; hard,
// others give way in its place.
func TestReclaim(t *testing.T) {
	const now = testMillis
	for _, c := range []struct {
		name     string
		overflow codec.Overflow // of a
		attached bool           // to a
		bytes    int64
		hard     bool
		freed    int64
		want     string
	}{
		{"nothing", codec.OverflowBlock, false, 0, false, 0, "a100 b50 c10 "},
		{"of the largest", codec.OverflowBlock, false, 40_000, false, 40_000, "a60 b50 c10 "},
		{"of two", codec.OverflowBlock, false, 90_000, false, 90_000, "a30 b30 c10 "},
		{"of all", codec.OverflowBlock, false, 151_000, false, 151_000, "a3 b3 c3 "},
		{"everything", codec.OverflowBlock, false, 1 << 40, false, 160_000, "a0 b0 c0 "},
		{"needed", codec.OverflowBlock, true, 40_000, false, 0, "a100 b50 c10 "},
		{"needed, reject", codec.OverflowReject, true, 40_000, false, 0, "a100 b50 c10 "},
		{"needed, drop-oldest", codec.OverflowDropOldest, true, 40_000, false, 40_000, "a60 b50 c10 "},
		{"needed, hard", codec.OverflowBlock, true, 46_000, true, 46_000, "a100 b7 c7 "},
		{"needed, hard, more than there is", codec.OverflowBlock, true, 1 << 40, true, 60_000, "a100 b0 c0 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newShortage(t)
			a := s.topic("a", c.overflow)
			s.topic("b", codec.OverflowBlock)
			s.topic("c", codec.OverflowBlock)
			s.publish("a", 100, now)
			s.publish("b", 50, now)
			s.publish("c", 10, now)
			var cur Cursor
			if c.attached {
				if _, _, _, err := a.Attach(&cur, &s.sink, "", codec.FromEarliest, 0, now); err != nil {
					t.Fatal(err)
				}
			}
			if freed := s.r.Reclaim(c.bytes, c.hard, now); freed != c.freed {
				t.Errorf("%d bytes were given up, want %d", freed, c.freed)
			}
			if got := s.kept(); got != c.want {
				t.Errorf("kept %s, want %s", got, c.want)
			}
			in := a.Info()
			if in.DroppedUnread != uint64(in.Start) || in.Next != 100 {
				t.Errorf("a: %+v", in)
			}
		})
	}
}

// While memory is short, a ring counts as full above the level: block waits and reject refuses there, a ring below it goes on,
// and one without consumers keeps its newest. Afterwards all is as before.
func TestRingsCountAsFull(t *testing.T) {
	const now = testMillis
	s := newShortage(t)
	block := s.topic("a", codec.OverflowBlock)
	reject := s.topic("b", codec.OverflowReject)
	free := s.topic("c", codec.OverflowBlock)
	var curs [2]Cursor
	for i, part := range []*Partition{block, reject} {
		if _, _, _, err := part.Attach(&curs[i], &s.sink, "", codec.FromEarliest, 0, now); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if n := s.publish(name, 20, now); n != 20 {
			t.Fatalf("%s: %d of 20 were answered", name, n)
		}
	}
	if freed := s.r.Reclaim(15_000, false, now); freed != 5_000 { // the level is 15,000: only c may go there
		t.Errorf("%d bytes were given up", freed)
	}
	if s.r.ShortSince() != now {
		t.Errorf("short since %d", s.r.ShortSince())
	}
	if n := s.publish("a", 1, now); n != 0 {
		t.Error("a ring above the level took a batch that its consumer had no room for")
	}
	s.publish("b", 1, now)
	if code := s.sink.results[len(s.sink.results)-1].Code; code != codec.CodeOverflow {
		t.Errorf("b: %s", code)
	}
	if n := s.publish("c", 30, now); n != 30 || free.Info().Bytes != 15_000 || free.Info().Next != 50 {
		t.Errorf("c: %d of 30 were answered, %+v", n, free.Info())
	}
	// A consumer that moves lets its publisher go on, within the level.
	var taken Taken
	before := len(s.sink.results)
	curs[0].Take(&taken, 8_000, now)
	if len(s.sink.results) == before || block.Info().Bytes > 15_000 {
		t.Errorf("after a take: %d results, %+v", len(s.sink.results)-before, block.Info())
	}
	// Memory is there again.
	if n := s.publish("a", 8, now); n == 8 {
		t.Fatal("nothing waits")
	}
	s.r.Relax()
	before = len(s.sink.results)
	s.r.Tick(now-30_000, now)
	if len(s.sink.results) == before || s.r.ShortSince() != 0 {
		t.Error("what had waited was not taken when memory was not short any more")
	}
	if n := s.publish("a", 100, now); n != 100 {
		t.Errorf("%d of 100 were answered", n)
	}
	for _, b := range taken.Batches {
		b.Slab.Release()
	}
}

// What holds memory and does not move for the stall limit is cut off, also where no publisher waits behind it. Who was idle
// before is not guilty.
func TestStalledWhileMemoryIsShort(t *testing.T) {
	const now = testMillis
	for _, group := range []string{"", "g"} {
		s := newShortage(t)
		part := s.topic("a", codec.OverflowReject)
		var cur Cursor
		if _, _, _, err := part.Attach(&cur, &s.sink, group, codec.FromEarliest, 0, now); err != nil {
			t.Fatal(err)
		}
		s.publish("a", 100, now+60_000)
		s.r.Reclaim(50_000, true, now+60_000)
		s.r.Tick(now+60_000-30_000, now+60_000)
		s.r.Tick(now+89_999-30_000, now+89_999)
		if cur.Cut() != codec.CodeNone {
			t.Fatalf("%q: cut off before its time", group)
		}
		s.r.Tick(now+90_000-30_000, now+90_000)
		if cur.Cut() != codec.CodeSlowConsumer {
			t.Errorf("%q: it is %s after the stall limit", group, cur.Cut())
		}
		if freed := s.r.Reclaim(50_000, true, now+90_000); freed != 50_000 {
			t.Errorf("%q: %d bytes were given up", group, freed)
		}
	}
	// A group that nobody is in any more has no grace then.
	s := newShortage(t)
	part := s.topic("a", codec.OverflowBlock)
	var cur Cursor
	if _, _, _, err := part.Attach(&cur, &s.sink, "g", codec.FromEarliest, 0, now); err != nil {
		t.Fatal(err)
	}
	s.publish("a", 100, now)
	s.r.Reclaim(50_000, true, now)
	cur.Detach(now + 20_000)
	s.r.Tick(now+29_000-30_000, now+29_000)
	if freed := s.r.Reclaim(50_000, true, now+29_000); freed != 0 {
		t.Errorf("%d bytes of a group's backlog were given up before the stall limit", freed)
	}
	s.r.Tick(now+30_000-30_000, now+30_000)
	if freed := s.r.Reclaim(50_000, true, now+30_000); freed != 50_000 {
		t.Errorf("%d bytes were given up", freed)
	}
}
