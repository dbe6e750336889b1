package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

// events collects ConnEvents.
type events struct {
	mu  sync.Mutex
	all []ConnEvent
}

func (e *events) option() Option {
	return WithOnConn(func(ev ConnEvent) {
		e.mu.Lock()
		e.all = append(e.all, ev)
		e.mu.Unlock()
	})
}

func (e *events) of(role Role) (some []ConnEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Role == role {
			some = append(some, ev)
		}
	}
	return some
}

func (e *events) states(role Role) (states []ConnState) {
	for _, ev := range e.of(role) {
		states = append(states, ev.State)
	}
	return states
}

var errRefused = errors.New("connection refused")

// away makes the fake refuse connections until the function that it returns is called.
func (f *fakeBroker) away() (back func()) {
	f.mu.Lock()
	f.refuse = func() error { return errRefused }
	f.mu.Unlock()
	f.cut()
	return func() {
		f.mu.Lock()
		f.refuse = nil
		f.mu.Unlock()
	}
}

func TestSeveralBrokers(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		var tried []string
		dead := map[string]bool{"a:1": true, "/b": true}
		dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
			tried = append(tried, network+" "+addr)
			switch {
			case addr == "silent:1":
				<-ctx.Done()
				return nil, ctx.Err()
			case dead[addr]:
				return nil, errRefused
			}
			return f.dial(ctx, network, addr)
		}
		c, err := Dial(t.Context(), "tcp://a:1, unix:///b,c:3,tcp://d:4", WithDialer(dial))
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"tcp a:1", "unix /b", "tcp c:3"}; !slices.Equal(tried, want) {
			t.Errorf("tried %q, want %q", tried, want)
		}
		// Every connection begins with the first again.
		tried, dead["/b"] = nil, false
		newProducer(t, c)
		if want := []string{"tcp a:1", "unix /b"}; !slices.Equal(tried, want) {
			t.Errorf("tried %q, want %q", tried, want)
		}
		f.stop(c)

		dead["d:4"] = true
		_, err = Dial(t.Context(), "a:1,d:4", WithDialer(dial))
		for _, want := range []string{"a:1", "d:4", "refused"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %s", err, want)
			}
		}
		if !errors.Is(err, errRefused) || !isConn(err) || !Retryable(err) {
			t.Error(err)
		}
		// One that may come back makes it worth trying again, whatever the others say.
		for _, list := range []string{"a:1,http:1", "http:1,a:1"} {
			_, err := Dial(t.Context(), list, WithDialer(func(_ context.Context, _, addr string) (net.Conn, error) {
				if addr == "http:1" {
					ours, theirs := net.Pipe()
					go func() {
						_, _ = theirs.Read(make([]byte, 100))
						_, _ = theirs.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
						_ = theirs.Close()
					}()
					return ours, nil
				}
				return nil, errRefused
			}))
			if !errors.Is(err, codec.CodeFrameTooLarge) || !errors.Is(err, errRefused) || !Retryable(err) {
				t.Errorf("%s: %v", list, err)
			}
		}

		// A broker that does not answer takes its share of the time and no more.
		start := time.Now()
		c, err = Dial(t.Context(), "silent:1,c:3", WithDialer(dial), WithTimeout(8*time.Second))
		if err != nil || time.Since(start) != 4*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		f.stop(c)
		for _, list := range []string{"", "a:1,", ",a:1", "a:1,b", "a:1,http://b:2"} {
			if _, err := Dial(t.Context(), list, WithDialer(dial)); err == nil || isConn(err) {
				t.Errorf("%q: %v", list, err)
			}
		}
	})
}

func TestReconnectOptions(t *testing.T) {
	for _, opt := range []Option{
		WithReconnect(0, time.Second), WithReconnect(time.Second, time.Millisecond), WithReconnect(-1, -1), WithReconnectLimit(-1),
	} {
		if _, err := Dial(t.Context(), "a:1", opt); err == nil || isConn(err) {
			t.Error(err)
		}
	}
	a := againConfig{least: 50 * time.Millisecond, most: 5 * time.Second}
	want := a.least
	for attempt := range 200 {
		for range 50 {
			if d := a.pause(attempt); d < want/2 || d > want+1 {
				t.Fatalf("attempt %d: a pause of %v, want %v to %v", attempt, d, want/2, want)
			}
		}
		want = min(2*want, a.most)
	}
	if d := (againConfig{least: 1, most: 1}).pause(0); d < 1 {
		t.Error(d)
	}
}

