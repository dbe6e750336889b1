package idempotence

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lightio/lightq/codec"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// step is a batch and what is to happen to it.
type step struct {
	id             int64
	epoch          int16
	first, records int32
	want           Verdict
	base           codec.Offset // of the duplicate
}

// The rules, one behind the other: what is said Append to is appended.
func TestRules(t *testing.T) {
	const top = math.MaxInt32
	for name, steps := range map[string][]step{
		"in order": {
			{1, 0, 0, 10, Append, 0},
			{1, 0, 10, 1, Append, 0},
			{1, 0, 11, 5, Append, 0},
		},
		"each of the last five, with its own base offset": {
			{1, 0, 0, 10, Append, 0},
			{1, 0, 10, 10, Append, 0},
			{1, 0, 20, 10, Append, 0},
			{1, 0, 30, 10, Append, 0},
			{1, 0, 40, 10, Append, 0},
			{1, 0, 0, 10, Duplicate, 0},
			{1, 0, 40, 10, Duplicate, 40},
			{1, 0, 10, 10, Duplicate, 10},
			{1, 0, 50, 10, Append, 0},
			{1, 0, 0, 10, OldDuplicate, 0},
			{1, 0, 10, 10, Duplicate, 10},
			{1, 0, 5, 5, OldDuplicate, 0},
			{1, 0, 5, 10, OutOfOrder, 0}, // reaches into what is known, and is none of it
			{1, 0, 10, 5, OutOfOrder, 0},
			{1, 0, 10, 11, OutOfOrder, 0},
			{1, 0, 50, 11, OutOfOrder, 0},
		},
		"a gap": {
			{1, 0, 0, 10, Append, 0},
			{1, 0, 11, 1, OutOfOrder, 0},
			{1, 0, 10, 1, Append, 0},
			{1, 0, 12, 1, OutOfOrder, 0},
		},
		"an unknown producer begins anywhere; what was before is not claimed to be there": {
			{1, 3, 1000, 10, Append, 0},
			{1, 3, 990, 10, OutOfOrder, 0},
			{1, 3, 1000, 10, Duplicate, 0},
			{1, 3, 1010, 10, Append, 0},
			{1, 3, 1020, 10, Append, 0},
			{1, 3, 1030, 10, Append, 0},
			{1, 3, 1040, 10, Append, 0},
			{1, 3, 1050, 10, Append, 0},
			{1, 3, 1000, 10, OldDuplicate, 0},
			{1, 3, 990, 10, OutOfOrder, 0},
			{1, 3, 995, 10, OutOfOrder, 0},
		},
		"epochs": {
			{1, 1, 0, 10, Append, 0},
			{1, 0, 10, 1, InvalidEpoch, 0},
			{1, 0, 0, 10, InvalidEpoch, 0},
			{1, 2, 10, 1, OutOfOrder, 0},
			{1, 2, 0, 10, Append, 0},
			{1, 1, 0, 10, InvalidEpoch, 0},
			{1, 2, 0, 10, Duplicate, 10},
			{1, 2, 10, 10, Append, 0},
			{1, 32767, 0, 10, Append, 0},
			{1, 32767, 10, 10, Append, 0},
			{2, 1, 0, 10, Append, 0},
			{2, 1, 10, 5, Append, 0},
			{2, 2, 0, 3, Append, 0},
			{2, 2, 10, 5, OutOfOrder, 0}, // the last epoch had such a batch
		},
		"sequences begin again behind 2^31-1": {
			{1, 0, top - 4, 5, Append, 0},
			{1, 0, 0, 5, Append, 0},
			{1, 0, top - 4, 5, Duplicate, 0},
			{1, 0, 5, 1, Append, 0},
			{2, 0, top - 4, 10, Append, 0}, // in the middle of a batch
			{2, 0, top - 4, 10, Duplicate, 11},
			{2, 0, 4, 1, OutOfOrder, 0},
			{2, 0, 5, 1, Append, 0},
			{3, 0, top, 1, Append, 0},
			{3, 0, 1, 1, OutOfOrder, 0},
			{3, 0, 0, 1, Append, 0},
			{3, 0, 1, 1, Append, 0},
			{3, 0, 2, 1, Append, 0},
			{3, 0, 3, 1, Append, 0},
			{3, 0, 4, 1, Append, 0},
			{3, 0, top, 1, OldDuplicate, 0},
			{3, 0, top - 1, 1, OutOfOrder, 0},
		},
		"no producer": {
			{-1, -1, -1, 10, Append, 0},
			{-1, -1, -1, 10, Append, 0},
		},
		"producers do not meet": {
			{1, 0, 0, 10, Append, 0},
			{2, 5, 0, 10, Append, 0},
			{1, 0, 10, 1, Append, 0},
			{2, 5, 10, 1, Append, 0},
			{2, 5, 0, 10, Duplicate, 10},
			{1, 0, 0, 10, Duplicate, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, next := New(Options{}), codec.Offset(0)
			for i, st := range steps {
				v, base := s.Check(st.id, st.epoch, st.first, st.records)
				if v != st.want || base != st.base {
					t.Fatalf("step %d, %+v: %v at %d", i, st, v, base)
				}
				if v == Append {
					s.Appended(st.id, st.epoch, st.first, st.records, next, 0)
					next += codec.Offset(st.records)
				}
			}
		})
	}
}

