package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
)

// reportVersion is raised when a field of the JSON report changes its meaning or goes away. New fields do not raise it.
const reportVersion = 1

// report is everything a sweep measured. --json writes it as it is.
type report struct {
	Version  int          `json:"version"`
	Program  string       `json:"program"`
	Machine  machine      `json:"machine"`
	Settings sweepOptions `json:"settings"`
	Relay    relaySummary `json:"relay"` // over all rows; the samples are theirs
	Rows     []row        `json:"rows"`
	Error    string       `json:"error,omitempty"` // what ended the sweep early
}

// row is one size on one storage.
type row struct {
	workload
	NotBuilt    bool          `json:"not_built,omitempty"`    // the programs say that this storage is not built yet
	Relay       relaySummary  `json:"relay"`                  // from the runs of this row
	DiskSamples []diskSample  `json:"disk_samples,omitempty"` // of storages in files: the disk's limit, from right before each run
	Runs        []runResult   `json:"runs"`
	LatencyRuns []runResult   `json:"latency_runs,omitempty"`
	Median      medianFigures `json:"median"`

	RelayLatencyRuns []pacedSample `json:"relay_latency_runs,omitempty"` // each from right before the run of LatencyRuns
}

// medianFigures holds the median of each figure on its own. Ratio is the median payload bytes/s over the relay's limit.
type medianFigures struct {
	MsgsPerSec  float64         `json:"msgs_per_sec"`
	BytesPerSec float64         `json:"bytes_per_sec"`
	MBPerSec    float64         `json:"mb_per_sec"`
	Ratio       float64         `json:"ratio"`
	JournalRate float64         `json:"journal_bytes_per_sec"` // of storages in files
	Disk        diskSample      `json:"disk"`
	DiskRatio   float64         `json:"disk_ratio"` // journal bytes/s over the disk's
	Producer    roleFigures     `json:"producer"`
	Broker      roleFigures     `json:"broker"`
	Consumer    roleFigures     `json:"consumer"`
	Latency     loadgen.Latency `json:"latency_us"`
	LateNS      int64           `json:"late_ns"`            // of the latency runs
	PacedRate   float64         `json:"paced_msgs_per_sec"` // what the latency runs reached

	RelayLatency loadgen.Latency `json:"relay_latency_us"`
	RelayLateNS  int64           `json:"relay_late_ns"`
	LatencyRatio latencyRatio    `json:"latency_ratio"`
}

// latencyRatio is LightQ's latency over the bare relay's: how many times as long as the machine's own limit.
type latencyRatio struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
}

// medianLatency returns the median of each figure on its own.
func medianLatency[T any](items []T, latency func(T) loadgen.Latency) loadgen.Latency {
	of := func(figure func(loadgen.Latency) float64) float64 {
		return medianOf(items, func(it T) float64 { return figure(latency(it)) })
	}
	return loadgen.Latency{
		Count: int64(of(func(l loadgen.Latency) float64 { return float64(l.Count) })),
		P50:   of(func(l loadgen.Latency) float64 { return l.P50 }),
		P90:   of(func(l loadgen.Latency) float64 { return l.P90 }),
		P99:   of(func(l loadgen.Latency) float64 { return l.P99 }),
		P999:  of(func(l loadgen.Latency) float64 { return l.P999 }),
		Max:   of(func(l loadgen.Latency) float64 { return l.Max }),
	}
}

