package loop

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// startBroker serves a broker on a free loopback port until the test ends.
func startBroker(t testing.TB, cfg Config) *Broker {
	t.Helper()
	b, err := NewBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return b
}

// A peer is a client made of bare frames.
type peer struct {
	t       testing.TB
	conn    net.Conn
	results []codec.Result // confirmed, not yet looked at
}

func dial(t testing.TB, b *Broker) *peer {
	t.Helper()
	conn, err := net.Dial(b.Addrs()[0].Network(), b.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &peer{t: t, conn: conn}
}

// frameLimit is how long a test waits for a frame: far longer than any takes.
const frameLimit = 20 * time.Second

func (p *peer) write(b []byte) {
	p.t.Helper()
	_ = p.conn.SetWriteDeadline(time.Now().Add(frameLimit))
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// next returns the next frame that is not a heartbeat.
func (p *peer) next() (h codec.Header, section, payload []byte) {
	p.t.Helper()
	h, section, payload, err := p.tryNext()
	if err != nil {
		p.t.Fatal(err)
	}
	return h, section, payload
}

func (p *peer) tryNext() (h codec.Header, section, payload []byte, err error) {
	for {
		_ = p.conn.SetReadDeadline(time.Now().Add(frameLimit))
		head := make([]byte, codec.HeaderBytes)
		if _, err = io.ReadFull(p.conn, head); err != nil {
			return h, nil, nil, err
		}
		if h, err = codec.ParseHeader(head, 16<<20); err != nil {
			return h, nil, nil, err
		}
		body := make([]byte, h.FrameBytes()-codec.HeaderBytes)
		if _, err = io.ReadFull(p.conn, body); err != nil {
			return h, nil, nil, err
		}
		if h.Type != codec.TypeHeartbeat {
			return h, body[:h.HeaderSize], body[h.HeaderSize:], nil
		}
	}
}

// expect returns the next frame, which must be of type t.
func (p *peer) expect(t codec.Type) (h codec.Header, section, payload []byte) {
	p.t.Helper()
	h, section, payload = p.next()
	if h.Type != t {
		detail := ""
		if h.Type == codec.TypeError {
			if e, err := codec.ParseError(section); err == nil {
				detail = e.Error()
			}
		}
		p.t.Fatalf("got a %s frame (%s), want %s", h.Type, detail, t)
	}
	return h, section, payload
}

// expectError returns the next frame, which must be an error of code c.
func (p *peer) expectError(c codec.Code) *codec.WireError {
	p.t.Helper()
	_, section, _ := p.expect(codec.TypeError)
	e, err := codec.ParseError(section)
	if err != nil {
		p.t.Fatal(err)
	}
	if e.Code != c {
		p.t.Fatalf("got error %v, want %v", e, c)
	}
	return e
}

func (p *peer) hello() *peer {
	p.t.Helper()
	p.write(codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "test"}))
	p.expect(codec.TypeHello)
	return p
}

func (p *peer) create(name string, s codec.TopicSettings) codec.CreateReply {
	p.t.Helper()
	p.write(codec.AppendCreate(nil, 2, codec.Create{Topic: name, Settings: s}))
	_, section, _ := p.expect(codec.TypeCreate)
	m, err := codec.ParseCreateReply(section)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *peer) open(handle uint32, name string, partition, epoch uint32) codec.OpenReply {
	p.t.Helper()
	p.write(codec.AppendOpen(nil, 3, handle, codec.Open{Topic: name, Partition: partition, Epoch: epoch}))
	_, section, _ := p.expect(codec.TypeOpen)
	m, err := codec.ParseOpenReply(section)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func (p *peer) subscribe(handle uint32, m codec.Subscribe) codec.SubscribeReply {
	p.t.Helper()
	m.Kind = codec.KindSub
	p.write(codec.AppendSubscribe(nil, 4, handle, m))
	_, section, _ := p.expect(codec.TypeSubscribe)
	r, err := codec.ParseSubscribeReply(section)
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

// batchOf returns one batch of the values.
func batchOf(values ...[]byte) []byte {
	var w codec.BatchBuilder
	w.Reset(nil, 8<<20)
	for _, v := range values {
		if !w.Add(1000, nil, v, nil) {
			panic("BUG: the batch is full")
		}
	}
	return w.Finish(codec.NoProducer)
}

func publishFrame(handle, epoch uint32, first uint64, batches ...[]byte) []byte {
	payload := bytes.Join(batches, nil)
	b := codec.AppendPublish(nil, handle, codec.Publish{Epoch: epoch, First: first, Count: uint16(len(batches))}, len(payload))
	return append(b, payload...)
}

// confirm returns the next result.
func (p *peer) confirm() codec.Result {
	p.t.Helper()
	if len(p.results) == 0 {
		_, section, payload := p.expect(codec.TypeConfirm)
		m, err := codec.ParseConfirm(section, payload)
		if err != nil {
			p.t.Fatal(err)
		}
		for i := range int(m.Count) {
			p.results = append(p.results, codec.ResultAt(payload, i))
		}
	}
	r := p.results[0]
	p.results = p.results[1:]
	return r
}

func TestPublishAndDeliver(t *testing.T) {
	b := startBroker(t, Config{})
	pub, sub := dial(t, b).hello(), dial(t, b).hello()
	pub.create("orders", codec.TopicSettings{})
	pub.open(7, "orders", 0, 1)
	r := sub.subscribe(9, codec.Subscribe{Topic: "orders", From: codec.FromEarliest, CreditBytes: 1 << 20})
	if r.Begin != 0 || r.Partitions != 1 {
		t.Fatalf("%+v", r)
	}
	large := bytes.Repeat([]byte("L"), 600_000)
	pub.write(publishFrame(7, 1, 0, batchOf([]byte("a"), []byte("b")), batchOf([]byte("c"))))
	pub.write(publishFrame(7, 1, 2, batchOf(large)))
	for i, want := range []codec.Offset{0, 2, 3} {
		if r := pub.confirm(); r.Code != codec.CodeNone || r.Base != want {
			t.Fatalf("batch %d: %+v, want offset %d", i, r, want)
		}
	}
	var got [][]byte
	for next := codec.Offset(0); next < 4; {
		_, section, payload := sub.expect(codec.TypeDeliver)
		m, err := codec.ParseDeliver(section)
		if err != nil {
			t.Fatal(err)
		}
		for range m.Count {
			var batch codec.Batch
			batch, payload, err = codec.NextBatch(payload)
			if err != nil {
				t.Fatal(err)
			}
			if err := codec.CheckDelivered(batch); err != nil {
				t.Fatal(err)
			}
			if batch.BaseOffset() != next {
				t.Fatalf("base offset %d, want %d", batch.BaseOffset(), next)
			}
			rs := batch.Records()
			for rs.Next() {
				got = append(got, rs.Record.Value)
			}
			next = batch.NextOffset()
		}
	}
	if want := [][]byte{[]byte("a"), []byte("b"), []byte("c"), large}; !equal(got, want) {
		t.Fatalf("delivered %d records, which differ from those published", len(got))
	}
}

func equal(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