// What was refused after it was taken leaves no trace: neither in what it pushed out, nor in epochs, nor in who was forgotten.
func TestTruncate(t *testing.T) {
	s := New(Options{Limit: 2})
	for i := range int32(6) {
		s.Appended(1, 0, i*10, 10, codec.Offset(i)*10, 100)
	}
	s.Appended(2, 0, 0, 10, 60, 200)
	s.Settle(70)
	before := s.AppendSnapshot(nil)
	s.Appended(1, 1, 0, 10, 70, 300)
	middle := s.AppendSnapshot(nil)
	for i := range int32(20) {
		s.Appended(1, 1, 10+i, 1, 80+codec.Offset(i), 400)
	}
	s.Appended(3, 0, 0, 1, 100, 500) // forgets 2
	s.Appended(2, 0, 10, 1, 101, 600)
	s.Truncate(80)
	if got := s.AppendSnapshot(nil); !bytes.Equal(got, middle) {
		t.Errorf("the state is\n%x, it was\n%x", got, middle)
	}
	s.Truncate(70)
	if got := s.AppendSnapshot(nil); !bytes.Equal(got, before) {
		t.Errorf("the state is\n%x, it was\n%x", got, before)
	}
	for i := int32(1); i < 6; i++ {
		if v, base := s.Check(1, 0, i*10, 10); v != Duplicate || base != codec.Offset(i)*10 {
			t.Errorf("batch %d: %v at %d", i, v, base)
		}
	}
	s.Truncate(0) // what was settled stays
	if got := s.AppendSnapshot(nil); !bytes.Equal(got, before) {
		t.Errorf("the state is\n%x, it was\n%x", got, before)
	}
}

func TestExpiry(t *testing.T) {
	s := New(Options{Expiry: time.Hour})
	hour := time.Hour.Milliseconds()
	for id := range int64(5) {
		s.Appended(id, 0, 0, 1, codec.Offset(id), id)
	}
	s.Appended(0, 0, 1, 1, 5, 5)
	if n := s.Expire(hour); n != 0 {
		t.Errorf("%d were forgotten too soon", n)
	}
	if n := s.Expire(hour + 2); n != 2 || s.Count() != 3 {
		t.Errorf("%d were forgotten, %d are left", n, s.Count())
	}
	if v, _ := s.Check(1, 0, 77, 1); v != Append {
		t.Errorf("a forgotten producer: %v", v)
	}
	if v, _ := s.Check(0, 0, 1, 1); v != Duplicate {
		t.Errorf("one that appended since: %v", v)
	}
	if n := s.Expire(-hour); n != 0 {
		t.Errorf("a clock that went back forgets %d", n)
	}
	if n := s.Expire(10 * hour); n != 3 || s.Count() != 0 {
		t.Errorf("%d were forgotten, %d are left", n, s.Count())
	}
}

