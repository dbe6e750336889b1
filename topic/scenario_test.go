package topic

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/lightio/lightq/codec"
)

// TestScenarios drives one partition step by step through the files of testdata, and compares what becomes visible: results,
// wake-ups, what is taken, memory that is given back. `go test ./topic -run Scenarios -rewrite` writes the files anew; read
// the difference.
//
// A batch is called by its publisher, epoch and number: p1.0 is the first of publisher p in epoch 1. Each has a slab of its
// own. It takes 136 bytes unless the step says otherwise, for which the ring is charged 200.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no files: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) { runScenarios(t, path) })
	}
}

func runScenarios(t *testing.T, path string) {
	var s *scenario
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "new" {
			if s != nil {
				s.close(t)
			}
			s = newScenario(t, d)
			return ""
		}
		return s.step(t, d)
	})
	s.close(t)
}

// A scenario is a partition and what a file has done with it.
type scenario struct {
	part  *Partition
	sink  recordSink
	now   int64
	async bool // the store completes when the file says so

	batches    map[int64]*scenarioBatch // by id
	order      []*scenarioBatch
	publishers map[string]*scenarioPublisher
	cursors    map[string]*Cursor
	names      map[*Cursor]string
	out        strings.Builder
}

type scenarioBatch struct {
	name  string
	pool  *codec.SlabPool // of its slab alone
	freed bool
}

type scenarioPublisher struct {
	Publisher
	name string
	next uint64
}

func newScenario(t *testing.T, d *datadriven.TestData) *scenario {
	s := &scenario{
		now: testMillis, batches: map[int64]*scenarioBatch{}, publishers: map[string]*scenarioPublisher{},
		cursors: map[string]*Cursor{}, names: map[*Cursor]string{}, async: d.HasArg("async"),
	}
	settings := codec.TopicSettings{Storage: codec.StorageQueue, Partitions: 1, MaxBatchBytes: 1 << 20}
	if d.HasArg("direct") {
		settings.Storage = codec.StorageDirect
	}
	d.ScanArgs(t, "ring", &settings.RingBytes)
	settings.Overflow = scanOverflow(t, d)
	s.part = memoryTopic("t", settings).Partitions()[0] // below the limits that Create has: the core does not know them
	if s.async {
		s.part.core.visible = whenDurable
	}
	return s
}

func scanOverflow(t *testing.T, d *datadriven.TestData) codec.Overflow {
	var name string
	d.ScanArgs(t, "overflow", &name)
	for _, o := range []codec.Overflow{codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject} {
		if o.String() == name {
			return o
		}
	}
	d.Fatalf(t, "unknown overflow %q", name)
	return 0
}

// close detaches all cursors and deletes the partition: then no slab may have a reference.
func (s *scenario) close(t *testing.T) {
	t.Helper()
	for _, cur := range s.cursors {
		cur.Detach(s.now)
	}
	s.part.remove(s.now)
	for _, b := range s.order {
		if b.pool.InUseBytes() != 0 {
			t.Errorf("the slab of batch %s has leaked", b.name)
		}
	}
	for _, p := range s.publishers {
		p.Close()
	}
	if n := s.part.core.publishers; n != 0 {
		t.Errorf("%d publishers are left", n)
	}
}

