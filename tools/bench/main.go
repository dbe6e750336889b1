package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lightio/lightq/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newCommand(stdout, stderr), args, stdout, stderr)
}

// conclude makes of err what ends the program: its whole text, with the exit code of what is inside it.
func conclude(err error) error {
	if err == nil {
		return nil
	}
	return &cli.Error{Exit: cli.ExitOf(err), Text: err.Error(), Err: err}
}

// interruptible returns a context that ends when the user or the system wants this program to end. SIGPIPE is among the
// signals so that a closed standard output (| head) is an error like others instead of a death without cleanup. A second
// signal changes nothing: cleaning up takes seconds at most.
func interruptible(parent context.Context) (context.Context, func()) {
	return cli.Stoppable(parent, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
}

func newCommand(stdout, stderr io.Writer) *cobra.Command {
	var (
		o        sweepOptions
		jsonPath string
	)
	root := &cobra.Command{
		Use:   "lightq-bench",
		Short: "Measure LightQ beside the machine's own limit",
		Long: "lightq-bench starts broker, producer and consumer as processes of their own on free loopback ports and measures\n" +
			"throughput, CPU, memory and latency, each size on each storage. The limit it compares with is a bare relay of three\n" +
			"processes that moves bytes and knows nothing of messages, measured between the runs; for topics in files it is the disk.",
		Example: "  lightq-bench demo\n  lightq-bench --sizes 100,1024 --runs 5 --json report.json\n" +
			"  lightq-bench --sizes 100 --broker-arg=--profile=cpu --broker-arg=--profile-dir=profiles",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return conclude(runSweep(ctx, o, jsonPath, stdout, stderr))
		},
	}
	f := root.Flags()
	f.SortFlags = false
	f.IntSliceVar(&o.Sizes, "sizes", []int{100, 256, 512, 1024}, "payload sizes in bytes")
	f.StringSliceVar(&o.Storages, "storage", []string{"queue"}, "storages: queue, direct, file, queue_file")
	f.Int64Var(&o.Messages, "messages", 0,
		"messages of a run, over all partitions and producers (default: about five seconds' worth)")
	f.IntVar(&o.Partitions, "partitions", 1, "partitions of each topic")
	f.IntVar(&o.Producers, "producers", 1,
		"producer processes, each with a topic of its own (a measuring consumer counts one producer)")
	f.IntVar(&o.Consumers, "consumers", 1, "consumer processes for each topic, each of which receives everything")
	f.IntVar(&o.Runs, "runs", 3, "runs of each measurement; medians are reported")
	f.Int64Var(&o.Rate, "rate", 10_000, "messages/s of each producer when latency is measured")
	f.IntVar(&o.LatencySeconds, "latency-seconds", 5, "length of a latency run, 0 for none")
	f.StringVar(&jsonPath, "json", "", "also write everything as JSON to this file, or only that to standard output with -")
	addProgramFlags(f, &o)
	addRelayFlags(f, &o)
	addTimeoutFlag(f, &o)
	root.AddCommand(newDemoCommand(stdout, stderr), newRelayCommand(stdout, stderr), newCrowdCommand(stdout, stderr))
	root.AddCommand(newRoleCommands(stdout, stderr)...)
	root.AddCommand(newCrowdRoleCommands(stdout, stderr)...)
	return root
}

func addProgramFlags(f *pflag.FlagSet, o *sweepOptions) {
	f.StringVar(&o.binDir, "bin", "", "directory of the four programs (default: this program's own, or built inside a checkout)")
	f.StringVar(&o.dataDir, "data-dir", "", "where brokers' temporary data directories are made (default: the system's place)")
	f.StringArrayVar(&o.BrokerArgs, "broker-arg", nil, "a further argument for lightq-broker; may be repeated")
	f.StringArrayVar(&o.ProducerArgs, "producer-arg", nil, "a further argument for lightq-producer; may be repeated")
	f.StringArrayVar(&o.ConsumerArgs, "consumer-arg", nil, "a further argument for lightq-consumer; may be repeated")
}

