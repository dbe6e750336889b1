package program

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Topic runs lightq-topic.
func Topic(args []string) int { return cli.Run(topicCommand(), args, os.Stdout, os.Stderr) }

func topicCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "lightq-topic",
		Short: "Creates topics, shows them, changes and deletes them.",
		Long: `Creates topics, shows them, changes and deletes them. Without a verb it creates the topic. Creating a topic that exists with
the same settings is no error; what is not given on the command line is not compared.`,
		Example: `  lightq-topic -n 1                      # topic test, one partition
  lightq-topic -t orders -n 4 --ring-bytes 256MiB
  lightq-topic list
  lightq-topic describe -t orders --output json
  lightq-topic alter -t orders -n 8
  lightq-topic stats -t orders
  lightq-topic purge -t orders
  lightq-topic delete -t orders --yes`,
	}
	createOn(root)
	create := &cobra.Command{Use: "create", Short: "create a topic (as without a verb)", Example: "  lightq-topic create -t orders -n 4"}
	createOn(create)
	root.AddCommand(create, listCommand(), describeCommand(), alterCommand(), deleteCommand(), purgeCommand(), statsCommand(), exportCommand(), importCommand())
	for _, v := range [][2]string{
		{"groups", "list consumer groups"},
		{"lag", "how far groups are behind"},
		{"peek", "look at records without consuming them"},
		{"redrive", "put dead letters back"},
		{"group-reset", "move a group's position"},
	} {
		root.AddCommand(cli.LaterVerb(v[0], v[1]))
	}
	return root
}

// topicFlags are those that name a topic's settings.
type topicFlags struct {
	clientFlags
	storage    string
	overflow   string
	partitions int64
	ringBytes  uint64
	maxBatch   uint64
	durable    durableFlags
}

func createOn(cmd *cobra.Command) {
	var f topicFlags
	fs := cmd.Flags()
	f.clientFlags.add(fs, "lightq-topic")
	cli.Choose(fs, &f.storage, "storage", "s", "", cli.Choice{
		Names: []string{"queue", "memory", "file", "disk", "direct", "queue_file"},
	}, "KIND", "storage: queue, file, direct or queue_file; memory and disk mean queue and file (default queue)")
	cli.Int(fs, &f.partitions, "partitions", "n", 0, 1, maxPartitions, "partitions (default 1)")
	f.addSettings(fs, "(default block)", "(default 64MiB; 32MiB for file)", "(default 1048588, a little above 1MiB)")
	f.durable.add(fs, true)
	f.addLast(fs, "created or exists, the topic, and its settings as name=value")
	cmd.RunE = func(*cobra.Command, []string) error {
		ctx, stop := cli.Interruptible(context.Background())
		defer stop()
		return f.create(ctx)
	}
}

// addSettings adds the flags of settings that can also be altered; the words are what stands behind their help.
func (f *topicFlags) addSettings(fs *pflag.FlagSet, overflow, ringBytes, maxBatch string) {
	cli.Choose(fs, &f.overflow, "overflow", "", "", cli.Choice{Names: []string{"block", "drop-oldest", "reject"}},
		"POLICY", withDefault("when the ring is full behind a consumer: block, drop-oldest or reject", overflow))
	cli.Size(fs, &f.ringBytes, "ring-bytes", 1, math.MaxInt64, withDefault("ring of a partition: bytes, or with KiB, MiB or GiB", ringBytes))
	cli.Size(fs, &f.maxBatch, "max-batch", 1, math.MaxUint32, withDefault("largest record batch: bytes, or with KiB, MiB or GiB", maxBatch))
}

func withDefault(usage, def string) string {
	if def == "" {
		return usage
	}
	return usage + " " + def
}

// addLast adds the flags that stand last in the help of the verbs that administer.
func (f *topicFlags) addLast(fs *pflag.FlagSet, plain string) {
	cli.Later(fs, "admin-user", "a", "NAME", "user who may create topics")
	cli.Later(fs, "admin-password", "d", "TEXT", "password of the admin user")
	cli.Later(fs, "admin-password-file", "", "FILE", "file that holds the password of the admin user")
	f.clientFlags.addLast(fs, plain)
}

// settings are those that the command line names; zero where it does not.
func (f *topicFlags) settings() client.TopicSettings {
	s := client.TopicSettings{Partitions: uint32(f.partitions), RingBytes: f.ringBytes, MaxBatchBytes: uint32(f.maxBatch)}
	s.Storage, _ = codec.ParseStorage(f.storage)
	s.Overflow, _ = codec.ParseOverflow(f.overflow)
	f.durable.into(&s)
	return s
}

func (f *topicFlags) create(ctx context.Context) error {
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(c)
	reply, err := c.CreateTopic(ctx, f.topic, f.settings())
	if err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explainCreate(err)
	}
	return f.created(reply.Created, reply.ID, reply.Settings).Print(f.output)
}

