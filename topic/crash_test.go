package topic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/invariant"
	"github.com/lightio/lightq/journal/vfs"
)

func soak() bool { return os.Getenv("LIGHTQ_SOAK") != "" }

// crashSteps says where a sweep begins and its step. With LIGHTQ_SOAK in the environment it visits every operation; else a part of
// them, from a place that differs from run to run, so that every operation gets its turn.
func crashSteps(step int64) (first, by int64) {
	switch {
	case soak():
		return 1, 1
	case testing.Short() || invariant.Enabled:
		step *= 3
	}
	return 1 + rand.Int64N(step), step
}

// A sentBatch is a batch that a producer of the story has sent.
type sentBatch struct {
	id, producer int64
	seq          int32 // of its first record
	records      int
	bytes        []byte
	durable      bool // what its confirm said
	confirmed    bool
	base         codec.Offset // of a confirmed one
}

// A storyPartition is what is known of a partition: what was sent to it, what became visible, and what may be missing.
type storyPartition struct {
	topic     string
	index     uint32
	batches   map[int64]*sentBatch
	high      codec.Offset // the highest that was seen
	shortens  bool         // retention or a purge was asked for: records from the beginning on may be gone
	inMemory  bool
	weak      bool // visible before it is durable
	producers map[int64]*storyProducer
}

// A storyProducer is an idempotent producer of one partition.
type storyProducer struct {
	id   int64
	seq  int32
	open []*sentBatch         // not confirmed, in order
	last map[int64]codec.Code // what the last answers about open said
}

// A story is a workload, and what a client knows of its outcome.
type story struct {
	t        *testing.T
	retries  int // how often what was refused is sent again
	parts    map[string]*storyPartition
	created  map[string]codec.TopicID // acknowledged, and no deletion was asked for
	grown    map[string]uint32        // partitions that an acknowledged create or alter has promised
	deleted  map[codec.TopicID]string // acknowledged
	settings map[string]codec.TopicSettings
	lastID   int64
}

func newStory(t *testing.T, retries int) *story {
	return &story{
		t: t, retries: retries, parts: map[string]*storyPartition{}, created: map[string]codec.TopicID{}, grown: map[string]uint32{},
		deleted: map[codec.TopicID]string{}, settings: map[string]codec.TopicSettings{},
	}
}

func (s *story) part(name string, index uint32) *storyPartition {
	key := fmt.Sprintf("%s/%d", name, index)
	p := s.parts[key]
	if p == nil {
		storage := s.settings[name].Storage
		p = &storyPartition{
			topic: name, index: index, batches: map[int64]*sentBatch{}, producers: map[int64]*storyProducer{},
			inMemory: !filed(storage), weak: storage != codec.StorageFile || s.settings[name].Sync == codec.SyncInterval,
		}
		s.parts[key] = p
	}
	return p
}

// storyOpen opens the registry of a story, which fails where the machine stops meanwhile.
func storyOpen(t *testing.T, fsys vfs.FS) (*disk, error) {
	d := &disk{t: t, fs: fsys, pool: codec.NewSlabPool(8 << 20), sink: newWaitSink(), r: NewRegistry(100)}
	err := d.r.OpenFiles(FilesConfig{FS: fsys, Dir: "/data", Slabs: d.pool, DiskReserve: -1, SyncWorkers: 2, ReadWorkers: 1})
	return d, err
}

func (s *story) create(d *disk, name string, settings codec.TopicSettings) bool {
	s.settings[name] = settings
	topic, _, err := d.r.Create(name, settings, "", "")
	if err != nil {
		return false
	}
	s.created[name], s.grown[name] = topic.ID(), topic.Settings().Partitions
	return true
}

// produce sends n new batches of each of two producers, a few at a time, for the broker remembers five.
func (s *story) produce(d *disk, name string, index uint32, n, size int, levels ...codec.Level) {
	for ; n > 0; n -= 4 {
		s.produceFew(d, name, index, min(n, 4), size, levels...)
		for _, q := range s.part(name, index).producers {
			if len(q.open) > 0 {
				return
			}
		}
	}
}