// What was on its way when the connection was lost is unknown and told so; what waited to be sent goes out when there
// is a connection again, and so does what is published meanwhile.
func TestProducerComesBack(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		var ev events
		_ = holdConfirms(f) // none is released
		c := f.client(reconnecting(time.Second, time.Minute), ev.option())
		defer f.stop(c)
		p := newProducer(t, c, Linger(time.Hour))
		results := make([]error, 3)
		called := make([]int, 3)
		publish := func(i int) {
			t.Helper()
			if err := p.PublishAsync(t.Context(), Message{Value: fmt.Appendf(nil, "m%d", i)}, func(_ Receipt, err error) {
				results[i] = err
				called[i]++
			}); err != nil {
				t.Fatal(err)
			}
		}
		publish(0)
		if err := p.open[0].push(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		publish(1) // waits in its batch
		back := f.away()
		synctest.Wait()
		if called[0] != 1 || !isConn(results[0]) || !Retryable(results[0]) {
			t.Errorf("the message on its way: %v", results[0])
		}
		if err := p.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		publish(2)
		<-time.After(10 * time.Second)
		synctest.Wait()
		back()
		f.change(func() { f.on = nil })
		if err := p.Flush(t.Context()); !isConn(err) {
			t.Errorf("Flush: %v, want what became of the first message", err)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("the next Flush: %v", err)
		}
		if called[1] != 1 || called[2] != 1 || results[1] != nil || results[2] != nil {
			t.Errorf("called %v: %v", called, results)
		}
		if got := f.values(0); !slices.Equal(got, []string{"m0", "m1", "m2"}) {
			t.Errorf("stored %q", got)
		}
		synctest.Wait() // that the connection is there is told behind what it brings
		want := []ConnState{ConnLost, ConnFailed, ConnFailed, ConnFailed, ConnMade}
		all := ev.of(RoleProducer)
		if got := ev.states(RoleProducer); len(got) < 4 || got[0] != ConnLost || got[len(got)-1] != ConnMade {
			t.Errorf("states %v, want some like %v", got, want)
		}
		for i, e := range all {
			switch {
			case e.Topic != "orders":
				t.Errorf("%+v", e)
			case e.State == ConnLost && (e.Addr != "fake:5500" || !errors.Is(e.Err, io.EOF)),
				e.State == ConnFailed && (e.Attempt != i || e.Next <= 0 || !errors.Is(e.Err, errRefused)),
				e.State == ConnMade && (e.Attempt != i || e.Addr != "fake:5500" || e.Err != nil):
				t.Errorf("event %d: %+v", i, e)
			}
		}
	})
}

// The pauses grow up to the cap, begin anew only when a connection has held, and the attempts go on for ever.
func TestBackOff(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const least, most = time.Second, time.Minute
		f.hello.HeartbeatMillis = 0 // the fake sends none
		var ev events
		c := f.client(reconnecting(least, most), ev.option())
		defer f.stop(c)
		p := newProducer(t, c)
		back := f.away()
		<-time.After(3 * time.Hour) // virtual
		failed := ev.of(RoleProducer)[1:]
		if n := len(failed); n < 3*60 || n > 2*3*60+20 {
			t.Errorf("%d attempts in three hours", n)
		}
		for i, e := range failed {
			if want := min(least<<min(i+1, 10), most); e.Next < want/2 || e.Next > want+1 {
				t.Fatalf("the pause behind attempt %d is %v, want %v to %v", e.Attempt, e.Next, want/2, want)
			}
		}
		back()
		if _, err := p.Publish(t.Context(), Message{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		// A connection that is lost at once is not tried at full speed.
		for range 10 {
			f.cut()
			if _, err := p.Publish(t.Context(), Message{Value: []byte("x")}); err != nil && !isConn(err) {
				t.Fatal(err)
			}
		}
		start := time.Now()
		f.cut()
		synctest.Wait() // until the loss is told
		for ev.states(RoleProducer)[len(ev.states(RoleProducer))-1] != ConnMade {
			<-time.After(100 * time.Millisecond)
		}
		if d := time.Since(start); d < most/2 {
			t.Errorf("a broker that ends every connection is called again after %v", d)
		}
		<-time.After(2 * most)
		start = time.Now()
		f.cut()
		synctest.Wait()
		for ev.states(RoleProducer)[len(ev.states(RoleProducer))-1] != ConnMade {
			<-time.After(100 * time.Millisecond)
		}
		if d := time.Since(start); d > 2*least {
			t.Errorf("behind a connection that held, the first pause is %v", d)
		}
	})
}

