package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lightio/lightq/internal/cli"
)

// smallSweep is a command line that measures little, with the fakes, in a scratch place of its own.
func smallSweep(t *testing.T, more ...string) (args []string, scratch string) {
	t.Helper()
	scratch = t.TempDir()
	args = []string{
		"--bin", fakePrograms(t), "--data-dir", scratch, "--messages", "1000", "--runs", "1", "--latency-seconds", "0",
		"--relay-bytes", "8388608",
	}
	if !slices.Contains(more, "--sizes") {
		args = append(args, "--sizes", "100")
	}
	return append(args, more...), scratch
}

func readReport(t *testing.T, path string) report {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rep report
	if err := json.Unmarshal(b, &rep); err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestSweep(t *testing.T) {
	life := newLifeline(t)
	path := filepath.Join(t.TempDir(), "report.json")
	args, scratch := smallSweep(t, "--sizes", "100,256", "--runs", "2", "--latency-seconds", "1", "--rate", "1000",
		"--consumers", "2", "--producers", "3", "--messages", "1000", "--broker-arg=--extra", "--json", path)
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	requireEmpty(t, scratch)
	// Each run: a broker, 3 topics, 3 producers, 6 consumers. 2 sizes × (2 runs + 2 latency runs).
	life.waitGone(t, 13*8)

	rep := readReport(t, path)
	if rep.Version != reportVersion || rep.Error != "" || len(rep.Rows) != 2 {
		t.Fatalf("version %d, error %q, %d rows", rep.Version, rep.Error, len(rep.Rows))
	}
	if !slices.Equal(rep.Settings.BrokerArgs, []string{"--extra"}) {
		t.Errorf("broker arguments %q", rep.Settings.BrokerArgs)
	}
	for i, size := range []int64{100, 256} {
		r := rep.Rows[i]
		if int64(r.Size) != size || r.Messages != 334 || len(r.Runs) != 2 || len(r.LatencyRuns) != 2 {
			t.Fatalf("row %d: size %d, %d messages, %d runs, %d latency runs", i, r.Size, r.Messages, len(r.Runs), len(r.LatencyRuns))
		}
		if len(r.Relay.Samples) != 4 || r.Relay.BytesPerSec <= 0 {
			t.Errorf("row %d: relay %+v", i, r.Relay)
		}
		// Six consumers received 334 messages each within the window the fakes report.
		received := 6 * 334.0
		if want := received / fakeWindow.Seconds(); r.Median.MsgsPerSec != want {
			t.Errorf("row %d: %v msg/s instead of %v", i, r.Median.MsgsPerSec, want)
		}
		bytesPerSec := received * float64(size) / fakeWindow.Seconds()
		if want := bytesPerSec / r.Relay.BytesPerSec; math.Abs(r.Median.Ratio-want) > 1e-12 {
			t.Errorf("row %d: ratio %v instead of %v", i, r.Median.Ratio, want)
		}
		if r.Median.Latency.P99 != 350 || r.LatencyRuns[0].Messages != 3*1000 {
			t.Errorf("row %d: latency %+v of %d messages", i, r.Median.Latency, r.LatencyRuns[0].Messages)
		}
		if n, l := len(r.RelayLatencyRuns), r.Median.RelayLatency; n != 2 || l.Count != 1000 || l.P50 <= 0 || l.P999 < l.P50 {
			t.Errorf("row %d: %d runs of the paced relay, %+v", i, n, l)
		}
		if want := 350 / r.Median.RelayLatency.P99; r.Median.LatencyRatio.P99 != want || r.Median.LateNS != fakeLateNS {
			t.Errorf("row %d: latency ratio %+v, p99 should be %v; late %d", i, r.Median.LatencyRatio, want, r.Median.LateNS)
		}
		for _, f := range []roleFigures{r.Median.Producer, r.Median.Broker, r.Median.Consumer} {
			if f.CPUSecondsPerMillion <= 0 || f.PeakBytes < 1<<20 {
				t.Errorf("row %d: no usage: %+v", i, f)
			}
		}
		if n := len(r.Runs[0].Processes); n != 10 {
			t.Errorf("row %d: usage of %d processes instead of 10", i, n)
		}
	}
	for _, want := range []string{"ratio", "relay limit:", "machine:", "8,016", "350", "relay p50"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("table without %q:\n%s", want, &stdout)
		}
	}
}

func TestSweepJSONOnStandardOutput(t *testing.T) {
	args, _ := smallSweep(t, "--json", "-")
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	var rep report
	if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
		t.Fatalf("standard output is not JSON alone: %v\n%s", err, &stdout)
	}
}

