package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/lightio/lightq/topic"
)

// Limits are the broker's bounds. Zero fields mean the default.
type Limits struct {
	Connections        int           // open at once, per listener; default 20,000
	Logins             int           // connections that have not said hello yet; default 8,192
	LoginsPerAddress   int           // of these, from one IP address; default three quarters of Logins
	HandlesPerConn     int           // publishing handles and subscriptions of one connection; default 4,096
	WindowBytes        int           // unconfirmed bytes per publishing handle; default codec.DefaultWindowBytes
	MaxCreditBytes     int           // most that a subscription may have been granted; default 64 MiB
	MaxPartitions      int           // over all topics; default 100,000
	LoginDeadline      time.Duration // from accept to the end of the hello, absolute; default 10 s
	Heartbeat          time.Duration // either side sends something at least this often; default 15 s
	StallLimit         time.Duration // how long a consumer may hold up a full ring without progress; default 30 s
	Drain              time.Duration // most that a drain takes; default 5 s
	FreeSlabBytes      int64         // slabs kept for reuse; default 64 MiB
	MemoryBytes        int64         // all that publishing may fill, rings included, at least 32 MiB; default half of what the process may use
	maxFrameBytes      int           // largest frame after the hello
	controlBacklogHigh int           // bytes of control frames waiting for a peer at which reading from it pauses
}

func (l Limits) complete() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	defD := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.Connections, 20_000)
	def(&l.Logins, 8192)
	def(&l.LoginsPerAddress, l.Logins-l.Logins/4) // nobody takes all places, and a machine full of clients may start at once
	def(&l.HandlesPerConn, 4096)
	def(&l.WindowBytes, codec.DefaultWindowBytes)
	def(&l.MaxCreditBytes, 64<<20)
	def(&l.MaxPartitions, 100_000)
	defD(&l.LoginDeadline, 10*time.Second)
	defD(&l.Heartbeat, 15*time.Second)
	defD(&l.StallLimit, 30*time.Second)
	defD(&l.Drain, 5*time.Second)
	if l.FreeSlabBytes == 0 {
		l.FreeSlabBytes = 64 << 20
	}
	if l.MemoryBytes == 0 {
		l.MemoryBytes = DefaultMemoryBytes()
	}
	l.MemoryBytes = max(l.MemoryBytes, LeastMemoryBytes)
	def(&l.maxFrameBytes, topic.MaxBatchBytesLimit+64<<10)
	def(&l.controlBacklogHigh, 256<<10)
	return l
}

// Config is what a broker is made from. The zero value serves 127.0.0.1 on a free port.
type Config struct {
	// Listener, when set, is served instead of Bind and Port; the broker closes it. A listener whose connections are
	// not sockets (an in-process one) is served through goroutines instead of the event loops.
	Listener net.Listener

	Bind          string // IP address, or unix:///path of a socket; default 127.0.0.1
	Port          int    // 0: a free one
	BothLoopbacks bool   // with Bind a loopback address: listen on 127.0.0.1 and ::1, same port

	// DataDir is where topics are kept over a restart; empty: in memory alone. One broker at a time uses a directory.
	DataDir string
	// DiskReserve is the free space in bytes of its disk below which publishes to files are refused; 0: the larger of 1 GiB and 5%
	// of the disk; negative: none.
	DiskReserve int64
	// FS is the file system of DataDir; default: the operating system's.
	FS vfs.FS
	// SyncWorkers and ReadWorkers are how many goroutines wait for the disk at a time; 0: the journal's defaults.
	SyncWorkers, ReadWorkers int

	// AdminUser and AdminPassword, when the password is set, must come with create_topic of the JSON admin protocol.
	AdminUser, AdminPassword string

	Loops  int          // event loops; default half the processors, at least one
	Name   string       // told to clients in the hello; default "lightq-broker"
	Logger *slog.Logger // default: discards
	Limits Limits
}

// A Broker serves topics. Make one with NewBroker, run it with Serve.
type Broker struct {
	cfg       Config
	limits    Limits
	log       *slog.Logger
	topics    *topic.Registry
	slabs     *codec.SlabPool
	reactor   reactor
	listeners []net.Listener

	taken    atomic.Bool // Serve or Close was called
	draining atomic.Bool
	conns    atomic.Int64 // sessions open now
	logins   atomic.Int64 // of these, those that have not said hello yet
	nextConn atomic.Uint64
	started  time.Time

	closings logLimit
	memory   memory
	loginsBy addressCount
	offload  *offloader // nil: nothing waits for a disk

	mu     sync.Mutex
	states map[*loopState]struct{} // every loop that has sessions
}

// ErrBind is in the chain of the errors of NewBroker that say why an address cannot be listened on.
var ErrBind = errors.New("cannot listen")

// ErrExposed is the error of NewBroker for an address beyond loopback, which is refused as long as there are no
// credentials.
var ErrExposed = errors.New("refusing to listen beyond loopback without credentials")

