package codec

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Sizes of frames, in bytes.
const (
	// HeaderBytes is the size of the fixed frame header.
	HeaderBytes = 16
	// lengthBytes is the size of the length field, which counts what follows it.
	lengthBytes = 4
	// MaxLength is the exclusive limit of the length field: below it, '{' (0x7B…), a TLS hello (0x16 0x03 …) and
	// "GET " (0x47…) are never a valid length, so the first bytes tell the protocols apart.
	MaxLength = 0x16000000
	// MaxLoginFrameBytes bounds a whole frame before the hello was accepted.
	MaxLoginFrameBytes = 4 << 10
	// MaxHeaderSize bounds the header section: it is a uint16 on the wire.
	MaxHeaderSize = 1<<16 - 1
	// DefaultMaxBatchBytes is the largest batch by default: Kafka's message.max.bytes, 1 MiB and 12 bytes.
	DefaultMaxBatchBytes = 1<<20 + 12
	// DefaultWindowBytes is the producer's window and the consumer's credit by default: 4 MiB, about 4 ms of traffic
	// at full rate, sixteen times what a socket buffer holds.
	DefaultWindowBytes = 4 << 20
)

// Version is the protocol version that this package speaks. MinVersion is the oldest that it understands.
const (
	Version    = 1
	MinVersion = 1
)

// A Type says what a frame is. A reply has the type of its request and FlagReply, or is a TypeError.
type Type uint8

// Frame types. Numbers are never reused; the reserved ones have no bytes yet (docs/PROTOCOL.md lists them as drafts).
const (
	TypeHello     Type = 1
	TypeAuth      Type = 2 // reserved
	TypeCreate    Type = 3
	TypeDescribe  Type = 4
	TypeOpen      Type = 5
	TypePublish   Type = 6
	TypeConfirm   Type = 7
	TypeSubscribe Type = 8
	TypeCredit    Type = 9
	TypeDeliver   Type = 10
	TypeAck       Type = 11 // reserved
	TypeHeartbeat Type = 12
	TypeGoAway    Type = 13
	TypeError     Type = 14
	TypeClose     Type = 15
	TypeList      Type = 16
	TypeAlter     Type = 17
	TypeDelete    Type = 18
	TypePurge     Type = 19
	TypeStats     Type = 20
	TypeFetch     Type = 21
	TypeProducer  Type = 22
)

// TypeInfo is a row of the table of frame types.
type TypeInfo struct {
	Type     Type
	Name     string
	Reserved bool // a number without bytes: a peer that sends it gets CodeNotYet
}

// Types is the table of frame types in order of their numbers; Types[0] is unused.
var Types = []TypeInfo{
	{0, "", true},
	{TypeHello, "hello", false},
	{TypeAuth, "auth", true},
	{TypeCreate, "create", false},
	{TypeDescribe, "describe", false},
	{TypeOpen, "open", false},
	{TypePublish, "publish", false},
	{TypeConfirm, "confirm", false},
	{TypeSubscribe, "subscribe", false},
	{TypeCredit, "credit", false},
	{TypeDeliver, "deliver", false},
	{TypeAck, "ack", true},
	{TypeHeartbeat, "heartbeat", false},
	{TypeGoAway, "go_away", false},
	{TypeError, "error", false},
	{TypeClose, "close", false},
	{TypeList, "list", false},
	{TypeAlter, "alter", false},
	{TypeDelete, "delete", false},
	{TypePurge, "purge", false},
	{TypeStats, "stats", false},
	{TypeFetch, "fetch", false},
	{TypeProducer, "producer", false},
}

// String returns the type's name.
func (t Type) String() string {
	if t > 0 && int(t) < len(Types) {
		return Types[t].Name
	}
	return fmt.Sprintf("type_%d", uint8(t))
}

// Flags of a frame. Unknown bits are ignored.
type Flags uint8

const (
	// FlagReply marks the answer to the request of the same type and correlation id.
	FlagReply Flags = 1 << 0
	// FlagIgnorable lets a peer that does not know the type skip the frame.
	FlagIgnorable Flags = 1 << 1
)

// A Header is the fixed header of a frame, 16 bytes, big-endian.
type Header struct {
	Length      uint32 // bytes that follow the length field: 12 + HeaderSize + payload
	Type        Type
	Flags       Flags
	HeaderSize  uint16 // bytes of the header section; the payload is the rest
	Correlation uint32 // chosen by the requester, echoed in the reply; 0 where no reply is expected
	Handle      uint32 // the open partition or subscription, chosen by the client; 0: none
}

// FrameBytes returns the size of the whole frame.
func (h Header) FrameBytes() int { return lengthBytes + int(h.Length) }

// PayloadBytes returns the size of the payload.
func (h Header) PayloadBytes() int {
	return int(h.Length) - (HeaderBytes - lengthBytes) - int(h.HeaderSize)
}

// ParseHeader reads the fixed header from the first HeaderBytes of b, which the caller has made sure of. It checks the
// lengths against each other and against maxFrame, the largest whole frame in bytes that is accepted now.
func ParseHeader(b []byte, maxFrame int) (Header, error) {
	_ = b[HeaderBytes-1]
	h := Header{
		Length:      binary.BigEndian.Uint32(b),
		Type:        Type(b[4]),
		Flags:       Flags(b[5]),
		HeaderSize:  binary.BigEndian.Uint16(b[6:]),
		Correlation: binary.BigEndian.Uint32(b[8:]),
		Handle:      binary.BigEndian.Uint32(b[12:]),
	}
	if h.Length < HeaderBytes-lengthBytes {
		return h, Errorf(CodeMalformedFrame, "frame length %d is below the %d bytes of the fixed header",
			h.Length, HeaderBytes-lengthBytes)
	}
	if h.Length >= MaxLength || int(h.Length) > maxFrame-lengthBytes {
		return h, Errorf(CodeFrameTooLarge, "frame length %d is above the limit of %d", h.Length, maxFrame-lengthBytes)
	}
	if h.PayloadBytes() < 0 {
		return h, Errorf(CodeMalformedFrame, "header size %d is larger than the frame", h.HeaderSize)
	}
	return h, nil
}

