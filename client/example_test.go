package client

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/loop"
)

// exampleBroker runs a broker within the examples' process, as if it were at 127.0.0.1:5500.
func exampleBroker() Option {
	door := loop.NewInProcess()
	broker, err := loop.NewBroker(loop.Config{Listener: door})
	if err != nil {
		log.Fatal(err)
	}
	go func() { log.Fatal(broker.Serve(context.Background())) }() // as long as the process
	return WithDialer(door.Dial)
}

func Example() {
	ctx := context.Background()
	c, err := Dial(ctx, "tcp://127.0.0.1:5500", exampleBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{Storage: codec.StorageQueue, Partitions: 1}); err != nil {
		log.Fatal(err)
	}

	p, err := c.Producer(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range []string{"apples", "pears"} {
		receipt, err := p.Publish(ctx, Message{Value: []byte(v)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("published at offset", receipt.Offset)
	}

	consumer, err := c.Consumer(ctx, "orders", From(Earliest()))
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range consumer.Records(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", r.Offset, r.Value)
		if r.Offset == 1 {
			break
		}
	}
	// Output:
	// published at offset 0
	// published at offset 1
	// 0: apples
	// 1: pears
}

func ExampleProducer_PublishAsync() {
	ctx := context.Background()
	c, err := Dial(ctx, "127.0.0.1:5500", exampleBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{}); err != nil {
		log.Fatal(err)
	}
	p, err := c.Producer(ctx, "orders", Partitions(0))
	if err != nil {
		log.Fatal(err)
	}
	confirmed := 0
	for i := range 1000 {
		m := Message{Partition: 0, Key: []byte("k"), Value: fmt.Appendf(nil, "order %d", i)}
		if err := p.PublishAsync(ctx, m, func(_ Receipt, err error) {
			if err == nil {
				confirmed++ // callbacks come one at a time
			}
		}); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil { // behind it all callbacks have returned
		log.Fatal(err)
	}
	fmt.Println(confirmed)
	// Output: 1000
}

func ExampleConsumer_Batches() {
	ctx := context.Background()
	c, err := Dial(ctx, "127.0.0.1:5500", exampleBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{}); err != nil {
		log.Fatal(err)
	}
	p, err := c.Producer(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	for i := range 5000 {
		if err := p.PublishValue(ctx, 0, fmt.Appendf(nil, "order %d", i)); err != nil {
			log.Fatal(err)
		}
	}
	consumer, err := c.Consumer(ctx, "orders")
	if err != nil {
		log.Fatal(err)
	}
	records := 0
	for b, err := range consumer.Batches(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if b.Gap != nil {
			fmt.Println("lost:", b.Gap.From, "to", b.Gap.Next)
		}
		if b.Batch != nil {
			records += b.RecordCount()
		}
		if records == 5000 {
			break
		}
	}
	fmt.Println(records)
	// Output: 5000
}

func ExampleRetryable() {
	c, err := Dial(context.Background(), "127.0.0.1:5500", exampleBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.Producer(context.Background(), "missing")
	fmt.Println(errors.Is(err, codec.CodeUnknownTopic), Retryable(err))
	// Output: true false
}

// An idempotent producer is confirmed across lost connections, and nothing is stored twice.
func ExampleIdempotent() {
	ctx := context.Background()
	c, err := Dial(ctx, "tcp://10.0.0.1:5500,tcp://10.0.0.2:5500", exampleBroker(), // tried in this order
		WithReconnect(20*time.Millisecond, 2*time.Second),
		WithOnConn(func(e ConnEvent) { log.Println(e.Role, e.Topic, e.State, e.Addr, e.Err) }))
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.CreateTopic(ctx, "payments", TopicSettings{}); err != nil {
		log.Fatal(err)
	}
	p, err := c.Producer(ctx, "payments", Idempotent())
	if err != nil {
		log.Fatal(err)
	}
	receipt, err := p.Publish(ctx, Message{Key: []byte("ann"), Value: []byte("10.00"), Partition: AnyPartition})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(receipt.Partition, receipt.Offset)
	// Output: 0 0
}

// The members of a group share the records.
func ExampleGroup() {
	ctx := context.Background()
	c, err := Dial(ctx, "127.0.0.1:5500", exampleBroker())
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.CreateTopic(ctx, "jobs", TopicSettings{}); err != nil {
		log.Fatal(err)
	}
	p, err := c.Producer(ctx, "jobs")
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		if err := p.PublishValue(ctx, 0, fmt.Appendf(nil, "job %d", i)); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	worker, err := c.Consumer(ctx, "jobs", Group("workers"))
	if err != nil {
		log.Fatal(err)
	}
	for r, err := range worker.Records(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", r.Value)
		if r.Offset == 2 {
			break
		}
	}
	// Output:
	// job 0
	// job 1
	// job 2
}
