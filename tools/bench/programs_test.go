package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/lightio/lightq/internal/loadgen"
)

func TestParseBrokerReady(t *testing.T) {
	for _, c := range []struct{ line, addr string }{
		{"ready native=tcp://127.0.0.1:5500", "tcp://127.0.0.1:5500"},
		{"ready native=tcp://127.0.0.1:41234 also=[::1]:41234 admin=off data=memory auth=none (loopback only)", "tcp://127.0.0.1:41234"},
		{"ready: admin=http://127.0.0.1:1 native=tcp://[::1]:9", "tcp://[::1]:9"},
		{"  ready native=tcp://127.0.0.1:1,tcp://[::1]:1", "tcp://127.0.0.1:1"},
		{`ready native="tcp://127.0.0.1:1"`, "tcp://127.0.0.1:1"},
		{"ready native=unix:///run/lightq.sock", "unix:///run/lightq.sock"},
		{"ready", ""},
		{"ready native=", ""},
		{"ready admin=off", ""},
		{"not ready native=tcp://127.0.0.1:1", ""},
		{"already native=tcp://127.0.0.1:1", ""},
		{"", ""},
	} {
		addr, ok := parseBrokerReady(c.line)
		if addr != c.addr || ok != (c.addr != "") {
			t.Errorf("%q: %q, %t", c.line, addr, ok)
		}
	}
}

func TestParseAttached(t *testing.T) {
	for line, want := range map[string]bool{
		"attached": true, "attached to bench, 1 partition": true, "not attached": false, "": false,
	} {
		if _, ok := parseAttached(line); ok != want {
			t.Errorf("%q: %t", line, ok)
		}
	}
}

// The contract with the load generators, as they print it.
const (
	producerJSON = `{"program":"lightq-producer","run_id":"8f","topic":"bench","partitions":[
		{"label":"bench_1","partition":0,"first_sent_ns":1700000000000000000,"last_sent_ns":1700000001000000000,"sent":10,
		 "confirmed":9,"failed":1,"bytes":1000,"seconds":1.5,"msgs_per_sec":6.5,"mb_per_sec":0.5,"added_later":true},
		{"label":"bench_2","partition":1,"first_sent_ns":1,"last_sent_ns":2,"sent":5,"confirmed":5,"failed":0,"bytes":500,
		 "seconds":1,"msgs_per_sec":5,"mb_per_sec":0.25}],
		"total":{"sent":15,"confirmed":14,"failed":1,"dropped_unread":3,"bytes":1500,"seconds":1.5,"msgs_per_sec":10,
		 "mb_per_sec":0.75}}`
	consumerJSON = `{"program":"lightq-consumer","run_id":"8f","topic":"bench","partitions":[
		{"label":"bench_1","partition":0,"first_sent_ns":1,"first_received_ns":2,"last_received_ns":3,"received":10,
		 "bytes":1000,"seconds":0.5,"msgs_per_sec":20,"mb_per_sec":2,"first_latency_us":7.5,"ns_per_message":50,
		 "lost":1,"duplicate":2,"out_of_order":3,"gap":4}],
		"total":{"received":10,"bytes":1000,"seconds":0.5,"msgs_per_sec":20,"mb_per_sec":2,"lost":1,"duplicate":2,"out_of_order":3,"gap":4},
		"verification":"on","latency_us":{"count":10,"p50":1,"p90":2,"p99":3,"p999":4,"max":5}}`
)