func addRelayFlags(f *pflag.FlagSet, o *sweepOptions) {
	f.Int64Var(&o.RelayBytes, "relay-bytes", 4<<30, "bytes of one relay measurement at most")
	f.DurationVar((*time.Duration)(&o.RelayDuration), "relay-duration", 3*time.Second, "time of one relay measurement at most")
}

func addTimeoutFlag(f *pflag.FlagSet, o *sweepOptions) {
	f.DurationVar((*time.Duration)(&o.Timeout), "timeout", 2*time.Minute, "give up a single measurement after this time")
}

// validate checks the flags of the sweep.
func (o *sweepOptions) validate() error {
	switch {
	case len(o.Sizes) == 0:
		return cli.Usagef("--sizes names no size")
	case len(o.Storages) == 0:
		return cli.Usagef("--storage names no storage")
	case o.Messages < 0:
		return cli.Usagef("--messages must not be negative")
	case o.Partitions < 1, o.Producers < 1, o.Consumers < 1, o.Runs < 1:
		return cli.Usagef("--partitions, --producers, --consumers and --runs must be at least 1")
	case o.Rate < 0, o.LatencySeconds < 0:
		return cli.Usagef("--rate and --latency-seconds must not be negative")
	}
	for _, size := range o.Sizes {
		if size < 1 {
			return cli.Usagef("--sizes: %d is not a size", size)
		}
	}
	return o.validateCommon()
}

// validateCommon checks the flags that all commands share.
func (o *sweepOptions) validateCommon() error {
	switch {
	case o.Timeout <= 0:
		return cli.Usagef("--timeout must be positive")
	case o.RelayBytes < 1, o.RelayDuration <= 0:
		return cli.Usagef("--relay-bytes and --relay-duration must be positive")
	}
	return nil
}

// runSweep measures, then writes what was measured, also when something ended it early.
func runSweep(ctx context.Context, o sweepOptions, jsonPath string, stdout, stderr io.Writer) (err error) {
	jsonOut, closeJSON, err := openJSON(jsonPath, stdout)
	if err != nil {
		return err
	}
	b, err := openBench(ctx, o, stderr)
	if err != nil {
		return errors.Join(err, closeJSON())
	}
	rep := &report{Version: reportVersion, Program: "lightq-bench", Machine: thisMachine(time.Now()), Settings: o}
	sweepErr := b.sweep(ctx, o, rep)
	if sweepErr != nil {
		rep.Error = sweepErr.Error()
	}
	closeErr := b.close()
	var writeErr error
	if jsonOut != nil {
		writeErr = rep.writeJSON(jsonOut)
	}
	writeErr = errors.Join(writeErr, closeJSON())
	if jsonPath != "-" {
		writeErr = errors.Join(writeErr, rep.writeTable(stdout))
	}
	if err := errors.Join(sweepErr, closeErr, writeErr); err != nil {
		return err
	}
	return rep.verdict()
}

// openJSON opens where --json points, before anything is measured, so that a bad path costs no measurement. The writer is nil
// when there is none.
func openJSON(path string, stdout io.Writer) (io.Writer, func() error, error) {
	switch path {
	case "":
		return nil, func() error { return nil }, nil
	case "-":
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, nil, cli.Usagef("--json: %v", err)
	}
	return f, f.Close, nil
}

func newDemoCommand(stdout, stderr io.Writer) *cobra.Command {
	var o sweepOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Ten million messages from a producer through the broker to a consumer, in memory and on disk, with their figures",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.validateCommon()
			if err == nil && o.Messages < 1 {
				err = cli.Usagef("--messages must be at least 1")
			}
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			b, err := openBench(ctx, o, stderr)
			if err != nil {
				return conclude(err)
			}
			return conclude(errors.Join(b.demo(ctx, o, stdout), b.close()))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Int64VarP(&o.Messages, "messages", "m", 10_000_000, "messages to send")
	addProgramFlags(f, &o)
	f.Int64Var(&o.RelayBytes, "relay-bytes", 2<<30, "bytes of one relay measurement at most")
	f.DurationVar((*time.Duration)(&o.RelayDuration), "relay-duration", 1500*time.Millisecond,
		"time of one relay measurement at most")
	addTimeoutFlag(f, &o)
	return cmd
}

