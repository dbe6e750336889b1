package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// A wireMessage is a frame of any type, decoded: what a peer keeps of it.
type wireMessage struct {
	header  Header // without the sizes
	message any
	results []Result
	payload []byte
}

// decodeAny decodes a frame by its type. ok is false for types that have no bytes.
func decodeAny(h Header, section, payload []byte) (m wireMessage, ok bool, err error) {
	m.header = Header{Type: h.Type, Flags: h.Flags, Correlation: h.Correlation, Handle: h.Handle}
	reply := h.Flags&FlagReply != 0
	switch h.Type {
	case TypeHello:
		var v Hello
		v, err = ParseHello(section)
		if !reply { // a client has no limits to tell: they are not sent
			v.MaxFrameBytes, v.MaxBatchBytes, v.HeartbeatMillis = 0, 0, 0
		}
		m.message = v
	case TypeCreate, TypeAlter:
		if reply {
			m.message, err = ParseCreateReply(section)
		} else {
			m.message, err = ParseCreate(section)
		}
	case TypeDescribe:
		if reply {
			m.message, err = ParseDescription(section, payload)
		} else {
			m.message, err = ParseTopicRequest(h.Type, section)
		}
	case TypeOpen:
		if reply {
			m.message, err = ParseOpenReply(section)
		} else {
			m.message, err = ParseOpen(section)
		}
	case TypePublish:
		m.message, err = ParsePublish(section)
		m.payload = payload
	case TypeConfirm:
		var v Confirm
		v, err = ParseConfirm(section, payload)
		m.message = v
		for i := 0; err == nil && i < int(v.Count); i++ {
			m.results = append(m.results, ResultAt(payload, i))
		}
	case TypeSubscribe:
		if reply {
			m.message, err = ParseSubscribeReply(section)
		} else {
			m.message, err = ParseSubscribe(section)
		}
	case TypeCredit:
		m.message, err = ParseCredit(section)
	case TypeDeliver:
		m.message, err = ParseDeliver(section)
		m.payload = payload
	case TypeHeartbeat, TypeClose:
		err = ParseEmpty(h.Type, section)
	case TypeList:
		if reply {
			m.message, err = ParseListReply(section, payload)
		} else {
			m.message, err = ParseList(section)
		}
	case TypeDelete:
		if reply {
			err = ParseEmpty(h.Type, section)
		} else {
			m.message, err = ParseTopicRequest(h.Type, section)
		}
	case TypePurge:
		if reply {
			m.message, err = ParsePurgeReply(section)
		} else {
			m.message, err = ParsePurge(section)
		}
	case TypeStats:
		if reply {
			m.message, err = ParseStatsReply(section, payload)
		} else {
			err = ParseEmpty(h.Type, section)
		}
	case TypeFetch:
		if reply {
			m.message, err = ParseFetchReply(section)
			m.payload = payload
		} else {
			m.message, err = ParseFetch(section)
		}
	case TypeProducer:
		if reply {
			m.message, err = ParseProducerReply(section)
		} else {
			err = ParseEmpty(h.Type, section)
		}
	case TypeGoAway:
		m.message, err = ParseGoAway(section)
	case TypeError:
		var e *WireError
		e, err = ParseError(section)
		m.message = *e
	default:
		return m, false, nil
	}
	return m, true, err
}

