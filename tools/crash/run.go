package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// patience is how long anything may take that should take moments: then it counts as stuck.
const patience = 2 * time.Minute

// lookBack is how many of the newest records a round reads again, beside those that came since; the end reads all.
const lookBack = 5000

// everything is what lookBack is for a look from the first record.
const everything = codec.Offset(math.MaxInt64)

// A runner does the rounds.
type runner struct {
	opts   options
	out    io.Writer
	rng    *rand.Rand
	topics []topicPlan
	ledger *ledger
	broker *broker
	load   *load

	rounds int // kills
	early  int // of these, while the broker started
}

func newRunner(o options, out io.Writer) *runner {
	rng := rand.New(rand.NewPCG(o.seed, 0))
	run := rng.Uint64()
	topics := plans(run, o.segment)
	return &runner{opts: o, out: out, rng: rng, topics: topics, ledger: newLedger(run, topics, o.producers)}
}

// run does it all. Findings are in the ledger; the error says why it could not go on.
func (r *runner) run(ctx context.Context) error {
	defer r.broker.close()
	until := time.Now().Add(r.opts.time)
	if err := r.begin(ctx); err != nil {
		return err
	}
	err := r.kills(ctx, until)
	if err == nil {
		err = r.end(ctx)
	}
	return errors.Join(err, r.load.close())
}

// begin starts the first broker, makes the topics and starts the load.
func (r *runner) begin(parent context.Context) error {
	if err := r.broker.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	if err := r.broker.waitReady(ctx); err != nil {
		return err
	}
	c, err := client.Dial(ctx, r.broker.addr())
	if err != nil {
		return err
	}
	for _, t := range r.topics {
		if _, err := c.CreateTopic(ctx, t.name, t.settings); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	if err := c.Close(); err != nil {
		return err
	}
	r.load, err = startLoad(parent, r.broker.addr(), r.topics, r.ledger, r.opts, r.rng)
	if err != nil && r.load != nil {
		return errors.Join(err, r.load.close())
	}
	return err
}

// kills ends the broker, and looks what is there, until the time is over or something is wrong.
func (r *runner) kills(ctx context.Context, until time.Time) error {
	for time.Now().Before(until) && (r.opts.rounds == 0 || r.rounds < r.opts.rounds) {
		if !pause(ctx, time.Duration(r.rng.Int64N(int64(r.opts.life)))) {
			return context.Cause(ctx)
		}
		how := endings[r.opts.signal]
		if err := r.stop(ctx, how.signal, how.code); err != nil {
			return err
		}
		r.rounds++
		if err := r.broker.start(); err != nil {
			return err
		}
		if r.rng.IntN(3) == 0 { // again, while it starts
			if !pause(ctx, time.Duration(r.rng.Int64N(int64(300*time.Millisecond)))) {
				return context.Cause(ctx)
			}
			if err := r.stop(ctx, syscall.SIGKILL, -1); err != nil {
				return err
			}
			r.rounds++
			r.early++
			if err := r.broker.start(); err != nil {
				return err
			}
		}
		if err := r.check(ctx, lookBack); err != nil {
			return err
		}
		if r.ledger.faults() > 0 {
			return nil
		}
	}
	return nil
}

// check waits until the broker is ready, and looks at each partition: at the newest back records of those that were confirmed,
// and at what came behind.
func (r *runner) check(parent context.Context, back codec.Offset) error {
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	ends := make([]codec.Offset, len(r.ledger.parts))
	for i, p := range r.ledger.parts { // before the broker answers: what a dead one has confirmed
		ends[i] = p.confirmedEnd()
	}
	if err := r.broker.waitReady(ctx); err != nil {
		return err
	}
	c, err := client.Dial(ctx, r.broker.addr(), client.WithoutReconnect())
	if err != nil {
		return fmt.Errorf("after round %d: %w", r.rounds, err)
	}
	err = r.look(ctx, c, ends, back)
	if cause := r.load.failure(); cause != nil {
		err = errors.Join(err, cause)
	}
	if err != nil {
		err = fmt.Errorf("after round %d: %w", r.rounds, err)
	}
	return errors.Join(err, c.Close())
}

func (r *runner) look(ctx context.Context, c *client.Client, ends []codec.Offset, back codec.Offset) error {
	for _, t := range r.topics {
		d, err := c.Describe(ctx, t.name)
		if err != nil {
			if errors.Is(err, codec.CodeUnknownTopic) {
				r.ledger.finding("lost: topic %s", t.name)
				return nil
			}
			return err
		}
		parts := r.ledger.of(t.name)
		if len(d.Partitions) != len(parts) || d.Settings.Storage != t.settings.Storage || d.Settings.Sync != t.settings.Sync {
			r.ledger.finding("topic %s has %d partitions and the settings %+v", t.name, len(d.Partitions), d.Settings)
			return nil
		}
		for i, p := range parts {
			info := d.Partitions[i]
			if info.State != codec.PartitionOK || info.Damaged > 0 || info.Start != 0 {
				p.fault("its state is %s, it begins at %d, %d places are damaged", info.State, info.Start, info.Damaged)
			}
			if end := ends[p.index]; info.High < end {
				p.fault("lost: it ends at offset %d, and what stood before %d was confirmed", info.High, end)
				continue
			}
			if err := look(ctx, c, p, max(0, ends[p.index]-back), info.High); err != nil {
				return err
			}
		}
	}
	return nil
}

// end waits for the last outcomes, reads everything, stops the broker in order, and reads everything once more.
func (r *runner) end(parent context.Context) error {
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		r.load.finish()
	}()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-finished:
	case <-parent.Done():
		return context.Cause(parent)
	case <-timeout.C:
		open := 0
		for _, p := range r.ledger.parts {
			open += p.open()
		}
		return fmt.Errorf("%d messages have no outcome after %v with a broker that runs", open, patience)
	}
	if err := r.check(parent, everything); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	for _, p := range r.ledger.parts {
		p.complete()
		for end := p.confirmedEnd(); p.standing() < end; {
			if !pause(ctx, 5*time.Millisecond) {
				return fmt.Errorf("the consumer that was there all the time stands at offset %d of %d in %s partition %d", p.standing(), end, p.topic, p.partition)
			}
		}
	}
	if err := r.stop(parent, syscall.SIGTERM, 0); err != nil {
		return err
	}
	if err := r.broker.start(); err != nil {
		return err
	}
	if err := r.check(parent, everything); err != nil {
		return err
	}
	return r.stop(parent, syscall.SIGTERM, 0)
}

// stop ends the broker by a signal, in less than patience.
func (r *runner) stop(parent context.Context, sig syscall.Signal, code int) error {
	ctx, cancel := context.WithTimeout(parent, patience)
	defer cancel()
	return r.broker.end(ctx, sig, code)
}