// produceFew sends n new batches of each of two producers in turn, and, until all is confirmed or the broker says that it is of no use,
// what was not confirmed again.
func (s *story) produceFew(d *disk, name string, index uint32, n, size int, levels ...codec.Level) {
	topic, err := d.r.Get(name)
	if err != nil {
		return
	}
	part, err := topic.Partition(index)
	if err != nil {
		return
	}
	known := s.part(name, index)
	var feeders [2]*feeder
	var queues [2]*storyProducer
	for i := range feeders {
		level := codec.LevelDefault
		if len(levels) > i {
			level = levels[i]
		}
		feeders[i] = d.feeder(part, level)
		id := int64(7 + i)
		if known.producers[id] == nil {
			known.producers[id] = &storyProducer{id: id}
		}
		queues[i] = known.producers[id]
	}
	for range n {
		for _, q := range queues {
			if len(q.open) == 5 {
				continue
			}
			s.lastID++
			records := 1 + int(s.lastID%3)
			var w codec.BatchBuilder
			w.Reset(nil, codec.MaxSlabBytes)
			for range records {
				w.AddValue(s.lastID, make([]byte, size/records))
			}
			b := &sentBatch{id: s.lastID, producer: q.id, seq: q.seq, records: records}
			b.bytes = w.Finish(codec.BatchMeta{ProducerID: q.id, BaseSequence: q.seq})
			q.seq += int32(records)
			known.batches[b.id] = b
			q.open = append(q.open, b)
		}
	}
	for try := 0; ; try++ {
		for i := range max(len(queues[0].open), len(queues[1].open)) {
			for k, q := range queues {
				if i < len(q.open) {
					feeders[k].send(append([]byte(nil), q.open[i].bytes...))
				}
			}
		}
		useless := false
		for k, q := range queues {
			var left []*sentBatch
			q.last = map[int64]codec.Code{}
			for _, r := range feeders[k].settled() {
				b := q.open[r.Number]
				switch r.Code {
				case codec.CodeNone:
					if b.confirmed && b.base != r.Base {
						s.t.Errorf("batch %d of %s: confirmed at %d and then at %d", b.id, name, b.base, r.Base)
					}
					b.confirmed, b.base = true, r.Base
					b.durable = feeders[k].level == codec.LevelDurable
				default:
					left = append(left, b)
					q.last[b.id] = r.Code
					useless = useless || r.Code == codec.CodeOutcomeUnknown || r.Code == codec.CodeDraining || r.Code == codec.CodeOutOfOrder
				}
			}
			q.open = left
		}
		known.high = max(known.high, part.Info().High)
		if useless || try >= s.retries || len(queues[0].open)+len(queues[1].open) == 0 {
			break
		}
		for k := range feeders {
			feeders[k].reopen()
		}
	}
	for _, f := range feeders {
		f.Close()
	}
}

func (s *story) alter(d *disk, name string, change codec.TopicSettings) {
	if change.RetentionBytes != 0 {
		for i := range uint32(4) {
			s.part(name, i).shortens = true
		}
	}
	if topic, err := d.r.Alter(name, change, nowMillis()); err == nil {
		s.grown[name] = topic.Settings().Partitions
	}
}

func (s *story) remove(d *disk, name string) {
	id := s.created[name]
	delete(s.created, name)
	delete(s.grown, name)
	for i := range uint32(4) {
		delete(s.parts, fmt.Sprintf("%s/%d", name, i))
	}
	if err := d.r.Delete(name, nowMillis()); err == nil {
		s.deleted[id] = name
	}
}

