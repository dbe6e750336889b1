package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lightio/lightq/codec"
)

func TestAddresses(t *testing.T) {
	for _, tt := range []struct{ in, network, addr string }{
		{"tcp://127.0.0.1:5500", "tcp", "127.0.0.1:5500"},
		{"localhost:5500", "tcp", "localhost:5500"},
		{"[::1]:5500", "tcp", "[::1]:5500"},
		{"unix:///run/lightq.sock", "unix", "/run/lightq.sock"},
		{in: ""},
		{in: "localhost"},
		{in: "tcp://localhost"},
		{in: "localhost:"},
		{in: "unix://"},
		{in: "http://localhost:5500"},
	} {
		network, addr, err := splitAddr(tt.in)
		if network != tt.network || addr != tt.addr || (err == nil) != (tt.network != "") {
			t.Errorf("%q: %q %q %v", tt.in, network, addr, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "q.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Skip("no unix sockets here:", err)
	}
	defer func() { _ = ln.Close() }()
	f := newFake(t, 1)
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			f.serve(nc)
		}
	}()
	c, err := Dial(t.Context(), "unix://"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.stop(c)
	if _, err := newProducer(t, c).Publish(t.Context(), Message{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if got := take(t, newConsumer(t, c).Records(t.Context()), 1); got[0] != "0 x" {
		t.Error(got)
	}
}

func TestAdmin(t *testing.T) {
	bubble(t, 2, func(t *testing.T, f *fakeBroker) {
		c := f.client(WithName("test 1.0"))
		defer f.stop(c)
		s := TopicSettings{Storage: codec.StorageQueue, Partitions: 2, RingBytes: 1 << 20}
		for i := range 2 {
			r, err := c.CreateTopic(t.Context(), "orders", s)
			if err != nil || r.Created != (i == 0) || r.Settings != s {
				t.Errorf("%+v %v", r, err)
			}
		}
		d, err := c.Describe(t.Context(), "orders")
		if err != nil || len(d.Partitions) != 2 {
			t.Errorf("%+v %v", d, err)
		}
		if _, err := c.Describe(t.Context(), "missing"); !errors.Is(err, codec.CodeUnknownTopic) || Retryable(err) {
			t.Error(err)
		}
		if _, err := c.Producer(t.Context(), "missing"); !errors.Is(err, codec.CodeUnknownTopic) {
			t.Error(err)
		}
		if _, err := c.Consumer(t.Context(), "missing"); !errors.Is(err, codec.CodeUnknownTopic) {
			t.Error(err)
		}
		// A lost control connection is made anew.
		f.mu.Lock()
		first := f.conns[0]
		f.mu.Unlock()
		first.close()
		synctest.Wait()
		if _, err := c.Describe(t.Context(), "orders"); err != nil {
			t.Error(err)
		}
		if f.dials != 4 {
			t.Errorf("%d connections were made, want 4", f.dials)
		}
	})
}

func TestRequestsEnd(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		silent := map[codec.Type]bool{codec.TypeCreate: true, codec.TypeOpen: true, codec.TypeSubscribe: true}
		f.on = func(_ *fakeConn, h codec.Header, _, _ []byte) bool { return silent[h.Type] }
		c := f.client(WithTimeout(3 * time.Second))
		defer f.stop(c)
		for name, request := range map[string]func(ctx context.Context) error{
			"create":   func(ctx context.Context) error { _, err := c.CreateTopic(ctx, "t", TopicSettings{}); return err },
			"producer": func(ctx context.Context) error { _, err := c.Producer(ctx, "t"); return err },
			"consumer": func(ctx context.Context) error { _, err := c.Consumer(ctx, "t"); return err },
		} {
			start := time.Now()
			if err := request(t.Context()); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-time.After(time.Second); cancel() }()
			start = time.Now()
			if err := request(ctx); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v", name, err, time.Since(start))
			}
		}
	})
}

