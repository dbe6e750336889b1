package loop

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
)

// soak reports whether tests run at full scale (make soak).
func soak() bool { return os.Getenv("LIGHTQ_SOAK") != "" }

// scaled is full with LIGHTQ_SOAK, else a twentieth of it.
func scaled(full int) int {
	if soak() {
		return full
	}
	return full / 20
}

// startBroker serves a broker, on a free loopback port if cfg says nothing else, until the test ends.
func startBroker(t testing.TB, cfg Config) *Broker {
	t.Helper()
	b, stop := startStoppable(t, cfg)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return b
}

// startStoppable is startBroker for tests that end the broker themselves: stop makes it drain, as a signal would, and returns
// what Serve did. Calling it twice is calling it once.
func startStoppable(t testing.TB, cfg Config) (b *Broker, stop func() error) {
	t.Helper()
	b, err := NewBroker(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(testDeadline):
			return errors.New("Serve does not return")
		}
	})
	t.Cleanup(func() { _ = stop() })
	return b, stop
}

// A dialler is a listener without an address: the in-process ones.
type dialler interface {
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// A pipeListener yields ends of net.Pipe: connections without buffers, half-close or descriptors.
type pipeListener struct {
	ends   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{ends: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	theirs, ours := net.Pipe()
	select {
	case l.ends <- ours:
		return theirs, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ends:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return memAddr{} }

// pipeDoor serves what is only a net.Conn: through goroutines, with writes that wait for the reader and without half-close.
var pipeDoor = door{"pipe", func(_ testing.TB, cfg Config) Config { cfg.Listener = newPipeListener(); return cfg }}

// socketPath returns a path for a Unix-domain socket in a directory of the test's own. t.TempDir is too long for one on macOS.
func socketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lq")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// A door is a kind of connection that a broker serves; listen sets it in a Config.
type door struct {
	name   string
	listen func(t testing.TB, cfg Config) Config
}

// eachDoor runs test over all doors, and those of more, side by side.
func eachDoor(t *testing.T, test func(t *testing.T, listen func(Config) Config), more ...door) {
	doors := []door{
		{"tcp", func(_ testing.TB, cfg Config) Config { return cfg }},
		{"unix", func(t testing.TB, cfg Config) Config { cfg.Bind = unixScheme + socketPath(t); return cfg }},
		{"in-process", func(_ testing.TB, cfg Config) Config { cfg.Listener = NewInProcess(); return cfg }},
	}
	for _, d := range append(doors, more...) {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			test(t, func(cfg Config) Config { return d.listen(t, cfg) })
		})
	}
}

// A peer is a client made of bare frames.
type peer struct {
	t       testing.TB
	conn    net.Conn
	results []codec.Result // confirmed, not yet looked at
}

func connect(b *Broker) (net.Conn, error) {
	if d, ok := b.cfg.Listener.(dialler); ok {
		return d.Dial(context.Background(), "", "")
	}
	return net.Dial(b.Addrs()[0].Network(), b.Addrs()[0].String())
}

func dial(t testing.TB, b *Broker) *peer {
	t.Helper()
	conn, err := connect(b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &peer{t: t, conn: conn}
}

// frameLimit is how long a test waits for a frame: far longer than any takes.
const frameLimit = 20 * time.Second

func (p *peer) write(b []byte) {
	p.t.Helper()
	if err := p.tryWrite(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) tryWrite(b []byte) error {
	_ = p.conn.SetWriteDeadline(time.Now().Add(frameLimit))
	_, err := p.conn.Write(b)
	return err
}

// next returns the next frame that is not a heartbeat.
func (p *peer) next() (h codec.Header, section, payload []byte) {
	p.t.Helper()
	h, section, payload, err := p.tryNext()
	if err != nil {
		p.t.Fatal(err)
	}
	return h, section, payload
}

func (p *peer) tryNext() (h codec.Header, section, payload []byte, err error) {
	for {
		if h, section, payload, err = p.tryAny(); err != nil || h.Type != codec.TypeHeartbeat {
			return h, section, payload, err
		}
	}
}

// tryAny returns the next frame of any type.
func (p *peer) tryAny() (h codec.Header, section, payload []byte, err error) {
	_ = p.conn.SetReadDeadline(time.Now().Add(frameLimit))
	head := make([]byte, codec.HeaderBytes)
	if _, err = io.ReadFull(p.conn, head); err != nil {
		return h, nil, nil, err
	}
	if h, err = codec.ParseHeader(head, 16<<20); err != nil {
		return h, nil, nil, err
	}
	body := make([]byte, h.FrameBytes()-codec.HeaderBytes)
	if _, err = io.ReadFull(p.conn, body); err != nil {
		return h, nil, nil, err
	}
	return h, body[:h.HeaderSize], body[h.HeaderSize:], nil
}

// expect returns the next frame, which must be of type t.
func (p *peer) expect(t codec.Type) (h codec.Header, section, payload []byte) {
	p.t.Helper()
	h, section, payload = p.next()
	if h.Type != t {
		p.t.Fatalf("got a frame of type %s%s, want %s", h.Type, said(h, section), t)
	}
	return h, section, payload
}

// said tells what an error frame says.
func said(h codec.Header, section []byte) string {
	if h.Type != codec.TypeError {
		return ""
	}
	e, err := codec.ParseError(section)
	if err != nil {
		return err.Error()
	}
	return " (" + e.Error() + ")"
}

// expectError returns the detail of the next frame, which must be an error of code c.
func (p *peer) expectError(c codec.Code) (h codec.Header, detail string) {
	p.t.Helper()
	h, section, _ := p.expect(codec.TypeError)
	e, err := codec.ParseError(section)
	if err != nil {
		p.t.Fatal(err)
	}
	if e.Code != c {
		p.t.Fatalf("got error %v, want %v", e, c)
	}
	if h.Flags&codec.FlagReply == 0 {
		p.t.Fatalf("error %v without the flag reply", e)
	}
	return h, e.Detail
}

// expectEnd waits for the end of the connection: no frame but heartbeats comes before it.
func (p *peer) expectEnd() {
	p.t.Helper()
	h, section, _, err := p.tryNext()
	var timeout net.Error
	switch {
	case err == nil:
		p.t.Fatalf("got a frame of type %s%s, want the end of the connection", h.Type, said(h, section))
	case errors.As(err, &timeout) && timeout.Timeout():
		p.t.Fatal("the connection is still open")
	}
}

// ask sends a request and returns the reply, which must be of the request's type and correlation.
func (p *peer) ask(request []byte) (section, payload []byte) {
	p.t.Helper()
	asked := header(request)
	p.write(request)
	h, section, payload := p.expect(asked.Type)
	if h.Correlation != asked.Correlation || h.Flags&codec.FlagReply == 0 {
		p.t.Fatalf("asked %+v, got %+v", asked, h)
	}
	return section, payload
}

// refused sends a request whose answer must be an error of code c, and returns its detail. After a fatal one the connection
// must end, after another it must go on.
func (p *peer) refused(c codec.Code, request []byte) (detail string) {
	p.t.Helper()
	asked := header(request)
	p.write(request)
	h, detail := p.expectError(c)
	if h.Correlation != asked.Correlation || h.Handle != asked.Handle {
		p.t.Fatalf("asked with correlation %d, handle %d, was answered to %d, %d", asked.Correlation, asked.Handle, h.Correlation, h.Handle)
	}
	if c.Info().Fatal {
		p.expectEnd()
	} else {
		p.alive()
	}
	return detail
}

// alive fails the test if the connection does not answer a request. What is answered in order before has arrived then.
func (p *peer) alive() {
	p.t.Helper()
	p.ask(codec.AppendStats(nil, 4_000_000_000))
}

func header(frame []byte) codec.Header {
	h, err := codec.ParseHeader(frame, 16<<20)
	if err != nil {
		panic(err)
	}
	return h
}

// must is for what the broker's answers are parsed with.
func must[T any](t testing.TB, v T, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (p *peer) hello() *peer {
	p.t.Helper()
	p.ask(codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "test"}))
	return p
}

func (p *peer) create(name string, s codec.TopicSettings) codec.CreateReply {
	p.t.Helper()
	section, _ := p.ask(codec.AppendCreate(nil, 2, codec.Create{Topic: name, Settings: s}))
	m, err := codec.ParseCreateReply(section)
	return must(p.t, m, err)
}

func (p *peer) describe(name string) codec.Description {
	p.t.Helper()
	section, payload := p.ask(codec.AppendDescribe(nil, 5, name))
	m, err := codec.ParseDescription(section, payload)
	return must(p.t, m, err)
}

func (p *peer) open(handle uint32, name string, partition, epoch uint32) codec.OpenReply {
	p.t.Helper()
	section, _ := p.ask(codec.AppendOpen(nil, 3, handle, codec.Open{Topic: name, Partition: partition, Epoch: epoch}))
	m, err := codec.ParseOpenReply(section)
	return must(p.t, m, err)
}

// subscribe is for a sub, unless m says that it is a pull.
func (p *peer) subscribe(handle uint32, m codec.Subscribe) codec.SubscribeReply {
	p.t.Helper()
	section, _ := p.ask(subscribeFrame(handle, m))
	r, err := codec.ParseSubscribeReply(section)
	return must(p.t, r, err)
}

func subscribeFrame(handle uint32, m codec.Subscribe) []byte {
	if m.Kind == 0 {
		m.Kind = codec.KindSub
	}
	if m.From == 0 {
		m.From = codec.FromEarliest
	}
	return codec.AppendSubscribe(nil, 4, handle, m)
}

func (p *peer) closeHandle(handle uint32) {
	p.t.Helper()
	p.ask(codec.AppendClose(nil, 6, handle))
}

// batchOf returns one batch of the values.
func batchOf(values ...[]byte) []byte {
	var w codec.BatchBuilder
	w.Reset(nil, codec.MaxSlabBytes)
	for _, v := range values {
		if !w.Add(1000, nil, v, nil) {
			panic("BUG: the batch is full")
		}
	}
	return w.Finish(codec.NoProducer)
}

func publishFrame(handle, epoch uint32, first uint64, batches ...[]byte) []byte {
	payload := bytes.Join(batches, nil)
	b := codec.AppendPublish(nil, handle, codec.Publish{Epoch: epoch, First: first, Count: uint16(len(batches))}, len(payload))
	return append(b, payload...)
}

// confirm returns the next result.
func (p *peer) confirm() codec.Result {
	p.t.Helper()
	if len(p.results) == 0 {
		_, section, payload := p.expect(codec.TypeConfirm)
		p.addResults(section, payload)
	}
	r := p.results[0]
	p.results = p.results[1:]
	return r
}

func (p *peer) addResults(section, payload []byte) {
	p.t.Helper()
	m, err := codec.ParseConfirm(section, payload)
	if err != nil {
		p.t.Fatal(err)
	}
	for i := range int(m.Count) {
		p.results = append(p.results, codec.ResultAt(payload, i))
	}
}

// confirmed waits for n results, which must all be good.
func (p *peer) confirmed(n int) {
	p.t.Helper()
	for i := range n {
		if r := p.confirm(); r.Code != codec.CodeNone {
			p.t.Fatalf("result %d of %d: %v", i, n, r.Code)
		}
	}
}

// published sends batches as one frame each, numbered from first on, and waits until all are confirmed. They fit the window.
func (p *peer) published(handle, epoch uint32, first uint64, batches ...[]byte) {
	p.t.Helper()
	for i, b := range batches {
		p.write(publishFrame(handle, epoch, first+uint64(i), b))
	}
	p.confirmed(len(batches))
}

// A delivery is what a deliver frame holds.
type delivery struct {
	handle uint32
	codec.Deliver
	batches []codec.Batch
	bytes   int
}

func (p *peer) delivery(h codec.Header, section, payload []byte) delivery {
	p.t.Helper()
	m, err := codec.ParseDeliver(section)
	if err != nil {
		p.t.Fatal(err)
	}
	d := delivery{handle: h.Handle, Deliver: m, bytes: len(payload)}
	for range m.Count {
		var batch codec.Batch
		if batch, payload, err = codec.NextBatch(payload); err != nil {
			p.t.Fatal(err)
		}
		if err := codec.CheckDelivered(batch); err != nil {
			p.t.Fatal(err)
		}
		d.batches = append(d.batches, batch)
	}
	if len(payload) != 0 {
		p.t.Fatalf("%d bytes follow the batches of a deliver frame", len(payload))
	}
	return d
}

// deliver returns the next frame, which must be a deliver frame.
func (p *peer) deliver() delivery {
	p.t.Helper()
	h, section, payload := p.expect(codec.TypeDeliver)
	return p.delivery(h, section, payload)
}

// records takes deliver frames of one sub until it has had all below until, and returns the values and the gaps. Offsets must
// be dense but for the gaps. With regrant it gives the credit back.
func (p *peer) records(handle uint32, from, until codec.Offset, regrant bool) (values [][]byte, gaps []codec.Gap) {
	p.t.Helper()
	for from < until {
		d := p.deliver()
		if d.handle != handle {
			p.t.Fatalf("a deliver frame for handle %d, want %d", d.handle, handle)
		}
		if d.Gap.Next != 0 {
			if d.Gap.From != from || d.Gap.Next <= from {
				p.t.Fatalf("a gap of %+v at %d", d.Gap, from)
			}
			from = d.Gap.Next
			gaps = append(gaps, d.Gap)
		}
		for _, b := range d.batches {
			if b.BaseOffset() > from || b.NextOffset() <= from {
				p.t.Fatalf("a batch of %d to %d, want %d", b.BaseOffset(), b.NextOffset(), from)
			}
			rs := b.Records()
			for o := b.BaseOffset(); rs.Next(); o++ {
				if o >= from {
					values = append(values, slices.Clone(rs.Record.Value))
				}
			}
			from = b.NextOffset()
		}
		if regrant && d.bytes > 0 {
			p.write(codec.AppendCredit(nil, handle, uint32(d.bytes)))
		}
	}
	if from != until {
		p.t.Fatalf("delivered up to %d, want %d", from, until)
	}
	return values, gaps
}

func equal(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }

// numbered returns n batches of one record of size bytes each, which tells its number.
func numbered(n, size int) (values, batches [][]byte) {
	for i := range n {
		v := bytes.Repeat([]byte{byte(i)}, size)
		copy(v, []byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
		values = append(values, v)
		batches = append(batches, batchOf(v))
	}
	return values, batches
}

// info is the state of a topic's first partition.
func info(t testing.TB, b *Broker, name string) codec.PartitionInfo {
	t.Helper()
	top, err := b.topics.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return top.Partitions()[0].Info()
}

// onLoops runs f on every loop that has sessions and returns when it has.
func onLoops(t testing.TB, b *Broker, f func(*loopState)) {
	t.Helper()
	var ran sync.WaitGroup
	b.eachLoop(func(l *loopState) {
		ran.Add(1)
		l.post(func() {
			f(l)
			ran.Done()
		})
	})
	done := make(chan struct{})
	go func() { ran.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(testDeadline):
		t.Fatal("a loop does not answer")
	}
}

// countSessions counts the sessions for which f holds.
func countSessions(t testing.TB, b *Broker, f func(*session) bool) int {
	t.Helper()
	var mu sync.Mutex
	n := 0
	onLoops(t, b, func(l *loopState) {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range l.sessions {
			if f(s) {
				n++
			}
		}
	})
	return n
}

// A journal keeps log lines.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, string(b))
	return len(b), nil
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// with returns the lines that contain all of the words.
func (j *journal) with(words ...string) (found []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, line := range j.lines {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			found = append(found, line)
		}
	}
	return found
}
