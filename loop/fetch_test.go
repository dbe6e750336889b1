package loop

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
)

// fileSettings are those of a topic in files of which memory holds little.
func fileSettings() codec.TopicSettings {
	return codec.TopicSettings{Storage: codec.StorageFile, Partitions: 1, RingBytes: 256 << 10, MaxBatchBytes: 64 << 10, SegmentBytes: 1 << 20}
}

func diskConfig(fsys vfs.FS) Config { return Config{DataDir: "/data", FS: fsys, DiskReserve: -1} }

// fetch asks, and returns the reply and the values of its records.
func (p *peer) fetch(m codec.Fetch) (codec.FetchReply, []string) {
	p.t.Helper()
	section, payload := p.ask(codec.AppendFetch(nil, 77, m))
	reply, err := codec.ParseFetchReply(section)
	if err != nil {
		p.t.Fatal(err)
	}
	var values []string
	for range reply.Count {
		b, rest, err := codec.NextBatch(payload)
		if err != nil {
			p.t.Fatal(err)
		}
		if err := codec.CheckDelivered(b); err != nil {
			p.t.Fatal(err)
		}
		for rs := b.Records(); rs.Next(); {
			values = append(values, string(rs.Record.Value))
		}
		payload = rest
	}
	if len(payload) != 0 {
		p.t.Fatalf("%d bytes follow the batches of a fetch", len(payload))
	}
	return reply, values
}

// refusedFetch asks for what is refused, and returns the bounds that the error tells.
func (p *peer) refusedFetch(c codec.Code, m codec.Fetch) codec.Range {
	p.t.Helper()
	p.write(codec.AppendFetch(nil, 78, m))
	_, section, _ := p.expect(codec.TypeError)
	e, err := codec.ParseError(section)
	if err != nil || e.Code != c {
		p.t.Fatalf("fetch %+v: %v, %v, want %s", m, e, err, c)
	}
	return e.Range
}

