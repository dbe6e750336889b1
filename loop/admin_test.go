package loop

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

func (p *peer) list(after string, limit uint32) codec.ListReply {
	p.t.Helper()
	section, payload := p.ask(codec.AppendList(nil, 7, codec.List{After: after, Limit: limit}))
	m, err := codec.ParseListReply(section, payload)
	return must(p.t, m, err)
}

func (p *peer) alter(name string, s codec.TopicSettings) codec.CreateReply {
	p.t.Helper()
	section, _ := p.ask(codec.AppendAlter(nil, 8, codec.Create{Topic: name, Settings: s}))
	m, err := codec.ParseCreateReply(section)
	return must(p.t, m, err)
}

func (p *peer) delete(name string) {
	p.t.Helper()
	p.ask(codec.AppendDelete(nil, 9, name))
}

func (p *peer) purge(name string, partition uint32) uint64 {
	p.t.Helper()
	section, _ := p.ask(codec.AppendPurge(nil, 10, codec.Purge{Topic: name, Partition: partition}))
	n, err := codec.ParsePurgeReply(section)
	return must(p.t, n, err)
}

func (p *peer) stats() map[string]uint64 {
	p.t.Helper()
	section, payload := p.ask(codec.AppendStats(nil, 11))
	list, err := codec.ParseStatsReply(section, payload)
	m := map[string]uint64{}
	for _, s := range must(p.t, list, err) {
		if _, twice := m[s.Name]; twice {
			p.t.Fatalf("the figure %s comes twice", s.Name)
		}
		m[s.Name] = s.Value
	}
	return m
}

func createFrame(name string, s codec.TopicSettings) []byte {
	return codec.AppendCreate(nil, 2, codec.Create{Topic: name, Settings: s})
}

func openFrame(handle uint32, m codec.Open) []byte { return codec.AppendOpen(nil, 3, handle, m) }

func TestCreate(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{MaxPartitions: 10}}))
		p := dial(t, b).hello()
		first := p.create("orders", codec.TopicSettings{})
		want := codec.TopicSettings{
			Storage: codec.StorageQueue, Partitions: 1, Overflow: codec.OverflowBlock,
			RingBytes: 64 << 20, MaxBatchBytes: codec.DefaultMaxBatchBytes,
		}
		if !first.Created || first.Settings != want || first.ID == (codec.TopicID{}) {
			t.Errorf("created %+v", first)
		}
		for _, same := range []codec.TopicSettings{{}, want, {Partitions: 1}} {
			if r := p.create("orders", same); r.Created || r.Settings != want || r.ID != first.ID {
				t.Errorf("created again with %+v: %+v", same, r)
			}
		}
		if other := p.create("other", codec.TopicSettings{Storage: codec.StorageDirect}); other.ID == first.ID ||
			other.Settings.Storage != codec.StorageDirect {
			t.Errorf("a second topic: %+v", other)
		}
		for _, c := range []struct {
			code   codec.Code
			name   string
			s      codec.TopicSettings
			detail string
		}{
			{codec.CodeTopicExists, "orders", codec.TopicSettings{Partitions: 2}, "1 partitions, not 2"},
			{codec.CodeTopicExists, "orders", codec.TopicSettings{Storage: codec.StorageDirect}, "storage is queue, not direct"},
			{codec.CodeTopicExists, "orders", codec.TopicSettings{Overflow: codec.OverflowReject}, "overflow is block, not reject"},
			{codec.CodeTopicExists, "orders", codec.TopicSettings{RingBytes: 32 << 20}, "ring-bytes"},
			{codec.CodeTopicExists, "orders", codec.TopicSettings{MaxBatchBytes: 2000}, "max-batch"},
			{codec.CodeInvalidName, "no/slash", codec.TopicSettings{}, "name"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{Storage: codec.StorageFile}, "data directory"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{Storage: codec.StorageQueueFile}, "data directory"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{Storage: 5}, "storage"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{Overflow: 4}, "overflow"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{Partitions: 4097}, "4096"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{MaxBatchBytes: 1023}, "max-batch"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{MaxBatchBytes: 8<<20 + 1}, "max-batch"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{RingBytes: 2*(codec.DefaultMaxBatchBytes+64) - 1}, "ring-bytes"},
			{codec.CodeInvalidSetting, "new", codec.TopicSettings{RingBytes: 64<<30 + 1}, "ring-bytes"},
			{codec.CodeTooManyTopics, "new", codec.TopicSettings{Partitions: 9}, "limit is 10"},
		} {
			if detail := p.refused(c.code, createFrame(c.name, c.s)); !strings.Contains(detail, c.detail) {
				t.Errorf("%s with %+v: %q does not say %q", c.name, c.s, detail, c.detail)
			}
		}
		p.create("smallest", codec.TopicSettings{MaxBatchBytes: 1024, RingBytes: 2 * (1024 + 64), Partitions: 8})
		p.refused(codec.CodeTooManyTopics, createFrame("one.more", codec.TopicSettings{}))
		p.delete("smallest") // gives its partitions back
		p.create("one.more", codec.TopicSettings{MaxBatchBytes: 8 << 20})
	})
}

