package codec

import "fmt"

// A Code is the number of an error on the wire. Codes is the table; docs/PROTOCOL.md repeats it and a test compares both.
type Code uint16

// The codes. A number is never reused for another meaning.
const (
	CodeNone               Code = 0
	CodeInternal           Code = 1
	CodeUnsupportedVersion Code = 2
	CodeMalformedFrame     Code = 3
	CodeFrameTooLarge      Code = 4
	CodeUnknownFrame       Code = 5
	CodeHelloExpected      Code = 6
	CodeLoginTimeout       Code = 7
	CodeNotAllowed         Code = 8
	CodeUnknownTopic       Code = 9
	CodeUnknownPartition   Code = 10
	CodeTopicExists        Code = 11
	CodeInvalidName        Code = 12
	CodeInvalidSetting     Code = 13
	CodeUnknownHandle      Code = 14
	CodeHandleInUse        Code = 15
	CodeWindowExceeded     Code = 16
	CodeStaleEpoch         Code = 17
	CodeBadBatch           Code = 18
	CodeBatchTooLarge      Code = 19
	CodeOverflow           Code = 20
	CodeNoSpace            Code = 21
	CodeQuota              Code = 22
	CodeUnsupportedLevel   Code = 23
	CodeOffsetOutOfRange   Code = 24
	CodeSlowConsumer       Code = 25
	CodeDraining           Code = 26
	CodeTooManyConnections Code = 27
	CodeTooManyHandles     Code = 28
	CodeNotYet             Code = 29
	CodeOutcomeUnknown     Code = 30
	CodeHeartbeatTimeout   Code = 31
	CodeTopicDeleted       Code = 32
	CodeForeignProtocol    Code = 33
	CodePaused             Code = 34
	CodeTooManyTopics      Code = 35
	CodeStorage            Code = 36
	CodeOutOfOrder         Code = 37
	CodeProducerFenced     Code = 38
	CodeSetAside           Code = 39
)

// CodeInfo is a row of the table of error codes.
type CodeInfo struct {
	Code      Code
	Name      string // snake_case, stable: programs may match it
	Retriable bool   // the same request may succeed later without a change by the client
	Fatal     bool   // the broker closes the connection after it
	Meaning   string // one sentence for people
}