// Case F40: a fetch of an offset that is not kept is refused at once, with what is; one at the end waits for new records, within its
// time. Whatever the storage, from memory or from files, and beside another fetch that waits.
func TestF40Fetch(t *testing.T) {
	for _, s := range []codec.TopicSettings{{Storage: codec.StorageQueue, RingBytes: 256 << 10, MaxBatchBytes: 64 << 10}, fileSettings()} {
		t.Run(s.Storage.String(), func(t *testing.T) {
			b := startBroker(t, diskConfig(vfs.NewMem()))
			p := dial(t, b).hello()
			p.create("t", s)
			p.open(1, "t", 0, 1)
			const n = 100
			value := func(i int) string { return fmt.Sprintf("%04d%s", i, make([]byte, 8000)) }
			for i := range n { // of a ring that holds thirty
				p.published(1, 1, uint64(i), batchOf([]byte(value(i))))
			}
			d := p.describe("t").Partitions[0]
			start := d.Start
			if (start == 0) != (s.Storage == codec.StorageFile) || d.High != n {
				t.Fatalf("%+v", d)
			}
			// Everything, piece by piece.
			var got []string
			for at := start; at < n; {
				reply, values := p.fetch(codec.Fetch{Topic: "t", From: codec.FromOffset, Value: uint64(at), MaxBytes: 40_000})
				if reply.Start != start || reply.High != n || len(values) == 0 || reply.Next != at+codec.Offset(len(values)) || len(values) > 6 {
					t.Fatalf("at %d: %+v, %d records", at, reply, len(values))
				}
				got = append(got, values...)
				at = reply.Next
			}
			for i, v := range got {
				if v != value(int(start)+i) {
					t.Fatalf("record %d is %q", int(start)+i, v[:8])
				}
			}
			if reply, values := p.fetch(codec.Fetch{Topic: "t", From: codec.FromEarliest, MaxBytes: 1, Limit: start + 1}); len(values) != 1 || reply.Next != start+1 {
				t.Errorf("earliest, up to the second: %+v, %d records", reply, len(values))
			}
			if reply, values := p.fetch(codec.Fetch{Topic: "t", From: codec.FromOffset, Value: uint64(start) + 2, MaxBytes: 1 << 20, Limit: start + 2}); len(values) != 0 || reply.Next != start+2 {
				t.Errorf("up to where it begins: %+v, %d records", reply, len(values))
			}
			// Out of range.
			outside := []uint64{n + 1, 1 << 31, 1<<63 - 1}
			if start > 0 {
				outside = append(outside, 0, uint64(start)-1)
			}
			for _, offset := range outside {
				if r := p.refusedFetch(codec.CodeOffsetOutOfRange, codec.Fetch{Topic: "t", From: codec.FromOffset, Value: offset, MaxBytes: 1}); r != (codec.Range{Start: start, Next: n}) {
					t.Errorf("at %d: the bounds told are %+v", offset, r)
				}
			}
			for _, offset := range []uint64{1 << 63, 1<<64 - 1} {
				p.refusedFetch(codec.CodeOffsetOutOfRange, codec.Fetch{Topic: "t", From: codec.FromOffset, Value: offset, MaxBytes: 1})
			}
			for code, m := range map[codec.Code]codec.Fetch{
				codec.CodeUnknownTopic:     {Topic: "u", From: codec.FromEarliest, MaxBytes: 1},
				codec.CodeUnknownPartition: {Topic: "t", Partition: 1, From: codec.FromEarliest, MaxBytes: 1},
				codec.CodeInvalidSetting:   {Topic: "t", From: 9, MaxBytes: 1},
			} {
				p.refusedFetch(code, m)
			}
			for _, m := range []codec.Fetch{
				{Topic: "t", From: codec.FromEarliest},
				{Topic: "t", From: codec.FromEarliest, MaxBytes: maxFetchBytes + 1},
				{Topic: "t", From: codec.FromEarliest, MaxBytes: 1, WaitMillis: 60_001},
			} {
				p.refusedFetch(codec.CodeInvalidSetting, m)
			}
			// At the end: nothing, at once; nothing, later; what comes.
			atEnd := codec.Fetch{Topic: "t", From: codec.FromLatest, MaxBytes: 1 << 20}
			if reply, values := p.fetch(atEnd); len(values) != 0 || reply.Next != n {
				t.Errorf("at the end: %+v", reply)
			}
			atEnd.WaitMillis = 1
			if reply, values := p.fetch(atEnd); len(values) != 0 || reply.Next != n {
				t.Errorf("at the end, after a moment: %+v", reply)
			}
			other := dial(t, b).hello()
			atEnd.WaitMillis = 60_000
			other.write(codec.AppendFetch(nil, 5, atEnd))
			other.alive() // it waits, and nothing else does
			if reply, values := other.fetch(codec.Fetch{Topic: "t", From: codec.FromEarliest, MaxBytes: 1}); len(values) != 1 || reply.High != n {
				t.Errorf("beside one that waits: %+v", reply)
			}
			p.published(1, 1, n, batchOf([]byte("new")))
			h, section, payload := other.expect(codec.TypeFetch)
			reply, err := codec.ParseFetchReply(section)
			if err != nil || h.Correlation != 5 || reply.Next != n+1 || len(payload) == 0 {
				t.Errorf("what came: %+v, %+v, %v", h, reply, err)
			}
			// By time: the records' own, which is that of batchOf for all.
			if reply, _ := p.fetch(codec.Fetch{Topic: "t", From: codec.FromTime, Value: 0, MaxBytes: 1}); reply.Next != start+1 {
				t.Errorf("from the beginning of time: %+v", reply)
			}
			if reply, values := p.fetch(codec.Fetch{Topic: "t", From: codec.FromTime, Value: 1 << 62, MaxBytes: 1}); len(values) != 0 || reply.Next != n+1 {
				t.Errorf("from the end of time: %+v", reply)
			}
		})
	}
}

