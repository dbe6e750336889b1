package program

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"os"
	"strings"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
	"github.com/lightio/lightq/topic"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

// Producer runs lightq-producer.
func Producer(args []string) int { return cli.Run(producerCommand(), args, os.Stdout, os.Stderr) }

func producerCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "lightq-producer",
		Short: "Generates load, or with -f publishes lines.",
		Long: `Without -f it generates load: -m messages of -s bytes to each partition, one sender for each, and reports what was sent and
confirmed. With -f it publishes each line of a file, or with -f - of standard input, as one record without its newline. With -K
what stands before the first separator in a line is the record's key, and keys choose the partition as Kafka's clients do.

If nobody is attached to a topic in memory, the load generator waits up to 2 s for a first consumer.`,
		Example: `  lightq-producer -m 10000000 -n 1 -s 100
  lightq-producer -t orders --rate 10000 -m 100000
  lightq-producer -t orders -f orders.jsonl
  tail -F app.log | lightq-producer -t logs -f -
  lightq-producer -t users -f users.tsv -K '\t' --compress zstd
  find . -print0 | lightq-producer -t files -f - -D '\0'`,
	}
	produceOn(root, "")
	publish := &cobra.Command{
		Use: "publish", Short: "publish lines of a file, or of standard input without -f",
		Example: "  lightq-producer publish -t orders -f orders.jsonl\n  lightq-producer publish -t orders < orders.jsonl",
	}
	produceOn(publish, "publish")
	bench := &cobra.Command{
		Use: "bench", Short: "generate load (as without a verb and without -f)",
		Example: "  lightq-producer bench -m 10000000 -s 1024",
	}
	produceOn(bench, "bench")
	root.AddCommand(publish, bench)
	return root
}

type producerFlags struct {
	clientFlags
	fs         *pflag.FlagSet
	verb       string
	messages   int64
	size       int64
	partitions int64
	rate       int64
	file       string
	keyDelim   []byte
	delim      []byte
	compress   string
	profile    cli.Profile
}

func produceOn(cmd *cobra.Command, verb string) {
	f := &producerFlags{fs: cmd.Flags(), verb: verb}
	f.clientFlags.add(f.fs, "lightq-producer")
	cli.Int(f.fs, &f.messages, "messages", "m", 1_000_000, 1, math.MaxInt64, "messages to send to each partition")
	cli.Int(f.fs, &f.size, "size", "s", 100, 0, 1<<30, "size of a message in bytes")
	partitionsFlag(f.fs, &f.partitions)
	cli.Int(f.fs, &f.rate, "rate", "", 0, 1, 1_000_000_000, "messages a second, all partitions together; unset: as fast as possible")
	cli.Text(f.fs, &f.file, "file", "f", "", "FILE", "publish each line of FILE as a record; - is standard input")
	cli.Delimiter(f.fs, &f.keyDelim, "key-delim", "K", "what separates key and value of a line: a text, or \\t, \\0, \\xHH; unset: lines have no keys")
	cli.Delimiter(f.fs, &f.delim, "delim", "D", "what separates records: a text, or \\t, \\0, \\xHH; unset: the newline")
	cli.Choose(f.fs, &f.compress, "compress", "", "none", cli.Choice{Names: []string{"none", "gzip", "snappy", "lz4", "zstd"}}, "CODEC",
		"compress batches: none, gzip, snappy, lz4 or zstd")
	f.addLast(f.fs, "")
	f.profile.Flags(f.fs)
	cmd.RunE = func(*cobra.Command, []string) error { return f.run() }
}

func (f *producerFlags) run() error {
	lines := f.verb == "publish" || f.verb == "" && f.file != ""
	switch {
	case f.verb == "bench" && f.file != "":
		return cli.Usagef("-f, --file publishes lines, and the verb bench generates load: use one of them")
	case lines:
		for _, name := range []string{"messages", "size", "rate"} {
			if cli.Given(f.fs, name) {
				return cli.Usagef("--%s belongs to the load generator, not to publishing lines", name)
			}
		}
	case len(f.keyDelim) > 0 || len(f.delim) > 0:
		return cli.Usagef("--key-delim and --delim belong to publishing lines: give -f FILE, or -f - for standard input")
	case f.verb == "" && !cli.Given(f.fs, "messages") && cli.IsPipe(os.Stdin):
		return cli.Usagef("standard input is a pipe: -f - publishes it, -m N generates load")
	}
	var in *os.File
	if lines {
		in = os.Stdin
		if f.file != "" && f.file != "-" {
			var err error
			if in, err = os.Open(f.file); err != nil {
				return cli.Usagef("-f, --file: %v", err)
			}
			defer func() { _ = in.Close() }() // it was only read
		}
	}
	ctx, stop := cli.Interruptible(context.Background())
	defer stop()
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(c)
	d, err := f.describe(ctx, c, f.partitions)
	if err != nil {
		return err
	}
	stopProfile, err := f.profile.Start()
	if err != nil {
		return cli.Failf(cli.ExitFailure, "%v", err)
	}
	defer stopProfile()
	if lines {
		return f.publish(ctx, c, d, in)
	}
	return f.load(ctx, c, d)
}

