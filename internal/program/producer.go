package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strings"
	"sync/atomic"
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
confirmed. If nobody is attached to a topic in memory, it waits up to 2 s for a first consumer.

With -f it publishes each line of a file, or with -f - of standard input, as one record. ` + linesText + `

It ends with the file, or with the first line that the topic does not take; what stands before that line is published, and the
summary says how much that is.`,
		Example: `  lightq-producer -m 10000000 -n 1 -s 100
  lightq-producer -t orders --rate 10000 -m 100000
  lightq-producer -t orders -f orders.jsonl
  tail -F app.log | lightq-producer -t logs -f -
  lightq-producer -t users -f users.tsv -K '\t' --compress zstd
  echo hello | lightq-producer -t orders -f - --key k1 --header source=shell --header host=$HOSTNAME
  find . -print0 | lightq-producer -t files -f - -D '\0'`,
	}
	produceOn(root, "")
	publish := &cobra.Command{
		Use: "publish", Short: "publish lines of a file, or of standard input without -f",
		Long:    "Publishes each line of a file, or without -f of standard input, as one record. " + linesText,
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

// linesText says what is a line, a key and a value.
const linesText = `The newline, or what -D
names, is not part of the record; everything else is: a carriage return, a zero, bytes that are no text. An empty line is an
empty record, and a last line without a newline is a line.

