package cmd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/internal/program"
	"github.com/lightio/lightq/loop"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	run := func(f func([]string) int) func() { return func() { os.Exit(f(os.Args[1:])) } }
	testscript.Main(m, map[string]func(){
		"lightq-broker":   run(program.Broker),
		"lightq-topic":    run(program.Topic),
		"lightq-producer": run(program.Producer),
		"lightq-consumer": run(program.Consumer),
		"nc":              netcat,
	})
}

// netcat is nc as far as the scripts need it: nc HOST PORT, or nc -U PATH. It sends standard input, and ends when as many lines
// have come back, or the other side has closed; the real one waits for an interrupt.
func netcat() {
	network, addr := "tcp", ""
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "-U":
		network, addr = "unix", args[1]
	case len(args) == 2:
		addr = net.JoinHostPort(args[0], args[1])
	default:
		fatal(errors.New("usage: nc HOST PORT, nc -U PATH"))
	}
	conn, err := net.DialTimeout(network, addr, deadline)
	fatal(err)
	fatal(conn.SetDeadline(time.Now().Add(deadline)))
	requests, err := io.ReadAll(os.Stdin)
	fatal(err)
	_, err = conn.Write(requests)
	fatal(err)
	replies := bufio.NewReader(conn)
	for range bytes.Count(requests, []byte("\n")) {
		line, err := replies.ReadString('\n')
		fmt.Print(line)
		if errors.Is(err, io.EOF) {
			break
		}
		fatal(err)
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// deadline bounds everything that a script waits for.
const deadline = time.Minute

// TestScripts runs the scripts; some are field cases at the command line: F52 (empty.txt), F54 (names.txt), F67
// (usage.txt, config.txt), F70 (partitions.txt). Each has a broker of its own at $BROKER, nc, and these commands beside testscript's:
//
//	exits CODE PROGRAM ARG…         run a program and check its exit code
//	start NAME WORD PROGRAM ARG…    start a program and wait until it has printed a line that begins with WORD; '': do not wait
//	finish NAME CODE                wait for its end, check its exit code, put its output into NAME.stdout and NAME.stderr
//	signal NAME WHICH               send it a signal: int, term, kill, stop or cont
//	json FILE PATH VALUE            FILE (or stdout) is one JSON object and nothing else, and holds VALUE at PATH
//	sum FILE FILE PATH VALUE        both are JSON objects, and their numbers at PATH add up to VALUE
//	await TOPIC COUNT N             wait until this count of the topic's partitions, as describe has it, is N in sum
//	completes PROGRAM ARG…          run a program that completes a word, again until it has anything to say
//	lines N NAME…                   wait until these programs have printed N lines together on standard output
//	suggested NAME TEXT             type the command that a started program has printed on standard output behind "# TEXT:"
//	bytes FILE TEXT                 write a file from text with Go's escapes
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata/script",
		Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "start": start, "finish": finish, "signal": signalled, "json": jsonField, "sum": jsonSum, "bytes": writeBytes,
			"await": await, "lines": awaitLines, "suggested": suggested, "completes": completes,
		},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

type started struct {
	cmd            *exec.Cmd
	stdout, stderr *watched
	done           chan struct{}
}

type startedKey struct{}

func setup(env *testscript.Env) error {
	b, err := loop.NewBroker(loop.Config{Loops: 1}) // whose program has ended is gone before another asks: counts are exact
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	programs := map[string]*started{}
	env.Values[startedKey{}] = programs
	env.Defer(func() {
		for _, p := range programs {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
		stop()
		if err := <-served; err != nil {
			env.T().Log("serve: ", err)
		}
	})
	addr := b.Addrs()[0].String()
	// Brokers keep everything in memory, unless a script says otherwise: they would share the default data directory.
	env.Setenv("LIGHTQ_DATA_DIR", "none")
	env.Setenv("HOME", filepath.Join(env.WorkDir, "home"))
	env.Setenv("ADDR", addr)
	env.Setenv("BROKER", "tcp://"+addr)
	env.Setenv("PORT", addr[strings.LastIndexByte(addr, ':')+1:])
	return nil
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s", code, args[0])
	}
}