// NewBroker listens and returns a broker that Serve runs. Nothing is accepted before Serve.
func NewBroker(cfg Config) (*Broker, error) {
	if cfg.Bind == "" {
		cfg.Bind = "127.0.0.1"
	}
	if cfg.Name == "" {
		cfg.Name = "lightq-broker"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Loops <= 0 {
		cfg.Loops = DefaultLoops()
	}
	limits := cfg.Limits.complete()
	b := &Broker{
		cfg: cfg, limits: limits, log: cfg.Logger, started: time.Now(),
		topics: topic.NewRegistry(limits.MaxPartitions),
		slabs:  codec.NewSlabPool(limits.FreeSlabBytes),
		states: map[*loopState]struct{}{},
	}
	b.memory.init(b.slabs, limits.MemoryBytes)
	listeners, err := b.listen()
	if err != nil {
		return nil, err
	}
	b.listeners = listeners
	if err := b.openFiles(); err != nil {
		for _, l := range listeners {
			_ = l.Close()
		}
		return nil, err
	}
	sockets, err := newGnetReactor(gnetOptions{
		Loops: cfg.Loops, ReadBufferBytes: readBufferBytes, onRing: b.onRing, Logger: cfg.Logger,
	})
	if err != nil {
		for _, l := range listeners {
			_ = l.Close()
		}
		return nil, errors.Join(fmt.Errorf("start event loops: %w", err), b.topics.Close())
	}
	b.reactor = mixedReactor{sockets: sockets, memory: newMemReactor(b.onRing), others: newNetReactor(netOptions{onRing: b.onRing})}
	return b, nil
}

// openFiles loads what the data directory holds. The port is bound by then, and not served.
func (b *Broker) openFiles() error {
	if b.cfg.DataDir == "" {
		return nil
	}
	fsys := b.cfg.FS
	if fsys == nil {
		fsys = vfs.OS{}
	}
	begun := time.Now()
	told := begun
	err := b.topics.OpenFiles(topic.FilesConfig{
		FS: fsys, Dir: b.cfg.DataDir, Slabs: b.slabs, Log: b.log, DiskReserve: b.cfg.DiskReserve,
		SyncWorkers: b.cfg.SyncWorkers, ReadWorkers: b.cfg.ReadWorkers,
		OnRecover: func(done, total int) {
			if now := time.Now(); now.Sub(told) >= time.Second {
				told = now
				b.log.Info("recovering", "partitions_done", done, "partitions", total, "percent", 100*done/total)
			}
		},
	})
	if err != nil {
		return err
	}
	topics, partitions := b.topics.Count()
	b.log.Info("data directory open", "path", b.cfg.DataDir, "topics", topics, "partitions", partitions,
		"took", time.Since(begun).Round(time.Millisecond).String())
	return nil
}

// A mixedReactor serves sockets on event loops, connections in memory on a goroutine each, and any other net.Conn through
// three.
type mixedReactor struct{ sockets, memory, others reactor }

func (m mixedReactor) Attach(c net.Conn, open func(transport) handler) error {
	switch c.(type) {
	case *memConn:
		return m.memory.Attach(c, open)
	case syscall.Conn:
		return m.sockets.Attach(c, open)
	}
	return m.others.Attach(c, open)
}

func (m mixedReactor) Stop() {
	m.sockets.Stop()
	m.memory.Stop()
	m.others.Stop()
}

// DefaultLoops is the number of event loops when none is asked for: half the processors, at least one. One loop moves
// batches as fast as the kernel copies them; the other half is for partitions' writers and for clients.
func DefaultLoops() int { return max(1, runtime.NumCPU()/2) }

// readBufferBytes is what one read of gnet takes: enough for a burst of small frames, while the body of a large frame
// is read straight into its slab.
const readBufferBytes = 64 << 10

// Addrs returns the addresses that the broker listens on.
func (b *Broker) Addrs() []net.Addr {
	addrs := make([]net.Addr, len(b.listeners))
	for i, l := range b.listeners {
		addrs[i] = l.Addr()
	}
	return addrs
}

// Serve accepts and serves until ctx ends, then drains: new work is refused, what is in flight is confirmed or
// refused, consumers get what they have credit for, within Limits.Drain. Then what was published to files is synced. It returns
// nil after a drain, or the error with which a file could not be closed. Serve is called once; after Close it
// returns net.ErrClosed.
func (b *Broker) Serve(ctx context.Context) error {
	if b.taken.Swap(true) {
		return fmt.Errorf("serve: %w", net.ErrClosed)
	}
	doors := make([]*acceptor, len(b.listeners))
	for i, l := range b.listeners {
		d := newAcceptor(acceptOptions{
			Listener: l, Reactor: b.reactor, Limits: acceptLimits{Connections: b.limits.Connections},
			refuse: refuse, Logger: b.log,
		})
		d.opts.open = func(t transport) handler { return b.open(t, d) }
		doors[i] = d
	}
	if b.topics.Stored() {
		b.offload = newOffloader()
	}
	for _, d := range doors {
		d.start()
	}
	stop := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { b.tick(stop) })
	ticking.Go(func() { b.watchMemory(stop) })

	<-ctx.Done()
	b.draining.Store(true)
	for _, d := range doors {
		d.close()
	}
	b.drain()
	close(stop)
	ticking.Wait()
	b.reactor.Stop()
	if b.offload != nil {
		b.offload.stop()
	}
	return b.topics.Close()
}

