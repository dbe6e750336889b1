package program

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// TestPrintFrom: what stands in a batch before the offset, or before the first record of the time, is left out. Behind that one
// an older record is printed: it came later.
func TestPrintFrom(t *testing.T) {
	batch := func(base codec.Offset, times ...int64) client.Batch {
		var w codec.BatchBuilder
		w.Reset(nil, 1<<20)
		for i, ts := range times {
			if !w.Add(ts, nil, []byte{'a' + byte(int(base)+i)}, nil) {
				t.Fatal("the record does not fit")
			}
		}
		b := codec.Batch(w.Finish(codec.NoProducer))
		b.SetBase(base, 0)
		return client.Batch{Partition: 3, Batch: b}
	}
	for name, tc := range map[string]struct {
		begin codec.Offset
		since int64 // 0: none
		left  int64 // 0: all
		want  string
	}{
		"all":              {0, 0, 0, "abcdef"},
		"offset":           {2, 0, 0, "cdef"},
		"offset and limit": {2, 0, 2, "cd"},
		"time":             {0, 200, 0, "bcdef"},
		"time and limit":   {0, 200, 3, "bcd"},
		"later time":       {0, 300, 0, "ef"},
		"time to come":     {0, 1000, 0, ""},
		"offset and time":  {4, 200, 0, "ef"},
	} {
		var out bytes.Buffer
		p := &printer{
			out: bufio.NewWriter(&out), form: &plainForm{}, left: map[int]int64{}, begin: map[int]codec.Offset{3: tc.begin},
			since: map[int]int64{}, ahead: map[int]bool{3: true},
		}
		if tc.since != 0 {
			p.since[3] = tc.since
		}
		if tc.left != 0 {
			p.left[3] = tc.left
		}
		for _, b := range []client.Batch{batch(0, 100, 200, 150), batch(3, 100, 300, 100)} {
			if err := p.batch(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.out.Flush(); err != nil {
			t.Fatal(err)
		}
		if out.String() != tc.want || p.records != int64(len(tc.want)) {
			t.Errorf("%s: printed %q, %d records, want %q", name, out.String(), p.records, tc.want)
		}
	}
}