func TestDialFails(t *testing.T) {
	refused := errors.New("refused")
	_, err := Dial(t.Context(), "host:1", WithDialer(func(context.Context, string, string) (net.Conn, error) { return nil, refused }))
	var ce *ConnError
	if !errors.As(err, &ce) || ce.Op != "dial" || ce.Addr != "host:1" || !errors.Is(err, refused) || !Retryable(err) {
		t.Errorf("%v", err)
	}
	for _, tt := range []struct {
		name   string
		answer func(c *fakeConn, h codec.Header)
		want   error
	}{
		{"nothing", func(*fakeConn, codec.Header) {}, context.DeadlineExceeded},
		{"refusal", func(c *fakeConn, h codec.Header) {
			c.send(codec.AppendError(nil, h.Correlation, 0, codec.Errorf(codec.CodeUnsupportedVersion, "")))
		}, codec.CodeUnsupportedVersion},
		{"go-away", func(c *fakeConn, h codec.Header) {
			c.send(codec.AppendGoAway(nil, codec.GoAway{Code: codec.CodeTooManyConnections}))
		}, codec.CodeTooManyConnections},
		{"another version", func(c *fakeConn, h codec.Header) {
			c.send(codec.AppendHello(nil, h.Correlation, true, codec.Hello{MinVersion: 2, MaxVersion: 2}))
		}, codec.CodeUnsupportedVersion},
		{"no reply but a request", func(c *fakeConn, h codec.Header) {
			c.send(codec.AppendHello(nil, h.Correlation, false, codec.Hello{MinVersion: 1, MaxVersion: 1}))
		}, codec.CodeMalformedFrame},
		{"another frame", func(c *fakeConn, h codec.Header) { c.send(confirmFrame(1, 0, 0)) }, codec.CodeHelloExpected},
		{"a large frame", func(c *fakeConn, h codec.Header) {
			c.send(append(lengthPrefix(4093), make([]byte, 12)...))
		}, codec.CodeFrameTooLarge},
		{"HTTP", func(c *fakeConn, h codec.Header) {
			c.send([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}, codec.CodeFrameTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, 1, func(t *testing.T, f *fakeBroker) {
				f.on = func(c *fakeConn, h codec.Header, _, _ []byte) bool { tt.answer(c, h); return true }
				_, err := Dial(t.Context(), "host:1", WithDialer(f.dial))
				if !errors.As(err, &ce) || ce.Op != "hello" || !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
				f.stop(nil)
			})
		})
	}
}

// Both directions: the client sends something in every interval on every connection, and a broker that is silent
// for three is dead.
func TestHeartbeats(t *testing.T) {
	bubble(t, 1, func(t *testing.T, f *fakeBroker) {
		const interval = 10 * time.Second
		f.hello.HeartbeatMillis = uint32(interval / time.Millisecond)
		c := f.client()
		defer f.stop(c)
		p := newProducer(t, c)
		co := newConsumer(t, c)
		f.mu.Lock()
		conns := f.conns
		f.mu.Unlock()
		beat := func() {
			for _, fc := range conns {
				fc.send(codec.AppendHeartbeat(nil))
			}
		}
		for i := range 20 {
			before := f.count(codec.TypeHeartbeat)
			<-time.After(interval)
			synctest.Wait()
			if n := f.count(codec.TypeHeartbeat) - before; n < 3 {
				t.Errorf("interval %d: %d heartbeats of three connections", i, n)
			}
			for _, fc := range conns[:2] { // nobody iterates, so the third is no question
				fc.send(codec.AppendHeartbeat(nil))
			}
		}
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		beat()
		ended := make(chan error, 1)
		start := time.Now()
		go func() {
			for _, err := range co.Batches(context.Background()) {
				ended <- err
			}
		}()
		if err := <-ended; !errors.Is(err, codec.CodeHeartbeatTimeout) || !Retryable(err) {
			t.Errorf("consumer: %v", err)
		}
		if d := time.Since(start); d < 3*interval || d > 4*interval {
			t.Errorf("the silent broker was given up after %v", d)
		}
		<-time.After(interval)
		synctest.Wait()
		if err := p.Err(); !errors.Is(err, codec.CodeHeartbeatTimeout) || !isConn(err) {
			t.Errorf("producer: %v", err)
		}
	})
}

func TestRetryable(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{ErrClosed, false},
		{context.Canceled, false},
		{errors.New("other"), false},
		{&ConnError{Op: "read", Addr: "a", Err: errors.New("reset")}, true},
		{&ConnError{Op: "read", Addr: "a", Err: codec.Errorf(codec.CodeNotAllowed, "")}, false},
		{fmt.Errorf("x: %w", codec.Errorf(codec.CodeOverflow, "")), true},
		{&PartitionError{"t", 1, codec.Errorf(codec.CodeOutcomeUnknown, "")}, false},
	} {
		if got := Retryable(tt.err); got != tt.want {
			t.Errorf("Retryable(%v) = %v", tt.err, got)
		}
	}
}
