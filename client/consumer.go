package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

// consumerBufferBytes is what a consumer's buffer grows to at full load: two frames of the default batch size, so
// that one read of the socket brings much and the buffer stays in the second-level cache. Larger frames make it
// grow further.
const consumerBufferBytes = 512 << 10

// errBusy answers a second iteration while one is under way.
var errBusy = errors.New("lightq: the consumer is being iterated already")

// A Start says where a consumer begins.
type Start struct {
	from  codec.From
	value int64
}

// Earliest starts at the oldest record that is kept. It is the default.
func Earliest() Start { return Start{from: codec.FromEarliest} }

// Latest starts behind the newest record.
func Latest() Start { return Start{from: codec.FromLatest} }

// AtOffset starts at an offset.
func AtOffset(o codec.Offset) Start { return Start{from: codec.FromOffset, value: int64(o)} }

type consumerConfig struct {
	partitions []int
	start      Start
	credit     int
}

// A ConsumerOption changes how Client.Consumer makes a Consumer.
type ConsumerOption interface{ applyConsumer(*consumerConfig) }

type consumerOption func(*consumerConfig)

func (f consumerOption) applyConsumer(c *consumerConfig) { f(c) }

// From sets where every partition starts.
func From(s Start) ConsumerOption { return consumerOption(func(c *consumerConfig) { c.start = s }) }

// Credit sets how many bytes of a partition's batches may be on their way to this consumer; one batch may overshoot
// it. The default is codec.DefaultWindowBytes.
func Credit(bytes int) ConsumerOption {
	return consumerOption(func(c *consumerConfig) { c.credit = bytes })
}

// A Batch is a batch as it was delivered, or, with a nil codec.Batch, news without one. All of it, Gap too, is
// valid until the next iteration.
type Batch struct {
	Partition int
	codec.Batch
	Start, High codec.Offset // of the partition, as told with the batch
	AppendTime  time.Time    // when the broker appended the first batch of the frame
	Gap         *codec.Gap   // what is missing in front of this batch, nil: nothing
}

// A Record is one record of a partition. Its slices are views, valid until the next iteration.
type Record struct {
	Partition int
	codec.Record
}

// A Position is where a consumer stands in a partition.
type Position struct {
	Partition   int
	Begin       codec.Offset // of the first record that was to be delivered
	Next        codec.Offset // behind the last batch or gap that was handed out
	Start, High codec.Offset // of the partition, as last told
}

// A subscription is a consumer's part of one partition.
type subscription struct {
	number   int
	handle   uint32
	pos      Position
	consumed int // bytes handed out and not granted again
	dead     bool
}

// A Consumer receives from the partitions of one topic over a connection of its own. It has no reader goroutine:
// whoever iterates reads the socket. One iteration may be under way at a time; Close and Positions may be called
// from any goroutine.
type Consumer struct {
	client *Client
	link   *link
	topic  string
	credit int
	total  int

	iterating atomic.Bool

	// Of the iterating goroutine.
	subs    []*subscription // by handle-1
	live    int
	sub     *subscription // whose frame is being handed out
	deliver codec.Deliver
	rest    []byte    // batches of the frame that are still to be handed out
	left    int       // their count
	gap     codec.Gap // told and not handed out yet
	out     codec.Gap // what Batch.Gap points to
	given   int       // bytes of the batch that is in the caller's hands
	last    Batch     // the batch that Records is in
	records codec.Records
	partial bool // records has some left
	skip    codec.Offset
	grant   []byte
	err     error // sticky

	posMu sync.Mutex // guards the pos of subs against Positions
}

