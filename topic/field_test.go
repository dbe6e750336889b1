package topic

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// wakeSink tells a cursor's reader through the channel that is its tag.
type wakeSink struct{}

func (wakeSink) Confirmed([]Result) {}
func (wakeSink) Wake(cur *Cursor)   { signal(cur.Tag.(chan struct{})) }
func (wakeSink) Flush()             {}

// spaced is a file system whose free space the test says.
type spaced struct {
	vfs.FS
	free atomic.Int64
}

func (s *spaced) Space(string) (free, total int64, err error) { return s.free.Load(), 1 << 40, nil }

// F10: a disk that is full for one topic. The first publish is refused with its own code, the partition says that it is ill until
// a write of its own has reached the disk, and what succeeds elsewhere does not clear that.
func TestF10FullDisk(t *testing.T) {
	for _, s := range []codec.TopicSettings{{Storage: codec.StorageFile, Sync: codec.SyncAlways}, {Storage: codec.StorageFile, Sync: codec.SyncInterval, SyncMillis: 1}} {
		t.Run(s.Sync.String(), func(t *testing.T) {
			fault := vfs.NewFault(vfs.NewMem())
			d := openDisk(t, fault)
			defer d.ticking()()
			ill := mustCreate(t, d.r, "ill", s)
			p := ill.Partitions()[0]
			f := d.feeder(p, codec.LevelDefault)
			f.publish(1, 1, 4)
			f.confirmed()
			dir := d.r.files.catalogue.PartitionDir(ill.ID(), 0)
			fault.SetHook(func(op vfs.Op) error {
				if strings.HasPrefix(op.Path, dir) {
					switch op.Kind {
					case vfs.OpCreate, vfs.OpWrite, vfs.OpWriteSync, vfs.OpAllocate:
						return syscall.ENOSPC
					}
				}
				return nil
			})
			refused := func(what string) {
				t.Helper()
				f.reopen()
				f.publish(1, 1, 4)
				if r := f.settled(); r[0].Code != codec.CodeNoSpace {
					t.Errorf("%s: %s", what, r[0].Code)
				}
				if state := p.Info().State; state != codec.PartitionNoSpace {
					t.Errorf("%s: the state is %s", what, state)
				}
			}
			refused("the first publish")
			g := d.feeder(mustCreate(t, d.r, "well", s).Partitions()[0], codec.LevelDefault)
			g.publish(1, 1, 4)
			g.confirmed()
			if state := p.Info().State; state != codec.PartitionNoSpace {
				t.Errorf("after success elsewhere the state is %s", state)
			}
			refused("after success elsewhere")
			fault.SetHook(nil)
			for { // the log may be at cutting its tail
				f.reopen()
				f.publish(1, 1, 4)
				if r := f.settled(); r[0].Code == codec.CodeNone {
					break
				} else if r[0].Code != codec.CodeNoSpace {
					t.Fatal(r[0].Code)
				}
			}
			d.sink.await(t, "health", func() bool { return p.Info().State == codec.PartitionOK })
			whole(t, d.read(p, "", 0, 2, 1<<20), 0, 2)
			f.Close()
			g.Close()
			d.close()
		})
	}
}