func TestSweepStorageNotBuilt(t *testing.T) {
	args, scratch := smallSweep(t, "--storage", "future,queue", "--sizes", "100,256")
	var stdout, stderr bytes.Buffer
	if code := run(args, &stdout, &stderr); code != int(cli.ExitNotYet) {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	requireEmpty(t, scratch)
	// The storage that is there was measured all the same.
	if !strings.Contains(stdout.String(), "future: this storage is not built yet") || !strings.Contains(stdout.String(), "4,000") {
		t.Errorf("table:\n%s", &stdout)
	}
}

// Whatever goes wrong, no process and no file is left, and the exit code says so.
func TestSweepFailures(t *testing.T) {
	for _, c := range []struct {
		fault string
		code  cli.ExitCode
		says  string
	}{
		{fault: "lost", code: cli.ExitCheckFailed, says: "lost 1 instead of 0"},
		{fault: "producer-dies", code: cli.ExitFailure, says: "the producer broke"},
		{fault: "consumer-dies", code: cli.ExitFailure, says: "the consumer broke"},
		{fault: "broker-dies", code: cli.ExitFailure, says: "the broker broke"},
		{fault: "unverified", code: cli.ExitDone, says: "verification off"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			life := newLifeline(t)
			t.Setenv(envFault, c.fault)
			path := filepath.Join(t.TempDir(), "report.json")
			args, scratch := smallSweep(t, "--json", path)
			var stdout, stderr bytes.Buffer
			if code := run(args, &stdout, &stderr); code != int(c.code) {
				t.Errorf("exit code %d instead of %d", code, c.code)
			}
			if said := stdout.String() + stderr.String(); !strings.Contains(said, c.says) {
				t.Errorf("%q is not in:\n%s", c.says, said)
			}
			requireEmpty(t, scratch)
			started := 3 // broker, topic, consumer
			if c.fault != "consumer-dies" {
				started++
			}
			life.waitGone(t, started)
			if rep := readReport(t, path); (rep.Error != "") != (c.code == cli.ExitFailure) {
				t.Errorf("report's error is %q", rep.Error)
			}
		})
	}
}

// A measurement that takes too long is given up, and is cleaned up after like any other.
func TestTimeout(t *testing.T) {
	life := newLifeline(t)
	t.Setenv(envFault, "consumer-hangs")
	ctx, giveUp := context.WithCancelCause(testContext(t))
	p := programs{dir: fakePrograms(t), scratch: t.TempDir()}
	failed := make(chan error, 1)
	go func() {
		_, err := measureLightQ(ctx, p, workload{
			Size: 100, Storage: "queue", Partitions: 1, Producers: 1, Consumers: 1, Messages: 10,
		})
		failed <- err
	}()
	started := life.waitBorn(t, programProducer)
	giveUp(errTimeout)
	if err := <-failed; cli.ExitOf(err) != cli.ExitUnreachable || !strings.Contains(err.Error(), programConsumer) {
		t.Error(err)
	}
	life.waitGone(t, started)
	requireEmpty(t, p.scratch)

	var stdout, stderr bytes.Buffer
	if code := run([]string{"relay", "--timeout", "1ns"}, &stdout, &stderr); code != int(cli.ExitUnreachable) {
		t.Errorf("exit code %d, %s", code, &stderr)
	}
}

// benchProcess starts lightq-bench as a process with a run that never ends, and returns once a consumer hangs in it.
func benchProcess(t *testing.T) (cmd *exec.Cmd, life *lifeline, started int, scratch string) {
	t.Helper()
	life = newLifeline(t)
	t.Setenv(envFault, "consumer-hangs")
	t.Setenv(envMain, "1")
	args, scratch := smallSweep(t, "--timeout", "1h")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(self, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, life, life.waitBorn(t, programProducer), scratch
}

func TestInterrupt(t *testing.T) {
	cmd, life, started, scratch := benchProcess(t)
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.ExitCode() != int(cli.ExitInterrupted) {
		t.Errorf("ended with %v", err)
	}
	life.waitGone(t, started)
	requireEmpty(t, scratch)
}

func TestKilledParentTakesChildrenAlong(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux kills the children of a killed parent")
	}
	cmd, life, started, _ := benchProcess(t)
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	life.waitGone(t, started)
}

func TestDemo(t *testing.T) {
	life := newLifeline(t)
	scratch := t.TempDir()
	var stdout, stderr bytes.Buffer
	code := run([]string{
		"demo", "-m", "1000000", "--bin", fakePrograms(t), "--data-dir", scratch, "--relay-bytes", "8388608",
	}, &stdout, &stderr)
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	requireEmpty(t, scratch)
	life.waitGone(t, 9) // four for each half, and one that asks what is in the files
	for _, want := range []string{
		"lightq-producer: run r: topic bench", "bench_1 (partition 0)", "confirmed", "1,000,000",
		"lightq-consumer: run r: topic bench", "100,000,000", "0, 0, 0",
		"relay limit:", "4,000,000 msg/s of 100 B: ",
		"lightq-consumer, durable: run r", "disk limit:", "176.0 MB/s of journal, 4,000,000 msg/s of 100 B, all confirmed on stable storage",
	} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, &stdout)
		}
	}
	t.Setenv(envFault, "lost")
	code = run([]string{
		"demo", "-m", "1000", "--bin", fakePrograms(t), "--data-dir", scratch, "--relay-bytes", "8388608",
	}, &stdout, &stderr)
	if code != int(cli.ExitCheckFailed) {
		t.Errorf("exit code %d with a lost message", code)
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"--sizes", "0"},
		{"--sizes", "many"},
		{"--runs", "0"},
		{"--partitions", "0"},
		{"--rate", "-1"},
		{"--timeout", "0s"},
		{"--relay-bytes", "0"},
		{"--no-such-flag"},
		{"no-such-command"},
		{"relay", "--runs", "0"},
		{"relay", "more"},
		{"demo", "-m", "0"},
		{"--json", "/no/such/directory/report.json"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(args, &stdout, &stderr); code != int(cli.ExitUsage) {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}

func TestDefaultMessages(t *testing.T) {
	for size, want := range map[int]int64{100: 26_800_000, 256: 13_500_000, 1024: 3_900_000, 1 << 30: 100_000} {
		if got := defaultMessages(size); got != want {
			t.Errorf("%d B: %d instead of %d", size, got, want)
		}
	}
}
