// Command lightq-crash kills a broker with SIGKILL at random points while producers publish to topics in files and consumers read
// them, starts it again on the same data directory, and checks that nothing it had promised is gone:
//
//   - every confirmed message is there, at the offset it was confirmed with;
//   - no message is there twice: producers are idempotent, and go on over every death of the broker;
//   - each producer's messages are in the order in which it published them;
//   - what a consumer has seen at an offset stays there, and nobody is ever shown anything else;
//   - no message is there that nobody published, and each is whole;
//   - where offsets jump, the consumer is told.
//
// The page cache survives the death of a process, so a missing fsync is not found like this: that takes the journal's tests on a
// file system in memory, and the trace of system calls in cmd.
//
//	main.go      the command and its flags
//	run.go       the rounds: start, load, kill, check
//	load.go      producers and consumers
//	ledger.go    what was sent, confirmed and seen, and what is wrong
//	process.go   the broker's process
package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/lightio/lightq/internal/cli"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run executes one command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	return cli.Run(newCommand(stdout), args, stdout, stderr)
}

// options are what the flags say.
type options struct {
	time      time.Duration
	rounds    int
	life      time.Duration
	producers int
	size      int
	segment   int
	seed      uint64
	dataDir   string
	broker    string
	signal    string
}

func newCommand(stdout io.Writer) *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:   "lightq-crash",
		Short: "Kill a broker again and again, and check that nothing confirmed is lost",
		Long: "lightq-crash starts lightq-broker on a data directory, publishes to topics in files with idempotent producers, kills the broker\n" +
			"with SIGKILL at random points, some of them while it starts, starts it again and reads everything back. It ends after --time or\n" +
			"--rounds, whichever comes first, with an orderly stop and a last full look. Exit 0: all is there. Exit 6: something is wrong, and\n" +
			"standard output says what; the data directory is then kept.",
		Example: "  lightq-crash --time 5m\n  lightq-crash --rounds 20 --seed 7 --broker bin/lightq-broker",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.time <= 0 || o.rounds < 0 || o.life <= 0 || o.producers < 1 || o.size < leastSize || o.size > 256<<10 || o.segment < 64<<10 {
				return cli.Usagef("--time and --life must be above 0, --rounds 0 or more, --producers at least 1, --size from %d to 262144, "+
					"--segment-bytes at least 65536", leastSize)
			}

			if _, ok := endings[o.signal]; !ok {
				return cli.Usagef("--signal %q: it must be kill, term, int or quit", o.signal)
			}
			if !cmd.Flags().Changed("seed") {
				o.seed = rand.Uint64()
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			return crash(ctx, o, stdout)
		},
	}
	f := root.Flags()
	f.DurationVar(&o.time, "time", time.Minute, "stop killing after this long")
	f.IntVar(&o.rounds, "rounds", 0, "stop after so many kills; 0: when the time is over")
	f.DurationVar(&o.life, "life", time.Second, "the broker is killed at a random moment of this time after it is ready")
	f.IntVar(&o.producers, "producers", 4, "producers of each topic")
	f.IntVar(&o.size, "size", 2000, "largest message in bytes; sizes are random")
	f.IntVar(&o.segment, "segment-bytes", 256<<10, "size of a segment file: small ones roll often")
	f.Uint64Var(&o.seed, "seed", 0, "seed of what is random (default: a new one, which is printed)")
	f.StringVar(&o.dataDir, "data-dir", "", "data directory, kept afterwards (default: a temporary one, removed if all is well)")
	f.StringVar(&o.broker, "broker", "", "the broker's program (default: lightq-broker beside this one, else built inside a checkout)")
	f.StringVar(&o.signal, "signal", "kill", "what ends the broker once it is ready: kill, term, int or quit")
	return root
}

// interruptible returns a context that ends when the user or the system wants this program to end, so that the broker it has
// started ends too.
func interruptible(parent context.Context) (context.Context, func()) {
	return cli.Stoppable(parent, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// endings are the signals that end a broker, and with which exit code it has to end; -1: by the signal.
var endings = map[string]struct {
	signal syscall.Signal
	code   int
}{
	"kill": {syscall.SIGKILL, -1}, "term": {syscall.SIGTERM, 0}, "int": {syscall.SIGINT, 0}, "quit": {syscall.SIGQUIT, 2},
}

// crash does what the command line asks for.
func crash(ctx context.Context, o options, stdout io.Writer) error {
	scratch, err := os.MkdirTemp("", "lightq-crash-")
	if err != nil {
		return cli.Failf(cli.ExitFailure, "make a temporary directory: %v", err)
	}
	dir := o.dataDir
	if dir == "" {
		dir = filepath.Join(scratch, "data")
	}
	program, err := findBroker(ctx, o.broker, scratch)
	if err != nil {
		_ = os.RemoveAll(scratch)
		return err
	}
	fmt.Fprintf(stdout, "seed %d, data directory %s\n", o.seed, dir)
	r := newRunner(o, stdout)
	r.broker = &broker{program: program, dataDir: dir, socket: filepath.Join(scratch, "sock"), log: filepath.Join(scratch, "broker.log")}
	err = r.run(ctx)
	if findings := r.ledger.findings(); len(findings) > 0 {
		for _, f := range findings {
			fmt.Fprintln(stdout, f)
		}
		fmt.Fprintf(stdout, "data directory and the broker's log are kept: %s %s\n", dir, r.broker.log)
		return cli.Failf(cli.ExitCheckFailed, "%d faults after %d rounds, seed %d; the first: %s", r.ledger.faults(), r.rounds, o.seed, findings[0])
	}
	if err != nil {
		fmt.Fprintf(stdout, "data directory and the broker's log are kept: %s %s\n", dir, r.broker.log)
		return &cli.Error{Exit: cli.ExitOf(err), Text: err.Error(), Err: err}
	}
	fmt.Fprintf(stdout, "ok: %d rounds, %d of them killed while starting; %s\n", r.rounds, r.early, r.ledger.summary())
	if err := os.RemoveAll(scratch); err != nil {
		return cli.Failf(cli.ExitFailure, "remove the temporary directory: %v", err)
	}
	return nil
}
