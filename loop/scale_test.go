package loop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/topic"
)

// The scale proofs: what ten thousand idle subscribers and ten thousand idle topics cost. The tests run at a twentieth of that and
// at full scale with LIGHTQ_SOAK=1; the benchmarks print the figures of docs/BENCHMARKS.md at full scale.

// clientsVariable makes the test's binary a process of idle subscribers, so that their memory is not the broker's:
// "address count".
const clientsVariable = "LIGHTQ_TEST_CLIENTS"

func TestMain(m *testing.M) {
	if what := os.Getenv(clientsVariable); what != "" {
		if err := runClients(what, os.Stdin, os.Stdout); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runClients connects and subscribes, says so, and for each line on in reads one record on each connection and says so.
func runClients(what string, in io.Reader, out io.Writer) error {
	addr, number, _ := strings.Cut(what, " ")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	raiseDescriptors()
	peers := make([]*peer, n)
	var work sync.WaitGroup
	faults := make(chan error, n)
	each := func(f func(i int) error) error {
		for w := range 8 {
			work.Go(func() {
				for i := w; i < n; i += 8 {
					if err := f(i); err != nil {
						faults <- fmt.Errorf("client %d: %w", i, err)
						return
					}
				}
			})
		}
		work.Wait()
		select {
		case err := <-faults:
			return err
		default:
			return nil
		}
	}
	expect := func(p *peer, want codec.Type) (payload []byte, err error) {
		h, section, payload, err := p.tryNext()
		if err == nil && h.Type != want {
			err = fmt.Errorf("got %s%s, want %s", h.Type, said(h, section), want)
		}
		return payload, err
	}
	err = each(func(i int) error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		p := &peer{conn: conn}
		peers[i] = p
		if err := p.tryWrite(codec.AppendHello(nil, 1, false, codec.Hello{MinVersion: 1, MaxVersion: 1, Name: "idle"})); err != nil {
			return err
		}
		if _, err := expect(p, codec.TypeHello); err != nil {
			return err
		}
		if err := p.tryWrite(subscribeFrame(1, codec.Subscribe{Topic: "idle", From: codec.FromLatest, CreditBytes: 4 << 20})); err != nil {
			return err
		}
		_, err = expect(p, codec.TypeSubscribe)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "subscribed")
	for lines := bufio.NewScanner(in); lines.Scan(); {
		err := each(func(i int) error {
			payload, err := expect(peers[i], codec.TypeDeliver)
			if err != nil {
				return err
			}
			return peers[i].tryWrite(codec.AppendCredit(nil, 1, uint32(len(payload))))
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "read")
	}
	return nil
}

// raiseDescriptors lets the process open as many files as it may, and returns how many these are.
func raiseDescriptors() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 256
	}
	// macOS allows no more than OPEN_MAX, whatever the hard limit says.
	for _, most := range []uint64{l.Max, 10_240} {
		want := l
		if want.Cur = min(most, l.Max); want.Cur > l.Cur && unix.Setrlimit(unix.RLIMIT_NOFILE, &want) == nil {
			return int(min(want.Cur, 1<<30))
		}
	}
	return int(min(l.Cur, 1<<30))
}

// A footprint is what a process holds when the garbage is gone.
type footprint struct {
	live     int64 // bytes of the heap and of stacks
	resident int64 // 0 where the system does not tell
	slabs    int64
	routines int
}

func footprintOf(t testing.TB, b *Broker) footprint {
	t.Helper()
	debug.FreeOSMemory()
	debug.FreeOSMemory() // what the first one finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{
		live: int64(m.HeapAlloc + m.StackInuse), resident: residentBytes(t), slabs: b.slabs.InUseBytes(), routines: runtime.NumGoroutine(),
	}
}