// summarize computes the medians of what was measured so far.
func (r *row) summarize() {
	r.Relay = summarizeRelay(r.Relay.Samples)
	m := &r.Median
	m.MsgsPerSec = medianOf(r.Runs, func(x runResult) float64 { return x.MsgsPerSec })
	m.BytesPerSec = medianOf(r.Runs, func(x runResult) float64 { return x.BytesPerSec })
	m.MBPerSec = m.BytesPerSec / cli.MB
	m.Ratio = ratio(m.BytesPerSec, r.Relay.BytesPerSec)
	m.JournalRate = medianOf(r.Runs, func(x runResult) float64 { return ratio(float64(x.JournalBytes), x.Seconds) })
	m.Disk = diskFigures(r.DiskSamples)
	m.DiskRatio = ratio(m.JournalRate, m.Disk.BytesPerSec)
	role := func(of func(runResult) roleFigures) roleFigures {
		return roleFigures{
			CPUSecondsPerMillion: medianOf(r.Runs, func(x runResult) float64 { return of(x).CPUSecondsPerMillion }),
			PeakBytes:            int64(medianOf(r.Runs, func(x runResult) float64 { return float64(of(x).PeakBytes) })),
		}
	}
	m.Producer = role(func(x runResult) roleFigures { return x.Producer })
	m.Broker = role(func(x runResult) roleFigures { return x.Broker })
	m.Consumer = role(func(x runResult) roleFigures { return x.Consumer })
	m.Latency = medianLatency(r.LatencyRuns, func(x runResult) loadgen.Latency { return x.Latency })
	m.LateNS = int64(medianOf(r.LatencyRuns, func(x runResult) float64 { return float64(x.LateNS) }))
	m.RelayLatency = medianLatency(r.RelayLatencyRuns, func(x pacedSample) loadgen.Latency { return x.Latency })
	m.RelayLateNS = int64(medianOf(r.RelayLatencyRuns, func(x pacedSample) float64 { return float64(x.LateNS) }))
	m.LatencyRatio = latencyRatio{
		P50:  ratio(m.Latency.P50, m.RelayLatency.P50),
		P99:  ratio(m.Latency.P99, m.RelayLatency.P99),
		P999: ratio(m.Latency.P999, m.RelayLatency.P999),
	}
	m.PacedRate = medianOf(r.LatencyRuns, func(x runResult) float64 { return x.MsgsPerSec })
}

// problems lists everything that makes the figures worthless, each with the row it belongs to.
func (rep *report) problems() []string {
	var all []string
	for _, r := range rep.Rows {
		for _, kind := range []struct {
			name string
			runs []runResult
		}{{"run", r.Runs}, {"latency run", r.LatencyRuns}} {
			for i, run := range kind.runs {
				for _, p := range run.Problems {
					all = append(all, fmt.Sprintf("%d B, %s, %s %d: %s", r.Size, r.Storage, kind.name, i+1, p))
				}
			}
		}
	}
	return all
}

// notes lists what a reader of the table has to know about single rows.
func (rep *report) notes() []string {
	var all []string
	for _, r := range rep.Rows {
		where := fmt.Sprintf("%d B, %s", r.Size, r.Storage)
		if r.NotBuilt {
			all = append(all, fmt.Sprintf("%s: this storage is not built yet", r.Storage))
			continue
		}
		for _, run := range append(append([]runResult(nil), r.Runs...), r.LatencyRuns...) {
			if !run.Verified {
				all = append(all, where+": verification off, the records are too small to carry a sequence number")
				break
			}
		}
		expected := float64(r.Rate) * float64(r.Producers*r.Consumers)
		if len(r.LatencyRuns) > 0 && r.Median.PacedRate < 0.95*expected {
			all = append(all, fmt.Sprintf("%s: latency was measured at %s msg/s, the rate of %s was not reached",
				where, grouped(r.Median.PacedRate), grouped(expected)))
		}
	}
	return all
}

// errCounts is the verdict on figures that do not count.
var errCounts = cli.Failf(cli.ExitCheckFailed, "messages were lost, repeated, out of order or not confirmed")

// verdict is what the measurements themselves mean for the exit code, apart from an error that ended them.
func (rep *report) verdict() error {
	if len(rep.problems()) > 0 {
		return errCounts
	}
	for _, r := range rep.Rows {
		if r.NotBuilt {
			return cli.NotYet("storage %s is not in this version", r.Storage)
		}
	}
	return nil
}

// writeJSON writes the report as one indented JSON object.
func (rep *report) writeJSON(w io.Writer) error {
	return writeIndented(w, rep)
}