// A producer is forgotten while its first append may still be taken back, which then happens.
func TestExpiryBeforeTruncate(t *testing.T) {
	s := New(Options{Expiry: time.Millisecond, Limit: 1})
	s.Appended(1, 0, 0, 1, 0, 0)
	s.Settle(1)
	s.Appended(2, 0, 0, 1, 1, 0) // forgets 1
	if n := s.Expire(10); n != 1 {
		t.Fatalf("%d were forgotten", n)
	}
	s.Truncate(1)
	if v, _ := s.Check(1, 0, 0, 1); v != Duplicate || s.Count() != 1 {
		t.Errorf("producer 1: %v", v)
	}
	if v, _ := s.Check(2, 0, 7, 1); v != Append {
		t.Errorf("producer 2: %v", v)
	}
}

// In a log a producer may go on anywhere, because it had been forgotten: what lies between is not claimed to be there.
func TestReplayAcrossAGap(t *testing.T) {
	s, next := New(Options{}), codec.Offset(0)
	replay := func(first int32, records int) {
		var w codec.BatchBuilder
		w.Reset(nil, 1<<20)
		for range records {
			w.AddValue(1, []byte("x"))
		}
		b := codec.Batch(w.Finish(codec.BatchMeta{ProducerID: 1, ProducerEpoch: 0, BaseSequence: first}))
		b.SetBase(next, 0)
		next = b.NextOffset()
		s.Replay(b, 0)
	}
	replay(0, 100)
	for i := range int32(6) {
		replay(150+10*i, 10)
	}
	for first, want := range map[int32]Verdict{0: OutOfOrder, 90: OutOfOrder, 120: OutOfOrder, 145: OutOfOrder, 150: OldDuplicate, 160: Duplicate} {
		if v, _ := s.Check(1, 0, first, 10); v != want {
			t.Errorf("sequence %d: %v, want %v", first, v, want)
		}
	}
}

func TestLimit(t *testing.T) {
	for limit, want := range map[int]int{0: DefaultLimit, MaxLimit + 1: MaxLimit} {
		if got := New(Options{Limit: limit}).limit; got != want {
			t.Errorf("the limit %d is %d", limit, got)
		}
	}
	s := New(Options{Limit: 3})
	next := codec.Offset(0)
	use := func(id int64, first int32) {
		s.Appended(id, 0, first, 1, next, 0)
		next++
	}
	use(1, 0)
	use(2, 0)
	use(3, 0)
	use(1, 1)
	use(4, 0) // forgets 2
	for id, want := range map[int64]Verdict{1: Duplicate, 2: Append, 3: Duplicate, 4: Duplicate} {
		first := int32(0)
		if id == 1 {
			first = 1
		}
		if v, _ := s.Check(id, 0, first, 1); v != want {
			t.Errorf("producer %d: %v", id, v)
		}
	}
	full := New(Options{Limit: MaxLimit})
	for id := range int64(MaxLimit) {
		for i := range int32(Remembered) {
			full.Appended(id, 0, i, 1, codec.Offset(id)*Remembered+codec.Offset(i), 0)
		}
		full.Settle(math.MaxInt64)
	}
	if n := len(full.AppendSnapshot(nil)); n > 16<<20 {
		t.Errorf("the largest snapshot has %d bytes", n)
	}
}

func golden() *State {
	s := New(Options{})
	s.Appended(7, 2, 0, 1, 100, 1_700_000_000_000)
	s.Appended(9, 0, math.MaxInt32-1, 4, 101, 1_700_000_000_001)
	for i := range int32(7) {
		s.Appended(7, 3, i*2, 2, codec.Offset(105+2*i), 1_700_000_000_002+int64(i))
	}
	s.Appended(1<<40, 32767, 5, 1, 119, 1_700_000_000_010)
	return s
}

