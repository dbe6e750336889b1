package codec

import (
	"cmp"
	"encoding/binary"
)

// The control messages. Each has an Append function for a whole frame and a Parse function for the header section (and
// payload where there is one). The strings of parsed messages are copies; slices in them are views of the input.

// Hello opens a connection, in both directions: the client offers a range of versions and the features that it knows, the
// broker answers with the version to use, the features that both know, and its limits.
type Hello struct {
	MinVersion, MaxVersion uint16 // in the reply both are the version chosen
	Features               uint64 // bitmap; no feature is defined in version 1
	Name                   string // program and version, for logs

	// The broker's limits, in the reply only.
	MaxFrameBytes   uint32
	MaxBatchBytes   uint32 // the default of a topic; Open tells the topic's own
	HeartbeatMillis uint32 // either side sends something at least this often
}

const (
	tagHelloMaxFrame  = 1
	tagHelloMaxBatch  = 2
	tagHelloHeartbeat = 3
)

// AppendHello appends a hello frame; reply frames carry the limits.
func AppendHello(dst []byte, corr uint32, reply bool, m Hello) []byte {
	var flags Flags
	var tags tagWriter
	if reply {
		flags = FlagReply
		tags.u32(tagHelloMaxFrame, m.MaxFrameBytes)
		tags.u32(tagHelloMaxBatch, m.MaxBatchBytes)
		tags.u32(tagHelloHeartbeat, m.HeartbeatMillis)
	}
	dst, at := beginFrame(dst, TypeHello, flags, corr, 0)
	dst = binary.BigEndian.AppendUint16(dst, m.MinVersion)
	dst = binary.BigEndian.AppendUint16(dst, m.MaxVersion)
	dst = binary.BigEndian.AppendUint64(dst, m.Features)
	dst = appendString(dst, m.Name)
	dst = tags.appendTo(dst)
	return endFrame(dst, at, len(dst))
}

// ParseHello reads the header section of a hello frame.
func ParseHello(b []byte) (Hello, error) {
	r := reader{b: b}
	m := Hello{MinVersion: r.u16(), MaxVersion: r.u16(), Features: r.u64(), Name: r.str()}
	r.tags(func(tag uint64, v *reader) {
		switch tag {
		case tagHelloMaxFrame:
			m.MaxFrameBytes = v.u32()
		case tagHelloMaxBatch:
			m.MaxBatchBytes = v.u32()
		case tagHelloHeartbeat:
			m.HeartbeatMillis = v.u32()
		}
	})
	return m, r.end(TypeHello)
}

// Storage says where a topic keeps its records.
type Storage uint8

// The storages; their names are those of the command line.
const (
	StorageQueue     Storage = 1 // a ring in memory
	StorageFile      Storage = 2 // a journal on disk
	StorageDirect    Storage = 3 // nothing is kept: whoever is connected now
	StorageQueueFile Storage = 4 // served from memory, written behind to a journal
)

// Overflow says what happens when a ring is full and an attached consumer has not had its oldest records.
type Overflow uint8

// The overflow policies.
const (
	OverflowBlock      Overflow = 1
	OverflowDropOldest Overflow = 2
	OverflowReject     Overflow = 3
)

var (
	storageNames  = [...]string{"", "queue", "file", "direct", "queue_file"}
	overflowNames = [...]string{"", "block", "drop-oldest", "reject"}
	syncNames     = [...]string{"", "always", "interval", "os"}
	levelNames    = [...]string{"default", "none", "appended", "durable"}
)

func name(names []string, i int) string {
	if i < len(names) && names[i] != "" {
		return names[i]
	}
	return "unknown"
}

func index(names []string, s string) int {
	for i, n := range names {
		if n == s && n != "" {
			return i
		}
	}
	return -1
}

func (s Storage) String() string  { return name(storageNames[:], int(s)) }
func (o Overflow) String() string { return name(overflowNames[:], int(o)) }

// ParseStorage understands the names of the command line, memory and disk among them.
func ParseStorage(s string) (Storage, bool) {
	switch s {
	case "memory":
		return StorageQueue, true
	case "disk":
		return StorageFile, true
	}
	i := index(storageNames[:], s)
	return Storage(max(i, 0)), i > 0
}

// ParseOverflow understands the names of the command line.
func ParseOverflow(s string) (Overflow, bool) {
	i := index(overflowNames[:], s)
	return Overflow(max(i, 0)), i > 0
}

// A Level says when the broker confirms a batch.
type Level uint8

// The confirm levels. LevelDefault is LevelDurable for topics in files with sync=always,
// else LevelAppended.
const (
	LevelDefault  Level = 0
	LevelNone     Level = 1 // the client does not wait; confirms still come, to give the window back
	LevelAppended Level = 2
	LevelDurable  Level = 3
)

func (l Level) String() string { return name(levelNames[:], int(l)) }

// TopicSettings are what a topic is created with. Zero values ask for the broker's default; in replies every field that
// the storage uses is set.
type TopicSettings struct {
	Storage       Storage
	Partitions    uint32
	Overflow      Overflow
	RingBytes     uint64 // per partition; of the topics that are stored in files, what is also held in memory
	MaxBatchBytes uint32

	// Of the topics that are stored in files.
	Sync            Sync
	SyncMillis      uint32 // of SyncInterval
	RetentionBytes  uint64 // per partition; RetentionUnlimited: all
	RetentionMillis uint64 // since a segment's last append; RetentionUnlimited: for ever
	SegmentBytes    uint64
}