// AppendHeader appends the fixed header of a frame whose header section and payload have the given sizes in bytes.
// Both are the caller's own: sizes that do not fit are a bug.
func AppendHeader(dst []byte, t Type, f Flags, corr, handle uint32, headerSize, payloadSize int) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(HeaderBytes-lengthBytes+headerSize+payloadSize))
	dst = append(dst, byte(t), byte(f), byte(headerSize>>8), byte(headerSize))
	dst = binary.BigEndian.AppendUint32(dst, corr)
	return binary.BigEndian.AppendUint32(dst, handle)
}

// beginFrame appends a fixed header whose sizes endFrame fills in.
func beginFrame(dst []byte, t Type, f Flags, corr, handle uint32) ([]byte, int) {
	at := len(dst)
	return AppendHeader(dst, t, f, corr, handle, 0, 0), at
}

// endFrame sets the sizes of the frame begun at position at, whose header section ends at headerEnd and whose payload ends
// at the end of dst.
func endFrame(dst []byte, at, headerEnd int) []byte {
	binary.BigEndian.PutUint32(dst[at:], uint32(len(dst)-at-lengthBytes))
	binary.BigEndian.PutUint16(dst[at+6:], uint16(headerEnd-at-HeaderBytes))
	return dst
}

// A reader takes fields from a header section. It is sticky: after the first field that does not fit, every read returns
// zero and err says what was wrong.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.b) {
		r.bad = true
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if v := r.take(1); v != nil {
		return v[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if v := r.take(2); v != nil {
		return binary.BigEndian.Uint16(v)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if v := r.take(4); v != nil {
		return binary.BigEndian.Uint32(v)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if v := r.take(8); v != nil {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

// offset reads an int64 that must not be negative.
func (r *reader) offset() Offset {
	v := int64(r.u64())
	if v < 0 {
		r.bad = true
		return 0
	}
	return Offset(v)
}

func (r *reader) str() string { return string(r.take(int(r.u16()))) }

func (r *reader) uvarint() uint64 {
	if r.bad {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 || n > 1 && r.b[n-1] == 0 { // the second: longer than need be
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

// tags reads the tagged fields that end a header section and calls f for each: value is valid as long as the input.
// A tag that comes twice, tags out of order, and a known tag with bytes behind its value are malformed, so that a message
// has one encoding.
func (r *reader) tags(f func(tag uint64, value *reader)) {
	n := r.uvarint()
	last := int64(-1)
	for ; n > 0 && !r.bad; n-- {
		tag := r.uvarint()
		size := r.uvarint()
		if tag > 1<<31 || int64(tag) <= last || size > uint64(len(r.b)) {
			r.bad = true
			return
		}
		last = int64(tag)
		value := reader{b: r.take(int(size))}
		if f != nil {
			f(tag, &value)
		}
		r.bad = r.bad || value.bad || len(value.b) != 0 && len(value.b) != int(size) // f took some, but not all
	}
}

// end returns the error of the section. Bytes after the tags are malformed: additions are tags.
func (r *reader) end(t Type) error {
	if r.bad || len(r.b) != 0 {
		return r.misfit(t.String())
	}
	return nil
}

// misfit is the error of a section that does not fit; what names the frames that may have it.
func (r *reader) misfit(what string) error {
	if r.bad {
		return Errorf(CodeMalformedFrame, "the fields of a %s frame do not fit its header", what)
	}
	return Errorf(CodeMalformedFrame, "%d bytes follow the tagged fields of a %s frame", len(r.b), what)
}

// maxStringBytes bounds the strings that are sent, so that two of them always fit a header section. Names are far shorter;
// only a text for people is ever cut.
const maxStringBytes = 1 << 14

func appendString(dst []byte, s string) []byte {
	if len(s) > maxStringBytes {
		s = strings.ToValidUTF8(s[:maxStringBytes], "")
	}
	dst = append(dst, byte(len(s)>>8), byte(len(s)))
	return append(dst, s...)
}

// A tagWriter appends the tagged fields that end a header section.
type tagWriter struct {
	buf   []byte
	count int
}

func (w *tagWriter) put(tag uint64, value []byte) {
	w.buf = binary.AppendUvarint(w.buf, tag)
	w.buf = binary.AppendUvarint(w.buf, uint64(len(value)))
	w.buf = append(w.buf, value...)
	w.count++
}

func (w *tagWriter) u8(tag uint64, v uint8)   { w.put(tag, []byte{v}) }
func (w *tagWriter) u32(tag uint64, v uint32) { w.put(tag, binary.BigEndian.AppendUint32(nil, v)) }
func (w *tagWriter) u64(tag uint64, v uint64) { w.put(tag, binary.BigEndian.AppendUint64(nil, v)) }

func (w *tagWriter) gap(tag uint64, g Gap) {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, gapBytes), uint64(g.From))
	b = binary.BigEndian.AppendUint64(b, uint64(g.Next))
	w.put(tag, append(b, byte(g.Reason)))
}

func (w *tagWriter) appendTo(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(w.count))
	return append(dst, w.buf...)
}
