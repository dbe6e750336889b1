package topic

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
)

// TestPartitionAgainstModel compares a partition, under any sequence of steps, with a model of slices that keeps everything
// and looks everything up: results, what each subscription gets, gaps, wake-ups, counters, memory.
func TestPartitionAgainstModel(t *testing.T) {
	checks := 1000
	if invariant.Enabled { // and all of it is ten times slower
		checks = 200
	}
	rapidEffort(t, checks, 60)
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         m.check,
			"publish":  m.publish,
			"publish2": m.publish, // twice as often as the others
			"reopen":   m.reopen,
			"attach":   m.attach,
			"take":     m.take,
			"take2":    m.take,
			"grant":    m.grant,
			"detach":   m.detach,
			"advance":  m.advance,
			"tick":     m.tick,
			"purge":    m.purge,
			"alter":    m.alter,
		})
		m.end(t)
	})
}

// rapidEffort sets how many runs rapid makes, of how many steps, unless the command line says so.
func rapidEffort(t *testing.T, checks, steps int) {
	t.Helper()
	for name, n := range map[string]int{"rapid.checks": checks, "rapid.steps": steps} {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Value.Set(f.DefValue); err != nil {
				t.Error(err)
			}
		})
	}
}

// modelStallMillis is the stall limit of the model's ticks. It is below the groups' grace, as the broker's is.
const modelStallMillis = 30_000

type model struct {
	part *Partition
	sink recordSink
	pool *codec.SlabPool
	now  int64

	settings codec.TopicSettings
	log      []*modelBatch // every batch that was appended; its index is its sequence
	first    int           // index of the oldest that is kept
	start    codec.Offset  // first offset kept
	purged   bool          // the last thing that raised start was a purge
	pending  []*modelBatch
	blocked  int64 // when the first of pending began to wait
	deleted  bool
	lastID   int64

	publishers []*modelPublisher
	subs       []*modelSub // attached
	groups     []*modelGroup
	held       []TakenBatch // taken and not released yet

	results []Result // expected of this step
	want    codec.PartitionInfo
}

type modelBatch struct {
	id         int64
	pub        *modelPublisher
	epoch      uint32
	number     uint64
	size       int
	records    int
	code       codec.Code // why it is refused whatever happens
	base, next codec.Offset
	millis     int64
	taken      bool
}

type modelPublisher struct {
	Publisher
	epoch   uint32
	next    uint64
	refused bool
}

// modelSub is a cursor: a sub subscription or, with a group, a member.
type modelSub struct {
	Cursor
	at       int          // index in the log of the next batch
	next     codec.Offset // of the next record
	progress int64
	waits    bool // found nothing and was not woken

	group    *modelGroup
	credit   int
	assigned []*modelBatch
}

type modelGroup struct {
	name     string
	at       int
	next     codec.Offset
	members  []*modelSub
	turn     int
	returned []*modelBatch
	progress int64
	left     int64
	lost     map[codec.Offset]bool // offsets of which a member is to be told that they are lost
	fate     map[codec.Offset]bool // offsets that a member took or was told to be lost
}

func newModel(t *rapid.T) *model {
	m := &model{pool: codec.NewSlabPool(1 << 20), now: testMillis}
	m.settings = codec.TopicSettings{
		Storage:       rapid.SampledFrom([]codec.Storage{codec.StorageQueue, codec.StorageQueue, codec.StorageDirect}).Draw(t, "storage"),
		Overflow:      rapid.SampledFrom([]codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject}).Draw(t, "overflow"),
		RingBytes:     rapid.Uint64Range(800, 3000).Draw(t, "ring"),
		MaxBatchBytes: 300,
		Partitions:    1,
	}
	m.part = memoryTopic("t", m.settings).Partitions()[0]
	for range rapid.IntRange(1, 3).Draw(t, "publishers") {
		p := &modelPublisher{}
		m.publishers = append(m.publishers, p)
		m.open(t, p)
	}
	return m
}

// The model's rules.

