package client

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/lightio/lightq/codec"
)

// A fakeBroker speaks enough of the protocol for the tests of this package. It keeps what is published in memory
// and delivers it. on, if set, sees every frame first and may answer in its place.
type fakeBroker struct {
	tb         testing.TB
	hello      codec.Hello
	partitions int
	window     uint32
	maxBatch   uint32
	tcp        bool // loopback TCP; else net.Pipe, where every write waits for its read
	inline     bool // frames are written by the goroutine that reads: it does not read while it writes

	topicID codec.TopicID
	// refuse, if set, says why the next connection is refused; nil: it is not. Called with mu held.
	refuse func() error
	// wrap, if set, makes the client's side of a connection from what was dialled.
	wrap func(net.Conn) net.Conn

	// on returns whether it dealt with the frame. It is called on the connection's goroutine, without a lock.
	on func(c *fakeConn, h codec.Header, header, payload []byte) bool
	// judge returns the code for a batch; nil: all are taken. Called with mu held.
	judge func(partition int, b codec.Batch) codec.Code

	mu      sync.Mutex
	logs    [][]codec.Batch // by partition
	next    []codec.Offset
	conns   []*fakeConn
	dials   int
	created map[string]codec.TopicSettings
	frames  map[codec.Type]int
	wg      sync.WaitGroup

	identities int64
	producers  []map[int64]*fakeProducer // by partition, by identity
}

// A fakeProducer is what a partition remembers of an idempotent producer.
type fakeProducer struct {
	epoch int16
	five  []fakeStored
}

type fakeStored struct {
	first, next int32
	base        codec.Offset
}

type fakeConn struct {
	broker *fakeBroker
	nc     net.Conn
	opens  map[uint32]*fakeOpen
	subs   map[uint32]*fakeSub

	draining bool // of the goroutine that reads

	mu     sync.Mutex
	queue  [][]byte
	more   *sync.Cond
	closed bool
}

type fakeOpen struct {
	partition int
	epoch     uint32
	stale     bool
}

type fakeSub struct {
	partition int
	handle    uint32
	credit    int64
	at        int // index into the log
}

func newFake(tb testing.TB, partitions int) *fakeBroker {
	f := &fakeBroker{
		tb: tb, partitions: partitions, window: codec.DefaultWindowBytes, maxBatch: codec.DefaultMaxBatchBytes,
		hello: codec.Hello{
			MinVersion: 1, MaxVersion: 1, Name: "fake", MaxFrameBytes: 8 << 20,
			MaxBatchBytes: codec.DefaultMaxBatchBytes, HeartbeatMillis: 15000,
		},
		logs: make([][]codec.Batch, partitions), next: make([]codec.Offset, partitions),
		created: map[string]codec.TopicSettings{}, frames: map[codec.Type]int{},
		producers: make([]map[int64]*fakeProducer, partitions),
	}
	for i := range f.producers {
		f.producers[i] = map[int64]*fakeProducer{}
	}
	return f
}

// dial is the dialer for WithDialer.
func (f *fakeBroker) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	f.mu.Lock()
	f.dials++
	var err error
	if f.refuse != nil {
		err = f.refuse()
	}
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ours, err := f.connect(ctx)
	if err == nil && f.wrap != nil {
		ours = f.wrap(ours)
	}
	return ours, err
}