// Close releases what NewBroker took, the listeners among it, for a broker that is not going to be served. Where Serve was
// called it does nothing: that ends with its context. Closing twice is closing once. The error is one with which a file could
// not be closed.
func (b *Broker) Close() error {
	if b.taken.Swap(true) {
		return nil
	}
	for _, l := range b.listeners {
		_ = l.Close()
	}
	b.reactor.Stop()
	return b.topics.Close()
}

// tickEvery is how often deadlines are looked at: a login deadline of 10 s may take 10.5.
const tickEvery = 500 * time.Millisecond

func (b *Broker) tick(stop <-chan struct{}) {
	t := time.NewTicker(tickEvery)
	defer t.Stop()
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		now := time.Now()
		b.topics.Tick(now.Add(-b.limits.StallLimit).UnixMilli(), now.UnixMilli())
		b.eachLoop(func(l *loopState) { l.post(func() { l.tick() }) })
	}
}

func (b *Broker) eachLoop(f func(*loopState)) {
	b.mu.Lock()
	states := make([]*loopState, 0, len(b.states))
	for l := range b.states {
		states = append(states, l)
	}
	b.mu.Unlock()
	for _, l := range states {
		f(l)
	}
}

// drain tells every session to go away, waits until none has anything to confirm or deliver, shuts the sending side of each
// and waits until its peer has closed, all of that within the limit. For a peer that was idle it does not wait: clients
// that only listen would make every stop take the whole limit.
//
// Only a peer that has closed has read everything: closing first, while it sends, would reset the connection and take from
// it what is still on its way.
func (b *Broker) drain() {
	deadline := time.Now().Add(b.limits.Drain)
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	until := func(times int, left func(*loopState) int) bool {
		for zero := 0; zero < times; <-poll.C {
			if !time.Now().Before(deadline) {
				return false
			}
			if n, ok := b.sum(left); ok && n == 0 {
				zero++
			} else {
				zero = 0
			}
		}
		return true
	}
	b.eachLoop(func(l *loopState) { l.post(func() { l.goAway(b.limits.Drain) }) })
	// Twice: loops do not answer at the same moment. When a producer's loop has nothing unconfirmed, wake-ups for what it
	// has published are in the inboxes of its consumers' loops, which may have answered before.
	if until(2, (*loopState).unfinished) {
		b.eachLoop(func(l *loopState) { l.post(func() { l.hangUp(deadline) }) })
		until(1, (*loopState).closing)
	}
}

// sum adds up what f returns on every loop. A loop that has ended meanwhile does not answer: then ok is false, and those that
// are left can be asked again.
func (b *Broker) sum(f func(*loopState) int) (n int, ok bool) {
	var total atomic.Int64
	var wait sync.WaitGroup
	b.eachLoop(func(l *loopState) {
		wait.Add(1)
		l.post(func() {
			total.Add(int64(f(l)))
			wait.Done()
		})
	})
	answered := make(chan struct{})
	go func() { wait.Wait(); close(answered) }()
	select {
	case <-answered:
		return int(total.Load()), true
	case <-time.After(100 * time.Millisecond):
		return 0, false
	}
}

func (b *Broker) onRing(l *Loop) {
	if st, ok := l.state.(*loopState); ok {
		st.run()
	}
}

// open makes the session of a new connection, on its loop.
func (b *Broker) open(t transport, d *acceptor) handler {
	l, ok := t.Loop().state.(*loopState)
	if !ok {
		l = newLoopState(b, t.Loop())
		t.Loop().state = l
	}
	b.mu.Lock()
	b.states[l] = struct{}{}
	b.mu.Unlock()
	return newSession(l, t, d)
}

// forget takes a loop without sessions off the list: the loop of a connection that is no socket ends with it.
func (b *Broker) forget(l *loopState) {
	b.mu.Lock()
	delete(b.states, l)
	b.mu.Unlock()
}

// A logLimit lets one line of a kind through each logEvery: a flood of bad connections must not become a flood of lines.
type logLimit struct {
	mu   sync.Mutex
	last map[codec.Code]logged
}

type logged struct {
	at   time.Time
	more int // lines held back since
}

const logEvery = time.Second

// allow reports whether to log an event now, and how many of its kind were held back before it.
func (l *logLimit) allow(code codec.Code, now time.Time) (more int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = map[codec.Code]logged{}
	}
	e := l.last[code]
	if now.Sub(e.at) < logEvery {
		e.more++
		l.last[code] = e
		return 0, false
	}
	l.last[code] = logged{at: now}
	return e.more, true
}