func newRelayCommand(stdout, stderr io.Writer) *cobra.Command {
	var (
		o        sweepOptions
		jsonPath string
	)
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "The machine's limit alone: bytes through a relay of three processes",
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.validateCommon()
			if err == nil && o.Runs < 1 {
				err = cli.Usagef("--runs must be at least 1")
			}
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return conclude(runRelayCommand(ctx, o, jsonPath, stdout, stderr))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.Runs, "runs", 3, "runs of each implementation; medians are reported")
	addRelayFlags(f, &o)
	addTimeoutFlag(f, &o)
	f.StringVar(&jsonPath, "json", "", "also write everything as JSON to this file, or only that to standard output with -")
	return cmd
}

func runRelayCommand(ctx context.Context, o sweepOptions, jsonPath string, stdout, stderr io.Writer) error {
	jsonOut, closeJSON, err := openJSON(jsonPath, stdout)
	if err != nil {
		return err
	}
	b := &bench{progress: stderr}
	var samples []relaySample
	var measureErr error
	for i := 0; i < o.Runs && measureErr == nil; i++ {
		b.say("run %d of %d", i+1, o.Runs)
		var s []relaySample
		s, measureErr = b.relays(ctx, time.Duration(o.Timeout), o.relay())
		samples = append(samples, s...)
	}
	rep := &relayReport{
		Version: reportVersion, Program: "lightq-bench", Machine: thisMachine(time.Now()), Relay: summarizeRelay(samples),
	}
	var writeErr error
	if jsonOut != nil {
		writeErr = rep.writeJSON(jsonOut)
	}
	writeErr = errors.Join(writeErr, closeJSON())
	if jsonPath != "-" {
		writeErr = errors.Join(writeErr, rep.writeTable(stdout))
	}
	return errors.Join(measureErr, writeErr)
}

func newCrowdCommand(stdout, stderr io.Writer) *cobra.Command {
	var (
		o        crowdOptions
		jsonPath string
	)
	cmd := &cobra.Command{
		Use:   "crowd",
		Short: "Many producers and consumers on one topic, beside one of each on one partition",
		Long: "Many producers, all in one process, publish to one topic; many consumers, all in another, share its records as one\n" +
			"group. In turn with it runs the same with one producer, one partition and one consumer. Before each measurement the\n" +
			"rings are filled once: fresh memory, which the system gives and clears page by page, is not what is measured.",
		Example: "  lightq-bench crowd\n  lightq-bench crowd --partitions 64 --producers 1 --consumers 1 --spread turn",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return conclude(runCrowds(ctx, o, jsonPath, stdout, stderr))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.crowd.Partitions, "partitions", 16, "partitions of the topic")
	f.IntVar(&o.crowd.Producers, "producers", 64, "producers, each with a connection of its own")
	f.IntVar(&o.crowd.Consumers, "consumers", 64, "consumers, each with a connection of its own, on all partitions")
	f.StringVar(&o.crowd.Spread, "spread", spreadOwn,
		"where a producer publishes to: own, one partition (producer i to i modulo their number); turn, as the client chooses; "+
			"or key, by a key of 8 B that each record has")
	f.IntVar(&o.crowd.Size, "size", 100, "payload size in bytes")
	f.Int64Var(&o.crowd.Messages, "messages", 20_000_000, "messages of a measurement, over all producers")
	f.BoolVar(&o.crowd.Cold, "cold", false, "begin with empty rings, so that fresh memory is measured too")
	f.IntVar(&o.Runs, "runs", 3, "runs of each measurement; medians are reported")
	f.StringVar(&jsonPath, "json", "", "also write everything as JSON to this file, or only that to standard output with -")
	f.StringVar(&o.binDir, "bin", "", "directory of the broker and lightq-topic (default: this program's own, or built inside a checkout)")
	f.StringVar(&o.dataDir, "data-dir", "", "where brokers' temporary data directories are made (default: the system's place)")
	f.StringArrayVar(&o.BrokerArgs, "broker-arg", nil, "a further argument for lightq-broker; may be repeated")
	addRelayFlags(f, &o.sweepOptions)
	addTimeoutFlag(f, &o.sweepOptions)
	return cmd
}

