package client

import (
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
	}{
		{"value", records, func(p *Producer) error { return p.PublishValue(ctx, 0, value) }},
		{"async", records, func(p *Producer) error { return p.PublishAsync(ctx, Message{Value: value}, done) }},
		{"async with key and headers", records, func(p *Producer) error {
			return p.PublishAsync(ctx, Message{Partition: AnyPartition, Key: key, Value: value, Headers: headers}, nil)
		}},
		{"sync", 200, func(p *Producer) error { _, err := p.Publish(ctx, Message{Value: value}); return err }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Few batches in flight, so that a few runs use every list of callbacks there will be.
			c, p := discardingProducer(t, 2*DefaultBatchBytes)
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
			if n := testing.AllocsPerRun(20, run); n >= 1 {
				t.Errorf("%v allocations for %d records", n, tt.records)
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