// With returns the settings with those of change that are not zero.
func (s TopicSettings) With(change TopicSettings) TopicSettings {
	return TopicSettings{
		Storage:         cmp.Or(change.Storage, s.Storage),
		Partitions:      cmp.Or(change.Partitions, s.Partitions),
		Overflow:        cmp.Or(change.Overflow, s.Overflow),
		RingBytes:       cmp.Or(change.RingBytes, s.RingBytes),
		MaxBatchBytes:   cmp.Or(change.MaxBatchBytes, s.MaxBatchBytes),
		Sync:            cmp.Or(change.Sync, s.Sync),
		SyncMillis:      cmp.Or(change.SyncMillis, s.SyncMillis),
		RetentionBytes:  cmp.Or(change.RetentionBytes, s.RetentionBytes),
		RetentionMillis: cmp.Or(change.RetentionMillis, s.RetentionMillis),
		SegmentBytes:    cmp.Or(change.SegmentBytes, s.SegmentBytes),
	}
}

// RetentionUnlimited as a retention means that nothing is removed; 0 asks for the default, which is the same.
const RetentionUnlimited = 1<<64 - 1

// Sync says when what was appended to files is brought to stable storage.
type Sync uint8

// The kinds of sync.
const (
	SyncAlways   Sync = 1 // before it is confirmed and visible
	SyncInterval Sync = 2 // at least that often; what was appended is confirmed and visible before
	SyncOS       Sync = 3 // when the operating system likes
)

func (s Sync) String() string { return name(syncNames[:], int(s)) }

// ParseSync understands the names of the command line, but the time behind interval=.
func ParseSync(s string) (Sync, bool) {
	i := index(syncNames[:], s)
	return Sync(max(i, 0)), i > 0
}

const (
	tagTopicOverflow        = 1
	tagTopicRingBytes       = 2
	tagTopicMaxBatch        = 3
	tagTopicSync            = 4
	tagTopicSyncMillis      = 5
	tagTopicRetentionBytes  = 6
	tagTopicRetentionMillis = 7
	tagTopicSegmentBytes    = 8
)

func (s TopicSettings) append(dst []byte) []byte {
	var tags tagWriter
	if s.Overflow != 0 {
		tags.u8(tagTopicOverflow, uint8(s.Overflow))
	}
	if s.RingBytes != 0 {
		tags.u64(tagTopicRingBytes, s.RingBytes)
	}
	if s.MaxBatchBytes != 0 {
		tags.u32(tagTopicMaxBatch, s.MaxBatchBytes)
	}
	if s.Sync != 0 {
		tags.u8(tagTopicSync, uint8(s.Sync))
	}
	if s.SyncMillis != 0 {
		tags.u32(tagTopicSyncMillis, s.SyncMillis)
	}
	if s.RetentionBytes != 0 {
		tags.u64(tagTopicRetentionBytes, s.RetentionBytes)
	}
	if s.RetentionMillis != 0 {
		tags.u64(tagTopicRetentionMillis, s.RetentionMillis)
	}
	if s.SegmentBytes != 0 {
		tags.u64(tagTopicSegmentBytes, s.SegmentBytes)
	}
	dst = append(dst, byte(s.Storage))
	dst = binary.BigEndian.AppendUint32(dst, s.Partitions)
	return tags.appendTo(dst)
}

func (s *TopicSettings) parse(r *reader) {
	s.Storage = Storage(r.u8())
	s.Partitions = r.u32()
	r.tags(func(tag uint64, v *reader) {
		switch tag {
		case tagTopicOverflow:
			s.Overflow = Overflow(v.u8())
		case tagTopicRingBytes:
			s.RingBytes = v.u64()
		case tagTopicMaxBatch:
			s.MaxBatchBytes = v.u32()
		case tagTopicSync:
			s.Sync = Sync(v.u8())
		case tagTopicSyncMillis:
			s.SyncMillis = v.u32()
		case tagTopicRetentionBytes:
			s.RetentionBytes = v.u64()
		case tagTopicRetentionMillis:
			s.RetentionMillis = v.u64()
		case tagTopicSegmentBytes:
			s.SegmentBytes = v.u64()
		}
	})
}

// A TopicID is a topic's identity: 16 random bytes, made at creation, so that a topic made anew under an old name is told
// apart.
type TopicID [16]byte

// Create asks for a topic.
type Create struct {
	Topic    string
	Settings TopicSettings
}

// AppendCreate appends the request.
func AppendCreate(dst []byte, corr uint32, m Create) []byte {
	return appendTopicSettings(dst, TypeCreate, corr, m)
}

// ParseCreate reads the request, and that of alter.
func ParseCreate(b []byte) (m Create, err error) {
	r := reader{b: b}
	m.Topic = r.str()
	m.Settings.parse(&r)
	return m, r.endSettings()
}

// endSettings is end for create and alter, whose frames have the same fields.
func (r *reader) endSettings() error {
	if r.bad || len(r.b) != 0 {
		return r.misfit("create or alter")
	}
	return nil
}

// CreateReply tells what stands now.
type CreateReply struct {
	ID       TopicID
	Created  bool // false: it existed, with the same settings
	Settings TopicSettings
}

// AppendCreateReply appends the reply.
func AppendCreateReply(dst []byte, corr uint32, m CreateReply) []byte {
	return appendCreateReply(dst, TypeCreate, corr, m)
}

func appendCreateReply(dst []byte, t Type, corr uint32, m CreateReply) []byte {
	dst, at := beginFrame(dst, t, FlagReply, corr, 0)
	dst = append(dst, m.ID[:]...)
	dst = append(dst, boolByte(m.Created))
	dst = m.Settings.append(dst)
	return endFrame(dst, at, len(dst))
}

