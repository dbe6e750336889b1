package program

import (
	"context"
	"errors"
	"iter"
	"math"
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

// Consumer runs lightq-consumer.
func Consumer(args []string) int { return cli.Run(consumerCommand(), args, os.Stdout, os.Stderr) }

func consumerCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "lightq-consumer",
		Short: "Receives and measures, or with --print, --json or --format prints records.",
		Long: `Without --print, --json or --format it receives -m messages of one run of the load generator from each partition, one receiver
for each, checks every sequence number and reports rates and latencies. It exits with 6 if anything was lost, duplicated, out of
order or dropped unread.

` + formsText() + `
Without a group it gets every record and takes none away from others, and starts at the earliest one kept. With -g the members
of a group share the records: each gets some. Measuring, a member counts what comes to it and checks its order; what others of
the group get is no loss. It ends with the batch that brings it to -m messages of each partition, taken together, or when
interrupted. With -e a member ends when nothing has come for a second. What was on its way to a member that ends before it has
printed or counted it is lost for the group: this version has no acknowledgements.`,
		Example: `  lightq-consumer -m 10000000 -n 1
  lightq-consumer -t orders --print -e             # what is there now
  lightq-consumer -t orders --print -o latest      # what comes from now on
  lightq-consumer -t orders --print -m 10          # ten of each partition
  lightq-consumer -t orders --json -e | jq .value
  lightq-consumer -t orders --format '%p/%o %k: %s\n' -o 1000
  lightq-consumer -t orders --print -K '\t' -e > orders.tsv
  lightq-consumer -t orders --print -g workers     # a share, with the others of the group`,
	}
	consumeOn(root, "")
	consume := &cobra.Command{
		Use: "consume", Short: "print records (as with --print)",
		Long:    "Prints records. " + formsText(),
		Example: "  lightq-consumer consume -t orders -e\n  lightq-consumer consume -t orders --json -o latest",
	}
	consumeOn(consume, "consume")
	bench := &cobra.Command{
		Use: "bench", Short: "receive and measure (as without a verb and without --print)",
		Example: "  lightq-consumer bench -m 10000000",
	}
	consumeOn(bench, "bench")
	root.AddCommand(consume, bench)
	return root
}

// formsText says in which forms records are printed.
func formsText() string {
	return `With --print it writes each record's value and a newline to standard output, and all else to standard error; with -K keys too, as
lightq-producer -K reads them. With --json a record is one object on a line: topic, partition, offset, timestamp (ms since 1970),
key, value and headers, a list of objects with key and value. What is null is null; a key or value that is not UTF-8 stands as
base64 under key_base64 or value_base64 instead. With --format it is what you write:

` + formFieldLines() + `
and \n, \r, \t, \0, \\ and \xHH are single bytes. A null key or value is nothing, or the text of --null, and its size is -1. The
value of a header that is null is left out with its =.
`
}

type consumerFlags struct {
	clientFlags
	fs         *pflag.FlagSet
	verb       string
	kind       string
	messages   int64
	partitions int64
	from       string
	atEnd      bool
	print      bool
	json       bool
	format     string
	keyDelim   []byte
	delim      []byte
	null       string
	group      string
	profile    cli.Profile
}

