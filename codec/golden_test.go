package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// update rewrites the golden files and the examples of docs/PROTOCOL.md that repeat them:
//
//	go test ./codec -run Golden -update
//
// A difference in an existing file is a change of the protocol.
var update = flag.Bool("update", false, "rewrite testdata/golden and the hex examples of docs/PROTOCOL.md")

var goldenID = TopicID{0x4c, 0x51, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}

// An annotator walks bytes and writes them down, one field a line. It knows the layouts from the specification, not from
// the decoders, so that the comments are a second opinion.
type annotator struct {
	b    []byte
	out  strings.Builder
	fail string
}

const noteColumn = 50

func (a *annotator) line(n int, format string, args ...any) []byte {
	if a.fail != "" {
		return make([]byte, n)
	}
	if n > len(a.b) {
		a.fail = fmt.Sprintf("%d bytes are missing for %s", n-len(a.b), fmt.Sprintf(format, args...))
		return make([]byte, n)
	}
	v := a.b[:n]
	a.b = a.b[n:]
	note := "# " + fmt.Sprintf(format, args...)
	for i := 0; i < n || i == 0; i += 16 {
		row := hex.EncodeToString(v[i:min(i+16, n)])
		if i > 0 {
			note = ""
		}
		a.out.WriteString(strings.TrimRight(fmt.Sprintf("%-*s%s", noteColumn, spaced(row), note), " ") + "\n")
	}
	return v
}

func spaced(row string) string {
	var parts []string
	for i := 0; i < len(row); i += 2 {
		parts = append(parts, row[i:i+2])
	}
	return strings.Join(parts, " ")
}

func (a *annotator) peek(n int) uint64 {
	var v uint64
	for i := range min(n, len(a.b)) {
		v = v<<8 | uint64(a.b[i])
	}
	return v
}

func (a *annotator) uint(n int, what string) uint64 {
	v := a.peek(n)
	a.line(n, "%s %d", what, v)
	return v
}

func (a *annotator) int(n int, what string) int64 {
	v := int64(a.peek(n)<<(64-8*n)) >> (64 - 8*n)
	a.line(n, "%s %d", what, v)
	return v
}

func (a *annotator) str(what string) {
	n := a.uint(2, what+", bytes:")
	if n > 0 {
		a.line(int(n), "  %q", a.b[:min(int(n), len(a.b))])
	}
}

// tags walks tagged fields: names[tag] is the field's name and its size in bytes.
func (a *annotator) tags(names map[uint64]string) {
	count, n := binary.Uvarint(a.b)
	a.line(max(n, 1), "tagged fields: %d", count)
	for range count {
		tag, n := binary.Uvarint(a.b)
		a.line(max(n, 1), "  tag %d", tag)
		size, n := binary.Uvarint(a.b)
		a.line(max(n, 1), "  bytes: %d", size)
		switch {
		case names[tag] == "gap":
			a.uint(8, "  gap from")
			a.uint(8, "  gap next")
			a.uint(1, "  gap reason")
		case size == 1 || size == 2 || size == 4 || size == 8:
			a.uint(int(size), "  "+names[tag])
		default:
			a.line(int(size), "  unknown")
		}
	}
}

// frame walks a fixed header and leaves the header section and payload to section.
func (a *annotator) frame(section func(a *annotator, payload int)) {
	length := a.uint(4, "length")
	t := Type(a.peek(1))
	a.line(1, "type %d: %s", t, t)
	flags := Flags(a.peek(1))
	a.line(1, "flags%s%s", map[bool]string{true: " reply"}[flags&FlagReply != 0], map[bool]string{true: " ignorable"}[flags&FlagIgnorable != 0])
	size := a.uint(2, "header size")
	a.uint(4, "correlation")
	a.uint(4, "handle")
	section(a, int(length)-12-int(size))
}

func (a *annotator) varint(what string) int64 {
	v, n := binary.Varint(a.b)
	a.line(max(n, 1), "%s %d", what, v)
	return v
}

func (a *annotator) data(what string) {
	if n := a.varint(what + ", bytes:"); n > 0 {
		a.line(int(n), "  %q", a.b[:min(int(n), len(a.b))])
	}
}