// ParseCreateReply reads the reply, and that of alter.
func ParseCreateReply(b []byte) (m CreateReply, err error) {
	r := reader{b: b}
	copy(m.ID[:], r.take(len(m.ID)))
	m.Created = r.bool()
	m.Settings.parse(&r)
	return m, r.endSettings()
}

// bool reads a byte that is 0 or 1.
func (r *reader) bool() bool {
	v := r.u8()
	r.bad = r.bad || v > 1
	return v == 1
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// AppendDescribe asks about one topic.
func AppendDescribe(dst []byte, corr uint32, topic string) []byte {
	return appendTopicRequest(dst, TypeDescribe, corr, topic)
}

func appendTopicRequest(dst []byte, t Type, corr uint32, topic string) []byte {
	dst, at := beginFrame(dst, t, 0, corr, 0)
	dst = appendString(dst, topic)
	dst = append(dst, 0) // no tagged fields
	return endFrame(dst, at, len(dst))
}

// ParseTopicRequest reads a request whose only field is a topic's name.
func ParseTopicRequest(t Type, b []byte) (topic string, err error) {
	r := reader{b: b}
	topic = r.str()
	r.tags(nil)
	return topic, r.end(t)
}

// Description is the reply to describe.
type Description struct {
	ID         TopicID
	Settings   TopicSettings
	Partitions []PartitionInfo
}

// PartitionInfo is one partition's state, in the payload of a describe reply.
type PartitionInfo struct {
	Start, High, Next Offset
	Bytes             uint64 // kept
	DroppedUnread     uint64 // records that left the ring before any subscription had read them
	Subscriptions     uint32 // attached now
	Publishers        uint32 // open handles now
	RecordsIn         uint64 // appended since the broker has the topic
	BytesIn           uint64 // of whole batches
	RecordsOut        uint64 // handed to subscriptions; each copy counts
	BytesOut          uint64
	QueueSize         uint64 // records that the slowest pull group has not been given; without a group, those that are kept

	// Of the topics that are stored in files; a broker that has none leaves them out.
	Durable      Offset // exclusive: what is on stable storage
	JournalBytes uint64 // in files
	Segments     uint32
	State        PartitionState
	Damaged      uint32 // places in its files that cannot be read
}

// PartitionState says how a partition's storage is.
type PartitionState uint8

// The states.
const (
	PartitionOK       PartitionState = 0
	PartitionNoSpace  PartitionState = 1 // the last write found no space, or the disk's reserve is reached: publishes are refused until there is
	PartitionPoisoned PartitionState = 2 // a write or a sync failed: no publish is taken until the broker is started again
)

var stateNames = [...]string{"ok", "no_space", "poisoned"}

func (s PartitionState) String() string { return name(stateNames[:], int(s)) }

const (
	partitionInfoBytes    = 88 + 25 // what AppendDescription writes for each
	minPartitionInfoBytes = 88      // what brokers without files wrote
)

// AppendDescription appends the reply. Entries carry their size, so that a later version can make them longer.
func AppendDescription(dst []byte, corr uint32, m Description) []byte {
	dst, at := beginFrame(dst, TypeDescribe, FlagReply, corr, 0)
	dst = append(dst, m.ID[:]...)
	dst = binary.BigEndian.AppendUint16(dst, partitionInfoBytes)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(m.Partitions)))
	dst = m.Settings.append(dst)
	headerEnd := len(dst)
	for _, p := range m.Partitions {
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Start))
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.High))
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Next))
		dst = binary.BigEndian.AppendUint64(dst, p.Bytes)
		dst = binary.BigEndian.AppendUint64(dst, p.DroppedUnread)
		dst = binary.BigEndian.AppendUint32(dst, p.Subscriptions)
		dst = binary.BigEndian.AppendUint32(dst, p.Publishers)
		dst = binary.BigEndian.AppendUint64(dst, p.RecordsIn)
		dst = binary.BigEndian.AppendUint64(dst, p.BytesIn)
		dst = binary.BigEndian.AppendUint64(dst, p.RecordsOut)
		dst = binary.BigEndian.AppendUint64(dst, p.BytesOut)
		dst = binary.BigEndian.AppendUint64(dst, p.QueueSize)
		dst = binary.BigEndian.AppendUint64(dst, uint64(p.Durable))
		dst = binary.BigEndian.AppendUint64(dst, p.JournalBytes)
		dst = binary.BigEndian.AppendUint32(dst, p.Segments)
		dst = append(dst, byte(p.State))
		dst = binary.BigEndian.AppendUint32(dst, p.Damaged)
	}
	return endFrame(dst, at, headerEnd)
}

// ParseDescription reads the reply.
func ParseDescription(header, payload []byte) (m Description, err error) {
	r := reader{b: header}
	copy(m.ID[:], r.take(len(m.ID)))
	size, count := int(r.u16()), int(r.u32())
	m.Settings.parse(&r)
	if err := r.end(TypeDescribe); err != nil {
		return m, err
	}
	if size < minPartitionInfoBytes || count > len(payload)/size || count*size != len(payload) {
		return m, Errorf(CodeMalformedFrame, "%d entries of %d bytes do not fit a payload of %d", count, size, len(payload))
	}
	m.Partitions = make([]PartitionInfo, count)
	for i := range m.Partitions {
		e := reader{b: payload[i*size : (i+1)*size]}
		m.Partitions[i] = PartitionInfo{
			Start: e.offset(), High: e.offset(), Next: e.offset(), Bytes: e.u64(), DroppedUnread: e.u64(),
			Subscriptions: e.u32(), Publishers: e.u32(),
			RecordsIn: e.u64(), BytesIn: e.u64(), RecordsOut: e.u64(), BytesOut: e.u64(), QueueSize: e.u64(),
		}
		if size >= partitionInfoBytes {
			p := &m.Partitions[i]
			p.Durable, p.JournalBytes, p.Segments, p.State, p.Damaged = e.offset(), e.u64(), e.u32(), PartitionState(e.u8()), e.u32()
		}
		if e.bad {
			return m, Errorf(CodeMalformedFrame, "entry %d holds a negative offset", i)
		}
	}
	return m, nil
}

