package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
)

// sweepOptions are the sweep's flags.
type sweepOptions struct {
	Sizes          []int    `json:"sizes"`
	Storages       []string `json:"storages"`
	Messages       int64    `json:"messages"` // in each run, over all partitions and producers; 0 for defaultMessages
	Partitions     int      `json:"partitions"`
	Producers      int      `json:"producers"`
	Consumers      int      `json:"consumers"`
	Runs           int      `json:"runs"`
	Rate           int64    `json:"rate"`            // of each producer in latency runs, messages/s
	LatencySeconds int      `json:"latency_seconds"` // 0 for no latency runs
	BrokerArgs     []string `json:"broker_args,omitempty"`
	ProducerArgs   []string `json:"producer_args,omitempty"`
	ConsumerArgs   []string `json:"consumer_args,omitempty"`
	Timeout        duration `json:"timeout"` // of each single measurement
	RelayBytes     int64    `json:"relay_bytes"`
	RelayDuration  duration `json:"relay_duration"`

	binDir, dataDir string
}

func (o sweepOptions) relay() relayOptions {
	return relayOptions{Bytes: o.RelayBytes, Duration: time.Duration(o.RelayDuration)}
}

// defaultMessages makes a run take about five seconds on a machine that moves seven million messages of 100 B a second: there a
// message costs about as much time as 60 B of payload, so that 4 GiB divided by (size + 60) takes the same time at any size.
func defaultMessages(size int) int64 {
	const step = 100_000
	return max(step, 4<<30/int64(size+60)/step*step)
}

// errTimeout is the cause of a measurement that was given up.
var errTimeout = cli.Failf(cli.ExitUnreachable, "timed out (--timeout)")

// bench runs measurements and tells what it does.
type bench struct {
	programs
	progress io.Writer // a line for each step
}

// openBench finds the programs and makes a scratch directory. The caller calls close.
func openBench(ctx context.Context, o sweepOptions, progress io.Writer) (*bench, error) {
	scratch, err := os.MkdirTemp(o.dataDir, "lightq-bench-")
	if err != nil {
		return nil, fmt.Errorf("make scratch directory: %w", err)
	}
	b := &bench{progress: progress, programs: programs{
		scratch: scratch, brokerArgs: o.BrokerArgs, producerArgs: o.ProducerArgs, consumerArgs: o.ConsumerArgs,
	}}
	if b.dir, err = findPrograms(ctx, o.binDir, scratch, progress); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *bench) close() error {
	if err := os.RemoveAll(b.scratch); err != nil {
		return fmt.Errorf("remove scratch directory: %w", err)
	}
	return nil
}

func (b *bench) say(format string, args ...any) { fmt.Fprintf(b.progress, format+"\n", args...) }

// lightq measures one workload within the timeout.
func (b *bench) lightq(ctx context.Context, timeout time.Duration, w workload) (*runResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	return measureLightQ(ctx, b.programs, w)
}

// relays measures the bare relays within the timeout.
func (b *bench) relays(ctx context.Context, timeout time.Duration, o relayOptions) ([]relaySample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	samples, err := measureRelays(ctx, o)
	for _, s := range samples {
		b.say("  relay %-9s %8s MB/s", s.Implementation, grouped(s.BytesPerSec/cli.MB))
	}
	return samples, err
}

// pacedRelay measures the latency of the bare relay within the timeout.
func (b *bench) pacedRelay(ctx context.Context, timeout time.Duration, rate, messages int64) (pacedSample, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	return measurePacedRelay(ctx, rate, messages)
}

// sweep measures every size on every storage. The report holds what was measured also when an error ends it early.
// A storage that is not built yet is noted and passed over.
func (b *bench) sweep(ctx context.Context, o sweepOptions, rep *report) error {
	var all []relaySample
	for _, storage := range o.Storages {
		for _, size := range o.Sizes {
			rep.Rows = append(rep.Rows, row{})
			r := &rep.Rows[len(rep.Rows)-1]
			err := b.measureRow(ctx, o, storage, size, r)
			all = append(all, r.Relay.Samples...)
			rep.Relay = summarizeRelay(all)
			rep.Relay.Samples = nil // each row has its own
			if isNotBuilt(err) {
				r.NotBuilt = true
				b.say("  storage %s is not built yet", storage)
				break
			}
			if err != nil {
				return fmt.Errorf("measure %s topic, %d B: %w", storage, size, err)
			}
		}
	}
	return nil
}