func writeIndented(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// writeTable writes the report for people.
func (rep *report) writeTable(out io.Writer) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, strings.Join([]string{
		"size", "storage", "msg/s", "MB/s", "relay", "ratio",
		"CPU prod", "broker", "cons", "mem prod", "broker", "cons",
	}, "\t")+"\t")
	for _, r := range rep.Rows {
		cells := []string{fmt.Sprint(r.Size), r.Storage}
		m := r.Median
		if len(r.Runs) > 0 {
			cells = append(cells, grouped(m.MsgsPerSec), fixed(m.MBPerSec, 1), fixed(r.Relay.BytesPerSec/cli.MB, 1),
				fixed(m.Ratio, 2))
			for _, f := range []roleFigures{m.Producer, m.Broker, m.Consumer} {
				cells = append(cells, fixed(f.CPUSecondsPerMillion, 3))
			}
			for _, f := range []roleFigures{m.Producer, m.Broker, m.Consumer} {
				cells = append(cells, fixed(float64(f.PeakBytes)/cli.MB, 1))
			}
		} else {
			cells = append(cells, strings.Split(strings.Repeat("-", 10), "")...)
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t")+"\t")
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	o := rep.Settings
	fmt.Fprintf(&b, "\n%s, %s, %s for each topic; median of %s.\n",
		cli.Plural(int64(o.Partitions), "partition"), cli.Plural(int64(o.Producers), "producer"),
		cli.Plural(int64(o.Consumers), "consumer"), cli.Plural(int64(o.Runs), "run"))
	b.WriteString("MB/s (2^20 B) is payload received; relay is the machine's limit in MB/s from the runs between; ratio is one\n" +
		"over the other. CPU is seconds for each million messages, mem the peak in MB, of each process.\n")
	b.WriteString(relayLine(rep.Relay))
	for _, r := range rep.Rows {
		if len(r.DiskSamples) > 0 && len(r.Runs) > 0 {
			fmt.Fprintf(&b, "%d B, %s: %s MB/s of journal, the disk's limit is %s MB/s (1 MiB appended and synced at a time): ratio %s; 4 KiB takes it %s µs (p50)\n",
				r.Size, r.Storage, fixed(r.Median.JournalRate/cli.MB, 1), fixed(r.Median.Disk.BytesPerSec/cli.MB, 1), fixed(r.Median.DiskRatio, 2),
				grouped(r.Median.Disk.SmallP50))
		}
	}
	if err := rep.writeLatency(&b); err != nil {
		return err
	}
	for _, n := range rep.notes() {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	for _, p := range rep.problems() {
		fmt.Fprintf(&b, "WRONG: %s\n", p)
	}
	fmt.Fprintf(&b, "machine: %v\n", rep.Machine)
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// writeLatency writes the table of latencies, if any were measured.
func (rep *report) writeLatency(out io.Writer) error {
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	measured := false
	for _, r := range rep.Rows {
		m := r.Median
		if m.Latency.Count == 0 {
			continue
		}
		if !measured {
			measured = true
			fmt.Fprintln(out)
			fmt.Fprintln(tw, "size\tstorage\tp50\tp99\tp99.9\tlate\trelay p50\tp99\tp99.9\tlate\tratio p50\tp99\tp99.9\t")
		}
		fmt.Fprintf(tw, "%d\t%s\t", r.Size, r.Storage)
		for _, l := range []struct {
			loadgen.Latency
			late int64
		}{{m.Latency, m.LateNS}, {m.RelayLatency, m.RelayLateNS}} {
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t", grouped(l.P50), grouped(l.P99), grouped(l.P999), grouped(float64(l.late)/1e3))
		}
		x := m.LatencyRatio
		fmt.Fprintf(tw, "%s\t%s\t%s\t\n", fixed(x.P50, 2), fixed(x.P99, 2), fixed(x.P999, 2))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if measured {
		fmt.Fprintf(out, "\nEnd-to-end latency in µs at a paced %s msg/s, from the intended send time; late is the most that a message was\n"+
			"sent after it, and is part of the latency. relay is the machine's limit: single messages of %d B through the bare\n"+
			"blocking relay, on the same schedule, from the runs between; ratio is one over the other.\n",
			grouped(float64(rep.Settings.Rate)), pacedBytes)
	}
	return nil
}

// relayLine says which relay is the limit and what the others did; "" when none was measured.
func relayLine(s relaySummary) string {
	if s.Implementation == "" {
		return ""
	}
	var others []string
	for _, implementation := range relayImplementations {
		if m, ok := s.Medians[implementation]; ok && implementation != s.Implementation {
			others = append(others, fmt.Sprintf("%s %s", implementation, fixed(m/cli.MB, 1)))
		}
	}
	line := fmt.Sprintf("relay limit: %s MB/s (%s", fixed(s.BytesPerSec/cli.MB, 1), s.Implementation)
	if len(others) > 0 {
		line += "; " + strings.Join(others, ", ")
	}
	return line + "), median\n"
}

// relayReport is what the relay command measured.
type relayReport struct {
	Version int          `json:"version"`
	Program string       `json:"program"`
	Machine machine      `json:"machine"`
	Relay   relaySummary `json:"relay"`
}

func (rep *relayReport) writeJSON(w io.Writer) error {
	return writeIndented(w, rep)
}

func (rep *relayReport) writeTable(out io.Writer) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "relay\tMB/s\tGB/s\tbytes\tseconds\tCPU sender\trelay\treceiver\t")
	for _, s := range rep.Relay.Samples {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t", s.Implementation, fixed(s.BytesPerSec/cli.MB, 1),
			fixed(s.BytesPerSec/1e9, 3), grouped(float64(s.Bytes)), fixed(s.Seconds, 3))
		for _, u := range s.Processes {
			fmt.Fprintf(tw, "%s\t", fixed(u.CPUSeconds, 2))
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	b.WriteString(relayLine(rep.Relay))
	fmt.Fprintf(&b, "machine: %v\n", rep.Machine)
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// writeDemo writes one half of the demo: the producer's and the consumer's own figures, and what compares them with the limit. kind
// stands behind the programs' names.
func writeDemo(out io.Writer, kind string, res *runResult, comparison string) error {
	var b strings.Builder
	for _, s := range res.producers {
		fmt.Fprintf(&b, "\n%s%s: ", s.Program, kind)
		s.Text(&b, time.Local)
	}
	for _, s := range res.consumers {
		for i := range s.Partitions {
			s.Partitions[i].FromStart = len(res.Problems) == 0 // not in the JSON; a run of which all came began with its first
		}
		fmt.Fprintf(&b, "\n%s%s: ", s.Program, kind)
		s.Text(&b, time.Local)
	}
	b.WriteString("\n" + comparison)
	for _, p := range res.Problems {
		fmt.Fprintf(&b, "WRONG: %s\n", p)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
}

// besideRelay compares a run in memory with the relay.
func besideRelay(w workload, res *runResult, limit relaySummary) string {
	return relayLine(limit) + fmt.Sprintf("lightq:      %s MB/s of payload, %s msg/s of %d B: %s of the limit\n",
		fixed(res.MBPerSec, 1), grouped(res.MsgsPerSec), w.Size, fixed(ratio(res.BytesPerSec, limit.BytesPerSec), 2))
}

// besideDisk compares a run on the disk with the disk.
func besideDisk(w workload, res *runResult, disk diskSample) string {
	journal := ratio(float64(res.JournalBytes), res.Seconds)
	return fmt.Sprintf("disk limit:  %s MB/s (1 MiB appended and synced at a time), median\n", fixed(disk.BytesPerSec/cli.MB, 1)) +
		fmt.Sprintf("lightq:      %s MB/s of journal, %s msg/s of %d B, all confirmed on stable storage: %s of the limit\n",
			fixed(journal/cli.MB, 1), grouped(res.MsgsPerSec), w.Size, fixed(ratio(journal, disk.BytesPerSec), 2))
}

// duration is a time.Duration that JSON shows as text, such as "2m0s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil {
		return errors.New("not a duration: " + string(b))
	}
	*d = duration(v)
	return nil
}
