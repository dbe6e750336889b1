package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestBuildCheckRead(t *testing.T) {
	var w BatchBuilder
	w.Reset(make([]byte, 0, 1<<20), 1<<20)
	value := bytes.Repeat([]byte("x"), 100)
	const n = 9000 // past 8192: offset deltas of one, two and three bytes
	for i := range n {
		if !w.AddValue(1000, value) {
			t.Fatalf("record %d did not fit", i)
		}
	}
	b, rest, err := NextBatch(w.Finish(NoProducer))
	if err != nil || len(rest) != 0 {
		t.Fatal(err, len(rest))
	}
	if err := CheckBatch(b, 1<<20); err != nil {
		t.Fatal(err)
	}
	b.SetBase(77, 0)
	got := 0
	rs := b.Records()
	for rs.Next() {
		if rs.Record.Offset != Offset(77+got) || !bytes.Equal(rs.Record.Value, value) || rs.Record.Timestamp != 1000 {
			t.Fatalf("record %d: %+v", got, rs.Record)
		}
		got++
	}
	if rs.Err() != nil || got != n {
		t.Fatal(rs.Err(), got)
	}
	if err := CheckDelivered(b); err != nil {
		t.Fatal(err)
	}
	if b.LeaderEpoch() != 0 || b.NextOffset() != 77+n {
		t.Errorf("leader epoch %d, next offset %d", b.LeaderEpoch(), b.NextOffset())
	}
}

// repairCRC makes a corruption visible to the rule that it breaks.
func repairCRC(b []byte) {
	binary.BigEndian.PutUint32(b[batchCRC:], crc32.Checksum(b[batchAttributes:], castagnoli))
}

func TestCRC(t *testing.T) {
	if got := crc32.Checksum([]byte("123456789"), castagnoli); got != 0xe3069283 { // the check value of CRC-32C
		t.Fatalf("%08x", got)
	}
}

