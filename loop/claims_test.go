package loop

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/lightio/lightq/codec"
)

// Sentences of docs/PROTOCOL.md about what is seldom sent: each is tried.

// requestFrames is a valid frame of each type that gets an answer, drafts among them, about handle 1 and topic "claims".
func requestFrames(corr uint32) [][]byte {
	return [][]byte{
		codec.AppendCreate(nil, corr, codec.Create{Topic: "claims"}),
		codec.AppendDescribe(nil, corr, "claims"),
		codec.AppendOpen(nil, corr, 1, codec.Open{Topic: "claims", Epoch: 1}),
		codec.AppendSubscribe(nil, corr, 1, codec.Subscribe{Topic: "claims", Kind: codec.KindSub, From: codec.FromEarliest}),
		codec.AppendClose(nil, corr, 1),
		codec.AppendList(nil, corr, codec.List{}),
		codec.AppendAlter(nil, corr, codec.Create{Topic: "claims"}),
		codec.AppendDelete(nil, corr, "claims"),
		codec.AppendPurge(nil, corr, codec.Purge{Topic: "claims"}),
		codec.AppendStats(nil, corr),
		frameOf(codec.TypeAuth, 0, corr, 0, []byte{0}, nil),
		frameOf(codec.TypeAck, 0, corr, 1, []byte{0}, nil),
		frameOf(codec.TypeFetch, 0, corr, 0, []byte{0}, nil),
	}
}

func TestRequestsNeedACorrelation(t *testing.T) {
	b := startBroker(t, Config{})
	p := dial(t, b)
	p.write(codec.AppendHello(nil, 0, false, codec.Hello{MinVersion: 1, MaxVersion: 1}))
	p.expectError(codec.CodeMalformedFrame)
	p.expectEnd()
	for _, frame := range requestFrames(0) {
		dial(t, b).hello().refused(codec.CodeMalformedFrame, frame)
	}
	if n, _ := b.topics.Count(); n != 0 {
		t.Errorf("%d topics were made", n)
	}
	// Where there is no answer it is not looked at.
	p = dial(t, b).hello()
	p.create("claims", codec.TopicSettings{})
	p.open(1, "claims", 0, 1)
	p.subscribe(2, codec.Subscribe{Topic: "claims"})
	publish, credit := publishFrame(1, 1, 0, batchOf([]byte("x"))), codec.AppendCredit(nil, 2, 1000)
	for _, frame := range [][]byte{publish, credit, codec.AppendHeartbeat(nil)} {
		binary.BigEndian.PutUint32(frame[8:], 77)
	}
	p.write(publish)
	p.confirmed(1)
	p.write(credit)
	p.deliver()
	p.alive()
}

func TestRequestsHaveNoPayload(t *testing.T) {
	b := startBroker(t, Config{})
	frames := append(requestFrames(7), codec.AppendCredit(nil, 1, 5), codec.AppendHeartbeat(nil))
	for _, frame := range frames {
		h := header(frame)
		p := dial(t, b).hello()
		p.write(frameOf(h.Type, h.Flags, h.Correlation, h.Handle, frame[codec.HeaderBytes:], []byte("x")))
		p.expectError(codec.CodeMalformedFrame)
		p.expectEnd()
	}
}

func TestHandleZero(t *testing.T) {
	b := startBroker(t, Config{})
	dial(t, b).hello().create("claims", codec.TopicSettings{})
	for _, c := range []struct {
		code  codec.Code
		frame []byte
	}{
		{codec.CodeMalformedFrame, openFrame(0, codec.Open{Topic: "claims"})},
		{codec.CodeMalformedFrame, subscribeFrame(0, codec.Subscribe{Topic: "claims"})},
		{codec.CodeUnknownHandle, codec.AppendClose(nil, 6, 0)},
		{codec.CodeUnknownHandle, codec.AppendCredit(nil, 0, 5)},
		{codec.CodeUnknownHandle, publishFrame(0, 1, 0, batchOf([]byte("x")))},
	} {
		p := dial(t, b).hello()
		p.write(c.frame)
		p.expectError(c.code)
		p.expectEnd()
	}
}

