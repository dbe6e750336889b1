package program

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/topic"
	"github.com/spf13/pflag"
)

// clientFlags are those that every client program has.
type clientFlags struct {
	program string
	topic   string // empty: the command is about none
	server  string
	output  string
	level   slog.Level

	status     *statusLine // of programs that show their progress; nil: of others
	noProgress bool
}

func (f *clientFlags) add(fs *pflag.FlagSet, program string) {
	cli.Text(fs, &f.topic, "topic", "t", "test", "NAME", "the topic")
	f.addServer(fs, program)
	cli.Complete(fs, "topic", f.topicNames)
}

// completionTimeout is how long somebody who presses a key waits for a broker that does not answer.
const completionTimeout = 500 * time.Millisecond

// topicNames are those of the broker, for completion; none where it does not answer.
func (f *clientFlags) topicNames() (names []string) {
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	c, err := client.Dial(ctx, f.server, client.WithName(clientName(f.program+" completion")))
	if err != nil {
		return nil
	}
	defer hangUp(c)
	topics, err := c.List(ctx)
	if err != nil {
		return nil
	}
	for _, t := range topics {
		names = append(names, t.Name)
	}
	return names
}

func (f *clientFlags) addServer(fs *pflag.FlagSet, program string) {
	f.program = program
	cli.Server(fs, &f.server)
}

// addLast adds the flags that stand last in the help. plain says what the plain form of output is, empty: there is none.
func (f *clientFlags) addLast(fs *pflag.FlagSet, plain string) {
	cli.Output(fs, &f.output, plain)
	cli.Later(fs, "user", "u", "NAME", "user of the topic")
	cli.Later(fs, "password", "p", "TEXT", "password of the topic's user")
	cli.Later(fs, "password-file", "", "FILE", "file that holds the password of the topic's user")
	cli.LogLevel(fs, &f.level)
}

// connect checks the topic's name, so that nothing is done with a wrong one, and dials the broker.
func (f *clientFlags) connect(ctx context.Context) (*client.Client, error) {
	if f.topic != "" {
		if err := topic.CheckName(f.topic); err != nil {
			return nil, f.explain(err)
		}
	}
	c, err := client.Dial(ctx, f.server,
		client.WithName(clientName(f.program)), client.WithLogger(cli.NewLogger(f.stderr(), f.level)),
		client.WithoutReconnect()) // a program ends with its broker, and says what was done until then
	if err != nil {
		if ctx.Err() != nil {
			return nil, cli.ErrInterrupted
		}
		return nil, f.explain(err)
	}
	return c, nil
}

// withClient runs a command that asks the broker something, until it is through or interrupted, and explains its error.
func (f *clientFlags) withClient(run func(context.Context, *client.Client) error) error {
	ctx, stop := cli.Interruptible(context.Background())
	defer stop()
	c, err := f.connect(ctx)
	if err != nil {
		return err
	}
	defer hangUp(c)
	if err := run(ctx, c); err != nil {
		if ctx.Err() != nil {
			return cli.ErrInterrupted
		}
		return f.explainAsking(ctx, c, err)
	}
	return nil
}

// explainAsking explains an error. Of a topic that is unknown it asks the broker for one whose name is nearly the same.
func (f *clientFlags) explainAsking(ctx context.Context, c *client.Client, err error) error {
	explained := f.explain(err)
	var e *cli.Error
	if !errors.Is(err, codec.CodeUnknownTopic) || !errors.As(explained, &e) {
		return explained
	}
	ctx, cancel := context.WithTimeout(ctx, lastWords)
	defer cancel()
	topics, err := c.List(ctx)
	if err != nil {
		return explained // without
	}
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	if near := cli.Nearest(f.topic, names); near != "" {
		e.Fix = "did you mean " + near + "? If not, " + cli.CreateCommand(f.server, f.topic)
	}
	return explained
}

// hangUp closes a client. Nothing that it could say matters by then: producers, whose close waits for confirms, are closed
// where their errors are looked at.
func hangUp(c *client.Client) { _ = c.Close() }

func (f *clientFlags) explain(err error) error { return cli.Explain(err, f.server, f.topic) }

// describe asks about the topic and checks it against -n, which is 0 where it is not given.
func (f *clientFlags) describe(ctx context.Context, c *client.Client, partitions int64) (client.Description, error) {
	d, err := c.Describe(ctx, f.topic)
	if err != nil {
		if ctx.Err() != nil {
			return d, cli.ErrInterrupted
		}
		return d, f.explainAsking(ctx, c, err)
	}
	if have := int64(len(d.Partitions)); partitions != 0 && partitions != have {
		return d, &cli.Error{
			Exit: cli.ExitUsage,
			Text: "-n " + cli.Thousands(partitions) + " differs from topic " + f.topic + ", which has " + cli.Plural(have, "partition"),
			Fix:  "leave -n out",
		}
	}
	return d, nil
}

// partitionsFlag adds -n of the programs that use a topic which exists.
func partitionsFlag(fs *pflag.FlagSet, p *int64) {
	cli.Int(fs, p, "partitions", "n", 0, 1, maxPartitions, "partitions; unset: as many as the topic has, else it must be that number")
}

// maxPartitions is more than any broker allows a topic; the broker has the last word.
const maxPartitions = 1 << 20

// droppedUnread sums over the partitions what was dropped before anybody had read it.
func droppedUnread(d client.Description) (n int64) {
	for _, p := range d.Partitions {
		n += int64(p.DroppedUnread)
	}
	return n
}

// lastWords bounds what is still asked of the broker, or told it, after an interrupt or a failure.
const lastWords = 2 * time.Second

// afterwards returns a context for that: it ends so long after ctx has, and goes on where nothing is interrupted.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	ending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	return ending, func() {
		stop()
		cancel()
	}
}

// inMemory reports whether a topic's records are nowhere but in the broker's rings.
func inMemory(s codec.Storage) bool { return s == codec.StorageQueue || s == codec.StorageDirect }