// F10: below the disk's reserve, publishes to files are refused before the disk is full, and no others; above it they are taken again.
func TestF10DiskReserve(t *testing.T) {
	fsys := &spaced{FS: vfs.NewMem()}
	fsys.free.Store(1 << 20)
	d := &disk{t: t, fs: fsys, pool: codec.NewSlabPool(8 << 20), sink: newWaitSink(), r: NewRegistry(100)}
	if err := d.r.OpenFiles(FilesConfig{FS: fsys, Dir: "/data", Slabs: d.pool, DiskReserve: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	f := d.feeder(mustCreate(t, d.r, "filed", fileTopic(1)).Partitions()[0], codec.LevelDefault)
	g := d.feeder(mustCreate(t, d.r, "ring", codec.TopicSettings{}).Partitions()[0], codec.LevelDefault)
	for _, step := range []struct {
		free int64
		full bool
	}{{1 << 20, false}, {1<<20 - 1, true}, {0, true}, {1 << 20, false}} {
		fsys.free.Store(step.free)
		d.r.Tick(0, nowMillis())
		want, state := codec.CodeNone, codec.PartitionOK
		if step.full {
			want, state = codec.CodeNoSpace, codec.PartitionNoSpace
		}
		if got := f.part.Info().State; got != state || g.part.Info().State != codec.PartitionOK {
			t.Errorf("%d bytes are free: the states are %s and %s", step.free, got, g.part.Info().State)
		}
		f.reopen()
		f.publish(1, 1, 100)
		if r := f.settled(); r[0].Code != want {
			t.Errorf("%d bytes are free: %s", step.free, r[0].Code)
		}
		g.publish(1, 1, 100)
		g.confirmed()
	}
	f.Close()
	g.Close()
	d.close()
}

// F73: retention beside readers. They see records in order and the gap that retention made, nothing else, also one that paused in the middle of
// a segment that went.
func TestF73RetentionBesideReaders(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	s := fileTopic(1)
	s.SegmentBytes, s.RetentionBytes, s.RingBytes = MinSegmentBytes, MinSegmentBytes, 160<<10
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	defer d.ticking()()
	batches := 600
	if soak() {
		batches = 60_000
	}
	var cursors [9]Cursor
	begin := func(cur *Cursor) {
		cur.Tag = make(chan struct{}, 1)
		if _, _, _, err := p.Attach(cur, wakeSink{}, "", codec.FromEarliest, 0, nowMillis()); err != nil {
			t.Error(err)
		}
	}
	resume := make(chan struct{})
	var wait sync.WaitGroup
	for i := range cursors {
		cur := &cursors[i]
		begin(cur)
		wait.Go(func() {
			defer func() { cur.Detach(nowMillis()) }()
			at := codec.Offset(0)
			paused := i == 0
			for at < codec.Offset(batches) {
				var taken Taken
				cur.Take(&taken, 20<<10, nowMillis())
				if g := taken.Gap; g.Next != 0 {
					if g.From != at || g.Reason != codec.GapExpired {
						t.Errorf("reader %d at %d: the gap %+v", i, at, g)
					}
					at = g.Next
				}
				checkTaken(t, taken.Batches)
				for _, b := range taken.Batches {
					if base := codec.Batch(b.Bytes).BaseOffset(); base != at {
						t.Errorf("reader %d: offset %d follows %d", i, base, at)
					}
					at = codec.Batch(b.Bytes).NextOffset()
				}
				releaseTaken(taken.Batches)
				switch {
				case paused && len(taken.Batches) > 0:
					paused = false
					<-resume
				case len(taken.Batches) == 0 && taken.Gap.Next == 0:
					select {
					case <-cur.Tag.(chan struct{}):
					case <-time.After(loadDeadline):
						t.Errorf("reader %d is not woken at %d", i, at)
						return
					}
				}
			}
		})
	}
	f := d.feeder(p, codec.LevelDefault)
	for range batches / 20 {
		f.publish(20, 1, 10<<10)
		f.confirmed()
	}
	close(resume)
	wait.Wait()
	d.sink.await(t, "retention", func() bool { return p.Info().Segments <= 4 }) // a segment goes when it is sealed
	if i := p.Info(); i.Start == 0 || i.Start > i.High || i.High != codec.Offset(batches) {
		t.Errorf("%+v", i)
	}
	f.Close()
	d.close()
}

// F73: a quiet topic expires too, its active segment with it; offsets go on.
func TestF73QuietTopicExpires(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	s := fileTopic(1)
	s.RetentionMillis = 20
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 100)
	f.confirmed()
	stop := d.ticking()
	d.sink.await(t, "expiry", func() bool { return p.Info().Start == 1 })
	stop()
	if i := p.Info(); i.High != 1 {
		t.Errorf("%+v", i)
	}
	f.Close()
	d.close()
	d = openDisk(t, mem)
	p = mustGet(t, d, "t").Partitions()[0]
	f = d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 100)
	if base := f.confirmed()[0].Base; base != 1 {
		t.Errorf("offset %d follows 0", base)
	}
	f.Close()
	d.close()
}

