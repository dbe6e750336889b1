package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// reconnecting takes back the fake client's WithoutReconnect.
func reconnecting(least, most time.Duration) Option {
	return func(c *Client) { c.again = againConfig{least: least, most: most} }
}

// A cutter makes connections that end after a random number of bytes in either direction, in the middle of a frame or not;
// each time one may live longer, and after the last cut they hold.
type cutter struct {
	mu   sync.Mutex
	rng  *rand.Rand
	most int64 // bytes of the first connection
	left int   // connections that will be cut
	cuts atomic.Int64
}

func (c *cutter) wrap(nc net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return nc
	}
	c.left--
	cut := &cutConn{Conn: nc, by: c}
	cut.in.Store(1 + c.rng.Int64N(c.most))
	cut.out.Store(1 + c.rng.Int64N(c.most))
	c.most += c.most / 8
	return cut
}

// stop lets the connections made from now on live.
func (c *cutter) stop() {
	c.mu.Lock()
	c.left = 0
	c.mu.Unlock()
}

type cutConn struct {
	net.Conn
	by      *cutter
	in, out atomic.Int64 // bytes left
}

var errCut = errors.New("cut by the test")

func (c *cutConn) cut() {
	c.by.cuts.Add(1)
	_ = c.Close()
}

func (c *cutConn) Read(p []byte) (int, error) {
	left := c.in.Load()
	if left <= 0 {
		c.cut()
		return 0, io.EOF
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.in.Add(-int64(n))
	return n, err
}

func (c *cutConn) Write(p []byte) (int, error) {
	left := c.out.Load()
	if int64(len(p)) <= left {
		n, err := c.Conn.Write(p)
		c.out.Add(-int64(n))
		return n, err
	}
	n, err := c.Conn.Write(p[:max(left, 0)])
	c.out.Add(-int64(n))
	c.cut()
	if err == nil {
		err = errCut
	}
	return n, err
}

// A closeCounter counts the connections that the client has closed.
type closeCounter struct {
	net.Conn
	once   sync.Once
	closed *atomic.Int64
}

func (c *closeCounter) Close() error {
	c.once.Do(func() { c.closed.Add(1) })
	return c.Conn.Close()
}

// An outcome is what a publisher was told about a record.
type outcome struct {
	told    int
	receipt Receipt
	err     error
}

// Case F43: connections that end anywhere, with confirms on their way, refusals in between and a broker that stops. What was
// confirmed is there exactly once, where the receipt says, and in order; what was refused is not there, unless a dead connection has brought it late. Without idempotence,
// what is unknown is there once at most; with it, nothing is unknown. Consumers get it all, once and in order.
func TestF43CutAnywhere(t *testing.T) {
	seeds := uint64(30)
	if os.Getenv("LIGHTQ_SOAK") != "" {
		seeds = 3_000
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { cutAnywhere(t, seed, false) })
		if seed%3 == 0 {
			cutAnywhere(t, seed, true)
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func cutAnywhere(t *testing.T, seed uint64, sockets bool) {
	rng := rand.New(rand.NewPCG(seed, 7))
	partitions := 1 + rng.IntN(3)
	idempotent := rng.IntN(3) > 0
	f := newFake(t, partitions)
	f.tcp = sockets
	f.window = pick[uint32](rng, 1, 2<<10, 16<<10, 256<<10)
	f.topicID = codec.TopicID{1}
	cuts := &cutter{rng: rand.New(rand.NewPCG(seed, 8)), most: pick[int64](rng, 300, 2_000, 20_000), left: 5 + rng.IntN(40)}
	var closed atomic.Int64 // connections, by the client
	f.wrap = func(nc net.Conn) net.Conn { return cuts.wrap(&closeCounter{Conn: nc, closed: &closed}) }
	refuse, judged := pick(rng, 0, 0, 7, 40), 0
	f.judge = func(int, codec.Batch) codec.Code {
		if judged++; refuse > 0 && judged%refuse == 0 {
			return pick(rng, codec.CodeOverflow, codec.CodeNoSpace)
		}
		return codec.CodeNone
	}
	drain, published := pick(rng, 0, 0, 25), 0
	var onMu sync.Mutex
	f.on = func(c *fakeConn, h codec.Header, _, _ []byte) bool {
		if h.Type == codec.TypePublish && drain > 0 {
			onMu.Lock()
			published++
			stop := published%drain == 0 && published < 10*drain
			onMu.Unlock()
			if stop && !c.draining {
				c.drain()
			}
		}
		return false
	}
	var lost, made atomic.Int64
	again := reconnecting(100*time.Microsecond, 2*time.Millisecond)
	c, err := f.clientAnyway(again, WithOnConn(func(e ConnEvent) {
		switch e.State {
		case ConnLost:
			lost.Add(1)
		case ConnMade:
			made.Add(1)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // virtual, or for ever
	defer cancel()
	opts := []ProducerOption{
		BatchBytes(pick(rng, minBatchBytes, 2<<10, 8<<10)), Linger(pick(rng, 0, 0, time.Millisecond)),
		Compress(pick(rng, codec.CompressionNone, codec.CompressionNone, codec.CompressionSnappy)),
	}
	if idempotent {
		opts = append(opts, Idempotent())
	}
	p := anyway(t, func() (*Producer, error) { return c.Producer(ctx, "orders", opts...) })
	in := anyway(t, func() (*Consumer, error) { return c.Consumer(ctx, "orders") })

	const perPublisher = 100
	publishers := 1 + rng.IntN(4)
	outcomes := make([][]outcome, publishers)
	var wg sync.WaitGroup
	for g := range publishers {
		rng := rand.New(rand.NewPCG(seed, uint64(g)+100))
		outcomes[g] = make([]outcome, perPublisher)
		pad := make([]byte, rng.IntN(300))
		wg.Go(func() {
			for i := range perPublisher {
				o := &outcomes[g][i]
				m := Message{Partition: rng.IntN(partitions), Value: fmt.Appendf(nil, "%d/%d/%s", g, i, pad)}
				note := func(r Receipt, err error) {
					o.told++
					o.receipt, o.err = r, err
				}
				if rng.IntN(4) == 0 {
					note(p.Publish(ctx, m))
				} else if err := p.PublishAsync(ctx, m, note); err != nil {
					t.Errorf("seed %d: a message was not taken: %v", seed, err)
				}
			}
		})
	}
	wg.Wait()
	if err := p.Flush(ctx); err != nil && idempotent && refuse == 0 {
		t.Errorf("seed %d: Flush: %v", seed, err)
	}
	if err := p.Close(ctx); err != nil && idempotent && refuse == 0 {
		t.Errorf("seed %d: Close of the producer: %v", seed, err)
	}
	// What a dead connection has brought is stored, or not, once the fake has seen its end.
	for start := time.Now(); f.closed() < closed.Load(); runtime.Gosched() {
		if time.Since(start) > patience {
			t.Fatalf("seed %d: the fake has seen the end of %d connections, %d are closed", seed, f.closed(), closed.Load())
		}
	}
	f.mu.Lock()
	total := 0
	stored := map[[2]int][]Receipt{}
	order := make([][]string, partitions)
	for part := range f.logs {
		last := make([]int, publishers)
		for _, b := range f.logs[part] {
			opened, err := Batch{Partition: part, Batch: b}.Open()
			if err != nil {
				t.Fatal(err)
			}
			for opened.Next() {
				total++
				v := string(opened.Record.Value)
				order[part] = append(order[part], v)
				var g, i int
				if _, err := fmt.Sscanf(v, "%d/%d/", &g, &i); err != nil {
					t.Fatal(err)
				}
				stored[[2]int{g, i}] = append(stored[[2]int{g, i}], Receipt{part, opened.Record.Offset})
				if outcomes[g][i].err != nil {
					continue // a copy that a dead connection has brought may come late
				}
				if i+1 <= last[g] {
					t.Errorf("seed %d: partition %d: %s stands behind message %d", seed, part, v, last[g]-1)
				}
				last[g] = i + 1
			}
		}
	}
	f.mu.Unlock()
	for g := range outcomes {
		for i := range outcomes[g] {
			o := &outcomes[g][i]
			at := stored[[2]int{g, i}]
			var refusal *PartitionError
			switch {
			case o.told != 1:
				t.Errorf("seed %d: message %d/%d was reported %d times", seed, g, i, o.told)
			case o.err == nil:
				if len(at) != 1 || at[0] != o.receipt {
					t.Errorf("seed %d: confirmed message %d/%d at %+v is stored at %+v", seed, g, i, o.receipt, at)
				}
			case errors.As(o.err, &refusal):
				most := 0
				if sockets && idempotent {
					most = 1 // it was sent again, and its first copy has come behind the refusal
				}
				if len(at) > most || !allowed(o.err, idempotent) {
					t.Errorf("seed %d: message %d/%d, refused with %v, is stored at %+v", seed, g, i, o.err, at)
				}
			case !isConn(o.err) || idempotent || len(at) > 1:
				t.Errorf("seed %d: message %d/%d: %v, stored at %+v", seed, g, i, o.err, at)
			}
		}
	}

	got := make([][]string, partitions)
	n := 0
	if total > 0 {
		for r, err := range in.Records(ctx) {
			if err != nil {
				t.Errorf("seed %d: consumer: %v", seed, err)
				break
			}
			got[r.Partition] = append(got[r.Partition], string(r.Value))
			if n++; n == total {
				break
			}
		}
	}
	for part := range got {
		if !slices.Equal(got[part], order[part]) {
			t.Errorf("seed %d: partition %d: consumed %d records, %d are stored", seed, part, len(got[part]), len(order[part]))
		}
	}
	cuts.stop()
	if err := c.Close(); err != nil && idempotent && refuse == 0 {
		t.Errorf("seed %d: Close: %v", seed, err)
	}
	f.stop(nil)
	if cuts.cuts.Load() > 0 && lost.Load() < made.Load() {
		t.Errorf("seed %d: %d connections lost, %d made anew", seed, lost.Load(), made.Load())
	}
}

// allowed reports whether a refusal is one that the fake gives, and not the client's own fault.
func allowed(err error, idempotent bool) bool {
	return errors.Is(err, codec.CodeOverflow) || errors.Is(err, codec.CodeNoSpace) || errors.Is(err, codec.CodeStaleEpoch) ||
		!idempotent && errors.Is(err, codec.CodeDraining)
}

// clientAnyway dials until the connection is not cut during the hello.
func (f *fakeBroker) clientAnyway(opts ...Option) (c *Client, err error) {
	for range 100 {
		if c, err = Dial(context.Background(), "fake:5500", append([]Option{WithDialer(f.dial)}, opts...)...); err == nil {
			return c, nil
		}
	}
	return nil, err
}

// anyway tries until the connection is not cut before what is made stands.
func anyway[T any](t *testing.T, make func() (T, error)) T {
	t.Helper()
	var made T
	var err error
	for range 100 {
		if made, err = make(); err == nil {
			return made
		}
	}
	t.Fatal(err)
	return made
}