// Open makes the frame's handle stand for one partition of a topic, for publishing. Opening an open publishing handle
// again, with a higher epoch, is how a client goes on after a refused batch.
type Open struct {
	Topic     string
	Partition uint32
	Epoch     uint32
	Level     Level
}

// AppendOpen appends the request.
func AppendOpen(dst []byte, corr, handle uint32, m Open) []byte {
	dst, at := beginFrame(dst, TypeOpen, 0, corr, handle)
	dst = appendString(dst, m.Topic)
	dst = binary.BigEndian.AppendUint32(dst, m.Partition)
	dst = binary.BigEndian.AppendUint32(dst, m.Epoch)
	dst = append(dst, byte(m.Level), 0)
	return endFrame(dst, at, len(dst))
}

// ParseOpen reads the request.
func ParseOpen(b []byte) (m Open, err error) {
	r := reader{b: b}
	m = Open{Topic: r.str(), Partition: r.u32(), Epoch: r.u32(), Level: Level(r.u8())}
	r.tags(nil)
	return m, r.end(TypeOpen)
}

// OpenReply grants the window.
type OpenReply struct {
	ID            TopicID
	Partitions    uint32
	WindowBytes   uint32 // unconfirmed bytes that this handle may have; one batch may overshoot it
	MaxBatchBytes uint32
	Level         Level // the level in force
	Next          Offset
}

// AppendOpenReply appends the reply.
func AppendOpenReply(dst []byte, corr, handle uint32, m OpenReply) []byte {
	dst, at := beginFrame(dst, TypeOpen, FlagReply, corr, handle)
	dst = append(dst, m.ID[:]...)
	dst = binary.BigEndian.AppendUint32(dst, m.Partitions)
	dst = binary.BigEndian.AppendUint32(dst, m.WindowBytes)
	dst = binary.BigEndian.AppendUint32(dst, m.MaxBatchBytes)
	dst = append(dst, byte(m.Level))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Next))
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseOpenReply reads the reply.
func ParseOpenReply(b []byte) (m OpenReply, err error) {
	r := reader{b: b}
	copy(m.ID[:], r.take(len(m.ID)))
	m.Partitions, m.WindowBytes, m.MaxBatchBytes = r.u32(), r.u32(), r.u32()
	m.Level, m.Next = Level(r.u8()), r.offset()
	r.tags(nil)
	return m, r.end(TypeOpen)
}

// Publish is the header section of a publish frame; its payload is Count whole batches, one behind the other.
type Publish struct {
	Epoch uint32
	First uint64 // number of the first batch: batches of a handle's epoch are numbered from 0 without a gap
	Count uint16
}

// PublishHeaderBytes is the size of the header section that AppendPublish writes.
const PublishHeaderBytes = 4 + 8 + 2 + 1

// AppendPublish appends everything of a publish frame but its payload, which is payloadSize bytes.
func AppendPublish(dst []byte, handle uint32, m Publish, payloadSize int) []byte {
	dst = AppendHeader(dst, TypePublish, 0, 0, handle, PublishHeaderBytes, payloadSize)
	dst = binary.BigEndian.AppendUint32(dst, m.Epoch)
	dst = binary.BigEndian.AppendUint64(dst, m.First)
	return append(dst, byte(m.Count>>8), byte(m.Count), 0)
}

// ParsePublish reads the header section.
func ParsePublish(b []byte) (m Publish, err error) {
	r := reader{b: b}
	m = Publish{Epoch: r.u32(), First: r.u64(), Count: r.u16()}
	r.bad = r.bad || m.Count == 0
	r.tags(nil)
	return m, r.end(TypePublish)
}

// Confirm is the header section of a confirm frame: results for Count batches from number First on. Its payload is Count
// entries of ConfirmEntryBytes.
type Confirm struct {
	Epoch uint32
	First uint64
	Count uint32
}

// A Result is what became of one batch.
type Result struct {
	Base Offset // of its first record; 0 where Code is not CodeNone
	Code Code
}

// Sizes in confirm frames, in bytes.
const (
	ConfirmHeaderBytes = 4 + 8 + 4 + 1
	ConfirmEntryBytes  = 8 + 2
)

// AppendConfirm appends everything of a confirm frame but its m.Count entries, which AppendResult appends.
func AppendConfirm(dst []byte, handle uint32, m Confirm) []byte {
	dst = AppendHeader(dst, TypeConfirm, 0, 0, handle, ConfirmHeaderBytes, int(m.Count)*ConfirmEntryBytes)
	dst = binary.BigEndian.AppendUint32(dst, m.Epoch)
	dst = binary.BigEndian.AppendUint64(dst, m.First)
	dst = binary.BigEndian.AppendUint32(dst, m.Count)
	return append(dst, 0)
}

// AppendResult appends one entry.
func AppendResult(dst []byte, v Result) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(v.Base))
	return append(dst, byte(v.Code>>8), byte(v.Code))
}

