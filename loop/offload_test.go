package loop

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lightio/lightq/codec"
	"github.com/lightio/lightq/journal/vfs"
	"github.com/lightio/lightq/topic"
)

// heldDisk is a file system in memory on which some operations wait until they are let go.
type heldDisk struct {
	*vfs.Fault
	held atomic.Int64
	let  func()
}

func newHeldDisk() *heldDisk { return &heldDisk{Fault: vfs.NewFault(vfs.NewMem()), let: func() {}} }

// hold makes operations wait from now on.
func (d *heldDisk) hold(which func(vfs.Op) bool) {
	gate := make(chan struct{})
	d.let = sync.OnceFunc(func() { close(gate) })
	d.SetHook(func(op vfs.Op) error {
		if which(op) {
			d.held.Add(1)
			<-gate
		}
		return nil
	})
}

// toTheDrain takes frames until the broker has said that it goes away.
func (p *peer) toTheDrain() {
	p.t.Helper()
	for {
		if h, _, _ := p.next(); h.Type == codec.TypeGoAway {
			return
		}
	}
}

// A broker that drains while a time is looked up in its files answers who asked.
func TestDrainDuringATimeLookup(t *testing.T) {
	disk := newHeldDisk()
	cfg := diskConfig(disk)
	cfg.Limits.Drain = testDeadline
	b, stop := startStoppable(t, cfg)
	defer func() { disk.let(); _ = stop() }()
	p := dial(t, b).hello()
	p.create("t", fileSettings())
	p.open(1, "t", 0, 1)
	const n = 100
	for i := range n { // of which memory holds thirty
		p.published(1, 1, uint64(i), batchOf(make([]byte, 8000)))
	}
	disk.hold(func(op vfs.Op) bool { return op.Kind == vfs.OpRead || op.Kind == vfs.OpOpen })
	p.write(codec.AppendFetch(nil, 7, codec.Fetch{Topic: "t", From: codec.FromTime, Value: 1000, MaxBytes: 1, WaitMillis: 60_000}))
	eventually(t, "the lookup to wait for the disk", func() bool { return disk.held.Load() > 0 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	p.toTheDrain()
	onLoops(t, b, func(l *loopState) {
		for _, s := range l.sessions {
			s.tick()
		}
	})
	disk.let()
	h, section, _ := p.expect(codec.TypeFetch)
	reply, err := codec.ParseFetchReply(section)
	if err != nil || h.Correlation != 7 || reply.Start != 0 || reply.High != n {
		t.Errorf("%+v %+v %v", h, reply, err)
	}
	_ = p.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Requests of one connection that wait for the disk are served in their order.
func TestOrderOfRequests(t *testing.T) {
	b := startBroker(t, diskConfig(vfs.NewMem()))
	p := dial(t, b).hello()
	p.create("t", codec.TopicSettings{})
	const rounds = 200
	var ask []byte
	for i := range uint32(rounds) {
		ask = codec.AppendDelete(ask, 100+2*i, "t")
		ask = codec.AppendCreate(ask, 101+2*i, codec.Create{Topic: "t"})
	}
	wrote := make(chan error, 1)
	go func() { wrote <- p.tryWrite(ask) }()
	for i := range uint32(rounds) {
		if h, _, _ := p.expect(codec.TypeDelete); h.Correlation != 100+2*i {
			t.Fatalf("round %d: the delete reply has correlation %d", i, h.Correlation)
		}
		h, section, _ := p.expect(codec.TypeCreate)
		reply, err := codec.ParseCreateReply(section)
		if err != nil || h.Correlation != 101+2*i || !reply.Created {
			t.Fatalf("round %d: correlation %d, %+v, %v", i, h.Correlation, reply, err)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	p.describe("t")
}

// A connection has one subscription of a partition, also when the time at which the first begins is still being looked up.
func TestSubscribedTwiceFromATime(t *testing.T) {
	for _, s := range []codec.TopicSettings{{}, fileSettings()} {
		b := startBroker(t, diskConfig(vfs.NewMem()))
		p := dial(t, b).hello()
		p.create("t", s)
		m := codec.Subscribe{Topic: "t", From: codec.FromTime, Value: 1, CreditBytes: 1 << 20}
		p.write(append(subscribeFrame(1, m), subscribeFrame(2, m)...))
		first, _, _ := p.expect(codec.TypeSubscribe) // whichever time is found first
		second, _ := p.expectError(codec.CodeHandleInUse)
		if first.Handle+second.Handle != 3 || s.Storage != codec.StorageFile && first.Handle != 1 {
			t.Errorf("%s: handle %d was subscribed, handle %d refused", s.Storage, first.Handle, second.Handle)
		}
		p.expectEnd()
	}
}

// A JSON request that waits for the disk when the broker drains is answered.
func TestDrainDuringAJSONRequest(t *testing.T) {
	disk := newHeldDisk()
	cfg := diskConfig(disk)
	cfg.Loops, cfg.Limits.Drain = 1, testDeadline
	b, stop := startStoppable(t, cfg)
	defer func() { disk.let(); _ = stop() }()
	native, j := dial(t, b).hello(), dialJSON(t, b)
	j.ask(`{"cmd":"ping"}`, map[string]any{"pong": true})
	disk.hold(func(op vfs.Op) bool {
		return op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir || op.Kind == vfs.OpWriteSync
	})
	request := `{"cmd":"create_topic","topic":"t","broker_type":"file"}`
	j.write(request + "\n")
	eventually(t, "the request to wait for the disk", func() bool { return disk.held.Load() > 0 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	native.toTheDrain()
	if n := countSessions(t, b, (*session).unfinished); n != 1 {
		t.Errorf("the broker waits for %d connections", n)
	}
	disk.let()
	j.expect(request, map[string]any{"status": "ok"})
	_, _ = native.conn.Close(), j.conn.Close()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client that asks for what waits for the disk, and does not read, is not heard until it reads.
func TestJSONPausedBesideTheDisk(t *testing.T) {
	cfg := diskConfig(vfs.NewMem())
	cfg.Listener = NewInProcess()
	b := startBroker(t, cfg)
	p := dialJSON(t, b)
	name := strings.Repeat("t", topic.MaxNameBytes)
	const lines = 20_000 // 6 MB of replies, far more than the connection holds
	wrote := make(chan error, 1)
	go func() {
		chunk := strings.Repeat(fmt.Sprintf(`{"cmd":"create_topic","topic":%q,"broker_type":"queue"}`+"\n", name), 100)
		for range lines / 100 {
			if _, err := io.WriteString(p.conn, chunk); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	paused := func(s *session) bool { return s.paused && s.asked == 0 }
	eventually(t, "reading to be paused", func() bool { return countSessions(t, b, paused) == 1 })
	for range 100 { // what is still read would be served meanwhile
		if countSessions(t, b, func(s *session) bool { return paused(s) && s.out.bytes <= b.limits.controlBacklogHigh+1000 }) != 1 {
			t.Fatal("it is heard though it does not read")
		}
	}
	for range lines {
		if m := p.reply(); m["status"] != "ok" || m["topic"] != name {
			t.Fatalf("%v", m)
		}
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// Requests that still wait for the disk when the time to drain is over are given up: nobody is there for their answers, and the stop
// would take as long as they do.
func TestStopGivesUpWhatIsQueued(t *testing.T) {
	disk := newHeldDisk()
	cfg := diskConfig(disk)
	cfg.Limits.Drain = 10 * time.Millisecond
	b, stop := startStoppable(t, cfg)
	defer func() { disk.let(); _ = stop() }()
	p := dial(t, b).hello()
	const requests = 10
	var ask []byte
	for i := range uint32(requests) {
		name := fmt.Sprint("t", i)
		p.create(name, codec.TopicSettings{})
		ask = codec.AppendDelete(ask, 1+i, name)
	}
	disk.hold(func(op vfs.Op) bool {
		return op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir || op.Kind == vfs.OpWriteSync
	})
	p.write(ask)
	eventually(t, "the first to wait for the disk", func() bool {
		return disk.held.Load() > 0 && countSessions(t, b, func(s *session) bool { return s.asked == requests }) == 1
	})
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	eventually(t, "the workers to be stopped", func() bool {
		select {
		case <-b.offload.stopped:
			return true
		default:
			return false
		}
	})
	disk.let()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	disk.SetHook(nil)
	again := dial(t, startBroker(t, diskConfig(disk))).hello()
	again.refused(codec.CodeUnknownTopic, codec.AppendDescribe(nil, 9, "t0"))
	for i := 1; i < requests; i++ {
		again.describe(fmt.Sprint("t", i))
	}
}

// A request that the disk holds up holds up nobody but those behind it on its connection.
func TestHeldRequestHoldsUpNobody(t *testing.T) {
	disk := newHeldDisk()
	b := startBroker(t, diskConfig(disk))
	t.Cleanup(func() { disk.let() })
	dialJSON(t, b).ask(`{"cmd":"create_topic","topic":"secret","user_id":"ann","password":"pencil"}`, map[string]any{"status": "ok"})
	p := dial(t, b).hello()
	disk.hold(func(op vfs.Op) bool {
		return op.Kind == vfs.OpSync || op.Kind == vfs.OpSyncDir || op.Kind == vfs.OpWriteSync
	})
	p.write(codec.AppendCreate(nil, 7, codec.Create{Topic: "t"}))
	eventually(t, "the request to wait for the disk", func() bool { return disk.held.Load() > 0 })
	for range 2 * offloadWorkers {
		dialJSON(t, b).ask(`{"cmd":"join","type":"sub","topic":"secret","user_id":"ann","password":"pen"}`,
			map[string]any{"status": "error", "code": "not_allowed"})
	}
	disk.let()
	if h, _, _ := p.expect(codec.TypeCreate); h.Correlation != 7 {
		t.Errorf("the reply has correlation %d", h.Correlation)
	}
}