// tell runs the workload on a file system. Whatever happens to the disk, everything that is published is answered, and all memory is
// given back.
func (s *story) tell(fsys vfs.FS) {
	d, err := storyOpen(s.t, fsys)
	if err != nil {
		return
	}
	stop := d.ticking()
	ledger := codec.TopicSettings{Storage: codec.StorageFile, Partitions: 2, RingBytes: 160 << 10, MaxBatchBytes: 32 << 10, SegmentBytes: MinSegmentBytes}
	s.create(d, "ledger", ledger)
	s.create(d, "lazy", codec.TopicSettings{
		Storage: codec.StorageFile, Sync: codec.SyncInterval, SyncMillis: 1, SegmentBytes: MinSegmentBytes, RingBytes: 160 << 10, MaxBatchBytes: 32 << 10,
	})
	s.create(d, "behind", codec.TopicSettings{
		Storage: codec.StorageQueueFile, SyncMillis: 1, SegmentBytes: MinSegmentBytes, RingBytes: 160 << 10, MaxBatchBytes: 32 << 10, Overflow: codec.OverflowReject,
	})
	s.create(d, "ring", codec.TopicSettings{})
	s.produce(d, "ledger", 1, 8, 10<<10) // three segments
	s.produce(d, "lazy", 0, 4, 10<<10, codec.LevelAppended, codec.LevelDurable)
	s.produce(d, "behind", 0, 4, 10<<10, codec.LevelAppended, codec.LevelDurable)
	s.produce(d, "ring", 0, 2, 1000)
	s.alter(d, "ledger", codec.TopicSettings{Partitions: 3})
	s.produce(d, "ledger", 2, 2, 5<<10)
	if s.create(d, "gone", fileTopic(1)) {
		s.produce(d, "gone", 0, 2, 1000)
		s.remove(d, "gone")
		s.create(d, "gone", fileTopic(2))
		s.produce(d, "gone", 1, 1, 1000)
	}
	s.alter(d, "lazy", codec.TopicSettings{RetentionBytes: MinSegmentBytes})
	s.produce(d, "lazy", 0, 6, 10<<10, codec.LevelDurable, codec.LevelDurable)
	if topic, err := d.r.Get("gone"); err == nil {
		s.part("gone", 1).shortens = true
		_, _ = topic.Partitions()[1].Purge(nowMillis())
		s.produce(d, "gone", 1, 1, 1000)
	}
	for _, p := range s.parts {
		if topic, err := d.r.Get(p.topic); err == nil && int(p.index) < len(topic.Partitions()) {
			part := topic.Partitions()[p.index]
			part.Tick(0, nowMillis())
			p.high = max(p.high, part.Info().High)
		}
	}
	stop()
	_ = d.r.Close() // what cannot be written is checked below
	if n := d.pool.InUseBytes(); n != 0 {
		s.t.Errorf("%d bytes of slabs are in use at the end", n)
	}
}