// step runs one command. Names come first, as arguments without a value.
func (s *scenario) step(t *testing.T, d *datadriven.TestData) string {
	s.out.Reset()
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "open": // open NAME epoch=N [level=durable]
		s.open(t, d, name)
	case "publish": // publish NAME [n=BATCHES] [records=N] [size=BYTES] [bad=INDEX] [epoch=N] [late]
		s.publish(t, d, name)
	case "completed": // completed OFFSET: the store's event
		var offset int64
		if _, err := fmt.Sscan(name, &offset); err != nil {
			d.Fatalf(t, "offset %q: %v", name, err)
		}
		s.part.enter(s.now)
		s.part.core.completed(codec.Offset(offset), codec.Offset(offset))
		s.part.leave()
	case "attach": // attach NAME [group=G] from=earliest|latest|OFFSET
		s.attach(t, d, name)
	case "take": // take NAME [max=BYTES]
		most := 1 << 20
		d.MaybeScanArgs(t, "max", &most)
		var taken Taken
		s.cursor(t, d, name).Take(&taken, most, s.now)
		s.printTaken(t, &taken)
		s.effects(t) // while the references that were taken are held
		releaseTaken(taken.Batches)
	case "grant": // grant NAME BYTES
		var bytes int
		if _, err := fmt.Sscan(d.CmdArgs[1].Key, &bytes); err != nil {
			d.Fatalf(t, "bytes: %v", err)
		}
		s.cursor(t, d, name).Grant(bytes, s.now)
	case "detach": // detach NAME
		cur := s.cursor(t, d, name)
		cur.Detach(s.now)
		delete(s.cursors, name)
	case "close": // close NAME: a publisher
		s.publishers[name].Close()
		delete(s.publishers, name)
		s.out.WriteString(fmt.Sprintf("publishers %d\n", s.part.Info().Publishers))
	case "advance": // advance DURATION: the clock
		wait, err := time.ParseDuration(name)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now += wait.Milliseconds()
	case "tick": // tick: the broker's every second, with a stall limit of 30 s
		s.part.Tick(s.now-30_000, s.now)
	case "purge":
		n, err := s.part.Purge(s.now)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&s.out, "purged %d records\n", n)
	case "alter": // alter [overflow=…] [ring=BYTES] [max-batch=BYTES]
		settings := s.part.core.settings
		if d.HasArg("overflow") {
			settings.Overflow = scanOverflow(t, d)
		}
		d.MaybeScanArgs(t, "ring", &settings.RingBytes)
		d.MaybeScanArgs(t, "max-batch", &settings.MaxBatchBytes)
		s.part.alter(settings, s.now)
	case "delete":
		s.part.remove(s.now)
	case "state":
		s.state()
	default:
		d.Fatalf(t, "unknown command %q", d.Cmd)
	}
	s.effects(t)
	if s.out.Len() == 0 {
		return "nothing\n"
	}
	return s.out.String()
}

func (s *scenario) cursor(t *testing.T, d *datadriven.TestData, name string) *Cursor {
	cur := s.cursors[name]
	if cur == nil {
		d.Fatalf(t, "there is no cursor %q", name)
	}
	return cur
}

func (s *scenario) open(t *testing.T, d *datadriven.TestData, name string) {
	var epoch uint32
	d.ScanArgs(t, "epoch", &epoch)
	level := codec.LevelDefault
	if d.HasArg("durable") {
		level = codec.LevelDurable
	}
	p := s.publishers[name]
	if p == nil {
		p = &scenarioPublisher{name: name}
		p.Tag = p
	}
	level, next, err := s.part.OpenPublisher(&p.Publisher, &s.sink, epoch, level)
	if err != nil {
		fmt.Fprintf(&s.out, "error %s\n", wireCode(t, err).String())
		return
	}
	p.next = 0
	s.publishers[name] = p
	fmt.Fprintf(&s.out, "level %d, next %d\n", level, next)
}

func (s *scenario) publish(t *testing.T, d *datadriven.TestData, name string) {
	p := s.publishers[name]
	n, records, size, bad, epoch := 1, 1, 136, -1, p.epoch
	d.MaybeScanArgs(t, "n", &n)
	d.MaybeScanArgs(t, "records", &records)
	d.MaybeScanArgs(t, "size", &size)
	d.MaybeScanArgs(t, "bad", &bad)
	d.MaybeScanArgs(t, "epoch", &epoch)
	list := make([]Published, 0, n)
	for i := range n {
		id := int64(len(s.order))
		number := p.next
		if epoch == p.epoch {
			p.next++
		}
		b := &scenarioBatch{name: fmt.Sprintf("%s%d.%d", name, epoch, number), pool: codec.NewSlabPool(0)}
		s.batches[id] = b
		s.order = append(s.order, b)
		one := published(b.pool, number, sealedBatch(nil, id, records, size))
		if i == bad {
			spoil(one[0].Batch)
		}
		list = append(list, one...)
	}
	if !s.async {
		s.part.Publish(&p.Publisher, epoch, list, s.now)
		return
	}
	// As Publish does it, with a store that takes its time.
	s.part.enter(s.now)
	for i := range list {
		in := s.part.incoming(&p.Publisher, epoch, &list[i])
		check(&in, 1<<20)
		s.part.core.publish(in)
	}
	s.part.core.sent = s.part.core.next
	s.part.leave()
}

