package loadgen

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func indented(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(b, '\n')
}

const second = int64(time.Second)

// fixed is a moment for golden files.
var fixed = time.Date(2026, 3, 4, 5, 6, 7, 890_123_000, time.UTC)

func TestProducerReport(t *testing.T) {
	base := fixed.UnixNano()
	senders := []*Sender{
		{partition: 0, firstNS: base, lastNS: base + 2*second, endNS: base + 2*second + 1000},
		{partition: 1, firstNS: base + 1000, lastNS: base + 3*second, endNS: base + 4*second, lateNS: 1_250_000},
	}
	for i, s := range senders {
		s.sent.Store(10_000_000)
		s.confirmed.Store(10_000_000 - int64(i)*1500)
		s.failed.Store(int64(i) * 1000)
	}
	rep := ReportOf("test", runOf(0xABCDEF), 100, senders)
	rep.Total.DroppedUnread = 12_345
	rep.Rate = 5_000_000
	rep.Interrupted = true
	var text bytes.Buffer
	rep.Text(&text, time.UTC)
	golden(t, "producer.txt", text.Bytes())
	golden(t, "producer.json", indented(t, rep))

	text.Reset()
	never := ReportOf("test", runOf(1), HeaderBytes-1, []*Sender{{}})
	never.Text(&text, time.UTC)
	golden(t, "producer-never.txt", text.Bytes())
}

func TestConsumerReport(t *testing.T) {
	f := newFeed(100, 0, 0)
	f.now = fixed.UnixNano()
	f.m.started = fixed.Add(-time.Second)
	f.run(t, runA, 0, 30)
	f.now += second / 2
	f.dropped(20)
	f.run(t, runA, 50, 60)
	f.run(t, runA, 55, 58)
	f.run(t, runB, 0, 1)
	f.now += second / 2
	f.run(t, runA, 64, 90)
	f.run(t, runA, 62, 63)
	rep := f.m.Report()
	rep.Interrupted = true
	var text bytes.Buffer
	rep.Text(&text, time.UTC)
	golden(t, "consumer.txt", text.Bytes())
	golden(t, "consumer.json", indented(t, rep))

	small := newFeed(2, 0, 0)
	small.m.started, small.now = fixed, fixed.UnixNano()
	small.batch(t, []byte("a"), []byte("b"))
	text.Reset()
	rep = small.m.Report()
	rep.Text(&text, time.UTC)
	golden(t, "consumer-off.txt", text.Bytes())
	golden(t, "consumer-off.json", indented(t, rep))

	late := newFeed(10, 5, 0)
	late.m.started, late.now = fixed, fixed.UnixNano()
	late.run(t, runA, 5, 10)
	text.Reset()
	late.m.Report().Text(&text, time.UTC)
	golden(t, "consumer-late.txt", text.Bytes())
}