func TestDescribe(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p := dial(t, b).hello()
		made := p.create("orders", codec.TopicSettings{Partitions: 3})
		p.open(1, "orders", 1, 1)
		p.open(2, "orders", 1, 1)
		p.subscribe(3, codec.Subscribe{Topic: "orders", Partition: 1})
		p.subscribe(4, codec.Subscribe{Topic: "orders", Partition: 1, Kind: codec.KindPull, Name: "g"})
		batch := batchOf([]byte("a"), []byte("b"))
		p.published(1, 1, 0, batch)
		d := p.describe("orders")
		if d.ID != made.ID || d.Settings != made.Settings || len(d.Partitions) != 3 {
			t.Fatalf("described %+v", d)
		}
		want := codec.PartitionInfo{
			High: 2, Next: 2, Bytes: uint64(len(batch)) + 64, Subscriptions: 2, Publishers: 2,
			RecordsIn: 2, BytesIn: uint64(len(batch)), QueueSize: 2,
		}
		if d.Partitions[1] != want {
			t.Errorf("partition 1: %+v, want %+v", d.Partitions[1], want)
		}
		if d.Partitions[0] != (codec.PartitionInfo{}) || d.Partitions[2] != (codec.PartitionInfo{}) {
			t.Errorf("partitions that nobody has used: %+v", d.Partitions)
		}
		p.write(codec.AppendCredit(nil, 3, 1000))
		if got := p.deliver(); got.handle != 3 || len(got.batches) != 1 {
			t.Fatalf("%+v", got)
		}
		for _, handle := range []uint32{1, 2, 3, 4} {
			p.closeHandle(handle)
		}
		want.Subscriptions, want.Publishers = 0, 0
		want.RecordsOut, want.BytesOut = 2, uint64(len(batch))
		if got := p.describe("orders").Partitions[1]; got != want {
			t.Errorf("after the handles were closed: %+v, want %+v", got, want)
		}
		p.refused(codec.CodeUnknownTopic, codec.AppendDescribe(nil, 5, "nothing"))
		p.refused(codec.CodeInvalidName, codec.AppendDescribe(nil, 5, "../orders"))
	})
}

func TestList(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p := dial(t, b).hello()
		if r := p.list("", 0); len(r.Topics) != 0 || r.More {
			t.Errorf("of nothing: %+v", r)
		}
		names := []string{"Z", "a", "a.b", "b", "long" + strings.Repeat("x", 245)} // in order
		for _, i := range []int{3, 0, 4, 1, 2} {
			p.create(names[i], codec.TopicSettings{Partitions: uint32(i + 1)})
		}
		for _, limit := range []uint32{0, 1, 2, 4, 5, 6, 1<<32 - 1} {
			var got []string
			for after, pages := "", 0; ; pages++ {
				r := p.list(after, limit)
				for i, e := range r.Topics {
					if e.Settings.Partitions != uint32(len(got)+1) || e.ID == (codec.TopicID{}) {
						t.Errorf("entry %d: %+v", i, e)
					}
					got = append(got, e.Name)
				}
				if limit > 0 && len(r.Topics) > int(limit) {
					t.Fatalf("%d entries, the limit is %d", len(r.Topics), limit)
				}
				if !r.More {
					break
				}
				if len(r.Topics) == 0 || pages > len(names) {
					t.Fatalf("limit %d: more is said for ever", limit)
				}
				after = got[len(got)-1]
			}
			if !slices.Equal(got, names) {
				t.Errorf("limit %d: %q", limit, got)
			}
		}
		if r := p.list("b", 0); len(r.Topics) != 1 || r.Topics[0].Name != names[4] {
			t.Errorf("behind b: %+v", r)
		}
		if r := p.list("zzz", 0); len(r.Topics) != 0 || r.More {
			t.Errorf("behind the last: %+v", r)
		}
	})
}