// Consumer subscribes to a topic's partitions, over a new connection.
func (c *Client) Consumer(ctx context.Context, topic string, opts ...ConsumerOption) (*Consumer, error) {
	cfg := consumerConfig{start: Earliest(), credit: codec.DefaultWindowBytes}
	for _, o := range opts {
		o.applyConsumer(&cfg)
	}
	if cfg.credit <= 0 || cfg.credit > math.MaxInt32 {
		return nil, fmt.Errorf("credit of %d bytes is not between 1 and %d", cfg.credit, math.MaxInt32)
	}
	if cfg.start.value < 0 {
		return nil, fmt.Errorf("start offset %d is negative", cfg.start.value)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.frames.target = consumerBufferBytes
	co := &Consumer{client: c, link: l, topic: topic, credit: cfg.credit}
	if err := l.within(ctx, func() error { return co.subscribe(cfg) }); err != nil {
		l.close()
		return nil, fmt.Errorf("subscribe to topic %s: %w", topic, err)
	}
	l.startHeartbeat()
	if err := c.adopt(co); err != nil {
		l.close()
		return nil, err
	}
	return co, nil
}

// subscribe subscribes to all partitions. The reply to the first tells how many there are. Where more follow,
// nobody gets credit before all replies are there, so that no batches pile up here meanwhile.
func (c *Consumer) subscribe(cfg consumerConfig) error {
	first := 0
	if len(cfg.partitions) > 0 {
		first = cfg.partitions[0]
	}
	if first < 0 {
		return codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", first)
	}
	request := func(dst []byte, number int, handle uint32, credit int) []byte {
		// The handle serves as the correlation id: nothing else is asked on this connection.
		return codec.AppendSubscribe(dst, handle, handle, codec.Subscribe{
			Topic: c.topic, Partition: uint32(number), Kind: codec.KindSub, From: cfg.start.from,
			Value: uint64(cfg.start.value), CreditBytes: uint32(credit),
		})
	}
	credit := 0
	if len(cfg.partitions) == 1 {
		credit = cfg.credit // nothing follows
	}
	if err := c.link.write(request(nil, first, 1, credit)); err != nil {
		return err
	}
	var stash []byte // frames for the iteration
	reply, err := c.subscribed(1, &stash)
	if err != nil {
		return fmt.Errorf("partition %d: %w", first, err)
	}
	numbers, err := partitionNumbers(c.topic, cfg.partitions, int(reply.Partitions))
	if err != nil {
		return err
	}
	c.total = int(reply.Partitions)
	c.add(numbers[0], reply)
	var out []byte
	for i, number := range numbers[1:] {
		out = request(out, number, uint32(i+2), 0)
	}
	if len(out) > 0 {
		if err := c.link.write(out); err != nil {
			return err
		}
	}
	for i, number := range numbers[1:] {
		reply, err := c.subscribed(uint32(i+2), &stash)
		if err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
		c.add(number, reply)
	}
	if credit == 0 {
		out = out[:0]
		for _, s := range c.subs {
			out = codec.AppendCredit(out, s.handle, uint32(cfg.credit))
		}
		if err := c.link.write(out); err != nil {
			return err
		}
	}
	if len(stash) > 0 {
		f := &c.link.frames
		stash = append(stash, f.buf[f.r:f.w]...)
		f.r, f.w = 0, 0
		f.src = &stashed{head: bytes.NewReader(stash), tail: c.link}
	}
	return nil
}

// stashed reads what was put aside, then the socket.
type stashed struct {
	head *bytes.Reader
	tail io.Reader
}

func (s *stashed) Read(p []byte) (int, error) {
	if s.head.Len() > 0 {
		return s.head.Read(p)
	}
	return s.tail.Read(p)
}

func (c *Consumer) add(number int, m codec.SubscribeReply) {
	c.subs = append(c.subs, &subscription{number: number, handle: uint32(len(c.subs) + 1), pos: Position{
		Partition: number, Begin: m.Begin, Next: m.Begin, Start: m.Start, High: m.High,
	}})
	c.live++
}

// subscribed waits for the reply with this correlation id. Frames of other handles that come before go into stash.
func (c *Consumer) subscribed(corr uint32, stash *[]byte) (m codec.SubscribeReply, err error) {
	for {
		h, header, payload, err := c.link.frames.next()
		if err != nil {
			return m, told(err)
		}
		if done, err := c.link.common(h, header); err != nil {
			return m, err
		} else if done {
			continue
		}
		switch {
		case h.Flags&codec.FlagReply != 0 && h.Correlation == corr && h.Type == codec.TypeError:
			wire, err := codec.ParseError(header)
			if err != nil {
				return m, err
			}
			return m, wire
		case h.Flags&codec.FlagReply != 0 && h.Correlation == corr && h.Type == codec.TypeSubscribe:
			return codec.ParseSubscribeReply(header)
		case h.Correlation == 0 && h.Handle != 0:
			*stash = codec.AppendHeader(*stash, h.Type, h.Flags, 0, h.Handle, len(header), len(payload))
			*stash = append(*stash, header...)
			*stash = append(*stash, payload...)
		default:
			return m, codec.Errorf(codec.CodeMalformedFrame, "the broker answered subscribe with a frame of type %s", h.Type)
		}
	}
}

// Partitions returns how many partitions the topic has.
func (c *Consumer) Partitions() int { return c.total }

// Positions returns where the consumer stands in each of its partitions.
func (c *Consumer) Positions() []Position {
	c.posMu.Lock()
	defer c.posMu.Unlock()
	all := make([]Position, len(c.subs))
	for i, s := range c.subs {
		all[i] = s.pos
	}
	return all
}

// Close closes the connection and ends an iteration under way with ErrClosed. Closing twice is closing once.
func (c *Consumer) Close() error {
	c.link.close()
	c.client.disown(c)
	return nil
}

func (c *Consumer) closeWithClient(context.Context) error { return c.Close() }

// Batches iterates over the batches of all partitions as they arrive, without copying: a Batch is valid until the
// next iteration. It ends with an error: ctx's, after which iterating anew goes on behind the last batch; or that
// of the connection, which is final. A *PartitionError says that the broker cut one partition off; iteration goes
// on with the others. A batch with Gap set comes behind offsets that are lost for this consumer. After the
// iteration of Records was broken off inside a batch, that batch comes first, whole.
//
// A batch may begin before the offset that the subscription asked for; Records leaves such records out.
func (c *Consumer) Batches(ctx context.Context) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		if !c.iterating.CompareAndSwap(false, true) {
			yield(Batch{}, errBusy)
			return
		}
		defer c.iterating.Store(false)
		defer c.watch(ctx)()
		if c.partial {
			c.partial = false
			if through := c.records.Record.Offset+1 == c.last.NextOffset(); !through && !yield(c.last, nil) {
				return
			}
		}
		for {
			b, fatal, err := c.next(ctx)
			if !yield(b, err) || fatal {
				return
			}
		}
	}
}