// TestBatchRules breaks every rule of a valid batch once.
func TestBatchRules(t *testing.T) {
	be := binary.BigEndian
	set := func(at int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], v); return b }
	}
	sealed := func(at int, v ...byte) func([]byte) []byte { // with the CRC that belongs to it
		return func(b []byte) []byte { copy(b[at:], v); repairCRC(b); return b }
	}
	const cut, header, published, delivered = "NextBatch", "CheckBatchHeader", "CheckBatch", "CheckDelivered"
	for _, c := range []struct {
		name    string
		corrupt func(b []byte) []byte
		stage   string // the first that refuses it; "": none
		says    string
	}{
		{"as built", func(b []byte) []byte { return b }, "", ""},
		{"nothing", func([]byte) []byte { return nil }, cut, "too few"},
		{"cut in its header", func(b []byte) []byte { return b[:60] }, cut, "too few"},
		{"cut in its records", func(b []byte) []byte { return b[:len(b)-1] }, cut, "says it has"},
		{"length one more", func(b []byte) []byte { be.PutUint32(b[8:], uint32(len(b)-11)); return b }, cut, "says it has"},
		{"length 0", set(8, 0, 0, 0, 0), cut, "says it has 12 bytes"},
		{"length 48: without the last byte of the header", set(8, 0, 0, 0, 48), cut, "says it has 60 bytes"},
		{"length 49: no records", func(b []byte) []byte { b[11] = 49; b = b[:61]; repairCRC(b); return b }, header, "do not fit"},
		{"length -1", set(8, 0xff, 0xff, 0xff, 0xff), cut, "says it has 11 bytes"},
		{"length -2^31", set(8, 0x80, 0, 0, 0), cut, "says it has -2147483636"},
		{"length 2^31-1", set(8, 0x7f, 0xff, 0xff, 0xff), cut, "says it has 2147483659"},
		{"magic 0", set(16, 0), header, "magic"},
		{"magic 1", set(16, 1), header, "magic"},
		{"magic 3", set(16, 3), header, "magic"},
		{"base offset 1", set(7, 1), published, "not 0"},
		{"base offset -1", set(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), published, "not 0"},
		{"leader epoch 5", set(12, 0, 0, 0, 5), "", ""},
		{"leader epoch -2", set(12, 0xff, 0xff, 0xff, 0xfe), "", ""},
		{"CRC", set(17, 0), published, "CRC-32C"},
		{"a bit of the value", func(b []byte) []byte { b[len(b)-2] ^= 1; return b }, published, "CRC-32C"},
		{"a bit of the attributes", set(22, 1), published, "CRC-32C"},
		{"compression gzip", sealed(22, 1), "", ""},
		{"compression zstd", sealed(22, 4), "", ""},
		{"compression 5", sealed(22, 5), header, "compression codec 5"},
		{"compression 7", sealed(22, 7), header, "compression codec 7"},
		{"log append time", sealed(22, 0x08), header, "bits"},
		{"transactional", sealed(22, 0x10), header, "transactional"},
		{"control", sealed(22, 0x20), header, "control"},
		{"delete horizon", sealed(22, 0x40), header, "bits"},
		{"the highest attribute", sealed(21, 0x80), header, "bits"},
		{"last offset delta 0", sealed(23, 0, 0, 0, 0), header, "last offset delta"},
		{"last offset delta -1", sealed(23, 0xff, 0xff, 0xff, 0xff), header, "last offset delta"},
		{"count 0", sealed(57, 0, 0, 0, 0), header, "count is 0"},
		{"count -1", sealed(57, 0xff, 0xff, 0xff, 0xff), header, "count is -1"},
		{"count 0 and last offset delta -1", func(b []byte) []byte {
			be.PutUint32(b[23:], math.MaxUint32)
			be.PutUint32(b[57:], 0)
			repairCRC(b)
			return b
		}, header, "count is 0"},
		{"count 3", sealed(57, 0, 0, 0, 3), header, "last offset delta"},
		{"count 4 in 24 bytes", func(b []byte) []byte {
			b[26], b[60] = 3, 4
			repairCRC(b)
			return b
		}, header, "do not fit"},
		{"count 2^31-1", func(b []byte) []byte {
			be.PutUint32(b[23:], math.MaxInt32-1)
			be.PutUint32(b[57:], math.MaxInt32)
			repairCRC(b)
			return b
		}, header, "do not fit"},
		{"a time before 1970", sealed(27, 0xff), "", ""},
		{"max timestamp unset", sealed(35, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), "", ""},
		{"producer id -2", sealed(50, 0xfe), header, "producer id -2"},
		{"producer id 5 without an epoch", sealed(43, 0, 0, 0, 0, 0, 0, 0, 5), header, "producer id 5"},
		{"producer id 5 without a sequence", sealed(43, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0), header, "producer id 5"},
		{"producer id 5 with a negative epoch", sealed(43, 0, 0, 0, 0, 0, 0, 0, 5, 0x80, 0, 0, 0, 0, 0), header, "producer id 5"},
		{"producer id 5 with all", sealed(43, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := c.corrupt(goldenValueBatch())
			b, rest, err := NextBatch(raw)
			expect := func(stage string, err error) (done bool) {
				t.Helper()
				if c.stage != stage {
					if err != nil {
						t.Fatalf("%s refuses it: %v", stage, err)
					}
					return false
				}
				if !errors.Is(err, CodeBadBatch) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("%s says %v, want %q", stage, err, c.says)
				}
				return true
			}
			if expect(cut, err) {
				if len(rest) != len(raw) {
					t.Errorf("%d bytes were taken", len(raw)-len(rest))
				}
				return
			}
			if c.stage == header {
				for _, err := range []error{CheckBatchHeader(b), CheckBatch(b, len(b)), CheckDelivered(b)} {
					expect(header, err)
				}
				return
			}
			expect(header, CheckBatchHeader(b))
			expect(published, CheckBatch(b, len(b)))
		})
	}

	b := Batch(goldenValueBatch())
	if err := CheckBatch(b, len(b)-1); !errors.Is(err, CodeBatchTooLarge) {
		t.Errorf("a byte above the limit: %v", err)
	}
	for _, c := range []struct {
		base Offset
		ok   bool
	}{{0, true}, {12345, true}, {math.MaxInt64 - 2, true}, {math.MaxInt64 - 1, false}, {-1, false}, {math.MinInt64, false}} {
		b.SetBase(c.base, 0)
		if err := CheckDelivered(b); (err == nil) != c.ok || err != nil && !errors.Is(err, CodeBadBatch) {
			t.Errorf("delivered with base offset %d: %v", c.base, err)
		}
	}
	b.SetBase(5, 0)
	b[len(b)-2] ^= 1
	if err := CheckDelivered(b); !errors.Is(err, CodeBadBatch) || !strings.Contains(err.Error(), "CRC") {
		t.Errorf("delivered with a flipped bit: %v", err)
	}
}

