package client

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/lightio/lightq/topic/idempotence"
)

// The batch is Kafka's, byte for byte, in the client's hands, on the wire and in the journal's files. What says so is not our own
// code: franz-go's message definitions and its client decode what our segments hold, and what its client encodes is stored by our
// journal and read by our client.

// interopRecord is a record as all three libraries see it. nil and empty differ.
type interopRecord struct {
	Offset     codec.Offset
	Timestamp  int64 // milliseconds since the Unix epoch
	Key, Value []byte
	Headers    []interopHeader
}

type interopHeader struct {
	Key   string
	Value []byte
}

// interopRecords are records of every shape.
func interopRecords() []interopRecord {
	const at = 1_790_000_000_000
	text := []byte(strings.Repeat("a value that gets smaller; ", 40))
	records := []interopRecord{
		{Timestamp: at, Value: text},
		{Timestamp: at, Key: []byte("key"), Value: text},
		{Timestamp: at + 1, Key: []byte{}, Value: []byte{}},
		{Timestamp: at - 5000, Key: []byte("deleted"), Value: nil},
		{Timestamp: at + 86_400_000, Value: []byte{0}},
		{Timestamp: 0, Key: bytes.Repeat([]byte{0xff, 0}, 300), Value: text},
		{Timestamp: at, Value: text, Headers: []interopHeader{{"trace", []byte("4711")}}},
		{Timestamp: at, Key: []byte("k"), Value: text, Headers: []interopHeader{
			{"", []byte{}}, {"null", nil}, {"twice", []byte("1")}, {"twice", []byte("2")}, {"größe", text},
		}},
	}
	for i := range 200 {
		records = append(records, interopRecord{Timestamp: at + int64(i), Value: fmt.Appendf(nil, "value %d of many that are alike", i)})
	}
	return records
}

// number gives records the offsets from base on.
func number(records []interopRecord, base codec.Offset) []interopRecord {
	records = slices.Clone(records)
	for i := range records {
		records[i].Offset = base + codec.Offset(i)
	}
	return records
}

var everyCompression = append([]codec.Compression{codec.CompressionNone}, allCompressions...)

