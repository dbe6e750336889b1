package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

// decodeGolden decodes a whole frame with the decoder of a golden case.
func decodeGolden(c goldenCase, frame []byte) (any, error) {
	h, err := ParseHeader(frame, MaxLength)
	if err != nil {
		return nil, err
	}
	section, payload := frame[HeaderBytes:][:h.HeaderSize], frame[HeaderBytes+int(h.HeaderSize):]
	return c.decode(h, section, payload)
}

// resized sets the lengths of the fixed header to those of a header section and a payload.
func resized(fixed, section, payload []byte) []byte {
	b := AppendHeader(nil, Type(fixed[4]), Flags(fixed[5]), binary.BigEndian.Uint32(fixed[8:]), binary.BigEndian.Uint32(fixed[12:]),
		len(section), len(payload))
	return append(append(b, section...), payload...)
}

func TestFrameCutShort(t *testing.T) {
	for _, c := range goldenCases() {
		t.Run(c.name, func(t *testing.T) {
			frame := c.encode(nil)
			h, err := ParseHeader(frame, len(frame))
			if err != nil {
				t.Fatal(err)
			}
			section, payload := frame[HeaderBytes:][:h.HeaderSize], frame[HeaderBytes+int(h.HeaderSize):]
			for k := range section {
				if m, err := decodeGolden(c, resized(frame, section[:k], payload)); !errors.Is(err, CodeMalformedFrame) {
					t.Errorf("%d bytes of %d decode to %+v, %v", k, len(section), m, err)
				}
			}
			if m, err := decodeGolden(c, resized(frame, append(bytes.Clone(section), 0), payload)); !errors.Is(err, CodeMalformedFrame) {
				t.Errorf("a byte behind the fields: %+v, %v", m, err)
			}
			switch h.Type {
			case TypePublish, TypeDeliver, TypeFetch:
				return // their payloads are batches
			}
			for k := range payload {
				if m, err := decodeGolden(c, resized(frame, section, payload[:k])); !errors.Is(err, CodeMalformedFrame) {
					t.Errorf("a payload of %d bytes of %d decodes to %+v, %v", k, len(payload), m, err)
				}
			}
		})
	}
}

