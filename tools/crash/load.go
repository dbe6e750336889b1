package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// A topicPlan is a topic to be published to.
type topicPlan struct {
	name     string
	settings client.TopicSettings
}

// plans are the topics: what is confirmed there is in files, so that the death of the process takes nothing of it. Names hold the
// run's, so that a data directory can be used again.
func plans(run uint64, segment int) []topicPlan {
	file := client.TopicSettings{Storage: codec.StorageFile, SegmentBytes: uint64(segment)}
	one, three, interval := file, file, file
	one.Partitions, one.Sync = 1, codec.SyncAlways
	three.Partitions, three.Sync = 3, codec.SyncAlways
	interval.Partitions, interval.Sync, interval.SyncMillis = 2, codec.SyncInterval, 20
	return []topicPlan{
		{fmt.Sprintf("crash-%016x-one", run), one},
		{fmt.Sprintf("crash-%016x-three", run), three},
		{fmt.Sprintf("crash-%016x-interval", run), interval},
	}
}

// A load is the producers and consumers, which live on while brokers come and go.
type load struct {
	client *client.Client
	ledger *ledger
	size   int

	halt      chan struct{} // closed: producers publish nothing more
	producing sync.WaitGroup
	consuming sync.WaitGroup
	stop      context.CancelFunc // ends the consumers

	mu  sync.Mutex
	err error // the first failure
}

func (l *load) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// failure is why a producer or consumer has given up; nil: none has.
func (l *load) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// startLoad connects producers and consumers to topics that are there.
func startLoad(ctx context.Context, addr string, topics []topicPlan, led *ledger, o options, rng *rand.Rand) (*load, error) {
	c, err := client.Dial(ctx, addr, client.WithReconnect(5*time.Millisecond, 100*time.Millisecond), client.WithName("lightq-crash"))
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	l := &load{client: c, ledger: led, size: o.size, halt: make(chan struct{}), stop: stop}
	for _, t := range topics {
		parts := led.of(t.name)
		consumer, err := c.Consumer(ctx, t.name)
		if err != nil {
			return l, fmt.Errorf("subscribe to %s: %w", t.name, err)
		}
		l.consuming.Go(func() { l.consume(running, consumer, parts) })
		for i := range o.producers {
			p, err := c.Producer(ctx, t.name, client.Idempotent(), client.BatchBytes(4<<10<<(2*(i%4))))
			if err != nil {
				return l, fmt.Errorf("publish to %s: %w", t.name, err)
			}
			mine := rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64()))
			l.producing.Go(func() { l.produce(running, p, i, parts, mine) })
		}
	}
	return l, nil
}

// produce publishes bursts of messages until it is to halt, and then waits for all outcomes.
func (l *load) produce(ctx context.Context, p *client.Producer, producer int, parts []*part, rng *rand.Rand) {
	var value []byte
	for halted := false; !halted && ctx.Err() == nil; {
		for range 1 + rng.IntN(40) {
			to := parts[rng.IntN(len(parts))]
			number := to.send(producer)
			size := leastSize + int(rng.Float64()*rng.Float64()*float64(l.size-leastSize)) // most are small
			value = appendMessage(value[:0], l.ledger.run, to.index, producer, number, size)
			err := p.PublishAsync(ctx, client.Message{Partition: to.partition, Value: value}, func(r client.Receipt, err error) {
				to.outcome(producer, number, r, err)
			})
			if err != nil {
				to.unsend(producer)
				if ctx.Err() == nil {
					l.failed(fmt.Errorf("producer %d of %s: %w", producer, to.topic, err))
				}
				return
			}
		}
		t := time.NewTimer(time.Duration(rng.IntN(15)) * time.Millisecond)
		select {
		case <-t.C:
		case <-l.halt:
			halted = true
		case <-ctx.Done():
		}
		t.Stop()
	}
	if err := p.Close(ctx); err != nil && ctx.Err() == nil {
		l.failed(fmt.Errorf("producer %d of %s: close: %w", producer, parts[0].topic, err))
	}
}

// consume reads a topic from its first record, over all deaths of the broker, until ctx ends.
func (l *load) consume(ctx context.Context, c *client.Consumer, parts []*part) {
	passes := make([]*pass, len(parts))
	for i, p := range parts {
		passes[i] = p.pass("the consumer that was there all the time", 0)
		p.mu.Lock()
		p.live = passes[i]
		p.mu.Unlock()
	}
	for r, err := range c.Records(ctx) {
		var gap *client.GapError
		switch {
		case err == nil:
			passes[r.Partition].record(&r)
		case errors.As(err, &gap):
			passes[gap.Partition].gap(gap.Gap)
		case ctx.Err() != nil:
			return
		default:
			l.ledger.finding("%s: the consumer that was there all the time is told: %v", parts[0].topic, err)
		}
	}
}

// finish lets the producers get all outcomes.
func (l *load) finish() {
	close(l.halt)
	l.producing.Wait()
}

// close ends everything.
func (l *load) close() error {
	l.stop()
	l.producing.Wait()
	l.consuming.Wait()
	return l.client.Close()
}

// look reads a partition from an offset to the end that it has now, by a consumer of its own.
func look(ctx context.Context, c *client.Client, p *part, from, to codec.Offset) error {
	if from >= to {
		return nil
	}
	consumer, err := c.Consumer(ctx, p.topic, client.Partitions(p.partition), client.From(client.AtOffset(from)))
	if err != nil {
		return fmt.Errorf("read %s partition %d: %w", p.topic, p.partition, err)
	}
	defer func() { _ = consumer.Close() }() // it was only read from
	v := p.pass("a new consumer", from)
	for r, err := range consumer.Records(ctx) {
		var gap *client.GapError
		switch {
		case err == nil:
			v.record(&r)
		case errors.As(err, &gap):
			v.gap(gap.Gap)
		default:
			return fmt.Errorf("read %s partition %d at offset %d of %d: %w", p.topic, p.partition, v.next, to, err)
		}
		if v.next >= to {
			return nil
		}
	}
	return fmt.Errorf("read %s partition %d: no more records at offset %d of %d", p.topic, p.partition, v.next, to)
}
