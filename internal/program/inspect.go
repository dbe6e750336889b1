package program

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
)

// The verbs of lightq-topic that show and change nothing: list, describe, stats. Their plain form is for scripts: no header, no
// commas in numbers, a tab between fields.

func listCommand() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use: "list", Short: "list topics",
		Example: "  lightq-topic list\n  lightq-topic list --output plain | while read -r t; do lightq-topic stats -t \"$t\"; done",
		RunE: func(*cobra.Command, []string) error {
			return f.withClient(func(ctx context.Context, c *client.Client) error { return f.list(ctx, c) })
		},
	}
	f.addServer(cmd.Flags(), "lightq-topic")
	f.addLast(cmd.Flags(), "names alone")
	return cmd
}

type listJSON struct {
	Program string      `json:"program"`
	Topics  []entryJSON `json:"topics"`
}

type entryJSON struct {
	Topic    string       `json:"topic"`
	ID       string       `json:"id"`
	Settings settingsJSON `json:"settings"`
}

func (f *clientFlags) list(ctx context.Context, c *client.Client) error {
	topics, err := c.List(ctx)
	if err != nil {
		return err
	}
	switch f.output {
	case "json":
		res := listJSON{Program: f.program, Topics: []entryJSON{}}
		for _, t := range topics {
			res.Topics = append(res.Topics, entryJSON{Topic: t.Name, ID: hex.EncodeToString(t.ID[:]), Settings: settingsOf(t.Settings)})
		}
		cli.WriteJSON(os.Stdout, res)
		return nil
	case "plain":
		for _, t := range topics {
			fmt.Println(t.Name)
		}
		return nil
	}
	if len(topics) == 0 {
		fmt.Fprintln(os.Stderr, "no topics: create one with: lightq-topic -t orders -n 1"+cli.ServerFlag(f.server))
		return nil
	}
	return writeTopics(os.Stdout, topics)
}

func writeTopics(w io.Writer, topics []codec.TopicEntry) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "topic\tstorage\tpartitions\toverflow\tring\tmax-batch")
	for _, e := range topics {
		s := e.Settings
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", e.Name, s.Storage, s.Partitions, s.Overflow,
			cli.FormatSize(s.RingBytes), cli.FormatSize(uint64(s.MaxBatchBytes)))
	}
	return t.Flush()
}

func describeCommand() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use: "describe", Short: "show a topic's settings and the state of its partitions",
		Example: "  lightq-topic describe -t orders\n  lightq-topic describe -t orders --output json",
		RunE: func(*cobra.Command, []string) error {
			return f.withClient(func(ctx context.Context, c *client.Client) error {
				d, err := c.Describe(ctx, f.topic)
				if err != nil {
					return err
				}
				switch f.output {
				case "json":
					cli.WriteJSON(os.Stdout, descriptionOf(f.program, f.topic, d))
					return nil
				case "plain":
					writePartitions(os.Stdout, d)
					return nil
				}
				return writeDescription(os.Stdout, f.topic, d)
			})
		},
	}
	f.add(cmd.Flags(), "lightq-topic")
	f.addLast(cmd.Flags(), "a row for each partition")
	return cmd
}

// partitionColumns are the columns of describe, in all three forms.
var partitionColumns = []struct {
	name  string
	value func(p *codec.PartitionInfo) uint64
}{
	{"start", func(p *codec.PartitionInfo) uint64 { return uint64(p.Start) }},
	{"high", func(p *codec.PartitionInfo) uint64 { return uint64(p.High) }},
	{"next", func(p *codec.PartitionInfo) uint64 { return uint64(p.Next) }},
	{"bytes", func(p *codec.PartitionInfo) uint64 { return p.Bytes }},
	{"dropped_unread", func(p *codec.PartitionInfo) uint64 { return p.DroppedUnread }},
	{"subscriptions", func(p *codec.PartitionInfo) uint64 { return uint64(p.Subscriptions) }},
	{"publishers", func(p *codec.PartitionInfo) uint64 { return uint64(p.Publishers) }},
	{"records_in", func(p *codec.PartitionInfo) uint64 { return p.RecordsIn }},
	{"bytes_in", func(p *codec.PartitionInfo) uint64 { return p.BytesIn }},
	{"records_out", func(p *codec.PartitionInfo) uint64 { return p.RecordsOut }},
	{"bytes_out", func(p *codec.PartitionInfo) uint64 { return p.BytesOut }},
	{"queue_size", func(p *codec.PartitionInfo) uint64 { return p.QueueSize }},
}