// batch walks one record batch whose records are not compressed.
func (a *annotator) batch() {
	a.int(8, "base offset")
	a.int(4, "batch length")
	a.int(4, "leader epoch")
	a.int(1, "magic")
	a.line(4, "CRC-32C of what follows")
	a.uint(2, "attributes")
	a.int(4, "last offset delta")
	a.int(8, "base timestamp")
	a.int(8, "max timestamp")
	a.int(8, "producer id")
	a.int(2, "producer epoch")
	a.int(4, "base sequence")
	for range a.int(4, "record count") {
		a.varint("record length")
		a.int(1, "  attributes")
		a.varint("  timestamp delta")
		a.varint("  offset delta")
		a.data("  key")
		a.data("  value")
		for range a.varint("  headers") {
			a.data("    key")
			a.data("    value")
		}
	}
}

var topicTags = map[uint64]string{
	1: "overflow", 2: "ring bytes", 3: "max batch bytes",
	4: "sync", 5: "sync interval, ms", 6: "retention bytes", 7: "retention time, ms", 8: "segment bytes",
}

func (a *annotator) settings() {
	a.uint(1, "storage")
	a.uint(4, "partitions")
	a.tags(topicTags)
}

// A goldenCase is a message, its encoding and the layout of that.
type goldenCase struct {
	name    string
	message any
	encode  func(dst []byte) []byte
	decode  func(h Header, section, payload []byte) (any, error)
	layout  func(a *annotator, payload int)
}

// parsed fits a Parse function of a header section alone.
func parsed[T any](parse func([]byte) (T, error)) func(Header, []byte, []byte) (any, error) {
	return func(_ Header, section, payload []byte) (any, error) {
		if len(payload) != 0 {
			return nil, fmt.Errorf("a payload of %d bytes", len(payload))
		}
		return parse(section)
	}
}

// withPayload is a message whose payload is looked at as well.
type withPayload struct {
	Message any
	Payload string
	Results []Result
}

func goldenValueBatch() []byte {
	var w BatchBuilder
	w.Reset(nil, 1<<20)
	w.AddValue(1_700_000_000_000, []byte("hello"))
	w.AddValue(1_700_000_000_001, []byte("world"))
	return w.Finish(NoProducer)
}

// purgedUpTo is the batch behind a purge, as it is delivered.
func purgedUpTo(base Offset) []byte {
	var w BatchBuilder
	w.Reset(nil, 1<<20)
	w.AddValue(1_700_000_000_002, []byte("new"))
	b := w.Finish(NoProducer)
	Batch(b).SetBase(base, 0)
	return b
}