func (m *model) bytes() (n int64) {
	for _, b := range m.log[m.first:] {
		n += int64(b.size) + entryOverheadBytes
	}
	return n
}

func (m *model) high() codec.Offset {
	if len(m.log) == 0 {
		return 0
	}
	return m.log[len(m.log)-1].next
}

func (g *modelGroup) attached(now int64) bool {
	return len(g.members) > 0 || now-g.left < groupGraceMillis
}

func (m *model) needed(index int) bool {
	for _, s := range m.subs {
		if s.group == nil && s.at <= index {
			return true
		}
	}
	for _, g := range m.groups {
		if g.attached(m.now) && g.at <= index {
			return true
		}
	}
	return false
}

// drop removes the oldest batch that is kept.
func (m *model) drop(purge bool) {
	b := m.log[m.first]
	for _, g := range m.groups {
		if g.at == m.first {
			g.lose(max(g.next, b.base), b.next)
			g.at, g.next = m.first+1, b.next
		}
	}
	m.first++
	m.start, m.purged = b.next, purge
	if !purge && !b.taken {
		m.want.DroppedUnread += uint64(b.records)
	}
}

func (g *modelGroup) lose(from, next codec.Offset) {
	for o := from; o < next; o++ {
		g.lost[o] = true
	}
}

func (m *model) trim() {
	for m.settings.Storage == codec.StorageDirect && m.first < len(m.log) && !m.needed(m.first) {
		m.drop(false)
	}
}

// admit decides about a batch; false: it waits.
func (m *model) admit(b *modelBatch) bool {
	code := b.code
	switch {
	case m.deleted:
		code = codec.CodeTopicDeleted
	case b.epoch != b.pub.epoch || b.pub.refused:
		code = codec.CodeStaleEpoch
	}
	need := int64(b.size) + entryOverheadBytes
	for code == codec.CodeNone && m.first < len(m.log) && m.bytes()+need > int64(m.settings.RingBytes) {
		if m.settings.Overflow != codec.OverflowDropOldest && m.needed(m.first) {
			if m.settings.Overflow == codec.OverflowBlock {
				return false
			}
			code = codec.CodeOverflow
			break
		}
		m.drop(false)
	}
	r := Result{Publisher: &b.pub.Publisher, Epoch: b.epoch, Number: b.number, Bytes: b.size}
	if r.Code = code; code != codec.CodeNone {
		if b.epoch == b.pub.epoch {
			b.pub.refused = true
		}
	} else {
		b.base = m.high()
		b.next = b.base + codec.Offset(b.records)
		b.millis = m.now
		m.log = append(m.log, b)
		m.want.RecordsIn += uint64(b.records)
		m.want.BytesIn += uint64(b.size)
		r.Base = b.base
	}
	m.results = append(m.results, r)
	return true
}

// settle appends what can be appended of pending and gives it out. Whoever can see a step sees the state after it, so all
// batches of a step are appended before any is given out.
func (m *model) settle() {
	n := len(m.log)
	for len(m.pending) > 0 && m.admit(m.pending[0]) {
		m.pending = m.pending[1:]
	}
	if len(m.log) > n {
		m.shareAll()
		m.trim()
	}
}

func (m *model) shareAll() {
	for _, g := range m.groups {
		m.share(g)
	}
}

func (m *model) share(g *modelGroup) {
	for len(g.members) > 0 && (len(g.returned) > 0 || g.at < len(m.log)) {
		var to *modelSub
		for range g.members {
			s := g.members[g.turn%len(g.members)]
			g.turn = g.turn%len(g.members) + 1
			if s.credit > 0 {
				to = s
				break
			}
		}
		if to == nil {
			return
		}
		var b *modelBatch
		if len(g.returned) > 0 {
			b, g.returned = g.returned[0], g.returned[1:]
		} else {
			b = m.log[g.at]
			b.taken = true
			g.at++
			g.next = b.next
		}
		to.assigned = append(to.assigned, b)
		to.credit -= b.size
		g.progress = m.now
	}
}

