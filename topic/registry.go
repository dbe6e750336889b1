package topic

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lightio/lightq/codec"
)

// A Registry holds the broker's topics. Its methods may be called from any goroutine.
type Registry struct {
	maxPartitions int    // over all topics
	files         *files // nil: everything is in memory

	admin sync.Mutex // one change of topics at a time: it may wait for the disk

	memory memory
	timed  timedList

	mu         sync.RWMutex
	topics     map[string]*Topic
	sorted     []*Topic // by name
	partitions int
}

// A timedList holds the partitions for which time brings something about, so that ten thousand idle ones cost nothing.
type timedList struct {
	mu   sync.Mutex
	list []*Partition
}

func (l *timedList) add(p *Partition) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.list = append(l.list, p)
	l.mu.Unlock()
}

// NewRegistry returns an empty registry that holds at most maxPartitions partitions over all topics.
func NewRegistry(maxPartitions int) *Registry {
	return &Registry{maxPartitions: maxPartitions, topics: map[string]*Topic{}}
}

// Create makes a topic, or returns the one that has the name if the settings asked for are those it has; created tells
// which. Zero fields of asked mean the default for a new topic and anything for one that exists. user and password, if not
// empty, become the topic's credentials.
func (r *Registry) Create(name string, asked codec.TopicSettings, user, password string) (t *Topic, created bool, err error) {
	if err := CheckName(name); err != nil {
		return nil, false, err
	}
	r.admin.Lock()
	defer r.admin.Unlock()
	if t := r.find(name); t != nil {
		if diff := difference(asked, t.Settings()); diff != "" {
			return nil, false, codec.Errorf(codec.CodeTopicExists, "topic %s exists: %s", name, diff)
		}
		if user+password != "" && (t.login == nil || t.CheckLogin(user, password) != nil) {
			return nil, false, codec.Errorf(codec.CodeTopicExists, "topic %s exists: with other credentials", name)
		}
		return t, false, nil
	}
	s, err := complete(asked)
	if err != nil {
		return nil, false, err
	}
	if filed(s.Storage) && r.files == nil {
		return nil, false, codec.Errorf(codec.CodeInvalidSetting, "storage %s needs a data directory, and this broker has none", s.Storage)
	}
	if err := r.roomFor(int(s.Partitions)); err != nil {
		return nil, false, err
	}
	t = &Topic{name: name, files: r.files, memory: &r.memory, timed: &r.timed, created: time.Now().UnixMilli()}
	if user+password != "" {
		t.login = newLogin(user, password, r.files != nil)
	}
	if err := t.begin(s); err != nil {
		return nil, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics[name] = t
	i, _ := r.place(name)
	r.sorted = slices.Insert(r.sorted, i, t)
	r.partitions += int(s.Partitions)
	t.noteDue()
	return t, true, nil
}

// find returns the topic, or nil.
func (r *Registry) find(name string) *Topic {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.topics[name]
}

// roomFor checks the limit on partitions. admin is held.
func (r *Registry) roomFor(more int) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if more > 0 && r.partitions+more > r.maxPartitions {
		return codec.Errorf(codec.CodeTooManyTopics, "the broker holds %d partitions and its limit is %d", r.partitions, r.maxPartitions)
	}
	return nil
}

// Get returns the topic, or the error for the wire.
func (r *Registry) Get(name string) (*Topic, error) {
	t := r.find(name)
	if t == nil {
		if err := CheckName(name); err != nil {
			return nil, err
		}
		if r.files != nil {
			if err := r.files.setAside(name); err != nil {
				return nil, err
			}
		}
		return nil, codec.Errorf(codec.CodeUnknownTopic, "there is no topic %s", name)
	}
	return t, nil
}