// ParseConfirm reads the header section and checks it against the payload, whose entries ResultAt reads.
func ParseConfirm(header, payload []byte) (m Confirm, err error) {
	r := reader{b: header}
	m = Confirm{Epoch: r.u32(), First: r.u64(), Count: r.u32()}
	r.tags(nil)
	if err := r.end(TypeConfirm); err != nil {
		return m, err
	}
	if int64(m.Count)*ConfirmEntryBytes != int64(len(payload)) {
		return m, Errorf(CodeMalformedFrame, "%d results do not fit a payload of %d bytes", m.Count, len(payload))
	}
	for i := 0; i < len(payload); i += ConfirmEntryBytes {
		if payload[i]&0x80 != 0 {
			return m, Errorf(CodeMalformedFrame, "result %d holds a negative offset", i/ConfirmEntryBytes)
		}
	}
	return m, nil
}

// ResultAt returns the i-th entry of a confirm payload that ParseConfirm accepted.
func ResultAt(payload []byte, i int) Result {
	e := payload[i*ConfirmEntryBytes:][:ConfirmEntryBytes]
	return Result{Base: Offset(binary.BigEndian.Uint64(e)), Code: Code(binary.BigEndian.Uint16(e[8:]))}
}

// A Kind of subscription.
type Kind uint8

// The kinds.
const (
	KindSub  Kind = 1 // a copy of every record
	KindPull Kind = 2 // the members of a group share the records
)

// From says where a subscription starts.
type From uint8

// The starts.
const (
	FromEarliest From = 1
	FromLatest   From = 2
	FromOffset   From = 3
	FromTime     From = 4 // Value is milliseconds since the Unix epoch
)

// Subscribe attaches the frame's handle to one partition, for delivery.
type Subscribe struct {
	Topic       string
	Partition   uint32
	Kind        Kind
	From        From
	Value       uint64 // of FromOffset and FromTime, else 0
	CreditBytes uint32 // the first grant
	Name        string // of the group or the named subscription; empty: none
}

// AppendSubscribe appends the request.
func AppendSubscribe(dst []byte, corr, handle uint32, m Subscribe) []byte {
	dst, at := beginFrame(dst, TypeSubscribe, 0, corr, handle)
	dst = appendString(dst, m.Topic)
	dst = binary.BigEndian.AppendUint32(dst, m.Partition)
	dst = append(dst, byte(m.Kind), byte(m.From))
	dst = binary.BigEndian.AppendUint64(dst, m.Value)
	dst = binary.BigEndian.AppendUint32(dst, m.CreditBytes)
	dst = appendString(dst, m.Name)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseSubscribe reads the request.
func ParseSubscribe(b []byte) (m Subscribe, err error) {
	r := reader{b: b}
	m = Subscribe{Topic: r.str(), Partition: r.u32(), Kind: Kind(r.u8()), From: From(r.u8()), Value: r.u64(), CreditBytes: r.u32(), Name: r.str()}
	r.tags(nil)
	return m, r.end(TypeSubscribe)
}

// SubscribeReply tells where delivery begins. It leaves before the first deliver frame of the handle.
type SubscribeReply struct {
	ID          TopicID
	Partitions  uint32
	Start, High Offset // of the partition, now
	Begin       Offset // of the first record that will be delivered
}

// AppendSubscribeReply appends the reply.
func AppendSubscribeReply(dst []byte, corr, handle uint32, m SubscribeReply) []byte {
	dst, at := beginFrame(dst, TypeSubscribe, FlagReply, corr, handle)
	dst = append(dst, m.ID[:]...)
	dst = binary.BigEndian.AppendUint32(dst, m.Partitions)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Start))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.High))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Begin))
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseSubscribeReply reads the reply.
func ParseSubscribeReply(b []byte) (m SubscribeReply, err error) {
	r := reader{b: b}
	copy(m.ID[:], r.take(len(m.ID)))
	m.Partitions, m.Start, m.High, m.Begin = r.u32(), r.offset(), r.offset(), r.offset()
	r.tags(nil)
	return m, r.end(TypeSubscribe)
}

// AppendCredit appends a frame that allows the broker bytes more bytes of deliver payload on the handle.
func AppendCredit(dst []byte, handle, bytes uint32) []byte {
	dst = AppendHeader(dst, TypeCredit, 0, 0, handle, 5, 0)
	dst = binary.BigEndian.AppendUint32(dst, bytes)
	return append(dst, 0)
}

// ParseCredit reads the header section.
func ParseCredit(b []byte) (bytes uint32, err error) {
	r := reader{b: b}
	bytes = r.u32()
	r.tags(nil)
	return bytes, r.end(TypeCredit)
}

// Deliver is the header section of a deliver frame; its payload is Count whole batches in order of their offsets.
type Deliver struct {
	Start, High  Offset // of the partition when the frame was made
	AppendMillis int64  // when the frame's first batch was appended, milliseconds since the Unix epoch
	Count        uint16
	Gap          Gap // what is missing before the first batch
}

// A Gap is a range of offsets that will never come. Next 0: no gap.
type Gap struct {
	From, Next Offset // half-open
	Reason     GapReason
}

// GapReason says why offsets are missing.
type GapReason uint8

// The reasons.
const (
	GapDropped  GapReason = 1 // the ring dropped records that this subscription had not had
	GapDeclared GapReason = 2 // offsets that were never given to records, or lost with a restart
	GapPurged   GapReason = 3 // records that an administrator purged
	GapExpired  GapReason = 4 // records that the topic's retention removed
	GapDamaged  GapReason = 5 // records that are in the broker's files and cannot be read, or whose file is gone
)

var gapNames = [...]string{"", "dropped", "declared", "purged", "expired", "damaged"}

func (r GapReason) String() string { return name(gapNames[:], int(r)) }

