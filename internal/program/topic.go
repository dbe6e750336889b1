package program

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"text/tabwriter"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Topic runs lightq-topic.
func Topic(args []string) int {
	root := &cobra.Command{
		Use:   "lightq-topic",
		Short: "Creates and describes topics.",
		Long: `Creates and describes topics. Without a verb it creates the topic. Creating a topic that exists with the same settings is no
error; what is not given on the command line is not compared.`,
		Example: `  lightq-topic -n 1                      # topic test, one partition
  lightq-topic -t orders -n 4 --ring-bytes 256MiB
  lightq-topic describe -t orders
  lightq-topic describe -t orders --output json`,
	}
	createOn(root)
	create := &cobra.Command{Use: "create", Short: "create a topic (as without a verb)", Example: "  lightq-topic create -t orders -n 4"}
	createOn(create)
	root.AddCommand(create, describeCommand())
	for _, v := range [][2]string{
		{"list", "list topics"},
		{"alter", "change a topic's settings"},
		{"delete", "delete a topic"},
		{"purge", "drop a topic's records"},
		{"stats", "rates and counts of topics"},
		{"groups", "list consumer groups"},
		{"lag", "how far groups are behind"},
		{"peek", "look at records without consuming them"},
		{"redrive", "put dead letters back"},
		{"group-reset", "move a group's position"},
		{"export", "write definitions to a file"},
		{"import", "create what a file defines"},
	} {
		root.AddCommand(cli.LaterVerb(v[0], v[1]))
	}
	return cli.Run(root, args, os.Stdout, os.Stderr)
}

type topicFlags struct {
	clientFlags
	storage    string
	overflow   string
	partitions int64
	ringBytes  uint64
	maxBatch   uint64
}

func createOn(cmd *cobra.Command) {
	var f topicFlags
	fs := cmd.Flags()
	f.add(fs)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := cli.Interruptible(context.Background())
		defer stop()
		return f.create(ctx)
	}
}

func (f *topicFlags) add(fs *pflag.FlagSet) {
	f.clientFlags.add(fs, "lightq-topic")
	file := cli.NotYet("-s file (a journal on disk) is not in this version: queue is")
	cli.Choose(fs, &f.storage, "storage", "s", "", cli.Choice{
		Names: []string{"queue", "memory", "file", "disk", "direct", "queue_file"},
		Reason: map[string]*cli.Error{
			"file": file, "disk": file,
			"direct":     cli.NotYet("-s direct (nothing is kept) is not in this version: queue is"),
			"queue_file": cli.NotYet("-s queue_file (memory, written behind to disk) is not in this version: queue is"),
		},
	}, "KIND", "storage: queue, file, direct or queue_file; memory and disk mean queue and file (default queue)")
	cli.Int(fs, &f.partitions, "partitions", "n", 0, 1, maxPartitions, "partitions (default 1)")
	cli.Choose(fs, &f.overflow, "overflow", "", "", cli.Choice{
		Names: []string{"block", "drop-oldest", "reject"},
		Reason: map[string]*cli.Error{
			"drop-oldest": cli.NotYet("--overflow drop-oldest is not in this version: block is"),
			"reject":      cli.NotYet("--overflow reject is not in this version: block is"),
		},
	}, "POLICY", "when the ring is full behind a consumer: block, drop-oldest or reject (default block)")
	cli.Size(fs, &f.ringBytes, "ring-bytes", 1, math.MaxInt64, "ring of a partition (default 64MiB)")
	cli.Size(fs, &f.maxBatch, "max-batch", 1, math.MaxUint32, "largest record batch (default 1048588)")
	cli.Later(fs, "sync", "", "POLICY", "when a file topic syncs")
	cli.Later(fs, "retention-bytes", "", "SIZE", "how much a file topic keeps")
	cli.Later(fs, "retention-time", "", "TIME", "how long a file topic keeps records")
	cli.Later(fs, "admin-user", "a", "NAME", "user who may create topics")
	cli.Later(fs, "admin-password", "d", "TEXT", "password of the admin user")
	f.addLast(fs)
}

