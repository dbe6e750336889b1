package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/loop"
)

// patience bounds what must happen in tests against a real broker; nothing is measured by it.
const patience = time.Minute

// A realBroker is one that the test stops itself.
type realBroker struct {
	*loop.Broker
	stop func()
}

func startReal(t *testing.T, cfg loop.Config) *realBroker {
	t.Helper()
	cfg.Limits.Drain = 200 * time.Millisecond // a consumer that is not iterated does not see it go
	b, err := loop.NewBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return &realBroker{b, stop}
}

func (b *realBroker) addr() string { return b.Addrs()[0].String() }

// socket returns an address for one broker after the other. A port would be free for anybody in between.
func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lq") // the path of a socket may have 100 bytes or so
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return "unix://" + filepath.Join(dir, "s")
}

// A broker is stopped and another started at its address: the client is with it again, and says what is not there any more.
// Then that one stops, too, and the second address takes over.
func TestBrokerIsStartedAnew(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	where := socket(t)
	first := startReal(t, loop.Config{Bind: where})
	spare := startReal(t, loop.Config{Bind: "127.0.0.1"})
	failed := make(chan ConnEvent, 1000)
	c, err := Dial(ctx, where+",tcp://"+spare.addr(), WithReconnect(time.Millisecond, 20*time.Millisecond),
		WithOnConn(func(e ConnEvent) {
			if e.State == ConnLost {
				failed <- e
			}
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // some of its producers are dead
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{}); err != nil {
		t.Fatal(err)
	}
	p, co := newProducer(t, c), newConsumer(t, c)
	if _, err := p.Publish(ctx, Message{Value: []byte("one")}); err != nil {
		t.Fatal(err)
	}
	if got := take(t, co.Records(ctx), 1); got[0] != "0 one" {
		t.Error(got)
	}

	first.stop()
	if e := <-failed; e.Addr != first.addr() {
		t.Errorf("%+v", e)
	}
	// The spare one has no such topic.
	if _, err := c.Describe(ctx, "orders"); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Error(err)
	}
	if _, err := p.Publish(ctx, Message{Value: []byte("two")}); !errors.Is(err, codec.CodeUnknownTopic) {
		t.Error(err)
	}
	for _, err := range co.Records(ctx) {
		if !errors.Is(err, codec.CodeUnknownTopic) {
			t.Error(err)
		}
	}

	// With the topic there, what is made now works, and what lives on the spare broker stays there while that lives.
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{}); err != nil {
		t.Fatal(err)
	}
	p, co = newProducer(t, c), newConsumer(t, c)
	startReal(t, loop.Config{Bind: where})
	if r, err := p.Publish(ctx, Message{Value: []byte("three")}); err != nil || r.Offset != 0 {
		t.Errorf("%+v %v", r, err)
	}
	if got := take(t, co.Records(ctx), 1); got[0] != "0 three" {
		t.Error(got)
	}
	other, err := Dial(ctx, where)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := other.CreateTopic(ctx, "orders", TopicSettings{}); err != nil {
		t.Fatal(err)
	}
	spare.stop()
	// The producer follows the name; for the consumer it is another topic.
	var receipt Receipt
	for {
		if receipt, err = p.Publish(ctx, Message{Value: []byte("four")}); err == nil {
			break
		}
		if !isConn(err) && !errors.Is(err, codec.CodeDraining) { // until it has seen that its connection is gone
			t.Fatal(err)
		}
	}
	if receipt.Offset != 0 {
		t.Errorf("%+v", receipt)
	}
	for _, err := range co.Records(ctx) {
		if !errors.Is(err, codec.CodeTopicDeleted) {
			t.Error(err)
		}
	}
}