func (f *fakeBroker) connect(ctx context.Context) (net.Conn, error) {
	if !f.tcp {
		ours, theirs := net.Pipe()
		f.serve(theirs)
		return ours, nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer func() { _ = ln.Close() }()
	ours, err := (&net.Dialer{}).DialContext(ctx, "tcp", ln.Addr().String())
	if err != nil {
		return nil, err
	}
	theirs, err := ln.Accept()
	if err != nil {
		return nil, err
	}
	f.serve(theirs)
	return ours, nil
}

// change changes the fake while it is in use.
func (f *fakeBroker) change(how func()) {
	f.mu.Lock()
	how()
	f.mu.Unlock()
}

// setOn changes on while the fake is in use.
func (f *fakeBroker) setOn(on func(c *fakeConn, h codec.Header, header, payload []byte) bool) {
	f.change(func() { f.on = on })
}

// cut ends all connections.
func (f *fakeBroker) cut() {
	f.mu.Lock()
	conns := slices.Clone(f.conns)
	f.mu.Unlock()
	for _, c := range conns {
		c.close()
	}
}

func (f *fakeBroker) serve(nc net.Conn) {
	c := &fakeConn{broker: f, nc: nc, opens: map[uint32]*fakeOpen{}, subs: map[uint32]*fakeSub{}}
	c.more = sync.NewCond(&c.mu)
	f.mu.Lock()
	f.conns = append(f.conns, c)
	f.mu.Unlock()
	f.wg.Add(2)
	go func() {
		defer f.wg.Done()
		c.read()
	}()
	go func() {
		defer f.wg.Done()
		c.write()
	}()
}

// client dials the fake. A connection that ends stays so, unless reconnecting says otherwise.
func (f *fakeBroker) client(opts ...Option) *Client {
	f.tb.Helper()
	c, err := Dial(context.Background(), "fake:5500", append([]Option{WithDialer(f.dial), WithoutReconnect()}, opts...)...)
	if err != nil {
		f.tb.Fatal(err)
	}
	return c
}

// stop closes the client, if any, and the fake, and waits for the fake's goroutines.
func (f *fakeBroker) stop(c *Client) {
	if c != nil {
		_ = c.Close() // tests that care close by themselves
	}
	f.mu.Lock()
	conns := f.conns
	f.mu.Unlock()
	for _, fc := range conns {
		fc.close()
	}
	f.wg.Wait()
}

// last returns the connection made last.
func (f *fakeBroker) last() *fakeConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conns[len(f.conns)-1]
}

func (f *fakeBroker) count(t codec.Type) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frames[t]
}

// records returns the values in a partition's log.
func (f *fakeBroker) values(partition int) (values []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, b := range f.logs[partition] {
		rs := b.Records()
		for rs.Next() {
			values = append(values, string(rs.Record.Value))
		}
		if rs.Err() != nil {
			f.tb.Error(rs.Err())
		}
	}
	return values
}

func (f *fakeBroker) batches(partition int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.logs[partition])
}

func (c *fakeConn) close() {
	c.mu.Lock()
	c.closed = true
	c.more.Signal()
	c.mu.Unlock()
	_ = c.nc.Close()
}

// drain announces the end, and refuses what comes from now on. On the goroutine that reads.
func (c *fakeConn) drain() {
	c.draining = true
	c.send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeDraining, Reason: "restart"}))
}

func (c *fakeConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// closed returns how many connections are closed: nothing that has come over them is stored any more.
func (f *fakeBroker) closed() (n int64) {
	f.mu.Lock()
	conns := slices.Clone(f.conns)
	f.mu.Unlock()
	for _, c := range conns {
		if c.isClosed() {
			n++
		}
	}
	return n
}

// finish closes the connection once all that was sent is written.
func (c *fakeConn) finish() { c.send(nil) }

// send queues a frame; nil closes the connection.
func (c *fakeConn) send(frame []byte) {
	if c.broker.inline && frame != nil {
		_, _ = c.nc.Write(frame)
		return
	}
	c.mu.Lock()
	c.queue = append(c.queue, frame)
	c.more.Signal()
	c.mu.Unlock()
}

func (c *fakeConn) write() {
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.more.Wait()
		}
		queue := c.queue
		c.queue = nil
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		for _, frame := range queue {
			if frame == nil {
				c.close()
				return
			}
			if _, err := c.nc.Write(frame); err != nil {
				return
			}
		}
	}
}

func (c *fakeConn) read() {
	defer c.close()
	in := bufio.NewReaderSize(c.nc, 64<<10)
	fixed := make([]byte, codec.HeaderBytes)
	for {
		if _, err := io.ReadFull(in, fixed); err != nil {
			return
		}
		h, err := codec.ParseHeader(fixed, 16<<20)
		if err != nil {
			c.broker.tb.Error(err)
			return
		}
		body := make([]byte, h.FrameBytes()-codec.HeaderBytes)
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		c.broker.mu.Lock()
		c.broker.frames[h.Type]++
		on := c.broker.on
		c.broker.mu.Unlock()
		header, payload := body[:h.HeaderSize], body[h.HeaderSize:]
		if on != nil && on(c, h, header, payload) {
			continue
		}
		if err := c.handle(h, header, payload); err != nil {
			c.broker.tb.Errorf("the client sent a bad %s frame: %v", h.Type, err)
			return
		}
	}
}

