package codec

import (
	"bytes"
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
}

func BenchmarkRecords(b *testing.B) {
	value := bytes.Repeat([]byte("x"), 100)
	buf := make([]byte, 0, 256<<10)
	build := func() []byte {
		var w BatchBuilder
		w.Reset(buf, 256<<10)
		for w.AddValue(1000, value) {
		}
		return w.Finish(NoProducer)
	}
	batch := Batch(build())
	records := batch.RecordCount()
	perRecord := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
	}
	b.Run("build", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			build()
		}
		perRecord(b)
	})
	b.Run("check", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := CheckBatch(batch, len(batch)); err != nil {
				b.Fatal(err)
			}
		}
		perRecord(b)
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			for rs := batch.Records(); rs.Next(); {
				n += len(rs.Record.Value)
			}
		}
		perRecord(b)
	})
}
