package loop

import (
	"fmt"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// This file serves the requests about topics. Each parses its header section, and answers with a reply or an error.

// createTopic makes a topic for the native and for the JSON protocol.
func (b *Broker) createTopic(name string, s codec.TopicSettings, user, password string) (*topic.Topic, bool, error) {
	if b.draining.Load() {
		return nil, false, codec.Errorf(codec.CodeDraining, "the broker is stopping")
	}
	t, created, err := b.topics.Create(name, s, user, password)
	if created {
		b.log.Info("topic created", "topic", t.Name(), "storage", t.Settings().Storage, "partitions", t.Settings().Partitions)
	}
	return t, created, err
}

func (s *session) create(h codec.Header, section []byte) error {
	m, err := codec.ParseCreate(section)
	if err != nil {
		return err
	}
	return s.serve(h, func() (func(), error) {
		t, created, err := s.l.b.createTopic(m.Topic, m.Settings, "", "")
		return func() {
			s.send(codec.AppendCreateReply(s.frame(), h.Correlation, codec.CreateReply{ID: t.ID(), Created: created, Settings: t.Settings()}))
		}, err
	})
}

func (s *session) describe(h codec.Header, section []byte) error {
	name, err := codec.ParseTopicRequest(h.Type, section)
	if err != nil {
		return err
	}
	t, err := s.l.b.topics.Get(name)
	if err != nil {
		return err
	}
	s.send(codec.AppendDescription(s.frame(), h.Correlation, t.Describe()))
	return nil
}

// listLimit bounds the entries of one list reply: with names of the longest kind they fit a frame of 1 MiB.
const listLimit = 2000

func (s *session) list(h codec.Header, section []byte) error {
	m, err := codec.ParseList(section)
	if err != nil {
		return err
	}
	limit := listLimit
	if m.Limit > 0 {
		limit = min(limit, int(min(m.Limit, listLimit)))
	}
	topics, more := s.l.b.topics.List(m.After, limit)
	reply := codec.ListReply{More: more, Topics: make([]codec.TopicEntry, len(topics))}
	for i, t := range topics {
		reply.Topics[i] = codec.TopicEntry{Name: t.Name(), ID: t.ID(), Settings: t.Settings()}
	}
	s.send(codec.AppendListReply(s.frame(), h.Correlation, reply))
	return nil
}

func (s *session) alter(h codec.Header, section []byte) error {
	m, err := codec.ParseCreate(section)
	if err != nil {
		return err
	}
	return s.serve(h, func() (func(), error) {
		t, err := s.l.b.topics.Alter(m.Topic, m.Settings, time.Now().UnixMilli())
		if err != nil {
			return nil, err
		}
		s.l.b.log.Info("topic altered", "topic", t.Name(), "partitions", t.Settings().Partitions, "overflow", t.Settings().Overflow,
			"ring_bytes", t.Settings().RingBytes, "max_batch", t.Settings().MaxBatchBytes)
		return func() {
			s.send(codec.AppendAlterReply(s.frame(), h.Correlation, codec.CreateReply{ID: t.ID(), Settings: t.Settings()}))
		}, nil
	})
}

func (s *session) delete(h codec.Header, section []byte) error {
	name, err := codec.ParseTopicRequest(h.Type, section)
	if err != nil {
		return err
	}
	return s.serve(h, func() (func(), error) {
		if err := s.l.b.topics.Delete(name, time.Now().UnixMilli()); err != nil {
			return nil, err
		}
		s.l.b.log.Info("topic deleted", "topic", name)
		return func() { s.send(codec.AppendDeleteReply(s.frame(), h.Correlation)) }, nil
	})
}

func (s *session) purge(h codec.Header, section []byte) error {
	m, err := codec.ParsePurge(section)
	if err != nil {
		return err
	}
	t, err := s.l.b.topics.Get(m.Topic)
	if err != nil {
		return err
	}
	parts := t.Partitions()
	if m.Partition != codec.AllPartitions {
		p, err := t.Partition(m.Partition)
		if err != nil {
			return err
		}
		parts = []*topic.Partition{p}
	}
	return s.serve(h, func() (func(), error) {
		records := uint64(0)
		for _, p := range parts {
			n, err := p.Purge(time.Now().UnixMilli())
			records += n
			if err != nil {
				return nil, err
			}
		}
		s.l.b.log.Info("topic purged", "topic", t.Name(), "records", records)
		return func() { s.send(codec.AppendPurgeReply(s.frame(), h.Correlation, records)) }, nil
	})
}

func (s *session) stats(h codec.Header, section []byte) error {
	if err := codec.ParseEmpty(h.Type, section); err != nil {
		return err
	}
	s.send(codec.AppendStatsReply(s.frame(), h.Correlation, s.l.b.Stats()))
	return nil
}

func (s *session) producer(h codec.Header, section []byte) error {
	if err := codec.ParseEmpty(h.Type, section); err != nil {
		return err
	}
	return s.serve(h, func() (func(), error) {
		id, err := s.l.b.producerID()
		return func() { s.send(codec.AppendProducerReply(s.frame(), h.Correlation, codec.ProducerReply{ID: id})) }, err
	})
}

// Stats returns the broker's own figures; docs/PROTOCOL.md says what the names mean.
func (b *Broker) Stats() []codec.Stat {
	topics, partitions := b.topics.Count()
	stats := []codec.Stat{
		{Name: "connections", Value: uint64(b.conns.Load())},
		{Name: "topics", Value: uint64(topics)},
		{Name: "partitions", Value: uint64(partitions)},
		{Name: "uptime_seconds", Value: uint64(time.Since(b.started).Seconds())},
		{Name: "slab_bytes_in_use", Value: uint64(b.slabs.InUseBytes())},
		{Name: "slab_bytes_free", Value: uint64(b.slabs.FreeBytes())},
		{Name: "slab_bytes_limit", Value: uint64(b.limits.MemoryBytes)},
	}
	b.slabs.ClassUse(func(size int, slabs int64) {
		stats = append(stats, codec.Stat{Name: fmt.Sprintf("slabs_in_use_%d", size), Value: uint64(slabs)})
	})
	return stats
}