func (c *fakeConn) handle(h codec.Header, header, payload []byte) error {
	f := c.broker
	wireError := func(code codec.Code) {
		c.send(codec.AppendError(nil, h.Correlation, h.Handle, codec.Errorf(code, "says the fake")))
	}
	switch h.Type {
	case codec.TypeHello:
		if _, err := codec.ParseHello(header); err != nil {
			return err
		}
		f.mu.Lock()
		m := f.hello
		f.mu.Unlock()
		c.send(codec.AppendHello(nil, h.Correlation, true, m))
	case codec.TypeCreate:
		m, err := codec.ParseCreate(header)
		if err != nil {
			return err
		}
		f.mu.Lock()
		_, there := f.created[m.Topic]
		f.created[m.Topic] = m.Settings
		f.mu.Unlock()
		c.send(codec.AppendCreateReply(nil, h.Correlation, codec.CreateReply{Created: !there, Settings: m.Settings}))
	case codec.TypeList:
		m, err := codec.ParseList(header)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		var page codec.ListReply
		for _, name := range slices.Sorted(maps.Keys(f.created)) {
			switch {
			case name <= m.After:
			case len(page.Topics) < 3:
				page.Topics = append(page.Topics, codec.TopicEntry{Name: name, ID: codec.TopicID{1}, Settings: f.created[name]})
			default:
				page.More = true
			}
		}
		c.send(codec.AppendListReply(nil, h.Correlation, page))
	case codec.TypeAlter:
		m, err := codec.ParseCreate(header)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		s, there := f.created[m.Topic]
		if !there {
			wireError(codec.CodeUnknownTopic)
			return nil
		}
		s.Partitions = m.Settings.Partitions
		f.created[m.Topic] = s
		c.send(codec.AppendAlterReply(nil, h.Correlation, codec.CreateReply{Settings: s}))
	case codec.TypeDelete:
		topic, err := codec.ParseTopicRequest(h.Type, header)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, there := f.created[topic]; !there {
			wireError(codec.CodeUnknownTopic)
			return nil
		}
		delete(f.created, topic)
		c.send(codec.AppendDeleteReply(nil, h.Correlation))
	case codec.TypePurge:
		m, err := codec.ParsePurge(header)
		if err != nil {
			return err
		}
		if m.Topic == "missing" {
			wireError(codec.CodeUnknownTopic)
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		records := uint64(0)
		for p := range f.logs {
			if m.Partition != codec.AllPartitions && int(m.Partition) != p {
				continue
			}
			for _, b := range f.logs[p] {
				records += uint64(b.RecordCount())
			}
			f.logs[p] = nil
		}
		c.send(codec.AppendPurgeReply(nil, h.Correlation, records))
	case codec.TypeStats:
		if err := codec.ParseEmpty(h.Type, header); err != nil {
			return err
		}
		c.send(codec.AppendStatsReply(nil, h.Correlation, []codec.Stat{{Name: "connections", Value: 1}, {Name: "topics", Value: 1 << 40}}))
	case codec.TypeDescribe:
		topic, err := codec.ParseTopicRequest(h.Type, header)
		if err != nil {
			return err
		}
		if topic == "missing" {
			wireError(codec.CodeUnknownTopic)
			return nil
		}
		f.mu.Lock()
		d := codec.Description{Settings: codec.TopicSettings{Storage: codec.StorageQueue, Partitions: uint32(f.partitions)}}
		for _, next := range f.next {
			d.Partitions = append(d.Partitions, codec.PartitionInfo{High: next, Next: next})
		}
		f.mu.Unlock()
		c.send(codec.AppendDescription(nil, h.Correlation, d))
	case codec.TypeOpen:
		m, err := codec.ParseOpen(header)
		if err != nil {
			return err
		}
		switch {
		case c.draining:
			wireError(codec.CodeDraining)
			return nil
		case m.Topic == "missing":
			wireError(codec.CodeUnknownTopic)
			return nil
		case int(m.Partition) >= f.partitions:
			wireError(codec.CodeUnknownPartition)
			return nil
		}
		if o := c.opens[h.Handle]; o != nil && m.Epoch <= o.epoch {
			return fmt.Errorf("reopened with epoch %d after %d", m.Epoch, o.epoch)
		}
		c.opens[h.Handle] = &fakeOpen{partition: int(m.Partition), epoch: m.Epoch}
		level := m.Level
		if level == codec.LevelDefault {
			level = codec.LevelAppended
		}
		f.mu.Lock()
		r := codec.OpenReply{
			ID: f.topicID, Partitions: uint32(f.partitions), WindowBytes: f.window, MaxBatchBytes: f.maxBatch, Level: level,
			Next: f.next[m.Partition],
		}
		f.mu.Unlock()
		c.send(codec.AppendOpenReply(nil, h.Correlation, h.Handle, r))
	case codec.TypePublish:
		m, results, err := c.append(h, header, payload)
		if err != nil {
			return err
		}
		c.send(confirmFrame(h.Handle, m.Epoch, m.First, results...))
	case codec.TypeSubscribe:
		m, err := codec.ParseSubscribe(header)
		if err != nil {
			return err
		}
		switch {
		case m.Topic == "missing":
			wireError(codec.CodeUnknownTopic)
			return nil
		case int(m.Partition) >= f.partitions:
			wireError(codec.CodeUnknownPartition)
			return nil
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		s := &fakeSub{partition: int(m.Partition), handle: h.Handle, credit: int64(m.CreditBytes)}
		log := f.logs[m.Partition]
		next := f.next[m.Partition]
		begin := codec.Offset(0)
		switch m.From {
		case codec.FromLatest:
			begin, s.at = next, len(log)
		case codec.FromOffset:
			begin = codec.Offset(m.Value)
			if begin > next && m.Kind == codec.KindSub {
				wireError(codec.CodeOffsetOutOfRange)
				return nil
			}
			for s.at < len(log) && log[s.at].NextOffset() <= begin {
				s.at++
			}
		}
		c.subs[h.Handle] = s
		c.send(codec.AppendSubscribeReply(nil, h.Correlation, h.Handle, codec.SubscribeReply{
			ID: f.topicID, Partitions: uint32(f.partitions), High: next, Begin: begin,
		}))
		c.pumpLocked(s)
	case codec.TypeCredit:
		n, err := codec.ParseCredit(header)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		s := c.subs[h.Handle]
		if s == nil {
			return errors.New("credit for a handle that is not open")
		}
		s.credit += int64(n)
		c.pumpLocked(s)
	case codec.TypeProducer:
		if err := codec.ParseEmpty(h.Type, header); err != nil {
			return err
		}
		f.mu.Lock()
		f.identities++
		id := f.identities
		f.mu.Unlock()
		c.send(codec.AppendProducerReply(nil, h.Correlation, codec.ProducerReply{ID: id}))
	case codec.TypeHeartbeat:
		return codec.ParseEmpty(h.Type, header)
	default:
		return fmt.Errorf("frame type %s is not for a broker", h.Type)
	}
	return nil
}

// append checks and stores the batches of a publish frame and returns their results.
func (c *fakeConn) append(h codec.Header, header, payload []byte) (m codec.Publish, results []codec.Result, err error) {
	f := c.broker
	if m, err = codec.ParsePublish(header); err != nil {
		return m, nil, err
	}
	o := c.opens[h.Handle]
	if o == nil {
		return m, nil, errors.New("publish to a handle that is not open")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for rest := payload; len(rest) > 0; {
		var b codec.Batch
		if b, rest, err = codec.NextBatch(rest); err != nil {
			return m, nil, err
		}
		if err = codec.CheckBatch(b, int(f.maxBatch)); err != nil {
			return m, nil, err
		}
		r := codec.Result{}
		stored := false
		switch {
		case m.Epoch != o.epoch:
			return m, nil, fmt.Errorf("batch of epoch %d, the handle has %d", m.Epoch, o.epoch)
		case o.stale:
			r.Code = codec.CodeStaleEpoch
		case c.draining:
			r.Code = codec.CodeDraining
		default:
			r, stored = f.knownLocked(o.partition, b)
			if !stored && r.Code == codec.CodeNone && f.judge != nil {
				r.Code = f.judge(o.partition, b)
			}
		}
		if r.Code != codec.CodeNone {
			o.stale = true
		} else if !stored {
			r.Base = f.next[o.partition]
			f.appendLocked(o.partition, b)
		}
		results = append(results, r)
	}
	if len(results) != int(m.Count) {
		return m, nil, fmt.Errorf("%d batches came, %d were announced", len(results), m.Count)
	}
	return m, results, nil
}

// knownLocked looks a batch up among the last five of its producer.
func (f *fakeBroker) knownLocked(partition int, b codec.Batch) (r codec.Result, stored bool) {
	who := f.producers[partition][b.ProducerID()]
	if b.ProducerID() < 0 || who == nil || b.ProducerEpoch() > who.epoch {
		return r, false
	}
	if b.ProducerEpoch() < who.epoch {
		return codec.Result{Code: codec.CodeProducerFenced}, false
	}
	first, next := b.BaseSequence(), nextSequence(b.BaseSequence(), b.RecordCount())
	for _, s := range who.five {
		if s.first == first && s.next == next {
			return codec.Result{Base: s.base}, true
		}
	}
	if first != who.five[len(who.five)-1].next {
		return codec.Result{Code: codec.CodeOutOfOrder}, false
	}
	return r, false
}

func (f *fakeBroker) rememberLocked(partition int, b codec.Batch) {
	if b.ProducerID() < 0 {
		return
	}
	who := f.producers[partition][b.ProducerID()]
	if who == nil || who.epoch != b.ProducerEpoch() {
		who = &fakeProducer{epoch: b.ProducerEpoch()}
		f.producers[partition][b.ProducerID()] = who
	}
	who.five = append(who.five, fakeStored{b.BaseSequence(), nextSequence(b.BaseSequence(), b.RecordCount()), b.BaseOffset()})
	if len(who.five) > 5 {
		who.five = who.five[1:]
	}
}

func (f *fakeBroker) appendLocked(partition int, b codec.Batch) {
	defer f.rememberLocked(partition, b)
	b.SetBase(f.next[partition], 0)
	f.next[partition] = b.NextOffset()
	f.logs[partition] = append(f.logs[partition], b)
	for _, c := range f.conns {
		for _, s := range c.subs {
			if s.partition == partition {
				c.pumpLocked(s)
			}
		}
	}
}

// put stores a batch of these values.
func (f *fakeBroker) put(partition int, values ...string) codec.Batch {
	b := buildBatch(f.tb, values...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.appendLocked(partition, b)
	return b
}

func buildBatch(tb testing.TB, values ...string) codec.Batch {
	tb.Helper()
	var w codec.BatchBuilder
	w.Reset(nil, 16<<20)
	for _, v := range values {
		if !w.AddValue(1000, []byte(v)) {
			tb.Fatal("the batch is too large")
		}
	}
	return codec.Batch(w.Finish(codec.NoProducer))
}

// pumpLocked delivers what credit allows, one batch a frame.
func (c *fakeConn) pumpLocked(s *fakeSub) {
	log := c.broker.logs[s.partition]
	for s.credit > 0 && s.at < len(log) {
		b := log[s.at]
		s.at++
		s.credit -= int64(len(b))
		c.send(deliverFrame(s.handle, codec.Deliver{High: c.broker.next[s.partition], AppendMillis: 5000}, b))
	}
}

func deliverFrame(handle uint32, m codec.Deliver, batches ...codec.Batch) []byte {
	var payload []byte
	for _, b := range batches {
		payload = append(payload, b...)
	}
	m.Count = uint16(len(batches))
	return append(codec.AppendDeliver(nil, handle, &m, len(payload)), payload...)
}

func confirmFrame(handle, epoch uint32, first uint64, results ...codec.Result) []byte {
	frame := codec.AppendConfirm(nil, handle, codec.Confirm{Epoch: epoch, First: first, Count: uint32(len(results))})
	for _, r := range results {
		frame = codec.AppendResult(frame, r)
	}
	return frame
}

// rawFrame builds a frame of any type with any header section.
func rawFrame(t codec.Type, flags codec.Flags, corr, handle uint32, header []byte) []byte {
	return append(codec.AppendHeader(nil, t, flags, corr, handle, len(header), 0), header...)
}

func lengthPrefix(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
