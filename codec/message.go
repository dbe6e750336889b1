package codec

import "encoding/binary"

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

// The confirm levels. LevelDefault asks for the strongest that the topic offers.
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
	RingBytes     uint64 // per partition
	MaxBatchBytes uint32
}

const (
	tagTopicOverflow  = 1
	tagTopicRingBytes = 2
	tagTopicMaxBatch  = 3
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
	dst, at := beginFrame(dst, TypeCreate, 0, corr, 0)
	dst = appendString(dst, m.Topic)
	dst = m.Settings.append(dst)
	return endFrame(dst, at, len(dst))
}

// ParseCreate reads the request.
func ParseCreate(b []byte) (m Create, err error) {
	r := reader{b: b}
	m.Topic = r.str()
	m.Settings.parse(&r)
	return m, r.end(TypeCreate)
}

// CreateReply tells what stands now.
type CreateReply struct {
	ID       TopicID
	Created  bool // false: it existed, with the same settings
	Settings TopicSettings
}

// AppendCreateReply appends the reply.
func AppendCreateReply(dst []byte, corr uint32, m CreateReply) []byte {
	dst, at := beginFrame(dst, TypeCreate, FlagReply, corr, 0)
	dst = append(dst, m.ID[:]...)
	dst = append(dst, boolByte(m.Created))
	dst = m.Settings.append(dst)
	return endFrame(dst, at, len(dst))
}

// ParseCreateReply reads the reply.
func ParseCreateReply(b []byte) (m CreateReply, err error) {
	r := reader{b: b}
	copy(m.ID[:], r.take(len(m.ID)))
	m.Created = r.bool()
	m.Settings.parse(&r)
	return m, r.end(TypeCreate)
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
}

const partitionInfoBytes = 48

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
	if size < partitionInfoBytes || count > len(payload)/size || count*size != len(payload) {
		return m, Errorf(CodeMalformedFrame, "%d entries of %d bytes do not fit a payload of %d", count, size, len(payload))
	}
	m.Partitions = make([]PartitionInfo, count)
	for i := range m.Partitions {
		e := reader{b: payload[i*size : (i+1)*size]}
		m.Partitions[i] = PartitionInfo{
			Start: e.offset(), High: e.offset(), Next: e.offset(), Bytes: e.u64(), DroppedUnread: e.u64(),
			Subscriptions: e.u32(), Publishers: e.u32(),
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
)

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
	m.Gap, err = parseDeliverTags(&r)
	return m, err
}

func parseDeliverTags(r *reader) (g Gap, err error) {
	r.tags(func(tag uint64, v *reader) {
		if tag == tagDeliverGap {
			g = Gap{From: v.offset(), Next: v.offset(), Reason: GapReason(v.u8())}
			if g.Next <= g.From {
				v.bad = true
			}
		}
	})
	return g, r.end(TypeDeliver)
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

// AppendError appends an error frame: the answer to the request corr, or, with corr 0, about the handle or the whole
// connection (handle 0).
func AppendError(dst []byte, corr, handle uint32, e *WireError) []byte {
	dst, at := beginFrame(dst, TypeError, FlagReply, corr, handle)
	dst = append(dst, byte(e.Code>>8), byte(e.Code))
	dst = appendString(dst, e.Detail)
	dst = append(dst, 0)
	return endFrame(dst, at, len(dst))
}

// ParseError reads the header section.
func ParseError(b []byte) (*WireError, error) {
	r := reader{b: b}
	e := &WireError{Code: Code(r.u16()), Detail: r.str()}
	r.tags(nil)
	return e, r.end(TypeError)
}