// A connection has a bounded number of fetches under way; those that wait end with the topic, and with the broker.
func TestFetchesThatWait(t *testing.T) {
	b, stop := startStoppable(t, diskConfig(vfs.NewMem()))
	defer func() { _ = stop() }()
	p := dial(t, b).hello()
	p.create("t", fileSettings())
	p.create("u", fileSettings())
	wait := codec.Fetch{Topic: "t", From: codec.FromLatest, MaxBytes: 1, WaitMillis: 60_000}
	for i := range uint32(maxFetches) {
		p.write(codec.AppendFetch(nil, 100+i, wait))
	}
	p.refusedFetch(codec.CodeTooManyHandles, wait)
	admin := dial(t, b).hello()
	admin.ask(codec.AppendDelete(nil, 3, "t"))
	for range maxFetches {
		p.expectError(codec.CodeTopicDeleted)
	}
	wait.Topic = "u"
	p.write(codec.AppendFetch(nil, 7, wait))
	p.alive()
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for {
		h, section, _ := p.next()
		if h.Type != codec.TypeFetch {
			continue
		}
		if reply, err := codec.ParseFetchReply(section); err != nil || h.Correlation != 7 || reply.Count != 0 {
			t.Errorf("%+v %+v %v", h, reply, err)
		}
		break
	}
	_ = p.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Subscriptions may begin at a time, and keep their place in the order of the connection: the reply comes before the records.
func TestSubscribeFromTime(t *testing.T) {
	for _, s := range []codec.TopicSettings{{}, fileSettings()} {
		b := startBroker(t, diskConfig(vfs.NewMem()))
		p := dial(t, b).hello()
		p.create("t", s)
		p.open(1, "t", 0, 1)
		for i := range 10 {
			var w codec.BatchBuilder
			w.Reset(nil, 1<<16)
			w.AddValue(int64(1000*(i+1)), fmt.Appendf(nil, "%d", i))
			p.published(1, 1, uint64(i), w.Finish(codec.NoProducer))
		}
		reply := p.subscribe(2, codec.Subscribe{Topic: "t", From: codec.FromTime, Value: 4500, CreditBytes: 1 << 20})
		if reply.Begin != 4 {
			t.Errorf("%s: begins at %d", s.Storage, reply.Begin)
		}
		values, gaps := p.records(2, 4, 10, false)
		if len(values) != 6 || string(values[0]) != "4" || len(gaps) != 0 {
			t.Errorf("%s: %q, %v", s.Storage, values, gaps)
		}
		p.closeHandle(2)
		if reply := p.subscribe(2, codec.Subscribe{Topic: "t", From: codec.FromTime, Value: 10_001, CreditBytes: 1 << 20}); reply.Begin != 10 {
			t.Errorf("%s: behind the last, it begins at %d", s.Storage, reply.Begin)
		}
	}
}

// What was confirmed of all storages, topics and credentials outlives the broker; the identities of producers never repeat.
func TestBrokerWithDataDir(t *testing.T) {
	mem := vfs.NewMem()
	ids := map[int64]bool{}
	for round := range 3 {
		b, stop := startStoppable(t, diskConfig(mem))
		p := dial(t, b).hello()
		if round == 0 {
			p.create("files", codec.TopicSettings{Storage: codec.StorageFile, Partitions: 3})
			p.create("memory", codec.TopicSettings{Partitions: 2, Overflow: codec.OverflowReject})
			dialJSON(t, b).ask(`{"cmd":"create_topic","topic":"secret","broker_type":"file","user_id":"ann","password":"pencil"}`,
				map[string]any{"status": "ok"})
		}
		p.open(1, "files", 2, 1)
		p.published(1, 1, 0, batchOf(fmt.Appendf(nil, "round %d", round)))
		reply, values := p.fetch(codec.Fetch{Topic: "files", Partition: 2, From: codec.FromEarliest, MaxBytes: 1 << 20})
		for reply.Next < codec.Offset(round+1) {
			var more []string
			reply, more = p.fetch(codec.Fetch{Topic: "files", Partition: 2, From: codec.FromOffset, Value: uint64(reply.Next), MaxBytes: 1 << 20})
			values = append(values, more...)
		}
		if len(values) != round+1 || values[round] != fmt.Sprintf("round %d", round) {
			t.Errorf("round %d: %q", round, values)
		}
		if s := p.describe("memory").Settings; s.Partitions != 2 || s.Overflow != codec.OverflowReject {
			t.Errorf("round %d: %+v", round, s)
		}
		j := dialJSON(t, b)
		// Two at once: they are answered in their order, though the first takes its time.
		wrong := `{"cmd":"join","type":"sub","topic":"secret","user_id":"ann","password":"pen"}`
		right := `{"cmd":"join","type":"sub","topic":"secret","user_id":"ann","password":"pencil"}`
		j.write(wrong + "\n" + right + "\n")
		j.expect(wrong, map[string]any{"status": "error", "code": "not_allowed"})
		j.expect(right, map[string]any{"status": "ok"})
		for range 3 {
			section, _ := p.ask(codec.AppendProducer(nil, 9))
			id, err := codec.ParseProducerReply(section)
			if err != nil || ids[id.ID] {
				t.Errorf("round %d: producer %+v, %v", round, id, err)
			}
			ids[id.ID] = true
		}
		if _, err := NewBroker(diskConfig(mem)); !errors.Is(err, vfs.ErrLocked) {
			t.Errorf("a second broker of the directory: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