func TestHeaderRules(t *testing.T) {
	valid := AppendHeader(nil, TypeDeliver, FlagIgnorable, 7, 9, 27, 100)
	set := func(at int, v ...byte) func([]byte) { return func(b []byte) { copy(b[at:], v) } }
	for _, c := range []struct {
		name    string
		corrupt func(b []byte)
		max     int
		want    Code
	}{
		{"as encoded", func([]byte) {}, 143, CodeNone},
		{"one byte above the limit", func([]byte) {}, 142, CodeFrameTooLarge},
		{"length 0", set(0, 0, 0, 0, 0), 1 << 20, CodeMalformedFrame},
		{"length 1", set(0, 0, 0, 0, 1), 1 << 20, CodeMalformedFrame},
		{"length 11", set(0, 0, 0, 0, 11), 1 << 20, CodeMalformedFrame},
		{"length 12, header size 27", set(0, 0, 0, 0, 12), 1 << 20, CodeMalformedFrame},
		{"length 12, header size 0", set(0, 0, 0, 0, 12, 10, 0, 0, 0), 1 << 20, CodeNone},
		{"header size above the frame", set(6, 0, 128), 1 << 20, CodeMalformedFrame},
		{"header size is the frame", set(6, 0, 127), 1 << 20, CodeNone},
		{"the largest header size", set(6, 0xff, 0xff), 1 << 20, CodeMalformedFrame},
		{"length 0x7fffffff", set(0, 0x7f, 0xff, 0xff, 0xff), 1 << 20, CodeFrameTooLarge},
		{"length 0x80000000", set(0, 0x80, 0, 0, 0), 1 << 20, CodeFrameTooLarge},
		{"length 0xffffffff", set(0, 0xff, 0xff, 0xff, 0xff), 1 << 20, CodeFrameTooLarge},
		{"length 0xffffffff, no limit", set(0, 0xff, 0xff, 0xff, 0xff), math.MaxInt, CodeFrameTooLarge},
		{"the first impossible length", set(0, 0x16, 0, 0, 0), math.MaxInt, CodeFrameTooLarge},
		{"the last possible length", set(0, 0x15, 0xff, 0xff, 0xff), math.MaxInt, CodeNone},
		{"JSON", set(0, []byte(`{"cm`)...), math.MaxInt, CodeFrameTooLarge},
		{"HTTP", set(0, []byte("GET ")...), math.MaxInt, CodeFrameTooLarge},
		{"TLS", set(0, 0x16, 0x03, 0x01, 0x02), math.MaxInt, CodeFrameTooLarge},
		{"unknown type and flags", set(4, 200, 0xfe), 1 << 20, CodeNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bytes.Clone(valid)
			c.corrupt(b)
			h, err := ParseHeader(b, c.max)
			if c.want != CodeNone {
				if !errors.Is(err, c.want) {
					t.Fatalf("error %v, want %v", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if h.PayloadBytes() < 0 || h.PayloadBytes()+int(h.HeaderSize)+HeaderBytes != h.FrameBytes() {
				t.Errorf("sizes of %+v: frame %d, payload %d", h, h.FrameBytes(), h.PayloadBytes())
			}
		})
	}
	h, err := ParseHeader(valid, len(valid)+127)
	if want := (Header{Length: 139, Type: TypeDeliver, Flags: FlagIgnorable, HeaderSize: 27, Correlation: 7, Handle: 9}); err != nil || h != want {
		t.Errorf("got %+v, %v, want %+v", h, err, want)
	}
}

// TestFrameRules breaks one rule of a golden frame at a time.
func TestFrameRules(t *testing.T) {
	cases := map[string]goldenCase{}
	for _, c := range goldenCases() {
		cases[c.name] = c
	}
	// Corruptions of a header section and a payload.
	type parts struct{ section, payload []byte }
	set := func(at int, v ...byte) func(*parts) { return func(p *parts) { copy(p.section[at:], v) } }
	setPayload := func(at int, v ...byte) func(*parts) { return func(p *parts) { copy(p.payload[at:], v) } }
	tags := func(v ...byte) func(*parts) { // instead of no tagged fields
		return func(p *parts) { p.section = append(p.section[:len(p.section)-1:len(p.section)-1], v...) }
	}
	negative := byte(0x80)
	for _, c := range []struct {
		frame, name string
		corrupt     func(p *parts)
		ok          bool
	}{
		{"hello", "a string longer than the section", set(12, 0xff, 0xff), false},
		{"hello", "a string one byte longer", set(12, 0, 11), false},
		{"hello", "an unknown tag", tags(1, 99, 2, 7, 7), true},
		{"hello", "two unknown tags", tags(2, 98, 0, 99, 1, 5), true},
		{"hello", "an unknown tag behind known ones", tags(4, 1, 4, 0, 0, 0, 0, 2, 4, 0, 0, 0, 0, 3, 4, 0, 0, 0, 0, 99, 1, 0), true},
		{"hello", "the largest tag", tags(1, 0x80, 0x80, 0x80, 0x80, 0x08, 0), true},
		{"hello", "a tag that is too large", tags(1, 0x81, 0x80, 0x80, 0x80, 0x08, 0), false},
		{"hello", "a tag beyond 64 bits", tags(1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0), false},
		{"hello", "a tag twice", tags(2, 99, 0, 99, 0), false},
		{"hello", "tags out of order", tags(2, 99, 0, 98, 0), false},
		{"hello", "more tags than announced", tags(1, 98, 0, 99, 0), false},
		{"hello", "fewer tags than announced", tags(3, 98, 0, 99, 0), false},
		{"hello", "2^64-1 tags", tags(0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01), false},
		{"hello", "a tag's size is above the section", tags(1, 99, 3, 7, 7), false},
		{"hello", "a tag's size is 2^63", tags(1, 99, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 7), false},
		{"hello", "a tag's size is below the section", tags(1, 99, 1, 7, 7), false},
		{"hello", "a count in more bytes than it needs", tags(0x80, 0), false},
		{"hello", "a tag in more bytes than it needs", tags(1, 0xe3, 0, 0), false},
		{"hello", "a size in more bytes than it needs", tags(1, 99, 0x81, 0, 7), false},
		{"hello", "a known tag with a short value", tags(1, 1, 3, 0, 0, 0), false},
		{"hello", "a known tag with an empty value", tags(1, 1, 0), false},
		{"hello", "a known tag with a long value", tags(1, 1, 5, 0, 0, 0, 0, 0), false},
		{"create", "the tag overflow with two bytes", tags(1, 1, 2, 0, 1), false},
		{"create", "the tag ring bytes with four bytes", tags(1, 2, 4, 0, 0, 1, 0), false},
		{"create_reply", "created is neither 0 nor 1", set(16, 2), false},
		{"create_reply", "not created", set(16, 0), true},
		{"describe_reply", "more entries", set(18, 0, 0, 0, 3), false},
		{"describe_reply", "fewer entries", set(18, 0, 0, 0, 1), false},
		{"describe_reply", "2^32-1 entries", set(18, 0xff, 0xff, 0xff, 0xff), false},
		{"describe_reply", "no entries in no payload", func(p *parts) { p.section[21], p.payload = 0, nil }, true},
		{"describe_reply", "entries of size 0", set(16, 0, 0), false},
		{"describe_reply", "smaller entries", set(16, 0, 87), false},
		{"describe_reply", "one entry of two entries' size", set(16, 0, 226, 0, 0, 0, 1), true},
		{"describe_reply", "a negative start", setPayload(0, negative), false},
		{"describe_reply", "a negative high", setPayload(8, negative), false},
		{"describe_reply", "a negative next", setPayload(113+16, negative), false},
		{"list_after", "a string longer than the section", set(0, 0xff, 0xff), false},
		{"list_after", "an unknown tag", tags(1, 1, 0), true},
		{"list_reply", "more entries", set(0, 0, 0, 0, 3), false},
		{"list_reply", "fewer entries", set(0, 0, 0, 0, 1), false},
		{"list_reply", "2^32-1 entries", set(0, 0xff, 0xff, 0xff, 0xff), false},
		{"list_reply", "more is neither 0 nor 1", set(4, 2), false},
		{"list_reply", "no more", set(4, 0), true},
		{"list_reply", "no entries in no payload", func(p *parts) { p.section[3], p.payload = 0, nil }, true},
		{"list_reply", "no entries in a payload", func(p *parts) { p.section[3] = 0 }, false},
		{"list_reply", "no payload", func(p *parts) { p.payload = nil }, false},
		{"list_reply", "entries of size 0", func(p *parts) { p.payload = make([]byte, 4) }, false},
		{"list_reply", "many entries of size 0", func(p *parts) { p.section[2], p.section[3], p.payload = 1, 0, make([]byte, 512) }, false},
		{"list_reply", "an entry's size is above the payload", setPayload(0, 0xff, 0xff), false},
		{"list_reply", "an entry is one byte longer than its fields", func(p *parts) {
			size := int(binary.BigEndian.Uint16(p.payload))
			p.payload = append(append(p.payload[:2+size:2+size], 0), p.payload[2+size:]...)
			binary.BigEndian.PutUint16(p.payload, uint16(size+1))
		}, false},
		{"list_reply", "an entry ends inside its fields, the next begins there", func(p *parts) {
			binary.BigEndian.PutUint16(p.payload, binary.BigEndian.Uint16(p.payload)-1)
		}, false},
		{"list_reply", "a name longer than its entry", setPayload(2, 0, 200), false},
		{"list_reply", "an unknown tag in an entry", func(p *parts) {
			size := int(binary.BigEndian.Uint16(p.payload))
			p.payload[2+2+6+16+5] = 4 // tagged fields
			p.payload = append(append(p.payload[:2+size:2+size], 99, 0), p.payload[2+size:]...)
			binary.BigEndian.PutUint16(p.payload, uint16(size+2))
		}, true},
		{"alter", "a string longer than the section", set(0, 0xff, 0xff), false},
		{"alter_reply", "created is neither 0 nor 1", set(16, 2), false},
		{"purge", "every partition", set(8, 0xff, 0xff, 0xff, 0xff), true},
		{"purge", "a string longer than the section", set(0, 0xff, 0xff), false},
		{"purge_reply", "2^64-1 records", set(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), true},
		{"delete", "a string longer than the section", set(0, 0xff, 0xff), false},
		{"delete_reply", "an unknown tag", tags(1, 1, 0), true},
		{"stats", "an unknown tag", tags(1, 1, 0), true},
		{"stats_reply", "more entries", set(0, 0, 0, 0, 9), false},
		{"stats_reply", "fewer entries", set(0, 0, 0, 0, 7), false},
		{"stats_reply", "2^32-1 entries", set(0, 0xff, 0xff, 0xff, 0xff), false},
		{"stats_reply", "no entries in no payload", func(p *parts) { p.section[3], p.payload = 0, nil }, true},
		{"stats_reply", "a name longer than the payload", setPayload(0, 0xff, 0xff), false},
		{"stats_reply", "an empty name", func(p *parts) { p.section[3], p.payload = 1, make([]byte, 10) }, true},
		{"open_reply", "a negative next", set(16+4+4+4+1, negative), false},
		{"publish", "no batches", set(12, 0, 0), false},
		{"publish", "65,535 batches: the payload is looked at batch by batch", set(12, 0xff, 0xff), true},
		{"confirm_refused", "more results", set(12, 0, 0, 0, 4), false},
		{"confirm_refused", "fewer results", set(12, 0, 0, 0, 2), false},
		{"confirm_refused", "2^32-1 results", set(12, 0xff, 0xff, 0xff, 0xff), false},
		{"confirm_refused", "2^31 results: 10 times that is 2^33 and more", set(12, 0x80, 0, 0, 0), false},
		{"confirm_refused", "a negative base offset", setPayload(0, negative), false},
		{"confirm_refused", "a negative base offset in the last", setPayload(20, negative), false},
		{"subscribe", "a string longer than the section", set(0, 0xff, 0xff), false},
		{"subscribe", "the name longer than the section", set(26, 0, 1), false},
		{"subscribe_reply", "a negative start", set(20, negative), false},
		{"subscribe_reply", "a negative high", set(28, negative), false},
		{"subscribe_reply", "a negative begin", set(36, negative), false},
		{"deliver", "a negative start", set(0, negative), false},
		{"deliver", "a negative high", set(8, negative), false},
		{"deliver", "a negative append time", set(16, negative), true},
		{"deliver", "no gap, an unknown tag", tags(1, 2, 1, 0), true},
		{"deliver_gap", "a negative gap from", set(29, negative), false},
		{"deliver_gap", "a negative gap next", set(37, negative), false},
		{"deliver_gap", "an empty gap", set(36, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), false},
		{"deliver_gap", "a gap that ends where it begins", set(43, 0, 2), false},
		{"deliver_gap", "a gap of one", set(43, 0, 3), true},
		{"deliver_gap", "a shorter gap", func(p *parts) { p.section[28] = 16; p.section = p.section[:45] }, false},
		{"deliver_gap", "a longer gap", func(p *parts) { p.section[28] = 18; p.section = append(p.section, 0) }, false},
		{"heartbeat", "an unknown tag", tags(1, 1, 0), true},
		{"go_away", "the reason longer than the section", set(6, 0xff), false},
		{"error", "the detail longer than the section", set(2, 0xff), false},
	} {
		t.Run(c.frame+": "+c.name, func(t *testing.T) {
			golden := cases[c.frame]
			frame := golden.encode(nil)
			h, err := ParseHeader(frame, len(frame))
			if err != nil {
				t.Fatal(err)
			}
			before := bytes.Clone(frame)
			p := parts{frame[HeaderBytes:][:h.HeaderSize:h.HeaderSize], frame[HeaderBytes+int(h.HeaderSize):]}
			c.corrupt(&p)
			corrupted := resized(frame, p.section, p.payload)
			if bytes.Equal(before, corrupted) {
				t.Fatal("nothing was corrupted")
			}
			m, err := decodeGolden(golden, corrupted)
			if c.ok && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if !c.ok && !errors.Is(err, CodeMalformedFrame) {
				t.Errorf("decoded %+v, %v", m, err)
			}
		})
	}
}

// A later version makes the entries of a description longer: this one reads what it knows.
func TestDescriptionOfLongerEntries(t *testing.T) {
	m := Description{ID: goldenID, Settings: TopicSettings{Storage: StorageFile, Partitions: 2}, Partitions: []PartitionInfo{
		{Start: 1, High: 2, Next: 3, Bytes: 4, DroppedUnread: 5, Subscriptions: 6, Publishers: 7, QueueSize: 8}, {Next: 9},
	}}
	frame := AppendDescription(nil, 1, m)
	h, err := ParseHeader(frame, len(frame))
	if err != nil {
		t.Fatal(err)
	}
	section, entries := frame[HeaderBytes:][:h.HeaderSize], frame[HeaderBytes+int(h.HeaderSize):]
	binary.BigEndian.PutUint16(section[16:], partitionInfoBytes+8)
	var payload []byte
	for i := range m.Partitions {
		payload = append(payload, entries[i*partitionInfoBytes:][:partitionInfoBytes]...)
		payload = append(payload, 1, 2, 3, 4, 5, 6, 7, 8)
	}
	got, err := ParseDescription(section, payload)
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Fatalf("got %+v, %v, want %+v", got, err, m)
	}
}

// F46: lengths and counts that a peer announced take no memory.
func TestLyingCountsTakeNoMemory(t *testing.T) {
	section := append(make([]byte, 16), 0, partitionInfoBytes, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 1, 0)
	text := append([]byte{0xff, 0xff}, make([]byte, 100)...)
	manyTags := append(make([]byte, 12), 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01)
	confirm := append(make([]byte, 12), 0xff, 0xff, 0xff, 0xff, 0)
	// Tables that hold one entry less than they say, or one more.
	entry := append([]byte{0, topicEntryBytes - 2, 0, 0}, make([]byte, topicEntryBytes-4)...)
	topics, figures := bytes.Repeat(entry, 4096), make([]byte, 4096*10)
	counts := func(n uint32, rest ...byte) []byte { return append(binary.BigEndian.AppendUint32(nil, n), rest...) }
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_, err1 := ParseDescription(section, make([]byte, 2*partitionInfoBytes))
		_, err2 := ParseTopicRequest(TypeDescribe, text)
		_, err3 := ParseHello(manyTags)
		_, err4 := ParseConfirm(confirm, make([]byte, 100))
		_, err5 := ParseListReply(counts(1<<32-1, 0, 0), topics)
		_, err6 := ParseListReply(counts(4097, 0, 0), topics)
		_, err7 := ParseListReply(counts(4095, 0, 0), topics)
		_, err8 := ParseListReply(counts(4096, 0, 0), figures[:2*4096]) // sizes of 0
		_, err9 := ParseStatsReply(counts(1<<32-1, 0), figures)
		_, err10 := ParseStatsReply(counts(4097, 0), figures)
		_, err11 := ParseStatsReply(counts(4095, 0), figures)
		for i, err := range []error{err1, err2, err3, err4, err5, err6, err7, err8, err9, err10, err11} {
			if !errors.Is(err, CodeMalformedFrame) {
				t.Fatalf("%d: %v", i, err)
			}
		}
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("100 rounds of small frames with large counts took %d bytes", taken)
	}
}