// Against a real broker, over TCP and without a socket: connections end anywhere, and consumers get what is stored, once and
// in order, each of them; what was confirmed is there once. With idempotence, all is confirmed.
func TestCutsWithARealBroker(t *testing.T) {
	for seed := range uint64(4) {
		for _, kind := range []string{"tcp", "in-process"} {
			t.Run(fmt.Sprintf("%s/seed=%d", kind, seed), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				idempotent := seed%2 == 1
				opts := []ProducerOption{BatchBytes(4 << 10)}
				if idempotent {
					opts = append(opts, Idempotent())
				}
				rng := rand.New(rand.NewPCG(seed, 3))
				cfg, dial, addr := loop.Config{}, (&net.Dialer{}).DialContext, "tcp://in-process:0"
				if kind == "tcp" {
					cfg.Bind = "127.0.0.1"
				} else {
					door := loop.NewInProcess()
					cfg.Listener, dial = door, door.Dial
				}
				b := startReal(t, cfg)
				if kind == "tcp" {
					addr = "tcp://" + b.addr()
				}
				cuts := &cutter{rng: rng, most: 30_000, left: 25}
				straight, err := Dial(ctx, addr, WithDialer(dial))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = straight.Close() }()
				if _, err := straight.CreateTopic(ctx, "orders", TopicSettings{Partitions: 2}); err != nil {
					t.Fatal(err)
				}
				c := anyway(t, func() (*Client, error) {
					return Dial(ctx, addr, WithReconnect(100*time.Microsecond, 2*time.Millisecond),
						WithDialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
							nc, err := dial(ctx, network, addr)
							if err != nil {
								return nil, err
							}
							return cuts.wrap(nc), nil
						}))
				})
				p := anyway(t, func() (*Producer, error) { return c.Producer(ctx, "orders", opts...) })
				co := anyway(t, func() (*Consumer, error) { return c.Consumer(ctx, "orders") })
				const records = 3000
				outcomes := make([]outcome, records)
				value := make([]byte, 100)
				for i := range outcomes {
					m := Message{Partition: i % 2, Value: value}
					copy(value, fmt.Sprintf("%06d", i))
					note := func(r Receipt, err error) { outcomes[i] = outcome{outcomes[i].told + 1, r, err} }
					if i%20 == 0 { // or all would be on one connection
						note(p.Publish(ctx, m))
					} else if err := p.PublishAsync(ctx, m, note); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.Close(ctx); err != nil && !isConn(err) {
					t.Error(err)
				}
				// What a connection has brought that is dead by now is stored, or not, once the broker has seen its end.
				var d Description
				for {
					if d, err = straight.Describe(ctx, "orders"); err != nil {
						t.Fatal(err)
					}
					if d.Partitions[0].Publishers == 0 && d.Partitions[1].Publishers == 0 {
						break
					}
				}
				total := int(d.Partitions[0].Next + d.Partitions[1].Next)
				stored := map[int][]Receipt{}
				next := []codec.Offset{0, 0}
				last := []int{-1, -1}
				n := 0
				if total == 0 {
					t.Fatal("nothing is stored")
				}
				for r, err := range co.Records(ctx) {
					if err != nil {
						t.Fatalf("after %d of %d records: %v", n, total, err)
					}
					i, err := strconv.Atoi(string(r.Value[:6]))
					if err != nil || r.Offset != next[r.Partition] {
						t.Fatalf("offset %d behind offset %d: %v", r.Offset, next[r.Partition]-1, err)
					}
					next[r.Partition] = r.Offset + 1
					if outcomes[i].err == nil { // else it may have come late, by a dead connection
						if i <= last[r.Partition] {
							t.Fatalf("message %d stands behind message %d", i, last[r.Partition])
						}
						last[r.Partition] = i
					}
					stored[i] = append(stored[i], Receipt{r.Partition, r.Offset})
					if n++; n == total {
						break
					}
				}
				unknown := 0
				for i, o := range outcomes {
					at := stored[i]
					switch {
					case o.told != 1:
						t.Errorf("message %d was reported %d times", i, o.told)
					case o.err == nil && (len(at) != 1 || at[0] != o.receipt):
						t.Errorf("confirmed message %d at %+v is stored at %+v", i, o.receipt, at)
					case o.err != nil && (idempotent || !isConn(o.err)):
						t.Errorf("message %d: %v", i, o.err)
					case o.err != nil:
						unknown++
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if cuts.cuts.Load() == 0 {
					t.Errorf("nothing was cut")
				}
				if unknown == records {
					t.Errorf("nothing was confirmed")
				}
			})
		}
	}
}

// Case F43: a broker with a topic in files is stopped and started anew at its address, again and again, under a producer and a consumer that
// know nothing of it: each record is confirmed, stored and consumed once, in order.
func TestRestartsUnderLoad(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*patience) // hundreds of syncs, one behind the other
	defer cancel()
	cfg := loop.Config{Bind: socket(t), DataDir: t.TempDir()}
	b := startReal(t, cfg)
	c, err := Dial(ctx, cfg.Bind, WithReconnect(time.Millisecond, 20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.CreateTopic(ctx, "orders", TopicSettings{Storage: codec.StorageFile}); err != nil {
		t.Fatal(err)
	}
	p, co := newProducer(t, c, Idempotent()), newConsumer(t, c)

	const restarts, each = 4, 150
	publishing := make(chan int, restarts) // one element when another round is under way
	published := make(chan struct{})
	go func() {
		defer close(published)
		last := codec.Offset(-1)
		for i := range restarts * each {
			r, err := p.Publish(ctx, Message{Value: fmt.Append(nil, i)})
			if err != nil || r.Offset <= last {
				t.Errorf("message %d: offset %d behind %d, %v", i, r.Offset, last, err)
				cancel() // the rest does not come
				return
			}
			last = r.Offset
			if i%each == each/2 {
				publishing <- i
			}
		}
	}()
	consumed := make(chan struct{})
	go func() {
		defer close(consumed)
		n := 0
		for r, err := range co.Records(ctx) {
			if err != nil || string(r.Value) != strconv.Itoa(n) {
				t.Errorf("record %q at offset %d, want %d: %v", r.Value, r.Offset, n, err)
				return
			}
			if n++; n == restarts*each {
				return
			}
		}
	}()
	for range restarts {
		select {
		case <-publishing:
		case <-published: // it has failed
		}
		b.stop()
		b = startReal(t, cfg)
	}
	<-published
	<-consumed
	if _, err := p.Publish(ctx, Message{}); err != nil { // the last broker may have got nothing else
		t.Error(err)
	}
	d, err := c.Describe(ctx, "orders")
	if err != nil || d.Partitions[0].RecordsIn == 0 {
		t.Errorf("%+v %v", d, err)
	}
}
