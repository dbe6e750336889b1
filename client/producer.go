package client

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

// AnyPartition lets the producer choose: by the key's hash (that of Kafka's clients), or in turn without a key.
const AnyPartition = -1

// UnknownOffset is the offset of a Receipt at codec.LevelNone, where nobody waits for the broker to give one.
const UnknownOffset = codec.Offset(-1)

// DefaultBatchBytes is the largest batch that a producer makes by default, 1 MiB. Measured at 100 B a record: against
// 256 KiB it moves 15 to 20% more, since every batch wakes broker, producer and consumer once. What is published one by one
// is sent one by one: see the package comment.
const DefaultBatchBytes = 1 << 20

// A Message is a record to be published. The producer copies all of it before a publish method returns.
type Message struct {
	Partition  int // AnyPartition or a number
	Key, Value []byte
	Headers    []codec.RecordHeader
	Timestamp  time.Time // zero: when its batch was begun, which is at most the linger (or 1 ms) before it
}

// A Receipt says where a record is.
type Receipt struct {
	Partition int
	Offset    codec.Offset
}

// A BatchResult says what became of a batch.
type BatchResult struct {
	Partition int
	Base      codec.Offset // of its first record
	Records   int
	Bytes     int   // of the whole batch
	Err       error // nil: confirmed
}

type producerConfig struct {
	partitions []int
	level      codec.Level
	linger     time.Duration
	batchBytes int
	onBatch    func(BatchResult)
}

// A ProducerOption changes how Client.Producer makes a Producer.
type ProducerOption interface{ applyProducer(*producerConfig) }

type producerOption func(*producerConfig)

func (f producerOption) applyProducer(c *producerConfig) { f(c) }

// PartitionsOption is an option of producers and of consumers.
type PartitionsOption []int

// Partitions limits a producer or consumer to these partitions. The default is all that the topic has.
func Partitions(numbers ...int) PartitionsOption { return numbers }

func (p PartitionsOption) applyProducer(c *producerConfig) { c.partitions = p }
func (p PartitionsOption) applyConsumer(c *consumerConfig) { c.partitions = p }

// Level sets when the broker confirms. The default, codec.LevelDefault, is the strongest that the topic offers.
func Level(l codec.Level) ProducerOption {
	return producerOption(func(c *producerConfig) { c.level = l })
}

// Linger makes the producer wait up to d for a batch to fill. The default 0 chooses by itself: see the package comment.
func Linger(d time.Duration) ProducerOption {
	return producerOption(func(c *producerConfig) { c.linger = d })
}

// BatchBytes sets the size in bytes at which a batch is full. The default is DefaultBatchBytes; the topic's largest
// batch caps it. A record that is larger by itself is sent as a batch of its own.
func BatchBytes(n int) ProducerOption {
	return producerOption(func(c *producerConfig) { c.batchBytes = n })
}

// OnBatch makes the producer call f once for every batch that was confirmed, refused or lost, on the reader
// goroutine, before the callbacks of the batch's records (at codec.LevelNone: after them). f must not block and
// must not call the producer.
func OnBatch(f func(BatchResult)) ProducerOption {
	return producerOption(func(c *producerConfig) { c.onBatch = f })
}

// A Producer publishes to the partitions of one topic over a connection of its own. All methods may be called from any
// goroutine; records of one goroutine to one partition keep their order.
type Producer struct {
	client *Client
	link   *link
	topic  string
	cfg    producerConfig
	log    *slog.Logger
	base   time.Time     // zero of the monotonic clock for deadlines
	hold   time.Duration // how long a record may wait for its batch to fill

	parts []*partition // by number; nil: not opened
	open  []*partition // those that are, by handle-1
	turn  atomic.Uint32

	keep keeper
	free bufferList

	waiters sync.Pool // of *waiter

	// The reader goroutine's.
	popped []sentBatch

	mu      sync.Mutex
	failure error // the first since the last Flush
	closed  bool
	closing chan struct{} // closed when Close is through
}