func TestLongStringsAreCut(t *testing.T) {
	long := strings.Repeat("é", 40_000) // 80,000 bytes, of two each
	for name, encode := range map[string]func() ([]byte, func([]byte) (string, error)){
		"error": func() ([]byte, func([]byte) (string, error)) {
			return AppendError(nil, 1, 0, &WireError{Code: CodeInternal, Detail: "x" + long}), func(b []byte) (string, error) {
				e, err := ParseError(b)
				return e.Detail, err
			}
		},
		"subscribe": func() ([]byte, func([]byte) (string, error)) {
			return AppendSubscribe(nil, 1, 1, Subscribe{Topic: "x" + long, Name: long}), func(b []byte) (string, error) {
				m, err := ParseSubscribe(b)
				return m.Topic, err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			frame, parse := encode()
			h, err := ParseHeader(frame, len(frame))
			if err != nil || h.FrameBytes() != len(frame) {
				t.Fatal(err, h.FrameBytes(), len(frame))
			}
			got, err := parse(frame[HeaderBytes:])
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix("x"+long, got) || len(got) < maxStringBytes-4 || len(got) > maxStringBytes {
				t.Errorf("a text of %d bytes became one of %d, ending in %q", len(long)+1, len(got), got[len(got)-4:])
			}
		})
	}
}