// encodeAny is the inverse of decodeAny. Flags and ids that the type does not have are not sent.
func encodeAny(m wireMessage) []byte {
	h := m.header
	reply := h.Flags&FlagReply != 0
	switch v := m.message.(type) {
	case Hello:
		return AppendHello(nil, h.Correlation, reply, v)
	case Create:
		if h.Type == TypeAlter {
			return AppendAlter(nil, h.Correlation, v)
		}
		return AppendCreate(nil, h.Correlation, v)
	case CreateReply:
		if h.Type == TypeAlter {
			return AppendAlterReply(nil, h.Correlation, v)
		}
		return AppendCreateReply(nil, h.Correlation, v)
	case string:
		if h.Type == TypeDelete {
			return AppendDelete(nil, h.Correlation, v)
		}
		return AppendDescribe(nil, h.Correlation, v)
	case List:
		return AppendList(nil, h.Correlation, v)
	case ListReply:
		return AppendListReply(nil, h.Correlation, v)
	case Purge:
		return AppendPurge(nil, h.Correlation, v)
	case uint64:
		return AppendPurgeReply(nil, h.Correlation, v)
	case []Stat:
		return AppendStatsReply(nil, h.Correlation, v)
	case Description:
		return AppendDescription(nil, h.Correlation, v)
	case Open:
		return AppendOpen(nil, h.Correlation, h.Handle, v)
	case OpenReply:
		return AppendOpenReply(nil, h.Correlation, h.Handle, v)
	case Publish:
		return append(AppendPublish(nil, h.Handle, v, len(m.payload)), m.payload...)
	case Confirm:
		b := AppendConfirm(nil, h.Handle, v)
		for _, r := range m.results {
			b = AppendResult(b, r)
		}
		return b
	case Subscribe:
		return AppendSubscribe(nil, h.Correlation, h.Handle, v)
	case SubscribeReply:
		return AppendSubscribeReply(nil, h.Correlation, h.Handle, v)
	case uint32:
		return AppendCredit(nil, h.Handle, v)
	case Deliver:
		return append(AppendDeliver(nil, h.Handle, &v, len(m.payload)), m.payload...)
	case Fetch:
		return AppendFetch(nil, h.Correlation, v)
	case FetchReply:
		return append(AppendFetchReply(nil, h.Correlation, &v, len(m.payload)), m.payload...)
	case ProducerReply:
		return AppendProducerReply(nil, h.Correlation, v)
	case GoAway:
		return AppendGoAway(nil, v)
	case WireError:
		return AppendError(nil, h.Correlation, h.Handle, &v)
	}
	switch {
	case h.Type == TypeHeartbeat:
		return AppendHeartbeat(nil)
	case h.Type == TypeDelete:
		return AppendDeleteReply(nil, h.Correlation)
	case h.Type == TypeStats:
		return AppendStats(nil, h.Correlation)
	case h.Type == TypeProducer:
		return AppendProducer(nil, h.Correlation)
	case reply:
		return AppendCloseReply(nil, h.Correlation, h.Handle)
	}
	return AppendClose(nil, h.Correlation, h.Handle)
}

// heldBytes is the memory behind a decoded message, beside the struct.
func heldBytes(m any) int {
	n := 0
	switch v := m.(type) {
	case Hello:
		n = len(v.Name)
	case Create:
		n = len(v.Topic)
	case string:
		n = len(v)
	case Description:
		n = cap(v.Partitions) * int(reflect.TypeFor[PartitionInfo]().Size())
	case List:
		n = len(v.After)
	case ListReply:
		n = cap(v.Topics) * int(reflect.TypeFor[TopicEntry]().Size())
		for _, e := range v.Topics {
			n += len(e.Name)
		}
	case []Stat:
		n = cap(v) * int(reflect.TypeFor[Stat]().Size())
		for _, e := range v {
			n += len(e.Name)
		}
	case Purge:
		n = len(v.Topic)
	case Open:
		n = len(v.Topic)
	case Fetch:
		n = len(v.Topic)
	case Subscribe:
		n = len(v.Topic) + len(v.Name)
	case GoAway:
		n = len(v.Reason)
	case WireError:
		n = len(v.Detail)
	}
	return n
}

// longestName is the length of the longest string in a table.
func longestName(m any) int {
	n := 0
	switch v := m.(type) {
	case ListReply:
		for _, e := range v.Topics {
			n = max(n, len(e.Name))
		}
	case []Stat:
		for _, e := range v {
			n = max(n, len(e.Name))
		}
	}
	return n
}

