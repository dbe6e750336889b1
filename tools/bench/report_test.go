package main

import (
	"bytes"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{7}, 7},
		{[]float64{1, 9}, 5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 1, 3, 2}, 2.5},
		{[]float64{1, 1, 100}, 1},
	} {
		before := append([]float64(nil), c.values...)
		if got := median(c.values); got != c.want {
			t.Errorf("%v: %v instead of %v", c.values, got, c.want)
		}
		if !reflect.DeepEqual(before, c.values) {
			t.Errorf("%v became %v", before, c.values)
		}
	}
}

func TestRatio(t *testing.T) {
	if got := ratio(65, 100); got != 0.65 {
		t.Error(got)
	}
	for _, whole := range []float64{0, -1} {
		if got := ratio(1, whole); got != 0 {
			t.Errorf("%v: %v", whole, got)
		}
	}
	if got := perMillion(3, 2_000_000); got != 1.5 {
		t.Error(got)
	}
	if got := perMillion(3, 0); got != 0 {
		t.Error(got)
	}
}

func TestGrouped(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 999: "999", 999.5: "1,000", 1000: "1,000", 1234567.4: "1,234,567", -1234: "-1,234", -12: "-12", 0.4: "0",
	} {
		if got := grouped(v); got != want {
			t.Errorf("%v: %q instead of %q", v, got, want)
		}
	}
}

// sampleReport has one full row with an outlier in each figure, one row that was not built, and one with everything wrong.
func sampleReport() *report {
	run := func(rate float64) runResult {
		return runResult{
			MsgsPerSec: rate, BytesPerSec: rate * 100, Verified: true,
			Producer: roleFigures{CPUSecondsPerMillion: 0.1, PeakBytes: 20 << 20},
			Broker:   roleFigures{CPUSecondsPerMillion: 0.05 * rate / 5e6, PeakBytes: 24 << 20},
			Consumer: roleFigures{CPUSecondsPerMillion: 0.12, PeakBytes: 21<<20 + 1<<19},
		}
	}
	late := func(p50 float64) runResult {
		return runResult{
			MsgsPerSec: 9990, Verified: true, LateNS: int64(p50 * 1e6),
			Latency: loadgen.Latency{Count: 50_000, P50: p50, P99: 350, P999: 1234},
		}
	}
	limit := func(p50 float64) pacedSample {
		return pacedSample{
			Messages: 50_000, LateNS: 1_500_499, Latency: loadgen.Latency{Count: 50_000, P50: p50, P99: 100, P999: 1000, Max: 2000},
		}
	}
	full := row{
		workload: workload{Size: 100, Storage: "queue", Partitions: 1, Producers: 1, Consumers: 1, Rate: 10_000},
		Relay: relaySummary{Samples: []relaySample{
			{Implementation: relayBlocking, BytesPerSec: 1 << 30}, {Implementation: relayGnet, BytesPerSec: 1 << 29},
		}},
		Runs:        []runResult{run(5e6), run(1e6), run(6e6)},
		LatencyRuns: []runResult{late(81), late(80), late(900)},

		RelayLatencyRuns: []pacedSample{limit(10), limit(54), limit(55)},
	}
	full.summarize()
	missing := row{workload: workload{Size: 100, Storage: "file"}, NotBuilt: true}
	missing.summarize()
	wrong := row{
		workload: workload{Size: 8, Storage: "queue", Producers: 1, Consumers: 1, Rate: 10_000},
		Relay:    full.Relay,
		Runs:     []runResult{{MsgsPerSec: 1000, Problems: []string{"consumer of bench: partition 0: lost 1 instead of 0"}}},
		LatencyRuns: []runResult{
			{MsgsPerSec: 4000},
		},
	}
	wrong.summarize()
	return &report{
		Version: reportVersion, Program: "lightq-bench",
		Machine: machine{
			CPU: "A CPU", Cores: 2, OS: "linux", Arch: "amd64", Kernel: "Linux 6.1", Go: "go1.26",
			Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Format(time.RFC3339),
		},
		Settings: sweepOptions{
			Partitions: 1, Producers: 1, Consumers: 1, Runs: 3, Rate: 10_000, LatencySeconds: 5,
			Timeout: duration(2 * time.Minute), RelayDuration: duration(3 * time.Second),
		},
		Relay: summarizeRelay(full.Relay.Samples),
		Rows:  []row{full, missing, wrong},
	}
}

