package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lightio/lightq/codec"
)

// AnyPartition lets the producer choose: by the key's hash (that of Kafka's clients), or without a key in turn, batch by
// batch: the partition changes with every batch that is sent, which is every record while they come one by one.
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
	Bytes     int   // of the whole batch as it was sent
	Err       error // nil: confirmed
}

type producerConfig struct {
	partitions  []int
	level       codec.Level
	linger      time.Duration
	batchBytes  int
	compression codec.Compression
	idempotent  bool
	onBatch     func(BatchResult)
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

// Level sets when the broker confirms. The default, codec.LevelDefault, is durable for topics in files with
// sync=always and appended for all others: ask for codec.LevelDurable where sync=interval or queue_file is to be confirmed on
// stable storage.
func Level(l codec.Level) ProducerOption {
	return producerOption(func(c *producerConfig) { c.level = l })
}

// Linger makes the producer wait up to d for a batch to fill. The default 0 chooses by itself: see the package comment.
func Linger(d time.Duration) ProducerOption {
	return producerOption(func(c *producerConfig) { c.linger = d })
}

// Compress makes the producer compress each batch's records, as one block, with a codec; whoever sends the batch does it. A
// batch that does not get smaller is sent as it is. The default is codec.CompressionNone. Small batches gain little: see
// Linger. The broker keeps what it gets and never opens it.
func Compress(c codec.Compression) ProducerOption {
	return producerOption(func(cfg *producerConfig) { cfg.compression = c })
}

// BatchBytes sets the size in bytes, before compression, at which a batch is full. The default is DefaultBatchBytes; the topic's largest
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

// A Producer publishes to the partitions of one topic over a connection of its own, which it makes anew when it is lost. All methods may be called from any
// goroutine; records of one goroutine to one partition keep their order.
type Producer struct {
	client *Client
	topic  string
	cfg    producerConfig
	log    *slog.Logger
	base   time.Time     // zero of the monotonic clock for deadlines
	hold   time.Duration // how long a record may wait for its batch to fill

	parts []*partition  // by number; nil: not opened
	open  []*partition  // those that are, by handle-1
	turn  atomic.Uint32 // whose turn it is: its index in open, modulo their number

	pipe pipe
	keep keeper
	free bufferList

	waiters    sync.Pool // of *waiter
	compressor compressor

	// The reader goroutine's.
	popped  []sentBatch
	leaving error // why the connection is closed as soon as all that is on its way was answered; nil: it is not

	telling sync.Mutex // held while somebody is told about a batch

	comingBack comeback       // the keeper's
	wg         sync.WaitGroup // the keeper

	ended context.Context // ends when Close has flushed
	end   context.CancelFunc

	mu      sync.Mutex
	link    *link // the newest; replaced while the one before has no reader
	opening bool  // until its partitions are open
	absent  error // why there is no connection; nil: there is one
	fatal   error // why the producer is dead
	dead    int   // partitions that have failed
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
	if cfg.compression > codec.CompressionZstd {
		return nil, fmt.Errorf("compression codec %d is unknown", cfg.compression)
	}
	if cfg.linger < 0 {
		return nil, fmt.Errorf("linger of %v is negative", cfg.linger)
	}
	if cfg.idempotent && cfg.level == codec.LevelNone {
		return nil, errors.New("an idempotent producer needs confirms: level none has none")
	}
	ctx, cancel := c.bound(ctx)
	defer cancel()
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	p := &Producer{
		client: c, link: l, opening: true, comingBack: c.comeback(RoleProducer, topic), topic: topic, cfg: cfg, log: c.log, base: time.Now(), hold: holdTime, closing: make(chan struct{}),
		keep: keeper{wake: make(chan struct{}, 1)},
	}
	if cfg.linger > 0 {
		p.hold = cfg.linger
	}
	p.ended, p.end = context.WithCancel(context.Background())
	if err := p.openAll(ctx, l); err != nil {
		p.stop()
		return nil, fmt.Errorf("open topic %s for publishing: %w", topic, err)
	}
	if err := c.adopt(p); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// openAll opens the partitions and starts the goroutines. The first one tells how many there are.
func (p *Producer) openAll(ctx context.Context, l *link) error {
	first := 0
	if len(p.cfg.partitions) > 0 {
		first = p.cfg.partitions[0]
	}
	if first < 0 {
		return codec.Errorf(codec.CodeUnknownPartition, "there is no partition %d", first)
	}
	// The reader finds a partition by its handle, so all of them must stand before it starts; how many, only it can
	// tell. Therefore: replies alone until then, which need no partition.
	l.start(p)
	begin, err := p.openFirst(ctx, l, first)
	if err != nil {
		return err
	}
	numbers, err := partitionNumbers(p.topic, p.cfg.partitions, int(begin.Partitions))
	if err != nil {
		return err
	}
	parts := make([]*partition, begin.Partitions)
	open := make([]*partition, len(numbers))
	for i, number := range numbers {
		open[i] = newPartition(p, number, uint32(i+1))
		parts[number] = open[i]
	}
	replies, err := p.openMany(ctx, l, open[1:])
	if err != nil {
		return err
	}
	replies = slices.Insert(replies, 0, openReply{m: begin})
	var who identity
	if p.cfg.idempotent {
		if who, err = p.askIdentity(ctx, l); err != nil {
			return fmt.Errorf("ask for a producer id: %w", err)
		}
	}
	for i, w := range open {
		err := replies[i].err
		if err == nil {
			err = w.opened(l, replies[i].m)
		}
		if err != nil {
			return fmt.Errorf("partition %d: %w", w.number, err)
		}
		w.link, w.shut, w.identity = l, false, who
	}
	p.free.keep = len(open) + 1
	if p.cfg.compression != codec.CompressionNone {
		p.free.keep += len(open) // sending takes a second one
	}
	if p.cfg.idempotent {
		p.free.keep += maxKept * len(open)
	}
	p.free.keep = min(p.free.keep, maxFreeBuffers)
	p.mu.Lock()
	p.parts, p.open, p.opening = parts, open, false
	p.mu.Unlock()
	if !l.usable() { // what the reader has told before, nobody heard
		l.fail("read", codec.Errorf(codec.CodeDraining, "the broker is going away"))
		return l.cause()
	}
	p.wg.Add(1)
	go p.runKeeper(l)
	return nil
}

func (p *Producer) openFirst(ctx context.Context, l *link, number int) (m codec.OpenReply, err error) {
	header, _, err := l.call(ctx, func(dst []byte, corr uint32) []byte {
		return codec.AppendOpen(dst, corr, 1, codec.Open{Topic: p.topic, Partition: uint32(number), Level: p.cfg.level})
	})
	if err != nil {
		return m, err
	}
	return codec.ParseOpenReply(header)
}

// An openReply is what one of many opens got.
type openReply struct {
	m   codec.OpenReply
	err error
}

// openMany opens many at once: one write, then the replies. Its error is that of the connection, or ctx's.
func (p *Producer) openMany(ctx context.Context, l *link, open []*partition) ([]openReply, error) {
	type numbered struct {
		i int
		openReply
	}
	results := make(chan numbered, len(open))
	var frames []byte
	for i, w := range open {
		corr, err := l.expect(func(r reply) {
			n := numbered{i: i}
			if n.err = r.err; n.err == nil {
				n.m, n.err = codec.ParseOpenReply(r.header)
			}
			results <- n
		})
		if err != nil {
			return nil, err
		}
		frames = codec.AppendOpen(frames, corr, w.handle, w.request(0))
	}
	if len(frames) > 0 {
		if err := l.write(frames); err != nil {
			return nil, err
		}
	}
	replies := make([]openReply, len(open))
	for range open {
		select {
		case r := <-results:
			replies[r.i] = r.openReply
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return replies, nil
}

// reconnect makes a connection in place of l, which is dead, and installs it in the partitions. It returns nil when that is
// given up, or when there is no use in it. On the keeper goroutine.
func (p *Producer) reconnect(l *link) *link {
	l.close() // wait for the reader, which tells everybody
	if p.Err() != nil {
		return nil
	}
	var made *link
	err := p.comingBack.run(p.ended, l.addr, l.cause(), func(ctx context.Context) (addr string, err error) {
		l, err := p.client.dial(ctx)
		if err == nil {
			made, addr = l, l.addr
			if err = p.openAgain(ctx, l); err != nil {
				l.close()
			}
		}
		if err != nil {
			p.mu.Lock()
			p.absent = err
			p.mu.Unlock()
		}
		return addr, err
	})
	if err != nil {
		if p.ended.Err() != nil {
			err = ErrClosed
		}
		p.die(err)
		return nil
	}
	return made
}

// openAgain opens the partitions that are alive on a new connection, and installs it in them. What the broker says of
// single ones is theirs; an error that may pass concerns the whole attempt.
func (p *Producer) openAgain(ctx context.Context, l *link) error {
	p.mu.Lock()
	p.link, p.opening, p.leaving = l, true, nil
	p.mu.Unlock()
	if p.ended.Err() != nil {
		return ErrClosed
	}
	l.start(p)
	var live []*partition
	var last error
	for _, w := range p.open {
		w.lock()
		err, renew := w.err, w.renew
		w.unlock()
		if err != nil {
			last = err
			continue
		}
		if renew {
			if err := w.takeIdentity(ctx, l); err != nil {
				return err
			}
		}
		live = append(live, w)
	}
	replies, err := p.openMany(ctx, l, live)
	if err != nil {
		return err
	}
	if err := l.cause(); err != nil {
		return err
	}
	for _, r := range replies {
		if r.err != nil && Retryable(r.err) {
			return r.err
		}
	}
	p.mu.Lock()
	p.opening, p.absent = false, nil
	p.mu.Unlock()
	some := false
	for i, w := range live {
		if err := replies[i].err; err != nil {
			last = w.wrap(err)
			w.fail(last)
			continue
		}
		some = true
		w.install(l, replies[i].m)
	}
	if !some {
		p.mu.Lock()
		p.opening = true // the end of this connection is nobody's loss
		p.mu.Unlock()
		return last
	}
	if !l.usable() {
		l.fail("read", codec.Errorf(codec.CodeDraining, "the broker is going away"))
		return l.cause()
	}
	return nil
}

// die is the end of the producer.
func (p *Producer) die(err error) {
	p.mu.Lock()
	if p.fatal == nil {
		p.fatal = err
	}
	err = p.fatal
	p.mu.Unlock()
	for _, w := range p.handles() {
		w.fail(err)
	}
}

// lostPartition counts a partition that has failed. With the last one the producer is at its end.
func (p *Producer) lostPartition(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead++; p.dead == len(p.open) && p.fatal == nil {
		p.fatal = err
	}
}

// explain adds to the error of a context that has ended while the connection was lost why that is so.
func (p *Producer) explain(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.absent == nil {
		return err
	}
	return fmt.Errorf("%w, without a connection: %w", err, p.absent)
}

// Partitions returns how many partitions the topic has.
func (p *Producer) Partitions() int { return len(p.parts) }

// Err returns why the producer can publish no more; nil while it can, also while it waits for its broker to come back.
func (p *Producer) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fatal
}

// route finds a message's partition.
func (p *Producer) route(m *Message) (*partition, error) {
	n := m.Partition
	if n == AnyPartition {
		if m.Key == nil {
			return p.inTurn(), nil
		}
		n = keyPartition(m.Key, len(p.parts))
	}
	return p.part(n)
}

// inTurn is the partition whose turn it is. Those that have failed are left out while there are others.
func (p *Producer) inTurn() (w *partition) {
	turn := p.turn.Load()
	for i := range uint32(len(p.open)) {
		if w = p.open[int((turn+i)%uint32(len(p.open)))]; !w.dead.Load() {
			if i > 0 {
				p.turn.CompareAndSwap(turn, turn+i)
			}
			break
		}
	}
	return w
}

// passTurn makes records without a key go to the next partition if it was w's turn: it has sent a batch, or is stuck. With
// each record to the next, a batch would hold a fraction of what it holds, and each partition would have one open.
func (p *Producer) passTurn(w *partition) {
	if turn := p.turn.Load(); p.open[int(turn%uint32(len(p.open)))] == w {
		p.turn.CompareAndSwap(turn, turn+1)
	}
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
	if w.quick && w.encode(&m) {
		if callback != nil {
			w.dones = append(w.dones, done{index: w.builder.Count() - 1, call: callback})
		}
		if w.fullFor(len(m.Value) + len(m.Key)) {
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
		err = p.fatal
	}
	return err
}

// Close refuses new messages, flushes and closes the connection. It returns the error of the flush; what was not
// confirmed by then fails with ErrClosed. While the connection is lost, Close waits for it to come back, until ctx ends, if
// something is to be sent. Must not be called from a callback. Closing twice is closing once; a second call waits for the first,
// which ends when the context of either does, and returns an error where that was its own.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		select {
		case <-p.closing:
		case <-ctx.Done(): // the other one may wait for longer
			p.end()
			p.current().close()
			<-p.closing
			return ctx.Err()
		}
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	for _, w := range p.open {
		w.refuse(ErrClosed)
	}
	err := p.Flush(ctx)
	p.stop()
	p.client.disown(p)
	close(p.closing)
	return err
}

// stop ends the goroutines. The keeper looks at ended behind replacing the link, so the one that is seen here is the last.
func (p *Producer) stop() {
	p.end()
	p.current().close()
	p.wg.Wait()
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
		if err := w.confirm(m, payload); err != nil {
			return err
		}
		if p.leaving != nil {
			p.leave(p.leaving)
		}
		return nil
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

// goingAway sends nothing new; what was sent before, the broker confirms or refuses.
func (p *Producer) goingAway(reason *codec.WireError) {
	if p.client.again.never {
		for _, w := range p.handles() {
			w.refuse(reason)
		}
		return
	}
	p.leave(reason)
}

// leave closes the connection as soon as all that is on its way was answered. On the reader goroutine.
func (p *Producer) leave(reason error) {
	p.leaving = reason
	idle := true
	for _, w := range p.handles() {
		idle = w.leave() && idle
	}
	if idle {
		p.current().fail("read", reason)
	}
}

// current returns the newest connection.
func (p *Producer) current() *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link
}

func (p *Producer) down(err error) {
	p.mu.Lock()
	opening, dead := p.opening, p.fatal != nil
	if !opening && !dead {
		p.absent = err
	}
	p.mu.Unlock()
	switch {
	case opening || dead: // whoever opens finds out, nobody is left to be told
	case p.client.again.never || !Retryable(err):
		p.die(err)
	default:
		for _, w := range p.handles() {
			w.lost(err)
		}
	}
}