// FuzzFrame decodes arbitrary bytes as a frame. Nothing panics, memory follows the input, refusals are coded, and what was
// decoded survives being encoded and decoded again.
func FuzzFrame(f *testing.F) {
	for name, data := range everyGolden(f) {
		if !strings.HasPrefix(name, "batch") {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < HeaderBytes {
			return
		}
		h, err := ParseHeader(data, 1<<20)
		if err != nil {
			if !errors.Is(err, CodeMalformedFrame) && !errors.Is(err, CodeFrameTooLarge) {
				t.Fatalf("the header: %v", err)
			}
			return
		}
		if h.FrameBytes() > len(data) {
			return // the rest has not arrived
		}
		section := data[HeaderBytes:][:h.HeaderSize]
		payload := data[HeaderBytes+int(h.HeaderSize) : h.FrameBytes()]
		first, known, err := decodeAny(h, section, payload)
		if !known {
			return
		}
		if err != nil {
			if !errors.Is(err, CodeMalformedFrame) {
				t.Fatalf("%s: %v", h.Type, err)
			}
			return
		}
		// Three: the smallest entries of tables take 26 and 10 bytes in a frame, 64 and 24 when decoded.
		if held := heldBytes(first.message); held > 3*h.FrameBytes() {
			t.Fatalf("a %s frame of %d bytes holds %d", h.Type, h.FrameBytes(), held)
		}
		if max(len(section), longestName(first.message)) > maxStringBytes {
			return // longer strings are not sent
		}
		again := encodeAny(first)
		h2, err := ParseHeader(again, len(again))
		if err != nil || h2.FrameBytes() != len(again) || h2.Type != h.Type {
			t.Fatalf("%s encoded again: %+v, %v", h.Type, h2, err)
		}
		second, _, err := decodeAny(h2, again[HeaderBytes:][:h2.HeaderSize], again[HeaderBytes+int(h2.HeaderSize):])
		if err != nil {
			t.Fatalf("%s decoded again: %v", h.Type, err)
		}
		if !reflect.DeepEqual(first.message, second.message) || !reflect.DeepEqual(first.results, second.results) ||
			!bytes.Equal(first.payload, second.payload) {
			t.Fatalf("%s decoded to %+v, then to %+v", h.Type, first, second)
		}
		if third := encodeAny(second); !bytes.Equal(again, third) {
			t.Fatalf("%s encoded to %x, then to %x", h.Type, again, third)
		}
	})
}

// FuzzBatch reads arbitrary bytes as batches, as they are and with a repaired CRC. Nothing panics, and the records of a
// valid batch make the same batch again.
func FuzzBatch(f *testing.F) {
	all := []byte{}
	for _, name := range sortedNames(goldenBatches()) {
		data, _ := readGolden(f, name)
		f.Add(data)
		all = append(all, data...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, data []byte) {
		for rest := data; ; {
			b, next, err := NextBatch(rest)
			if err != nil {
				if !errors.Is(err, CodeBadBatch) || len(next) != len(rest) {
					t.Fatal(err)
				}
				return
			}
			if len(b)+len(next) != len(rest) || len(b) < BatchHeaderBytes {
				t.Fatalf("%d bytes were cut into %d and %d", len(rest), len(b), len(next))
			}
			rest = next
			fuzzBatch(t, b)
			repaired := bytes.Clone(b)
			clear(repaired[:8])
			repairCRC(repaired)
			fuzzBatch(t, repaired)
		}
	})
}

