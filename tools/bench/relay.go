package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/lightio/lightq/internal/loadgen"
)

// The relay implementations. Which is faster depends on kernel and machine, so both are measured; the limit is the faster.
const (
	relayBlocking = "blocking"
	relayGnet     = "gnet"
)

var relayImplementations = []string{relayBlocking, relayGnet}

// relayOptions say how much one measurement moves. It ends at whichever limit is reached first.
type relayOptions struct {
	Bytes    int64         // at most this many
	Duration time.Duration // for at most this long
	check    bool          // the receiver compares every byte, which costs time: for tests
}

// relaySample is one measurement of one implementation.
type relaySample struct {
	Implementation string         `json:"implementation"`
	Bytes          int64          `json:"bytes"`
	Seconds        float64        `json:"seconds"` // first to last read of the receiver
	BytesPerSec    float64        `json:"bytes_per_sec"`
	Processes      []processUsage `json:"processes"` // sender, relay, receiver
}

// roleResult is what each of the three roles prints on standard output when it is done.
type roleResult struct {
	Bytes   int64           `json:"bytes"`
	Seconds float64         `json:"seconds"`
	Latency loadgen.Latency `json:"latency_us,omitzero"` // of a paced receiver
	LateNS  int64           `json:"late_ns,omitempty"`   // of a paced sender
}

// relayReady starts the line on standard error by which a listening role tells its address.
const relayReady = "ready addr="

func parseRelayReady(line string) (string, bool) { return strings.CutPrefix(line, relayReady) }

// runRoles runs sender → relay → receiver once, each as a process of its own made from this executable, and returns their
// results and costs in this order. Each has moved the same number of bytes.
func runRoles(ctx context.Context, implementation string, receiverArgs, senderArgs []string) (
	results [3]roleResult, usage []processUsage, err error,
) {
	self, err := os.Executable()
	if err != nil {
		return results, nil, err
	}
	g := newGroup()
	defer g.close()

	receiver, err := g.start(command{
		name: "receiver", path: self, ready: parseRelayReady, args: append([]string{roleReceiver}, receiverArgs...),
	})
	if err != nil {
		return results, nil, err
	}
	addr, err := receiver.waitReady(ctx)
	if err != nil {
		return results, nil, err
	}
	relay, err := g.start(command{
		name: "relay", path: self, ready: parseRelayReady,
		args: []string{roleRelay, "--to", addr, "--implementation", implementation},
	})
	if err != nil {
		return results, nil, err
	}
	if addr, err = relay.waitReady(ctx); err != nil {
		return results, nil, err
	}
	sender, err := g.start(command{
		name: "sender", path: self, args: append([]string{roleSender, "--to", addr}, senderArgs...),
	})
	if err != nil {
		return results, nil, err
	}
	if err := g.wait(ctx, sender, relay, receiver); err != nil {
		return results, nil, err
	}

	for i, p := range []*process{sender, relay, receiver} {
		if err := json.Unmarshal([]byte(p.stdout.text()), &results[i]); err != nil {
			return results, nil, fmt.Errorf("read result of %s: %w", p.name, err)
		}
		usage = append(usage, p.usage())
	}
	sent, relayed, received := results[0].Bytes, results[1].Bytes, results[2].Bytes
	if sent != relayed || sent != received {
		return results, nil, fmt.Errorf("%d bytes sent, %d relayed, %d received", sent, relayed, received)
	}
	return results, usage, nil
}

// measureRelay measures one implementation once.
func measureRelay(ctx context.Context, implementation string, o relayOptions) (relaySample, error) {
	sample := relaySample{Implementation: implementation}
	fail := func(err error) (relaySample, error) {
		return sample, fmt.Errorf("measure %s relay: %w", implementation, err)
	}
	results, usage, err := runRoles(ctx, implementation, []string{fmt.Sprintf("--check=%t", o.check)},
		[]string{"--bytes", fmt.Sprint(o.Bytes), "--for", o.Duration.String()})
	if err != nil {
		return fail(err)
	}
	received := results[2].Bytes
	sample.Bytes, sample.Seconds, sample.Processes = received, results[2].Seconds, usage
	if sample.Seconds <= 0 {
		return fail(fmt.Errorf("%d bytes are too few to measure", received))
	}
	sample.BytesPerSec = float64(sample.Bytes) / sample.Seconds
	return sample, nil
}

// measureRelays runs every implementation once.
func measureRelays(ctx context.Context, o relayOptions) ([]relaySample, error) {
	samples := make([]relaySample, 0, len(relayImplementations))
	for _, implementation := range relayImplementations {
		s, err := measureRelay(ctx, implementation, o)
		if err != nil {
			return samples, err
		}
		samples = append(samples, s)
	}
	return samples, nil
}

