// Embedded runs a broker inside the program and uses it without a socket.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/loop"
)

func main() {
	door := loop.NewInProcess()
	broker, err := loop.NewBroker(loop.Config{Listener: door})
	check(err)
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- broker.Serve(ctx) }()

	c, err := client.Dial(ctx, "tcp://in-process:0", client.WithDialer(door.Dial))
	check(err)
	_, err = c.CreateTopic(ctx, "work", client.TopicSettings{})
	check(err)
	p, err := c.Producer(ctx, "work")
	check(err)
	for i := range 3 {
		check(p.PublishValue(ctx, 0, fmt.Appendf(nil, "job %d", i)))
	}
	check(p.Flush(ctx))
	in, err := c.Consumer(ctx, "work")
	check(err)
	for r, err := range in.Records(ctx) {
		check(err)
		fmt.Printf("%d %s\n", r.Offset, r.Value)
		if r.Offset == 2 {
			break
		}
	}
	check(c.Close())
	stop()
	check(<-served)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
