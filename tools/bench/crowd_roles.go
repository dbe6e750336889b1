package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lightio/lightq/client"
)

// The names of a crowd's two processes, as hidden commands of this program.
const (
	roleCrowdProducers = "crowd-producers"
	roleCrowdConsumers = "crowd-consumers"
)

const (
	crowdTopic       = "crowd"
	crowdHeaderBytes = 8 // the number of the message, big-endian: no two are the same
)

// crowdShare is how many messages a producer takes on at a time: 0.1 ms of work.
const crowdShare = 1000

// runCrowdProducers publishes messages of size bytes from several producers, which share the work so that all end together,
// and waits for the confirms.
func runCrowdProducers(ctx context.Context, addr string, clients, size int, messages int64, spread string) (res crowdRole, err error) {
	c, err := client.Dial(ctx, addr)
	if err != nil {
		return res, err
	}
	defer func() { _ = c.Close() }() // all is confirmed, or the error that counts is there
	producers := make([]*client.Producer, clients)
	for i := range producers {
		if producers[i], err = c.Producer(ctx, crowdTopic); err != nil {
			return res, err
		}
	}
	var taken, sum atomic.Int64
	started := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range producers {
		group.Go(func() error {
			for {
				first := taken.Add(crowdShare) - crowdShare
				if first >= messages {
					return p.Flush(ctx)
				}
				s, err := publishCrowd(ctx, p, i, first, min(first+crowdShare, messages), size, spread)
				if err != nil {
					return err
				}
				sum.Add(s)
			}
		})
	}
	if err := group.Wait(); err != nil {
		return res, err
	}
	return crowdRole{
		Messages: messages, Bytes: messages * int64(size), Sum: uint64(sum.Load()), Seconds: time.Since(started).Seconds(),
	}, nil
}

// publishCrowd publishes messages with the numbers from first to end from one producer and returns the sum of their numbers.
func publishCrowd(
	ctx context.Context, p *client.Producer, index int, first, end int64, size int, spread string,
) (sum int64, err error) {
	value := make([]byte, size)
	for n := first; n < end; n++ {
		sum += n
		binary.BigEndian.PutUint64(value, uint64(n))
		switch spread {
		case spreadOwn:
			err = p.PublishValue(ctx, index%p.Partitions(), value)
		case spreadKey:
			m := client.Message{Partition: client.AnyPartition, Key: value[:crowdHeaderBytes], Value: value}
			err = p.PublishAsync(ctx, m, nil)
		default:
			err = p.PublishAsync(ctx, client.Message{Partition: client.AnyPartition, Value: value}, nil)
		}
		if err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// runCrowdConsumers receives messages, all together, in several members of a group on all partitions, from the end of what
// is there. attached is called when all are members.
func runCrowdConsumers(ctx context.Context, addr string, clients int, messages int64, attached func()) (crowdRole, error) {
	c, err := client.Dial(ctx, addr)
	if err != nil {
		return crowdRole{}, err
	}
	defer func() { _ = c.Close() }() // nothing was sent that could be lost
	consumers := make([]*client.Consumer, clients)
	for i := range consumers {
		if consumers[i], err = c.Consumer(ctx, crowdTopic, client.Group(crowdTopic), client.From(client.Latest())); err != nil {
			return crowdRole{}, err
		}
	}
	attached()
	receiving, done := context.WithCancel(ctx)
	defer done()
	all := &crowdCount{want: messages, done: done}
	group, receiving := errgroup.WithContext(receiving)
	for _, co := range consumers {
		group.Go(func() error { return all.receive(receiving, co) })
	}
	err = group.Wait()
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.res.Messages < messages {
		return all.res, fmt.Errorf("%d of %d messages received: %w", all.res.Messages, messages, err)
	}
	all.res.Seconds = all.last.Sub(all.first).Seconds()
	return all.res, nil
}

// A crowdCount adds up what the members receive.
type crowdCount struct {
	want int64
	done func() // called when all is there

	mu          sync.Mutex
	res         crowdRole
	first, last time.Time
}

// receive counts what one member gets, until all have got everything.
func (a *crowdCount) receive(ctx context.Context, co *client.Consumer) error {
	for b, err := range co.Batches(ctx) {
		if err != nil {
			return err
		}
		now := time.Now()
		if b.Gap != nil {
			return fmt.Errorf("partition %d: a gap from %d to %d", b.Partition, b.Gap.From, b.Gap.Next)
		}
		if b.Batch == nil {
			continue
		}
		rs, err := b.Open()
		if err != nil {
			return err
		}
		var got crowdRole
		for rs.Next() {
			v := rs.Record.Value
			if len(v) < crowdHeaderBytes {
				return fmt.Errorf("partition %d: offset %d has %d bytes", b.Partition, rs.Record.Offset, len(v))
			}
			got.Messages++
			got.Bytes += int64(len(v))
			got.Sum += binary.BigEndian.Uint64(v)
		}
		if err := rs.Err(); err != nil {
			return err
		}
		a.add(got, now)
	}
	return nil
}

func (a *crowdCount) add(got crowdRole, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.res.Messages == 0 {
		a.first = now
	}
	if now.After(a.last) {
		a.last = now
	}
	a.res.Messages += got.Messages
	a.res.Bytes += got.Bytes
	a.res.Sum += got.Sum
	if a.res.Messages >= a.want {
		a.done()
	}
}
