package client

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// A discardConn is a connection to a broker that confirms everything at once and keeps nothing. Its reader side gets
// the confirms; copying costs nothing, so that what is measured is the client.
type discardConn struct {
	mu      sync.Mutex
	more    sync.Cond
	replies []byte
	fake    *fakeBroker
	confirm []byte
	closed  bool
}

func newDiscardConn(f *fakeBroker) *discardConn {
	c := &discardConn{fake: f, confirm: confirmFrame(1, 0, 0, codec.Result{}), replies: make([]byte, 0, 64<<10)}
	c.more.L = &c.mu
	return c
}

func (c *discardConn) Write(p []byte) (int, error) {
	n := len(p)
	c.mu.Lock()
	for len(p) > 0 {
		h, err := codec.ParseHeader(p, 16<<20)
		if err != nil {
			panic(err)
		}
		header := p[codec.HeaderBytes:][:h.HeaderSize]
		switch h.Type {
		case codec.TypeHello:
			c.replies = codec.AppendHello(c.replies, h.Correlation, true, c.fake.hello)
		case codec.TypeOpen:
			c.replies = codec.AppendOpenReply(c.replies, h.Correlation, h.Handle, codec.OpenReply{
				Partitions: 1, WindowBytes: c.fake.window, MaxBatchBytes: c.fake.maxBatch, Level: codec.LevelAppended,
			})
		case codec.TypeProducer:
			c.replies = codec.AppendProducerReply(c.replies, h.Correlation, codec.ProducerReply{ID: 1})
		case codec.TypePublish:
			first := binary.BigEndian.Uint64(header[4:])
			binary.BigEndian.PutUint64(c.confirm[codec.HeaderBytes+4:], first)
			c.replies = append(c.replies, c.confirm...)
		}
		p = p[h.FrameBytes():]
	}
	c.mu.Unlock()
	c.more.Signal()
	return n, nil
}

func (c *discardConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.replies) == 0 && !c.closed {
		c.more.Wait()
	}
	if c.closed {
		return 0, io.EOF
	}
	n := copy(p, c.replies)
	c.replies = append(c.replies[:0], c.replies[n:]...)
	return n, nil
}

func (c *discardConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.more.Broadcast()
	return nil
}

func (c *discardConn) LocalAddr() net.Addr              { return nil }
func (c *discardConn) RemoteAddr() net.Addr             { return nil }
func (c *discardConn) SetDeadline(time.Time) error      { return nil }
func (c *discardConn) SetReadDeadline(time.Time) error  { return nil }
func (c *discardConn) SetWriteDeadline(time.Time) error { return nil }

func discardingProducer(tb testing.TB, window uint32, opts ...ProducerOption) (*Client, *Producer) {
	f := newFake(tb, 1)
	f.window = window
	c, err := Dial(context.Background(), "discard:1", WithDialer(func(context.Context, string, string) (net.Conn, error) {
		return newDiscardConn(f), nil
	}))
	if err != nil {
		tb.Fatal(err)
	}
	return c, newProducer(tb, c, opts...)
}

// A streamConn is a broker that answers a subscribe with one deliver frame after another, for ever, from a frame
// built in advance; only the batch's base offset changes.
type streamConn struct {
	discardConn
	frame []byte
	at    int
	base  codec.Offset
	batch codec.Batch // within frame
}

func newStreamConn(f *fakeBroker, size, limit int) *streamConn {
	c := &streamConn{discardConn: discardConn{fake: f}}
	c.more.L = &c.mu
	var w codec.BatchBuilder
	w.Reset(nil, limit)
	value := make([]byte, size)
	for w.AddValue(1000, value) {
	}
	batch := codec.Batch(w.Finish(codec.NoProducer))
	c.frame = deliverFrame(1, codec.Deliver{AppendMillis: 1}, batch)
	c.batch = codec.Batch(c.frame[len(c.frame)-len(batch):])
	c.batch.SetBase(0, 0)
	return c
}

func (c *streamConn) Write(p []byte) (int, error) {
	h, err := codec.ParseHeader(p, 16<<20)
	if err != nil {
		panic(err)
	}
	if h.Type == codec.TypeSubscribe {
		c.mu.Lock()
		c.replies = codec.AppendSubscribeReply(c.replies, h.Correlation, h.Handle, codec.SubscribeReply{Partitions: 1})
		c.mu.Unlock()
		return len(p), nil
	}
	return c.discardConn.Write(p)
}

