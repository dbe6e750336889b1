package topic

import (
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/lightio/lightq/codec"
)

// Limits and defaults of topics' settings.
const (
	// MaxNameBytes is the length of the longest topic name: Kafka's rule, so that every name is a valid one there.
	MaxNameBytes = 249
	// MaxPartitions bounds one topic.
	MaxPartitions = 4096
	// MaxBatchBytesLimit is the largest max-batch that a topic may have.
	MaxBatchBytesLimit = 8 << 20
	// MinBatchBytes is the smallest.
	MinBatchBytes = 1 << 10
	// DefaultRingBytes is a partition's ring: 64 MiB, 60 ms of traffic at full rate.
	DefaultRingBytes = 64 << 20
	// MaxRingBytes bounds a partition's ring.
	MaxRingBytes = 64 << 30
)

// A Topic is a named set of partitions. Its methods may be called from any goroutine.
type Topic struct {
	name       string
	id         codec.TopicID
	settings   codec.TopicSettings
	partitions []*Partition
}

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// ID is the topic's identity.
func (t *Topic) ID() codec.TopicID { return t.id }

// Settings are the settings in force, every field set.
func (t *Topic) Settings() codec.TopicSettings { return t.settings }

// Partition returns one partition, or the error for the wire.
func (t *Topic) Partition(index uint32) (*Partition, error) {
	if uint64(index) >= uint64(len(t.partitions)) {
		return nil, codec.Errorf(codec.CodeUnknownPartition, "topic %s has partitions 0 to %d, not %d",
			t.name, len(t.partitions)-1, index)
	}
	return t.partitions[index], nil
}

// Partitions returns all partitions in order. The slice is shared: do not change it.
func (t *Topic) Partitions() []*Partition { return t.partitions }

// Describe returns the topic's description.
func (t *Topic) Describe() codec.Description {
	d := codec.Description{ID: t.id, Settings: t.settings, Partitions: make([]codec.PartitionInfo, len(t.partitions))}
	for i, p := range t.partitions {
		d.Partitions[i] = p.Info()
	}
	return d
}

func newTopic(name string, s codec.TopicSettings) *Topic {
	t := &Topic{name: name, settings: s}
	if _, err := rand.Read(t.id[:]); err != nil {
		panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
	}
	t.partitions = make([]*Partition, s.Partitions)
	for i := range t.partitions {
		t.partitions[i] = &Partition{index: i, maxBatch: int(s.MaxBatchBytes), topic: t, core: core{settings: s}}
	}
	return t
}

// CheckName says whether a topic may have this name. It is the one place that knows the rule.
func CheckName(name string) error {
	if n := len(name); n < 1 || n > MaxNameBytes {
		return codec.Errorf(codec.CodeInvalidName, "a topic name has 1 to %d bytes, not %d", MaxNameBytes, n)
	}
	if name == "." || name == ".." {
		return codec.Errorf(codec.CodeInvalidName, "%q is not a topic name", name)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return codec.Errorf(codec.CodeInvalidName, "%q is not a topic name: byte %d is %q, allowed are A-Z a-z 0-9 . _ -", name, i, name[i:i+1])
		}
	}
	return nil
}

// complete fills in defaults and checks the settings against each other.
func complete(s codec.TopicSettings) (codec.TopicSettings, error) {
	if s.Storage == 0 {
		s.Storage = codec.StorageQueue
	}
	switch s.Storage {
	case codec.StorageQueue:
	case codec.StorageFile, codec.StorageDirect, codec.StorageQueueFile:
		return s, codec.Errorf(codec.CodeNotYet, "storage %s is not built yet: queue is", s.Storage)
	default:
		return s, codec.Errorf(codec.CodeInvalidSetting, "storage %d is unknown", s.Storage)
	}
	if s.Overflow == 0 {
		s.Overflow = codec.OverflowBlock
	}
	switch s.Overflow {
	case codec.OverflowBlock:
	case codec.OverflowDropOldest, codec.OverflowReject:
		return s, codec.Errorf(codec.CodeNotYet, "overflow %s is not built yet: block is", s.Overflow)
	default:
		return s, codec.Errorf(codec.CodeInvalidSetting, "overflow %d is unknown", s.Overflow)
	}
	if s.Partitions == 0 {
		s.Partitions = 1
	}
	if s.Partitions > MaxPartitions {
		return s, codec.Errorf(codec.CodeInvalidSetting, "%d partitions are above the limit of %d", s.Partitions, MaxPartitions)
	}
	if s.MaxBatchBytes == 0 {
		s.MaxBatchBytes = codec.DefaultMaxBatchBytes
	}
	if s.MaxBatchBytes < MinBatchBytes || s.MaxBatchBytes > MaxBatchBytesLimit {
		return s, codec.Errorf(codec.CodeInvalidSetting, "max-batch %d is outside of %d to %d bytes", s.MaxBatchBytes, MinBatchBytes, MaxBatchBytesLimit)
	}
	if s.RingBytes == 0 {
		s.RingBytes = DefaultRingBytes
	}
	if smallest := 2 * (uint64(s.MaxBatchBytes) + entryOverheadBytes); s.RingBytes < smallest || s.RingBytes > MaxRingBytes {
		return s, codec.Errorf(codec.CodeInvalidSetting, "ring-bytes %d is outside of %d (two batches of max-batch %d) to %d",
			s.RingBytes, smallest, s.MaxBatchBytes, uint64(MaxRingBytes))
	}
	return s, nil
}

// difference names the settings that were asked for (not zero) and differ from those in force.
func difference(asked, have codec.TopicSettings) string {
	var diffs []string
	add := func(differs bool, format string, args ...any) {
		if differs {
			diffs = append(diffs, fmt.Sprintf(format, args...))
		}
	}
	add(asked.Storage != 0 && asked.Storage != have.Storage, "storage is %s, not %s", have.Storage, asked.Storage)
	add(asked.Partitions != 0 && asked.Partitions != have.Partitions, "it has %d partitions, not %d", have.Partitions, asked.Partitions)
	add(asked.Overflow != 0 && asked.Overflow != have.Overflow, "overflow is %s, not %s", have.Overflow, asked.Overflow)
	add(asked.RingBytes != 0 && asked.RingBytes != have.RingBytes, "ring-bytes is %d, not %d", have.RingBytes, asked.RingBytes)
	add(asked.MaxBatchBytes != 0 && asked.MaxBatchBytes != have.MaxBatchBytes, "max-batch is %d, not %d", have.MaxBatchBytes, asked.MaxBatchBytes)
	return strings.Join(diffs, ", ")
}