// F73: a topic is deleted while the files are read for a reader: it is told, and all memory is given back.
func TestF73DeleteDuringRead(t *testing.T) {
	for _, group := range []string{"", "g"} {
		fault := vfs.NewFault(vfs.NewMem())
		d := openDisk(t, fault)
		p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
		f := d.feeder(p, codec.LevelDefault)
		f.publish(100, 1, 10<<10)
		f.confirmed()
		f.Close()
		h := holdBack(fault, func(op vfs.Op) bool { return op.Kind == vfs.OpRead })
		var cur Cursor
		if _, _, _, err := p.Attach(&cur, d.sink, group, codec.FromOffset, 0, nowMillis()); err != nil {
			t.Fatal(err)
		}
		cur.Grant(1<<20, nowMillis())
		var taken Taken
		cur.Take(&taken, 1<<20, nowMillis())
		d.sink.await(t, "a read", func() bool { return h.held.Load() > 0 })
		deleted := make(chan error, 1)
		go func() { deleted <- d.r.Delete("t", nowMillis()) }()
		d.sink.await(t, "the end of the reader", func() bool { return d.sink.woken[&cur] > 0 && cur.Cut() == codec.CodeTopicDeleted })
		h.let()
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		d.close()
	}
}

// F27: far more is stored than memory holds. Slabs stay within the ring's bound and what one reader reads ahead: while it is published without
// a consumer, after a restart, and while it is read from the beginning.
func TestF27BacklogBeyondMemory(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	s := fileTopic(1)
	s.SegmentBytes = 4 << 20
	p := mustCreate(t, d.r, "t", s).Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	rounds := 100 // of 320 KiB
	if soak() {
		rounds = 3000
	}
	most := int64(0)
	look := func() { most = max(most, d.pool.InUseBytes()) }
	for range rounds {
		f.publish(40, 10, 8<<10)
		look()
		f.confirmed()
		look()
	}
	end := codec.Offset(rounds * 400)
	// Slabs are charged by class, up to twice what is in them; a round comes on top of the ring.
	if bound := 2 * int64(256<<10+320<<10); most > bound {
		t.Errorf("%d bytes while publishing, more than %d", most, bound)
	}
	f.Close()
	cut := mem.CrashClone(vfs.Nothing, 1)
	d.close()
	d = openDisk(t, cut)
	if n := d.pool.InUseBytes(); n != 0 {
		t.Errorf("%d bytes after the restart", n)
	}
	p = mustGet(t, d, "t").Partitions()[0]
	cur := Cursor{Tag: make(chan struct{}, 1)}
	if _, _, _, err := p.Attach(&cur, wakeSink{}, "", codec.FromOffset, 0, nowMillis()); err != nil {
		t.Fatal(err)
	}
	most = 0
	for at := codec.Offset(0); at < end; {
		var taken Taken
		cur.Take(&taken, 64<<10, nowMillis())
		look()
		for _, b := range taken.Batches {
			if base := codec.Batch(b.Bytes).BaseOffset(); base != at {
				t.Fatalf("offset %d follows %d", base, at)
			}
			at = codec.Batch(b.Bytes).NextOffset()
		}
		releaseTaken(taken.Batches)
		if len(taken.Batches) == 0 {
			select {
			case <-cur.Tag.(chan struct{}):
			case <-time.After(loadDeadline):
				t.Fatalf("not woken at %d", at)
			}
		}
	}
	if bound := int64(4 * coldBytes); most > bound {
		t.Errorf("%d bytes while reading, more than %d", most, bound)
	}
	cur.Detach(nowMillis())
	d.close()
}