const (
	deliverFixedBytes = 8 + 8 + 8 + 2
	tagDeliverGap     = 1
	gapBytes          = 8 + 8 + 1
	// MaxDeliverHeaderBytes is the most that AppendDeliver appends.
	MaxDeliverHeaderBytes = HeaderBytes + deliverFixedBytes + 1 + 2 + gapBytes
)

// AppendDeliver appends everything of a deliver frame but its payload, which is payloadSize bytes.
func AppendDeliver(dst []byte, handle uint32, m *Deliver, payloadSize int) []byte {
	headerSize := deliverFixedBytes + 1
	if m.Gap.Next != 0 {
		headerSize += 2 + gapBytes
	}
	dst = AppendHeader(dst, TypeDeliver, 0, 0, handle, headerSize, payloadSize)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Start))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.High))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.AppendMillis))
	dst = append(dst, byte(m.Count>>8), byte(m.Count))
	if m.Gap.Next == 0 {
		return append(dst, 0)
	}
	dst = append(dst, 1, tagDeliverGap, gapBytes)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Gap.From))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Gap.Next))
	return append(dst, byte(m.Gap.Reason))
}

// ParseDeliver reads the header section.
func ParseDeliver(b []byte) (m Deliver, err error) {
	r := reader{b: b}
	m = Deliver{Start: r.offset(), High: r.offset(), AppendMillis: int64(r.u64()), Count: r.u16()}
	if len(r.b) == 1 && r.b[0] == 0 && !r.bad {
		return m, nil // the common case: no tags
	}
	m.Gap, err = parseGapTag(&r, TypeDeliver, tagDeliverGap)
	return m, err
}

// parseGapTag reads the tagged fields of a frame whose only one is a gap.
func parseGapTag(r *reader, t Type, gapTag uint64) (g Gap, err error) {
	r.tags(func(tag uint64, v *reader) {
		if tag == gapTag {
			g = Gap{From: v.offset(), Next: v.offset(), Reason: GapReason(v.u8())}
			if g.Next <= g.From {
				v.bad = true
			}
		}
	})
	return g, r.end(t)
}

// AppendHeartbeat appends a heartbeat: no fields, no reply.
func AppendHeartbeat(dst []byte) []byte {
	return append(AppendHeader(dst, TypeHeartbeat, FlagIgnorable, 0, 0, 1, 0), 0)
}

// AppendClose appends the request to close a handle: publishing ends after what is in flight, a subscription at once.
func AppendClose(dst []byte, corr, handle uint32) []byte {
	return append(AppendHeader(dst, TypeClose, 0, corr, handle, 1, 0), 0)
}

// AppendCloseReply appends the reply; no frame of the handle follows it, and the handle's number is free again.
func AppendCloseReply(dst []byte, corr, handle uint32) []byte {
	return append(AppendHeader(dst, TypeClose, FlagReply, corr, handle, 1, 0), 0)
}

// ParseEmpty checks a header section that has no fields.
func ParseEmpty(t Type, b []byte) error {
	r := reader{b: b}
	r.tags(nil)
	return r.end(t)
}

// GoAway tells the peer to finish and leave: the broker drains, or cuts this one off.
type GoAway struct {
	Code        Code
	DrainMillis uint32 // the connection is closed after this time
	Reason      string
}

// AppendGoAway appends the frame.
func AppendGoAway(dst []byte, m GoAway) []byte {
	dst, at := beginFrame(dst, TypeGoAway, 0, 0, 0)
	dst = append(dst, byte(m.Code>>8), byte(m.Code))
	dst = binary.BigEndian.AppendUint32(dst, m.DrainMillis)
	dst = appendString(dst, m.Reason)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseGoAway reads the header section.
func ParseGoAway(b []byte) (m GoAway, err error) {
	r := reader{b: b}
	m = GoAway{Code: Code(r.u16()), DrainMillis: r.u32(), Reason: r.str()}
	r.tags(nil)
	return m, r.end(TypeGoAway)
}

const (
	tagErrorStart = 1
	tagErrorNext  = 2
)

// AppendError appends an error frame: the answer to the request corr, or, with corr 0, about the handle or the whole
// connection (handle 0).
func AppendError(dst []byte, corr, handle uint32, e *WireError) []byte {
	var tags tagWriter
	if e.Code == CodeOffsetOutOfRange {
		tags.u64(tagErrorStart, uint64(e.Range.Start))
		tags.u64(tagErrorNext, uint64(e.Range.Next))
	}
	dst, at := beginFrame(dst, TypeError, FlagReply, corr, handle)
	dst = append(dst, byte(e.Code>>8), byte(e.Code))
	dst = appendString(dst, e.Detail)
	dst = tags.appendTo(dst)
	return endFrame(dst, at, len(dst))
}

// ParseError reads the header section.
func ParseError(b []byte) (*WireError, error) {
	r := reader{b: b}
	e := &WireError{Code: Code(r.u16()), Detail: r.str()}
	var kept Range
	r.tags(func(tag uint64, v *reader) {
		switch tag {
		case tagErrorStart:
			kept.Start = v.offset()
		case tagErrorNext:
			kept.Next = v.offset()
		}
	})
	if e.Code == CodeOffsetOutOfRange {
		e.Range = kept
	}
	return e, r.end(TypeError)
}

// Fetch asks once for batches of one partition, for replay.
type Fetch struct {
	Topic      string
	Partition  uint32
	From       From
	Value      uint64 // of FromOffset and FromTime, else 0
	Limit      Offset // batches that begin here or above are not wanted; 0: no limit
	MaxBytes   uint32 // of batches; the first one always comes whole
	WaitMillis uint32 // how long to wait where nothing is there yet; 0: not at all
}

// AppendFetch appends the request.
func AppendFetch(dst []byte, corr uint32, m Fetch) []byte {
	dst, at := beginFrame(dst, TypeFetch, 0, corr, 0)
	dst = appendString(dst, m.Topic)
	dst = binary.BigEndian.AppendUint32(dst, m.Partition)
	dst = append(dst, byte(m.From))
	dst = binary.BigEndian.AppendUint64(dst, m.Value)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Limit))
	dst = binary.BigEndian.AppendUint32(dst, m.MaxBytes)
	dst = binary.BigEndian.AppendUint32(dst, m.WaitMillis)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseFetch reads the request.