// Records iterates over the records of all partitions as they arrive. A Record's slices are valid until the next
// iteration. Errors are those of Batches, and *GapError where records are lost, which is not fatal. Iterating anew
// goes on behind the last record.
func (c *Consumer) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if !c.iterating.CompareAndSwap(false, true) {
			yield(Record{}, errBusy)
			return
		}
		defer c.iterating.Store(false)
		defer c.watch(ctx)()
		for {
			if !c.partial {
				b, fatal, err := c.next(ctx)
				if err != nil {
					if !yield(Record{Partition: b.Partition}, err) || fatal {
						return
					}
					continue
				}
				if b.Batch != nil {
					if b.Compression() != codec.CompressionNone {
						c.err = &PartitionError{c.topic, b.Partition, codec.Errorf(codec.CodeNotYet,
							"the batch at offset %d is compressed with codec %d; this version cannot open it",
							b.BaseOffset(), b.Compression())}
						yield(Record{Partition: b.Partition}, c.err)
						return
					}
					c.last, c.records, c.partial = b, b.Records(), true
				}
				if b.Gap != nil && !yield(Record{Partition: b.Partition}, &GapError{b.Partition, *b.Gap}) {
					return
				}
				if b.Batch == nil {
					continue
				}
			}
			if !c.yieldRecords(yield) {
				return
			}
		}
	}
}

// yieldRecords hands out what is left of the current batch and reports whether to go on.
func (c *Consumer) yieldRecords(yield func(Record, error) bool) bool {
	partition, skip := c.last.Partition, c.skip
	rs := &c.records
	for rs.Next() {
		if rs.Record.Offset < skip {
			continue
		}
		if !yield(Record{partition, rs.Record}, nil) {
			return false
		}
	}
	c.partial = false
	if err := rs.Err(); err != nil {
		c.err = &PartitionError{c.topic, partition, err}
		yield(Record{Partition: partition}, c.err)
		return false
	}
	return true
}

// watch makes reads fail once ctx ends, until the function that it returns is called.
func (c *Consumer) watch(ctx context.Context) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	cancel := context.AfterFunc(ctx, func() { _ = c.link.nc.SetReadDeadline(time.Unix(1, 0)) })
	return func() { cancel() }
}

