package program

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The verbs of lightq-topic that change what exists: alter, delete, purge.

func alterCommand() *cobra.Command {
	var f topicFlags
	cmd := &cobra.Command{
		Use: "alter", Short: "change a topic's settings",
		Long: `Changes the settings that are given and leaves the others. The storage stays, and partitions only grow. A key whose partition
is computed from their number goes to another one from then on: the order of its records holds before the change and after it,
not across it.`,
		Example: "  lightq-topic alter -t orders -n 8\n  lightq-topic alter -t orders --overflow drop-oldest --ring-bytes 256MiB",
	}
	fs := cmd.Flags()
	f.clientFlags.add(fs, "lightq-topic")
	cli.Int(fs, &f.partitions, "partitions", "n", 0, 1, maxPartitions, "partitions, at least as many as there are")
	f.addSettings(fs, "", "", "")
	f.durable.add(fs, false)
	cli.Later(fs, "sync", "", "POLICY", "when a file topic syncs")
	cli.Deny(fs, "storage", "s", "KIND", "the storage cannot be changed", &cli.Error{
		Exit: cli.ExitUsage, Text: "-s, --storage: a topic keeps the storage it was created with", Fix: "create another topic",
	})
	f.addLast(fs, "altered or unchanged, the topic, and its settings as name=value")
	cli.LineOnly(fs, "topic", "partitions", "overflow", "ring-bytes", "max-batch", "sync", "retention-bytes", "retention-time")
	cmd.RunE = func(*cobra.Command, []string) error {
		if f.settings() == (client.TopicSettings{}) {
			return cli.Usagef("nothing to alter: give one or more of -n, --overflow, --ring-bytes, --max-batch, --retention-bytes and --retention-time")
		}
		return f.withClient(f.alter)
	}
	return cmd
}

// A change is one setting before and after.
type change struct {
	name     string
	old, now string
}

func changesOf(old, now client.TopicSettings) []change {
	all := []change{
		{"partitions", strconv.FormatUint(uint64(old.Partitions), 10), strconv.FormatUint(uint64(now.Partitions), 10)},
		{"overflow", old.Overflow.String(), now.Overflow.String()},
		{"ring", cli.FormatSize(old.RingBytes), cli.FormatSize(now.RingBytes)},
		{"max-batch", cli.FormatSize(uint64(old.MaxBatchBytes)), cli.FormatSize(uint64(now.MaxBatchBytes))},
		{"retention", retentionText(old), retentionText(now)},
	}
	var changes []change
	for _, c := range all {
		if c.old != c.now {
			changes = append(changes, c)
		}
	}
	return changes
}

type alteredJSON struct {
	Program  string       `json:"program"`
	Topic    string       `json:"topic"`
	Altered  bool         `json:"altered"` // false: it had these settings
	Old      settingsJSON `json:"old"`
	Settings settingsJSON `json:"settings"`
}

func (f *topicFlags) alter(ctx context.Context, c *client.Client) error {
	before, err := c.Describe(ctx, f.topic)
	if err != nil {
		return err
	}
	now, err := c.Alter(ctx, f.topic, f.settings())
	if err != nil {
		return err
	}
	old := before.Settings
	changes := changesOf(old, now)
	word, line := "unchanged", f.topic+" unchanged: "+settingsText(now, true)
	if len(changes) > 0 {
		var text []string
		for _, c := range changes {
			text = append(text, c.name+" "+c.old+" → "+c.now)
		}
		word, line = "altered", "altered "+f.topic+": "+strings.Join(text, ", ")
	}
	err = cli.Result{
		JSON: alteredJSON{
			Program: f.program, Topic: f.topic, Altered: len(changes) > 0, Old: settingsOf(old), Settings: settingsOf(now),
		},
		Plain: [][]string{append([]string{word, f.topic}, settingsPlain(now)...)},
		Table: cli.Line(line),
	}.Print(f.output)
	if err != nil {
		return err
	}
	if now.Partitions > old.Partitions {
		fmt.Fprintf(os.Stderr, "keys are spread over %s now: the order of a key's records holds before and after this change, not across it\n",
			cli.Plural(int64(now.Partitions), "partition"))
		fmt.Fprintln(os.Stderr, "producers and consumers that are running do not use the new partitions until they are started again")
	}
	return nil
}

// named makes sure that a verb that destroys something was told which topic.
func named(fs *pflag.FlagSet, verb string) error {
	if cli.Given(fs, "topic") {
		return nil
	}
	return cli.Usagef("%s needs -t: which topic", verb)
}

