package client

import (
	"bytes"
	"context"
	"testing"

	"github.com/lightio/lightq/codec"
)

// Once buffers have grown, neither a record nor a batch allocates, whichever way it is published. Each run
// publishes some batches, so an allocation per batch would show as 1 or more.
func TestPublishingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const records = 10000 // of 100 bytes: several batches
	ctx := context.Background()
	value := make([]byte, 100)
	headers := []codec.RecordHeader{{Key: "k", Value: []byte("v")}}
	key := []byte("key")
	calls := 0
	done := func(_ Receipt, err error) {
		if err == nil {
			calls++
		}
	}
	for _, tt := range []struct {
		name    string
		records int
		publish func(p *Producer) error
		opts    []ProducerOption
	}{
		{name: "value", records: records, publish: func(p *Producer) error { return p.PublishValue(ctx, 0, value) }},
		{name: "value, idempotent", records: records, opts: []ProducerOption{Idempotent()}, publish: func(p *Producer) error {
			return p.PublishValue(ctx, 0, value)
		}},
		{name: "async", records: records, publish: func(p *Producer) error { return p.PublishAsync(ctx, Message{Value: value}, done) }},
		{name: "async with key and headers", records: records, publish: func(p *Producer) error {
			return p.PublishAsync(ctx, Message{Partition: AnyPartition, Key: key, Value: value, Headers: headers}, nil)
		}},
		{name: "sync", records: 200, publish: func(p *Producer) error { _, err := p.Publish(ctx, Message{Value: value}); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Few batches in flight, so that a few runs use every list of callbacks there will be.
			c, p := discardingProducer(t, 2*DefaultBatchBytes, tt.opts...)
			defer func() { _ = c.Close() }()
			run := func() {
				for range tt.records {
					if err := tt.publish(p); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 20 {
				run() // buffers and rings grow to their size
			}
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			// How many batches are on their way at a time depends on the machine, and so does when the last list of
			// callbacks has grown; an allocation per batch would show every time.
			allocs := testing.AllocsPerRun(20, run)
			for try := 0; try < 10 && allocs >= 1; try++ {
				allocs = testing.AllocsPerRun(20, run)
			}
			if allocs >= 1 {
				t.Errorf("%v allocations for %d records", allocs, tt.records)
			}
			if err := p.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		})
	}
	if calls == 0 {
		t.Error("no callback was called")
	}
}

func TestConsumingAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, size := range []int{10, 100, 1000} {
		c, co := streamingConsumer(t, size)
		ctx := context.Background()
		total, records, batches := 0, 0, 0
		perRecords := testing.AllocsPerRun(5, func() {
			n := 0
			for r, err := range co.Records(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				total += len(r.Value)
				if n++; n == 100000 {
					break
				}
			}
			records += n
		})
		perBatches := testing.AllocsPerRun(5, func() {
			n := 0
			for b, err := range co.Batches(ctx) {
				if err != nil {
					t.Fatal(err)
				}
				rs := b.Records()
				for rs.Next() {
					total += len(rs.Record.Value)
					records++
				}
				if n++; n == 50 {
					break
				}
			}
			batches += n
		})
		// A few for the iteration itself, none for its records and batches.
		if perRecords > 5 || perBatches > 5 {
			t.Errorf("size %d: %v allocations for 100000 records, %v for 50 batches", size, perRecords, perBatches)
		}
		if total != records*size || batches == 0 {
			t.Errorf("size %d: %d bytes of %d records", size, total, records)
		}
		_ = c.Close() // the stream just ends
	}
}

// Compressing and decompressing allocate next to nothing: encoders, decoders and buffers are used again.
func TestCompressionAllocatesLittle(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	raw := bytes.Repeat([]byte(`{"order":1000,"customer":"c-1"}`), 10000)
	for _, c := range allCompressions {
		var k compressor
		dst := make([]byte, 0, compressedRoom(len(raw)))
		var packed []byte
		if n := testing.AllocsPerRun(50, func() { packed, _ = k.append(dst, c, raw) }); n > 1 {
			t.Errorf("%s: %v allocations to compress a batch", compressionName(c), n)
		}
		d := &decompressor{limit: 1 << 20}
		if n := testing.AllocsPerRun(50, func() {
			if got, err := d.decompress(c, packed); err != nil || len(got) != len(raw) {
				t.Fatal(len(got), err)
			}
		}); n > 1 {
			t.Errorf("%s: %v allocations to decompress a batch", compressionName(c), n)
		}
	}
}