// load generates load and prints the report.
func (f *producerFlags) load(ctx context.Context, c *client.Client, d client.Description) error {
	if largest := loadgen.LargestRecord(int(d.Settings.MaxBatchBytes)); f.size > int64(largest) {
		return &cli.Error{
			Exit: cli.ExitUsage,
			Text: fmt.Sprintf("-s %d is above what topic %s takes in one record, %d B (max-batch %d)", f.size, f.topic, largest, d.Settings.MaxBatchBytes),
			Fix:  f.largerBatch(loadgen.BatchBytes(int(f.size))),
		}
	}
	d, err := f.awaitConsumer(ctx, c, d)
	if err != nil {
		return err
	}
	run := loadgen.NewRunID()
	senders, producers, err := f.senders(ctx, c, run, len(d.Partitions))
	if err != nil {
		return err
	}

	started := time.Now()
	total := f.messages * int64(len(senders))
	stopProgress := cli.StartProgress(os.Stderr, func() string { return loadProgress(senders, total, time.Since(started)) })
	group, sending := errgroup.WithContext(ctx)
	for i, s := range senders {
		group.Go(func() error { return s.Run(sending, producers[i]) })
	}
	err = group.Wait()
	stopProgress()

	rep := loadgen.ReportOf(f.topic, run, int(f.size), senders)
	rep.Rate = f.rate
	rep.Interrupted = ctx.Err() != nil
	ending, cancel := afterwards(ctx)
	defer cancel()
	if after, derr := c.Describe(ending, f.topic); derr == nil {
		rep.Total.DroppedUnread = droppedUnread(after) - droppedUnread(d)
	} else if err == nil {
		err = derr
	}
	for _, p := range producers {
		if cerr := p.Close(ending); err == nil {
			err = cerr
		}
	}
	switch {
	case rep.Interrupted:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
		rep.Error = err.Error()
	case rep.Total.Confirmed != rep.Total.Sent:
		err = cli.Failf(cli.ExitFailure, "%s of %s messages were not confirmed",
			cli.Thousands(rep.Total.Sent-rep.Total.Confirmed), cli.Thousands(rep.Total.Sent))
		rep.Error = err.Error()
	}
	if cli.IsJSON(f.output) {
		cli.WriteJSON(os.Stdout, rep)
		return cli.Reported(err)
	}
	rep.Text(os.Stdout, time.Local)
	return err
}

// senders makes one sender with a connection of its own for each partition.
func (f *producerFlags) senders(ctx context.Context, c *client.Client, run loadgen.RunID, partitions int) ([]*loadgen.Sender, []*client.Producer, error) {
	senders := make([]*loadgen.Sender, partitions)
	producers := make([]*client.Producer, partitions)
	for i := range senders {
		senders[i] = loadgen.NewSender(run, i, f.messages, int(f.size))
		var err error
		if producers[i], err = c.Producer(ctx, f.topic, client.Partitions(i), f.compression(), client.OnBatch(senders[i].OnBatch)); err != nil {
			if ctx.Err() != nil {
				return nil, nil, cli.ErrInterrupted
			}
			return nil, nil, f.explain(err)
		}
	}
	if f.rate > 0 {
		start := time.Now()
		for i, s := range senders {
			s.Pace(loadgen.NewSchedule(start, f.rate, i, partitions))
		}
	}
	return senders, producers, nil
}

// largerBatch is the command that makes the topic take batches of these bytes.
func (f *producerFlags) largerBatch(batchBytes int) string {
	size := uint64(1) << bits.Len64(uint64(batchBytes-1)) // a round number
	if size > topic.MaxBatchBytesLimit {
		return "no topic takes batches above " + cli.FormatSize(topic.MaxBatchBytesLimit)
	}
	return "make room with: lightq-topic alter -t " + f.topic + " --max-batch " + cli.FormatSize(size) + cli.ServerFlag(f.server)
}

// compression is the option that --compress means.
func (f *producerFlags) compression() client.ProducerOption {
	return client.Compress(map[string]codec.Compression{
		"none": codec.CompressionNone, "gzip": codec.CompressionGzip, "snappy": codec.CompressionSnappy,
		"lz4": codec.CompressionLZ4, "zstd": codec.CompressionZstd,
	}[f.compress])
}

func loadProgress(senders []*loadgen.Sender, total int64, elapsed time.Duration) string {
	var sent, confirmed, failed int64
	for _, s := range senders {
		a, b, c := s.Counts()
		sent, confirmed, failed = sent+a, confirmed+b, failed+c
	}
	return fmt.Sprintf("%3.0fs  sent %s of %s (%s/s)  unconfirmed %s  failed %s", elapsed.Seconds(), cli.Thousands(sent), cli.Thousands(total),
		cli.Thousands(int64(float64(sent)/elapsed.Seconds())), cli.Thousands(max(sent-confirmed-failed, 0)), cli.Thousands(failed))
}