// newCrowdRoleCommands are the two processes of a crowd.
func newCrowdRoleCommands(stdout, stderr io.Writer) []*cobra.Command {
	var (
		addr, spread  string
		clients, size int
		messages      int64
	)
	finish := func(res crowdRole, err error) error {
		if err != nil {
			return conclude(err)
		}
		cli.WriteJSON(stdout, res)
		return nil
	}
	producers := &cobra.Command{
		Use: roleCrowdProducers, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return finish(runCrowdProducers(cmd.Context(), addr, clients, size, messages, spread))
		},
	}
	producers.Flags().StringVar(&addr, "to", "", "address of the broker")
	producers.Flags().IntVar(&clients, "clients", 1, "number of producers")
	producers.Flags().IntVar(&size, "size", 0, "payload size in bytes")
	producers.Flags().Int64Var(&messages, "messages", 0, "messages of all together")
	producers.Flags().StringVar(&spread, "spread", spreadOwn, "own or turn")
	consumers := &cobra.Command{
		Use: roleCrowdConsumers, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return finish(runCrowdConsumers(cmd.Context(), addr, clients, messages, func() { fmt.Fprintln(stderr, "attached") }))
		},
	}
	consumers.Flags().StringVar(&addr, "from", "", "address of the broker")
	consumers.Flags().IntVar(&clients, "clients", 1, "number of consumers")
	consumers.Flags().Int64Var(&messages, "messages", 0, "messages of all together")
	return []*cobra.Command{producers, consumers}
}

// newRoleCommands are the relay's three processes. They print their result on standard output when they are done, those that
// listen tell their address on standard error first.
func newRoleCommands(stdout, stderr io.Writer) []*cobra.Command {
	var (
		to, implementation    string
		limit, rate, messages int64
		span                  time.Duration
		check, paced          bool
	)
	listening := func(addr string) { fmt.Fprintln(stderr, relayReady+addr) }
	finish := func(res roleResult, err error) error {
		if err != nil {
			return conclude(err)
		}
		cli.WriteJSON(stdout, res)
		return nil
	}
	sender := &cobra.Command{
		Use: roleSender, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rate > 0 {
				return finish(runPacedSender(cmd.Context(), to, rate, messages))
			}
			return finish(runSender(to, limit, span))
		},
	}
	sender.Flags().StringVar(&to, "to", "", "address of the relay")
	sender.Flags().Int64Var(&limit, "bytes", 0, "bytes at most")
	sender.Flags().DurationVar(&span, "for", 0, "time at most")
	sender.Flags().Int64Var(&rate, "rate", 0, "in place of these, messages/s")
	sender.Flags().Int64Var(&messages, "messages", 0, "their number")
	relay := &cobra.Command{
		Use: roleRelay, Hidden: true,
		RunE: func(*cobra.Command, []string) error { return finish(runRelay(to, implementation, listening)) },
	}
	relay.Flags().StringVar(&to, "to", "", "address of the receiver")
	relay.Flags().StringVar(&implementation, "implementation", relayBlocking, "blocking or gnet")
	receiver := &cobra.Command{
		Use: roleReceiver, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			if paced {
				return finish(runPacedReceiver(listening))
			}
			return finish(runReceiver(check, listening))
		},
	}
	receiver.Flags().BoolVar(&check, "check", false, "compare every byte")
	receiver.Flags().BoolVar(&paced, "paced", false, "expect paced messages and measure their latency")
	return []*cobra.Command{sender, relay, receiver}
}
