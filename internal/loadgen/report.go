package loadgen

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/lightio/lightq/internal/cli"
)

// Label names a partition as the original did, which counted from 1: test_1 is partition 0 of test.
func Label(topic string, partition int) string { return fmt.Sprintf("%s_%d", topic, partition+1) }

// A ProducerReport is what a run of the load generator did. Its JSON form is a contract. Times are Unix nanoseconds, bytes
// are of values, MB is 2^20 bytes.
type ProducerReport struct {
	Program     string              `json:"program"`
	RunID       string              `json:"run_id"`
	Topic       string              `json:"topic"`
	Size        int                 `json:"size"`           // bytes of a message
	Rate        int64               `json:"rate,omitempty"` // messages per second that were wanted; 0: as fast as possible
	Partitions  []ProducerPartition `json:"partitions"`
	Total       ProducerTotal       `json:"total"`
	Interrupted bool                `json:"interrupted,omitempty"`
	Error       *cli.Failure        `json:"error,omitempty"`

	// LateNS is the most that a message left behind its schedule. Only with a rate.
	LateNS int64 `json:"late_ns,omitempty"`
}

// ProducerCounts count messages. What is sent and neither confirmed nor failed is unconfirmed: the connection was lost or the
// run interrupted before the broker answered.
type ProducerCounts struct {
	Sent        int64 `json:"sent"`
	Confirmed   int64 `json:"confirmed"`
	Failed      int64 `json:"failed"`
	Unconfirmed int64 `json:"unconfirmed"`
	Bytes       int64 `json:"bytes"`
}

// Rates are averages over a time. Zero where no time passed.
type Rates struct {
	Seconds    float64 `json:"seconds"`
	MsgsPerSec float64 `json:"msgs_per_sec"`
	MBPerSec   float64 `json:"mb_per_sec"`
}

func ratesOf(messages, bytes, ns int64) Rates {
	r := Rates{Seconds: float64(max(ns, 0)) / 1e9}
	if r.Seconds > 0 {
		r.MsgsPerSec = float64(messages) / r.Seconds
		r.MBPerSec = float64(bytes) / r.Seconds / cli.MB
	}
	return r
}

// ProducerPartition is one sender's part. Seconds run from the first message sent to the last confirmed.
type ProducerPartition struct {
	Label       string `json:"label"`
	Partition   int    `json:"partition"`
	FirstSentNS int64  `json:"first_sent_ns"`
	LastSentNS  int64  `json:"last_sent_ns"`
	ProducerCounts
	Rates
}

// ProducerTotal is the sum over the partitions.
type ProducerTotal struct {
	ProducerCounts
	DroppedUnread int64 `json:"dropped_unread"` // confirmed, and dropped before anybody read them
	Rates
}

// ReportOf returns the report of senders that have returned.
func ReportOf(topic string, run RunID, size int, senders []*Sender) *ProducerReport {
	rep := &ProducerReport{Program: "lightq-producer", RunID: run.String(), Topic: topic, Size: size}
	if size < HeaderBytes {
		rep.RunID = ""
	}
	var first, end int64
	for _, s := range senders {
		sent, confirmed, failed := s.Counts()
		c := ProducerCounts{
			Sent: sent, Confirmed: confirmed, Failed: failed, Unconfirmed: sent - confirmed - failed, Bytes: sent * int64(size),
		}
		rep.Partitions = append(rep.Partitions, ProducerPartition{
			Label: Label(topic, s.partition), Partition: s.partition, FirstSentNS: s.firstNS, LastSentNS: s.lastNS,
			ProducerCounts: c, Rates: ratesOf(sent, c.Bytes, s.endNS-s.firstNS),
		})
		t := &rep.Total
		t.Sent += c.Sent
		t.Confirmed += c.Confirmed
		t.Failed += c.Failed
		t.Unconfirmed += c.Unconfirmed
		t.Bytes += c.Bytes
		if s.firstNS != 0 && (first == 0 || s.firstNS < first) {
			first = s.firstNS
		}
		end = max(end, s.endNS)
		rep.LateNS = max(rep.LateNS, s.lateNS)
	}
	if first != 0 {
		rep.Total.Rates = ratesOf(rep.Total.Sent, rep.Total.Bytes, end-first)
	}
	return rep
}

