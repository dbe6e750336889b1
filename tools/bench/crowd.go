package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/topic"
)

// How the producers of a crowd choose partitions.
const (
	spreadOwn  = "own"  // producer i publishes to partition i modulo their number
	spreadTurn = "turn" // every producer leaves the choice to the client, without keys
	spreadKey  = "key"  // every record has a key of its own, its number, which chooses the partition
)

// A crowd is many clients on one topic: all producers are connections of one process, all consumers of another. Each record
// goes to one consumer, so that any number of clients moves the same bytes for the same messages.
type crowd struct {
	Producers  int    `json:"producers"`
	Consumers  int    `json:"consumers"` // all members of one group, each on every partition
	Partitions int    `json:"partitions"`
	Spread     string `json:"spread"`
	Size       int    `json:"size"`
	Messages   int64  `json:"messages"` // of all producers
	Cold       bool   `json:"cold"`     // the rings are empty when it begins, and the memory of the broker with them
}

func (c crowd) String() string {
	return fmt.Sprintf("%d × %d × %d", c.Producers, c.Partitions, c.Consumers)
}

// fill is how many messages it takes until every ring has dropped some. A record takes at least as many bytes as its payload;
// producers that share the work do not send the same number, so it is a quarter more.
func (c crowd) fill() int64 {
	const aFewBatches = 8 << 20
	return int64(c.Partitions) * (topic.DefaultRingBytes + aFewBatches) / int64(c.Size) * 5 / 4
}

// crowdResult is one measurement of a crowd.
type crowdResult struct {
	crowd
	Published   int64   `json:"published"`
	Seconds     float64 `json:"seconds"` // from the first record received to the last
	MsgsPerSec  float64 `json:"msgs_per_sec"`
	BytesPerSec float64 `json:"bytes_per_sec"`

	Broker   roleFigures `json:"broker"` // CPU without the filling of the rings, where the system tells
	Producer roleFigures `json:"producer"`
	Consumer roleFigures `json:"consumer"`
}

// crowdRole is what the processes of a crowd's producers and consumers print on standard output when they are done.
type crowdRole struct {
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"` // of payload
	Sum      uint64  `json:"sum"`   // of the numbers in the messages, modulo 2^64
	Seconds  float64 `json:"seconds"`
}

// measureCrowd measures a crowd once with a fresh broker. None of the processes is left when it returns.
func measureCrowd(ctx context.Context, p programs, c crowd) (res crowdResult, err error) {
	res.crowd = c
	self, err := os.Executable()
	if err != nil {
		return res, err
	}
	g, broker, addr, end, err := p.startBroker(ctx)
	if err != nil {
		return res, err
	}
	defer func() { err = end(err) }()
	create, err := g.start(command{
		name: programTopic, path: p.path(programTopic),
		args: []string{"-t", crowdTopic, "-n", strconv.Itoa(c.Partitions), "-b", addr},
	})
	if err != nil {
		return res, err
	}
	if err := g.wait(ctx, create); err != nil {
		return res, err
	}
	publisher := func(total int64) (*process, error) {
		return g.start(command{name: "producers", path: self, args: []string{
			roleCrowdProducers, "--to", addr, "--clients", strconv.Itoa(c.Producers), "--spread", c.Spread,
			"--size", strconv.Itoa(c.Size), "--messages", strconv.FormatInt(total, 10),
		}})
	}
	if !c.Cold {
		// Nobody is attached: the rings keep the newest records, and the producers wait for nobody.
		filler, err := publisher(c.fill())
		if err != nil {
			return res, err
		}
		if err := g.wait(ctx, filler); err != nil {
			return res, err
		}
	}
	before := cpuSeconds(broker.cmd.Process.Pid)
	consumers, err := g.start(command{name: "consumers", path: self, ready: parseAttached, args: []string{
		roleCrowdConsumers, "--from", addr, "--clients", strconv.Itoa(c.Consumers),
		"--messages", strconv.FormatInt(c.Messages, 10),
	}})
	if err != nil {
		return res, err
	}
	if _, err := consumers.waitReady(ctx); err != nil {
		return res, err
	}
	producers, err := publisher(c.Messages)
	if err != nil {
		return res, err
	}
	if err := g.wait(ctx, producers, consumers); err != nil {
		return res, err
	}
	if err := g.stop(broker); err != nil {
		return res, err
	}
	var sent, received crowdRole
	for _, r := range []struct {
		p   *process
		res *crowdRole
	}{{producers, &sent}, {consumers, &received}} {
		if err := json.Unmarshal([]byte(r.p.stdout.text()), r.res); err != nil {
			return res, fmt.Errorf("read result of %s: %w", r.p.name, err)
		}
	}
	if sent.Messages != received.Messages || sent.Bytes != received.Bytes || sent.Sum != received.Sum {
		return res, cli.Failf(cli.ExitCheckFailed, "%d messages with %d bytes and sum %x were confirmed, %d with %d and %x received",
			sent.Messages, sent.Bytes, sent.Sum, received.Messages, received.Bytes, received.Sum)
	}
	if received.Seconds <= 0 {
		return res, fmt.Errorf("measure throughput: %d messages of %d B are too few", c.Messages, c.Size)
	}
	res.Published, res.Seconds = sent.Messages, received.Seconds
	res.MsgsPerSec = float64(received.Messages) / received.Seconds
	res.BytesPerSec = float64(received.Bytes) / received.Seconds
	role := func(p *process, before float64) roleFigures {
		u := p.usage()
		return roleFigures{CPUSecondsPerMillion: perMillion(u.CPUSeconds-before, c.Messages), PeakBytes: u.PeakBytes}
	}
	res.Broker, res.Producer, res.Consumer = role(broker, before), role(producers, 0), role(consumers, 0)
	return res, nil
}