func (s *scenario) attach(t *testing.T, d *datadriven.TestData, name string) {
	var group, from string
	d.MaybeScanArgs(t, "group", &group)
	d.ScanArgs(t, "from", &from)
	kind, value := codec.FromOffset, uint64(0)
	switch from {
	case "earliest":
		kind = codec.FromEarliest
	case "latest":
		kind = codec.FromLatest
	default:
		if _, err := fmt.Sscan(from, &value); err != nil {
			d.Fatalf(t, "from %q: %v", from, err)
		}
	}
	cur := &Cursor{Tag: name}
	start, high, begin, err := s.part.Attach(cur, &s.sink, group, kind, value, s.now)
	if err != nil {
		fmt.Fprintf(&s.out, "error %s\n", wireCode(t, err).String())
		return
	}
	s.cursors[name] = cur
	s.names[cur] = name
	fmt.Fprintf(&s.out, "start %d, high %d, begin %d\n", start, high, begin)
}

func wireCode(t *testing.T, err error) codec.Code {
	t.Helper()
	var e *codec.WireError
	if !errors.As(err, &e) {
		t.Fatalf("%v is not an error for the wire", err)
	}
	return e.Code
}

func (s *scenario) printTaken(t *testing.T, taken *Taken) {
	checkTaken(t, taken.Batches)
	if taken.Gap.Next != 0 {
		reasons := map[codec.GapReason]string{codec.GapDropped: "dropped", codec.GapDeclared: "declared", codec.GapPurged: "purged"}
		fmt.Fprintf(&s.out, "gap %d to %d, %s\n", taken.Gap.From, taken.Gap.Next, reasons[taken.Gap.Reason])
	}
	for _, b := range taken.Batches {
		batch := codec.Batch(b.Bytes)
		fmt.Fprintf(&s.out, "taken %s at %d to %d\n", s.batches[batchID(b.Bytes)].name, batch.BaseOffset(), batch.NextOffset())
	}
}

// effects prints what became visible since the last call.
func (s *scenario) effects(t *testing.T) {
	for _, r := range s.sink.results {
		name := r.Publisher.Tag.(*scenarioPublisher).name
		fmt.Fprintf(&s.out, "result %s%d.%d: ", name, r.Epoch, r.Number)
		if r.Code == codec.CodeNone {
			fmt.Fprintf(&s.out, "at %d, %d bytes\n", r.Base, r.Bytes)
		} else {
			fmt.Fprintf(&s.out, "%s, %d bytes\n", r.Code.String(), r.Bytes)
			if r.Base != 0 {
				t.Errorf("a refused batch has offset %d", r.Base)
			}
		}
	}
	for _, cur := range s.sink.woken {
		fmt.Fprintf(&s.out, "wake %s", s.names[cur])
		if code := cur.Cut(); code != codec.CodeNone {
			fmt.Fprintf(&s.out, ", cut off: %s", code.String())
		}
		s.out.WriteByte('\n')
	}
	if s.sink.flushes > 1 {
		t.Errorf("one step flushed the sink %d times", s.sink.flushes)
	}
	if s.sink.flushes == 0 && len(s.sink.results)+len(s.sink.woken) > 0 {
		t.Error("results or wake-ups were not flushed")
	}
	s.sink.reset()
	var freed []string
	for _, b := range s.order {
		if !b.freed && b.pool.InUseBytes() == 0 {
			b.freed = true
			freed = append(freed, b.name)
		}
	}
	if len(freed) > 0 {
		fmt.Fprintf(&s.out, "freed %s\n", strings.Join(freed, " "))
	}
	if c := &s.part.core; c.start > c.durable || c.durable > c.next || c.start > c.high || c.high > c.next {
		t.Errorf("start %d, durable %d, high %d, next %d", c.start, c.durable, c.high, c.next)
	}
}

func (s *scenario) state() {
	i := s.part.Info()
	fmt.Fprintf(&s.out, "start %d, high %d, next %d; ring %d bytes, %d wait; dropped unread %d\n",
		i.Start, i.High, i.Next, i.Bytes, s.part.core.pending.len(), i.DroppedUnread)
	fmt.Fprintf(&s.out, "in %d records %d bytes, out %d records %d bytes; subscriptions %d, publishers %d, queue size %d\n",
		i.RecordsIn, i.BytesIn, i.RecordsOut, i.BytesOut, i.Subscriptions, i.Publishers, i.QueueSize)
	groups := slices.Clone(s.part.core.groups)
	for _, g := range groups {
		fmt.Fprintf(&s.out, "group %s: next %d, %d members\n", g.name, g.next, len(g.members))
	}
}