// Text writes the report for people, with times in loc.
func (r *ProducerReport) Text(w io.Writer, loc *time.Location) {
	head := fmt.Sprintf("topic %s, %s, messages of %s B", r.Topic, cli.Plural(int64(len(r.Partitions)), "partition"), cli.Thousands(int64(r.Size)))
	if r.RunID != "" {
		head = "run " + r.RunID + ": " + head
	}
	fmt.Fprintln(w, head)
	for _, p := range r.Partitions {
		fmt.Fprintf(w, "%s (partition %d)\n", p.Label, p.Partition)
		row(w, "first message sent", clock(p.FirstSentNS, loc))
		row(w, "last message sent", clock(p.LastSentNS, loc))
		p.ProducerCounts.rows(w)
		p.Rates.rows(w, "first sent to last confirmed")
	}
	fmt.Fprintf(w, "total\n")
	r.Total.ProducerCounts.rows(w)
	row(w, "dropped unread", cli.Thousands(r.Total.DroppedUnread))
	r.Total.Rates.rows(w, "first sent to last confirmed")
	if r.Rate > 0 {
		row(w, "schedule", fmt.Sprintf("%s msg/s, at most %s late", cli.Thousands(r.Rate), cli.ShortTime(r.LateNS)))
	}
	if r.Size < HeaderBytes {
		fmt.Fprintf(w, "verification off: messages of %d B have no room for run id, sequence and time (%d B)\n", r.Size, HeaderBytes)
	}
	if n := r.Total.DroppedUnread; n > 0 {
		fmt.Fprintf(w, "%s were confirmed and dropped before anybody read them: attach the consumer first\n", cli.Plural(n, "message"))
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted")
	}
}

func (c ProducerCounts) rows(w io.Writer) {
	row(w, "messages sent", cli.Thousands(c.Sent))
	row(w, "confirmed", cli.Thousands(c.Confirmed))
	row(w, "failed", cli.Thousands(c.Failed))
	if c.Unconfirmed != 0 {
		row(w, "unconfirmed", cli.Thousands(c.Unconfirmed)+" (the broker had not answered)")
	}
}

func (r Rates) rows(w io.Writer, span string) {
	row(w, "seconds", fmt.Sprintf("%.3f (%s)", r.Seconds, span))
	row(w, "average", cli.Thousands(int64(r.MsgsPerSec+0.5))+" msg/s")
	row(w, "", fmt.Sprintf("%.1f MB/s", r.MBPerSec))
}

const labelWidth = 42

// row writes one figure, indented, behind its name.
func row(w io.Writer, name, figure string) {
	pad := max(labelWidth-len([]rune(name)), 1)
	fmt.Fprintf(w, "  %s%s%s\n", name, strings.Repeat(" ", pad), figure)
}

// clock writes a time of day; 0 is one that never was.
func clock(ns int64, loc *time.Location) string {
	if ns == 0 {
		return "never"
	}
	return time.Unix(0, ns).In(loc).Format("2006-01-02 15:04:05.000000 MST")
}

// A ConsumerReport is what a measuring receiver found. Its JSON form is a contract. Times are Unix nanoseconds, bytes are of
// values, MB is 2^20 bytes.
type ConsumerReport struct {
	Program      string              `json:"program"`
	RunID        string              `json:"run_id"`
	Topic        string              `json:"topic"`
	Group        string              `json:"group,omitempty"` // only its member's share was received
	StartedNS    int64               `json:"started_ns"`      // of the consumer
	Partitions   []ConsumerPartition `json:"partitions"`
	Total        ConsumerTotal       `json:"total"`
	Verification string              `json:"verification"` // on; order, for a member of a group; off where messages are too small
	Latency      Latency             `json:"latency_us"`
	Ignored      int64               `json:"ignored"` // messages of other runs, or beyond the number wanted
	Interrupted  bool                `json:"interrupted,omitempty"`
	Error        *cli.Failure        `json:"error,omitempty"`

	wanted int64 // of each partition
}

// Counts count messages. Lost, Duplicate and OutOfOrder are nil where that cannot be told: in messages that are too small, and
// all but the order for a member of a group.
type Counts struct {
	Received   int64  `json:"received"` // without duplicates
	Bytes      int64  `json:"bytes"`
	Lost       *int64 `json:"lost"`
	Duplicate  *int64 `json:"duplicate"`
	OutOfOrder *int64 `json:"out_of_order"`
	Gap        int64  `json:"gap"` // dropped before anybody read them
}

// ConsumerPartition is one receiver's part. Seconds run from the first message received to the last.
type ConsumerPartition struct {
	Label           string `json:"label"`
	Partition       int    `json:"partition"`
	FirstSentNS     int64  `json:"first_sent_ns"`
	FirstReceivedNS int64  `json:"first_received_ns"`
	LastReceivedNS  int64  `json:"last_received_ns"`
	Counts
	Rates
	FirstLatencyUS *float64 `json:"first_latency_us"`
	NSPerMessage   *float64 `json:"ns_per_message"`  // last received minus first sent, divided by received: a reciprocal throughput
	Skipped        int64    `json:"skipped"`         // sent before the start of the subscription
	Again          int64    `json:"again,omitempty"` // left behind by other members of the group
	FromStart      bool     `json:"-"`               // the run's first message was received
}

func (p *ConsumerPartition) figure(ns int64) { p.Rates = ratesOf(p.Received, p.Bytes, ns) }

// ConsumerTotal is the sum over the partitions.
type ConsumerTotal struct {
	Counts
	Rates
}

func (t *ConsumerTotal) figure(ns int64) { t.Rates = ratesOf(t.Received, t.Bytes, ns) }