// crowdOptions are the flags of the crowd command.
type crowdOptions struct {
	sweepOptions
	crowd crowd
}

func (o *crowdOptions) validate() error {
	c := o.crowd
	switch {
	case c.Producers < 1, c.Consumers < 1, c.Partitions < 1, o.Runs < 1:
		return cli.Usagef("--partitions, --producers, --consumers and --runs must be at least 1")
	case c.Size < crowdHeaderBytes:
		return cli.Usagef("--size must be at least %d: the number of the message", crowdHeaderBytes)
	case c.Messages < 1:
		return cli.Usagef("--messages must be at least 1")
	case c.Spread != spreadOwn && c.Spread != spreadTurn && c.Spread != spreadKey:
		return cli.Usagef("--spread must be %s, %s or %s", spreadOwn, spreadTurn, spreadKey)
	case c.Spread == spreadOwn && c.Producers < c.Partitions:
		return cli.Usagef("with --spread %s, %d producers do not reach %d partitions", spreadOwn, c.Producers, c.Partitions)
	}
	return o.validateCommon()
}

// crowdReport is everything that the crowd command measured.
type crowdReport struct {
	Version int           `json:"version"`
	Program string        `json:"program"`
	Machine machine       `json:"machine"`
	Relay   relaySummary  `json:"relay"`
	Alone   []crowdResult `json:"alone"` // one producer, partition and consumer
	Crowd   []crowdResult `json:"crowd"`
	Error   string        `json:"error,omitempty"` // what ended it early
}

