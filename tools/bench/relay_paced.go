package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lightio/lightq/internal/loadgen"
)

// pacedBytes is the size of the single messages that the relay carries when latency is measured: a record of 100 B with
// some framing. Another small size would take the same time.
const pacedBytes = 128

// Positions in a message of package loadgen.
const (
	messageSequence = 8
	messageSent     = 16
)

// pacedSample is one measurement of the machine's own latency: the blocking relay with single messages at a paced rate.
type pacedSample struct {
	Messages  int64           `json:"messages"`
	Latency   loadgen.Latency `json:"latency_us"` // from intended send time to arrival, as LightQ's
	LateNS    int64           `json:"late_ns"`    // the most that the sender left a message behind its schedule
	Processes []processUsage  `json:"processes"`  // sender, relay, receiver
}

// measurePacedRelay sends rate messages a second, messages in all, through the blocking relay.
func measurePacedRelay(ctx context.Context, rate, messages int64) (pacedSample, error) {
	results, usage, err := runRoles(ctx, relayBlocking, []string{"--paced"},
		[]string{"--rate", fmt.Sprint(rate), "--messages", fmt.Sprint(messages)})
	if err == nil && results[2].Bytes != messages*pacedBytes {
		err = fmt.Errorf("%d bytes received instead of %d", results[2].Bytes, messages*pacedBytes)
	}
	if err != nil {
		return pacedSample{}, fmt.Errorf("measure latency of the relay: %w", err)
	}
	return pacedSample{Messages: messages, Latency: results[2].Latency, LateNS: results[0].LateNS, Processes: usage}, nil
}

// socketPublisher makes a socket what a loadgen.Sender publishes to.
type socketPublisher int

func (fd socketPublisher) PublishValue(_ context.Context, _ int, value []byte) error {
	return writeBlock(int(fd), value)
}

func (socketPublisher) Flush(context.Context) error { return nil }

// runPacedSender connects to addr and sends messages on the schedule that LightQ's producer keeps, by the same code.
func runPacedSender(ctx context.Context, addr string, rate, messages int64) (roleResult, error) {
	fd, err := dialLoopback(addr)
	if err != nil {
		return roleResult{}, err
	}
	defer closeSocket(fd)
	run := loadgen.NewRunID()
	s := loadgen.NewSender(run, 0, messages, pacedBytes)
	s.Pace(loadgen.NewSchedule(time.Now(), rate, 0, 1))
	if err := s.Run(ctx, socketPublisher(fd)); err != nil {
		return roleResult{}, err
	}
	rep := loadgen.ReportOf("", run, pacedBytes, []*loadgen.Sender{s})
	return roleResult{Bytes: rep.Total.Bytes, LateNS: rep.LateNS}, nil
}

// runPacedReceiver accepts one connection, reads its messages to the end and checks that each follows the one before.
func runPacedReceiver(listening func(addr string)) (roleResult, error) {
	in, err := acceptAlone(listening)
	if err != nil {
		return roleResult{}, err
	}
	defer closeSocket(in)
	from := stream{fd: in}
	latency := hdrhistogram.New(1, int64(time.Hour), 3) // as LightQ's consumer has it
	block := make([]byte, relayBlock)
	var res roleResult
	for have, next := 0, uint64(0); ; {
		n, err := from.read(block[have:])
		if errors.Is(err, io.EOF) {
			if have != 0 {
				return res, fmt.Errorf("%d bytes of a message at the end", have)
			}
			res.Latency = latencyOf(latency)
			return res, nil
		}
		if err != nil {
			return res, err
		}
		now := time.Now().UnixNano()
		res.Bytes += int64(n)
		rest := block[:have+n]
		for ; len(rest) >= pacedBytes; rest = rest[pacedBytes:] {
			if seq := binary.BigEndian.Uint64(rest[messageSequence:]); seq != next {
				return res, fmt.Errorf("message %d came instead of %d", seq, next)
			}
			next++
			sent := int64(binary.BigEndian.Uint64(rest[messageSent:]))
			if err := latency.RecordValue(min(max(now-sent, 1), latency.HighestTrackableValue())); err != nil {
				return res, fmt.Errorf("record latency: %w", err)
			}
		}
		have = copy(block, rest)
	}
}

func latencyOf(h *hdrhistogram.Histogram) loadgen.Latency {
	us := func(percentile float64) float64 { return float64(h.ValueAtPercentile(percentile)) / 1e3 }
	return loadgen.Latency{
		Count: h.TotalCount(), P50: us(50), P90: us(90), P99: us(99), P999: us(99.9), Max: float64(h.Max()) / 1e3,
	}
}