// remove takes a cursor out, as detaching and cutting off do.
func (m *model) remove(s *modelSub) {
	m.subs = slices.DeleteFunc(m.subs, func(v *modelSub) bool { return v == s })
	if g := s.group; g != nil {
		i := slices.Index(g.members, s)
		g.members = slices.Delete(g.members, i, i+1)
		if g.turn > i {
			g.turn--
		}
		g.returned = append(g.returned, s.assigned...)
		slices.SortFunc(g.returned, func(a, b *modelBatch) int { return int(a.base - b.base) })
		if len(g.members) == 0 {
			g.left = m.now
		}
		m.share(g)
	}
	m.trim()
}

func (m *model) expire() {
	for _, g := range m.groups {
		for !g.attached(m.now) && len(g.returned) > 0 && g.returned[0].base < m.start {
			m.want.DroppedUnread += uint64(g.returned[0].records)
			g.loseFirst()
		}
	}
}

func (g *modelGroup) loseFirst() {
	g.lose(g.returned[0].base, g.returned[0].next)
	g.returned = g.returned[1:]
}

// The steps.

func (m *model) open(t *rapid.T, p *modelPublisher) {
	p.epoch += rapid.Uint32Range(1, 3).Draw(t, "epoch")
	level, next, err := m.part.OpenPublisher(&p.Publisher, &m.sink, p.epoch, codec.LevelDefault)
	if err != nil || level != codec.LevelAppended || next != m.high() {
		t.Fatalf("open: level %d, next %d, %v; next is %d", level, next, err, m.high())
	}
	p.next, p.refused = 0, false
}

func (m *model) reopen(t *rapid.T) {
	p := m.anyPublisher(t)
	if _, _, err := m.part.OpenPublisher(&p.Publisher, &m.sink, p.epoch, codec.LevelDefault); !errors.Is(err, codec.CodeStaleEpoch) {
		t.Fatalf("an open with the same epoch: %v", err)
	}
	m.open(t, p)
}

func (m *model) publish(t *rapid.T) {
	p := m.anyPublisher(t)
	epoch := p.epoch
	if rapid.IntRange(0, 19).Draw(t, "late") == 0 {
		epoch--
	}
	var batches []*modelBatch
	var bytes [][]byte
	for range rapid.IntRange(1, 6).Draw(t, "batches") { // up to 4 take the way without an allocation
		m.lastID++
		b := &modelBatch{id: m.lastID, pub: p, epoch: epoch, number: p.next, records: rapid.IntRange(1, 4).Draw(t, "records")}
		if epoch == p.epoch {
			p.next++
		}
		sealed := sealedBatch(nil, b.id, b.records, rapid.IntRange(90, 310).Draw(t, "size"))
		if b.size = len(sealed); b.size > int(m.settings.MaxBatchBytes) {
			b.code = codec.CodeBatchTooLarge
		} else if rapid.IntRange(0, 29).Draw(t, "bad") == 0 {
			spoil(sealed)
			b.code = codec.CodeBadBatch
		}
		batches = append(batches, b)
		bytes = append(bytes, sealed)
	}
	list := published(m.pool, batches[0].number, bytes...)
	for i := range list {
		list[i].Number = batches[i].number // a late epoch's are not counted
	}
	n := len(m.log)
	for _, b := range batches {
		if len(m.pending) > 0 || !m.admit(b) {
			if len(m.pending) == 0 {
				m.blocked = m.now
			}
			m.pending = append(m.pending, b)
		}
	}
	if len(m.log) > n {
		m.shareAll()
		m.trim()
	}
	m.part.Publish(&p.Publisher, epoch, list, m.now)
}