func TestGoldenSnapshot(t *testing.T) {
	got := golden().AppendSnapshot(nil)
	file := filepath.Join("testdata", "snapshot.hex")
	var dump strings.Builder
	for line := range slices.Chunk(got, 32) {
		fmt.Fprintf(&dump, "%x\n", line)
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(dump.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if dump.String() != string(want) {
		t.Errorf("the snapshot is\n%swant\n%s", dump.String(), want)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(string(want), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{})
	if err := s.LoadSnapshot(b); err != nil {
		t.Fatal(err)
	}
	if v, base := s.Check(7, 3, 4, 2); v != Duplicate || base != 109 {
		t.Errorf("%v at %d", v, base)
	}
	if v, _ := s.Check(7, 3, 0, 2); v != OldDuplicate {
		t.Errorf("an old one: %v", v)
	}
	if v, base := s.Check(9, 0, math.MaxInt32-1, 4); v != Duplicate || base != 101 {
		t.Errorf("%v at %d", v, base)
	}
	if err := s.LoadSnapshot(nil); err != nil || s.Count() != 0 {
		t.Errorf("no snapshot: %v, %d producers", err, s.Count())
	}
}

func TestBadSnapshots(t *testing.T) {
	sound := golden().AppendSnapshot(nil)
	set := func(at int, v ...byte) []byte {
		b := bytes.Clone(sound)
		copy(b[at:], v)
		return b
	}
	const first = snapshotHeaderBytes // of the first producer, 9, which has one batch
	for name, b := range map[string][]byte{
		"one byte":           sound[:1],
		"another version":    set(1, 2),
		"reserved":           set(3, 1),
		"too many producers": set(4, 0xff, 0xff, 0xff, 0xff),
		"one too many":       set(7, 4),
		"one too few":        set(7, 2),
		"a negative id":      set(first, 0xff),
		"the same id twice":  set(first, 0, 0, 0, 0, 0, 0, 0, 7),
		"nothing in a row":   set(first+16, 0, 0, 0, 0, 0, 0, 0, 0),
		"no batches":         set(first+24, 0),
		"six batches":        set(first+24, 6),
		"a negative base":    set(first+25, 0xff),
		"a negative first":   set(first+33, 0xff),
		"no records":         set(first+37, 0, 0, 0, 0),
		"a negative epoch":   set(first+41, 0xff),
		"another order":      set(first+25, 0x7f),
		"something behind":   append(bytes.Clone(sound), 0),
	} {
		s := golden()
		if err := s.LoadSnapshot(b); err == nil || s.Count() != 0 {
			t.Errorf("%s: error %v, %d producers", name, err, s.Count())
		}
		s.Appended(1, 0, 0, 1, 0, 0) // it can be used all the same
		if v, _ := s.Check(1, 0, 0, 1); v != Duplicate {
			t.Errorf("%s: afterwards: %v", name, v)
		}
	}
	for n := 1; n < len(sound); n++ {
		if err := New(Options{}).LoadSnapshot(sound[:n]); err == nil {
			t.Errorf("cut to %d bytes", n)
		}
	}
	small := New(Options{Limit: 2})
	if err := small.LoadSnapshot(sound); err != nil || small.Count() != 2 {
		t.Errorf("error %v, %d producers", err, small.Count())
	}
	if v, _ := small.Check(9, 0, math.MaxInt32-1, 4); v != Append {
		t.Errorf("the one whose append is the longest ago: %v", v)
	}
}

func FuzzSnapshot(f *testing.F) {
	f.Add(golden().AppendSnapshot(nil))
	f.Add(New(Options{}).AppendSnapshot(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := New(Options{})
		if err := s.LoadSnapshot(b); err != nil || len(b) == 0 {
			return
		}
		if got := s.AppendSnapshot(nil); !bytes.Equal(got, b) {
			t.Fatalf("loaded\n%x, written\n%x", b, got)
		}
		if s.Count() > len(b)/(producerBytes+batchBytes) {
			t.Fatalf("%d producers of %d bytes", s.Count(), len(b))
		}
		s.Check(1, 2, 3, 4)
		s.Expire(math.MaxInt64)
	})
}

func TestNoAllocations(t *testing.T) {
	s := New(Options{})
	next, first := codec.Offset(0), [8]int32{}
	run := func() {
		for id := range int64(8) {
			if v, _ := s.Check(id, 0, first[id], 10); v != Append {
				t.Fatal(v)
			}
			s.Appended(id, 0, first[id], 10, next, int64(next))
			if v, _ := s.Check(id, 0, first[id], 10); v != Duplicate {
				t.Fatal(v)
			}
			first[id] = advance(first[id], 10)
			next += 10
		}
		s.Settle(next - 30)
	}
	run()
	run()
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := cap(s.taken); n > 64 {
		t.Errorf("there is room for %d appends, at most 11 may be taken back", n)
	}
}

// model is the same with whole histories and copies of everything.
type model struct {
	limit, expiry int64
	made          int // producers, ever
	now           map[int64]modelProducer
	// saved are the states before each append that may be taken back.
	saved []modelSave
}

type modelProducer struct {
	made    int
	millis  int64
	batches []batch // all of them
}

type modelSave struct {
	base  codec.Offset
	state map[int64]modelProducer
}

func (p modelProducer) base() codec.Offset { return p.batches[len(p.batches)-1].base }

func (m *model) check(id int64, epoch int16, first, records int32) (Verdict, codec.Offset) {
	p, ok := m.now[id]
	if !ok || id < 0 {
		return Append, 0
	}
	newest := p.batches[len(p.batches)-1]
	if epoch < newest.epoch {
		return InvalidEpoch, 0
	}
	if epoch > newest.epoch {
		if first == 0 {
			return Append, 0
		}
		return OutOfOrder, 0
	}
	if int64(first) == (int64(newest.first)+int64(newest.records))%(1<<31) {
		return Append, 0
	}
	// All records of this epoch, by their sequences; those of the last five batches are known exactly.
	var run, recent []batch
	for i, b := range p.batches {
		if b.epoch != epoch {
			continue
		}
		run = append(run, b)
		if i >= len(p.batches)-Remembered {
			recent = append(recent, b)
		}
	}
	for _, b := range slices.Backward(recent) {
		if b.first == first && b.records == records {
			return Duplicate, b.base
		}
	}
	old := map[int64]bool{}
	for _, b := range run[:len(run)-len(recent)] {
		for i := range int64(b.records) {
			old[(int64(b.first)+i)%(1<<31)] = true
		}
	}
	for i := range int64(records) {
		if !old[(int64(first)+i)%(1<<31)] {
			return OutOfOrder, 0
		}
	}
	return OldDuplicate, 0
}

func (m *model) copy() map[int64]modelProducer {
	c := map[int64]modelProducer{}
	for id, p := range m.now {
		p.batches = slices.Clone(p.batches)
		c[id] = p
	}
	return c
}

func (m *model) appended(id int64, b batch, now int64) {
	m.saved = append(m.saved, modelSave{b.base, m.copy()})
	p, ok := m.now[id]
	if !ok {
		if int64(len(m.now)) >= m.limit {
			oldest := int64(-1)
			for id, p := range m.now {
				if oldest < 0 || p.base() < m.now[oldest].base() {
					oldest = id
				}
			}
			delete(m.now, oldest)
		}
		m.made++
		p.made = m.made
	}
	p.millis = now
	p.batches = append(p.batches, b)
	m.now[id] = p
}

func (m *model) truncate(to codec.Offset) {
	for i, s := range m.saved {
		if s.base >= to {
			m.now, m.saved = s.state, m.saved[:i]
			return
		}
	}
}

func (m *model) settle(to codec.Offset) {
	for len(m.saved) > 0 && m.saved[0].base < to {
		m.saved = m.saved[1:]
	}
}

func (m *model) expire(now int64) (n int) {
	for id, p := range m.now {
		if now-p.millis < m.expiry {
			continue
		}
		n++
		delete(m.now, id)
		for _, s := range m.saved {
			if s.state[id].made == p.made {
				delete(s.state, id)
			}
		}
	}
	return n
}

// The state does what a model does that keeps everything.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{limit: 3, expiry: 50, now: map[int64]modelProducer{}}
		s := New(Options{Limit: 3, Expiry: 50 * time.Millisecond})
		next, settled, now := codec.Offset(0), codec.Offset(0), int64(0)
		ids := rapid.Int64Range(0, 4)
		t.Repeat(map[string]func(*rapid.T){
			"batch": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				p := m.now[id]
				var newest batch
				if len(p.batches) > 0 {
					newest = p.batches[rapid.IntRange(max(0, len(p.batches)-8), len(p.batches)-1).Draw(t, "like")]
				} else {
					newest.first = rapid.SampledFrom([]int32{0, 0, 100, math.MaxInt32 - 20}).Draw(t, "start")
				}
				b := batch{base: next, first: newest.first, records: max(newest.records, 1), epoch: newest.epoch}
				switch rapid.SampledFrom([]string{"next", "next", "next", "again", "again", "shift", "size", "epoch", "old epoch"}).Draw(t, "how") {
				case "next":
					if len(p.batches) > 0 {
						newest = p.batches[len(p.batches)-1]
					}
					b.first, b.epoch, b.records = newest.end(), newest.epoch, rapid.Int32Range(1, 9).Draw(t, "records")
				case "shift":
					b.first = advance(b.first, rapid.Int32Range(-9, 9).Draw(t, "shift"))
				case "size":
					b.records = rapid.Int32Range(1, 20).Draw(t, "records")
				case "epoch":
					b.epoch++
					b.first = rapid.SampledFrom([]int32{0, 0, 0, 1}).Draw(t, "first")
				case "old epoch":
					b.epoch = max(b.epoch-1, 0)
				}
				wantV, wantBase := m.check(id, b.epoch, b.first, b.records)
				v, base := s.Check(id, b.epoch, b.first, b.records)
				if v != wantV || base != wantBase {
					t.Fatalf("producer %d, %+v: %v at %d, want %v at %d", id, b, v, base, wantV, wantBase)
				}
				if v == Append {
					m.appended(id, b, now)
					s.Appended(id, b.epoch, b.first, b.records, b.base, now)
					next += codec.Offset(b.records)
				}
			},
			"settle": func(t *rapid.T) {
				settled = codec.Offset(rapid.Int64Range(int64(settled), int64(next)).Draw(t, "to"))
				m.settle(settled)
				s.Settle(settled)
			},
			"truncate": func(t *rapid.T) {
				to := codec.Offset(rapid.Int64Range(int64(settled), int64(next)).Draw(t, "to"))
				m.truncate(to)
				s.Truncate(to)
				next = to // the offsets are given out again, which no two batches notice
			},
			"time": func(t *rapid.T) {
				now += rapid.Int64Range(0, 60).Draw(t, "by")
			},
			"expire": func(t *rapid.T) {
				if want, got := m.expire(now), s.Expire(now); got != want {
					t.Fatalf("%d were forgotten, want %d", got, want)
				}
			},
			"restart": func(t *rapid.T) {
				b := s.AppendSnapshot(nil)
				s = New(Options{Limit: 3, Expiry: 50 * time.Millisecond})
				if err := s.LoadSnapshot(b); err != nil {
					t.Fatal(err)
				}
				if again := s.AppendSnapshot(nil); !bytes.Equal(b, again) {
					t.Fatalf("loaded\n%x, written\n%x", b, again)
				}
				m.saved, settled = nil, next
			},
			"": func(t *rapid.T) {
				if s.Count() != len(m.now) || len(s.taken)-s.head != len(m.saved) {
					t.Fatalf("%d producers, want %d; %d appends may be taken back, want %d", s.Count(), len(m.now), len(s.taken)-s.head, len(m.saved))
				}
				at := codec.Offset(-1)
				for p := s.all.newer; p != &s.all; p = p.newer {
					if b := p.slots[p.newest].base; b <= at || s.producers[p.id] != p || m.now[p.id].base() != b || m.now[p.id].millis != p.millis {
						t.Fatalf("producer %+v stands behind offset %d, want %+v", p, at, m.now[p.id])
					}
					at = p.slots[p.newest].base
				}
			},
		})
	})
}

