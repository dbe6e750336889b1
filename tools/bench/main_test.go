package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/lightio/lightq/internal/cli"
	"github.com/lightio/lightq/internal/loadgen"
)

// The test binary plays several parts. Called by the name of one of the four programs (through a link) it is a fake of that
// program; with a relay role as its first argument, or told so by the environment, it is lightq-bench itself.

const (
	envMain  = "BENCHTEST_MAIN"  // set: be lightq-bench
	envFault = "BENCHTEST_FAULT" // what a fake does wrong
	envLife  = "BENCHTEST_LIFE"  // address that every fake holds a connection to as long as it lives
)

func TestMain(m *testing.M) {
	name := filepath.Base(os.Args[0])
	switch {
	case slices.Contains(programNames, name):
		os.Exit(fakeProgram(name, os.Args[1:]))
	case len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "relay-"), os.Getenv(envMain) != "":
		os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
	}
	// Under the race detector every process sleeps a second before it exits, unless told otherwise.
	if err := os.Setenv("GORACE", strings.TrimSpace(os.Getenv("GORACE")+" atexit_sleep_ms=0")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(cli.ExitFailure))
	}
	os.Exit(m.Run())
}

// fakeWindow is the time between first and last record that fake consumers report.
const fakeWindow = 250 * time.Millisecond

// fakeLateNS is how far behind their schedule fake producers say that they were.
const fakeLateNS = 123_456

// hello is the one line a fake client sends to the fake broker; the broker passes a producer's on to the consumers.
type hello struct {
	Role     string `json:"role"`
	Topic    string `json:"topic"`
	Size     int64  `json:"size"`
	Messages int64  `json:"messages"`
	Rate     int64  `json:"rate"`
}

// fakeJournalBytes is what a topic in files says that it was given.
const fakeJournalBytes = 44 << 20

func fakeProgram(name string, args []string) int {
	if addr := os.Getenv(envLife); addr != "" {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return fakeFailure(err)
		}
		defer conn.Close()
		fmt.Fprintln(conn, name)
	}
	var f struct {
		topic, server, storage, output, dataDir, adminListen string
		messages, size, rate                                 int64
		partitions                                           int
		extra                                                bool
	}
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.StringVarP(&f.server, "server", "b", "", "")
	flags.StringVarP(&f.topic, "topic", "t", "", "")
	flags.StringVar(&f.output, "output", "", "")
	flags.StringVar(&f.dataDir, "data-dir", "", "")
	flags.StringVar(&f.adminListen, "admin-listen", "", "")
	flags.Int64VarP(&f.messages, "messages", "m", 0, "")
	flags.IntVarP(&f.partitions, "partitions", "n", 1, "")
	flags.Int64Var(&f.rate, "rate", 0, "")
	flags.BoolVar(&f.extra, "extra", false, "")
	if name == programProducer {
		flags.Int64VarP(&f.size, "size", "s", 0, "")
	} else {
		flags.StringVarP(&f.storage, "storage", "s", "", "")
	}
	if err := flags.Parse(args); err != nil {
		return fakeFailure(err)
	}
	fault := os.Getenv(envFault)
	if name == programBroker {
		if f.server != "0" || f.adminListen != "off" || f.dataDir == "" {
			return fakeFailure(fmt.Errorf("broker called with %q", args))
		}
		return fakeBroker(fault, f.dataDir)
	}
	if name == programTopic {
		if flags.Arg(0) == "describe" {
			fmt.Printf(`{"topic":%q,"partitions":[{"partition":0,"bytes_in":%d}]}`+"\n", f.topic, fakeJournalBytes)
			return int(cli.ExitDone)
		}
		if f.storage == "future" {
			fmt.Fprintln(os.Stderr, "storage future: not yet")
			return int(cli.ExitNotYet)
		}
		return int(cli.ExitDone)
	}
	if f.output != "json" {
		return fakeFailure(fmt.Errorf("%s called with %q", name, args))
	}
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.server, "tcp://"))
	if err != nil {
		return fakeFailure(err)
	}
	defer conn.Close()
	line, err := json.Marshal(hello{Role: name, Topic: f.topic, Size: f.size, Messages: f.messages, Rate: f.rate})
	if err != nil {
		return fakeFailure(err)
	}
	if _, err := conn.Write(append(line, '\n')); err != nil {
		return fakeFailure(err)
	}
	answers := bufio.NewReader(conn)
	if _, err := answers.ReadString('\n'); err != nil {
		return fakeFailure(err)
	}
	if name == programProducer {
		if fault == "producer-dies" {
			return fakeFailure(fmt.Errorf("the producer broke"))
		}
		c := loadgen.ProducerCounts{Sent: f.messages, Confirmed: f.messages, Bytes: f.messages * f.size}
		r := loadgen.Rates{Seconds: 1}
		return fakeResult(loadgen.ProducerReport{
			Program: programProducer, RunID: "r", Topic: f.topic, Size: int(f.size),
			Partitions: []loadgen.ProducerPartition{{
				Label: f.topic + "_1", FirstSentNS: 1e18, LastSentNS: 1e18 + 1e9, ProducerCounts: c, Rates: r,
			}},
			Total:  loadgen.ProducerTotal{ProducerCounts: c, Rates: r},
			LateNS: fakeLateNS,
		}, int(cli.ExitDone))
	}
	if fault == "consumer-dies" {
		return fakeFailure(fmt.Errorf("the consumer broke"))
	}
	fmt.Fprintln(os.Stderr, "attached to "+f.topic)
	published, err := answers.ReadBytes('\n')
	if err != nil {
		return fakeFailure(err)
	}
	var h hello
	if err := json.Unmarshal(published, &h); err != nil {
		return fakeFailure(err)
	}
	if fault == "consumer-hangs" {
		_, _ = io.Copy(io.Discard, conn) // until the broker goes
		select {}
	}
	var lost, none int64
	c := loadgen.Counts{
		Received: f.messages, Bytes: f.messages * h.Size, Lost: &lost, Duplicate: &none, OutOfOrder: &none,
	}
	code, verification := int(cli.ExitDone), "on"
	latency := loadgen.Latency{Count: f.messages, P50: 80, P90: 200, P99: 350, P999: 1200, Max: 5000}
	switch fault {
	case "lost":
		lost = 1
		c.Received--
		c.Bytes -= h.Size
		code = int(cli.ExitCheckFailed)
	case "unverified":
		c.Lost, c.Duplicate, c.OutOfOrder = nil, nil, nil
		verification = "off"
		latency = loadgen.Latency{}
	}
	r := loadgen.Rates{Seconds: fakeWindow.Seconds()}
	return fakeResult(loadgen.ConsumerReport{
		Program: programConsumer, RunID: "r", Topic: f.topic, Verification: verification,
		Partitions: []loadgen.ConsumerPartition{{
			Label: f.topic + "_1", FirstSentNS: 1e18, FirstReceivedNS: 1e18 + 1000,
			LastReceivedNS: 1e18 + 1000 + fakeWindow.Nanoseconds(), Counts: c, Rates: r,
		}},
		Total:   loadgen.ConsumerTotal{Counts: c, Rates: r},
		Latency: latency,
	}, code)
}

