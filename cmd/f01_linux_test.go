package cmd

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/lightio/lightq/client"
	"github.com/lightio/lightq/codec"
)

// A call is one system call of a trace. begin and end are places in the trace: a call that began behind the end of another one
// began after it had returned.
type call struct {
	begin, end int
	name       string
	args       string // as strace prints them, strings in hexadecimal
	result     int64
}

var (
	wholeCall   = regexp.MustCompile(`^(\d+) +(\w+)\((.*)\) += (-?\d+)`)
	beginOfCall = regexp.MustCompile(`^(\d+) +(\w+)\((.*) <unfinished \.\.\.>$`)
	endOfCall   = regexp.MustCompile(`^(\d+) +<\.\.\. (\w+) resumed>(.*)\) += (-?\d+)`)
	hexByte     = regexp.MustCompile(`\\x[0-9a-f]{2}`)
	vector      = regexp.MustCompile(`iov_base="([^"]*)"`)
	quoted      = regexp.MustCompile(`"([^"]*)"`)
	ofFile      = regexp.MustCompile(`^\d+<([^>]*)>`)
)

// parseTrace reads what strace -f -y -xx has written, in the order in which the calls began.
func parseTrace(t *testing.T, text string) (calls []*call) {
	t.Helper()
	open := map[string]*call{} // by thread
	for at, line := range strings.Split(text, "\n") {
		if m := wholeCall.FindStringSubmatch(line); m != nil {
			calls = append(calls, &call{begin: at, end: at, name: m[2], args: m[3], result: number(t, m[4])})
		} else if m := beginOfCall.FindStringSubmatch(line); m != nil {
			open[m[1]] = &call{begin: at, end: -1, name: m[2], args: m[3]}
			calls = append(calls, open[m[1]])
		} else if m := endOfCall.FindStringSubmatch(line); m != nil {
			c := open[m[1]]
			if c == nil || c.name != m[2] {
				t.Fatalf("line %d of the trace ends a call that has not begun: %s", at+1, line)
			}
			c.end, c.args, c.result = at, c.args+m[3], number(t, m[4])
			delete(open, m[1])
		}
	}
	// A call without an end, at the end of the trace, has done nothing that anybody was told of.
	return slices.DeleteFunc(calls, func(c *call) bool { return c.end < 0 })
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// unhex undoes strace's \xNN.
func unhex(s string) string {
	return hexByte.ReplaceAllStringFunc(s, func(x string) string {
		b, _ := hex.DecodeString(x[2:]) // two digits, as the pattern says
		return string(b)
	})
}

// file is the path of the file that the call's first argument is; of a socket something else.
func (c *call) file() string {
	m := ofFile.FindStringSubmatch(c.args)
	if m == nil {
		return ""
	}
	return unhex(m[1])
}

// paths are the call's quoted arguments.
func (c *call) paths() (list []string) {
	for _, m := range quoted.FindAllStringSubmatch(c.args, -1) {
		list = append(list, unhex(m[1]))
	}
	return list
}

// data is what the call has written.
func (c *call) data() []byte {
	var all []byte
	vectors := vector.FindAllStringSubmatch(c.args, -1)
	if vectors == nil {
		vectors = quoted.FindAllStringSubmatch(c.args, 1)
	}
	for _, m := range vectors {
		all = append(all, unhex(m[1])...)
	}
	return all[:min(len(all), int(max(c.result, 0)))]
}

// A name is an entry of a directory that has come about, or a directory that was synced. Its path follows later renames.
type name struct {
	path string
	at   int // end of the call
}

// A stored is a write to a file, with the place in the trace at which it was durable; -1: never.
type stored struct {
	call    *call
	path    string
	data    []byte
	durable int
}

// A trace is what a broker did, as far as files and sockets are concerned.
type trace struct {
	names  []name
	syncs  []name // of directories; at is the end, begin of the call in begun
	begun  []int
	writes []stored
	sent   []*call // to sockets
}

func newTrace(t *testing.T, calls []*call) *trace {
	t.Helper()
	tr := &trace{}
	byEnd := slices.Clone(calls)
	slices.SortFunc(byEnd, func(a, b *call) int { return a.end - b.end })
	seen := map[string]bool{}
	type move struct {
		from, to string
		at       int
	}
	var moves []move
	moved := func(path string, m move) string {
		if path == m.from || strings.HasPrefix(path, m.from+"/") {
			return m.to + path[len(m.from):]
		}
		return path
	}
	// now is the name of a call's file when it has returned: what strace prints is the one at its beginning.
	now := func(c *call) string {
		path := c.file()
		for _, m := range moves {
			if m.at > c.begin {
				path = moved(path, m)
			}
		}
		return path
	}
	entry := func(path string, at int) {
		tr.names = append(tr.names, name{path: path, at: at})
		seen[path] = true
	}
	for _, c := range byEnd {
		if c.result < 0 {
			continue
		}
		switch c.name {
		case "openat":
			if path := c.paths()[0]; strings.Contains(c.args, "O_CREAT") && (strings.Contains(c.args, "O_EXCL") || !seen[path]) {
				entry(path, c.end)
			}
		case "mkdir", "mkdirat":
			entry(c.paths()[0], c.end)
		case "rename", "renameat", "renameat2":
			p := c.paths()
			m := move{from: p[0], to: p[1], at: c.end}
			moves = append(moves, m)
			for i := range tr.names {
				if tr.names[i].path != m.from { // that name is gone: the new one takes its place below
					tr.names[i].path = moved(tr.names[i].path, m)
				}
			}
			for i := range tr.syncs {
				tr.syncs[i].path = moved(tr.syncs[i].path, m)
			}
			for i := range tr.writes {
				tr.writes[i].path = moved(tr.writes[i].path, m)
			}
			entry(m.to, c.end)
		case "fsync", "fdatasync":
			path := now(c)
			tr.syncs, tr.begun = append(tr.syncs, name{path: path, at: c.end}), append(tr.begun, c.begin)
			for i := range tr.writes {
				if w := &tr.writes[i]; w.path == path && w.durable < 0 && w.call.end < c.begin {
					w.durable = c.end
				}
			}
		case "pwritev2", "pwritev", "pwrite64", "write", "writev", "sendto", "sendmsg":
			path := now(c)
			if strings.HasPrefix(path, "/") {
				w := stored{call: c, path: path, data: c.data(), durable: -1}
				if strings.Contains(c.args, "RWF_DSYNC") {
					w.durable = c.end
				}
				tr.writes = append(tr.writes, w)
			} else if strings.HasPrefix(path, "TCP") || strings.HasPrefix(path, "socket:") {
				tr.sent = append(tr.sent, c)
			}
		}
	}
	slices.SortFunc(tr.sent, func(a, b *call) int { return a.begin - b.begin })
	return tr
}

// named reports which of a path and its parents, from below root on, had no durable name at a place in the trace; empty: none.
func (tr *trace) named(path, root string, by int) string {
	for ; len(path) > len(root); path = filepath.Dir(path) {
		made := -1
		for _, n := range tr.names {
			if n.path == path && n.at < by {
				made = max(made, n.at)
			}
		}
		if made < 0 {
			return path + ", which nobody has made"
		}
		synced := false
		for i, s := range tr.syncs {
			synced = synced || s.path == filepath.Dir(path) && tr.begun[i] > made && s.at < by
		}
		if !synced {
			return path
		}
	}
	return ""
}

// frames calls f for every frame that the broker has sent, with the call in which it began.
func (tr *trace) frames(t *testing.T, f func(c *call, h codec.Header, header, payload []byte)) {
	t.Helper()
	type stream struct {
		rest []byte
		from *call
	}
	streams := map[string]*stream{} // by socket: with its two addresses it is one connection
	for _, c := range tr.sent {
		s := streams[c.file()]
		if s == nil {
			s = &stream{}
			streams[c.file()] = s
		}
		if len(s.rest) == 0 {
			s.from = c
		}
		s.rest = append(s.rest, c.data()...)
		for len(s.rest) >= codec.HeaderBytes {
			h, err := codec.ParseHeader(s.rest, 64<<20)
			if err != nil {
				t.Fatalf("what the broker has sent to %s is no frame: %v", c.file(), err)
			}
			if len(s.rest) < h.FrameBytes() {
				break
			}
			body := s.rest[codec.HeaderBytes:h.FrameBytes()]
			f(s.from, h, body[:h.HeaderSize], body[h.HeaderSize:])
			s.rest, s.from = s.rest[h.FrameBytes():], c
		}
	}
}

// traced runs a broker under strace, does something with it, and returns what the broker did.
func traced(t *testing.T, h home, do func(c *client.Client)) *trace {
	t.Helper()
	if out, err := exec.Command("strace", "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("strace does not run: %v: %s", err, out)
		}
		t.Skipf("strace does not run here, and there is no other way to see the order of system calls: %v: %s", err, out)
	}
	file := filepath.Join(t.TempDir(), "trace")
	// Syncs return late, so that whoever does not wait for them is seen.
	p := startProgram(t, nil, "strace", "-f", "-y", "-yy", "-xx", "-s", "4194304", "-o", file, "-e", "signal=none",
		"-e", "trace=openat,mkdir,mkdirat,rename,renameat,renameat2,fsync,fdatasync,pwritev2,pwritev,pwrite64,write,writev,sendto,sendmsg",
		"-e", "inject=pwritev2,fdatasync,fsync:delay_exit=2000",
		"lightq-broker", "-b", "0", "-i", "127.0.0.1", "--data-dir", h.dir, "--disk-reserve", "0")
	t.Cleanup(func() { // strace would leave it running
		if pid := brokerOf(h); pid > 0 {
			select {
			case <-p.done:
			default:
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	p.ready()
	_, address, _ := strings.Cut(p.stdout.text(), "native=")
	address, _, _ = strings.Cut(address, " ")
	do(dial(t, address))
	if err := syscall.Kill(brokerOf(h), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.text())
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return newTrace(t, parseTrace(t, string(text)))
}

// brokerOf is the process that has the data directory; 0: none.
func brokerOf(h home) int {
	text, err := os.ReadFile(filepath.Join(h.dir, "lock"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return pid
}

// TestF01SystemCalls: F01. A message is acknowledged before it is on the disk, which the death of a process alone never shows. The
// trace of the broker's system calls does: for each message, its bytes are written to a segment and that is synced, and the names on the
// way to the segment are synced in their directories, before its confirm begins to leave through the socket, or the message itself does
// towards a consumer; with one producer and with 64, over several segments.
func TestF01SystemCalls(t *testing.T) {
	for _, tc := range []struct{ producers, each, size int }{{1, 100, 1500}, {64, 10, 600}} {
		t.Run(fmt.Sprintf("%d producers", tc.producers), func(t *testing.T) {
			if os.Getenv("LIGHTQ_SOAK") != "" {
				tc.each *= 10
			}
			h := newHome(t)
			total := tc.producers * tc.each
			offsets := map[string]codec.Offset{} // by marker
			tr := traced(t, h, func(c *client.Client) {
				s := fileTopic
				s.SegmentBytes = 64 << 10
				createTopic(t, c, "traced", s)
				publishMarked(t, c, tc.producers, tc.each, tc.size, offsets)
				d, err := c.Describe(t.Context(), "traced")
				if err != nil || d.Partitions[0].High != codec.Offset(total) || d.Partitions[0].Segments < 2 {
					t.Fatalf("%+v, %v", d, err)
				}
			})
			tr.checkCreation(t, h)
			tr.checkConfirms(t, h, offsets)
		})
	}
}

// publishMarked publishes marked messages by several producers at once, each waiting for the confirm of one before the next, while a
// consumer reads them all.
func publishMarked(t *testing.T, c *client.Client, producers, each, size int, offsets map[string]codec.Offset) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	consumer, err := c.Consumer(ctx, "traced")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = consumer.Close() }() // it was only read from
	var wait sync.WaitGroup
	var mu sync.Mutex
	var failed error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		failed = errors.Join(failed, err)
	}
	wait.Go(func() {
		n := 0
		for _, err := range consumer.Records(ctx) {
			if err != nil {
				fail(err)
				return
			}
			if n++; n == producers*each {
				return
			}
		}
	})
	for i := range producers {
		p, err := c.Producer(ctx, "traced")
		if err != nil {
			t.Fatal(err)
		}
		wait.Go(func() {
			for k := range each {
				marker := fmt.Sprintf("<marker %d of producer %d>", k, i)
				r, err := p.Publish(ctx, client.Message{Value: append([]byte(marker), make([]byte, size-len(marker))...)})
				if err != nil {
					fail(err)
					return
				}
				mu.Lock()
				offsets[marker] = r.Offset
				mu.Unlock()
			}
			fail(p.Close(ctx))
		})
	}
	wait.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
}

// checkCreation: a topic's entry and the names that lead to it are durable before the reply to its creation.
func (tr *trace) checkCreation(t *testing.T, h home) {
	t.Helper()
	replied := -1
	tr.frames(t, func(c *call, f codec.Header, _, _ []byte) {
		if f.Type == codec.TypeCreate && f.Flags&codec.FlagReply != 0 {
			replied = c.begin
		}
	})
	if replied < 0 {
		t.Fatal("no reply to the creation of the topic in the trace")
	}
	for _, w := range tr.writes {
		if !bytes.Contains(w.data, []byte(`"name": "traced"`)) {
			continue
		}
		if filepath.Base(w.path) != "topic" || w.durable < 0 || w.durable >= replied {
			t.Errorf("the entry of the topic, %s, is durable at %d and the reply leaves at %d", w.path, w.durable, replied)
		}
		if bad := tr.named(w.path, filepath.Dir(h.dir), replied); bad != "" {
			t.Errorf("the reply to the creation leaves at %d before the name %s is durable", replied, bad)
		}
		return
	}
	t.Error("nobody has written the topic's entry")
}

// checkConfirms: messages and the names that lead to them are durable before they are confirmed or delivered.
func (tr *trace) checkConfirms(t *testing.T, h home, offsets map[string]codec.Offset) {
	t.Helper()
	confirmed := map[codec.Offset]int{} // by base offset of the batch
	tr.frames(t, func(c *call, f codec.Header, header, payload []byte) {
		if f.Type != codec.TypeConfirm {
			return
		}
		m, err := codec.ParseConfirm(header, payload)
		if err != nil {
			t.Fatal(err)
		}
		for i := range int(m.Count) {
			if r := codec.ResultAt(payload, i); r.Code == codec.CodeNone {
				confirmed[r.Base] = c.begin
			}
		}
	})
	marker := regexp.MustCompile(`<marker \d+ of producer \d+>`)
	written := map[string]*stored{}
	segments := map[string]bool{}
	for i := range tr.writes {
		w := &tr.writes[i]
		for _, m := range marker.FindAllString(string(w.data), -1) {
			if written[m] == nil {
				written[m] = w
				segments[w.path] = true
			}
		}
	}
	if len(segments) < 2 {
		t.Errorf("all is in %d segments: there is no roll to look at", len(segments))
	}
	delivered := map[string]int{}
	for _, c := range tr.sent {
		for _, m := range marker.FindAllString(string(c.data()), -1) {
			if _, ok := delivered[m]; !ok {
				delivered[m] = c.begin
			}
		}
	}
	early := 0
	for m, offset := range offsets {
		w := written[m]
		confirm, ok := confirmed[offset]
		for base := offset; !ok && base >= 0; base-- { // of a batch with others in front
			confirm, ok = confirmed[base]
		}
		delivery, was := delivered[m]
		switch {
		case w == nil || !ok || !was:
			t.Errorf("%s, offset %d: written: %v, confirmed: %v, delivered: %v", m, offset, w != nil, ok, was)
		case !strings.HasPrefix(w.path, h.dir+"/") || !strings.HasSuffix(w.path, ".seg"):
			t.Errorf("%s is in %s", m, w.path)
		case w.durable < 0 || w.durable >= confirm || w.durable >= delivery:
			if early++; early < 10 {
				t.Errorf("%s, offset %d, is written at %d and durable at %d; its confirm leaves at %d, and itself at %d",
					m, offset, w.call.begin, w.durable, confirm, delivery)
			}
		default:
			if bad := tr.named(w.path, filepath.Dir(h.dir), min(confirm, delivery)); bad != "" {
				if early++; early < 10 {
					t.Errorf("%s, offset %d, is confirmed at %d and delivered at %d before the name %s is durable", m, offset, confirm, delivery, bad)
				}
			}
		}
	}
	if early > 0 {
		t.Errorf("%d of %d messages were acknowledged too early", early, len(offsets))
	}
}