// Alter changes the settings of a topic that are not zero in change, and returns the topic. Partitions only grow.
func (r *Registry) Alter(name string, change codec.TopicSettings, nowMillis int64) (*Topic, error) {
	r.admin.Lock()
	defer r.admin.Unlock()
	t, err := r.Get(name)
	if err != nil {
		return nil, err
	}
	old := t.now.Load()
	s := old.settings
	switch {
	case change.Storage != 0 && change.Storage != s.Storage:
		return nil, codec.Errorf(codec.CodeInvalidSetting, "the storage of topic %s is %s and cannot be changed", name, s.Storage)
	case change.Partitions != 0 && change.Partitions < s.Partitions:
		return nil, codec.Errorf(codec.CodeInvalidSetting, "topic %s has %d partitions, and they only grow: not to %d", name, s.Partitions, change.Partitions)
	}
	for _, fixed := range []struct {
		name        string
		asked, have uint64
	}{
		{"sync", uint64(change.Sync), uint64(s.Sync)},
		{"sync interval", uint64(change.SyncMillis), uint64(s.SyncMillis)},
		{"segment-bytes", change.SegmentBytes, s.SegmentBytes},
	} {
		if fixed.asked != 0 && fixed.asked != fixed.have {
			return nil, codec.Errorf(codec.CodeInvalidSetting, "the %s of topic %s cannot be changed", fixed.name, name)
		}
	}
	if s, err = complete(s.With(change)); err != nil {
		return nil, err
	}
	more := int(s.Partitions - old.settings.Partitions)
	if err := r.roomFor(more); err != nil {
		return nil, err
	}
	if t.files != nil {
		if err := t.files.putSettings(t, s); err != nil {
			return nil, diskError("alter topic "+name, err)
		}
	}
	partitions, err := t.grow(old.partitions, s)
	if err != nil {
		return nil, err
	}
	for _, p := range old.partitions {
		p.alter(s, nowMillis)
	}
	r.mu.Lock()
	r.partitions += more
	r.mu.Unlock()
	t.now.Store(&topicState{settings: s, partitions: partitions})
	t.noteDue()
	return t, nil
}

// Delete removes a topic with all that it holds: publishers are refused, consumers cut off with codec.CodeTopicDeleted.
func (r *Registry) Delete(name string, nowMillis int64) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	t, err := r.Get(name)
	if err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.topics, name)
	i, _ := r.place(name)
	r.sorted = slices.Delete(r.sorted, i, i+1)
	r.partitions -= len(t.Partitions())
	r.mu.Unlock()
	for _, p := range t.Partitions() {
		p.remove(nowMillis)
	}
	if t.files != nil {
		if err := t.files.delete(t); err != nil {
			return diskError("delete topic "+name+": it is not served any more, but its files may be there again after a restart", err)
		}
	}
	return nil
}

// place returns where a name stands, or would, in sorted. mu is held.
func (r *Registry) place(name string) (int, bool) {
	return slices.BinarySearchFunc(r.sorted, name, func(t *Topic, name string) int { return strings.Compare(t.name, name) })
}

// List returns at most limit topics in order of their names, from the first behind after on, and whether there are more. Its
// cost follows limit, not the number of topics.
func (r *Registry) List(after string, limit int) (topics []*Topic, more bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i, found := r.place(after)
	if found {
		i++
	}
	end := min(i+limit, len(r.sorted))
	return slices.Clone(r.sorted[i:end]), end < len(r.sorted)
}

// Count returns how many topics and partitions there are.
func (r *Registry) Count() (topics, partitions int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.topics), r.partitions
}

// Each calls f for every topic, in order of their names, until f returns false.
func (r *Registry) Each(f func(*Topic) bool) {
	r.mu.RLock()
	topics := slices.Clone(r.sorted)
	r.mu.RUnlock()
	for _, t := range topics {
		if !f(t) {
			return
		}
	}
}

// Tick does what Partition.Tick does, for every partition that has something due, and returns how many these were.
func (r *Registry) Tick(stalledSinceMillis, nowMillis int64) (ticked int) {
	if r.files != nil {
		r.files.watchSpace()
	}
	if since := r.memory.sinceMillis.Load(); since != 0 && since <= stalledSinceMillis {
		// Whoever holds memory may be stalled, also where no publisher waits.
		r.Each(func(t *Topic) bool {
			for _, p := range t.Partitions() {
				if p.ringBytes.Load() > 0 {
					p.Tick(stalledSinceMillis, nowMillis)
				}
			}
			return true
		})
	}
	r.timed.mu.Lock()
	list := r.timed.list
	r.timed.list = nil
	r.timed.mu.Unlock()
	rest := list[:0]
	for _, p := range list {
		if due := p.dueMillis.Load(); due != 0 && due <= nowMillis {
			p.Tick(stalledSinceMillis, nowMillis)
			ticked++
		}
		if p.dueMillis.Load() != 0 || !p.untimed() {
			rest = append(rest, p)
		}
	}
	clear(list[len(rest):])
	r.timed.mu.Lock()
	r.timed.list = append(rest, r.timed.list...)
	r.timed.mu.Unlock()
	return ticked
}