// F23: fifty subscribers of a topic in files take once and never again, each with what it took in its hands. Publishing goes on, memory
// does not grow with them, and each goes on at its offset when it comes back, with nothing lost.
func TestF23SlowReadersOfFiles(t *testing.T) {
	d := openDisk(t, vfs.NewMem())
	p := mustCreate(t, d.r, "t", fileTopic(1)).Partitions()[0]
	var cursors [50]Cursor
	var taken [50]Taken
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 10, 8<<10)
	f.confirmed()
	for i := range cursors {
		cursors[i].Tag = make(chan struct{}, 1)
		if _, _, _, err := p.Attach(&cursors[i], wakeSink{}, "", codec.FromOffset, 0, nowMillis()); err != nil {
			t.Fatal(err)
		}
		cursors[i].Take(&taken[i], 1, nowMillis())
		if len(taken[i].Batches) != 1 {
			t.Fatalf("%d batches", len(taken[i].Batches))
		}
	}
	rounds := 100
	if soak() {
		rounds = 3000
	}
	most := int64(0)
	for range rounds {
		f.publish(40, 10, 8<<10)
		f.confirmed()
		most = max(most, d.pool.InUseBytes())
	}
	if bound := 2 * int64(256<<10+320<<10); most > bound {
		t.Errorf("%d bytes are in use, more than %d", most, bound)
	}
	end := p.Info().High
	for i := range cursors {
		cur := &cursors[i]
		at := codec.Batch(taken[i].Batches[0].Bytes).NextOffset()
		releaseTaken(taken[i].Batches)
		for n := 0; at < end && (n < 20 || i < 2); n++ { // two read all
			taken[i].Reset()
			cur.Take(&taken[i], 64<<10, nowMillis())
			for _, b := range taken[i].Batches {
				if base := codec.Batch(b.Bytes).BaseOffset(); base != at {
					t.Fatalf("reader %d: offset %d follows %d", i, base, at)
				}
				at = codec.Batch(b.Bytes).NextOffset()
			}
			releaseTaken(taken[i].Batches)
			if len(taken[i].Batches) == 0 {
				select {
				case <-cur.Tag.(chan struct{}):
				case <-time.After(loadDeadline):
					t.Fatalf("reader %d is not woken at %d", i, at)
				}
			}
		}
		cur.Detach(nowMillis())
	}
	f.Close()
	d.sink.await(t, "the end of the reads", func() bool { return d.pool.InUseBytes() < 2<<20 })
	d.close()
}

// F30: more is published than a disk that stands still takes. What is in memory stays within ring, window and what is under way; others are
// served meanwhile; when the disk goes on, all is confirmed.
func TestF30DiskStandsStill(t *testing.T) {
	fault := vfs.NewFault(vfs.NewMem())
	d := openDisk(t, fault)
	topic := mustCreate(t, d.r, "slow", fileTopic(1))
	p := topic.Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 1000)
	f.confirmed()
	dir := d.r.files.catalogue.PartitionDir(topic.ID(), 0)
	h := holdBack(fault, func(op vfs.Op) bool { return writes(op) && strings.HasPrefix(op.Path, dir) })
	defer h.let()
	f.publish(100, 1, 10<<10) // a megabyte; the ring holds a quarter
	d.sink.await(t, "a write", func() bool { return h.held.Load() > 0 })
	d.sink.await(t, "the ring to be full", func() bool { return p.Info().Bytes > 200<<10 })
	if n := p.Info().Bytes; n > 256<<10 {
		t.Errorf("the ring holds %d bytes", n)
	}
	d.sink.mu.Lock()
	if n := len(d.sink.results[&f.Publisher]); n != 0 {
		t.Errorf("%d batches are confirmed that are not on the disk", n)
	}
	d.sink.mu.Unlock()
	// Others: another topic on the same disk, a reader of the slow one, a look at it, a creation.
	other := d.feeder(mustCreate(t, d.r, "other", fileTopic(1)).Partitions()[0], codec.LevelDefault)
	other.publish(10, 1, 1000)
	other.confirmed()
	whole(t, d.read(p, "", 0, 1, 1<<20), 0, 1)
	if i := topic.Describe().Partitions[0]; i.High != 1 {
		t.Errorf("%+v", i)
	}
	h.let()
	f.confirmed()
	whole(t, d.read(p, "", 0, 101, 1<<20), 0, 101)
	f.Close()
	other.Close()
	d.close()
}