func (c *streamConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	waiting := len(c.replies)
	closed := c.closed
	c.mu.Unlock()
	if waiting > 0 || closed || c.frame == nil {
		return c.discardConn.Read(p)
	}
	n := 0
	for n < len(p) {
		m := copy(p[n:], c.frame[c.at:])
		n += m
		if c.at += m; c.at == len(c.frame) {
			c.at = 0
			c.base += codec.Offset(c.batch.RecordCount())
			c.batch.SetBase(c.base, 0)
		}
	}
	return n, nil
}

func streamingConsumer(tb testing.TB, size int) (*Client, *Consumer) {
	f := newFake(tb, 1)
	dials := 0
	c, err := Dial(context.Background(), "stream:1", WithDialer(func(context.Context, string, string) (net.Conn, error) {
		if dials++; dials == 1 {
			return newDiscardConn(f), nil
		}
		return newStreamConn(f, size, DefaultBatchBytes), nil
	}))
	if err != nil {
		tb.Fatal(err)
	}
	consumer, err := c.Consumer(context.Background(), "orders")
	if err != nil {
		tb.Fatal(err)
	}
	return c, consumer
}

func BenchmarkPublish(b *testing.B) {
	value := make([]byte, 100)
	b.Run("method=value/size=100", func(b *testing.B) {
		c, p := discardingProducer(b, codec.DefaultWindowBytes)
		ctx := context.Background()
		b.SetBytes(int64(len(value)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.PublishValue(ctx, 0, value); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	})
	b.Run("method=value/size=100/idempotent", func(b *testing.B) {
		c, p := discardingProducer(b, codec.DefaultWindowBytes, Idempotent())
		ctx := context.Background()
		b.SetBytes(int64(len(value)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.PublishValue(ctx, 0, value); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	})
	b.Run("method=async/size=100", func(b *testing.B) {
		c, p := discardingProducer(b, codec.DefaultWindowBytes)
		ctx := context.Background()
		n := 0
		done := func(Receipt, error) { n++ }
		b.SetBytes(int64(len(value)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.PublishAsync(ctx, Message{Value: value}, done); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	})
	b.Run("method=async/key=8/size=100", func(b *testing.B) {
		c, p := discardingProducer(b, codec.DefaultWindowBytes)
		ctx := context.Background()
		key := []byte("order-17")
		b.SetBytes(int64(len(value)))
		b.ReportAllocs()
		for b.Loop() {
			if err := p.PublishAsync(ctx, Message{Partition: AnyPartition, Key: key, Value: value}, nil); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	})
	b.Run("method=sync/size=100", func(b *testing.B) {
		c, p := discardingProducer(b, codec.DefaultWindowBytes)
		ctx := context.Background()
		b.SetBytes(int64(len(value)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Publish(ctx, Message{Value: value}); err != nil {
				b.Fatal(err)
			}
		}
		_ = c.Close()
	})
}

func BenchmarkConsume(b *testing.B) {
	b.Run("method=records/size=100", func(b *testing.B) {
		c, consumer := streamingConsumer(b, 100)
		b.SetBytes(100)
		b.ReportAllocs()
		n, sum := 0, 0
		b.ResetTimer()
		for r, err := range consumer.Records(context.Background()) {
			if err != nil {
				b.Fatal(err)
			}
			sum += len(r.Value)
			if n++; n >= b.N {
				break
			}
		}
		b.StopTimer()
		if sum != n*100 {
			b.Fatal(sum)
		}
		_ = c.Close()
	})
	b.Run("method=batches/size=100", func(b *testing.B) {
		c, consumer := streamingConsumer(b, 100)
		b.SetBytes(100)
		b.ReportAllocs()
		n, sum := 0, 0
		b.ResetTimer()
		for batch, err := range consumer.Batches(context.Background()) {
			if err != nil {
				b.Fatal(err)
			}
			for rs := batch.Records(); rs.Next(); {
				sum += len(rs.Record.Value)
				n++
			}
			if n >= b.N {
				break
			}
		}
		b.StopTimer()
		if sum != n*100 {
			b.Fatal(sum)
		}
		_ = c.Close()
	})
}
