package topic

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lightio/lightq/codec"
)

const day = 24 * 60 * 60 * 1000 // milliseconds

// groupNames are the names of a partition's groups, in no order.
func groupNames(p *Partition) map[string]bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := map[string]bool{}
	for _, g := range p.core.groups {
		names[g.name] = true
	}
	return names
}

// A partition that has as many groups as it may forgets the one that nobody has been in for the longest time, never one that
// somebody is in or that is in its grace.
func TestOldestGroupMakesRoom(t *testing.T) {
	const now = testMillis
	r := NewRegistry(10)
	part := mustCreate(t, r, "t", codec.TopicSettings{}).Partitions()[0]
	var sink recordSink
	join := func(name string, now int64) (*Cursor, error) {
		cur := &Cursor{}
		_, _, _, err := part.Attach(cur, &sink, name, codec.FromEarliest, 0, now)
		return cur, err
	}
	var members []*Cursor
	for i := range maxGroups {
		cur, err := join(fmt.Sprint("g", i), now)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, cur)
	}
	if _, err := join("more", now); !errors.Is(err, codec.CodeTooManyHandles) {
		t.Errorf("with all groups in use: %v", err)
	}
	members[5].Detach(now + 2000)
	members[7].Detach(now + 1000)
	members[9].Detach(now + 3000)
	if _, err := join("more", now+1000+groupGraceMillis-1); !errors.Is(err, codec.CodeTooManyHandles) {
		t.Errorf("with all groups in use or in their grace: %v", err)
	}
	if _, err := join("g7", now+1000+groupGraceMillis-1); err != nil {
		t.Errorf("a group that is there: %v", err)
	}
	if _, err := join("more", now+3000+groupGraceMillis); err != nil {
		t.Errorf("with a group that nobody is in: %v", err)
	}
	names := groupNames(part)
	if len(names) != maxGroups || names["g5"] || !names["more"] || !names["g7"] || !names["g9"] {
		t.Errorf("%d groups; g5 %v, more %v, g7 %v, g9 %v", len(names), names["g5"], names["more"], names["g7"], names["g9"])
	}
}

// A position is kept for a day after the last member has left; then the group begins anew. What members left behind is let go
// with it.
func TestGroupIsForgotten(t *testing.T) {
	const now = testMillis
	r := NewRegistry(10)
	part := mustCreate(t, r, "t", codec.TopicSettings{}).Partitions()[0]
	pool := codec.NewSlabPool(0)
	var sink recordSink
	var pub Publisher
	if _, _, err := part.OpenPublisher(&pub, &sink, 1, codec.LevelDefault); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(10) {
		part.Publish(&pub, 1, published(pool, n, sealedBatch(nil, int64(n), 1, 1000)), now)
	}
	join := func(now int64) (cur *Cursor, begin codec.Offset) {
		cur = &Cursor{}
		_, _, begin, err := part.Attach(cur, &sink, "g", codec.FromEarliest, 0, now)
		if err != nil {
			t.Fatal(err)
		}
		return cur, begin
	}
	cur, begin := join(now)
	if begin != 0 {
		t.Fatalf("it begins at %d", begin)
	}
	cur.Grant(6000, now) // is given six, takes four
	var taken Taken
	cur.Take(&taken, 4000, now)
	cur.Detach(now)
	r.Tick(now+day-30_000-1, now+day-1)
	cur, begin = join(now + day - 1)
	if begin != 4 {
		t.Errorf("a day less a moment later it begins at %d, want 4", begin)
	}
	cur.Detach(now + day)
	for _, d := range []int64{1, groupGraceMillis, day / 2, day - 1} {
		r.Tick(now+day+d-30_000, now+day+d)
		if len(groupNames(part)) != 1 {
			t.Fatalf("forgotten after %d ms", d)
		}
	}
	r.Tick(now+2*day-30_000, now+2*day)
	if len(groupNames(part)) != 0 {
		t.Error("not forgotten after a day")
	}
	if n := r.Tick(now+3*day-30_000, now+3*day); n != 0 || len(r.timed.list) != 0 {
		t.Errorf("%d partitions were ticked and %d are in the list when nothing is due any more", n, len(r.timed.list))
	}
	if cur, begin = join(now + 3*day); begin != 0 {
		t.Errorf("made anew it begins at %d", begin)
	}
	cur.Detach(now + 3*day)
	for _, b := range taken.Batches {
		b.Slab.Release()
	}
	if err := r.Delete("t", now+3*day); err != nil {
		t.Fatal(err)
	}
	if n := pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes of slabs have leaked", n)
	}
	if r.Tick(now+4*day, now+4*day); len(r.timed.list) != 0 {
		t.Error("a deleted partition is still ticked")
	}
}

// Case F79: time costs only those for which it brings something about: an idle partition is not looked at.
func TestTickLeavesIdlePartitionsAlone(t *testing.T) {
	const now = testMillis
	r := NewRegistry(1000)
	var sink recordSink
	pool := codec.NewSlabPool(0)
	var parts []*Partition
	curs := make([]Cursor, 300)
	for i := range 100 {
		part := mustCreate(t, r, fmt.Sprint("t", i), codec.TopicSettings{MaxBatchBytes: 1 << 10, RingBytes: 4 << 10}).Partitions()[0]
		parts = append(parts, part)
		for j, group := range []string{"", "g", "h"} {
			if _, _, _, err := part.Attach(&curs[3*i+j], &sink, group, codec.FromEarliest, 0, now); err != nil {
				t.Fatal(err)
			}
		}
	}
	tick := func(now int64) int { return r.Tick(now-30_000, now) }
	if n := tick(now); n != 0 {
		t.Errorf("%d of 100 idle partitions were ticked", n)
	}
	// One publisher waits for room.
	var pub Publisher
	if _, _, err := parts[3].OpenPublisher(&pub, &sink, 1, codec.LevelDefault); err != nil {
		t.Fatal(err)
	}
	for n := range uint64(6) {
		parts[3].Publish(&pub, 1, published(pool, n, sealedBatch(nil, int64(n), 1, 1000)), now)
	}
	if n := tick(now + 1000); n != 1 {
		t.Errorf("%d partitions were ticked, one waits for room", n)
	}
	if n := tick(now + 31_000); n != 1 || curs[9].Cut() != codec.CodeSlowConsumer {
		t.Errorf("%d partitions were ticked, its consumer is %s", n, curs[9].Cut())
	}
	tick(now + 31_500)
	// Groups lose their last members: one tick each when the grace is over.
	curs[3*50+1].Detach(now + 31_000)
	curs[3*51+1].Detach(now + 31_000)
	if n := tick(now + 32_000); n != 0 {
		t.Errorf("%d partitions were ticked in the grace of their groups", n)
	}
	if n := tick(now + 31_000 + groupGraceMillis); n < 2 || n > 3 {
		t.Errorf("%d partitions were ticked when the grace was over", n)
	}
	if n := tick(now + 31_500 + groupGraceMillis); n != 0 {
		t.Errorf("%d partitions were ticked again", n)
	}
}