func TestParseProducer(t *testing.T) {
	got, err := parseProducer(producerJSON + "\n")
	if err != nil {
		t.Fatal(err)
	}
	want := &loadgen.ProducerReport{
		Program: programProducer, RunID: "8f", Topic: "bench",
		Partitions: []loadgen.ProducerPartition{
			{
				Label: "bench_1", FirstSentNS: 1700000000000000000, LastSentNS: 1700000001000000000,
				ProducerCounts: loadgen.ProducerCounts{Sent: 10, Confirmed: 9, Failed: 1, Bytes: 1000},
				Rates:          loadgen.Rates{Seconds: 1.5, MsgsPerSec: 6.5, MBPerSec: 0.5},
			},
			{
				Label: "bench_2", Partition: 1, FirstSentNS: 1, LastSentNS: 2,
				ProducerCounts: loadgen.ProducerCounts{Sent: 5, Confirmed: 5, Bytes: 500},
				Rates:          loadgen.Rates{Seconds: 1, MsgsPerSec: 5, MBPerSec: 0.25},
			},
		},
		Total: loadgen.ProducerTotal{
			ProducerCounts: loadgen.ProducerCounts{Sent: 15, Confirmed: 14, Failed: 1, Bytes: 1500},
			DroppedUnread:  3,
			Rates:          loadgen.Rates{Seconds: 1.5, MsgsPerSec: 10, MBPerSec: 0.75},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestParseConsumer(t *testing.T) {
	got, err := parseConsumer(consumerJSON)
	if err != nil {
		t.Fatal(err)
	}
	p := got.Partitions[0]
	if *p.Lost != 1 || *p.Duplicate != 2 || *p.OutOfOrder != 3 || p.Gap != 4 || p.Received != 10 || p.Bytes != 1000 ||
		p.FirstSentNS != 1 || p.FirstReceivedNS != 2 || p.LastReceivedNS != 3 || *p.FirstLatencyUS != 7.5 {
		t.Errorf("partition %+v", p)
	}
	if want := (loadgen.Latency{Count: 10, P50: 1, P90: 2, P99: 3, P999: 4, Max: 5}); got.Latency != want {
		t.Errorf("latency %+v", got.Latency)
	}
	off := strings.NewReplacer(`"on"`, `"off"`, `"lost":1`, `"lost":null`).Replace(consumerJSON)
	if _, err := parseConsumer(off); err != nil {
		t.Error(err)
	}
}

func TestParseReportRefuses(t *testing.T) {
	replace := func(s, from, to string) string {
		if !strings.Contains(s, from) {
			t.Fatalf("no %q", from)
		}
		return strings.Replace(s, from, to, 1)
	}
	producer := func(s string) error { _, err := parseProducer(s); return err }
	consumer := func(s string) error { _, err := parseConsumer(s); return err }
	for _, c := range []struct {
		name  string
		parse func(string) error
		text  string
	}{
		{"nothing", producer, ""},
		{"not JSON", producer, "10 messages sent\n"},
		{"cut off", producer, producerJSON[:200]},
		{"two objects", producer, producerJSON + producerJSON},
		{"text behind", consumer, consumerJSON + "\ndone"},
		{"the other program's", producer, consumerJSON},
		{"the other program's", consumer, producerJSON},
		{"no partitions", producer, `{"program":"lightq-producer","partitions":[],"total":{}}`},
		{"no partitions", consumer, `{"program":"lightq-consumer","partitions":[],"total":{},"verification":"on"}`},
		{"sum of sent", producer, replace(producerJSON, `"total":{"sent":15`, `"total":{"sent":16`)},
		{"sum of confirmed", producer, replace(producerJSON, `"confirmed":14`, `"confirmed":15`)},
		{"sum of received", consumer, replace(consumerJSON, `"total":{"received":10`, `"total":{"received":11`)},
		{"sum of lost", consumer, replace(consumerJSON, `"lost":1,"duplicate":2,`, `"lost":0,"duplicate":2,`)},
		{"sum of gaps", consumer, replace(consumerJSON, `"gap":4}]`, `"gap":0}]`)},
		{"missing counts", consumer, replace(consumerJSON, `"lost":1,"duplicate":2,"out_of_order":3,"gap":4},`, `"gap":4},`)},
		{"null counts", consumer, replace(consumerJSON, `"lost":1,`, `"lost":null,`)},
		{"verification", consumer, replace(consumerJSON, `"verification":"on"`, `"verification":"maybe"`)},
	} {
		if err := c.parse(c.text); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
	}
}

func TestFindProgramsInDirectory(t *testing.T) {
	dir := fakePrograms(t)
	got, err := findPrograms(t.Context(), dir, t.TempDir(), io.Discard)
	if err != nil || got != dir {
		t.Fatal(got, err)
	}
	if err := os.Remove(filepath.Join(dir, programProducer)); err != nil {
		t.Fatal(err)
	}
	_, err = findPrograms(t.Context(), dir, t.TempDir(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "find lightq-producer: not in "+dir) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, programProducer), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err = findPrograms(t.Context(), dir, t.TempDir(), io.Discard); err == nil {
		t.Error("took a file that cannot be executed")
	}
}

func TestFindProgramsOutsideCheckout(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/another\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	_, err := findPrograms(t.Context(), "", t.TempDir(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "--bin") || !strings.Contains(err.Error(), programBroker) {
		t.Error(err)
	}
}

func TestFindProgramsBuilds(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", modulePath+"\n\ngo 1.26\n")
	for _, name := range programNames {
		write("cmd/"+name+"/main.go", "package main\n\nfunc main() {}\n")
	}
	write("tools/here/file", "")
	t.Chdir(filepath.Join(root, "tools", "here"))
	var progress bytes.Buffer
	scratch := t.TempDir()
	dir, err := findPrograms(t.Context(), "", scratch, &progress)
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(dir) != scratch || hasPrograms(dir) != nil || !strings.Contains(progress.String(), "building") {
		t.Errorf("%s: %v, said %q", dir, hasPrograms(dir), &progress)
	}

	write("cmd/lightq-topic/main.go", "package main\n\nfunc main() { broken }\n")
	_, err = findPrograms(t.Context(), "", t.TempDir(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "undefined: broken") {
		t.Error(err)
	}
}