// While there is no connection, publishers wait once a batch is full, until their contexts end, and say why. Close waits for
// what it has to send, as long as it may, and not without.
func TestNoConnection(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Second))
		defer f.stop(c)
		p := newProducer(t, c, BatchBytes(minBatchBytes))
		f.away()
		synctest.Wait()
		value := make([]byte, 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		taken, calls := 0, 0
		var told error
		var err error
		for err == nil {
			err = p.PublishAsync(ctx, Message{Value: value}, func(_ Receipt, err error) { calls++; told = err })
			taken++
		}
		taken--
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) || taken == 0 || taken > minBatchBytes/100 {
			t.Errorf("after %d messages: %v", taken, err)
		}
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) {
			t.Errorf("Flush: %v", err)
		}
		if calls != 0 {
			t.Errorf("%d messages were reported", calls)
		}
		start := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = p.Close(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "partition 0") {
			t.Errorf("Close: %v", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("Close took %v", d)
		}
		if calls != taken || !errors.Is(told, ErrClosed) {
			t.Errorf("%d of %d messages were reported: %v", calls, taken, told)
		}
		if err := p.Err(); !errors.Is(err, ErrClosed) {
			t.Errorf("Err: %v", err)
		}
		if err := p.PublishValue(t.Context(), 0, nil); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Hour, time.Hour))
		p, co := newProducer(t, c), newConsumer(t, c)
		ended := make(chan error, 1)
		go func() {
			for _, err := range co.Records(context.Background()) {
				ended <- err
			}
		}()
		describing := make(chan error, 1)
		f.away()
		synctest.Wait()
		go func() { _, err := c.Describe(context.Background(), "orders"); describing <- err }()
		synctest.Wait()
		start := time.Now()
		if err := c.Close(); err != nil {
			t.Errorf("Close with nothing to send: %v", err)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v", d)
		}
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("consumer: %v", err)
		}
		if err := <-describing; !errors.Is(err, ErrClosed) {
			t.Errorf("request: %v", err)
		}
		if err := p.Err(); !errors.Is(err, ErrClosed) {
			t.Errorf("producer: %v", err)
		}
		f.stop(nil)
	})
}

func TestReconnectLimit(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		var ev events
		c := f.client(reconnecting(time.Second, 4*time.Second), ev.option(), WithReconnectLimit(time.Minute))
		defer f.stop(c)
		p, co := newProducer(t, c), newConsumer(t, c)
		f.away()
		start := time.Now()
		for _, err := range co.Records(t.Context()) {
			if !isConn(err) || !errors.Is(err, errRefused) {
				t.Errorf("consumer: %v", err)
			}
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("the consumer gave up after %v", d)
		}
		synctest.Wait()
		if err := p.Err(); !isConn(err) || !errors.Is(err, errRefused) {
			t.Errorf("producer: %v", err)
		}
		if _, err := p.Publish(t.Context(), Message{}); !isConn(err) {
			t.Errorf("Publish: %v", err)
		}
		for _, role := range []Role{RoleProducer, RoleConsumer} {
			all := ev.of(role)
			for i, e := range all[1:] {
				if last := i == len(all)-2; e.State != ConnFailed || (e.Next == 0) != last {
					t.Errorf("%+v", e)
				}
			}
		}
		for _, err := range co.Records(t.Context()) {
			if !isConn(err) {
				t.Errorf("a consumer that has given up: %v", err)
			}
		}
	})
}