func TestSummarizeRow(t *testing.T) {
	m := sampleReport().Rows[0].Median
	if m.MsgsPerSec != 5e6 || m.BytesPerSec != 5e8 || m.MBPerSec != 5e8/(1<<20) {
		t.Errorf("throughput %+v", m)
	}
	if want := 5e8 / (1 << 30); math.Abs(m.Ratio-want) > 1e-15 {
		t.Errorf("ratio %v instead of %v", m.Ratio, want)
	}
	if m.Broker.CPUSecondsPerMillion != 0.05 || m.Broker.PeakBytes != 24<<20 || m.Latency.P50 != 81 || m.PacedRate != 9990 {
		t.Errorf("%+v", m)
	}
	if m.LateNS != 81e6 || m.RelayLatency.P50 != 54 || m.RelayLatency.Max != 2000 || m.RelayLateNS != 1_500_499 {
		t.Errorf("latency: late %d, relay %+v, late %d", m.LateNS, m.RelayLatency, m.RelayLateNS)
	}
	if want := (latencyRatio{P50: 1.5, P99: 3.5, P999: 1.234}); m.LatencyRatio != want {
		t.Errorf("latency ratio %+v instead of %+v", m.LatencyRatio, want)
	}
	if none := sampleReport().Rows[1].Median.LatencyRatio; none != (latencyRatio{}) {
		t.Errorf("latency ratio %+v of nothing", none)
	}
}

const wantTable = `
  size  storage      msg/s   MB/s   relay  ratio  CPU prod  broker   cons  mem prod  broker  cons
   100    queue  5,000,000  476.8  1024.0   0.47     0.100   0.050  0.120      20.0    24.0  21.5
   100     file          -      -       -      -         -       -      -         -       -     -
     8    queue      1,000    0.0  1024.0   0.00     0.000   0.000  0.000       0.0     0.0   0.0

1 partition, 1 producer, 1 consumer for each topic; median of 3 runs.
MB/s (2^20 B) is payload received; relay is the machine's limit in MB/s from the runs between; ratio is one
over the other. CPU is seconds for each million messages, mem the peak in MB, of each process.
relay limit: 1024.0 MB/s (blocking; gnet 512.0), median

  size  storage  p50  p99  p99.9    late  relay p50  p99  p99.9   late  ratio p50   p99  p99.9
   100    queue   81  350  1,234  81,000         54  100  1,000  1,500       1.50  3.50   1.23

End-to-end latency in µs at a paced 10,000 msg/s, from the intended send time; late is the most that a message was
sent after it, and is part of the latency. relay is the machine's limit: single messages of 128 B through the bare
blocking relay, on the same schedule, from the runs between; ratio is one over the other.
note: file: this storage is not built yet
note: 8 B, queue: verification off, the records are too small to carry a sequence number
note: 8 B, queue: latency was measured at 4,000 msg/s, the rate of 10,000 was not reached
WRONG: 8 B, queue, run 1: consumer of bench: partition 0: lost 1 instead of 0
machine: A CPU, 2 cores, linux/amd64, Linux 6.1, go1.26, 2026-01-02T03:04:05Z
`