// The largest page of a list fits a frame, and more topics than a page are all found.
func TestListPages(t *testing.T) {
	b := startBroker(t, Config{})
	p := dial(t, b).hello()
	const topics = 2*listLimit + 1
	suffix := strings.Repeat("x", 243)
	for i := range topics {
		if _, _, err := b.createTopic(fmt.Sprintf("%06d%s", i, suffix), codec.TopicSettings{}, "", ""); err != nil {
			t.Fatal(err)
		}
	}
	after, got := "", 0
	for _, want := range []int{listLimit, listLimit, 1} {
		r := p.list(after, 0)
		if len(r.Topics) != want || r.More != (want > 1) {
			t.Fatalf("a page of %d topics, more %v, want %d", len(r.Topics), r.More, want)
		}
		for _, e := range r.Topics {
			if e.Name != fmt.Sprintf("%06d%s", got, suffix) {
				t.Fatalf("topic %d is %s", got, e.Name)
			}
			got++
		}
		after = r.Topics[want-1].Name
	}
}

func TestAlter(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{Limits: Limits{MaxPartitions: 6}}))
		p := dial(t, b).hello()
		made := p.create("orders", codec.TopicSettings{Partitions: 2})
		p.open(1, "orders", 1, 1)
		request := func(s codec.TopicSettings) []byte {
			return codec.AppendAlter(nil, 8, codec.Create{Topic: "orders", Settings: s})
		}
		p.refused(codec.CodeInvalidSetting, request(codec.TopicSettings{Partitions: 1}))
		p.refused(codec.CodeInvalidSetting, request(codec.TopicSettings{Storage: codec.StorageDirect}))
		p.refused(codec.CodeInvalidSetting, request(codec.TopicSettings{Overflow: 9}))
		p.refused(codec.CodeInvalidSetting, request(codec.TopicSettings{MaxBatchBytes: 1}))
		p.refused(codec.CodeInvalidSetting, request(codec.TopicSettings{RingBytes: 1 << 20}))
		p.refused(codec.CodeTooManyTopics, request(codec.TopicSettings{Partitions: 7}))
		p.refused(codec.CodeUnknownTopic, codec.AppendAlter(nil, 8, codec.Create{Topic: "nothing"}))
		if d := p.describe("orders"); d.Settings != made.Settings || len(d.Partitions) != 2 {
			t.Errorf("refused changes left %+v", d)
		}

		want := made.Settings
		want.Partitions, want.Overflow, want.RingBytes, want.MaxBatchBytes = 6, codec.OverflowReject, 16<<20, 5000
		r := p.alter("orders", codec.TopicSettings{Partitions: 6, Overflow: codec.OverflowReject, RingBytes: 16 << 20, MaxBatchBytes: 5000})
		if r.Created || r.ID != made.ID || r.Settings != want {
			t.Errorf("altered to %+v, want %+v", r, want)
		}
		if r := p.alter("orders", codec.TopicSettings{}); r.Settings != want {
			t.Errorf("altered by nothing: %+v", r)
		}
		if d := p.describe("orders"); d.Settings != want || len(d.Partitions) != 6 {
			t.Errorf("described %+v", d)
		}
		// In force at once, on a handle that was open: 4,900 bytes pass, 5,100 do not.
		p.published(1, 1, 0, batchOf(make([]byte, 4800)))
		p.write(publishFrame(1, 1, 1, batchOf(make([]byte, 5100))))
		if r := p.confirm(); r.Code != codec.CodeBatchTooLarge {
			t.Errorf("a batch above the new limit: %v", r.Code)
		}
		if r := p.open(2, "orders", 5, 1); r.Partitions != 6 || r.MaxBatchBytes != 5000 {
			t.Errorf("opened a new partition: %+v", r)
		}
	})
}