// The value of subscribe has its meaning by from; an offset with the highest bit is beyond every end.
func TestSubscribeValue(t *testing.T) {
	p := dial(t, startBroker(t, Config{})).hello()
	p.create("claims", codec.TopicSettings{})
	p.refused(codec.CodeOffsetOutOfRange, subscribeFrame(1, codec.Subscribe{Topic: "claims", From: codec.FromOffset, Value: 1 << 63}))
	p.refused(codec.CodeOffsetOutOfRange, subscribeFrame(1, codec.Subscribe{Topic: "claims", From: codec.FromOffset, Value: 1<<64 - 1}))
	for i, from := range []codec.From{codec.FromEarliest, codec.FromLatest} {
		if r := p.subscribe(1, codec.Subscribe{Topic: "claims", From: from, Value: 1<<64 - 1}); r.Begin != 0 {
			t.Errorf("%d: %+v", i, r)
		}
		p.closeHandle(1)
	}
}

func TestStringsAreNotChecked(t *testing.T) {
	b := startBroker(t, Config{})
	p := dial(t, b)
	p.ask(codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "\xff\xfe\x00"}))
	p.alive()
	p.refused(codec.CodeInvalidName, codec.AppendDescribe(nil, 5, "\xff"))
}

// A tag of value 0 is a tag that is not there.
func TestZeroTags(t *testing.T) {
	p := dial(t, startBroker(t, Config{})).hello()
	section := slices.Concat(
		[]byte{0, 6}, []byte("claims"), []byte{0, 0, 0, 0, 0}, // storage, partitions
		[]byte{3},
		[]byte{1, 1, 0},
		[]byte{2, 8, 0, 0, 0, 0, 0, 0, 0, 0},
		[]byte{3, 4, 0, 0, 0, 0},
	)
	answer, _ := p.ask(frameOf(codec.TypeCreate, 0, 7, 0, section, nil))
	r, err := codec.ParseCreateReply(answer)
	want := codec.TopicSettings{
		Storage: codec.StorageQueue, Partitions: 1, Overflow: codec.OverflowBlock, RingBytes: 64 << 20, MaxBatchBytes: codec.DefaultMaxBatchBytes,
	}
	if err != nil || !r.Created || r.Settings != want {
		t.Errorf("%+v, %v", r, err)
	}
}

// Credit is for whole batches, also where the client skips some of their records, and a gap costs none.
func TestCreditOfSkippedRecords(t *testing.T) {
	p := dial(t, startBroker(t, Config{})).hello()
	p.create("claims", codec.TopicSettings{MaxBatchBytes: 1 << 10, RingBytes: 4 << 10, Overflow: codec.OverflowDropOldest})
	p.open(1, "claims", 0, 1)
	four := batchOf(make([]byte, 100), make([]byte, 100), make([]byte, 100), make([]byte, 100))
	p.published(1, 1, 0, four, four)
	size := uint32(len(four))
	p.subscribe(2, codec.Subscribe{Topic: "claims", From: codec.FromOffset, Value: 3, CreditBytes: size})
	if d := p.deliver(); len(d.batches) != 1 || d.batches[0].BaseOffset() != 0 {
		t.Fatalf("%+v", d)
	}
	p.nothingDelivered() // a quarter was wanted, all of it was paid
	p.write(codec.AppendCredit(nil, 2, size))
	if d := p.deliver(); len(d.batches) != 1 || d.batches[0].BaseOffset() != 4 {
		t.Fatalf("%+v", d)
	}
	// Without credit, everything it waits for is dropped; then one batch's worth is granted, and tells the gap too.
	for i := range uint64(20) {
		p.published(1, 1, 2+i, four)
	}
	p.write(codec.AppendCredit(nil, 2, size))
	d := p.deliver()
	if d.Gap.From != 8 || d.Gap.Reason != codec.GapDropped {
		t.Fatalf("%+v", d)
	}
	for len(d.batches) == 0 {
		d = p.deliver()
	}
	if len(d.batches) != 1 || d.batches[0].BaseOffset() < 9 {
		t.Errorf("%+v", d)
	}
	p.nothingDelivered()
}

