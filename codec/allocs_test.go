package codec

import (
	"bytes"
	"testing"
)

// noAllocs runs f often enough for its slices to reach their sizes and then requires that it allocates nothing.
func noAllocs(t *testing.T, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(100, f); n != 0 {
		t.Errorf("%v allocations a run", n)
	}
}

func TestZeroAllocations(t *testing.T) {
	const limit = 256 << 10
	value := bytes.Repeat([]byte("v"), 100)
	headers := []RecordHeader{{Key: "trace", Value: []byte("1234")}, {Key: "null"}}
	buf := make([]byte, 0, limit)
	var w BatchBuilder
	buildValues := func() []byte {
		w.Reset(buf, limit)
		for w.AddValue(1000, value) {
		}
		return w.Finish(NoProducer)
	}
	buildAll := func() []byte {
		w.Reset(buf, limit)
		for i := int64(0); w.Add(1000+i, value[:8], value, headers); i++ {
		}
		return w.Finish(NoProducer)
	}
	t.Run("build values", func(t *testing.T) { noAllocs(t, func() { buildValues() }) })
	t.Run("build keys and headers", func(t *testing.T) { noAllocs(t, func() { buildAll() }) })

	values, all := Batch(bytes.Clone(buildValues())), Batch(bytes.Clone(buildAll()))
	for name, batch := range map[string]Batch{"values": values, "keys and headers": all} {
		t.Run("check and read "+name, func(t *testing.T) {
			noAllocs(t, func() {
				b, _, err := NextBatch(batch)
				if err != nil || CheckBatch(b, limit) != nil || CheckDelivered(b) != nil {
					t.Fatal("the batch is not valid")
				}
				n := 0
				rs := b.Records()
				for rs.Next() {
					n += len(rs.Record.Value)
					for key := range rs.Record.Headers {
						n += len(key)
					}
				}
				if rs.Err() != nil || n == 0 {
					t.Fatal(rs.Err())
				}
			})
		})
	}

	frame := make([]byte, 0, 4096)
	check := func(ok bool, err error) {
		if !ok || err != nil {
			t.Fatal("what was encoded does not decode: ", err)
		}
	}
	header := func(b []byte) (section, payload []byte) {
		h, err := ParseHeader(b, 1<<20)
		check(h.FrameBytes() == len(b), err)
		return b[HeaderBytes:][:h.HeaderSize], b[HeaderBytes+int(h.HeaderSize):]
	}
	batch := goldenValueBatch()
	t.Run("publish", func(t *testing.T) {
		noAllocs(t, func() {
			b := append(AppendPublish(frame, 1, Publish{Epoch: 1, First: 5, Count: 1}, len(batch)), batch...)
			section, _ := header(b)
			m, err := ParsePublish(section)
			check(m.First == 5, err)
		})
	})
	t.Run("confirm", func(t *testing.T) {
		noAllocs(t, func() {
			b := AppendConfirm(frame, 1, Confirm{Epoch: 1, First: 5, Count: 2})
			b = AppendResult(AppendResult(b, Result{Base: 9}), Result{Code: CodeQuota})
			section, payload := header(b)
			m, err := ParseConfirm(section, payload)
			check(m.Count == 2 && ResultAt(payload, 1).Code == CodeQuota, err)
		})
	})
	t.Run("deliver", func(t *testing.T) {
		m := Deliver{Start: 1, High: 2, AppendMillis: 3, Count: 1}
		noAllocs(t, func() {
			b := append(AppendDeliver(frame, 1, &m, len(batch)), batch...)
			section, _ := header(b)
			got, err := ParseDeliver(section)
			check(got == m, err)
		})
	})
	t.Run("credit and heartbeat", func(t *testing.T) {
		noAllocs(t, func() {
			section, _ := header(AppendCredit(frame, 1, 4096))
			n, err := ParseCredit(section)
			check(n == 4096, err)
			section, _ = header(AppendHeartbeat(frame))
			check(true, ParseEmpty(TypeHeartbeat, section))
		})
	})
	t.Run("slabs", func(t *testing.T) {
		p := NewSlabPool(1 << 20)
		noAllocs(t, func() {
			a, b := p.Get(100), p.Get(200_000)
			a.RetainN(3)
			for range 4 {
				a.Release()
			}
			b.Release()
		})
	})
}

// The largest header of a deliver frame is what its constant says, and comes with a gap.
func TestMaxDeliverHeaderBytes(t *testing.T) {
	m := Deliver{Gap: Gap{From: 1, Next: 2, Reason: GapDeclared}}
	if n := len(AppendDeliver(nil, 1, &m, 0)); n != MaxDeliverHeaderBytes {
		t.Errorf("%d bytes, the constant says %d", n, MaxDeliverHeaderBytes)
	}
	if n := len(AppendPublish(nil, 1, Publish{}, 0)); n != HeaderBytes+PublishHeaderBytes {
		t.Errorf("%d bytes, the constant says %d", n, HeaderBytes+PublishHeaderBytes)
	}
	if n := len(AppendConfirm(nil, 1, Confirm{})); n != HeaderBytes+ConfirmHeaderBytes {
		t.Errorf("%d bytes, the constant says %d", n, HeaderBytes+ConfirmHeaderBytes)
	}
}