// created is what create prints.
func (f *topicFlags) created(created bool, id [16]byte, s client.TopicSettings) cli.Result {
	word, lines := "exists", []string{f.topic + " exists, unchanged: " + settingsText(s, false)}
	if created {
		word, lines = "created", []string{"created " + f.topic + ": " + settingsText(s, false)}
		switch s.Storage {
		case codec.StorageQueue:
			lines = append(lines, "memory: contents are lost when the broker stops")
		case codec.StorageDirect:
			lines = append(lines, "direct: nothing is kept, a record goes to those who are attached when it comes")
		}
	}
	return cli.Result{
		JSON: createdJSON{
			Program: f.program, Topic: f.topic, Created: created, ID: hex.EncodeToString(id[:]), Settings: settingsOf(s),
		},
		Plain: [][]string{append([]string{word, f.topic}, settingsPlain(s)...)},
		Table: cli.Line(lines...),
	}
}

func (f *topicFlags) explainCreate(err error) error {
	var wire *codec.WireError
	if errors.As(err, &wire) && wire.Code == codec.CodeTopicExists {
		return &cli.Error{
			Exit: cli.ExitFailure, Err: err, Text: wire.Detail,
			Fix: "leave those flags out, change it with lightq-topic alter, or choose another name with -t",
		}
	}
	return f.explain(err)
}

// settingsText is a topic's settings in one line, the usual ones only where all is set.
func settingsText(s client.TopicSettings, all bool) string {
	text := s.Storage.String() + ", " + cli.Plural(int64(s.Partitions), "partition")
	if inMemory(s.Storage) {
		text += ", overflow=" + s.Overflow.String() + ", ring=" + cli.FormatSize(s.RingBytes)
	}
	text += durableText(s)
	if all || s.MaxBatchBytes != codec.DefaultMaxBatchBytes {
		text += ", max-batch=" + cli.FormatSize(uint64(s.MaxBatchBytes))
	}
	return text
}

// settingsPlain are a topic's settings for scripts, a field each.
func settingsPlain(s client.TopicSettings) []string {
	fields := []string{
		"storage=" + s.Storage.String(), fmt.Sprintf("partitions=%d", s.Partitions), "overflow=" + s.Overflow.String(),
		fmt.Sprintf("ring_bytes=%d", s.RingBytes), fmt.Sprintf("max_batch_bytes=%d", s.MaxBatchBytes),
	}
	if d := durableOf(s); d != nil {
		fields = append(fields, "sync="+d.Sync, fmt.Sprintf("segment_bytes=%d", d.SegmentBytes))
		for _, r := range []struct {
			name string
			v    *uint64
		}{{"retention_bytes", d.RetentionBytes}, {"retention_millis", d.RetentionMillis}} {
			text := noRetention
			if r.v != nil {
				text = strconv.FormatUint(*r.v, 10)
			}
			fields = append(fields, r.name+"="+text)
		}
	}
	return fields
}

type createdJSON struct {
	Program  string       `json:"program"`
	Topic    string       `json:"topic"`
	Created  bool         `json:"created"` // false: it existed, with these settings
	ID       string       `json:"id"`
	Settings settingsJSON `json:"settings"`
}

type settingsJSON struct {
	Storage       string `json:"storage"`
	Partitions    uint32 `json:"partitions"`
	Overflow      string `json:"overflow"`
	RingBytes     uint64 `json:"ring_bytes"`
	MaxBatchBytes uint32 `json:"max_batch_bytes"`
	*DurableJSON
}

// DurableJSON are the settings of a topic that is stored in files.
type DurableJSON struct {
	Sync            string  `json:"sync"`
	RetentionBytes  *uint64 `json:"retention_bytes"`  // null: all is kept
	RetentionMillis *uint64 `json:"retention_millis"` // null: for ever
	SegmentBytes    uint64  `json:"segment_bytes"`
}

func durableOf(s client.TopicSettings) *DurableJSON {
	if !filed(s.Storage) {
		return nil
	}
	d := &DurableJSON{Sync: syncText(s), SegmentBytes: s.SegmentBytes}
	if s.RetentionBytes != codec.RetentionUnlimited {
		d.RetentionBytes = &s.RetentionBytes
	}
	if s.RetentionMillis != codec.RetentionUnlimited {
		d.RetentionMillis = &s.RetentionMillis
	}
	return d
}

func settingsOf(s client.TopicSettings) settingsJSON {
	return settingsJSON{
		Storage: s.Storage.String(), Partitions: s.Partitions, Overflow: s.Overflow.String(),
		RingBytes: s.RingBytes, MaxBatchBytes: s.MaxBatchBytes, DurableJSON: durableOf(s),
	}
}
