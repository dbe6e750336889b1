package program

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// statsFlags are those of the verb stats.
type statsFlags struct {
	clientFlags
	fs       *pflag.FlagSet
	watch    bool
	interval time.Duration
	count    int64
}

// shortestInterval bounds how often a watch asks the broker.
const shortestInterval = 100 * time.Millisecond

func statsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "stats", Short: "counts of a topic; without -t those of the broker",
		Long: `Prints counts of a topic: first those of the original, under its names, then further ones. They count since the topic was
created, or the broker was started. Without -t it prints the broker's own.

With --watch it prints them again and again, with what was added in a second on the average of the interval, until Ctrl-C ends
it with 130 or --count with 0: on a terminal one table that is drawn anew, elsewhere a line at a time, or with --output json and
jsonl an object on each line.`,
		Example: `  lightq-topic stats -t orders
  lightq-topic stats                             # the broker's own
  lightq-topic stats -t orders --watch
  lightq-topic stats -t orders --watch --interval 10s --output jsonl >> orders.jsonl
  lightq-topic stats -t orders --output plain | grep queue_size`,
	}
	f := &statsFlags{fs: cmd.Flags()}
	f.add(f.fs, "lightq-topic")
	f.fs.Lookup("topic").Usage = "the topic; unset: the broker"
	f.fs.Lookup("topic").DefValue = ""
	cli.Bool(f.fs, &f.watch, "watch", "", "print them again and again, with rates")
	cli.Duration(f.fs, &f.interval, "interval", time.Second, "time from one look to the next, with --watch; at least "+shortestInterval.String())
	cli.Int(f.fs, &f.count, "count", "", 0, 1, 1<<53, "end after so many looks, with --watch; unset: look until interrupted")
	f.addLast(f.fs, "a name and a value on each line; with --watch name=value on one line")
	cmd.RunE = func(*cobra.Command, []string) error { return f.run() }
	return cmd
}

func (f *statsFlags) run() error {
	if !f.watch {
		for _, name := range []string{"interval", "count"} {
			if cli.Given(f.fs, name) {
				return &cli.Error{Exit: cli.ExitUsage, Text: "--" + name + " says how to watch, and this prints once", Fix: "add --watch"}
			}
		}
		return f.withClient(func(ctx context.Context, c *client.Client) error {
			s, err := f.look(ctx, c)
			if err != nil {
				return err
			}
			return s.result().Print(f.output)
		})
	}
	if f.interval < shortestInterval {
		return cli.Usagef("--interval %q: it must be a time of at least %v", f.interval, shortestInterval)
	}
	err := f.withClient(func(ctx context.Context, c *client.Client) error {
		return f.watchStats(ctx, c)
	})
	if cli.ExitOf(err) == cli.ExitInterrupted {
		return cli.Reported(err) // what was seen is printed
	}
	return err
}

// A look is what the counts were at one moment.
type look struct {
	at     time.Time
	head   string // for people
	kind   string // topic_type; empty: the broker
	counts []count
	json   any
}

// A count is one of a look. Those that only grow have a rate.
type count struct {
	codec.Stat
	grows bool
}

// look asks for the counts.
func (f *statsFlags) look(ctx context.Context, c *client.Client) (look, error) {
	if !cli.Given(f.fs, "topic") {
		stats, err := c.Stats(ctx)
		if err != nil {
			return look{}, err
		}
		res := brokerStatsJSON{Program: f.program, Broker: f.server, Stats: map[string]uint64{}}
		l := look{at: time.Now(), head: "broker " + f.server}
		for _, s := range stats {
			res.Stats[s.Name] = s.Value
			l.counts = append(l.counts, count{Stat: s})
		}
		l.json = res
		return l, nil
	}
	d, err := c.Describe(ctx, f.topic)
	if err != nil {
		return look{}, err
	}
	s := statsOf(f.program, f.topic, d)
	return look{
		at: time.Now(), head: f.topic + ": " + settingsText(d.Settings, true), kind: s.TopicType, counts: s.counts(), json: s,
	}, nil
}

type brokerStatsJSON struct {
	Program string            `json:"program"`
	Broker  string            `json:"broker"`
	Stats   map[string]uint64 `json:"stats"`
}

// topicStats are the counts of one topic. The first eight are the original's.
type topicStats struct {
	Program           string `json:"program"`
	Topic             string `json:"topic"`
	TopicType         string `json:"topic_type"`
	QueueSize         uint64 `json:"queue_size"`
	MessagesReceived  uint64 `json:"messages_received"`
	MessagesSent      uint64 `json:"messages_sent"`
	PublishersCount   uint64 `json:"publishers_count"`
	SubscribersCount  uint64 `json:"subscribers_count"`
	TotalBytesWritten uint64 `json:"total_bytes_written"`
	TotalBytesRead    uint64 `json:"total_bytes_read"`
	Partitions        uint64 `json:"partitions"`
	RecordsKept       uint64 `json:"records_kept"`
	BytesKept         uint64 `json:"bytes_kept"`
	DroppedUnread     uint64 `json:"dropped_unread"`
}

func statsOf(program, topic string, d client.Description) topicStats {
	s := topicStats{Program: program, Topic: topic, TopicType: d.Settings.Storage.String(), Partitions: uint64(len(d.Partitions))}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		s.MessagesReceived += p.RecordsIn
		s.MessagesSent += p.RecordsOut
		s.PublishersCount += uint64(p.Publishers)
		s.SubscribersCount += uint64(p.Subscriptions)
		s.TotalBytesWritten += p.BytesIn
		s.TotalBytesRead += p.BytesOut
		s.RecordsKept += uint64(p.High - p.Start)
		s.BytesKept += p.Bytes
		s.QueueSize += p.QueueSize
		s.DroppedUnread += p.DroppedUnread
	}
	return s
}