func writeDescription(w io.Writer, topic string, d client.Description) error {
	fmt.Fprintf(w, "%s: %s\n", topic, settingsText(d.Settings, true))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "partition\t")
	for _, c := range partitionColumns {
		fmt.Fprint(t, strings.ReplaceAll(c.name, "_", " "), "\t")
	}
	fmt.Fprintln(t)
	for i := range d.Partitions {
		fmt.Fprint(t, i, "\t")
		for _, c := range partitionColumns {
			fmt.Fprint(t, c.value(&d.Partitions[i]), "\t")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func writePartitions(w io.Writer, d client.Description) {
	for i := range d.Partitions {
		fmt.Fprint(w, i)
		for _, c := range partitionColumns {
			fmt.Fprint(w, "\t", c.value(&d.Partitions[i]))
		}
		fmt.Fprintln(w)
	}
}

type descriptionJSON struct {
	Program    string              `json:"program"`
	Topic      string              `json:"topic"`
	ID         string              `json:"id"`
	Settings   settingsJSON        `json:"settings"`
	Partitions []map[string]uint64 `json:"partitions"` // partition, and the columns
}

func descriptionOf(program, topic string, d client.Description) descriptionJSON {
	j := descriptionJSON{Program: program, Topic: topic, ID: hex.EncodeToString(d.ID[:]), Settings: settingsOf(d.Settings)}
	for i := range d.Partitions {
		p := map[string]uint64{"partition": uint64(i)}
		for _, c := range partitionColumns {
			p[c.name] = c.value(&d.Partitions[i])
		}
		j.Partitions = append(j.Partitions, p)
	}
	return j
}

func statsCommand() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use: "stats", Short: "counts of a topic; without -t those of the broker",
		Long: `Prints counts of a topic: first those of the original, under its names, then further ones. They count since the topic was
created, or the broker was started. Without -t it prints the broker's own.`,
		Example: "  lightq-topic stats -t orders\n  lightq-topic stats --output json",
	}
	f.add(cmd.Flags(), "lightq-topic")
	cmd.Flags().Lookup("topic").Usage = "the topic; unset: the broker"
	cmd.Flags().Lookup("topic").DefValue = ""
	cli.Later(cmd.Flags(), "watch", "", "", "print them again and again")
	f.addLast(cmd.Flags(), "a name and a value on each line")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.withClient(func(ctx context.Context, c *client.Client) error {
			if !cli.Given(cmd.Flags(), "topic") {
				return f.brokerStats(ctx, c)
			}
			return f.topicStats(ctx, c)
		})
	}
	return cmd
}

type brokerStatsJSON struct {
	Program string            `json:"program"`
	Broker  string            `json:"broker"`
	Stats   map[string]uint64 `json:"stats"`
}

func (f *clientFlags) brokerStats(ctx context.Context, c *client.Client) error {
	stats, err := c.Stats(ctx)
	if err != nil {
		return err
	}
	if f.output == "json" {
		res := brokerStatsJSON{Program: f.program, Broker: f.server, Stats: map[string]uint64{}}
		for _, s := range stats {
			res.Stats[s.Name] = s.Value
		}
		cli.WriteJSON(os.Stdout, res)
		return nil
	}
	return f.writeStats(os.Stdout, "broker "+f.server, stats)
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

func (f *clientFlags) topicStats(ctx context.Context, c *client.Client) error {
	d, err := c.Describe(ctx, f.topic)
	if err != nil {
		return err
	}
	s := statsOf(f.program, f.topic, d)
	if f.output == "json" {
		cli.WriteJSON(os.Stdout, s)
		return nil
	}
	stats := []codec.Stat{
		{Name: "queue_size", Value: s.QueueSize},
		{Name: "messages_received", Value: s.MessagesReceived},
		{Name: "messages_sent", Value: s.MessagesSent},
		{Name: "publishers_count", Value: s.PublishersCount},
		{Name: "subscribers_count", Value: s.SubscribersCount},
		{Name: "total_bytes_written", Value: s.TotalBytesWritten},
		{Name: "total_bytes_read", Value: s.TotalBytesRead},
		{Name: "partitions", Value: s.Partitions},
		{Name: "records_kept", Value: s.RecordsKept},
		{Name: "bytes_kept", Value: s.BytesKept},
		{Name: "dropped_unread", Value: s.DroppedUnread},
	}
	if f.output == "plain" {
		fmt.Printf("topic_type\t%s\n", s.TopicType)
	}
	return f.writeStats(os.Stdout, f.topic+": "+settingsText(d.Settings, true), stats)
}

func (f *clientFlags) writeStats(w io.Writer, head string, stats []codec.Stat) error {
	if f.output == "plain" {
		for _, s := range stats {
			fmt.Fprintf(w, "%s\t%s\n", s.Name, strconv.FormatUint(s.Value, 10))
		}
		return nil
	}
	fmt.Fprintln(w, head)
	width := 0
	for _, s := range stats {
		width = max(width, len(s.Name))
	}
	for _, s := range stats {
		fmt.Fprintf(w, "  %-*s  %s\n", width, s.Name, cli.Thousands(int64(s.Value)))
	}
	return nil
}