// What the broker says when the connection is there again, and what does not pass, ends what it is about.
func TestBrokerAnswersOtherwise(t *testing.T) {
	refuseAll := func(t codec.Type, code codec.Code, partition uint32) func(c *fakeConn, h codec.Header, header, _ []byte) bool {
		return func(c *fakeConn, h codec.Header, header, _ []byte) bool {
			if h.Type != t {
				return false
			}
			number := ^uint32(0)
			if m, err := codec.ParseOpen(header); err == nil && t == codec.TypeOpen {
				number = m.Partition
			}
			if m, err := codec.ParseSubscribe(header); err == nil && t == codec.TypeSubscribe {
				number = m.Partition
			}
			if partition != ^uint32(0) && number != partition {
				return false
			}
			c.send(codec.AppendError(nil, h.Correlation, h.Handle, codec.Errorf(code, "says the test")))
			return true
		}
	}
	const every = ^uint32(0)
	t.Run("producer, one partition", func(t *testing.T) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			p := newProducer(t, c)
			f.change(func() { f.on = refuseAll(codec.TypeOpen, codec.CodeUnknownPartition, 1) })
			f.cut()
			synctest.Wait()
			if _, err := p.Publish(t.Context(), Message{Partition: 0}); err != nil {
				t.Error(err)
			}
			if _, err := p.Publish(t.Context(), Message{Partition: 1}); !errors.Is(err, codec.CodeUnknownPartition) || isConn(err) {
				t.Error(err)
			}
			if err := p.Err(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("producer, all partitions", func(t *testing.T) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			p := newProducer(t, c)
			f.change(func() { f.on = refuseAll(codec.TypeOpen, codec.CodeUnknownTopic, every) })
			f.cut()
			<-time.After(time.Minute)
			if _, err := p.Publish(t.Context(), Message{Partition: 0}); !errors.Is(err, codec.CodeUnknownTopic) {
				t.Error(err)
			}
			if err := p.Err(); !errors.Is(err, codec.CodeUnknownTopic) {
				t.Error(err)
			}
		})
	})
	t.Run("what passes", func(t *testing.T) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			p, co := newProducer(t, c), newConsumer(t, c)
			var mu sync.Mutex
			left := 5
			passing := func(kind codec.Type) func(c *fakeConn, h codec.Header, header, payload []byte) bool {
				refuse := refuseAll(kind, codec.CodeDraining, 1)
				return func(c *fakeConn, h codec.Header, header, payload []byte) bool {
					mu.Lock()
					defer mu.Unlock()
					if left > 0 && refuse(c, h, header, payload) {
						left--
						return true
					}
					return false
				}
			}
			f.change(func() { f.on = passing(codec.TypeOpen) })
			f.cut()
			synctest.Wait()
			for i := range 2 {
				if _, err := p.Publish(t.Context(), Message{Partition: i, Value: []byte("x")}); err != nil {
					t.Error(err)
				}
			}
			left = 5
			f.change(func() { f.on = passing(codec.TypeSubscribe) })
			f.cut()
			take(t, co.Records(t.Context()), 2)
			if left != 0 {
				t.Errorf("%d refusals are left", left)
			}
		})
	})
	t.Run("consumer, one partition", func(t *testing.T) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			co := newConsumer(t, c)
			f.put(0, "a")
			take(t, co.Records(t.Context()), 1)
			f.change(func() { f.on = refuseAll(codec.TypeSubscribe, codec.CodeOffsetOutOfRange, 1) })
			f.cut()
			f.put(0, "b")
			var told error
			for r, err := range co.Records(t.Context()) {
				if err != nil {
					told = err
					continue
				}
				if string(r.Value) != "b" || r.Offset != 1 {
					t.Errorf("%+v", r)
				}
				break
			}
			var pe *PartitionError
			if !errors.As(told, &pe) || pe.Partition != 1 || !errors.Is(told, codec.CodeOffsetOutOfRange) {
				t.Errorf("told %v", told)
			}
		})
	})
	t.Run("consumer, another topic of the name", func(t *testing.T) {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			co := newConsumer(t, c)
			f.change(func() { f.topicID = codec.TopicID{2} })
			f.cut()
			var told []error
			for _, err := range co.Records(t.Context()) {
				told = append(told, err)
			}
			if len(told) != 2 || !errors.Is(told[0], codec.CodeTopicDeleted) || !errors.Is(told[1], codec.CodeTopicDeleted) {
				t.Errorf("told %v", told)
			}
			for _, err := range co.Records(t.Context()) {
				if !errors.Is(err, codec.CodeTopicDeleted) {
					t.Errorf("again: %v", err)
				}
			}
		})
	})
	t.Run("another version", func(t *testing.T) {
		bubble(t, 1, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			p, co := newProducer(t, c), newConsumer(t, c)
			f.change(func() { f.on = refuseAll(codec.TypeHello, codec.CodeUnsupportedVersion, every) })
			f.cut()
			for _, err := range co.Records(t.Context()) {
				if !errors.Is(err, codec.CodeUnsupportedVersion) || !isConn(err) {
					t.Error(err)
				}
			}
			<-time.After(time.Minute)
			if err := p.Err(); !errors.Is(err, codec.CodeUnsupportedVersion) || !isConn(err) {
				t.Error(err)
			}
		})
	})
}