func goldenCases() []goldenCase {
	var cases []goldenCase
	add := func(
		name string, message any, encode func([]byte) []byte,
		decode func(Header, []byte, []byte) (any, error), layout func(*annotator, int),
	) {
		cases = append(cases, goldenCase{name, message, encode, decode, layout})
	}

	hello := func(name string, reply bool, m Hello) {
		add(name, m, func(dst []byte) []byte { return AppendHello(dst, 1, reply, m) }, parsed(ParseHello), func(a *annotator, _ int) {
			a.uint(2, "min version")
			a.uint(2, "max version")
			a.line(8, "features")
			a.str("name")
			a.tags(map[uint64]string{1: "max frame bytes", 2: "max batch bytes", 3: "heartbeat, ms"})
		})
	}
	hello("hello", false, Hello{MinVersion: 1, MaxVersion: 1, Name: "example/1"})
	hello("hello_reply", true, Hello{
		MinVersion: 1, MaxVersion: 1, Name: "lightq",
		MaxFrameBytes: 4<<20 + 65536, MaxBatchBytes: DefaultMaxBatchBytes, HeartbeatMillis: 15000,
	})

	withSettings := func(a *annotator, _ int) {
		a.str("topic")
		a.settings()
	}
	settingsReply := func(a *annotator, _ int) {
		a.line(16, "topic id")
		a.uint(1, "created")
		a.settings()
	}
	topicName := func(a *annotator, _ int) {
		a.str("topic")
		a.tags(nil)
	}
	create := func(name string, m Create) {
		add(name, m, func(dst []byte) []byte { return AppendCreate(dst, 2, m) }, parsed(ParseCreate), withSettings)
	}
	create("create", Create{Topic: "orders", Settings: TopicSettings{Storage: StorageQueue, Partitions: 1}})
	full := TopicSettings{Storage: StorageQueue, Partitions: 4, Overflow: OverflowReject, RingBytes: 64 << 20, MaxBatchBytes: DefaultMaxBatchBytes}
	create("create_tags", Create{Topic: "orders", Settings: full})
	create("create_file", Create{Topic: "ledger", Settings: TopicSettings{
		Storage: StorageFile, Partitions: 2, RingBytes: 16 << 20, Sync: SyncInterval, SyncMillis: 5,
		RetentionBytes: 1 << 40, RetentionMillis: RetentionUnlimited, SegmentBytes: 64 << 20,
	}})
	createReply := CreateReply{ID: goldenID, Created: true, Settings: TopicSettings{
		Storage: StorageQueue, Partitions: 1, Overflow: OverflowBlock, RingBytes: 64 << 20, MaxBatchBytes: DefaultMaxBatchBytes,
	}}
	add("create_reply", createReply, func(dst []byte) []byte { return AppendCreateReply(dst, 2, createReply) }, parsed(ParseCreateReply),
		settingsReply)

	add("describe", "orders", func(dst []byte) []byte { return AppendDescribe(dst, 3, "orders") },
		parsed(func(b []byte) (string, error) { return ParseTopicRequest(TypeDescribe, b) }), topicName)
	description := Description{ID: goldenID, Settings: full, Partitions: []PartitionInfo{
		{
			Start: 0, High: 2, Next: 2, Bytes: 149, Subscriptions: 1, Publishers: 1,
			RecordsIn: 2, BytesIn: 85, RecordsOut: 2, BytesOut: 85,
		},
		{
			Start: 512, High: 1024, Next: 1024, Bytes: 65536, DroppedUnread: 512,
			RecordsIn: 1024, BytesIn: 122880, RecordsOut: 256, BytesOut: 30720, QueueSize: 256,
			Durable: 1000, JournalBytes: 1 << 20, Segments: 2, State: PartitionNoSpace, Damaged: 1,
		},
	}}
	add("describe_reply", description, func(dst []byte) []byte { return AppendDescription(dst, 3, description) },
		func(_ Header, section, payload []byte) (any, error) { return ParseDescription(section, payload) },
		func(a *annotator, _ int) {
			a.line(16, "topic id")
			size := a.uint(2, "bytes of an entry")
			count := a.uint(4, "entries")
			a.settings()
			for i := range count {
				for _, what := range []string{"start", "high", "next", "bytes", "dropped unread"} {
					a.uint(8, fmt.Sprintf("partition %d: %s", i, what))
				}
				a.uint(4, "  subscriptions")
				a.uint(4, "  publishers")
				for _, what := range []string{"records in", "bytes in", "records out", "bytes out", "queue size"} {
					a.uint(8, "  "+what)
				}
				a.uint(8, "  durable")
				a.uint(8, "  journal bytes")
				a.uint(4, "  segments")
				a.uint(1, "  state")
				a.uint(4, "  damaged places")
				if size > 113 {
					a.line(int(size)-113, "  unknown")
				}
			}
		})

	list := func(name string, m List) {
		add(name, m, func(dst []byte) []byte { return AppendList(dst, 8, m) }, parsed(ParseList), func(a *annotator, _ int) {
			a.str("after")
			a.uint(4, "limit")
			a.tags(nil)
		})
	}
	list("list", List{})
	list("list_after", List{After: "orders", Limit: 100})
	listReply := ListReply{More: true, Topics: []TopicEntry{
		{Name: "events", ID: TopicID{0x4c, 0x51, 0x10}, Settings: TopicSettings{
			Storage: StorageDirect, Partitions: 1, Overflow: OverflowDropOldest, RingBytes: 64 << 20, MaxBatchBytes: DefaultMaxBatchBytes,
		}},
		{Name: "orders", ID: goldenID, Settings: full},
	}}
	add("list_reply", listReply, func(dst []byte) []byte { return AppendListReply(dst, 8, listReply) },
		func(_ Header, section, payload []byte) (any, error) { return ParseListReply(section, payload) },
		func(a *annotator, _ int) {
			count := a.uint(4, "entries")
			a.uint(1, "more")
			a.tags(nil)
			for range count {
				size := a.uint(2, "bytes of the entry that follow:")
				left := len(a.b)
				a.str("  name")
				a.line(16, "  topic id")
				a.settings()
				if a.fail == "" && left-len(a.b) != int(size) {
					a.fail = fmt.Sprintf("the entry has %d bytes, its size says %d", left-len(a.b), size)
				}
			}
		})

	alter := Create{Topic: "orders", Settings: TopicSettings{Partitions: 8, RingBytes: 128 << 20}}
	add("alter", alter, func(dst []byte) []byte { return AppendAlter(dst, 9, alter) }, parsed(ParseCreate), withSettings)
	alterReply := CreateReply{ID: goldenID, Settings: TopicSettings{
		Storage: StorageQueue, Partitions: 8, Overflow: OverflowReject, RingBytes: 128 << 20, MaxBatchBytes: DefaultMaxBatchBytes,
	}}
	add("alter_reply", alterReply, func(dst []byte) []byte { return AppendAlterReply(dst, 9, alterReply) }, parsed(ParseCreateReply),
		settingsReply)

	purge := func(name string, m Purge) {
		add(name, m, func(dst []byte) []byte { return AppendPurge(dst, 10, m) }, parsed(ParsePurge), func(a *annotator, _ int) {
			a.str("topic")
			a.uint(4, "partition")
			a.tags(nil)
		})
	}
	purge("purge", Purge{Topic: "orders", Partition: 1})
	purge("purge_all", Purge{Topic: "orders", Partition: AllPartitions})
	add("purge_reply", uint64(512), func(dst []byte) []byte { return AppendPurgeReply(dst, 10, 512) }, parsed(ParsePurgeReply),
		func(a *annotator, _ int) {
			a.uint(8, "records")
			a.tags(nil)
		})

	add("delete", "orders", func(dst []byte) []byte { return AppendDelete(dst, 11, "orders") },
		parsed(func(b []byte) (string, error) { return ParseTopicRequest(TypeDelete, b) }), topicName)

	stats := []Stat{
		{"connections", 3},
		{"topics", 2},
		{"partitions", 5},
		{"uptime_seconds", 3600},
		{"slab_bytes_in_use", 1060864},
		{"slab_bytes_free", 65536},
		{"slabs_in_use_4096", 3},
		{"slabs_in_use_1048576", 1},
	}
	add("stats_reply", stats, func(dst []byte) []byte { return AppendStatsReply(dst, 12, stats) },
		func(_ Header, section, payload []byte) (any, error) { return ParseStatsReply(section, payload) },
		func(a *annotator, _ int) {
			count := a.uint(4, "entries")
			a.tags(nil)
			for range count {
				a.str("name")
				a.uint(8, "  value")
			}
		})

	openFrame := Open{Topic: "orders", Partition: 0, Epoch: 1, Level: LevelAppended}
	add("open", openFrame, func(dst []byte) []byte { return AppendOpen(dst, 4, 1, openFrame) }, parsed(ParseOpen), func(a *annotator, _ int) {
		a.str("topic")
		a.uint(4, "partition")
		a.uint(4, "epoch")
		a.uint(1, "level")
		a.tags(nil)
	})
	openReply := OpenReply{
		ID: goldenID, Partitions: 1, WindowBytes: DefaultWindowBytes, MaxBatchBytes: DefaultMaxBatchBytes, Level: LevelAppended, Next: 0,
	}
	add("open_reply", openReply, func(dst []byte) []byte { return AppendOpenReply(dst, 4, 1, openReply) }, parsed(ParseOpenReply),
		func(a *annotator, _ int) {
			a.line(16, "topic id")
			a.uint(4, "partitions")
			a.uint(4, "window bytes")
			a.uint(4, "max batch bytes")
			a.uint(1, "level")
			a.uint(8, "next")
			a.tags(nil)
		})

	batch := goldenValueBatch()
	publish := Publish{Epoch: 1, First: 0, Count: 1}
	add("publish", withPayload{Message: publish, Payload: string(batch)},
		func(dst []byte) []byte { return append(AppendPublish(dst, 1, publish, len(batch)), batch...) },
		func(_ Header, section, payload []byte) (any, error) {
			m, err := ParsePublish(section)
			return withPayload{Message: m, Payload: string(payload)}, err
		},
		func(a *annotator, payload int) {
			a.uint(4, "epoch")
			a.uint(8, "first batch's number")
			count := a.uint(2, "batches")
			a.tags(nil)
			for range count {
				a.batch()
			}
		})

	results := []Result{{Base: 2}, {Code: CodeOverflow}, {Code: CodeStaleEpoch}}
	confirm := func(name string, m Confirm, results []Result) {
		add(name, withPayload{Message: m, Results: results},
			func(dst []byte) []byte {
				dst = AppendConfirm(dst, 1, m)
				for _, r := range results {
					dst = AppendResult(dst, r)
				}
				return dst
			},
			func(_ Header, section, payload []byte) (any, error) {
				m, err := ParseConfirm(section, payload)
				if err != nil {
					return nil, err
				}
				v := withPayload{Message: m}
				for i := range int(m.Count) {
					v.Results = append(v.Results, ResultAt(payload, i))
				}
				return v, nil
			},
			func(a *annotator, payload int) {
				a.uint(4, "epoch")
				first := a.uint(8, "first batch's number")
				count := a.uint(4, "results")
				a.tags(nil)
				for i := range count {
					a.uint(8, fmt.Sprintf("batch %d: base offset", first+i))
					code := Code(a.peek(2))
					a.line(2, "  code %d: %s", code, code)
				}
			})
	}
	confirm("confirm", Confirm{Epoch: 1, First: 0, Count: 1}, []Result{{Base: 0}})
	confirm("confirm_refused", Confirm{Epoch: 1, First: 1, Count: 3}, results)

	subscribe := func(name string, m Subscribe) {
		add(name, m, func(dst []byte) []byte { return AppendSubscribe(dst, 5, 2, m) }, parsed(ParseSubscribe), func(a *annotator, _ int) {
			a.str("topic")
			a.uint(4, "partition")
			a.uint(1, "kind")
			a.uint(1, "from")
			a.uint(8, "value")
			a.uint(4, "credit bytes")
			a.str("name")
			a.tags(nil)
		})
	}
	subscribe("subscribe", Subscribe{Topic: "orders", Partition: 0, Kind: KindSub, From: FromEarliest, CreditBytes: DefaultWindowBytes})
	subscribe("subscribe_offset", Subscribe{
		Topic: "orders", Partition: 3, Kind: KindPull, From: FromOffset, Value: 4096, CreditBytes: 65536, Name: "billing",
	})
	subscribeReply := SubscribeReply{ID: goldenID, Partitions: 1, Start: 0, High: 2, Begin: 0}
	add("subscribe_reply", subscribeReply, func(dst []byte) []byte { return AppendSubscribeReply(dst, 5, 2, subscribeReply) },
		parsed(ParseSubscribeReply), func(a *annotator, _ int) {
			a.line(16, "topic id")
			a.uint(4, "partitions")
			a.uint(8, "start")
			a.uint(8, "high")
			a.uint(8, "begin")
			a.tags(nil)
		})

	deliver := func(name string, m Deliver, payload []byte) {
		add(name, withPayload{Message: m, Payload: string(payload)},
			func(dst []byte) []byte { return append(AppendDeliver(dst, 2, &m, len(payload)), payload...) },
			func(_ Header, section, payload []byte) (any, error) {
				m, err := ParseDeliver(section)
				return withPayload{Message: m, Payload: string(payload)}, err
			},
			func(a *annotator, payload int) {
				a.uint(8, "start")
				a.uint(8, "high")
				a.uint(8, "append time, ms")
				count := a.uint(2, "batches")
				a.tags(map[uint64]string{1: "gap"})
				for range count {
					a.batch()
				}
			})
	}
	delivered := bytes.Clone(batch)
	Batch(delivered).SetBase(0, 0)
	deliver("deliver", Deliver{Start: 0, High: 2, AppendMillis: 1_700_000_000_002, Count: 1}, delivered)
	deliver("deliver_purged", Deliver{
		Start: 1024, High: 1025, AppendMillis: 1_700_000_000_002, Count: 1, Gap: Gap{From: 600, Next: 1024, Reason: GapPurged},
	}, purgedUpTo(1024))
	deliver("deliver_gap", Deliver{Start: 512, High: 512, Gap: Gap{From: 2, Next: 512, Reason: GapDropped}}, nil)

	fetch := func(name string, m Fetch) {
		add(name, m, func(dst []byte) []byte { return AppendFetch(dst, 13, m) }, parsed(ParseFetch), func(a *annotator, _ int) {
			a.str("topic")
			a.uint(4, "partition")
			a.uint(1, "from")
			a.uint(8, "value")
			a.uint(8, "limit")
			a.uint(4, "max bytes")
			a.uint(4, "wait, ms")
			a.tags(nil)
		})
	}
	fetch("fetch", Fetch{Topic: "orders", Partition: 1, From: FromOffset, Value: 2, MaxBytes: 1 << 20, WaitMillis: 500})
	fetch("fetch_time", Fetch{Topic: "orders", From: FromTime, Value: 1_700_000_000_000, Limit: 4096, MaxBytes: 65536})
	fetchReply := func(name string, m FetchReply, payload []byte) {
		add(name, withPayload{Message: m, Payload: string(payload)},
			func(dst []byte) []byte { return append(AppendFetchReply(dst, 13, &m, len(payload)), payload...) },
			func(_ Header, section, payload []byte) (any, error) {
				m, err := ParseFetchReply(section)
				return withPayload{Message: m, Payload: string(payload)}, err
			},
			func(a *annotator, payload int) {
				a.uint(8, "start")
				a.uint(8, "high")
				a.uint(8, "next")
				a.uint(8, "append time, ms")
				count := a.uint(2, "batches")
				a.tags(map[uint64]string{1: "gap"})
				for range count {
					a.batch()
				}
			})
	}
	fetchReply("fetch_reply", FetchReply{Start: 0, High: 2, Next: 2, AppendMillis: 1_700_000_000_002, Count: 1}, delivered)
	fetchReply("fetch_reply_gap", FetchReply{Start: 0, High: 900, Next: 512, Gap: Gap{From: 2, Next: 512, Reason: GapDamaged}}, nil)
	add("producer_reply", ProducerReply{ID: 1000, Epoch: 0},
		func(dst []byte) []byte { return AppendProducerReply(dst, 14, ProducerReply{ID: 1000}) },
		parsed(ParseProducerReply), func(a *annotator, _ int) {
			a.uint(8, "producer id")
			a.uint(2, "producer epoch")
			a.tags(nil)
		})

	add("credit", uint32(85), func(dst []byte) []byte { return AppendCredit(dst, 2, 85) }, parsed(ParseCredit), func(a *annotator, _ int) {
		a.uint(4, "bytes")
		a.tags(nil)
	})
	empty := func(name string, t Type, encode func([]byte) []byte) {
		add(name, nil, encode, func(_ Header, section, _ []byte) (any, error) { return nil, ParseEmpty(t, section) },
			func(a *annotator, _ int) { a.tags(nil) })
	}
	empty("heartbeat", TypeHeartbeat, AppendHeartbeat)
	empty("delete_reply", TypeDelete, func(dst []byte) []byte { return AppendDeleteReply(dst, 11) })
	empty("stats", TypeStats, func(dst []byte) []byte { return AppendStats(dst, 12) })
	empty("producer", TypeProducer, func(dst []byte) []byte { return AppendProducer(dst, 14) })
	empty("close", TypeClose, func(dst []byte) []byte { return AppendClose(dst, 6, 2) })
	empty("close_reply", TypeClose, func(dst []byte) []byte { return AppendCloseReply(dst, 6, 2) })

	goAway := GoAway{Code: CodeDraining, DrainMillis: 5000, Reason: "the broker is stopping"}
	add("go_away", goAway, func(dst []byte) []byte { return AppendGoAway(dst, goAway) }, parsed(ParseGoAway), func(a *annotator, _ int) {
		code := Code(a.peek(2))
		a.line(2, "code %d: %s", code, code)
		a.uint(4, "drain, ms")
		a.str("reason")
		a.tags(nil)
	})
	wireError := func(name string, corr, handle uint32, e *WireError) {
		add(name, e, func(dst []byte) []byte { return AppendError(dst, corr, handle, e) }, parsed(ParseError), func(a *annotator, _ int) {
			code := Code(a.peek(2))
			a.line(2, "code %d: %s", code, code)
			a.str("detail")
			a.tags(map[uint64]string{1: "start", 2: "next"})
		})
	}
	wireError("error_range", 13, 0, &WireError{
		Code: CodeOffsetOutOfRange, Detail: "offset 99 is not kept", Range: Range{Start: 100, Next: 200},
	})
	wireError("error", 7, 0, Errorf(CodeUnknownTopic, "there is no topic orders"))
	wireError("error_handle", 0, 2, Errorf(CodeSlowConsumer, "the ring was full behind it"))
	wireError("error_deleted", 0, 2, Errorf(CodeTopicDeleted, "topic orders was deleted"))
	wireError("error_fatal", 0, 0, &WireError{Code: CodeMalformedFrame})
	return cases
}

