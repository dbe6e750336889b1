package main

import (
	"fmt"
	"os"

	"github.com/panjf2000/gnet/v2"
)

// gnetRelay is the relay on one gnet loop: what an event loop costs against plain blocking calls.
//
// It writes to a blocking socket of its own instead of a gnet connection. gnet has no way to stop reading and would queue
// without bound what the receiver does not take; a handler that waits in write stops the loop, and with it the reading.
// Nothing else is on that loop, so waiting there is harmless here and nowhere else.
type gnetRelay struct {
	gnet.BuiltinEventEngine
	out       int // blocking socket to the receiver
	listening func(addr string)

	// The loop's until gnet.Run has returned.
	bytes  int64
	err    error
	sender gnet.Conn // the one connection that is relayed
}

// runGnetRelay relays one connection to out, calling listening with its own address once it can be dialled.
func runGnetRelay(out int, listening func(addr string)) (int64, error) {
	r := &gnetRelay{out: out, listening: listening}
	err := gnet.Run(r, "tcp://127.0.0.1:0",
		gnet.WithNumEventLoop(1), gnet.WithReadBufferCap(relayBlock), gnet.WithLogger(stderrLogger{}))
	if r.err != nil {
		return r.bytes, r.err
	}
	if err != nil {
		return r.bytes, fmt.Errorf("run gnet: %w", err)
	}
	return r.bytes, nil
}

func (r *gnetRelay) OnBoot(eng gnet.Engine) gnet.Action {
	fd, err := eng.Dup()
	if err != nil {
		r.err = fmt.Errorf("find the relay's address: %w", err)
		return gnet.Shutdown
	}
	defer closeSocket(fd)
	addr, err := localAddress(fd)
	if err != nil {
		r.err = err
		return gnet.Shutdown
	}
	r.listening(addr)
	return gnet.None
}

func (r *gnetRelay) OnOpen(c gnet.Conn) ([]byte, gnet.Action) {
	if r.sender != nil {
		return nil, gnet.Close // one sender only
	}
	r.sender = c
	return nil, gnet.None
}

func (r *gnetRelay) OnTraffic(c gnet.Conn) gnet.Action {
	b, err := c.Peek(-1)
	if err == nil {
		err = writeBlock(r.out, b)
	}
	if err == nil {
		r.bytes += int64(len(b))
		_, err = c.Discard(len(b))
	}
	if err != nil {
		r.err = err
		return gnet.Shutdown
	}
	return gnet.None
}

func (r *gnetRelay) OnClose(c gnet.Conn, _ error) gnet.Action {
	if c != r.sender {
		return gnet.None
	}
	return gnet.Shutdown
}

// stderrLogger keeps gnet's own words off standard output, which carries the result.
type stderrLogger struct{}

func (stderrLogger) Debugf(string, ...any)            {}
func (stderrLogger) Infof(string, ...any)             {}
func (stderrLogger) Warnf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (stderrLogger) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}

func (stderrLogger) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