// A consumer goes on where it was, also in the middle of a batch, and whichever way it is iterated; what is gone for good is
// told; its context ends the waiting, and iterating anew goes on with it.
func TestConsumerComesBack(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		var ev events
		c := f.client(reconnecting(time.Second, time.Minute), ev.option())
		defer f.stop(c)
		co := newConsumer(t, c)
		f.put(0, "a", "b", "c")
		if got := take(t, co.Records(t.Context()), 2); !slices.Equal(got, []string{"0 a", "1 b"}) {
			t.Error(got)
		}
		f.put(0, "d")
		f.put(1, "e")
		synctest.Wait()
		back := f.away()
		f.put(1, "f") // nobody is connected
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var got []string
		var ended error
		for r, err := range co.Records(ctx) {
			if err != nil {
				ended = err
				break
			}
			got = append(got, string(r.Value))
		}
		if !errors.Is(ended, context.DeadlineExceeded) || len(got) == 0 || got[0] != "c" {
			t.Errorf("got %q, then %v", got, ended)
		}
		back()
		for len(got) < 4 {
			for r, err := range co.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, string(r.Value))
				break
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, []string{"c", "d", "e", "f"}) {
			t.Errorf("got %q", got)
		}
		for _, pos := range co.Positions() {
			if want := []codec.Offset{4, 2}[pos.Partition]; pos.Next != want || pos.Begin != 0 || pos.High != want {
				t.Errorf("%+v", pos)
			}
		}
		states := ev.states(RoleConsumer)
		if n := len(states); n < 3 || states[0] != ConnLost || states[n-1] != ConnMade || slices.Contains(states[1:], ConnLost) {
			t.Errorf("states %v", states)
		}

		// Credit is granted anew: more than one window comes.
		for range 3 {
			f.cut()
			for range 3 {
				f.put(0, strings.Repeat("x", codec.DefaultWindowBytes/2))
			}
			n := 0
			for b, err := range co.Batches(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if b.Batch != nil {
					n++
				}
				if n == 3 {
					break
				}
			}
		}

		// A topic that keeps nothing begins at its end.
		f.setOn(func(c *fakeConn, h codec.Header, header, _ []byte) bool {
			m, err := codec.ParseSubscribe(header)
			if h.Type == codec.TypeCredit && h.Handle == 2 {
				return true
			}
			if h.Type != codec.TypeSubscribe || err != nil || m.Partition != 1 {
				return false
			}
			c.send(codec.AppendSubscribeReply(nil, h.Correlation, h.Handle, codec.SubscribeReply{
				Partitions: 2, Start: 10, High: 10, Begin: 10,
			}))
			return true
		})
		f.cut()
		for r, err := range co.Records(t.Context()) {
			var gap *GapError
			if !errors.As(err, &gap) || r.Partition != 1 || gap.Gap != (codec.Gap{From: 2, Next: 10, Reason: codec.GapDropped}) {
				t.Errorf("%+v %v", r, err)
			}
			break
		}
		if pos := co.Positions()[1]; pos.Next != 10 || pos.Start != 10 {
			t.Errorf("%+v", pos)
		}
	})
}

// A member of a group joins it again; where the broker has forgotten the group, that begins where it stood at first.
func TestMemberComesBack(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		c := f.client(reconnecting(time.Second, time.Minute))
		defer f.stop(c)
		f.put(0, "a")
		f.put(0, "b")
		var asked []codec.Subscribe
		f.setOn(func(_ *fakeConn, h codec.Header, header, _ []byte) bool {
			if h.Type == codec.TypeSubscribe {
				m, err := codec.ParseSubscribe(header)
				if err != nil {
					t.Error(err)
				}
				asked = append(asked, m)
			}
			return false
		})
		co := newConsumer(t, c, Group("g"), From(AtOffset(1)))
		take(t, co.Records(t.Context()), 1)
		f.cut()
		f.put(0, "c")
		for r, err := range co.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if string(r.Value) == "c" {
				break
			}
		}
		if len(asked) != 2 || asked[1].Kind != codec.KindPull || asked[1].Name != "g" || asked[1].From != codec.FromOffset || asked[1].Value != 1 {
			t.Errorf("asked %+v", asked)
		}
	})
}

