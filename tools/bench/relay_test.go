package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestRelayMovesExactBytes(t *testing.T) {
	for _, implementation := range relayImplementations {
		t.Run(implementation, func(t *testing.T) {
			// Not a multiple of the block, so that reads, writes and blocks do not line up.
			o := relayOptions{Bytes: 16<<20 + 12_345, Duration: eventDeadline, check: true}
			s, err := measureRelay(testContext(t), implementation, o)
			if err != nil {
				t.Fatal(err)
			}
			if s.Bytes != o.Bytes || s.Seconds <= 0 || s.BytesPerSec != float64(s.Bytes)/s.Seconds {
				t.Errorf("%+v", s)
			}
			if len(s.Processes) != 3 || s.Processes[1].Name != "relay" || s.Processes[1].CPUSeconds <= 0 {
				t.Errorf("processes %+v", s.Processes)
			}
		})
	}
}

func TestRelayEndsByTime(t *testing.T) {
	o := relayOptions{Bytes: 1 << 60, Duration: 20 * time.Millisecond, check: true}
	s, err := measureRelay(testContext(t), relayBlocking, o)
	if err != nil {
		t.Fatal(err)
	}
	if s.Bytes == 0 || s.Bytes == o.Bytes {
		t.Errorf("%d bytes", s.Bytes)
	}
}

func TestRelayUnknownImplementation(t *testing.T) {
	_, err := measureRelay(testContext(t), "pigeon", relayOptions{Bytes: 1, Duration: time.Second})
	if err == nil || !strings.Contains(err.Error(), `no relay implementation "pigeon"`) {
		t.Error(err)
	}
}

func TestCheckPattern(t *testing.T) {
	want := make([]byte, 1000)
	relayPattern(want)
	stream := bytes.Repeat(want, 3)
	for _, c := range []struct{ from, to int }{{0, 0}, {0, 3000}, {5, 2999}, {999, 1001}, {2000, 2001}} {
		if err := checkPattern(stream[c.from:c.to], want, int64(c.from)); err != nil {
			t.Errorf("%v: %v", c, err)
		}
	}
	for name, got := range map[string][]byte{
		"lost":     append(append([]byte{}, stream[:500]...), stream[501:1000]...),
		"repeated": append(append([]byte{}, stream[:500]...), stream[499:1000]...),
		"changed":  append(append([]byte{}, stream[:999]...), 0xFF),
	} {
		if err := checkPattern(got, want, 0); err == nil {
			t.Errorf("%s: not seen", name)
		}
	}
}

func TestSummarizeRelay(t *testing.T) {
	sum := summarizeRelay([]relaySample{
		{Implementation: relayBlocking, BytesPerSec: 10},
		{Implementation: relayGnet, BytesPerSec: 100},
		{Implementation: relayBlocking, BytesPerSec: 30},
		{Implementation: relayGnet, BytesPerSec: 20},
		{Implementation: relayBlocking, BytesPerSec: 40},
		{Implementation: relayGnet, BytesPerSec: 10},
	})
	// The faster median, not the fastest sample.
	if sum.Implementation != relayBlocking || sum.BytesPerSec != 30 || sum.Medians[relayGnet] != 20 {
		t.Errorf("%+v", sum)
	}
	if none := summarizeRelay(nil); none.BytesPerSec != 0 || none.Implementation != "" {
		t.Errorf("%+v", none)
	}
}

func TestRelayCommand(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run([]string{"relay", "--runs", "1", "--relay-bytes", "8388608"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	for _, want := range []string{relayBlocking, relayGnet, "8,388,608", "relay limit:", "machine:"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %q in:\n%s", want, &stdout)
		}
	}
	stdout.Reset()
	if code := run([]string{"relay", "--runs", "1", "--relay-bytes", "8388608", "--json", "-"}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d\n%s", code, &stderr)
	}
	var rep relayReport
	if err := json.Unmarshal(stdout.Bytes(), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Version != reportVersion || len(rep.Relay.Samples) != 2 || rep.Machine.Cores == 0 {
		t.Errorf("%+v", rep)
	}
}
