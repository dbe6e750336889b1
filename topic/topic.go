package topic

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

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
	// DefaultTailBytes is what is held in memory of a partition that is stored in files: 32 MiB, so that a consumer which is some
	// ten milliseconds behind is still served from it.
	DefaultTailBytes = 32 << 20
	// MinSegmentBytes and MaxSegmentBytes bound segment-bytes; the default is that of the journal.
	MinSegmentBytes     = 64 << 10
	MaxSegmentBytes     = 1 << 30
	DefaultSegmentBytes = 128 << 20
	// DefaultSyncMillis is the interval of sync=interval, and of the writing behind of queue_file.
	DefaultSyncMillis = 10
	// MaxSyncMillis bounds it.
	MaxSyncMillis = 60_000
)

// A Topic is a named set of partitions. Its methods may be called from any goroutine.
type Topic struct {
	name string
	id   codec.TopicID
	now  atomic.Pointer[topicState]

	// credentials that the JSON protocol checks; nil: none
	login *login

	files   *files              // nil: the registry has no data directory
	created int64               // milliseconds since the Unix epoch
	gone    bool                // deleted; under files.mu
	stored  codec.TopicSettings // what the catalogue has; under files.mu. Ahead of now while an alteration is under way

	// of the registry; nil where a topic has none
	memory *memory // nil: there is enough
	timed  *timedList
}

// topicState is what alter replaces as a whole.
type topicState struct {
	settings   codec.TopicSettings
	partitions []*Partition
}

// Name is the topic's name.
func (t *Topic) Name() string { return t.name }

// ID is the topic's identity.
func (t *Topic) ID() codec.TopicID { return t.id }

// Settings are the settings in force, every field set.
func (t *Topic) Settings() codec.TopicSettings { return t.now.Load().settings }

// Partition returns one partition, or the error for the wire.
func (t *Topic) Partition(index uint32) (*Partition, error) {
	partitions := t.Partitions()
	if uint64(index) >= uint64(len(partitions)) {
		return nil, codec.Errorf(codec.CodeUnknownPartition, "topic %s has partitions 0 to %d, not %d",
			t.name, len(partitions)-1, index)
	}
	return partitions[index], nil
}

// Partitions returns all partitions in order. The slice is shared: do not change it.
func (t *Topic) Partitions() []*Partition { return t.now.Load().partitions }

// Describe returns the topic's description.
func (t *Topic) Describe() codec.Description {
	now := t.now.Load()
	d := codec.Description{ID: t.id, Settings: now.settings, Partitions: make([]codec.PartitionInfo, len(now.partitions))}
	for i, p := range now.partitions {
		d.Partitions[i] = p.Info()
	}
	return d
}

// begin gives a new topic its identity and partitions.
func (t *Topic) begin(s codec.TopicSettings) error {
	if _, err := rand.Read(t.id[:]); err != nil {
		panic(fmt.Sprintf("BUG: crypto/rand failed: %v", err)) // documented never to happen
	}
	if t.files != nil {
		if err := t.files.put(t, s, nil, nil); err != nil {
			return diskError("create topic "+t.name, err)
		}
	}
	partitions, err := t.grow(nil, s)
	if err != nil {
		return errors.Join(err, t.files.forget(t)) // only files can fail
	}
	t.now.Store(&topicState{settings: s, partitions: partitions})
	return nil
}

// grow returns the partitions that s asks for, of which have exist.
func (t *Topic) grow(have []*Partition, s codec.TopicSettings) ([]*Partition, error) {
	partitions := slices.Clone(have)
	for i := len(have); i < int(s.Partitions); i++ {
		p := newPartition(t, i, s)
		if t.files != nil {
			if err := t.files.attach(p, s); err != nil {
				for _, p := range append(partitions[len(have):], p) {
					if p.log != nil {
						_ = p.log.Close() // nothing is in it
					}
				}
				return nil, err
			}
		}
		partitions = append(partitions, p)
	}
	return partitions, nil
}

func newPartition(t *Topic, index int, s codec.TopicSettings) *Partition {
	p := &Partition{index: index, topic: t, core: core{settings: s}}
	p.maxBatch.Store(int64(s.MaxBatchBytes))
	return p
}

// CheckName says whether a topic may have this name.
func CheckName(name string) error { return checkName("topic", name) }

// CheckGroupName says whether a group may have this name: the rule is that of topics.
func CheckGroupName(name string) error { return checkName("group", name) }

// checkName is the one place that knows the rule.
func checkName(what, name string) error {
	if n := len(name); n < 1 || n > MaxNameBytes {
		return codec.Errorf(codec.CodeInvalidName, "a %s name has 1 to %d bytes, not %d", what, MaxNameBytes, n)
	}
	if name == "." || name == ".." {
		return codec.Errorf(codec.CodeInvalidName, "%q is not a %s name", name, what)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-':
		default:
			return codec.Errorf(codec.CodeInvalidName, "%q is not a %s name: byte %d is %q, allowed are A-Z a-z 0-9 . _ -", name, what, i, name[i:i+1])
		}
	}
	return nil
}

