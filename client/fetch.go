package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/lightio/lightq/codec"
)

// DefaultFetchBytes is how many bytes of batches one fetch asks for by default.
const DefaultFetchBytes = 1 << 20

// maxFetchWait is the longest that a broker waits for records.
const maxFetchWait = time.Minute

// FetchOptions change what Fetch asks for; the zero value takes what is there now.
type FetchOptions struct {
	Limit    codec.Offset  // batches that begin here or above are not wanted; 0: no limit
	MaxBytes int           // of batches; the first comes whole, however large. 0: DefaultFetchBytes
	Wait     time.Duration // for something to come, where nothing is there yet; at most a minute
}

// Fetched is what a fetch has brought. Its bytes are the caller's.
type Fetched struct {
	// Batches are in order of their offsets, without gaps between them. The first may begin below the offset that was asked for. The
	// first one's Gap tells what is missing in front of it; where only a gap was there, it is one without a codec.Batch.
	Batches     []Batch
	Next        codec.Offset // where to go on
	Start, High codec.Offset // of the partition
}

// Fetch asks once for batches of a partition, for replay or to look something up: no Consumer is needed, and no group is moved. An
// offset outside of what the partition keeps is codec.CodeOffsetOutOfRange, with what there is in the error's Range. The
// connection for administration carries it; at most 64 may be under way at a time.
func (c *Client) Fetch(ctx context.Context, topic string, partition int, from Start, o FetchOptions) (Fetched, error) {
	f, err := c.fetch(ctx, topic, partition, from, o)
	if err != nil {
		return Fetched{}, fmt.Errorf("fetch from topic %s partition %d: %w", topic, partition, err)
	}
	return f, nil
}

func (c *Client) fetch(ctx context.Context, topic string, partition int, from Start, o FetchOptions) (f Fetched, err error) {
	switch {
	case partition < 0 || int64(partition) > math.MaxUint32:
		return f, codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", partition)
	case from.value < 0 && from.from == codec.FromOffset || o.Limit < 0:
		return f, errors.New("an offset is negative")
	case o.MaxBytes < 0 || int64(o.MaxBytes) > math.MaxUint32:
		return f, fmt.Errorf("a bound of %d bytes is not between 1 and %d", o.MaxBytes, uint32(math.MaxUint32))
	case o.Wait < 0 || o.Wait > maxFetchWait:
		return f, fmt.Errorf("a wait of %v is not between 0 and %v", o.Wait, maxFetchWait)
	case o.MaxBytes == 0:
		o.MaxBytes = DefaultFetchBytes
	}
	if _, ok := ctx.Deadline(); !ok { // the client's timeout bounds the answer, not the wait before it
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout+o.Wait)
		defer cancel()
	}
	header, payload, err := c.ask(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendFetch(dst, corr, codec.Fetch{
			Topic: topic, Partition: uint32(partition), From: from.from, Value: uint64(from.value), Limit: o.Limit,
			MaxBytes: uint32(o.MaxBytes), WaitMillis: uint32(o.Wait.Milliseconds()),
		})
	})
	if err != nil {
		return f, err
	}
	m, err := codec.ParseFetchReply(header)
	if err != nil {
		return f, err
	}
	f = Fetched{Next: m.Next, Start: m.Start, High: m.High}
	for i := range int(m.Count) {
		var b codec.Batch
		if b, payload, err = codec.NextBatch(payload); err == nil {
			err = codec.CheckDelivered(b)
		}
		if err == nil && i > 0 && b.BaseOffset() != f.Batches[i-1].NextOffset() {
			err = codec.Errorf(codec.CodeMalformedFrame, "offset %d follows offset %d", b.BaseOffset(), f.Batches[i-1].NextOffset()-1)
		}
		if err != nil {
			return Fetched{}, err
		}
		f.Batches = append(f.Batches, Batch{Partition: partition, Batch: b, Start: m.Start, High: m.High, AppendTime: time.UnixMilli(m.AppendMillis)})
	}
	if len(payload) > 0 {
		return Fetched{}, codec.Errorf(codec.CodeMalformedFrame, "%d bytes follow the batches of a fetch reply", len(payload))
	}
	if m.Gap.Next != 0 {
		if len(f.Batches) == 0 {
			f.Batches = []Batch{{Partition: partition, Start: m.Start, High: m.High}}
		}
		f.Batches[0].Gap = &m.Gap
	}
	return f, nil
}

// Replay iterates over the records of a partition from a start up to, not including, limit, or, where that is 0, up to the
// partition's end at the moment of the first fetch. A *GapError tells of records that are lost, a *BatchError of those that cannot be
// read; both are not fatal. Every other error is the last. A record's slices are valid until the next iteration.
func (c *Client) Replay(ctx context.Context, topic string, partition int, from Start, limit codec.Offset) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		opener := &decompressor{limit: DefaultMaxDecompressedBytes}
		next := codec.Offset(0)
		if from.from == codec.FromOffset {
			next = codec.Offset(from.value)
		}
		for {
			f, err := c.Fetch(ctx, topic, partition, from, FetchOptions{Limit: limit})
			if err != nil {
				yield(Record{Partition: partition}, err)
				return
			}
			if limit == 0 {
				limit = f.High
			}
			for _, b := range f.Batches {
				b.opener = opener
				if b.Gap != nil && !yield(Record{Partition: partition}, &GapError{partition, *b.Gap}) {
					return
				}
				if b.Batch != nil && !replayBatch(b, next, limit, yield) {
					return
				}
			}
			if f.Next >= limit || f.Next <= next && len(f.Batches) == 0 {
				return
			}
			next, from = f.Next, AtOffset(f.Next)
		}
	}
}

// replayBatch yields the records of a batch that lie in the range, and reports whether to go on.
func replayBatch(b Batch, next, limit codec.Offset, yield func(Record, error) bool) bool {
	rs, err := b.Open()
	if err != nil {
		return yield(Record{Partition: b.Partition}, err)
	}
	for rs.Next() {
		if o := rs.Record.Offset; o >= next && o < limit && !yield(Record{b.Partition, rs.Record}, nil) {
			return false
		}
	}
	if err := rs.Err(); err != nil {
		return yield(Record{Partition: b.Partition}, b.fault(err))
	}
	return true
}
