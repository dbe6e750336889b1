package client

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lightio/lightq/codec"
)

// A kafkaBroker is as much of a Kafka broker as a producer and a consumer of one topic with one partition need: it keeps what is produced as
// it came, numbered, and serves what it keeps. It is made of franz-go's message definitions, so that both sides of the tests that
// use it, and nothing of ours, decide what is right on the wire.
type kafkaBroker struct {
	t        testing.TB
	listener net.Listener
	done     chan struct{}
	wg       sync.WaitGroup

	mu    sync.Mutex
	log   []byte // whole batches with their base offsets
	next  codec.Offset
	conns map[net.Conn]struct{}
	ids   int64 // producer ids given out
}

const (
	kafkaTopic = "orders"
	// The first id that the broker gives out and the epoch of all.
	kafkaProducerID    = 4000
	kafkaProducerEpoch = 3
)

// kafkaVersions are the requests that it answers. Later versions name topics by their ids.
var kafkaVersions = map[kmsg.Key]int16{
	kmsg.Produce: 9, kmsg.Fetch: 12, kmsg.ListOffsets: 7, kmsg.Metadata: 9, kmsg.ApiVersions: 3, kmsg.InitProducerID: 4,
}

// newKafkaBroker starts a broker whose partition has batches that stand one behind the other from offset 0 on.
func newKafkaBroker(t testing.TB, log []byte, next codec.Offset) *kafkaBroker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &kafkaBroker{t: t, listener: l, done: make(chan struct{}), log: log, next: next, conns: map[net.Conn]struct{}{}}
	k.wg.Go(k.run)
	t.Cleanup(k.stop)
	return k
}

func (k *kafkaBroker) addr() string { return k.listener.Addr().String() }

// produced is what was produced so far.
func (k *kafkaBroker) produced() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.log
}

func (k *kafkaBroker) stop() {
	close(k.done)
	_ = k.listener.Close()
	k.mu.Lock()
	for c := range k.conns {
		_ = c.Close()
	}
	k.mu.Unlock()
	k.wg.Wait()
}

func (k *kafkaBroker) run() {
	for {
		c, err := k.listener.Accept()
		if err != nil {
			return
		}
		k.mu.Lock()
		k.conns[c] = struct{}{}
		k.mu.Unlock()
		k.wg.Go(func() {
			err := k.serve(c)
			select {
			case <-k.done:
			default:
				switch {
				case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
				case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE): // it has gone with an answer unread
				default:
					k.t.Errorf("the Kafka broker: %v", err)
				}
			}
			_ = c.Close()
		})
	}
}

// serve answers the requests of a connection, one behind the other.
func (k *kafkaBroker) serve(c net.Conn) error {
	for {
		var head [4]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return err
		}
		b := make([]byte, binary.BigEndian.Uint32(head[:]))
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		out, err := k.answer(b)
		if err != nil {
			return err
		}
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := c.Write(out); err != nil {
			return err
		}
	}
}

// answer decodes a request and returns the frame of the answer, with room for its length.
func (k *kafkaBroker) answer(b []byte) ([]byte, error) {
	key, version, correlation := int16(binary.BigEndian.Uint16(b)), int16(binary.BigEndian.Uint16(b[2:])), b[4:8]
	req := kmsg.RequestForKey(key)
	if kmsg.Key(key) == kmsg.ApiVersions && version > kafkaVersions[kmsg.ApiVersions] {
		// KIP-511: whatever the client's version, the answer says in version 0 which are understood.
		resp := k.apiVersions()
		resp.ErrorCode = 35 // UNSUPPORTED_VERSION
		return resp.AppendTo(append(make([]byte, 4), correlation...)), nil
	}
	if most, ok := kafkaVersions[kmsg.Key(key)]; req == nil || !ok || version > most {
		return nil, fmt.Errorf("a request of key %d, version %d", key, version)
	}
	req.SetVersion(version)
	body := b[8:]
	if name := int16(binary.BigEndian.Uint16(body)); name > 0 { // the client's
		body = body[name:]
	}
	body = body[2:]
	if req.IsFlexible() {
		body = body[1:] // tags, of which there are none
	}
	if err := req.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("a request of key %d, version %d: %w", key, version, err)
	}
	resp, err := k.respond(req)
	if err != nil {
		return nil, err
	}
	resp.SetVersion(version)
	out := append(make([]byte, 4), correlation...)
	if resp.IsFlexible() && kmsg.Key(key) != kmsg.ApiVersions {
		out = append(out, 0)
	}
	return resp.AppendTo(out), nil
}