func consumeOn(cmd *cobra.Command, verb string) {
	f := &consumerFlags{fs: cmd.Flags(), verb: verb}
	f.clientFlags.add(f.fs, "lightq-consumer")
	cli.Choose(f.fs, &f.kind, "type", "c", "zmq", cli.Choice{Names: []string{"zmq", "socket"}}, "KIND", "zmq or socket: both mean the native protocol")
	cli.Int(f.fs, &f.messages, "messages", "m", 1_000_000, 1, math.MaxInt64, "messages to receive from each partition; printing, unset means all")
	partitionsFlag(f.fs, &f.partitions)
	cli.Text(f.fs, &f.from, "from", "o", "earliest", "WHERE", "where to start: earliest, latest, an offset, a time (2026-01-31T15:04:05Z) or an age (90s, 10m, 2d)")
	cli.Bool(f.fs, &f.atEnd, "exit-at-end", "e", "end when everything that is there was received")
	cli.Bool(f.fs, &f.print, "print", "", "print each record's value and a newline on standard output")
	cli.Bool(f.fs, &f.json, "json", "", "print each record as a JSON object on a line")
	cli.Text(f.fs, &f.format, "format", "", "", "TEXT", "print each record in a form of your own, such as '%p %o %k %s\\n': see above. No newline is added")
	cli.Delimiter(f.fs, &f.keyDelim, "key-delim", "K", "with --print: what to write between key and value; unset: keys are not printed. A record without a key has no separator either")
	cli.Delimiter(f.fs, &f.delim, "delim", "D", "with --print: what to write behind each record: a text, or \\t, \\0, \\xHH; unset: the newline")
	cli.AnyText(f.fs, &f.null, "null", "", "TEXT", "with --print or --format: what to write for a key or value that is null; unset: nothing")
	cli.LineOnly(f.fs, "print", "json", "format", "key-delim", "delim", "null") // which bytes are data is not left to the environment
	cli.Text(f.fs, &f.group, "group", "g", "", "NAME", "share the records with the others of this group")
	cli.Later(f.fs, "name", "", "NAME", "go on where the subscription of this name was")
	cli.Later(f.fs, "ack", "", "KIND", "who acknowledges records: auto, manual or none")
	f.addProgress(f.fs)
	f.addLast(f.fs, "")
	f.profile.Flags(f.fs)
	cmd.RunE = func(*cobra.Command, []string) error { return f.run() }
}

// onLine returns those of the flags that the command line has, as a user writes them.
func onLine(fs *pflag.FlagSet, names ...string) (flags []string) {
	for _, name := range names {
		if cli.SourceOf(fs, name).Level == cli.FromLine {
			flags = append(flags, "--"+name)
		}
	}
	return flags
}

// form says how records are to be printed; nil: they are measured. Flags that do not go together are an error.
func (f *consumerFlags) form() (form, error) {
	modes, plain := onLine(f.fs, "print", "json", "format"), onLine(f.fs, "key-delim", "delim", "null")
	reader := len(modes) > 0 || f.verb == "consume"
	switch {
	case len(modes) > 1:
		return nil, cli.Usagef("%s exclude each other: give one of --print, --json and --format", strings.Join(modes, " and "))
	case f.verb == "bench" && reader:
		return nil, cli.Usagef("%s prints records, and the verb bench measures: use one of them", modes[0])
	case !reader && len(plain) > 0:
		return nil, cli.Usagef("%s says how records are printed: add --print", plain[0])
	case reader && len(onLine(f.fs, "output")) > 0:
		return nil, cli.Usagef("--output is for the measuring receiver's report: --json prints each record as a JSON object")
	case f.json && len(plain) > 0:
		return nil, cli.Usagef("%s is for --print, and --json shows keys and nulls by itself: leave it out", plain[0])
	case f.format != "" && (len(f.keyDelim) > 0 || len(f.delim) > 0):
		return nil, cli.Usagef("%s is for --print, and --format says everything by itself: write %%k, %%s and \\n where you want them", plain[0])
	case !reader:
		return nil, nil
	case f.json:
		return newJSONForm(f.topic), nil
	}
	var null []byte
	if cli.Given(f.fs, "null") {
		null = []byte(f.null)
	}
	if f.format != "" {
		parts, err := parseForm(f.format)
		if err != nil {
			return nil, err
		}
		return &ownForm{topic: f.topic, null: null, parts: parts}, nil
	}
	delim := f.delim
	if len(delim) == 0 {
		delim = []byte{'\n'}
	}
	return &plainForm{keyDelim: f.keyDelim, delim: delim, null: null}, nil
}