// Codes is the table of error codes, in order of their numbers; Codes[c].Code == c.
var Codes = []CodeInfo{
	{CodeNone, "none", false, false, "no error"},
	{CodeInternal, "internal", false, false, "the broker met a fault of its own; its log has the cause"},
	{CodeUnsupportedVersion, "unsupported_version", false, true, "the version ranges of client and broker do not overlap"},
	{CodeMalformedFrame, "malformed_frame", false, true, "a frame's lengths or fields contradict each other"},
	{CodeFrameTooLarge, "frame_too_large", false, true, "a frame is longer than the limit in force (4 KiB before hello)"},
	{CodeUnknownFrame, "unknown_frame", false, true, "the frame type is unknown and not marked ignorable"},
	{CodeHelloExpected, "hello_expected", false, true, "the first frame of a connection must be hello, and only the first"},
	{CodeLoginTimeout, "login_timeout", true, true, "the hello did not arrive within the login deadline"},
	{CodeNotAllowed, "not_allowed", false, false, "the credentials do not allow this"},
	{CodeUnknownTopic, "unknown_topic", false, false, "there is no topic of this name"},
	{CodeUnknownPartition, "unknown_partition", false, false, "the topic has no partition of this number"},
	{CodeTopicExists, "topic_exists", false, false, "the topic exists with other settings"},
	{CodeInvalidName, "invalid_name", false, false, "names are 1 to 249 of A-Z a-z 0-9 . _ - and neither . nor .."},
	{CodeInvalidSetting, "invalid_setting", false, false, "a setting is unknown, out of range or does not go with another"},
	{CodeUnknownHandle, "unknown_handle", false, true, "a frame names a handle that was not opened on this connection"},
	{CodeHandleInUse, "handle_in_use", false, true, "open or subscribe names a handle that is in use"},
	{CodeWindowExceeded, "window_exceeded", false, true, "a publish frame came when the handle's unconfirmed bytes had reached its window"},
	{CodeStaleEpoch, "stale_epoch", false, false, "the batch stands behind a refused one; reopen the handle with a higher epoch"},
	{CodeBadBatch, "bad_batch", false, false, "a record batch is invalid; the whole batch is refused"},
	{CodeBatchTooLarge, "batch_too_large", false, false, "a record batch is larger than the topic's max-batch"},
	{CodeOverflow, "overflow", true, false, "the ring is full and the topic's overflow is reject"},
	{CodeNoSpace, "no_space", true, false, "the disk is full or its reserve is reached"},
	{CodeQuota, "quota", true, false, "a quota is used up"},
	{CodeUnsupportedLevel, "unsupported_level", false, false, "the topic's storage cannot confirm at this level"},
	{CodeOffsetOutOfRange, "offset_out_of_range", false, false, "the offset is outside of what the partition keeps"},
	{CodeSlowConsumer, "slow_consumer", false, false, "the consumer made no progress within the stall limit and was cut off"},
	{CodeDraining, "draining", true, false, "the broker is stopping and takes no new work"},
	{CodeTooManyConnections, "too_many_connections", true, true, "a limit on connections is reached"},
	{CodeTooManyHandles, "too_many_handles", false, false, "a limit on handles per connection is reached"},
	{CodeNotYet, "not_yet", false, false, "this version of the broker does not have the feature"},
	{CodeOutcomeUnknown, "outcome_unknown", false, false, "a disk failed; whether the batch is stored is not known"},
	{CodeHeartbeatTimeout, "heartbeat_timeout", true, true, "nothing was heard from the peer for three heartbeat intervals"},
	{CodeTopicDeleted, "topic_deleted", false, false, "the topic was deleted while it was in use"},
	{CodeForeignProtocol, "foreign_protocol", false, true, "the bytes look like another protocol (HTTP or TLS)"},
	{CodePaused, "paused", true, false, "the broker's memory ceiling is reached"},
	{CodeTooManyTopics, "too_many_topics", false, false, "a limit on topics or partitions is reached"},
	{CodeStorage, "storage", true, false, "a file of the broker cannot be opened, read or written now"},
	{CodeOutOfOrder, "out_of_order", false, false, "an idempotent producer's batch does not follow the one before it"},
	{CodeProducerFenced, "producer_fenced", false, false, "the batch's producer epoch is older than the newest that the partition has seen"},
	{CodeSetAside, "set_aside", false, false, "the topic's files are there but cannot be served as they are; nothing of them is lost or changed"},
}

// Info returns the table's row for c; an unknown number gives a row that says so.
func (c Code) Info() CodeInfo {
	if int(c) < len(Codes) {
		return Codes[c]
	}
	return CodeInfo{Code: c, Name: fmt.Sprintf("code_%d", uint16(c)), Meaning: "a code that this version does not know"}
}

// String returns the code's name.
func (c Code) String() string { return c.Info().Name }

// Error makes a bare code usable as an error and as a target of errors.Is.
func (c Code) Error() string { return c.Info().Name + ": " + c.Info().Meaning }

// A WireError is an error that goes to, or came from, the peer.
type WireError struct {
	Code   Code
	Detail string // what exactly; never the broker's internal cause

	// Range is what the partition keeps, with CodeOffsetOutOfRange; the zero value elsewhere.
	Range Range
}

// A Range is a half-open range of offsets.
type Range struct{ Start, Next Offset }

// Errorf returns a WireError with a formatted detail.
func Errorf(c Code, format string, args ...any) *WireError {
	return &WireError{Code: c, Detail: fmt.Sprintf(format, args...)}
}

func (e *WireError) Error() string {
	if e.Detail == "" {
		return e.Code.Error()
	}
	return e.Code.String() + ": " + e.Detail
}

// Is makes errors.Is(err, codec.CodeUnknownTopic) true for a WireError of that code.
func (e *WireError) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}