func fakeFailure(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return int(cli.ExitFailure)
}

func fakeResult(v any, code int) int {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return fakeFailure(err)
	}
	return code
}

func fakeBroker(fault, dataDir string) int {
	if err := os.WriteFile(filepath.Join(dataDir, "lock"), nil, 0o600); err != nil {
		return fakeFailure(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fakeFailure(err)
	}
	type client struct {
		conn net.Conn
		hello
	}
	clients := make(chan client)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				line, err := bufio.NewReader(conn).ReadBytes('\n')
				if err != nil {
					return
				}
				c := client{conn: conn}
				if json.Unmarshal(line, &c.hello) == nil {
					clients <- c
				}
			}()
		}
	}()
	fmt.Fprintf(os.Stderr, "a line before\nready native=tcp://%s admin=off\n", listener.Addr())
	var consumers []client
	for {
		select {
		case <-stop:
			return int(cli.ExitDone)
		case c := <-clients:
			if c.Role == programConsumer {
				consumers = append(consumers, c)
				fmt.Fprintln(c.conn, "attached")
				continue
			}
			if fault == "broker-dies" {
				return fakeFailure(fmt.Errorf("the broker broke"))
			}
			fmt.Fprintln(c.conn, "ok")
			for _, to := range consumers {
				if to.Topic == c.Topic {
					_ = json.NewEncoder(to.conn).Encode(c.hello)
				}
			}
		}
	}
}

// fakePrograms makes a directory with fakes of all four programs.
func fakePrograms(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range programNames {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// lifeline sees every fake's life: each holds a connection that the kernel closes when the process is gone.
type lifeline struct {
	listener net.Listener
	born     chan string   // names, as they start
	gone     chan struct{} // one for each that is gone
}

// eventDeadline bounds every wait for something that must happen.
const eventDeadline = 60 * time.Second

func newLifeline(t *testing.T) *lifeline {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	l := &lifeline{listener: listener, born: make(chan string, 1000), gone: make(chan struct{}, 1000)}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				r := bufio.NewReader(conn)
				name, _ := r.ReadString('\n')
				l.born <- strings.TrimSpace(name)
				_, _ = io.Copy(io.Discard, r)
				l.gone <- struct{}{}
			}()
		}
	}()
	t.Setenv(envLife, listener.Addr().String())
	return l
}

// waitBorn waits until a fake of that name has started, and returns how many fakes have by then.
func (l *lifeline) waitBorn(t *testing.T, name string) int {
	t.Helper()
	deadline := time.After(eventDeadline)
	for n := 1; ; n++ {
		select {
		case got := <-l.born:
			if got == name {
				return n
			}
		case <-deadline:
			t.Fatalf("no %s was started", name)
		}
	}
}

// waitGone waits until n fakes are gone.
func (l *lifeline) waitGone(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(eventDeadline)
	for i := range n {
		select {
		case <-l.gone:
		case <-deadline:
			t.Fatalf("%d of %d processes are still there", n-i, n)
		}
	}
}

// requireEmpty fails the test if anything was left in dir.
func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}