func fuzzBatch(t *testing.T, b Batch) {
	err := CheckBatch(b, len(b))
	if err != nil && !errors.Is(err, CodeBadBatch) {
		t.Fatal(err)
	}
	if err == nil && CheckDelivered(b) != nil {
		t.Fatalf("what was published is not valid when delivered: %v", CheckDelivered(b))
	}
	if err := CheckBatch(b, len(b)-1); err == nil {
		t.Fatal("a batch above the limit passes")
	}
	valid := err == nil && b.Compression() == CompressionNone
	records, err := flatten(b.Records())
	if !valid || err != nil {
		return
	}
	if len(records) != b.RecordCount() {
		t.Fatalf("%d records of %d", len(records), b.RecordCount())
	}
	var w BatchBuilder
	w.Reset(nil, 2*len(b)+BatchHeaderBytes)
	for i, r := range records {
		if !w.Add(r.Timestamp, r.Key, r.Value, r.Headers) {
			t.Fatalf("record %d of a batch of %d bytes does not fit twice that: %+v", i, len(b), r)
		}
	}
	rebuilt := Batch(w.Finish(BatchMeta{ProducerID: b.ProducerID(), ProducerEpoch: b.ProducerEpoch(), BaseSequence: b.BaseSequence()}))
	if err := CheckBatch(rebuilt, len(rebuilt)); err != nil {
		t.Fatalf("rebuilt: %v", err)
	}
	again, err := flatten(rebuilt.Records())
	if err != nil || !reflect.DeepEqual(again, records) {
		t.Fatalf("rebuilt: %v: %+v, want %+v", err, again, records)
	}
}

// FuzzRecords compares the iterator with one that knows nothing but the general path, step by step. The input is the
// records of a batch, how many it says they are, its base offset and base timestamp.
func FuzzRecords(f *testing.F) {
	add := func(records []byte, count int) { f.Add(records, int32(count), int64(1000), int64(1_700_000_000_000)) }
	for _, b := range goldenBatches() {
		add(b[BatchHeaderBytes:], Batch(b).RecordCount())
	}
	var run []byte
	for i := range 68 { // a run whose offset deltas grow to two bytes
		run = rawRecord(run, 0, int64(i), nil, []byte("run"), nil)
	}
	add(run, 68)
	f.Fuzz(func(t *testing.T, records []byte, count int32, base, baseTS int64) {
		records = records[:min(len(records), 4096)] // beyond it only takes longer
		b := make(Batch, BatchHeaderBytes)
		binary.BigEndian.PutUint64(b[batchBaseOffset:], uint64(base))
		binary.BigEndian.PutUint64(b[batchBaseTimestamp:], uint64(baseTS))
		binary.BigEndian.PutUint32(b[batchRecordCount:], uint32(count))
		fast, oracle := RecordsOf(b, records), RecordsOf(b, records)
		for i := 0; ; i++ {
			got, want := fast.Next(), oracle.slow()
			if got != want {
				t.Fatalf("record %d: there is one: %v, in truth: %v", i, got, want)
			}
			if !got {
				break
			}
			if a, b := flat(&fast.Record), flat(&oracle.Record); !reflect.DeepEqual(a, b) {
				t.Fatalf("record %d: %+v, in truth %+v", i, a, b)
			}
			if fast.Record.HeaderCount() != oracle.Record.HeaderCount() {
				t.Fatalf("record %d: %d headers, in truth %d", i, fast.Record.HeaderCount(), oracle.Record.HeaderCount())
			}
			if i > len(records) {
				t.Fatalf("%d records in %d bytes", i, len(records))
			}
		}
		a, c := fast.Err(), oracle.Err()
		if (a == nil) != (c == nil) || a != nil && a.Error() != c.Error() {
			t.Fatalf("error %v, in truth %v", a, c)
		}
		if fast.Next() || oracle.slow() {
			t.Fatal("a record behind the end")
		}
	})
}

// A program is the input of FuzzBuild: a source of small decisions.
type program []byte

func (p *program) next() int {
	if len(*p) == 0 {
		return 0
	}
	v := (*p)[0]
	*p = (*p)[1:]
	return int(v)
}

func (p *program) length() int {
	switch n := p.next(); {
	case n < 200:
		return n
	case n < 250:
		return (n-200)<<8 + p.next()
	default:
		return (n-250)<<12 + p.next()
	}
}

