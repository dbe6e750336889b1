package main

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/loop"
	"github.com/lightio/lightq/loop/brokertest"
)

// What the producers of a crowd have published is what its consumers receive together, each message once.
func TestCrowdRoles(t *testing.T) {
	for _, spread := range []string{spreadOwn, spreadTurn, spreadKey} {
		t.Run(spread, func(t *testing.T) {
			ctx := testContext(t)
			b := brokertest.Start(t, loop.Config{Bind: "127.0.0.1"})
			c, err := client.Dial(ctx, b.URI())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			if _, err := c.CreateTopic(ctx, crowdTopic, client.TopicSettings{Partitions: 3}); err != nil {
				t.Fatal(err)
			}
			// What is there before the consumers come is not theirs.
			if _, err := runCrowdProducers(ctx, b.URI(), 1, 50, 10, spread); err != nil {
				t.Fatal(err)
			}
			const producers, size, messages = 6, 50, 60*crowdShare + 7
			var received crowdRole
			var failed error
			attached := make(chan struct{})
			var consuming sync.WaitGroup
			consuming.Go(func() {
				received, failed = runCrowdConsumers(ctx, b.URI(), 4, messages, func() { close(attached) })
			})
			select {
			case <-attached:
			case <-ctx.Done():
				consuming.Wait()
				t.Fatal(failed)
			}
			sent, err := runCrowdProducers(ctx, b.URI(), producers, size, messages, spread)
			if err != nil {
				t.Fatal(err)
			}
			consuming.Wait()
			if failed != nil {
				t.Fatal(failed)
			}
			want := crowdRole{Messages: messages, Bytes: messages * size, Sum: messages * (messages - 1) / 2}
			sent.Seconds, received.Seconds = 0, 0
			if sent != want || received != want {
				t.Errorf("sent %+v, received %+v, want %+v", sent, received, want)
			}
			d, err := c.Describe(ctx, crowdTopic)
			if err != nil {
				t.Fatal(err)
			}
			if spread != spreadOwn && slices.ContainsFunc(d.Partitions, func(p codec.PartitionInfo) bool { return p.RecordsIn == 0 }) {
				t.Errorf("a partition got nothing: %+v", d.Partitions)
			}
		})
	}
}

func TestCrowdUsage(t *testing.T) {
	for _, args := range []string{
		"--producers 0", "--consumers 0", "--partitions 0", "--runs 0", "--messages 0", "--size 7", "--spread none",
		"--spread own --producers 2 --partitions 3",
	} {
		var stdout, stderr bytes.Buffer
		if code := run(append([]string{"crowd"}, strings.Fields(args)...), &stdout, &stderr); code != int(cli.ExitUsage) {
			t.Errorf("%s: exit code %d, %s", args, code, stderr.String())
		}
	}
}

func TestCrowdTable(t *testing.T) {
	alone := crowdResult{crowd: crowd{Producers: 1, Partitions: 1, Consumers: 1, Size: 100, Spread: spreadTurn}}
	many := crowdResult{crowd: crowd{Producers: 8, Partitions: 4, Consumers: 2, Size: 100, Spread: spreadTurn}}
	alone.BytesPerSec, many.BytesPerSec = 200<<20, 150<<20
	rep := crowdReport{
		Relay: summarizeRelay([]relaySample{{Implementation: relayBlocking, BytesPerSec: 1000 << 20}}),
		Alone: []crowdResult{alone}, Crowd: []crowdResult{many},
	}
	var out strings.Builder
	if err := rep.writeTable(&out); err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out.String()) {
		if strings.Contains(line, "8 × 4 × 2") {
			rows = append(rows, strings.Fields(line))
		}
	}
	want := "8 × 4 × 2 0 150.0 1000.0 0.15 0.75 0.000 0.000 0.000 0.0 0.0 0.0"
	if len(rows) != 1 || strings.Join(rows[0], " ") != want {
		t.Errorf("%v, want %s\n%s", rows, want, out.String())
	}
	if !strings.Contains(out.String(), "to the partitions in turn, behind rings that were filled before") {
		t.Error(out.String())
	}
}

func TestCPUSecondsOfARunningProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells")
	}
	before := cpuSeconds(os.Getpid())
	for n := 0; cpuSeconds(os.Getpid()) < before+0.02; n++ {
		if n > 1e7 {
			t.Fatalf("%v s of CPU time after %d readings of it", before, n)
		}
	}
	if got := cpuSeconds(-1); got != 0 {
		t.Errorf("%v s for a process that is not there", got)
	}
}