func TestPurge(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p, sub := dial(t, b).hello(), dial(t, b).hello()
		p.create("orders", codec.TopicSettings{Partitions: 2})
		p.open(1, "orders", 0, 1)
		p.open(2, "orders", 1, 1)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		three := batchOf([]byte("1"), []byte("2"), []byte("3"))
		p.published(1, 1, 0, three, three)
		p.published(2, 1, 0, three)
		if n := p.purge("orders", 0); n != 6 {
			t.Errorf("purged %d records of partition 0, want 6", n)
		}
		d := p.describe("orders")
		if got := d.Partitions[0]; got.Start != 6 || got.High != 6 || got.Next != 6 || got.Bytes != 0 || got.DroppedUnread != 0 {
			t.Errorf("partition 0 after the purge: %+v", got)
		}
		if got := d.Partitions[1]; got.Start != 0 || got.High != 3 {
			t.Errorf("partition 1 after the purge of 0: %+v", got)
		}
		if n := p.purge("orders", codec.AllPartitions); n != 3 {
			t.Errorf("purged %d records of all, want 3", n)
		}
		if n := p.purge("orders", codec.AllPartitions); n != 0 {
			t.Errorf("purged %d records of nothing", n)
		}
		p.published(1, 1, 2, batchOf([]byte("4")))
		sub.write(codec.AppendCredit(nil, 1, 1000))
		values, gaps := sub.records(1, 0, 7, false)
		if !equal(values, [][]byte{[]byte("4")}) || !slices.Equal(gaps, []codec.Gap{{From: 0, Next: 6, Reason: codec.GapPurged}}) {
			t.Errorf("a consumer that was behind got %q and gaps %+v", values, gaps)
		}
		p.refused(codec.CodeUnknownPartition, codec.AppendPurge(nil, 1, codec.Purge{Topic: "orders", Partition: 2}))
		p.refused(codec.CodeUnknownTopic, codec.AppendPurge(nil, 1, codec.Purge{Topic: "nothing"}))
	})
}

// A purge makes room for a producer that waits, and a topic's records are gone when it is deleted, with everybody attached.
func TestDeleteInUse(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		admin := dial(t, b).hello()
		admin.create("other", codec.TopicSettings{})
		baseline := admin.stats()["slab_bytes_in_use"]
		old := admin.create("orders", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
		pub, sub, pull := dial(t, b).hello(), dial(t, b).hello(), dial(t, b).hello()
		pub.open(1, "orders", 0, 1)
		sub.subscribe(1, codec.Subscribe{Topic: "orders"})
		pull.subscribe(1, codec.Subscribe{Topic: "orders", Kind: codec.KindPull, Name: "g"})
		_, batches := numbered(12, 50_000)
		pub.write(publishFrame(1, 1, 0, batches[:10]...))
		pub.confirmed(5) // the ring is full, the rest waits
		if n := admin.purge("orders", codec.AllPartitions); n != 5 {
			t.Errorf("purged %d records, want 5", n)
		}
		pub.confirmed(5)
		pub.write(publishFrame(1, 1, 10, batches[10]))

		admin.delete("orders")
		if r := pub.confirm(); r.Code != codec.CodeTopicDeleted {
			t.Errorf("the batch that waits: %v", r.Code)
		}
		pub.write(publishFrame(1, 1, 11, batches[11]))
		if r := pub.confirm(); r.Code != codec.CodeTopicDeleted && r.Code != codec.CodeStaleEpoch {
			t.Errorf("a later batch: %v", r.Code)
		}
		for _, p := range []*peer{sub, pull} {
			if h, _ := p.expectError(codec.CodeTopicDeleted); h.Handle != 1 || h.Correlation != 0 {
				t.Errorf("told about %+v", h)
			}
		}
		pub.refused(codec.CodeUnknownTopic, openFrame(1, codec.Open{Topic: "orders", Epoch: 2}))
		admin.refused(codec.CodeUnknownTopic, codec.AppendDelete(nil, 9, "orders"))
		for _, p := range []*peer{pub, sub, pull} {
			p.closeHandle(1)
			p.refused(codec.CodeUnknownTopic, subscribeFrame(1, codec.Subscribe{Topic: "orders"}))
		}
		eventually(t, "the topic's slabs to be free", func() bool { return admin.stats()["slab_bytes_in_use"] <= baseline })

		if made := admin.create("orders", codec.TopicSettings{}); !made.Created || made.ID == old.ID {
			t.Errorf("made anew: %+v", made)
		}
		pub.open(1, "orders", 0, 1)
		pub.published(1, 1, 0, batchOf([]byte("x")))
		sub.subscribe(1, codec.Subscribe{Topic: "orders", CreditBytes: 1000})
		sub.records(1, 0, 1, false)
	})
}