// measureRow fills r with the runs of one size and storage, each behind a run of the relays: for throughput, then for latency.
func (b *bench) measureRow(ctx context.Context, o sweepOptions, storage string, size int, r *row) error {
	w := workload{Size: size, Storage: storage, Partitions: o.Partitions, Producers: o.Producers, Consumers: o.Consumers}
	total := o.Messages
	if total == 0 {
		total = defaultMessages(size)
	}
	streams := int64(o.Partitions * o.Producers)
	w.Messages = (total + streams - 1) / streams
	r.workload = w
	defer r.summarize()
	for i := range o.Runs {
		b.say("%s, %d B, run %d of %d", storage, size, i+1, o.Runs)
		samples, err := b.relays(ctx, time.Duration(o.Timeout), o.relay())
		r.Relay.Samples = append(r.Relay.Samples, samples...)
		if err != nil {
			return err
		}
		if inFiles(storage) {
			sample, err := b.disk(ctx, time.Duration(o.Timeout), o.relay())
			if err != nil {
				return err
			}
			r.DiskSamples = append(r.DiskSamples, sample)
		}
		res, err := b.lightq(ctx, time.Duration(o.Timeout), w)
		if err != nil {
			return err
		}
		b.say("  lightq          %8s MB/s %12s msg/s", grouped(res.MBPerSec), grouped(res.MsgsPerSec))
		r.Runs = append(r.Runs, *res)
	}
	if o.LatencySeconds == 0 || o.Rate == 0 {
		return nil
	}
	w.Rate = o.Rate
	w.Messages = max(1, o.Rate*int64(o.LatencySeconds)/int64(o.Partitions))
	r.Rate = o.Rate
	for i := range o.Runs {
		b.say("%s, %d B, latency run %d of %d", storage, size, i+1, o.Runs)
		sample, err := b.pacedRelay(ctx, time.Duration(o.Timeout), o.Rate, o.Rate*int64(o.LatencySeconds))
		if err != nil {
			return err
		}
		b.sayLatency("relay", sample.Latency)
		r.RelayLatencyRuns = append(r.RelayLatencyRuns, sample)
		res, err := b.lightq(ctx, time.Duration(o.Timeout), w)
		if err != nil {
			return err
		}
		b.sayLatency("lightq", res.Latency)
		r.LatencyRuns = append(r.LatencyRuns, *res)
	}
	return nil
}

func (b *bench) sayLatency(who string, l loadgen.Latency) {
	if l.Count > 0 {
		b.say("  %-15s p50 %s µs, p99 %s µs, p99.9 %s µs", who, grouped(l.P50), grouped(l.P99), grouped(l.P999))
	}
}

// isNotBuilt tells a program's answer "not yet" from a failure.
func isNotBuilt(err error) bool {
	var pe *processError
	return errors.As(err, &pe) && pe.code == int(cli.ExitNotYet)
}

// demo sends messages of 100 B through a transient topic, and then through a durable one, and prints what producer and consumer
// report of it, with the machine's own limits.
func (b *bench) demo(ctx context.Context, o sweepOptions, stdout io.Writer) error {
	return errors.Join(b.demoTransient(ctx, o, stdout), b.demoDurable(ctx, o, stdout))
}

// demoDurable measures the disk just before and after.
func (b *bench) demoDurable(ctx context.Context, o sweepOptions, stdout io.Writer) error {
	var samples []diskSample
	limit := func() error {
		s, err := b.disk(ctx, time.Duration(o.Timeout), o.relay())
		samples = append(samples, s)
		return err
	}
	w, res, err := b.demoRun(ctx, o, "file", "durable topic, each confirmed when it is on stable storage", limit)
	if err != nil {
		return err
	}
	return concludeDemo(res, writeDemo(stdout, ", durable", res, besideDisk(w, res, diskFigures(samples))))
}

// demoTransient measures the relay just before and after.
func (b *bench) demoTransient(ctx context.Context, o sweepOptions, stdout io.Writer) error {
	var samples []relaySample
	limit := func() error {
		s, err := b.relays(ctx, time.Duration(o.Timeout), o.relay())
		samples = append(samples, s...)
		return err
	}
	w, res, err := b.demoRun(ctx, o, "queue", "transient topic: broker, producer, consumer", limit)
	if err != nil {
		return err
	}
	return concludeDemo(res, writeDemo(stdout, "", res, besideRelay(w, res, summarizeRelay(samples))))
}

// demoRun measures the demo's messages through a topic, and the limit before and after.
func (b *bench) demoRun(ctx context.Context, o sweepOptions, storage, what string, limit func() error) (workload, *runResult, error) {
	w := workload{Size: 100, Storage: storage, Partitions: 1, Producers: 1, Consumers: 1, Messages: o.Messages}
	b.say("%s messages of %d B through a %s …", grouped(float64(w.Messages)), w.Size, what)
	if err := limit(); err != nil {
		return w, nil, err
	}
	res, err := b.lightq(ctx, time.Duration(o.Timeout), w)
	if err != nil {
		return w, nil, err
	}
	return w, res, limit()
}

// concludeDemo is the demo's verdict, once its figures were written.
func concludeDemo(res *runResult, err error) error {
	if err == nil && len(res.Problems) > 0 {
		err = errCounts
	}
	return err
}