func deleteCommand() *cobra.Command {
	var f topicFlags
	var yes bool
	cmd := &cobra.Command{
		Use: "delete", Short: "delete a topic with all that it holds",
		Long:    `Deletes a topic with all that it holds. Those who use it are cut off. On a terminal it asks before; elsewhere it wants --yes.`,
		Example: "  lightq-topic delete -t orders\n  lightq-topic delete -t orders --yes",
	}
	fs := cmd.Flags()
	f.clientFlags.add(fs, "lightq-topic")
	cli.Bool(fs, &yes, "yes", "", "do not ask")
	f.addLast(fs, "deleted and the topic")
	cli.LineOnly(fs, "topic", "yes")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := named(fs, "delete"); err != nil {
			return err
		}
		if !yes {
			if err := f.confirmDelete(); err != nil {
				return err
			}
		}
		return f.withClient(f.delete)
	}
	return cmd
}

// confirmDelete asks. No signal is caught meanwhile: an interrupt ends the program at once, which is a no.
func (f *topicFlags) confirmDelete() error {
	if !cli.IsTerminal(os.Stdin) {
		return &cli.Error{
			Exit: cli.ExitUsage, Text: "delete asks before it deletes, and standard input is not a terminal",
			Fix: "lightq-topic delete -t " + f.topic + " --yes" + cli.ServerFlag(f.server),
		}
	}
	ctx := context.Background()
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(c)
	d, err := c.Describe(ctx, f.topic)
	if err != nil {
		return f.explain(err)
	}
	s := statsOf(f.program, f.topic, d)
	yes, err := cli.Ask(os.Stderr, os.Stdin, fmt.Sprintf("delete %s (%s) with %s, %s and %s?", f.topic, settingsText(d.Settings, false),
		cli.Plural(int64(s.RecordsKept), "record"), cli.Plural(int64(s.PublishersCount), "publisher"),
		cli.Plural(int64(s.SubscribersCount), "subscription")))
	switch {
	case err != nil:
		return cli.Failf(cli.ExitFailure, "%v", err)
	case !yes:
		return cli.Failf(cli.ExitFailure, "%s is not deleted: the answer was not yes", f.topic)
	}
	return nil
}

type deletedJSON struct {
	Program string `json:"program"`
	Topic   string `json:"topic"`
	Deleted bool   `json:"deleted"`
}

func (f *topicFlags) delete(ctx context.Context, c *client.Client) error {
	if err := c.Delete(ctx, f.topic); err != nil {
		return err
	}
	return cli.Result{
		JSON:  deletedJSON{Program: f.program, Topic: f.topic, Deleted: true},
		Plain: [][]string{{"deleted", f.topic}},
		Table: cli.Line("deleted " + f.topic),
	}.Print(f.output)
}

func purgeCommand() *cobra.Command {
	var f topicFlags
	var partition int64
	cmd := &cobra.Command{
		Use: "purge", Short: "drop the records that a topic holds",
		Long: `Drops the records that a topic, or one partition of it, holds now. Offsets go on; consumers that had not had the records are
told the gap.`,
		Example: "  lightq-topic purge -t orders\n  lightq-topic purge -t orders --partition 3",
	}
	fs := cmd.Flags()
	f.clientFlags.add(fs, "lightq-topic")
	cli.Int(fs, &partition, "partition", "", 0, 0, maxPartitions, "this partition alone, counted from 0; unset: all")
	f.addLast(fs, "purged, the topic, the partition or all, and the records")
	cli.LineOnly(fs, "topic", "partition")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := named(fs, "purge"); err != nil {
			return err
		}
		number := client.AllPartitions
		if cli.Given(fs, "partition") {
			number = int(partition)
		}
		return f.withClient(func(ctx context.Context, c *client.Client) error { return f.purge(ctx, c, number) })
	}
	return cmd
}

type purgedJSON struct {
	Program   string `json:"program"`
	Topic     string `json:"topic"`
	Partition *int   `json:"partition,omitempty"` // absent: all
	Purged    uint64 `json:"purged"`              // records
}

func (f *topicFlags) purge(ctx context.Context, c *client.Client, partition int) error {
	n, err := c.Purge(ctx, f.topic, partition)
	if err != nil {
		return err
	}
	res := purgedJSON{Program: f.program, Topic: f.topic, Purged: n}
	what, where := f.topic, "all"
	if partition != client.AllPartitions {
		res.Partition = &partition
		where = strconv.Itoa(partition)
		what += " partition " + where
	}
	return cli.Result{
		JSON:  res,
		Plain: [][]string{{"purged", f.topic, where, strconv.FormatUint(n, 10)}},
		Table: cli.Line("purged " + what + ": " + cli.Plural(int64(n), "record")),
	}.Print(f.output)
}
