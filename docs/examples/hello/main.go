// Hello publishes a record to a broker and reads it back: hello [tcp://host:port]
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/lightio/lightq/client"
)

func main() {
	addr := "tcp://127.0.0.1:5500"
	if len(os.Args) > 1 {
		addr = os.Args[1]
	}
	ctx := context.Background()
	c, err := client.Dial(ctx, addr)
	check(err)
	defer func() { check(c.Close()) }()
	_, err = c.CreateTopic(ctx, "greetings", client.TopicSettings{})
	check(err)

	p, err := c.Producer(ctx, "greetings")
	check(err)
	receipt, err := p.Publish(ctx, client.Message{Value: []byte("hello")})
	check(err)
	fmt.Println("published at offset", receipt.Offset)

	in, err := c.Consumer(ctx, "greetings", client.From(client.AtOffset(receipt.Offset)))
	check(err)
	for r, err := range in.Records(ctx) {
		check(err)
		fmt.Printf("read %s\n", r.Value)
		break
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