func (m *model) attach(t *rapid.T) {
	if len(m.subs) > 5 {
		t.Skip("enough are attached")
	}
	name := rapid.SampledFrom([]string{"", "", "g", "h"}).Draw(t, "group")
	from := rapid.SampledFrom([]codec.From{codec.FromEarliest, codec.FromLatest, codec.FromOffset}).Draw(t, "from")
	value, begin := uint64(0), codec.Offset(0)
	switch from {
	case codec.FromEarliest:
		begin = m.start
	case codec.FromLatest:
		begin = m.high()
	case codec.FromOffset:
		value = rapid.Uint64Range(0, uint64(m.high())+1).Draw(t, "offset")
		begin = codec.Offset(value)
	}
	s := &modelSub{}
	s.Tag = s
	start, high, got, err := m.part.Attach(&s.Cursor, &m.sink, name, from, value, m.now)
	if value > uint64(m.high()) {
		if !errors.Is(err, codec.CodeOffsetOutOfRange) {
			t.Fatalf("attached at offset %d, above the end at %d: %v", value, m.high(), err)
		}
		return
	}
	if err != nil || start != m.start || high != m.high() {
		t.Fatalf("attach: start %d, high %d, %v; they are %d and %d", start, high, err, m.start, m.high())
	}
	if m.settings.Storage == codec.StorageDirect {
		begin = m.high()
	}
	at := m.first
	for at < len(m.log) && m.log[at].next <= begin {
		at++
	}
	s.progress = m.now
	m.subs = append(m.subs, s)
	if name == "" {
		s.at, s.next = at, begin
	} else {
		i := slices.IndexFunc(m.groups, func(g *modelGroup) bool { return g.name == name })
		if i < 0 {
			i = len(m.groups)
			g := &modelGroup{name: name, at: at, next: begin, lost: map[codec.Offset]bool{}, fate: map[codec.Offset]bool{}}
			g.lose(begin, m.start)
			g.next = max(begin, m.start)
			m.groups = append(m.groups, g)
		}
		g := m.groups[i]
		if len(g.members) == 0 {
			g.progress = m.now
		}
		s.group = g
		g.members = append(g.members, s)
		begin = got // the group's position; gaps that were not told yet may lie before the model's
		if len(g.returned) > 0 {
			begin = g.returned[0].base
		} else if got > g.next {
			t.Fatalf("a member begins at %d, the group is at %d", got, g.next)
		}
	}
	if got != begin {
		t.Fatalf("attach begins at %d, not %d", got, begin)
	}
}

func (m *model) anySub(t *rapid.T) *modelSub {
	if len(m.subs) == 0 {
		t.Skip("nobody is attached")
	}
	return m.subs[rapid.IntRange(0, len(m.subs)-1).Draw(t, "sub")]
}

func (m *model) anyPublisher(t *rapid.T) *modelPublisher {
	return m.publishers[rapid.IntRange(0, len(m.publishers)-1).Draw(t, "publisher")]
}

func (m *model) take(t *rapid.T) {
	m.takeOf(t, m.anySub(t), rapid.IntRange(1, 800).Draw(t, "most"))
}

// takeOf takes and compares. What is expected is worked out before what was waiting goes on.
func (m *model) takeOf(t *rapid.T, s *modelSub, most int) {
	var want []*modelBatch
	var gap codec.Gap
	wantBytes, start, high := 0, m.start, m.high()
	if s.group == nil {
		if s.next < m.start {
			gap = codec.Gap{From: s.next, Next: m.start, Reason: codec.GapDropped}
			if m.purged {
				gap.Reason = codec.GapPurged
			}
			s.next = m.start
		}
		for s.at = max(s.at, m.first); s.at < len(m.log) && wantBytes < most; s.at++ {
			want = append(want, m.log[s.at])
			wantBytes += m.log[s.at].size
			s.next = m.log[s.at].next
			m.log[s.at].taken = true
		}
	}
	var taken Taken
	s.Take(&taken, most, m.now)
	if s.group != nil {
		want, wantBytes = s.takeAssigned(t, m, &taken, most)
	}
	if s.group == nil && taken.Gap != gap {
		t.Fatalf("told the gap %v, it is %v", taken.Gap, gap)
	}
	if len(taken.Batches) != len(want) || taken.Bytes != wantBytes || taken.Start != start || taken.High != high {
		t.Fatalf("took %d batches, %d bytes, start %d, high %d; expected %d, %d, %d, %d",
			len(taken.Batches), taken.Bytes, taken.Start, taken.High, len(want), wantBytes, start, high)
	}
	for i, b := range want {
		got := codec.Batch(taken.Batches[i].Bytes)
		if batchID(got) != b.id || got.BaseOffset() != b.base || got.NextOffset() != b.next {
			t.Fatalf("batch %d is %d at %d to %d, expected %d at %d to %d", i, batchID(got), got.BaseOffset(), got.NextOffset(), b.id, b.base, b.next)
		}
		m.want.RecordsOut += uint64(b.records)
	}
	if len(want) > 0 && taken.AppendMillis != want[0].millis {
		t.Fatalf("append time %d, expected %d", taken.AppendMillis, want[0].millis)
	}
	m.want.BytesOut += uint64(wantBytes)
	if len(want) > 0 || taken.Gap.Next != 0 {
		s.progress = m.now
	} else {
		s.waits = true
	}
	m.held = append(m.held, taken.Batches...)
	m.trim()
	m.settle()
}

