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
	NotBuilt    bool          `json:"not_built,omitempty"` // the programs say that this storage is not built yet
	Relay       relaySummary  `json:"relay"`               // from the runs of this row
	Runs        []runResult   `json:"runs"`
	LatencyRuns []runResult   `json:"latency_runs,omitempty"`
	Median      medianFigures `json:"median"`
}

// medianFigures holds the median of each figure on its own. Ratio is the median payload bytes/s over the relay's limit.
type medianFigures struct {
	MsgsPerSec  float64         `json:"msgs_per_sec"`
	BytesPerSec float64         `json:"bytes_per_sec"`
	MBPerSec    float64         `json:"mb_per_sec"`
	Ratio       float64         `json:"ratio"`
	Producer    roleFigures     `json:"producer"`
	Broker      roleFigures     `json:"broker"`
	Consumer    roleFigures     `json:"consumer"`
	Latency     loadgen.Latency `json:"latency_us"`
	PacedRate   float64         `json:"paced_msgs_per_sec"` // what the latency runs reached
}

// summarize computes the medians of what was measured so far.
func (r *row) summarize() {
	r.Relay = summarizeRelay(r.Relay.Samples)
	m := &r.Median
	m.MsgsPerSec = medianOf(r.Runs, func(x runResult) float64 { return x.MsgsPerSec })
	m.BytesPerSec = medianOf(r.Runs, func(x runResult) float64 { return x.BytesPerSec })
	m.MBPerSec = m.BytesPerSec / cli.MB
	m.Ratio = ratio(m.BytesPerSec, r.Relay.BytesPerSec)
	role := func(of func(runResult) roleFigures) roleFigures {
		return roleFigures{
			CPUSecondsPerMillion: medianOf(r.Runs, func(x runResult) float64 { return of(x).CPUSecondsPerMillion }),
			PeakBytes:            int64(medianOf(r.Runs, func(x runResult) float64 { return float64(of(x).PeakBytes) })),
		}
	}
	m.Producer = role(func(x runResult) roleFigures { return x.Producer })
	m.Broker = role(func(x runResult) roleFigures { return x.Broker })
	m.Consumer = role(func(x runResult) roleFigures { return x.Consumer })
	late := func(of func(loadgen.Latency) float64) float64 {
		return medianOf(r.LatencyRuns, func(x runResult) float64 { return of(x.Latency) })
	}
	m.Latency = loadgen.Latency{
		Count: int64(late(func(l loadgen.Latency) float64 { return float64(l.Count) })),
		P50:   late(func(l loadgen.Latency) float64 { return l.P50 }),
		P90:   late(func(l loadgen.Latency) float64 { return l.P90 }),
		P99:   late(func(l loadgen.Latency) float64 { return l.P99 }),
		P999:  late(func(l loadgen.Latency) float64 { return l.P999 }),
		Max:   late(func(l loadgen.Latency) float64 { return l.Max }),
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
		"CPU prod", "broker", "cons", "mem prod", "broker", "cons", "p50", "p99", "p99.9",
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
		if m.Latency.Count > 0 {
			cells = append(cells, grouped(m.Latency.P50), grouped(m.Latency.P99), grouped(m.Latency.P999))
		} else {
			cells = append(cells, "-", "-", "-")
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
	if o.Rate > 0 && o.LatencySeconds > 0 {
		fmt.Fprintf(&b, "p50 to p99.9 is end-to-end latency in µs at a paced %s msg/s.\n", grouped(float64(o.Rate)))
	}
	b.WriteString(relayLine(rep.Relay))
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

// writeDemo writes the demo's figures: the producer's and the consumer's own, the limit, and the ratio.
func writeDemo(out io.Writer, w workload, res *runResult, limit relaySummary) error {
	var b strings.Builder
	for _, s := range res.producers {
		fmt.Fprintf(&b, "\n%s: ", s.Program)
		s.Text(&b, time.Local)
	}
	for _, s := range res.consumers {
		for i := range s.Partitions {
			s.Partitions[i].FromStart = len(res.Problems) == 0 // not in the JSON; a run of which all came began with its first
		}
		fmt.Fprintf(&b, "\n%s: ", s.Program)
		s.Text(&b, time.Local)
	}
	b.WriteString("\n" + relayLine(limit))
	fmt.Fprintf(&b, "lightq:      %s MB/s of payload, %s msg/s of %d B: %s of the limit\n",
		fixed(res.MBPerSec, 1), grouped(res.MsgsPerSec), w.Size, fixed(ratio(res.BytesPerSec, limit.BytesPerSec), 2))
	for _, p := range res.Problems {
		fmt.Fprintf(&b, "WRONG: %s\n", p)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write summary: %w", err)
	}
	return nil
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