With -K what stands before the first separator in a line is the record's key; a line without a separator has no key. --key gives
every line the same key. Keys choose the partition as Kafka's clients do, records without one go to the partitions in turn. With
--null a key or value that is exactly this text is null.`

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
	key        string
	null       string
	headers    []codec.RecordHeader
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
	cli.AnyText(f.fs, &f.key, "key", "", "TEXT", "publishing lines: the key of every record, in place of -K")
	cli.Each(f.fs, "header", "", "NAME=VALUE", "publishing lines: a header of every record; may be given again", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return errors.New("it must be NAME=VALUE")
		}
		f.headers = append(f.headers, codec.RecordHeader{Key: name, Value: []byte(value)})
		return nil
	})
	cli.AnyText(f.fs, &f.null, "null", "", "TEXT", "publishing lines: a key or value that is exactly this text is null; unset: none is")
	cli.LineOnly(f.fs, "file", "key-delim", "delim", "key", "header", "null") // which bytes are data is not left to the environment
	cli.Choose(f.fs, &f.compress, "compress", "", "none", cli.Choice{Names: []string{"none", "gzip", "snappy", "lz4", "zstd"}}, "CODEC",
		"compress batches: none, gzip, snappy, lz4 or zstd")
	f.addProgress(f.fs)
	f.addLast(f.fs, "")
	f.profile.Flags(f.fs)
	cmd.RunE = func(*cobra.Command, []string) error { return f.run() }
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if st, err := os.Stat(args[0]); err == nil && !st.IsDir() {
				return &cli.Error{Exit: cli.ExitUsage, Text: fmt.Sprintf("unexpected argument %q", args[0]), Fix: "-f " + args[0] + " publishes the file's lines"}
			}
		}
		return cli.NoArgs(cmd, args)
	}
}

func (f *producerFlags) run() error {
	lines := f.verb == "publish" || f.verb == "" && f.file != ""
	switch {
	case f.verb == "bench" && f.file != "":
		return cli.Usagef("-f, --file publishes lines, and the verb bench generates load: use one of them")
	case lines:
		if load := onLine(f.fs, "messages", "size", "rate"); len(load) > 0 {
			return cli.Usagef("%s belongs to the load generator, not to publishing lines", load[0])
		}
		if keys := onLine(f.fs, "key", "key-delim"); len(keys) > 1 {
			return cli.Usagef("--key and -K, --key-delim both give the key: use one of them")
		}
	case len(onLine(f.fs, lineFlags...)) > 0:
		return cli.Usagef("%s belongs to publishing lines: give -f FILE, or -f - for standard input", onLine(f.fs, lineFlags...)[0])
	case f.verb == "" && !cli.Given(f.fs, "messages") && cli.IsPipe(os.Stdin):
		return cli.Usagef("standard input is a pipe: -f - publishes it, -m N generates load")
	}
	var in *os.File
	if lines {
		var err error
		if in, err = openLines(f.file); err != nil {
			return err
		}
		defer func() { _ = in.Close() }() // it was only read
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

// lineFlags belong to publishing lines alone.
var lineFlags = []string{"key-delim", "delim", "key", "header", "null"}

// openLines opens what -f names; nothing and - are standard input.
func openLines(name string) (*os.File, error) {
	if name == "" || name == "-" {
		return os.Stdin, nil
	}
	in, err := os.Open(name)
	if err != nil {
		return nil, cli.Usagef("-f, --file: %v", err)
	}
	if st, err := in.Stat(); err == nil && st.IsDir() {
		_ = in.Close() // it was only opened
		return nil, cli.Usagef("-f, --file: %s is a directory: give a file in it", name)
	}
	return in, nil
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

	soFar := &progress{verb: "sent", total: timesSaturated(f.messages, int64(len(senders)))}
	stopProgress := f.startProgress(func(elapsed time.Duration) string { return loadProgress(soFar, senders, elapsed) })
	group, sending := errgroup.WithContext(ctx)
	for i, s := range senders {
		group.Go(func() error { return s.Run(sending, producers[i]) })
	}
	err = group.Wait()
	stopProgress()

	rep := loadgen.ReportOf(f.topic, run, int(f.size), senders)
	rep.Rate = f.rate
	ending, cancel := afterwards(ctx)
	defer cancel()
	if err != nil { // what others have sent need not be waited for any longer
		ending, cancel = context.WithTimeout(ending, lastWords)
		defer cancel()
	}
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
	rep.Interrupted = ctx.Err() != nil
	switch {
	case rep.Interrupted:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
		rep.Error = cli.FailureOf(err)
	case rep.Total.Confirmed != rep.Total.Sent:
		err = cli.Failf(cli.ExitFailure, "%s of %s messages were not confirmed",
			cli.Thousands(rep.Total.Sent-rep.Total.Confirmed), cli.Thousands(rep.Total.Sent))
		rep.Error = cli.FailureOf(err)
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

func loadProgress(p *progress, senders []*loadgen.Sender, elapsed time.Duration) string {
	var sent, confirmed, failed int64
	for _, s := range senders {
		a, b, c := s.Counts()
		sent, confirmed, failed = sent+a, confirmed+b, failed+c
	}
	return p.line(sent, elapsed) + "  unconfirmed " + cli.Thousands(max(sent-confirmed-failed, 0)) + "  failed " + cli.Thousands(failed)
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
	f.note("nobody is attached %s: waiting up to %v for a first consumer", where, firstConsumer)
	deadline := time.NewTimer(firstConsumer)
	defer deadline.Stop()
	look := time.NewTicker(firstConsumerEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return d, cli.ErrInterrupted
		case <-deadline.C:
			f.note("nobody came: %s will be dropped unread", lost)
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
	Program       string       `json:"program"`
	Topic         string       `json:"topic"`
	Published     int64        `json:"published"`         // lines taken
	Keyless       *int64       `json:"keyless,omitempty"` // of these, without a key; only with -K
	Confirmed     int64        `json:"confirmed"`
	Failed        int64        `json:"failed"`
	Unconfirmed   int64        `json:"unconfirmed"`    // neither: the broker had not answered
	DroppedUnread int64        `json:"dropped_unread"` // confirmed, and dropped before anybody read them
	Bytes         int64        `json:"bytes"`          // of the values
	Seconds       float64      `json:"seconds"`
	Interrupted   bool         `json:"interrupted,omitempty"`
	Error         *cli.Failure `json:"error,omitempty"`
}

// lines returns the publisher of lines that the flags describe.
func (f *producerFlags) lines(d client.Description) *loadgen.Lines {
	lines := loadgen.NewLines(f.topic, len(d.Partitions), int(d.Settings.MaxBatchBytes), f.largerBatch)
	if len(f.delim) > 0 {
		lines.Delimit(f.delim)
	}
	lines.Keyed(f.keyDelim)
	if cli.Given(f.fs, "key") {
		lines.Key([]byte(f.key))
	}
	if cli.Given(f.fs, "null") {
		lines.Null([]byte(f.null))
	}
	lines.Headers(f.headers)
	return lines
}

// publish publishes the lines of in and prints what was done.
func (f *producerFlags) publish(ctx context.Context, c *client.Client, d client.Description, in *os.File) error {
	lines := f.lines(d)
	p, err := c.Producer(ctx, f.topic, f.compression(), client.OnBatch(lines.OnBatch))
	if err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explain(err)
	}
	started := time.Now()
	from, stopProgress := f.followLines(in, lines)
	err = lines.Publish(ctx, from, p)
	stopProgress()
	ending, cancel := afterwards(ctx)
	defer cancel()
	if cerr := p.Close(ending); err == nil {
		err = cerr
	}
	res := publishedJSON{Program: f.program, Topic: f.topic, Seconds: time.Since(started).Seconds(), Interrupted: ctx.Err() != nil}
	res.Published, res.Confirmed, res.Failed, res.Bytes = lines.Counts()
	res.Unconfirmed = res.Published - res.Confirmed - res.Failed
	if after, derr := c.Describe(ending, f.topic); derr == nil {
		res.DroppedUnread = droppedUnread(after) - droppedUnread(d)
	} else if err == nil { // a failure would have scripts publish it all again
		f.note("how much was dropped unread is not known: %v", f.explain(derr))
	}
	if len(f.keyDelim) > 0 {
		n := lines.Keyless()
		res.Keyless = &n
	}
	switch {
	case res.Interrupted:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
		res.Error = cli.FailureOf(err)
	}
	if cli.IsJSON(f.output) {
		cli.WriteJSON(os.Stdout, res)
		return cli.Reported(err)
	}
	fmt.Println(res.text())
	return err
}

// followLines shows how far a file is read, or tells somebody who is to type how that ends.
func (f *producerFlags) followLines(in *os.File, lines *loadgen.Lines) (from io.Reader, stop func()) {
	if cli.IsTerminal(in) {
		f.note("type records, one on a line; Ctrl-D ends")
		return in, func() {}
	}
	read := &countingReader{r: in}
	size := int64(0)
	if st, err := in.Stat(); err == nil && st.Mode().IsRegular() {
		size = st.Size()
	}
	soFar := &progress{verb: "published"}
	return read, f.startProgress(func(elapsed time.Duration) string {
		published, confirmed, failed, _ := lines.Counts()
		line := soFar.line(published, elapsed)
		if size > 0 {
			line += "  " + percent(read.n.Load(), size) + " of the file"
		}
		return line + "  unconfirmed " + cli.Thousands(max(published-confirmed-failed, 0)) + "  failed " + cli.Thousands(failed)
	})
}

// A countingReader counts what is read through it.
type countingReader struct {
	r io.Reader
	n atomic.Int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
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
		if r.Unconfirmed > 0 {
			parts = append(parts, cli.Thousands(r.Unconfirmed)+" unconfirmed (the broker had not answered)")
		}
	}
	if r.DroppedUnread > 0 {
		parts = append(parts, cli.Thousands(r.DroppedUnread)+" dropped before anybody read them")
	}
	if r.Interrupted {
		parts = append(parts, "interrupted")
	}
	return strings.Join(append(parts, fmt.Sprintf("%.3f s", r.Seconds)), ", ")
}