// settings are those that the command line names; zero where it does not.
func (f *topicFlags) settings() client.TopicSettings {
	s := client.TopicSettings{Partitions: uint32(f.partitions), RingBytes: f.ringBytes, MaxBatchBytes: uint32(f.maxBatch)}
	s.Storage, _ = codec.ParseStorage(f.storage)
	s.Overflow, _ = codec.ParseOverflow(f.overflow)
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
	if f.output == "json" {
		cli.WriteJSON(os.Stdout, createdJSON{
			Program: f.program, Topic: f.topic, Created: reply.Created, ID: hex.EncodeToString(reply.ID[:]), Settings: settingsOf(reply.Settings),
		})
		return nil
	}
	what := settingsText(reply.Settings, false)
	if !reply.Created {
		fmt.Printf("%s exists, unchanged: %s\n", f.topic, what)
		return nil
	}
	fmt.Printf("created %s: %s\n", f.topic, what)
	if storageIsMemory(reply.Settings.Storage) {
		fmt.Println("memory: contents are lost when the broker stops")
	}
	return nil
}

func (f *topicFlags) explainCreate(err error) error {
	var wire *codec.WireError
	if errors.As(err, &wire) && wire.Code == codec.CodeTopicExists {
		return &cli.Error{
			Exit: cli.ExitFailure, Err: err, Text: wire.Detail,
			Fix: "leave those flags out, or choose another name with -t",
		}
	}
	return f.explain(err)
}

// settingsText is a topic's settings in one line, the usual ones only where all is set.
func settingsText(s client.TopicSettings, all bool) string {
	text := s.Storage.String() + ", " + cli.Plural(int64(s.Partitions), "partition")
	if storageIsMemory(s.Storage) {
		text += ", overflow=" + s.Overflow.String() + ", ring=" + cli.FormatSize(s.RingBytes)
	}
	if all || s.MaxBatchBytes != codec.DefaultMaxBatchBytes {
		text += ", max-batch=" + cli.FormatSize(uint64(s.MaxBatchBytes))
	}
	return text
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
}

func settingsOf(s client.TopicSettings) settingsJSON {
	return settingsJSON{
		Storage: s.Storage.String(), Partitions: s.Partitions, Overflow: s.Overflow.String(),
		RingBytes: s.RingBytes, MaxBatchBytes: s.MaxBatchBytes,
	}
}

func describeCommand() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use: "describe", Short: "show a topic's settings and the state of its partitions",
		Example: "  lightq-topic describe -t orders\n  lightq-topic describe -t orders --output json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := cli.Interruptible(context.Background())
			defer stop()
			c, err := f.connect(ctx)
			if err != nil {
				return err
			}
			defer hangUp(c)
			d, err := f.describe(ctx, c, 0)
			if err != nil {
				return err
			}
			if f.output == "json" {
				cli.WriteJSON(os.Stdout, descriptionOf(f.program, f.topic, d))
				return nil
			}
			return writeDescription(os.Stdout, f.topic, d)
		},
	}
	f.add(cmd.Flags(), "lightq-topic")
	f.addLast(cmd.Flags())
	return cmd
}

func writeDescription(w io.Writer, topic string, d client.Description) error {
	fmt.Fprintf(w, "%s: %s\n", topic, settingsText(d.Settings, true))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "partition\tstart\thigh\tnext\tbytes\tdropped unread\tsubscriptions\tpublishers\t")
	for i, p := range d.Partitions {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", i, p.Start, p.High, p.Next, p.Bytes, p.DroppedUnread, p.Subscriptions, p.Publishers)
	}
	return t.Flush()
}

type descriptionJSON struct {
	Program    string          `json:"program"`
	Topic      string          `json:"topic"`
	ID         string          `json:"id"`
	Settings   settingsJSON    `json:"settings"`
	Partitions []partitionJSON `json:"partitions"`
}

type partitionJSON struct {
	Partition     int          `json:"partition"`
	Start         codec.Offset `json:"start"`
	High          codec.Offset `json:"high"`
	Next          codec.Offset `json:"next"`
	Bytes         uint64       `json:"bytes"`
	DroppedUnread uint64       `json:"dropped_unread"`
	Subscriptions uint32       `json:"subscriptions"`
	Publishers    uint32       `json:"publishers"`
}

func descriptionOf(program, topic string, d client.Description) descriptionJSON {
	j := descriptionJSON{Program: program, Topic: topic, ID: hex.EncodeToString(d.ID[:]), Settings: settingsOf(d.Settings)}
	for i, p := range d.Partitions {
		j.Partitions = append(j.Partitions, partitionJSON{
			Partition: i, Start: p.Start, High: p.High, Next: p.Next, Bytes: p.Bytes, DroppedUnread: p.DroppedUnread,
			Subscriptions: p.Subscriptions, Publishers: p.Publishers,
		})
	}
	return j
}