func TestNamesOfSettings(t *testing.T) {
	for want, names := range map[Storage][]string{
		StorageQueue: {"queue", "memory"}, StorageFile: {"file", "disk"}, StorageDirect: {"direct"}, StorageQueueFile: {"queue_file"},
	} {
		for _, name := range names {
			if got, ok := ParseStorage(name); !ok || got != want {
				t.Errorf("storage %q: %v, %v", name, got, ok)
			}
		}
		if want.String() != names[0] {
			t.Errorf("%v", want)
		}
	}
	for _, o := range []Overflow{OverflowBlock, OverflowDropOldest, OverflowReject} {
		if got, ok := ParseOverflow(o.String()); !ok || got != o {
			t.Errorf("overflow %v: %v, %v", o, got, ok)
		}
	}
	for _, bad := range []string{"", "unknown", "Queue", "block "} {
		if v, ok := ParseStorage(bad); ok || v != 0 {
			t.Errorf("storage %q is %v", bad, v)
		}
		if v, ok := ParseOverflow(bad); ok || v != 0 {
			t.Errorf("overflow %q is %v", bad, v)
		}
	}
	for _, got := range []string{Storage(0).String(), Storage(9).String(), Overflow(77).String(), Level(4).String()} {
		if got != "unknown" {
			t.Errorf("got %q", got)
		}
	}
	for want, got := range map[string]fmt.Stringer{
		"none": LevelNone, "appended": LevelAppended, "durable": LevelDurable, "default": LevelDefault,
		"publish": TypePublish, "type_0": Type(0), "type_99": Type(99), "stale_epoch": CodeStaleEpoch, "code_9999": Code(9999),
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestErrors(t *testing.T) {
	for i, info := range Codes {
		if int(info.Code) != i || info.Name == "" || info.Meaning == "" {
			t.Errorf("row %d of the codes: %+v", i, info)
		}
	}
	for i, info := range Types {
		if int(info.Type) != i {
			t.Errorf("row %d of the types: %+v", i, info)
		}
	}
	var err error = fmt.Errorf("publish: %w", Errorf(CodeOverflow, "ring of %d bytes", 5))
	if !errors.Is(err, CodeOverflow) || errors.Is(err, CodeQuota) {
		t.Error("errors.Is does not tell codes apart")
	}
	if got := err.Error(); got != "publish: overflow: ring of 5 bytes" {
		t.Errorf("got %q", got)
	}
	if got := (&WireError{Code: CodeQuota}).Error(); got != "quota: a quota is used up" {
		t.Errorf("got %q", got)
	}
}