func (k *kafkaBroker) respond(req kmsg.Request) (kmsg.Response, error) {
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		return k.apiVersions(), nil
	case *kmsg.MetadataRequest:
		return k.metadata(), nil
	case *kmsg.InitProducerIDRequest:
		resp := kmsg.NewPtrInitProducerIDResponse()
		k.mu.Lock()
		defer k.mu.Unlock()
		resp.ProducerID, resp.ProducerEpoch = kafkaProducerID+k.ids, kafkaProducerEpoch
		k.ids++
		return resp, nil
	case *kmsg.ListOffsetsRequest:
		resp := kmsg.NewPtrListOffsetsResponse()
		t, p := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		p.LeaderEpoch = 0
		t.Topic = kafkaTopic
		if req.Topics[0].Partitions[0].Timestamp == -1 {
			p.Offset = int64(k.next)
		} else {
			p.Offset = 0
		}
		t.Partitions = append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
		return resp, nil
	case *kmsg.ProduceRequest:
		return k.produce(req)
	case *kmsg.FetchRequest:
		return k.fetch(req), nil
	}
	return nil, fmt.Errorf("no answer to %T", req)
}

func (k *kafkaBroker) apiVersions() *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	for key, version := range kafkaVersions {
		v := kmsg.NewApiVersionsResponseApiKey()
		v.ApiKey, v.MaxVersion = key.Int16(), version
		resp.ApiKeys = append(resp.ApiKeys, v)
	}
	return resp
}

func (k *kafkaBroker) metadata() kmsg.Response {
	resp := kmsg.NewPtrMetadataResponse()
	b := kmsg.NewMetadataResponseBroker()
	addr := k.listener.Addr().(*net.TCPAddr)
	b.NodeID, b.Host, b.Port = 1, addr.IP.String(), int32(addr.Port)
	resp.Brokers = append(resp.Brokers, b)
	resp.ControllerID = 1
	t := kmsg.NewMetadataResponseTopic()
	t.Topic = kmsg.StringPtr(kafkaTopic)
	p := kmsg.NewMetadataResponseTopicPartition()
	p.Leader, p.LeaderEpoch, p.Replicas, p.ISR = 1, 0, []int32{1}, []int32{1}
	t.Partitions = append(t.Partitions, p)
	resp.Topics = append(resp.Topics, t)
	return resp
}

func (k *kafkaBroker) produce(req *kmsg.ProduceRequest) (kmsg.Response, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	resp := kmsg.NewPtrProduceResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.BaseOffset = int64(k.next)
			var records kmsg.RecordBatch
			if err := records.ReadFrom(p.Records); err != nil {
				return nil, fmt.Errorf("a record batch: %w", err)
			}
			k.log = append(k.log, p.Records...)
			k.next += codec.Offset(records.NumRecords)
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp, nil
}

func (k *kafkaBroker) fetch(req *kmsg.FetchRequest) kmsg.Response {
	resp := kmsg.NewPtrFetchResponse()
	for _, t := range req.Topics {
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.HighWatermark, rp.LastStableOffset, rp.LogStartOffset = int64(k.next), int64(k.next), 0
			rp.RecordBatches = k.from(codec.Offset(p.FetchOffset))
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	if len(resp.Topics) == 0 || len(resp.Topics[0].Partitions[0].RecordBatches) == 0 {
		select { // there will be nothing new
		case <-k.done:
		case <-time.After(time.Duration(req.MaxWaitMillis) * time.Millisecond):
		}
	}
	return resp
}

// from returns the batches from the one that holds an offset on.
func (k *kafkaBroker) from(offset codec.Offset) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	for rest := k.log; len(rest) > 0; {
		b, more, err := codec.NextBatch(rest)
		if err != nil {
			k.t.Error(err)
			return nil
		}
		if b.NextOffset() > offset {
			return rest
		}
		rest = more
	}
	return nil
}
