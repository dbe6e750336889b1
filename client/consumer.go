package client

import (
	"context"
	"errors"
	"fmt"
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

// AtTime starts at the first batch of a partition that holds a record at least as new as t, in milliseconds: older records may
// stand before that one in the batch. Where nothing is that new it starts behind the newest record. Times before 1970 mean the
// oldest record.
func AtTime(t time.Time) Start { return Start{from: codec.FromTime, value: max(t.UnixMilli(), 0)} }

type consumerConfig struct {
	partitions []int
	start      Start
	credit     int
	kind       codec.Kind
	group      string
	maxOpened  int
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

// Group makes the consumer a member of the group of this name: its members share the records of every partition. Each
// batch goes whole to one of them, so that a member sees offsets jump without being told a gap, and go back when it gets
// what a member that left had not taken; gaps that nobody in the group gets are told to one member. A group that exists
// goes on where it stands, whatever From says; a new one begins with the batch that From points into.
func Group(name string) ConsumerOption {
	return consumerOption(func(c *consumerConfig) { c.kind, c.group = codec.KindPull, name })
}

// MaxDecompressedBytes bounds the records of one batch after decompression; a batch that holds more gives
// ErrDecompressedTooLarge, and so does one that zstd compressed with a larger window, unless 8 MiB suffice for that. The
// default is DefaultMaxDecompressedBytes.
func MaxDecompressedBytes(n int) ConsumerOption {
	return consumerOption(func(c *consumerConfig) { c.maxOpened = n })
}

// A Batch is a batch as it was delivered, or, with a nil codec.Batch, news without one. All of it, Gap too, is
// valid until the next iteration.
type Batch struct {
	Partition int
	codec.Batch
	Start, High codec.Offset // of the partition, as told with the batch
	AppendTime  time.Time    // when the broker appended the first batch of the frame
	Gap         *codec.Gap   // what is missing in front of this batch, nil: nothing

	opener *decompressor // the consumer's
}

// Open returns an iterator over the batch's records, which it decompresses if need be; the embedded batch's Records cannot
// do that. The records are views, valid until the next iteration of the consumer or the next call of Open. It belongs to
// the loop body of Batches. The error is a *BatchError.
func (b Batch) Open() (codec.Records, error) {
	if b.Batch == nil {
		return codec.Records{}, nil
	}
	if b.Compression() == codec.CompressionNone {
		return b.Records(), nil
	}
	d := b.opener
	if d == nil { // not a consumer's
		d = &decompressor{limit: DefaultMaxDecompressedBytes}
	}
	raw, err := d.decompress(b.Compression(), b.Batch[codec.BatchHeaderBytes:])
	if err != nil {
		return codec.Records{}, b.fault(err)
	}
	return codec.RecordsOf(b.Batch, raw), nil
}

func (b Batch) fault(err error) error {
	return &BatchError{Partition: b.Partition, Base: b.BaseOffset(), Next: b.NextOffset(), Err: err}
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
	Next        codec.Offset // behind the last batch or gap that was handed out; in a group it may go back
	Start, High codec.Offset // of the partition, as last told
}

// A subscription is a consumer's part of one partition.
type subscription struct {
	number   int
	handle   uint32
	topic    codec.TopicID
	pos      Position
	consumed int // bytes handed out and not granted again
	dead     bool
}

// A Consumer receives from the partitions of one topic over a connection of its own. It has no reader goroutine:
// whoever iterates reads the socket, and makes a lost connection anew. One iteration may be under way at a time; Close and
// Positions may be called from any goroutine.
type Consumer struct {
	client *Client
	topic  string
	cfg    consumerConfig
	credit int
	total  int
	shared bool // a member of a group

	closing context.Context // ends when Close is called
	close   context.CancelFunc

	iterating atomic.Bool

	linkMu sync.Mutex // held by the iterating goroutine when it replaces link, by others when they look at it
	link   *link

	// Of the iterating goroutine.
	comingBack comeback
	news       []news          // to be told before anything is read
	subs       []*subscription // by handle-1
	live       int
	sub        *subscription // whose frame is being handed out
	deliver    codec.Deliver
	rest       []byte    // batches of the frame that are still to be handed out
	left       int       // their count
	gap        codec.Gap // told and not handed out yet
	out        codec.Gap // what Batch.Gap points to
	given      int       // bytes of the batch that is in the caller's hands
	last       Batch     // the batch that Records is in
	partial    bool      // last has records left
	opened     bool      // records iterates over last
	records    codec.Records
	opener     decompressor
	skip       codec.Offset
	grant      []byte
	err        error // sticky

	posMu sync.Mutex // guards the pos of subs against Positions
}

// Consumer subscribes to a topic's partitions, over a new connection.
func (c *Client) Consumer(ctx context.Context, topic string, opts ...ConsumerOption) (*Consumer, error) {
	cfg := consumerConfig{
		start: Earliest(), credit: codec.DefaultWindowBytes, kind: codec.KindSub, maxOpened: DefaultMaxDecompressedBytes,
	}
	for _, o := range opts {
		o.applyConsumer(&cfg)
	}
	if cfg.credit <= 0 || cfg.credit > math.MaxInt32 {
		return nil, fmt.Errorf("credit of %d bytes is not between 1 and %d", cfg.credit, math.MaxInt32)
	}
	if cfg.start.value < 0 {
		return nil, fmt.Errorf("start offset %d is negative", cfg.start.value)
	}
	if cfg.kind == codec.KindPull && cfg.group == "" {
		return nil, errors.New("the name of the group is empty")
	}
	if cfg.maxOpened <= 0 || cfg.maxOpened > math.MaxInt32 {
		return nil, fmt.Errorf("a bound of %d decompressed bytes is not between 1 and %d", cfg.maxOpened, math.MaxInt32)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	l.frames.target = consumerBufferBytes
	co := &Consumer{
		client: c, link: l, topic: topic, cfg: cfg, credit: cfg.credit, shared: cfg.kind == codec.KindPull,
		opener: decompressor{limit: cfg.maxOpened}, comingBack: c.comeback(RoleConsumer, topic),
	}
	if err := l.within(ctx, co.subscribe); err != nil {
		l.close()
		return nil, fmt.Errorf("subscribe to topic %s: %w", topic, err)
	}
	l.startHeartbeat()
	co.closing, co.close = context.WithCancel(context.Background())
	if err := c.adopt(co); err != nil {
		co.close()
		l.close()
		return nil, err
	}
	return co, nil
}

// subscribe subscribes to all partitions. The reply to the first tells how many there are. Where more follow,
// nobody gets credit before all replies are there, so that no batches pile up here meanwhile.
func (c *Consumer) subscribe() error {
	first := 0
	if len(c.cfg.partitions) > 0 {
		first = c.cfg.partitions[0]
	}
	if first < 0 {
		return codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", first)
	}
	credit := 0
	if len(c.cfg.partitions) == 1 {
		credit = c.credit // nothing follows
	}
	if err := c.link.write(c.appendSubscribe(nil, first, 1, c.cfg.start, credit)); err != nil {
		return err
	}
	var stash []byte
	reply, err := subscribed(c.link, 1, &stash)
	if err != nil {
		return fmt.Errorf("partition %d: %w", first, err)
	}
	numbers, err := partitionNumbers(c.topic, c.cfg.partitions, int(reply.Partitions))
	if err != nil {
		return err
	}
	c.total = int(reply.Partitions)
	c.add(numbers[0], reply)
	var out []byte
	for i, number := range numbers[1:] {
		out = c.appendSubscribe(out, number, uint32(i+2), c.cfg.start, 0)
	}
	if len(out) > 0 {
		if err := c.link.write(out); err != nil {
			return err
		}
	}
	for i, number := range numbers[1:] {
		reply, err := subscribed(c.link, uint32(i+2), &stash)
		if err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
		c.add(number, reply)
	}
	if credit == 0 {
		if err := c.grantAll(c.link, c.subs); err != nil {
			return err
		}
	}
	c.link.frames.putBack(stash)
	return nil
}

// appendSubscribe appends a request. The handle serves as the correlation id: nothing else is asked on this connection.
func (c *Consumer) appendSubscribe(dst []byte, number int, handle uint32, start Start, credit int) []byte {
	return codec.AppendSubscribe(dst, handle, handle, codec.Subscribe{
		Topic: c.topic, Partition: uint32(number), Kind: c.cfg.kind, From: start.from,
		Value: uint64(start.value), CreditBytes: uint32(credit), Name: c.cfg.group,
	})
}

// grantAll gives subscriptions their first credit.
func (c *Consumer) grantAll(l *link, subs []*subscription) error {
	var out []byte
	for _, s := range subs {
		out = codec.AppendCredit(out, s.handle, uint32(c.credit))
	}
	return l.write(out)
}

// News are told to the iteration in place of a batch.
type news struct {
	sub *subscription
	gap codec.Gap // missing in front of what comes next; or
	err error     // the end of the subscription
}

// comeBack makes the connection anew after its loss, and goes on where each partition was left. fatal: the iteration ends
// with err; it can go on later if that is ctx's.
func (c *Consumer) comeBack(ctx context.Context, err error) (fatal bool, _ error) {
	c.link.fail("read", err)
	cause := c.link.cause()
	if c.client.again.never || !Retryable(cause) {
		c.err = cause
		return true, c.err
	}
	c.link.close() // wait for its goroutines
	c.given, c.left, c.rest, c.gap = 0, 0, nil, codec.Gap{}
	c.link.frames.drop()
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()
	err = c.comingBack.run(both, c.link.addr, cause, func(ctx context.Context) (string, error) {
		l, err := c.client.dial(ctx)
		if err != nil {
			return "", err
		}
		if err := c.resubscribe(ctx, l); err != nil {
			l.close()
			return l.addr, err
		}
		l.startHeartbeat()
		c.linkMu.Lock()
		c.link = l
		c.linkMu.Unlock()
		return l.addr, nil
	})
	switch {
	case c.closing.Err() != nil:
		c.link.close()
		c.err = ErrClosed
	case ctx.Err() != nil:
		return true, ctx.Err() // also when the connection was made at the same time, since nobody watches ctx there
	case err != nil:
		c.err = err
	}
	return c.err != nil, c.err
}

// resubscribe subscribes to the partitions that are alive where they were left. What the broker says of single ones
// becomes news; an error that may pass concerns the whole attempt.
func (c *Consumer) resubscribe(ctx context.Context, l *link) error {
	l.frames.target = consumerBufferBytes
	var out []byte
	for _, s := range c.subs {
		if s.dead {
			continue
		}
		start := AtOffset(s.pos.Next)
		if c.shared {
			// The broker knows where the group stands. A group that it has forgotten begins where it stood when this
			// member joined: nothing is left out.
			start = AtOffset(s.pos.Begin)
		}
		out = c.appendSubscribe(out, s.number, s.handle, start, 0)
	}
	var stash []byte
	type answer struct {
		sub   *subscription
		reply codec.SubscribeReply
		err   error
	}
	var answers []answer
	var open []*subscription
	err := l.within(ctx, func() error {
		if err := l.write(out); err != nil {
			return err
		}
		for _, s := range c.subs {
			if s.dead {
				continue
			}
			reply, err := subscribed(l, s.handle, &stash)
			var wire *codec.WireError
			if err != nil && (!errors.As(err, &wire) || wire.Code.Info().Retriable || wire.Code.Info().Fatal) {
				return &ConnError{Op: "read", Addr: l.addr, Err: err}
			}
			if err == nil && reply.ID != s.topic {
				err = codec.Errorf(codec.CodeTopicDeleted, "the topic was deleted, and made anew, while the connection was lost")
			}
			if err == nil {
				open = append(open, s)
			}
			answers = append(answers, answer{s, reply, err})
		}
		return c.grantAll(l, open)
	})
	if err != nil {
		return err
	}
	l.frames.putBack(stash)
	for _, a := range answers {
		c.resubscribed(a.sub, a.reply, a.err)
	}
	return nil
}

func (c *Consumer) resubscribed(s *subscription, m codec.SubscribeReply, err error) {
	if err != nil {
		s.dead = true
		c.live--
		c.news = append(c.news, news{sub: s, err: &PartitionError{c.topic, s.number, err}})
		return
	}
	s.consumed = 0
	next := s.pos.Next
	if !c.shared && m.Begin > next {
		// The topic keeps nothing for those who are away.
		c.news = append(c.news, news{sub: s, gap: codec.Gap{From: next, Next: m.Begin, Reason: codec.GapDropped}})
	}
	c.posMu.Lock()
	s.pos.Start, s.pos.High = m.Start, m.High
	c.posMu.Unlock()
}

// tellNews returns what was found out with the last reconnect, one by one.
func (c *Consumer) tellNews() (b Batch, fatal bool, err error) {
	n := c.news[0]
	c.news = c.news[1:]
	b = Batch{Partition: n.sub.number}
	if n.err != nil {
		if c.live == 0 && len(c.news) == 0 {
			c.err = n.err
		}
		return b, c.err != nil, n.err
	}
	c.posMu.Lock()
	n.sub.pos.Next = max(n.sub.pos.Next, n.gap.Next)
	b.Start, b.High = n.sub.pos.Start, n.sub.pos.High
	c.posMu.Unlock()
	c.out = n.gap
	b.Gap = &c.out
	return b, false, nil
}

func (c *Consumer) add(number int, m codec.SubscribeReply) {
	c.subs = append(c.subs, &subscription{number: number, handle: uint32(len(c.subs) + 1), topic: m.ID, pos: Position{
		Partition: number, Begin: m.Begin, Next: m.Begin, Start: m.Start, High: m.High,
	}})
	c.live++
}

// subscribed waits for the reply with this correlation id. Frames of other handles that come before go into stash.
func subscribed(l *link, corr uint32, stash *[]byte) (m codec.SubscribeReply, err error) {
	for {
		h, header, payload, err := l.frames.next()
		if err != nil {
			return m, told(err)
		}
		if done, err := l.common(h, header); err != nil {
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
	c.close()
	c.linkMu.Lock()
	l := c.link
	c.linkMu.Unlock()
	l.close()
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
			if through := c.opened && c.records.Record.Offset+1 == c.last.NextOffset(); !through && !yield(c.last, nil) {
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
// iteration. Errors are those of Batches, and two that are not fatal: *GapError where records are lost, *BatchError where
// the records of a batch cannot be read. Iterating anew goes on behind the last record.
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
					c.last, c.partial, c.opened = b, true, false
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
	if !c.opened {
		var err error
		if c.records, err = c.last.Open(); err != nil {
			c.partial = false
			return yield(Record{Partition: partition}, err)
		}
		c.opened = true
	}
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
		return yield(Record{Partition: partition}, c.last.fault(err))
	}
	return true
}

// watch makes reads fail once ctx ends, until the function that it returns is called.
func (c *Consumer) watch(ctx context.Context) (stop func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	cancel := context.AfterFunc(ctx, func() {
		c.linkMu.Lock()
		_ = c.link.nc.SetReadDeadline(time.Unix(1, 0))
		c.linkMu.Unlock()
	})
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
			if fatal, err := c.comeBack(ctx, err); fatal {
				return b, true, err
			}
		}
	}
	for c.left == 0 {
		if len(c.news) > 0 {
			return c.tellNews()
		}
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
			if fatal, err := c.comeBack(ctx, err); fatal {
				return b, true, err
			}
			continue
		}
		if done, err := c.link.common(h, header); err != nil {
			if fatal, err := c.comeBack(ctx, err); fatal {
				return b, true, err
			}
			continue
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
// offset was left out in silence. In a group what is left out went to others.
func (c *Consumer) hand(batch codec.Batch) (b Batch, fatal bool, err error) {
	s := c.sub
	next := s.pos.Next
	if c.shared {
		next = 0
	}
	b = Batch{
		Partition: s.number, Batch: batch, Start: c.deliver.Start, High: c.deliver.High,
		AppendTime: time.UnixMilli(c.deliver.AppendMillis), opener: &c.opener,
	}
	if c.gap.Next != 0 {
		c.out, c.gap = c.gap, codec.Gap{}
		b.Gap = &c.out
		next = max(next, c.out.Next)
	}
	c.skip = next
	if c.shared {
		c.skip = 0 // what was given back may lie before a gap that was told
	}
	if batch != nil {
		base, behind := batch.BaseOffset(), batch.NextOffset()
		if !c.shared && (base > next || behind <= next) {
			err := codec.Errorf(codec.CodeMalformedFrame,
				"offset %d was to come and offsets %d to %d came, without a gap being told", next, base, behind-1)
			return Batch{Partition: s.number}, true, c.end(&PartitionError{c.topic, s.number, err})
		}
		next = behind
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