// next returns the next batch, or news. fatal: nothing comes behind it in this iteration.
func (c *Consumer) next(ctx context.Context) (b Batch, fatal bool, err error) {
	if c.err != nil {
		return b, true, c.err
	}
	if err := ctx.Err(); err != nil {
		return b, true, err
	}
	if c.given > 0 {
		if err := c.giveBack(); err != nil {
			return b, true, c.end(err)
		}
	}
	for c.left == 0 {
		if c.live == 0 {
			return b, true, c.end(codec.Errorf(codec.CodeUnknownHandle, "no partition is left to consume"))
		}
		h, header, payload, err := c.link.frames.next()
		if err != nil {
			if isTimeout(err) && c.link.cause() == nil {
				if err := ctx.Err(); err != nil {
					return b, true, err
				}
				// The deadline of a context that ended an earlier iteration. One that ends right now sets it again,
				// or is seen here.
				_ = c.link.nc.SetReadDeadline(time.Time{})
				if err := ctx.Err(); err != nil {
					return b, true, err
				}
				continue
			}
			return b, true, c.end(err)
		}
		if done, err := c.link.common(h, header); err != nil {
			return b, true, c.end(err)
		} else if done {
			continue
		}
		if h.Handle == 0 || int64(h.Handle) > int64(len(c.subs)) {
			return b, true, c.end(codec.Errorf(codec.CodeUnknownHandle,
				"the broker sent a %s frame for handle %d, which is not open", h.Type, h.Handle))
		}
		s := c.subs[h.Handle-1]
		switch h.Type {
		case codec.TypeError:
			wire, err := codec.ParseError(header)
			if err != nil {
				return b, true, c.end(err)
			}
			if !s.dead {
				s.dead = true
				c.live--
			}
			err = &PartitionError{c.topic, s.number, wire}
			if c.live == 0 {
				c.err = err
			}
			return Batch{Partition: s.number}, c.live == 0, err
		case codec.TypeDeliver:
			if c.deliver, err = codec.ParseDeliver(header); err != nil {
				return b, true, c.end(err)
			}
			c.sub, c.rest, c.left, c.gap = s, payload, int(c.deliver.Count), c.deliver.Gap
			if c.left == 0 {
				if len(payload) != 0 {
					return b, true, c.end(codec.Errorf(codec.CodeMalformedFrame,
						"%d bytes in a deliver frame without batches", len(payload)))
				}
				if c.gap.Next == 0 {
					c.told(s, s.pos.Next)
					continue
				}
				return c.hand(nil)
			}
		default:
			return b, true, c.end(codec.Errorf(codec.CodeUnknownFrame, "the broker sent a %s frame to a consumer", h.Type))
		}
	}
	batch, rest, err := codec.NextBatch(c.rest)
	if err == nil {
		err = codec.CheckDelivered(batch)
	}
	if c.left--; err == nil && c.left == 0 && len(rest) != 0 {
		err = codec.Errorf(codec.CodeMalformedFrame, "%d bytes follow the batches of a deliver frame", len(rest))
	}
	if err != nil {
		return Batch{Partition: c.sub.number}, true, c.end(&PartitionError{c.topic, c.sub.number, err})
	}
	c.rest = rest
	return c.hand(batch)
}

// hand returns a batch, with a gap in front of it or, where batch is nil, a gap alone, after checking that no
// offset was left out in silence.
func (c *Consumer) hand(batch codec.Batch) (b Batch, fatal bool, err error) {
	s := c.sub
	next := s.pos.Next
	b = Batch{
		Partition: s.number, Batch: batch, Start: c.deliver.Start, High: c.deliver.High,
		AppendTime: time.UnixMilli(c.deliver.AppendMillis),
	}
	if c.gap.Next != 0 {
		c.out, c.gap = c.gap, codec.Gap{}
		b.Gap = &c.out
		next = max(next, c.out.Next)
	}
	c.skip = next
	if batch != nil {
		if base := batch.BaseOffset(); base > next || batch.NextOffset() <= next {
			err := codec.Errorf(codec.CodeMalformedFrame,
				"offset %d was to come and offsets %d to %d came, without a gap being told", next, base, batch.NextOffset()-1)
			return Batch{Partition: s.number}, true, c.end(&PartitionError{c.topic, s.number, err})
		}
		next = batch.NextOffset()
		c.given = len(batch)
	}
	c.told(s, next)
	return b, false, nil
}

func (c *Consumer) told(s *subscription, next codec.Offset) {
	c.posMu.Lock()
	s.pos.Next, s.pos.Start, s.pos.High = next, c.deliver.Start, c.deliver.High
	c.posMu.Unlock()
}

// giveBack accounts for the batch that the caller is through with and grants credit anew when a quarter is used up: few
// frames, and the broker never runs dry while the consumer keeps up.
func (c *Consumer) giveBack() error {
	s := c.sub
	s.consumed += c.given
	c.given = 0
	if s.consumed < (c.credit+3)/4 || s.dead {
		return nil
	}
	c.grant = codec.AppendCredit(c.grant[:0], s.handle, uint32(s.consumed))
	s.consumed = 0
	return c.link.write(c.grant)
}

// end makes err, or why the link had failed before, the consumer's last word.
func (c *Consumer) end(err error) error {
	var p *PartitionError
	if errors.As(err, &p) && c.link.cause() == nil {
		c.err = err
		c.link.fail("read", err)
		return c.err
	}
	c.link.fail("read", err)
	c.err = c.link.cause()
	return c.err
}