func (t *ConsumerTotal) add(c Counts) {
	t.Received += c.Received
	t.Bytes += c.Bytes
	t.Gap += c.Gap
	sum := func(to **int64, n *int64) {
		if n == nil {
			return
		}
		if *to == nil {
			*to = new(int64)
		}
		**to += *n
	}
	sum(&t.Lost, c.Lost)
	sum(&t.Duplicate, c.Duplicate)
	sum(&t.OutOfOrder, c.OutOfOrder)
}

// Latency is from the send time in each message to the arrival of its batch, in microseconds.
type Latency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Text writes the report for people, with times in loc.
func (r *ConsumerReport) Text(w io.Writer, loc *time.Location) {
	head := fmt.Sprintf("topic %s, %s", r.Topic, cli.Plural(int64(len(r.Partitions)), "partition"))
	if r.RunID != "" {
		head = "run " + r.RunID + ": " + head
	}
	fmt.Fprintln(w, head)
	for _, p := range r.Partitions {
		fmt.Fprintf(w, "%s (partition %d)\n", p.Label, p.Partition)
		switch {
		case p.FirstSentNS == 0:
			row(w, "producer started", "unknown")
		case p.FromStart:
			row(w, "producer started", clock(p.FirstSentNS, loc))
		default:
			row(w, "first message received was sent", clock(p.FirstSentNS, loc))
		}
		row(w, "consumer started", clock(r.StartedNS, loc))
		row(w, "first message received", clock(p.FirstReceivedNS, loc))
		row(w, "last message received", clock(p.LastReceivedNS, loc))
		row(w, "messages received", cli.Thousands(p.Received))
		row(w, "bytes received", cli.Thousands(p.Bytes))
		p.Rates.rows(w, "first received to last received")
		if p.FirstLatencyUS != nil {
			row(w, "latency of the first message", cli.ShortTime(int64(*p.FirstLatencyUS*1e3)))
			row(w, "last received - first sent", fmt.Sprintf("%.3f s", float64(p.LastReceivedNS-p.FirstSentNS)/1e9))
			row(w, "ns/message (reciprocal throughput)", fmt.Sprintf("%.1f", *p.NSPerMessage))
		}
		p.Counts.rows(w)
		if p.Again > 0 {
			row(w, "received again", cli.Thousands(p.Again)+" (left behind by other members of the group)")
		}
		if p.Skipped > 0 {
			row(w, "skipped", cli.Thousands(p.Skipped)+" (sent before the subscription began, read by others)")
		}
	}
	fmt.Fprintf(w, "total\n")
	row(w, "messages received", cli.Thousands(r.Total.Received))
	row(w, "bytes received", cli.Thousands(r.Total.Bytes))
	r.Total.Rates.rows(w, "first received to last received")
	if l := r.Latency; l.Count > 0 {
		us := func(v float64) string { return cli.ShortTime(int64(v * 1e3)) }
		row(w, "latency p50, p90, p99", us(l.P50)+", "+us(l.P90)+", "+us(l.P99))
		row(w, "latency p99.9, max", us(l.P999)+", "+us(l.Max))
	}
	r.Total.Counts.rows(w)
	if r.Ignored > 0 {
		row(w, "ignored", cli.Plural(r.Ignored, "message")+" of other runs, or beyond -m")
	}
	if r.Group != "" {
		fmt.Fprintf(w, "shared: counted alone; what other members of group %s got is not counted and no loss\n", r.Group)
	}
	if r.Verification == "off" && r.Total.Received > 0 {
		fmt.Fprintf(w, "verification off: no run id, sequence and time in these messages (%d B are needed)\n", HeaderBytes)
	}
	if r.Interrupted {
		fmt.Fprintln(w, "interrupted")
	}
}

func (c Counts) rows(w io.Writer) {
	if c.Lost != nil {
		row(w, "lost, duplicate, out of order", fmt.Sprintf("%s, %s, %s",
			cli.Thousands(*c.Lost), cli.Thousands(*c.Duplicate), cli.Thousands(*c.OutOfOrder)))
	} else if c.OutOfOrder != nil {
		row(w, "out of order", cli.Thousands(*c.OutOfOrder))
	}
	row(w, "gap (dropped before anybody read them)", cli.Thousands(c.Gap))
}

// Fault says in a few words what is wrong with the counts, empty if nothing is. all says whether every message that was
// wanted has to have come.
func (r *ConsumerReport) Fault(all bool) string {
	var faults []string
	note := func(n int64, what string) {
		if n != 0 {
			faults = append(faults, cli.Thousands(n)+" "+what)
		}
	}
	count := func(n *int64, what string) {
		if n != nil {
			note(*n, what)
		}
	}
	c := r.Total.Counts
	count(c.Lost, "lost")
	count(c.Duplicate, "duplicate")
	count(c.OutOfOrder, "out of order")
	note(r.Total.Gap, "dropped before anybody read them")
	if len(faults) == 0 && all && r.Group == "" {
		for _, p := range r.Partitions {
			if p.Received != r.wanted {
				note(r.wanted-p.Received, "not received from "+p.Label)
			}
		}
	}
	return strings.Join(faults, ", ")
}