// takeAssigned returns what a member should have taken. Where a take ends early because of a gap is the group's choice: a
// gap stands before the first batch.
func (s *modelSub) takeAssigned(t *rapid.T, m *model, taken *Taken, most int) (want []*modelBatch, bytes int) {
	g := s.group
	for _, b := range s.assigned {
		if len(want) == len(taken.Batches) {
			break
		}
		want = append(want, b)
		bytes += b.size
		for o := b.base; o < b.next; o++ {
			if g.fate[o] {
				t.Fatalf("offset %d came twice in group %s", o, g.name)
			}
			g.fate[o] = true
		}
	}
	if len(s.assigned) > 0 && len(want) == 0 {
		t.Fatalf("nothing of %d batches that were given to the member was taken", len(s.assigned))
	}
	if n := len(want); n > 0 && bytes-want[n-1].size >= most {
		t.Fatalf("took %d bytes in %d batches, the most was %d", bytes, n, most)
	}
	s.assigned = s.assigned[len(want):]
	if taken.Gap.Next != 0 {
		if taken.Gap.From >= taken.Gap.Next || taken.Gap.Reason != codec.GapDropped && taken.Gap.Reason != codec.GapPurged {
			t.Fatalf("told the gap %v", taken.Gap)
		}
		for o := taken.Gap.From; o < taken.Gap.Next; o++ {
			if !g.lost[o] || g.fate[o] {
				t.Fatalf("offset %d was told to be lost to group %s, and is not", o, g.name)
			}
			delete(g.lost, o)
			g.fate[o] = true
		}
	}
	return want, bytes
}

func (m *model) grant(t *rapid.T) {
	s := m.anySub(t)
	m.grantTo(s, rapid.IntRange(0, 1000).Draw(t, "bytes"))
}

func (m *model) grantTo(s *modelSub, bytes int) {
	if s.group != nil {
		s.credit += bytes
		m.share(s.group)
	}
	m.settle()
	s.Grant(bytes, m.now)
}

func (m *model) detach(t *rapid.T) { m.detachSub(m.anySub(t)) }

func (m *model) detachSub(s *modelSub) {
	m.remove(s)
	m.settle()
	s.Detach(m.now)
}

func (m *model) advance(t *rapid.T) {
	m.now += rapid.SampledFrom([]int64{1, 1_000, modelStallMillis, groupGraceMillis - 1, groupGraceMillis}).Draw(t, "millis")
}