// F52: empty and null keys and values are there after a restart, byte for byte.
func TestF52EmptyAcrossARestart(t *testing.T) {
	for _, storage := range []codec.Storage{codec.StorageFile, codec.StorageQueueFile} {
		mem := vfs.NewMem()
		d := openDisk(t, mem)
		p := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: storage}).Partitions()[0]
		f := d.feeder(p, codec.LevelDefault)
		var w codec.BatchBuilder
		w.Reset(nil, codec.MaxSlabBytes)
		for _, key := range [][]byte{nil, {}, []byte("k")} {
			for _, value := range [][]byte{nil, {}, []byte("v")} {
				w.Add(1, key, value, nil)
			}
		}
		sent := w.Finish(codec.NoProducer)
		f.send(bytes.Clone(sent))
		f.confirmed()
		f.Close()
		d.close()
		d = openDisk(t, mem)
		p = mustGet(t, d, "t").Partitions()[0]
		cur := Cursor{Tag: make(chan struct{}, 1)}
		if _, _, _, err := p.Attach(&cur, wakeSink{}, "", codec.FromOffset, 0, nowMillis()); err != nil {
			t.Fatal(err)
		}
		var taken Taken
		for cur.Take(&taken, 1, nowMillis()); len(taken.Batches) == 0; cur.Take(&taken, 1, nowMillis()) {
			select {
			case <-cur.Tag.(chan struct{}):
			case <-time.After(loadDeadline):
				t.Fatal("not woken")
			}
		}
		if got := taken.Batches[0].Bytes; !bytes.Equal(got[codec.BatchHeaderBytes:], sent[codec.BatchHeaderBytes:]) {
			t.Errorf("%s: %x was sent, %x was read", storage, sent, got)
		}
		releaseTaken(taken.Batches)
		cur.Detach(nowMillis())
		d.close()
	}
}

// F70: the number of partitions is the topic's, across restarts: another is refused, growth stays, and what is in them is there.
func TestF70PartitionsAcrossRestarts(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	topic := mustCreate(t, d.r, "t", fileTopic(4))
	for i, p := range topic.Partitions() {
		f := d.feeder(p, codec.LevelDefault)
		f.publish(i+1, 1, 100)
		f.confirmed()
		f.Close()
	}
	check := func(want int) {
		t.Helper()
		topic := mustGet(t, d, "t")
		if n := len(topic.Partitions()); n != want {
			t.Errorf("%d partitions, want %d", n, want)
		}
		for i, p := range topic.Partitions()[:4] {
			if high := p.Info().High; high != codec.Offset(i+1) {
				t.Errorf("partition %d ends at %d", i, high)
			}
		}
		for _, n := range []uint32{2, 8} {
			if _, _, err := d.r.Create("t", fileTopic(n), "", ""); codeOf(err) != codec.CodeTopicExists {
				t.Errorf("created with %d partitions: %v", n, err)
			}
		}
		if _, err := d.r.Alter("t", codec.TopicSettings{Partitions: 2}, nowMillis()); codeOf(err) != codec.CodeInvalidSetting {
			t.Errorf("shrunk: %v", err)
		}
	}
	check(4)
	d.close()
	d = openDisk(t, mem)
	check(4)
	if _, err := d.r.Alter("t", codec.TopicSettings{Partitions: 6}, nowMillis()); err != nil {
		t.Fatal(err)
	}
	cut := mem.CrashClone(vfs.Nothing, 1)
	check(6)
	d.close()
	for _, fsys := range []*vfs.Mem{mem, cut} {
		d = openDisk(t, fsys)
		check(6)
		d.close()
	}
}