// goldenBatches are batches alone.
func goldenBatches() map[string][]byte {
	build := func(m BatchMeta, add func(w *BatchBuilder)) []byte {
		var w BatchBuilder
		w.Reset(nil, 1<<20)
		add(&w)
		return w.Finish(m)
	}
	return map[string][]byte{
		"batch_value": goldenValueBatch(),
		"batch_headers": build(NoProducer, func(w *BatchBuilder) {
			headers := []RecordHeader{{Key: "trace", Value: []byte{1, 2}}, {Key: "null"}, {Key: "", Value: []byte{}}}
			w.Add(1_700_000_000_000, []byte("k"), []byte("v"), headers)
			w.Add(1_699_999_999_000, nil, nil, nil)              // null key, null value, an earlier time
			w.Add(1_700_000_000_100, []byte{}, []byte{}, nil)    // empty key, empty value
			w.AddValue(1_700_000_000_100, []byte("value alone")) // after records of other shapes
		}),
		"batch_idempotent": build(BatchMeta{ProducerID: 77, ProducerEpoch: 3, BaseSequence: 1000}, func(w *BatchBuilder) {
			w.AddValue(1_700_000_000_000, []byte("once"))
		}),
	}
}

func goldenPath(name string) string { return filepath.Join("testdata", "golden", name+".hex") }