func (s topicStats) counts() []count {
	return []count{
		{Stat: codec.Stat{Name: "queue_size", Value: s.QueueSize}},
		{Stat: codec.Stat{Name: "messages_received", Value: s.MessagesReceived}, grows: true},
		{Stat: codec.Stat{Name: "messages_sent", Value: s.MessagesSent}, grows: true},
		{Stat: codec.Stat{Name: "publishers_count", Value: s.PublishersCount}},
		{Stat: codec.Stat{Name: "subscribers_count", Value: s.SubscribersCount}},
		{Stat: codec.Stat{Name: "total_bytes_written", Value: s.TotalBytesWritten}, grows: true},
		{Stat: codec.Stat{Name: "total_bytes_read", Value: s.TotalBytesRead}, grows: true},
		{Stat: codec.Stat{Name: "partitions", Value: s.Partitions}},
		{Stat: codec.Stat{Name: "records_kept", Value: s.RecordsKept}},
		{Stat: codec.Stat{Name: "bytes_kept", Value: s.BytesKept}},
		{Stat: codec.Stat{Name: "dropped_unread", Value: s.DroppedUnread}, grows: true},
	}
}

// result is a look that stands alone.
func (l look) result() cli.Result {
	res := cli.Result{JSON: l.json, Table: func(w io.Writer) error { return l.table(w, look{}) }}
	if l.kind != "" {
		res.Plain = append(res.Plain, []string{"topic_type", l.kind})
	}
	for _, c := range l.counts {
		res.Plain = append(res.Plain, []string{c.Name, strconv.FormatUint(c.Value, 10)})
	}
	return res
}

// table writes the counts, one on a line, with their rates since an earlier look where there is one.
func (l look) table(w io.Writer, before look) error {
	names, values := 0, 0
	for _, c := range l.counts {
		names, values = max(names, len(c.Name)), max(values, len(cli.Thousands(int64(c.Value))))
	}
	rates := l.rates(before)
	var b strings.Builder
	b.WriteString(l.head + "\n")
	for _, c := range l.counts {
		value := cli.Thousands(int64(c.Value))
		if before.at.IsZero() {
			fmt.Fprintf(&b, "  %-*s  %s\n", names, c.Name, value)
			continue
		}
		line := fmt.Sprintf("  %-*s  %*s", names, c.Name, values, value)
		if r, ok := rates[c.Name]; ok {
			line += fmt.Sprintf("  %s/s", cli.Thousands(int64(r)))
		}
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rates are what was added in a second since an earlier look. A count that has become smaller began anew, with a new topic of
// the same name or another broker: it has none.
func (l look) rates(before look) map[string]float64 {
	seconds := l.at.Sub(before.at).Seconds()
	if before.at.IsZero() || seconds <= 0 {
		return nil
	}
	old := map[string]uint64{}
	for _, c := range before.counts {
		old[c.Name] = c.Value
	}
	rates := map[string]float64{}
	for _, c := range l.counts {
		if was, ok := old[c.Name]; ok && c.grows && c.Value >= was {
			rates[c.Name] = float64(c.Value-was) / seconds
		}
	}
	return rates
}

// watchStats prints the counts every interval until the context ends or they were printed often enough.
func (f *statsFlags) watchStats(ctx context.Context, c *client.Client) error {
	tick := time.NewTicker(f.interval)
	defer tick.Stop()
	drawn := cli.Redraw(os.Stdout)
	var before look
	for n := int64(1); ; n++ {
		now, err := f.look(ctx, c)
		if err != nil {
			return err
		}
		switch {
		case f.output == "table" && drawn != nil:
			var b strings.Builder
			if err = now.table(&b, before); err == nil {
				err = drawn(b.String())
			}
		default:
			err = now.line(before).Print(f.output)
		}
		if err != nil {
			return err
		}
		before = now
		if n == f.count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cli.ErrInterrupted
		}
	}
}

// A lookJSON is a look of a watch.
type lookJSON struct {
	Time    string             `json:"time"`              // RFC 3339, in UTC
	Seconds float64            `json:"seconds,omitempty"` // since the last look
	Rates   map[string]float64 `json:"rates,omitempty"`   // what was added in a second, since the last look
	Stats   any                `json:"stats"`             // as without --watch
}

// line is a look of a watch where there is no terminal.
func (l look) line(before look) cli.Result {
	o := lookJSON{Time: l.at.UTC().Format(time.RFC3339Nano), Stats: l.json, Rates: l.rates(before)}
	if !before.at.IsZero() {
		o.Seconds = l.at.Sub(before.at).Seconds()
	}
	plain := []string{"time=" + o.Time}
	text := l.at.Format(time.TimeOnly)
	for _, c := range l.counts {
		plain = append(plain, c.Name+"="+strconv.FormatUint(c.Value, 10))
		text += "  " + c.Name + " " + cli.Thousands(int64(c.Value))
		if r, ok := o.Rates[c.Name]; ok {
			text += " (" + cli.Thousands(int64(r)) + "/s)"
		}
	}
	return cli.Result{JSON: o, Plain: [][]string{plain}, Table: cli.Line(text)}
}