// Requests wait for the broker as long as they may; those that change nothing are asked again when the reply is lost.
func TestAdminComesBack(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		var ev events
		c := f.client(reconnecting(time.Second, 10*time.Second), ev.option(), WithTimeout(time.Minute))
		defer f.stop(c)
		back := f.away()
		synctest.Wait()
		start := time.Now()
		if err := c.Delete(t.Context(), "orders"); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errRefused) {
			t.Error(err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("gave up after %v", d)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := c.CreateTopic(t.Context(), "orders", TopicSettings{}); err != nil {
					t.Error(err)
				}
			})
		}
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := c.List(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-time.After(5 * time.Second)
		back()
		wg.Wait()

		silent := 3
		f.setOn(func(c *fakeConn, h codec.Header, _, _ []byte) bool {
			if h.Type == codec.TypeHello || silent == 0 {
				return false
			}
			silent--
			c.close()
			return true
		})
		if all, err := c.List(t.Context()); err != nil || len(all) != 1 || silent != 0 {
			t.Errorf("%v %v", all, err)
		}
		silent = 1
		if err := c.Delete(t.Context(), "orders"); !isConn(err) || !Retryable(err) {
			t.Errorf("a request whose outcome is unknown: %v", err)
		}
		states := ev.states(RoleAdmin)
		if states[0] != ConnLost || !slices.Contains(states, ConnFailed) || !slices.Contains(states, ConnMade) {
			t.Errorf("%v", states)
		}
	})
}

// A broker that stops gets nothing new; it answers what was sent, and the client ends the connection and looks for
// the next one.
func TestGoAwayAndBack(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		bubble(t, 2, func(t *testing.T, f *fakeBroker) {
			c := f.client(reconnecting(time.Second, time.Minute))
			defer f.stop(c)
			var opts []ProducerOption
			if idempotent {
				opts = append(opts, Idempotent())
			}
			p := newProducer(t, c, append(opts, Linger(time.Hour))...)
			release := holdConfirms(f)
			outcomes := make([]error, 4)
			calls := make([]int, 4)
			publish := func(partition, i int) {
				t.Helper()
				err := p.PublishAsync(t.Context(), Message{Partition: partition, Value: fmt.Appendf(nil, "m%d", i)},
					func(_ Receipt, err error) { outcomes[i] = err; calls[i]++ })
				if err == nil {
					err = p.open[partition].push(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
			publish(0, 0)
			publish(1, 1)
			conn := f.last()
			conn.send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeDraining, Reason: "restart"}))
			synctest.Wait()
			if err := p.PublishValue(t.Context(), 0, []byte("later")); err != nil {
				t.Error(err)
			}
			release(1)
			synctest.Wait()
			if conn.isClosed() || calls[0] != 1 || outcomes[0] != nil {
				t.Errorf("the connection is closed: %t; %d calls, %v", conn.isClosed(), calls[0], outcomes[0])
			}
			release(1)
			synctest.Wait()
			if !conn.isClosed() || calls[1] != 1 || outcomes[1] != nil {
				t.Errorf("the connection is closed: %t; %d calls, %v", conn.isClosed(), calls[1], outcomes[1])
			}
			f.change(func() { f.on = nil })
			if err := p.Flush(t.Context()); err != nil {
				t.Error(err)
			}

			// Batches that were refused for the stop are sent again, if they were kept.
			drained := false
			f.setOn(func(c *fakeConn, h codec.Header, _, _ []byte) bool {
				if h.Type == codec.TypePublish && !drained {
					drained = true
					c.drain()
				}
				return false
			})
			publish(0, 2)
			err := p.Flush(t.Context())
			if want := !idempotent; errors.Is(err, codec.CodeDraining) != want || (err != nil) != want {
				t.Errorf("idempotent %t: %v", idempotent, err)
			}
			publish(0, 3)
			if err := p.Flush(t.Context()); err != nil {
				t.Error(err)
			}
			want := []string{"m0", "later", "m3"}
			if idempotent {
				want = slices.Insert(want, 2, "m2")
			}
			if got := f.values(0); !slices.Equal(got, want) {
				t.Errorf("idempotent %t: stored %q, want %q", idempotent, got, want)
			}
		})
	}
}