// Producer opens a topic's partitions for publishing, over a new connection.
func (c *Client) Producer(ctx context.Context, topic string, opts ...ProducerOption) (*Producer, error) {
	cfg := producerConfig{batchBytes: DefaultBatchBytes}
	for _, o := range opts {
		o.applyProducer(&cfg)
	}
	if cfg.batchBytes < minBatchBytes {
		return nil, fmt.Errorf("batch size of %d bytes is below %d", cfg.batchBytes, minBatchBytes)
	}
	if cfg.linger < 0 {
		return nil, fmt.Errorf("linger of %v is negative", cfg.linger)
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &Producer{
		client: c, link: l, topic: topic, cfg: cfg, log: c.log, base: time.Now(), hold: holdTime, closing: make(chan struct{}),
		keep: keeper{wake: make(chan struct{}, 1)},
	}
	if cfg.linger > 0 {
		p.hold = cfg.linger
	}
	if err := p.openAll(ctx); err != nil {
		l.close()
		return nil, fmt.Errorf("open topic %s for publishing: %w", topic, err)
	}
	if err := c.adopt(p); err != nil {
		l.close()
		return nil, err
	}
	return p, nil
}

// openAll opens the partitions and starts the goroutines. The first one tells how many there are.
func (p *Producer) openAll(ctx context.Context) error {
	first := 0
	if len(p.cfg.partitions) > 0 {
		first = p.cfg.partitions[0]
	}
	if first < 0 {
		return codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", first)
	}
	// The reader finds a partition by its handle, so all of them must stand before it starts; how many, only it can
	// tell. Therefore: replies alone until then, which need no partition.
	p.link.start(p)
	reply, err := p.openOne(ctx, first, 1)
	if err != nil {
		return err
	}
	numbers, err := partitionNumbers(p.topic, p.cfg.partitions, int(reply.Partitions))
	if err != nil {
		return err
	}
	parts := make([]*partition, reply.Partitions)
	open := make([]*partition, len(numbers))
	for i, number := range numbers {
		open[i] = newPartition(p, number, uint32(i+1))
		parts[number] = open[i]
	}
	replies := make([]codec.OpenReply, len(numbers))
	replies[0] = reply
	if err := p.openRest(ctx, open[1:], replies[1:]); err != nil {
		return err
	}
	for i, w := range open {
		if err := w.opened(replies[i]); err != nil {
			return err
		}
	}
	p.mu.Lock()
	p.parts, p.open = parts, open
	p.free.keep = min(len(open)+1, maxFreeBuffers)
	p.mu.Unlock()
	p.link.wg.Add(1)
	go p.runKeeper()
	return p.link.cause()
}

func (p *Producer) openOne(ctx context.Context, number int, handle uint32) (m codec.OpenReply, err error) {
	header, _, err := p.link.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendOpen(dst, corr, handle, codec.Open{Topic: p.topic, Partition: uint32(number), Level: p.cfg.level})
	})
	if err != nil {
		return m, err
	}
	return codec.ParseOpenReply(header)
}