// makeInteropBatch makes a batch as a Producer does.
func makeInteropBatch(t *testing.T, records []interopRecord, c codec.Compression, meta codec.BatchMeta) codec.Batch {
	t.Helper()
	var w codec.BatchBuilder
	w.Reset(nil, 1<<20)
	for _, r := range records {
		var headers []codec.RecordHeader
		for _, h := range r.Headers {
			headers = append(headers, codec.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if !w.Add(r.Timestamp, r.Key, r.Value, headers) {
			t.Fatal("the records do not fit")
		}
	}
	b := codec.Batch(w.Finish(meta))
	if c == codec.CompressionNone {
		return b
	}
	section := b[codec.BatchHeaderBytes:]
	packed, smaller := new(compressor).append(make([]byte, codec.BatchHeaderBytes, codec.BatchHeaderBytes+compressedRoom(len(section))), c, section)
	if !smaller {
		t.Fatalf("%d bytes do not get smaller with %s", len(section), compressionName(c))
	}
	codec.FinishBatch(packed, c, b.RecordCount(), b.BaseTimestamp(), b.MaxTimestamp(), meta)
	return packed
}

// store appends batches to a journal in a directory of its own, closes it, and returns the bytes of all batches as its segment files
// have them, with the log opened again to read from.
func store(t *testing.T, batches []codec.Batch) (stored []byte, l *journal.Log) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "0")
	syncers, readers := journal.NewSyncers(2), journal.NewReaders(1, 4)
	t.Cleanup(syncers.Close)
	t.Cleanup(readers.Close)
	opts := journal.Options{Topic: journal.TopicID{1}, Syncers: syncers, Readers: readers, SegmentBytes: 64 << 10}
	l, err := journal.Open(vfs.OS{}, dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		if err := codec.CheckBatch(b, 1<<20); err != nil {
			t.Fatalf("a batch is not valid: %v", err)
		}
		b = slices.Clone(b)
		b.SetBase(l.Next(), 0)
		if err := l.Append([][]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := journal.Segments(vfs.OS{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := journal.Inspect(vfs.OS{}, name, journal.Inspection{
			Batch:  func(_ journal.Group, b codec.Batch) { stored = append(stored, b...) },
			Damage: func(e *journal.CorruptionError, _, _ bool) { t.Error(e) },
		}); err != nil {
			t.Fatal(err)
		}
	}
	l, err = journal.Open(vfs.OS{}, dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return stored, l
}

// kgoConsume lets franz-go's client consume so many records of a partition that holds the bytes given.
func kgoConsume(t *testing.T, log []byte, next codec.Offset, from codec.Offset) []*kgo.Record {
	t.Helper()
	k := newKafkaBroker(t, log, next)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(k.addr()), kgo.FetchMaxWait(100*time.Millisecond),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{kafkaTopic: {0: kgo.NewOffset().At(int64(from))}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var got []*kgo.Record
	for codec.Offset(len(got)) < next-from {
		fetches := client.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			t.Fatalf("franz-go cannot consume: %v", e.Err)
		}
		got = append(got, fetches.Records()...)
	}
	return got
}

func fromKgo(records []*kgo.Record) (list []interopRecord) {
	for _, r := range records {
		x := interopRecord{Offset: codec.Offset(r.Offset), Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
		for _, h := range r.Headers {
			x.Headers = append(x.Headers, interopHeader(h))
		}
		list = append(list, x)
	}
	return list
}

// ours reads the records of batches with our client.
func ours(t *testing.T, log []byte) (list []interopRecord) {
	t.Helper()
	for len(log) > 0 {
		b, rest, err := codec.NextBatch(log)
		if err == nil {
			err = codec.CheckDelivered(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		log = rest
		rs, err := (Batch{Batch: b}).Open()
		if err != nil {
			t.Fatal(err)
		}
		for rs.Next() {
			r := &rs.Record
			x := interopRecord{Offset: r.Offset, Timestamp: r.Timestamp, Key: bytes.Clone(r.Key), Value: bytes.Clone(r.Value)}
			for key, value := range r.Headers {
				x.Headers = append(x.Headers, interopHeader{string(key), bytes.Clone(value)})
			}
			list = append(list, x)
		}
		if err := rs.Err(); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

// Our batches, as our segments hold them, decoded by franz-go.
func TestKafkaLibraryReadsOurs(t *testing.T) {
	for _, c := range everyCompression {
		t.Run(compressionName(c), func(t *testing.T) {
			records := interopRecords()
			var batches []codec.Batch
			var want []interopRecord
			metas := []codec.BatchMeta{
				codec.NoProducer,
				{ProducerID: 1 << 40, ProducerEpoch: 7, BaseSequence: 0},
				{ProducerID: 1 << 40, ProducerEpoch: 7, BaseSequence: int32(len(records))},
				{ProducerID: 0, ProducerEpoch: 32767, BaseSequence: 1<<31 - 1},
			}
			for _, meta := range metas {
				batches = append(batches, makeInteropBatch(t, records, c, meta))
				want = append(want, number(records, codec.Offset(len(want)))...)
			}
			stored, _ := store(t, batches)
			checkWithKmsg(t, stored, c, records, metas)
			consumed := kgoConsume(t, stored, codec.Offset(len(want)), 0)
			if diff := difference(want, fromKgo(consumed)); diff != "" {
				t.Fatalf("franz-go's client (-want +got):\n%s", diff)
			}
			for i, r := range consumed {
				meta := metas[i/len(records)]
				if r.ProducerID != meta.ProducerID || r.ProducerEpoch != meta.ProducerEpoch || r.LeaderEpoch != 0 ||
					r.Attrs.CompressionType() != uint8(c) || r.Attrs.TimestampType() != 0 {
					t.Fatalf("record %d: producer %d, epoch %d, leader epoch %d, compression %d, time type %d", i, r.ProducerID,
						r.ProducerEpoch, r.LeaderEpoch, r.Attrs.CompressionType(), r.Attrs.TimestampType())
				}
			}
			if diff := difference(want, ours(t, stored)); diff != "" {
				t.Fatalf("our client (-want +got):\n%s", diff)
			}
			// From the middle of a batch on.
			if diff := difference(want[100:], fromKgo(kgoConsume(t, stored, codec.Offset(len(want)), 100))); diff != "" {
				t.Fatalf("from offset 100 on (-want +got):\n%s", diff)
			}
		})
	}
}

// checkWithKmsg compares the header of every batch as franz-go's definitions have it, and the records where they are not compressed.
func checkWithKmsg(t *testing.T, stored []byte, c codec.Compression, records []interopRecord, metas []codec.BatchMeta) {
	t.Helper()
	table := crc32.MakeTable(crc32.Castagnoli)
	n := 0
	for ; len(stored) > 0; n++ {
		var b kmsg.RecordBatch
		if err := b.ReadFrom(stored); err != nil {
			t.Fatal(err)
		}
		size := int(b.Length) + 12
		crc := crc32.Checksum(stored[21:size], table)
		most := slices.MaxFunc(records, func(x, y interopRecord) int { return int(x.Timestamp - y.Timestamp) })
		want := kmsg.RecordBatch{
			FirstOffset: int64(n * len(records)), Length: b.Length, PartitionLeaderEpoch: 0, Magic: 2, CRC: int32(crc), Attributes: int16(c),
			LastOffsetDelta: int32(len(records) - 1), FirstTimestamp: records[0].Timestamp, MaxTimestamp: most.Timestamp,
			ProducerID: metas[n].ProducerID, ProducerEpoch: metas[n].ProducerEpoch, FirstSequence: metas[n].BaseSequence,
			NumRecords: int32(len(records)), Records: b.Records,
		}
		if diff := cmp.Diff(want, b); diff != "" {
			t.Fatalf("batch %d (-want +got):\n%s", n, diff)
		}
		if c == codec.CompressionNone {
			rest := b.Records
			var got []interopRecord
			for i := range records {
				var r kmsg.Record
				length, prefix := uvarint(rest)
				end := prefix + length
				if err := r.ReadFrom(rest[:end]); err != nil {
					t.Fatal(err)
				}
				rest = rest[end:]
				x := interopRecord{Offset: codec.Offset(i), Timestamp: b.FirstTimestamp + r.TimestampDelta64, Key: r.Key, Value: r.Value}
				if r.OffsetDelta != int32(i) || r.Attributes != 0 {
					t.Fatalf("record %d: %+v", i, r)
				}
				for _, h := range r.Headers {
					x.Headers = append(x.Headers, interopHeader{h.Key, h.Value})
				}
				got = append(got, x)
			}
			if diff := difference(number(records, 0), got); diff != "" || len(rest) != 0 {
				t.Fatalf("the records of batch %d, %d bytes behind them (-want +got):\n%s", n, len(rest), diff)
			}
		}
		stored = stored[size:]
	}
	if n != len(metas) {
		t.Fatalf("%d batches were stored, want %d", n, len(metas))
	}
}

// difference shows how records differ; nil and empty do. To compare them takes a fraction of what the picture takes.
func difference(want, got []interopRecord) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got)
}

// uvarint reads a zigzag varint and returns the bytes that it took.
func uvarint(b []byte) (v, n int) {
	var u uint64
	for shift := 0; ; shift += 7 {
		u |= uint64(b[n]&0x7f) << shift
		if n++; b[n-1] < 0x80 {
			return int(u>>1) ^ -int(u&1), n
		}
	}
}

// What franz-go's client encodes is valid, is stored by our journal, is read by our client, and is in order for our idempotence rules.
func TestOursReadsKafkaLibrary(t *testing.T) {
	codecs := map[codec.Compression]kgo.CompressionCodec{
		codec.CompressionNone: kgo.NoCompression(), codec.CompressionGzip: kgo.GzipCompression(), codec.CompressionSnappy: kgo.SnappyCompression(),
		codec.CompressionLZ4: kgo.Lz4Compression(), codec.CompressionZstd: kgo.ZstdCompression(),
	}
	for _, c := range everyCompression {
		for _, idempotent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/idempotent=%v", compressionName(c), idempotent), func(t *testing.T) {
				k := newKafkaBroker(t, nil, 0)
				opts := []kgo.Opt{
					kgo.SeedBrokers(k.addr()), kgo.ProducerBatchCompression(codecs[c]), kgo.DefaultProduceTopic(kafkaTopic),
					kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(100 * time.Millisecond),
				}
				if !idempotent {
					opts = append(opts, kgo.DisableIdempotentWrite())
				}
				client, err := kgo.NewClient(opts...)
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				records := interopRecords()
				var want []interopRecord
				for range 3 { // a flush between, so that there are several batches
					var send []*kgo.Record
					for _, r := range records {
						x := &kgo.Record{Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(r.Timestamp)}
						for _, h := range r.Headers {
							x.Headers = append(x.Headers, kgo.RecordHeader(h))
						}
						send = append(send, x)
					}
					if err := client.ProduceSync(ctx, send...).FirstErr(); err != nil {
						t.Fatal(err)
					}
					want = append(want, number(records, codec.Offset(len(want)))...)
				}
				var batches []codec.Batch
				state := idempotence.New(idempotence.Options{})
				next := codec.Offset(0)
				for rest := k.produced(); len(rest) > 0; {
					var b codec.Batch
					if b, rest, err = codec.NextBatch(rest); err != nil {
						t.Fatal(err)
					}
					batches = append(batches, b)
					checkProducer(t, state, b, next, idempotent)
					next += codec.Offset(b.RecordCount())
					if b.Compression() != c {
						t.Errorf("a batch of %d records is compressed with %s", b.RecordCount(), compressionName(b.Compression()))
					}
				}
				if len(batches) < 3 || int(next) != len(want) {
					t.Fatalf("%d batches of %d records", len(batches), next)
				}
				stored, l := store(t, batches)
				if diff := difference(want, ours(t, stored)); diff != "" {
					t.Fatalf("our client (-want +got):\n%s", diff)
				}
				if read := readLog(t, l); !bytes.Equal(read, stored) {
					t.Fatalf("the journal reads %d bytes, its files have %d", len(read), len(stored))
				}
				if diff := difference(want, fromKgo(kgoConsume(t, stored, next, 0))); diff != "" {
					t.Fatalf("franz-go's client, back (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// checkProducer looks at the idempotence fields of a batch as they came.
func checkProducer(t *testing.T, state *idempotence.State, b codec.Batch, next codec.Offset, idempotent bool) {
	t.Helper()
	if !idempotent {
		if b.ProducerID() != -1 {
			t.Errorf("the producer id is %d", b.ProducerID())
		}
		return
	}
	if b.ProducerID() != kafkaProducerID || b.ProducerEpoch() != kafkaProducerEpoch || b.BaseSequence() != int32(next) {
		t.Errorf("producer id %d, epoch %d, sequence %d at offset %d", b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), next)
	}
	id, epoch, first, records := b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), int32(b.RecordCount())
	if v, _ := state.Check(id, epoch, first, records); v != idempotence.Append {
		t.Errorf("a batch at offset %d: %v", next, v)
	}
	state.Appended(id, epoch, first, records, next, 0)
	if v, base := state.Check(id, epoch, first, records); v != idempotence.Duplicate || base != next {
		t.Errorf("the same batch again: %v at %d", v, base)
	}
}

// readLog reads a log from its start to its end.
func readLog(t *testing.T, l *journal.Log) (all []byte) {
	t.Helper()
	for at := l.Start(); at < l.Written(); {
		done := make(chan struct{})
		r := journal.Read{Offset: at, Buf: make([]byte, 1<<20), Done: func(*journal.Read) { close(done) }}
		if err := l.Read(&r); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatal("no read in 30 s")
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		all = append(all, r.Data...)
		at = r.Next
	}
	return all
}