func (m *model) tick(t *rapid.T) {
	since := m.now - modelStallMillis
	var cut []*modelSub
	if len(m.pending) > 0 && m.blocked <= since {
		for _, s := range m.subs {
			if s.group == nil && s.at <= m.first && s.progress <= since {
				cut = append(cut, s)
			}
		}
		for _, g := range m.groups {
			if len(g.members) > 0 && g.at <= m.first && g.progress <= since {
				cut = append(cut, g.members...)
				for _, s := range g.members {
					s.credit = 0 // all go: nothing is given to those that go next
				}
				defer func() { g.left = 0 }()
			}
		}
		for _, s := range cut {
			m.remove(s)
		}
		for _, g := range m.groups {
			if len(g.members) == 0 && slices.ContainsFunc(cut, func(s *modelSub) bool { return s.group == g }) {
				g.left = 0
			}
		}
	}
	m.expire()
	m.trim()
	m.settle()
	m.part.Tick(since, m.now)
	for _, s := range cut {
		if s.Cut() != codec.CodeSlowConsumer {
			t.Fatalf("a cursor that stalls was not cut off: %s", s.Cut().String())
		}
		if !slices.Contains(m.sink.woken, &s.Cursor) {
			t.Fatal("a cursor was cut off and its sink does not know")
		}
	}
	for _, s := range m.subs {
		if s.Cut() != codec.CodeNone {
			t.Fatalf("a cursor was cut off for nothing: %s", s.Cut().String())
		}
	}
}

func (m *model) purge(t *rapid.T) {
	n := uint64(m.high() - m.start)
	for m.first < len(m.log) {
		m.drop(true)
	}
	for _, g := range m.groups {
		for len(g.returned) > 0 {
			g.loseFirst()
		}
	}
	m.settle()
	if got, err := m.part.Purge(m.now); got != n || err != nil {
		t.Fatalf("purged %d records, %d were kept", got, n)
	}
}

func (m *model) alter(t *rapid.T) {
	m.settings.Overflow = rapid.SampledFrom([]codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject}).Draw(t, "overflow")
	m.settings.RingBytes = rapid.Uint64Range(800, 3000).Draw(t, "ring")
	m.settle()
	m.part.alter(m.settings, m.now)
}

// check compares what became of a step, and what can be seen of the partition.
func (m *model) check(t *rapid.T) {
	if diff := cmp.Diff(m.results, m.sink.results, cmp.Comparer(func(a, b *Publisher) bool { return a == b })); diff != "" {
		t.Fatalf("results (-expected +got):\n%s", diff)
	}
	for _, cur := range m.sink.woken {
		s := cur.Tag.(*modelSub)
		if s.Cut() == codec.CodeNone && !s.waits {
			t.Fatal("a cursor was woken that does not wait")
		}
		s.waits = false
	}
	for _, s := range m.subs {
		more := len(s.assigned) > 0
		if s.group == nil {
			more = s.at < len(m.log)
		}
		if s.waits && more {
			t.Fatalf("a cursor waits for ever: it is not woken and there are batches for it (group %v)", s.group != nil)
		}
	}
	m.results = nil
	m.sink.reset()

	m.want.Start, m.want.High, m.want.Next = m.start, m.high(), m.high()
	m.want.Bytes = uint64(m.bytes())
	m.want.Subscriptions, m.want.Publishers = uint32(len(m.subs)), uint32(len(m.publishers))
	m.want.QueueSize = 0
	if len(m.groups) == 0 {
		m.want.QueueSize = uint64(m.high() - m.start)
	}
	for _, g := range m.groups {
		n := uint64(m.high() - g.next)
		for _, b := range g.returned {
			n += uint64(b.records)
		}
		m.want.QueueSize = max(m.want.QueueSize, n)
	}
	if diff := cmp.Diff(m.want, m.part.Info()); diff != "" {
		t.Fatalf("the partition's state (-expected +got):\n%s", diff)
	}
	// Within bounds: a ring that was made smaller keeps what is needed; else one batch of any size fits.
	c := &m.part.core
	if waits := c.pending.len(); waits != len(m.pending) {
		t.Fatalf("%d batches wait, not %d", waits, len(m.pending))
	}
	if c.settings.Overflow != codec.OverflowBlock && len(m.pending) > 0 {
		t.Fatalf("%d batches wait with overflow %s", len(m.pending), c.settings.Overflow)
	}
	for _, g := range c.groups {
		if n := len(g.returned) + 1; g.gaps.len() > n+len(m.log) {
			t.Fatalf("%d gaps to be told", g.gaps.len())
		}
	}
	if len(m.held) > 20 {
		m.release(t, 10)
	}
}