// F45: a batch that stops anywhere is refused, one behind the other are cut apart, and nothing is read beyond.
func TestBatchCutShort(t *testing.T) {
	one := goldenBatches()["batch_headers"]
	for k := range one {
		if b, rest, err := NextBatch(one[:k]); !errors.Is(err, CodeBadBatch) || b != nil || len(rest) != k {
			t.Fatalf("%d bytes of %d: %v", k, len(one), err)
		}
	}
	rest := append(bytes.Clone(one), goldenValueBatch()...)
	b, rest, err := NextBatch(rest)
	if err != nil || !bytes.Equal(b, one) || cap(b) != len(b) {
		t.Fatal(err, len(b), cap(b))
	}
	if b, rest, err = NextBatch(rest); err != nil || !bytes.Equal(b, goldenValueBatch()) || len(rest) != 0 {
		t.Fatal(err, len(b), len(rest))
	}

	// The records of a batch that stop anywhere are an error too, whatever its header says.
	records := one[BatchHeaderBytes:]
	for k := range records {
		list, err := flatten(RecordsOf(one, records[:k]))
		if !errors.Is(err, CodeBadBatch) {
			t.Errorf("%d bytes of %d of records: %v", k, len(records), err)
		}
		if len(list) >= Batch(one).RecordCount() {
			t.Errorf("%d bytes of %d hold all records", k, len(records))
		}
	}
}

// rawRecord appends a record field by field, by the book. A negative length is null.
func rawRecord(dst []byte, ts, off int64, key, value []byte, headers []RecordHeader) []byte {
	field := func(b, v []byte) []byte {
		if v == nil {
			return binary.AppendVarint(b, -1)
		}
		return append(binary.AppendVarint(b, int64(len(v))), v...)
	}
	b := binary.AppendVarint(binary.AppendVarint([]byte{0}, ts), off)
	b = field(field(b, key), value)
	b = binary.AppendVarint(b, int64(len(headers)))
	for _, h := range headers {
		b = field(field(b, append([]byte{}, h.Key...)), h.Value)
	}
	return append(binary.AppendVarint(dst, int64(len(b))), b...)
}