// watched collects output and tells when a line with a certain beginning was written.
type watched struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	word  string
	found chan struct{}
	once  *sync.Once
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	for line := range strings.Lines(w.buf.String()) {
		if strings.HasPrefix(line, w.word) && strings.HasSuffix(line, "\n") {
			w.once.Do(func() { close(w.found) })
		}
	}
	return len(p), nil
}

func (w *watched) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func start(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: start NAME WORD PROGRAM ARG…")
	}
	found, once := make(chan struct{}), new(sync.Once)
	p := &started{
		stdout: &watched{word: args[1], found: found, once: once},
		stderr: &watched{word: args[1], found: found, once: once},
		done:   make(chan struct{}),
	}
	path, err := lookPath(args[2], ts.Getenv("PATH"))
	ts.Check(err)
	p.cmd = exec.Command(path, args[3:]...)
	p.cmd.Dir = ts.Getenv("WORK")
	p.cmd.Env = os.Environ()
	for _, name := range []string{"PATH", "BROKER", "LIGHTQ_ADMIN_PASSWORD", "LIGHTQ_CONFIG", "LIGHTQ_LOG_LEVEL", "LIGHTQ_PORT", "LIGHTQ_DATA_DIR", "HOME", "XDG_STATE_HOME"} {
		p.cmd.Env = append(p.cmd.Env, name+"="+ts.Getenv(name))
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	ts.Check(p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // finish looks at the exit code
		close(p.done)
	}()
	ts.Value(startedKey{}).(map[string]*started)[args[0]] = p
	if args[1] == "" {
		return
	}
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	select {
	case <-found:
	case <-p.done:
		ts.Fatalf("%s ended before it printed %q:\n%s%s", args[0], args[1], p.stdout.text(), p.stderr.text())
	case <-timeout.C:
		ts.Fatalf("%s did not print %q:\n%s%s", args[0], args[1], p.stdout.text(), p.stderr.text())
	}
	for _, text := range []string{p.stdout.text(), p.stderr.text()} {
		if _, rest, ok := strings.Cut(text, "ready native=unix:"); ok {
			path, _, _ := strings.Cut(rest, " ")
			ts.Setenv("NATIVE", "unix:"+path)
		}
		if _, rest, ok := strings.Cut(text, "ready native=tcp://"); ok {
			native, _, _ := strings.Cut(rest, " ")
			ts.Setenv("NATIVE", native)
			ts.Setenv("NATIVE_PORT", native[strings.LastIndexByte(native, ':')+1:])
		}
	}
}

func lookPath(name, path string) (string, error) {
	for _, dir := range strings.Split(path, string(os.PathListSeparator)) {
		file := dir + string(os.PathSeparator) + name
		if st, err := os.Stat(file); err == nil && st.Mode().Perm()&0o111 != 0 && !st.IsDir() {
			return file, nil
		}
	}
	return "", fmt.Errorf("%s is not in the path", name)
}

func startedProgram(ts *testscript.TestScript, name string) *started {
	p := ts.Value(startedKey{}).(map[string]*started)[name]
	if p == nil {
		ts.Fatalf("%s was not started", name)
	}
	return p
}

func finish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: finish NAME CODE")
	}
	p := startedProgram(ts, args[0])
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		ts.Fatalf("%s does not end:\n%s%s", args[0], p.stdout.text(), p.stderr.text())
	}
	delete(ts.Value(startedKey{}).(map[string]*started), args[0])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".stdout"), []byte(p.stdout.text()), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".stderr"), []byte(p.stderr.text()), 0o600))
	ts.Logf("[%s]\n%s%s", args[0], p.stdout.text(), p.stderr.text())
	if code := p.cmd.ProcessState.ExitCode(); strconv.Itoa(code) != args[1] {
		ts.Fatalf("exit code %d, want %s", code, args[1])
	}
}

var signals = map[string]os.Signal{
	"int": os.Interrupt, "term": syscall.SIGTERM, "kill": os.Kill, "stop": syscall.SIGSTOP, "cont": syscall.SIGCONT,
}

func signalled(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME int|term|kill|stop|cont")
	}
	ts.Check(startedProgram(ts, args[0]).cmd.Process.Signal(signals[args[1]]))
}