// release gives back the oldest n batches that were taken, whose bytes must have survived until now.
func (m *model) release(t *rapid.T, n int) {
	for _, b := range m.held[:n] {
		if err := codec.CheckDelivered(codec.Batch(b.Bytes)); err != nil {
			t.Fatalf("a batch that was taken is damaged: %v", err)
		}
	}
	releaseTaken(m.held[:n])
	m.held = slices.Clone(m.held[n:])
}

// end lets every subscription have the rest, checks that groups account for every offset, and that no memory is left.
func (m *model) end(t *rapid.T) {
	m.check(t)
	m.alterTo(codec.OverflowBlock)
	m.check(t)
	for _, g := range slices.Clone(m.groups) {
		for len(g.members) > 0 {
			m.detachSub(g.members[0])
			m.check(t)
		}
		s := &modelSub{}
		s.Tag = s
		if _, _, _, err := m.part.Attach(&s.Cursor, &m.sink, g.name, codec.FromLatest, 0, m.now); err != nil {
			t.Fatal(err)
		}
		s.group, s.progress = g, m.now
		g.members, m.subs = append(g.members, s), append(m.subs, s)
	}
	for round := 0; ; round++ {
		more := len(m.pending) > 0
		for _, s := range slices.Clone(m.subs) {
			if s.group != nil {
				m.grantTo(s, 1<<20)
				m.check(t)
			}
			m.takeOf(t, s, 1<<20)
			m.check(t)
			if s.group == nil {
				more = more || s.at < len(m.log)
			} else {
				more = more || len(s.assigned) > 0 || s.group.at < len(m.log) || len(s.group.lost) > 0
			}
		}
		if !more {
			break
		}
		if round > 2000 {
			t.Fatal("there is no end")
		}
		if len(m.pending) == 0 { // a gap is told with the next batch
			m.open(t, m.publishers[0])
			m.publish1(m.publishers[0])
			m.check(t)
		}
	}
	for _, g := range m.groups {
		begin := m.high()
		for o := range g.fate {
			begin = min(begin, o)
		}
		for o := begin; o < m.high(); o++ {
			if !g.fate[o] {
				t.Fatalf("group %s never heard of offset %d", g.name, o)
			}
		}
	}
	// Either way out leaves nothing: everybody leaves and the rest is purged, or all is deleted in use.
	if rapid.Bool().Draw(t, "delete") {
		m.deleted = true
		m.part.remove(m.now)
		for _, s := range m.subs {
			if s.Cut() != codec.CodeTopicDeleted {
				t.Fatalf("after the deletion a cursor is %s", s.Cut().String())
			}
		}
		if i := m.part.Info(); i.Subscriptions != 0 || i.Bytes != 0 {
			t.Fatalf("after the deletion: %+v", i)
		}
	} else {
		for len(m.subs) > 0 {
			m.detachSub(m.subs[0])
		}
		m.purge(t)
		m.check(t)
	}
	m.release(t, len(m.held))
	if n := m.pool.InUseBytes(); n != 0 {
		t.Fatalf("%d bytes of slabs have leaked", n)
	}
	if m.part.busy.Load() {
		t.Fatal("a writer runs")
	}
}

func (m *model) alterTo(o codec.Overflow) {
	m.settings.Overflow, m.settings.RingBytes = o, 3000
	m.settle()
	m.part.alter(m.settings, m.now)
}

func (m *model) publish1(p *modelPublisher) {
	m.lastID++
	sealed := sealedBatch(nil, m.lastID, 1, 100)
	b := &modelBatch{id: m.lastID, pub: p, epoch: p.epoch, number: p.next, records: 1, size: len(sealed)}
	p.next++
	m.pending = append(m.pending, b)
	m.settle()
	m.part.Publish(&p.Publisher, p.epoch, published(m.pool, b.number, sealed), m.now)
}

// String is for failures.
func (b *modelBatch) String() string { return fmt.Sprintf("%d at %d to %d", b.id, b.base, b.next) }