// TestRecordRules breaks a rule of one record at a time, the second of a batch or one amid a run; those before it must
// still come, and nothing after.
func TestRecordRules(t *testing.T) {
	// A record of 18 bytes: length 17, attributes 0, timestamp delta 0, offset delta, key -1, value 11, value, headers 0.
	plain := func(off int) []byte { return rawRecord(nil, 0, int64(off), nil, []byte("some value."), nil) }
	set := func(at int, v ...byte) func(int) []byte {
		return func(off int) []byte {
			b := plain(off)
			copy(b[at:], v)
			return b
		}
	}
	record := func(ts int64, key, value []byte, headers ...RecordHeader) func(int) []byte {
		return func(off int) []byte { return rawRecord(nil, ts, int64(off), key, value, headers) }
	}
	raw := func(b ...byte) func(int) []byte { // with the offset delta in its place
		return func(off int) []byte { b := bytes.Clone(b); b[3] = byte(2 * off); return b }
	}
	for _, c := range []struct {
		name string
		make func(off int) []byte
		ok   bool
	}{
		{"as encoded", plain, true},
		{"length 0", set(0, 0), false},
		{"length -1", set(0, 1), false},
		{"length -18", set(0, 35), false},
		{"length one less", set(0, 32), false},
		{"length one more", set(0, 36), false},
		{"length beyond the batch", set(0, 0xfe, 0x7f), false},
		{"length in more bytes than it needs", func(off int) []byte { return append([]byte{34 | 0x80, 0}, plain(off)[1:]...) }, true},
		{"length beyond 64 bits", func(int) []byte { return bytes.Repeat([]byte{0xff}, 18) }, false},
		{"attributes 1", set(1, 1), false},
		{"attributes 128", set(1, 0x80), false},
		{"timestamp delta 1", set(2, 2), true},
		{"timestamp delta -1", set(2, 1), true},
		{"timestamp delta of 10 bytes", record(math.MinInt64, nil, []byte("x")), true},
		{"offset delta one less", func(off int) []byte { b := plain(off); b[3] -= 2; return b }, false},
		{"offset delta one more", func(off int) []byte { b := plain(off); b[3] += 2; return b }, false},
		{"offset delta negative", func(off int) []byte { b := plain(off); b[3]++; return b }, false},
		{"key length -2", set(4, 3), false},
		{"key length 0", record(0, []byte{}, []byte("x")), true},
		{"key length into the value", set(4, 20), false},
		{"key length beyond the record", set(4, 100), false},
		{"a key", record(0, []byte("k"), []byte("x")), true},
		{"value null", record(0, nil, nil), true},
		{"value empty", record(0, nil, []byte{}), true},
		{"value length one less", set(5, 20), false},
		{"value length one more", set(5, 24), false},
		{"value length -2", set(5, 3), false},
		{"value length -12", set(5, 23), false},
		{"value length beyond the record", set(5, 0x7e), false},
		{"1 header, none there", set(17, 2), false},
		{"-1 headers", set(17, 1), false},
		{"128 headers", set(17, 0x80), false},
		{"a header", record(0, nil, nil, RecordHeader{Key: "k"}), true},
		{"a header with a null key", raw(18, 0, 0, 0, 1, 1, 2, 1, 2, 'v'), false},
		{"a header with a key of length -2", raw(18, 0, 0, 0, 1, 1, 2, 3, 2, 'v'), false},
		{"2^40 headers", raw(24, 0, 0, 0, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40, 0), false},
		{"a byte behind the headers", func(off int) []byte { b := plain(off); b[0] += 2; return append(b, 0) }, false},
	} {
		for _, before := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s/before=%d", c.name, before), func(t *testing.T) {
				const after = 6
				var records []byte
				for i := range before {
					records = append(records, plain(i)...)
				}
				records = append(records, c.make(before)...)
				for i := range after {
					records = append(records, plain(before+1+i)...)
				}
				b := make(Batch, BatchHeaderBytes)
				b[60] = byte(before + 1 + after)
				rs := RecordsOf(b, records)
				list, err := flatten(rs)
				if c.ok {
					if err != nil || len(list) != b.RecordCount() {
						t.Fatalf("%d records, %v", len(list), err)
					}
					return
				}
				if !errors.Is(err, CodeBadBatch) || len(list) != before {
					t.Fatalf("%d records, %v", len(list), err)
				}
				for rs.Next() {
				}
				if rs.Next() || rs.Err() == nil {
					t.Error("the iterator went on behind a broken record")
				}
			})
		}
	}
	first := plain(0)
	for _, c := range []struct {
		count   int32
		records []byte
		ok      bool
	}{
		{0, nil, true},
		{0, first, false},
		{1, first, true},
		{1, nil, false},
		{2, first, false},
		{1, append(bytes.Clone(first), 0), false},
		{-1, nil, false},
		{-1, first, false},
	} {
		b := make(Batch, BatchHeaderBytes)
		binary.BigEndian.PutUint32(b[57:], uint32(c.count))
		if _, err := flatten(RecordsOf(b, c.records)); (err == nil) != c.ok {
			t.Errorf("count %d with %d bytes: %v", c.count, len(c.records), err)
		}
	}
}

// In a run, every bit of a record's first bytes and of its last one counts, at every size of the head: whatever is flipped,
// the iterator says what the general path says.
func TestEveryBitOfARunCounts(t *testing.T) {
	for _, index := range []int{10, 70, 8200} { // offset deltas of one, two and three bytes
		for _, size := range []int{1, 60, 100} {
			const alike, broken = 8, 4
			var starts []int
			var records []byte
			for i := range alike {
				starts = append(starts, len(records))
				records = rawRecord(records, 3, int64(index+i), nil, bytes.Repeat([]byte{'v'}, size), nil)
			}
			end := starts[broken+1] - 1
			for _, at := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, end - starts[broken]} {
				for bit := range 8 {
					b := bytes.Clone(records)
					if starts[broken]+at > end {
						continue
					}
					b[starts[broken]+at] ^= 1 << bit
					fast := Records{b: b, index: index, count: index + alike, base: 5}
					oracle := fast
					for i := 0; ; i++ {
						got, want := fast.Next(), oracle.slow()
						if got != want || got && !reflect.DeepEqual(flat(&fast.Record), flat(&oracle.Record)) {
							t.Fatalf("index %d, size %d, byte %d, bit %d, record %d: %v %+v, in truth %v %+v",
								index, size, at, bit, i, got, flat(&fast.Record), want, flat(&oracle.Record))
						}
						if !got {
							break
						}
					}
				}
			}
		}
	}
}