// Replaying the batches of a log makes the state that wrote them, from any snapshot on.
func TestReplay(t *testing.T) {
	live := New(Options{Limit: 4})
	var log []codec.Batch
	snapshots := [][]byte{live.AppendSnapshot(nil)}
	next, first := codec.Offset(0), map[int64]int32{}
	for i := range 60 {
		id := int64(i*i%7) - 1
		var w codec.BatchBuilder
		w.Reset(nil, 1<<20)
		n := 1 + i%3
		for range n {
			w.AddValue(1, []byte("x"))
		}
		meta := codec.NoProducer
		if id >= 0 {
			meta = codec.BatchMeta{ProducerID: id, ProducerEpoch: 1, BaseSequence: first[id]}
		}
		b := codec.Batch(w.Finish(meta))
		b.SetBase(next, 0)
		if v, _ := live.Check(b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), int32(b.RecordCount())); v != Append {
			t.Fatalf("batch %d: %v", i, v)
		}
		live.Appended(b.ProducerID(), b.ProducerEpoch(), b.BaseSequence(), int32(b.RecordCount()), next, int64(i))
		first[id] += int32(n)
		next = b.NextOffset()
		log = append(log, b)
		snapshots = append(snapshots, live.AppendSnapshot(nil))
	}
	for i, b := range snapshots {
		s := New(Options{Limit: 4})
		if err := s.LoadSnapshot(b); err != nil {
			t.Fatal(err)
		}
		for n, batch := range log[i:] {
			s.Replay(batch, int64(i+n))
		}
		if got, want := s.AppendSnapshot(nil), snapshots[len(snapshots)-1]; !bytes.Equal(got, want) {
			t.Fatalf("from %d on: the state is\n%x, want\n%x", i, got, want)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, producers := range []int64{1, 64, DefaultLimit} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			s := New(Options{})
			first := make([]int32, producers)
			next := codec.Offset(0)
			b.ReportAllocs()
			for id := int64(0); b.Loop(); id = (id + 1) % producers {
				if v, _ := s.Check(id, 0, first[id], 10); v != Append {
					b.Fatal(v)
				}
				s.Appended(id, 0, first[id], 10, next, 0)
				first[id] = advance(first[id], 10)
				if next += 10; next%1000 == 0 {
					s.Settle(next - 500)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, producers := range []int64{1, 64, DefaultLimit} {
		b.Run(fmt.Sprintf("duplicate/producers=%d", producers), func(b *testing.B) {
			s := New(Options{})
			for id := range producers {
				for i := range int32(Remembered) {
					s.Appended(id, 0, i, 1, codec.Offset(id)*Remembered+codec.Offset(i), 0)
				}
			}
			b.ReportAllocs()
			for id := int64(0); b.Loop(); id = (id + 1) % producers {
				if v, _ := s.Check(id, 0, 0, 1); v != Duplicate {
					b.Fatal(v)
				}
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := New(Options{})
	for id := range int64(DefaultLimit) {
		for i := range int32(Remembered) {
			s.Appended(id, 0, i, 1, codec.Offset(id)*Remembered+codec.Offset(i), 0)
		}
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = s.AppendSnapshot(dst[:0])
	}
	b.SetBytes(int64(len(dst)))
}

// A snapshot below an offset is that of a state which never had what is above, and leaves the state as it was.
func TestSnapshotBelow(t *testing.T) {
	s, without := New(Options{}), New(Options{})
	base := codec.Offset(0)
	appendTo := func(both bool, id int64, first int32) {
		s.Appended(id, 0, first, 10, base, int64(base))
		if both {
			without.Appended(id, 0, first, 10, base, int64(base))
		}
		base += 10
	}
	for i := range int32(7) {
		appendTo(true, 1, 10*i)
		appendTo(true, 2, 10*i)
	}
	cut := base
	for i := int32(7); i < 10; i++ {
		appendTo(false, 1, 10*i)
		appendTo(false, 3, 10*i)
		appendTo(false, 2, 10*i)
	}
	whole := s.AppendSnapshot(nil)
	if got, want := s.AppendSnapshotBelow(nil, cut), without.AppendSnapshot(nil); !bytes.Equal(got, want) {
		t.Errorf("below: %x\nwant:  %x", got, want)
	}
	if !bytes.Equal(s.AppendSnapshot(nil), whole) {
		t.Error("the state has changed")
	}
	s.Truncate(cut)
	if got, want := s.AppendSnapshot(nil), without.AppendSnapshot(nil); !bytes.Equal(got, want) {
		t.Error("what is above cannot be taken back any more")
	}
}