func ParseFetch(b []byte) (m Fetch, err error) {
	r := reader{b: b}
	m = Fetch{
		Topic: r.str(), Partition: r.u32(), From: From(r.u8()), Value: r.u64(), Limit: r.offset(), MaxBytes: r.u32(), WaitMillis: r.u32(),
	}
	r.tags(nil)
	return m, r.end(TypeFetch)
}

// FetchReply is the header section of the reply to fetch; its payload is Count whole batches in order of their offsets, of
// which the first may begin below the offset that was asked for. Without batches it says that there is nothing yet, or, with a
// gap, nothing in front of Next.
type FetchReply struct {
	Start, High  Offset // of the partition, now
	Next         Offset // where to go on
	AppendMillis int64  // when the first batch was appended, milliseconds since the Unix epoch
	Count        uint16
	Gap          Gap // what is missing before the first batch
}

const (
	fetchReplyFixedBytes = 8 + 8 + 8 + 8 + 2
	tagFetchGap          = 1
)

// AppendFetchReply appends everything of a fetch reply but its payload, which is payloadSize bytes.
func AppendFetchReply(dst []byte, corr uint32, m *FetchReply, payloadSize int) []byte {
	var tags tagWriter
	if m.Gap.Next != 0 {
		tags.gap(tagFetchGap, m.Gap)
	}
	dst, at := beginFrame(dst, TypeFetch, FlagReply, corr, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Start))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.High))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.Next))
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.AppendMillis))
	dst = append(dst, byte(m.Count>>8), byte(m.Count))
	dst = tags.appendTo(dst)
	dst = endFrame(dst, at, len(dst))
	length := binary.BigEndian.Uint32(dst[at:])
	binary.BigEndian.PutUint32(dst[at:], length+uint32(payloadSize))
	return dst
}

// ParseFetchReply reads the header section.
func ParseFetchReply(b []byte) (m FetchReply, err error) {
	r := reader{b: b}
	m = FetchReply{Start: r.offset(), High: r.offset(), Next: r.offset(), AppendMillis: int64(r.u64()), Count: r.u16()}
	m.Gap, err = parseGapTag(&r, TypeFetch, tagFetchGap)
	return m, err
}

// AppendProducer appends a request for the identity of an idempotent producer.
func AppendProducer(dst []byte, corr uint32) []byte {
	return append(AppendHeader(dst, TypeProducer, 0, corr, 0, 1, 0), 0)
}

// ProducerReply is an identity that no other producer gets, now or later.
type ProducerReply struct {
	ID    int64
	Epoch int16
}