// Records of all shapes, in runs and mixed, come back as they went in.
func TestRecordsOfAllShapes(t *testing.T) {
	var w BatchBuilder
	w.Reset([]byte("front"), 4<<20)
	var want []flatRecord
	add := func(ts int64, key, value []byte, headers []RecordHeader) {
		t.Helper()
		ok := false
		if key == nil && headers == nil {
			ok = w.AddValue(ts, value)
		} else {
			ok = w.Add(ts, key, value, headers)
		}
		if !ok {
			t.Fatalf("record %d did not fit", len(want))
		}
		want = append(want, flatRecord{Offset: Offset(len(want)), Timestamp: ts, Key: key, Value: value, Headers: headers})
	}
	sizes := []int{
		0, 1, 2, 3, 7, 8, 9, 10, 54, 55, 56, 57, 58, 63, 64, 65, 100, 127, 128, 1000,
		8150, 8165, 8175, 8176, 8180, 8191, 8192, 20_000,
	}
	for _, size := range sizes {
		for range 4 {
			add(1000, nil, bytes.Repeat([]byte{byte(size)}, size), nil)
		}
	}
	add(1000, nil, nil, nil)
	add(1000, []byte{}, []byte{}, []RecordHeader{})
	for _, delta := range []int64{0, 1, -1, 63, -64, 64, -65, 1 << 20, math.MaxInt64 - 1000, math.MinInt64} {
		for range 3 {
			add(1000+delta, nil, []byte("same"), nil)
		}
		add(1000+delta, []byte("key"), []byte("same"), nil)
		add(1000+delta, nil, []byte("same"), []RecordHeader{{Key: "h", Value: []byte("v")}, {Key: "", Value: nil}})
	}
	for i := range 9000 { // through the sizes of offset deltas
		add(1000, nil, []byte{1, 2, byte(i)}, nil)
	}
	for i := range want {
		if len(want[i].Headers) == 0 {
			want[i].Headers = nil
		}
	}
	buf := w.Finish(NoProducer)
	if string(buf[:5]) != "front" {
		t.Fatal("what stood in front is gone")
	}
	b, _, err := NextBatch(buf[5:])
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckBatch(b, 4<<20); err != nil {
		t.Fatal(err)
	}
	if b.MaxTimestamp() != math.MaxInt64 || b.BaseTimestamp() != 1000 {
		t.Errorf("timestamps %d, %d", b.BaseTimestamp(), b.MaxTimestamp())
	}
	got, err := flatten(b.Records())
	if err != nil || len(got) != len(want) {
		t.Fatal(err, len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("record %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// The limit is kept to the byte, by both ways to add.
func TestLimitIsExact(t *testing.T) {
	value := []byte("twenty bytes of text")
	for limit := range 2500 {
		want := 0
		for size := BatchHeaderBytes; ; want++ {
			size += len(rawRecord(nil, 0, int64(want), nil, value, nil))
			if size > limit {
				break
			}
		}
		for _, capacity := range []int{0, limit, limit + 100} {
			var values, all BatchBuilder
			values.Reset(make([]byte, 0, capacity), limit)
			all.Reset(make([]byte, 0, capacity), limit)
			for values.AddValue(5, value) {
			}
			for all.Add(5, nil, value, nil) {
			}
			if values.Count() != want || all.Count() != want || want > 0 && values.Size() > limit {
				t.Fatalf("limit %d, capacity %d: AddValue took %d records, Add %d, want %d", limit, capacity, values.Count(), all.Count(), want)
			}
		}
	}
}

// Beyond 2^20 records offset deltas take four bytes.
func TestMillionsOfRecords(t *testing.T) {
	const n = 1<<20 + 5
	var values, all BatchBuilder
	values.Reset(make([]byte, 0, 12*n), 12*n)
	all.Reset(make([]byte, 0, 12*n), 12*n)
	for i := range n {
		if !values.AddValue(5, []byte("v")) || !all.Add(5, nil, []byte("v"), nil) {
			t.Fatalf("record %d did not fit", i)
		}
	}
	b := Batch(values.Finish(NoProducer))
	if !bytes.Equal(b, all.Finish(NoProducer)) {
		t.Fatal("AddValue and Add differ")
	}
	rs := b.Records()
	for i := range n {
		if !rs.Next() || rs.Record.Offset != Offset(i) || string(rs.Record.Value) != "v" {
			t.Fatalf("record %d: %+v, %v", i, rs.Record, rs.Err())
		}
	}
	if rs.Next() || rs.Err() != nil {
		t.Fatal(rs.Err())
	}
}

// A builder that was used makes the same batch as a new one.
func TestBuilderIsReused(t *testing.T) {
	second := func(w *BatchBuilder) []byte {
		w.Reset(make([]byte, 0, 2000), 1000)
		for range 3 {
			w.AddValue(1003, []byte("same"))
		}
		return w.Finish(NoProducer)
	}
	var used, unused BatchBuilder
	used.Reset(make([]byte, 0, 2000), 1000)
	for _, ts := range []int64{1000, 1005, 1003, 1003, 1003} {
		used.AddValue(ts, []byte("same"))
	}
	used.Finish(NoProducer)
	if a, b := second(&used), second(&unused); !bytes.Equal(a, b) {
		t.Errorf("a used builder makes\n%x, a new one\n%x", a, b)
	}
}

// Headers stops where the loop does.
func TestHeadersStop(t *testing.T) {
	rs := Batch(goldenBatches()["batch_headers"]).Records()
	if !rs.Next() || rs.Record.HeaderCount() != 3 {
		t.Fatal(rs.Err(), rs.Record.HeaderCount())
	}
	n := 0
	for key := range rs.Record.Headers {
		n++
		if string(key) == "null" {
			break
		}
	}
	if n != 2 {
		t.Errorf("%d headers came", n)
	}
}

func TestFinishWithoutRecordsPanics(t *testing.T) {
	var w BatchBuilder
	w.Reset(nil, 1000)
	if w.Add(0, nil, make([]byte, 1000), nil) || w.AddValue(0, make([]byte, 1000)) || w.Count() != 0 || w.Size() != BatchHeaderBytes {
		t.Fatal("a record above the limit went in")
	}
	mustPanic(t, "a batch without records", func() { w.Finish(NoProducer) })
}

func mustPanic(t *testing.T, says string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if v := recover(); v == nil || !strings.Contains(v.(string), "BUG: ") || !strings.Contains(v.(string), says) {
			t.Errorf("panic %v, want one about %q", v, says)
		}
	}()
	f()
}

func BenchmarkRecords(b *testing.B) {
	const limit = 256 << 10
	value := bytes.Repeat([]byte("x"), 100)
	mixed := make([][]byte, 64) // lengths that differ from record to record, 100 on average
	for i := range mixed {
		mixed[i] = bytes.Repeat([]byte("x"), 70+(i*37)%61)
	}
	buf := make([]byte, 0, limit)
	fill := func(w *BatchBuilder) {
		w.Reset(buf, limit)
		for w.AddValue(1000, value) {
		}
	}
	fillMixed := func(w *BatchBuilder) {
		w.Reset(buf, limit)
		for i := 0; w.AddValue(1000, mixed[i%len(mixed)]); i++ {
		}
	}
	build := func(fill func(*BatchBuilder)) Batch {
		var w BatchBuilder
		fill(&w)
		return bytes.Clone(w.Finish(NoProducer))
	}
	batch, mixedBatch := build(fill), build(fillMixed)
	run := func(name string, records int, f func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(batch)))
			for b.Loop() {
				f(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
		})
	}
	var w BatchBuilder
	read := func(b *testing.B, batch Batch) {
		n := 0
		rs := batch.Records()
		for rs.Next() {
			n += len(rs.Record.Value)
		}
		if rs.Err() != nil || n == 0 {
			b.Fatal(rs.Err())
		}
	}
	// copy is the floor of add: the values alone, with the same distance.
	run("copy/size=100", batch.RecordCount(), func(*testing.B) {
		for at := BatchHeaderBytes; at+110 <= cap(buf); at += 110 {
			copy(buf[at:at+110], value)
		}
	})
	run("add/size=100", batch.RecordCount(), func(*testing.B) { fill(&w) })
	run("add/size=mixed", mixedBatch.RecordCount(), func(*testing.B) { fillMixed(&w) })
	run("build/size=100", batch.RecordCount(), func(*testing.B) {
		fill(&w)
		w.Finish(NoProducer)
	})
	run("check/size=100", batch.RecordCount(), func(b *testing.B) {
		if err := CheckBatch(batch, len(batch)); err != nil {
			b.Fatal(err)
		}
	})
	run("read/size=100", batch.RecordCount(), func(b *testing.B) { read(b, batch) })
	run("read/size=mixed", mixedBatch.RecordCount(), func(b *testing.B) { read(b, mixedBatch) })
}