// filed reports whether a storage keeps records in files.
func filed(s codec.Storage) bool { return s == codec.StorageFile || s == codec.StorageQueueFile }

// complete fills in defaults and checks the settings against each other.
func complete(s codec.TopicSettings) (codec.TopicSettings, error) {
	if s.Storage == 0 {
		s.Storage = codec.StorageQueue
	}
	switch s.Storage {
	case codec.StorageQueue, codec.StorageDirect, codec.StorageFile, codec.StorageQueueFile:
	default:
		return s, codec.Errorf(codec.CodeInvalidSetting, "storage %d is unknown", s.Storage)
	}
	if err := completeFiled(&s); err != nil {
		return s, err
	}
	if s.Overflow == 0 {
		s.Overflow = codec.OverflowBlock
	}
	switch s.Overflow {
	case codec.OverflowBlock, codec.OverflowDropOldest, codec.OverflowReject:
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
		if s.Storage == codec.StorageFile {
			s.RingBytes = DefaultTailBytes
		}
	}
	if smallest := 2 * (uint64(s.MaxBatchBytes) + entryOverheadBytes); s.RingBytes < smallest || s.RingBytes > MaxRingBytes {
		return s, codec.Errorf(codec.CodeInvalidSetting, "ring-bytes %d is outside of %d (two batches of max-batch %d) to %d",
			s.RingBytes, smallest, s.MaxBatchBytes, uint64(MaxRingBytes))
	}
	return s, nil
}

// completeFiled does it for what only topics in files have.
func completeFiled(s *codec.TopicSettings) error {
	if !filed(s.Storage) {
		if s.Sync != 0 || s.SyncMillis != 0 || s.RetentionBytes != 0 || s.RetentionMillis != 0 || s.SegmentBytes != 0 {
			return codec.Errorf(codec.CodeInvalidSetting, "sync, retention and segment-bytes go with storage file and queue_file, not %s", s.Storage)
		}
		return nil
	}
	if s.Overflow == codec.OverflowDropOldest {
		return codec.Errorf(codec.CodeInvalidSetting, "overflow drop-oldest does not go with storage %s, whose records are kept: block and reject do", s.Storage)
	}
	if s.Sync == 0 {
		s.Sync = codec.SyncAlways
		if s.Storage == codec.StorageQueueFile {
			s.Sync = codec.SyncInterval
		}
	}
	switch {
	case s.Sync > codec.SyncOS:
		return codec.Errorf(codec.CodeInvalidSetting, "sync %d is unknown", s.Sync)
	case s.Storage == codec.StorageQueueFile && s.Sync != codec.SyncInterval:
		return codec.Errorf(codec.CodeInvalidSetting, "storage queue_file writes behind, with sync=interval=D: it cannot have sync=%s", s.Sync)
	case s.Sync != codec.SyncInterval && s.SyncMillis != 0:
		return codec.Errorf(codec.CodeInvalidSetting, "a sync interval goes with sync=interval, not %s", s.Sync)
	case s.SyncMillis > MaxSyncMillis:
		return codec.Errorf(codec.CodeInvalidSetting, "a sync interval of %d ms is above the limit of %d", s.SyncMillis, MaxSyncMillis)
	}
	if s.Sync == codec.SyncInterval && s.SyncMillis == 0 {
		s.SyncMillis = DefaultSyncMillis
	}
	if s.RetentionBytes == 0 {
		s.RetentionBytes = codec.RetentionUnlimited
	}
	if s.RetentionMillis == 0 {
		s.RetentionMillis = codec.RetentionUnlimited
	}
	if s.SegmentBytes == 0 {
		s.SegmentBytes = DefaultSegmentBytes
	}
	if s.SegmentBytes < MinSegmentBytes || s.SegmentBytes > MaxSegmentBytes {
		return codec.Errorf(codec.CodeInvalidSetting, "segment-bytes %d is outside of %d to %d", s.SegmentBytes, MinSegmentBytes, MaxSegmentBytes)
	}
	return nil
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
	add(asked.Sync != 0 && asked.Sync != have.Sync, "sync is %s, not %s", have.Sync, asked.Sync)
	add(asked.SyncMillis != 0 && asked.SyncMillis != have.SyncMillis, "the sync interval is %d ms, not %d", have.SyncMillis, asked.SyncMillis)
	add(asked.RetentionBytes != 0 && asked.RetentionBytes != have.RetentionBytes, "retention-bytes is %s, not %s",
		limitText(have.RetentionBytes), limitText(asked.RetentionBytes))
	add(asked.RetentionMillis != 0 && asked.RetentionMillis != have.RetentionMillis, "retention-time in ms is %s, not %s",
		limitText(have.RetentionMillis), limitText(asked.RetentionMillis))
	add(asked.SegmentBytes != 0 && asked.SegmentBytes != have.SegmentBytes, "segment-bytes is %d, not %d", have.SegmentBytes, asked.SegmentBytes)
	return strings.Join(diffs, ", ")
}

func limitText(v uint64) string {
	if v == codec.RetentionUnlimited {
		return "none"
	}
	return strconv.FormatUint(v, 10)
}