// F68: many topics are open and serve after a power cut, and the broker tells how far it is. The time is told, not judged.
func TestF68ManyTopics(t *testing.T) {
	topics := 200
	if soak() {
		topics = 10_000
	}
	mem := vfs.NewMem()
	open := func(fsys vfs.FS, recover func(done, total int)) *disk {
		d := &disk{t: t, fs: fsys, pool: codec.NewSlabPool(8 << 20), sink: newWaitSink(), r: NewRegistry(topics)}
		if err := d.r.OpenFiles(FilesConfig{FS: fsys, Dir: "/data", Slabs: d.pool, DiskReserve: -1, OnRecover: recover}); err != nil {
			t.Fatal(err)
		}
		return d
	}
	d := open(mem, nil)
	name := func(i int) string { return fmt.Sprintf("topic-%d", i) }
	for i := range topics {
		f := d.feeder(mustCreate(t, d.r, name(i), codec.TopicSettings{Storage: codec.StorageFile}).Partitions()[0], codec.LevelDefault)
		f.publish(1, 10, 200)
		f.confirmed()
		f.Close()
	}
	cut := mem.CrashClone(vfs.Nothing, 1)
	d.close()
	for _, c := range []struct {
		what string
		fsys *vfs.Mem
	}{{"an orderly end", mem}, {"a power cut", cut}} {
		began := time.Now()
		told := 0
		d := open(c.fsys, func(done, total int) {
			if total != topics {
				t.Errorf("%d of %d", done, total)
			}
			told = max(told, done)
		})
		t.Logf("%d topics are open after %s within %s", topics, c.what, time.Since(began).Round(time.Millisecond))
		if n, _ := d.r.Count(); n != topics || told != topics {
			t.Errorf("%d topics, %d told", n, told)
		}
		for i := 0; i < topics; i += topics / 20 {
			whole(t, d.read(mustGet(t, d, name(i)).Partitions()[0], "", 0, 10, 1<<20), 0, 10)
		}
		d.close()
	}
}

// F75: what is written down about a topic again and again takes no more room than once.
func TestF75StateFilesAreBounded(t *testing.T) {
	mem := vfs.NewMem()
	d := openDisk(t, mem)
	topic := mustCreate(t, d.r, "t", codec.TopicSettings{Storage: codec.StorageQueueFile})
	p := topic.Partitions()[0]
	f := d.feeder(p, codec.LevelDefault)
	f.publish(1, 1, 100)
	f.confirmed()
	d.sink.await(t, "durable", func() bool { return p.Info().Durable == 1 })
	dir := path.Dir(d.r.files.catalogue.PartitionDir(topic.ID(), 0))
	times := 1000
	if soak() {
		times = 100_000
	}
	for i := range times {
		if err := d.r.files.raise(p, codec.Offset(i)<<24); err != nil {
			t.Fatal(err)
		}
		if _, err := d.r.Alter("t", codec.TopicSettings{RetentionBytes: uint64(1<<30 + i)}, nowMillis()); err != nil {
			t.Fatal(err)
		}
		list, err := mem.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		files, bytes := 0, int64(0)
		for _, e := range list {
			if e.Kind == vfs.Regular {
				files++
				bytes += e.Size
			}
		}
		if files > 2 || bytes > 8<<10 {
			t.Fatalf("after %d changes there are %d files of %d bytes", i+1, files, bytes)
		}
	}
	f.Close()
	d.close()
}