// check opens what is left, and compares it with what clients know. Then the producers send again what was not confirmed, and more.
func (s *story) check(fsys vfs.FS, lossless bool, what string) {
	s.t.Helper()
	d, err := storyOpen(s.t, fsys)
	if err != nil {
		s.t.Errorf("%s: open: %v", what, err)
		return
	}
	fault := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf(what+": "+format, args...)
	}
	for name, id := range s.created {
		topic, err := d.r.Get(name)
		switch {
		case err != nil:
			fault("topic %s was created: %v", name, err)
		case topic.ID() != id:
			fault("topic %s is another one", name)
		case topic.Settings().Partitions < s.grown[name]:
			fault("topic %s has %d partitions, %d were promised", name, topic.Settings().Partitions, s.grown[name])
		}
	}
	d.r.Each(func(topic *Topic) bool {
		if name, ok := s.deleted[topic.ID()]; ok {
			fault("topic %s was deleted and is there", name)
		}
		return true
	})
	again := map[*storyPartition][]span{}
	stop := d.ticking()
	for _, known := range s.parts {
		if _, ok := s.created[known.topic]; !ok {
			continue
		}
		topic, err := d.r.Get(known.topic)
		if err != nil || int(known.index) >= len(topic.Partitions()) {
			continue
		}
		part := topic.Partitions()[known.index]
		// What is asked of a later life must not change what is known for the other ways in which the machine may have stopped.
		local := known.clone()
		local.compare(d, part, lossless, fault)
		if known.topic == "ledger" {
			after := s.clone()
			after.retries = 3
			after.parts = map[string]*storyPartition{fmt.Sprintf("%s/%d", known.topic, known.index): local}
			after.produceFew(d, known.topic, known.index, 1, 1000)
			for _, q := range local.producers {
				if len(q.open) > 0 {
					fault("%s/%d: producer %d: %d batches are not confirmed after the restart: %v", known.topic, known.index, q.id, len(q.open), q.last)
				}
			}
			local.compare(d, part, lossless, fault)
		}
		i := part.Info()
		again[known] = append(d.read(part, "", 0, i.High, 64<<10), span{base: i.High})
	}
	stop()
	if err := d.r.Close(); err != nil {
		fault("close: %v", err)
	}
	if n := d.pool.InUseBytes(); n != 0 {
		fault("%d bytes of slabs are in use at the end", n)
	}
	if d, err = storyOpen(s.t, fsys); err != nil {
		fault("open again: %v", err)
		return
	}
	for known, list := range again {
		topic, err := d.r.Get(known.topic)
		if err != nil {
			fault("%v", err)
			continue
		}
		i := topic.Partitions()[known.index].Info()
		if i.High != list[len(list)-1].base {
			fault("%s/%d: high was %d and is %d after an orderly restart", known.topic, known.index, list[len(list)-1].base, i.High)
			continue
		}
		if known.inMemory {
			continue
		}
		now := map[codec.Offset]int64{}
		for _, sp := range d.read(topic.Partitions()[known.index], "", 0, i.High, 64<<10) {
			now[sp.base] = sp.id
		}
		for _, sp := range list {
			if sp.id != 0 && sp.base >= i.Start && now[sp.base] != sp.id {
				fault("%s/%d: offset %d was batch %d, and is %d after an orderly restart", known.topic, known.index, sp.base, sp.id, now[sp.base])
			}
		}
	}
	if err := d.r.Close(); err != nil {
		fault("close again: %v", err)
	}
}

func (s *story) clone() *story {
	c := *s
	c.lastID += 1_000_000
	return &c
}

func (p *storyPartition) clone() *storyPartition {
	c := *p
	c.batches, c.producers = map[int64]*sentBatch{}, map[int64]*storyProducer{}
	for id, b := range p.batches {
		v := *b
		c.batches[id] = &v
	}
	for id, q := range p.producers {
		v := *q
		v.open = nil
		for _, b := range q.open {
			v.open = append(v.open, c.batches[b.id])
		}
		c.producers[id] = &v
	}
	return &c
}

// compare reads a partition and compares it with what is known. lossless says that nothing that was written can be missing.
func (p *storyPartition) compare(d *disk, part *Partition, lossless bool, fault func(string, ...any)) {
	i := part.Info()
	fault2 := fault
	fault = func(format string, args ...any) {
		fault2("%s/%d (%d to %d): "+format, append([]any{p.topic, p.index, i.Start, i.High}, args...)...)
	}
	if i.High < p.high {
		fault("high was %d", p.high)
	}
	p.high = max(p.high, i.High)
	if !p.shortens && !p.inMemory && i.Start != 0 {
		fault("records from the beginning on are gone")
	}
	list := d.read(part, "", 0, i.High, 64<<10)
	i.Start = part.Info().Start // retention may be at work
	at := codec.Offset(0)
	found := map[int64]codec.Offset{}
	lastSeq := map[int64]int32{}
	for _, sp := range list {
		if sp.base != at {
			fault("%+v follows offset %d", sp, at)
		}
		at = sp.next
		if sp.reason != 0 {
			if !p.weak && sp.next > i.Start {
				fault("a gap %+v", sp)
			}
			continue
		}
		b := p.batches[sp.id]
		switch {
		case b == nil:
			fault("batch %d at %d was never sent", sp.id, sp.base)
			continue
		case int(sp.next-sp.base) != b.records:
			fault("batch %d at %d has %d records, not %d", sp.id, sp.base, sp.next-sp.base, b.records)
		}
		if first, twice := found[sp.id]; twice {
			fault("batch %d is at %d and at %d", sp.id, first, sp.base)
		}
		found[sp.id] = sp.base
		if b.confirmed && b.base != sp.base {
			fault("batch %d was confirmed at %d and is at %d", b.id, b.base, sp.base)
		}
		if last, ok := lastSeq[b.producer]; ok && b.seq < last {
			fault("batch %d of producer %d, sequence %d, follows sequence %d", b.id, b.producer, b.seq, last)
		}
		lastSeq[b.producer] = b.seq
	}
	for _, b := range p.batches {
		if !b.confirmed {
			continue
		}
		if end := b.base + codec.Offset(b.records); end > i.High {
			fault("batch %d was confirmed at %d", b.id, b.base)
		}
		if _, ok := found[b.id]; ok || p.shortens && b.base < i.Start || p.inMemory {
			continue
		}
		if b.durable || !p.weak || lossless {
			fault("batch %d, which was confirmed at %d, is missing: %+v", b.id, b.base, list)
		}
	}
}

