package program

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
)

// The verbs of lightq-topic that show and change nothing are here, list and describe, and in stats.go.

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
	if len(topics) == 0 && f.output == "table" {
		fmt.Fprintln(os.Stderr, "no topics: create one with: lightq-topic -t orders -n 1"+cli.ServerFlag(f.server))
		return nil
	}
	all := listJSON{Program: f.program, Topics: []entryJSON{}}
	res := cli.Result{Lines: []any{}, Table: func(w io.Writer) error { return writeTopics(w, topics) }}
	for _, t := range topics {
		e := entryJSON{Topic: t.Name, ID: hex.EncodeToString(t.ID[:]), Settings: settingsOf(t.Settings)}
		all.Topics = append(all.Topics, e)
		res.Lines = append(res.Lines, e)
		res.Plain = append(res.Plain, []string{t.Name})
	}
	res.JSON = all
	return res.Print(f.output)
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
				return f.description(d).Print(f.output)
			})
		},
	}
	f.add(cmd.Flags(), "lightq-topic")
	f.addLast(cmd.Flags(), "a row for each partition")
	return cmd
}

// A partitionColumn is a column of describe, in all its forms.
type partitionColumn struct {
	name  string
	value func(p *codec.PartitionInfo) uint64
}

var partitionColumns = []partitionColumn{
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

// fileColumns are those that topics in files have beside the others; and the state, in words.
var fileColumns = []partitionColumn{
	{"durable", func(p *codec.PartitionInfo) uint64 { return uint64(p.Durable) }},
	{"journal_bytes", func(p *codec.PartitionInfo) uint64 { return p.JournalBytes }},
	{"segments", func(p *codec.PartitionInfo) uint64 { return uint64(p.Segments) }},
	{"damaged", func(p *codec.PartitionInfo) uint64 { return uint64(p.Damaged) }},
}

func columnsOf(s client.TopicSettings) []partitionColumn {
	if filed(s.Storage) {
		return slices.Concat(partitionColumns, fileColumns)
	}
	return partitionColumns
}

func writeDescription(w io.Writer, topic string, d client.Description) error {
	fmt.Fprintf(w, "%s: %s\n", topic, settingsText(d.Settings, true))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "partition\t")
	columns := columnsOf(d.Settings)
	for _, c := range columns {
		fmt.Fprint(t, strings.ReplaceAll(c.name, "_", " "), "\t")
	}
	if filed(d.Settings.Storage) {
		fmt.Fprint(t, "state\t")
	}
	fmt.Fprintln(t)
	for i := range d.Partitions {
		fmt.Fprint(t, i, "\t")
		for _, c := range columns {
			fmt.Fprint(t, c.value(&d.Partitions[i]), "\t")
		}
		if filed(d.Settings.Storage) {
			fmt.Fprint(t, d.Partitions[i].State, "\t")
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

type descriptionJSON struct {
	Program    string            `json:"program"`
	Topic      string            `json:"topic"`
	ID         string            `json:"id"`
	Settings   settingsJSON      `json:"settings"`
	Partitions []partitionCounts `json:"partitions"`
}

// partitionCounts are the partition's number, the columns and, of a topic in files, the state.
type partitionCounts map[string]any

// description is what describe prints.
func (f *clientFlags) description(d client.Description) cli.Result {
	all := descriptionJSON{Program: f.program, Topic: f.topic, ID: hex.EncodeToString(d.ID[:]), Settings: settingsOf(d.Settings)}
	res := cli.Result{Lines: []any{}, Table: func(w io.Writer) error { return writeDescription(w, f.topic, d) }}
	for i := range d.Partitions {
		p := partitionCounts{"partition": i}
		line := map[string]any{"topic": f.topic, "partition": i}
		row := []string{strconv.Itoa(i)}
		for _, c := range columnsOf(d.Settings) {
			n := c.value(&d.Partitions[i])
			p[c.name], line[c.name] = n, n
			row = append(row, strconv.FormatUint(n, 10))
		}
		if filed(d.Settings.Storage) {
			state := d.Partitions[i].State.String()
			p["state"], line["state"] = state, state
			row = append(row, state)
		}
		all.Partitions = append(all.Partitions, p)
		res.Lines = append(res.Lines, line)
		res.Plain = append(res.Plain, row)
	}
	res.JSON = all
	return res
}