// AppendProducerReply appends the reply.
func AppendProducerReply(dst []byte, corr uint32, m ProducerReply) []byte {
	dst, at := beginFrame(dst, TypeProducer, FlagReply, corr, 0)
	dst = binary.BigEndian.AppendUint64(dst, uint64(m.ID))
	dst = binary.BigEndian.AppendUint16(dst, uint16(m.Epoch))
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseProducerReply reads the reply.
func ParseProducerReply(b []byte) (m ProducerReply, err error) {
	r := reader{b: b}
	m = ProducerReply{ID: int64(r.u64()), Epoch: int16(r.u16())}
	r.bad = r.bad || m.ID < 0 || m.Epoch < 0
	r.tags(nil)
	return m, r.end(TypeProducer)
}

// List asks for the topics, in order of their names.
type List struct {
	After string // names behind this one
	Limit uint32 // most entries wanted; 0: as many as fit the broker's frame
}

// AppendList appends the request.
func AppendList(dst []byte, corr uint32, m List) []byte {
	dst, at := beginFrame(dst, TypeList, 0, corr, 0)
	dst = appendString(dst, m.After)
	dst = binary.BigEndian.AppendUint32(dst, m.Limit)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseList reads the request.
func ParseList(b []byte) (m List, err error) {
	r := reader{b: b}
	m.After, m.Limit = r.str(), r.u32()
	r.tags(nil)
	return m, r.end(TypeList)
}

// A TopicEntry is one topic of a list reply.
type TopicEntry struct {
	Name     string
	ID       TopicID
	Settings TopicSettings
}

// ListReply is a page of topics.
type ListReply struct {
	Topics []TopicEntry
	More   bool // there are topics behind the last of these
}

// AppendListReply appends the reply. Each entry carries its size.
func AppendListReply(dst []byte, corr uint32, m ListReply) []byte {
	dst, at := beginFrame(dst, TypeList, FlagReply, corr, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(m.Topics)))
	dst = append(dst, boolByte(m.More), 0)
	headerEnd := len(dst)
	for i := range m.Topics {
		e := &m.Topics[i]
		entry := len(dst)
		dst = append(dst, 0, 0)
		dst = appendString(dst, e.Name)
		dst = append(dst, e.ID[:]...)
		dst = e.Settings.append(dst)
		binary.BigEndian.PutUint16(dst[entry:], uint16(len(dst)-entry-2))
	}
	return endFrame(dst, at, headerEnd)
}

// ParseListReply reads the reply. It takes memory only once the entries' sizes add up.
func ParseListReply(header, payload []byte) (m ListReply, err error) {
	r := reader{b: header}
	count := r.u32()
	m.More = r.bool()
	r.tags(nil)
	if err := r.end(TypeList); err != nil {
		return m, err
	}
	sizes := reader{b: payload}
	for range count {
		if sizes.take(int(sizes.u16())); sizes.bad {
			break
		}
	}
	if sizes.bad || len(sizes.b) != 0 || uint64(count) > uint64(len(payload)/topicEntryBytes) {
		return m, Errorf(CodeMalformedFrame, "%d entries of a list reply do not fill a payload of %d bytes", count, len(payload))
	}
	m.Topics = make([]TopicEntry, count)
	p := reader{b: payload}
	for i := range m.Topics {
		e, t := reader{b: p.take(int(p.u16()))}, &m.Topics[i]
		t.Name = e.str()
		copy(t.ID[:], e.take(len(t.ID)))
		t.Settings.parse(&e)
		if err := e.end(TypeList); err != nil {
			return ListReply{}, Errorf(CodeMalformedFrame, "the fields of entry %d of a list reply do not fit its size", i)
		}
	}
	return m, nil
}

// topicEntryBytes is the smallest entry of a list reply: its size, an empty name, the id, the settings without tags.
const topicEntryBytes = 2 + 2 + 16 + 1 + 4 + 1

// AppendAlter appends a request to change a topic's settings. Zero fields stay as they are. Storage cannot be changed, the
// number of partitions only grows. The reply is a CreateReply with Created false, in a frame of TypeAlter.
func AppendAlter(dst []byte, corr uint32, m Create) []byte {
	return appendTopicSettings(dst, TypeAlter, corr, m)
}

func appendTopicSettings(dst []byte, t Type, corr uint32, m Create) []byte {
	dst, at := beginFrame(dst, t, 0, corr, 0)
	dst = appendString(dst, m.Topic)
	dst = m.Settings.append(dst)
	return endFrame(dst, at, len(dst))
}

// AppendAlterReply appends the reply: the settings now in force.
func AppendAlterReply(dst []byte, corr uint32, m CreateReply) []byte {
	return appendCreateReply(dst, TypeAlter, corr, m)
}

// AppendDelete appends a request to delete a topic with all that it holds.
func AppendDelete(dst []byte, corr uint32, topic string) []byte {
	return appendTopicRequest(dst, TypeDelete, corr, topic)
}

// AppendDeleteReply appends the reply: no topic has the name any more.
func AppendDeleteReply(dst []byte, corr uint32) []byte {
	return append(AppendHeader(dst, TypeDelete, FlagReply, corr, 0, 1, 0), 0)
}

// AllPartitions, as a partition number in a Purge, means every one.
const AllPartitions = 1<<32 - 1

// Purge asks to drop the records that a topic, or one partition of it, holds now. Offsets go on.
type Purge struct {
	Topic     string
	Partition uint32 // or AllPartitions
}

// AppendPurge appends the request.
func AppendPurge(dst []byte, corr uint32, m Purge) []byte {
	dst, at := beginFrame(dst, TypePurge, 0, corr, 0)
	dst = appendString(dst, m.Topic)
	dst = binary.BigEndian.AppendUint32(dst, m.Partition)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParsePurge reads the request.
func ParsePurge(b []byte) (m Purge, err error) {
	r := reader{b: b}
	m.Topic, m.Partition = r.str(), r.u32()
	r.tags(nil)
	return m, r.end(TypePurge)
}

// AppendPurgeReply appends the reply: how many records were dropped.
func AppendPurgeReply(dst []byte, corr uint32, records uint64) []byte {
	dst, at := beginFrame(dst, TypePurge, FlagReply, corr, 0)
	dst = binary.BigEndian.AppendUint64(dst, records)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParsePurgeReply reads the reply.
func ParsePurgeReply(b []byte) (records uint64, err error) {
	r := reader{b: b}
	records = r.u64()
	r.tags(nil)
	return records, r.end(TypePurge)
}

// AppendStats appends a request for the broker's own figures.
func AppendStats(dst []byte, corr uint32) []byte {
	return append(AppendHeader(dst, TypeStats, 0, corr, 0, 1, 0), 0)
}

// A Stat is one figure of the broker. Names are stable; docs/PROTOCOL.md lists them.
type Stat struct {
	Name  string
	Value uint64
}

// AppendStatsReply appends the reply.
func AppendStatsReply(dst []byte, corr uint32, stats []Stat) []byte {
	dst, at := beginFrame(dst, TypeStats, FlagReply, corr, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(stats)))
	dst = append(dst, 0)
	headerEnd := len(dst)
	for _, s := range stats {
		dst = appendString(dst, s.Name)
		dst = binary.BigEndian.AppendUint64(dst, s.Value)
	}
	return endFrame(dst, at, headerEnd)
}

// ParseStatsReply reads the reply. It takes memory only once the entries' sizes add up.
func ParseStatsReply(header, payload []byte) (stats []Stat, err error) {
	r := reader{b: header}
	count := r.u32()
	r.tags(nil)
	if err := r.end(TypeStats); err != nil {
		return nil, err
	}
	sizes := reader{b: payload}
	for range count {
		if sizes.take(int(sizes.u16())); sizes.bad {
			break
		}
		sizes.take(8)
	}
	if sizes.bad || len(sizes.b) != 0 {
		return nil, Errorf(CodeMalformedFrame, "%d entries of a stats reply do not fill a payload of %d bytes", count, len(payload))
	}
	stats = make([]Stat, count)
	p := reader{b: payload}
	for i := range stats {
		stats[i] = Stat{Name: p.str(), Value: p.u64()}
	}
	return stats, nil
}