// relaySummary is what the samples of a run say together.
type relaySummary struct {
	Implementation string             `json:"implementation"` // the faster one
	BytesPerSec    float64            `json:"bytes_per_sec"`  // its median: the limit
	Medians        map[string]float64 `json:"medians"`        // bytes/s of each
	Samples        []relaySample      `json:"samples"`
}

// summarizeRelay takes the median of each implementation and the faster of these as the limit.
func summarizeRelay(samples []relaySample) relaySummary {
	sum := relaySummary{Medians: map[string]float64{}, Samples: samples}
	for _, implementation := range relayImplementations {
		var rates []float64
		for _, s := range samples {
			if s.Implementation == implementation {
				rates = append(rates, s.BytesPerSec)
			}
		}
		if len(rates) == 0 {
			continue
		}
		m := median(rates)
		sum.Medians[implementation] = m
		if m > sum.BytesPerSec {
			sum.Implementation, sum.BytesPerSec = implementation, m
		}
	}
	return sum
}

// The names of the three roles, as hidden commands of this program.
const (
	roleSender   = "relay-sender"
	roleRelay    = "relay-relay"
	roleReceiver = "relay-receiver"
)

// relayPattern fills b so that a byte lost, repeated or moved within a block shows, its period being a prime. A whole block
// lost or repeated shows in the counts.
func relayPattern(b []byte) {
	for i := range b {
		b[i] = byte(i % 251)
	}
}

// runSender connects to addr and writes blocks until either limit is reached.
func runSender(addr string, limit int64, duration time.Duration) (roleResult, error) {
	fd, err := dialLoopback(addr)
	if err != nil {
		return roleResult{}, err
	}
	defer closeSocket(fd)
	block := make([]byte, relayBlock)
	relayPattern(block)
	var res roleResult
	start := time.Now()
	for res.Bytes < limit && time.Since(start) < duration {
		b := block[:min(relayBlock, limit-res.Bytes)]
		if err := writeBlock(fd, b); err != nil {
			return res, err
		}
		res.Bytes += int64(len(b))
	}
	res.Seconds = time.Since(start).Seconds()
	return res, nil
}

// runRelay accepts one connection, tells its address through listening, and forwards it to addr until its end.
func runRelay(addr, implementation string, listening func(addr string)) (roleResult, error) {
	out, err := dialLoopback(addr)
	if err != nil {
		return roleResult{}, err
	}
	defer closeSocket(out)
	start := time.Now()
	var moved int64
	switch implementation {
	case relayBlocking:
		moved, err = runBlockingRelay(out, listening)
	case relayGnet:
		moved, err = runGnetRelay(out, listening)
	default:
		err = fmt.Errorf("no relay implementation %q", implementation)
	}
	return roleResult{Bytes: moved, Seconds: time.Since(start).Seconds()}, err
}

// runBlockingRelay is the relay as one thread would write it in C: read, write, again.
func runBlockingRelay(out int, listening func(addr string)) (int64, error) {
	in, err := acceptAlone(listening)
	if err != nil {
		return 0, err
	}
	defer closeSocket(in)
	from := stream{fd: in}
	block := make([]byte, relayBlock)
	var moved int64
	for {
		n, err := from.read(block)
		if errors.Is(err, io.EOF) {
			return moved, nil
		}
		if err != nil {
			return moved, err
		}
		if err := writeBlock(out, block[:n]); err != nil {
			return moved, err
		}
		moved += int64(n)
	}
}

// runReceiver accepts one connection and reads it to its end. Its seconds run from the first read's return to the last's.
func runReceiver(check bool, listening func(addr string)) (roleResult, error) {
	in, err := acceptAlone(listening)
	if err != nil {
		return roleResult{}, err
	}
	defer closeSocket(in)
	from := stream{fd: in}
	block := make([]byte, relayBlock)
	want := make([]byte, relayBlock)
	relayPattern(want)
	var (
		res         roleResult
		first, last time.Time
	)
	for {
		n, err := from.read(block)
		if errors.Is(err, io.EOF) {
			res.Seconds = last.Sub(first).Seconds()
			return res, nil
		}
		if err != nil {
			return res, err
		}
		last = time.Now()
		if res.Bytes == 0 {
			first = last
		}
		if check {
			if err := checkPattern(block[:n], want, res.Bytes); err != nil {
				return res, err
			}
		}
		res.Bytes += int64(n)
	}
}

// checkPattern compares got, which stands at byte position of the stream, with the repeated block want.
func checkPattern(got, want []byte, position int64) error {
	for len(got) > 0 {
		at := int(position % int64(len(want)))
		n := min(len(got), len(want)-at)
		if !bytes.Equal(got[:n], want[at:at+n]) {
			return fmt.Errorf("the %d bytes at %d are not what was sent", n, position)
		}
		got = got[n:]
		position += int64(n)
	}
	return nil
}