// idleSubscribers measures n idle subscribers: connected, and idle again after one record for each.
func idleSubscribers(t testing.TB, n int) (before, idle, again footprint) {
	if most := raiseDescriptors() - 100; n > most {
		t.Logf("the system lets a process have %d descriptors: %d subscribers instead of %d", most+100, most, n)
		n = most
	}
	b := startBroker(t, Config{Limits: Limits{Heartbeat: 10 * time.Minute}})
	pub := dial(t, b).hello()
	pub.create("idle", codec.TopicSettings{})
	pub.open(1, "idle", 0, 1)
	before = footprintOf(t, b)

	clients := exec.Command(os.Args[0])
	clients.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", clientsVariable, b.Addrs()[0], n))
	in, err := clients.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := clients.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := clients.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		if err := clients.Wait(); err != nil {
			t.Errorf("the clients' process: %v", err)
		}
		eventually(t, "the subscribers to be gone", func() bool { return b.conns.Load() == 1 })
	}()
	lines := bufio.NewScanner(out)
	said := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("the clients' process said %q, want %q", lines.Text(), want)
		}
	}
	said("subscribed")
	if got := info(t, b, "idle").Subscriptions; int(got) != n {
		t.Fatalf("%d subscriptions, want %d", got, n)
	}
	idle = footprintOf(t, b)
	pub.published(1, 1, 0, batchOf(make([]byte, 1000)))
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
	said("read")
	pub.alive()
	again = footprintOf(t, b)
	return before, idle, again
}

// idleSubscriberBytes is what one may cost: DESIGN's bound.
const idleSubscriberBytes = 20 << 10

// Case F81: idle connections cost memory that is taken for what they might do. An idle subscriber costs less than 20 KiB, before
// and after it was sent something, and no goroutine.
func TestF81IdleSubscribers(t *testing.T) {
	n := scaled(10_000)
	before, idle, again := idleSubscribers(t, n)
	for _, c := range []struct {
		when string
		now  footprint
	}{{"connected", idle}, {"after a record each", again}} {
		live, resident := (c.now.live-before.live)/int64(n), (c.now.resident-before.resident)/int64(n)
		t.Logf("%d idle subscribers, %s: %d bytes of heap and stacks each, %d resident, %d goroutines more", n, c.when, live, resident,
			c.now.routines-before.routines)
		if live > idleSubscriberBytes {
			t.Errorf("%s: %d bytes each", c.when, live)
		}
		// The runtime gives pages back when it likes to: a part of it does not depend on the number of subscribers.
		if slack := int64(24 << 20); c.now.resident-before.resident > int64(n)*idleSubscriberBytes+slack {
			t.Errorf("%s: resident memory rose by %d bytes", c.when, c.now.resident-before.resident)
		}
		if c.now.slabs-before.slabs > 64<<10 {
			t.Errorf("%s: %d bytes of slabs are in use", c.when, c.now.slabs-before.slabs)
		}
		if more := c.now.routines - before.routines; more > 10 {
			t.Errorf("%s: %d goroutines more", c.when, more)
		}
	}
}

func BenchmarkIdleSubscribers(b *testing.B) {
	for b.Loop() {
		const n = 10_000
		before, idle, again := idleSubscribers(b, n)
		b.ReportMetric(float64(idle.live-before.live)/n, "heap-B/conn")
		b.ReportMetric(float64(idle.resident-before.resident)/n, "rss-B/conn")
		b.ReportMetric(float64(again.live-before.live)/n, "heap-B/conn-after")
		b.ReportMetric(float64(again.resident-before.resident)/n, "rss-B/conn-after")
		b.ReportMetric(0, "ns/op")
	}
}

// idleTopics makes n topics with two groups each, of which one has a member and the other has been left, and returns a
// broker that has nothing to do.
func idleTopics(t testing.TB, n int) (b *Broker, admin *peer) {
	b = startBroker(t, Config{Limits: Limits{Heartbeat: 10 * time.Minute}})
	admin = dial(t, b).hello()
	name := func(i int) string { return fmt.Sprintf("topic-%05d", i) }
	const perConn = 4000 // handles
	var stay *peer
	for from := 0; from < n; from += perConn {
		stay = dial(t, b).hello()
		leave := dial(t, b).hello()
		for i := from; i < min(n, from+perConn); i++ {
			admin.create(name(i), codec.TopicSettings{})
			for k, p := range []*peer{stay, leave} {
				p.subscribe(uint32(i-from+1), codec.Subscribe{
					Topic: name(i), Kind: codec.KindPull, Name: []string{"present", "gone"}[k], CreditBytes: 1 << 20,
				})
			}
		}
		_ = leave.conn.Close()
	}
	eventually(t, "members to have left", func() bool {
		return info(t, b, name(0)).Subscriptions == 1 && info(t, b, name(n-1)).Subscriptions == 1
	})
	if topics, _ := b.topics.Count(); topics != n {
		t.Fatalf("%d topics, want %d", topics, n)
	}
	return b, admin
}