// crowds measures the crowd beside one producer and one consumer on one partition, in turn, and the relays between.
func (b *bench) crowds(ctx context.Context, o crowdOptions, rep *crowdReport) error {
	alone := o.crowd
	alone.Producers, alone.Partitions, alone.Consumers = 1, 1, 1
	timeout := time.Duration(o.Timeout)
	measure := func(c crowd, to *[]crowdResult) error {
		ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
		defer cancel()
		res, err := measureCrowd(ctx, b.programs, c)
		if err != nil {
			return fmt.Errorf("measure %v: %w", c, err)
		}
		*to = append(*to, res)
		b.say("  %-15v %8s MB/s %12s msg/s", c, grouped(res.BytesPerSec/cli.MB), grouped(res.MsgsPerSec))
		return nil
	}
	var samples []relaySample
	defer func() { rep.Relay = summarizeRelay(samples) }()
	for i := range o.Runs {
		b.say("run %d of %d: producers × partitions × consumers", i+1, o.Runs)
		s, err := b.relays(ctx, timeout, o.relay())
		samples = append(samples, s...)
		if err == nil {
			err = measure(alone, &rep.Alone)
		}
		if err == nil {
			err = measure(o.crowd, &rep.Crowd)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (rep *crowdReport) writeJSON(w io.Writer) error { return writeIndented(w, rep) }

func (rep *crowdReport) writeTable(out io.Writer) error {
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "producers × partitions × consumers\tmsg/s\tMB/s\trelay\tratio\tof alone\tCPU prod\tbroker\tcons\tmem prod\tbroker\tcons\t")
	rate := func(r crowdResult) float64 { return r.BytesPerSec }
	best := medianOf(rep.Alone, rate)
	for _, runs := range [][]crowdResult{rep.Alone, rep.Crowd} {
		if len(runs) == 0 {
			continue
		}
		m := medianOf(runs, rate)
		fmt.Fprintf(tw, "%v\t%s\t%s\t%s\t%s\t%s\t", runs[0].crowd,
			grouped(medianOf(runs, func(r crowdResult) float64 { return r.MsgsPerSec })), fixed(m/cli.MB, 1),
			fixed(rep.Relay.BytesPerSec/cli.MB, 1), fixed(ratio(m, rep.Relay.BytesPerSec), 2), fixed(ratio(m, best), 2))
		roles := []func(crowdResult) roleFigures{
			func(r crowdResult) roleFigures { return r.Producer },
			func(r crowdResult) roleFigures { return r.Broker },
			func(r crowdResult) roleFigures { return r.Consumer },
		}
		for _, role := range roles {
			fmt.Fprintf(tw, "%s\t", fixed(medianOf(runs, func(r crowdResult) float64 { return role(r).CPUSecondsPerMillion }), 3))
		}
		for _, role := range roles {
			fmt.Fprintf(tw, "%s\t", fixed(medianOf(runs, func(r crowdResult) float64 { return float64(role(r).PeakBytes) })/cli.MB, 1))
		}
		fmt.Fprintln(tw)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	if len(rep.Crowd) > 0 {
		c := rep.Crowd[0].crowd
		how := map[string]string{
			spreadOwn: "each producer to one partition", spreadTurn: "each producer to the partitions in turn",
			spreadKey: "each record with a key that chooses its partition",
		}[c.Spread]
		from := "behind rings that were filled before"
		if c.Cold {
			from = "into empty rings"
		}
		fmt.Fprintf(&b, "\n%d B, %s, %s; the consumers share the records as one group. Medians of %s, in turn.\n",
			c.Size, how, from, cli.Plural(int64(len(rep.Crowd)), "run"))
	}
	b.WriteString("MB/s (2^20 B) is payload; CPU is seconds for each million messages, mem the peak in MB, of each process.\n")
	b.WriteString(relayLine(rep.Relay))
	fmt.Fprintf(&b, "machine: %v\n", rep.Machine)
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// runCrowds measures, then writes what was measured, also when something ended it early.
func runCrowds(ctx context.Context, o crowdOptions, jsonPath string, stdout, stderr io.Writer) error {
	jsonOut, closeJSON, err := openJSON(jsonPath, stdout)
	if err != nil {
		return err
	}
	b, err := openBench(ctx, o.sweepOptions, stderr)
	if err != nil {
		return errors.Join(err, closeJSON())
	}
	rep := &crowdReport{Version: reportVersion, Program: "lightq-bench", Machine: thisMachine(time.Now())}
	err = b.crowds(ctx, o, rep)
	if err != nil {
		rep.Error = err.Error()
	}
	err = errors.Join(err, b.close())
	if jsonOut != nil {
		err = errors.Join(err, rep.writeJSON(jsonOut))
	}
	err = errors.Join(err, closeJSON())
	if jsonPath != "-" {
		err = errors.Join(err, rep.writeTable(stdout))
	}
	return err
}