func TestWriteTable(t *testing.T) {
	rep := sampleReport()
	var b bytes.Buffer
	if err := rep.writeTable(&b); err != nil {
		t.Fatal(err)
	}
	if got := "\n" + b.String(); got != wantTable {
		t.Errorf("got:\n%s\nwant:\n%s", got, wantTable)
	}
	if err := rep.writeTable(failingWriter{}); err == nil {
		t.Error("a failed write was not reported")
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, bytes.ErrTooLarge }

func TestReportVerdict(t *testing.T) {
	rep := sampleReport()
	for _, c := range []struct {
		rows int
		code cli.ExitCode
	}{{3, cli.ExitCheckFailed}, {2, cli.ExitNotYet}, {1, cli.ExitDone}} {
		rep.Rows = rep.Rows[:c.rows]
		if got := cli.ExitOf(rep.verdict()); got != c.code {
			t.Errorf("%d rows: %d instead of %d", c.rows, got, c.code)
		}
	}
}

func TestReportJSON(t *testing.T) {
	rep := sampleReport()
	var b bytes.Buffer
	if err := rep.writeJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"version": 1`, `"size": 100`, `"storage": "queue"`, `"ratio": 0.46566`, `"timeout": "2m0s"`, `"not_built": true`,
		`"cpu_seconds_per_million": 0.05`, `"p999": 1234`, `"cores": 2`, `"relay_latency_us"`, `"late_ns": 1500499`,
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in:\n%s", want, &b)
		}
	}
	var back report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(&back, rep) {
		t.Errorf("came back as %+v\ninstead of %+v", &back, rep)
	}
}

func TestCheckFindsEveryKindOfDifference(t *testing.T) {
	w := workload{Size: 10, Storage: "queue", Partitions: 1, Producers: 1, Consumers: 1, Messages: 100}
	for _, c := range []struct {
		says   string
		change func(*loadgen.ProducerReport, *loadgen.ConsumerReport)
	}{
		{"", func(*loadgen.ProducerReport, *loadgen.ConsumerReport) {}},
		{"sent 99 instead of 100", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Partitions[0].Sent-- }},
		{"confirmed 99 instead of 100", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Partitions[0].Confirmed-- }},
		{"failed 1 instead of 0", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Partitions[0].Failed++ }},
		{"bytes 999 instead of 1000", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Partitions[0].Bytes-- }},
		{"1 dropped unread", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Total.DroppedUnread++ }},
		{"0 partitions instead of 1", func(p *loadgen.ProducerReport, _ *loadgen.ConsumerReport) { p.Partitions = nil }},
		{"received 101 instead of 100", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { c.Partitions[0].Received++ }},
		{"bytes 996 instead of 1000", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { c.Partitions[0].Bytes -= 4 }},
		{"lost 1 instead of 0", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { *c.Partitions[0].Lost++ }},
		{"duplicate 1 instead of 0", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { *c.Partitions[0].Duplicate++ }},
		{"out of order 1 instead of 0", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { *c.Partitions[0].OutOfOrder++ }},
		{"gap 1 instead of 0", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) { c.Partitions[0].Gap++ }},
		{"2 partitions instead of 1", func(_ *loadgen.ProducerReport, c *loadgen.ConsumerReport) {
			c.Partitions = append(c.Partitions, c.Partitions[0])
		}},
	} {
		var lost, duplicate, outOfOrder int64
		p := &loadgen.ProducerReport{Topic: "bench", Partitions: []loadgen.ProducerPartition{
			{ProducerCounts: loadgen.ProducerCounts{Sent: 100, Confirmed: 100, Bytes: 1000}},
		}}
		k := &loadgen.ConsumerReport{Topic: "bench", Verification: "on", Partitions: []loadgen.ConsumerPartition{
			{Counts: loadgen.Counts{Received: 100, Bytes: 1000, Lost: &lost, Duplicate: &duplicate, OutOfOrder: &outOfOrder}},
		}}
		c.change(p, k)
		r := runResult{producers: []*loadgen.ProducerReport{p}, consumers: []*loadgen.ConsumerReport{k}}
		r.check(w)
		switch {
		case c.says == "":
			if len(r.Problems) != 0 || !r.Verified {
				t.Errorf("nothing wrong: %q, verified %t", r.Problems, r.Verified)
			}
		case len(r.Problems) != 1 || !strings.HasSuffix(r.Problems[0], c.says):
			t.Errorf("%s: %q", c.says, r.Problems)
		}
	}
}

func TestThisMachine(t *testing.T) {
	m := thisMachine(time.Unix(0, 0))
	if m.CPU == "" || m.Cores < 1 || m.Kernel == "" || !strings.HasPrefix(m.Go, "go") || m.Date != "1970-01-01T00:00:00Z" {
		t.Errorf("%+v", m)
	}
}
