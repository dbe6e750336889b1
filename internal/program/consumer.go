package program

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
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
		Short: "Receives and measures, or with --print prints records.",
		Long: `Without --print it receives -m messages of one run of the load generator from each partition, one receiver for each, checks
every sequence number and reports rates and latencies. It exits with 6 if anything was lost, duplicated, out of order or
dropped unread. With --print it writes each record's value and a newline to standard output, and all else to standard error.

Without a group it gets every record and takes none away from others, and starts at the earliest one kept. With -g the members
of a group share the records: each gets some. Measuring, a member counts what comes to it and checks its order; what others of
the group get is no loss. It ends with the batch that brings it to -m messages of each partition, taken together, or when
interrupted. With -e a member ends when nothing has come for a second. What was on its way to a member that ends before it has
printed or counted it is lost for the group: this version has no acknowledgements.`,
		Example: `  lightq-consumer -m 10000000 -n 1
  lightq-consumer -t orders --print -e             # what is there now
  lightq-consumer -t orders --print -o latest      # what comes from now on
  lightq-consumer -t orders --print -m 10
  lightq-consumer -t orders --print -g workers     # a share, with the others of the group`,
	}
	consumeOn(root, "")
	consume := &cobra.Command{
		Use: "consume", Short: "print records (as with --print)",
		Example: "  lightq-consumer consume -t orders -e",
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
	group      string
	profile    cli.Profile
}

func consumeOn(cmd *cobra.Command, verb string) {
	f := &consumerFlags{fs: cmd.Flags(), verb: verb}
	f.clientFlags.add(f.fs, "lightq-consumer")
	cli.Choose(f.fs, &f.kind, "type", "c", "zmq", cli.Choice{Names: []string{"zmq", "socket"}}, "KIND", "zmq or socket: both mean the native protocol")
	cli.Int(f.fs, &f.messages, "messages", "m", 1_000_000, 1, math.MaxInt64, "messages to receive from each partition; with --print unset means all")
	partitionsFlag(f.fs, &f.partitions)
	cli.Text(f.fs, &f.from, "from", "o", "earliest", "WHERE", "where to start: earliest, latest or an offset")
	cli.Bool(f.fs, &f.atEnd, "exit-at-end", "e", "end when everything that is there was received")
	cli.Bool(f.fs, &f.print, "print", "", "print each record's value and a newline on standard output")
	cli.Later(f.fs, "json", "", "", "print each record as a JSON object")
	cli.Later(f.fs, "format", "", "TEXT", "print each record in a form of your own")
	cli.Text(f.fs, &f.group, "group", "g", "", "NAME", "share the records with the others of this group")
	cli.Later(f.fs, "name", "", "NAME", "go on where the subscription of this name was")
	cli.Later(f.fs, "ack", "", "KIND", "who acknowledges records: auto, manual or none")
	f.addLast(f.fs, "")
	f.profile.Flags(f.fs)
	cmd.RunE = func(*cobra.Command, []string) error { return f.run() }
}

func (f *consumerFlags) run() error {
	start, err := parseFrom(f.from)
	if err != nil {
		return err
	}
	reader := f.print || f.verb == "consume"
	switch {
	case f.verb == "bench" && f.print:
		return cli.Usagef("--print prints records, and the verb bench measures: use one of them")
	case reader && cli.IsJSON(f.output):
		return cli.Usagef("--output %s is the form of the measuring receiver's report: with --print standard output is for the records", f.output)
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
	if reader {
		return f.read(ctx, c, start)
	}
	return f.measure(ctx, c, start, len(d.Partitions))
}

// parseFrom reads --from.
func parseFrom(s string) (client.Start, error) {
	switch s {
	case "earliest":
		return client.Earliest(), nil
	case "latest":
		return client.Latest(), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && s[0] != '+' {
		return client.AtOffset(codec.Offset(n)), nil
	}
	if isTime(s) {
		return client.Start{}, cli.NotYet("-o, --from %s (a time) is not in this version: use earliest, latest or an offset", s)
	}
	return client.Start{}, cli.Usagef("-o, --from %q: it must be earliest, latest or an offset (0 or more)", s)
}

// isTime reports whether s means a point in time, as a date, a date and time, or an age.
func isTime(s string) bool {
	for _, layout := range []string{time.RFC3339, time.DateTime, time.DateOnly, time.TimeOnly, "15:04", "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if _, err := time.Parse(layout, s); err == nil {
			return true
		}
	}
	_, err := time.ParseDuration(s)
	return err == nil
}

// attached says on standard error that everything published from now on will be received. Scripts wait for this line.
func (f *consumerFlags) attached(partitions int) {
	where := ", from " + f.from
	if f.group != "" {
		where = ", in group " + f.group + " (a new group starts at " + f.from + ")"
	}
	fmt.Fprintf(os.Stderr, "attached %s: %s%s\n", f.topic, cli.Plural(int64(partitions), "partition"), where)
}

// options are those of every client.Consumer that the program makes.
func (f *consumerFlags) options(start client.Start, more ...client.ConsumerOption) []client.ConsumerOption {
	options := append(more, client.From(start))
	if f.group != "" {
		options = append(options, client.Group(f.group))
	}
	return options
}

// measure receives and prints the report.
func (f *consumerFlags) measure(ctx context.Context, c *client.Client, start client.Start, partitions int) error {
	receiving, end := context.WithCancel(ctx)
	defer end()
	m := loadgen.NewMeasurement(f.topic, f.messages, end,
		func(partition int, id loadgen.RunID, n int64) {
			fmt.Fprintf(os.Stderr, "run %v in partition %d began %s before what is kept, read by others: "+
				"it cannot be complete here, waiting for a whole run\n", id, partition, cli.Plural(n, "message"))
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
	for i, co := range consumers {
		pos := co.Positions()[0]
		receivers[i] = m.Receiver(i, pos.Start, pos.Begin, int64(d.Partitions[i].DroppedUnread))
	}
	f.attached(partitions)

	started := time.Now()
	stopProgress := cli.StartProgress(os.Stderr, func() string {
		n, elapsed := m.Received(), time.Since(started).Seconds()
		return fmt.Sprintf("%3.0fs  received %s (%s/s)", elapsed, cli.Thousands(n), cli.Thousands(int64(float64(n)/elapsed)))
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
		rep.Error = err.Error()
	default:
		if fault := rep.Fault(!f.atEnd); fault != "" {
			err = cli.Failf(cli.ExitCheckFailed, "check failed: %s: %s", f.topic, fault)
			rep.Error = err.Error()
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
		err := r.Run(co.Batches(idle.ctx), func(client.Batch) bool { idle.moved(); return false })
		return idle.through(err)
	default:
		if p := co.Positions()[0]; p.Next >= p.High {
			return nil
		}
		stop = func(b client.Batch) bool { return b.Batch != nil && b.NextOffset() >= b.High }
	}
	return r.Run(co.Batches(ctx), stop)
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
	moves atomic.Int64
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
		if n := i.moves.Load(); n != last {
			last, quiet = n, 0
		}
	}
	i.end(errIdle)
}

// moved notes that something has come.
func (i *idleEnd) moved() { i.moves.Add(1) }

// through is err, or nil where err is the end of the wait.
func (i *idleEnd) through(err error) error {
	if err != nil && errors.Is(context.Cause(i.ctx), errIdle) {
		return nil
	}
	return err
}

func (i *idleEnd) stop() { i.end(nil) }