// FuzzBuild runs a program of additions on two builders, one with AddValue where it applies, one with Add alone, and
// compares every byte with an encoder that is written by the book.
func FuzzBuild(f *testing.F) {
	f.Add([]byte{0, 5, 0, 5, 0, 5, 0, 5, 0, 5}, uint32(1000), uint16(2000), int64(1000))
	f.Add([]byte{0, 100, 0, 100, 1, 100, 2, 100, 3, 4, 5, 0, 100, 0, 100}, uint32(500), uint16(0), int64(-1))
	f.Fuzz(func(t *testing.T, ops []byte, limit uint32, capacity uint16, ts int64) {
		limit %= 256 << 10
		ops = ops[:min(len(ops), 1024)] // beyond it only takes longer
		front := []byte("front")
		var fast, slow BatchBuilder
		fast.Reset(append(make([]byte, 0, len(front)+int(capacity)), front...), int(limit))
		slow.Reset(nil, int(limit))
		var want []flatRecord
		var bytesWant []byte
		base := ts
		for p := program(ops); len(p) > 0; {
			op := p.next()
			repeat := 1
			var key []byte
			var headers []RecordHeader
			switch op & 7 {
			case 0, 1, 2: // a run of values
				repeat = 1 + op>>3
			case 3:
				key = bytes.Repeat([]byte{'k'}, p.length())
			case 4:
				headers = []RecordHeader{{Key: string(bytes.Repeat([]byte{'h'}, p.length()%300)), Value: make([]byte, p.length())}, {Key: "null"}}
			case 5:
				ts++
			case 6:
				ts += int64(int8(p.next())) << (p.next() % 56)
			case 7:
				ts = base
			}
			value := bytes.Repeat([]byte{byte(op)}, p.length())
			if len(value) == 0 && op&0x80 != 0 {
				value = nil
			}
			for range repeat {
				if len(want) == 0 {
					base = ts
				}
				record := rawRecord(nil, ts-base, int64(len(want)), key, value, headers)
				fits := BatchHeaderBytes+len(bytesWant)+len(record) <= int(limit)
				var got bool
				if key == nil && headers == nil {
					got = fast.AddValue(ts, value)
				} else {
					got = fast.Add(ts, key, value, headers)
				}
				if other := slow.Add(ts, key, value, headers); got != fits || other != fits {
					t.Fatalf("record %d of %d bytes behind %d: AddValue %v, Add %v, limit %d", len(want), len(record), len(bytesWant), got, other, limit)
				}
				if !fits {
					break
				}
				bytesWant = append(bytesWant, record...)
				want = append(want, flatRecord{Offset: Offset(len(want)), Timestamp: ts, Key: key, Value: value, Headers: headers})
				if fast.Size() != BatchHeaderBytes+len(bytesWant) || slow.Size() != fast.Size() || fast.Count() != len(want) || slow.Count() != len(want) {
					t.Fatalf("sizes %d, %d, counts %d, %d, want %d, %d",
						fast.Size(), slow.Size(), fast.Count(), slow.Count(), BatchHeaderBytes+len(bytesWant), len(want))
				}
			}
		}
		if len(want) == 0 {
			return
		}
		meta := BatchMeta{ProducerID: 9, ProducerEpoch: 1, BaseSequence: 2}
		buf := fast.Finish(meta)
		if !bytes.HasPrefix(buf, front) {
			t.Fatal("what stood in front was changed")
		}
		b := Batch(buf[len(front):])
		if !bytes.Equal(b, slow.Finish(meta)) || !bytes.Equal(b[BatchHeaderBytes:], bytesWant) {
			t.Fatalf("AddValue and Add differ:\n%x\n%x", []byte(b[BatchHeaderBytes:]), bytesWant)
		}
		if err := CheckBatch(b, int(limit)); err != nil {
			t.Fatal(err)
		}
		got, err := flatten(b.Records())
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("read back: %v: %+v, want %+v", err, got, want)
		}
		maxTS := want[0].Timestamp
		for _, r := range want {
			maxTS = max(maxTS, r.Timestamp)
		}
		if b.MaxTimestamp() != maxTS || b.BaseTimestamp() != want[0].Timestamp {
			t.Fatalf("timestamps %d to %d, want %d to %d", b.BaseTimestamp(), b.MaxTimestamp(), want[0].Timestamp, maxTS)
		}
	})
}
