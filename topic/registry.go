package topic

import (
	"sync"

	"github.com/lightio/lightq/codec"
)

// A Registry holds the broker's topics. Its methods may be called from any goroutine.
type Registry struct {
	maxPartitions int // over all topics

	mu         sync.RWMutex
	topics     map[string]*Topic
	partitions int
}

// NewRegistry returns an empty registry that holds at most maxPartitions partitions over all topics.
func NewRegistry(maxPartitions int) *Registry {
	return &Registry{maxPartitions: maxPartitions, topics: map[string]*Topic{}}
}

// Create makes a topic, or returns the one that has the name if the settings asked for are those it has; created tells
// which. Zero fields of asked mean the default for a new topic and anything for one that exists.
func (r *Registry) Create(name string, asked codec.TopicSettings) (t *Topic, created bool, err error) {
	if err := CheckName(name); err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.topics[name]; t != nil {
		if diff := difference(asked, t.settings); diff != "" {
			return nil, false, codec.Errorf(codec.CodeTopicExists, "topic %s exists: %s", name, diff)
		}
		return t, false, nil
	}
	s, err := complete(asked)
	if err != nil {
		return nil, false, err
	}
	if r.partitions+int(s.Partitions) > r.maxPartitions {
		return nil, false, codec.Errorf(codec.CodeTooManyTopics, "the broker holds %d partitions and its limit is %d", r.partitions, r.maxPartitions)
	}
	t = newTopic(name, s)
	r.topics[name] = t
	r.partitions += int(s.Partitions)
	return t, true, nil
}

// Get returns the topic, or the error for the wire.
func (r *Registry) Get(name string) (*Topic, error) {
	r.mu.RLock()
	t := r.topics[name]
	r.mu.RUnlock()
	if t == nil {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		return nil, codec.Errorf(codec.CodeUnknownTopic, "there is no topic %s", name)
	}
	return t, nil
}

// Each calls f for every topic until f returns false.
func (r *Registry) Each(f func(*Topic) bool) {
	r.mu.RLock()
	topics := make([]*Topic, 0, len(r.topics))
	for _, t := range r.topics {
		topics = append(topics, t)
	}
	r.mu.RUnlock()
	for _, t := range topics {
		if !f(t) {
			return
		}
	}
}

// Tick cuts off consumers that have held up full rings without progress since stalledSinceMillis.
func (r *Registry) Tick(stalledSinceMillis, nowMillis int64) {
	r.Each(func(t *Topic) bool {
		for _, p := range t.partitions {
			p.Tick(stalledSinceMillis, nowMillis)
		}
		return true
	})
}