// readGolden returns the bytes of a golden file and its text.
func readGolden(t testing.TB, name string) (data []byte, text string) {
	t.Helper()
	raw, err := os.ReadFile(goldenPath(name))
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(string(raw), "\n") {
		code, _, _ := strings.Cut(line, "#")
		part, err := hex.DecodeString(strings.Join(strings.Fields(code), ""))
		if err != nil {
			t.Fatalf("%s:%d: %v", goldenPath(name), i+1, err)
		}
		data = append(data, part...)
	}
	return data, string(raw)
}

// checkGolden compares the bytes and the annotated text with the file, or writes it.
func checkGolden(t *testing.T, name string, encoded []byte, walk func(a *annotator)) []byte {
	t.Helper()
	a := annotator{b: encoded}
	walk(&a)
	if a.fail != "" || len(a.b) != 0 {
		t.Fatalf("the layout does not match the bytes: %s, %d bytes left", a.fail, len(a.b))
	}
	if *update {
		if err := os.WriteFile(goldenPath(name), []byte(a.out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, text := readGolden(t, name)
	if !bytes.Equal(data, encoded) {
		t.Fatalf("encoded:\n%sgolden:\n%s", a.out.String(), text)
	}
	if a.out.String() != text {
		t.Fatalf("the comments of %s are not those of the layout:\n%s", goldenPath(name), a.out.String())
	}
	return data
}

func TestGoldenFrames(t *testing.T) {
	names := map[string]bool{}
	types := map[Type]bool{}
	for _, c := range goldenCases() {
		names[c.name] = true
		types[Type(c.encode(nil)[4])] = true
		t.Run(c.name, func(t *testing.T) {
			// Behind other bytes, as frames are in a buffer.
			encoded := c.encode([]byte("before"))
			if !bytes.HasPrefix(encoded, []byte("before")) {
				t.Fatalf("the encoder changed what stood in front: %x", encoded[:6])
			}
			data := checkGolden(t, c.name, encoded[6:], func(a *annotator) { a.frame(c.layout) })

			h, err := ParseHeader(data, len(data))
			if err != nil {
				t.Fatal(err)
			}
			if h.FrameBytes() != len(data) {
				t.Fatalf("the header says %d bytes, there are %d", h.FrameBytes(), len(data))
			}
			section, payload := data[HeaderBytes:][:h.HeaderSize], data[HeaderBytes+int(h.HeaderSize):]
			got, err := c.decode(h, section, payload)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, c.message) {
				t.Fatalf("decoded %+v, want %+v", got, c.message)
			}
		})
	}
	for _, info := range Types[1:] {
		if types[info.Type] == info.Reserved {
			t.Errorf("frame type %s: reserved is %v, a golden file of it is there: %v", info.Type, info.Reserved, types[info.Type])
		}
	}
	for name := range goldenBatches() {
		names[name] = true
	}
	files, err := filepath.Glob(goldenPath("*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".hex"); !names[name] {
			t.Errorf("no test makes %s", file)
		}
	}
}

// flatRecord is a record with its headers laid open.
type flatRecord struct {
	Offset     Offset
	Timestamp  int64
	Key, Value []byte
	Headers    []RecordHeader
}

// flatten copies what an iterator yields, and returns its error.
func flatten(rs Records) (list []flatRecord, err error) {
	for rs.Next() {
		list = append(list, flat(&rs.Record))
	}
	return list, rs.Err()
}

func flat(r *Record) flatRecord {
	v := flatRecord{Offset: r.Offset, Timestamp: r.Timestamp, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
	for key, value := range r.Headers {
		v.Headers = append(v.Headers, RecordHeader{Key: string(key), Value: bytes.Clone(value)})
	}
	return v
}

func TestGoldenBatches(t *testing.T) {
	want := map[string][]flatRecord{
		"batch_value": {
			{Offset: 0, Timestamp: 1_700_000_000_000, Value: []byte("hello")},
			{Offset: 1, Timestamp: 1_700_000_000_001, Value: []byte("world")},
		},
		"batch_headers": {
			{
				Offset: 0, Timestamp: 1_700_000_000_000, Key: []byte("k"), Value: []byte("v"),
				Headers: []RecordHeader{{Key: "trace", Value: []byte{1, 2}}, {Key: "null"}, {Key: "", Value: []byte{}}},
			},
			{Offset: 1, Timestamp: 1_699_999_999_000},
			{Offset: 2, Timestamp: 1_700_000_000_100, Key: []byte{}, Value: []byte{}},
			{Offset: 3, Timestamp: 1_700_000_000_100, Value: []byte("value alone")},
		},
		"batch_idempotent": {{Offset: 0, Timestamp: 1_700_000_000_000, Value: []byte("once")}},
	}
	for name, encoded := range goldenBatches() {
		t.Run(name, func(t *testing.T) {
			data := checkGolden(t, name, encoded, func(a *annotator) { a.batch() })
			b, rest, err := NextBatch(data)
			if err != nil || len(rest) != 0 {
				t.Fatal(err, len(rest))
			}
			if err := CheckBatch(b, len(b)); err != nil {
				t.Fatal(err)
			}
			got, err := flatten(b.Records())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want[name]) {
				t.Fatalf("records %+v, want %+v", got, want[name])
			}
		})
	}

	b := Batch(goldenBatches()["batch_idempotent"])
	if b.ProducerID() != 77 || b.ProducerEpoch() != 3 || b.BaseSequence() != 1000 || b.LeaderEpoch() != -1 || b.BaseOffset() != 0 ||
		b.NextOffset() != 1 || b.Compression() != CompressionNone || b.MaxTimestamp() != 1_700_000_000_000 {
		t.Errorf("fields of the idempotent batch: %x", []byte(b))
	}
}

// everyGolden yields the bytes of all golden files, by name.
func everyGolden(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, c := range goldenCases() {
		all[c.name], _ = readGolden(t, c.name)
	}
	for name := range goldenBatches() {
		all[name], _ = readGolden(t, name)
	}
	return all
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