// Between a close and its reply the handle is closed to the client, and what the broker still sends on it comes.
func TestFramesBehindClose(t *testing.T) {
	b := startBroker(t, Config{})
	admin := dial(t, b).hello()
	admin.create("claims", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	_, batches := numbered(6, 50_000)
	for _, behind := range [][]byte{
		publishFrame(1, 1, 6, batchOf([]byte("x"))), codec.AppendClose(nil, 8, 1), codec.AppendCredit(nil, 1, 5),
	} {
		sub := dial(t, b).hello()
		sub.subscribe(1, codec.Subscribe{Topic: "claims", From: codec.FromLatest})
		p := dial(t, b).hello()
		p.open(1, "claims", 0, 1)
		p.write(publishFrame(1, 1, 0, batches...))
		p.confirmed(5) // the last one waits for room
		p.write(codec.AppendClose(nil, 6, 1))
		p.write(behind)
		p.expectError(codec.CodeUnknownHandle)
		p.expectEnd()
		_ = sub.conn.Close()
		eventually(t, "the consumer to be gone", func() bool { return info(t, b, "claims").Subscriptions == 0 })
	}
	for _, behind := range [][]byte{codec.AppendClose(nil, 8, 1), codec.AppendCredit(nil, 1, 5)} {
		sub := dial(t, b).hello()
		sub.subscribe(1, codec.Subscribe{Topic: "claims"})
		sub.write(append(codec.AppendClose(nil, 6, 1), behind...))
		sub.expect(codec.TypeClose)
		sub.expectError(codec.CodeUnknownHandle)
		sub.expectEnd()
	}
}

// What was sent under an old epoch is answered under it, also behind the reply to the open that ended it.
func TestResultsOfAnOldEpoch(t *testing.T) {
	b := startBroker(t, Config{})
	p, sub := dial(t, b).hello(), dial(t, b).hello()
	p.create("claims", codec.TopicSettings{MaxBatchBytes: 64 << 10, RingBytes: 256 << 10})
	sub.subscribe(1, codec.Subscribe{Topic: "claims"})
	p.open(1, "claims", 0, 1)
	_, batches := numbered(8, 50_000)
	p.write(publishFrame(1, 1, 0, batches...))
	p.confirmed(5) // three wait for room
	p.open(1, "claims", 0, 2)
	p.write(publishFrame(1, 2, 0, batches[5]))
	p.alive()
	sub.write(codec.AppendCredit(nil, 1, 1<<20))
	type result struct {
		epoch  uint32
		number uint64
		code   codec.Code
	}
	var got []result
	for len(got) < 4 {
		_, section, payload := p.expect(codec.TypeConfirm)
		m, err := codec.ParseConfirm(section, payload)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(m.Count) {
			got = append(got, result{m.Epoch, m.First + i, codec.ResultAt(payload, int(i)).Code})
		}
	}
	want := []result{{1, 5, codec.CodeStaleEpoch}, {1, 6, codec.CodeStaleEpoch}, {1, 7, codec.CodeStaleEpoch}, {2, 0, codec.CodeNone}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	sub.records(1, 0, 6, false)
}

// A broker never looks into a batch: records that break the format reach consumers, which take the batch for damaged; varints
// longer than need be are none of that.
func TestRecordsAreTheConsumersToCheck(t *testing.T) {
	p := dial(t, startBroker(t, Config{})).hello()
	p.create("claims", codec.TopicSettings{})
	p.open(1, "claims", 0, 1)
	p.subscribe(2, codec.Subscribe{Topic: "claims", CreditBytes: 1 << 20})
	batch := batchOf([]byte("value"))
	record := batch[codec.BatchHeaderBytes:] // length 11, attributes, timestamp delta, offset delta, key -1, length 5, value, headers
	for i, c := range []struct {
		what  string
		bytes []byte
		good  bool
	}{
		{"as it should be", record, true},
		{"a length in 2 bytes", append([]byte{record[0] | 0x80, 0}, record[1:]...), true},
		{"a length in 10 bytes", append(append([]byte{record[0] | 0x80}, bytes.Repeat([]byte{0x80}, 8)...), append([]byte{0}, record[1:]...)...), true},
		{"a length in 11 bytes", append(append([]byte{record[0] | 0x80}, bytes.Repeat([]byte{0x80}, 9)...), append([]byte{0}, record[1:]...)...), false},
		{"attributes", append([]byte{record[0], 1}, record[2:]...), false},
	} {
		odd := append(slices.Clone(batch[:codec.BatchHeaderBytes]), c.bytes...)
		binary.BigEndian.PutUint32(odd[8:], uint32(len(odd)-12))
		binary.BigEndian.PutUint32(odd[17:], crc32.Checksum(odd[21:], crc32.MakeTable(crc32.Castagnoli)))
		p.write(publishFrame(1, 1, uint64(i), odd))
		confirmed, delivered := false, false
		for !confirmed || !delivered {
			switch h, section, payload := p.next(); h.Type {
			case codec.TypeConfirm:
				p.addResults(section, payload)
				p.confirmed(1)
				confirmed = true
			case codec.TypeDeliver:
				d := p.delivery(h, section, payload)
				rs := d.batches[0].Records()
				ok := rs.Next() && string(rs.Record.Value) == "value" && !rs.Next() && rs.Err() == nil
				if ok != c.good {
					t.Errorf("%s: decodes: %v, %v", c.what, ok, rs.Err())
				}
				delivered = true
			default:
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
		}
	}
}