// The machine stops at any operation on the files of topics of all kinds: what was confirmed is there, in order and at its offset, nothing
// is that was not sent, nothing twice; offsets that were seen are never given to other records, and topics are there, or not, as their
// clients were told.
func TestTopicsCrashAtEveryOperation(t *testing.T) {
	dice := rand.Uint64() // what a power cut leaves differs from run to run
	first, step := crashSteps(5)
	for k := first; ; k += step {
		mem := vfs.NewMem()
		fault := vfs.NewFault(mem)
		hook, count := vfs.StopAt(k)
		fault.SetHook(hook)
		s := newStory(t, 1)
		s.tell(fault)
		for survival := range vfs.Random + 1 {
			// After the death of the process alone, what was visible under sync=interval is there; under queue_file it need not be.
			s.check(mem.CrashClone(survival, dice+uint64(k)), false, fmt.Sprintf("k=%d survival=%d seed=%d", k, survival, dice+uint64(k)))
		}
		if t.Failed() {
			t.FailNow()
		}
		if count.Load() < k {
			t.Logf("%d operations", count.Load())
			if count.Load() < 200 {
				t.Fatalf("only %d operations: the story did not do what it should", count.Load())
			}
			return
		}
	}
}

// Any operation on the files of topics fails once, or for a while: nothing that is confirmed is lost, all is answered, and after a restart
// all is as clients were told.
func TestTopicsErrorAtEveryOperation(t *testing.T) {
	dice := rand.Uint64()
	for name, e := range map[string]struct {
		err  error
		last int64 // how many operations fail
	}{
		"EIO":            {syscall.EIO, 1},
		"ENOSPC":         {syscall.ENOSPC, 1},
		"ENOSPC a while": {syscall.ENOSPC, 12},
		"EMFILE":         {syscall.EMFILE, 3},
	} {
		t.Run(name, func(t *testing.T) {
			first, step := crashSteps(37)
			at := int64(0)
			defer func() {
				if t.Failed() {
					t.Logf("operation %d failed first", at)
				}
			}()
			for k := first; ; k += step {
				mem := vfs.NewMem()
				fault := vfs.NewFault(mem)
				at = k
				count := new(atomic.Int64)
				fault.SetHook(func(op vfs.Op) error {
					if n := count.Add(1); n < k || n >= k+e.last {
						return nil
					}
					if errors.Is(e.err, syscall.EMFILE) && op.Kind != vfs.OpOpen && op.Kind != vfs.OpCreate && op.Kind != vfs.OpList {
						return nil
					}
					return e.err
				})
				s := newStory(t, 3)
				s.tell(fault)
				fault.SetHook(nil)
				for _, survival := range []vfs.Survival{vfs.Nothing, vfs.Everything} {
					s.check(mem.CrashClone(survival, dice+uint64(k)), false, fmt.Sprintf("k=%d survival=%d", k, survival))
				}
				if t.Failed() {
					t.FailNow()
				}
				if count.Load() < k {
					t.Logf("%d operations", count.Load())
					break
				}
			}
		})
	}
}