func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH VALUE")
	}
	if got := fmt.Sprint(jsonValue(ts, args[0], args[1])); (got == args[2]) == neg {
		ts.Fatalf("%s is %s", args[1], got)
	}
}

func jsonSum(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 4 {
		ts.Fatalf("usage: sum FILE FILE PATH VALUE")
	}
	sum := int64(0)
	for _, file := range args[:2] {
		n, err := strconv.ParseInt(fmt.Sprint(jsonValue(ts, file, args[2])), 10, 64)
		ts.Check(err)
		sum += n
	}
	if (strconv.FormatInt(sum, 10) == args[3]) == neg {
		ts.Fatalf("%s is %d in sum", args[2], sum)
	}
}

// jsonValue is what the one JSON object of a file holds at a path.
func jsonValue(ts *testscript.TestScript, file, path string) any {
	dec := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	dec.UseNumber()
	var v any
	ts.Check(dec.Decode(&v))
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("there is more than one JSON value")
	}
	for _, key := range strings.Split(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			field, ok := at[key]
			if !ok {
				ts.Fatalf("there is no %s in %v", key, at)
			}
			v = field
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(at) {
				ts.Fatalf("there is no element %s in %v", key, at)
			}
			v = at[i]
		default:
			ts.Fatalf("%s is inside of %v", key, v)
		}
	}
	return v
}

// poll calls look until it returns true.
func poll(ts *testscript.TestScript, what string, look func(context.Context) bool) {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	every := time.NewTicker(5 * time.Millisecond)
	defer every.Stop()
	for !look(ctx) {
		select {
		case <-every.C:
		case <-ctx.Done():
			ts.Fatalf("waited in vain for %s", what)
		}
	}
}

func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: await TOPIC COUNT N")
	}
	count := map[string]func(*codec.PartitionInfo) uint64{
		"publishers":    func(p *codec.PartitionInfo) uint64 { return uint64(p.Publishers) },
		"subscriptions": func(p *codec.PartitionInfo) uint64 { return uint64(p.Subscriptions) },
		"records_in":    func(p *codec.PartitionInfo) uint64 { return p.RecordsIn },
		"records_out":   func(p *codec.PartitionInfo) uint64 { return p.RecordsOut },
	}[args[1]]
	want, err := strconv.ParseUint(args[2], 10, 64)
	if count == nil || err != nil {
		ts.Fatalf("unknown count %s, or number %s", args[1], args[2])
	}
	c, err := client.Dial(context.Background(), ts.Getenv("BROKER"))
	ts.Check(err)
	defer func() { ts.Check(c.Close()) }()
	poll(ts, strings.Join(args, " "), func(ctx context.Context) bool {
		d, err := c.Describe(ctx, args[0])
		ts.Check(err)
		sum := uint64(0)
		for i := range d.Partitions {
			sum += count(&d.Partitions[i])
		}
		return sum == want
	})
}

// completes goes on as long as a completion names nothing, which is what it says of a broker that has not answered in time.
func completes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: completes PROGRAM ARG…")
	}
	poll(ts, strings.Join(args, " "), func(context.Context) bool {
		ts.Check(ts.Exec(args[0], args[1:]...))
		return ts.ReadFile("stdout") != ":4\n"
	})
}

func awaitLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: lines N NAME…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	poll(ts, strings.Join(args, " "), func(context.Context) bool {
		lines := 0
		for _, name := range args[1:] {
			lines += strings.Count(startedProgram(ts, name).stdout.text(), "\n")
		}
		return lines >= want
	})
}

func suggested(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: suggested NAME TEXT")
	}
	all := startedProgram(ts, args[0]).stdout.text()
	_, rest, ok := strings.Cut(all, "# "+args[1]+":")
	if !ok {
		ts.Fatalf("%s suggests no command to %s:\n%s", args[0], args[1], all)
	}
	command, _, _ := strings.Cut(rest, "\n")
	ts.Logf("$ %s", strings.TrimSpace(command))
	ts.Check(ts.Exec("sh", "-c", command))
}

func writeBytes(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: bytes FILE TEXT")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}