// openRest opens many at once: one write, then the replies.
func (p *Producer) openRest(ctx context.Context, open []*partition, replies []codec.OpenReply) error {
	type result struct {
		i   int
		m   codec.OpenReply
		err error
	}
	results := make(chan result, len(open))
	var frames []byte
	for i, w := range open {
		corr, err := p.link.expect(func(r reply) {
			if r.err == nil {
				var m codec.OpenReply
				m, r.err = codec.ParseOpenReply(r.header)
				results <- result{i, m, r.err}
				return
			}
			results <- result{i: i, err: r.err}
		})
		if err != nil {
			return err
		}
		frames = codec.AppendOpen(frames, corr, w.handle, codec.Open{
			Topic: p.topic, Partition: uint32(w.number), Level: p.cfg.level,
		})
	}
	if len(frames) > 0 {
		if err := p.link.write(frames); err != nil {
			return err
		}
	}
	for range open {
		select {
		case r := <-results:
			if r.err != nil {
				return fmt.Errorf("partition %d: %w", open[r.i].number, r.err)
			}
			replies[r.i] = r.m
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Partitions returns how many partitions the topic has.
func (p *Producer) Partitions() int { return len(p.parts) }

// Err returns why the producer can publish no more; nil while it can.
func (p *Producer) Err() error { return p.link.cause() }

// route finds a message's partition.
func (p *Producer) route(m *Message) (*partition, error) {
	n := m.Partition
	if n == AnyPartition {
		if m.Key == nil {
			return p.open[int((p.turn.Add(1)-1)%uint32(len(p.open)))], nil
		}
		n = keyPartition(m.Key, len(p.parts))
	}
	return p.part(n)
}

func (p *Producer) part(n int) (*partition, error) {
	if uint(n) < uint(len(p.parts)) && p.parts[n] != nil {
		return p.parts[n], nil
	}
	return nil, codec.Errorf(codec.CodeUnknownPartition,
		"topic %s partition %d is not open in this producer", p.topic, n)
}

// Publish publishes a message and waits for its confirm, at codec.LevelNone until it was written to the socket.
// When ctx ends first, the record may still be stored.
func (p *Producer) Publish(ctx context.Context, m Message) (Receipt, error) {
	w, err := p.route(&m)
	if err != nil {
		return Receipt{}, err
	}
	wt := p.newWaiter()
	w.mu.Lock()
	if err := w.add(ctx, &m, done{wait: wt}); err != nil {
		p.freeWaiter(wt)
		return Receipt{}, err
	}
	select {
	case <-wt.ch:
		receipt, err := wt.receipt, wt.err
		p.freeWaiter(wt)
		return receipt, err
	case <-ctx.Done():
		return Receipt{}, fmt.Errorf("publish to topic %s partition %d: the outcome is unknown: %w",
			p.topic, w.number, ctx.Err())
	}
}

// PublishAsync hands a message to the producer. It blocks, until ctx ends, only while the partition's window and
// batch are full. An error means that the message was not taken. done, which may be nil, is called once with the
// outcome of a message that was taken: on the reader goroutine, in the order of the partition's records (at
// codec.LevelNone: by whichever goroutine wrote the batch). done must not block; of the producer's methods it may
// call none.
func (p *Producer) PublishAsync(ctx context.Context, m Message, callback func(Receipt, error)) error {
	w, err := p.route(&m)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if w.quick && m.Key == nil && m.Value != nil && len(m.Headers) == 0 && m.Timestamp.IsZero() &&
		w.builder.AddValue(w.stamp, m.Value) {
		if callback != nil {
			w.dones = append(w.dones, done{index: w.builder.Count() - 1, call: callback})
		}
		if w.fullFor(len(m.Value)) {
			w.settle(true)
		}
		w.mu.Unlock()
		return nil
	}
	return w.add(ctx, &m, done{call: callback})
}

// PublishValue is PublishAsync for a value alone, without a callback, to one partition: the fast path. OnBatch, or
// the error of Flush, tell about failures.
func (p *Producer) PublishValue(ctx context.Context, partition int, value []byte) error {
	if uint(partition) >= uint(len(p.parts)) || p.parts[partition] == nil {
		_, err := p.part(partition)
		return err
	}
	w := p.parts[partition]
	w.mu.Lock()
	if w.quick && w.builder.AddValue(w.stamp, value) {
		if !w.fullFor(len(value)) {
			w.mu.Unlock()
			return nil
		}
		w.settle(true)
		w.mu.Unlock()
		return nil
	}
	return w.add(ctx, &Message{Value: value}, done{})
}

// Flush sends what is buffered and waits until all that was taken before was confirmed or refused, and its
// callbacks have returned. It returns the first failure since the last Flush: a *PartitionError with a
// *codec.WireError where the broker refused a batch, a *ConnError where the connection was lost; or ctx's error, if
// it ends first.
func (p *Producer) Flush(ctx context.Context) error {
	for _, w := range p.open {
		if err := w.push(ctx); err != nil {
			return err
		}
	}
	for _, w := range p.open {
		if err := w.drain(ctx); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.failure
	p.failure = nil
	if err == nil {
		err = p.link.cause()
	}
	return err
}

// Close refuses new messages, flushes and closes the connection. It returns the error of the flush; what was not
// confirmed by then fails with ErrClosed. Must not be called from a callback. Closing twice is closing once.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.closing
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	for _, w := range p.open {
		w.refuse(ErrClosed)
	}
	err := p.Flush(ctx)
	p.link.close()
	p.client.disown(p)
	close(p.closing)
	return err
}

func (p *Producer) closeWithClient(ctx context.Context) error { return p.Close(ctx) }

// failed keeps the first failure for Flush.
func (p *Producer) failed(err error) {
	p.mu.Lock()
	if p.failure == nil {
		p.failure = err
	}
	p.mu.Unlock()
}

// handles returns the open partitions; the reader may ask before they stand.
func (p *Producer) handles() []*partition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *Producer) frame(h codec.Header, header, payload []byte) error {
	open := p.handles()
	if h.Handle == 0 || int64(h.Handle) > int64(len(open)) {
		return codec.Errorf(codec.CodeUnknownHandle,
			"the broker sent a %s frame for handle %d, which is not open", h.Type, h.Handle)
	}
	w := open[h.Handle-1]
	switch h.Type {
	case codec.TypeConfirm:
		m, err := codec.ParseConfirm(header, payload)
		if err != nil {
			return err
		}
		return w.confirm(m, payload)
	case codec.TypeError:
		wire, err := codec.ParseError(header)
		if err != nil {
			return err
		}
		w.fail(w.wrap(wire))
		return nil
	default:
		return codec.Errorf(codec.CodeUnknownFrame, "the broker sent a %s frame to a producer", h.Type)
	}
}

// goingAway refuses new messages; what was taken before is still sent, for the broker to confirm or refuse.
func (p *Producer) goingAway(reason *codec.WireError) {
	for _, w := range p.handles() {
		w.refuse(reason)
	}
}

func (p *Producer) down(err error) {
	for _, w := range p.handles() {
		w.fail(err)
	}
}