func TestStats(t *testing.T) {
	eachDoor(t, func(t *testing.T, listen func(Config) Config) {
		b := startBroker(t, listen(Config{}))
		p, second := dial(t, b).hello(), dial(t, b).hello()
		p.create("a", codec.TopicSettings{})
		p.create("b", codec.TopicSettings{Partitions: 3})
		p.open(1, "a", 0, 1)
		p.published(1, 1, 0, batchOf(make([]byte, 100_000)))
		const slab = 112 << 10 // of the class that takes a batch of 100,000 bytes
		inUse := fmt.Sprint("slabs_in_use_", slab)
		s := p.stats()
		if s["connections"] != 2 || s["topics"] != 2 || s["partitions"] != 4 || s[inUse] != 1 || s["slab_bytes_in_use"] < slab {
			t.Errorf("%v", s)
		}
		for _, name := range []string{"uptime_seconds", "slab_bytes_free", "slab_bytes_limit"} {
			if _, ok := s[name]; !ok {
				t.Errorf("there is no %s", name)
			}
		}
		_ = second.conn.Close()
		eventually(t, "the connection to be gone", func() bool { return p.stats()["connections"] == 1 })
		p.delete("a")
		if s := p.stats(); s["topics"] != 1 || s["partitions"] != 3 || s[inUse] != 0 || s["slab_bytes_free"] < slab {
			t.Errorf("after a topic was deleted: %v", s)
		}
	})
}

// Case F70: the partition count differs between clients. It is stored with the topic, an other one is told, it never
// shrinks, and it grows under a producer that goes on. (What a keyed client does with its keys is the client's.)
func TestF70PartitionCount(t *testing.T) {
	b := startBroker(t, Config{Limits: Limits{Heartbeat: time.Hour}})
	admin, producer := dial(t, b).hello(), dial(t, b).hello()
	admin.create("orders", codec.TopicSettings{Partitions: 4})
	rounds := scaled(20_000)
	const keys = 16
	sent := map[uint32][][]byte{}
	numbers := map[uint32]uint64{}
	publish := func(from, to int, partitions uint32) {
		t.Helper()
		for i := from; i < to; i++ {
			for key := range uint32(keys) {
				partition := key % partitions
				handle := partition + 1
				value := fmt.Appendf(nil, "%d:%d", key, i)
				producer.write(publishFrame(handle, 1, numbers[handle], batchOf(value)))
				numbers[handle]++
				sent[partition] = append(sent[partition], value)
			}
			producer.confirmed(keys)
		}
	}
	for i := range uint32(4) {
		producer.open(i+1, "orders", i, 1)
	}
	publish(0, rounds/4, 4)
	for _, other := range []uint32{2, 8} {
		if detail := admin.refused(codec.CodeTopicExists, createFrame("orders", codec.TopicSettings{Partitions: other})); !strings.Contains(detail, "4 partitions") {
			t.Errorf("created with %d: %q", other, detail)
		}
	}
	admin.refused(codec.CodeInvalidSetting, codec.AppendAlter(nil, 8, codec.Create{Topic: "orders", Settings: codec.TopicSettings{Partitions: 3}}))
	for _, request := range [][]byte{
		openFrame(9, codec.Open{Topic: "orders", Partition: 4, Epoch: 1}),
		subscribeFrame(9, codec.Subscribe{Topic: "orders", Partition: 4}),
		codec.AppendPurge(nil, 3, codec.Purge{Topic: "orders", Partition: 4}),
	} {
		if detail := admin.refused(codec.CodeUnknownPartition, request); !strings.Contains(detail, "0 to 3") {
			t.Errorf("partition 4 of 4: %q", detail)
		}
	}

	// The count grows while the producer is at work, which goes on with the old count until it looks.
	altered := make(chan struct{})
	go func() {
		defer close(altered)
		admin.alter("orders", codec.TopicSettings{Partitions: 8})
	}()
	publish(rounds/4, rounds/2, 4)
	<-altered
	publish(rounds/2, 3*rounds/4, 4)
	for i := uint32(4); i < 8; i++ {
		if r := producer.open(i+1, "orders", i, 1); r.Partitions != 8 || r.Next != 0 {
			t.Errorf("opened partition %d: %+v", i, r)
		}
	}
	publish(3*rounds/4, rounds, 8)

	d := admin.describe("orders")
	if d.Settings.Partitions != 8 || len(d.Partitions) != 8 {
		t.Fatalf("%+v", d)
	}
	consumer := dial(t, b).hello()
	for i := range uint32(8) {
		r := consumer.subscribe(i+1, codec.Subscribe{Topic: "orders", Partition: i, CreditBytes: 1 << 20})
		values, gaps := consumer.records(i+1, 0, r.High, true)
		if len(gaps) != 0 || !equal(values, sent[i]) {
			t.Errorf("partition %d has %d records and gaps %v, %d were published in order", i, len(values), gaps, len(sent[i]))
		}
		consumer.closeHandle(i + 1)
	}
}