// cpuSeconds is what the process has used of the processors.
func cpuSeconds(t testing.TB) float64 {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// idleCPU is the share of one core that the process uses while nothing happens for d. The connection is silent meanwhile.
func (p *peer) idleCPU(d time.Duration) float64 {
	p.t.Helper()
	runtime.GC()
	start, used := time.Now(), cpuSeconds(p.t)
	_ = p.conn.SetReadDeadline(start.Add(d))
	var b [1]byte
	if _, err := p.conn.Read(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("an idle broker was heard: %#x, %v", b[0], err)
	}
	return (cpuSeconds(p.t) - used) / time.Since(start).Seconds()
}

// Case F79: ten thousand idle topics burn CPU. With two groups each they have no goroutine and no timer, and the broker's tick looks
// at none; traffic on one of them costs what it costs on the only one.
func TestF79IdleTopics(t *testing.T) {
	n := scaled(10_000)
	before := runtime.NumGoroutine()
	b, admin := idleTopics(t, n)
	if more := runtime.NumGoroutine() - before; more > 20 {
		t.Errorf("%d idle topics have %d goroutines", n, more)
	}
	ticks := func() int {
		now := time.Now()
		return b.topics.Tick(now.Add(-b.limits.StallLimit).UnixMilli(), now.UnixMilli())
	}
	if got := ticks(); got != 0 {
		t.Errorf("a tick looks at %d of %d idle topics", got, n)
	}
	// Traffic on one.
	const name = "topic-00000"
	admin.open(1, name, 0, 1)
	admin.subscribe(2, codec.Subscribe{Topic: name, CreditBytes: 1 << 20})
	for i := range uint64(20) {
		admin.write(publishFrame(1, 1, i, batchOf([]byte("x"))))
		for confirmed, got := false, false; !confirmed || !got; {
			switch h, section, payload := admin.next(); h.Type {
			case codec.TypeConfirm:
				admin.addResults(section, payload)
				admin.confirmed(1)
				confirmed = true
			case codec.TypeDeliver:
				got = true
			default:
				t.Fatalf("got %s%s", h.Type, said(h, section))
			}
		}
	}
	if got := ticks(); got != 0 {
		t.Errorf("a tick looks at %d topics after traffic on one", got)
	}
	// The groups that were left are looked at once, when their grace is over.
	later := time.Now().Add(2 * time.Minute).UnixMilli()
	got := 0
	eventually(t, "the groups to be looked at", func() bool { // the broker's own tick may have the list just now
		got += b.topics.Tick(later-30_000, later)
		return got >= n
	})
	if got != n {
		t.Errorf("%d of %d groups were looked at when their grace was over", got, n)
	}
	if got := b.topics.Tick(later-30_000, later+500); got != 0 {
		t.Errorf("%d were looked at again", got)
	}
	d := time.Second
	if soak() {
		d = 60 * time.Second
	}
	t.Logf("%d idle topics with %d groups: %.2f%% of one core over %s", n, 2*n, 100*admin.idleCPU(d), d)
}

func BenchmarkIdleTopics(b *testing.B) {
	for b.Loop() {
		const n = 10_000
		before := runtime.NumGoroutine()
		_, admin := idleTopics(b, n)
		b.ReportMetric(float64(runtime.NumGoroutine()-before), "goroutines")
		b.ReportMetric(100*admin.idleCPU(10*time.Second), "%core")
		b.ReportMetric(0, "ns/op")
	}
}

// Ticks and pages of a list cost what there is to do, not what there is.
func BenchmarkRegistry(b *testing.B) {
	r := topic.NewRegistry(100_000)
	for i := range 100_000 {
		if _, _, err := r.Create(fmt.Sprintf("topic-%05d", i), codec.TopicSettings{}, "", ""); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("tick/topics=100000", func(b *testing.B) {
		for b.Loop() {
			r.Tick(0, 1)
		}
	})
	b.Run("list/topics=100000/page=2000", func(b *testing.B) {
		for b.Loop() {
			if page, more := r.List("topic-50000", listLimit); len(page) != listLimit || !more {
				b.Fatal("not a page")
			}
		}
	})
}