// firstConsumer is how long the load generator waits for somebody to attach to a topic that is kept in memory, and how often
// it looks.
const (
	firstConsumer      = 2 * time.Second
	firstConsumerEvery = 20 * time.Millisecond
)

// awaitConsumer waits until every partition has a subscription, no longer than firstConsumer, and says so. It returns the
// last description.
func (f *producerFlags) awaitConsumer(ctx context.Context, c *client.Client, d client.Description) (client.Description, error) {
	alone := func() (n int) {
		for _, p := range d.Partitions {
			if p.Subscriptions == 0 {
				n++
			}
		}
		return n
	}
	n := alone()
	if !inMemory(d.Settings.Storage) || n == 0 {
		return d, nil
	}
	where := "to " + f.topic
	if n < len(d.Partitions) {
		where = fmt.Sprintf("to %d of the %d partitions of %s", n, len(d.Partitions), f.topic)
	}
	lost := "what does not fit the ring"
	if d.Settings.Storage == codec.StorageDirect {
		lost = "everything, which a direct topic does not keep,"
	}
	fmt.Fprintf(os.Stderr, "nobody is attached %s: waiting up to %v for a first consumer\n", where, firstConsumer)
	deadline := time.NewTimer(firstConsumer)
	defer deadline.Stop()
	look := time.NewTicker(firstConsumerEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return d, cli.ErrInterrupted
		case <-deadline.C:
			fmt.Fprintf(os.Stderr, "nobody came: %s will be dropped unread\n", lost)
			return d, nil
		case <-look.C:
		}
		var err error
		if d, err = f.describe(ctx, c, f.partitions); err != nil {
			return d, err
		}
		if alone() == 0 {
			return d, nil
		}
	}
}

// publishedJSON is what publishing lines prints with --output json.
type publishedJSON struct {
	Program     string  `json:"program"`
	Topic       string  `json:"topic"`
	Published   int64   `json:"published"`         // lines taken
	Keyless     *int64  `json:"keyless,omitempty"` // of these, without a key; only with -K
	Confirmed   int64   `json:"confirmed"`
	Failed      int64   `json:"failed"`
	Bytes       int64   `json:"bytes"` // of the values
	Seconds     float64 `json:"seconds"`
	Interrupted bool    `json:"interrupted,omitempty"`
	Error       string  `json:"error,omitempty"`
}

// publish publishes the lines of in and prints what was done.
func (f *producerFlags) publish(ctx context.Context, c *client.Client, d client.Description, in *os.File) error {
	lines := loadgen.NewLines(f.topic, len(d.Partitions), int(d.Settings.MaxBatchBytes), f.largerBatch)
	if len(f.delim) > 0 {
		lines.Delimit(f.delim)
	}
	lines.Keyed(f.keyDelim)
	p, err := c.Producer(ctx, f.topic, f.compression(), client.OnBatch(lines.OnBatch))
	if err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explain(err)
	}
	started := time.Now()
	stopProgress := func() {}
	if !cli.IsTerminal(in) { // nor where somebody types
		stopProgress = cli.StartProgress(os.Stderr, func() string {
			n, _, _, _ := lines.Counts()
			return fmt.Sprintf("%3.0fs  published %s", time.Since(started).Seconds(), cli.Plural(n, "record"))
		})
	}
	err = lines.Publish(ctx, in, p)
	stopProgress()
	ending, cancel := afterwards(ctx)
	defer cancel()
	if cerr := p.Close(ending); err == nil {
		err = cerr
	}
	res := publishedJSON{Program: f.program, Topic: f.topic, Seconds: time.Since(started).Seconds(), Interrupted: ctx.Err() != nil}
	res.Published, res.Confirmed, res.Failed, res.Bytes = lines.Counts()
	if len(f.keyDelim) > 0 {
		n := lines.Keyless()
		res.Keyless = &n
	}
	switch {
	case res.Interrupted:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
		res.Error = err.Error()
	}
	if cli.IsJSON(f.output) {
		cli.WriteJSON(os.Stdout, res)
		return cli.Reported(err)
	}
	fmt.Println(res.text())
	return err
}

func (r publishedJSON) text() string {
	parts := []string{"published " + r.Topic + ": " + cli.Plural(r.Published, "record"), cli.Thousands(r.Bytes) + " B"}
	if r.Keyless != nil && *r.Keyless > 0 {
		parts = append(parts, cli.Thousands(*r.Keyless)+" without a key")
	}
	switch {
	case r.Confirmed == r.Published:
		parts = append(parts, "all confirmed")
	default:
		parts = append(parts, cli.Thousands(r.Confirmed)+" confirmed", cli.Thousands(r.Failed)+" failed")
	}
	if r.Interrupted {
		parts = append(parts, "interrupted")
	}
	return strings.Join(append(parts, fmt.Sprintf("%.3f s", r.Seconds)), ", ")
}
