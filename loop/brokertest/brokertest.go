// Package brokertest runs a LightQ broker for the tests of programs that use one: in the process of the test, without a
// socket unless asked for, closed with the test.
//
//	b := brokertest.Start(t, loop.Config{})
//	c, err := client.Dial(ctx, b.URI(), client.WithDialer(b.Dial))
package brokertest

import (
	"context"
	"net"
	"testing"

	"github.com/lightio/lightq/loop"
)

// A Broker is a running broker. Its methods may be called from any goroutine.
type Broker struct {
	*loop.Broker
	door *loop.InProcess // nil: it listens on a socket
}

// Start runs a broker until the test ends; then it drains, and an error of it fails the test. A Config that names neither a
// listener nor an address to bind gives one without a socket: reach it with Dial. With Bind "127.0.0.1" it takes a free port.
func Start(t testing.TB, cfg loop.Config) *Broker {
	t.Helper()
	b := &Broker{}
	if cfg.Listener == nil && cfg.Bind == "" {
		b.door = loop.NewInProcess()
		cfg.Listener = b.door
	}
	var err error
	if b.Broker, err = loop.NewBroker(cfg); err != nil {
		t.Fatalf("start a broker: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return b
}

// URI is the address to give to the client library.
func (b *Broker) URI() string {
	addr := b.Addrs()[0]
	switch addr.Network() {
	case "unix":
		return "unix://" + addr.String()
	case "tcp":
		return "tcp://" + addr.String()
	}
	return "tcp://in-process:0" // Dial ignores it
}

// Dial connects to the broker, whatever it listens on. It is a dialer for the client library.
func (b *Broker) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if b.door != nil {
		return b.door.Dial(ctx, network, addr)
	}
	var d net.Dialer
	a := b.Addrs()[0]
	return d.DialContext(ctx, a.Network(), a.String())
}