func (f *consumerFlags) run() error {
	start, err := parseFrom(f.from, time.Now())
	if err != nil {
		return err
	}
	form, err := f.form()
	if err != nil {
		return err
	}
	if f.group != "" {
		if err := topic.CheckGroupName(f.group); err != nil {
			return &cli.Error{Exit: cli.ExitUsage, Text: "-g, --group is refused: " + err.Error(), Err: err}
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
	if form != nil {
		return cli.Reported(f.read(ctx, c, start, form)) // standard output is for the records
	}
	return f.measure(ctx, c, start, len(d.Partitions))
}

// attached says on standard error that everything published from now on will be received. Scripts wait for this line. It
// returns whether anything is there to be received already.
func (f *consumerFlags) attached(start start, partitions int, positions []client.Position) (some bool) {
	f.note("%s", start.attachedText(f.topic, f.group, partitions, positions))
	if f.group != "" && cli.Given(f.fs, "from") && start.elsewhere(positions) {
		f.note("-o %s is for a new group, and %s is not new: give another name with -g to start there", f.from, f.group)
	}
	for _, p := range positions {
		some = some || p.Next < p.High
	}
	return some
}

// options are those of every client.Consumer that the program makes.
func (f *consumerFlags) options(start start, more ...client.ConsumerOption) []client.ConsumerOption {
	options := append(more, client.From(start.where))
	if f.group != "" {
		options = append(options, client.Group(f.group))
	}
	return options
}

// measure receives and prints the report.
func (f *consumerFlags) measure(ctx context.Context, c *client.Client, start start, partitions int) error {
	receiving, end := context.WithCancel(ctx)
	defer end()
	m := loadgen.NewMeasurement(f.topic, f.messages, end,
		func(partition int, id loadgen.RunID, n int64) {
			f.note("run %v in partition %d began %s before what is kept, read by others: "+
				"it cannot be complete here, waiting for a whole run", id, partition, cli.Plural(n, "message"))
		})
	if f.group != "" {
		m.Share(f.group)
	}
	consumers := make([]*client.Consumer, partitions)
	for i := range consumers {
		var err error
		if consumers[i], err = c.Consumer(ctx, f.topic, f.options(start, client.Partitions(i))...); err != nil {
			if ctx.Err() != nil {
				return cli.ErrInterrupted
			}
			return f.explain(err)
		}
	}
	// Asked once all are attached: from then on nothing is dropped unread.
	d, err := f.describe(ctx, c, f.partitions)
	if err != nil {
		return err
	}
	receivers := make([]*loadgen.Receiver, partitions)
	positions := make([]client.Position, partitions)
	for i, co := range consumers {
		pos := co.Positions()[0]
		positions[i] = pos
		receivers[i] = m.Receiver(i, pos.Start, pos.Begin, int64(d.Partitions[i].DroppedUnread))
	}
	some := f.attached(start, partitions, positions)
	if !cli.Given(f.fs, "messages") {
		f.note("measuring up to %s messages of each partition (-m); --print prints records instead", cli.Thousands(f.messages))
	}
	if !some && !f.atEnd {
		f.note("nothing is there yet: waiting for lightq-producer -t %s -m %d%s", f.topic, f.messages, cli.ServerFlag(f.server))
	}

	soFar := &progress{verb: "received", total: timesSaturated(f.messages, int64(partitions))}
	stopProgress := f.startProgress(func(elapsed time.Duration) string {
		line := soFar.line(m.Received(), elapsed)
		if f.group == "" { // in a group what is ahead may go to others
			lag := int64(0)
			for _, co := range consumers {
				p := co.Positions()[0]
				lag += int64(max(p.High-p.Next, 0))
			}
			line += "  lag " + cli.Thousands(lag)
		}
		return line + "  gap " + cli.Thousands(m.Gap())
	})
	group, receiving := errgroup.WithContext(receiving) // one that fails ends the others
	for i, r := range receivers {
		group.Go(func() error { return f.receive(receiving, r, consumers[i]) })
	}
	err = group.Wait()
	stopProgress()
	if m.Over() {
		err = nil
	}

	rep := m.Report()
	rep.Interrupted = ctx.Err() != nil && !m.Over()
	switch {
	case rep.Interrupted:
		err = cli.ErrInterrupted
	case err != nil:
		err = f.explain(err)
		rep.Error = cli.FailureOf(err)
	default:
		if fault := rep.Fault(!f.atEnd); fault != "" {
			err = cli.Failf(cli.ExitCheckFailed, "check failed: %s: %s", f.topic, fault)
			rep.Error = cli.FailureOf(err)
		}
	}
	if cli.IsJSON(f.output) {
		cli.WriteJSON(os.Stdout, rep)
		return cli.Reported(err)
	}
	rep.Text(os.Stdout, time.Local)
	return err
}

func (f *consumerFlags) receive(ctx context.Context, r *loadgen.Receiver, co *client.Consumer) error {
	defer func() { _ = co.Close() }() // nothing was sent that could be lost
	stop := func(client.Batch) bool { return false }
	switch {
	case !f.atEnd:
	case f.group != "":
		idle := newIdleEnd(ctx)
		defer idle.stop()
		return idle.through(r.Run(idle.watch(co.Batches(idle.ctx)), stop))
	default:
		if p := co.Positions()[0]; p.Next >= p.High {
			return nil
		}
		stop = func(b client.Batch) bool { return behind(b) >= b.High }
	}
	return r.Run(co.Batches(ctx), stop)
}

// behind is the offset behind a batch, or behind the gap where there is no batch.
func behind(b client.Batch) codec.Offset {
	if b.Batch == nil {
		return b.Gap.Next
	}
	return b.NextOffset()
}

// idleTicks times idleTick is how long a member of a group waits, with -e, for another batch: nobody tells a member that the
// last one went to another, and one that is there and has a member with credit is given out within milliseconds. Ticks are
// counted, not time, so that a process that gets no processor for a while does not take that for silence.
const (
	idleTick  = 100 * time.Millisecond
	idleTicks = 10
)

var errIdle = errors.New("nothing has come for a while")

// An idleEnd ends a context when nothing has come for a while.
type idleEnd struct {
	ctx   context.Context
	end   context.CancelCauseFunc
	moves atomic.Int64 // batches, and other news, that were dealt with
	busy  atomic.Bool  // with one: silence begins behind it
}

func newIdleEnd(ctx context.Context) *idleEnd {
	i := &idleEnd{}
	i.ctx, i.end = context.WithCancelCause(ctx)
	go i.run()
	return i
}

// run ends with the context.
func (i *idleEnd) run() {
	tick := time.NewTicker(idleTick)
	defer tick.Stop()
	last, quiet := int64(0), 0
	for quiet < idleTicks {
		select {
		case <-tick.C:
		case <-i.ctx.Done():
			return
		}
		quiet++
		if n := i.moves.Load(); n != last || i.busy.Load() {
			last, quiet = n, 0
		}
	}
	i.end(errIdle)
}

// watch passes on what comes. What is done with a batch may take its time.
func (i *idleEnd) watch(batches iter.Seq2[client.Batch, error]) iter.Seq2[client.Batch, error] {
	return func(yield func(client.Batch, error) bool) {
		for b, err := range batches {
			i.busy.Store(true)
			more := yield(b, err)
			i.moves.Add(1)
			i.busy.Store(false)
			if !more {
				return
			}
		}
	}
}

// through is err, or nil where err is the end of the wait.
func (i *idleEnd) through(err error) error {
	if err != nil && errors.Is(context.Cause(i.ctx), errIdle) {
		return nil
	}
	return err
}

func (i *idleEnd) stop() { i.end(nil) }
